//! Whether a call goes ahead, is asked about or is refused. Takes the rules, the mode and what the call would
//! touch; gives a decision with its reason. Pure: it looks at nothing but its arguments, one of which knows where
//! the links lead.
//!
//! The order is the same for every tool: what the agent may use at all, rules that deny, the mode that skips
//! the rest, rules that ask, the mode that only reads, rules that allow, what is harmless by itself, and last
//! what the mode says about everything undecided.

mod commands;
mod excluded;
mod glob;
mod led_to;
mod named_writes;
mod names;
mod paths;
pub mod rows;
mod shell;
mod suggest;
mod web;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::agent::type_names;
use decurion_protocol::intent::{GivenPath, ShellCommand, WideTouch};
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{Access, AgentSource, Decision, Intent, Mode, Rule, RuleSet, Touch, Verdict};
use decurion_tools::AddressRule;
use decurion_tools::reach::Reach as NetworkReach;
use serde_json::Value;

pub use crate::confine::Confinement;
use crate::symlinks::{Reach, Step, Symlinks};
pub use decurion_tools::bash::normal;
pub use excluded::Excluded;
pub(crate) use glob::component_matches;
use led_to::led_to;
pub(crate) use led_to::linked_from;
pub use named_writes::{NamedWrite, named_writes};
pub use names::{ENGINE_TOOLS, ENTER_PLAN, PERSON_TOOLS, UnknownTool, is_servers, unknown_tool};
use paths::Reading;
pub(crate) use paths::is_inside;
pub(crate) use paths::{STARTUP_FILES, fixed_part, plain, special_parts};
pub use shell::{Part, explain};
pub use suggest::suggest;

/// Where rules count from.
#[derive(Clone, Debug, Default)]
pub struct Around {
    pub cwd: Utf8PathBuf,
    /// The directory that `/x` in a rule counts from.
    pub root: Utf8PathBuf,
    /// Further directories the run may use.
    pub directories: Vec<Utf8PathBuf>,
    /// What `~` stands for.
    pub home: Option<Utf8PathBuf>,
    /// What programs of the user run or are configured by elsewhere than in the home folder.
    pub user_files: Arc<UserFiles>,
    /// The checkout of its own that the run works in. It may be below our state folder, whose name would protect
    /// it from the one that it was made for.
    pub checkout: Option<Confinement>,
    /// The tops of all known checkouts of the repository that the run works in: what is denied in one is denied in all.
    pub checkouts: Checkouts,
    /// Where all these names lead, and those in rules.
    pub trails: Symlinks,
}

/// Files that variables of the user name, and that programs run or read as settings. A command that could write one of
/// them would decide what these programs do outside of the sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserFiles {
    pub git: Vec<Utf8PathBuf>,
    pub files: Vec<Utf8PathBuf>,
    /// Folders of such files, and files in folders that programs make themselves.
    pub folders: Vec<Utf8PathBuf>,
}

/// Where the user has settings of programs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct User<'a> {
    pub home: Option<&'a Utf8Path>,
    pub files: Option<&'a UserFiles>,
}

/// The tops of all checkouts of a repository. They are looked up when a rule is first compared with a path: most calls
/// have no rule that could be about another checkout.
#[derive(Clone, Debug, Default)]
pub struct Checkouts {
    of: Option<Utf8PathBuf>,
    known: Vec<Utf8PathBuf>,
    found: Arc<OnceLock<Vec<Utf8PathBuf>>>,
}

impl Checkouts {
    /// Those of the repository that a folder is in, with some that are known already.
    pub fn of(folder: &Utf8Path, known: impl Iterator<Item = Utf8PathBuf>) -> Self {
        Self { of: Some(folder.to_owned()), known: known.collect(), ..Self::default() }
    }

    /// The same, to be looked up again.
    pub(crate) fn anew(&self) -> Self {
        Self { of: self.of.clone(), known: self.known.clone(), found: Arc::default() }
    }

    /// Whether they are looked up in the same way.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        (&self.of, &self.known) == (&other.of, &other.known)
    }

    /// None where there is only one.
    fn all(&self) -> &[Utf8PathBuf] {
        let Some(folder) = &self.of else { return &self.known };
        self.found.get_or_init(|| crate::sandbox::checkouts(folder, self.known.iter().cloned()))
    }
}

impl From<Vec<Utf8PathBuf>> for Checkouts {
    fn from(known: Vec<Utf8PathBuf>) -> Self {
        Self { known, ..Self::default() }
    }
}

