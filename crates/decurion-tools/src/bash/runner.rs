//! Programs that run others. Takes a call; gives the commands it would run, as far as its words tell.

use super::expand::Field;
use super::program::{Flags, Parsed, parse};

/// What a call would run.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// How the call stands to what it runs.
    pub style: Style,
    /// The commands it would run.
    pub inner: Vec<Inner>,
    /// Why it cannot be told what it would run.
    pub doubt: Option<String>,
    /// Why its own text needs a rule.
    pub because: Option<String>,
    /// The arguments without what is run, judged as a call of their own (`find … -exec`).
    pub rest: Option<Vec<Field>>,
    /// Assignments for what is run.
    pub assigns: Vec<String>,
    /// Files that it reads itself.
    pub reads: Vec<Field>,
}

/// How a call stands to what it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    /// It adds nothing: what is decided about the inner command holds.
    Wrapper,
    /// It needs a rule of its own besides.
    #[default]
    Own,
}

/// A command that would be run.
#[derive(Clone, Debug)]
pub(crate) enum Inner {
    /// The words of the call from this argument on, with others put in place of some.
    Words {
        from: usize,
        words: Vec<Field>,
        elsewhere: bool,
    },
    Text {
        text: String,
        elsewhere: bool,
    },
}

const SHELLS: [&str; 9] = ["bash", "sh", "zsh", "dash", "ksh", "ash", "rbash", "mksh", "fish"];

/// Whether a program is a shell, which runs what it is given as input.
pub(crate) fn is_shell(name: &str) -> bool {
    SHELLS.contains(&name)
}

/// Whether what a program is given as input may be a text for a shell.
pub(crate) fn feeds_shell(name: &str) -> bool {
    is_shell(name) || matches!(name, "." | "source")
}

/// Programs whose tail is a command, in forms not worth taking apart.
const GUESSED: &str = "parallel chroot unshare nsenter firejail bwrap systemd-run strace ltrace valgrind perf script su \
    runuser at batch start-stop-daemon flock taskset chrt cpulimit proot fakeroot setpriv capsh expect rlwrap unbuffer \
    cgexec numactl prlimit pkexec caffeinate entr setarch linux32 linux64 xvfb-run dbus-run-session ssh-agent tmux \
    screen daemonize gdb lldb rr tini dumb-init gosu su-exec setuidgid envdir chpst softlimit pty watchexec nodemon \
    hyperfine faketime torify proxychains torsocks toybox busybox coproc doas gtimeout sg newgrp xterm osascript \
    cmd.exe powershell pwsh wsl";

/// Programs whose tail runs in another place or comes from a package.
const ELSEWHERE: &str = "npx bunx pnpx uvx pipx docker podman nerdctl kubectl ssh rsh mosh vagrant lxc npm pnpm yarn bun \
    uv poetry pipenv bundle mise asdf direnv devbox nix nix-shell conda mamba micromamba heroku fly gcloud aws adb";

/// What a call of `name` would run; none where it is not known to run anything.
pub(crate) fn runs(name: &str, arguments: &[Field]) -> Option<Runs> {
    if let [only] = arguments
        && only.known() == Some("--version")
    {
        return None;
    }
    let wrapper =
        |flags: &str, values: &str, skip: usize| Some(prefix(arguments, flags, values, skip, Style::Wrapper));
    match name {
        "timeout" => wrapper("v --foreground --preserve-status --verbose", "k s --kill-after --signal", 1),
        "time" => wrapper("p v", "", 0),
        "nice" => wrapper("", "n --adjustment", 0),
        "stdbuf" => wrapper("", "i o e --input --output --error", 0),
        "command" if matches!(arguments.first().and_then(Field::known), Some("-v" | "-V")) => None,
        "command" => wrapper("p", "", 0),
        "ionice" => wrapper("t", "c n --class --classdata", 0),
        "nohup" => wrapper("", "", 0),
        "builtin" => Some(prefix(arguments, "", "", 0, Style::Own)),
        "setsid" => Some(prefix(arguments, "c f w --ctty --fork --wait", "", 0, Style::Own)),
        "exec" => Some(prefix(arguments, "c l", "a", 0, Style::Own)),
        "sudo" => Some(sudo(arguments)),
        "env" => env(arguments),
        "xargs" => Some(xargs(arguments)),
        "find" => find(arguments),
        "watch" => Some(watch(arguments)),
        "eval" => Some(text_of(without_dashes(arguments), Style::Own)),
        "trap" => Some(trap(arguments)),
        "." | "source" => Some(script(arguments)),
        "git" => super::git::runs(arguments),
        _ if is_shell(name) => Some(shell(name, arguments)),
        _ if super::lists(GUESSED, name) => Some(guessed(arguments, name)),
        _ if super::lists(ELSEWHERE, name) => elsewhere(name, arguments),
        _ => None,
    }
}

