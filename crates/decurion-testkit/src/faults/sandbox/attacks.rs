//! X7: attacks that security engineers with the source found, judged by effect. Takes the lists in `attacks/`, runs each
//! attack in sessions of a scripted model, one per permission mode, and gives those that had an effect. The control is
//! the same attack without a sandbox, rules or questions: one that has no effect there proves nothing on this machine.
//! Controls run in a bubblewrap of their own, in which only the folders of the test can be written. Some attacks are tried
//! with the other forms of the sandbox too.
#![allow(clippy::disallowed_methods)] // a test has a server of its own that is attacked

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use decurion_exec::Form;
use serde::Deserialize;
use serde_json::{Value, json};

use super::systems::Systems;
use super::{session_form, start_by, text_of};
use crate::faults::stand::{Stand, brief};
use crate::faults::{Options, Report, in_parallel};
use crate::proc::{Home, Program};

const LISTS: [&str; 6] = [
    include_str!("attacks/files.jsonl"),
    include_str!("attacks/kernel.jsonl"),
    include_str!("attacks/repositories.jsonl"),
    include_str!("attacks/startup.jsonl"),
    include_str!("attacks/network.jsonl"),
    include_str!("attacks/further.jsonl"),
];
/// An attack that makes a session take longer than this has an effect: the session hangs.
const HANG: Duration = Duration::from_secs(120);
/// A session that takes so many seconds is named.
const SLOW: u64 = 10;
/// People are told how far the row is after so many sessions.
const TOLD: usize = 100;
/// How many attacks there are for each that the short form tries.
const ONE_IN: usize = 40;
/// What a session denies in the modes that have rules.
const DENIED: [&str; 3] = ["Read(.env)", "Edit(src/secret/**)", "Bash(rm:*)"];

/// One attack. `$OUT` (a folder outside of the project), `$WORK` (the project), `$HOME`, `$STATE` (our own folder), `$BIN`
/// (the program), `$PORT` (a server of the machine) and `$LISTED` (another one) are replaced in its texts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Attack {
    name: String,
    /// Run by the person beforehand.
    #[serde(default)]
    setup: String,
    /// The model's calls, one a turn: a tool and its input.
    calls: Vec<(String, Value)>,
    /// Run by the person afterwards.
    #[serde(default)]
    after: String,
    /// Succeeds if the attack had its effect.
    effect: String,
    /// More rules for the modes that have some.
    #[serde(default)]
    deny: Vec<String>,
    #[serde(default)]
    settings: Value,
    #[serde(default = "usual_modes")]
    modes: Vec<Mode>,
    /// Whether the person trusts the project.
    #[serde(default)]
    trusted: bool,
    /// The forms of the sandbox with which it is tried too, as if the system allowed nothing stronger.
    #[serde(default)]
    forms: Vec<OtherForm>,
    /// Whether the system knows the names of `systems.c`, one of which has another address each time.
    #[serde(default)]
    names: bool,
    #[serde(default)]
    control: Control,
}

/// How the control differs from the attack without a sandbox, rules and questions, for attacks that these do not stop.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Control {
    /// The mode that it is tried in instead.
    mode: Option<Mode>,
    /// Rules that it has.
    permissions: Value,
    /// Run by the person afterwards instead.
    after: Option<String>,
    /// Why there can be none.
    none: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum OtherForm {
    Bubblewrap,
    Landlock,
}

