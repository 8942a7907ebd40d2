//! `--debug-file`: what the parts of the program say for those who look for a fault. Takes the events of
//! `tracing`, gives one JSON line each, appended to a file that only its owner reads.
//!
//! The program opens no spans, so a whole subscriber library would be mostly unused.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::{Mutex, PoisonError};

use camino::Utf8Path;
use decurion_protocol::Clock as _;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::clock::SystemClock;
use crate::report::Failure;

/// Writes everything from now on to this file.
pub fn start(path: &Utf8Path) -> Result<(), Failure> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| Failure::usage(format!("--debug-file: cannot open {path}: {error}")))?;
    tracing::subscriber::set_global_default(DebugLog(Mutex::new(file)))
        .map_err(|error| Failure::failed(format!("--debug-file: {error}")))
}

struct DebugLog(Mutex<File>);

impl Subscriber for DebugLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("decurion")
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(Map::new());
        let metadata = event.metadata();
        fields.0.insert("at".into(), SystemClock::new().date().to_string().into());
        fields.0.insert("level".into(), metadata.level().as_str().into());
        fields.0.insert("from".into(), metadata.target().into());
        event.record(&mut fields);
        let line = format!("{}\n", Value::Object(fields.0));
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A log that cannot be written must not stop what it tells about.
        let _ = file.write_all(line.as_bytes());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }
}
