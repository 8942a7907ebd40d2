//! Calls as rows of text, to try rules on. Takes one JSON object: a call with the rules and the mode it is made
//! under; gives the decision about it with all that led to it.
//!
//! A row that says neither `rules` nor `cwd` is about the policy of the caller. Any other stands for itself; one without
//! `cwd` is then decided as if it ran in [`NEUTRAL_DIRECTORY`], and what is outside of that is outside the workspace.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{Access, AgentSource, Decision, Intent, Mode, Rule, RuleSet};
use decurion_tools::{Surroundings, bash};
use serde::Deserialize;
use serde_json::Value;

use super::{Around, Grant, Policy, Undecided, Walls, add_real_paths, decide, effective_mode};
use crate::repository::{MOST_INDEX_BYTES, Standing, add_repositories};
use crate::symlinks::Symlinks;
use decurion_tools::bash::normal;

/// Where a row without a directory of its own happens.
pub const NEUTRAL_DIRECTORY: &str = "/home/user/project";
/// What `~` stands for where nothing says so.
const NEUTRAL_HOME: &str = "/home/user";

/// A row longer than this is refused.
const LONGEST_ROW: usize = 4 * 1024 * 1024;

/// What is wrong with a row.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    #[error("the row is longer than {LONGEST_ROW} bytes")]
    TooLong,
    /// Write it as described.
    #[error("the row is not the JSON of a call: {0}")]
    Shape(#[from] serde_json::Error),
    /// Name a mode that exists.
    #[error(transparent)]
    Mode(#[from] decurion_protocol::permission::UnknownMode),
    #[error("a rule cannot be read: {0}")]
    Rule(#[from] decurion_protocol::permission::InvalidRule),
    /// Give an absolute directory.
    #[error("the directory is not absolute: {0:?}")]
    Directory(String),
    /// Name a source that exists.
    #[error("the agent's source is unknown (user, project, plugin, builtin, managed): {0:?}")]
    Source(String),
}

#[derive(Deserialize)]
struct Row {
    mode: Option<String>,
    rules: Option<Rules>,
    tool: String,
    #[serde(default)]
    input: Value,
    cwd: Option<String>,
    home: Option<String>,
    #[serde(alias = "additionalDirectories", default)]
    directories: Option<Vec<String>>,
    agent: Option<Agent>,
    /// Whether commands are sandboxed, where that is not to be as on this machine.
    sandbox: Option<bool>,
}

#[derive(Default, Deserialize)]
struct Rules {
    allow: Option<Vec<String>>,
    ask: Option<Vec<String>>,
    deny: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Agent {
    source: Option<String>,
    permission_mode: Option<String>,
    tools: Option<Names>,
    disallowed_tools: Option<Names>,
    prompts: Option<bool>,
    trusted: Option<bool>,
}

/// A list, or a text with commas.
#[derive(Deserialize)]
#[serde(untagged)]
enum Names {
    List(Vec<String>),
    Text(String),
}

/// A decision with what it was made from.
pub struct Answered {
    pub tool: String,
    /// What the decision was made by.
    pub policy: Policy,
    /// Why the mode is what it is, for an agent.
    pub mode_because: Option<String>,
    pub input: Value,
    /// What the call would touch.
    pub intent: Intent,
    pub decision: Decision,
}

/// What rows are decided by where they do not say.
pub struct Ground<'a> {
    /// Where paths lead: a disk that is looked at, or none.
    pub trails: &'a Symlinks,
    /// What `~` stands for where the row neither says so nor names a directory in somebody's home.
    pub home: Option<&'a Utf8Path>,
    /// What the kernel enforces.
    pub walls: Walls,
    /// The policy of rows that do not stand for themselves, and the folder that is trusted there.
    pub here: Option<(&'a Policy, Option<&'a Utf8Path>)>,
}

/// Decides about one row.
pub fn answer(line: &[u8], ground: &Ground<'_>) -> Result<Answered, RowError> {
    if line.len() > LONGEST_ROW {
        return Err(RowError::TooLong);
    }
    let row: Row = serde_json::from_slice(line)?;
    let here = ground.here.filter(|_| row.rules.is_none() && row.cwd.is_none());
    let mut policy = match here {
        Some((policy, _)) => policy_here(&row, policy, ground.trails)?,
        None => policy_of(&row, ground)?,
    };
    let mode_because = row.agent.map(|agent| for_agent(&mut policy, agent)).transpose()?;
    let mut intent = intent_for(&row.tool, &row.input, &policy.around);
    add_real_paths(&mut intent, &policy.around.trails);
    let (cwd, looks) = (&policy.around.cwd, policy.around.trails.looks());
    let trusted = here.and_then(|(_, trusted)| trusted);
    let standing = Standing { cwd, trusted, looks, index_bytes: MOST_INDEX_BYTES };
    add_repositories(&mut intent, standing);
    let decision = decide(&policy, &row.tool, &row.input, &intent);
    Ok(Answered { tool: row.tool, policy, mode_because, input: row.input, intent, decision })
}

/// The policy of the caller, with what a row says besides.
fn policy_here(row: &Row, policy: &Policy, trails: &Symlinks) -> Result<Policy, RowError> {
    let mut policy = policy.clone();
    policy.around.trails = trails.clone();
    if let Some(mode) = &row.mode {
        policy.mode = mode.parse()?;
    }
    policy.around.home = row.home.as_ref().map(Utf8PathBuf::from).or(policy.around.home);
    let cwd = policy.around.cwd.clone();
    let further = row.directories.iter().flatten().map(|directory| normal(&cwd.join(directory)));
    policy.around.directories.extend(further);
    policy.walls = walls_of(row, policy.walls);
    Ok(policy)
}

/// What a row says the kernel enforces.
fn walls_of(row: &Row, usual: Walls) -> Walls {
    match row.sandbox {
        None => usual,
        Some(true) => Walls::Standing,
        Some(false) => Walls::Absent,
    }
}

/// The policy of a row that stands for itself.
fn policy_of(row: &Row, ground: &Ground<'_>) -> Result<Policy, RowError> {
    let cwd = row.cwd.as_deref().unwrap_or(NEUTRAL_DIRECTORY);
    if !cwd.starts_with('/') {
        return Err(RowError::Directory(cwd.to_owned()));
    }
    let cwd = normal(Utf8Path::new(cwd));
    let named = row.cwd.is_some().then(|| home_above(&cwd)).flatten();
    let home = row.home.as_ref().map(Utf8PathBuf::from).or(named);
    let home = home.or_else(|| ground.home.map(Utf8Path::to_owned)).unwrap_or_else(|| NEUTRAL_HOME.into());
    let directories =
        row.directories.iter().flatten().map(|directory| normal(&cwd.join(directory))).collect();
    let trails = ground.trails.clone();
    let around =
        Around { root: cwd.clone(), cwd, directories, home: Some(home), trails, ..Around::default() };
    let parent = row.mode.as_deref().map_or(Ok(Mode::Default), str::parse)?;
    let rules = row.rules.as_ref().map(rules).transpose()?.unwrap_or_default();
    let policy = Policy::new(parent, Arc::new(rules), around);
    Ok(Policy { walls: walls_of(row, ground.walls), ..policy })
}

fn rules(rules: &Rules) -> Result<RuleSet, RowError> {
    let read = |list: &Option<Vec<String>>| {
        list.iter().flatten().map(|text| Rule::parse(text, RuleSource::CliArg)).collect::<Result<Vec<_>, _>>()
    };
    Ok(RuleSet { allow: read(&rules.allow)?, ask: read(&rules.ask)?, deny: read(&rules.deny)? })
}

/// Narrows a policy to what an agent's definition says, and gives the reason for its mode.
fn for_agent(policy: &mut Policy, agent: Agent) -> Result<String, RowError> {
    let source = match agent.source.as_deref() {
        Some("user") => AgentSource::User,
        // Where nothing is said, the one that is trusted least but for plugins.
        Some("project") | None => AgentSource::Project,
        Some("plugin") => AgentSource::Plugin,
        Some("builtin" | "built-in") => AgentSource::Builtin,
        Some("managed") => AgentSource::Managed,
        Some(other) => return Err(RowError::Source(other.to_owned())),
    };
    let wanted = agent.permission_mode.as_deref().map(str::parse::<Mode>).transpose()?;
    let trusted = agent.trusted.unwrap_or(false);
    let parent = policy.mode;
    let (mode, because) = effective_mode(parent, wanted, source, trusted);
    policy.mode = mode;
    // In a file of a repository `dontAsk` was written to mean "deny", which narrows and so needs no trust.
    let narrows = wanted == Some(Mode::DontAsk) && source == AgentSource::Project;
    if narrows && matches!(parent, Mode::Default | Mode::Bubble | Mode::DontAsk) {
        policy.mode = Mode::DontAsk;
        policy.undecided = Undecided::Deny;
    }
    policy.answerable = agent.prompts.unwrap_or(true);
    let only = agent.tools.map(Names::split);
    let except = agent.disallowed_tools.map(Names::split).unwrap_or_default();
    policy.grant = Grant::parse(
        only.as_ref().map(|names| names.iter().map(String::as_str)),
        except.iter().map(String::as_str),
    )?;
    Ok(because)
}

impl Names {
    /// The names; a comma inside parentheses belongs to the name.
    fn split(self) -> Vec<String> {
        let text = match self {
            Self::List(names) => return names,
            Self::Text(text) => text,
        };
        let (mut names, mut name, mut open) = (Vec::new(), String::new(), 0usize);
        for c in text.chars() {
            match c {
                ',' if open == 0 => names.push(std::mem::take(&mut name)),
                c => {
                    open = match c {
                        '(' => open + 1,
                        ')' => open.saturating_sub(1),
                        _ => open,
                    };
                    name.push(c);
                }
            }
        }
        names.push(name);
        names.into_iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
    }
}

/// The home that a directory is in.
fn home_above(cwd: &Utf8Path) -> Option<Utf8PathBuf> {
    let mut parts = cwd.as_str().split('/').skip(1);
    match (parts.next(), parts.next()) {
        (Some(place @ ("home" | "Users")), Some(name)) if !name.is_empty() => {
            Some(format!("/{place}/{name}").into())
        }
        (Some("root"), _) => Some("/root".into()),
        _ => None,
    }
}

/// What a call would touch, by its tool's name and input alone.
fn intent_for(tool: &str, input: &Value, around: &Around) -> Intent {
    let text = |key: &str| input.get(key).and_then(Value::as_str);
    let mut intent = Intent::titled(tool);
    let path = |text: &str| {
        let home = around.home.as_deref().unwrap_or(Utf8Path::new("/"));
        match text.strip_prefix('~') {
            Some("") => home.to_owned(),
            Some(rest) if rest.starts_with('/') => normal(&home.join(rest.trim_start_matches('/'))),
            _ => normal(&around.cwd.join(text)),
        }
    };
    match tool {
        "Bash" | "Monitor" => {
            if let Some(command) = text("command") {
                let surroundings = Surroundings {
                    cwd: around.cwd.clone(),
                    home: around.home.clone(),
                    directories: around.directories.clone(),
                };
                intent.shell = Some(bash::analyse(command, &surroundings));
            }
        }
        "Read" | "NotebookRead" | "LS" | "Grep" | "Glob" => {
            let named = text("file_path").or_else(|| text("notebook_path")).or_else(|| text("path"));
            if let Some(named) = named.or(matches!(tool, "LS" | "Grep" | "Glob").then_some(".")) {
                intent = intent.touching(path(named), Access::Read);
            }
        }
        "Write" | "Edit" | "MultiEdit" | "NotebookEdit" => {
            if let Some(named) = text("file_path").or_else(|| text("notebook_path")).or_else(|| text("path"))
            {
                intent = intent.touching(path(named), Access::Write);
            }
        }
        "Agent" | "Task" => intent.agent = text("subagent_type").map(str::to_owned),
        _ => {}
    }
    intent
}
