//! The lines that tests say to the real binary as the program that leads it, and the lines that they wait for.

use decurion_testkit::proc::Running;
use serde_json::{Value, json};

use crate::stand::LIMIT;

/// The flags of a session that a program leads over standard input.
pub const LED: [&str; 5] = ["--input-format", "stream-json", "--output-format", "stream-json", "--verbose"];

pub fn prompt(text: &str) -> String {
    json!({"type": "user", "message": {"role": "user", "content": text}}).to_string()
}

pub fn control(id: &str, request: &Value) -> String {
    json!({"type": "control_request", "request_id": id, "request": request}).to_string()
}

/// The request that comes first.
pub fn initialize(id: &str, mut request: Value) -> String {
    request["subtype"] = json!("initialize");
    control(id, &request)
}

/// The answer to a request of the session's.
pub fn answer(request: &Value, response: &Value) -> String {
    let response = json!({"subtype": "success", "request_id": request["request_id"], "response": response});
    json!({"type": "control_response", "response": response}).to_string()
}

/// The next line of this shape.
pub fn next(run: &mut Running, fits: impl Fn(&Value) -> bool) -> Value {
    let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_default();
    let line = run.wait_for_line(LIMIT, |line| fits(&parse(line)));
    parse(&line.unwrap_or_else(|| panic!("no such line came")))
}
