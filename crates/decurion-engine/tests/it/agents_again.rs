//! Sub-agents over time: forks, sessions that are dropped and opened again, interrupts, questions.

use std::time::Duration;

use decurion_engine::fork::compare;
use decurion_protocol::{Answer, Command, Event, OpenSession, Outcome, Place as _, QuestionId, Start};
use decurion_testkit::stage::send;
use expect_test::expect;
use futures_util::StreamExt as _;

use crate::support::{again, prompt, stage, until};

#[tokio::test(start_paused = true)]
async fn forks_share_every_byte_before_the_delegating_message() {
    let calls: String = (0..32)
        .map(|number| {
            format!("  call Agent {{\"description\": \"part {number}\", \"prompt\": \"part {number}\", \"subagent_type\": \"fork\"}}\n")
        })
        .collect();
    let script = format!(
        "when agent=fork\n  say \"done\"\nwhen turn=1\n  call Echo {{\"text\": \"a long thing to know\"}}\nwhen turn=2\n{calls}when turn=3..\n  say \"waiting\"\n"
    );
    let stage = stage(&script);
    let log = stage.log("go").await;
    assert_eq!(log.matches("local_agent Background").count(), 32, "{log}");
    let requests = stage.requests();
    let parent = &requests[1];
    let forks: Vec<&Vec<u8>> = requests
        .iter()
        .filter(|body| memchr::memmem::find(body, b"You are now the agent").is_some())
        .collect();
    assert_eq!(forks.len(), 32);
    // The parent's request ends with its last message; everything up to that is the fork's beginning.
    let end = parent.len() - br#"],"stream":true}"#.len();
    for fork in forks {
        let identity = compare(parent, fork);
        assert!(identity.shared + 60 > end, "{identity} (the parent's has {end})");
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_a_crash_left_alive_goes_on_and_is_told_of_once() {
    let stage = stage(
        r#"
when agent=worker
  stall
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker", "run_in_background": true}
when turn=2
  say "started"
"#,
    );
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    prompt(&link, "go").await;
    until(&mut link, |event, child| matches!(event, Event::RunEnded { .. } if !child).then_some(())).await;
    let request = again(&stage, &link);
    let stage = stage.after_crash(
        r#"
when agent=worker turn=1
  say "found it"
when
  say "and on"
"#,
    );
    let played = stage.play_all(request, &["are you there?"]).await.unwrap();
    let log = decurion_testkit::stage::render(&played.events);
    assert_eq!(log.matches("told   #1 completed \"found it\"").count(), 1, "{log}");
    assert!(log.contains("#1 end    completed \"found it\""), "{log}");
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_what_is_waited_for_and_nothing_else() {
    let stage = stage(
        r#"
when agent=worker first="slow"
  delay 30s
  say "found it"
when agent=worker
  stall
when turn=1
  call Agent {"description": "bg", "prompt": "slow", "subagent_type": "worker", "run_in_background": true}
when turn=2
  call Agent {"description": "fg", "prompt": "quick", "subagent_type": "worker"}
when
  say "it is found"
"#,
    );
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    prompt(&link, "go").await;
    let mut begun = 0;
    while begun < 2 {
        begun +=
            until(&mut link, |event, child| matches!(event, Event::RunStarted { .. } if child).then_some(1))
                .await;
    }
    send(&link, 2, Command::Interrupt).await;
    let mut ends = Vec::new();
    while ends.len() < 4 {
        ends.push(
            until(&mut link, |event, _| match event {
                Event::RunEnded { outcome, .. } => Some(outcome.word()),
                _ => None,
            })
            .await,
        );
    }
    ends.sort_unstable();
    // The foreground agent and the turn; later the background agent, and the turn that hears of it.
    assert_eq!(ends, ["completed", "completed", "killed", "killed"]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_sent_to_the_background_goes_on_where_it_was() {
    let stage = stage(
        r#"
when agent=worker turn=1
  call Echo {"text": "a"}
when agent=worker turn=2
  delay 30s
  say "found it"
when turn=1
  call Agent as toolu_look {"description": "look", "prompt": "look", "subagent_type": "worker"}
when turn=2
  say "going on"
when
  say "it is found"
"#,
    );
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    prompt(&link, "go").await;
    until(&mut link, |event, child| matches!(event, Event::CallEnded { .. } if child).then_some(())).await;
    send(&link, 2, Command::Background { target: Some("toolu_look".into()) }).await;
    let result = until(&mut link, |event, child| match event {
        Event::CallEnded { output, .. } if !child => output.structured.clone(),
        _ => None,
    })
    .await;
    assert_eq!((&result["status"], &result["backgroundedByUser"]), (&"async_launched".into(), &true.into()));
    let report = until(&mut link, |event, child| match event {
        Event::RunEnded { outcome: Outcome::Completed { report, .. }, .. } if child => Some(report.clone()),
        _ => None,
    })
    .await;
    assert_eq!(report, "found it");
    let told = until(&mut link, |event, child| match event {
        Event::Message { meta, .. } if !child && !meta.delivers.is_empty() => Some(meta.delivers.len()),
        _ => None,
    })
    .await;
    assert_eq!(told, 1);
    let is_worker = |body: &&Vec<u8>| memchr::memmem::find(body, b"You do a part of the work").is_some();
    assert_eq!(stage.requests().iter().filter(is_worker).count(), 2, "nothing was asked again");
}

#[tokio::test(start_paused = true)]
async fn a_question_of_a_background_agent_survives_a_crash_and_its_call_runs_once() {
    let script = r#"
when agent=worker turn=1
  call Write {"text": "x"}
when agent=worker
  say "asked"
when turn=1
  call Agent {"description": "ask", "prompt": "ask", "subagent_type": "worker", "run_in_background": true}
when
  say "fine"
"#;
    let mut stage = stage(script);
    stage.tools.push(std::sync::Arc::new(decurion_testkit::stage::Plain::named("Write")));
    stage.request.answers = true;
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    prompt(&link, "go").await;
    let question = |event: &Event, _: bool| match event {
        Event::Asked { question } => Some(question.id),
        _ => None,
    };
    let first: QuestionId = until(&mut link, question).await;
    let request = again(&stage, &link);
    let stage = stage.after_crash(script);
    let mut link = stage.engine().open(request).await.unwrap();
    let second = until(&mut link, question).await;
    assert_eq!(first, second, "the same question still");
    let answer = Answer::Allow { input: None, rules: Vec::new(), everywhere: false };
    send(&link, 2, Command::Answer { question: second, answer, updates: Vec::new(), by: "test".into() })
        .await;
    send(&link, 3, Command::Finish).await;
    let mut log = Vec::new();
    while let Some(envelope) = link.events.next().await {
        let over = matches!(&envelope.event, Event::Replied { request, .. } if request.0 == 3);
        log.push(envelope);
        if over {
            break;
        }
    }
    let starts = |event: &Event| matches!(event, Event::CallStarted { tool, .. } if tool == "Write");
    assert_eq!(log.iter().filter(|envelope| starts(&envelope.event)).count(), 1);
    let agent = log.iter().find_map(|envelope| envelope.agent.clone()).unwrap();
    let text = decurion_testkit::stage::render(&log).replace(agent.as_str(), "#1");
    expect![[r#"
        answer by test
            #1 start  Write (no rule)
            #1 →      "x"
            #1 model  "asked"
            #1 end    completed "asked"
        told   #1 completed "asked"
        model  "fine"
        end    completed "fine"
    "#]]
    .assert_eq(&text);
}

#[tokio::test(start_paused = true)]
async fn a_report_that_was_not_told_yet_is_told_although_its_agent_goes_on() {
    let log = stage(
        r#"
when agent=worker turn=1
  delay 2s
  say "first report"
when agent=worker
  say "second"
when turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker", "run_in_background": true}
when turn=2 result=/agentId: (\w+)/
  delay 10s
  call SendMessage {"to": "$1", "message": "go on"}
when
  say "done"
"#,
    )
    .log("go")
    .await;
    for report in ["first report", "second"] {
        assert_eq!(log.matches(&format!("told   #1 completed \"{report}\"")).count(), 1, "{log}");
    }
}

const NESTED: &str = r#"
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
when
  say "done"
"#;

#[tokio::test(start_paused = true)]
async fn an_agent_that_waits_for_its_own_gives_its_place_up() {
    let mut stage = stage(NESTED);
    stage.agent_settings.max_depth = 2;
    stage.agent_settings.max_running = 1;
    let log = tokio::time::timeout(Duration::from_secs(3600), stage.log("go")).await.expect("waits for ever");
    assert!(log.contains("#1 told   #2 completed \"inner done\""), "{log}");
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_agents_were_stopped_gets_quiet_after_a_restart() {
    let script = r#"
when agent=worker first="outer" turn=1
  call Agent {"description": "inner", "prompt": "inner", "subagent_type": "worker", "run_in_background": true}
when agent=worker first="outer"
  delay 60s
  say "late"
when agent=worker
  stall
when turn=1
  call Agent {"description": "outer", "prompt": "outer", "subagent_type": "worker", "run_in_background": true}
when turn=2 result=/agentId: (\w+)/
  delay 5s
  call TaskStop {"task_id": "$1"}
when
  say "done"
"#;
    let mut stage = stage(script);
    stage.agent_settings.max_depth = 2;
    let played = stage.play("go").await;
    let request =
        OpenSession { start: Start::Resume { id: played.session, at: None }, ..stage.request.clone() };
    let hour = Duration::from_secs(3600);
    let again = tokio::time::timeout(hour, stage.play_all(request, &["hi"])).await.expect("never quiet");
    assert_eq!(again.unwrap().outcome, Outcome::Completed { report: "done".into(), limit: None });
}

#[tokio::test(start_paused = true)]
async fn messages_cannot_keep_a_notified_root_going_for_ever() {
    let log = stage(
        r#"
when agent=worker
  say "done"
when turn=1
  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker"}
when turn=2 result=/agentId: (\w+)/
  call Agent {"description": "d", "prompt": "p", "resume": "$1", "run_in_background": true}
when result="until the user says something"
  say "enough"
when result="works in the background"
  say "waiting"
when text=/<task-id>(\w+)</
  call Agent {"description": "d", "prompt": "p", "resume": "$1", "run_in_background": true}
"#,
    )
    .log("go")
    .await;
    assert!(log.contains("\"enough\""), "{log}");
}
