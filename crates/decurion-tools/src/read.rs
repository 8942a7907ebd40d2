//! Read: a file for the model. Takes a path and perhaps a range of lines; gives numbered lines, or an
//! image, a document or a notebook in the form a model takes it. What was read counts as seen.

use std::io::{BufRead, BufReader, Read as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Access, Block, Intent, ToolContent, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::files::{self, FileAccess, FileError, Opened};
use crate::files_seen::{content_hash, saw};
use crate::lines::{Lines, Range};
use crate::{InputError, Surroundings, Tool, ToolContext, ToolSpec, notebook, paths, typed};

const NAME: &str = "Read";
/// How much of a file is looked at to tell what it is.
const HEAD: usize = 8 << 10;
/// Files beyond this are not read to their end once the lines asked for are found.
const READ_THROUGH: u64 = 64 << 20;

#[derive(Debug)]
pub struct Read {
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct Input {
    file_path: String,
    offset: Option<u64>,
    limit: Option<u64>,
    pages: Option<String>,
    #[serde(default)]
    allow_large: bool,
}

impl Input {
    fn is_partial(&self) -> bool {
        self.offset.is_some() || self.limit.is_some()
    }
}

impl Default for Read {
    fn default() -> Self {
        const MAX: u64 = 9_007_199_254_740_991;
        let input_schema = json!({
            "type": "object",
            "properties": {
                "file_path": {"type": "string"},
                "offset": {"type": "integer", "minimum": 0, "maximum": MAX, "description": "First line, from 1"},
                "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": MAX, "description": "How many lines"},
                "pages": {"type": "string"},
                "allow_large": {"type": "boolean"}
            },
            "required": ["file_path"],
            "additionalProperties": false
        });
        Self { spec: ToolSpec::new(NAME, include_str!("read.md"), input_schema) }
    }
}

impl Read {
    fn parse(&self, input: &Value, around: &Surroundings) -> Result<(Input, Utf8PathBuf), InputError> {
        let input: Input = typed::parse(&self.spec, input)?;
        let path = paths::absolute(NAME, "file_path", &input.file_path, around)?;
        Ok((input, path))
    }
}

impl Tool for Read {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, around: &Surroundings) -> Result<Intent, InputError> {
        let (_, path) = self.parse(input, around)?;
        let title = paths::title(NAME, paths::shown(&path, around));
        Ok(Intent::titled(title).together().touching(path, Access::Read))
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            match self.parse(&input, &cx.around) {
                Ok((input, path)) => files::reading(cx, move |access| read(access, &path, &input)).await,
                Err(error) => error.into(),
            }
        })
    }
}

fn read(access: &FileAccess, lexical: &Utf8Path, input: &Input) -> Result<ToolOutput, FileError> {
    let mut opened = files::open_file(access, lexical)?;
    let mut head = Vec::with_capacity(HEAD);
    let mut file = &opened.file;
    file.by_ref().take(HEAD as u64).read_to_end(&mut head).map_err(|error| FileError::io(lexical, error))?;
    std::io::Seek::rewind(&mut opened.file).map_err(|error| FileError::io(lexical, error))?;
    match Kind::of(lexical, &head) {
        Kind::Image(media_type) => image(access, lexical, opened, input, media_type),
        Kind::Document => document(access, lexical, opened, input),
        Kind::Notebook if !input.is_partial() => read_notebook(access, lexical, opened),
        Kind::Binary => Err(FileError::Said(format!(
            "this is a binary file and cannot be read as text: {}",
            paths::shown(lexical, &access.around)
        ))),
        Kind::Text | Kind::Notebook => text(access, lexical, &opened, input),
    }
}

/// What a file is, by its first bytes.
enum Kind {
    Text,
    Binary,
    Notebook,
    Document,
    Image(&'static str),
}

impl Kind {
    fn of(path: &Utf8Path, head: &[u8]) -> Self {
        if let Some(media_type) = image_type(head) {
            Self::Image(media_type)
        } else if head.starts_with(b"%PDF-") {
            Self::Document
        } else if memchr::memchr(0, head).is_some() {
            Self::Binary
        } else if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("ipynb")) {
            Self::Notebook
        } else {
            Self::Text
        }
    }
}

