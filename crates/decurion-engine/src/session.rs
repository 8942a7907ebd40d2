//! Room 1. Commands come in and are routed. One task per session owns which run is alive, the queue of
//! prompts, the mode and rules in force and the open questions; everyone else sends it commands and reads
//! events.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use decurion_model::{Head, RequestClass, RequestTag, WireHead};
use decurion_protocol::{
    Answer, Block, Command, Event, Mode, Outcome, QuestionId, Reply, Request, RequestId, RunId, SessionId,
    SessionRequest,
};
use decurion_tools::ToolSet;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::approval::{Approvals, Rights};
use crate::budget::{AccountId, Budget};
use crate::compact::compact;
use crate::context::Context;
use crate::journal::{Journal, Who};
use crate::ports::{Ask, Equipment, Model, Parts, Ports, new_run};
use crate::run::{Progress, Run, refold};
use crate::spawn::{Left, Said, live};
use crate::spec::{self, Decided};

/// A session, before its task starts.
pub struct Session {
    /// What the engine is made of.
    pub parts: Arc<Parts>,
    /// Its id.
    pub id: SessionId,
    /// What was asked for.
    pub request: SessionRequest,
    /// Where its events go.
    pub journal: Journal,
    /// What its tools work with.
    pub equipment: Arc<Equipment>,
    /// The model in use.
    pub model: Arc<Model>,
    /// What stands before the conversation.
    pub head: Arc<Head>,
    /// The same in the model's bytes.
    pub wire_head: Arc<WireHead>,
    /// The name it is stored under.
    pub head_name: String,
    /// The tools offered.
    pub tools: Arc<ToolSet>,
    /// Further directories.
    pub directories: Vec<camino::Utf8PathBuf>,
    /// The conversation so far.
    pub context: Context,
    /// The last run on record.
    pub previous: Option<RunId>,
    /// What is told at the beginning of a conversation.
    pub opening_note: String,
    /// What may be done.
    pub rights: Rights,
}

/// The task of a session.
struct Owner {
    session: Session,
    /// The conversation; none while a run has it.
    context: Option<Context>,
    /// Front ends hold the other end.
    commands: mpsc::Receiver<Request>,
    /// Runs hold the other end.
    questions: mpsc::Receiver<Ask>,
    ask: mpsc::Sender<Ask>,
    /// Runs watch the other end.
    rights: watch::Sender<Rights>,
    approvals: Approvals,
    budget: Arc<Mutex<Budget>>,
    account: AccountId,
    queue: VecDeque<(RequestId, Work)>,
    running: Option<Running>,
    who: Who,
    closing: Closing,
}

/// Whether the session ends, and who asked for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    /// It goes on.
    No,
    /// A front end wants to hear when it has ended.
    For(RequestId),
    /// Nobody is left to hear it.
    Unheard,
}

/// What can be queued.
enum Work {
    Prompt(Vec<Block>),
    Compact(Option<String>),
}

struct Running {
    task: JoinHandle<Left>,
    cancel: CancellationToken,
}

impl Session {
    /// Starts the session's task.
    pub fn start(self, commands: mpsc::Receiver<Request>, who: Who) -> JoinHandle<()> {
        let (ask, questions) = mpsc::channel(64);
        let mut budget = Budget::default();
        let account = budget.open(None, &self.request.limits);
        let (rights, _) = watch::channel(self.rights.clone());
        let dialect = self.model.dialect;
        let mut session = self;
        let context = std::mem::replace(&mut session.context, Context::new(dialect));
        let owner = Owner {
            session,
            context: Some(context),
            commands,
            questions,
            ask,
            rights,
            approvals: Approvals::default(),
            budget: Arc::new(Mutex::new(budget)),
            account,
            queue: VecDeque::new(),
            running: None,
            who,
            closing: Closing::No,
        };
        tokio::spawn(owner.own())
    }
}

impl Owner {
    async fn own(mut self) {
        loop {
            tokio::select! {
                biased;
                left = finished(&mut self.running) => self.ended(left).await,
                Some(ask) = self.questions.recv() => self.asked(ask).await,
                question = due(&self.approvals) => self.expired(question).await,
                request = self.commands.recv() => match request {
                    Some(request) => self.command(request).await,
                    // Nobody is attached any more: the session ends.
                    None => self.close(Closing::Unheard),
                },
            }
            if self.closing != Closing::No && self.running.is_none() {
                break;
            }
        }
        self.session.journal.close().await;
        if let Closing::For(request) = self.closing {
            self.reply(request, done());
        }
    }

