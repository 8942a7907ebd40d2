//! The end of a file. Takes a transcript that may have been cut anywhere, gives where its last whole record
//! ends, and moves an unfinished one out of the way before anything is added. Nothing else is ever cut, and
//! nothing is cut that is not kept.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use serde::Deserialize;

use crate::decode::{Claimed, DecodedLine, bare, check, split_joined, unfinished};
use crate::folder::{DirHandle, How};
use crate::read::LONGEST_LINE;

/// How much is looked at in one step backwards.
const CHUNK: usize = 64 << 10;
/// What the end of a file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileTail {
    /// Where the unfinished record begins that may be cut; the end of the file if there is none.
    pub(crate) length: u64,
    /// The count of the file's last line.
    pub(crate) ordinal: u64,
    /// The last `seq` in the file.
    pub(crate) seq: u64,
    /// Bytes of the unfinished record.
    pub(crate) torn: u64,
    /// Whether the last line needs an end before anything is added.
    pub(crate) is_open: bool,
}

/// Looks at the end of a file, from the back, only as far as needed. Only the last record may be unfinished: lines that
/// are wrong and have an end stay where they are.
pub(crate) fn find(file: &File) -> io::Result<FileTail> {
    let total = file.metadata()?.len();
    let mut line = Vec::new();
    let lines_end = newline_before(file, total)?.map_or(0, |at| at + 1);
    let (mut length, mut is_open) = (total, lines_end < total);
    while length > lines_end {
        let end = lines_end + whole_beginning(file, lines_end, length, &mut line)?;
        if end == length {
            break;
        }
        length = end;
        is_open = end > lines_end;
    }
    let mut tail = FileTail { length, torn: total - length, is_open, ..FileTail::default() };
    if length == lines_end {
        tail.length = before_parts(file, lines_end, &mut line)?;
        tail.torn = total - tail.length;
    }
    number(file, &mut tail, &mut line)?;
    Ok(tail)
}

/// How much of a last line without an end is whole: all of it, the records that another one was torn behind, or
/// nothing. One that is longer than any may be is no unfinished record, and stays.
fn whole_beginning(file: &File, start: u64, end: u64, line: &mut Vec<u8>) -> io::Result<u64> {
    if !read(file, start, end, line)? {
        return Ok(end - start);
    }
    let is_part = matches!(check(bare(line)), DecodedLine::Ours(_)) && is_unfinished(bare(line));
    let torn = if is_part { line.len() } else { unfinished(line) };
    Ok((line.len() - torn) as u64)
}

/// Where the record begins whose rest is missing at `end`, if there is one.
fn before_parts(file: &File, mut end: u64, line: &mut Vec<u8>) -> io::Result<u64> {
    while end > 0 {
        let start = newline_before(file, end - 1)?.map_or(0, |at| at + 1);
        let is_part = read(file, start, end - 1, line)?
            && matches!(check(bare(line)), DecodedLine::Ours(_))
            && is_unfinished(bare(line));
        if !is_part {
            break;
        }
        end = start;
    }
    Ok(end)
}

/// Finds the numbers of the last line. Those of an edited line may be wrong, so that lines are counted from the last
/// one that is unharmed.
fn number(file: &File, tail: &mut FileTail, line: &mut Vec<u8>) -> io::Result<()> {
    let mut end = tail.length;
    // What the lines after the last unharmed one say of themselves, the last one first.
    let mut since = Vec::new();
    while end > 0 {
        let start = newline_before(file, end - 1)?.map_or(0, |at| at + 1);
        if read(file, start, end, line)? {
            let mut parts = split_joined(bare(line));
            if parts.is_empty() {
                parts.push(line);
            }
            for part in parts.into_iter().rev() {
                match check(bare(part)) {
                    DecodedLine::Ours(trailer) => {
                        count_from((trailer.ordinal, trailer.seq), &since, tail);
                        return Ok(());
                    }
                    DecodedLine::Edited(claimed) => since.push(claimed),
                    DecodedLine::Bad => since.push(Claimed::default()),
                    DecodedLine::Empty if part.contains(&0) => since.push(Claimed::default()),
                    DecodedLine::Foreign(_) | DecodedLine::Empty => {}
                }
            }
        }
        end = start;
    }
    count_from((0, 0), &since, tail);
    Ok(())
}

/// Numbers the lines after one with this count and `seq` as a reader of the file does.
fn count_from((ordinal, seq): (u64, u64), since: &[Claimed], tail: &mut FileTail) {
    tail.ordinal = ordinal.saturating_add(since.len() as u64);
    let next = |seq: u64, claimed: &Claimed| claimed.seq_after(seq, seq.saturating_add(1));
    tail.seq = since.iter().rev().fold(seq, next);
}

/// Moves an unfinished record to `<name>.torn` and cuts the file; gives whether that was done. If the side file cannot
/// take all of it, it stays and gets a line end, so that later lines are separate.
pub(crate) fn cut(folder: &DirHandle, name: &str, file: &File, tail: &mut FileTail) -> io::Result<bool> {
    if tail.torn == 0 {
        return Ok(false);
    }
    if let Err(error) = keep(folder, name, file, tail) {
        tracing::warn!(file = name, %error, "the torn end of a transcript cannot be moved; it stays");
        tail.length += tail.torn;
        tail.is_open = true;
        return Ok(false);
    }
    file.set_len(tail.length)?;
    Ok(true)
}

fn keep(folder: &DirHandle, name: &str, file: &File, tail: &FileTail) -> io::Result<()> {
    let base = name.strip_suffix(".jsonl").unwrap_or(name);
    let mut side = folder.file(&format!("{base}.torn"), How::Append)?;
    let mut buffer = vec![0; CHUNK];
    let (mut at, end) = (tail.length, tail.length + tail.torn);
    while at < end {
        let want = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        file.read_exact_at(&mut buffer[..want], at)?;
        side.write_all(&buffer[..want])?;
        at += want as u64;
    }
    side.write_all(b"\n")?;
    side.sync_data()
}

/// Reads a piece of a file; false if it is longer than a line may be.
fn read(file: &File, start: u64, end: u64, line: &mut Vec<u8>) -> io::Result<bool> {
    let length = match usize::try_from(end - start) {
        Ok(length) if length <= LONGEST_LINE => length,
        _ => return Ok(false),
    };
    line.resize(length, 0);
    file.read_exact_at(line, start)?;
    Ok(true)
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
