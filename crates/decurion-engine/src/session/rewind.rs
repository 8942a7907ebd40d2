//! Files put back to what they held at a prompt. Takes the record, the prompt and what may be done; gives what was
//! changed, or why nothing was. Whatever is overwritten is kept first, and that is on record before it happens.
//!
//! To which prompt a change belongs follows from the order of the record. Only what is on record is ever touched, and
//! either every file can be put back or none is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::{
    Access, AgentId, CallId, Envelope, Event, FileBefore, Intent, LineId, Origin, Reply, Rewound, Role,
};
use decurion_tools::restore::{Held, TRACKED, line_counts};
use decurion_tools::{PathRules, Surroundings};

use crate::checkpoint::{Keeper, MOST_KEPT};
use crate::journal::{Journal, Who};
use crate::permission::Policy;
use crate::rules::OpenRules;
use crate::session::inspect::held;

/// What is wanted, and what is needed for it.
pub struct Rewind {
    /// The line of the prompt.
    pub to: LineId,
    /// Whether to say only what would be done.
    pub dry_run: bool,
    /// Where the record is.
    pub journal: Journal,
    pub who: Who,
    /// Where bytes are kept; none where that was not asked for.
    pub keeper: Option<Keeper>,
    /// What may be done now.
    pub policy: Policy,
    /// Where the session works.
    pub around: Surroundings,
}

/// How it is asked for.
const SWITCHED_OFF: &str = "file checkpointing is off, so nothing was kept to go back to; switch it on with \
    `enable_file_checkpointing` (Python), `enableFileCheckpointing` (TypeScript) or \
    CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING=true when the session starts";

impl Rewind {
    /// Does it. What could not be done is also said to whoever listens: not every host reads its answer.
    pub async fn run(self) -> Reply {
        let (journal, who, dry_run) = (self.journal.clone(), self.who.clone(), self.dry_run);
        let rewound = match self.attempt().await {
            Ok(rewound) => rewound,
            Err(error) => Rewound::failed(error),
        };
        if !dry_run {
            let (level, text) = match &rewound.error {
                Some(error) => ("warning", format!("files were not put back: {error}")),
                None => ("info", format!("files were put back: {}", list(&rewound.files))),
            };
            if rewound.error.is_some() || !rewound.files.is_empty() {
                // A journal that is lost is found lost by the next run.
                let notice = Event::Notice { level: level.to_owned(), text };
                let _ = journal.write(&who, vec![notice]).await;
            }
        }
        held(&rewound)
    }

    async fn attempt(self) -> Result<Rewound, String> {
        let keeper = self.keeper.clone().ok_or(SWITCHED_OFF)?;
        let take = |state: &mut Changes, envelope: Envelope| state.take(&envelope);
        let folded = self.journal.fold(0, Changes::new(self.to), take).await;
        let changes = folded.ok_or("the transcript cannot be read now")?.of_prompt(self.to)?;
        let bench = Arc::new(Bench { keeper, policy: self.policy, around: self.around });
        let (planning, dry_run) = (Arc::clone(&bench), self.dry_run);
        let (steps, rewound) = beside(move || planning.plan(changes, dry_run)).await??;
        if self.dry_run || steps.is_empty() {
            return Ok(rewound);
        }
        let records = steps.iter().map(|step| Event::Checkpointed {
            call: None,
            path: step.path.clone(),
            before: step.now.clone(),
        });
        self.journal.write(&self.who, records.collect()).await.map_err(|lost| lost.to_string())?;
        match beside(move || bench.take(&steps)).await? {
            Ok(()) => Ok(rewound),
            Err((done, reason)) => {
                let error = format!("{reason}; put back before that: {}", list(&rewound.files[..done]));
                Ok(Rewound { files: rewound.files[..done].to_vec(), ..Rewound::failed(error) })
            }
        }
    }
}

/// Work with files, on a thread of its own.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())
}

