//! Archive → session. Takes which session is wanted, gives its files, locked and open, with everything they
//! hold already folded; a foreign transcript is copied into our folder first.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::Arc;

use camino::Utf8PathBuf;
use decurion_protocol::{
    AgentId, Block, CallId, Envelope, Event, Limits, LineId, Money, OpenSession, Origin, Persistence,
    PlaceError, QuestionId, ResumeAt, RunSpec, SessionId, SessionInfo, Start, event::RECORD_LEVEL,
};
use decurion_store::{
    Found, ImportContext, Journal, MemoryJournal, OpenError, ReplayOptions, ReplayReport, Scope,
    SessionFiles, SessionPaths, SessionWriter, adopt, import, replay, replay_understood,
};

use crate::branch::{Branches, Part, Search};
use crate::context::Context;
use crate::journal::Durability;
use crate::ports::{Models, new_run};
use crate::session::parts::Parts;
use crate::session::rights_changes::RightsChanges;
use crate::task::TaskTable;

/// A session whose files are open.
pub struct Opened {
    /// Where its events go.
    pub journal: Box<dyn Journal>,
    pub id: SessionId,
    /// What its files held.
    pub folded: Folded,
    /// Everything but the transcript; none where nothing is kept.
    pub files: Option<Arc<SessionFiles>>,
    /// Things a person should know.
    pub notices: Vec<String>,
    /// The facts on every line.
    pub info: SessionInfo,
    /// That the conversation goes on from an earlier line, still to be written.
    pub branched: Option<Event>,
}

/// What a transcript holds, folded.
pub struct Folded {
    pub context: Context,
    /// The last run of the root.
    pub spec: Option<RunSpec>,
    /// The tasks, and what is still to be told.
    pub tasks: TaskTable,
    /// Questions that nobody has answered, by who asks and for which call.
    pub parked: HashMap<(Option<AgentId>, CallId), QuestionId>,
    /// The lines of the root's conversation: no prompt may have the id of one.
    pub lines: HashSet<LineId>,
    /// Where the session works again once it leaves the checkout that it entered.
    pub before: Option<Utf8PathBuf>,
    /// What was changed of what may be done.
    pub permits: RightsChanges,
    /// The prompt that the root was at work on when its process died, if it was.
    pub unanswered: Option<(LineId, Vec<Block>)>,
    /// Prompts that were accepted and not begun, in order.
    pub queued: Vec<(LineId, Vec<Block>)>,
    /// Where the conversation went on from earlier lines.
    pub branches: Branches,
    /// Whether one of these was met that was not known before: what stands above it here was taken in for nothing.
    stale: bool,
    /// The line that the session is to go on from.
    search: Option<Search>,
    /// The last line of each agent's conversation so far, and those that have lost their end.
    leaves: HashMap<AgentId, LineId>,
    cut: BTreeSet<AgentId>,
    models: Arc<dyn Models>,
    fixed_dialect: bool,
}

impl Folded {
    /// Nothing yet. The dialect is that of the model asked for, or else of the one on record.
    fn new(parts: &Parts, request: &OpenSession) -> Self {
        let name = request.model.clone().unwrap_or_else(|| parts.models.default_name());
        let dialect = parts.models.main(&name).map(|(model, _)| model.dialect);
        Self {
            context: Context::new(dialect.unwrap_or(decurion_model::Dialect::Anthropic)),
            spec: None,
            tasks: TaskTable::default(),
            parked: HashMap::new(),
            lines: HashSet::new(),
            before: None,
            permits: RightsChanges::default(),
            unanswered: None,
            queued: Vec::new(),
            branches: Branches::default(),
            stale: false,
            search: None,
            leaves: HashMap::new(),
            cut: BTreeSet::new(),
            models: Arc::clone(&parts.models),
            fixed_dialect: request.model.is_some(),
        }
    }

