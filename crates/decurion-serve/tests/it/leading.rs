//! A host whose own functions are hooks and that has MCP servers of its own, over its input and output.

use decurion_protocol::{HookDeclaration, HookEvent, OnFailure};
use decurion_serve::{Format, StopSignal, StreamFacts};
use decurion_testkit::hosted::{self, serve};
use decurion_testkit::stage::Stage;
use expect_test::expect;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::hosts::{Talking, converse, converse_with};
use crate::playing::{answered_with, stage, values};

const ONE_CALL: &str = "when turn=1\n  call Poke {\"text\": \"x\"}\nwhen\n  say \"done\"\n";

const CALL_IN_AGENT: &str = r#"
when agent=worker turn=1
  call Poke {"text": "a"}
when agent=worker
  say "worked"
when turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker"}
when
  say "done"
"#;

fn hooked(script: &str, hooks: &[(HookEvent, &str)]) -> Stage {
    let mut stage = stage(script);
    stage.hooks = hooks.iter().map(|(event, name)| HookDeclaration::callback(*event, *name)).collect();
    stage
}

/// Waits for the request of this number, from 0, that the session makes.
pub async fn wanted(host: &Talking, number: usize) -> Value {
    loop {
        let text = host.out.text();
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let mut requests = values(whole).into_iter().filter(|line| line["type"] == "control_request");
        if let Some(request) = requests.nth(number) {
            return request;
        }
        tokio::task::yield_now().await;
    }
}

async fn fail(host: &mut Talking, request: &Value, error: &str) {
    let response = json!({"subtype": "error", "request_id": request["request_id"], "error": error});
    host.say(&json!({"type": "control_response", "response": response})).await;
}

#[tokio::test]
async fn a_hook_is_a_request_and_its_answer_counts() {
    let specific =
        json!({"hookEventName": "PreToolUse", "permissionDecision": "allow", "updatedInput": {"text": "y"}});
    let over =
        converse(hooked(ONE_CALL, &[(HookEvent::PreToolUse, "hook_7")]), async |host: &mut Talking| {
            host.prompt("go").await;
            let request = wanted(host, 0).await;
            let asked = &request["request"];
            assert_eq!(
                (&asked["subtype"], &asked["callback_id"]),
                (&json!("hook_callback"), &json!("hook_7"))
            );
            assert_eq!(asked["input"]["hook_event_name"], "PreToolUse");
            assert_eq!(asked["input"]["tool_input"], json!({"text": "x"}));
            assert!(asked["tool_use_id"].is_string());
            assert_eq!(asked["input"]["tool_use_id"], asked["tool_use_id"]);
            let id = request["request_id"].clone();
            host.answer(&id, json!({"hookSpecificOutput": specific})).await;
            host.result(0).await;
            host.answer(&id, json!({"decision": "block"})).await;
        })
        .await;
    assert!(over.out.contains("\"content\":\"y\""), "{}", over.out);
    let once = over.problems.matches("an answer to a request that is not open was ignored").count();
    assert_eq!((once, over.finish.outcome.exit_code()), (1, 0), "{}", over.problems);
}

#[tokio::test]
async fn a_hook_that_throws_is_no_approval() {
    let mut stage = hooked(ONE_CALL, &[(HookEvent::PreToolUse, "hook_0")]);
    stage.hooks[0].on_failure = OnFailure::Block;
    let over = converse(stage, async |host: &mut Talking| {
        host.prompt("go").await;
        let request = wanted(host, 0).await;
        fail(host, &request, "boom").await;
        host.result(0).await;
    })
    .await;
    assert!(over.out.contains("[hook_0]: it failed: the host could not do it: boom"), "{}", over.out);
}

#[tokio::test]
async fn an_interrupt_takes_a_hook_back() {
    converse(hooked(ONE_CALL, &[(HookEvent::PreToolUse, "hook_0")]), async |host: &mut Talking| {
        host.prompt("go").await;
        let id = wanted(host, 0).await["request_id"].clone();
        host.ask("i1", json!({"subtype": "interrupt"})).await;
        host.wait(|line| line["type"] == "control_cancel_request" && line["request_id"] == id).await;
        host.result(0).await;
    })
    .await;
}

