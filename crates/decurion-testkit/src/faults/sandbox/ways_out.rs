//! X2: attempts to get out of the sandbox, in sessions that ask nothing. Takes the list beside this file, runs it as root
//! and as an ordinary user, with each form of the sandbox and without one, gives the attempts that had an effect and are not
//! marked as a limit of the form. An attempt that has none without a sandbox proves nothing here, and does not count.
#![allow(clippy::disallowed_methods)] // a test has a process and servers of its own that are attacked

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use decurion_exec::Form;
use serde_json::{Value, json};

use super::systems::{Systems, User};
use super::{Start, bash, run_session, script_of};
use crate::faults::stand::{Stand, brief};
use crate::faults::{Options, Report, in_parallel};
use crate::proc::Home;

const LIST: &str = include_str!("ways_out.txt");
/// The program of the attempts on the proxy.
const CLIENT: &str = include_str!("ways_out.py");
/// So many attempts at least must hold in each combination and work without a sandbox.
const LEAST: usize = 60;
const FORMS: [Form; 3] = [Form::Namespaces, Form::Bubblewrap, Form::Landlock];

pub(super) fn row(options: &Options) -> Report {
    let (attempts, systems) = match (list(), Systems::compile()) {
        (Ok(attempts), Ok(systems)) => (attempts, systems),
        (Err(problem), _) | (_, Err(problem)) => return Report::broken(problem),
    };
    let combinations = combinations(options);
    let mut sessions: Vec<(User, Option<Form>)> =
        combinations.iter().map(|(user, form)| (*user, Some(*form))).collect();
    let users = User::all().iter().filter(|user| combinations.iter().any(|(own, _)| own == *user));
    sessions.extend(users.map(|user| (*user, None)));
    let done =
        in_parallel(options.width, &sessions, |session| try_all(options, &attempts, &systems, *session));
    let mut report = Report::default();
    let mut found = Vec::new();
    for ((user, form), session) in sessions.into_iter().zip(done) {
        match session {
            Ok(session) => found.push((user, form, session)),
            Err(problem) => report.add(name_of(user, form), Err(problem)),
        }
    }
    let mut figures = Vec::new();
    let mut without: BTreeSet<&str> = BTreeSet::new();
    for (user, form, session) in &found {
        let control = found.iter().find(|(own, form, _)| own == user && form.is_none());
        let (Some(form), Some((_, _, control))) = (form, control) else { continue };
        let (held, open) = judge(&mut report, &attempts, (*user, *form), (session, control));
        figures.push(format!("{} {held} ({open} open)", name_of(*user, Some(*form))));
        let no_control = attempts.iter().zip(control).filter(|(_, control)| !control.worked);
        without.extend(no_control.map(|(attempt, _)| attempt.name));
    }
    let without: Vec<&str> = without.into_iter().collect();
    report.figure(format!(
        "{} attempts; held, with a control that works: {} (no control for each user: {})",
        attempts.len(),
        figures.join(", "),
        without.join(", ")
    ))
}

/// All, or in the short form the first and another one with each seed.
fn combinations(options: &Options) -> Vec<(User, Form)> {
    let all: Vec<(User, Form)> =
        User::all().iter().flat_map(|user| FORMS.map(|form| (*user, form))).collect();
    if !options.ci {
        return all;
    }
    let turn = usize::try_from(options.seed).unwrap_or_default() % (all.len() - 1);
    vec![all[0], all[1 + turn]]
}

fn name_of(user: User, form: Option<Form>) -> String {
    format!("{} as {}", form.map_or("no sandbox", Form::name), user.name())
}

/// Reports what came of the attempts of one session. Gives how many held, of those that work without a sandbox, and how
/// many its form does not claim to stop.
fn judge(
    report: &mut Report,
    attempts: &[Attempt],
    (user, form): (User, Form),
    (session, control): (&[Outcome], &[Outcome]),
) -> (usize, usize) {
    let (mut held, mut open) = (0, 0);
    for (attempt, (outcome, control)) in attempts.iter().zip(session.iter().zip(control)) {
        let is_open = attempt.is_open(user, form);
        let result = match (outcome.worked, is_open) {
            (true, false) => Err(format!("had an effect: {}", brief(&outcome.text))),
            (false, true) if control.worked => {
                Err(format!("is marked as open and held: {}", brief(&outcome.text)))
            }
            _ => Ok(()),
        };
        held += usize::from(!outcome.worked && control.worked);
        open += usize::from(is_open);
        report.add(format!("{}: {}", name_of(user, Some(form)), attempt.name), result);
    }
    if held < LEAST {
        report.add(
            name_of(user, Some(form)),
            Err(format!("only {held} attempts hold that work without a sandbox")),
        );
    }
    (held, open)
}

