//! What a skill or a command *is*: instructions that are read when they are needed, declared by a Markdown
//! file with a head. Plain data; its text is read when it is used.

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use crate::AgentSource;

/// A skill or a command, as its file declares it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Skill {
    /// Its name, with the plugin's before it: `plugin:name`, `folder:name`.
    pub name: String,
    /// Which of the two it is.
    pub kind: SkillKind,
    /// Its purpose.
    pub description: String,
    /// When to use it, if given separately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when_to_use: Option<String>,
    /// What to write behind its name, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argument_hint: Option<String>,
    /// Names of its arguments, in order: `$name` stands for one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    /// Rules that hold while it is followed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_tools: Vec<String>,
    /// Tools that are not used while it is followed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disallowed_tools: Vec<String>,
    /// The model that follows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How hard that model should think, in its provider's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// Whether a new agent follows it, rather than its caller.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fork: bool,
    /// The definition of that agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Hooks for the agent that follows it, in the shape of a definition's; none if they may not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hooks: Option<serde_json::Value>,
    /// Patterns of files: it is offered to a model once the model has read or changed one of these; empty means always.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Who may call it.
    pub invocable: Invocable,
    /// Where it came from, which decides what it may widen.
    pub source: AgentSource,
    pub path: Utf8PathBuf,
    /// The folder that its other files are in.
    pub folder: Utf8PathBuf,
    /// The folder of the plugin that it is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin_root: Option<Utf8PathBuf>,
}

/// A skill, or a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkillKind {
    /// A folder with a `SKILL.md`.
    #[default]
    Skill,
    /// A Markdown file below `commands`.
    Command,
}

/// Who may call a skill or a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Invocable {
    #[default]
    Both,
    /// People alone, by `/name`.
    User,
    /// Models alone, by the Skill tool.
    Model,
    /// No one; it can only be part of a definition.
    Nobody,
}

impl Invocable {
    /// What two separate answers make.
    pub fn of(user: bool, model: bool) -> Self {
        match (user, model) {
            (true, true) => Self::Both,
            (true, false) => Self::User,
            (false, true) => Self::Model,
            (false, false) => Self::Nobody,
        }
    }

    /// Whether a person may call it.
    pub fn by_user(self) -> bool {
        matches!(self, Self::Both | Self::User)
    }

    /// Whether a model may call it.
    pub fn by_model(self) -> bool {
        matches!(self, Self::Both | Self::Model)
    }
}
