//! Whether a program that was killed kept its word. Takes what was seen from outside before the kill and
//! the conversation it goes on with afterwards, gives everything that is missing, changed, or there twice.
//!
//! The evidence is the program's output, the bodies of the requests its model got, and a file to which each
//! scripted call appends a line; never the program's own files.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// What was seen from outside up to a kill, and what the program then says happened.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// The lines of stream-json it printed; the last may be torn.
    pub printed: Vec<String>,
    /// The bodies of the requests of the root's conversation before the kill, in order, as Anthropic
    /// messages.
    pub requests: Vec<Value>,
    /// The lines that calls appended to the effects file, before the kill and after.
    pub effects: Vec<String>,
    /// The body of the first request after the restart.
    pub resumed: Value,
}

/// What is wrong. All empty means that nothing acknowledged was lost and nothing was done twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub lost: Vec<String>,
    /// There more than once.
    pub duplicated: Vec<String>,
    /// There, but not as it was.
    pub changed: Vec<String>,
    /// There, but not where it was.
    pub disordered: Vec<String>,
    /// Calls without a result in the resumed conversation.
    pub open: Vec<String>,
}

impl Verdict {
    /// Whether there is nothing to complain about.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }
}

impl Evidence {
    /// Compares before and after.
    pub fn judge(&self) -> Verdict {
        let mut verdict = Verdict::default();
        let after = Conversation::of(messages(&self.resumed));
        verdict.duplicated.extend(after.twice.iter().cloned());
        let mut before = Conversation::default();
        for line in &self.printed {
            if let Ok(line) = serde_json::from_str::<Value>(line) {
                before.add_printed(&line);
            }
        }
        for request in &self.requests {
            before.add_all(messages(request));
        }
        compare(&before, &after, &mut verdict);
        self.judge_order(&after, &mut verdict);
        self.judge_effects(&after, &mut verdict);
        for call in &after.calls {
            if !after.results.contains_key(&call.id) {
                verdict.open.push(format!("call {}", call.id));
            }
        }
        verdict
    }

    /// The last request before the kill must be how the resumed one begins.
    fn judge_order(&self, after: &Conversation, verdict: &mut Verdict) {
        let Some(last) = self.requests.last() else { return };
        let before = Conversation::of(messages(last));
        let place = |id: &str| after.calls.iter().position(|call| call.id == id);
        let places: Vec<usize> = before.calls.iter().filter_map(|call| place(&call.id)).collect();
        if !places.is_sorted() {
            verdict.disordered.push("the calls of the last request".into());
        }
        for (at, (old, new)) in messages(last).iter().zip(messages(&self.resumed)).enumerate() {
            // What came with the next message may be more than what the last request had room for.
            if plain(old) != plain(new) && at + 1 < messages(last).len() {
                verdict.changed.push(format!("message {at}"));
            }
        }
        if messages(&self.resumed).len() < messages(last).len() {
            verdict.lost.push(format!("messages after {}", messages(&self.resumed).len()));
        }
    }

    /// Nothing was done twice, and everything that was done is known of.
    fn judge_effects(&self, after: &Conversation, verdict: &mut Verdict) {
        let mut seen = HashSet::new();
        for effect in self.effects.iter().filter(|effect| !effect.is_empty()) {
            if !seen.insert(effect) {
                verdict.duplicated.push(format!("effect {effect}"));
                continue;
            }
            if !after.calls.iter().any(|call| mentions(&call.input, effect)) {
                verdict.lost.push(format!("the call with the effect {effect}"));
            }
        }
    }
}

