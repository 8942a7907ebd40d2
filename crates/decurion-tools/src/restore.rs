//! Files as they were. Takes a path that is about to be changed, gives what it holds; takes what it held before and
//! puts that there again, as a whole or not at all, without following a link.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use tokio_util::sync::CancellationToken;

use crate::files::{Existing, FileAccess, Target, leads_to};
pub use crate::patch::line_counts;
use crate::{FilesSeen, PathRules, Surroundings, ToolLimits};

/// The tools that change a file that they name: what it held before can be kept. What a command changes is not known.
pub const TRACKED: [&str; 3] = ["Edit", "Write", "NotebookEdit"];

/// What a path held when it was looked at.
pub struct Held {
    target: Target,
    existing: Option<Existing>,
    access: FileAccess,
}

impl Held {
    /// Looks at a file of at most `limit` bytes, wherever links inside the allowed directories lead. The error is why
    /// that cannot be done, in words.
    pub fn look(
        around: &Surroundings,
        rules: Arc<dyn PathRules>,
        limits: &Arc<ToolLimits>,
        path: &Utf8Path,
        limit: u64,
    ) -> Result<Self, String> {
        let access = FileAccess {
            around: around.clone(),
            rules,
            seen: Arc::new(FilesSeen::default()),
            limits: Arc::clone(limits),
            cancel: CancellationToken::new(),
        };
        let target = Target::open(&access, path).map_err(|error| error.to_string())?;
        let existing = target.existing(limit).map_err(|error| error.to_string())?;
        Ok(Self { target, existing, access })
    }

    /// The same for a path that holds no links: one that does now is not followed.
    pub fn look_exactly(
        around: &Surroundings,
        rules: Arc<dyn PathRules>,
        limits: &Arc<ToolLimits>,
        path: &Utf8Path,
        limit: u64,
    ) -> Result<Self, String> {
        let link = || format!("a link stands on this path now and is not followed: {path}");
        let is_exact = |there: &Utf8Path| if there == path { Ok(()) } else { Err(link()) };
        is_exact(&leads_to(path).map_err(|error| error.to_string())?)?;
        let held = Self::look(around, rules, limits, path, limit)?;
        // Whoever can change links may have done so since.
        is_exact(held.path())?;
        Ok(held)
    }

    /// The path without links.
    pub fn path(&self) -> &Utf8PathBuf {
        &self.target.path
    }

    /// What it holds; none where there is no file.
    pub fn content(&self) -> Option<&[u8]> {
        self.existing.as_ref().map(|existing| existing.content.as_slice())
    }

    /// SHA-256 of that in lower hex.
    pub fn hash(&self) -> Option<&str> {
        self.existing.as_ref().map(|existing| existing.hash.as_str())
    }

    pub fn mode(&self) -> Option<u32> {
        self.existing.as_ref().map(Existing::mode)
    }

    /// Puts this content there, unless someone changed the file since it was looked at. A file that is gone comes back
    /// with these permissions; one that is there keeps its own.
    pub fn put_back(self, content: &[u8], mode: u32) -> Result<(), String> {
        let Self { target, existing, mut access } = self;
        access.limits = Arc::new(ToolLimits { new_file_mode: mode, ..(*access.limits).clone() });
        target.write(&access, content, existing.as_ref()).map(drop).map_err(|error| error.to_string())
    }

    /// Takes the file away, unless someone changed it since it was looked at.
    pub fn take_away(self) -> Result<(), String> {
        let Some(existing) = &self.existing else { return Ok(()) };
        self.target.remove(existing).map_err(|error| error.to_string())
    }
}
