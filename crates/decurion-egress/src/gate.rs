//! The decision about one connection. Takes a client, a host and a port; gives the addresses that may be connected to, or
//! the reason why not. Asks a person where the rules say nothing, and looks names up once.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use crate::clients::{Client, Clients, HostPort, PendingQuestion};
use crate::host::{Host, HostError};
use crate::rules::{AddressFault, Decision, HostRules};

/// Questions of one client that may wait for a person at once. More are refused, so that a command cannot bury a person
/// under questions.
const QUESTIONS_MAX: usize = 16;
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(20);

/// Looks host names up.
pub trait Resolve: Send + Sync {
    /// The addresses of a name.
    fn resolve(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// Asks a person about hosts that no rule is about.
pub trait Judge: Send + Sync {
    /// May this client connect to this host? The answer is awaited without a time limit; the future is dropped when every
    /// connection that waits for it has gone.
    fn judge(&self, client: &Client, host: &str, port: u16) -> BoxFuture<'static, Verdict>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Allow the connections that wait for this answer.
    AllowOnce,
    /// This client may connect to this host and port until it is removed.
    AllowForSession,
    /// Refused. The next connection asks again.
    Deny,
    /// There was no person to ask, or no answer: refused as a host that is not listed.
    Unanswered,
}

/// The resolver of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let name = name.to_owned();
        async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        }
        .boxed()
    }
}

/// Why a connection was allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// A pattern of the rules allows the host.
    Listed,
    /// The rules are open and no pattern is about the host.
    Open,
    /// A person allowed it once.
    Once,
    /// A person allowed it for the session.
    Session,
}

impl Grant {
    /// The same in words.
    pub fn text(&self) -> &'static str {
        match self {
            Self::Listed => "the host is listed",
            Self::Open => "the network is open",
            Self::Once | Self::Session => "allowed by a person",
        }
    }
}

/// A connection that is not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct EgressRefusal {
    /// The host in normal form; as it was written, escaped, if it has none.
    pub host: String,
    pub port: u16,
    pub reason: Reason,
}

/// Why a connection is not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The text is no host.
    #[error("{0}")]
    Malformed(#[from] HostError),
    /// A pattern denies the host.
    #[error("{by} denies this host")]
    Denied { by: String },
    /// No pattern allows the host and there is no person to ask.
    #[error("this host is not allowed")]
    NotAllowed,
    /// A list that no answer adds to does not have the host.
    #[error("{by} allows only {allowed}")]
    Outside {
        /// What makes it such a list: "the definition of agent deployer".
        by: String,
        allowed: String,
    },
    /// No host is allowed, for this reason.
    #[error("{why}")]
    Closed { why: String },
    /// A person said no.
    #[error("the user denied this host")]
    DeniedByUser,
    /// Too many questions or connections of this client wait for a person.
    #[error("too many connections wait for the user's answer")]
    TooManyQuestions,
    /// An address was given instead of a name, and it is not listed.
    #[error("IP addresses are refused unless they are listed")]
    UnlistedAddress,
    /// The name leads to an address that is not on the public network.
    #[error("it leads to {address}, which is a {kind} address that is not listed")]
    SpecialAddress {
        /// Where the name leads.
        address: IpAddr,
        kind: &'static str,
    },
    /// The name leads to an address that a pattern denies.
    #[error("it leads to {address}, which is denied by {by}")]
    DeniedAddress {
        /// Where the name leads.
        address: IpAddr,
        by: String,
    },
    /// The host may be reached, and its name cannot be resolved.
    #[error("{problem}")]
    Lookup {
        /// Why it may be reached.
        grant: Grant,
        /// What the system said.
        problem: String,
    },
}

impl EgressRefusal {
    /// What allows the host, if all that failed is the lookup of its name.
    pub fn failed_lookup(&self) -> Option<Grant> {
        match self.reason {
            Reason::Lookup { grant, .. } => Some(grant),
            _ => None,
        }
    }

    fn text(&self) -> String {
        let Self { host, port, reason } = self;
        match reason {
            Reason::Lookup { problem, .. } => format!("cannot resolve {host}: {problem}"),
            reason => format!("connection to {host}:{port} refused: {reason}"),
        }
    }

    /// How a person can allow this connection, if that is possible.
    pub fn hint(&self) -> Option<String> {
        self.reason.hint(&self.host)
    }
}

impl Reason {
    /// How a person can allow a connection to this host that was refused for this reason, if that is possible.
    pub fn hint(&self, host: &str) -> Option<String> {
        let setting = "sandbox.network.allowedDomains";
        match self {
            Reason::NotAllowed
            | Reason::DeniedByUser
            | Reason::TooManyQuestions
            | Reason::UnlistedAddress => {
                Some(format!("to allow it, add \"{host}\" to {setting} in the settings"))
            }
            Reason::SpecialAddress { address, .. } => {
                Some(format!("to allow it, add \"{host}\" and \"{address}\" to {setting} in the settings"))
            }
            Reason::Outside { .. } => Some(format!(
                "to allow it, add \"{host}\" to sandbox.network.allowedDomains in that definition"
            )),
            // What names the rule or setting needs no hint.
            Reason::Denied { .. }
            | Reason::DeniedAddress { .. }
            | Reason::Closed { .. }
            | Reason::Malformed(_)
            | Reason::Lookup { .. } => None,
        }
    }
}

