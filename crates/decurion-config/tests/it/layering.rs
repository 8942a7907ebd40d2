//! Which value wins, and where it says it came from.

use decurion_config::settings::{BackgroundChoice, DontAsk, Durability};
use decurion_config::{FlagSettings, Layer, LoadRequest, TrustMode, load};
use decurion_protocol::permission::{Mode, RuleSource};

use crate::stage::Stage;

/// Every place that can set a value, lowest first.
const PLACES: &[(&str, Layer)] = &[
    ("home/.claude/settings.json", Layer::User),
    ("home/.decurion/settings.json", Layer::User),
    ("project/.claude/settings.json", Layer::Project),
    ("project/.decurion/settings.json", Layer::Project),
    ("project/.claude/settings.local.json", Layer::Local),
    ("project/.decurion/settings.local.json", Layer::Local),
    ("environment", Layer::Environment),
    ("flag", Layer::Flag),
    ("managed.json", Layer::Managed),
];

#[test]
fn the_highest_place_wins_whichever_others_there_are() {
    // Every subset of the nine places.
    for subset in 1_u32..(1 << PLACES.len()) {
        let mut stage = Stage::new();
        let mut settings = None;
        for (index, (place, _)) in PLACES.iter().enumerate().filter(|(index, _)| subset & (1 << index) != 0) {
            let json = format!("{{\n  \"model\": \"m{index}\"}}");
            match *place {
                "environment" => stage = stage.variable("DECURION_MODEL", &format!("m{index}")),
                "flag" => settings = Some(json),
                file => stage = stage.file(file, &json),
            }
        }
        let flags = FlagSettings { settings, ..FlagSettings::default() };
        let request = LoadRequest { flags, trust: TrustMode::Granted, ..stage.request() };
        let loaded = load(&request).unwrap();
        let highest = subset.ilog2() as usize;
        assert_eq!(loaded.settings.model, Some(format!("m{highest}")), "{subset:b}");
        let origin = loaded.origin("model").unwrap();
        assert_eq!(origin.layer, PLACES[highest].1);
        let expected = match PLACES[highest].0 {
            "environment" => "DECURION_MODEL".to_owned(),
            "flag" => "--settings:2:12".to_owned(),
            file => format!("{file}:2:12"),
        };
        assert_eq!(stage.short(&origin.to_string()), expected);
    }
}

#[test]
fn without_any_file_the_defaults_hold() {
    let loaded = Stage::new().load();
    let settings = &loaded.settings;
    assert_eq!(settings.model, None);
    assert_eq!(settings.permissions.default_mode, Mode::Default);
    assert_eq!(settings.durability, Durability::Process);
    assert!(settings.compaction.enabled && settings.redact_secrets && settings.background_tasks);
    assert!((settings.compaction.threshold - 0.8).abs() < 1e-9);
    assert_eq!(settings.limits.bash_timeout.as_millis(), 120_000);
    assert_eq!(settings.limits.bash_max_timeout.as_millis(), 600_000);
    assert_eq!((settings.limits.bash_output_chars, settings.limits.task_output_chars), (30_000, 32_000));
    assert_eq!((settings.agents.max_depth, settings.agents.result_budget), (1, 30_000));
    assert_eq!(settings.agents.background, BackgroundChoice::Model);
    assert_eq!(settings.print_background_wait.as_secs(), 600);
    assert_eq!(loaded.origin("durability").unwrap().to_string(), "built in");
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    assert!(loaded.providers.is_empty());
}

