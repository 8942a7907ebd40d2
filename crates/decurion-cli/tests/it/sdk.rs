//! The unmodified Agent SDKs of both languages lead the real binary. Takes the programs in `sdk/`, each with the
//! script that its model plays, and compares what they saw with `sdk/expected/`: the same lines in both languages.
//!
//! `cargo xtask test --install` installs the SDKs.

use std::path::{Path, PathBuf};
use std::time::Instant;

use decurion_testkit::proc::{Home, Program};
use decurion_testkit::server::FakeModel;
use expect_test::ExpectFile;
use serde_json::Value;

use crate::stand::{DECURION, LIMIT, Stand, finished};

/// The folder of the programs.
pub const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk");

/// A language that there is an SDK for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Language {
    Python,
    TypeScript,
}

use Language::{Python, TypeScript};

impl Language {
    /// The folder of its programs.
    fn folder(self) -> &'static str {
        match self {
            Python => "python",
            TypeScript => "typescript",
        }
    }

    /// The section that begins on a line of a program.
    fn section(self, line: &str) -> Option<&str> {
        match self {
            Python => line.strip_prefix("async def ")?.strip_suffix("():"),
            TypeScript => line
                .strip_prefix("  async ")?
                .strip_suffix("() {")
                .filter(|name| *name != "close" && !name.contains('#')),
        }
    }
}

/// What is shown, by which section of which program, in which languages.
type Feature = (&'static str, &'static str, &'static str, &'static [Language]);

const BOTH: &[Language] = &[Python, TypeScript];
const PYTHON: &[Language] = &[Python];
const TYPESCRIPT: &[Language] = &[TypeScript];

/// Every feature that is shown. The table in `docs/src/sdk.md` is made of it.
const FEATURES: &[Feature] = &[
    ("`query()` with a text", "query", "text", BOTH),
    ("tools and their results, errors too", "query", "tools", BOTH),
    ("thinking blocks", "query", "thinking", BOTH),
    ("`query()` with a stream of prompts", "query", "stream", BOTH),
    ("fields of `init` and `result`", "query", "fields", BOTH),
    ("a client of many turns", "conversation", "turns", BOTH),
    ("prompts sent while a turn runs", "conversation", "queued", BOTH),
    ("`interrupt`", "conversation", "interrupt", BOTH),
    ("`set_permission_mode`", "conversation", "mode", BOTH),
    ("`set_model`", "conversation", "model", BOTH),
    ("the session ends when the input does", "conversation", "closing", BOTH),
    ("`can_use_tool`: allowed", "permission", "allowed", BOTH),
    ("`can_use_tool`: denied, and `permission_denials`", "permission", "denied", BOTH),
    ("`can_use_tool`: denied with `interrupt`", "permission", "stopped", BOTH),
    ("`can_use_tool`: another input", "permission", "changed", BOTH),
    ("`can_use_tool`: rules for the session", "permission", "remembered", BOTH),
    ("`can_use_tool`: suggestions", "permission", "suggested", BOTH),
    ("`can_use_tool`: a callback that throws", "permission", "thrown", BOTH),
    ("`can_use_tool`: another mode for the session", "permission", "mode", BOTH),
    ("hook `PreToolUse`: denied", "hooks", "denied", BOTH),
    ("hook `PreToolUse`: another input", "hooks", "changed", BOTH),
    ("hook `PreToolUse`: matchers", "hooks", "other_tool", BOTH),
    ("hook `PostToolUse`: more context", "hooks", "after", BOTH),
    ("hook `PostToolUse`: another result", "hooks", "replaced", BOTH),
    ("hook `PostToolUse`: `continue: false`", "hooks", "halted", BOTH),
    ("hook `UserPromptSubmit`: more context", "hooks", "prompt", BOTH),
    ("hook `UserPromptSubmit`: refused", "hooks", "refused", BOTH),
    ("hook `Stop`: not yet", "hooks", "stopping", BOTH),
    ("hooks `SubagentStart`, `SubagentStop`", "hooks", "agents", BOTH),
    ("hook `PreCompact`, and `/compact`", "hooks", "compaction", BOTH),
    ("a hook that throws", "hooks", "thrown", BOTH),
    ("a hook that never answers", "hooks", "silent", BOTH),
    ("`agents`: seen with their calls, `task_*`", "agents", "given", BOTH),
    ("agents of agents, each seen, `forward_subagent_text`", "agents", "nested", BOTH),
    ("agents in the background", "agents", "background", BOTH),
    ("`background_tasks`: a command sent to the background", "agents", "sent", TYPESCRIPT),
    ("`stop_task`", "agents", "stopped", BOTH),
    ("MCP servers in the host: a call", "servers", "call", BOTH),
    ("MCP servers in the host: a result that is an error", "servers", "error", BOTH),
    ("MCP servers in the host: a tool that throws", "servers", "thrown", BOTH),
    ("MCP servers in the host: two, called at once", "servers", "two", BOTH),
    ("MCP servers in the host: a tool that is denied", "servers", "denied", BOTH),
    ("MCP servers that are processes", "servers", "stdio", BOTH),
    ("`permission_prompt_tool`: a tool of a server", "servers", "approver", BOTH),
    ("`mcp_status`, switched off and on, connected again", "servers", "managed", BOTH),
    ("servers that nobody knows", "servers", "unknown", BOTH),
    ("`mcp_set_servers`", "servers", "replaced", TYPESCRIPT),
    ("`session_id`", "sessions", "named", BOTH),
    ("`resume`", "sessions", "resumed", BOTH),
    ("`continue`", "sessions", "continued", BOTH),
    ("`fork_session`", "sessions", "forked", BOTH),
    ("`resume_session_at`", "sessions", "at", BOTH),
    ("the functions that fork, rename and tag a session", "sessions", "changed", BOTH),
    ("a session that does not exist", "sessions", "missing", BOTH),
    ("session readers on our state folder", "sessions", "read", BOTH),
    ("`max_turns`", "limits", "turns", BOTH),
    ("`max_budget_usd`", "limits", "money", BOTH),
    ("`output_format`, with a repair", "limits", "schema", BOTH),
    ("`output_format`, with a reminder", "limits", "reminded", BOTH),
    ("`output_format` that is never met", "limits", "hopeless", BOTH),
    ("partial messages", "stream", "partial", BOTH),
    ("partial messages of a call", "stream", "partial_call", BOTH),
    ("`include_hook_events`", "stream", "hook_events", BOTH),
    ("a text of 1.6 MB", "stream", "long_text", BOTH),
    ("a tool's result of 2 MB", "stream", "long_result", BOTH),
    ("a hook of a call that a line cannot hold", "stream", "long_call", BOTH),
    ("system prompts: none, text, preset, appended", "settings", "prompts", BOTH),
    ("system prompt from a file", "settings", "prompt_file", PYTHON),
    ("`tools`, `disallowed_tools`", "settings", "tools", BOTH),
    ("`setting_sources`", "settings", "sources", BOTH),
    ("`skills`", "settings", "skills", BOTH),
    ("`plugins`", "settings", "plugins", BOTH),
    ("`add_dirs`", "settings", "folders", BOTH),
    ("`env`", "settings", "environment", BOTH),
    ("`stderr`, and flags that nobody knows yet", "settings", "stderr", BOTH),
    ("`fallback_model`", "settings", "fallback", BOTH),
    ("`thinking`, `effort`", "settings", "thinking", BOTH),
    ("`get_context_usage`", "control", "usage", BOTH),
    ("what there is: commands, models, agents, account", "control", "info", BOTH),
    ("`set_max_thinking_tokens`", "control", "thinking_tokens", TYPESCRIPT),
    ("file checkpointing, `rewind_files`", "control", "rewind", BOTH),
    ("errors of the model: its name", "control", "bad_model", BOTH),
    ("errors of the model: the key", "control", "no_key", BOTH),
    ("errors of the model: the request", "control", "bad_request", BOTH),
];

