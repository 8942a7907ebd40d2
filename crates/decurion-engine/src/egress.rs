//! The network of sandboxed commands. Takes a command that may use it, gives the variables that lead its programs
//! through the proxy, and puts every connection on record. A host that no rule is about is asked about, in the name of
//! the call that wants it.

mod fetching;
mod secrets;

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use camino::Utf8Path;
use decurion_egress::rules::{Decision as HostDecision, Pattern};
use decurion_egress::{
    Client, Clients, ConnectionRecord, DEFAULT_HOSTS, Ending, Gate, Grant, Host, HostRules, Judge, Proxy,
    ProxyParts, Reason, RecordedVerdict, Recorder, SystemResolver, Verdict as HostVerdict, environment,
};
pub use decurion_egress::{Masked, MaskedError, Secret, spellings, unusable_secret_host};
use decurion_exec::Sandbox;
use decurion_exec::sandbox::PROXY_PORT;
use decurion_protocol::link::BoxFuture;
use decurion_protocol::permission::{CONNECTION, RuleSource};
use decurion_protocol::{
    Answer, AskedBy, AuditKind, CallId, DecidedBy, Event, Intent, Mode, Question, QuestionId, Rule, RuleSet,
    Verdict,
};
use serde_json::json;
use tokio::sync::{oneshot, watch};

use crate::approval::Rights;
use crate::approval::{Ask, Person, ShownQuestion};
use crate::bounds;
use crate::child;
use crate::child::ModeStep;
use crate::journal::{Journal, Who};
use crate::sandbox::RefusedHost;
use crate::witness::Witness;
use decurion_protocol::RunSpec;
pub use fetching::Fetching;
pub use secrets::Secrets;

/// More refused hosts of one call are not named: people and models read the list.
const MOST_REFUSED: usize = 20;
/// As many events of one call may wait to be written.
const MOST_WAITING: usize = 1000;

/// Hosts that the settings name.
#[derive(Clone, Debug, Default)]
pub struct HostSettings {
    /// Reached without a question, besides the usual ones.
    pub allowed: Vec<String>,
    pub denied: Vec<String>,
    /// Hosts of the repository's remotes ([`remote_hosts`]).
    pub remotes: Vec<String>,
}

/// The way out for the commands of a session.
pub struct Egress {
    settings: HostSettings,
    secrets: Option<Secrets>,
    /// What the rules of the latest command allow: those of the next are mostly the same.
    hosts: Mutex<Option<Arc<Hosts>>>,
    clients: Clients,
    callers: Arc<Callers>,
    /// One for each guard that was started.
    proxies: Mutex<Vec<Proxy>>,
}

/// The calls whose commands run, by the name of their client.
#[derive(Default)]
struct Callers {
    calls: Mutex<HashMap<String, Weak<Caller>>>,
    /// Hosts that programs outside of any session were refused.
    refused: Mutex<Vec<RefusedHost>>,
}

/// The hosts that rules and settings allow.
struct Hosts {
    of: RuleSet,
    rules: HostRules,
    listed: Vec<Listed>,
}

/// Leave for the commands of one call, until it is dropped.
pub struct Pass {
    egress: Arc<Egress>,
    caller: Arc<Caller>,
    client: Arc<Client>,
}

/// The call in whose name connections are made, and the way to a person who decides about one.
pub struct Connecting {
    /// The run, with where it works now.
    pub spec: Arc<RunSpec>,
    pub call: CallId,
    pub who: Who,
    /// The way from the root, `main/<agent>/…`.
    pub path: String,
    pub modes: Arc<[ModeStep]>,
    pub journal: Journal,
    pub rights: watch::Receiver<Rights>,
    pub witness: Witness,
    pub person: Arc<dyn Person>,
}

/// In whose name a host is asked about.
struct Caller {
    by: Connecting,
    /// What allows hosts, for the record.
    hosts: Arc<Hosts>,
    /// Hosts that were refused, the first [`MOST_REFUSED`].
    refused: Mutex<Vec<RefusedHost>>,
    /// Why allowed hosts could not be reached, the first [`MOST_REFUSED`].
    failed: Mutex<Vec<String>>,
    /// What the person said who refused a host.
    declined: Mutex<Option<String>>,
    backlog: Arc<Backlog>,
}

/// A pattern of hosts that may be reached, and where it comes from.
struct Listed {
    pattern: Pattern,
    by: DecidedBy,
    words: String,
}

