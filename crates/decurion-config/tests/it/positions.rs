//! What is wrong, and exactly where.

use crate::stage::Stage;

#[test]
fn a_wrong_value_is_named_with_file_line_column_and_key() {
    let file = "home/.decurion/settings.json";
    for (json, expected) in [
        ("{\n  \"model\": 3\n}", "2:12: model: expected a non-empty string, found 3"),
        ("{\"model\": \" \"}", "1:11: model: expected a non-empty string, found \" \""),
        ("[]", "1:1: expected an object: `{` … `}`"),
        (
            "{\"durability\": \"forever\"}",
            "1:16: durability: expected one of process, power, found \"forever\"",
        ),
        (
            "{\"theme\": \"purple\"}",
            "1:11: theme: expected one of auto, dark, light, dark-ansi, light-ansi, dark-high-contrast, light-high-contrast, dark-daltonized, light-daltonized, \
             none, found \"purple\"",
        ),
        (
            "{\"theme\": 3}",
            "1:11: theme: expected one of auto, dark, light, dark-ansi, light-ansi, dark-high-contrast, light-high-contrast, dark-daltonized, \
             light-daltonized, none, found 3",
        ),
        (
            "{\"editorMode\": \"vi\"}",
            "1:16: editorMode: expected one of normal, vim, found \"vi\" (did you mean \"vim\"?)",
        ),
        ("{\"permissions\": []}", "1:17: permissions: expected an object, found an array"),
        (
            "{\"permissions\": {\"allow\": \"Read\"}}",
            "1:27: permissions.allow: expected an array of rules, found \"Read\"",
        ),
        (
            "{\"permissions\": {\n  \"allow\": [\n    \"Read\",\n    \"Bash(x\"\n]}}",
            "4:5: permissions.allow[1]: a rule's `(` is not closed: \"Bash(x\"",
        ),
        (
            "{\"permissions\": {\"deny\": [7]}}",
            "1:27: permissions.deny[0]: expected a rule, as a string, found 7",
        ),
        (
            "{\"permissions\": {\"defaultMode\": \"auto\"}}",
            "1:33: permissions.defaultMode: expected one of default, acceptEdits, plan, bypassPermissions, dontAsk, \
             bubble, found \"auto\"",
        ),
        (
            "{\"env\": {\"A B\": \"x\"}}",
            "1:17: env.A B: expected a variable's name (letters, digits and `_`), found another key",
        ),
        ("{\"env\": {\"A\": []}}", "1:15: env.A: expected a string, found an array"),
        ("{\"envPass\": [\"A\", 1]}", "1:19: envPass[1]: expected a non-empty string, found 1"),
        ("{\"hooks\": []}", "1:11: hooks: expected an object, found an array"),
        (
            "{\"agents\": {\"max_depth\": 65}}",
            "1:26: agents.maxDepth: expected a whole number from 0 to 64, found 65",
        ),
        (
            "{\"agents\": {\"maxDepth\": 1.5}}",
            "1:25: agents.maxDepth: expected a whole number from 0 to 64, found 1.5",
        ),
        (
            "{\"compaction\": {\"threshold\": 80}}",
            "1:30: compaction.threshold: expected a number from 0.1 to 0.99, found 80",
        ),
        ("{\"redactSecrets\": \"yes\"}", "1:19: redactSecrets: expected true or false, found \"yes\""),
        (
            "{\"providers\": {\"x\": {\"kind\": \"gemini\"}}}",
            "1:30: providers.x.kind: expected one of anthropic, openai, found \"gemini\"",
        ),
        (
            "{\"providers\": {\"x\": {\"baseUrl\": \"https://u:p@h/\"}}}",
            "1:33: providers.x.baseUrl: expected an http or https address without user, query or fragment, found a string",
        ),
        (
            "{\"providers\": {\"x\": {\"headers\": {\"X-Y\": \"a\\nb\"}}}}",
            "1:41: providers.x.headers.X-Y: expected a header's value, found one that holds characters that cannot be sent in a header",
        ),
        (
            "{\"models\": {\"catalogue\": {\"m\": {\"window\": -1}}}}",
            "1:43: models.catalogue.m.window: expected a whole number from 1000 to 1000000000, found -1",
        ),
        ("{\"a\": 1,,}", "1:9: expected a key in double quotes or `}`"),
        ("{\n\t\"é\": \"x\" \"y\"}", "2:11: expected `,` or `}`"),
    ] {
        let stage = Stage::new().file(file, json);
        assert_eq!(stage.error(), format!("{file}:{expected}"), "{json}");
    }
}

