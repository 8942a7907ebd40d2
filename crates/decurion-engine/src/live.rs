//! Who listens to a journal. Takes every event once it may be seen and holds it for each reader until it is taken, within
//! bounds that no reader can break: one that falls behind is given what it missed from the record, in order, once it
//! reads on. Of what is on no record it then keeps only what somebody waits for.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use decurion_protocol::link::BoxStream;
use decurion_protocol::size::size_of;
use decurion_protocol::{Delta, Envelope, Event, HostRequestId, Role, RunId};
use decurion_store::{Bookmark, Record};
use futures_util::stream;
use tokio::sync::Notify;

/// How many events are held for a reader that does not take them.
const MOST_EVENTS: usize = 4096;
/// How many bytes of them, as they would be printed.
const MOST_BYTES: usize = 4 << 20;
/// So many are held unweighed: weighing costs more than holding a few.
const UNWEIGHED: usize = 64;
/// How many requests are remembered as asked: more than a host ever has open.
const MOST_ASKED: usize = 1024;
/// Of an answer that is coming so many bytes are kept for those who come later.
const MOST_COMING: usize = 1 << 20;
/// How many bytes are read back from the record at once.
const PAGE: usize = 1 << 20;

/// The readers of a journal, and where they find what they missed.
pub(crate) struct Live {
    record: Arc<dyn Record>,
    readers: Mutex<Readers>,
}

#[derive(Default)]
struct Readers {
    queues: Vec<Weak<Queue>>,
    /// How the session stands, as was told last: no record says so to whoever comes later.
    stands: Option<Arc<Envelope>>,
    /// The answers that are coming, one for each agent at most: on record they are only once they are whole.
    coming: Vec<Coming>,
    /// The last durable event that was given out.
    last: u64,
}

/// An answer that is still coming, as far as it has come.
struct Coming {
    envelope: Envelope,
    /// Each part of it once, with all that came of it.
    parts: Vec<Delta>,
    bytes: usize,
}

impl Readers {
    /// Remembers what has come of answers, until they are on record or void.
    fn follow(&mut self, envelope: &Envelope) {
        if envelope.event.is_durable() {
            self.last = self.last.max(envelope.seq);
        }
        let is_its = |coming: &Coming| coming.envelope.agent == envelope.agent;
        match &envelope.event {
            Event::Delta { delta: Delta::Started { .. } } => {
                self.coming.retain(|coming| !is_its(coming));
                self.coming.push(Coming { envelope: envelope.clone(), parts: Vec::new(), bytes: 0 });
            }
            Event::Delta { delta: Delta::Discarded { .. } } | Event::RunEnded { .. } => {
                self.coming.retain(|coming| !is_its(coming));
            }
            Event::Message { message, .. } if message.role == Role::Assistant => {
                self.coming.retain(|coming| !is_its(coming));
            }
            Event::Delta { delta } => {
                let at = self.coming.iter().position(is_its);
                if at.is_some_and(|at| !self.coming[at].take(delta)) {
                    self.coming.retain(|coming| !is_its(coming));
                }
            }
            _ => {}
        }
    }
}

impl Coming {
    /// Takes the next part; false if there is too much of it.
    fn take(&mut self, delta: &Delta) -> bool {
        let more = match delta {
            Delta::Text { text, .. } | Delta::Thinking { text, .. } => text.len(),
            Delta::Input { json, .. } => json.len(),
            _ => 0,
        };
        self.bytes += more;
        let is_joined = match (self.parts.last_mut(), delta) {
            (Some(Delta::Text { index, text }), Delta::Text { index: same, text: more })
            | (Some(Delta::Thinking { index, text }), Delta::Thinking { index: same, text: more })
            | (Some(Delta::Input { index, json: text }), Delta::Input { index: same, json: more })
                if index == same =>
            {
                text.push_str(more);
                true
            }
            _ => false,
        };
        if !is_joined {
            self.parts.push(delta.clone());
        }
        self.bytes <= MOST_COMING
    }

