//! What a host is told besides the answer: the session's state, hooks, what agents say, and how a turn failed.

use decurion_protocol::{Block, Command, HookDeclaration, HookEvent, Thinking};
use decurion_serve::{Format, ProgressOutput, StateLines, StopSignal, StreamFacts};
use decurion_testkit::stage::Stage;
use expect_test::expect;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::playing::{Kept, headless_with, short, stage, values};

/// What is printed for a prompt when this is asked for.
async fn shown(stage: &Stage, facts: StreamFacts) -> String {
    let out = Kept::default();
    let headless = headless_with(stage, Format::StreamJson, &out, ProgressOutput::Off, facts).await;
    let work = Command::Prompt { blocks: vec![Block::text("go")] };
    headless.answer(work, &mut mpsc::channel::<StopSignal>(1).1).await.unwrap();
    out.text()
}

/// The lines of these types or subtypes, in short.
fn only(out: &str, kinds: &[&str]) -> String {
    let lines = short(out);
    let is_wanted = |line: &&str| kinds.iter().any(|kind| line.split(' ').next() == Some(*kind));
    lines.lines().filter(is_wanted).map(|line| format!("{line}\n")).collect()
}

const BEHIND: &str = "
when agent=main turn=1
  call Agent {\"description\": \"look\", \"prompt\": \"find it\", \"subagent_type\": \"worker\", \"run_in_background\": true}
when agent=main turn=2
  say \"launched\"
when agent=main turn=3
  say \"heard\"
when agent=worker turn=1
  call Echo {\"text\": \"x\"}
when agent=worker
  say \"found it\"
";

#[tokio::test]
async fn a_session_is_idle_once_every_agent_has_ended_and_was_heard() {
    let facts = StreamFacts { state: StateLines::HostOnly, ..StreamFacts::default() };
    let out = shown(&stage(BEHIND), facts).await;
    expect![[r##"
        session_state_changed {"state":"running","sdk_host_only":true}
        init agents=["worker"]
        task_started {"task_id":"#1","run_id":"run1","tool_use_id":"call1","description":"look","is_backgrounded":true,"task_type":"local_agent","subagent_type":"worker","spawn_depth":1,"prompt":"find it"}
        task_notification {"task_id":"#1","run_id":"run1","tool_use_id":"call1","status":"completed","output_file":"#1.output","summary":"found it","usage":{"total_tokens":1169,"tool_uses":1,"duration_ms":26}}
        session_state_changed {"state":"idle","sdk_host_only":true}
    "##]]
        .assert_eq(&only(&out, &["session_state_changed", "task_started", "task_notification", "init"]));
    assert!(
        !shown(&stage(BEHIND), StreamFacts::default()).await.contains("session_state"),
        "only who asks is told"
    );
}

#[tokio::test]
async fn what_agents_say_is_shown_to_those_who_ask_at_every_depth() {
    let script = BEHIND
        .replace(", \"run_in_background\": true", "")
        .replace("  call Echo", "  say \"looking\"\n  call Echo");
    let said = |out: &str| out.matches("\"looking\"").count();
    assert_eq!(said(&shown(&stage(&script), StreamFacts::default()).await), 0);
    assert_eq!(
        said(&shown(&stage(&script), StreamFacts { agent_text: true, ..StreamFacts::default() }).await),
        1
    );
    let behind = BEHIND.replace("  call Echo", "  say \"looking\"\n  call Echo");
    assert_eq!(said(&shown(&stage(&behind), StreamFacts::default()).await), 1, "nobody waits for that one");
}

fn hook(event: HookEvent, command: &str) -> HookDeclaration {
    serde_json::from_value(json!({"event": event, "command": command, "source": "test"})).unwrap()
}

#[tokio::test]
async fn hooks_are_shown_to_those_who_ask_and_the_start_to_all() {
    let mut stage = stage("when turn=1\n  call Echo {\"text\": \"x\"}\nwhen turn=2\n  say \"done\"\n");
    stage.hooks = vec![
        hook(HookEvent::SessionStart, "echo hello"),
        hook(HookEvent::PreToolUse, "echo no >&2; exit 1"),
        hook(HookEvent::Stop, "true"),
    ];
    let kinds = ["hook_started", "hook_response"];
    let without_ids = |out: &str| {
        let of = |line: &Value| {
            let word = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            kinds.contains(&line["subtype"].as_str()?).then(|| {
                let parts = ["subtype", "hook_name", "hook_event", "stdout", "stderr", "outcome"].map(word);
                format!("{} {}\n", parts.join("|"), line["exit_code"])
            })
        };
        values(out).iter().filter_map(of).collect::<String>()
    };
    expect![["
        hook_started|SessionStart:startup|SessionStart||| null
        hook_response|SessionStart:startup|SessionStart|||error null
    "]]
    .assert_eq(&without_ids(&shown(&stage, StreamFacts::default()).await));
    let all = shown(&stage, StreamFacts { hooks: true, ..StreamFacts::default() }).await;
    expect![["
        hook_started|SessionStart:startup|SessionStart||| null
        hook_response|SessionStart:startup|SessionStart|||error null
        hook_started|PreToolUse:Echo|PreToolUse||| null
        hook_response|PreToolUse:Echo|PreToolUse|||error null
        hook_started|Stop|Stop||| null
        hook_response|Stop|Stop|||error null
    "]]
    .assert_eq(&without_ids(&all));
}

#[tokio::test]
async fn an_answer_that_never_has_its_shape_ends_after_five_tries() {
    let mut stage = stage("when\n  call StructuredOutput {\"number\": \"seven\"}\n");
    stage.request.output_schema = Some(json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
        "properties": {"number": {"$ref": "#/$defs/whole"}}, "$defs": {"whole": {"type": "integer"}},
        "required": ["number"],
    }));
    let lines = values(&shown(&stage, StreamFacts::default()).await);
    let result = lines.last().unwrap();
    expect![[r#""error_max_structured_output_retries" "structured_output_retry_exhausted" true ["no answer came in the shape that was asked for, in 5 tries"] tries 5"#]].assert_eq(&format!(
        "{} {} {} {} tries {}",
        result["subtype"],
        result["terminal_reason"],
        result["is_error"],
        result["errors"],
        lines.iter().filter(|line| line["type"] == "assistant").count(),
    ));
}

#[tokio::test]
async fn how_a_session_thinks_is_in_every_request_and_that_of_agents_with_its_model() {
    let mut stage = stage(&BEHIND.replace(", \"run_in_background\": true", ""));
    stage.request.thinking = Some(Thinking::Enabled { budget_tokens: 2_000, display: None });
    stage.request.effort = Some("low".to_owned());
    shown(&stage, StreamFacts::default()).await;
    assert_eq!(stage.requests().len(), 4);
    for request in stage.requests() {
        let body: Value = serde_json::from_slice(&request).unwrap();
        assert_eq!(body["thinking"], json!({"type": "enabled", "budget_tokens": 2_000}));
        assert_eq!(body["output_config"], json!({"effort": "low"}));
    }
}
