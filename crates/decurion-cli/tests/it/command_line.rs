//! The commands around a session: what they list, set, create and remove, in words for people.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use decurion_testkit::pty::Pty;
use decurion_testkit::repo::Repo;
use serde_json::{Value, json};

use crate::stand::{LIMIT, Stand, finished, without_times};
use crate::talk::{LED, initialize, next};

const ID: &str = "11111111-2222-4333-8444-555555555555";
const SAYS: &str = "when\n  say \"done\"\n";

fn put(stand: &Stand, file: &str, text: &str) {
    let path = stand.home.work().join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn settings(stand: &Stand, text: &str) {
    fs::write(stand.home.state().join("settings.json"), text).unwrap();
}

/// Everything that a command writes to a terminal.
fn at_a_terminal(stand: &Stand, arguments: &[&str], no_color: bool) -> String {
    let program = stand.decurion().args(arguments);
    let program = if no_color { program.env("NO_COLOR", "1") } else { program };
    let mut pty = Pty::start(&program, (200, 50)).unwrap();
    pty.keep_silent();
    assert!(pty.end(LIMIT).unwrap().is_some(), "{arguments:?} hangs: {}", pty.screen());
    String::from_utf8_lossy(pty.written()).into_owned()
}

#[test]
fn doctor_and_config_show_work_with_broken_settings_and_list_every_problem() {
    let stand = Stand::new(SAYS);
    let own = stand.home.state().join("settings.json");
    settings(
        &stand,
        "{\n  \"compaction\": {\"threshold\": 5},\n  \"theme\": \"drak\",\n  \"model\": \"mine\"\n}",
    );
    put(&stand, ".decurion/settings.json", "{\"permissions\": {\"deny\": \"x\"}}");
    let project = stand.home.work().canonicalize().unwrap().join(".decurion/settings.json");
    let problems = [
        format!("{}:2:31: compaction.threshold: expected a number from 0.1 to 0.99, found 5", own.display()),
        format!("{}:3:12: theme: expected one of auto, dark", own.display()),
        format!("{}:1:26: permissions.deny: expected an array of rules, found \"x\"", project.display()),
    ];
    let doctor = stand.run(&["doctor"]);
    assert_eq!(doctor.ending.code(), 2, "{doctor:?}");
    for problem in &problems {
        let line = doctor.lines.iter().find(|line| line.contains(problem.as_str()));
        assert!(line.is_some_and(|line| line.starts_with("✗ Settings")), "{problem}: {doctor:?}");
    }
    assert!(doctor.output().contains("(did you mean \"dark\"?)"), "{doctor:?}");
    assert!(doctor.output().contains("No session starts until this is corrected."), "{doctor:?}");
    assert!(doctor.lines.iter().any(|line| line.starts_with("✓ Sandbox")), "{doctor:?}");
    let facts: Value = serde_json::from_str(&stand.run(&["doctor", "--json"]).output()).unwrap();
    let listed = facts["settings_problems"].as_array().unwrap();
    assert_eq!(listed.len(), 3, "{facts}");
    assert_eq!((&listed[0]["line"], &listed[0]["column"]), (&json!(2), &json!(31)), "{facts}");
    assert_eq!((&listed[1]["key"], &listed[1]["file"]), (&json!("theme"), &json!(own.to_str().unwrap())));
    let shown = stand.run(&["config", "show", "--origin"]);
    assert_eq!(shown.ending.code(), 2, "{shown:?}");
    for problem in &problems {
        assert!(shown.errors.contains(problem), "{problem}: {shown:?}");
    }
    assert!(shown.output().contains("model = \"mine\"  (user: "), "{shown:?}");
    // A session does not start, and says the same.
    let run = stand.run(&["-p", "hi"]);
    assert_eq!(run.ending.code(), 2, "{run:?}");
    for problem in &problems {
        assert!(run.errors.contains(problem), "{problem}: {run:?}");
    }
    assert!(stand.model.requests().is_empty());
}

#[test]
fn config_set_changes_one_value_and_keeps_the_rest() {
    let stand = Stand::new(SAYS);
    let file = stand.home.state().join("settings.json");
    settings(&stand, "{\n  // mine\n  \"model\": \"one\", // the best\n  \"theme\": \"drak\"\n}\n");
    for (arguments, code) in [
        (&["model", "two"][..], 0),
        // Also what is broken is mended.
        (&["theme", "dark"], 0),
        (&["agents.maxDepth", "3"], 0),
        (&["permissions.deny", "[\"Read(.env)\"]", "--scope", "project"], 0),
        (&["agents.maxDepth", "99"], 2),
        (&["modle", "x"], 2),
        (&["theme", "dark", "--scope", "project"], 2),
        (&["providers.x.apiKey", "sk-any"], 2),
    ] {
        let run = stand.run(&[&["config", "set"], arguments].concat());
        assert_eq!(run.ending.code(), code, "{arguments:?}: {run:?}");
    }
    let text = fs::read_to_string(&file).unwrap();
    let expected = "{\n  // mine\n  \"model\": \"two\", // the best\n  \"theme\": \"dark\",\n  \"agents\": {\n    \"maxDepth\": 3\n  }\n}\n";
    assert_eq!(text, expected);
    let project = fs::read_to_string(stand.home.work().join(".decurion/settings.json")).unwrap();
    assert!(project.contains("\"deny\": [\"Read(.env)\"]"), "{project}");
    let wrong = stand.run(&["config", "set", "modle", "x"]);
    assert!(wrong.errors.contains("unknown key: modle (did you mean model?)"), "{wrong:?}");
    fs::remove_file(&file).unwrap();
    assert!(stand.run(&["config", "set", "model", "two"]).ending.is_success());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(stand.run(&["config", "show"]).output().contains("model = \"two\""));
}

#[test]
fn config_set_unset_and_show_take_a_key_in_either_spelling() {
    let stand = Stand::new(SAYS);
    let file = stand.home.state().join("settings.json");
    let run = |arguments: &[&str]| stand.run(&[&["config"], arguments].concat());
    settings(&stand, "{\n  // mine\n  \"agents\": {\"max_depth\": 2}, // few\n  \"theme\": \"dark\"\n}\n");
    assert!(run(&["set", "agents.maxDepth", "3"]).ending.is_success());
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text, "{\n  // mine\n  \"agents\": {\"max_depth\": 3}, // few\n  \"theme\": \"dark\"\n}\n");
    for (arguments, code, shows) in [
        (&["show", "agents.max_depth"][..], 0, "agents.maxDepth = 3"),
        (&["show", "model"], 1, "decurion: model: not set"),
        (&["show", "modle"], 2, "decurion: unknown key: modle (did you mean model?)"),
        (&["unset", "theme"], 0, "theme: removed from"),
        (&["unset", "theme"], 1, "decurion: theme: not set in"),
    ] {
        let run = run(arguments);
        assert_eq!(run.ending.code(), code, "{arguments:?}: {run:?}");
        let shown = format!("{}{}", run.output(), run.errors);
        assert!(shown.starts_with(shows), "{arguments:?}: {run:?}");
    }
    let shown = run(&["show", "agents", "--origin"]);
    let own = |line: &&String| {
        line.starts_with("agents.maxDepth = 3  (user: ") && line.ends_with("settings.json:3:27)")
    };
    assert!(shown.lines.iter().filter(own).count() == 1, "{shown:?}");
    assert!(shown.lines.iter().all(|line| line.starts_with("agents.")), "{shown:?}");
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text, "{\n  // mine\n  \"agents\": {\"max_depth\": 3}, // few\n}\n");
    // What still holds is named.
    put(&stand, ".decurion/settings.local.json", "{\"agents\": {\"maxDepth\": 1}}");
    assert!(stand.run(&["trust", "--yes"]).ending.is_success());
    let unset = run(&["unset", "agents.maxDepth"]);
    assert!(unset.errors.contains("agents.maxDepth is still set in"), "{unset:?}");
}

