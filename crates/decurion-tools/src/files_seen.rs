//! What a run has read or written so far. Takes the effects of its calls; tells whether a file is still
//! what the run believes it to be, so that an edit is never blind.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use camino::Utf8Path;
use decurion_protocol::ToolEffect;
use sha2::{Digest, Sha256};

/// Path → hash of the content last read or written. A value: a call gets a snapshot, and what it changes
/// comes back as effects from which the run makes the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesSeen {
    // Shared text, so that the next snapshot costs a count per file and no copy.
    files: HashMap<Arc<str>, Arc<str>>,
}

/// How a file's content now relates to what the run knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The run has never seen it.
    Unseen,
    /// It is another content than the run saw.
    Changed,
    /// It is what the run saw.
    Current,
}

impl FilesSeen {
    /// The next snapshot: this one and what these effects saw. The same one where they saw nothing.
    #[must_use]
    pub fn with(self: &Arc<Self>, effects: &[ToolEffect]) -> Arc<Self> {
        let mut next = Arc::clone(self);
        for effect in effects {
            if let ToolEffect::Saw { path, hash } = effect {
                Arc::make_mut(&mut next).files.insert(path.as_str().into(), hash.as_str().into());
            }
        }
        next
    }

    /// How this content of a file relates to what was seen. The path is the one without links.
    pub fn freshness(&self, path: &Utf8Path, content_hash: &str) -> Freshness {
        match self.files.get(path.as_str()) {
            None => Freshness::Unseen,
            Some(hash) if **hash == *content_hash => Freshness::Current,
            Some(_) => Freshness::Changed,
        }
    }

    /// How many files were seen.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

/// SHA-256 of a content as lower hex: the hash in [`ToolEffect::Saw`].
pub fn content_hash(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}

/// The effect of having seen a file with this content.
pub(crate) fn saw(path: &Utf8Path, hash: String) -> ToolEffect {
    ToolEffect::Saw { path: path.to_owned(), hash }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_does_not_change_and_the_next_one_knows_more() {
        let path = Utf8Path::new("/a");
        let first = Arc::new(FilesSeen::default());
        let second = first.with(&[saw(path, content_hash(b"one"))]);
        let third = second.with(&[saw(path, content_hash(b"two"))]);

        assert_eq!(first.freshness(path, &content_hash(b"one")), Freshness::Unseen);
        assert_eq!(second.freshness(path, &content_hash(b"one")), Freshness::Current);
        assert_eq!(second.freshness(path, &content_hash(b"two")), Freshness::Changed);
        assert_eq!(third.freshness(path, &content_hash(b"two")), Freshness::Current);
        assert!(Arc::ptr_eq(&third, &third.with(&[ToolEffect::Moved { cwd: "/b".into() }])));
    }

    #[test]
    fn the_hash_is_the_usual_one() {
        assert_eq!(content_hash(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
