//! Hooks in the loop, as real processes: before and after calls, at the start and the end of agents.

use decurion_protocol::{
    Answer, Command, Event, HookDeclaration, HookEvent, Link, OpenSession, Origin, Outcome, Place as _, Start,
};
use decurion_testkit::stage::{Stage, send};
use futures_util::StreamExt as _;

use crate::support;

/// A stage with hooks that really run.
fn stage(script: &str, hooks: &[(HookEvent, &str)]) -> Stage {
    let mut stage = support::with_processes(support::stage(script));
    stage.hooks = hooks.iter().map(|(event, command)| HookDeclaration::new(*event, *command)).collect();
    stage
}

async fn replied(link: &mut Link, id: u64) {
    let is_it = |event: &Event| matches!(event, Event::Replied { request, .. } if request.0 == id);
    while !is_it(&link.events.next().await.unwrap().event) {}
}

const ONE_CALL: &str = "when turn=1\n  call Poke {\"text\": \"x\"}\nwhen turn=2\n  say \"done\"\n";

#[tokio::test]
async fn a_hook_refuses_a_call_with_its_reason() {
    let log = stage(ONE_CALL, &[(HookEvent::PreToolUse, "echo not today >&2; exit 2")]).log("go").await;
    let reason = "PreToolUse:Poke hook error: [echo not today >&2; exit 2]: not today";
    assert!(log.contains(&format!("refuse Poke: {reason}")), "{log}");
    assert!(!log.contains("start  Poke"), "{log}");
}

#[tokio::test]
async fn a_hook_changes_an_input_and_adds_what_the_model_should_know() {
    let says = r#"printf '{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"allow","updatedInput":{"text":"y"},"additionalContext":"mind the gap"}}'"#;
    let log = stage(ONE_CALL, &[(HookEvent::PreToolUse, says)]).log("go").await;
    assert!(log.contains("→      \"y\"") && log.contains("mind the gap"), "{log}");
}

#[tokio::test]
async fn an_answer_in_a_shape_is_what_hooks_let_through() {
    let script =
        "when turn=1\n  call StructuredOutput {\"n\": 1}\nwhen\n  call StructuredOutput {\"n\": 3}\n";
    let says = r#"printf '{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"allow","updatedInput":{"n":2}}}'"#;
    let refuses = "grep -q '\"n\":3' || { echo not this >&2; exit 2; }";
    for (hook, expected) in [(says, "{\"n\":2}"), (refuses, "{\"n\":3}")] {
        let mut stage = stage(script, &[(HookEvent::PreToolUse, hook)]);
        stage.request.output_schema = Some(serde_json::json!({"type": "object"}));
        let played = stage.play("go").await;
        let report = Outcome::Completed { report: expected.to_owned(), limit: None };
        assert_eq!(played.outcome, report, "{hook}");
    }
}

#[tokio::test]
async fn a_hook_answers_in_a_persons_place_but_not_against_a_rule() {
    let says = r#"printf '{"hookSpecificOutput":{"hookEventName":"PermissionRequest","decision":{"behavior":"allow"}}}'"#;
    let mut asked = stage(ONE_CALL, &[(HookEvent::PermissionRequest, says)]);
    asked.rules.allow.clear();
    let log = asked.log("go").await;
    assert!(log.contains("→      \"x\""), "{log}");
    let mut denied =
        stage(ONE_CALL, &[(HookEvent::PreToolUse, "exit 0"), (HookEvent::PermissionRequest, says)]);
    denied.rules.deny = std::mem::take(&mut denied.rules.allow);
    let log = denied.log("go").await;
    assert!(log.contains("refuse Poke"), "{log}");
}