impl From<OtherForm> for Form {
    fn from(form: OtherForm) -> Self {
        match form {
            OtherForm::Bubblewrap => Self::Bubblewrap,
            OtherForm::Landlock => Self::Landlock,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Try<'a> {
    attack: &'a Attack,
    mode: Mode,
    /// None for the strongest form that the system allows.
    form: Option<Form>,
}

impl Try<'_> {
    fn name(&self) -> String {
        let form = self.form.map(|form| format!(" with {}", form.name())).unwrap_or_default();
        format!("{} in mode {:?}{form}", self.attack.name, self.mode)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Mode {
    Default,
    Deny,
    Plan,
    AcceptEdits,
    /// Every command is allowed by a rule.
    Allow,
    /// The same without rules that deny.
    Open,
    Bypass,
    /// No sandbox, no rule, no question.
    Control,
}

fn usual_modes() -> Vec<Mode> {
    vec![Mode::Default, Mode::Deny, Mode::Plan, Mode::AcceptEdits]
}

pub(super) fn row(options: &Options) -> Report {
    let attacks = match list() {
        Ok(attacks) => attacks,
        Err(problem) => return Report::broken(problem),
    };
    let systems = match Systems::compile() {
        Ok(systems) => systems,
        Err(problem) => return Report::broken(problem),
    };
    let tries = attacks.iter().enumerate().flat_map(|(index, attack)| tries_of(options, index, attack));
    let tries: Vec<Try<'_>> = tries.filter(|one| options.is_chosen(&one.name())).collect();
    let finished = AtomicUsize::new(0);
    let done = in_parallel(options.width, &tries, |one| {
        let begun = Instant::now();
        let result = try_once(options, &systems, *one);
        let (number, seconds) = (finished.fetch_add(1, Ordering::Relaxed) + 1, begun.elapsed().as_secs());
        if seconds >= SLOW {
            (options.tell)(&format!("     {} took {seconds} s", one.name()));
        }
        if number % TOLD == 0 {
            (options.tell)(&format!("     {number} of {} sessions", tries.len()));
        }
        result
    });
    let mut report = Report::default();
    let (mut effects, mut controls, mut without) = (0, 0, Vec::new());
    for (one, done) in tries.iter().zip(done) {
        let result = match (one.mode, done) {
            (_, Err(problem)) => Err(problem),
            (Mode::Control, Ok(effect)) => {
                controls += 1;
                if effect.is_none() {
                    without.push(one.attack.name.as_str());
                }
                Ok(())
            }
            (_, Ok(None)) => Ok(()),
            (_, Ok(Some(text))) => {
                effects += 1;
                Err(format!("had an effect: {}", brief(&text)))
            }
        };
        report.add(one.name(), result);
    }
    let sessions = tries.len() - controls;
    report.figure(format!(
        "{} attacks in {sessions} sessions, {effects} with an effect; {} of {controls} controls have theirs (not here: {})",
        attacks.len(),
        controls - without.len(),
        without.join(", ")
    ))
}

/// The short form tries one attack in forty, others with another seed, in one mode and without a sandbox.
fn tries_of<'a>(options: &Options, index: usize, attack: &'a Attack) -> Vec<Try<'a>> {
    let turn = index.wrapping_add(usize::try_from(options.seed).unwrap_or_default());
    let usual = attack.modes.iter().map(|mode| (*mode, None));
    // With other forms what matters is what a command can do that may do most.
    let all: Vec<_> =
        usual.chain(attack.forms.iter().map(|form| (Mode::Allow, Some((*form).into())))).collect();
    let chosen = match (options.ci, turn % ONE_IN) {
        (false, _) => all,
        (true, 0) => all.get(turn / ONE_IN % all.len()).copied().into_iter().collect(),
        (true, _) => return Vec::new(),
    };
    let control = attack.control.none.is_none().then_some((Mode::Control, None));
    let chosen = chosen.into_iter().chain(control);
    chosen.map(|(mode, form)| Try { attack, mode, form }).collect()
}

fn list() -> Result<Vec<Attack>, String> {
    let lines = LISTS.iter().flat_map(|list| list.lines()).filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))).collect()
}

