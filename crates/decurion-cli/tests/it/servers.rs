//! `decurion mcp` from outside: what is shown of a declaration, what approval needs, and our agents for others.

use decurion_testkit::proc::Finished;
use expect_test::expect;
use serde_json::{Value, json};

use crate::stand::{Stand, finished, stream};

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
    assert!(stand.run(&["trust", "--yes"]).ending.is_success());
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
    assert!(said.contains("--require ./evil.js") && said.contains("pass --yes"), "{said}");
    assert!(all(&mcp(&stand, &["get", "db"])).contains("needs approval"));
    // Neither may somebody log in where nobody approved.
    let login = mcp(&stand, &["login", "web"]);
    assert!(all(&login).contains("needs approval"), "{}", all(&login));
    let approved = mcp(&stand, &["approve", "db", "--yes"]);
    assert!(all(&approved).contains("Approved as declared"), "{}", all(&approved));
    assert!(!all(&mcp(&stand, &["get", "db"])).contains("needs approval"));
}

#[test]
fn another_program_gets_no_agent_that_rules_deny_and_no_more_turns() {
    let stand = Stand::new("when\n  call Read {\"file_path\": \"none\"}\n");
    put(&stand, ".claude/agents/helper.md", "---\nname: helper\ndescription: d\n---\nHelp.");
    put(&stand, ".claude/agents/short.md", "---\nname: short\ndescription: d\nmaxTurns: 2\n---\nHelp.");
    put(&stand, ".claude/settings.json", r#"{"permissions": {"deny": ["Agent(helper)"]}}"#);
    assert!(stand.run(&["trust", "--yes"]).ending.is_success());
    let mut serving = stand.decurion().args(["mcp", "serve"]).start_talking().unwrap();
    let limit = std::time::Duration::from_mins(1);
    let mut ask = |id: u64, method: &str, params: Value| {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        serving.say(&request.to_string()).unwrap();
        serving.wait_for_line(limit, |line| line.contains("\"result\"")).expect("no answer")
    };
    let listed = ask(0, "tools/list", json!({}));
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let agent = listed["result"]["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == "Agent");
    let mut offered: Vec<&String> =
        agent.unwrap()["inputSchema"]["properties"].as_object().unwrap().keys().collect();
    offered.sort();
    assert_eq!(
        offered,
        ["description", "max_turns", "model", "prompt", "run_in_background", "subagent_type"]
    );
    assert!(!agent.unwrap()["description"].as_str().unwrap().contains("`resume`"));
    let mut call =
        |id: u64, input: Value| ask(id, "tools/call", json!({"name": "Agent", "arguments": input}));
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

/// A server with two prompts, in words of the shell.
const PROMPTS: &str = r#"while read -r line; do
id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
say() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
case $line in
*'"initialize"'*) say '{"protocolVersion":"2025-06-18","capabilities":{"prompts":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
*'"prompts/list"'*) say '{"prompts":[{"name":"simple-prompt","description":"Simply."},{"name":"args-prompt","arguments":[{"name":"city","required":true},{"name":"state"}]}]}' ;;
*'"prompts/get"'*Berlin*) say '{"messages":[{"role":"user","content":{"type":"text","text":"How is Berlin?"}}]}' ;;
*'"prompts/get"'*) say '{"messages":[{"role":"user","content":{"type":"text","text":"Be simple."}}]}' ;;
esac
done
"#;