/// What is shown of hooks, of the end of tasks and as results, a line each.
async fn hooks_shown(stage: Stage, host: impl AsyncFnOnce(&mut Talking)) -> String {
    let over = converse_with(stage, StreamFacts { hooks: true, ..StreamFacts::default() }, host).await;
    let line = |line: &Value| {
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        match text("subtype").as_str() {
            kind @ ("hook_started" | "hook_response") => {
                Some(format!("{kind} {} {}\n", text("hook_name"), text("outcome")))
            }
            "task_notification" => Some(format!("task {}\n", text("status"))),
            _ => (line["type"] == "result").then(|| "result\n".to_owned()),
        }
    };
    values(&over.out).iter().filter_map(line).collect()
}

/// However a hook ends, whoever was shown its beginning is shown its end, once.
#[tokio::test]
async fn a_hook_that_is_shown_to_begin_is_shown_to_end() {
    let one_hook = |script: &str| hooked(script, &[(HookEvent::PreToolUse, "hook_0")]);
    let interrupted = hooks_shown(one_hook(ONE_CALL), async |host: &mut Talking| {
        host.prompt("go").await;
        wanted(host, 0).await;
        host.ask("i1", json!({"subtype": "interrupt"})).await;
        host.result(0).await;
    });
    expect![["
        hook_started PreToolUse:Poke 
        hook_response PreToolUse:Poke cancelled
        result
    "]]
    .assert_eq(&interrupted.await);
    let stopped = hooks_shown(one_hook(CALL_IN_AGENT), async |host: &mut Talking| {
        host.prompt("go").await;
        let begins = wanted(host, 0).await;
        host.answer(&begins["request_id"], json!({})).await;
        let task = wanted(host, 1).await["request"]["input"]["agent_id"].clone();
        host.ask("i1", json!({"subtype": "stop_task", "task_id": task})).await;
        host.wait(|line| line["subtype"] == "task_notification").await;
    });
    expect![["
        hook_started PreToolUse:Agent 
        hook_response PreToolUse:Agent success
        hook_started PreToolUse:Poke 
        hook_response PreToolUse:Poke cancelled
        task stopped
        result
    "]]
    .assert_eq(&stopped.await);
}

/// A hook that nobody waits for may outlast the session.
#[tokio::test]
async fn a_hook_that_still_runs_ends_with_the_session() {
    let mut stage = hooked(ONE_CALL, &[(HookEvent::Notification, "hook_0")]);
    stage.rules.allow.clear();
    let shown = hooks_shown(stage, async |host: &mut Talking| {
        host.prompt("go").await;
        let question = host.wait(|line| line["request"]["subtype"] == "can_use_tool").await;
        host.wait(|line| line["subtype"] == "hook_started").await;
        host.answer(&question["request_id"], json!({"behavior": "allow"})).await;
        host.result(0).await;
    });
    expect![["
        hook_started Notification:permission_prompt 
        result
        hook_response Notification:permission_prompt cancelled
    "]]
    .assert_eq(&shown.await);
}

/// Nothing waits a minute for a host that is not there: not what is out, nor what comes after.
#[tokio::test]
async fn a_host_that_hangs_up_fails_what_is_out_and_what_comes() {
    let hooks = [
        (HookEvent::PreToolUse, "hook_0"),
        (HookEvent::PostToolUse, "hook_1"),
        (HookEvent::SessionEnd, "hook_2"),
    ];
    let mut stage = hooked(ONE_CALL, &hooks);
    stage.hooks[0].on_failure = OnFailure::Continue;
    let over = converse(stage, async |host: &mut Talking| {
        host.prompt("go").await;
        wanted(host, 0).await;
    })
    .await;
    assert!(over.out.contains("\"content\":\"x\""), "{}", over.out);
    let requests = values(&over.out).iter().filter(|line| line["type"] == "control_request").count();
    assert_eq!((requests, over.finish.outcome.exit_code()), (1, 0));
    for hook in ["PreToolUse hook [hook_0]", "PostToolUse hook [hook_1]"] {
        let said = format!("{hook}: host disconnected");
        assert!(over.out.contains(&said), "{hook}: {}", over.out);
    }
}

#[tokio::test]
async fn without_a_host_a_hook_of_one_fails_at_once() {
    let mut stage = hooked(ONE_CALL, &[(HookEvent::PreToolUse, "hook_0"), (HookEvent::SessionEnd, "hook_1")]);
    stage.hooks[0].on_failure = OnFailure::Block;
    let (_keep, mut signals) = mpsc::channel::<StopSignal>(1);
    let answered = answered_with(&stage, Format::StreamJson, &mut signals).await;
    let said = "PreToolUse hook [hook_0]: host disconnected";
    assert!(answered.out.contains(said), "{}", answered.out);
    // Whoever is not there does not want to hear of the end.
    assert!(!answered.out.contains("SessionEnd hook [hook_1]"), "{}", answered.out);
}

#[tokio::test]
async fn a_hook_reads_a_line_that_fits_whatever_the_prompt_was() {
    let stage = hooked("when\n  say \"done\"\n", &[(HookEvent::UserPromptSubmit, "hook_0")]);
    let over = converse(stage, async |host: &mut Talking| {
        host.prompt(&"x".repeat(2 << 20)).await;
        let request = wanted(host, 0).await;
        assert!(request.to_string().len() < 1 << 20);
        let prompt = request["request"]["input"]["prompt"].as_str().unwrap();
        assert!(prompt.contains("… [cut here by decurion: "), "{}", &prompt[prompt.len() - 200..]);
        let id = request["request_id"].clone();
        host.answer(&id, json!({})).await;
        host.result(0).await;
    })
    .await;
    assert_eq!(over.finish.outcome.exit_code(), 0);
}

fn with_calc(script: &str) -> Stage {
    hosted::with_calc(stage(script), None)
}

/// Answers the greeting and the list of tools, in the words of a program in use.
async fn introduce(host: &mut Talking) {
    for number in 0..3 {
        let request = wanted(host, number).await;
        let asked = &request["request"];
        assert_eq!((&asked["subtype"], &asked["server_name"]), (&json!("mcp_message"), &json!("calc")));
        host.answer(&request["request_id"], json!({"mcp_response": serve(&asked["message"])})).await;
    }
}

#[tokio::test]
async fn a_server_of_the_host_is_one_of_the_sessions() {
    let script = "when turn=1\n  call mcp__calc__add {\"a\": 1}\nwhen turn=2\n  call mcp__calc__add {\"a\": 2}\nwhen turn=3\n  call mcp__calc__add {\"a\": 3}\nwhen\n  say \"done\"\n";
    let over = converse(with_calc(script), async |host: &mut Talking| {
        host.prompt("go").await;
        introduce(host).await;
        let call = wanted(host, 3).await;
        let id = call["request"]["message"]["id"].clone();
        let result = json!({"content": [{"type": "text", "text": "five"}]});
        host.answer(
            &call["request_id"],
            json!({"mcp_response": {"jsonrpc": "2.0", "id": id, "result": result}}),
        )
        .await;
        let call = wanted(host, 4).await;
        fail(host, &call, "boom").await;
        let call = wanted(host, 5).await;
        host.answer(&call["request_id"], json!({"something": "else"})).await;
        host.result(0).await;
    })
    .await;
    let lines = values(&over.out);
    let init = lines.iter().find(|line| line["subtype"] == "init").unwrap();
    assert_eq!(
        init["mcp_servers"],
        json!([{"name": "calc", "status": "connected", "source": "sdk"}]),
        "{init}"
    );
    assert!(init["tools"].as_array().unwrap().contains(&json!("mcp__calc__add")), "{init}");
    let results: Vec<String> = lines
        .iter()
        .filter(|line| line["type"] == "user" && line["message"]["content"][0]["type"] == "tool_result")
        .map(|line| line["message"]["content"][0]["content"].to_string())
        .collect();
    expect![[r#"
        "five"
        "MCP server \"calc\": the host could not do it: boom; whether it did what was asked is not known (code -32000)"
        "MCP server \"calc\": the host could not do it: `mcp_response` is missing in its answer; whether it did what was asked is not known (code -32000)""#]].assert_eq(&results.join("\n"));
    assert_eq!(over.finish.outcome.exit_code(), 0);
}

#[tokio::test]
async fn a_host_that_hangs_up_before_its_servers_came_up_ends_all_the_same() {
    let over = converse(with_calc("when\n  say \"done\"\n"), async |host: &mut Talking| {
        host.prompt("go").await;
        wanted(host, 0).await;
    })
    .await;
    assert_eq!(over.finish.outcome.exit_code(), 0);
    assert!(over.out.contains("host disconnected"), "{}", over.out);
}
