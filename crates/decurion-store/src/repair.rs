//! A line of ours with members that are not as we write them. Takes its JSON, gives it without what cannot be
//! understood: a person's edit, or a member of a later version, costs that member and not the record.

use decurion_protocol::event::{Origin, Timing};
use decurion_protocol::{Delivery, LineId, Money, Role, ToolEffect, Usage};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::blob::hash;

/// Whether a value is what a member should be.
type Fits = fn(&Value) -> bool;

/// The members of a line that it can do without. `agentId` is not among them: without it the line would be the
/// root's.
const LINE: [(&str, Fits); 14] = [
    ("parentUuid", fits::<Option<LineId>>),
    ("logicalParentUuid", fits::<Option<LineId>>),
    ("uuid", fits::<LineId>),
    ("timestamp", fits::<Timestamp>),
    ("tool", fits::<String>),
    ("durationMs", fits::<u64>),
    ("note", fits::<String>),
    ("requestId", fits::<String>),
    ("isApiErrorMessage", fits::<bool>),
    ("apiErrorStatus", fits::<u16>),
    ("costNanos", fits::<Money>),
    ("timing", fits::<Timing>),
    ("block", fits::<usize>),
    ("blocks", fits::<usize>),
];

/// The members of its message that it can do without.
const MESSAGE: [(&str, Fits); 5] = [
    ("role", fits::<Role>),
    ("id", fits::<Option<String>>),
    ("model", fits::<Option<String>>),
    ("stop_reason", fits::<Option<String>>),
    ("usage", fits::<Option<Usage>>),
];

/// The members of what is known of a message.
const META: [(&str, Fits); 8] = [
    ("origin", fits::<Origin>),
    ("message_id", fits::<String>),
    ("request_id", fits::<String>),
    ("model", fits::<String>),
    ("stop_reason", fits::<String>),
    ("usage", fits::<Usage>),
    ("cost", fits::<Money>),
    ("timing", fits::<Timing>),
];

/// Takes out of a line what is not as we write it, and puts in what every line has. `date` is that of the line
/// before, and `bytes` are the line's own.
pub(crate) fn line(record: &mut Value, date: Timestamp, bytes: &[u8]) {
    let Some(members) = record.as_object_mut() else { return };
    drop_unfit(members, &LINE);
    // A mark that cannot be read is one that is not understood.
    if members.get("must").is_some_and(|must| !fits::<u64>(must)) {
        members.insert("must".to_owned(), json!(u64::MAX));
    }
    keep_fitting(members, "effects", fits::<ToolEffect>);
    members.entry("timestamp").or_insert_with(|| json!(date));
    let kind = members.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    if kind == "decurion" {
        return;
    }
    // Its own id is gone: one that is the same whenever it is read.
    members.entry("uuid").or_insert_with(|| json!(Uuid::from_u128(id_of(bytes))));
    if members.contains_key("tool") {
        members.entry("durationMs").or_insert_with(|| json!(0));
    }
    if let Some(origin) = members.remove("from") {
        if fits::<Origin>(&origin) {
            members.insert("from".to_owned(), origin);
        } else {
            // Not a prompt of a person: an unknown origin must not count as one.
            members.entry("note").or_insert_with(|| json!(word_of(&origin)));
        }
    }
    if let Some(message) = members.get_mut("message").and_then(Value::as_object_mut) {
        mend_message(message, &kind);
    }
    if let Some(meta) = members.get_mut("meta").and_then(Value::as_object_mut) {
        drop_unfit(meta, &META);
        keep_fitting(meta, "delivers", fits::<Delivery>);
        keep_fitting(meta, "skills", fits::<String>);
        keep_fitting(meta, "effects", fits::<ToolEffect>);
    }
    let kept = members.get_mut("compactMetadata").and_then(|metadata| metadata.get_mut("preservedMessages"));
    if let Some(kept) = kept.and_then(Value::as_object_mut) {
        keep_fitting(kept, "uuids", fits::<LineId>);
    }
}

fn mend_message(message: &mut Map<String, Value>, kind: &str) {
    drop_unfit(message, &MESSAGE);
    message.entry("role").or_insert_with(|| json!(if kind == "assistant" { "assistant" } else { "user" }));
    if let Some(content) = message.get_mut("content")
        && !content.is_string()
        && !content.is_array()
    {
        *content = Value::String(content.to_string());
    }
}

fn fits<T: DeserializeOwned>(value: &Value) -> bool {
    T::deserialize(value).is_ok()
}

fn drop_unfit(members: &mut Map<String, Value>, known: &[(&str, Fits)]) {
    for (name, fits) in known {
        if members.get(*name).is_some_and(|value| !fits(value)) {
            members.remove(*name);
        }
    }
}

fn keep_fitting(members: &mut Map<String, Value>, name: &str, fits: Fits) {
    match members.get_mut(name) {
        Some(Value::Array(items)) => items.retain(fits),
        Some(_) => drop(members.remove(name)),
        None => {}
    }
}

/// The tag of a variant that this version does not know.
fn word_of(value: &Value) -> String {
    let tag = value.as_object().and_then(|members| members.keys().next().cloned());
    tag.or_else(|| value.as_str().map(str::to_owned)).unwrap_or_else(|| "unknown".to_owned())
}

fn id_of(bytes: &[u8]) -> u128 {
    u128::from_str_radix(&hash(bytes)[..32], 16).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_cannot_be_understood_costs_only_itself() {
        let mut record = json!({
            "type": "user", "uuid": "no id", "timestamp": "2026-99-99T00:00:00Z", "parentUuid": 7,
            "message": {"role": "robot", "content": "hello", "usage": "much"},
            "meta": {"delivers": [{"what": "later"}], "skills": ["a", 1], "cost": "free"},
            "from": {"oracle": 1}, "effects": "none",
        });
        line(&mut record, Timestamp::UNIX_EPOCH, b"the line");
        let id = record["uuid"].as_str().and_then(|id| Uuid::parse_str(id).ok());
        assert!(id.is_some_and(|id| !id.is_nil()));
        record.as_object_mut().map(|members| members.remove("uuid"));
        let expected = json!({
            "type": "user", "timestamp": "1970-01-01T00:00:00Z", "note": "oracle",
            "message": {"role": "user", "content": "hello"}, "meta": {"delivers": [], "skills": ["a"]},
        });
        assert_eq!(record, expected);
    }
}
