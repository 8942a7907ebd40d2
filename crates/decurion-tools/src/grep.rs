//! Grep: files by content. Takes a regular expression and where to look; gives matching lines, paths or
//! counts, always in the same order, and no more of them than asked for.

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Access, Intent, ToolOutput};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use ignore::overrides::OverrideBuilder;
use ignore::types::TypesBuilder;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::files::{self, FileAccess, FileError};
use crate::grep_file::{Depth, FileHits, Wanted, search_all};
use crate::search::{self, Filter, Found};
use crate::{InputError, Surroundings, Tool, ToolContext, ToolSpec, paths, typed};

const NAME: &str = "Grep";
/// The largest compiled expression.
const REGEX_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub struct Grep {
    spec: ToolSpec,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Content,
    #[default]
    FilesWithMatches,
    Count,
}

#[derive(Deserialize)]
struct Input {
    pattern: String,
    path: Option<String>,
    glob: Option<String>,
    #[serde(default)]
    output_mode: Mode,
    #[serde(rename = "-B")]
    before: Option<f64>,
    #[serde(rename = "-A")]
    after: Option<f64>,
    #[serde(rename = "-C")]
    around: Option<f64>,
    context: Option<f64>,
    #[serde(rename = "-n")]
    numbers: Option<bool>,
    #[serde(rename = "-i", default)]
    ignore_case: bool,
    #[serde(rename = "-o", default)]
    only_matching: bool,
    #[serde(rename = "type")]
    kind: Option<String>,
    head_limit: Option<f64>,
    offset: Option<f64>,
    #[serde(default)]
    multiline: bool,
}

/// How many files that were not searched are named.
const NAMED_FILES: usize = 10;

/// An input with every decision taken.
struct Request {
    pattern: String,
    matcher: RegexMatcher,
    place: Utf8PathBuf,
    glob: Option<String>,
    kind: Option<String>,
    mode: Mode,
    wanted: Wanted,
    /// Entries to give; none is as many as fit.
    limit: Option<usize>,
    skip: usize,
}

impl Default for Grep {
    fn default() -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "description": "Regular expression (Rust syntax)"},
                "path": {"type": "string", "description": "File or directory"},
                "glob": {"type": "string", "description": "Only files matching this, e.g. *.{ts,tsx}"},
                "output_mode": {"type": "string", "enum": ["content", "files_with_matches", "count"]},
                "-B": {"type": "number"},
                "-A": {"type": "number"},
                "-C": {"type": "number"},
                "context": {"type": "number"},
                "-n": {"type": "boolean"},
                "-i": {"type": "boolean"},
                "-o": {"type": "boolean"},
                "type": {"type": "string", "description": "Kind of file: rust, py, js …"},
                "head_limit": {"type": "number", "description": "Entries to give (250); 0 for all"},
                "offset": {"type": "number", "description": "Entries to skip"},
                "multiline": {"type": "boolean", "description": "Let matches span lines"}
            },
            "required": ["pattern"],
            "additionalProperties": false
        });
        Self { spec: ToolSpec::new(NAME, include_str!("grep.md"), input_schema) }
    }
}

impl Grep {
    fn parse(&self, input: &Value, around: &Surroundings) -> Result<Request, InputError> {
        let input: Input = typed::parse(&self.spec, input)?;
        let place = match &input.path {
            None => around.cwd.clone(),
            Some(path) => paths::absolute(NAME, "path", path, around)?,
        };
        let context = one_of(size("-C", input.around)?, size("context", input.context)?)?;
        let depth = match input.output_mode {
            Mode::FilesWithMatches => Depth::Any,
            Mode::Count => Depth::Count,
            Mode::Content => Depth::Lines,
        };
        let lines = |own: Option<usize>| if depth == Depth::Lines { own.or(context).unwrap_or(0) } else { 0 };
        let wanted = Wanted {
            before: lines(size("-B", input.before)?),
            after: lines(size("-A", input.after)?),
            numbers: input.numbers.unwrap_or(true),
            only_matching: input.only_matching,
            multiline: input.multiline,
            depth,
        };
        Ok(Request {
            matcher: matcher(&input)?,
            place,
            mode: input.output_mode,
            wanted,
            limit: size("head_limit", input.head_limit)?,
            skip: size("offset", input.offset)?.unwrap_or(0),
            pattern: input.pattern,
            glob: input.glob,
            kind: input.kind,
        })
    }
}