    fn take(&mut self, envelope: &Envelope) {
        self.tasks.apply(envelope);
        self.permits.take(&envelope.event);
        match &envelope.event {
            Event::Asked { question } if question.elicitation.is_none() => {
                self.parked.insert((question.agent.clone(), question.call.clone()), question.id);
            }
            Event::Answered { question, .. } => self.parked.retain(|_, open| open != question),
            _ => {}
        }
        if let Some(agent) = &envelope.agent {
            self.follow(agent, &envelope.event);
            return;
        }
        if let Event::RunStarted { spec } = &envelope.event {
            self.spec = Some((**spec).clone());
            if !self.fixed_dialect
                && self.context.is_empty()
                && let Ok(model) = self.models.resolve(&spec.model)
            {
                self.context = Context::new(model.dialect);
            }
        }
        if let Event::Relocated { cwd, worktree, before } = &envelope.event {
            self.before.clone_from(before);
            if let Some(spec) = &mut self.spec {
                (spec.cwd, spec.worktree) = (cwd.clone(), worktree.clone());
            }
        }
        match &envelope.event {
            Event::Message { message, lines, meta, .. } if meta.origin == Origin::Prompt => {
                self.unanswered = lines.first().map(|line| (*line, message.blocks.clone()));
            }
            Event::RunEnded { outcome, .. } if outcome.leaves_question() => {}
            Event::RunEnded { .. } | Event::Branched { .. } => self.unanswered = None,
            _ => {}
        }
        self.queue(&envelope.event);
        match &envelope.event {
            Event::Message { lines, .. } => self.lines.extend(lines),
            Event::CallEnded { line, .. } | Event::Compacted { line, .. } => drop(self.lines.insert(*line)),
            _ => {}
        }
        self.stale |= self.branches.note(envelope);
        let part = self.branches.part(envelope, u64::MAX);
        if let Some(search) = &mut self.search {
            search.take(envelope, &part);
        }
        self.context.take(&part);
    }

    /// Keeps account of the prompts that wait.
    fn queue(&mut self, event: &Event) {
        match event {
            Event::Queued { line, blocks } if !self.lines.contains(line) => {
                self.lines.insert(*line);
                self.queued.push((*line, blocks.clone()));
            }
            Event::Unqueued { lines } => {
                // One that was taken back may be sent again; one whose message is on record was begun.
                for (line, _) in self.queued.extract_if(.., |(line, _)| lines.contains(line)) {
                    self.lines.remove(&line);
                }
            }
            Event::Message { lines, .. } => self.queued.retain(|(line, _)| !lines.contains(line)),
            Event::Branched { .. } => self.queued.clear(),
            _ => {}
        }
    }

    /// The same, looking for the line that the session is to go on from.
    fn searching(mut self, at: Option<ResumeAt>) -> Self {
        self.search = at.map(Search::new);
        self
    }
}

impl Folded {
    /// Notices where an agent's conversation ends before the line that its ending names.
    fn follow(&mut self, agent: &AgentId, event: &Event) {
        match event {
            Event::Message { lines, .. } => {
                if let Some(line) = lines.last() {
                    self.leaves.insert(agent.clone(), *line);
                }
            }
            Event::CallEnded { line, .. } | Event::Compacted { line, .. } => {
                self.leaves.insert(agent.clone(), *line);
            }
            Event::RunEnded { totals, .. }
                if totals.leaf.is_some() && totals.leaf.as_ref() != self.leaves.get(agent) =>
            {
                self.cut.insert(agent.clone());
            }
            _ => {}
        }
    }
}

/// A record to be read again from its start.
type Read<'a> = dyn FnMut(&mut dyn FnMut(Envelope)) -> Result<(), PlaceError> + 'a;

/// What a record holds once its branches are known, and the branch that is to be written, if the session is to go on
/// from an earlier line. Nearly every session has none, so the first reading takes everything in; others are read again.
fn settle(
    parts: &Parts,
    request: &OpenSession,
    mut folded: Folded,
    (id, at, last_seq): (SessionId, Option<ResumeAt>, u64),
    read: &mut Read<'_>,
) -> Result<(Folded, Option<Event>), PlaceError> {
    let mut again = |branches: Branches, at: Option<ResumeAt>| -> Result<Folded, PlaceError> {
        let mut folded = Folded { branches, ..Folded::new(parts, request) }.searching(at);
        read(&mut |envelope| folded.take(&envelope))?;
        Ok(folded)
    };
    if folded.stale {
        folded = again(folded.branches, at)?;
    }
    let Some(search) = folded.search.take() else { return Ok((folded, None)) };
    let event = search.found(id)?;
    // It is written among the first events, behind everything that is on record now.
    let run = folded.spec.as_ref().map_or_else(new_run, |spec| spec.run);
    let (seq, at, agent) = (last_seq + 1, parts.clock.date(), None);
    let branched = Envelope { seq, at, agent, run, event: event.clone() };
    folded.branches.note(&branched);
    let mut folded = again(folded.branches, None)?;
    folded.unanswered = None;
    folded.queued.clear();
    folded.tasks.apply(&branched);
    Ok((folded, Some(event)))
}

