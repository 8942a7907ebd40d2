//! Edit: an exact replacement in a file. Takes the text that is there and the text that shall be there;
//! gives what changed. Nothing is replaced that was not seen, is ambiguous, or is not exactly there.

use std::borrow::Cow;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Access, Intent, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::files::{self, Existing, FileAccess, FileError, Target};
use crate::files_seen::saw;
use crate::patch::structured_patch;
use crate::{Check, InputError, Surroundings, Tool, ToolContext, ToolSpec, paths, typed};

const NAME: &str = "Edit";

#[derive(Debug)]
pub struct Edit {
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct Input {
    file_path: String,
    old_string: String,
    new_string: String,
    #[serde(default)]
    replace_all: bool,
}

impl Default for Edit {
    fn default() -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": {
                "file_path": {"type": "string"},
                "old_string": {"type": "string"},
                "new_string": {"type": "string"},
                "replace_all": {"default": false, "type": "boolean"}
            },
            "required": ["file_path", "old_string", "new_string"],
            "additionalProperties": false
        });
        Self { spec: ToolSpec::new(NAME, include_str!("edit.md"), input_schema) }
    }
}

impl Edit {
    fn parse(&self, input: &Value, around: &Surroundings) -> Result<(Input, Utf8PathBuf), InputError> {
        let input: Input = typed::parse(&self.spec, input)?;
        let path = paths::absolute(NAME, "file_path", &input.file_path, around)?;
        if input.old_string == input.new_string {
            return Err(InputError::new(
                NAME,
                "`new_string` is the same as `old_string`: nothing would change",
            ));
        }
        Ok((input, path))
    }
}

impl Tool for Edit {
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
            files::checking(cx, move |access| {
                let planned = Planned::of(access, &path, &input)?;
                Ok(Some(structured_patch(&planned.original, &planned.content)))
            })
            .await
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

fn edit(access: &FileAccess, lexical: &Utf8Path, input: &Input) -> Result<ToolOutput, FileError> {
    let Planned { target, existing, original, content, done } = Planned::of(access, lexical, input)?;
    let path = target.path.clone();
    let hash = target.write(access, content.as_bytes(), existing.as_ref())?;
    let structured = json!({
        "filePath": lexical, "oldString": input.old_string, "newString": input.new_string,
        "originalFile": files::kept_original(access, &original),
        "structuredPatch": structured_patch(&original, &content),
        "userModified": false, "replaceAll": input.replace_all,
    });
    Ok(ToolOutput::text(done).with_structured(structured).with_effect(saw(&path, hash)))
}

/// An edit that fits the file as it is now.
struct Planned {
    target: Target,
    existing: Option<Existing>,
    original: String,
    /// What the file is to hold.
    content: String,
    /// What is said once it does.
    done: String,
}

impl Planned {
    fn of(access: &FileAccess, lexical: &Utf8Path, input: &Input) -> Result<Self, FileError> {
        let target = Target::open(access, lexical)?;
        let existing = target.existing(access.limits.edit_bytes)?;
        let shown = paths::shown(lexical, &access.around);
        let (original, content, done) = match &existing {
            None if input.old_string.is_empty() => {
                (String::new(), input.new_string.clone(), format!("Created {shown}."))
            }
            None => return Err(FileError::NotFound(lexical.to_owned())),
            Some(_) if input.old_string.is_empty() => {
                return Err(FileError::Usage(format!(
                    "`old_string` is empty, which makes a new file, but the file exists: {shown}"
                )));
            }
            Some(existing) => {
                target.require_fresh(access, existing)?;
                let original = text_of(existing, shown)?;
                let (content, count) = replaced(original, input).map_err(|fault| fault.explained(shown))?;
                let places = if count == 1 { String::new() } else { format!(" in {count} places") };
                (original.to_owned(), content, format!("Edited {shown}{places}."))
            }
        };
        if content.len() as u64 > access.limits.edit_bytes {
            let (size, limit) = (content.len() as u64, access.limits.edit_bytes);
            return Err(FileError::TooLarge { path: lexical.to_owned(), size, limit });
        }
        Ok(Self { target, existing, original, content, done })
    }
}

fn text_of<'a>(existing: &'a Existing, shown: &str) -> Result<&'a str, FileError> {
    std::str::from_utf8(&existing.content).map_err(|_| {
        FileError::Said(format!("the file is not UTF-8 text and cannot be edited here: {shown}"))
    })
}

/// Why a text could not be replaced.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    NotThere,
    Several(usize),
}

impl Fault {
    fn explained(&self, shown: &str) -> FileError {
        FileError::Usage(match self {
            Self::NotThere => format!(
                "`old_string` is not in the file; it must match exactly, spaces and line breaks included: {shown}"
            ),
            Self::Several(count) => format!(
                "`old_string` is in the file {count} times; add lines around it to make it unique, or set `replace_all`: {shown}"
            ),
        })
    }
}

