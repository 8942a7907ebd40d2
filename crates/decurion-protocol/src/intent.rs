//! What a call would touch. A tool makes it from its input alone. Permission rules, the choice of calls that may
//! overlap, the sandbox and the screen all read it, so they cannot disagree.

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

/// The pure answer to "what would this input do?".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Intent {
    /// One line for people: `Read src/main.rs`, `$ cargo test`.
    pub title: String,
    /// Whether it may run beside other calls of the same message.
    pub overlap: Overlap,
    /// The paths it names, absolute and without `.` or `..`, and what it would do to each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub touches: Vec<Touch>,
    /// The commands it would run, for a shell call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<ShellIntent>,
    /// The host it would talk to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The agent type it would start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Why a person must be asked even if a rule allows it: the command that would run is not the one that was
    /// approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
    /// Why it is harmless by itself, for a skill that only gives words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
}

/// Whether calls of one message may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// It changes nothing others could see (a read, a read-only command, an agent): may overlap.
    Together,
    /// It has effects, or its effects are not known: runs alone.
    Alone,
}

/// One path a call would touch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Touch {
    pub path: Utf8PathBuf,
    /// What would be done to it.
    pub access: Access,
}

/// What would be done to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Its content or existence would be read.
    Read,
    /// It would be created, changed or removed.
    Write,
}

/// A shell text, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShellIntent {
    /// Every simple command in it, also those inside substitutions and behind runners such as `xargs`.
    pub commands: Vec<ShellCommand>,
    /// Why the text was not fully understood; then a person is asked even if all parts are allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
    /// What in it is more than literal commands one after the other (a loop, an assignment, arithmetic). Such a text
    /// needs a question, unless a rule names all of it; the commands found in it are there for rules that forbid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_literal: Option<String>,
    /// Whether it changes the shell's directory (`cd`, `pushd`, `popd`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moves: bool,
}

/// One simple command of a shell text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShellCommand {
    /// Its words as bash would pass them, assignments first, joined by single spaces: what people are shown.
    pub text: String,
    /// The words themselves, assignments first: what rules match.
    pub words: Vec<String>,
    /// How many of the words are assignments before the program's name.
    #[serde(default)]
    pub assigned: usize,
    /// Which of the words are not known from the text (a variable, a substitution, a glob).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<usize>,
    /// Whether it is known, by program and flags, to change nothing.
    pub read_only: bool,
    /// Whether all it does is in `touches` and `wide` (`mkdir a`, `echo x > b`), so that the rules for
    /// paths decide about it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub files_only: bool,
    /// How many redirections it has to or from files, which are in `touches` or `wide` and not among the words.
    #[serde(default, skip_serializing_if = "crate::event::is_zero_u32")]
    pub redirections: u32,
    /// Whether it only runs the commands inside it and adds nothing (`timeout 5 …`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wrapper: bool,
    /// Why it must be asked about even where a rule would allow its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
    /// Why it is not read-only, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// The paths in its operands and redirections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub touches: Vec<Touch>,
    /// The sets of paths it may touch: globs, whole directories, and paths that the text does not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wide: Vec<WideTouch>,
    /// Operands of a program we do not know that could be paths. They allow nothing; rules that forbid a
    /// path look at them too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<Utf8PathBuf>,
    /// Where the mentions lead by links, as far as someone has looked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leads: Vec<Utf8PathBuf>,
    /// Paths among its arguments that it may open, for whatever purpose: a rule for its first words does not allow them
    /// outside of the working directories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given: Vec<GivenPath>,
    /// Those of its paths that go up (`a/../b`) as they are written: behind a link that is another place than
    /// the text says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub climbs: Vec<Climb>,
    /// Code for an interpreter other than the shell, given in the command's own words or as its input; empty where it
    /// comes from another command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// For a call of git: the folders in which it may begin to look for its repository.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repositories: Vec<Utf8PathBuf>,
    /// For a call of git that shows the content of files in its repository: which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<ShownFiles>,
    /// Its program, where a path names it, and the names it has behind links as far as someone has looked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub program: Vec<Utf8PathBuf>,
    /// Options of it that do more than its name says: a rule for its program does not allow these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hazards: Vec<Hazard>,
    /// Globs among its words that begin with a wildcard: a file whose name begins with a dash would be taken for an
    /// option. Absolute, like the patterns of `wide`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub may_find_flags: Vec<String>,
    /// The command that would run this one, where another does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Inside>,
}

/// The files of a repository whose content git shows, as they are or were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownFiles {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<Utf8PathBuf>,
    /// Files, or folders of which everything may be shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub below: Vec<Utf8PathBuf>,
    /// Words that are paths like those above if something is there, and revisions otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub perhaps: Vec<Utf8PathBuf>,
    /// Whether it may be every file of the repository, in addition to the named paths.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Whether it is only files that git has in its index, where no earlier revision is named.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tracked: bool,
}

/// A path that a program is given in one of its words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenPath {
    /// Which of the words it is in.
    pub word: usize,
    /// None: the text does not tell what the word is, so it may be any path, or an option.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Utf8PathBuf>,
}

/// An option that makes a program run another, or that may be one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hazard {
    /// Which of the words it is.
    pub word: usize,
    /// What it does, for people.
    pub why: String,
}

/// How one command is run by another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
    /// The index of the command that runs it.
    pub command: usize,
    /// Which of that one's words is this one's first, where it is made of the tail of its words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub word: Option<usize>,
    /// Whether it happens elsewhere (another machine, a container, a package's program): then only rules
    /// that forbid look at it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
}

/// A path that goes up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Climb {
    /// Absolute, with its `..`.
    pub written: Utf8PathBuf,
    /// What its text says: how it is named in the other lists; for a glob, its leading plain names.
    pub path: Utf8PathBuf,
}

/// A set of paths a command may touch.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and any may go with any")]
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WideTouch {
    /// An absolute glob; a backslash makes the next character stand for itself.
    pub pattern: String,
    /// Whether everything below what it matches is meant too.
    pub below: bool,
    /// Whether names that start with a dot are left out when going down.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub visible: bool,
    /// Whether links are followed that are met when going down.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follows: bool,
    /// Whether only the names are used, not what is behind them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub names: bool,
    /// What would be done to them.
    pub access: Access,
}

impl Intent {
    /// An intent with only a title, running alone: the safest answer where nothing else is known.
    pub fn titled(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            overlap: Overlap::Alone,
            touches: Vec::new(),
            shell: None,
            host: None,
            agent: None,
            doubt: None,
            words: None,
        }
    }

    /// The same, allowed to run beside others.
    #[must_use]
    pub fn together(mut self) -> Self {
        self.overlap = Overlap::Together;
        self
    }

    /// The same, touching one more path.
    #[must_use]
    pub fn touching(mut self, path: impl Into<Utf8PathBuf>, access: Access) -> Self {
        self.touches.push(Touch { path: path.into(), access });
        self
    }
}
