//! Turns a request into a stream of model events. The only crate that knows any provider's JSON.
//!
//! In: a [`Head`] (frozen for a run) and messages, each turned into bytes once by a [`Dialect`], put
//! together as a [`ModelRequest`]. Out: [`GatewayEvent`]s from a [`Gateway`], which is the only way the
//! engine talks to a provider: it waits its turn, retries, and says what it waits for.

pub mod anthropic;
pub mod catalog;
pub mod checked;
pub mod error;
pub mod event;
pub mod gateway;
pub mod http;
pub mod limiter;
pub mod openai_chat;
pub mod pace;
pub mod reply;
pub mod request;
pub mod script;
pub mod script_provider;
pub mod sse;
pub mod weight;

pub use checked::CheckedBlock;
pub use error::{ModelError, Said, StallKind, UnreachableCause, VainWait};
pub use event::{Accepted, ModelEvent, RateLimits, ReplyInfo};
pub use gateway::{Gateway, GatewayEvent, GatewaySettings};
pub use request::{
    Dialect, Head, ModelRequest, OutputLimitField, RequestBody, RequestClass, RequestTag, Thinking,
    ToolSchema, WireHead, WireMessage,
};

pub use futures_core::future::BoxFuture;
pub use futures_core::stream::BoxStream;

/// A model somewhere. One request, one attempt: an implementation never retries and never waits for a
/// turn; the [`Gateway`] does both.
///
/// The stream yields [`ModelEvent`]s in order and ends after [`ModelEvent::Completed`], or with one `Err`
/// as its last item. Dropping the stream cancels the request at once. A failure is an item, never a hang
/// or a panic; time limits other than that of connecting are the gateway's.
pub trait ModelProvider: Send + Sync {
    /// How this provider wants heads and messages written.
    fn dialect(&self) -> Dialect;
    /// Sends the request and gives what comes back.
    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>>;
    /// Asks which models there are, one attempt; the ids as the provider lists them.
    fn models(&self) -> BoxFuture<'static, Result<Vec<String>, ModelError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}
