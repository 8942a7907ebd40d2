//! What a server asks a person. Takes its request, gives the answer of whoever is asked in the name of the call
//! that it works on. A server that works on nothing for us, asks too much or asks for what cannot be shown is
//! declined; what it asked is taken back when the call is over, or when it says so itself.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use decurion_protocol::{Elicitation, ElicitationAction, Elicited, Wanted};
use rmcp::model::{self, ElicitRequestParams, ElicitResult};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Elicit;

/// How many questions of a server may be open at once.
const MOST_OPEN: usize = 4;
/// How many it may ask during one call.
const MOST_ASKED: usize = 32;
/// How much of what it says is shown.
const MESSAGE_CHARS: usize = 4_000;
/// How long the form may be that it wants to be filled in, and the address it wants to be visited.
const FORM_BYTES: usize = 64 << 10;
const URL_BYTES: usize = 4 << 10;

/// The calls of one server that are under way, and how many of its questions are open.
#[derive(Default)]
pub(super) struct Calls {
    under_way: Mutex<Vec<Arc<Call>>>,
    open: watch::Sender<usize>,
    /// Whether somebody was told that it asks too much.
    told: AtomicBool,
}

struct Call {
    elicit: Option<Arc<dyn Elicit>>,
    asked: AtomicUsize,
    over: CancellationToken,
}

/// A call that is under way.
pub(crate) struct InCall<'a> {
    calls: &'a Calls,
    call: Arc<Call>,
}

impl Calls {
    /// A call begins; it is over when the given value is dropped.
    pub fn begin(&self, elicit: Option<&Arc<dyn Elicit>>) -> InCall<'_> {
        let call =
            Call { elicit: elicit.cloned(), asked: AtomicUsize::new(0), over: CancellationToken::new() };
        let call = Arc::new(call);
        self.lock().push(Arc::clone(&call));
        InCall { calls: self, call }
    }

    /// Puts what the server asks before a person. `taken_back` fires when the server wants no answer any more;
    /// `tell` is told once if it asks too much.
    pub async fn ask(
        &self,
        server: &str,
        params: ElicitRequestParams,
        taken_back: &CancellationToken,
        tell: &(dyn Fn(&str) + Send + Sync),
    ) -> ElicitResult {
        // A server does not say for which call it asks: the last that began is the likeliest.
        let (call, calls) = {
            let under_way = self.lock();
            (under_way.last().cloned(), under_way.len())
        };
        let elicitation = wanted(params).map(|(message, wanted)| {
            let message = clean(&message);
            Elicitation { server: server.to_owned(), message, calls, wanted }
        });
        let (Some(call), Some(elicitation)) = (call, elicitation) else { return declined() };
        let Some(elicit) = call.elicit.clone() else { return declined() };
        let Some(_open) = self.admit(&call) else {
            if !self.told.swap(true, Ordering::Relaxed) {
                tell("it asks for a person too often; what goes beyond a few questions at once is declined");
            }
            return declined();
        };
        let answer = tokio::select! {
            biased;
            () = call.over.cancelled() => Elicited::plain(ElicitationAction::Cancel),
            () = taken_back.cancelled() => Elicited::plain(ElicitationAction::Cancel),
            answer = elicit.ask(elicitation) => answer,
        };
        result(answer)
    }

    /// Room for one more question; none if there is none.
    fn admit(&self, call: &Call) -> Option<Open<'_>> {
        if call.asked.fetch_add(1, Ordering::Relaxed) >= MOST_ASKED {
            return None;
        }
        let has_room = self.open.send_if_modified(|open| {
            let has_room = *open < MOST_OPEN;
            *open += usize::from(has_room);
            has_room
        });
        has_room.then_some(Open(&self.open))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Call>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InCall<'_> {
    /// Waits until the call has taken this long. Time in which a person is asked does not count, for any call of
    /// the server: which of them it asks for is not known.
    pub async fn time_is_up(&self, limit: Duration) {
        let mut open = self.calls.open.subscribe();
        let mut left = limit;
        loop {
            drop(open.wait_for(|open| *open == 0).await);
            let began = Instant::now();
            let asked = async { drop(open.wait_for(|open| *open > 0).await) };
            tokio::select! {
                biased;
                () = asked => left = left.saturating_sub(began.elapsed()),
                () = tokio::time::sleep(left) => return,
            }
        }
    }
}

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        self.calls.lock().retain(|other| !Arc::ptr_eq(other, &self.call));
        self.call.over.cancel();
    }
}

/// A question that is open.
struct Open<'a>(&'a watch::Sender<usize>);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open = open.saturating_sub(1));
    }
}

