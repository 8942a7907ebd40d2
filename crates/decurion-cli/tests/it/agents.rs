//! `decurion agents` from outside: what is listed, shown and said to be wrong, and with which exit code.

use decurion_testkit::proc::{Finished, Home};
use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::stand::{DECURION, Stand, finished};

/// A home with definitions of every kind.
fn home() -> Home {
    let home = Home::new().unwrap();
    let files = [
        (
            "home/.claude/agents/reviewer.md",
            "---\nname: reviewer\ndescription: Reads: changes\ntools: Read, Grep\n---\nReview.",
        ),
        (
            "work/.claude/agents/reviewer.md",
            "---\nname: Reviewer\ndescription: d\npermissionMode: bypassPermissions\n---\nx",
        ),
        ("work/.decurion/agents/broken.md", "---\nname: broken\ndescription: d\n\ntools: []\n---\nx"),
        ("work/.decurion/settings.json", "{\"permissions\": {\"deny\": [\"Agent(Plan)\"]}}"),
    ];
    for (path, text) in files {
        let (folder, path) = path.split_once('/').unwrap();
        let path = if folder == "home" { home.home() } else { home.work() }.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    home
}

fn agents(home: &Home, arguments: &[&str]) -> Finished {
    finished(home.program(DECURION).args(["agents"]).args(arguments))
}

/// What was printed, with the folders of this home cut off.
fn short(home: &Home, text: &str) -> String {
    let work = std::fs::canonicalize(home.work()).unwrap();
    let own = std::fs::canonicalize(home.home()).unwrap();
    text.replace(work.to_str().unwrap(), "WORK").replace(own.to_str().unwrap(), "HOME")
}

fn check(home: &Home, arguments: &[&str], code: u8, expected: &Expect) {
    let run = agents(home, arguments);
    assert_eq!(run.ending.code(), i32::from(code), "{run:?}");
    let lines: String = run.lines.iter().map(|line| format!("{line}\n")).collect();
    expected.assert_eq(&short(home, &format!("{lines}{}", run.errors)));
}

#[test]
fn agents_are_listed_with_their_places() {
    check(
        &home(),
        &["list"],
        0,
        &expect![[r"
            NAME              SOURCE                                                               DESCRIPTION
            Reviewer          project (WORK/.claude/agents/reviewer.md)  d
            reviewer          user (HOME/.claude/agents/reviewer.md)     [not used: WORK/.claude/agents/reviewer.md comes first] Reads: changes
            general-purpose   built-in                                                             Does a whole piece of work on its own with every tool - research that takes several rounds, a change across fi…
            Explore           built-in                                                             Finds things in code and reads, without changing anything - where something is defined, what uses it, how a pa…
            Plan              built-in                                                             [denied by Agent(Plan)] Works out how a change should be made, without making it - reads the code that is concerned, weighs the ways t…
            Verification      built-in                                                             Checks whether finished work really does what was asked - runs builds, tests and the program itself, tries to …
            guide             built-in                                                             Answers questions about Decurion itself - its commands and flags, settings, agent files, permissions, hooks, s…
            statusline-setup  built-in                                                             Sets up the line at the bottom of the terminal - from a description, or from the shell prompt that the person …
            fork              built-in                                                             [hidden] Goes on from here in a copy of this conversation, with the same tools and the same model, and reports back.
            decurion: 1 error and 2 warnings; see `decurion agents lint`
        "]],
    );
}

#[test]
fn what_is_wrong_is_said_and_exits_one() {
    let home = home();
    check(
        &home,
        &["lint"],
        1,
        &expect![[r"
        WORK/.decurion/agents/broken.md:5: error: `tools` is an empty list, and an agent without tools can do nothing
        WORK/.claude/agents/reviewer.md:4: warning: `permissionMode` is ignored, because this folder is not trusted (see `decurion trust`)
        HOME/.claude/agents/reviewer.md:3: warning: `description` is not YAML (mapping values are not allowed in this context) and is read as plain text
    "]],
    );
    check(
        &home,
        &["lint", ".claude/agents"],
        0,
        &expect![[r"
        WORK/.claude/agents/reviewer.md:4: warning: `permissionMode` is ignored, because this folder is not trusted (see `decurion trust`)
    "]],
    );
    check(
        &home,
        &["lint", "nowhere.md"],
        1,
        &expect![[r"
        nowhere.md: error: there is no such file
    "]],
    );
    check(
        &Home::new().unwrap(),
        &["lint"],
        0,
        &expect![[r"
            No problems in 7 definitions.
        "]],
    );
}

#[test]
fn one_agent_is_shown_as_a_file() {
    let home = home();
    check(
        &home,
        &["show", "REVIEWER"],
        0,
        &expect![[r"
        ---
        name: Reviewer
        description: d
        ---

        x
        decurion: from project (WORK/.claude/agents/reviewer.md)
        decurion: WORK/.claude/agents/reviewer.md:4: warning: `permissionMode` is ignored, because this folder is not trusted (see `decurion trust`)
    "]],
    );
    check(
        &home,
        &["show", "broken"],
        2,
        &expect![[r#"
        decurion: agent "broken" cannot be used: WORK/.decurion/agents/broken.md:5: error: `tools` is an empty list, and an agent without tools can do nothing
    "#]],
    );
    check(
        &home,
        &["show", "nobody"],
        2,
        &expect![[r#"
            decurion: agent not found: "nobody"
              agents: Reviewer, general-purpose, Explore, Plan, Verification, guide, statusline-setup, fork
        "#]],
    );
    let run = agents(&home, &["show", "claude-code-guide"]);
    assert!(run.lines.contains(&"name: guide".to_owned()), "{run:?}");
}

#[test]
fn programs_get_json() {
    let home = home();
    let rows = |arguments: &[&str]| -> Vec<Value> {
        let run = agents(&home, arguments);
        run.lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let list = rows(&["list", "--json"]);
    let names: Vec<&str> = list.iter().map(|row| row["name"].as_str().unwrap()).collect();
    let expected = [
        "Reviewer",
        "reviewer",
        "general-purpose",
        "Explore",
        "Plan",
        "Verification",
        "guide",
        "statusline-setup",
        "fork",
    ];
    assert_eq!(names, expected);
    assert_eq!(list[0]["active"], true);
    assert_eq!(list[1]["shadowed_by"], list[0]["origin"]);
    assert_eq!(list[4]["denied_by"], "Agent(Plan)");
    let shown = &rows(&["show", "Explore", "--json"])[0];
    assert_eq!(shown["definition"]["mode"], "default");
    assert_eq!(shown["disallowed_tools"], json!(["Agent", "Edit", "NotebookEdit", "Write"]));
    let problems = rows(&["lint", "--json"]);
    let error = problems.iter().find(|problem| problem["severity"] == "error").unwrap();
    assert_eq!((error["agent"].as_str(), error["line"].as_u64()), (Some("broken"), Some(5)));
    assert!(error["origin"].as_str().unwrap().ends_with(".decurion/agents/broken.md"));
}

#[test]
fn an_agent_file_with_an_error_is_reported_at_the_start_and_one_with_a_warning_is_not() {
    let stand = Stand::new("when\n  say \"done\"\n");
    let folder = stand.home.work().join(".claude/agents");
    std::fs::create_dir_all(&folder).unwrap();
    let files = [
        ("bare.md", "---\nname: bare\n---\nBe brief.\n"),
        ("torn.md", "---\nname: [torn\n---\nBe whole.\n"),
        ("odd.md", "---\nname: odd\ndescription: Odd: it is\n---\nBe odd.\n"),
        ("README.md", "Agents of this project.\n"),
    ];
    for (name, text) in files {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let lint = stand.run(&["agents", "lint"]);
    let errors: Vec<String> = lint.lines.iter().filter(|line| line.contains(": error: ")).cloned().collect();
    assert!(errors.len() == 2 && errors[0].contains("bare.md:1: error: missing `description`"), "{lint:?}");
    let wanted: String = errors.iter().map(|error| format!("decurion: {error}\n")).collect();
    for format in ["text", "json", "stream-json"] {
        let run = stand.run(&["-p", "go", "--verbose", "--output-format", format]);
        assert_eq!((run.ending.code(), run.errors.as_str()), (0, wanted.as_str()), "{format}: {run:?}");
        assert!(!run.output().contains("missing `description`"), "{format}: {run:?}");
    }
}
