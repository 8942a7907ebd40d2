//! Write: a whole file. Takes a path and its content; gives what changed. A file that exists must have been
//! seen as it is now, and is replaced as a whole or not at all.

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Access, Intent, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::files::{self, Existing, FileAccess, FileError, Target};
use crate::files_seen::saw;
use crate::patch::structured_patch;
use crate::{Check, InputError, Surroundings, Tool, ToolContext, ToolSpec, paths, typed};

const NAME: &str = "Write";

#[derive(Debug)]
pub struct Write {
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct Input {
    file_path: String,
    content: String,
}

impl Default for Write {
    fn default() -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": {
                "file_path": {"type": "string"},
                "content": {"type": "string"}
            },
            "required": ["file_path", "content"],
            "additionalProperties": false
        });
        Self { spec: ToolSpec::new(NAME, include_str!("write.md"), input_schema) }
    }
}

impl Write {
    fn parse(&self, input: &Value, around: &Surroundings) -> Result<(Input, Utf8PathBuf), InputError> {
        let input: Input = typed::parse(&self.spec, input)?;
        let path = paths::absolute(NAME, "file_path", &input.file_path, around)?;
        Ok((input, path))
    }
}

impl Tool for Write {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, around: &Surroundings) -> Result<Intent, InputError> {
        let (_, path) = self.parse(input, around)?;
        Ok(Intent::titled(paths::title(NAME, paths::shown(&path, around))).touching(path, Access::Write))
    }

    fn check<'a>(&'a self, cx: &'a ToolContext, input: &'a Value) -> BoxFuture<'a, Check> {
        Box::pin(async move {
            let Ok((input, path)) = self.parse(input, &cx.around) else { return Check::default() };
            // A folder that stands in for a file gives way to it.
            if decurion_exec::placeholder::is_placeholder(path.as_std_path()) {
                return Check::default();
            }
            files::checking(cx, move |access| {
                let (_, existing) = found(access, &path, &input.content)?;
                let original = existing.as_ref().map(|existing| String::from_utf8_lossy(&existing.content));
                Ok(original.map(|original| structured_patch(&original, &input.content)))
            })
            .await
        })
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            match self.parse(&input, &cx.around) {
                Ok((input, path)) => {
                    files::writing(cx, move |access| write(access, &path, &input.content)).await
                }
                Err(error) => error.into(),
            }
        })
    }
}

/// Where this content may be written, and what is there now.
fn found(
    access: &FileAccess,
    lexical: &Utf8Path,
    content: &str,
) -> Result<(Target, Option<Existing>), FileError> {
    let limit = access.limits.edit_bytes;
    if content.len() as u64 > limit {
        let size = content.len() as u64;
        return Err(FileError::TooLarge { path: lexical.to_owned(), size, limit });
    }
    let target = Target::open(access, lexical)?;
    let existing = target.existing(limit)?;
    if let Some(existing) = &existing {
        target.require_fresh(access, existing)?;
    }
    Ok((target, existing))
}

fn write(access: &FileAccess, lexical: &Utf8Path, content: &str) -> Result<ToolOutput, FileError> {
    decurion_exec::placeholder::give_way(lexical.as_std_path());
    let (target, existing) = found(access, lexical, content)?;
    let path = target.path.clone();
    let hash = target.write(access, content.as_bytes(), existing.as_ref())?;
    let shown = paths::shown(lexical, &access.around);
    let (kind, text, patch, original) = match existing {
        None => ("create", format!("Created {shown}."), json!([]), Value::Null),
        Some(existing) => {
            let original = String::from_utf8_lossy(&existing.content);
            let patch = structured_patch(&original, content);
            ("update", format!("Wrote {shown}."), patch, files::kept_original(access, &original))
        }
    };
    let structured = json!({
        "type": kind, "filePath": lexical, "content": content, "structuredPatch": patch,
        "originalFile": original, "userModified": false,
    });
    Ok(ToolOutput::text(text).with_structured(structured).with_effect(saw(&path, hash)))
}
