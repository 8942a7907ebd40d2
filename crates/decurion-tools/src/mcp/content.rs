//! A server's result as the model reads it. Takes the JSON of the protocol, gives bounded blocks: long text
//! goes to a file, images are checked for type and size, other data is kept in a file and named.

use std::io::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use camino::Utf8PathBuf;
use decurion_protocol::{Block, ToolContent, ToolOutput};
use serde_json::{Value, json};

use crate::ToolContext;

/// What models take as images.
const IMAGES: &[&str] = &["image/png", "image/jpeg", "image/gif", "image/webp"];
/// How many blocks of a result are looked at.
const MOST_BLOCKS: usize = 200;
/// How much structured content programs are given.
const STRUCTURED_BYTES: usize = 100_000;

/// The result of `tools/call`.
pub(crate) async fn call_result(cx: &ToolContext, result: &Value) -> ToolOutput {
    let empty = Vec::new();
    let content = result.get("content").and_then(Value::as_array).unwrap_or(&empty);
    let structured = result.get("structuredContent").filter(|value| !value.is_null());
    let mut parts = Parts::default();
    for block in content.iter().take(MOST_BLOCKS) {
        parts.add(cx, block).await;
    }
    if content.len() > MOST_BLOCKS {
        parts.text(&format!("[{} more parts are left out]", content.len() - MOST_BLOCKS));
    }
    if content.is_empty() {
        match structured {
            Some(structured) => parts.text(&structured.to_string()),
            // Not what the protocol says, and perhaps still of use.
            None if result.get("content").is_none_or(|content| !content.is_array())
                && *result != json!({}) =>
            {
                parts.text(&result.to_string());
            }
            None => parts.text("(no content)"),
        }
    }
    let mut output = parts.finish(cx).await;
    output.is_error = result.get("isError").and_then(Value::as_bool).unwrap_or(false);
    output.structured = structured.filter(|value| value.to_string().len() <= STRUCTURED_BYTES).cloned();
    output
}

/// The result of `resources/read`.
pub(crate) async fn resource_result(cx: &ToolContext, result: &Value) -> ToolOutput {
    let mut parts = Parts::default();
    let contents = result.get("contents").and_then(Value::as_array);
    for resource in contents.into_iter().flatten().take(MOST_BLOCKS) {
        parts.resource(cx, resource).await;
    }
    if parts.blocks.is_empty() && parts.text.is_empty() {
        parts.text("(no content)");
    }
    parts.finish(cx).await
}

/// The result of `prompts/get`, as blocks of a prompt; none if it is empty.
pub(crate) async fn prompt_result(cx: &ToolContext, result: &Value) -> Option<ToolContent> {
    let mut parts = Parts::default();
    let messages = result.get("messages").and_then(Value::as_array);
    for message in messages.into_iter().flatten().take(MOST_BLOCKS) {
        // One message of the user holds them all, so the words of the other side are marked.
        if message.get("role").and_then(Value::as_str) == Some("assistant") {
            parts.text("[as the assistant:]");
        }
        match message.get("content") {
            Some(Value::String(text)) => parts.text(text),
            Some(Value::Array(blocks)) => {
                for block in blocks.iter().take(MOST_BLOCKS) {
                    parts.add(cx, block).await;
                }
            }
            Some(block) => parts.add(cx, block).await,
            None => {}
        }
    }
    if parts.blocks.is_empty() && parts.text.trim().is_empty() {
        return None;
    }
    Some(parts.finish(cx).await.content)
}

/// What is gathered of a result: texts joined, images between them.
#[derive(Default)]
struct Parts {
    text: String,
    images: usize,
    blocks: Vec<Block>,
}

impl Parts {
    fn text(&mut self, text: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(text);
    }

    async fn add(&mut self, cx: &ToolContext, block: &Value) {
        let get = |key: &str| block.get(key).and_then(Value::as_str).unwrap_or_default();
        match get("type") {
            "text" => self.text(get("text")),
            "image" => self.data(cx, get("mimeType"), get("data"), "an image").await,
            "audio" => self.data(cx, get("mimeType"), get("data"), "a sound").await,
            "resource" => {
                if let Some(resource) = block.get("resource") {
                    self.resource(cx, resource).await;
                }
            }
            "resource_link" => {
                let about = match get("description") {
                    "" => String::new(),
                    about => format!(" — {about}"),
                };
                self.text(&format!("[resource {}: {}{about}]", get("name"), get("uri")));
            }
            _ => self.text(&block.to_string()),
        }
    }

