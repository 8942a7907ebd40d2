//! Every kind of line, as it stands in the file.

use decurion_protocol::event::{Event, MessageMeta, Origin, Timing, WaitKind};
use decurion_protocol::{Block, Message, ToolOutput};
use decurion_store::Journal;
use expect_test::{Expect, expect};
use serde_json::json;

use crate::samples::{
    Home, agent, bash, bash_output, call_ended, call_started, envelope, line, opened, prompt, reply,
};

fn check(event: Event, expected: &Expect) {
    let home = Home::new();
    home.create(1).append(&[envelope(7, event)]).unwrap();
    expected.assert_eq(&String::from_utf8(home.transcript(1)).unwrap());
}

#[test]
fn an_opening() {
    check(
        opened(1),
        &expect![[r#"
        {"type":"decurion","v":1,"sessionId":"5e550000-0000-0000-0000-000000000001","timestamp":"2026-11-15T06:35:22.007Z","event":{"type":"session_opened","info":{"session":"5e550000-0000-0000-0000-000000000001","cwd":"/home/someone/projects/a-program-of-sixty-characters-in-all","version":"0.1.0","git_branch":"main","entrypoint":"cli"}},"run":"01990000-0000-7000-8000-000000000001","seq":7,"ordinal":1,"crc":"b277ea3d"}
    "#]],
    );
}

#[test]
fn a_prompt() {
    check(
        prompt(2, "make it \"so\"\nplease"),
        &expect![[r#"
        {"parentUuid":"11e00000-0000-0000-0000-000000000001","isSidechain":false,"type":"user","message":{"role":"user","content":"make it \"so\"\nplease"},"uuid":"11e00000-0000-0000-0000-000000000002","timestamp":"2026-11-15T06:35:22.007Z","userType":"external","entrypoint":"cli","cwd":"/home/someone/projects/a-program-of-sixty-characters-in-all","sessionId":"5e550000-0000-0000-0000-000000000001","version":"0.1.0","gitBranch":"main","run":"01990000-0000-7000-8000-000000000001","seq":7,"ordinal":1,"crc":"aab0ef76"}
    "#]],
    );
}

#[test]
fn a_prompt_of_several_blocks() {
    let message = Message {
        role: decurion_protocol::Role::User,
        blocks: vec![
            Block::text("what is this?"),
            Block::Image { source: json!({"type": "base64", "media_type": "image/png", "data": "AA=="}) },
        ],
    };
    check(
        Event::Message { message, lines: vec![line(1)], parent: None, meta: Box::default() },
        &expect![[r#"
            {"parentUuid":null,"isSidechain":false,"type":"user","message":{"role":"user","content":[{"type":"text","text":"what is this?"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="}}]},"uuid":"11e00000-0000-0000-0000-000000000001","timestamp":"2026-11-15T06:35:22.007Z","userType":"external","entrypoint":"cli","cwd":"/home/someone/projects/a-program-of-sixty-characters-in-all","sessionId":"5e550000-0000-0000-0000-000000000001","version":"0.1.0","gitBranch":"main","run":"01990000-0000-7000-8000-000000000001","seq":7,"ordinal":1,"crc":"019cb03f"}
        "#]],
    );
}

#[test]
fn a_note() {
    let meta = MessageMeta { origin: Origin::Note("notification".into()), ..MessageMeta::default() };
    check(
        Event::Message {
            message: Message::user("<task-notification>"),
            lines: vec![line(2)],
            parent: Some(line(1)),
            meta: Box::new(meta),
        },
        &expect![[r#"
            {"parentUuid":"11e00000-0000-0000-0000-000000000001","isSidechain":false,"type":"user","message":{"role":"user","content":"<task-notification>"},"isMeta":true,"note":"notification","uuid":"11e00000-0000-0000-0000-000000000002","timestamp":"2026-11-15T06:35:22.007Z","userType":"external","entrypoint":"cli","cwd":"/home/someone/projects/a-program-of-sixty-characters-in-all","sessionId":"5e550000-0000-0000-0000-000000000001","version":"0.1.0","gitBranch":"main","run":"01990000-0000-7000-8000-000000000001","seq":7,"ordinal":1,"crc":"7ec4b3ec"}
        "#]],
    );
}

#[test]
fn a_reply_of_two_blocks() {
    check(
        reply(2, vec![Block::text("Looking."), bash("toolu_1", "ls")]),
        &expect![[r#"
            {"parentUuid":"11e00000-0000-0000-0000-000000000001","isSidechain":false,"type":"assistant","message":{"role":"assistant","id":"msg_01AbCdEfGhIjKlMnOpQrStUv","model":"some-model-4-5","content":[{"type":"text","text":"Looking."}]},"requestId":"req_011CAbCdEfGhIjKlMnOpQrSt","block":0,"blocks":2,"uuid":"11e00000-0000-0000-0000-000000000002","timestamp":"2026-11-15T06:35:22.007Z","userType":"external","entrypoint":"cli","cwd":"/home/someone/projects/a-program-of-sixty-characters-in-all","sessionId":"5e550000-0000-0000-0000-000000000001","version":"0.1.0","gitBranch":"main","run":"01990000-0000-7000-8000-000000000001","seq":7,"ordinal":1,"crc":"df037325"}
            {"parentUuid":"11e00000-0000-0000-0000-000000000002","isSidechain":false,"type":"assistant","message":{"role":"assistant","id":"msg_01AbCdEfGhIjKlMnOpQrStUv","model":"some-model-4-5","content":[{"type":"tool_use","id":"toolu_1","name":"Bash","input":{"command":"ls"}}],"stop_reason":"tool_use","usage":{"input_tokens":1200,"output_tokens":50,"cache_creation_input_tokens":0,"cache_read_input_tokens":1100}},"requestId":"req_011CAbCdEfGhIjKlMnOpQrSt","costNanos":5816000,"block":1,"blocks":2,"uuid":"11e00000-0000-0000-0000-000000000003","timestamp":"2026-11-15T06:35:22.007Z","userType":"external","entrypoint":"cli","cwd":"/home/someone/projects/a-program-of-sixty-characters-in-all","sessionId":"5e550000-0000-0000-0000-000000000001","version":"0.1.0","gitBranch":"main","run":"01990000-0000-7000-8000-000000000001","seq":7,"ordinal":2,"crc":"e65f8593"}
        "#]],
    );
}

/// How long a reply took costs some twenty bytes, and a little more where it had to wait.
#[test]
fn a_reply_that_waited() {
    let mut event = reply(2, vec![Block::text("Here.")]);
    let Event::Message { meta, .. } = &mut event else { unreachable!() };
    let mut timing = Timing { ms: 61_234, ..Timing::default() };
    timing.waited(WaitKind::Limit, 12, 60_012);
    meta.timing = Some(timing);
    check(
        event,
        &expect![[r#"
        {"parentUuid":"11e00000-0000-0000-0000-000000000001","isSidechain":false,"type":"assistant","message":{"role":"assistant","id":"msg_01AbCdEfGhIjKlMnOpQrStUv","model":"some-model-4-5","content":[{"type":"text","text":"Here."}],"stop_reason":"tool_use","usage":{"input_tokens":1200,"output_tokens":50,"cache_creation_input_tokens":0,"cache_read_input_tokens":1100}},"requestId":"req_011CAbCdEfGhIjKlMnOpQrSt","costNanos":5816000,"timing":{"ms":61234,"waits":[["limit",12,60000]]},"uuid":"11e00000-0000-0000-0000-000000000002","timestamp":"2026-11-15T06:35:22.007Z","userType":"external","entrypoint":"cli","cwd":"/home/someone/projects/a-program-of-sixty-characters-in-all","sessionId":"5e550000-0000-0000-0000-000000000001","version":"0.1.0","gitBranch":"main","run":"01990000-0000-7000-8000-000000000001","seq":7,"ordinal":1,"crc":"549c2668"}
    "#]],
    );
}

#[test]
fn a_reply_in_the_models_place() {
    let meta = MessageMeta { origin: Origin::Synthetic, ..MessageMeta::default() };
    check(
        Event::Message {
            message: Message::assistant(vec![Block::text("the provider is overloaded")]),
            lines: vec![line(2)],
            parent: Some(line(1)),
            meta: Box::new(meta),
        },
        &expect![[r#"
            {"parentUuid":"11e00000-0000-0000-0000-000000000001","isSidechain":false,"type":"assistant","message":{"role":"assistant","model":"<synthetic>","content":[{"type":"text","text":"the provider is overloaded"}],"stop_reason":null},"isApiErrorMessage":true,"uuid":"11e00000-0000-0000-0000-000000000002","timestamp":"2026-11-15T06:35:22.007Z","userType":"external","entrypoint":"cli","cwd":"/home/someone/projects/a-program-of-sixty-characters-in-all","sessionId":"5e550000-0000-0000-0000-000000000001","version":"0.1.0","gitBranch":"main","run":"01990000-0000-7000-8000-000000000001","seq":7,"ordinal":1,"crc":"592993a5"}
        "#]],
    );
}

#[test]
fn an_intent() {
    check(
        call_started("toolu_1", "ls"),
        &expect![[r#"
            {"type":"decurion","v":1,"must":1,"sessionId":"5e550000-0000-0000-0000-000000000001","timestamp":"2026-11-15T06:35:22.007Z","event":{"type":"call_started","call":"toolu_1","tool":"Bash","intent":{"title":"$ ls","overlap":"alone"},"decision":{"decision":"allow","rule":"Bash(cargo test *)","reason":"an allow rule matches"}},"run":"01990000-0000-7000-8000-000000000001","seq":7,"ordinal":1,"crc":"adf6ae3a"}
        "#]],
    );
}

#[test]
fn a_result() {
    check(
        call_ended("toolu_1", 4, bash_output("a\nb")),
        &expect![[r#"
        {"parentUuid":"11e00000-0000-0000-0000-000000000003","isSidechain":false,"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"a\nb"}]},"toolUseResult":{"stdout":"a\nb","stderr":"","interrupted":false,"isImage":false},"sourceToolAssistantUUID":"11e00000-0000-0000-0000-000000000003","tool":"Bash","durationMs":1234,"effects":[{"effect":"moved","cwd":"/tmp"}],"uuid":"11e00000-0000-0000-0000-000000000004","timestamp":"2026-11-15T06:35:22.007Z","userType":"external","entrypoint":"cli","cwd":"/home/someone/projects/a-program-of-sixty-characters-in-all","sessionId":"5e550000-0000-0000-0000-000000000001","version":"0.1.0","gitBranch":"main","run":"01990000-0000-7000-8000-000000000001","seq":7,"ordinal":1,"crc":"f7038ed5"}
    "#]],
    );
}

#[test]
fn a_failed_result() {
    check(
        call_ended("toolu_1", 4, ToolOutput::error("Exit code 1")),
        &expect![[r#"
        {"parentUuid":"11e00000-0000-0000-0000-000000000003","isSidechain":false,"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"Exit code 1","is_error":true}]},"toolUseResult":"Error: Exit code 1","sourceToolAssistantUUID":"11e00000-0000-0000-0000-000000000003","tool":"Bash","durationMs":1234,"uuid":"11e00000-0000-0000-0000-000000000004","timestamp":"2026-11-15T06:35:22.007Z","userType":"external","entrypoint":"cli","cwd":"/home/someone/projects/a-program-of-sixty-characters-in-all","sessionId":"5e550000-0000-0000-0000-000000000001","version":"0.1.0","gitBranch":"main","run":"01990000-0000-7000-8000-000000000001","seq":7,"ordinal":1,"crc":"15b49f51"}
    "#]],
    );
}

#[test]
fn a_compaction() {
    check(
        Event::Compacted {
            boundary: line(10),
            line: line(11),
            logical_parent: Some(line(9)),
            summary: Message::user("what happened so far"),
            kept: vec![line(8), line(9)],
            trigger: "auto".into(),
            tokens_before: 150_000,
            checkpoint: json!({"todos": []}),
        },
        &expect![[r#"
            {"parentUuid":null,"isSidechain":false,"type":"system","subtype":"compact_boundary","content":"Conversation compacted","isMeta":false,"level":"info","logicalParentUuid":"11e00000-0000-0000-0000-000000000009","compactMetadata":{"trigger":"auto","preTokens":150000,"preservedMessages":{"anchorUuid":"11e00000-0000-0000-0000-00000000000b","uuids":["11e00000-0000-0000-0000-000000000008","11e00000-0000-0000-0000-000000000009"]}},"checkpoint":{"todos":[]},"block":0,"blocks":2,"uuid":"11e00000-0000-0000-0000-00000000000a","timestamp":"2026-11-15T06:35:22.007Z","userType":"external","entrypoint":"cli","cwd":"/home/someone/projects/a-program-of-sixty-characters-in-all","sessionId":"5e550000-0000-0000-0000-000000000001","version":"0.1.0","gitBranch":"main","run":"01990000-0000-7000-8000-000000000001","seq":7,"ordinal":1,"crc":"95028953"}
            {"parentUuid":"11e00000-0000-0000-0000-00000000000a","isSidechain":false,"type":"user","message":{"role":"user","content":"what happened so far"},"isCompactSummary":true,"isVisibleInTranscriptOnly":true,"block":1,"blocks":2,"uuid":"11e00000-0000-0000-0000-00000000000b","timestamp":"2026-11-15T06:35:22.007Z","userType":"external","entrypoint":"cli","cwd":"/home/someone/projects/a-program-of-sixty-characters-in-all","sessionId":"5e550000-0000-0000-0000-000000000001","version":"0.1.0","gitBranch":"main","run":"01990000-0000-7000-8000-000000000001","seq":7,"ordinal":2,"crc":"d610e853"}
        "#]],
    );
}

#[test]
fn an_event_of_a_later_version() {
    check(
        Event::Unknown(json!({"type": "later", "value": 1})),
        &expect![[r#"
        {"type":"decurion","v":1,"sessionId":"5e550000-0000-0000-0000-000000000001","timestamp":"2026-11-15T06:35:22.007Z","event":{"type":"later","value":1},"run":"01990000-0000-7000-8000-000000000001","seq":7,"ordinal":1,"crc":"a620272d"}
    "#]],
    );
}

#[test]
fn an_agents_line() {
    let home = Home::new();
    let agent = agent("a0123456789abcdef");
    let mut event = envelope(7, prompt(1, "look around"));
    event.agent = Some(agent.clone());
    home.create(1).append(&[event]).unwrap();
    assert_eq!(home.transcript(1), b"");
    let text = std::fs::read_to_string(home.paths(1).agent(&agent)).unwrap();
    expect![[r#"
        {"parentUuid":null,"isSidechain":true,"agentId":"a0123456789abcdef","type":"user","message":{"role":"user","content":"look around"},"uuid":"11e00000-0000-0000-0000-000000000001","timestamp":"2026-11-15T06:35:22.007Z","userType":"external","entrypoint":"cli","cwd":"/home/someone/projects/a-program-of-sixty-characters-in-all","sessionId":"5e550000-0000-0000-0000-000000000001","version":"0.1.0","gitBranch":"main","run":"01990000-0000-7000-8000-000000000001","seq":7,"ordinal":1,"crc":"0bd34e95"}
    "#]].assert_eq(&text);
}

/// The promise is 2,000 bytes beyond the messages' own content; this leaves room for a real intent.
#[test]
fn one_round_costs_little() {
    let home = Home::new();
    let mut writer = home.create(1);
    let command = "cargo test --workspace";
    let output = "test result: ok. 12 passed";
    let block = bash("toolu_01AbCdEfGhIjKlMnOpQrStUv", command);
    let content = serde_json::to_string(&block).unwrap().len() + output.len();
    let plain = ToolOutput::text(output);
    writer.append(&[envelope(99, prompt(10, "go on")), envelope(100, prompt(11, "go on"))]).unwrap();
    let before = home.transcript(1).len();
    writer
        .append(&[
            envelope(101, reply(12, vec![block])),
            envelope(102, call_started("toolu_01AbCdEfGhIjKlMnOpQrStUv", command)),
            envelope(103, call_ended("toolu_01AbCdEfGhIjKlMnOpQrStUv", 13, plain)),
        ])
        .unwrap();
    let overhead = home.transcript(1).len() - before - content;
    println!("overhead of a round: {overhead} bytes");
    assert!(overhead <= 1800, "{overhead}");
}
