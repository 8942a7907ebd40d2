//! Transcripts that a person or another program changed: every record is still there, and nothing is cut.

use std::ops::ControlFlow;

use decurion_protocol::{Block, Envelope, Event, Role};
use decurion_store::Journal as _;

use crate::samples::{Home, agent, bash_output, call_ended, envelope, line_spans, prompt, recorded, reply};

/// Opens a session with this transcript and goes on with it: nothing of it is cut. Gives what was read and told.
fn open(home: &Home, bytes: &[u8]) -> (Vec<Envelope>, String) {
    let path = home.paths(1).transcript();
    std::fs::write(&path, bytes).unwrap();
    let (mut writer, report, events) = home.resume(1);
    assert_eq!(report.torn_bytes, 0, "{report:?}");
    let next = envelope(writer.last_seq() + 1, prompt(900, "go on"));
    writer.append(std::slice::from_ref(&next)).unwrap();
    drop(writer);
    assert!(std::fs::read(&path).unwrap().starts_with(bytes), "nothing is cut");
    assert!(!path.with_extension("torn").exists());
    let (after, again) = home.read(1);
    assert_eq!((after.len(), after.last()), (events.len() + 1, Some(&next)), "{again:?}");
    (events, report.problems().unwrap_or_default())
}

fn replaced(home: &Home, from: &str, to: &str) -> Vec<u8> {
    String::from_utf8(home.transcript(1)).unwrap().replace(from, to).into_bytes()
}

fn prompts(events: &[Envelope]) -> Vec<&str> {
    events.iter().filter_map(prompt_of).collect()
}

fn prompt_of(envelope: &Envelope) -> Option<&str> {
    let Event::Message { message, .. } = &envelope.event else { return None };
    match message.blocks.first()? {
        Block::Text { text } if message.role == Role::User => Some(text),
        _ => None,
    }
}

#[test]
fn crlf_and_a_byte_order_mark_change_nothing() {
    let (home, events) = recorded(5);
    let crlf = replaced(&home, "\n", "\r\n");
    assert_eq!(open(&home, &crlf), (events.clone(), String::new()));
    let (home, events) = recorded(5);
    let marked = [b"\xef\xbb\xbf", &home.transcript(1)[..]].concat();
    assert_eq!(open(&home, &marked), (events, String::new()));
}

#[test]
fn a_replaced_path_is_used_counted_and_told() {
    let (home, events) = recorded(5);
    let bytes = replaced(&home, "/home/someone/projects", "/srv/moved");
    let (read, told) = open(&home, &bytes);
    assert_eq!(read.len(), events.len());
    assert_eq!(prompts(&read), ["do step 0", "do step 1", "do step 2", "do step 3", "do step 4"]);
    // Every line but those of our own type carries the path, and the first of those.
    assert_eq!(told, "21 edited lines");
    assert_eq!(read.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=21).collect::<Vec<_>>());
}

#[test]
fn an_edited_text_is_what_the_conversation_says_now() {
    let (home, _) = recorded(3);
    let bytes = replaced(&home, "do step 1", "do the other step");
    let (read, told) = open(&home, &bytes);
    assert_eq!(prompts(&read), ["do step 0", "do the other step", "do step 2"]);
    assert_eq!(told, "1 edited line");
}

#[test]
fn edits_that_change_numbers_dates_and_ids_lose_nothing() {
    let edits = [
        ("1", "2"),
        ("2", "1"),
        ("9", "0"),
        ("2", "3"),
        ("\"blocks\":2", "\"blocks\":4"),
        ("\"seq\":1", "\"seq\":7"),
        ("\"seq\":", "\"seq\":9"),
        ("\"ordinal\":", "\"ordinal\":9"),
        ("\"seq\":1", "\"seq\":\"one\",\"was\":1"),
        ("\"ordinal\":1", "\"ordinal\":null,\"was\":1"),
        ("2026-11", "2026-99"),
        ("\"timestamp\":\"", "\"timestamp\":\"about "),
        ("11e00000", "no such id"),
        ("\"durationMs\":1234", "\"durationMs\":\"long\""),
        ("msg_01", "\\u006dsg"),
        ("\"input_tokens\":1200", "\"input_tokens\":\"1.2k\""),
        ("\"crc\":\"", "\"crc\":\"x"),
        ("\"run\":\"0199", "\"run\":\"none"),
    ];
    for (from, to) in edits {
        let (home, events) = recorded(9);
        let bytes = replaced(&home, from, to);
        let (read, told) = open(&home, &bytes);
        assert!(told.contains("edited line"), "{from} -> {to}: {told}");
        assert_eq!(prompts(&read).len(), 9, "{from} -> {to}: {told}");
        assert!(read.len() >= events.len(), "{from} -> {to}: {told}");
        let begun = read.iter().filter(|event| matches!(event.event, Event::CallStarted { .. })).count();
        assert_eq!(begun, 9, "{from} -> {to}: {told}");
    }
}

