//! Whether a command failed because of its sandbox. Takes what it printed, the hosts that the proxy refused and the
//! sandbox; gives what it wanted, for people and models.
//!
//! The kernel tells programs "read-only file system", "permission denied" or "operation not permitted", and programs
//! print that with a path. There is no better witness that needs no privileges, and a command can print what it likes.
//! So a path counts only if the sandbox denies it; the rest is told as what the command reports.

use std::path::{Path, PathBuf};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::Sandbox;
use decurion_protocol::{Access, Intent, Mode, ToolContent, ToolOutput, Touch, Verdict};
use serde_json::Value;

use super::first_of;
use crate::permission::{Policy, decide, normal};
use crate::symlinks::Symlinks;

/// What a sandbox kept a command from, as far as can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub evidence: Evidence,
    pub kind: RefusalKind,
    /// What refuses it whatever rights a person gives the command, if that is so.
    pub fixed: Option<Fixed>,
    /// Of each host why it was refused and what would allow it.
    pub hosts: Vec<String>,
    /// Why the sandbox refuses it.
    pub cause: Cause,
}

/// Why a sandbox refuses something that no rule denies. It decides what would help.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// It is not among what commands may write, read or reach.
    #[default]
    Unlisted,
    /// The same, in the home folder itself or above it: to open that folder would open too much.
    Home,
    /// The command looked as if it only reads.
    Reader,
    /// The session is in plan mode.
    Plan,
    /// Programs of the user run what stands there: settings of git, of editors or of Decurion.
    Settings,
    /// It is Decurion's own.
    Own,
    /// Secrets are kept in this place, which is hidden.
    Hidden(Utf8PathBuf),
    /// In this form of the sandbox commands have no network.
    NoNetwork,
}

/// A host that the proxy refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedHost {
    pub host: String,
    /// The port; 0 where it stands for several hosts.
    pub port: u16,
    /// Why, and what would allow it.
    pub why: String,
    /// Whether a rule, a setting or a definition refuses it, so that no answer allows it.
    pub by_rule: bool,
}

impl RefusedHost {
    /// The entry of a list of hosts that names it.
    pub fn name(&self) -> String {
        match self.port {
            0 | 80 | 443 => self.host.clone(),
            port => format!("{}:{port}", self.host),
        }
    }

    /// The host with its port.
    fn address(&self) -> String {
        if self.port == 0 { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    /// The same in one line for people.
    pub fn line(&self) -> String {
        format!("refused host {} ({})", self.name(), self.why)
    }
}

/// What refuses something to every command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fixed {
    /// A rule that denies it, as written.
    Rule(String),
    /// This entry of the list of what is always hidden.
    AlwaysHidden(Utf8PathBuf),
    /// Decurion's own files are always hidden.
    Own,
    /// The definition of the agent, which says this.
    Definition(String),
    /// Rules, settings or definitions about hosts, each of which says why.
    Hosts,
    /// A person, who said this.
    Person(String),
}

/// With more of what a command would have what it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// The rights of a command that a person allowed.
    UsualRights,
    Outside,
}

/// What a command was kept in.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    /// What the kernel let it do.
    pub sandbox: &'a Sandbox,
    /// The same of a command that a person allowed, where this one only reads.
    pub usual: Option<&'a Sandbox>,
    /// The rules that its sandbox was made of.
    pub policy: &'a Policy,
    /// What every sandbox hides.
    pub always_hidden: &'a [Utf8PathBuf],
    /// Decurion's own folder, which is among it.
    pub own: Option<&'a Utf8Path>,
    /// Whether commands have the network of the machine.
    pub network_open: bool,
}

/// What tells of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The proxy refused these hosts.
    Hosts(String),
    /// The command names these paths, at least one, and its sandbox denies them.
    Paths(Vec<Utf8PathBuf>),
    /// The command printed this line.
    Line(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    Write,
    Read,
    Network,
    /// The socket of Docker.
    Docker,
    Socket,
    /// Something else: another process, a privilege.
    Other,
}

impl RefusalKind {
    /// The same as part of a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Self::Write => "it tried to write a read-only path",
            Self::Read => "it tried to read a hidden path",
            Self::Network => "it tried to use the network",
            Self::Docker => "docker is not reachable from the sandbox, which does not open its socket",
            Self::Socket => "it tried to open a Unix socket, and the sandbox opens none",
            Self::Other => "it tried an operation that the sandbox blocks",
        }
    }
}

