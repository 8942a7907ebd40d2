//! Sessions without a prompt. Takes the lines of a transcript, says whether a person would miss them, and removes the
//! files of a session if not.

use std::io;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::SessionPaths;
use crate::folder::DirHandle;
use crate::layout::{HEADS, LOCK};
use crate::lock::Lock;
use crate::read::project_folder;

/// What a session writes by itself, or changes of rights that were never used. Everything else, also what this version
/// does not know, counts as said.
const SILENT: [&str; 4] = ["session_opened", "notice", "mode_changed", "rights_changed"];
/// The longest transcript that can be without a prompt.
const MOST_BYTES: u64 = 256 << 10;

/// Whether a line says nothing.
pub(crate) fn is_silent(line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(rename = "type", default)]
        kind: String,
        #[serde(borrow, default)]
        event: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Kind {
        #[serde(rename = "type")]
        kind: String,
    }
    let Ok(line) = serde_json::from_slice::<Line<'_>>(line) else { return false };
    let event = line.event.and_then(|event| serde_json::from_str::<Kind>(event.get()).ok());
    line.kind == "decurion" && event.is_some_and(|event| SILENT.contains(&event.kind.as_str()))
}

/// Whether a session has no prompt; false while another process writes it.
pub(crate) fn is_empty(paths: &SessionPaths) -> io::Result<bool> {
    let project = project_folder(paths)?;
    let name = paths.transcript_name();
    if u64::try_from(project.stat(&name)?.st_size).is_ok_and(|bytes| bytes > MOST_BYTES) {
        return Ok(false);
    }
    let text = project.read(&name, MOST_BYTES)?;
    if !text.split_inclusive(|byte| *byte == b'\n').all(is_silent) {
        return Ok(false);
    }
    let known = |name: &String| [HEADS, LOCK].contains(&name.as_str());
    match project.sub(&paths.session().to_string(), false) {
        Ok(folder) => Ok(folder.names()?.iter().all(known)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Removes the files of a session without a prompt; false if it has one, or another process has it.
pub(crate) fn discard(paths: &SessionPaths) -> io::Result<bool> {
    let project = project_folder(paths)?;
    let own = paths.session().to_string();
    let folder = project.sub(&own, false)?;
    let Ok(lock) = Lock::take(&folder, Timestamp::UNIX_EPOCH) else { return Ok(false) };
    if !is_empty(paths)? {
        return Ok(false);
    }
    // The transcript first: what is left without it is nothing that anything finds.
    project.remove(&paths.transcript_name())?;
    if let Ok(heads) = folder.sub(HEADS, false) {
        clear(&heads)?;
        folder.remove_folder(HEADS)?;
    }
    folder.remove(LOCK)?;
    drop(lock);
    project.remove_folder(&own)?;
    Ok(true)
}

fn clear(folder: &DirHandle) -> io::Result<()> {
    folder.names()?.iter().try_for_each(|name| folder.remove(name))
}
