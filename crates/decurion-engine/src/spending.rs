//! What requests cost. Takes a request of a run, weighs it, reserves the most it can cost on the run's account and on
//! all above it, and waits where the reservations of others stand in the way; afterwards replaces that by what was
//! used. So what is spent never exceeds a limit, and nobody is refused for what others only reserved.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use decurion_model::catalog::{ModelInfo, Price, same_model};
use decurion_model::{Head, ModelError, ModelRequest, WireHead, WireMessage};
use decurion_protocol::{Block, Charge, ChargeKind, Delta, Event, Money, Usage, WaitReason};
use tokio::sync::{Notify, watch};

use crate::budget::{Amount, Budget, Exhausted, Reservation, Ticket, Want};
use crate::context::Counted;
use crate::journal::JournalLost;
use crate::ports::{Fallback, Model};
use crate::progress::Progress;
use crate::run_handle::RunHandle;
use crate::turn::{Broken, Reply, Waits, turn};

/// The fewest output tokens worth asking for when a budget is short.
pub(crate) const LEAST_OUTPUT: u64 = 256;
/// How many times as many tokens another model of a provider makes of a text, at most.
const OTHER_TOKENIZER: u64 = 2;
/// How many tokens more a text can be where it is cut in two.
const CUT: u64 = 16;

/// The most tokens that a request with these messages can be counted as.
pub(crate) fn weigh(run: &RunHandle, messages: &[WireMessage], counted: Option<&Counted>) -> u64 {
    let (head, model) = (&run.voice.wire_head, run.voice.model.id.as_str());
    let sum = |messages: &[WireMessage]| messages.iter().map(|one| one.most_tokens(model)).sum::<u64>();
    let counted = counted.filter(|counted| same_model(&counted.model, model));
    let most = match counted {
        // The provider has counted the messages up to its reply, and the head with them.
        Some(counted) => {
            let rest = messages.get(counted.messages..).unwrap_or_default();
            let reply = rest.first().map_or(0, |reply| reply.most_tokens(model)).max(counted.hidden);
            let head = if counted.same_head { 0 } else { head.most_tokens() };
            // Another model of the provider may have a tokenizer that makes more of the same text.
            let others = if run.voice.fallbacks.is_empty() { 1 } else { OTHER_TOKENIZER };
            counted.input * others + head + reply + sum(rest.get(1..).unwrap_or_default())
        }
        None => head.most_tokens() + sum(messages),
    };
    // Its own count is closer, and knows of reasoning that the bytes do not show.
    let is_counted = counted.is_some_and(|counted| counted.same_head);
    // To look it up costs a hash of the whole head.
    let known = (run.voice.fallbacks.is_empty() && !is_counted).then(|| run.scale.known(head)).flatten();
    let shared = known.map(|known| known.tokens + beyond(messages, &known.messages, model));
    let most = shared.map_or(most, |shared| shared.min(most));
    // A model refuses to read more than its window, where that is known for sure.
    let window_is_known = run.voice.model.info.price.is_some() && !model.contains('[');
    if window_is_known { most.min(run.voice.model.info.window) } else { most }
}

/// The most tokens of what some messages hold beyond others that they begin with.
fn beyond(messages: &[WireMessage], known: &[WireMessage], model: &str) -> u64 {
    let same = |(one, other): &(&WireMessage, &WireMessage)| one.bytes == other.bytes;
    let whole = messages.iter().zip(known).take_while(same).count();
    let mut tokens: u64 = messages[whole..].iter().map(|message| message.most_tokens(model)).sum();
    if let (Some(mine), Some(theirs)) = (messages.get(whole), known.get(whole))
        && mine.media.bytes == 0
    {
        let shared = mine.bytes.iter().zip(&theirs.bytes).take_while(|(mine, theirs)| mine == theirs).count();
        tokens = tokens.saturating_sub(shared as u64) + CUT;
    }
    tokens
}

/// Why there is no reply.
#[derive(Debug)]
pub(crate) enum Unasked {
    /// It was not asked for: what is unspent does not pay for it.
    Budget(Exhausted),
    /// The provider gave none.
    Model(ModelError),
    /// What it is about to use cannot be put on record.
    Journal(JournalLost),
}

