//! Hooks in the loop, as real processes: before and after calls, at the start and the end of agents.

use decurion_engine::AgentSettings;
use decurion_exec::{Guard, GuardProgram};
use decurion_protocol::{HookDeclaration, HookEvent};
use decurion_testkit::stage::Stage;

/// A stage with hooks that really run.
fn stage(script: &str, hooks: &[(HookEvent, &str)]) -> Stage {
    let mut stage = Stage::new(script);
    stage.agent_settings = AgentSettings::default();
    let program = env!("CARGO_BIN_EXE_decurion-engine-guard").into();
    stage.processes = Some(Guard::new(GuardProgram { program, args: Vec::new() }));
    stage.hooks = hooks.iter().map(|(event, command)| HookDeclaration::new(*event, *command)).collect();
    stage
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