    /// All of it, for someone who knows the durable events up to this number.
    fn events(&self, last: u64) -> impl Iterator<Item = Arc<Envelope>> {
        let envelope = move |event: Event| {
            let Envelope { at, agent, run, .. } = self.envelope.clone();
            Arc::new(Envelope { seq: last, at, agent, run, event })
        };
        let parts = self.parts.iter().map(|delta| Event::Delta { delta: delta.clone() });
        std::iter::once(self.envelope.event.clone()).chain(parts).map(envelope)
    }
}

impl Live {
    /// Nobody yet, over this record.
    pub fn new(record: Arc<dyn Record>) -> Self {
        Self { record, readers: Mutex::default() }
    }

    /// What is on record, for whoever reads it beside the one who writes.
    pub fn record(&self) -> Arc<dyn Record> {
        Arc::clone(&self.record)
    }

    /// Gives an event to everyone who listens, which nobody doing is not a failure.
    pub fn send(&self, envelope: &Arc<Envelope>) {
        let mut readers = self.lock();
        if matches!(envelope.event, Event::Quiet { .. }) {
            readers.stands = Some(Arc::clone(envelope));
        }
        readers.follow(envelope);
        readers.queues.retain(|reader| match reader.upgrade() {
            Some(queue) => {
                queue.push(Arc::clone(envelope));
                true
            }
            None => false,
        });
    }

