//! Changes of what may be done while a session lives. Takes what a host or a person wants changed, by itself or with an
//! answer, gives what holds from then on and what of it goes on record; and takes that record, gives the same again to
//! a session that is taken up.

use std::sync::Arc;

use camino::Utf8PathBuf;
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{AgentId, Answer, Event, Mode, PermissionUpdate, Rule, Verdict};

use crate::approval::Rights;
use crate::permission::unknown_tool;

/// What may be done, while it is changed: nothing of it holds before it is on record.
pub struct Change {
    /// What may be done then.
    pub rights: Rights,
    /// The session's further directories then.
    pub directories: Vec<Utf8PathBuf>,
    mode: Mode,
    /// Why nobody may switch every check off, if so.
    bypass: Result<(), String>,
    /// What changes for everyone, as it is held.
    kept: Vec<PermissionUpdate>,
    /// What is allowed to one agent and those below it.
    scoped: Vec<(AgentId, Vec<Rule>)>,
    said: Vec<String>,
    not_done: Vec<String>,
    /// What is to be written into which settings once it holds.
    pub keeps: Vec<Keep>,
}

/// A change that outlasts the session, and whose settings it is written into.
pub type Keep = (RuleSource, PermissionUpdate);

impl Change {
    /// Nothing yet, beginning from what holds now.
    pub fn new(rights: &Rights, directories: &[Utf8PathBuf], bypass: Result<(), String>) -> Self {
        Self {
            rights: rights.clone(),
            directories: directories.to_vec(),
            mode: rights.mode,
            bypass,
            kept: Vec::new(),
            scoped: Vec::new(),
            said: Vec::new(),
            not_done: Vec::new(),
            keeps: Vec::new(),
        }
    }

    /// Allows what an answer allows: to everyone, or to one agent and those below it.
    pub fn allow(&mut self, rules: &[Rule], only: Option<&AgentId>) {
        if rules.is_empty() {
            return;
        }
        if let Some(agent) = only {
            allow_only(&mut self.rights, agent, rules);
            self.scoped.push((agent.clone(), rules.to_vec()));
            return;
        }
        let update = PermissionUpdate::AddRules { behavior: Verdict::Allow, rules: rules.to_vec() };
        apply(&mut self.rights, &update);
        self.kept.push(update);
    }

    pub fn take(&mut self, update: &PermissionUpdate) {
        let bare = update.bare();
        if self.make(bare, vec![bare.clone()]) {
            self.keeps.extend(update.to_keep());
        }
    }

    /// Keeps what an answer allows, where it says so.
    pub fn keep_allowed(&mut self, answer: &Answer) {
        if let Answer::Allow { rules, .. } = answer {
            let behavior = Verdict::Allow;
            self.keeps.extend(PermissionUpdate::AddRules { behavior, rules: rules.clone() }.to_keep());
        }
    }

    /// Keeps nothing beyond the session: nobody who could want that has said so.
    pub fn keep_nothing(&mut self) {
        if !std::mem::take(&mut self.keeps).is_empty() {
            self.not_done.push(ONLY_A_PERSON_KEEPS.to_owned());
        }
    }

    /// One more that came with an answer. Where an agent in the background asked, only what takes rights away is done.
    pub fn take_with_answer(&mut self, whole: &PermissionUpdate, behind: bool) {
        let update = whole.bare();
        let meant = if behind { narrowing(update, self.rights.mode) } else { Some(update.clone()) };
        if meant.as_ref() != Some(update) {
            self.not_done.push(FOR_NOBODY_ELSE.to_owned());
        }
        if let Some(meant) = meant
            && self.make(&meant, as_answered(&meant))
            && meant == *update
        {
            self.keeps.extend(whole.to_keep());
        }
    }