    async fn command(&mut self, Request { id, command }: Request) {
        match command {
            Command::Prompt { blocks } => self.enqueue(id, Work::Prompt(blocks)).await,
            Command::Compact { instructions } => self.enqueue(id, Work::Compact(instructions)).await,
            Command::Answer { question, answer, by } => self.answered(id, question, answer, by).await,
            Command::Interrupt => self.interrupt(id),
            Command::SetMode { mode } => self.set_mode(id, mode).await,
            Command::SetModel { model } => self.set_model(id, &model),
            Command::Close { .. } => self.close(Closing::For(id)),
            Command::Stop { task } => {
                self.reply(id, Reply::Refused { reason: format!("no task with this id: {task}") });
            }
            Command::Background { .. } | Command::Tell { .. } | Command::Tasks | Command::Finish => {
                self.reply(id, Reply::Refused { reason: "not yet".to_owned() });
            }
        }
    }

    fn reply(&self, request: RequestId, reply: Reply) {
        self.session.journal.publish(&self.who, Event::Replied { request, reply });
    }

    async fn enqueue(&mut self, id: RequestId, work: Work) {
        self.queue.push_back((id, work));
        self.reply(id, done());
        self.next().await;
    }

    /// Starts the next piece of work if nothing runs.
    async fn next(&mut self) {
        if self.running.is_some() || self.closing != Closing::No {
            return;
        }
        let Some((_, work)) = self.queue.pop_front() else { return };
        let context = self.take_context().await;
        let run = self.run();
        let cancel = run.ports.cancel.clone();
        self.who = run.ports.who.clone();
        self.session.previous = Some(run.spec.run);
        let task = match work {
            Work::Prompt(prompt) => {
                let note = context.is_empty().then(|| self.session.opening_note.clone());
                tokio::spawn(live(run, context, Said { note, prompt }))
            }
            Work::Compact(instructions) => tokio::spawn(shorten(run, context, instructions)),
        };
        self.running = Some(Running { task, cancel });
    }

    /// The conversation, from memory or from the record.
    async fn take_context(&mut self) -> Context {
        if let Some(context) = self.context.take() {
            return context;
        }
        let empty = || Context::new(self.session.model.dialect);
        refold(&self.run(), empty()).await.unwrap_or_else(empty)
    }

    /// The next run of the root.
    fn run(&self) -> Run {
        let session = &self.session;
        let decided = Decided {
            head_name: &session.head_name,
            tools: &session.tools,
            model: &session.model,
            mode: self.rights.borrow().mode,
            directories: &session.directories,
        };
        let spec = spec::root(session.id, &session.request, &decided, session.previous);
        let ports = Ports {
            journal: session.journal.clone(),
            who: Who { run: spec.run, agent: None },
            model: Arc::clone(&session.model),
            head: Arc::clone(&session.head),
            wire_head: Arc::clone(&session.wire_head),
            fallback: session.request.fallback_model.clone(),
            tag: RequestTag { agent: "main".into(), path: "main".into(), class: RequestClass::Main },
            tools: Arc::clone(&session.tools),
            questions: self.ask.clone(),
            rights: self.rights.subscribe(),
            budget: Arc::clone(&self.budget),
            account: self.account,
            clock: Arc::clone(&session.parts.clock),
            equipment: Arc::clone(&session.equipment),
            compaction: session.parts.compaction,
            cancel: CancellationToken::new(),
        };
        Run { spec, ports }
    }

    async fn ended(&mut self, left: Left) {
        self.running = None;
        self.context = left;
        self.next().await;
    }

    async fn asked(&mut self, ask: Ask) {
        let event = Event::Asked { question: Box::new(ask.question.clone()) };
        if self.session.journal.write(&ask.who, vec![event]).await.is_ok() {
            let until = self.session.parts.answer_timeout.map(|patience| Instant::now() + patience);
            self.approvals.open(ask.question, ask.answer, until);
        }
    }

