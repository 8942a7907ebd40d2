//! The JSON Schema of a settings file. Takes the table of keys and the variables that set them, gives the schema that
//! editors read, with each key's description, default, environment variables and what a repository may do with it.

use serde_json::{Map, Value, json};

use super::{DEFAULTS, FromProject, KEYS, Key, MODES, Shape};
use crate::jsonc::{self, Node};
use crate::variables;

/// The JSON Schema of `settings.json`.
pub fn settings_schema() -> Value {
    let defaults = jsonc::parse(DEFAULTS, 0).map(|document| document.root).ok();
    let mut properties = Map::new();
    properties.insert("$schema".to_owned(), json!({"type": "string"}));
    properties.extend(members(KEYS, "", defaults.as_ref()));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Decurion settings",
        "description": "Settings of decurion: ~/.decurion/settings.json, .decurion/settings.json, .decurion/settings.local.json",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
        "allowComments": true,
        "allowTrailingCommas": true,
    })
}

fn members(keys: &'static [Key], above: &str, defaults: Option<&Node>) -> Map<String, Value> {
    let member = |key: &'static Key| {
        let path = format!("{above}{}", key.name);
        let mut schema = or_null(shape(&key.shape, &path, defaults));
        schema["description"] = key.what.into();
        let is_value = !matches!(key.shape, Shape::Object(_) | Shape::Each(_));
        if let Some(default) = defaults.and_then(|defaults| defaults.at_path(&path)).filter(|_| is_value) {
            schema["default"] = default.to_value();
        }
        let variables: Vec<String> = variables::naming(&path).collect();
        if !variables.is_empty() {
            schema["x-variables"] = variables.into();
        }
        if let Some(rule) = from_project(key) {
            schema["x-repository"] = rule.into();
        }
        (key.name.to_owned(), schema)
    };
    keys.iter().map(member).collect()
}

/// What a repository may do with a key; its members say it where they differ.
fn from_project(key: &Key) -> Option<&'static str> {
    match key.project {
        FromProject::Narrows => Some("yes"),
        FromProject::NarrowsIf(_) => Some("stricter"),
        FromProject::WhenTrusted => Some("trusted"),
        FromProject::ByMember => None,
        FromProject::Never => Some("no"),
    }
}