#[test]
fn a_misspelt_command_is_no_prompt() {
    let stand = Stand::new(SAYS);
    for (arguments, meant) in [
        (&["doctr"][..], "unknown command \"doctr\" (did you mean \"doctor\"?)"),
        (&["sesions", "list"], "unknown command \"sesions\" (did you mean \"sessions\"?)"),
        (&["hello"], "not a terminal"),
        (&["two", "words"], "unexpected argument \"words\""),
    ] {
        let run = stand.run(arguments);
        assert_eq!(run.ending.code(), 2, "{arguments:?}: {run:?}");
        assert!(run.errors.contains(meant), "{arguments:?}: {run:?}");
    }
    assert_eq!(stand.model.requests().len(), 0);
}

#[test]
fn agents_create_writes_a_definition_that_works() {
    let stand = Stand::new(SAYS);
    let created = stand.run(&["agents", "create", "reviewer"]);
    assert!(created.ending.is_success(), "{created:?}");
    let file = stand.home.work().join(".decurion/agents/reviewer.md");
    assert!(fs::read_to_string(&file).unwrap().contains("# maxTurns: 20"));
    let lint = stand.run(&["agents", "lint"]);
    assert_eq!((lint.ending.code(), lint.output().contains("No problems")), (0, true), "{lint:?}");
    let listed = stand.run(&["agents", "list"]);
    assert!(listed.lines[0].starts_with("NAME "), "{listed:?}");
    assert!(listed.lines.iter().any(|line| line.starts_with("reviewer ")), "{listed:?}");
    let again = stand.run(&["agents", "create", "reviewer"]);
    assert_eq!((again.ending.code(), again.errors.contains("exists already")), (2, true), "{again:?}");
    assert_eq!(stand.run(&["agents", "create", "../x"]).ending.code(), 2);
    assert!(stand.run(&["agents", "create", "mine", "--scope", "user"]).ending.is_success());
    assert!(stand.home.state().join("agents/mine.md").exists());
    // With every comment taken away the file is right too.
    let text = fs::read_to_string(&file).unwrap();
    let head: Vec<String> = text
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.split(' ').next().unwrap().ends_with(':') => rest.to_owned(),
            _ => line.to_owned(),
        })
        .collect();
    fs::write(&file, head.join("\n")).unwrap();
    let lint = stand.run(&["agents", "lint"]);
    assert_eq!((lint.ending.code(), lint.output().contains("No problems")), (0, true), "{lint:?}");
}

