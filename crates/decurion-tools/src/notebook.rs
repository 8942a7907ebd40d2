//! Jupyter notebooks. Takes the file's bytes; gives its cells and their outputs as a model reads them, and
//! the few ways to find, make and change a cell without disturbing the rest.

use std::borrow::Cow;

use decurion_protocol::Block;
use serde_json::{Map, Value, json};

use crate::ToolLimits;

/// Characters shown of one output.
const OUTPUT_CHARS: usize = 10_000;
/// Images shown of one notebook.
const MAX_IMAGES: usize = 10;

/// A notebook as a model reads it.
pub(crate) struct Rendered {
    pub blocks: Vec<Block>,
    /// The cells for programs: id, type and source.
    pub cells: Vec<Value>,
}

/// Reads a notebook: an object with a list of cells.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, String> {
    let notebook: Value =
        serde_json::from_slice(bytes).map_err(|error| format!("the notebook is not valid JSON ({error})"))?;
    if notebook.get("cells").is_some_and(Value::is_array) {
        Ok(notebook)
    } else {
        Err("the notebook has no list of cells (older formats are not read)".to_owned())
    }
}

/// The cells, in order.
pub(crate) fn cells(notebook: &Value) -> &[Value] {
    notebook.get("cells").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A cell's id, or for one without `cell-` and its place from 0.
pub(crate) fn cell_id(cell: &Value, index: usize) -> Cow<'_, str> {
    match cell.get("id").and_then(Value::as_str) {
        Some(id) => Cow::Borrowed(id),
        None => Cow::Owned(format!("cell-{index}")),
    }
}

/// Where the cell of this id is.
pub(crate) fn find(notebook: &Value, id: &str) -> Option<usize> {
    let cells = cells(notebook);
    cells.iter().enumerate().position(|(index, cell)| cell_id(cell, index) == id)
}

/// A text that a notebook keeps as one string or as a list of lines.
pub(crate) fn text_of(value: Option<&Value>) -> Cow<'_, str> {
    match value {
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(Value::Array(lines)) => Cow::Owned(lines.iter().filter_map(Value::as_str).collect()),
        _ => Cow::Borrowed(""),
    }
}

/// The same text as a notebook keeps it: like the text it replaces, else as a list of lines.
pub(crate) fn source_like(former: Option<&Value>, text: &str) -> Value {
    if former.is_some_and(Value::is_string) {
        return text.into();
    }
    Value::Array(text.split_inclusive('\n').map(Value::from).collect())
}

/// The language of the code cells.
pub(crate) fn language(notebook: &Value) -> &str {
    let metadata = notebook.get("metadata");
    let named = |object: &str, member: &str| metadata?.get(object)?.get(member)?.as_str();
    named("language_info", "name").or_else(|| named("kernelspec", "language")).unwrap_or("python")
}

/// Whether cells of this notebook have ids (from format 4.5 on).
pub(crate) fn has_ids(notebook: &Value) -> bool {
    let version = |member| notebook.get(member).and_then(Value::as_u64).unwrap_or(0);
    (version("nbformat"), version("nbformat_minor")) >= (4, 5)
}

pub(crate) fn new_cell(id: Option<String>, kind: &str, source: &str) -> Value {
    let mut cell = Map::new();
    cell.insert("cell_type".to_owned(), kind.into());
    if kind == "code" {
        cell.insert("execution_count".to_owned(), Value::Null);
    }
    if let Some(id) = id {
        cell.insert("id".to_owned(), id.into());
    }
    cell.insert("metadata".to_owned(), json!({}));
    if kind == "code" {
        cell.insert("outputs".to_owned(), json!([]));
    }
    cell.insert("source".to_owned(), source_like(None, source));
    Value::Object(cell)
}

/// The notebook as a model reads it, within the bounds of one read.
pub(crate) fn render(notebook: &Value, limits: &ToolLimits) -> Rendered {
    let mut page = Page { blocks: Vec::new(), text: String::new(), images: 0, used: 0 };
    let mut listed = Vec::new();
    let language = language(notebook);
    for (index, cell) in cells(notebook).iter().enumerate() {
        let id = cell_id(cell, index);
        let kind = cell.get("cell_type").and_then(Value::as_str).unwrap_or("code");
        let source = text_of(cell.get("source"));
        if (page.used + source.len()) as u64 > limits.read_bytes {
            page.push(&format!("[cut before cell {id}; `offset` and `limit` show the file as text]\n"));
            break;
        }
        let language = if kind == "code" { format!(" language=\"{language}\"") } else { String::new() };
        page.push(&format!("<cell id=\"{id}\" type=\"{kind}\"{language}>\n{source}\n</cell>\n"));
        for output in cell.get("outputs").and_then(Value::as_array).into_iter().flatten() {
            page.output(output, limits);
        }
        listed.push(json!({"cell_id": id, "cellType": kind, "source": source}));
    }
    if listed.is_empty() && page.text.is_empty() {
        page.push("[the notebook has no cells]");
    }
    Rendered { blocks: page.finish(), cells: listed }
}

