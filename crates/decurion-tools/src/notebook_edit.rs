//! NotebookEdit: one cell of a notebook. Takes which cell and its new source; gives what changed. All the
//! rest of the notebook stays as it is, its order, indentation and unknown members included.

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Access, Intent, ToolOutput};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::files::{self, Existing, FileAccess, FileError, Target, random_name};
use crate::files_seen::saw;
use crate::{Check, InputError, Surroundings, Tool, ToolContext, ToolSpec, notebook, paths, typed};

const NAME: &str = "NotebookEdit";

#[derive(Debug)]
pub struct NotebookEdit {
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct Input {
    notebook_path: String,
    cell_id: Option<String>,
    new_source: String,
    cell_type: Option<String>,
    #[serde(default)]
    edit_mode: EditMode,
}

#[derive(Clone, Copy, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum EditMode {
    #[default]
    Replace,
    Insert,
    Delete,
}

impl Default for NotebookEdit {
    fn default() -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": {
                "notebook_path": {"type": "string"},
                "cell_id": {"type": "string"},
                "new_source": {"type": "string"},
                "cell_type": {"type": "string", "enum": ["code", "markdown"]},
                "edit_mode": {"type": "string", "enum": ["replace", "insert", "delete"]}
            },
            "required": ["notebook_path", "new_source"],
            "additionalProperties": false
        });
        Self { spec: ToolSpec::new(NAME, include_str!("notebook_edit.md"), input_schema) }
    }
}

impl NotebookEdit {
    fn parse(&self, input: &Value, around: &Surroundings) -> Result<(Input, Utf8PathBuf), InputError> {
        let input: Input = typed::parse(&self.spec, input)?;
        let path = paths::absolute(NAME, "notebook_path", &input.notebook_path, around)?;
        let mut issues = Vec::new();
        if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("ipynb")) {
            issues.push("`notebook_path` must end in .ipynb; use Edit for other files".to_owned());
        }
        if input.edit_mode == EditMode::Insert && input.cell_type.is_none() {
            issues.push("`cell_type` is missing; a new cell is code or markdown".to_owned());
        }
        if input.edit_mode != EditMode::Insert && input.cell_id.is_none() {
            issues.push("`cell_id` is missing; say which cell".to_owned());
        }
        if issues.is_empty() { Ok((input, path)) } else { Err(InputError { tool: NAME.to_owned(), issues }) }
    }
}

impl Tool for NotebookEdit {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, around: &Surroundings) -> Result<Intent, InputError> {
        let (_, path) = self.parse(input, around)?;
        Ok(Intent::titled(paths::title("Edit", paths::shown(&path, around))).touching(path, Access::Write))
    }

    fn check<'a>(&'a self, cx: &'a ToolContext, input: &'a Value) -> BoxFuture<'a, Check> {
        Box::pin(async move {
            let Ok((input, path)) = self.parse(input, &cx.around) else { return Check::default() };
            files::checking(cx, move |access| changed(access, &path, &input).map(|_| None)).await
        })
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            match self.parse(&input, &cx.around) {
                Ok((input, path)) => files::writing(cx, move |access| edit(access, &path, &input)).await,
                Err(error) => error.into(),
            }
        })
    }
}

/// The notebook as it is to be, which file it is in, and what was changed.
fn changed(
    access: &FileAccess,
    lexical: &Utf8Path,
    input: &Input,
) -> Result<(Target, Existing, Value, Change), FileError> {
    let target = Target::open(access, lexical)?;
    let existing =
        target.existing(access.limits.edit_bytes)?.ok_or_else(|| FileError::NotFound(lexical.to_owned()))?;
    target.require_fresh(access, &existing)?;
    let mut parsed = notebook::parse(&existing.content).map_err(FileError::Said)?;
    let change = apply(&mut parsed, input)?;
    Ok((target, existing, parsed, change))
}

fn edit(access: &FileAccess, lexical: &Utf8Path, input: &Input) -> Result<ToolOutput, FileError> {
    let (target, existing, parsed, change) = changed(access, lexical, input)?;
    let path = target.path.clone();
    let content = written(&parsed, &existing.content)?;
    let hash = target.write(access, &content, Some(&existing))?;
    let shown = paths::shown(lexical, &access.around);
    let text = format!("{} cell {} of {shown}.", change.done, change.cell);
    let structured = json!({
        "notebook_path": lexical, "cell_id": change.cell, "cell_type": change.kind,
        "language": notebook::language(&parsed), "edit_mode": input.edit_mode,
        "new_source": input.new_source, "old_source": change.old_source, "error": "",
    });
    Ok(ToolOutput::text(text).with_structured(structured).with_effect(saw(&path, hash)))
}

/// What was done to which cell.
struct Change {
    done: &'static str,
    cell: String,
    kind: String,
    old_source: Option<String>,
}

