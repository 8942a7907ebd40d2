//! The doors for programs and scripts. Takes a [`decurion_protocol::Link`] and a prompt, gives lines: the
//! answer, one JSON object, or a JSON line per event. This crate cannot name the engine.

pub mod headless;
pub mod progress;
pub mod stream_json;

pub use headless::{Finish, Format, Headless, Lines, Progress, Signal};
pub use stream_json::{Facts, StreamJson};
