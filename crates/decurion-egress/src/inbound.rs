//! The client's side of a connection. Takes what the client sends, gives its request; takes an answer, gives it to the
//! client in the protocol it speaks.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::timeout;

use crate::clients::{Client, Clients};
use crate::fault::ConnectionFault;
use crate::gate::printable;
use crate::http::{RequestHead, head_length};
use crate::record::OpenRecord;
use crate::relay::fill;
use crate::socks;

/// Time to let a client take the last answer.
const FAREWELL: Duration = Duration::from_secs(2);
/// Bytes of a client that are read and dropped after the last answer.
const DROPPED_MAX: usize = 256 * 1024;

pub(crate) struct Inbound {
    pub(crate) stream: TcpStream,
    /// Bytes that were read and not used yet.
    pub(crate) pending: Vec<u8>,
    stage: AnswerStage,
}

/// Which answers the client understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerStage {
    Http,
    Socks,
    Tunnel,
    /// The server's response is on its way; nothing of ours may be mixed into it.
    Response,
}

/// What a client asks for.
pub(crate) struct InboundRequest {
    pub(crate) client: Arc<Client>,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) form: InboundProtocol,
}

/// How the client asks.
pub(crate) enum InboundProtocol {
    Connect,
    Socks,
    Url { head: RequestHead, path: String },
}

impl Inbound {
    pub(crate) fn new(stream: TcpStream) -> Self {
        // Small messages go at once: both sides may be waiting for each other.
        let _ = stream.set_nodelay(true);
        Self { stream, pending: Vec::new(), stage: AnswerStage::Http }
    }

    /// Reads what the client asks for, in whichever protocol it speaks.
    pub(crate) async fn read_request(
        &mut self,
        clients: &Clients,
        open: &mut OpenRecord,
    ) -> Result<InboundRequest, ConnectionFault> {
        self.fill().await?;
        match self.pending.first() {
            Some(&socks::VERSION) => {
                self.stage = AnswerStage::Socks;
                self.read_socks(clients, open).await
            }
            Some(first) if first.is_ascii_alphabetic() => self.read_http(clients, open).await,
            _ => Err(ConnectionFault::UnknownProtocol),
        }
    }

    async fn read_http(
        &mut self,
        clients: &Clients,
        open: &mut OpenRecord,
    ) -> Result<InboundRequest, ConnectionFault> {
        let head = self.read_head().await?;
        let token = head.proxy_user()?;
        let (host, port, path) = if head.method == "CONNECT" {
            let (host, port) = head.connect_target()?;
            (host.to_owned(), port, None)
        } else {
            head.body_length()?;
            let (host, port, path) = head.url_target()?;
            (host.to_owned(), port, Some(path))
        };
        open.record.host = printable(&host);
        open.record.port = port;
        let client = token.and_then(|token| clients.find(&token)).ok_or(ConnectionFault::Unauthenticated)?;
        open.belongs_to(&client);
        let form = path.map_or(InboundProtocol::Connect, |path| InboundProtocol::Url { head, path });
        Ok(InboundRequest { client, host, port, form })
    }

    async fn read_head(&mut self) -> Result<RequestHead, ConnectionFault> {
        let mut searched = 0;
        loop {
            if let Some(length) = head_length(&self.pending, searched)? {
                let head = RequestHead::parse(&self.pending[..length])?;
                self.pending.drain(..length);
                return Ok(head);
            }
            searched = self.pending.len();
            self.fill().await?;
        }
    }

    async fn read_socks(
        &mut self,
        clients: &Clients,
        open: &mut OpenRecord,
    ) -> Result<InboundRequest, ConnectionFault> {
        if !self.read_message(socks::greeting).await? {
            return Err(ConnectionFault::NoLogin);
        }
        self.stream.write_all(&[socks::VERSION, socks::USER_AND_PASSWORD]).await?;
        let token = self.read_message(socks::login).await?;
        let client = clients.find(&token).ok_or(ConnectionFault::Unauthenticated)?;
        open.belongs_to(&client);
        self.stream.write_all(&[1, 0]).await?;
        let (host, port) = self.read_message(socks::request).await?;
        open.record.host = printable(&host);
        open.record.port = port;
        Ok(InboundRequest { client, host, port, form: InboundProtocol::Socks })
    }

    /// Reads one message of SOCKS. Each is bounded by the length fields in it.
    async fn read_message<T>(
        &mut self,
        parse: fn(&[u8]) -> socks::SocksMessage<T>,
    ) -> Result<T, ConnectionFault> {
        loop {
            if let Some((message, length)) = parse(&self.pending)? {
                self.pending.drain(..length);
                return Ok(message);
            }
            self.fill().await?;
        }
    }

    /// Reads more bytes. A client that closes here has left.
    async fn fill(&mut self) -> Result<(), ConnectionFault> {
        fill(&mut self.stream, &mut self.pending).await.map_err(|_| ConnectionFault::ClientLeft)
    }

    /// Resolves when the client closes while it has nothing more to say.
    pub(crate) async fn hung_up(&self) {
        if matches!(self.stream.peek(&mut [0]).await, Ok(1..)) {
            std::future::pending::<()>().await;
        }
    }

    /// Tells the client that its tunnel is open.
    pub(crate) async fn open_tunnel(&mut self, form: &InboundProtocol) -> Result<(), ConnectionFault> {
        let answer = match form {
            InboundProtocol::Socks => socks::SocksReply::Succeeded.message().to_vec(),
            _ => b"HTTP/1.1 200 Connection Established\r\n\r\n".to_vec(),
        };
        self.stream.write_all(&answer).await?;
        self.stage = AnswerStage::Tunnel;
        Ok(())
    }

    /// Both directions and the bytes that wait, for an exchange in which the server answers.
    pub(crate) fn begin_response(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>, &mut Vec<u8>) {
        self.stage = AnswerStage::Response;
        let (reader, writer) = self.stream.split();
        (reader, writer, &mut self.pending)
    }

    /// Tells the client what went wrong, if its protocol has words for it.
    pub(crate) async fn answer(&mut self, fault: &ConnectionFault) {
        let answer = match self.stage {
            AnswerStage::Http => fault.http_answer(),
            AnswerStage::Socks => fault.socks_answer(),
            AnswerStage::Tunnel => fault.tunnel_answer(),
            AnswerStage::Response => None,
        };
        if let Some(answer) = answer {
            let _ = timeout(FAREWELL, self.stream.write_all(&answer)).await;
        }
    }

    /// Closes the connection. What the client still sends is read for a moment and dropped: with unread bytes, the system
    /// would reset the connection, and the client might lose the answer.
    pub(crate) async fn close(mut self) {
        let drop_rest = async {
            self.stream.shutdown().await?;
            let mut left = DROPPED_MAX;
            let mut piece = [0; 4096];
            while left > 0 {
                match self.stream.read(&mut piece).await? {
                    0 => break,
                    count => left = left.saturating_sub(count),
                }
            }
            io::Result::Ok(())
        };
        let _ = timeout(FAREWELL, drop_rest).await;
    }
}
