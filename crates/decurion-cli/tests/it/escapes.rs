//! No command lets an escape sequence of a model, a file or a repository reach a terminal: each is run in a real
//! terminal over names and texts that hold every kind of sequence, and every byte it writes is looked at.

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use decurion_testkit::proc::{Home, Program};
use decurion_testkit::pty::Pty;
use decurion_testkit::server::FakeModel;
use serde_json::json;

use crate::stand::{DECURION, LIMIT, finished};

/// Every kind of sequence, in pieces short enough for a file name together.
const KINDS: &[&str] = &[
    "\u{1b}]0;PWN\u{7}",
    "\u{1b}]52;c;aGk=\u{7}",
    "\u{1b}]8;;http:x\u{1b}\\",
    "\u{1b}[2J\u{1b}[31m",
    "\u{1b}Pq#0\u{1b}\\",
    "\u{1b}_x\u{1b}\\",
    "\u{1b}^x\u{1b}\\",
    "\u{1b}c",
    "\u{9b}2J",
    "\u{9d}0;x\u{9c}",
    "\u{90}q\u{9c}",
    "\u{7}",
    "\u{8}\u{b}\u{c}\u{e}\u{7f}",
    "\rfake",
    "\u{202a}\u{202e}\u{2066}\u{2069}",
    "\u{200b}\u{feff}",
    "\u{1b}",
];

fn hostile() -> String {
    format!("XX{}YY", KINDS.concat())
}

/// A home whose every file says the worst, a folder with the worst name, and a model that talks like that.
struct Stage {
    home: Home,
    model: FakeModel,
    work: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let home = Home::new().unwrap();
        let work = home.work().join(std::ffi::OsStr::from_bytes(hostile().as_bytes()));
        let script = format!("when\n  say {}\n", json!(format!("{} and {}", hostile(), hostile())));
        let stage = Self { model: FakeModel::start(&script).unwrap(), work, home };
        let text = hostile();
        let quoted = json!(text).to_string();
        stage.put(".claude/agents/bad.md", &format!("---\nname: bad\ndescription: {quoted}\ntools: [{quoted}, Read]\nmodel: {quoted}\nskills: [{quoted}]\nother: {quoted}\n---\n{text}\n"));
        stage.put(".claude/agents/worse.md", &format!("---\nname: {quoted}\ndescription: d\n---\nx\n"));
        stage.put(
            &format!(".claude/skills/{text}/SKILL.md"),
            &format!("---\nname: {quoted}\ndescription: {quoted}\nallowed-tools: {quoted}\n---\n{text}"),
        );
        stage.put(
            ".mcp.json",
            &json!({"mcpServers": {&text: {"command": &text, "args": [&text]}}}).to_string(),
        );
        let hooks = json!({"Stop": [{"hooks": [{"type": "command", "command": &text}]}]});
        stage.put(".decurion/settings.json", &json!({"permissions": {"allow": [format!("Bash({text})")]}, "hooks": hooks, "env": {"NAMED": &text}}).to_string());
        stage.put(
            "rows.jsonl",
            &format!(
                "{}\n{}\n{}\n",
                json!({"tool": &text, "input": {"x": &text}}),
                json!({"tool": "Bash", "input": {"command": &text}}),
                text
            ),
        );
        stage.put(
            "plug/.claude-plugin/plugin.json",
            &json!({"name": &text, "version": &text, "description": &text}).to_string(),
        );
        stage.put("AGENTS.md", &format!("{text} @{}.md", "missing"));
        stage
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.work.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn program(&self, arguments: &[&str]) -> Program {
        self.home
            .program(DECURION)
            .cwd(&self.work)
            .env("ANTHROPIC_BASE_URL", self.model.url())
            .env("ANTHROPIC_API_KEY", decurion_testkit::proc::canary::PROVIDER_KEY)
            .args(arguments.iter().copied())
    }

    /// Everything that a command writes to a terminal.
    fn terminal(&self, arguments: &[&str]) -> Vec<u8> {
        let mut pty = Pty::start(&self.program(arguments), (200, 50)).unwrap();
        pty.keep_silent();
        let ended = pty.end(LIMIT).unwrap();
        assert!(ended.is_some(), "{arguments:?} hangs: {}", pty.screen());
        pty.written().to_vec()
    }
}

