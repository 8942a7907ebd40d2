//! Commands that a person types. Takes the blocks of a prompt, gives what is meant by `/name arguments`: a skill
//! or a command, a prompt of an MCP server, something that only looks like one, or a name that nobody has.

use std::sync::Arc;

use decurion_protocol::{Block, Skill};
use decurion_tools::mcp::prompts;

use super::nearest;
use crate::ports::Library;

/// What can be done about a text that is no command.
const NOT_SENT: &str = "Nothing was sent; put a space before the slash to send it as it is.";

/// What a prompt is.
pub enum Typed {
    /// Words for the model.
    Words,
    /// A skill or a command with its arguments.
    Command(Arc<Skill>, String),
    /// A prompt of an MCP server, by what was typed for it, with its arguments.
    Prompt(String, String),
    /// A name that means nothing here.
    Mistaken(String),
}

pub fn read(prompt: &[Block], library: &dyn Library) -> Typed {
    let [Block::Text { text }, ..] = prompt else { return Typed::Words };
    let Some((name, args)) = split(text) else { return Typed::Words };
    if let Some(skill) = library.find(name) {
        if skill.invocable.by_user() {
            return Typed::Command(skill, args.to_owned());
        }
        return Typed::Mistaken(format!("/{name} is not for people: the model calls it when it needs it."));
    }
    if prompts::is_prompt(name) {
        return Typed::Prompt(name.to_owned(), args.to_owned());
    }
    let skills = library.skills();
    let names = skills.iter().filter(|skill| skill.invocable.by_user()).map(|skill| skill.name.as_str());
    let near = nearest(name, names.chain(["compact"]));
    if near.is_empty() {
        return Typed::Mistaken(format!("Unknown command /{name}. {NOT_SENT}"));
    }
    let near: Vec<String> = near.iter().map(|name| format!("/{name}")).collect();
    Typed::Mistaken(format!("Unknown command /{name}. Did you mean {}? {NOT_SENT}", near.join(" or ")))
}

/// The name and the rest of a line that looks like a command. A path or a comment does not.
fn split(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix('/')?;
    let (name, args) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let is_word = |letter: char| letter.is_alphanumeric() || ":_-.".contains(letter);
    let begins = name.starts_with(|letter: char| letter.is_alphabetic());
    (begins && name.chars().all(is_word)).then_some((name, args.trim()))
}

/// What the model reads before the text of a command: who called what.
pub fn header(name: &str, args: &str) -> String {
    let args = if args.is_empty() { String::new() } else { format!("\n<command-args>{args}</command-args>") };
    format!("<command-message>{name}</command-message>\n<command-name>/{name}</command-name>{args}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_one_word_behind_a_slash() {
        for (text, expected) in [
            ("/review", Some(("review", ""))),
            ("/git:push  origin main\n", Some(("git:push", "origin main"))),
            ("/review\nall of it", Some(("review", "all of it"))),
            ("/usr/bin/env", None),
            ("/ alone", None),
            ("// comment", None),
            (" /review", None),
            ("/1", None),
            ("no", None),
        ] {
            assert_eq!(split(text), expected, "{text:?}");
        }
    }
}
