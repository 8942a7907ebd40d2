//! The end of a file. Takes a transcript that may have been cut anywhere, gives where its last whole record
//! ends, and moves what comes after it out of the way before anything is added.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use serde::Deserialize;

use crate::decode::{Checked, Trailer, check, split_joined};
use crate::folder::{Folder, How};
use crate::read::LONGEST_LINE;

/// How much is looked at in one step backwards.
const CHUNK: usize = 64 << 10;
/// How much of a torn end is kept in the side file.
const TORN_LIMIT: u64 = 64 << 20;

/// What the end of a file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tail {
    /// Where the last whole record ends.
    pub(crate) length: u64,
    /// The count of the file's last line.
    pub(crate) ordinal: u64,
    /// The last `seq` in the file.
    pub(crate) seq: u64,
    /// Bytes after the last whole record.
    pub(crate) torn: u64,
}

/// Looks at the end of a file, from the back, only as far as needed.
pub(crate) fn find(file: &File) -> io::Result<Tail> {
    let total = file.metadata()?.len();
    let mut tail = Tail::default();
    let mut end = newline_before(file, total)?.map_or(0, |at| at + 1);
    let mut line = Vec::new();
    while end > 0 {
        let start = newline_before(file, end - 1)?.map_or(0, |at| at + 1);
        match look(file, start, end - 1, &mut line)? {
            Look::Whole(trailer) => {
                tail.length = tail.length.max(end);
                (tail.ordinal, tail.seq) = (trailer.ordinal, trailer.seq);
                break;
            }
            // Part of a record whose rest is missing; kept in place only if something whole follows it.
            Look::Part(trailer) if tail.length > 0 => {
                (tail.ordinal, tail.seq) = (trailer.ordinal, trailer.seq);
                break;
            }
            Look::Foreign => tail.length = tail.length.max(end),
            Look::Part(_) | Look::Nothing => {}
        }
        end = start;
    }
    tail.torn = total - tail.length;
    Ok(tail)
}

/// Moves a torn end to `<name>.torn` and cuts the file; gives whether it could be kept. A damaged end is cut
/// even where there is no room to keep it, because nothing may be added behind it.
pub(crate) fn cut(folder: &Folder, name: &str, file: &File, tail: &Tail) -> io::Result<bool> {
    if tail.torn == 0 {
        return Ok(false);
    }
    let kept = keep(folder, name, file, tail);
    if let Err(error) = &kept {
        tracing::warn!(file = name, %error, "the torn end of a transcript could not be kept");
    }
    file.set_len(tail.length)?;
    Ok(kept.is_ok())
}

fn keep(folder: &Folder, name: &str, file: &File, tail: &Tail) -> io::Result<()> {
    let base = name.strip_suffix(".jsonl").unwrap_or(name);
    let mut side = folder.file(&format!("{base}.torn"), How::Append)?;
    let mut buffer = vec![0; CHUNK];
    let (mut at, end) = (tail.length, tail.length + tail.torn.min(TORN_LIMIT));
    while at < end {
        let want = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        file.read_exact_at(&mut buffer[..want], at)?;
        side.write_all(&buffer[..want])?;
        at += want as u64;
    }
    side.write_all(b"\n")?;
    side.sync_data()
}

enum Look {
    Whole(Trailer),
    Part(Trailer),
    Foreign,
    Nothing,
}

fn look(file: &File, start: u64, end: u64, line: &mut Vec<u8>) -> io::Result<Look> {
    let length = match usize::try_from(end - start) {
        Ok(length) if length <= LONGEST_LINE => length,
        _ => return Ok(Look::Nothing),
    };
    line.resize(length, 0);
    file.read_exact_at(line, start)?;
    let mut line = &line[line.iter().take_while(|byte| **byte == 0).count()..];
    let mut checked = check(line);
    if checked == Checked::Bad
        && let Some(last) = split_joined(line).last()
    {
        line = last;
        checked = check(line);
    }
    Ok(match checked {
        Checked::Ours(trailer) if is_unfinished(line) => Look::Part(trailer),
        Checked::Ours(trailer) => Look::Whole(trailer),
        Checked::Foreign(_) => Look::Foreign,
        Checked::Empty | Checked::Bad => Look::Nothing,
    })
}

/// Whether more lines of the same record should follow this one.
fn is_unfinished(line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Place {
        #[serde(default)]
        block: u64,
        #[serde(default)]
        blocks: u64,
    }
    serde_json::from_slice(line).is_ok_and(|place: Place| place.block + 1 < place.blocks)
}

/// Where the last line end before `end` is.
fn newline_before(file: &File, end: u64) -> io::Result<Option<u64>> {
    let mut buffer = [0; 4096];
    let mut chunk = vec![];
    let mut end = end;
    while end > 0 {
        // A first small look, since most lines are short; then larger ones.
        let space = if chunk.is_empty() { &mut buffer[..] } else { &mut chunk[..] };
        let want = space.len().min(usize::try_from(end).unwrap_or(usize::MAX));
        let start = end - want as u64;
        file.read_exact_at(&mut space[..want], start)?;
        if let Some(at) = memchr::memrchr(b'\n', &space[..want]) {
            return Ok(Some(start + at as u64));
        }
        end = start;
        chunk.resize(CHUNK, 0);
    }
    Ok(None)
}
