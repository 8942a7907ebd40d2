//! What is decided for a child before its first request, what it sees, and what stays its own.

use std::sync::{Arc, Mutex};

use decurion_engine::Instructions;
use decurion_model::{BoxStream, Dialect, ModelError, ModelEvent, ModelProvider, ModelRequest};
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{
    AgentDefinition, AgentSource, Answer, Block, Command, Event, Intent, Limits, Mode, Outcome, Pattern,
    Place as _, RunSpec, ToolOutput, ToolSelection,
};
use decurion_testkit::stage::{Played, Stage, render, send};
use decurion_tools::{InputError, Surroundings, Tool, ToolContext, ToolSpec};
use expect_test::expect;
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::support::{stage, worker};

fn selection(only: &[&str]) -> ToolSelection {
    ToolSelection { only: Some(only.iter().map(|name| (*name).to_owned()).collect()), except: Vec::new() }
}

/// A root that starts one worker with these further inputs, and a worker that does this.
fn one(worker: &str, inputs: &str) -> Stage {
    stage(&format!(
        "{worker}when turn=1\n  call Agent {{\"description\": \"d\", \"prompt\": \"look\", \"subagent_type\": \"worker\"{inputs}}}\nwhen\n  say \"done\"\n"
    ))
}

/// What was decided for each run, in the order they began.
fn specs(played: &Played) -> Vec<RunSpec> {
    let spec = |event: &Event| match event {
        Event::RunStarted { spec } => Some((**spec).clone()),
        _ => None,
    };
    played.events.iter().filter_map(|envelope| spec(&envelope.event)).collect()
}

fn requests(stage: &Stage) -> Vec<Value> {
    stage.requests().iter().map(|body| serde_json::from_slice(body).unwrap()).collect()
}

/// The requests of agents whose prompt is this.
fn of_child(stage: &Stage, prompt: &str) -> Vec<Value> {
    requests(stage).into_iter().filter(|request| texts(request).iter().any(|text| text == prompt)).collect()
}

/// Every text in a request's messages that stands by itself, in order.
fn texts(request: &Value) -> Vec<String> {
    let text = |block: &Value| block["text"].as_str().map(str::to_owned);
    let of = |message: &Value| match &message["content"] {
        Value::String(text) => vec![text.clone()],
        blocks => blocks.as_array().into_iter().flatten().filter_map(text).collect(),
    };
    request["messages"].as_array().into_iter().flatten().flat_map(of).collect()
}

fn tools(request: &Value) -> Vec<String> {
    let tools = request["tools"].as_array().cloned().unwrap_or_default();
    tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect()
}

const NESTED: &str = r#"
when agent=worker first="outer" turn=1
  call Agent {"description": "inner", "prompt": "inner", "subagent_type": "worker"}
when agent=worker
  say "found"
when turn=1
  call Agent {"description": "outer", "prompt": "outer", "subagent_type": "worker"}
when
  say "done"
"#;