/// Options, then `skip` operands, then a command.
fn prefix(arguments: &[Field], flags: &str, values: &str, skip: usize, style: Style) -> Runs {
    let known = Flags { plain: flags, values, numbers: true, leading: true, ..Flags::default() };
    let Ok(Parsed { operands, .. }) = parse(arguments, known) else {
        return guess(arguments, "it has a flag that is not known");
    };
    if operands.len() <= skip {
        return guess(arguments, "what it would run is not known");
    }
    let from = arguments.len() - operands.len() + skip;
    // A word that may become several, or none, could move the place where the command begins.
    if !arguments[..from].iter().all(Field::is_one_word) {
        return guess(arguments, "what it would run is not known");
    }
    Runs { style, inner: vec![words(arguments, from)], ..Runs::default() }
}

fn words(arguments: &[Field], from: usize) -> Inner {
    Inner::Words { from, words: arguments[from..].to_vec(), elsewhere: false }
}

/// Every tail that could be a command, for rules that forbid.
fn guess(arguments: &[Field], doubt: &str) -> Runs {
    Runs { inner: tails(arguments), doubt: Some(doubt.to_owned()), ..Runs::default() }
}

/// Every tail of these words that could be a command, or a text for a shell.
pub(crate) fn tails(arguments: &[Field]) -> Vec<Inner> {
    let mut inner = Vec::new();
    for (from, argument) in arguments.iter().enumerate() {
        let Some(text) = argument.known() else { continue };
        if !text.starts_with('-') && inner.len() < 12 {
            inner.push(Inner::Words { from, words: arguments[from..].to_vec(), elsewhere: true });
        }
        // A word with blanks after a flag is often a text for a shell.
        let after_flag = from > 0 && arguments[from - 1].known().is_some_and(|flag| flag.starts_with('-'));
        if text.contains([' ', ';', '|', '&']) || (after_flag && !text.starts_with('-')) {
            inner.push(Inner::Text { text: text.to_owned(), elsewhere: true });
        }
        if let Some((_, value)) = text.split_once('=')
            && text.starts_with('-')
            && value.contains(' ')
        {
            inner.push(Inner::Text { text: value.to_owned(), elsewhere: true });
        }
    }
    inner
}

fn guessed(arguments: &[Field], name: &str) -> Runs {
    guess(arguments, &format!("`{name}` runs whatever follows it"))
}

fn elsewhere(name: &str, arguments: &[Field]) -> Option<Runs> {
    let runs_something = match name {
        "docker" | "podman" | "nerdctl" | "kubectl" | "npm" | "pnpm" | "yarn" | "bun" | "uv" | "poetry"
        | "pipenv" | "bundle" | "mise" | "asdf" | "direnv" | "devbox" | "nix" | "conda" | "mamba"
        | "micromamba" | "vagrant" | "lxc" | "gcloud" | "aws" | "heroku" | "fly" | "adb" | "pipx" => {
            arguments.iter().any(|argument| {
                matches!(
                    argument.known(),
                    Some("exec" | "run" | "x" | "dlx" | "compose" | "shell" | "ssh" | "develop" | "ssm")
                )
            })
        }
        _ => true,
    };
    if !runs_something {
        return None;
    }
    let doubt = arguments
        .iter()
        .filter_map(Field::known)
        .map(str::to_lowercase)
        .any(|text| {
            ["proxycommand", "localcommand", "knownhostscommand"].iter().any(|word| text.contains(word))
        })
        .then(|| "it runs a program of its own to connect".to_owned());
    let because = Some("it runs code that its text does not show".to_owned());
    Some(Runs { inner: tails(arguments), doubt, because, ..Runs::default() })
}

