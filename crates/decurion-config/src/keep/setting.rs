//! One setting, as a person types it. Takes a key and a value, checks both as if they stood in a settings file, and writes
//! them into the file of a scope; gives the file.

use serde_json::{Map, Value};

use super::{KeepError, Keeper, Kept};
use crate::check::{self, Checked};
use crate::edit;
use crate::jsonc;
use crate::layer;
use crate::origin::{Family, Layer, Place, Sources};
use crate::schema::{self, KEYS, Shape};
use crate::shell_env::is_secret_name;

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
        let path = parts(key).ok_or_else(|| format!("not a key: {key}"))?;
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
        let path: Vec<&str> = setting.path.iter().map(String::as_str).collect();
        let (file, remark) = self.edit(layer, false, |text| edit::set(text, &path, &setting.value))?;
        Ok(Kept { file, remark })
    }
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
    let mut keys = KEYS;
    let mut shape = None;
    for part in path {
        let found = match shape {
            Some(&Shape::Each(inner)) => Some(inner),
            Some(Shape::Variables) if is_secret_name(part) => return true,
            _ => schema::find(keys, part).map(|key| &key.shape),
        };
        if let Some(Shape::Object(inner)) = found {
            keys = inner;
        }
        shape = found;
        if matches!(shape, Some(Shape::Secret | Shape::Headers)) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("providers.local.headers.X-Key", "sk-1", "apiKeyEnv"),
            ("env.MY_TOKEN", "sk-1", "apiKeyEnv"),
        ] {
            let problem = parse(key, value).unwrap_err();
            assert!(problem.contains(told), "{key} {value}: {problem}");
        }
        assert!(NewSetting::parse("theme", "dark", Layer::Project).is_err());
    }
}
