//! M8, N2 and N6: models that never stop, trees that share a budget, and parallel agents whose budget is just enough.
//! Takes scripts that loop and agents with random limits and random use, gives whether each stopped exactly where it had
//! to, with what it had, and none where the budget was enough.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use decurion_engine::budget::{AccountId, Amount, Budget, Reservation, Want};
use decurion_model::{BoxStream, Dialect, ModelError, ModelEvent, ModelProvider, ModelRequest};
use decurion_protocol::{AgentId, Envelope, Event, Limits, Money, Origin, Outcome, Usage};
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};

use super::agents::{agent_call, played, stage};
use super::{Dice, Options, Report, Row, in_parallel};
use crate::stage::{Played, Stage};

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![
        Row { id: "M8", what: "a model that never stops", run: runaway },
        Row { id: "N2", what: "200 agents in a tree with random budgets and random use", run: trees },
        Row {
            id: "N6",
            what: "10, 50 and 200 parallel agents with little more than the budget they need",
            run: fair,
        },
    ]
}

// ---- M8 ----

/// After so many times the same the model is told, and after so many the run ends.
const TOLD: usize = 3;
const ENDED: usize = 6;

fn runaway(options: &Options) -> Report {
    let mut report = Report::default();
    for child in [false, true] {
        let who = if child { "a child" } else { "the root" };
        report.add(format_args!("{who}, the same call again and again"), same(child));
        for turns in [1, 2, 10, options.count(100, 1_000)] {
            report.add(format_args!("{who}, {turns} turns"), turns_of(child, turns));
        }
        for tokens in [20_000, 60_000, 200_000] {
            let limits = Limits { tokens: Some(tokens), ..Limits::default() };
            report.add(format_args!("{who}, {tokens} tokens"), limited(child, &limits, "tokens"));
        }
        for cents in [5, 20, 100] {
            let limits = Limits { money: Some(Money(cents * 10_000_000)), ..Limits::default() };
            report.add(format_args!("{who}, {cents} cents"), limited(child, &limits, "money"));
        }
    }
    let tree = Limits { tokens: Some(100_000), ..Limits::default() };
    report.add("the tree, tokens", of_the_tree(&tree));
    let tree = Limits { money: Some(Money(200_000_000)), ..Limits::default() };
    report.add("the tree, money", of_the_tree(&tree));
    report.add("one that is stopped gives back what was set aside for it", given_back());
    let held = report.runs - report.failures.len() as u64;
    let figure = format!(
        "{held} of {} stop exactly: told at {TOLD} and ended at {ENDED} of the same, at 1 to {} turns, never over a budget",
        report.runs,
        options.count(100, 1_000)
    );
    report.figure(figure)
}

/// A script in which the root, or a child of it, answers so for ever.
fn endless(child: bool, answer: &str, limits: &Value) -> String {
    if !child {
        return format!("when\n{answer}");
    }
    let mut input = json!({"description": "d", "prompt": "p", "subagent_type": "worker"});
    if let (Some(input), Some(limits)) = (input.as_object_mut(), limits.as_object()) {
        input.extend(limits.clone());
    }
    format!("when agent=worker\n{answer}when agent=main turn=1\n  call Agent {input}\nwhen\n  say \"over\"\n")
}

/// How the run that loops ended: the root's own, or its child's.
fn ended(played: &Played, child: bool) -> Option<&Outcome> {
    played.events.iter().find_map(|envelope| match &envelope.event {
        Event::RunEnded { outcome, .. } if envelope.agent.is_some() == child => Some(outcome),
        _ => None,
    })
}

fn same(child: bool) -> Result<(), String> {
    let stage = stage(&endless(child, "  call Echo {\"text\": \"x\"}\n", &json!({})));
    let played = played(&stage, "go")?;
    let (mut calls, mut told_after) = (0, Vec::new());
    for envelope in played.events.iter().filter(|envelope| envelope.agent.is_some() == child) {
        match &envelope.event {
            Event::CallEnded { tool, .. } if tool == "Echo" => calls += 1,
            Event::Message { meta, .. } if meta.origin == Origin::Note("repetition".into()) => {
                told_after.push(calls);
            }
            _ => {}
        }
    }
    match ended(&played, child) {
        Some(Outcome::Stalled { .. }) if calls == ENDED && told_after == [TOLD] => Ok(()),
        other => Err(format!("{calls} calls, told after {told_after:?}, ended {other:?}")),
    }
}

