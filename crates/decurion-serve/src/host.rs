//! Requests of a session to its leading program, in the form for that program. Takes a request, gives the bounded line
//! for it, or why it cannot be sent; takes the program's answer, gives it with the cut parts whole again.

use decurion_protocol::{HostAnswer, HostAsked, HostRequest};
use serde_json::{Value, json};

use crate::truncate::{self, MOST_BYTES};

/// Something that was asked, which decides how its answer is read.
#[derive(Debug, PartialEq)]
pub(crate) enum HostQuery {
    Hook {
        /// What it was shown, where that is less than all of it.
        cut: Option<Box<CutInput>>,
    },
    /// A message to a server.
    Mcp,
}

/// An input that does not fit a line.
#[derive(Debug, PartialEq)]
pub(crate) struct CutInput {
    shown: Value,
    whole: Value,
}

/// Where an answer to a hook may hold part of what the hook reads, and which part.
const GIVEN_BACK: [(&str, &str); 4] = [
    ("/hookSpecificOutput/updatedInput", "tool_input"),
    ("/hookSpecificOutput/decision/updatedInput", "tool_input"),
    ("/hookSpecificOutput/updatedToolOutput", "tool_response"),
    ("/hookSpecificOutput/updatedMCPToolOutput", "tool_response"),
];

impl HostQuery {
    /// What the host's answer means.
    pub(crate) fn answer(self, response: Result<Value, String>) -> HostAnswer {
        match (self, response) {
            (_, Err(error)) => HostAnswer::Failed { error },
            (Self::Hook { cut: None }, Ok(value)) => HostAnswer::Given { value },
            (Self::Hook { cut: Some(cut) }, Ok(value)) => cut.answer(value),
            (Self::Mcp, Ok(mut response)) => match response.get_mut("mcp_response") {
                Some(message) => HostAnswer::Given { value: message.take() },
                None => HostAnswer::Failed { error: "`mcp_response` is missing in its answer".to_owned() },
            },
        }
    }
}

impl CutInput {
    /// An answer to a request that was shown cut. Cut texts in it are made whole again; if that is impossible, the hook
    /// has failed, unless its answer is a "no", which always counts.
    fn answer(&self, mut value: Value) -> HostAnswer {
        let is_no = says_no(&value);
        for (place, name) in GIVEN_BACK {
            let Some(given) = value.pointer_mut(place) else { continue };
            let (shown, whole) = (&self.shown[name], &self.whole[name]);
            match truncate::restored(given, shown, whole) {
                Some(meant) => *given = meant,
                None if is_no => *given = Value::Null,
                None => {
                    return HostAnswer::Failed { error: came_back_changed(name) };
                }
            }
        }
        HostAnswer::Given { value }
    }
}

/// Why an answer cannot be obeyed that was made of part of something.
pub(crate) fn came_back_changed(name: &str) -> String {
    format!(
        "`{name}` is too long for one line; what was cut of it must come back as it was shown, or the call must be \
         refused"
    )
}

/// Whether an answer to a hook refuses something, or leaves it to a person.
fn says_no(answer: &Value) -> bool {
    let says = |place: &str, words: &[&str]| {
        answer.pointer(place).and_then(Value::as_str).is_some_and(|word| words.contains(&word))
    };
    answer.get("continue").and_then(Value::as_bool) == Some(false)
        || says("/decision", &["block"])
        || says("/hookSpecificOutput/permissionDecision", &["deny", "ask"])
        || says("/hookSpecificOutput/decision/behavior", &["deny"])
}

