//! Large strings outside their line. Takes a record that is too long, gives it back short with references;
//! takes such a record and gives back the whole.

use std::io::{self, Write};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::disk::{Blob, DiskAccess};
use crate::folder::{DirHandle, How};
use crate::layout::BLOBS;

/// A line longer than this spills its large strings.
pub(crate) const LINE_LIMIT: usize = 1 << 20;
/// A string of at least this length spills when its line must.
const STRING_LIMIT: usize = 16 << 10;
/// The largest blob that is read back.
const BLOB_LIMIT: u64 = 1 << 30;

/// Keeps strings by their hash.
pub(crate) trait BlobStore {
    /// Keeps a string and gives its name.
    fn put(&mut self, text: &str) -> io::Result<String>;
}

/// The `blobs` folder of a session, and what was put there and is not synced yet.
pub(crate) struct BlobFolder {
    session: DirHandle,
    folder: Option<DirHandle>,
    pub(crate) unsynced: Vec<Blob>,
    /// Whether the folder is new, or has new names, since the last sync took them.
    pub(crate) is_new: bool,
    pub(crate) has_names: bool,
}

/// More unsynced blobs than this are synced on the spot rather than held.
const UNSYNCED_LIMIT: usize = 16;

impl BlobFolder {
    pub(crate) fn new(session: DirHandle) -> Self {
        Self { session, folder: None, unsynced: Vec::new(), is_new: false, has_names: false }
    }

    /// The folder itself, if something was put there.
    pub(crate) fn folder(&self) -> Option<&DirHandle> {
        self.folder.as_ref()
    }

    /// Keeps a string under the name of its content, for a disk.
    pub(crate) fn put(&mut self, text: &str, disk: &dyn DiskAccess) -> io::Result<String> {
        let name = hash(text.as_bytes());
        if self.unsynced.iter().any(|blob| blob.name == name) {
            return Ok(name);
        }
        if self.folder.is_none() {
            self.is_new |= !self.session.has(BLOBS);
            self.folder = Some(self.session.sub(BLOBS, true)?);
        }
        let Some(folder) = &self.folder else { return Ok(name) };
        if self.unsynced.len() < UNSYNCED_LIMIT {
            let file = disk.adopt(folder.put_once(&name, text.as_bytes())?);
            let bytes = text.as_bytes().to_vec();
            self.unsynced.push(Blob { name: name.clone(), bytes, file: Some(file) });
        } else {
            // Written again even if it is there, because after a failed sync the next one proves nothing. Earlier
            // records may need the old file, so it stays until the new one is synced.
            folder.replace_with(&name, |file| {
                file.write_all(text.as_bytes())?;
                disk.adopt(file.try_clone()?).sync()
            })?;
        }
        self.has_names = true;
        Ok(name)
    }

    /// Gives each unsynced blob a handle that can be trusted: those whose sync failed are written anew.
    pub(crate) fn renew_unsynced(&mut self, disk: &dyn DiskAccess) -> io::Result<()> {
        for blob in self.unsynced.iter_mut().filter(|blob| blob.file.is_none()) {
            let folder = self.folder.as_ref().ok_or(io::ErrorKind::NotFound)?;
            blob.file = Some(disk.adopt(folder.replace(&blob.name, &blob.bytes)?));
            self.has_names = true;
        }
        Ok(())
    }
}

/// A folder of blobs on a disk.
pub(crate) struct BlobsOn<'a>(pub(crate) &'a mut BlobFolder, pub(crate) &'a dyn DiskAccess);

impl BlobStore for BlobsOn<'_> {
    fn put(&mut self, text: &str) -> io::Result<String> {
        self.0.put(text, self.1)
    }
}

/// Replaces the large strings of a record by references and gives the names of what was put away.
pub(crate) fn spill(record: &mut Value, store: &mut dyn BlobStore) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    walk(record, &mut |value| {
        if let Value::String(text) = value
            && text.len() >= STRING_LIMIT
        {
            let name = store.put(text)?;
            *value = json!({"$blob": name, "bytes": text.len()});
            names.push(name);
        }
        Ok(())
    })?;
    Ok(names)
}

/// Puts the strings back into a record, only those that its own list names, and gives the number that could not be
/// found whole; a sentence replaces those.
pub(crate) fn resolve(record: &mut Value, names: &[String], session: Option<&DirHandle>) -> usize {
    let folder = session.and_then(|session| session.sub(BLOBS, false).ok());
    let mut missing = 0;
    // The closure never fails, so neither does the walk.
    let _ = walk(record, &mut |value| {
        let Some(name) = reference(value).filter(|name| names.iter().any(|known| known == name)) else {
            return Ok(());
        };
        let text = folder.as_ref().and_then(|folder| read(folder, name));
        if text.is_none() {
            missing += 1;
        }
        *value = Value::String(text.unwrap_or_else(|| format!("[this content was lost: blob {name}]")));
        Ok(())
    });
    missing
}

fn read(folder: &DirHandle, name: &str) -> Option<String> {
    if folder.file(name, How::Read).ok()?.metadata().ok()?.len() > BLOB_LIMIT {
        return None;
    }
    let bytes = folder.read(name, BLOB_LIMIT).ok()?;
    if hash(&bytes) != name {
        return None;
    }
    String::from_utf8(bytes).ok()
}

fn reference(value: &Value) -> Option<&str> {
    let members = value.as_object()?;
    if members.len() != 2 || !members.contains_key("bytes") {
        return None;
    }
    members.get("$blob")?.as_str()
}

fn walk(value: &mut Value, visit: &mut dyn FnMut(&mut Value) -> io::Result<()>) -> io::Result<()> {
    visit(value)?;
    match value {
        Value::Array(items) => items.iter_mut().try_for_each(|item| walk(item, visit)),
        Value::Object(members) => members.iter_mut().try_for_each(|(_, member)| walk(member, visit)),
        _ => Ok(()),
    }
}

/// SHA-256 in lower hex.
pub(crate) fn hash(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
