//! The one way to a provider. A request comes in; the reply's events go out, between them the waits, and at the end
//! either a complete reply or the error that could not be waited out.
//!
//! All waiting, limiting and retrying of the whole program is here. A reply that fails is requested again from the
//! beginning, and the parts that were shown are declared void; a complete reply is never requested again. Every wait
//! has a deadline or an announced end, and dropping the stream ends it at once. With a patience, refusals are waited
//! out only for that time, unless the provider answers other requests meanwhile.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use decurion_protocol::Delta;
use decurion_protocol::event::WaitReason;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::limiter::{Limiter, QueuedRequest, RequestPermit, WaitCause, Woken};
use crate::{
    Dialect, ModelError, ModelEvent, ModelProvider, ModelRequest, ReplyInfo, Said, StallKind, VainWait,
    WireHead,
};

pub use crate::limiter::Load;

/// What comes out of a gateway.
#[derive(Clone, Debug, PartialEq)]
pub enum GatewayEvent {
    /// A piece of the reply. [`ModelEvent::Accepted`] and [`ModelEvent::Alive`] stay inside.
    Model(ModelEvent),
    /// Nothing comes for a while, and why. A later one replaces it.
    Waiting(WaitReason),
    /// The wait is over.
    Resumed,
    /// The request is sent when the next event is polled.
    Sending,
    /// A try of the request that the provider has not refused gave no reply: everything shown of it is void, and it may
    /// be billed.
    Discarded {
        reason: String,
        /// Whether anything of it was shown.
        shown: bool,
        /// Whether it ended by a silence, in which the model may have worked unseen.
        stalled: bool,
        /// Whether it is retried; if not, the error follows.
        again: bool,
    },
    /// Another model answers from here on.
    FellBack {
        /// The one asked for.
        from: String,
        /// The one that answers.
        to: String,
    },
}

/// How patient a gateway is.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewaySettings {
    /// The longest time until the first event of a reply. A server may read for minutes before it begins.
    pub first_event: Duration,
    /// The longest silence after that. Anything is a sign of life, keep-alives too: many models think unseen.
    pub idle: Duration,
    /// The longest time without content, even if other events arrive.
    pub content: Duration,
    /// The longest time one turn may be under way, all its tries together, waits left out.
    pub turn: Duration,
    /// How often a request is tried when the provider or the way to it fails.
    pub tries: u32,
    /// How long it is tried.
    pub retry_time: Duration,
    /// How often a request is tried whose answers make no sense.
    pub malformed_tries: u32,
    /// The bound of the first wait; it doubles each time.
    pub backoff: Duration,
    /// The bound of the longest.
    pub longest_backoff: Duration,
    /// After how many overloads in a row the fallback model is asked.
    pub overloads_before_fallback: u32,
    /// How long a provider may refuse everything for a model before a request for it is given up; none waits for ever.
    pub patience: Option<Duration>,
    /// The provider's name, for people.
    pub provider: String,
    /// Where its key comes from and how to change it, for people.
    pub key_source: Option<String>,
    /// What the waits' chance begins with.
    pub seed: u64,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            first_event: Duration::from_mins(5),
            idle: Duration::from_mins(5),
            content: Duration::from_mins(20),
            turn: Duration::from_mins(30),
            tries: 10,
            retry_time: Duration::from_mins(10),
            malformed_tries: 3,
            backoff: Duration::from_millis(500),
            longest_backoff: Duration::from_secs(32),
            overloads_before_fallback: 3,
            patience: None,
            key_source: None,
            provider: String::new(),
            seed: 0,
        }
    }
}

/// The gateway to one provider with one key; clones are the same gateway. It has a limiter for each model.
#[derive(Clone)]
pub struct Gateway {
    inner: Arc<GatewayState>,
}

struct GatewayState {
    provider: Arc<dyn ModelProvider>,
    settings: GatewaySettings,
    limiters: Mutex<HashMap<String, Limiter>>,
    tickets: AtomicU64,
}

