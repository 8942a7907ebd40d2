//! What was recorded. Takes the state folder, gives lists of sessions, their files, their events, and copies
//! under a new id; keeps plans beside them. Reads only, but for [`Archive::fork`], [`Archive::put_plan`],
//! [`Archive::discard_empty`] and [`Archive::remove`].

use std::io::{self, Write};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::event::SessionInfo;
use decurion_protocol::{AgentId, Envelope, Event, RunId, SessionId, SessionSummary};
use jiff::Timestamp;

use crate::folder::DirHandle;
use crate::layout::{PLANS, PROJECTS, SUBAGENTS, agent_of, slug};
use crate::read::{project_folder, replay};
use crate::{
    Journal, Layout, OpenError, ReplayOptions, ReplayReport, Scope, SessionPaths, SessionWriter, WriteError,
    empty, listing, remove,
};

/// How many events a copy writes at once.
const COPY_BATCH: usize = 256;

/// The recorded sessions of one state folder.
#[derive(Clone, Debug)]
pub struct Archive {
    layout: Layout,
}

/// Where a session was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Among ours: it can be resumed.
    Ours(SessionPaths),
    /// A transcript of another program: it can be imported.
    Foreign(Utf8PathBuf),
}

impl Archive {
    /// The archive of this state folder, which need not be there.
    pub fn new(home: impl Into<Utf8PathBuf>) -> Self {
        Self { layout: Layout::new(home) }
    }

    /// Where its files are.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Keeps a plan that was agreed to under this name; one that is there is replaced. Gives where it is.
    pub fn put_plan(&self, name: &str, bytes: &[u8]) -> io::Result<Utf8PathBuf> {
        let folder = DirHandle::root(self.layout.home(), true)?.sub(PLANS, true)?;
        folder.replace(name, bytes)?;
        Ok(folder.path().join(name))
    }

    /// The sessions started in this directory, or all of them, that have a prompt; newest first.
    pub fn list(&self, cwd: Option<&Utf8Path>) -> io::Result<Vec<SessionSummary>> {
        let mut all = Vec::new();
        for project in self.projects(cwd)? {
            for name in project.names()? {
                if let Some(summary) = listing::summary(&project, &name)
                    && cwd.is_none_or(|cwd| cwd == summary.cwd)
                {
                    all.push(summary);
                }
            }
        }
        all.sort_by(|a, b| b.modified.cmp(&a.modified).then(b.session.cmp(&a.session)));
        Ok(all)
    }

    /// The session of this directory with the latest prompt. Reads no more files than needed.
    pub fn latest(&self, cwd: &Utf8Path) -> io::Result<Option<SessionSummary>> {
        let mut files = Vec::new();
        for project in self.projects(Some(cwd))? {
            for name in project.names()? {
                if let (Some(session), Ok(stat)) = (crate::layout::session_of(&name), project.stat(&name)) {
                    files.push((listing::modified(&stat), session, name));
                }
            }
            files.sort_unstable_by(|a, b| b.cmp(a));
            let mut newest = files.drain(..).filter_map(|(_, _, name)| listing::summary(&project, &name));
            if let Some(summary) = newest.find(|summary| summary.cwd == cwd) {
                return Ok(Some(summary));
            }
        }
        Ok(None)
    }

    /// Looks for a session among ours, then in the given configuration folders of other programs.
    pub fn find(&self, session: SessionId, foreign: &[Utf8PathBuf]) -> Option<Found> {
        let name = format!("{session}.jsonl");
        for project in self.projects(None).unwrap_or_default() {
            if project.has(&name)
                && let Some(project) = project.path().file_name()
            {
                return Some(Found::Ours(self.layout.in_project(project.to_owned(), session)));
            }
        }
        foreign.iter().find_map(|home| {
            let projects = DirHandle::root(&home.join(PROJECTS), false).ok()?;
            let mut names = projects.names().ok()?;
            names.sort_unstable();
            names.into_iter().find_map(|project| {
                let project = projects.sub(&project, false).ok()?;
                project.has(&name).then(|| Found::Foreign(project.path().join(&name)))
            })
        })
    }

    /// Whether this session has no prompt; false for an unknown id.
    pub fn is_empty(&self, session: SessionId) -> bool {
        match self.find(session, &[]) {
            Some(Found::Ours(paths)) => empty::is_empty(&paths).unwrap_or(false),
            _ => false,
        }
    }

    /// Removes the files of a session without a prompt. Gives whether it did: not if there is one, nor while another
    /// process has it.
    pub fn discard_empty(&self, session: SessionId) -> io::Result<bool> {
        match self.find(session, &[]) {
            Some(Found::Ours(paths)) => empty::discard(&paths),
            _ => Ok(false),
        }
    }

    /// Removes everything that a session recorded. One that another process has open stays.
    pub fn remove(&self, session: SessionId) -> Result<(), OpenError> {
        match self.find(session, &[]) {
            Some(Found::Ours(paths)) => remove::session(&paths),
            _ => Err(OpenError::Missing(session)),
        }
    }

