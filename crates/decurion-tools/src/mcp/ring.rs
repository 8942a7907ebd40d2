//! The end of what a server wrote to its standard error. Takes bytes as they come, keeps the last 64 KiB,
//! gives the last lines for an error's text.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// How much is kept.
const KEPT: usize = 64 << 10;
/// How much of it an error shows.
const SHOWN: usize = 1500;

/// The last bytes of a stream.
#[derive(Debug, Default)]
pub(crate) struct Ring(Mutex<VecDeque<u8>>);

impl Ring {
    /// Reads to the end of the stream. A flood costs reading, and no memory.
    pub async fn drain(&self, mut stream: impl AsyncRead + Unpin) {
        let mut piece = vec![0_u8; 8 << 10];
        while let Ok(length @ 1..) = stream.read(&mut piece).await {
            self.add(&piece[..length]);
        }
    }

    pub fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = &bytes[bytes.len().saturating_sub(KEPT)..];
        let excess = (kept.len() + bytes.len()).saturating_sub(KEPT);
        kept.drain(..excess);
        kept.extend(bytes);
    }

    /// The last lines, without control characters; empty if nothing was written.
    pub fn end(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let skipped = kept.len().saturating_sub(SHOWN);
        let bytes: Vec<u8> = kept.iter().skip(skipped).copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let clean: String =
            text.chars().filter(|character| !character.is_control() || *character == '\n').collect();
        // A first line that was cut says little.
        let clean =
            if skipped > 0 { clean.split_once('\n').map_or(&*clean, |(_, rest)| rest) } else { &clean };
        clean.trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_is_kept() {
        let ring = Ring::default();
        assert_eq!(ring.end(), "");
        for number in 0..100_000 {
            ring.add(format!("line {number}\n").as_bytes());
        }
        assert!(ring.0.lock().unwrap().len() <= KEPT);
        assert!(ring.end().ends_with("line 99999") && ring.end().starts_with("line 99"), "{}", ring.end());
        ring.add(&vec![b'x'; 3 * KEPT]);
        assert_eq!(ring.0.lock().unwrap().len(), KEPT);
        ring.add(b"\n\x1b[31mred\x07\n");
        assert!(ring.end().ends_with("[31mred"));
    }
}
