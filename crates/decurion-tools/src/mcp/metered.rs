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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A server that says the same for ever and reads everything.
    struct Says(Value);

    impl Transport<RoleClient> for Says {
        type Error = std::io::Error;

        fn send(
            &mut self,
            _: ClientJsonRpcMessage,
        ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
            std::future::ready(Ok(()))
        }

        async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
            serde_json::from_value(self.0.clone()).ok()
        }

        async fn close(&mut self) -> Result<(), Self::Error> {
            Ok(())
        }
    }

    fn says(message: Value) -> (Metered<Says>, CancellationToken) {
        let over = CancellationToken::new();
        (Metered::new(Says(message), over.clone()), over)
    }

    fn asks() -> (Metered<Says>, CancellationToken) {
        says(json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}))
    }

    async fn say(transport: &mut Metered<Says>, message: Value) {
        transport.send(serde_json::from_value(message).unwrap()).await.unwrap();
    }

    fn result() -> Value {
        json!({"jsonrpc": "2.0", "id": 1, "result": {}})
    }

    #[tokio::test]
    async fn a_server_that_asks_more_than_is_answered_is_over() {
        let (mut transport, over) = asks();
        for _ in 0..MOST_OPEN {
            assert!(transport.receive().await.is_some());
        }
        assert!(!over.is_cancelled());
        // What we ask and tell it is no answer.
        say(&mut transport, json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list"})).await;
        say(&mut transport, json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        assert!(transport.receive().await.is_none());
        assert!(over.is_cancelled());
    }

    #[tokio::test]
    async fn a_server_whose_questions_are_answered_may_ask_for_ever() {
        let refusal = json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no"}});
        for answer in [result(), refusal] {
            let (mut transport, over) = asks();
            for _ in 0..4 * MOST_OPEN {
                assert!(transport.receive().await.is_some());
                say(&mut transport, answer.clone()).await;
            }
            assert!(!over.is_cancelled());
        }
    }

    #[tokio::test]
    async fn what_is_answered_twice_makes_no_room_for_more() {
        let (mut transport, _over) = asks();
        for _ in 0..4 * MOST_OPEN {
            say(&mut transport, result()).await;
        }
        for _ in 0..MOST_OPEN {
            assert!(transport.receive().await.is_some());
        }
        assert!(transport.receive().await.is_none());
    }

    #[tokio::test]
    async fn what_is_no_question_is_not_counted() {
        let (mut transport, over) =
            says(json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
        for _ in 0..4 * MOST_OPEN {
            assert!(transport.receive().await.is_some());
        }
        assert!(!over.is_cancelled());
    }
}
