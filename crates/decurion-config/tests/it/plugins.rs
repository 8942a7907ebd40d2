//! Plugins added by a user: what is on, what changed since, and that nothing leads out of their folder.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use decurion_config::{
    AgentProblem, AgentRequest, Agents, Plugin, PluginRegistry, PluginState, Plugins, SkillRequest, Skills,
};
use expect_test::expect;

use crate::stage::{Stage, write};

fn stage() -> Stage {
    Stage::new()
        .file("p/.claude-plugin/plugin.json", r#"{"name": "p", "version": "1"}"#)
        .file("p/agents/a.md", "---\ndescription: d\n---\nx")
        .file("p/hooks/hooks.json", r#"{"hooks": {"Stop": [{"hooks": [{"command": "true"}]}]}}"#)
        .file("p/commands/c.md", "x")
}

fn registry(stage: &Stage) -> PluginRegistry {
    let (registry, warning) = PluginRegistry::open(&stage.load().paths);
    assert_eq!(warning, None);
    registry
}

fn states(stage: &Stage, directories: &[&str]) -> Vec<String> {
    let directories: Vec<_> = directories.iter().map(|name| stage.top.join(name)).collect();
    let plugins = Plugins::load(&stage.load(), &directories);
    let states = plugins.all.iter().map(|plugin| {
        let hooks = plugins.hooks(&stage.load()).declarations.len();
        format!("{} {} {}, {hooks} hooks", plugin.name, plugin.source(), plugin.state.word())
    });
    states.chain(plugins.warnings.iter().map(|warning| stage.short(warning))).collect()
}

#[test]
fn the_hooks_of_a_plugin_and_of_its_skills_know_its_folder() {
    let command = "\"${CLAUDE_PLUGIN_ROOT}/x\" $CLAUDE_PLUGIN_ROOT";
    let skill = "---\ndescription: d\nhooks:\n  Stop:\n    - hooks: [{command: own}]\n---\nx";
    let stage = stage()
        .file("p/skills/s/SKILL.md", skill)
        .file("p/hooks/hooks.json", &format!(r#"{{"Stop": [{{"hooks": [{{"command": {command:?}}}]}}]}}"#));
    let (root, loaded) = (stage.top.join("p").canonicalize_utf8().unwrap(), stage.load());
    let plugins = Plugins::load(&loaded, std::slice::from_ref(&root));
    let [hook] = &plugins.hooks(&loaded).declarations[..] else { panic!("one hook") };
    assert_eq!(hook.plugin_root.as_ref(), Some(&root));
    assert_eq!(hook.command, format!("\"{root}/x\" $CLAUDE_PLUGIN_ROOT"));
    let mut request = SkillRequest::new(&loaded, &[]);
    request.plugins = plugins.skills();
    let skills = Skills::load(&request);
    let [own] = &loaded.hooks_of_skill(skills.get("p:s").unwrap()).declarations[..] else { panic!("one") };
    assert_eq!((own.command.as_str(), own.plugin_root.as_ref()), ("own", Some(&root)));
    // What it has come to run since then is not in force, and a plugin that was added is off.
    assert!(registry(&stage).add(&Plugin::read(&root)).unwrap());
    write(&root.join("skills/s/SKILL.md"), &skill.replace("own", "other"));
    let skills = Skills::load(&request);
    assert!(loaded.hooks_of_skill(skills.get("p:s").unwrap()).declarations.is_empty());
    assert!(states(&stage, &[])[0].starts_with("p p@local changed"), "{:?}", states(&stage, &[]));
}

#[test]
fn what_is_wrong_with_a_plugins_hooks_is_told_with_its_line() {
    let hooks =
        "{\n  \"hooks\": {\n    \"Stop\": [\n      {\"hooks\": [\n        {\"type\": \"odd\"}\n      ]}]}}";
    let stage = stage().file("p/hooks/hooks.json", hooks);
    let plugin = Plugin::check(&stage.top.join("p"), &stage.load(), &["Read"]);
    let said: Vec<String> = plugin.problems.iter().map(|problem| stage.short(&problem.to_string())).collect();
    assert_eq!(said, ["p/hooks/hooks.json:5: warning: hooks.Stop[0].hooks[0]: left out: unknown hook type"]);
}

#[test]
fn a_plugin_is_on_as_long_as_it_runs_what_the_user_saw() {
    let stage = stage();
    let root = stage.top.join("p");
    assert_eq!(states(&stage, &[]), Vec::<String>::new());
    assert_eq!(states(&stage, &["p"]), ["p p@inline on, 1 hooks"]);
    assert!(registry(&stage).add(&Plugin::read(&root)).unwrap());
    let record = stage.home.join(".decurion/plugins.json");
    assert_eq!(fs::metadata(&record).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(states(&stage, &[]), ["p p@local on, 1 hooks"]);
    // Words may change; what runs may not.
    write(&root.join("agents/a.md"), "---\ndescription: other\n---\ny");
    assert_eq!(states(&stage, &[]), ["p p@local on, 1 hooks"]);
    for (file, text) in [
        ("hooks/hooks.json", r#"{"hooks": {"Stop": [{"hooks": [{"command": "false"}]}]}}"#),
        (".mcp.json", r#"{"mcpServers": {"s": {"command": "x"}}}"#),
        ("commands/c.md", "---\nallowed-tools: Bash\n---\nx"),
        ("agents/a.md", "---\ndescription: d\nmcpServers: [{own: {command: x}}]\n---\ny"),
    ] {
        write(&root.join(file), text);
        expect![[r"
            p p@local changed, 0 hooks
            plugin p is off, because what it runs is not what it was when it was enabled; look at it, then `decurion plugin enable p`: p"]]
        .assert_eq(&states(&stage, &[]).join("\n").replace(stage.top.join("p").as_str(), "p"));
        let plugin = registry(&stage).find("p").unwrap();
        registry(&stage).enable("p", &plugin).unwrap();
        assert_eq!(states(&stage, &[]), ["p p@local on, 1 hooks"], "{file}");
    }
    registry(&stage).disable("p").unwrap();
    assert_eq!(states(&stage, &[]), ["p p@local off, 0 hooks"]);
    registry(&stage).remove("p").unwrap();
    assert_eq!(states(&stage, &[]), Vec::<String>::new());
    assert!(registry(&stage).remove("p").is_err());
}

#[test]
fn settings_switch_a_plugin_that_was_added() {
    let stage = stage();
    registry(&stage).add(&Plugin::read(&stage.top.join("p"))).unwrap();
    let stage =
        stage.file("home/.claude/settings.json", r#"{"enabledPlugins": {"p@market": false, "q@m": true}}"#);
    assert_eq!(states(&stage, &[]), ["p p@local off, 0 hooks"]);
    let stage = stage.file("home/.claude/settings.json", r#"{"disableAllHooks": true}"#);
    assert_eq!(states(&stage, &[]), ["p p@local on, 0 hooks"]);
}

#[test]
fn the_first_of_two_of_one_name_counts() {
    let stage = stage().file("q/.decurion-plugin/plugin.json", r#"{"name": "p"}"#);
    let error = {
        registry(&stage).add(&Plugin::read(&stage.top.join("p"))).unwrap();
        registry(&stage).add(&Plugin::read(&stage.top.join("q"))).unwrap_err()
    };
    assert_eq!(stage.short(&error.to_string()), "another plugin of this name was added from p");
    let states = states(&stage, &["q", "p"]);
    assert_eq!(states[..2], ["p p@inline on, 0 hooks", "plugin p is there twice; used: q, not: p"]);
}

#[test]
fn nothing_leads_out_of_a_plugin() {
    let stage = stage().file("secret.md", "---\nname: s\ndescription: d\n---\nsecret");
    let root = stage.top.join("p");
    symlink(stage.top.join("secret.md"), root.join("agents/link.md")).unwrap();
    symlink(stage.top.join("secret.md"), root.join("commands/link.md")).unwrap();
    symlink(&stage.home, root.join("skills")).unwrap();
    let plugin = Plugin::read(&root);
    assert_eq!(plugin.state, PluginState::Broken);
    assert!(plugin.skills.iter().all(|(_, folder)| !folder.path.ends_with("skills")));
    let loaded = stage.load();
    let mut agents = AgentRequest::new(&loaded, &["Read"]);
    agents.plugins.clone_from(&plugin.agents);
    let agents = Agents::load(&agents);
    assert!(agents.get("p:s").is_none() && agents.get("p:a").is_some());
    let mut skills = SkillRequest::new(&loaded, &["Read"]);
    skills.plugins.clone_from(&plugin.skills);
    let skills = Skills::load(&skills);
    assert!(skills.get("p:link").is_none() && skills.get("p:c").is_some());
    let said =
        agents.problems.iter().chain(&skills.problems).map(|problem| stage.short(&problem.to_string()));
    let said: Vec<String> = said.filter(|text| !text.starts_with("built-in")).collect();
    assert_eq!(
        said,
        [
            "p/agents/link.md: error: leads out of the plugin's folder",
            "p/commands/link.md: error: leads out of the plugin's folder",
        ]
    );
}

#[test]
fn a_record_that_others_can_change_is_not_believed() {
    let stage = stage();
    registry(&stage).add(&Plugin::read(&stage.top.join("p"))).unwrap();
    let record = stage.home.join(".decurion/plugins.json");
    fs::set_permissions(&record, fs::Permissions::from_mode(0o666)).unwrap();
    let states = states(&stage, &[]);
    assert!(states[0].starts_with("no plugin is used, because others can change its record"), "{states:?}");
}

#[test]
fn what_a_plugin_comes_to_run_while_a_session_runs_waits() {
    let stage = stage()
        .file("p/agents/b.md", "---\ndescription: d\nmcpServers: [{own: {command: x}}]\n---\nx")
        .file("p/commands/d.md", "---\nallowed-tools: Read\n---\nx");
    registry(&stage).add(&Plugin::read(&stage.top.join("p"))).unwrap();
    let mut changed = Vec::new();
    for directories in [vec![], vec![stage.top.join("p")]] {
        let loaded = stage.load();
        let plugins = Plugins::load(&loaded, &directories);
        let mut agents = AgentRequest::new(&loaded, &["Read", "Bash"]);
        agents.plugins = plugins.agents();
        let mut skills = SkillRequest::new(&loaded, &["Read", "Bash"]);
        skills.plugins = plugins.skills();
        let seen = || {
            let (agents, skills) = (Agents::load(&agents), Skills::load(&skills));
            let servers = |name: &str| agents.get(name).unwrap().definition.equipment.mcp_servers.is_some();
            let tools = |name: &str| skills.get(name).unwrap().allowed_tools.join(" ");
            let is_said = |problem: &&AgentProblem| problem.text.contains("is ignored, because");
            let said = agents.problems.iter().chain(&skills.problems).filter(is_said);
            let said: Vec<String> = said.map(|problem| stage.short(&problem.to_string())).collect();
            format!(
                "{} {} {:?} {:?}\n{}",
                servers("p:a"),
                servers("p:b"),
                tools("p:c"),
                tools("p:d"),
                said.join("\n")
            )
        };
        assert_eq!(seen(), "false true \"\" \"Read\"\n");
        for file in ["agents/a.md", "agents/b.md"] {
            write(
                &stage.top.join("p").join(file),
                "---\ndescription: d\nmcpServers: [{own: {command: evil}}]\n---\nx",
            );
        }
        for file in ["commands/c.md", "commands/d.md"] {
            write(&stage.top.join("p").join(file), "---\nallowed-tools: Bash\n---\nx");
        }
        changed.push(seen());
        write(&stage.top.join("p/agents/a.md"), "---\ndescription: d\n---\nx");
        write(
            &stage.top.join("p/agents/b.md"),
            "---\ndescription: other\nmcpServers: [{own: {command: x}}]\n---\nother",
        );
        write(&stage.top.join("p/commands/c.md"), "x");
        write(&stage.top.join("p/commands/d.md"), "---\nallowed-tools: Read\n---\nother");
        assert_eq!(seen(), "false true \"\" \"Read\"\n");
    }
    assert_eq!(changed[0], changed[1]);
    expect![[r#"
        false false "" ""
        p/agents/a.md:3: warning: `mcpServers` is ignored, because it is not what was there when the plugin was loaded (see `decurion plugin enable`)
        p/agents/b.md:3: warning: `mcpServers` is ignored, because it is not what was there when the plugin was loaded (see `decurion plugin enable`)
        p/commands/c.md:2: warning: `allowed-tools` is ignored, because it is not what was there when the plugin was loaded (see `decurion plugin enable`)
        p/commands/d.md:2: warning: `allowed-tools` is ignored, because it is not what was there when the plugin was loaded (see `decurion plugin enable`)"#]].assert_eq(&changed[0]);
}
