//! Text that is safe to show. Takes text from a model, a tool, a file or a repository, gives text without terminal
//! control sequences. Every front end that writes to a terminal uses it.

use std::borrow::Cow;

/// How many columns a tab stands for.
const TAB: &str = "    ";

/// The same text with every invisible character made visible: for texts that a person decides about, who must see all
/// of it. Line ends stay.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|letter| letter != '\n' && (is_hidden(letter) || is_joiner(letter))) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    let mut before = None;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\n' => shown.push('\n'),
            '\t' => shown.push_str(TAB),
            hidden if is_hidden(hidden) => shown.push(picture(hidden)),
            loose if is_joiner(loose) && !joins(before, letters.peek().copied()) => {
                shown.push(picture(loose));
            }
            plain => shown.push(plain),
        }
        before = Some(letter);
    }
    Cow::Owned(shown)
}

/// Whether a character is not shown as itself: control characters of both sets, those that change the direction of what
/// follows, those without a width, and blank fillers.
pub fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}' | '\u{200b}' | '\u{200e}'
            | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// Whether a character is seen only by what it makes of the one before it: it joins it to the next, or selects its form.
fn is_joiner(letter: char) -> bool {
    matches!(letter,
        '\u{34f}' | '\u{180b}'..='\u{180d}' | '\u{180f}' | '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{e0100}'..='\u{e01ef}')
}

/// Whether a joiner between these has something to join. Letters of a command do not; a key cap begins with one.
fn joins(before: Option<char>, after: Option<char>) -> bool {
    match before {
        None => false,
        Some('\u{fe0f}') => after.is_some_and(|after| !after.is_ascii() && !is_joiner(after)),
        Some('0'..='9' | '#' | '*') => after == Some('\u{20e3}'),
        Some(before) => !before.is_ascii() && !is_joiner(before) && !is_hidden(before),
    }
}

/// What stands for a hidden character.
fn picture(hidden: char) -> char {
    match u32::from(hidden) {
        code @ 0..0x20 => char::from_u32(0x2400 + code).unwrap_or('\u{fffd}'),
        0x7f => '\u{2421}',
        _ => '\u{fffd}',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_as_pictures() {
        for (text, seen) in [
            ("plain\ntext 👩\u{200d}💻", "plain\ntext 👩\u{200d}💻"),
            ("\u{1b}]52;c;aGk=\u{7}", "␛]52;c;aGk=␇"),
            ("\u{9b}2J \u{202e}x\u{2069}", "\u{fffd}2J \u{fffd}x\u{fffd}"),
            ("a\tb\rc", "a    b␍c"),
        ] {
            assert_eq!(visible(text), seen, "{text:?}");
        }
    }
}