    /// One more, wanted by a hook or a tool that answers for a call of this agent's: a rule that allows something is the
    /// agent's, and of the rest only what takes rights away is done.
    pub fn take_for(&mut self, update: &PermissionUpdate, agent: &AgentId) {
        self.keeps.extend(update.to_keep());
        let update = update.bare();
        if let PermissionUpdate::AddRules { behavior: Verdict::Allow, rules } = update {
            self.allow(&session_rules(rules).collect::<Vec<_>>(), Some(agent));
            self.said.push(format!("{} for {agent}", said(update)));
            return;
        }
        let meant = narrowing(update, self.rights.mode);
        if meant.as_ref() != Some(update) {
            self.not_done.push(FOR_AN_AGENT.to_owned());
        }
        if let Some(meant) = meant {
            self.make(&meant, as_answered(&meant));
        }
    }

    /// Does it; says whether it could be done.
    fn make(&mut self, meant: &PermissionUpdate, steps: Vec<PermissionUpdate>) -> bool {
        if let Err(reason) = steps.iter().try_for_each(|step| check(step, &self.bypass)) {
            self.not_done.push(reason);
            return false;
        }
        for step in steps {
            apply(&mut self.rights, &step);
            move_directories(&mut self.directories, &step);
            match step {
                // It is an event of its own.
                PermissionUpdate::SetMode { mode } => self.rights.change_mode(mode),
                step => self.kept.push(step),
            }
        }
        self.said.push(said(meant));
        true
    }

    /// Why some of it is not done; none if all is.
    pub fn not_done(&self) -> Option<String> {
        let mut reasons = self.not_done.clone();
        reasons.dedup();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// What goes on record before it holds.
    pub fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        if !self.said.is_empty() {
            let said = self.said.join("; ");
            let text = match said.strip_prefix("the mode is ").filter(|_| self.said.len() == 1) {
                Some(mode) => format!("Permission mode: {mode}"),
                None => format!("Permissions changed: {said}"),
            };
            events.push(Event::Notice { level: "info".to_owned(), text });
        }
        if self.rights.mode != self.mode {
            events.push(Event::ModeChanged { mode: self.rights.mode });
        }
        if !self.kept.is_empty() {
            events.push(Event::RightsChanged { updates: self.kept.clone(), only: None });
        }
        for (agent, rules) in &self.scoped {
            let updates = vec![PermissionUpdate::AddRules { behavior: Verdict::Allow, rules: rules.clone() }];
            events.push(Event::RightsChanged { updates, only: Some(agent.clone()) });
        }
        events
    }
}

/// What a record says was changed, in order.
#[derive(Clone, Debug, Default)]
pub struct RightsChanges {
    /// The mode, where that was changed.
    pub mode: Option<Mode>,
    /// The mode before the session began to plan, where that is known.
    pub before_plan: Option<Mode>,
    changes: Vec<(PermissionUpdate, Option<AgentId>)>,
}

impl RightsChanges {
    /// Takes note of an event.
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::ModeChanged { mode } => self.change_mode(*mode),
            Event::RightsChanged { updates, only } => {
                for update in updates {
                    match update {
                        PermissionUpdate::SetMode { mode } => self.change_mode(*mode),
                        update => self.changes.push((update.clone(), only.clone())),
                    }
                }
            }
            _ => {}
        }
    }

    /// Another mode from there on.
    pub fn change_mode(&mut self, mode: Mode) {
        if mode == Mode::Plan && self.mode != Some(Mode::Plan) {
            self.before_plan = self.mode;
        }
        self.mode = Some(mode);
    }

    /// Changes what may be done as it was changed before.
    pub fn renew(&self, rights: &mut Rights) {
        for (update, only) in &self.changes {
            match (update, only) {
                (update, None) => apply(rights, update),
                (PermissionUpdate::AddRules { behavior: Verdict::Allow, rules }, Some(agent)) => {
                    allow_only(rights, agent, rules);
                }
                // Nothing else was ever for one agent alone.
                (_, Some(_)) => {}
            }
        }
    }

    /// These directories as they were changed before.
    pub fn directories(&self, mut directories: Vec<Utf8PathBuf>) -> Vec<Utf8PathBuf> {
        for (update, _) in self.changes.iter().filter(|(_, only)| only.is_none()) {
            move_directories(&mut directories, update);
        }
        directories
    }
}

/// Why something that was to hold for everyone does not.
const FOR_NOBODY_ELSE: &str = "what an agent in the background asks gives no rights to the whole session; a rule that \
                               allows it something can be added with its answer";

