//! The only file with colours. Takes what is known of the terminal; gives a style for each role that a text can have.

use ratatui::style::{Color, Modifier, Style};

/// What the terminal can show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shades {
    /// Colours on a dark background.
    #[default]
    Dark,
    /// Colours on a light one.
    Light,
    /// No colours: weight and underlines only.
    None,
}

/// A style for each role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Theme {
    /// What the terminal can show, for colours that are not of a role.
    pub shades: Shades,
    /// What a person wrote.
    pub prompt: Style,
    /// What stands in the background: hints, times, folded text.
    pub faint: Style,
    /// What is chosen or has the attention.
    pub accent: Style,
    /// Headings.
    pub heading: Style,
    /// Code inside a sentence.
    pub code: Style,
    /// An address.
    pub link: Style,
    /// A line that was added.
    pub added: Style,
    /// A line that was removed.
    pub removed: Style,
    /// What went well.
    pub good: Style,
    /// What somebody should look at.
    pub warning: Style,
    /// What failed.
    pub error: Style,
    /// What waits for a person.
    pub asking: Style,
    /// Names of a language's own: keywords.
    pub keyword: Style,
    /// Texts in code.
    pub literal: Style,
    /// Numbers in code.
    pub number: Style,
    /// Comments in code.
    pub comment: Style,
    /// Names of functions, keys and variables.
    pub name: Style,
    /// Names of types.
    pub kind: Style,
    /// Attributes, macros and lifetimes.
    pub attribute: Style,
}

impl Theme {
    /// The theme for a terminal.
    pub fn new(shades: Shades) -> Self {
        let plain = Style::new();
        let bold = plain.add_modifier(Modifier::BOLD);
        let faint = plain.add_modifier(Modifier::DIM);
        let color = |dark: Color, light: Color| match shades {
            Shades::Dark => plain.fg(dark),
            Shades::Light => plain.fg(light),
            Shades::None => plain,
        };
        // The sixteen colours of the terminal itself: they follow its own palette, also over a slow line.
        Self {
            shades,
            prompt: bold,
            faint,
            accent: color(Color::LightCyan, Color::Blue).add_modifier(Modifier::BOLD),
            heading: color(Color::LightMagenta, Color::Magenta).add_modifier(Modifier::BOLD),
            code: color(Color::Cyan, Color::Blue),
            link: color(Color::LightBlue, Color::Blue).add_modifier(Modifier::UNDERLINED),
            added: color(Color::Green, Color::Green),
            removed: color(Color::LightRed, Color::Red),
            good: color(Color::LightGreen, Color::Green),
            warning: color(Color::LightYellow, Color::Yellow),
            error: color(Color::LightRed, Color::Red).add_modifier(Modifier::BOLD),
            asking: color(Color::LightYellow, Color::Magenta).add_modifier(Modifier::BOLD),
            // Without colours the words of a language stand out by weight, and comments by their slant.
            keyword: if shades == Shades::None { bold } else { color(Color::LightMagenta, Color::Magenta) },
            literal: color(Color::LightGreen, Color::Green),
            number: color(Color::LightYellow, Color::Red),
            comment: faint.add_modifier(Modifier::ITALIC),
            name: color(Color::LightBlue, Color::Blue),
            kind: color(Color::LightCyan, Color::Cyan),
            attribute: color(Color::Yellow, Color::LightRed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_colours_there_are_none() {
        let shown = format!("{:?}", Theme::new(Shades::None));
        assert!(!shown.contains("fg("), "{shown}");
        assert!(format!("{:?}", Theme::new(Shades::Light)).contains("blue()"));
    }
}
