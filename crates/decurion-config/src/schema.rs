//! Every key of a settings file, in one table (`keys`): what it takes, whether `.claude` files share it, what a
//! repository may do with it, and what it sets. Checking, layering, trust, listings and the JSON Schema (`json`) all read
//! this table, so a key that is added there is known everywhere.

mod json;
mod keys;

pub use json::settings_schema;
pub(crate) use keys::KEYS;

use crate::jsonc::Node;

pub(crate) struct Key {
    pub name: &'static str,
    pub shape: Shape,
    /// Also read from `.claude` files.
    pub shared: bool,
    pub project: FromProject,
    /// What it sets, in one sentence for people.
    pub what: &'static str,
}

/// What happens to a key in a file of a repository (project and local layer).
#[derive(Clone, Copy)]
pub(crate) enum FromProject {
    /// It can only narrow: always in effect.
    Narrows,
    /// In effect at once if it narrows, else only when the folder is trusted.
    NarrowsIf(fn(&Node) -> bool),
    /// In effect only when the folder is trusted.
    WhenTrusted,
    /// Decided by its members.
    ByMember,
    /// Never taken from a repository, trusted or not: where data goes, what is paid, what is kept.
    Never,
}

/// What a key takes.
pub(crate) enum Shape {
    Bool,
    Text,
    /// A text that is never shown.
    Secret,
    Url,
    Word(&'static [&'static str]),
    Mode,
    /// How a terminal looks or feels: one of these words. The ecosystem's files may have others.
    Look(&'static [&'static str]),
    /// A whole number between these, both included.
    Integer(u64, u64),
    /// A number between these, both included.
    Number(f64, f64),
    /// A list of texts; a higher layer replaces it.
    Texts,
    /// A list of texts; layers add to it.
    AddedTexts,
    /// One text or a list of them; a higher layer replaces it.
    TextOrTexts,
    /// A list of permission rules; layers add to it.
    Rules,
    /// A list of MCP servers by name, command or address; layers add to it.
    Matchers,
    /// The same, one list per source: each of them must be met.
    MatchersEach,
    /// Environment variables: names to texts.
    Variables,
    /// HTTP headers: names to texts that are never shown.
    Headers,
    /// Aliases of models: name to model, or provider to name to model.
    Aliases,
    /// An object of these keys.
    Object(&'static [Key]),
    /// An object of any keys, each with this shape.
    Each(&'static Shape),
    /// An object that is kept as it is; a higher layer replaces it.
    Opaque,
    /// An object that is kept as it is, one per source.
    Gathered,
}

impl Shape {
    /// What to say was expected.
    pub(crate) fn expected(&self) -> String {
        match self {
            Self::Bool => "true or false".to_owned(),
            Self::Text | Self::Secret => "a non-empty string".to_owned(),
            Self::Url => "an http or https address without user, query or fragment".to_owned(),
            Self::Word(words) | Self::Look(words) => format!("one of {}", words.join(", ")),
            Self::Mode => format!("one of {}", MODES.join(", ")),
            Self::Integer(least, most) => format!("a whole number from {least} to {most}"),
            Self::Number(least, most) => format!("a number from {least} to {most}"),
            Self::Texts | Self::AddedTexts => "an array of strings".to_owned(),
            Self::TextOrTexts => "a string or an array of strings".to_owned(),
            Self::Rules => "an array of rules".to_owned(),
            Self::Matchers | Self::MatchersEach => {
                "an array of names, or of {serverName}, {serverCommand} or {serverUrl}".to_owned()
            }
            Self::Variables => "an object of variable names and strings".to_owned(),
            Self::Headers => "an object of header names and strings".to_owned(),
            Self::Aliases => "an object of names and models".to_owned(),
            Self::Object(_) | Self::Each(_) | Self::Opaque | Self::Gathered => "an object".to_owned(),
        }
    }

    /// The value that a text may mean which is none of this shape, as it is written.
    pub(crate) fn meant(&self, text: &str) -> Option<String> {
        let near = |words: &[&'static str]| {
            let near = decurion_protocol::nearest(text, words.iter().copied()).into_iter().next()?;
            Some(format!("{near:?}"))
        };
        match self {
            Self::Word(words) | Self::Look(words) => near(words),
            Self::Mode => near(&MODES),
            Self::Bool => ["true", "false"].contains(&text).then(|| text.to_owned()),
            Self::Integer(..) | Self::Number(..) => text.parse::<f64>().is_ok().then(|| text.to_owned()),
            _ => None,
        }
    }
}

const MODES: [&str; 6] = ["default", "acceptEdits", "plan", "bypassPermissions", "dontAsk", "bubble"];

/// The themes: by the terminal's background, on a dark or a light one (with the ecosystem's variants), or no colours.
const THEMES: &[&str] = &[
    "auto",
    "dark",
    "light",
    "dark-ansi",
    "light-ansi",
    "dark-high-contrast",
    "light-high-contrast",
    "dark-daltonized",
    "light-daltonized",
    "none",
];

/// How a person is told who looks elsewhere: as the terminal is known to do it, not at all, by its bell, or so.
const NOTIFICATIONS: &[&str] = &["auto", "off", "bell", "osc9", "osc777", "osc99"];

/// Finds a key in a table.
pub(crate) fn find<'a>(keys: &'a [Key], name: &str) -> Option<&'a Key> {
    keys.iter().find(|key| key.name == name)
}