impl Around {
    /// The user whose programs may read what a run writes.
    pub(crate) fn user(&self) -> User<'_> {
        User { home: self.home.as_deref(), files: Some(&self.user_files) }
    }

    /// The directories of the run.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Utf8Path> {
        [&self.cwd, &self.root].into_iter().chain(&self.directories).map(Utf8PathBuf::as_path)
    }

    /// The same without the one that its shell is in: a command could lead that elsewhere.
    pub(crate) fn granted(&self) -> impl Iterator<Item = &Utf8Path> {
        self.places().skip(1)
    }

    /// The name of a path as its owner wrote it: the links are followed up to the first that the repository, the model
    /// or anybody could have made.
    pub(crate) fn own_name<'a>(&self, path: &'a Utf8Path) -> Cow<'a, Utf8Path> {
        let steps = self.trails.of(path);
        let own = steps.iter().take_while(|step| !self.is_foreign(step)).last();
        own.map_or(Cow::Borrowed(path), |step| Cow::Owned(step.name.clone()))
    }

    /// The names of a path on its way to where it leads.
    pub(crate) fn other_names(&self, path: &Utf8Path) -> Vec<Utf8PathBuf> {
        self.trails.of(path).iter().map(|step| step.name.clone()).collect()
    }

    /// Whether a link is not the user's own.
    fn is_foreign(&self, step: &Step) -> bool {
        let checkouts = self.checkout.iter().flat_map(Confinement::checkouts);
        let inside = |place: &Utf8Path| step.link.starts_with(self.trails.place(place));
        step.shared || self.places().chain(checkouts).any(inside)
    }
}

/// Everything a decision depends on besides the call.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The mode in force.
    pub mode: Mode,
    /// The rules in force.
    pub rules: Arc<RuleSet>,
    /// Where rules count from.
    pub around: Around,
    /// What the agent may use at all.
    pub grant: Grant,
    /// What `dontAsk` does with what no rule decides.
    pub undecided: Undecided,
    /// Whether there is anybody who can be asked.
    pub answerable: bool,
    /// What the kernel enforces, whatever is decided.
    pub walls: Walls,
    /// Commands that run without the sandbox, if they are allowed.
    pub excluded: Excluded,
}

/// What the kernel enforces on commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Walls {
    /// Nothing: what a text says is all there is to decide by.
    #[default]
    Absent,
    /// Commands that only read can be kept from everything else, and path rules hold for all commands.
    Standing,
    /// The same, and what commands may do inside of their sandbox needs no question.
    Trusted,
}

/// What an agent may use, by its definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Only these, if given; a specifier narrows the tool to the calls it covers.
    pub only: Option<Vec<Rule>>,
    pub except: Vec<Rule>,
}

/// What `dontAsk` does with what no rule decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Undecided {
    #[default]
    Allow,
    /// It is refused: what authors of foreign definitions mean by it.
    Deny,
}

impl Policy {
    /// A policy for the root of a session.
    pub fn new(mode: Mode, rules: Arc<RuleSet>, around: Around) -> Self {
        Self {
            mode,
            rules,
            around,
            grant: Grant::default(),
            undecided: Undecided::Allow,
            answerable: true,
            walls: Walls::Absent,
            excluded: Excluded::default(),
        }
    }
}

impl Grant {
    /// Reads `tools` and `disallowedTools` of a definition. `*` is everything.
    pub fn parse<'a>(
        only: Option<impl IntoIterator<Item = &'a str>>,
        except: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, decurion_protocol::permission::InvalidRule> {
        let read = |text: &str| Rule::parse(text, RuleSource::Command);
        let only = match only {
            None => None,
            Some(names) => {
                let rules: Vec<Rule> = names.into_iter().map(read).collect::<Result<_, _>>()?;
                (!rules.iter().any(|rule| rule.tool == "*")).then_some(rules)
            }
        };
        let except = except.into_iter().map(read).collect::<Result<_, _>>()?;
        Ok(Self { only, except })
    }
}

/// A call on its way to a decision.
pub(crate) struct Question<'a> {
    pub policy: &'a Policy,
    pub tool: &'a str,
    pub input: &'a Value,
    pub intent: &'a Intent,
}

/// Decides about one call.
pub fn decide(policy: &Policy, tool: &str, input: &Value, intent: &Intent) -> Decision {
    let question = Question { policy, tool: canonical(tool), input, intent };
    let refused = question.refused_by_grant().or_else(|| question.revival_forbidden());
    let decision = refused.unwrap_or_else(|| match question.class() {
        Class::Shell => shell::decide(&question),
        Class::Read | Class::Write => question.decide_paths(),
        Class::Web => question.decide_web(),
        Class::Agent | Class::Skill | Class::Mcp | Class::Free | Class::Ask | Class::Other => {
            question.decide_named()
        }
    });
    finish(policy, doubted(policy, intent, decision))
}

/// The absolute patterns that a rule about paths stands for: of one that denies (`wide`), under every name that its
/// fixed part has.
pub(crate) fn patterns_of(rule: &Rule, around: &Around, wide: bool) -> Vec<String> {
    let reading = if wide { Reading::Wide } else { Reading::Narrow };
    rule.specifier.as_deref().map(|text| paths::patterns(text, around, reading)).unwrap_or_default()
}

/// Whether writing to a path is a way to run something later, or to change our own settings.
pub(crate) fn is_protected(path: &Utf8Path, around: &Around) -> bool {
    paths::protected(path, around).is_some()
}

/// The rule that denies agents of this type, under whichever of its names.
pub fn denied_type<'r>(rules: &'r RuleSet, kind: &str) -> Option<&'r Rule> {
    let mut intent = Intent::titled("");
    intent.agent = Some(kind.to_owned());
    let policy = Policy::new(Mode::BypassPermissions, Arc::default(), Around::default());
    let question = Question { policy: &policy, tool: AGENT, input: &Value::Null, intent: &intent };
    rules.deny.iter().find(|rule| question.forbidden(rule) == commands::Match::Yes)
}