fn sudo(arguments: &[Field]) -> Runs {
    let known = Flags {
        plain: "A b B E H i k K n P S s v --askpass --background --bell --preserve-env --set-home --login --non-interactive --stdin --shell",
        values: "C D g h p R r t T U u --user --group --host --prompt --chdir --close-from --chroot --command-timeout",
        leading: true,
        ..Flags::default()
    };
    let Ok(Parsed { mut operands, flags }) = parse(arguments, known) else {
        return guess(arguments, "it has a flag that is not known");
    };
    let because = Some("it runs with other rights".to_owned());
    let mut assigns = Vec::new();
    while operands.first().and_then(Field::known).is_some_and(is_assignment) {
        assigns.push(operands.remove(0).text);
    }
    let from = arguments.len() - operands.len();
    let shell = flags.iter().any(|(flag, _)| matches!(flag.as_str(), "s" | "i" | "--shell" | "--login"));
    if operands.is_empty() {
        let doubt = shell.then(|| "it starts a shell".to_owned());
        return Runs { doubt, because, ..Runs::default() };
    }
    Runs { because, assigns, inner: vec![words(arguments, from)], ..Runs::default() }
}

fn is_assignment(text: &str) -> bool {
    text.split_once('=').is_some_and(|(name, _)| super::syntax::is_identifier(name))
}

/// `env`: none where it only prints.
fn env(arguments: &[Field]) -> Option<Runs> {
    if arguments.is_empty() {
        return None;
    }
    let mut assigns = Vec::new();
    let mut from = 0;
    while let Some(argument) = arguments.get(from) {
        let Some(text) = argument.known() else {
            return Some(guess(arguments, "what it would run is not known"));
        };
        if text.starts_with('-') {
            return Some(guess(arguments, "it changes the environment of what it runs"));
        }
        if !is_assignment(text) {
            break;
        }
        assigns.push(text.to_owned());
        from += 1;
    }
    if from == arguments.len() {
        let because = Some("it prints an environment that it changes".to_owned());
        return Some(Runs { because, assigns, ..Runs::default() });
    }
    Some(Runs { assigns, inner: vec![words(arguments, from)], ..Runs::default() })
}

fn xargs(arguments: &[Field]) -> Runs {
    let known = Flags {
        plain: "0 r t x --null --no-run-if-empty --verbose --exit --max-lines --replace",
        values: "I n P L d E s a --arg-file --delimiter --max-args --max-procs --max-chars",
        leading: true,
        ..Flags::default()
    };
    let Ok(Parsed { operands, flags }) = parse(arguments, known) else {
        return guess(arguments, "it has a flag that is not known");
    };
    let value = |wanted: &[&str]| {
        flags.iter().find(|(flag, _)| wanted.contains(&flag.as_str())).and_then(|(_, value)| value.clone())
    };
    let from = arguments.len() - operands.len();
    let mut words: Vec<Field> = operands;
    if words.is_empty() {
        words.push(Field::literal("echo"));
    }
    let mut doubt = None;
    let replaced = flags.iter().find(|(flag, _)| matches!(flag.as_str(), "I" | "--replace"));
    let mark = |value: Option<&Field>| value.map_or("{}", |value| value.known().unwrap_or("")).to_owned();
    match replaced.map(|(_, value)| mark(value.as_ref())) {
        Some(mark) if mark.is_empty() => doubt = Some("what it puts in is not known".to_owned()),
        Some(mark) => {
            for word in &mut words {
                if word.known().is_some_and(|text| text.contains(&mark)) {
                    *word = Field { splits: false, ..Field::unknown(&word.text) };
                }
            }
        }
        None => words.push(Field::unknown("…")),
    }
    Runs {
        because: Some("it runs a command with words that are not known".to_owned()),
        inner: vec![Inner::Words { from, words, elsewhere: false }],
        reads: value(&["a", "--arg-file"]).into_iter().collect(),
        doubt,
        ..Runs::default()
    }
}

/// `find` with `-exec` and its like; none without.
fn find(arguments: &[Field]) -> Option<Runs> {
    let executes =
        |argument: &Field| matches!(argument.known(), Some("-exec" | "-execdir" | "-ok" | "-okdir"));
    if !arguments.iter().any(executes) {
        return None;
    }
    let mut runs = Runs { rest: Some(Vec::new()), ..Runs::default() };
    let mut rest = Vec::new();
    let mut at = 0;
    while let Some(argument) = arguments.get(at) {
        at += 1;
        if !executes(argument) {
            rest.push(argument.clone());
            continue;
        }
        let from = at;
        let mut words = Vec::new();
        loop {
            let Some(word) = arguments.get(at) else {
                return Some(guess(arguments, "what it would run is not known"));
            };
            at += 1;
            match word.known() {
                Some(";") => break,
                // `{} +` ends it too.
                Some("+") if arguments.get(at - 2).and_then(Field::known) == Some("{}") => break,
                Some(text) if text.contains("{}") => {
                    words.push(Field { splits: false, ..Field::unknown(text) });
                }
                _ => words.push(word.clone()),
            }
        }
        if words.is_empty() {
            return Some(guess(arguments, "what it would run is not known"));
        }
        runs.inner.push(Inner::Words { from, words, elsewhere: false });
    }
    runs.rest = Some(rest);
    Some(runs)
}

