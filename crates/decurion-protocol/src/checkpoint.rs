//! What files held before they were changed, and the result of putting them back.

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

/// What a file held before a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "was", rename_all = "snake_case")]
pub enum FileBefore {
    Missing,
    /// This, kept in the session's folder.
    Kept {
        /// The name of what is kept: SHA-256 of the content in lower hex.
        hash: String,
        mode: u32,
    },
    /// It is not known any more.
    NotKept {
        reason: String,
    },
}

/// The result of putting files back, or what it would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rewound {
    /// Why it cannot be done, or not wholly; none if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The files that are other than they were.
    pub files: Vec<Utf8PathBuf>,
    /// Lines that putting them back adds.
    pub insertions: u64,
    /// Lines that it takes away.
    pub deletions: u64,
}

impl Rewound {
    /// It cannot be done.
    pub fn failed(error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..Self::default() }
    }
}