#[tokio::test]
async fn after_a_call_hooks_replace_what_the_model_reads_or_say_why_it_is_wrong() {
    let says = r#"printf '{"decision":"block","reason":"look again","hookSpecificOutput":{"hookEventName":"PostToolUse","updatedToolOutput":"z"}}'"#;
    let log = stage(ONE_CALL, &[(HookEvent::PostToolUse, says)]).log("go").await;
    assert!(log.contains("→      \"z\""), "{log}");
    assert!(log.contains("PostToolUse:Poke hook blocking error from command: look again"), "{log}");
}

#[tokio::test]
async fn a_stop_hook_that_always_blocks_is_heard_five_times() {
    let script = "when\n  say \"done\"\n";
    let log = stage(script, &[(HookEvent::Stop, "echo more >&2; exit 2")]).log("go").await;
    assert_eq!(log.matches("Stop hook feedback").count(), 5, "{log}");
    assert!(log.contains("notice hooks kept the run from ending 5 times in a row"), "{log}");
    assert!(log.contains("end    completed"), "{log}");
}

const ONE_AGENT: &str = "when agent=worker text=\"more\"\n  say \"more done\"\nwhen agent=worker\n  say \"found\"\nwhen turn=1\n  \
    call Agent {\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"worker\"}\nwhen turn=2\n  say \"done\"\n";

#[tokio::test]
async fn an_agent_is_told_what_its_start_hook_prints_and_sent_on_by_its_stop_hook() {
    let stop = r#"read input; case "$input" in *'"stop_hook_active":false'*) echo more >&2; exit 2;; esac"#;
    let start = r#"read input; case "$input" in *'"agent_type":"worker"'*'"hook_event_name":"SubagentStart"'*) echo "be brief";; esac"#;
    let hooks = [(HookEvent::SubagentStart, start), (HookEvent::SubagentStop, stop)];
    let log = stage(ONE_AGENT, &hooks).log("go").await;
    assert!(log.contains("#1 note   \"be brief\""), "{log}");
    assert!(log.contains("#1 end    completed \"more done\""), "{log}");
}

#[tokio::test]
async fn a_prompt_that_a_hook_refuses_never_reaches_the_model() {
    let refused = stage("when\n  say \"never\"\n", &[(HookEvent::UserPromptSubmit, "echo no >&2; exit 2")]);
    let log = refused.log("go").await;
    assert!(
        log.contains("end    completed \"The prompt was not let through by a hook") && log.contains("no"),
        "{log}"
    );
    assert!(refused.requests().is_empty() && !log.contains("user"), "{log}");
}

#[tokio::test]
async fn a_prompt_that_a_hook_refused_or_an_interrupt_stopped_is_not_queued_again() {
    for (command, interrupted) in [("echo no >&2; exit 2", false), ("sleep 600", true)] {
        let stage = stage("when\n  say \"never\"\n", &[(HookEvent::UserPromptSubmit, command)]);
        let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
        let prompt = Command::Prompt { blocks: vec![decurion_protocol::Block::text("go")] };
        send(&link, 1, prompt).await;
        if interrupted {
            while !matches!(link.events.next().await.unwrap().event, Event::HookStarted { .. }) {}
            send(&link, 2, Command::Interrupt).await;
        }
        stage.listen(&mut link, &mut Vec::new()).await;
        let record = stage.recorded(link.session);
        let queued = record.iter().find_map(|one| match &one.event {
            Event::Queued { line, .. } => Some(*line),
            _ => None,
        });
        let gone = |one: &&decurion_protocol::Envelope| matches!(&one.event, Event::Unqueued { lines } if lines.iter().eq(&queued));
        assert_eq!(record.iter().filter(gone).count(), 1, "{command}: {record:?}");
    }
}