const SIGNS: &[(&str, RefusalKind)] = &[
    ("docker daemon", RefusalKind::Docker),
    ("docker.sock", RefusalKind::Docker),
    ("dial unix", RefusalKind::Socket),
    ("read-only file system", RefusalKind::Write),
    ("erofs", RefusalKind::Write),
    ("device or resource busy", RefusalKind::Write),
    // A rename between what is read-only and what is not.
    ("cross-device link", RefusalKind::Write),
    ("exdev", RefusalKind::Write),
    ("permission denied", RefusalKind::Read),
    ("eacces", RefusalKind::Read),
    ("could not resolve", RefusalKind::Network),
    ("temporary failure in name resolution", RefusalKind::Network),
    ("name or service not known", RefusalKind::Network),
    ("network is unreachable", RefusalKind::Network),
    ("eai_again", RefusalKind::Network),
    ("operation not permitted", RefusalKind::Other),
    ("eperm", RefusalKind::Other),
];
/// What a program says of a file in a hidden folder.
const ABSENT: [&str; 2] = ["no such file or directory", "enoent"];
/// Longer lines are cut.
const LONGEST: usize = 300;
/// As many lines are looked at for paths.
const MOST_SIGNS: usize = 50;
/// More paths are counted instead of named.
const MOST_NAMED: usize = 3;
/// How the C library says it, at the end of a program's message or before a path in quotes.
const ERRORS: [&str; 4] =
    ["Read-only file system", "Permission denied", "Device or resource busy", "No such file or directory"];

/// Whether a command that ended well may have printed that it was kept from something.
pub fn may_tell(output: &ToolOutput) -> bool {
    output.is_error || output.content.text().lines().any(is_message)
}

/// What kept a command from something: hosts that it was refused, paths that it names and its sandbox denies, or, if it
/// failed, the first sign in what it printed. Paths that more rights would open come before others. Looks at the disk.
pub fn refusal_in(
    output: &ToolOutput,
    hosts: &[RefusedHost],
    bounds: &Bounds<'_>,
    cwd: &Utf8Path,
) -> Option<Refusal> {
    if !hosts.is_empty() {
        let names: Vec<String> = hosts.iter().map(RefusedHost::address).collect();
        let fixed = hosts.iter().all(|host| host.by_rule).then_some(Fixed::Hosts);
        let why = reasons(hosts);
        let evidence = Evidence::Hosts(names.join(", "));
        return Some(Refusal {
            evidence,
            kind: RefusalKind::Network,
            fixed,
            hosts: why,
            cause: Cause::Unlisted,
        });
    }
    let text = output.content.text();
    let lines = lines_with_paths(&text).filter(|(line, _)| output.is_error || is_message(line));
    let mut fixed = None;
    let mut open: Option<(RefusalKind, Vec<Utf8PathBuf>)> = None;
    for (line, kind) in lines.take(MOST_SIGNS) {
        let named: Vec<Utf8PathBuf> = paths_in(line).map(|path| place_of(&cwd.join(path))).collect();
        let Some((kind, path)) = bounds.denied_of(line, kind, named) else { continue };
        if let Some(found) = bounds.fixed(kind, &path) {
            fixed
                .get_or_insert_with(|| Refusal { fixed: Some(found), ..Refusal::of_paths(kind, vec![path]) });
            continue;
        }
        let (first, paths) = open.get_or_insert_with(|| (kind, Vec::new()));
        if *first == kind && !paths.contains(&path) {
            paths.push(path);
        }
    }
    let open = open.map(|(kind, paths)| Refusal::of_paths(kind, paths));
    open.or(fixed).or_else(|| first_sign(&text).filter(|_| output.is_error))
}

/// Whether a line is a message of a program about an error of the system.
fn is_message(line: &str) -> bool {
    let line = line.trim_end();
    ERRORS.iter().any(|error| {
        line.match_indices(error).any(|(at, _)| {
            let (before, behind) = (&line[..at], &line[at + error.len()..]);
            let ends = ["", ": '", ": \"", " (os error ", ")"];
            [": ", "] ", " ("].iter().any(|begin| before.ends_with(begin))
                && ends
                    .iter()
                    .any(|end| if end.is_empty() { behind.is_empty() } else { behind.starts_with(end) })
        })
    })
}

/// Why hosts were refused, those with the same reason together.
fn reasons(hosts: &[RefusedHost]) -> Vec<String> {
    let mut found: Vec<(&str, Vec<String>)> = Vec::new();
    for host in hosts {
        match found.iter_mut().find(|(why, _)| *why == host.why) {
            Some((_, names)) => names.push(host.name()),
            None => found.push((&host.why, vec![host.name()])),
        }
    }
    found.into_iter().map(|(why, names)| format!("{}: {why}", names.join(", "))).collect()
}

/// The first line that tells of something that a sandbox refuses.
pub(super) fn first_sign(text: &str) -> Option<Refusal> {
    let (line, kind) = text.lines().find_map(|line| Some((line, sign(line)?)))?;
    let line = line.trim().chars().take(LONGEST).collect();
    let evidence = Evidence::Line(line);
    Some(Refusal { evidence, kind, fixed: None, hosts: Vec::new(), cause: Cause::Unlisted })
}

