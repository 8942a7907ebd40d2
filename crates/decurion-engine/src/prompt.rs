//! The words an agent starts with. Takes what is known about the work and the machine, gives the system
//! prompt (the same for every session, so that a provider's cache holds it) and the note that opens a
//! conversation (what differs: directory, date, repository, the user's own instructions).

use std::fmt::Write as _;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::{Block, Worktree};
use jiff::Timestamp;

use crate::ports::{Instructions, Memory};

/// What the main agent is told to be.
pub const MAIN_PROMPT: &str = include_str!("main_prompt.md");

/// The system prompt in blocks: the agent's own, and what the caller adds.
pub fn system(prompt: &str, append: Option<&str>) -> Vec<String> {
    [Some(prompt), append]
        .into_iter()
        .flatten()
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
        .collect()
}

/// What surrounds a conversation when it begins.
pub struct Scene<'a> {
    /// Where the work happens.
    pub cwd: &'a Utf8Path,
    pub directories: &'a [camino::Utf8PathBuf],
    /// The git branch, if it is a repository.
    pub git_branch: Option<&'a str>,
    /// What git says about it, if it was asked.
    pub git_status: Option<&'a str>,
    /// Facts about the machine.
    pub machine: &'a str,
    pub date: Timestamp,
    /// The user's and the project's instructions.
    pub instructions: &'a [Instructions],
}

/// The note that opens a conversation.
pub fn opening_note(scene: &Scene<'_>) -> String {
    let mut note = String::from("<environment>\n");
    // Writing to a String cannot fail.
    let _ = writeln!(note, "Working directory: {}", scene.cwd);
    for directory in scene.directories {
        let _ = writeln!(note, "Also allowed: {directory}");
    }
    match scene.git_branch {
        Some(branch) => {
            let _ = writeln!(note, "Git repository, branch: {branch}");
        }
        None => note.push_str("Not a git repository\n"),
    }
    let _ = writeln!(note, "{}", scene.machine);
    let _ = writeln!(note, "Date: {}", scene.date.strftime("%Y-%m-%d"));
    note.push_str("</environment>");
    if let Some(status) = scene.git_status {
        let _ =
            write!(note, "\n\n<git note=\"as it was when the session began\">\n{}\n</git>", status.trim());
    }
    for instructions in scene.instructions {
        let _ = write!(note, "\n\n{}", instruction(instructions));
    }
    note
}

/// The word on notes that tell what surrounds the work.
pub const CONTEXT: &str = "context";
/// The word on notes that tell of instruction files.
pub const INSTRUCTIONS: &str = "instructions";
const INSTRUCTION: &str = "<instructions file=\"";

/// One instruction file as a model is told of it.
pub fn instruction(instructions: &Instructions) -> String {
    format!("{INSTRUCTION}{}\">\n{}\n</instructions>", instructions.path, instructions.text.trim())
}

/// Which file a block tells of, if it is such a block.
pub fn instructed(block: &Block) -> Option<Utf8PathBuf> {
    let Block::Text { text } = block else { return None };
    text.strip_prefix(INSTRUCTION)?.split_once("\">\n").map(|(path, _)| path.into())
}

/// What an agent with a memory is told about it.
pub fn memory(memory: &Memory) -> String {
    let index = if memory.index.is_empty() {
        "It is empty so far.".to_owned()
    } else {
        format!("Its index, MEMORY.md, says:\n<memory>\n{}\n</memory>", memory.index)
    };
    format!("{}\n\n{index}", include_str!("memory.md").trim().replace("{folder}", memory.folder.as_str()))
}

/// What the model is told while the session plans. `agreed`: whether somebody can agree to the plan.
pub fn planning(agreed: bool) -> &'static str {
    if agreed {
        "The session is in plan mode: nothing may be changed until the user has agreed to a plan. Read what you need to, \
         ask about what is not yours to decide, then call ExitPlanMode with the whole plan."
    } else {
        "The session is in plan mode: nothing may be changed. Read what you need to, then answer with the plan of what you \
         would do."
    }
}

/// What it is told once it does no longer.
pub const PLANNED: &str = "The session is no longer in plan mode: do the work that you are asked for.";

/// What a run is told that works in a checkout of its own: how the paths it hears of are called there.
pub fn in_worktree(worktree: &Worktree, without: bool) -> String {
    let Worktree { path, branch, base, origin, .. } = worktree;
    let without = if without {
        format!("What was changed below {origin} and not committed when you began is not here.\n")
    } else {
        String::new()
    };
    format!(
        "<worktree>\nYou work in a git checkout of your own, on the branch {branch}, which began at {base}.\n\
         A path below {origin} that you are told of means the same path below {path}.\n\
         {without}Nothing outside of {path} may be changed. What you change stays on your branch, committed or not, and others \
         decide about merging it.\n</worktree>"
    )
}

/// The word on notes that tell of skills because of a file.
pub const OFFERED: &str = "skills";
pub const OFFER: &str = "<skill name=\"";

/// Which skill a block tells of, if it is such a block.
pub fn offered(block: &Block) -> Option<String> {
    let Block::Text { text } = block else { return None };
    text.strip_prefix(OFFER)?.split_once("\">\n").map(|(name, _)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn the_opening_note_tells_what_surrounds_the_work() {
        let text = "be kind\n".to_owned();
        let scene = Scene {
            cwd: "/w/part".into(),
            directories: &["/w".into(), "/extra".into()],
            git_branch: Some("main"),
            git_status: None,
            machine: "Platform: a stage",
            date: Timestamp::from_second(1_800_000_000).unwrap(),
            instructions: &[Instructions {
                path: "/w/AGENTS.md".into(),
                place: "/w/AGENTS.md".into(),
                imported_by: None,
                text,
            }],
        };
        expect![[r#"
            <environment>
            Working directory: /w/part
            Also allowed: /w
            Also allowed: /extra
            Git repository, branch: main
            Platform: a stage
            Date: 2027-01-15
            </environment>

            <instructions file="/w/AGENTS.md">
            be kind
            </instructions>"#]]
        .assert_eq(&opening_note(&scene));
        let note = opening_note(&Scene { git_branch: None, ..scene });
        assert!(note.contains("\nNot a git repository\n"), "{note}");
    }
}
