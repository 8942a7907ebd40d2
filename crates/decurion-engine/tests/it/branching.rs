//! Sessions that go on from an earlier line: what the model is shown, what the record says, what becomes of agents.

use decurion_engine::AgentSettings;
use decurion_protocol::{
    Block, Command, Envelope, Event, LineId, OpenSession, Origin, Outcome, Place as _, PlaceError, ResumeAt,
    SessionId, Start, TaskState,
};
use decurion_testkit::faults::ledger::Ledger;
use decurion_testkit::stage::{Stage, send};
use expect_test::{Expect, expect};
use futures_util::StreamExt as _;
use serde_json::Value;

const CALLS: &str = r#"
when text=/again|later/
  say "heard"
when text="count"
  say "one"
when text="look"
  say "I look."
  call Echo {"text": "left"}
  call Echo {"text": "right"}
when result="right"
  say "seen"
when text="think"
  think "deep"
  say "thought"
when
  say "heard"
"#;

/// A session that was asked to count, to look and to think.
async fn counted() -> (Stage, SessionId) {
    let stage = Stage::new(CALLS);
    let played = stage.play_all(stage.request.clone(), &["count", "look", "think"]).await.unwrap();
    (stage, played.session)
}

fn resume(stage: &Stage, id: SessionId, at: Option<ResumeAt>) -> OpenSession {
    OpenSession { start: Start::Resume { id, at }, ..stage.request.clone() }
}

fn fork(stage: &Stage, from: SessionId, at: Option<ResumeAt>) -> OpenSession {
    OpenSession { start: Start::Fork { from, id: None, at }, ..stage.request.clone() }
}

#[allow(clippy::unnecessary_wraps)] // as a request has it
fn at(line: LineId) -> Option<ResumeAt> {
    Some(ResumeAt { line, drops: None })
}

/// Every line of the root's conversation on record, with words for it.
fn lines(record: &[Envelope]) -> Vec<(LineId, String)> {
    let of = |envelope: &Envelope| -> Vec<(LineId, String)> {
        match &envelope.event {
            Event::Message { message, lines, meta, .. } => {
                let kind = match &meta.origin {
                    Origin::Note(kind) => format!("note {kind}"),
                    Origin::Prompt => "prompt".to_owned(),
                    _ => "model".to_owned(),
                };
                let word = |block: &Block| match block {
                    Block::Text { text } if !kind.starts_with("note") => format!("{kind} {text}"),
                    Block::ToolUse { input, .. } => format!("call {}", input["text"].as_str().unwrap_or("-")),
                    Block::Thinking { .. } => "thinking".to_owned(),
                    _ => kind.clone(),
                };
                lines.iter().copied().zip(message.blocks.iter().map(word)).collect()
            }
            Event::CallEnded { line, output, .. } => {
                vec![(*line, format!("result {}", output.content.text()))]
            }
            _ => Vec::new(),
        }
    };
    record.iter().filter(|envelope| envelope.agent.is_none()).flat_map(of).collect()
}

/// The line that these words are on.
fn line(stage: &Stage, session: SessionId, words: &str) -> LineId {
    let all = lines(&stage.recorded(session));
    let found = all.iter().find(|(_, text)| text.starts_with(words));
    found.unwrap_or_else(|| panic!("no {words:?} in {all:?}")).0
}

/// The messages of the last request, a line for each block.
fn shown(stage: &Stage) -> String {
    text_of(&stage.requests().pop().unwrap())
}

fn text_of(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    let mut text = String::new();
    for message in body["messages"].as_array().unwrap() {
        let role = message["role"].as_str().unwrap();
        for block in message["content"].as_array().unwrap() {
            let words = match block["type"].as_str().unwrap() {
                "text" if block["text"].as_str().unwrap().starts_with("<system-reminder>") => continue,
                "text" => block["text"].as_str().unwrap().to_owned(),
                "tool_use" => format!("calls {}", block["input"]),
                "tool_result" => format!("gets {}", block["content"]),
                other => other.to_owned(),
            };
            let first: String = words.lines().next().unwrap_or_default().chars().take(100).collect();
            text.push_str(&format!("{role}: {first}\n"));
        }
    }
    text
}