/// Where a path leads, without `.` and `..` in it.
fn place_of(path: &Utf8Path) -> Utf8PathBuf {
    // What leads through no link is given back as it is.
    normal(&Symlinks::on_disk().place(&path.components().collect::<Utf8PathBuf>()))
}

fn lines_with_paths(text: &str) -> impl Iterator<Item = (&str, RefusalKind)> {
    let absent = |line: &str| says_absent(line).then_some(RefusalKind::Read);
    text.lines().filter_map(move |line| Some((line, sign(line).or_else(|| absent(line))?)))
}

fn sign(line: &str) -> Option<RefusalKind> {
    let lower = line.to_lowercase();
    SIGNS.iter().find(|(sign, _)| lower.contains(sign)).map(|(_, kind)| *kind)
}

fn says_absent(line: &str) -> bool {
    let lower = line.to_lowercase();
    ABSENT.iter().any(|sign| lower.contains(sign))
}

/// What in a line may be a path: what is quoted, words with a slash, and what stands before a colon. Where a program
/// was when it failed is none.
fn paths_in(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split(['\'', '"', '`', '‘', '’']).skip(1).step_by(2);
    let words = line.split([' ', ':', '(', ')', ',', '\'', '"']).filter(|word| word.contains('/'));
    let before_colon = line.split(": ").filter(|part| !part.contains([' ', '/']));
    let named = quoted.chain(words).chain(before_colon);
    let is_path = |path: &&str| !path.is_empty() && path.len() <= LONGEST && !names_code(line, path);
    named.filter(is_path)
}

/// Whether a part of a line names a place in code: `File "x.py", line 3`, `x.sh: line 3:`, `src/x.rs:3:5`, `sh: 1:`.
fn names_code(line: &str, part: &str) -> bool {
    let end = part.as_ptr() as usize - line.as_ptr() as usize + part.len();
    let behind = line[end..].trim_start_matches(['"', '\'']);
    let number = |text: &str| text.starts_with(|letter: char| letter.is_ascii_digit());
    let counted = [" line ", ", line ", ": line "].iter().find_map(|words| behind.strip_prefix(words));
    let behind_colon = behind.strip_prefix(':').map(str::trim_start);
    counted.is_some_and(number) || behind_colon.is_some_and(number)
}

