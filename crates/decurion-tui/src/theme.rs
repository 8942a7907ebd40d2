//! The only file with colours. Takes what is known of the terminal; gives a style for each role that a text can have.

use ratatui_core::style::{Color, Modifier, Style};

/// What the terminal can show, and how a person wants to see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shades {
    /// Colours on a dark background.
    #[default]
    Dark,
    /// Colours on a light one.
    Light,
    /// Nothing faint, on a dark background.
    DarkContrast,
    /// The same on a light one.
    LightContrast,
    /// Blue and orange in place of green and red, on a dark background.
    DarkDaltonized,
    /// The same on a light one.
    LightDaltonized,
    /// No colours: weight and underlines only.
    None,
}

/// The themes by their names in the settings, and in words. Without one of them it goes by the terminal's background.
pub const THEMES: [(&str, Shades, &str); 7] = [
    ("dark", Shades::Dark, "for a dark background"),
    ("light", Shades::Light, "for a light background"),
    ("dark-high-contrast", Shades::DarkContrast, "nothing faint, on a dark background"),
    ("light-high-contrast", Shades::LightContrast, "nothing faint, on a light background"),
    (
        "dark-daltonized",
        Shades::DarkDaltonized,
        "blue and orange for added and removed, on a dark background",
    ),
    (
        "light-daltonized",
        Shades::LightDaltonized,
        "blue and orange for added and removed, on a light background",
    ),
    ("none", Shades::None, "no colours: weight and underlines only"),
];

impl Shades {
    /// The theme of this name; those for the terminal's own sixteen colours are the usual ones, which use no others.
    pub fn named(name: &str) -> Option<Self> {
        let name = name.strip_suffix("-ansi").unwrap_or(name);
        THEMES.iter().find(|(known, ..)| *known == name).map(|(_, shades, _)| *shades)
    }

    fn is_light(self) -> bool {
        matches!(self, Self::Light | Self::LightContrast | Self::LightDaltonized)
    }
}

/// A style for each role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Theme {
    /// What the terminal can show, for colours that are not of a role.
    pub shades: Shades,
    /// What a person wrote.
    pub prompt: Style,
    /// For the background: hints, times, folded text.
    pub faint: Style,
    /// What is chosen or has the attention.
    pub accent: Style,
    pub heading: Style,
    /// Code inside a sentence.
    pub code: Style,
    pub link: Style,
    /// A line that was added.
    pub added: Style,
    /// A line that was removed.
    pub removed: Style,
    pub good: Style,
    /// For what needs attention.
    pub warning: Style,
    pub error: Style,
    /// What waits for a person.
    pub asking: Style,
    /// Names of a language's own: keywords.
    pub keyword: Style,
    pub literal: Style,
    pub number: Style,
    pub comment: Style,
    /// Names of functions, keys and variables.
    pub name: Style,
    pub kind: Style,
    /// Attributes, macros and lifetimes.
    pub attribute: Style,
}

impl Theme {
    /// The theme for a terminal.
    pub fn new(shades: Shades) -> Self {
        let plain = Style::new();
        let bold = plain.add_modifier(Modifier::BOLD);
        let has_contrast = matches!(shades, Shades::DarkContrast | Shades::LightContrast);
        let faint = if has_contrast { plain } else { plain.add_modifier(Modifier::DIM) };
        let color = |dark: Color, light: Color| match shades {
            Shades::None => plain,
            shades if shades.is_light() => plain.fg(light),
            _ => plain.fg(dark),
        };
        let is_daltonized = matches!(shades, Shades::DarkDaltonized | Shades::LightDaltonized);
        // Who does not tell red from green tells blue from orange.
        let (gained, lost) =
            (color(Color::Indexed(39), Color::Indexed(25)), color(Color::Indexed(214), Color::Indexed(130)));
        let or_safe = |usual: Style, safe: Style| if is_daltonized { safe } else { usual };
        // The sixteen colours of the terminal itself: they follow its own palette, also over a slow line.
        Self {
            shades,
            prompt: bold,
            faint,
            accent: color(Color::LightCyan, Color::Blue).add_modifier(Modifier::BOLD),
            heading: color(Color::LightMagenta, Color::Magenta).add_modifier(Modifier::BOLD),
            code: color(Color::Cyan, Color::Blue),
            link: color(Color::LightBlue, Color::Blue).add_modifier(Modifier::UNDERLINED),
            added: or_safe(
                color(if has_contrast { Color::LightGreen } else { Color::Green }, Color::Green),
                gained,
            ),
            removed: or_safe(color(Color::LightRed, Color::Red), lost),
            good: or_safe(color(Color::LightGreen, Color::Green), gained),
            warning: color(Color::LightYellow, if has_contrast { Color::Magenta } else { Color::Yellow }),
            error: or_safe(color(Color::LightRed, Color::Red), lost).add_modifier(Modifier::BOLD),
            asking: color(Color::LightYellow, Color::Magenta).add_modifier(Modifier::BOLD),
            // Without colours the words of a language stand out by weight, and comments by their slant.
            keyword: if shades == Shades::None { bold } else { color(Color::LightMagenta, Color::Magenta) },
            literal: or_safe(color(Color::LightGreen, Color::Green), gained),
            number: or_safe(color(Color::LightYellow, Color::Red), lost),
            comment: faint.add_modifier(Modifier::ITALIC),
            name: color(Color::LightBlue, Color::Blue),
            kind: color(Color::LightCyan, Color::Cyan),
            attribute: or_safe(color(Color::Yellow, Color::LightRed), lost),
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

    #[test]
    fn themes_do_what_their_names_say() {
        for (name, shades, _) in THEMES {
            assert_eq!(Shades::named(name), Some(shades));
            let theme = Theme::new(shades);
            let shown = format!("{theme:?}");
            if name.contains("contrast") {
                assert!(!shown.contains("dim()"), "{name}: {shown}");
            }
            if name.contains("daltonized") {
                assert!(!shown.contains("green()") && !shown.contains("red()"), "{name}: {shown}");
                assert_ne!(theme.added.fg, theme.removed.fg);
            }
        }
        assert_eq!((Shades::named("dark-ansi"), Shades::named("auto")), (Some(Shades::Dark), None));
    }
}
