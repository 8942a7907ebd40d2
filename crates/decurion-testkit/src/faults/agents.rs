//! Faults of trees of agents: parents cancelled, children that die, loops of notifications, recursion, early
//! endings. Takes options, gives one report per row; what needs no process is played in simulated time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use decurion_engine::AgentSettings;
use decurion_protocol::{AgentId, Envelope, Event, Outcome, SessionId, TaskId, TaskState};
use rustix::process::Signal;
use uuid::Uuid;

use super::ledger::{Ledger, archive, events};
use super::model::simulated;
use super::stand::{GONE, HANG, Stand, brief, kill};
use super::{Dice, Options, Report, Row};
use crate::proc::lines_of;
use crate::stage::{Played, Stage};

mod dies;

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![
        Row { id: "A1", what: "a parent cancelled while 100 children run a command each", run: cancelled },
        Row { id: "A2", what: "a child that dies", run: dies::row },
        Row {
            id: "A3",
            what: "children that end together, and while they are told or stopped",
            run: super::interleaved::row,
        },
        Row { id: "A4", what: "notifications that begin what is notified of", run: notification_loop },
        Row { id: "A5", what: "agents that begin agents", run: recursion },
        Row { id: "A6", what: "a child that is done while its own agents work", run: premature },
    ]
}

/// A stage whose root may start agents.
pub(super) fn stage(script: &str) -> Stage {
    let mut stage = Stage::new(script);
    stage.agent_settings = AgentSettings::default();
    stage
}

/// Plays a prompt in simulated time.
pub(super) fn played(stage: &Stage, prompt: &str) -> Result<Played, String> {
    simulated(async {
        let request = stage.request.clone();
        let limit = Duration::from_secs(24 * 3_600);
        let played = tokio::time::timeout(limit, stage.play_all(request, &[prompt])).await;
        played.map_err(|_| "hangs".to_owned())?.map_err(|error| error.to_string())
    })
    .and_then(|result| result)
}

/// One call of the tool that starts agents.
pub(super) fn agent_call(prompt: &str, behind: bool) -> String {
    let input = serde_json::json!({
        "description": prompt, "prompt": prompt, "subagent_type": "worker", "run_in_background": behind,
    });
    format!("  call Agent {input}\n")
}

// ---- A1 ----

const CHILDREN: usize = 100;

fn cancelled(options: &Options) -> Report {
    let mut report = Report::default();
    let (mut slowest_end, mut slowest_gone) = (Duration::ZERO, Duration::ZERO);
    for nth in 0..options.count(1, 5) {
        for behind in [false, true] {
            let result = cancel(options, behind).map(|(end, gone)| {
                slowest_end = slowest_end.max(end);
                slowest_gone = slowest_gone.max(gone);
            });
            let how = if behind { "in the background" } else { "waited for" };
            report.add(format_args!("{CHILDREN} {how}, try {nth}"), result);
        }
    }
    let figure = format!(
        "{CHILDREN} children each: {} of {} runs had all of them end as killed; exit after {} ms (2 s wanted), no process \
         left after {} ms (5 s wanted) at most",
        report.runs - report.failures.len() as u64,
        report.runs,
        slowest_end.as_millis(),
        slowest_gone.as_millis()
    );
    report.figure(figure)
}

