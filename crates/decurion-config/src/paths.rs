//! Where things are. Takes the working directory and the environment, gives the project's root, the state
//! folder and the settings files there may be; reads no file and makes none until [`Paths::prepare`].

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::Access;

use crate::env::Environment;
use crate::error::ConfigError;
use crate::moved::Moved;
use crate::origin::{Family, Layer};

/// The folders and files of one start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The working directory, without symbolic links.
    pub cwd: Utf8PathBuf,
    /// The project: the nearest folder upwards that has `.git`, `.decurion` or `.claude`, else the working
    /// directory.
    pub root: Utf8PathBuf,
    /// The user's home folder, if there is a usable one.
    pub home: Option<Utf8PathBuf>,
    /// The state folder: `DECURION_HOME`, else `~/.decurion`; none without a home.
    pub state: Option<Utf8PathBuf>,
    /// The ecosystem's folder of the user: `CLAUDE_CONFIG_DIR`, else `~/.claude`. Read, never written.
    pub shared: Option<Utf8PathBuf>,
    /// What variables of the user move elsewhere.
    pub moved: Moved,
}

/// The working directory of the process.
pub fn current_directory() -> Result<Utf8PathBuf, ConfigError> {
    let path = std::env::current_dir().map_err(|source| directory_error("?", source))?;
    utf8("the working directory", path.as_os_str())
}

impl Paths {
    /// Finds everything from a working directory.
    pub fn discover(cwd: &Utf8Path, environment: &Environment) -> Result<Self, ConfigError> {
        let canonical = fs::canonicalize(cwd).map_err(|source| directory_error(cwd.as_str(), source))?;
        let cwd = utf8("the working directory", canonical.as_os_str())?;
        if !fs::metadata(&cwd).is_ok_and(|metadata| metadata.is_dir()) {
            return Err(directory_error(cwd.as_str(), io::ErrorKind::NotADirectory.into()));
        }
        let home = environment.home_os().map(|home| utf8("the home folder", home)).transpose()?;
        // A relative home would be another one in every folder.
        let home = home.filter(|home| home.is_absolute());
        let state = match environment.get_os("DECURION_HOME") {
            Some(folder) => Some(absolute("DECURION_HOME", utf8("DECURION_HOME", folder)?)?),
            None => home.as_ref().map(|home| home.join(".decurion")),
        };
        let shared = match environment.get_os("CLAUDE_CONFIG_DIR") {
            Some(folder) => Some(absolute("CLAUDE_CONFIG_DIR", utf8("CLAUDE_CONFIG_DIR", folder)?)?),
            None => home.as_ref().map(|home| home.join(".claude")),
        };
        let moved = Moved::of(environment);
        let mut paths = Self { root: cwd.clone(), cwd, home, state, shared, moved };
        paths.root = paths.find_root();
        Ok(paths)
    }

    /// The file that says which folders are trusted.
    pub fn trust_file(&self) -> Option<Utf8PathBuf> {
        self.state.as_ref().map(|state| state.join("trust.json"))
    }

    /// Where sessions are kept.
    pub fn projects(&self) -> Option<Utf8PathBuf> {
        self.state.as_ref().map(|state| state.join("projects"))
    }

    /// Where the sockets of live sessions are.
    pub fn run(&self) -> Option<Utf8PathBuf> {
        self.state.as_ref().map(|state| state.join("run"))
    }

    /// A path as people write it in settings: `~/…` from the home folder, the rest from `base`.
    pub fn expand(&self, text: &str, base: &Utf8Path) -> Utf8PathBuf {
        match (text.strip_prefix('~'), &self.home) {
            (Some(""), Some(home)) => home.clone(),
            (Some(rest), Some(home)) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
            _ => base.join(text),
        }
    }

    /// Makes the state folder and the folders in it, for their owner alone. A problem is not the end: the
    /// caller may go on in memory, or refuse.
    pub fn prepare(&self) -> Result<(), StateProblem> {
        let state = self.state.as_ref().ok_or(StateProblem::NoHome)?;
        // The home folder itself is not ours to make.
        let parent = state.parent().unwrap_or(state);
        if Some(parent) == self.home.as_deref() && !parent.exists() {
            return Err(StateProblem::NoHome);
        }
        make_private(state, true)?;
        for folder in [state.join("projects"), state.join("run")] {
            make_private(&folder, false)?;
        }
        Ok(())
    }

    /// The settings files there may be, from the lowest to the highest; ours after the ecosystem's.
    pub(crate) fn settings_files(&self) -> Vec<(Layer, Family, Utf8PathBuf)> {
        let mut files = Vec::with_capacity(6);
        files.extend(
            self.shared.iter().map(|folder| (Layer::User, Family::Shared, folder.join("settings.json"))),
        );
        files.extend(
            self.state.iter().map(|folder| (Layer::User, Family::Ours, folder.join("settings.json"))),
        );
        for (layer, name) in [(Layer::Project, "settings.json"), (Layer::Local, "settings.local.json")] {
            for (family, folder) in [(Family::Shared, ".claude"), (Family::Ours, ".decurion")] {
                let folder = self.root.join(folder);
                if !self.is_users_own(&folder) {
                    files.push((layer, family, folder.join(name)));
                }
            }
        }
        files
    }

