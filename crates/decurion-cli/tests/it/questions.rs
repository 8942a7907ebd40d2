//! Questions to a person that a program answers: what a host is shown of them, and what its answer leads to.

use decurion_testkit::proc::Running;
use expect_test::expect;
use serde_json::{Value, json};

use crate::stand::{LIMIT, Stand};
use crate::talk::{LED, answer, next, prompt};

fn questions() -> Value {
    let option = |label: &str| json!({"label": label, "description": label});
    let options = [option("Postgres"), option("SQLite")];
    json!({"questions": [{"question": "Which?", "header": "h", "options": options, "multiSelect": false}]})
}

fn asks() -> String {
    format!("when turn=1\n  call AskUserQuestion {}\nwhen\n  say \"done\"\n", questions())
}

/// Has the host give this to the next question; gives that question.
fn answered(run: &mut Running, given: impl FnOnce(&Value) -> Value) -> Value {
    let asked = next(run, |line| line["request"]["subtype"] == "can_use_tool");
    let given = given(&asked["request"]["input"]);
    run.say(&answer(&asked, &given)).unwrap();
    asked["request"].clone()
}

/// What the model was told last, by the tool result of its request.
fn told(stand: &Stand) -> String {
    let requests = stand.model.requests();
    let body: Value = serde_json::from_slice(&requests.last().unwrap().body).unwrap();
    body["messages"].as_array().unwrap().last().unwrap()["content"][0]["content"].to_string()
}

/// The names of the tools that the model was offered first.
fn offered(stand: &Stand) -> Vec<String> {
    let body: Value = serde_json::from_slice(&stand.model.requests()[0].body).unwrap();
    body["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_host_chooses_for_its_user() {
    let stand = Stand::new(&asks());
    let mut run = stand.decurion().args(LED).start_talking().unwrap();
    run.say(&prompt("go")).unwrap();
    let asked = answered(&mut run, |input| {
        let mut input = input.clone();
        input["answers"] = json!({"Which?": "SQLite"});
        json!({"behavior": "allow", "updatedInput": input})
    });
    let shown = |member: &str| asked[member].to_string();
    expect![[r#""AskUserQuestion" "Which?" true"#]]
        .assert_eq(&["tool_name", "title", "requires_user_interaction"].map(shown).join(" "));
    let result = next(&mut run, |line| line["type"] == "user");
    expect![[r#"{"questions":[{"question":"Which?","header":"h","options":[{"label":"Postgres","description":"Postgres"},{"label":"SQLite","description":"SQLite"}],"multiSelect":false}],"answers":{"Which?":"SQLite"}}"#]].assert_eq(&result["tool_use_result"].to_string());
    next(&mut run, |line| line["type"] == "result");
    run.hang_up();
    run.finish(LIMIT).unwrap();
    expect![[r#""What the user chose:\n- Which?\n  SQLite""#]].assert_eq(&told(&stand));
    assert_eq!(stand.model.problems(), Vec::<String>::new());
}

/// Nobody is there to be asked: the model is not told that it could.
#[test]
fn where_nobody_answers_nobody_is_asked() {
    let stand = Stand::new(&asks());
    let ended = stand.decurion().args(["-p", "go"]).start().unwrap().finish(LIMIT).unwrap();
    assert_eq!(ended.ending.code(), 0, "{ended:?}");
    assert!(!offered(&stand).contains(&"AskUserQuestion".to_owned()), "{:?}", offered(&stand));
    assert!(told(&stand).contains("No such tool available"), "{}", told(&stand));
}

/// A host agrees to a plan, and is told of each change of the mode.
#[test]
fn a_host_agrees_to_a_plan() {
    let stand = Stand::new(
        "when turn=1\n  call EnterPlanMode {}\nwhen turn=2\n  call ExitPlanMode {\"plan\": \"# Do it\"}\nwhen\n  say \"done\"\n",
    );
    let mut run = stand.decurion().args(LED).start_talking().unwrap();
    run.say(&prompt("go")).unwrap();
    let is_status = |line: &Value| line["subtype"] == "status" && !line["permissionMode"].is_null();
    let planning = next(&mut run, is_status);
    let asked = answered(&mut run, |input| json!({"behavior": "allow", "updatedInput": input}));
    let working = next(&mut run, is_status);
    let shown = [
        &planning["permissionMode"],
        &asked["tool_name"],
        &asked["input"],
        &asked["requires_user_interaction"],
        &working["permissionMode"],
    ];
    expect![[r##""plan" "ExitPlanMode" {"plan":"# Do it"} true "default""##]]
        .assert_eq(&shown.map(Value::to_string).join(" "));
    let result = next(&mut run, |line| line["type"] == "user");
    let file = result["tool_use_result"]["filePath"].as_str().unwrap();
    assert_eq!(std::fs::read_to_string(file).unwrap(), "# Do it");
    assert!(std::path::Path::new(file).starts_with(stand.home.state().join("plans")), "{file}");
    next(&mut run, |line| line["type"] == "result");
    run.hang_up();
    run.finish(LIMIT).unwrap();
    assert_eq!(stand.model.problems(), Vec::<String>::new());
}

/// What a host's user allows for ever is written into their settings, and the next session begins with it.
#[test]
fn what_is_allowed_for_ever_holds_in_the_next_session() {
    let script = "when turn=1\n  call Bash {\"command\": \"touch made\"}\nwhen\n  say \"done\"\n";
    let stand = Stand::new(script);
    let file = stand.home.state().join("settings.json");
    let before = std::fs::read_to_string(&file).unwrap_or_default();
    let mut run = stand.decurion().args(LED).start_talking().unwrap();
    run.say(&prompt("go")).unwrap();
    let rules = json!([{"toolName": "Bash", "ruleContent": "touch made"}]);
    answered(&mut run, |input| {
        let update =
            json!({"type": "addRules", "rules": rules, "behavior": "allow", "destination": "userSettings"});
        json!({"behavior": "allow", "updatedInput": input, "updatedPermissions": [update]})
    });
    next(&mut run, |line| line["type"] == "result");
    run.hang_up();
    run.finish(LIMIT).unwrap();
    let after = std::fs::read_to_string(&file).unwrap();
    assert!(!before.contains("touch made") && after.contains("\"Bash(touch made)\""), "{before}{after}");
    std::fs::remove_file(stand.home.work().join("made")).unwrap();
    let ended = stand.run(&["-p", "go"]);
    assert!(stand.home.work().join("made").exists(), "{ended:?}");
}

/// A file that cannot be changed is left alone; the answer stands, and it is said what was not kept.
#[test]
fn an_answer_stands_where_its_settings_cannot_be_written() {
    let script = "when turn=1\n  call Bash {\"command\": \"touch made\"}\nwhen\n  say \"done\"\n";
    let stand = Stand::new(script);
    let mut run = stand.decurion().args(LED).start_talking().unwrap();
    run.say(&prompt("go")).unwrap();
    let file = stand.home.work().join(".decurion/settings.local.json");
    let update = json!({
        "type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": "touch made"}], "behavior": "allow",
        "destination": "localSettings",
    });
    answered(&mut run, |input| {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "{ torn").unwrap();
        json!({"behavior": "allow", "updatedInput": input, "updatedPermissions": [update]})
    });
    next(&mut run, |line| line["type"] == "result");
    run.hang_up();
    let ended = run.finish(LIMIT).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{ torn");
    assert!(stand.home.work().join("made").exists(), "{ended:?}");
    let said = ended
        .lines
        .iter()
        .chain([&ended.errors])
        .any(|line| line.contains("not kept in your settings for this project"));
    assert!(said, "{ended:?}");
}