/// Opens the session a request names.
pub fn open(parts: &Parts, request: &OpenSession) -> Result<Opened, PlaceError> {
    match &request.start {
        Start::New { id } => create(parts, request, id.unwrap_or_else(new_session)),
        Start::Resume { id, at } => take_up(parts, request, *id, *at),
        Start::Fork { from, id, at } => fork(parts, request, *from, id.unwrap_or_else(new_session), *at),
    }
}

fn new_session() -> SessionId {
    SessionId(uuid::Uuid::new_v4())
}

fn info(parts: &Parts, request: &OpenSession, session: SessionId) -> SessionInfo {
    SessionInfo {
        session,
        cwd: request.cwd.clone(),
        version: parts.version.clone(),
        git_branch: parts.git_branch.clone(),
        entrypoint: request.entrypoint.clone(),
        imported_from: None,
        forked_from: None,
    }
}

fn create(parts: &Parts, request: &OpenSession, id: SessionId) -> Result<Opened, PlaceError> {
    let info = info(parts, request, id);
    if request.persistence == Persistence::Off {
        return Ok(in_memory(parts, request, info, None));
    }
    let paths = parts.archive.layout().session(&request.cwd, id);
    match SessionWriter::create(&paths, &info, parts.clock.date()) {
        Ok(writer) => opened(parts, Box::new(writer), &paths, Folded::new(parts, request), info, None),
        Err(error) if is_unusable(&error) && request.persistence == Persistence::Usual => {
            let notice = format!("no transcript is kept: {error}");
            Ok(in_memory(parts, request, info, Some(notice)))
        }
        Err(error) => Err(place_error(error)),
    }
}

fn take_up(
    parts: &Parts,
    request: &OpenSession,
    id: SessionId,
    at: Option<ResumeAt>,
) -> Result<Opened, PlaceError> {
    match parts.archive.find(id, &parts.foreign) {
        None => Err(PlaceError::NoSuchSession(id)),
        Some(Found::Ours(paths)) => {
            make_ours(parts, request, &paths)?;
            let info = info(parts, request, id);
            let mut folded = Folded::new(parts, request).searching(at);
            // What agents were told stands in their own files.
            let options = ReplayOptions { scope: Scope::Everything, ..ReplayOptions::default() };
            let now = parts.clock.date();
            let mut sink = |envelope: Envelope| folded.take(&envelope);
            let (writer, report) =
                SessionWriter::resume(&paths, &info, now, &options, &mut sink).map_err(place_error)?;
            let mut read = |sink: &mut dyn FnMut(Envelope)| {
                replay(&paths, &options, sink).map(drop).map_err(|source| storage(&paths, source))
            };
            let wanted = (id, at, writer.last_seq());
            let (folded, branched) = settle(parts, request, folded, wanted, &mut read)?;
            let used = used_before(&request.limits, &folded.tasks);
            let mut opened = opened(parts, Box::new(writer), &paths, folded, info, Some(&report))?;
            opened.notices.extend(used);
            Ok(Opened { branched, ..opened })
        }
        Some(Found::Foreign(transcript)) => {
            let imported = import(&transcript, &importing(parts, request, id))
                .map_err(|error| PlaceError::Usage(format!("{transcript} cannot be read: {error}")))?;
            // Looked at before anything is made, so that asking for a line that is not there leaves nothing behind.
            let mut folded = Folded::new(parts, request).searching(at);
            imported.envelopes.iter().for_each(|envelope| folded.take(envelope));
            let mut read = |sink: &mut dyn FnMut(Envelope)| {
                imported.envelopes.iter().cloned().for_each(sink);
                Ok(())
            };
            let wanted = (id, at, imported.envelopes.last().map_or(0, |last| last.seq));
            let (mut folded, branched) = settle(parts, request, folded, wanted, &mut read)?;
            // Where its last turn ended it does not say.
            folded.unanswered = None;
            let paths = parts.archive.layout().session(&request.cwd, id);
            let mut writer =
                SessionWriter::create(&paths, &imported.info, parts.clock.date()).map_err(place_error)?;
            writer.append(&imported.envelopes).map_err(|error| storage(&paths, io::Error::other(error)))?;
            let opened = opened(parts, Box::new(writer), &paths, folded, imported.info, None)?;
            Ok(Opened { branched, ..opened })
        }
    }
}

