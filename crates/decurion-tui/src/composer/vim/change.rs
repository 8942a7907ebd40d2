//! What commands change. Takes a command and its count; changes the prompt, as one change that can be taken back and done
//! again, or copies from it.

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation as _;

use super::motion::{self, line, next, previous, vertical};
use super::parse::{self, InsertPlace, Operator, OperatorTarget, VimCommand, VimMotion};
use super::{Composer, InsertStart, Last, Register, Vim, VimMode};
use crate::composer::{FIRST, MOST_UNDONE};

/// The most that one command writes, with any count.
const MOST_WRITTEN: usize = 1 << 20;

/// A range that an operator works on.
struct EditSpan {
    range: Range<usize>,
    lines: bool,
}

impl Vim {
    /// Does a command that changes the text, as one change, or copies from it.
    pub(super) fn change(&mut self, composer: &mut Composer, command: VimCommand, count: Option<usize>) {
        let before = (composer.text.clone(), composer.cursor);
        let done = composer.done.len();
        let writes = match command {
            VimCommand::Operate(operator, target) => self.operate(composer, operator, target, count),
            VimCommand::Insert(place) => {
                place_cursor(composer, place);
                true
            }
            VimCommand::Replace(letter) => {
                replace(composer, letter, count.unwrap_or(1));
                false
            }
            VimCommand::Put { before } => {
                self.put(composer, before, count.unwrap_or(1));
                false
            }
            VimCommand::Join => {
                join(composer, count.unwrap_or(2).max(2) - 1);
                false
            }
            VimCommand::Case => {
                switch_case(composer, count.unwrap_or(1));
                false
            }
            VimCommand::Move(_) | VimCommand::Undo | VimCommand::Repeat => false,
        };
        composer.column = None;
        composer.typing = false;
        if writes {
            let begun = (composer.text.clone(), composer.cursor);
            if before.0 != begun.0 {
                remember(composer, before.clone(), done);
            }
            self.mode = VimMode::Insert(Some(Box::new(InsertStart { command, count, before, begun, done })));
            return;
        }
        if before.0 != composer.text {
            remember(composer, before, done);
            self.last = Some(Last { command, count, written: String::new() });
        }
    }

    /// The end of writing: what was written is one change with the command that began it.
    pub(super) fn written(&mut self, composer: &mut Composer, writing: Option<Box<InsertStart>>) {
        if let Some(writing) = writing {
            let written = inserted(&writing.begun, &composer.text).unwrap_or_default().to_owned();
            let (lead, times) = match writing.command {
                VimCommand::Insert(InsertPlace::Below | InsertPlace::Above) => {
                    ("\n", writing.count.unwrap_or(1))
                }
                VimCommand::Insert(_) => ("", writing.count.unwrap_or(1)),
                _ => ("", 1),
            };
            let more = format!("{lead}{written}");
            let again = within(times - 1, more.len());
            if again > 0 && !written.is_empty() {
                composer.put(&more.repeat(again));
            }
            if writing.before.0 != composer.text {
                remember(composer, writing.before, writing.done);
                self.last = Some(Last { command: writing.command, count: writing.count, written });
            }
        }
        let start = line(&composer.text, composer.cursor).start;
        let at = previous(&composer.text, composer.cursor).max(start);
        composer.go(at);
    }

    pub(super) fn repeat(&mut self, composer: &mut Composer, count: Option<usize>) {
        let Some(last) = self.last.clone() else { return };
        self.change(composer, last.command, count.or(last.count));
        if let VimMode::Insert(writing) = &mut self.mode {
            let writing = writing.take();
            composer.put(&last.written);
            self.mode = VimMode::Normal;
            self.written(composer, writing);
        }
    }

