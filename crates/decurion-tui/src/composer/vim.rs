//! The keys of vi over the prompt. Takes keys; changes the prompt as vi would, and says which keys are not its own.
//!
//! | file | what |
//! |---|---|
//! | `parse.rs` | keys as commands |
//! | `motion.rs` | where a motion leads |
//! | `change.rs` | what a command changes |

mod change;
mod motion;
mod parse;
#[cfg(test)]
mod tests;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::Composer;
use motion::{column, line, next, nth_line, previous, vertical};
use parse::{Find, ParsedKeys, VimCommand, VimMotion, parse};

/// Whether a key was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    Yes,
    /// It was not: it does what it does without these keys.
    No,
    /// It went up from the first line: to the prompt before.
    Above,
    /// It went down from the last line: to the next prompt.
    Below,
}

/// The state of these keys. It begins with writing.
#[derive(Clone, Debug, Default)]
pub struct Vim {
    mode: VimMode,
    /// The keys of a command that is not whole yet.
    pending: String,
    register: Register,
    found: Option<Find>,
    last: Option<Last>,
}

#[derive(Clone, Debug)]
enum VimMode {
    /// Letters are written. What the writing began with is none where no command began it.
    Insert(Option<Box<InsertStart>>),
    Normal,
}

impl Default for VimMode {
    fn default() -> Self {
        Self::Insert(None)
    }
}

/// How it was when a command began to write.
#[derive(Clone, Debug)]
struct InsertStart {
    command: VimCommand,
    count: Option<usize>,
    before: (String, usize),
    /// After the command, before the first letter.
    begun: (String, usize),
    /// How many changes could be taken back.
    done: usize,
}

/// The last change, for `.`.
#[derive(Clone, Debug)]
struct Last {
    command: VimCommand,
    count: Option<usize>,
    written: String,
}

/// What was deleted or copied last.
#[derive(Clone, Debug, Default)]
struct Register {
    text: String,
    /// Whether that is whole lines.
    lines: bool,
}

impl Vim {
    /// What the status line says.
    pub fn label(&self) -> String {
        match self.mode {
            VimMode::Insert(_) => "insert".to_owned(),
            VimMode::Normal if self.pending.is_empty() => "normal".to_owned(),
            VimMode::Normal => format!("normal {}", self.pending),
        }
    }

    /// Whether letters are commands.
    pub fn is_normal(&self) -> bool {
        matches!(self.mode, VimMode::Normal)
    }

    /// Takes a key, if it is one of these.
    pub fn key(&mut self, composer: &mut Composer, key: &KeyEvent) -> Took {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let is_escape = key.code == KeyCode::Esc || control && key.code == KeyCode::Char('[');
        if let VimMode::Insert(writing) = &mut self.mode {
            // What was being written was sent, or is gone: the command that began it has nothing to end.
            let is_over = |writing: &InsertStart| {
                let begun = writing.done + usize::from(writing.before.0 != writing.begun.0);
                composer.done.len() > begun || !writing.begun.0.is_empty()
            };
            if composer.is_empty() && writing.as_deref().is_some_and(is_over) {
                *writing = None;
            }
            // With an empty prompt the key is for the running turn.
            if !is_escape || composer.is_empty() && writing.is_none() {
                return Took::No;
            }
            let writing = writing.take();
            self.mode = VimMode::Normal;
            self.written(composer, writing);
            return Took::Yes;
        }
        settle(composer);
        let took = self.normal(composer, key, control, is_escape);
        if self.is_normal() {
            settle(composer);
        }
        took
    }

    fn normal(&mut self, composer: &mut Composer, key: &KeyEvent, control: bool, is_escape: bool) -> Took {
        if is_escape {
            let had_some = !std::mem::take(&mut self.pending).is_empty();
            return if had_some { Took::Yes } else { Took::No };
        }
        if control && key.code == KeyCode::Char('r') {
            self.pending.clear();
            composer.redo();
            return Took::Yes;
        }
        let others = KeyModifiers::CONTROL | KeyModifiers::ALT | KeyModifiers::SUPER;
        let waits_for_letter = self.pending.ends_with('r');
        let letter = match key.code {
            _ if key.modifiers.intersects(others) => None,
            // With an empty prompt the key opens the help.
            KeyCode::Char('?') if self.pending.is_empty() && composer.is_empty() => None,
            KeyCode::Char(letter) => Some(letter),
            KeyCode::Enter if waits_for_letter => Some('\n'),
            KeyCode::Left | KeyCode::Backspace => Some('h'),
            KeyCode::Right => Some('l'),
            KeyCode::Home => Some('0'),
            KeyCode::End => Some('$'),
            KeyCode::Delete => Some('x'),
            _ => None,
        };
        let Some(letter) = letter else {
            self.pending.clear();
            return Took::No;
        };
        self.pending.push(letter);
        match parse(&self.pending) {
            ParsedKeys::More => Took::Yes,
            ParsedKeys::Nothing => {
                self.pending.clear();
                Took::Yes
            }
            ParsedKeys::Command(command, count) => {
                self.pending.clear();
                self.run(composer, command, count)
            }
        }
    }

