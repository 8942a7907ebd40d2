//! One task's output as it grows. Takes a session and a task, prints what an agent says and does, or what a
//! command writes, until it ends; gives the exit code of that ending.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use decurion_protocol::link::BoxStream;
use decurion_protocol::{AgentId, Block, Envelope, Event, Message, Outcome, Role, TaskId, TaskState};
use decurion_serve::progress::one_line;
use futures_util::StreamExt as _;
use serde_json::json;

use super::overview::{Overview, TaskOverview};
use super::print::{line, plain, write};
use super::session::ChosenSession;
use crate::report::{Failure, note};

/// How often a command's file is looked at.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// How much is read from it at once.
const CHUNK: usize = 64 << 10;

/// Prints a task's output until it ends, or what there is of it where its session is not live.
pub async fn follow(chosen: ChosenSession, id: &str, json: bool) -> Result<u8, Failure> {
    let Some(paths) = &chosen.record else {
        return Err(Failure::failed(format!("session {} keeps no transcript to follow", chosen.id)));
    };
    let mut past = Vec::new();
    let folded = TaskOverview::read_and(paths, &mut |envelope| {
        if envelope.agent.is_some() && is_shown(&envelope.event) {
            past.push(envelope.clone());
        }
    })?;
    let task = known(&chosen, &folded, id)?;
    let row = folded.table.row(&task).ok_or_else(|| Failure::failed("no such task"))?;
    let what = match row.agent() {
        Some(agent) => FollowTarget::Agent(agent),
        None => FollowTarget::Command(GrowingFile::new(row.record.output_file.clone())),
    };
    let mut following = TaskFollower { what, task, folded, json };
    for envelope in &past {
        following.show(envelope)?;
    }
    drop(past);
    let outcome = match chosen.live {
        Some(live) => following.until_it_ends(live.link.events).await?,
        None => following.show_the_record()?,
    };
    following.conclude(outcome.as_ref())
}

/// The whole id of a task.
fn known(chosen: &ChosenSession, folded: &TaskOverview, id: &str) -> Result<TaskId, Failure> {
    let rows = folded.table.rows().map(|row| json!({"id": row.record.task})).collect();
    let overview = Overview { session: chosen.id, live: false, rows, questions: Vec::new() };
    super::task_id(overview.find(id)?)
}

struct TaskFollower {
    what: FollowTarget,
    task: TaskId,
    folded: TaskOverview,
    json: bool,
}

enum FollowTarget {
    Agent(AgentId),
    Command(GrowingFile),
}

impl TaskFollower {
    /// Shows everything until the task's end; none if the session ends first.
    async fn until_it_ends(
        &mut self,
        mut events: BoxStream<'static, Arc<Envelope>>,
    ) -> Result<Option<Outcome>, Failure> {
        loop {
            self.show_file()?;
            if let Some(outcome) = self.outcome() {
                // It may have written between the look and its end.
                self.show_file()?;
                return Ok(Some(outcome));
            }
            let envelope = tokio::select! {
                envelope = events.next() => envelope,
                () = tokio::time::sleep(BETWEEN_LOOKS), if matches!(self.what, FollowTarget::Command(_)) => continue,
            };
            let Some(envelope) = envelope else {
                self.show_file()?;
                return Ok(None);
            };
            // What was on record already when it was read has been shown.
            if envelope.event.is_durable() && envelope.seq > self.folded.seq {
                self.folded.apply(&envelope);
                self.show(&envelope)?;
            }
        }
    }

    fn show_the_record(&mut self) -> Result<Option<Outcome>, Failure> {
        self.show_file()?;
        Ok(self.outcome())
    }

    fn outcome(&self) -> Option<Outcome> {
        match self.folded.table.row(&self.task)?.state() {
            TaskState::Ended(outcome) => Some(outcome),
            _ => None,
        }
    }

    fn show(&self, envelope: &Envelope) -> Result<(), Failure> {
        match &self.what {
            FollowTarget::Agent(agent)
                if envelope.agent.as_ref() == Some(agent) && is_shown(&envelope.event) =>
            {
                if self.json {
                    return line(&json!(envelope).to_string());
                }
                lines(&envelope.event).iter().try_for_each(|text| line(text))
            }
            _ => Ok(()),
        }
    }

