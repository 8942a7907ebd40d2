//! X1: commands that only read need no question, and print what they print without a sandbox. Takes the list beside this
//! file and a small project, gives the commands that were asked about, stopped, or printed something else.
#![allow(clippy::disallowed_methods)] // a test runs the same commands with a plain shell

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use serde_json::json;

use super::{Outcome, Start, bash, run_session, script_of};
use crate::faults::stand::{Stand, brief};
use crate::faults::{Options, Report, in_parallel};
use crate::proc::Home;

const LIST: &str = include_str!("harmless.txt");
/// So many commands at least have to be tried.
const LEAST: usize = 300;

struct Harmless {
    command: String,
    /// Whether it prints the same each time.
    steady: bool,
}

pub(super) fn row(options: &Options) -> Report {
    let all = match list() {
        Ok(all) => all,
        Err(problem) => return Report::broken(problem),
    };
    // In the short form two sessions at the same time, else one session with all of them.
    let size = if options.ci { all.len().div_ceil(2) } else { all.len() };
    let parts: Vec<&[Harmless]> = all.chunks(size).collect();
    let mut report = Report::default();
    let (mut asked, mut stopped, mut equal, mut compared) = (0, 0, 0, 0);
    for (part, results) in parts.iter().zip(in_parallel(options.width, &parts, |part| try_all(options, part)))
    {
        let results = match results {
            Ok(results) => results,
            Err(problem) => return Report::broken(problem),
        };
        for (one, (outcome, plain)) in part.iter().zip(results) {
            asked += usize::from(outcome.asked);
            stopped += usize::from(outcome.stopped());
            compared += usize::from(one.steady);
            equal += usize::from(one.steady && outcome.text == plain);
            report.add(&one.command, judge(one, &outcome, &plain));
        }
    }
    if all.len() < LEAST {
        report.add("the list", Err(format!("{} commands, fewer than {LEAST}", all.len())));
    }
    report.figure(format!(
        "{} harmless commands: {asked} asked about, {stopped} stopped, {equal} of {compared} that print the same each \
         time are byte-equal to plain bash",
        all.len()
    ))
}

fn judge(one: &Harmless, outcome: &Outcome, plain: &str) -> Result<(), String> {
    if outcome.asked {
        return Err(format!("asked: {}", brief(&outcome.text)));
    }
    if outcome.stopped() {
        return Err(format!("stopped: {}", brief(&outcome.text)));
    }
    if one.steady && outcome.text != plain {
        return Err(format!("printed {:?}, plain bash {:?}", brief(&outcome.text), brief(plain)));
    }
    Ok(())
}

/// The commands of the list.
fn list() -> Result<Vec<Harmless>, String> {
    let lines = LIST.lines().filter(|line| !line.is_empty() && !line.starts_with("# "));
    let read = |line: &str| {
        let (steady, text) = line.strip_prefix("~ ").map_or((true, line), |rest| (false, rest));
        let command = if text.starts_with('"') {
            serde_json::from_str(text).map_err(|error| format!("{text}: {error}"))?
        } else {
            text.to_owned()
        };
        Ok(Harmless { command, steady })
    };
    lines.map(read).collect()
}

/// Runs the commands in a session and with plain bash, in the same folder.
fn try_all(options: &Options, commands: &[Harmless]) -> Result<Vec<(Outcome, String)>, String> {
    let mut calls = Vec::new();
    let mut places = Vec::new();
    // The shell stays where a command leaves it, so each of them is called back.
    let stand = Stand::new(options, |work| {
        let back = format!("cd {}", work.display());
        for one in commands {
            places.push(calls.len());
            calls.push(bash(&one.command));
            if one.command.contains("cd ") || one.command.contains("pushd ") {
                calls.push(bash(&back));
            }
        }
        script_of(&calls)
    })
    .map_err(|error| error.to_string())?;
    make_project(&stand.home)?;
    let outcomes = run_session(&stand, calls.len(), &Start::new(json!({})))?;
    let plain = |one: &Harmless| {
        if one.steady { in_plain_bash(&stand.home, &one.command) } else { Ok(String::new()) }
    };
    commands.iter().zip(places).map(|(one, at)| Ok((outcomes[at].clone(), plain(one)?))).collect()
}

