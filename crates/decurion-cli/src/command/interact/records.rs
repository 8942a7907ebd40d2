//! What the front end wants of files: the conversation as Markdown, the last exchange of a session, the instruction and
//! memory files that sessions read, a directory. Takes settings and records; gives text, or why there is none.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_config::memory::INDEX;
use decurion_config::{InstructionRequest, Loaded};
use decurion_protocol::event::Origin;
use decurion_protocol::{Block, Envelope, Event, Message, Role, SessionId};
use decurion_store::{Archive, Found};
use decurion_tui::conversation::typed_text;
use serde_json::json;

/// How much of each side of the last exchange is shown.
const MOST_PREVIEW: usize = 240;
/// A longer record is not read for a preview.
const MOST_PREVIEWED: u64 = 32 << 20;
/// How many folders of memories are looked through.
const MOST_MEMORIES: usize = 200;

/// What is on record of the session's own conversation.
fn recorded(loaded: &Loaded, session: SessionId) -> Result<Vec<Envelope>, String> {
    let nothing = || "this session keeps no record".to_owned();
    let state = loaded.paths.state.as_deref().ok_or_else(nothing)?;
    let archive = Archive::new(state);
    let Some(Found::Ours(paths)) = archive.find(session, &[]) else { return Err(nothing()) };
    let mut past = archive.since(&paths, 0).map_err(|error| format!("cannot read the record: {error}"))?;
    past.retain(|envelope| envelope.agent.is_none());
    Ok(past)
}

/// The last prompt of a session and what was answered, a line for each.
pub fn preview(loaded: &Loaded, session: &str) -> Result<String, String> {
    let id: SessionId = session.parse().map_err(|_| format!("not a session: {session}"))?;
    let state = loaded.paths.state.as_deref().ok_or("there is no state folder")?;
    if let Some(Found::Ours(paths)) = Archive::new(state).find(id, &[]) {
        let is_long = paths.transcript().metadata().is_ok_and(|file| file.len() > MOST_PREVIEWED);
        if is_long {
            return Ok(String::new());
        }
    }
    let (mut asked, mut said) = (String::new(), String::new());
    for envelope in recorded(loaded, id)? {
        match envelope.event {
            Event::Message { message, meta, .. } if is_prompt(&message, &meta.origin) => {
                asked = typed_text(&message);
                said.clear();
            }
            Event::Message { message, meta, .. } if meta.origin == Origin::Model => {
                let text = message.text();
                if !text.trim().is_empty() {
                    said = text;
                }
            }
            _ => {}
        }
    }
    Ok(format!("> {}\n● {}", beginning(&asked), beginning(&said)))
}

fn is_prompt(message: &Message, origin: &Origin) -> bool {
    message.role == Role::User && *origin == Origin::Prompt
}

/// The beginning of a text, in one line.
fn beginning(text: &str) -> String {
    let line = decurion_serve::progress::one_line(text);
    let mut shown: String = line.chars().take(MOST_PREVIEW).collect();
    if shown.len() < line.len() {
        shown.push('…');
    }
    shown
}

/// Writes the conversation to a file of that name, which must not be there yet; gives where that is. A name that ends in
/// `.jsonl` gets the transcript.
pub fn export(loaded: &Loaded, session: SessionId, file: &str) -> Result<String, String> {
    let path = absolute(loaded, file);
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => format!("{path} exists already; choose another name"),
        _ => format!("cannot write {path}: {error}"),
    };
    let text = if path.extension() == Some("jsonl") {
        let state = loaded.paths.state.as_deref().ok_or("this session keeps no record")?;
        let Some(Found::Ours(paths)) = Archive::new(state).find(session, &[]) else {
            return Err("this session keeps no record".to_owned());
        };
        std::fs::read(paths.transcript()).map_err(|error| format!("cannot read the record: {error}"))?
    } else {
        markdown(&recorded(loaded, session)?).into_bytes()
    };
    let mut options = std::fs::OpenOptions::new();
    let mut out = options.write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
    out.write_all(&text).map_err(failed)?;
    Ok(format!("wrote {path}"))
}

