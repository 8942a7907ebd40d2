//! What the tools about agents and tasks say, field by field: the offer, the inputs they take, the answers.

use std::sync::Arc;
use std::time::Duration;

use decurion_engine::child::BackgroundChoice;
use decurion_exec::{Guard, GuardProgram};
use decurion_protocol::{
    AgentDefinition, Block, Command, Envelope, Event, Mode, OpenSession, Outcome, Place as _, Reply, Rule,
    Start, TaskProgress, ToolSelection,
};
use decurion_testkit::stage::{Plain, Played, Stage, send};
use expect_test::expect;
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::support;

fn stage(script: &str) -> Stage {
    let mut stage = support::stage(script);
    // Unlike Echo, agents in the background have it.
    stage.tools.push(Arc::new(Plain::named("TodoWrite")));
    stage.rules.allow.push(Rule::parse("TodoWrite", Default::default()).unwrap());
    stage
}

/// A stage whose commands really run.
fn shells(script: &str) -> Stage {
    let mut stage = stage(script);
    let program = env!("CARGO_BIN_EXE_decurion-engine-guard").into();
    stage.processes = Some(Guard::new(GuardProgram { program, args: Vec::new() }));
    stage.tools.push(Arc::new(decurion_tools::shell::Bash::default()));
    stage.rules.allow.push(Rule::parse("Bash", Default::default()).unwrap());
    stage
}

/// The results of the root's calls of a tool.
fn results(events: &[Arc<Envelope>], tool: &str) -> Vec<(String, Value)> {
    let of_tool = |envelope: &Arc<Envelope>| match &envelope.event {
        Event::CallEnded { tool: called, output, .. } if envelope.agent.is_none() && called == tool => {
            Some((output.content.text(), output.structured.clone().unwrap_or_default()))
        }
        _ => None,
    };
    events.iter().filter_map(of_tool).collect()
}

/// A value for people, with the ids and folders of this run replaced.
fn shown(played: &Played, value: &Value) -> String {
    let text = serde_json::to_string_pretty(value).unwrap();
    masked(played, &text)
}

fn masked(played: &Played, text: &str) -> String {
    let mut text = text.to_owned();
    for envelope in &played.events {
        if let Event::TaskOpened { record } = &envelope.event {
            let folder = record.output_file.parent().unwrap().as_str();
            text = text.replace(folder, "TASKS").replace(record.task.as_str(), "ID");
        }
    }
    text
}

const FOREGROUND: &str = r#"
when agent=worker turn=1
  say "let me look"
  call TodoWrite {"text": "looking"}
  usage input=1000 output=10 cache_read=5 cache_write=7
when agent=worker
  say "found it"
  usage input=1100 output=20 cache_read=50 cache_write=70
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker"}
when
  say "done"
"#;

