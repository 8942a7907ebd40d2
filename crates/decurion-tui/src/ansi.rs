//! Colours that a program meant for a terminal. Takes its output; gives lines of it with styles. Only style sequences
//! have an effect: others, and incomplete ones, are made visible as in any other text.

use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};

use crate::text::visible;
use crate::theme::{Shades, Theme};

/// The lines of a text, no more than these; parts without a style get the usual one.
pub fn lines(text: &str, theme: &Theme, usual: Style, most: usize) -> Vec<Line<'static>> {
    let mut now = Style::new();
    text.lines().take(most).map(|line| Line::from(spans(line.trim_end(), theme, usual, &mut now))).collect()
}

/// The parts of a line, each with its style. As in a terminal, a style holds until another is set.
fn spans(line: &str, theme: &Theme, usual: Style, now: &mut Style) -> Vec<Span<'static>> {
    let mut spans = Vec::new();
    let mut put = |text: &str, now: Style| {
        if !text.is_empty() {
            spans.push(Span::styled(visible(text).into_owned(), shown(now, theme, usual)));
        }
    };
    let (mut rest, mut from) = (line, 0);
    while let Some(at) = rest[from..].find(['\u{1b}', '\u{9b}']).map(|at| from + at) {
        match sequence(&rest[at..]) {
            Some((parameters, length)) => {
                put(&rest[..at], *now);
                set(now, parameters);
                (rest, from) = (&rest[at + length..], 0);
            }
            // It stays where it is, to be seen.
            None => from = at + rest[at..].chars().next().map_or(1, char::len_utf8),
        }
    }
    put(rest, *now);
    spans
}

/// A style as it is shown: without colours if the person wants none.
fn shown(now: Style, theme: &Theme, usual: Style) -> Style {
    let now = match theme.shades {
        Shades::None => Style { fg: None, bg: None, ..now },
        _ => now,
    };
    if now == Style::new() { usual } else { now }
}

/// The parameters of the sequence at the beginning of a text, if it sets a style, and how many bytes it takes.
fn sequence(text: &str) -> Option<(&str, usize)> {
    let rest = text.strip_prefix('\u{9b}').or_else(|| text.strip_prefix("\u{1b}["))?;
    let end = rest.find(|letter: char| !matches!(letter, '0'..='9' | ';' | ':'))?;
    let is_style = rest[end..].starts_with('m');
    is_style.then(|| (&rest[..end], text.len() - rest.len() + end + 1))
}

/// Sets what these parameters say. One that says anything else than a style sets nothing.
fn set(style: &mut Style, parameters: &str) {
    let mut codes = parameters.split(';');
    while let Some(code) = codes.next() {
        let mut parts = code.split(':').map(number);
        match parts.next().flatten() {
            Some(place @ (38 | 48 | 58)) => {
                let color = if code.contains(':') {
                    let parts: Vec<Option<u8>> = parts.collect();
                    // A colour of three parts may have the name of its space before them.
                    match parts[..] {
                        [Some(2), _, red, green, blue, ..] => rgb(red, green, blue),
                        _ => color(&mut parts.into_iter()),
                    }
                } else {
                    color(&mut codes.by_ref().map(number))
                };
                match place {
                    38 => style.fg = color.or(style.fg),
                    48 => style.bg = color.or(style.bg),
                    _ => {}
                }
            }
            // An underline of no kind is none.
            Some(4) if parts.next() == Some(Some(0)) => style.add_modifier.remove(Modifier::UNDERLINED),
            Some(code) => set_one(style, code),
            None => {}
        }
    }
}

/// A number; nothing is 0.
fn number(digits: &str) -> Option<u8> {
    if digits.is_empty() { Some(0) } else { digits.parse().ok() }
}

/// One of 256 colours, or one of three parts.
fn color(parts: &mut dyn Iterator<Item = Option<u8>>) -> Option<Color> {
    let mut next = || parts.next().flatten();
    match next()? {
        5 => Some(Color::Indexed(next()?)),
        2 => {
            let (red, green, blue) = (next(), next(), next());
            rgb(red, green, blue)
        }
        _ => None,
    }
}

fn rgb(red: Option<u8>, green: Option<u8>, blue: Option<u8>) -> Option<Color> {
    Some(Color::Rgb(red?, green?, blue?))
}

/// The terminal's own colours, as they are numbered.
const COLORS: [Color; 16] = [
    Color::Black,
    Color::Red,
    Color::Green,
    Color::Yellow,
    Color::Blue,
    Color::Magenta,
    Color::Cyan,
    Color::Gray,
    Color::DarkGray,
    Color::LightRed,
    Color::LightGreen,
    Color::LightYellow,
    Color::LightBlue,
    Color::LightMagenta,
    Color::LightCyan,
    Color::White,
];