/// The line that asks, and how its answer is to be read. What a hook reads is cut so that it can be read; a message
/// to a server is whole or is not sent. `place` says where all of it is kept. The error says why it cannot be asked.
pub(crate) fn line(request: &HostRequest, place: &str) -> Result<(Vec<u8>, HostQuery), String> {
    let whole = control_request(request);
    let truncate::Fitted { bytes, cut } = truncate::line(&whole, place);
    let shown = cut.as_ref().map(|cut| cut.pointer("/request/input").cloned());
    let wanted = match (&request.asked, shown) {
        (HostAsked::Mcp { .. }, None) => HostQuery::Mcp,
        (HostAsked::Hook { .. }, None) => HostQuery::Hook { cut: None },
        (HostAsked::Hook { input, .. }, Some(Some(shown))) => {
            HostQuery::Hook { cut: Some(Box::new(CutInput { shown, whole: input.clone() })) }
        }
        (_, Some(_)) => {
            let length = whole.to_string().len();
            return Err(format!(
                "it does not fit a line that a host can read ({length} bytes, at most {MOST_BYTES})"
            ));
        }
    };
    Ok((bytes, wanted))
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

#[cfg(test)]
mod tests {
    use decurion_protocol::HostRequestId;

    use super::*;

    fn hook(input: Value) -> HostRequest {
        let asked = HostAsked::Hook { callback: "hook_0".into(), input, call: None };
        HostRequest { id: HostRequestId(Default::default()), asked }
    }

    fn asked(request: &HostRequest) -> Result<(String, HostQuery), String> {
        line(request, "elsewhere").map(|(line, wanted)| (String::from_utf8(line).unwrap(), wanted))
    }

    #[test]
    fn a_hook_reads_what_fits_a_line_and_where_it_was_cut() {
        let (small, wanted) = asked(&hook(json!({"prompt": "x", "deep": [{"text": "y"}]}))).unwrap();
        assert_eq!(
            small,
            r#"{"type":"control_request","request_id":"00000000-0000-0000-0000-000000000000","request":{"subtype":"hook_callback","callback_id":"hook_0","input":{"prompt":"x","deep":[{"text":"y"}]},"tool_use_id":null}}"#
        );
        assert_eq!(wanted, HostQuery::Hook { cut: None });
        // What is written with escapes takes more room than it has characters.
        for text in ["é".repeat(2 << 20), "\u{1}".repeat(2 << 20)] {
            let whole = json!({"prompt": "x", "deep": [{"text": text}]});
            let (shown, _) = asked(&hook(whole.clone())).unwrap();
            assert!(shown.len() <= MOST_BYTES);
            let shown: Value = serde_json::from_str(&shown).unwrap();
            let input = &shown["request"]["input"];
            assert_eq!(input["prompt"], "x");
            let text = input["deep"][0]["text"].as_str().unwrap();
            assert!(text.ends_with(" bytes left out; elsewhere]"), "{}", &text[text.len() - 60..]);
        }
    }

    #[test]
    fn a_message_to_a_server_that_does_not_fit_is_not_sent() {
        let message = json!({"x": "y".repeat(MOST_BYTES)});
        let message = HostAsked::Mcp { server: "s".into(), message };
        let error = asked(&HostRequest { asked: message, ..hook(Value::Null) }).unwrap_err();
        assert!(error.starts_with("it does not fit a line that a host can read"), "{error}");
    }

    /// What a hook that was shown half of a call makes of it is what it means, or nothing.
    #[test]
    fn what_was_cut_for_a_hook_comes_back_whole_or_fails_it() {
        let long = json!({"file_path": "/a", "content": "x".repeat(2 * MOST_BYTES)});
        for (name, member) in [("tool_input", "updatedInput"), ("tool_response", "updatedToolOutput")] {
            let request = hook(json!({"session_id": "s", name: long}));
            let shown = serde_json::from_str::<Value>(&asked(&request).unwrap().0).unwrap();
            let shown = shown["request"]["input"][name].clone();
            let answered = |part: Value, decision: &str| {
                let specific = json!({member: part, "permissionDecision": decision});
                asked(&request).unwrap().1.answer(Ok(json!({"hookSpecificOutput": specific})))
            };
            let mut given = shown.clone();
            given["file_path"] = json!("/b");
            let HostAnswer::Given { value } = answered(given.clone(), "allow") else { panic!("it failed") };
            let meant = &value["hookSpecificOutput"][member];
            assert_eq!((&meant["file_path"], &meant["content"]), (&json!("/b"), &long["content"]));
            given["content"] = json!(shown["content"].as_str().unwrap().replace("xx", "y"));
            let error = came_back_changed(name);
            assert_eq!(answered(given.clone(), "allow"), HostAnswer::Failed { error });
            // A refusal is one all the same.
            let HostAnswer::Given { value } = answered(given, "deny") else { panic!("it failed") };
            assert_eq!(value["hookSpecificOutput"][member], Value::Null);
        }
    }

    #[test]
    fn answers_are_read_by_what_was_asked() {
        let given = |value| HostAnswer::Given { value };
        let failed = |error: &str| HostAnswer::Failed { error: error.into() };
        let hook = || HostQuery::Hook { cut: None };
        for (wanted, response, expected) in [
            (hook(), Ok(json!({"continue": true})), given(json!({"continue": true}))),
            (hook(), Ok(Value::Null), given(Value::Null)),
            (hook(), Err("boom"), failed("boom")),
            (HostQuery::Mcp, Ok(json!({"mcp_response": {"id": 1}})), given(json!({"id": 1}))),
            (HostQuery::Mcp, Ok(json!({"id": 1})), failed("`mcp_response` is missing in its answer")),
            (HostQuery::Mcp, Ok(json!("garbage")), failed("`mcp_response` is missing in its answer")),
            (HostQuery::Mcp, Err("boom"), failed("boom")),
        ] {
            assert_eq!(wanted.answer(response.map_err(str::to_owned)), expected);
        }
    }
}
