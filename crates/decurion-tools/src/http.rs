//! The one web client of the tools: time-outs, redirects and certificates are set here. Made when a tool
//! first asks for it, since reading the certificates costs more than all the rest of a start.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::dns::{Name, Resolve, Resolving};

use crate::reach::{self, Reach};
use crate::{AddressRule, PathRules};

/// A handle on the shared client. Clones share one; the default handle has not made it yet.
#[derive(Clone, Debug, Default)]
pub struct Http {
    client: Arc<OnceLock<reqwest::Client>>,
    names: Names,
    gate: Option<Gate>,
}

/// Decides about connections that a tool makes itself, and records them.
pub trait Connections: Send + Sync {
    /// Why this host may not be reached, if it may not.
    fn refuses(&self, host: &str, port: u16) -> Option<String>;

    /// Why this address, which a host led to, may not be connected to, if it may not.
    fn refuses_address(&self, address: IpAddr, port: u16) -> Option<String>;

    /// Records a connection that has ended, or was not made.
    fn record(&self, connection: &Connection);
}

/// A connection of a tool.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The host, as rules see it.
    pub host: String,
    pub port: u16,
    /// The address connected to, if that is known.
    pub address: Option<IpAddr>,
    /// Why it was not made, if it was not.
    pub refused: Option<String>,
    /// Bytes of the request that were sent, without those of TLS.
    pub bytes_up: u64,
    /// Bytes of the response that were received, without those of TLS.
    pub bytes_down: u64,
    /// How long it took.
    pub duration: Duration,
}

#[derive(Clone)]
struct Gate(Arc<dyn Connections>);

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// A connection that is recorded when this is dropped, however it ends.
pub struct OpenConnection {
    gate: Option<Gate>,
    start: tokio::time::Instant,
    pub record: Connection,
}

impl OpenConnection {
    /// Counts bytes of the response.
    pub fn received(&mut self, bytes: usize) {
        self.record.bytes_down += bytes as u64;
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.record.duration = self.start.elapsed();
        if let Some(Gate(gate)) = &self.gate {
            gate.record(&self.record);
        }
    }
}

/// Looks a name up.
pub type LookUp = Arc<dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync>;

impl Http {
    /// A client for which names mean what this says.
    pub fn with_names(look_up: LookUp) -> Self {
        Self { names: Names { look_up }, ..Self::default() }
    }

    /// The same client for one call, whose connections are decided about and recorded here.
    #[must_use]
    pub fn through(mut self, gate: Arc<dyn Connections>) -> Self {
        self.gate = Some(Gate(gate));
        self
    }

    /// Begins a connection; the error is why it may not be made.
    pub fn open(&self, host: &str, port: u16) -> Result<OpenConnection, String> {
        let refused = self.gate.as_ref().and_then(|Gate(gate)| gate.refuses(host, port));
        let record = Connection {
            host: host.to_owned(),
            port,
            address: None,
            refused: refused.clone(),
            bytes_up: 0,
            bytes_down: 0,
            duration: Duration::ZERO,
        };
        let open = OpenConnection { gate: self.gate.clone(), start: tokio::time::Instant::now(), record };
        refused.map_or(Ok(open), Err)
    }

    /// Looks up where a host leads and whether the rules let it lead there. The error is for the model.
    pub async fn approve(
        &self,
        host: &str,
        port: u16,
        rules: Arc<dyn PathRules>,
    ) -> Result<Approved, String> {
        let host = key(host);
        if let Some(address) = reach::literal(&host) {
            self.check_gate(&[address], port)?;
            check_literal(address, &*rules)?;
            return Ok(Approved { host, addresses: Vec::new() });
        }
        let look_up = Arc::clone(&self.names.look_up);
        let approved = tokio::task::spawn_blocking(move || {
            let found = look_up(&host);
            let addresses = approved(&host, found, &*rules)?;
            Ok::<_, String>(Approved { host, addresses })
        });
        let approved = approved.await.map_err(|error| error.to_string())??;
        self.check_gate(&approved.addresses, port)?;
        Ok(approved)
    }

    fn check_gate(&self, addresses: &[IpAddr], port: u16) -> Result<(), String> {
        let Some(Gate(gate)) = &self.gate else { return Ok(()) };
        let refused = addresses.iter().find_map(|address| {
            let reason = gate.refuses_address(*address, port)?;
            Some(format!("it leads to {address}: {reason}"))
        });
        refused.map_or(Ok(()), Err)
    }

    /// The client, made now if nobody asked before.
    pub fn client(&self) -> Result<&reqwest::Client, reqwest::Error> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let made = make(self.names.clone())?;
        Ok(self.client.get_or_init(|| made))
    }

    /// Whether the client exists already.
    pub fn is_made(&self) -> bool {
        self.client.get().is_some()
    }
}

