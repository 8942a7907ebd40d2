//! What a tool gives back: text for the model, a structure for programs, and the changes it made to the
//! run's own state, as data.

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Delivery, Todo, ToolContent};

/// The result of a call that started and whose end was not seen.
pub const CUT_OFF: &str = "Interrupted before it finished; it may have partly run.";

/// The result of one call. A failed tool is still an output: the model reads it and tries something else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolOutput {
    /// What the model reads.
    pub content: ToolContent,
    /// Whether the tool failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
    /// The same for programs: `tool_use_result` on the stream, `toolUseResult` in the transcript.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured: Option<Value>,
    /// What the call changed in the state of its run; applied by the run, rebuilt on resume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<ToolEffect>,
}

impl ToolOutput {
    /// The list of steps that it wrote, if it wrote one.
    pub fn todos(&self) -> Option<Vec<Todo>> {
        let mut written = self.effects.iter().filter_map(|effect| match effect {
            ToolEffect::Todos { todos } => Some(Todo::list(todos)),
            _ => None,
        });
        written.next_back()
    }
}

/// A change to the state a run keeps between its calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
pub enum ToolEffect {
    /// The run now knows the content of a file, so that an edit of it is not blind.
    Saw {
        path: Utf8PathBuf,
        /// SHA-256 of the whole content, hex.
        hash: String,
    },
    /// The shell's working directory is now this.
    Moved { cwd: Utf8PathBuf },
    /// The result contains a notice, which is therefore not delivered again.
    Delivered { delivery: Delivery },
    /// The run follows a skill until its next prompt, by rules of that skill; the skill's hooks stay for as
    /// long as the agent lives.
    Follows { skill: String, rules: crate::OwnRules },
    /// The run's list of steps is now this.
    Todos {
        /// In the shape of the TodoWrite input.
        todos: Value,
    },
    /// A kind of effect that this version does not know, kept and passed through.
    #[serde(untagged)]
    Unknown(Value),
}

impl ToolEffect {
    /// The file that is known by it.
    pub fn seen(&self) -> Option<Utf8PathBuf> {
        match self {
            Self::Saw { path, .. } => Some(path.clone()),
            _ => None,
        }
    }
}

impl ToolOutput {
    /// A success of plain text.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            content: ToolContent::Text(text.into()),
            is_error: false,
            structured: None,
            effects: Vec::new(),
        }
    }

    /// A failure the model should read.
    pub fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }

    /// A failure of the request itself (bad input, unknown tool), marked the way models are used to.
    pub fn usage_error(text: impl AsRef<str>) -> Self {
        Self::error(format!("<tool_use_error>{}</tool_use_error>", text.as_ref()))
    }

    /// The same with a structure for programs.
    #[must_use]
    pub fn with_structured(mut self, structured: Value) -> Self {
        self.structured = Some(structured);
        self
    }

    /// The same with one more change of the run's state.
    #[must_use]
    pub fn with_effect(mut self, effect: ToolEffect) -> Self {
        self.effects.push(effect);
        self
    }
}
