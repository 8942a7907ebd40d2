//! Lines within the limit of hosts. Takes a line as JSON, gives its bytes: a text that is too long is cut, with a note
//! that names the place of the whole. A cut input that a host gives back is put together again.

use decurion_protocol::size::size_of;
use serde_json::{Map, Value, json};

/// The most bytes of a line. Hosts give up at 1 MiB, the end of the line included.
pub const MOST_BYTES: usize = 1_000_000;

/// How every note of a cut begins: no one writes this by accident.
const MARK: &str = "… [cut here by decurion: ";
/// The name under which an object says that members were left out.
const LEFT_OUT: &str = "…";
/// Texts and containers below this are not worth cutting.
const SMALL: usize = 2_048;
/// How much of a picture is too much.
const LARGE_MEDIA: usize = 64 * 1024;
/// The parts of a line that give it its shape; only what is in them is cut.
const SHAPE: [&str; 8] =
    ["message", "content", "request", "response", "event", "delta", "content_block", "compact_metadata"];

/// How deep that goes: to a block of a message.
const SHAPE_DEPTH: usize = 4;

/// A line that fits.
#[derive(Debug)]
pub struct Fitted {
    /// Its bytes, without the end of the line.
    pub bytes: Vec<u8>,
    /// What it says, where that is less than it should.
    pub cut: Option<Value>,
}

/// The bytes of a line. `place` says where the whole of what it tells is kept.
pub fn line(value: &Value, place: &str) -> Fitted {
    within(value, place, MOST_BYTES)
}

fn within(value: &Value, place: &str, most: usize) -> Fitted {
    let bytes = value.to_string().into_bytes();
    if bytes.len() <= most {
        return Fitted { bytes, cut: None };
    }
    let mut shorter = value.clone();
    let note = CutNote { place: place.to_owned() };
    note.without_media(&mut shorter);
    let mut size = size_of(&shorter);
    while size > most {
        let before = size;
        note.shorten(&mut shorter, size - most);
        size = size_of(&shorter);
        if size >= before {
            // Nothing in it can be cut: what is left says what it was.
            shorter = note.instead_of(value);
            break;
        }
    }
    Fitted { bytes: shorter.to_string().into_bytes(), cut: Some(shorter) }
}

/// What a host means by a value that it was shown cut. A cut text must come back in its place and as it was shown, and
/// is whole then; other parts may come back changed. None otherwise: a host that changes, moves or leaves out a cut
/// text would lose the rest of it, so its meaning is unknown.
pub fn restored(given: &Value, shown: &Value, whole: &Value) -> Option<Value> {
    if given == shown {
        return Some(whole.clone());
    }
    if shown == whole {
        return unmarked(given);
    }
    match (given, shown, whole) {
        (Value::Object(given), Value::Object(shown), Value::Object(whole)) => {
            restored_members(given, shown, whole).map(Value::Object)
        }
        (Value::Array(given), Value::Array(shown), Value::Array(whole)) => {
            restored_items(given, shown, whole).map(Value::Array)
        }
        _ => None,
    }
}

fn restored_members(given: &Members, shown: &Members, whole: &Members) -> Option<Members> {
    let note =
        shown.get(LEFT_OUT).filter(|note| left_out(note).is_some() && whole.get(LEFT_OUT) != Some(note));
    let is_cut = |(key, value): &(&String, &Value)| whole.get(*key) != Some(value);
    if (note.is_some() && given.get(LEFT_OUT) != note)
        || shown.iter().filter(is_cut).any(|(key, _)| !given.contains_key(key))
    {
        return None;
    }
    let part = |(key, value): (&String, &Value)| {
        let value = match (shown.get(key), whole.get(key)) {
            (Some(shown), Some(whole)) => restored(value, shown, whole)?,
            _ => unmarked(value)?,
        };
        (!key.contains(MARK)).then(|| (key.clone(), value))
    };
    let said = given.iter().filter(|(key, _)| note.is_none() || *key != LEFT_OUT);
    let mut members = said.map(part).collect::<Option<Members>>()?;
    if note.is_some() {
        let unseen = whole.iter().filter(|(key, _)| *key == LEFT_OUT || !shown.contains_key(*key));
        members.extend(unseen.map(|(key, value)| (key.clone(), value.clone())));
    }
    Some(members)
}

