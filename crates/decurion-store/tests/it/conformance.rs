//! What every journal must do, whatever it writes to.

use std::ops::ControlFlow;

use decurion_protocol::event::WaitReason;
use decurion_protocol::{Envelope, Event};
use decurion_store::{Bookmark, Journal, MemoryJournal, WriteError};

use crate::samples::{Home, agent, conversation, envelope, prompt};

fn since(journal: &dyn Journal, seq: u64) -> Vec<Envelope> {
    let mut events = Vec::new();
    journal.since(seq, &mut |envelope| events.push(envelope)).unwrap();
    events
}

/// What is on record up to an event, read three at a time by a reader that goes on where it stopped.
fn pieces(journal: &dyn Journal, bookmark: &mut Bookmark, until: u64) -> Vec<Envelope> {
    let (record, mut all) = (journal.record(), Vec::new());
    loop {
        let mut piece = Vec::new();
        let take = &mut |envelope| {
            piece.push(envelope);
            if piece.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        record.read_on(bookmark, until, take).unwrap();
        assert!(piece.len() <= 3);
        if piece.is_empty() {
            return all;
        }
        all.extend(piece);
    }
}

/// The suite. Takes an empty journal.
fn check(journal: &mut dyn Journal) {
    let events = conversation(1, 5);
    assert_eq!(journal.last_seq(), 0);
    journal.append(&[]).unwrap();
    journal.append(&events[..3]).unwrap();
    journal.append(&events[3..]).unwrap();
    assert_eq!(journal.last_seq(), 21);
    assert_eq!(journal.held_bytes(), 0);
    assert_eq!(since(journal, 0), events);
    assert_eq!(since(journal, 17), events[17..]);
    assert_eq!(since(journal, 21), []);

    // Piece by piece, never beyond what was asked for, and on from there.
    let mut bookmark = Bookmark::after(2);
    assert_eq!(pieces(journal, &mut bookmark, 10), events[2..10]);
    assert_eq!(pieces(journal, &mut bookmark, 10), []);
    assert_eq!(pieces(journal, &mut bookmark, 21), events[10..]);

    // Transient events leave no trace.
    journal.append(&[envelope(21, Event::Waiting { reason: Some(WaitReason::Model) })]).unwrap();
    assert_eq!(since(journal, 20).len(), 1);

    // An event that was written is never written again, and one from the past is refused loudly.
    for seq in [21, 1, 0] {
        let again = journal.append(&[envelope(22, prompt(900, "x")), envelope(seq, prompt(901, "y"))]);
        assert!(matches!(again, Err(WriteError::OutOfOrder { last: 22, .. })), "{again:?}");
        assert_eq!(journal.last_seq(), 21);
    }

    journal.sync().unwrap();
    let job = journal.begin_sync().unwrap();
    assert!(job.is_none(), "nothing was written since");
    journal.append(&[envelope(30, prompt(902, "after a gap in the numbers"))]).unwrap();
    if let Some(job) = journal.begin_sync().unwrap() {
        let synced = std::thread::spawn(|| job.run()).join().unwrap();
        journal.end_sync(synced).unwrap();
    }
    assert_eq!(since(journal, 21).len(), 1);
    assert_eq!(pieces(journal, &mut bookmark, 30), since(journal, 21));
    assert_eq!(bookmark.after, 30);
}

#[test]
fn a_session_writer_conforms() {
    let home = Home::new();
    check(&mut home.create(1));
}

#[test]
fn a_memory_journal_conforms() {
    check(&mut MemoryJournal::default());
}

#[test]
fn a_memory_journal_keeps_the_newest_and_counts_the_rest() {
    let mut journal = MemoryJournal::new(4);
    let events = conversation(1, 5);
    journal.append(&events).unwrap();
    assert_eq!(since(&journal, 0), events[17..]);
    assert_eq!(journal.since(0, &mut drop).unwrap().gaps, 17);
}

#[test]
fn many_files_with_long_lines_are_read_on_in_order_and_each_event_once() {
    let home = Home::new();
    let mut journal = home.create(1);
    // Seven agents and the root in turn; long and short lines, so that some are set aside and some are held.
    let events: Vec<Envelope> = (1..=80u64)
        .map(|seq| {
            let text = "x".repeat(if seq % 3 == 0 { 300_000 } else { 10 });
            let agent = (seq % 8 > 0).then(|| agent(&format!("a{}", seq % 8)));
            Envelope { agent, ..envelope(seq, prompt(u128::from(seq), &text)) }
        })
        .collect();
    let mut bookmark = Bookmark::after(0);
    for (written, until) in [(0..50, 30), (50..80, 50), (80..80, 80)] {
        journal.append(&events[written]).unwrap();
        let from = usize::try_from(bookmark.after).unwrap();
        let seqs = |events: &[Envelope]| events.iter().map(|event| event.seq).collect::<Vec<_>>();
        let read = pieces(&journal, &mut bookmark, until);
        assert_eq!(seqs(&read), seqs(&events[from..usize::try_from(until).unwrap()]));
        assert_eq!(read, events[from..usize::try_from(until).unwrap()]);
    }
}
