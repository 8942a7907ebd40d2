//! T10: a disk that does not sync, under `durability: power`. Takes runs whose n-th sync of a file or a folder fails,
//! gives whether anything was shown that was not on the device, and whether the session goes on with all of it.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use uuid::Uuid;

use super::disk::whole_lines;
use super::kill::{Counts, FIRST, Trial, script};
use super::stand::{HANG, Stand, brief, ended_well};
use super::synced::{FOLLOWED, Unsynced};
use super::{Options, Report, Row, has_program, in_parallel};
use crate::proc::Program;
use crate::repo::Repo;

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![Row { id: "T10", what: "syncs that fail under durability: power, each one of a run", run: unsynced }]
}

/// Which call fails, how, and how many in a row. A single failure is mended by writing again; three are waited out.
const FAULTS: [(&str, &str, u64); 8] = [
    ("fdatasync", "EIO", 1),
    ("fdatasync", "ENOSPC", 1),
    ("fdatasync", "EIO", 3),
    ("fdatasync", "ENOSPC", 3),
    ("fsync", "EIO", 1),
    ("fsync", "ENOSPC", 1),
    ("fsync", "EIO", 3),
    ("fsync", "ENOSPC", 3),
];
/// So many of each kind in the short form.
const SHORT: u64 = 1;
/// Waiting costs no processor, so that more runs than cores may go on at the same time.
const WIDER: usize = 3;
/// What a trace holds.
const TRACED: &str = "trace=write,pwrite64,fdatasync,fsync";

fn unsynced(options: &Options) -> Report {
    if !has_program("strace") {
        return Report::broken("strace is not installed");
    }
    let mut report = Report::default();
    let counted = match count(options) {
        Ok(counted) => counted,
        Err(problem) => return Report::broken(format_args!("an undisturbed run: {problem}")),
    };
    let mut cases = Vec::new();
    for (call, error, times) in FAULTS {
        let count = counted.get(call).copied().unwrap_or(0);
        if count == 0 {
            report.failures.push(format!("{call}: nothing is synced so"));
        }
        let step = if options.ci { count.div_ceil(SHORT).max(1) } else { 1 };
        let first = if options.ci { 1 + (options.seed * 7 + times) % step } else { 1 };
        let step = usize::try_from(step).unwrap_or(1);
        cases.extend((first..=count).step_by(step).map(|nth| (call, error, times, nth)));
    }
    let counts = Counts::default();
    let results = in_parallel(options.width * WIDER, &cases, |(call, error, times, nth)| {
        (
            format!("{call} {nth} fails with {error}, {times} in a row"),
            failing(options, call, error, (*nth, *times), &counts),
        )
    });
    let (mut shown, mut hit) = (0, 0);
    for (name, result) in results {
        let (lines, is_hit) = result.as_ref().copied().unwrap_or((0, true));
        shown += lines;
        hit += u64::from(is_hit);
        report.add(name, result.map(drop));
    }
    report.add("what an undisturbed run leaves", leaves_all_synced(options));
    // A run that happens to sync less often than the first one meets no failure.
    if hit * 2 < report.runs {
        report.failures.push(format!("only {hit} of {} runs had a sync that failed", report.runs));
    }
    let left = report.failures.iter().filter(|one| one.contains("not synced: ")).count();
    let wrong = report.failures.iter().filter(|one| one.contains("shown before")).count();
    let lost = report.failures.iter().filter(|one| one.contains("lost") || one.contains("half")).count();
    let figure = format!(
        "{hit} failed syncs: {wrong} with something shown that was not synced (of {shown} lines), {lost} with lost records, \
         {} not continued; {left} undisturbed runs with a file or a name that is not synced",
        report.failures.len() - wrong - lost - left,
    );
    report.figure(figure)
}

/// A traced run whose records must survive a loss of power.
fn traced(stand: &Stand, more: &[String], id: &str) -> Program {
    let mut filter = ["-y", "-s", "200000", "-e", TRACED].map(str::to_owned).to_vec();
    filter.extend_from_slice(more);
    stand.traced(&filter, id, FIRST).env("DECURION_DURABILITY", "power")
}

/// How often one thread syncs files and folders in an undisturbed run, by the call; nothing is shown too early there.
fn count(options: &Options) -> Result<HashMap<&'static str, u64>, String> {
    let stand = Stand::new(options, script).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4().to_string();
    let run = traced(&stand, &[], &id).run(HANG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    let trace = stand.trace();
    if Watch::new(&id).judge(&trace)? == 0 {
        return Err("the trace shows no line of the conversation".into());
    }
    let mut by_thread = HashMap::<(&str, &str), u64>::new();
    for line in &trace {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let called = rest.trim_start();
        if let Some(call) = ["fdatasync", "fsync"].iter().find(|call| called.starts_with(&format!("{call}(")))
        {
            *by_thread.entry((call, thread)).or_default() += 1;
        }
    }
    let mut most = HashMap::new();
    for ((call, _), count) in by_thread {
        let call = if call == "fsync" { "fsync" } else { "fdatasync" };
        let known = most.entry(call).or_insert(0);
        *known = count.max(*known);
    }
    Ok(most)
}