/// Item by item. The last one of a list that was cut stands for the rest of it.
fn restored_items(given: &[Value], shown: &[Value], whole: &[Value]) -> Option<Vec<Value>> {
    let is_cut = |note: &Value, at: usize| {
        left_out(note).is_some() && whole.get(at..) != Some(std::slice::from_ref(note))
    };
    let (same, rest) = match shown.split_last() {
        Some((note, seen)) if is_cut(note, seen.len()) => {
            let said = given.split_last().filter(|(last, said)| *last == note && said.len() == seen.len());
            (said?.1, whole.get(seen.len()..)?)
        }
        _ if given.len() == shown.len() && shown.len() == whole.len() => (given, &[][..]),
        _ => return None,
    };
    let parts =
        same.iter().zip(shown).zip(whole).map(|((given, shown), whole)| restored(given, shown, whole));
    parts.chain(rest.iter().cloned().map(Some)).collect()
}

/// How many parts this note of a cut says were left out; none if it is no such note.
fn left_out(note: &Value) -> Option<usize> {
    let text = note.as_str().or_else(|| note.get("text")?.as_str())?;
    let (count, rest) = text.strip_prefix(MARK)?.split_once(' ')?;
    let is_of_parts = rest.starts_with("items left out; ") || rest.starts_with("members left out; ");
    count.parse().ok().filter(|_| is_of_parts)
}

fn unmarked(value: &Value) -> Option<Value> {
    (!value.to_string().contains(MARK)).then(|| value.clone())
}

type Members = Map<String, Value>;

struct CutNote {
    place: String,
}

impl CutNote {
    fn text(&self, left_out: usize) -> String {
        format!("{MARK}{left_out} bytes left out; {}]", self.place)
    }

    /// Replaces pictures and documents that are too large: part of one is none.
    fn without_media(&self, value: &mut Value) {
        let data = value.pointer("/source/data").and_then(Value::as_str).map(str::len);
        if let (Some(length @ LARGE_MEDIA..), Some("image" | "document")) =
            (data, value.get("type").and_then(Value::as_str))
        {
            *value = json!({"type": "text", "text": self.text(length)});
            return;
        }
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| self.without_media(item)),
            Value::Object(members) => members.values_mut().for_each(|member| self.without_media(member)),
            _ => {}
        }
    }

    /// Takes something away: of the largest thing that holds a fair part of what is too much.
    fn shorten(&self, line: &mut Value, excess: usize) {
        let share = (excess / 8).max(SMALL);
        let (mut at, mut is_shape) = (line, true);
        for depth in 1.. {
            let Some((place, size)) = largest(at) else { break };
            if !is_shape && size < share {
                break;
            }
            is_shape &= depth < SHAPE_DEPTH
                && match &place {
                    CutPlace::Member(name) => SHAPE.contains(&name.as_str()),
                    CutPlace::Item(_) => true,
                };
            let next = match place {
                CutPlace::Member(name) => at.get_mut(name),
                CutPlace::Item(index) => at.get_mut(index),
            };
            let Some(next) = next else { return };
            at = next;
        }
        self.cut(at, excess);
    }

    fn cut(&self, value: &mut Value, excess: usize) {
        match value {
            Value::String(text) => self.cut_text(text, excess),
            Value::Array(items) => self.cut_items(items),
            Value::Object(members) => self.cut_members(members),
            _ => {}
        }
    }

    /// Cuts a text, at a character, so that it is shorter by about so much on the wire, where one byte of it may take
    /// six.
    fn cut_text(&self, text: &mut String, excess: usize) {
        let wire = size_of(text.as_str());
        let keep =
            wire.saturating_sub(excess + self.place.len() + SMALL).saturating_mul(text.len()) / wire.max(1);
        let keep = text.floor_char_boundary(keep.min(text.len() - text.len() / 8));
        let left_out = text.len() - keep;
        text.truncate(keep);
        text.push_str(&self.text(left_out));
    }

    /// Keeps the first half of a list, with a note at its end, which is a block where it is a list of such things.
    fn cut_items(&self, items: &mut Vec<Value>) {
        let before = items.last().and_then(left_out);
        items.truncate(items.len() - usize::from(before.is_some()));
        let (all, kept) = (items.len(), items.len() / 2);
        let text =
            format!("{MARK}{} items left out; {}]", all - kept + before.unwrap_or_default(), self.place);
        let is_text = !items.first().is_some_and(Value::is_object);
        items.truncate(kept);
        items.push(if is_text { Value::String(text) } else { json!({"type": "text", "text": text}) });
    }

    fn cut_members(&self, members: &mut Members) {
        let before = members.get(LEFT_OUT).and_then(left_out);
        if before.is_some() {
            members.shift_remove(LEFT_OUT);
        }
        let (all, kept) = (members.len(), members.len() / 2);
        let short = |name: String| match name.len() {
            0..=SMALL => name,
            _ => format!("{}{MARK}the name]", &name[..name.floor_char_boundary(256)]),
        };
        let old = std::mem::take(members);
        members.extend(old.into_iter().take(kept).map(|(name, value)| (short(name), value)));
        let left_out = all - kept + before.unwrap_or_default();
        let text = format!("{MARK}{left_out} members left out; {}]", self.place);
        members.insert(LEFT_OUT.to_owned(), Value::String(text));
    }

    /// The replacement for a line that cannot be cut.
    fn instead_of(&self, value: &Value) -> Value {
        let plain = |name: &str| value.get(name).filter(|member| size_of(member) < SMALL).cloned();
        let names =
            ["type", "subtype", "uuid", "session_id", "request_id", "parent_tool_use_id", "tool_use_id"];
        let mut members: Map<String, Value> =
            names.iter().filter_map(|name| Some(((*name).to_owned(), plain(name)?))).collect();
        members.insert("cut".to_owned(), Value::String(self.text(size_of(value))));
        Value::Object(members)
    }
}

