//! T6 and T9: what stands beside a transcript. Takes many programs that want one session at the same time,
//! and side files that are gone or garbled, gives whether one wrote, the others knew who, and nothing was
//! missed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use camino::Utf8PathBuf;
use decurion_protocol::SessionId;
use decurion_store::{Layout, ReplayOptions, replay};
use uuid::Uuid;

use super::disk::whole_lines;
use super::stand::{GONE, HANG, Stand, brief, ended_well};
use super::{Dice, Options, Report, Row, in_parallel};
use crate::proc::{Moment, Running};

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![
        Row { id: "T6", what: "many programs on one session at once; the holder killed", run: races },
        Row { id: "T9", what: "side files and caches gone or garbled", run: caches },
    ]
}

/// A reply that never ends keeps its program on the session.
const SCRIPT: &str = "when text=/finish now/\n  say \"Finished.\"\nwhen text=/stay on/\n  say \"I stay.\"\n  stall\n\
                      when\n  say \"Here I am.\"\n";
/// So many races are run on one session.
const PER_SESSION: u64 = 25;
/// How many want the session at once: mostly two, sometimes many.
const CROWD: u64 = 20;

fn races(options: &Options) -> Report {
    let count = options.count(50, 1_000);
    let sessions: Vec<u64> = (0..count.div_ceil(PER_SESSION)).collect();
    let mut report = Report::default();
    let results = in_parallel(options.width, &sessions, |nth| races_on_one(options, *nth));
    let mut programs = 0;
    for (nth, result) in results.into_iter().enumerate() {
        match result {
            Ok(started) => {
                programs += started;
                report.runs += PER_SESSION;
            }
            Err(problem) => report.add(format_args!("session {nth}"), Err(problem)),
        }
    }
    let figure = format!(
        "{} races of {programs} programs: {} with other than one writer, a wrong holder named or records mixed",
        report.runs,
        report.failures.len()
    );
    report.figure(figure)
}

/// Race after race on one session; gives how many programs took part.
fn races_on_one(options: &Options, nth: u64) -> Result<u64, String> {
    let stand = Stand::new(options, |_| SCRIPT.to_owned()).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4().to_string();
    let first = stand.run_as(&id, "hello").run(HANG).map_err(|error| error.to_string())?;
    ended_well(&first)?;
    let mut dice = Dice::new(options.seed, nth);
    let mut programs = 0;
    for race in 0..PER_SESSION {
        let crowd = if race == 7 { CROWD } else { 2 + dice.below(3) };
        programs += crowd;
        race_once(&stand, &id, race, crowd)
            .map_err(|problem| format!("race {race} of {crowd}: {problem}"))?;
        let next = stand.resume(&id, "finish now").run(HANG).map_err(|error| error.to_string())?;
        ended_well(&next)
            .map_err(|problem| format!("race {race}: after the holder was killed: {problem}"))?;
    }
    stand.check_left()?;
    whole_lines(&stand.transcript(&id))?;
    loads_clean(&stand, &id)?;
    one_writer(&stand, &id)?;
    Ok(programs)
}

/// Of each race, the prompt of one program stands in the transcript, though on more than one line: when it was
/// accepted, and when its turn came.
fn one_writer(stand: &Stand, id: &str) -> Result<(), String> {
    let lines = crate::proc::lines_of(&stand.transcript(id));
    for race in 0..PER_SESSION {
        let end = format!(" of race {race}\"");
        let prompt = |line: &String| {
            let before = &line[..line.find(&end)?];
            before.rfind("stay on, ").map(|start| before[start..].to_owned())
        };
        let written: BTreeSet<String> = lines.iter().filter_map(prompt).collect();
        if written.len() != 1 {
            return Err(format!("{} programs wrote in race {race}", written.len()));
        }
    }
    Ok(())
}