fn make(names: Names) -> Result<reqwest::Client, reqwest::Error> {
    // It fails only where a provider is installed already, and then that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        // The tool follows redirects itself: one to another host must be shown, not followed.
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(Duration::from_secs(10))
        .user_agent(concat!("decurion/", env!("CARGO_PKG_VERSION")))
        .referer(false)
        .dns_resolver(names)
        // A connection that is kept would be used for a later call whose rules may not allow it.
        .pool_max_idle_per_host(0)
        .build()
}

/// Where the host of one request leads, as the rules of its call allow it. Other calls may have other rules, so it is
/// known only while that request is sent.
#[derive(Debug)]
pub struct Approved {
    host: String,
    addresses: Vec<IpAddr>,
}

tokio::task_local! {
    /// What was approved for the request that this task is sending.
    static APPROVED: Approved;
}

impl Approved {
    /// Sends a request to its host, at these addresses and no others.
    pub async fn send(self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, reqwest::Error> {
        APPROVED.scope(self, request.send()).await
    }
}

/// What names mean: the host of a request what was approved, others (a proxy's) whatever the system says.
#[derive(Clone)]
struct Names {
    look_up: LookUp,
}

impl Default for Names {
    fn default() -> Self {
        let look_up = |host: &str| -> io::Result<Vec<IpAddr>> {
            Ok((host, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
        };
        Self { look_up: Arc::new(look_up) }
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").finish_non_exhaustive()
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let (look_up, host) = (Arc::clone(&self.look_up), key(name.as_str()));
        let approved =
            APPROVED.try_with(|approved| (approved.host == host).then(|| approved.addresses.clone()));
        Box::pin(async move {
            let found = match approved {
                Ok(Some(found)) => found,
                Ok(None) => tokio::task::spawn_blocking(move || look_up(&host)).await??,
                Err(_) => return Err(format!("{host} was not approved for this request").into()),
            };
            let found = found.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(found) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}

fn key(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// An address was decided about as it stands in the call; only what nothing allows is left.
fn check_literal(address: IpAddr, rules: &dyn PathRules) -> Result<(), String> {
    match rules.address(address) {
        _ if reach::of(address) == Reach::Secrets => Err(SECRETS.to_owned()),
        AddressRule::Denied(reason) => Err(reason),
        AddressRule::Allowed | AddressRule::Unnamed => Ok(()),
    }
}

/// What is said of addresses that are never fetched.
pub(crate) const SECRETS: &str =
    "a link-local address or a cloud's metadata service, where machines keep their secrets";

/// The addresses of a host that may be connected to. A host that was permitted by its name must not turn out to be a
/// service behind localhost, in a private network or a cloud's store of secrets, unless a rule names that address.
fn approved(
    host: &str,
    found: io::Result<Vec<IpAddr>>,
    rules: &dyn PathRules,
) -> Result<Vec<IpAddr>, String> {
    let found = match found {
        Ok(found) => found,
        // Whoever named the host knows it; a proxy may know what it means. Nothing is connected to directly.
        Err(_) if rules.names_host(host) => return Ok(Vec::new()),
        Err(error) => {
            return Err(format!(
                "its name cannot be resolved, so where it leads cannot be checked: {error}. Behind a proxy that resolves \
                 names itself, a rule WebFetch(domain:{host}) lets it through"
            ));
        }
    };
    let local = reach::is_local_name(host);
    let mut kept = Vec::new();
    let mut inside = None;
    for address in found {
        let (plain, reach) = (reach::plain(address), reach::of(address));
        match rules.address(plain) {
            AddressRule::Denied(reason) => return Err(format!("it leads to {plain}: {reason}")),
            _ if reach == Reach::Secrets => inside = Some(format!("it leads to {plain}, {SECRETS}")),
            AddressRule::Unnamed if reach.is_inside() && !(local && reach == Reach::Own) => {
                inside = Some(format!(
                    "it leads to {plain}, an address of this machine or an internal network; if that is meant, a person \
                     can allow it with a rule that names the address or its network: WebFetch(domain:{plain})"
                ));
            }
            AddressRule::Allowed | AddressRule::Unnamed => kept.push(address),
        }
    }
    match inside {
        Some(reason) if kept.is_empty() => Err(reason),
        _ => Ok(kept),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_made_once_and_shared() {
        let http = Http::default();
        let other = http.clone();
        assert!(!http.is_made());
        let made: *const reqwest::Client = http.client().unwrap();
        assert!(other.is_made());
        assert!(std::ptr::eq(made, other.client().unwrap()));
    }
}
