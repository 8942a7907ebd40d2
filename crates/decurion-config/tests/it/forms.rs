//! Definition files as people write them, in `forms/`: each form and each mistake once. The tables say of every
//! file what it loads as, what is said about it with its line, or the one reason why it is refused.

use std::fmt::Write as _;
use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_config::{
    AgentFolder, AgentProblem, AgentRequest, Agents, Environment, McpRequest, Plugin, Severity, SkillRequest,
    Skills, TrustMode, mcp,
};
use decurion_protocol::{AgentDefinition, AgentSource, Skill, SkillKind};
use expect_test::{ExpectFile, expect_file};

use crate::stage::Stage;

const TOOLS: &[&str] = &[
    "Agent",
    "Bash",
    "Edit",
    "Glob",
    "Grep",
    "ListMcpResources",
    "NotebookEdit",
    "Read",
    "ReadMcpResource",
    "Skill",
    "TaskOutput",
    "TaskStop",
    "TodoWrite",
    "WebFetch",
    "Write",
];

fn forms(kind: &str) -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/forms").join(kind)
}

/// Every file below a folder, sorted.
fn files(folder: &Utf8Path) -> Vec<Utf8PathBuf> {
    let mut found = Vec::new();
    for entry in folder.read_dir_utf8().unwrap() {
        let path = entry.unwrap().into_path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn folder(path: &Utf8Path) -> AgentFolder {
    AgentFolder::shared(path, AgentSource::User)
}

/// What is said about a file, one line each, the file's own path left out.
fn said(problems: &[AgentProblem]) -> String {
    let mut lines = String::new();
    for problem in problems {
        let place = problem.line.map(|line| format!(" line {line}")).unwrap_or_default();
        let mut text = problem.text.replace(forms("").as_str(), "");
        if text.chars().count() > 150 {
            text = format!("{}…", text.chars().take(150).collect::<String>());
        }
        writeln!(lines, "    {}{place}: {text}", problem.severity).unwrap();
    }
    lines
}

fn verdict(problems: &[AgentProblem], loaded: Option<String>) -> String {
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    match loaded {
        Some(loaded) => format!("loads as {loaded}"),
        None if errors == 0 => "not taken for one".to_owned(),
        None => "refused".to_owned(),
    }
}

/// Every file says something if it is not loaded, and one reason is enough.
fn check_words(name: &str, problems: &[AgentProblem], is_loaded: bool) {
    let errors: Vec<_> = problems.iter().filter(|problem| problem.severity == Severity::Error).collect();
    assert!(is_loaded == errors.is_empty() || !problems.is_empty(), "{name} is dropped in silence");
    assert!(errors.len() <= 1, "{name}: {errors:?}");
    let is_text = fs::read(forms("").join(name)).is_ok_and(|bytes| std::str::from_utf8(&bytes).is_ok());
    for problem in problems.iter().filter(|problem| problem.line.is_some()) {
        let lines =
            fs::read(forms("").join(name)).map_or(0, |bytes| bytes.split(|byte| *byte == b'\n').count());
        assert!(!is_text || problem.line.unwrap() as usize <= lines, "{name}: {problem}");
    }
}

fn definition(definition: &AgentDefinition) -> String {
    let mut parts = vec![definition.name.clone()];
    let mut description: String = definition.description.chars().take(50).collect();
    if description.len() < definition.description.len() {
        let _ = write!(description, "… ({} bytes)", definition.description.len());
    }
    parts.push(format!("{description:?}"));
    parts.extend(definition.tools.only.as_ref().map(|tools| format!("tools [{}]", tools.join(", "))));
    if !definition.tools.except.is_empty() {
        parts.push(format!("without [{}]", definition.tools.except.join(", ")));
    }
    parts.extend(definition.model.as_ref().map(|model| format!("model {model}")));
    parts.extend(definition.mode.map(|mode| format!("mode {mode:?}")));
    parts.extend(definition.limits.turns.map(|turns| format!("turns {turns}")));
    if !definition.equipment.is_empty() {
        parts.push(serde_json::to_string(&definition.equipment).unwrap());
    }
    parts.join(" · ")
}

fn skill(skill: &Skill) -> String {
    let mut value = serde_json::to_value(skill).unwrap();
    let members = value.as_object_mut().unwrap();
    members.retain(|key, value| {
        !["kind", "source", "path", "folder", "plugin_root", "name", "description"].contains(&key.as_str())
            && value != "both"
    });
    let rest = if members.is_empty() { String::new() } else { format!(" · {value}") };
    format!("/{} · {:?}{rest}", skill.name, skill.description)
}

fn check(table: &str, expected: &ExpectFile) {
    expected.assert_eq(table);
}

#[test]
fn agents() {
    let loaded = Stage::new().load();
    let mut table = String::new();
    for file in files(&forms("agents")) {
        let mut request = AgentRequest::new(&loaded, TOOLS);
        request.servers = Some(vec!["github".into()]);
        request.folders = vec![folder(&forms("agents"))];
        let found = Agents::check(&request, std::slice::from_ref(&file));
        let loads = found.all.first().map(|agent| definition(&agent.definition));
        let name = format!("agents/{}", file.file_name().unwrap());
        check_words(&name, &found.problems, loads.is_some());
        writeln!(table, "{name}: {}", verdict(&found.problems, loads)).unwrap();
        table += &said(&found.problems);
    }
    check(&table, &expect_file!["forms/agents.table"]);
}

#[test]
fn skills_and_commands() {
    let loaded = Stage::new().load();
    let mut table = String::new();
    for (kind, name) in [(SkillKind::Skill, "skills"), (SkillKind::Command, "commands")] {
        let mut request = SkillRequest::new(&loaded, TOOLS);
        request.agents = Some(vec!["Explore".into()]);
        let found = Skills::check(&request, kind, &folder(&forms(name)));
        let mut about: Vec<Utf8PathBuf> =
            found.problems.iter().map(|problem| Utf8PathBuf::from(problem.origin.to_string())).collect();
        about.extend(found.all.iter().map(|loaded| loaded.skill.path.clone()));
        about.sort();
        about.dedup();
        for file in about {
            let problems: Vec<AgentProblem> = found
                .problems
                .iter()
                .filter(|problem| problem.origin.to_string() == file.as_str())
                .cloned()
                .collect();
            let loads = found.all.iter().find(|loaded| loaded.skill.path == file);
            let name = file.strip_prefix(forms("")).unwrap();
            check_words(name.as_str(), &problems, loads.is_some());
            writeln!(table, "{name}: {}", verdict(&problems, loads.map(|loaded| skill(&loaded.skill))))
                .unwrap();
            table += &said(&problems);
        }
    }
    check(&table, &expect_file!["forms/skills.table"]);
}

#[test]
fn hooks_and_servers() {
    let mut table = String::new();
    for file in files(&forms("hooks")) {
        let content = fs::read_to_string(&file).unwrap();
        let stage = Stage::new().file("p/.claude-plugin/plugin.json", r#"{"name": "p"}"#);
        let stage = stage.file("p/hooks/hooks.json", &content);
        let plugin = Plugin::read(&stage.top.join("p"));
        writeln!(table, "hooks/{}:", file.file_name().unwrap()).unwrap();
        let found = plugin.hooks();
        for hook in &found.declarations {
            let matcher = hook.matcher.as_deref().unwrap_or("*");
            writeln!(table, "    {} {matcher}: {}", hook.event, stage.short(&hook.command)).unwrap();
        }
        for warning in &found.warnings {
            writeln!(table, "    warning: {}", stage.short(&warning.to_string())).unwrap();
        }
        table += &stage.short(&said(&plugin.problems));
    }
    for file in files(&forms("mcp")) {
        let content = fs::read_to_string(&file).unwrap();
        let stage = Stage::new()
            .file("p/.claude-plugin/plugin.json", r#"{"name": "p"}"#)
            .file("p/.mcp.json", &content)
            .file("project/.mcp.json", &content);
        writeln!(table, "mcp/{}:", file.file_name().unwrap()).unwrap();
        let loaded = stage.load_trusted();
        for warning in stage.warnings(&loaded) {
            writeln!(table, "    warning: {warning}").unwrap();
        }
        let plugin = Plugin::read(&stage.top.join("p"));
        let request = McpRequest {
            loaded: &loaded,
            environment: &Environment::from_pairs([("HOME", stage.home.as_str())]),
            configs: &[],
            strict: false,
            plugins: &[plugin.declared_servers()],
            trust: TrustMode::Granted,
            led: false,
        };
        let servers = mcp::servers(&request).unwrap();
        for entry in &servers.entries {
            writeln!(table, "    {}: {}", entry.name, entry.state.describe(&entry.name)).unwrap();
        }
        for problem in &servers.problems {
            writeln!(table, "    warning: {}", stage.short(&problem.to_string())).unwrap();
        }
        table += &said(&plugin.problems);
    }
    check(&table, &expect_file!["forms/hooks.table"]);
}

#[test]
fn plugins() {
    let stage = Stage::new();
    let loaded = stage.load();
    let mut table = String::new();
    let mut roots: Vec<Utf8PathBuf> =
        forms("plugins").read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()).collect();
    roots.sort();
    for root in roots {
        let plugin = Plugin::check(&root, &loaded, TOOLS);
        let version = plugin.version.as_deref().unwrap_or("-");
        writeln!(table, "{}: {} {version} {}", root.file_name().unwrap(), plugin.name, plugin.state.word())
            .unwrap();
        let short = |text: &str| text.replace(root.as_str(), "<root>");
        let mut agents = AgentRequest::new(&loaded, TOOLS);
        (agents.folders, agents.plugins) = (Vec::new(), plugin.agents.clone());
        for agent in Agents::load(&agents).all {
            if agent.definition.source == AgentSource::Plugin {
                let (name, prompt) = (&agent.definition.name, short(&agent.definition.prompt));
                writeln!(table, "    agent {name}: {prompt}").unwrap();
            }
        }
        let mut skills = SkillRequest::new(&loaded, TOOLS);
        (skills.folders, skills.plugins) = (Vec::new(), plugin.skills.clone());
        for skill in Skills::load(&skills).all {
            writeln!(table, "    {:?} {}", skill.skill.kind, skill.skill.name).unwrap();
        }
        for hook in plugin.hooks().declarations {
            writeln!(table, "    hook {} {}", hook.event, short(&hook.command)).unwrap();
        }
        for (name, server) in plugin.servers() {
            writeln!(table, "    server {name} {}", short(&server.to_string())).unwrap();
        }
        table += &short(&said(&plugin.problems));
    }
    check(&table, &expect_file!["forms/plugins.table"]);
}

/// The tables are worth what they cover.
#[test]
fn there_are_enough_of_them() {
    let count =
        ["agents", "skills", "commands", "hooks", "plugins", "mcp"].map(|kind| files(&forms(kind)).len());
    assert!(count.iter().sum::<usize>() >= 60, "{count:?}");
}