/// How much of the budget of a session was used before it is resumed.
fn used_before(limits: &Limits, tasks: &TaskTable) -> Option<String> {
    let spent = tasks.spent_in_all();
    let money = limits.money.filter(|_| spent.money > Money(0));
    let money = money.map(|limit| format!("${:.4} of ${:.4}", spent.money.dollars(), limit.dollars()));
    let tokens = limits.tokens.filter(|_| spent.tokens > 0);
    let tokens = tokens.map(|limit| format!("{} of {limit} tokens", spent.tokens));
    let used: Vec<String> = money.into_iter().chain(tokens).collect();
    let lost = match tasks.lost().len() {
        0 => String::new(),
        1 => "; a request cut off by the end of its process counts as the most it can have used".to_owned(),
        more => format!(
            "; {more} requests cut off by the end of their process count as the most they can have used"
        ),
    };
    let text = format!(
        "budget: this session has used {} before{lost}. The limit counts the whole session",
        used.join(" and ")
    );
    (!used.is_empty()).then_some(text)
}

/// What a transcript of another program does not say.
fn importing(parts: &Parts, request: &OpenSession, id: SessionId) -> ImportContext {
    ImportContext {
        session: Some(id),
        cwd: request.cwd.clone(),
        version: parts.version.clone(),
        entrypoint: request.entrypoint.clone(),
        run: new_run(),
        now: parts.clock.date(),
    }
}

/// Takes a transcript that another program put into our folder for what it is.
fn make_ours(parts: &Parts, request: &OpenSession, paths: &SessionPaths) -> Result<(), PlaceError> {
    adopt(paths, &importing(parts, request, paths.session())).map(drop).map_err(place_error)
}

fn fork(
    parts: &Parts,
    request: &OpenSession,
    from: SessionId,
    id: SessionId,
    at: Option<ResumeAt>,
) -> Result<Opened, PlaceError> {
    let Some(Found::Ours(source)) = parts.archive.find(from, &[]) else {
        return Err(PlaceError::NoSuchSession(from));
    };
    make_ours(parts, request, &source)?;
    let mut keep = what_a_fork_keeps(parts, request, &source, at)?;
    let info = SessionInfo { forked_from: Some(from), ..info(parts, request, id) };
    let mut folded = Folded::new(parts, request);
    let mut sink = |envelope: Envelope| folded.take(&envelope);
    let run = new_run();
    let (writer, report) = parts
        .archive
        .fork(&source, &info, run, parts.clock.date(), &mut keep, &mut sink)
        .map_err(place_error)?;
    let paths = writer.paths().clone();
    // The tasks of the first session are its own.
    folded.tasks = TaskTable::default();
    folded.parked.clear();
    // So is whoever waits for an answer there, and what is queued.
    folded.unanswered = None;
    folded.queued.clear();
    opened(parts, Box::new(writer), &paths, folded, info, Some(&report))
}