#[test]
fn shells_and_man_are_told_of_every_command() {
    let stand = Stand::new(SAYS);
    for (shell, part) in
        [("bash", "complete -F"), ("zsh", "#compdef decurion"), ("fish", "complete -c decurion")]
    {
        let script = stand.run(&["completions", shell]);
        assert!(script.ending.is_success() && script.output().contains(part), "{shell}: {script:?}");
        assert!(script.output().contains("worktrees"), "{shell}");
        assert!(!script.output().contains("kept-by"), "{shell}: a hidden flag is offered");
    }
    let page = stand.run(&["man"]);
    assert!(page.output().contains(".TH decurion 1") && page.output().contains("worktrees"), "{page:?}");
    let pages = stand.file("pages");
    assert!(stand.run(&["man", "--dir", &pages]).ending.is_success());
    for name in ["decurion.1", "decurion-sessions.1", "decurion-sessions-rm.1"] {
        assert!(fs::metadata(format!("{pages}/{name}")).is_ok(), "{name}");
    }
}

#[test]
fn sessions_rm_asks_removes_everything_and_refuses_a_running_one() {
    let stand = Stand::new(SAYS);
    assert!(stand.run(&["-p", "apples", "--session-id", ID]).ending.is_success());
    let files = || stand.written().into_iter().filter(|file| file.to_str().unwrap().contains(ID)).count();
    let before = files();
    assert!(before > 1);
    let asked = stand.run(&["sessions", "rm", &ID[..4]]);
    assert_eq!(asked.ending.code(), 2, "{asked:?}");
    assert!(asked.errors.contains("confirmation required") && asked.errors.contains("--yes"), "{asked:?}");
    assert_eq!(files(), before);
    let mut live = stand.decurion().args(LED).args(["--resume", ID]).start_talking().unwrap();
    live.say(&initialize("one", json!({}))).unwrap();
    next(&mut live, |line| line["type"] == "control_response");
    let refused = stand.run(&["sessions", "rm", ID, "--yes"]);
    assert_eq!(refused.ending.code(), 2, "{refused:?}");
    assert!(refused.errors.contains("is running"), "{refused:?}");
    live.finish(LIMIT).unwrap();
    assert!(files() >= before);
    let removed = stand.run(&["sessions", "rm", &ID[..4], "--yes"]);
    assert!(removed.ending.is_success(), "{removed:?}");
    assert_eq!(
        (files(), stand.run(&["sessions", "list"]).output().as_str()),
        (0, "No sessions in this folder (--all lists those of every folder).")
    );
}

