//! The MCP servers of a session. Takes which there are (decided by whoever wires the program), starts them
//! in the background, and gives their tools as far as they are known; an agent's own are leased for as long
//! as it lives. Nothing here waits for a server longer than it is told to.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use camino::Utf8Path;
use decurion_exec::Guard;
use decurion_protocol::mcp::{
    Manifests, McpDetail, McpHealth, McpServer, McpSource, McpStatus, McpTransport,
};
use decurion_protocol::{AgentDefinition, AgentId};
use decurion_tools::mcp::server::FIRST_PAUSE;
use decurion_tools::mcp::{
    Confine, Introduction, Lease, Logins, McpHost, Notice, Pool, Server, State, bridge, resources,
};
use decurion_tools::{Tool, ToolSet};
use futures_util::future::join_all;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::host::HostDesk;
pub use crate::permission::is_servers;
use crate::sandbox::{ServerCaches, ServiceSandbox};

/// Which servers there are, as the settings are now.
pub trait Servers: Send + Sync {
    /// Those of every session.
    fn all(&self) -> Vec<McpServer>;

    /// Those of a definition's agents, and what it asks for and does not get, with the reason.
    fn of(&self, definition: &AgentDefinition) -> (Vec<McpServer>, Vec<String>);

    /// Those that are declared and may not be started.
    fn off(&self) -> Vec<McpStatus> {
        Vec::new()
    }

    /// What servers that live in the host said of themselves beforehand, by their names.
    fn introductions(&self) -> Vec<(String, Introduction)> {
        Vec::new()
    }
}

/// What sessions need for their servers.
#[derive(Clone)]
pub struct McpParts {
    pub servers: Arc<dyn Servers>,
    /// The environment of a server, before its own variables.
    pub environment: Arc<[(OsString, OsString)]>,
    /// What they offered before.
    pub manifests: Option<Arc<dyn Manifests>>,
    /// Logins at servers by address.
    pub logins: Option<Arc<dyn Logins>>,
    /// Where servers cache what they download; none keeps nothing.
    pub caches: Option<Arc<dyn ServerCaches>>,
    /// How long a session waits at its start for servers that are not known yet.
    pub startup_wait: Duration,
}

/// Where the programs of servers are started.
pub struct ServerPlace<'a> {
    /// Who starts them; without, none is.
    pub processes: Option<&'a Guard>,
    pub root: &'a Utf8Path,
    /// What the kernel keeps them from; none where nothing is.
    pub sandbox: Option<ServiceSandbox>,
}

/// The servers of one session.
pub struct SessionServers {
    parts: McpParts,
    pool: Pool,
    /// Those that the session itself uses.
    leases: Vec<Lease>,
    /// The same, for whoever only asks them.
    all: Arc<[Server]>,
    off: Vec<McpStatus>,
    /// Those that a command set, by name.
    set: BTreeSet<String>,
    /// Those that were switched off, as declared.
    switched_off: Vec<McpServer>,
    notices: mpsc::UnboundedReceiver<Notice>,
    /// Tool sets of agents with servers of their own, so that agents that are alike share one.
    sets: Arc<Mutex<Vec<OwnSet>>>,
    /// Those of the host that were waited for.
    settled: HashSet<String>,
}

/// The way to the servers for whoever prepares an agent.
#[derive(Clone)]
pub struct ServerDesk {
    parts: McpParts,
    pool: Pool,
    sets: Arc<Mutex<Vec<OwnSet>>>,
}

/// Tools of an agent: others', and those of its own servers.
struct OwnSet {
    base: Arc<ToolSet>,
    servers: Vec<Server>,
    except: Vec<String>,
    made: Arc<ToolSet>,
}

/// What an agent has of its own.
#[derive(Default)]
pub struct OwnServers {
    /// Its use of them.
    pub leases: Vec<Lease>,
    /// What it asked for and does not get.
    pub remarks: Vec<String>,
}

