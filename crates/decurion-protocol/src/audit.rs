//! Entries of the audit log. The engine, the sandbox and the network proxy make them; the store writes them and
//! `decurion audit` shows them. Plain data: times and ids come from the maker, the chain of hashes from the store.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{AgentId, Mode, SessionId, Verdict};

/// The longest title kept, in bytes: what was asked for, such as a command.
pub const TITLE_LIMIT: usize = 2048;
/// The longest other text kept, in bytes.
pub const TEXT_LIMIT: usize = 1024;

/// One thing that happened and may have to be accounted for later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    pub at: Timestamp,
    /// In which session; none for what the log says about itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// For which agent; none is the session's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
    /// The names from the root to the agent: `main/reviewer`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    #[serde(flatten)]
    pub kind: AuditKind,
}

/// What happened. A kind that this version does not know is kept as it was written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AuditKind {
    /// A tool call was allowed, denied, or put to a person.
    Permission(PermissionEntry),
    /// The sandbox refused something that a command tried, or the command says so.
    Sandbox {
        title: String,
        /// The path or the hosts that were refused, or the line by which the command says so.
        refused: String,
        /// Whether the sandbox denies this path or these hosts. Otherwise only the command says so.
        #[serde(default)]
        verified: bool,
        /// How the sandbox was enforced, such as `landlock` or `seccomp`.
        form: String,
    },
    /// A command ran without the sandbox, although there is one.
    Unsandboxed {
        /// The call, by its id in the transcript.
        call: String,
        title: String,
        reason: String,
    },
    /// A command or tool opened a connection to another machine, or was kept from it.
    Egress {
        /// The name that was asked for.
        host: String,
        port: u16,
        /// The address connected to; none where it came to no connection.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
        /// Whether it was allowed.
        verdict: Verdict,
        /// Who or what decided; entries of earlier versions do not tell.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<DecidedBy>,
        reason: String,
        /// Bytes sent to the host.
        bytes_up: u64,
        /// Bytes received from it.
        bytes_down: u64,
    },
    /// Entries that could not be written, counted once writing worked again.
    Gap {
        /// How many are missing.
        count: u64,
        /// Why they could not be written.
        reason: String,
    },
    /// The log was found damaged by the process that was about to append to it.
    Damage {
        /// Which kind of damage, in the words of `decurion audit verify`.
        problem: String,
        detail: String,
    },
    /// A kind that a later version writes.
    #[serde(untagged)]
    Unknown(Map<String, Value>),
}

/// The decision about one tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PermissionEntry {
    /// The call, by its id in the transcript.
    pub call: String,
    pub tool: String,
    /// What was asked for, such as the command; without secrets.
    pub title: String,
    /// What was decided. `ask` is followed by a second entry with the answer.
    pub decision: Verdict,
    /// Who or what decided.
    pub by: DecidedBy,
    /// The rule that decided, as written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The permission mode in force.
    pub mode: Mode,
    /// Why, in one sentence for a person.
    pub reason: String,
}

/// Who or what decided about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecidedBy {
    Rule,
    /// The permission mode or the built-in policy, where no rule decides.
    Policy,
    Hook,
    /// A person, at a terminal or with `decurion tasks answer`.
    Person,
    /// The program that hosts the session.
    Host,
    /// The MCP tool that answers in a person's place.
    Tool,
    /// Nothing answered: the call is denied because no one could be asked or no answer came in time.
    Nobody,
}

impl DecidedBy {
    /// The name used in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Policy => "policy",
            Self::Hook => "hook",
            Self::Person => "person",
            Self::Host => "host",
            Self::Tool => "tool",
            Self::Nobody => "nobody",
        }
    }

    /// The same for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Nobody => "no answer",
            other => other.name(),
        }
    }

    /// The one that an answer names as its sender (`Command::Answer`).
    pub fn answering(by: &str) -> Self {
        match by {
            "host" => Self::Host,
            "nobody" => Self::Nobody,
            _ => Self::Person,
        }
    }
}

impl AuditEntry {
    /// An entry of the log about itself.
    pub fn own(at: Timestamp, kind: AuditKind) -> Self {
        Self { at, session: None, agent: None, path: String::new(), kind }
    }

