//! Whether an audit log is whole. Takes its files, gives how many entries it holds and the first thing that is wrong:
//! which file, which line, and whether it was changed, deleted, inserted, moved or cut off.
//!
//! A line is believed if its code fits the key, and stands in its place if its number and the hash in it fit the line
//! before. What a killed process leaves behind is no problem: a line without an end at the very end, and up to
//! [`BATCH`] lines behind the head.

use std::fmt;
use std::io;

use camino::Utf8PathBuf;
use decurion_protocol::{AuditEntry, AuditKind};
use serde::Serialize;

use super::files::{
    BATCH, FoundHead, HEAD, LogFiles, LogLine, LogLines, read_head, read_key, segment_name, segments,
};
use super::line::{AuditKey, HeadFile, Tip, from_hex, parse, to_hex};
use crate::folder::DirHandle;

/// What was found in a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AuditReport {
    /// Entries up to the first problem.
    pub entries: u64,
    /// Files that hold entries.
    pub segments: usize,
    /// Entries that could not be written when they were made, as far as the log tells.
    pub unwritten: u64,
    /// Entries behind the head: a process was killed after it wrote them.
    pub unconfirmed: u64,
    /// Bytes of an entry that a killed process left unfinished at the end.
    pub unfinished_bytes: usize,
    /// The last entry as `NUMBER:HASH`. Kept elsewhere and given to a later check, it finds a log that was put back to
    /// an earlier state.
    pub anchor: Option<String>,
    /// The first problem; none if the log is whole.
    pub problem: Option<AuditProblem>,
}

/// Something in a log that no crash explains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditProblem {
    pub kind: ProblemKind,
    pub file: Utf8PathBuf,
    /// In which line, from 1; 0 where it is about the whole file.
    pub line: u64,
    pub detail: String,
}

/// What can happen to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// A line differs from what was written.
    Changed,
    /// Lines are missing before another line.
    Deleted,
    /// A line is there that was not written there.
    Inserted,
    /// A line stands before one that was written earlier.
    Reordered,
    /// Lines are missing at the end.
    Truncated,
    /// The log does not continue an earlier state of it.
    RolledBack,
    /// The head file is gone.
    HeadMissing,
    /// The head file was changed or is an old one.
    HeadChanged,
    /// The key is gone.
    KeyMissing,
}