/// Each call differs from the last, so that nothing but the limit ends it.
const CHANGING: &str = "  say \"turn ${seen.turn}\"\n  call Echo {\"text\": \"${seen.turn}\"}\n";

fn turns_of(child: bool, turns: u64) -> Result<(), String> {
    let answer = format!("{CHANGING}  usage input=10 output=10\n");
    let mut stage = stage(&endless(child, &answer, &json!({"max_turns": turns})));
    if !child {
        stage.request.limits.turns = u32::try_from(turns).ok();
    }
    let played = played(&stage, "go")?;
    let asked = stage.requests().len() as u64 - if child { 2 } else { 0 };
    let fits = match ended(&played, child) {
        Some(Outcome::Completed { limit: Some(limit), .. }) => child && limit == "turns",
        Some(Outcome::OutOfBudget { budget, .. }) => !child && budget == "turns",
        _ => false,
    };
    if fits && asked == turns {
        Ok(())
    } else {
        Err(format!("{asked} turns, ended {:?}", ended(&played, child)))
    }
}

fn limited(child: bool, limits: &Limits, word: &str) -> Result<(), String> {
    let mut budget = json!({});
    if let Some(tokens) = limits.tokens {
        budget["tokens"] = tokens.into();
    }
    if let Some(money) = limits.money {
        budget["usd"] = money.dollars().into();
    }
    let mut stage = stage(&endless(child, CHANGING, &json!({"budget": budget})));
    if !child {
        stage.request.limits = limits.clone();
    }
    spending(&mut stage, 1);
    let played = played(&stage, "go")?;
    match ended(&played, child) {
        Some(Outcome::OutOfBudget { budget, partial }) if budget == word && !partial.is_empty() => {}
        // Told that its budget ends, a child may well say its last word in time; this one does not.
        other => return Err(format!("ended {other:?}")),
    }
    over(&played, &HashMap::new(), (!child).then_some(limits), child.then_some(limits))
}

/// Ten children that never stop, and one budget for all of them.
fn of_the_tree(limits: &Limits) -> Result<(), String> {
    let calls: String =
        (0..10).map(|number| agent_call(&format!("part {number}"), number % 2 == 0)).collect();
    let script =
        format!("when agent=worker\n{CHANGING}when agent=main turn=1\n{calls}when\n  say \"over\"\n");
    let mut stage = stage(&script);
    stage.tools.push(Arc::new(crate::stage::Plain::named("Read")));
    stage.request.limits = limits.clone();
    spending(&mut stage, 1);
    let played = played(&stage, "go")?;
    over(&played, &HashMap::new(), Some(limits), None)
}

/// Agents that are stopped in the middle of a request, one after another, under a budget that holds what one of
/// them sets aside but not all: nothing may stay set aside for the dead.
fn given_back() -> Result<(), String> {
    const STOPPED: usize = 20;
    let mut script = String::from("when agent=worker\n  stall\n");
    for turn in 0..STOPPED {
        let (begin, stop) = (2 * turn + 1, 2 * turn + 2);
        script += &format!(
            "when agent=main turn={begin}\n{}  usage input=10 output=10\n",
            agent_call("stall", true)
        );
        script += &format!(
            "when agent=main turn={stop} result=/agentId: (\\w+)/\n  call TaskStop {{\"task_id\": \"$1\"}}\n  usage input=10 output=10\n"
        );
    }
    script += "when\n  say \"all stopped\"\n  usage input=10 output=10\n";
    let mut stage = stage(&script);
    stage.request.limits.tokens = Some(80_000);
    let played = played(&stage, "go")?;
    let ended = played.events.iter().filter_map(|envelope| match &envelope.event {
        Event::RunEnded { outcome, .. } => Some((envelope.agent.is_some(), outcome)),
        _ => None,
    });
    let ended: Vec<(bool, &Outcome)> = ended.collect();
    let stopped =
        ended.iter().filter(|(child, outcome)| *child && matches!(outcome, Outcome::Killed { .. })).count();
    match ended.iter().rev().find(|(child, _)| !child) {
        Some((_, Outcome::Completed { .. })) if stopped == STOPPED => Ok(()),
        other => Err(format!(
            "{stopped} of {STOPPED} stopped, then {other:?}: what was set aside for them is not given back"
        )),
    }
}

