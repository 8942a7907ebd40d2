//! The port to the program around the front end, which may touch files and processes. Takes jobs, which run beside the
//! loop; gives their results, with the purpose they were requested for.

use decurion_protocol::link::BoxFuture;
use decurion_protocol::{AgentId, Envelope};
use serde_json::Value;

use crate::app::Farewell;
use crate::commands::Topic;

/// The program around the front end.
pub trait FrontEndPort: Send + Sync {
    /// Keeps a prompt for later sessions.
    fn remember(&self, prompt: &str);
    /// Lets a person write in an editor, which has the terminal meanwhile; gives the text as it is then.
    fn edit(&self, draft: EditorDraft) -> BoxFuture<'_, Result<String, String>>;
    /// Lets the editor that is open end, as the program itself is about to; none is opened any more.
    fn end_editor(&self, how: EditorEnd);
    /// Stops this program until the shell continues it. False without a shell that could.
    fn suspend(&self) -> bool;
    /// Whether the session can be left so, or why it stays. What takes its place is at hand by then, where the session
    /// itself could not be had again.
    fn let_go<'a>(&'a self, farewell: &'a Farewell) -> BoxFuture<'a, Result<(), String>>;
    /// Does something that takes a while.
    fn run(&self, errand: FrontEndJob) -> BoxFuture<'static, Result<JobResult, String>>;
}

/// What is written in an editor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditorDraft {
    Text(String),
    File(String),
}

/// How to ask an editor to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditorEnd {
    /// It is asked to.
    Terminate,
    /// The terminal is gone.
    Hangup,
    /// It has no choice.
    Kill,
}

/// What can be asked of the program.
#[derive(Clone, Debug, PartialEq)]
pub enum FrontEndJob {
    /// What this program prints with these arguments.
    Program(Vec<String>),
    /// The files of the project.
    Paths,
    /// Keep a line in the instructions that every session here reads.
    Memorize(String),
    /// A file for a new agent of this name.
    NewAgent(String),
    /// The instruction and memory files that sessions here read, as JSON lines.
    Memories,
    /// Where this directory is, if there is one.
    Folder(String),
    /// Write the conversation to this file: its transcript, or as Markdown.
    Export(String),
    /// Keep this theme in the settings.
    Theme(String),
    /// The last exchange of a recorded session.
    Preview(String),
    /// What is on record of a conversation; none is the root's.
    Past(Option<AgentId>),
    /// A person's own status line for these facts of the session.
    Status(Box<Value>),
}

/// The result of a job.
#[derive(Clone, Debug)]
pub enum JobResult {
    Text(String),
    /// Paths below the working directory.
    Paths(Vec<String>),
    /// A file to be edited.
    File(String),
    Past(Vec<Envelope>),
}

/// What an errand was for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobPurpose {
    List(Topic),
    /// To show a text under this title.
    Page(String),
    /// To say it in the conversation.
    Say,
    /// To ask whether these words of ours may be done, where it shows what they would do; else to say it.
    Consent(Vec<String>),
    Paths,
    /// To show a conversation.
    Past(Option<AgentId>),
    /// To show it at the bottom.
    Status,
    /// To edit a file.
    Edit,
    /// To continue the latest other session.
    Latest,
    /// To allow a directory.
    AddDirectory,
    /// To show it beside this row of the list of sessions.
    Preview(String),
}
