//! Who may use the proxy. Takes the name and the rules of an agent, gives a token that its commands present; takes a
//! token, gives the client.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use crate::gate::Verdict;
use crate::rules::HostRules;

/// Connections of one client that may wait for a person at once. They hold slots of the proxy, which other clients need too.
const WAITING_MAX: usize = 64;

/// A host and port that a person is asked about.
pub(crate) type HostPort = (String, u16);
/// An open question, shared by all connections that wait for its answer.
pub(crate) type PendingQuestion = Shared<BoxFuture<'static, Verdict>>;

/// The clients that the proxy knows. Clones share the same clients, which may come and go while the proxy runs.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    by_token: Arc<Mutex<HashMap<String, Arc<Client>>>>,
}

/// One agent as the proxy knows it.
pub struct Client {
    name: String,
    token: String,
    ended: CancellationToken,
    /// Slots for connections that wait for a person.
    waiting: Semaphore,
    state: Mutex<ClientState>,
    /// Kept until the last of its connections is on record.
    _owner: Option<Arc<dyn Any + Send + Sync>>,
}

struct ClientState {
    rules: HostRules,
    allowed_for_session: HashSet<HostPort>,
    questions: HashMap<HostPort, WeakShared<BoxFuture<'static, Verdict>>>,
}

impl Clients {
    /// Adds a client with a new random token.
    pub fn add(&self, name: &str, rules: HostRules) -> io::Result<Arc<Client>> {
        self.insert(name, rules, None)
    }

    /// The same for a client whose connections are recorded by `owner`, which lives until the last one is recorded;
    /// that may be after the client was removed.
    pub fn add_for(
        &self,
        name: &str,
        rules: HostRules,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> io::Result<Arc<Client>> {
        self.insert(name, rules, Some(owner))
    }

    fn insert(
        &self,
        name: &str,
        rules: HostRules,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> io::Result<Arc<Client>> {
        let state = ClientState { rules, allowed_for_session: HashSet::new(), questions: HashMap::new() };
        let client = Arc::new(Client {
            name: name.to_owned(),
            token: random_hex()?,
            ended: CancellationToken::new(),
            waiting: Semaphore::new(WAITING_MAX),
            state: Mutex::new(state),
            _owner: owner,
        });
        lock(&self.by_token).insert(client.token.clone(), client.clone());
        Ok(client)
    }

    /// The client with this token.
    pub fn find(&self, token: &str) -> Option<Arc<Client>> {
        lock(&self.by_token).get(token).cloned()
    }

    /// Removes a client and ends its connections.
    pub fn remove(&self, token: &str) {
        if let Some(client) = lock(&self.by_token).remove(token) {
            client.ended.cancel();
        }
    }
}

impl Client {
    /// The agent's name, for questions and records.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the agent's commands present to the proxy.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The rules as they are now.
    pub fn rules(&self) -> HostRules {
        lock(&self.state).rules.clone()
    }

    /// Replaces the rules. They hold for new connections; those that are open stay open.
    pub fn set_rules(&self, rules: HostRules) {
        lock(&self.state).rules = rules;
    }

    /// Resolves when the client is removed.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// A slot to wait for a person in, if one is free.
    pub(crate) fn waiting_slot(&self) -> Option<SemaphorePermit<'_>> {
        self.waiting.try_acquire().ok()
    }

    pub(crate) fn is_allowed_for_session(&self, target: &HostPort) -> bool {
        lock(&self.state).allowed_for_session.contains(target)
    }

    pub(crate) fn allow_for_session(&self, target: HostPort) {
        lock(&self.state).allowed_for_session.insert(target);
    }

    /// The open question about this target, or a new one made by `ask`. `None` if `most` questions are open already.
    pub(crate) fn question(
        &self,
        target: &HostPort,
        most: usize,
        ask: impl FnOnce() -> PendingQuestion,
    ) -> Option<PendingQuestion> {
        let mut state = lock(&self.state);
        state.questions.retain(|_, question| question.upgrade().is_some_and(|open| open.peek().is_none()));
        if let Some(open) = state.questions.get(target).and_then(WeakShared::upgrade) {
            return Some(open);
        }
        if state.questions.len() >= most {
            return None;
        }
        let question = ask();
        if let Some(weak) = question.downgrade() {
            state.questions.insert(target.clone(), weak);
        }
        Some(question)
    }
}

impl std::fmt::Debug for Client {
    /// Without the token, which is a secret of the agent.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Client").field("name", &self.name).finish_non_exhaustive()
    }
}

/// 128 random bits as text that needs no escaping in a URL.
pub(crate) fn random_hex() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A panic elsewhere leaves the maps whole, so a poisoned lock is used as it is.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