/// What the rules say about an address that a host turned out to have.
pub(crate) fn address_rule(rules: &RuleSet, address: IpAddr) -> AddressRule {
    let names = |rule: &&Rule, forbids| {
        let specifier = rule.specifier.as_deref().filter(|_| rule.tool == "WebFetch");
        specifier.is_some_and(|specifier| web::covers_address(specifier, address, forbids))
    };
    if let Some(rule) = rules.deny.iter().find(|rule| names(rule, true)) {
        return AddressRule::Denied(format!("denied by {rule}"));
    }
    if let Some(rule) = rules.ask.iter().find(|rule| names(rule, true)) {
        return AddressRule::Denied(format!(
            "{rule} asks about that address; fetch it by its address to be asked"
        ));
    }
    let allowed = rules.allow.iter().any(|rule| names(&rule, false));
    if allowed { AddressRule::Allowed } else { AddressRule::Unnamed }
}

/// Whether a rule allows exactly this host.
pub(crate) fn names_host(rules: &RuleSet, host: &str) -> bool {
    let names = |specifier: &str| web::names(specifier, host);
    let web = rules.allow.iter().filter(|rule| rule.tool == "WebFetch");
    web.filter_map(|rule| rule.specifier.as_deref()).any(names)
}

/// What would be called is not what was approved: no rule that was made for that allows this.
fn doubted(policy: &Policy, intent: &Intent, decision: Decision) -> Decision {
    match &intent.doubt {
        Some(doubt) if decision.verdict == Verdict::Allow && policy.mode != Mode::BypassPermissions => {
            ask(doubt)
        }
        _ => decision,
    }
}

/// Nobody can be asked: the question is a refusal, and says so.
fn finish(policy: &Policy, mut decision: Decision) -> Decision {
    if decision.verdict != Verdict::Ask {
        return decision;
    }
    let why = if policy.mode == Mode::DontAsk {
        "mode dontAsk never asks"
    } else if !policy.answerable {
        "permission cannot be requested"
    } else {
        return decision;
    };
    decision.verdict = Verdict::Deny;
    decision.reason = format!("{}; {why}, so it is denied", decision.reason);
    decision
}

/// The mode a child runs in, and why.
pub fn effective_mode(
    parent: Mode,
    definition: Option<Mode>,
    source: AgentSource,
    trusted: bool,
) -> (Mode, String) {
    let from_user = match source {
        AgentSource::Builtin | AgentSource::User | AgentSource::Managed => true,
        AgentSource::Project => trusted,
        AgentSource::Plugin => false,
    };
    let Some(wanted) = definition else {
        return (parent, format!("the definition names no mode, so the parent's holds: {parent}"));
    };
    if parent == Mode::Plan {
        return (Mode::Plan, "the parent is in plan mode, and rights only shrink".to_owned());
    }
    if wanted == Mode::Plan {
        return (Mode::Plan, "plan in a definition always holds".to_owned());
    }
    if matches!(parent, Mode::BypassPermissions | Mode::AcceptEdits) {
        return (parent, format!("the parent's mode holds over the definition's: {parent}"));
    }
    if source == AgentSource::Plugin {
        return (parent, format!("a plugin's definition sets no mode; ignored: {wanted}"));
    }
    let widens = matches!(wanted, Mode::BypassPermissions | Mode::DontAsk | Mode::AcceptEdits);
    if widens && !from_user {
        return (parent, format!("the project is not trusted to widen the mode; ignored: {wanted}"));
    }
    (wanted, format!("the definition's mode holds: {wanted}"))
}

/// Adds the names that the paths of an intent have on the way to where they lead: each is touched as well, so that
/// a rule that forbids any of them forbids the call, and what allows it must allow all of them.
pub fn add_real_paths(intent: &mut Intent, trails: &Symlinks) {
    let names = |path: &Utf8Path| trails.of(path).iter().map(|step| step.name.clone()).collect();
    add_names(&mut intent.touches, &names);
    for command in intent.shell.iter_mut().flat_map(|shell| &mut shell.commands) {
        let climbs = std::mem::take(&mut command.climbs);
        let names = |path: &Utf8Path| -> Vec<Utf8PathBuf> {
            let written =
                climbs.iter().filter(|climb| climb.path == path).map(|climb| climb.written.as_path());
            let all = [path].into_iter().chain(written).flat_map(&names).filter(|name| name != path);
            all.fold(Vec::new(), |mut found, name: Utf8PathBuf| {
                if !found.contains(&name) {
                    found.push(name);
                }
                found
            })
        };
        add_names(&mut command.touches, &names);
        command.leads = command.mentions.iter().flat_map(|path| names(path)).collect();
        for given in command.given.clone() {
            let leads = given.path.iter().flat_map(|path| names(path));
            command.given.extend(leads.map(|path| GivenPath { path: Some(path), ..given.clone() }));
        }
        let programs: Vec<Utf8PathBuf> = command.program.iter().flat_map(|path| names(path)).collect();
        command.program.extend(programs);
        add_wide(command, trails, &names);
        command.climbs = climbs;
        if command.doubt.is_none() {
            command.doubt = finds_flags(command, trails);
        }
    }
}