impl Egress {
    /// For commands that may reach these hosts, and use these secrets.
    pub fn new(settings: HostSettings, secrets: Option<Secrets>) -> Self {
        Self {
            settings,
            secrets,
            hosts: Mutex::default(),
            clients: Clients::default(),
            callers: Arc::default(),
            proxies: Mutex::new(Vec::new()),
        }
    }

    /// Serves a listener in the commands' network.
    pub fn serve(&self, listener: std::net::TcpListener) {
        let judge: Arc<dyn Judge> = Arc::clone(&self.callers) as Arc<dyn Judge>;
        let gate = Gate::new(self.clients.clone(), Arc::new(SystemResolver), Some(judge));
        let recorder: Arc<dyn Recorder> = Arc::clone(&self.callers) as Arc<dyn Recorder>;
        let started = listener
            .set_nonblocking(true)
            .and_then(|()| tokio::net::TcpListener::from_std(listener))
            .and_then(|listener| {
                let masked = self.secrets.as_ref().map(Secrets::masked);
                Proxy::start(listener, ProxyParts { masked, ..ProxyParts::new(Arc::new(gate), recorder) })
            });
        match started {
            Ok(proxy) => self.proxies.lock().unwrap_or_else(PoisonError::into_inner).push(proxy),
            Err(error) => {
                tracing::warn!("commands cannot reach the network, because the proxy did not start: {error}");
            }
        }
    }

    /// The variables by which commands in this sandbox use secrets without reading them.
    pub fn equip(&self, sandbox: &mut Sandbox) -> std::io::Result<Vec<(OsString, OsString)>> {
        self.secrets.as_ref().map_or(Ok(Vec::new()), |secrets| secrets.equip(sandbox))
    }

    /// The variables of a program that runs outside of any session. Nobody is asked about its hosts.
    pub fn environment(&self, rules: &RuleSet) -> std::io::Result<Vec<(OsString, OsString)>> {
        let client = self.clients.add("sandbox", self.allowed_by(rules).rules.clone())?;
        Ok(variables(&client).collect())
    }

    /// The hosts that such programs were refused.
    pub fn refused(&self) -> Vec<RefusedHost> {
        self.callers.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The hosts that are reached without a question, each with what lists it.
    pub fn hosts(&self, rules: &RuleSet) -> Vec<(String, String)> {
        let allowed = self.allowed_by(rules);
        let Hosts { rules: hosts, listed, .. } = &*allowed;
        if hosts.is_closed() {
            return Vec::new();
        }
        let denied = |listed: &Listed| {
            let host = listed.pattern.base_name().and_then(|name| Host::parse(name).ok());
            let port = listed.pattern.port().unwrap_or(443);
            host.is_some_and(|host| matches!(hosts.decide(&host, port), HostDecision::Denied { .. }))
        };
        let reached = listed.iter().filter(|listed| !denied(listed));
        reached.map(|listed| (listed.pattern.to_string(), listed.words.clone())).collect()
    }

    /// Leave for the commands of a call.
    pub fn admit(self: &Arc<Self>, by: Connecting, rules: &RuleSet) -> std::io::Result<Pass> {
        // A call may run its command twice.
        let name = format!("{}/{}", by.call.as_str(), uuid::Uuid::new_v4().simple());
        let hosts = if by.spec.definition.sandbox.is_empty() {
            self.allowed_by(rules)
        } else {
            let made_by = |rule: &Rule| bounds::maker_of(&by.spec, rule).unwrap_or_else(|| by_rule(rule));
            Arc::new(self.compile(rules, &made_by))
        };
        let narrowed = bounds::narrow(hosts.rules.clone(), &by.spec);
        let caller = Arc::new(Caller {
            by,
            hosts,
            refused: Mutex::default(),
            failed: Mutex::default(),
            declined: Mutex::default(),
            backlog: Arc::default(),
        });
        let owner = Arc::clone(&caller) as Arc<dyn std::any::Any + Send + Sync>;
        let client = self.clients.add_for(&name, narrowed, owner)?;
        let mut callers = self.callers.lock();
        callers.retain(|_, caller| caller.strong_count() > 0);
        callers.insert(name, Arc::downgrade(&caller));
        drop(callers);
        Ok(Pass { egress: Arc::clone(self), caller, client })
    }

    /// The hosts that these rules and the settings allow.
    fn allowed_by(&self, rules: &RuleSet) -> Arc<Hosts> {
        let mut latest = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hosts) = latest.as_ref().filter(|hosts| hosts.of == *rules) {
            return Arc::clone(hosts);
        }
        Arc::clone(latest.insert(Arc::new(self.compile(rules, &by_rule))))
    }

