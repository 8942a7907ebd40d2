//! A session led by a host. Takes its lines on standard input, gives events and control messages as lines on standard
//! output, and ends the session when the host's input ends and everything is quiet.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use decurion_protocol::permission::session_updates;
use decurion_protocol::size::size_of;
use decurion_protocol::{
    AgentId, Answer, Block, CallId, Command, Elicitation, ElicitationAction, Elicited, Envelope, Event,
    HostAnswer, HostRequest, HostRequestId, Outcome, Question, QuestionId, Reply, RequestId, SessionId,
    Subject, Totals, Wanted,
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::io::AsyncBufRead;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::control::{self, HostFacts, Lookup, ReplyShape};
use crate::headless::{Finish, Headless, HeadlessState, LineWriterQueue, StopSignal, drain, takes_more};
use crate::host::{self, HostQuery as FromHost};
use crate::initialize::Initialize;
use crate::input::{self, About, Control, HostLine, HostMessage, HostReader, HostReply, Wrong};
use crate::progress::one_line;
use crate::stream_json::{StreamFacts, StreamJson};
use crate::truncate;

/// What a host receives, and where its mistakes are reported.
pub struct HostOutput {
    /// The agents that can be started.
    pub agents: Vec<HostAgent>,
    /// What a person can type behind a slash.
    pub commands: Vec<HostCommand>,
    /// What the command line knows besides.
    pub known: Arc<dyn HostFacts>,
    /// Where lines about its mistakes go: standard error.
    pub problems: LineWriterQueue,
    /// Whether the session was made as its host's greeting wants it (`Input::greeting`).
    pub greeted: bool,
}

/// A command in the form for hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCommand {
    /// Its name, without the slash.
    pub name: String,
    /// Its purpose.
    pub description: String,
    /// What to write behind its name.
    pub hint: String,
}

/// An agent in the form for hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAgent {
    pub name: String,
    /// When to use it.
    pub description: String,
    /// Its model, where its definition names one.
    pub model: Option<String>,
}

impl Headless {
    /// Does what the host says, line by line, until it says no more; then finishes what was begun. Every
    /// result is printed at once. The session must have been opened with `answers`.
    pub async fn converse(
        self,
        host: HostOutput,
        input: HostReader<impl AsyncBufRead + Unpin>,
        signals: &mut mpsc::Receiver<StopSignal>,
    ) -> io::Result<Finish> {
        let state = HeadlessState::waiting();
        let (open, asked, pending) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (changing, given, wanted) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (kept, results) = (Vec::new(), ResultOrder::default());
        let mut talk = HostConversation {
            headless: self,
            host,
            state,
            open,
            asked,
            pending,
            changing,
            given,
            wanted,
            kept,
            results,
        };
        talk.state.led = true;
        talk.listen(input, signals).await;
        talk.state.led = false;
        talk.results.none_left();
        let lines = talk.due_results();
        talk.print(lines, signals).await;
        talk.fail_wanted();
        talk.read_out(signals).await;
        let HostConversation { headless, host, mut state, .. } = talk;
        if state.ended.is_none() && state.over {
            // Nothing was asked for, and nothing is wrong with that.
            let nothing = Outcome::Completed { report: String::new(), limit: None };
            state.ended = Some((nothing, Totals::default()));
        }
        let mut finish = headless.finish(state, signals).await?;
        drain(host.problems, &mut finish.signal, signals).await;
        finish.led = true;
        Ok(finish)
    }
}

/// The line that answers a host's greeting if there is no session: the host waits for an answer, and an exit alone
/// explains nothing.
pub fn refusal(greeting: &str, reason: &str) -> Vec<u8> {
    let line = failure(greeting, reason, Some("session_not_opened"));
    truncate::line(&line, "all of it is on standard error").bytes
}

/// The result of a prompt for which no session could be opened.
pub fn not_started(error: &str) -> Vec<u8> {
    let mut stream = StreamJson::new(SessionId(uuid::Uuid::new_v4()), StreamFacts::default());
    truncate::line(&stream.not_begun(error.to_owned()), "all of it is on standard error").bytes
}

/// The line that answers a request of a host that is not understood.
pub(crate) fn misunderstood(id: &str, reason: &str) -> Vec<u8> {
    truncate::line(&failure(id, reason, Some("invalid_request")), "all of it is on standard error").bytes
}