/// Why a glob of a command may give it an option: a file is named like one.
fn finds_flags(command: &ShellCommand, trails: &Symlinks) -> Option<String> {
    let program = command.words.get(command.assigned).map_or("", String::as_str);
    let harmful = || decurion_tools::bash::has_hazards(program);
    let finds = |glob: &&String| {
        let parts = paths::special_parts(glob);
        let Some(part) = parts.first() else { return false };
        let flag = |name: &str| name.starts_with('-') && glob::shell_finds(part, name);
        trails.holds(&paths::fixed_part(glob), &flag).unwrap_or_else(harmful)
    };
    let glob = command.may_find_flags.iter().find(finds)?;
    Some(format!("a file whose name begins with a dash would be taken for an option, by {glob}"))
}

fn add_names(touches: &mut Vec<Touch>, names: &dyn Fn(&Utf8Path) -> Vec<Utf8PathBuf>) {
    for touch in touches.clone() {
        for path in names(&touch.path) {
            let touch = Touch { path, access: touch.access };
            if !touches.contains(&touch) {
                touches.push(touch);
            }
        }
    }
}

/// The same for what a command names by patterns: where those begin, and the links that they come across.
fn add_wide(command: &mut ShellCommand, trails: &Symlinks, names: &dyn Fn(&Utf8Path) -> Vec<Utf8PathBuf>) {
    let plain = |part: &str, name: &str| {
        (part.starts_with('.') || !name.starts_with('.')) && glob::shell_finds(part, name)
    };
    for wide in command.wide.clone() {
        let fixed = paths::fixed_part(&wide.pattern);
        let other =
            |path: &Utf8Path| WideTouch { pattern: paths::escaped(path), below: true, ..wide.clone() };
        let begins = names(&fixed);
        command.wide.extend(begins.iter().map(|name| other(name)));
        let parts = paths::special_parts(&wide.pattern);
        if wide.names && parts.len() == 1 {
            continue;
        }
        let reach = Reach { parts: &parts, matches: &plain, follows: wide.follows };
        for folder in begins.iter().chain([&fixed]) {
            let Some(met) = trails.met(folder, &reach) else {
                command.wide.push(other(Utf8Path::new("/")));
                continue;
            };
            for path in met.iter().flat_map(|link| names(link)) {
                command.wide.push(other(&path));
                command.touches.push(Touch { path, access: wide.access });
            }
        }
    }
}

/// The tool that starts agents.
const AGENT: &str = "Agent";

/// The name rules know a tool by.
fn canonical(tool: &str) -> &str {
    match tool {
        "Task" => AGENT,
        tool => tool,
    }
}

/// What kind of tool it is, for rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Shell,
    Read,
    Write,
    Web,
    Agent,
    Skill,
    Mcp,
    /// Tools that touch nothing but the session itself.
    Free,
    /// Tools that are a question by themselves.
    Ask,
    Other,
}

fn class(tool: &str, input: &Value) -> Class {
    match tool {
        "Bash" => Class::Shell,
        "Monitor" if input.get("command").is_some() => Class::Shell,
        "Read" | "Grep" | "Glob" | "LS" | "NotebookRead" => Class::Read,
        "Edit" | "Write" | "NotebookEdit" | "MultiEdit" => Class::Write,
        "WebFetch" => Class::Web,
        "Agent" => Class::Agent,
        "Skill" | "SlashCommand" => Class::Skill,
        "AskUserQuestion" | "ExitPlanMode" => Class::Ask,
        "TodoWrite" | "TodoRead" | "TaskOutput" | "AgentOutput" | "AgentOutputTool" | "BashOutput"
        | "KillShell" | "KillBash" | "TaskStop" | "SendMessage" | "TaskCreate" | "TaskGet" | "TaskList"
        | "TaskUpdate" | "ListAgents" | "ReportFindings" | "StructuredOutput" | "ToolSearch"
        | "EnterPlanMode" | "CronList" | "ListMcpResources" => Class::Free,
        _ if is_mcp(tool) => Class::Mcp,
        _ => Class::Other,
    }
}

fn is_mcp(tool: &str) -> bool {
    tool.strip_prefix("mcp__").and_then(|rest| rest.split_once("__")).is_some_and(|(server, tool)| {
        let plain = |name: &str| {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte))
        };
        plain(server) && plain(tool)
    })
}

pub(crate) fn decision(verdict: Verdict, rule: Option<&Rule>, reason: impl Into<String>) -> Decision {
    Decision { verdict, rule: rule.map(ToString::to_string), reason: reason.into(), profile: None }
}

pub(crate) fn ask(reason: impl Into<String>) -> Decision {
    decision(Verdict::Ask, None, reason)
}

pub(crate) fn allow(reason: impl Into<String>) -> Decision {
    decision(Verdict::Allow, None, reason)
}

pub(crate) fn deny(reason: impl Into<String>) -> Decision {
    decision(Verdict::Deny, None, reason)
}

