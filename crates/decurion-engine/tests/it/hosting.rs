//! What a session asks of the program that leads it: hooks that are its functions, MCP servers that live in it. Answered,
//! refused, never answered, answered late or twice, and taken back.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use decurion_protocol::mcp::{McpHealth, McpSource};
use decurion_protocol::{
    Block, Command, Envelope, Event, HookDeclaration, HookEvent, HostAnswer, HostAsked, HostRequest,
    HostRequestId, Link, McpStatus, OnFailure, Place as _, Reply,
};
use decurion_testkit::hosted::{self, greeting, offers, serve};
use decurion_testkit::stage::{Stage, render, send};
use decurion_tools::mcp::Introduction;
use expect_test::expect;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support;

const ONE_CALL: &str = "when turn=1\n  call Poke {\"text\": \"x\"}\nwhen\n  say \"done\"\n";

fn stage(script: &str, hooks: &[(HookEvent, &str)]) -> Stage {
    let mut stage = support::stage(script);
    stage.hooks = hooks.iter().map(|(event, name)| HookDeclaration::callback(*event, *name)).collect();
    stage
}

#[allow(clippy::unnecessary_wraps)] // what a host that stays silent gives is none
fn given(value: Value) -> Option<HostAnswer> {
    Some(HostAnswer::Given { value })
}

/// A session and the program that leads it.
struct Led {
    link: Link,
    events: Vec<Arc<Envelope>>,
    sent: u64,
}

impl Led {
    async fn open(stage: &Stage) -> Self {
        let link = stage.engine().open(stage.request.clone()).await.unwrap();
        let mut led = Self { link, events: Vec::new(), sent: 0 };
        led.send(Command::Prompt { blocks: vec![Block::text("go")] }).await;
        led
    }

    async fn send(&mut self, command: Command) -> u64 {
        self.sent += 1;
        send(&self.link, self.sent, command).await;
        self.sent
    }

    async fn answer(&mut self, request: HostRequestId, answer: HostAnswer) -> u64 {
        self.send(Command::AnswerHost { request, answer }).await
    }

    async fn next(&mut self) -> Option<Arc<Envelope>> {
        let envelope = self.link.events.next().await?;
        self.events.push(Arc::clone(&envelope));
        Some(envelope)
    }

    /// The next thing that is asked, and was not before.
    async fn asked(&mut self) -> HostRequest {
        let before: HashSet<HostRequestId> = asked(&self.events).iter().map(|request| request.id).collect();
        loop {
            if let Event::HostAsked { request } = &self.next().await.unwrap().event
                && !before.contains(&request.id)
            {
                return (**request).clone();
            }
        }
    }

    async fn reply(&mut self, id: u64) -> Reply {
        loop {
            match &self.next().await.unwrap().event {
                Event::Replied { request, reply } if request.0 == id => return reply.clone(),
                _ => {}
            }
        }
    }

    async fn until(&mut self, fits: impl Fn(&Event) -> bool) {
        while !fits(&self.next().await.unwrap().event) {}
    }

    /// Finishes the session, answering what is asked.
    async fn finish(mut self, mut host: impl FnMut(&HostAsked) -> Option<HostAnswer>) -> Vec<Arc<Envelope>> {
        let finish = self.send(Command::Finish).await;
        let mut known = HashSet::new();
        while let Some(envelope) = self.next().await {
            match &envelope.event {
                Event::HostAsked { request } if known.insert(request.id) => {
                    if let Some(answer) = host(&request.asked) {
                        self.answer(request.id, answer).await;
                    }
                }
                Event::Replied { request, .. } if request.0 == finish => break,
                _ => {}
            }
        }
        self.events
    }
}

async fn play(stage: &Stage, host: impl FnMut(&HostAsked) -> Option<HostAnswer>) -> Vec<Arc<Envelope>> {
    Led::open(stage).await.finish(host).await
}

fn asked(events: &[Arc<Envelope>]) -> Vec<HostRequest> {
    let mut all: Vec<HostRequest> = Vec::new();
    for envelope in events {
        if let Event::HostAsked { request } = &envelope.event
            && !all.iter().any(|known| known.id == request.id)
        {
            all.push((**request).clone());
        }
    }
    all
}

fn released(events: &[Arc<Envelope>]) -> Vec<HostRequestId> {
    let one = |envelope: &Arc<Envelope>| match &envelope.event {
        Event::HostReleased { request } => Some(*request),
        _ => None,
    };
    events.iter().filter_map(one).collect()
}

/// What a log tells beyond what every play of the same script does.
fn told(events: &[Arc<Envelope>]) -> String {
    let usual = [
        "user   \"go\"",
        "model  calls Poke {\"text\":\"x\"}",
        "model  \"done\"",
        "end    completed \"done\"",
    ];
    let log = render(events);
    let lines: Vec<&str> = log.lines().filter(|line| !usual.contains(line)).collect();
    lines.join("\n    ")
}

