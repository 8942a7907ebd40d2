//! N1: a thousand children that end at the same instant. Takes sessions in simulated time and runs of the real
//! binary that are killed at random moments and taken up again, gives whether each ending was told exactly once,
//! and in how many messages of what size.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use decurion_protocol::SessionId;
use uuid::Uuid;

use super::agents::{agent_call, general_call, played, stage};
use super::ledger::{Ledger, archive};
use super::stand::{GONE, HANG, Stand, ended_well};
use super::{Dice, Options, Report, Row, in_parallel};
use crate::proc::Moment;

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![Row { id: "N1", what: "1,000 children that end at the same instant, also across SIGKILL", run: row }]
}

const MANY: usize = 1_000;
/// In most runs that are killed, so that there can be hundreds of them.
const FEWER: usize = 100;
/// Every so many-th run that is killed has the full number.
const FULL_EVERY: u64 = 10;
/// The most messages, and the most bytes of one.
const MOST_MESSAGES: usize = 12;
const MOST_BYTES: usize = 100_000;
/// A session is killed at most so often.
const CHAIN: u64 = 3;

fn row(options: &Options) -> Report {
    let mut report = Report::default();
    let mut shapes = Vec::new();
    for at in ["idle", "in the middle of a turn", "waiting"] {
        let result =
            together(at).map(|(messages, largest)| shapes.push(format!("{at}: {messages} of ≤ {largest} B")));
        report.add(format_args!("parent {at}"), result);
    }
    let kills = AtomicU64::new(0);
    let wanted = options.count(10, 500);
    match lengths(options) {
        Ok(lengths) => killed_runs(options, &lengths, wanted, &kills, &mut report),
        Err(problem) => report.failures.push(format!("an undisturbed run: {problem}")),
    }
    let count = |word: &str| report.failures.iter().filter(|failure| failure.contains(word)).count();
    let figure = format!(
        "{MANY} at once, messages {}; {} kills of the binary ({MANY} children in every {FULL_EVERY}th run, else {FEWER}): {} lost, {} double",
        shapes.join(", "),
        kills.load(Ordering::Relaxed),
        count("lost"),
        count("double")
    );
    report.figure(figure)
}

/// All of them end at one instant of simulated time; gives how many messages told of them, and the largest.
fn together(at: &str) -> Result<(usize, usize), String> {
    let calls: String = (0..MANY).map(|number| agent_call(&format!("part {number}"), true)).collect();
    let second = match at {
        "waiting" => {
            "when turn=2 result=/agentId: (\\w+)/\n  call TaskOutput {\"task_id\": \"$1\", \"timeout\": 60000}\n"
        }
        "idle" => "when turn=2\n  say \"started\"\n",
        _ => "when turn=2\n  delay 20s\n  call Echo {\"text\": \"busy\"}\n",
    };
    let script = format!(
        "when agent=worker\n  delay 10s\n  say \"this is what I found\"\nwhen turn=1\n{calls}{second}when\n  say \"heard\"\n"
    );
    let mut stage = stage(&script);
    stage.agent_settings.max_running = 2_000;
    // A conversation that is shortened would begin to count its turns anew.
    stage.info.window = 100_000_000;
    let played = played(&stage, "go")?;
    let ledger = Ledger::read(&stage.archive(), played.session)?;
    judge(&ledger, Some(MANY))?;
    // Only here do they end at one instant; the binary hears of them as they come.
    if ledger.messages.len() > MOST_MESSAGES {
        return Err(format!("told in {} messages", ledger.messages.len()));
    }
    Ok((ledger.messages.len(), ledger.messages.iter().copied().max().unwrap_or_default()))
}

