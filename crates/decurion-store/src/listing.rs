//! A session in one line of a list. Takes a transcript, reads only its beginning and its end, gives what a
//! person needs to tell it from others. There is no index that could be wrong.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use camino::Utf8PathBuf;
use decurion_protocol::event::SessionInfo;
use decurion_protocol::{Message, SessionSummary};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::empty::is_silent;
use crate::folder::{DirHandle, How};
use crate::layout::session_of;

/// How much of the beginning is read, and how much if that holds no prompt yet.
const HEADS: [usize; 2] = [32 << 10, 1 << 20];
/// How much of the end is read, for a title given later.
const TAIL: usize = 16 << 10;
const TITLE_LIMIT: usize = 120;

/// The summary of the transcript of this name; none if it holds nothing of a session, or no prompt.
pub(crate) fn summary(project: &DirHandle, name: &str) -> Option<SessionSummary> {
    let session = session_of(name)?;
    let file = project.file(name, How::Read).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    let mut facts = ListingFacts::default();
    for limit in HEADS {
        let head = part(&file, 0, limit).ok()?;
        facts = ListingFacts::default();
        facts.read(&head);
        if facts.prompt.is_some() || head.len() < limit {
            break;
        }
    }
    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
    if !facts.said && bytes <= HEADS[1] as u64 {
        return None;
    }
    facts.read_title(&part(&file, bytes.saturating_sub(TAIL as u64), TAIL).ok()?);
    let title = facts.title.or(facts.prompt).unwrap_or_default();
    Some(SessionSummary {
        session,
        cwd: facts.cwd?,
        title,
        created: facts.created,
        modified: modified(&stat),
        git_branch: facts.git_branch,
        bytes,
        path: project.path().join(name),
    })
}

/// When a file was last written, by the file system's clock.
#[allow(clippy::cast_possible_truncation, clippy::unnecessary_cast, clippy::useless_conversion)]
pub(crate) fn modified(stat: &rustix::fs::Stat) -> Option<Timestamp> {
    Timestamp::new(i64::from(stat.st_mtime), stat.st_mtime_nsec as i32).ok()
}

#[derive(Default)]
struct ListingFacts {
    cwd: Option<Utf8PathBuf>,
    git_branch: Option<String>,
    created: Option<Timestamp>,
    prompt: Option<String>,
    title: Option<String>,
    /// Whether a line is more than what a session writes by itself.
    said: bool,
}

/// The members that a summary is made of, on lines of any program.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SummaryLine<'a> {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    cwd: Option<Utf8PathBuf>,
    #[serde(default)]
    git_branch: Option<String>,
    #[serde(default)]
    timestamp: Option<String>,
    #[serde(default)]
    is_meta: bool,
    #[serde(default)]
    is_compact_summary: bool,
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
    #[serde(borrow, default)]
    event: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_use_result: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct OpenedTranscript {
    info: SessionInfo,
}

impl ListingFacts {
    fn read(&mut self, head: &[u8]) {
        // The last piece is either empty or cut off.
        let lines = head.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        for line in lines {
            self.said = self.said || !is_silent(line);
            if let Ok(line) = serde_json::from_slice::<SummaryLine<'_>>(line) {
                self.line(line);
            }
            if self.prompt.is_some() && self.cwd.is_some() {
                return;
            }
        }
    }

    fn line(&mut self, line: SummaryLine<'_>) {
        if self.created.is_none() {
            self.created = line.timestamp.and_then(|text| text.parse().ok());
        }
        if self.cwd.is_none() {
            if let Some(event) = line.event
                && let Ok(OpenedTranscript { info }) = serde_json::from_str(event.get())
            {
                self.cwd = Some(info.cwd);
                self.git_branch = info.git_branch;
            } else if let Some(cwd) = line.cwd {
                self.cwd = Some(cwd);
                self.git_branch = line.git_branch;
            }
        }
        let asked = line.kind == "user"
            && !line.is_meta
            && !line.is_compact_summary
            && line.tool_use_result.is_none();
        if asked
            && self.prompt.is_none()
            && let Some(message) = line.message
            && let Ok(message) = serde_json::from_str::<Message>(message.get())
        {
            self.prompt = Some(one_line(&message.text())).filter(|text| !text.is_empty());
        }
    }

    /// The last title that was given to the session, if one was.
    fn read_title(&mut self, tail: &[u8]) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Titled {
            custom_title: String,
        }
        let titled = |line: &[u8]| serde_json::from_slice::<Titled>(line).ok();
        let last = tail
            .split(|byte| *byte == b'\n')
            .rev()
            .filter(|line| memchr::memmem::find(line, b"\"customTitle\"").is_some())
            .find_map(titled);
        self.title = last.map(|line| one_line(&line.custom_title)).filter(|text| !text.is_empty());
    }
}

/// Text on one line, cut to a title's length.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word.chars().filter(|letter| !letter.is_control()).take(TITLE_LIMIT));
        if line.chars().count() > TITLE_LIMIT {
            let cut: String = line.chars().take(TITLE_LIMIT - 1).collect();
            return cut + "…";
        }
    }
    line
}

fn part(file: &File, offset: u64, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; limit];
    let mut filled = 0;
    while filled < limit {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