/// Some paths, for people.
fn list(paths: &[Utf8PathBuf]) -> String {
    const MOST: usize = 10;
    let shown: Vec<&str> = paths.iter().take(MOST).map(|path| path.as_str()).collect();
    match paths.len() {
        0 => "none".to_owned(),
        many if many > MOST => format!("{} and {} more", shown.join(", "), many - MOST),
        _ => shown.join(", "),
    }
}

/// The changes after a prompt, as a fold over the record.
struct Changes {
    to: LineId,
    found: Option<Found>,
    has_run: bool,
    /// What each file held, the oldest first, and before whose call that was.
    files: BTreeMap<Utf8PathBuf, Vec<(FileBefore, Option<Caller>)>>,
    /// Calls whose files were looked at.
    looked_at: BTreeSet<Caller>,
    /// The checkouts that agents had, which are gone with everything in them once they are.
    checkouts: BTreeSet<Utf8PathBuf>,
}

/// A call, and whose it is.
type Caller = (Option<AgentId>, CallId);

/// Where a prompt stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Here,
    /// In the one that it was made from.
    Inherited,
}

impl Changes {
    fn new(to: LineId) -> Self {
        Self {
            to,
            found: None,
            has_run: false,
            files: BTreeMap::new(),
            looked_at: BTreeSet::new(),
            checkouts: BTreeSet::new(),
        }
    }

    fn take(&mut self, envelope: &Envelope) {
        let caller = |call: &CallId| (envelope.agent.clone(), call.clone());
        match &envelope.event {
            Event::RunStarted { spec } => {
                self.has_run = true;
                self.checkouts.extend(spec.worktree.as_ref().map(|worktree| worktree.path.clone()));
            }
            Event::Relocated { worktree: Some(worktree), .. } => {
                self.checkouts.insert(worktree.path.clone());
            }
            Event::Message { message, lines, meta, .. }
                if envelope.agent.is_none()
                    && message.role == Role::User
                    && meta.origin == Origin::Prompt
                    && lines.contains(&self.to) =>
            {
                self.found = Some(if self.has_run { Found::Here } else { Found::Inherited });
                self.files.clear();
            }
            Event::Checkpointed { call, path, before } => {
                let caller = call.as_ref().map(caller);
                self.looked_at.extend(caller.clone());
                self.files.entry(path.clone()).or_default().push((before.clone(), caller));
            }
            Event::CallStarted { call, tool, intent, .. } if TRACKED.contains(&tool.as_str()) => {
                self.begun(&caller(call), intent);
            }
            Event::CallEnded { call, tool, output, .. }
                if output.is_error && TRACKED.contains(&tool.as_str()) =>
            {
                // A call that failed has changed nothing: what is other now, somebody else has changed. One whose end
                // was not seen is not told here by its tool.
                let failed = Some(caller(call));
                for before in self.files.values_mut() {
                    before.retain(|(_, by)| *by != failed);
                }
            }
            _ => {}
        }
    }

    /// A call that nothing was kept for: a process had it switched off.
    fn begun(&mut self, caller: &Caller, intent: &Intent) {
        if self.looked_at.contains(caller) {
            return;
        }
        let reason = "it was changed while file checkpointing was off";
        for touch in intent.touches.iter().filter(|touch| touch.access == Access::Write) {
            let unknown = (FileBefore::NotKept { reason: reason.to_owned() }, Some(caller.clone()));
            self.files.entry(touch.path.clone()).or_default().push(unknown);
        }
    }

    /// What each file held at the prompt.
    fn of_prompt(self, to: LineId) -> Result<BTreeMap<Utf8PathBuf, FileBefore>, String> {
        match self.found {
            None => return Err(format!("no prompt of this session has this id: {to}")),
            Some(Found::Inherited) => {
                return Err(format!(
                    "this prompt is from before the session was forked or imported; what changed then was not kept \
                     here: {to}"
                ));
            }
            Some(Found::Here) => {}
        }
        let gone: Vec<Utf8PathBuf> = self.checkouts.into_iter().filter(|path| !path.is_dir()).collect();
        let is_left = |path: &Utf8Path| !gone.iter().any(|checkout| path.starts_with(checkout));
        let files = self.files.into_iter().filter(|(path, _)| is_left(path));
        let oldest = |befores: Vec<(FileBefore, _)>| befores.into_iter().next().map(|(before, _)| before);
        Ok(files.filter_map(|(path, befores)| Some((path, oldest(befores)?))).collect())
    }
}