/// The content after the replacement, and how many there were.
fn replaced(content: &str, input: &Input) -> Result<(String, usize), Fault> {
    let (old, new) = with_line_endings_of(content, &input.old_string, &input.new_string);
    match content.matches(old.as_ref()).count() {
        0 => Err(Fault::NotThere),
        1 => Ok((content.replacen(old.as_ref(), &new, 1), 1)),
        count if input.replace_all => Ok((content.replace(old.as_ref(), &new), count)),
        count => Err(Fault::Several(count)),
    }
}

/// Models see and write `\n`. In a file with `\r\n` the text to find is tried as written first and then
/// with the file's line endings; what is put in gets them too, unless the file mixes both and matched as
/// written.
fn with_line_endings_of<'a>(content: &str, old: &'a str, new: &'a str) -> (Cow<'a, str>, Cow<'a, str>) {
    if !content.contains("\r\n") {
        return (Cow::Borrowed(old), Cow::Borrowed(new));
    }
    if content.contains(old) {
        let only_crlf = content.matches('\n').count() == content.matches("\r\n").count();
        let new = if only_crlf { with_crlf(new) } else { Cow::Borrowed(new) };
        return (Cow::Borrowed(old), new);
    }
    (with_crlf(old), with_crlf(new))
}

fn with_crlf(text: &str) -> Cow<'_, str> {
    if !text.contains('\n') {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace("\r\n", "\n").replace('\n', "\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn input(old: &str, new: &str, replace_all: bool) -> Input {
        Input {
            file_path: String::new(),
            old_string: old.to_owned(),
            new_string: new.to_owned(),
            replace_all,
        }
    }

    #[test]
    fn one_many_none() {
        let cases = [
            ("abc", "b", "x", false, Ok(("axc", 1))),
            ("abab", "ab", "x", false, Err(Fault::Several(2))),
            ("abab", "ab", "x", true, Ok(("xx", 2))),
            ("abc", "z", "x", true, Err(Fault::NotThere)),
            ("abc", "abc", "", false, Ok(("", 1))),
            ("aaa", "aa", "b", false, Ok(("ba", 1))),
        ];
        for (content, old, new, all, expected) in cases {
            let result = replaced(content, &input(old, new, all));
            assert_eq!(result, expected.map(|(text, count)| (text.to_owned(), count)), "{content} {old}");
        }
    }

    #[test]
    fn line_endings_of_the_file_are_kept() {
        let cases = [
            // Found as written in one line; the new lines end like the others.
            ("a\r\nb\r\n", "a", "x\ny", "x\r\ny\r\nb\r\n"),
            // Found with the file's line endings.
            ("a\r\nb\r\nc\r\n", "a\nb", "x\ny", "x\r\ny\r\nc\r\n"),
            ("a\r\nb\r\nc\r\n", "a\r\nb", "x\ny", "x\r\ny\r\nc\r\n"),
            // A mixed file: where it matched as written, what is written goes in.
            ("a\nb\r\nc\r\n", "a\n", "x\ny\n", "x\ny\nb\r\nc\r\n"),
            ("a\nb\r\nc\r\n", "b\nc", "x\ny", "a\nx\r\ny\r\n"),
            // A file with plain line ends gets exactly what is written.
            ("a\nb\n", "a", "x\r\ny", "x\r\ny\nb\n"),
        ];
        for (content, old, new, expected) in cases {
            assert_eq!(
                replaced(content, &input(old, new, false)).unwrap().0,
                expected,
                "{content:?} {old:?}"
            );
        }
    }

    proptest! {
        /// Whatever the texts: exactly the matched part changes, and a refusal says the truth.
        #[test]
        fn only_what_matched_is_changed(
            content in "[ab\r\n]{0,40}|\\PC{0,40}", old in "[ab\r\n]{1,4}|\\PC{1,3}", new in "[ab\n]{0,4}|\\PC{0,3}", all: bool
        ) {
            match replaced(&content, &input(&old, &new, all)) {
                Ok((result, count)) => {
                    let (old, new) = with_line_endings_of(&content, &old, &new);
                    prop_assert!(count == 1 || all);
                    prop_assert_eq!(content.matches(old.as_ref()).count(), count);
                    prop_assert_eq!(result.len() + count * old.len(), content.len() + count * new.len());
                    let mut rest = result.as_str();
                    let kept: Vec<&str> = content.split(old.as_ref()).collect();
                    for (index, part) in kept.iter().enumerate() {
                        rest = rest.strip_prefix(part).unwrap();
                        if index + 1 < kept.len() {
                            rest = rest.strip_prefix(new.as_ref()).unwrap();
                        }
                    }
                    prop_assert_eq!(rest, "");
                }
                Err(Fault::NotThere) => prop_assert!(!content.contains(&old)),
                Err(Fault::Several(count)) => prop_assert!(count > 1 && !all),
            }
        }
    }
}
