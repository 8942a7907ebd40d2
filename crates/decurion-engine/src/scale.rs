//! What a provider counted for requests. Takes a request and its count, gives what is known of one that begins like it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use decurion_model::{WireHead, WireMessage};

/// How many heads are remembered.
const MOST_HEADS: usize = 1_000;

/// What providers have counted for the first requests of a session, by head: a request that begins with the same
/// bytes costs no more than that for them, so only the rest needs a bound.
#[derive(Debug, Default)]
pub struct Scale(Mutex<HashMap<Bytes, Weighed>>);

#[derive(Clone, Debug)]
pub struct Weighed {
    pub messages: Arc<[WireMessage]>,
    pub tokens: u64,
}

impl Scale {
    pub fn known(&self, head: &WireHead) -> Option<Weighed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&head.prefix).cloned()
    }

    /// Remembers what a request was counted as; the lightest with the same head is the most useful.
    pub fn learn(&self, head: &WireHead, messages: &Arc<[WireMessage]>, tokens: u64) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens == 0 || known.get(&head.prefix).is_some_and(|known| known.tokens <= tokens) {
            return;
        }
        if known.len() >= MOST_HEADS {
            known.clear();
        }
        known.insert(head.prefix.clone(), Weighed { messages: Arc::clone(messages), tokens });
    }
}