/// One file that is other than it was.
struct Change {
    path: Utf8PathBuf,
    then: FileBefore,
    now: FileBefore,
    now_hash: Option<String>,
    /// Lines that putting it back adds, and that it takes away.
    lines: (u64, u64),
}

/// What is worked with.
struct Bench {
    keeper: Keeper,
    policy: Policy,
    around: Surroundings,
}

impl Bench {
    /// Looks at every file, and keeps what is there now unless nothing is to change. One that cannot be put back is an
    /// error for all.
    fn plan(
        &self,
        files: BTreeMap<Utf8PathBuf, FileBefore>,
        dry_run: bool,
    ) -> Result<(Vec<Change>, Rewound), String> {
        let (mut steps, mut rewound, mut problems) = (Vec::new(), Rewound::default(), Vec::new());
        for (path, then) in files {
            match self.compare(&path, then, dry_run) {
                Ok(Some(change)) => {
                    rewound.files.push(path);
                    rewound.insertions += change.lines.0;
                    rewound.deletions += change.lines.1;
                    steps.push(change);
                }
                Ok(None) => {}
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() {
            return Ok((steps, rewound));
        }
        Err(format!("nothing was changed: {}", problems.join("; ")))
    }

    /// One file: what is to be done; none if it is what it was.
    fn compare(&self, path: &Utf8Path, then: FileBefore, dry_run: bool) -> Result<Option<Change>, String> {
        if let FileBefore::NotKept { reason } = &then {
            return Err(format!("what {path} held was not kept: {reason}"));
        }
        let found = self.look(path)?;
        let wanted = self.wanted(path, &then)?;
        if wanted.as_deref() == found.content() {
            return Ok(None);
        }
        let lines = line_counts(found.content().unwrap_or_default(), wanted.as_deref().unwrap_or_default());
        let now = if dry_run { FileBefore::Missing } else { self.keeper.keep(&found) };
        if let FileBefore::NotKept { reason } = &now {
            return Err(format!("what {path} holds now cannot be kept: {reason}"));
        }
        let now_hash = found.hash().map(str::to_owned);
        Ok(Some(Change { path: path.to_owned(), then, now, now_hash, lines }))
    }

    fn look(&self, path: &Utf8Path) -> Result<Held, String> {
        let decided = Intent::titled("").touching(path, Access::Write);
        let rules: Arc<dyn PathRules> = Arc::new(OpenRules::new(self.policy.clone(), decided));
        Held::look_exactly(&self.around, rules, &self.keeper.limits, path, MOST_KEPT)
    }

    /// What a file held; none if there was none.
    fn wanted(&self, path: &Utf8Path, then: &FileBefore) -> Result<Option<Vec<u8>>, String> {
        let FileBefore::Kept { hash, .. } = then else { return Ok(None) };
        let files = self.keeper.files.as_ref().ok_or("this session keeps no files")?;
        let kept = files.get_checkpoint(hash);
        kept.map(Some).map_err(|error| format!("what {path} held cannot be read again: {error}"))
    }

    /// Does what was planned. The error says how many files were put back before it, and why not this one.
    fn take(&self, steps: &[Change]) -> Result<(), (usize, String)> {
        steps.iter().enumerate().try_for_each(|(done, step)| self.put(step).map_err(|error| (done, error)))
    }

    fn put(&self, change: &Change) -> Result<(), String> {
        let found = self.look(&change.path)?;
        if found.hash() != change.now_hash.as_deref() {
            return Err(format!("it was changed meanwhile and is left so: {}", change.path));
        }
        match (self.wanted(&change.path, &change.then)?, &change.then) {
            (Some(content), FileBefore::Kept { mode, .. }) => found.put_back(&content, *mode),
            _ => found.take_away(),
        }
    }
}
