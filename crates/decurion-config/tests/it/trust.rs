//! What the user agreed to, on disk.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use decurion_config::{PartKind, Trust, TrustState};
use expect_test::expect;

use crate::stage::Stage;

fn trust(stage: &Stage) {
    let loaded = stage.load();
    let (mut trust, warning) = Trust::open(&loaded.paths);
    assert_eq!(warning, None);
    trust.trust_folder(&loaded.paths.root, &loaded.project_parts).unwrap();
}

fn is_trusted(stage: &Stage) -> bool {
    stage.load().trust.is_trusted()
}

fn project() -> Stage {
    Stage::new()
        .file(
            "project/.claude/settings.json",
            r#"{"permissions": {"allow": ["Bash(ls)"]}, "env": {"A": "1", "A_TOKEN": "t"}}"#,
        )
        .file("project/.mcp.json", r#"{"mcpServers": {"x": {"command": "x"}}}"#)
}

#[test]
fn trust_holds_until_something_that_matters_changes() {
    #[rustfmt::skip]
    let rows = [
        ("the same", ".claude/settings.json", r#"{"permissions": {"allow": ["Bash(ls)"]}, "env": {"A": "1", "A_TOKEN": "t"}}"#, true),
        ("comments and blanks", ".claude/settings.json", "{ // why\n \"permissions\": {\"allow\": [\"Bash(ls)\",]}, \"env\": {\"A\": \"1\", \"A_TOKEN\": \"t\"}}", true),
        ("a deny rule more", ".claude/settings.json", r#"{"permissions": {"allow": ["Bash(ls)"], "deny": ["Write"]}, "env": {"A": "1", "A_TOKEN": "t"}}"#, true),
        ("another rule", ".claude/settings.json", r#"{"permissions": {"allow": ["Bash(rm)"]}, "env": {"A": "1", "A_TOKEN": "t"}}"#, false),
        ("a rule more", ".claude/settings.json", r#"{"permissions": {"allow": ["Bash(ls)", "Edit"]}, "env": {"A": "1", "A_TOKEN": "t"}}"#, false),
        ("another value", ".claude/settings.json", r#"{"permissions": {"allow": ["Bash(ls)"]}, "env": {"A": "2", "A_TOKEN": "t"}}"#, false),
        ("another hidden value", ".claude/settings.json", r#"{"permissions": {"allow": ["Bash(ls)"]}, "env": {"A": "1", "A_TOKEN": "u"}}"#, false),
        ("hooks", ".claude/settings.json", r#"{"permissions": {"allow": ["Bash(ls)"]}, "env": {"A": "1", "A_TOKEN": "t"}, "hooks": {"Stop": []}}"#, false),
        ("another command", ".mcp.json", r#"{"mcpServers": {"x": {"command": "y"}}}"#, false),
        ("no servers", ".mcp.json", r"{}", true),
        ("parts in another file", ".decurion/settings.local.json", r#"{"permissions": {"allow": ["Bash(ls)"]}}"#, false),
        ("nothing in another file", ".decurion/settings.local.json", r#"{"permissions": {"ask": ["Bash(ls)"]}}"#, true),
    ];
    for (name, file, content, expected) in rows {
        let stage = project();
        assert!(!is_trusted(&stage));
        trust(&stage);
        assert!(is_trusted(&stage), "{name}");
        assert_eq!(stage.load().rules.set.allow.len(), 1);
        let stage = stage.file(&format!("project/{file}"), content);
        let loaded = stage.load();
        assert_eq!(loaded.trust.is_trusted(), expected, "{name}");
        if let TrustState::Untrusted { changed, .. } = loaded.trust {
            assert!(changed, "{name}");
            assert!(loaded.rules.set.allow.is_empty(), "{name}");
        }
    }
}

#[test]
fn trust_is_of_one_folder_and_can_be_taken_back() {
    let stage = project();
    trust(&stage);
    let elsewhere = project();
    fs::rename(&elsewhere.project, stage.top.join("copy")).unwrap();
    let mut request = stage.request();
    request.cwd = stage.top.join("copy");
    assert!(!decurion_config::load(&request).unwrap().trust.is_trusted());
    let loaded = stage.load();
    let (mut trust, _) = Trust::open(&loaded.paths);
    assert_eq!(trust.folders().collect::<Vec<_>>(), [stage.project.as_path()]);
    assert!(trust.revoke(&stage.project).unwrap());
    assert!(!trust.revoke(&stage.project).unwrap());
    assert!(!is_trusted(&stage));
}

#[test]
fn a_folder_without_parts_is_trusted_only_if_the_user_said_so() {
    let stage = Stage::new();
    assert_eq!(stage.load().trust, TrustState::Untrusted { parts: vec![], changed: false });
    trust(&stage);
    assert!(is_trusted(&stage));
}

#[test]
fn parts_are_counted_by_what_they_mean() {
    let stage = project().file(
        "project/.decurion/settings.json",
        r#"{"hooks": {"Stop": [], "PreToolUse": []}, "model": "x", "agents": {"maxDepth": 2},
            "permissions": {"defaultMode": "acceptEdits", "additionalDirectories": ["/a", "/b"]}}"#,
    );
    let counts = stage.load().project_parts.counts().clone();
    let expected = [
        (PartKind::Hook, 2),
        (PartKind::Server, 1),
        (PartKind::AllowRule, 1),
        (PartKind::Mode, 1),
        (PartKind::Directory, 2),
        (PartKind::Variable, 2),
        (PartKind::Model, 1),
        (PartKind::Setting, 1),
    ];
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_part_says_what_is_written_there() {
    let stage = Stage::new().file(
        "project/.claude/settings.json",
        r#"{"statusLine": {"type": "command", "command": "echo pear"},
            "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "echo plum"}]}]}}"#,
    );
    let loaded = stage.load();
    let said: String = loaded
        .project_parts
        .parts()
        .iter()
        .flat_map(|part| {
            let head = format!("{}: {}\n", part.kind.name(), part.key);
            let lines = part.said.iter().map(|(what, written)| format!("  {what} {written}\n"));
            std::iter::once(head).chain(lines).collect::<Vec<_>>()
        })
        .collect();
    expect![[r"
        status line: statusLine
          type command
          command echo pear
        hooks: hooks.Stop
          type command
          command echo plum
    "]]
    .assert_eq(&said);
}

#[test]
fn the_record_is_private_and_whole() {
    let stage = project();
    trust(&stage);
    let folder = stage.home.join(".decurion");
    let mode = |path: &camino::Utf8Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join("trust.json")), 0o600);
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "trust.json" || name == "trust.lock"), "{left:?}");
}

#[test]
fn a_record_that_cannot_be_believed_trusts_nothing() {
    let stage = project();
    trust(&stage);
    let file = stage.home.join(".decurion/trust.json");
    let good = fs::read_to_string(&file).unwrap();
    let spoil: &[(&str, &dyn Fn())] = &[
        ("damaged", &|| fs::write(&file, &good[..good.len() / 2]).unwrap()),
        ("damaged", &|| fs::write(&file, "").unwrap()),
        ("another version", &|| fs::write(&file, good.replace("\"version\": 1", "\"version\": 2")).unwrap()),
        ("others can change", &|| fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap()),
        ("cannot be read", &|| {
            fs::remove_file(&file).unwrap();
            fs::create_dir(&file).unwrap();
        }),
    ];
    for (words, spoil) in spoil {
        let _ = fs::remove_dir(&file);
        fs::write(&file, &good).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(is_trusted(&stage));
        spoil();
        let loaded = stage.load();
        assert!(!loaded.trust.is_trusted(), "{words}");
        assert!(stage.warnings(&loaded)[0].contains(words), "{:?}", loaded.warnings);
    }
}

#[test]
fn many_at_once_lose_nothing() {
    let stage = Stage::new();
    let loaded = stage.load();
    std::thread::scope(|scope| {
        for index in 0..16 {
            let (paths, parts) = (&loaded.paths, &loaded.project_parts);
            scope.spawn(move || {
                let (mut trust, _) = Trust::open(paths);
                trust.trust_folder(camino::Utf8Path::new(&format!("/p/{index}")), parts).unwrap();
            });
        }
    });
    assert_eq!(Trust::open(&loaded.paths).0.folders().count(), 16);
}

#[test]
fn without_a_state_folder_nothing_is_recorded() {
    let mut stage = Stage::new();
    stage.variables.remove("HOME");
    let loaded = stage.load();
    let (mut trust, warning) = Trust::open(&loaded.paths);
    assert_eq!(warning, None);
    let error = trust.trust_folder(&loaded.paths.root, &loaded.project_parts).unwrap_err();
    assert_eq!(error.to_string(), "there is no state folder to remember trust in");
}

#[test]
fn a_file_made_to_be_long_is_counted_whole_and_listed_in_part() {
    let rules =
        |last: &str| format!(r#"{{"permissions": {{"allow": [{}"{last}"]}}}}"#, "\"a\",".repeat(50_000));
    let stage = Stage::new().file("project/.claude/settings.json", &rules("x"));
    let loaded = stage.load();
    assert_eq!(loaded.project_parts.counts()[&PartKind::AllowRule], 50_001);
    assert_eq!(loaded.project_parts.parts().len(), 1000);
    trust(&stage);
    assert!(is_trusted(&stage));
    let stage = stage.file("project/.claude/settings.json", &rules("y"));
    assert!(!is_trusted(&stage), "what is not listed counts too");
}