/// What of each record of a session goes into a fork of it: what is part of its conversation now, up to a line if one
/// is given, and that calls without a result were begun.
fn what_a_fork_keeps(
    parts: &Parts,
    request: &OpenSession,
    source: &SessionPaths,
    at: Option<ResumeAt>,
) -> Result<impl FnMut(Envelope) -> Option<Envelope> + use<>, PlaceError> {
    let options = ReplayOptions::default();
    let mut until = 0;
    let mut read = |sink: &mut dyn FnMut(Envelope)| {
        until = replay_understood(source, &options, sink).map_err(place_error)?.last_seq;
        Ok(())
    };
    let mut folded = Folded::new(parts, request).searching(at);
    read(&mut |envelope| folded.take(&envelope))?;
    let (folded, _) = settle(parts, request, folded, (source.session(), at, u64::MAX - 1), &mut read)?;
    let begun: HashSet<CallId> =
        folded.context.unanswered().into_iter().filter(|(_, begun)| *begun).map(|(call, _)| call).collect();
    let branches = folded.branches;
    Ok(move |envelope: Envelope| {
        // What it says from here on is its own.
        if envelope.seq > until || envelope.agent.is_some() {
            return None;
        }
        match &envelope.event {
            Event::CallStarted { call, .. } => begun.contains(call).then_some(envelope),
            Event::Message { .. } | Event::CallEnded { .. } | Event::Compacted { .. } => {
                match branches.part(&envelope, u64::MAX) {
                    Part::Whole(_) => Some(envelope),
                    Part::Cut(event, _) => Some(Envelope { event: *event, ..envelope }),
                    Part::Dropped(_) => None,
                }
            }
            // Whoever was told what is allowed, and what is not, means the fork of what they were asked in too. Agents
            // stay behind, and what is theirs.
            Event::ModeChanged { .. } | Event::RightsChanged { only: None, .. } => Some(envelope),
            _ => None,
        }
    })
}

fn opened(
    parts: &Parts,
    journal: Box<dyn Journal>,
    paths: &SessionPaths,
    folded: Folded,
    info: SessionInfo,
    report: Option<&ReplayReport>,
) -> Result<Opened, PlaceError> {
    let files = SessionFiles::open(paths).map_err(|source| storage(paths, source))?;
    let files = files.synced(parts.durability == Durability::Power);
    let problems = report.and_then(ReplayReport::problems).map(|problems| format!("transcript: {problems}"));
    let lost = |agent: &AgentId| {
        format!("transcript: that of agent {agent} has lost its end; what is left of it is used")
    };
    let damaged = match folded.context.damaged() {
        0 => None,
        1 => {
            Some("transcript: 1 part of the conversation is damaged; the model reads what is left".to_owned())
        }
        count => Some(format!(
            "transcript: {count} parts of the conversation are damaged; the model reads what is left"
        )),
    };
    let notices: Vec<String> =
        problems.into_iter().chain(damaged).chain(folded.cut.iter().map(lost)).collect();
    Ok(Opened {
        journal,
        id: info.session,
        folded,
        files: Some(Arc::new(files)),
        notices,
        info,
        branched: None,
    })
}

fn in_memory(parts: &Parts, request: &OpenSession, info: SessionInfo, notice: Option<String>) -> Opened {
    Opened {
        journal: Box::new(MemoryJournal::default()),
        id: info.session,
        folded: Folded::new(parts, request),
        files: None,
        notices: notice.into_iter().collect(),
        info,
        branched: None,
    }
}

/// Whether the state folder itself is the trouble, so that memory would do.
fn is_unusable(error: &OpenError) -> bool {
    matches!(error, OpenError::NoLocks { .. } | OpenError::Storage { .. })
}

fn storage(paths: &SessionPaths, source: io::Error) -> PlaceError {
    PlaceError::Storage { path: paths.folder().to_string(), source }
}

fn place_error(error: OpenError) -> PlaceError {
    match error {
        OpenError::Exists(id) => PlaceError::SessionExists(id),
        OpenError::Missing(id) => PlaceError::NoSuchSession(id),
        OpenError::Held { session, holder } => PlaceError::Held { session, holder: holder.to_string() },
        OpenError::NoLocks { path } => {
            PlaceError::Storage { path, source: io::Error::other("its file system has no locks") }
        }
        OpenError::Storage { path, source } => PlaceError::Storage { path, source },
        OpenError::Transcript { path, source } => PlaceError::Transcript { path, source },
        OpenError::Newer { session, needs, written_by } => {
            PlaceError::Newer { session, needs, reads: RECORD_LEVEL, written_by }
        }
    }
}