/// That nobody used more than the limits say: each agent with all below it, the root with everyone.
fn over(
    played: &Played,
    limits: &HashMap<String, Limits>,
    root: Option<&Limits>,
    every: Option<&Limits>,
) -> Result<(), String> {
    let used = Used::of(&played.events);
    let check = |name: &str, limits: &Limits, spent: (u64, u64)| {
        let tokens = limits.tokens.is_some_and(|most| spent.0 > most);
        let money = limits.money.is_some_and(|most| spent.1 > most.0);
        if tokens || money { Err(format!("{name} used {spent:?} of {limits:?}")) } else { Ok(()) }
    };
    if let Some(root) = root {
        check("the tree", root, used.below(None))?;
    }
    for (agent, prompt) in &used.prompts {
        let own = limits.get(prompt).or(every);
        if let Some(own) = own {
            check(prompt, own, used.below(Some(agent)))?;
        }
    }
    Ok(())
}

/// What each run of a session used, and whose it is.
#[derive(Default)]
struct Used {
    own: HashMap<Option<AgentId>, (u64, u64)>,
    parents: HashMap<AgentId, Option<AgentId>>,
    prompts: HashMap<AgentId, String>,
}

impl Used {
    fn of(events: &[Arc<Envelope>]) -> Self {
        let mut used = Self::default();
        for envelope in events {
            match &envelope.event {
                Event::TaskOpened { record } => {
                    if let Ok(agent) = record.task.as_str().parse::<AgentId>() {
                        used.parents.insert(agent.clone(), record.parent.clone());
                        used.prompts.insert(agent, record.prompt.clone());
                    }
                }
                Event::RunEnded { totals, .. } => {
                    let own = used.own.entry(envelope.agent.clone()).or_default();
                    own.0 += totals.usage.context_tokens();
                    own.1 += totals.cost.0;
                }
                _ => {}
            }
        }
        used
    }

    /// What an agent and all below it used.
    fn below(&self, agent: Option<&AgentId>) -> (u64, u64) {
        let mut sum = self.own.get(&agent.cloned()).copied().unwrap_or_default();
        for (child, _) in self.parents.iter().filter(|(_, parent)| parent.as_ref() == agent) {
            let (tokens, money) = self.below(Some(child));
            sum = (sum.0 + tokens, sum.1 + money);
        }
        sum
    }
}

/// Lets replies use a random part of what they were allowed, quite often all of it.
fn spending(stage: &mut Stage, seed: u64) {
    stage.between = Some(Arc::new(move |inner| {
        Arc::new(Spender { inner, seed, asked: AtomicU64::new(0) }) as Arc<dyn ModelProvider>
    }));
}

struct Spender {
    inner: Arc<dyn ModelProvider>,
    seed: u64,
    asked: AtomicU64,
}

impl ModelProvider for Spender {
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let mut dice = Dice::new(self.seed, self.asked.fetch_add(1, Ordering::Relaxed));
        let usage = spent(&mut dice, counted(self.seed, &request), most_output(&request));
        let spend = move |event| match event {
            Ok(ModelEvent::Completed(reply)) => {
                Ok(ModelEvent::Completed(decurion_model::ReplyInfo { usage: usage.clone(), ..reply }))
            }
            other => other,
        };
        Box::pin(self.inner.stream(request).map(spend))
    }
}

/// What a request allows to be written.
fn most_output(request: &ModelRequest) -> u64 {
    let body = request.segments().concat();
    let key = br#""max_tokens":"#;
    let Some(at) = memchr::memmem::find(&body, key) else { return 0 };
    let digits: Vec<u8> = body[at + key.len()..].iter().copied().take_while(u8::is_ascii_digit).collect();
    String::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or_default()
}

/// How many tokens a request is. A provider counts the same bytes the same each time, and no byte twice: by seed, some
/// bytes are tokens and the others are not, or all of them are.
fn counted(seed: u64, request: &ModelRequest) -> u64 {
    let mut dice = Dice::new(seed, 0);
    let share = 1 + dice.below(4);
    let mut is_token: Vec<bool> = (0..256).map(|_| share == 4 || dice.below(4) < share).collect();
    // The digits of `max_tokens` are no text.
    is_token[usize::from(b'0')..=usize::from(b'9')].fill(false);
    let messages = request.messages.iter().map(|message| &message.bytes);
    let bytes = messages.chain([&request.head.prefix, &request.head.suffix]);
    bytes.flat_map(|part| part.iter()).filter(|byte| is_token[usize::from(**byte)]).count() as u64
}