/// The words on the lines from the last one up to the first, by their parents: what other readers of the file see.
fn chain(stage: &Stage, session: SessionId) -> String {
    let record = stage.recorded(session);
    let parent = |line: LineId| {
        record.iter().find_map(|envelope| match &envelope.event {
            Event::Message { lines, parent, .. } => {
                let place = lines.iter().position(|own| *own == line)?;
                Some(if place == 0 { *parent } else { Some(lines[place - 1]) })
            }
            Event::CallEnded { line: own, parent, .. } if *own == line => Some(*parent),
            _ => None,
        })
    };
    let all = lines(&record);
    let mut at = all.last().map(|(line, _)| *line);
    let mut words = Vec::new();
    while let Some(line) = at {
        words.push(all.iter().find(|(own, _)| *own == line).unwrap().1.lines().next().unwrap().to_owned());
        at = parent(line).unwrap();
    }
    words.reverse();
    words.join(" < ")
}

async fn goes_on(stage: &Stage, session: SessionId, words: &str, expected: &Expect) {
    let from = line(stage, session, words);
    stage.play_all(resume(stage, session, at(from)), &["again"]).await.unwrap();
    let problems = Ledger::of(&stage.recorded(session)).problems();
    assert!(problems.is_empty(), "{problems:?}");
    let before = shown(stage);
    expected.assert_eq(&format!("{before}{}\n", chain(stage, session)));
    // A process that comes later has the same conversation.
    stage.play_all(resume(stage, session, None), &["later"]).await.unwrap();
    assert_eq!(
        shown(stage),
        before
            + "assistant: heard
user: later
"
    );
}