    /// Does what an operator does to what it works on. Says whether writing begins.
    fn operate(
        &mut self,
        composer: &mut Composer,
        operator: Operator,
        target: OperatorTarget,
        count: Option<usize>,
    ) -> bool {
        let Some(mut span) = self.span(composer, operator, target, count) else { return false };
        let is_object = matches!(target, OperatorTarget::Object { .. });
        if span.range.is_empty() && !span.lines {
            // Empty quotes can be changed too, and so can the end of a line.
            let writes = operator == Operator::Change;
            if writes && is_object {
                composer.cursor = span.range.start;
            }
            return writes;
        }
        let text = composer.text[span.range.clone()].to_owned();
        self.register = Register {
            text: text.strip_suffix('\n').filter(|_| span.lines).unwrap_or(&text).to_owned(),
            lines: span.lines,
        };
        match operator {
            Operator::Yank => {
                if !(span.lines && target == OperatorTarget::Lines) {
                    composer.cursor = composer.cursor.min(span.range.start);
                }
                if is_object {
                    composer.cursor = span.range.start;
                }
            }
            Operator::Change => {
                if text.ends_with('\n') && span.lines {
                    span.range.end -= 1;
                }
                composer.cursor = span.range.start;
                composer.text.drain(span.range);
                return true;
            }
            Operator::Delete => {
                if span.lines && !text.ends_with('\n') && span.range.start > 0 {
                    // The last line goes with the end of the one above it.
                    span.range.start -= 1;
                }
                composer.cursor = span.range.start;
                composer.text.drain(span.range);
                if span.lines {
                    composer.cursor = motion::first(&composer.text, composer.cursor.min(composer.text.len()));
                }
            }
        }
        false
    }

    /// What an operator works on.
    fn span(
        &mut self,
        composer: &Composer,
        operator: Operator,
        target: OperatorTarget,
        count: Option<usize>,
    ) -> Option<EditSpan> {
        let (text, from) = (composer.text.as_str(), composer.cursor);
        let times = count.unwrap_or(1);
        let lines = |first: usize, last: usize| {
            let (start, end) = (line(text, first.min(last)).start, line(text, first.max(last)).end);
            EditSpan { range: start..(end + 1).min(text.len()), lines: true }
        };
        let motion = match target {
            OperatorTarget::Lines => {
                let last = (1..times).fold(from, |at, _| (line(text, at).end + 1).min(text.len()));
                return Some(lines(from, last));
            }
            OperatorTarget::Object { kind, around } => {
                return motion::object(text, from, kind, around)
                    .map(|range| EditSpan { range, lines: false });
            }
            OperatorTarget::Motion(VimMotion::Up | VimMotion::Down) => {
                let down = target == OperatorTarget::Motion(VimMotion::Down);
                return vertical(composer, down, times, 0).map(|to| lines(from, to));
            }
            OperatorTarget::Motion(motion) => motion,
        };
        let is_space = text[from..].starts_with(char::is_whitespace);
        let range = match motion {
            // `cw` leaves the space behind a word alone.
            VimMotion::Word { big } if operator == Operator::Change && !is_space => {
                // The word that the cursor is on counts, also where it stands on its last character.
                let mut to = motion::object(text, from, parse::Object::Word { big }, false)?.end;
                for _ in 1..times {
                    to = next(text, motion::end(text, previous(text, to), big));
                }
                from..to.max(from)
            }
            VimMotion::Word { .. } => from..within_line(text, from, self.target(composer, motion, count)?.0),
            VimMotion::Top | VimMotion::Bottom => {
                return Some(lines(from, self.target(composer, motion, count)?.0));
            }
            _ => {
                let (to, inclusive) = self.target(composer, motion, count)?;
                let end = if inclusive { next(text, to.max(from)) } else { to.max(from) };
                to.min(from)..end
            }
        };
        Some(EditSpan { range, lines: false })
    }

    fn put(&self, composer: &mut Composer, before: bool, count: usize) {
        // What stands for a paste of another prompt means nothing here.
        let known = |letter: &char| u32::from(*letter) < FIRST || composer.paste(*letter).is_some();
        let text: String = self.register.text.chars().filter(known).collect();
        if text.is_empty() && !self.register.lines {
            return;
        }
        let times = within(count, text.len() + 1).max(1);
        let here = line(&composer.text, composer.cursor);
        if self.register.lines {
            let written = vec![text; times].join("\n");
            let (at, written, skip) = if before {
                (here.start, format!("{written}\n"), 0)
            } else {
                (here.end, format!("\n{written}"), 1)
            };
            composer.text.insert_str(at, &written);
            composer.cursor = motion::first(&composer.text, at + skip);
            return;
        }
        let at =
            if before || here.is_empty() { composer.cursor } else { next(&composer.text, composer.cursor) };
        let is_one_line = !text.contains('\n');
        let written = text.repeat(times);
        composer.text.insert_str(at, &written);
        composer.cursor = if is_one_line { previous(&composer.text, at + written.len()) } else { at };
    }
}

