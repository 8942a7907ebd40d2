//! `decurion mcp` from outside: what is shown of a declaration, what approval needs, and our agents for others.

use decurion_testkit::proc::Finished;
use serde_json::{Value, json};

use crate::stand::{Stand, finished};

fn put(stand: &Stand, path: &str, text: &str) {
    let path = stand.home.work().join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn mcp(stand: &Stand, arguments: &[&str]) -> Finished {
    finished(stand.decurion().env("MINE", "hunter2").arg("mcp").args(arguments))
}

fn all(run: &Finished) -> String {
    format!("{}\n{}", run.lines.join("\n"), run.errors)
}

const DECLARED: &str = r#"{"mcpServers": {
    "db": {"command": "/nowhere/run", "args": ["--token", "${MINE}", "a\u001b[2Jb"], "cwd": "sub",
        "env": {"NODE_OPTIONS": "--require ./evil.js", "API_KEY": "literal-secret"}},
    "web": {"type": "http", "url": "http://localhost:9/mcp?key=${MINE}", "headers": {"Authorization": "Bearer ${MINE}", "X-Key": "literal-secret"}}
}}"#;

#[test]
fn what_is_declared_is_shown_as_written_without_secrets_and_approved_only_with_a_yes() {
    let stand = Stand::new("when\n  say \"done\"\n");
    put(&stand, ".mcp.json", DECLARED);
    assert!(stand.run(&["trust"]).ending.is_success());
    for arguments in
        [&["list"][..], &["list", "--json"], &["get", "db"], &["get", "db", "--json"], &["get", "web"]]
    {
        let run = mcp(&stand, arguments);
        let said = all(&run);
        assert!(run.ending.is_success(), "{said}");
        assert!(said.contains("${MINE}"), "{arguments:?}: {said}");
        for never in ["hunter2", "literal-secret", "\u{1b}"] {
            assert!(!said.contains(never), "{arguments:?}: {said}");
        }
    }
    let shown = all(&mcp(&stand, &["get", "db"]));
    for part in
        ["/nowhere/run", "cwd", "sub", "env NODE_OPTIONS", "--require ./evil.js", "env API_KEY", "[redacted]"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // Nobody can be asked: it is shown, and nothing is recorded.
    let refused = mcp(&stand, &["approve", "db"]);
    let said = all(&refused);
    assert_eq!(refused.ending.code(), 2, "{said}");
    assert!(said.contains("--require ./evil.js") && said.contains("add --yes"), "{said}");
    assert!(all(&mcp(&stand, &["get", "db"])).contains("waits for approval"));
    // Neither may somebody log in where nobody approved.
    let login = mcp(&stand, &["login", "web"]);
    assert!(all(&login).contains("waits for approval"), "{}", all(&login));
    let approved = mcp(&stand, &["approve", "db", "--yes"]);
    assert!(all(&approved).contains("approved as it is declared"), "{}", all(&approved));
    assert!(!all(&mcp(&stand, &["get", "db"])).contains("waits for approval"));
}

#[test]
fn another_program_gets_no_agent_that_rules_deny_and_no_more_turns() {
    let stand = Stand::new("when\n  call Read {\"file_path\": \"none\"}\n");
    put(&stand, ".claude/agents/helper.md", "---\nname: helper\ndescription: d\n---\nHelp.");
    put(&stand, ".claude/agents/short.md", "---\nname: short\ndescription: d\nmaxTurns: 2\n---\nHelp.");
    put(&stand, ".claude/settings.json", r#"{"permissions": {"deny": ["Agent(helper)"]}}"#);
    assert!(stand.run(&["trust"]).ending.is_success());
    let mut serving = stand.decurion().args(["mcp", "serve"]).start_talking().unwrap();
    let limit = std::time::Duration::from_mins(1);
    let mut call = |id: u64, input: Value| {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "Agent", "arguments": input}});
        serving.say(&request.to_string()).unwrap();
        serving.wait_for_line(limit, |line| line.contains("\"result\"")).expect("no answer")
    };
    let denied = call(1, json!({"description": "d", "prompt": "p", "subagent_type": "helper"}));
    assert!(denied.contains("Permission denied") && denied.contains("Agent(helper)"), "{denied}");
    assert_eq!(stand.model.requests().len(), 0);
    let ended =
        call(2, json!({"description": "d", "prompt": "p", "subagent_type": "short", "max_turns": 50}));
    assert!(ended.contains("\"isError\":true"), "{ended}");
    assert_eq!(stand.model.requests().len(), 2, "{ended}");
    serving.hang_up();
    serving.finish(limit).unwrap();
}
