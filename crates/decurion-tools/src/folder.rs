//! What a folder holds, by name. Takes its path and what the run may read; gives its entries, without those that a rule
//! hides.

use camino::Utf8Path;
use decurion_protocol::{Access, ToolOutput};

use crate::files::{self, FileAccess, FileError};
use crate::{ToolContext, paths};

/// How many entries are listed.
const MOST_ENTRIES: usize = 200;
/// How many are looked at.
const MOST_SEEN: usize = 10_000;

/// The entries of a folder in the order of their names, folders with a slash.
pub async fn list(cx: &ToolContext, path: &str) -> ToolOutput {
    match paths::absolute("Read", "file_path", path, &cx.around) {
        Ok(path) => files::reading(cx, move |access| entries(access, &path)).await,
        Err(error) => error.into(),
    }
}

fn entries(access: &FileAccess, lexical: &Utf8Path) -> Result<ToolOutput, FileError> {
    let folder = files::readable(access, lexical)?;
    let failed = |error: std::io::Error| FileError::io(lexical, error);
    let mut names = Vec::new();
    let mut more = false;
    for (count, entry) in folder.read_dir_utf8().map_err(failed)?.enumerate() {
        // A name that is no text cannot be asked for either.
        let Ok(entry) = entry else { continue };
        if count >= MOST_SEEN {
            more = true;
            break;
        }
        if files::refusal(access, entry.path(), Access::Read).is_some() {
            continue;
        }
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        names.push(format!("{}{}", entry.file_name(), if is_folder { "/" } else { "" }));
    }
    names.sort_unstable();
    let total = names.len();
    names.truncate(MOST_ENTRIES);
    let mut text = if names.is_empty() { "[the folder is empty]".to_owned() } else { names.join("\n") };
    if more || names.len() < total {
        let of = if more { "more than ".to_owned() } else { String::new() };
        text.push_str(&format!("\n[the first {} of {of}{total} entries]", names.len()));
    }
    Ok(ToolOutput::text(text).with_structured(serde_json::json!({"entries": total})))
}