    fn run(&mut self, composer: &mut Composer, command: VimCommand, count: Option<usize>) -> Took {
        match command {
            VimCommand::Move(motion) => return self.go(composer, motion, count),
            VimCommand::Undo => {
                (0..count.unwrap_or(1).min(composer.done.len())).for_each(|_| composer.undo());
            }
            VimCommand::Repeat => self.repeat(composer, count),
            _ => self.change(composer, command, count),
        }
        Took::Yes
    }

    fn go(&mut self, composer: &mut Composer, motion: VimMotion, count: Option<usize>) -> Took {
        if let VimMotion::Up | VimMotion::Down = motion {
            let down = motion == VimMotion::Down;
            let column = composer.column.unwrap_or_else(|| column(composer));
            return match vertical(composer, down, count.unwrap_or(1), column) {
                Some(at) => {
                    composer.go(at);
                    composer.column = Some(column);
                    Took::Yes
                }
                None if down => Took::Below,
                None => Took::Above,
            };
        }
        if let Some((at, _)) = self.target(composer, motion, count) {
            composer.go(at);
            // From the end of a line one goes up and down along the ends.
            composer.column = (motion == VimMotion::LineEnd).then_some(usize::MAX);
        }
        Took::Yes
    }

    /// Where a motion leads, and whether the character there is a part of what it goes over.
    fn target(
        &mut self,
        composer: &Composer,
        motion: VimMotion,
        count: Option<usize>,
    ) -> Option<(usize, bool)> {
        let (text, from) = (composer.text.as_str(), composer.cursor);
        let times = count.unwrap_or(1);
        let here = line(text, from);
        let repeated = |step: &dyn Fn(usize) -> usize| {
            let mut at = from;
            for _ in 0..times {
                let after = step(at);
                if at == after {
                    break;
                }
                at = after;
            }
            at
        };
        Some(match motion {
            VimMotion::Left => (repeated(&|at| previous(text, at).max(here.start)), false),
            VimMotion::Right => (repeated(&|at| if at < here.end { next(text, at) } else { at }), false),
            VimMotion::Up | VimMotion::Down => return None,
            VimMotion::Word { big } => (repeated(&|at| motion::word(text, at, big)), false),
            VimMotion::Back { big } => (repeated(&|at| motion::back(text, at, big)), false),
            VimMotion::End { big } => (repeated(&|at| motion::end(text, at, big)), true),
            VimMotion::LineStart => (here.start, false),
            VimMotion::First => (motion::first(text, from), false),
            VimMotion::LineEnd => {
                let below = vertical(composer, true, times - 1, usize::MAX).unwrap_or(from);
                (line(text, below).end, false)
            }
            VimMotion::Top => (motion::first(text, nth_line(text, times - 1)), false),
            VimMotion::Bottom => {
                (motion::first(text, count.map_or(text.len(), |count| nth_line(text, count - 1))), false)
            }
            VimMotion::Find(find) => {
                self.found = Some(find);
                (motion::find(text, from, find, times, false)?, !find.back)
            }
            VimMotion::Again { reverse } => {
                let found = self.found?;
                let find = Find { back: found.back != reverse, ..found };
                (motion::find(text, from, find, times, true)?, !find.back)
            }
        })
    }
}

/// Keeps the cursor on a character: behind the last one of a line nothing can be done.
fn settle(composer: &mut Composer) {
    let here = line(&composer.text, composer.cursor);
    if composer.cursor == here.end && !here.is_empty() {
        composer.cursor = previous(&composer.text, composer.cursor);
    }
}
