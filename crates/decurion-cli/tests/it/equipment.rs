//! What agents carry, through the real program: skills and commands, plugins, memory, instruction files and what
//! git says, from files in a home and a project.

use decurion_testkit::proc::{Finished, Home};
use expect_test::expect;
use serde_json::{Value, json};

use crate::stand::{DECURION, Stand, finished, stream};

/// A home with these files; `home/…` and `work/…` say where.
fn home(files: &[(&str, &str)]) -> Home {
    let home = Home::new().unwrap();
    for (path, text) in files {
        put(&home, path, text);
    }
    home
}

fn put(home: &Home, path: &str, text: &str) {
    let (folder, path) = path.split_once('/').unwrap();
    let path = if folder == "home" { home.home() } else { home.work() }.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn short(home: &Home, text: &str) -> String {
    let work = std::fs::canonicalize(home.work()).unwrap();
    let own = std::fs::canonicalize(home.home()).unwrap();
    let state = home.state();
    let text = text.replace(work.to_str().unwrap(), "WORK").replace(own.to_str().unwrap(), "HOME");
    text.replace(state.to_str().unwrap(), "STATE")
}

/// The texts of the user's side of a request.
fn texts(request: &Value) -> String {
    let messages = request["messages"].as_array().cloned().unwrap_or_default();
    let blocks = messages
        .iter()
        .filter(|message| message["role"] == "user")
        .flat_map(|message| message["content"].as_array().cloned().unwrap_or_default());
    blocks.filter_map(|block| block["text"].as_str().map(str::to_owned)).collect::<Vec<_>>().join("\n---\n")
}

fn request(stand: &Stand, index: usize) -> Value {
    serde_json::from_slice(&stand.model.requests()[index].body).unwrap()
}

const PLUGIN: &[(&str, &str)] = &[
    ("work/p/.claude-plugin/plugin.json", r#"{"name": "p", "version": "1.0"}"#),
    ("work/p/agents/helper.md", "---\ndescription: helps\n---\nHelp from ${CLAUDE_PLUGIN_ROOT}."),
    ("work/p/commands/greet.md", "Say hello to $ARGUMENTS from ${CLAUDE_PLUGIN_ROOT}."),
    (
        "work/p/hooks/hooks.json",
        r#"{"hooks": {"UserPromptSubmit": [{"hooks": [{"command": "touch ${CLAUDE_PLUGIN_ROOT}/ran"}]}]}}"#,
    ),
];

#[test]
fn a_plugin_for_one_run_brings_its_commands_agents_and_hooks() {
    let home = home(PLUGIN);
    put(&home, "home/.claude/skills/review/SKILL.md", "---\nname: review\ndescription: reviews\n---\nLook.");
    put(&home, "work/.claude/commands/git/push.md", "Push.");
    let stand = Stand::in_home(home, "when\n  say \"done\"\n");
    let flags = ["-p", "--output-format", "stream-json", "--verbose", "--plugin-dir", "p", "/p:greet Ada"];
    let run = stand.run(&flags);
    let init = &stream(&run)[0];
    assert_eq!(init["slash_commands"], json!(["git:push", "p:greet", "review", "compact"]), "{run:?}");
    assert_eq!(init["skills"], json!(["review"]));
    let plugins: String = short(&stand.home, &init["plugins"].to_string());
    assert_eq!(plugins, r#"[{"name":"p","path":"WORK/p","source":"p@inline","version":"1.0"}]"#);
    assert!(init["agents"].as_array().unwrap().contains(&json!("p:helper")), "{init}");
    let sent = short(&stand.home, &texts(&request(&stand, 0)));
    assert!(sent.ends_with("<command-args>Ada</command-args>\n---\nSay hello to Ada from WORK/p."), "{sent}");
    assert!(stand.home.work().join("p/ran").exists(), "its hook ran");
}

#[test]
fn a_plugin_is_added_checked_switched_and_forgotten() {
    let home = home(PLUGIN);
    let plugin = |arguments: &[&str]| -> Finished {
        finished(home.program(DECURION).args(["plugin"]).args(arguments.iter().copied()))
    };
    let mut told = String::new();
    let mut tell = |arguments: &[&str]| {
        let run = plugin(arguments);
        let lines: String = run.lines.iter().map(|line| format!("{line}\n")).collect();
        told += &short(
            &home,
            &format!("$ {}\n{lines}{}= {}\n", arguments.join(" "), run.errors, run.ending.code()),
        );
    };
    tell(&["list"]);
    tell(&["validate", "p"]);
    // Where nobody can be asked, it takes a word.
    tell(&["add", "p"]);
    tell(&["add", "--yes", "p"]);
    put(&home, "work/p/.mcp.json", r#"{"mcpServers": {"db": {"command": "run"}}}"#);
    tell(&["list"]);
    tell(&["enable", "--yes", "p"]);
    tell(&["disable", "p"]);
    tell(&["list", "--json"]);
    tell(&["remove", "p"]);
    tell(&["enable", "p"]);
    put(&home, "work/p/.claude-plugin/plugin.json", r#"{"name": "p", "agents": "../x"}"#);
    tell(&["validate", "p"]);
    tell(&["add", "p"]);
    expect![[r#"
        $ list
        No plugins. Add one with `decurion plugin add PATH`.
        = 0
        $ validate p
        p: can be used
        = 0
        $ add p
        p
          runs at UserPromptSubmit: touch WORK/p/ran
        decurion: confirmation required
          check what is printed above, then run this in a terminal or pass --yes
        = 2
        $ add --yes p
        p
          runs at UserPromptSubmit: touch WORK/p/ran
        p: added from WORK/p, enabled
        = 0
        $ list
        NAME  VERSION  STATE    FOLDER
        p     1.0      changed  WORK/p
        decurion: plugin p is off, because what it runs is not what it was when it was enabled; look at it, then `decurion plugin enable p`: WORK/p
        = 0
        $ enable --yes p
        p
          runs at UserPromptSubmit: touch WORK/p/ran
          starts the server plugin:p:db: run
        p: enabled as it is now in WORK/p
        = 0
        $ disable p
        p: disabled
        = 0
        $ list --json
        {"name":"p","version":"1.0","description":null,"path":"WORK/p","source":"p@local","state":"off","hooks":1,"mcp_servers":["plugin:p:db"]}
        = 0
        $ remove p
        p: removed; its folder is still there
        = 0
        $ enable p
        decurion: no plugin of this name was added: p
          `decurion plugin list` shows those that were added
        = 2
        $ validate p
        WORK/p/.claude-plugin/plugin.json:1: error: leads out of the plugin's folder: ../x
        = 1
        $ add p
        decurion: not a usable plugin: WORK/p/.claude-plugin/plugin.json:1: error: leads out of the plugin's folder: ../x
          `decurion plugin validate PATH` shows all that is wrong
        = 2
    "#]].assert_eq(&told);
}

#[test]
fn an_agent_writes_its_memory_and_reads_it_the_next_time() {
    let home = home(&[(
        "home/.claude/agents/keeper.md",
        "---\nname: keeper\ndescription: keeps\ntools: Grep\nmemory: project\n---\nKeep.",
    )]);
    let memory = std::fs::canonicalize(home.work()).unwrap().join(".decurion/agent-memory/keeper");
    let script = format!(
        "when agent=keeper turn=1\n  call Write {{\"file_path\": \"{}/MEMORY.md\", \"content\": \"- it is blue\"}}\n\
         when agent=keeper\n  say \"kept\"\n\
         when turn=1\n  call Agent {{\"description\": \"d\", \"prompt\": \"look\", \"subagent_type\": \"keeper\"}}\n\
         when turn=2\n  call Agent {{\"description\": \"d\", \"prompt\": \"again\", \"subagent_type\": \"keeper\"}}\n\
         when\n  say \"done\"\n",
        memory.display()
    );
    let stand = Stand::in_home(home, &script);
    let run = stand.run(&["-p", "go"]);
    assert_eq!(run.ending.code(), 0, "{run:?}");
    assert_eq!(std::fs::read_to_string(memory.join("MEMORY.md")).unwrap(), "- it is blue");
    let systems: Vec<String> = (0..stand.model.requests().len())
        .map(|index| request(&stand, index))
        .filter(|request| texts(request).ends_with("look") || texts(request).ends_with("again"))
        .map(|request| request["system"].to_string())
        .collect();
    assert!(systems[0].contains("It is empty so far."), "{systems:?}");
    assert!(systems.iter().any(|system| system.contains("- it is blue")), "{systems:?}");
}

#[test]
fn instructions_of_a_folder_and_what_git_says_are_told() {
    let home = home(&[
        ("work/AGENTS.md", "For all. @docs/more.md @../secret.md"),
        ("work/docs/more.md", "More for all."),
        ("work/deep/CLAUDE.md", "For the deep."),
        ("work/deep/file.txt", "x"),
    ]);
    std::fs::write(home.work().join("../secret.md"), "secret").unwrap();
    for arguments in [&["init", "-q", "-b", "trunk"][..], &["add", "AGENTS.md"]] {
        assert_eq!(finished(home.program("git").args(arguments.iter().copied())).ending.code(), 0);
    }
    let file = home.work().join("deep/file.txt");
    let script =
        format!("when turn=1\n  call Read {{\"file_path\": \"{}\"}}\nwhen\n  say \"done\"\n", file.display());
    let stand = Stand::in_home(home, &script);
    let run = stand.run(&["-p", "go"]);
    assert_eq!(run.ending.code(), 0, "{run:?}");
    let first = short(&stand.home, &texts(&request(&stand, 0)));
    assert!(first.contains("Branch: No commits yet on trunk\nChanged:\nA  AGENTS.md\n"), "{first}");
    assert!(first.contains("More for all.") && !first.contains("secret\n"), "{first}");
    assert!(run.errors.contains("outside of the project"), "{run:?}");
    let second = short(&stand.home, &texts(&request(&stand, 1)));
    assert!(
        second.ends_with("<instructions file=\"WORK/deep/CLAUDE.md\">\nFor the deep.\n</instructions>"),
        "{second}"
    );
}

#[test]
fn explain_shows_what_an_agent_carries() {
    let home = home(&[
        (
            "home/.claude/agents/a.md",
            "---\nname: a\ndescription: d\ntools: Bash\nskills: [s, gone]\nmemory: user\nisolation: worktree\nmcpServers: [github, {own: {command: x}}]\noutput_schema: {type: object}\n---\nx",
        ),
        ("home/.claude/skills/s/SKILL.md", "---\nname: s\ndescription: d\n---\nx"),
        ("home/.claude/commands/empty.md", "---\ndescription: d\n---\n"),
    ]);
    let run = finished(home.program(DECURION).args(["agents", "explain", "a"]));
    let carried: Vec<String> = run
        .lines
        .iter()
        .filter(|line| {
            ["tools", "skill", "memory", "server", "isolation", "report"]
                .contains(&line.split_whitespace().next().unwrap_or(""))
        })
        .map(|line| short(&home, line.trim()))
        .collect();
    expect![[r"
        tools        Bash, Edit, Read, Write
        skill        s – HOME/.claude/skills/s/SKILL.md
        skill        gone – there is no such skill
        memory       user – STATE/agent-memory/a
        server       github
        server       own
        isolation    worktree
        report       JSON by `output_schema`"]]
    .assert_eq(&carried.join("\n"));
    let lint = finished(home.program(DECURION).args(["agents", "lint"]));
    expect![[r"
        HOME/.claude/agents/a.md:5: warning: `skills`: no such skill: gone
        HOME/.claude/agents/a.md:8: warning: `mcpServers`: no server is declared under this name: github
        HOME/.claude/commands/empty.md: error: no text below the head, so there is nothing to do"]]
    .assert_eq(&short(&home, &lint.lines.join("\n")));
}

#[test]
fn the_sessions_own_agent_has_its_memory_and_a_host_is_told_of_commands() {
    let home = home(&[
        ("home/.claude/agents/a.md", "---\nname: a\ndescription: d\nmemory: project\n---\nBe a."),
        ("work/.claude/commands/look.md", "---\ndescription: looks\nargument-hint: [file]\n---\nLook at $0."),
    ]);
    let memory = std::fs::canonicalize(home.work()).unwrap().join(".decurion/agent-memory/a/MEMORY.md");
    let script = format!(
        "when turn=1\n  call Write {{\"file_path\": \"{}\", \"content\": \"kept\"}}\nwhen\n  say \"done\"\n",
        memory.display()
    );
    let stand = Stand::in_home(home, &script);
    let lines = [
        r#"{"type":"control_request","request_id":"1","request":{"subtype":"initialize"}}"#,
        r#"{"type":"user","message":{"role":"user","content":"/look a.rs"}}"#,
    ];
    let flags = ["--input-format", "stream-json", "--output-format", "stream-json", "--agent", "a"];
    let run = finished(stand.decurion().args(flags).input(format!("{}\n", lines.join("\n"))));
    let hello = stream(&run).into_iter().find(|line| line["type"] == "control_response").unwrap();
    assert_eq!(
        hello["response"]["response"]["commands"][1],
        json!({"name": "look", "description": "looks", "argumentHint": "[file]"}),
        "{run:?}"
    );
    assert!(texts(&request(&stand, 0)).ends_with("Look at a.rs."));
    assert!(request(&stand, 0)["system"].to_string().contains("agent-memory/a"));
    assert_eq!(std::fs::read_to_string(memory).unwrap(), "kept", "{run:?}");
}

#[test]
fn a_commands_model_is_for_its_own_turn() {
    let home = home(&[
        ("home/.claude/commands/quick.md", "---\ndescription: d\nmodel: other\n---\nBe quick."),
        ("home/.claude/agents/a.md", "---\nname: a\ndescription: d\nskills: [s]\n---\nBe a."),
        ("home/.claude/skills/s/SKILL.md", "---\nname: s\ndescription: d\n---\nMind it."),
    ]);
    let stand = Stand::in_home(home, "when\n  say \"done\"\n");
    let user = |text: &str| json!({"type": "user", "message": {"role": "user", "content": text}}).to_string();
    let flags = ["--input-format", "stream-json", "--output-format", "stream-json", "--agent", "a"];
    let lines = [user("first"), user("/quick"), user("second")];
    let run = finished(stand.decurion().args(flags).input(format!("{}\n", lines.join("\n"))));
    let models = |from: usize| -> Vec<String> {
        let requests = stand.model.requests();
        let model = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["model"].to_string();
        requests[from..].iter().map(|request| model(&request.body)).collect()
    };
    let asked = models(0);
    assert_eq!(asked.len(), 3, "{run:?}");
    assert!(asked[0] == asked[2] && asked[1] == "\"other\"", "{asked:?}");
    // What stands before the conversation is the session's again.
    let head = |index| json!([request(&stand, index)["system"], request(&stand, index)["tools"]]);
    assert_eq!(head(0), head(2));
    assert!(texts(&request(&stand, 2)).matches("Mind it.").count() == 1, "{}", texts(&request(&stand, 2)));
    // Nor is it what a later process goes on with.
    for prompt in ["/quick", "third"] {
        finished(stand.decurion().args(["-p", prompt, "--continue"]));
    }
    assert_eq!(models(3), ["\"other\"".to_owned(), asked[0].clone()]);
}
