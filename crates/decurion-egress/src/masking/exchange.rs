//! HTTP between a client and the host of a secret. Takes both connections, gives the host the requests with the secret in
//! their headers, and the client the responses without it.

use std::io::{self, Cursor};
use std::pin::{Pin, pin};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderMap,
    HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;
use rustls::CertificateError;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::body::BlankedBody;
use super::{Masked, Substitution};
use crate::fault::ConnectionFault;
use crate::host::Host;
use crate::inbound::Inbound;
use crate::record::{Direction, Tally};

/// The largest body in which an echoed secret is replaced by its sentinel; in larger ones it is overwritten.
const BODY_MAX: u64 = 1024 * 1024;
/// The most bytes of a head.
const HEAD_MAX: usize = 64 * 1024;

type ResponseBody = Either<BlankedBody, Full<Bytes>>;

/// Ends TLS on both sides and passes requests and responses.
pub(crate) async fn carry(
    masked: &Masked,
    inbound: &mut Inbound,
    server: &mut TcpStream,
    (host, port): (&Host, u16),
    tally: &Tally,
) -> Result<(), ConnectionFault> {
    let pending = std::mem::take(&mut inbound.pending);
    let (from_client, to_client) = inbound.stream.split();
    // The hello was read already, to see its name.
    let client = tokio::io::join(Cursor::new(pending).chain(from_client), to_client);
    let config = masked.authority.server_config(&host.to_string()).map_err(io::Error::other)?;
    let client = TlsAcceptor::from(config).accept(client).await?;
    let name = ServerName::try_from(host.to_string()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(masked.upstream.clone());
    let exchange = |sender: Result<SendRequest<Incoming>, String>| Exchange {
        host: host.clone(),
        port,
        substitution: masked.substitution(host, port),
        sender: Mutex::new(Some(sender)),
    };
    let server = match connector.connect(name, CountedStream { stream: server, tally }).await {
        Ok(server) => server,
        Err(error) => {
            // The client's TLS connection exists, so it can receive the reason why there is no server.
            let exchange = exchange(Err(format!("cannot open TLS to {host}: {}", why_not(&error))));
            return serve(client, &exchange, std::future::pending()).await;
        }
    };
    let mut builder = hyper::client::conn::http1::Builder::new();
    let (sender, upstream) =
        builder.max_buf_size(HEAD_MAX).handshake(TokioIo::new(server)).await.map_err(io::Error::other)?;
    serve(client, &exchange(Ok(sender)), upstream).await
}

/// Why there is no TLS with a server.
fn why_not(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(problem)) = inner else { return error.to_string() };
    match problem {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is for another name".to_owned()
        }
        CertificateError::Revoked => "its certificate is revoked".to_owned(),
        problem if is_self_signed(problem) => {
            "its certificate is self-signed, or signed by an authority that this system does not trust; to trust it, \
             set SSL_CERT_FILE to a file with the system's certificates and this one"
                .to_owned()
        }
        _ => "its certificate cannot be verified".to_owned(),
    }
}

/// Whether no known authority has signed a certificate. One that is an authority and a server's at once, as `openssl req
/// -x509` makes them, is reported in the words of the library that verifies.
fn is_self_signed(problem: &CertificateError) -> bool {
    match problem {
        CertificateError::UnknownIssuer => true,
        CertificateError::Other(other) => other.to_string().contains("CaUsedAsEndEntity"),
        _ => false,
    }
}