/// A key that a misspelt one may mean.
#[derive(Clone, Copy)]
pub(crate) struct Meant {
    /// The key, below the object at hand.
    pub path: &'static str,
    /// Whether it restricts something, so that the restriction would not hold.
    pub restricts: bool,
}

/// The key of a table that a word may mean which is none of them; in files that other programs `share`, one of those that
/// such files have.
pub(crate) fn meant(keys: &'static [Key], word: &str, shared: bool) -> Option<Meant> {
    let known = || keys.iter().filter(|key| key.shared || !shared);
    let is_root = std::ptr::eq(keys, KEYS);
    // Rules that stand one level too high.
    let above = RULES.iter().find(|path| is_root && !shared && path.rsplit('.').next() == Some(word));
    if let Some(path) = above {
        return Some(Meant { path, restricts: !path.ends_with("allow") });
    }
    if keys.iter().any(|key| key.name == word) {
        return None;
    }
    let near = decurion_protocol::nearest(word, known().map(|key| key.name)).into_iter().next()?;
    let key = find(keys, near)?;
    Some(Meant { path: key.name, restricts: key.restricts() })
}

/// The lists of rules.
const RULES: [&str; 3] = ["permissions.allow", "permissions.ask", "permissions.deny"];
/// Keys that may restrict something, whatever a repository may do with them.
const RESTRICTING: [&str; 5] =
    ["allowManagedHooksOnly", "allowManagedPermissionRulesOnly", "defaultMode", "hooks", "secrets"];

impl Key {
    /// Whether it, or one of its members, takes something away.
    fn restricts(&self) -> bool {
        let by_member = |members: &[Key]| members.iter().any(Key::restricts);
        match (&self.project, &self.shape) {
            (Narrows | NarrowsIf(_), _) => true,
            (ByMember, Shape::Object(members)) => by_member(members),
            _ => RESTRICTING.contains(&self.name),
        }
    }
}

use FromProject::{ByMember, Narrows, NarrowsIf};

/// Keys of the ecosystem that say the same as one of ours.
pub(crate) const MOVED: &[(&str, &str)] = &[
    ("autoCompactEnabled", "compaction.enabled"),
    ("bashOutputMaxChars", "limits.bashOutputChars"),
    ("taskOutputMaxChars", "limits.taskOutputChars"),
];

/// The lowest layer, as a settings file.
pub(crate) const DEFAULTS: &str = include_str!("defaults.jsonc");
