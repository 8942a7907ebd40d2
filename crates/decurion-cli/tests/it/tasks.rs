//! Tasks seen from another terminal: of a session that a scripted run left behind, and of one that is live
//! because this test listens in its owner's place.
#![allow(clippy::needless_raw_string_hashes)] // as the expectations are written

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use camino::Utf8PathBuf;
use decurion_engine::listing;
use decurion_engine::task::TaskTable;
use decurion_protocol::event::SessionInfo;
use decurion_protocol::{
    Attention, Block, Command, Envelope, Event, Intent, Message, Outcome, Overlap, Question, Reply, Request,
    SessionId, TaskKind, TaskRecord, TaskState,
};
use decurion_serve::socket::{SessionSocket, listen};
use decurion_store::{Journal as _, Layout, SessionWriter};
use decurion_testkit::proc::{Finished, Home};
use expect_test::{Expect, expect};
use futures_util::stream;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::stand::{DECURION, LIMIT, Stand, finished, without_times};

const ID: &str = "11111111-2222-4333-8444-555555555555";
const OTHER: &str = "22222222-2222-4333-8444-555555555555";
const QUESTION: &str = "77777777-2222-4333-8444-555555555555";
const ROOT_QUESTION: &str = "88888888-2222-4333-8444-555555555555";
const AGENT: &str = "a0123456789abcdef";
const SHELL: &str = "b12345678";
/// An agent and a command, each waited for.
const SCRIPT: &str = "when agent=main turn=1
  call Agent {\"description\": \"count files\", \"prompt\": \"Count the files.\", \"subagent_type\": \"fork\"}
when agent=main turn=2 result=/(a[0-9a-f]{16})/
  call TaskOutput {\"task_id\": \"$1\", \"block\": true, \"timeout\": 60000}
when agent=main turn=3
  call Bash {\"command\": \"echo one; echo two\", \"run_in_background\": true, \"description\": \"greet\"}
when agent=main turn=4 result=/ID: (b[0-9a-z]{8})/
  call TaskOutput {\"task_id\": \"$1\", \"block\": true, \"timeout\": 60000}
when agent=main
  say \"All done.\"
when turn=2
  call Bash {\"command\": \"echo 3\"}
when
  say \"There are three files.\"
";

fn run(home: &Home, arguments: &[&str]) -> Finished {
    finished(home.program(DECURION).args(arguments))
}

/// What a command printed, its errors and its exit code, without what differs from run to run.
fn shown(home: &Home, names: &BTreeMap<String, &str>, arguments: &[&str]) -> String {
    let run = run(home, arguments);
    let mut text = format!("$ {}\n{}\n", arguments.join(" "), run.output());
    for line in run.errors.lines() {
        text += &format!("! {line}\n");
    }
    text += &format!("= {}\n", run.ending.code());
    // Longer names first: the beginning of an id is one too.
    for (name, stands_for) in names.iter().rev() {
        text = text.replace(name.as_str(), stands_for);
    }
    if arguments == ["tasks"] {
        text = without_times(&text);
    }
    text.lines().filter(|line| !line.is_empty()).map(|line| format!("{}\n", line.trim_end())).collect()
}

fn check(home: &Home, names: &BTreeMap<String, &str>, commands: &[&[&str]], expected: &Expect) {
    let text: String = commands.iter().map(|arguments| shown(home, names, arguments)).collect();
    expected.assert_eq(&text);
}

/// A session with an agent and a command, both ended, and what to call their ids.
fn finished_session() -> (Home, BTreeMap<String, &'static str>) {
    let home = Home::new().unwrap();
    let script = home.path().join("tasks.script");
    std::fs::write(&script, SCRIPT).unwrap();
    let model = format!("scripted:{}", script.display());
    let run = run(&home, &["-p", "go", "--model", &model, "--allowedTools", "Bash", "--session-id", ID]);
    assert_eq!((run.ending.code(), run.output().as_str()), (0, "All done."), "{run:?}");
    let mut names = BTreeMap::from([(home.state().to_str().unwrap().to_owned(), "STATE")]);
    for row in rows(&home) {
        let is_shell = row["type"] == "local_bash";
        let id = row["id"].as_str().unwrap();
        names.insert(id.to_owned(), if is_shell { "SHELL" } else { "AGENT" });
        names.insert(id[..8].to_owned(), if is_shell { "SHEL" } else { "AGEN" });
        names.insert(row["tool_use_id"].as_str().unwrap().to_owned(), "CALL");
        names.insert(row["started"].as_str().unwrap().to_owned(), "START");
        names.insert(row["ended"].as_str().unwrap().to_owned(), "END");
        names.insert(format!("\"tokens\":{},", row["tokens"]), "\"tokens\":N,");
        names.insert(format!("tokens  {}\n", row["tokens"]), "tokens  N\n");
    }
    let work = home.work().canonicalize().unwrap();
    let slug = decurion_store::slug(work.to_str().unwrap());
    names.insert(slug, "SLUG");
    // What a fork is told is the engine's to word.
    let rows = run_lines(&home, &["tasks", "follow", "a"]);
    let told = rows.into_iter().find(|line| line.starts_with("  → You are")).unwrap();
    names.insert(told, "  → WHAT A FORK IS TOLD");
    (home, names)
}

fn rows(home: &Home) -> Vec<Value> {
    let lines = run_lines(home, &["tasks", "--json"]);
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn run_lines(home: &Home, arguments: &[&str]) -> Vec<String> {
    run(home, arguments).lines
}

#[test]
fn tasks_of_a_session_that_has_ended_are_listed_shown_and_printed() {
    let (home, names) = finished_session();
    let id = |kind: &str| names.iter().find(|(_, name)| **name == kind).unwrap().0.clone();
    let (agent, shell) = (id("AGENT"), id("SHELL"));
    check(
        &home,
        &names,
        &[
            &["tasks"],
            &["tasks", "list", "--json"],
            &["tasks", "show", &agent],
            &["tasks", "show", "b"],
            &["tasks", "follow", &agent],
            &["tasks", "follow", &shell, "--session", ID],
            &["tasks", "follow", &shell, "--json"],
        ],
        &expect![[r#"
            $ tasks
            ID  STATE  KIND  STARTED  DESCRIPTION
            AGEN  completed  agent fork  AGO  count files
            SHEL  completed  command  AGO  greet
            ! decurion: session 11111111-2222-4333-8444-555555555555 is not running; this is what it recorded
            = 0
            $ tasks list --json
            {"id":"AGENT","type":"local_agent","description":"count files","prompt":"Count the files.","agent_type":"fork","parent":null,"tool_use_id":"CALL","depth":1,"status":"completed","state":"completed","started":"START","ended":"END","outcome":"completed","result":"There are three files.","error":null,"backgrounded":true,"notified":true,"reported":{"tool_uses":0,"tokens":0},"output_file":"STATE/projects/SLUG/11111111-2222-4333-8444-555555555555/tasks/AGENT.output","limits":{"turns":null,"money":null,"tokens":null,"seconds":null,"spawns":null},"tool_uses":1,"tokens":N,"activities":[],"live":false}
            {"id":"SHELL","type":"local_bash","description":"greet","prompt":"echo one; echo two","agent_type":null,"parent":null,"tool_use_id":"CALL","depth":1,"status":"completed","state":"completed","started":"START","ended":"END","outcome":"completed","result":"exit code 0","error":null,"backgrounded":true,"notified":true,"reported":{"tool_uses":0,"tokens":0},"output_file":"STATE/projects/SLUG/11111111-2222-4333-8444-555555555555/tasks/SHELL.output","limits":null,"tool_uses":0,"tokens":N,"activities":[],"live":false}
            = 0
            $ tasks show AGENT
            id      AGENT
            kind    agent fork
            state   completed
            asked   count files
            output  STATE/projects/SLUG/11111111-2222-4333-8444-555555555555/tasks/AGENT.output
            tools   1
            tokens  N
            prompt:
            Count the files.
            result:
            There are three files.
            ! decurion: session 11111111-2222-4333-8444-555555555555 is not running; this is what it recorded
            = 0
            $ tasks show b
            id      SHELL
            kind    command
            state   completed
            asked   greet
            output  STATE/projects/SLUG/11111111-2222-4333-8444-555555555555/tasks/SHELL.output
            prompt:
            echo one; echo two
            result:
            exit code 0
            ! decurion: session 11111111-2222-4333-8444-555555555555 is not running; this is what it recorded
            = 0
            $ tasks follow AGENT
            ● Agent {"description":"count files","prompt":"Count the files.","subagent_type":"fork"}
              → WHAT A FORK IS TOLD
            > Count the files.
            ● Bash {"command":"echo 3"}
              → 3
            There are three files.
            ! decurion: AGENT has ended: completed
            = 0
            $ tasks follow SHELL --session 11111111-2222-4333-8444-555555555555
            one
            two
            ! decurion: SHELL has ended: completed
            = 0
            $ tasks follow SHELL --json
            {"output":"one\ntwo\n"}
            {"ended":"SHELL","outcome":"completed"}
            = 0
        "#]],
    );
}

#[test]
fn what_cannot_be_done_without_an_owner_says_how_to_go_on() {
    let (home, names) = finished_session();
    let id = |kind: &str| names.iter().find(|(_, name)| **name == kind).unwrap().0.clone();
    let (agent, shell) = (id("AGENT"), id("SHELL"));
    check(
        &home,
        &names,
        &[
            &["tasks", "resume", &agent, "more"],
            &["tasks", "resume", &shell],
            &["tasks", "answer", &agent, "allow"],
            &["tasks", "answer", QUESTION, "allow", "--message", "x"],
            &["tasks", "stop", &agent],
            &["tasks", "pause", &agent],
            &["tasks", "continue", &agent],
            &["tasks", "stop", "zz"],
            &["tasks", "show", ""],
            &["tasks", "--session", OTHER],
            &["tasks", "--session", "../x"],
        ],
        &expect![[r#"
            $ tasks resume AGENT more
            ! decurion: session 11111111-2222-4333-8444-555555555555 is not running
            !   resume it with: decurion -p --resume 11111111-2222-4333-8444-555555555555 "…" (the prompt can say what this agent should do)
            = 2
            $ tasks resume SHELL
            ! decurion: SHELL is a command, which cannot be resumed
            !   only agents can be resumed
            = 2
            $ tasks answer AGENT allow
            ! decurion: session 11111111-2222-4333-8444-555555555555 is not running
            !   resume it with: decurion -p --resume 11111111-2222-4333-8444-555555555555 "…" (open questions are asked again then)
            = 2
            $ tasks answer 77777777-2222-4333-8444-555555555555 allow --message x
            ! decurion: --message is only for deny
            !   `decurion tasks resume ID TEXT` sends an agent a message
            = 2
            $ tasks stop AGENT
            AGENT has already ended: completed
            = 0
            $ tasks pause AGENT
            ! decurion: session 11111111-2222-4333-8444-555555555555 is not running
            !   resume it with: decurion -p --resume 11111111-2222-4333-8444-555555555555 "…" (nothing of it runs until then)
            = 2
            $ tasks continue AGENT
            ! decurion: session 11111111-2222-4333-8444-555555555555 is not running
            !   resume it with: decurion -p --resume 11111111-2222-4333-8444-555555555555 "…" (what is paused stays paused until then)
            = 2
            $ tasks stop zz
            ! decurion: no task with this id in session 11111111-2222-4333-8444-555555555555: zz
            !   there are: AGENT, SHELL
            = 2
            $ tasks show
            ! decurion: no task with this id in session 11111111-2222-4333-8444-555555555555:
            !   there are: AGENT, SHELL
            = 2
            $ tasks --session 22222222-2222-4333-8444-555555555555
            ! decurion: no session with this id: 22222222-2222-4333-8444-555555555555
            !   `decurion sessions list --all` lists the sessions
            = 2
            $ tasks --session ../x
            ! decurion: session not found: ../x
            !   `decurion sessions list --all` lists the sessions
            = 2
        "#]],
    );
    let empty = Home::new().unwrap();
    check(
        &empty,
        &names,
        &[&["tasks"], &["tasks", "list", "--json"]],
        &expect![[r#"
            $ tasks
            ! decurion: no sessions in this folder
            !  --session ID names one of another folder; `decurion sessions list --all` lists them
            = 2
            $ tasks list --json
            ! decurion: no sessions in this folder
            !   --session ID names one of another folder; `decurion sessions list --all` lists them
            = 2
        "#]],
    );
}

/// The owner of a session, as far as another terminal can tell.
struct Owner {
    requests: Receiver<Request>,
    thread: Option<(tokio::sync::oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Owner {
    /// Listens for this session; whoever subscribes is then given these events.
    fn new(
        home: &Home,
        session: &str,
        events: Vec<Envelope>,
        on_subscribe: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let path = utf8(home.state()).join("run").join(format!("{session}.sock"));
        let cwd = utf8(home.work().canonicalize().unwrap());
        let session: SessionId = session.parse().unwrap();
        let table = table(home);
        let (seen, requests) = channel();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (ready, is_ready) = channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let (commands, mut inbox) = decurion_protocol::commands::channel();
                let (said, _) = broadcast::channel::<Arc<Envelope>>(256);
                let source = said.clone();
                let subscribe = move || {
                    let live = source.subscribe();
                    on_subscribe();
                    for envelope in &events {
                        source.send(Arc::new(envelope.clone())).unwrap();
                    }
                    Box::pin(stream::unfold(live, |mut live| async move {
                        live.recv().await.ok().map(|envelope| (envelope, live))
                    })) as decurion_protocol::link::BoxStream<'static, _>
                };
                let held = commands.clone();
                let listener = listen(
                    &path,
                    SessionSocket {
                        session,
                        cwd,
                        commands,
                        events: Arc::new(subscribe),
                        from_below: |_| false,
                    },
                )
                .unwrap();
                ready.send(()).unwrap();
                let serve = async {
                    while let Some(request) = inbox.recv().await.map(|queued| queued.request) {
                        let reply = reply(&request.command, &table);
                        let event = Event::Replied { request: request.id, reply };
                        seen.send(request).unwrap();
                        let _ = said.send(Arc::new(envelope(0, event)));
                    }
                };
                tokio::select! {
                    () = serve => {}
                    _ = stopped => {}
                }
                drop((held, listener));
            });
        });
        is_ready.recv().unwrap();
        Self { requests, thread: Some((stop, thread)) }
    }

    /// The commands that reached the session, but for lists.
    fn asked(&self) -> Vec<Value> {
        let all = self.requests.try_iter().map(|request| json!(request.command));
        all.filter(|command| command["command"] != "tasks").collect()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            let _ = stop.send(());
            thread.join().unwrap();
        }
    }
}

fn reply(command: &Command, table: &Mutex<TaskTable>) -> Reply {
    match command {
        Command::Tasks => {
            let table = table.lock().unwrap();
            Reply::Done { value: Value::Array(table.rows().map(|row| listing::row(&table, row)).collect()) }
        }
        Command::Tell { text, .. } if text == "nonsense" => {
            Reply::Refused { reason: "it makes no sense".into() }
        }
        Command::Pause { task, .. } if task.as_str() == SHELL => {
            Reply::Refused { reason: "only agents can be paused".into() }
        }
        Command::Pause { tree, .. } | Command::Continue { tree, .. } => {
            Reply::Done { value: json!(1 + 2 * usize::from(*tree)) }
        }
        Command::Rebudget { limits, .. } => Reply::Done { value: json!(limits) },
        _ => Reply::Done { value: json!(1) },
    }
}

fn utf8(path: PathBuf) -> Utf8PathBuf {
    Utf8PathBuf::from_path_buf(path).unwrap()
}

fn envelope(seq: u64, event: Event) -> Envelope {
    Envelope { seq, at: Timestamp::UNIX_EPOCH, agent: None, run: ID.parse().unwrap(), event }
}

fn of_agent(seq: u64, event: Event) -> Envelope {
    Envelope { agent: Some(AGENT.parse().unwrap()), ..envelope(seq, event) }
}

fn message(seq: u64, message: Message) -> Envelope {
    let event =
        Event::Message { message, lines: vec![OTHER.parse().unwrap()], parent: None, meta: Box::default() };
    of_agent(seq, event)
}

fn opened(home: &Home, task: &str, kind: TaskKind) -> Event {
    let record = TaskRecord {
        task: task.parse().unwrap(),
        kind,
        description: format!("the work of {task}"),
        prompt: "do it".into(),
        parent: None,
        first_parent: None,
        call: None,
        agent_type: (kind == TaskKind::LocalAgent).then(|| "helper".to_owned()),
        depth: 1,
        attention: Attention::Background,
        output_file: utf8(home.path().join(format!("{task}.output"))),
    };
    Event::TaskOpened { record: Box::new(record) }
}

fn asked(id: &str, agent: Option<&str>) -> Event {
    let question = Question {
        asked_by: Default::default(),
        blocked: None,
        id: id.parse().unwrap(),
        agent: agent.map(|agent| agent.parse().unwrap()),
        path: Vec::new(),
        call: decurion_protocol::CallId(format!("call-of-{id}")),
        tool: "Bash".into(),
        input: json!({"command": "rm x"}),
        intent: Intent { overlap: Overlap::Together, ..Intent::titled("$ rm x") },
        reason: "no rule allows it".into(),
        suggestions: Vec::new(),
        behind: false,
        patch: None,
        elicitation: None,
    };
    Event::Asked { question: Box::new(question) }
}

/// What the session has on record: an agent and a command at work, and a question of each asker.
fn record(home: &Home) -> Vec<Envelope> {
    let running = |task: &str| Event::TaskChanged {
        task: task.parse().unwrap(),
        state: TaskState::Running { attention: Attention::Background },
    };
    vec![
        envelope(1, Event::SessionOpened { info: Box::new(info(home)) }),
        envelope(2, opened(home, AGENT, TaskKind::LocalAgent)),
        envelope(3, running(AGENT)),
        envelope(4, opened(home, SHELL, TaskKind::LocalBash)),
        envelope(5, running(SHELL)),
        message(6, Message::user("do it")),
        envelope(7, asked(QUESTION, Some(AGENT))),
        envelope(8, asked(ROOT_QUESTION, None)),
        envelope(9, asked(OTHER, None)),
        envelope(
            10,
            Event::Answered {
                question: OTHER.parse().unwrap(),
                answer: decurion_protocol::Answer::Allow {
                    input: None,
                    rules: Vec::new(),
                    everywhere: false,
                },
                by: "user".into(),
            },
        ),
    ]
}

fn info(home: &Home) -> SessionInfo {
    SessionInfo {
        session: ID.parse().unwrap(),
        cwd: utf8(home.work().canonicalize().unwrap()),
        version: "0".into(),
        git_branch: None,
        entrypoint: "test".into(),
        imported_from: None,
        forked_from: None,
    }
}

fn table(home: &Home) -> Mutex<TaskTable> {
    let mut table = TaskTable::default();
    for envelope in &record(home) {
        table.apply(envelope);
    }
    Mutex::new(table)
}

/// A session with a record.
fn recorded() -> (Home, BTreeMap<String, &'static str>) {
    let home = Home::new().unwrap();
    let info = info(&home);
    let paths = Layout::new(utf8(home.state())).session(&info.cwd, info.session);
    let mut writer = SessionWriter::create(&paths, &info, Timestamp::UNIX_EPOCH).unwrap();
    writer.append(&record(&home)).unwrap();
    let names = BTreeMap::from([(home.path().to_str().unwrap().to_owned(), "HOME")]);
    (home, names)
}

#[test]
fn a_live_session_is_preferred_asked_and_told() {
    let (home, names) = recorded();
    let owner = Owner::new(&home, ID, Vec::new(), || {});
    check(
        &home,
        &names,
        &[
            &["tasks"],
            &["tasks", "--json"],
            &["tasks", "show", "a"],
            &["tasks", "stop", AGENT],
            &["tasks", "pause", AGENT],
            &["tasks", "pause", AGENT, "--tree"],
            &["tasks", "pause", SHELL],
            &["tasks", "continue", "a", "--json"],
            &["tasks", "continue", AGENT, "--tree"],
            &["tasks", "budget", AGENT],
            &["tasks", "budget", AGENT, "--turns", "40", "--usd", "0.5", "--json"],
            &["tasks", "budget", AGENT, "--tokens", "9000", "--seconds", "60", "--spawns", "2"],
            &["tasks", "budget", AGENT, "--usd=-1"],
            &["tasks", "resume", AGENT],
            &["tasks", "resume", AGENT, "look again", "--json"],
            &["tasks", "resume", AGENT, "nonsense"],
            &["tasks", "resume", SHELL],
            &["tasks", "answer", AGENT, "allow"],
            &["tasks", "answer", &AGENT[..4], "allow", "--session", &ID[..4]],
            &["tasks", "answer", &QUESTION[..4], "allow"],
            &["tasks", "answer", "main", "deny"],
            &["tasks", "answer", QUESTION, "deny", "--message", "too dangerous"],
            &["tasks", "answer", OTHER, "allow"],
            &["tasks", "answer", "", "allow"],
            &["tasks", "answer", QUESTION, "allow", "--content", "{\"name\": \"x\"}"],
            &["tasks", "answer", QUESTION, "allow", "--content", "secret"],
            &["tasks", "answer", QUESTION, "deny", "--content", "{}"],
        ],
        &expect![[r#"
            $ tasks
            ID  STATE  KIND  STARTED  DESCRIPTION
            a0123456  running in the background  agent helper  1970-01-01  the work of a0123456789abcdef
            b1234567  running in the background  command  1970-01-01  the work of b12345678
            ? 77777777  a0123456 asks: $ rm x (no rule allows it)
            ? 88888888  main asks: $ rm x (no rule allows it)
            = 0
            $ tasks --json
            {"id":"a0123456789abcdef","type":"local_agent","description":"the work of a0123456789abcdef","prompt":"do it","agent_type":"helper","parent":null,"tool_use_id":null,"depth":1,"status":"running","state":"running in the background","started":"1970-01-01T00:00:00Z","ended":null,"outcome":null,"result":null,"error":null,"backgrounded":true,"notified":false,"reported":{"tool_uses":0,"tokens":0},"output_file":"HOME/a0123456789abcdef.output","limits":null,"tool_uses":0,"tokens":0,"activities":[],"live":true}
            {"id":"b12345678","type":"local_bash","description":"the work of b12345678","prompt":"do it","agent_type":null,"parent":null,"tool_use_id":null,"depth":1,"status":"running","state":"running in the background","started":"1970-01-01T00:00:00Z","ended":null,"outcome":null,"result":null,"error":null,"backgrounded":true,"notified":false,"reported":{"tool_uses":0,"tokens":0},"output_file":"HOME/b12345678.output","limits":null,"tool_uses":0,"tokens":0,"activities":[],"live":true}
            {"type":"question","id":"77777777-2222-4333-8444-555555555555","task":"a0123456789abcdef","path":[],"tool_use_id":"call-of-77777777-2222-4333-8444-555555555555","tool":"Bash","title":"$ rm x","input":{"command":"rm x"},"reason":"no rule allows it","live":true}
            {"type":"question","id":"88888888-2222-4333-8444-555555555555","task":null,"path":[],"tool_use_id":"call-of-88888888-2222-4333-8444-555555555555","tool":"Bash","title":"$ rm x","input":{"command":"rm x"},"reason":"no rule allows it","live":true}
            = 0
            $ tasks show a
            id      a0123456789abcdef
            kind    agent helper
            state   running in the background
            asked   the work of a0123456789abcdef
            output  HOME/a0123456789abcdef.output
            ? 77777777-2222-4333-8444-555555555555  a0123456789abcdef asks: $ rm x (no rule allows it)
            prompt:
            do it
            = 0
            $ tasks stop a0123456789abcdef
            a0123456789abcdef is being stopped
            = 0
            $ tasks pause a0123456789abcdef
            a0123456789abcdef is paused; `decurion tasks continue a0123456789abcdef` resumes it
            = 0
            $ tasks pause a0123456789abcdef --tree
            a0123456789abcdef and its sub-agents are paused (3); `decurion tasks continue a0123456789abcdef --tree` resumes them
            = 0
            $ tasks pause b12345678
            ! decurion: session 11111111-2222-4333-8444-555555555555 refused: only agents can be paused
            = 1
            $ tasks continue a --json
            {"id":"a0123456789abcdef","continued":1}
            = 0
            $ tasks continue a0123456789abcdef --tree
            a0123456789abcdef and its sub-agents are resumed (3)
            = 0
            $ tasks budget a0123456789abcdef
            a0123456789abcdef: no separate budget (uses the session's)
            = 0
            $ tasks budget a0123456789abcdef --turns 40 --usd 0.5 --json
            {"id":"a0123456789abcdef","limits":{"turns":40,"money":500000000,"tokens":null,"seconds":null,"spawns":null}}
            = 0
            $ tasks budget a0123456789abcdef --tokens 9000 --seconds 60 --spawns 2
            a0123456789abcdef: may use 9000 tokens, 60 s, 2 agents
            = 0
            $ tasks budget a0123456789abcdef --usd=-1
            ! decurion: --usd must be a number of dollars above 0: -1
            = 2
            $ tasks resume a0123456789abcdef
            sent to a0123456789abcdef: Continue with your work.
            = 0
            $ tasks resume a0123456789abcdef look again --json
            {"id":"a0123456789abcdef","told":"look again"}
            = 0
            $ tasks resume a0123456789abcdef nonsense
            ! decurion: session 11111111-2222-4333-8444-555555555555 refused: it makes no sense
            = 1
            $ tasks resume b12345678
            ! decurion: b12345678 is a command, which cannot be resumed
            !   only agents can be resumed
            = 2
            $ tasks answer a0123456789abcdef allow
            allowed: 77777777-2222-4333-8444-555555555555
            = 0
            $ tasks answer a012 allow --session 1111
            allowed: 77777777-2222-4333-8444-555555555555
            = 0
            $ tasks answer 7777 allow
            allowed: 77777777-2222-4333-8444-555555555555
            = 0
            $ tasks answer main deny
            denied: 88888888-2222-4333-8444-555555555555
            = 0
            $ tasks answer 77777777-2222-4333-8444-555555555555 deny --message too dangerous
            denied: 77777777-2222-4333-8444-555555555555
            = 0
            $ tasks answer 22222222-2222-4333-8444-555555555555 allow
            ! decurion: no open question with this id, or of this task, in session 11111111-2222-4333-8444-555555555555: 22222222-2222-4333-8444-555555555555
            !   there are: 77777777-2222-4333-8444-555555555555, 88888888-2222-4333-8444-555555555555
            = 2
            $ tasks answer  allow
            ! decurion: no open question with this id, or of this task, in session 11111111-2222-4333-8444-555555555555:
            !   there are: 77777777-2222-4333-8444-555555555555, 88888888-2222-4333-8444-555555555555
            = 2
            $ tasks answer 77777777-2222-4333-8444-555555555555 allow --content {"name": "x"}
            answered: 77777777-2222-4333-8444-555555555555
            = 0
            $ tasks answer 77777777-2222-4333-8444-555555555555 allow --content secret
            ! decurion: --content is not a JSON object
            !   for example '{"name": "…"}'
            = 2
            $ tasks answer 77777777-2222-4333-8444-555555555555 deny --content {}
            ! decurion: --content is only for allow
            = 2
        "#]],
    );
    let asked: String = owner.asked().iter().map(|command| format!("{command}\n")).collect();
    expect![[r#"
        {"command":"stop","task":"a0123456789abcdef"}
        {"command":"pause","task":"a0123456789abcdef","tree":false}
        {"command":"pause","task":"a0123456789abcdef","tree":true}
        {"command":"pause","task":"b12345678","tree":false}
        {"command":"continue","task":"a0123456789abcdef","tree":false}
        {"command":"continue","task":"a0123456789abcdef","tree":true}
        {"command":"rebudget","task":"a0123456789abcdef","limits":{"turns":40,"money":500000000,"tokens":null,"seconds":null,"spawns":null}}
        {"command":"rebudget","task":"a0123456789abcdef","limits":{"turns":null,"money":null,"tokens":9000,"seconds":60,"spawns":2}}
        {"command":"tell","agent":"a0123456789abcdef","text":"Continue with your work."}
        {"command":"tell","agent":"a0123456789abcdef","text":"look again"}
        {"command":"tell","agent":"a0123456789abcdef","text":"nonsense"}
        {"command":"answer","question":"77777777-2222-4333-8444-555555555555","answer":{"behavior":"allow"},"by":"user"}
        {"command":"answer","question":"77777777-2222-4333-8444-555555555555","answer":{"behavior":"allow"},"by":"user"}
        {"command":"answer","question":"77777777-2222-4333-8444-555555555555","answer":{"behavior":"allow"},"by":"user"}
        {"command":"answer","question":"88888888-2222-4333-8444-555555555555","answer":{"behavior":"deny","message":"A person looked at this call and denied it."},"by":"user"}
        {"command":"answer","question":"77777777-2222-4333-8444-555555555555","answer":{"behavior":"deny","message":"too dangerous"},"by":"user"}
        {"command":"answer","question":"77777777-2222-4333-8444-555555555555","answer":{"behavior":"elicited","action":"accept","content":{"name":"x"}},"by":"user"}
    "#]].assert_eq(&asked);
}

#[test]
fn tasks_of_a_session_whose_owner_died_are_said_to_have_been_at_work() {
    let (home, names) = recorded();
    check(
        &home,
        &names,
        &[&["tasks"], &["tasks", "follow", SHELL]],
        &expect![[r#"
            $ tasks
            ID  STATE  KIND  STARTED  DESCRIPTION
            a0123456  was running in the background  agent helper  1970-01-01  the work of a0123456789abcdef
            b1234567  was running in the background  command  1970-01-01  the work of b12345678
            ? 77777777  a0123456 asks: $ rm x (no rule allows it)
            ? 88888888  main asks: $ rm x (no rule allows it)
            ! decurion: session 11111111-2222-4333-8444-555555555555 is not running; this is what it recorded
            = 0
            $ tasks follow b12345678
            ! decurion: b12345678 had not ended when its session did
            = 7
        "#]],
    );
}

#[test]
fn several_live_sessions_of_a_folder_must_be_told_apart() {
    let (home, names) = recorded();
    let _one = Owner::new(&home, ID, Vec::new(), || {});
    // This one keeps no record: it is known by its socket alone.
    let two = Owner::new(&home, OTHER, Vec::new(), || {});
    check(
        &home,
        &names,
        &[
            &["tasks"],
            &["tasks", "--session", OTHER],
            &["tasks", "answer", QUESTION, "allow", "--session", OTHER],
            &["tasks", "follow", AGENT, "--session", OTHER],
        ],
        &expect![[r#"
            $ tasks
            ! decurion: several sessions are running in this folder: 11111111-2222-4333-8444-555555555555, 22222222-2222-4333-8444-555555555555
            !  name one with --session ID
            = 2
            $ tasks --session 22222222-2222-4333-8444-555555555555
            ID        STATE                      KIND          STARTED     DESCRIPTION
            a0123456  running in the background  agent helper  1970-01-01  the work of a0123456789abcdef
            b1234567  running in the background  command       1970-01-01  the work of b12345678
            = 0
            $ tasks answer 77777777-2222-4333-8444-555555555555 allow --session 22222222-2222-4333-8444-555555555555
            allowed: 77777777-2222-4333-8444-555555555555
            = 0
            $ tasks follow a0123456789abcdef --session 22222222-2222-4333-8444-555555555555
            ! decurion: session 22222222-2222-4333-8444-555555555555 keeps no transcript to follow
            = 1
        "#]],
    );
    assert_eq!(two.asked().len(), 1);
}

#[test]
fn an_agent_is_followed_to_its_end() {
    let (home, names) = recorded();
    let said = Message::assistant(vec![Block::text("I did\nit.")]);
    let outcome = Outcome::Failed { error: "out of ideas".into() };
    let events = vec![
        // On record already, so shown already.
        message(6, Message::user("do it")),
        message(11, said),
        of_agent(12, Event::RunEnded { outcome, totals: Box::default() }),
        message(13, Message::user("not for this reader")),
    ];
    let _owner = Owner::new(&home, ID, events, || {});
    check(
        &home,
        &names,
        &[&["tasks", "follow", AGENT, "--session", ID]],
        &expect![[r#"
        $ tasks follow a0123456789abcdef --session 11111111-2222-4333-8444-555555555555
        > do it
        I did
        it.
        ! decurion: a0123456789abcdef has ended: failed
        = 1
    "#]],
    );
}

#[test]
fn a_command_is_followed_to_its_end() {
    let (home, names) = recorded();
    let output = home.path().join(format!("{SHELL}.output"));
    std::fs::write(&output, "one\u{1b}[31m\n").unwrap();
    let outcome = Outcome::Completed { report: String::new(), limit: None };
    let state = TaskState::Ended(outcome);
    let events = vec![envelope(11, Event::TaskChanged { task: SHELL.parse().unwrap(), state })];
    let _owner =
        Owner::new(&home, ID, events, move || std::fs::write(&output, "one\u{1b}[31m\ntwo\n").unwrap());
    check(
        &home,
        &names,
        &[&["tasks", "follow", SHELL, "--session", ID]],
        &expect![[r#"
        $ tasks follow b12345678 --session 11111111-2222-4333-8444-555555555555
        one[31m
        two
        ! decurion: b12345678 has ended: completed
        = 0
    "#]],
    );
}

#[test]
fn a_task_whose_session_ends_first_is_said_to_be_lost() {
    let (home, _) = recorded();
    let owner = Owner::new(&home, ID, Vec::new(), || {});
    let mut following =
        home.program(DECURION).args(["tasks", "follow", AGENT, "--session", ID]).start().unwrap();
    // It prints what is on record once it is attached.
    following.wait_for_line(LIMIT, |line| line == "> do it").unwrap();
    drop(owner);
    let run = following.finish(LIMIT).unwrap();
    assert!(run.errors.ends_with("a0123456789abcdef had not ended when its session did\n"), "{run:?}");
    assert_eq!(run.ending.code(), 7);
}

#[test]
fn a_run_that_waits_for_a_command_in_the_background_says_so_on_standard_error() {
    let stand = Stand::new(
        "when agent=main turn=1\n  call Bash {\"command\": \"sleep 1000\", \"run_in_background\": true}\n\
         when\n  say \"done\"\n",
    );
    let run = stand.run(&["-p", "go", "--settings", "{\"print\": {\"backgroundWait\": 1}}"]);
    assert!(run.output().trim().ends_with("done"), "{run:?}");
    assert!(!run.output().contains("waiting"), "{run:?}");
    let told = "decurion: waiting up to 1 s for a command in the background: sleep 1000 (Ctrl-C ends it; the setting \
                print.backgroundWait changes the time)";
    assert_eq!(run.errors.matches(told).count(), 1, "{run:?}");
}