#[tokio::test(start_paused = true)]
async fn a_finished_agent_is_answered_field_by_field() {
    let played = stage(FOREGROUND).play("go").await;
    let [(text, value)] = &results(&played.events, "Agent")[..] else { panic!("one call") };
    expect![[r#"
        {
          "status": "completed",
          "outcome": "completed",
          "prompt": "look for it",
          "agentId": "ID",
          "agentType": "worker",
          "content": [
            {
              "type": "text",
              "text": "found it"
            }
          ],
          "resolvedModel": "scripted",
          "totalDurationMs": 32,
          "totalTokens": 1240,
          "totalToolUseCount": 1,
          "usage": {
            "input_tokens": 1100,
            "output_tokens": 20,
            "cache_creation_input_tokens": 70,
            "cache_read_input_tokens": 50,
            "server_tool_use": null,
            "service_tier": null,
            "cache_creation": null
          },
          "usageTotal": {
            "input_tokens": 2100,
            "output_tokens": 30,
            "cache_creation_input_tokens": 77,
            "cache_read_input_tokens": 55
          },
          "canContinueAgent": true
        }"#]]
    .assert_eq(&shown(&played, value));
    expect![["
        found it

        agentId: ID (for `resume` or SendMessage, if its work should go on; not for the user)
        <usage>subagent_tokens: 1240
        tool_uses: 1
        duration_ms: 32</usage>"]]
    .assert_eq(&masked(&played, text));
}

const BACKGROUND: &str = r#"
when agent=worker turn=1
  call TodoWrite {"text": "looking"}
  usage input=1000 output=10
when agent=worker
  delay 50s
  say "found it"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker", "run_in_background": true}
when turn=2 result=/agentId: (\w+)/
  delay 5s
  call TaskOutput {"task_id": "$1", "block": false}
when turn=3 result=/<task_id>(\w+)</
  call TaskOutput {"task_id": "$1"}
when turn=4 result=/<task_id>(\w+)</
  call TaskOutput {"task_id": "$1", "timeout": 600000}
when
  say "done"
"#;

#[tokio::test(start_paused = true)]
async fn a_launched_agent_is_answered_field_by_field() {
    let played = stage(BACKGROUND).play("go").await;
    let [(text, value)] = &results(&played.events, "Agent")[..] else { panic!("one call") };
    expect![[r#"
        {
          "isAsync": true,
          "status": "async_launched",
          "agentId": "ID",
          "description": "look",
          "prompt": "look for it",
          "resolvedModel": "scripted",
          "outputFile": "TASKS/ID.output",
          "canReadOutputFile": true,
          "canContinueAgent": true
        }"#]]
    .assert_eq(&shown(&played, value));
    expect![[r"
        The agent works in the background now.
        agentId: ID (for `resume` or SendMessage, if its work should go on; not for the user)
        Its report will come to you by itself as a notification when it ends: go on with other work, and do not repeat its work. Only when nothing else is left to do, TaskOutput with this id waits for it.
        output_file: TASKS/ID.output
        The file is its raw transcript; reading it is rarely worth the space."]].assert_eq(&masked(&played, text));
}

#[tokio::test(start_paused = true)]
async fn an_agents_task_is_shown_as_it_stands_at_the_timeout_and_as_it_ended() {
    let played = stage(BACKGROUND).play("go").await;
    let seen: Vec<Value> =
        results(&played.events, "TaskOutput").into_iter().map(|(_, value)| value).collect();
    expect![[r#"
        [
          {
            "retrieval_status": "not_ready",
            "task": {
              "task_id": "ID",
              "task_type": "local_agent",
              "status": "running",
              "description": "look",
              "output": "1 tool uses, 1010 tokens, 0 s so far.\n- TodoWrite: {\"text\":\"looking\"}",
              "wasTruncated": false,
              "prompt": "look for it",
              "result": null
            }
          },
          {
            "retrieval_status": "timeout",
            "task": {
              "task_id": "ID",
              "task_type": "local_agent",
              "status": "running",
              "description": "look",
              "output": "1 tool uses, 1010 tokens, 0 s so far.\n- TodoWrite: {\"text\":\"looking\"}",
              "wasTruncated": false,
              "prompt": "look for it",
              "result": null
            }
          },
          {
            "retrieval_status": "success",
            "task": {
              "task_id": "ID",
              "task_type": "local_agent",
              "status": "completed",
              "description": "look",
              "output": "found it",
              "wasTruncated": false,
              "outcome": "completed",
              "prompt": "look for it",
              "result": "found it"
            }
          }
        ]"#]]
    .assert_eq(&shown(&played, &json!(seen)));
    let texts: Vec<String> =
        results(&played.events, "TaskOutput").into_iter().map(|(text, _)| text).collect();
    expect![[r#"
        <retrieval_status>not_ready</retrieval_status>

        <task_id>ID</task_id>

        <task_type>local_agent</task_type>

        <status>running</status>

        <output>
        1 tool uses, 1010 tokens, 0 s so far.
        - TodoWrite: {"text":"looking"}
        </output>
        ====
        <retrieval_status>timeout</retrieval_status>

        <task_id>ID</task_id>

        <task_type>local_agent</task_type>

        <status>running</status>

        <output>
        1 tool uses, 1010 tokens, 0 s so far.
        - TodoWrite: {"text":"looking"}
        </output>
        ====
        <retrieval_status>success</retrieval_status>

        <task_id>ID</task_id>

        <task_type>local_agent</task_type>

        <status>completed</status>

        <output>
        found it
        </output>"#]]
    .assert_eq(&masked(&played, &texts.join("\n====\n")));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_failed_is_shown_with_its_error() {
    let script = r#"
when agent=worker
  delay 1s
  fail 400 "broken"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker", "run_in_background": true}
when turn=2 result=/agentId: (\w+)/
  call TaskOutput {"task_id": "$1"}
when
  say "done"
"#;
    let played = stage(script).play("go").await;
    let [(_, value)] = &results(&played.events, "TaskOutput")[..] else { panic!("one call") };
    assert_eq!((&value["task"]["status"], &value["task"]["outcome"]), (&json!("failed"), &json!("failed")));
    assert!(value["task"]["error"].as_str().unwrap().contains("broken"), "{value}");
}

/// What a call says that may wait for an agent which takes so many seconds.
async fn sees_the_end(call: &str, seconds: u64) -> String {
    // No request may take longer than a minute.
    let (rounds, rest) = (seconds / 50, seconds % 50);
    let long = format!(
        "when agent=worker turn=1..{rounds}\n  delay 50s\n  call TodoWrite {{\"text\": \"${{seen.turn}}\"}}\n"
    );
    let worker = format!(
        "{}when agent=worker\n  delay {rest}s\n  say \"found it\"\n",
        if rounds > 0 { &long } else { "" }
    );
    let script = format!(
        "{worker}when turn=1\n  call Agent {{\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"worker\", \"run_in_background\": true}}\nwhen turn=2 result=/agentId: (\\w+)/\n  call {call}\nwhen\n  say \"done\"\n"
    );
    let played = stage(&script).play("go").await;
    let outputs = played.events.iter().filter_map(|envelope| match &envelope.event {
        Event::CallEnded { output, .. } if envelope.agent.is_none() => Some(output),
        _ => None,
    });
    let output = outputs.into_iter().nth(1).unwrap();
    let status = output.structured.as_ref().and_then(|value| value["retrieval_status"].as_str());
    status.map_or_else(|| output.content.text(), str::to_owned)
}

#[tokio::test(start_paused = true)]
async fn waiting_has_its_defaults_and_bounds() {
    let rows = [
        (r#"TaskOutput {"task_id": "$1"}"#, 29, "success"),
        (r#"TaskOutput {"task_id": "$1"}"#, 31, "timeout"),
        (r#"TaskOutput {"task_id": "$1", "block": true, "timeout": 0}"#, 1, "timeout"),
        (r#"TaskOutput {"task_id": "$1", "block": false}"#, 1, "not_ready"),
        (r#"TaskOutput {"task_id": "$1", "timeout": 600000}"#, 599, "success"),
        (r#"TaskOutput {"task_id": "$1", "timeout": 600000}"#, 601, "timeout"),
        (r#"TaskOutput {"task_id": "$1", "timeout": 600001}"#, 1, "`timeout` must be at most 600000"),
        (r#"TaskOutput {"task_id": "$1", "timeout": -1}"#, 1, "`timeout` must be at least 0"),
        (r#"TaskOutput {"task_id": "$1", "block": "yes"}"#, 1, "`block` must be a boolean"),
        (r#"TaskOutput {"task_id": "$1", "wait": 1}"#, 1, "`wait` is not a field here"),
        (r"TaskOutput {}", 1, "`task_id` is missing"),
        (r#"AgentOutput {"agentId": "$1"}"#, 149, "found it"),
        (r#"AgentOutput {"agentId": "$1"}"#, 151, "timeout"),
        (r#"AgentOutputTool {"agentId": "$1"}"#, 149, "found it"),
        (r#"AgentOutputTool {"agentId": "$1"}"#, 151, "timeout"),
        (r#"AgentOutput {"agentId": "$1", "wait_up_to": 300}"#, 299, "found it"),
        (
            r#"AgentOutput {"agentId": "$1", "wait_up_to": 301}"#,
            1,
            "`wait_up_to` must be a number from 0 to 300",
        ),
        (r#"AgentOutput {"agentId": "$1", "block": false}"#, 1, "not_ready"),
    ];
    for (call, seconds, expected) in rows {
        let seen = sees_the_end(call, seconds).await;
        assert!(seen.contains(expected), "{call} after {seconds} s: {seen}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_tool_takes_is_strict() {
    let rows = [
        (r#"{"prompt": "p", "subagent_type": "worker"}"#, "`description` is missing"),
        (r#"{"description": "d", "subagent_type": "worker"}"#, "`prompt` is missing"),
        (r#"{"description": "d", "prompt": "", "subagent_type": "worker"}"#, "`prompt`"),
        (r#"{"description": 1, "prompt": "p", "subagent_type": "worker"}"#, "`description` must be a string"),
        (r#"{"description": "d", "prompt": 1, "subagent_type": "worker"}"#, "`prompt` must be a string"),
        (r#"{"description": "d", "prompt": "p", "subagent_type": 1}"#, "`subagent_type` must be a string"),
        (
            r#"{"description": "d", "prompt": "p", "subagent_type": "worker", "model": 1}"#,
            "`model` must be a string",
        ),
        (r#"{"description": "d", "prompt": "p", "resume": 1}"#, "`resume` must be a string"),
        (
            r#"{"description": "d", "prompt": "p", "subagent_type": "worker", "run_in_background": "yes"}"#,
            "`run_in_background` must be a boolean",
        ),
        (r#"{"description": "d", "prompt": "p"}"#, "Agent type 'general-purpose' not found"),
    ];
    for (input, expected) in rows {
        let script = format!(
            "when agent=worker\n  say \"never\"\nwhen turn=1\n  call Agent {input}\nwhen\n  say \"done\"\n"
        );
        let log = stage(&script).log("go").await;
        assert!(log.contains(expected) && !log.contains("never"), "{input}: {log}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_type_it_is_a_fork_where_the_settings_say_so() {
    let script = "when agent=fork\n  say \"forked\"\nwhen turn=1\n  call Agent {\"description\": \"d\", \"prompt\": \"p\", \"run_in_background\": false}\nwhen\n  say \"done\"\n";
    let mut stage = stage(script);
    stage.agent_settings.fork_by_default = true;
    let log = stage.log("go").await;
    assert!(log.contains("#1 end    completed \"forked\""), "{log}");
}

/// The tools of a request, by name.
fn offered(body: &[u8], name: &str) -> Option<Value> {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == name).cloned()
}

#[tokio::test(start_paused = true)]
async fn the_tool_is_described_from_the_definitions_at_hand() {
    let mut stage = stage("when\n  say \"done\"\n");
    let definition = |name: &str, only: Option<&[&str]>, except: &[&str], fork_context: bool| {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Arc::new(AgentDefinition {
            name: name.into(),
            description: format!("use it for\n{name}"),
            tools: ToolSelection { only: only.map(owned), except: owned(except) },
            fork_context,
            ..AgentDefinition::default()
        })
    };
    stage.agents = vec![
        definition("plain", None, &[], false),
        definition("plugin:reader", Some(&["Read", "Echo"]), &[], false),
        definition("careful", None, &["Edit"], true),
    ];
    stage.play("go").await;
    let tool = offered(&stage.requests()[0], "Agent").unwrap();
    expect![[r"
        Starts another agent on a task of its own. It works in its own context, with its own tools, and gives one report back.

        Agents at hand (`subagent_type`):
        - plain: use it for plain (tools: all)
        - plugin:reader: use it for plugin:reader (tools: Read, Echo)
        - careful: use it for careful (tools: all but Edit; sees the conversation)
        - fork: a copy of yourself with this whole conversation, for a side task that needs it (tools: yours; sees the conversation)

        - Several Agent calls in one message run at the same time; calls in separate messages run one after another. Start independent work together.
        - The agent knows nothing of this conversation unless the list says that it sees it: put everything into `prompt` – what to find out or do, what is known already, what to leave alone, and what the report must contain.
        - The report comes to you, not to the user. Tell the user what matters in it.
        - Say whether it should change files or only look.
        - `resume` with an agent's id goes on with that agent's own conversation; prefer it to starting over.
        - With `run_in_background` you go on at once and are told when it ends. Use it for work whose result you do not need next."]].assert_eq(tool["description"].as_str().unwrap());
    let properties = tool["input_schema"]["properties"].as_object().unwrap();
    let names: Vec<&str> = properties.keys().map(String::as_str).collect();
    let all = "description prompt subagent_type model resume max_turns effort isolation output_schema budget \
               run_in_background";
    assert_eq!(names.join(" "), all);
    assert_eq!(tool["input_schema"]["required"], json!(["description", "prompt"]));
}

const TWO_ALIKE: &str = r#"
when agent=fork
  say "forked"
when agent=seeing
  say "seen"
when turn=1
  call TodoWrite as toolu_know {"text": "a thing to know"}
when turn=2
  say "two at once"
  call Agent as toolu_one {"description": "one", "prompt": "the same task", "subagent_type": "KIND", "run_in_background": false}
  call Agent as toolu_two {"description": "two", "prompt": "the same task", "subagent_type": "KIND", "run_in_background": false}
when
  say "done"
"#;

/// The requests of those who see the conversation, as values.
fn of_children(stage: &Stage) -> Vec<Value> {
    let bodies = stage.requests();
    let entered = |body: &&Vec<u8>| memchr::memmem::find(body, b"You are now the agent").is_some();
    bodies.iter().filter(entered).map(|body| serde_json::from_slice(body).unwrap()).collect()
}

fn kinds(message: &Value) -> String {
    let kind = |block: &Value| match block["type"].as_str().unwrap() {
        "tool_use" => format!("tool_use {}", block["id"].as_str().unwrap()),
        "tool_result" => format!("tool_result {}", block["tool_use_id"].as_str().unwrap()),
        "text" => format!("text {:.24}", block["text"].as_str().unwrap().replace('\n', " ")),
        other => other.to_owned(),
    };
    let blocks: Vec<String> = message["content"].as_array().unwrap().iter().map(kind).collect();
    format!("{}: {}", message["role"].as_str().unwrap(), blocks.join(", "))
}

#[tokio::test(start_paused = true)]
async fn a_fork_enters_with_its_own_call_alone() {
    let stage = stage(&TWO_ALIKE.replace("KIND", "fork"));
    let played = stage.play("go").await;
    let mut requests = of_children(&stage);
    requests.sort_by_key(|request| request.to_string().contains("tool_result\",\"tool_use_id\":\"toolu_two"));
    let told: Vec<String> = requests
        .iter()
        .map(|request| {
            request["messages"].as_array().unwrap().iter().map(kinds).collect::<Vec<_>>().join("\n")
        })
        .collect();
    expect![[r"
        user: text <environment> Working di, text go
        assistant: tool_use toolu_know
        user: tool_result toolu_know
        assistant: tool_use toolu_one
        user: tool_result toolu_one, text the same task
        ====
        user: text <environment> Working di, text go
        assistant: tool_use toolu_know
        user: tool_result toolu_know
        assistant: tool_use toolu_two
        user: tool_result toolu_two, text the same task"]]
    .assert_eq(&told.join("\n====\n"));
    let entries: Vec<(&Value, String)> = played
        .events
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::CallEnded { output, .. } if envelope.agent.is_some() => {
                Some((output.structured.as_ref()?, output.content.text()))
            }
            _ => None,
        })
        .collect();
    for ((entry, text), description) in entries.iter().zip(["one", "two"]) {
        assert_eq!(
            **entry,
            json!({"status": "sub_agent_entered", "description": description, "message": text})
        );
    }
    assert_eq!(entries.len(), 2);
    expect!["You are now the agent that this call started. Everything above is your parent's conversation, for context only: it may show tools that you do not have and work that is not yours. Do only the task that follows, then give one report with what you found or did. Do not start agents of your own and do not address the user."].assert_eq(&entries[0].1);
}

#[tokio::test(start_paused = true)]
async fn a_forks_copy_of_the_delegating_message_has_ids_of_its_own() {
    let played = stage(&TWO_ALIKE.replace("KIND", "fork")).play("go").await;
    let mut lines = Vec::new();
    for envelope in &played.events {
        if let Event::Message { lines: own, .. } = &envelope.event {
            lines.extend(own.iter().map(ToString::to_string));
        }
    }
    let all = lines.len();
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len(), all);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_sees_the_conversation_has_its_own_prompt_and_tools() {
    let mut stage = stage(&TWO_ALIKE.replace("KIND", "seeing"));
    stage.agents = vec![Arc::new(AgentDefinition {
        name: "seeing".into(),
        prompt: "You see what was said.".into(),
        tools: ToolSelection { only: Some(vec!["Echo".into()]), except: Vec::new() },
        fork_context: true,
        ..AgentDefinition::default()
    })];
    stage.play("go").await;
    let requests = of_children(&stage);
    assert_eq!(requests.len(), 2);
    for request in requests {
        assert!(request["system"].to_string().contains("You see what was said."), "{request}");
        let tools = request["tools"].as_array().unwrap();
        assert_eq!(tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect::<Vec<_>>(), ["Echo"]);
        assert!(request["messages"].to_string().contains("a thing to know"), "{request}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_does_not_see_the_conversation_is_told_its_prompt_only() {
    let script = r#"
when agent=worker
  say "found it"
when turn=1
  call TodoWrite {"text": "a thing to know"}
when turn=2
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker"}
when
  say "done"
"#;
    let stage = stage(script);
    stage.play("a secret wish").await;
    let child = String::from_utf8(stage.requests()[2].clone()).unwrap();
    assert!(child.contains("look for it"), "{child}");
    assert!(!child.contains("a thing to know") && !child.contains("a secret wish"), "{child}");
}

#[tokio::test(start_paused = true)]
async fn how_far_an_agent_has_come_is_counted_and_its_last_five_steps_kept() {
    let script = r#"
when agent=worker turn=1..7
  call TodoWrite {"text": "step ${seen.turn}"}
  usage input=1000 output=7
when agent=worker
  say "found it"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker"}
when
  say "done"
"#;
    let played = stage(script).play("go").await;
    let told: Vec<&TaskProgress> = played
        .events
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::TaskProgressed { progress, .. } => Some(&**progress),
            _ => None,
        })
        .collect();
    assert_eq!(told.iter().map(|progress| progress.tools).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    let last = told.last().unwrap();
    assert_eq!(last.tokens, 1007);
    let steps: Vec<String> =
        last.activities.iter().map(|activity| format!("{} {}", activity.tool, activity.input)).collect();
    let expected: Vec<String> =
        (3..=7).map(|step| format!("TodoWrite {{\"text\":\"step {step}\"}}")).collect();
    assert_eq!(steps, expected, "the newest last");
}

#[tokio::test(start_paused = true)]
async fn a_parent_at_work_is_told_how_much_further_its_agents_have_come() {
    let script = r#"
when agent=worker turn=1
  delay 5s
  call TodoWrite {"text": "one"}
  usage input=1000 output=10
when agent=worker turn=2
  delay 10s
  call TodoWrite {"text": "two"}
  usage input=1500 output=10
when agent=worker
  delay 50s
  say "found it"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker", "run_in_background": true}
when turn=2..5
  delay 5s
  call TodoWrite {"text": "${seen.turn}"}
when
  say "done"
"#;
    let log = stage(script).log("go").await;
    let told: Vec<&str> = log.lines().filter(|line| line.starts_with("told ")).collect();
    expect![[r#"
        told   "Agent #1 (\"look\") is still at work: 1 more tool uses, 1010 more tokens. There is no need to read its file; a notification follows when it ends."
        told   "Agent #1 (\"look\") is still at work: 1 more tool uses, 500 more tokens. There is no need to read its file; a notification follows when it ends."
        told   #1 completed "found it""#]].assert_eq(&told.join("\n"));
}

const SHELL: &str = r#"
when turn=1
  call Bash {"command": "mkfifo gate"}
when turn=2
  call Bash {"command": "exec 3<>gate; read -t 9 line <&3; echo first; echo $line; exit 3", "description": "wait for a line", "run_in_background": true}
when turn=3 result=/ID: (\w+)/
  call TaskOutput {"task_id": "$1", "block": false}
when turn=4 result=/<task_id>(\w+)</
  call Bash {"command": "echo hi > gate; echo $1"}
when turn=5 result=/(b\w+)/
  call TaskOutput {"task_id": "$1"}
when
  say "done"
"#;

#[tokio::test]
async fn a_commands_task_is_shown_field_by_field() {
    let stage = shells(SHELL);
    let played = stage.play("go").await;
    let seen: Vec<Value> =
        results(&played.events, "TaskOutput").into_iter().map(|(_, value)| value).collect();
    expect![[r#"
        [
          {
            "retrieval_status": "not_ready",
            "task": {
              "task_id": "ID",
              "task_type": "local_bash",
              "status": "running",
              "description": "wait for a line",
              "output": "",
              "wasTruncated": false,
              "exitCode": null
            }
          },
          {
            "retrieval_status": "success",
            "task": {
              "task_id": "ID",
              "task_type": "local_bash",
              "status": "failed",
              "description": "wait for a line",
              "output": "first\nhi\n",
              "wasTruncated": false,
              "outcome": "failed",
              "exitCode": 3
            }
          }
        ]"#]]
    .assert_eq(&shown(&played, &json!(seen)));
    let launched = &results(&played.events, "Bash")[1].1;
    expect![[r#"
        {
          "stdout": "",
          "stderr": "",
          "interrupted": false,
          "isImage": false,
          "noOutputExpected": false,
          "backgroundTaskId": "ID"
        }"#]]
    .assert_eq(&shown(&played, launched));
    let record = played.events.iter().find_map(|envelope| match &envelope.event {
        Event::TaskOpened { record } => Some(record.clone()),
        _ => None,
    });
    let file = record.unwrap().output_file;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "first\nhi\n");
    let parts: Vec<&str> = file.as_str().rsplit('/').collect();
    assert!(parts[0].ends_with(".output") && parts[1] == "tasks", "{file}");
    assert_eq!(parts[2], played.session.to_string());
}

#[tokio::test]
async fn a_command_is_killed_by_its_old_name_too() {
    let script = r#"
when turn=1
  call Bash {"command": "sleep 9", "run_in_background": true}
when turn=2 result=/ID: (\w+)/
  call KillShell {"shell_id": "$1"}
when turn=3 result=/"task_id":"(\w+)"/
  call BashOutput {"bash_id": "$1"}
when turn=4 result=/<task_id>(\w+)</
  call KillShell {"shell_id": "$1"}
when
  say "done"
"#;
    let played = shells(script).play("go").await;
    let stopped: Vec<Value> =
        results(&played.events, "TaskStop").into_iter().map(|(_, value)| value).collect();
    expect![[r#"
        [
          {
            "message": "The task is stopped.",
            "task_id": "ID",
            "task_type": "local_bash",
            "command": "sleep 9"
          },
          {
            "message": "The task is stopped.",
            "task_id": "ID",
            "task_type": "local_bash",
            "command": "sleep 9"
          }
        ]"#]]
    .assert_eq(&shown(&played, &json!(stopped)));
    let (_, value) = results(&played.events, "TaskOutput").remove(0);
    assert_eq!((&value["task"]["status"], &value["task"]["exitCode"]), (&json!("killed"), &Value::Null));
    let log = decurion_testkit::stage::render(&played.events);
    assert!(!log.contains("\ntold "), "whoever stops a command knows that it ended:\n{log}");
}

/// What is answered to a person who sends a command that waits to the background, and what its call gives.
async fn sent_to_the_background(
    target: Option<&str>,
    background: BackgroundChoice,
) -> (Reply, Option<Value>) {
    let script = "when turn=1\n  call Bash as toolu_wait {\"text\": \"hang\"}\nwhen\n  say \"going on\"\n";
    let mut stage = stage(script);
    stage.tools.push(Arc::new(Plain::named("Bash")));
    stage.request.mode = Some(Mode::BypassPermissions);
    stage.agent_settings.background = background;
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
    let (mut answer, mut result) = (None, None);
    let hour = Duration::from_secs(3600);
    while let Ok(Some(envelope)) = tokio::time::timeout(hour, link.events.next()).await {
        match &envelope.event {
            Event::CallStarted { .. } => {
                send(&link, 2, Command::Background { target: target.map(Into::into) }).await;
            }
            Event::Replied { request, reply } if request.0 == 2 => answer = Some(reply.clone()),
            Event::CallEnded { output, .. } => result.clone_from(&output.structured),
            _ => {}
        }
        match &answer {
            Some(answer @ Reply::Done { .. }) if result.is_some() => return (answer.clone(), result),
            Some(answer @ Reply::Refused { .. }) => return (answer.clone(), result),
            _ => {}
        }
    }
    panic!("nothing more comes");
}

#[tokio::test(start_paused = true)]
async fn a_command_sent_to_the_background_by_a_person_says_so() {
    for target in [None, Some("toolu_wait")] {
        let (reply, result) = sent_to_the_background(target, BackgroundChoice::Model).await;
        assert!(matches!(reply, Reply::Done { value } if value == 1));
        let result = result.unwrap();
        let fields = ["code", "interrupted", "backgroundedByUser"].map(|field| result[field].clone());
        assert_eq!(fields, [json!(0), json!(false), json!(true)]);
        assert!(result["backgroundTaskId"].as_str().unwrap().starts_with('b'), "{result}");
    }
    for (target, background) in [(Some("other"), BackgroundChoice::Model), (None, BackgroundChoice::Never)] {
        let (reply, result) = sent_to_the_background(target, background).await;
        assert!(matches!(reply, Reply::Refused { .. }) && result.is_none(), "{reply:?} {result:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_output_that_is_too_long_is_cut_to_its_end_and_says_so() {
    let script = r#"
when agent=worker
  delay 1s
  say repeat=100 "0123456789"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker", "run_in_background": true}
when turn=2 result=/agentId: (\w+)/
  call TaskOutput {"task_id": "$1"}
when
  say "done"
"#;
    let mut stage = stage(script);
    stage.agent_settings.output_chars = 300;
    let played = stage.play("go").await;
    let (_, value) = results(&played.events, "TaskOutput").remove(0);
    let output = value["task"]["output"].as_str().unwrap();
    assert_eq!((output.chars().count(), &value["task"]["wasTruncated"]), (300, &json!(true)));
    assert!(masked(&played, output).starts_with("[Truncated. Full output: TASKS/ID.output]\n\n"), "{output}");
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_the_wait_for_a_task_and_not_the_task() {
    let script = r#"
when agent=worker
  delay 50s
  say "found it"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker", "run_in_background": true}
when turn=2 result=/agentId: (\w+)/
  call TaskOutput {"task_id": "$1", "timeout": 600000}
when
  say "done"
"#;
    let stage = stage(script);
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
    let mut ends = Vec::new();
    while ends.len() < 2 {
        let envelope = link.events.next().await.unwrap();
        match &envelope.event {
            Event::CallStarted { tool, .. } if tool == "TaskOutput" => {
                send(&link, 2, Command::Interrupt).await;
            }
            Event::RunEnded { outcome, .. } => ends.push((envelope.agent.is_some(), outcome.word())),
            _ => {}
        }
    }
    assert_eq!(ends, [(false, "killed"), (true, "completed")]);
}

#[tokio::test(start_paused = true)]
async fn who_goes_on_keeps_its_type_and_one_at_work_is_told() {
    let script = r#"
when agent=worker text="hurry"
  say "hurried"
when agent=worker turn=1
  delay 20s
  call TodoWrite {"text": "looking"}
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker", "run_in_background": true}
when turn=2 result=/agentId: (\w+)/
  call Agent {"description": "look", "prompt": "look", "subagent_type": "other", "resume": "$1"}
  call Agent {"description": "look", "prompt": "hurry", "subagent_type": "WORKER", "resume": "$1"}
when
  say "done"
"#;
    let log = stage(script).log("go").await;
    assert!(log.contains("is of type worker: leave `subagent_type` out, or give that."), "{log}");
    assert!(log.contains("mail   \"hurry\"") && log.contains("#1 end    completed \"hurried\""), "{log}");
    assert_eq!(log.matches("begin ").count(), 1, "it is not begun anew:\n{log}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_a_transcript_cannot_go_on() {
    let script = r#"
when agent=worker turn=1
  say "found it"
when agent=worker
  say "never"
when first="again" turn=1
  say "never here"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker"}
when text=/take (\w+)/
  call Agent {"description": "look", "prompt": "more", "resume": "$1"}
when
  say "done"
"#;
    let stage = stage(script);
    let played = stage.play("go").await;
    let agent = played.events.iter().find_map(|envelope| envelope.agent.clone()).unwrap();
    let output = played.events.iter().find_map(|envelope| match &envelope.event {
        Event::TaskOpened { record } => Some(record.output_file.clone()),
        _ => None,
    });
    let transcript = std::fs::canonicalize(output.unwrap()).unwrap();
    std::fs::remove_file(transcript).unwrap();
    let request =
        OpenSession { start: Start::Resume { id: played.session, at: None }, ..stage.request.clone() };
    let again = stage.play_all(request, &[&format!("take {agent}")]).await.unwrap();
    let log = decurion_testkit::stage::render(&again.events);
    assert!(
        log.contains("has no usable transcript and cannot be resumed") && !log.contains("never"),
        "{log}"
    );
    assert_eq!(again.outcome, Outcome::Completed { report: "done".into(), limit: None });
}