fn spent(dice: &mut Dice, input: u64, most_output: u64) -> Usage {
    let part = |dice: &mut Dice, most: u64| if dice.below(4) == 0 { most } else { dice.below(most + 1) };
    let fresh = dice.below(input + 1);
    let cached = dice.below(input - fresh + 1);
    Usage {
        input_tokens: fresh,
        cache_read_input_tokens: cached,
        cache_creation_input_tokens: input - fresh - cached,
        output_tokens: part(dice, most_output),
        ..Usage::default()
    }
}

// ---- N2 ----

/// How many agents, and how deep their tree.
const AGENTS: usize = 200;
const DEPTH: u32 = 4;

fn trees(options: &Options) -> Report {
    let seeds: Vec<u64> = (0..options.count(20, 1_000)).collect();
    let results = in_parallel(options.width, &seeds, |nth| {
        let mut dice = Dice::new(options.seed, *nth);
        let accounts = accounts(&mut dice).map_err(|problem| format!("accounts: {problem}"));
        accounts.and_then(|()| tree(&mut dice))
    });
    let mut report = Report::default();
    let (mut begun, mut stops) = (0, 0);
    for (nth, result) in seeds.iter().zip(results) {
        report.add(
            format_args!("seed {} try {nth}", options.seed),
            result.map(|(agents, stopped)| (begun, stops) = (begun + agents, stops + stopped)),
        );
    }
    let held = report.runs - report.failures.len() as u64;
    let figure = format!(
        "{held} of {} trees of up to {AGENTS} agents, {DEPTH} deep: never over a limit, the accounts alone settle to zero; {begun} \
         agents began, {stops} were stopped by a budget, each with what it had",
        report.runs
    );
    report.figure(figure)
}

/// Random reservations in a tree of accounts, settled in any order: the limits hold at every step, and in the
/// end nothing is set aside.
fn accounts(dice: &mut Dice) -> Result<(), String> {
    let mut budget = Budget::default();
    let mut all: Vec<(AccountId, Limits)> = Vec::new();
    for at in 0..=AGENTS {
        let limits = random_limits(dice);
        let parent = (at > 0).then(|| all[usize::try_from(dice.below(at as u64)).unwrap_or_default()].0);
        all.push((budget.open(parent, &limits), limits));
    }
    let mut held: Vec<(Reservation, Amount)> = Vec::new();
    for _ in 0..AGENTS * 10 {
        let (account, _) = all[usize::try_from(dice.below(all.len() as u64)).unwrap_or_default()];
        let amount = Amount { tokens: dice.below(20_000), money: Money(dice.below(50_000_000)) };
        let want = Want { input: amount, ..Want::default() };
        if let Ok(Some(reservation)) = budget.reserve(account, &want) {
            let used = Amount {
                tokens: dice.below(amount.tokens + 1),
                money: Money(dice.below(amount.money.0 + 1)),
            };
            held.push((reservation, used));
        }
        while held.len() > 30 || (dice.below(3) == 0 && !held.is_empty()) {
            let at = usize::try_from(dice.below(held.len() as u64)).unwrap_or_default();
            let (reservation, used) = held.swap_remove(at);
            budget.settle(reservation, used);
        }
        within(&budget, &all)?;
    }
    for (reservation, used) in held {
        budget.settle(reservation, used);
    }
    within(&budget, &all)?;
    let (root, limits) = &all[0];
    let left = limits.tokens.map(|most| most - budget.spent(*root).tokens);
    if budget.tokens_left(*root) != left {
        return Err(format!("{:?} tokens are left, not {left:?}", budget.tokens_left(*root)));
    }
    Ok(())
}

fn within(budget: &Budget, all: &[(AccountId, Limits)]) -> Result<(), String> {
    let broken = all.iter().find(|(account, limits)| {
        let spent = budget.spent(*account);
        limits.tokens.is_some_and(|most| spent.tokens > most)
            || limits.money.is_some_and(|most| spent.money > most)
    });
    broken.map_or(Ok(()), |(account, limits)| Err(format!("{:?} of {limits:?}", budget.spent(*account))))
}

