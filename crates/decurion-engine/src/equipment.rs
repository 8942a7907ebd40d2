//! What tools work with: the session's processes, its files and its limits. Takes each from the opening of the session,
//! gives it to every run.

use std::ffi::OsString;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::Guard;
use decurion_protocol::AgentId;
use decurion_tools::{Http, Spill, ToolLimits};

use crate::egress::Egress;
use crate::permission::UserFiles;
use crate::sandbox::SandboxMaker;
use crate::spill::SpillInto;

use crate::ports::Redact;
use decurion_protocol::FileBefore;
use decurion_store::SessionFiles;
use decurion_tools::restore::Held;
use decurion_tools::{PathRules, Surroundings};

/// What tools work with, the same for all runs of a session.
pub struct Equipment {
    pub processes: Option<Guard>,
    /// What commands are kept from by the kernel; none where nothing is.
    pub sandbox: Option<Arc<SandboxMaker>>,
    /// The way to the network for sandboxed commands; none where they have that of the machine, or no sandbox.
    pub egress: Option<Arc<Egress>>,
    /// Hosts that the settings deny, for tools that connect themselves.
    pub denied_hosts: Vec<String>,
    /// The environment of shells.
    pub environment: Arc<[(OsString, OsString)]>,
    /// Where long output goes.
    pub spill: Arc<dyn Spill>,
    /// The same, for the output of tasks.
    pub spill_into: Arc<SpillInto>,
    /// The session's transcript; empty where none is kept.
    pub transcript: Utf8PathBuf,
    /// What tools may take and give.
    pub limits: Arc<ToolLimits>,
    pub http: Http,
    /// What `~` stands for.
    pub home: Option<Utf8PathBuf>,
    /// What programs of the user run or are configured by elsewhere than in the home folder.
    pub user_files: Arc<UserFiles>,
    /// Takes secrets out of output.
    pub redact: Redact,
    /// Characters of an agent's report that its parent is shown.
    pub result_chars: usize,
    /// Where files are kept as they were before a change; none where that is not asked for.
    pub checkpoints: Option<Keeper>,
}

impl Equipment {
    /// The transcript of an agent.
    pub fn transcript_of(&self, agent: &AgentId) -> Utf8PathBuf {
        let session = self.transcript.with_extension("");
        session.join("subagents").join(format!("agent-{agent}.jsonl"))
    }
}

/// A file of more bytes is not kept.
pub const MOST_KEPT: u64 = 16 << 20;

/// Where the bytes go.
#[derive(Clone)]
pub struct Keeper {
    /// The session's files; none where it has none.
    pub files: Option<Arc<SessionFiles>>,
    /// What tools may take and give.
    pub limits: Arc<ToolLimits>,
}

impl Keeper {
    /// Keeps what was found, and says so.
    pub fn keep(&self, held: &Held) -> FileBefore {
        let (Some(content), Some(mode)) = (held.content(), held.mode()) else { return FileBefore::Missing };
        let Some(files) = &self.files else {
            return FileBefore::NotKept { reason: "this session keeps no files".to_owned() };
        };
        match files.put_checkpoint(content) {
            Ok(hash) => FileBefore::Kept { hash, mode },
            Err(error) => FileBefore::NotKept { reason: format!("it could not be written: {error}") },
        }
    }

    pub fn keep_path(
        &self,
        around: &Surroundings,
        rules: Arc<dyn PathRules>,
        path: &Utf8Path,
    ) -> (Utf8PathBuf, FileBefore) {
        match Held::look(around, rules, &self.limits, path, MOST_KEPT) {
            Ok(held) => (held.path().clone(), self.keep(&held)),
            Err(reason) => (path.to_owned(), FileBefore::NotKept { reason }),
        }
    }
}