impl Bounds<'_> {
    /// The first of the places that a line names from which the sandbox keeps its command. Some programs report a rename
    /// or a removal that is refused like a file that cannot be read: that is believed where a rule denies to change it.
    fn denied_of(
        &self,
        line: &str,
        kind: RefusalKind,
        named: Vec<Utf8PathBuf>,
    ) -> Option<(RefusalKind, Utf8PathBuf)> {
        if let Some(path) = named.iter().find(|path| self.denies(line, kind, path)) {
            return Some((kind, path.clone()));
        }
        let by_rule = |path: &Utf8PathBuf| {
            let denied = self.denies(line, RefusalKind::Write, path);
            denied && matches!(self.fixed(RefusalKind::Write, path), Some(Fixed::Rule(_)))
        };
        let is_vague = matches!(kind, RefusalKind::Read | RefusalKind::Other);
        let path = named.into_iter().find(|path| is_vague && by_rule(path))?;
        Some((RefusalKind::Write, path))
    }

    /// Whether the sandbox keeps its command from a place that a line names.
    fn denies(&self, line: &str, kind: RefusalKind, place: &Utf8Path) -> bool {
        // What is hidden with its folder does not exist for a command, like everything that does not.
        denies(self.sandbox, kind, place.as_std_path()) && (!says_absent(line) || place.exists())
    }

    /// What refuses this to every command.
    fn fixed(&self, kind: RefusalKind, place: &Utf8Path) -> Option<Fixed> {
        let (tool, access) = match kind {
            RefusalKind::Write => ("Edit", Access::Write),
            RefusalKind::Read => ("Read", Access::Read),
            RefusalKind::Network | RefusalKind::Docker | RefusalKind::Socket | RefusalKind::Other => {
                return None;
            }
        };
        let touches = vec![Touch { path: place.to_owned(), access }];
        let decision = decide(self.policy, tool, &Value::Null, &Intent { touches, ..Intent::titled("") });
        if let Some(rule) = decision.rule.filter(|_| decision.verdict == Verdict::Deny) {
            return Some(Fixed::Rule(rule));
        }
        if kind != RefusalKind::Read {
            return None;
        }
        if self.is_own(place) {
            return Some(Fixed::Own);
        }
        self.hidden_entry(place).map(|entry| Fixed::AlwaysHidden(entry.clone()))
    }

    /// The entry of the list of what is always hidden that a place is in.
    fn hidden_entry(&self, place: &Utf8Path) -> Option<&Utf8PathBuf> {
        let trails = Symlinks::on_disk();
        self.always_hidden.iter().find(|path| place.starts_with(trails.place(path)))
    }

    /// Whether a place is Decurion's own.
    fn is_own(&self, place: &Utf8Path) -> bool {
        self.own.is_some_and(|own| place.starts_with(Symlinks::on_disk().place(own)))
    }

    /// Finds out why something was refused, and what the command would need, if a person can give it. Of several paths
    /// those are left that this opens. Looks at the disk.
    pub fn settle(&self, refusal: &mut Refusal) -> Option<Remedy> {
        if let (Evidence::Paths(paths), Some(usual)) = (&mut refusal.evidence, self.usual) {
            let opens = |path: &Utf8PathBuf| !denies(usual, refusal.kind, path.as_std_path());
            if paths.iter().any(opens) {
                paths.retain(opens);
            }
        }
        refusal.cause = self.cause(refusal);
        self.remedy(refusal)
    }

    /// Why something is refused that no rule denies.
    fn cause(&self, refusal: &Refusal) -> Cause {
        let usual = self.usual.unwrap_or(self.sandbox);
        let path = match &refusal.evidence {
            Evidence::Paths(paths) => paths.first().map(Utf8PathBuf::as_path),
            Evidence::Hosts(_) | Evidence::Line(_) => None,
        };
        let in_plan = self.policy.mode == Mode::Plan;
        match (refusal.kind, path) {
            (RefusalKind::Write, Some(path)) if self.is_own(path) => Cause::Own,
            (RefusalKind::Write, Some(path)) => {
                if let Some(entry) = self.hidden_entry(path) {
                    return Cause::Hidden(entry.clone());
                }
                let is_denied = denies(usual, RefusalKind::Write, path.as_std_path());
                let is_restricted = usual.read_only.iter().any(|place| path.as_std_path().starts_with(place));
                let home = self.policy.around.home.as_ref();
                let in_home = home.zip(path.parent()).is_some_and(|(home, folder)| home.starts_with(folder));
                match (is_denied && is_restricted, in_plan, self.usual.is_some() && !is_denied) {
                    (true, ..) => Cause::Settings,
                    (_, true, _) => Cause::Plan,
                    (.., true) => Cause::Reader,
                    _ if in_home => Cause::Home,
                    _ => Cause::Unlisted,
                }
            }
            (RefusalKind::Write | RefusalKind::Network, None) if in_plan => Cause::Plan,
            (RefusalKind::Write, None) if self.usual.is_some() => Cause::Reader,
            (RefusalKind::Network, None) if refusal.is_verified() => Cause::Unlisted,
            (RefusalKind::Network, None) if self.usual.is_some_and(|usual| usual.network) => Cause::Reader,
            (RefusalKind::Network, None) if !self.sandbox.network => Cause::NoNetwork,
            _ => Cause::Unlisted,
        }
    }

    /// Whether a line cannot be about the sandbox: it does not keep the command from the network, or from Unix sockets.
    pub fn is_beside(&self, refusal: &Refusal) -> bool {
        let by_line = matches!(refusal.evidence, Evidence::Line(_));
        by_line
            && match refusal.kind {
                RefusalKind::Network => self.network_open && self.sandbox.network,
                RefusalKind::Docker | RefusalKind::Socket => self.sandbox.unix_sockets,
                RefusalKind::Write | RefusalKind::Read | RefusalKind::Other => false,
            }
    }

    /// What the command would need, if a person can give it.
    fn remedy(&self, refusal: &Refusal) -> Option<Remedy> {
        if refusal.fixed.is_some() {
            return None;
        }
        let helps = |usual: &Sandbox| match (&refusal.evidence, refusal.kind) {
            (Evidence::Paths(paths), kind) => {
                paths.iter().all(|path| !denies(usual, kind, path.as_std_path()))
            }
            (_, RefusalKind::Write) => true,
            (_, RefusalKind::Network) => usual.network,
            (_, RefusalKind::Docker | RefusalKind::Socket | RefusalKind::Other) => usual.unix_sockets,
            // No sandbox hides it, so that it is the file's own mode.
            (_, RefusalKind::Read) => false,
        };
        if self.usual.is_some_and(helps) {
            return Some(Remedy::UsualRights);
        }
        refusal.is_verified().then_some(Remedy::Outside)
    }
}