impl SessionServers {
    /// Starts the servers of a session, and those of the definition it runs as. Waits for nothing.
    pub fn start(
        parts: &McpParts,
        ServerPlace { processes, root, sandbox }: ServerPlace<'_>,
        definition: &AgentDefinition,
        leader: &HostDesk,
    ) -> (Self, Vec<String>) {
        leader.introduce(parts.servers.introductions());
        let (tell, notices) = mpsc::unbounded_channel();
        let host = McpHost {
            processes: processes.cloned(),
            environment: Arc::clone(&parts.environment),
            root: root.to_owned(),
            manifests: parts.manifests.clone(),
            logins: parts.logins.clone(),
            leader: Some(Arc::new(leader.clone())),
            sandbox: sandbox
                .map(|sandbox| Arc::new(sandbox.caching(parts.caches.clone())) as Arc<dyn Confine>),
            pause: FIRST_PAUSE,
            // A session that is over hears nothing.
            notice: Arc::new(move |notice| drop(tell.send(notice))),
        };
        let pool = Pool::new(host);
        let (own, problems) = parts.servers.of(definition);
        let all = parts.servers.all();
        let leases: Vec<Lease> = all.iter().chain(&own).map(|server| pool.lease(server, "main")).collect();
        let all = leases.iter().filter_map(|lease| lease.server().cloned()).collect();
        let (sets, settled) = (Arc::default(), HashSet::new());
        let (set, switched_off) = (BTreeSet::new(), Vec::new());
        let (parts, off) = (parts.clone(), parts.servers.off());
        (Self { parts, pool, leases, all, off, set, switched_off, notices, sets, settled }, problems)
    }

    /// The way to them for others.
    pub fn desk(&self) -> ServerDesk {
        ServerDesk { parts: self.parts.clone(), pool: self.pool.clone(), sets: Arc::clone(&self.sets) }
    }

    /// Waits for servers that nothing is known of, as long as the settings say. Those of the host answer only when
    /// the session is open.
    pub async fn settle(&self) {
        let unknown =
            self.all.iter().filter(|server| server.approved().is_none() && !is_hosted(server.declared()));
        settle(unknown.cloned().collect(), self.parts.startup_wait).await;
    }

    /// The same for those of the host that were not waited for yet, beside whoever wants to know; none if there are
    /// none.
    pub fn settle_hosted(&mut self) -> Option<JoinHandle<()>> {
        let mut hosted = Vec::new();
        for server in self.all.iter().filter(|server| is_hosted(server.declared())) {
            if self.settled.insert(server.declared().short.clone()) {
                hosted.push(server.clone());
            }
        }
        let wait = self.parts.startup_wait;
        (!hosted.is_empty()).then(|| tokio::spawn(settle(hosted, wait)))
    }

    /// The tools of the session's servers, as far as they are known now.
    pub fn tools(&self) -> Vec<Arc<dyn Tool>> {
        tools(&self.all)
    }

    /// How each server is doing.
    pub fn status(&self) -> Vec<McpStatus> {
        self.details().into_iter().map(|detail| detail.status).collect()
    }

    /// All that can be told of each server.
    pub fn details(&self) -> Vec<McpDetail> {
        let mut all: Vec<McpDetail> = self.all.iter().map(Server::detail).collect();
        let plain = |status: McpStatus, transport: Option<&str>| McpDetail {
            status,
            transport: transport.map(str::to_owned),
            calls_itself: None,
            tools: Vec::new(),
        };
        all.extend(self.switched_off.iter().map(|server| {
            let status = McpStatus {
                name: server.name.clone(),
                status: McpHealth::Disabled,
                source: server.source,
                reason: Some("switched off for this session".to_owned()),
                commands: Vec::new(),
            };
            plain(status, Some(server.transport.name()))
        }));
        all.extend(self.off.iter().map(|status| plain(status.clone(), None)));
        all.sort_by(|one, other| one.status.name.cmp(&other.status.name));
        all.dedup_by(|later, kept| later.status.name == kept.status.name);
        all
    }

