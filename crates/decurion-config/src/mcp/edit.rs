//! Declarations of servers written into files. Takes a scope, a name and a declaration, gives the file that
//! holds it now. A file with comments is left to its author: it could not be written again as it was. Who types such a
//! command wants what it writes: it does not wait for trust in the folder (`own.rs`).

use std::fs::File;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Map, Value, json};

use super::SIGNS;
use crate::agents::place;
use crate::jsonc;
use crate::memory;
use crate::own::Before;
use crate::paths::Paths;
use crate::{read, record};

/// Whose a declaration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The user's, in every folder.
    User,
    /// The project's, for everyone who works on it: `.mcp.json`.
    Project,
    /// The user's, in this project.
    Local,
}

/// Why a file was not changed.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// Set `HOME` or `DECURION_HOME`.
    #[error("there is no state folder for the user's settings")]
    NoState,
    /// Edit it by hand.
    #[error(
        "{file} has comments or is not plain JSON, so it is not rewritten; change `mcpServers` in it by hand"
    )]
    Comments { file: Utf8PathBuf },
    /// Choose another name, or remove that one first.
    #[error("there is a server of this name already in {file}: {name}")]
    Exists { file: Utf8PathBuf, name: String },
    /// Look at what the system says about the file.
    #[error("cannot write {file}: {reason}")]
    File { file: Utf8PathBuf, reason: String },
}

/// The file of a scope.
pub fn file(paths: &Paths, scope: Scope) -> Result<Utf8PathBuf, EditError> {
    Ok(match scope {
        Scope::User => paths.state.as_ref().ok_or(EditError::NoState)?.join("settings.json"),
        Scope::Project => paths.root.join(".mcp.json"),
        Scope::Local => paths.root.join(".decurion/settings.local.json"),
    })
}

pub fn add(paths: &Paths, scope: Scope, name: &str, declared: Value) -> Result<Utf8PathBuf, EditError> {
    let (file, _held) = locked(paths, scope)?;
    let (mut document, text) = load(&file)?;
    let servers = servers(&mut document, &file, scope)?;
    if servers.contains_key(name) {
        return Err(EditError::Exists { file, name: name.to_owned() });
    }
    servers.insert(name.to_owned(), declared);
    if scope == Scope::Local {
        // Before the file is there: it may hold secrets, and the next `git add` takes what is not ignored.
        let failed =
            |error: std::io::Error| EditError::File { file: file.clone(), reason: error.to_string() };
        let ignored = paths.root.join(".decurion/.gitignore");
        if !memory::stays_inside(&paths.root, &ignored).unwrap_or(false) {
            return Err(failed(std::io::Error::other(format!("{ignored}: {}", place::OUT_OF_PROJECT))));
        }
        std::fs::create_dir_all(paths.root.join(".decurion")).map_err(failed)?;
        memory::keep_out_of_git(&ignored, "settings.local.json").map_err(failed)?;
    }
    save(paths, scope, &file, text.as_deref(), &document)?;
    Ok(file)
}

/// Removes a declaration; says from which file, or none if the scope has no such server.
pub fn remove(paths: &Paths, scope: Scope, name: &str) -> Result<Option<Utf8PathBuf>, EditError> {
    let (file, _held) = locked(paths, scope)?;
    let (mut document, text) = load(&file)?;
    if text.is_none() {
        return Ok(None);
    }
    if servers(&mut document, &file, scope)?.shift_remove(name).is_none() {
        return Ok(None);
    }
    save(paths, scope, &file, text.as_deref(), &document)?;
    Ok(Some(file))
}

/// The file of a scope where it really is, to be read and written while the lock is held. The lock is one for all
/// files and among the user's own, so that none is left in a repository.
fn locked(paths: &Paths, scope: Scope) -> Result<(Utf8PathBuf, Option<File>), EditError> {
    let file = file(paths, scope)?;
    let failed = |reason: String| EditError::File { file: file.clone(), reason };
    if scope != Scope::User && !memory::stays_inside(&paths.root, &file).unwrap_or(false) {
        return Err(failed(place::OUT_OF_PROJECT.to_owned()));
    }
    let lock = paths.state.as_ref().map(|state| record::lock(&state.join("mcp-edit.lock")));
    let lock = lock.transpose().map_err(|error| failed(error.to_string()))?;
    // The empty folder by which a session keeps commands from making the file gives way; nothing else is removed.
    let _ = std::fs::remove_dir(&file);
    // Written through a link, not in its place.
    let real = file.canonicalize_utf8().unwrap_or(file);
    Ok((real, lock))
}

/// The object of servers in a document: under the wrapper, or the document itself where it has none.
fn servers<'a>(
    document: &'a mut Map<String, Value>,
    file: &Utf8Path,
    scope: Scope,
) -> Result<&'a mut Map<String, Value>, EditError> {
    let is_server = |value: &Value| SIGNS.iter().any(|key| value.get(key).is_some());
    let is_bare = !document.is_empty() && document.values().all(is_server);
    if is_bare && scope == Scope::Project && !document.contains_key("mcpServers") {
        return Ok(document);
    }
    match document.entry("mcpServers").or_insert_with(|| json!({})) {
        Value::Object(servers) => Ok(servers),
        _ => {
            Err(EditError::File { file: file.to_owned(), reason: "`mcpServers` is not an object".to_owned() })
        }
    }
}

/// What a file declares, and its text; none where it says nothing.
fn load(file: &Utf8Path) -> Result<(Map<String, Value>, Option<String>), EditError> {
    let failed = |reason: String| EditError::File { file: file.to_owned(), reason };
    let bytes = read::whole(file, jsonc::MAX_BYTES).map_err(|error| failed(error.to_string()))?;
    let bytes = bytes.filter(|bytes| !bytes.trim_ascii().is_empty());
    let Some(bytes) = bytes else { return Ok((Map::new(), None)) };
    let comments = || EditError::Comments { file: file.to_owned() };
    let document = serde_json::from_slice(&bytes).map_err(|_| comments())?;
    Ok((document, Some(String::from_utf8(bytes).map_err(|_| comments())?)))
}

fn save(
    paths: &Paths,
    scope: Scope,
    file: &Utf8Path,
    before: Option<&str>,
    document: &Map<String, Value>,
) -> Result<(), EditError> {
    let failed = |error: std::io::Error| EditError::File { file: file.to_owned(), reason: error.to_string() };
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut text = serde_json::to_string_pretty(document).map_err(|error| failed(error.into()))?;
    text.push('\n');
    // A file that others may read stays so.
    let mode = std::fs::metadata(file).map(|metadata| metadata.permissions()).ok();
    if scope == Scope::User {
        return record::replace(file, text.as_bytes(), mode).map_err(failed);
    }
    // By the name that it is read under, wherever a link leads.
    let named = self::file(paths, scope)?;
    let before = Before::of(paths, &named, before);
    before.about_to_write(paths, &named, &text);
    record::replace(file, text.as_bytes(), mode).map_err(failed)?;
    before.written(paths, &named, &text).map(drop).map_err(|error| failed(std::io::Error::other(error)))
}