/// Whether a sandbox keeps its command from a place.
pub(super) fn denies(sandbox: &Sandbox, kind: RefusalKind, place: &Path) -> bool {
    let covers = |paths: &[PathBuf]| paths.iter().any(|path| place.starts_with(path));
    let depth = |paths: &[PathBuf]| {
        let covering = paths.iter().filter(|path| place.starts_with(path));
        covering.map(|path| path.components().count()).max()
    };
    // Of these the command has its own.
    let own = ["/tmp", "/var/tmp", "/dev", "/proc"].iter().any(|folder| place.starts_with(folder));
    let own = own && !covers(&sandbox.visible);
    match kind {
        // A folder can be writable in a read-only one, and read-only in a writable one.
        RefusalKind::Write => {
            let read_only = depth(&sandbox.read_only);
            (read_only.is_some() || !own) && read_only >= depth(&sandbox.writable)
        }
        // A folder can be shown in a hidden one, and hidden in a shown one.
        RefusalKind::Read => depth(&sandbox.hidden) > depth(&sandbox.visible),
        RefusalKind::Network | RefusalKind::Docker | RefusalKind::Socket | RefusalKind::Other => false,
    }
}

impl Refusal {
    fn of_paths(kind: RefusalKind, paths: Vec<Utf8PathBuf>) -> Self {
        let evidence = Evidence::Paths(paths);
        Self { evidence, kind, fixed: None, hosts: Vec::new(), cause: Cause::Unlisted }
    }

    /// Whether it was the sandbox: a person may be asked to let the command do more.
    pub fn is_verified(&self) -> bool {
        !matches!(self.evidence, Evidence::Line(_))
    }

    /// Whether a program that did not fail may have been kept from something.
    pub(super) fn is_likely(&self) -> bool {
        self.is_verified() || self.text().to_lowercase().contains("read-only file system")
    }

    /// The hosts, the paths or the line.
    pub fn text(&self) -> String {
        match &self.evidence {
            Evidence::Hosts(text) | Evidence::Line(text) => text.clone(),
            Evidence::Paths(paths) => first_of(paths, MOST_NAMED),
        }
    }

    /// Why a person is asked to let the command run again with a remedy. `reads`: whether it could only read.
    pub fn question(&self, remedy: Remedy, reads: bool) -> String {
        let what = match (&self.evidence, self.kind) {
            (Evidence::Line(line), kind) => {
                format!("the command printed that {} ({line}), which Decurion cannot verify", kind.text())
            }
            (Evidence::Hosts(_), _) => format!("the sandbox {}", self.refused()),
            (Evidence::Paths(paths), kind) => {
                let them = if paths.len() > 1 { "they" } else { "it" };
                let is = if paths.len() > 1 { "are" } else { "is" };
                let why = match (&self.cause, kind) {
                    (Cause::Reader, _) => ", because the command looked as if it only reads".to_owned(),
                    (Cause::Settings, _) => {
                        format!(", because {them} can name programs that git, an editor or Decurion runs")
                    }
                    (Cause::Own, _) => format!(", because {them} {} to Decurion", belong(paths.len())),
                    (Cause::Hidden(entry), _) => format!(", because private files are kept in {entry}"),
                    _ => format!(", which {is} outside of the project"),
                };
                format!("the sandbox {}{why}", self.refused())
            }
        };
        let before =
            if reads { "It had no effect." } else { "The command has run once, perhaps with effects." };
        let then = match remedy {
            Remedy::UsualRights if self.kind == RefusalKind::Read => {
                "Run it again with the right to read all files but secrets, write in the project and reach listed hosts?"
            }
            Remedy::Outside => "Run it again without the sandbox, with all your rights?",
            Remedy::UsualRights => {
                "Run it again with the right to write in the project and reach listed hosts?"
            }
        };
        format!("{what}. {before} {then}")
    }

    /// What the sandbox did, where that is known, as the end of a sentence.
    fn refused(&self) -> String {
        let text = self.text();
        match self.kind {
            RefusalKind::Write => format!("refused to write {text}"),
            RefusalKind::Read => format!("hides {text}"),
            RefusalKind::Network | RefusalKind::Docker | RefusalKind::Socket | RefusalKind::Other => {
                format!("refused the connection to {text}")
            }
        }
    }

    /// Paths that were refused and what would allow them, in one line for people.
    pub fn line(&self) -> Option<String> {
        let Evidence::Paths(paths) = &self.evidence else { return None };
        let path = paths.first()?;
        let why = match (&self.fixed, self.kind, &self.cause) {
            (Some(Fixed::Rule(rule)), ..) => format!("denied by {rule}"),
            (Some(Fixed::AlwaysHidden(entry)), ..) => format!("add {entry} to sandbox.filesystem.allowRead"),
            (Some(Fixed::Own), ..) | (_, _, Cause::Own) => "it belongs to Decurion".to_owned(),
            (_, RefusalKind::Write, Cause::Unlisted | Cause::NoNetwork) => {
                format!("add {} to sandbox.filesystem.allowWrite", first_of(&folders_of(paths), MOST_NAMED))
            }
            (_, RefusalKind::Write, Cause::Home) => {
                format!("make {path} if it does not exist, and add it to sandbox.filesystem.allowWrite")
            }
            (_, RefusalKind::Write, Cause::Reader) => {
                "the command looked as if it only reads; a rule that allows it lets it write here".to_owned()
            }
            (_, RefusalKind::Write, Cause::Plan) => "commands write nothing in plan mode".to_owned(),
            (_, RefusalKind::Write, Cause::Settings) => {
                "no command can change it; run this one outside of Decurion".to_owned()
            }
            (_, _, Cause::Hidden(entry)) => {
                format!("add {entry} to sandbox.filesystem.allowRead and sandbox.filesystem.allowWrite")
            }
            (..) => format!("allow it with the rule Read(/{path})"),
        };
        Some(format!("{} ({why})", self.refused()))
    }

