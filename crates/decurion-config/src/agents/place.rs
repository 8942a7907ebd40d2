//! Where definitions are looked for. Takes the folders of a start, gives the places from the highest to the
//! lowest, the files in each, and a stamp of all of them by which a change on disk is noticed.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::AgentSource;

use crate::agents::{AgentOrigin, AgentProblem, Severity};
use crate::origin::{Family, Layer};
use crate::paths::Paths;
use crate::trust::Agreed;

/// A folder of definitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentFolder {
    pub path: Utf8PathBuf,
    /// Whose it is, which decides what its definitions may widen.
    pub source: AgentSource,
    /// Whether its files are written for the wider ecosystem (`.claude`), where `dontAsk` means deny.
    pub shared: bool,
    /// The folder that no link of its files may lead out of; none where they are the user's own.
    pub root: Option<Utf8PathBuf>,
    /// The plugin it belongs to; its definitions are then called `plugin:name`.
    pub plugin: Option<PluginPlace>,
    /// What a plugin ran or widened when it was loaded; none where it is only looked at.
    pub(crate) agreed: Option<Arc<Agreed>>,
}

/// The plugin that a folder belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginPlace {
    pub name: String,
    /// Its own folder, which none of its files leads out of.
    pub root: Utf8PathBuf,
}

impl PluginPlace {
    /// A text of the plugin with its own folder in the place of the names for it.
    pub fn expand(&self, text: &str) -> String {
        ROOT_NAMES.iter().fold(text.to_owned(), |text, name| text.replace(name, self.root.as_str()))
    }

    /// Whether a file is inside the plugin, links followed.
    pub(crate) fn holds(&self, file: &Utf8Path) -> bool {
        leaves(&self.root, file).is_none()
    }
}

/// Where a file really is, if that is not inside of a folder. One that is nowhere leaves nothing: whoever reads
/// it says that it is not there.
pub(crate) fn leaves(root: &Utf8Path, file: &Utf8Path) -> Option<Utf8PathBuf> {
    let file = match file.canonicalize_utf8() {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(_) => return Some(file.to_owned()),
    };
    let is_inside = root.canonicalize_utf8().is_ok_and(|root| file.starts_with(root));
    (!is_inside).then_some(file)
}

/// A link may not make a plugin out of what is not part of it, nor tell a model what is the user's alone.
pub(crate) const OUT_OF_PLUGIN: &str = "leads out of the plugin's folder";
pub(crate) const OUT_OF_PROJECT: &str = "leads out of the project's folder";

/// What stands for a plugin's folder in its files.
const ROOT_NAMES: [&str; 2] = ["${CLAUDE_PLUGIN_ROOT}", "${DECURION_PLUGIN_ROOT}"];

impl AgentFolder {
    /// Why a file of it is not read, if a link leads it out of where it belongs.
    pub(crate) fn refuses(&self, file: &Utf8Path) -> Option<&'static str> {
        leaves(self.root.as_ref()?, file)?;
        Some(if self.plugin.is_some() { OUT_OF_PLUGIN } else { OUT_OF_PROJECT })
    }

    /// A folder of the wider ecosystem, or one of its files, that nothing is known of but whose it is.
    pub fn shared(path: impl Into<Utf8PathBuf>, source: AgentSource) -> Self {
        Self { path: path.into(), source, shared: true, root: None, plugin: None, agreed: None }
    }

    /// A folder of a plugin, or one of its files.
    pub fn of_plugin(plugin: PluginPlace, path: impl Into<Utf8PathBuf>) -> Self {
        let root = Some(plugin.root.clone());
        Self { root, plugin: Some(plugin), ..Self::shared(path, AgentSource::Plugin) }
    }
}

