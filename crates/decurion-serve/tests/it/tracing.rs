//! Traces of sessions as they really are: parallel agents, a queue, questions, limits, crashes, lost records.

use std::sync::Arc;
use std::time::Duration;

use decurion_protocol::{
    AgentId, Answer, Block, Clock, Envelope, Event, LineId, Message, MessageMeta, OpenSession, Origin,
    SessionId, Start, TaskKind, TaskRecord, Timing, ToolOutput, Usage, WaitKind,
};
use decurion_serve::trace::{SpanKind, Timeline, TimelineFold};
use decurion_testkit::stage::{Plain, Stage};
use decurion_testkit::trace_events::{Shape, check};
use expect_test::expect;
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

/// A clock that goes with simulated time, so that a wait of seven seconds is seven seconds long.
struct Simulated(Instant);

impl Clock for Simulated {
    fn date(&self) -> Timestamp {
        Timestamp::from_millisecond(1_800_000_000_000).unwrap() + self.elapsed()
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

fn stage(script: &str) -> Stage {
    let mut stage = Stage::new(script);
    stage.clock = Arc::new(Simulated(Instant::now()));
    stage.agent_settings.max_depth = 2;
    stage
}

fn timeline<'a>(events: impl IntoIterator<Item = &'a Envelope>) -> Timeline {
    let mut fold = TimelineFold::new();
    events.into_iter().for_each(|envelope| fold.take(envelope));
    fold.finish()
}

fn json(timeline: &Timeline) -> Value {
    let mut out = Vec::new();
    timeline.write_json(&mut out).unwrap();
    serde_json::from_slice(&out).unwrap()
}

/// The shape of a trace, which must be a good one, with a picture that is one.
fn shape(timeline: &Timeline) -> Shape {
    well_formed(&timeline.svg());
    check(&json(timeline)).unwrap_or_else(|problems| panic!("{problems:#?}\n{}", render(timeline)))
}

/// A timeline as lines: who, what, from when to when in milliseconds.
fn render(timeline: &Timeline) -> String {
    let mut text = String::new();
    for (place, lane) in timeline.agents.iter().enumerate() {
        let outcome = lane.outcome.unwrap_or("-");
        text += &format!("{}{} {:?}: {outcome}\n", "  ".repeat(lane.depth), lane.kind, lane.description);
        for span in timeline.spans.iter().filter(|span| span.lane == place) {
            let mark = if span.unfinished { " (unfinished)" } else { "" };
            let (track, kind) = (span.track, span.kind.word());
            let (from, to) = (span.from / 1_000, span.to / 1_000);
            text += &format!("  {track} {from:>6} {to:>6}  {kind} {}{mark}\n", span.name);
        }
    }
    for flow in &timeline.flows {
        let (from, to) = (flow.from, flow.to);
        let mark = if flow.unfinished { " (unfinished)" } else { "" };
        text += &format!(
            "{} {}.{}@{} → {}.{}@{}{mark}\n",
            flow.kind.word(),
            from.lane,
            from.track,
            from.at.div_ceil(1_000),
            to.lane,
            to.track,
            to.at.div_ceil(1_000)
        );
    }
    text
}

/// Every element is closed, every attribute quoted, and nothing runs or is fetched.
fn well_formed(svg: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = svg;
    while let Some(start) = rest.find('<') {
        assert!(!rest[..start].contains('>'), "a stray > in {:?}", &rest[..start]);
        let end = rest[start..].find('>').unwrap() + start;
        let tag = &rest[start + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap();
        assert!(!matches!(name, "script" | "image" | "a" | "foreignObject" | "use"), "{tag}");
        assert!(!tag.contains(" on") && !tag.contains("href"), "{tag}");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        rest = &rest[end + 1..];
    }
    assert_eq!(open, Vec::<&str>::new());
}

/// Two agents side by side of which one waits for a place, a question, a limit, a broken reply, parallel calls,
/// and one in the background that the root hears of later.
const EVERYTHING: &str = r#"
when agent=worker turn=1 first="one"
  delay 2s
  call Push {"text": "x"}
when agent=worker turn=1 first="two" try=1
  fail 429 retry-after=7
when agent=worker turn=1 first="two"
  delay 1s
  say "two is done"
when agent=worker first="three"
  delay 4s
  say "three is done"
when agent=worker
  delay 1s
  say "one is done"
when agent=main turn=1
  delay 3s
  call Echo {"text": "a"}
  call Echo {"text": "b"}
  call Agent {"description": "first", "prompt": "one", "subagent_type": "worker"}
  call Agent {"description": "second", "prompt": "two", "subagent_type": "worker"}
when agent=main turn=2 try=1
  delay 1s
  reset
when agent=main turn=2
  call Agent {"description": "third", "prompt": "three", "subagent_type": "worker", "run_in_background": true}
when agent=main
  delay 1s
  say "done"
"#;

async fn everything() -> (Stage, SessionId) {
    let mut stage = stage(EVERYTHING);
    stage.agent_settings.max_running = 1;
    stage.tools = vec![Arc::new(Plain::named("Push"))];
    stage.request.answers = true;
    stage.answer = Some(Answer::Allow { input: None, rules: Vec::new(), everywhere: false });
    let session = stage.play("go").await.session;
    (stage, session)
}

#[tokio::test(start_paused = true)]
async fn what_took_the_time_is_seen() {
    let (stage, session) = everything().await;
    let timeline = timeline(&stage.recorded(session));
    expect![[r#"
        main "": completed
          0      0  16209  run main
          0      0  14000  turn turn 1
          0      0   3000  model scripted
          0   3000   6000  tool Agent
          0   3000   3000  tool Echo
          0   3000   3000  tool Echo
          0  14000  15209  turn turn 2
          0  14000  15209  model scripted
          0  15000  15209  retry wait to try again
          0  15209  16209  turn turn 3
          0  15209  16209  model scripted
          0  15209  15209  tool Agent
          0  19209  20209  run main
          0  19209  20209  turn turn 4
          0  19209  20209  model scripted
          1   3000  14000  tool Agent
          worker "first": completed
          0   3000   6000  run first
          0   3000   5000  turn turn 1
          0   3000   5000  model scripted
          0   5000   6000  turn turn 2
          0   5000   6000  model scripted
          0   5000   5000  permission permission: Push
          0   5000   5000  tool Push
          worker "second": completed
          0   3000  14000  run second
          0   3000   6000  queue queue
          0   6000  14000  turn turn 1
          0   6000  14000  model scripted
          0   6000  13000  rate_limit rate limit
          worker "third": completed
          0  15209  19209  run third
          0  15209  19209  turn turn 1
          0  15209  19209  model scripted
        spawn 0.0@3000 → 1.0@3000
        spawn 0.1@3000 → 2.0@3000
        report 1.0@6000 → 0.0@6000
        report 2.0@14000 → 0.1@14000
        spawn 0.0@15209 → 3.0@15209
        report 3.0@19209 → 0.0@19209
    "#]]
    .assert_eq(&render(&timeline));
    expect![[r#"
        Shape {
            processes: 4,
            threads: 5,
            spans: {
                "model": 8,
                "permission": 1,
                "queue": 1,
                "rate_limit": 1,
                "retry": 1,
                "run": 5,
                "tool": 6,
                "turn": 8,
            },
            instants: {
                "completed": 5,
                "selected": 5,
            },
            flows: {
                "report": 3,
                "spawn": 3,
            },
            unfinished: 0,
            counters: 24,
        }
    "#]]
    .assert_debug_eq(&shape(&timeline));
    // What was decided for the first agent, and what came of it.
    let told = |name: &str| {
        let facts = &timeline
            .instants
            .iter()
            .find(|instant| instant.lane == 1 && instant.name == name)
            .unwrap()
            .facts;
        // What a request costs depends on what agents are told, which is not this test's matter.
        let plain = facts.iter().filter(|(name, _)| !name.contains("tokens") && !name.contains("usd"));
        plain.map(|(name, value)| format!("{name}={value}\n")).collect::<String>()
    };
    expect![[r#"
        type="worker"
        source="builtin"
        model="scripted"
        why="nothing names one, so it is the parent's"
        background=false
        fork=false
        depth=1
        request="agent:builtin"
    "#]]
    .assert_eq(&told("selected"));
    expect![[r#"
        outcome="completed"
        duration_ms=3000
        model_ms=3000
        tools=1
    "#]]
    .assert_eq(&told("completed"));
    let limit = timeline.spans.iter().find(|span| span.kind == SpanKind::WaitLimit).unwrap();
    assert_eq!(limit.to - limit.from, 7_000_000);
}

#[tokio::test(start_paused = true)]
async fn whatever_is_missing_the_trace_is_a_good_one() {
    let (stage, session) = everything().await;
    let whole = stage.recorded(session);
    let count = shape(&timeline(&whole)).spans.values().sum::<usize>();
    for length in 0..whole.len() {
        let shape = shape(&timeline(&whole[..length]));
        assert!(shape.spans.values().sum::<usize>() <= count);
    }
    for lost in 0..whole.len() {
        let rest = whole.iter().enumerate().filter(|(place, _)| *place != lost);
        shape(&timeline(rest.map(|(_, envelope)| envelope)));
    }
    for wrong in 0..whole.len() {
        for hours in [-1, 1] {
            let mut events = whole.clone();
            events[wrong].at += jiff::SignedDuration::from_hours(hours);
            shape(&timeline(&events));
        }
    }
    // Nothing of a file of someone else's making may break it either.
    let mut backwards = whole.clone();
    backwards.reverse();
    shape(&timeline(&backwards));
    shape(&timeline(whole.iter().chain(&whole)));
}

#[tokio::test(start_paused = true)]
async fn what_a_crash_cut_off_ends_where_it_was_last_seen() {
    let script = r#"
when agent=worker turn=1
  delay 1s
  call Echo {"text": "looking"}
when agent=worker
  delay 1s
  say "found it"
when agent=main turn=1
  call Agent {"description": "one", "prompt": "one", "subagent_type": "worker"}
when agent=main
  say "heard"
"#;
    let first = stage(script);
    let session = first.play("go").await.session;
    let whole = first.recorded(session);
    let last = whole.last().unwrap().seq;
    for after in 1..last {
        let mut again = first.after_crash_at(after);
        again.clock = Arc::new(Late(Simulated(Instant::now())));
        let died = timeline(&again.recorded(session));
        shape(&died);
        let request = OpenSession { start: Start::Resume { id: session, at: None }, ..again.request.clone() };
        again.play_all(request, &["are you there?"]).await.unwrap();
        let went_on = timeline(&again.recorded(session));
        shape(&went_on);
        for span in went_on.spans.iter().filter(|span| span.unfinished) {
            assert!(span.to <= died.end, "{after}: {span:?} went on after the crash");
        }
        let unfinished = |timeline: &Timeline| timeline.spans.iter().filter(|span| span.unfinished).count();
        assert_eq!(unfinished(&died), unfinished(&went_on), "{after}\n{}", render(&went_on));
        assert!(went_on.end >= 3_600_000_000, "the second process came an hour later");
    }
}

/// The same an hour later.
struct Late(Simulated);

impl Clock for Late {
    fn date(&self) -> Timestamp {
        self.0.date() + jiff::SignedDuration::from_hours(1)
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

fn at(seq: u64, agent: Option<&AgentId>, event: Event) -> Envelope {
    let at = Timestamp::from_millisecond(1_800_000_000_000 + i64::try_from(seq).unwrap()).unwrap();
    let run = decurion_protocol::RunId(uuid::Uuid::nil());
    Envelope { seq, at, agent: agent.cloned(), run, event }
}

fn reply(text: &str, timing: Option<Timing>) -> Event {
    let meta = MessageMeta {
        origin: Origin::Model,
        message_id: Some("msg".into()),
        model: Some(text.into()),
        usage: Some(Usage { input_tokens: 10, output_tokens: 2, ..Usage::default() }),
        timing,
        ..MessageMeta::default()
    };
    let message = Message::assistant(vec![Block::text(text)]);
    Event::Message { message, lines: vec![LineId(uuid::Uuid::nil())], parent: None, meta: Box::new(meta) }
}

fn opened(agent: &str, description: &str) -> Event {
    Event::TaskOpened {
        record: Box::new(TaskRecord {
            task: agent.parse().unwrap(),
            kind: TaskKind::LocalAgent,
            description: description.into(),
            prompt: String::new(),
            parent: None,
            first_parent: None,
            call: None,
            agent_type: Some(description.into()),
            depth: 1,
            attention: decurion_protocol::Attention::Foreground,
            output_file: "/x".into(),
        }),
    }
}

#[test]
fn a_small_trace() {
    let mut timing = Timing { ms: 30, ..Timing::default() };
    timing.waited(WaitKind::Turn, 5, 15);
    let output = Box::new(ToolOutput::text("fine"));
    let call = || decurion_protocol::CallId("call-1".into());
    let line = LineId(uuid::Uuid::nil());
    let started: Event = serde_json::from_value(serde_json::json!({
        "type": "call_started", "call": "call-1", "tool": "Read", "intent": {"title": "Read a.rs", "overlap": "alone"},
        "decision": {"decision": "allow", "rule": null, "reason": "reads"},
    }))
    .unwrap();
    let asked: Event = serde_json::from_value(serde_json::json!({"type": "asked", "question": {
        "id": uuid::Uuid::nil(), "agent": null, "call": "call-1", "tool": "Read", "input": {},
        "intent": {"title": "Read a.rs", "overlap": "alone"}, "reason": "outside of the folder",
    }}))
    .unwrap();
    let answer = Answer::Allow { input: None, rules: Vec::new(), everywhere: false };
    let question = decurion_protocol::QuestionId(uuid::Uuid::nil());
    let answered = Event::Answered { question, answer, by: "user".into() };
    let ended =
        Event::CallEnded { call: call(), tool: "Read".into(), line, parent: None, output, duration_ms: 5 };
    let events = [
        at(0, None, prompt("go")),
        at(40, None, reply("a-model", Some(timing))),
        at(41, None, asked),
        at(81, None, answered),
        at(82, None, started),
        at(87, None, ended),
    ];
    let mut out = Vec::new();
    timeline(&events).write_json(&mut out).unwrap();
    check(&serde_json::from_slice(&out).unwrap()).unwrap();
    expect![[r#"
        {"displayTimeUnit":"ms","otherData":{"session":null,"began":"2027-01-15T08:00:00Z","agents":1},"traceEvents":[
        {"ph":"M","name":"process_name","pid":1,"tid":1,"ts":0,"args":{"name":"main (main)"}},
        {"ph":"M","name":"process_labels","pid":1,"tid":1,"ts":0,"args":{"labels":"unfinished"}},
        {"ph":"M","name":"process_sort_index","pid":1,"tid":1,"ts":0,"args":{"sort_index":0}},
        {"ph":"M","name":"thread_name","pid":1,"tid":1,"ts":0,"args":{"name":"main"}},
        {"ph":"M","name":"thread_sort_index","pid":1,"tid":1,"ts":0,"args":{"sort_index":0}},
        {"ph":"X","name":"earlier","cat":"run","pid":1,"tid":1,"ts":0,"dur":87000,"args":{"agent":null,"recorded":"elsewhere"}},
        {"ph":"X","name":"turn 1","cat":"turn","pid":1,"tid":1,"ts":10000,"dur":77000,"args":{}},
        {"ph":"X","name":"a-model","cat":"model","pid":1,"tid":1,"ts":10000,"dur":30000,"args":{"request":"main","input_tokens":10,"output_tokens":2,"cache_read_tokens":0,"cache_write_tokens":0}},
        {"ph":"X","name":"wait for the provider","cat":"provider","pid":1,"tid":1,"ts":15000,"dur":10000,"args":{}},
        {"ph":"X","name":"permission: Read","cat":"permission","pid":1,"tid":1,"ts":41000,"dur":40000,"args":{"tool":"Read","reason":"outside of the folder","by":"user"}},
        {"ph":"X","name":"Read","cat":"tool","pid":1,"tid":1,"ts":82000,"dur":5000,"args":{"call":"call-1","title":"Read a.rs","is_error":false}},
        {"ph":"C","name":"tokens","cat":"usage","pid":1,"tid":1,"ts":40000,"args":{"input":10,"output":2,"cache_read":0,"cache_write":0}},
        {"ph":"C","name":"cost","cat":"usage","pid":1,"tid":1,"ts":40000,"args":{"usd":0.0}}
        ]}
    "#]].assert_eq(&String::from_utf8(out).unwrap());
}

fn prompt(text: &str) -> Event {
    let lines = vec![LineId(uuid::Uuid::nil())];
    Event::Message { message: Message::user(text), lines, parent: None, meta: Box::default() }
}

#[test]
fn what_a_model_says_stays_text() {
    let evil =
        "</title><script>alert(1)</script>\u{1b}[31m\"' onload=x \u{ffff}".to_owned() + &"x".repeat(100_000);
    let agent: AgentId = "a0123456789abcdef".parse().unwrap();
    let refused: Event = serde_json::from_value(serde_json::json!({
        "type": "call_refused", "call": evil, "tool": evil, "input": {},
        "decision": {"decision": "deny", "rule": null, "reason": evil},
    }))
    .unwrap();
    let ended = Event::CallEnded {
        call: decurion_protocol::CallId(evil.clone()),
        tool: evil.clone(),
        line: LineId(uuid::Uuid::nil()),
        parent: None,
        output: Box::new(ToolOutput::error("no")),
        duration_ms: 0,
    };
    let events = [
        at(0, None, prompt(&evil)),
        at(1, None, opened(agent.as_str(), &evil)),
        at(2, Some(&agent), reply(&evil, None)),
        at(3, Some(&agent), refused),
        at(4, Some(&agent), ended),
        at(5, None, Event::Notice { level: evil.clone(), text: evil }),
    ];
    let timeline = timeline(&events);
    shape(&timeline);
    assert!(timeline.svg().len() < 20_000, "{}", timeline.svg().len());
    assert!(json(&timeline).to_string().len() < 20_000);
}

#[test]
fn a_picture_of_very_many_agents_says_whom_it_leaves_out() {
    let mut events = vec![at(0, None, prompt("go"))];
    for number in 0..300_u64 {
        let agent: AgentId = format!("a{number:016x}").parse().unwrap();
        events.push(at(2 * number + 1, None, opened(agent.as_str(), "worker")));
        events.push(at(2 * number + 2, Some(&agent), reply("done", None)));
    }
    let many = timeline(&events);
    assert_eq!((shape(&many).processes, many.agents.len()), (301, 301));
    let svg = many.svg();
    assert!(svg.contains("… and 101 more agents, left out of the picture"));
    assert_eq!(svg.matches("class=\"kind\"").count(), 200);
    let one = timeline(&events[..1]).svg();
    assert!(one.contains("1 agent ·") && !one.contains("left out"));
    well_formed(&timeline(&[]).svg());
    shape(&timeline(&[]));
}