fn watch(arguments: &[Field]) -> Runs {
    let known = Flags {
        plain: "b c d e g p t w x --beep --color --differences --errexit --chgexit --precise --no-title --exec",
        values: "n --interval",
        leading: true,
        ..Flags::default()
    };
    let because = Some("it runs its command again and again".to_owned());
    match parse(arguments, known) {
        Ok(parsed) => Runs { because, ..text_of(&parsed.operands, Style::Own) },
        Err(_) => guess(arguments, "it has a flag that is not known"),
    }
}

/// The arguments joined are a shell text.
fn text_of(arguments: &[Field], style: Style) -> Runs {
    let texts: Option<Vec<&str>> = arguments.iter().map(Field::known).collect();
    match texts {
        Some(texts) if texts.is_empty() => Runs { style, ..Runs::default() },
        Some(texts) => Runs {
            style,
            inner: vec![Inner::Text { text: texts.join(" "), elsewhere: false }],
            ..Runs::default()
        },
        None => guess(arguments, "the text it runs is not known"),
    }
}

/// The arguments behind a `--`.
fn without_dashes(arguments: &[Field]) -> &[Field] {
    arguments.strip_prefix(&[Field::literal("--")]).unwrap_or(arguments)
}

fn trap(arguments: &[Field]) -> Runs {
    let rest = without_dashes(arguments);
    match rest.first() {
        None => Runs::default(),
        Some(first) if matches!(first.known(), Some("-" | "-l" | "-p")) => Runs::default(),
        Some(first) => text_of(std::slice::from_ref(first), Style::Own),
    }
}

/// A script that is read from a file, or from a stream, whose text is not known.
fn script(arguments: &[Field]) -> Runs {
    let streams = |file: &Field| {
        file.known().is_none_or(|path| path == "-" || path.starts_with("/dev/") || path.starts_with("/proc/"))
    };
    let doubt = without_dashes(arguments)
        .first()
        .is_some_and(streams)
        .then(|| "the text it runs is not known".to_owned());
    Runs { because: Some("it runs a script".to_owned()), doubt, ..Runs::default() }
}

/// A shell: with `-c` a text, else a file or its input.
fn shell(name: &str, arguments: &[Field]) -> Runs {
    let mut at = 0;
    let mut text = false;
    while let Some(argument) = arguments.get(at) {
        let Some(word) = argument.known() else {
            return guess(arguments, "the text it runs is not known");
        };
        if word == "--" || word == "-" {
            at += 1;
            break;
        }
        if let Some(long) = word.strip_prefix("--") {
            // These take a value, which is a file that is run.
            if matches!(long, "rcfile" | "init-file") {
                return guess(arguments, "it runs a file of settings first");
            }
            at += 1;
            continue;
        }
        let Some(letters) = word.strip_prefix(['-', '+']) else { break };
        at += 1;
        text |= letters.contains('c');
        if letters.contains('O') {
            return guess(arguments, "it changes which files globs find");
        }
        if letters.contains('o') {
            at += 1;
        }
        if letters.contains('s') {
            return guess(arguments, "it runs what it is given as input");
        }
    }
    match (text, arguments.get(at)) {
        (true, Some(script)) => {
            let because = Some("it runs a text in another shell".to_owned());
            let runs = text_of(std::slice::from_ref(script), Style::Own);
            // What other shells make of a text is not known; rules that forbid look at it as bash would.
            let dialect = (name != "bash").then(|| format!("it is a text for another shell, {name}"));
            Runs { because, doubt: runs.doubt.or(dialect), ..runs }
        }
        (true, None) => guess(arguments, "the text it runs is not known"),
        (false, Some(_)) => script(&arguments[at..]),
        (false, None) => {
            Runs { doubt: Some("it runs what it is given as input".to_owned()), ..Runs::default() }
        }
    }
}