/// Interrupts a run whose children all run a command: how long its end took, and that of all processes.
fn cancel(options: &Options, behind: bool) -> Result<(Duration, Duration), String> {
    let stand = Stand::new(options, |_| cancelled_script(behind)).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4();
    let running = stand.run_as(&id.to_string(), "go").start().map_err(|error| error.to_string())?;
    let begun = Instant::now();
    while lines_of(&stand.home.effects()).len() < CHILDREN {
        if begun.elapsed() > HANG {
            return Err(format!("{} commands began", lines_of(&stand.home.effects()).len()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let signalled = Instant::now();
    running.signal(Signal::INT).map_err(|error| error.to_string())?;
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    let end = signalled.elapsed();
    stand.wait_until_gone(HANG)?;
    let gone = signalled.elapsed();
    if run.timed_out || run.ending.code() != 130 {
        return Err(format!("ended with {:?}: {}", run.ending, brief(&run.errors)));
    }
    let session = SessionId(id);
    let ledger = Ledger::read(&archive(&stand.home.state())?, session)?;
    let killed = ledger.outcomes().filter(|outcome| matches!(outcome, Outcome::Killed { .. })).count();
    if killed != CHILDREN || ledger.begun.len() != CHILDREN {
        let others: Vec<&Outcome> =
            ledger.outcomes().filter(|outcome| !matches!(outcome, Outcome::Killed { .. })).take(3).collect();
        return Err(format!("{killed} of {} are on record as killed; {others:?}", ledger.begun.len()));
    }
    Ok((end, gone))
}

fn cancelled_script(behind: bool) -> String {
    let calls: String = (0..CHILDREN).map(|number| general_call(&format!("part {number}"), behind)).collect();
    format!(
        "when agent=main turn=1\n{calls}when agent=main\n  say \"over\"\nwhen turn=1\n  \
         call Bash {{\"command\": \"echo up >> $EFFECTS; sleep 600\", \"timeout\": 600000}}\nwhen\n  say \"ended\"\n"
    )
}

/// The same for the binary, which knows no workers.
pub(super) fn general_call(prompt: &str, behind: bool) -> String {
    agent_call(prompt, behind).replace("\"worker\"", "\"general-purpose\"")
}

// ---- A4 ----

/// After so many turns begun by notifications alone no more is begun.
const NOTIFIED: usize = 3;

fn notification_loop(_: &Options) -> Report {
    let mut report = Report::default();
    for at_once in [1, 2, 10] {
        report.add(format_args!("{at_once} at a time"), notified(at_once));
    }
    let held = report.runs - report.failures.len() as u64;
    let figure = format!(
        "{held} of 3 loops stop after {NOTIFIED} turns that notifications began; a prompt allows more"
    );
    report.figure(figure)
}

fn notified(at_once: usize) -> Result<(), String> {
    let calls = agent_call("again", true).repeat(at_once);
    let script = format!(
        "when agent=worker\n  delay 1s\n  say \"done\"\nwhen result=\"until the user says something\"\n  say \"enough\"\n\
         when result=\"works in the background\"\n  say \"waiting\"\nwhen\n{calls}"
    );
    let stage = stage(&script);
    let played = simulated(async {
        let request = stage.request.clone();
        let prompts = ["go", "and again"];
        let limit = Duration::from_secs(3_600);
        tokio::time::timeout(limit, stage.play_all(request, &prompts)).await.map_err(|_| "hangs".to_owned())
    });
    let played = played.and_then(|result| result)?.map_err(|error| error.to_string())?;
    // Each prompt begins some, and so does each of the turns that are allowed.
    let begun = count(&played.events, |event| matches!(event, Event::TaskOpened { .. }));
    let wanted = 2 * (1 + NOTIFIED) * at_once;
    // The second prompt may come before the first one's work is told of, and then there is one loop, not two.
    let single = (2 + NOTIFIED) * at_once;
    if begun != wanted && begun != single {
        return Err(format!("{begun} were begun, not {wanted} or {single}"));
    }
    let ledger = Ledger::of(played.events.iter().map(AsRef::as_ref));
    ledger.problems().first().map_or(Ok(()), |problem| Err(problem.clone()))
}

fn count(events: &[Arc<Envelope>], fits: impl Fn(&Event) -> bool) -> usize {
    events.iter().filter(|envelope| fits(&envelope.event)).count()
}

// ---- A5 ----

fn recursion(options: &Options) -> Report {
    let mut report = Report::default();
    for depth in 0..=6 {
        for behind in [false, true] {
            report.add(format_args!("max_depth {depth}"), nested(depth, behind));
        }
    }
    for total in [0, 1, 7, 50] {
        report.add(format_args!("max_total {total}"), in_total(total));
    }
    for running in [1, 2, 16, 100] {
        let agents = if options.ci { 120 } else { 400 };
        report.add(format_args!("max_running {running}"), at_once(running, agents));
    }
    report.add("max_running 1, 4 deep, waited for", deep_queue(false));
    report.add("max_running 1, 4 deep, in the background", deep_queue(true));
    let held = report.runs - report.failures.len() as u64;
    let figure = format!(
        "{held} of {} exact: max_depth 0 to 6, max_total 0 to 50, max_running 1 to 100; a queue of waiting parents does not lock",
        report.runs
    );
    report.figure(figure)
}

/// Every agent begins another: how many there are is the depth allowed.
fn nested(depth: u32, behind: bool) -> Result<(), String> {
    let calls = agent_call("further", behind);
    let script = format!("when turn=1\n{calls}when\n  say \"done\"\n");
    let mut stage = stage(&script);
    stage.agent_settings.max_depth = depth;
    let played = played(&stage, "go")?;
    let deepest = played.events.iter().filter_map(|envelope| match &envelope.event {
        Event::TaskOpened { record } => Some(record.depth),
        _ => None,
    });
    let (count, deepest) = deepest.fold((0, 0), |(count, most), depth| (count + 1, most.max(depth)));
    if (count, deepest) == (depth, depth) { Ok(()) } else { Err(format!("{count} agents, {deepest} deep")) }
}

/// Twice as many are asked for as there may be.
fn in_total(total: u32) -> Result<(), String> {
    let calls: String =
        (0..total * 2 + 2).map(|number| agent_call(&format!("part {number}"), false)).collect();
    let script = format!("when agent=worker\n  say \"done\"\nwhen turn=1\n{calls}when\n  say \"over\"\n");
    let mut stage = stage(&script);
    stage.agent_settings.max_total = Some(total);
    let played = played(&stage, "go")?;
    let begun = count(&played.events, |event| matches!(event, Event::TaskOpened { .. }));
    let refused = count(
        &played.events,
        |event| matches!(event, Event::CallEnded { output, .. } if output.content.text().contains("agents.max_total")),
    );
    let total = total as usize;
    if (begun, refused) == (total, total + 2) {
        Ok(())
    } else {
        Err(format!("{begun} begun, {refused} refused"))
    }
}

/// Many more than may run at once: so many do, and all of them are done in the end.
fn at_once(running: u32, agents: usize) -> Result<(), String> {
    let calls: String =
        (0..agents).map(|number| agent_call(&format!("part {number}"), number % 2 == 0)).collect();
    let script =
        format!("when agent=worker\n  delay 1s\n  say \"done\"\nwhen turn=1\n{calls}when\n  say \"over\"\n");
    let mut stage = stage(&script);
    stage.agent_settings.max_running = running;
    let played = played(&stage, "go")?;
    let (peak, ended) = most_at_once(&played.events);
    if (peak, ended) == (running as usize, agents) {
        Ok(())
    } else {
        Err(format!("{peak} at once, {ended} ended"))
    }
}

/// How many runs of agents were alive at once at most, and how many ended.
fn most_at_once(events: &[Arc<Envelope>]) -> (usize, usize) {
    let queued = |event: &Event| match event {
        Event::TaskChanged { task, state: TaskState::Queued { .. } } => Some(task.clone()),
        _ => None,
    };
    // One that waits for a place is on record before it begins.
    let queued: HashSet<TaskId> = events.iter().filter_map(|envelope| queued(&envelope.event)).collect();
    let (mut now, mut peak, mut ended) = (0_usize, 0, 0);
    for envelope in events {
        match (&envelope.event, &envelope.agent) {
            (Event::RunStarted { .. }, Some(agent)) if !queued.contains(&agent.clone().into()) => now += 1,
            (Event::TaskChanged { task, state: TaskState::Running { .. } }, _) if queued.contains(task) => {
                now += 1;
            }
            (Event::RunEnded { .. }, Some(_)) => (now, ended) = (now.saturating_sub(1), ended + 1),
            _ => {}
        }
        peak = peak.max(now);
    }
    (peak, ended)
}

/// Parents that wait do not hold the one place that their children need.
fn deep_queue(behind: bool) -> Result<(), String> {
    let calls = agent_call("further", behind).repeat(3);
    let script = format!("when turn=1\n{calls}when\n  say \"done\"\n");
    let mut stage = stage(&script);
    stage.agent_settings.max_depth = 4;
    stage.agent_settings.max_running = 1;
    let played = played(&stage, "go")?;
    let (_, ended) = most_at_once(&played.events);
    let wanted = 3 + 9 + 27 + 81;
    if ended == wanted { Ok(()) } else { Err(format!("{ended} of {wanted} ended")) }
}

// ---- A6 ----

fn premature(options: &Options) -> Report {
    let mut report = Report::default();
    let (mut ends, mut early) = (0, 0);
    for nth in 0..options.count(40, 400) {
        let mut dice = Dice::new(options.seed, nth);
        let result = waits(&mut dice).and_then(|(seen, before)| {
            ends += seen;
            early += before;
            if before == 0 { Ok(()) } else { Err(format!("{before} of {seen} endings came early")) }
        });
        report.add(format_args!("seed {} try {nth}", options.seed), result);
    }
    let figure = format!("{ends} endings of agents with agents of their own, {early} premature");
    report.figure(figure)
}

/// A child with background agents of random length; gives how many runs ended, and how many of them too early.
fn waits(dice: &mut Dice) -> Result<(usize, usize), String> {
    let inner = 1 + dice.below(4);
    let mut script = String::new();
    for number in 0..inner {
        script += &format!(
            "when agent=worker first=\"inner {number}.\"\n  delay {}ms\n  say \"inner\"\n",
            dice.below(4_000)
        );
    }
    let calls: String = (0..inner).map(|number| agent_call(&format!("inner {number}."), true)).collect();
    script += &format!("when agent=worker first=\"outer\" turn=1\n{calls}");
    script +=
        &format!("when agent=worker first=\"outer\"\n  delay {}ms\n  say \"so far\"\n", dice.below(2_000));
    script += &format!("when turn=1\n{}when\n  say \"over\"\n", agent_call("outer", dice.below(2) == 0));
    let mut stage = stage(&script);
    stage.agent_settings.max_depth = 2;
    let played = played(&stage, "go")?;
    let ledger = Ledger::of(played.events.iter().map(AsRef::as_ref));
    if let Some(problem) = ledger.problems().first() {
        return Err(problem.clone());
    }
    Ok(early_ends(&played.events))
}

/// How many runs of agents ended, and how many of them while an agent of theirs was alive.
fn early_ends(events: &[Arc<Envelope>]) -> (usize, usize) {
    let mut parents: HashMap<AgentId, Option<AgentId>> = HashMap::new();
    let (mut ends, mut early) = (0, 0);
    for envelope in events {
        match (&envelope.event, &envelope.agent) {
            (Event::TaskOpened { record }, _) => {
                if let Ok(agent) = record.task.as_str().parse() {
                    parents.insert(agent, record.parent.clone());
                }
            }
            (Event::RunEnded { .. }, Some(agent)) => {
                ends += 1;
                parents.remove(agent);
                early += usize::from(parents.values().any(|parent| parent.as_ref() == Some(agent)));
            }
            _ => {}
        }
    }
    (ends, early)
}

/// The guards of a stand, killed one after another while the program lives.
pub(super) fn kill_guards(stand: &Stand) -> usize {
    let guards = stand.guards();
    guards.iter().copied().for_each(kill);
    guards.len()
}

/// The outcomes of the agents of a session on disk, and whether each was told once.
pub(super) fn audited(stand: &Stand, id: Uuid) -> Result<Vec<Outcome>, String> {
    stand.wait_until_gone(GONE)?;
    let events = events(&archive(&stand.home.state())?, SessionId(id))?;
    let ledger = Ledger::of(&events);
    match ledger.problems().first() {
        Some(problem) => Err(problem.clone()),
        None => Ok(ledger.outcomes().cloned().collect()),
    }
}
