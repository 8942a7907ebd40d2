//! `decurion audit`: the log of permission decisions, sandbox refusals and connections. Takes a subcommand, prints
//! entries, or says whether the log is as it was written; the exit code of `verify` is 1 if it is not.

use std::collections::VecDeque;

use camino::Utf8Path;
use decurion_protocol::{AuditEntry, AuditKind, Clock as _, PermissionEntry, Verdict};
use decurion_store::audit::{Anchor, AuditProblem, AuditReport, ProblemKind, ReadReport, Recorded};
use decurion_store::{AuditFilter, AuditLog};
use jiff::{SignedDuration, Timestamp};

use crate::args::{AuditCommand, AuditShow};
use crate::clock::SystemClock;
use crate::report::{FAILED, Failure, note, visible};
use crate::screen::TextStyle;
use crate::table::{TableCell, TextTable, ago, short, short_ids};
use crate::wire;

/// How many entries are shown to a person who does not say how many.
const MOST_SHOWN: usize = 1000;

/// Shows or checks the audit log of the state folder.
pub fn run(command: AuditCommand) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let paths = decurion_config::Paths::discover(&cwd, &environment)?;
    let state = wire::state(&paths)?;
    let log = AuditLog::open(&state);
    match command {
        AuditCommand::Show(show) => print_entries(&log, &state, &show).map(|()| 0),
        AuditCommand::Verify { anchor, json } => {
            let anchor = anchor.map(|text| text.parse::<Anchor>()).transpose();
            let anchor = anchor.map_err(|error| Failure::usage(format!("--anchor: {error}")))?;
            let report = log.verify(anchor).map_err(|error| unreadable(&state, &error))?;
            if json {
                let report =
                    serde_json::to_string(&report).map_err(|error| Failure::failed(error.to_string()))?;
                say!("{report}");
            }
            match &report.problem {
                Some(_) if json => Ok(FAILED),
                Some(problem) => Err(damaged(problem, &report, &state)),
                None if json => Ok(0),
                None => {
                    say_whole(&report);
                    Ok(0)
                }
            }
        }
    }
}

fn unreadable(state: &Utf8Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot read the audit log in {state}: {error}"))
}

fn print_entries(log: &AuditLog, state: &Utf8Path, show: &AuditShow) -> Result<(), Failure> {
    let whole_id = show.session.as_deref().and_then(|id| id.parse().ok());
    let beginning = show.session.as_deref().filter(|_| whole_id.is_none()).map(str::to_ascii_lowercase);
    let filter = AuditFilter {
        session: whole_id,
        kind: show.kind.map(|kind| kind.name().to_owned()),
        since: show.since.as_deref().map(|text| since(text, SystemClock::new().date())).transpose()?,
    };
    let wants = |entry: &AuditEntry| match &beginning {
        Some(beginning) => entry.session.is_some_and(|id| id.to_string().starts_with(beginning)),
        None => true,
    };
    let most = show.last.unwrap_or(if show.json { usize::MAX } else { MOST_SHOWN });
    let (mut last, mut count) = (VecDeque::new(), 0_usize);
    let mut take = |recorded: Recorded| {
        if !wants(&recorded.entry) {
            return;
        }
        count += 1;
        if show.json && show.last.is_none() {
            return print_json(&recorded);
        }
        last.push_back(recorded);
        if last.len() > most {
            last.pop_front();
        }
    };
    let read = log.read(&filter, &mut take).map_err(|error| unreadable(state, &error))?;
    if show.json {
        last.iter().for_each(print_json);
    } else {
        print_table(&last);
    }
    match count {
        0 if !show.json => say!("No entries."),
        _ if show.last.is_none() && !show.json && count > MOST_SHOWN => {
            note(format!("{} earlier entries are not shown; --last {count} shows all", count - MOST_SHOWN));
        }
        _ => {}
    }
    warn(read);
    Ok(())
}

/// Reports lines that should not be believed.
fn warn(read: ReadReport) {
    let bad = read.doubtful + read.unreadable;
    if bad > 0 {
        note(format!("{bad} lines of the audit log were changed; see `decurion audit verify`"));
    }
}

fn print_json(recorded: &Recorded) {
    say!("{{\"seq\":{},\"believed\":{},\"entry\":{}}}", recorded.seq, recorded.believed, recorded.raw);
}

fn print_table(entries: &VecDeque<Recorded>) {
    let ids = entries.iter().filter_map(|recorded| recorded.entry.session).map(|id| id.to_string());
    let ids: Vec<String> = ids.collect();
    let length = short_ids(ids.iter().map(String::as_str));
    let mut table = TextTable::new(["WHEN", "SESSION", "AGENT", "RESULT", "WHAT AND WHY"]).whole();
    for recorded in entries {
        let entry = &recorded.entry;
        let session = entry.session.map(|id| id.to_string()).unwrap_or_default();
        let (result, words) = words(entry, &recorded.raw);
        let style = match result {
            "deny" | "refused" => TextStyle::Bad,
            "ask" | "outside" => TextStyle::Warning,
            _ => TextStyle::Plain,
        };
        let words = if recorded.believed { words } else { format!("NOT AS WRITTEN: {words}") };
        table.row([
            ago(Some(entry.at)).into(),
            short(&session, length).into(),
            entry.path.as_str().into(),
            TableCell::new(style, result),
            TableCell::new(if recorded.believed { TextStyle::Plain } else { TextStyle::Bad }, words),
        ]);
    }
    table.print();
}

