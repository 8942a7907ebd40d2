//! Files beside the transcript. Takes what is too large for a line or is not part of the conversation (frozen
//! heads, outputs of tools and tasks), gives it back by a typed id or in part.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::id::is_name;
use decurion_protocol::{AgentId, CallId, TaskId};

use crate::blob::hash;
use crate::folder::{DirHandle, How, SyncDoubt, random_word};
use crate::layout::{
    CHECKPOINTS, HEADS, PROJECTS, SUBAGENTS, SessionPaths, TASKS, TOOL_RESULTS, agent_meta_name, agent_name,
    task_name,
};

/// The largest head or note that is read back.
const SMALL_FILE_LIMIT: u64 = 64 << 20;
/// How much of a call's id is used in a file name.
const CALL_NAME_LIMIT: usize = 48;

/// The folder of one session, for everything but its transcripts.
#[derive(Debug)]
pub struct SessionFiles {
    folder: DirHandle,
    /// Whether what later records rely on is synced before it is used.
    synced: bool,
    /// Whether the name of a folder in it may be lost.
    doubt: SyncDoubt,
}

impl SessionFiles {
    /// Opens the folder of a session in the state folder, making it if needed.
    pub fn open(paths: &SessionPaths) -> io::Result<Self> {
        let project = DirHandle::root(paths.home(), true)?.sub(PROJECTS, true)?.sub(paths.project(), true)?;
        Ok(Self::of(project.sub(&paths.session().to_string(), true)?))
    }

    /// The same in the caller's folder, for a session without a transcript. It should be private: a name in it cannot
    /// be guessed, but any process that may write in it may remove it.
    pub fn in_folder(folder: &Utf8Path) -> io::Result<Self> {
        Ok(Self::of(DirHandle::root(folder, true)?))
    }

    fn of(folder: DirHandle) -> Self {
        Self { folder, synced: false, doubt: SyncDoubt::default() }
    }

    /// The same, where heads and checkpoints are to survive a loss of power.
    #[must_use]
    pub fn synced(self, synced: bool) -> Self {
        Self { synced, ..self }
    }

    /// Whether heads and checkpoints wait for the device.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Where these files are.
    pub fn path(&self) -> &Utf8Path {
        self.folder.path()
    }

    /// Stores a frozen head by its hash; one that is there already stays.
    pub fn put_head(&self, hash: &str, bytes: &[u8]) -> io::Result<()> {
        self.put_once(HEADS, named(hash)?, bytes)
    }

    /// Gives back a stored head.
    pub fn get_head(&self, hash: &str) -> io::Result<Vec<u8>> {
        self.folder.sub(HEADS, false)?.read(named(hash)?, SMALL_FILE_LIMIT)
    }

    /// Keeps what a file held under the name of that, which is given back.
    pub fn put_checkpoint(&self, bytes: &[u8]) -> io::Result<String> {
        let name = hash(bytes);
        self.put_once(CHECKPOINTS, &name, bytes)?;
        Ok(name)
    }

    fn put_once(&self, folder: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
        let folder = self.folder.sub(folder, true)?;
        if self.synced {
            // Written again even if it is there and whole: it may not be on the device, and after a failed sync the
            // kernel reports success for a file that it never wrote. Earlier records may need the old file, so it stays
            // until the new one is synced.
            return self.doubt.sync_after(|| folder.replace_synced(name, bytes), &[&self.folder]);
        }
        folder.put_once(name, bytes).map(drop)
    }

    /// Gives that back, if it is whole.
    pub fn get_checkpoint(&self, name: &str) -> io::Result<Vec<u8>> {
        let bytes = self.folder.sub(CHECKPOINTS, false)?.read(named(name)?, SMALL_FILE_LIMIT)?;
        if hash(&bytes) != name {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "what was kept is damaged"));
        }
        Ok(bytes)
    }

    /// Stores what is known of an agent beside its transcript; replaces what was there. Never synced: the records say
    /// the same, so that losing it costs nothing.
    pub fn put_agent_meta(&self, agent: &AgentId, bytes: &[u8]) -> io::Result<()> {
        self.folder.sub(SUBAGENTS, true)?.replace(&agent_meta_name(agent), bytes).map(drop)
    }

    pub fn get_agent_meta(&self, agent: &AgentId) -> io::Result<Vec<u8>> {
        self.folder.sub(SUBAGENTS, false)?.read(&agent_meta_name(agent), SMALL_FILE_LIMIT)
    }

    /// A new file for a result that is too large to show whole. Its name begins with the harmless part of the call's
    /// id, and has a random end so that no process can create it first.
    pub fn tool_result(&self, call: &CallId, limit: u64) -> io::Result<OutputFile> {
        let folder = self.folder.sub(TOOL_RESULTS, true)?;
        let call: String = call
            .as_str()
            .chars()
            .filter(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-'))
            .take(CALL_NAME_LIMIT)
            .collect();
        let name = format!("{call}-{}.txt", random_word());
        let file = folder.file(name.trim_start_matches('-'), How::New)?;
        Ok(OutputFile::new(file, folder.path().join(name.trim_start_matches('-')), limit))
    }

    /// The file of a task's output: a new one, or the old one to append to for a task that resumes.
    pub fn task_output(&self, task: &TaskId, limit: u64) -> io::Result<OutputFile> {
        let folder = self.folder.sub(TASKS, true)?;
        let name = task_name(task);
        let file = match folder.file(&name, How::New) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                folder.file(&name, How::AppendExisting)?
            }
            other => other?,
        };
        let mut output = OutputFile::new(file, folder.path().join(name), limit);
        output.written = output.file.metadata()?.len();
        Ok(output)
    }

    /// Makes the output of an agent's task a link to its transcript; an empty file where that fails. Gives
    /// the path.
    pub fn link_task(&self, agent: &AgentId) -> io::Result<Utf8PathBuf> {
        let folder = self.folder.sub(TASKS, true)?;
        let name = task_name(&agent.clone().into());
        let target = format!("../{SUBAGENTS}/{}", agent_name(agent));
        match folder.link(&name, &target) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(_) => drop(folder.file(&name, How::New)?),
        }
        Ok(folder.path().join(name))
    }

    /// Where the output of a task is.
    pub fn task_path(&self, task: &TaskId) -> Utf8PathBuf {
        self.folder.path().join(TASKS).join(task_name(task))
    }

    /// Part of a task's output from an offset on, at most `limit` bytes.
    pub fn read_task(&self, task: &TaskId, offset: u64, limit: usize) -> io::Result<Vec<u8>> {
        let file = self.folder.sub(TASKS, false)?.file(&task_name(task), How::Read)?;
        read_part(&file, offset, limit)
    }

    /// The end of a task's output, at most `limit` bytes, and where in the file it begins.
    pub fn task_tail(&self, task: &TaskId, limit: usize) -> io::Result<(u64, Vec<u8>)> {
        let file = self.folder.sub(TASKS, false)?.file(&task_name(task), How::Read)?;
        read_tail(&file, limit)
    }
}