/// Where the SDKs are installed: beside the folders of binaries.
pub fn installed(wanted: &str) -> PathBuf {
    let binaries = Path::new(DECURION).parent().unwrap();
    let path = binaries.parent().unwrap().join("sdk").join(wanted);
    assert!(path.exists(), "missing: {}; `cargo xtask test --install` installs it", path.display());
    path
}

/// A program of a language, in a home, asking this model.
fn program(home: &Home, model: &FakeModel, language: Language, name: &str) -> Program {
    let start = match language {
        Python => {
            let python = installed("venv/bin/python");
            home.program(python).arg("-B").arg(format!("{PROGRAMS}/python/{name}.py"))
        }
        TypeScript => home.program("node").arg(beside_packages(home).join(format!("{name}.mjs"))),
    };
    hosted(start, model)
}

/// The environment of a program that leads decurion: where it is, and the model.
pub fn hosted(start: Program, model: &FakeModel) -> Program {
    start
        .env("DECURION", DECURION)
        .env("BINARIES", Path::new(DECURION).parent().unwrap())
        .env("ANTHROPIC_BASE_URL", model.url())
        .env("ANTHROPIC_API_KEY", decurion_testkit::proc::canary::PROVIDER_KEY)
}

/// The script that the model plays for a program.
pub fn script_of(name: &str) -> String {
    std::fs::read_to_string(format!("{PROGRAMS}/scripts/{name}.script")).unwrap()
}

