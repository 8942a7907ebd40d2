//! Hooks from real files: whose are in effect, in which order, and what is said about the others.

use decurion_config::Loaded;
use decurion_config::hooks::FoundHooks;
use decurion_protocol::{AgentDefinition, AgentSource};
use serde_json::json;

use crate::stage::Stage;

fn stage() -> Stage {
    let hook = |command: &str| {
        format!(r#"{{"hooks": {{"Stop": [{{"hooks": [{{"type": "command", "command": "{command}"}}]}}]}}}}"#)
    };
    Stage::new()
        .file("home/.decurion/settings.json", &hook("users"))
        .file("project/.decurion/settings.json", &hook("projects"))
        .file("managed.json", &hook("administrators"))
}

fn commands(found: &FoundHooks) -> Vec<&str> {
    found.declarations.iter().map(|hook| hook.command.as_str()).collect()
}

fn definition(source: AgentSource) -> AgentDefinition {
    AgentDefinition {
        name: "reviewer".into(),
        source,
        hooks: Some(json!({"Stop": [{"hooks": [{"type": "command", "command": "own"}]}]})),
        ..AgentDefinition::default()
    }
}

#[test]
fn those_of_a_project_wait_for_trust() {
    let stage = stage();
    assert_eq!(commands(&stage.load().hooks()), ["users", "administrators"]);
    assert_eq!(commands(&stage.load_trusted().hooks()), ["users", "projects", "administrators"]);
    let own = |loaded: &Loaded, source| commands(&loaded.hooks_of(&definition(source))).join(" ");
    assert_eq!(own(&stage.load(), AgentSource::User), "own");
    assert_eq!(own(&stage.load(), AgentSource::Project), "");
    assert_eq!(own(&stage.load_trusted(), AgentSource::Project), "own");
    let refused = stage.load().hooks_of(&definition(AgentSource::Project));
    let warning = refused.warnings[0].to_string();
    assert_eq!(warning, "agent \"reviewer\": hooks: not in effect: the folder is not trusted");
}

#[test]
fn they_can_be_switched_off_altogether() {
    let loaded = stage().file("project/.decurion/settings.local.json", r#"{"disableAllHooks": true}"#);
    assert_eq!(commands(&loaded.load().hooks()), ["users", "administrators"]);
    let loaded = loaded.load_trusted();
    assert_eq!(loaded.hooks(), FoundHooks::default());
    assert_eq!(loaded.hooks_of(&definition(AgentSource::User)), FoundHooks::default());
}

#[test]
fn an_administrator_can_have_only_his_own() {
    let loaded = stage().file(
        "managed.json",
        r#"{"allowManagedHooksOnly": true, "hooks": {"Stop": [{"hooks": [{"command": "his"}]}]}}"#,
    );
    let loaded = loaded.load_trusted();
    assert_eq!(commands(&loaded.hooks()), ["his"]);
    assert!(loaded.hooks_of(&definition(AgentSource::User)).declarations.is_empty());
    assert_eq!(commands(&loaded.hooks_of(&definition(AgentSource::Managed))), ["own"]);
}

#[test]
fn each_says_where_it_stands_and_so_does_what_is_left_out() {
    let stage = Stage::new().file(
        "home/.decurion/settings.json",
        "{\n  \"hooks\": {\n    \"PreToolUse\": [\n      {\"hooks\": [{\"type\": \"agent\"}, {\"command\": \"x\"}]}]}}",
    );
    let found = stage.load().hooks();
    let sources: Vec<_> = found.declarations.iter().map(|hook| stage.short(&hook.source)).collect();
    assert_eq!(sources, ["home/.decurion/settings.json:4:37: hooks.PreToolUse[0].hooks[1]"]);
    let warnings: Vec<_> = found.warnings.iter().map(|warning| stage.short(&warning.to_string())).collect();
    assert_eq!(
        warnings,
        ["home/.decurion/settings.json:4:18: hooks.PreToolUse[0].hooks[0]: left out: \
          hooks of type `agent` are not available in this version"]
    );
}
