//! A network in this process. Takes names, their addresses and a kind of server; gives a resolver and a dialer in which every
//! address leads to such a server on a real loopback socket, and notes what reached which address.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use decurion_egress::{
    Client, Clients, ConnectionRecord, Dial, Gate, HostRules, Judge, Masked, Proxy, ProxyLimits, ProxyParts,
    Recorder, Resolve,
};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// What an attack tries to bring to a server.
pub const MARK: &str = "MARKMARK";
/// What makes a server answer although the mark did not reach it.
pub const FINISH: &str = "FINISH";
pub const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

/// What servers of a network do.
#[derive(Clone)]
pub enum Server {
    /// Answers once the mark or [`FINISH`] has come.
    Answer,
    /// Answers with all it got, once the client has closed its side.
    EchoAtEnd,
    /// Sends back each piece.
    Echo,
    /// Speaks first, then like `EchoAtEnd`.
    Greet(&'static [u8]),
    /// Speaks TLS, sends back each piece.
    Tls(Arc<rustls::ServerConfig>),
    /// Speaks TLS and HTTP: answers each head with what the function makes of it.
    Http(Arc<rustls::ServerConfig>, fn(&str) -> String),
    Refuse,
}

type Received = Arc<Mutex<Vec<(SocketAddr, Vec<u8>)>>>;

/// Names, addresses and servers.
pub struct Net {
    answers: Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>,
    lookups: Mutex<Vec<String>>,
    received: Received,
    server: Server,
}

impl Net {
    /// A network in which each name has a list of answers, of which the last one is repeated.
    pub fn new(server: Server, names: &[(&str, &[&str])]) -> Arc<Self> {
        let answer = |text: &&str| text.split(',').map(|address| address.parse().unwrap()).collect();
        let answers = names
            .iter()
            .map(|(name, list)| ((*name).to_owned(), list.iter().map(answer).collect()))
            .collect();
        Arc::new(Self {
            answers: Mutex::new(answers),
            lookups: Mutex::default(),
            received: Arc::default(),
            server,
        })
    }

    /// Names that were looked up.
    pub fn lookups(&self) -> Vec<String> {
        self.lookups.lock().unwrap().clone()
    }

    /// Addresses that were connected to, with the bytes that came there.
    pub fn received(&self) -> Vec<(SocketAddr, Vec<u8>)> {
        self.received.lock().unwrap().clone()
    }

    /// Whether the text reached an address.
    pub fn reached(&self, text: &str, matches: impl Fn(SocketAddr) -> bool) -> bool {
        let has = |bytes: &[u8]| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        self.received().iter().any(|(address, bytes)| matches(*address) && has(bytes))
    }
}

impl Resolve for Net {
    fn resolve(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.lookups.lock().unwrap().push(name.to_owned());
        let mut answers = self.answers.lock().unwrap();
        let answer = match answers.get_mut(name) {
            Some(list) if list.len() > 1 => list.pop_front(),
            Some(list) => list.front().cloned(),
            None => None,
        };
        let answer = answer.ok_or_else(|| io::Error::other("no such host"));
        async move { answer }.boxed()
    }
}

impl Dial for Net {
    fn dial(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
        let (received, server) = (self.received.clone(), self.server.clone());
        async move {
            if matches!(server, Server::Refuse) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let (ours, theirs) = tokio::join!(TcpStream::connect(listener.local_addr()?), listener.accept());
            let index = {
                let mut received = received.lock().unwrap();
                received.push((address, Vec::new()));
                received.len() - 1
            };
            tokio::spawn(serve(theirs?.0, server, received, index));
            ours
        }
        .boxed()
    }
}

async fn serve(mut stream: TcpStream, server: Server, received: Received, index: usize) -> io::Result<()> {
    match server {
        Server::Greet(words) => stream.write_all(words).await?,
        Server::Tls(config) => return serve_tls(stream, config, received, index).await,
        Server::Http(config, respond) => return serve_http(stream, config, respond, received, index).await,
        _ => {}
    }
    let mut buffer = vec![0; 64 * 1024];
    let mut answered = false;
    loop {
        let count = stream.read(&mut buffer).await?;
        received.lock().unwrap()[index].1.extend(&buffer[..count]);
        let all = received.lock().unwrap()[index].1.clone();
        match server {
            Server::Echo => stream.write_all(&buffer[..count]).await?,
            Server::EchoAtEnd | Server::Greet(_) if count == 0 => stream.write_all(&all).await?,
            Server::Answer if !answered && contains(&all, &[MARK, FINISH]) => {
                answered = true;
                stream.write_all(ANSWER).await?;
                stream.shutdown().await?;
            }
            _ => {}
        }
        if count == 0 {
            return Ok(());
        }
    }
}

fn contains(bytes: &[u8], words: &[&str]) -> bool {
    words.iter().any(|word| bytes.windows(word.len()).any(|window| window == word.as_bytes()))
}

async fn serve_tls(
    stream: TcpStream,
    config: Arc<rustls::ServerConfig>,
    received: Received,
    index: usize,
) -> io::Result<()> {
    let mut stream = tokio_rustls::TlsAcceptor::from(config).accept(stream).await?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return stream.shutdown().await;
        }
        received.lock().unwrap()[index].1.extend(&buffer[..count]);
        stream.write_all(&buffer[..count]).await?;
        stream.flush().await?;
    }
}