/// The folders of a start for one kind of definition (`agents`, `skills`, `commands`), from the highest to the
/// lowest; plugins and built-ins come after them.
pub(crate) fn folders(paths: &Paths, managed: &Utf8Path, layers: &[Layer], kind: &str) -> Vec<AgentFolder> {
    let folder = |path: Utf8PathBuf, source, family| AgentFolder {
        source,
        shared: family == Family::Shared,
        root: (source == AgentSource::Project).then(|| paths.bounds(&path).to_owned()),
        path: path.join(kind),
        plugin: None,
        agreed: None,
    };
    let mut folders = Vec::new();
    folders.extend(managed.parent().map(|etc| folder(etc.to_owned(), AgentSource::Managed, Family::Ours)));
    if layers.contains(&Layer::Project) {
        let project = paths.project_folders();
        folders.extend(project.into_iter().map(|(family, path)| folder(path, AgentSource::Project, family)));
    }
    if layers.contains(&Layer::User) {
        for (family, path) in [(Family::Ours, &paths.state), (Family::Shared, &paths.shared)] {
            folders.extend(path.iter().map(|path| folder(path.clone(), AgentSource::User, family)));
        }
    }
    folders
}

/// More than any folder of definitions holds; a link to a whole disk must not stop the start.
const MAX_FILES: usize = 2000;
const MAX_DEPTH: usize = 16;

/// What a folder holds.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// Its definition files, sorted.
    pub files: Vec<Utf8PathBuf>,
    pub problems: Vec<AgentProblem>,
    marks: Vec<Mark>,
    seen: HashSet<(u64, u64)>,
    full: bool,
}

/// All `.md` files below a folder. Nothing is skipped without a word, except names that begin with a dot.
pub(crate) fn walk(folder: &Utf8Path) -> Walk {
    entered(folder, |walk, metadata| {
        if metadata.is_dir() {
            walk.folder(folder, metadata, 0);
        } else if is_definition(folder) {
            // A plugin may name its files one by one.
            walk.file(folder, metadata);
        } else {
            walk.report(folder, "not a folder".to_owned());
        }
    })
}

/// Looks at a place that may not be there.
fn entered(place: &Utf8Path, look: impl FnOnce(&mut Walk, &Metadata)) -> Walk {
    use io::ErrorKind::{NotADirectory, NotFound};
    let mut walk = Walk::default();
    match fs::metadata(place) {
        Ok(metadata) => look(&mut walk, &metadata),
        // For the second of these, something above it is a file.
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => {}
        Err(error) => walk.report(place, format!("cannot be read: {error}")),
    }
    walk.files.sort();
    walk
}

impl Walk {
    fn report(&mut self, path: &Utf8Path, text: String) {
        self.problems.push(AgentProblem {
            severity: Severity::Error,
            origin: AgentOrigin::File(path.to_owned()),
            line: None,
            agent: None,
            text,
        });
    }

    fn folder(&mut self, folder: &Utf8Path, metadata: &Metadata, depth: usize) {
        if !self.seen.insert((metadata.dev(), metadata.ino())) {
            return self.report(folder, "a link to a folder that is read already".to_owned());
        }
        self.marks.push(Mark::new(folder, metadata));
        if depth > MAX_DEPTH {
            return self.report(folder, format!("more than {MAX_DEPTH} folders deep, not read"));
        }
        self.each(folder, |walk, path| walk.entry(path, depth));
    }

    /// Enters a folder: what is in it, in order, but for names that begin with a dot.
    fn each(&mut self, folder: &Utf8Path, take: impl Fn(&mut Self, &Utf8Path)) {
        let mut names = match entries(folder) {
            Ok(names) => names,
            Err(error) => return self.report(folder, format!("cannot be read: {error}")),
        };
        names.sort();
        for name in names {
            match name {
                Ok(name) if name.starts_with('.') => {}
                Ok(name) => take(self, &folder.join(name)),
                Err(lossy) => self.report(&folder.join(lossy), "its name is not UTF-8".to_owned()),
            }
        }
    }

