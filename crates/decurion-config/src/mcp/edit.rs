//! Declarations of servers written into files. Takes a scope, a name and a declaration, gives the file that
//! holds it now. A file with comments is left to its author: it could not be written again as it was.

use std::io::Write as _;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Map, Value, json};

use crate::jsonc;
use crate::paths::Paths;
use crate::read;
use crate::record::private_file;

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
    Comments {
        /// The file.
        file: Utf8PathBuf,
    },
    /// Choose another name, or remove that one first.
    #[error("there is a server of this name already in {file}: {name}")]
    Exists {
        /// The file.
        file: Utf8PathBuf,
        /// The name.
        name: String,
    },
    /// Look at what the system says about the file.
    #[error("cannot write {file}: {reason}")]
    File {
        /// The file.
        file: Utf8PathBuf,
        /// What it says.
        reason: String,
    },
}

/// The file of a scope.
pub fn file(paths: &Paths, scope: Scope) -> Result<Utf8PathBuf, EditError> {
    Ok(match scope {
        Scope::User => paths.state.as_ref().ok_or(EditError::NoState)?.join("settings.json"),
        Scope::Project => paths.root.join(".mcp.json"),
        Scope::Local => paths.root.join(".decurion/settings.local.json"),
    })
}

/// Adds a declaration.
pub fn add(paths: &Paths, scope: Scope, name: &str, declared: Value) -> Result<Utf8PathBuf, EditError> {
    let file = file(paths, scope)?;
    let mut document = load(&file)?.unwrap_or_default();
    let servers = servers(&mut document, &file)?;
    if servers.contains_key(name) {
        return Err(EditError::Exists { file, name: name.to_owned() });
    }
    servers.insert(name.to_owned(), declared);
    save(&file, &document)?;
    Ok(file)
}

/// Removes a declaration; says from which file, or none if the scope has no such server.
pub fn remove(paths: &Paths, scope: Scope, name: &str) -> Result<Option<Utf8PathBuf>, EditError> {
    let file = file(paths, scope)?;
    let Some(mut document) = load(&file)? else { return Ok(None) };
    if servers(&mut document, &file)?.shift_remove(name).is_none() {
        return Ok(None);
    }
    save(&file, &document)?;
    Ok(Some(file))
}

/// The object of servers in a document: under the wrapper, or the document itself where it has none.
fn servers<'a>(
    document: &'a mut Map<String, Value>,
    file: &Utf8Path,
) -> Result<&'a mut Map<String, Value>, EditError> {
    let is_bare = file.ends_with(".mcp.json") && !document.is_empty() && !document.contains_key("mcpServers");
    if is_bare {
        return Ok(document);
    }
    match document.entry("mcpServers").or_insert_with(|| json!({})) {
        Value::Object(servers) => Ok(servers),
        _ => {
            Err(EditError::File { file: file.to_owned(), reason: "`mcpServers` is not an object".to_owned() })
        }
    }
}

fn load(file: &Utf8Path) -> Result<Option<Map<String, Value>>, EditError> {
    let failed = |reason: String| EditError::File { file: file.to_owned(), reason };
    let bytes = read::whole(file, jsonc::MAX_BYTES).map_err(|error| failed(error.to_string()))?;
    let Some(bytes) = bytes else { return Ok(None) };
    if bytes.trim_ascii().is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|_| EditError::Comments { file: file.to_owned() })
}

/// Written beside, synced, then renamed: readers see the old file or the new one.
fn save(file: &Utf8Path, document: &Map<String, Value>) -> Result<(), EditError> {
    let failed = |error: std::io::Error| EditError::File { file: file.to_owned(), reason: error.to_string() };
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let beside = file.with_extension(format!("{}.tmp", std::process::id()));
    let mode = std::fs::metadata(file).map(|metadata| metadata.permissions()).ok();
    let written = private_file(&beside, true).and_then(|mut output| {
        let mut text = serde_json::to_vec_pretty(document)?;
        text.push(b'\n');
        output.write_all(&text)?;
        // A file that others may read stays so.
        if let Some(mode) = mode {
            output.set_permissions(mode)?;
        }
        output.sync_all()?;
        std::fs::rename(&beside, file)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written.map_err(failed)
}
