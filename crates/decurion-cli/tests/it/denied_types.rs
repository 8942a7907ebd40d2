//! Deny rules about agent types, through the real program: every name and every way in.

use decurion_testkit::proc::Home;
use serde_json::{Value, json};

use crate::stand::{LIMIT, Stand, stream};

/// A stand whose settings deny this, with a skill that an agent of this type follows.
fn stand(deny: &str, script: &str, skills_agent: &str) -> Stand {
    let home = Home::new().unwrap();
    std::fs::create_dir_all(home.state()).unwrap();
    let settings = json!({"permissions": {"deny": [deny], "allow": ["Skill"]}});
    std::fs::write(home.state().join("settings.json"), settings.to_string()).unwrap();
    let skill = home.home().join(".claude/skills/helped");
    std::fs::create_dir_all(&skill).unwrap();
    let text =
        format!("---\nname: helped\ndescription: d\ncontext: fork\nagent: {skills_agent}\n---\nDo it.\n");
    std::fs::write(skill.join("SKILL.md"), text).unwrap();
    Stand::in_home(home, script)
}

fn bodies(stand: &Stand) -> Vec<String> {
    let body =
        |request: &decurion_testkit::server::Recorded| String::from_utf8_lossy(&request.body).into_owned();
    stand.model.requests().iter().map(body).collect()
}

#[test]
fn deny_rule_holds_under_every_alias_and_way_in() {
    let agent = |name: &str| {
        format!("call Agent {{\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"{name}\"}}")
    };
    let skill = "call Skill {\"skill\": \"helped\"}".to_owned();
    for (deny, call, skills_agent) in [
        ("Agent(guide)", agent("claude-code-guide"), "guide"),
        ("Agent(claude-code-guide)", agent("guide"), "guide"),
        ("Task(Claude-Code-Guide)", agent("GUIDE"), "guide"),
        ("Agent(guide)", agent("Claude-Code-Guide").replace("Agent", "Task"), "guide"),
        ("Agent(guide)", skill.clone(), "claude-code-guide"),
        ("Agent(CLAUDE-CODE-GUIDE)", skill.clone(), "guide"),
        ("Task(claude-code-guide)", skill.clone(), "GUIDE"),
        ("Agent(general-*)", skill, "General-Purpose"),
    ] {
        let script = format!("when agent=main turn=1\n  {call}\nwhen\n  say \"done\"\n");
        let stand = stand(deny, &script, skills_agent);
        let run = stand.run(&["-p", "go"]);
        let bodies = bodies(&stand);
        assert_eq!(bodies.len(), 2, "{deny} {call}: only the root asks its model: {run:?}");
        assert!(bodies[1].contains(&format!("denied by {deny}")), "{deny} {call}: {}", bodies[1]);
        let gone = if deny.contains("general") { "- general-purpose: " } else { "- guide: " };
        assert!(!bodies[0].contains(gone) && bodies[0].contains("- Explore: "), "{deny}: {}", bodies[0]);
    }
}

#[test]
fn denied_type_is_not_the_main_agent_nor_offered_to_other_programs() {
    let stand = stand("Agent(claude-code-guide)", "when\n  say \"done\"\n", "guide");
    for name in ["guide", "claude-code-guide", "GUIDE"] {
        let run = stand.run(&["-p", "--agent", name, "go"]);
        assert_eq!(run.ending.code(), 2, "{run:?}");
        assert!(run.errors.contains("agents of type guide are denied by"), "{run:?}");
    }
    assert!(stand.model.requests().is_empty());
    let listed = stand.run(&["agents", "list"]);
    let line = listed.lines.iter().find(|line| line.starts_with("guide ")).unwrap();
    assert!(line.contains("[denied by Agent(claude-code-guide)]"), "{line}");
    let streamed = stand.run(&["-p", "--output-format", "stream-json", "--verbose", "go"]);
    let agents = stream(&streamed)[0]["agents"].clone();
    assert!(agents.to_string().contains("Explore") && !agents.to_string().contains("guide"), "{agents}");
    let asked = stand.model.requests().len();
    let ask = |id: u32, method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
    };
    let start = |id: u32, kind: &str| {
        let arguments = json!({"description": "d", "prompt": "p", "subagent_type": kind});
        ask(id, "tools/call", json!({"name": "Agent", "arguments": arguments}))
    };
    let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let lines = [
        ask(1, "initialize", hello),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string(),
        ask(2, "tools/list", json!({})),
        start(3, "Claude-Code-Guide"),
        start(4, "none"),
    ];
    let mut served = stand.decurion().args(["mcp", "serve"]).start_talking().unwrap();
    let mut said = String::new();
    for line in lines {
        served.say(&line).unwrap();
        if line.contains("\"id\"") {
            said += &served.wait_for_line(LIMIT, |line| line.contains("\"id\"")).unwrap();
        }
    }
    served.hang_up();
    served.finish(LIMIT).unwrap();
    assert!(said.contains("- Explore: ") && !said.contains("- guide: "), "{said}");
    assert!(said.contains("denied by Agent(claude-code-guide)"), "{said}");
    let known = said.split_once("The types are: ").unwrap().1.split('"').next().unwrap();
    assert!(known.contains("Explore") && !known.contains("guide"), "{known}");
    assert_eq!(stand.model.requests().len(), asked, "{said}");
}
