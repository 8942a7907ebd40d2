//! Definitions in real folders: what is loaded from where, which of equal names counts, what is said about
//! files that are not as they should be, and what a repository may not widen.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use camino::Utf8PathBuf;
use decurion_config::agents::to_markdown;
use decurion_config::{
    AgentFolder, AgentRequest, Agents, LoadRequest, Loaded, PartKind, PluginPlace, Severity, Trust,
    TrustMode, load,
};
use decurion_protocol::permission::Mode;
use decurion_protocol::{AgentSource, Money};
use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::json;

use crate::stage::{Stage, write};

const TOOLS: &[&str] = &[
    "Agent",
    "Bash",
    "Edit",
    "Glob",
    "Grep",
    "NotebookEdit",
    "Read",
    "TaskOutput",
    "TaskStop",
    "TodoWrite",
    "WebFetch",
    "Write",
];

fn request(loaded: &Loaded) -> AgentRequest {
    AgentRequest::new(loaded, TOOLS)
}

fn agents(stage: &Stage) -> Agents {
    Agents::load(&request(&stage.load()))
}

/// What a file in the user's folder becomes: the definition in short, then what is said about it.
fn user_file(text: &str) -> String {
    let stage = Stage::new().file("home/.decurion/agents/a.md", text);
    shown(&stage, &agents(&stage))
}

fn check(text: &str, expected: &Expect) {
    expected.assert_eq(&user_file(text));
}

/// All that is not built in, one line per thing said.
fn shown(stage: &Stage, agents: &Agents) -> String {
    let mut lines = String::new();
    for agent in agents.all.iter().filter(|agent| agent.definition.source != AgentSource::Builtin) {
        let mut value = serde_json::to_value(&*agent.definition).unwrap();
        let members = value.as_object_mut().unwrap();
        members.retain(|key, value| {
            !value.is_null() && *value != json!({}) && !["source", "path"].contains(&key.as_str())
        });
        if members["tools"] == json!({"only": null, "except": []}) {
            members.remove("tools");
        }
        members["limits"].as_object_mut().unwrap().retain(|_, value| !value.is_null());
        if members["limits"] == json!({}) {
            members.remove("limits");
        }
        lines += &format!("{value}\n");
    }
    for problem in &agents.problems {
        lines += &format!("{}\n", stage.short(&problem.to_string()));
    }
    lines
}

/// Names and origins, in order, with what they are shadowed by.
fn order(stage: &Stage, agents: &Agents) -> Vec<String> {
    let line = |agent: &decurion_config::LoadedAgent| {
        let by = agent.shadowed_by.as_ref().map(|by| format!(" < {by}")).unwrap_or_default();
        stage.short(&format!("{} {}{by}", agent.definition.name, agent.origin))
    };
    agents.all.iter().filter(|agent| agent.definition.source != AgentSource::Builtin).map(line).collect()
}

