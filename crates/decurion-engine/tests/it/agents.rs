//! Sub-agents: started, waited for, sent to the background, told of, stopped, taken up again.

use expect_test::{Expect, expect};

use crate::support::stage;

/// A stage whose root may start agents.
async fn check(script: &str, expected: &Expect) {
    expected.assert_eq(&stage(script).log("go").await);
}

#[tokio::test(start_paused = true)]
async fn a_foreground_agent_gives_its_report_to_its_parent() {
    check(
        r#"
when agent=worker turn=1
  call Echo {"text": "looking"}
when agent=worker turn=2
  say "found it"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "Worker"}
when turn=2
  say "done"
"#,
        &expect![[r#"
            user   "go"
            model  calls Agent {"description":"look","prompt":"look for it","subagent_type":"Worker"}
            start  Agent (no rule)
            begin  #1 local_agent Foreground
                #1 user   "look for it"
                #1 model  calls Echo {"text":"looking"}
                #1 start  Echo (Echo)
                #1 →      "looking"
                #1 model  "found it"
                #1 end    completed "found it"
            →      "found it\n\nagentId: #1 (for `resume` or SendMessage, if its work should go on; not for the user)\n<usage>subagent_tokens: 616\ntool_uses: 1\nduration_ms: 29</usage>"
            model  "done"
            end    completed "done"
        "#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_background_agent_is_told_of_once_it_ends() {
    check(
        r#"
when agent=worker turn=1
  say "found it"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker", "run_in_background": true}
when turn=2
  say "started"
when turn=3
  say "it is found"
"#,
        &expect![[r#"
            user   "go"
            model  calls Agent {"description":"look","prompt":"look for it","subagent_type":"worker","run_in_background":true}
            start  Agent (no rule)
            begin  #1 local_agent Background
                #1 user   "look for it"
                #1 model  "found it"
                #1 end    completed "found it"
            →      "The agent works in the background now.\nagentId: #1 (for `resume` or SendMessage, if its work should go on; not for the user)\nIts report will come to you by itself as a notification when…"
            model  "started"
            told   #1 completed "found it"
            model  "it is found"
            end    completed "it is found"
        "#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_type_names_those_that_exist() {
    let log = stage(
        r#"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "nobody"}
when turn=2
  say "done"
"#,
    )
    .log("go")
    .await;
    assert!(log.contains("Agent type 'nobody' not found. The types are: worker, fork"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn an_idle_parent_is_woken_by_what_ends_later() {
    check(
        r#"
when agent=worker
  delay 5s
  say "found it"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker", "run_in_background": true}
when turn=2
  say "started"
when turn=3
  say "it is found"
"#,
        &expect![[r#"
            user   "go"
            model  calls Agent {"description":"look","prompt":"look for it","subagent_type":"worker","run_in_background":true}
            start  Agent (no rule)
            begin  #1 local_agent Background
                #1 user   "look for it"
            →      "The agent works in the background now.\nagentId: #1 (for `resume` or SendMessage, if its work should go on; not for the user)\nIts report will come to you by itself as a notification when…"
            model  "started"
            end    completed "started"
                #1 model  "found it"
                #1 end    completed "found it"
            told   #1 completed "found it"
            model  "it is found"
            end    completed "it is found"
        "#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn several_in_one_message_run_together_and_are_answered_in_asking_order() {
    check(
        r#"
when agent=worker first="first"
  delay 3s
  say "one"
when agent=worker first="second"
  delay 1s
  say "two"
when turn=1
  call Agent {"description": "a", "prompt": "first", "subagent_type": "worker"}
  call Agent {"description": "b", "prompt": "second", "subagent_type": "worker"}
when turn=2
  say "done"
"#,
        &expect![[r#"
            user   "go"
            model  calls Agent {"description":"a","prompt":"first","subagent_type":"worker"}
            model  calls Agent {"description":"b","prompt":"second","subagent_type":"worker"}
            start  Agent (no rule)
            start  Agent (no rule)
            begin  #1 local_agent Foreground
                #1 user   "first"
            begin  #2 local_agent Foreground
                #2 user   "second"
                #2 model  "two"
                #2 end    completed "two"
            →      "two\n\nagentId: #2 (for `resume` or SendMessage, if its work should go on; not for the user)\n<usage>subagent_tokens: 551\ntool_uses: 0\nduration_ms: 12</usage>"
                #1 model  "one"
                #1 end    completed "one"
            →      "one\n\nagentId: #1 (for `resume` or SendMessage, if its work should go on; not for the user)\n<usage>subagent_tokens: 551\ntool_uses: 0\nduration_ms: 32</usage>"
            model  "done"
            end    completed "done"
        "#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_waits_for_its_own_agents_before_it_ends() {
    let mut stage = stage(
        r#"
when agent=worker first="outer" turn=1
  call Agent {"description": "inner", "prompt": "inner", "subagent_type": "worker", "run_in_background": true}
when agent=worker first="outer" turn=2
  say "waiting"
when agent=worker first="outer"
  say "outer done"
when agent=worker first="inner"
  delay 5s
  say "inner done"
when turn=1
  call Agent {"description": "outer", "prompt": "outer", "subagent_type": "worker"}
when turn=2
  say "done"
"#,
    );
    stage.agent_settings.max_depth = 2;
    expect![[r#"
        user   "go"
        model  calls Agent {"description":"outer","prompt":"outer","subagent_type":"worker"}
        start  Agent (no rule)
        begin  #1 local_agent Foreground
            #1 user   "outer"
            #1 model  calls Agent {"description":"inner","prompt":"inner","subagent_type":"worker","run_in_background":true}
            #1 start  Agent (no rule)
            #1 begin  #2 local_agent Background
            #2 user   "inner"
            #1 →      "The agent works in the background now.\nagentId: #2 (for `resume` or SendMessage, if its work should go on; not for the user)\nIts report will come to you by itself as a notification when…"
            #1 model  "waiting"
            #2 model  "inner done"
            #2 end    completed "inner done"
            #1 told   #2 completed "inner done"
            #1 model  "outer done"
            #1 end    completed "outer done"
        →      "outer done\n\nagentId: #1 (for `resume` or SendMessage, if its work should go on; not for the user)\n<usage>subagent_tokens: 1558\ntool_uses: 1\nduration_ms: 64</usage>"
        model  "done"
        end    completed "done"
    "#]].assert_eq(&stage.log("go").await);
}

#[tokio::test(start_paused = true)]
async fn an_agent_at_the_limit_of_nesting_is_not_offered_the_tool() {
    let stage = stage(
        r#"
when agent=worker turn=1
  call Agent {"description": "inner", "prompt": "inner", "subagent_type": "worker"}
when agent=worker
  say "alone then"
when turn=1
  call Agent {"description": "outer", "prompt": "outer", "subagent_type": "worker"}
when turn=2
  say "done"
"#,
    );
    let log = stage.log("go").await;
    assert!(log.contains("No such tool available: Agent"), "{log}");
    let child = String::from_utf8(stage.requests()[1].clone()).unwrap();
    assert!(!child.contains(r#""name":"Agent""#), "{child}");
}

#[tokio::test(start_paused = true)]
async fn what_task_output_has_told_is_not_told_again() {
    check(
        r#"
when agent=worker
  delay 5s
  say "found it"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker", "run_in_background": true}
when turn=2 result=/agentId: (\w+)/
  call TaskOutput {"task_id": "$1"}
when turn=3
  say "it is found"
"#,
        &expect![[r##"
            user   "go"
            model  calls Agent {"description":"look","prompt":"look for it","subagent_type":"worker","run_in_background":true}
            start  Agent (no rule)
            begin  #1 local_agent Background
                #1 user   "look for it"
            →      "The agent works in the background now.\nagentId: #1 (for `resume` or SendMessage, if its work should go on; not for the user)\nIts report will come to you by itself as a notification when…"
            model  calls TaskOutput {"task_id":"#1"}
            start  TaskOutput (no rule)
                #1 model  "found it"
                #1 end    completed "found it"
            →      "<retrieval_status>success</retrieval_status>\n\n<task_id>#1</task_id>\n\n<task_type>local_agent</task_type>\n\n<status>completed</status>\n\n<output>\nfound it\n</output>"
            model  "it is found"
            end    completed "it is found"
        "##]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_agent_is_told_of_with_its_ending() {
    check(
        r#"
when agent=worker
  say "x"
  usage input=100 output=1
  stall after 1 events
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker", "run_in_background": true}
when turn=2 result=/agentId: (\w+)/
  call TaskStop {"task_id": "$1"}
when turn=3
  say "stopped"
"#,
        &expect![[r##"
            user   "go"
            model  calls Agent {"description":"look","prompt":"look for it","subagent_type":"worker","run_in_background":true}
            start  Agent (no rule)
            begin  #1 local_agent Background
                #1 user   "look for it"
            →      "The agent works in the background now.\nagentId: #1 (for `resume` or SendMessage, if its work should go on; not for the user)\nIts report will come to you by itself as a notification when…"
            model  calls TaskStop {"task_id":"#1"}
            start  TaskStop (no rule)
                #1 charge Stopped 101 tokens
                #1 end    {"outcome":"killed","by":"TaskStop of main"}
            →      "{\"message\":\"The task is stopped.\",\"task_id\":\"#1\",\"task_type\":\"local_agent\",\"command\":\"look\"}"
            told   #1 killed "Agent \"look\" was stopped by TaskStop of main"
            model  "stopped"
            end    completed "stopped"
        "##]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_message_reaches_an_agent_at_its_next_step() {
    check(
        r#"
when agent=worker turn=1
  delay 2s
  call Echo {"text": "looking"}
when agent=worker text="hurry"
  say "hurried"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker", "run_in_background": true}
when turn=2 result=/agentId: (\w+)/
  call SendMessage {"to": "$1", "message": "hurry"}
when turn=3
  say "sent"
when turn=4
  say "done"
"#,
        &expect![[r##"
            user   "go"
            model  calls Agent {"description":"look","prompt":"look for it","subagent_type":"worker","run_in_background":true}
            start  Agent (no rule)
            begin  #1 local_agent Background
                #1 user   "look for it"
            →      "The agent works in the background now.\nagentId: #1 (for `resume` or SendMessage, if its work should go on; not for the user)\nIts report will come to you by itself as a notification when…"
            model  calls SendMessage {"to":"#1","message":"hurry"}
            start  SendMessage (no rule)
            mail   "hurry"
            →      "{\"success\":true,\"message\":\"Agent #1 is at work and will read this at its next step.\"}"
            model  "sent"
            end    completed "sent"
                #1 model  calls Echo {"text":"looking"}
                #1 ✗      "<tool_use_error>Error: No such tool available: Echo. The tools are: SendMessage, TaskOutput, TaskStop</tool_use_error>"
                #1 told   "<message from=\"main\">\nhurry\n</message>"
                #1 model  "hurried"
                #1 end    completed "hurried"
            told   #1 completed "hurried"
            model  "done"
            end    completed "done"
        "##]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_message_to_an_agent_that_ended_takes_it_up_again() {
    check(
        r#"
when agent=worker turn=1
  say "found it"
when agent=worker turn=2
  say "and more"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker"}
when turn=2 result=/agentId: (\w+)/
  call SendMessage {"to": "$1", "message": "go on"}
when turn=3
  say "sent"
when turn=4
  say "done"
"#,
        &expect![[r##"
            user   "go"
            model  calls Agent {"description":"look","prompt":"look for it","subagent_type":"worker"}
            start  Agent (no rule)
            begin  #1 local_agent Foreground
                #1 user   "look for it"
                #1 model  "found it"
                #1 end    completed "found it"
            →      "found it\n\nagentId: #1 (for `resume` or SendMessage, if its work should go on; not for the user)\n<usage>subagent_tokens: 553\ntool_uses: 0\nduration_ms: 12</usage>"
            model  calls SendMessage {"to":"#1","message":"go on"}
            start  SendMessage (no rule)
            mail   "go on"
            begin  #1 local_agent Background
            →      "{\"success\":true,\"message\":\"Agent #1 had ended; it was resumed with this message in the background. You are notified when it ends.\",\"resumedAgentId\":\"#1\"}"
            model  "sent"
                #1 told   "<message from=\"main\">\ngo on\n</message>"
            end    completed "sent"
                #1 model  "and more"
                #1 end    completed "and more"
            told   #1 completed "and more"
            model  "done"
            end    completed "done"
        "##]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_resumed_agent_goes_on_with_its_own_conversation() {
    let stage = stage(
        r#"
when agent=worker turn=1
  say "found it"
when agent=worker turn=2
  say "and more"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker"}
when turn=2 result=/agentId: (\w+)/
  call Agent {"description": "more", "prompt": "look again", "resume": "$1"}
when turn=3
  say "done"
"#,
    );
    expect![[r##"
        user   "go"
        model  calls Agent {"description":"look","prompt":"look for it","subagent_type":"worker"}
        start  Agent (no rule)
        begin  #1 local_agent Foreground
            #1 user   "look for it"
            #1 model  "found it"
            #1 end    completed "found it"
        →      "found it\n\nagentId: #1 (for `resume` or SendMessage, if its work should go on; not for the user)\n<usage>subagent_tokens: 553\ntool_uses: 0\nduration_ms: 12</usage>"
        model  calls Agent {"description":"more","prompt":"look again","resume":"#1"}
        start  Agent (no rule)
        begin  #1 local_agent Foreground
            #1 user   "look again"
            #1 model  "and more"
            #1 end    completed "and more"
        →      "and more\n\nagentId: #1 (for `resume` or SendMessage, if its work should go on; not for the user)\n<usage>subagent_tokens: 586\ntool_uses: 0\nduration_ms: 12</usage>"
        model  "done"
        end    completed "done"
    "##]].assert_eq(&stage.log("go").await);
    let requests = stage.requests();
    let (first, again) = (&requests[1], &requests[3]);
    let identity = decurion_engine::fork::compare(first, again);
    let end = br#""}]}]"#.len();
    assert!(identity.shared + end + 200 > first.len(), "{identity}");
}

#[tokio::test(start_paused = true)]
async fn no_more_run_at_once_than_may() {
    let mut stage = stage(
        r#"
when agent=worker
  delay 1s
  say "done"
when turn=1
  call Agent {"description": "1", "prompt": "1", "subagent_type": "worker"}
  call Agent {"description": "2", "prompt": "2", "subagent_type": "worker"}
  call Agent {"description": "3", "prompt": "3", "subagent_type": "worker"}
when turn=2
  say "done"
"#,
    );
    stage.agent_settings.max_running = 1;
    expect![[r#"
        user   "go"
        model  calls Agent {"description":"1","prompt":"1","subagent_type":"worker"}
        model  calls Agent {"description":"2","prompt":"2","subagent_type":"worker"}
        model  calls Agent {"description":"3","prompt":"3","subagent_type":"worker"}
        start  Agent (no rule)
        start  Agent (no rule)
        start  Agent (no rule)
        begin  #1 local_agent Foreground
            #1 user   "1"
        begin  #2 local_agent Foreground
            #2 user   "2"
        task   #2 Queued { attention: Foreground }
        begin  #3 local_agent Foreground
            #3 user   "3"
        task   #3 Queued { attention: Foreground }
            #1 model  "done"
            #1 end    completed "done"
        task   #2 Running { attention: Foreground }
        →      "done\n\nagentId: #1 (for `resume` or SendMessage, if its work should go on; not for the user)\n<usage>subagent_tokens: 550\ntool_uses: 0\nduration_ms: 12</usage>"
            #2 model  "done"
            #2 end    completed "done"
        task   #3 Running { attention: Foreground }
        →      "done\n\nagentId: #2 (for `resume` or SendMessage, if its work should go on; not for the user)\n<usage>subagent_tokens: 550\ntool_uses: 0\nduration_ms: 12</usage>"
            #3 model  "done"
            #3 end    completed "done"
        →      "done\n\nagentId: #3 (for `resume` or SendMessage, if its work should go on; not for the user)\n<usage>subagent_tokens: 550\ntool_uses: 0\nduration_ms: 12</usage>"
        model  "done"
        end    completed "done"
    "#]].assert_eq(&stage.log("go").await);
}

#[tokio::test(start_paused = true)]
async fn turns_begun_by_notifications_alone_cannot_go_on_for_ever() {
    let log = stage(
        r#"
when agent=worker
  delay 1s
  say "done"
when result="until the user says something"
  say "enough"
when result="works in the background"
  say "waiting"
when
  call Agent {"description": "again", "prompt": "again", "subagent_type": "worker", "run_in_background": true}
"#,
    )
    .log("go")
    .await;
    assert_eq!(log.matches("begin ").count(), 4, "one by the prompt, three by notifications:\n{log}");
    assert!(log.contains("\"enough\""), "{log}");
}
