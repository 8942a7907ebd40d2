//! A model that plays a script, without a network. Takes requests like any provider and answers with the
//! bytes a real one would send, through the same reading as theirs; so what works here works there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, stream};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::{Instant, sleep};

use crate::http::{Redaction, seed};
use crate::pace::Pace;
use crate::reply::{self, Response};
use crate::script::{Ids, RequestView, Script, WireStep, render};
use crate::{Dialect, ModelError, ModelEvent, ModelProvider, ModelRequest, Said};

/// The provider behind `scripted:FILE`.
pub struct ScriptedProvider {
    script: Arc<Script>,
    dialect: Dialect,
    /// When the first request came; scripts may ask how long ago that was.
    started: Mutex<Option<Instant>>,
    /// How often each request came, kept only for scripts that ask.
    tries: Mutex<HashMap<u128, u32>>,
    /// How fast its waits pass.
    pace: Pace,
}

/// More requests than this are not told apart; a script that counts tries is a small one.
const MAX_COUNTED: usize = 100_000;

impl ScriptedProvider {
    /// Plays a script in Anthropic's dialect.
    pub fn new(script: Script) -> Self {
        Self::speaking(Dialect::Anthropic, script)
    }

    /// Plays a script in either dialect.
    pub fn speaking(dialect: Dialect, script: Script) -> Self {
        Self {
            script: Arc::new(script),
            dialect,
            started: Mutex::new(None),
            tries: Mutex::new(HashMap::new()),
            pace: Pace::default(),
        }
    }

    /// The same at this pace.
    #[must_use]
    pub fn with_pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    fn steps(&self, request: &ModelRequest) -> Result<Vec<WireStep>, ModelError> {
        let mut seen = RequestView::from_request(request)
            .map_err(|error| rejected(&format!("the request cannot be read: {error}")))?;
        seen.elapsed = self.elapsed();
        if self.script.counts_tries() {
            seen.attempt = self.count(seen.seed());
        }
        let plan = self.script.reply(&seen).map_err(|hole| rejected(&hole.to_string()))?;
        Ok(render(&plan, self.dialect, &Ids::of(&seen)))
    }

    fn elapsed(&self) -> Duration {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.get_or_insert_with(Instant::now).elapsed()
    }

    fn count(&self, request: u128) -> u32 {
        let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        if tries.len() >= MAX_COUNTED {
            tries.clear();
        }
        let count = tries.entry(request).or_default();
        *count += 1;
        *count
    }
}

impl ModelProvider for ScriptedProvider {
    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let dialect = self.dialect;
        let seed = seed(&request);
        let steps = self.steps(&request);
        let pace = self.pace.clone();
        let reply = async move {
            let response = match steps {
                Ok(steps) => play(steps, pace).await,
                Err(error) => Err(error),
            };
            match response {
                Ok(response) => reply::events(dialect, seed, Redaction::default(), response).await,
                Err(error) => stream::once(async { Err(error) }).boxed(),
            }
        };
        reply.flatten_stream().boxed()
    }
}

fn rejected(message: &str) -> ModelError {
    ModelError::Rejected { status: 400, said: Said::new(message) }
}

/// Up to the head; what comes after it is the body.
async fn play(steps: Vec<WireStep>, pace: Pace) -> Result<Response, ModelError> {
    let mut steps = steps.into_iter();
    for step in steps.by_ref() {
        match step {
            WireStep::Head { status, headers } => {
                return Ok(Response { status, headers: header_map(&headers), body: body(steps, pace) });
            }
            WireStep::Wait(time) => pace.wait(time).await,
            WireStep::Stall | WireStep::Repeat { .. } => std::future::pending().await,
            WireStep::Panic => panic!("the script asks for it"),
            WireStep::Reset | WireStep::Bytes(_) | WireStep::End => break,
        }
    }
    Err(broken())
}

fn header_map(headers: &[(String, String)]) -> HeaderMap {
    let pairs = headers.iter().filter_map(|(name, value)| {
        Some((HeaderName::try_from(name.as_str()).ok()?, HeaderValue::try_from(value.as_str()).ok()?))
    });
    pairs.collect()
}

fn body(steps: std::vec::IntoIter<WireStep>, pace: Pace) -> BoxStream<'static, Result<Bytes, ModelError>> {
    stream::unfold((steps, pace), |(mut steps, pace)| async move {
        loop {
            match steps.next()? {
                WireStep::Bytes(bytes) => return Some((Ok(bytes), (steps, pace))),
                WireStep::Wait(time) => pace.wait(time).await,
                WireStep::Reset => return Some((Err(broken()), (Vec::new().into_iter(), pace))),
                WireStep::Panic => panic!("the script asks for it"),
                WireStep::Stall => std::future::pending().await,
                WireStep::Repeat { bytes, every } => {
                    sleep(every).await;
                    let again = WireStep::Repeat { bytes: bytes.clone(), every };
                    return Some((Ok(bytes), (vec![again].into_iter(), pace)));
                }
                WireStep::Head { .. } | WireStep::End => return None,
            }
        }
    })
    .boxed()
}

fn broken() -> ModelError {
    ModelError::reset("the script breaks the connection here")
}