impl Question<'_> {
    pub(crate) fn class(&self) -> Class {
        class(self.tool, self.input)
    }

    /// What the mode says about what nothing decided.
    pub(crate) fn undecided(&self, reason: impl Into<String>) -> Decision {
        let reason = reason.into();
        match (self.policy.mode, self.policy.undecided) {
            (Mode::DontAsk, Undecided::Allow) => allow(format!("{reason}; mode dontAsk lets it go ahead")),
            (Mode::DontAsk, Undecided::Deny) => {
                deny(format!("{reason}; mode dontAsk of this definition denies it"))
            }
            _ => ask(reason),
        }
    }

    /// The refusal of a tool that is not one of the agent's.
    fn refused_by_grant(&self) -> Option<Decision> {
        let grant = &self.policy.grant;
        let only = grant.only.as_deref().filter(|_| !is_mcp(self.tool));
        if only.is_some_and(|rules| !self.granted(rules)) {
            return Some(deny(format!("not one of this agent's tools: {}", self.tool)));
        }
        let rule = grant.except.iter().find(|rule| self.forbidden(rule) == commands::Match::Yes)?;
        Some(decision(Verdict::Deny, Some(rule), format!("not one of this agent's tools: {}", self.tool)))
    }

    /// A message to an agent that has ended starts it again: what forbids its type, or asks about it, holds for the
    /// message. Which tools the sender has does not matter here.
    fn revival_forbidden(&self) -> Option<Decision> {
        self.intent.agent.as_ref().filter(|_| self.tool == "SendMessage")?;
        let start = Question { tool: AGENT, policy: self.policy, input: self.input, intent: self.intent };
        let grant = &self.policy.grant;
        let limits = |rules: &&[Rule]| rules.iter().any(|rule| canonical(&rule.tool) == AGENT);
        if grant.only.as_deref().filter(limits).is_some_and(|rules| !start.granted(rules)) {
            return Some(deny("not one of the agents that this agent may start"));
        }
        let by_grant = start.first_forbidding(&grant.except).filter(|(_, how)| *how == commands::Match::Yes);
        if let Some((rule, _)) = by_grant {
            return Some(decision(Verdict::Deny, Some(rule), format!("denied by {rule}")));
        }
        start.forbidden_first().filter(|decision| decision.verdict != Verdict::Allow)
    }

    fn granted(&self, rules: &[Rule]) -> bool {
        let named: Vec<&Rule> = rules.iter().filter(|rule| canonical(&rule.tool) == self.tool).collect();
        if named.is_empty() {
            return false;
        }
        // `Agent(a, b)` limits which agents may be started elsewhere; here it grants the tool.
        if named.iter().any(|rule| rule.specifier.is_none()) {
            return true;
        }
        match self.class() {
            Class::Shell => shell::granted(self, &named),
            Class::Read | Class::Write => {
                let touches = self.touches();
                !touches.is_empty()
                    && touches.iter().all(|touch| {
                        named.iter().any(|rule| {
                            rule.specifier.as_deref().is_some_and(|specifier| {
                                paths::covers(specifier, &touch.path, &self.policy.around, Reading::Narrow)
                            })
                        })
                    })
            }
            Class::Web => self.host().is_ok_and(|address| {
                address.odd.is_none()
                    && named.iter().any(|rule| {
                        rule.specifier
                            .as_deref()
                            .is_some_and(|specifier| web::covers(specifier, &address.host, false))
                    })
            }),
            _ => named.iter().any(|rule| {
                rule.specifier
                    .as_deref()
                    .is_some_and(|specifier| self.name_covered(specifier, Reading::Narrow))
            }),
        }
    }

    /// How a rule that forbids covers this call.
    pub(crate) fn forbidden(&self, rule: &Rule) -> commands::Match {
        use commands::Match;
        match self.class() {
            Class::Shell => shell::forbidden(self, rule),
            Class::Read | Class::Write => self.path_forbidden(rule),
            Class::Web if canonical(&rule.tool) == "WebFetch" => match (&rule.specifier, self.host()) {
                (None, _) => Match::Yes,
                (Some(specifier), Ok(address)) if web::covers(specifier, &address.host, true) => Match::Yes,
                (Some(_), Ok(_)) => Match::No,
                (Some(_), Err(_)) => Match::Maybe,
            },
            _ => {
                let named = tool_matches(&rule.tool, self.tool, Reading::Wide)
                    && rule
                        .specifier
                        .as_deref()
                        .is_none_or(|specifier| self.name_covered(specifier, Reading::Wide));
                if named { Match::Yes } else { Match::No }
            }
        }
    }

    /// The first of these rules that covers the call, certainly if possible.
    pub(crate) fn first_forbidding<'r>(&self, rules: &'r [Rule]) -> Option<(&'r Rule, commands::Match)> {
        let mut perhaps = None;
        for rule in rules {
            match self.forbidden(rule) {
                commands::Match::Yes => return Some((rule, commands::Match::Yes)),
                commands::Match::Maybe => perhaps = perhaps.or(Some((rule, commands::Match::Maybe))),
                commands::Match::No => {}
            }
        }
        perhaps
    }

    /// Deny rules, the bypassing mode, ask rules: the part that is the same for all tools.
    pub(crate) fn forbidden_first(&self) -> Option<Decision> {
        use commands::Match;
        let rules = &self.policy.rules;
        let denied = self.first_forbidding(&rules.deny);
        if let Some((rule, Match::Yes)) = denied {
            return Some(decision(Verdict::Deny, Some(rule), format!("denied by {rule}")));
        }
        if let Some((rule, _)) = denied {
            let reason = format!("the rule {rule} may forbid it");
            return Some(decision(Verdict::Ask, Some(rule), reason));
        }
        if self.policy.mode == Mode::BypassPermissions {
            return Some(allow("mode bypassPermissions skips all checks but deny rules"));
        }
        match self.first_forbidding(&rules.ask) {
            Some((rule, Match::Yes)) => Some(decision(Verdict::Ask, Some(rule), format!("{rule} asks"))),
            Some((rule, _)) => {
                let reason = format!("the rule {rule} may ask about it");
                Some(decision(Verdict::Ask, Some(rule), reason))
            }
            None => None,
        }
    }

    /// The paths the call names.
    pub(crate) fn touches(&self) -> Vec<Touch> {
        let mut touches = self.intent.touches.clone();
        // A glob may lead out of the directory it starts in.
        if let Some(pattern) =
            self.input.get("pattern").and_then(Value::as_str).filter(|_| self.tool == "Glob")
        {
            let base =
                touches.first().map_or_else(|| self.policy.around.cwd.clone(), |touch| touch.path.clone());
            let joined = match (pattern.strip_prefix("~/"), &self.policy.around.home) {
                (Some(rest), Some(home)) => home.join(rest),
                _ => base.join(pattern),
            };
            let fixed = paths::fixed_part(joined.as_str());
            let climbs = joined
                .as_str()
                .strip_prefix(fixed.as_str())
                .is_some_and(|rest| rest.split('/').any(|part| part == ".."));
            let path = if climbs { Utf8PathBuf::from("/") } else { normal(&fixed) };
            touches.push(Touch { path, access: Access::Read });
        }
        touches
    }

    fn path_forbidden(&self, rule: &Rule) -> commands::Match {
        use commands::Match;
        let covers_tool = path_rule_covers(&rule.tool, self.tool);
        let near = path_rule_is_near(&rule.tool, self.tool);
        if !covers_tool && !near {
            return if tool_matches(&rule.tool, self.tool, Reading::Wide) { Match::Yes } else { Match::No };
        }
        let Some(specifier) = rule.specifier.as_deref() else {
            return if covers_tool { Match::Yes } else { Match::No };
        };
        let around = &self.policy.around;
        let mut best = Match::No;
        for touch in self.touches() {
            let found = if paths::covers(specifier, &touch.path, around, Reading::Wide) {
                if covers_tool { Match::Yes } else { Match::Maybe }
            } else if paths::covering(specifier, around)(&touch.path) {
                Match::Maybe
            } else if self.tool == "Grep" && covers_tool {
                let pattern = touch.path.to_string();
                let wide = WideTouch {
                    pattern,
                    below: true,
                    visible: true,
                    follows: false,
                    names: false,
                    access: Access::Read,
                };
                // What lies in other checkouts is refused file by file, when it is opened.
                let here = Around { checkouts: Checkouts::default(), ..around.clone() };
                if paths::may_cover(specifier, &wide, &here) { Match::Maybe } else { Match::No }
            } else {
                Match::No
            };
            best = best.max(found);
        }
        best
    }

    fn decide_paths(&self) -> Decision {
        if let Some(decision) = self.forbidden_first() {
            return decision;
        }
        let writes = self.class() == Class::Write;
        let policy = self.policy;
        if policy.mode == Mode::Plan && writes {
            return deny("mode plan changes nothing");
        }
        let touches = self.touches();
        if let Some(odd) = self.odd_path() {
            return ask(odd);
        }
        if touches.is_empty() && !matches!(self.tool, "Grep" | "Glob" | "LS") {
            return ask("the path is not known");
        }
        let mut last = None;
        for touch in &touches {
            let access = if writes { Access::Write } else { Access::Read };
            match self.path_allowed(&touch.path, access) {
                Ok(found) => last = Some(found),
                Err(reason) => return self.undecided(reason),
            }
        }
        last.unwrap_or_else(|| allow("it reads inside the working directory"))
    }

    /// Whether settings lead to a path, by a link or by name, that git, an editor or we ourselves follow.
    fn is_led_to(&self, path: &Utf8Path) -> bool {
        let around = &self.policy.around;
        let place = around.trails.place(path);
        let leads = |folder: &Utf8Path| {
            let places = led_to(&around.trails.place(folder), around.user());
            // Settings that name all of a working directory would leave nothing to edit.
            places.iter().any(|led| place.starts_with(led) && !around.trails.place(folder).starts_with(led))
        };
        around.places().any(leads)
    }

    /// A path that is not what it looks like.
    fn odd_path(&self) -> Option<String> {
        let strange =
            |text: &str| text.chars().any(char::is_control) || decurion_tools::bash::visible(text) != text;
        ["file_path", "path", "notebook_path", "pattern"]
            .iter()
            .filter(|key| **key != "pattern" || self.tool == "Glob")
            .filter_map(|key| self.input.get(*key)?.as_str())
            .find(|text| strange(text))
            .map(|text| {
                format!("the path has characters that deceive: {}", decurion_tools::bash::visible(text))
            })
    }

    /// Whether a rule that names paths allows this one.
    pub(crate) fn is_named_by_rule(&self, path: &Utf8Path, access: Access) -> bool {
        let allowed = self.path_allowed(path, access).ok().and_then(|decision| decision.rule);
        allowed.is_some_and(|rule| rule.contains('('))
    }

    /// Whether one path may be used, by rules, place and mode; else why not.
    pub(crate) fn path_allowed(&self, path: &Utf8Path, access: Access) -> Result<Decision, String> {
        let policy = self.policy;
        let inside = paths::is_inside(path, &policy.around);
        let protected = (access == Access::Write).then(|| paths::protected(path, &policy.around)).flatten();
        let tool = if self.class() == Class::Shell {
            if access == Access::Write { "Write" } else { "Read" }
        } else {
            self.tool
        };
        for rule in &policy.rules.allow {
            if !path_rule_covers(&rule.tool, tool) {
                continue;
            }
            let covered = match rule.specifier.as_deref() {
                None => {
                    access == Access::Read || (protected.is_none() && (inside || !paths::is_system(path)))
                }
                Some(specifier) => {
                    paths::covers(specifier, path, &policy.around, Reading::Narrow)
                        && protected.as_ref().is_none_or(|part| paths::names_protected(specifier, part))
                }
            };
            if covered {
                return Ok(decision(Verdict::Allow, Some(rule), format!("allowed by {rule}")));
            }
        }
        match access {
            Access::Read if inside => Ok(allow("it reads inside the working directory")),
            Access::Read => {
                let own = policy.around.checkout.as_ref().and_then(|checkout| checkout.translated(path));
                match own {
                    // The session's own folder, which those above it read without a question.
                    Some(own) if own.starts_with(&policy.around.root) => {
                        Ok(allow("it reads inside the checkout that its own was made from"))
                    }
                    Some(own) => {
                        Err(format!("it reads outside the working directory: {path}; use {own} instead"))
                    }
                    None => Err(format!("it reads outside the working directory: {path}")),
                }
            }
            Access::Write if protected.is_some() => Err(format!("it writes to a protected path: {path}")),
            Access::Write if !inside => Err(format!("it writes outside the working directory: {path}")),
            Access::Write if policy.mode == Mode::AcceptEdits && self.is_led_to(path) => {
                Err(format!("settings lead to it that programs follow: {path}"))
            }
            Access::Write if policy.mode == Mode::AcceptEdits => {
                Ok(allow("mode acceptEdits lets edits inside the working directory go ahead"))
            }
            Access::Write => Err(format!("it modifies a file: {path}")),
        }
    }

    fn host(&self) -> Result<web::Address, &'static str> {
        let url = self.input.get("url").and_then(Value::as_str).unwrap_or("");
        web::address(url)
    }

    fn decide_web(&self) -> Decision {
        if let Some(decision) = self.forbidden_first() {
            return decision;
        }
        let address = match self.host() {
            Ok(address) => address,
            Err(reason) => return ask(reason),
        };
        if let Some(odd) = address.odd {
            return ask(odd);
        }
        let inside = match web::reach_of(&address.host) {
            NetworkReach::Secrets => {
                return deny("machines keep their secrets at this address; it is never fetched");
            }
            reach => reach.is_inside(),
        };
        for rule in self.policy.rules.allow.iter().filter(|rule| rule.tool == "WebFetch") {
            let named = |specifier: &str| web::names(specifier, &address.host);
            if inside && !rule.specifier.as_deref().is_some_and(named) {
                continue;
            }
            if rule.specifier.as_deref().is_none_or(|specifier| web::covers(specifier, &address.host, false))
            {
                return decision(Verdict::Allow, Some(rule), format!("allowed by {rule}"));
            }
        }
        if inside {
            return ask(format!(
                "it talks to this machine or an internal network, which only a rule that names the host allows: {}",
                address.host
            ));
        }
        self.undecided(format!("no rule names the host that it connects to: {}", address.host))
    }

    /// The type of the agent that the call starts. Of one that it continues, the caller looks it up; until then it is
    /// not known.
    fn agent_type(&self) -> Option<&str> {
        let text = |key: &str| self.input.get(key).and_then(Value::as_str);
        let named = self.intent.agent.as_deref();
        match text("resume") {
            Some(_) => named,
            None => named.or_else(|| text("subagent_type")).or(Some("general-purpose")),
        }
    }

    /// Whether a specifier names what this call is about: an agent's type, a skill.
    fn name_covered(&self, specifier: &str, reading: Reading) -> bool {
        let text = |key: &str| self.input.get(key).and_then(Value::as_str);
        let names = match self.class() {
            Class::Agent => self.agent_type().map(|name| type_names(name.trim())).unwrap_or_default(),
            Class::Skill => {
                let name = text("skill").or_else(|| text("command")).unwrap_or("");
                vec![name.trim().trim_start_matches('/')]
            }
            _ => return specifier == "*",
        };
        specifier.split(',').map(|wanted| wanted.trim().trim_start_matches('/')).any(|wanted| {
            let covers = |name: &&str| match reading {
                // Definitions and skills are looked up without regard to case, so what forbids them is read so.
                Reading::Wide => {
                    let (wanted, name) = (wanted.to_ascii_lowercase(), name.to_ascii_lowercase());
                    name_matches(&wanted, &name) || glob::text_matches(&wanted, &name)
                }
                Reading::Narrow => name_matches(wanted, name),
            };
            names.iter().any(covers)
        })
    }

    fn decide_named(&self) -> Decision {
        let class = self.class();
        // No mode answers what only a person knows.
        let skipped = |decision: &Decision| class == Class::Ask && decision.verdict == Verdict::Allow;
        if let Some(decision) = self.forbidden_first().filter(|decision| !skipped(decision)) {
            return decision;
        }
        if self.policy.mode == Mode::Plan && matches!(class, Class::Mcp | Class::Other) {
            return deny("mode plan changes nothing, and what this tool does is not known");
        }
        let wider = self.input.get("mode").and_then(Value::as_str).filter(|_| class == Class::Agent);
        if let Some(mode) = wider {
            let widens = matches!(mode, "bypassPermissions" | "acceptEdits" | "dontAsk" | "auto");
            if widens && mode != self.policy.mode.name() {
                return ask(format!("it starts an agent in a wider mode: {mode}"));
            }
        }
        for rule in &self.policy.rules.allow {
            let named = tool_matches(&rule.tool, self.tool, Reading::Narrow)
                && rule
                    .specifier
                    .as_deref()
                    .is_none_or(|specifier| self.name_covered(specifier, Reading::Narrow));
            if named && class != Class::Ask {
                return decision(Verdict::Allow, Some(rule), format!("allowed by {rule}"));
            }
        }
        match class {
            Class::Free => allow("it changes nothing outside the session"),
            Class::Agent => allow("starting an agent is allowed; what it does is decided call by call"),
            Class::Ask => ask("it is a question to a person"),
            Class::Skill => match &self.intent.words {
                Some(reason) => allow(reason.clone()),
                None => self.undecided("no rule allows this skill"),
            },
            Class::Mcp => self.undecided("no rule allows this tool of an MCP server"),
            _ if matches!(self.tool, "EnterWorktree" | "ExitWorktree") => self.undecided(format!(
                "no rule lets the session change its checkout; a person must agree, or the rule `{}` allow it",
                self.tool
            )),
            _ => self.undecided("no rule allows this tool"),
        }
    }
}