    /// Uses these in place of those that were set so before and of all that live in the host. Gives what is new and
    /// the names of what is gone; waits for nothing.
    pub fn set(&mut self, servers: Vec<McpServer>) -> (Vec<Server>, Vec<String>) {
        let wanted: BTreeSet<String> = servers.iter().map(|server| server.name.clone()).collect();
        let is_ours = |server: &McpServer| self.set.contains(&server.name) || server.source == McpSource::Sdk;
        let same = |old: &McpServer| servers.iter().any(|new| is_same(old, new));
        let goes = |old: &McpServer| !same(old) && (is_ours(old) || wanted.contains(&old.name));
        let mut removed: Vec<String> = Vec::new();
        let declared = |lease: &Lease| lease.server().map(|server| server.declared().clone());
        let mut gone = Vec::new();
        for lease in std::mem::take(&mut self.leases) {
            match declared(&lease).filter(goes) {
                Some(old) => {
                    if !wanted.contains(&old.name) {
                        removed.push(old.name);
                    }
                    gone.push(lease);
                }
                None => self.leases.push(lease),
            }
        }
        let (kept, off): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.switched_off).into_iter().partition(|old| !goes(old));
        removed.extend(off.into_iter().map(|old| old.name).filter(|name| !wanted.contains(name)));
        self.switched_off = kept;
        let mut added = Vec::new();
        for server in servers {
            let is_there = self.leases.iter().filter_map(&declared).chain(self.switched_off.iter().cloned());
            if is_there.into_iter().any(|old| is_same(&old, &server)) {
                continue;
            }
            let lease = self.pool.lease(&self.named_apart(server), "main");
            added.extend(lease.server().cloned());
            self.leases.push(lease);
        }
        self.set = wanted;
        self.recount();
        // Their processes end beside the session.
        tokio::spawn(join_all(gone.into_iter().map(Lease::release)));
        removed.sort();
        (added, removed)
    }

    /// The same server under a name for tools that no other has: rules hold by that name.
    fn named_apart(&self, mut server: McpServer) -> McpServer {
        let taken = |short: &str| {
            self.all
                .iter()
                .any(|other| other.declared().short == short && other.declared().name != server.name)
        };
        if taken(&server.short) {
            let free = (2..=self.all.len() + 2)
                .map(|number| format!("{}_{number}", server.short))
                .find(|short| !taken(short));
            server.short = free.unwrap_or_else(|| server.hash.clone());
        }
        server
    }

    /// Connects to a server again; gives it, to be waited for.
    pub fn reconnect(&self, name: &str) -> Result<Server, String> {
        let server = self.all.iter().find(|server| server.declared().name == name);
        let server = server.ok_or_else(|| self.why_not(name))?;
        server.restart();
        Ok(server.clone())
    }

    /// Switches a server off, or on again; gives it where it is on now, to be waited for.
    pub fn toggle(&mut self, name: &str, on: bool) -> Result<Option<Server>, String> {
        let is_it = |server: &McpServer| server.name == name;
        if let Some(at) = self.switched_off.iter().position(is_it) {
            if !on {
                return Ok(None);
            }
            let lease = self.pool.lease(&self.switched_off.remove(at), "main");
            let server = lease.server().cloned();
            self.leases.push(lease);
            self.recount();
            return Ok(server);
        }
        let at = self.leases.iter().position(|lease| lease.server().is_some_and(|one| is_it(one.declared())));
        let at = at.ok_or_else(|| self.why_not(name))?;
        if on {
            return Ok(self.leases[at].server().cloned());
        }
        let lease = self.leases.remove(at);
        self.switched_off.extend(lease.server().map(|server| server.declared().clone()));
        self.recount();
        tokio::spawn(lease.release());
        Ok(None)
    }

    /// Why there is nothing to be done with a server of this name.
    fn why_not(&self, name: &str) -> String {
        if self.switched_off.iter().any(|server| server.name == name) {
            return format!("this MCP server is switched off for this session; switch it on first: {name}");
        }
        match self.off.iter().find(|status| status.name == name) {
            Some(status) => {
                let reason = status.reason.as_deref().unwrap_or("it is switched off");
                format!("MCP server {name:?} may not be started: {reason}")
            }
            None => format!("MCP server not found: {name}"),
        }
    }

    fn recount(&mut self) {
        self.all = self.leases.iter().filter_map(|lease| lease.server().cloned()).collect();
    }

    /// How long whoever set or switched on a server waits for it.
    pub fn patience(&self) -> Duration {
        self.parts.startup_wait
    }

    /// Those that the session itself uses, for whoever only asks them.
    pub fn all(&self) -> Arc<[Server]> {
        Arc::clone(&self.all)
    }

    /// The next thing a person should know about a server; never, if there is none.
    pub async fn notice(&mut self) -> Notice {
        match self.notices.recv().await {
            Some(notice) => notice,
            None => std::future::pending().await,
        }
    }

    /// Ends the session's use of them all, and waits until they are gone.
    pub async fn close(self) {
        // All at once: each has its own patience.
        join_all(self.leases.into_iter().map(Lease::release)).await;
    }
}