fn size(field: &str, number: Option<f64>) -> Result<Option<usize>, InputError> {
    let Some(number) = number else { return Ok(None) };
    let whole = typed::whole(NAME, field, number)?;
    Ok(Some(usize::try_from(whole).unwrap_or(usize::MAX)))
}

fn one_of(around: Option<usize>, context: Option<usize>) -> Result<Option<usize>, InputError> {
    match (around, context) {
        (Some(one), Some(other)) if one != other => {
            Err(InputError::new(NAME, "`-C` and `context` mean the same and disagree; give one"))
        }
        (one, other) => Ok(one.or(other)),
    }
}

fn matcher(input: &Input) -> Result<RegexMatcher, InputError> {
    let mut builder = RegexMatcherBuilder::new();
    builder
        .case_insensitive(input.ignore_case)
        .multi_line(true)
        .dot_matches_new_line(input.multiline)
        .size_limit(REGEX_BYTES)
        .dfa_size_limit(REGEX_BYTES);
    if !input.multiline {
        builder.line_terminator(Some(b'\n'));
    }
    builder.build(&input.pattern).map_err(|error| {
        let hint = if error.to_string().contains("not allowed in a regex") {
            "; set `multiline` to match across lines"
        } else {
            ""
        };
        InputError::new(NAME, format!("`pattern` is not a regular expression{hint}: {error}"))
    })
}

impl Tool for Grep {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, around: &Surroundings) -> Result<Intent, InputError> {
        let request = self.parse(input, around)?;
        let place = paths::shown(&request.place, around);
        let what = if place == "." { request.pattern } else { format!("{} in {place}", request.pattern) };
        Ok(Intent::titled(paths::title(NAME, &what)).together().touching(request.place, Access::Read))
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            match self.parse(&input, &cx.around) {
                Ok(request) => files::reading(cx, move |access| grep(access, &request)).await,
                Err(error) => error.into(),
            }
        })
    }
}

fn grep(access: &FileAccess, request: &Request) -> Result<ToolOutput, FileError> {
    let root = files::readable(access, &request.place)?;
    let walked = search::walk(access, &root, filter(request, &root)?, &|_| true)?;
    let mut candidates = walked.files;
    if request.mode == Mode::FilesWithMatches {
        search::newest_first(&mut candidates);
    } else {
        candidates.sort_by(|one, other| one.path.cmp(&other.path));
    }
    let limit = match request.limit {
        None => access.limits.grep_entries,
        Some(0) => usize::MAX,
        Some(limit) => limit,
    };
    let mut page = Page::new(request.skip, limit, access.limits.inline_chars);
    let alone = candidates.len() == 1 && candidates.first().is_some_and(|found| found.path == root);
    let show = |found: &Found| {
        let path = search::as_asked(&found.path, &root, &request.place);
        paths::shown(&path, &access.around).to_owned()
    };
    let enough = page.enough();
    let too_large =
        search_all(access, &request.matcher, &request.wanted, &candidates, enough, &mut |found, hits| {
            page.add(&show(found), &hits, request, alone)
        })?;
    page.notes.extend(unsearched(&too_large, access.limits.grep_file_bytes, &show));
    if walked.cut {
        page.notes
            .push("[the tree is too large to be searched to its end; name a directory below it]".to_owned());
    }
    Ok(page.output(request))
}

/// What is said of files that were not searched.
fn unsearched(files: &[Found], most: u64, show: &dyn Fn(&Found) -> String) -> Option<String> {
    if files.is_empty() {
        return None;
    }
    let mut named: Vec<String> = files.iter().map(show).collect();
    named.sort();
    named.truncate(NAMED_FILES);
    let more = match files.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "[not searched, because larger than {most} bytes: {}{more}; search these with a command]",
        named.join(", ")
    ))
}

