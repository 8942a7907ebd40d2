//! Prompts kept for later sessions. Takes the state folder and the folder of the session; gives the earlier prompts of
//! this folder, and keeps new ones: one JSON line each, in one file for all folders.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

/// How much of the end of the file is read.
const MOST_BYTES: u64 = 1 << 20;
/// From this size on the file is begun anew with its end.
const TOO_LONG: u64 = 4 << 20;
/// A longer prompt is not kept.
const LONGEST: usize = 64 << 10;
/// How many are remembered.
const MOST: usize = 500;
/// How many wait for a disk that is slow; more are not kept.
const MOST_WAITING: usize = 64;
/// How long the end waits for it.
const GOODBYE: Duration = Duration::from_secs(2);

/// The prompts of a folder.
pub struct PromptHistory {
    file: Option<Utf8PathBuf>,
    cwd: Utf8PathBuf,
}

/// One line of the file.
#[derive(Serialize, Deserialize)]
struct PromptLine {
    cwd: Utf8PathBuf,
    prompt: String,
}

impl PromptHistory {
    /// Those of this folder.
    pub fn new(state: Option<&Utf8Path>, cwd: &Utf8Path) -> Self {
        Self { file: state.map(|state| state.join("prompts.jsonl")), cwd: cwd.to_owned() }
    }

    /// What was written here before, the oldest first.
    pub fn earlier(&self) -> Vec<String> {
        let all = self.file.as_deref().and_then(|file| end(file).ok()).unwrap_or_default();
        let kept = all.lines().filter_map(|line| serde_json::from_str::<PromptLine>(line).ok());
        let mut here: Vec<String> =
            kept.filter(|kept| kept.cwd == self.cwd).map(|kept| kept.prompt).collect();
        let from = here.len().saturating_sub(MOST);
        here.split_off(from)
    }

    /// Keeps one. A disk that refuses costs a person a prompt to go back to, and nothing else.
    pub fn keep(&self, prompt: &str) {
        let Some(file) = &self.file else { return };
        if prompt.len() > LONGEST {
            return;
        }
        let kept = PromptLine { cwd: self.cwd.clone(), prompt: prompt.to_owned() };
        let Ok(mut line) = serde_json::to_vec(&kept) else { return };
        line.push(b'\n');
        if let Err(error) = append(file, &line) {
            tracing::warn!(%error, %file, "a prompt was not kept");
        }
    }
}

/// Writes prompts on a separate thread, in their order: typing never waits for a disk.
pub struct PromptWriter {
    prompts: Option<SyncSender<String>>,
    /// Says by its end that all are kept.
    ended: Mutex<Receiver<()>>,
}

impl PromptWriter {
    pub fn new(prompts: PromptHistory) -> Self {
        let (sender, given) = sync_channel::<String>(MOST_WAITING);
        let (ending, ended) = sync_channel(0);
        let write = move || {
            let _ending: SyncSender<()> = ending;
            for prompt in &given {
                prompts.keep(&prompt);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("prompts".to_owned()).spawn(write) {
            tracing::warn!(%error, "no prompt is kept");
        }
        Self { prompts: Some(sender), ended: Mutex::new(ended) }
    }

    pub fn keep(&self, prompt: &str) {
        let kept = self.prompts.as_ref().map(|prompts| prompts.try_send(prompt.to_owned()));
        if let Some(Err(error)) = kept {
            tracing::warn!(%error, "a prompt was not kept");
        }
    }
}

impl Drop for PromptWriter {
    /// What was given is kept before the next session reads it, unless the disk hangs.
    fn drop(&mut self) {
        drop(self.prompts.take());
        if let Ok(ended) = self.ended.get_mut() {
            let _ = ended.recv_timeout(GOODBYE);
        }
    }
}

/// One write, so that lines of two programs do not mix.
fn append(path: &Utf8Path, line: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    if file.metadata()?.len() > TOO_LONG {
        let kept = end(path)?;
        let new = path.with_extension("jsonl.new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&new)?.write_all(kept.as_bytes())?;
        std::fs::rename(&new, path)?;
        file = OpenOptions::new().append(true).open(path)?;
    }
    file.write_all(line)
}

/// The end of the file, from the beginning of a line on.
fn end(path: &Utf8Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let from = file.metadata()?.len().saturating_sub(MOST_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(match text.split_once('\n') {
        Some((_, whole)) if from > 0 => whole.to_owned(),
        _ => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_of_a_folder_come_back_in_order_and_damage_costs_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let state = Utf8Path::from_path(folder.path()).unwrap();
        let (here, there) =
            (PromptHistory::new(Some(state), "/a".into()), PromptHistory::new(Some(state), "/b".into()));
        here.keep("one");
        there.keep("elsewhere");
        append(&state.join("prompts.jsonl"), b"{\"cwd\": \"/a\", \"pro\n").unwrap();
        here.keep("two\nlines");
        here.keep(&"x".repeat(LONGEST + 1));
        assert_eq!(here.earlier(), ["one", "two\nlines"]);
        assert!(PromptHistory::new(None, "/a".into()).earlier().is_empty());
    }

    #[test]
    fn a_pen_keeps_the_order_and_has_written_all_when_it_goes() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let state = Utf8Path::from_path(folder.path()).unwrap();
        let here = || PromptHistory::new(Some(state), "/a".into());
        let given: Vec<String> = (0..MOST_WAITING).map(|number| number.to_string()).collect();
        let pen = PromptWriter::new(here());
        for prompt in &given {
            pen.keep(prompt);
        }
        drop(pen);
        assert_eq!(here().earlier(), given);
        let mode = std::fs::metadata(state.join("prompts.jsonl")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn the_file_does_not_grow_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let state = Utf8Path::from_path(folder.path()).unwrap();
        let here = PromptHistory::new(Some(state), "/a".into());
        let long = "y".repeat(LONGEST - 10);
        for _ in 0..100 {
            here.keep(&long);
        }
        here.keep("last");
        let size = std::fs::metadata(state.join("prompts.jsonl")).unwrap().len();
        assert!(size < TOO_LONG + MOST_BYTES, "{size}");
        assert_eq!(here.earlier().last().map(String::as_str), Some("last"));
    }
}
