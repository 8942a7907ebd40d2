//! What a session asks of the program that leads it, as that program reads it. Takes a request, gives the line that
//! asks it, bounded, or why it cannot be asked; takes what the program says, gives the answer.

use decurion_protocol::{HostAnswer, HostAsked, HostRequest};
use serde_json::{Value, json};

/// The longest line that every host in use can read, with room for what its reader counts besides.
const MOST_LINE: usize = (1 << 20) - 1024;
/// How many characters are left of long texts, tried in this order until the line fits.
const LONGEST_TEXTS: [usize; 4] = [65_536, 8_192, 1_024, 128];

/// What kind of thing was asked, which decides how its answer is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A hook.
    Hook,
    /// A message to a server.
    Mcp,
}

impl Kind {
    pub(crate) fn of(asked: &HostAsked) -> Self {
        match asked {
            HostAsked::Hook { .. } => Self::Hook,
            HostAsked::Mcp { .. } => Self::Mcp,
        }
    }

    /// What the host's answer means.
    pub(crate) fn answer(self, response: Result<Value, String>) -> HostAnswer {
        match (self, response) {
            (_, Err(error)) => HostAnswer::Failed { error },
            (Self::Hook, Ok(value)) => HostAnswer::Given { value },
            (Self::Mcp, Ok(mut response)) => match response.get_mut("mcp_response") {
                Some(message) => HostAnswer::Given { value: message.take() },
                None => HostAnswer::Failed { error: "`mcp_response` is missing in its answer".to_owned() },
            },
        }
    }
}

/// The line that asks. Long texts of what a hook reads are cut so that it can be read; a message to a server is
/// whole or is not sent. The error says why it cannot be asked.
pub(crate) fn line(request: &HostRequest) -> Result<Vec<u8>, String> {
    let whole = control_request(request);
    let line = whole.to_string();
    if line.len() <= MOST_LINE {
        return Ok(line.into_bytes());
    }
    let length = line.len();
    if let HostAsked::Hook { .. } = request.asked {
        let mut whole = whole;
        for longest in LONGEST_TEXTS {
            cut(&mut whole["request"]["input"], longest);
            let line = whole.to_string();
            if line.len() <= MOST_LINE {
                return Ok(line.into_bytes());
            }
        }
    }
    Err(format!("it does not fit a line that a host can read ({length} bytes, at most {MOST_LINE})"))
}

fn control_request(HostRequest { id, asked }: &HostRequest) -> Value {
    let request = match asked {
        HostAsked::Hook { callback, input, call } => {
            json!({"subtype": "hook_callback", "callback_id": callback, "input": input, "tool_use_id": call})
        }
        HostAsked::Mcp { server, message } => {
            json!({"subtype": "mcp_message", "server_name": server, "message": message})
        }
    };
    json!({"type": "control_request", "request_id": id, "request": request})
}

/// Cuts the end off every text that is longer, and says so in it.
fn cut(value: &mut Value, longest: usize) {
    match value {
        Value::String(text) => {
            if let Some((end, _)) = text.char_indices().nth(longest) {
                let gone = text[end..].chars().count();
                text.truncate(end);
                text.push_str(&format!("\n[{gone} characters cut here]"));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| cut(item, longest)),
        Value::Object(members) => members.values_mut().for_each(|member| cut(member, longest)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use decurion_protocol::HostRequestId;

    use super::*;

    fn hook(input: Value) -> HostRequest {
        let asked = HostAsked::Hook { callback: "hook_0".into(), input, call: None };
        HostRequest { id: HostRequestId(Default::default()), asked }
    }

    #[test]
    fn a_hook_reads_what_fits_a_line_and_where_it_was_cut() {
        let small = hook(json!({"prompt": "x", "deep": [{"text": "y"}]}));
        assert_eq!(
            String::from_utf8(line(&small).unwrap()).unwrap(),
            r#"{"type":"control_request","request_id":"00000000-0000-0000-0000-000000000000","request":{"subtype":"hook_callback","callback_id":"hook_0","input":{"prompt":"x","deep":[{"text":"y"}]},"tool_use_id":null}}"#
        );
        // What is written with escapes takes more room than it has characters.
        for text in ["é".repeat(2 << 20), "\u{1}".repeat(2 << 20)] {
            let shown = line(&hook(json!({"prompt": "x", "deep": [{"text": text}]}))).unwrap();
            assert!(shown.len() <= MOST_LINE);
            let shown: Value = serde_json::from_slice(&shown).unwrap();
            let input = &shown["request"]["input"];
            assert_eq!(input["prompt"], "x");
            let text = input["deep"][0]["text"].as_str().unwrap();
            assert!(text.ends_with("\n[2031616 characters cut here]"), "{}", &text[text.len() - 60..]);
        }
    }

    #[test]
    fn what_cannot_be_cut_is_not_asked() {
        let numbers = hook(json!({"numbers": vec![7; 1 << 20]}));
        let asked = HostAsked::Mcp { server: "s".into(), message: json!({"x": "y".repeat(1 << 20)}) };
        let message = HostRequest { asked, ..numbers.clone() };
        for request in [numbers, message] {
            let error = line(&request).unwrap_err();
            assert!(error.starts_with("it does not fit a line that a host can read"), "{error}");
        }
    }

    #[test]
    fn answers_are_read_by_what_was_asked() {
        let given = |value| HostAnswer::Given { value };
        let failed = |error: &str| HostAnswer::Failed { error: error.into() };
        for (kind, response, expected) in [
            (Kind::Hook, Ok(json!({"continue": true})), given(json!({"continue": true}))),
            (Kind::Hook, Ok(Value::Null), given(Value::Null)),
            (Kind::Hook, Err("boom"), failed("boom")),
            (Kind::Mcp, Ok(json!({"mcp_response": {"id": 1}})), given(json!({"id": 1}))),
            (Kind::Mcp, Ok(json!({"id": 1})), failed("`mcp_response` is missing in its answer")),
            (Kind::Mcp, Ok(json!("garbage")), failed("`mcp_response` is missing in its answer")),
            (Kind::Mcp, Err("boom"), failed("boom")),
        ] {
            assert_eq!(kind.answer(response.map_err(str::to_owned)), expected);
        }
    }
}