/// What is said to the person, and what is wanted; none if it cannot be shown.
fn wanted(params: ElicitRequestParams) -> Option<(String, Wanted)> {
    match params {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            let schema = serde_json::to_value(requested_schema).ok()?;
            (schema.to_string().len() <= FORM_BYTES).then_some((message, Wanted::Form { schema }))
        }
        ElicitRequestParams::UrlElicitationParams { message, url, elicitation_id, .. } => {
            // Anything else could be a program that opening it would start.
            let address = reqwest::Url::parse(&url).ok()?;
            let is_web = matches!(address.scheme(), "http" | "https") && address.has_host();
            let is_short = url.len() + elicitation_id.len() <= URL_BYTES;
            (is_web && is_short)
                .then(|| (message, Wanted::Url { url: address.into(), id: clean(&elicitation_id) }))
        }
        _ => None,
    }
}

/// A server's words without anything that could move a cursor.
fn clean(text: &str) -> String {
    text.chars().filter(|one| matches!(one, '\n' | '\t') || !one.is_control()).take(MESSAGE_CHARS).collect()
}

fn declined() -> ElicitResult {
    ElicitResult::new(model::ElicitationAction::Decline)
}

fn result(answer: Elicited) -> ElicitResult {
    let action = match answer.action {
        ElicitationAction::Accept => model::ElicitationAction::Accept,
        ElicitationAction::Decline => model::ElicitationAction::Decline,
        ElicitationAction::Cancel => model::ElicitationAction::Cancel,
    };
    let result = ElicitResult::new(action);
    match answer.content {
        Some(content) if answer.action == ElicitationAction::Accept => result.with_content(content.0),
        _ => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use decurion_protocol::Private;
    use decurion_protocol::link::BoxFuture;
    use serde_json::{Value, json};
    use tokio::sync::oneshot;

    /// Somebody who answers when told to, and notes what was asked.
    #[derive(Default)]
    struct Somebody {
        asked: Mutex<Vec<(Elicitation, oneshot::Sender<Elicited>)>>,
    }

    impl Somebody {
        fn open(&self) -> usize {
            self.asked.lock().unwrap().iter().filter(|(_, waiting)| !waiting.is_closed()).count()
        }

        fn answer_all(&self, action: ElicitationAction) {
            for (_, waiting) in self.asked.lock().unwrap().drain(..) {
                let content = Some(Private(json!({"name": "x"})));
                let _ = waiting.send(Elicited { action, content });
            }
        }
    }

    impl Elicit for Somebody {
        fn ask(&self, elicitation: Elicitation) -> BoxFuture<'_, Elicited> {
            let (answer, answered) = oneshot::channel();
            self.asked.lock().unwrap().push((elicitation, answer));
            Box::pin(async move { answered.await.unwrap() })
        }
    }

    /// A server's calls, who is asked in their name, and what somebody was told of it.
    #[derive(Clone, Default)]
    struct Stage {
        calls: Arc<Calls>,
        somebody: Arc<Somebody>,
        told: Arc<Mutex<Vec<String>>>,
        taken_back: CancellationToken,
    }

    impl Stage {
        fn call(&self) -> InCall<'_> {
            let elicit = Arc::clone(&self.somebody) as Arc<dyn Elicit>;
            self.calls.begin(Some(&elicit))
        }

        /// The server asks; what it is told is for whoever waits for it.
        async fn asks(&self, params: Value) -> tokio::task::JoinHandle<Value> {
            let (stage, params) = (self.clone(), serde_json::from_value(params).unwrap());
            let asking = tokio::spawn(async move {
                let told = Arc::clone(&stage.told);
                let tell = move |text: &str| told.lock().unwrap().push(text.to_owned());
                let result = stage.calls.ask("s", params, &stage.taken_back, &tell).await;
                serde_json::to_value(result).unwrap()
            });
            tokio::task::yield_now().await;
            asking
        }
    }

    fn form() -> Value {
        json!({"mode": "form", "message": "m\u{1b}\u{7}e", "requestedSchema": {"type": "object", "properties": {}}})
    }

    fn url(url: &str) -> Value {
        json!({"mode": "url", "message": "m", "url": url, "elicitationId": "1"})
    }

    #[tokio::test]
    async fn the_answer_goes_back_and_only_an_accepted_form_with_it() {
        let stage = Stage::default();
        let _call = stage.call();
        for (action, told) in [
            (ElicitationAction::Accept, json!({"action": "accept", "content": {"name": "x"}})),
            (ElicitationAction::Decline, json!({"action": "decline"})),
            (ElicitationAction::Cancel, json!({"action": "cancel"})),
        ] {
            let asking = stage.asks(form()).await;
            assert_eq!(stage.somebody.asked.lock().unwrap()[0].0.message, "me");
            stage.somebody.answer_all(action);
            assert_eq!(asking.await.unwrap(), told);
        }
    }

    #[tokio::test]
    async fn a_server_that_works_on_nothing_or_wants_what_cannot_be_shown_is_declined() {
        let stage = Stage::default();
        let declined = json!({"action": "decline"});
        assert_eq!(stage.asks(form()).await.await.unwrap(), declined);
        let nobody = stage.calls.begin(None);
        assert_eq!(stage.asks(form()).await.await.unwrap(), declined);
        drop(nobody);
        let _call = stage.call();
        let long = format!("https://a.example/{}", "x".repeat(URL_BYTES));
        for address in ["file:///bin/sh", "javascript:alert(1)", "no address", &long] {
            assert_eq!(stage.asks(url(address)).await.await.unwrap(), declined, "{address}");
        }
        let title = "t".repeat(FORM_BYTES);
        let long =
            json!({"message": "m", "requestedSchema": {"type": "object", "title": title, "properties": {}}});
        assert_eq!(stage.asks(long).await.await.unwrap(), declined);
        assert_eq!(stage.somebody.open(), 0);
        let _asking = stage.asks(url("https://a.example/x?y=1")).await;
        let wanted = stage.somebody.asked.lock().unwrap()[0].0.wanted.clone();
        assert_eq!(wanted, Wanted::Url { url: "https://a.example/x?y=1".into(), id: "1".into() });
    }

    #[tokio::test]
    async fn what_was_asked_is_taken_back_with_the_call_or_by_the_server() {
        let cancelled = json!({"action": "cancel"});
        let stage = Stage::default();
        let call = stage.call();
        let asking = stage.asks(form()).await;
        assert_eq!(stage.somebody.open(), 1);
        drop(call);
        assert_eq!(asking.await.unwrap(), cancelled);
        assert_eq!(stage.somebody.open(), 0);

        let _call = stage.call();
        let asking = stage.asks(form()).await;
        stage.taken_back.cancel();
        assert_eq!(asking.await.unwrap(), cancelled);
        assert_eq!((stage.somebody.open(), *stage.calls.open.borrow()), (0, 0));
    }

    #[tokio::test]
    async fn a_server_of_several_calls_asks_for_the_last_that_began() {
        let stage = Stage::default();
        let other = Stage::default();
        let _first = stage.call();
        let second = Arc::clone(&other.somebody) as Arc<dyn Elicit>;
        let second = stage.calls.begin(Some(&second));
        let _asking = stage.asks(form()).await;
        assert_eq!((stage.somebody.open(), other.somebody.open()), (0, 1));
        assert_eq!(other.somebody.asked.lock().unwrap()[0].0.calls, 2);
        drop(second);
        let _asking = stage.asks(form()).await;
        assert_eq!(stage.somebody.asked.lock().unwrap()[0].0.calls, 1);
    }

    #[tokio::test]
    async fn a_flood_of_questions_is_declined_and_told_of_once() {
        let declined = json!({"action": "decline"});
        let stage = Stage::default();
        let call = stage.call();
        for _ in 0..MOST_OPEN {
            drop(stage.asks(form()).await);
        }
        assert_eq!(stage.asks(form()).await.await.unwrap(), declined, "one too many at once");
        assert_eq!(stage.somebody.open(), MOST_OPEN);
        stage.somebody.answer_all(ElicitationAction::Accept);
        drop(call);

        let call = stage.call();
        for _ in 0..MOST_ASKED {
            let asking = stage.asks(form()).await;
            stage.somebody.answer_all(ElicitationAction::Cancel);
            assert_eq!(asking.await.unwrap(), json!({"action": "cancel"}));
        }
        assert_eq!(stage.asks(form()).await.await.unwrap(), declined, "it has asked enough");
        assert_eq!(stage.told.lock().unwrap().len(), 1, "{:?}", stage.told);
        // Another call may ask again.
        drop(call);
        let _call = stage.call();
        let _asking = stage.asks(form()).await;
        assert_eq!(stage.somebody.open(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_call_stands_still_while_a_person_is_asked() {
        let second = Duration::from_secs(1);
        let stage = Stage::default();
        let call = stage.call();
        let began = Instant::now();
        let mut up = std::pin::pin!(call.time_is_up(10 * second));
        assert!(tokio::time::timeout(4 * second, &mut up).await.is_err());
        let asking = stage.asks(form()).await;
        assert!(tokio::time::timeout(3600 * second, &mut up).await.is_err(), "a person may take an hour");
        stage.somebody.answer_all(ElicitationAction::Accept);
        asking.await.unwrap();
        up.await;
        assert_eq!(began.elapsed(), 3610 * second);
    }
}