impl Gateway {
    /// A gateway to this provider. Make one for each key: what shares a key must share its gateway.
    pub fn new(provider: Arc<dyn ModelProvider>, settings: GatewaySettings) -> Self {
        let limiters = Mutex::new(HashMap::new());
        Self { inner: Arc::new(GatewayState { provider, settings, limiters, tickets: AtomicU64::new(0) }) }
    }

    /// How the provider wants heads and messages written.
    pub fn dialect(&self) -> Dialect {
        self.inner.provider.dialect()
    }

    /// Asks, and keeps asking as far as it makes sense. The stream ends after [`ModelEvent::Completed`], or
    /// with one `Err` as its last item.
    pub fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<GatewayEvent, ModelError>> {
        let turn = self.turn(request);
        stream::unfold(turn, |mut turn| async move { Some((turn.next().await?, turn)) }).boxed()
    }

    /// The same as something that can be changed between its tries.
    pub fn turn(&self, request: ModelRequest) -> ModelTurn {
        ModelTurn::new(self.inner.clone(), request)
    }

    /// What is under way and what waits, by model.
    pub fn load(&self) -> Vec<(String, Load)> {
        let limiters = self.inner.limiters.lock().unwrap_or_else(PoisonError::into_inner);
        let mut loads: Vec<_> = limiters.iter().map(|(model, one)| (model.clone(), one.load())).collect();
        loads.sort_by(|one, other| one.0.cmp(&other.0));
        loads
    }
}

impl GatewayState {
    fn limiter(&self, model: &str) -> Limiter {
        let mut limiters = self.limiters.lock().unwrap_or_else(PoisonError::into_inner);
        limiters.entry(model.to_owned()).or_default().clone()
    }
}

/// One request on its way to one reply.
pub struct ModelTurn {
    gateway: Arc<GatewayState>,
    request: ModelRequest,
    ticket: u64,
    chance: Chance,
    phase: Phase,
    /// Events to send before the phase continues.
    out: VecDeque<GatewayEvent>,
    /// Whether the last thing said about waiting was that we wait.
    waiting: bool,
    /// Whether something of the reply under way was shown.
    shown: bool,
    count: Tries,
}

enum Phase {
    /// About to stand in line.
    Ready,
    Queued {
        waiter: QueuedRequest,
        told: Option<WaitCause>,
    },
    Resting {
        until: Instant,
    },
    /// It is our turn; the request is sent when the next event is polled.
    Admitted(RequestPermit),
    Streaming(Box<Try>),
    /// Out of patience; the error is still to be said.
    Failed(ModelError),
    Over,
}

struct Try {
    stream: BoxStream<'static, Result<ModelEvent, ModelError>>,
    permit: RequestPermit,
    started: Instant,
    /// When something last came, or it began.
    heard_at: Instant,
    /// Whether that was more than the head of the response.
    begun: bool,
    /// When something of substance last came, or it began.
    content_at: Instant,
    request_id: Option<String>,
    /// Whether anything of the reply itself has come.
    answered: bool,
    blocks: usize,
}

/// What has been tried.
#[derive(Default)]
struct Tries {
    attempts: u32,
    faults: u32,
    malformed: u32,
    empty: u32,
    overloads: u32,
    /// When the model was first refused, and the last message.
    refused: Option<(Instant, u16, Said)>,
    /// Time spent under way in all tries.
    active: Duration,
    /// Time spent since the first fault, waiting in line left out.
    failing: Duration,
}

/// What to do after a failed try.
enum AfterFailure {
    GiveUp,
    /// Stand in line again; the limiter knows for how long.
    Requeue,
    /// Rest this long first; so many tries there may be.
    Rest(Duration, u32),
}

/// The result of a turn.
pub type TurnItem = Result<GatewayEvent, ModelError>;