#[test]
fn sessions_rm_names_the_worktrees_that_stay() {
    let stand =
        Stand::new("when turn=1\n  call Bash {\"command\": \"echo x > new.txt\"}\nwhen\n  say \"done\"\n");
    let git = |arguments: &[&str]| Repo::git_at(&stand.home.work(), arguments).unwrap();
    git(&["init", "--quiet", "--initial-branch=main"]);
    git(&["commit", "--quiet", "--allow-empty", "--message", "first"]);
    let run =
        stand.run(&["-p", "--worktree=mine", "--session-id", ID, "--dangerously-skip-permissions", "go"]);
    assert!(run.ending.is_success(), "{run:?}");
    let removed = stand.run(&["sessions", "rm", ID, "--yes"]);
    assert!(removed.ending.is_success(), "{removed:?}");
    assert!(removed.errors.contains("its worktree mine stays"), "{removed:?}");
    let listed = stand.run(&["worktrees", "list"]);
    assert!(listed.output().contains("mine"), "{listed:?}");
    assert!(git(&["branch", "--list", "decurion/mine"]).contains("decurion/mine"));
}

/// The rows bring neither rules nor a folder.
#[test]
fn permissions_are_tested_with_the_settings_of_this_folder() {
    let stand = Stand::new(SAYS);
    settings(&stand, r#"{"permissions": {"allow": ["Bash(git push *)"], "deny": ["Read(./.env)"]}}"#);
    let rows = [
        json!({"tool": "Read", "input": {"file_path": "./.env"}}),
        json!({"tool": "Read", "input": {"file_path": stand.file("a.txt")}}),
        json!({"tool": "Bash", "input": {"command": "git push origin main"}}),
        json!({"tool": "Read", "input": {"file_path": "./.env"}, "rules": {}}),
        json!({"tool": "Edit", "input": {"file_path": stand.file("a.txt")}, "mode": "acceptEdits"}),
    ];
    let rows = rows.map(|row| row.to_string()).join("\n");
    let run = finished(stand.decurion().args(["permissions", "check"]).input(rows.clone()));
    let decided: Vec<Value> = run
        .lines
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["decision"].clone())
        .collect();
    assert_eq!(decided, ["deny", "allow", "allow", "allow", "allow"], "{run:?}");
    let explained = finished(stand.decurion().args(["permissions", "explain"]).input(rows));
    assert!(explained.output().contains("line 1: Read → deny"), "{explained:?}");
    let work = stand.home.work().canonicalize().unwrap();
    assert!(explained.output().contains(&format!("reads {}/.env", work.display())), "{explained:?}");
}

#[test]
fn a_plugin_is_added_only_after_its_programs_were_shown_and_agreed_to() {
    let stand = Stand::new(SAYS);
    put(&stand, "plug/.claude-plugin/plugin.json", r#"{"name": "plug", "description": "d"}"#);
    let hooks = json!({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "touch made"}]}]}});
    put(&stand, "plug/hooks/hooks.json", &hooks.to_string());
    let asked = stand.run(&["plugin", "add", "plug"]);
    assert_eq!(asked.ending.code(), 2, "{asked:?}");
    assert!(asked.output().contains("runs at Stop: touch made"), "{asked:?}");
    assert!(asked.errors.contains("pass --yes"), "{asked:?}");
    assert!(!stand.run(&["plugin", "list"]).output().contains("plug "));
    let added = stand.run(&["plugin", "add", "plug", "--yes"]);
    assert!(added.ending.is_success() && added.output().contains("enabled"), "{added:?}");
    let listed = stand.run(&["plugin", "list"]).output();
    assert!(listed.starts_with("NAME ") && listed.contains("plug "), "{listed}");
    assert!(stand.run(&["plugin", "disable", "plug"]).ending.is_success());
    assert_eq!(stand.run(&["plugin", "enable", "plug"]).ending.code(), 2);
    assert!(stand.run(&["plugin", "enable", "plug", "--yes"]).ending.is_success());
}

