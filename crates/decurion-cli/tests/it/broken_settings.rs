//! Settings of a repository, and a home folder, that are wrong: commands that only look report the problem and
//! work; a session starts unless a file that may forbid something cannot be used.

use serde_json::json;

use crate::stand::{Stand, finished};

const FILES: [&str; 2] = [".decurion/settings.json", ".decurion/settings.local.json"];

/// Wrong values that forbid nothing.
const IGNORED: &[&str] = &[
    r#"{"agents": {"maxDepth": 99}}"#,
    r#"{"agents": 7}"#,
    r#"{"model": 7}"#,
    r#"{"env": {"not a name": "x"}}"#,
    r#"{"theme": "none that exists"}"#,
    r#"{"durability": "sometimes"}"#,
    r#"{"permissions": {"allow": ["Bash(ls"]}}"#,
];

/// Files that may forbid something, if they could be used.
const REFUSED: &[&str] = &[
    r#"{"permissions": {"deny": ["(x)"]}}"#,
    r#"{"permissions": {"deny": "Bash"}}"#,
    r#"{"permissions": {"ask": [7]}}"#,
    r#"{"permissions": {"defaultMode": "whatever"}}"#,
    r#"{"hooks": []}"#,
    "[]",
    "{ not json",
    "\u{0}",
];