impl ModelTurn {
    fn new(gateway: Arc<GatewayState>, request: ModelRequest) -> Self {
        let ticket = gateway.tickets.fetch_add(1, Ordering::Relaxed);
        let chance = Chance::new(gateway.settings.seed, &request.tag.path, ticket);
        Self {
            gateway,
            request,
            ticket,
            chance,
            phase: Phase::Ready,
            out: VecDeque::new(),
            waiting: false,
            shown: false,
            count: Tries::default(),
        }
    }

    /// Leaves the provider's queue, and joins it again when the next event is polled. A request that waits for anything
    /// else must not block others.
    pub fn step_aside(&mut self) {
        if matches!(self.phase, Phase::Queued { .. } | Phase::Admitted(_)) {
            self.phase = Phase::Ready;
            self.out.retain(|event| *event != GatewayEvent::Sending);
        }
    }

    /// Asks with this head from the next try on; the model stays the one that is asked now.
    pub fn set_head(&mut self, head: &WireHead) {
        self.request.head = Arc::new(head.with_model(&self.request.head.model));
    }

    /// The next of what [`Gateway::stream`] gives.
    pub async fn next(&mut self) -> Option<TurnItem> {
        loop {
            if let Some(event) = self.out.pop_front() {
                return Some(Ok(event));
            }
            match &mut self.phase {
                Phase::Ready => self.stand_in_line(),
                Phase::Queued { .. } => self.wait_for_turn().await,
                Phase::Resting { until } => {
                    sleep_until(*until).await;
                    self.phase = Phase::Ready;
                }
                Phase::Admitted(_) => self.send(),
                Phase::Streaming(_) => self.read().await,
                Phase::Failed(_) => {
                    let failed = std::mem::replace(&mut self.phase, Phase::Over);
                    return match failed {
                        Phase::Failed(error) => Some(Err(error)),
                        _ => None,
                    };
                }
                Phase::Over => return None,
            }
        }
    }

    fn stand_in_line(&mut self) {
        let limiter = self.gateway.limiter(&self.request.head.model);
        let mut waiter = limiter.queue(&self.request.tag, self.ticket);
        match waiter.try_take() {
            Some(permit) => self.admit(permit),
            None => self.phase = Phase::Queued { waiter, told: None },
        }
    }

    async fn wait_for_turn(&mut self) {
        let Phase::Queued { waiter, told } = &mut self.phase else { return };
        let why = waiter.why();
        if let WaitCause::Paused(until) = why
            && let Some(error) = out_of_patience(&self.gateway, &self.request, &mut self.count, until)
        {
            self.phase = Phase::Failed(error);
            return;
        }
        if *told != Some(why) {
            *told = Some(why);
            let reason = self.reason(why);
            return self.tell_waiting(reason);
        }
        if let Woken::Admitted(permit) = waiter.wait().await {
            self.admit(permit);
        }
    }

    fn reason(&self, why: WaitCause) -> WaitReason {
        match why {
            WaitCause::Behind(ahead) => WaitReason::Turn { ahead: u32::try_from(ahead).unwrap_or(u32::MAX) },
            WaitCause::Paused(until) => WaitReason::Retry {
                attempt: self.count.attempts + 1,
                of: None,
                delay_ms: milliseconds(until.saturating_duration_since(Instant::now())),
                status: Some(429),
                error: "the provider asked us to wait".to_owned(),
                rate_limited: true,
            },
        }
    }

    fn admit(&mut self, permit: RequestPermit) {
        if std::mem::take(&mut self.waiting) {
            self.out.push_back(GatewayEvent::Resumed);
        }
        self.out.push_back(GatewayEvent::Sending);
        self.phase = Phase::Admitted(permit);
    }

    /// Sends the request. The provider's time begins here and not before: putting on record that it is sent can take
    /// long.
    fn send(&mut self) {
        let Phase::Admitted(permit) = std::mem::replace(&mut self.phase, Phase::Over) else { return };
        self.count.attempts += 1;
        self.shown = false;
        let now = Instant::now();
        self.phase = Phase::Streaming(Box::new(Try {
            stream: self.gateway.provider.stream(self.request.clone()),
            permit,
            started: now,
            heard_at: now,
            begun: false,
            content_at: now,
            request_id: None,
            answered: false,
            blocks: 0,
        }));
    }

