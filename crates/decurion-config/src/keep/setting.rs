//! One setting, as a person types it. Takes a key and a value, checks both as if they stood in a settings file, and writes
//! them into the file of a scope, or removes the key from it; gives the file.

use serde_json::{Map, Value};

use super::{KeepError, Keeper, Kept};
use crate::check::{self, Checked, camel_case};
use crate::edit::{self, EditError};
use crate::error::did_you_mean;
use crate::jsonc::{self, Member, Position};
use crate::layer;
use crate::origin::{Family, Layer, Place, Sources};
use crate::schema::{self, KEYS, Shape};
use crate::shell_env::is_secret_name;

static ROOT: Shape = Shape::Object(KEYS);

/// A key, with dots between its parts; a part in double quotes may have dots itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingKey(Vec<String>);

impl SettingKey {
    pub fn parse(key: &str) -> Result<Self, String> {
        parts(key).map(Self).ok_or_else(|| format!("not a key: {key}"))
    }

    /// The key as it is listed.
    pub fn name(&self) -> String {
        let mut shape = Some(&ROOT);
        let mut names = Vec::new();
        for part in &self.0 {
            names.push(if is_fixed(shape) { camel_case(part) } else { part.clone() });
            shape = below(shape, part);
        }
        names.join(".")
    }

    /// Why it is none of the keys, if so.
    pub fn problem(&self) -> Option<String> {
        let mut shape = Some(&ROOT);
        for part in &self.0 {
            if let Some(&Shape::Object(keys)) = shape
                && below(shape, part).is_none()
            {
                let meant = schema::meant(keys, part, false).map(|meant| meant.path);
                return Some(format!("unknown key: {}{}", self.name(), did_you_mean(meant)));
            }
            shape = below(shape, part);
        }
        None
    }
}

/// A key and what it is to hold.
#[derive(Clone, Debug, PartialEq)]
pub struct NewSetting {
    path: Vec<String>,
    value: Value,
}

impl NewSetting {
    /// A key with dots between its parts (a part in double quotes may have dots itself), and its value: JSON, or a text
    /// as it is where the key takes one.
    pub fn parse(key: &str, value: &str, layer: Layer) -> Result<Self, String> {
        let SettingKey(path) = SettingKey::parse(key)?;
        if holds_secret(&path) {
            return Err(format!(
                "{key}: a key on the command line ends in the shell's history; set apiKeyEnv to the name of a variable, or apiKeyFile to a file"
            ));
        }
        let text = Value::String(value.to_owned());
        let first = serde_json::from_str(value).unwrap_or_else(|_| text.clone());
        let new = Self { path: path.clone(), value: first };
        let problem = match new.check(layer) {
            Ok(()) => return Ok(new),
            Err(problem) => problem,
        };
        // `5` may be the name of a model.
        let new = Self { path, value: text };
        new.check(layer).map_err(|_| problem)?;
        Ok(new)
    }

    /// Whether it holds in a file of this layer.
    fn check(&self, layer: Layer) -> Result<(), String> {
        let mut sources = Sources::default();
        let source = sources.add(layer, Family::Ours, Place::Builtin);
        let path = self.path.iter().rev();
        let document =
            path.fold(self.value.clone(), |value, key| Value::Object(Map::from_iter([(key.clone(), value)])));
        let parsed = jsonc::parse(&document.to_string(), source).map_err(|error| error.message.to_owned())?;
        let mut warnings = Vec::new();
        let Checked { root, problems } = check::document(parsed, &sources, &mut warnings);
        // It stands in no file yet.
        let plain = |text: &str| text.replace("built in: ", "");
        if let Some(problem) = problems.first() {
            return Err(plain(&problem.to_string()));
        }
        if let Some(warning) = warnings.first() {
            return Err(warning.text.replace("built in: ", ""));
        }
        if layer.is_in_repository() {
            layer::split(root, decurion_protocol::permission::Mode::Default, &sources, &mut warnings);
            if let Some(warning) = warnings.first() {
                return Err(warning.text.clone());
            }
        }
        Ok(())
    }
}

impl Keeper {
    /// Writes one setting into the file of a layer. `null` is how one writes "not set".
    pub fn keep_setting(&self, layer: Layer, setting: &NewSetting) -> Result<Kept, KeepError> {
        let (file, remark) = self.edit(layer, false, |text| {
            let (path, _) = as_written(text, &setting.path)?;
            edit::set(text, &borrowed(&path), &setting.value)
        })?;
        Ok(Kept { file, remark })
    }

    /// Removes one setting from the file of a layer; and whether it was there.
    pub fn remove_setting(&self, layer: Layer, key: &SettingKey) -> Result<(Kept, bool), KeepError> {
        let mut was_there = false;
        let (file, remark) = self.edit(layer, false, |text| {
            let (path, is_there) = as_written(text, &key.0)?;
            was_there = is_there;
            if is_there { without(text, &borrowed(&path)) } else { Ok(text.to_owned()) }
        })?;
        Ok((Kept { file, remark }, was_there))
    }
}