    /// The same, where `by` says what made a rule.
    fn compile(&self, rules: &RuleSet, by: &dyn Fn(&Rule) -> String) -> Hosts {
        let listed = self.listed(rules);
        Hosts { of: rules.clone(), rules: host_rules(&listed, &self.settings, rules, by), listed }
    }

    /// What may be reached, and why: rules for `WebFetch` that name a host, settings, the repository's remotes, and package
    /// managers. What cannot be read as a host counts for nothing.
    fn listed(&self, rules: &RuleSet) -> Vec<Listed> {
        let web = rules.allow.iter().filter(|rule| rule.tool == "WebFetch");
        let by_rule = web.filter_map(|rule| Some((domain(rule.specifier.as_deref()?), rule.to_string())));
        let settings =
            self.settings.allowed.iter().map(|host| (host.as_str(), "sandbox.network.allowedDomains"));
        let secrets = self.secrets.iter().flat_map(Secrets::hosts);
        let settings = settings.chain(secrets.map(|host| (host.as_str(), "secrets")));
        let ruled = by_rule.chain(settings.map(|(host, setting)| (host, format!("the setting {setting}"))));
        let remotes = self.settings.remotes.iter().map(|host| (host.as_str(), "a remote of the repository"));
        let usual = remotes.chain(DEFAULT_HOSTS.iter().map(|host| (*host, "the default list")));
        let read = |by: DecidedBy| {
            move |(host, words): (&str, String)| {
                Some(Listed { pattern: Pattern::parse(host).ok()?, by, words })
            }
        };
        let usual = usual.map(|(host, words)| (host, words.to_owned()));
        ruled.filter_map(read(DecidedBy::Rule)).chain(usual.filter_map(read(DecidedBy::Policy))).collect()
    }
}

impl Pass {
    /// The variables that lead programs through the proxy.
    pub fn environment(&self) -> impl Iterator<Item = (OsString, OsString)> + use<> {
        variables(&self.client)
    }

