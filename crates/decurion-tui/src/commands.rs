//! What is typed after a slash. Takes the text of a prompt; gives the command of our own that it is, or that it goes to
//! the session, which knows the users' commands and skills.

use decurion_protocol::Block;

/// A command of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandName {
    /// The keys and commands.
    Help,
    Transcript,
    /// Agents and commands at work.
    Tasks,
    Quit,
    /// What it has cost.
    Cost,
    Model,
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
    Team,
    /// A prompt that is written here.
    Prompt(&'static str),
    /// Version, session, folder, model and what else is in force.
    Status,
    /// The last answer to the clipboard.
    Copy,
    /// What is changed in the working tree.
    Diff,
    /// One more directory to work in.
    AddDir,
    /// Another provider or key.
    Login,
}

/// Under which heading the help lists a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelpGroup {
    Conversation,
    /// Work and its results.
    Work,
    /// What is in force.
    Settings,
    Program,
}

impl HelpGroup {
    /// All of them, in the order of the help.
    pub const ALL: [Self; 4] = [Self::Conversation, Self::Work, Self::Settings, Self::Program];

    pub fn heading(self) -> &'static str {
        match self {
            Self::Conversation => "Conversation",
            Self::Work => "Work",
            Self::Settings => "Settings",
            Self::Program => "Program",
        }
    }
}

/// What can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    Agents,
    Sessions,
    /// Prompts of this session.
    Prompts,
    Rules,
    Hooks,
    Servers,
    Skills,
    Plugins,
    Worktrees,
    /// What fills the context.
    Context,
    Models,
    /// What happens to the work when the person leaves.
    Leaving,
    Themes,
    /// Instruction and memory files.
    Memory,
    /// Whether something may be done that was shown.
    Consent,
}

/// A row of the table: the name, other names for the same, what it is, its heading and a few words for the help.
type CommandRow = (&'static str, &'static [&'static str], CommandName, HelpGroup, &'static str);

const TABLE: &[CommandRow] = &[
    ("help", &[], CommandName::Help, HelpGroup::Program, "all commands and keys"),
    (
        "status",
        &[],
        CommandName::Status,
        HelpGroup::Program,
        "version, session, folder, model, mode, sandbox, provider, servers",
    ),
    ("resume", &[], CommandName::List(Topic::Sessions), HelpGroup::Conversation, "resume an earlier session"),
    ("continue", &[], CommandName::Continue, HelpGroup::Conversation, "resume the session before this one"),
    ("fork", &["branch"], CommandName::Fork, HelpGroup::Conversation, "fork this session"),
    (
        "rewind",
        &["checkpoint"],
        CommandName::List(Topic::Prompts),
        HelpGroup::Conversation,
        "go back to an earlier prompt: conversation, files or both (esc esc)",
    ),
    (
        "clear",
        &["reset", "new"],
        CommandName::Clear,
        HelpGroup::Conversation,
        "start a new session; this one stays on record",
    ),
    (
        "compact",
        &[],
        CommandName::Compact,
        HelpGroup::Conversation,
        "compact the conversation; optional focus",
    ),
    (
        "context",
        &[],
        CommandName::List(Topic::Context),
        HelpGroup::Conversation,
        "what fills the context window",
    ),
    ("cost", &["usage"], CommandName::Cost, HelpGroup::Conversation, "what this session has cost, by agent"),
    ("copy", &[], CommandName::Copy, HelpGroup::Conversation, "copy the last answer to the clipboard"),
    (
        "export",
        &[],
        CommandName::Export,
        HelpGroup::Conversation,
        "write the conversation to a Markdown file (FILE.jsonl: the transcript)",
    ),
    ("transcript", &[], CommandName::Transcript, HelpGroup::Conversation, "the whole conversation, unfolded"),
    (
        "tasks",
        &["bashes"],
        CommandName::Tasks,
        HelpGroup::Work,
        "agents and commands at work: look, steer, pause, stop, background",
    ),
    (
        "agents",
        &[],
        CommandName::List(Topic::Agents),
        HelpGroup::Work,
        "list, explain, check and write agents",
    ),
    ("diff", &[], CommandName::Diff, HelpGroup::Work, "what is changed in the working tree"),
    (
        "review",
        &[],
        CommandName::Prompt(include_str!("commands/review.md")),
        HelpGroup::Work,
        "have the changes in the working tree reviewed",
    ),
    (
        "init",
        &[],
        CommandName::Prompt(include_str!("commands/init.md")),
        HelpGroup::Work,
        "have AGENTS.md written for this repository",
    ),
    (
        "worktrees",
        &[],
        CommandName::List(Topic::Worktrees),
        HelpGroup::Work,
        "worktrees of this repository and what was left in them",
    ),
    ("trace", &[], CommandName::Trace, HelpGroup::Work, "write this session as a trace for Perfetto"),
    ("team", &[], CommandName::Team, HelpGroup::Work, "agents that work together"),
    ("model", &[], CommandName::Model, HelpGroup::Settings, "show or switch the model"),
    (
        "login",
        &[],
        CommandName::Login,
        HelpGroup::Settings,
        "set up a model provider: key, model, local servers",
    ),
    (
        "permissions",
        &["allowed-tools"],
        CommandName::List(Topic::Rules),
        HelpGroup::Settings,
        "the rules in force; add and remove them",
    ),
    ("add-dir", &[], CommandName::AddDir, HelpGroup::Settings, "allow another directory in this session"),
    (
        "memory",
        &[],
        CommandName::List(Topic::Memory),
        HelpGroup::Settings,
        "open an instruction or memory file in your editor",
    ),
    ("theme", &[], CommandName::List(Topic::Themes), HelpGroup::Settings, "choose the colours"),
    ("statusline", &[], CommandName::StatusLine, HelpGroup::Settings, "set up a status line of your own"),
    ("vim", &[], CommandName::Vim, HelpGroup::Settings, "switch vim mode on or off"),
    (
        "config",
        &["settings"],
        CommandName::Print(&["config", "show", "--origin"]),
        HelpGroup::Settings,
        "every setting and where it comes from",
    ),
    ("hooks", &[], CommandName::List(Topic::Hooks), HelpGroup::Settings, "the hooks in force"),
    (
        "mcp",
        &[],
        CommandName::List(Topic::Servers),
        HelpGroup::Settings,
        "MCP servers: status, reconnect, enable/disable",
    ),
    ("skills", &[], CommandName::List(Topic::Skills), HelpGroup::Settings, "skills and commands"),
    ("plugin", &["plugins"], CommandName::List(Topic::Plugins), HelpGroup::Settings, "manage plugins"),
    ("doctor", &[], CommandName::Print(&["doctor"]), HelpGroup::Program, "check the installation"),
    ("quit", &["exit"], CommandName::Quit, HelpGroup::Program, "leave"),
];

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypedText<'a> {
    /// One of our own, and what stands behind it.
    Ours(CommandName, &'a str),
    /// A command that a person runs in a shell.
    Shell(&'a str),
    /// A line to be remembered.
    Memory(&'a str),
    Prompt,
}

/// Which command a text is.
pub fn typed(text: &str) -> TypedText<'_> {
    let text = text.trim();
    // As in shells.
    if matches!(text, "exit" | "quit") {
        return TypedText::Ours(CommandName::Quit, "");
    }
    if let Some(command) = text.strip_prefix('!').map(str::trim).filter(|command| !command.is_empty()) {
        return TypedText::Shell(command);
    }
    // A heading of a pasted text is not meant.
    if let Some(line) = text.strip_prefix('#')
        && !line.starts_with('#')
        && !line.trim().is_empty()
        && !line.contains('\n')
    {
        return TypedText::Memory(line.trim());
    }
    let Some(line) = text.strip_prefix('/') else { return TypedText::Prompt };
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let known = TABLE.iter().find(|(name, others, ..)| *name == word || others.contains(&word));
    known.map_or(TypedText::Prompt, |(_, _, command, ..)| TypedText::Ours(*command, rest.trim()))
}

/// Names and words of all commands.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.iter().map(|(name, .., words)| (*name, *words))
}

/// The names of the commands below a heading.
pub fn names_of(group: HelpGroup) -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter(move |(_, _, _, own, _)| *own == group).map(|(name, ..)| *name)
}

