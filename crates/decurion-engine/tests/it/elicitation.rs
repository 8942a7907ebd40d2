//! What MCP servers ask a person: put like any question, answered in the server's form, on record without what
//! was written, taken back when nobody waits, and declined where nobody can answer.

use std::sync::Arc;
use std::time::Duration;

use decurion_engine::AgentSettings;
use decurion_protocol::{
    Answer, Block, Command, Elicitation, ElicitationAction, Elicited, Event, Mode, Place as _, Private,
    Question, Reply, Rule, Wanted,
};
use decurion_testkit::asking::Asking;
use decurion_testkit::stage::{Stage, render, send};
use expect_test::{Expect, expect};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

const ONCE: &str = "when turn=1\n  call mcp__clerk__ask {}\nwhen\n  say \"done\"\n";
/// What a person writes that nobody else may read.
const SECRET: &str = "hunter2";

fn form() -> Elicitation {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 8},
            "mail": {"type": "string", "format": "email"},
            "age": {"type": "integer"},
        },
        "required": ["name"],
    });
    let (server, message) = ("clerk".to_owned(), "Who are you?".to_owned());
    Elicitation { server, message, calls: 1, wanted: Wanted::Form { schema } }
}

fn url() -> Elicitation {
    let wanted = Wanted::Url { url: "https://login.example/".into(), id: "v1".into() };
    Elicitation { message: "Log in.".into(), wanted, ..form() }
}

/// A stage whose one server tool asks this.
fn stage(script: &str, elicitation: Elicitation) -> (Stage, Arc<std::sync::Mutex<Vec<Elicited>>>) {
    let mut stage = Stage::new(script);
    let tool = Asking::new(elicitation);
    let answers = tool.answers();
    stage.tools = vec![Arc::new(tool)];
    stage.rules.allow.push(Rule::parse("mcp__clerk", Default::default()).unwrap());
    stage.request.answers = true;
    (stage, answers)
}

fn accept(content: Value) -> Answer {
    let content = Some(Private(content));
    Answer::Elicited(Elicited { action: ElicitationAction::Accept, content })
}

fn plain(action: ElicitationAction) -> Answer {
    Answer::Elicited(Elicited::plain(action))
}

/// What a play with answers left.
struct Answered {
    log: String,
    refusals: Vec<String>,
    questions: Vec<Question>,
    /// Everything that was published, and everything on disk.
    seen: String,
    /// What is on disk of that.
    kept: String,
}

/// Plays a prompt. Each question is answered with the first of these that is taken.
async fn play(stage: &Stage, answers: &[Answer]) -> Answered {
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
    send(&link, 2, Command::Finish).await;
    let (mut events, mut questions, mut refusals, mut next) = (Vec::new(), Vec::new(), Vec::new(), 0);
    while let Some(envelope) = link.events.next().await {
        events.push(Arc::clone(&envelope));
        let again = match &envelope.event {
            Event::Asked { question } => {
                questions.push((**question).clone());
                true
            }
            Event::Replied { request, reply: Reply::Refused { reason } } if request.0 == 3 => {
                refusals.push(reason.clone());
                true
            }
            Event::Replied { request, .. } if request.0 == 2 => break,
            _ => false,
        };
        if let (true, Some(answer), Some(question)) = (again, answers.get(next), questions.last()) {
            next += 1;
            let command = Command::Answer {
                question: question.id,
                answer: answer.clone(),
                updates: Vec::new(),
                by: "user".into(),
            };
            send(&link, 3, command).await;
        }
    }
    let mut seen = format!("{events:?}\n{}", serde_json::to_string(&events).unwrap());
    let home = stage.archive().layout().home().to_owned();
    let mut kept = String::new();
    for entry in walk(&home) {
        kept.push_str(&std::fs::read_to_string(entry).unwrap_or_default());
    }
    seen.push_str(&kept);
    Answered { log: render(&events), refusals, questions, seen, kept }
}

fn walk(folder: &camino::Utf8Path) -> Vec<camino::Utf8PathBuf> {
    let mut found = Vec::new();
    for entry in folder.read_dir_utf8().unwrap() {
        let path = entry.unwrap().path().to_owned();
        if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
    }
    found
}

