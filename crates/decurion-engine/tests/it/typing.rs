//! Commands that a person runs himself in a session: at once, by no rules, told to the model with the next request, and
//! on record whatever dies.

use std::sync::Arc;
use std::time::Duration;

use decurion_protocol::permission::RuleSource;
use decurion_protocol::{
    Answer, Block, Command, Envelope, Event, Link, OpenSession, Origin, Place as _, Reply, Rule, RuleSet,
    ShellEnding, Start,
};
use decurion_testkit::faults::ledger::Ledger;
use decurion_testkit::stage::{Stage, render, send};
use expect_test::expect;
use futures_util::StreamExt as _;

use crate::support::with_processes;

/// Long enough for any machine; what takes so long hangs.
const HANG: Duration = Duration::from_secs(60);

struct Playing {
    link: Link,
    events: Vec<Arc<Envelope>>,
    asked: u64,
}

impl Playing {
    async fn open(stage: &Stage) -> Self {
        Self::with(stage, stage.request.clone()).await
    }

    async fn with(stage: &Stage, request: OpenSession) -> Self {
        let link = stage.engine().open(request).await.unwrap();
        Self { link, events: Vec::new(), asked: 100 }
    }

    async fn until<T>(&mut self, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
        loop {
            let next = tokio::time::timeout(HANG, self.link.events.next()).await.ok().flatten();
            let envelope = next.unwrap_or_else(|| panic!("nothing more happens:\n{}", render(&self.events)));
            self.events.push(Arc::clone(&envelope));
            if let Some(found) = wanted(&envelope.event) {
                return found;
            }
        }
    }

    async fn ask(&mut self, command: Command) -> Result<serde_json::Value, String> {
        self.asked += 1;
        let id = self.asked;
        send(&self.link, id, command).await;
        self.until(|event| match event {
            Event::Replied { request, reply } if request.0 == id => Some(match reply {
                Reply::Done { value } => Ok(value.clone()),
                Reply::Refused { reason } => Err(reason.clone()),
            }),
            _ => None,
        })
        .await
    }

    async fn prompt(&mut self, text: &str) {
        send(&self.link, 1, Command::Prompt { blocks: vec![Block::text(text)] }).await;
        self.until(|event| matches!(event, Event::RunEnded { .. }).then_some(())).await;
    }

    async fn begin(&mut self, command: &str) {
        self.ask(Command::Shell { command: command.to_owned() }).await.unwrap();
    }

    async fn ended(&mut self) -> ShellEnding {
        self.until(|event| match event {
            Event::ShellEnded { shell } => shell.ending.clone(),
            _ => None,
        })
        .await
    }

    async fn run(&mut self, command: &str) -> ShellEnding {
        self.begin(command).await;
        self.ended().await
    }

    async fn finish(mut self) -> String {
        self.ask(Command::Finish).await.unwrap();
        render(&self.events)
    }
}

fn stage() -> Stage {
    with_processes(Stage::new("when turn=1\n  say \"first\"\nwhen\n  say \"next\"\n"))
}

/// The last request, as text.
fn last_request(stage: &Stage) -> String {
    String::from_utf8_lossy(stage.requests().last().unwrap()).into_owned()
}

