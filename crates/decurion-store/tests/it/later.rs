//! Transcripts of later versions: nothing of them is lost, and what must be understood is not passed over.

use decurion_protocol::event::RECORD_LEVEL;
use decurion_protocol::{Block, Envelope, Event, LineId, Mode, ToolEffect};
use decurion_store::{OpenError, ReplayOptions, SessionWriter};
use serde_json::{Value, json};

use crate::samples::{Home, date, envelope, info, line_spans, opened, recorded};

/// What a later version would have written otherwise.
type Change = fn(&mut Value);

/// A line changed by a later version, with the checksum that it would have written.
fn later(line: &[u8], change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut value: Value = serde_json::from_slice(line).unwrap();
    change(&mut value);
    // The members that end every line stay at its end.
    let members = value.as_object_mut().unwrap();
    let mut end = String::new();
    for name in ["run", "seq", "ordinal"] {
        if let Some(member) = members.remove(name) {
            end.push_str(&format!(",\"{name}\":{member}"));
        }
    }
    members.remove("crc");
    let text = serde_json::to_string(&value).unwrap();
    let covered = format!("{}{end}", text.strip_suffix('}').unwrap());
    format!("{covered},\"crc\":\"{:08x}\"}}\n", crc32c::crc32c(covered.as_bytes())).into_bytes()
}

/// The session with one of its lines changed so.
fn with_line(number: usize, change: impl FnOnce(&mut Value)) -> (Home, Vec<Envelope>) {
    let (home, events) = recorded(3);
    let whole = home.transcript(1);
    let span = line_spans(&whole)[number].clone();
    let bytes = [&whole[..span.start], &later(&whole[span.clone()], change)[..], &whole[span.end..]].concat();
    std::fs::write(home.paths(1).transcript(), bytes).unwrap();
    (home, events)
}

fn resume(home: &Home) -> Result<String, OpenError> {
    let options = ReplayOptions::default();
    let (_, report) = SessionWriter::resume(&home.paths(1), &info(1), date(0), &options, &mut |_| {})?;
    assert_eq!((report.skipped, report.gaps, report.torn_bytes, report.edited), (0, 0, 0, 0), "{report:?}");
    Ok(report.problems().unwrap_or_default())
}

// The lines of a round: 1 prompt, 2 and 3 the reply, 4 the call's start, 5 its result.

#[test]
fn an_effect_of_a_later_version_costs_no_result() {
    let (home, events) = with_line(5, |line| {
        line["effects"] = json!([{"effect": "rewired", "wire": 7}, {"effect": "moved", "cwd": "/tmp"}]);
        line["colour"] = json!("blue");
    });
    assert_eq!(resume(&home).unwrap(), "1 record of a later version skipped");
    let (read, _) = home.read(1);
    assert_eq!(read.len(), events.len());
    let Event::CallEnded { output, .. } = &read[4].event else { panic!("{:?}", read[4]) };
    let kept = ToolEffect::Unknown(json!({"effect": "rewired", "wire": 7}));
    assert_eq!(output.effects, [kept, ToolEffect::Moved { cwd: "/tmp".into() }]);
    // And it is passed through as it was.
    let text = serde_json::to_value(&output.effects).unwrap();
    assert_eq!(text[0], json!({"effect": "rewired", "wire": 7}));
}

#[test]
fn members_and_variants_of_a_later_version_cost_no_line() {
    let changes: [(usize, Change); 6] = [
        (1, |line| line["from"] = json!({"oracle": {"of": "Delphi"}})),
        (1, |line| line["meta"] = json!({"delivers": [{"what": "omen"}], "weight": 3})),
        (2, |line| line["message"]["usage"] = json!({"input_tokens": {"cached": 1}})),
        (3, |line| line["timing"] = json!("soon")),
        (3, |line| line["message"]["content"] = json!([{"type": "hologram", "data": "x"}])),
        (5, |line| line["durationMs"] = json!({"wall": 1})),
    ];
    for (number, change) in changes {
        let (home, events) = with_line(number, change);
        resume(&home).unwrap();
        let (read, report) = home.read(1);
        assert_eq!(read.len(), events.len(), "line {number}: {report:?}");
        assert_eq!(read.iter().filter(|event| matches!(event.event, Event::Unknown(_))).count(), 0);
    }
}