fn compare(before: &Conversation, after: &Conversation, verdict: &mut Verdict) {
    for call in &before.calls {
        match after.calls.iter().find(|other| other.id == call.id) {
            None => verdict.lost.push(format!("call {}", call.id)),
            Some(other) if other.input != call.input => verdict.changed.push(format!("call {}", call.id)),
            Some(_) => {}
        }
    }
    let mut ids: Vec<&String> = before.results.keys().collect();
    ids.sort();
    for id in ids {
        match after.results.get(id) {
            None => verdict.lost.push(format!("result of {id}")),
            Some(result) if *result != before.results[id] => verdict.changed.push(format!("result of {id}")),
            Some(_) => {}
        }
    }
    for text in &before.texts {
        if !after.texts.contains(text) {
            verdict.lost.push(format!("text {text:?}"));
        }
    }
}

#[derive(Default)]
struct Conversation {
    calls: Vec<Call>,
    /// The text of each result by its call.
    results: HashMap<String, String>,
    /// What the model said.
    texts: Vec<String>,
    twice: Vec<String>,
}

struct Call {
    id: String,
    input: Value,
}

impl Conversation {
    fn of(messages: &[Value]) -> Self {
        let mut conversation = Self::default();
        for message in messages {
            conversation.add(message, true);
        }
        conversation
    }

    /// Adds what is new; requests repeat what came before them.
    fn add_all(&mut self, messages: &[Value]) {
        for message in messages {
            self.add(message, false);
        }
    }

    /// A line of output: only whole messages of the root count, not provisional text.
    fn add_printed(&mut self, line: &Value) {
        let kind = line.get("type").and_then(Value::as_str);
        let of_root = line.get("parent_tool_use_id").is_none_or(Value::is_null);
        if matches!(kind, Some("assistant" | "user")) && of_root && line.get("isReplay").is_none() {
            let synthetic = line.pointer("/message/model").and_then(Value::as_str) == Some("<synthetic>");
            if let (false, Some(message)) = (synthetic, line.get("message")) {
                self.add(message, false);
            }
        }
    }

    fn add(&mut self, message: &Value, strict: bool) {
        let is_model = message.get("role").and_then(Value::as_str) == Some("assistant");
        for block in message.get("content").and_then(Value::as_array).into_iter().flatten() {
            let text = |name: &str| block.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            match block.get("type").and_then(Value::as_str) {
                Some("tool_use") => self.add_call(text("id"), &block["input"], strict),
                Some("tool_result") => self.add_result(text("tool_use_id"), block, strict),
                Some("text") if is_model && !self.texts.contains(&text("text")) => {
                    self.texts.push(text("text"));
                }
                _ => {}
            }
        }
    }

    fn add_call(&mut self, id: String, input: &Value, strict: bool) {
        if !self.calls.iter().any(|call| call.id == id) {
            self.calls.push(Call { id, input: input.clone() });
        } else if strict {
            self.twice.push(format!("call {id}"));
        }
    }

    fn add_result(&mut self, id: String, block: &Value, strict: bool) {
        let text = text_of(block.get("content").unwrap_or(&Value::Null));
        match self.results.entry(id) {
            Entry::Vacant(place) => {
                place.insert(text);
            }
            Entry::Occupied(place) if strict => self.twice.push(format!("result of {}", place.key())),
            Entry::Occupied(_) => {}
        }
    }
}