#[test]
fn every_key_is_read() {
    check(
        r#"---
name: all
description: d
tools: Read, Bash(git log:*), mcp__x__y
disallowedTools: [Bash]
model: Opus
permissionMode: plan
maxTurns: 7
skills: [one, two]
mcpServers:
  - github
  - own: {command: run}
hooks:
  Stop:
    - hooks: [{type: command, command: "true"}]
memory: project
background: true
isolation: worktree
effort: high
color: blue
forkContext: false
initialPrompt: go
criticalSystemReminder_EXPERIMENTAL: mind the gap
budget: {usd: 0.5, tokens: 1000, turns: 5, seconds: 60, spawns: 2}
output_schema: {type: object}
max_depth: 2
sandbox:
  network: {allowedDomains: [deploy.example.com], deniedDomains: [evil.example]}
  filesystem:
    denyRead: [secrets]
    denyWrite: [vendor]
---
Do it.
"#,
        &expect![[r#"
            {"name":"all","description":"d","prompt":"Do it.","tools":{"only":["Read","Bash(git log:*)","mcp__x__y"],"except":["Bash"]},"model":"opus","mode":"plan","limits":{"turns":5,"money":500000000,"tokens":1000,"seconds":60,"spawns":2},"background":true,"max_depth":2,"effort":"high","reminder":"mind the gap","initial_prompt":"go","color":"blue","hooks":{"Stop":[{"hooks":[{"type":"command","command":"true"}]}]},"sandbox":{"allowed_hosts":[["deploy.example.com"]],"denied_hosts":["evil.example"],"deny_read":["secrets"],"deny_write":["vendor"]},"equipment":{"skills":["one","two"],"mcp_servers":["github",{"own":{"command":"run"}}],"memory":"project","isolation":"worktree","output_schema":{"type":"object"}}}
        "#]],
    );
}

/// Every form that definition files in the wild have, and the tools or the description each must give.
#[test]
fn forms_of_lists() {
    #[rustfmt::skip]
    let rows = [
        ("tools: Read, Write", Some("Read Write")),
        ("tools: Read,Write", Some("Read Write")),
        ("tools: [Read, Write]", Some("Read Write")),
        ("tools: ['Read', \"Write\"]", Some("Read Write")),
        ("tools:\n  - Read\n  - Write", Some("Read Write")),
        ("tools:\n- Read\n- Write", Some("Read Write")),
        ("tools: \"Read, Write\"", Some("Read Write")),
        ("tools: Read,\n  Write", Some("Read Write")),
        ("tools: >\n  Read,\n  Write", Some("Read Write")),
        ("tools: Read Write", Some("Read Write")),
        ("tools: [Read, Write", Some("Read Write")),
        ("tools: Read, Read", Some("Read")),
        ("tools: Task, BashOutput, KillShell", Some("Agent TaskOutput TaskStop")),
        ("tools: MultiEdit, LS, TodoWrite, Edit", Some("Edit Glob TodoWrite")),
        ("tools: read, WEBFETCH", Some("Read WebFetch")),
        ("tools: Read, Nonsense", Some("Read Nonsense")),
        ("tools: Bash(git log:*), Agent(Explore, Plan)", Some("Bash(git log:*) Agent(Explore, Plan)")),
        ("tools: mcp__x__y", Some("mcp__x__y")),
        ("tools: *", None),
        ("tools: '*'", None),
        ("tools: [\"*\"]", None),
        ("tools:", None),
        ("tools: ''", None),
        ("color: blue", None),
    ];
    for (line, expected) in rows {
        let stage = Stage::new()
            .file("home/.decurion/agents/a.md", &format!("---\nname: a\ndescription: d\n{line}\n---\nx\n"));
        let agents = agents(&stage);
        let agent = agents.get("a").unwrap_or_else(|| panic!("{line}: {:?}", agents.problems));
        let only = agent.definition.tools.only.as_ref().map(|only| only.join(" "));
        assert_eq!(only.as_deref(), expected, "{line}");
    }
}

#[test]
fn forms_of_descriptions_and_models() {
    let long = "word ".repeat(1200);
    #[rustfmt::skip]
    let rows = [
        ("description: plain words", "plain words"),
        ("description: \"double: quoted\\nline\"", "double: quoted\nline"),
        ("description: 'single'", "single"),
        ("description: >\n  folded\n  text", "folded text"),
        ("description: |\n  kept\n  lines", "kept\nlines"),
        ("description: several\n  plain lines", "several plain lines"),
        ("description: Use when: always", "Use when: always"),
        ("description: **bold** start", "**bold** start"),
        ("description: [unclosed", "[unclosed"),
        ("description: [brackets] then text", "[brackets] then text"),
        ("description: [a]", "[a]"),
        ("description: a literal \\n in it", "a literal \\n in it"),
        ("description: @handle first", "@handle first"),
        ("description: - dash first", "- dash first"),
        ("description: 42", "42"),
        ("description: Use it. <example>\nContext: c\nuser: \"q\"\nassistant: a\n</example>", "Use it. <example>\nContext: c\nuser: \"q\"\nassistant: a\n</example>"),
        (&format!("description: {long}"), long.trim()),
    ];
    for (line, expected) in rows {
        let stage = Stage::new()
            .file("home/.decurion/agents/a.md", &format!("---\nname: a\n{line}\nmodel: opus\n---\nx\n"));
        let agents = agents(&stage);
        let agent = agents.get("a").unwrap_or_else(|| panic!("{line}: {:?}", agents.problems));
        assert_eq!(agent.definition.description, expected, "{line}");
        assert_eq!(agent.definition.model.as_deref(), Some("opus"), "{line}");
    }
    #[rustfmt::skip]
    let rows = [
        ("sonnet", Some("sonnet")), ("Inherit", Some("inherit")), ("claude-sonnet-4-20250514", Some("claude-sonnet-4-20250514")),
        ("openai/gpt-x", Some("openai/gpt-x")), ("", None), ("Claude Sonnet 4.5 (copilot)", None), ("[a, b]", None),
    ];
    for (model, expected) in rows {
        let stage = Stage::new().file(
            "home/.decurion/agents/a.md",
            &format!("---\nname: a\ndescription: d\nmodel: {model}\n---\nx"),
        );
        let agents = agents(&stage);
        assert_eq!(agents.get("a").unwrap().definition.model.as_deref(), expected, "{model}");
        assert_eq!(agents.problems.len(), usize::from(expected.is_none() && !model.is_empty()), "{model}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    check(
        "---\nname: a\ndescription: Use: it\n\ntools: Raed, Read\ncapabilities: [x]\n---\nx",
        &expect![[r#"
            {"name":"a","description":"Use: it","prompt":"x","tools":{"only":["Raed","Read"],"except":[]}}
            home/.decurion/agents/a.md:3: warning: `description` is not YAML (mapping values are not allowed in this context) and is read as plain text
            home/.decurion/agents/a.md:5: warning: `tools`: no such tool: Raed
            home/.decurion/agents/a.md:6: warning: unknown key: capabilities
        "#]],
    );
    check(
        "---\ndescription: d\n---\nx",
        &expect![[r"
            home/.decurion/agents/a.md:1: error: missing `name`
        "]],
    );
    check(
        "---\nname:\ndescription: d\n---\nx",
        &expect![[r"
            home/.decurion/agents/a.md:2: error: missing `name`
        "]],
    );
    check(
        "---\nname: a\n---\nx",
        &expect![[r"
        home/.decurion/agents/a.md:1: error: missing `description`, which says when to use it
    "]],
    );
    check(
        "---\nname: a\ndescription: ''\n---\nx",
        &expect![[r"
        home/.decurion/agents/a.md:3: error: missing `description`, which says when to use it
    "]],
    );
    check(
        "# Only a page\n",
        &expect![[r"
        home/.decurion/agents/a.md:1: warning: not an agent, because there is no head: the first line is not `---`
    "]],
    );
    check(
        "---\n\n---\n",
        &expect![[r"
        home/.decurion/agents/a.md:1: error: the head has no `key: value` line
    "]],
    );
    check(
        "---\nname: a\ndescription: d\n---\n",
        &expect![[r#"
        {"name":"a","description":"d","prompt":""}
        home/.decurion/agents/a.md: warning: no text below the head: the agent has no instructions
    "#]],
    );
    check(
        "---\nname: a(b)\ndescription: d\n---\nx",
        &expect![[r"
        home/.decurion/agents/a.md:2: error: `name` holds a character that names cannot have: '('
    "]],
    );
    check(
        "---\nname: Fork\ndescription: d\n---\nx",
        &expect![[r"
        home/.decurion/agents/a.md:2: error: `name` is that of a built-in agent that cannot be replaced: fork; used instead: built-in
    "]],
    );
    check(
        "\u{feff}---\r\nname: a\r\ndescription: d\r\n---\r\nx\r\n",
        &expect![[r#"
        {"name":"a","description":"d","prompt":"x"}
        home/.decurion/agents/a.md:1: warning: the file begins with a byte order mark; lines end in CRLF
    "#]],
    );
    check(
        "---\nname: a\ndescription: d\n\nYou are.",
        &expect![[r#"
        {"name":"a","description":"d","prompt":"You are."}
        home/.decurion/agents/a.md:4: warning: the head is not closed by `---`
    "#]],
    );
}

#[test]
fn limits_and_tools_that_cannot_be_read_make_a_file_unusable() {
    #[rustfmt::skip]
    let rows = [
        ("tools: []", "5: error: `tools` is an empty list, and an agent without tools can do nothing"),
        ("tools: {a: b}", "5: error: `tools` is neither a list of names nor a text"),
        ("tools: edit/editFiles", "5: warning: `tools`: no such tool: edit/editFiles"),
        ("tools: edit/editFiles", "5: error: none of the tools that `tools` and `disallowedTools` leave exists"),
        ("tools: Read\ndisallowedTools: Read", "5: error: none of the tools that `tools` and `disallowedTools` leave exists"),
        ("disallowedTools: '*'", "5: error: none of the tools that `tools` and `disallowedTools` leave exists"),
        ("disallowedTools: {a: b}", "5: error: `disallowedTools` is neither a list of names nor a text"),
        ("budget: 5", "5: error: `budget` takes tokens, usd, turns, seconds and spawns"),
        ("budget: {usd: five}", "5: error: `budget.usd`: expected a number, 0 or above"),
        ("budget: {usd: -1}", "5: error: `budget.usd`: expected a number, 0 or above"),
        ("budget: {hours: 1}", "5: error: `budget` has no limit of this name: hours"),
        ("max_depth: deep", "5: error: `max_depth`: expected a whole number"),
        ("isolation: remote", "5: error: `isolation`: expected worktree or worktree+dirty, found remote"),
        ("sandbox: off", "5: error: `sandbox`: expected an object with `network` and `filesystem`"),
        ("sandbox: {enabled: false}", "5: error: `sandbox: enabled`: the sandbox cannot be switched off for one agent; only true is possible"),
        ("sandbox:\n  network:\n    open: true", "7: error: `sandbox: open`: unknown key; an agent's sandbox only tightens, and has allowedDomains, deniedDomains"),
        ("sandbox:\n  filesystem:\n    allowWrite: [x]", "7: error: `sandbox: allowWrite`: unknown key; an agent's sandbox only tightens, and has denyRead, denyWrite"),
        ("sandbox:\n  excludedCommands: [x]", "6: error: `sandbox: excludedCommands`: unknown key; an agent's sandbox only tightens, and has enabled, network, filesystem"),
        ("sandbox: {network: {allowedDomains: ['https://x.example']}}", "5: error: `sandbox: allowedDomains`: expected hosts such as example.com or *.example.com, found https://x.example"),
        ("sandbox: {filesystem: {denyRead: 5}}", "5: error: `sandbox: denyRead`: expected a list of texts"),
        ("output_schema: [1]", "5: error: `output_schema`: expected a JSON Schema, which is an object"),
    ];
    for (lines, expected) in rows {
        let text = format!("---\nname: a\n\ndescription: d\n{lines}\n---\nx");
        let shown = user_file(&text);
        let expected = format!("home/.decurion/agents/a.md:{expected}\n");
        assert!(shown.contains(&expected), "{lines}: {shown}");
        assert!(!shown.contains("\"name\""), "{lines}: {shown}");
    }
}

#[test]
fn what_is_honoured_has_nothing_said_about_it() {
    for line in [
        "skills: a",
        "mcpServers: a, b",
        "memory: user",
        "isolation: worktree",
        "isolation: worktree+dirty",
        "outputSchema: '{\"type\": \"object\"}'",
    ] {
        let shown = user_file(&format!("---\nname: a\ndescription: d\n{line}\n---\nx"));
        assert_eq!(shown.lines().count(), 1, "{line}: {shown}");
    }
}

#[test]
fn other_mistakes_leave_the_agent_usable() {
    #[rustfmt::skip]
    let rows = [
        ("permissionMode: auto", "warning: `permissionMode` is ignored: unknown permission mode (default, acceptEdits, plan, bypassPermissions, dontAsk, bubble): \"auto\""),
        ("model: opus\nforkContext: true", "warning: `model` has no effect with `forkContext`: the conversation is the parent's, and so is the model"),
        ("maxTurns: 0", "warning: `maxTurns` is ignored: expected a whole number above 0"),
        ("maxTurns: many", "warning: `maxTurns` is ignored: expected a whole number above 0"),
        ("background: perhaps", "warning: `background` is ignored: expected true or false"),
        ("memory: everywhere", "warning: `memory` is ignored: expected user, project or local"),
        ("hooks: [a]", "warning: `hooks` is ignored: expected an object of event to list"),
        ("hooks: {Stop: x}", "warning: `hooks` is ignored: expected a list for the event Stop"),
        ("mcpServers: 5", "warning: `mcpServers` is ignored: expected names, or an object of name to server"),
        ("mcpServers: [a, {host: {type: sdk, name: host}}]", "warning: `mcpServers`: host cannot be used: a server of `type` \"sdk\" lives in the program that hosts us, which alone can offer it, when it starts us; give it a `command` or a `url`"),
        ("mcpServers: {host: {type: SDK}, b: {command: x}}", "warning: `mcpServers`: host cannot be used: a server of `type` \"sdk\" lives in the program that hosts us, which alone can offer it, when it starts us; give it a `command` or a `url`"),
        ("disallowed-tools: Bash", "warning: `disallowed-tools` is spelled `disallowedTools`"),
        ("max_turns: 3", "warning: `max_turns` is spelled `maxTurns`"),
        ("allowed-tools: Bash", "warning: unknown key: allowed-tools (an agent's tools are listed in `tools`)"),
        ("hidden: true", "warning: unknown key: hidden"),
        ("tools: [grep]", "warning: `tools`: grep is spelled Grep"),
        ("tools: [MultiEdit]", "note: `tools`: MultiEdit is a tool of earlier times; Edit is used"),
        ("disallowedTools: [LS]", "note: `disallowedTools`: LS is a tool of earlier times; it does not exist here"),
        ("tools:", "warning: `tools` is empty and counts as not given: the agent has all tools"),
        ("omitClaudeMd: true", "note: `omitClaudeMd` has no effect here"),
    ];
    for (line, expected) in rows {
        let stage = Stage::new()
            .file("home/.decurion/agents/a.md", &format!("---\nname: a\ndescription: d\n{line}\n---\nx"));
        let agents = agents(&stage);
        assert!(agents.get("a").is_some(), "{line}");
        let problems: Vec<String> = agents.problems.iter().map(|one| stage.short(&one.to_string())).collect();
        assert_eq!(problems, [format!("home/.decurion/agents/a.md:4: {expected}")], "{line}");
    }
}

#[test]
fn of_two_limits_on_turns_the_smaller_holds() {
    for lines in ["maxTurns: 5\nbudget: {turns: 7}", "budget: {turns: 5}\nmaxTurns: 7"] {
        let stage = Stage::new()
            .file("home/.decurion/agents/a.md", &format!("---\nname: a\ndescription: d\n{lines}\n---\nx"));
        assert_eq!(agents(&stage).get("a").unwrap().definition.limits.turns, Some(5), "{lines}");
    }
}

#[test]
fn skills_are_checked_where_they_are_known() {
    let stage = Stage::new()
        .file("home/.decurion/agents/a.md", "---\nname: a\ndescription: d\nskills: [one, two]\n---\nx");
    let mut request = request(&stage.load());
    request.skills = Some(vec!["one".into()]);
    let agents = Agents::load(&request);
    assert_eq!(agents.get("a").unwrap().definition.equipment.skills, ["one", "two"]);
    assert!(agents.problems[0].to_string().ends_with("a.md:4: warning: `skills`: no such skill: two"));
}

/// A definition of this name that says where it is.
fn named(name: &str) -> String {
    format!("---\nname: {name}\ndescription: d\n---\nx")
}

#[test]
fn of_equal_names_the_highest_place_counts() {
    let stage = Stage::new()
        .file("agents/managed.md", &named("r"))
        .file("project/deep/.decurion/agents/r.md", &named("R"))
        .file("project/deep/.claude/agents/r.md", &named("r"))
        .file("project/.decurion/agents/sub/r.md", &named("r"))
        .file("project/.claude/agents/r.md", &named("r"))
        .file("home/.decurion/agents/r.md", &named("r"))
        .file("home/.claude/agents/r.md", &named("r"))
        .file("home/.claude/agents/explore.md", &named("explore"))
        .file("plugin/agents/r.md", "---\ndescription: d\npermissionMode: plan\nhooks: {}\n---\nx");
    let mut start = stage.request();
    start.cwd = stage.project.join("deep");
    let mut request = request(&load(&start).unwrap());
    let plugin = PluginPlace { name: "p".into(), root: stage.top.join("plugin") };
    request.plugins = vec![AgentFolder::of_plugin(plugin, stage.top.join("plugin/agents"))];
    request.flag = Some(r#"{"r": {"description": "d", "prompt": "x"}}"#.into());
    let agents = Agents::load(&request);
    let expected = [
        "r --agents",
        "r agents/managed.md < --agents",
        "R project/deep/.decurion/agents/r.md < --agents",
        "r project/deep/.claude/agents/r.md < --agents",
        "r project/.decurion/agents/sub/r.md < --agents",
        "r project/.claude/agents/r.md < --agents",
        "r home/.decurion/agents/r.md < --agents",
        "explore home/.claude/agents/explore.md",
        "r home/.claude/agents/r.md < --agents",
        "p:r plugin/agents/r.md",
    ];
    assert_eq!(order(&stage, &agents), expected);
    let problems: Vec<String> = agents.problems.iter().map(|one| stage.short(&one.to_string())).collect();
    assert_eq!(
        problems,
        [
            "plugin/agents/r.md:3: warning: `permissionMode` is ignored: a plugin's agent cannot set one",
            "plugin/agents/r.md:4: warning: `hooks` is ignored: a plugin's agent cannot set any",
        ]
    );
    let sources: Vec<AgentSource> = agents.all.iter().map(|agent| agent.definition.source).take(3).collect();
    assert_eq!(sources, [AgentSource::User, AgentSource::Managed, AgentSource::Project]);
    assert_eq!(agents.get("EXPLORE").unwrap().definition.source, AgentSource::User);
    assert_eq!(agents.get("P:R").unwrap().definition.name, "p:r");
    assert_eq!(agents.active().filter(|agent| agent.definition.name.eq_ignore_ascii_case("r")).count(), 1);
    // Each place in its turn, as the ones above go.
    for (gone, next) in [
        ("", "agents/managed.md"),
        ("agents/managed.md", "project/deep/.decurion/agents/r.md"),
        ("project/deep/.decurion/agents/r.md", "project/deep/.claude/agents/r.md"),
        ("project/deep/.claude/agents/r.md", "project/.decurion/agents/sub/r.md"),
        ("project/.decurion/agents/sub/r.md", "project/.claude/agents/r.md"),
        ("project/.claude/agents/r.md", "home/.decurion/agents/r.md"),
        ("home/.decurion/agents/r.md", "home/.claude/agents/r.md"),
    ] {
        request.flag = None;
        if !gone.is_empty() {
            fs::remove_file(stage.top.join(gone)).unwrap();
        }
        let agents = Agents::load(&request);
        assert_eq!(stage.short(&agents.get("r").unwrap().origin.to_string()), next);
    }
}

#[test]
fn setting_sources_choose_the_folders() {
    let stage = Stage::new()
        .file("project/.claude/agents/a.md", &named("a"))
        .file("home/.claude/agents/b.md", &named("b"));
    for (sources, expected) in [("user", "b"), ("project", "a"), ("local", ""), ("user,project", "a b")] {
        let mut start: LoadRequest = stage.request();
        start.flags.setting_sources = Some(sources.into());
        let agents = Agents::load(&request(&load(&start).unwrap()));
        let names: Vec<&str> = agents
            .all
            .iter()
            .filter(|agent| agent.definition.source != AgentSource::Builtin)
            .map(|agent| agent.definition.name.as_str())
            .collect();
        assert_eq!(names.join(" "), expected, "{sources}");
    }
}

#[test]
fn two_of_one_name_in_a_folder_and_a_broken_one_above_are_said() {
    let stage = Stage::new()
        .file("project/.claude/agents/b/review.md", &named("review"))
        .file("project/.claude/agents/a.md", &named("Review"))
        .file("project/.decurion/agents/broken.md", "---\nname: Plan\ndescription: d\ntools: []\n---\nx");
    expect![[r#"
        {"name":"Review","description":"d","prompt":"x"}
        {"name":"review","description":"d","prompt":"x"}
        project/.decurion/agents/broken.md:4: error: `tools` is an empty list, and an agent without tools can do nothing; used instead: built-in
        project/.claude/agents/b/review.md: warning: not used, because another file here has this name: project/.claude/agents/a.md
    "#]].assert_eq(&shown(&stage, &agents(&stage)));
    assert_eq!(agents(&stage).unusable("plan").unwrap().severity, Severity::Error);
    assert!(agents(&stage).has_errors());
}

#[test]
fn definitions_on_the_command_line() {
    let check = |json: &str, expected: &Expect| {
        let stage = Stage::new();
        let mut request = request(&stage.load());
        request.flag = Some(json.into());
        expected.assert_eq(&shown(&stage, &Agents::load(&request)));
    };
    check(
        r#"{"r": {"description": "d", "prompt": "Do: it.", "tools": ["Read", "Bash(ls)"], "model": "haiku",
            "maxTurns": 3, "permissionMode": "bypassPermissions", "budget": {"usd": 1}}}"#,
        &expect![[r#"
            {"name":"r","description":"d","prompt":"Do: it.","tools":{"only":["Read","Bash(ls)"],"except":[]},"model":"haiku","mode":"bypassPermissions","limits":{"turns":3,"money":1000000000}}
        "#]],
    );
    check(
        r#"{"r": {"description": "d"}, "s": 5, "t": {"prompt": "x"}}"#,
        &expect![[r#"
            --agents:1: agent "r": error: missing `prompt`
            --agents:1: error: expected an object as the definition of "s"
            --agents:1: agent "t": error: missing `description`, which says when to use it
        "#]],
    );
    check(
        r#"{"r": {"description": "d", "prompt": "x", "tools": [], "x": 1}}"#,
        &expect![[r#"
        --agents:1: agent "r": error: `tools` is an empty list, and an agent without tools can do nothing
        --agents:1: agent "r": warning: unknown key: x
    "#]],
    );
    check(
        "{\"r\": {\"description\": \"d\",\n \"prompt\": \"x\",\n \"capabilities\": 1}}",
        &expect![[r#"
        {"name":"r","description":"d","prompt":"x"}
        --agents:3: agent "r": warning: unknown key: capabilities
    "#]],
    );
    check(
        "[1]",
        &expect![[r"
        --agents: error: expected an object of name to definition
    "]],
    );
    check(
        "{\"r\": ",
        &expect![[r"
        --agents: error: not JSON: 1:7: expected a value
    "]],
    );
    check("{}", &expect![[""]]);
}

#[test]
fn a_repository_widens_nothing_before_it_is_trusted() {
    let text = "---\nname: a\ndescription: d\npermissionMode: MODE\nhooks: {Stop: []}\nmcpServers: [named, {own: {command: x}}]\n---\nx";
    for mode in [Mode::BypassPermissions, Mode::DontAsk, Mode::AcceptEdits, Mode::Plan, Mode::Default] {
        let text = text.replace("MODE", mode.name());
        let narrows = matches!(mode, Mode::Plan | Mode::Default);
        let stage = Stage::new().file("project/.claude/agents/a.md", &text);
        let found = agents(&stage);
        let agent = &found.get("a").unwrap().definition;
        assert_eq!(agent.mode, narrows.then_some(mode));
        assert_eq!((&agent.hooks, &agent.equipment.mcp_servers), (&None, &None));
        let lines: Vec<u32> = found.problems.iter().filter_map(|problem| problem.line).collect();
        assert_eq!(lines, if narrows { vec![5, 6] } else { vec![4, 5, 6] });
        assert!(found.problems.iter().all(|problem| problem.text.contains("not trusted")));

        let trusted = Agents::load(&request(&stage.load_trusted()));
        let agent = trusted.get("a").unwrap();
        assert_eq!(agent.definition.mode, Some(mode));
        assert!(agent.definition.hooks.is_some() && agent.definition.equipment.mcp_servers.is_some());
        assert!(agent.dont_ask_denies, "a file under .claude");

        let own = Stage::new().file("home/.decurion/agents/a.md", &text);
        let found = agents(&own);
        assert_eq!(found.get("a").unwrap().definition.mode, Some(mode));
        assert!(!found.get("a").unwrap().dont_ask_denies);
    }
}

#[test]
fn trust_is_of_what_was_there_and_a_change_while_running_widens_nothing() {
    let text = |mode: &str| format!("---\nname: a\ndescription: d\npermissionMode: {mode}\n---\nx");
    let stage = Stage::new().file("project/.decurion/agents/a.md", &text("acceptEdits"));
    let loaded = stage.load();
    assert_eq!(loaded.project_parts.counts()[&PartKind::Mode], 1);
    let (mut trust, _) = Trust::open(&loaded.paths);
    trust.trust_folder(&loaded.paths.root, &loaded.project_parts).unwrap();
    let request = request(&stage.load());
    let mode = |request: &AgentRequest| Agents::load(request).get("a").unwrap().definition.mode;
    assert_eq!(mode(&request), Some(Mode::AcceptEdits));
    // An agent rewrites its definition, or adds one, while the session runs.
    let file = stage.project.join(".decurion/agents/a.md");
    write(&file, &text("bypassPermissions"));
    write(
        &stage.project.join(".decurion/agents/b.md"),
        &text("bypassPermissions").replace("name: a", "name: b"),
    );
    let changed = Agents::load(&request);
    assert_eq!(changed.get("a").unwrap().definition.mode, None);
    assert_eq!(changed.get("b").unwrap().definition.mode, None);
    assert!(changed.problems[0].text.contains("when the folder was trusted"), "{}", changed.problems[0]);
    assert!(!stage.load().trust.is_trusted());
    // What does not widen may change.
    fs::remove_file(stage.project.join(".decurion/agents/b.md")).unwrap();
    write(&file, &text("acceptEdits").replace("\nx", "\nanother prompt"));
    assert_eq!(mode(&request), Some(Mode::AcceptEdits));
    assert!(stage.load().trust.is_trusted());
}

#[test]
fn trust_in_a_folder_is_not_trust_in_the_folders_above_it() {
    let stage = Stage::new()
        .file("project/.claude/agents/a.md", "---\nname: a\ndescription: d\npermissionMode: dontAsk\n---\nx")
        .file(
            "project/deep/.claude/agents/b.md",
            "---\nname: b\ndescription: d\npermissionMode: dontAsk\n---\nx",
        );
    let mut start = LoadRequest { trust: TrustMode::Granted, ..stage.request() };
    start.cwd = stage.project.join("deep");
    let agents = Agents::load(&request(&load(&start).unwrap()));
    assert_eq!(agents.get("a").unwrap().definition.mode, None);
    assert_eq!(agents.get("b").unwrap().definition.mode, Some(Mode::DontAsk));
}

#[test]
fn files_that_are_not_as_they_should_be_are_reported() {
    let stage = Stage::new().file("home/.claude/agents/good.md", &named("good"));
    let folder = stage.home.join(".claude/agents");
    fs::write(folder.join("bytes.md"), b"---\nname: a\xff\n---\n").unwrap();
    fs::write(folder.join("big.md"), vec![b'a'; (1 << 20) + 1]).unwrap();
    fs::create_dir(folder.join("folder.md")).unwrap();
    write(&folder.join("folder.md/inside.md"), &named("inside"));
    symlink("nowhere", folder.join("gone.md")).unwrap();
    symlink("loop.md", folder.join("loop.md")).unwrap();
    symlink("..", folder.join("up")).unwrap();
    symlink("good.md", folder.join("link.md")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.join("pipe.md").as_std_path(), 0o600.into()).unwrap();
    fs::write(folder.join("notes.txt"), "not a definition").unwrap();
    fs::write(folder.join(".hidden.md"), "not a definition").unwrap();
    let bad_name = std::os::unix::ffi::OsStrExt::from_bytes(b"bad\xff.md");
    let named_badly: &std::ffi::OsStr = bad_name;
    fs::write(folder.as_std_path().join(named_badly), named("bad")).unwrap();
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !is_root {
        write(&folder.join("locked.md"), &named("locked"));
        fs::set_permissions(folder.join("locked.md"), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let text: String = shown(&stage, &agents(&stage))
        .lines()
        .filter(|line| !line.contains("locked.md"))
        .map(|line| format!("{line}\n"))
        .collect();
    expect![[r#"
        {"name":"inside","description":"d","prompt":"x"}
        {"name":"good","description":"d","prompt":"x"}
        {"name":"good","description":"d","prompt":"x"}
        home/.claude/agents/folder.md: error: a folder with the name of a definition file
        home/.claude/agents/gone.md: error: cannot be read: No such file or directory (os error 2)
        home/.claude/agents/loop.md: error: cannot be read: Too many levels of symbolic links (os error 40)
        home/.claude/agents/up/agents: error: a link to a folder that is read already
        home/.claude/agents/bad�.md: error: its name is not UTF-8
        home/.claude/agents/big.md: error: longer than 1048576 bytes
        home/.claude/agents/bytes.md:2: error: the file is not UTF-8
        home/.claude/agents/pipe.md: error: not an ordinary file
        home/.claude/agents/link.md: warning: not used, because another file here has this name: home/.claude/agents/good.md
    "#]].assert_eq(&text);
    assert!(is_root || shown(&stage, &agents(&stage)).contains("locked.md: error: cannot be read"));
}

#[test]
fn a_file_in_the_place_of_the_folder_is_reported() {
    let stage = Stage::new().file("home/.decurion/agents", "x").file("project/.claude", "x");
    expect![[r"
        home/.decurion/agents: error: not a folder
    "]]
    .assert_eq(&shown(&stage, &agents(&stage)));
}

#[test]
fn a_folder_made_to_be_deep_or_full_ends() {
    let stage = Stage::new();
    let mut deep = stage.home.join(".claude/agents");
    for _ in 0..40 {
        deep = deep.join("d");
    }
    write(&deep.join("a.md"), &named("a"));
    let full = stage.home.join(".decurion/agents");
    fs::create_dir_all(&full).unwrap();
    for index in 0..2010 {
        fs::write(full.join(format!("{index}.md")), "").unwrap();
    }
    let agents = agents(&stage);
    let errors: Vec<&str> = agents
        .problems
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
        .map(|problem| problem.text.as_str())
        .collect();
    let expected = [
        "more than 2000 files; this one and those after it are not read",
        "more than 16 folders deep, not read",
    ];
    assert_eq!(errors, expected);
}

#[test]
fn the_built_ins_load_without_a_word() {
    let stage = Stage::new();
    let agents = agents(&stage);
    assert_eq!(agents.problems, []);
    let mut lines = String::new();
    for agent in agents.active() {
        let definition = &agent.definition;
        let (mode, hidden) =
            (definition.mode.map_or("-", Mode::name), if definition.hidden { "hidden" } else { "" });
        let only = definition.tools.only.as_ref().map_or("*".into(), |only| only.join(" "));
        lines += &format!(
            "{} | {mode} | {only} | -{} | {hidden}\n",
            definition.name,
            definition.tools.except.join(" -")
        );
        assert!(definition.prompt.len() > 200 && definition.description.len() > 40, "{}", definition.name);
        assert_eq!(definition.source, AgentSource::Builtin);
    }
    expect![[r"
        general-purpose | - | * | - | 
        Explore | default | * | -Agent -Edit -NotebookEdit -Write | 
        Plan | default | * | -Agent -Edit -NotebookEdit -Write | 
        Verification | - | * | -Agent -Edit -NotebookEdit -Write | 
        guide | dontAsk | Bash Glob Grep Read WebFetch | -Agent | 
        statusline-setup | - | Bash Edit Read Write | -Agent | 
        fork | bubble | * | - | hidden
    "]]
    .assert_eq(&lines);
    assert_eq!(agents.get("claude-code-guide").unwrap().definition.name, "guide");
    assert_eq!(agents.get("EXPLORE").unwrap().definition.name, "Explore");
    assert!(agents.get("nobody").is_none());
}

#[test]
fn built_ins_can_be_switched_off() {
    let stage = Stage::new().file(
        "home/.decurion/settings.json",
        r#"{"agents": {"disabled": ["explore", "claude-code-guide", "Nobody"]}}"#,
    );
    let found = agents(&stage);
    assert!(found.get("Explore").is_none() && found.get("guide").is_none());
    assert!(found.get("claude-code-guide").is_none() && found.get("Plan").is_some());
    let said: Vec<String> = found.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        ["built-in: warning: `agents.disabled` in the settings names no built-in agent: Nobody"]
    );
}

#[test]
fn changes_on_disk_are_noticed() {
    let stage = Stage::new().file("project/.claude/agents/a.md", &named("a"));
    let request = request(&stage.load());
    let file = |path: &str| stage.top.join(path);
    let rename = |from: &str, to: &str| fs::rename(file(from), file(to)).unwrap();
    let changes: &[(&str, &dyn Fn())] = &[
        ("another text", &|| write(&file("project/.claude/agents/a.md"), &named("other"))),
        ("the same length", &|| write(&file("project/.claude/agents/a.md"), &named("rehto"))),
        ("a new file", &|| write(&file("project/.claude/agents/b.md"), &named("b"))),
        ("a new folder inside", &|| write(&file("project/.claude/agents/x/c.md"), &named("c"))),
        ("a new place", &|| write(&file("home/.decurion/agents/d.md"), &named("d"))),
        ("another name", &|| rename("project/.claude/agents/b.md", "project/.claude/agents/e.md")),
        ("one less", &|| fs::remove_file(file("project/.claude/agents/e.md")).unwrap()),
        ("a folder less", &|| fs::remove_dir_all(file("home/.decurion/agents")).unwrap()),
    ];
    for (name, change) in changes {
        let agents = Agents::load(&request);
        assert!(!agents.is_stale(&request), "{name}");
        change();
        assert!(agents.is_stale(&request), "{name}");
    }
    // Another text of the same length that carries the date of the one before.
    let path = file("project/.claude/agents/a.md");
    let dated = fs::metadata(&path).unwrap().modified().unwrap();
    let agents = Agents::load(&request);
    write(&path, &named("ohter"));
    fs::File::options().write(true).open(&path).unwrap().set_modified(dated).unwrap();
    assert!(agents.is_stale(&request));
    write(&file("project/.claude/other.md"), "x");
    let agents = Agents::load(&request);
    write(&file("project/.claude/other.md"), "y");
    assert!(!agents.is_stale(&request));
}

#[test]
fn named_files_are_checked_where_they_stand() {
    let stage = Stage::new()
        .file("project/.claude/agents/a.md", "---\nname: a\ndescription: d\npermissionMode: dontAsk\n---\nx")
        .file("elsewhere/b.md", "---\nname: b\ndescription: d\ntools: Raed, Read\n---\nx")
        .file("elsewhere/c/d.md", "---\nname: d\n---\nx");
    let paths: Vec<Utf8PathBuf> = ["project/.claude/agents/a.md", "elsewhere", "elsewhere/none.md"]
        .map(|path| stage.top.join(path))
        .to_vec();
    expect![[r#"
        {"name":"a","description":"d","prompt":"x"}
        {"name":"b","description":"d","prompt":"x","tools":{"only":["Raed","Read"],"except":[]}}
        project/.claude/agents/a.md:4: warning: `permissionMode` is ignored, because this folder is not trusted (see `decurion trust`)
        elsewhere/b.md:4: warning: `tools`: no such tool: Raed
        elsewhere/c/d.md:1: error: missing `description`, which says when to use it
        elsewhere/none.md: error: there is no such file
    "#]].assert_eq(&shown(&stage, &Agents::check(&request(&stage.load()), &paths)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever a definition says, what is printed for it reads back as the same.
    #[test]
    fn a_definition_printed_reads_back_the_same(
        description in "[ -~\n\u{e9}\u{4e2d}]{0,80}",
        prompt in "[ -~\n]{0,80}",
        color in "[ -~]{0,12}",
        turns in proptest::option::of(1_u32..100),
        usd in proptest::option::of(0_u32..1000),
    ) {
        let mut definition = decurion_protocol::AgentDefinition {
            name: "a".into(),
            description: format!("d {description}").trim().to_owned(),
            prompt: format!("p {prompt}").trim().to_owned(),
            source: AgentSource::User,
            color: Some(color.trim().to_owned()).filter(|color| !color.is_empty()),
            ..Default::default()
        };
        definition.limits.turns = turns;
        definition.limits.money = usd.map(|usd| Money::from_dollars(f64::from(usd) / 100.0));
        let stage = Stage::new().file("home/.decurion/agents/a.md", &to_markdown(&definition));
        let agents = agents(&stage);
        prop_assert_eq!(&agents.problems, &vec![]);
        let mut read = (*agents.get("a").unwrap().definition).clone();
        read.path = None;
        prop_assert_eq!(read, definition);
    }

    /// Nothing that a file holds makes loading fail, and nothing is dropped without a word.
    #[test]
    fn any_text_is_loaded_or_reported(head in "(name: a\n|description: [a-z:\\[\\] \"'*@|>-]{0,20}\n|tools:.{0,10}\n|[a-zA-Z:#\\- \n\t\"'\\[\\]{}&*!|>%@`]{0,12}){0,8}", closed in any::<bool>()) {
        let text = format!("---\n{head}{}body", if closed { "\n---\n" } else { "" });
        let stage = Stage::new().file("home/.decurion/agents/a.md", &text);
        let agents = agents(&stage);
        let loaded = agents.all.iter().any(|agent| agent.definition.source == AgentSource::User);
        prop_assert!(loaded || !agents.problems.is_empty());
    }
}

#[test]
fn a_repositorys_agent_has_the_users_memory_only_when_that_was_agreed_to() {
    let text = |scope: &str| format!("---\nname: a\ndescription: d\nmemory: {scope}\n---\nx");
    let stage = Stage::new().file("project/.decurion/agents/a.md", &text("user"));
    let memory = |loaded: &Loaded| {
        Agents::load(&request(loaded)).get("a").unwrap().definition.equipment.memory.clone()
    };
    let loaded = stage.load();
    assert_eq!(memory(&loaded), None);
    assert_eq!(loaded.project_parts.counts().get(&PartKind::Directory), Some(&1));
    assert_eq!(memory(&stage.load_trusted()).as_deref(), Some("user"));
    // What stays in the repository waits for nothing.
    let stage = stage.file("project/.decurion/agents/a.md", &text("project"));
    assert_eq!(memory(&stage.load()).as_deref(), Some("project"));
    assert!(stage.load().project_parts.parts().is_empty());
}