async fn serve_http(
    stream: TcpStream,
    config: Arc<rustls::ServerConfig>,
    respond: fn(&str) -> String,
    received: Received,
    index: usize,
) -> io::Result<()> {
    let mut stream = tokio_rustls::TlsAcceptor::from(config).accept(stream).await?;
    let mut buffer = vec![0; 64 * 1024];
    let mut unanswered = String::new();
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return stream.shutdown().await;
        }
        received.lock().unwrap()[index].1.extend(&buffer[..count]);
        unanswered.push_str(&String::from_utf8_lossy(&buffer[..count]));
        // Bodies in tests end in a full stop, and requests without a body in an empty line.
        if unanswered.ends_with("\r\n\r\n") || unanswered.ends_with('.') {
            let answer = respond(&std::mem::take(&mut unanswered));
            stream.write_all(answer.as_bytes()).await?;
            stream.flush().await?;
            if answer.to_ascii_lowercase().contains("connection: close") {
                return stream.shutdown().await;
            }
        }
    }
}

/// Sends records into a channel.
struct Channel(mpsc::UnboundedSender<ConnectionRecord>);

impl Recorder for Channel {
    fn record(&self, connection: &ConnectionRecord) {
        let _ = self.0.send(connection.clone());
    }
}

/// A proxy in such a network, with one client.
pub struct World {
    pub net: Arc<Net>,
    pub gate: Arc<Gate>,
    pub client: Arc<Client>,
    pub proxy: Option<Proxy>,
    pub port: u16,
    pub records: mpsc::UnboundedReceiver<ConnectionRecord>,
}

impl World {
    /// A proxy without a judge and with the usual limits.
    pub async fn new(net: Arc<Net>, rules: HostRules) -> Self {
        Self::with(net, rules, None, ProxyLimits::default()).await
    }

    pub async fn with(
        net: Arc<Net>,
        rules: HostRules,
        judge: Option<Arc<dyn Judge>>,
        limits: ProxyLimits,
    ) -> Self {
        Self::start(net, rules, judge, limits, None).await
    }

    pub async fn with_masked(net: Arc<Net>, rules: HostRules, masked: Arc<Masked>) -> Self {
        Self::start(net, rules, None, ProxyLimits::default(), Some(masked)).await
    }

    async fn start(
        net: Arc<Net>,
        rules: HostRules,
        judge: Option<Arc<dyn Judge>>,
        limits: ProxyLimits,
        masked: Option<Arc<Masked>>,
    ) -> Self {
        let clients = Clients::default();
        let client = clients.add("agent", rules).unwrap();
        let gate = Arc::new(Gate::new(clients, net.clone(), judge));
        let (sender, records) = mpsc::unbounded_channel();
        let mut parts = ProxyParts::new(gate.clone(), Arc::new(Channel(sender)));
        parts.dialer = net.clone();
        parts.limits = limits;
        parts.masked = masked;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(listener, parts).unwrap();
        let port = proxy.port();
        Self { net, gate, client, proxy: Some(proxy), port, records }
    }