    fn show_file(&mut self) -> Result<(), Failure> {
        let FollowTarget::Command(tail) = &mut self.what else { return Ok(()) };
        loop {
            let text = tail
                .more()
                .map_err(|error| Failure::failed(format!("cannot read the output {}: {error}", tail.path)))?;
            match text {
                None => return Ok(()),
                Some(text) if self.json => line(&json!({"output": text}).to_string())?,
                Some(text) => write(&plain(&text))?,
            }
        }
    }

    fn conclude(&self, outcome: Option<&Outcome>) -> Result<u8, Failure> {
        let task = &self.task;
        let Some(outcome) = outcome else {
            note(format!("{task} had not ended when its session did"));
            return Ok(Outcome::Lost.exit_code());
        };
        if self.json {
            line(&json!({"ended": task, "outcome": outcome.word()}).to_string())?;
        } else {
            note(format!("{task} has ended: {}", outcome.word()));
        }
        Ok(outcome.exit_code())
    }
}

fn is_shown(event: &Event) -> bool {
    matches!(event, Event::Message { .. } | Event::CallEnded { .. } | Event::CallRefused { .. })
}

/// What an agent said or did, for people.
fn lines(event: &Event) -> Vec<String> {
    match event {
        Event::Message { message, .. } => said(message),
        Event::CallEnded { output, .. } => vec![format!("  → {}", one_line(&output.content.text()))],
        Event::CallRefused { tool, decision, .. } => {
            vec![format!("✗ {tool} refused: {}", one_line(&decision.reason))]
        }
        _ => Vec::new(),
    }
}

fn said(message: &Message) -> Vec<String> {
    let mut lines = Vec::new();
    for block in &message.blocks {
        match (block, message.role) {
            (Block::Text { text }, Role::Assistant) => lines.push(plain(text)),
            (Block::Text { text }, Role::User) => lines.push(format!("> {}", one_line(text))),
            (Block::ToolUse { name, input, .. }, _) => {
                lines.push(format!("● {name} {}", one_line(&input.to_string())));
            }
            _ => {}
        }
    }
    lines
}

/// A file that grows.
struct GrowingFile {
    path: Utf8PathBuf,
    read: u64,
    /// The beginning of a character whose rest is not there yet.
    carried: Vec<u8>,
}

impl GrowingFile {
    fn new(path: Utf8PathBuf) -> Self {
        Self { path, read: 0, carried: Vec::new() }
    }

    /// The next part of it; none where there is no more for now, or no file.
    fn more(&mut self) -> io::Result<Option<String>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = std::mem::take(&mut self.carried);
        let before = bytes.len();
        file.take(CHUNK as u64).read_to_end(&mut bytes)?;
        self.read += (bytes.len() - before) as u64;
        if bytes.len() == before {
            self.carried = bytes;
            return Ok(None);
        }
        let whole = match std::str::from_utf8(&bytes) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => bytes.len(),
        };
        self.carried = bytes.split_off(whole);
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_growing_file_is_read_once_and_characters_stay_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("x.output")).unwrap();
        let mut tail = GrowingFile::new(path.clone());
        assert_eq!(tail.more().unwrap(), None, "there is no file yet");
        let mut file = File::create(&path).unwrap();
        let mut write = |bytes: &[u8]| file.write_all(bytes).unwrap();
        write(b"one \xe2\x82");
        assert_eq!(tail.more().unwrap().as_deref(), Some("one "));
        assert_eq!(tail.more().unwrap(), None);
        write(b"\xac two\xff");
        assert_eq!(tail.more().unwrap().as_deref(), Some("€ two\u{fffd}"));
        write(&b"x".repeat(CHUNK + 1));
        assert_eq!(tail.more().unwrap().map(|text| text.len()), Some(CHUNK));
        assert_eq!(tail.more().unwrap().as_deref(), Some("x"));
    }
}
