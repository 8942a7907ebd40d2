//! Questions at a terminal where no session is shown yet: setting up a model, trusting a folder. Takes lists and
//! questions; gives what a person chose or wrote, or that they left. Earlier text stays above, and the open question is
//! below it.

use std::io;
use std::time::Duration;

use crossterm::event::{Event as Happening, KeyEventKind};
use ratatui_core::text::{Line, Span};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::composer::{Composer, ComposerEdit, CursorMotion};
use crate::keymap::{Action, Keymap};
use crate::list::{ChoiceList, ListAction};
use crate::screen::{CursorPosition, TerminalScreen};
use crate::terminal::OwnedTerminal;
use crate::terminal_events::TerminalEvents;
use crate::text::{cut, one_line, width, wrap};
use crate::theme::{Shades, Theme};
use crate::{FrameWriter, OutsideSignal};

/// The longest key that is taken: far more than any has.
const MOST_HIDDEN: usize = 8192;
/// How often the time that something takes is shown.
const SECOND: Duration = Duration::from_secs(1);

/// A terminal at which questions are asked. It is given back when this is dropped.
pub struct TerminalForm {
    // Before the terminal, which is given back last.
    screen: TerminalScreen<FrameWriter>,
    keys: TerminalEvents,
    keymap: Keymap,
    theme: Theme,
    /// The earlier text, for drawing it again.
    said: Vec<Line<'static>>,
    signals: Option<mpsc::Receiver<OutsideSignal>>,
    ended_by: Option<OutsideSignal>,
    /// Stops this program until the shell continues it.
    suspend: fn() -> bool,
    terminal: OwnedTerminal,
}

/// What something said means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    /// It failed, or needs attention.
    Bad,
    /// It is in the background.
    Faint,
}

/// What happened while a question was open.
enum Happened {
    Action(Action),
    Pasted(String),
    /// The size is another one.
    Resized,
    Other,
    /// The terminal is gone.
    Gone,
}

impl TerminalForm {
    /// Takes the terminal. Where nothing listens to signals yet, they end the program as usual; else they come in here.
    pub fn take(
        shades: Shades,
        signals: Option<mpsc::Receiver<OutsideSignal>>,
        suspend: fn() -> bool,
    ) -> io::Result<Self> {
        let terminal = OwnedTerminal::take(crate::terminal::Notices::Off)?;
        Ok(Self {
            screen: TerminalScreen::new(FrameWriter, OwnedTerminal::size()),
            keys: TerminalEvents::new()?,
            keymap: Keymap::default(),
            theme: Theme::new(shades),
            said: Vec::new(),
            signals,
            ended_by: None,
            suspend,
            terminal,
        })
    }

    /// Gives the terminal back; the signal that ended the questions, if one did, the key for an interrupt included.
    pub async fn end(mut self) -> Option<OutsideSignal> {
        let _ = self.screen.leave();
        self.keys.end().await;
        self.ended_by
    }

    /// Says something that stays.
    pub fn say(&mut self, tone: Tone, text: &str) -> io::Result<()> {
        let (style, columns) = (self.style(tone), self.columns());
        let lines = text.lines().map(|line| Line::styled(crate::text::visible(line).into_owned(), style));
        let lines: Vec<Line<'static>> = lines.flat_map(|line| wrap(line, columns, "  ")).collect();
        // Between the lines that stay, an empty one is one.
        let lines = if text.is_empty() { vec![Line::default()] } else { lines };
        self.screen.draw(&lines, &[], None)?;
        self.said.extend(lines);
        Ok(())
    }

    /// Lets a person choose from a list; none if they left it.
    pub async fn choose(&mut self, list: &mut ChoiceList) -> io::Result<Option<(char, String, String)>> {
        loop {
            let (columns, rows) = (self.columns(), usize::from(self.screen.size().1));
            let live = list.lines(&self.theme, columns, rows.saturating_sub(2), jiff::Timestamp::UNIX_EPOCH);
            self.draw(&live, None)?;
            let picked = match self.next().await? {
                Happened::Gone | Happened::Action(Action::EndOfInput) => return self.closed(),
                Happened::Action(action) => list.key(action),
                Happened::Pasted(text) => {
                    if let Some(words) = list.writing() {
                        words.insert(&one_line(text.trim()));
                    }
                    ListAction::Taken
                }
                Happened::Resized | Happened::Other => ListAction::Taken,
            };
            match picked {
                ListAction::Taken | ListAction::Passed => {}
                ListAction::Closed => return self.closed(),
                ListAction::Do(key, id, words) => {
                    self.draw(&[], None)?;
                    return Ok(Some((key, id, words)));
                }
            }
        }
    }

