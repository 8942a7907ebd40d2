//! Where a session's files are. Takes the state folder, a working directory and typed ids, gives paths that
//! cannot leave the state folder.

use std::fmt::Write as _;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::{AgentId, SessionId, TaskId};

/// The longest folder name made from a working directory; longer ones are cut and told apart by a hash.
const SLUG_LIMIT: usize = 200;

/// The state folder and the rules for names in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    home: Utf8PathBuf,
}

/// The paths of one session. For display and for handing to others; this crate itself opens every one of
/// them relative to a directory handle, without following links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPaths {
    home: Utf8PathBuf,
    project: String,
    session: SessionId,
}

impl Layout {
    /// The layout below this state folder.
    pub fn new(home: impl Into<Utf8PathBuf>) -> Self {
        Self { home: home.into() }
    }

    pub fn home(&self) -> &Utf8Path {
        &self.home
    }

    /// The folder that holds one folder per project.
    pub fn projects(&self) -> Utf8PathBuf {
        self.home.join("projects")
    }

    /// The paths of a session of this working directory, which should be free of links.
    pub fn session(&self, cwd: &Utf8Path, session: SessionId) -> SessionPaths {
        self.in_project(slug(cwd.as_str()), session)
    }

    /// The paths of a session in a project folder by its name on disk.
    pub(crate) fn in_project(&self, project: String, session: SessionId) -> SessionPaths {
        SessionPaths { home: self.home.clone(), project, session }
    }
}

impl SessionPaths {
    pub fn session(&self) -> SessionId {
        self.session
    }

    pub fn home(&self) -> &Utf8Path {
        &self.home
    }

    /// The name of the project's folder.
    pub(crate) fn project(&self) -> &str {
        &self.project
    }

    pub fn transcript(&self) -> Utf8PathBuf {
        self.project_folder().join(self.transcript_name())
    }

    /// The folder of everything else that belongs to the session.
    pub fn folder(&self) -> Utf8PathBuf {
        self.project_folder().join(self.session.to_string())
    }

    /// The transcript of one of its agents.
    pub fn agent(&self, agent: &AgentId) -> Utf8PathBuf {
        self.folder().join(SUBAGENTS).join(agent_name(agent))
    }

    /// What is known of an agent beside its transcript; a cache.
    pub fn agent_meta(&self, agent: &AgentId) -> Utf8PathBuf {
        self.folder().join(SUBAGENTS).join(agent_meta_name(agent))
    }

    /// The output of a task.
    pub fn task_output(&self, task: &TaskId) -> Utf8PathBuf {
        self.folder().join(TASKS).join(task_name(task))
    }

    /// The file whose lock decides who may write the session.
    pub fn lock(&self) -> Utf8PathBuf {
        self.folder().join(LOCK)
    }

    fn project_folder(&self) -> Utf8PathBuf {
        self.home.join("projects").join(&self.project)
    }

    pub(crate) fn transcript_name(&self) -> String {
        format!("{}.jsonl", self.session)
    }
}

pub(crate) const PROJECTS: &str = "projects";
pub(crate) const SUBAGENTS: &str = "subagents";
pub(crate) const TASKS: &str = "tasks";
pub(crate) const HEADS: &str = "heads";
pub(crate) const BLOBS: &str = "blobs";
pub(crate) const CHECKPOINTS: &str = "checkpoints";
pub(crate) const PLANS: &str = "plans";
pub(crate) const TOOL_RESULTS: &str = "tool-results";
pub(crate) const LOCK: &str = "lock";

pub(crate) fn agent_name(agent: &AgentId) -> String {
    format!("agent-{agent}.jsonl")
}

pub(crate) fn agent_meta_name(agent: &AgentId) -> String {
    format!("agent-{agent}.meta.json")
}

pub(crate) fn task_name(task: &TaskId) -> String {
    format!("{task}.output")
}

/// The agent whose transcript has this name.
pub(crate) fn agent_of(name: &str) -> Option<AgentId> {
    name.strip_prefix("agent-")?.strip_suffix(".jsonl")?.parse().ok()
}

/// The session whose transcript has this name.
pub(crate) fn session_of(name: &str) -> Option<SessionId> {
    name.strip_suffix(".jsonl")?.parse().ok()
}

/// The folder name of a working directory, the way the ecosystem makes it: everything but ASCII letters and
/// digits becomes `-`, counted in UTF-16 units; a long one is cut and a hash of the whole is added. Two
/// directories may share one, so listings also compare the recorded directory.
pub fn slug(cwd: &str) -> String {
    let mut name = String::with_capacity(cwd.len());
    let mut hash = 0i32;
    for unit in cwd.encode_utf16() {
        hash = hash.wrapping_mul(31).wrapping_add(i32::from(unit));
        let plain = u8::try_from(unit).ok().filter(u8::is_ascii_alphanumeric);
        name.push(plain.map_or('-', char::from));
    }
    if name.len() > SLUG_LIMIT {
        name.truncate(SLUG_LIMIT);
        let _ = write!(name, "-{}", base36(hash.unsigned_abs()));
    }
    name
}

fn base36(mut number: u32) -> String {
    let mut digits = Vec::new();
    loop {
        let digit = u8::try_from(number % 36).unwrap_or(0);
        digits.push(char::from(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 }));
        number /= 36;
        if number == 0 {
            return digits.iter().rev().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_follow_the_ecosystem() {
        assert_eq!(slug("/home/me/my_app.rs"), "-home-me-my-app-rs");
        assert_eq!(slug(""), "");
        // One character outside the basic plane is two units, so two dashes.
        assert_eq!(slug("/a/\u{1F600}b"), "-a---b");
        let long = format!("/{}", "x".repeat(250));
        let cut = slug(&long);
        assert_eq!(&cut[..200], &format!("-{}", "x".repeat(199)));
        assert_eq!(&cut[200..201], "-");
        assert!(cut[201..].bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_ne!(cut, slug(&format!("{long}x")));
        assert_eq!(slug(&format!("/{}", "x".repeat(199))).len(), 200);
        assert!(slug(&format!("/{}", "x".repeat(200))).len() > 201, "one more is cut and hashed");
    }

    #[test]
    fn the_hash_is_that_of_the_ecosystem() {
        // h = h * 31 + unit over 32 bits, as in "hello" -> 99162322.
        let mut hash = 0i32;
        for unit in "hello".encode_utf16() {
            hash = hash.wrapping_mul(31).wrapping_add(i32::from(unit));
        }
        assert_eq!(hash, 99_162_322);
        assert_eq!(base36(99_162_322), "1n1e4y");
        assert_eq!(base36(0), "0");
    }

    #[test]
    fn names_give_back_their_ids() {
        let agent: AgentId = "a0123456789abcdef".parse().unwrap();
        assert_eq!(agent_of(&agent_name(&agent)), Some(agent));
        assert_eq!(agent_of("agent-../x.jsonl"), None);
        assert_eq!(session_of("x.jsonl"), None);
        assert!(session_of("e2f629b8-aa85-44ef-9cf7-f46c3cf30809.jsonl").is_some());
    }
}
