//! C6: a host that says anything. Takes valid lines of every kind, damages them by byte, by field and in their order, and
//! feeds them to the real binary; gives whether it is alive and answers after each batch, ends when it is told to, and
//! has panicked nowhere. What was said is the same for the same seed.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::stand::{HANG, Stand, brief};
use super::{Dice, Options, Report, Row};
use crate::proc::{Running, peak_memory_kib};

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![Row { id: "C6", what: "a host that says anything", run: row }]
}

/// How many lines are said before the session is asked whether it is there.
const BATCH: u64 = 64;
/// How many batches one session is told.
const BATCHES: u64 = 40;

fn row(options: &Options) -> Report {
    let end = Instant::now() + Duration::from_secs(options.count(6, 600));
    let (mut report, mut lines, mut peak) = (Report::default(), 0, 0);
    for nth in 0.. {
        if nth > 0 && Instant::now() >= end {
            break;
        }
        let result = session(options, Dice::new(options.seed, nth), end, &mut lines, &mut peak);
        report.add(format_args!("session {nth} of seed {}", options.seed), result);
    }
    let figure = format!(
        "{lines} damaged lines to {} sessions, {} of which did not answer, panicked or left something; peak {} MiB",
        report.runs,
        report.failures.len(),
        peak / 1024
    );
    report.figure(figure)
}

const SCRIPT: &str = "when text=\"poke\"\n  call Bash {\"command\": \"true\", \"description\": \"poke\"}\n\
    when text=\"delegate\"\n  call Agent {\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"general-purpose\", \"run_in_background\": true}\n\
    when\n  say \"fine\"\n";

/// One session, from its first damaged line to its end.
fn session(
    options: &Options,
    mut dice: Dice,
    end: Instant,
    lines: &mut u64,
    peak: &mut u64,
) -> Result<(), String> {
    let stand = Stand::new(options, |_| SCRIPT.to_owned()).map_err(|error| error.to_string())?;
    let hosted = ["-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"];
    let program = stand.program(stand.binary()).args(hosted).args(["--model", "claude-sonnet-4-6"]);
    let mut running = program.start_talking().map_err(|error| error.to_string())?;
    for batch in 0..BATCHES {
        let told = (0..BATCH).flat_map(|_| damaged(&mut dice)).collect::<Vec<u8>>();
        *lines += BATCH;
        let alive = running.say_bytes(&told).map_err(|error| error.to_string());
        if let Err(problem) = alive.and_then(|()| answers(&mut running, batch)) {
            let run = running.finish(Duration::from_secs(5)).map_err(|error| error.to_string())?;
            return Err(format!("batch {batch}: {problem}; {:?}: {}", run.ending, brief(&run.errors)));
        }
        if Instant::now() >= end {
            break;
        }
    }
    *peak = stand.processes().into_iter().filter_map(peak_memory_kib).fold(*peak, u64::max);
    running.hang_up();
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    if run.timed_out {
        return Err("it does not end".into());
    }
    if run.errors.contains("panicked") || run.errors.contains("internal error") {
        return Err(format!("it panicked: {}", brief(&run.errors)));
    }
    stand.wait_until_gone(super::stand::GONE).map(drop)
}

/// Whether the session answers a request, and ends a turn, after whatever it was told.
fn answers(running: &mut Running, batch: u64) -> Result<(), String> {
    let id = format!("alive-{batch}");
    // Half a line may stand before it, and a question may be open that nobody will answer.
    running.say("").map_err(|error| error.to_string())?;
    let ask = |subtype: &str, id: &str| {
        json!({"type": "control_request", "request_id": id, "request": {"subtype": subtype}}).to_string()
    };
    for line in [ask("interrupt", &format!("stop-{batch}")), ask("initialize", &id)] {
        running.say(&line).map_err(|error| error.to_string())?;
    }
    let wanted = format!("\"request_id\":\"{id}\"");
    let answer = running.wait_for_line(HANG, |line| line.contains(&wanted));
    answer.ok_or("a request was not answered")?;
    if batch % 8 != 7 {
        return Ok(());
    }
    let prompt = json!({"type": "user", "message": {"role": "user", "content": "are you there"}});
    running.say(&prompt.to_string()).map_err(|error| error.to_string())?;
    let result = running.wait_for_line(HANG, |line| line.starts_with("{\"type\":\"result\""));
    result.map(drop).ok_or_else(|| "a prompt has no result".to_owned())
}

