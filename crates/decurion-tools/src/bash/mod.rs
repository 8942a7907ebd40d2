//! What a shell text would do. Takes the text and where it would run; gives every simple command in it, what
//! each would touch, and why anything was not understood. Nothing is run and nothing is looked up.
//!
//! Two rules hold it together: what is not fully understood is a *doubt*, never a guess that passes; and
//! what a command would run, however deep, is in the list as a command of its own.

mod expand;
mod git;
mod path;
mod program;
mod runner;
mod syntax;
mod text;
mod variable;
mod walk;

use decurion_protocol::intent::ShellIntent;

use crate::Surroundings;
use walk::Walker;

/// A text longer than this is not taken apart.
pub const MAX_TEXT: usize = 64 * 1024;
/// A text of more commands than this is asked about.
pub const MAX_COMMANDS: usize = 200;

/// Takes a shell text apart.
pub fn analyse(command: &str, around: &Surroundings) -> ShellIntent {
    if command.len() > MAX_TEXT {
        let doubt = Some(format!("the text is longer than {MAX_TEXT} bytes"));
        return ShellIntent { doubt, ..ShellIntent::default() };
    }
    let parsed = syntax::parse(command);
    let mut walker = Walker::new(around, parsed.bodies);
    walker.script(&parsed.script);
    let too_many = (walker.commands.len() > MAX_COMMANDS).then(|| "there are too many commands in it".to_owned());
    let doubt = deceiving(command).or(parsed.doubt).or(walker.doubt).or(too_many);
    ShellIntent { commands: walker.commands, doubt, moves: walker.moves }
}

/// The words of a rule's text, split as bash would; none where it is not one plain command.
pub fn rule_words(text: &str) -> Option<Vec<String>> {
    let parsed = syntax::parse(text);
    if parsed.doubt.is_some() {
        return None;
    }
    let [list] = parsed.script.lists.as_slice() else { return None };
    let ([command], true) = (list.first.as_slice(), list.rest.is_empty()) else { return None };
    let syntax::Body::Simple { assigns, words } = &command.body else { return None };
    if !command.redirects.is_empty() {
        return None;
    }
    let mut found = Vec::new();
    for assign in assigns {
        found.push(assign.value.source.clone());
    }
    for word in words {
        let mut text = String::new();
        for part in &word.parts {
            match part {
                syntax::Part::Text { text: piece, .. } => text.push_str(piece),
                syntax::Part::Glob(mark) | syntax::Part::Mark(mark) => text.push(*mark),
                _ => {
                    text = word.source.clone();
                    break;
                }
            }
        }
        found.push(text);
    }
    Some(found)
}

/// A word as it would be typed: with quotes where it needs them.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./:=@%+,~$*?[]{}^!#…".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The text with control characters and characters that deceive the eye made visible.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if (is_deceiving(c) || c.is_control()) && c != '\n' && c != '\t' {
            shown.push_str(&format!("\\u{{{:x}}}", u32::from(c)));
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Why a text may not be what it looks like.
fn deceiving(text: &str) -> Option<String> {
    let found = text.chars().find(|c| (c.is_control() && *c != '\n' && *c != '\t') || is_deceiving(*c))?;
    Some(format!("it has a character that deceives, U+{:04X}", u32::from(found)))
}

/// Characters that are not seen, that turn the direction of text, or that look like a blank.
fn is_deceiving(c: char) -> bool {
    matches!(u32::from(c),
        0x00A0 | 0x00AD | 0x034F | 0x061C | 0x115F | 0x1160 | 0x1680 | 0x17B4 | 0x17B5 | 0x180B..=0x180E
        | 0x2000..=0x200F | 0x2028..=0x202F | 0x205F..=0x206F | 0x3000 | 0x3164 | 0xFEFF | 0xFFA0
        | 0xFFF0..=0xFFFB | 0x1D173..=0x1D17A | 0xE0000..=0xE0FFF)
}