/// What plain bash prints for a command, in the form in which a model reads it.
fn in_plain_bash(home: &Home, command: &str) -> Result<String, String> {
    let program =
        home.program("bash").args(["-c", "exec 2>&1; exec bash --noprofile --norc -c \"$0\" bash", command]);
    let mut plain = Command::new("bash");
    plain.args(program.command().get_args()).current_dir(home.work()).stdin(Stdio::null()).env_clear();
    plain.envs(program.command().get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = plain.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).trim_end_matches(['\n', '\r']).to_owned();
    Ok(match (output.status.code().unwrap_or(-1), text.is_empty()) {
        (0, true) => decurion_tools::shell::NO_OUTPUT.to_owned(),
        (0, false) => text,
        (code, true) => format!("Exit code {code}"),
        (code, false) => format!("Exit code {code}\n{text}"),
    })
}

/// A small project as people have them, with two commits and a change.
fn make_project(home: &Home) -> Result<(), String> {
    let work = home.work();
    let write = |name: &str, text: &str| {
        let path = work.join(name);
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(path, text))
            .map_err(|error| format!("{name}: {error}"))
    };
    for (name, text) in FILES {
        write(name, text)?;
    }
    for folder in [".venv/bin", "docs"] {
        fs::create_dir_all(work.join(folder)).map_err(|error| error.to_string())?;
    }
    symlink("/usr/bin/python3", work.join(".venv/bin/python")).map_err(|error| error.to_string())?;
    let made =
        home.program("bash").args(["-ec", SETUP]).run(super::HANG).map_err(|error| error.to_string())?;
    if made.ending.code() != 0 {
        return Err(format!("the project cannot be made: {}", brief(&made.errors)));
    }
    write("src/main.rs", "// TODO: print more\nfn main() {\n    println!(\"one two\");\n}\n")
}

const FILES: &[(&str, &str)] = &[
    ("a.txt", "one\ntwo 2\nthree a.b\n"),
    ("b.txt", "two  2\nfour\nfive five\n"),
    ("data.csv", "name,count\napples,3\npears,5\n"),
    (
        "package.json",
        r#"{"name": "sample", "version": "1.2.3", "scripts": {"test": "true"}, "dependencies": {}}"#,
    ),
    ("list.json", r#"[{"n": 1}, {"n": 2}]"#),
    ("tool.py", "import sys\n\ndef run():\n    return 1\n"),
    ("Makefile", "all:\n\techo building\n"),
    ("Cargo.toml", "[package]\nname = \"sample\"\n"),
    (".gitignore", "target\n.venv\n"),
    ("src/main.rs", "fn main() {\n    println!(\"one\");\n}\n"),
    ("src/lib.rs", "pub fn add(a: u32, b: u32) -> u32 {\n    a + b\n}\n"),
    ("tests/it.rs", "// TODO\n#[test]\nfn works() {}\n"),
    ("old.log", "first\nsecond\n"),
];

const SETUP: &str = "gzip -nk old.log; tar cf old.tar old.log; zip -qX old.zip old.log
export GIT_AUTHOR_NAME=Test GIT_AUTHOR_EMAIL=t@x GIT_COMMITTER_NAME=Test GIT_COMMITTER_EMAIL=t@x
export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
git init -q -b main .; git config user.name Test; git add .; git commit -qm first; git tag v1
echo last >> a.txt; git commit -qam second";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_long_enough_and_names_each_command_once() {
        let all = list().unwrap();
        let names: std::collections::HashSet<&str> = all.iter().map(|one| one.command.as_str()).collect();
        assert!(all.len() >= LEAST, "{}", all.len());
        assert_eq!(names.len(), all.len());
    }
}