#[tokio::test(start_paused = true)]
async fn a_function_of_the_host_answers_like_a_command() {
    let specific = |mut output: Value| {
        output["hookEventName"] = json!("PreToolUse");
        json!({"hookSpecificOutput": output})
    };
    let rows = [
        json!({}),
        Value::Null,
        json!({"async": true, "asyncTimeout": 5}),
        json!({"continue": true, "suppressOutput": true}),
        json!({"continue": false, "stopReason": "enough"}),
        json!({"systemMessage": "look here"}),
        json!({"decision": "block", "reason": "not today"}),
        json!({"decision": "approve"}),
        specific(json!({"permissionDecision": "allow", "updatedInput": {"text": "y"}})),
        specific(json!({"permissionDecision": "deny", "permissionDecisionReason": "never"})),
        specific(json!({"permissionDecision": "ask"})),
        specific(json!({"additionalContext": "mind the gap"})),
        json!("garbage"),
        json!([1]),
    ];
    let mut table = String::new();
    for row in rows {
        let stage = stage(ONE_CALL, &[(HookEvent::PreToolUse, "hook_0")]);
        let events = play(&stage, |_| given(row.clone())).await;
        table.push_str(&format!("{row}\n    {}\n", told(&events)));
        assert_eq!(released(&events), []);
    }
    expect![[r#"
        {}
            start  Poke (Poke)
            →      "x"
        null
            start  Poke (Poke)
            →      "x"
        {"async":true,"asyncTimeout":5}
            start  Poke (Poke)
            →      "x"
        {"continue":true,"suppressOutput":true}
            start  Poke (Poke)
            →      "x"
        {"continue":false,"stopReason":"enough"}
            ✗      "This call was not begun: a hook ended the run. enough"
            end    {"outcome":"killed","by":"a hook: enough"}
        {"systemMessage":"look here"}
            notice look here
            start  Poke (Poke)
            →      "x"
        {"decision":"block","reason":"not today"}
            refuse Poke: PreToolUse:Poke hook error: not today
            ✗      "Permission denied: PreToolUse:Poke hook error: not today"
        {"decision":"approve"}
            start  Poke (Poke)
            →      "x"
        {"hookSpecificOutput":{"permissionDecision":"allow","updatedInput":{"text":"y"},"hookEventName":"PreToolUse"}}
            start  Poke (Poke)
            →      "y"
        {"hookSpecificOutput":{"permissionDecision":"deny","permissionDecisionReason":"never","hookEventName":"PreToolUse"}}
            refuse Poke: PreToolUse:Poke hook error: never
            ✗      "Permission denied: PreToolUse:Poke hook error: never"
        {"hookSpecificOutput":{"permissionDecision":"ask","hookEventName":"PreToolUse"}}
            refuse Poke: a hook wants a person to decide; permission cannot be requested in this non-interactive session
            ✗      "Permission denied: a hook wants a person to decide; permission cannot be requested in this non-interactive session"
            end    {"outcome":"denied","reason":"Poke was not allowed: a hook wants a person to decide; permission cannot be requested in this non-interactive session","partial":"done"}
        {"hookSpecificOutput":{"additionalContext":"mind the gap","hookEventName":"PreToolUse"}}
            start  Poke (Poke)
            →      "x"
            note   "mind the gap" Note("hook")
        "garbage"
            notice PreToolUse hook [hook_0]: the host answered with something that is not an object
            refuse Poke: the hook [hook_0] gave no usable answer: the host answered with something that is not an object; permission cannot be requested in this non-interactive session
            ✗      "Permission denied: the hook [hook_0] gave no usable answer: the host answered with something that is not an object; permission cannot be requested in this non-interactive session"
            end    {"outcome":"denied","reason":"Poke was not allowed: the hook [hook_0] gave no usable answer: the host answered with something that is not an object; permission cannot be requested in this non-interact…
        [1]
            notice PreToolUse hook [hook_0]: the host answered with something that is not an object
            refuse Poke: the hook [hook_0] gave no usable answer: the host answered with something that is not an object; permission cannot be requested in this non-interactive session
            ✗      "Permission denied: the hook [hook_0] gave no usable answer: the host answered with something that is not an object; permission cannot be requested in this non-interactive session"
            end    {"outcome":"denied","reason":"Poke was not allowed: the hook [hook_0] gave no usable answer: the host answered with something that is not an object; permission cannot be requested in this non-interact…
    "#]].assert_eq(&table);
}

#[tokio::test(start_paused = true)]
async fn after_a_call_and_for_a_prompt_it_does_too() {
    let script = ONE_CALL;
    let rows = [
        (
            HookEvent::PostToolUse,
            json!({"hookSpecificOutput": {"hookEventName": "PostToolUse", "updatedToolOutput": "z"}}),
        ),
        (HookEvent::UserPromptSubmit, json!({"decision": "block", "reason": "no"})),
        (
            HookEvent::PermissionRequest,
            json!({"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": {"behavior": "allow"}}}),
        ),
    ];
    let mut table = String::new();
    for (event, row) in rows {
        let mut stage = stage(script, &[(event, "hook_0")]);
        if event == HookEvent::PermissionRequest {
            stage.rules.allow.clear();
        }
        let events = play(&stage, |_| given(row.clone())).await;
        table.push_str(&format!("{event}\n    {}\n", told(&events)));
    }
    expect![[r#"
        PostToolUse
            start  Poke (Poke)
            →      "z"
        UserPromptSubmit
            end    completed "The prompt was not let through by a hook: no"
        PermissionRequest
            start  Poke (no rule)
            →      "x"
    "#]]
    .assert_eq(&table);
}

/// What a hook changes with its answer holds from then on, and for nobody but the agent whose call it was about.
#[tokio::test(start_paused = true)]
async fn what_a_hook_changes_with_its_answer_is_no_more_than_the_asker_may_have() {
    const BY_ROOT: &str = "when turn=1..2\n  call Poke {\"text\": \"${seen.turn}\"}\nwhen\n  say \"done\"\n";
    const BY_AGENT: &str = r#"
when agent=worker turn=1..2
  call Poke {"text": "w${seen.turn}"}
when agent=worker
  say "worked"
when turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker"}
when turn=2
  call Poke {"text": "r"}
when
  say "done"
"#;
    let rule = |behavior: &str| json!({"type": "addRules", "rules": [{"toolName": "Poke"}], "behavior": behavior, "destination": "session"});
    let mode =
        |mode: &str, to: &str| json!([{"type": "setMode", "mode": mode, "destination": to}, rule("allow")]);
    let rows = [
        (BY_ROOT, json!([])),
        (BY_ROOT, json!([rule("allow")])),
        (BY_ROOT, json!([rule("deny")])),
        (BY_ROOT, json!([{"type": "addRules", "behavior": "deny", "destination": "moon"}])),
        (BY_ROOT, mode("acceptEdits", "localSettings")),
        (BY_AGENT, json!([rule("allow")])),
        (BY_AGENT, json!([rule("deny")])),
        (BY_AGENT, mode("bypassPermissions", "session")),
    ];
    let mut table = String::new();
    for (script, updates) in rows {
        let mut stage = stage(script, &[(HookEvent::PermissionRequest, "hook_0")]);
        stage.rules.allow.retain(|rule| rule.tool != "Poke");
        let decision = json!({"behavior": "allow", "updatedPermissions": updates});
        let answer =
            json!({"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": decision}});
        let events = play(&stage, |_| given(answer.clone())).await;
        let of = |input: &Value| input["tool_input"]["text"].as_str().unwrap_or_default().to_owned();
        let asked = asked(&events).into_iter().map(|request| match request.asked {
            HostAsked::Hook { input, .. } => of(&input),
            HostAsked::Mcp { .. } => String::new(),
        });
        table.push_str(&format!("{updates}\n    asked about {}\n", asked.collect::<Vec<_>>().join(", ")));
        for envelope in &events {
            match &envelope.event {
                Event::CallStarted { call: _, tool, .. } if tool == "Poke" => table.push_str("    runs\n"),
                Event::CallRefused { decision, .. } => {
                    table.push_str(&format!("    refused: {}\n", decision.reason));
                }
                Event::Notice { text, .. } => table.push_str(&format!("    {}\n", without_ids(text))),
                Event::ModeChanged { mode } => table.push_str(&format!("    mode {mode}\n")),
                _ => {}
            }
        }
    }
    expect![[r#"
        []
            asked about 1, 2
            runs
            runs
        [{"type":"addRules","rules":[{"toolName":"Poke"}],"behavior":"allow","destination":"session"}]
            asked about 1
            Permissions changed: Poke is now allowed
            runs
            runs
        [{"type":"addRules","rules":[{"toolName":"Poke"}],"behavior":"deny","destination":"session"}]
            asked about 1
            Permissions changed: Poke is now denied
            runs
            refused: denied by Poke
        [{"type":"addRules","behavior":"deny","destination":"moon"}]
            asked about 1, 2
            PermissionRequest hook [hook_0]: not obeyed: addRules: an unknown `destination`: moon; it allows the call with less rights than now, and which was not understood
            refused: the hook [hook_0] gave no usable answer: it allows the call with less rights than now, and which was not understood; permission cannot be requested in this non-interactive session
            PermissionRequest hook [hook_0]: not obeyed: addRules: an unknown `destination`: moon; it allows the call with less rights than now, and which was not understood
            refused: the hook [hook_0] gave no usable answer: it allows the call with less rights than now, and which was not understood; permission cannot be requested in this non-interactive session
        [{"type":"setMode","mode":"acceptEdits","destination":"localSettings"},{"type":"addRules","rules":[{"toolName":"Poke"}],"behavior":"allow","destination":"session"}]
            asked about 1
            Permissions changed: the mode is acceptEdits; Poke is now allowed
            mode acceptEdits
            a PermissionRequest hook: not obeyed: it holds for this session and is written into no settings: only what a person or a host answers is
            runs
            runs
        [{"type":"addRules","rules":[{"toolName":"Poke"}],"behavior":"allow","destination":"session"}]
            asked about w1, r
            Permissions changed: Poke is now allowed for AGENT
            runs
            runs
            Permissions changed: Poke is now allowed
            runs
        [{"type":"addRules","rules":[{"toolName":"Poke"}],"behavior":"deny","destination":"session"}]
            asked about w1
            Permissions changed: Poke is now denied
            runs
            refused: denied by Poke
            refused: denied by Poke
        [{"type":"setMode","mode":"bypassPermissions","destination":"session"},{"type":"addRules","rules":[{"toolName":"Poke"}],"behavior":"allow","destination":"session"}]
            asked about w1, r
            Permissions changed: Poke is now allowed for AGENT
            a PermissionRequest hook: not obeyed: what is answered for an agent's call without a person gives no rights to the whole session; a rule that allows something is the agent's
            runs
            runs
            Permissions changed: Poke is now allowed
            a PermissionRequest hook: not obeyed: the mode bypassPermissions is for sessions that were started for it; start this one with --allow-dangerously-skip-permissions (`allowDangerouslySkipPermissions`) to choose it later
            runs
    "#]].assert_eq(&table);
}

/// The text without the ids of agents.
fn without_ids(text: &str) -> String {
    let word = |word: &str| {
        let is_agent = word.len() == 17 && word.starts_with('a');
        if is_agent { "AGENT".to_owned() } else { word.to_owned() }
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[tokio::test(start_paused = true)]
async fn a_function_that_fails_or_never_answers_is_never_an_approval() {
    let mut table = String::new();
    for on_failure in [OnFailure::Default, OnFailure::Continue, OnFailure::Block] {
        for answer in [Some(HostAnswer::Failed { error: "boom".into() }), None] {
            let mut stage = stage(ONE_CALL, &[(HookEvent::PreToolUse, "hook_0")]);
            stage.hooks[0].on_failure = on_failure;
            stage.hooks[0].timeout = (on_failure == OnFailure::Block).then_some(Duration::from_secs(5));
            let began = Instant::now();
            let events = play(&stage, |_| answer.clone()).await;
            let took = began.elapsed().as_secs();
            let taken_back = released(&events).len();
            table.push_str(&format!(
                "{on_failure:?}, {took} s, {taken_back} taken back\n    {}\n",
                told(&events)
            ));
        }
    }
    expect![[r#"
        Default, 0 s, 0 taken back
            notice PreToolUse hook [hook_0]: the host could not do it: boom
            refuse Poke: the hook [hook_0] gave no usable answer: the host could not do it: boom; permission cannot be requested in this non-interactive session
            ✗      "Permission denied: the hook [hook_0] gave no usable answer: the host could not do it: boom; permission cannot be requested in this non-interactive session"
            end    {"outcome":"denied","reason":"Poke was not allowed: the hook [hook_0] gave no usable answer: the host could not do it: boom; permission cannot be requested in this non-interactive session","partial":"…
        Default, 60 s, 1 taken back
            notice PreToolUse hook [hook_0]: the host gave no answer within 60 s
            refuse Poke: the hook [hook_0] gave no usable answer: the host gave no answer within 60 s; permission cannot be requested in this non-interactive session
            ✗      "Permission denied: the hook [hook_0] gave no usable answer: the host gave no answer within 60 s; permission cannot be requested in this non-interactive session"
            end    {"outcome":"denied","reason":"Poke was not allowed: the hook [hook_0] gave no usable answer: the host gave no answer within 60 s; permission cannot be requested in this non-interactive session","parti…
        Continue, 0 s, 0 taken back
            notice PreToolUse hook [hook_0]: the host could not do it: boom
            start  Poke (Poke)
            →      "x"
        Continue, 60 s, 1 taken back
            notice PreToolUse hook [hook_0]: the host gave no answer within 60 s
            start  Poke (Poke)
            →      "x"
        Block, 0 s, 0 taken back
            notice PreToolUse hook [hook_0]: the host could not do it: boom
            refuse Poke: PreToolUse:Poke hook error: [hook_0]: it failed: the host could not do it: boom
            ✗      "Permission denied: PreToolUse:Poke hook error: [hook_0]: it failed: the host could not do it: boom"
        Block, 5 s, 1 taken back
            notice PreToolUse hook [hook_0]: the host gave no answer within 5 s
            refuse Poke: PreToolUse:Poke hook error: [hook_0]: it failed: the host gave no answer within 5 s
            ✗      "Permission denied: PreToolUse:Poke hook error: [hook_0]: it failed: the host gave no answer within 5 s"
    "#]].assert_eq(&table);
}

#[tokio::test(start_paused = true)]
async fn what_comes_late_or_twice_is_refused_and_changes_nothing() {
    let stage = stage(ONE_CALL, &[(HookEvent::PreToolUse, "hook_0"), (HookEvent::PostToolUse, "hook_1")]);
    let mut led = Led::open(&stage).await;
    let request = led.asked().await;
    let deny = HostAnswer::Given { value: json!({"decision": "block", "reason": "no"}) };
    let first = led.answer(request.id, HostAnswer::Given { value: json!({}) }).await;
    let second = led.answer(request.id, deny.clone()).await;
    assert_eq!(led.reply(first).await, Reply::Done { value: Value::Null });
    let Reply::Refused { reason } = led.reply(second).await else { panic!("taken twice") };
    assert!(reason.starts_with("no open request with this id"), "{reason}");
    let late = match asked(&led.events).get(1) {
        Some(request) => request.clone(),
        None => led.asked().await,
    };
    led.until(|event| *event == Event::HostReleased { request: late.id }).await;
    let id = led.answer(late.id, deny.clone()).await;
    assert!(matches!(led.reply(id).await, Reply::Refused { .. }));
    let id = led.answer(HostRequestId(uuid(7)), deny).await;
    assert!(matches!(led.reply(id).await, Reply::Refused { .. }));
    let log = render(&led.finish(|_| None).await);
    assert!(log.contains("→      \"x\"") && log.contains("end    completed \"done\""), "{log}");
    assert!(log.contains("PostToolUse hook [hook_1]: the host gave no answer within 60 s"), "{log}");
}

fn uuid(number: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(number)
}

#[tokio::test(start_paused = true)]
async fn what_was_not_answered_is_shown_again_under_the_same_id() {
    let stage = stage(ONE_CALL, &[(HookEvent::PreToolUse, "hook_0")]);
    let mut led = Led::open(&stage).await;
    let request = led.asked().await;
    let began = Instant::now();
    led.until(|event| matches!(event, Event::HostAsked { request: again } if **again == request)).await;
    assert_eq!(began.elapsed().as_secs(), 10);
    led.answer(request.id, HostAnswer::Given { value: json!({}) }).await;
    let events = led.finish(|_| None).await;
    assert!(render(&events).contains("→      \"x\""));
    assert_eq!(released(&events), []);
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_or_the_end_takes_back_what_is_out() {
    for event in
        [HookEvent::PreToolUse, HookEvent::UserPromptSubmit, HookEvent::Stop, HookEvent::PostToolBatch]
    {
        for command in [Command::Interrupt, Command::Close { reason: "enough".into() }] {
            let began = Instant::now();
            let stage = stage(ONE_CALL, &[(event, "hook_0")]);
            let mut led = Led::open(&stage).await;
            let request = led.asked().await;
            let id = led.send(command.clone()).await;
            led.until(|event| *event == Event::HostReleased { request: request.id }).await;
            if command == Command::Interrupt {
                led.until(|event| matches!(event, Event::RunEnded { .. })).await;
                led.finish(|_| None).await;
            } else {
                led.until(|event| matches!(event, Event::Replied { request, .. } if request.0 == id)).await;
            }
            assert!(began.elapsed() < Duration::from_secs(1), "{event} {command:?}: {:?}", began.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_hook_gets_its_answer_while_the_session_ends() {
    let stage = stage(ONE_CALL, &[(HookEvent::SessionEnd, "hook_0")]);
    let began = Instant::now();
    let events = play(&stage, |_| given(json!({"systemMessage": "goodbye"}))).await;
    assert!(render(&events).contains("notice goodbye"), "{}", render(&events));
    assert_eq!((asked(&events).len(), began.elapsed().as_secs()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_host_that_has_gone() {
    let hooks = [(HookEvent::PreToolUse, "hook_0"), (HookEvent::SessionEnd, "hook_1")];
    let stage = stage(ONE_CALL, &hooks);
    let began = Instant::now();
    let mut led = Led::open(&stage).await;
    led.asked().await;
    let Led { link, .. } = led;
    let session = link.session;
    let mut events = link.events;
    drop((link.commands, link.again));
    let reads = async { while events.next().await.is_some() {} };
    // The last event is followed by the end of the journal, whose readers wait for ever.
    drop(tokio::time::timeout(Duration::from_secs(30), reads).await);
    assert!(began.elapsed() < Duration::from_secs(31));
    let record: Vec<Arc<Envelope>> = stage.recorded(session).into_iter().map(Arc::new).collect();
    let log = render(&record);
    assert!(log.contains("killed") && !log.contains("SessionEnd hook"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_agents_ask_at_once() {
    let call = "  call Agent {\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"worker\"}\n";
    let script = format!(
        "when agent=worker turn=1\n  call Poke {{\"text\": \"x\"}}\nwhen agent=worker\n  say \"worked\"\nwhen turn=1\n{}when\n  say \"done\"\n",
        call.repeat(100)
    );
    let mut stage = stage(&script, &[(HookEvent::PreToolUse, "hook_0")]);
    stage.hooks[0].matcher = Some("Poke".into());
    stage.agent_settings.max_running = 100;
    let mut led = Led::open(&stage).await;
    let mut requests = Vec::new();
    while requests.len() < 100 {
        requests.push(led.asked().await);
    }
    let mut agents = HashSet::new();
    for (index, request) in requests.into_iter().enumerate().rev() {
        let HostAsked::Hook { input, call, .. } = &request.asked else { panic!("{request:?}") };
        assert_eq!(input["tool_use_id"], json!(call));
        agents.insert(input["agent_id"].as_str().unwrap().to_owned());
        let specific = json!({"hookEventName": "PreToolUse", "permissionDecision": "allow", "updatedInput": {"text": format!("n{index}")}});
        led.answer(request.id, HostAnswer::Given { value: json!({"hookSpecificOutput": specific}) }).await;
    }
    let log = render(&led.finish(|_| None).await);
    assert_eq!(agents.len(), 100);
    for index in 0..100 {
        assert_eq!(log.matches(&format!("→      \"n{index}\"")).count(), 1, "{index}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_event_reaches_a_function_with_the_fields_that_programs_read() {
    let script = r#"
when agent=worker
  say "worked"
when turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker"}
  call Poke {"text": "x"}
  call Poke {"text": "fail"}
  call WebFetch {"text": "x"}
when
  say "done"
"#;
    let hooks: Vec<(HookEvent, &str)> = HookEvent::ALL.into_iter().map(|event| (event, "hook_0")).collect();
    let mut stage = stage(script, &hooks);
    stage.tools.push(Arc::new(decurion_testkit::stage::Plain::named("WebFetch")));
    let mut led = Led::open(&stage).await;
    led.send(Command::Compact { instructions: Some("be brief".into()) }).await;
    let events = led.finish(|_| given(json!({}))).await;
    let mut lines: Vec<String> = Vec::new();
    for request in asked(&events) {
        let HostAsked::Hook { input, call, .. } = &request.asked else { panic!("{request:?}") };
        let mut keys: Vec<&str> = input.as_object().unwrap().keys().map(String::as_str).collect();
        keys.retain(|key| {
            !matches!(*key, "session_id" | "transcript_path" | "cwd" | "hook_event_name" | "depth")
        });
        for key in ["session_id", "transcript_path", "cwd"] {
            assert!(input[key].is_string(), "{key}: {input}");
        }
        let about = if call.is_some() { " (a call)" } else { "" };
        let line = format!("{}{about}: {}", input["hook_event_name"].as_str().unwrap(), keys.join(" "));
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    expect![["
        SessionStart: permission_mode source model
        UserPromptSubmit: permission_mode prompt
        PreToolUse (a call): permission_mode tool_name tool_input tool_use_id
        SubagentStart: permission_mode agent_id agent_type
        SubagentStop: permission_mode agent_id agent_type stop_hook_active last_assistant_message background_tasks session_crons agent_transcript_path
        PostToolUse (a call): permission_mode tool_name tool_input tool_use_id tool_response duration_ms
        PostToolUseFailure (a call): permission_mode tool_name tool_input tool_use_id error is_interrupt duration_ms
        PermissionRequest (a call): permission_mode tool_name tool_input tool_use_id permission_suggestions
        PermissionDenied (a call): permission_mode tool_name tool_input tool_use_id reason
        PostToolBatch: permission_mode tool_calls
        Stop: permission_mode stop_hook_active last_assistant_message background_tasks session_crons
        PreCompact: permission_mode trigger custom_instructions
        PostCompact: permission_mode trigger compact_summary
        SessionEnd: permission_mode reason
    "]].assert_eq(&(lines.join("\n") + "\n"));
}

fn with_calc(script: &str, introduction: Option<Introduction>) -> Stage {
    hosted::with_calc(support::stage(script), introduction)
}

fn leader(asked: &HostAsked) -> Option<HostAnswer> {
    let HostAsked::Mcp { server, message } = asked else { panic!("{asked:?}") };
    assert_eq!(server, "calc");
    given(serve(message))
}

fn messages(events: &[Arc<Envelope>]) -> String {
    let one = |request: HostRequest| match request.asked {
        HostAsked::Mcp { mut message, .. } => {
            if message["method"] == "initialize" {
                message["params"]["clientInfo"] = Value::Null;
            }
            if let Some(id) = message["params"]["_meta"].get_mut("claudecode/toolUseId") {
                assert!(id.as_str().unwrap().starts_with("toolu_"));
                *id = json!("the call");
            }
            format!("{message}\n")
        }
        HostAsked::Hook { .. } => String::new(),
    };
    asked(events).into_iter().map(one).collect()
}

fn status(events: &[Arc<Envelope>]) -> Vec<McpStatus> {
    let started = |envelope: &Arc<Envelope>| match &envelope.event {
        Event::RunStarted { spec } => Some(spec.servers.clone()),
        _ => None,
    };
    events.iter().find_map(started).unwrap()
}

const ONE_SUM: &str = "when turn=1\n  call mcp__calc__add {\"a\": 2, \"b\": 3}\nwhen turn=2\n  call mcp__calc__add {}\nwhen\n  say \"done\"\n";

#[tokio::test(start_paused = true)]
async fn a_server_in_the_host_is_greeted_offered_and_called() {
    let events = play(&with_calc(ONE_SUM, None), leader).await;
    expect![[r#"
        user   "go"
        model  calls mcp__calc__add {"a":2,"b":3}
        start  mcp__calc__add (mcp__calc)
        →      "5"
        model  calls mcp__calc__add {}
        start  mcp__calc__add (mcp__calc)
        ✗      "MCP server \"calc\": no numbers (code -32602)"
        model  "done"
        end    completed "done"
    "#]]
    .assert_eq(&render(&events));
    expect![[r#"
        {"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":false},"elicitation":{"form":{},"url":{}}},"clientInfo":null,"_meta":null}}
        {"jsonrpc":"2.0","method":"notifications/initialized","params":{"_meta":null}}
        {"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"progressToken":0}}}
        {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{"claudecode/toolUseId":"the call","progressToken":1},"name":"add","arguments":{"a":2,"b":3}}}
        {"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"_meta":{"claudecode/toolUseId":"the call","progressToken":2},"name":"add","arguments":{}}}
    "#]].assert_eq(&messages(&events));
    let [status] = &status(&events)[..] else { panic!() };
    assert_eq!((status.status, status.source), (McpHealth::Connected, McpSource::Sdk));
}

#[tokio::test(start_paused = true)]
async fn one_that_said_what_it_offers_is_not_asked_again() {
    let introduction = Introduction { initialize: greeting(), tools: Some(offers()) };
    let stage = with_calc(ONE_SUM, Some(introduction));
    let events = play(&stage, leader).await;
    assert!(render(&events).contains("→      \"5\""), "{}", render(&events));
    let asked = messages(&events);
    assert!(!asked.contains("initialize") && !asked.contains("tools/list"), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn one_that_is_connected_to_again_is_asked_what_it_offers_now() {
    let introduction = Introduction { initialize: greeting(), tools: Some(offers()) };
    let stage = with_calc("when\n  say \"done\"\n", Some(introduction));
    let mut led = Led::open(&stage).await;
    led.until(|event| matches!(event, Event::RunEnded { .. })).await;
    led.send(Command::ReconnectServer { server: "calc".into() }).await;
    for method in ["initialize", "notifications/initialized", "tools/list"] {
        let request = led.asked().await;
        let HostAsked::Mcp { message, .. } = &request.asked else { panic!() };
        assert_eq!(message["method"], method);
        led.answer(request.id, leader(&request.asked).unwrap()).await;
    }
    led.finish(leader).await;
}

#[tokio::test(start_paused = true)]
async fn calls_are_under_way_side_by_side_and_taken_back_when_nobody_wants_them() {
    let script = "when turn=1\n  call mcp__calc__add {\"a\": 1, \"b\": 1}\n  call mcp__calc__add {\"a\": 2, \"b\": 2}\nwhen\n  say \"done\"\n";
    for interrupt in [false, true] {
        let stage = with_calc(script, None);
        let mut led = Led::open(&stage).await;
        let mut calls = Vec::new();
        while calls.len() < 2 {
            let request = led.asked().await;
            let HostAsked::Mcp { message, .. } = &request.asked else { panic!() };
            if message["method"] == "tools/call" {
                calls.push(request);
            } else {
                led.answer(request.id, leader(&request.asked).unwrap()).await;
            }
        }
        if interrupt {
            led.send(Command::Interrupt).await;
            led.until(|event| matches!(event, Event::RunEnded { .. })).await;
            let events = led.finish(leader).await;
            let taken_back: HashSet<_> = released(&events).into_iter().collect();
            assert!(calls.iter().all(|call| taken_back.contains(&call.id)), "{taken_back:?}");
            assert_eq!(messages(&events).matches("notifications/cancelled").count(), 2);
        } else {
            for call in calls.iter().rev() {
                led.answer(call.id, leader(&call.asked).unwrap()).await;
            }
            let log = render(&led.finish(leader).await);
            assert!(log.contains("→      \"2\"") && log.contains("→      \"4\""), "{log}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_fails_lies_or_is_silent_fails_its_own_calls_only() {
    let mut table = String::new();
    let answers = [
        HostAnswer::Failed { error: "boom".into() },
        HostAnswer::Given { value: json!("garbage") },
        HostAnswer::Given { value: json!({"neither": 1}) },
        HostAnswer::Given {
            value: json!({"jsonrpc": "2.0", "id": 99, "result": {"content": [{"type": "text", "text": "another number"}]}}),
        },
    ];
    for answer in answers.into_iter().map(Some).chain([None]) {
        let script = "when turn=1\n  call mcp__calc__add {\"a\": 2, \"b\": 3}\nwhen\n  say \"done\"\n";
        let began = Instant::now();
        let events = play(&with_calc(script, None), |asked| match asked {
            HostAsked::Mcp { message, .. } if message["method"] == "tools/call" => answer.clone(),
            asked => leader(asked),
        })
        .await;
        let log = render(&events);
        let result = log.lines().find(|line| line.starts_with(['→', '✗'])).unwrap().to_owned();
        table.push_str(&format!("{answer:?}, {} s\n    {result}\n", began.elapsed().as_secs()));
        assert!(log.contains("end    completed \"done\""), "{log}");
    }
    expect![[r#"
        Some(Failed { error: "boom" }), 0 s
            ✗      "MCP server \"calc\": the host could not do it: boom; whether it did what was asked is not known (code -32000)"
        Some(Given { value: String("garbage") }), 0 s
            ✗      "MCP server \"calc\": the host's answer is not a message; whether it did what was asked is not known (code -32000)"
        Some(Given { value: Object {"neither": Number(1)} }), 0 s
            ✗      "MCP server \"calc\": the host's answer is neither a result nor an error; whether it did what was asked is not known (code -32000)"
        Some(Given { value: Object {"jsonrpc": String("2.0"), "id": Number(99), "result": Object {"content": Array [Object {"type": String("text"), "text": String("another number")}]}} }), 0 s
            →      "another number"
        None, 20 s
            ✗      "MCP server \"calc\": no answer within 20s; it was told to stop"
    "#]].assert_eq(&table);
}

#[tokio::test(start_paused = true)]
async fn a_first_prompt_waits_for_a_server_but_not_for_ever_and_nothing_else_waits() {
    for answer in [None, Some(HostAnswer::Failed { error: "no such server".into() }), given(json!(7))] {
        let stage = with_calc("when\n  say \"done\"\n", None);
        let began = Instant::now();
        let mut led = Led::open(&stage).await;
        // Everything else is answered meanwhile.
        let id = led.send(Command::Tasks).await;
        assert!(matches!(led.reply(id).await, Reply::Done { .. }));
        assert_eq!(began.elapsed().as_secs(), 0);
        let silent = answer.is_none();
        if let Some(answer) = answer {
            let request = asked(&led.events)[0].clone();
            led.answer(request.id, answer).await;
        }
        led.until(|event| matches!(event, Event::RunEnded { .. })).await;
        assert_eq!(began.elapsed().as_secs(), if silent { 5 } else { 0 });
        let events = led.finish(|_| None).await;
        let tries = messages(&events).matches("initialize").count();
        let [status] = &status(&events)[..] else { panic!() };
        let health = if silent { McpHealth::Pending } else { McpHealth::Failed };
        assert_eq!((tries, status.status), (1, health), "{status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_sessions_have_hosts_of_their_own() {
    let (one, other) = (with_calc(ONE_SUM, None), with_calc(ONE_SUM, None));
    let (mut first, mut second) = (Led::open(&one).await, Led::open(&other).await);
    let (theirs, ours) = (first.asked().await, second.asked().await);
    let id = second.answer(theirs.id, HostAnswer::Given { value: json!({}) }).await;
    assert!(matches!(second.reply(id).await, Reply::Refused { .. }));
    second.answer(ours.id, leader(&ours.asked).unwrap()).await;
    first.answer(theirs.id, leader(&theirs.asked).unwrap()).await;
    for led in [first, second] {
        let log = render(&led.finish(leader).await);
        assert!(log.contains("→      \"5\""), "{log}");
    }
}