/// Asks the model for a reply to these messages, which are at most so many tokens: reserved, sent, settled. Where what is
/// unspent pays for less output than the head asks for, less is asked for.
pub(crate) async fn ask(
    run: &RunHandle,
    progress: &mut Progress,
    input: u64,
    (head, wire_head): (&Head, &Arc<WireHead>),
    messages: &Arc<[WireMessage]>,
) -> Result<Reply, Unasked> {
    let reservation = reserve(run, input, head.max_output_tokens).await.map_err(Unasked::Budget)?;
    let mut held = Held::new(run, input, reservation, &progress.charges);
    let is_whole = held.output() >= head.max_output_tokens;
    let fitting = if is_whole { Arc::clone(wire_head) } else { Arc::new(held.wire_head(run, head)) };
    let request = request(run, fitting, Arc::clone(messages));
    match timed_turn(run, progress, head, request, &mut held).await {
        Ok(mut reply) => {
            settle(run, progress, held, &mut reply);
            Ok(reply)
        }
        Err(Broken::Model(error)) => Err(Unasked::Model(error)),
        Err(Broken::Budget(exhausted)) => Err(Unasked::Budget(exhausted)),
        Err(Broken::Journal(lost)) => Err(Unasked::Journal(lost)),
    }
}

/// The models to change to. One whose cost could not be counted is none below an account that limits money.
fn fallbacks(run: &RunHandle) -> impl Iterator<Item = &Fallback> {
    let counts_money = lock(&run.budget).money_left(run.lineage.account).is_some();
    run.voice.fallbacks.iter().filter(move |one| one.info.price.is_some() || !counts_money)
}

/// The same, as a request names them.
pub(crate) fn fallback(run: &RunHandle) -> Option<String> {
    let names: Vec<&str> = fallbacks(run).map(|fallback| fallback.id.as_str()).collect();
    (!names.is_empty()).then(|| names.join(","))
}

/// What is known of the model that answered.
pub(crate) fn info<'a>(run: &'a RunHandle, fell_back_to: Option<&str>) -> &'a ModelInfo {
    let fallback = run.voice.fallbacks.iter().find(|one| Some(one.id.as_str()) == fell_back_to);
    fallback.map_or(&run.voice.model.info, |fallback| &fallback.info)
}

/// Sets aside what a request that reads so many tokens may cost at most. Waits, visibly, where others have reserved too
/// much of the budget; dropped meanwhile, it leaves the line.
async fn reserve(run: &RunHandle, input: u64, output: u64) -> Result<Reservation, Exhausted> {
    // Whichever model answers in the end, it is paid for.
    let infos =
        || std::iter::once(&run.voice.model.info).chain(fallbacks(run).map(|fallback| &fallback.info));
    let prices = || infos().filter_map(|info| info.price);
    // A cache that lasts for an hour is never asked for.
    let read = |price: Price| price.input.max(price.cache_write);
    let input_price = prices().map(read).max().unwrap_or(0);
    let want = Want {
        input: Amount { tokens: input, money: Money(input.saturating_mul(input_price)) },
        output,
        least_output: LEAST_OUTPUT,
        output_price: prices().map(|price| price.output).max().unwrap_or(0),
    };
    let place = {
        let mut budget = lock(&run.budget);
        if let Some(reservation) = budget.reserve(run.lineage.account, &want)? {
            return Ok(reservation);
        }
        let (ticket, again) = budget.queue(run.lineage.account, want);
        Place { budget: Arc::clone(&run.budget), ticket, again }
    };
    run.waits(Some(WaitReason::Budget));
    let reservation = place.wait().await;
    run.waits(None);
    reservation
}

fn lock(budget: &Mutex<Budget>) -> MutexGuard<'_, Budget> {
    budget.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place in the line for a budget; dropped, it is given up.
struct Place {
    budget: Arc<Mutex<Budget>>,
    ticket: Ticket,
    again: Arc<Notify>,
}

