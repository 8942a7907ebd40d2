//! An agent's own memory. Takes the scope of a definition and the agent's name, gives the folder it keeps its
//! notes in, made if need be, and the index of that folder, bounded, for its prompt.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::AgentSource;
use sha2::{Digest, Sha256};

use crate::agents::place::leaves;
use crate::paths::Paths;
use crate::read;
use crate::trust::hex;

/// The file that is told at the beginning.
pub const INDEX: &str = "MEMORY.md";
/// How much of it.
const MOST_LINES: usize = 200;
const MOST_BYTES: usize = 25 * 1024;
/// A longer name of a folder is cut.
const MOST_NAME: usize = 64;
/// The longest list of what git ignores that is read.
const MOST_IGNORED: usize = 1 << 20;

/// Why an agent has no memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Set `HOME` or `DECURION_HOME`.
    #[error("there is no state folder to keep an agent's memory in")]
    NoState,
    /// Use a word that exists.
    #[error("an agent's memory is user, project or local: {0:?}")]
    NoSuchScope(String),
    /// Take the link away.
    #[error("leads out of the project: {0}")]
    Outside(Utf8PathBuf),
    /// Put the notes into the folder.
    #[error("leads out of its folder: {0}")]
    Elsewhere(Utf8PathBuf),
    /// See what the system says.
    #[error("cannot use {path}: {source}")]
    Io {
        path: Utf8PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Where an agent of this name keeps its notes. The name may hold anything; the folder's does not. What a
/// repository calls by the name of a user's agent is another agent, with another folder.
pub fn folder(
    paths: &Paths,
    scope: &str,
    agent: &str,
    source: AgentSource,
) -> Result<Utf8PathBuf, MemoryError> {
    let base = match scope {
        "user" if source == AgentSource::Project => {
            let digits = hex(&Sha256::digest(paths.root.as_str()));
            let state = paths.state.as_ref().ok_or(MemoryError::NoState)?;
            state.join("agent-memory-of-projects").join(&digits[..16])
        }
        "user" => paths.state.as_ref().ok_or(MemoryError::NoState)?.join("agent-memory"),
        "project" => paths.root.join(".decurion/agent-memory"),
        "local" => paths.root.join(".decurion/agent-memory-local"),
        other => return Err(MemoryError::NoSuchScope(other.to_owned())),
    };
    Ok(base.join(folder_name(agent)))
}

/// Makes the folder, for its owner alone. A link in a repository may not lead it elsewhere.
pub fn prepare(
    paths: &Paths,
    scope: &str,
    agent: &str,
    source: AgentSource,
) -> Result<Utf8PathBuf, MemoryError> {
    let folder = folder(paths, scope, agent, source)?;
    let failed = |source| MemoryError::Io { path: folder.clone(), source };
    if scope != "user" && !stays_inside(&paths.root, &folder).map_err(failed)? {
        return Err(MemoryError::Outside(folder));
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed)?;
    if scope == "local" {
        let base = folder.parent().unwrap_or(&folder);
        keep_out_of_git(&base.join(".gitignore"), "*").map_err(failed)?;
    }
    Ok(folder)
}

/// Whether the part of a path that exists is inside of a folder.
pub(crate) fn stays_inside(root: &Utf8Path, folder: &Utf8Path) -> io::Result<bool> {
    let root = root.canonicalize_utf8()?;
    let there = folder.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap_or(&root);
    Ok(there.canonicalize_utf8()?.starts_with(&root))
}

/// Has git ignore what this pattern means, beside what the file says already.
pub(crate) fn keep_out_of_git(file: &Utf8Path, pattern: &str) -> io::Result<()> {
    let there = match read::whole(file, MOST_IGNORED) {
        Ok(there) => there.unwrap_or_default(),
        Err(error) => return Err(io::Error::other(error)),
    };
    let last = |is_it: &dyn Fn(&[u8]) -> bool| {
        let lines = there.split(|byte| *byte == b'\n').enumerate();
        lines.filter(|(_, line)| is_it(line.trim_ascii())).map(|(number, _)| number).last()
    };
    let says = last(&|line| line == pattern.as_bytes() || line == b"*");
    if says.is_some() && says > last(&|line| line.starts_with(b"!")) {
        return Ok(());
    }
    let gap = if there.is_empty() || there.ends_with(b"\n") { "" } else { "\n" };
    let mut file = fs::File::options().append(true).create(true).mode(0o600).open(file)?;
    file.write_all(format!("{gap}{pattern}\n").as_bytes())
}

/// A name that is one folder's and nobody else's: what a path could mean something by is replaced, and then a
/// few digits of the whole name keep two such names apart.
fn folder_name(agent: &str) -> String {
    let keep = |character: char| {
        if character.is_ascii_alphanumeric() || "-_.".contains(character) { character } else { '-' }
    };
    let plain: String = agent.chars().map(keep).take(MOST_NAME).collect();
    if plain == agent && !plain.starts_with('.') && !plain.is_empty() {
        return plain;
    }
    let digits = hex(&Sha256::digest(agent.as_bytes()));
    format!("{}-{}", plain.trim_start_matches('.'), &digits[..8])
}

/// The index of a memory, as much of it as is told; empty where there is none yet. It goes into a prompt, so
/// whoever put a link in its place would have any file told.
pub fn index(folder: &Utf8Path) -> Result<String, MemoryError> {
    let path = folder.join(INDEX);
    if leaves(folder, &path).is_some() {
        return Err(MemoryError::Elsewhere(path));
    }
    let failed = |source| MemoryError::Io { path: path.clone(), source };
    let Some(file) = read::open(&path).map_err(|error| failed(io::Error::other(error)))? else {
        return Ok(String::new());
    };
    let all = file.metadata().map_or(0, |metadata| metadata.len());
    let mut bytes = Vec::new();
    file.take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    let is_long = bytes.len() > MOST_BYTES;
    bytes.truncate(MOST_BYTES);
    let text = String::from_utf8_lossy(&bytes);
    let text = if is_long { text.trim_end_matches('\u{fffd}') } else { &text };
    let lines = text.lines().count();
    if !is_long && lines <= MOST_LINES {
        return Ok(text.trim_end().to_owned());
    }
    let kept: Vec<&str> = text.lines().take(MOST_LINES).collect();
    Ok(format!(
        "{}\n[… cut: {INDEX} has {all} bytes; its first {} lines are shown. Keep it short: at most {MOST_LINES} \
         lines and {} KB, details in files of their own.]",
        kept.join("\n").trim_end(),
        kept.len(),
        MOST_BYTES / 1024,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_a_path() {
        for (name, expected) in [
            ("code-reviewer", "code-reviewer"),
            ("a.b_C", "a.b_C"),
            ("p:r", "p-r-"),
            ("../../x", "-..-x-"),
            ("..", "-"),
            ("", "-"),
            ("a/b", "a-b-"),
            ("ä b", "--b-"),
        ] {
            let made = folder_name(name);
            let is_changed = expected.ends_with('-');
            let (start, digits) =
                if is_changed { made.split_at(made.len() - 8) } else { (made.as_str(), "") };
            assert_eq!((start, digits.len()), (expected, if is_changed { 8 } else { 0 }), "{name}");
            assert!(!made.contains('/') && !made.starts_with('.'), "{made}");
        }
        assert_ne!(folder_name("a:b"), folder_name("a/b"));
        assert!(folder_name(&"x".repeat(300)).len() < 80);
    }
}
