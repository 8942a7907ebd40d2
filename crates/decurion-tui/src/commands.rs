//! What is typed after a slash. Takes the text of a prompt; gives the command of our own that it is, or that it goes to
//! the session, which knows the users' commands and skills.

/// A command of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// The keys and commands.
    Help,
    /// The whole conversation.
    Transcript,
    /// Agents and commands at work.
    Tasks,
    /// Leave.
    Quit,
    /// What it has cost.
    Cost,
    /// The model.
    Model,
    /// Shorten the conversation.
    Compact,
    /// Another conversation in its place, from nothing.
    Clear,
    /// The latest session but this.
    Continue,
    /// A copy of this session from here on.
    Fork,
    /// Something that is listed.
    List(Topic),
    /// What a subcommand of the program prints.
    Print(&'static [&'static str]),
    /// The session as a trace.
    Trace,
    /// The session as a file.
    Export,
    /// A status line of one's own.
    StatusLine,
    /// Keys as in vi.
    Vim,
    /// Whoever works together.
    Team,
}

/// What can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Definitions of agents.
    Agents,
    /// Recorded sessions.
    Sessions,
    /// Prompts of this session.
    Prompts,
    /// Rules in force.
    Rules,
    /// Hooks in force.
    Hooks,
    /// MCP servers.
    Servers,
    /// Skills and commands.
    Skills,
    /// Plugins.
    Plugins,
    /// Worktrees.
    Worktrees,
    /// What fills the context.
    Context,
    /// Models.
    Models,
    /// What becomes of the work when somebody leaves.
    Leaving,
}

/// All of them, with other names for the same and a few words for the help.
const TABLE: &[(&str, &[&str], Name, &str)] = &[
    ("help", &[], Name::Help, "keys and commands"),
    ("transcript", &[], Name::Transcript, "the whole conversation, with everything that is folded"),
    ("tasks", &["bashes"], Name::Tasks, "agents and commands at work: look, steer, pause, stop, background"),
    ("agents", &[], Name::List(Topic::Agents), "the agents there are: look, explain, check, write one"),
    ("resume", &[], Name::List(Topic::Sessions), "go on with an earlier session"),
    ("continue", &[], Name::Continue, "go on with the session before this one"),
    ("fork", &["branch"], Name::Fork, "a new session that begins with what this one holds"),
    (
        "rewind",
        &["checkpoint"],
        Name::List(Topic::Prompts),
        "back to an earlier prompt: conversation, files or both",
    ),
    ("clear", &["reset", "new"], Name::Clear, "a new conversation; this one stays on record"),
    ("compact", &[], Name::Compact, "shorten the conversation; with words: what to keep in mind"),
    ("model", &[], Name::Model, "which model answers; with a name: another one from the next turn on"),
    ("permissions", &["allowed-tools"], Name::List(Topic::Rules), "the rules in force; add and remove them"),
    ("hooks", &[], Name::List(Topic::Hooks), "the hooks in force"),
    ("mcp", &[], Name::List(Topic::Servers), "MCP servers: how they do, again, off and on"),
    ("skills", &[], Name::List(Topic::Skills), "skills and commands at hand"),
    ("plugin", &["plugins"], Name::List(Topic::Plugins), "plugins; switch them on and off"),
    (
        "worktrees",
        &[],
        Name::List(Topic::Worktrees),
        "worktrees of this repository and what was left in them",
    ),
    ("context", &[], Name::List(Topic::Context), "what fills the context"),
    ("cost", &["usage"], Name::Cost, "what this session has cost, by agent"),
    (
        "config",
        &["settings"],
        Name::Print(&["config", "show", "--origin"]),
        "every setting and where it comes from",
    ),
    ("statusline", &[], Name::StatusLine, "a status line of your own"),
    ("export", &[], Name::Export, "write this session to a file"),
    ("doctor", &[], Name::Print(&["doctor"]), "what this installation has"),
    ("trace", &[], Name::Trace, "this session as a trace for Perfetto"),
    ("team", &[], Name::Team, "agents that work together"),
    ("vim", &[], Name::Vim, "keys as in vi, on and off"),
    ("quit", &["exit"], Name::Quit, "leave"),
];

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typed<'a> {
    /// One of our own, and what stands behind it.
    Ours(Name, &'a str),
    /// A command that a person runs in a shell.
    Shell(&'a str),
    /// A line to be remembered.
    Memory(&'a str),
    /// For the session.
    Prompt,
}

/// Which command a text is.
pub fn typed(text: &str) -> Typed<'_> {
    let text = text.trim();
    if let Some(command) = text.strip_prefix('!').map(str::trim).filter(|command| !command.is_empty()) {
        return Typed::Shell(command);
    }
    // A heading of a pasted text is not meant.
    if let Some(line) = text.strip_prefix('#')
        && !line.starts_with('#')
        && !line.trim().is_empty()
        && !line.contains('\n')
    {
        return Typed::Memory(line.trim());
    }
    let Some(line) = text.strip_prefix('/') else { return Typed::Prompt };
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let known = TABLE.iter().find(|(name, others, ..)| *name == word || others.contains(&word));
    known.map_or(Typed::Prompt, |(_, _, command, _)| Typed::Ours(*command, rest.trim()))
}

/// Names and words of all commands.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.iter().map(|(name, _, _, words)| (*name, *words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_command_of_ours_or_goes_to_the_session() {
        assert_eq!(typed("/model opus "), Typed::Ours(Name::Model, "opus"));
        assert_eq!(typed("  /exit"), Typed::Ours(Name::Quit, ""));
        assert_eq!(typed("/review this"), Typed::Prompt);
        assert_eq!(typed("say /help"), Typed::Prompt);
        assert_eq!(typed("! ls -l"), Typed::Shell("ls -l"));
        assert_eq!(typed("!"), Typed::Prompt);
        assert_eq!(typed("# use tabs"), Typed::Memory("use tabs"));
        for prompt in ["## Heading", "# Title\nand text", "#"] {
            assert_eq!(typed(prompt), Typed::Prompt, "{prompt:?}");
        }
    }

    #[test]
    fn no_name_means_two_things() {
        let mut names: Vec<&str> = TABLE
            .iter()
            .flat_map(|(name, others, ..)| std::iter::once(name).chain(*others))
            .copied()
            .collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
