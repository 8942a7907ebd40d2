//! The terminal itself. Takes it over while the program runs, and gives it back however that ends: at the end, on a
//! panic, while the shell has its turn.
#![allow(clippy::disallowed_methods)] // what it writes are our own sequences

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crossterm::event::{EnableBracketedPaste, EnableFocusChange};
use crossterm::execute;
use crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::text;
use crate::theme::Shades;

/// How long a terminal may take to answer.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How much of a text is shown on the desktop.
const MOST_TOLD: usize = 120;
/// How many pieces an answer may come in.
const MOST_PIECES: usize = 64;

/// Ends a synchronized update; the normal buffer (the cursor stays, as it is unknown whether the buffer was left), no
/// bracketed paste, no focus events, wrapping, a cursor, no colours.
pub const RESET: &[u8] = b"\x1b[?2026l\x1b[?47l\x1b[?1004l\x1b[?2004l\x1b[?7h\x1b[?25h\x1b[0m";

/// Puts the window's title aside.
const SAVE_TITLE: &[u8] = b"\x1b[22;0t";
/// Has it again. A terminal that has put none aside is left with none, rather than with ours.
pub const OLD_TITLE: &[u8] = b"\x1b]0;\x07\x1b[23;0t";

/// Whether the terminal is ours now: it is given back once.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// How a terminal tells a person on the desktop that something wants them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notices {
    /// Not at all, and it does not ring either.
    Off,
    #[default]
    Bell,
    /// By a sequence, and it rings.
    Sequence {
        kind: Sequence,
        /// Whether it has to pass through tmux.
        tmux: bool,
    },
}

/// The sequences that terminals know for this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequence {
    Osc9,
    /// urxvt, foot, WezTerm and others.
    Osc777,
    Osc99,
}

impl Notices {
    /// Whether the terminal is to say when it has the focus.
    fn wants_focus(self) -> bool {
        matches!(self, Self::Sequence { .. })
    }

    /// The bytes that show this text.
    fn bytes(self, text: &str) -> Option<String> {
        let Self::Sequence { kind, tmux } = self else { return None };
        let text: String = text.chars().filter(|letter| !letter.is_control()).take(MOST_TOLD).collect();
        let bytes = match kind {
            Sequence::Osc9 => format!("\x1b]9;{text}\x07"),
            Sequence::Osc777 => format!("\x1b]777;notify;Decurion;{}\x07", text.replace(';', ",")),
            Sequence::Osc99 => format!("\x1b]99;;Decurion: {text}\x1b\\"),
        };
        // What is for the terminal around tmux is wrapped, with each escape written twice.
        Some(if tmux { format!("\x1bPtmux;{}\x1b\\", bytes.replace('\x1b', "\x1b\x1b")) } else { bytes })
    }
}

/// The terminal while it is ours.
pub struct OwnedTerminal {
    /// What its title says.
    title: String,
    notices: Notices,
}

impl OwnedTerminal {
    /// Takes it over. It is given back when this is dropped, also by a panic on its way out; one that is caught below,
    /// such as an agent's, leaves it ours.
    pub fn take(notices: Notices) -> io::Result<Self> {
        hold(notices)?;
        Ok(Self { title: String::new(), notices })
    }

    /// Gives it back for a while.
    pub fn pause(&self) {
        give_back();
    }

    /// Takes it again. Another program may have changed its state without restoring it.
    pub fn go_on(&self) -> io::Result<()> {
        io::stdout().write_all(RESET)?;
        hold(self.notices)?;
        self.put_title()
    }

    /// Its columns and rows; something usual where it does not say.
    pub fn size() -> (u16, u16) {
        let known = crossterm::terminal::size().ok();
        known.filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or((80, 24))
    }

    /// Rings for a person, and tells which window wants one.
    pub fn ring(&self) -> io::Result<()> {
        if self.notices == Notices::Off {
            return Ok(());
        }
        let mut out = io::stdout();
        out.write_all(b"\x07")?;
        out.flush()
    }

    /// Tells a person on the desktop, where the terminal is known to do that.
    pub fn notify(&self, text: &str) -> io::Result<()> {
        let Some(bytes) = self.notices.bytes(text) else { return Ok(()) };
        let mut out = io::stdout();
        out.write_all(bytes.as_bytes())?;
        out.flush()
    }

    /// Puts a text on the clipboard of the person's own machine, where their terminal lets programs do that.
    pub fn copy(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout();
        write!(out, "\x1b]52;c;{}\x07", STANDARD.encode(text))?;
        out.flush()
    }

    pub fn title(&mut self, title: &str) -> io::Result<()> {
        let title: String = title.chars().filter(|letter| !letter.is_control()).take(80).collect();
        if title == self.title {
            return Ok(());
        }
        self.title = title;
        self.put_title()
    }

    fn put_title(&self) -> io::Result<()> {
        let mut out = io::stdout();
        write!(out, "\x1b]0;{}\x07", self.title)?;
        out.flush()
    }
}

/// What a terminal said when it was asked, before anybody read keys from it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TerminalAnswer {
    /// What it can show, by its background. None where it says nothing.
    pub shades: Option<Shades>,
    /// What a person typed meanwhile.
    pub typed: String,
}