struct HostConversation {
    headless: Headless,
    host: HostOutput,
    state: HeadlessState,
    /// Questions that the host has not answered.
    open: HashMap<QuestionId, Question>,
    /// What was asked of the session for a request of the host, by the first of it.
    asked: HashMap<RequestId, RequestId>,
    /// Requests of the host that are not answered, by the first thing that was asked of the session for it.
    pending: HashMap<RequestId, HostRequestState>,
    /// What it said, or wanted changed with the answer to a question, that the session has not taken yet.
    changing: HashMap<RequestId, Option<QuestionId>>,
    /// Its answers to servers that the session has not taken yet.
    given: HashMap<RequestId, QuestionId>,
    /// What the session wants of the host and has not got.
    wanted: HashMap<HostRequestId, FromHost>,
    /// What the next prompt begins with.
    kept: Vec<Block>,
    results: ResultOrder,
}

/// Results come in the order of the prompts that they are for.
#[derive(Default)]
struct ResultOrder {
    /// How many prompts have no result yet.
    ahead: usize,
    /// Prompts that cannot be worked on: how many results come first, and why.
    late: VecDeque<(usize, String)>,
}

impl ResultOrder {
    /// One prompt less has no result.
    fn one_less(&mut self) {
        self.ahead = self.ahead.saturating_sub(1);
        for (ahead, _) in &mut self.late {
            *ahead = ahead.saturating_sub(1);
        }
    }

    /// No agent works on a prompt, and none waits: some may have been withdrawn.
    fn none_left(&mut self) {
        *self = Self { ahead: 0, late: self.late.drain(..).map(|(_, reason)| (0, reason)).collect() };
    }

    /// Those whose turn it is.
    fn due(&mut self) -> Vec<String> {
        let due = self.late.iter().take_while(|(ahead, _)| *ahead == 0).count();
        self.late.drain(..due).map(|(_, reason)| reason).collect()
    }
}

/// How long a host reads nothing of what waits for it before it is taken for gone.
const READ_WITHIN: Duration = Duration::from_secs(600);

/// How many bytes may wait for the next prompt to begin with.
const MOST_KEPT: usize = input::MOST_LINE;

/// How long a session may take to end when its host is gone, with both its pipes.
const ABANDONED_WITHIN: Duration = Duration::from_secs(10);

/// The answer to a greeting that comes after the session began.
const TOO_LATE: &str = "initialize came too late: the session began without what it asks for; send it before anything else (and start a session that is resumed with --await-initialize)";

/// How many requests of a host may wait for the session.
const MOST_PENDING: usize = 4_096;

/// Whether the host reads.
#[derive(Default)]
struct HostReading {
    /// Since when it takes nothing, and how much it had taken by then.
    stuck: Option<(Instant, u64)>,
}

impl HostReading {
    /// Looks; tells whether there is room for more.
    fn see(&mut self, out: &LineWriterQueue) -> bool {
        let has_room = out.has_room();
        self.note(has_room, out.written());
        has_room
    }

    fn note(&mut self, is_well: bool, written: u64) {
        match self.stuck {
            Some((_, before)) if before == written && !is_well => {}
            _ => self.stuck = (!is_well).then(|| (Instant::now(), written)),
        }
    }

    /// Whether it has taken nothing since then.
    fn is_stuck(&self, out: &LineWriterQueue) -> bool {
        self.stuck.is_some_and(|(_, before)| before == out.written())
    }

    /// Returns when it may have taken nothing for too long.
    async fn too_late(&self) {
        match self.stuck {
            Some((since, _)) => tokio::time::sleep_until(since + READ_WITHIN).await,
            None => std::future::pending().await,
        }
    }
}

/// A request of the host.
struct HostRequestState {
    id: String,
    /// How many replies are missing.
    missing: usize,
    /// Those that came, in order.
    values: Vec<Value>,
    /// Why something of it was not done.
    refused: Option<String>,
    /// What the replies become.
    shape: ReplyShape,
}