impl ProblemKind {
    const ALL: [Self; 9] = [
        Self::Changed,
        Self::Deleted,
        Self::Inserted,
        Self::Reordered,
        Self::Truncated,
        Self::RolledBack,
        Self::HeadMissing,
        Self::HeadChanged,
        Self::KeyMissing,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Deleted => "deleted",
            Self::Inserted => "inserted",
            Self::Reordered => "reordered",
            Self::Truncated => "truncated",
            Self::RolledBack => "rolled back",
            Self::HeadMissing => "head missing",
            Self::HeadChanged => "head changed",
            Self::KeyMissing => "key missing",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An entry noted earlier, from [`AuditReport::anchor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor(Tip);

impl std::str::FromStr for Anchor {
    type Err = InvalidAnchor;
    fn from_str(text: &str) -> Result<Self, InvalidAnchor> {
        let read = || {
            let (seq, hash) = text.split_once(':')?;
            Some(Self(Tip { seq: seq.parse().ok()?, hash: from_hex(hash)? }))
        };
        read().ok_or(InvalidAnchor)
    }
}

/// Text that is no anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an anchor (NUMBER:HASH, as `decurion audit verify` prints it)")]
pub struct InvalidAnchor;

impl LogFiles {
    /// Checks the whole log.
    pub(super) fn verify(&self, anchor: Option<Anchor>) -> io::Result<AuditReport> {
        let Some(opened) = self.for_reading()? else {
            return Ok(AuditReport {
                problem: anchor.map(|anchor| self.forgotten(anchor)),
                ..AuditReport::default()
            });
        };
        let (state, folder) = (&opened.state, opened.folder.as_ref());
        let numbers = folder.map_or_else(|| Ok(Vec::new()), segments)?;
        let mut report = AuditReport { segments: numbers.len(), ..AuditReport::default() };
        let key = match (read_key(state), folder) {
            (Some(key), _) => key,
            (None, Some(folder)) if !numbers.is_empty() || folder.has(HEAD) => {
                let detail = "the key is gone, so the entries cannot be checked".to_owned();
                report.problem = Some(about(ProblemKind::KeyMissing, self.key_path(), detail));
                return Ok(report);
            }
            (None, _) => {
                report.problem = anchor.map(|anchor| self.forgotten(anchor));
                return Ok(report);
            }
        };
        let head = folder.map_or(FoundHead::Missing, |folder| read_head(folder, &key));
        if let Some(folder) = folder {
            let confirmed = if let FoundHead::Valid(head) = &head { Some(*head) } else { None };
            ChainCheck {
                files: self,
                folder,
                key: &key,
                numbers,
                confirmed,
                anchor,
                tip: Tip::default(),
                is_head_passed: false,
                is_anchored: anchor.is_none(),
            }
            .run(&mut report)?;
        }
        if report.problem.is_none() {
            report.problem = self.without_head(&head, &report);
        }
        Ok(report)
    }

    fn without_head(&self, head: &FoundHead, report: &AuditReport) -> Option<AuditProblem> {
        let path = self.folder().join(HEAD);
        match head {
            FoundHead::Valid(_) => None,
            FoundHead::Missing if report.segments == 0 => {
                let detail = "there is a key, but the log that it belongs to is gone".to_owned();
                Some(about(ProblemKind::Deleted, self.folder(), detail))
            }
            FoundHead::Missing => {
                let detail = "the head file is gone, so entries may be missing at the end".to_owned();
                Some(about(ProblemKind::HeadMissing, path, detail))
            }
            FoundHead::Changed => {
                let detail = "the head file was changed, so entries may be missing at the end".to_owned();
                Some(about(ProblemKind::HeadChanged, path, detail))
            }
        }
    }

    fn forgotten(&self, anchor: Anchor) -> AuditProblem {
        let detail = format!("entry {} is not in the log any more", anchor.0.seq);
        about(ProblemKind::RolledBack, self.folder(), detail)
    }
}

/// A problem of a whole file.
fn about(kind: ProblemKind, file: Utf8PathBuf, detail: String) -> AuditProblem {
    AuditProblem { kind, file, line: 0, detail }
}

/// A walk along the chain.
struct ChainCheck<'a> {
    files: &'a LogFiles,
    folder: &'a DirHandle,
    key: &'a AuditKey,
    numbers: Vec<u32>,
    /// What the head file says.
    confirmed: Option<HeadFile>,
    anchor: Option<Anchor>,
    /// The last line that was right.
    tip: Tip,
    /// Whether the line was passed that the head names.
    is_head_passed: bool,
    /// Whether the line was passed that the anchor names.
    is_anchored: bool,
}

impl ChainCheck<'_> {
    fn run(mut self, report: &mut AuditReport) -> io::Result<()> {
        let last_segment = self.numbers.last().copied();
        let mut lines = LogLines::new(self.folder, self.numbers.clone());
        let (mut place, mut problem) = ((last_segment.unwrap_or(1), 0), None);
        self.pass(Tip::default());
        while let Some(line) = lines.next() {
            let line = line?;
            place = (line.segment, line.number);
            let is_unfinished = !line.ended && Some(line.segment) == last_segment;
            if is_unfinished && self.confirmed.is_none_or(|head| self.tip.seq >= head.tip.seq) {
                report.unfinished_bytes = line.bytes.len();
                break;
            }
            let believed = line.ended && self.key.sealed(&line.bytes);
            let Some(parsed) = parse(&line.bytes).filter(|line| believed && line.follows(self.tip)) else {
                problem = Some(self.explain(&line, lines)?);
                break;
            };
            problem = note(parsed.entry.get(), report);
            if problem.is_some() {
                break;
            }
            self.pass(parsed.tip());
        }
        report.entries = self.tip.seq;
        report.anchor = (self.tip.seq > 0).then(|| format!("{}:{}", self.tip.seq, to_hex(&self.tip.hash)));
        let problem = problem.or_else(|| self.at_the_end(report));
        let file = self.files.folder().join(segment_name(place.0));
        report.problem = problem.map(|(kind, detail)| AuditProblem { kind, file, line: place.1, detail });
        Ok(())
    }

    /// Moves to the next line of the chain.
    fn pass(&mut self, tip: Tip) {
        self.tip = tip;
        self.is_head_passed |= self.confirmed.is_some_and(|head| head.tip == tip);
        self.is_anchored |= self.anchor.is_some_and(|anchor| anchor.0 == tip);
    }

    /// What is wrong where every line is right.
    fn at_the_end(&self, report: &mut AuditReport) -> Option<(ProblemKind, String)> {
        let last = self.tip.seq;
        let confirmed = self.confirmed?.tip.seq;
        if last < confirmed {
            return Some((
                ProblemKind::Truncated,
                format!("{} missing at the end", range(last + 1, confirmed)),
            ));
        }
        report.unconfirmed = last - confirmed;
        if report.unconfirmed > BATCH as u64 || !self.is_head_passed {
            let detail = format!(
                "the head file {HEAD} names entry {confirmed}, which is not near the end of this log; the last is {last}"
            );
            return Some((ProblemKind::HeadChanged, detail));
        }
        (!self.is_anchored).then(|| {
            let detail = "the noted entry is not in the log: it was put back to an earlier state".to_owned();
            (ProblemKind::RolledBack, detail)
        })
    }

    /// What happened to the first line that is not the one expected, judged by the lines behind it.
    fn explain(&self, line: &LogLine, mut rest: LogLines<'_>) -> io::Result<(ProblemKind, String)> {
        let expected = self.tip.seq.saturating_add(1);
        let believed = |line: &LogLine| {
            let parsed = parse(&line.bytes).filter(|_| line.ended && self.key.sealed(&line.bytes));
            parsed.map(|parsed| (parsed.seq, parsed.follows(self.tip)))
        };
        let mut find = |wanted: &dyn Fn(u64, bool) -> bool| {
            for line in rest.by_ref() {
                if let Some(found) = believed(&line?).filter(|(seq, follows)| wanted(*seq, *follows)) {
                    return Ok::<_, io::Error>(Some(found));
                }
            }
            Ok(None)
        };
        let Some((seq, _)) = believed(line) else {
            return Ok(match find(&|_, _| true)? {
                Some((_, true)) => (ProblemKind::Inserted, "the log did not write this line".to_owned()),
                None if self.confirmed.is_some_and(|head| head.tip.seq < expected) => {
                    (ProblemKind::Inserted, "the log did not write this line".to_owned())
                }
                None if !line.ended => {
                    (ProblemKind::Truncated, format!("entry {expected} is cut off, and none follows it"))
                }
                Some(_) | None => (ProblemKind::Changed, differs(expected)),
            });
        };
        if seq <= self.tip.seq || seq == expected {
            return Ok((
                ProblemKind::Inserted,
                format!("a copy of an entry {seq} that does not belong here"),
            ));
        }
        Ok(match find(&|_, follows| follows)? {
            Some(_) => (ProblemKind::Reordered, format!("entry {seq} stands before entry {expected}")),
            None => (ProblemKind::Deleted, format!("{} missing before this line", range(expected, seq - 1))),
        })
    }
}

/// Notes what an entry tells about the log itself; gives the damage that its writer found.
fn note(entry: &str, report: &mut AuditReport) -> Option<(ProblemKind, String)> {
    match serde_json::from_str::<AuditEntry>(entry).ok()?.kind {
        AuditKind::Gap { count, .. } => {
            report.unwritten = report.unwritten.saturating_add(count);
            None
        }
        AuditKind::Damage { problem, detail } => {
            let kind = ProblemKind::named(&problem).unwrap_or(ProblemKind::Changed);
            Some((kind, format!("found before this entry was written: {detail}")))
        }
        _ => None,
    }
}

fn differs(seq: u64) -> String {
    format!("entry {seq} is not what was written, or the key is another one")
}

fn range(first: u64, last: u64) -> String {
    if first == last { format!("entry {first} is") } else { format!("entries {first} to {last} are") }
}