/// A value of this shape.
fn shape(shape: &'static Shape, path: &str, defaults: Option<&Node>) -> Value {
    let members_of = |value: Value| json!({"type": "object", "additionalProperties": value});
    match shape {
        Shape::Bool => json!({"type": "boolean"}),
        Shape::Text | Shape::Secret => text(),
        Shape::Url => json!({"type": "string", "pattern": r"^https?://[^/:@?#\\\s][^@?#\\\s]*$"}),
        Shape::Word(words) | Shape::Look(words) => json!({"enum": words}),
        Shape::Mode => json!({"enum": MODES}),
        Shape::Integer(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
        Shape::Number(least, most) => json!({"type": "number", "minimum": least, "maximum": most}),
        Shape::Texts | Shape::AddedTexts | Shape::Rules => texts(),
        Shape::TextOrTexts => json!({"anyOf": [text(), texts()]}),
        Shape::Matchers | Shape::MatchersEach => json!({"type": "array", "items": matcher()}),
        Shape::Variables => json!({
            "type": "object",
            "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
            "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
        }),
        Shape::Headers => members_of(or_null(json!({"type": "string"}))),
        Shape::Aliases => {
            members_of(json!({"anyOf": [text(), members_of(or_null(text())), {"type": "null"}]}))
        }
        Shape::Object(keys) => json!({
            "type": "object",
            "properties": members(keys, &format!("{path}."), defaults),
            "additionalProperties": false,
        }),
        Shape::Each(inner) => members_of(or_null(self::shape(inner, &format!("{path}.NAME"), None))),
        Shape::Opaque | Shape::Gathered => json!({"type": "object"}),
    }
}

fn text() -> Value {
    json!({"type": "string", "pattern": "\\S"})
}

fn texts() -> Value {
    json!({"type": "array", "items": text()})
}

/// An MCP server by name, command or address.
fn matcher() -> Value {
    let with = |key: &str, value: Value| json!({"type": "object", "properties": {key: value}, "required": [key], "additionalProperties": false});
    let words = json!({"type": "array", "items": {"type": "string"}, "minItems": 1});
    json!({"anyOf": [text(), with("serverName", text()), with("serverUrl", text()), with("serverCommand", words)]})
}

/// The same schema, which also takes `null`: a key that is `null` is not set.
fn or_null(mut schema: Value) -> Value {
    if let Some(kind) = schema.get("type").filter(|kind| kind.is_string()).cloned() {
        schema["type"] = json!([kind, "null"]);
    } else if let Some(Value::Array(words)) = schema.get_mut("enum") {
        words.push(Value::Null);
    } else if let Some(Value::Array(forms)) = schema.get_mut("anyOf") {
        forms.push(json!({"type": "null"}));
    }
    schema
}

#[cfg(test)]
mod tests {
    use jsonschema::Validator;

    use super::*;
    use crate::check;
    use crate::error::WarningKind;
    use crate::origin::{Family, Layer, Place, Sources};

    fn validator() -> Validator {
        jsonschema::validator_for(&settings_schema()).unwrap()
    }

    /// Whether a settings file of the user is taken without a word about a wrong value or key.
    fn is_taken(text: &str) -> bool {
        let mut sources = Sources::default();
        let source = sources.add(Layer::User, Family::Ours, Place::Builtin);
        let mut warnings = Vec::new();
        let checked = check::document(jsonc::parse(text, source).unwrap(), &sources, &mut warnings);
        let is_unknown = warnings.iter().any(|warning| warning.kind == WarningKind::UnknownKey);
        checked.problems.is_empty() && !is_unknown
    }

    #[test]
    fn the_schema_accepts_the_shipped_defaults_and_no_wrong_value_or_key() {
        let validator = validator();
        let defaults = jsonc::parse(DEFAULTS, 0).unwrap().root.to_value();
        validator.validate(&defaults).unwrap();
        for wrong in [
            json!({"modle": "sonnet"}),
            json!({"model": 5}),
            json!({"agents": {"maxDepth": "3"}}),
            json!({"agents": {"maxDepth": 65}}),
            json!({"permissions": {"defaultMode": "yolo"}}),
            json!({"sandbox": {"network": {"allowedDomain": ["example.com"]}}}),
            json!({"providers": {"local": {"baseUrl": "127.0.0.1:8080"}}}),
        ] {
            assert!(!validator.is_valid(&wrong), "{wrong}");
            assert!(!is_taken(&wrong.to_string()), "{wrong}");
        }
    }

    /// Every key is given values of every kind: the schema and the checks of the settings must agree on each.
    #[test]
    fn the_schema_agrees_with_the_checks_of_the_settings() {
        let validator = validator();
        let mut compared = 0;
        let mut paths = Vec::new();
        collect(KEYS, &mut Vec::new(), &mut paths);
        assert!(paths.len() > 100, "{}", paths.len());
        for (path, words) in &paths {
            let values = [
                json!(null),
                json!(true),
                json!(-1),
                json!(1),
                json!(2000),
                json!(0.5),
                json!(1e15),
                json!(""),
                json!("plain"),
                json!("https://example.com/v1"),
                json!([]),
                json!(["Read(.env)"]),
                json!([1]),
                json!([""]),
                json!({}),
                json!({"a": 1}),
                json!({"A_B": "c"}),
                json!([{"serverName": "a"}]),
            ];
            for value in values.into_iter().chain(words.iter().map(|word| json!(word))) {
                let whole = path.iter().rev().fold(value, |inner, key| json!({*key: inner}));
                let text = whole.to_string();
                assert_eq!(validator.is_valid(&whole), is_taken(&text), "{text}");
                compared += 1;
            }
        }
        assert!(compared > 2000, "{compared}");
    }

    /// The path of each key, and the words that it takes.
    fn collect(
        keys: &'static [Key],
        path: &mut Vec<&'static str>,
        found: &mut Vec<(Vec<&'static str>, &'static [&'static str])>,
    ) {
        for key in keys {
            path.push(key.name);
            match &key.shape {
                Shape::Word(words) | Shape::Look(words) => found.push((path.clone(), words)),
                Shape::Mode => found.push((path.clone(), &MODES)),
                _ => found.push((path.clone(), &[])),
            }
            match &key.shape {
                Shape::Object(inner) => collect(inner, path, found),
                Shape::Each(Shape::Object(inner)) => {
                    path.push("x");
                    collect(inner, path, found);
                    path.pop();
                }
                _ => {}
            }
            path.pop();
        }
    }
}
