//! Whether a command failed because of its sandbox. Takes what it printed, the hosts that the proxy refused and the
//! sandbox; gives what it wanted, for people and models.
//!
//! The kernel tells programs "read-only file system", "permission denied" or "operation not permitted", and programs
//! print that with a path. There is no better witness that needs no privileges, and a command can print what it likes.
//! So a path counts only if the sandbox denies it; the rest is told as what the command reports.

use std::path::{Path, PathBuf};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::Sandbox;
use decurion_protocol::{Access, Intent, ToolContent, ToolOutput, Touch, Verdict};
use serde_json::Value;

use crate::permission::{Policy, decide};
use crate::trail::Trails;

/// What a sandbox kept a command from, as far as can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What tells it.
    pub evidence: Evidence,
    /// What it was.
    pub kind: RefusalKind,
    /// What refuses it whatever rights a person gives the command, if that is so.
    pub fixed: Option<Fixed>,
    /// Of each host why it was refused and what would allow it.
    pub hosts: Vec<String>,
}

/// A host that the proxy refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedHost {
    /// Its name.
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
    /// The list of what is always hidden.
    AlwaysHidden,
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
    /// No sandbox.
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
}

/// What tells of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The proxy refused these hosts.
    Hosts(String),
    /// The command names this path, and its sandbox denies it.
    Path(Utf8PathBuf),
    /// The command printed this line.
    Line(String),
}

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// Writing a file.
    Write,
    /// Reading a file.
    Read,
    /// The network.
    Network,
    /// Something else: a socket, another process, a privilege.
    Other,
}

impl RefusalKind {
    /// The same as part of a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Self::Write => "it wanted to write outside of what it may write",
            Self::Read => "it wanted to read what it may not read",
            Self::Network => "it wanted to use the network",
            Self::Other => "it wanted to do what the sandbox refuses",
        }
    }
}

