//! From a model's JSON to a typed input. Takes a tool's schema and a value; gives a struct, or every issue
//! at once, each naming its field, so that a model can mend its call in one go.
//!
//! Strict, since a field that is silently dropped is a wish silently ignored: an unknown field, a missing
//! one, another type, a value out of range or outside its enumeration is an issue each. The one leniency is
//! that `3.0` is an integer, as JSON itself has it.
//!
//! Checked by hand: a model acts on the wording, and with `jsonschema` each kind of issue needs its own words here all the
//! same, and a validator compiled for each call. Schemas derived by `schemars` would change what models are shown.
//!
//! Of JSON Schema our own tools need: `type`, `properties`, `required`, `enum`, `additionalProperties`
//! (false or absent), `items`, `minimum`, `maximum`, `exclusiveMinimum`, `minLength`, `maxLength`,
//! `minItems`, `maxItems`. Other words in a schema (`description`, `default`, `format`) do not constrain.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};

use crate::{InputError, ToolSpec};

/// Issues listed at most; a flood of them helps nobody.
const MAX_ISSUES: usize = 20;

/// Checks an input against the tool's schema and reads it as `T`.
pub fn parse<T: DeserializeOwned>(spec: &ToolSpec, input: &Value) -> Result<T, InputError> {
    check(spec, input)?;
    let whole = with_whole_numbers(input);
    // The schema has been satisfied, so this fails only where `T` asks for more than its schema says.
    T::deserialize(whole.as_ref()).map_err(|error| InputError::new(&spec.name, error.to_string()))
}

/// Checks an input against the tool's schema.
pub fn check(spec: &ToolSpec, input: &Value) -> Result<(), InputError> {
    let issues = issues(&spec.input_schema, input);
    if issues.is_empty() { Ok(()) } else { Err(InputError { tool: spec.name.clone(), issues }) }
}

/// Every issue of a value under a schema, outermost first.
pub fn issues(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    visit(schema, value, &Place::Root, &mut found);
    found.truncate(MAX_ISSUES);
    found
}

/// A number that must be whole and not negative, for fields whose schema says only `number`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub fn whole(tool: &str, field: &str, number: f64) -> Result<u64, InputError> {
    if number >= 0.0 && number.fract() == 0.0 && number <= MAX_SAFE {
        Ok(number as u64)
    } else {
        Err(InputError::new(
            tool,
            format!("`{field}` must be a whole number that is not negative, got {number}"),
        ))
    }
}

/// The largest integer that a JSON number holds exactly everywhere.
const MAX_SAFE: f64 = 9_007_199_254_740_991.0;

/// Where in the input we are, written only when there is something to say about it.
enum Place<'a> {
    Root,
    Field(&'a Place<'a>, &'a str),
    Item(&'a Place<'a>, usize),
}

impl Place<'_> {
    fn path(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Field(Place::Root, name) => (*name).to_owned(),
            Self::Field(parent, name) => format!("{}.{name}", parent.path()),
            Self::Item(parent, index) => format!("{}[{index}]", parent.path()),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Root => "the input".to_owned(),
            place => format!("`{}`", place.path()),
        }
    }
}

fn visit(schema: &Value, value: &Value, place: &Place<'_>, found: &mut Vec<String>) {
    if found.len() >= MAX_ISSUES {
        return;
    }
    if let Some(expected) = schema.get("type").and_then(Value::as_str)
        && !has_type(value, expected)
    {
        found.push(format!("{} must be {}, got {}", place.name(), with_article(expected), kind(value)));
        return;
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        let names: Vec<String> = allowed.iter().map(Value::to_string).collect();
        found.push(format!("{} must be one of {}, got {}", place.name(), names.join(", "), brief(value)));
        return;
    }
    match value {
        Value::Object(members) => visit_object(schema, members, place, found),
        Value::Array(items) => visit_array(schema, items, place, found),
        Value::String(text) => visit_string(schema, text, place, found),
        Value::Number(number) => visit_number(schema, number, place, found),
        Value::Null | Value::Bool(_) => {}
    }
}

fn visit_object(schema: &Value, members: &Map<String, Value>, place: &Place<'_>, found: &mut Vec<String>) {
    let none = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    for name in required.filter_map(Value::as_str) {
        if !members.contains_key(name) {
            found.push(format!("{} is missing", Place::Field(place, name).name()));
        }
    }
    let closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    for (name, member) in members {
        match properties.get(name) {
            Some(property) => visit(property, member, &Place::Field(place, name), found),
            None if closed => found.push(unknown_field(name, properties, place)),
            None => {}
        }
    }
}