fn random_limits(dice: &mut Dice) -> Limits {
    let tokens = (dice.below(2) == 0).then(|| 5_000 + dice.below(400_000));
    let money = (dice.below(3) == 0).then(|| Money(10_000_000 + dice.below(1_000_000_000)));
    Limits { tokens, money, ..Limits::default() }
}

/// One agent of a random tree.
struct Planned {
    parent: usize,
    depth: u32,
    behind: bool,
    limits: Limits,
}

/// A tree of agents on a stage; gives how many began, and how many a budget stopped.
fn tree(dice: &mut Dice) -> Result<(usize, usize), String> {
    let plan = planned(dice);
    let root = Limits { tokens: Some(200_000 + dice.below(6_000_000)), ..random_limits(dice) };
    let mut stage = stage(&tree_script(&plan));
    stage.agent_settings.max_depth = DEPTH;
    stage.agent_settings.max_running = 1 + u32::try_from(dice.below(64)).unwrap_or_default();
    stage.request.limits = root.clone();
    spending(&mut stage, dice.next());
    let played = played(&stage, "go")?;
    let limits = plan.iter().enumerate().map(|(at, one)| (prompt(at), one.limits.clone())).collect();
    over(&played, &limits, Some(&root), None)?;
    let mut said = HashSet::new();
    let (mut begun, mut stops) = (0, 0);
    for envelope in &played.events {
        match &envelope.event {
            Event::Message { meta, .. } if meta.origin == Origin::Model => {
                said.insert(envelope.run);
            }
            Event::RunStarted { .. } => begun += usize::from(envelope.agent.is_some()),
            Event::RunEnded { outcome: Outcome::OutOfBudget { partial, .. }, .. } => {
                stops += 1;
                if partial.is_empty() && said.contains(&envelope.run) {
                    return Err("stopped without what it had said".into());
                }
            }
            _ => {}
        }
    }
    Ok((begun, stops))
}

fn prompt(number: usize) -> String {
    format!("part {number}.")
}

/// The first is the root; every other has a parent that is not too deep.
fn planned(dice: &mut Dice) -> Vec<Planned> {
    let mut plan = vec![Planned { parent: 0, depth: 0, behind: false, limits: Limits::default() }];
    while plan.len() <= AGENTS {
        let parent = usize::try_from(dice.below(plan.len() as u64)).unwrap_or_default();
        let depth = plan[parent].depth + 1;
        if depth <= DEPTH {
            plan.push(Planned { parent, depth, behind: dice.below(2) == 0, limits: random_limits(dice) });
        }
    }
    plan
}

fn tree_script(plan: &[Planned]) -> String {
    let mut calls = vec![String::new(); plan.len()];
    for (at, one) in plan.iter().enumerate().skip(1) {
        let mut input = json!({"description": "d", "prompt": prompt(at), "subagent_type": "worker", "run_in_background": one.behind});
        let mut budget = json!({});
        if let Some(tokens) = one.limits.tokens {
            budget["tokens"] = tokens.into();
        }
        if let Some(money) = one.limits.money {
            budget["usd"] = money.dollars().into();
        }
        if budget != json!({}) {
            input["budget"] = budget;
        }
        calls[one.parent] += &format!("  call Agent {input}\n");
    }
    let mut script =
        format!("when agent=main turn=1\n  say \"begin\"\n{}when agent=main\n  say \"over\"\n", calls[0]);
    for (at, calls) in calls.iter().enumerate().skip(1) {
        script += &format!(
            "when agent=worker first=\"{}\" turn=1\n  delay {}ms\n  say \"begun {at}\"\n{calls}",
            prompt(at),
            at % 7
        );
        script += &format!("when agent=worker first=\"{}\"\n  say \"done {at}\"\n", prompt(at));
    }
    script
}

// ---- N6 ----

/// How many agents work at the same time.
const PARALLEL: [usize; 3] = [10, 50, 200];
/// The fewest output tokens that a request asks for.
const LEAST_OUTPUT: u64 = 256;

/// What the agents of a try do, and what they may use.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// Three to five calls with up to three kilobytes to read, for a tenth more than all of them need.
    Some,
    /// None to three calls of some bytes. What a request is weighed as before it is counted can be more than a tenth of
    /// all they need, so they get the largest such difference instead.
    Little,
}

