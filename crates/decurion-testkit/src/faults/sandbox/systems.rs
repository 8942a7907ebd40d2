//! Systems and users that sessions are tried on. Takes a form of the sandbox and a user, gives the words that start a
//! program there. The program chooses its form by what the system allows, so a library that is loaded into it answers
//! as a system does that refuses namespaces, or bubblewrap too. Commands run without that library.
#![allow(clippy::disallowed_methods)] // a test compiles what it needs

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, lchown};
use std::path::Path;
use std::process::Command;

use decurion_exec::Form;
use tempfile::TempDir;

use crate::proc::Home;

const SOURCE: &str = include_str!("systems.c");
/// A user who owns nothing on any system.
const ORDINARY: u32 = 60_600;

/// Who runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum User {
    /// The user who runs the tests.
    Own,
    /// An ordinary one; only root can become it.
    Ordinary,
}

impl User {
    /// All that the tests can be.
    pub(super) fn all() -> &'static [Self] {
        if is_root() { &[Self::Own, Self::Ordinary] } else { &[Self::Own] }
    }

    pub(super) fn is_root(self) -> bool {
        self == Self::Own && is_root()
    }

    pub(super) fn name(self) -> &'static str {
        if self.is_root() { "root" } else { "an ordinary user" }
    }

    /// The words that start a program as this user.
    pub(super) fn words(self) -> Vec<OsString> {
        let number = ORDINARY.to_string();
        let words = ["setpriv", "--reuid", &number, "--regid", &number, "--clear-groups", "--"];
        if self == Self::Own { Vec::new() } else { words.map(OsString::from).to_vec() }
    }

    /// Gives all below a home to this user, but for the program.
    pub(super) fn own(self, home: &Home) -> std::io::Result<()> {
        if self == Self::Own {
            return Ok(());
        }
        let mut paths = vec![home.path().to_owned()];
        while let Some(path) = paths.pop() {
            if path == home.path().join("decurion") {
                // Perhaps another name of the file that was built.
                continue;
            }
            lchown(&path, Some(ORDINARY), Some(ORDINARY))?;
            if path.symlink_metadata()?.is_dir() {
                for entry in fs::read_dir(path)? {
                    paths.push(entry?.path());
                }
            }
        }
        Ok(())
    }

    /// Somebody else, whom this user becomes by a set-user-id program.
    pub(super) fn other(self) -> u32 {
        if self.is_root() { ORDINARY } else { 0 }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[derive(Debug)]
pub(super) struct Systems(TempDir);

impl Systems {
    pub(super) fn compile() -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("decurion-systems-").tempdir();
        let folder = folder.map_err(|error| error.to_string())?;
        let build = || -> std::io::Result<bool> {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
            let source = folder.path().join("systems.c");
            fs::write(&source, SOURCE)?;
            let mut compiler = Command::new("gcc");
            compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(library(folder.path())).arg(source);
            Ok(compiler.arg("-ldl").status()?.success())
        };
        match build() {
            Ok(true) => Ok(Self(folder)),
            Ok(false) => Err("gcc cannot compile the library that refuses namespaces".into()),
            Err(error) => Err(format!("the library that refuses namespaces cannot be made: {error}")),
        }
    }

    /// Where the library is.
    pub(super) fn folder(&self) -> &Path {
        self.0.path()
    }

    /// The words that start a program on a system where this form is the strongest.
    pub(super) fn words(&self, form: Form) -> Vec<OsString> {
        let refused = match form {
            Form::Namespaces => "",
            Form::Bubblewrap => "namespaces",
            Form::Landlock => "namespaces bubblewrap",
        };
        let mut preload = OsString::from("LD_PRELOAD=");
        preload.push(library(self.0.path()));
        vec!["env".into(), preload, format!("TEST_SYSTEM_REFUSES={refused}").into()]
    }
}

fn library(folder: &Path) -> std::path::PathBuf {
    folder.join("systems.so")
}