impl HostConversation {
    async fn listen(
        &mut self,
        mut input: HostReader<impl AsyncBufRead + Unpin>,
        signals: &mut mpsc::Receiver<StopSignal>,
    ) {
        let mut is_there = true;
        let mut reading = HostReading::default();
        let mut until = None;
        while !self.state.over {
            // While the host does not read, events stay in the journal and not here. Its input is still read: it may be
            // busy writing, and others may be waiting for that. But not for ever: its input may need answers, which
            // wait for it too. While the session accepts no more, the host waits as well, and signals do not.
            let has_room = reading.see(&self.headless.out);
            let takes = self.headless.out.has_room_for_answers() && self.state.outbox.is_empty();
            let hears = is_there && (takes || self.state.unread);
            let is_abandoned = self.state.unread && !is_there;
            if is_abandoned && until.is_none() {
                until = Some(Instant::now() + ABANDONED_WITHIN);
            }
            let leaves = tokio::select! {
                biased;
                Some(signal) = signals.recv() => self.headless.signalled(&mut self.state, signal),
                () = takes_more(&self.headless.link.commands, &self.state.outbox), if !self.state.outbox.is_empty() => {
                    self.headless.pass_on(&mut self.state);
                    false
                }
                event = self.headless.link.events.next(), if has_room => match event {
                    Some(envelope) => self.event(&envelope, is_there, signals).await,
                    None => true,
                },
                () = self.headless.out.room(), if !has_room => false,
                () = self.headless.out.unread(), if !self.state.unread => self.unread(),
                () = reading.too_late(), if !has_room => {
                    reading.is_stuck(&self.headless.out) && self.gives_up()
                }
                () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                    // As after a signal: what still holds it up is settled by the next resume.
                    self.state.signal = Some(StopSignal::Hangup);
                    true
                }
                heard = input.next(), if hears => {
                    is_there = heard != HostLine::End;
                    self.heard(heard, signals).await
                }
            };
            if leaves {
                return;
            }
        }
    }

    /// Waits until the host has read the last words, as long as it reads at all.
    async fn read_out(&mut self, signals: &mut mpsc::Receiver<StopSignal>) {
        let mut reading = HostReading::default();
        while self.state.over && self.state.signal.is_none() {
            let out = &self.headless.out;
            reading.note(false, out.written());
            tokio::select! {
                biased;
                () = out.written_out() => return,
                Some(signal) = signals.recv() => self.state.signal = Some(signal),
                () = reading.too_late() => {
                    if reading.is_stuck(out) {
                        self.gives_up();
                    }
                }
            }
        }
    }

    /// The reader of the output is gone: running work is ended.
    fn unread(&mut self) -> bool {
        self.state.unread = true;
        self.headless.stop(&mut self.state);
        false
    }

    /// A host that does not read for so long is as good as gone.
    fn gives_up(&mut self) -> bool {
        let minutes = READ_WITHIN.as_secs() / 60;
        let session = self.headless.link.session;
        self.complain(&format!(
            "the host has read nothing for {minutes} minutes, so the session ends; it is whole on record: --resume {session}"
        ));
        self.state.signal = Some(StopSignal::Hangup);
        true
    }

    /// Acts on a line of the host; tells whether to leave at once.
    async fn heard(&mut self, heard: HostLine, signals: &mut mpsc::Receiver<StopSignal>) -> bool {
        // If the output is no longer read, wait only for the end of the input.
        if self.state.unread && heard != HostLine::End {
            return false;
        }
        let lines = match heard {
            HostLine::Said(said) => self.said(said),
            HostLine::Wrong(Wrong { about, reason }) => {
                self.complain(&reason);
                self.misheard(about, reason).into_iter().collect()
            }
            HostLine::End => {
                self.gone();
                Vec::new()
            }
        };
        self.print(lines, signals).await
    }

    /// Lets no one wait because of a line that was not understood: a request of the host gets an answer, and an answer
    /// of the host counts as none.
    fn misheard(&mut self, about: About, reason: String) -> Option<Value> {
        match about {
            About::Nothing => None,
            About::Prompt if self.results.ahead > 0 && self.results.late.len() < MOST_PENDING => {
                self.results.late.push_back((self.results.ahead, reason));
                None
            }
            About::Prompt => Some(self.headless.stream.not_begun(reason)),
            About::Request(id) => Some(failure(&id, &reason, Some("invalid_request"))),
            About::Answer(id) => {
                self.answered(&id, Err(format!("its answer was not understood: {reason}")));
                None
            }
        }
    }

    fn said(&mut self, said: HostMessage) -> Vec<Value> {
        match said {
            HostMessage::Nothing => Vec::new(),
            HostMessage::Amended { work, problem } => {
                self.complain(&problem);
                self.said(HostMessage::Work(work))
            }
            HostMessage::Beforehand(blocks) => {
                self.keep(blocks);
                Vec::new()
            }
            HostMessage::Work(command) => {
                let command = self.with_kept(command);
                let request = self.headless.ask(&mut self.state, command);
                self.changing.insert(request, None);
                self.results.ahead += 1;
                Vec::new()
            }
            HostMessage::Request { id, request } => self.request(id, request).into_iter().collect(),
            HostMessage::Cancel(id) => {
                // The session still does its work; only the answer is no longer needed.
                self.pending.retain(|_, pending| pending.id != id);
                Vec::new()
            }
            HostMessage::Response { id, answer } => {
                self.answered(&id, answer);
                Vec::new()
            }
        }
    }

    /// Keeps blocks that the next prompt is to begin with, and that start no work alone.
    fn keep(&mut self, blocks: Vec<Block>) {
        if size_of(&self.kept) + size_of(&blocks) > MOST_KEPT {
            return self.complain(&format!(
                "a message with `shouldQuery: false` was not taken: more than {MOST_KEPT} bytes wait for the next prompt"
            ));
        }
        self.kept.extend(blocks);
    }

    /// The command, beginning with what was kept for it if it is a prompt.
    fn with_kept(&mut self, command: Command) -> Command {
        let mut kept = || std::mem::take(&mut self.kept);
        match command {
            Command::Prompt { blocks } => Command::Prompt { blocks: [kept(), blocks].concat() },
            Command::Submit { line, blocks } => Command::Submit { line, blocks: [kept(), blocks].concat() },
            other => other,
        }
    }

    /// Does what the host asks for; gives the answer if there is one already.
    fn request(&mut self, id: String, request: Control) -> Option<Value> {
        match request {
            Control::Initialize(wanted) => Some(match self.greet(&wanted) {
                Ok(hello) => success(&id, &hello),
                Err(reason) => failure(&id, reason, Some("initialize_too_late")),
            }),
            Control::Unsupported(subtype) => {
                let reason = format!("a control request of this kind is not supported: {subtype}");
                Some(failure(&id, &reason, Some("unsupported_request")))
            }
            Control::BadMode(reason) => Some(failure(&id, &reason, Some("invalid_mode"))),
            Control::Refused(reason) => Some(failure(&id, &reason, Some("invalid_request"))),
            Control::Look(what) => Some(success(&id, &self.look(what))),
            Control::Do(command, shape) => self.ask(id, vec![command], shape),
            Control::All(commands, shape) => self.ask(id, commands, shape),
            Control::SetServers(declared) => {
                let (servers, errors) = self.host.known.servers(&declared);
                self.ask(id, vec![Command::SetServers { servers }], ReplyShape::SetServers(errors))
            }
        }
    }

    /// Answers a host that comes. What it wants of a session that has begun already cannot be had any more, which is no
    /// success: a guard that it believes in place must not be missing.
    fn greet(&mut self, wanted: &Initialize) -> Result<Value, &'static str> {
        for problem in &wanted.left_out {
            self.complain(&format!("initialize: {problem}"));
        }
        if !std::mem::take(&mut self.host.greeted) && wanted.shapes() {
            self.complain(TOO_LATE);
            return Err(TOO_LATE);
        }
        let mut hello = self.hello();
        hello["hooks_applied"] = json!(true);
        hello["plugins_applied"] = json!(true);
        Ok(hello)
    }

    /// Asks the session for all of this; gives the answer if there is nothing to ask for.
    fn ask(&mut self, id: String, commands: Vec<Command>, shape: ReplyShape) -> Option<Value> {
        if self.pending.len() >= MOST_PENDING {
            let reason = format!(
                "{MOST_PENDING} requests wait for the session already; ask again when some are answered"
            );
            return Some(failure(&id, &reason, Some("too_many_requests")));
        }
        let missing = commands.len();
        let mut first = None;
        for command in commands {
            let request = self.headless.ask(&mut self.state, command);
            self.asked.insert(request, *first.get_or_insert(request));
        }
        let Some(first) = first else { return Some(success(&id, &shape.answer(Vec::new()))) };
        let pending = HostRequestState { id, missing, values: Vec::new(), refused: None, shape };
        self.pending.insert(first, pending);
        None
    }

    /// What is known without asking the session.
    fn look(&self, what: Lookup) -> Value {
        let (stream, known) = (&self.headless.stream, &self.host.known);
        match what {
            Lookup::Models => json!({"models": known.models()}),
            Lookup::Settings => {
                let mut settings = known.settings();
                settings["applied"] = json!({"model": stream.model()});
                settings
            }
            Lookup::Cost => json!({"text": control::cost_text(stream.totals())}),
            Lookup::Usage => json!({
                "session": stream.session_usage(),
                "subscription_type": null,
                "rate_limits_available": false,
                "rate_limits": null,
                "behaviors": null,
            }),
            Lookup::Version => json!({"version": stream.version()}),
        }
    }

    /// The first message for a host.
    fn hello(&self) -> Value {
        let agent = |agent: &HostAgent| {
            let mut value = json!({"name": agent.name, "description": agent.description});
            if let Some(model) = &agent.model {
                value["model"] = json!(model);
            }
            value
        };
        let command = |command: &HostCommand| json!({"name": command.name, "description": command.description, "argumentHint": command.hint});
        json!({
            "commands": self.host.commands.iter().map(command).collect::<Vec<_>>(),
            "agents": self.host.agents.iter().map(agent).collect::<Vec<_>>(),
            "output_style": "default",
            "available_output_styles": ["default"],
            "models": self.host.known.models(),
            "account": self.host.known.account(),
            "hook_on_failure_supported": true,
        })
    }

    /// Passes the host's answer on. One that is not expected is reported and ignored.
    fn answered(&mut self, id: &str, response: Result<Value, String>) {
        let wanted = id.parse::<HostRequestId>().ok().and_then(|id| Some((id, self.wanted.remove(&id)?)));
        if let Some((request, wanted)) = wanted {
            return self.answer_host(request, wanted.answer(response));
        }
        let question = id.parse::<QuestionId>().ok().and_then(|id| self.open.remove(&id));
        let Some(question) = question else {
            let id = one_line(id);
            return self.complain(&format!("an answer to a request that is not open was ignored: {id}"));
        };
        let response = response.and_then(|response| self.whole(&question, response));
        let HostReply { answer, updates, problems } = input::answer(&question, response);
        for problem in problems {
            self.complain(&format!("answer to {id}: {problem}"));
        }
        let changes = !updates.is_empty();
        let command = Command::Answer { question: question.id, answer, updates, by: "host".to_owned() };
        let request = self.headless.ask(&mut self.state, command);
        if changes {
            self.changing.insert(request, Some(question.id));
        }
        if question.elicitation.is_some() {
            self.given.insert(request, question.id);
        }
    }

    /// The host's answer, with the input that it was asked about where it was shown less than that.
    fn whole(&self, question: &Question, mut response: Value) -> Result<Value, String> {
        let line = asking(question);
        let Some(cut) = truncate::line(&line, &self.headless.stream.place(&line)).cut else {
            return Ok(response);
        };
        let (Some(given), Some(shown)) = (response.get("updatedInput"), cut.pointer("/request/input")) else {
            return Ok(response);
        };
        let meant = truncate::restored(given, shown, &question.input)
            .ok_or_else(|| host::came_back_changed("updatedInput"))?;
        response["updatedInput"] = meant;
        Ok(response)
    }

    fn answer(&mut self, question: QuestionId, answer: Answer, by: &str) -> RequestId {
        let command = Command::Answer { question, answer, updates: Vec::new(), by: by.to_owned() };
        self.headless.ask(&mut self.state, command)
    }

    fn answer_host(&mut self, request: HostRequestId, answer: HostAnswer) {
        self.headless.ask(&mut self.state, Command::AnswerHost { request, answer });
    }

    /// Requests of the session to the host will get no answer.
    fn fail_wanted(&mut self) {
        let wanted: Vec<HostRequestId> = self.wanted.drain().map(|(id, _)| id).collect();
        for request in wanted {
            self.answer_host(request, HostAnswer::Gone);
        }
    }

    /// Asks the host for something, if it is there; gives whether to leave at once. Earlier requests are shown again
    /// after a lag of the stream; here none is lost.
    async fn want(
        &mut self,
        request: &HostRequest,
        is_there: bool,
        signals: &mut mpsc::Receiver<StopSignal>,
    ) -> bool {
        if self.wanted.contains_key(&request.id) {
            return false;
        }
        let place = self.headless.stream.place(&Value::Null);
        let line = if is_there { host::line(request, &place).map_err(failed) } else { Err(HostAnswer::Gone) };
        match line {
            Ok((line, wanted)) => {
                self.wanted.insert(request.id, wanted);
                self.headless.show(&mut self.state, Vec::new(), vec![line], signals).await
            }
            Err(answer) => {
                self.answer_host(request.id, answer);
                false
            }
        }
    }

    /// The results of prompts that could not be worked on, as far as it is their turn.
    fn due_results(&mut self) -> Vec<Value> {
        let due = self.results.due();
        due.into_iter().map(|reason| self.headless.stream.not_begun(reason)).collect()
    }

    /// Notes what an event says of prompts that wait for a result.
    fn count_results(&mut self, envelope: &Envelope) {
        let rests = match &envelope.event {
            Event::RunEnded { .. } if envelope.agent.is_none() => {
                if !self.headless.stream.is_woken() {
                    self.results.one_less();
                }
                self.headless.stream.queued() == 0
            }
            Event::Quiet { quiet, .. } => *quiet,
            _ => return,
        };
        // What the session has not taken yet is still to come.
        if rests && !self.changing.values().any(Option::is_none) {
            self.results.none_left();
        }
    }

    /// An answer to a server that was not taken, because it does not fit, is none: the server must not wait for
    /// a host that believes it has answered.
    fn taken(&mut self, request: RequestId, reply: &Reply) {
        let missed = match reply {
            Reply::Refused { reason } => Some(reason.as_str()),
            Reply::Done { value } => value.get("not_done").and_then(Value::as_str),
        };
        if let (Some(about), Some(reason)) = (self.changing.remove(&request), missed) {
            let reason = one_line(reason);
            self.complain(&match about {
                Some(question) => format!("answer to {question}: not obeyed: {reason}"),
                None => format!("a message was not taken: {reason}"),
            });
            if about.is_none() {
                self.results.one_less();
            }
        }
        let (Some(question), Reply::Refused { reason }) = (self.given.remove(&request), reply) else {
            return;
        };
        self.complain(&format!("answer to {question}: {}", one_line(reason)));
        let nothing = Answer::Elicited(Elicited::plain(ElicitationAction::Cancel));
        self.answer(question, nothing, "host");
    }

    /// The host's input has ended: open requests will get no answer, and the session ends when it is quiet.
    fn gone(&mut self) {
        if !self.kept.is_empty() {
            self.complain(
                "a message with `shouldQuery: false` has had no prompt after it, and is on no record",
            );
        }
        let open: Vec<QuestionId> = self.open.drain().map(|(id, _)| id).collect();
        for question in open {
            self.answer(question, nobody(), "nobody");
        }
        self.fail_wanted();
        self.headless.end(&mut self.state);
    }

    /// Shows an event and acts on it; tells whether to leave at once.
    async fn event(
        &mut self,
        envelope: &Arc<Envelope>,
        is_there: bool,
        signals: &mut mpsc::Receiver<StopSignal>,
    ) -> bool {
        if self.headless.take(&mut self.state, envelope, signals).await {
            return true;
        }
        self.count_results(envelope);
        let mut lines = match &envelope.event {
            Event::Asked { question } if is_there => {
                self.open.insert(question.id, (**question).clone());
                vec![asking(question)]
            }
            Event::Asked { question } => {
                self.answer(question.id, nobody(), "nobody");
                Vec::new()
            }
            Event::Answered { question, .. } => {
                // Answered by someone else, or by the time.
                self.open.remove(question).map(|question| cancelled(&question.id)).into_iter().collect()
            }
            Event::HostAsked { request } => return self.want(request, is_there, signals).await,
            Event::HostReleased { request } => {
                self.wanted.remove(request).map(|_| cancelled(request)).into_iter().collect()
            }
            // Settled by rules, or over without an answer.
            Event::CallStarted { call, .. } | Event::CallEnded { call, .. } => {
                self.close_questions(envelope.agent.as_ref(), Some(call))
            }
            Event::RunEnded { .. } => self.close_questions(envelope.agent.as_ref(), None),
            Event::Replied { request, reply } => {
                self.taken(*request, reply);
                self.replied(*request, reply).into_iter().collect()
            }
            _ => Vec::new(),
        };
        lines.extend(self.due_results());
        self.print(lines, signals).await
    }

    /// Takes back what was asked for a call, or for any call of an agent, that needs no answer any more.
    fn close_questions(&mut self, agent: Option<&AgentId>, call: Option<&CallId>) -> Vec<Value> {
        let is_moot = |question: &Question| {
            question.agent.as_ref() == agent && call.is_none_or(|call| question.call == *call)
        };
        let moot: Vec<QuestionId> =
            self.open.values().filter(|question| is_moot(question)).map(|question| question.id).collect();
        self.open.retain(|id, _| !moot.contains(id));
        moot.iter().map(cancelled).collect()
    }

    fn replied(&mut self, request: RequestId, reply: &Reply) -> Option<Value> {
        let first = self.asked.remove(&request)?;
        let pending = self.pending.get_mut(&first)?;
        pending.missing -= 1;
        match reply {
            Reply::Done { value } => pending.values.push(value.clone()),
            Reply::Refused { reason } => pending.refused = pending.refused.take().or(Some(reason.clone())),
        }
        if pending.missing > 0 {
            return None;
        }
        let HostRequestState { id, values, refused, shape, .. } = self.pending.remove(&first)?;
        Some(match refused {
            None if shape == ReplyShape::Hooks => {
                let listing = shape.answer(values);
                success(&id, &control::without_secrets(listing, &*self.host.known))
            }
            None => success(&id, &shape.answer(values)),
            Some(reason) => failure(&id, &reason, None),
        })
    }

    async fn print(&mut self, lines: Vec<Value>, signals: &mut mpsc::Receiver<StopSignal>) -> bool {
        if lines.is_empty() {
            return false;
        }
        let stream = &self.headless.stream;
        let lines = lines.iter().map(|line| truncate::line(line, &stream.place(line)).bytes).collect();
        self.headless.show(&mut self.state, Vec::new(), lines, signals).await
    }

    fn complain(&self, problem: &str) {
        self.host.problems.try_send(format!("decurion: {problem}").into_bytes());
    }
}