    async fn resource(&mut self, cx: &ToolContext, resource: &Value) {
        let get = |key: &str| resource.get(key).and_then(Value::as_str);
        let uri = get("uri").unwrap_or_default();
        match (get("text"), get("blob")) {
            (Some(text), _) => self.text(&format!("[resource {uri}]\n{text}")),
            (None, Some(blob)) => {
                self.text(&format!("[resource {uri}]"));
                self.data(cx, get("mimeType").unwrap_or_default(), blob, "data").await;
            }
            (None, None) => self.text(&format!("[resource {uri}, empty]")),
        }
    }

    /// Shows an image that models take; keeps everything else in a file.
    async fn data(&mut self, cx: &ToolContext, mime: &str, data: &str, what: &str) {
        let most = usize::try_from(cx.limits.image_bytes).unwrap_or(usize::MAX);
        let Ok(bytes) = BASE64_STANDARD.decode(data) else {
            return self.text(&format!("[{what} that is not valid base64]"));
        };
        if IMAGES.contains(&mime) && data.len() <= most && self.images < 20 {
            self.images += 1;
            self.flush();
            let source = json!({"type": "base64", "media_type": mime, "data": data});
            return self.blocks.push(Block::Image { source });
        }
        let size = bytes.len();
        let mime: String = mime.chars().filter(char::is_ascii_graphic).take(60).collect();
        match keep(cx, bytes, extension(&mime)).await {
            Ok(path) => self.text(&format!("[{what} ({mime}, {size} bytes) is in {path}]")),
            Err(error) => self.text(&format!("[{what} ({mime}, {size} bytes) could not be kept: {error}]")),
        }
    }

    fn flush(&mut self) {
        if !self.text.is_empty() {
            let text = std::mem::take(&mut self.text);
            self.blocks.push(Block::Text { text });
        }
    }

    async fn finish(mut self, cx: &ToolContext) -> ToolOutput {
        self.flush();
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for block in self.blocks {
            blocks.push(match block {
                Block::Text { text } => Block::Text { text: bounded(cx, text).await },
                other => other,
            });
        }
        let content = match <[Block; 1]>::try_from(blocks) {
            Ok([Block::Text { text }]) => ToolContent::Text(text),
            Ok([other]) => ToolContent::Blocks(vec![other]),
            Err(blocks) => ToolContent::Blocks(blocks),
        };
        ToolOutput { content, ..ToolOutput::text("") }
    }
}

/// A text short enough for the conversation: its beginning, its end, and where all of it is.
async fn bounded(cx: &ToolContext, text: String) -> String {
    let limits = &cx.limits;
    let count = text.chars().count();
    if count <= limits.inline_chars {
        return text;
    }
    let head: String = text.chars().take(limits.head_chars).collect();
    let tail: String = text.chars().skip(count.saturating_sub(limits.tail_chars)).collect();
    let cut = text.len() - head.len() - tail.len();
    let total = text.len();
    let place = match keep(cx, text.into_bytes(), "txt").await {
        Ok(path) => format!("; all of it ({total} bytes) is in {path}"),
        Err(error) => format!("; it could not be kept in a file: {error}"),
    };
    format!("{head}\n\n[{cut} bytes cut here{place}]\n\n{tail}")
}

async fn keep(cx: &ToolContext, mut bytes: Vec<u8>, extension: &'static str) -> std::io::Result<Utf8PathBuf> {
    bytes.truncate(usize::try_from(cx.limits.spill_bytes).unwrap_or(usize::MAX));
    let (spill, call) = (cx.spill.clone(), cx.call.clone());
    let writing = tokio::task::spawn_blocking(move || {
        let mut made = spill.create(&call, extension)?;
        made.file.write_all(&bytes)?;
        made.file.flush()?;
        Ok(made.path)
    });
    writing.await.map_err(std::io::Error::other)?
}

fn extension(mime: &str) -> &'static str {
    match mime {
        "image/png" => "png",
        "image/jpeg" => "jpg",
        "image/gif" => "gif",
        "image/webp" => "webp",
        "application/pdf" => "pdf",
        "audio/wav" => "wav",
        "audio/mpeg" => "mp3",
        "application/json" => "json",
        _ => "bin",
    }
}
