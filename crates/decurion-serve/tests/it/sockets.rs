//! The socket itself: its file, its lines, and what is refused.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;

use camino::Utf8PathBuf;
use decurion_protocol::{Command, Event, Reply, Request, RequestId};
use decurion_serve::socket::{FIRST_REQUEST, LONGEST_REQUEST, MOST_CLIENTS, connect, listen};
use expect_test::expect;
use futures_util::StreamExt as _;
use tokio::io::AsyncWriteExt as _;

use crate::stage::{ID, Raw, Stage, request};

#[tokio::test]
async fn the_file_and_its_folder_are_private_and_go_with_the_listener() {
    let stage = Stage::new();
    let run = stage.folder.path().join("run");
    std::fs::create_dir(&run).unwrap();
    std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o755)).unwrap();
    let listener = stage.listen();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(&run), mode(stage.path.as_std_path())), (0o700, 0o600));
    assert!(std::fs::metadata(&stage.path).unwrap().file_type().is_socket());
    drop(listener);
    assert!(!stage.path.exists());
}

#[tokio::test]
async fn a_dead_owners_socket_is_replaced_and_a_new_owners_is_left_alone() {
    let stage = Stage::new();
    std::fs::create_dir(stage.folder.path().join("run")).unwrap();
    // Left behind: the file stays when its process dies.
    drop(StdListener::bind(&stage.path).unwrap());
    assert!(connect(&stage.path).await.unwrap_err().to_string().contains("no live session"));
    let first = stage.listen();
    assert_eq!(connect(&stage.path).await.unwrap().hello.session, stage.session());
    // The next owner comes while the first still closes: its file must survive that.
    let second = stage.listen();
    drop(first);
    assert_eq!(connect(&stage.path).await.unwrap().hello.session, stage.session());
    drop(second);
    assert!(!stage.path.exists());
}

#[tokio::test]
async fn paths_longer_than_the_system_takes_work() {
    let stage = Stage::new();
    for length in [60, 200] {
        let folder = stage.folder.path().join("x".repeat(length)).join("y".repeat(length));
        let path = Utf8PathBuf::from_path_buf(folder.join(format!("{ID}.sock"))).unwrap();
        assert!(path.as_str().len() > 108);
        let listener = listen(&path, stage.door.clone()).unwrap();
        let attached = connect(&path).await.unwrap();
        assert_eq!(attached.hello.session, stage.session());
        drop(listener);
        assert!(!path.exists());
    }
}

