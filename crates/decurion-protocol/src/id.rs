//! Typed ids. Takes text from outside and gives an id that is safe to print and, after its check, safe to use in a file
//! name. Ids made here are time-ordered or random UUIDs minted by the engine.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

/// Text that cannot be an id: wrong characters, empty, or too long.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {kind} id ({form}): {text:?}")]
pub struct InvalidId {
    /// Which kind of id was asked for.
    pub kind: &'static str,
    /// What such an id looks like.
    pub form: &'static str,
    /// What was given, cut to a printable length.
    pub text: String,
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                // Only the hyphenated form: the id is also a file name, and one id must have one name.
                let hyphenated = text.len() == 36;
                match Uuid::try_parse(text) {
                    Ok(uuid) if hyphenated => Ok(Self(uuid)),
                    _ => Err(invalid($kind, "a UUID with hyphens", text)),
                }
            }
        }
    };
}

macro_rules! name_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                if is_name(text) {
                    return Ok(Self(text.to_owned()));
                }
                Err(invalid($kind, "letters, digits, `_` and `-`, at most 64", text))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

uuid_id! {
    /// One session: a conversation with a person or program, and the name of its transcript file.
    SessionId, "session"
}
uuid_id! {
    /// One start or resume of an agent (UUIDv7, so they sort by time).
    RunId, "run"
}
uuid_id! {
    /// One line of a transcript that takes part in the conversation's chain.
    LineId, "line"
}
uuid_id! {
    /// One question to a person.
    QuestionId, "question"
}

uuid_id! {
    /// Names something asked of the program that leads a session.
    HostRequestId, "host request"
}
name_id! {
    /// One agent, stable over its resumes; equal to its task's id. Ours are `a` + 16 lower hex.
    AgentId, "agent"
}
name_id! {
    /// One task: an agent's id, or `b` + 8 base36 for a shell.
    TaskId, "task"
}

impl From<AgentId> for TaskId {
    fn from(agent: AgentId) -> Self {
        Self(agent.0)
    }
}

/// The id a model gave to one of its tool calls. Untrusted text: never a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(pub String);

impl CallId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Ties a [`crate::Command`] to its reply; the sender of the command chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u64);

/// The characters accepted in an id from outside, and the only ones ever used in a file name.
pub fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

fn invalid(kind: &'static str, form: &'static str, text: &str) -> InvalidId {
    InvalidId { kind, form, text: text.chars().take(80).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_never_a_path() {
        for bad in ["", ".", "..", "a/b", "a\\b", "a\0", "a b", "é", &"x".repeat(65), "-\n"] {
            assert!(bad.parse::<TaskId>().is_err(), "{bad:?}");
        }
        assert_eq!("a0123456789abcdef".parse::<AgentId>().unwrap().as_str(), "a0123456789abcdef");
    }

    #[test]
    fn a_session_has_one_spelling() {
        let id = "e2f629b8-aa85-44ef-9cf7-f46c3cf30809";
        assert_eq!(id.parse::<SessionId>().unwrap().to_string(), id);
        assert!("e2f629b8aa8544ef9cf7f46c3cf30809".parse::<SessionId>().is_err());
        assert!("{e2f629b8-aa85-44ef-9cf7-f46c3cf30809}".parse::<SessionId>().is_err());
    }
}