#[test]
fn rules_add_up_over_the_layers_and_keep_their_place() {
    use RuleSource::{
        CliArg, FlagSettings as Flag, LocalSettings, PolicySettings, ProjectSettings, UserSettings,
    };
    let stage = Stage::new()
        .file("home/.claude/settings.json", r#"{"permissions": {"allow": ["Read"], "deny": ["Bash(rm *)"]}}"#)
        .file("home/.decurion/settings.json", r#"{"permissions": {"allow": ["Edit"]}}"#)
        .file(
            "project/.claude/settings.json",
            r#"{"permissions": {"deny": ["WebFetch"], "ask": ["Bash(git push *)"]}}"#,
        )
        .file(
            "project/.decurion/settings.local.json",
            "{\"permissions\": {\n\"allow\": [\"Glob\",\n \"Grep\"]}}",
        )
        .file("managed.json", r#"{"permissions": {"deny": ["mcp__evil"]}}"#);
    let flags = FlagSettings {
        settings: Some(r#"{"permissions": {"allow": ["Bash(ls)"]}}"#.to_owned()),
        allowed_tools: vec!["Bash(make)".to_owned()],
        disallowed_tools: vec!["Write".to_owned()],
        ..FlagSettings::default()
    };
    let loaded = load(&LoadRequest { flags, trust: TrustMode::Granted, ..stage.request() }).unwrap();
    let rules = &loaded.rules;
    let named = |list: &[decurion_protocol::Rule]| {
        list.iter().map(|rule| (rule.to_string(), rule.source)).collect::<Vec<_>>()
    };
    let expected = |rows: &[(&str, RuleSource)]| {
        rows.iter().map(|(rule, source)| ((*rule).to_owned(), *source)).collect::<Vec<_>>()
    };
    assert_eq!(
        named(&rules.set.allow),
        expected(&[
            ("Read", UserSettings),
            ("Edit", UserSettings),
            ("Glob", LocalSettings),
            ("Grep", LocalSettings),
            ("Bash(ls)", Flag),
            ("Bash(make)", CliArg),
        ])
    );
    assert_eq!(
        named(&rules.set.deny),
        expected(&[
            ("Bash(rm *)", UserSettings),
            ("WebFetch", ProjectSettings),
            ("Write", CliArg),
            ("mcp__evil", PolicySettings)
        ])
    );
    assert_eq!(named(&rules.set.ask), expected(&[("Bash(git push *)", ProjectSettings)]));
    let places: Vec<_> = rules.allow_origins.iter().map(|origin| stage.short(&origin.to_string())).collect();
    assert_eq!(places[3], "project/.decurion/settings.local.json:3:2");
    assert_eq!(places[4], "--settings:1:28");
    assert_eq!(places[5], "--allowedTools");
}

#[test]
fn the_administrator_can_want_only_his_own_rules() {
    let stage = Stage::new()
        .file("home/.decurion/settings.json", r#"{"permissions": {"allow": ["Bash"], "deny": ["Write"]}, "hooks": {"Stop": []}}"#)
        .file("managed.json", r#"{"allowManagedPermissionRulesOnly": true, "allowManagedHooksOnly": true, "permissions": {"allow": ["Read"]}}"#);
    let loaded = stage.load();
    assert_eq!(loaded.rules.set.allow.iter().map(ToString::to_string).collect::<Vec<_>>(), ["Read"]);
    assert_eq!(loaded.rules.set.deny.len(), 1);
    assert!(loaded.settings.hooks.is_empty());
    // The same words from anyone else mean nothing.
    let stage = Stage::new().file(
        "home/.decurion/settings.json",
        r#"{"allowManagedPermissionRulesOnly": true, "permissions": {"allow": ["Bash"]}}"#,
    );
    assert_eq!(stage.load().rules.set.allow.len(), 1);
}

#[test]
fn objects_are_merged_by_key_and_other_lists_are_replaced() {
    let stage = Stage::new()
        .file(
            "home/.decurion/settings.json",
            r#"{"env": {"A": "1", "B": "1"}, "fallbackModel": ["x", "y"], "agents": {"max_depth": 3, "maxTotal": 9},
                "models": {"aliases": {"sonnet": "s1", "local": {"sonnet": "l1", "opus": "l2"}}}}"#,
        )
        .file("project/.claude/settings.json", r#"{"env": {"B": "2", "C": 3}, "fallbackModel": "z"}"#)
        .file(
            "managed.json",
            r#"{"agents": {"maxDepth": 2}, "models": {"aliases": {"local": {"sonnet": "l9"}}}}"#,
        );
    let loaded = stage.load_trusted();
    let settings = &loaded.settings;
    let env: Vec<_> = settings.env.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
    assert_eq!(env, [("A", "1"), ("B", "2"), ("C", "3")]);
    assert_eq!(settings.fallback_model, ["z"]);
    assert_eq!((settings.agents.max_depth, settings.agents.max_total), (2, Some(9)));
    assert_eq!(settings.models.alias("local", "sonnet"), Some("l9"));
    assert_eq!(settings.models.alias("local", "opus"), Some("l2"));
    assert_eq!(settings.models.alias("other", "sonnet"), Some("s1"));
    assert_eq!(settings.models.alias("other", "opus"), None);
}

#[test]
fn setting_sources_limit_what_is_read() {
    for (words, expected) in [
        ("user", Some("u")),
        ("project", Some("p")),
        ("local", Some("l")),
        ("user,project", Some("p")),
        (" local , user ", Some("l")),
        ("", None),
    ] {
        let stage = Stage::new()
            .file("home/.decurion/settings.json", r#"{"model": "u"}"#)
            .file("project/.decurion/settings.json", r#"{"model": "p"}"#)
            .file("project/.decurion/settings.local.json", r#"{"model": "l"}"#);
        let flags = FlagSettings { setting_sources: Some(words.to_owned()), ..FlagSettings::default() };
        let loaded = load(&LoadRequest { flags, trust: TrustMode::Granted, ..stage.request() }).unwrap();
        assert_eq!(loaded.settings.model.as_deref(), expected, "{words:?}");
    }
    let flags = FlagSettings { setting_sources: Some("user,team".to_owned()), ..FlagSettings::default() };
    let error = load(&LoadRequest { flags, ..Stage::new().request() }).unwrap_err().to_string();
    assert!(error.ends_with("found \"team\""), "{error}");
}

#[test]
fn variables_are_a_layer() {
    let rows: &[(&str, &str, fn(&decurion_config::Settings) -> String, &str)] = &[
        ("BASH_DEFAULT_TIMEOUT_MS", "5000", |s| s.limits.bash_timeout.as_millis().to_string(), "5000"),
        (
            "BASH_DEFAULT_TIMEOUT_MS",
            "700000",
            |s| s.limits.bash_max_timeout.as_millis().to_string(),
            "700000",
        ),
        ("BASH_MAX_TIMEOUT_MS", "900000", |s| s.limits.bash_max_timeout.as_millis().to_string(), "900000"),
        ("BASH_MAX_OUTPUT_LENGTH", "77", |s| s.limits.bash_output_chars.to_string(), "77"),
        ("TASK_MAX_OUTPUT_LENGTH", "78", |s| s.limits.task_output_chars.to_string(), "78"),
        (
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS",
            "4096",
            |s| format!("{:?}", s.limits.max_output_tokens),
            "Some(4096)",
        ),
        ("DISABLE_AUTO_COMPACT", "1", |s| s.compaction.enabled.to_string(), "false"),
        ("DISABLE_AUTO_COMPACT", "0", |s| s.compaction.enabled.to_string(), "true"),
        ("CLAUDE_AUTOCOMPACT_PCT_OVERRIDE", "50", |s| s.compaction.threshold.to_string(), "0.5"),
        ("DECURION_SUBAGENT_MODEL", "haiku", |s| format!("{:?}", s.agents.model), "Some(\"haiku\")"),
        ("CLAUDE_CODE_SUBAGENT_MODEL", "haiku", |s| format!("{:?}", s.agents.model), "Some(\"haiku\")"),
        ("DECURION_DISABLE_BACKGROUND_TASKS", "true", |s| s.background_tasks.to_string(), "false"),
        ("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "1", |s| s.background_tasks.to_string(), "false"),
        (
            "CLAUDE_CODE_PRINT_BG_WAIT_CEILING_MS",
            "1500",
            |s| s.print_background_wait.as_secs().to_string(),
            "2",
        ),
        ("CLAUDE_CODE_MAX_SUBAGENT_SPAWN_DEPTH", "3", |s| s.agents.max_depth.to_string(), "3"),
        ("DECURION_DURABILITY", "power", |s| format!("{:?}", s.durability), "Power"),
        ("DECURION_REDACT_SECRETS", "off", |s| s.redact_secrets.to_string(), "false"),
        ("CLAUDE_CODE_MAX_TURNS", "7", |s| format!("{:?}", s.budget.turns), "Some(7)"),
    ];
    for (name, value, read, expected) in rows {
        let loaded = Stage::new().variable(name, value).load();
        assert_eq!(read(&loaded.settings), *expected, "{name}={value}");
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    }
}

#[test]
fn a_variable_that_makes_no_sense_is_ignored_with_a_word() {
    for (name, value) in [
        ("TASK_MAX_OUTPUT_LENGTH", "many"),
        ("TASK_MAX_OUTPUT_LENGTH", "0"),
        ("BASH_DEFAULT_TIMEOUT_MS", "-5"),
        ("DECURION_DURABILITY", "never"),
        ("CLAUDE_AUTOCOMPACT_PCT_OVERRIDE", "NaN"),
        ("DECURION_MODLE", "x"),
    ] {
        let stage = Stage::new().variable(name, value);
        let loaded = stage.load();
        let warnings = stage.warnings(&loaded);
        assert!(warnings.len() == 1 && warnings[0].contains(name), "{warnings:?}");
        assert_eq!(loaded.settings.limits.task_output_chars, 32_000);
    }
}

#[test]
fn ours_goes_before_theirs_and_equal_names_are_one_setting() {
    let stage = Stage::new().file(
        "home/.claude/settings.json",
        r#"{"autoCompactEnabled": false, "bashOutputMaxChars": 5, "taskOutputMaxChars": 6}"#,
    );
    let loaded = stage.load();
    assert!(!loaded.settings.compaction.enabled);
    assert_eq!((loaded.settings.limits.bash_output_chars, loaded.settings.limits.task_output_chars), (5, 6));
    assert_eq!(
        stage.short(&loaded.origin("compaction.enabled").unwrap().to_string()),
        "home/.claude/settings.json:1:24"
    );
    let stage = stage.file("home/.decurion/settings.json", r#"{"compaction": {"enabled": true}}"#);
    assert!(stage.load().settings.compaction.enabled);
}

#[test]
fn dont_ask_denies_where_the_ecosystem_wrote_it() {
    for (file, extra, expected) in [
        ("home/.claude/settings.json", "", DontAsk::Deny),
        ("home/.decurion/settings.json", "", DontAsk::Allow),
        ("home/.decurion/settings.json", r#", "dontAsk": "deny""#, DontAsk::Deny),
    ] {
        let json = format!(r#"{{"permissions": {{"defaultMode": "dontAsk"{extra}}}}}"#);
        let loaded = Stage::new().file(file, &json).load();
        assert_eq!(loaded.settings.permissions.default_mode, Mode::DontAsk);
        assert_eq!(loaded.settings.permissions.dont_ask, expected, "{file}");
    }
    let stage = Stage::new()
        .file("home/.claude/settings.json", r#"{"permissions": {"defaultMode": "dontAsk"}}"#)
        .file("managed.json", r#"{"permissions": {"dontAsk": "allow"}}"#);
    assert_eq!(stage.load().settings.permissions.dont_ask, DontAsk::Allow);
}

#[test]
fn bypassing_can_be_switched_off_for_good() {
    let stage =
        Stage::new().file("managed.json", r#"{"permissions": {"disableBypassPermissionsMode": "disable"}}"#);
    let flags = FlagSettings { permission_mode: Some(Mode::BypassPermissions), ..FlagSettings::default() };
    let loaded = load(&LoadRequest { flags, ..stage.request() }).unwrap();
    assert_eq!(loaded.settings.permissions.default_mode, Mode::Default);
    assert!(loaded.settings.permissions.disable_bypass);
    assert!(loaded.warnings[0].to_string().contains("--permission-mode: permissions.defaultMode"));
}

#[test]
fn directories_start_from_where_they_are_written() {
    let stage = Stage::new()
        .file(
            "home/.decurion/settings.json",
            r#"{"permissions": {"additionalDirectories": ["~/notes", "/srv/data"]}}"#,
        )
        .file(
            "project/.decurion/settings.json",
            r#"{"permissions": {"additionalDirectories": ["../sibling", "/srv/data"]}}"#,
        )
        .file("project/deep/er/x", "");
    let mut request = stage.request();
    request.cwd = stage.project.join("deep/er");
    request.trust = TrustMode::Granted;
    request.flags.directories = vec!["here".to_owned()];
    let loaded = load(&request).unwrap();
    assert_eq!(loaded.paths.root, stage.project);
    let directories: Vec<_> = loaded
        .settings
        .permissions
        .additional_directories
        .iter()
        .map(|path| stage.short(path.as_str()))
        .collect();
    assert_eq!(directories, ["home/notes", "/srv/data", "project/../sibling", "project/deep/er/here"]);
}

#[test]
fn settings_given_on_the_command_line_are_a_file_or_json() {
    let stage = Stage::new().file("project/extra.json", "// mine\n{\"model\": \"from-file\"}");
    let flags = |text: &str| FlagSettings { settings: Some(text.to_owned()), ..FlagSettings::default() };
    let load_with = |text: &str| load(&LoadRequest { flags: flags(text), ..stage.request() });
    let loaded = load_with("extra.json").unwrap();
    assert_eq!(loaded.settings.model.as_deref(), Some("from-file"));
    assert_eq!(stage.short(&loaded.origin("model").unwrap().to_string()), "project/extra.json:2:11");
    assert_eq!(loaded.origin("model").unwrap().layer, Layer::Flag);
    assert_eq!(load_with(" {\"model\": \"inline\"}").unwrap().settings.model.as_deref(), Some("inline"));
    let missing = load_with("none.json").unwrap_err().to_string();
    assert_eq!(stage.short(&missing), "no such settings file: project/none.json");
    assert_eq!(load_with("{\"model\": }").unwrap_err().to_string(), "--settings:1:11: expected a value");
    let model = FlagSettings { model: Some("flagged".to_owned()), ..flags("{\"model\": \"inline\"}") };
    let loaded = load(&LoadRequest { flags: model, ..stage.request() }).unwrap();
    assert_eq!(loaded.settings.model.as_deref(), Some("flagged"));
    assert_eq!(loaded.origin("model").unwrap().to_string(), "--model");
}

#[test]
fn every_effective_value_is_listed_with_its_origin() {
    let stage = Stage::new()
        .file(
            "home/.decurion/settings.json",
            "{\"permissions\": {\"allow\": [\"Read\", \"Edit\"]},\n \"durability\": \"power\"}",
        )
        .variable("DECURION_MODEL", "m");
    let rows = stage.load().rows();
    let lines: Vec<_> = rows.iter().map(|row| stage.short(&row.line(true))).collect();
    for expected in [
        "durability = \"power\"  (user: home/.decurion/settings.json:2:16)",
        "model = \"m\"  (environment: DECURION_MODEL)",
        "permissions.allow[0] = \"Read\"  (user: home/.decurion/settings.json:1:28)",
        "permissions.allow[1] = \"Edit\"  (user: home/.decurion/settings.json:1:36)",
        "agents.maxDepth = 1  (default: built in)",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected}\n{}", lines.join("\n"));
    }
    let json = serde_json::to_value(&rows).unwrap();
    let durability = json.as_array().unwrap().iter().find(|row| row["key"] == "durability").unwrap();
    assert_eq!(durability["origin"]["layer"], "user");
    assert_eq!(
        (durability["origin"]["line"].as_u64(), durability["origin"]["column"].as_u64()),
        (Some(2), Some(16))
    );
}