    async fn read(&mut self) {
        let Phase::Streaming(attempt) = &mut self.phase else { return };
        let (deadline, kind, limit) = attempt.deadline(&self.gateway.settings, self.count.active);
        let item = timeout_at(deadline, attempt.stream.next()).await;
        match item {
            Ok(Some(Ok(event))) => self.take(event),
            Ok(Some(Err(error))) => self.failed(error),
            Ok(None) => self.failed(ModelError::reset("the reply stopped without an end")),
            Err(_) => {
                let request_id = attempt.request_id.clone();
                self.failed(ModelError::Stalled { what: kind, after: limit, request_id });
            }
        }
    }

    fn take(&mut self, event: ModelEvent) {
        let Phase::Streaming(attempt) = &mut self.phase else { return };
        attempt.note(&event);
        match event {
            ModelEvent::Accepted(accepted) => {
                attempt.permit.limited(&accepted.limits);
                attempt.request_id = accepted.request_id;
                return;
            }
            ModelEvent::Alive => return,
            ModelEvent::Completed(reply)
                if attempt.blocks == 0 && self.count.empty == 0 && may_ask_again(&reply) =>
            {
                return self.failed(ModelError::Empty { request_id: reply.request_id });
            }
            ModelEvent::Completed(_) => self.phase = Phase::Over,
            ModelEvent::Block { .. } => self.count.overloads = 0,
            ModelEvent::Delta(_) => {}
        }
        self.shown = true;
        self.out.push_back(GatewayEvent::Model(event));
    }

    /// A try is over without a reply: what was shown is void, and either there is another or it was the last.
    fn failed(&mut self, error: ModelError) {
        let Phase::Streaming(attempt) = std::mem::replace(&mut self.phase, Phase::Over) else { return };
        let Try { permit, started, request_id, .. } = *attempt;
        let error = error
            .with_request_id(request_id.as_deref())
            .with_key_source(self.gateway.settings.key_source.as_deref());
        let spent = started.elapsed();
        self.count.active += spent;
        if self.count.faults > 0 {
            self.count.failing += spent;
        }
        tracing::debug!(path = self.request.tag.path, attempt = self.count.attempts, %error, "a model request failed");
        let next = self.judge(&error);
        let shown = std::mem::take(&mut self.shown);
        if shown || !error.is_refusal() {
            let again = !matches!(next, AfterFailure::GiveUp);
            let stalled = matches!(error, ModelError::Stalled { .. });
            self.out.push_back(GatewayEvent::Discarded { reason: error.to_string(), shown, stalled, again });
        }
        match next {
            AfterFailure::GiveUp => self.phase = Phase::Failed(error),
            AfterFailure::Requeue => self.requeue(&error, permit),
            AfterFailure::Rest(delay, of) => {
                drop(permit);
                self.rest(&error, delay, of);
            }
        }
    }

