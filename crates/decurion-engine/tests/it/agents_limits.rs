//! What keeps agents in bounds: rules, modes, budgets, turns, reports that are too long, background switched
//! off, inputs that are not understood.

use std::sync::Arc;

use decurion_engine::child::BackgroundChoice;
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{AgentDefinition, Limits, Mode, Rule, ToolSelection};
use decurion_testkit::stage::Stage;

use crate::support::stage;

/// A root that starts one worker with these further inputs, and a worker that does this.
fn one(worker: &str, inputs: &str) -> Stage {
    stage(&format!(
        "{worker}when turn=1\n  call Agent {{\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"worker\"{inputs}}}\nwhen\n  say \"done\"\n"
    ))
}

#[tokio::test(start_paused = true)]
async fn a_type_that_a_rule_denies_does_not_start() {
    let mut stage = one("when agent=worker\n  say \"never\"\n", "");
    stage.rules.deny.push(Rule::parse("Agent(worker)", RuleSource::UserSettings).unwrap());
    let log = stage.log("go").await;
    assert!(log.contains("refuse Agent") && !log.contains("never"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn a_deny_rule_holds_at_every_depth() {
    let worker =
        "when agent=worker turn=1\n  call Echo {\"text\": \"x\"}\nwhen agent=worker\n  say \"could not\"\n";
    let mut stage = one(worker, "");
    stage.rules.deny.push(Rule::parse("Echo", RuleSource::UserSettings).unwrap());
    stage.request.mode = Some(Mode::BypassPermissions);
    let log = stage.log("go").await;
    assert!(log.contains("#1 refuse Echo") && log.contains("#1 end    completed \"could not\""), "{log}");
}

#[tokio::test(start_paused = true)]
async fn a_definition_narrows_what_its_agent_may_do() {
    let worker = "when agent=worker turn=1\n  call Poke {\"text\": \"x\"}\n  call Echo {\"text\": \"y\"}\nwhen agent=worker\n  say \"done\"\n";
    let mut stage = one(worker, "");
    stage.agents = vec![Arc::new(AgentDefinition {
        name: "worker".into(),
        tools: ToolSelection { only: Some(vec!["Echo".into()]), except: Vec::new() },
        ..AgentDefinition::default()
    })];
    let log = stage.log("go").await;
    assert!(log.contains("No such tool available: Poke") && log.contains("#1 →      \"y\""), "{log}");
    let requests = stage.requests();
    let child = String::from_utf8_lossy(&requests[1]).into_owned();
    assert!(child.contains(r#""name":"Echo""#) && !child.contains(r#""name":"Poke""#), "{log}");
}

#[tokio::test(start_paused = true)]
async fn nobody_to_ask_is_said_and_is_the_outcome() {
    let worker =
        "when agent=worker turn=1\n  call Poke {\"text\": \"x\"}\nwhen agent=worker\n  say \"I may not\"\n";
    let mut stage = one(worker, "");
    stage.rules.allow.clear();
    let log = stage.log("go").await;
    assert!(log.contains("permission cannot be requested in this non-interactive session"), "{log}");
    assert!(log.contains("#1 end    {\"outcome\":\"denied\""), "{log}");
    assert!(log.contains("It was denied what it needed"), "the parent reads it too:\n{log}");
}

#[tokio::test(start_paused = true)]
async fn turns_end_an_agent_with_what_it_has_after_a_warning() {
    let worker = "when agent=worker\n  say \"so far\"\n  call Echo {\"text\": \"${seen.turn}\"}\n";
    let stage = one(worker, ", \"max_turns\": 3");
    let log = stage.log("go").await;
    assert!(log.contains("Your budget (turns) allows one more turn"), "{log}");
    assert!(log.contains("\"limit\":\"turns\"") && log.contains("It stopped at its limit (turns)"), "{log}");
    let is_worker = |body: &&Vec<u8>| memchr::memmem::find(body, b"You do a part of the work").is_some();
    assert_eq!(stage.requests().iter().filter(is_worker).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn tokens_of_an_agent_are_a_hard_limit_with_a_partial_result() {
    let worker = "when agent=worker\n  say \"so far\"\n  call Echo {\"text\": \"${seen.turn}\"}\n  usage input=2000 output=100\n";
    let log = one(worker, ", \"budget\": {\"tokens\": 20000}").log("go").await;
    assert!(
        log.contains(
            "#1 end    {\"outcome\":\"out_of_budget\",\"budget\":\"tokens\",\"partial\":\"so far\"}"
        ),
        "{log}"
    );
    assert!(log.contains("It used up its budget (tokens)"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn the_number_of_agents_is_a_budget_too() {
    let mut stage = stage(
        "when agent=worker\n  say \"done\"\nwhen turn=3\n  say \"done\"\nwhen\n  call Agent {\"description\": \"${seen.turn}\", \"prompt\": \"p\", \"subagent_type\": \"worker\"}\n",
    );
    stage.request.limits = Limits { spawns: Some(1), ..Limits::default() };
    let log = stage.log("go").await;
    assert!(log.contains("The budget of sub-agents is used up (1 begun)"), "{log}");
    stage.request.limits = Limits::default();
    stage.agent_settings.max_total = Some(1);
    let log = stage.log("go").await;
    assert!(log.contains("agents.max_total = 1"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn a_report_that_floods_goes_to_a_file() {
    let worker = "when agent=worker\n  say repeat=10000 \"0123456789\"\n";
    let log = one(worker, "").play("go").await;
    let text = log
        .events
        .iter()
        .find_map(|envelope| match (&envelope.event, &envelope.agent) {
            (decurion_protocol::Event::CallEnded { output, .. }, None) => Some(output.content.text()),
            _ => None,
        })
        .unwrap();
    assert!(
        text.chars().count() < 31_000 && text.contains("[70000 characters cut here; all of it is in "),
        "{text:.300}"
    );
    let path = text.split("all of it is in ").nth(1).unwrap().split(']').next().unwrap();
    assert!(path.contains("tool-results"), "{path}");
}

#[tokio::test(start_paused = true)]
async fn a_model_that_fails_is_a_result_for_the_parent() {
    let log = one("when agent=worker\n  fail 400 \"broken\"\n", "").log("go").await;
    assert!(log.contains("✗      \"The agent failed: the provider rejected the request"), "{log}");
    assert!(log.contains("end    completed \"done\""), "{log}");
}

#[tokio::test(start_paused = true)]
async fn without_a_background_everything_runs_in_the_foreground() {
    let mut stage = one("when agent=worker\n  say \"found\"\n", ", \"run_in_background\": true");
    stage.agent_settings.background = BackgroundChoice::Never;
    let log = stage.log("go").await;
    assert!(log.contains("begin  #1 local_agent Foreground") && log.contains("→      \"found"), "{log}");
    let first = String::from_utf8_lossy(&stage.requests()[0]).into_owned();
    assert!(!first.contains("run_in_background") && !first.contains("\"TaskOutput\""), "{first}");
}

#[tokio::test(start_paused = true)]
async fn inputs_that_are_not_understood_name_the_field() {
    for (inputs, expected) in [
        (", \"isolation\": \"remote\"", "`isolation` must be one of"),
        (", \"isolation\": \"worktree\"", "Worktrees need a state folder"),
        (", \"team_name\": \"x\"", "`team_name` is not available in this version"),
        (", \"nonsense\": 1", "`nonsense` is not a field here"),
        (", \"max_turns\": 0", "`max_turns` must be more than 0"),
        (", \"background\": true, \"run_in_background\": false", "mean the same and disagree"),
        (", \"budget\": {\"tokens\": 0}", "must be more than 0"),
        (", \"resume\": \"a0000000000000000\"", "No agent found with ID: a0000000000000000"),
        (", \"resume\": \"../etc\"", "No agent found with ID: ../etc"),
    ] {
        let log = one("when agent=worker\n  say \"never\"\n", inputs).log("go").await;
        assert!(log.contains(expected), "{inputs}: {log}");
        assert!(!log.contains("never"), "{log}");
    }
    let ids = stage(
        "when turn=1\n  call TaskOutput {\"task_id\": \"nobody\"}\n  call TaskStop {\"task_id\": \"../x\"}\n  call SendMessage {\"to\": \"nobody\", \"message\": \"m\"}\nwhen\n  say \"done\"\n",
    );
    let log = ids.log("go").await;
    for expected in
        ["No task found with ID: nobody", "No task found with ID: ../x", "No agent found with ID: nobody"]
    {
        assert!(log.contains(expected), "{log}");
    }
}

#[tokio::test(start_paused = true)]
async fn old_names_still_work() {
    let stage = stage(
        r#"
when agent=worker
  say "found it"
when turn=1
  call Task {"description": "d", "prompt": "p", "subagent_type": "worker", "background": true}
when turn=2 result=/agentId: (\w+)/
  call AgentOutputTool {"agentId": "$1", "wait_up_to": 5}
when
  say "done"
"#,
    );
    let log = stage.log("go").await;
    assert!(log.contains("begin  #1 local_agent Background") && log.contains("found it"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn what_was_set_aside_for_a_stopped_agent_goes_back_to_the_tree() {
    let mut stage = stage(
        r#"
when agent=worker
  stall
when result=/agentId: (\w+)/
  call TaskStop {"task_id": "$1"}
  usage input=10 output=5
when turn=13..
  say "done"
  usage input=10 output=5
when
  call Agent {"description": "${seen.turn}", "prompt": "p", "subagent_type": "worker", "run_in_background": true}
  usage input=10 output=5
"#,
    );
    // Each request sets about 6,000 tokens aside; six agents that kept theirs would leave nothing.
    stage.request.limits = Limits { tokens: Some(20_000), ..Limits::default() };
    let log = stage.log("go").await;
    assert_eq!(log.matches("\"killed\"").count(), 6, "{log}");
    assert!(log.contains("end    completed \"done\""), "{log}");
}

#[tokio::test(start_paused = true)]
async fn wall_time_ends_an_agent_that_waits() {
    let worker = "when agent=worker turn=1\n  say \"so far\"\n  call Echo {\"text\": \"hang\"}\n";
    let log = one(worker, ", \"budget\": {\"seconds\": 5}").log("go").await;
    let ended = "#1 end    {\"outcome\":\"out_of_budget\",\"budget\":\"time\",\"partial\":\"so far\"}";
    assert!(log.contains(ended), "{log}");
}

#[tokio::test(start_paused = true)]
async fn only_its_own_line_goes_on_with_an_agent() {
    let mut stage = stage(
        r#"
when agent=worker first="first"
  say "one"
when agent=worker first="second" turn=1 first=/take (\w+)/
  call Agent {"description": "d", "prompt": "p", "resume": "$1"}
when agent=worker
  say "two"
when turn=1
  call Agent {"description": "d", "prompt": "first", "subagent_type": "worker"}
when turn=2 result=/agentId: (\w+)/
  call Agent {"description": "d", "prompt": "second: take $1", "subagent_type": "worker"}
when
  say "done"
"#,
    );
    stage.agent_settings.max_depth = 2;
    let log = stage.log("go").await;
    assert!(log.contains("is not one of yours"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_for_the_only_place_gives_it_up() {
    for behind in ["false", "true"] {
        let mut stage = stage(&format!(
            "when agent=worker first=\"inner\"\n  say \"inner done\"\nwhen agent=worker turn=1\n  call Agent {{\"description\": \"d\", \"prompt\": \"inner\", \"subagent_type\": \"worker\", \"run_in_background\": {behind}}}\nwhen agent=worker\n  say \"outer done\"\nwhen turn=1\n  call Agent {{\"description\": \"d\", \"prompt\": \"outer\", \"subagent_type\": \"worker\"}}\nwhen\n  say \"done\"\n"
        ));
        stage.agent_settings.max_depth = 2;
        stage.agent_settings.max_running = 1;
        let log = tokio::time::timeout(std::time::Duration::from_secs(3600), stage.log("go")).await.unwrap();
        assert!(log.contains("inner done") && log.contains("end    completed \"done\""), "{log}");
    }
}
