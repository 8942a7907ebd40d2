//! What the kernel lets a command do. Takes a [`Sandbox`], the compiled form of the permission rules, with the
//! command to start; what comes out is a process that cannot do more, nor can anything it starts.
//!
//! There are two forms. With [`Form::Namespaces`] a second guard process lives in user, mount, network and IPC
//! namespaces of its own (`enter.rs`, once per session) and gives each command a mount namespace (`mounts.rs`) and a
//! pid namespace. With [`Form::Landlock`], where the system refuses namespaces, the ordinary guard starts the command.
//! Both forms add Landlock rules (`landlock.rs`), a system call filter (`filter.rs`) and `no_new_privs`.

pub(crate) mod enter;
pub(crate) mod filter;
pub(crate) mod kernel;
pub(crate) mod landlock;
pub(crate) mod mounts;

use std::path::PathBuf;

/// Where commands with a network of their own find the way out of it.
pub const PROXY_PORT: u16 = 14_041;

/// What one command may do. Paths are absolute and contain no symbolic links: a link that appears on the way to one
/// of them before the command starts makes the start fail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// Files and folders, with all below, that it may write.
    pub writable: Vec<PathBuf>,
    /// Files and folders that it may only read although a folder above them is writable. Those that do not exist when
    /// the command starts are skipped.
    pub read_only: Vec<PathBuf>,
    /// Files that it cannot open and folders that are empty for it.
    pub hidden: Vec<PathBuf>,
    /// Folders that it may read also where the private temporary folder covers a folder above them.
    pub visible: Vec<PathBuf>,
    /// The folder that it sees as `/tmp`, `/var/tmp` and `/dev/shm`, and may write.
    pub tmp: Option<PathBuf>,
    /// Whether it may open internet sockets.
    pub network: bool,
    /// Whether it may open Unix sockets.
    pub unix_sockets: bool,
    /// Whether it sees the processes and the network of the machine, as a command that lists them must. It has no
    /// namespaces then: [`Form::Landlock`] holds for it.
    pub sees_machine: bool,
}

/// How a sandbox is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Namespaces, Landlock and a system call filter.
    Namespaces,
    /// Landlock and a system call filter alone.
    Landlock,
}

impl Form {
    /// The name in settings, status lines and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Landlock => "landlock",
        }
    }
}

/// The strongest form that works on this system, found by trying it; else why none does.
pub fn probe() -> Result<Form, String> {
    let namespaces = kernel::try_namespaces(false).or_else(|_| kernel::try_namespaces(true));
    match namespaces {
        Ok(()) => Ok(Form::Namespaces),
        Err(_) if landlock::is_supported() => Ok(Form::Landlock),
        Err(error) => Err(format!("the system refuses namespaces ({error}) and has no Landlock")),
    }
}