/// An entry in words: its result, and its subject with the reason.
fn words(entry: &AuditEntry, raw: &str) -> (&'static str, String) {
    match &entry.kind {
        AuditKind::Permission(made) => (verdict_word(made.decision), permission_words(made)),
        AuditKind::Sandbox { title, refused, verified, form } => {
            let by = if *verified {
                format!("the sandbox ({form}) refused")
            } else {
                "the command reports, unverified".to_owned()
            };
            ("refused", format!("{title}: {by}: {refused}"))
        }
        AuditKind::Unsandboxed { title, reason, .. } => {
            ("outside", format!("{title}: ran outside the sandbox: {reason}"))
        }
        AuditKind::Egress { host, port, address, verdict, by, reason, bytes_up, bytes_down } => {
            let address = address.as_deref().map(|address| format!(" ({address})")).unwrap_or_default();
            let by = by.map(|by| format!("{}: ", by.words())).unwrap_or_default();
            let words = format!(
                "connect to {host}:{port}{address}, {bytes_up} bytes up, {bytes_down} bytes down: {by}{reason}"
            );
            (verdict_word(*verdict), words)
        }
        AuditKind::Gap { count, reason } => {
            ("gap", format!("{count} entries could not be written: {reason}"))
        }
        AuditKind::Damage { problem, detail } => {
            ("damage", format!("the log was damaged ({problem}): {detail}"))
        }
        AuditKind::Unknown(_) => ("", format!("{}: {raw}", entry.kind.name())),
    }
}

fn permission_words(made: &PermissionEntry) -> String {
    let by = match &made.rule {
        Some(rule) if made.by.name() == "rule" => format!("rule {rule}"),
        _ => made.by.words().to_owned(),
    };
    // Most titles begin with the name of the tool.
    let tool = if made.title.starts_with(&made.tool) { String::new() } else { format!("{}: ", made.tool) };
    format!("{tool}{}: by {by} (mode {}): {}", made.title, made.mode, made.reason)
}

fn verdict_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Ask => "ask",
        Verdict::Deny => "deny",
    }
}

/// When `--since` means: a time, a day, or so long ago.
fn since(text: &str, now: Timestamp) -> Result<Timestamp, Failure> {
    let ago = || {
        let unit = text.chars().next_back()?;
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 24 * 3600,
            _ => return None,
        };
        let count: i64 = text.strip_suffix(unit)?.parse().ok()?;
        now.checked_sub(SignedDuration::from_secs(count.checked_mul(seconds)?)).ok()
    };
    let day = || format!("{text}T00:00:00Z").parse().ok();
    text.parse().ok().or_else(day).or_else(ago).ok_or_else(|| {
        Failure::usage(format!("--since: not a time: {}", visible(text)))
            .hint("give a time (2026-05-01T12:00:00Z), a day (2026-05-01, UTC) or how long ago (30m, 2h, 7d)")
    })
}

fn say_whole(report: &AuditReport) {
    let Some(anchor) = &report.anchor else {
        return say!("The audit log is empty.");
    };
    let files = if report.segments == 1 { "file" } else { "files" };
    say!("The audit log is intact: {} entries in {} {files}.", report.entries, report.segments);
    if report.unwritten > 0 {
        say!("{} entries could not be written when they were made.", report.unwritten);
    }
    if report.unconfirmed > 0 || report.unfinished_bytes > 0 {
        say!("A process was killed while writing the last entries; the next entry repairs that.");
    }
    say!("Anchor: {anchor}");
}

/// What a person reads about a log that is not whole.
fn damaged(problem: &AuditProblem, report: &AuditReport, state: &Utf8Path) -> Failure {
    let place = match problem.line {
        0 => problem.file.to_string(),
        line => format!("{}:{line}", problem.file),
    };
    let text = format!("the audit log was changed: {place}: {}: {}", problem.kind, problem.detail);
    let mut failure = Failure::failed(text);
    if report.entries > 0 {
        failure = failure.hint(format!("entries up to number {} are intact", report.entries));
    }
    if problem.kind == ProblemKind::Truncated {
        failure =
            failure.hint("a power loss can look the same, unless the setting \"durability\" is \"power\"");
    }
    failure
        .hint(format!(
            "copy {0}/audit and {0}/audit.key to a safe place, and compare with a backup",
            visible(state.as_str())
        ))
        .hint("new entries are still recorded; to start a new log, move both away")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_takes_times_days_and_durations() {
        let now: Timestamp = "2026-05-02T10:00:00Z".parse().unwrap();
        for (text, expected) in [
            ("2026-05-01T12:00:00Z", "2026-05-01T12:00:00Z"),
            ("2026-05-01", "2026-05-01T00:00:00Z"),
            ("30m", "2026-05-02T09:30:00Z"),
            ("2d", "2026-04-30T10:00:00Z"),
        ] {
            assert_eq!(since(text, now).unwrap(), expected.parse().unwrap(), "{text}");
        }
        for text in ["", "d", "yesterday", "99999999999999999999d", "é", "9223372036854775807d"] {
            assert!(since(text, now).is_err(), "{text}");
        }
    }

    #[test]
    fn entry_of_a_later_version_is_shown_as_it_is_written() {
        let raw = r#"{"at":"1970-01-01T00:00:00Z","kind":"teleport","to":"moon"}"#;
        let entry: AuditEntry = serde_json::from_str(raw).unwrap();
        assert_eq!(words(&entry, raw), ("", format!("teleport: {raw}")));
    }
}
