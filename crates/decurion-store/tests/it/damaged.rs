//! Damage in the middle: it is passed over and counted, everything else comes back in order.

use decurion_protocol::{Envelope, Event};
use decurion_store::{Journal, ReplayReport, Scope};
use proptest::prelude::*;

use crate::samples::{Home, envelope, line_spans, prompt, read, recorded};

fn read_bytes(home: &Home, bytes: &[u8]) -> (Vec<Envelope>, ReplayReport) {
    std::fs::write(home.paths(1).transcript(), bytes).unwrap();
    read(&home.paths(1), Scope::Session)
}

/// The events of a recorded session without those whose lines are among these.
fn without(events: &[Envelope], whole: &[u8], lines: std::ops::RangeInclusive<usize>) -> Vec<Envelope> {
    let hit: Vec<u64> = line_spans(whole)[lines].iter().map(|span| seq(&whole[span.clone()])).collect();
    events.iter().filter(|event| !hit.contains(&event.seq)).cloned().collect()
}

fn seq(line: &[u8]) -> u64 {
    let value: serde_json::Value = serde_json::from_slice(line).unwrap();
    value["seq"].as_u64().unwrap()
}

#[test]
fn each_record_changed_in_turn_is_the_only_one_affected() {
    let (home, events) = recorded(12);
    let whole = home.transcript(1);
    let mut used = 0;
    for (number, span) in line_spans(&whole).iter().enumerate() {
        let middle = usize::midpoint(span.start, span.end);
        for at in [span.start, span.start + 3, middle, span.end - 12, span.end - 2] {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x01;
            let (read, report) = read_bytes(&home, &bytes);
            let hit = seq(&whole[span.clone()]);
            // What still parses is used as it is now; its number is taken from its place.
            let others: Vec<&Envelope> = read.iter().filter(|event| events.contains(event)).collect();
            let untouched = without(&events, &whole, number..=number);
            let contains = |event: &Envelope| others.contains(&event);
            assert!(untouched.iter().all(contains), "line {number} byte {at}: {report:?}");
            assert!(read.len() <= events.len(), "line {number} byte {at}");
            assert_eq!(report.edited + report.skipped, 1, "line {number} byte {at}: {report:?}");
            assert_eq!(report.torn_bytes, 0, "a line with an end is never torn: {number}");
            used += usize::from(report.edited == 1 && read.iter().any(|event| event.seq == hit));
        }
    }
    assert!(used > 100, "most changed lines still say something: {used}");
}

#[test]
fn each_line_removed_in_turn_leaves_a_gap_that_is_seen() {
    let (home, events) = recorded(5);
    let whole = home.transcript(1);
    let spans = line_spans(&whole);
    for (number, span) in spans.iter().enumerate().take(spans.len() - 1) {
        let (read, report) = read_bytes(&home, &[&whole[..span.start], &whole[span.end..]].concat());
        assert_eq!(read, without(&events, &whole, number..=number));
        assert_eq!((report.skipped, report.gaps), (0, 1));
    }
}

#[test]
fn each_line_repeated_in_turn_counts_once() {
    let (home, events) = recorded(5);
    let whole = home.transcript(1);
    for span in line_spans(&whole) {
        let (read, report) = read_bytes(&home, &[&whole[..span.end], &whole[span.start..]].concat());
        assert_eq!(read, events);
        assert!(report.duplicates > 0);
    }
}

#[test]
fn two_records_on_one_line_are_both_there() {
    let (home, events) = recorded(5);
    let whole = home.transcript(1);
    let spans = line_spans(&whole);
    for span in &spans[..spans.len() - 1] {
        let mut bytes = whole.clone();
        bytes.remove(span.end - 1);
        let (read, report) = read_bytes(&home, &bytes);
        assert_eq!(read, events);
        assert_eq!((report.skipped, report.gaps, report.torn_bytes), (0, 0, 0));
    }
    // All of them on one line.
    let mut bytes: Vec<u8> = whole.iter().copied().filter(|byte| *byte != b'\n').collect();
    bytes.push(b'\n');
    assert_eq!(read_bytes(&home, &bytes).0, events);
    // A record inside another's content is content.
    let mut home = recorded(1).0;
    let inner = String::from_utf8(home.transcript(1)).unwrap();
    home = Home::new();
    let event = envelope(1, prompt(1, &inner.replace('\n', "")));
    home.create(1).append(std::slice::from_ref(&event)).unwrap();
    let mut bytes = home.transcript(1);
    bytes[0] = b'[';
    bytes.extend(b"{}\n");
    let (read, report) = read_bytes(&home, &bytes);
    assert!(read.iter().all(|event| matches!(event.event, Event::Unknown(_))), "{read:?}");
    assert_eq!(report.skipped, 1);
}

#[test]
fn lines_of_other_programs_and_of_later_versions_are_kept() {
    let (home, events) = recorded(2);
    let whole = home.transcript(1);
    let spans = line_spans(&whole);
    let title = br#"{"type":"custom-title","customTitle":"mine","sessionId":"x"}"#;
    let at = spans[4].end;
    let (read, report) = read_bytes(&home, &[&whole[..at], title, b"\n", &whole[at..]].concat());
    assert_eq!(report.foreign, 1);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(read.len(), events.len() + 1);
    let Event::Unknown(value) = &read[4].event else { panic!("{:?}", read[4]) };
    assert_eq!(value["customTitle"], "mine");
    assert_eq!(read[4].seq, read[3].seq, "it stands in the place where it was");

    // A later version's event, and a later version of a line of ours.
    let mut writer = home.resume(1).0;
    let later = envelope(
        writer.last_seq() + 1,
        Event::Unknown(serde_json::json!({"type": "later", "z": 1, "a": [1.5, null]})),
    );
    writer.append(std::slice::from_ref(&later)).unwrap();
    drop(writer);
    let (read, _) = home.read(1);
    assert_eq!(read.last(), Some(&later));
}

#[test]
fn a_foreign_line_at_the_end_is_not_torn() {
    let (home, events) = recorded(2);
    let bytes = [&home.transcript(1)[..], b"{\"type\":\"tag\",\"tag\":\"x\"}\n"].concat();
    std::fs::write(home.paths(1).transcript(), &bytes).unwrap();
    let (mut writer, report, read) = home.resume(1);
    assert_eq!((report.torn_bytes, report.foreign, read.len()), (0, 1, events.len() + 1));
    writer.append(&[envelope(10, prompt(900, "on"))]).unwrap();
    assert!(home.transcript(1).starts_with(&bytes));
    assert!(home.read(1).1.is_clean());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_stop_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let home = recorded(0).0;
        let (_, report) = read_bytes(&home, &bytes);
        prop_assert_eq!(report.bytes, bytes.len() as u64);
        home.resume(1);
        prop_assert_eq!(read(&home.paths(1), Scope::Session).1.torn_bytes, 0);
    }

    #[test]
    fn no_mixture_of_true_lines_stops_the_reader(
        picks in prop::collection::vec((0usize..16, 0usize..40, any::<u8>()), 0..30)
    ) {
        let (home, _) = recorded(3);
        let whole = home.transcript(1);
        let spans = line_spans(&whole);
        let mut bytes = Vec::new();
        for (number, at, change) in picks {
            let start = bytes.len();
            bytes.extend(&whole[spans[number % spans.len()].clone()]);
            if at % 3 == 0 {
                let place = start + (at * 37) % (bytes.len() - start);
                bytes[place] = change;
            }
        }
        read_bytes(&home, &bytes);
        home.resume(1);
        prop_assert_eq!(read(&home.paths(1), Scope::Session).1.torn_bytes, 0);
    }
}
