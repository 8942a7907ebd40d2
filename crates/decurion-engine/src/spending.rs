//! What requests cost. Takes a request of a run, weighs it, reserves the most it can cost on the run's account and on
//! all above it, and waits where the reservations of others stand in the way; afterwards replaces that by what was
//! used. So what is spent never exceeds a limit, and nobody is refused for what others only reserved.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use decurion_model::catalog::{ModelInfo, Price, same_model};
use decurion_model::{Head, ModelError, WireHead, WireMessage};
use decurion_protocol::{Money, WaitReason};
use tokio::sync::Notify;

use crate::budget::{Amount, Budget, Exhausted, Reservation, Ticket, Want};
use crate::context::Counted;
use crate::ports::Fallback;
use crate::run::{Progress, Run, request, timed_turn};
use crate::turn::Reply;

/// The fewest output tokens worth asking for when a budget is short.
pub(crate) const LEAST_OUTPUT: u64 = 256;
/// How many times as many tokens another model of a provider makes of a text, at most.
const OTHER_TOKENIZER: u64 = 2;
/// How many tokens more a text can be where it is cut in two.
const CUT: u64 = 16;
/// How many heads are remembered.
const MOST_HEADS: usize = 1_000;

/// What providers have counted for the first requests of a session, by head: a request that begins with the same
/// bytes costs no more than that for them, so only the rest needs a bound.
#[derive(Debug, Default)]
pub struct Scale(Mutex<HashMap<Bytes, Weighed>>);

#[derive(Clone, Debug)]
struct Weighed {
    messages: Vec<WireMessage>,
    tokens: u64,
}

impl Scale {
    fn known(&self, head: &WireHead) -> Option<Weighed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&head.prefix).cloned()
    }

    /// Remembers what a request was counted as; the lightest with the same head is the most useful.
    fn learn(&self, head: &WireHead, messages: &[WireMessage], tokens: u64) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens == 0 || known.get(&head.prefix).is_some_and(|known| known.tokens <= tokens) {
            return;
        }
        if known.len() >= MOST_HEADS {
            known.clear();
        }
        known.insert(head.prefix.clone(), Weighed { messages: messages.to_vec(), tokens });
    }
}

/// The most tokens that a request with these messages can be counted as.
pub(crate) fn weigh(run: &Run, messages: &[WireMessage], counted: Option<&Counted>) -> u64 {
    let ports = &run.ports;
    let (head, model) = (&ports.wire_head, ports.model.id.as_str());
    let sum = |messages: &[WireMessage]| messages.iter().map(|one| one.most_tokens(model)).sum::<u64>();
    let counted = counted.filter(|counted| same_model(&counted.model, model));
    let most = match counted {
        // The provider has counted the messages up to its reply, and the head with them.
        Some(counted) => {
            let rest = messages.get(counted.messages..).unwrap_or_default();
            let reply = rest.first().map_or(0, |reply| reply.most_tokens(model)).max(counted.output);
            let head = if counted.same_head { 0 } else { head.most_tokens() };
            // Another model of the provider may have a tokenizer that makes more of the same text.
            let others = if ports.fallbacks.is_empty() { 1 } else { OTHER_TOKENIZER };
            counted.input * others + head + reply + sum(rest.get(1..).unwrap_or_default())
        }
        None => head.most_tokens() + sum(messages),
    };
    let known = ports.scale.known(head).filter(|_| ports.fallbacks.is_empty());
    let shared = known.map(|known| known.tokens + beyond(messages, &known.messages, model));
    let most = shared.map_or(most, |shared| shared.min(most));
    // A model refuses to read more than its window, where that is known for sure.
    let window_is_known = ports.model.info.price.is_some() && !model.contains('[');
    if window_is_known { most.min(ports.model.info.window) } else { most }
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
}

/// Asks the model for a reply to these messages, which are at most so many tokens: reserved, sent, settled. Where what is
/// unspent pays for less output than the head asks for, less is asked for.
pub(crate) async fn ask(
    run: &Run,
    progress: &mut Progress,
    input: u64,
    (head, wire_head): (&Head, &Arc<WireHead>),
    messages: &[WireMessage],
) -> Result<Reply, Unasked> {
    let held = reserve(run, input, head.max_output_tokens).await.map_err(Unasked::Budget)?;
    let mut request = request(run, Arc::clone(wire_head), messages.to_vec());
    if held.output() < head.max_output_tokens {
        let head = Head { max_output_tokens: held.output(), ..head.clone() };
        request.head = Arc::new(run.ports.model.dialect.head(&head));
    }
    let reply = timed_turn(run, progress, request).await;
    settle(run, progress, held, reply.as_ref().ok());
    reply.map_err(Unasked::Model)
}