fn race_once(stand: &Stand, id: &str, race: u64, crowd: u64) -> Result<(), String> {
    let start = |nth: u64| stand.resume(id, &format!("stay on, {nth} of race {race}")).start();
    let started = (0..crowd).map(start).collect::<Result<Vec<Running>, _>>();
    let mut running = started.map_err(|error| error.to_string())?;
    // The one that has the session prints its first line; the others end.
    let mut losers = Vec::new();
    let deadline = std::time::Instant::now() + HANG;
    while running.len() > 1 {
        if std::time::Instant::now() > deadline {
            return Err(format!("{} writers at once", running.len()));
        }
        let ended = running.iter().position(|one| !is_alive(one.pid));
        match ended {
            Some(at) => losers.push(running.swap_remove(at).finish(HANG).map_err(|error| error.to_string())?),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    let mut holder = running.pop().ok_or("nobody has the session")?;
    let pid = holder.pid;
    let asked = holder.wait_for_line(HANG, |line| line.contains("\"init\""));
    let killed = holder.kill_at(Moment::After(Duration::ZERO), HANG).map_err(|error| error.to_string())?;
    stand.wait_until_gone(GONE)?;
    if asked.is_none() {
        return Err(format!("nobody has the session: {:?} {}", killed.ending, brief(&killed.errors)));
    }
    for loser in losers {
        let named = loser.errors.contains(&format!("process {pid} "));
        if loser.ending.code() != 2 || !named {
            let errors = brief(&loser.errors);
            return Err(format!(
                "a second comer ended with {:?} (the holder is {pid}): {errors}",
                loser.ending
            ));
        }
    }
    Ok(())
}

fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// That the loader has nothing to say about a transcript that nobody damaged. A kill may tear the end, which
/// the next writer cuts; nothing else may be wrong.
fn loads_clean(stand: &Stand, id: &str) -> Result<(), String> {
    let text = |path: PathBuf| Utf8PathBuf::from_path_buf(path).map_err(|path| path.display().to_string());
    let layout = Layout::new(text(stand.home.state())?);
    let id: SessionId = id.parse().map_err(|error| format!("{error}"))?;
    let paths = layout.session(&text(stand.home.work())?, id);
    let mut last = 0;
    let mut order = Ok(());
    let report = replay(&paths, &ReplayOptions::default(), &mut |envelope| {
        if envelope.seq <= last {
            order = Err(format!("record {} after {last}", envelope.seq));
        }
        last = envelope.seq;
    });
    let report = report.map_err(|error| format!("refused to load: {error}"))?;
    order?;
    match report.problems() {
        Some(problems) => Err(format!("records mixed or lost: {problems}")),
        None => Ok(()),
    }
}

/// What is done to everything that is no transcript.
const DAMAGES: [&str; 5] = ["deleted", "empty", "garbage", "cut in half", "another session's"];
/// So many sessions are to be listed.
const SESSIONS: usize = 6;

fn caches(options: &Options) -> Report {
    let mut report = Report::default();
    for damage in DAMAGES {
        report.add(damage, damaged(options, damage));
    }
    let figure = format!(
        "{} kinds of damage to every side file of {SESSIONS} sessions: all listed and resumed in {}",
        DAMAGES.len(),
        DAMAGES.len() - report.failures.len()
    );
    report.figure(figure)
}

fn damaged(options: &Options, damage: &str) -> Result<(), String> {
    let stand = Stand::new(options, super::kill::script).map_err(|error| error.to_string())?;
    let ids: Vec<String> = (0..SESSIONS).map(|_| Uuid::new_v4().to_string()).collect();
    for id in &ids {
        let run = stand.run_as(id, "begin").run(HANG).map_err(|error| error.to_string())?;
        ended_well(&run)?;
    }
    let mut files = Vec::new();
    collect(&stand.home.state(), &mut files).map_err(|error| error.to_string())?;
    let sides: Vec<&PathBuf> = files.iter().filter(|path| is_side(path)).collect();
    if sides.is_empty() {
        return Err("there is nothing to damage".into());
    }
    for side in &sides {
        spoil(side, damage, sides[0]).map_err(|error| format!("{}: {error}", side.display()))?;
    }
    let list = stand.program(stand.binary()).args(["sessions", "list", "--all", "--json"]);
    let list = list.run(HANG).map_err(|error| error.to_string())?;
    if !list.ending.is_success() {
        return Err(format!("the listing ended with {:?}: {}", list.ending, brief(&list.errors)));
    }
    for id in &ids {
        if !list.output().contains(id.as_str()) {
            return Err(format!("not listed: {id}"));
        }
    }
    let run = stand.resume(&ids[0], "once more").run(HANG).map_err(|error| error.to_string())?;
    ended_well(&run).map_err(|problem| format!("refused: {problem}"))?;
    stand.check_left()
}

/// Whether a file may be lost: it is no transcript, and holds nothing that a transcript refers to.
fn is_side(path: &Path) -> bool {
    let is_transcript = path.extension().is_some_and(|extension| extension == "jsonl");
    let holds = ["blobs", "tool-results", "tasks"];
    let is_content = path.components().any(|part| holds.iter().any(|name| part.as_os_str() == *name));
    !is_transcript && !is_content
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn spoil(path: &Path, damage: &str, other: &Path) -> std::io::Result<()> {
    match damage {
        "deleted" => fs::remove_file(path),
        "empty" => fs::write(path, ""),
        "garbage" => fs::write(path, [0xff, 0x00, b'{', b'"', 0xfe, b'\n'].repeat(100)),
        "cut in half" => {
            let bytes = fs::read(path)?;
            fs::write(path, &bytes[..bytes.len() / 2])
        }
        _ if path == other => Ok(()),
        _ => fs::copy(other, path).map(drop),
    }
}
