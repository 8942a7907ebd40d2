//! What an agent carries: made ready in one order, given back in another, whatever happened in between.

use std::sync::Arc;

use decurion_engine::AgentSettings;
use decurion_protocol::{AgentDefinition, Envelope, Event};
use decurion_testkit::stage::Stage;
use expect_test::expect;

/// A stage whose root may start agents.
fn stage(script: &str) -> Stage {
    let mut stage = Stage::new(script);
    stage.agent_settings = AgentSettings { max_depth: 2, ..AgentSettings::default() };
    stage
}

/// The steps of every agent, a line for its start and one for its end, with how it ended before that.
fn steps(events: &[Arc<Envelope>]) -> String {
    let words = |value: serde_json::Value| {
        let step = value["step"].as_str().unwrap_or_default().to_owned();
        value["note"].as_str().map_or(step.clone(), |note| format!("{step} ({note})"))
    };
    let line = |envelope: &Arc<Envelope>| {
        let told: Vec<String> = match &envelope.event {
            Event::Prepared { steps } => {
                steps.iter().map(|step| words(serde_json::to_value(step).unwrap())).collect()
            }
            Event::Released { steps } => {
                steps.iter().map(|step| words(serde_json::to_value(step).unwrap())).collect()
            }
            Event::RunEnded { outcome, .. } if envelope.agent.is_some() => {
                return Some(outcome.word().to_owned());
            }
            _ => return None,
        };
        Some(told.join(" "))
    };
    events.iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

const AGENT: &str = r#"call Agent {"description": "look", "prompt": "look", "subagent_type": "worker"}"#;

#[tokio::test(start_paused = true)]
async fn an_agent_is_made_ready_and_gives_back_in_order() {
    let script =
        format!("when agent=worker\n  say \"found\"\nwhen turn=1\n  {AGENT}\nwhen turn=2\n  say \"done\"\n");
    let played = stage(&script).play("go").await;
    expect![[r"
        definition model id tools task system_prompt mode cancellation servers start_hooks own_hooks skills context request
        completed
        servers hooks cache files trace shells worktree"]]
    .assert_eq(&steps(&played.events));
}

#[tokio::test(start_paused = true)]
async fn every_ending_gives_back_everything() {
    // How the worker works, what the root does besides, how the worker ends.
    let rows = [
        ("fail 400 \"no\"", "", "failed"),
        ("panic", "", "failed"),
        ("call Poke {\"text\": \"panic\"}", "", "completed"),
        ("delay 60m\n  say \"late\"", ", \"budget\": {\"seconds\": 5}", "out_of_budget"),
    ];
    for (works, more, ending) in rows {
        let agent = AGENT.replace('}', &format!("{more}}}"));
        let script = format!(
            "when agent=worker turn=1\n  {works}\nwhen agent=worker turn=2\n  say \"so\"\nwhen turn=1\n  {agent}\nwhen turn=2\n  say \"done\"\n"
        );
        let told = steps(&stage(&script).play("go").await.events);
        let expected = format!("{ending}\nservers hooks cache files trace shells worktree");
        assert!(told.ends_with(&expected), "{works}: {told}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_left_running_has_ended_before_its_own_end_is_told() {
    // Its limit of turns ends the outer agent while its own, in the background, still works.
    let script = r#"
when agent=inner
  delay 60m
  say "late"
when agent=worker
  call Agent {"description": "deeper", "prompt": "look", "subagent_type": "inner", "run_in_background": true}
when turn=1
  call Agent {"description": "look", "prompt": "look", "subagent_type": "worker", "max_turns": 1}
when turn=2
  say "done"
"#;
    let mut stage = stage(script);
    let worker = Arc::clone(&stage.agents[0]);
    stage.agents.push(Arc::new(AgentDefinition { name: "inner".into(), ..(*worker).clone() }));
    let played = stage.play("go").await;
    let told = steps(&played.events);
    expect![[r"
        definition model id tools task system_prompt mode cancellation servers start_hooks own_hooks skills context request
        definition model id tools task system_prompt mode cancellation servers start_hooks own_hooks skills context request
        completed
        killed
        servers hooks cache files trace shells worktree
        servers hooks cache files trace shells (ended: deeper) worktree"]].assert_eq(&told);
}