/// Waits for a server; gives why it is not up.
pub async fn up(server: &Server, patience: Duration) -> Result<(), String> {
    match tokio::time::timeout(patience, server.settled()).await {
        Ok(settled) => settled,
        Err(_) => Err(format!("it is not ready after {patience:?}; it is still being started")),
    }
}

impl ServerDesk {
    /// Whether a definition brings servers of its own.
    pub fn has_own(definition: &AgentDefinition) -> bool {
        definition.equipment.mcp_servers.is_some()
    }

    /// Takes the servers of a definition into use for an agent. Waits for nothing.
    pub fn lease(&self, definition: &AgentDefinition, agent: &AgentId) -> OwnServers {
        let (servers, remarks) = self.parts.servers.of(definition);
        let leases = servers.iter().map(|server| self.pool.lease(server, agent.as_str())).collect();
        OwnServers { leases, remarks }
    }

    /// Takes the servers of an agent that goes on into use again: of those above it, from the root down, the ones
    /// whose tools it had, and those of its own definition.
    pub fn lease_again<'a>(
        &self,
        above: impl Iterator<Item = &'a AgentDefinition>,
        own: &AgentDefinition,
        tools: &[String],
        agent: &AgentId,
    ) -> OwnServers {
        let mut again = OwnServers::default();
        let had = |server: &McpServer| {
            let prefix = format!("mcp__{}__", server.short);
            tools.iter().any(|tool| tool.starts_with(&prefix))
        };
        // From above first, its own last, as when it began: of two servers of one name it had the tools of the first.
        for definition in above.filter(|definition| Self::has_own(definition)) {
            let (servers, _) = self.parts.servers.of(definition);
            for server in servers.into_iter().filter(had) {
                let same =
                    |held: &Lease| held.server().is_some_and(|held| held.declared().short == server.short);
                if !again.leases.iter().any(same) {
                    again.leases.push(self.pool.lease(&server, agent.as_str()));
                }
            }
        }
        if Self::has_own(own) {
            let OwnServers { leases, remarks } = self.lease(own, agent);
            again.leases.extend(leases);
            again.remarks = remarks;
        }
        again
    }

    /// Waits until it is known what these offer, each for as long as it may take to start: an agent's tools are
    /// fixed when it begins. One that does not come up is named, and the agent does without. Nobody waits any
    /// more when `gone` is done.
    pub async fn settle(&self, own: &mut OwnServers, gone: impl Future<Output = ()>) {
        let never = CancellationToken::new();
        let unknown =
            own.leases.iter().filter_map(Lease::server).filter(|server| server.approved().is_none());
        let ready = join_all(unknown.map(|server| server.ready(&never)));
        let settled = tokio::select! {
            biased;
            () = gone => return,
            settled = ready => settled,
        };
        own.remarks.extend(settled.into_iter().filter_map(|one| Some(one.err()?.to_string())));
    }

    /// These tools with those of an agent's own servers, less what its definition excludes.
    pub fn with_own(
        &self,
        base: &Arc<ToolSet>,
        own: &OwnServers,
        definition: &AgentDefinition,
    ) -> Arc<ToolSet> {
        let servers: Vec<Server> = own.leases.iter().filter_map(|lease| lease.server().cloned()).collect();
        let except = &definition.tools.except;
        let fresh = tools(&servers);
        if fresh.is_empty() {
            return Arc::clone(base);
        }
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        // A set whose servers are over would call into nothing.
        sets.retain(|set| set.servers.iter().all(Server::is_open));
        let alike = |set: &&OwnSet| {
            Arc::ptr_eq(&set.base, base)
                && set.except == *except
                && set.servers.len() == servers.len()
                && set.servers.iter().zip(&servers).all(|(one, other)| one.is_same(other))
                && fresh
                    .iter()
                    .all(|tool| set.made.get(&tool.spec().name).is_none_or(|made| made.spec() == tool.spec()))
        };
        if let Some(set) = sets.iter().find(alike) {
            return Arc::clone(&set.made);
        }
        let own = ToolSet::new(fresh);
        let selection = decurion_protocol::ToolSelection { only: None, except: except.clone() };
        let own = own.select(&selection).set;
        let made = Arc::new(ToolSet::new(base.iter().chain(own.iter()).cloned()));
        sets.push(OwnSet {
            base: Arc::clone(base),
            servers,
            except: except.clone(),
            made: Arc::clone(&made),
        });
        made
    }
}