/// What the model read if the attack had its effect.
fn try_once(options: &Options, systems: &Systems, one: Try<'_>) -> Result<Option<String>, String> {
    let Try { attack, mode, form } = one;
    let text = |error: std::io::Error| error.to_string();
    let (server, listed) = (Server::start().map_err(text)?, Server::start().map_err(text)?);
    let mut names = Names::default();
    let stand = Stand::seen_by_commands(options, |work| {
        names = Names::new(work, [server.port, listed.port]);
        script_of(&attack.calls, &names)
    })
    .map_err(text)?;
    prepare(&stand.home).map_err(text)?;
    let is_control = mode == Mode::Control;
    let mode = attack.control.mode.filter(|_| is_control).unwrap_or(mode);
    let contain = mode == Mode::Control;
    if contain {
        stand.home.let_secrets_leak();
        stand.model.let_secrets_leak();
    }
    let shell = |script: &str, contained: &[&str]| {
        let program = stand.home.program("bash");
        let program =
            if contain { contained_in(&stand.home, program, "bash".as_ref(), contained) } else { program };
        let program = program.args(["-c", &names.fill(script)]).env("GIT_CONFIG_NOSYSTEM", "1");
        // Where an attack has broken its repository, the person's git must not find the one around the binaries.
        let program = program.env("GIT_CEILING_DIRECTORIES", stand.home.path());
        let program = program.env("DECURION_HOME", stand.home.home().join(".decurion"));
        program.env("RESULTS", stand.home.path().join("results")).run(HANG)
    };
    if !attack.setup.is_empty() {
        // What it starts in the background is attacked, and lives until the stand is dropped.
        let done = shell(&attack.setup, &[]).map_err(text)?;
        if done.ending.code() != 0 {
            return Err(format!("its setup fails: {}", brief(&done.errors)));
        }
    }
    let mut settings = settings(attack, mode, &names);
    // The file of other tools knows nothing of ours.
    let own = settings.as_object_mut().and_then(|settings| settings.remove("print"));
    if let Some(print) = own {
        fs::write(stand.home.home().join(".decurion/settings.json"), json!({ "print": print }).to_string())
            .map_err(text)?;
    }
    fs::write(stand.home.home().join(".claude/settings.json"), settings.to_string()).map_err(text)?;
    if attack.trusted {
        decurion(&stand, systems, contain, &[]).args(["trust", "--yes"]).run(HANG).map_err(text)?;
    }
    let words = if attack.names || form.is_some() {
        systems.words(form.unwrap_or(Form::Namespaces))
    } else {
        Vec::new()
    };
    let run = decurion(&stand, systems, contain, &words).args([
        "-p",
        "--output-format",
        "stream-json",
        "--verbose",
    ]);
    let run = run.args(arguments(mode)).arg("go").run(HANG).map_err(text)?;
    if run.timed_out {
        return Ok(Some("the session hangs".into()));
    }
    let used = session_form(&run.lines);
    if let Some(form) = form.filter(|form| form.name() != used) {
        return Err(format!("the form of its sandbox is {used} instead of {}", form.name()));
    }
    let results = results_of(&stand);
    fs::write(stand.home.path().join("results"), &results).map_err(text)?;
    let after = attack.control.after.as_ref().filter(|_| is_control).unwrap_or(&attack.after);
    if !after.is_empty() {
        shell(after, &ALONE).map_err(text)?;
    }
    for (name, server) in [("http.log", &server), ("listed.log", &listed)] {
        fs::write(stand.home.path().join("out").join(name), server.paths()).map_err(text)?;
    }
    let judged = shell(&attack.effect, &ALONE).map_err(text)?;
    Ok((judged.ending.code() == 0).then_some(results))
}

/// The program, started by these words.
fn decurion(stand: &Stand, systems: &Systems, contain: bool, words: &[OsString]) -> Program {
    let program = start_by(words, stand).env("DECURION_HOME", stand.home.home().join(".decurion"));
    if !contain {
        return program;
    }
    match words {
        [] => contained_in(&stand.home, program, stand.binary().as_os_str(), &ALONE),
        // The library lies in the folder for temporary files, which is another one there.
        [first, rest @ ..] => {
            let library = systems.folder().as_os_str();
            let options = ALONE.map(OsStr::new).into_iter().chain(["--ro-bind".as_ref(), library, library]);
            let options: Vec<&OsStr> = options.collect();
            contained_in(&stand.home, program, first, &options).args(rest).arg(stand.binary())
        }
    }
}

/// What a control runs in sees no process of the machine, and ends as a whole.
const ALONE: [&str; 2] = ["--unshare-pid", "--die-with-parent"];

/// Bubblewrap that starts a program with a system that can only be read.
fn contained_in(home: &Home, program: Program, binary: &OsStr, options: &[impl AsRef<OsStr>]) -> Program {
    let around = ["--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"];
    let program = program.instead("bwrap").args(around).args(options).arg("--bind");
    program.arg(home.path()).arg(home.path()).arg("--").arg(binary)
}

fn arguments(mode: Mode) -> &'static [&'static str] {
    match mode {
        Mode::Default | Mode::Deny | Mode::Allow | Mode::Open => &[],
        Mode::Plan => &["--permission-mode", "plan"],
        Mode::AcceptEdits => &["--permission-mode", "acceptEdits"],
        Mode::Bypass | Mode::Control => &["--dangerously-skip-permissions"],
    }
}

fn settings(attack: &Attack, mode: Mode, names: &Names) -> Value {
    let mut settings = names.fill_all(&attack.settings);
    if !settings.is_object() {
        settings = json!({});
    }
    let rules = match mode {
        Mode::Deny | Mode::AcceptEdits => &DENIED[..],
        Mode::Allow | Mode::Bypass => &DENIED[..2],
        Mode::Default | Mode::Plan | Mode::Open | Mode::Control => &[],
    };
    if mode == Mode::Control {
        settings["sandbox"] = json!({"enabled": false});
        settings["permissions"] = names.fill_all(&attack.control.permissions);
    } else if !rules.is_empty() {
        let more = attack.deny.iter().map(|rule| names.fill(rule));
        let deny: Vec<String> = rules.iter().map(|&rule| rule.to_owned()).chain(more).collect();
        settings["permissions"]["deny"] = json!(deny);
    }
    if matches!(mode, Mode::Allow | Mode::Open) {
        settings["permissions"]["allow"] = json!(["Bash", "Edit", "Write", "WebFetch"]);
    }
    settings
}

