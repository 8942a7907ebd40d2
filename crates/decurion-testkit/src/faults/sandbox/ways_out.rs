//! X2: attempts to get out of the sandbox, in a session that asks nothing. Takes the list beside this file, runs it in a
//! session with the sandbox and in one without, gives the attempts that had an effect in the first. One that has none in the
//! second proves nothing on this machine, and does not count.
#![allow(clippy::disallowed_methods)] // a test has a process and servers of its own that are attacked

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::{Outcome, Start, bash, run_session, script_of};
use crate::faults::stand::{Stand, brief};
use crate::faults::{Options, Report, in_parallel};
use crate::proc::Home;

const LIST: &str = include_str!("ways_out.txt");
/// So many attempts at least must work without a sandbox.
const LEAST: usize = 50;

pub(super) fn row(options: &Options) -> Report {
    let attempts: Vec<(&str, &str)> = match list() {
        Ok(attempts) => attempts,
        Err(problem) => return Report::broken(problem),
    };
    let both =
        in_parallel(options.width, &[true, false], |sandboxed| try_all(options, &attempts, *sandboxed));
    let (held, control) = match <[_; 2]>::try_from(both) {
        Ok([Ok(held), Ok(control)]) => (held, control),
        Ok([Err(problem), _] | [_, Err(problem)]) => return Report::broken(problem),
        Err(_) => return Report::broken("two sessions were expected"),
    };
    let mut report = Report::default();
    let (mut working, mut without) = (0, Vec::new());
    for ((name, _), (held, control)) in attempts.iter().zip(held.iter().zip(&control)) {
        let result = if held.worked { Err(format!("had an effect: {}", brief(&held.text))) } else { Ok(()) };
        report.add(name, result);
        if control.worked {
            working += 1;
        } else {
            without.push(*name);
        }
    }
    if working < LEAST {
        report.add("controls", Err(format!("only {working} attempts work without a sandbox: {without:?}")));
    }
    let figure = format!(
        "{} attempts, {} with an effect; {working} of them work without the sandbox (no control here: {})",
        attempts.len(),
        held.iter().filter(|attempt| attempt.worked).count(),
        without.join(", ")
    );
    report.figure(figure)
}

/// What came of an attempt.
struct Attempt {
    worked: bool,
    text: String,
}

fn list() -> Result<Vec<(&'static str, &'static str)>, String> {
    let lines = LIST.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let read = |line: &'static str| {
        let (name, command) = line.split_once(' ').ok_or_else(|| format!("no command: {line}"))?;
        Ok((name, command.trim_start()))
    };
    lines.map(read).collect()
}

fn try_all(options: &Options, attempts: &[(&str, &str)], sandboxed: bool) -> Result<Vec<Attempt>, String> {
    let servers = Servers::start()?;
    let victim = Victim::start()?;
    let mut calls: Vec<Value> = Vec::new();
    let stand = Stand::new(options, |work| {
        let home = work.parent().map(PathBuf::from).unwrap_or_default();
        for (_, command) in attempts {
            let command = filled(command, &home, &servers, victim.0.id());
            // None takes long; one that waits for ever is judged by what it did before.
            calls.push(json!({"command": command, "timeout": 20_000}));
            calls.push(bash(&format!("cd {}", work.display())));
        }
        script_of(&calls)
    })
    .map_err(|error| error.to_string())?;
    prepare(&stand.home).map_err(|error| format!("the folders cannot be made: {error}"))?;
    let _socket =
        UnixListener::bind(out(&stand.home).join("host.sock")).map_err(|error| error.to_string())?;
    if !sandboxed {
        stand.home.let_secrets_leak();
        stand.model.let_secrets_leak();
    }
    let settings = if sandboxed {
        json!({"permissions": {"deny": ["Read(.env)", "Edit(src/secret/**)"]}})
    } else {
        json!({"sandbox": {"enabled": false}})
    };
    let victim_of = |name: &str| out(&stand.home).join(format!("victim-{name}"));
    let before: Vec<_> = attempts.iter().map(|(name, _)| state_of(&victim_of(name))).collect();
    let start = Start::new(settings).arguments(&["--dangerously-skip-permissions"]);
    let outcomes = run_session(&stand, calls.len(), &start)?;
    let judge = |(index, (name, _)): (usize, &(&str, &str))| {
        let Outcome { text, .. } = &outcomes[2 * index];
        // A link that leads nowhere is an effect too.
        let made = out(&stand.home).join(name).symlink_metadata().is_ok();
        let changed = state_of(&victim_of(name)) != before[index];
        Attempt { worked: made || changed || text.contains("EFFECT"), text: text.clone() }
    };
    Ok(attempts.iter().enumerate().map(judge).collect())
}

fn out(home: &Home) -> PathBuf {
    home.path().join("out")
}

