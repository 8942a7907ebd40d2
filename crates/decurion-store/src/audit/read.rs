//! Entries of an audit log for a reader. Takes a filter, gives the entries that pass it in the order they were written,
//! each with whether its line can be believed.

use std::io;

use decurion_protocol::{AuditEntry, SessionId};
use jiff::Timestamp;

use super::files::{LogFiles, LogLines, read_key, segments};
use super::line::parse;

/// Which entries are wanted. The default is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only of this session.
    pub session: Option<SessionId>,
    /// Only of this kind, by its name in the log.
    pub kind: Option<String>,
    /// Only from this time on.
    pub since: Option<Timestamp>,
}

/// An entry as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Its number in the log.
    pub seq: u64,
    /// Whether its code fits the key. Its place in the log is only checked by `verify`.
    pub believed: bool,
    pub entry: AuditEntry,
    /// The same as it is written, with what this version does not know.
    pub raw: String,
}

/// How many lines were looked at in vain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadReport {
    /// Entries given whose code does not fit the key.
    pub doubtful: u64,
    /// Lines that are no entries.
    pub unreadable: u64,
}

impl AuditFilter {
    fn wants(&self, entry: &AuditEntry) -> bool {
        self.session.is_none_or(|session| entry.session == Some(session))
            && self.kind.as_deref().is_none_or(|kind| entry.kind.name() == kind)
            && self.since.is_none_or(|since| entry.at >= since)
    }
}

impl LogFiles {
    /// Gives the entries that a filter wants, oldest first.
    pub(super) fn read(
        &self,
        filter: &AuditFilter,
        sink: &mut dyn FnMut(Recorded),
    ) -> io::Result<ReadReport> {
        let mut report = ReadReport::default();
        let Some(opened) = self.for_reading()? else { return Ok(report) };
        let Some(folder) = &opened.folder else { return Ok(report) };
        let key = read_key(&opened.state);
        for line in LogLines::new(folder, segments(folder)?) {
            let line = line?;
            let read = parse(&line.bytes).and_then(|parsed| {
                let entry = serde_json::from_str(parsed.entry.get()).ok()?;
                Some((parsed.seq, entry, parsed.entry.get().to_owned()))
            });
            let Some((seq, entry, raw)) = read else {
                report.unreadable += 1;
                continue;
            };
            if filter.wants(&entry) {
                let believed = key.as_ref().is_some_and(|key| key.sealed(&line.bytes));
                report.doubtful += u64::from(!believed);
                sink(Recorded { seq, believed, entry, raw });
            }
        }
        Ok(report)
    }
}
