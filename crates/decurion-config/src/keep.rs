//! What a person wants to hold beyond the session. Takes a change of rules, mode or directories and the settings it is
//! for; gives the file that it was written into, with what is to be said about that, or why it was not.
//!
//! Written are our own files, never those that other programs share with us, and of ours nothing but the change: comments
//! and order stay. A file is replaced whole, under one lock for all of us, and no link leads out of the project.
//!
//! `provider.rs` keeps a provider in the same way, `setting.rs` a value of any key.

mod provider;
mod setting;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::permission::{Mode, PermissionUpdate, Rule, RuleSource, Verdict};
use rustix::fs::FlockOperation;

pub use provider::{BaseUrl, NewProvider, keep_provider};
pub use setting::{NewSetting, SettingKey};

use crate::edit::{self, EditError};
use crate::origin::{Family, Layer};
use crate::own::Before;
use crate::paths::Paths;
use crate::{Loaded, jsonc, read, record};

/// How often it is tried to be the only one who writes, and how long apart: a person waits for it.
const TRIES: u32 = 40;
const BETWEEN: Duration = Duration::from_millis(50);
const DIRECTORIES: [&str; 2] = ["permissions", "additionalDirectories"];
const MODE: [&str; 2] = ["permissions", "defaultMode"];

/// Writes settings, of one start.
#[derive(Clone, Debug)]
pub struct Keeper {
    paths: Paths,
    /// The layers that are read.
    layers: Vec<Layer>,
    /// Whether only the administrator's rules allow anything.
    managed_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub file: Utf8PathBuf,
    /// What is to be said about it: why it does not hold yet, or not wholly.
    pub remark: Option<String>,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error("no settings file to save this in ({0})")]
    NoFile(&'static str),
    /// Write it by hand, knowing what it means.
    #[error("{0}")]
    Never(&'static str),
    /// Look at where the link leads.
    #[error("it is a link that leads out of the project, or nowhere: {0}")]
    Link(Utf8PathBuf),
    #[error("{file}:{problem}")]
    Text {
        file: Utf8PathBuf,
        /// What is wrong, beginning with line and column where that is known.
        problem: String,
    },
    #[error("another process is writing settings and does not finish: {0}")]
    Locked(Utf8PathBuf),
    /// Look at what the system says about the file.
    #[error("{file}: {source}")]
    Io {
        file: Utf8PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Keeper {
    /// For the settings of this start.
    pub fn new(loaded: &Loaded) -> Self {
        let only = loaded.tree.get("allowManagedPermissionRulesOnly");
        let managed_only = only
            .is_some_and(|node| node.bool() == Some(true) && loaded.sources.layer_of(node) == Layer::Managed);
        Self { paths: loaded.paths.clone(), layers: loaded.layers.clone(), managed_only }
    }

    /// Writes one change into the settings of a source.
    pub fn keep(&self, at: RuleSource, update: &PermissionUpdate) -> Result<Kept, KeepError> {
        self.check(update)?;
        let layer = match at {
            RuleSource::UserSettings => Layer::User,
            RuleSource::ProjectSettings => Layer::Project,
            RuleSource::LocalSettings => Layer::Local,
            _ => return Err(KeepError::NoFile("it is for the session alone")),
        };
        let (file, remark) = self.edit(layer, update.narrows(), |text| self.changed(text, layer, update))?;
        let remarks: Vec<String> = [remark, self.elsewhere(layer, update)].into_iter().flatten().collect();
        Ok(Kept { file, remark: (!remarks.is_empty()).then(|| remarks.join("; ")) })
    }

    /// Changes the text of a layer's file. Gives the file, and why what was written is not read, if so.
    fn edit(
        &self,
        layer: Layer,
        narrows: bool,
        change: impl FnOnce(&str) -> Result<String, EditError>,
    ) -> Result<(Utf8PathBuf, Option<String>), KeepError> {
        let file = self.file(layer)?;
        let _held = lock(&self.paths)?;
        let place = place(&self.paths, layer, &file)?;
        let text = text(&place)?;
        let before = layer.is_in_repository().then(|| Before::of(&self.paths, &file, text.as_deref()));
        let before = before.unwrap_or_default();
        let changed = change(text.as_deref().unwrap_or_default())
            .map_err(|error| KeepError::Text { file: file.clone(), problem: placed(&error) })?;
        if text.as_deref() != Some(changed.as_str()) && !(text.is_none() && changed.is_empty()) {
            before.about_to_write(&self.paths, &file, &changed);
            write(&place, &changed)?;
            if text.is_none() && layer == Layer::Local {
                self.hide_from_git();
            }
        }
        let remark = self.unread((layer, &file), &changed, &before, narrows);
        Ok((file, remark))
    }

    /// What is never written, whoever wants it.
    fn check(&self, update: &PermissionUpdate) -> Result<(), KeepError> {
        match update {
            PermissionUpdate::SetMode { mode: Mode::BypassPermissions } => Err(KeepError::Never(
                "an answer cannot make a mode that never asks the default; to do that, edit the settings by hand",
            )),
            PermissionUpdate::AddRules { behavior: Verdict::Allow, .. } if self.managed_only => {
                Err(KeepError::Never(
                    "the administrator lets only their own rules allow anything (`allowManagedPermissionRulesOnly`)",
                ))
            }
            _ => Ok(()),
        }
    }

    /// The file of ours that a layer is read from.
    fn file(&self, layer: Layer) -> Result<Utf8PathBuf, KeepError> {
        let files = self.paths.settings_files();
        let own = files.into_iter().find(|(of, family, _)| *of == layer && *family == Family::Ours);
        own.map(|(.., file)| file).ok_or(KeepError::NoFile(match layer {
            Layer::User => "there is no home folder",
            _ => "this folder is your own settings' folder",
        }))
    }

    fn changed(&self, text: &str, layer: Layer, update: &PermissionUpdate) -> Result<String, EditError> {
        let is = |rule: &Rule| {
            let (wanted, plain) = (self.written(rule, layer), rule.to_string());
            move |item: &str| same(item, &wanted) || same(item, &plain)
        };
        match update {
            PermissionUpdate::AddRules { behavior, rules } => {
                let path = rules_path(*behavior);
                let there = edit::texts(text, path)?;
                let new = rules.iter().map(|rule| self.written(rule, layer));
                let new = new.filter(|rule| !there.iter().any(|(item, _)| same(item, rule)));
                edit::add(text, path, &new.collect::<Vec<_>>())
            }
            PermissionUpdate::RemoveRules { behavior, rules } => {
                let gone: Vec<_> = rules.iter().map(is).collect();
                edit::remove(text, rules_path(*behavior), |item| gone.iter().any(|is| is(item)))
            }
            PermissionUpdate::ReplaceRules { behavior, rules, .. } => {
                let stays: Vec<_> = rules.iter().map(is).collect();
                let left =
                    edit::remove(text, rules_path(*behavior), |item| !stays.iter().any(|is| is(item)))?;
                let add = PermissionUpdate::AddRules { behavior: *behavior, rules: rules.clone() };
                self.changed(&left, layer, &add)
            }
            PermissionUpdate::SetMode { mode } => edit::set(text, &MODE, &mode.name().into()),
            PermissionUpdate::AddDirectories { directories } => {
                let there = edit::texts(text, DIRECTORIES)?;
                let is_there =
                    |folder: &&Utf8PathBuf| there.iter().any(|(item, _)| self.is_folder(item, folder));
                let new = directories.iter().filter(|folder| !is_there(folder)).map(ToString::to_string);
                edit::add(text, DIRECTORIES, &new.collect::<Vec<_>>())
            }
            PermissionUpdate::RemoveDirectories { directories } => edit::remove(text, DIRECTORIES, |item| {
                directories.iter().any(|folder| self.is_folder(item, folder))
            }),
            PermissionUpdate::Kept { update, .. } => self.changed(text, layer, update),
        }
    }

    fn is_folder(&self, item: &str, folder: &Utf8Path) -> bool {
        self.paths.expand(item, &self.paths.root) == folder
    }

    /// A rule as it means the same from wherever a later session is started: one about a file from the working directory
    /// is about that file, not about one of its name in every project.
    fn written(&self, rule: &Rule, layer: Layer) -> String {
        let paths = &self.paths;
        let moves = layer == Layer::User || paths.cwd != paths.root;
        let is_path =
            matches!(rule.tool.as_str(), "Read" | "Edit" | "Write" | "Grep" | "Glob" | "NotebookEdit");
        match rule.specifier.as_deref().and_then(|specifier| specifier.strip_prefix("./")) {
            Some(rest) if moves && is_path => format!("{}(/{})", rule.tool, paths.cwd.join(rest)),
            _ => rule.to_string(),
        }
    }

    /// Why what was written is not read by later sessions, if so.
    fn unread(
        &self,
        (layer, file): (Layer, &Utf8Path),
        written: &str,
        before: &Before,
        narrows: bool,
    ) -> Option<String> {
        let is_shared = layer.is_in_repository();
        let holds = if is_shared { before.written(&self.paths, file, written) } else { Ok(true) };
        if !self.layers.contains(&layer) {
            return Some("it is not read where `--setting-sources` leaves it out".to_owned());
        }
        let waits = "applies to this session only; run `decurion trust` to use it in later ones";
        match holds {
            Ok(true) => None,
            _ if narrows => None,
            Ok(false) => Some(waits.to_owned()),
            Err(error) => Some(format!("{waits}; {error}")),
        }
    }

    /// Where the same rule stands in a file that others share with us, where it is to go.
    fn elsewhere(&self, layer: Layer, update: &PermissionUpdate) -> Option<String> {
        // Whether those that are named go, or all others do.
        let (behavior, rules, named_go) = match update {
            PermissionUpdate::RemoveRules { behavior, rules } => (*behavior, rules, true),
            PermissionUpdate::ReplaceRules { behavior, rules, .. } => (*behavior, rules, false),
            _ => return None,
        };
        let goes = |item: &str| rules.iter().any(|rule| same(item, &rule.to_string())) == named_go;
        let files = self.paths.settings_files();
        let (_, _, file) =
            files.into_iter().find(|(of, family, _)| *of == layer && *family == Family::Shared)?;
        let there = edit::texts(&text(&file).ok()??, rules_path(behavior)).ok()?;
        let (item, at) = there.into_iter().find(|(item, _)| goes(item))?;
        Some(format!("{item} also stands in {file}:{at}, which is not ours to change: remove it there"))
    }

    /// The settings of one user are not for the repository. Where git's own list cannot be added to, nothing is lost.
    fn hide_from_git(&self) {
        const LINE: &str = ".decurion/settings.local.json";
        let Some(top) = self.paths.root.ancestors().find(|folder| folder.join(".git").exists()) else {
            return;
        };
        let info = top.join(".git/info");
        let is_real = |path: &Utf8Path| !path.is_symlink() && path.is_dir();
        if !is_real(&top.join(".git")) || !is_real(&info) {
            return;
        }
        let file = info.join("exclude");
        let there = match read::whole(&file, jsonc::MAX_BYTES) {
            Ok(there) => String::from_utf8(there.unwrap_or_default()).unwrap_or_default(),
            Err(_) => return,
        };
        if there.lines().any(|line| line.trim().trim_start_matches("**/") == LINE) {
            return;
        }
        let gap = if there.is_empty() || there.ends_with('\n') { "" } else { "\n" };
        let no_follow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
        let opened =
            File::options().append(true).create(true).mode(0o644).custom_flags(no_follow).open(&file);
        let _ = opened.and_then(|mut file| file.write_all(format!("{gap}**/{LINE}\n").as_bytes()));
    }
}

/// One lock for all settings, in the state folder: a project's folder is not littered with it.
fn lock(paths: &Paths) -> Result<Option<File>, KeepError> {
    let Some(state) = &paths.state else { return Ok(None) };
    let file = state.join("settings.lock");
    let lock = record::lock_file(&file).map_err(|source| KeepError::Io { file: file.clone(), source })?;
    for _ in 0..TRIES {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => std::thread::sleep(BETWEEN),
            // Where locks do not exist the rename still keeps the file whole.
            _ => return Ok(Some(lock)),
        }
    }
    Err(KeepError::Locked(file))
}

/// Where the file really is. The user's own may be a link to anywhere; one of the project leads nowhere else.
fn place(paths: &Paths, layer: Layer, file: &Utf8Path) -> Result<Utf8PathBuf, KeepError> {
    let link = || KeepError::Link(file.to_owned());
    let io = |source| KeepError::Io { file: file.to_owned(), source };
    let place = if file.is_symlink() {
        file.canonicalize_utf8().map_err(|_| link())?
    } else {
        // The folder may not be there yet; what is above it is.
        let there = file.ancestors().skip(1).find(|folder| folder.is_symlink() || folder.exists());
        let there = there.unwrap_or(Utf8Path::new("/"));
        let rest = file.strip_prefix(there).unwrap_or(file);
        there.canonicalize_utf8().map_err(|_| link())?.join(rest)
    };
    if layer.is_in_repository() && !place.starts_with(paths.bounds(file).canonicalize_utf8().map_err(io)?) {
        return Err(link());
    }
    Ok(place)
}

fn rules_path(behavior: Verdict) -> [&'static str; 2] {
    let list = match behavior {
        Verdict::Allow => "allow",
        Verdict::Ask => "ask",
        Verdict::Deny => "deny",
    };
    ["permissions", list]
}

/// What is wrong with a text, to be put behind the name of its file.
fn placed(error: &EditError) -> String {
    match error {
        EditError::Unsafe => format!(" {error}"),
        EditError::Syntax(_) | EditError::Shape { .. } => error.to_string(),
    }
}

/// Whether two texts are the same rule.
fn same(one: &str, other: &str) -> bool {
    let read = |text: &str| Rule::parse(text, RuleSource::Session).ok();
    one == other || read(one).is_some_and(|rule| Some(rule) == read(other))
}

/// The text of a file; none where there is none.
fn text(file: &Utf8Path) -> Result<Option<String>, KeepError> {
    let problem = |problem: String| KeepError::Text { file: file.to_owned(), problem: format!(" {problem}") };
    let bytes = read::whole(file, jsonc::MAX_BYTES).map_err(|error| problem(error.to_string()))?;
    bytes.map(String::from_utf8).transpose().map_err(|_| problem("the file is not UTF-8".to_owned()))
}

fn write(place: &Utf8Path, text: &str) -> Result<(), KeepError> {
    let io = |source| KeepError::Io { file: place.to_owned(), source };
    let folder = place.parent().unwrap_or(place);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io)?;
    let permissions = fs::metadata(place).ok().map(|metadata| metadata.permissions());
    record::replace(place, text.as_bytes(), permissions).map_err(io)
}