/// What is on the wire, word for word: programs depend on it.
#[tokio::test]
async fn the_wire_is_json_lines() {
    let stage = Stage::new();
    let _listener = stage.listen();
    let mut client = Raw::new(&stage).await;
    let hello = client.line().await.replace(&std::process::id().to_string(), "PID");
    // In two pieces, with an empty line before it.
    client.write("\n{\"id\":1,\"comm").await;
    tokio::task::yield_now().await;
    client.write("and\":{\"command\":\"tasks\"}}\n").await;
    let reply = client.line().await;
    stage.say("later");
    let text = [hello, reply, client.line().await].join("\n");
    expect![[r#"
        {"session":"11111111-2222-4333-8444-555555555555","cwd":"/repo","pid":PID}
        {"seq":7,"at":"1970-01-01T00:00:00Z","run":"00000000-0000-0000-0000-000000000000","event":{"type":"replied","request":1,"reply":{"reply":"done","value":{"command":"tasks"}}}}
        {"seq":7,"at":"1970-01-01T00:00:00Z","run":"00000000-0000-0000-0000-000000000000","event":{"type":"notice","level":"info","text":"later"}}"#]]
    .assert_eq(&text);
    // The session itself never sees a client's id.
    assert_eq!(stage.seen.lock().unwrap()[0].id.0, FIRST_REQUEST);
}

#[tokio::test]
async fn what_is_no_request_ends_the_connection_with_a_reason() {
    // Without an id at its beginning there is no request to reply to.
    let long = "x".repeat(LONGEST_REQUEST + 1);
    let mut said = String::new();
    for bytes in
        ["nonsense\n", "{\"id\":1}\n", "{\"id\":1,\"command\":{\"command\":\"fly\"}}\n", "\u{0}\n", &long]
    {
        let stage = Stage::new();
        let _listener = stage.listen();
        let mut client = Raw::new(&stage).await;
        client.line().await;
        // It may be turned away before it has said all.
        let _ = client.0.write_all(bytes.as_bytes()).await;
        said += &client.rest().await.join("\n");
        said.push('\n');
        assert!(stage.seen.lock().unwrap().is_empty());
    }
    expect![[r#"
        {"error":"not a request: expected ident at line 1 column 2"}
        {"error":"not a request: missing field `command` at line 1 column 8"}
        {"error":"not a request: unknown variant `fly`, expected one of `prompt`, `submit`, `unqueue`, `answer`, `answer_host`, `background`, `stop`, `pause`, `continue`, `rebudget`, `shell`, `tell`, `tasks`, `finish`, `inspect`, `interrupt`, `set_mode`, `permit`, `set_model`, `set_thinking`, `change`, `set_servers`, `reconnect_server`, `toggle_server`, `rewind`, `compact`, `close` at line 1 column 34"}
        {"error":"not a request: expected value at line 1 column 1"}
        {"error":"a request is longer than 16777216 bytes"}
    "#]].assert_eq(&said);
}

/// A prompt with a screenshot is accepted, and one that is too long does not end the connection.
#[tokio::test]
async fn long_requests_are_accepted_and_too_long_ones_refused_one_by_one() {
    let stage = Stage::new();
    let _listener = stage.listen();
    let mut link = connect(&stage.path).await.unwrap().link;
    let overhead = serde_json::to_string(&request(3, "")).unwrap().len();
    let lengths = [(1, 3 << 20), (2, LONGEST_REQUEST), (3, LONGEST_REQUEST - overhead), (4, 10)];
    for (id, length) in lengths {
        link.commands.send(request(id, &"x".repeat(length))).await.unwrap();
        let envelope = link.events.next().await.unwrap();
        let Event::Replied { request, reply } = &envelope.event else { panic!("{id}: {envelope:?}") };
        assert_eq!(request.0, id);
        match reply {
            Reply::Done { value } => assert_eq!(value["model"].as_str().unwrap().len(), length),
            Reply::Refused { reason } => {
                assert_eq!((id, reason.as_str()), (2, "a request is longer than 16777216 bytes"));
            }
        }
    }
    assert_eq!(stage.seen.lock().unwrap().len(), 3);
}

/// A session whose disk refuses takes nothing for a while.
#[tokio::test]
async fn a_full_session_refuses_requests_and_still_takes_an_interrupt() {
    let mut stage = Stage::new();
    let (commands, mut inbox) = decurion_protocol::commands::channel();
    stage.door.commands = commands;
    let _listener = stage.listen();
    let mut link = connect(&stage.path).await.unwrap().link;
    for id in 1..=4 {
        link.commands.send(request(id, &"x".repeat(10 << 20))).await.unwrap();
    }
    link.commands.send(Request { id: RequestId(5), command: Command::Interrupt }).await.unwrap();
    let mut waiting = Vec::new();
    while waiting.len() < 4 {
        waiting.push(inbox.recv().await.unwrap());
    }
    let lengths = waiting.iter().map(|queued| match &queued.request.command {
        Command::SetModel { model } => model.len(),
        _ => 0,
    });
    assert!(lengths.eq([10 << 20, 10 << 20, 10 << 20, 0]));
    assert_eq!(waiting[3].request.command, Command::Interrupt);
    let envelope = link.events.next().await.unwrap();
    let Event::Replied { request: RequestId(4), reply: Reply::Refused { reason } } = &envelope.event else {
        panic!("{envelope:?}")
    };
    expect![
        "not sent: the session is busy, and 512 commands or 32 MiB wait for it already; send it again later (interrupts still work; if the disk is full, free some space)"
    ]
    .assert_eq(reason);
    // There is room again as soon as one was handled.
    waiting.clear();
    link.commands.send(request(6, "x")).await.unwrap();
    assert_eq!(inbox.recv().await.unwrap().request.command, request(6, "x").command);
}

/// What a session started itself may only look, which takes no long request.
#[tokio::test]
async fn a_long_request_of_the_sessions_own_child_ends_its_connection() {
    let mut stage = Stage::new();
    stage.door.from_below = |_| true;
    let _listener = stage.listen();
    let mut client = Raw::new(&stage).await;
    client.line().await;
    let _ = client.0.write_all(&vec![b'x'; 2 << 20]).await;
    assert_eq!(client.rest().await, ["{\"error\":\"a request is longer than 1048576 bytes\"}"]);
}

/// Changes of the working tree are of files that a rule may hide from the session's commands.
#[tokio::test]
async fn the_sessions_own_child_does_not_see_what_is_changed_in_the_working_tree() {
    let mut stage = Stage::new();
    stage.door.from_below = |_| true;
    let _listener = stage.listen();
    let mut client = Raw::new(&stage).await;
    client.line().await;
    client.write("{\"id\":1,\"command\":{\"command\":\"inspect\",\"what\":{\"what\":\"changes\"}}}\n").await;
    let answer = client.line().await;
    assert!(answer.contains("a session takes no orders from what it started itself"), "{answer}");
    assert_eq!(stage.seen.lock().unwrap().len(), 0);
}

#[tokio::test]
async fn half_a_line_is_not_acted_on_and_a_client_that_stops_writing_still_reads() {
    let stage = Stage::new();
    let _listener = stage.listen();
    let mut client = Raw::new(&stage).await;
    client.line().await;
    client.write("{\"id\":1,\"command\":{\"command\":\"tasks\"}}\n{\"id\":2,\"command\":{\"command\":\"interrupt\"}}").await;
    client.0.shutdown().await.unwrap();
    assert!(client.line().await.contains("\"request\":1"));
    stage.say("still here");
    assert!(client.line().await.contains("still here"));
    assert_eq!(stage.seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn there_is_a_limit_to_clients_and_those_who_leave_make_room() {
    let stage = Stage::new();
    let _listener = stage.listen();
    let mut clients = Vec::new();
    for _ in 0..MOST_CLIENTS {
        clients.push(connect(&stage.path).await.unwrap());
    }
    let refused = connect(&stage.path).await.unwrap_err().to_string();
    assert!(refused.ends_with("refused: too many clients at once: 64"), "{refused}");
    clients.pop();
    // Its place is free as soon as its end was seen.
    while connect(&stage.path).await.is_err() {
        tokio::task::yield_now().await;
    }
}

/// Refusals that a client does not read are bounded like everything else that it does not read.
#[tokio::test(start_paused = true)]
async fn a_client_that_floods_a_full_session_and_reads_nothing_is_dropped() {
    let mut stage = Stage::new();
    let (commands, _inbox) = decurion_protocol::commands::channel();
    stage.door.commands = commands;
    let _listener = stage.listen();
    let mut client = Raw::new(&stage).await;
    client.line().await;
    let requests = "{\"id\":1,\"command\":{\"command\":\"tasks\"}}\n".repeat(1_000);
    let mut taken = 0;
    while client.0.write_all(requests.as_bytes()).await.is_ok() {
        taken += 1_000;
        assert!(taken < 300_000, "nothing bounds what waits for the client");
    }
}
