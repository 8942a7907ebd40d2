//! A turn that is stopped with agents below it: who ends, who hears of it, and that nobody is woken.

use std::sync::Arc;
use std::time::Duration;

use decurion_protocol::{
    Answer, Block, Command, Envelope, Event, HookDeclaration, HookEvent, Link, Place as _, Reply,
};
use decurion_testkit::stage::{Plain, Stage, render, send};
use expect_test::expect;
use futures_util::StreamExt as _;
use serde_json::Value;

use crate::support::stage;

/// The root waits for an agent that waits for the model.
const ONE_BELOW: &str = r#"
when agent=worker
  stall
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker"}
when
  say "on"
"#;

/// The root waits for an agent that waits for an agent that waits for the model.
const TWO_BELOW: &str = r#"
when agent=worker first="outer" turn=1
  call Agent {"description": "inner", "prompt": "inner", "subagent_type": "worker"}
when agent=worker
  stall
when turn=1
  call Agent {"description": "outer", "prompt": "outer", "subagent_type": "worker"}
when
  say "on"
"#;

struct Playing {
    link: Link,
    events: Vec<Arc<Envelope>>,
}

impl Playing {
    async fn open(stage: &Stage) -> Self {
        let link = stage.engine().open(stage.request.clone()).await.unwrap();
        let playing = Self { link, events: Vec::new() };
        playing.prompt("go").await;
        playing
    }

    async fn prompt(&self, text: &str) {
        send(&self.link, 1, Command::Prompt { blocks: vec![Block::text(text)] }).await;
    }

    async fn until(&mut self, mut fits: impl FnMut(&Envelope) -> bool) -> Arc<Envelope> {
        loop {
            let envelope = self.link.events.next().await.unwrap();
            self.events.push(Arc::clone(&envelope));
            if fits(&envelope) {
                return envelope;
            }
        }
    }

    /// So many agents have begun.
    async fn begun(&mut self, count: usize) {
        let mut left = count;
        self.until(|envelope| {
            left -=
                usize::from(matches!(envelope.event, Event::RunStarted { .. }) && envelope.agent.is_some());
            left == 0
        })
        .await;
    }

    async fn quiet(&mut self) {
        self.until(|envelope| matches!(envelope.event, Event::Quiet { quiet: true, queued: 0 })).await;
    }

    /// Ends the session when it is quiet; gives the worst ending that nobody dealt with.
    async fn finish(&mut self) -> Value {
        send(&self.link, 99, Command::Finish).await;
        let over = |envelope: &Envelope| matches!(&envelope.event, Event::Replied { request, .. } if request.0 == 99);
        let envelope = self.until(over).await;
        let Event::Replied { reply: Reply::Done { value }, .. } = &envelope.event else {
            panic!("it is not over: {envelope:?}");
        };
        value["unheard"].clone()
    }

    /// How often the root began a run.
    fn turns(&self) -> usize {
        let began = |envelope: &&Arc<Envelope>| {
            matches!(envelope.event, Event::RunStarted { .. }) && envelope.agent.is_none()
        };
        self.events.iter().filter(began).count()
    }
}

/// Whether the root's run or the agent's ends first depends on who reads and writes the record how fast.
fn both_orders(script: &str) -> [Stage; 2] {
    [true, false].map(|here| {
        let mut stage = stage(script);
        stage.journal_here = here;
        stage.agent_settings.max_depth = 2;
        stage
    })
}

