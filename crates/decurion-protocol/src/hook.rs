//! Hooks as declared: commands that a person wants run at certain moments, as plain data. Settings and
//! definitions are read into these; the engine runs them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

/// One command for one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookDeclaration {
    pub event: HookEvent,
    /// For which subjects (tools, agent types, sources …), as a pattern of the whole name; none is for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matcher: Option<String>,
    /// A line for the shell; with `args`, a program.
    pub command: String,
    /// The host's name for its own function, which runs in place of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
    /// The program's arguments, passed as they are; none hands the command to the shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// How long it may take, as seconds; none is the usual time.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "seconds")]
    pub timeout: Option<Duration>,
    /// A permission rule: only calls that it matches are of interest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_rule: Option<String>,
    /// What its own failure means.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Whether it runs at the first opportunity only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub once: bool,
    /// Where it was declared, for people: file, place in it, key.
    #[serde(default)]
    pub source: String,
    /// The folder of the plugin that it is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin_root: Option<Utf8PathBuf>,
}

impl HookDeclaration {
    /// A line for the shell that runs whenever this happens.
    pub fn new(event: HookEvent, command: impl Into<String>) -> Self {
        Self {
            event,
            matcher: None,
            command: command.into(),
            callback: None,
            args: None,
            timeout: None,
            if_rule: None,
            on_failure: OnFailure::Default,
            once: false,
            source: String::new(),
            plugin_root: None,
        }
    }

    /// A function of the host that runs whenever this happens.
    pub fn callback(event: HookEvent, callback: impl Into<String>) -> Self {
        Self { callback: Some(callback.into()), ..Self::new(event, "") }
    }
}

/// What the failure of a hook means: it crashed, hung or could not be started, so its answer is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// It is reported and nothing else.
    Continue,
    /// A hook that guards a call makes it a question; any other is reported.
    #[default]
    Default,
    /// As if the hook had blocked. This goes for every exit code but 0, too.
    Block,
}

/// The moments at which hooks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HookEvent {
    /// A session starts or resumes; the subject says how (`startup`, `resume` …).
    SessionStart,
    /// A session ends; the subject is why.
    SessionEnd,
    /// A person sent a prompt.
    UserPromptSubmit,
    /// A call is about to be decided on; the subject is the tool, here and in the next two.
    PreToolUse,
    PostToolUse,
    PostToolUseFailure,
    /// All calls of a message have their results.
    PostToolBatch,
    /// A person is about to be asked about a call; the subject is the tool.
    PermissionRequest,
    /// A call was denied; the subject is the tool.
    PermissionDenied,
    /// The main agent is about to end its turn.
    Stop,
    /// The main agent's turn ended in an error; the subject is its kind.
    StopFailure,
    /// A sub-agent begins; the subject is its type.
    SubagentStart,
    /// A sub-agent is about to end; the subject is its type.
    SubagentStop,
    /// A conversation is about to be shortened; the subject says who wanted it (`manual`, `auto`).
    PreCompact,
    /// A conversation was shortened.
    PostCompact,
    /// A person should look; the subject is the kind of notification.
    Notification,
}

impl HookEvent {
    pub const ALL: [Self; 16] = [
        Self::SessionStart,
        Self::SessionEnd,
        Self::UserPromptSubmit,
        Self::PreToolUse,
        Self::PostToolUse,
        Self::PostToolUseFailure,
        Self::PostToolBatch,
        Self::PermissionRequest,
        Self::PermissionDenied,
        Self::Stop,
        Self::StopFailure,
        Self::SubagentStart,
        Self::SubagentStop,
        Self::PreCompact,
        Self::PostCompact,
        Self::Notification,
    ];