fn messages(request: &Value) -> &[Value] {
    request.get("messages").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A message without cache marks, which move from request to request, and with its content as a list.
fn plain(message: &Value) -> Value {
    match message {
        Value::Object(members) => {
            let kept = members.iter().filter(|(name, _)| *name != "cache_control");
            let plain: Map<String, Value> = kept.map(|(name, value)| (name.clone(), plain(value))).collect();
            Value::Object(plain)
        }
        Value::Array(items) => items.iter().map(plain).collect(),
        other => other.clone(),
    }
}

fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts = blocks.iter().filter_map(|block| block.get("text")?.as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// Whether some text in an input holds this word, not as a part of a longer one.
fn mentions(input: &Value, word: &str) -> bool {
    match input {
        Value::String(text) => text.match_indices(word).any(|(at, _)| {
            let edge = |next: Option<char>| {
                !next.is_some_and(|one| one.is_alphanumeric() || one == '_' || one == '-')
            };
            edge(text[..at].chars().next_back()) && edge(text[at + word.len()..].chars().next())
        }),
        Value::Array(items) => items.iter().any(|item| mentions(item, word)),
        Value::Object(members) => members.values().any(|value| mentions(value, word)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(id: &str, command: &str) -> Value {
        json!({"role": "assistant", "content": [
            {"type": "text", "text": format!("running {id}")},
            {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": command}}
        ]})
    }

    fn result(id: &str, text: &str) -> Value {
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text}]})
    }

    fn good() -> Evidence {
        let user = json!({"role": "user", "content": "go"});
        let first = call("t1", "echo e1 >> $EFFECTS");
        let second = call("t2", "echo e2 >> $EFFECTS");
        let shown = json!({"type": "assistant", "parent_tool_use_id": null, "message": second});
        let partial = json!({"type": "stream_event", "event": {}});
        Evidence {
            printed: vec![partial.to_string(), shown.to_string(), "{\"type\":\"assi".into()],
            requests: vec![
                json!({"messages": [user]}),
                json!({"messages": [user, first, result("t1", "ok")]}),
            ],
            effects: vec!["e1".into(), "e2".into()],
            resumed: json!({"messages": [
                user, first, result("t1", "ok"), second, result("t2", "interrupted, outcome unknown")
            ]}),
        }
    }

    #[test]
    fn a_program_that_kept_its_word_is_clean() {
        assert_eq!(good().judge(), Verdict::default());
    }

    #[test]
    fn a_shown_call_that_is_gone_is_lost() {
        let mut evidence = good();
        evidence.resumed["messages"].as_array_mut().unwrap().truncate(3);
        let verdict = evidence.judge();
        assert_eq!(verdict.lost, ["call t2", "text \"running t2\"", "the call with the effect e2"]);
    }

    #[test]
    fn a_sent_result_that_is_another_is_changed() {
        let mut evidence = good();
        evidence.resumed["messages"][2] = result("t1", "interrupted");
        assert_eq!(evidence.judge().changed, ["result of t1"]);
    }

    #[test]
    fn a_sent_message_that_is_another_is_changed() {
        let mut evidence = good();
        evidence.resumed["messages"][0] = json!({"role": "user", "content": "went"});
        assert_eq!(evidence.judge().changed, ["message 0"]);
    }

    #[test]
    fn an_effect_that_came_twice_is_duplicated() {
        let mut evidence = good();
        evidence.effects.push("e1".into());
        assert_eq!(evidence.judge().duplicated, ["effect e1"]);
    }

    #[test]
    fn a_call_that_stands_twice_is_duplicated() {
        let mut evidence = good();
        let again = evidence.resumed["messages"][1].clone();
        evidence.resumed["messages"].as_array_mut().unwrap().push(again);
        assert_eq!(evidence.judge().duplicated, ["call t1"]);
    }

    #[test]
    fn a_call_without_a_result_is_open() {
        let mut evidence = good();
        evidence.resumed["messages"].as_array_mut().unwrap().truncate(4);
        assert_eq!(evidence.judge().open, ["call t2"]);
    }

    #[test]
    fn calls_in_another_order_are_disordered() {
        let mut evidence = good();
        evidence.requests.push(evidence.resumed.clone());
        evidence.resumed["messages"].as_array_mut().unwrap().swap(1, 3);
        evidence.resumed["messages"].as_array_mut().unwrap().swap(2, 4);
        assert_eq!(evidence.judge().disordered, ["the calls of the last request"]);
    }

    #[test]
    fn cache_marks_may_move_and_effects_are_whole_words() {
        let mut evidence = good();
        evidence.resumed["messages"][2]["content"][0]["cache_control"] = json!({"type": "ephemeral"});
        assert!(evidence.judge().is_clean());
        evidence.effects.push("e".into());
        assert_eq!(evidence.judge().lost, ["the call with the effect e"]);
    }
}