#[tokio::test(start_paused = true)]
async fn a_servers_question_reaches_a_person_and_the_answer_the_server_alone() {
    let (stage, answers) = stage(ONCE, form());
    let given = json!({"name": format!("{SECRET} and more"), "age": 4});
    let played = play(&stage, &[accept(given.clone())]).await;
    expect![[r#"
        user   "go"
        model  calls mcp__clerk__ask {}
        start  mcp__clerk__ask (mcp__clerk)
        wait   for an answer
        ask    mcp__clerk__ask: MCP server "clerk" asks: Who are you?
        answer by user
        →      "a person said: Accept"
        model  "done"
        end    completed "done"
    "#]]
    .assert_eq(&played.log);
    let question = serde_json::to_string_pretty(&played.questions[0].elicitation).unwrap();
    expect![[r#"
        {
          "server": "clerk",
          "message": "Who are you?",
          "calls": 1,
          "mode": "form",
          "schema": {
            "type": "object",
            "properties": {
              "name": {
                "type": "string",
                "minLength": 8
              },
              "mail": {
                "type": "string",
                "format": "email"
              },
              "age": {
                "type": "integer"
              }
            },
            "required": [
              "name"
            ]
          }
        }"#]]
    .assert_eq(&question);
    assert_eq!(
        *answers.lock().unwrap(),
        [Elicited { action: ElicitationAction::Accept, content: Some(Private(given)) }]
    );
    assert!(played.seen.contains("Who are you?"), "what was asked is on record");
    assert!(!played.seen.contains(SECRET), "what was answered is not");
}

#[tokio::test(start_paused = true)]
async fn every_answer_is_taken_for_what_it_says_or_refused_with_the_reason() {
    let allow = |input| Answer::Allow { input, rules: Vec::new(), everywhere: false };
    let deny = Answer::Deny { message: "no".into(), interrupt: false };
    let good = json!({"name": "long enough"});
    let check = async |elicitation: Elicitation, answers: &[Answer], expected: Expect| {
        let (stage, heard) = stage(ONCE, elicitation);
        let played = play(&stage, answers).await;
        let heard = serde_json::to_string(&*heard.lock().unwrap()).unwrap();
        assert!(!played.refusals.join(" ").contains(SECRET), "{:?}", played.refusals);
        expected.assert_eq(&format!("{}\n{}", played.refusals.join("\n"), heard));
    };
    check(
        form(),
        &[plain(ElicitationAction::Decline)],
        expect![[r#"

        [{"action":"decline"}]"#]],
    )
    .await;
    check(
        form(),
        &[plain(ElicitationAction::Cancel)],
        expect![[r#"

        [{"action":"cancel"}]"#]],
    )
    .await;
    check(
        form(),
        std::slice::from_ref(&deny),
        expect![[r#"

        [{"action":"decline"}]"#]],
    )
    .await;
    check(
        form(),
        &[allow(Some(good.clone()))],
        expect![[r#"

        [{"action":"accept","content":{"name":"long enough"}}]"#]],
    )
    .await;
    let unfit = [
        allow(None),
        accept(json!(SECRET)),
        accept(json!({"name": "short"})),
        accept(json!({"name": "long enough", "mail": SECRET, "age": SECRET})),
        accept(good),
    ];
    check(form(), &unfit, expect![[r#"
        the answer does not fit the server's form: "name" is a required property
        the content of the answer is not a JSON object
        the answer does not fit the server's form: /name: the value is shorter than 8 characters
        the answer does not fit the server's form: /mail: the value is not a "email"; /age: the value is not of type "integer"
        [{"action":"accept","content":{"name":"long enough"}}]"#]]).await;
    // To go somewhere is all that can be agreed to.
    check(
        url(),
        &[accept(json!({"name": SECRET}))],
        expect![[r#"

        [{"action":"accept"}]"#]],
    )
    .await;
    check(
        url(),
        &[allow(None)],
        expect![[r#"

        [{"action":"accept"}]"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_question_about_a_call_is_not_answered_with_a_form() {
    let mut stage = Stage::new("when turn=1\n  call Poke {\"text\": \"x\"}\nwhen\n  say \"done\"\n");
    stage.rules.allow.clear();
    stage.request.answers = true;
    let allow = Answer::Allow { input: None, rules: Vec::new(), everywhere: false };
    let played = play(&stage, &[accept(json!({})), allow]).await;
    assert_eq!(played.refusals, ["this question is about a call: allow or deny it"]);
    assert!(played.log.contains("→      \"x\""), "{}", played.log);
}

#[tokio::test(start_paused = true)]
async fn the_question_of_a_child_names_it_also_from_behind() {
    let script = "when agent=main turn=1\n  call Agent {\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"worker\", \"run_in_background\": true}\nwhen agent=main\n  say \"done\"\nwhen agent=worker turn=1\n  call mcp__clerk__ask {}\nwhen agent=worker\n  say \"asked\"\n";
    let (mut stage, answers) = stage(script, form());
    stage.agent_settings = AgentSettings::default();
    let played = play(&stage, &[plain(ElicitationAction::Decline)]).await;
    let question = &played.questions[0];
    assert_eq!(question.path.len(), 2, "{:?}", question.path);
    assert_eq!(
        question.agent.as_ref().map(decurion_protocol::AgentId::as_str),
        Some(question.path[1].as_str())
    );
    assert_eq!(question.reason, "MCP server \"clerk\" asks: Who are you?");
    assert_eq!(answers.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn where_nobody_can_be_asked_it_is_declined_and_said_once() {
    let twice = "when turn=1\n  call mcp__clerk__ask {}\nwhen\n  say \"done\"\n";
    for (answers, mode, why) in [
        (false, None, "this session is non-interactive"),
        (true, Some(Mode::DontAsk), "its agent runs in mode dontAsk, which never asks"),
    ] {
        let (mut stage, heard) = stage(twice, form());
        stage.request.answers = answers;
        stage.request.mode = mode;
        let played = play(&stage, &[]).await;
        assert!(played.questions.is_empty());
        let said = format!("MCP server \\\"clerk\\\" asked a person for something and was declined: {why}");
        assert!(played.seen.contains(&said), "{}", played.log);
        assert_eq!(*heard.lock().unwrap(), [Elicited::plain(ElicitationAction::Decline)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_answers_in_time_is_over() {
    let (mut stage, heard) = stage(ONCE, form());
    stage.answer_timeout = Some(Duration::from_secs(30));
    let played = play(&stage, &[]).await;
    assert_eq!(*heard.lock().unwrap(), [Elicited::plain(ElicitationAction::Cancel)]);
    assert!(played.log.contains("answer by nobody"), "{}", played.log);
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_call_takes_its_servers_question_back() {
    let (stage, _) = stage(ONCE, form());
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
    let (mut log, mut asked) = (Vec::new(), None);
    while let Some(envelope) = link.events.next().await {
        match &envelope.event {
            Event::Asked { question } => {
                asked = Some(question.id);
                send(&link, 2, Command::Interrupt).await;
            }
            Event::Answered { question, answer, by } => {
                assert_eq!((Some(*question), by.as_str()), (asked, "nobody"));
                assert_eq!(*answer, plain(ElicitationAction::Cancel));
                log.push("taken back".to_owned());
                let answer = accept(json!({"name": "too late by now"}));
                send(
                    &link,
                    3,
                    Command::Answer { question: *question, answer, updates: Vec::new(), by: "user".into() },
                )
                .await;
            }
            Event::Replied { request, reply: Reply::Refused { reason } } if request.0 == 3 => {
                log.push(reason.split(':').next().unwrap().to_owned());
                break;
            }
            _ => {}
        }
    }
    assert_eq!(log, ["taken back", "no open question with this id"]);
}

#[tokio::test(start_paused = true)]
async fn no_secret_of_a_form_and_no_query_of_an_address_is_kept() {
    let schema = json!({
        "type": "object",
        "title": format!("was {SECRET}"),
        "properties": {"name": {"type": "string", "description": SECRET, "examples": [SECRET]}},
    });
    let (mut form_stage, _) = stage(ONCE, Elicitation { wanted: Wanted::Form { schema }, ..form() });
    form_stage.redact =
        Arc::new(|text: &str| text.contains(SECRET).then(|| text.replace(SECRET, "[redacted]")));
    let played = play(&form_stage, &[plain(ElicitationAction::Decline)]).await;
    assert!(!played.seen.contains(SECRET) && played.kept.contains("was [redacted]"), "{}", played.seen);

    for behind in ["?token=hunter2", "#hunter2"] {
        let address = format!("https://login.example/visit{behind}");
        let wanted = Wanted::Url { url: address.clone(), id: "v1".into() };
        let (stage, _) = stage(ONCE, Elicitation { wanted, ..url() });
        let played = play(&stage, &[plain(ElicitationAction::Accept)]).await;
        // Whoever is asked now needs all of it.
        let asked = serde_json::to_string(&played.questions[0]).unwrap();
        assert!(asked.contains(&address), "{asked}");
        assert!(!played.kept.contains(SECRET), "{}", played.kept);
        assert!(played.kept.contains("https://login.example/visit?…"), "{}", played.kept);
    }
}