/// Decides about connections, for the proxy and for tools that connect themselves.
pub struct Gate {
    clients: Clients,
    resolver: Arc<dyn Resolve>,
    judge: Option<Arc<dyn Judge>>,
}

/// A connection that may be made.
pub(crate) struct Admission {
    pub(crate) host: Host,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) grant: Grant,
}

impl Gate {
    /// A gate for these clients. Without a judge, hosts that no rule is about are refused.
    pub fn new(clients: Clients, resolver: Arc<dyn Resolve>, judge: Option<Arc<dyn Judge>>) -> Self {
        Self { clients, resolver, judge }
    }

    /// The clients that may pass.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// The addresses at which this client may reach the host. Connect to these and do not look the name up again: a
    /// second lookup may answer differently.
    pub async fn check(
        &self,
        client: &Arc<Client>,
        host: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, EgressRefusal> {
        self.admit(client, host, port).await.map(|admission| admission.addresses)
    }

    pub(crate) async fn admit(
        &self,
        client: &Arc<Client>,
        text: &str,
        port: u16,
    ) -> Result<Admission, EgressRefusal> {
        let refuse = |host: String, reason: Reason| EgressRefusal { host, port, reason };
        let host = Host::parse(text).map_err(|error| refuse(printable(text), error.into()))?;
        let rules = client.rules();
        let grant = self
            .decide(client, &rules, &host, port)
            .await
            .map_err(|reason| refuse(host.to_string(), reason))?;
        // A person may have taken minutes to answer, and the rules may be others by now.
        let rules = client.rules();
        match rules.decide(&host, port) {
            Decision::Denied { by } => return Err(refuse(host.to_string(), Reason::Denied { by })),
            Decision::Closed { why } => return Err(refuse(host.to_string(), Reason::Closed { why })),
            _ => {}
        }
        match self.vetted_addresses(&rules, &host, port, grant).await {
            Ok(addresses) => Ok(Admission { host, addresses, grant }),
            Err(reason) => Err(refuse(host.to_string(), reason)),
        }
    }

    /// Decides about the name alone. A name is looked up only after this, because a lookup sends it to a server.
    async fn decide(
        &self,
        client: &Arc<Client>,
        rules: &HostRules,
        host: &Host,
        port: u16,
    ) -> Result<Grant, Reason> {
        match rules.decide(host, port) {
            Decision::Listed => Ok(Grant::Listed),
            Decision::Open => Ok(Grant::Open),
            Decision::Denied { by } => Err(Reason::Denied { by }),
            Decision::UnlistedAddress => Err(Reason::UnlistedAddress),
            Decision::Outside { by, allowed } => Err(Reason::Outside { by, allowed }),
            Decision::Closed { why } => Err(Reason::Closed { why }),
            Decision::Unknown => self.ask(client, (host.to_string(), port)).await,
        }
    }

    /// Asks a person once for all connections of this client that wait for the same host and port.
    async fn ask(&self, client: &Arc<Client>, target: HostPort) -> Result<Grant, Reason> {
        if client.is_allowed_for_session(&target) {
            return Ok(Grant::Session);
        }
        let judge = self.judge.as_ref().ok_or(Reason::NotAllowed)?;
        let _slot = client.waiting_slot().ok_or(Reason::TooManyQuestions)?;
        let question = client
            .question(&target, QUESTIONS_MAX, || question(judge.clone(), client.clone(), target.clone()))
            .ok_or(Reason::TooManyQuestions)?;
        match question.await {
            Verdict::AllowOnce => Ok(Grant::Once),
            Verdict::AllowForSession => {
                client.allow_for_session(target);
                Ok(Grant::Session)
            }
            Verdict::Deny => Err(Reason::DeniedByUser),
            Verdict::Unanswered => Err(Reason::NotAllowed),
        }
    }

    /// Looks the host up once and keeps the addresses that the rules let through.
    async fn vetted_addresses(
        &self,
        rules: &HostRules,
        host: &Host,
        port: u16,
        grant: Grant,
    ) -> Result<Vec<SocketAddr>, Reason> {
        let failed = |problem: String| Reason::Lookup { grant, problem };
        let found = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.resolve(name).await.map_err(failed)?,
        };
        let mut refused = failed("it has no addresses".to_owned());
        let mut vetted = Vec::new();
        for address in found.into_iter().map(|address| address.to_canonical()) {
            match rules.vet(address, port) {
                Ok(()) => vetted.push(SocketAddr::new(address, port)),
                Err(AddressFault::Special { kind }) => refused = Reason::SpecialAddress { address, kind },
                Err(AddressFault::Denied { by }) => refused = Reason::DeniedAddress { address, by },
            }
        }
        if vetted.is_empty() { Err(refused) } else { Ok(vetted) }
    }

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        match tokio::time::timeout(LOOKUP_TIMEOUT, self.resolver.resolve(name)).await {
            Ok(found) => found.map_err(|error| error.to_string()),
            Err(_) => Err("the lookup took too long".to_owned()),
        }
    }
}

/// The judge is called when the question is first polled, and not while the client's state is locked.
fn question(judge: Arc<dyn Judge>, client: Arc<Client>, (host, port): HostPort) -> PendingQuestion {
    async move { judge.judge(&client, &host, port).await }.boxed().shared()
}

/// Text of a client that can be shown and recorded: escaped and of bounded length.
pub(crate) fn printable(text: &str) -> String {
    text.chars().take(253).flat_map(char::escape_default).collect()
}