fn write(stand: &Stand, file: &str, text: &str) {
    let path = stand.home.work().join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_wrong_value_in_a_repository_stops_no_command() {
    let stand = Stand::new("when\n  say \"done\"\n");
    for file in FILES {
        for text in IGNORED.iter().chain(REFUSED) {
            write(&stand, file, text);
            for command in [&["trust", "--list"][..], &["config", "show"], &["doctor"], &["agents", "list"]] {
                let run = stand.run(command);
                // What keeps a session from starting is a ✗ of the doctor's.
                let code = i32::from(command[0] == "doctor" && run.output().contains("✗"));
                assert_eq!(
                    code == 1,
                    command[0] == "doctor" && REFUSED.contains(text),
                    "{file} {text}: {run:?}"
                );
                assert_eq!(run.ending.code(), code, "{file} {text} {command:?}: {run:?}");
                let shown = format!("{}{}", run.output(), run.errors);
                assert!(
                    command[0] == "agents" || shown.contains(file),
                    "{file} {text} {command:?} does not report it: {run:?}"
                );
            }
            std::fs::remove_file(stand.home.work().join(file)).unwrap();
        }
    }
}

#[test]
fn a_wrong_value_stops_a_session_only_where_it_may_forbid_something() {
    let stand = Stand::new("when\n  say \"done\"\n");
    for file in FILES {
        for text in IGNORED {
            write(&stand, file, text);
            let run = stand.run(&["-p", "go"]);
            assert_eq!(run.ending.code(), 0, "{file} {text}: {run:?}");
            assert!(run.errors.contains(file), "{file} {text} is not reported: {run:?}");
        }
        for text in REFUSED {
            write(&stand, file, text);
            let run = stand.run(&["-p", "go"]);
            assert_eq!(run.ending.code(), 2, "{file} {text}: {run:?}");
            assert!(run.errors.contains(file) && run.errors.contains("--setting-sources user"), "{run:?}");
            let without = stand.run(&["-p", "go", "--setting-sources", "user"]);
            assert_eq!(without.ending.code(), 0, "{file} {text}: {without:?}");
        }
        std::fs::remove_file(stand.home.work().join(file)).unwrap();
    }
}

#[test]
fn the_rest_of_a_file_with_a_wrong_value_holds() {
    let stand = Stand::new("when turn=1\n  call Read {\"file_path\": \".env\"}\nwhen\n  say \"done\"\n");
    let settings = json!({"agents": {"maxDepth": 99}, "permissions": {"deny": ["Read(.env)"]}});
    write(&stand, FILES[0], &settings.to_string());
    std::fs::write(stand.home.work().join(".env"), "CANARY").unwrap();
    stand.run(&["-p", "go", "--permission-mode", "bypassPermissions"]);
    let body = String::from_utf8_lossy(&stand.model.requests()[1].body).into_owned();
    assert!(!body.contains("CANARY") && body.contains("denied by Read(.env)"), "{body}");
    // The user's own settings are checked as before.
    std::fs::write(stand.home.state().join("settings.json"), r#"{"agents": {"maxDepth": 99}}"#).unwrap();
    assert_eq!(stand.run(&["-p", "go"]).ending.code(), 2);
}

#[test]
fn a_home_that_is_not_absolute_is_reported_and_nothing_is_kept() {
    for home in ["relative/home", "."] {
        let stand = Stand::new("when\n  say \"done\"\n");
        let run = finished(stand.decurion().env("HOME", home).env("DECURION_HOME", "").args(["-p", "go"]));
        assert_eq!((run.ending.code(), run.output().trim()), (0, "done"), "{run:?}");
        assert!(run.errors.contains("set HOME, or DECURION_HOME"), "{run:?}");
        assert_eq!(std::fs::read_dir(stand.home.work()).unwrap().count(), 0, "{home}");
        assert!(!std::path::Path::new("/nonexistent/decurion").exists());
    }
}

#[test]
fn the_tilde_of_a_checked_rule_is_the_users_home() {
    let stand = Stand::new("when\n  say \"done\"\n");
    let home = std::fs::canonicalize(stand.home.home()).unwrap();
    let home = home.to_str().unwrap();
    let row = |cwd: Option<&str>, path: &str| {
        let mut row =
            json!({"tool": "Read", "input": {"file_path": path}, "rules": {"deny": ["Read(~/.ssh/**)"]}});
        if let Some(cwd) = cwd {
            row["cwd"] = cwd.into();
        }
        row.to_string()
    };
    let rows = [
        row(None, &format!("{home}/.ssh/id")),
        row(None, "~/.ssh/id"),
        row(Some(&format!("{home}/x")), &format!("{home}/.ssh/id")),
        row(Some("/srv/x"), &format!("{home}/.ssh/id")),
        // A row from another machine means the home there.
        row(Some("/home/ada/x"), "/home/ada/.ssh/id"),
        row(Some("/srv/x"), "/opt/other/.ssh/id"),
    ];
    let run = finished(stand.decurion().args(["permissions", "check"]).input(rows.join("\n")));
    let denied: Vec<bool> = run.lines.iter().map(|line| line.contains("\"deny\"")).collect();
    assert_eq!(denied, [true, true, true, true, true, false], "{run:?}");
}

#[test]
fn a_rule_that_names_no_tool_is_reported_with_its_place_and_the_likely_name() {
    let stand = Stand::new("when\n  say \"done\"\n");
    let rules = json!({
        "deny": ["Task", "WebSearch", "mcp__later__tool", "Bash(rm:*)", "TheirTool"],
        "ask": ["Unknowable"], "allow": ["Fetch", "Bsh(ls:*)"],
    });
    let settings = stand.home.state().join("settings.json");
    std::fs::write(&settings, json!({"permissions": rules}).to_string()).unwrap();
    let run = stand.run(&["-p", "hi", "--allowedTools", "edit(src/**),Read"]);
    assert_eq!(run.ending.code(), 0, "{run:?}");
    let expected = [
        "the deny rule TheirTool has no effect: no such tool: TheirTool",
        "the ask rule Unknowable has no effect: no such tool: Unknowable",
        "the allow rule Fetch has no effect: no such tool: Fetch",
        "the allow rule Bsh(ls:*) has no effect: no such tool: Bsh (did you mean Bash?)",
    ];
    let doctor = stand.run(&["doctor"]);
    for problem in expected {
        assert!(run.errors.contains(problem), "{problem}: {}", run.errors);
        assert!(doctor.output().contains(problem), "{problem}: {}", doctor.output());
    }
    assert!(
        run.errors.contains("--allowedTools: the allow rule edit(src/**) has no effect"),
        "{}",
        run.errors
    );
    assert!(run.errors.contains(&format!("{}:1:", settings.display())), "{}", run.errors);
    assert_eq!(run.errors.lines().count(), 5, "{}", run.errors);
}

/// What such a rule was to forbid would go ahead.
#[test]
fn a_rule_that_restricts_and_misspells_its_tool_starts_no_session() {
    let stand = Stand::new("when\n  say \"done\"\n");
    let settings = stand.home.state().join("settings.json");
    for (list, rule, told) in [
        ("deny", "Bsh(rm:*)", "no such tool: Bsh (did you mean Bash?)"),
        ("deny", "read(.env)", "no such tool: read (did you mean Read?)"),
        ("ask", "Wrte", "no such tool: Wrte (did you mean Write?)"),
    ] {
        std::fs::write(&settings, json!({"permissions": {list: ["Grep", rule]}}).to_string()).unwrap();
        let run = stand.run(&["-p", "hi"]);
        assert_eq!(run.ending.code(), 2, "{rule}: {run:?}");
        let place = format!("{}:1:", settings.display());
        let told = format!("the {list} rule {rule} has no effect: {told}");
        assert!(run.errors.contains(&place) && run.errors.contains(&told), "{rule}: {run:?}");
        assert_eq!(run.errors.matches(&told).count(), 1, "{run:?}");
        assert!(stand.model.requests().is_empty(), "{rule}");
    }
    assert!(stand.run(&["doctor"]).output().contains("no such tool: Wrte (did you mean Write?)"));
}

/// Each with the likely key. In a repository's file a key of `permissions` counts as in a person's own.
#[test]
fn a_misspelt_key_that_restricts_starts_no_session_and_another_one_is_a_warning() {
    let stand = Stand::new("when\n  say \"done\"\n");
    let files = [
        stand.home.state().join("settings.json"),
        stand.home.work().join(".decurion/settings.json"),
        stand.home.work().join(".claude/settings.json"),
    ];
    for file in files {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let before = std::fs::read(&file).ok();
        for (text, told) in [
            (
                "{\"model\": \"fake\",\n \"permissons\": {}}",
                ":2:2: unknown key: permissons (did you mean permissions?)",
            ),
            (
                "{\"permissions\": {\n\"denny\": []}}",
                ":2:1: unknown key: permissions.denny (did you mean deny?)",
            ),
            ("{\"permissions\": {\"Ask\": []}}", ":1:18: unknown key: permissions.Ask (did you mean ask?)"),
        ] {
            std::fs::write(&file, text).unwrap();
            let run = stand.run(&["-p", "hi"]);
            assert_eq!(run.ending.code(), 2, "{file:?} {text}: {run:?}");
            assert!(run.errors.contains(&format!("{}{told}", file.display())), "{file:?} {text}: {run:?}");
        }
        for (text, told) in [
            (
                "{\"permissions\": {\"alow\": []}}",
                Some("unknown key: permissions.alow (did you mean allow?)"),
            ),
            ("{\"modle\": \"x\"}", Some("unknown key: modle (did you mean model?)")),
            ("{\"$schema\": \"x\"}", None),
        ] {
            std::fs::write(&file, text).unwrap();
            let run = stand.run(&["-p", "hi"]);
            assert_eq!(run.ending.code(), 0, "{file:?} {text}: {run:?}");
            assert!(told.is_none_or(|told| run.errors.contains(told)), "{file:?} {text}: {run:?}");
            assert_eq!(told.is_none(), !run.errors.contains("unknown key"), "{file:?} {text}: {run:?}");
        }
        before.map_or_else(|| std::fs::remove_file(&file), |before| std::fs::write(&file, before)).unwrap();
    }
    // Rules one level too high would not hold either.
    std::fs::write(stand.home.state().join("settings.json"), "{\"deny\": [\"Read(.env)\"]}").unwrap();
    let run = stand.run(&["-p", "hi"]);
    assert_eq!(run.ending.code(), 2, "{run:?}");
    assert!(run.errors.contains("unknown key: deny (did you mean permissions.deny?)"), "{run:?}");
}