/// Asks the terminal for its background.
///
/// Every terminal answers the second question, so that the wait for the first answer ends.
pub fn said() -> TerminalAnswer {
    if enable_raw_mode().is_err() {
        return TerminalAnswer::default();
    }
    let answer = ask(b"\x1b]11;?\x1b\\\x1b[c");
    let _ = disable_raw_mode();
    TerminalAnswer::of(&String::from_utf8_lossy(&answer))
}

impl TerminalAnswer {
    fn of(answer: &str) -> Self {
        let typed = text::without_sequences(answer).replace('\r', "\n");
        let is_typed = |letter: &char| *letter == '\n' || !letter.is_control();
        Self { shades: shades(answer), typed: typed.chars().filter(is_typed).collect() }
    }
}

fn shades(answer: &str) -> Option<Shades> {
    let parts: Vec<u32> = answer
        .split("rgb:")
        .nth(1)?
        .split(['/', '\x1b', '\x07'])
        .take(3)
        .filter_map(|part| u32::from_str_radix(part.get(..2)?, 16).ok())
        .collect();
    let [red, green, blue] = parts[..] else { return None };
    // How bright an eye finds it, of 255 000.
    let brightness = 299 * red + 587 * green + 114 * blue;
    Some(if brightness > 127_500 { Shades::Light } else { Shades::Dark })
}

/// Asks the terminal; all that came up to the answer of the last question.
fn ask(question: &[u8]) -> Vec<u8> {
    let (mut out, stdin, mut answer) = (io::stdout(), io::stdin(), Vec::new());
    if out.write_all(question).and_then(|()| out.flush()).is_err() {
        return answer;
    }
    for _ in 0..MOST_PIECES {
        let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
        if !poll(&mut ready, Some(&PATIENCE)).is_ok_and(|count| count > 0) {
            break;
        }
        let mut piece = [0; 64];
        let Some(length) = rustix::io::read(&stdin, &mut piece).ok().filter(|length| *length > 0) else {
            break;
        };
        answer.extend_from_slice(&piece[..length]);
        if is_whole(&answer) {
            break;
        }
    }
    answer
}

/// Whether the answer to the last question is there: which kind of terminal it is.
fn is_whole(answer: &[u8]) -> bool {
    let kind = answer.windows(3).position(|three| three == b"\x1b[?");
    kind.is_some_and(|at| {
        answer[at + 3..].iter().find(|byte| !matches!(byte, b'0'..=b'9' | b';')) == Some(&b'c')
    })
}

/// Whether the terminal is ours now, so that no other code may write to it.
pub fn is_taken() -> bool {
    TAKEN.load(Ordering::SeqCst)
}

impl Drop for OwnedTerminal {
    fn drop(&mut self) {
        if std::thread::panicking() && is_taken() {
            // The drawn lines were not cleared: later output begins below the cursor.
            let _ = io::stdout().write_all(b"\r\n\x1b[J");
        }
        give_back();
    }
}

fn hold(notices: Notices) -> io::Result<()> {
    TAKEN.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    io::stdout().write_all(SAVE_TITLE)?;
    if notices.wants_focus() {
        execute!(io::stdout(), EnableFocusChange)?;
    }
    execute!(io::stdout(), EnableBracketedPaste)
}

/// Restores the state of the terminal for a shell. Steps that fail are skipped.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // Shown, wrapping, and nothing held back for one update.
        let _ = io::stdout().write_all(RESET);
        let _ = io::stdout().write_all(OLD_TITLE);
        let _ = io::stdout().flush();
        // Last: a terminal that is still raw shows that the rest is not done.
        let _ = disable_raw_mode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_typed_meanwhile_is_no_answer() {
        let table = [
            ("\x1b]11;rgb:ffff/ffff/dddd\x1b\\\x1b[?62;22c", Some(Shades::Light), ""),
            ("fix\x1b]11;rgb:0000/1111/2222\x07 the\x1b[?1c test\r", Some(Shades::Dark), "fix the test\n"),
            ("\x1b[A\x01c\x1b[?62c", None, "c"),
            ("", None, ""),
        ];
        for (answer, shades, typed) in table {
            assert_eq!(
                TerminalAnswer::of(answer),
                TerminalAnswer { shades, typed: typed.to_owned() },
                "{answer:?}"
            );
        }
    }

    #[test]
    fn a_notice_is_written_as_the_terminal_knows_it() {
        let text = "asks: a;b\x1b[31m";
        let of = |kind, tmux| Notices::Sequence { kind, tmux }.bytes(text).unwrap();
        assert_eq!(of(Sequence::Osc9, false), "\x1b]9;asks: a;b[31m\x07");
        assert_eq!(of(Sequence::Osc777, false), "\x1b]777;notify;Decurion;asks: a,b[31m\x07");
        assert_eq!(of(Sequence::Osc99, false), "\x1b]99;;Decurion: asks: a;b[31m\x1b\\");
        assert_eq!(of(Sequence::Osc9, true), "\x1bPtmux;\x1b\x1b]9;asks: a;b[31m\x07\x1b\\");
        assert_eq!((Notices::Bell.bytes(text), Notices::Off.bytes(text)), (None, None));
    }

    #[test]
    fn an_answer_is_whole_at_the_end_of_its_last_part() {
        let answer = b"c\x1b]11;rgb:ff/ff/cc\x1b\\\x1b[?62;22c";
        for end in 0..answer.len() {
            assert!(!is_whole(&answer[..end]), "{end}");
        }
        assert!(is_whole(answer) && is_whole(b"\x1b[?1cx"));
    }
}
