//! What agents read besides: skills and commands, memories, the instructions of folders, and what a report must
//! be; all through the real loop.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_engine::{Instructions, Library, Memory};
use decurion_protocol::{
    AgentDefinition, AgentSource, Answer, Block, Command, Event, HookDeclaration, HookEvent, Invocable,
    OpenSession, Outcome, Place as _, Rule, Skill, SkillKind, Start, ToolSelection,
};
use decurion_testkit::repo::Repo;
use decurion_testkit::stage::{Played, Stage, render, send};
use expect_test::expect;
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::isolated;
use crate::support::{self, worker};

/// A library of a test.
#[derive(Default)]
struct Shelf {
    skills: Mutex<Vec<(Arc<Skill>, String)>>,
    memory: Option<Memory>,
    nested: BTreeMap<&'static str, &'static str>,
    /// What hooks of skills run, by skill.
    hooks: BTreeMap<&'static str, Vec<HookDeclaration>>,
}

impl Library for Shelf {
    fn has_skills(&self) -> bool {
        true
    }

    fn skills(&self) -> Vec<Arc<Skill>> {
        self.skills.lock().unwrap().iter().map(|(skill, _)| Arc::clone(skill)).collect()
    }

    fn body(&self, skill: &Skill) -> Result<String, String> {
        let skills = self.skills.lock().unwrap();
        let found = skills.iter().find(|(own, _)| own.name == skill.name);
        found.map(|(_, body)| body.clone()).ok_or_else(|| "it is gone".to_owned())
    }

    fn hooks_of(&self, skill: &Skill) -> Vec<HookDeclaration> {
        self.hooks.get(skill.name.as_str()).cloned().unwrap_or_default()
    }

    fn concerning(&self, _cwd: &Utf8Path, file: &Utf8Path) -> Vec<Arc<Skill>> {
        let concerns =
            |skill: &Arc<Skill>| skill.paths.iter().any(|end| file.as_str().ends_with(end.as_str()));
        self.skills().into_iter().filter(concerns).collect()
    }

    fn memory(&self, scope: &str, agent: &AgentDefinition) -> Result<Memory, String> {
        self.memory.clone().ok_or_else(|| format!("no {scope} memory of {}", agent.name))
    }

    fn nested(&self, cwd: &Utf8Path, file: &Utf8Path) -> Vec<Instructions> {
        let below = |folder: &&str| file.starts_with(cwd.join(folder));
        let told = |(folder, text): (&&str, &&str)| Instructions {
            path: cwd.join(folder).join("AGENTS.md"),
            place: cwd.join(folder).join("AGENTS.md"),
            imported_by: None,
            text: (*text).to_owned(),
        };
        self.nested.iter().filter(|(folder, _)| below(folder)).map(told).collect()
    }
}

fn skill(name: &str) -> Skill {
    Skill {
        name: name.into(),
        description: format!("does {name}"),
        folder: format!("/skills/{name}").into(),
        path: format!("/skills/{name}/SKILL.md").into(),
        source: AgentSource::User,
        ..Skill::default()
    }
}