    /// The `.decurion` and `.claude` folders there may be from the working directory up to the repository's
    /// top, nearest first, ours before the ecosystem's. The user's own are not among them.
    pub(crate) fn project_folders(&self) -> Vec<(Family, Utf8PathBuf)> {
        let top = self.top();
        let upwards = self.cwd.ancestors().take_while(|folder| folder.starts_with(top));
        let both = |folder: &Utf8Path| {
            [(Family::Ours, folder.join(".decurion")), (Family::Shared, folder.join(".claude"))]
        };
        upwards.flat_map(both).filter(|(_, folder)| !self.is_users_own(folder)).collect()
    }

    fn top(&self) -> &Utf8Path {
        self.root.ancestors().find(|folder| folder.join(".git").exists()).unwrap_or(&self.root)
    }

    /// The folder that no link of a file in one of the [project's folders](Self::project_folders) may lead out
    /// of: the repository; where that is the user's whole home, the folder that the file is for.
    pub(crate) fn bounds<'a>(&'a self, file: &'a Utf8Path) -> &'a Utf8Path {
        let top = self.top();
        if self.home.as_ref().is_none_or(|home| !home.starts_with(top)) {
            return top;
        }
        let is_settings = |folder: &&Utf8Path| matches!(folder.file_name(), Some(".decurion" | ".claude"));
        file.ancestors().find(is_settings).and_then(Utf8Path::parent).unwrap_or(&self.root)
    }

    fn find_root(&self) -> Utf8PathBuf {
        let is_root = |folder: &&Utf8Path| {
            folder.join(".git").exists()
                || [".decurion", ".claude"].iter().any(|name| {
                    let marker = folder.join(name);
                    marker.is_dir() && !self.is_users_own(&marker)
                })
        };
        self.cwd.ancestors().find(is_root).unwrap_or(&self.cwd).to_owned()
    }

    /// Whether a folder is the user's own state or settings rather than a project's: work somewhere below the
    /// home folder must not make the home folder a project.
    fn is_users_own(&self, folder: &Utf8Path) -> bool {
        [&self.state, &self.shared].into_iter().flatten().any(|own| {
            own == folder
                || matches!((fs::metadata(own), fs::metadata(folder)), (Ok(own), Ok(folder))
                    if own.dev() == folder.dev() && own.ino() == folder.ino())
        })
    }
}

/// Why nothing can be kept. The session may go on in memory, or be refused, as the user chose.
#[derive(Debug, thiserror::Error)]
pub enum StateProblem {
    /// Set `HOME` or `DECURION_HOME`.
    #[error("there is no home folder to keep sessions in")]
    NoHome,
    /// Move what is there.
    #[error("not a folder: {path}")]
    NotAFolder {
        /// What is in the way.
        path: Utf8PathBuf,
    },
    /// Give rights, or choose another folder with `DECURION_HOME`.
    #[error("no permission to write: {path}")]
    NoPermission { path: Utf8PathBuf },
    /// Choose another folder with `DECURION_HOME`.
    #[error("on a read-only file system: {path}")]
    ReadOnly { path: Utf8PathBuf },
    /// Choose a folder of your own: its owner could read and change what is kept there.
    #[error("owned by someone else: {path}")]
    NotOurs { path: Utf8PathBuf },
    /// See what the system says.
    #[error("cannot use {path}: {source}")]
    Other {
        path: Utf8PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A folder that only its owner can enter. One that exists loses the rights that others have to change it
/// (the state folder itself) or any rights of others (the folders inside).
fn make_private(folder: &Utf8Path, is_state: bool) -> Result<(), StateProblem> {
    let problem = |source| state_problem(folder, source);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(problem)?;
    let metadata = fs::metadata(folder).map_err(problem)?;
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user && user != 0 {
        return Err(StateProblem::NotOurs { path: folder.to_owned() });
    }
    let unwanted = if is_state { 0o022 } else { 0o077 };
    let mode = metadata.mode() & 0o7777;
    if mode & unwanted != 0 {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode & !unwanted)).map_err(problem)?;
    }
    let wanted = Access::WRITE_OK | Access::EXEC_OK | Access::READ_OK;
    rustix::fs::access(folder.as_std_path(), wanted).map_err(|error| problem(error.into()))
}

fn state_problem(folder: &Utf8Path, source: io::Error) -> StateProblem {
    let path = folder.to_owned();
    match source.kind() {
        io::ErrorKind::PermissionDenied => StateProblem::NoPermission { path },
        io::ErrorKind::ReadOnlyFilesystem => StateProblem::ReadOnly { path },
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => StateProblem::NotAFolder { path },
        _ => StateProblem::Other { path, source },
    }
}

fn directory_error(directory: &str, source: io::Error) -> ConfigError {
    let directory = directory.to_owned();
    if source.kind() == io::ErrorKind::NotFound {
        ConfigError::DirectoryGone { directory }
    } else {
        ConfigError::DirectoryUnusable { directory, source }
    }
}

fn utf8(what: &'static str, path: &OsStr) -> Result<Utf8PathBuf, ConfigError> {
    let text = path
        .to_str()
        .ok_or_else(|| ConfigError::NotUtf8 { what, path: path.to_string_lossy().into_owned() })?;
    Ok(Utf8PathBuf::from(text))
}

fn absolute(name: &'static str, path: Utf8PathBuf) -> Result<Utf8PathBuf, ConfigError> {
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(ConfigError::Variable { name: name.to_owned(), expected: "an absolute path".to_owned() })
    }
}