#[tokio::test]
async fn nobody_is_woken_for_what_an_interrupt_stopped() {
    for (script, agents) in [(ONE_BELOW, 1), (TWO_BELOW, 2)] {
        for stage in both_orders(script) {
            let mut playing = Playing::open(&stage).await;
            playing.begun(agents).await;
            send(&playing.link, 2, Command::Interrupt).await;
            playing.quiet().await;
            let here = stage.journal_here;
            assert_eq!(playing.turns(), 1, "{agents} {here}: {}", render(&playing.events));
            let before = stage.requests().len();
            playing.prompt("and now?").await;
            playing.quiet().await;
            assert_eq!(stage.requests().len(), before + 1, "{agents} {here}: {}", render(&playing.events));
            let last = String::from_utf8(stage.requests()[before].clone()).unwrap();
            let told = last.matches("<task-notification>").count();
            assert_eq!(told, 1, "{agents} {here}: {last}");
            assert_eq!(playing.finish().await, Value::Null, "{agents} {here}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_comes_at_once_is_one_turn_and_waits_for_nothing_of_the_old_one() {
    for (script, agents) in [(ONE_BELOW, 1), (TWO_BELOW, 2)] {
        let mut stage = stage(script);
        stage.agent_settings.max_depth = 2;
        let mut playing = Playing::open(&stage).await;
        playing.begun(agents).await;
        let before = stage.requests().len();
        send(&playing.link, 2, Command::Interrupt).await;
        playing.prompt("and now?").await;
        assert_eq!(playing.finish().await, Value::Null);
        let log = render(&playing.events);
        assert_eq!(playing.turns(), 2, "{log}");
        assert_eq!(stage.requests().len(), before + 1, "{log}");
        assert_eq!(log.matches("told   #1 killed").count(), 1, "{log}");
    }
}

/// The agent has ended and its report is on its way into the conversation: a hook of the call holds it up.
#[tokio::test(start_paused = true)]
async fn a_report_that_an_interrupt_kept_from_its_call_is_told_and_wakes_nobody() {
    let mut stage = stage(&ONE_BELOW.replacen("stall", "say \"found it\"", 1));
    stage.hooks = vec![HookDeclaration::callback(HookEvent::PostToolUse, "held")];
    let mut playing = Playing::open(&stage).await;
    playing.until(|envelope| matches!(envelope.event, Event::HostAsked { .. })).await;
    send(&playing.link, 2, Command::Interrupt).await;
    playing.quiet().await;
    expect![[r#"
        user   "go"
        model  calls Agent {"description":"look","prompt":"look for it","subagent_type":"worker"}
        start  Agent (no rule)
        begin  #1 local_agent Foreground
            #1 user   "look for it"
            #1 model  "found it"
            #1 end    completed "found it"
        ✗      "Interrupted before it finished; it may have partly run. Look at what it may have done before doing it again."
        end    {"outcome":"killed","by":"an interrupt"}
        told   #1 completed "found it"
    "#]].assert_eq(&render(&playing.events));
    playing.prompt("and now?").await;
    playing.quiet().await;
    let last = String::from_utf8(stage.requests().last().unwrap().clone()).unwrap();
    assert!(last.contains("found it"), "{last}");
    assert_eq!((playing.turns(), stage.requests().len()), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn what_a_process_that_died_had_interrupted_wakes_nobody_either() {
    let stage = stage(ONE_BELOW);
    let mut playing = Playing::open(&stage).await;
    playing.begun(1).await;
    send(&playing.link, 2, Command::Interrupt).await;
    playing
        .until(|envelope| matches!(envelope.event, Event::RunEnded { .. }) && envelope.agent.is_some())
        .await;
    let ended = playing.events.last().unwrap().seq;
    let start = decurion_protocol::Start::Resume { id: playing.link.session, at: None };
    let stage = stage.after_crash_at(ended);
    let request = decurion_protocol::OpenSession { start, ..stage.request.clone() };
    let link = stage.engine().open(request).await.unwrap();
    let mut playing = Playing { link, events: Vec::new() };
    // Anything that it is asked lets it look whether there is something to do.
    send(&playing.link, 3, Command::Tasks).await;
    playing.prompt("and now?").await;
    assert_eq!(playing.finish().await, Value::Null);
    let log = render(&playing.events);
    let counts = (log.matches("told").count(), playing.turns(), stage.requests().len());
    assert_eq!(counts, (1, 1, 1), "{log}");
}

/// The log of a session in which every question is answered with "no, and end the turn".
async fn denied(script: &str) -> String {
    let mut stage = stage(script);
    // One of those that an agent in the background has.
    stage.tools.push(Arc::new(Plain::named("Skill")));
    stage.agent_settings.max_depth = 2;
    stage.request.answers = true;
    let mut playing = Playing::open(&stage).await;
    send(&playing.link, 99, Command::Finish).await;
    let over =
        |envelope: &Envelope| matches!(&envelope.event, Event::Replied { request, .. } if request.0 == 99);
    loop {
        let found =
            playing.until(|envelope| matches!(envelope.event, Event::Asked { .. }) || over(envelope)).await;
        let Event::Asked { question } = &found.event else { break };
        let answer = Answer::Deny { message: "stop it".into(), interrupt: true };
        let (question, by, updates) = (question.id, "host".to_owned(), Vec::new());
        send(&playing.link, 3, Command::Answer { question, answer, by, updates }).await;
    }
    // What is said of a launch is told elsewhere.
    let is_launch = |line: &&str| line.contains("works in the background now");
    let log = render(&playing.events);
    log.lines().filter(|line| !is_launch(line)).flat_map(|line| [line, "\n"]).collect()
}

#[tokio::test(start_paused = true)]
async fn a_no_that_ends_the_turn_ends_it_for_all_who_wait_for_the_asker() {
    let log = denied(
        r#"
when agent=worker first="outer" turn=1
  call Agent {"description": "inner", "prompt": "inner", "subagent_type": "worker"}
when agent=worker first="inner" turn=1
  call Skill {"text": "x"}
  call Skill {"text": "y"}
when turn=1
  call Agent {"description": "outer", "prompt": "outer", "subagent_type": "worker"}
when
  say "on"
"#,
    )
    .await;
    expect![[r#"
        user   "go"
        model  calls Agent {"description":"outer","prompt":"outer","subagent_type":"worker"}
        start  Agent (no rule)
        begin  #1 local_agent Foreground
            #1 user   "outer"
            #1 model  calls Agent {"description":"inner","prompt":"inner","subagent_type":"worker"}
            #1 start  Agent (no rule)
            #1 begin  #2 local_agent Foreground
            #2 user   "inner"
            #2 model  calls Skill {"text":"x"}
            #2 model  calls Skill {"text":"y"}
            #2 wait   for an answer
            #2 ask    Skill: no rule allows this skill
        answer by host
            #2 refuse Skill: stop it
            #2 ✗      "Permission denied: stop it"
            #2 ✗      "This call was not begun: a call before it was refused, and with that the turn was ended."
            #2 end    {"outcome":"killed","by":"the answer to a question"}
        ✗      "Interrupted before it finished; it may have partly run. Look at what it may have done before doing it again."
        end    {"outcome":"killed","by":"the answer to a question"}
            #1 ✗      "Interrupted before it finished; it may have partly run. Look at what it may have done before doing it again."
            #1 end    {"outcome":"killed","by":"the answer to a question"}
        told   #1 killed "Agent \"outer\" was stopped by the answer to a question"
    "#]].assert_eq(&log);
}

#[tokio::test(start_paused = true)]
async fn a_no_to_an_agent_in_the_background_ends_those_in_the_background_only() {
    let log = denied(
        r#"
when agent=worker first="outer" turn=1
  call Agent {"description": "inner", "prompt": "inner", "subagent_type": "worker"}
when agent=worker first="inner" turn=1
  call Skill {"text": "x"}
when turn=1
  call Agent {"description": "outer", "prompt": "outer", "subagent_type": "worker", "run_in_background": true}
when
  say "on"
"#,
    )
    .await;
    expect![[r#"
        user   "go"
        model  calls Agent {"description":"outer","prompt":"outer","subagent_type":"worker","run_in_background":true}
        start  Agent (no rule)
        begin  #1 local_agent Background
            #1 user   "outer"
            #1 model  calls Agent {"description":"inner","prompt":"inner","subagent_type":"worker"}
            #1 start  Agent (no rule)
            #1 begin  #2 local_agent Foreground
            #2 user   "inner"
        told   "Agent #1 (\"outer\") is still at work: 1 more tool uses, 1143 more tokens. There is no need to read its file; a notification follows when it ends."
        model  "on"
            #2 model  calls Skill {"text":"x"}
            #2 wait   for an answer
            #2 ask    Skill: no rule allows this skill
        end    completed "on"
        answer by host
            #2 refuse Skill: stop it
            #2 ✗      "Permission denied: stop it"
            #2 end    {"outcome":"killed","by":"the answer to a question"}
            #1 ✗      "Interrupted before it finished; it may have partly run. Look at what it may have done before doing it again."
            #1 end    {"outcome":"killed","by":"the answer to a question"}
        told   #1 killed "Agent \"outer\" was stopped by the answer to a question"
        model  "on"
        end    completed "on"
    "#]].assert_eq(&log);
}

#[tokio::test(start_paused = true)]
async fn a_no_to_the_root_ends_what_it_waits_for_and_what_is_behind_it_is_not_begun() {
    let log = denied(
        r#"
when turn=1
  call Skill {"text": "x"}
  call Skill {"text": "y"}
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker"}
when
  say "on"
"#,
    )
    .await;
    expect![[r#"
        user   "go"
        model  calls Skill {"text":"x"}
        model  calls Skill {"text":"y"}
        model  calls Agent {"description":"look","prompt":"look for it","subagent_type":"worker"}
        wait   for an answer
        ask    Skill: no rule allows this skill
        answer by host
        refuse Skill: stop it
        ✗      "Permission denied: stop it"
        ✗      "This call was not begun: a call before it was refused, and with that the turn was ended."
        ✗      "This call was not begun: a call before it was refused, and with that the turn was ended."
        end    {"outcome":"killed","by":"the answer to a question"}
    "#]]
    .assert_eq(&log);
}

#[tokio::test(start_paused = true)]
async fn a_question_of_an_interrupted_call_never_expires() {
    let mut stage = Stage::new("when turn=1\n  call Poke {\"text\": \"x\"}\nwhen\n  say \"on\"\n");
    stage.rules.allow.clear();
    stage.request.answers = true;
    stage.answer_timeout = Some(Duration::from_secs(30));
    let mut playing = Playing::open(&stage).await;
    playing.until(|envelope| matches!(envelope.event, Event::Asked { .. })).await;
    send(&playing.link, 2, Command::Interrupt).await;
    playing.quiet().await;
    // The clock is paused: this is beyond the time for an answer, and takes none.
    tokio::time::sleep(Duration::from_secs(60)).await;
    playing.prompt("go on").await;
    playing.until(|envelope| matches!(envelope.event, Event::RunEnded { .. })).await;
    playing.finish().await;
    let answers = playing.events.iter().filter(|envelope| matches!(envelope.event, Event::Answered { .. }));
    assert_eq!(answers.count(), 0, "{}", render(&playing.events));
}