#[test]
fn numbers_that_no_session_reaches_are_not_believed() {
    let largest = u64::MAX.to_string();
    for number in 1..=21 {
        let (home, events) = recorded(5);
        let bytes = replaced(&home, &format!("\"seq\":{number},"), &format!("\"seq\":{largest},"));
        let (read, told) = open(&home, &bytes);
        assert_eq!(read.len(), events.len(), "{number}: {told}");
        assert_eq!(home.resume(1).0.last_seq(), 22, "{number}");
    }
    let (home, _) = recorded(1);
    let last = home.resume(1).0.last_seq();
    let said = Envelope { agent: Some(agent("a1")), ..envelope(last + 1, prompt(900, "look")) };
    home.resume(1).0.append(&[said]).unwrap();
    let path = home.paths(1).agent(&agent("a1"));
    let text = std::fs::read_to_string(&path).unwrap();
    let said = format!("\"seq\":{}", last + 1);
    assert!(text.contains(&said));
    std::fs::write(&path, text.replace(&said, &format!("\"seq\":{largest}"))).unwrap();
    assert_eq!(home.resume(1).0.last_seq(), last);
}

#[test]
fn edited_replies_that_claim_more_lines_are_given_as_they_are() {
    let (home, events) = recorded(1);
    let mut writer = home.resume(1).0;
    let last = events.last().unwrap().seq;
    let answers = [1, 2, 3].map(|number| {
        let blocks = vec![Block::text(format!("first {number}")), Block::text(format!("second {number}"))];
        envelope(last + number, reply(100 * u128::from(number), blocks))
    });
    writer.append(&answers).unwrap();
    drop(writer);
    let (read, _) = open(&home, &replaced(&home, "\"blocks\":2", "\"blocks\":5"));
    let texts = |events: &[Envelope]| -> Vec<Vec<Block>> {
        let blocks = |event: &Envelope| match &event.event {
            Event::Message { message, .. } => Some(message.blocks.clone()),
            _ => None,
        };
        events.iter().filter_map(blocks).collect()
    };
    assert_eq!(texts(&read), texts(&[events, answers.to_vec()].concat()));
}

#[test]
fn a_copied_and_changed_line_costs_no_other_line() {
    let (home, events) = recorded(4);
    let whole = home.transcript(1);
    for span in line_spans(&whole) {
        let line = String::from_utf8(whole[span.clone()].to_vec()).unwrap();
        let copy = line.replace("/home/someone", "/home/other").replace("Looking", "Watching");
        let bytes = [&whole[..span.end], copy.as_bytes(), &whole[span.end..]].concat();
        let (read, _) = open(&home, &bytes);
        let missing: Vec<_> = events.iter().filter(|event| !read.contains(event)).collect();
        // A copied part of a reply may cost that reply, nothing else.
        assert!(missing.len() <= usize::from(line.contains("\"blocks\":2")), "{missing:?}");
    }
}

#[test]
fn edited_lines_without_line_ends_are_told_apart() {
    let (home, events) = recorded(4);
    let bytes = replaced(&home, "/home/someone", "/home/other");
    for span in line_spans(&bytes) {
        let joined = [&bytes[..span.end - 1], &bytes[span.end..]].concat();
        assert_eq!(open(&home, &joined).0.len(), events.len(), "line at {}", span.start);
    }
    let one_line: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != b'\n').collect();
    assert_eq!(open(&home, &one_line).0.len(), events.len());
    let old_ends: Vec<u8> = bytes.iter().map(|byte| if *byte == b'\n' { b'\r' } else { *byte }).collect();
    assert_eq!(open(&home, &old_ends).0.len(), events.len());
}

#[test]
fn a_record_torn_behind_others_on_one_line_is_the_only_one_that_is_cut() {
    let (home, events) = recorded(4);
    let whole = home.transcript(1);
    let path = home.paths(1).transcript();
    let one_line: Vec<u8> = whole.iter().copied().filter(|byte| *byte != b'\n').collect();
    let torn = &one_line[..one_line.len() - 9];
    std::fs::write(&path, torn).unwrap();
    let (mut writer, report, read) = home.resume(1);
    assert_eq!((&read[..], report.torn_moved), (&events[..events.len() - 1], true));
    let side = std::fs::read(path.with_extension("torn")).unwrap();
    assert_eq!([&std::fs::read(&path).unwrap(), side.strip_suffix(b"\n").unwrap()].concat(), torn);
    writer.append(&[envelope(writer.last_seq() + 1, prompt(900, "go on"))]).unwrap();
    assert_eq!(home.read(1).0.len(), events.len());
}

