//! A file cut or littered at its end: it loads, loses at most the torn record, and goes on.

use decurion_protocol::Envelope;
use decurion_store::{Journal, ReplayOptions, SessionWriter};

use crate::samples::{Home, date, envelope, info, line_spans, prompt, recorded};

/// Opens a damaged session, expects these events and that it can go on.
fn check(home: &Home, expected: &[Envelope], torn: &[u8]) {
    let before = crate::samples::read(&home.paths(1), decurion_store::Scope::Session);
    assert_eq!(before.0, expected, "read only");
    assert_eq!(before.1.torn_bytes, torn.len() as u64);
    assert!(!before.1.torn_moved);
    let side = home.paths(1).transcript().with_extension("torn");
    let _ = std::fs::remove_file(&side);

    let (mut writer, report, events) = home.resume(1);
    assert_eq!(events, expected);
    assert_eq!((report.torn_bytes, report.skipped, report.gaps), (torn.len() as u64, 0, 0));
    assert_eq!(report.torn_moved, !torn.is_empty());
    if torn.is_empty() {
        assert!(!side.exists());
    } else {
        assert_eq!(std::fs::read(&side).unwrap().strip_suffix(b"\n").unwrap(), torn);
    }
    let next = envelope(writer.last_seq() + 1, prompt(900, "go on"));
    writer.append(std::slice::from_ref(&next)).unwrap();
    drop(writer);
    let (events, report) = home.read(1);
    assert_eq!(events.last(), Some(&next));
    assert_eq!(events.len(), expected.len() + 1);
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_file_cut_at_every_byte_of_its_last_records_loses_only_the_torn_one() {
    let (home, events) = recorded(50);
    let path = home.paths(1).transcript();
    let whole = home.transcript(1);
    let spans = line_spans(&whole);
    // 201 events are 251 lines: the last three records are the reply of two lines, the intent, the result.
    assert_eq!((events.len(), spans.len()), (201, 251));
    let first = spans[spans.len() - 4].start;
    for cut in first..=whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        // A line that lost only its end is whole.
        let lines = spans.iter().filter(|span| span.end <= cut + 1).count();
        // One line of the two of the reply is none.
        let (kept, end) = match 251 - lines {
            0 => (201, cut),
            1 => (200, spans[249].end.min(cut)),
            2 => (199, spans[248].end.min(cut)),
            _ => (198, first),
        };
        if cut % 97 == 0 || spans.iter().any(|span| span.end.abs_diff(cut) < 2) {
            check(&home, &events[..kept], &whole[end..cut]);
        } else {
            quick_check(&home, &events[190..kept], cut - end);
        }
    }
}

/// The same, looking only at what comes after event 190: there are some thousand places to cut.
fn quick_check(home: &Home, expected: &[Envelope], torn: usize) {
    let mut events = Vec::new();
    let options = ReplayOptions { structured: true, after: 190, ..ReplayOptions::default() };
    let paths = home.paths(1);
    let mut sink = |envelope| events.push(envelope);
    let (mut writer, report) = SessionWriter::resume(&paths, &info(1), date(0), &options, &mut sink).unwrap();
    assert_eq!(report.torn_bytes, torn as u64);
    assert_eq!(events, expected);
    let kept = std::fs::read(paths.transcript()).unwrap();
    writer.append(&[envelope(writer.last_seq() + 1, prompt(900, "go on"))]).unwrap();
    let bytes = std::fs::read(paths.transcript()).unwrap();
    let added = bytes.strip_prefix(&kept[..]).expect("what was whole stays");
    let ordinal = line_spans(&kept).len() + 1 + usize::from(!kept.ends_with(b"\n"));
    let end = format!(r#","seq":{},"ordinal":{ordinal},"crc":"#, writer.last_seq());
    assert!(String::from_utf8_lossy(added).contains(&end));
}

#[test]
fn a_record_that_lost_its_line_end_is_kept_whatever_follows_it() {
    let (home, events) = recorded(3);
    let whole = home.transcript(1);
    let tails: [&[u8]; 5] = [b"\0", &[0; 513], b"garbage", b"garbage\0\0", b"\0\0garbage"];
    for tail in tails {
        std::fs::write(home.paths(1).transcript(), [&whole[..whole.len() - 1], tail].concat()).unwrap();
        let (_, report, read) = home.resume(1);
        assert_eq!((read, report.torn_bytes), (events.clone(), tail.len() as u64), "{tail:?}");
        let kept = std::fs::read(home.paths(1).transcript()).unwrap();
        assert_eq!(kept.trim_ascii_end(), whole.trim_ascii_end(), "{tail:?}");
    }
}

#[test]
fn nothing_and_garbage_at_the_end_are_moved_out_of_the_way() {
    let (home, events) = recorded(3);
    let path = home.paths(1).transcript();
    let whole = home.transcript(1);
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    for length in [0, 1, 2, 7, 64, 511, 512, 513, 1000, 4095, 4096, 70_000] {
        let nothing = vec![0; length];
        let mut garbage = vec![0; length];
        for byte in &mut garbage {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            *byte = seed.to_le_bytes()[3];
        }
        let no_lines: Vec<u8> =
            garbage.iter().map(|byte| if *byte == b'\n' { b'n' } else { *byte }).collect();
        for tail in [nothing, no_lines] {
            std::fs::write(&path, [&whole[..], &tail].concat()).unwrap();
            check(&home, &events, &tail);
        }
        // Lines with an end are more than one unfinished record: they stay where they are and are counted.
        let lines: Vec<u8> = garbage.iter().map(|byte| if byte % 16 == 0 { b'\n' } else { *byte }).collect();
        let bytes = [&whole[..], &lines, b"\n"].concat();
        std::fs::write(&path, &bytes).unwrap();
        let (mut writer, report, read) = home.resume(1);
        assert_eq!((read, report.torn_bytes), (events.clone(), 0));
        assert!(report.skipped > 0 || length < 64, "{report:?}");
        let next = envelope(writer.last_seq() + 1, prompt(900, "go on"));
        writer.append(std::slice::from_ref(&next)).unwrap();
        assert!(home.transcript(1).starts_with(&bytes), "nothing is cut");
        assert_eq!(home.read(1).0.last(), Some(&next));
    }
}

#[test]
fn a_file_of_nothing_but_garbage_is_begun_again() {
    let (home, _) = recorded(1);
    for content in [&b""[..], b"\0\0\0\0", b"not a transcript"] {
        std::fs::write(home.paths(1).transcript(), content).unwrap();
        check(&home, &[], content);
    }
    for content in [&b"\n\n\n"[..], b"not a transcript\n", b"{\"seq\":1,\"ordinal\":1}\n"] {
        std::fs::write(home.paths(1).transcript(), content).unwrap();
        let (mut writer, _, read) = home.resume(1);
        let next = envelope(writer.last_seq() + 1, prompt(900, "go on"));
        writer.append(std::slice::from_ref(&next)).unwrap();
        assert_eq!(read, []);
        assert!(home.transcript(1).starts_with(content), "nothing is cut");
        assert_eq!(home.read(1).0, [next]);
    }
}

#[test]
fn a_line_behind_zeros_is_found() {
    let (home, events) = recorded(3);
    let whole = home.transcript(1);
    let spans = line_spans(&whole);
    let middle = spans[7].start;
    std::fs::write(home.paths(1).transcript(), [&whole[..middle], &[0; 600], &whole[middle..]].concat())
        .unwrap();
    let (read, report) = home.read(1);
    assert_eq!(read, events);
    assert!(report.is_clean(), "{report:?}");
}
