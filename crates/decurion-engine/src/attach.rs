//! Files that a prompt names with `@path`. Takes the text of a prompt; gives what stands behind it in the conversation, and
//! what the person is told about each file.
//!
//! A file is read as a call of Read would read it: hooks and rules decide, links are followed once and checked, secrets
//! are taken out, and the decision is in the audit log. Only an image outside of the working directories is asked about,
//! since a person who drops a picture on the terminal means it; what else would be asked about is left out.

use std::collections::HashSet;
use std::sync::Arc;

use decurion_protocol::mention::{self, Mention};
use decurion_protocol::{Block, CallId, Event, ToolContent, ToolEffect, ToolOutput};
use decurion_tools::{Tool, ToolContext, ToolLimits, folder, paths};
use serde_json::{Value, json};

use crate::bench::{Bench, Call};
use crate::call::{self, Confined, inline_permit, unasked_permit};
use crate::ports::new_line;

/// The kind of note that holds what is attached.
pub const ATTACHMENT: &str = "attachment";
/// How many lines of a file are attached, and how many bytes.
const MOST_LINES: u64 = 200;
const MOST_BYTES: u64 = 32 << 10;
/// How many files of a prompt are attached.
const MOST_FILES: usize = 20;
/// How many names of a prompt are looked at.
const MOST_NAMES: usize = 200;

/// What is attached to a prompt.
#[derive(Default)]
pub struct Attached {
    /// What the model reads.
    pub blocks: Vec<Block>,
    /// What it knows by that.
    pub effects: Vec<ToolEffect>,
    /// What the person is told.
    pub notices: Vec<Event>,
}

/// What a name leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Folder,
}

/// Reads what the texts of a prompt name.
pub async fn attach(bench: &Bench<'_>, prompt: &[Block]) -> Attached {
    let mut attached = Attached::default();
    let mut taken = HashSet::new();
    let texts = prompt.iter().filter_map(|block| match block {
        Block::Text { text } => Some(text.as_str()),
        _ => None,
    });
    let names: Vec<Vec<Mention>> = texts.flat_map(mention::mentions).take(MOST_NAMES).collect();
    for names in names {
        let missing = names.first().map(|mention| mention.path.clone()).filter(|path| means_file(path));
        let Some((mention, kind)) = found(bench, names).await else {
            if let Some(path) = missing {
                attached.tell("warning", format!("not attached: {path}: no such file"));
            }
            continue;
        };
        if !taken.insert((mention.path.clone(), mention.lines)) {
            continue;
        }
        if taken.len() > MOST_FILES {
            attached.tell("warning", format!("not attached: more than {MOST_FILES} files are named"));
            break;
        }
        match read(bench, &mention, kind).await {
            Ok(output) => attached.take(&mention, kind, output),
            Err(reason) => {
                attached.tell("warning", format!("not attached: {}: {reason}", mention.path));
            }
        }
    }
    attached
}

/// Whether a name is plainly that of a file, and no word or handle: it has a folder and an ending.
fn means_file(name: &str) -> bool {
    let path = camino::Utf8Path::new(name);
    path.components().count() > 1 && path.extension().is_some_and(|ending| ending.len() < 8)
}

/// The first of these names that there is a file or a folder of.
async fn found(bench: &Bench<'_>, names: Vec<Mention>) -> Option<(Mention, Kind)> {
    let around = bench.around.clone();
    let look = move || {
        names.into_iter().find_map(|mention| {
            let path = paths::absolute("Read", "file_path", &mention.path, &around).ok()?;
            let kind = if path.metadata().ok()?.is_dir() { Kind::Folder } else { Kind::File };
            Some((mention, kind))
        })
    };
    tokio::task::spawn_blocking(look).await.ok().flatten()
}