#[test]
fn a_servers_prompts_are_commands_for_people_and_hosts() {
    let stand = Stand::new("when\n  say \"done\"\n");
    put(&stand, "server.sh", PROMPTS);
    let server = json!({"mcpServers": {"ev": {"command": "/bin/bash", "args": [stand.file("server.sh")]}}});
    std::fs::create_dir_all(stand.home.state()).unwrap();
    std::fs::write(stand.home.state().join("settings.json"), r#"{"mcp": {"startupWait": 60000}}"#).unwrap();
    let flags = ["--mcp-config".to_owned(), server.to_string()];
    let sent = |number: usize| String::from_utf8(stand.model.requests()[number].body.to_vec()).unwrap();
    for (typed, expected) in
        [("/mcp__ev__simple-prompt", "Be simple."), ("/mcp__ev__args-prompt Berlin", "How is Berlin?")]
    {
        let before = stand.model.requests().len();
        let run = finished(stand.decurion().args(&flags).args(["-p", typed]));
        assert_eq!(run.ending.code(), 0, "{run:?}");
        assert!(sent(before).contains(expected), "{}", sent(before));
    }
    let asked = stand.model.requests().len();
    let run = finished(stand.decurion().args(&flags).args(["-p", "/mcp__ev__args-prompt"]));
    assert_eq!(run.ending.code(), 1, "{run:?}");
    let why = "MCP server \"ev\", prompt \"args-prompt\": the argument \"city\" is missing";
    assert!(run.errors.contains(why), "{run:?}");
    assert_eq!(stand.model.requests().len(), asked);

    let lines = [
        r#"{"type":"control_request","request_id":"1","request":{"subtype":"initialize"}}"#,
        r#"{"type":"user","message":{"role":"user","content":"/mcp__ev__simple-prompt"}}"#,
    ];
    let hosted = ["--input-format", "stream-json", "--output-format", "stream-json"];
    let run = finished(stand.decurion().args(&flags).args(hosted).input(format!("{}\n", lines.join("\n"))));
    let lines = stream(&run);
    let hello = lines.iter().find(|line| line["type"] == "control_response").unwrap();
    assert_eq!(
        hello["response"]["response"]["commands"],
        json!([
            {"name": "compact", "description": "Shorten the conversation to a summary", "argumentHint": "[what to pay attention to]"},
            {"name": "mcp__ev__args-prompt", "description": "", "argumentHint": "<city> [state]"},
            {"name": "mcp__ev__simple-prompt", "description": "Simply.", "argumentHint": ""}
        ])
    );
    let init = lines.iter().find(|line| line["subtype"] == "init").unwrap();
    assert_eq!(init["slash_commands"], json!(["compact", "mcp__ev__args-prompt", "mcp__ev__simple-prompt"]));
}

#[test]
fn a_declaration_that_cannot_be_used_changes_nothing_and_a_variable_may_come_later() {
    let stand = Stand::new("when\n  say \"done\"\n");
    put(&stand, ".claude/settings.json", r#"{"permissions": {"allow": ["Bash(ls)"]}}"#);
    assert!(stand.run(&["trust", "--yes"]).ending.is_success());
    let trusted = || all(&stand.run(&["trust", "--list"]));
    let before = trusted();
    for scope in ["local", "project"] {
        let refused = mcp(&stand, &["add-json", "--scope", scope, "bad", r#"{"type": "carrier-pigeon"}"#]);
        assert_eq!(refused.ending.code(), 2, "{}", all(&refused));
        assert!(all(&refused).contains("cannot be used"), "{}", all(&refused));
    }
    assert!(!stand.home.work().join(".mcp.json").exists());
    assert_eq!(trusted(), before);
    let run = stand.run(&["-p", "go"]);
    assert!(!run.errors.contains("trust"), "{run:?}");

    let later = mcp(&stand, &["add", "-e", "TOKEN=${NOT_SET_YET}", "later", "--", "/bin/true"]);
    assert!(later.ending.is_success(), "{}", all(&later));
    assert!(later.errors.contains("warning") && later.errors.contains("NOT_SET_YET"), "{}", all(&later));
    let set = finished(stand.decurion().env("NOT_SET_YET", "t").args(["mcp", "get", "later"]));
    assert!(all(&set).contains("ready"), "{}", all(&set));
    let run = stand.run(&["-p", "go"]);
    assert!(!run.errors.contains("trust"), "{run:?}");
}

#[test]
fn a_server_that_does_not_start_is_said_beside_the_answer() {
    let stand = Stand::new("when\n  say \"done\"\n");
    for (command, why) in [("nosuchprog", "disabled: "), ("/bin/false", "failed to start")] {
        let servers = json!({"mcpServers": {"cfg": {"command": command}}}).to_string();
        let run = stand.run(&["--mcp-config", &servers, "-p", "go"]);
        assert_eq!((run.ending.code(), run.lines.as_slice()), (0, &["done".to_owned()][..]), "{run:?}");
        let told: Vec<&str> = run.errors.lines().filter(|line| line.contains("MCP server \"cfg\"")).collect();
        assert_eq!(told.len(), 1, "{run:?}");
        assert!(told[0].starts_with("decurion: ") && told[0].contains(why), "{run:?}");
    }
}

#[test]
fn a_server_of_a_projects_definition_is_listed_with_its_file_and_approved() {
    let stand = Stand::new("when\n  say \"done\"\n");
    let helper = "---\nname: helper\ndescription: d\nmcpServers:\n  - db: {command: /bin/true}\n---\nHelp.";
    put(&stand, ".claude/agents/helper.md", helper);
    assert!(stand.run(&["trust", "--yes"]).ending.is_success());
    let listed = all(&mcp(&stand, &["list"]));
    for part in ["stdio /bin/true", "agent:helper:db", "helper.md", "needs approval"] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    let approved = mcp(&stand, &["approve", "db", "--yes"]);
    assert!(all(&approved).contains("Approved as declared"), "{}", all(&approved));
    assert!(all(&mcp(&stand, &["list"])).contains("ready"));
    put(&stand, ".claude/agents/helper.md", &helper.replace("/bin/true", "/bin/false"));
    assert!(stand.run(&["trust", "--yes"]).ending.is_success());
    assert!(all(&mcp(&stand, &["list"])).contains("changed since it was approved"));
}

#[test]
fn a_folder_is_trusted_only_by_someone_who_saw_what_it_runs() {
    let stand = Stand::new("when\n  say \"done\"\n");
    put(
        &stand,
        ".claude/settings.json",
        r#"{"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "./check\u001b[2J.sh --fast"}]}]},
            "permissions": {"allow": ["Bash(curl:*)"]}, "env": {"NODE_OPTIONS": "--require ./evil.js", "MY_TOKEN": "literal-secret"}}"#,
    );
    put(&stand, ".mcp.json", DECLARED);
    put(
        &stand,
        ".claude/agents/a.md",
        "---\nname: a\ndescription: d\npermissionMode: acceptEdits\nmcpServers:\n  own:\n    command: /nowhere/own\n---\nHelp.",
    );
    put(
        &stand,
        ".claude/skills/s/SKILL.md",
        "---\ndescription: d\nallowed-tools: Bash(rm:*)\nhooks:\n  Stop:\n    - hooks:\n        - type: command\n          command: ./bye.sh\n---\nText.",
    );
    let listed = stand.run(&["trust", "--list"]);
    let work = stand.home.work().canonicalize().unwrap();
    let shown = listed.lines.join("\n").replace(work.to_str().unwrap(), "WORK");
    assert!(listed.ending.is_success(), "{}", all(&listed));
    expect![[r#"
        servers  mcpServers.db  (WORK/.mcp.json:2:11)
          command       /nowhere/run
          args          ["--token","${MINE}","a\u001b[2Jb"]
          cwd           sub
          env NODE_OPTIONS --require ./evil.js
          env API_KEY   [redacted]
        servers  mcpServers.web  (WORK/.mcp.json:4:12)
          url           http://localhost:9/mcp?key=${MINE}
          header Authorization Bearer ${MINE}
          header X-Key  [redacted]
        hooks  hooks.PreToolUse  (WORK/.claude/settings.json:1:26)
          matcher       Bash
          type          command
          command       ./check\u{1b}[2J.sh --fast
        allow rules  permissions.allow[0]  (WORK/.claude/settings.json:2:39)
          allow         Bash(curl:*)
        variables  env.NODE_OPTIONS  (WORK/.claude/settings.json:2:81)
          NODE_OPTIONS  --require ./evil.js
        variables  env.MY_TOKEN  (WORK/.claude/settings.json:2:116)
          MY_TOKEN      [redacted]
        permission mode  permissionMode  (WORK/.claude/agents/a.md:4:1)
          permissionMode acceptEdits
        servers  mcpServers  (WORK/.claude/agents/a.md:5:1)
          server        own
          command       /nowhere/own
        allow rules  allowed-tools  (WORK/.claude/skills/s/SKILL.md:3:1)
          allowed-tools Bash(rm:*)
        hooks  hooks  (WORK/.claude/skills/s/SKILL.md:4:1)
          at            Stop
          type          command
          command       ./bye.sh
        WORK: not trusted"#]]
    .assert_eq(&shown);
    // Nobody can be asked: it is shown all the same, and nothing is recorded.
    let refused = stand.run(&["trust"]);
    assert_eq!(refused.ending.code(), 2, "{}", all(&refused));
    assert!(all(&refused).contains("./bye.sh") && all(&refused).contains("pass --yes"), "{}", all(&refused));
    assert!(all(&stand.run(&["trust", "--list"])).contains(": not trusted"));
    assert!(stand.run(&["trust", "--yes"]).ending.is_success());
    assert!(all(&stand.run(&["trust", "--list"])).contains(": trusted"));
    put(&stand, ".claude/settings.json", r#"{"permissions": {"allow": ["Bash"]}}"#);
    assert!(all(&stand.run(&["trust", "--list"])).contains("has changed since"));
}

/// A server with one tool that answers questions about calls, in words of the shell.
const GUARD: &str = r#"while read -r line; do
id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
say() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
text() { say "{\"content\":[{\"type\":\"text\",\"text\":\"$1\"}]}"; }
case $line in
*'"initialize"'*) say '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
*'"tools/list"'*) say '{"tools":[{"name":"may","inputSchema":{"type":"object"}}]}' ;;
*'"tools/call"'*good*) text '{\"behavior\":\"allow\"}' ;;
*'"tools/call"'*other*) text '{\"behavior\":\"allow\",\"updatedInput\":{\"command\":\"touch changed\"}}' ;;
*'"tools/call"'*mad*) text 'what?' ;;
*'"tools/call"'*) text '{\"behavior\":\"deny\",\"message\":\"not that\"}' ;;
esac
done
"#;

#[test]
fn a_servers_tool_answers_in_a_persons_place() {
    let stand = Stand::new(
        r#"
when turn=1
  call Bash as c1 {"command": "touch good", "description": "d"}
  call Bash as c2 {"command": "touch other", "description": "d"}
  call Bash as c3 {"command": "touch mad", "description": "d"}
  call Bash as c4 {"command": "touch bad", "description": "d"}
when
  say "done"
"#,
    );
    put(&stand, "server.sh", GUARD);
    let server = json!({"mcpServers": {"g": {"command": "/bin/bash", "args": [stand.file("server.sh")]}}});
    let run = |tool: &str| {
        let flags = ["-p", "go", "--output-format", "stream-json", "--mcp-config"];
        finished(stand.decurion().args(flags).args([&server.to_string(), "--permission-prompt-tool", tool]))
    };
    let results = |run: &Finished| -> Vec<String> {
        let results = stream(run).into_iter().filter(|line| line["type"] == "user");
        results.map(|line| line["message"]["content"][0]["content"].to_string()).collect()
    };
    let asked = run("mcp__g__may");
    let there = |name: &str| stand.home.work().join(name).exists();
    assert_eq!(["good", "other", "changed", "mad", "bad"].map(there), [true, false, true, false, false]);
    let told = results(&asked).join("\n");
    let unclear = "mcp__g__may, which answers in this session, could not be asked: it answered something else \
                   than a JSON object with `behavior`";
    assert!(told.contains("not that") && told.contains(unclear), "{told}");
    let missing = results(&run("mcp__g__can")).join("\n");
    assert!(missing.contains("MCP server \\\"g\\\" offers no such tool"), "{missing}");
    let nobody = results(&run("mcp__h__can")).join("\n");
    assert!(nobody.contains("no MCP server has this prompt"), "{nobody}");
}