fn set_one(style: &mut Style, code: u8) {
    let own = |at: u8| Some(COLORS[usize::from(at)]);
    let has = &mut style.add_modifier;
    match code {
        0 => *style = Style::new(),
        1 => has.insert(Modifier::BOLD),
        2 => has.insert(Modifier::DIM),
        3 => has.insert(Modifier::ITALIC),
        4 | 21 => has.insert(Modifier::UNDERLINED),
        7 => has.insert(Modifier::REVERSED),
        9 => has.insert(Modifier::CROSSED_OUT),
        22 => has.remove(Modifier::BOLD | Modifier::DIM),
        23 => has.remove(Modifier::ITALIC),
        24 => has.remove(Modifier::UNDERLINED),
        27 => has.remove(Modifier::REVERSED),
        29 => has.remove(Modifier::CROSSED_OUT),
        30..=37 => style.fg = own(code - 30),
        39 => style.fg = None,
        40..=47 => style.bg = own(code - 40),
        49 => style.bg = None,
        90..=97 => style.fg = own(code - 90 + 8),
        100..=107 => style.bg = own(code - 100 + 8),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Style = Style::new().add_modifier(Modifier::DIM);

    fn painted(text: &str, shades: Shades) -> Vec<Line<'static>> {
        lines(text, &Theme::new(shades), USUAL, 3)
    }

    /// The parts of one line.
    fn parts(text: &str) -> Vec<(String, Style)> {
        let lines = painted(text, Shades::Dark);
        lines.into_iter().flat_map(|line| line.spans).map(|span| (span.content.into(), span.style)).collect()
    }

    #[test]
    fn what_programs_print_is_understood() {
        let new = Style::new;
        let (bold, red) = (new().add_modifier(Modifier::BOLD), new().fg(Color::Red));
        let all = Modifier::DIM | Modifier::ITALIC | Modifier::UNDERLINED | Modifier::REVERSED;
        let all = new().add_modifier(all | Modifier::CROSSED_OUT);
        let table = [
            ("31", red),
            ("1;31", red.add_modifier(Modifier::BOLD)),
            ("97;44", new().fg(Color::White).bg(Color::Blue)),
            ("90;103", new().fg(Color::DarkGray).bg(Color::LightYellow)),
            ("38;5;208", new().fg(Color::Indexed(208))),
            ("48;2;1;2;3;1", bold.bg(Color::Rgb(1, 2, 3))),
            ("38:5:9", new().fg(Color::Indexed(9))),
            ("38:2:1:2:3", new().fg(Color::Rgb(1, 2, 3))),
            ("38:2::1:2:3", new().fg(Color::Rgb(1, 2, 3))),
            ("58;5;9;31", red),
            ("2;3;4;7;9", all),
            ("1;2;3;4;22;23;24;31", red),
            ("4;4:0;31", red),
            ("32;;31", red),
            ("31;39;1", bold),
            // Blinking and hiding are nobody's business, and what is out of range is nothing.
            ("5;8;31;999;108", red),
            ("31;38;5", red),
            ("31;38;5;999", red),
            ("0", USUAL),
            ("", USUAL),
        ];
        for (codes, style) in table {
            let text = format!("\u{1b}[{codes}mx");
            assert_eq!(parts(&text), [("x".to_owned(), style)], "{codes}");
            assert_eq!(parts(&text.replace("\u{1b}[", "\u{9b}")), [("x".to_owned(), style)], "{codes}");
        }
    }

    #[test]
    fn a_style_holds_until_another_and_without_one_it_is_the_usual() {
        let red = Style::new().fg(Color::Red);
        let part = |text: &str, style| (text.to_owned(), style);
        assert_eq!(
            parts("a \u{1b}[31mb\nc\u{1b}[0m d"),
            [part("a ", USUAL), part("b", red), part("c", red), part(" d", USUAL)]
        );
        assert_eq!(painted("1\n2\n3\n4", Shades::Dark).len(), 3);
    }

    #[test]
    fn without_colours_only_weight_is_left() {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let line = painted("\u{1b}[31;48;2;1;2;3ma\u{1b}[1mb", Shades::None).remove(0);
        assert_eq!(line.spans, [Span::styled("a", USUAL), Span::styled("b", bold)]);
    }

    #[test]
    fn nothing_but_a_style_comes_of_a_sequence_wherever_it_is_cut() {
        let whole = "a\u{1b}[1;31mred\u{1b}[0m\u{1b}[2J\u{1b}]0;title\u{7}\u{1b}]8;;x\u{1b}\\\u{9b}3;1Hb\rc\u{1b}[31 m\u{1b}[?1m\u{1b}[>4m\u{202e}日";
        let ends = whole.char_indices().map(|(at, _)| at).chain([whole.len()]);
        for end in ends.clone() {
            for begin in ends.clone().filter(|begin| *begin <= end) {
                for line in painted(&whole[begin..end], Shades::Dark) {
                    let text = line.to_string();
                    assert!(!text.contains(char::is_control) && !text.contains('\u{202e}'), "{text:?}");
                }
            }
        }
        let shown = painted(whole, Shades::Dark).remove(0).to_string();
        assert_eq!(shown, "ared␛[2J␛]0;title␇␛]8;;x␛\\\u{fffd}3;1Hb␍c␛[31 m␛[?1m␛[>4m\u{fffd}日");
    }
}
