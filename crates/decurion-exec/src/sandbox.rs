//! What the kernel lets a command do. Takes a [`Sandbox`], the compiled form of the permission rules, with the
//! command to start; what comes out is a process that cannot do more, nor can anything it starts.
//!
//! There are three forms. With [`Form::Namespaces`] a second guard process lives in user, mount, network and IPC
//! namespaces of its own (`enter.rs`, once per session). It has a reaper with a mount, a pid and an IPC namespace for each
//! sandbox (`mounts.rs`); a third guard, with the network of the machine, does so for
//! [`Reach::Machine`]. Where the system refuses namespaces to us, `bwrap` makes them if it may ([`Form::Bubblewrap`],
//! `bubblewrap.rs`), else there are none ([`Form::Landlock`]); the ordinary guard starts the command then.
//! All forms add Landlock rules (`landlock.rs`), a system call filter (`filter.rs`) and `no_new_privs`.

pub(crate) mod bubblewrap;
pub(crate) mod enter;
pub(crate) mod filter;
pub(crate) mod kernel;
pub(crate) mod landlock;
pub(crate) mod mounts;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub use mounts::TEMPORARY;

/// The port of the proxy for commands in their own network.
pub const PROXY_PORT: u16 = 14_041;

/// What one command may do. Paths are absolute and contain no symbolic links: a link that appears on the way to one
/// of them before the command starts makes the start fail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// Files and folders, with all below, that it may write.
    pub writable: Vec<PathBuf>,
    /// Files and folders that it may only read although a folder above them is writable. Those that do not exist when
    /// the command starts are skipped, so it can make them.
    pub read_only: Vec<PathBuf>,
    /// Symbolic links in writable folders that it can neither remove, rename nor replace. What they lead to is not
    /// affected.
    pub links: Vec<PathBuf>,
    /// Files that it cannot open and folders that are empty for it. Another hard link to such a file, or another mount
    /// of such a folder, is not covered; a command can make neither.
    ///
    /// If a process outside replaces a hidden or read-only path while the command runs, as an editor does that saves a
    /// file by renaming a new one, the new file is neither hidden nor read-only for that command. Commands that start
    /// later cannot reach it.
    pub hidden: Vec<PathBuf>,
    /// Files and folders that it may read also where the private temporary folder, or something hidden, covers a folder above
    /// them. Of a symbolic link only its name is shown.
    pub visible: Vec<PathBuf>,
    /// The folder that it sees as `/tmp`, `/var/tmp` and `/dev/shm`, and may write.
    pub tmp: Option<PathBuf>,
    /// Another folder that it sees as `/tmp` and `/var/tmp` instead, and may only read: where commands that may do more
    /// have their temporary files. Without [`Sandbox::tmp`] it means nothing.
    pub shown_tmp: Option<PathBuf>,
    /// Whether it may open internet sockets. With namespaces these lead where [`Sandbox::reach`] says.
    pub network: bool,
    /// Whose network it is in.
    pub reach: Reach,
    /// Whether it may open Unix sockets. It then reaches every daemon whose socket its user may open.
    pub unix_sockets: bool,
    /// Whether it sees the processes and the network of the machine, as a command that lists them must. It has no
    /// namespaces then: [`Form::Landlock`] holds for it.
    pub sees_machine: bool,
}

impl Sandbox {
    /// Whether it may write nothing but its private temporary folder. Its locks on files then have no effect.
    pub(crate) fn only_reads(&self) -> bool {
        self.writable.iter().all(|path| Some(path) == self.tmp.as_ref())
    }
}

/// The network of a sandboxed process, where there are namespaces; without, it is always that of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// That of the session's commands: each other and the proxy, unless [`crate::Network::Open`] is set.
    #[default]
    Session,
    /// That of the machine.
    Machine,
}

/// How a sandbox is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Namespaces, Landlock and a system call filter. A kernel without Landlock does not keep the command from writing
    /// to named pipes outside and from asking its own reaper to end.
    Namespaces,
    /// Namespaces that the system's `bwrap` makes for each command, Landlock and a system call filter, where the system
    /// refuses namespaces to us. It keeps the same promises as [`Form::Namespaces`], but for these:
    /// - With `network`, the command is in the network of the host, all of it; without, commands do not reach each other.
    /// - A command that was ended by a signal is reported with the exit code that a shell would give.
    /// - Root's commands can change the modes, owners and times of the six devices that all programs use.
    /// - Symbolic links of [`Sandbox::links`] can be replaced; where they lead is protected.
    ///
    /// Each command costs some milliseconds.
    Bubblewrap,
    /// Landlock and a system call filter alone. It keeps the same promises about files that are written and read, at a
    /// price: Landlock can only allow, and what it allows for a folder holds for all below. So in every folder above a
    /// path of `read_only` or `hidden` that lies in `writable`, files that exist can be changed, but none can be made,
    /// renamed or removed.
    ///
    /// What only namespaces can promise does not hold:
    /// - Modes, owners, times and attributes of files outside can be changed, as far as the user may.
    /// - Names and sizes of files in hidden folders can be seen.
    /// - With `network`, the command is in the network of the host, all of it.
    /// - Other processes can be seen, with their arguments. Those of the same user can be given another priority,
    ///   scheduler or set of processors.
    /// - There are no private folders for temporary files: the command must be told to use [`Sandbox::tmp`].
    /// - Terminals cannot be opened, and no memory can be shared by number or name (`shmget`, `mq_open`).
    /// - A process that escapes guard and reaper, because both are killed from outside, lives on.
    ///
    /// Kernels before 6.12 do not keep signals and abstract Unix sockets in, before 6.10 device calls, before 6.2
    /// truncation.
    Landlock,
}

impl Form {
    /// The name in settings, status lines and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Bubblewrap => "bubblewrap",
            Self::Landlock => "landlock",
        }
    }

    /// Whether a command that may write nothing can change nothing at all, not even modes and times of files.
    pub fn keeps_readers_from_changes(self) -> bool {
        match self {
            Self::Namespaces => true,
            Self::Bubblewrap => has_landlock() && !rustix::process::geteuid().is_root(),
            Self::Landlock => false,
        }
    }
}

/// The strongest form that works on this system, found by trying it once; else why none does.
pub fn probe() -> Result<Form, String> {
    static FOUND: OnceLock<Result<Form, String>> = OnceLock::new();
    FOUND.get_or_init(try_forms).clone()
}

fn try_forms() -> Result<Form, String> {
    let namespaces = kernel::try_namespaces(false).or_else(|_| kernel::try_namespaces(true));
    let Err(error) = namespaces else { return Ok(Form::Namespaces) };
    without_namespaces().ok_or_else(|| {
        format!("the system refuses namespaces ({error}), has no bubblewrap that works, and no Landlock")
    })
}

/// The strongest form where the system refuses namespaces to us, found by trying it once.
pub(crate) fn without_namespaces() -> Option<Form> {
    static FOUND: OnceLock<Option<Form>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if bubblewrap::works() {
            return Some(Form::Bubblewrap);
        }
        landlock::is_supported().then_some(Form::Landlock)
    })
}

/// Which path something failed at.
#[derive(Debug)]
pub(crate) struct PathError {
    pub path: PathBuf,
    pub source: io::Error,
}

pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> PathError {
    |source| PathError { path: path.to_owned(), source }
}

/// Whether the kernel has Landlock.
pub fn has_landlock() -> bool {
    landlock::is_supported()
}
