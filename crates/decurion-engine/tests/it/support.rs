//! What several of these tests begin with. Takes a script, gives a stage on which agents can be started; talks to a session
//! on it.

use std::sync::Arc;
use std::time::Duration;

use decurion_engine::AgentSettings;
use decurion_exec::{Guard, GuardProgram};
use decurion_protocol::{
    AgentDefinition, AgentSource, Answer, Block, Command, Envelope, Event, Link, OpenSession, Place as _,
    QuestionId, Reply, SessionId, Start, TaskId,
};
use decurion_testkit::stage::{Stage, render, send};
use futures_util::StreamExt as _;

/// In the tests' time.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A stage with the usual settings of agents.
pub fn stage(script: &str) -> Stage {
    let mut stage = Stage::new(script);
    stage.agent_settings = AgentSettings::default();
    stage
}

/// The same stage, on which processes really run.
pub fn with_processes(mut stage: Stage) -> Stage {
    let program = env!("CARGO_BIN_EXE_decurion-engine-guard").into();
    stage.processes = Some(Guard::new(GuardProgram { program, args: Vec::new() }));
    stage
}

/// Asks for this, as request 1.
pub async fn prompt(link: &Link, text: &str) {
    let blocks = vec![Block::text(text)];
    send(link, 1, Command::Prompt { blocks }).await;
}

/// Reads until an event is what is looked for.
pub async fn until<T>(link: &mut Link, wanted: impl Fn(&Event, bool) -> Option<T>) -> T {
    while let Some(envelope) = link.events.next().await {
        if let Some(found) = wanted(&envelope.event, envelope.agent.is_some()) {
            return found;
        }
    }
    panic!("the session ended before");
}

/// The request that opens a session again.
pub fn again(stage: &Stage, link: &Link) -> OpenSession {
    OpenSession { start: Start::Resume { id: link.session, at: None }, ..stage.request.clone() }
}

/// An agent of the user's that may use what its parent may.
pub fn worker() -> AgentDefinition {
    AgentDefinition {
        name: "worker".into(),
        description: "works".into(),
        prompt: "You do a part of the work.".into(),
        source: AgentSource::User,
        ..AgentDefinition::default()
    }
}

/// A session, and what was seen of it.
pub struct Playing {
    pub link: Link,
    pub events: Vec<Arc<Envelope>>,
    asked: u64,
    /// Questions that were not looked at yet.
    pub open: Vec<QuestionId>,
}

impl Playing {
    pub async fn open(stage: &Stage) -> Self {
        let playing = Self::with(stage, stage.request.clone()).await;
        prompt(&playing.link, "go").await;
        playing
    }

    pub async fn with(stage: &Stage, request: OpenSession) -> Self {
        let link = stage.engine().open(request).await.unwrap();
        Self { link, events: Vec::new(), asked: 100, open: Vec::new() }
    }

    pub async fn again(stage: &Stage, session: SessionId) -> Self {
        let start = Start::Resume { id: session, at: None };
        Self::with(stage, OpenSession { start, ..stage.request.clone() }).await
    }

    pub async fn until<T>(&mut self, mut wanted: impl FnMut(&Envelope) -> Option<T>) -> T {
        loop {
            let next = tokio::time::timeout(DAY, self.link.events.next()).await.ok().flatten();
            let envelope = next.unwrap_or_else(|| panic!("nothing more happens:\n{}", self.log()));
            self.saw(&envelope);
            if let Some(found) = wanted(&envelope) {
                return found;
            }
        }
    }

    pub async fn task(&mut self) -> TaskId {
        self.until(|envelope| match &envelope.event {
            Event::TaskOpened { record } => Some(record.task.clone()),
            _ => None,
        })
        .await
    }

    /// The next question that was not looked at yet.
    pub async fn question(&mut self) -> QuestionId {
        while self.open.is_empty() {
            self.until(|envelope| matches!(envelope.event, Event::Asked { .. }).then_some(())).await;
        }
        self.open.remove(0)
    }

    fn saw(&mut self, envelope: &Arc<Envelope>) {
        self.events.push(Arc::clone(envelope));
        if let Event::Asked { question } = &envelope.event {
            self.open.push(question.id);
        }
    }

    pub async fn ask(&mut self, command: Command) -> Result<serde_json::Value, String> {
        self.asked += 1;
        let id = self.asked;
        send(&self.link, id, command).await;
        self.until(|envelope| match &envelope.event {
            Event::Replied { request, reply } if request.0 == id => Some(match reply {
                Reply::Done { value } => Ok(value.clone()),
                Reply::Refused { reason } => Err(reason.clone()),
            }),
            _ => None,
        })
        .await
    }

    pub async fn allow(&mut self, question: QuestionId) {
        let answer = Answer::Allow { input: None, rules: Vec::new(), everywhere: false };
        let command = Command::Answer { question, answer, updates: Vec::new(), by: "test".into() };
        self.ask(command).await.unwrap();
    }

    /// All that happens by itself in a day, until nothing more does.
    pub async fn settle(&mut self) {
        while let Ok(Some(envelope)) = tokio::time::timeout(DAY, self.link.events.next()).await {
            self.saw(&envelope);
        }
    }

    /// Lets the session come to its end.
    pub async fn finish(mut self) -> String {
        self.ask(Command::Finish).await.unwrap();
        self.log()
    }

    pub fn log(&self) -> String {
        render(&self.events)
    }
}
