//! A tunnel to a server that was decided about. Takes both connections, gives each the bytes of the other, once the first
//! bytes of the client were looked at.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client_hello::{ClientHello, is_tls};
use crate::fault::ConnectionFault;
use crate::gate::printable;
use crate::host::Host;
use crate::inbound::Inbound;
use crate::masking::{self, Masked};
use crate::record::{Direction, Tally};
use crate::relay::{fill, pump, read_hello, send};

/// A tunnel to this host.
pub(crate) struct Tunnel<'a> {
    pub(crate) host: &'a Host,
    pub(crate) port: u16,
    /// Whether a hello may contain another one that is encrypted.
    pub(crate) may_hide_name: bool,
    pub(crate) hello_time: Duration,
    /// Secrets, if there are some for this host.
    pub(crate) masked: Option<&'a Masked>,
    pub(crate) tally: &'a Tally,
}

impl Tunnel<'_> {
    /// Passes bytes both ways. Nothing of the client reaches the server before its first bytes were looked at.
    pub(crate) async fn carry(
        &self,
        inbound: &mut Inbound,
        server: &mut TcpStream,
    ) -> Result<(), ConnectionFault> {
        let has_to_be_tls = self.port == 443 || self.masked.is_some();
        if has_to_be_tls {
            self.await_hello(&mut inbound.stream, &mut inbound.pending).await?;
        }
        if let Some(masked) = self.masked {
            return masking::carry(masked, inbound, server, (self.host, self.port), self.tally).await;
        }
        let (mut from_client, mut to_client) = inbound.stream.split();
        let (mut from_server, mut to_server) = server.split();
        let pending = &mut inbound.pending;
        let up = async {
            if !has_to_be_tls && !self.look_at_first_bytes(&mut from_client, pending).await? {
                return Ok(to_server.shutdown().await?);
            }
            send(&mut to_server, pending, self.tally).await?;
            *pending = Vec::new();
            Ok(pump(&mut from_client, &mut to_server, Direction::Up, self.tally).await?)
        };
        let down = async { Ok(pump(&mut from_server, &mut to_client, Direction::Down, self.tally).await?) };
        tokio::try_join!(up, down).map(|_: ((), ())| ())
    }

    /// Waits for the first bytes, without a time limit because the server may be the one who speaks first. If they are
    /// TLS, they have to be a hello, and its name is checked. False if the client has nothing to say.
    async fn look_at_first_bytes(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        pending: &mut Vec<u8>,
    ) -> Result<bool, ConnectionFault> {
        if pending.is_empty() {
            match fill(reader, pending).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                result => result?,
            }
        }
        // Some servers pass over an alert before the hello.
        if pending.first().is_some_and(|kind| is_tls(*kind)) {
            self.await_hello(reader, pending).await?;
        }
        Ok(true)
    }

    async fn await_hello(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        pending: &mut Vec<u8>,
    ) -> Result<(), ConnectionFault> {
        let reading = read_hello(reader, pending);
        let hello = timeout(self.hello_time, reading).await.map_err(|_| ConnectionFault::HelloTooSlow)??;
        self.check_name(&hello)
    }

    /// The name in the hello has to be the one that was decided about. A client of an address sends none.
    fn check_name(&self, hello: &ClientHello) -> Result<(), ConnectionFault> {
        let same = match (&hello.server_name, self.host) {
            (None, Host::Address(_)) => true,
            (Some(name), Host::Name(_)) => Host::parse(name).as_ref() == Ok(self.host),
            _ => false,
        };
        if !same {
            let found = hello.server_name.as_deref().map_or_else(|| "no host".to_owned(), printable);
            return Err(ConnectionFault::ServerName { host: self.host.to_string(), found });
        }
        if hello.encrypted_inside && !self.may_hide_name {
            return Err(ConnectionFault::HiddenName);
        }
        Ok(())
    }
}