    fn judge(&mut self, error: &ModelError) -> AfterFailure {
        let settings = &self.gateway.settings;
        match error {
            ModelError::Busy { retry: false, .. }
            | ModelError::Impatient { .. }
            | ModelError::Failed { retry: false, .. }
            | ModelError::Stalled { what: StallKind::Turn, .. }
            | ModelError::TooLong { .. }
            | ModelError::Unauthorized { .. }
            | ModelError::ModelNotFound { .. }
            | ModelError::Rejected { .. }
            | ModelError::Misconfigured { .. } => AfterFailure::GiveUp,
            ModelError::Busy { .. } => AfterFailure::Requeue,
            ModelError::Failed { .. }
            | ModelError::Unreachable { .. }
            | ModelError::Reset { .. }
            | ModelError::Stalled { .. } => {
                self.count.faults += 1;
                let asked = match error {
                    ModelError::Failed { after, .. } => after.unwrap_or_default(),
                    _ => Duration::ZERO,
                };
                let delay = self.chance.backoff(settings, self.count.faults - 1).max(asked);
                let in_time = self.count.failing + delay <= settings.retry_time;
                if self.count.faults < settings.tries && in_time {
                    AfterFailure::Rest(delay, settings.tries)
                } else {
                    AfterFailure::GiveUp
                }
            }
            ModelError::Malformed { .. } => {
                self.count.malformed += 1;
                if self.count.malformed < settings.malformed_tries {
                    let delay = self.chance.backoff(settings, self.count.malformed - 1);
                    AfterFailure::Rest(delay, settings.malformed_tries)
                } else {
                    AfterFailure::GiveUp
                }
            }
            ModelError::Empty { .. } => {
                self.count.empty += 1;
                AfterFailure::Rest(Duration::ZERO, 2)
            }
        }
    }

    /// The provider's limit: everyone who asks for this model waits, and we stay where we are in the line.
    fn requeue(&mut self, error: &ModelError, permit: RequestPermit) {
        let ModelError::Busy { after, status, said, .. } = error else { return };
        let (settings, chance) = (&self.gateway.settings, &mut self.chance);
        permit.throttled(*after, |refusals| chance.backoff(settings, refusals));
        if *status == 529 {
            self.count.overloads += 1;
        }
        self.phase = Phase::Ready;
        if self.count.overloads >= settings.overloads_before_fallback && self.fall_back() {
            return;
        }
        let now = Instant::now();
        let since = self.count.refused.as_ref().map_or(now, |(since, ..)| *since);
        self.count.refused = Some((since, *status, said.clone()));
        let limiter = self.gateway.limiter(&self.request.head.model);
        let until = limiter.paused_until(now).unwrap_or(now);
        if let Some(error) = out_of_patience(&self.gateway, &self.request, &mut self.count, until) {
            self.phase = Phase::Failed(error);
            return;
        }
        let mut waiter = limiter.queue(&self.request.tag, self.ticket);
        if let Some(permit) = waiter.try_take() {
            return self.admit(permit);
        }
        let why = waiter.why();
        let delay = until.saturating_duration_since(now);
        self.phase = Phase::Queued { waiter, told: Some(why) };
        self.tell_waiting(self.retry_reason(error, delay, None));
    }

    /// Changes to the next fallback model, each once.
    fn fall_back(&mut self) -> bool {
        let Some(all) = self.request.fallback.take() else { return false };
        let mut names = all.split(',').map(str::trim);
        let is_other = |name: &&str| !name.is_empty() && *name != self.request.head.model;
        let Some(to) = names.find(is_other).map(str::to_owned) else { return false };
        let rest = names.collect::<Vec<_>>().join(",");
        self.request.fallback = Some(rest).filter(|rest| !rest.is_empty());
        let from = self.request.head.model.clone();
        self.request.head = Arc::new(self.request.head.with_model(&to));
        (self.count.overloads, self.count.refused) = (0, None);
        self.out.push_back(GatewayEvent::FellBack { from, to });
        true
    }

    fn rest(&mut self, error: &ModelError, delay: Duration, of: u32) {
        self.count.failing += delay;
        self.phase = Phase::Resting { until: Instant::now() + delay };
        self.tell_waiting(self.retry_reason(error, delay, Some(of)));
    }

    fn retry_reason(&self, error: &ModelError, delay: Duration, of: Option<u32>) -> WaitReason {
        WaitReason::Retry {
            attempt: self.count.attempts + 1,
            of,
            delay_ms: milliseconds(delay),
            status: error.status(),
            error: error.to_string(),
            rate_limited: matches!(error, ModelError::Busy { .. }),
        }
    }

    fn tell_waiting(&mut self, reason: WaitReason) {
        self.waiting = true;
        self.out.push_back(GatewayEvent::Waiting(reason));
    }
}

