//! The crate through its public face, with real processes under a real guard.
#![allow(clippy::disallowed_methods, reason = "tests watch and start processes from outside")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets the unexpected has failed")]

mod ends;
mod escapes;
mod flood;
mod git;
mod house;
mod limits;
mod orphans;
mod sandbox;
mod scopes;
mod shell;
mod strangers;