/// An agent in a worktree, which makes a change, so that its lease stays.
fn agent_script(_: &Path) -> String {
    r#"
when agent=general-purpose turn=1
  call Bash command="echo made > made.txt"
when agent=general-purpose
  say "made"
when turn=1
  call Agent {"description": "d", "prompt": "work", "subagent_type": "general-purpose", "isolation": "worktree"}
when
  say "done"
"#
    .to_owned()
}

/// What every run under power has on the device when it ends, by a part of its path.
const KEPT: [&str; 5] = ["/heads/", "/subagents/agent-", "/worktrees/", "/projects/", ".jsonl"];

/// Every file that later sessions rely on, and every name that leads to one, is synced: transcripts, heads, leases, and
/// the folders from the state folder on.
fn leaves_all_synced(options: &Options) -> Result<(), String> {
    let stand = Stand::new(options, agent_script).map_err(|error| error.to_string())?;
    // A sandbox makes folders of the same names in a mount namespace, which the trace cannot tell apart.
    stand.home.switch_sandbox_off().map_err(|error| error.to_string())?;
    let work = stand.home.work();
    std::fs::write(work.join("file"), "x").map_err(|error| error.to_string())?;
    for git in [&["init", "-q"][..], &["add", "."], &["commit", "-qm", "begin"]] {
        Repo::git_at(&work, git).map_err(|error| error.to_string())?;
    }
    let state = stand.home.state();
    // Made by the run itself, name and all.
    let _ = std::fs::remove_dir_all(&state);
    let id = Uuid::new_v4().to_string();
    let filter = ["-y", "-s", "4096", "-e", FOLLOWED].map(str::to_owned);
    let program = stand.traced(&filter, &id, "begin").env("DECURION_DURABILITY", "power");
    ended_well(&program.run(HANG).map_err(|error| error.to_string())?)?;
    let state = state.canonicalize().map_err(|error| error.to_string())?.to_string_lossy().into_owned();
    let trace = stand.trace();
    let waited = runtime_syncs(&trace, &state);
    if !waited.is_empty() {
        return Err(format!("the runtime's thread waits for the device: {}", waited.join(", ")));
    }
    let unsynced = Unsynced::follow(&trace);
    if let Some(part) = KEPT.iter().find(|part| !unsynced.made.iter().any(|path| path.contains(*part))) {
        return Err(format!("the run made nothing with {part} in its path"));
    }
    let left: Vec<String> = unsynced.below(&state).into_iter().filter(|path| is_promised(path)).collect();
    if left.is_empty() { Ok(()) } else { Err(format!("not synced: {}", left.join(", "))) }
}

/// The syncs below the state folder by the thread on which all agents run: while it waits for the device, none of them
/// goes on. It is the first thread of the trace.
fn runtime_syncs(trace: &[String], state: &str) -> Vec<String> {
    let first = trace.first().and_then(|line| line.split_once(' ')).map_or("", |(thread, _)| thread);
    let is_sync = |call: &str| call.starts_with("fsync(") || call.starts_with("fdatasync(");
    trace
        .iter()
        .filter_map(|line| line.split_once(' '))
        .filter(|(thread, _)| *thread == first)
        .map(|(_, call)| call.trim_start())
        .filter(|call| is_sync(call) && call.contains(&format!("<{state}/")))
        .map(str::to_owned)
        .collect()
}

/// Locks and sockets are of a process; what commands print and change is theirs; the notes on agents repeat what the
/// transcripts say.
fn is_promised(path: &str) -> bool {
    let is_checkout = path.split_once("/worktrees/").is_some_and(|(_, rest)| rest.split('/').count() > 2);
    let of_commands = ["/tasks", "/tool-results", "/run", "/lock"];
    let is_note = path.strip_suffix(".meta.json").is_some();
    !is_checkout
        && !is_note
        && !of_commands.iter().any(|part| path.contains(&format!("{part}/")) || path.ends_with(part))
}

