//! What agents and those who wait for them read: reminders, what was said before a stop, why one waits, who is
//! told, what a resumed agent keeps.

use std::sync::{Arc, Mutex};

use decurion_engine::Definitions;
use decurion_protocol::{AgentDefinition, Command, Event, Place as _, Reply};
use decurion_testkit::stage::send;
use futures_util::StreamExt as _;

use crate::support::stage;

#[tokio::test(start_paused = true)]
async fn a_reminder_goes_with_every_request_behind_the_cache_mark() {
    let mut stage = stage(
        "when agent=worker turn=1\n  call Echo {\"text\": \"x\"}\nwhen agent=worker\n  say \"found it\"\nwhen turn=1\n  call Agent {\"description\": \"d\", \"prompt\": \"look\", \"subagent_type\": \"worker\"}\nwhen\n  say \"done\"\n",
    );
    let reminder = Some("mind the gap".to_owned());
    stage.agents = vec![Arc::new(AgentDefinition { reminder, ..(*stage.agents[0]).clone() })];
    stage.log("go").await;
    let bodies: Vec<String> =
        stage.requests().into_iter().map(|body| String::from_utf8(body).unwrap()).collect();
    let ends: Vec<&str> = bodies
        .iter()
        .map(|body| body.find("\"cache_control\":{\"type\":\"ephemeral\"}},{").map_or("", |at| &body[at..]))
        .collect();
    let of_agent = r#""cache_control":{"type":"ephemeral"}},{"type":"text","text":"mind the gap"}]}"#;
    assert!(ends[1].starts_with(of_agent) && ends[2].starts_with(of_agent), "{ends:#?}");
    assert_eq!(bodies[2].matches("mind the gap").count(), 1, "it does not join the conversation");
    assert!(!bodies[0].contains("mind the gap") && !bodies[3].contains("mind the gap"));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_stopped_or_fails_leaves_what_it_had_said() {
    let stopped = stage(
        r#"
when agent=worker turn=1
  say "half of it"
  call Echo {"text": "x"}
when agent=worker
  stall
when agent=main turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker", "run_in_background": true}
when agent=main turn=2 result=/agentId: (\w+)/
  call TaskOutput {"task_id": "$1", "timeout": 5}
  call TaskStop {"task_id": "$1"}
when agent=main
  say "done"
"#,
    );
    let log = stopped.log("go").await;
    assert!(log.contains("told   #1 killed \"half of it\""), "{log}");
    let failed = stage(
        r#"
when agent=worker turn=1
  say "half of it"
  call Echo {"text": "x"}
when agent=worker
  fail 401
when agent=main turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker"}
when agent=main
  say "done"
"#,
    );
    failed.log("go").await;
    let told = String::from_utf8(failed.requests().pop().unwrap()).unwrap();
    assert!(told.contains("What it had said by then:\\nhalf of it"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn the_older_name_of_task_output_gives_a_finished_agent_as_a_call_that_waits_does() {
    for (name, completed) in [("AgentOutputTool", true), ("AgentOutput", true), ("TaskOutput", false)] {
        let field = if completed { "agentId" } else { "task_id" };
        let stage = stage(&format!(
            "when agent=worker\n  say \"found it\"\nwhen turn=1\n  call Agent {{\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"worker\", \"run_in_background\": true}}\nwhen turn=2 result=/agentId: (\\w+)/\n  call {name} {{\"{field}\": \"$1\"}}\nwhen\n  say \"done\"\n"
        ));
        let played = stage.play("go").await;
        let value = played.events.iter().find_map(|envelope| match &envelope.event {
            Event::CallEnded { tool, output, .. } if tool == "TaskOutput" => output.structured.clone(),
            _ => None,
        });
        let value = value.unwrap();
        assert_eq!(value["status"] == "completed", completed, "{name}: {value}");
        assert_eq!(value["retrieval_status"] == "success", !completed, "{name}: {value}");
        assert_eq!(value["content"][0]["text"] == "found it", completed, "{name}: {value}");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_looks_sees_why_an_agent_waits() {
    let mut stage = stage(
        "when agent=worker\n  call Poke {\"text\": \"x\"}\nwhen turn=1\n  call Agent {\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"worker\"}\n",
    );
    stage.rules.allow.retain(|rule| rule.tool != "Poke");
    stage.request.answers = true;
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![decurion_protocol::Block::text("go")] }).await;
    let mut asked = None;
    let rows = loop {
        match link.events.next().await.map(|envelope| envelope.event.clone()).unwrap() {
            Event::Asked { question } => {
                asked = Some(question.id);
                send(&link, 2, Command::Tasks).await;
            }
            Event::Replied { request, reply: Reply::Done { value } } if request.0 == 2 => break value,
            _ => {}
        }
    };
    let expected = format!("waiting: a person's answer to question {}", asked.unwrap());
    assert_eq!(rows[0]["state"], expected.as_str(), "{rows}");
}

#[tokio::test(start_paused = true)]
async fn a_resumed_agent_keeps_its_model_and_is_given_more_budget() {
    let stage = stage(
        r#"
when agent=worker
  call Echo {"text": "again"}
  usage input=10 output=5
when agent=main turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker", "max_turns": 2, "budget": {"spawns": 1}}
when agent=main turn=2 result=/agentId: (\w+)/
  call Agent {"description": "d", "prompt": "more", "resume": "$1", "model": "opus", "effort": "high", "max_turns": 3, "budget": {"tokens": 7000, "spawns": 2}}
when agent=main
  say "done"
"#,
    );
    let played = stage.play("go").await;
    let log = decurion_testkit::stage::render(&played.events);
    assert!(log.contains("`model` and `effort` was ignored"), "{log}");
    let limits: Vec<_> = played
        .events
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::RunStarted { spec } if spec.agent.is_some() => Some(spec.limits.clone()),
            _ => None,
        })
        .collect();
    assert_eq!((limits[0].turns, limits[1].turns), (Some(2), Some(3)));
    assert_eq!((limits[0].tokens, limits[1].tokens), (None, Some(7030)), "on top of what it spent");
    assert_eq!((limits[0].spawns, limits[1].spawns), (Some(1), Some(2)));
}

#[tokio::test(start_paused = true)]
async fn whoever_an_agent_works_for_is_told_when_a_message_takes_it_up_again() {
    let mut stage = stage(
        r#"
when agent=worker first="inner" turn=1
  say "inner done"
when agent=worker first="inner"
  say "inner again"
when agent=worker first="outer" turn=1
  call Agent {"description": "d", "prompt": "inner", "subagent_type": "worker"}
when agent=worker first="outer" result=/agentId: (\w+)/
  say "inner is <$1>"
when agent=main turn=1
  call Agent {"description": "d", "prompt": "outer", "subagent_type": "worker"}
when agent=main turn=2 result=/inner is <(\w+)>/
  call SendMessage {"to": "$1", "message": "go on"}
when agent=main
  say "done"
"#,
    );
    stage.agent_settings.max_depth = 2;
    let log = stage.log("go").await;
    assert!(log.contains("You are notified when it ends"), "{log}");
    assert!(log.contains("told   #2 completed \"inner again\""), "{log}");
}

#[tokio::test(start_paused = true)]
async fn a_child_shortened_without_a_summary_keeps_its_own_prompts_only() {
    let stage = stage(
        "when agent=worker first=\"could not be summarised\"\n  say \"so\"\nwhen agent=worker match=\"about to be shortened\"\n  say \" \"\nwhen agent=worker turn=1\n  call Echo {\"text\": \"a\"}\nwhen agent=worker\n  fail 400 \"prompt is too long\"\nwhen turn=1\n  call Agent {\"description\": \"d\", \"prompt\": \"look\", \"subagent_type\": \"worker\"}\nwhen\n  say \"done\"\n",
    );
    stage.play("said to the root").await;
    let mut bodies = stage.requests().into_iter().map(|body| String::from_utf8(body).unwrap());
    let child = bodies.rfind(|body| body.contains("could not be summarised")).unwrap();
    assert!(child.contains("> look") && !child.contains("said to the root"), "{child}");
}

struct Changing(Mutex<Vec<Arc<AgentDefinition>>>);

impl Definitions for Changing {
    fn all(&self) -> Vec<Arc<AgentDefinition>> {
        self.0.lock().unwrap().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn definitions_that_change_are_told_of_at_the_next_prompt_and_not_before() {
    let mut stage = stage("when turn=1\n  call Echo {\"text\": \"x\"}\nwhen\n  say \"done\"\n");
    let changing = Arc::new(Changing(Mutex::new(stage.agents.clone())));
    stage.definitions = Some(Arc::clone(&changing) as Arc<dyn Definitions>);
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    let prompt = || Command::Prompt { blocks: vec![decurion_protocol::Block::text("go")] };
    send(&link, 1, prompt()).await;
    let mut heads = Vec::new();
    while let Some(envelope) = link.events.next().await {
        match &envelope.event {
            Event::RunStarted { spec } => heads.push(spec.head.clone()),
            Event::CallStarted { .. } => {
                let another = AgentDefinition { name: "another".into(), ..(*stage.agents[0]).clone() };
                changing.0.lock().unwrap().push(Arc::new(another));
            }
            Event::RunEnded { .. } if heads.len() == 2 => break,
            Event::RunEnded { .. } => send(&link, 2, prompt()).await,
            _ => {}
        }
    }
    let told: Vec<bool> =
        stage.requests().iter().map(|body| memchr::memmem::find(body, b"- another:").is_some()).collect();
    assert_eq!(told, [false, false, true]);
    assert_ne!(heads[0], heads[1], "a restart would find the new one");
}

#[tokio::test(start_paused = true)]
async fn a_denial_of_work_that_has_ended_is_not_held_against_what_follows() {
    let mut stage = stage(
        r#"
when agent=worker turn=1
  call Poke {"text": "x"}
when agent=worker turn=2
  say "I may not"
when agent=worker
  say "done without it"
when agent=main turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker"}
when agent=main turn=2 result=/agentId: (\w+)/
  call SendMessage {"to": "$1", "message": "leave it out"}
when agent=main
  say "done"
"#,
    );
    stage.rules.allow.retain(|rule| rule.tool != "Poke");
    let log = stage.log("go").await;
    assert!(log.contains("\"outcome\":\"denied\"") && log.contains("I may not"), "{log}");
    assert!(log.contains("#1 end    completed \"done without it\""), "{log}");
}