#[test]
fn a_server_whose_program_is_missing_is_not_ready() {
    let stand = Stand::new(SAYS);
    let added = stand.run(&["mcp", "add", "broken", "--", "/nonexistent"]);
    assert!(added.errors.contains("program not found: /nonexistent"), "{added:?}");
    assert!(stand.run(&["mcp", "add", "lost", "--", "no-such-program"]).ending.is_success());
    assert!(stand.run(&["mcp", "add", "fine", "--", "true"]).ending.is_success());
    let listed = stand.run(&["mcp", "list"]);
    let line = |name: &str| listed.lines.iter().find(|line| line.starts_with(name)).unwrap().clone();
    assert!(listed.lines[0].starts_with("NAME ") && line("fine").contains("  ready  "), "{listed:?}");
    for name in ["broken", "lost"] {
        assert!(line(name).contains("  cannot start: program not found: "), "{listed:?}");
    }
    let first: Value = serde_json::from_str(&stand.run(&["mcp", "list", "--json"]).lines[0]).unwrap();
    assert_eq!((&first["name"], &first["ready"]), (&json!("broken"), &json!(false)), "{first}");
    for name in ["we ird", "a\"b", ""] {
        let refused = stand.run(&["mcp", "add", name, "--", "true"]);
        assert_eq!(refused.ending.code(), 2, "{name}: {refused:?}");
    }
}

#[test]
fn a_refusal_names_the_rule_that_would_allow_the_call() {
    let stand =
        Stand::new("when turn=1\n  call Read {\"file_path\": \"/etc/hostname\"}\nwhen\n  say \"done\"\n");
    let refused = stand.run(&["-p", "go"]);
    assert_eq!(refused.ending.code(), 3, "{refused:?}");
    assert!(refused.errors.contains("the rule Read(//etc/hostname) would allow it"), "{refused:?}");
    let allowed = stand.run(&["-p", "go", "--allowedTools", "Read(//etc/hostname)"]);
    assert_eq!(allowed.ending.code(), 0, "{allowed:?}");
    // With one stroke it means the project's folder.
    let other = stand.run(&["-p", "go", "--allowedTools", "Read(/etc/hostname)"]);
    assert_eq!(other.ending.code(), 3, "{other:?}");
    let told = "the allow rule Read(/etc/hostname) has no effect";
    assert!(other.errors.contains(told) && other.errors.contains("write Read(//etc/hostname)"), "{other:?}");
    put(&stand, "etc/hostname", "");
    let meant = stand.run(&["-p", "go", "--allowedTools", "Read(/etc/hostname)"]);
    assert!(!meant.errors.contains("has no effect"), "{meant:?}");
}

#[test]
fn a_directory_that_is_not_there_is_not_told_to_the_model() {
    let stand = Stand::new(SAYS);
    let run = stand.run(&["-p", "go", "--add-dir", "/nope"]);
    assert!(run.ending.is_success() && run.errors.contains("--add-dir is ignored"), "{run:?}");
    let body = String::from_utf8_lossy(&stand.model.requests()[0].body).into_owned();
    assert!(body.contains("Working directory") && !body.contains("/nope"), "{body}");
}

#[test]
fn tables_are_coloured_on_a_terminal_alone() {
    let stand = Stand::new(SAYS);
    assert!(stand.run(&["-p", "apples", "--session-id", ID]).ending.is_success());
    let piped = stand.run(&["sessions", "list"]).output();
    assert!(!piped.contains('\u{1b}') && piped.contains("apples"), "{piped:?}");
    let shown = at_a_terminal(&stand, &["sessions", "list"], false);
    assert!(shown.contains(&format!("\u{1b}[0;1m{}\u{1b}[0m", &ID[..8])), "{shown:?}");
    let plain = at_a_terminal(&stand, &["sessions", "list"], true);
    assert!(!plain.contains('\u{1b}') && plain.contains("apples"), "{plain:?}");
    let same = without_times(&plain.replace('\r', ""));
    assert_eq!(same.trim(), without_times(&piped).trim());
    let doctor = at_a_terminal(&stand, &["doctor"], false);
    assert!(doctor.contains("\u{1b}[0;32m✓\u{1b}[0m Sandbox"), "{doctor:?}");
}
