//! Any event, written and read back, is the same event.

use camino::Utf8PathBuf;
use decurion_protocol::event::{Event, MessageMeta, Origin, Timing, WaitKind};
use decurion_protocol::{
    AgentId, Block, CallId, Decision, Delivery, EndingId, Envelope, FileBefore, Intent, LineId, Message,
    Mode, Money, Outcome, Role, RunId, TaskState, ToolContent, ToolEffect, ToolOutput, Usage, Verdict,
};
use decurion_store::{Journal, ReplayOptions, ReplayReport, Scope};
use proptest::prelude::*;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::samples::{Home, date, envelope, info, prompt, read};

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[a-z ]{0,20}",
        any::<String>(),
        Just("line\n\u{2028}\u{0}\"\\ {\"$blob\":\"x\"}\u{1F600}".to_owned()),
    ]
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        prop::num::f64::NORMAL.prop_map(Value::from),
        any_text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((any_text(), inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn any_line() -> impl Strategy<Value = LineId> {
    any::<u128>().prop_map(|number| LineId(Uuid::from_u128(number)))
}

fn any_content() -> impl Strategy<Value = ToolContent> {
    let simple = prop_oneof![
        any_text().prop_map(Block::text),
        any_value().prop_map(|source| Block::Image { source }),
    ];
    prop_oneof![
        any_text().prop_map(ToolContent::Text),
        prop::collection::vec(simple, 0..3).prop_map(ToolContent::Blocks),
    ]
}

fn any_block() -> impl Strategy<Value = Block> {
    let extra = prop::option::of(any_value()).prop_map(|value| {
        let mut extra = Map::new();
        value.and_then(|value| extra.insert("later".into(), value));
        extra
    });
    prop_oneof![
        any_text().prop_map(Block::text),
        (any_text(), prop::option::of(any_text()), extra)
            .prop_map(|(thinking, signature, extra)| Block::Thinking { thinking, signature, extra }),
        (any_text(), any_text(), any_value()).prop_map(|(id, name, input)| Block::ToolUse {
            id: CallId(id),
            name,
            input
        }),
        (any_text(), any_content(), any::<bool>()).prop_map(|(id, content, is_error)| Block::ToolResult {
            id: CallId(id),
            content,
            is_error
        }),
        any_value().prop_map(|source| Block::Document { source }),
        any_value().prop_map(|data| Block::Opaque(serde_json::json!({"type": "later_kind", "data": data}))),
        // Known kinds that lack what makes them known, and things that are no blocks at all.
        Just(Block::Opaque(serde_json::json!({"type": "text"}))),
        Just(Block::Opaque(serde_json::json!({"type": "tool_use", "id": 7}))),
        Just(Block::Opaque(serde_json::json!({"type": "tool_result", "content": "x"}))),
        Just(Block::Opaque(serde_json::json!({"data": 1, "kind": "x"}))),
        Just(Block::Opaque(serde_json::json!({}))),
        Just(Block::Opaque(Value::Null)),
        Just(Block::Opaque(serde_json::json!([1, "a"]))),
        any_text().prop_map(|text| Block::Opaque(Value::from(text))),
    ]
}

fn any_meta() -> impl Strategy<Value = MessageMeta> {
    let origin = prop_oneof![
        Just(Origin::Prompt),
        Just(Origin::Model),
        any_text().prop_map(Origin::Note),
        Just(Origin::Synthetic),
    ];
    let usage = (any::<u32>(), any_value()).prop_map(|(tokens, other)| {
        let mut usage = Usage { output_tokens: tokens.into(), ..Usage::default() };
        usage.other.insert("service_tier".into(), other);
        usage
    });
    let text = || prop::option::of(any_text());
    let timing = (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(ms, from, more)| {
        let mut timing = Timing { ms, ..Timing::default() };
        timing.waited(WaitKind::Limit, from.into(), u64::from(from) + u64::from(more));
        timing
    });
    let failed = (text(), prop::option::of(any::<u16>()));
    let spent = (prop::option::of(any::<u64>()), prop::option::of(timing), failed);
    (origin, text(), text(), (text(), text()), text(), prop::option::of(usage), spent).prop_map(
        |(
            origin,
            message_id,
            request_id,
            (model, asked_model),
            stop_reason,
            usage,
            (cost, timing, (error, error_status)),
        )| MessageMeta {
            origin,
            message_id,
            request_id,
            model,
            asked_model,
            stop_reason,
            usage,
            cost: cost.map(Money),
            delivers: Vec::new(),
            timing,
            error,
            error_status,
            skills: Vec::new(),
            effects: Vec::new(),
        },
    )
}

fn any_message() -> impl Strategy<Value = Event> {
    let role = prop_oneof![Just(Role::User), Just(Role::Assistant)];
    let blocks = prop::collection::vec(any_block(), 0..4);
    (role, blocks, any::<bool>(), any::<u128>(), prop::option::of(any_line()), any_meta()).prop_map(
        |(role, blocks, odd, id, parent, mut meta)| {
            // Only what an agent hears delivers something.
            if role == Role::User && id % 2 == 0 {
                let run = Some(RunId(uuid::Uuid::from_u128(id)));
                let task = "a0123456789abcdef".parse().unwrap();
                meta.skills = vec!["review".to_owned()];
                meta.delivers = vec![Delivery::Mail(7), Delivery::Ending(EndingId { task, run })];
            }
            // Now and then a number of lines that does not fit, which must not be lost either.
            let count = if role == Role::User { 1 } else { blocks.len() };
            let count = if odd && id % 5 == 0 { count + 1 } else { count };
            let lines =
                (0..count as u128).map(|place| LineId(Uuid::from_u128(id.wrapping_add(place)))).collect();
            Event::Message { message: Message { role, blocks }, lines, parent, meta: Box::new(meta) }
        },
    )
}

fn any_output() -> impl Strategy<Value = ToolOutput> {
    let effect = prop_oneof![
        any_text().prop_map(|cwd| ToolEffect::Moved { cwd: Utf8PathBuf::from(cwd) }),
        any_value().prop_map(|todos| ToolEffect::Todos { todos }),
        any_text().prop_map(|hash| ToolEffect::Saw { path: "/x".into(), hash }),
    ];
    (any_content(), any::<bool>(), prop::option::of(any_value()), prop::collection::vec(effect, 0..3))
        .prop_map(|(content, is_error, structured, effects)| ToolOutput {
            content,
            is_error,
            structured,
            effects,
        })
}

fn any_before() -> impl Strategy<Value = FileBefore> {
    prop_oneof![
        Just(FileBefore::Missing),
        (any_text(), any::<u32>()).prop_map(|(hash, mode)| FileBefore::Kept { hash, mode }),
        any_text().prop_map(|reason| FileBefore::NotKept { reason }),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => any_message(),
        3 => (any_text(), any_text(), any_line(), prop::option::of(any_line()), any_output(), any::<u64>()).prop_map(
            |(call, tool, line, parent, output, duration_ms)| Event::CallEnded {
                call: CallId(call), tool, line, parent, output: Box::new(output), duration_ms,
            }
        ),
        1 => (any_line(), any_line(), prop::option::of(any_line()), prop::collection::vec(any_block(), 0..3),
              prop::collection::vec(any_line(), 0..4), any_text(), any::<u64>(), any_value()).prop_map(
            |(boundary, line, logical_parent, blocks, kept, trigger, tokens_before, checkpoint)| Event::Compacted {
                boundary, line, logical_parent,
                summary: Message { role: Role::User, blocks },
                kept, trigger, tokens_before, checkpoint,
            }
        ),
        1 => (any_text(), any_text(), any_text(), prop::option::of(any_value())).prop_map(
            |(call, tool, title, input)| Event::CallStarted {
                call: CallId(call), tool,
                intent: Box::new(Intent::titled(title)),
                decision: Decision { verdict: Verdict::Allow, rule: None, reason: String::new(), profile: None },
                input,
            }
        ),
        1 => any_text().prop_map(|report| Event::TaskChanged {
            task: "b12345678".parse().unwrap(),
            state: TaskState::Ended(Outcome::Completed { report, limit: None }),
        }),
        1 => Just(Event::ModeChanged { mode: Mode::Plan }),
        1 => (prop::option::of(any_text()), any_text(), any_before()).prop_map(|(call, path, before)| Event::Checkpointed {
            call: call.map(CallId), path: path.into(), before,
        }),
        1 => (any_text(), any_text()).prop_map(|(level, text)| Event::Notice { level, text }),
        1 => any_value().prop_map(|value| Event::Unknown(serde_json::json!({"type": "later", "value": value}))),
    ]
}

fn any_agent() -> impl Strategy<Value = Option<AgentId>> {
    prop::option::of("a[0-9a-f]{2}".prop_map(|name| name.parse().unwrap()))
}

fn any_envelopes() -> impl Strategy<Value = Vec<Envelope>> {
    let one = (any_event(), any_agent(), 0i64..4_000_000_000_000, any::<u128>());
    prop::collection::vec(one, 1..12).prop_map(|all| {
        let numbered = (1u64..).zip(all);
        numbered
            .map(|(seq, (event, agent, at, run))| Envelope {
                seq,
                at: jiff::Timestamp::from_millisecond(at).unwrap(),
                agent,
                run: RunId(Uuid::from_u128(run)),
                event,
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(events in any_envelopes(), batch in 1usize..5) {
        let home = Home::new();
        let mut writer = home.create(1);
        for batch in events.chunks(batch) {
            writer.append(batch).unwrap();
        }
        drop(writer);
        let (read, report) = home.read(1);
        prop_assert_eq!(&read, &events);
        let unknown = events.iter().filter(|event| matches!(event.event, Event::Unknown(_))).count() as u64;
        prop_assert_eq!(report.unknown, unknown);
        prop_assert!(ReplayReport { unknown: 0, ..report.clone() }.is_clean(), "{:?}", report);
        // Every line is JSON that other tools can read.
        for line in home.transcript(1).split_inclusive(|byte| *byte == b'\n') {
            prop_assert!(serde_json::from_slice::<Value>(line).is_ok());
        }
    }
}

#[test]
fn structures_are_read_only_when_asked_for() {
    let (home, events) = crate::samples::recorded(2);
    let mut read = Vec::new();
    let options = ReplayOptions::default();
    decurion_store::replay(&home.paths(1), &options, &mut |envelope| read.push(envelope)).unwrap();
    assert_eq!(read.len(), events.len());
    for (read, written) in read.iter().zip(&events) {
        let mut written = written.clone();
        if let Event::CallEnded { output, .. } = &mut written.event {
            output.structured = None;
        }
        assert_eq!(*read, written);
    }
}

#[test]
fn a_resumed_session_continues_the_numbers() {
    let (home, mut events) = crate::samples::recorded(2);
    for round in 0..3 {
        let (mut writer, report, _) = home.resume(1);
        assert_eq!(report.last_seq, events.len() as u64);
        assert_eq!(writer.last_seq(), events.len() as u64);
        let next = envelope(writer.last_seq() + 1, prompt(800 + round, "again"));
        writer.append(std::slice::from_ref(&next)).unwrap();
        events.push(next);
    }
    let (read, report) = home.read(1);
    assert_eq!(read, events);
    assert!(report.is_clean());
}

#[test]
fn a_session_that_moved_writes_its_new_place() {
    let home = Home::new();
    let mut moved = info(1);
    moved.cwd = "/somewhere/else".into();
    moved.git_branch = None;
    let mut writer = home.create(1);
    let opened = Event::SessionOpened { info: Box::new(moved) };
    writer.append(&[envelope(1, opened), envelope(2, prompt(1, "x"))]).unwrap();
    let text = String::from_utf8(home.transcript(1)).unwrap();
    let last = text.lines().last().unwrap();
    assert!(last.contains(r#""cwd":"/somewhere/else""#) && !last.contains("gitBranch"), "{last}");
}

#[test]
fn an_order_of_dates_is_not_an_order_of_events() {
    let home = Home::new();
    let mut events = crate::samples::conversation(1, 3);
    for (place, event) in events.iter_mut().enumerate() {
        let years = if place % 2 == 0 { 10 } else { -10 };
        event.at = date(years * 365 * 86_400_000);
    }
    home.create(1).append(&events).unwrap();
    assert_eq!(home.read(1).0, events);
    assert_eq!(read(&home.paths(1), Scope::Session).0, events);
}
