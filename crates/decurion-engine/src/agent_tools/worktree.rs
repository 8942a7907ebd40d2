//! EnterWorktree and ExitWorktree: the session goes into a checkout of its own, and out again. Take a name, or what
//! becomes of the checkout; give where the session works now. For the root alone.

use std::sync::Arc;

use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Intent, ToolEffect, ToolOutput};
use decurion_tools::{InputError, Surroundings, Tool, ToolContext, ToolSpec, typed};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{NO_SESSION, caller};
use crate::child::WORKTREE_TOOLS;
use crate::prompt;
use crate::session_port::{Leaving, Place, Relocation};

const ENTER: &str = WORKTREE_TOOLS[0];
const ENTER_DESCRIPTION: &str = "Moves the session into a git worktree of its own, on a new branch from what is checked out now. Use it when the \
     user asks to work in a worktree, or apart from their checkout. From then on relative paths and commands work \
     there, and nothing outside of it may be changed. Changes that are not committed stay behind. A worktree of this \
     name that was left earlier and that nobody uses is entered again.";
const EXIT: &str = WORKTREE_TOOLS[1];
const EXIT_DESCRIPTION: &str = "Moves the session back to where it was before EnterWorktree. `keep` leaves the worktree and its branch as they \
     are; `remove` takes both away, and is refused if there is work in it, unless `discard_changes` says that this \
     work is to be lost: only if the user said so.";

pub fn both() -> [Arc<dyn Tool>; 2] {
    [Arc::new(EnterWorktree::default()), Arc::new(ExitWorktree::default())]
}

/// The tool that leads in.
pub struct EnterWorktree {
    spec: ToolSpec,
}

impl Default for EnterWorktree {
    fn default() -> Self {
        let name = json!({
            "type": "string", "minLength": 1, "maxLength": 64,
            "description": "letters, digits, `_` and `-`; left out, one is made up"
        });
        let schema = json!({"type": "object", "properties": {"name": name}, "additionalProperties": false});
        Self { spec: ToolSpec::new(ENTER, ENTER_DESCRIPTION, schema) }
    }
}

#[derive(Deserialize)]
struct Enter {
    #[serde(default)]
    name: Option<String>,
}

impl Tool for EnterWorktree {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _around: &Surroundings) -> Result<Intent, InputError> {
        let input: Enter = typed::parse(&self.spec, input)?;
        Ok(Intent::titled(match input.name {
            Some(name) => format!("work in the worktree {name}"),
            None => "work in a new worktree".to_owned(),
        }))
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            match typed::parse::<Enter>(&self.spec, &input) {
                Ok(Enter { name }) => {
                    relocate(cx, Relocation::Enter { name }).await.map_or_else(|no| no, entered)
                }
                Err(error) => error.into(),
            }
        })
    }
}

fn entered(place: Place) -> ToolOutput {
    let Place { cwd, worktree, without, .. } = place;
    let message = format!("The session now works in {cwd}.\n\n{}", prompt::in_worktree(&worktree, without));
    let value = json!({
        "worktreePath": worktree.path,
        "worktreeBranch": worktree.branch,
        "worktreeBase": worktree.base,
        "message": message,
    });
    ToolOutput::text(message).with_structured(value).with_effect(ToolEffect::Moved { cwd })
}

/// The tool that leads out.
pub struct ExitWorktree {
    spec: ToolSpec,
}

impl Default for ExitWorktree {
    fn default() -> Self {
        let schema = json!({
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["keep", "remove"]},
                "discard_changes": {"type": "boolean"}
            },
            "required": ["action"],
            "additionalProperties": false
        });
        Self { spec: ToolSpec::new(EXIT, EXIT_DESCRIPTION, schema) }
    }
}

#[derive(Deserialize)]
struct Exit {
    action: String,
    #[serde(default)]
    discard_changes: bool,
}

impl Exit {
    fn leaving(&self) -> Leaving {
        match (self.action.as_str(), self.discard_changes) {
            ("remove", false) => Leaving::Remove,
            ("remove", true) => Leaving::Discard,
            _ => Leaving::Keep,
        }
    }
}

impl Tool for ExitWorktree {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _around: &Surroundings) -> Result<Intent, InputError> {
        let input: Exit = typed::parse(&self.spec, input)?;
        if input.action == "keep" && input.discard_changes {
            let issue = "`discard_changes` goes with `action: \"remove\"`; what is kept loses nothing";
            return Err(InputError::new(EXIT, issue));
        }
        Ok(Intent::titled(match input.leaving() {
            Leaving::Keep => "leave the worktree and keep it".to_owned(),
            Leaving::Remove => "leave the worktree and remove it if nothing is lost".to_owned(),
            Leaving::Discard => "leave the worktree and remove it with all that is in it".to_owned(),
        }))
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            match typed::parse::<Exit>(&self.spec, &input) {
                Ok(exit) => {
                    let relocation = Relocation::Leave { action: exit.leaving() };
                    relocate(cx, relocation).await.map_or_else(|no| no, |place| left(&exit, place))
                }
                Err(error) => error.into(),
            }
        })
    }
}

fn left(exit: &Exit, place: Place) -> ToolOutput {
    let Place { cwd, worktree, left, gone, .. } = place;
    let found = left.as_ref().map(ToString::to_string).unwrap_or_default();
    let discarded = left.as_ref().filter(|_| gone).map(|left| {
        let untracked = u64::try_from(left.untracked).unwrap_or(u64::MAX);
        (left.stat.files.saturating_add(untracked), left.commits)
    });
    let (files, commits) = discarded.unwrap_or_default();
    let what = match (gone, exit.action.as_str()) {
        (true, _) if files + commits > 0 => format!("The worktree is gone, with what was in it: {found}."),
        (true, _) => "The worktree was unchanged and is gone.".to_owned(),
        (false, "keep") => {
            format!("The worktree is kept: {} on {}: {found}.", worktree.path, worktree.branch)
        }
        (false, _) => {
            format!("The worktree could not be removed: {} on {}: {found}.", worktree.path, worktree.branch)
        }
    };
    let message = format!("The session works in {cwd} again. {what}");
    let value = json!({
        "action": if gone { "remove" } else { "keep" },
        "originalCwd": cwd,
        "restoredCwd": cwd,
        "worktreePath": worktree.path,
        "worktreeBranch": worktree.branch,
        "discardedFiles": files,
        "discardedCommits": commits,
        "message": message,
    });
    ToolOutput::text(message).with_structured(value).with_effect(ToolEffect::Moved { cwd })
}

/// Asks the session to go there. The error is the call's answer.
async fn relocate(cx: &ToolContext, relocation: Relocation) -> Result<Place, ToolOutput> {
    let caller = caller(cx).ok_or_else(|| ToolOutput::error(NO_SESSION))?;
    let run = &caller.run;
    if run.who.agent.is_some() {
        let text = "Only the session's own agent moves the session; an agent has a worktree of its own with \
                    `isolation: \"worktree\"` when it is started.";
        return Err(ToolOutput::error(text));
    }
    match run.session.relocate(relocation).await {
        Some(Ok(place)) => Ok(place),
        Some(Err(reason)) => Err(ToolOutput::error(reason)),
        None => Err(ToolOutput::error(NO_SESSION)),
    }
}
