//! The few things a writer asks of a file, so that tests can make each of them fail, and the half of a sync
//! that may run on another thread.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use decurion_protocol::AgentId;

use crate::folder::DirHandle;

/// A file that is appended to.
pub(crate) trait DiskFile: Send {
    /// Adds at the end; may take only a part.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Cuts to a length.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
    /// Puts the content on the device.
    fn sync(&mut self) -> io::Result<()>;
    /// Overwrites from an offset on. Only for a file that was not opened for appending.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Another handle of the same file.
    fn twin(&self) -> io::Result<Box<dyn DiskFile>>;
}

/// What stands between the writer and its files.
pub(crate) trait DiskAccess: Send {
    /// Takes a file that was just opened.
    fn adopt(&self, file: File) -> Box<dyn DiskFile>;
}

/// The disk as it is.
pub(crate) struct RealDisk;

impl DiskAccess for RealDisk {
    fn adopt(&self, file: File) -> Box<dyn DiskFile> {
        Box::new(file)
    }
}

impl DiskFile for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(self, bytes)
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn twin(&self) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(self.try_clone()?))
    }
}

/// Which file of a session: an agent's, or the session's own.
pub(crate) type FileKey = Option<AgentId>;

/// What must be synced, cut loose from the writer. [`SyncJob::run`] may take long and may run anywhere.
#[must_use = "a job that is not run syncs nothing"]
pub struct SyncJob {
    pub(crate) files: Vec<SyncFile>,
    /// Content that lines refer to.
    pub(crate) blobs: Vec<Blob>,
    /// Folders with new names in them.
    pub(crate) folders: Vec<(FolderRef, DirHandle)>,
}

/// A folder of a session, or one that leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FolderRef {
    Home,
    /// That of all projects.
    Projects,
    Project,
    Session,
    /// That of its agents' files.
    Subagents,
    /// That of its blobs.
    Blobs,
}

pub(crate) struct SyncFile {
    pub(crate) key: FileKey,
    pub(crate) file: Box<dyn DiskFile>,
    pub(crate) through: u64,
}

/// Content of a file that may not be on the device yet, with what is needed to write it anew: after a failed sync the
/// kernel may have dropped it, and a second sync of the same handle would still succeed.
pub(crate) struct Blob {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// None once a sync of it has failed.
    pub(crate) file: Option<Box<dyn DiskFile>>,
}

/// What a [`SyncJob`] achieved; goes back to the journal it came from.
#[must_use = "a journal must hear what was synced"]
pub struct Synced {
    pub(crate) files: Vec<(FileKey, u64, io::Result<()>)>,
    /// Those that could not be synced.
    pub(crate) blobs: Vec<Blob>,
    pub(crate) folders: Vec<FolderRef>,
    pub(crate) error: Option<io::Error>,
}

impl SyncJob {
    /// Syncs everything in it; blobs before the lines that name them.
    pub fn run(self) -> Synced {
        let mut synced = Synced { files: Vec::new(), blobs: Vec::new(), folders: Vec::new(), error: None };
        for mut blob in self.blobs {
            if let Some(mut file) = blob.file.take()
                && let Err(error) = file.sync()
            {
                synced.blobs.push(blob);
                synced.error = Some(error);
            }
        }
        for SyncFile { key, mut file, through } in self.files {
            let result = file.sync();
            synced.files.push((key, through, result));
        }
        for (place, folder) in self.folders {
            if let Err(error) = folder.sync() {
                synced.folders.push(place);
                synced.error = Some(error);
            }
        }
        synced
    }
}