    /// What a person can do about a hook or a server that needs more.
    pub fn advice(&self) -> String {
        let (kind, line) = (self.kind.text(), self.text());
        let outside = "run it outside of the sandbox with the setting sandbox.excludedCommands";
        let then = match self.kind {
            RefusalKind::Write => {
                format!("Allow the folder with the setting sandbox.filesystem.allowWrite, or {outside}")
            }
            RefusalKind::Read => {
                format!("Allow the file with the setting sandbox.filesystem.allowRead, or {outside}")
            }
            RefusalKind::Network | RefusalKind::Docker | RefusalKind::Socket | RefusalKind::Other => {
                format!("To allow it, {outside}")
            }
        };
        format!("The sandbox may be the reason: {kind} ({line}). {then}.")
    }

    /// What is on record of a command that is run again.
    pub fn notice(&self, remedy: Remedy) -> String {
        let how = match remedy {
            Remedy::Outside => "without the sandbox",
            Remedy::UsualRights => "with the right to write in the working directories",
        };
        let said = if self.is_verified() {
            "the sandbox stopped a command"
        } else {
            "a command reported that the sandbox stopped it"
        };
        format!("{said}, and it was allowed to run again {how}: {}", self.text())
    }

    /// Adds to what a model reads why the command failed; `denied` is what a person said.
    pub fn explain(&self, output: &mut ToolOutput, denied: Option<&str>) {
        let said = output.content.text();
        let text = match &self.fixed {
            Some(Fixed::Hosts) => format!("The sandbox {}. {}.", self.refused(), self.hosts.join(". ")),
            Some(fixed) => fixed.text(self.kind, &self.text()),
            None if !output.is_error => self.remark(),
            None => {
                let more = match denied {
                    Some(reason) => format!(" Running it with more rights was refused: {reason}."),
                    None => self.help(),
                };
                let what = match &self.evidence {
                    Evidence::Paths(_) => format!("The sandbox {}.", self.refused()),
                    Evidence::Hosts(_) => {
                        format!("The sandbox {}. {}.", self.refused(), self.hosts.join(". "))
                    }
                    Evidence::Line(_) => format!("The sandbox may be the reason: {}.", self.kind.text()),
                };
                format!("{what}{more}")
            }
        };
        output.content = ToolContent::Text(format!("{said}\n[{text}]"));
    }

    /// What is true of a command that ended well: it may have printed another one's message.
    fn remark(&self) -> String {
        let text = self.text();
        let is = match &self.evidence {
            Evidence::Hosts(_) | Evidence::Line(_) => {
                return format!("The sandbox {}. {}.", self.refused(), self.hosts.join(". "));
            }
            Evidence::Paths(paths) if paths.len() > 1 => "are",
            Evidence::Paths(_) => "is",
        };
        match (self.kind, &self.cause) {
            (RefusalKind::Write, Cause::Reader) => {
                format!("{text} {is} read-only for this command, which looked as if it only reads.")
            }
            (RefusalKind::Write, _) => format!("{text} {is} read-only for commands."),
            _ => format!("{text} {is} hidden from commands that look as if they only read."),
        }
    }