/// Gives how many lines of the conversation were shown, and whether a sync failed.
fn failing(
    options: &Options,
    call: &str,
    error: &str,
    (nth, times): (u64, u64),
    counts: &Counts,
) -> Result<(u64, bool), String> {
    let stand = Stand::new(options, script).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4().to_string();
    let when = format!("inject={call}:error={error}:when={nth}..{}", nth + times - 1);
    let mut trial = Trial::new(&stand, &id);
    drop(trial.next_program());
    let run = traced(&stand, &["-e".to_owned(), when], &id).run(HANG).map_err(|error| error.to_string())?;
    let trace = stand.trace();
    let shown = Watch::new(&id).judge(&trace)?;
    let is_hit = trace.iter().any(|line| line.contains("INJECTED"));
    // What comes before the session's first record may be refused: nothing was promised yet.
    let refused = run.ending.code() == 2 && run.errors.contains("state folder") && shown == 0;
    if !refused {
        ended_well(&run).map_err(|problem| format!("{problem} {}", brief(&run.errors)))?;
        whole_lines(&stand.transcript(&id))?;
    }
    trial.after(run, counts)?;
    trial.conclude(counts)?;
    whole_lines(&stand.transcript(&id))?;
    Ok((shown, is_hit))
}

/// Follows a trace: which lines of the transcript are on the device, and which were shown.
struct Watch {
    transcript: String,
    /// Ids of lines that were written and not synced, and of those that were.
    written: HashSet<String>,
    /// Ids that were shown and are of no line so far; most are of things that are never kept.
    unknown: HashSet<String>,
    synced: HashSet<String>,
    /// The call that a thread is in the middle of, by its beginning.
    begun: HashMap<String, String>,
    shown: u64,
}

impl Watch {
    fn new(id: &str) -> Self {
        Self {
            transcript: format!("/{id}.jsonl>"),
            written: HashSet::new(),
            unknown: HashSet::new(),
            synced: HashSet::new(),
            begun: HashMap::new(),
            shown: 0,
        }
    }

    /// How many lines of the conversation were shown, or the first one that was shown too early.
    fn judge(mut self, trace: &[String]) -> Result<u64, String> {
        for line in trace {
            let Some((thread, rest)) = line.split_once(' ') else { continue };
            let rest = rest.trim_start();
            if let Some(begun) = rest.strip_suffix("<unfinished ...>") {
                // What is written counts from its beginning, what is synced from its end.
                self.write(begun)?;
                self.begun.insert(thread.to_owned(), begun.to_owned());
            } else if rest.starts_with("<... ") {
                let begun = self.begun.remove(thread).unwrap_or_default();
                self.sync(&begun, rest);
            } else {
                self.write(rest)?;
                self.sync(rest, rest);
            }
        }
        Ok(self.shown)
    }

    fn write(&mut self, call: &str) -> Result<(), String> {
        let is_write = call.starts_with("write(") || call.starts_with("pwrite64(");
        if is_write && call.contains(&self.transcript) {
            for id in ids(call) {
                if self.unknown.contains(&id) {
                    return Err(format!("shown before it was written: {id}"));
                }
                if !self.synced.contains(&id) {
                    self.written.insert(id);
                }
            }
        } else if call.starts_with("write(1<") {
            for id in ids(call) {
                if self.synced.contains(&id) {
                    self.shown += 1;
                } else if self.written.contains(&id) {
                    return Err(format!("shown before it was synced: {id}"));
                } else {
                    self.unknown.insert(id);
                }
            }
        }
        Ok(())
    }

    fn sync(&mut self, call: &str, result: &str) {
        if call.starts_with("fdatasync(")
            && call.contains(&self.transcript)
            && result.trim_end().ends_with("= 0")
        {
            self.synced.extend(self.written.drain());
        }
    }
}

/// The ids of lines in a text that a trace shows.
fn ids(text: &str) -> Vec<String> {
    text.split("\\\"uuid\\\":\\\"").skip(1).filter_map(|rest| rest.get(..36)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "11111111-2222-4333-8444-555555555555";

    #[test]
    fn a_line_that_is_shown_before_it_is_synced_is_seen() {
        let line = |name: &str| format!(r#"{{\"uuid\":\"{name}-0000-4000-8000-000000000000\"}}"#);
        let write = format!("7 write(9</s/{ID}.jsonl>, \"{}\", 50) = 50", line("aaaaaaaa"));
        let show = format!("6 write(1<pipe:[4]>, \"{}\", 50) = 50", line("aaaaaaaa"));
        let sync = |end: &str| format!("7 fdatasync(9</s/{ID}.jsonl>) {end}");
        let judge = |lines: &[&str]| {
            Watch::new(ID).judge(&lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(judge(&[&write, &sync("= 0"), &show]), Ok(1));
        assert!(judge(&[&write, &show]).is_err());
        assert!(judge(&[&show, &write, &sync("= 0")]).is_err());
        assert!(judge(&[&write, &sync("= -1 EIO (Input/output error) (INJECTED)"), &show]).is_err());
        let (begun, resumed) = (sync("<unfinished ...>"), "7 <... fdatasync resumed>) = 0");
        assert!(judge(&[&write, &begun, &show]).is_err());
        assert_eq!(judge(&[&write, &begun, resumed, &show]), Ok(1));
    }
}