fn borrowed(path: &[String]) -> Vec<&str> {
    path.iter().map(String::as_str).collect()
}

/// A path as this text spells it, and whether it is there: a key that stands there in another spelling is the same key.
fn as_written(text: &str, path: &[String]) -> Result<(Vec<String>, bool), EditError> {
    let root = jsonc::parse(text, 0)?;
    let (mut node, mut shape, mut written) = (Some(&root.root), Some(&ROOT), Vec::new());
    for part in path {
        let is_same = |member: &&Member| {
            member.key == *part || is_fixed(shape) && camel_case(&member.key) == camel_case(part)
        };
        let member = node.and_then(|node| node.members().iter().find(is_same));
        written.push(member.map_or_else(|| part.clone(), |member| member.key.clone()));
        node = member.map(|member| &member.value);
        shape = below(shape, part);
    }
    Ok((written, node.is_some()))
}

/// Whether the keys of a value of this shape are ours, so that they may be spelled in two ways.
fn is_fixed(shape: Option<&Shape>) -> bool {
    matches!(shape, Some(Shape::Object(_)))
}

/// The shape of a member.
fn below(shape: Option<&'static Shape>, part: &str) -> Option<&'static Shape> {
    match shape? {
        Shape::Object(keys) => schema::find(keys, &camel_case(part)).map(|key| &key.shape),
        Shape::Each(inner) => Some(inner),
        _ => None,
    }
}

/// The text without the member at a path, which is there.
fn without(text: &str, path: &[&str]) -> Result<String, EditError> {
    const NULL: &str = "null";
    // Where `null` ends is known.
    let mut text = edit::set(text, path, &Value::Null)?;
    let root = jsonc::parse(&text, 0)?.root;
    let (last, above) = path.split_last().ok_or(EditError::Unsafe)?;
    let object = above.iter().try_fold(&root, |node, key| node.get(key)).ok_or(EditError::Unsafe)?;
    let member = object.members().iter().find(|member| member.key == *last).ok_or(EditError::Unsafe)?;
    let mut expected = root.to_value();
    let inside = above.iter().fold(&mut expected, |inner, key| &mut inner[*key]);
    inside.as_object_mut().map(|members| members.remove(*last));
    let (mut start, mut end) = (offset(&text, member.at), offset(&text, member.value.at) + NULL.len());
    let comma_before = text[..start].trim_end().strip_suffix(',').map(str::len);
    if text[end..].trim_start().starts_with(',') {
        end += text[end..].find(',').unwrap_or_default() + 1;
    } else if let Some(comma) = comma_before {
        text.remove(comma);
        (start, end) = (start - 1, end - 1);
    }
    let line = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    let blank = |text: &str| text.trim().is_empty();
    match text[end..].find('\n').map(|newline| end + newline + 1) {
        Some(next) if blank(&text[line..start]) && blank(&text[end..next]) => (start, end) = (line, next),
        _ => end += text[end..].len() - text[end..].trim_start_matches([' ', '\t']).len(),
    }
    if text[end..].starts_with('}') {
        start = text[..start].trim_end_matches([' ', '\t']).len();
    }
    text.replace_range(start..end, "");
    if jsonc::parse(&text, 0)?.root.to_value() == expected { Ok(text) } else { Err(EditError::Unsafe) }
}

/// The byte at a position.
fn offset(text: &str, at: Position) -> usize {
    let line: usize = text.split_inclusive('\n').take(at.line as usize - 1).map(str::len).sum();
    let mark = if line == 0 { text.len() - text.trim_start_matches('\u{feff}').len() } else { 0 };
    let columns = text[line + mark..].chars().take(at.column as usize - 1);
    line + mark + columns.map(char::len_utf8).sum::<usize>()
}

/// The parts of a key.
fn parts(key: &str) -> Option<Vec<String>> {
    let mut parts = Vec::new();
    let mut rest = key;
    loop {
        let part = if let Some(quoted) = rest.strip_prefix('"') {
            let (part, after) = quoted.split_once('"')?;
            rest = after;
            part
        } else {
            let (part, after) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
            rest = after;
            part
        };
        if part.is_empty() {
            return None;
        }
        parts.push(part.to_owned());
        match rest.strip_prefix('.') {
            Some(after) => rest = after,
            None if rest.is_empty() => return Some(parts),
            None => return None,
        }
    }
}

/// Whether what this key holds is never shown.
fn holds_secret(path: &[String]) -> bool {
    let mut shape = Some(&ROOT);
    for part in path {
        if matches!(shape, Some(Shape::Variables)) && is_secret_name(part) {
            return true;
        }
        shape = below(shape, part);
        if matches!(shape, Some(Shape::Secret | Shape::Headers)) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_key_in_another_spelling_is_the_same_key() {
        let set = |text: &str, key: &str| {
            let SettingKey(path) = SettingKey::parse(key).unwrap();
            let (path, _) = as_written(text, &path).unwrap();
            edit::set(text, &borrowed(&path), &Value::from(4)).unwrap()
        };
        assert_eq!(
            set(r#"{"agents": {"maxDepth": 3}}"#, "agents.max_depth"),
            r#"{"agents": {"maxDepth": 4}}"#
        );
        assert_eq!(
            set(r#"{"agents": {"max_depth": 3}}"#, "agents.maxDepth"),
            r#"{"agents": {"max_depth": 4}}"#
        );
        // The first one counts.
        let twice = r#"{"agents": {"max_depth": 3, "maxDepth": 2}}"#;
        assert_eq!(set(twice, "agents.maxDepth"), r#"{"agents": {"max_depth": 4, "maxDepth": 2}}"#);
        // Names that are not ours are what they are.
        assert_eq!(set(r#"{"env": {"aB": "1"}}"#, "env.a_b"), r#"{"env": {"aB": "1", "a_b": 4}}"#);
        assert_eq!(SettingKey::parse("agents.max_depth").unwrap().name(), "agents.maxDepth");
        let problem = SettingKey::parse("agents.max_dept").unwrap().problem();
        assert_eq!(problem.as_deref(), Some("unknown key: agents.maxDept (did you mean maxDepth?)"));
    }

    #[test]
    fn a_key_is_removed_and_nothing_else() {
        let mut shown = String::new();
        for text in [
            "{\"theme\": \"dark\"}",
            "{\"theme\": \"dark\", \"model\": \"x\"}",
            "{\"model\": \"x\", \"theme\": \"dark\"}",
            "{\n  // mine\n  \"model\": \"x\", // the best\n  \"theme\": \"dark\"\n}\n",
            "{\n  \"theme\": \"dark\", // for the night\n  \"model\": \"x\",\n}\n",
            "\u{feff}{\r\n\t\"theme\": \"é\",\r\n\t\"model\": \"ü\"\r\n}\r\n",
        ] {
            let left = without(text, &["theme"]).unwrap();
            shown.push_str(&format!("{text}\n---\n{left}\n===\n").replace('\r', "␍"));
        }
        expect![[r#"
            {"theme": "dark"}
            ---
            {}
            ===
            {"theme": "dark", "model": "x"}
            ---
            {"model": "x"}
            ===
            {"model": "x", "theme": "dark"}
            ---
            {"model": "x"}
            ===
            {
              // mine
              "model": "x", // the best
              "theme": "dark"
            }

            ---
            {
              // mine
              "model": "x", // the best
            }

            ===
            {
              "theme": "dark", // for the night
              "model": "x",
            }

            ---
            {
              // for the night
              "model": "x",
            }

            ===
            ﻿{␍
            	"theme": "é",␍
            	"model": "ü"␍
            }␍

            ---
            ﻿{␍
            	"model": "ü"␍
            }␍

            ===
        "#]]
        .assert_eq(&shown);
    }

    #[test]
    fn a_key_is_split_at_its_dots_and_a_quoted_part_may_have_some() {
        let split = |key: &str| parts(key).map(|parts| parts.join("|"));
        assert_eq!(split("agents.maxDepth").as_deref(), Some("agents|maxDepth"));
        assert_eq!(
            split(r#"models.catalogue."gpt-5.4".window"#).as_deref(),
            Some("models|catalogue|gpt-5.4|window")
        );
        for key in ["", ".", "a.", ".a", "a..b", "\"a", "\"a\"b"] {
            assert_eq!(split(key), None, "{key}");
        }
    }

    #[test]
    fn a_value_is_checked_as_in_a_file_and_a_text_needs_no_quotes() {
        let parse = |key: &str, value: &str| NewSetting::parse(key, value, Layer::User);
        assert_eq!(parse("model", "sonnet").unwrap().value, "sonnet");
        assert_eq!(parse("model", "5").unwrap().value, "5");
        assert_eq!(parse("agents.maxDepth", "5").unwrap().value, 5);
        assert_eq!(parse("permissions.deny", "[\"Read(.env)\"]").unwrap().value[0], "Read(.env)");
        for (key, value, told) in [
            ("agents.maxDepth", "99", "agents.maxDepth: expected a whole number from 0 to 64, found 99"),
            ("modle", "x", "unknown key: modle (did you mean model?)"),
            ("theme", "drak", "found \"drak\" (did you mean \"dark\"?)"),
            ("model.x", "1", "model: expected a non-empty string, found an object"),
            ("providers.local.apiKey", "sk-1", "apiKeyEnv"),
            ("providers.local.api_key", "sk-1", "apiKeyEnv"),
            ("providers.local.headers.X-Key", "sk-1", "apiKeyEnv"),
            ("env.MY_TOKEN", "sk-1", "apiKeyEnv"),
        ] {
            let problem = parse(key, value).unwrap_err();
            assert!(problem.contains(told), "{key} {value}: {problem}");
        }
        assert!(NewSetting::parse("theme", "dark", Layer::Project).is_err());
    }
}
