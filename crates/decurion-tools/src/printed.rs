//! What a command has printed so far, for whoever tells of it when the command was stopped and cannot. Takes its output as it
//! comes; gives the end of it.

use std::sync::{Mutex, PoisonError};

/// How much of the end is kept.
const KEPT: usize = 16 << 10;

/// The end of an output that still comes.
#[derive(Debug, Default)]
pub struct Printed(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    end: Vec<u8>,
    /// How many bytes are not held any more.
    gone: u64,
}

impl Printed {
    /// Adds what was printed next.
    pub(crate) fn add(&self, piece: &[u8]) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = piece.len().saturating_sub(KEPT);
        held.end.extend_from_slice(&piece[from..]);
        held.gone += from as u64;
        // Seldom, so that a long output is not moved with every piece.
        if held.end.len() > 2 * KEPT {
            let gone = held.end.len() - KEPT;
            held.end.drain(..gone);
            held.gone += gone as u64;
        }
    }

    /// The end of it as text, with a note of what is left out.
    pub fn shown(&self) -> String {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = held.end.len().saturating_sub(KEPT);
        let gone = held.gone + from as u64;
        let text = String::from_utf8_lossy(&held.end[from..]);
        let text = text.trim_end_matches(['\n', '\r']);
        if gone == 0 { text.to_owned() } else { format!("[{gone} bytes cut here]\n\n{text}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_end_of_a_long_output() {
        let printed = Printed::default();
        printed.add(b"one\ntwo\n");
        assert_eq!(printed.shown(), "one\ntwo");
        for size in [1, 100, KEPT, 5 * KEPT] {
            printed.add(&vec![b'x'; size]);
        }
        printed.add(b"last\n");
        let shown = printed.shown();
        let (note, text) = shown.split_once("\n\n").unwrap();
        let all = 8 + 101 + 6 * KEPT + 5;
        assert_eq!(note, format!("[{} bytes cut here]", all - KEPT));
        assert!(text.ends_with("xlast") && text.len() == KEPT - 1, "{}", text.len());
    }
}