fn unknown_field(name: &str, properties: &Map<String, Value>, place: &Place<'_>) -> String {
    let shown: String = name.chars().take(80).collect();
    let known: Vec<&str> = properties.keys().map(String::as_str).collect();
    let field = Place::Field(place, &shown).name();
    format!("{field} is not a field here; there are: {}", known.join(", "))
}

fn visit_array(schema: &Value, items: &[Value], place: &Place<'_>, found: &mut Vec<String>) {
    let count = items.len() as u64;
    if let Some(least) = bound(schema, "minItems").filter(|least| count < *least) {
        found.push(format!("{} must have at least {least} item(s), got {count}", place.name()));
    }
    if let Some(most) = bound(schema, "maxItems").filter(|most| count > *most) {
        found.push(format!("{} must have at most {most} item(s), got {count}", place.name()));
    }
    if let Some(item_schema) = schema.get("items") {
        for (index, item) in items.iter().enumerate() {
            visit(item_schema, item, &Place::Item(place, index), found);
        }
    }
}

fn visit_string(schema: &Value, text: &str, place: &Place<'_>, found: &mut Vec<String>) {
    let least = bound(schema, "minLength");
    let most = bound(schema, "maxLength");
    if least.is_none() && most.is_none() {
        return;
    }
    let length = text.chars().count() as u64;
    if let Some(least) = least.filter(|least| length < *least) {
        found.push(format!("{} must have at least {least} character(s), got {length}", place.name()));
    }
    if let Some(most) = most.filter(|most| length > *most) {
        found.push(format!("{} must have at most {most} character(s), got {length}", place.name()));
    }
}

fn visit_number(schema: &Value, number: &Number, place: &Place<'_>, found: &mut Vec<String>) {
    let Some(given) = number.as_f64() else { return };
    let limit = |word: &str| schema.get(word).and_then(Value::as_f64);
    if let Some(least) = limit("minimum").filter(|least| given < *least) {
        found.push(format!("{} must be at least {least}, got {number}", place.name()));
    }
    if let Some(above) = limit("exclusiveMinimum").filter(|above| given <= *above) {
        found.push(format!("{} must be more than {above}, got {number}", place.name()));
    }
    if let Some(most) = limit("maximum").filter(|most| given > *most) {
        found.push(format!("{} must be at most {most}, got {number}", place.name()));
    }
}

fn bound(schema: &Value, word: &str) -> Option<u64> {
    schema.get(word).and_then(Value::as_u64)
}

fn has_type(value: &Value, expected: &str) -> bool {
    match expected {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => match value {
            Value::Number(number) => {
                number.is_u64()
                    || number.is_i64()
                    || number.as_f64().is_some_and(|float| float.fract() == 0.0 && float.abs() <= MAX_SAFE)
            }
            _ => false,
        },
        // A type we do not know cannot be checked; our own schemas use none.
        _ => true,
    }
}