    /// Lets a person write a line; none if they left it.
    pub async fn line(&mut self, question: &str) -> io::Result<Option<String>> {
        let mut words = Composer::default();
        loop {
            let written = one_line(words.raw());
            let live = [
                Line::from(vec![
                    Span::styled(question.to_owned(), self.theme.accent),
                    Span::raw(written.clone()),
                ]),
                self.foot("enter continue · esc back"),
            ];
            let before = one_line(words.raw().get(..words.cursor()).unwrap_or(&written));
            self.draw(&live, Some((0, width(question) + width(&before))))?;
            match self.next().await? {
                Happened::Gone | Happened::Action(Action::Interrupt | Action::EndOfInput) => {
                    return self.closed();
                }
                Happened::Action(Action::Submit) => {
                    let text = words.take().trim().to_owned();
                    self.draw(&[], None)?;
                    self.say(Tone::Faint, &format!("{question}{text}"))?;
                    return Ok(Some(text));
                }
                Happened::Action(Action::Edit(edit)) => words.edit(edit),
                Happened::Pasted(text) => words.insert(&one_line(text.trim())),
                Happened::Action(_) | Happened::Resized | Happened::Other => {}
            }
        }
    }

    /// Lets a person write a secret: only its length is shown. None if they left it.
    pub async fn hidden(&mut self, question: &str) -> io::Result<Option<String>> {
        let mut secret = String::new();
        loop {
            let count = secret.chars().count();
            let room = self.columns().saturating_sub(width(question) + 20);
            let dots = "•".repeat(count.min(room));
            let length = if count == 0 { String::new() } else { format!(" ({})", characters(count)) };
            let live = [
                Line::from(vec![
                    Span::styled(question.to_owned(), self.theme.accent),
                    Span::raw(dots.clone()),
                    Span::styled(length, self.theme.faint),
                ]),
                self.foot("paste or type · enter continue · ctrl+u clear · esc back"),
            ];
            self.draw(&live, Some((0, width(question) + width(&dots))))?;
            match self.next().await? {
                Happened::Gone | Happened::Action(Action::Interrupt | Action::EndOfInput) => {
                    return self.closed();
                }
                Happened::Action(Action::Submit) => {
                    let said = if count == 0 {
                        "none".to_owned()
                    } else {
                        format!("{dots} ({})", characters(count))
                    };
                    self.draw(&[], None)?;
                    self.say(Tone::Faint, &format!("{question}{said}"))?;
                    return Ok(Some(secret));
                }
                Happened::Action(Action::Edit(edit)) => change(&mut secret, edit),
                Happened::Pasted(text) => {
                    secret.extend(text.trim().chars().filter(|letter| !letter.is_control()));
                    secret.truncate(secret.floor_char_boundary(MOST_HIDDEN));
                }
                Happened::Action(_) | Happened::Resized | Happened::Other => {}
            }
        }
    }

    /// Waits for something and shows for how long; none if the person did not.
    pub async fn wait<T>(&mut self, words: &str, work: impl Future<Output = T>) -> io::Result<Option<T>> {
        let mut work = std::pin::pin!(work);
        let began = Instant::now();
        loop {
            let passed = began.elapsed().as_secs();
            let time = if passed == 0 { String::new() } else { format!(" {passed} s") };
            let live = [Line::styled(format!("{words} …{time}"), self.theme.accent), self.foot("esc cancel")];
            self.draw(&live, None)?;
            let happened = tokio::select! {
                biased;
                done = &mut work => {
                    self.draw(&[], None)?;
                    return Ok(Some(done));
                }
                happened = self.next() => happened?,
                () = tokio::time::sleep(SECOND) => Happened::Other,
            };
            match happened {
                Happened::Gone | Happened::Action(Action::Interrupt | Action::EndOfInput) => {
                    return self.closed();
                }
                _ => {}
            }
        }
    }