#[test]
fn every_problem_of_every_file_is_listed_at_once() {
    let text = "{\n  \"permissions\": {\"deny\": [\"Bash(\", 7], \"denny\": []},\n  \"theme\": \"drak\",\n  \
                \"agents\": {\"maxDepth\": 99, \"maxTotal\": \"5\"},\n  \"model\": \"mine\"\n}";
    let stage = Stage::new()
        .file("home/.decurion/settings.json", text)
        .file("project/.decurion/settings.json", "{\"permissions\": 1}")
        .file("project/.decurion/settings.local.json", "{")
        .variable("ANTHROPIC_BASE_URL", "nowhere");
    let home = "home/.decurion/settings.json";
    assert_eq!(
        stage.error(),
        [
            format!("{home}:2:28: permissions.deny[0]: a rule's `(` is not closed: \"Bash(\""),
            format!("{home}:2:37: permissions.deny[1]: expected a rule, as a string, found 7"),
            format!("{home}:2:41: unknown key: permissions.denny (did you mean deny?)"),
            format!(
                "{home}:3:12: theme: expected one of auto, dark, light, dark-ansi, light-ansi, dark-high-contrast, light-high-contrast, dark-daltonized, \
                 light-daltonized, none, found \"drak\" (did you mean \"dark\"?)"
            ),
            format!("{home}:4:26: agents.maxDepth: expected a whole number from 0 to 64, found 99"),
            format!(
                "{home}:4:42: agents.maxTotal: expected a whole number from 0 to 1000000, found \"5\" (did you mean 5?)"
            ),
            "environment variable ANTHROPIC_BASE_URL: expected an http or https address without user, query or fragment"
                .to_owned(),
            "project/.decurion/settings.json:1:17: permissions: expected an object, found 1".to_owned(),
            "project/.decurion/settings.local.json:1:2: expected a key in double quotes or `}`".to_owned(),
        ]
        .join("\n")
    );
    // What can be used is in effect where a command only tells what is wrong.
    let loaded = decurion_config::examine(&stage.request()).unwrap();
    assert_eq!((loaded.invalid.len(), loaded.broken.len()), (7, 2));
    assert_eq!(loaded.settings.model.as_deref(), Some("mine"));
}

/// What could be a key, or hold one, is not repeated.
#[test]
fn a_value_is_shown_unless_it_could_be_a_secret() {
    let file = "home/.decurion/settings.json";
    for (json, found) in [
        ("{\"theme\": \"very dark, please\"}", "\"very dark, please\""),
        ("{\"theme\": \"~/.config/x.json\"}", "\"~/.config/x.json\""),
        ("{\"theme\": \"tok-abcdefghij1234567890\"}", "a string"),
        ("{\"theme\": \"aBcDeFgHiJkLmNoPqRsTuV\"}", "a string"),
        ("{\"theme\": \"4f9a77b1c2d3\"}", "a string"),
        ("{\"theme\": \"https://me:pw@host\"}", "a string"),
        ("{\"providers\": {\"x\": {\"apiKey\": 12345}}}", "a number"),
        ("{\"providers\": {\"x\": {\"headers\": {\"A\": 12345}}}}", "a number"),
        ("{\"env\": {\"MY_TOKEN\": [1]}}", "an array"),
    ] {
        let error = Stage::new().file(file, json).error();
        assert!(error.ends_with(&format!("found {found}")), "{json}: {error}");
    }
}

#[test]
fn bytes_that_are_no_text_have_a_place_too() {
    let stage = Stage::new().file("home/.decurion/settings.json", "");
    std::fs::write(stage.home.join(".decurion/settings.json"), b"{\n \"\xc3\xa9\xff\"}").unwrap();
    assert_eq!(stage.error(), "home/.decurion/settings.json:2:4: the file is not UTF-8");
}

#[test]
fn the_same_mistake_is_found_in_every_file() {
    for file in [
        "home/.claude/settings.json",
        "home/.decurion/settings.json",
        "project/.claude/settings.json",
        "project/.decurion/settings.json",
        "project/.claude/settings.local.json",
        "project/.decurion/settings.local.json",
        "managed.json",
    ] {
        let stage = Stage::new().file(file, "{\"permissions\":\n{\"deny\": {}}}");
        assert_eq!(
            stage.error(),
            format!("{file}:2:10: permissions.deny: expected an array of rules, found an object")
        );
        let stage = Stage::new().file(file, "{\"permissions\":\n{\"deny\": [\"Bash(\"]}}");
        assert_eq!(
            stage.error(),
            format!("{file}:2:11: permissions.deny[0]: a rule's `(` is not closed: \"Bash(\"")
        );
    }
}