    /// How the session stands, what has come of the answers that are still coming, and everything from now on, for someone who knows the durable events up to this number.
    pub fn subscribe(&self, last: u64) -> BoxStream<'static, Arc<Envelope>> {
        let queue = Arc::new(Queue::default());
        let mut readers = self.lock();
        readers.queues.push(Arc::downgrade(&queue));
        if let Some(stands) = &readers.stands {
            queue.push(Arc::new(Envelope { seq: last, ..(**stands).clone() }));
        }
        // Where more is on record than was given out, one of them may be whole there.
        if last <= readers.last {
            let coming = readers.coming.iter().flat_map(|coming| coming.events(last));
            coming.for_each(|envelope| queue.push(envelope));
        }
        drop(readers);
        let (record, page) = (Arc::clone(&self.record), VecDeque::new());
        let reader = Reader { queue, record, last, page, gap: None, bookmark: Bookmark::after(last) };
        Box::pin(stream::unfold(reader, |mut reader| async move {
            reader.next().await.map(|envelope| (envelope, reader))
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        for queue in self.lock().queues.iter().filter_map(Weak::upgrade) {
            queue.lock().is_over = true;
            queue.news.notify_one();
        }
    }
}

/// What one reader has not taken.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    news: Notify,
}

#[derive(Default)]
struct Waiting {
    /// Each with its weight.
    events: VecDeque<(Arc<Envelope>, usize)>,
    bytes: usize,
    /// The last event that is not held because it is on record; none while everything is held.
    skipped: Option<u64>,
    /// What its host was asked last, in the order it was given out.
    asked: VecDeque<HostRequestId>,
    /// The hooks that it was told of and whose end it has not heard.
    hooks: VecDeque<String>,
    /// Whether nobody is left who could say something.
    is_over: bool,
}

impl Queue {
    fn push(&self, envelope: Arc<Envelope>) {
        self.lock().push(envelope);
        self.news.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn push(&mut self, envelope: Arc<Envelope>) {
        if self.takes_back(&envelope.event) || self.asks_already(&envelope.event) {
            return;
        }
        if self.skipped.is_some() && !is_only_here(&envelope.event, &self.hooks) {
            if envelope.event.is_durable() {
                self.skipped = Some(envelope.seq);
            }
            return;
        }
        let weight = if self.events.len() < UNWEIGHED { 0 } else { size_of(&*envelope) };
        self.bytes += weight;
        let is_state = matches!(envelope.event, Event::Quiet { .. });
        self.events.push_back((envelope, weight));
        if is_state && self.skipped.is_some() {
            self.thin_states();
        }
        if self.skipped.is_none() && (self.events.len() > MOST_EVENTS || self.bytes > MOST_BYTES) {
            self.fall_behind();
        }
    }

    /// What was asked of a reader that has not heard of it, and is not asked any more, it need not hear of. What it has
    /// heard of may wait here once more, and then the copy goes and that it was taken back is told.
    fn takes_back(&mut self, event: &Event) -> bool {
        let Event::HostReleased { request: released } = event else { return false };
        let asks = |envelope: &Envelope| matches!(&envelope.event, Event::HostAsked { request } if request.id == *released);
        let at = self.events.iter().position(|(held, _)| asks(held));
        let is_held = at.and_then(|at| self.remove(at)).is_some();
        let heard = self.asked.iter().position(|asked| asked == released);
        is_held && heard.and_then(|at| self.asked.remove(at)).is_none()
    }

    /// Remembers what is given out.
    fn give(&mut self, event: &Event) {
        match event {
            Event::HostAsked { request } if !self.asked.contains(&request.id) => {
                remember(&mut self.asked, request.id);
            }
            Event::HookStarted { hook } => remember(&mut self.hooks, hook.id.clone()),
            Event::HookEnded { hook, .. } => self.hooks.retain(|id| *id != hook.id),
            _ => {}
        }
    }

    /// What is asked once more is the same request.
    fn asks_already(&self, event: &Event) -> bool {
        let Event::HostAsked { request } = event else { return false };
        let same = |held: &Envelope| matches!(&held.event, Event::HostAsked { request: other } if other.id == request.id);
        self.events.iter().any(|(held, _)| same(held))
    }

    fn remove(&mut self, at: usize) -> Option<Arc<Envelope>> {
        let (envelope, weight) = self.events.remove(at)?;
        self.bytes -= weight;
        Some(envelope)
    }

    /// Lets go of all that is on record, and of all that nobody waits for.
    fn fall_behind(&mut self) {
        let durable = |(held, _): &&(Arc<Envelope>, usize)| held.event.is_durable();
        self.skipped = self.events.iter().rev().find(durable).map(|(held, _)| held.seq);
        let hooks = &self.hooks;
        self.events.retain(|(held, _)| is_only_here(&held.event, hooks));
        self.bytes = self.events.iter().map(|(_, weight)| weight).sum();
        self.thin_states();
    }

    /// Of how the session stands keeps the newest, and where work began and was last seen: whoever is behind may take
    /// a session that rested in between for one that worked on, but never one that works for one that rests.
    fn thin_states(&mut self) {
        let states = self.events.iter().enumerate().filter_map(|(at, (held, _))| match held.event {
            Event::Quiet { quiet, .. } => Some((at, quiet)),
            _ => None,
        });
        let states: Vec<(usize, bool)> = states.collect();
        let mut working = states.iter().filter(|(_, quiet)| !quiet).map(|(at, _)| *at);
        let first = working.next();
        let kept = [first, working.next_back(), states.last().map(|(at, _)| *at)];
        for (at, _) in states.iter().rev().filter(|(at, _)| !kept.contains(&Some(*at))) {
            self.remove(*at);
        }
    }
}

/// Puts something last, and lets go of the first where there are too many.
fn remember<T>(known: &mut VecDeque<T>, new: T) {
    known.push_back(new);
    let spare = known.len().saturating_sub(MOST_ASKED);
    known.drain(..spare);
}

/// Whether somebody waits for an event, or for what comes of it, that no record can give back as it is: also for the
/// end of one of these hooks, whose beginning was told.
fn is_only_here(event: &Event, hooks: &VecDeque<String>) -> bool {
    match event {
        Event::HookEnded { hook, .. } => hooks.contains(&hook.id),
        Event::Replied { .. }
        | Event::Quiet { .. }
        | Event::HostAsked { .. }
        | Event::HostReleased { .. } => true,
        _ => event.on_record().is_some(),
    }
}

/// One reader's place in the stream.
struct Reader {
    queue: Arc<Queue>,
    record: Arc<dyn Record>,
    /// The last durable event given out.
    last: u64,
    /// What was read back from the record.
    page: VecDeque<Arc<Envelope>>,
    /// The number of what says there that something is missing.
    gap: Option<u64>,
    /// Where reading it goes on.
    bookmark: Bookmark,
}

/// What a reader does next.
enum Next {
    Give(Arc<Envelope>),
    /// Read the record up to here.
    Read(u64),
    Wait,
    End,
}

impl Reader {
    async fn next(&mut self) -> Option<Arc<Envelope>> {
        loop {
            match self.decide() {
                Next::Give(envelope) => return Some(envelope),
                Next::Read(until) => self.read(until).await,
                Next::Wait => self.queue.news.notified().await,
                Next::End => return None,
            }
        }
    }