    fn closed<T>(&mut self) -> io::Result<Option<T>> {
        self.draw(&[], None)?;
        Ok(None)
    }

    /// The next event. Cancelling the wait loses none.
    async fn next(&mut self) -> io::Result<Happened> {
        if self.ended_by.is_some() {
            return Ok(Happened::Gone);
        }
        let signals = &mut self.signals;
        let signal = async {
            match signals {
                Some(signals) => signals.recv().await,
                None => std::future::pending().await,
            }
        };
        let happening = tokio::select! {
            biased;
            signal = signal => {
                // The others are keys here.
                match signal {
                    Some(signal @ (OutsideSignal::Terminate | OutsideSignal::Hangup)) => {
                        self.ended_by = Some(signal);
                        return Ok(Happened::Gone);
                    }
                    Some(_) => {}
                    None => self.signals = None,
                }
                return Ok(Happened::Other);
            }
            happening = self.keys.next() => happening,
        };
        let Some(happening) = happening else {
            self.ended_by = Some(OutsideSignal::Hangup);
            return Ok(Happened::Gone);
        };
        Ok(match happening? {
            Happening::Key(key) if key.kind != KeyEventKind::Release => match self.keymap.action(&key) {
                Some(Action::Leave) => {
                    self.ended_by = Some(OutsideSignal::Interrupt);
                    Happened::Gone
                }
                Some(Action::Suspend) => {
                    self.screen.leave()?;
                    self.terminal.pause();
                    let _ = (self.suspend)();
                    self.terminal.go_on()?;
                    Happened::Resized
                }
                Some(action) => Happened::Action(action),
                None => Happened::Other,
            },
            Happening::Paste(text) => Happened::Pasted(text),
            Happening::Resize(..) => Happened::Resized,
            _ => Happened::Other,
        })
    }

    fn draw(&mut self, live: &[Line<'static>], cursor: CursorPosition) -> io::Result<()> {
        let size = OwnedTerminal::size();
        if size == self.screen.size() {
            return self.screen.draw(&[], live, cursor);
        }
        let from = self.said.len().saturating_sub(self.screen.owned(size));
        self.screen.repaint(size, &self.said[from..], live, cursor)
    }

    fn columns(&self) -> usize {
        usize::from(self.screen.size().0.max(1))
    }

    fn foot(&self, words: &str) -> Line<'static> {
        Line::styled(cut(words, self.columns()).into_owned(), self.theme.faint)
    }

    fn style(&self, tone: Tone) -> ratatui_core::style::Style {
        match tone {
            Tone::Plain => ratatui_core::style::Style::default(),
            Tone::Good => self.theme.good,
            Tone::Bad => self.theme.error,
            Tone::Faint => self.theme.faint,
        }
    }
}

/// How long something is that is not shown.
pub fn characters(count: usize) -> String {
    if count == 1 { "1 character".to_owned() } else { format!("{count} characters") }
}

/// The effect of a key on a hidden text, which has no visible cursor.
fn change(secret: &mut String, edit: ComposerEdit) {
    match edit {
        ComposerEdit::Type(letter) if secret.len() < MOST_HIDDEN && !letter.is_control() => {
            secret.push(letter);
        }
        ComposerEdit::Delete(CursorMotion::Left) => {
            secret.pop();
        }
        ComposerEdit::Cut(_) => secret.clear(),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_text_is_typed_at_its_end_and_cleared_whole() {
        let mut secret = String::new();
        for letter in "sk-1x".chars() {
            change(&mut secret, ComposerEdit::Type(letter));
        }
        change(&mut secret, ComposerEdit::Move(CursorMotion::Left));
        change(&mut secret, ComposerEdit::Delete(CursorMotion::Left));
        assert_eq!(secret, "sk-1");
        change(&mut secret, ComposerEdit::Cut(CursorMotion::LineStart));
        assert_eq!(secret, "");
    }
}
