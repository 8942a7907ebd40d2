//! Where a value came from. Takes a layer and a place, gives the words for both, so that every effective
//! value, warning and error can name the file, line and column a person has to look at.

use std::fmt;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::permission::RuleSource;
use serde::Serialize;

use crate::jsonc::{Node, Position};

/// One of the layers that settings are made of; a later one wins over an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Built into the program.
    Default,
    User,
    /// The project's folder, shared by everyone who works on it.
    Project,
    /// The project's folder, for this user alone.
    Local,
    Environment,
    Flag,
    Managed,
}

impl Layer {
    /// The name used in listings and in `--setting-sources`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::User => "user",
            Self::Project => "project",
            Self::Local => "local",
            Self::Environment => "environment",
            Self::Flag => "flag",
            Self::Managed => "managed",
        }
    }

    /// Whether the files of this layer travel with a repository, and so may be someone else's words.
    pub fn is_in_repository(self) -> bool {
        matches!(self, Self::Project | Self::Local)
    }

    /// The word that rules from this layer carry.
    pub(crate) fn rule_source(self) -> RuleSource {
        match self {
            Self::Managed => RuleSource::PolicySettings,
            Self::Project => RuleSource::ProjectSettings,
            Self::Local => RuleSource::LocalSettings,
            Self::Flag => RuleSource::FlagSettings,
            Self::Default | Self::User | Self::Environment => RuleSource::UserSettings,
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whose file format a source is: ours, where every key is ours to judge, or the ecosystem's, of which we
/// take the keys we share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Ours,
    Shared,
}

/// The thing inside a layer that holds values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Builtin,
    File(Utf8PathBuf),
    Flag(&'static str),
    Variable(&'static str),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin => f.write_str("built in"),
            Self::File(path) => f.write_str(path.as_str()),
            Self::Flag(name) | Self::Variable(name) => f.write_str(name),
        }
    }
}

/// One file, flag or variable that values were read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub layer: Layer,
    pub family: Family,
    pub place: Place,
}

/// Every source met while loading. Nodes name theirs by number, so that a value with its origin stays small.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources(Vec<Source>);

impl Sources {
    pub(crate) fn add(&mut self, layer: Layer, family: Family, place: Place) -> u16 {
        // There are some dozens at most: one per settings file, variable and flag that is known by name.
        let id = u16::try_from(self.0.len()).unwrap_or(u16::MAX);
        self.0.push(Source { layer, family, place });
        id
    }

    pub(crate) fn get(&self, id: u16) -> &Source {
        static NOWHERE: Source =
            Source { layer: Layer::Default, family: Family::Ours, place: Place::Builtin };
        self.0.get(usize::from(id)).unwrap_or(&NOWHERE)
    }

    pub(crate) fn layer_of(&self, node: &Node) -> Layer {
        self.get(node.source).layer
    }

    pub(crate) fn origin(&self, node: &Node) -> Origin {
        self.origin_at(node.source, node.at)
    }

    pub(crate) fn origin_at(&self, source: u16, at: Position) -> Origin {
        let source = self.get(source);
        let positioned = at != Position::default()
            && match source.place {
                Place::File(_) => true,
                Place::Flag(name) => name == "--settings",
                Place::Builtin | Place::Variable(_) => false,
            };
        Origin { layer: source.layer, place: source.place.clone(), at: positioned.then_some(at) }
    }
}

/// Where one effective value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub layer: Layer,
    pub(crate) place: Place,
    at: Option<Position>,
}

impl Origin {
    /// A line of a project's file that is not settings.
    pub(crate) fn in_project_file(file: &Utf8Path, line: u32) -> Self {
        let at = Some(Position { line, column: 1 });
        Self { layer: Layer::Project, place: Place::File(file.to_owned()), at }
    }

    /// Settings of the user's that are not written yet.
    pub(crate) fn of_user_settings() -> Self {
        Self { layer: Layer::User, place: Place::Builtin, at: None }
    }

    /// Another place in the same text.
    pub(crate) fn at(&self, position: Position) -> Self {
        Self { at: self.at.map(|_| position), ..self.clone() }
    }

    /// The place inside the layer: a file's path, a variable's name, a flag, or `built in`.
    pub fn place(&self) -> String {
        self.place.to_string()
    }

    /// The file, where the place is one.
    pub fn file(&self) -> Option<&Utf8Path> {
        match &self.place {
            Place::File(path) => Some(path),
            Place::Builtin | Place::Flag(_) | Place::Variable(_) => None,
        }
    }

    /// The environment variable, where the place is one.
    pub fn variable(&self) -> Option<&'static str> {
        match self.place {
            Place::Variable(name) => Some(name),
            Place::Builtin | Place::Flag(_) | Place::File(_) => None,
        }
    }

    /// Line and column, where the place is text.
    pub fn position(&self) -> Option<Position> {
        self.at
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "{}:{at}", self.place),
            None => write!(f, "{}", self.place),
        }
    }
}

impl Serialize for Origin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("layer", &self.layer)?;
        map.serialize_entry("place", &self.place.to_string())?;
        if let Some(at) = self.at {
            map.serialize_entry("line", &at.line)?;
            map.serialize_entry("column", &at.column)?;
        }
        map.end()
    }
}