#[tokio::test]
async fn what_a_person_runs_joins_the_conversation_and_begins_no_turn() {
    let mut stage = stage();
    // His own commands are his own: no rule is asked.
    stage.rules = RuleSet::default();
    stage.rules.deny.push(Rule::parse("Bash", RuleSource::UserSettings).unwrap());
    stage.redact = Arc::new(|text| text.contains("hunter2").then(|| text.replace("hunter2", "[secret]")));
    let mut playing = Playing::open(&stage).await;
    playing.prompt("go").await;
    let ended = playing.run("echo one; echo two >&2; printf 'hunter%s' 2; exit 3").await;
    assert_eq!((ended.exit_code, ended.remark), (Some(3), None));
    assert_eq!(playing.run("cd / && true").await.exit_code, Some(0));
    // Where it goes it goes alone.
    let ended = playing.run("pwd").await;
    assert_eq!(ended.output, stage.request.cwd.canonicalize_utf8().unwrap().as_str());
    assert_eq!(stage.requests().len(), 1);
    playing.prompt("and now?").await;
    let request = last_request(&stage);
    assert_eq!(stage.requests().len(), 2);
    assert!(request.contains("<bash-input>echo one") && !request.contains("hunter2"), "{request}");
    let session = playing.link.session;
    let log = playing.finish().await.replace(stage.request.cwd.canonicalize_utf8().unwrap().as_str(), "CWD");
    expect![[r#"
        user   "go"
        model  "first"
        end    completed "first"
        $      echo one; echo two >&2; printf 'hunter%s' 2; exit 3
        $ end  "one\ntwo\n[secret]" Some(3)
        shell  "<bash-input>echo one; echo two >&2; printf 'hunter%s' 2; exit 3</bash-input>\n<bash-stdout>one\ntwo\n[secret]</bash-stdout><bash-stderr>exit code 3</bash-stderr>"
        $      cd / && true
        $ end  "" Some(0)
        shell  "<bash-input>cd / && true</bash-input>\n<bash-stdout></bash-stdout><bash-stderr></bash-stderr>"
        $      pwd
        $ end  "CWD" Some(0)
        shell  "<bash-input>pwd</bash-input>\n<bash-stdout>CWD</bash-stdout><bash-stderr></bash-stderr>"
        user   "and now?"
        model  "next"
        end    completed "next"
    "#]].assert_eq(&log);
    assert!(Ledger::of(&stage.recorded(session)).problems().is_empty());
}

#[tokio::test]
async fn what_is_run_before_the_first_prompt_is_told_with_it() {
    let stage = stage();
    let mut playing = Playing::open(&stage).await;
    playing.run("echo early").await;
    assert!(stage.requests().is_empty());
    playing.prompt("go").await;
    let request = last_request(&stage);
    let at = |words: &str| request.find(words).unwrap_or_else(|| panic!("{words} is not in {request}"));
    assert!(at("<environment>") < at("early"), "{request}");
    assert_eq!(stage.requests().len(), 1);
    playing.finish().await;
    // Nobody has to say anything for a session to end.
    let mut silent = Playing::open(&stage).await;
    silent.run("echo unheard").await;
    silent.finish().await;
}

#[tokio::test]
async fn what_is_run_while_the_model_works_is_told_at_its_next_request() {
    let mut stage = with_processes(Stage::new(
        "when turn=1\n  call Poke {\"text\": \"x\"}\nwhen turn=2\n  say \"done\"\nwhen\n  say \"next\"\n",
    ));
    stage.rules = RuleSet::default();
    stage.request.answers = true;
    let mut playing = Playing::open(&stage).await;
    send(&playing.link, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
    let question = playing
        .until(|event| match event {
            Event::Asked { question } => Some(question.id),
            _ => None,
        })
        .await;
    playing.run("echo meanwhile").await;
    let answer = Answer::Allow { input: None, rules: Vec::new(), everywhere: false };
    let command = Command::Answer { question, answer, updates: Vec::new(), by: "test".into() };
    send(&playing.link, 2, command).await;
    playing.until(|event| matches!(event, Event::RunEnded { .. }).then_some(())).await;
    assert!(last_request(&stage).contains("meanwhile"));
    expect![[r#"
        user   "go"
        model  calls Poke {"text":"x"}
        wait   for an answer
        ask    Poke: no rule allows this tool
        $      echo meanwhile
        $ end  "meanwhile" Some(0)
        answer by test
        start  Poke (no rule)
        →      "x"
        shell  "<bash-input>echo meanwhile</bash-input>\n<bash-stdout>meanwhile</bash-stdout><bash-stderr></bash-stderr>"
        model  "done"
        end    completed "done"
    "#]].assert_eq(&playing.finish().await);
}

#[tokio::test]
async fn an_interrupt_or_the_end_of_the_session_ends_it() {
    let stage = stage();
    let mut playing = Playing::open(&stage).await;
    playing.prompt("go").await;
    playing.begin("echo begun; for i in $(seq 300); do echo $i; sleep 0.1; done").await;
    playing.until(|event| matches!(event, Event::CallProgress { .. }).then_some(())).await;
    playing.ask(Command::Interrupt).await.unwrap();
    let ended = playing.ended().await;
    assert_eq!(ended.remark.as_deref(), Some("interrupted"));
    assert!(ended.output.starts_with("begun\n1\n"), "{ended:?}");
    // Long output is cut, and all of it is in a file.
    let ended = playing.run("seq 1 30000").await;
    assert!(ended.output.len() < 40_000);
    assert_eq!(std::fs::read_to_string(ended.file.unwrap()).unwrap().lines().count(), 30_000);
    playing.begin("echo begun; sleep 600").await;
    let session = playing.link.session;
    playing.ask(Command::Close { reason: String::new() }).await.unwrap();
    let record = stage.recorded(session);
    let ends = |envelope: &Envelope| match &envelope.event {
        Event::ShellEnded { shell } => shell.ending.clone().and_then(|ending| ending.remark),
        _ => None,
    };
    assert_eq!(record.iter().filter_map(ends).collect::<Vec<_>>(), ["interrupted", "interrupted"]);
    assert!(Ledger::of(&record).problems().is_empty());
}

#[tokio::test]
async fn whatever_record_is_the_last_a_command_is_told_once_and_run_once() {
    let first = stage();
    let mut playing = Playing::open(&first).await;
    let session = playing.link.session;
    playing.run("echo early >> effects").await;
    playing.prompt("go").await;
    playing.run("echo later >> effects; echo said").await;
    playing.prompt("on").await;
    playing.finish().await;
    let whole = first.recorded(session);
    let begun = |record: &[Envelope]| {
        record.iter().filter(|one| matches!(one.event, Event::ShellBegun { .. })).count()
    };
    let mut unknown = 0;
    for after in 1..=whole.last().unwrap().seq {
        let second = with_processes(first.after_crash_at(after).resuming("when\n  say \"again\"\n"));
        let start = Start::Resume { id: session, at: None };
        let mut playing = Playing::with(&second, OpenSession { start, ..second.request.clone() }).await;
        playing.prompt("are you there?").await;
        let log = playing.finish().await;
        let record = second.recorded(session);
        let problems = Ledger::of(&record).problems();
        assert!(problems.is_empty(), "after {after}: {problems:?}\n{log}");
        let is_told = |one: &&Envelope| matches!(&one.event, Event::Message { meta, .. } if meta.origin == Origin::Shell);
        let before: Vec<Envelope> = whole.iter().filter(|one| one.seq <= after).cloned().collect();
        assert_eq!(record.iter().filter(is_told).count(), begun(&before), "after {after}:\n{log}");
        assert_eq!(begun(&record), begun(&before), "after {after}: run again");
        let request = last_request(&second);
        assert_eq!(request.matches("<bash-input>").count(), begun(&before), "after {after}: {request}");
        unknown += log.matches("$ end  \"\" None outcome unknown").count();
    }
    assert_eq!(unknown, 2, "each of them when its process died in its middle");
    let effects = std::fs::read_to_string(first.request.cwd.join("effects")).unwrap();
    assert_eq!(effects, "early\nlater\n");
}

#[tokio::test]
async fn what_cannot_be_run_is_refused_with_the_reason() {
    let mut playing = Playing::open(&stage()).await;
    for command in ["", "  ", "a\0b"] {
        let reason = playing.ask(Command::Shell { command: command.into() }).await.unwrap_err();
        assert_eq!(reason, "this is no command: it is empty, or has a NUL character");
    }
    let alone = Stage::new("when\n  say \"x\"\n");
    let mut playing = Playing::open(&alone).await;
    let reason = playing.ask(Command::Shell { command: "ls".into() }).await.unwrap_err();
    assert_eq!(reason, "commands cannot be started in this session");
}