impl OwnServers {
    /// Ends their use, and waits for those that nobody else uses; gives the names of what was used.
    pub async fn release(self) -> Option<String> {
        let names = self.names();
        // All at once: each has its own patience.
        join_all(self.leases.into_iter().map(Lease::release)).await;
        names
    }

    /// The names of what is used; none if nothing is.
    pub fn names(&self) -> Option<String> {
        let names = self.leases.iter().filter_map(|lease| Some(lease.server()?.declared().name.clone()));
        let names: Vec<String> = names.collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}

/// Waits until each is up or has failed once, which is not worth more time: whatever comes of it is told by itself.
async fn settle(servers: Vec<Server>, wait: Duration) {
    let waiting = async {
        for server in servers {
            let mut state = server.state();
            drop(state.wait_for(|state| !matches!(state, State::Starting)).await);
        }
    };
    drop(tokio::time::timeout(wait, waiting).await);
}

/// Whether a server lives in the host.
fn is_hosted(server: &McpServer) -> bool {
    server.transport == McpTransport::Host
}

/// Whether two declarations are of one server, whatever stands for it in the names of its tools.
fn is_same(one: &McpServer, other: &McpServer) -> bool {
    one.name == other.name && one.hash == other.hash && one.transport == other.transport
}

fn tools(servers: &[Server]) -> Vec<Arc<dyn Tool>> {
    let mut all: Vec<Arc<dyn Tool>> = servers.iter().flat_map(bridge::tools).collect();
    all.extend(resources::tools(servers));
    all
}

/// These tools with those of servers replaced by what the servers offer now; none if nothing changes.
pub fn refreshed(tools: &ToolSet, now: &[Arc<dyn Tool>]) -> Option<ToolSet> {
    let mut before: Vec<&Arc<dyn Tool>> = tools.iter().filter(|tool| is_servers(&tool.spec().name)).collect();
    before.sort_by(|one, other| one.spec().name.cmp(&other.spec().name));
    let own = ToolSet::new(now.iter().cloned());
    let same =
        before.len() == own.len() && before.iter().zip(own.iter()).all(|(old, new)| old.spec() == new.spec());
    if same {
        return None;
    }
    let others = tools.iter().filter(|tool| !is_servers(&tool.spec().name));
    Some(ToolSet::new(others.chain(own.iter()).cloned()))
}
