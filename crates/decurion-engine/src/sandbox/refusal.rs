//! Whether a command failed because of its sandbox. Takes what it printed, gives what it wanted, for people and models.
//!
//! The kernel tells programs "read-only file system", "permission denied" or "operation not permitted", and programs
//! print that with a path. There is no better witness that needs no privileges.

use decurion_protocol::{ToolContent, ToolOutput};

/// What a sandbox kept a command from, as far as its output tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The line that tells it.
    pub line: String,
    /// What it was.
    pub kind: RefusalKind,
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

/// What kept a failed command from something: hosts that it was refused, or the first sign in what it printed.
pub fn refusal_in(output: &ToolOutput, hosts: &[String]) -> Option<Refusal> {
    if !output.is_error {
        return None;
    }
    match hosts {
        [] => first_sign(&output.content.text()),
        hosts => Some(Refusal { line: hosts.join(", "), kind: RefusalKind::Network }),
    }
}

/// The first line that tells of something that a sandbox refuses.
pub(super) fn first_sign(text: &str) -> Option<Refusal> {
    text.lines().find_map(|line| {
        let lower = line.to_lowercase();
        let (_, kind) = SIGNS.iter().find(|(sign, _)| lower.contains(sign))?;
        Some(Refusal { line: line.trim().chars().take(LONGEST).collect(), kind: *kind })
    })
}

impl Refusal {
    /// Whether it was surely the sandbox: nothing else makes a file system read-only or refuses hosts.
    pub fn is_sure(&self) -> bool {
        match self.kind {
            RefusalKind::Write => self.line.to_lowercase().contains("read-only file system"),
            // Then the line is the hosts that the proxy refused.
            RefusalKind::Network => self.line.split(", ").all(|host| !host.contains(' ')),
            RefusalKind::Read | RefusalKind::Other => false,
        }
    }

    /// Why a person is asked, `outside` whether the command would run without a sandbox then.
    pub fn question(&self, outside: bool) -> String {
        let (kind, line) = (self.kind.text(), &self.line);
        let then = if outside {
            "it has run once; run it again without the sandbox?"
        } else {
            "it had no effect; run it with the usual rights (write here, listed hosts)?"
        };
        format!("the sandbox stopped it: {kind} ({line}); {then}")
    }

    /// What a person can do about a hook or a server that needs more.
    pub fn advice(&self) -> String {
        let (kind, line) = (self.kind.text(), &self.line);
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
        format!("the sandbox stopped a command, and it was allowed to run again {how}: {}", self.line)
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
                self.line
            ),
            (RefusalKind::Read | RefusalKind::Other, None) => String::new(),
        };
        output.content = ToolContent::Text(format!("{said}\n[The sandbox may be the reason: {kind}.{more}]"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_the_proxy_refused_are_a_sure_sign_however_many() {
        let failed = ToolOutput::error("curl: (56) CONNECT tunnel failed");
        for hosts in [&["a.org:443"][..], &["a.org:443", "b.org:80"]] {
            let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
            assert!(refusal_in(&failed, &hosts).unwrap().is_sure(), "{hosts:?}");
        }
        let guess = ToolOutput::error("curl: (6) Could not resolve host: a.org");
        assert!(!refusal_in(&guess, &[]).unwrap().is_sure());
    }

    #[test]
    fn the_first_line_that_tells_of_a_refusal_is_kept() {
        let found = |text| first_sign(text).map(|refusal| (refusal.kind, refusal.line));
        assert_eq!(found("all fine\n"), None);
        assert_eq!(
            found("Exit code 1\ntouch: cannot touch '/etc/x': Read-only file system\n"),
            Some((RefusalKind::Write, "touch: cannot touch '/etc/x': Read-only file system".into()))
        );
        assert_eq!(found("cat: .env: Permission denied").unwrap().0, RefusalKind::Read);
        assert_eq!(found("curl: (6) Could not resolve host: example.com").unwrap().0, RefusalKind::Network);
    }
}