/// A line of every kind as a host says it.
fn valid(dice: &mut Dice) -> Value {
    const REQUESTS: [&str; 33] = [
        "initialize",
        "interrupt",
        "set_permission_mode",
        "set_model",
        "set_max_thinking_tokens",
        "mcp_status",
        "mcp_set_servers",
        "mcp_reconnect",
        "mcp_toggle",
        "get_context_usage",
        "stop_task",
        "background_tasks",
        "get_task_output",
        "rewind_files",
        "apply_flag_settings",
        "get_settings",
        "list_permission_rules",
        "get_session_cost",
        "list_models",
        "cancel_async_message",
        "hook_callback",
        "mcp_message",
        "can_use_tool",
        "rename_session",
        "get_hooks_listing",
        "get_usage",
        "seed_read_state",
        "reload_plugins",
        "side_question",
        "generate_session_title",
        "remote_control",
        "end_session",
        "unheard_of",
    ];
    const PROMPTS: [&str; 5] = ["go", "poke", "delegate", "/compact", "/nothing"];
    let pick = |dice: &mut Dice, words: &[&'static str]| words[dice.place(words.len())];
    let number = dice.below(40);
    match dice.below(8) {
        0 | 1 => json!({"type": "user", "message": {"role": "user", "content": pick(dice, &PROMPTS)},
            "parent_tool_use_id": null, "session_id": "default", "uuid": uuid(number), "priority": "now"}),
        2 => json!({"type": "user", "message": {"role": "user", "content": [
            {"type": "text", "text": pick(dice, &PROMPTS)},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGVsbG8="}}]}}),
        3 => {
            json!({"type": "control_response", "response": {"subtype": "success", "request_id": uuid(number),
            "response": {"behavior": "allow", "updatedInput": {"command": "true"}, "continue": true,
                "mcp_response": {"jsonrpc": "2.0", "id": 1, "result": {}},
                "updatedPermissions": [{"type": "addRules", "behavior": "allow", "destination": "session",
                    "rules": [{"toolName": "Bash", "ruleContent": "true"}]}]}}})
        }
        4 => {
            json!({"type": pick(dice, &["control_cancel_request", "keep_alive", "update_environment_variables", "assistant"]),
            "request_id": format!("r{number}")})
        }
        _ => json!({"type": "control_request", "request_id": format!("r{number}"), "request": {
            "subtype": pick(dice, &REQUESTS), "mode": "plan", "model": "sonnet", "max_thinking_tokens": 1000,
            "serverName": "s", "enabled": true, "task_id": "a0123456789abcdef", "tool_use_id": "toolu_1",
            "user_message_id": uuid(number), "message_uuid": uuid(number), "dry_run": true, "title": "t",
            "settings": {"model": "haiku"}, "servers": {"s": {"type": "sdk", "name": "s"}},
            "hooks": {"PreToolUse": [{"matcher": "Bash", "hookCallbackIds": ["h"], "timeout": 1}]},
            "agents": {"helper": {"description": "d", "prompt": "p", "tools": ["Read"]}},
            "sdkMcpServers": ["s"], "jsonSchema": {"type": "object"}, "systemPrompt": "p",
            "callback_id": "h", "input": {}, "message": {"jsonrpc": "2.0", "id": 1, "method": "ping"}}}),
    }
}

fn uuid(number: u64) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

/// A line, damaged in one way or several; its end is not always there.
fn damaged(dice: &mut Dice) -> Vec<u8> {
    let mut value = valid(dice);
    for _ in 0..dice.below(4) {
        change(dice, &mut value);
    }
    let mut line = value.to_string().into_bytes();
    if dice.below(3) == 0 {
        for _ in 0..=dice.below(3) {
            garble(dice, &mut line);
        }
    }
    match dice.below(24) {
        // Run together with the next.
        0 => {}
        // Said twice.
        1 => {
            line.push(b'\n');
            line.extend_from_within(..);
        }
        // Ended as elsewhere.
        2 => line.extend(b"\r\n"),
        _ => line.push(b'\n'),
    }
    line
}

/// Puts something else somewhere into a value.
fn change(dice: &mut Dice, value: &mut Value) {
    let goes_on = dice.below(4) != 0;
    match value {
        Value::Object(members) if goes_on && !members.is_empty() => change_member(dice, members),
        Value::Array(items) if goes_on && !items.is_empty() => {
            let at = dice.place(items.len());
            match dice.below(4) {
                0 => drop(items.remove(at)),
                1 => items.push(items[at].clone()),
                _ => change(dice, &mut items[at]),
            }
        }
        other => *other = odd(dice),
    }
}

fn change_member(dice: &mut Dice, members: &mut Map<String, Value>) {
    let at = dice.place(members.len());
    let Some(name) = members.keys().nth(at).cloned() else { return };
    match dice.below(6) {
        0 => drop(members.remove(&name)),
        1 => {
            let value = members.remove(&name).unwrap_or_default();
            members.insert(format!("{name}_"), value);
        }
        2 => drop(members.insert("more".to_owned(), odd(dice))),
        _ => {
            if let Some(value) = members.get_mut(&name) {
                change(dice, value);
            }
        }
    }
}

/// A value that nobody expects.
fn odd(dice: &mut Dice) -> Value {
    let size = 1 << dice.below(17);
    match dice.below(14) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(u64::MAX),
        4 => json!(1e308),
        5 => json!(0.5),
        6 => json!(""),
        7 => json!("x".repeat(size)),
        8 => json!("\u{0}\u{1b}[2J\u{202e}\u{fffd}😀../../etc/passwd"),
        9 => json!([]),
        10 => json!({}),
        11 => (0..100).fold(json!(1), |inner, _| json!([inner])),
        12 => (0..100).fold(json!(1), |inner, _| json!({"a": inner})),
        _ => json!(vec![7; size.min(4096)]),
    }
}

fn garble(dice: &mut Dice, line: &mut Vec<u8>) {
    let at = dice.place(line.len() + 1);
    let byte = u8::try_from(dice.below(256)).unwrap_or(0);
    match dice.below(8) {
        0 => line.truncate(at),
        1 => line.insert(at, byte),
        2 => line.insert(at, b'\n'),
        3 => line.insert(at, 0),
        4 => drop(line.splice(at..at, [0xff, 0xfe, 0xed, 0xa0, 0x80])),
        // Deeper than any reader goes.
        5 => drop(line.splice(at..at, std::iter::repeat_n(b'[', 20_000))),
        6 if at < line.len() => line[at] ^= 1 << dice.below(8),
        _ => {
            let end = at + dice.place(line.len() - at + 1);
            line.drain(at..end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_says_the_same_and_most_of_it_is_still_a_message() {
        let say = |seed| {
            let mut dice = Dice::new(seed, 0);
            (0..500).flat_map(|_| damaged(&mut dice)).collect::<Vec<u8>>()
        };
        assert_eq!(say(1), say(1));
        assert_ne!(say(1), say(2));
        let said = say(1);
        let lines: Vec<&[u8]> = said.split(|byte| *byte == b'\n').collect();
        let messages = lines.iter().filter(|line| serde_json::from_slice::<Value>(line).is_ok()).count();
        assert!(
            messages * 2 > lines.len() && messages * 10 < lines.len() * 9,
            "{messages} of {}",
            lines.len()
        );
    }
}