/// The models to change to. One whose cost could not be counted is none below an account that limits money.
fn fallbacks(run: &Run) -> impl Iterator<Item = &Fallback> {
    let counts_money = lock(&run.ports.budget).money_left(run.ports.account).is_some();
    run.ports.fallbacks.iter().filter(move |one| one.info.price.is_some() || !counts_money)
}

/// The same, as a request names them.
pub(crate) fn fallback(run: &Run) -> Option<String> {
    let names: Vec<&str> = fallbacks(run).map(|fallback| fallback.id.as_str()).collect();
    (!names.is_empty()).then(|| names.join(","))
}

/// What is known of the model that answered.
pub(crate) fn info<'a>(run: &'a Run, fell_back_to: Option<&str>) -> &'a ModelInfo {
    let fallback = run.ports.fallbacks.iter().find(|one| Some(one.id.as_str()) == fell_back_to);
    fallback.map_or(&run.ports.model.info, |fallback| &fallback.info)
}

/// Sets aside what a request that reads so many tokens may cost at most. Waits, visibly, where others have reserved too
/// much of the budget; dropped meanwhile, it leaves the line.
async fn reserve(run: &Run, input: u64, output: u64) -> Result<Held, Exhausted> {
    let ports = &run.ports;
    // Whichever model answers in the end, it is paid for.
    let infos = || std::iter::once(&ports.model.info).chain(fallbacks(run).map(|fallback| &fallback.info));
    let prices = || infos().filter_map(|info| info.price);
    let read = |price: Price| price.input.max(price.cache_write).max(price.cache_write_hour);
    let input_price = prices().map(read).max().unwrap_or(0);
    let want = Want {
        input: Amount { tokens: input, money: Money(input.saturating_mul(input_price)) },
        output,
        least_output: LEAST_OUTPUT,
        output_price: prices().map(|price| price.output).max().unwrap_or(0),
    };
    let held = |reservation| Held { budget: Arc::clone(&ports.budget), reservation: Some(reservation) };
    let place = {
        let mut budget = lock(&ports.budget);
        if let Some(reservation) = budget.reserve(ports.account, &want)? {
            return Ok(held(reservation));
        }
        let (ticket, again) = budget.queue(ports.account, want);
        Place { budget: Arc::clone(&ports.budget), ticket, again }
    };
    ports.desk.waits(&ports.journal, Some(WaitReason::Budget));
    let reservation = place.wait().await;
    ports.desk.waits(&ports.journal, None);
    reservation.map(held)
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

/// What is set aside for a request. Dropped before the request is settled, because its run was stopped, it
/// goes back: nobody knows what was used, and what is left must not stay blocked for the rest of the tree.
pub(crate) struct Held {
    budget: Arc<Mutex<Budget>>,
    reservation: Option<Reservation>,
}

impl Held {
    /// The most output tokens that it pays for.
    fn output(&self) -> u64 {
        self.reservation.as_ref().map_or(0, |reservation| reservation.output)
    }

    fn settle(mut self, used: Amount) {
        if let Some(reservation) = self.reservation.take() {
            lock(&self.budget).settle(reservation, used);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            lock(&self.budget).settle(reservation, Amount::default());
        }
    }
}

/// Remembers what a provider counted for a request, for others that begin like it.
pub(crate) fn learn(run: &Run, messages: &[WireMessage], reply: &Reply) {
    if let Some(usage) = reply.meta.usage.as_ref().filter(|_| reply.fell_back_to.is_none()) {
        run.ports.scale.learn(&run.ports.wire_head, messages, usage.read_tokens());
    }
}

/// Replaces what was set aside by what was used, and adds it to the totals.
fn settle(run: &Run, progress: &mut Progress, held: Held, reply: Option<&Reply>) {
    let model = &run.ports.model;
    let info = info(run, reply.and_then(|reply| reply.fell_back_to.as_deref()));
    let usage = &reply.and_then(|reply| reply.meta.usage.clone()).unwrap_or_default();
    let cost = info.cost(usage);
    held.settle(Amount { tokens: usage.context_tokens(), money: cost });
    let Some(reply) = reply else { return };
    let totals = &mut progress.totals;
    totals.usage.add(usage);
    totals.cost = totals.cost.plus(cost);
    totals.stop_reason.clone_from(&reply.meta.stop_reason);
    if run.spec.agent.is_some() {
        totals.context_tokens = usage.context_tokens();
        totals.last_usage = Some(usage.clone());
    }
    let answered = reply.fell_back_to.clone().unwrap_or_else(|| model.id.clone());
    let entry = totals.models.entry(answered).or_default();
    entry.usage.add(usage);
    entry.cost = entry.cost.plus(cost);
    entry.window = info.window;
    entry.max_output = info.max_output;
}