fn filter(request: &Request, root: &Utf8Path) -> Result<Filter, FileError> {
    let overrides = match &request.glob {
        None => None,
        Some(glob) => {
            let mut builder = OverrideBuilder::new(root);
            let built = builder.add(glob).and_then(|builder| builder.build());
            Some(built.map_err(|error| FileError::Usage(format!("`glob` is not a glob: {error}")))?)
        }
    };
    let types = match &request.kind {
        None => None,
        Some(kind) => {
            let mut builder = TypesBuilder::new();
            builder.add_defaults().select(kind);
            let unknown = |_| {
                FileError::Usage(format!("`type` is not a known kind of file (use `glob` instead): {kind:?}"))
            };
            Some(builder.build().map_err(unknown)?)
        }
    };
    let times = request.mode == Mode::FilesWithMatches;
    Ok(Filter { overrides, types, depth: None, times })
}

/// The entries given, of all that are found.
struct Page {
    skip: usize,
    limit: usize,
    chars: usize,
    /// Entries found so far, skipped ones included.
    found: usize,
    entries: Vec<String>,
    used: usize,
    /// There is more than is given.
    more: bool,
    files: Vec<String>,
    matches: u64,
    notes: Vec<String>,
}

impl Page {
    fn new(skip: usize, limit: usize, chars: usize) -> Self {
        Self {
            skip,
            limit,
            chars,
            found: 0,
            entries: Vec::new(),
            used: 0,
            more: false,
            files: Vec::new(),
            matches: 0,
            notes: Vec::new(),
        }
    }

    /// How many entries of one file could ever be given; one more tells that there are others.
    fn enough(&self) -> usize {
        self.skip.saturating_add(self.limit).saturating_add(1)
    }

    /// Takes what one file gave; tells whether the search goes on.
    fn add(&mut self, path: &str, hits: &FileHits, request: &Request, alone: bool) -> bool {
        self.matches += hits.matches;
        let before = self.entries.len();
        match request.mode {
            Mode::FilesWithMatches => self.entry(path.to_owned()),
            Mode::Count => self.entry(format!("{path}:{}", hits.matches)),
            Mode::Content => {
                let separated = request.wanted.before + request.wanted.after > 0;
                if separated && self.found > 0 && !hits.lines.is_empty() {
                    self.entry("--".to_owned());
                }
                for line in &hits.lines {
                    self.entry(line.written(path, request.wanted.numbers, alone));
                }
            }
        }
        if self.entries.len() > before {
            self.files.push(path.to_owned());
        }
        self.more |= hits.cut;
        !self.more
    }

    fn entry(&mut self, text: String) {
        self.found += 1;
        if self.found <= self.skip || self.more {
            return;
        }
        if self.entries.len() >= self.limit || self.used + text.len() > self.chars {
            self.more = true;
            return;
        }
        self.used += text.len() + 1;
        self.entries.push(text);
    }

    fn output(mut self, request: &Request) -> ToolOutput {
        let given = self.entries.len();
        let mut text = self.entries.join("\n");
        if given == 0 {
            text.push_str(if self.found > 0 { "No more matches." } else { "No matches." });
        }
        if self.more {
            let next = self.skip + given;
            self.notes.push(format!("[there is more; go on with offset {next}, or narrow the search]"));
        }
        for note in &self.notes {
            text.push('\n');
            text.push_str(note);
        }
        let mut structured = json!({
            "mode": mode_name(request.mode), "numFiles": self.files.len(), "filenames": self.files,
        });
        match request.mode {
            Mode::Content => {
                structured["content"] = self.entries.join("\n").into();
                structured["numLines"] = given.into();
            }
            Mode::Count => {
                structured["content"] = self.entries.join("\n").into();
                structured["numMatches"] = self.matches.into();
            }
            Mode::FilesWithMatches => {}
        }
        if self.more {
            structured["appliedLimit"] = given.into();
        }
        if self.skip > 0 {
            structured["appliedOffset"] = self.skip.into();
        }
        ToolOutput::text(text).with_structured(structured)
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Content => "content",
        Mode::FilesWithMatches => "files_with_matches",
        Mode::Count => "count",
    }
}