/// A file that is added to up to a limit; what goes beyond it is counted, not kept.
#[derive(Debug)]
pub struct OutputFile {
    file: File,
    path: Utf8PathBuf,
    limit: u64,
    written: u64,
    dropped: u64,
}

impl OutputFile {
    fn new(file: File, path: Utf8PathBuf, limit: u64) -> Self {
        Self { file, path, limit, written: 0, dropped: 0 }
    }

    /// Adds bytes, as many as the limit leaves room for.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let room = usize::try_from(self.limit.saturating_sub(self.written)).unwrap_or(usize::MAX);
        let (kept, dropped) = bytes.split_at(room.min(bytes.len()));
        self.dropped += dropped.len() as u64;
        let mut rest = kept;
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.written += count as u64;
                    rest = &rest[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// The file itself, for callers that keep the limit in another way.
    pub fn into_file(self) -> File {
        self.file
    }

    /// Bytes in the file.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Bytes that did not fit.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Its end, at most `limit` bytes, and where in the file that begins.
    pub fn tail(&self, limit: usize) -> io::Result<(u64, Vec<u8>)> {
        read_tail(&self.file, limit)
    }

    /// Part of it from an offset on, at most `limit` bytes.
    pub fn read(&self, offset: u64, limit: usize) -> io::Result<Vec<u8>> {
        read_part(&self.file, offset, limit)
    }
}

fn read_tail(file: &File, limit: usize) -> io::Result<(u64, Vec<u8>)> {
    let start = file.metadata()?.len().saturating_sub(limit as u64);
    Ok((start, read_part(file, start, limit)?))
}

fn read_part(file: &File, offset: u64, limit: usize) -> io::Result<Vec<u8>> {
    let left = file.metadata()?.len().saturating_sub(offset);
    let mut bytes = vec![0; usize::try_from(left).unwrap_or(usize::MAX).min(limit)];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn named(name: &str) -> io::Result<&str> {
    if is_name(name) {
        return Ok(name);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("not a name: {name:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::faults;

    #[test]
    fn failed_sync_keeps_content_that_was_there_before() {
        let state = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(state.path()).unwrap();
        let hash = "0f".repeat(32);
        let files = SessionFiles::in_folder(path).unwrap().synced(true);
        files.put_head(&hash, b"head").unwrap();
        let checkpoint = files.put_checkpoint(b"before").unwrap();
        // Both are needed by earlier records. The same content comes again, and the disk does not sync.
        faults::fail_next_sync(path);
        files.put_head(&hash, b"head").unwrap_err();
        faults::fail_next_sync(path);
        files.put_checkpoint(b"before").unwrap_err();
        assert_eq!(files.get_head(&hash).unwrap(), b"head");
        assert_eq!(files.get_checkpoint(&checkpoint).unwrap(), b"before");
    }

    #[test]
    fn handle_whose_sync_failed_is_not_used_again() {
        let state = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(state.path()).unwrap();
        let files = SessionFiles::in_folder(path).unwrap().synced(true);
        let hash = "0f".repeat(32);
        faults::fail_next_sync(path);
        files.put_head(&hash, b"head").unwrap_err();
        let failed = faults::syncs(path);
        files.put_head(&hash, b"head").unwrap();
        let [renewed] = faults::syncs(path)[..] else { panic!("it is synced once") };
        assert_ne!(renewed.handle, failed[0].handle, "the handle that failed would report success");
        assert!(renewed.has_new, "what a failed sync dropped is not written by the next one");
        files.put_head(&hash, b"head").unwrap();
        assert_eq!(faults::syncs(path), failed, "once a sync went well, the first handle can be trusted");
    }

    #[test]
    fn notes_about_agents_are_not_synced() {
        let state = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(state.path()).unwrap();
        let files = SessionFiles::in_folder(path).unwrap().synced(true);
        let agent = "a1".parse().unwrap();
        files.put_agent_meta(&agent, b"{}").unwrap();
        assert_eq!(files.get_agent_meta(&agent).unwrap(), b"{}");
        for folder in [path, &path.join(SUBAGENTS)] {
            assert!(faults::syncs(folder).is_empty());
        }
    }
}