#[test]
fn records_of_a_later_version_are_kept() {
    let changes: [(usize, Change); 4] = [
        (0, |line| line["event"] = json!({"type": "weather", "sky": "blue"})),
        (0, |line| line["v"] = json!(2)),
        (1, |line| line["type"] = json!("hologram")),
        (1, |line| line["type"] = json!("decurion2")),
    ];
    for (number, change) in changes {
        let (home, events) = with_line(number, change);
        assert_eq!(resume(&home).unwrap(), "1 record of a later version skipped");
        let (read, _) = home.read(1);
        assert_eq!(read.len(), events.len());
        assert!(matches!(read[number].event, Event::Unknown(_)), "{:?}", read[number]);
        assert_eq!(read[number].seq, events[number].seq);
    }
}

#[test]
fn a_marked_record_that_is_not_understood_leaves_the_session_for_reading() {
    let next = RECORD_LEVEL + 1;
    let changes: [(&str, usize, Change); 6] = [
        ("another kind", 4, |line| {
            line["event"] = json!({"type": "rights_changed", "grants": {"all": false}});
        }),
        ("an unknown kind", 4, |line| line["event"] = json!({"type": "walled", "walls": 4})),
        ("an unknown variant", 4, |line| line["event"]["decision"]["decision"] = json!("perhaps")),
        ("a higher level", 4, |line| line["must"] = json!(RECORD_LEVEL + 1)),
        ("a level that is no number", 4, |line| line["must"] = json!("all")),
        ("a result", 5, |line| line["must"] = json!(RECORD_LEVEL + 1)),
    ];
    for (what, number, change) in changes {
        let (home, events) = with_line(number, change);
        let before = home.transcript(1);
        let error = resume(&home).unwrap_err();
        let OpenError::Newer { needs, written_by, .. } = &error else { panic!("{what}: {error}") };
        assert!([1, next, u64::MAX].contains(needs), "{what}: {needs}");
        assert_eq!(written_by, "0.1.0");
        assert_eq!(home.transcript(1), before, "{what}: nothing is changed");
        let (read, report) = home.read(1);
        assert_eq!((read.len(), report.needs), (events.len(), Some(*needs)), "{what}");
    }
}

#[test]
fn what_must_be_understood_is_marked() {
    let home = Home::new();
    let events = [
        envelope(1, Event::ModeChanged { mode: Mode::Plan }),
        envelope(2, Event::Unknown(json!({"type": "x"}))),
        envelope(3, queued(1)),
        envelope(4, Event::Unqueued { lines: vec![waiting(1)] }),
    ];
    decurion_store::Journal::append(&mut home.create(1), &events).unwrap();
    let text = String::from_utf8(home.transcript(1)).unwrap();
    let marked: Vec<bool> =
        text.lines().map(|line| line.contains(&format!(",\"must\":{RECORD_LEVEL},"))).collect();
    assert_eq!(marked, [true, false, true, true]);
}

fn waiting(number: u128) -> LineId {
    LineId(uuid::Uuid::from_u128(number))
}

fn queued(number: u128) -> Event {
    Event::Queued { line: waiting(number), blocks: vec![Block::text("delete the old branch")] }
}

/// Passed over, a withdrawal would let the prompt begin, and a prompt that waits would be begun by a later version
/// after one that was given in its place.
#[test]
fn a_queue_that_is_not_understood_leaves_the_session_for_reading() {
    let changes: [(&str, usize, Change); 2] = [
        ("a withdrawal by another name", 2, |line| line["event"] = json!({"type": "unqueued", "all": true})),
        ("a prompt that waits for something", 1, |line| {
            line["event"] = json!({"type": "queued_behind", "line": line["event"]["line"], "of": "a task"});
        }),
    ];
    for (what, number, change) in changes {
        let home = Home::new();
        let withdrawn = Event::Unqueued { lines: vec![waiting(1)] };
        let events = [envelope(1, opened(1)), envelope(2, queued(1)), envelope(3, withdrawn)];
        decurion_store::Journal::append(&mut home.create(1), &events).unwrap();
        let whole = home.transcript(1);
        let span = line_spans(&whole)[number].clone();
        let changed = later(&whole[span.clone()], change);
        std::fs::write(
            home.paths(1).transcript(),
            [&whole[..span.start], &changed, &whole[span.end..]].concat(),
        )
        .unwrap();
        let error = resume(&home).unwrap_err();
        assert!(matches!(error, OpenError::Newer { needs: RECORD_LEVEL, .. }), "{what}: {error}");
    }
}