    /// What would let a command have what it was refused.
    fn help(&self) -> String {
        let looked = "It ran without a question because it looked as if it only reads";
        let text = match (&self.evidence, self.kind, &self.cause) {
            (_, RefusalKind::Write, Cause::Reader) => format!(
                "{looked}, so it could write only in $TMPDIR. Commands that a rule or the user allows can write in the \
                 working directories."
            ),
            (_, RefusalKind::Write, Cause::Plan) => "In plan mode commands write only in $TMPDIR.".to_owned(),
            (_, RefusalKind::Write, Cause::Settings) => {
                "No command can change it, because git, an editor or Decurion runs programs that such files name. The \
                 Write and Edit tools can change it, as the rules say, and the user can run the command in a terminal."
                    .to_owned()
            }
            (_, RefusalKind::Write, Cause::Own) => {
                "It belongs to Decurion, and no command can change it.".to_owned()
            }
            (_, RefusalKind::Write, Cause::Hidden(entry)) => format!(
                "Private files are kept in {entry}. The user can open it by adding it to both settings \
                 sandbox.filesystem.allowRead and sandbox.filesystem.allowWrite."
            ),
            (Evidence::Paths(paths), RefusalKind::Write, Cause::Home) => format!(
                "Commands can write in the working directories and in $TMPDIR. The user can add files and folders that \
                 exist to the setting sandbox.filesystem.allowWrite, such as {}.",
                first_of(paths, MOST_NAMED)
            ),
            (_, RefusalKind::Write, _) => {
                "Commands can write in the working directories and in $TMPDIR. The user can add folders with the \
                 setting sandbox.filesystem.allowWrite."
                    .to_owned()
            }
            (Evidence::Paths(_), RefusalKind::Read, _) => format!(
                "A command that only reads sees no personal files outside of the working directories, unless the user \
                 allows them with a rule: {}.",
                self.rules()
            ),
            (_, RefusalKind::Docker, _) => {
                "To allow it, the user can add \"docker\" to the setting sandbox.excludedCommands: then docker runs outside \
                 of the sandbox, with all that runs in its containers."
                    .to_owned()
            }
            (_, RefusalKind::Socket, _) => {
                "To allow it, the user can name the program in the setting sandbox.excludedCommands, or set \
                 sandbox.network.allowAllUnixSockets."
                    .to_owned()
            }
            (Evidence::Line(_), RefusalKind::Network, Cause::Reader) => {
                format!("{looked}, and such commands have no network.")
            }
            (Evidence::Line(_), RefusalKind::Network, Cause::Plan) => {
                "In plan mode commands have no network.".to_owned()
            }
            (Evidence::Line(_), RefusalKind::Network, Cause::NoNetwork) => {
                "Commands have no network in this form of the sandbox, unless the user sets sandbox.network.open."
                    .to_owned()
            }
            (Evidence::Line(_), RefusalKind::Network, _) => {
                "Commands reach the network only through the proxy that HTTPS_PROXY and ALL_PROXY name.".to_owned()
            }
            _ => return String::new(),
        };
        format!(" {text}")
    }

    /// Rules that would let commands read the paths.
    fn rules(&self) -> String {
        let Evidence::Paths(paths) = &self.evidence else { return String::new() };
        let rules = paths.iter().take(MOST_NAMED).map(|path| format!("Read(/{path})"));
        rules.collect::<Vec<_>>().join(", ")
    }
}

fn folders_of(paths: &[Utf8PathBuf]) -> Vec<Utf8PathBuf> {
    let mut folders: Vec<Utf8PathBuf> = Vec::new();
    for path in paths {
        let folder = path.parent().unwrap_or(path);
        if !folders.iter().any(|known| known == folder) {
            folders.push(folder.to_owned());
        }
    }
    folders
}

fn belong(count: usize) -> &'static str {
    if count > 1 { "belong" } else { "belongs" }
}