/// Answers requests until one side has had enough.
async fn serve(
    client: impl AsyncRead + AsyncWrite + Unpin,
    exchange: &Exchange,
    upstream: impl Future<Output = hyper::Result<()>>,
) -> Result<(), ConnectionFault> {
    let mut builder = hyper::server::conn::http1::Builder::new();
    let service = service_fn(|request| exchange.answer(request));
    let mut serving = pin!(builder.max_buf_size(HEAD_MAX).serve_connection(TokioIo::new(client), service));
    let result = tokio::select! {
        result = serving.as_mut() => result,
        // The server has closed: the client gets what was answered so far, and opens another connection for the rest.
        _ = upstream => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    result.map_err(|error| ConnectionFault::Broken(io::Error::other(error)))
}

/// What answering requests needs.
struct Exchange {
    host: Host,
    port: u16,
    substitution: Substitution,
    /// Absent while a request is being sent; requests of one connection come one after the other.
    sender: Mutex<Option<Result<SendRequest<Incoming>, String>>>,
}

impl Exchange {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<ResponseBody>, hyper::Error> {
        if let Err((status, words)) = self.check(&request) {
            return Ok(refuse(status, words));
        }
        let with_body = request.method() != Method::HEAD;
        let taken = self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut sender = match taken {
            Some(Ok(sender)) => sender,
            Some(Err(words)) => {
                let answer = refuse(StatusCode::BAD_GATEWAY, &words);
                *self.sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(Err(words));
                return Ok(answer);
            }
            None => return Ok(refuse(StatusCode::BAD_GATEWAY, "the connection to the server is broken")),
        };
        sender.ready().await?;
        let response = sender.send_request(self.for_server(request)).await?;
        *self.sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(Ok(sender));
        self.for_client(response, with_body).await
    }

    /// A request has to be for the host that the tunnel leads to.
    fn check(&self, request: &Request<Incoming>) -> Result<(), (StatusCode, &'static str)> {
        if request.uri().authority().is_some() || request.method() == Method::CONNECT {
            return Err((StatusCode::BAD_REQUEST, "the request has to name a path"));
        }
        let mut hosts = request.headers().get_all(HOST).iter();
        let (host, more) = (hosts.next(), hosts.next());
        let host = host.filter(|_| more.is_none()).and_then(|value| value.to_str().ok());
        let host = host.and_then(|text| Host::parse_with_port(text, Some(self.port)));
        let same = host
            .is_some_and(|(host, port)| Host::parse(host).as_ref() == Ok(&self.host) && port == self.port);
        if same {
            Ok(())
        } else {
            Err((StatusCode::MISDIRECTED_REQUEST, "the Host header names another host"))
        }
    }

    fn for_server(&self, mut request: Request<Incoming>) -> Request<Incoming> {
        remove_hop_headers(request.headers_mut());
        // Whether the body is wanted is settled between the client and this proxy.
        request.headers_mut().remove(EXPECT);
        // A secret is not found in what is compressed.
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        *request.version_mut() = Version::HTTP_11;
        self.substitution.unmask(request.headers_mut());
        request
    }

    async fn for_client(
        &self,
        mut response: Response<Incoming>,
        with_body: bool,
    ) -> Result<Response<ResponseBody>, hyper::Error> {
        remove_hop_headers(response.headers_mut());
        // The words after the status code are free text, and the code says all that a client needs.
        response.extensions_mut().remove::<hyper::ext::ReasonPhrase>();
        self.substitution.mask(response.headers_mut());
        if !with_body || !is_small_text(&response) {
            let needles = self.substitution.needles();
            return Ok(response.map(|body| Either::Left(BlankedBody::new(body, needles))));
        }
        let (mut head, body) = response.into_parts();
        let body = self.substitution.mask_bytes(&body.collect().await?.to_bytes());
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        Ok(Response::from_parts(head, Either::Right(Full::new(Bytes::from(body)))))
    }
}

/// Whether the body is text of known, small length.
fn is_small_text(response: &Response<Incoming>) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let text = kind.starts_with("text/")
        || ["json", "xml", "javascript", "urlencoded"].iter().any(|end| kind.ends_with(end));
    let length = response.body().size_hint().exact();
    text && length.is_some_and(|length| (1..=BODY_MAX).contains(&length))
        && !response.headers().contains_key(CONTENT_ENCODING)
}

/// Removes headers that concern one connection. The sender of the body sets its length anew.
fn remove_hop_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| ![HOST, CONTENT_LENGTH].contains(name))
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-connection", "proxy-authorization", "proxy-authenticate"] {
        headers.remove(name);
    }
}

fn refuse(status: StatusCode, words: &str) -> Response<ResponseBody> {
    let mut response = Response::new(Either::Right(Full::new(Bytes::from(format!("decurion: {words}\n")))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The connection to the server, with its bytes counted.
struct CountedStream<'a> {
    stream: &'a mut TcpStream,
    tally: &'a Tally,
}

impl AsyncRead for CountedStream<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut *self.stream).poll_read(context, buffer);
        let count = buffer.filled().len() - before;
        if count > 0 {
            self.tally.count(Direction::Down, count);
        }
        result
    }
}

impl AsyncWrite for CountedStream<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut *self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = &result {
            self.tally.count(Direction::Up, *count);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(context)
    }
}
