//! Long prompts from another terminal: what a live session of the real binary accepts and refuses at its socket.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::stand::{LIMIT, Stand};
use crate::talk::{LED, next, prompt};

const SESSION: &str = "11111111-1111-4111-8111-111111111111";

/// A request with a picture of about so many bytes.
fn picture(id: u64, bytes: usize) -> String {
    let data = "QUJD".repeat(bytes / 4);
    let source = json!({"type": "base64", "media_type": "image/png", "data": data});
    let blocks = json!([{"type": "text", "text": "look"}, {"type": "image", "source": source}]);
    json!({"id": id, "command": {"command": "prompt", "blocks": blocks}}).to_string()
}

/// The first event of a connection that fits. What comes before it is read too.
fn event(lines: &mut BufReader<UnixStream>, fits: impl Fn(&Value) -> bool) -> Value {
    loop {
        let mut line = String::new();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the connection was ended");
        let mut envelope: Value = serde_json::from_str(&line).unwrap();
        assert!(envelope["error"].is_null(), "{envelope}");
        if fits(&envelope["event"]) {
            return envelope["event"].take();
        }
    }
}

#[test]
fn a_screenshot_from_another_terminal_is_a_prompt_and_one_that_is_too_long_is_refused() {
    let stand = Stand::new("when text=\"look\"\n  say \"a picture\"\nwhen\n  say \"ready\"\n");
    let mut run = stand.decurion().args(LED).args(["--session-id", SESSION]).start_talking().unwrap();
    run.say(&prompt("go")).unwrap();
    next(&mut run, |line| line["type"] == "result");
    let mut other = UnixStream::connect(stand.home.state().join(format!("run/{SESSION}.sock"))).unwrap();
    other.set_read_timeout(Some(LIMIT)).unwrap();
    let mut lines = BufReader::new(other.try_clone().unwrap());
    for (id, bytes, reply) in [(1, 17 << 20, "refused"), (2, 12 << 20, "done")] {
        writeln!(other, "{}", picture(id, bytes)).unwrap();
        let replied = event(&mut lines, |event| event["type"] == "replied");
        assert_eq!((&replied["request"], &replied["reply"]["reply"]), (&json!(id), &json!(reply)));
    }
    let ended = event(&mut lines, |event| event["type"] == "run_ended");
    assert_eq!(ended["outcome"]["report"], "a picture");
    run.hang_up();
    assert_eq!(run.finish(LIMIT).unwrap().ending.code(), 0);
}