    fn entry(&mut self, path: &Utf8Path, depth: usize) {
        let is_definition = is_definition(path);
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                if is_definition {
                    self.report(path, "a folder with the name of a definition file".to_owned());
                }
                self.folder(path, &metadata, depth + 1);
            }
            Ok(metadata) if is_definition => self.file(path, &metadata),
            Err(error) if is_definition => self.report(path, format!("cannot be read: {error}")),
            // A file of another kind, or a link to nowhere that is none of ours.
            _ => {}
        }
    }

    fn file(&mut self, path: &Utf8Path, metadata: &Metadata) {
        if self.files.len() < MAX_FILES {
            self.marks.push(Mark::new(path, metadata));
            self.files.push(path.to_owned());
        } else if !std::mem::replace(&mut self.full, true) {
            self.report(
                path,
                format!("more than {MAX_FILES} files; this one and those after it are not read"),
            );
        }
    }

    pub(crate) fn take_marks(&mut self) -> Vec<Mark> {
        std::mem::take(&mut self.marks)
    }
}

fn is_definition(path: &Utf8Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("md"))
}

/// The folders with a `SKILL.md` that a folder of skills holds; the folder itself, where it is one skill.
/// Everything else in a skill's folder is its own affair.
pub(crate) fn walk_skills(folder: &Utf8Path) -> Walk {
    entered(folder, |walk, metadata| {
        if metadata.is_dir() {
            walk.skills(folder, metadata);
        } else {
            walk.report(folder, "not a folder".to_owned());
        }
    })
}

impl Walk {
    fn skills(&mut self, folder: &Utf8Path, metadata: &Metadata) {
        self.marks.push(Mark::new(folder, metadata));
        if !self.skill(folder) {
            self.each(folder, Self::skill_folder);
        }
    }

    fn skill_folder(&mut self, folder: &Utf8Path) {
        match fs::metadata(folder) {
            Ok(metadata) if metadata.is_dir() => {
                self.marks.push(Mark::new(folder, &metadata));
                if !self.skill(folder) {
                    self.warn(folder, "not a skill, because it has no SKILL.md".to_owned());
                }
            }
            Ok(_) if is_definition(folder) => {
                let text = "not a skill: a skill is a folder with a SKILL.md in it".to_owned();
                self.warn(folder, text);
            }
            Ok(_) => {}
            Err(error) => self.report(folder, format!("cannot be read: {error}")),
        }
    }

    /// Whether a folder is a skill; then its file is taken. People write the name in small letters too.
    fn skill(&mut self, folder: &Utf8Path) -> bool {
        for name in ["SKILL.md", "skill.md", "Skill.md"] {
            let path = folder.join(name);
            match fs::metadata(&path) {
                Ok(metadata) => {
                    self.file(&path, &metadata);
                    return true;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {}
                Err(error) => {
                    self.report(&path, format!("cannot be read: {error}"));
                    return true;
                }
            }
        }
        false
    }

    fn warn(&mut self, path: &Utf8Path, text: String) {
        self.report(path, text);
        self.problems.iter_mut().last().into_iter().for_each(|problem| problem.severity = Severity::Warning);
    }
}

/// The names in a folder; one that is not UTF-8 as well as it can be shown.
fn entries(folder: &Utf8Path) -> io::Result<Vec<Result<String, String>>> {
    let name = |entry: io::Result<fs::DirEntry>| {
        let name = entry?.file_name();
        Ok(name.into_string().map_err(|name| name.to_string_lossy().into_owned()))
    };
    fs::read_dir(folder)?.map(name).collect()
}

/// What a set of folders looked like at one moment. Two that are equal mean that nothing changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp(pub(crate) Vec<Mark>);

/// One folder or file as the disk describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    path: Utf8PathBuf,
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    // A file put in the place of another may carry its date; this one cannot be set.
    changed: (i64, i64),
}

impl Mark {
    fn new(path: &Utf8Path, metadata: &Metadata) -> Self {
        Self {
            path: path.to_owned(),
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}
