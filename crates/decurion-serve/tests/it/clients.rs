//! Clients: many at once, slow ones, and the folder of all live sessions.

use std::sync::Arc;

use decurion_protocol::{
    AgentDefinition, Command, Event, Limits, Link, OpenSession, Persistence, Place, PlaceError, Reply,
    SessionId, Start, ToolSelection,
};
use decurion_serve::socket::{FIRST_REQUEST, LONGEST_BACKLOG, LiveSessions, connect};
use futures_util::StreamExt as _;
use serde_json::json;

use crate::stage::{ID, Raw, Stage, request};

/// The replies that a client is given for so many requests: their ids and what they echo.
async fn replies(link: &mut Link, count: usize) -> Vec<(u64, String)> {
    let mut found = Vec::new();
    while found.len() < count {
        let envelope = link.events.next().await.expect("the connection ended");
        if let Event::Replied { request, reply: Reply::Done { value } } = &envelope.event {
            found.push((request.0, value["model"].as_str().unwrap().to_owned()));
        }
    }
    found
}

#[tokio::test]
async fn every_client_gets_its_own_replies_and_all_events() {
    let stage = Stage::new();
    let _listener = stage.listen();
    let talk = |name: usize| {
        let path = stage.path.clone();
        async move {
            let mut link = connect(&path).await.unwrap().link;
            let wanted: Vec<(u64, String)> = (0..100).map(|id| (id, format!("{name}-{id}"))).collect();
            // All clients use the same ids.
            let commands = link.commands.clone();
            let sending = wanted.clone();
            let sender = async move {
                for (id, text) in &sending {
                    commands.send(request(*id, text)).await.unwrap();
                }
            };
            let (got, ()) = tokio::join!(replies(&mut link, wanted.len()), sender);
            assert_eq!(got, wanted);
            link
        }
    };
    let mut links = futures_util::future::join_all((0..20).map(talk)).await;
    let mut ids: Vec<u64> = stage.seen.lock().unwrap().iter().map(|request| request.id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, (FIRST_REQUEST..FIRST_REQUEST + 2000).collect::<Vec<u64>>());
    stage.say("to all");
    for link in &mut links {
        let envelope = link.events.next().await.unwrap();
        assert!(matches!(&envelope.event, Event::Notice { text, .. } if text == "to all"), "{envelope:?}");
    }
}

#[tokio::test]
async fn nothing_is_missed_after_the_hello() {
    let stage = Stage::new();
    let _listener = stage.listen();
    let mut attached = connect(&stage.path).await.unwrap();
    stage.say("at once");
    let envelope = attached.link.events.next().await.unwrap();
    assert!(matches!(&envelope.event, Event::Notice { text, .. } if text == "at once"));
    let reply = attached.ask(Command::Tasks).await;
    assert_eq!(reply, Some(Reply::Done { value: json!({"command": "tasks"}) }));
}

#[tokio::test]
async fn a_client_that_does_not_read_is_dropped_and_the_others_go_on() {
    let stage = Stage::new();
    let _listener = stage.listen();
    let mut stuck = Raw::new(&stage).await;
    assert!(stuck.line().await.contains(ID));
    let mut link = connect(&stage.path).await.unwrap().link;
    let text = "x".repeat(64 << 10);
    // More than what is kept for it and what the system keeps besides.
    let flood = LONGEST_BACKLOG / text.len() + 32;
    for _ in 0..flood {
        stage.say(&text);
        link.events.next().await.unwrap();
    }
    // The clock is stopped, so that the time for reading is over at once.
    tokio::time::pause();
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    // What it is given in the end is what was on its way, and then an end.
    let got: usize = stuck.rest().await.iter().map(String::len).sum();
    assert!(got < LONGEST_BACKLOG, "{got} bytes");
    stage.say("still here");
    assert!(
        matches!(&link.events.next().await.unwrap().event, Event::Notice { text, .. } if text == "still here")
    );
}