    /// The hosts that its commands wanted and were refused.
    pub fn refused(&self) -> Vec<RefusedHost> {
        self.caller.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why hosts that it may reach were not reached.
    pub fn failed(&self) -> Vec<String> {
        self.caller.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the person said who refused one of them.
    pub fn declined(&self) -> Option<String> {
        self.caller.declined.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn variables(client: &Client) -> impl Iterator<Item = (OsString, OsString)> + use<> {
    environment(PROXY_PORT, client.token()).into_iter().map(|(name, value)| (name.into(), value.into()))
}

impl Drop for Pass {
    fn drop(&mut self) {
        // Its connections end now, and are recorded in the name of the caller, which the client keeps until then.
        self.egress.clients.remove(self.client.token());
    }
}

/// Why this entry of a list of hosts cannot be used, if so.
pub fn unusable_host(entry: &str) -> Option<String> {
    Pattern::parse(entry).err().map(|error| error.to_string())
}

/// The hosts that commands may reach: those listed, less those that are denied. What is denied and cannot be read closes
/// the network.
fn host_rules(
    listed: &[Listed],
    settings: &HostSettings,
    rules: &RuleSet,
    by: &dyn Fn(&Rule) -> String,
) -> HostRules {
    let web = |rule: &&Rule| rule.tool == "WebFetch";
    let denying = rules.deny.iter().filter(web).map(|rule| (rule, by(rule)));
    // What is asked about for WebFetch is refused here: a command cannot be asked about before it begins.
    let asking = |rule| format!("{}, which asks about each use,", by(rule));
    let asking = rules.ask.iter().filter(web).map(|rule| (rule, asking(rule)));
    let mut denied: Vec<(String, String)> = Vec::new();
    for (rule, by) in denying.chain(asking) {
        let Some(specifier) = &rule.specifier else {
            return HostRules::closed(format!("{by} denies every host to commands"));
        };
        denied.push((domain(specifier).to_owned(), by));
    }
    denied.extend(settings.denied.iter().map(|host| (host.clone(), by_setting(host))));
    let allowed: Vec<String> = listed.iter().map(|listed| listed.pattern.to_string()).collect();
    HostRules::new(allowed.iter().map(String::as_str), [], false)
        .map_err(|error| error.to_string())
        .and_then(|rules| denying_all(rules, &denied))
        .unwrap_or_else(HostRules::closed)
}

/// What denies a host, as part of a sentence.
fn by_rule(rule: &Rule) -> String {
    format!("the rule {rule}")
}

fn by_setting(host: &str) -> String {
    format!("\"{host}\" in sandbox.network.deniedDomains")
}

/// The same rules, which also deny these names, each for its reason, and as for `WebFetch` the names below them. The
/// error says why one of the names cannot be read.
fn denying_all(rules: HostRules, denied: &[(String, String)]) -> Result<HostRules, String> {
    denied.iter().try_fold(rules, |rules, (name, by)| {
        let closed = |_| format!("no host is allowed, because {by} does not name a valid host");
        let rules = rules.denying(name, by).map_err(closed)?;
        let below = format!("*.{name}");
        // There is nothing below an address.
        match Pattern::parse(&below) {
            Ok(_) => rules.denying(&below, by).map_err(closed),
            Err(_) => Ok(rules),
        }
    })
}

/// The host of a rule for `WebFetch`.
fn domain(specifier: &str) -> &str {
    specifier.strip_prefix("domain:").unwrap_or(specifier)
}

/// The hosts of the remotes of the repository that a folder is in, each with its port. To be read before any command
/// runs, and where the folder is trusted: whoever writes this file opens hosts. What it includes is not read. Remotes
/// for ssh are none of these, because ssh does not use the proxy.
pub fn remote_hosts(folder: &Utf8Path) -> Vec<String> {
    let Some(git) = crate::sandbox::git_folders(folder).pop() else { return Vec::new() };
    hosts_of_remotes(&crate::repository::small(&git.join("config")).unwrap_or_default())
}

fn hosts_of_remotes(config: &str) -> Vec<String> {
    let mut in_remote = false;
    let mut hosts = Vec::new();
    for line in config.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            in_remote = section.to_ascii_lowercase().starts_with("remote ");
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let key = key.trim().to_ascii_lowercase();
        if in_remote && (key == "url" || key == "pushurl") {
            hosts.extend(host_of(value.trim().trim_matches('"')));
        }
    }
    hosts
}

/// `host:port` of an address of the web.
fn host_of(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let port = match scheme {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next()?.rsplit('@').next()?;
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let host = if has_port { authority.to_owned() } else { format!("{authority}:{port}") };
    Pattern::parse(&host).ok().filter(|pattern| pattern.base_name().is_some()).map(|_| host)
}

impl Callers {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Weak<Caller>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, name: &str) -> Option<Arc<Caller>> {
        self.lock().get(name).and_then(Weak::upgrade)
    }
}

impl Judge for Callers {
    fn judge(&self, client: &Client, host: &str, port: u16) -> BoxFuture<'static, HostVerdict> {
        let caller = self.find(client.name()).filter(|caller| caller.is_answerable());
        let host = host.to_owned();
        Box::pin(async move {
            match caller {
                Some(caller) => caller.ask(&host, port).await,
                None => HostVerdict::Unanswered,
            }
        })
    }
}

impl Recorder for Callers {
    fn record(&self, record: &ConnectionRecord) {
        let Some(client) = record.client.as_deref() else { return };
        let Some(caller) = self.find(client) else {
            if let Some(host) = refused_host(record) {
                note_host(&self.refused, host);
            }
            return;
        };
        let reason = match &record.verdict {
            RecordedVerdict::Allowed(_) => None,
            RecordedVerdict::Refused(reason) => Some(reason.clone()),
        };
        if let Some(host) = refused_host(record) {
            note_host(&caller.refused, host);
        }
        // A server that broke a connection off was reached.
        if let (Ending::Failed(problem), None) = (&record.ending, record.address) {
            let mut failed = caller.failed.lock().unwrap_or_else(PoisonError::into_inner);
            note(&mut failed, problem.clone(), MOST_REFUSED);
        }
        let (by, words) = caller.source_of(record);
        caller.by.witness.record(AuditKind::Egress {
            host: record.host.clone(),
            port: record.port,
            address: record.address.map(|address| address.ip().to_string()),
            verdict: if reason.is_none() { Verdict::Allow } else { Verdict::Deny },
            by: Some(by),
            reason: words,
            bytes_up: record.bytes_up,
            bytes_down: record.bytes_down,
        });
        let event = Event::Connection {
            call: caller.by.call.clone(),
            host: record.host.clone(),
            port: record.port,
            address: record.address.map(|address| address.ip().to_string()),
            refused: reason,
            bytes_up: record.bytes_up,
            bytes_down: record.bytes_down,
            duration_ms: u64::try_from(record.duration.as_millis()).unwrap_or(u64::MAX),
        };
        write(&caller.backlog, caller.by.journal.clone(), caller.by.who.clone(), event);
    }
}

/// The host of a connection that was refused.
fn refused_host(record: &ConnectionRecord) -> Option<RefusedHost> {
    let RecordedVerdict::Refused(text) = &record.verdict else { return None };
    if record.ending != Ending::Refused || record.host.is_empty() {
        return None;
    }
    let by_rule = matches!(
        record.refusal,
        Some(
            Reason::Denied { .. }
                | Reason::DeniedAddress { .. }
                | Reason::Outside { .. }
                | Reason::Closed { .. }
        )
    );
    let why = match &record.refusal {
        Some(Reason::NotAllowed) => "add it to sandbox.network.allowedDomains".to_owned(),
        Some(reason) => match reason.hint(&record.host) {
            Some(hint) => format!("{reason}; {hint}"),
            None => reason.to_string(),
        },
        None => text.clone(),
    };
    Some(RefusedHost { host: record.host.clone(), port: record.port, why, by_rule })
}

/// Adds a host to a list that people and models read.
fn note_host(list: &Mutex<Vec<RefusedHost>>, host: RefusedHost) {
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    let is_full = list.len() >= MOST_REFUSED && !list.contains(&host);
    let others = || RefusedHost { host: "others".to_owned(), port: 0, ..host.clone() };
    let host = if is_full { others() } else { host };
    note(&mut list, host, MOST_REFUSED + 1);
}

/// Adds to a list, as long as it is not too long.
fn note<T: PartialEq>(list: &mut Vec<T>, entry: T, most: usize) {
    if list.len() < most && !list.contains(&entry) {
        list.push(entry);
    }
}

/// Events of a call's connections that wait to be written. A full disk holds them up, and a command can connect in a loop.
#[derive(Default)]
struct Backlog {
    waiting: AtomicUsize,
    left_out: AtomicUsize,
}

impl Backlog {
    /// Whether there is room for one more; one for which there is none is counted.
    fn enter(&self) -> bool {
        let has_room = self.waiting.fetch_add(1, Ordering::Relaxed) < MOST_WAITING;
        if !has_room {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// One was written. Gives what is to be said about those that were left out.
    fn leave(&self) -> Option<Event> {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let count = self.left_out.swap(0, Ordering::Relaxed);
        let text = format!("{count} connections are not in this transcript: too many waited for the disk");
        (count > 0).then(|| Event::Notice { level: "warning".to_owned(), text })
    }
}

/// Puts a connection on record, beside whatever else happens.
fn write(backlog: &Arc<Backlog>, journal: Journal, who: Who, event: Event) {
    // At the end of the program there may be nothing left to write it with.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    if !backlog.enter() {
        return;
    }
    let backlog = Arc::clone(backlog);
    runtime.spawn(async move {
        // A journal that is lost is found lost by the call itself.
        let _ = journal.write(&who, vec![event]).await;
        if let Some(notice) = backlog.leave() {
            let _ = journal.write(&who, vec![notice]).await;
        }
    });
}

impl Caller {
    /// Who or what decided about a connection, and why.
    fn source_of(&self, record: &ConnectionRecord) -> (DecidedBy, String) {
        let host = Host::parse(&record.host).ok();
        match (&record.verdict, &record.refusal) {
            (RecordedVerdict::Allowed(Grant::Listed), _) => {
                let matches = |listed: &&Listed| {
                    host.as_ref().is_some_and(|host| listed.pattern.matches(host, record.port))
                };
                let listed = self.hosts.listed.iter().find(matches);
                listed.map_or((DecidedBy::Rule, Grant::Listed.text().to_owned()), |listed| {
                    (listed.by, listed.words.clone())
                })
            }
            (RecordedVerdict::Allowed(Grant::Open), _) => (DecidedBy::Policy, Grant::Open.text().to_owned()),
            (RecordedVerdict::Allowed(grant), _) => (DecidedBy::Person, grant.text().to_owned()),
            (RecordedVerdict::Refused(reason), refusal) => {
                let by = match refusal {
                    Some(Reason::DeniedByUser) => DecidedBy::Person,
                    Some(
                        Reason::Denied { .. }
                        | Reason::DeniedAddress { .. }
                        | Reason::Outside { .. }
                        | Reason::Closed { .. },
                    ) => DecidedBy::Rule,
                    _ => DecidedBy::Policy,
                };
                (by, reason.clone())
            }
        }
    }

    fn is_answerable(&self) -> bool {
        let rights = self.by.rights.borrow();
        let mode = child::mode((rights.mode, rights.undecided), &self.by.modes, rights.trusted).value;
        rights.answers && !matches!(mode, Mode::DontAsk | Mode::BypassPermissions | Mode::Plan)
    }

    /// Asks a person. An answer holds for the call; a rule that comes with it for later ones.
    async fn ask(&self, host: &str, port: u16) -> HostVerdict {
        let rule = Rule::parse(&format!("WebFetch(domain:{host})"), RuleSource::Session).ok();
        let question = Question {
            id: QuestionId(uuid::Uuid::new_v4()),
            agent: self.by.who.agent.clone(),
            path: self.by.path.split('/').map(str::to_owned).collect(),
            call: self.by.call.clone(),
            tool: CONNECTION.to_owned(),
            input: json!({"host": host, "port": port}),
            intent: Intent::titled(format!("Connect to {host}:{port}")),
            reason: "a command wants to connect to this host, which no rule or setting lists".to_owned(),
            asked_by: AskedBy::Other,
            blocked: None,
            suggestions: rule.into_iter().collect(),
            behind: false,
            patch: None,
            elicitation: None,
        };
        // A program that gives up its connection ends this at the next `await`.
        let mut withdrawal = Withdrawal { caller: self, question: Some(question.id) };
        let _waiting = ShownQuestion::new(&*self.by.person, question.id);
        let (answer, answered) = oneshot::channel();
        let asked = Ask { who: self.by.who.clone(), question, answer, rights_changed: Arc::default() };
        let sent = self.by.person.ask(Box::new(asked)).await;
        let heard = match sent {
            Some(()) => answered.await.ok(),
            None => None,
        };
        withdrawal.question = None;
        match heard.map(|heard| heard.answer) {
            Some(Answer::Allow { .. }) => HostVerdict::AllowForSession,
            Some(Answer::Deny { message, .. }) => {
                *self.declined.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
                HostVerdict::Deny
            }
            Some(Answer::Elicited(_)) => HostVerdict::Deny,
            None => HostVerdict::Unanswered,
        }
    }
}

/// Records that a question needs no answer any more, if it is dropped before there is one.
struct Withdrawal<'a> {
    caller: &'a Caller,
    question: Option<QuestionId>,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        let Some(question) = self.question.take() else { return };
        let message = "the program gave up its connection before there was an answer".to_owned();
        let answer = Answer::Deny { message, interrupt: false };
        let event = Event::Answered { question, answer, by: "nobody".to_owned() };
        let Caller { backlog, by, .. } = self.caller;
        write(backlog, by.journal.clone(), by.who.clone(), event);
    }
}

impl std::fmt::Debug for Egress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Egress").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_wait_for_the_disk_are_bounded_and_the_others_counted() {
        let backlog = Backlog::default();
        let entered = (0..MOST_WAITING + 5).filter(|_| backlog.enter()).count();
        assert_eq!(entered, MOST_WAITING);
        let Some(Event::Notice { text, .. }) = backlog.leave() else { panic!("nothing is said") };
        assert!(text.starts_with("5 connections"), "{text}");
        assert!(backlog.enter() && backlog.leave().is_none());
    }

    #[test]
    fn hosts_of_remotes_are_read_from_their_addresses() {
        let config = "[core]\n\turl = https://core.example/\n[remote \"origin\"]\n\turl = https://user:token@example.org:8443/x\n\t\
                      pushURL = http://plain.example/a\n\tfetch = https://fetch.example/\n[remote \"s\"]\n\turl = git@ssh.example:x\n\t\
                      url = ssh://ssh.example/x\n\turl = https://10.0.0.1/x\n\turl = https://github.com/a/b.git\n\
                      [url \"https://instead.example/\"]\n\tinsteadOf = x\n[include]\n\tpath = ../evil\n\
                      [submodule \"m\"]\n\turl = https://module.example/m\n";
        assert_eq!(hosts_of_remotes(config), ["example.org:8443", "plain.example:80", "github.com:443"]);
    }
}