/// The command with what is only known when it is run.
fn filled(command: &str, folder: &Path, servers: &Servers, victim: u32) -> String {
    let folder = folder.display();
    let system_call = match command.strip_prefix("SYSCALL(").and_then(|rest| rest.strip_suffix(')')) {
        Some(arguments) => format!(
            "python3 -c 'import ctypes; l = ctypes.CDLL(None, use_errno=True); r = l.syscall({arguments}); \
             e = ctypes.get_errno(); print(\"EFF\" + \"ECT\" if r >= 0 or e not in (1, 13, 38) else e)'"
        ),
        None => command.to_owned(),
    };
    system_call
        .replace("OUT", &format!("{folder}/out"))
        .replace("SECRETS", &format!("{folder}/home"))
        .replace("STATE", &format!("{folder}/.decurion"))
        .replace("ABSTRACT", &servers.abstract_name)
        .replace("PORT", &servers.port.to_string())
        .replace("VICTIM", &victim.to_string())
}

/// Attempts that change a file of their own outside.
const VICTIMS: [&str; 10] = [
    "append",
    "hard-link-in",
    "truncate",
    "delete",
    "move-in",
    "chmod",
    "chown",
    "times",
    "attribute",
    "exchange",
];

/// All that tells whether a file was touched; none if it is gone.
fn state_of(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let status = path.symlink_metadata().ok()?;
    Some((status.ino(), status.len(), status.ctime(), status.ctime_nsec()))
}

/// The project, the secrets of the home folder, and what lies outside.
fn prepare(home: &Home) -> std::io::Result<()> {
    let (work, out) = (home.work(), out(home));
    for folder in [out.join("victim-rmdir"), work.join("src/secret"), work.join("dd"), work.join("hostile")] {
        fs::create_dir_all(folder)?;
    }
    for name in VICTIMS {
        fs::write(out.join(format!("victim-{name}")), "of the machine\n")?;
    }
    for name in [".ssh/id_ed25519", ".aws/credentials", ".netrc", ".bash_history"] {
        let path = home.home().join(name);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, "canary\n")?;
    }
    fs::write(home.state().join("canary"), "canary\n")?;
    for (name, text) in
        [("a.txt", "a\n"), (".env", "canary\n"), (".mcp.json", "{}"), ("src/secret/key", "key\n")]
    {
        fs::write(work.join(name), text)?;
    }
    symlink(&out, work.join("dd/l"))?;
    let fsmonitor = format!("touch {}/c2;true", out.display());
    let git = |folder: PathBuf, arguments: &[&str]| {
        let done = home.program("git").cwd(folder).args(arguments).run(super::HANG)?;
        if done.ending.code() == 0 { Ok(()) } else { Err(std::io::Error::other(brief(&done.errors))) }
    };
    git(work.clone(), &["init", "-q", "-b", "main"])?;
    git(work.clone(), &["add", "a.txt"])?;
    let commit = ["-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", "first"];
    git(work.clone(), &commit)?;
    git(work.join("hostile"), &["init", "-q", "-b", "main"])?;
    git(work.join("hostile"), &["config", "core.fsmonitor", &fsmonitor])?;
    fs::write(work.join(".git/info/attributes"), "")
}

/// A process of the machine that commands must not reach.
struct Victim(Child);

impl Victim {
    fn start() -> Result<Self, String> {
        let mut command = Command::new("sleep");
        command.arg("1200").env("SECRET", "canary-environment").stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().map(Self).map_err(|error| error.to_string())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Servers of the machine: TCP on both loopback addresses where there are two, and an abstract Unix socket.
struct Servers {
    port: u16,
    abstract_name: String,
    _abstract: UnixListener,
}

impl Servers {
    fn start() -> Result<Self, String> {
        let text = |error: std::io::Error| error.to_string();
        let first = TcpListener::bind("127.0.0.1:0").map_err(text)?;
        let port = first.local_addr().map_err(text)?.port();
        let second = TcpListener::bind(("::1", port)).ok();
        for listener in [Some(first), second].into_iter().flatten() {
            // Ends with the program.
            std::thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
                    let _ = std::io::Read::read(&mut stream, &mut [0; 2048]);
                    let _ = stream.write_all(answer);
                }
            });
        }
        let abstract_name = format!("decurion-way-out-{}", uuid::Uuid::new_v4().simple());
        let address = SocketAddr::from_abstract_name(&abstract_name).map_err(text)?;
        let listener = UnixListener::bind_addr(&address).map_err(text)?;
        Ok(Self { port, abstract_name, _abstract: listener })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attempt_has_a_name_of_its_own() {
        let all = list().unwrap();
        let names: std::collections::HashSet<&str> = all.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.len() >= LEAST);
    }
}