#[tokio::test]
async fn a_prompt_whose_hook_runs_when_the_session_closes_is_worked_on_at_the_next_start() {
    let stage = stage("when\n  say \"never\"\n", &[(HookEvent::UserPromptSubmit, "sleep 600")]);
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    for (id, text) in [(1, "first"), (2, "second")] {
        send(&link, id, Command::Prompt { blocks: vec![decurion_protocol::Block::text(text)] }).await;
    }
    replied(&mut link, 2).await;
    send(&link, 3, Command::Close { reason: "enough".to_owned() }).await;
    replied(&mut link, 3).await;
    let after = stage.after_crash("when\n  say \"done\"\n");
    let start = Start::Resume { id: link.session, at: None };
    let request = OpenSession { start, ..after.request.clone() };
    let mut link = after.engine().open(request).await.unwrap();
    send(&link, 4, Command::Finish).await;
    replied(&mut link, 4).await;
    let record = after.recorded(link.session);
    let prompts = record.iter().filter_map(|one| match &one.event {
        Event::Message { message, meta, .. } if meta.origin == Origin::Prompt => Some(message.text()),
        _ => None,
    });
    assert_eq!(prompts.collect::<Vec<_>>(), ["first", "second"]);
}

#[tokio::test]
async fn a_hook_cannot_change_a_call_into_one_that_a_rule_denies() {
    let says = r#"printf '{"hookSpecificOutput":{"hookEventName":"PermissionRequest","decision":{"behavior":"allow","updatedInput":{"command":"rm -rf x"}}}}'"#;
    let script = "when turn=1\n  call Bash {\"command\": \"touch x\"}\nwhen turn=2\n  say \"done\"\n";
    let mut stage = stage(script, &[(HookEvent::PermissionRequest, says)]);
    stage.tools.push(std::sync::Arc::new(decurion_tools::shell::Bash::default()));
    stage.rules.deny.push(
        decurion_protocol::Rule::parse("Bash(rm:*)", decurion_protocol::permission::RuleSource::UserSettings)
            .unwrap(),
    );
    let log = stage.log("go").await;
    assert!(log.contains("refuse Bash") && !log.contains("start  Bash"), "{log}");
}

#[tokio::test]
async fn after_all_calls_of_a_message_a_hook_sees_them_and_adds_to_what_the_model_reads() {
    let script = "when turn=1\n  call Echo {\"text\": \"one\"}\n  call Poke {\"text\": \"two\"}\nwhen turn=2\n  say \"done\"\n";
    let says = r#"python3 -c '
import json, sys
calls = json.load(sys.stdin)["tool_calls"]
words = [" ".join([call["tool_name"], call["tool_input"]["text"], call["tool_response"]]) for call in calls]
print(json.dumps({"hookSpecificOutput": {"hookEventName": "PostToolBatch", "additionalContext": "; ".join(words)}}))'"#;
    let log = stage(script, &[(HookEvent::PostToolBatch, says)]).log("go").await;
    assert_eq!(log.matches("Echo one one; Poke two two").count(), 1, "{log}");
}

#[tokio::test]
async fn a_person_is_called_while_a_question_waits_and_hooks_are_told_what_could_be_allowed() {
    let script = "when turn=1\n  call WebFetch {\"url\": \"https://docs.rs/x\", \"text\": \"x\"}\nwhen turn=2\n  say \"done\"\n";
    let rings = r#"python3 -c '
import json, sys
asked = json.load(sys.stdin)
print(json.dumps({"systemMessage": asked["notification_type"] + ": " + asked["message"]}))'"#;
    let hooks = [(HookEvent::Notification, rings), (HookEvent::PermissionRequest, "cat > asked.json")];
    let mut stage = stage(script, &hooks);
    stage.tools.push(std::sync::Arc::new(decurion_testkit::stage::Plain::named("WebFetch")));
    stage.request.answers = true;
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![decurion_protocol::Block::text("go")] }).await;
    let mut question = None;
    while let Some(envelope) = link.events.next().await {
        match &envelope.event {
            Event::Asked { question: asked } => question = Some(asked.id),
            // Only once the hook was heard is the question answered.
            Event::Notice { text, .. } => {
                assert_eq!(text, "permission_prompt: Decurion needs your permission to use WebFetch");
                let answer = Answer::Allow { input: None, rules: Vec::new(), everywhere: false };
                let by = "user".to_owned();
                send(
                    &link,
                    2,
                    Command::Answer { question: question.unwrap(), answer, updates: Vec::new(), by },
                )
                .await;
            }
            Event::RunEnded { .. } => break,
            _ => {}
        }
    }
    let asked = std::fs::read(stage.request.cwd.join("asked.json")).unwrap();
    let asked: serde_json::Value = serde_json::from_slice(&asked).unwrap();
    let rules = serde_json::json!([{"toolName": "WebFetch", "ruleContent": "domain:docs.rs"}]);
    assert_eq!(asked["permission_suggestions"][0]["rules"], rules, "{asked}");
}

