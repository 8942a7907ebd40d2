//! Whether a command failed because of its sandbox. Takes what it printed, the hosts that the proxy refused and the
//! sandbox; gives what it wanted, for people and models.
//!
//! The kernel tells programs "read-only file system", "permission denied" or "operation not permitted", and programs
//! print that with a path. There is no better witness that needs no privileges, and a command can print what it likes.
//! So a path counts only if the sandbox denies it; the rest is told as what the command reports.

use std::path::{Path, PathBuf};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::Sandbox;
use decurion_protocol::{ToolContent, ToolOutput};

use crate::trail::Trails;

/// What a sandbox kept a command from, as far as can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What tells it.
    pub evidence: Evidence,
    /// What it was.
    pub kind: RefusalKind,
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
/// Longer lines are cut.
const LONGEST: usize = 300;
/// As many lines are looked at for paths.
const MOST_SIGNS: usize = 50;

/// What kept a failed command from something: hosts that it was refused, a path that it names and its sandbox denies,
/// or the first sign in what it printed. Looks at the disk.
pub fn refusal_in(
    output: &ToolOutput,
    hosts: &[String],
    sandbox: &Sandbox,
    cwd: &Utf8Path,
) -> Option<Refusal> {
    if !output.is_error {
        return None;
    }
    if !hosts.is_empty() {
        return Some(Refusal { evidence: Evidence::Hosts(hosts.join(", ")), kind: RefusalKind::Network });
    }
    let text = output.content.text();
    let denied = |(line, kind): (&str, RefusalKind)| {
        let mut named = paths_in(line).map(|path| Trails::on_disk().place(&cwd.join(path)));
        let path = named.find(|path| denies(sandbox, kind, path.as_std_path()))?;
        Some(Refusal { evidence: Evidence::Path(path), kind })
    };
    signs(&text).take(MOST_SIGNS).find_map(denied).or_else(|| first_sign(&text))
}

/// The first line that tells of something that a sandbox refuses.
pub(super) fn first_sign(text: &str) -> Option<Refusal> {
    let (line, kind) = signs(text).next()?;
    let line = line.trim().chars().take(LONGEST).collect();
    Some(Refusal { evidence: Evidence::Line(line), kind })
}

fn signs(text: &str) -> impl Iterator<Item = (&str, RefusalKind)> {
    text.lines().filter_map(|line| {
        let lower = line.to_lowercase();
        SIGNS.iter().find(|(sign, _)| lower.contains(sign)).map(|(_, kind)| (line, *kind))
    })
}

/// What in a line may be a path: what is quoted, words with a slash, and what stands before a colon.
fn paths_in(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split(['\'', '"', '`', '‘', '’']).skip(1).step_by(2);
    let words = line.split([' ', ':', '(', ')', ',', '\'', '"']).filter(|word| word.contains('/'));
    let before_colon = line.split(": ").filter(|part| !part.contains([' ', '/']));
    let named = quoted.chain(words).chain(before_colon);
    named.filter(|path| !path.is_empty() && path.len() <= LONGEST)
}

/// Whether a sandbox keeps its command from a place.
fn denies(sandbox: &Sandbox, kind: RefusalKind, place: &Path) -> bool {
    let covers = |paths: &[PathBuf]| paths.iter().any(|path| place.starts_with(path));
    // Of these the command has its own.
    let own = ["/tmp", "/var/tmp", "/dev", "/proc"].iter().any(|folder| place.starts_with(folder));
    let own = own && !covers(&sandbox.visible);
    match kind {
        RefusalKind::Write => covers(&sandbox.read_only) || !(own || covers(&sandbox.writable)),
        RefusalKind::Read => covers(&sandbox.hidden),
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

    /// Why a person is asked, `outside` whether the command would run without a sandbox then.
    pub fn question(&self, outside: bool) -> String {
        let (kind, text) = (self.kind.text(), self.text());
        let what = match self.evidence {
            Evidence::Hosts(_) | Evidence::Path(_) => format!("the sandbox stopped it: {kind} ({text})"),
            Evidence::Line(_) => format!("the command reports, unverified, that {kind} ({text})"),
        };
        let then = if outside {
            "it has run once; run it again without the sandbox?"
        } else {
            "it had no effect; run it with the usual rights (write here, listed hosts)?"
        };
        format!("{what}; {then}")
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
    pub fn notice(&self, outside: bool) -> String {
        let how = if outside {
            "without the sandbox"
        } else {
            "with the right to write in the working directories"
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
        let more = match (self.kind, denied) {
            (_, Some(reason)) => format!(" Running it with more rights was refused: {reason}."),
            (RefusalKind::Write, None) => {
                " Commands can write in the working directories and in $TMPDIR.".to_owned()
            }
            (RefusalKind::Network, None) => format!(
                " Hosts that commands may reach are listed in the setting sandbox.network.allowedDomains ({}).",
                self.text()
            ),
            (RefusalKind::Read | RefusalKind::Other, None) => String::new(),
        };
        output.content = ToolContent::Text(format!("{said}\n[The sandbox may be the reason: {kind}.{more}]"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, hosts: &[&str]) -> Option<(RefusalKind, bool, String)> {
        let sandbox = Sandbox {
            writable: vec!["/work".into(), "/private".into()],
            read_only: vec!["/work/fixed".into()],
            hidden: vec!["/home/keys".into()],
            ..Sandbox::default()
        };
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let refusal = refusal_in(&ToolOutput::error(text), &hosts, &sandbox, "/work".into())?;
        Some((refusal.kind, refusal.is_verified(), refusal.text().to_owned()))
    }

    #[test]
    fn only_what_the_sandbox_or_the_proxy_denies_is_verified() {
        use RefusalKind::{Network, Other, Read, Write};
        for (text, kind, path) in [
            ("touch: cannot touch '/opt/x/y': Read-only file system", Write, "/opt/x/y"),
            ("bash: line 1: fixed/a: Read-only file system", Write, "/work/fixed/a"),
            ("fixed: Read-only file system", Write, "/work/fixed"),
            ("OSError: [Errno 30] Read-only file system: '/opt/x'", Write, "/opt/x"),
            ("all\nfalse: Read-only file system\nmv: '/opt/x': Read-only file system", Write, "/opt/x"),
            ("cat: /home/keys/id: Permission denied", Read, "/home/keys/id"),
        ] {
            assert_eq!(found(text, &[]), Some((kind, true, path.to_owned())), "{text}");
        }
        for (text, kind) in [
            ("touch: cannot touch '/work/x': Read-only file system", Write),
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
        let hosts = found("curl: (56) CONNECT tunnel failed", &["a.org:443", "b.org:80"]);
        assert_eq!(hosts, Some((Network, true, "a.org:443, b.org:80".to_owned())));
    }
}