/// Whether a name in a rule, which may end in `:*`, covers the name of an agent type or a skill.
fn name_matches(wanted: &str, name: &str) -> bool {
    match wanted.strip_suffix(":*").or_else(|| wanted.strip_suffix(" *")) {
        Some(prefix) => {
            let rest = name.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ':']))
        }
        None => wanted.eq_ignore_ascii_case(name),
    }
}

/// Whether a rule's tool name covers a tool.
fn tool_matches(rule: &str, tool: &str, reading: Reading) -> bool {
    let rule = canonical(rule);
    if rule == tool {
        return reading == Reading::Wide || is_mcp(tool) || !tool.starts_with("mcp__");
    }
    let wide = reading == Reading::Wide;
    if wide && rule.contains('*') && glob::text_matches(rule, tool) {
        return true;
    }
    if !rule.starts_with("mcp__") || !is_mcp(tool) {
        return false;
    }
    let (rule, tool) =
        if wide { (rule.to_lowercase(), tool.to_lowercase()) } else { (rule.to_owned(), tool.to_owned()) };
    // A rule names a server, or a server and a pattern of its tools; the server's name is never a pattern.
    let rest = rule.strip_prefix("mcp__").unwrap_or("");
    let (server, wanted) = rest.split_once("__").unwrap_or((rest, "*"));
    let Some(name) =
        tool.strip_prefix("mcp__").and_then(|tool| tool.strip_prefix(server)?.strip_prefix("__"))
    else {
        return false;
    };
    // `mcp__a__b__c` may be the tool `c` of a server `a__b`: a rule for `a` alone does not say so.
    let unclear = name.contains("__") && wanted.contains('*') && !wide;
    !server.is_empty() && !server.contains('*') && !unclear && glob::text_matches(wanted, name)
}

/// What a rule with a path keeps commands from, if it denies: what no tool may edit, no command may write.
pub(crate) fn denied_access(tool: &str) -> Option<Access> {
    match tool {
        "Read" => Some(Access::Read),
        "Edit" | "MultiEdit" | "NotebookEdit" | "Write" => Some(Access::Write),
        _ => None,
    }
}

/// Whether rules for one tool are about the paths of another.
fn path_rule_covers(rule: &str, tool: &str) -> bool {
    match rule {
        "Edit" => matches!(tool, "Edit" | "Write" | "NotebookEdit" | "MultiEdit"),
        "Read" => matches!(tool, "Read" | "Grep" | "Glob" | "LS" | "NotebookRead"),
        rule => rule == tool,
    }
}

/// Whether forbidding the one casts doubt on the other.
fn path_rule_is_near(rule: &str, tool: &str) -> bool {
    matches!(
        (rule, tool),
        ("Write", "Edit" | "NotebookEdit" | "MultiEdit")
            | ("Read", "Edit" | "Write" | "NotebookEdit" | "MultiEdit")
    )
}