fn failed(error: String) -> HostAnswer {
    HostAnswer::Failed { error }
}

fn nobody() -> Answer {
    Answer::Deny { message: "host disconnected".to_owned(), interrupt: false }
}

fn success(id: &str, response: &Value) -> Value {
    json!({
        "type": "control_response",
        "response": {"subtype": "success", "request_id": id, "response": response},
    })
}

fn failure(id: &str, error: &str, code: Option<&str>) -> Value {
    let mut response = json!({"subtype": "error", "request_id": id, "error": error});
    if let Some(code) = code {
        response["error_code"] = json!(code);
    }
    json!({"type": "control_response", "response": response})
}

/// A question as a request to the host.
fn asking(question: &Question) -> Value {
    let mut request = match &question.elicitation {
        Some(elicitation) => elicited(question, elicitation),
        None => can_use_tool(question),
    };
    if let Some(agent) = &question.agent {
        request["agent_id"] = json!(agent);
    }
    json!({"type": "control_request", "request_id": question.id, "request": request})
}

/// What a server asks a person.
fn elicited(question: &Question, elicitation: &Elicitation) -> Value {
    let mut request = json!({
        "subtype": "elicitation",
        "mcp_server_name": elicitation.server,
        "message": elicitation.message,
        "tool_use_id": question.call,
    });
    match &elicitation.wanted {
        Wanted::Form { schema } => {
            request["mode"] = json!("form");
            request["requested_schema"] = schema.clone();
        }
        Wanted::Url { url, id } => {
            request["mode"] = json!("url");
            request["url"] = json!(url);
            request["elicitation_id"] = json!(id);
        }
    }
    request
}

/// Whether a call may run.
fn can_use_tool(question: &Question) -> Value {
    let mut request = json!({
        "subtype": "can_use_tool",
        "tool_name": question.tool,
        "display_name": question.tool,
        "input": question.input,
        "tool_use_id": question.call,
        "title": question.intent.title,
        "decision_reason": question.reason,
        "decision_reason_type": question.asked_by,
    });
    if let Some(path) = &question.blocked {
        request["blocked_path"] = json!(path);
    }
    if !question.suggestions.is_empty() {
        request["permission_suggestions"] = json!(session_updates(&question.suggestions));
    }
    if question.subject() != Subject::Call {
        request["requires_user_interaction"] = json!(true);
    }
    if let Some(description) = question.input.get("description").and_then(Value::as_str) {
        request["description"] = json!(description);
    }
    request
}

/// A request that needs no answer any more.
fn cancelled(request: &impl serde::Serialize) -> Value {
    json!({"type": "control_cancel_request", "request_id": request})
}