const ONLY_A_PERSON_KEEPS: &str = "it holds for this session and is written into no settings: only what a person or a \
                                   host answers is";

const FOR_AN_AGENT: &str = "what is answered for an agent's call without a person gives no rights to the whole session; \
                            a rule that allows something is the agent's";

/// As much of a change as takes rights away, in a session of this mode; none where nothing does.
fn narrowing(update: &PermissionUpdate, mode: Mode) -> Option<PermissionUpdate> {
    match update {
        PermissionUpdate::SetMode { mode: Mode::Plan } => Some(update.clone()),
        PermissionUpdate::SetMode { mode: Mode::Default } => {
            matches!(mode, Mode::AcceptEdits | Mode::BypassPermissions).then(|| update.clone())
        }
        PermissionUpdate::ReplaceRules { behavior: behavior @ Verdict::Allow, source, .. } => {
            let (behavior, source) = (*behavior, *source);
            Some(PermissionUpdate::ReplaceRules { behavior, source, rules: Vec::new() })
        }
        PermissionUpdate::ReplaceRules { behavior, rules, .. } => {
            Some(PermissionUpdate::AddRules { behavior: *behavior, rules: rules.clone() })
        }
        other => other.narrows().then(|| other.clone()),
    }
}

/// Why a change cannot be done, if it cannot.
fn check(update: &PermissionUpdate, bypass: &Result<(), String>) -> Result<(), String> {
    match update {
        PermissionUpdate::SetMode { mode: Mode::BypassPermissions } => bypass.clone(),
        PermissionUpdate::AddDirectories { directories } => {
            match directories.iter().find(|directory| !directory.is_absolute()) {
                Some(odd) => Err(format!("a directory is named by its whole path: {odd}")),
                None => Ok(()),
            }
        }
        PermissionUpdate::RemoveRules { rules, .. }
            if rules.iter().any(|rule| rule.source == RuleSource::PolicySettings) =>
        {
            Err(NOT_OURS.to_owned())
        }
        PermissionUpdate::ReplaceRules { source: RuleSource::PolicySettings, .. } => Err(NOT_OURS.to_owned()),
        PermissionUpdate::Kept { update, .. } => check(update, bypass),
        _ => Ok(()),
    }
}

/// Why a rule that this adds would never match, if so; `known`: the session's tools.
pub fn names_no_tool(update: &PermissionUpdate, known: &[&str]) -> Option<String> {
    match update {
        PermissionUpdate::AddRules { rules, .. } | PermissionUpdate::ReplaceRules { rules, .. } => {
            rules.iter().find_map(|rule| unknown_tool(&rule.tool, known)).map(|problem| problem.to_string())
        }
        _ => None,
    }
}

const NOT_OURS: &str = "this rule is in the managed settings, which only an administrator can change";

/// Does one change of the rules, and of what directories are nobody's any more.
fn apply(rights: &mut Rights, update: &PermissionUpdate) {
    match update {
        PermissionUpdate::AddRules { behavior, rules } => {
            let own = Arc::make_mut(&mut rights.rules).of(*behavior);
            let new: Vec<_> = rules.iter().filter(|rule| !own.contains(rule)).cloned().collect();
            own.extend(new);
        }
        PermissionUpdate::ReplaceRules { behavior, source, rules } => {
            let own = Arc::make_mut(&mut rights.rules).of(*behavior);
            own.retain(|rule| rule.source != *source);
            own.extend(rules.iter().cloned());
        }
        PermissionUpdate::RemoveRules { behavior, rules } => {
            Arc::make_mut(&mut rights.rules).of(*behavior).retain(|rule| !rules.contains(rule));
        }
        PermissionUpdate::SetMode { .. } => {}
        PermissionUpdate::Kept { update, .. } => apply(rights, update),
        PermissionUpdate::AddDirectories { directories } => {
            Arc::make_mut(&mut rights.gone).retain(|directory| !directories.contains(directory));
        }
        PermissionUpdate::RemoveDirectories { directories } => {
            // Agents have their own list, which may hold what the session's does not: what goes is told to them.
            let gone = Arc::make_mut(&mut rights.gone);
            let new: Vec<_> = directories.iter().filter(|one| !gone.contains(one)).cloned().collect();
            gone.extend(new);
        }
    }
}

