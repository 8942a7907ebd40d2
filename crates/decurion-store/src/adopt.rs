//! A transcript of another program's shape among ours: the functions of an SDK copy a session into a new file next to it,
//! without the lines that are ours alone. Takes the paths of such a session, makes its file one of ours; what was there
//! is kept in the session's folder.

use std::io::{self, BufRead, BufReader, Write};

use crate::folder::{DirHandle, How};
use crate::import::{ImportContext, ImportError, Imported, import};
use crate::jsonl::OpenError;
use crate::read::project_folder;
use crate::{Journal as _, SessionPaths, SessionWriter};

/// How every line begins that is ours alone. A file of ours has one first.
const OWN: &[u8] = b"{\"type\":\"decurion\",";
/// Lines about a session that we have no event for, and that listings read.
const ABOUT: [&[u8]; 2] = [b"{\"type\":\"custom-title\"", b"{\"type\":\"tag\""];
/// What the file is called that was there.
const KEPT: &str = "foreign.jsonl";
/// The largest file that is looked at.
const LARGEST: u64 = 1 << 30;

/// Makes the transcript of this session ours, if it is of another program's shape; gives whether it was. The new file
/// takes the place of the old one whole or not at all, so that a crash leaves either.
pub fn adopt(paths: &SessionPaths, context: &ImportContext) -> Result<bool, OpenError> {
    let failed = |source| storage(paths, source);
    let name = paths.transcript_name();
    let project = project_folder(paths).map_err(failed)?;
    let unreadable = |source| OpenError::Transcript { path: paths.transcript().into_string(), source };
    if !is_foreign(&project, &name).map_err(unreadable)? {
        return Ok(false);
    }
    let temporary = format!(".{name}.adopted");
    let made = SessionWriter::beside(paths, &temporary, context.now, || taken(&project, paths, context))?;
    // The lock is held until the new file is in its place.
    let Some((mut journal, imported)) = made else { return Ok(false) };
    journal.append(&imported.envelopes).map_err(|error| failed(io::Error::other(error)))?;
    journal.sync().map_err(failed)?;
    let mut file = project.file(&temporary, How::AppendExisting).map_err(failed)?;
    for line in about(&project.read(&name, LARGEST).map_err(failed)?) {
        file.write_all(line).map_err(failed)?;
    }
    file.sync_data().map_err(failed)?;
    project.rename(&temporary, &name).and_then(|()| project.sync()).map_err(failed)?;
    Ok(true)
}

/// Keeps the existing file, and reads its content; none if another process made it ours meanwhile, or if it holds
/// nothing to resume, which its reader reports.
fn taken(
    project: &DirHandle,
    paths: &SessionPaths,
    context: &ImportContext,
) -> Result<Option<Imported>, OpenError> {
    let failed = |source| storage(paths, source);
    let name = paths.transcript_name();
    if !is_foreign(project, &name).map_err(failed)? {
        return Ok(None);
    }
    let bytes = project.read(&name, LARGEST).map_err(failed)?;
    let session = project.sub(&paths.session().to_string(), true).map_err(failed)?;
    session.replace(KEPT, &bytes).map_err(failed)?;
    let context = ImportContext { session: Some(paths.session()), ..context.clone() };
    match import(&paths.folder().join(KEPT), &context) {
        Ok(imported) => Ok(Some(imported)),
        Err(ImportError::Empty(_) | ImportError::NoId(_)) => Ok(None),
        Err(ImportError::Io { source, .. }) => Err(failed(source)),
    }
}

fn storage(paths: &SessionPaths, source: io::Error) -> OpenError {
    OpenError::Storage { path: paths.transcript().into_string(), source }
}

/// Whether no line of a file is ours alone. One that is ours and was damaged anywhere still has others.
fn is_foreign(project: &DirHandle, name: &str) -> io::Result<bool> {
    let mut reader = BufReader::new(project.file(name, How::Read)?);
    let (mut line, mut any) = (Vec::new(), false);
    while reader.read_until(b'\n', &mut line)? > 0 {
        if line.starts_with(OWN) {
            return Ok(false);
        }
        any = true;
        line.clear();
    }
    Ok(any)
}

/// The last line of each kind that says something about a session, whole ones only.
fn about(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = || bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    ABOUT.into_iter().filter_map(move |kind| lines().rfind(|line| line.starts_with(kind)))
}