fn image_type(head: &[u8]) -> Option<&'static str> {
    match head {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

fn text(
    access: &FileAccess,
    lexical: &Utf8Path,
    opened: &Opened,
    input: &Input,
) -> Result<ToolOutput, FileError> {
    let limits = &access.limits;
    let shown = paths::shown(lexical, &access.around);
    if opened.size > limits.read_bytes && !input.allow_large && !input.is_partial() {
        return Err(FileError::Said(format!(
            "the file has {} bytes, more than the {} given at once; read a part with `offset` and `limit`, or set `allow_large`: {shown}",
            opened.size, limits.read_bytes
        )));
    }
    let range = Range {
        first: input.offset.unwrap_or(1).max(1),
        count: input.limit.unwrap_or(u64::MAX),
        bytes: if input.allow_large { limits.read_large_bytes } else { limits.read_bytes },
        line_chars: limits.line_chars,
    };
    // A file too large to be edited need not be hashed: no edit will ask for it.
    let hashed = opened.size <= limits.edit_bytes;
    let through = opened.size <= READ_THROUGH;
    let mut lines = Lines::new(range, hashed);
    let ended = feed(access, lexical, opened, &mut lines, through)?;
    let read = lines.finish(ended);
    let mut output = ToolOutput::text(read.for_model(shown)).with_structured(json!({
        "type": "text",
        "file": {
            "filePath": lexical, "content": read.content, "numLines": read.count,
            "startLine": read.first, "totalLines": read.total,
        },
    }));
    if let Some(hash) = read.hash.filter(|_| ended) {
        output = output.with_effect(saw(&opened.path, hash));
    }
    Ok(output)
}

/// Gives the file to `lines` piece by piece; tells whether it was read to its end.
fn feed(
    access: &FileAccess,
    lexical: &Utf8Path,
    opened: &Opened,
    lines: &mut Lines,
    through: bool,
) -> Result<bool, FileError> {
    let mut reader = BufReader::with_capacity(64 << 10, &opened.file);
    loop {
        if access.cancel.is_cancelled() {
            return Err(FileError::Interrupted(lexical.to_owned()));
        }
        let piece = reader.fill_buf().map_err(|error| FileError::io(lexical, error))?;
        if piece.is_empty() {
            return Ok(true);
        }
        lines.take(piece);
        let length = piece.len();
        reader.consume(length);
        if lines.is_done() && !through {
            return Ok(false);
        }
    }
}

fn image(
    access: &FileAccess,
    lexical: &Utf8Path,
    opened: Opened,
    input: &Input,
    media_type: &str,
) -> Result<ToolOutput, FileError> {
    refuse_text_options(input, "an image")?;
    // What counts is the size as sent, which base64 makes a third larger.
    let content = whole(access, lexical, opened, access.limits.image_bytes / 4 * 3)?;
    let source = json!({"type": "base64", "media_type": media_type, "data": STANDARD.encode(&content.bytes)});
    let structured = json!({
        "type": "image",
        "file": {"filePath": lexical, "type": media_type, "originalSize": content.bytes.len()},
    });
    Ok(content.output(ToolContent::Blocks(vec![Block::Image { source }])).with_structured(structured))
}

fn document(
    access: &FileAccess,
    lexical: &Utf8Path,
    opened: Opened,
    input: &Input,
) -> Result<ToolOutput, FileError> {
    refuse_text_options(input, "a PDF")?;
    if input.pages.is_some() {
        return Err(FileError::Usage(
            "pages of a PDF cannot be chosen in this version; leave `pages` out to get all of it, or take pages out with a command".to_owned(),
        ));
    }
    let content = whole(access, lexical, opened, access.limits.document_bytes)?;
    let source =
        json!({"type": "base64", "media_type": "application/pdf", "data": STANDARD.encode(&content.bytes)});
    let structured =
        json!({"type": "pdf", "file": {"filePath": lexical, "originalSize": content.bytes.len()}});
    Ok(content.output(ToolContent::Blocks(vec![Block::Document { source }])).with_structured(structured))
}

fn read_notebook(access: &FileAccess, lexical: &Utf8Path, opened: Opened) -> Result<ToolOutput, FileError> {
    let content = whole(access, lexical, opened, access.limits.document_bytes)?;
    let shown = paths::shown(lexical, &access.around);
    let parsed = notebook::parse(&content.bytes).map_err(|problem| {
        FileError::Said(format!("{problem}; `offset` and `limit` show the file as text: {shown}"))
    })?;
    let rendered = notebook::render(&parsed, &access.limits);
    let structured = json!({"type": "notebook", "file": {"filePath": lexical, "cells": rendered.cells}});
    Ok(content.output(ToolContent::Blocks(rendered.blocks)).with_structured(structured))
}

fn refuse_text_options(input: &Input, what: &str) -> Result<(), FileError> {
    if input.is_partial() {
        return Err(FileError::Usage(format!("`offset` and `limit` are for text; this is {what}")));
    }
    Ok(())
}

/// A file read whole.
struct Whole {
    path: Utf8PathBuf,
    bytes: Vec<u8>,
}

fn whole(access: &FileAccess, lexical: &Utf8Path, opened: Opened, limit: u64) -> Result<Whole, FileError> {
    let path = opened.path.clone();
    let bytes = files::read_all(opened, lexical, limit)?;
    if access.cancel.is_cancelled() {
        return Err(FileError::Interrupted(lexical.to_owned()));
    }
    Ok(Whole { path, bytes })
}

impl Whole {
    fn output(&self, content: ToolContent) -> ToolOutput {
        ToolOutput { content, is_error: false, structured: None, effects: Vec::new() }
            .with_effect(saw(&self.path, content_hash(&self.bytes)))
    }
}