#[tokio::test]
async fn a_burst_larger_than_the_backlog_reaches_a_client_that_reads() {
    let stage = Stage::new();
    let _listener = stage.listen();
    let mut link = connect(&stage.path).await.unwrap().link;
    let text = "x".repeat(64 << 10);
    let count = 3 * LONGEST_BACKLOG / 2 / text.len();
    let mut seen = 0;
    for _ in 0..2 {
        for _ in 0..count / 2 {
            stage.say(&text);
        }
        for _ in 0..count / 2 {
            link.events.next().await.unwrap();
            seen += 1;
        }
    }
    assert_eq!(seen, count / 2 * 2);
}

#[tokio::test]
async fn events_longer_than_the_backlog_reach_a_client_that_reads() {
    let stage = Stage::new();
    let _listener = stage.listen();
    let mut link = connect(&stage.path).await.unwrap().link;
    // As a prompt with pictures is: shown when it is accepted, and when its turn comes.
    let text = "x".repeat(LONGEST_BACKLOG + 1);
    for _ in 0..2 {
        stage.say(&text);
    }
    for _ in 0..2 {
        let envelope = link.events.next().await.expect("the client was dropped");
        assert!(matches!(&envelope.event, Event::Notice { text: said, .. } if said.len() == text.len()));
    }
}

#[tokio::test]
async fn the_end_of_the_listener_is_the_end_of_the_events() {
    for polite in [true, false] {
        let stage = Stage::new();
        let listener = stage.listen();
        let mut link = connect(&stage.path).await.unwrap().link;
        stage.say("goodbye");
        if polite {
            listener.finish().await;
        } else {
            drop(listener);
        }
        let rest: Vec<_> = link.events.by_ref().collect().await;
        // What was said before a finish is heard.
        assert!(!polite || rest.len() == 1, "{rest:?}");
        assert!(!stage.path.exists());
    }
}

#[tokio::test]
async fn a_session_that_everyone_left_is_not_kept_alive_by_its_door() {
    let Stage { folder, path, door, seen, .. } = Stage::new();
    let weak = door.commands.downgrade();
    let _listener = decurion_serve::socket::listen(&path, door).unwrap();
    let mut link = connect(&path).await.unwrap().link;
    assert!(weak.upgrade().is_none());
    link.commands.send(request(1, "anyone?")).await.unwrap();
    let last: Vec<_> = link.events.by_ref().collect().await;
    let last = &last.last().unwrap().event;
    assert!(
        matches!(last, Event::Notice { level, text } if level == "error" && text.ends_with("has ended")),
        "{last:?}"
    );
    assert!(seen.lock().unwrap().is_empty());
    drop(folder);
}

fn session(start: Start) -> OpenSession {
    OpenSession {
        start,
        cwd: "/".into(),
        worktree: None,
        directories: Vec::new(),
        definition: AgentDefinition::default(),
        system: None,
        append_system: None,
        model: None,
        fallback_model: None,
        thinking: None,
        effort: None,
        mode: None,
        allow: Vec::new(),
        deny: Vec::new(),
        tools: ToolSelection::default(),
        limits: Limits::default(),
        output_schema: None,
        answers: true,
        permission_tool: None,
        checkpoints: false,
        bypass: false,
        persistence: Persistence::Usual,
        entrypoint: "test".to_owned(),
    }
}

#[tokio::test]
async fn the_folder_of_live_sessions_is_a_place() {
    let stage = Stage::new();
    let home = camino::Utf8Path::from_path(stage.folder.path()).unwrap();
    let place: Arc<dyn Place> = Arc::new(LiveSessions::new(home));
    assert_eq!(place.sessions().await.unwrap(), []);
    let _listener = stage.listen();
    std::fs::write(stage.path.with_file_name("stale.sock"), "").unwrap();
    let sessions = place.sessions().await.unwrap();
    assert_eq!(
        sessions.iter().map(|one| (one.session, one.cwd.as_str())).collect::<Vec<_>>(),
        [(stage.session(), "/repo")]
    );
    let link = place.open(session(Start::Resume { id: stage.session(), at: None })).await.unwrap();
    assert_eq!(link.session, stage.session());
    let other = SessionId(Default::default());
    let missing = place.open(session(Start::Resume { id: other, at: None })).await.unwrap_err();
    assert!(matches!(missing, PlaceError::NoSuchSession(id) if id == other));
    let new = place.open(session(Start::New { id: None })).await.unwrap_err();
    assert!(matches!(new, PlaceError::Usage(_)));
}