/// A conversation as Markdown: prompts, answers, and a line for each call.
fn markdown(past: &[Envelope]) -> String {
    let mut text = String::from("# Conversation\n");
    for envelope in past {
        match &envelope.event {
            Event::Message { message, meta, .. } if is_prompt(message, &meta.origin) => {
                let quoted =
                    typed_text(message).lines().map(|line| format!("> {line}\n")).collect::<String>();
                // Writing to a String cannot fail.
                let _ = write!(text, "\n## Prompt\n\n{quoted}");
            }
            Event::Message { message, meta, .. } if meta.origin == Origin::Model => {
                for block in &message.blocks {
                    if let Block::Text { text: said } = block
                        && !said.trim().is_empty()
                    {
                        let _ = write!(text, "\n{}\n", said.trim());
                    }
                }
            }
            Event::CallStarted { intent, .. } => {
                let title = decurion_serve::progress::one_line(&intent.title).replace('`', "'");
                let _ = write!(text, "\n- `{title}`\n");
            }
            Event::Compacted { .. } => text.push_str("\n*The conversation was compacted here.*\n"),
            _ => {}
        }
    }
    text
}

/// A path as people write it: from the project, or from their home folder.
fn shown(loaded: &Loaded, path: &Utf8Path) -> String {
    let home = loaded.paths.home.as_deref();
    match (path.strip_prefix(&loaded.paths.root), home.and_then(|home| path.strip_prefix(home).ok())) {
        (Ok(inside), _) => inside.to_string(),
        (_, Some(below)) => format!("~/{below}"),
        _ => path.to_string(),
    }
}

/// A path as a person writes it, from the working directory or the home folder.
fn absolute(loaded: &Loaded, path: &str) -> Utf8PathBuf {
    let home = loaded.paths.home.as_ref();
    let path = match (home, path.strip_prefix("~/")) {
        (Some(home), Some(rest)) => home.join(rest),
        _ if path == "~" => home.cloned().unwrap_or_else(|| path.into()),
        _ => loaded.paths.cwd.join(path),
    };
    decurion_tools::paths::normalised(&path)
}

/// A directory that a person names.
pub fn directory(loaded: &Loaded, path: &str) -> Result<String, String> {
    let path = absolute(loaded, path);
    match path.metadata() {
        Ok(found) if found.is_dir() => Ok(path.into_string()),
        Ok(_) => Err(format!("not a directory: {path}")),
        Err(error) => Err(format!("cannot add {path}: {error}")),
    }
}

/// The instruction files that sessions here read, and the memories of agents, as JSON lines; and the file that `/init`
/// or an editor would begin.
pub fn memories(loaded: &Loaded) -> String {
    let mut rows: Vec<(Utf8PathBuf, String)> = Vec::new();
    for file in InstructionRequest::new(loaded).0.load().files {
        let about = match &file.imported_by {
            Some(from) => format!("imported by {from}"),
            None if file.path.starts_with(&loaded.paths.root) => "project instructions".to_owned(),
            None => "your instructions".to_owned(),
        };
        rows.push((file.path, about));
    }
    let paths = &loaded.paths;
    let own = paths.state.iter().map(|state| (state.join("agent-memory"), "your memory of the agent"));
    let project = [".decurion/agent-memory", ".decurion/agent-memory-local"]
        .map(|folder| (paths.root.join(folder), "the project's memory of the agent"));
    for (folder, words) in own.chain(project) {
        rows.extend(indexes(&folder).map(|(agent, file)| (file, format!("{words} {agent}"))));
    }
    let agents = paths.root.join("AGENTS.md");
    if !rows.iter().any(|(path, _)| path.parent() == Some(paths.root.as_path())) {
        rows.push((agents, "project instructions (new)".to_owned()));
    }
    if let Some(own) = paths.state.as_ref().map(|state| state.join("AGENTS.md"))
        && !rows.iter().any(|(path, _)| *path == own)
    {
        rows.push((own, "your instructions (new)".to_owned()));
    }
    let row = |(path, about): (Utf8PathBuf, String)| {
        format!("{}\n", json!({"path": path, "shown": shown(loaded, &path), "about": about}))
    };
    rows.into_iter().map(row).collect()
}

/// The memories below a folder, by their agents.
fn indexes(folder: &Utf8Path) -> impl Iterator<Item = (String, Utf8PathBuf)> + use<> {
    let mut found: Vec<(String, Utf8PathBuf)> = Vec::new();
    for entry in folder.read_dir_utf8().into_iter().flatten().flatten().take(MOST_MEMORIES) {
        let file = entry.path().join(INDEX);
        if file.is_file() {
            found.push((entry.file_name().to_owned(), file));
        }
    }
    found.sort();
    found.into_iter()
}