#[tokio::test(start_paused = true)]
async fn each_child_is_a_run_of_its_own_below_its_parents() {
    let mut stage = stage(NESTED);
    stage.agent_settings.max_depth = 2;
    stage.request.directories = vec!["/extra".into()];
    let played = stage.play("go").await;
    let specs = specs(&played);
    let [root, outer, inner] = &specs[..] else { panic!("{specs:?}") };
    assert_eq!([root.depth, outer.depth, inner.depth], [0, 1, 2]);
    assert_eq!([root.parent, outer.parent, inner.parent], [None, Some(root.run), Some(outer.run)]);
    assert!(root.run != outer.run && outer.run != inner.run, "each has an id of its own");
    let ids: Vec<&str> =
        specs.iter().filter_map(|spec| spec.agent.as_ref()).map(decurion_protocol::AgentId::as_str).collect();
    assert_ne!(ids[0], ids[1]);
    for id in ids {
        let digits = id.strip_prefix('a').unwrap_or_default();
        assert!(digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    }
    assert_eq!((outer.definition.name.as_str(), outer.definition.source), ("worker", AgentSource::Builtin));
    assert_eq!((&outer.model, &outer.pattern), (&"scripted".to_owned(), &Pattern::Named));
    assert!(outer.directories.contains(&"/extra".into()), "{:?}", outer.directories);
    assert_eq!(outer.cwd, root.cwd);
    let ended = played.events.iter().find_map(|envelope| match &envelope.event {
        Event::RunEnded { outcome, totals } if envelope.agent == outer.agent => {
            Some((outcome.word(), totals.duration_ms > 0, totals.context_tokens > 0, totals.tool_uses))
        }
        _ => None,
    });
    assert_eq!(ended, Some(("completed", true, true, 1)), "its end tells what it took");
}

#[tokio::test(start_paused = true)]
async fn a_child_is_told_its_surroundings_and_then_its_prompt() {
    let mut stage = one("when agent=worker\n  say \"found\"\n", "");
    stage.agents = vec![Arc::new(worker())];
    stage.instructions = vec![Instructions {
        path: "/w/AGENTS.md".into(),
        place: "/w/AGENTS.md".into(),
        imported_by: None,
        text: "be kind".into(),
    }];
    stage.play("go").await;
    let child = &of_child(&stage, "look")[0];
    let texts = texts(child);
    let [note, prompt] = &texts[..] else { panic!("{texts:?}") };
    assert!(note.contains(stage.request.cwd.as_str()) && note.contains("be kind"), "{note}");
    assert_eq!(prompt, "look");
    assert_eq!(child["system"][0]["text"], "You do a part of the work.");
    assert!(!child.to_string().contains("You are on a stage."), "{child}");
}

#[tokio::test(start_paused = true)]
async fn a_child_sees_its_parents_conversation_only_where_its_definition_says_so() {
    let script = r#"
when agent=worker
  say "found"
when turn=1
  call Echo {"text": "known by now"}
when turn=2
  call Agent {"description": "a", "prompt": "first part", "subagent_type": "worker", "model": "other"}
  call Agent {"description": "b", "prompt": "second part", "subagent_type": "worker"}
when
  say "done"
"#;
    for sees in [false, true] {
        let mut stage = stage(script);
        stage.models = vec!["other".into()];
        let tools_of = selection(&["Echo"]);
        stage.agents = vec![Arc::new(AgentDefinition { fork_context: sees, tools: tools_of, ..worker() })];
        let played = stage.play("go").await;
        let log = render(&played.events);
        for (prompt, other) in [("first part", "second part"), ("second part", "first part")] {
            let child = &of_child(&stage, prompt)[0];
            let body = child.to_string();
            assert_eq!(body.contains("known by now"), sees, "{body}");
            assert_eq!(child["system"][0]["text"], "You do a part of the work.");
            assert_eq!(tools(child), ["Echo"]);
            assert_eq!(texts(child).last().unwrap(), prompt, "its own task is the last it hears");
            assert_eq!(body.contains(r#""name":"Agent""#), sees, "the call that started it: {body}");
            assert!(!body.contains(other), "and no other: {body}");
        }
        let model = &of_child(&stage, "first part")[0]["model"];
        assert_eq!(model, if sees { "scripted" } else { "other" });
        assert_eq!(log.contains("`model` was ignored"), sees, "{log}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fork_has_all_of_its_parent_and_cannot_fork_again() {
    let mut stage = stage(
        r#"
when agent=fork turn=2
  call Echo {"text": "mine too"}
  call Agent {"description": "again", "prompt": "again", "subagent_type": "fork"}
when agent=fork
  say "done"
when turn=1
  call Agent {"description": "side", "prompt": "on the side", "subagent_type": "fork"}
when
  say "waiting"
"#,
    );
    stage.agent_settings.max_depth = 2;
    let played = stage.play("go").await;
    let log = render(&played.events);
    assert!(log.contains("begin  #1 local_agent Background"), "{log}");
    assert!(log.contains("#1 →      \"mine too\""), "a tool that no other background agent has: {log}");
    assert!(log.contains("A fork cannot fork again"), "{log}");
    let specs = specs(&played);
    let fork = specs.iter().find(|spec| spec.pattern == Pattern::Fork).unwrap();
    assert_eq!((fork.mode, fork.tools.clone()), (Mode::Bubble, specs[0].tools.clone()));
    let requests = requests(&stage);
    let child = &of_child(&stage, "on the side")[0];
    assert_eq!((&child["system"], &child["tools"]), (&requests[0]["system"], &requests[0]["tools"]));
}

#[tokio::test(start_paused = true)]
async fn without_a_type_it_is_the_general_one_or_a_fork() {
    let script = "when agent=fork\n  say \"f\"\nwhen agent=general-purpose\n  say \"g\"\nwhen agent=worker\n  say \"w\"\n\
        when turn=1\n  call Agent {\"description\": \"d\", \"prompt\": \"p\"TYPE}\nwhen\n  say \"done\"\n";
    for (kind, by_default, expected) in [
        ("", false, "general-purpose"),
        ("", true, "fork"),
        (", \"subagent_type\": \"worker\"", false, "worker"),
        (", \"subagent_type\": \"worker\"", true, "worker"),
    ] {
        let mut stage = stage(&script.replace("TYPE", kind));
        let general = AgentDefinition { name: "general-purpose".into(), ..worker() };
        stage.agents = vec![Arc::new(worker()), Arc::new(general)];
        if by_default {
            stage.agent_settings.fork_by_default = true;
        }
        let specs = specs(&stage.play("go").await);
        assert_eq!(specs[1].definition.name, expected, "{kind:?} {by_default}");
    }
}

/// Tells how many files its run has seen.
struct Known(ToolSpec);

impl Known {
    fn tool() -> Arc<dyn Tool> {
        Arc::new(Self(ToolSpec::new("Known", "How much is known", json!({"type": "object"}))))
    }
}

impl Tool for Known {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn intent(&self, _input: &Value, _around: &Surroundings) -> Result<Intent, InputError> {
        Ok(Intent::titled("known"))
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, _input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move { ToolOutput::text(format!("{} known", cx.seen.len())) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_begins_with_what_its_parent_has_read_and_keeps_what_it_reads() {
    let mut stage = stage(
        r#"
when agent=worker turn=1
  call Known {}
  call Echo {"text": "see /two"}
  call Known {}
when agent=worker
  say "found"
when turn=1
  call Echo {"text": "see /one"}
when turn=2
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker"}
when turn=3
  call Known {}
when
  say "done"
"#,
    );
    stage.tools.push(Known::tool());
    stage.rules.allow.push(decurion_protocol::Rule::parse("Known", Default::default()).unwrap());
    let log = stage.log("go").await;
    let known: Vec<&str> = log.lines().filter(|line| line.contains(" known\"")).map(str::trim).collect();
    assert_eq!(known, ["#1 →      \"1 known\"", "#1 →      \"2 known\"", "→      \"1 known\""], "{log}");
}

struct Tags(Arc<dyn ModelProvider>, Arc<Mutex<Vec<String>>>);

impl ModelProvider for Tags {
    fn dialect(&self) -> Dialect {
        self.0.dialect()
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let class = serde_json::to_value(request.tag.class).unwrap();
        self.1.lock().unwrap().push(format!("{} {}", request.tag.agent, class.as_str().unwrap()));
        self.0.stream(request)
    }
}

#[tokio::test(start_paused = true)]
async fn every_request_says_which_class_of_agent_asks() {
    for (source, class) in [(AgentSource::Builtin, "agent:builtin"), (AgentSource::User, "agent:custom")] {
        let mut stage = one("when agent=worker\n  say \"found\"\n", "");
        stage.agents = vec![Arc::new(AgentDefinition { source, ..worker() })];
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        stage.between = Some(Arc::new(move |inner| Arc::new(Tags(inner, Arc::clone(&kept)))));
        stage.play("go").await;
        assert_eq!(*seen.lock().unwrap(), ["main main", &format!("worker {class}"), "main main"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_for_one_call_is_for_that_call_alone() {
    // A fork's mode is `bubble`, the worker's its parent's.
    for kind in ["worker", "fork"] {
        let script = r#"
when agent=KIND match="poke it"
  call Poke {"text": "theirs"}
when agent=KIND
  say "found"
when turn=1
  call Poke {"text": "mine"}
when turn=2
  call Agent {"description": "d", "prompt": "poke it", "subagent_type": "KIND", "run_in_background": false}
when
  say "done"
"#;
        let mut stage = stage(&script.replace("KIND", kind));
        stage.rules.allow.clear();
        stage.request.answers = true;
        stage.answer = Some(Answer::Allow { input: None, rules: Vec::new(), everywhere: false });
        let played = stage.play("go").await;
        let questions: Vec<_> = played
            .events
            .iter()
            .filter_map(|envelope| match &envelope.event {
                Event::Asked { question } => Some(question.clone()),
                _ => None,
            })
            .collect();
        let [mine, theirs] = &questions[..] else { panic!("{kind}: {questions:?}") };
        let child = specs(&played)[1].agent.clone().unwrap();
        assert_eq!((&mine.agent, mine.path.join("/")), (&None, "main".to_owned()));
        assert_eq!((theirs.agent.as_ref(), theirs.path.join("/")), (Some(&child), format!("main/{child}")));
    }
}

#[tokio::test(start_paused = true)]
async fn what_bypassing_lets_through_is_on_record_with_its_reason() {
    let mut stage = one(
        "when agent=worker turn=1\n  call Poke {\"text\": \"x\"}\nwhen agent=worker\n  say \"found\"\n",
        "",
    );
    stage.rules.allow.clear();
    stage.request.mode = Some(Mode::BypassPermissions);
    let played = stage.play("go").await;
    let reason = played.events.iter().find_map(|envelope| match &envelope.event {
        Event::CallStarted { decision, .. } if envelope.agent.is_some() => Some(decision.reason.clone()),
        _ => None,
    });
    assert_eq!(reason.unwrap(), "mode bypassPermissions skips all checks but deny rules");
}

#[tokio::test(start_paused = true)]
async fn a_definitions_mode_is_its_agents_own() {
    let script = r#"
when agent=worker turn=1
  call Poke {"text": "theirs"}
when agent=worker
  say "found"
when turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker"}
when turn=2
  call Poke {"text": "mine"}
when
  say "done"
"#;
    let mut stage = stage(script);
    stage.rules.allow.clear();
    stage.agents = vec![Arc::new(AgentDefinition { mode: Some(Mode::DontAsk), ..worker() })];
    let played = stage.play("go").await;
    let log = render(&played.events);
    assert!(log.contains("#1 →      \"theirs\"") && log.contains("\nrefuse Poke"), "{log}");
    let reason = played.events.iter().find_map(|envelope| match &envelope.event {
        Event::CallStarted { decision, .. } if envelope.agent.is_some() => Some(decision.reason.clone()),
        _ => None,
    });
    assert_eq!(reason.unwrap(), "no rule allows this tool; mode dontAsk lets it go ahead");
    assert_eq!(specs(&played)[1].mode, Mode::DontAsk);
}

#[tokio::test(start_paused = true)]
async fn a_childs_long_conversation_is_shortened_too() {
    let mut stage = stage(
        r#"
when match="about to be shortened"
  say "SUMMARY: looked at one thing"
when agent=worker match="Go on with the work"
  say "still here"
when agent=worker
  call Echo {"text": "a long thing"}
  usage input=3000 output=100
when turn=1
  call Agent {"description": "d", "prompt": "look", "subagent_type": "worker"}
  usage input=10 output=5
when
  say "done"
"#,
    );
    stage.info.window = 5_000;
    let log = stage.log("go").await;
    assert!(log.contains("#1 compact auto") && !log.contains("\ncompact"), "{log}");
    let requests = requests(&stage);
    let last = requests.iter().rfind(|request| request.to_string().contains("SUMMARY")).unwrap();
    assert!(!last.to_string().contains("a long thing"), "{last}");
    assert!(log.contains("#1 end    completed \"still here\""), "{log}");
}

#[tokio::test(start_paused = true)]
async fn the_report_is_the_last_thing_said() {
    let worker = "when agent=worker turn=1\n  say \"thinking aloud\"\n  call Echo {\"text\": \"a\"}\nwhen agent=worker turn=2\n  ";
    let log = one(&format!("{worker}say \"at last\"\n"), "").log("go").await;
    assert!(log.contains("#1 end    completed \"at last\""), "{log}");
    // One whose last turn said nothing has said what it said before.
    let log = one(&format!("{worker}call Echo {{\"text\": \"b\"}}\n"), ", \"max_turns\": 2").log("go").await;
    assert!(log.contains(r#""report":"thinking aloud","limit":"turns""#), "{log}");
}

#[tokio::test(start_paused = true)]
async fn what_a_child_uses_its_parent_has_used() {
    let mut stage = one("when agent=worker\n  say \"found\"\n  usage input=17500 output=10\n", "");
    stage.request.limits = Limits { tokens: Some(20_000), ..Limits::default() };
    let outcome = stage.play("go").await.outcome;
    assert_eq!(outcome, Outcome::OutOfBudget { budget: "tokens".into(), partial: String::new() });
}

#[tokio::test(start_paused = true)]
async fn a_definitions_turns_end_its_agent() {
    let mut stage = one(
        "when agent=worker turn=1..4\n  call Echo {\"text\": \"${seen.turn}\"}\nwhen agent=worker\n  say \"found\"\n",
        "",
    );
    let limits = Limits { turns: Some(2), ..Limits::default() };
    stage.agents = vec![Arc::new(AgentDefinition { limits, ..worker() })];
    let log = stage.log("go").await;
    assert!(log.contains("\"limit\":\"turns\""), "{log}");
    assert_eq!(of_child(&stage, "look").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_model_that_cannot_be_had_starts_nothing_unless_it_is_an_alias() {
    let worker = "when agent=worker\n  say \"found\"\n";
    let mut stage = one(worker, ", \"model\": \"nope\"");
    stage.unknown_models = vec!["nope".into()];
    let log = stage.log("go").await;
    assert!(log.contains("no provider knows this model: nope") && !log.contains("begin"), "{log}");
    for alias in ["sonnet", "opus", "haiku"] {
        let mut stage = one(worker, &format!(", \"model\": \"{alias}\""));
        stage.unknown_models = vec![alias.to_owned()];
        let log = stage.log("go").await;
        assert!(log.contains("is not known to the provider in use; the agent runs on scripted"), "{log}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_calls_model_and_effort_win_over_the_definitions() {
    for (inputs, model, effort) in [
        ("", "mine", "low"),
        (", \"model\": \"other\"", "other", "low"),
        (", \"effort\": \"high\"", "mine", "high"),
        (", \"model\": \"inherit\"", "scripted", "low"),
    ] {
        let mut stage = one("when agent=worker\n  say \"found\"\n", inputs);
        stage.models = vec!["mine".into(), "other".into()];
        let (own, low) = (Some("mine".to_owned()), Some("low".to_owned()));
        stage.agents = vec![Arc::new(AgentDefinition { model: own, effort: low, ..worker() })];
        stage.play("go").await;
        let child = &of_child(&stage, "look")[0];
        assert_eq!((&child["model"], &child["output_config"]["effort"]), (&model.into(), &effort.into()));
        assert_eq!(requests(&stage)[0]["model"], "scripted", "the parent keeps its own");
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_of_a_child_has_no_more_tools_than_its_parent() {
    let mut stage =
        stage(&NESTED.replace(
            "\"subagent_type\": \"worker\"}\nwhen agent",
            "\"subagent_type\": \"wide\"}\nwhen agent",
        ));
    stage.agent_settings.max_depth = 2;
    let narrow = AgentDefinition { tools: selection(&["Agent", "Echo"]), ..worker() };
    let wide = AgentDefinition { name: "wide".into(), tools: selection(&["*"]), ..worker() };
    stage.agents = vec![Arc::new(narrow), Arc::new(wide)];
    stage.play("go").await;
    assert_eq!(tools(&of_child(&stage, "outer")[0]), ["Agent", "Echo"]);
    assert_eq!(tools(&of_child(&stage, "inner")[0]), ["Echo"]);
}

#[tokio::test(start_paused = true)]
async fn what_a_child_said_does_not_become_its_parents_conversation() {
    let stage = one(
        "when agent=worker turn=1\n  say \"between us\"\n  call Echo {\"text\": \"x\"}\nwhen agent=worker\n  say \"for you\"\n  call Echo {\"text\": \"hang\"}\nwhen turn=2\n  say \"back\"\n",
        "",
    );
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    let mut events = Vec::new();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
    loop {
        let envelope = link.events.next().await.unwrap();
        let is_second =
            matches!(&envelope.event, Event::Message { message, .. } if message.text() == "for you");
        if is_second {
            break;
        }
    }
    // An interrupted root reads its conversation again from the record, where the child's is too.
    send(&link, 2, Command::Interrupt).await;
    stage.listen(&mut link, &mut events).await;
    send(&link, 3, Command::Prompt { blocks: vec![Block::text("hello?")] }).await;
    let outcome = stage.listen(&mut link, &mut events).await;
    assert_eq!(outcome, Outcome::Completed { report: "back".into(), limit: None });
    let last = requests(&stage).pop().unwrap().to_string();
    assert!(last.contains("hello?") && !last.contains("between us"), "{last}");
    assert!(last.contains("<result>for you</result>"), "what it said last is told: {last}");
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_began_ends_with_it_however_it_ends() {
    let mut stage = stage(
        r#"
when agent=worker first="inner"
  stall
when agent=worker turn=1
  call Agent {"description": "inner", "prompt": "inner", "subagent_type": "worker", "run_in_background": true}
when agent=worker
  say "no"
  stop refusal
when turn=1
  call Agent {"description": "outer", "prompt": "outer", "subagent_type": "worker"}
when
  say "done"
"#,
    );
    stage.agent_settings.max_depth = 2;
    let log = stage.log("go").await;
    assert!(log.contains(r#"#2 end    {"outcome":"killed","by":"the end of its parent"}"#), "{log}");
}

#[tokio::test(start_paused = true)]
async fn how_far_a_child_is_is_shown_and_not_kept() {
    let stage = one(
        "when agent=worker turn=1\n  call Echo {\"text\": \"a\"}\nwhen agent=worker\n  say \"found\"\n",
        "",
    );
    let played = stage.play("go").await;
    let child = specs(&played)[1].agent.clone();
    let shown: Vec<&Event> =
        played.events.iter().filter(|one| one.agent == child).map(|one| &one.event).collect();
    assert!(shown.iter().any(|event| matches!(event, Event::TaskProgressed { .. })));
    assert!(shown.iter().any(|event| matches!(event, Event::Delta { .. })));
    let Some(decurion_store::Found::Ours(paths)) = stage.archive().find(played.session, &[]) else {
        panic!("no transcript");
    };
    let text = std::fs::read_to_string(paths.agent(&child.unwrap())).unwrap();
    let kinds: Vec<String> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|line| format!("{} {} {}", line["type"], line["isSidechain"], line["message"]["role"]))
        .collect();
    expect![[r#"
        "user" true "user"
        "user" true "user"
        "assistant" true "assistant"
        "user" true "user"
        "assistant" true "assistant""#]]
    .assert_eq(&kinds.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_call_with_effects_waits_for_those_before_it() {
    let log = stage(
        r#"
when agent=worker
  delay 5s
  say "found"
when turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker"}
  call Poke {"text": "after"}
when
  say "done"
"#,
    )
    .log("go")
    .await;
    let place = |text: &str| log.find(text).unwrap_or_else(|| panic!("{text}: {log}"));
    assert!(place("#1 end") < place("start  Poke"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn stopping_one_agent_stops_no_other() {
    let log = stage(
        r#"
when agent=worker first="slow"
  delay 30s
  say "found"
when agent=worker
  stall
when turn=1
  call Agent {"description": "a", "prompt": "slow", "subagent_type": "worker", "run_in_background": true}
when turn=2
  call Agent {"description": "b", "prompt": "quick", "subagent_type": "worker", "run_in_background": true}
when turn=3 result=/agentId: (\w+)/
  call TaskStop {"task_id": "$1"}
when
  say "done"
"#,
    )
    .log("go")
    .await;
    assert!(log.contains("#2 end    {\"outcome\":\"killed\""), "{log}");
    assert!(log.contains("#1 end    completed \"found\""), "{log}");
}
