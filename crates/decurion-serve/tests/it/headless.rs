//! A prompt and everything it begins, as it is printed: agents in the foreground and the background, nested,
//! stopped; and how it all ended.

use std::sync::Arc;

use decurion_protocol::{Block, Command, Envelope, Event, Link, Outcome, Reply, RequestId, RunId, SessionId};
use decurion_serve::{
    Finish, Format, Headless, LineWriterQueue, ProgressOutput, StopSignal, StreamFacts, StreamJson,
};
use expect_test::{Expect, expect};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::playing::{Kept, answered, answered_with, short, stage, values};

const FOREGROUND: &str = r#"
when agent=worker turn=1
  say "looking"
  call Echo {"text": "here"}
when agent=worker turn=2
  say "found it"
when turn=1
  say "launching"
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker", "run_in_background": false}
when turn=2
  say "done"
"#;

const BACKGROUND: &str = r#"
when agent=worker turn=1
  delay 5s
  call Echo {"text": "here"}
when agent=worker turn=2
  say "found it"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker", "run_in_background": true}
when turn=2
  say "started"
when turn=3
  say "it is found"
"#;

const NESTED: &str = r#"
when agent=worker first="deep down" turn=1
  call Echo {"text": "a"}
  call Poke {"text": "b"}
when agent=worker first="deep down"
  say "deep report"
when agent=worker turn=1
  call Agent {"description": "inner", "prompt": "deep down", "subagent_type": "worker"}
when agent=worker
  say "outer report"
when turn=1
  call Agent {"description": "outer", "prompt": "delegate", "subagent_type": "worker"}
when turn=2
  say "nest done"
"#;