    /// Its name in settings and in what a hook reads.
    pub fn name(self) -> &'static str {
        match self {
            Self::SessionStart => "SessionStart",
            Self::SessionEnd => "SessionEnd",
            Self::UserPromptSubmit => "UserPromptSubmit",
            Self::PreToolUse => "PreToolUse",
            Self::PostToolUse => "PostToolUse",
            Self::PostToolUseFailure => "PostToolUseFailure",
            Self::PostToolBatch => "PostToolBatch",
            Self::PermissionRequest => "PermissionRequest",
            Self::PermissionDenied => "PermissionDenied",
            Self::Stop => "Stop",
            Self::StopFailure => "StopFailure",
            Self::SubagentStart => "SubagentStart",
            Self::SubagentStop => "SubagentStop",
            Self::PreCompact => "PreCompact",
            Self::PostCompact => "PostCompact",
            Self::Notification => "Notification",
        }
    }

    /// Whether it is about one call, so that its subject is a tool and rules can choose among calls.
    pub fn is_about_a_call(self) -> bool {
        matches!(
            self,
            Self::PreToolUse
                | Self::PostToolUse
                | Self::PostToolUseFailure
                | Self::PermissionRequest
                | Self::PermissionDenied
        )
    }

    /// Whether its hooks decide if a call may go ahead. Their failure is never an approval.
    pub fn decides_permission(self) -> bool {
        matches!(self, Self::PreToolUse | Self::PermissionRequest)
    }

    /// Whether a hook's "no" has an effect: it prevents something, or the model receives it.
    pub fn can_block(self) -> bool {
        match self {
            Self::UserPromptSubmit
            | Self::PreToolUse
            | Self::PostToolUse
            | Self::PostToolUseFailure
            | Self::PostToolBatch
            | Self::PermissionRequest
            | Self::Stop
            | Self::SubagentStop
            | Self::PreCompact => true,
            Self::SessionStart
            | Self::SessionEnd
            | Self::PermissionDenied
            | Self::StopFailure
            | Self::SubagentStart
            | Self::PostCompact
            | Self::Notification => false,
        }
    }

    /// Whether plain text that a hook prints is meant for the model.
    pub fn takes_text_as_context(self) -> bool {
        matches!(self, Self::UserPromptSubmit | Self::SessionStart | Self::SubagentStart)
    }
}

impl fmt::Display for HookEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no event has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such event: {0:?}")]
pub struct UnknownHookEvent(pub String);

impl FromStr for HookEvent {
    type Err = UnknownHookEvent;

    fn from_str(name: &str) -> Result<Self, UnknownHookEvent> {
        let known = Self::ALL.into_iter().find(|event| event.name() == name);
        known.ok_or_else(|| UnknownHookEvent(name.to_owned()))
    }
}

/// A time as a number of seconds, as people write it.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[expect(clippy::ref_option, reason = "serde gives the field as it is")]
    pub fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.serialize_some(&time.as_secs_f64()),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(deserializer)?;
        seconds.map(|seconds| Duration::try_from_secs_f64(seconds).map_err(D::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_have_one_name_everywhere() {
        for event in HookEvent::ALL {
            assert_eq!(serde_json::to_value(event).unwrap(), json!(event.name()));
            assert_eq!(event.name().parse(), Ok(event));
        }
        assert_eq!("stop".parse::<HookEvent>(), Err(UnknownHookEvent("stop".into())));
    }

    #[test]
    fn declarations_say_only_what_was_declared() {
        let plain = HookDeclaration::new(HookEvent::Stop, "true");
        let short = json!({"event": "Stop", "command": "true", "on_failure": "default", "source": ""});
        let full = HookDeclaration {
            matcher: Some("Bash".into()),
            args: Some(vec!["-v".into()]),
            timeout: Some(Duration::from_millis(1500)),
            if_rule: Some("Bash(git *)".into()),
            on_failure: OnFailure::Block,
            once: true,
            source: "settings.json:1:2".into(),
            plugin_root: Some("/p".into()),
            ..HookDeclaration::new(HookEvent::PreToolUse, "check")
        };
        let long = json!({
            "event": "PreToolUse", "matcher": "Bash", "command": "check", "args": ["-v"], "timeout": 1.5,
            "if_rule": "Bash(git *)", "on_failure": "block", "once": true, "source": "settings.json:1:2", "plugin_root": "/p",
        });
        for (declaration, value) in [(plain, short), (full, long)] {
            assert_eq!(serde_json::to_value(&declaration).unwrap(), value);
            assert_eq!(serde_json::from_value::<HookDeclaration>(value).unwrap(), declaration);
        }
        let negative = json!({"event": "Stop", "command": "true", "timeout": -1});
        assert!(serde_json::from_value::<HookDeclaration>(negative).is_err());
    }
}
