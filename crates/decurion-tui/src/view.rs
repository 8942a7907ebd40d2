//! What is drawn. Each file takes a part of the state and gives lines or fills a part of the screen.

pub mod agents;
pub mod danger;
pub mod diff;
pub mod item;
pub mod markdown;
pub mod popup;
pub mod question;
pub mod status;
pub mod streaming;
pub mod table;
pub mod todos;
pub mod working;