const SIGNS: &[(&str, RefusalKind)] = &[
    ("dial unix", RefusalKind::Other),
    ("read-only file system", RefusalKind::Write),
    ("erofs", RefusalKind::Write),
    ("device or resource busy", RefusalKind::Write),
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

/// What kept a failed command from something: hosts that it was refused, a path that it names and its sandbox denies,
/// or the first sign in what it printed. Of several paths it is one that more rights would open, if there is one. Looks
/// at the disk.
pub fn refusal_in(
    output: &ToolOutput,
    hosts: &[RefusedHost],
    bounds: &Bounds<'_>,
    cwd: &Utf8Path,
) -> Option<Refusal> {
    if !output.is_error {
        return None;
    }
    if !hosts.is_empty() {
        let names: Vec<String> = hosts.iter().map(RefusedHost::address).collect();
        let fixed = hosts.iter().all(|host| host.by_rule).then_some(Fixed::Hosts);
        let why = reasons(hosts);
        let evidence = Evidence::Hosts(names.join(", "));
        return Some(Refusal { evidence, kind: RefusalKind::Network, fixed, hosts: why });
    }
    let text = output.content.text();
    let mut fixed = None;
    for (line, kind) in lines_with_paths(&text).take(MOST_SIGNS) {
        let mut named = paths_in(line).map(|path| place_of(&cwd.join(path)));
        let Some(path) = named.find(|path| bounds.denies(line, kind, path)) else { continue };
        let fixed_here = bounds.fixed(kind, &path);
        let refusal = Refusal { fixed: fixed_here, evidence: Evidence::Path(path), kind, hosts: Vec::new() };
        if refusal.fixed.is_none() {
            return Some(refusal);
        }
        fixed.get_or_insert(refusal);
    }
    fixed.or_else(|| first_sign(&text))
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
    Some(Refusal { evidence: Evidence::Line(line), kind, fixed: None, hosts: Vec::new() })
}

/// Where a path leads, without `.` in it.
fn place_of(path: &Utf8Path) -> Utf8PathBuf {
    Trails::on_disk().place(&path.components().collect::<Utf8PathBuf>())
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

/// What in a line may be a path: what is quoted, words with a slash, and what stands before a colon.
fn paths_in(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split(['\'', '"', '`', '‘', '’']).skip(1).step_by(2);
    let words = line.split([' ', ':', '(', ')', ',', '\'', '"']).filter(|word| word.contains('/'));
    let before_colon = line.split(": ").filter(|part| !part.contains([' ', '/']));
    let named = quoted.chain(words).chain(before_colon);
    named.filter(|path| !path.is_empty() && path.len() <= LONGEST)
}

impl Bounds<'_> {
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
            RefusalKind::Network | RefusalKind::Other => return None,
        };
        let touches = vec![Touch { path: place.to_owned(), access }];
        let decision = decide(self.policy, tool, &Value::Null, &Intent { touches, ..Intent::titled("") });
        if let Some(rule) = decision.rule.filter(|_| decision.verdict == Verdict::Deny) {
            return Some(Fixed::Rule(rule));
        }
        let trails = Trails::on_disk();
        let hides = |path: &Utf8PathBuf| place.starts_with(trails.place(path));
        (kind == RefusalKind::Read && self.always_hidden.iter().any(hides)).then_some(Fixed::AlwaysHidden)
    }

    /// What the command would need, if a person can give it.
    pub fn remedy(&self, refusal: &Refusal) -> Option<Remedy> {
        if refusal.fixed.is_some() {
            return None;
        }
        let helps = |usual: &Sandbox| match (&refusal.evidence, refusal.kind) {
            (Evidence::Path(path), kind) => !denies(usual, kind, path.as_std_path()),
            (_, RefusalKind::Write) => true,
            (_, RefusalKind::Network) => usual.network,
            (_, RefusalKind::Other) => usual.unix_sockets,
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
fn denies(sandbox: &Sandbox, kind: RefusalKind, place: &Path) -> bool {
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
        RefusalKind::Network | RefusalKind::Other => false,
    }
}

impl Refusal {
    /// Whether it was the sandbox: a person may be asked to let the command do more.
    pub fn is_verified(&self) -> bool {
        !matches!(self.evidence, Evidence::Line(_))
    }

    /// Whether a program that did not fail may have been kept from something.
    pub(super) fn is_likely(&self) -> bool {
        self.is_verified() || self.text().to_lowercase().contains("read-only file system")
    }

    /// The hosts, the path or the line.
    pub fn text(&self) -> &str {
        match &self.evidence {
            Evidence::Hosts(text) | Evidence::Line(text) => text,
            Evidence::Path(path) => path.as_str(),
        }
    }

    /// Why a person is asked to let the command run again with a remedy.
    pub fn question(&self, remedy: Remedy) -> String {
        let (kind, text) = (self.kind.text(), self.text());
        let what = match self.evidence {
            Evidence::Hosts(_) | Evidence::Path(_) => format!("the sandbox {}", self.refused()),
            Evidence::Line(_) => format!("the command reports, unverified, that {kind} ({text})"),
        };
        let then = match remedy {
            Remedy::Outside => "it has run once, perhaps with effects; run it again without the sandbox?",
            Remedy::UsualRights => {
                "it had no effect; run it with the usual rights (write here, listed hosts)?"
            }
        };
        format!("{what}; {then}")
    }

    /// What the sandbox did, where that is known, as the end of a sentence.
    fn refused(&self) -> String {
        let text = self.text();
        match self.kind {
            RefusalKind::Write => format!("refused to write {text}"),
            RefusalKind::Read => format!("hides {text}"),
            RefusalKind::Network | RefusalKind::Other => format!("refused the connection to {text}"),
        }
    }

    /// A path that was refused and the setting that would allow it, in one line for people.
    pub fn line(&self) -> Option<String> {
        let Evidence::Path(path) = &self.evidence else { return None };
        let why = match (&self.fixed, self.kind) {
            (Some(Fixed::Rule(rule)), _) => format!("denied by {rule}"),
            (Some(Fixed::AlwaysHidden), _) => "add it to sandbox.filesystem.allowRead".to_owned(),
            (_, RefusalKind::Write) => {
                let folder = path.parent().unwrap_or(path);
                format!("add {folder} to sandbox.filesystem.allowWrite")
            }
            (_, _) => format!("allow it with the rule Read(/{path})"),
        };
        Some(format!("{} ({why})", self.refused()))
    }

    /// What a person can do about a hook or a server that needs more.
    pub fn advice(&self) -> String {
        let (kind, line) = (self.kind.text(), self.text());
        let setting = match self.kind {
            RefusalKind::Write => "allow the folder with the setting sandbox.filesystem.allowWrite, or let",
            RefusalKind::Read => "allow the file with the setting sandbox.filesystem.allowRead, or let",
            RefusalKind::Network | RefusalKind::Other => "let",
        };
        format!(
            "The sandbox may be the reason: {kind} ({line}); {setting} the command run outside with \
             sandbox.excludedCommands."
        )
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
        let (kind, said) = (self.kind.text(), output.content.text());
        if let Some(fixed) = &self.fixed {
            let text = match fixed {
                Fixed::Hosts => format!("The sandbox {}. {}.", self.refused(), self.hosts.join(". ")),
                fixed => fixed.text(self.kind, self.text()),
            };
            output.content = ToolContent::Text(format!("{said}\n[{text}]"));
            return;
        }
        let more = match denied {
            Some(reason) => format!(" Running it with more rights was refused: {reason}."),
            None => self.help(),
        };
        let what = match &self.evidence {
            Evidence::Path(_) => format!("The sandbox {}.", self.refused()),
            Evidence::Hosts(_) => format!("The sandbox {}. {}.", self.refused(), self.hosts.join(". ")),
            Evidence::Line(_) => format!("The sandbox may be the reason: {kind}."),
        };
        output.content = ToolContent::Text(format!("{said}\n[{what}{more}]"));
    }

    /// What would let a command have what it was refused.
    fn help(&self) -> String {
        match (&self.evidence, self.kind) {
            (_, RefusalKind::Write) => {
                " Commands can write in the working directories and in $TMPDIR. The user can \
                                        add folders with the setting sandbox.filesystem.allowWrite."
                    .to_owned()
            }
            (Evidence::Path(path), RefusalKind::Read) => format!(
                " A command that only reads sees no personal files outside of the working directories, unless the user \
                 allows them with a rule: Read(/{path})."
            ),
            (Evidence::Line(_), RefusalKind::Network) => {
                " Commands reach the network only through the proxy that \
                                                          HTTPS_PROXY and ALL_PROXY name."
                    .to_owned()
            }
            _ => String::new(),
        }
    }
}

impl Fixed {
    /// The same for a path, as a sentence.
    fn text(&self, kind: RefusalKind, path: &str) -> String {
        let is = if kind == RefusalKind::Write { "read-only for" } else { "hidden from" };
        match self {
            Self::Hosts => format!("The sandbox refused the connection to {path}."),
            Self::Person(said) => format!("The connection to {path} was refused: {said}"),
            Self::Rule(rule) => {
                format!("{path} is {is} commands by the rule {rule}. The rest of the command ran.")
            }
            Self::AlwaysHidden => format!(
                "{path} exists, but it is {is} commands, because keys or other private files are kept there. The \
                 user can show it with the setting sandbox.filesystem.allowRead."
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
        let bounds = Bounds { sandbox: &sandbox, usual: None, policy: &policy, always_hidden: &[] };
        let refusal = refusal_in(&ToolOutput::error(text), &hosts, &bounds, "/project".into())?;
        Some((refusal.kind, refusal.is_verified(), refusal.text().to_owned()))
    }

    #[test]
    fn only_what_the_sandbox_or_the_proxy_denies_is_verified() {
        use RefusalKind::{Network, Other, Read, Write};
        for (text, kind, path) in [
            ("touch: cannot touch '/opt/x/y': Read-only file system", Write, "/opt/x/y"),
            ("bash: line 1: fixed/a: Read-only file system", Write, "/project/fixed/a"),
            ("fixed: Read-only file system", Write, "/project/fixed"),
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