/// What of these bytes is not text. The terminal itself makes a line end of two bytes.
fn commands(written: &[u8]) -> Vec<String> {
    let Ok(text) = std::str::from_utf8(written) else { return vec!["bytes that are no text".to_owned()] };
    let mut text = text.replace("\r\n", "\n");
    // Ours, which none of the texts has.
    for colour in ["0", "0;1", "0;2", "0;31", "0;32", "0;33"] {
        text = text.replace(&format!("\u{1b}[{colour}m"), "");
    }
    let commands = |letter: &char| {
        (letter.is_control() && *letter != '\n')
            || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200b}' | '\u{feff}')
    };
    let mut found: Vec<String> = text.chars().filter(commands).map(|letter| format!("{letter:?}")).collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn no_command_lets_a_sequence_reach_the_terminal() {
    let stage = Stage::new();
    let first = stage.program(&["-p", &hostile(), "--output-format", "json"]);
    let session = finished(first).lines.iter().find_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        line["session_id"].as_str().map(str::to_owned)
    });
    let (text, session) = (hostile(), session.unwrap());
    let (text, id) = (text.as_str(), session.as_str());
    let all: &[(&[&str], bool)] = &[
        (&["-p", "go"], true),
        (&["-p", "--verbose", "go"], true),
        (&["-p", "--output-format", "json", "go"], true),
        (&["-p", "--output-format", "stream-json", "--verbose", "go"], true),
        (&["-p", "-c", "go"], true),
        (&["-p", "--resume", id, text], true),
        (&["-p", "--agent", text, "go"], true),
        (&["-p", "--model", text, "go"], true),
        (&["-p", "--resume", text, "go"], true),
        (&["-p", "--allowedTools", text, "go"], true),
        (&["-p", "--settings", text, "go"], true),
        (&["sessions", "list"], true),
        (&["sessions", "list", "--all", "--json"], true),
        (&["sessions", "show", id], true),
        (&["sessions", "show", id, "--json"], true),
        (&["sessions", "show", text], true),
        (&["sessions", "export", id], true),
        (&["sessions", "export", id, "--json"], true),
        (&["agents", "list"], true),
        (&["agents", "list", "--json"], true),
        (&["agents", "show", "bad"], true),
        (&["agents", "show", text], true),
        (&["agents", "explain", "bad"], false),
        (&["agents", "lint"], true),
        (&["permissions", "check", "rows.jsonl"], false),
        (&["permissions", "explain", "rows.jsonl"], true),
        (&["trust", "--list"], true),
        (&["trust", "--yes"], true),
        (&["trust", "--list"], true),
        (&["trust", "--revoke"], false),
        (&["worktrees", "list"], false),
        (&["worktrees", "list", "--all", "--json"], false),
        (&["merge", text], true),
        (&["mcp", "list"], true),
        (&["mcp", "get", text], true),
        (&["mcp", "add", text, "--", "x"], false),
        (&["plugin", "validate", "plug"], true),
        (&["plugin", "add", "plug", "--yes"], true),
        (&["plugin", "list"], false),
        (&["plugin", "enable", text], true),
        (&["config", "show"], false),
        (&["config", "show", "--json"], false),
        (&["doctor"], false),
        (&["doctor", "--json"], false),
        (&["tasks", "list", "--session", id], false),
        (&["tasks", "show", text], true),
        (&["ps"], false),
        (&["ps", "--json"], false),
        (&["attach", text], false),
        (&["trace", id, "-o", "-"], false),
        (&["--no-such-flag", text], false),
        (&["sessions", text], true),
    ];
    let mut wrong = Vec::new();
    for (arguments, shows) in all {
        let written = stage.terminal(arguments);
        let found = commands(&written);
        let shown = String::from_utf8_lossy(&written).into_owned();
        if !found.is_empty() || (*shows && !shown.contains("XX")) {
            wrong
                .push(format!("{arguments:?}: {found:?}, {:?}", shown.chars().take(400).collect::<String>()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn pipe_gets_the_answer_byte_for_byte() {
    let stage = Stage::new();
    let expected = format!("{} and {}\n", hostile(), hostile());
    let out = stage.home.path().join("out");
    let quoted = |path: &std::path::Path| format!("'{}'", path.to_str().unwrap());
    let line = format!("{} -p go > {}", quoted(std::path::Path::new(DECURION)), quoted(&out));
    let run = finished(stage.program(&[]).instead("sh").args(["-c", &line]));
    assert_eq!(run.ending.code(), 0, "{run:?}");
    assert_eq!(String::from_utf8(std::fs::read(out).unwrap()).unwrap(), expected);
}
