//! Standard output and standard error. Takes bytes; gives them as they are to a file or a pipe, and to a terminal as text
//! in which nothing but a line end commands it. Everything that the program prints goes out here; only the full-screen
//! terminal has its own gate.
#![allow(clippy::disallowed_methods)] // the one place that may name them

use std::io::{self, IsTerminal, Stderr, Stdout, Write};
use std::os::fd::{AsFd as _, OwnedFd};

use decurion_config::Environment;
use decurion_protocol::visible::visible;
use rustix::termios::tcgetwinsize;

pub fn stdout() -> OutputScreen<Stdout> {
    OutputScreen::new(io::stdout())
}

pub fn stderr() -> OutputScreen<Stderr> {
    OutputScreen::new(io::stderr())
}

/// Whether a person sits at both standard input and standard output.
pub fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Standard output as a descriptor, to be watched for the end of its reader.
pub fn stdout_descriptor() -> io::Result<OwnedFd> {
    io::stdout().as_fd().try_clone_to_owned()
}

/// Our own control sequences, which the terminal is to heed.
pub fn command_terminal(sequences: &[&[u8]]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    sequences.iter().try_for_each(|bytes| out.write_all(bytes))?;
    out.flush()
}

/// What standard output can show.
#[derive(Clone, Copy, Debug)]
pub struct OutputTerminal {
    /// Whether it shows colours: a terminal whose user did not switch them off by `NO_COLOR`.
    pub has_colours: bool,
    /// How many columns it has; none if it is no terminal.
    pub width: Option<usize>,
}

impl OutputTerminal {
    pub fn look() -> Self {
        let out = io::stdout();
        if !out.is_terminal() {
            return Self { has_colours: false, width: None };
        }
        let environment = Environment::capture();
        let says = |name: &str| environment.get(name).unwrap_or_default();
        let width = tcgetwinsize(&out).ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
        Self { has_colours: says("NO_COLOR").is_empty() && says("TERM") != "dumb", width }
    }
}

/// How a part of a line looks on a terminal with colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextStyle {
    Plain,
    Strong,
    Faint,
    Good,
    Warning,
    Bad,
}

impl TextStyle {
    fn number(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Strong => 1,
            Self::Faint => 2,
            Self::Bad => 31,
            Self::Good => 32,
            Self::Warning => 33,
        }
    }
}

/// A line of parts for standard output, each in its style where colours are shown. The only control characters are ours.
pub fn write_styled(parts: &[(TextStyle, &str)], has_colours: bool) -> io::Result<()> {
    if !has_colours {
        let line: String = parts.iter().map(|(_, text)| *text).chain(["\n"]).collect();
        return stdout().write_all(line.as_bytes());
    }
    io::stdout().lock().write_all(in_colours(parts).as_bytes())
}

fn in_colours(parts: &[(TextStyle, &str)]) -> String {
    let mut line = String::new();
    for (style, text) in parts {
        let text = visible(text).replace('\n', " ");
        match style {
            TextStyle::Plain => line.push_str(&text),
            style => line.push_str(&format!("\x1b[0;{}m{text}\x1b[0m", style.number())),
        }
    }
    line + "\n"
}

/// A way out that a terminal may stand at the end of.
#[derive(Debug)]
pub struct OutputScreen<W: Write> {
    out: W,
    is_terminal: bool,
    /// The beginning of a character or line end whose rest has not come yet.
    held: Vec<u8>,
}

impl<W: Write + IsTerminal> OutputScreen<W> {
    fn new(out: W) -> Self {
        let is_terminal = out.is_terminal();
        Self { out, is_terminal, held: Vec::new() }
    }
}

impl<W: Write> Write for OutputScreen<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_terminal {
            return self.out.write(bytes);
        }
        self.held.extend_from_slice(bytes);
        let whole = self.held.len() - unfinished(&self.held);
        let rest = self.held.split_off(whole);
        let shown = shown(&std::mem::replace(&mut self.held, rest));
        self.out.write_all(shown.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.held.is_empty() {
            let shown = shown(&std::mem::take(&mut self.held));
            self.out.write_all(shown.as_bytes())?;
        }
        self.out.flush()
    }
}

/// Bytes as a terminal may have them. Files of other systems end their lines with two characters; both are one line end.
fn shown(bytes: &[u8]) -> String {
    visible(&String::from_utf8_lossy(bytes).replace("\r\n", "\n")).into_owned()
}

/// How many bytes at the end cannot be judged yet: a carriage return, or a character that is not whole.
fn unfinished(bytes: &[u8]) -> usize {
    if bytes.last() == Some(&b'\r') {
        return 1;
    }
    let tail = &bytes[bytes.len().saturating_sub(4)..];
    let begins = tail.iter().rposition(|byte| byte & 0b1100_0000 != 0b1000_0000);
    let Some(last) = begins.map(|at| &tail[at..]) else { return 0 };
    match std::str::from_utf8(last) {
        Err(error) if error.error_len().is_none() => last.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out of these pieces.
    fn through(pieces: &[&[u8]], is_terminal: bool) -> Vec<u8> {
        let mut screen = OutputScreen { out: Vec::new(), is_terminal, held: Vec::new() };
        for piece in pieces {
            screen.write_all(piece).unwrap();
        }
        screen.flush().unwrap();
        screen.out
    }

    #[test]
    fn colours_are_ours_alone() {
        let line = in_colours(&[(TextStyle::Bad, "a\u{1b}[2J"), (TextStyle::Plain, "\u{9b}b\nc")]);
        assert_eq!(line, "\u{1b}[0;31ma␛[2J\u{1b}[0m\u{fffd}b c\n");
    }

    #[test]
    fn terminal_gets_no_control_byte_however_the_bytes_are_cut() {
        let text = "a\u{1b}]0;x\u{7}\r\né\u{9b}2J日\r\u{202e}\n\u{1b}".as_bytes();
        let bad = [text, b"\x9b\xff\xc3"].concat();
        let expected = "a␛]0;x␇\né\u{fffd}2J日␍\u{fffd}\n␛\u{fffd}\u{fffd}\u{fffd}";
        for size in 1..bad.len() {
            let pieces: Vec<&[u8]> = bad.chunks(size).collect();
            assert_eq!(String::from_utf8(through(&pieces, true)).unwrap(), expected, "{size}");
            assert_eq!(through(&pieces, false), bad, "a pipe gets every byte");
        }
    }
}