    pub async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends bytes and gives all that comes back.
    pub async fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect().await;
        // The proxy may close while it is sent more than it wants to read.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answer
    }

    /// Opens a tunnel with CONNECT.
    pub async fn tunnel(&self, target: &str) -> TcpStream {
        let mut stream = self.connect().await;
        stream.write_all(connect(target, &[])(self.client.token()).as_slice()).await.unwrap();
        assert_eq!(read_head(&mut stream).await, "HTTP/1.1 200 Connection Established\r\n\r\n");
        stream
    }

    pub async fn record(&mut self) -> ConnectionRecord {
        self.records.recv().await.unwrap()
    }
}

/// Reads a head byte by byte, so that nothing behind it is taken.
pub async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

pub fn rules(allowed: &[&str], denied: &[&str], open: bool) -> HostRules {
    HostRules::new(allowed.iter().copied(), denied.iter().copied(), open).unwrap()
}

/// The header that presents a token.
pub fn login(token: &str) -> String {
    format!("Proxy-Authorization: Basic {}\r\n", STANDARD.encode(format!("{token}:x")))
}

/// Bytes that need a token to be made.
pub type Bytes = Box<dyn Fn(&str) -> Vec<u8>>;

/// CONNECT, and bytes for the tunnel right behind it.
pub fn connect(target: &str, inside: &[u8]) -> Bytes {
    let (target, inside) = (target.to_owned(), inside.to_vec());
    Box::new(move |token| {
        let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{}\r\n", login(token));
        [head.as_bytes(), &inside].concat()
    })
}

/// A request with these lines; `{login}` is the header that presents the token.
pub fn raw(text: &str) -> Bytes {
    let text = text.to_owned();
    Box::new(move |token| text.replace("{login}", &login(token)).replace("{token}", token).into_bytes())
}

/// A GET for a URL with the mark in its path.
pub fn get(host: &str) -> Bytes {
    raw(&format!("GET http://{host}/{MARK} HTTP/1.1\r\nHost: {host}\r\n{{login}}\r\n"))
}

/// Where a SOCKS client wants to go.
#[derive(Clone, Copy)]
pub enum Address<'a> {
    Ip(IpAddr),
    Name(&'a [u8]),
}

/// All messages of SOCKS at once, and bytes for the tunnel right behind them.
pub fn socks(address: Address<'_>, port: u16, inside: &[u8]) -> Bytes {
    let mut request = vec![5, 1, 0];
    match address {
        Address::Ip(IpAddr::V4(ip)) => request.extend([&[1][..], &ip.octets()].concat()),
        Address::Ip(IpAddr::V6(ip)) => request.extend([&[4][..], &ip.octets()].concat()),
        Address::Name(name) => request.extend([&[3, u8::try_from(name.len()).unwrap()][..], name].concat()),
    }
    request.extend(port.to_be_bytes());
    request.extend(inside);
    Box::new(move |token| [&[5, 1, 2][..], &socks_login(token), &request].concat())
}

pub fn socks_login(token: &str) -> Vec<u8> {
    [&[1, u8::try_from(token.len()).unwrap()][..], token.as_bytes(), &[1, b'x']].concat()
}

/// A TLS hello with the mark in its random bytes, and these extensions.
pub fn hello_with(extensions: &[u8]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend(MARK.repeat(4).bytes());
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
    body.extend(extensions);
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1][..], &length[1..], &body].concat()
}

/// The extension that names a server.
pub fn server_name(name: &[u8]) -> Vec<u8> {
    let length = u16::try_from(name.len()).unwrap();
    let mut extension = vec![0, 0];
    extension.extend((length + 5).to_be_bytes());
    extension.extend((length + 3).to_be_bytes());
    extension.push(0);
    extension.extend(length.to_be_bytes());
    extension.extend(name);
    extension
}

/// Records of at most this size.
pub fn tls_records(message: &[u8], size: usize) -> Vec<u8> {
    let record =
        |part: &[u8]| [&[22, 3, 1][..], &u16::try_from(part.len()).unwrap().to_be_bytes(), part].concat();
    message.chunks(size).flat_map(record).collect()
}

/// A TLS hello for this server, in one record.
pub fn hello(name: Option<&str>) -> Vec<u8> {
    let extension = name.map(|name| server_name(name.as_bytes())).unwrap_or_default();
    tls_records(&hello_with(&extension), 16 * 1024)
}
