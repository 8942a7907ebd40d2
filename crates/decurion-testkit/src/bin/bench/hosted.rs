//! What the protocol for programs costs. Takes the bench, lets a host lead one process through a thousand turns, line by
//! line, and the same thousand turns be taken by `-p`, which is a process for each, since `-p` answers one prompt; prints
//! the CPU per turn of both.
//!
//! A process for each turn pays for its start and for reading the session back, which a host does not. So the comparison
//! is made twice: as users meet it, which is what the goal is about, and with the start of a process taken off `-p`'s side
//! and off ours, at the first turns, where there is nothing to read back yet.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use decurion_testkit::proc::{Finished, Home, Program};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Bench, Server, median};

const TURNS: usize = 1000;
/// How many first turns are compared without what a process costs.
const FIRST: usize = 50;
/// So many times what `-p` takes.
const GOAL: f64 = 1.2;
/// A run that takes longer hangs.
const HANG: Duration = Duration::from_secs(600);

const MODEL: [&str; 3] = ["--dangerously-skip-permissions", "--model", "claude-sonnet-4-6"];

/// All of it; whether the goal was met.
pub fn run(bench: &Bench) -> Result<bool> {
    let server = Server::start(&bench.program("fakemodel"), 0)?;
    let hosted = hosted(bench, &server, TURNS)?;
    let alone = alone(bench, &server)?;
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let per_turn = |sum: f64, turns: usize| sum / turns as f64;
    let (ours, theirs) = (per_turn(hosted, TURNS), per_turn(alone.iter().sum(), TURNS));
    let met = show("CPU per turn, 1,000 turns (host, `-p`)", ours, theirs, Some(GOAL));
    let mut starts = Vec::new();
    for _ in 0..9 {
        starts.push(self::hosted(bench, &server, 0)?);
    }
    let start = median(starts);
    let few = self::hosted(bench, &server, FIRST)?;
    let first: Vec<f64> = alone.iter().take(FIRST).map(|cpu| cpu - start).collect();
    show(
        "the same for the first 50, less the start of a process",
        per_turn(few - start, FIRST),
        median(first),
        Some(GOAL),
    );
    println!("start and end of a process that a host asks for nothing: {start:.2} ms");
    Ok(met)
}

fn show(what: &str, ours: f64, theirs: f64, goal: Option<f64>) -> bool {
    let ratio = ours / theirs;
    let met = goal.is_none_or(|goal| ratio <= goal);
    let verdict = if met { "met" } else { "MISSED" };
    let goal = goal.map_or_else(String::new, |goal| format!("goal ≤ {goal}×  {verdict}"));
    println!("{what:<56} {ours:>8.2} {theirs:>8.2} ms {ratio:>6.2}×  {goal}");
    met
}

fn program(bench: &Bench, home: &Home, server: &Server) -> Program {
    home.program(bench.program("decurion"))
        .args(["-p"])
        .args(MODEL)
        .env("ANTHROPIC_BASE_URL", &server.url)
        .env("ANTHROPIC_API_KEY", "bench")
}

/// The CPU of one process that a host leads through so many turns, each begun when the one before it has ended.
fn hosted(bench: &Bench, server: &Server, turns: usize) -> Result<f64> {
    let home = Home::new()?;
    let hosted = ["--input-format", "stream-json", "--output-format", "stream-json", "--verbose"];
    let mut running = program(bench, &home, server).args(hosted).start_talking()?;
    let request = json!({"type": "control_request", "request_id": "i", "request": {"subtype": "initialize"}});
    running.say(&request.to_string())?;
    let is = |line: &str, kind: &str| line.starts_with(&format!("{{\"type\":\"{kind}\""));
    running.wait_for_line(HANG, |line| is(line, "control_response")).context("not answered")?;
    let prompt = json!({"type": "user", "message": {"role": "user", "content": "go"}}).to_string();
    for turn in 0..turns {
        running.say(&prompt)?;
        let line = running.wait_for_line(HANG, |line| is(line, "result"));
        let line: Value = serde_json::from_str(&line.with_context(|| format!("turn {turn} has no result"))?)?;
        ensure!(line["is_error"] == false, "turn {turn} failed: {line}");
    }
    running.hang_up();
    cpu(&running.finish(HANG)?)
}

/// The CPU of each of the processes that take the same turns one by one, in one session.
fn alone(bench: &Bench, server: &Server) -> Result<Vec<f64>> {
    let (home, session) = (Home::new()?, Uuid::new_v4().to_string());
    let mut all = Vec::with_capacity(TURNS);
    for turn in 0..TURNS {
        let session = [if turn == 0 { "--session-id" } else { "--resume" }, &session];
        let shown = ["--output-format", "stream-json", "--verbose"];
        all.push(cpu(&program(bench, &home, server).args(session).args(shown).arg("go").run(HANG)?)?);
    }
    Ok(all)
}

fn cpu(run: &Finished) -> Result<f64> {
    ensure!(run.ending.is_success() && !run.timed_out, "ended with {:?}: {}", run.ending, run.errors);
    Ok(run.used.cpu().as_secs_f64() * 1000.0)
}
