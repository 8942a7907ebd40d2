//! A transport that a server cannot flood. Takes any transport, gives the same one, which is over when the server
//! has asked more than we could answer: answers wait in memory for a server that does not read them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use tokio_util::sync::CancellationToken;

/// How many questions of a server may be open at once. Servers in use ask one or two.
const MOST_OPEN: usize = 256;

/// A transport, and how many questions of the server are open.
pub(super) struct Metered<T> {
    inner: T,
    open: Arc<AtomicUsize>,
    over: CancellationToken,
}

impl<T> Metered<T> {
    /// The same transport; `over` fires when the server floods it.
    pub fn new(inner: T, over: CancellationToken) -> Self {
        Self { inner, open: Arc::default(), over }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Metered<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let answers = matches!(message, ClientJsonRpcMessage::Response(_) | ClientJsonRpcMessage::Error(_));
        let open = Arc::clone(&self.open);
        let sending = self.inner.send(message);
        async move {
            let sent = sending.await;
            if answers {
                // One that was answered twice must not make room for others.
                let _ = open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| open.checked_sub(1));
            }
            sent
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let message = self.inner.receive().await?;
        if matches!(message, ServerJsonRpcMessage::Request(_))
            && self.open.fetch_add(1, Ordering::Relaxed) >= MOST_OPEN
        {
            self.over.cancel();
            return None;
        }
        Some(message)
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}
