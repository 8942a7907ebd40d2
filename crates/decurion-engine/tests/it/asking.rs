//! The model asks a person: who can be asked, what comes of an answer, and what is no answer.

use decurion_protocol::choice::{self, ASK, Chosen};
use decurion_protocol::{
    Answer, Block, Command, Event, HookDeclaration, HookEvent, LineId, Link, Mode, Place as _, Question,
    QuestionId, Subject,
};
use decurion_testkit::stage::{Stage, send};
use expect_test::expect;
use serde_json::{Value, json};

use crate::support::{again, prompt, stage, until, with_processes};

fn questions() -> Value {
    let option = |label: &str| json!({"label": label, "description": format!("use {label}")});
    json!({"questions": [
        {"question": "Which database?", "header": "Database", "options": [option("Postgres"), option("SQLite")],
         "multiSelect": false},
        {"question": "Which parts?", "header": "Parts", "options": [option("api"), option("web"), option("docs")],
         "multiSelect": true},
    ]})
}

fn script(input: &Value) -> String {
    format!("when turn=1\n  call {ASK} {input}\nwhen\n  say \"done\"\n")
}

fn asking(input: &Value) -> Stage {
    let mut stage = stage(&script(input));
    stage.request.answers = true;
    stage
}

fn allow(input: Option<Value>) -> Answer {
    Answer::Allow { input, rules: Vec::new(), everywhere: false }
}

fn chosen(question: &str, answers: &[&str], notes: Option<&str>) -> Chosen {
    let answers = answers.iter().map(|&text| text.to_owned()).collect();
    Chosen { question: question.into(), answers, notes: notes.map(str::to_owned) }
}

async fn asked(link: &mut Link) -> Question {
    until(link, |event, _| match event {
        Event::Asked { question } => Some((**question).clone()),
        _ => None,
    })
    .await
}

async fn answer(link: &Link, question: QuestionId, answer: Answer) {
    let by = "a person".into();
    send(link, 2, Command::Answer { question, answer, updates: Vec::new(), by }).await;
}

/// What the model reads of its call, after how many questions to a person.
async fn read(link: &mut Link) -> String {
    until(link, |event, _| match event {
        Event::CallEnded { output, .. } => {
            let mark = if output.is_error { "✗" } else { "→" };
            let structured = output.structured.as_ref().map(|value| value["answers"].to_string());
            Some(format!("{mark} {} {}\n", output.content.text(), structured.unwrap_or_default()))
        }
        _ => None,
    })
    .await
}