fn shelf(skills: impl IntoIterator<Item = (Skill, &'static str)>) -> Arc<Shelf> {
    let skills = skills.into_iter().map(|(skill, body)| (Arc::new(skill), body.to_owned())).collect();
    Arc::new(Shelf { skills: Mutex::new(skills), ..Shelf::default() })
}

fn stage(script: &str, library: Arc<Shelf>) -> Stage {
    let mut stage = support::stage(script);
    stage.library = library;
    stage
}

/// A stage whose commands really run.
fn with_shell(stage: Stage) -> Stage {
    let mut stage = support::with_processes(stage);
    stage.tools.push(Arc::new(decurion_tools::shell::Bash::default()));
    stage
}

/// What calls of a tool gave back, errors marked.
fn results(played: &Played, tool: &str) -> Vec<String> {
    let of_tool = |event: &Event| match event {
        Event::CallEnded { tool: called, output, .. } if called == tool => {
            Some(format!("{}{}", if output.is_error { "! " } else { "" }, output.content.text()))
        }
        _ => None,
    };
    played.events.iter().filter_map(|envelope| of_tool(&envelope.event)).collect()
}

fn requests(stage: &Stage) -> Vec<Value> {
    stage.requests().iter().map(|body| serde_json::from_slice(body).unwrap()).collect()
}

/// The texts of the user's side of a request, without the note about surroundings.
fn texts(request: &Value) -> Vec<String> {
    let messages = request["messages"].as_array().unwrap().iter();
    let blocks = messages
        .filter(|message| message["role"] == "user")
        .flat_map(|message| message["content"].as_array().cloned().unwrap_or_default());
    let texts = blocks.filter_map(|block| block["text"].as_str().map(str::to_owned));
    texts.filter(|text| !text.starts_with("<environment>")).collect()
}

fn calling(input: &Value) -> String {
    format!("when turn=1\n  call Skill {input}\nwhen\n  say \"done\"\n")
}

#[tokio::test(start_paused = true)]
async fn a_skill_is_read_with_its_arguments_and_its_folder() {
    let shelf = shelf([(skill("review"), "Look at $0 and ${CLAUDE_SKILL_DIR}/list.md. All: $ARGUMENTS")]);
    let stage = stage(&calling(&json!({"skill": "review", "args": "a.rs b.rs"})), shelf);
    let played = stage.play("go").await;
    expect![[r"
        Follow the skill review now.

        Base directory for this skill: /skills/review

        Look at a.rs and /skills/review/list.md. All: a.rs b.rs"]]
    .assert_eq(&results(&played, "Skill").join("\n"));
    let request = &requests(&stage)[0];
    let tool = request["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == "Skill").unwrap();
    assert!(tool["description"].as_str().unwrap().ends_with("- review: does review"), "{tool}");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_means_nothing_is_told_with_those_near_it() {
    let shelf = shelf([
        (skill("review"), "x"),
        (Skill { invocable: Invocable::User, ..skill("deploy") }, "x"),
        (Skill { invocable: Invocable::Nobody, ..skill("inner") }, "x"),
    ]);
    for (name, expected) in [
        ("reviw", "Unknown skill: reviw. Did you mean review?"),
        ("deploy", "The skill deploy can only be called by the user, as /deploy."),
        ("zzzzz", "Unknown skill: zzzzz. The skills are listed in the description of this tool."),
        ("/Review", ""),
    ] {
        let stage = stage(&calling(&json!({"skill": name})), Arc::clone(&shelf));
        let result = results(&stage.play("go").await, "Skill").remove(0);
        let expected = if expected.is_empty() {
            "Follow the skill review now.\n\nBase directory for this skill: /skills/review\n\nx".to_owned()
        } else {
            format!("! <tool_use_error>{expected}</tool_use_error>")
        };
        assert_eq!(result, expected, "{name}");
        let tools = requests(&stage)[0]["tools"].to_string();
        assert!(!tools.contains("deploy") && !tools.contains("inner"), "{tools}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_begins_without_skills_has_those_that_come() {
    let only_users = shelf([(Skill { invocable: Invocable::User, ..skill("deploy") }, "x")]);
    for library in [shelf([]), only_users] {
        let script = "when text=second\n  call Skill {\"skill\": \"late\"}\nwhen\n  say \"done\"\n";
        let stage = stage(script, Arc::clone(&library));
        let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
        let mut events = Vec::new();
        for (number, prompt) in [(1, "first"), (2, "second")] {
            send(&link, number, Command::Prompt { blocks: vec![Block::text(prompt)] }).await;
            stage.listen(&mut link, &mut events).await;
            library.skills.lock().unwrap().push((Arc::new(skill("late")), "Better late.".to_owned()));
        }
        let requests = requests(&stage);
        let described = |request: &Value| {
            let tools = request["tools"].as_array().unwrap();
            let tool = tools.iter().find(|tool| tool["name"] == "Skill").unwrap();
            let description = tool["description"].as_str().unwrap();
            description.lines().last().unwrap_or_default().to_owned()
        };
        assert!(described(&requests[0]).starts_with("(There are none now."), "{}", described(&requests[0]));
        assert_eq!(described(&requests[1]), "- late: does late");
        // The same tools in the same order: only what is said of this one has changed.
        let names = |request: &Value| {
            let tools = request["tools"].as_array().unwrap();
            tools.iter().map(|tool| tool["name"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&requests[0]), names(&requests[1]));
        assert!(texts(&requests[2]).is_empty() || requests[2].to_string().contains("Better late."));
    }
}

#[tokio::test(start_paused = true)]
async fn where_there_can_be_no_skills_there_is_no_tool_for_them() {
    let stage = Stage::new("when\n  say \"done\"\n");
    stage.play("go").await;
    assert!(!requests(&stage)[0]["tools"].to_string().contains("\"Skill\""));
}

#[tokio::test]
async fn inline_commands_run_as_the_rules_say_and_what_is_refused_says_so() {
    let body = "one !`echo $0`\ntwo !`touch mark`\nthree !`rm -rf x`";
    let script = calling(&json!({"skill": "s", "args": "hello"}));
    let mut stage = with_shell(stage(&script, shelf([(skill("s"), body)])));
    stage.rules.deny.push(Rule::parse("Bash(rm:*)", Default::default()).unwrap());
    // Nobody is there: what would be asked is refused.
    let played = stage.play("go").await;
    expect![[r"
        Follow the skill s now.

        Base directory for this skill: /skills/s

        one hello
        two [not run: `touch mark`: it changes files, and no rule allows it: touch mark; permission cannot be requested in this non-interactive session (the rule Bash(touch mark) would allow it)]
        three [not run: `rm -rf x`: denied by Bash(rm:*)]"]].assert_eq(&results(&played, "Skill").join("\n"));
    assert!(!stage.request.cwd.join("mark").exists());
    // Asked and answered: it runs, once, and what is denied still is.
    stage.answer = Some(Answer::Allow { input: None, rules: Vec::new(), everywhere: false });
    stage.request.answers = true;
    let played = stage.play("go").await;
    assert!(stage.request.cwd.join("mark").exists());
    let asked = played.events.iter().filter(|one| matches!(one.event, Event::Asked { .. })).count();
    assert_eq!(asked, 1);
    assert!(results(&played, "Skill")[0].contains("denied by Bash(rm:*)"));
    assert!(render(&played.events).contains("skill s runs: touch mark"), "{}", render(&played.events));
}

#[tokio::test]
async fn what_a_skill_allows_holds_until_the_next_prompt() {
    let script = r#"
when turn=1
  call Skill {"skill": "s"}
when turn=2
  call Bash {"command": "touch one"}
when turn=3
  say "first"
when turn=4
  call Bash {"command": "touch two"}
when
  say "second"
"#;
    let lending = Skill { allowed_tools: vec!["Bash(touch:*)".into(), "Edit".into()], ..skill("s") };
    let mut stage = with_shell(stage(script, shelf([(lending, "Touch it.")])));
    stage.rules.allow.push(Rule::parse("Skill(s)", Default::default()).unwrap());
    let played = stage.play_all(stage.request.clone(), &["go", "again"]).await.unwrap();
    let bash = results(&played, "Bash");
    assert!(stage.request.cwd.join("one").exists(), "{bash:?}");
    assert!(!stage.request.cwd.join("two").exists(), "{bash:?}");
    assert!(bash[1].starts_with("! Permission denied"), "{bash:?}");
}

#[tokio::test(start_paused = true)]
async fn a_skill_that_lends_rights_is_asked_about() {
    let lending = || Skill { allowed_tools: vec!["Bash".into()], ..skill("s") };
    let script = calling(&json!({"skill": "s"}));
    let stage = stage(&script, shelf([(lending(), "x")]));
    let result = results(&stage.play("go").await, "Skill").remove(0);
    assert!(result.starts_with("! Permission denied: no rule allows this skill"), "{result}");
}

#[tokio::test(start_paused = true)]
async fn a_deny_rule_names_a_skill() {
    let script = calling(&json!({"skill": "s"}));
    let mut stage = stage(&script, shelf([(skill("s"), "x")]));
    stage.rules.deny.push(Rule::parse("Skill(s)", Default::default()).unwrap());
    let result = results(&stage.play("go").await, "Skill").remove(0);
    assert_eq!(result, "! Permission denied: denied by Skill(s)");
}

const FORKED: &str = r#"
when agent=worker model=other turn=1
  call Echo {"text": "did it"}
when agent=worker
  say "the report"
when turn=1
  call Skill {"skill": "s", "args": "this"}
when
  say "done"
"#;

#[tokio::test(start_paused = true)]
async fn a_forked_skill_is_an_agents_task_and_its_rules_stand_for_the_sessions() {
    let forked = Skill {
        fork: true,
        agent: Some("worker".into()),
        model: Some("other".into()),
        allowed_tools: vec!["Read".into()],
        ..skill("s")
    };
    let mut stage = stage(FORKED, shelf([(forked, "Do $ARGUMENTS.")]));
    stage.models = vec!["other".into()];
    stage.rules.allow.push(Rule::parse("Skill", Default::default()).unwrap());
    // What was allowed in the session is not what the skill's agent was given.
    let session = |text| Rule::parse(text, decurion_protocol::permission::RuleSource::Session).unwrap();
    stage.rules.allow.retain(|rule| rule.tool != "Echo");
    stage.rules.allow.push(session("Echo"));
    let played = stage.play("go").await;
    let result = results(&played, "Skill").remove(0);
    assert!(result.contains("\n\nthe report\n"), "{result}");
    let echo = results(&played, "Echo").remove(0);
    assert!(echo.starts_with("! Permission denied"), "{echo}");
    let prompt = "Base directory for this skill: /skills/s\n\nDo this.";
    assert!(requests(&stage).iter().any(|request| texts(request) == [prompt]), "{prompt}");
}

#[tokio::test(start_paused = true)]
async fn a_rule_against_an_agent_holds_for_a_skill_that_needs_it() {
    let forked = Skill { fork: true, agent: Some("worker".into()), ..skill("s") };
    let mut stage = stage(FORKED, shelf([(forked, "Do it.")]));
    stage.rules.deny.push(Rule::parse("Agent(worker)", Default::default()).unwrap());
    let result = results(&stage.play("go").await, "Skill").remove(0);
    assert_eq!(result, "! The skill s needs an agent: denied by Agent(worker)");
}

#[tokio::test(start_paused = true)]
async fn a_command_that_is_typed_is_sent_as_what_it_stands_for() {
    let command = |name: &str| Skill { kind: SkillKind::Command, ..skill(name) };
    let shelf = shelf([(command("git:push"), "Push to $0."), (skill("review"), "Look at $ARGUMENTS.")]);
    for (prompt, expected) in [
        (
            "/git:push origin",
            vec![
                "<command-message>git:push</command-message>\n<command-name>/git:push</command-name>\n<command-args>origin</command-args>",
                "Push to origin.",
            ],
        ),
        (
            "/review",
            vec![
                "<command-message>review</command-message>\n<command-name>/review</command-name>",
                "Base directory for this skill: /skills/review\n\nLook at .",
            ],
        ),
        ("/etc/passwd is a file", vec!["/etc/passwd is a file"]),
        (" /unheard of", vec![" /unheard of"]),
        (" /revieww", vec![" /revieww"]),
    ] {
        let stage = stage("when\n  say \"done\"\n", Arc::clone(&shelf) as Arc<Shelf>);
        stage.play(prompt).await;
        assert_eq!(texts(&requests(&stage)[0]), expected, "{prompt}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_that_is_misspelt_costs_no_request() {
    let shelf = shelf([(skill("review"), "x"), (Skill { invocable: Invocable::Model, ..skill("own") }, "x")]);
    for (prompt, expected) in [
        (
            "/reviw it",
            "Unknown command /reviw. Did you mean /review? Nothing was sent; put a space before the slash to send it as it is.",
        ),
        (
            "/unheard of",
            "Unknown command /unheard. Nothing was sent; put a space before the slash to send it as it is.",
        ),
        ("/own", "/own is not for people: the model calls it when it needs it."),
    ] {
        let stage = stage("when\n  say \"done\"\n", Arc::clone(&shelf));
        let played = stage.play(prompt).await;
        assert_eq!(played.outcome, Outcome::Failed { error: expected.to_owned() });
        assert!(stage.requests().is_empty());
    }
}

#[tokio::test]
async fn a_command_brings_its_model_and_its_rules_for_one_turn() {
    let script = r#"
when model=other turn=1
  call Bash {"command": "touch one"}
when model=other
  say "first"
when text=again
  call Bash {"command": "touch two"}
when
  say "second"
"#;
    let command = Skill {
        kind: SkillKind::Command,
        model: Some("other".into()),
        allowed_tools: vec!["Bash(touch:*)".into(), "Edit".into()],
        ..skill("c")
    };
    let mut stage = with_shell(stage(script, shelf([(command, "Touch it.")])));
    stage.models = vec!["other".into()];
    let played = stage.play_all(stage.request.clone(), &["/c", "again"]).await.unwrap();
    let models: Vec<Value> = requests(&stage).iter().map(|request| request["model"].clone()).collect();
    assert_eq!(models, ["other", "other", "scripted", "scripted"]);
    assert!(stage.request.cwd.join("one").exists(), "{}", render(&played.events));
    assert!(!stage.request.cwd.join("two").exists());
    // What stands before the conversation is the session's again, to the byte.
    let heads: Vec<Value> = requests(&stage)
        .iter()
        .map(|request| json!([request["model"], request["tools"], request["system"]]))
        .collect();
    assert_eq!(heads[2], heads[3]);
    assert_eq!((&heads[1][1], &heads[1][2]), (&heads[2][1], &heads[2][2]));
    // Nor does a process that goes on after the command's turn keep its model.
    for seq in stage.recorded(played.session).iter().map(|envelope| envelope.seq) {
        let mut again = with_shell(stage.after_crash_at(seq));
        again.models.clone_from(&stage.models);
        let start = Start::Resume { id: played.session, at: None };
        let request = OpenSession { start, ..again.request.clone() };
        again.play_all(request, &["and now?"]).await.unwrap();
        let last = requests(&again).pop().unwrap();
        assert_eq!(last["model"], "scripted", "after record {seq}");
    }
}

fn delegating(worker: &str, inputs: &str) -> String {
    format!(
        "{worker}when turn=1\n  call Agent {{\"description\": \"d\", \"prompt\": \"look\", \"subagent_type\": \"worker\"{inputs}}}\nwhen\n  say \"done\"\n"
    )
}

#[tokio::test(start_paused = true)]
async fn the_skills_of_a_definition_are_in_its_opening() {
    let shelf = shelf([
        (skill("a"), "First, !`date`."),
        (Skill { invocable: Invocable::Nobody, ..skill("b") }, "Second."),
    ]);
    let mut stage = stage(&delegating("when agent=worker\n  say \"found\"\n", ""), shelf);
    let mut definition = worker();
    definition.equipment.skills = vec!["a".into(), "gone".into(), "b".into()];
    stage.agents = vec![Arc::new(definition)];
    let played = stage.play("go").await;
    let child = requests(&stage).into_iter().find(|request| texts(request)[0] == "look").unwrap();
    expect![[r"
        look
        ---
        <command-message>a</command-message>
        <command-name>/a</command-name>

        Base directory for this skill: /skills/a

        First, [run it yourself if you need it: `date`].
        ---
        <command-message>b</command-message>
        <command-name>/b</command-name>

        Base directory for this skill: /skills/b

        Second."]]
    .assert_eq(&texts(&child).join("\n---\n"));
    let log = render(&played.events);
    assert!(log.contains("agent worker: no such skill: gone"), "{log}");
    let steps = played.events.iter().find_map(|envelope| match &envelope.event {
        Event::Prepared { steps } => Some(serde_json::to_string(steps).unwrap()),
        _ => None,
    });
    assert!(steps.unwrap_or_default().contains("2 loaded, not found: gone"));
}

fn remembering(index: &str) -> (Arc<Shelf>, Utf8PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let memory = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap().join("memory");
    std::fs::create_dir(&memory).unwrap();
    let shelf =
        Shelf { memory: Some(Memory { folder: memory.clone(), index: index.into() }), ..Shelf::default() };
    (Arc::new(shelf), memory, folder)
}

#[tokio::test]
async fn an_agent_keeps_its_memory_and_writes_nowhere_else() {
    let (shelf, memory, _folder) = remembering("- tests: cargo test");
    let script = delegating(
        &format!(
            "when agent=worker turn=1\n  call Write {{\"file_path\": \"{memory}/MEMORY.md\", \"content\": \"new\"}}\n  \
             call Write {{\"file_path\": \"elsewhere.md\", \"content\": \"new\"}}\n  \
             call Write {{\"file_path\": \"{memory}/../out.md\", \"content\": \"new\"}}\nwhen agent=worker\n  say \"found\"\n"
        ),
        "",
    );
    let mut stage = stage(&script, shelf);
    for tool in decurion_tools::builtin() {
        if ["Read", "Write", "Edit", "Grep"].contains(&tool.spec().name.as_str()) {
            stage.tools.push(tool);
        }
    }
    // The session lets edits through; this agent's list of tools has none but for its memory.
    stage.rules.allow.push(Rule::parse("Edit", Default::default()).unwrap());
    let mut definition = worker();
    definition.tools = ToolSelection { only: Some(vec!["Grep".into()]), except: Vec::new() };
    definition.equipment.memory = Some("project".into());
    stage.agents = vec![Arc::new(definition)];
    let played = stage.play("go").await;
    assert_eq!(std::fs::read_to_string(memory.join("MEMORY.md")).unwrap(), "new");
    let writes = results(&played, "Write");
    assert_eq!(
        writes
            .iter()
            .filter(|text| text.starts_with("! Permission denied: not one of this agent's tools"))
            .count(),
        2,
        "{writes:?}"
    );
    assert!(!stage.request.cwd.join("elsewhere.md").exists());
    let child = requests(&stage).into_iter().find(|request| texts(request)[0] == "look").unwrap();
    let tools: Vec<&str> =
        child["tools"].as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(tools, ["Edit", "Grep", "Read", "Write"]);
    let system = child["system"].to_string();
    assert!(system.contains("tests: cargo test") && system.contains(memory.as_str()), "{system}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_its_memory_runs_and_that_is_said() {
    let mut stage = stage(&delegating("when agent=worker\n  say \"found\"\n", ""), shelf([]));
    let mut definition = worker();
    definition.equipment.memory = Some("user".into());
    stage.agents = vec![Arc::new(definition)];
    let played = stage.play("go").await;
    let result = results(&played, "Agent").remove(0);
    assert!(
        result.contains("found") && result.contains("runs without its memory: no user memory of worker"),
        "{result}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_report_is_what_its_schema_says_or_the_agent_failed() {
    let schema = r#", "output_schema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}"#;
    let good = "when agent=worker turn=1\n  say \"all is well\"\nwhen agent=worker turn=2\n  call StructuredOutput {\"ok\": \"yes\"}\nwhen agent=worker\n  call StructuredOutput {\"ok\": true}\n";
    let stage_of = |worker: &str, inputs: &str| stage(&delegating(worker, inputs), shelf([]));
    let played = stage_of(good, schema).play("go").await;
    assert!(results(&played, "Agent")[0].starts_with(r#"{"ok":true}"#), "{:?}", results(&played, "Agent"));
    let played = stage_of("when agent=worker\n  say \"no\"\n", schema).play("go").await;
    assert!(
        results(&played, "Agent")[0].starts_with("! The agent failed"),
        "{:?}",
        results(&played, "Agent")
    );
    let played = stage_of(good, r#", "output_schema": {"type": "nonsense"}"#).play("go").await;
    let refused = &results(&played, "Agent")[0];
    assert!(refused.starts_with("! `output_schema`:"), "{refused}");
    // One of the definition is the same for all its agents; one without has its own words again.
    let mut stage = stage_of(good, "");
    let mut definition = worker();
    definition.equipment.output_schema = Some(json!({"type": "object", "required": ["ok"]}));
    stage.agents = vec![Arc::new(definition)];
    let played = stage.play("go").await;
    assert!(results(&played, "Agent")[0].starts_with(r#"{"ok":"yes"}"#), "{:?}", results(&played, "Agent"));
}

const READING: &str = r#"
when agent=worker turn=1
  call Read {"file_path": "a/b/two.txt"}
when agent=worker
  say "found"
when turn=1
  call Read {"file_path": "top.txt"}
when turn=2
  call Read {"file_path": "a/one.txt"}
when turn=3
  call Read {"file_path": "a/other.txt"}
  call Read {"file_path": "a/b/two.txt"}
when turn=4
  call Agent {"description": "d", "prompt": "look", "subagent_type": "worker"}
when turn=5
  say "done"
when turn=6
  call Read {"file_path": "a/b/three.txt"}
when
  say "again"
"#;

#[tokio::test(start_paused = true)]
async fn the_instructions_of_a_folder_are_told_when_something_in_it_is_read_first() {
    let mut shelf = Shelf::default();
    shelf.nested.insert("a", "about a");
    shelf.nested.insert("a/b", "about b");
    let shelf = Arc::new(shelf);
    let mut stage = stage(READING, shelf);
    let read = decurion_tools::builtin().into_iter().find(|tool| tool.spec().name == "Read").unwrap();
    stage.tools.push(read);
    stage.agents = vec![Arc::new(worker())];
    let cwd = stage.request.cwd.clone();
    std::fs::create_dir_all(cwd.join("a/b")).unwrap();
    for file in ["top.txt", "a/one.txt", "a/other.txt", "a/b/two.txt", "a/b/three.txt"] {
        std::fs::write(cwd.join(file), "x").unwrap();
    }
    let played = stage.play("go").await;
    let told = |request: &Value| {
        let texts = texts(request).into_iter().filter(|text| text.starts_with("<instructions"));
        texts.map(|text| text.replace(cwd.as_str(), "")).collect::<Vec<_>>().join(" ")
    };
    let all: Vec<String> = requests(&stage).iter().map(told).collect();
    let (a, b) = (
        "<instructions file=\"/a/AGENTS.md\">\nabout a\n</instructions>",
        "<instructions file=\"/a/b/AGENTS.md\">\nabout b\n</instructions>",
    );
    let both = format!("{a} {b}");
    assert_eq!(all, ["", "", a, &both, "", &both, &both], "each agent from empty");
    // After a restart the same request is made, and nothing is told twice.
    let again = stage.after_crash(READING);
    let mut request = stage.request.clone();
    request.start = decurion_protocol::Start::Resume { id: played.session, at: None };
    again.play_all(request, &["more"]).await.unwrap();
    let last = requests(&again).last().map(told);
    assert_eq!(last.as_deref(), Some(both.as_str()));
}

#[tokio::test(start_paused = true)]
async fn skills_that_change_are_told_of_at_the_next_prompt() {
    let shelf = shelf([(skill("one"), "x")]);
    let stage = stage("when\n  say \"done\"\n", Arc::clone(&shelf));
    let mut link = decurion_protocol::Place::open(&stage.engine(), stage.request.clone()).await.unwrap();
    let mut events = Vec::new();
    for (number, name) in [(1, "two"), (2, "three")] {
        let blocks = vec![decurion_protocol::Block::text("go")];
        decurion_testkit::stage::send(&link, number, decurion_protocol::Command::Prompt { blocks }).await;
        stage.listen(&mut link, &mut events).await;
        shelf.skills.lock().unwrap().push((Arc::new(skill(name)), "x".to_owned()));
    }
    let listed: Vec<bool> = requests(&stage)
        .iter()
        .map(|request| request["tools"].to_string().contains("- two: does two"))
        .collect();
    assert_eq!(listed, [false, true]);
}

#[tokio::test(start_paused = true)]
async fn what_a_skill_denies_is_denied_to_agents_started_meanwhile() {
    // A named agent and a fork; the skill takes Echo away, which every agent here may use.
    for (kind, first) in [("worker", 1), ("fork", 3)] {
        let script = format!(
            "when agent={kind} turn={first}\n  call Echo {{\"text\": \"x\"}}\nwhen agent={kind}\n  say \"done\"\n\
             when agent=main turn=1\n  call Skill {{\"skill\": \"s\"}}\nwhen agent=main turn=2\n  \
             call Agent {{\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"{kind}\", \
             \"run_in_background\": false}}\nwhen\n  say \"done\"\n"
        );
        let narrow = Skill { disallowed_tools: vec!["Echo".into()], ..skill("s") };
        let played = stage(&script, shelf([(narrow, "x")])).play("go").await;
        assert_eq!(results(&played, "Echo"), ["! Permission denied: denied by Echo"], "{kind}");
    }
}

#[tokio::test]
async fn secrets_that_an_inline_command_prints_are_cut_out() {
    let script = calling(&json!({"skill": "s"}));
    let mut stage = with_shell(stage(&script, shelf([(skill("s"), "see !`echo secret`")])));
    stage.redact =
        Arc::new(|text: &str| text.contains("secret").then(|| text.replace("secret", "[redacted]")));
    stage.request.start = decurion_protocol::Start::New { id: None };
    // The redaction of results would hide what the prompt of a command has no second look for.
    let played = stage.play("/s").await;
    let log = render(&played.events);
    assert!(!log.contains("secret"), "{log}");
    assert!(texts(&requests(&stage)[0]).join("\n").contains("see [redacted]"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn the_skills_of_the_sessions_own_agent_are_in_its_opening() {
    let mut stage = stage("when\n  say \"done\"\n", shelf([(skill("a"), "Mind it.")]));
    stage.request.definition.equipment.skills = vec!["a".into(), "gone".into()];
    let played = stage.play_all(stage.request.clone(), &["go", "more"]).await.unwrap();
    let start = Start::Resume { id: played.session, at: None };
    stage.play_all(OpenSession { start, ..stage.request.clone() }, &["again"]).await.unwrap();
    let opening = "<command-message>a</command-message>\n<command-name>/a</command-name>\n\n\
        Base directory for this skill: /skills/a\n\nMind it.";
    let told: Vec<Vec<String>> = requests(&stage).iter().map(texts).collect();
    assert_eq!(
        told,
        [vec!["go", opening], vec!["go", opening, "more"], vec!["go", opening, "more", "again"]]
    );
    let log = render(&played.events);
    assert_eq!(log.matches("no such skill: gone").count(), 1, "{log}");
}

#[tokio::test(start_paused = true)]
async fn skills_in_an_opening_are_told_once_wherever_a_crash_comes() {
    let script = delegating("when agent=worker\n  say \"found\"\n", "");
    let mut stage = stage(&script, shelf([(skill("a"), "Only once.")]));
    let mut definition = worker();
    definition.equipment.skills = vec!["a".into()];
    stage.agents = vec![Arc::new(definition)];
    let session = stage.play("go").await.session;
    let all = stage.recorded(session);
    let begun = all.iter().position(|one| one.agent.is_some()).unwrap();
    let mut asked = 0;
    for envelope in &all[begun..] {
        let again = stage.after_crash_at(envelope.seq);
        let start = decurion_protocol::Start::Resume { id: session, at: None };
        let request = decurion_protocol::OpenSession { start, ..again.request.clone() };
        again.play_all(request, &["are you there?"]).await.unwrap();
        for request in requests(&again).iter().filter(|request| texts(request)[0] == "look") {
            let told = texts(request).join("\n").matches("Only once.").count();
            assert_eq!(told, 1, "after record {}: {:?}", envelope.seq, envelope.event);
            asked += 1;
        }
    }
    assert!(asked > 0);
}

#[tokio::test]
async fn an_interrupt_ends_a_command_that_asks() {
    let mut stage = with_shell(stage("when\n  say \"done\"\n", shelf([(skill("s"), "see !`touch mark`")])));
    // Nobody answers the question that the inline command leads to.
    (stage.request.answers, stage.answer) = (true, None);
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("/s")] }).await;
    let mut outcome = None;
    while outcome.is_none() {
        let envelope = link.events.next().await.unwrap();
        match &envelope.event {
            Event::Asked { .. } => send(&link, 2, Command::Interrupt).await,
            Event::RunEnded { outcome: ended, .. } => outcome = Some(ended.word()),
            _ => {}
        }
    }
    assert_eq!(outcome, Some("killed"));
    assert!(!stage.request.cwd.join("mark").exists());
}

/// A skill with hooks, and its library; each hook writes a word down, with the agent that it runs for.
fn hooked(hooks: &[(HookEvent, &str)]) -> Arc<Shelf> {
    let declared = hooks.iter().map(|(event, word)| HookDeclaration {
        once: *word == "once",
        ..HookDeclaration::new(*event, format!("{} >> words", marking(word)))
    });
    let skill = Skill { hooks: Some(json!({})), ..skill("s") };
    let plain = (Arc::new(self::skill("plain")), "Plain.".to_owned());
    Arc::new(Shelf {
        skills: Mutex::new(vec![(Arc::new(skill), "Careful.".to_owned()), plain]),
        hooks: BTreeMap::from([("s", declared.collect())]),
        ..Shelf::default()
    })
}

fn marking(word: &str) -> String {
    format!(
        r#"read input; case "$input" in *'"agent_type":"'*) who=agent;; *) who=main;; esac; echo "{word} $who""#
    )
}

fn words(stage: &Stage) -> Vec<String> {
    let words = std::fs::read_to_string(stage.request.cwd.join("words")).unwrap_or_default();
    words.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn the_hooks_of_a_skill_are_its_readers_from_then_on() {
    let script = r#"
when agent=worker turn=1
  call Echo {"text": "below"}
when agent=worker
  say "found"
when turn=1
  call Echo {"text": "before"}
when turn=2
  call Skill {"skill": "s"}
  call Echo {"text": "beside"}
when turn=3
  call Agent {"description": "d", "prompt": "look", "subagent_type": "worker"}
when turn=4
  say "first"
when turn=5
  call Echo {"text": "later"}
when
  say "second"
"#;
    let hooks = [
        (HookEvent::PreToolUse, "call"),
        (HookEvent::PreToolUse, "once"),
        (HookEvent::Stop, "stop"),
        (HookEvent::UserPromptSubmit, "prompt"),
    ];
    let stage = with_shell(stage(script, hooked(&hooks)));
    let played = stage.play_all(stage.request.clone(), &["go", "again"]).await.unwrap();
    let all = ["call main", "once main", "call main", "stop main", "prompt main", "call main", "stop main"];
    assert_eq!(sorted_pairs(words(&stage)), all, "{}", render(&played.events));
    // Another process knows it from the record.
    let start = Start::Resume { id: played.session, at: None };
    let again = OpenSession { start, ..stage.request.clone() };
    let before = words(&stage).len();
    stage.play_all(again, &["once more"]).await.unwrap();
    assert_eq!(words(&stage)[before..], ["prompt main", "stop main"]);
    // The end of the turn that reads it is one of the things that it looks at.
    let script = calling(&json!({"skill": "s"}));
    let stage = with_shell(self::stage(&script, hooked(&hooks)));
    stage.play("go").await;
    assert_eq!(words(&stage), ["stop main"]);
}

/// Hooks of one call run side by side, so the two of the first call come in any order.
fn sorted_pairs(mut words: Vec<String>) -> Vec<String> {
    words[..2].sort();
    words
}

#[tokio::test]
async fn an_agent_has_the_hooks_of_the_skills_it_was_given_and_its_parent_has_not() {
    let hooks = [(HookEvent::PreToolUse, "call"), (HookEvent::Stop, "stop")];
    let worker_calls =
        "when agent=worker turn=1\n  call Echo {\"text\": \"x\"}\nwhen agent=worker\n  say \"found\"\n";
    // In its definition.
    let script = delegating(worker_calls, "");
    let mut preloaded = with_shell(stage(&script, hooked(&hooks)));
    let mut definition = worker();
    definition.equipment.skills = vec!["plain".into(), "s".into()];
    preloaded.agents = vec![Arc::new(definition)];
    let log = render(&preloaded.play("go").await.events);
    assert_eq!(words(&preloaded), ["call agent", "stop agent"], "{log}");
    // As a skill that an agent of its own follows.
    let shelf = hooked(&hooks);
    {
        let mut skills = shelf.skills.lock().unwrap();
        let skill = Skill { fork: true, agent: Some("worker".into()), ..(*skills[0].0).clone() };
        skills[0].0 = Arc::new(skill);
    }
    let script = format!("{worker_calls}{}", calling(&json!({"skill": "s"})));
    let forked = with_shell(stage(&script, shelf));
    let log = render(&forked.play("go").await.events);
    assert_eq!(words(&forked), ["call agent", "stop agent"], "{log}");
}

#[tokio::test]
async fn a_fork_sees_the_text_of_a_skill_and_has_none_of_its_hooks() {
    let script = r#"
when agent=fork turn=3
  call Echo {"text": "below"}
when agent=fork
  say "found"
when turn=1
  call Skill {"skill": "s"}
when turn=2
  call Agent {"description": "d", "prompt": "look", "subagent_type": "fork", "run_in_background": false}
when
  say "done"
"#;
    let stage = with_shell(stage(script, hooked(&[(HookEvent::PreToolUse, "call")])));
    let played = stage.play("go").await;
    let log = render(&played.events);
    assert_eq!(words(&stage), ["call main"], "{log}");
    assert!(log.contains("below"), "{log}");
    // Nor has one that is taken up from the record.
    let all = stage.recorded(played.session);
    let begun = all.iter().position(|one| one.agent.is_some()).unwrap();
    for envelope in &all[begun..] {
        let again = with_shell(stage.after_crash_at(envelope.seq));
        let start = Start::Resume { id: played.session, at: None };
        let request = OpenSession { start, ..again.request.clone() };
        again.play_all(request, &["are you there?"]).await.unwrap();
        assert!(!words(&again).contains(&"call agent".to_owned()), "after record {}", envelope.seq);
    }
}

#[tokio::test]
async fn a_typed_skill_brings_its_hooks() {
    let stage = with_shell(stage(
        "when turn=1\n  call Echo {\"text\": \"x\"}\nwhen\n  say \"done\"\n",
        hooked(&[(HookEvent::PreToolUse, "call"), (HookEvent::UserPromptSubmit, "prompt")]),
    ));
    stage.play_all(stage.request.clone(), &["/s", "more"]).await.unwrap();
    assert_eq!(words(&stage), ["call main", "prompt main"]);
}

#[tokio::test]
async fn a_skill_about_files_is_told_of_once_such_a_file_is_read() {
    let script = r#"
when turn=1
  call Read {"file_path": "a.txt"}
when turn=2
  call Read {"file_path": "a.css"}
  call Read {"file_path": "b.css"}
when turn=3
  call Read {"file_path": "c.css"}
when
  say "done"
"#;
    let shelf = shelf([
        (Skill { paths: vec![".css".into()], ..skill("styles") }, "x"),
        (Skill { paths: vec![".css".into()], invocable: Invocable::User, ..skill("typed") }, "x"),
        (skill("always"), "x"),
    ]);
    let mut stage = stage(script, shelf);
    stage.tools.push(Arc::new(decurion_tools::read::Read::default()));
    for file in ["a.txt", "a.css", "b.css", "c.css"] {
        std::fs::write(stage.request.cwd.join(file), "x\n").unwrap();
    }
    let script = stage.play("go").await;
    let requests = requests(&stage);
    let told: Vec<usize> =
        requests.iter().map(|request| texts(request).join("\n").matches("<skill name=").count()).collect();
    assert_eq!(told, [0, 0, 1, 1], "{}", render(&script.events));
    expect![[r#"
        <skill name="styles">
        This skill is about files like those you have just read or changed. Call it with the Skill tool if it fits what you do:
        - styles: does styles
        </skill>"#]].assert_eq(texts(&requests[2]).last().unwrap());
    let tools = requests[0]["tools"].to_string();
    assert!(tools.contains("- always: ") && !tools.contains("styles"), "{tools}");
    assert!(requests.iter().all(|request| request["tools"] == requests[0]["tools"]));
}

#[tokio::test]
async fn where_every_skill_is_about_files_there_is_the_tool_for_it() {
    let script = r#"
when turn=1
  call Read {"file_path": "a.css"}
when turn=2
  call Skill {"skill": "styles"}
when
  say "done"
"#;
    let mut stage =
        stage(script, shelf([(Skill { paths: vec![".css".into()], ..skill("styles") }, "Neat.")]));
    stage.tools.push(Arc::new(decurion_tools::read::Read::default()));
    std::fs::write(stage.request.cwd.join("a.css"), "x\n").unwrap();
    let played = stage.play("go").await;
    assert!(results(&played, "Skill")[0].ends_with("Neat."), "{}", render(&played.events));
    let requests = requests(&stage);
    let tools = requests[0]["tools"].as_array().unwrap();
    let tool = tools.iter().find(|tool| tool["name"] == "Skill").unwrap();
    assert!(tool["description"].as_str().unwrap().contains("(There are none now."), "{tool}");
    assert_eq!(texts(&requests[1]).join("\n").matches("<skill name=\"styles\">").count(), 1);
}

/// A session of a repository that goes into a checkout, with this library.
fn moving(repo: &Repo, script: &str, library: Arc<Shelf>) -> Stage {
    let mut stage = isolated::stage(repo, script);
    stage.rules.allow.push(Rule::parse("EnterWorktree", Default::default()).unwrap());
    stage.library = library;
    stage
}

#[tokio::test]
async fn the_skills_of_the_sessions_own_agent_are_not_told_again_where_it_moved() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let script = "when turn=1\n  call EnterWorktree {\"name\": \"mine\"}\nwhen\n  say \"done\"\n";
    let mut stage = moving(&repo, script, shelf([(skill("a"), "Only once.")]));
    stage.request.definition.equipment.skills = vec!["a".into()];
    let session = stage.play("go").await.session;
    let moved = |envelope: &&decurion_protocol::Envelope| matches!(envelope.event, Event::Relocated { .. });
    let seq = stage.recorded(session).iter().find(moved).unwrap().seq;
    // The call has no result, so the next prompt begins with a note on where the session is.
    stage.forget_after(seq);
    let stage = stage.resuming("when\n  say \"done\"\n");
    let start = Start::Resume { id: session, at: None };
    stage.play_all(OpenSession { start, ..stage.request.clone() }, &["more"]).await.unwrap();
    let told = texts(requests(&stage).last().unwrap()).join("\n");
    assert!(told.contains("The session now works in "), "{told}");
    assert_eq!(told.matches("Only once.").count(), 1, "{told}");
}

#[tokio::test]
async fn a_skill_about_files_is_told_of_in_a_checkout_as_in_the_project() {
    let repo = Repo::with_files(&[("sub/a.css", "one\n"), ("b.css", "two\n")]).unwrap();
    let here = crate::worktrees::utf8(repo.path());
    // By where the file is in the project, wherever it is read.
    let about = |name, file: &str| Skill { paths: vec![here.join(file).into()], ..skill(name) };
    let library = shelf([(about("inner", "sub/a.css"), "x"), (about("outer", "b.css"), "x")]);
    let reading =
        "when agent=apart turn=1\n  call Read {\"file_path\": \"a.css\"}\nwhen agent=apart\n  say \"seen\"\n";
    let script = format!(
        "{reading}when turn=1\n  call EnterWorktree {{\"name\": \"mine\"}}\nwhen turn=2\n  \
         call Read {{\"file_path\": \"../b.css\"}}\nwhen turn=3\n  \
         call Agent {{\"description\": \"d\", \"prompt\": \"look\", \"subagent_type\": \"apart\"}}\n\
         when\n  say \"done\"\n"
    );
    let mut stage = moving(&repo, &script, library);
    stage.request.cwd = here.join("sub");
    let played = stage.play("go").await;
    let told = |requests: &[Value], who: &str| {
        let of = |request: &&Value| texts(request)[0] == who;
        let last = requests.iter().rfind(of).map(|request| texts(request).join("\n")).unwrap_or_default();
        ["inner", "outer"].map(|name| last.contains(&format!("<skill name=\"{name}\">")))
    };
    let requests = requests(&stage);
    assert_eq!(told(&requests, "go"), [false, true], "{}", render(&played.events));
    assert_eq!(told(&requests, "look"), [true, false], "in a checkout of a checkout");
}

#[tokio::test(start_paused = true)]
async fn what_a_person_typed_may_be_called_for_that_prompt_alone() {
    let script = r#"
when agent=worker
  say "the report"
when text=/calls the skill/
  call Skill {"skill": "s", "args": "this"}
when text=again
  call Skill {"skill": "s"}
when
  say "done"
"#;
    let lending =
        Skill { fork: true, agent: Some("worker".into()), allowed_tools: vec!["Read".into()], ..skill("s") };
    let library = || shelf([(lending.clone(), "Do $ARGUMENTS.")]);
    let stage = stage(script, library());
    let played = stage.play_all(stage.request.clone(), &["/s this", "again"]).await.unwrap();
    let called = results(&played, "Skill");
    assert!(called[0].contains("the report"), "{called:?}");
    assert!(called[1].starts_with("! Permission denied: no rule allows this skill"), "{called:?}");
    // What forbids it still does.
    let mut denied = self::stage(script, library());
    denied.rules.deny.push(Rule::parse("Skill(s)", Default::default()).unwrap());
    assert_eq!(results(&denied.play("/s this").await, "Skill"), ["! Permission denied: denied by Skill(s)"]);
}

#[tokio::test]
async fn a_typed_skill_that_no_agent_can_be_called_for_brings_its_own_rules() {
    // Nobody but a person calls it, so the model that reads it does what it says.
    let own = Skill {
        fork: true,
        invocable: Invocable::User,
        allowed_tools: vec!["Bash(touch:*)".into(), "Edit".into()],
        ..skill("s")
    };
    let script = "when turn=1\n  call Bash {\"command\": \"touch one\"}\nwhen\n  say \"done\"\n";
    let stage = with_shell(stage(script, shelf([(own, "Touch it.")])));
    let played = stage.play("/s").await;
    assert!(stage.request.cwd.join("one").exists(), "{}", render(&played.events));
}

#[tokio::test(start_paused = true)]
async fn a_skill_for_people_alone_is_refused_to_the_model_with_that_reason() {
    let lending = Skill { invocable: Invocable::User, allowed_tools: vec!["Bash".into()], ..skill("deploy") };
    let stage = stage(&calling(&json!({"skill": "deploy"})), shelf([(lending, "x")]));
    let result = results(&stage.play("go").await, "Skill").remove(0);
    assert_eq!(
        result,
        "! <tool_use_error>The skill deploy can only be called by the user, as /deploy.</tool_use_error>"
    );
}

#[tokio::test(start_paused = true)]
async fn a_model_that_cannot_be_used_is_told_with_the_file_that_names_it() {
    let named = |name: &str, fork| Skill {
        model: Some("nosuch/model".into()),
        agent: Some("worker".into()),
        fork,
        ..skill(name)
    };
    let library = || shelf([(named("c", false), "Do it."), (named("f", true), "Do it.")]);
    let stage = |script: &str, library| {
        let mut stage = stage(script, library);
        stage.unknown_models = vec!["nosuch/model".into()];
        stage
    };
    // A command is followed on the session's own.
    let with_command = stage("when\n  say \"done\"\n", library());
    let log = render(&with_command.play("/c").await.events);
    assert_eq!(requests(&with_command)[0]["model"], "scripted");
    let told = log.lines().find(|line| line.contains("nosuch/model")).unwrap_or_default();
    expect!["notice /c: its model `nosuch/model` cannot be used, so scripted works: no provider knows this model: nosuch/model (/skills/c/SKILL.md)"].assert_eq(told.trim());
    // An agent is not begun, whoever names its model.
    let played = stage(&calling(&json!({"skill": "f"})), library()).play("go").await;
    expect!["! The agent worker cannot run on the model `nosuch/model`; the skill names it: no provider knows this model: nosuch/model (/skills/f/SKILL.md)"].assert_eq(&results(&played, "Skill").join("\n"));
    let started = async |model: Option<&str>, inputs: &str| {
        let mut stage = stage(&delegating("", inputs), shelf([]));
        let (model, path) = (model.map(str::to_owned), Some("/agents/worker.md".into()));
        stage.agents = vec![Arc::new(AgentDefinition { model, path, ..worker() })];
        results(&stage.play("go").await, "Agent").join("\n")
    };
    expect!["! The agent worker cannot run on the model `nosuch/model`; the definition names it: no provider knows this model: nosuch/model (/agents/worker.md)"].assert_eq(&started(Some("nosuch/model"), "").await);
    expect!["! The agent worker cannot run on the model `nosuch/model`; the call names it: no provider knows this model: nosuch/model"].assert_eq(&started(None, ", \"model\": \"nosuch/model\"").await);
}