fn script_of(calls: &[(String, Value)], names: &Names) -> String {
    let mut script = String::new();
    for (index, (tool, input)) in calls.iter().enumerate() {
        let (turn, input) = (index + 1, names.fill_all(input));
        script.push_str(&format!("when agent=main turn={turn}\n  call {tool} as toolu_{index} {input}\n"));
    }
    script + "when\n  say \"done\"\n"
}

/// All tool results that the model read.
fn results_of(stand: &Stand) -> String {
    let last = stand.model.requests().last().map(crate::server::Recorded::json).unwrap_or_default();
    let messages = last["messages"].as_array().cloned().unwrap_or_default();
    let contents = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let results = contents.filter(|block| block["type"] == "tool_result");
    results.map(|block| text_of(&block["content"]) + "\n").collect()
}

/// A project, the secrets of a home folder, and what lies outside.
fn prepare(home: &Home) -> std::io::Result<()> {
    let (work, out) = (home.work(), home.path().join("out"));
    for folder in [out.clone(), work.join("src/secret"), work.join("dd"), home.home().join(".decurion")] {
        fs::create_dir_all(folder)?;
    }
    let at_home = [
        (".ssh/id_ed25519", "CANARY-SSH\n"),
        (".aws/credentials", "CANARY-AWS\n"),
        (".netrc", "machine x login y password CANARY-NETRC\n"),
        (".bash_history", "CANARY-HISTORY\n"),
        (".bashrc", "# rc\n"),
        (".gitconfig", "[user]\n name=n\n email=e@x\n"),
    ];
    let at_work = [
        ("a.txt", "a\n"),
        (".env", "CANARY-ENV\n"),
        ("src/secret/key", "CANARY-KEY\n"),
        ("src/main.c", "int main(){return 0;}\n"),
    ];
    let at_home = at_home.map(|(name, text)| (home.home().join(name), text));
    let at_work = at_work.map(|(name, text)| (work.join(name), text));
    for (path, text) in at_home.into_iter().chain(at_work).chain([(out.join("victim"), "of the machine\n")]) {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, text)?;
    }
    symlink(&out, work.join("dd/l"))?;
    let commands =
        [&["init", "-q", "-b", "main"][..], &["add", "a.txt", "src/main.c"], &["commit", "-qm", "first"]];
    for arguments in commands {
        let done = home.program("git").args(arguments).run(HANG)?;
        if done.ending.code() != 0 {
            return Err(std::io::Error::other(brief(&done.errors)));
        }
    }
    Ok(())
}

/// What the names in an attack's texts stand for.
#[derive(Debug, Default)]
struct Names(Vec<(&'static str, String)>);

impl Names {
    fn new(work: &Path, [port, listed]: [u16; 2]) -> Self {
        let folder = work.parent().map(PathBuf::from).unwrap_or_default();
        let path = |name: &str| folder.join(name).display().to_string();
        Self(vec![
            ("$OUT", path("out")),
            ("$WORK", work.display().to_string()),
            ("$HOME", path("home")),
            ("$STATE", path("home/.decurion")),
            ("$BIN", path("decurion")),
            ("$PORT", port.to_string()),
            ("$LISTED", listed.to_string()),
        ])
    }

    fn fill(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    fn fill_all(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.fill(text)),
            Value::Array(all) => all.iter().map(|value| self.fill_all(value)).collect(),
            Value::Object(members) => {
                members.iter().map(|(name, value)| (name.clone(), self.fill_all(value))).collect()
            }
            other => other.clone(),
        }
    }
}

/// An HTTP server of the machine that keeps the first line of each request.
struct Server {
    port: u16,
    seen: Arc<Mutex<String>>,
}

impl Server {
    fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let seen = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&seen);
        // Ends with the program.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut bytes = [0; 4096];
                let read = stream.read(&mut bytes).unwrap_or_default();
                let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
                kept.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
            }
        });
        Ok(Self { port, seen })
    }

    fn paths(&self) -> String {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attack_has_a_name_of_its_own_and_a_mode() {
        let all = list().unwrap();
        let names: std::collections::HashSet<&str> = all.iter().map(|attack| attack.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|attack| !attack.modes.is_empty() && !attack.calls.is_empty()));
    }
}