/// Does one change of the session's further directories.
fn move_directories(own: &mut Vec<Utf8PathBuf>, update: &PermissionUpdate) {
    match update {
        PermissionUpdate::AddDirectories { directories } => {
            let new: Vec<_> = directories.iter().filter(|one| !own.contains(one)).cloned().collect();
            own.extend(new);
        }
        PermissionUpdate::RemoveDirectories { directories } => {
            own.retain(|directory| !directories.contains(directory));
        }
        _ => {}
    }
}

/// Allows something to one agent and those below it.
fn allow_only(rights: &mut Rights, agent: &AgentId, rules: &[Rule]) {
    Arc::make_mut(&mut rights.scoped).extend(rules.iter().map(|rule| (agent.clone(), rule.clone())));
}

/// A rule that came with an answer: wherever a host wants it kept, it is the session's, and an agent that has its own
/// rules in place of the session's does not have it.
fn session_rules(rules: &[Rule]) -> impl Iterator<Item = Rule> {
    rules.iter().map(|rule| Rule { source: RuleSource::Session, ..rule.clone() })
}

/// The answer with its rules as they are held.
pub fn of_session(answer: Answer) -> Answer {
    match answer {
        Answer::Allow { input, rules, everywhere } => {
            Answer::Allow { input, rules: session_rules(&rules).collect(), everywhere }
        }
        other => other,
    }
}

/// A change that came with an answer, as it is done: what allows something is held as the session's rules are, and is
/// found there when it is to go again. What denies or asks holds for everyone, whoever it is of.
fn as_answered(update: &PermissionUpdate) -> Vec<PermissionUpdate> {
    match update {
        PermissionUpdate::AddRules { behavior: behavior @ Verdict::Allow, rules } => {
            vec![PermissionUpdate::AddRules { behavior: *behavior, rules: session_rules(rules).collect() }]
        }
        PermissionUpdate::ReplaceRules { behavior: behavior @ Verdict::Allow, source, rules } => {
            let (behavior, own) = (*behavior, RuleSource::Session);
            let gone = PermissionUpdate::ReplaceRules { behavior, source: *source, rules: Vec::new() };
            let rules = session_rules(rules).collect();
            vec![gone, PermissionUpdate::ReplaceRules { behavior, source: own, rules }]
        }
        PermissionUpdate::RemoveRules { behavior: behavior @ Verdict::Allow, rules } => {
            let rules = rules.iter().cloned().chain(session_rules(rules)).collect();
            vec![PermissionUpdate::RemoveRules { behavior: *behavior, rules }]
        }
        other => vec![other.clone()],
    }
}

/// A change of what may be done, in words.
pub fn said(update: &PermissionUpdate) -> String {
    let verb = |behavior: &Verdict| match behavior {
        Verdict::Allow => "allowed",
        Verdict::Ask => "asked about",
        Verdict::Deny => "denied",
    };
    let all = |rules: &[Rule]| rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let paths =
        |paths: &[camino::Utf8PathBuf]| paths.iter().map(|path| path.as_str()).collect::<Vec<_>>().join(", ");
    match update {
        PermissionUpdate::AddRules { behavior, rules } => format!("{} is now {}", all(rules), verb(behavior)),
        PermissionUpdate::ReplaceRules { behavior, rules, .. } => {
            format!("only {} is now {}", all(rules), verb(behavior))
        }
        PermissionUpdate::RemoveRules { behavior, rules } => {
            format!("{} is no longer {}", all(rules), verb(behavior))
        }
        PermissionUpdate::SetMode { mode } => format!("the mode is {mode}"),
        PermissionUpdate::AddDirectories { directories } => format!("{} can be used", paths(directories)),
        PermissionUpdate::RemoveDirectories { directories } => {
            format!("{} can no longer be used", paths(directories))
        }
        PermissionUpdate::Kept { update, .. } => said(update),
    }
}