#[tokio::test(start_paused = true)]
async fn from_a_prompt() {
    let (stage, session) = counted().await;
    goes_on(
        &stage,
        session,
        "prompt look",
        &expect![[r"
        user: <environment>
        user: count
        assistant: one
        user: look
        user: again
        note context < prompt count < model one < prompt look < prompt again < model heard
    "]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn from_a_reply() {
    let (stage, session) = counted().await;
    goes_on(
        &stage,
        session,
        "model one",
        &expect![[r"
        user: <environment>
        user: count
        assistant: one
        user: again
        note context < prompt count < model one < prompt again < model heard
    "]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn from_a_call_in_the_middle_of_a_reply() {
    let (stage, session) = counted().await;
    goes_on(&stage, session, "call left", &expect![[r#"
        user: <environment>
        user: count
        assistant: one
        user: look
        assistant: I look.
        assistant: calls {"text":"left"}
        user: gets "Interrupted before it finished; it may have partly run. Look at what it may have done before d
        user: again
        note context < prompt count < model one < prompt look < model I look. < call left < result Interrupted before it finished; it may have partly run. Look at what it may have done before doing it again. < prompt again < model heard
    "#]]).await;
}

#[tokio::test(start_paused = true)]
async fn from_a_result_before_another() {
    let (stage, session) = counted().await;
    goes_on(&stage, session, "result", &expect![[r#"
        user: <environment>
        user: count
        assistant: one
        user: look
        assistant: I look.
        assistant: calls {"text":"left"}
        assistant: calls {"text":"right"}
        user: gets "left"
        user: gets "Interrupted before it finished; it may have partly run. Look at what it may have done before d
        user: again
        note context < prompt count < model one < prompt look < model I look. < call left < call right < result Interrupted before it finished; it may have partly run. Look at what it may have done before doing it again. < prompt again < model heard
    "#]]).await;
}

#[tokio::test(start_paused = true)]
async fn from_reasoning_that_led_to_nothing() {
    let (stage, session) = counted().await;
    goes_on(&stage, session, "thinking", &expect![[r#"
        user: <environment>
        user: count
        assistant: one
        user: look
        assistant: I look.
        assistant: calls {"text":"left"}
        assistant: calls {"text":"right"}
        user: gets "left"
        user: gets "right"
        assistant: seen
        user: think
        user: again
        note context < prompt count < model one < prompt look < model I look. < call left < call right < result right < model seen < prompt think < thinking < prompt again < model heard
    "#]]).await;
}

#[tokio::test(start_paused = true)]
async fn twice_and_what_was_dropped_stays_dropped() {
    let (stage, session) = counted().await;
    let dropped = line(&stage, session, "model thought");
    goes_on(&stage, session, "model seen", &expect![[r#"
        user: <environment>
        user: count
        assistant: one
        user: look
        assistant: I look.
        assistant: calls {"text":"left"}
        assistant: calls {"text":"right"}
        user: gets "left"
        user: gets "right"
        assistant: seen
        user: again
        note context < prompt count < model one < prompt look < model I look. < call left < call right < result right < model seen < prompt again < model heard
    "#]]).await;
    goes_on(&stage, session, "call left", &expect![[r#"
        user: <environment>
        user: count
        assistant: one
        user: look
        assistant: I look.
        assistant: calls {"text":"left"}
        user: gets "Interrupted before it finished; it may have partly run. Look at what it may have done before d
        user: again
        note context < prompt count < model one < prompt look < model I look. < call left < result Interrupted before it finished; it may have partly run. Look at what it may have done before doing it again. < prompt again < model heard
    "#]]).await;
    let before = stage.recorded(session);
    let error = stage.engine().open(resume(&stage, session, at(dropped))).await.unwrap_err();
    assert!(matches!(error, PlaceError::Usage(_)), "{error}");
    assert_eq!(stage.recorded(session), before, "nothing was written");
}

#[tokio::test(start_paused = true)]
async fn a_line_that_nobody_knows_changes_nothing() {
    let (stage, session) = counted().await;
    let before = stage.recorded(session);
    let unknown = LineId(uuid::Uuid::from_u128(7));
    let sessions = || stage.archive().list(None).unwrap().len();
    let known = sessions();
    let mut texts = Vec::new();
    for request in [resume(&stage, session, at(unknown)), fork(&stage, session, at(unknown))] {
        let error = stage.engine().open(request).await.unwrap_err();
        let text = error.to_string().replace(&session.to_string(), "ID");
        texts.push(text);
    }
    expect![[r"
        no message with this uuid is part of the conversation of session ID, which can also go on from its end: 00000000-0000-0000-0000-000000000007
        no message with this uuid is part of the conversation of session ID, which can also go on from its end: 00000000-0000-0000-0000-000000000007"]].assert_eq(&texts.join("\n"));
    assert_eq!(stage.recorded(session), before);
    assert_eq!(sessions(), known, "a fork of nothing leaves nothing");
}

#[tokio::test(start_paused = true)]
async fn a_fork_holds_what_the_first_held_up_to_there() {
    let (stage, session) = counted().await;
    let before = stage.recorded(session);
    let from = at(line(&stage, session, "call left"));
    let played = stage.play_all(fork(&stage, session, from), &["again"]).await.unwrap();
    let text = format!("{}{}\n", shown(&stage), chain(&stage, played.session));
    expect![[r#"
        user: <environment>
        user: count
        assistant: one
        user: look
        assistant: I look.
        assistant: calls {"text":"left"}
        user: gets "Interrupted before it finished; it may have partly run. Look at what it may have done before d
        user: again
        note context < prompt count < model one < prompt look < model I look. < call left < result Interrupted before it finished; it may have partly run. Look at what it may have done before doing it again. < prompt again < model heard
    "#]].assert_eq(&text);
    assert_eq!(stage.recorded(session), before, "the first is as it was");
    let words: Vec<String> =
        lines(&stage.recorded(played.session)).into_iter().map(|(_, text)| text).collect();
    assert!(!words.iter().any(|text| text.contains("right")), "{words:?}");
    // A fork of one that went on from an earlier line holds what that holds.
    stage
        .play_all(resume(&stage, session, at(line(&stage, session, "model one"))), &["again"])
        .await
        .unwrap();
    stage.play_all(fork(&stage, session, None), &["later"]).await.unwrap();
    expect![[r"
        user: <environment>
        user: count
        assistant: one
        user: again
        assistant: heard
        user: later
    "]]
    .assert_eq(&shown(&stage));
}

#[tokio::test(start_paused = true)]
async fn whatever_record_is_the_last_the_conversation_is_one_of_the_two() {
    let (stage, session) = counted().await;
    let old = stage.recorded(session).last().unwrap().seq;
    let from = at(line(&stage, session, "model one"));
    stage.play_all(resume(&stage, session, from), &["again"]).await.unwrap();
    let record = stage.recorded(session);
    let branched = record.iter().find(|one| matches!(one.event, Event::Branched { .. })).unwrap().seq;
    assert!(branched > old);
    for after in old..record.last().unwrap().seq {
        let crashed = stage.after_crash_at(after);
        crashed.play_all(resume(&crashed, session, None), &["later"]).await.unwrap();
        let shown = shown(&crashed);
        assert_eq!(shown.contains("calls"), after < branched, "after {after}: {shown}");
        assert!(shown.contains("one"), "after {after}: {shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_turn_that_was_meant_falls_away() {
    let (stage, session) = counted().await;
    let names = |text: String| {
        let mut text = text.replace(&session.to_string(), "ID");
        for (line, words) in lines(&stage.recorded(session)) {
            text = text.replace(&line.to_string(), &format!("<{words}>"));
        }
        text
    };
    let mut told = String::new();
    for (from, drops) in [
        ("model one", "prompt look"),
        ("model seen", "prompt look"),
        ("model seen", "model thought"),
        ("model thought", "prompt think"),
        ("call left", "prompt think"),
        ("result", "prompt think"),
    ] {
        let wanted =
            ResumeAt { line: line(&stage, session, from), drops: Some(line(&stage, session, drops)) };
        let before = stage.recorded(session);
        let error = stage.engine().open(resume(&stage, session, Some(wanted))).await.unwrap_err();
        assert!(matches!(error, PlaceError::Usage(_)), "{error}");
        told.push_str(&names(format!("{error}\n")));
        assert_eq!(stage.recorded(session), before);
    }
    expect![[r"
        Resume rejected by --resume-drops-turn: more or less than the turn of <prompt look> would be dropped: there is another prompt behind it, <prompt think>; nothing was changed
        Resume rejected by --resume-drops-turn: more or less than the turn of <prompt look> would be dropped: there is another prompt behind it, <prompt think>; nothing was changed
        Resume rejected by --resume-drops-turn: more or less than the turn of <model thought> would be dropped: there is another prompt behind it, <prompt think>; nothing was changed
        Resume rejected by --resume-drops-turn: more or less than the turn of <prompt think> would be dropped: it is no prompt behind <model thought>; nothing was changed
        Resume rejected by --resume-drops-turn: more or less than the turn of <prompt think> would be dropped: it would drop the end of the turn before, from <call right> on; nothing was changed
        Resume rejected by --resume-drops-turn: more or less than the turn of <prompt think> would be dropped: it would drop the end of the turn before, from <result right> on; nothing was changed
    "]].assert_eq(&told);
    let wanted = |words: &str| line(&stage, session, words);
    let right = ResumeAt { line: wanted("model seen"), drops: Some(wanted("prompt think")) };
    stage.play_all(resume(&stage, session, Some(right)), &["again"]).await.unwrap();
    assert!(shown(&stage).ends_with("assistant: seen\nuser: again\n"), "{}", shown(&stage));
}

#[tokio::test(start_paused = true)]
async fn from_before_a_summary() {
    let mut stage = Stage::new(
        r#"
when match="about to be shortened"
  say "SUMMARY"
when match="again"
  say "heard"
when text="one"
  say "first"
when
  say repeat=1500 "x"
  usage input=3000 output=500
"#,
    );
    stage.info.window = 5_000;
    let played = stage.play_all(stage.request.clone(), &["one", "two", "three"]).await.unwrap();
    assert!(shown(&stage).contains("Summary of"), "{}", shown(&stage));
    let from = line(&stage, played.session, "model first");
    stage.play_all(resume(&stage, played.session, at(from)), &["again"]).await.unwrap();
    expect![[r"
        user: <environment>
        user: one
        assistant: first
        user: again
    "]]
    .assert_eq(&shown(&stage));
}

/// What a session reads again from its own record while it lives is the conversation as it is now.
#[tokio::test(start_paused = true)]
async fn an_interrupt_brings_nothing_back() {
    let (stage, session) = counted().await;
    let stage =
        stage.resuming("when text=\"wait\"\n  call Poke {\"text\": \"hang\"}\nwhen\n  say \"heard\"\n");
    let from = at(line(&stage, session, "model one"));
    let mut link = stage.engine().open(resume(&stage, session, from)).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("wait")] }).await;
    while !matches!(link.events.next().await.unwrap().event, Event::CallStarted { .. }) {}
    send(&link, 2, Command::Interrupt).await;
    stage.listen(&mut link, &mut Vec::new()).await;
    send(&link, 3, Command::Prompt { blocks: vec![Block::text("go on")] }).await;
    stage.listen(&mut link, &mut Vec::new()).await;
    expect![[r#"
        user: <environment>
        user: count
        assistant: one
        user: wait
        assistant: calls {"text":"hang"}
        user: gets "Interrupted before it finished; it may have partly run. Look at what it may have done before d
        user: go on
    "#]]
    .assert_eq(&shown(&stage));
}

/// A fork sees its parent's conversation as it was when it was begun, also where a later process takes it up.
#[tokio::test(start_paused = true)]
async fn a_fork_below_sees_what_its_parent_saw() {
    let mut first = Stage::new(CALLS);
    first.agent_settings = AgentSettings::default();
    let session = first.play_all(first.request.clone(), &["count", "look"]).await.unwrap().session;
    let stage = first.resuming(
        r#"
when text="Look at the sky"
  delay 60s
  say "blue"
when text="delegate"
  call Agent {"description": "sky", "prompt": "Look at the sky", "subagent_type": "fork", "run_in_background": true}
when
  say "heard"
"#,
    );
    let from = at(line(&stage, session, "model one"));
    stage.play_all(resume(&stage, session, from), &["delegate"]).await.unwrap();
    let of_fork = |stage: &Stage| {
        let shown = stage.requests().iter().map(|body| text_of(body)).collect::<Vec<_>>();
        let last = |text: &&String| text.lines().last().unwrap().contains("Look at the sky");
        shown.iter().rfind(last).unwrap_or_else(|| panic!("{shown:#?}")).clone()
    };
    let live = of_fork(&stage);
    expect![[r#"
        user: <environment>
        user: count
        assistant: one
        user: delegate
        assistant: calls {"description":"sky","prompt":"Look at the sky","subagent_type":"fork","run_in_background":tru
        user: gets "You are now the agent that this call started. Everything above is your parent's conversation, 
        user: Look at the sky
    "#]].assert_eq(&live);
    let record = stage.recorded(session);
    let begun = record.iter().rfind(|one| {
        one.agent.is_some()
            && matches!(&one.event, Event::Message { meta, .. } if meta.origin == Origin::Prompt)
    });
    let crashed = stage.after_crash_at(begun.unwrap().seq);
    crashed.play_all(resume(&crashed, session, None), &["there?"]).await.unwrap();
    assert_eq!(of_fork(&crashed), live);
}

const AGENTS: &str = r#"
when agent=worker first="early"
  delay 60s
  say "early is done"
when agent=worker first="late"
  delay 30s
  say "late is done"
when agent=worker
  delay 1s
  say "told is done"
when text="begin early"
  call Agent {"description": "early", "prompt": "early", "subagent_type": "worker", "run_in_background": true}
when text="begin late"
  call Agent {"description": "late", "prompt": "late", "subagent_type": "worker", "run_in_background": true}
when text="task-notification"
  say "noted"
when
  say "well"
"#;

/// The words of what was told of endings to the root, in order.
fn told(record: &[Envelope]) -> Vec<&'static str> {
    let words = ["early is done", "late is done"];
    let notes = record.iter().filter(|one| one.agent.is_none()).filter_map(|one| match &one.event {
        Event::Message { message, meta, .. } if !meta.delivers.is_empty() => Some(message.text()),
        _ => None,
    });
    notes.flat_map(|text| words.into_iter().filter(move |word| text.contains(word))).collect()
}

#[tokio::test(start_paused = true)]
async fn what_was_begun_in_the_dropped_part_is_ended_and_not_told_of() {
    let mut stage = Stage::new(AGENTS);
    stage.agent_settings = AgentSettings::default();
    let whole = stage.play_all(stage.request.clone(), &["begin early", "begin late"]).await.unwrap();
    let session = whole.session;
    let record = stage.recorded(session);
    assert_eq!(told(&record), ["late is done", "early is done"]);
    // The process died while both were at work.
    let prompts = |one: &&Envelope| {
        one.agent.is_some()
            && matches!(&one.event, Event::Message { meta, .. } if meta.origin == Origin::Prompt)
    };
    let begun = record.iter().filter(prompts).nth(1).unwrap().seq;
    let from = record.iter().filter(|one| one.agent.is_none()).filter_map(|one| match &one.event {
        Event::Message { lines, message, .. } if message.text() == "well" => lines.last().copied(),
        _ => None,
    });
    let from = from.collect::<Vec<_>>()[0];
    let crashed = stage.after_crash_at(begun);
    crashed.play_all(resume(&crashed, session, at(from)), &["go on"]).await.unwrap();
    let record = crashed.recorded(session);
    assert_eq!(told(&record), ["early is done"], "the one begun before goes on and is told of");
    let killed = record.iter().filter_map(|one| match &one.event {
        Event::TaskChanged { state: TaskState::Ended(Outcome::Killed { by }), .. } => Some(by.as_str()),
        _ => None,
    });
    expect!["the session, which goes on from before it was begun"]
        .assert_eq(&killed.collect::<Vec<_>>().join("\n"));
    let problems = Ledger::of(&record).problems();
    assert!(problems.is_empty(), "{problems:?}");
    // Wherever that process dies, nobody is told later either.
    let branched = record.iter().find(|one| matches!(one.event, Event::Branched { .. })).unwrap().seq;
    for after in branched..record.last().unwrap().seq {
        let again = crashed.after_crash_at(after);
        again.play_all(resume(&again, session, None), &["there?"]).await.unwrap();
        let record = again.recorded(session);
        assert_eq!(told(&record), ["early is done"], "after {after}");
        assert!(
            record.iter().all(|one| !matches!(&one.event,
            Event::Message { message, .. } if message.text() == "late is done")),
            "after {after}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_ended_in_the_dropped_part_and_was_not_told_is_told_to_nobody() {
    let mut stage = Stage::new(AGENTS);
    stage.agent_settings = AgentSettings::default();
    let whole = stage.play_all(stage.request.clone(), &["hello", "begin late"]).await.unwrap();
    let session = whole.session;
    let record = stage.recorded(session);
    let ended = |one: &&Envelope| one.agent.is_some() && matches!(one.event, Event::RunEnded { .. });
    let crashed = stage.after_crash_at(record.iter().find(ended).unwrap().seq);
    let from = line(&crashed, session, "model well");
    crashed.play_all(resume(&crashed, session, at(from)), &["go on"]).await.unwrap();
    assert_eq!(told(&crashed.recorded(session)), Vec::<&str>::new());
    // What was begun before and told of in the dropped part stays told.
    let mut said =
        lines(&record).into_iter().filter(|(_, words)| words == "model well").map(|(line, _)| line);
    let from = said.next_back().unwrap();
    stage.play_all(resume(&stage, session, at(from)), &["go on"]).await.unwrap();
    assert!(!shown(&stage).contains("noted"), "{}", shown(&stage));
    assert_eq!(told(&stage.recorded(session)), ["late is done"]);
}