fn fair(options: &Options) -> Report {
    let tries = |work: Work, count: u64| {
        (0..count).flat_map(move |nth| PARALLEL.map(move |agents| (work, nth, agents)))
    };
    let some = tries(Work::Some, options.count(2, 1_000));
    let tries: Vec<_> = some.chain(tries(Work::Little, options.count(2, 300))).collect();
    let results =
        in_parallel(options.width, &tries, |(work, nth, agents)| enough(options.seed, *work, *nth, *agents));
    let mut report = Report::default();
    let (mut completed, mut waits) = (0, 0);
    for ((work, nth, agents), result) in tries.iter().zip(results) {
        let result = result.map(|waited| (completed, waits) = (completed + agents, waits + waited));
        report.add(format_args!("seed {} try {nth}, {agents} agents, {work:?}", options.seed), result);
    }
    let tried = (waits > 0).then_some(()).ok_or("no request had to wait".to_owned());
    report.add("whether anything was tried", tried);
    let figure = format!(
        "{} of {} runs of 10, 50 and 200 parallel agents with 1.1 times the tokens, the money or both that they need, or \
         for tiny ones what they need and the largest error of a bound: all {completed} agents of these completed, no \
         reply was cut short, never over a limit; {waits} requests waited",
        report.runs - report.failures.len() as u64,
        report.runs,
    );
    report.figure(figure)
}

/// Plays agents with a limit that never binds to see what they need, and again with little more than that. Gives how many
/// requests waited for the budget.
fn enough(seed: u64, work: Work, nth: u64, agents: usize) -> Result<usize, String> {
    let mut dice = Dice::new(seed, nth.wrapping_mul(1_000).wrapping_add(agents as u64));
    let (script, bills) = (parallel_script(&mut dice, work, agents), dice.next());
    let endless = Limits { tokens: Some(1 << 40), money: Some(Money(1 << 50)), ..Limits::default() };
    let (free, cut) = billed_run(&script, bills, agents, endless)?;
    if cut > 0 {
        return Err(format!("{cut} replies were cut short without a limit"));
    }
    let (tokens, money) = Used::of(&free.events).below(None);
    let enough = match work {
        Work::Some => (tokens / 10 * 11, money / 10 * 11),
        Work::Little => {
            let beyond = errors(&free.events);
            (tokens + beyond.0, money + beyond.1)
        }
    };
    let (by_tokens, by_money) =
        [(true, false), (false, true), (true, true)][usize::try_from(nth % 3).unwrap_or_default()];
    let limits = Limits {
        tokens: by_tokens.then_some(enough.0),
        money: by_money.then_some(Money(enough.1)),
        ..Limits::default()
    };
    let (played, cut) = billed_run(&script, bills, agents, limits.clone())?;
    over(&played, &HashMap::new(), Some(&limits), None)?;
    let mut completed = 0;
    for envelope in &played.events {
        match &envelope.event {
            Event::RunEnded { outcome: Outcome::Completed { limit: None, .. }, .. } => completed += 1,
            Event::RunEnded { outcome, .. } => {
                let who = if envelope.agent.is_some() { "an agent" } else { "the root" };
                let spent = Used::of(&played.events).below(None);
                return Err(format!(
                    "{who} ended {outcome:?}; need {:?}, {spent:?} of {limits:?}",
                    (tokens, money)
                ));
            }
            _ => {}
        }
    }
    let waits = |envelope: &&Arc<Envelope>| {
        matches!(envelope.event, Event::Waiting { reason: Some(decurion_protocol::WaitReason::Budget) })
    };
    match (completed, cut) {
        (all, 0) if all == agents + 1 => Ok(played.events.iter().filter(waits).count()),
        _ => Err(format!("{completed} runs completed, {cut} replies were cut short")),
    }
}