enum CutPlace {
    Member(String),
    Item(usize),
}

/// The largest part of a value and its size; none if it has no parts.
fn largest(value: &Value) -> Option<(CutPlace, usize)> {
    match value {
        Value::Object(members) => {
            let sized = members.iter().map(|(name, member)| (name, size_of(member)));
            sized.max_by_key(|(_, size)| *size).map(|(name, size)| (CutPlace::Member(name.clone()), size))
        }
        Value::Array(items) => {
            let sized = items.iter().map(size_of).enumerate();
            sized.max_by_key(|(_, size)| *size).map(|(index, size)| (CutPlace::Item(index), size))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn checked(value: &Value) -> Fitted {
        let fitted = line(value, "all of it is in /s/x.jsonl");
        assert!(fitted.bytes.len() <= MOST_BYTES, "{}", fitted.bytes.len());
        let read: Value = serde_json::from_slice(&fitted.bytes).unwrap();
        for name in ["type", "uuid", "session_id"] {
            assert_eq!(read.get(name), value.get(name), "{name}");
        }
        fitted
    }

    fn user(content: &Value, result: &Value) -> Value {
        json!({
            "type": "user", "uuid": "u", "session_id": "s", "parent_tool_use_id": null,
            "message": {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": content, "is_error": false},
            ]},
            "tool_use_result": result,
        })
    }

    #[test]
    fn what_fits_is_as_it_is() {
        let value = user(&json!("x".repeat(900_000)), &json!(1));
        let fitted = checked(&value);
        assert_eq!(serde_json::from_slice::<Value>(&fitted.bytes).unwrap(), value);
        assert!(fitted.cut.is_none());
    }

    #[test]
    fn a_long_text_is_cut_at_a_character_and_names_the_file() {
        let cut = checked(&user(&json!("é".repeat(3_000_000)), &json!("y"))).cut.unwrap();
        let text = cut.pointer("/message/content/0/content").and_then(Value::as_str).unwrap();
        assert!(text.len() > 800_000, "no more than must be is left out: {}", text.len());
        assert!(
            text.ends_with("bytes left out; all of it is in /s/x.jsonl]"),
            "{}",
            &text[text.len() - 80..]
        );
        assert_eq!(cut["tool_use_result"], json!("y"));
    }

    /// Like the real limit, but quicker to reach.
    const LITTLE: usize = 12_000;

    fn checked_in_little(value: &Value) {
        let fitted = within(value, "all of it is in /s/x.jsonl", LITTLE);
        assert!(fitted.bytes.len() <= LITTLE, "{}", fitted.bytes.len());
        let read: Value = serde_json::from_slice(&fitted.bytes).unwrap();
        for name in ["type", "uuid", "session_id"] {
            assert_eq!(read.get(name), value.get(name), "{name}");
        }
    }

    #[test]
    fn whatever_is_long_the_line_is_a_line() {
        let deep = (0..100).fold(json!("z".repeat(30_000)), |inner, _| json!([inner]));
        let wide: Map<String, Value> = (0..2_000).map(|n| (format!("k{n}"), json!(n))).collect();
        let tree = |leaf: &Value| json!(vec![json!(vec![json!(vec![leaf.clone(); 12]); 12]); 12]);
        let data = json!({"type": "base64", "media_type": "image/png", "data": "A".repeat(90_000)});
        let rows = [
            json!("\u{1}".repeat(9_000)),
            json!(vec!["word"; 4_000]),
            json!((0..9_000).collect::<Vec<_>>()),
            Value::Object(wide),
            json!({"n".repeat(40_000): 1}),
            deep,
            tree(&json!("a leaf of some twenty bytes")),
            json!([{"type": "image", "source": data}]),
            json!(vec![json!({"type": "text", "text": "t".repeat(900)}); 100]),
        ];
        for content in &rows {
            for result in &rows {
                checked_in_little(&user(content, result));
            }
        }
        let hostile = json!({"type": "x".repeat(20_000), "uuid": "u", "session_id": "s"});
        assert!(within(&hostile, "nowhere", LITTLE).bytes.len() <= LITTLE);
    }

    /// Anything that JSON can say, some of it long.
    fn anything() -> impl Strategy<Value = Value> {
        let text = (".{0,8}", 0_usize..400).prop_map(|(piece, times)| json!(piece.repeat(times)));
        let leaf = prop_oneof![text, any::<i64>().prop_map(|number| json!(number)), Just(Value::Null)];
        leaf.prop_recursive(4, 60, 12, |inner| {
            let members = proptest::collection::btree_map(".{0,30}", inner.clone(), 0..12);
            prop_oneof![
                proptest::collection::vec(inner, 0..12).prop_map(Value::Array),
                members.prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn whatever_is_cut_one_change_elsewhere_leaves_it_whole(input in anything()) {
            let whole = json!({"path": "/a", "input": input});
            let asked = json!({"type": "control_request", "request": {"input": whole}});
            let shown = within(&asked, "elsewhere", LITTLE).cut.and_then(|cut| cut.pointer("/request/input").cloned());
            if let Some(mut given) = shown.clone().filter(|shown| shown.get("path").is_some()) {
                given["path"] = json!("/b");
                let meant = restored(&given, &shown.unwrap(), &whole);
                prop_assert_eq!(meant, Some(json!({"path": "/b", "input": whole["input"]})));
            }
        }

        #[test]
        fn a_line_of_anything_fits(content in anything(), result in anything(), other in anything()) {
            checked_in_little(&user(&content, &result));
            let request = json!({"type": "control_request", "uuid": "u", "session_id": "s",
                "request": {"subtype": "can_use_tool", "input": other, "description": content}});
            checked_in_little(&request);
            let event = json!({"type": "stream_event", "uuid": "u", "session_id": "s",
                "event": {"type": "content_block_delta", "delta": {"type": "text_delta", "text": result}}});
            checked_in_little(&event);
        }
    }

    #[test]
    fn a_cut_input_that_comes_back_is_the_whole_one() {
        let whole = json!({"file_path": "/a", "content": "x".repeat(2_000_000), "n": 1});
        let asked =
            json!({"type": "control_request", "uuid": "u", "session_id": "s", "request": {"input": whole}});
        let shown = checked(&asked).cut.unwrap()["request"]["input"].clone();
        assert_ne!(shown, whole);
        assert_eq!(restored(&shown, &shown, &whole).as_ref(), Some(&whole));
        let mut moved = shown.clone();
        moved["file_path"] = json!("/b");
        let meant = restored(&moved, &shown, &whole).unwrap();
        assert_eq!((&meant["file_path"], &meant["content"]), (&json!("/b"), &whole["content"]));
        moved["content"] = json!(format!("{}!", shown["content"].as_str().unwrap()));
        assert_eq!(restored(&moved, &shown, &whole), None, "part of a cut text means nothing");
    }

    /// Whatever is made of a text that was cut, also without the mark of the cut, is made of part of it.
    #[test]
    fn what_is_made_of_a_cut_text_is_not_taken_for_all_of_it() {
        type Change = fn(&mut Value, &str);
        let whole = json!({"path": "/a", "content": "some text ".repeat(2_000), "all": [{"n": 1}]});
        let shown = shown_in_little(&whole);
        let text = shown["content"].as_str().unwrap();
        let changes: [(&str, Change); 8] = [
            ("in capitals", |given, text| given["content"] = json!(text.to_uppercase())),
            ("its beginning", |given, text| given["content"] = json!(&text[..100])),
            ("without its last line", |given, text| given["content"] = json!(text.split('…').next())),
            ("in front of it", |given, text| given["content"] = json!(format!("// new\n{text}"))),
            ("something else", |given, _| given["content"] = json!("short")),
            ("no text", |given, _| given["content"] = json!(7)),
            ("under another name", |given, text| given["other"] = json!(text)),
            ("left out", |given, _| drop(given.as_object_mut().unwrap().shift_remove("content"))),
        ];
        for (what, change) in changes {
            let mut given = shown.clone();
            change(&mut given, text);
            assert_eq!(restored(&given, &shown, &whole), None, "{what}");
        }
        let mut given = shown.clone();
        given["all"] = json!([1, 2, 3]);
        given["more"] = json!("x");
        given.as_object_mut().unwrap().shift_remove("path");
        let meant = json!({"content": whole["content"], "all": [1, 2, 3], "more": "x"});
        assert_eq!(restored(&given, &shown, &whole), Some(meant), "what was not cut may be anything");
    }

    /// What is shown of an input in little room, which must be less than all of it.
    fn shown_in_little(whole: &Value) -> Value {
        let asked = json!({"type": "control_request", "request": {"input": whole}});
        let shown = within(&asked, "elsewhere", LITTLE).cut.unwrap()["request"]["input"].clone();
        assert_ne!(shown, *whole);
        shown
    }

    #[test]
    fn a_cut_list_says_so_and_comes_back_whole_or_not_at_all() {
        for (items, note) in [
            (
                json!((0..9_000).collect::<Vec<_>>()),
                json!("… [cut here by decurion: 6750 items left out; elsewhere]"),
            ),
            (
                Value::Array((0..400).map(|n| json!({"name": n, "text": "t".repeat(90)})).collect()),
                json!({"type": "text", "text": "… [cut here by decurion: 300 items left out; elsewhere]"}),
            ),
        ] {
            let whole = json!({"path": "/a", "list": items});
            let shown = shown_in_little(&whole);
            assert_eq!(shown["list"].as_array().unwrap().last(), Some(&note));
            let changed = |change: fn(&mut Value)| {
                let mut given = shown.clone();
                change(&mut given);
                restored(&given, &shown, &whole)
            };
            let moved = changed(|given| given["path"] = json!("/b")).unwrap();
            assert_eq!((&moved["path"], &moved["list"]), (&json!("/b"), &whole["list"]));
            let renamed = changed(|given| given["list"][1] = json!("new")).unwrap();
            let (before, after) = (whole["list"].as_array().unwrap(), renamed["list"].as_array().unwrap());
            assert_eq!((&after[0], &after[1], &after[2..]), (&before[0], &json!("new"), &before[2..]));
            for change in [
                |given: &mut Vec<Value>| drop(given.pop()),
                |given: &mut Vec<Value>| drop(given.remove(0)),
                |given: &mut Vec<Value>| given.reverse(),
                |given: &mut Vec<Value>| given.push(json!(1)),
                |given: &mut Vec<Value>| given.truncate(2),
            ] {
                let mut given = shown.clone();
                change(given["list"].as_array_mut().unwrap());
                assert_eq!(restored(&given, &shown, &whole), None, "half of it is not what was meant");
            }
        }
    }

    #[test]
    fn an_object_without_half_of_its_members_comes_back_whole_or_not_at_all() {
        let mut whole: Members = (0..2_000).map(|n| (format!("k{n}"), json!("value"))).collect();
        whole.insert(LEFT_OUT.to_owned(), json!("a name like any other"));
        let whole = Value::Object(whole);
        let shown = shown_in_little(&whole);
        let mut given = shown.clone();
        given["k0"] = json!("new");
        let mut meant = restored(&given, &shown, &whole).unwrap();
        assert_eq!(meant["k0"], json!("new"));
        meant["k0"] = json!("value");
        assert_eq!(meant, whole);
        given.as_object_mut().unwrap().shift_remove(LEFT_OUT);
        assert_eq!(restored(&given, &shown, &whole), None);
    }
}
