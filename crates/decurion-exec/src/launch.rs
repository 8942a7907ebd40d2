//! What to run, where, and with which environment: plain data in, and the ways it can end or fail to start.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::sandbox::Sandbox;

/// One command, decided: nothing is inherited and nothing is left to look up, except a program name
/// without a slash, which is searched in the `PATH` of [`Launch::env`].
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program: a path, or a name to be found in `PATH`.
    pub program: OsString,
    /// Its arguments, without the program's own name.
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    /// The directory it starts in.
    pub cwd: PathBuf,
    pub stdin: Stdin,
    /// How its two outputs are given to us.
    pub output: Output,
    /// Whether descriptor 3 of the command is a pipe on which it tells its directory at the end, see
    /// [`crate::shell`]; read by [`crate::Process::cwd`].
    pub report_cwd: bool,
    /// Limits the kernel enforces on it.
    pub limits: ResourceLimits,
    /// What it may do; `None` for all that this process may.
    pub sandbox: Option<Arc<Sandbox>>,
}

/// What a command reads.
#[derive(Clone, Debug, Default)]
pub enum Stdin {
    /// Nothing: the end at once.
    #[default]
    Empty,
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    /// What is written to [`crate::Process::stdin`].
    Piped,
}

/// How the two outputs of a command are given to us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Both in one stream, in the order they were written.
    #[default]
    Merged,
    Separate,
}

/// Limits the kernel enforces. Core dumps are always off.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResourceLimits {
    /// How many processes the user may have in all (`RLIMIT_NPROC`); counts the user's others too.
    pub processes: Option<u64>,
    /// How large a file may become (`RLIMIT_FSIZE`). For a sandboxed command it is at most half of the free space where
    /// it starts, or 1 GiB if that is more; 1 GiB for one that may write only to its private folder.
    pub file_bytes: Option<u64>,
}

impl Launch {
    /// A command with empty stdin, merged output and no extra limits.
    pub fn new(program: impl Into<OsString>, cwd: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: cwd.into(),
            stdin: Stdin::Empty,
            output: Output::Merged,
            report_cwd: false,
            limits: ResourceLimits::default(),
            sandbox: None,
        }
    }

    /// The same with these arguments after those it has.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// The same with this environment instead of the one it has.
    #[must_use]
    pub fn env(mut self, env: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        self.env = env.into_iter().collect();
        self
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    Signal(i32),
    /// It used more than it may, and was ended for it, or failed after part of it was.
    OverLimit(Limit),
    /// Its end was not seen: its reaper or the guard was killed. All processes that it left were ended.
    Unknown,
}

impl Exit {
    /// Whether it ended by itself with code 0.
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }

    /// The code as a shell would show it: 128 + signal; `None` if unknown.
    pub fn shell_code(self) -> Option<i32> {
        match self {
            Self::Code(code) => Some(code),
            Self::Signal(signal) => Some(128 + signal),
            Self::OverLimit(_) => Some(KILLED),
            Self::Unknown => None,
        }
    }
}

/// What a shell says of a command that was killed.
const KILLED: i32 = 128 + 9;

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::OverLimit(limit) => write!(f, "used more than {limit}"),
            Self::Unknown => write!(f, "its end was not seen"),
        }
    }
}

/// How much a command may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Memory. Where there are control groups, all commands of a session share it.
    Memory {
        /// In units of 1,048,576 bytes.
        mebibytes: u32,
    },
    /// Processes and threads at a time.
    Processes(u32),
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory { mebibytes } if *mebibytes < 10 << 10 => write!(f, "{mebibytes} MiB of memory"),
            Self::Memory { mebibytes } => write!(f, "{} GiB of memory", mebibytes >> 10),
            Self::Processes(number) => write!(f, "{number} processes"),
        }
    }
}

/// Why a command was not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// There is no such program: name another.
    #[error("no such program: {program:?}")]
    NoProgram { program: OsString },
    /// The file is there and cannot be run: change its mode or its first line.
    #[error("cannot be executed ({source}): {program:?}")]
    NotExecutable {
        program: OsString,
        /// What the kernel said.
        source: io::Error,
    },
    /// The directory is gone or may not be entered: choose another.
    #[error("working directory cannot be entered ({source}): {cwd:?}")]
    Directory {
        cwd: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Arguments and environment are larger than the system takes: pass them by a file.
    #[error("arguments and environment are too large, in bytes: {bytes}")]
    TooLarge {
        /// Their size as sent.
        bytes: usize,
    },
    /// A value that no process can be given, such as one with a NUL in it.
    #[error("cannot be passed to a process: {what}")]
    Unpassable { what: String },
    /// The machine refused (descriptors, processes, memory): try again when less is running.
    #[error("out of resources for {what}: {source}")]
    Resources {
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The sandbox could not be made, so the command was not started: see what the kernel refused.
    #[error("the sandbox cannot be made: {what}: {source}")]
    Sandbox {
        /// Which part of it, or at which path.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The system allows no namespaces: another form of sandbox may work.
    #[error("namespaces are refused here: {source}")]
    NoNamespaces {
        /// What the kernel said.
        source: io::Error,
    },
    /// The guard could not be started, so nothing can be: check the installation.
    #[error("the guard process cannot be started ({reason}): {program:?}")]
    NoGuard { program: PathBuf, reason: String },
    /// The guard did not answer in time: whether the command ran is not known, and it runs no more. Check
    /// before trying again.
    #[error("the guard process did not answer while it started a command, which may have run")]
    Lost,
}
