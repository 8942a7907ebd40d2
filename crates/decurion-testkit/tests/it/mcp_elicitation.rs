//! Servers that ask a person while they work, over a real connection: answered, taken back, and not heard when
//! they have nothing to ask for.

use std::sync::Arc;
use std::time::Duration;

use decurion_engine::mcp::McpParts;
use decurion_protocol::{
    Answer, Block, Command, ElicitationAction, Elicited, Envelope, Event, Place as _, Private, Rule, Wanted,
};
use decurion_testkit::stage::{Stage, send};
use futures_util::StreamExt as _;
use serde_json::json;

use crate::mcp::{House, within};
use crate::mcp_sessions::Fixed;

/// A session whose model calls the server once, with this text.
fn stage(house: &House, how: &str) -> Stage {
    let script =
        format!("when turn=1\n  call mcp__elicits__echo {{\"text\": \"{how}\"}}\nwhen\n  say \"done\"\n");
    let mut stage = Stage::new(&script);
    stage.processes = Some(house.guard.clone());
    stage.journal_here = false;
    stage.mcp = Some(McpParts {
        caches: None,
        servers: Arc::new(Fixed { all: vec![house.declared("elicits")], ..Fixed::default() }),
        environment: Arc::from([("PATH".into(), "/usr/bin:/bin".into())]),
        manifests: None,
        logins: None,
        startup_wait: Duration::from_mins(1),
    });
    stage.rules.allow.push(Rule::parse("mcp__elicits", Default::default()).unwrap());
    stage.request.answers = true;
    stage
}

/// Plays a prompt, doing something at each question.
async fn play(stage: &Stage, at: impl Fn(&Event) -> Option<Command>) -> Vec<Arc<Envelope>> {
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
    send(&link, 2, Command::Finish).await;
    let mut events = Vec::new();
    while let Some(envelope) = within(link.events.next()).await {
        events.push(Arc::clone(&envelope));
        if let Some(command) = at(&envelope.event) {
            send(&link, 3, command).await;
        }
        if matches!(&envelope.event, Event::Replied { request, .. } if request.0 == 2) {
            break;
        }
    }
    events
}

fn answer(event: &Event, action: ElicitationAction, content: Option<serde_json::Value>) -> Option<Command> {
    let Event::Asked { question } = event else { return None };
    let answer = Answer::Elicited(Elicited { action, content: content.map(Private) });
    Some(Command::Answer { question: question.id, answer, updates: Vec::new(), by: "user".into() })
}

/// What the one call gave.
fn result(events: &[Arc<Envelope>]) -> String {
    let ended = |envelope: &Arc<Envelope>| match &envelope.event {
        Event::CallEnded { output, .. } => Some(output.content.text()),
        _ => None,
    };
    events.iter().find_map(ended).unwrap()
}

/// The files below a folder that hold a text.
fn holding(folder: &std::path::Path, text: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(holding(&path, text));
        } else if std::fs::read(&path).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text)) {
            found.push(path);
        }
    }
    found
}

/// How questions ended, in order: the action and by whom.
fn endings(events: &[Arc<Envelope>]) -> Vec<String> {
    let ending = |envelope: &Arc<Envelope>| match &envelope.event {
        Event::Answered { answer: Answer::Elicited(elicited), by, .. } => {
            Some(format!("{:?} by {by}", elicited.action))
        }
        _ => None,
    };
    events.iter().filter_map(ending).collect()
}

#[tokio::test]
async fn a_form_is_filled_in_and_reaches_the_server_and_no_file_of_ours() {
    let house = House::new();
    let stage = stage(&house, "form");
    let content = json!({"name": "hunter2"});
    let events = play(&stage, |event| answer(event, ElicitationAction::Accept, Some(content.clone()))).await;
    assert_eq!((result(&events).as_str(), endings(&events)), ("accept", vec!["Accept by user".to_owned()]));
    assert!(house.log().contains(r#""content":{"name":"hunter2"}"#), "{}", house.log());
    let question = events.iter().find_map(|envelope| match &envelope.event {
        Event::Asked { question } => question.elicitation.clone(),
        _ => None,
    });
    let question = question.unwrap();
    assert_eq!((question.server.as_str(), question.message.as_str()), ("elicits", "Who[2J are you?"));
    let Wanted::Form { schema } = &question.wanted else { panic!("{question:?}") };
    assert_eq!(
        (&schema["required"], &schema["properties"]["name"]["minLength"]),
        (&json!(["name"]), &json!(2))
    );
    let home = stage.request.cwd.parent().unwrap().to_owned();
    assert_eq!(holding(home.as_std_path(), "hunter2"), Vec::<std::path::PathBuf>::new());
    assert_eq!(house.alive(), Vec::<String>::new());
}

#[tokio::test]
async fn an_address_is_agreed_to_and_a_file_is_not_shown() {
    let house = House::new();
    let events = play(&stage(&house, "url"), |event| answer(event, ElicitationAction::Accept, None)).await;
    assert_eq!((result(&events).as_str(), endings(&events)), ("accept", vec!["Accept by user".to_owned()]));
    let events = play(&stage(&house, "file"), |event| answer(event, ElicitationAction::Accept, None)).await;
    assert_eq!((result(&events).as_str(), endings(&events)), ("decline", Vec::new()));
}

#[tokio::test]
async fn a_question_is_taken_back_by_the_server_with_its_death_and_with_the_call() {
    for (how, expected) in [("takes back", "Interrupted"), ("dies", "went away"), ("form", "Interrupted")] {
        let house = House::new();
        let changed = house.root().join("changed");
        let events = play(&stage(&house, how), |event| match event {
            Event::Asked { .. } if how == "form" => Some(Command::Interrupt),
            Event::Asked { .. } => {
                std::fs::write(&changed, "").unwrap();
                None
            }
            // It still works on the call, and asks nothing.
            Event::Answered { .. } if how == "takes back" => Some(Command::Interrupt),
            _ => None,
        })
        .await;
        assert_eq!(endings(&events), ["Cancel by nobody"], "{how}");
        let result = result(&events);
        assert!(result.contains(expected), "{how}: {result}");
        if how != "dies" {
            assert!(house.log().contains("cancelled"), "{how}: {}", house.log());
        }
        assert_eq!(house.alive(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_flood_of_questions_is_bounded_and_the_call_goes_on() {
    let house = House::new();
    let events = play(&stage(&house, "flood"), |event| answer(event, ElicitationAction::Cancel, None)).await;
    let result = result(&events);
    let (asked, declined) = (result.matches("cancel").count(), result.matches("decline").count());
    assert_eq!((asked, asked + declined), (endings(&events).len(), 100), "{result}");
    assert!((4..=32).contains(&asked), "{asked}");
    let told = |envelope: &&Arc<Envelope>| matches!(&envelope.event, Event::Notice { text, .. } if text.contains("too often"));
    assert_eq!(events.iter().filter(told).count(), 1);
}

#[tokio::test]
async fn what_a_server_asks_when_it_was_asked_nothing_is_declined() {
    let house = House::new();
    let stage = stage(&house, "late");
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
    let mut events = Vec::new();
    within(stage.listen(&mut link, &mut events)).await;
    house.logged(r#""action":"decline""#).await;
    assert!(!events.iter().any(|envelope| matches!(envelope.event, Event::Asked { .. })));
}
