//! Output too long for the conversation. Takes a call's bytes as they come, gives a file in the session's
//! folder that holds them without the secrets in them.

use std::io::{self, Write};
use std::sync::Arc;

use camino::Utf8PathBuf;
use decurion_protocol::{CallId, TaskId};
use decurion_store::SessionFiles;
use decurion_tools::{Spill, SpillFile, ToolContext};

use crate::notice;
use crate::ports::Redact;

/// How much is held back at most while a line, or a key of several lines, is not whole.
const MOST_HELD: usize = 64 * 1024;
/// Shorter text holds no secret: those that are looked for have at least eight bytes.
const SHORTEST_SECRET: usize = 6;
/// How keys of several lines begin and end.
const KEY_BEGINS: &[u8] = b"-----BEGIN ";
const KEY_ENDS: &[u8] = b"-----END ";

/// Long output goes into the session's folder.
pub struct SpillInto {
    /// The session's files, if it has any.
    pub files: Option<Arc<SessionFiles>>,
    /// The most bytes of one output.
    pub limit: u64,
    pub redact: Redact,
}

impl SpillInto {
    /// The file of a task's output.
    pub fn task(&self, task: &TaskId) -> io::Result<SpillFile> {
        let files = self.files.as_ref().ok_or_else(|| io::Error::other("this session keeps no files"))?;
        let output = files.task_output(task, self.limit)?;
        let path: Utf8PathBuf = output.path().to_owned();
        let file = Redacting { file: output.into_file(), redact: Arc::clone(&self.redact), held: Vec::new() };
        Ok(SpillFile { path, file: Box::new(file) })
    }
}

impl Spill for SpillInto {
    fn create(&self, call: &CallId, _extension: &str) -> io::Result<SpillFile> {
        let files = self.files.as_ref().ok_or_else(|| io::Error::other("this session keeps no files"))?;
        let output = files.tool_result(call, self.limit)?;
        let path: Utf8PathBuf = output.path().to_owned();
        let file = Redacting { file: output.into_file(), redact: Arc::clone(&self.redact), held: Vec::new() };
        Ok(SpillFile { path, file: Box::new(file) })
    }
}

/// A text within so many characters: one that is longer keeps its beginning and its end, and names the file
/// that has all of it.
pub async fn within(cx: &ToolContext, text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let (spill, call, whole) = (Arc::clone(&cx.spill), cx.call.clone(), text.to_owned());
    let writing = tokio::task::spawn_blocking(move || {
        let mut made = spill.create(&call, "txt")?;
        made.file.write_all(whole.as_bytes())?;
        made.file.flush()?;
        io::Result::Ok(made.path)
    });
    let place = match writing.await.map_err(io::Error::other).and_then(|written| written) {
        Ok(path) => format!("all of it is in {path}"),
        Err(error) => format!("it could not be kept in a file: {error}"),
    };
    notice::shortened(text, most, &place)
}

/// Writes whole lines, without the secrets in them.
struct Redacting<W> {
    file: W,
    redact: Redact,
    held: Vec<u8>,
}

impl<W: Write> Redacting<W> {
    /// Up to where nothing can be part of a secret that is still coming.
    fn safe(&self) -> usize {
        let held = &self.held;
        let Some(last) = memchr::memrchr(b'\n', held) else {
            // A flood without lines is no key, and must not be held for ever.
            return if held.len() > MOST_HELD { held.len() } else { 0 };
        };
        let begins = memchr::memmem::rfind(&held[..=last], KEY_BEGINS);
        match begins {
            Some(begins) if held.len() - begins <= MOST_HELD && !is_whole_key(&held[begins..=last]) => begins,
            _ => last + 1,
        }
    }

    fn give(&mut self, end: usize) -> io::Result<()> {
        if end == 0 {
            return Ok(());
        }
        // What is no text comes in pieces of a byte or two: they are neither searched nor written one by one.
        let mut clean = Vec::with_capacity(end);
        for chunk in self.held[..end].utf8_chunks() {
            let valid = chunk.valid();
            match if valid.len() < SHORTEST_SECRET { None } else { (self.redact)(valid) } {
                Some(redacted) => clean.extend_from_slice(redacted.as_bytes()),
                None => clean.extend_from_slice(valid.as_bytes()),
            }
            clean.extend_from_slice(chunk.invalid());
        }
        self.held.drain(..end);
        self.file.write_all(&clean)
    }
}

/// Whether the line that ends a key is there.
fn is_whole_key(key: &[u8]) -> bool {
    let end = memchr::memmem::find(key, KEY_ENDS);
    end.is_some_and(|end| memchr::memchr(b'\n', &key[end..]).is_some())
}

impl<W: Write> Write for Redacting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        self.give(self.safe())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.give(self.held.len())?;
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written of these pieces when `secret`, or a key of several lines, is taken out.
    fn written(pieces: &[&[u8]]) -> String {
        let redact: Redact = Arc::new(|text: &str| {
            let key = "-----BEGIN KEY-----\nabc\n-----END KEY-----";
            (text.contains("secret") || text.contains(key))
                .then(|| text.replace("secret", "[redacted]").replace(key, "[redacted]"))
        });
        let mut file = Redacting { file: Vec::new(), redact, held: Vec::new() };
        for piece in pieces {
            file.write_all(piece).unwrap();
            assert!(file.held.len() <= MOST_HELD + piece.len());
        }
        file.flush().unwrap();
        String::from_utf8_lossy(&file.file).into_owned()
    }

    #[test]
    fn a_secret_is_taken_out_wherever_the_pieces_are_cut() {
        let text = b"one secret\ntwo\nsecret secret\n\xff secret";
        for at in 0..text.len() {
            let clean = "one [redacted]\ntwo\n[redacted] [redacted]\n\u{FFFD} [redacted]";
            assert_eq!(written(&[&text[..at], &text[at..]]), clean, "{at}");
        }
    }

    #[test]
    fn a_key_of_several_lines_is_taken_out_wherever_the_pieces_are_cut() {
        let text = b"a\n-----BEGIN KEY-----\nabc\n-----END KEY-----\nb\n";
        for at in 0..text.len() {
            assert_eq!(written(&[&text[..at], &text[at..]]), "a\n[redacted]\nb\n", "{at}");
        }
    }

    #[test]
    fn binary_output_is_written_in_large_pieces() {
        struct Counting(usize);
        impl Write for Counting {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += 1;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let searched = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = Arc::clone(&searched);
        let redact: Redact = Arc::new(move |_: &str| {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            None
        });
        let mut file = Redacting { file: Counting(0), redact, held: Vec::new() };
        // Bytes that look random, so that text and what is none change every few of them.
        let mut state = 1_u32;
        let random = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state.to_le_bytes()[0]
        };
        let block: Vec<u8> = std::iter::repeat_with(random).take(65_536).collect();
        for _ in 0..8 {
            file.write_all(&block).unwrap();
        }
        file.flush().unwrap();
        assert!(file.file.0 <= 9, "{} writes of 8 pieces", file.file.0);
        let searched = searched.load(std::sync::atomic::Ordering::Relaxed);
        assert!(searched < 8 * block.len() / 50, "{searched} searches");
    }

    #[test]
    fn a_flood_without_lines_is_not_held() {
        let block = vec![b'x'; 50_000];
        assert_eq!(written(&[&block, &block, &block]).len(), 150_000);
    }
}
