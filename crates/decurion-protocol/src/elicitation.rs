//! What an MCP server asks a person for while one of its tools runs, and the answer. Data only: the engine decides who
//! can be asked, and the front end how it looks.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a server asks a person for. The message and what is wanted are the server's own words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Elicitation {
    pub server: String,
    /// What it says to the person.
    pub message: String,
    /// How many calls of its tools were under way. It does not say for which of them it asks; with several,
    /// the one that is named is the last that began.
    pub calls: usize,
    #[serde(flatten)]
    pub wanted: Wanted,
}

/// What a server wants of a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum Wanted {
    /// A form to be filled in.
    Form {
        /// The JSON Schema of the form, a flat object.
        schema: Value,
    },
    /// An address to be visited. Accepting says that the person agrees to go there, and no more: what is done
    /// there is between them and the server.
    Url {
        /// The address, `http` or `https`.
        url: String,
        /// The server's name for this visit.
        #[serde(rename = "elicitation_id")]
        id: String,
    },
}

/// What a person did with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElicitationAction {
    /// Gave what was asked for.
    Accept,
    Decline,
    /// Neither: there was no answer, or the server withdrew its request.
    Cancel,
}

/// A person's answer to a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Elicited {
    pub action: ElicitationAction,
    /// The form as filled in, with [`ElicitationAction::Accept`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Private>,
}

impl Elicited {
    /// An answer without a form.
    pub fn plain(action: ElicitationAction) -> Self {
        Self { action, content: None }
    }

    /// The answer as it is put on record: what a person wrote is between them and the server.
    #[must_use]
    pub fn on_record(&self) -> Self {
        Self::plain(self.action)
    }
}

/// A value that goes to the one it is meant for, and into no log: what shows it for debugging does not.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Private(pub Value);

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Private")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_question_and_its_answer_have_one_shape_on_the_wire() {
        let schema = json!({"type": "object", "properties": {}});
        let form = Elicitation {
            server: "s".into(),
            message: "m".into(),
            calls: 1,
            wanted: Wanted::Form { schema: schema.clone() },
        };
        let written = json!({"server": "s", "message": "m", "calls": 1, "mode": "form", "schema": schema});
        assert_eq!(serde_json::to_value(&form).unwrap(), written);
        assert_eq!(serde_json::from_value::<Elicitation>(written).unwrap(), form);
        let url = Wanted::Url { url: "https://a.example".into(), id: "1".into() };
        let written = json!({"mode": "url", "url": "https://a.example", "elicitation_id": "1"});
        assert_eq!(serde_json::to_value(&url).unwrap(), written);
        let given =
            Elicited { action: ElicitationAction::Accept, content: Some(Private(json!({"pin": 4711}))) };
        assert_eq!(
            serde_json::to_value(&given).unwrap(),
            json!({"action": "accept", "content": {"pin": 4711}})
        );
    }

    #[test]
    fn what_a_person_wrote_is_neither_recorded_nor_shown_for_debugging() {
        let given =
            Elicited { action: ElicitationAction::Accept, content: Some(Private(json!({"pin": 4711}))) };
        assert_eq!(serde_json::to_value(given.on_record()).unwrap(), json!({"action": "accept"}));
        assert!(!format!("{given:?}").contains("4711"));
    }
}