fn apply(parsed: &mut Value, input: &Input) -> Result<Change, FileError> {
    let at = match &input.cell_id {
        None => None,
        Some(id) => Some(notebook::find(parsed, id).ok_or_else(|| no_such_cell(parsed, id))?),
    };
    let id = new_id(parsed)?;
    let cells = parsed
        .get_mut("cells")
        .and_then(Value::as_array_mut)
        .ok_or_else(|| FileError::Said("the notebook has no list of cells".to_owned()))?;
    match (input.edit_mode, at) {
        (EditMode::Insert, at) => {
            let place = at.map_or(0, |index| index + 1);
            let kind = input.cell_type.as_deref().unwrap_or("code");
            let cell = id.clone().unwrap_or_else(|| format!("cell-{place}"));
            cells.insert(place, notebook::new_cell(id, kind, &input.new_source));
            Ok(Change { done: "Inserted", cell, kind: kind.to_owned(), old_source: None })
        }
        (EditMode::Delete, Some(index)) => Ok(described("Deleted", &cells.remove(index), index)),
        (EditMode::Replace, Some(index)) => {
            let before = described("Changed", &cells[index], index);
            replace(&mut cells[index], input);
            let kind = described("", &cells[index], index).kind;
            Ok(Change { kind, ..before })
        }
        (EditMode::Delete | EditMode::Replace, None) => {
            Err(FileError::Usage("`cell_id` is missing; say which cell".to_owned()))
        }
    }
}

fn no_such_cell(parsed: &Value, id: &str) -> FileError {
    let all = notebook::cells(parsed);
    let known: Vec<_> =
        all.iter().enumerate().take(50).map(|(index, cell)| notebook::cell_id(cell, index)).collect();
    FileError::Usage(format!("the notebook has no cell {id:?}; its cells are: {}", known.join(", ")))
}

fn new_id(parsed: &Value) -> Result<Option<String>, FileError> {
    if !notebook::has_ids(parsed) {
        return Ok(None);
    }
    let mut name = random_name().map_err(|error| FileError::Said(format!("no random numbers: {error}")))?;
    name.truncate(8);
    Ok(Some(name))
}

fn described(done: &'static str, cell: &Value, index: usize) -> Change {
    Change {
        done,
        cell: notebook::cell_id(cell, index).into_owned(),
        kind: cell.get("cell_type").and_then(Value::as_str).unwrap_or("code").to_owned(),
        old_source: Some(notebook::text_of(cell.get("source")).into_owned()),
    }
}

fn replace(cell: &mut Value, input: &Input) {
    let source = notebook::source_like(cell.get("source"), &input.new_source);
    let Value::Object(members) = cell else { return };
    members.insert("source".to_owned(), source);
    if let Some(kind) = &input.cell_type {
        members.insert("cell_type".to_owned(), kind.as_str().into());
    }
    if members.get("cell_type") == Some(&json!("code")) {
        // The outputs were those of the former source.
        members.insert("outputs".to_owned(), json!([]));
        members.insert("execution_count".to_owned(), Value::Null);
    } else {
        members.shift_remove("outputs");
        members.shift_remove("execution_count");
    }
}

/// The notebook as text, indented and ended like the text it came from.
fn written(parsed: &Value, former: &[u8]) -> Result<Vec<u8>, FileError> {
    let mut content = Vec::with_capacity(former.len() + 1024);
    let failed =
        |error: serde_json::Error| FileError::Said(format!("the notebook cannot be written: {error}"));
    match indentation(former) {
        None => serde_json::to_writer(&mut content, parsed).map_err(failed)?,
        Some(indent) => {
            let formatter = serde_json::ser::PrettyFormatter::with_indent(indent);
            parsed
                .serialize(&mut serde_json::Serializer::with_formatter(&mut content, formatter))
                .map_err(failed)?;
        }
    }
    if former.ends_with(b"\n") {
        content.push(b'\n');
    }
    Ok(content)
}

/// The white space before the first member; none where all is on one line.
fn indentation(former: &[u8]) -> Option<&[u8]> {
    let line = memchr::memchr(b'\n', former)?;
    if line + 1 == former.len() {
        return None;
    }
    let rest = &former[line + 1..];
    let width = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    if width == 0 || width > 8 { Some(b" ") } else { Some(&rest[..width]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indentation_is_found() {
        assert_eq!(indentation(b"{\n \"cells\": []\n}"), Some(&b" "[..]));
        assert_eq!(indentation(b"{\n\t\"cells\": []\n}"), Some(&b"\t"[..]));
        assert_eq!(indentation(b"{\n    \"cells\": []\n}"), Some(&b"    "[..]));
        assert_eq!(indentation(b"{\"cells\":[]}\n"), None);
        assert_eq!(indentation(b"{\"cells\":[]}"), None);
    }
}
