//! One connection of a client, from its first byte to its end. Takes the accepted connection, gives the client what the
//! server says or the reason why there is no server, and a record.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::clients::Client;
use crate::fault::ConnectionFault;
use crate::gate::{Admission, Gate};
use crate::host::Host;
use crate::http::RequestHead;
use crate::inbound::{Inbound, InboundProtocol, InboundRequest};
use crate::masking::Masked;
use crate::record::{Direction, Ending, OpenRecord, RecordedVerdict, Recorder, Tally};
use crate::relay::{pump, send, send_body};
use crate::tunnel::Tunnel;

/// Opens connections to servers.
pub trait Dial: Send + Sync {
    /// Connects to this address and no other.
    fn dial(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>>;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDialer;

impl Dial for SystemDialer {
    fn dial(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
        TcpStream::connect(address).boxed()
    }
}

/// Bounds of a proxy.
#[derive(Clone, Copy, Debug)]
pub struct ProxyLimits {
    /// Connections at once. More wait to be accepted.
    pub connections: usize,
    /// Time for a request's head, or for the messages of SOCKS.
    pub head_time: Duration,
    /// Time for a TLS hello.
    pub hello_time: Duration,
    /// Time to reach a server.
    pub connect_time: Duration,
    /// Time after which a connection is closed on which no byte passes.
    pub idle_time: Duration,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self {
            connections: 256,
            head_time: Duration::from_secs(10),
            hello_time: Duration::from_secs(10),
            connect_time: Duration::from_secs(30),
            idle_time: Duration::from_secs(600),
        }
    }
}

/// What all connections share.
pub(crate) struct ProxyShared {
    pub(crate) gate: Arc<Gate>,
    pub(crate) dialer: Arc<dyn Dial>,
    pub(crate) recorder: Arc<dyn Recorder>,
    pub(crate) limits: ProxyLimits,
    pub(crate) masked: Option<Arc<Masked>>,
}

/// Serves one connection to its end.
pub(crate) async fn serve(shared: Arc<ProxyShared>, stream: TcpStream) {
    let mut open = OpenRecord::begin(shared.recorder.clone());
    let mut inbound = Inbound::new(stream);
    match exchange(&shared, &mut inbound, &mut open).await {
        Ok(()) => open.record.ending = Ending::Completed,
        Err(fault) => {
            if fault.is_refusal() {
                open.record.verdict = RecordedVerdict::Refused(fault.to_string());
            }
            if let ConnectionFault::Refused(refusal) = &fault {
                match refusal.failed_lookup() {
                    Some(grant) => open.record.verdict = RecordedVerdict::Allowed(grant),
                    None => open.record.refusal = Some(refusal.reason.clone()),
                }
            }
            open.record.ending = fault.ending();
            inbound.answer(&fault).await;
        }
    }
    drop(open);
    inbound.close().await;
}

async fn exchange(
    shared: &ProxyShared,
    inbound: &mut Inbound,
    open: &mut OpenRecord,
) -> Result<(), ConnectionFault> {
    let reading = inbound.read_request(shared.gate.clients(), open);
    let request = timeout(shared.limits.head_time, reading).await.map_err(|_| ConnectionFault::TooSlow)??;
    let client = request.client.clone();
    tokio::select! {
        result = carry_out(shared, inbound, request, open) => result,
        () = client.ended() => Err(ConnectionFault::ClientRemoved),
    }
}

/// Decides, connects, and passes bytes until both sides have said all.
async fn carry_out(
    shared: &ProxyShared,
    inbound: &mut Inbound,
    request: InboundRequest,
    open: &mut OpenRecord,
) -> Result<(), ConnectionFault> {
    let admission = tokio::select! {
        admission = shared.gate.admit(&request.client, &request.host, request.port) => admission,
        () = inbound.hung_up() => return Err(ConnectionFault::ClientLeft),
    };
    let admission = admission.map_err(ConnectionFault::Refused)?;
    open.record.host = admission.host.to_string();
    open.record.verdict = RecordedVerdict::Allowed(admission.grant);
    let connecting = connect(&*shared.dialer, &admission);
    let (mut server, address) = timeout(shared.limits.connect_time, connecting)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(|error| ConnectionFault::Unreachable {
            host: admission.host.to_string(),
            port: request.port,
            error,
        })?;
    open.record.address = Some(address);
    // Small messages go at once: both sides may be waiting for each other.
    let _ = server.set_nodelay(true);
    let tally = open.tally.clone();
    tally.touch();
    let passing = async {
        if let InboundProtocol::Url { head, path } = &request.form {
            let server_head = head.for_server(path, &admission.host, request.port)?;
            return forward(inbound, &mut server, head, &server_head, &tally).await;
        }
        inbound.open_tunnel(&request.form).await?;
        tunnel(shared, &request.client, &admission.host, request.port, &tally)
            .carry(inbound, &mut server)
            .await
    };
    tokio::select! {
        result = passing => result,
        () = tally.idle(shared.limits.idle_time) => Err(ConnectionFault::Idle),
    }
}

fn tunnel<'a>(
    shared: &'a ProxyShared,
    client: &Client,
    host: &'a Host,
    port: u16,
    tally: &'a Tally,
) -> Tunnel<'a> {
    Tunnel {
        host,
        port,
        may_hide_name: client.rules().is_open(),
        hello_time: shared.limits.hello_time,
        masked: shared.masked.as_deref().filter(|masked| masked.covers(host, port)),
        tally,
    }
}

/// Time before the next address is tried while an earlier one has not answered.
const STAGGER: Duration = Duration::from_millis(250);

/// Connects to the first of the vetted addresses that answers.
async fn connect(dialer: &dyn Dial, admission: &Admission) -> io::Result<(TcpStream, SocketAddr)> {
    let mut waiting = admission.addresses.iter().copied();
    let mut attempts = FuturesUnordered::new();
    let mut last_error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        if let Some(address) = waiting.next() {
            attempts.push(dialer.dial(address).map(move |result| result.map(|stream| (stream, address))));
        } else if attempts.is_empty() {
            return Err(last_error);
        }
        let more = waiting.len() > 0;
        tokio::select! {
            Some(result) = attempts.next() => match result {
                Ok(connected) => return Ok(connected),
                Err(error) => last_error = error,
            },
            () = tokio::time::sleep(STAGGER), if more => {}
        }
    }
}

/// Sends one request for a URL, and then its response to the client.
async fn forward(
    inbound: &mut Inbound,
    server: &mut TcpStream,
    head: &RequestHead,
    server_head: &[u8],
    tally: &Tally,
) -> Result<(), ConnectionFault> {
    let length = head.body_length()?;
    let (mut from_client, mut to_client, pending) = inbound.begin_response();
    let (mut from_server, mut to_server) = server.split();
    let request = async {
        send(&mut to_server, server_head, tally).await?;
        send_body(&mut from_client, pending, length, &mut to_server, tally).await?;
        // The response ends the exchange, not the request.
        std::future::pending::<Result<(), ConnectionFault>>().await
    };
    tokio::select! {
        result = request => result,
        result = pump(&mut from_server, &mut to_client, Direction::Down, tally) => Ok(result?),
    }
}