#[test]
fn an_unfinished_record_that_cannot_be_kept_elsewhere_stays() {
    let (home, events) = recorded(4);
    let path = home.paths(1).transcript();
    let whole = home.transcript(1);
    let torn = &whole[..whole.len() - 9];
    std::fs::write(&path, torn).unwrap();
    std::fs::create_dir(path.with_extension("torn")).unwrap();
    let (mut writer, report, read) = home.resume(1);
    assert_eq!(&read[..], &events[..events.len() - 1]);
    assert!(report.problems().is_some_and(|told| told.ends_with("unfinished record skipped")), "{report:?}");
    let next = envelope(writer.last_seq() + 1, prompt(900, "go on"));
    writer.append(std::slice::from_ref(&next)).unwrap();
    drop(writer);
    assert!(home.transcript(1).starts_with(torn), "nothing is cut that is not kept");
    let (after, report) = home.read(1);
    assert_eq!((after.last(), after.len(), report.skipped), (Some(&next), events.len(), 1));
}

#[test]
fn an_unfinished_record_of_any_size_is_kept_whole() {
    let (home, events) = recorded(1);
    let path = home.paths(1).transcript();
    let torn = [b"{\"type\":\"user\",\"message\":\"", "x".repeat(65 << 20).as_bytes()].concat();
    std::fs::write(&path, [&home.transcript(1)[..], &torn].concat()).unwrap();
    let (_, report, read) = home.resume(1);
    assert_eq!((read, report.torn_bytes), (events, torn.len() as u64));
    let side = std::fs::metadata(path.with_extension("torn")).unwrap();
    assert_eq!(side.len(), torn.len() as u64 + 1);
}

#[test]
fn an_edited_transcript_of_an_agent_stays_that_agents() {
    let (home, events) = recorded(1);
    let mut writer = home.resume(1).0;
    let of_agent = |seq, event| Envelope { agent: Some(agent("a1")), ..envelope(seq, event) };
    let more = [
        of_agent(6, prompt(60, "look at /old/place")),
        of_agent(7, reply(61, vec![Block::text("In /old/place.")])),
        of_agent(8, call_ended("toolu_9", 63, bash_output("/old/place"))),
    ];
    writer.append(&more).unwrap();
    drop(writer);
    let path = home.paths(1).agent(&agent("a1"));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(
        &path,
        text.replace("/old/place", "/new").replace("\"agentId\":\"a1\"", "\"agentId\":\"zz\""),
    )
    .unwrap();
    let (read, report) = home.read(1);
    assert_eq!((read.len(), report.edited), (events.len() + 3, 3));
    assert!(read[5..].iter().all(|event| event.agent == Some(agent("a1"))), "{read:?}");
    assert!(format!("{:?}", read[7].event).contains("/new"));
}

/// An edited message that claims more lines than it has ends with the first line of the next, which is read again by
/// readers that come back.
#[test]
fn a_reader_that_comes_back_behind_an_edited_message_misses_nothing() {
    for (length, at_once) in [(10, 1), (10, usize::MAX), (600 << 10, usize::MAX)] {
        let (home, events) = recorded(1);
        let mut writer = home.resume(1).0;
        let last = events.last().unwrap().seq;
        let answers = [(1, 1), (2, length)].map(|(number, length)| {
            let second = format!("second {number} {}", "x".repeat(length));
            let blocks = vec![Block::text(format!("first {number}")), Block::text(second)];
            envelope(last + number, reply(100 * u128::from(number), blocks))
        });
        writer.append(&answers).unwrap();
        drop(writer);
        let text = String::from_utf8(home.transcript(1)).unwrap();
        let is_edited = |line: &str| line.contains("first 1") || line.contains("second 1");
        let more = |line: &str| line.replace("\"blocks\":2", "\"blocks\":5");
        let lines =
            text.lines().map(|line| if is_edited(line) { more(line) } else { line.to_owned() } + "\n");
        std::fs::write(home.paths(1).transcript(), lines.collect::<String>()).unwrap();
        let (whole, _) = home.read(1);
        let record = home.resume(1).0.record();
        let mut bookmark = decurion_store::Bookmark::of_root();
        let mut read: Vec<Envelope> = Vec::new();
        loop {
            let before = read.len();
            let mut take = |envelope| {
                read.push(envelope);
                if read.len() - before < at_once { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            record.read_on(&mut bookmark, whole.last().unwrap().seq, &mut take).unwrap();
            if read.len() == before {
                break;
            }
        }
        let said = |read: &[Envelope]| -> Vec<(u64, Option<String>)> {
            let text = |event: &Event| match event {
                Event::Message { message, .. } => Some(message.text()),
                _ => None,
            };
            read.iter().map(|envelope| (envelope.seq, text(&envelope.event))).collect()
        };
        assert_eq!(whole.len(), events.len() + 2);
        assert!(said(&read) == said(&whole), "{length} {at_once}: {} of {}", read.len(), whole.len());
    }
}
