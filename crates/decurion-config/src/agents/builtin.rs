//! The definitions that are part of Decurion: the same Markdown that users write. Takes nothing, gives their
//! texts, in the order in which models are told of them.

/// Name and text of each.
pub(crate) const ALL: &[(&str, &str)] = &[
    ("general-purpose", include_str!("../builtin/general-purpose.md")),
    ("Explore", include_str!("../builtin/explore.md")),
    ("Plan", include_str!("../builtin/plan.md")),
    ("Verification", include_str!("../builtin/verification.md")),
    ("guide", include_str!("../builtin/guide.md")),
    ("statusline-setup", include_str!("../builtin/statusline-setup.md")),
    (FORK, include_str!("../builtin/fork.md")),
];

/// The one that no file may replace: what it does is the engine's.
pub(crate) const FORK: &str = "fork";
