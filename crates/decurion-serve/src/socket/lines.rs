//! JSON lines over a connection. Takes values and queues them as whole lines, takes bytes and gives lines of
//! a bounded length.

use std::io;

use serde::Serialize;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};
use tokio::net::unix::OwnedWriteHalf;

/// How many bytes stay allocated between two lines.
const KEPT_CAPACITY: usize = 64 << 10;

/// What a connection has next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketLine {
    /// A line, without its end.
    Whole,
    /// More bytes than a line may have.
    TooLong,
    /// End of input. An unfinished line is not acted on: the rest of it is unknown.
    End,
}

/// Reads the next line into `line`.
pub async fn next_line(
    reader: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
    limit: usize,
) -> io::Result<SocketLine> {
    line.clear();
    // One long line does not keep its memory for as long as the connection lasts.
    line.shrink_to(KEPT_CAPACITY);
    reader.take(limit as u64 + 1).read_until(b'\n', line).await?;
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(SocketLine::Whole);
    }
    Ok(if line.len() > limit { SocketLine::TooLong } else { SocketLine::End })
}

/// Reads to the end of the line and keeps nothing of it.
pub async fn skip_line(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<()> {
    loop {
        let buffer = reader.fill_buf().await?;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(buffer.len(), |end| end + 1);
        if used == 0 || end.is_some() {
            reader.consume(used);
            return Ok(());
        }
        reader.consume(used);
    }
}

/// Lines that wait to be written. Writing may be given up at any moment: what is left is still whole.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    written: usize,
}

impl Outbox {
    pub fn push(&mut self, value: &impl Serialize) {
        // Only now and then, so that a long backlog is not moved for every line.
        if self.written > self.bytes.len() / 2 {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
        let before = self.bytes.len();
        match serde_json::to_writer(&mut self.bytes, value) {
            Ok(()) => self.bytes.push(b'\n'),
            // Ours always can be; half a line would spoil the next one.
            Err(error) => {
                tracing::error!(%error, "a line could not be encoded");
                self.bytes.truncate(before);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes as much as the other side takes now.
    pub fn write_some(&mut self, writer: &OwnedWriteHalf) -> io::Result<()> {
        while !self.is_empty() {
            match writer.try_write(&self.bytes[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.written = 0;
        Ok(())
    }

    /// Writes all of it.
    pub async fn flush(&mut self, writer: &OwnedWriteHalf) -> io::Result<()> {
        while !self.is_empty() {
            writer.writable().await?;
            self.write_some(writer)?;
        }
        Ok(())
    }
}