#[test]
fn unknown_keys_are_named_and_in_files_of_others_only_misspelt_ones() {
    let json = "{\n  \"modle\": 1,\n  \"permissions\": {\"alow\": []},\n  \"$schema\": \"x\", \"spinnerWord\": {}\n}";
    for ours in ["home/.decurion/settings.json", "project/.decurion/settings.json", "managed.json"] {
        let stage = Stage::new().file(ours, json);
        let loaded = stage.load();
        assert_eq!(
            stage.warnings(&loaded),
            [
                format!("{ours}:2:3: unknown key: modle (did you mean model?)"),
                format!("{ours}:3:19: unknown key: permissions.alow (did you mean allow?)"),
                format!("{ours}:4:19: unknown key: spinnerWord"),
            ]
        );
    }
    for theirs in ["home/.claude/settings.json", "project/.claude/settings.local.json"] {
        let stage = Stage::new().file(theirs, json);
        let likely = [
            format!("{theirs}:2:3: unknown key: modle (did you mean model?)"),
            format!("{theirs}:3:19: unknown key: permissions.alow (did you mean allow?)"),
        ];
        assert_eq!(stage.warnings(&stage.load()), likely);
    }
}

#[test]
fn unknown_keys_of_the_sandbox_are_errors_where_they_could_loosen_it() {
    for (json, told) in [
        (r#"{"sandbox": {"enabeld": true}}"#, ":1:14: unknown key: sandbox.enabeld (did you mean enabled?)"),
        (
            r#"{"sandbox": {"filesystem": {"denyReed": []}}}"#,
            ":1:29: unknown key: sandbox.filesystem.denyReed (did you mean denyRead?)",
        ),
        (r#"{"sandbox": {"network": {"walls": 1}}}"#, ":1:26: unknown key: sandbox.network.walls"),
    ] {
        for file in ["home/.decurion/settings.json", "managed.json"] {
            assert_eq!(Stage::new().file(file, json).error(), format!("{file}{told}"));
        }
        // A repository does not decide whether the program starts.
        let stage = Stage::new().file("project/.decurion/settings.json", json);
        let warned = stage.warnings(&stage.load());
        assert_eq!(warned.len(), 1, "{warned:?}");
        // The ecosystem's files have keys of their own.
        let stage = Stage::new().file("home/.claude/settings.json", json);
        if told.contains("did you mean") {
            assert_eq!(stage.error(), format!("home/.claude/settings.json{told}"));
        } else {
            assert_eq!(stage.load().warnings, []);
        }
    }
}

#[test]
fn repeated_keys_are_named() {
    let stage = Stage::new().file("home/.decurion/settings.json", "{\"model\": \"a\",\n\"model\": \"b\"}");
    let loaded = stage.load();
    assert_eq!(loaded.settings.model.as_deref(), Some("b"));
    assert_eq!(
        stage.warnings(&loaded),
        ["home/.decurion/settings.json:2:1: this key is given twice, the last one counts: \"model\""]
    );
}

#[test]
fn what_the_ecosystem_allows_and_we_do_not_know_is_left_out() {
    let stage = Stage::new().file(
        "home/.claude/settings.json",
        "{\"permissions\": {\"allow\": [\"Read\", \"Bash(\"], \"defaultMode\": \"auto\"},\n\"theme\": \"custom:mine\"}",
    );
    let loaded = stage.load();
    assert_eq!(loaded.settings.theme, None);
    assert_eq!(loaded.rules.set.allow.len(), 1);
    assert_eq!(
        stage.warnings(&loaded),
        [
            "home/.claude/settings.json:1:36: permissions.allow[1]: this rule is ignored: a rule's `(` is not closed",
            "home/.claude/settings.json:1:61: permissions.defaultMode: a mode that is not known here is ignored",
            "home/.claude/settings.json:2:10: theme: what is not known here is ignored",
        ]
    );
}

#[test]
fn null_means_not_set() {
    let stage = Stage::new().file(
        "home/.decurion/settings.json",
        r#"{"model": null, "env": {"A": null}, "agents": {"maxDepth": null}}"#,
    );
    let loaded = stage.load();
    assert_eq!(
        (loaded.settings.model, loaded.settings.env.len(), loaded.settings.agents.max_depth),
        (None, 0, 1)
    );
}

#[test]
fn files_that_are_no_files_are_refused_without_waiting() {
    use std::os::unix::fs::symlink;
    let stage = Stage::new().file("project/.decurion/x", "");
    let file = stage.project.join(".decurion/settings.json");
    std::fs::create_dir(&file).unwrap();
    assert_eq!(stage.error(), "not an ordinary file: project/.decurion/settings.json");
    std::fs::remove_dir(&file).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        file.as_std_path(),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert_eq!(stage.error(), "not an ordinary file: project/.decurion/settings.json");
    for device in ["/dev/zero", "/dev/tty", "/dev/full"] {
        std::fs::remove_file(&file).unwrap();
        symlink(device, &file).unwrap();
        assert_eq!(stage.error(), "not an ordinary file: project/.decurion/settings.json", "{device}");
    }
    std::fs::remove_file(&file).unwrap();
    symlink(&file, &file).unwrap();
    assert!(stage.error().starts_with("cannot read project/.decurion/settings.json: "), "{}", stage.error());
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, " ".repeat((1 << 20) + 1)).unwrap();
    assert_eq!(stage.error(), "longer than 1048576 bytes: project/.decurion/settings.json");
}
