//! The servers of a session. Takes a server as decided and who wants it, gives a [`Lease`] on the one
//! process there is for it, at once: connecting continues in the background. The last lease ends the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use decurion_protocol::mcp::McpServer;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::McpHost;
use super::server::Server;

/// After this long a server that does not end is left to the guard, which ends everything.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// The servers of a session; clones share them.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    host: McpHost,
    entries: Mutex<HashMap<Key, Weak<Entry>>>,
}

/// A declaration under one name, and for a private one its user: whose tools are named otherwise cannot be
/// told apart by rules, so a declaration under two names is two servers.
type Key = (String, String, Option<String>);

struct Entry {
    server: Server,
    actor: Option<JoinHandle<()>>,
    close: Option<DropGuard>,
}

/// The use of a server. Dropping it lets go; [`Lease::release`] also waits until the process is gone, if
/// this was the last.
pub struct Lease {
    entry: Option<Arc<Entry>>,
}

impl Pool {
    /// A pool with nothing in it.
    pub fn new(host: McpHost) -> Self {
        Self { inner: Arc::new(Inner { host, entries: Mutex::default() }) }
    }

    /// The use of this server by this user. Never waits.
    pub fn lease(&self, server: &McpServer, user: &str) -> Lease {
        let user = server.private.then(|| user.to_owned());
        let key = (server.hash.clone(), server.short.clone(), user);
        let mut entries = self.inner.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(&key).and_then(Weak::upgrade) {
            return Lease { entry: Some(entry) };
        }
        entries.retain(|_, entry| entry.strong_count() > 0);
        let close = CancellationToken::new();
        let (handle, actor) = Server::start(server.clone(), self.inner.host.clone(), close.clone());
        let actor = Some(tokio::spawn(actor));
        let entry = Arc::new(Entry { server: handle, actor, close: Some(close.drop_guard()) });
        entries.insert(key, Arc::downgrade(&entry));
        Lease { entry: Some(entry) }
    }

    /// How many servers are in use.
    pub fn len(&self) -> usize {
        let entries = self.inner.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.values().filter(|entry| entry.strong_count() > 0).count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("servers", &self.len()).finish_non_exhaustive()
    }
}

impl Lease {
    pub fn server(&self) -> Option<&Server> {
        self.entry.as_ref().map(|entry| &entry.server)
    }

    /// Lets go, and waits for the process's end if nobody else uses it. Bounded.
    pub async fn release(mut self) {
        let Some(mut entry) = self.entry.take().and_then(Arc::into_inner) else { return };
        drop(entry.close.take());
        if let Some(actor) = entry.actor.take() {
            let _ = tokio::time::timeout(CLOSE_LIMIT, actor).await;
        }
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Lease").field(&self.server()).finish()
    }
}