/// What is being rendered: text until an image interrupts it.
struct Page {
    blocks: Vec<Block>,
    text: String,
    images: usize,
    used: usize,
}

impl Page {
    fn push(&mut self, text: &str) {
        self.used += text.len();
        self.text.push_str(text);
    }

    fn output(&mut self, output: &Value, limits: &ToolLimits) {
        let text = output_text(output);
        if !text.is_empty() {
            let shown: String = text.chars().take(OUTPUT_CHARS).collect();
            let cut = text.len() - shown.len();
            let note = if cut > 0 { format!("\n[{cut} more bytes]") } else { String::new() };
            self.push(&format!("<output>\n{}{note}\n</output>\n", shown.trim_end()));
        }
        for media_type in ["image/png", "image/jpeg"] {
            let data = text_of(output.get("data").and_then(|data| data.get(media_type)));
            if data.is_empty() {
                continue;
            }
            if self.images == MAX_IMAGES || data.len() as u64 > limits.image_bytes {
                self.push("[an image is left out]\n");
                continue;
            }
            self.images += 1;
            self.end_text();
            let data: String = data.chars().filter(|character| !character.is_whitespace()).collect();
            let source = json!({"type": "base64", "media_type": media_type, "data": data});
            self.blocks.push(Block::Image { source });
        }
    }

    fn end_text(&mut self) {
        if !self.text.is_empty() {
            self.blocks.push(Block::text(std::mem::take(&mut self.text)));
        }
    }

    fn finish(mut self) -> Vec<Block> {
        self.end_text();
        self.blocks
    }
}

fn output_text(output: &Value) -> String {
    match output.get("output_type").and_then(Value::as_str) {
        Some("stream") => text_of(output.get("text")).into_owned(),
        Some("error") => {
            let name = text_of(output.get("ename"));
            let value = text_of(output.get("evalue"));
            let trace: Vec<&str> = output
                .get("traceback")
                .and_then(Value::as_array)
                .map_or_else(Vec::new, |lines| lines.iter().filter_map(Value::as_str).collect());
            without_colours(&format!("{name}: {value}\n{}", trace.join("\n")))
        }
        _ => text_of(output.get("data").and_then(|data| data.get("text/plain"))).into_owned(),
    }
}

/// The text without terminal colours, which tracebacks are full of.
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' && characters.next_if_eq(&'[').is_some() {
            // A sequence ends with its first letter.
            while characters.next().is_some_and(|character| !character.is_ascii_alphabetic()) {}
        } else {
            plain.push(character);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_and_outputs_are_shown_and_images_are_blocks() {
        let notebook = json!({
            "nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": {"language": "julia"}},
            "cells": [
                {"cell_type": "markdown", "id": "m1", "metadata": {}, "source": ["# T\n", "x"]},
                {"cell_type": "code", "source": "1+1", "outputs": [
                    {"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n"]},
                    {"output_type": "execute_result", "data": {"text/plain": "2", "image/png": "iVBO\nRw=="}},
                    {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\u{1b}[0;31mred\u{1b}[0m"]},
                ]},
            ],
        });
        let rendered = render(&notebook, &ToolLimits::default());
        assert_eq!(rendered.cells.len(), 2);
        assert_eq!(
            serde_json::to_value(&rendered.blocks).unwrap(),
            json!([
                {"type": "text", "text": "<cell id=\"m1\" type=\"markdown\">\n# T\nx\n</cell>\n<cell id=\"cell-1\" type=\"code\" language=\"julia\">\n1+1\n</cell>\n<output>\na\nb\n</output>\n<output>\n2\n</output>\n"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
                {"type": "text", "text": "<output>\nE: v\nred\n</output>\n"},
            ])
        );
    }

    #[test]
    fn what_is_no_notebook_is_said_so() {
        assert!(parse(b"{").unwrap_err().contains("not valid JSON"));
        assert!(parse(b"{\"worksheets\":[]}").unwrap_err().contains("no list of cells"));
    }

    #[test]
    fn a_large_notebook_is_cut_with_a_note() {
        let cell = json!({"cell_type": "code", "source": "x".repeat(600)});
        let notebook = json!({"cells": vec![cell; 10]});
        let limits = ToolLimits { read_bytes: 2_000, ..ToolLimits::default() };
        let rendered = render(&notebook, &limits);
        assert!(rendered.cells.len() < 10);
        assert!(
            matches!(&rendered.blocks[0], Block::Text { text } if text.contains("[cut before cell cell-"))
        );
    }
}