/// Each ending once, in messages that are not too large. How many there must be is known only of a run that was not killed.
fn judge(ledger: &Ledger, wanted: Option<usize>) -> Result<(), String> {
    if let Some(problem) = ledger.problems().first() {
        return Err(format!("{problem} (and {} more)", ledger.problems().len() - 1));
    }
    let (begun, ended) = (ledger.begun.len(), ledger.outcomes().count());
    if begun != ended || wanted.is_some_and(|wanted| wanted != begun) {
        return Err(format!("lost: {begun} began and {ended} ended"));
    }
    let largest = ledger.messages.iter().copied().max().unwrap_or_default();
    if largest > MOST_BYTES { Err(format!("a message of {largest} bytes")) } else { Ok(()) }
}

fn script(children: usize) -> String {
    let calls: String = (0..children).map(|number| general_call(&format!("part {number}"), true)).collect();
    format!(
        "when agent=main turn=1\n{calls}when agent=main\n  say \"heard\"\nwhen\n  delay 300ms\n  say \"this is what I found\"\n"
    )
}

/// All may run at once, and what they say fits: a conversation that is shortened begins to count its turns anew.
const SETTINGS: &str = r#"{"agents":{"maxRunning":2000},
    "models":{"catalogue":{"claude-sonnet-4-6":{"window":100000000}}}}"#;
const WITH: [&str; 4] = ["--model", "claude-sonnet-4-6", "--settings", SETTINGS];

/// How long undisturbed runs take while others run beside them: of few and of many children.
fn lengths(options: &Options) -> Result<[Duration; 2], String> {
    let length = |children: usize| {
        let stand = Stand::new(options, |_| script(children)).map_err(|error| error.to_string())?;
        let id = Uuid::new_v4();
        let program = stand.run_as(&id.to_string(), "go").args(WITH);
        let run = program.run(HANG).map_err(|error| error.to_string())?;
        ended_well(&run)?;
        judge(&Ledger::read(&archive(&stand.home.state())?, SessionId(id))?, Some(children))?;
        Ok::<_, String>(run.wall)
    };
    Ok([length(FEWER)?, length(MANY)?])
}

fn killed_runs(
    options: &Options,
    lengths: &[Duration; 2],
    wanted: u64,
    kills: &AtomicU64,
    report: &mut Report,
) {
    // More sessions than are needed: a run may be through before its kill comes.
    let sessions: Vec<u64> = (0..wanted * 4).collect();
    let results = in_parallel(options.width, &sessions, |nth| {
        if kills.load(Ordering::Relaxed) >= wanted {
            return None;
        }
        let (children, length) = if nth % FULL_EVERY == 0 { (MANY, lengths[1]) } else { (FEWER, lengths[0]) };
        Some(killed(options, &mut Dice::new(options.seed, *nth), children, length, kills))
    });
    for (nth, result) in results.into_iter().enumerate() {
        if let Some(result) = result {
            report.add(format_args!("session {nth}"), result);
        }
    }
}

/// One session, killed a few times, then taken up until it is quiet.
fn killed(
    options: &Options,
    dice: &mut Dice,
    children: usize,
    length: Duration,
    kills: &AtomicU64,
) -> Result<(), String> {
    let stand = Stand::new(options, |_| script(children)).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4().to_string();
    let next = |prompt: &str| {
        let begun = stand.transcript(&id).exists();
        let program = if begun { stand.resume(&id, prompt) } else { stand.run_as(&id, prompt) };
        program.args(WITH)
    };
    for _ in 0..=dice.below(CHAIN) {
        let running = next("go").start().map_err(|error| error.to_string())?;
        let run =
            running.kill_at(Moment::After(dice.time(length)), HANG).map_err(|error| error.to_string())?;
        if run.timed_out {
            return Err("hangs instead of running".into());
        }
        stand.wait_until_gone(GONE)?;
        kills.fetch_add(u64::from(!run.ending.is_success()), Ordering::Relaxed);
    }
    let run = next("go on").run(HANG).map_err(|error| error.to_string())?;
    ended_well(&run).map_err(|problem| format!("refused to go on: {problem}"))?;
    stand.check_left()?;
    let session = SessionId(id.parse().map_err(|error| format!("{error}"))?);
    judge(&Ledger::read(&archive(&stand.home.state())?, session)?, None)
}