    fn decide(&mut self) -> Next {
        let queue = Arc::clone(&self.queue);
        let mut waiting = queue.lock();
        loop {
            if waiting.skipped.is_some_and(|skipped| skipped <= self.last) && self.page.is_empty() {
                waiting.skipped = None;
            }
            // A transient event comes behind the durable one whose number it repeats.
            let held = waiting.events.front().filter(|(held, _)| match self.page.front() {
                Some(recorded) => {
                    held.seq < recorded.seq || (held.seq == recorded.seq && held.event.is_durable())
                }
                None => waiting.skipped.is_none() || held.seq <= self.last,
            });
            let is_held = held.is_some();
            let next = if is_held { waiting.remove(0) } else { self.page.pop_front() };
            match next {
                Some(gap) if !is_held && self.gap == Some(gap.seq) => {
                    self.gap = None;
                    self.last = self.last.max(gap.seq);
                    return Next::Give(gap);
                }
                Some(envelope) if !envelope.event.is_durable() => {
                    waiting.give(&envelope.event);
                    return Next::Give(envelope);
                }
                Some(envelope) if envelope.seq > self.last => {
                    self.last = envelope.seq;
                    return Next::Give(envelope);
                }
                // Given already.
                Some(_) => {}
                None => {
                    return match waiting.skipped {
                        Some(until) => Next::Read(until),
                        None if waiting.is_over => Next::End,
                        None => Next::Wait,
                    };
                }
            }
        }
    }