    /// Answers a question whose time is up, as anyone else would.
    async fn expired(&mut self, question: QuestionId) {
        let seconds = self.session.parts.answer_timeout.unwrap_or_default().as_secs();
        let message = format!("nobody answered within {seconds} seconds (`permissions.answerTimeout`)");
        let answer = Answer::Deny { message, interrupt: false };
        let event = Event::Answered { question, answer: answer.clone(), by: "nobody".to_owned() };
        // A journal that is lost ends the run; the call must not wait beyond that.
        let _ = self.session.journal.write(&self.who, vec![event]).await;
        self.approvals.answer(question, answer);
    }

    async fn answered(&mut self, id: RequestId, question: QuestionId, answer: Answer, by: String) {
        if !self.approvals.questions().any(|open| open.id == question) {
            let reason = format!("no open question with this id: {question}");
            return self.reply(id, Reply::Refused { reason });
        }
        let event = Event::Answered { question, answer: answer.clone(), by };
        if let Err(lost) = self.session.journal.write(&self.who, vec![event]).await {
            return self.reply(id, Reply::Refused { reason: lost.to_string() });
        }
        if let Answer::Allow { rules, .. } = &answer {
            self.rights.send_modify(|rights| {
                Arc::make_mut(&mut rights.rules).allow.extend(rules.iter().cloned());
            });
        }
        self.approvals.answer(question, answer);
        self.reply(id, done());
    }

    fn interrupt(&mut self, id: RequestId) {
        if let Some(running) = &self.running {
            running.cancel.cancel();
        }
        self.reply(id, done());
    }

    async fn set_mode(&mut self, id: RequestId, mode: Mode) {
        if let Err(reason) = spec::check_mode(mode, self.session.parts.bypass) {
            return self.reply(id, Reply::Refused { reason });
        }
        match self.session.journal.write(&self.who, vec![Event::ModeChanged { mode }]).await {
            Ok(_) => {
                self.rights.send_modify(|rights| rights.mode = mode);
                self.reply(id, done());
            }
            Err(lost) => self.reply(id, Reply::Refused { reason: lost.to_string() }),
        }
    }

    /// The model of the next turn. A model of another dialect reads the conversation again from the record.
    fn set_model(&mut self, id: RequestId, name: &str) {
        let model = match self.session.parts.models.resolve(name) {
            Ok(model) => model,
            Err(reason) => return self.reply(id, Reply::Refused { reason }),
        };
        let head = Head {
            system: self.session.head.system.clone(),
            tools: self.session.head.tools.clone(),
            model: model.id.clone(),
            ..model.head.clone()
        };
        if model.dialect != self.session.model.dialect {
            self.context = None;
        }
        self.session.wire_head = Arc::new(model.dialect.head(&head));
        self.session.head = Arc::new(head);
        self.session.model = model;
        self.reply(id, done());
    }

    fn close(&mut self, closing: Closing) {
        self.queue.clear();
        if let Some(running) = &self.running {
            running.cancel.cancel();
        }
        self.closing = closing;
    }
}

fn done() -> Reply {
    Reply::Done { value: Value::Null }
}

/// Waits for the running work; for ever if there is none. A panic there leaves nothing but the record.
async fn finished(running: &mut Option<Running>) -> Left {
    match running {
        Some(running) => (&mut running.task).await.ok().flatten(),
        None => std::future::pending().await,
    }
}

/// Waits until the time of a question is up; for ever if none has a limit.
async fn due(approvals: &Approvals) -> QuestionId {
    match approvals.first_due() {
        Some((until, question)) => {
            tokio::time::sleep_until(until).await;
            question
        }
        None => std::future::pending().await,
    }
}

/// Shortens the conversation because someone asked.
async fn shorten(run: Run, context: Context, instructions: Option<String>) -> Left {
    let mut progress = Progress::new(&run, context);
    let outcome = match compact(&run, &mut progress, "manual", instructions.as_deref()).await {
        Ok(()) => Outcome::Completed { report: "The conversation was shortened.".into(), limit: None },
        Err(lost) => Outcome::Failed { error: lost.to_string() },
    };
    let event = Event::RunEnded { outcome, totals: Box::new(progress.totals) };
    run.ports.journal.write(&run.ports.who, vec![event]).await.ok()?;
    Some(progress.context)
}

/// The first run id of a session that has none yet: events before its first run need one.
pub fn first_who(previous: Option<RunId>) -> Who {
    Who { run: previous.unwrap_or_else(new_run), agent: None }
}