impl Try {
    /// Until when the next event must come, what it would otherwise be called, and the limit that says so.
    fn deadline(&self, settings: &GatewaySettings, active: Duration) -> (Instant, StallKind, Duration) {
        let (silence, limit) = if self.begun {
            (StallKind::Sign, settings.idle)
        } else {
            (StallKind::FirstEvent, settings.first_event)
        };
        let deadlines = [
            (self.heard_at + limit, silence, limit),
            (self.content_at + settings.content, StallKind::Content, settings.content),
            (self.started + settings.turn.saturating_sub(active), StallKind::Turn, settings.turn),
        ];
        deadlines.into_iter().min_by_key(|(at, ..)| *at).unwrap_or(deadlines[0])
    }

    fn note(&mut self, event: &ModelEvent) {
        let now = Instant::now();
        self.heard_at = now;
        self.begun |= !matches!(event, ModelEvent::Accepted(_));
        let counts = match event {
            ModelEvent::Accepted(_) | ModelEvent::Alive => false,
            // White space alone can arrive for hours without meaning.
            ModelEvent::Delta(Delta::Text { text, .. } | Delta::Thinking { text, .. }) => {
                !text.trim().is_empty()
            }
            ModelEvent::Delta(Delta::Input { json, .. }) => !json.trim().is_empty(),
            ModelEvent::Delta(Delta::Signature { signature, .. }) => !signature.is_empty(),
            ModelEvent::Delta(_) | ModelEvent::Completed(_) => true,
            ModelEvent::Block { .. } => {
                self.blocks += 1;
                true
            }
        };
        if counts {
            self.content_at = now;
        }
        let is_answer = !matches!(
            event,
            ModelEvent::Accepted(_) | ModelEvent::Alive | ModelEvent::Delta(Delta::Started { .. })
        );
        if is_answer && !std::mem::replace(&mut self.answered, true) {
            self.permit.answered();
        }
    }
}

/// The error of a request that would have to wait longer than its patience lasts. Only the time in which nothing was
/// answered counts: behind others that are answered, a request just waits in the queue.
fn out_of_patience(
    gateway: &GatewayState,
    request: &ModelRequest,
    count: &mut Tries,
    until: Instant,
) -> Option<ModelError> {
    let (now, patience) = (Instant::now(), gateway.settings.patience?);
    let others = || (now, 429, Said::new("other requests were refused"));
    let (since, status, said) = count.refused.get_or_insert_with(others);
    let answered = gateway.limiter(&request.head.model).answered_at();
    let ends = answered.map_or(*since, |answered| answered.max(*since)) + patience;
    (until.max(now) > ends).then(|| ModelError::Impatient {
        status: *status,
        wait: Box::new(VainWait {
            provider: gateway.settings.provider.clone(),
            waited: now - *since,
            asked: until.saturating_duration_since(now),
        }),
        said: said.clone(),
    })
}

/// An empty reply that is not itself an answer.
fn may_ask_again(reply: &ReplyInfo) -> bool {
    matches!(reply.stop_reason.as_deref(), None | Some("end_turn" | "tool_use" | "stop_sequence"))
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Seeded chance (SplitMix64), so that a run can be repeated.
struct Chance(u64);

impl Chance {
    fn new(seed: u64, path: &str, ticket: u64) -> Self {
        let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
        for byte in path.bytes().chain(ticket.to_le_bytes()) {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Self(state)
    }

    /// Anything from nothing to the bound, which doubles up to its own bound.
    fn backoff(&mut self, settings: &GatewaySettings, earlier: u32) -> Duration {
        let bound = settings.backoff.saturating_mul(1_u32.checked_shl(earlier).unwrap_or(u32::MAX));
        bound.min(settings.longest_backoff).mul_f64(self.fraction())
    }

    #[allow(clippy::cast_precision_loss)] // 53 bits fit
    fn fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}
