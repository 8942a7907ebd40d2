//! EnterPlanMode and ExitPlanMode: the session plans before it works. The one changes the session's mode to one that
//! changes nothing; the other takes a plan, which a person is asked about before it runs, and gives the mode back that
//! held before. For the root alone, and only where somebody can answer.

use std::sync::Arc;

use decurion_protocol::choice::{self, EXIT_PLAN};
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Intent, SessionId, ToolOutput};
use decurion_tools::{InputError, Surroundings, Tool, ToolContext, ToolSpec, typed};
use serde_json::{Value, json};

use super::{NO_SESSION, caller};
use crate::prompt;
use crate::session_port::{Planned, Planning};

pub use crate::permission::ENTER_PLAN;
const ENTER_DESCRIPTION: &str = "Puts the session into plan mode: from then on nothing is changed until the user has \
     agreed to a plan. Use it before work that is large, or that could be done in ways the user would want to choose \
     between. Not for what is small and clear, nor for questions that are answered by reading.";
const EXIT_DESCRIPTION: &str = "Shows the user your plan and asks them to agree to it. Use it in plan mode only, once \
     the plan is whole and nothing in it is left to be asked. If they agree, the session leaves plan mode and you go on \
     with the work; if not, you are told what they want instead and plan on.";
/// How much of a plan's first line is in its file's name.
const SLUG_CHARS: usize = 40;

pub fn both() -> [Arc<dyn Tool>; 2] {
    [Arc::new(EnterPlanMode::default()), Arc::new(ExitPlanMode::default())]
}

/// The tool that leads in.
pub struct EnterPlanMode {
    spec: ToolSpec,
}

impl Default for EnterPlanMode {
    fn default() -> Self {
        let schema = json!({"type": "object", "properties": {}, "additionalProperties": false});
        Self { spec: ToolSpec::new(ENTER_PLAN, ENTER_DESCRIPTION, schema) }
    }
}

impl Tool for EnterPlanMode {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _around: &Surroundings) -> Result<Intent, InputError> {
        typed::check(&self.spec, input)?;
        Ok(Intent::titled("plan before changing anything"))
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, _input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            match plan(cx, Planning::Enter).await {
                Ok(_) => {
                    let message = prompt::planning(true);
                    ToolOutput::text(message).with_structured(json!({"message": message}))
                }
                Err(refused) => refused,
            }
        })
    }
}

/// The tool that leads out.
pub struct ExitPlanMode {
    spec: ToolSpec,
}

impl Default for ExitPlanMode {
    fn default() -> Self {
        let plan = json!({
            "type": "string", "minLength": 1,
            "description": "the whole plan, as Markdown; it begins with a heading that says what is to be done"
        });
        // Others offer this tool with members that are ours to pass over.
        let schema = json!({"type": "object", "properties": {"plan": plan}, "required": ["plan"]});
        Self { spec: ToolSpec::new(EXIT_PLAN, EXIT_DESCRIPTION, schema) }
    }
}

impl Tool for ExitPlanMode {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _around: &Surroundings) -> Result<Intent, InputError> {
        typed::check(&self.spec, input)?;
        let plan =
            choice::plan(input).ok_or_else(|| InputError::new(EXIT_PLAN, "`plan` must not be empty"))?;
        Ok(Intent::titled(format!("agree to a plan: {}", heading(plan))))
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let agreed = choice::plan(&input).unwrap_or_default();
            match plan(cx, Planning::Leave).await {
                Ok(planned) => left(agreed, planned).await,
                Err(refused) => refused,
            }
        })
    }
}

/// What the model is told once its plan is agreed to. A plan that cannot be kept in a file is on record all the same.
async fn left(plan: &str, planned: Planned) -> ToolOutput {
    let Planned { mode, archive, session } = planned;
    let (name, text) = (file_name(plan, session), plan.to_owned());
    let kept = match archive {
        Some(archive) => {
            let kept = tokio::task::spawn_blocking(move || archive.put_plan(&name, text.as_bytes())).await;
            kept.map_err(std::io::Error::other).flatten().map(Some)
        }
        None => Ok(None),
    };
    let (file, said) = match &kept {
        Ok(Some(file)) => (Some(file.as_str()), format!(" The plan is kept in {file}.")),
        Ok(None) => (None, String::new()),
        Err(error) => (None, format!(" The plan could not be kept in a file: {error}.")),
    };
    let text = format!(
        "The user agreed to the plan. The session has left plan mode (its mode is {mode}): do the work now.{said}\n\n\
         The plan as agreed to:\n\n{plan}"
    );
    ToolOutput::text(text).with_structured(json!({"plan": plan, "isAgent": false, "filePath": file}))
}

/// The first line of a plan that says something, without its marks.
fn heading(plan: &str) -> &str {
    let lines = plan.lines().map(|line| line.trim().trim_start_matches('#').trim());
    lines.into_iter().find(|line| !line.is_empty()).unwrap_or_default()
}

/// The name of a plan's file: what it is about, and of which session. A plan of the same name takes its place.
fn file_name(plan: &str, session: SessionId) -> String {
    let letter =
        |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    let plain: String = heading(plan).chars().map(letter).collect();
    let words: Vec<&str> = plain.split('-').filter(|word| !word.is_empty()).collect();
    let mut slug = words.join("-");
    slug.truncate(SLUG_CHARS);
    let slug = slug.trim_end_matches('-');
    let slug = if slug.is_empty() { "plan" } else { slug };
    let session = session.to_string();
    format!("{slug}-{}.md", session.split('-').next().unwrap_or_default())
}

/// Asks the session to begin or end planning. The error is the call's answer.
async fn plan(cx: &ToolContext, planning: Planning) -> Result<Planned, ToolOutput> {
    let caller = caller(cx).ok_or_else(|| ToolOutput::error(NO_SESSION))?;
    match caller.run.session.plan(planning).await {
        Some(planned) => planned.map_err(ToolOutput::error),
        None => Err(ToolOutput::error(NO_SESSION)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plans_file_says_what_it_is_about_and_leads_nowhere_else() {
        let session: SessionId = "0199a7c2-1111-7222-8333-444455556666".parse().unwrap();
        for (plan, expected) in [
            ("# Move to SQLite\n\n1. …", "move-to-sqlite-0199a7c2.md"),
            ("\n\n  ##  Fix: the “parser” (again)  \n", "fix-the-parser-again-0199a7c2.md"),
            ("../../etc/passwd", "etc-passwd-0199a7c2.md"),
            ("計画", "plan-0199a7c2.md"),
            ("", "plan-0199a7c2.md"),
            (
                "a heading that goes on and on and on for much longer than any name should",
                "a-heading-that-goes-on-and-on-and-on-for-0199a7c2.md",
            ),
        ] {
            assert_eq!(file_name(plan, session), expected);
        }
    }
}