impl Fixed {
    /// The same for a path, as a sentence.
    fn text(&self, kind: RefusalKind, path: &str) -> String {
        let is = if kind == RefusalKind::Write { "read-only for" } else { "hidden from" };
        match self {
            Self::Hosts => format!("The sandbox refused the connection to {path}."),
            Self::Person(said) if said.trim().is_empty() => {
                format!("The user refused the connection to {path}.")
            }
            Self::Person(said) => format!("The user refused the connection to {path}: {}", said.trim()),
            Self::Definition(said) => format!("The sandbox refused it: {said}."),
            Self::Rule(rule) => {
                format!("{path} is {is} commands by the rule {rule}. The rest of the command ran.")
            }
            Self::Own => format!("{path} is {is} commands, because it belongs to Decurion."),
            Self::AlwaysHidden(entry) => format!(
                "{path} exists, but it is {is} commands, because keys or other private files are kept there. The \
                 user can show it by adding {entry} to the setting sandbox.filesystem.allowRead."
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use decurion_protocol::Mode;

    use super::*;
    use crate::permission::Around;

    fn found(text: &str, hosts: &[&str]) -> Option<(RefusalKind, bool, String)> {
        let sandbox = Sandbox {
            writable: vec!["/project".into(), "/private".into()],
            read_only: vec!["/project/fixed".into()],
            hidden: vec!["/home/keys".into()],
            ..Sandbox::default()
        };
        let refused = |host: &&str| RefusedHost {
            host: (*host).to_owned(),
            port: 443,
            why: "it is not listed".to_owned(),
            by_rule: false,
        };
        let hosts: Vec<RefusedHost> = hosts.iter().map(refused).collect();
        let policy = Policy::new(Mode::Default, Arc::default(), Around::default());
        let bounds = Bounds {
            sandbox: &sandbox,
            usual: None,
            policy: &policy,
            always_hidden: &[],
            own: None,
            network_open: false,
        };
        let refusal = refusal_in(&ToolOutput::error(text), &hosts, &bounds, "/project".into())?;
        Some((refusal.kind, refusal.is_verified(), refusal.text()))
    }

    #[test]
    fn advice_fits_the_reason() {
        let work: Vec<PathBuf> = vec!["/project".into(), "/private".into()];
        let usual = Sandbox {
            writable: work,
            read_only: vec!["/project/.git/config".into()],
            hidden: vec!["/home/.ssh".into(), "/home/.own".into()],
            ..Sandbox::default()
        };
        let reader = Sandbox { writable: vec!["/private".into()], read_only: Vec::new(), ..usual.clone() };
        let hidden: Vec<Utf8PathBuf> = vec!["/home/.ssh".into(), "/home/.own".into()];
        let cause = |reads: bool, mode: Mode, path: &str| {
            let around = Around { home: Some("/home".into()), ..Around::default() };
            let policy = Policy::new(mode, Arc::default(), around);
            let (own, always_hidden) = (Some(Utf8Path::new("/home/.own")), &hidden[..]);
            let sandbox = if reads { &reader } else { &usual };
            let usual = reads.then_some(&usual);
            let bounds = Bounds { sandbox, usual, policy: &policy, always_hidden, own, network_open: false };
            let output = ToolOutput::error(format!("touch: cannot touch '{path}': Read-only file system"));
            let mut refusal = refusal_in(&output, &[], &bounds, "/project".into()).unwrap();
            let remedy = bounds.settle(&mut refusal);
            (refusal.cause, remedy)
        };
        let outside = Some(Remedy::Outside);
        assert_eq!(cause(false, Mode::Default, "/opt/x"), (Cause::Unlisted, outside));
        assert_eq!(cause(true, Mode::Default, "/opt/x"), (Cause::Unlisted, outside));
        // A hint to open all of the home folder would open too much.
        assert_eq!(cause(false, Mode::Default, "/home/x"), (Cause::Home, outside));
        assert_eq!(cause(false, Mode::Default, "/home/x/y"), (Cause::Unlisted, outside));
        assert_eq!(cause(true, Mode::Default, "/project/x"), (Cause::Reader, Some(Remedy::UsualRights)));
        for reads in [false, true] {
            assert_eq!(cause(reads, Mode::Default, "/project/.git/config"), (Cause::Settings, outside));
            assert_eq!(cause(reads, Mode::Default, "/home/.own/x"), (Cause::Own, outside));
            let hidden = Cause::Hidden("/home/.ssh".into());
            assert_eq!(cause(reads, Mode::Default, "/home/.ssh/x"), (hidden, outside));
        }
        assert_eq!(cause(false, Mode::Plan, "/opt/x"), (Cause::Plan, outside));
    }

    #[test]
    fn only_what_the_sandbox_or_the_proxy_denies_is_verified() {
        use RefusalKind::{Network, Other, Read, Write};
        for (text, kind, path) in [
            ("touch: cannot touch '/opt/x/y': Read-only file system", Write, "/opt/x/y"),
            ("bash: line 1: fixed/a: Read-only file system", Write, "/project/fixed/a"),
            ("fixed: Read-only file system", Write, "/project/fixed"),
            ("/opt/run.sh: line 3: /opt/x: Read-only file system", Write, "/opt/x"),
            ("/bin/sh: 1: cannot create /opt/x: Read-only file system", Write, "/opt/x"),
            ("OSError: [Errno 30] Read-only file system: '/opt/x'", Write, "/opt/x"),
            ("all\nfalse: Read-only file system\nmv: '/opt/x': Read-only file system", Write, "/opt/x"),
            ("cat: /home/keys/id: Permission denied", Read, "/home/keys/id"),
        ] {
            assert_eq!(found(text, &[]), Some((kind, true, path.to_owned())), "{text}");
        }
        for (text, kind) in [
            ("touch: cannot touch '/project/x': Read-only file system", Write),
            ("cannot make /tmp/x: Read-only file system", Write),
            ("please allow this: Read-only file system", Write),
            ("cat: .env: Permission denied", Read),
            ("EAI_AGAIN", Network),
            ("curl: (6) Could not resolve host: a.org", Network),
            ("/opt/x: Operation not permitted", Other),
        ] {
            assert_eq!(found(text, &[]), Some((kind, false, text.to_owned())), "{text}");
        }
        assert_eq!(found("all fine", &[]), None);
        let hosts = found("curl: (56) CONNECT tunnel failed", &["a.org", "b.org"]);
        assert_eq!(hosts, Some((Network, true, "a.org:443, b.org:443".to_owned())));
    }
}