/// A line of the list.
#[derive(Debug)]
struct Attempt {
    name: &'static str,
    /// The forms that do not stop it, perhaps for one user only.
    open: Vec<&'static str>,
    command: &'static str,
}

impl Attempt {
    fn read(line: &'static str) -> Result<Self, String> {
        let (name, mut rest) = line.split_once(' ').ok_or_else(|| format!("no command: {line}"))?;
        let mut open = Vec::new();
        rest = rest.trim_start();
        while let Some((mark, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once("] "))
            && let Some((form, _)) = mark.split_once(": ")
        {
            open.push(form);
            rest = after.trim_start();
        }
        Ok(Self { name, open, command: rest })
    }

    fn is_open(&self, user: User, form: Form) -> bool {
        let suffix = if user.is_root() { "-root" } else { "-user" };
        self.open
            .iter()
            .any(|open| open.strip_prefix(form.name()).is_some_and(|rest| rest.is_empty() || rest == suffix))
    }
}

/// What came of an attempt.
struct Outcome {
    worked: bool,
    text: String,
}

fn list() -> Result<Vec<Attempt>, String> {
    LIST.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(Attempt::read).collect()
}

fn try_all(
    options: &Options,
    attempts: &[Attempt],
    systems: &Systems,
    (user, form): (User, Option<Form>),
) -> Result<Vec<Outcome>, String> {
    let servers = Servers::start()?;
    let victim = Victim::start(user)?;
    let mut calls: Vec<Value> = Vec::new();
    // Where in the calls the attempts are.
    let mut places = Vec::new();
    let stand = Stand::seen_by_commands(options, |work| {
        let home = work.parent().map(PathBuf::from).unwrap_or_default();
        for command in attempts.iter().map(|attempt| attempt.command).chain([ALLOWED]) {
            let command = filled(command, &home, &servers, victim.0.id());
            let changes_folder = command.contains("cd ");
            places.push(calls.len());
            // None takes long; one that waits for ever is judged by what it did before.
            calls.push(json!({"command": command, "timeout": 20_000}));
            if changes_folder {
                calls.push(bash(&format!("cd {}", work.display())));
            }
        }
        script_of(&calls)
    })
    .map_err(|error| error.to_string())?;
    let socket =
        prepare(&stand.home, user).map_err(|error| format!("the folders cannot be made: {error}"))?;
    if form.is_none() {
        stand.home.let_secrets_leak();
        stand.model.let_secrets_leak();
    }
    let settings = if form.is_some() {
        let listed = ["listed.test", "127.0.0.1"].map(|host| format!("{host}:{}", servers.listed));
        let listed = listed.into_iter().chain(["rebind.test".to_owned(), "inside.test".to_owned()]);
        json!({
            "permissions": {"deny": ["Read(.env)", "Edit(src/secret/**)"]},
            "sandbox": {"network": {"allowedDomains": listed.collect::<Vec<_>>()}},
        })
    } else {
        json!({"sandbox": {"enabled": false}})
    };
    let victim_of = |attempt: &Attempt| out(&stand.home).join(format!("victim-{}", attempt.name));
    let before: Vec<_> = attempts.iter().map(|attempt| state_of(&victim_of(attempt))).collect();
    let mut start = Start::new(settings).arguments(&["--dangerously-skip-permissions"]);
    start.form = form;
    start.words = [
        with_descriptors(&stand.home),
        user.words(),
        form.map(|form| systems.words(form)).unwrap_or_default(),
    ]
    .concat();
    let outcomes = run_session(&stand, calls.len(), &start)?;
    drop(socket);
    let allowed = &outcomes[places[attempts.len()]].text;
    if form == Some(Form::Namespaces) && !allowed.contains("EFFECT") {
        let text = brief(allowed);
        return Err(format!(
            "the proxy refuses what is allowed, so that attempts on it prove nothing: {text}"
        ));
    }
    let judge = |(index, attempt): (usize, &Attempt)| {
        let text = outcomes[places[index]].text.clone();
        // A link that leads nowhere is an effect too.
        let made = out(&stand.home).join(attempt.name).symlink_metadata().is_ok();
        let changed = state_of(&victim_of(attempt)) != before[index];
        Outcome { worked: made || changed || text.contains("EFFECT"), text }
    };
    Ok(attempts.iter().enumerate().map(judge).collect())
}

/// What the settings of the sessions allow.
const ALLOWED: &str = "CLIENT(allowed)";

/// The words that start a program with descriptors of a file (3 to 7) and a folder (8), as a careless parent does.
fn with_descriptors(home: &Home) -> Vec<OsString> {
    let open =
        r#"for number in {3..7}; do eval "exec $number>> \"\$1\""; done; exec 8< "$2"; shift 2; exec "$@""#;
    let words = ["bash", "-c", open, "bash"].map(OsString::from);
    let paths = [out(home).join("victim-descriptor"), home.home().join(".ssh")].map(OsString::from);
    words.into_iter().chain(paths).collect()
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
    let client = match system_call.strip_prefix("CLIENT(").and_then(|rest| rest.strip_suffix(')')) {
        Some(kind) => format!("python3 OUT/client.py {kind} {} {}", servers.listed, servers.port),
        None => system_call,
    };
    client
        .replace("BINARY", &format!("{folder}/decurion"))
        .replace("OUT", &format!("{folder}/out"))
        .replace("SECRETS", &format!("{folder}/home"))
        .replace("STATE", &format!("{folder}/.decurion"))
        .replace("ABSTRACT", &servers.abstract_name)
        .replace("PORT", &servers.port.to_string())
        .replace("VICTIM", &victim.to_string())
}

/// Attempts that change a file of their own outside.
const VICTIMS: [&str; 11] = [
    "append",
    "descriptor",
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

/// The project, the secrets of the home folder, and what lies outside. Gives the socket of a daemon.
fn prepare(home: &Home, user: User) -> std::io::Result<UnixListener> {
    let (work, out) = (home.work(), out(home));
    let folders = ["src/secret", "dd", "hostile", "free"].map(|name| work.join(name));
    for folder in folders.into_iter().chain([out.join("victim-rmdir")]) {
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
    fs::write(out.join("client.py"), CLIENT)?;
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
    fs::write(work.join(".git/info/attributes"), "")?;
    let socket = UnixListener::bind(out.join("host.sock"))?;
    user.own(home)?;
    let program = out.join("set-user-id-program");
    fs::copy("/usr/bin/id", &program)?;
    if rustix::process::geteuid().is_root() {
        chown(&program, Some(user.other()), None)?;
    }
    fs::set_permissions(program, fs::Permissions::from_mode(0o4755))?;
    Ok(socket)
}

/// A process of the machine that commands must not reach.
struct Victim(Child);

impl Victim {
    fn start(user: User) -> Result<Self, String> {
        let words = user.words().into_iter().chain(["sleep".into(), "1200".into()]).collect::<Vec<_>>();
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env("SECRET", "canary-environment")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command.spawn().map(Self).map_err(|error| error.to_string())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Servers of the machine: TCP on both loopback addresses where there are two, one more that the settings list, and an
/// abstract Unix socket.
struct Servers {
    port: u16,
    listed: u16,
    abstract_name: String,
    _abstract: UnixListener,
}

impl Servers {
    fn start() -> Result<Self, String> {
        let text = |error: std::io::Error| error.to_string();
        let [first, listed] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").map_err(text));
        let (first, listed) = (first?, listed?);
        let port_of =
            |listener: &TcpListener| listener.local_addr().map(|address| address.port()).map_err(text);
        let (port, listed_port) = (port_of(&first)?, port_of(&listed)?);
        serve(first, "hello");
        if let Ok(second) = TcpListener::bind(("::1", port)) {
            serve(second, "hello");
        }
        serve(listed, "listed");
        let abstract_name = format!("decurion-way-out-{}", uuid::Uuid::new_v4().simple());
        let address = SocketAddr::from_abstract_name(&abstract_name).map_err(text)?;
        let listener = UnixListener::bind_addr(&address).map_err(text)?;
        Ok(Self { port, listed: listed_port, abstract_name, _abstract: listener })
    }
}

/// Answers everything with this text, until the program ends.
fn serve(listener: TcpListener, text: &'static str) {
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let length = text.len();
            let answer =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}");
            let _ = std::io::Read::read(&mut stream, &mut [0; 2048]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attempt_has_a_name_of_its_own() {
        let all = list().unwrap();
        let names: BTreeSet<&str> = all.iter().map(|attempt| attempt.name).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.len() >= LEAST);
    }

    #[test]
    fn marks_name_a_form_and_perhaps_a_user() {
        let attempt = Attempt::read("a  [landlock: x] [bubblewrap-root: y z] test [ -e b ]").unwrap();
        assert_eq!((attempt.name, attempt.command), ("a", "test [ -e b ]"));
        assert_eq!(attempt.open, ["landlock", "bubblewrap-root"]);
        assert!(attempt.is_open(User::Ordinary, Form::Landlock));
        assert!(!attempt.is_open(User::Ordinary, Form::Bubblewrap));
        assert!(!attempt.is_open(User::Ordinary, Form::Namespaces));
        let forms =
            FORMS.iter().flat_map(|form| ["", "-root", "-user"].map(|user| form.name().to_owned() + user));
        let known: Vec<String> = forms.collect();
        for attempt in list().unwrap() {
            let is_known = |mark: &&str| known.iter().any(|form| form == mark);
            assert!(attempt.open.iter().all(is_known), "{attempt:?}");
        }
    }
}