/// By how much the bound of a request was beyond what it was billed, at most, with the least output that is asked for. A
/// budget with so much more than is needed refuses no request: what all others use leaves what this one uses and that.
fn errors(events: &[Arc<Envelope>]) -> (u64, u64) {
    let price = stage("").info.price.unwrap_or_default();
    let mut bounds = HashMap::new();
    let mut most = (0, 0);
    for envelope in events {
        match &envelope.event {
            Event::Reserved { charge: Some(charge) } => {
                let money = charge.cost.unwrap_or_default().0 - charge.usage.output_tokens * price.output;
                bounds.insert(envelope.agent.clone(), (charge.usage.input_tokens, money));
            }
            Event::Message { meta, .. } => {
                let Some(((bound, money), usage)) = bounds.remove(&envelope.agent).zip(meta.usage.as_ref())
                else {
                    continue;
                };
                let billed = meta.cost.unwrap_or_default().0 - usage.output_tokens * price.output;
                most = (most.0.max(bound - usage.read_tokens()), most.1.max(money - billed));
            }
            _ => {}
        }
    }
    (most.0 + LEAST_OUTPUT, most.1 + LEAST_OUTPUT * price.output)
}

/// A root that begins all its agents at once; each makes some calls and says a last word.
fn parallel_script(dice: &mut Dice, work: Work, agents: usize) -> String {
    let (turns, words) = match work {
        Work::Some => (4..7, 500),
        Work::Little => (1..5, 4),
    };
    let begin = |at| {
        let last = turns.start + dice.below(turns.end - turns.start);
        agent_call(&format!("part {at} in {last} turns"), false)
    };
    let calls: String = (0..agents).map(begin).collect();
    let mut script = format!("when agent=main turn=1\n{calls}when agent=main\n  say \"over\"\n");
    for last in turns.clone() {
        for turn in 1..last {
            let text = format!("{turn} {}", "found ".repeat(dice.place(words)));
            script += &format!(
                "when agent=worker first=\"in {last} turns\" turn={turn}\n  call Echo {{\"text\": \"{text}\"}}\n"
            );
        }
    }
    script + "when agent=worker\n  say \"done\"\n"
}

/// Plays a script whose replies are billed by what is asked, not by when; gives also how many were cut short.
fn billed_run(script: &str, seed: u64, agents: usize, limits: Limits) -> Result<(Played, u64), String> {
    let mut stage = stage(script);
    stage.agent_settings.max_running = u32::try_from(agents).unwrap_or(u32::MAX);
    stage.request.limits = limits;
    // As much as models of today may write: much more is reserved than used.
    stage.max_output = 64_000;
    let cut = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&cut);
    stage.between = Some(Arc::new(move |inner| {
        Arc::new(Biller { inner, seed, cut: Arc::clone(&counter) }) as Arc<dyn ModelProvider>
    }));
    let played = played(&stage, "go")?;
    Ok((played, cut.load(Ordering::Relaxed)))
}

/// Bills each request the same, whenever it comes and however much it may write.
struct Biller {
    inner: Arc<dyn ModelProvider>,
    seed: u64,
    /// How many replies would have needed more than they were allowed to write.
    cut: Arc<AtomicU64>,
}

impl ModelProvider for Biller {
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let messages = request.messages.iter().map(|message| message.bytes.len());
        let bytes = messages.sum::<usize>() + request.head.prefix.len();
        let input = bytes as u64 / (1 + Dice::new(self.seed, 0).below(4));
        // Ids and times differ from run to run; who asks, and for the how-manieth time, does not.
        let who = memchr::memmem::find(&request.messages[0].bytes, b"part ").map_or(0, |at| {
            let digits = request.messages[0].bytes[at + 5..].iter().take_while(|byte| byte.is_ascii_digit());
            digits.fold(1, |number, digit| number * 10 + u64::from(digit - b'0'))
        });
        let mut dice = Dice::new(self.seed, who * 1_000 + request.messages.len() as u64);
        let share = dice.below(101);
        let (fresh, wanted) = (input * share / 100, 20 + dice.below(1_500));
        let written = wanted.min(most_output(&request));
        self.cut.fetch_add(u64::from(written < wanted), Ordering::Relaxed);
        let usage = Usage {
            input_tokens: fresh,
            cache_read_input_tokens: input - fresh,
            output_tokens: written,
            ..Usage::default()
        };
        let bill = move |event| match event {
            Ok(ModelEvent::Completed(reply)) => {
                Ok(ModelEvent::Completed(decurion_model::ReplyInfo { usage: usage.clone(), ..reply }))
            }
            other => other,
        };
        let (pause, reply) = (dice.time(Duration::from_secs(20)), self.inner.stream(request));
        let later = async move {
            tokio::time::sleep(pause).await;
            reply
        };
        Box::pin(later.flatten_stream().map(bill))
    }
}