/// Whatever a person answers, the model reads that and nothing else.
#[tokio::test(start_paused = true)]
async fn the_model_reads_what_was_chosen() {
    let (which, parts) = ("Which database?", "Which parts?");
    let input = questions();
    let mut other = choice::answered(&input, &[chosen(which, &["SQLite"], None)]);
    other["questions"] = json!("none");
    let mut seen = String::new();
    for given in [
        allow(Some(choice::answered(
            &input,
            &[chosen(which, &["SQLite"], Some("for now")), chosen(parts, &["api", "docs"], None)],
        ))),
        allow(Some(choice::answered(&input, &[chosen(which, &["neither, use files"], None)]))),
        allow(Some(choice::answered(&input, &[chosen("Another?", &["x"], None)]))),
        allow(None),
        allow(Some(other)),
        Answer::Deny { message: "ask me tomorrow".into(), interrupt: false },
        Answer::Deny { message: " ".into(), interrupt: false },
    ] {
        let stage = asking(&input);
        let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
        prompt(&link, "go").await;
        let question = asked(&mut link).await;
        let Subject::Choices(choices) = question.subject() else { panic!("{question:?}") };
        assert_eq!((choices.len(), choices[0].several, choices[1].several), (2, false, true));
        answer(&link, question.id, given).await;
        seen.push_str(&read(&mut link).await);
    }
    expect![[r#"
        → What the user chose:
        - Which database?
          SQLite
          They add: for now
        - Which parts?
          api, docs {"Which database?":"SQLite","Which parts?":"api, docs"}
        → What the user chose:
        - Which database?
          neither, use files
        - Which parts?
          (not answered) {"Which database?":"neither, use files"}
        ✗ Nothing was chosen: the user let the question pass without an answer. Go on with what you think best, and say so, or ask in other words. 
        ✗ Nothing was chosen: the user let the question pass without an answer. Go on with what you think best, and say so, or ask in other words. 
        ✗ The questions were not answered: the changed input does not fit: InputValidationError: AskUserQuestion failed due to the following issue(s):
        `questions` must be an array, got a string 
        ✗ The questions were not answered: ask me tomorrow 
        ✗ The questions were not answered: the user refused this call 
    "#]].assert_eq(&seen);
}

/// Only a person knows what a person wants: no mode answers for them, no rule, not the model itself, and no hook that
/// only lets the call go on.
#[tokio::test]
async fn nobody_answers_in_a_persons_place_without_saying_what() {
    let forged = choice::answered(&questions(), &[chosen("Which database?", &["Postgres"], None)]);
    let hook = |event, output: &Value| HookDeclaration::new(event, format!("echo '{output}'"));
    let before = |mut output: Value| {
        output["hookEventName"] = json!("PreToolUse");
        hook(HookEvent::PreToolUse, &json!({"hookSpecificOutput": output}))
    };
    let instead = |output: Value| {
        let output = json!({"hookEventName": "PermissionRequest", "decision": output});
        hook(HookEvent::PermissionRequest, &json!({"hookSpecificOutput": output}))
    };
    let mut seen = String::new();
    for (name, mode, hook) in [
        ("default", Mode::Default, None),
        ("bypass", Mode::BypassPermissions, None),
        ("dontAsk", Mode::DontAsk, None),
        ("a hook allows", Mode::Default, Some(before(json!({"permissionDecision": "allow"})))),
        (
            "a hook answers",
            Mode::Default,
            Some(before(json!({"permissionDecision": "allow", "updatedInput": forged}))),
        ),
        ("a hook agrees", Mode::Default, Some(instead(json!({"behavior": "allow"})))),
        (
            "a hook agrees and answers",
            Mode::Default,
            Some(instead(json!({"behavior": "allow", "updatedInput": forged}))),
        ),
    ] {
        let mut stage = with_processes(asking(&forged));
        stage.request.mode = Some(mode);
        stage.hooks = hook.into_iter().collect();
        let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
        prompt(&link, "go").await;
        let what = until(&mut link, |event, _| match event {
            Event::Asked { question } => Some(format!("asked; answers {}", question.input["answers"])),
            Event::CallEnded { output, .. } => Some(output.content.text().clone()),
            _ => None,
        })
        .await;
        seen.push_str(&format!("{name}: {what}\n"));
    }
    expect![[r"
        default: asked; answers null
        bypass: asked; answers null
        dontAsk: The questions were not answered: it is a question to a person; mode dontAsk never asks, so it is denied
        a hook allows: asked; answers null
        a hook answers: What the user chose:
        - Which database?
          Postgres
        - Which parts?
          (not answered)
        a hook agrees: asked; answers null
        a hook agrees and answers: What the user chose:
        - Which database?
          Postgres
        - Which parts?
          (not answered)
    "]].assert_eq(&seen);
}

/// What cannot be asked is refused before anybody is bothered, and named.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_asked_is_said() {
    let with = |change: fn(&mut Value)| {
        let mut input = questions();
        change(&mut input);
        input
    };
    let mut seen = String::new();
    for input in [
        json!({}),
        with(|input| input["questions"][0]["options"] = json!([])),
        with(|input| input["questions"][1]["question"] = json!("Which database?")),
        with(|input| input["questions"][0]["options"][1]["label"] = json!("Postgres")),
        with(|input| input["questions"][0]["color"] = json!("red")),
    ] {
        let stage = asking(&input);
        let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
        prompt(&link, "go").await;
        let what = until(&mut link, |event, _| match event {
            Event::Asked { .. } => Some("asked".to_owned()),
            Event::CallEnded { output, .. } => Some(output.content.text().clone()),
            _ => None,
        })
        .await;
        seen.push_str(&format!("{what}\n"));
    }
    expect![[r"
        <tool_use_error>InputValidationError: AskUserQuestion failed due to the following issue(s):
        `questions` is missing</tool_use_error>
        <tool_use_error>InputValidationError: AskUserQuestion failed due to the following issue(s):
        `questions[0].options` must have at least 2 item(s), got 0</tool_use_error>
        <tool_use_error>InputValidationError: AskUserQuestion failed due to the following issue(s):
        `questions[1].question` is asked twice; an answer is found by its question's text</tool_use_error>
        <tool_use_error>InputValidationError: AskUserQuestion failed due to the following issue(s):
        `questions[0].options[1].label` is offered twice</tool_use_error>
        <tool_use_error>InputValidationError: AskUserQuestion failed due to the following issue(s):
        `questions[0].color` is not a field here; there are: question, header, options, multiSelect</tool_use_error>
    "]].assert_eq(&seen);
}

/// Where nobody can answer the tool is not there; a sub-agent never asks, not even a fork, which has the same tools.
#[tokio::test(start_paused = true)]
async fn only_the_root_asks_and_only_where_somebody_answers() {
    let mut nobody = asking(&questions());
    nobody.request.answers = false;
    nobody.request.tools.except = vec![ASK.into()];
    let log = nobody.log("go").await;
    assert!(log.contains("No such tool available: AskUserQuestion"), "{log}");

    let script = format!(
        "when agent=fork turn=2\n  call {ASK} {}\nwhen agent=fork\n  say \"cannot\"\n\
         when agent=main turn=1\n  call Agent {{\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"fork\"}}\n\
         when\n  say \"done\"\n",
        questions()
    );
    let mut fork = stage(&script);
    fork.request.answers = true;
    fork.answer = Some(Answer::Deny { message: "asked".into(), interrupt: false });
    let log = fork.log("go").await;
    assert!(log.contains("a sub-agent asks no person") && !log.contains("ask    "), "{log}");
}

/// A question that was open when the process died is the same question afterwards, and is answered once.
#[tokio::test(start_paused = true)]
async fn a_question_outlives_the_process() {
    let (input, line) = (questions(), LineId(uuid::Uuid::from_u128(7)));
    let submit = || Command::Submit { line, blocks: vec![Block::text("go")] };
    let first = asking(&input);
    let mut link = first.engine().open(first.request.clone()).await.unwrap();
    send(&link, 1, submit()).await;
    let before = asked(&mut link).await;
    let stage = first.after_crash(&script(&input));
    let mut link = stage.engine().open(again(&stage, &link)).await.unwrap();
    send(&link, 1, submit()).await;
    let after = asked(&mut link).await;
    assert_eq!((after.id, after.subject()), (before.id, before.subject()));
    let given = choice::answered(&input, &[chosen("Which database?", &["SQLite"], None)]);
    answer(&link, after.id, allow(Some(given))).await;
    assert!(read(&mut link).await.contains("SQLite"));
}