    /// Reads the next piece of what was missed.
    async fn read(&mut self, until: u64) {
        let (record, mut bookmark) = (Arc::clone(&self.record), std::mem::take(&mut self.bookmark));
        bookmark.after = self.last;
        let read = tokio::task::spawn_blocking(move || {
            let (mut page, mut bytes) = (VecDeque::new(), 0);
            let read = record.read_on(&mut bookmark, until, &mut |envelope| {
                bytes += size_of(&envelope);
                page.push_back(Arc::new(envelope));
                if bytes < PAGE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            (read.err(), page, bookmark)
        });
        let failed = match read.await {
            Ok((failed, page, bookmark)) => {
                (self.page, self.bookmark) = (page, bookmark);
                let lost = self.bookmark.lost.take().filter(|_| !self.page.is_empty());
                if let Some(lost) = lost {
                    self.page.push_front(Arc::new(gap(self.last + 1, lost, "only the newest are kept")));
                    self.gap = Some(lost);
                }
                failed.map_or_else(|| "they are not there".to_owned(), |error| error.to_string())
            }
            Err(error) => error.to_string(),
        };
        if self.page.is_empty() {
            // What is held of them is given before it.
            self.page.push_back(Arc::new(gap(self.last + 1, until, &failed)));
            self.gap = Some(until);
        }
    }
}

/// What stands where events are missing: nobody may take the rest for the whole.
fn gap(from: u64, until: u64, why: &str) -> Envelope {
    let text = format!("events {from} to {until} could not be read back from the record: {why}");
    let event = Event::Notice { level: "error".to_owned(), text };
    let (at, run) = (jiff::Timestamp::UNIX_EPOCH, RunId(uuid::Uuid::nil()));
    Envelope { seq: until, at, agent: None, run, event }
}

#[cfg(test)]
mod tests {
    use super::*;
    use decurion_protocol::{HookRun, HostAsked, HostRequest, Reply, RequestId, Usage};
    use decurion_store::{Journal as _, MemoryJournal};
    use futures_util::FutureExt as _;
    use futures_util::StreamExt as _;

    /// A journal whose events are all shown at once.
    struct Shown {
        store: MemoryJournal,
        live: Live,
        seq: u64,
    }

    impl Shown {
        fn new() -> Self {
            let store = MemoryJournal::new(usize::MAX);
            Self { live: Live::new(store.record()), store, seq: 0 }
        }

        fn say(&mut self, text: &str) {
            self.seq += 1;
            let event = Event::Notice { level: "info".to_owned(), text: text.to_owned() };
            self.write(event);
        }

        fn write(&mut self, event: Event) {
            let envelope = self.envelope(event);
            self.store.append(std::slice::from_ref(&envelope)).unwrap();
            self.live.send(&Arc::new(envelope));
        }

        fn publish(&self, event: Event) {
            self.live.send(&Arc::new(self.envelope(event)));
        }

        fn reply(&self, request: u64) {
            let reply = Reply::Refused { reason: String::new() };
            self.publish(Event::Replied { request: RequestId(request), reply });
        }

        fn envelope(&self, event: Event) -> Envelope {
            let run = RunId(uuid::Uuid::nil());
            Envelope { seq: self.seq, at: jiff::Timestamp::UNIX_EPOCH, agent: None, run, event }
        }
    }

    fn progress() -> Event {
        Event::Waiting { reason: None }
    }

    /// What a reader is given until nothing is left, in short.
    async fn all(events: &mut BoxStream<'static, Arc<Envelope>>, shown: Shown) -> Vec<String> {
        drop(shown);
        let mut given = Vec::new();
        while let Some(envelope) = events.next().await {
            given.push(match &envelope.event {
                Event::Notice { text, .. } => text.chars().take(60).collect(),
                Event::Replied { request, .. } => format!("reply {}", request.0),
                Event::HostAsked { .. } => "asked".to_owned(),
                Event::HostReleased { .. } => "released".to_owned(),
                Event::Quiet { quiet: true, .. } => "rests".to_owned(),
                Event::Quiet { queued, .. } => format!("works, {queued}"),
                other => format!("{other:?}"),
            });
        }
        given
    }

    #[tokio::test]
    async fn a_reader_that_falls_behind_is_given_all_that_is_on_record_and_every_reply_in_its_place() {
        let mut shown = Shown::new();
        let mut events = shown.live.subscribe(0);
        let mut wanted = Vec::new();
        let long = "x".repeat(1000);
        for index in 0..12_000 {
            let text = format!("{index} {long}");
            shown.say(&text);
            wanted.push(text.chars().take(60).collect::<String>());
            shown.publish(progress());
            if index % 1000 == 7 {
                shown.reply(index);
                wanted.push(format!("reply {index}"));
            }
            if index == 9_000 {
                // It reads a little in between.
                for _ in 0..10 {
                    events.next().await;
                }
            }
        }
        wanted.drain(..10);
        let given = all(&mut events, shown).await;
        assert_eq!(given, wanted);
    }

    #[tokio::test]
    async fn a_reader_that_falls_behind_is_told_when_work_began_and_how_it_stands_now() {
        let mut shown = Shown::new();
        let mut events = shown.live.subscribe(0);
        for index in 0..3u32 {
            shown.publish(Event::Quiet { quiet: false, queued: 2 - index });
            for part in 0..3000 {
                shown.say(&format!("{index} {part}"));
            }
            shown.publish(Event::Quiet { quiet: true, queued: 2 - index });
        }
        let queue = shown.live.lock().queues[0].upgrade().unwrap();
        assert_eq!(queue.lock().events.len(), 3);
        drop(queue);
        let given = all(&mut events, shown).await;
        let states = given.iter().enumerate().filter(|(_, line)| !line.contains(' ') || line.contains(','));
        let states: Vec<(usize, &str)> = states.map(|(at, line)| (at, line.as_str())).collect();
        assert_eq!(states, [(0, "works, 2"), (6001, "works, 0"), (9002, "rests")]);
    }

    #[tokio::test]
    async fn whoever_comes_later_is_told_how_the_session_stands() {
        let mut shown = Shown::new();
        shown.publish(Event::Quiet { quiet: false, queued: 1 });
        shown.say("before");
        let mut events = shown.live.subscribe(shown.seq);
        shown.say("after");
        assert_eq!(all(&mut events, shown).await, ["works, 1", "after"]);
    }

    #[tokio::test]
    async fn whoever_comes_later_is_given_what_has_come_of_an_answer() {
        let mut shown = Shown::new();
        let delta = |delta| Event::Delta { delta };
        let text = |text: &str| delta(Delta::Text { index: 0, text: text.to_owned() });
        let started = || {
            let (message_id, model) = ("m".to_owned(), "m".to_owned());
            delta(Delta::Started { message_id, model, usage: Usage::default() })
        };
        shown.say("before");
        shown.publish(started());
        ["One ", "two ", "three."].map(text).into_iter().for_each(|event| shown.publish(event));
        // What others do meanwhile changes nothing.
        shown.say("aside");
        let mut events = shown.live.subscribe(shown.seq);
        shown.publish(text(" Four."));
        let mut given = Vec::new();
        for _ in 0..3 {
            let next = events.next().now_or_never().flatten();
            given.push(next.expect("nothing more is there").event.clone());
        }
        assert_eq!(given, [started(), text("One two three."), text(" Four.")]);
        // What was void or is too long is not given, and neither is what may be whole on record already.
        let next = |shown: &Shown, last| shown.live.subscribe(last).next().now_or_never();
        assert!(next(&shown, shown.seq + 1).is_none());
        shown.publish(delta(Delta::Discarded { reason: "r".to_owned() }));
        assert!(next(&shown, shown.seq).is_none());
        shown.publish(started());
        assert!(next(&shown, shown.seq).is_some());
        shown.publish(text(&"x".repeat(MOST_COMING + 1)));
        assert!(next(&shown, shown.seq).is_none());
    }

    #[tokio::test]
    async fn what_is_held_for_a_reader_that_reads_nothing_is_bounded() {
        let mut shown = Shown::new();
        let events = shown.live.subscribe(0);
        let queue = shown.live.lock().queues[0].upgrade().unwrap();
        let long = "x".repeat(100_000);
        for _ in 0..200 {
            shown.say(&long);
            let held = queue.lock().events.len();
            assert!(held * 100_000 <= MOST_BYTES + (UNWEIGHED + 1) * 100_000, "{held}");
        }
        for _ in 0..3 * MOST_EVENTS {
            shown.publish(progress());
            assert!(queue.lock().events.len() <= MOST_EVENTS);
        }
        drop((events, queue));
        shown.say("nobody");
        assert!(shown.live.lock().queues.is_empty());
    }

    #[tokio::test]
    async fn what_is_asked_of_a_host_arrives_unless_it_is_taken_back_before() {
        let mut shown = Shown::new();
        let mut events = shown.live.subscribe(0);
        let asked = |number: u128| {
            let asked = HostAsked::Hook { callback: String::new(), input: Default::default(), call: None };
            let id = decurion_protocol::HostRequestId(uuid::Uuid::from_u128(number));
            (id, Event::HostAsked { request: Box::new(HostRequest { id, asked }) })
        };
        for index in 0..10_000 {
            shown.say(&format!("{index}"));
        }
        let ((moot, first), (_, second)) = (asked(1), asked(2));
        shown.publish(first);
        shown.publish(second.clone());
        // Said once more, for those who may have missed it.
        shown.publish(second);
        shown.publish(Event::HostReleased { request: moot });
        shown.publish(progress());
        let given = all(&mut events, shown).await;
        assert_eq!((given.len(), given.last().map(String::as_str)), (10_001, Some("asked")));
    }

    #[tokio::test]
    async fn what_a_host_was_asked_is_taken_back_also_while_it_waits_to_be_asked_again() {
        let shown = Shown::new();
        let mut events = shown.live.subscribe(0);
        let id = HostRequestId(uuid::Uuid::from_u128(1));
        let asked = HostAsked::Hook { callback: String::new(), input: Default::default(), call: None };
        let asked = Event::HostAsked { request: Box::new(HostRequest { id, asked }) };
        shown.publish(asked.clone());
        assert_eq!(events.next().await.unwrap().event, asked);
        shown.publish(asked);
        shown.publish(Event::HostReleased { request: id });
        assert_eq!(all(&mut events, shown).await, ["released"]);
    }

    #[tokio::test]
    async fn a_reader_that_falls_behind_hears_the_end_of_what_it_heard_begin_and_of_nothing_else() {
        let hook = |id: &str| {
            let hook = HookRun { id: id.to_owned(), event: "Stop".to_owned(), name: "Stop".to_owned() };
            (Event::HookStarted { hook: hook.clone() }, Event::hook_cancelled(hook))
        };
        let ([heard, unheard, later], mut shown) = (["heard", "unheard", "later"].map(hook), Shown::new());
        let mut events = shown.live.subscribe(0);
        shown.publish(heard.0.clone());
        assert_eq!(events.next().await.unwrap().event, heard.0);
        shown.publish(unheard.0);
        for index in 0..5000 {
            shown.say(&format!("{index}"));
        }
        for event in [unheard.1, later.0, later.1, heard.1.clone()] {
            shown.publish(event);
        }
        let given = all(&mut events, shown).await;
        assert_eq!((given.len(), given.last()), (5001, Some(&format!("{:?}", heard.1))));
    }

    #[tokio::test]
    async fn what_the_record_does_not_give_back_is_named() {
        let mut shown = Shown::new();
        shown.store = MemoryJournal::new(100);
        let mut events = shown.live.subscribe(0);
        // The record that the readers have is another one, and empty.
        for index in 0..5000 {
            shown.say(&format!("{index}"));
        }
        shown.reply(1);
        let given = all(&mut events, shown).await;
        assert_eq!(given, ["events 1 to 5000 could not be read back from the record: the", "reply 1"]);
    }

    /// A question that the record does not have as it is, written and shown.
    fn ask_to_go_there(shown: &mut Shown) {
        let question = serde_json::json!({
            "id": uuid::Uuid::nil(), "call": "c", "tool": "t", "input": {}, "reason": "r",
            "intent": decurion_protocol::Intent::titled("t"), "suggestions": [],
            "elicitation": {"server": "s", "message": "m", "calls": 1,
                "mode": "url", "url": "https://login.example/?key", "elicitation_id": "v"},
        });
        shown.seq += 1;
        let asked = shown.envelope(Event::Asked { question: serde_json::from_value(question).unwrap() });
        let recorded = Envelope { event: asked.event.on_record().unwrap(), ..asked.clone() };
        shown.store.append(&[recorded]).unwrap();
        shown.live.send(&Arc::new(asked));
    }

    #[tokio::test]
    async fn what_a_session_without_a_record_has_let_go_of_is_named() {
        let mut shown = Shown::new();
        shown.store = MemoryJournal::new(2);
        shown.live = Live::new(shown.store.record());
        let mut events = shown.live.subscribe(0);
        for index in 0..5000 {
            shown.say(&format!("{index}"));
        }
        shown.reply(1);
        let given = all(&mut events, shown).await;
        let lost = "events 1 to 4998 could not be read back from the record: onl";
        assert_eq!(given, [lost, "4998", "4999", "reply 1"]);
    }

    #[tokio::test]
    async fn what_is_held_is_given_where_the_record_cannot_be_read() {
        let mut shown = Shown::new();
        shown.store = MemoryJournal::new(100);
        let mut events = shown.live.subscribe(0);
        for index in 0..5000 {
            shown.say(&format!("{index}"));
        }
        ask_to_go_there(&mut shown);
        shown.say("after");
        let given = all(&mut events, shown).await;
        assert_eq!(given.len(), 2, "{given:?}");
        assert!(given[0].starts_with("Asked") && given[0].contains("/?key"), "{given:?}");
        assert!(given[1].contains("could not be read back"), "{given:?}");
    }

    #[tokio::test]
    async fn a_question_that_is_not_whole_on_record_is_given_whole_and_once() {
        let mut shown = Shown::new();
        let mut events = shown.live.subscribe(0);
        for index in 0..5000 {
            shown.say(&format!("{index}"));
        }
        ask_to_go_there(&mut shown);
        shown.say("after");
        let given = all(&mut events, shown).await;
        let asked: Vec<&String> = given.iter().filter(|line| line.starts_with("Asked")).collect();
        assert_eq!((given.len(), asked.len()), (5002, 1));
        assert!(asked[0].contains("/?key"), "{asked:?}");
    }
}