/// The name of a prompt that looks like a command, without its slash; a path or a comment does not.
pub fn looks_like(text: &str) -> Option<&str> {
    let rest = text.trim_end().strip_prefix('/')?;
    let name = rest.split_once(char::is_whitespace).map_or(rest, |(name, _)| name);
    let is_word = |letter: char| letter.is_alphanumeric() || ":_-.".contains(letter);
    (name.starts_with(char::is_alphabetic) && name.chars().all(is_word)).then_some(name)
}

/// What a prompt says that is written here: the call of it as a person typed it, and the text.
pub fn prompt_of(name: &str, text: &str, wish: &str) -> Vec<Block> {
    let args = if wish.is_empty() { String::new() } else { format!("\n<command-args>{wish}</command-args>") };
    let head =
        format!("<command-message>{name}</command-message>\n<command-name>/{name}</command-name>{args}");
    let wish = if wish.is_empty() { String::new() } else { format!("\n\nThe user adds: {wish}") };
    vec![Block::text(head), Block::text(format!("{}{wish}", text.trim_end()))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_command_of_ours_or_goes_to_the_session() {
        assert_eq!(typed("/model opus "), TypedText::Ours(CommandName::Model, "opus"));
        assert_eq!(typed("  /exit"), TypedText::Ours(CommandName::Quit, ""));
        assert_eq!(typed("exit"), TypedText::Ours(CommandName::Quit, ""));
        assert_eq!(typed(" quit "), TypedText::Ours(CommandName::Quit, ""));
        assert_eq!(typed("exit with an error here"), TypedText::Prompt);
        assert_eq!(typed("/deploy this"), TypedText::Prompt);
        for (text, name) in
            [("/hlep", Some("hlep")), ("/a:b c", Some("a:b")), ("/usr/bin", None), ("// no", None)]
        {
            assert_eq!(looks_like(text), name, "{text}");
        }
        assert_eq!(typed("say /help"), TypedText::Prompt);
        assert_eq!(typed("! ls -l"), TypedText::Shell("ls -l"));
        assert_eq!(typed("!"), TypedText::Prompt);
        assert_eq!(typed("# use tabs"), TypedText::Memory("use tabs"));
        for prompt in ["## Heading", "# Title\nand text", "#"] {
            assert_eq!(typed(prompt), TypedText::Prompt, "{prompt:?}");
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