/// The TypeScript programs beside the packages that they import: node looks for those above the file itself.
pub fn beside_packages(home: &Home) -> PathBuf {
    let folder = home.path().join("programs");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(installed("node_modules"), folder.join("node_modules")).unwrap();
    for entry in std::fs::read_dir(format!("{PROGRAMS}/typescript")).unwrap().flatten() {
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    folder
}

/// What a program prints, with the folder of its home as `~`, and what of its requests is not to be seen there.
fn seen(language: Language, name: &str, sections: &[&str]) -> String {
    let stand = Stand::new(&script_of(name));
    let ended = finished(program(&stand.home, &stand.model, language, name).args(sections));
    assert_eq!(ended.ending.code(), 0, "{language:?}: {ended:?}");
    assert_eq!(stand.model.problems(), Vec::<String>::new(), "{language:?}: {ended:?}");
    nothing_is_left(&stand.home);
    let asked =
        stand.model.requests().iter().filter_map(|request| shape(&request.json())).collect::<Vec<_>>();
    let text: String = ended.lines.iter().chain(&asked).map(|line| format!("{line}\n")).collect();
    text.replace(stand.home.path().to_str().unwrap(), "~")
}

/// Waits until every process of a home has ended: an SDK does not wait for the ones that end last.
pub fn nothing_is_left(home: &Home) {
    let began = Instant::now();
    while !home.processes().is_empty() {
        assert!(began.elapsed() < LIMIT, "processes are left: {:?}", home.processes());
        std::thread::yield_now();
    }
}

/// The system prompt, the thinking and the effort of a request whose prompt wants them looked at.
fn shape(request: &Value) -> Option<String> {
    let blocks = request["messages"].as_array()?.last()?["content"].as_array()?.iter();
    let prompt = blocks.filter_map(|block| block["text"].as_str()).next_back()?;
    if !["which prompt", "ponder", "think less"].iter().any(|known| prompt.starts_with(known)) {
        return None;
    }
    let system =
        request["system"].as_array().into_iter().flatten().filter_map(|block| block["text"].as_str());
    let system: Vec<String> = system.map(beginning).collect();
    Some(format!(
        "request {prompt:?}: system {system:?} thinking {} effort {}",
        request["thinking"], request["output_config"]["effort"]
    ))
}

/// The first words of a text.
fn beginning(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().take(4).collect();
    words.join(" ")
}

/// Compares what the sections of a program print with what is expected: the same in both languages. What only
/// one of them has is run and expected apart.
fn check(name: &str) {
    let chosen = |fits: &dyn Fn(&[Language]) -> bool| -> Vec<&str> {
        let of_program =
            FEATURES.iter().filter(|(_, program, _, languages)| *program == name && fits(languages));
        of_program.map(|(_, _, section, _)| *section).collect()
    };
    let compare = |file: String, language: Language, sections: &[&str]| {
        let path = PathBuf::from(format!("{PROGRAMS}/expected/{file}.txt"));
        ExpectFile { path, position: file!() }.assert_eq(&seen(language, name, sections));
    };
    let shared = chosen(&|languages| languages.len() == 2);
    for language in [Python, TypeScript] {
        compare(name.to_owned(), language, &shared);
        let own = chosen(&|languages| languages == [language]);
        if !own.is_empty() {
            compare(format!("{name}.{}", language.folder()), language, &own);
        }
    }
}

/// A test for each program, and the table of both.
macro_rules! programs {
    ($($program:literal => $test:ident,)*) => {
        const TESTS: &[(&str, &str)] = &[$(($program, stringify!($test)),)*];
        $(#[test]
        fn $test() {
            check($program);
        })*
    };
}

programs! {
    "query" => a_query_and_what_comes_of_it,
    "conversation" => a_conversation_and_what_changes_in_it,
    "permission" => a_host_decides_about_calls,
    "hooks" => functions_of_the_host_are_hooks,
    "agents" => agents_of_the_host_are_seen_at_every_depth,
    "servers" => servers_of_the_host_and_others,
    "sessions" => sessions_go_on_and_are_read,
    "limits" => limits_end_a_query_and_results_fit_a_schema,
    "stream" => a_turn_is_seen_while_it_goes_on,
    "settings" => options_reach_the_session,
    "control" => requests_besides_prompts_and_errors_of_the_model,
}

/// The features as the guide shows them.
pub fn features() -> String {
    let mut table = "| feature | Python | TypeScript | test |\n|---|---|---|---|\n".to_owned();
    for (feature, program, section, languages) in FEATURES {
        let (_, test) = TESTS.iter().find(|(name, _)| name == program).unwrap();
        let cell = |language: Language, ending: &str| {
            let is_shown = languages.contains(&language);
            if is_shown { format!("`{program}.{ending}` {section}") } else { "–".to_owned() }
        };
        let (python, typescript) = (cell(Python, "py"), cell(TypeScript, "mjs"));
        table.push_str(&format!("| {feature} | {python} | {typescript} | `{test}` |\n"));
    }
    table
}

/// A section that is written and not shown would be forgotten.
#[test]
fn every_section_is_accounted_for() {
    for language in [Python, TypeScript] {
        let mut written = Vec::new();
        for entry in std::fs::read_dir(format!("{PROGRAMS}/{}", language.folder())).unwrap().flatten() {
            let name = entry.path().file_stem().unwrap().to_str().unwrap().to_owned();
            let text = std::fs::read_to_string(entry.path()).unwrap();
            written.extend(
                text.lines()
                    .filter_map(|line| language.section(line))
                    .map(|section| format!("{name} {section}")),
            );
        }
        let shown = FEATURES.iter().map(|(_, program, section, languages)| (program, section, languages));
        let named = shown.filter(|(.., languages)| languages.contains(&language));
        let mut named: Vec<String> =
            named.map(|(program, section, _)| format!("{program} {section}")).collect();
        written.sort_unstable();
        named.sort_unstable();
        assert_eq!(written, named, "{language:?}");
    }
}