fn with_article(kind: &str) -> String {
    let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {kind}")
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "a boolean".to_owned(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn brief(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 80 { text } else { text.chars().take(79).chain(['…']).collect() }
}

/// The same value with `3.0` written as `3`, since Rust's integers are read only from the latter.
fn with_whole_numbers(value: &Value) -> Cow<'_, Value> {
    let Value::Object(members) = value else { return Cow::Borrowed(value) };
    if !members.values().any(|member| whole_float(member).is_some()) {
        return Cow::Borrowed(value);
    }
    let members = members.iter().map(|(name, member)| {
        (name.clone(), whole_float(member).map_or_else(|| member.clone(), Value::from))
    });
    Cow::Owned(Value::Object(members.collect()))
}

#[allow(clippy::cast_possible_truncation)]
fn whole_float(value: &Value) -> Option<i64> {
    let Value::Number(number) = value else { return None };
    if !number.is_f64() {
        return None;
    }
    let float = number.as_f64()?;
    (float.fract() == 0.0 && float.abs() <= MAX_SAFE).then_some(float as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "maxLength": 9},
                "count": {"type": "integer", "minimum": 0, "maximum": 10},
                "limit": {"type": "integer", "exclusiveMinimum": 0},
                "ratio": {"type": "number"},
                "mode": {"type": "string", "enum": ["a", "b"]},
                "flag": {"type": "boolean"},
                "rows": {"type": "array", "minItems": 1, "maxItems": 2, "items": {
                    "type": "object", "properties": {"id": {"type": "string"}},
                    "required": ["id"], "additionalProperties": false
                }}
            },
            "required": ["path"],
            "additionalProperties": false
        })
    }

    #[test]
    fn each_kind_of_issue_names_its_field() {
        let cases = [
            (json!({"path": "x"}), ""),
            (json!({"path": "x", "count": 3.0, "limit": 1, "ratio": 1.5, "mode": "b", "flag": false}), ""),
            (json!({"path": "x", "rows": [{"id": "1"}, {"id": "2"}]}), ""),
            (json!([]), "the input must be an object, got an array"),
            (json!({}), "`path` is missing"),
            (json!({"path": null}), "`path` must be a string, got null"),
            (json!({"path": 7}), "`path` must be a string, got the number 7"),
            (json!({"path": ""}), "`path` must have at least 1 character(s), got 0"),
            (json!({"path": "éééééééééé"}), "`path` must have at most 9 character(s), got 10"),
            (json!({"path": "x", "count": -1}), "`count` must be at least 0, got -1"),
            (json!({"path": "x", "count": 11}), "`count` must be at most 10, got 11"),
            (json!({"path": "x", "count": 1.5}), "`count` must be an integer, got the number 1.5"),
            (json!({"path": "x", "count": "1"}), "`count` must be an integer, got a string"),
            (json!({"path": "x", "limit": 0}), "`limit` must be more than 0, got 0"),
            (json!({"path": "x", "flag": "true"}), "`flag` must be a boolean, got a string"),
            (json!({"path": "x", "mode": "c"}), "`mode` must be one of \"a\", \"b\", got \"c\""),
            (json!({"path": "x", "rows": []}), "`rows` must have at least 1 item(s), got 0"),
            (
                json!({"path": "x", "rows": [{"id":"1"},{"id":"2"},{"id":"3"}]}),
                "`rows` must have at most 2 item(s), got 3",
            ),
            (json!({"path": "x", "rows": [{"id": 1}]}), "`rows[0].id` must be a string, got the number 1"),
            (
                json!({"path": "x", "rows": [{"id": "1", "z": 1}]}),
                "`rows[0].z` is not a field here; there are: id",
            ),
            (
                json!({"path": "x", "pat": 1}),
                "`pat` is not a field here; there are: path, count, limit, ratio, mode, flag, rows",
            ),
            (
                json!({"count": "1", "mode": 1}),
                "`path` is missing\n`count` must be an integer, got a string\n`mode` must be a string, got the number 1",
            ),
        ];
        for (input, expected) in cases {
            assert_eq!(issues(&schema(), &input).join("\n"), expected, "{input}");
        }
    }

    #[test]
    fn the_struct_is_read_and_floats_that_are_whole_are_integers() {
        #[derive(Debug, Deserialize, PartialEq)]
        struct Input {
            path: String,
            count: Option<u64>,
        }
        let spec = ToolSpec { name: "T".into(), description: String::new(), input_schema: schema() };
        let read = parse::<Input>(&spec, &json!({"path": "x", "count": 4.0})).unwrap();
        assert_eq!(read, Input { path: "x".into(), count: Some(4) });
        let error = parse::<Input>(&spec, &json!({"count": 1})).unwrap_err().to_string();
        assert_eq!(error, "InputValidationError: T failed due to the following issue(s):\n`path` is missing");
    }

    #[test]
    fn a_flood_of_issues_is_cut() {
        let many: Map<String, Value> = (0..500).map(|n| (format!("f{n}"), json!(1))).collect();
        assert_eq!(issues(&schema(), &Value::Object(many)).len(), MAX_ISSUES);
    }

    #[test]
    fn whole_numbers_are_told_from_others() {
        assert_eq!(whole("T", "-A", 3.0).unwrap(), 3);
        for bad in [-1.0, 0.5, f64::NAN, f64::INFINITY, 1e17] {
            assert!(whole("T", "-A", bad).unwrap_err().to_string().contains("`-A`"), "{bad}");
        }
    }
}