/// Puts one change in place of all that were made since so many could be taken back.
fn remember(composer: &mut Composer, before: (String, usize), done: usize) {
    composer.done.truncate(done);
    composer.done.push(before);
    if composer.done.len() > MOST_UNDONE {
        composer.done.remove(0);
    }
    composer.undone.clear();
    composer.typing = false;
}

/// What was written into a text, if that is all that happened to it.
fn inserted<'a>(begun: &(String, usize), now: &'a str) -> Option<&'a str> {
    let (before, after) = begun.0.split_at_checked(begun.1)?;
    now.strip_prefix(before)?.strip_suffix(after)
}

/// How often something of this length may be written.
fn within(times: usize, length: usize) -> usize {
    times.min(MOST_WRITTEN / length.max(1))
}

/// Where a word that is operated on ends: not in the next line.
fn within_line(text: &str, from: usize, to: usize) -> usize {
    let over = &text[from..to];
    let kept = over.trim_end().len();
    over[kept..].find('\n').map_or(to, |at| from + kept + at)
}

fn place_cursor(composer: &mut Composer, place: InsertPlace) {
    let here = line(&composer.text, composer.cursor);
    match place {
        InsertPlace::Behind if composer.cursor < here.end => {
            composer.cursor = next(&composer.text, composer.cursor);
        }
        InsertPlace::Here | InsertPlace::Behind => {}
        InsertPlace::First => composer.cursor = motion::first(&composer.text, composer.cursor),
        InsertPlace::LineEnd => composer.cursor = here.end,
        InsertPlace::Below => {
            composer.text.insert(here.end, '\n');
            composer.cursor = here.end + 1;
        }
        InsertPlace::Above => {
            composer.text.insert(here.start, '\n');
            composer.cursor = here.start;
        }
    }
}

/// Writes a letter over so many; nothing if there are fewer.
fn replace(composer: &mut Composer, letter: char, count: usize) {
    let here = line(&composer.text, composer.cursor);
    let rest: Vec<&str> = composer.text[composer.cursor..here.end].graphemes(true).take(count).collect();
    if rest.len() < count {
        return;
    }
    let end = composer.cursor + rest.concat().len();
    let written =
        if letter == '\n' { "\n".to_owned() } else { Composer::taken(&letter.to_string()).repeat(count) };
    composer.text.replace_range(composer.cursor..end, &written);
    let end = composer.cursor + written.len();
    composer.cursor = if letter == '\n' { end } else { previous(&composer.text, end) };
}

/// Makes one line of this and so many that follow.
fn join(composer: &mut Composer, count: usize) {
    for _ in 0..count {
        let end = line(&composer.text, composer.cursor).end;
        if end == composer.text.len() {
            return;
        }
        let rest = &composer.text[end + 1..];
        let spaces = rest.len() - rest.trim_start_matches([' ', '\t']).len();
        let follows = &rest[spaces..];
        let is_empty = follows.is_empty() || follows.starts_with('\n');
        let apart = !(is_empty
            || follows.starts_with(')')
            || composer.text[..end].ends_with([' ', '\n'])
            || end == 0);
        composer.text.replace_range(end..end + 1 + spaces, if apart { " " } else { "" });
        composer.cursor = end;
    }
}

/// Small letters for large ones and the other way round.
fn switch_case(composer: &mut Composer, count: usize) {
    let here = line(&composer.text, composer.cursor);
    let end =
        composer.text[composer.cursor..here.end].graphemes(true).take(count).map(str::len).sum::<usize>();
    let old = composer.text[composer.cursor..composer.cursor + end].to_owned();
    let switch = |letter: char| -> String {
        if letter.is_uppercase() { letter.to_lowercase().collect() } else { letter.to_uppercase().collect() }
    };
    let new: String = old.chars().map(switch).collect();
    composer.text.replace_range(composer.cursor..composer.cursor + end, &new);
    composer.cursor += new.len();
}