    /// The same with every text cut to its limit, so that one entry cannot fill the log.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        cut(&mut self.path, TEXT_LIMIT);
        match &mut self.kind {
            AuditKind::Permission(entry) => {
                cut(&mut entry.title, TITLE_LIMIT);
                for text in [&mut entry.call, &mut entry.tool, &mut entry.reason] {
                    cut(text, TEXT_LIMIT);
                }
                if let Some(rule) = &mut entry.rule {
                    cut(rule, TEXT_LIMIT);
                }
            }
            AuditKind::Sandbox { title, refused, form, .. } => {
                cut(title, TITLE_LIMIT);
                cut(refused, TITLE_LIMIT);
                cut(form, TEXT_LIMIT);
            }
            AuditKind::Unsandboxed { call, title, reason } => {
                cut(title, TITLE_LIMIT);
                cut(call, TEXT_LIMIT);
                cut(reason, TEXT_LIMIT);
            }
            AuditKind::Egress { host, address, reason, .. } => {
                cut(host, TEXT_LIMIT);
                cut(reason, TEXT_LIMIT);
                if let Some(address) = address {
                    cut(address, TEXT_LIMIT);
                }
            }
            AuditKind::Gap { reason, .. } => cut(reason, TEXT_LIMIT),
            AuditKind::Damage { problem, detail } => {
                cut(problem, TEXT_LIMIT);
                cut(detail, TEXT_LIMIT);
            }
            AuditKind::Unknown(_) => {}
        }
        self
    }
}

impl AuditKind {
    /// The name used in the log and for `--kind`.
    pub fn name(&self) -> &str {
        match self {
            Self::Permission(_) => "permission",
            Self::Sandbox { .. } => "sandbox",
            Self::Unsandboxed { .. } => "unsandboxed",
            Self::Egress { .. } => "egress",
            Self::Gap { .. } => "gap",
            Self::Damage { .. } => "damage",
            Self::Unknown(members) => members.get("kind").and_then(Value::as_str).unwrap_or("unknown"),
        }
    }
}

/// Cuts a text to so many bytes, at the end of a character, and marks the cut.
fn cut(text: &mut String, limit: usize) {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit - '…'.len_utf8()));
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn permission() -> AuditEntry {
        let entry = PermissionEntry {
            call: "toolu_1".into(),
            tool: "Bash".into(),
            title: "rm -rf build".into(),
            decision: Verdict::Deny,
            by: DecidedBy::Rule,
            rule: Some("Bash(rm:*)".into()),
            mode: Mode::Default,
            reason: "denied by Bash(rm:*)".into(),
        };
        AuditEntry {
            at: Timestamp::UNIX_EPOCH,
            session: Some(SessionId(uuid::Uuid::nil())),
            agent: None,
            path: "main".into(),
            kind: AuditKind::Permission(entry),
        }
    }

    #[test]
    fn entry_comes_back_as_it_was_written() {
        let egress = AuditKind::Egress {
            host: "example.org".into(),
            port: 443,
            address: Some("192.0.2.1".into()),
            verdict: Verdict::Allow,
            by: Some(DecidedBy::Rule),
            reason: "allowed by rule".into(),
            bytes_up: 10,
            bytes_down: u64::MAX,
        };
        for entry in [permission(), AuditEntry::own(Timestamp::UNIX_EPOCH, egress)] {
            let text = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<AuditEntry>(&text).unwrap(), entry, "{text}");
        }
        let text = serde_json::to_value(permission()).unwrap();
        assert_eq!((&text["kind"], &text["by"]), (&json!("permission"), &json!("rule")), "one flat object");
    }

    #[test]
    fn kind_of_a_later_version_is_kept() {
        let text = json!({"at": "1970-01-01T00:00:00Z", "path": "main", "kind": "teleport", "to": {"x": 1}});
        let entry: AuditEntry = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(entry.kind.name(), "teleport");
        assert_eq!(serde_json::to_value(&entry).unwrap(), text);
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let mut long = permission();
        if let AuditKind::Permission(entry) = &mut long.kind {
            entry.title = "é".repeat(5000);
            entry.reason = "x".repeat(TEXT_LIMIT);
        }
        let AuditKind::Permission(entry) = long.bounded().kind else { panic!("it stays a permission") };
        assert!(entry.title.len() <= TITLE_LIMIT && entry.title.ends_with("é…"), "{}", entry.title.len());
        assert_eq!(entry.reason.len(), TEXT_LIMIT, "what fits is not cut");
    }
}