/// What a hook that writes its input to a file of this name was given.
fn given(stage: &Stage, name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(stage.request.cwd.join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn the_hooks_of_an_agent_are_given_who_it_is() {
    let hooks = [
        (HookEvent::SubagentStart, "cat > $DECURION_PROJECT_DIR/start"),
        (HookEvent::SubagentStop, "cat > $DECURION_PROJECT_DIR/stop"),
    ];
    let stage = stage(ONE_AGENT, &hooks);
    let played = stage.play("go").await;
    let agent = played.events.iter().find_map(|envelope| envelope.agent.clone()).unwrap();
    for (name, event) in [("start", "SubagentStart"), ("stop", "SubagentStop")] {
        let input = given(&stage, name);
        assert_eq!(input["hook_event_name"], event);
        assert_eq!(input["agent_id"], agent.as_str());
        assert_eq!(input["agent_type"], "worker");
        assert_eq!(input["depth"], 1);
        assert_eq!(input["session_id"], played.session.to_string());
        assert_eq!(input["cwd"], stage.request.cwd.as_str());
        assert_eq!(input["permission_mode"], "default");
        let transcript = format!("{}.jsonl", played.session);
        assert!(input["transcript_path"].as_str().unwrap().ends_with(&transcript), "{input}");
    }
    let stop = given(&stage, "stop");
    assert_eq!(stop["stop_hook_active"], false);
    assert_eq!(stop["last_assistant_message"], "found");
    let own = format!("subagents/agent-{agent}.jsonl");
    assert!(stop["agent_transcript_path"].as_str().unwrap().ends_with(&own), "{stop}");
}

#[tokio::test]
async fn the_hooks_of_an_agent_are_chosen_by_its_type() {
    let on = |event, matcher: &str, command: &str| HookDeclaration {
        matcher: Some(matcher.to_owned()),
        ..HookDeclaration::new(event, command)
    };
    let mut stage = stage(ONE_AGENT, &[]);
    stage.hooks = vec![
        on(HookEvent::SubagentStart, "worker", "echo for workers"),
        on(HookEvent::SubagentStart, "Explore", "echo for others"),
        on(HookEvent::SubagentStop, "Explore", "echo more >&2; exit 2"),
    ];
    let log = stage.log("go").await;
    assert!(log.contains("for workers") && !log.contains("for others"), "{log}");
    assert!(log.contains("#1 end    completed \"found\""), "{log}");
    stage.hooks = vec![on(
        HookEvent::SubagentStop,
        "work.*",
        "grep -q '\"stop_hook_active\":true' || { echo more >&2; exit 2; }",
    )];
    let log = stage.log("go").await;
    assert!(log.contains("#1 end    completed \"more done\""), "{log}");
}

#[tokio::test]
async fn a_start_hook_stops_no_agent_and_what_it_says_otherwise_is_for_the_person() {
    for code in [2, 1] {
        let command = format!("echo not this one >&2; echo nor this; exit {code}");
        let stage = stage(ONE_AGENT, &[(HookEvent::SubagentStart, &command)]);
        let log = stage.log("go").await;
        assert!(log.contains("#1 end    completed \"found\""), "{code}: {log}");
        assert!(log.contains("notice ") && log.contains("not this one"), "{code}: {log}");
        for request in stage.requests() {
            let text = String::from_utf8(request).unwrap();
            assert!(!text.contains("not this one") && !text.contains("nor this"), "{code}: {text}");
        }
    }
}

#[tokio::test]
async fn a_stop_hook_is_heard_only_where_it_says_no() {
    for (command, noticed) in [("echo aside; echo aside >&2", false), ("echo aside >&2; exit 1", true)] {
        let stage = stage(ONE_AGENT, &[(HookEvent::SubagentStop, command)]);
        let log = stage.log("go").await;
        assert!(log.contains("#1 end    completed \"found\""), "{log}");
        assert_eq!(log.contains("aside"), noticed, "{log}");
        for request in stage.requests() {
            assert!(!String::from_utf8(request).unwrap().contains("aside"), "{log}");
        }
    }
}

#[tokio::test]
async fn what_a_start_hook_says_follows_the_prompt() {
    let stage = stage(ONE_AGENT, &[(HookEvent::SubagentStart, "echo be brief")]);
    let log = stage.log("go").await;
    let place = |text: &str| log.find(text).unwrap_or_else(|| panic!("{text}: {log}"));
    assert!(place("#1 user   \"p\"") < place("#1 note   \"be brief\""), "{log}");
}

#[tokio::test]
async fn a_start_hook_that_says_nothing_is_told_once_of_one_start() {
    let before = stage(ONE_AGENT, &[(HookEvent::SubagentStart, "echo told >> $DECURION_PROJECT_DIR/starts")]);
    let played = before.play("go").await;
    let prepared = played.events.iter().find(|one| matches!(one.event, Event::Prepared { .. })).unwrap();
    let mut after = before.after_crash_at(prepared.seq);
    after.hooks = before.hooks.clone();
    after.processes = before.processes.clone();
    let request =
        OpenSession { start: Start::Resume { id: played.session, at: None }, ..before.request.clone() };
    let again = after.play_all(request, &["more"]).await.unwrap();
    let went_on =
        again.events.iter().any(|one| one.agent.is_some() && matches!(one.event, Event::RunEnded { .. }));
    assert!(went_on);
    assert_eq!(std::fs::read_to_string(before.request.cwd.join("starts")).unwrap(), "told\n");
}

#[tokio::test]
async fn a_definitions_hooks_are_active_while_its_agent_runs_and_do_not_see_it_start() {
    let script = r#"
when agent=worker turn=1
  call Poke {"text": "theirs"}
when agent=worker
  say "found"
when turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker"}
when match="again"
  call Poke {"text": "mine"}
when
  say "done"
"#;
    let mut stage = stage(script, &[]);
    stage.agent_hooks = vec![
        HookDeclaration::new(HookEvent::SubagentStart, "echo seen"),
        HookDeclaration::new(HookEvent::PreToolUse, "echo not here >&2; exit 2"),
    ];
    let played = stage.play_all(stage.request.clone(), &["go", "again"]).await.unwrap();
    let log = decurion_testkit::stage::render(&played.events);
    assert!(log.contains("#1 refuse Poke") && log.contains("\n→      \"mine\""), "{log}");
    assert!(!log.contains("seen"), "{log}");
}

#[tokio::test]
async fn an_agents_commands_end_with_it_and_are_named() {
    let script = r#"
when agent=worker turn=1
  call Bash {"command": "sleep 1000", "run_in_background": true}
when agent=worker
  say "found"
when turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker"}
when
  say "done"
"#;
    let mut stage = stage(script, &[]);
    stage.tools.push(std::sync::Arc::new(decurion_tools::shell::Bash::default()));
    stage.rules.allow.push(decurion_protocol::Rule::parse("Bash", Default::default()).unwrap());
    let log = stage.log("go").await;
    let named = "[Background commands that were still running and ended with this agent: sleep 1000]";
    assert!(log.contains(named), "{log}");
    assert!(log.contains("task   #2 Ended(Killed"), "{log}");
}