/// What is in a file or a folder, or why it may not be read.
async fn read(bench: &Bench<'_>, mention: &Mention, kind: Kind) -> Result<ToolOutput, String> {
    let tool = bench.run.tools.get("Read").cloned().ok_or("this session has no tool Read")?;
    let is_image = mention::is_image(&mention.path);
    let asks = is_image && kind == Kind::File && bench.run.rights.borrow().answers;
    let (first, count) = match mention.lines {
        Some((first, last)) => (first, (last - first + 1).min(MOST_LINES)),
        None => (1, MOST_LINES),
    };
    let whole = json!({"file_path": mention.path});
    let part = json!({"file_path": mention.path, "offset": first, "limit": count});
    let call = Call {
        id: CallId(format!("attached_{}", new_line().0.simple())),
        name: "Read".to_owned(),
        input: if is_image || kind == Kind::Folder { whole.clone() } else { part },
        line: None,
    };
    let (rules, input, confined) = if asks {
        inline_permit(bench, call.clone(), &tool).await?
    } else {
        let (rules, input) = unasked_permit(bench, call.clone(), &tool).await?;
        (rules, input, None)
    };
    let (progress, _) = tokio::sync::mpsc::channel(1);
    let mut cx = call::context(bench, &call, Arc::new(rules), progress);
    cx.limits =
        Arc::new(ToolLimits { read_bytes: cx.limits.read_bytes.min(MOST_BYTES), ..(*cx.limits).clone() });
    let cx = Confined::around(confined.as_ref(), cx);
    let output = match kind {
        Kind::Folder => folder::list(&cx, &mention.path).await,
        Kind::File => read_file(&tool, &cx, input, whole).await,
    };
    if output.is_error {
        return Err(output.content.text().trim().to_owned());
    }
    Ok(call::clean(&bench.run.equipment.redact, output))
}

/// A part of a text, or all of what has no lines.
async fn read_file(tool: &Arc<dyn Tool>, cx: &ToolContext, input: Value, whole: Value) -> ToolOutput {
    let is_whole = input == whole;
    let output = tool.run(cx, input).await;
    // Only a text has lines to choose from, and what a file is its name does not always say.
    if output.is_error && !is_whole && output.content.text().contains("are for text") {
        return tool.run(cx, whole).await;
    }
    output
}

impl Attached {
    fn tell(&mut self, level: &str, text: String) {
        self.notices.push(Event::Notice { level: level.to_owned(), text });
    }

    fn take(&mut self, mention: &Mention, kind: Kind, output: ToolOutput) {
        let path = &mention.path;
        let part = Part::of(&output, mention);
        let words = match (kind, &part) {
            (Kind::Folder, _) => "what the folder holds".to_owned(),
            (Kind::File, Some(part)) => part.words(),
            (Kind::File, None) if has_image(&output) => "an image".to_owned(),
            (Kind::File, None) => "the file".to_owned(),
        };
        let head = format!("The user's prompt names {path}. Attached: {words}.");
        match output.content {
            ToolContent::Text(mut text) => {
                if let Some(part) = part.filter(|part| part.is_cut && !text.ends_with(']')) {
                    text.push_str(&format!(
                        "\n[cut here; Read with offset {} gives the rest]",
                        part.last + 1
                    ));
                }
                self.blocks.push(Block::text(format!("{head}\n\n{text}")));
            }
            ToolContent::Blocks(blocks) => {
                self.blocks.push(Block::text(head));
                self.blocks.extend(blocks);
            }
        }
        self.effects.extend(output.effects);
        self.tell("info", format!("attached {path} ({words})"));
    }
}

fn has_image(output: &ToolOutput) -> bool {
    match &output.content {
        ToolContent::Blocks(blocks) => blocks.iter().any(|block| matches!(block, Block::Image { .. })),
        ToolContent::Text(_) => false,
    }
}

/// Which lines of a text are attached.
struct Part {
    first: u64,
    last: u64,
    /// How many it has, where that is known.
    total: Option<u64>,
    /// Whether more was meant.
    is_cut: bool,
}

impl Part {
    fn of(output: &ToolOutput, mention: &Mention) -> Option<Self> {
        let file = output.structured.as_ref().filter(|read| read["type"] == "text")?;
        let number = |name: &str| file["file"][name].as_u64();
        let (first, count, mut total) = (number("startLine")?, number("numLines")?, number("totalLines"));
        // Behind the end of the last line stands no other.
        if first == 1 && Some(count) == total && file["file"]["content"].as_str()?.ends_with('\n') {
            total = Some(count - 1);
        }
        let last = (first + count).saturating_sub(1);
        let wanted = mention.lines.map_or(u64::MAX, |(_, last)| last).min(total.unwrap_or(u64::MAX));
        Some(Self { first, last, total, is_cut: last < wanted })
    }

    fn words(&self) -> String {
        let Self { first, last, total, .. } = self;
        match total {
            Some(total) if *first == 1 && last >= total => format!("{total} lines"),
            Some(total) => format!("lines {first}-{last} of {total}"),
            None => format!("lines {first}-{last}"),
        }
    }
}