    /// Everything after `seq`, of all files, in order.
    pub fn since(&self, paths: &SessionPaths, seq: u64) -> io::Result<Vec<Envelope>> {
        let mut events = Vec::new();
        let options = ReplayOptions { scope: Scope::Everything, structured: true, after: seq };
        replay(paths, &options, &mut |envelope| events.push(envelope))?;
        Ok(events)
    }

    /// The agents that have a transcript in a session.
    pub fn agents(&self, paths: &SessionPaths) -> io::Result<Vec<AgentId>> {
        let folder = project_folder(paths)?
            .sub(&paths.session().to_string(), false)
            .and_then(|session| session.sub(SUBAGENTS, false));
        let mut agents: Vec<AgentId> = match folder {
            Ok(folder) => folder.names()?.iter().filter_map(|name| agent_of(name)).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        agents.sort_unstable();
        Ok(agents)
    }

    /// Creates a session from what `keep` gives of each event of another session: `info` names it and its origin. The
    /// copied events are numbered anew and given to `sink`, as [`SessionWriter::resume`] would. Leaves no files when it
    /// fails.
    pub fn fork(
        &self,
        from: &SessionPaths,
        info: &SessionInfo,
        run: RunId,
        now: Timestamp,
        keep: &mut dyn FnMut(Envelope) -> Option<Envelope>,
        sink: &mut dyn FnMut(Envelope),
    ) -> Result<(SessionWriter, ReplayReport), OpenError> {
        let paths = self.layout.session(&info.cwd, info.session);
        let mut writer = SessionWriter::create(&paths, info, now)?;
        let opened = Event::SessionOpened { info: Box::new(info.clone()) };
        let opened = Envelope { seq: 1, at: now, agent: None, run, event: opened };
        match copy(from, opened, &mut writer, keep, sink) {
            Ok(report) => Ok((writer, report)),
            Err(source) => {
                drop(writer);
                let removed =
                    project_folder(&paths).and_then(|folder| folder.remove(&paths.transcript_name()));
                if let Err(error) = removed {
                    tracing::warn!(%error, "the file of a failed fork could not be removed");
                }
                Err(match source.kind() {
                    io::ErrorKind::NotFound => OpenError::Missing(from.session()),
                    _ => OpenError::Storage { path: paths.transcript().into_string(), source },
                })
            }
        }
    }

    /// Writes every event of a session, in order and with its large contents in place, as one JSON line each.
    pub fn export(&self, paths: &SessionPaths, out: &mut dyn Write) -> io::Result<ReplayReport> {
        let mut failed = None;
        let options = ReplayOptions { scope: Scope::Everything, structured: true, after: 0 };
        let report = replay(paths, &options, &mut |envelope| {
            if failed.is_some() {
                return;
            }
            let written = serde_json::to_writer(&mut *out, &envelope).map_err(io::Error::from);
            failed = written.and_then(|()| out.write_all(b"\n")).err();
        })?;
        failed.map_or(Ok(report), Err)
    }

    /// The project folders that may hold sessions of this directory.
    fn projects(&self, cwd: Option<&Utf8Path>) -> io::Result<Vec<DirHandle>> {
        let projects =
            match DirHandle::root(self.layout.home(), false).and_then(|home| home.sub(PROJECTS, false)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                other => other?,
            };
        if let Some(cwd) = cwd {
            return Ok(projects.sub(&slug(cwd.as_str()), false).into_iter().collect());
        }
        let mut names = projects.names()?;
        names.sort_unstable();
        Ok(names.iter().filter_map(|name| projects.sub(name, false).ok()).collect())
    }
}

fn copy(
    from: &SessionPaths,
    opened: Envelope,
    writer: &mut SessionWriter,
    keep: &mut dyn FnMut(Envelope) -> Option<Envelope>,
    sink: &mut dyn FnMut(Envelope),
) -> io::Result<ReplayReport> {
    let mut batch = vec![opened];
    let mut seq = 1;
    let mut failed = None;
    let options = ReplayOptions { scope: Scope::Session, structured: true, after: 0 };
    let report = replay(from, &options, &mut |envelope| {
        if failed.is_some() {
            return;
        }
        let Some(mut envelope) = keep(envelope) else { return };
        seq += 1;
        envelope.seq = seq;
        batch.push(envelope);
        if batch.len() >= COPY_BATCH {
            failed = write(writer, &mut batch, sink).err();
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    write(writer, &mut batch, sink)?;
    Ok(report)
}

fn write(
    writer: &mut SessionWriter,
    batch: &mut Vec<Envelope>,
    sink: &mut dyn FnMut(Envelope),
) -> io::Result<()> {
    writer.append(batch).map_err(|error| match error {
        WriteError::Full { source, .. } | WriteError::Failed { source, .. } => source,
        other => io::Error::other(other),
    })?;
    batch.drain(..).for_each(sink);
    Ok(())
}