impl Place {
    async fn wait(&self) -> Result<Reservation, Exhausted> {
        loop {
            self.again.notified().await;
            if let Some(reservation) = lock(&self.budget).try_again(self.ticket)? {
                return Ok(reservation);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.budget).leave(self.ticket);
    }
}

/// What was used for no reply and is in no totals yet. Shared with what is set aside, which may be dropped at any time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Charges(Arc<Mutex<Vec<Pending>>>);

#[derive(Debug)]
struct Pending {
    charge: Charge,
    on_record: bool,
}

impl Charges {
    fn add(&self, charge: Charge) {
        self.lock().push(Pending { charge, on_record: false });
    }

    /// What is to be put on record now.
    fn record(&self) -> Vec<Event> {
        let mut pending = self.lock();
        let new = pending.iter_mut().filter(|one| !one.on_record);
        new.map(|one| {
            one.on_record = true;
            Event::Charged { charge: Box::new(one.charge.clone()) }
        })
        .collect()
    }

    fn take(&self) -> Vec<Charge> {
        std::mem::take(&mut *self.lock()).into_iter().map(|one| one.charge).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pending>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was used for no reply, to be put on record; it joins the totals.
pub(crate) fn charged(run: &RunHandle, progress: &mut Progress) -> Vec<Event> {
    let events = progress.charges.record();
    let charges = progress.charges.take();
    for charge in charges.iter().filter(|charge| charge.kind != ChargeKind::Summary) {
        let info = info(run, Some(&charge.model));
        count(progress, &charge.model, info, &charge.usage);
    }
    events
}

/// Notes what a summary used, which is no part of the conversation.
pub(crate) fn charge_summary(run: &RunHandle, progress: &Progress, reply: &Reply) {
    let Some(usage) = reply.meta.usage.clone() else { return };
    let info = info(run, reply.fell_back_to.as_deref());
    let cost = info.price.map(|_| info.cost(&usage));
    let model = reply.fell_back_to.clone().unwrap_or_else(|| run.voice.model.id.clone());
    progress.charges.add(Charge { kind: ChargeKind::Summary, model, usage, cost });
}

/// What is set aside for a request, and what is known of its use so far. Dropped before the request is settled, because
/// its run was stopped, that much is charged and the rest goes back.
pub struct Held {
    budget: Arc<Mutex<Budget>>,
    reservation: Option<Reservation>,
    /// The most tokens that it reads.
    input: u64,
    /// The model that is asked, and those that may be asked instead.
    model: Arc<Model>,
    fallbacks: Arc<[Fallback]>,
    fell_back_to: Option<String>,
    /// What the provider said about the use of the reply that comes now.
    told: Option<Usage>,
    /// How many bytes of it have come that the provider has not counted.
    written: u64,
    /// Whether it was sent and is not over.
    under_way: bool,
    /// Whether that is on record.
    on_record: bool,
    charges: Charges,
}

impl Held {
    fn new(run: &RunHandle, input: u64, reservation: Reservation, charges: &Charges) -> Self {
        Self {
            budget: Arc::clone(&run.budget),
            reservation: Some(reservation),
            input,
            model: Arc::clone(&run.voice.model),
            fallbacks: Arc::clone(&run.voice.fallbacks),
            fell_back_to: None,
            told: None,
            written: 0,
            under_way: false,
            on_record: false,
            charges: charges.clone(),
        }
    }

    /// The most output tokens that it pays for.
    fn output(&self) -> u64 {
        self.reservation.as_ref().map_or(0, |reservation| reservation.output)
    }

    /// The request is about to be sent: what goes on record before. If the process dies, the next one counts it as the
    /// most it can have used.
    pub fn sending(&mut self) -> Vec<Event> {
        self.under_way = true;
        self.reserved()
    }

    /// Changes whenever an account is given other limits.
    pub fn limits(&self) -> watch::Receiver<()> {
        lock(&self.budget).limits()
    }

    /// Limits were changed: what goes on record of a request that is under way and was sent without any.
    pub fn relimited(&mut self) -> Vec<Event> {
        if self.under_way && !self.on_record { self.reserved() } else { Vec::new() }
    }

    /// What goes on record of a request below a limit. Without one, no later process needs to know.
    fn reserved(&mut self) -> Vec<Event> {
        let is_limited = |one: &&Reservation| lock(&self.budget).is_limited(one.account);
        let Some(reservation) = self.reservation.as_ref().filter(is_limited) else { return Vec::new() };
        let mut usage =
            Usage { input_tokens: self.input, output_tokens: reservation.output, ..Usage::default() };
        usage.mark_estimated();
        let cost = Some(reservation.amount.money).filter(|money| *money > Money(0));
        let model = self.asked();
        let charge = Some(Box::new(Charge { kind: ChargeKind::Lost, model, usage, cost }));
        self.on_record = true;
        let mut events = self.charges.record();
        events.push(Event::Reserved { charge });
        events
    }

    /// The request is not under way while it waits: what goes on record of that.
    pub fn rests(&mut self) -> Vec<Event> {
        self.under_way = false;
        if !std::mem::take(&mut self.on_record) {
            return Vec::new();
        }
        let charges = self.charges.record();
        if charges.is_empty() { vec![Event::Reserved { charge: None }] } else { charges }
    }

    /// The model that is asked now.
    fn asked(&self) -> String {
        self.fell_back_to.clone().unwrap_or_else(|| self.model.id.clone())
    }

    /// A piece of the reply came.
    pub fn saw(&mut self, delta: &Delta) {
        match delta {
            Delta::Started { usage, .. } => {
                (self.told, self.written) = (Some(usage.clone()), 0);
            }
            Delta::BlockStarted { block: Block::ToolUse { name, .. }, .. } => {
                self.written += name.len() as u64;
            }
            Delta::Text { text, .. } | Delta::Thinking { text, .. } => self.written += text.len() as u64,
            Delta::Input { json, .. } => self.written += json.len() as u64,
            Delta::Ended { usage, .. } => {
                if usage.output_tokens > 0 {
                    self.written = 0;
                }
                self.told = Some(usage.clone());
            }
            _ => {}
        }
    }

    /// Another model is asked.
    pub fn fell_back(&mut self, to: &str) {
        self.fell_back_to = Some(to.to_owned());
    }

    /// The provider has refused the request, which costs nothing.
    pub fn refused(&mut self) {
        self.under_way = false;
    }

    /// The request gave no reply, or its reply broke off; if by a silence, the model may have worked unseen as long as
    /// it was paid for. False if what is left does not pay for asking again.
    pub fn broke_off(&mut self, by_silence: bool) -> bool {
        let hidden = if by_silence { self.output() } else { 0 };
        let Some(used) = self.use_up(ChargeKind::BrokenOff, hidden) else { return true };
        self.reservation.as_ref().is_none_or(|reservation| lock(&self.budget).charge(reservation, used))
    }

    /// Sets aside anew what the request may cost at most: its tries have used part of what there was, and what is left
    /// may pay for a smaller one.
    pub async fn reserve_again(&mut self, run: &RunHandle, head: &Head) -> Result<(), Exhausted> {
        self.give_back(Amount::default());
        self.reservation = Some(reserve(run, self.input, head.max_output_tokens).await?);
        Ok(())
    }

    /// The head of a request that asks for no more output than is paid for.
    pub fn wire_head(&self, run: &RunHandle, head: &Head) -> WireHead {
        let most = head.max_output_tokens.min(self.output());
        run.voice.model.dialect.head(&Head { max_output_tokens: most, ..head.clone() })
    }

    /// What a reply has used: as much as the provider said, and the most it can have been where it said nothing.
    fn used(&self, mut usage: Usage) -> Usage {
        if usage.read_tokens() == 0 {
            usage.input_tokens = self.input;
            usage.mark_estimated();
        }
        usage.output_tokens = usage.output_tokens.max(self.written.min(self.output()));
        usage
    }

    /// What the request that gave no whole reply has used, which is noted. Of one that was sent and of which nothing came
    /// it is not known whether it was read, so that it counts as read.
    fn use_up(&mut self, kind: ChargeKind, hidden: u64) -> Option<Amount> {
        let was_sent = std::mem::take(&mut self.under_way);
        let told = self.told.take().or_else(|| was_sent.then(Usage::default))?;
        let mut usage = self.used(told);
        if hidden > usage.output_tokens {
            usage.output_tokens = hidden;
            usage.mark_estimated();
        }
        let fallback = self.fallbacks.iter().find(|one| Some(&one.id) == self.fell_back_to.as_ref());
        let info = fallback.map_or(&self.model.info, |fallback| &fallback.info);
        let cost = info.price.map(|_| info.cost(&usage));
        let used = Amount { tokens: usage.context_tokens(), money: cost.unwrap_or_default() };
        self.charges.add(Charge { kind, model: self.asked(), usage, cost });
        Some(used)
    }

    fn settle(mut self, used: Amount) {
        (self.told, self.under_way) = (None, false);
        self.give_back(used);
    }

    /// Ends the reservation with what was used.
    fn give_back(&mut self, used: Amount) {
        if let Some(reservation) = self.reservation.take() {
            lock(&self.budget).settle(reservation, used);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let used = self.use_up(ChargeKind::Stopped, 0).unwrap_or_default();
        self.give_back(used);
    }
}

/// Remembers what a provider counted for a request, for others that begin like it.
pub(crate) fn learn(run: &RunHandle, messages: &Arc<[WireMessage]>, reply: &Reply) {
    let is_counted = |usage: &&Usage| reply.fell_back_to.is_none() && !usage.is_estimated();
    if let Some(usage) = reply.meta.usage.as_ref().filter(is_counted) {
        run.scale.learn(&run.voice.wire_head, messages, usage.read_tokens());
    }
}

/// Replaces what was set aside by what was used, which it notes with the reply, and adds it to the totals.
fn settle(run: &RunHandle, progress: &mut Progress, mut held: Held, reply: &mut Reply) {
    let info = info(run, reply.fell_back_to.as_deref());
    let usage = reply.meta.usage.take().unwrap_or_default();
    if usage.output_tokens > 0 {
        held.written = 0;
    }
    let usage = held.used(usage);
    reply.meta.usage = Some(usage.clone());
    held.settle(Amount { tokens: usage.context_tokens(), money: info.cost(&usage) });
    let answered = reply.fell_back_to.as_deref().unwrap_or(&run.voice.model.id);
    count(progress, answered, info, &usage);
    let totals = &mut progress.totals;
    totals.stop_reason.clone_from(&reply.meta.stop_reason);
    if run.spec.agent.is_some() {
        totals.context_tokens = usage.context_tokens();
        totals.last_usage = Some(usage);
    }
}

/// Adds what a model used to the totals.
fn count(progress: &mut Progress, model: &str, info: &ModelInfo, usage: &Usage) {
    let (totals, cost) = (&mut progress.totals, info.cost(usage));
    totals.usage.add(usage);
    totals.cost = totals.cost.plus(cost);
    let entry = totals.models.entry(model.to_owned()).or_default();
    entry.usage.add(usage);
    entry.cost = entry.cost.plus(cost);
    entry.window = info.window;
    entry.max_output = info.max_output;
}

/// A request of this run.
fn request(run: &RunHandle, head: Arc<WireHead>, messages: Arc<[WireMessage]>) -> ModelRequest {
    ModelRequest { head, messages, tag: run.tag.clone(), fallback: fallback(run) }
}

/// Asks the model, and counts the time that took.
async fn timed_turn(
    run: &RunHandle,
    progress: &mut Progress,
    head: &Head,
    request: ModelRequest,
    held: &mut Held,
) -> Result<Reply, Broken> {
    let mut waits = Waits::new(&*run.clock);
    let reply = turn(run, head, request, held, (&mut waits, progress.partial.as_mut())).await;
    let timing = waits.finish();
    progress.totals.api_duration_ms = progress.totals.api_duration_ms.saturating_add(timing.ms);
    progress.timing = Some(timing);
    reply
}
