//! Glob: files by name. Takes a pattern and perhaps a directory; gives the paths that match, newest first.

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Access, Intent, ToolOutput};
use globset::{GlobBuilder, GlobMatcher};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::files::{self, FileAccess, FileError};
use crate::search::{self, Filter};
use crate::{InputError, Surroundings, Tool, ToolContext, ToolSpec, paths, typed};

const NAME: &str = "Glob";

#[derive(Debug)]
pub struct Glob {
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct Input {
    pattern: String,
    path: Option<String>,
}

/// A pattern taken apart: where to look, and what to match there.
struct Request {
    base: Utf8PathBuf,
    matcher: GlobMatcher,
    /// How deep matches can be; none where `**` allows any depth.
    depth: Option<usize>,
    written: String,
}

impl Default for Glob {
    fn default() -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string"},
                "path": {"type": "string", "description": "Directory to look in"}
            },
            "required": ["pattern"],
            "additionalProperties": false
        });
        Self { spec: ToolSpec::new(NAME, include_str!("glob.md"), input_schema) }
    }
}

impl Glob {
    fn parse(&self, input: &Value, around: &Surroundings) -> Result<Request, InputError> {
        let input: Input = typed::parse(&self.spec, input)?;
        if input.pattern.is_empty() {
            return Err(InputError::new(NAME, "`pattern` is empty"));
        }
        let directory = match &input.path {
            None => around.cwd.clone(),
            Some(path) => paths::absolute(NAME, "path", path, around)?,
        };
        let (fixed, rest) = split(&input.pattern);
        let base = if fixed.is_empty() {
            directory
        } else {
            paths::absolute(NAME, "pattern", fixed, &Surroundings { cwd: directory, ..around.clone() })?
        };
        if rest.split('/').any(|name| name == "..") {
            return Err(InputError::new(
                NAME,
                "`pattern` goes up (`..`) after a wildcard; use `path` for that",
            ));
        }
        let glob = GlobBuilder::new(rest)
            .literal_separator(true)
            .build()
            .map_err(|error| InputError::new(NAME, format!("`pattern` is not a glob: {}", error.kind())))?;
        let depth = (!rest.contains("**")).then(|| rest.split('/').count());
        Ok(Request { base, matcher: glob.compile_matcher(), depth, written: input.pattern })
    }
}

/// The part of a pattern before its first wildcard, by whole names, and the rest.
fn split(pattern: &str) -> (&str, &str) {
    let wild = pattern.find(['*', '?', '[', '{', '\\']).unwrap_or(pattern.len());
    match pattern[..wild].rfind('/') {
        None => ("", pattern),
        Some(0) => ("/", &pattern[1..]),
        Some(slash) => (&pattern[..slash], &pattern[slash + 1..]),
    }
}

impl Tool for Glob {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, around: &Surroundings) -> Result<Intent, InputError> {
        let request = self.parse(input, around)?;
        let title = paths::title(NAME, &request.written);
        Ok(Intent::titled(title).together().touching(request.base, Access::Read))
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            match self.parse(&input, &cx.around) {
                Ok(request) => files::reading(cx, move |access| glob(access, &request)).await,
                Err(error) => error.into(),
            }
        })
    }
}

fn glob(access: &FileAccess, request: &Request) -> Result<ToolOutput, FileError> {
    let root = files::readable(access, &request.base)?;
    if !root.is_dir() {
        return Err(FileError::NotDirectory(request.base.clone()));
    }
    let matches = |path: &Utf8Path| path.strip_prefix(&root).is_ok_and(|rest| request.matcher.is_match(rest));
    let filter = Filter { depth: request.depth, times: true, ..Filter::default() };
    let mut walked = search::walk(access, &root, filter, &matches)?;
    search::newest_first(&mut walked.files);
    let total = walked.files.len();
    let shown = walked.files.iter().take(access.limits.glob_paths);
    let names: Vec<String> = shown
        .map(|found| search::as_asked(&found.path, &root, &request.base))
        .map(|path| paths::shown(&path, &access.around).to_owned())
        .collect();
    let truncated = names.len() < total || walked.cut;
    let list = if total == 0 { "No files match.".to_owned() } else { names.join("\n") };
    let note = if walked.cut {
        "\n[the tree is too large to be searched to its end; name a directory below it]".to_owned()
    } else if truncated {
        format!("\n[the {} newest of {total}; narrow the pattern to see others]", names.len())
    } else {
        String::new()
    };
    let structured = json!({"numFiles": names.len(), "filenames": names, "truncated": truncated});
    Ok(ToolOutput::text(list + &note).with_structured(structured))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_split_before_its_first_wildcard() {
        let cases = [
            ("*.rs", ("", "*.rs")),
            ("src/*.rs", ("src", "*.rs")),
            ("src/a.rs", ("src", "a.rs")),
            ("a.rs", ("", "a.rs")),
            ("/etc/*", ("/etc", "*")),
            ("/*", ("/", "*")),
            ("../x/**/y", ("../x", "**/y")),
            ("src/{a,b}/c", ("src", "{a,b}/c")),
            ("s?c/a", ("", "s?c/a")),
        ];
        for (pattern, expected) in cases {
            assert_eq!(split(pattern), expected, "{pattern}");
        }
    }
}