async fn check(script: &str, expected: &Expect) {
    let answered = answered(&stage(script), Format::StreamJson).await;
    expected.assert_eq(&short(&answered.out));
    assert_eq!(answered.finish.outcome.exit_code(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_foreground_agent_is_shown_between_its_call_and_its_report() {
    check(FOREGROUND, &expect![[r##"
        init agents=["worker"]
        status {"status":"requesting"}
        assistant "launching"
        assistant calls Agent "call1" {"description":"look","prompt":"look for it","subagent_type":"worker","run_in_background":false}
        task_started {"task_id":"#1","run_id":"run1","tool_use_id":"call1","description":"look","is_backgrounded":false,"task_type":"local_agent","subagent_type":"worker","spawn_depth":1,"prompt":"look for it"}
        user [#1 worker "look" of call1] "look for it"
        assistant [#1 worker "look" of call1] calls Echo "call2" {"text":"here"}
        task_progress {"task_id":"#1","run_id":"run1","tool_use_id":"call1","description":"Echo","subagent_type":"worker","usage":{"total_tokens":1187,"tool_uses":1,"duration_ms":16},"last_tool_name":"Echo"}
        user [#1 worker "look" of call1] → "call2" "here"
        task_updated {"task_id":"#1","run_id":"run1","patch":{"status":"completed","end_time":0}}
        task_notification {"task_id":"#1","run_id":"run1","tool_use_id":"call1","status":"completed","output_file":"#1.output","summary":"found it","usage":{"total_tokens":1251,"tool_uses":1,"duration_ms":32}}
        user → "call1" [{"type":"text","text":"found it"},{"type":"text","text":"ag
        status {"status":"requesting"}
        assistant "done"
        result success "done" origin=null turns=2 of 4927 input tokens 4927 are new, cost true stats {"spawned":1,"requested":{"background":0,"foreground":1,"unset":0},"started_in_background":0,"max_depth":1,"spawned_by_subagents":0,"completed":1,"failed":0,"killed":{"parent":0,"user":0,"system":0},"refused":{"depth_limit":0,"concurrency_limit":0,"budget":0},"by_type":{"worker":1}}
    "##]]).await;
}

#[tokio::test(start_paused = true)]
async fn a_background_agent_is_told_of_and_the_results_wait_for_it() {
    check(BACKGROUND, &expect![[r##"
        init agents=["worker"]
        status {"status":"requesting"}
        assistant calls Agent "call1" {"description":"look","prompt":"look for it","subagent_type":"worker","run_in_background":true}
        background_tasks_changed {"tasks":[{"task_id":"#1","run_id":"run1","task_type":"local_agent","description":"look","subagent_type":"worker"}]}
        task_started {"task_id":"#1","run_id":"run1","tool_use_id":"call1","description":"look","is_backgrounded":true,"task_type":"local_agent","subagent_type":"worker","spawn_depth":1,"prompt":"look for it"}
        user [#1 worker "look" of call1] "look for it"
        user → "call1" [{"type":"text","text":"The agent works in the background no
        status {"status":"requesting"}
        assistant "started"
        assistant [#1 worker "look" of call1] calls Echo "call2" {"text":"here"}
        task_progress {"task_id":"#1","run_id":"run1","tool_use_id":"call1","description":"Echo","subagent_type":"worker","usage":{"total_tokens":1078,"tool_uses":1,"duration_ms":28},"last_tool_name":"Echo"}
        user [#1 worker "look" of call1] → "call2" "<tool_use_error>Error: No such tool available: Echo. The to
        assistant [#1 worker "look" of call1] "found it"
        task_updated {"task_id":"#1","run_id":"run1","patch":{"status":"completed","end_time":0}}
        task_notification {"task_id":"#1","run_id":"run1","tool_use_id":"call1","status":"completed","output_file":"#1.output","summary":"found it","usage":{"total_tokens":1170,"tool_uses":1,"duration_ms":41}}
        background_tasks_changed {"tasks":[]}
        init agents=["worker"]
        status {"status":"requesting"}
        assistant "it is found"
        result success "started" origin=null turns=2 of 2575 input tokens 2575 are new, cost true stats {"spawned":1,"requested":{"background":1,"foreground":0,"unset":0},"started_in_background":1,"max_depth":1,"spawned_by_subagents":0,"completed":0,"failed":0,"killed":{"parent":0,"user":0,"system":0},"refused":{"depth_limit":0,"concurrency_limit":0,"budget":0},"by_type":{"worker":1}}
        result success "it is found" origin={"kind":"task-notification","runId":"run1"} turns=1 of 6370 input tokens 3795 are new, cost true stats {"spawned":1,"requested":{"background":1,"foreground":0,"unset":0},"started_in_background":1,"max_depth":1,"spawned_by_subagents":0,"completed":1,"failed":0,"killed":{"parent":0,"user":0,"system":0},"refused":{"depth_limit":0,"concurrency_limit":0,"budget":0},"by_type":{"worker":1}}
    "##]]).await;
}

#[tokio::test(start_paused = true)]
async fn agents_of_every_depth_are_shown() {
    check(NESTED, &expect![[r##"
        init agents=["worker"]
        status {"status":"requesting"}
        assistant calls Agent "call1" {"description":"outer","prompt":"delegate","subagent_type":"worker"}
        task_started {"task_id":"#1","run_id":"run1","tool_use_id":"call1","description":"outer","is_backgrounded":false,"task_type":"local_agent","subagent_type":"worker","spawn_depth":1,"prompt":"delegate"}
        user [#1 worker "outer" of call1] "delegate"
        assistant [#1 worker "outer" of call1] calls Agent "call2" {"description":"inner","prompt":"deep down","subagent_type":"worker"}
        task_progress {"task_id":"#1","run_id":"run1","tool_use_id":"call1","description":"inner","subagent_type":"worker","usage":{"total_tokens":1198,"tool_uses":1,"duration_ms":13},"last_tool_name":"Agent"}
        task_started {"task_id":"#2","run_id":"run2","tool_use_id":"call2","description":"inner","is_backgrounded":false,"task_type":"local_agent","subagent_type":"worker","spawn_depth":2,"prompt":"deep down","parent_task_id":"#1"}
        user [#2 worker "inner" of call2] "deep down"
        assistant [#2 worker "inner" of call2] calls Echo "call3" {"text":"a"}
        assistant [#2 worker "inner" of call2] calls Poke "call4" {"text":"b"}
        task_progress {"task_id":"#2","run_id":"run2","tool_use_id":"call2","description":"Echo","subagent_type":"worker","usage":{"total_tokens":559,"tool_uses":1,"duration_ms":16},"last_tool_name":"Echo"}
        task_progress {"task_id":"#2","run_id":"run2","tool_use_id":"call2","description":"Poke","subagent_type":"worker","usage":{"total_tokens":559,"tool_uses":2,"duration_ms":16},"last_tool_name":"Poke"}
        user [#2 worker "inner" of call2] → "call3" "a"
        user [#2 worker "inner" of call2] → "call4" "b"
        task_updated {"task_id":"#2","run_id":"run2","patch":{"status":"completed","end_time":0}}
        task_notification {"task_id":"#2","run_id":"run2","tool_use_id":"call2","status":"completed","output_file":"#2.output","summary":"deep report","usage":{"total_tokens":658,"tool_uses":2,"duration_ms":36}}
        user [#1 worker "outer" of call1] → "call2" [{"type":"text","text":"deep report"},{"type":"text","text":
        task_updated {"task_id":"#1","run_id":"run1","patch":{"status":"completed","end_time":0}}
        task_notification {"task_id":"#1","run_id":"run1","tool_use_id":"call1","status":"completed","output_file":"#1.output","summary":"outer report","usage":{"total_tokens":1313,"tool_uses":1,"duration_ms":76}}
        user → "call1" [{"type":"text","text":"outer report"},{"type":"text","text"
        status {"status":"requesting"}
        assistant "nest done"
        result success "nest done" origin=null turns=2 of 6178 input tokens 6178 are new, cost true stats {"spawned":2,"requested":{"background":0,"foreground":0,"unset":2},"started_in_background":0,"max_depth":2,"spawned_by_subagents":1,"completed":2,"failed":0,"killed":{"parent":0,"user":0,"system":0},"refused":{"depth_limit":0,"concurrency_limit":0,"budget":0},"by_type":{"worker":2}}
    "##]]).await;
}

#[tokio::test(start_paused = true)]
async fn a_fork_does_not_repeat_how_it_was_begun() {
    let script = r#"
when agent=fork
  say "forked report"
when turn=1
  call Agent {"description": "side", "prompt": "on the side", "subagent_type": "fork", "run_in_background": false}
when turn=2
  say "done"
"#;
    check(script, &expect![[r##"
        init agents=["worker"]
        status {"status":"requesting"}
        assistant calls Agent "call1" {"description":"side","prompt":"on the side","subagent_type":"fork","run_in_background":false}
        task_started {"task_id":"#1","run_id":"run1","tool_use_id":"call1","description":"side","is_backgrounded":false,"task_type":"local_agent","subagent_type":"fork","spawn_depth":1,"prompt":"on the side"}
        user [#1 fork "side" of call1] "on the side"
        task_updated {"task_id":"#1","run_id":"run1","patch":{"status":"completed","end_time":0}}
        task_notification {"task_id":"#1","run_id":"run1","tool_use_id":"call1","status":"completed","output_file":"#1.output","summary":"forked report","usage":{"total_tokens":1349,"tool_uses":0,"duration_ms":12}}
        user → "call1" [{"type":"text","text":"forked report"},{"type":"text","text
        status {"status":"requesting"}
        assistant "done"
        result success "done" origin=null turns=2 of 3835 input tokens 3835 are new, cost true stats {"spawned":1,"requested":{"background":0,"foreground":1,"unset":0},"started_in_background":0,"max_depth":1,"spawned_by_subagents":0,"completed":1,"failed":0,"killed":{"parent":0,"user":0,"system":0},"refused":{"depth_limit":0,"concurrency_limit":0,"budget":0},"by_type":{"fork":1}}
    "##]]).await;
}

#[tokio::test(start_paused = true)]
async fn one_object_and_plain_text_have_every_answer() {
    let text = answered(&stage(BACKGROUND), Format::Text).await;
    assert_eq!(text.out, "started\n\nit is found\n");
    let json = answered(&stage(BACKGROUND), Format::Json).await;
    assert_eq!(values(&json.out)[0]["results"], json!(["started", "it is found"]));
    expect![[r#"
        result success "it is found" origin={"kind":"task-notification","runId":"run1"} turns=1 of 6370 input tokens 6370 are new, cost true stats {"spawned":1,"requested":{"background":1,"foreground":0,"unset":0},"started_in_background":1,"max_depth":1,"spawned_by_subagents":0,"completed":1,"failed":0,"killed":{"parent":0,"user":0,"system":0},"refused":{"depth_limit":0,"concurrency_limit":0,"budget":0},"by_type":{"worker":1}}
    "#]].assert_eq(&short(&json.out));
}

#[tokio::test(start_paused = true)]
async fn progress_is_moved_in_by_depth() {
    let nested = answered(&stage(NESTED), Format::Text).await;
    expect![[r#"
        ● worker: outer
          ▶ worker: outer
          ● worker: worker: inner
            ▶ worker: inner
            ● worker: Echo "a"
            ● worker: Poke "b"
            ■ worker: inner completed (2 tool uses, 658 tokens)
          ■ worker: outer completed (1 tool use, 1313 tokens)
          │ worker: outer:
          │ outer report
    "#]]
    .assert_eq(&nested.progress);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_does_not_follow_its_call_is_named() {
    let script = r#"
when agent=worker first=/slow/
  delay 5s
  say "slow report"
when agent=worker
  say "quick report"
when turn=1
  call Agent {"description": "slow", "prompt": "slow", "subagent_type": "worker"}
  call Agent {"description": "quick", "prompt": "quick", "subagent_type": "worker"}
  call Agent {"description": "behind", "prompt": "quick", "subagent_type": "worker", "run_in_background": true}
when
  say "done"
"#;
    let told = answered(&stage(script), Format::Text).await.progress;
    for (report, title) in [("slow report", "worker: slow:"), ("quick report", "worker: quick:")] {
        let above = told.lines().zip(told.lines().skip(1)).find(|(_, line)| line.contains(report));
        assert!(above.is_some_and(|(above, _)| above.contains(title)), "{report}: {told}");
    }
    assert!(told.contains("│ running in the background") && !told.contains("agentId"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_while_only_agents_work_ends_them() {
    let stage = stage(&BACKGROUND.replace("5s", "500s"));
    let (signal, mut signals) = mpsc::channel(1);
    let work = answered_with(&stage, Format::StreamJson, &mut signals);
    let (answered, ()) = tokio::join!(work, async {
        // The root has ended long before, and its agent waits.
        tokio::time::sleep(std::time::Duration::from_secs(100)).await;
        signal.send(StopSignal::Interrupt).await.unwrap();
    });
    assert_eq!(answered.finish.signal, Some(StopSignal::Interrupt));
    let kinds: Vec<String> = values(&answered.out)
        .iter()
        .filter(|line| line["type"] == "result" || line["subtype"] == "task_notification")
        .map(|line| format!("{} {}", line["type"], line["status"]))
        .collect();
    assert_eq!(kinds, ["\"system\" \"stopped\"", "\"result\" null"]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_was_told_is_the_roots_to_deal_with() {
    let script = r#"
when agent=worker
  delay 5s
  fail 400 "no"
when turn=1
  call Agent {"description": "look", "prompt": "look", "subagent_type": "worker", "run_in_background": true}
when turn=2
  say "started"
when turn=3
  say "too bad"
"#;
    let told = answered(&stage(script), Format::Text).await;
    assert_eq!((told.out.as_str(), told.finish.outcome.exit_code()), ("started\n\ntoo bad\n", 0));
}

/// How a session that says this at its end is told of.
async fn ended_with(root: &[Outcome], unheard: Value) -> Finish {
    let session = SessionId(Default::default());
    let (commands, _inbox) = decurion_protocol::commands::channel();
    let event = |event| {
        let run = RunId(Default::default());
        Arc::new(Envelope { seq: 1, at: Default::default(), agent: None, run, event })
    };
    let value = json!({"unheard": unheard});
    let runs: Vec<_> = root
        .iter()
        .map(|outcome| event(Event::RunEnded { outcome: outcome.clone(), totals: Box::default() }))
        .collect();
    let last = event(Event::Replied { request: RequestId(2), reply: Reply::Done { value } });
    let events = Box::pin(stream::iter(runs.into_iter().chain([last])).chain(stream::pending()));
    let headless = Headless {
        link: Link { session, commands, events, again: None },
        format: Format::Text,
        stream: StreamJson::new(session, StreamFacts::default()),
        out: LineWriterQueue::to(Kept::default()).unwrap(),
        progress: ProgressOutput::Off,
    };
    let work = Command::Prompt { blocks: vec![Block::text("go")] };
    headless.answer(work, &mut mpsc::channel(1).1).await.unwrap()
}

#[tokio::test]
async fn what_nobody_was_told_of_decides_the_exit_code_where_it_is_worse() {
    let completed = || Outcome::Completed { report: "ok".into(), limit: None };
    let killed = || Outcome::Killed { by: "x".into() };
    let failed = json!({"outcome": "failed", "error": "no"});
    let rows = [
        (vec![completed()], Value::Null, 0),
        (vec![completed()], failed.clone(), 1),
        (vec![Outcome::Lost], failed, 7),
        (vec![completed()], json!(killed()), 6),
        (vec![killed()], json!({"outcome": "something new"}), 6),
        (vec![killed(), completed()], Value::Null, 6),
        (vec![completed(), killed()], Value::Null, 6),
    ];
    for (root, unheard, code) in rows {
        let finish = ended_with(&root, unheard.clone()).await;
        assert_eq!(finish.outcome.exit_code(), code, "{root:?} {unheard}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_waits_for_the_agents_it_left_in_the_background() {
    let script = r#"
when agent=worker first="deep down"
  delay 2s
  say "deep report"
when agent=worker turn=1
  call Agent {"description": "inner", "prompt": "deep down", "subagent_type": "worker", "run_in_background": true}
when agent=worker turn=2
  say "waiting"
when agent=worker turn=3
  say "outer report"
when turn=1
  call Agent {"description": "outer", "prompt": "delegate", "subagent_type": "worker"}
when turn=2
  say "nest done"
"#;
    check(script, &expect![[r##"
        init agents=["worker"]
        status {"status":"requesting"}
        assistant calls Agent "call1" {"description":"outer","prompt":"delegate","subagent_type":"worker"}
        task_started {"task_id":"#1","run_id":"run1","tool_use_id":"call1","description":"outer","is_backgrounded":false,"task_type":"local_agent","subagent_type":"worker","spawn_depth":1,"prompt":"delegate"}
        user [#1 worker "outer" of call1] "delegate"
        assistant [#1 worker "outer" of call1] calls Agent "call2" {"description":"inner","prompt":"deep down","subagent_type":"worker","run_in_background":true}
        task_progress {"task_id":"#1","run_id":"run1","tool_use_id":"call1","description":"inner","subagent_type":"worker","usage":{"total_tokens":1204,"tool_uses":1,"duration_ms":13},"last_tool_name":"Agent"}
        background_tasks_changed {"tasks":[{"task_id":"#2","run_id":"run2","task_type":"local_agent","description":"inner","subagent_type":"worker","parent_task_id":"#1"}]}
        task_started {"task_id":"#2","run_id":"run2","tool_use_id":"call2","description":"inner","is_backgrounded":true,"task_type":"local_agent","subagent_type":"worker","spawn_depth":2,"prompt":"deep down","parent_task_id":"#1"}
        user [#2 worker "inner" of call2] "deep down"
        user [#1 worker "outer" of call1] → "call2" [{"type":"text","text":"The agent works in the background no
        assistant [#2 worker "inner" of call2] "deep report"
        task_updated {"task_id":"#2","run_id":"run2","patch":{"status":"completed","end_time":0}}
        task_notification {"task_id":"#2","run_id":"run2","tool_use_id":"call2","status":"completed","output_file":"#2.output","summary":"deep report","usage":{"total_tokens":447,"tool_uses":0,"duration_ms":25}}
        background_tasks_changed {"tasks":[]}
        task_updated {"task_id":"#1","run_id":"run1","patch":{"status":"completed","end_time":0}}
        task_notification {"task_id":"#1","run_id":"run1","tool_use_id":"call1","status":"completed","output_file":"#1.output","summary":"outer report","usage":{"total_tokens":1560,"tool_uses":1,"duration_ms":64}}
        user → "call1" [{"type":"text","text":"outer report"},{"type":"text","text"
        status {"status":"requesting"}
        assistant "nest done"
        result success "nest done" origin=null turns=2 of 7065 input tokens 7065 are new, cost true stats {"spawned":2,"requested":{"background":1,"foreground":0,"unset":1},"started_in_background":1,"max_depth":2,"spawned_by_subagents":1,"completed":2,"failed":0,"killed":{"parent":0,"user":0,"system":0},"refused":{"depth_limit":0,"concurrency_limit":0,"budget":0},"by_type":{"worker":2}}
    "##]]).await;
}
