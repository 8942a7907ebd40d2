//! A prompt answered without a terminal. Takes a [`Link`], a prompt and a format, prints until the whole tree
//! of agents is quiet, and gives how it ended. `converse.rs` is the same with a host on standard input.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use decurion_protocol::{
    Command, CommandSender, Envelope, Event, HostAnswer, Link, Outcome, Reply, Request, RequestId, SessionId,
    Totals,
};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

pub use crate::lines::LineWriterQueue;
use crate::progress::Teller;
use crate::stream_json::{StreamJson, WORKTREE_BRANCH, WORKTREE_PATH};
use crate::truncate;

/// How long the end of a session may take after a signal to leave.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// How long what was printed before it may take to be read.
const DRAIN_WITHIN: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
    /// A line per event.
    StreamJson,
}

/// What came from outside while the work ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// Stop what is under way; a second one leaves.
    Interrupt,
    Terminate,
    /// The terminal is gone: leave.
    Hangup,
}

#[derive(Clone, Debug)]
pub struct Finish {
    pub session: SessionId,
    /// The worst of the root's last outcome and of every end that no agent was notified of.
    pub outcome: Outcome,
    /// What the root's last run took.
    pub totals: Totals,
    /// The signal that ended it, if one did.
    pub signal: Option<StopSignal>,
    /// Whether the reader of the output is gone.
    pub unread: bool,
    /// Why the output could not be written. A reader that has gone is no such reason.
    pub unwritten: Option<String>,
    /// The checkout of the session's own that is kept, if one is.
    pub worktree: Option<SessionWorktree>,
    /// Whether a program led it.
    pub led: bool,
}

/// A checkout of a session's own that is kept at its end, as the session tells of it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct SessionWorktree {
    pub path: String,
    pub branch: String,
    /// What is in it, in words.
    pub left: String,
}

pub struct Headless {
    pub link: Link,
    pub format: Format,
    /// The events as JSON.
    pub stream: StreamJson,
    /// Where the answer goes.
    pub out: LineWriterQueue,
    pub progress: ProgressOutput,
}

pub enum ProgressOutput {
    Off,
    /// Elsewhere, and only what a person should not miss.
    Warnings(LineWriterQueue),
    /// Between the lines of the answer.
    Inline,
    Apart(LineWriterQueue),
}

impl Headless {
    /// Sends the prompt (or another command that makes a run) and prints until everything it began is quiet.
    pub async fn answer(
        mut self,
        work: Command,
        signals: &mut mpsc::Receiver<StopSignal>,
    ) -> io::Result<Finish> {
        if self.format == Format::Json {
            self.stream = self.stream.with_one_result();
        }
        let mut state = HeadlessState { results: Results::Held(Vec::new()), ..HeadlessState::default() };
        state.work = Some(self.ask(&mut state, work));
        while !state.over {
            tokio::select! {
                biased;
                Some(signal) = signals.recv() => {
                    if self.signalled(&mut state, signal) {
                        break;
                    }
                }
                () = takes_more(&self.link.commands, &state.outbox), if !state.outbox.is_empty() => {
                    self.pass_on(&mut state);
                }
                event = self.link.events.next() => match event {
                    Some(envelope) => {
                        if self.take(&mut state, &envelope, signals).await {
                            break;
                        }
                    }
                    None => break,
                },
            }
        }
        self.finish(state, signals).await
    }

    /// Leaves what is left, prints what was held, and tells how it ended.
    pub(crate) async fn finish(
        mut self,
        mut state: HeadlessState,
        signals: &mut mpsc::Receiver<StopSignal>,
    ) -> io::Result<Finish> {
        if !state.over {
            self.leave(&mut state, signals).await;
        }
        if let Results::Held(mut lines) = std::mem::take(&mut state.results) {
            if state.over && state.worktree.is_none() && self.format != Format::Text {
                // Nothing was in it, so it is gone.
                lines = lines.into_iter().map(without_worktree).collect();
            }
            self.show(&mut state, Vec::new(), lines, signals).await;
        }
        Box::pin(let_go(self.progress, &mut state.signal, signals)).await;
        let written = drain(self.out, &mut state.signal, signals).await;
        let unread = state.unread || !matches!(written, OutputProgress::All);
        let unwritten = match written {
            OutputProgress::Failed(error) => Some(error.to_string()),
            OutputProgress::All | OutputProgress::Unread => None,
        };
        let (outcome, totals) = state.ended.unwrap_or_else(|| (Outcome::Lost, Totals::default()));
        let outcome = worst(outcome, state.unheard);
        let (signal, worktree) = (state.signal, state.worktree);
        let session = self.link.session;
        Ok(Finish { session, outcome, totals, signal, unread, unwritten, worktree, led: false })
    }

    /// Asks the session for something. It may take no more for a while, which is not waited for here: signals must be
    /// heard then too. What stops work does not wait behind what the session has no room for.
    pub(crate) fn ask(&self, state: &mut HeadlessState, command: Command) -> RequestId {
        state.sent += 1;
        let id = RequestId(state.sent);
        let request = Request { id, command };
        if self.link.commands.is_urgent(&request) {
            state.outbox.push_front(request);
        } else {
            state.outbox.push_back(request);
        }
        self.pass_on(state);
        id
    }

    /// Gives the session what waits for it, as far as it takes it now.
    pub(crate) fn pass_on(&self, state: &mut HeadlessState) {
        while let Some(request) = state.outbox.pop_front() {
            match self.link.commands.try_send(request) {
                // A session that is gone shows itself by the end of its events.
                Ok(()) | Err(TrySendError::Closed(_)) => {}
                Err(TrySendError::Full(request)) => return state.outbox.push_front(request),
            }
        }
    }

    /// Acts on a signal; tells whether to stop listening at once.
    pub(crate) fn signalled(&self, state: &mut HeadlessState, signal: StopSignal) -> bool {
        state.signal = Some(signal);
        state.interrupts += 1;
        if signal != StopSignal::Interrupt || state.interrupts > 1 {
            return true;
        }
        self.stop(state);
        false
    }

    /// Ends the run under way; where there is none, the session with all that still works in the background.
    pub(crate) fn stop(&self, state: &mut HeadlessState) {
        self.ask(state, Command::Interrupt);
        if !state.running {
            self.end(state);
        }
    }

    /// Asks for the end of the session: now after an order to stop, else when everything is quiet.
    pub(crate) fn end(&self, state: &mut HeadlessState) {
        let command = if state.signal.is_some() || state.unread {
            Command::Close { reason: "told to stop".to_owned() }
        } else if state.ending.is_some() {
            return;
        } else {
            Command::Finish
        };
        state.ending = Some(self.ask(state, command));
    }

    /// Shows an event and acts on it; tells whether to leave at once.
    pub(crate) async fn take(
        &mut self,
        state: &mut HeadlessState,
        envelope: &Arc<Envelope>,
        signals: &mut mpsc::Receiver<StopSignal>,
    ) -> bool {
        let progress = match &self.progress {
            ProgressOutput::Off => Vec::new(),
            ProgressOutput::Warnings(out) => {
                // A reader of these that does not read holds nothing up.
                if let Some(line) = state.teller.warning(envelope) {
                    out.try_send(line.into_bytes());
                }
                Vec::new()
            }
            ProgressOutput::Inline | ProgressOutput::Apart(_) => state.teller.lines(envelope),
        };
        let lines = self.lines(state, envelope);
        let was_read = !state.unread;
        if self.show(state, progress, lines, signals).await {
            return true;
        }
        if was_read && state.unread {
            self.stop(state);
        }
        self.act(state, envelope);
        false
    }

    fn act(&self, state: &mut HeadlessState, envelope: &Envelope) {
        match &envelope.event {
            Event::RunStarted { .. } if envelope.agent.is_none() => state.running = true,
            Event::RunEnded { outcome, totals } if envelope.agent.is_none() => {
                state.running = false;
                // All runs are for the one prompt: a turn that went well later does not undo one that did not.
                let before = state.ended.take().map(|(before, _)| before).filter(|_| state.work.is_some());
                state.ended = Some((worst(outcome.clone(), before), (**totals).clone()));
                if state.ends_after_run() {
                    self.end(state);
                }
            }
            // Without a leading program, the session must not wait for one.
            Event::HostAsked { request } if !state.led => {
                let gone = Command::AnswerHost { request: request.id, answer: HostAnswer::Gone };
                self.ask(state, gone);
            }
            Event::Replied { request, reply: Reply::Refused { reason } } if state.work == Some(*request) => {
                let error = reason.clone();
                state.running = false;
                state.ended = Some((Outcome::Failed { error }, Totals::default()));
                self.end(state);
            }
            Event::Replied { request, reply } => {
                let said = |key: &str| match reply {
                    Reply::Done { value } => value.get(key),
                    Reply::Refused { .. } => None,
                };
                let unheard = said("unheard");
                // Asked to end in two ways, a session answers one of them.
                if unheard.is_some() || state.ending == Some(*request) {
                    state.over = true;
                    state.unheard = unheard.and_then(|value| serde_json::from_value(value.clone()).ok());
                    state.worktree =
                        said("worktree").and_then(|value| serde_json::from_value(value.clone()).ok());
                }
            }
            _ => {}
        }
    }

    /// What the answer's format makes of an event. Results may have to wait.
    fn lines(&mut self, state: &mut HeadlessState, envelope: &Envelope) -> Vec<Vec<u8>> {
        let ended = match &envelope.event {
            Event::RunEnded { outcome, .. } if envelope.agent.is_none() => Some(outcome),
            _ => None,
        };
        if self.format != Format::StreamJson {
            state.answers.extend(ended.and_then(answer_of));
        }
        let lines = match self.format {
            Format::Text if ended.is_none() => return Vec::new(),
            Format::Text => text_lines(&state.answers),
            Format::Json => json_lines(&mut self.stream, envelope, &state.answers),
            Format::StreamJson => fitting_lines(&mut self.stream, envelope),
        };
        match (ended.is_some(), self.format, &mut state.results) {
            (true, Format::StreamJson, Results::Held(held)) => held.extend(lines),
            // The last one contains all answers.
            (true, _, Results::Held(held)) => *held = lines,
            (true, _, Results::AtOnce) | (false, Format::StreamJson, _) => return lines,
            (false, ..) => {}
        }
        Vec::new()
    }

    /// Shows progress and lines. Signals are heard meanwhile, since a reader that does not read holds this
    /// up for ever; tells whether one of them says to leave at once.
    pub(crate) async fn show(
        &self,
        state: &mut HeadlessState,
        told: Vec<String>,
        lines: Vec<Vec<u8>>,
        signals: &mut mpsc::Receiver<StopSignal>,
    ) -> bool {
        let progress = match &self.progress {
            ProgressOutput::Off | ProgressOutput::Warnings(_) => None,
            ProgressOutput::Inline => Some(&self.out),
            ProgressOutput::Apart(lines) => Some(lines),
        };
        let mut sending = std::pin::pin!(async {
            if let Some(out) = progress {
                for line in told {
                    out.send(line.into_bytes()).await;
                }
            }
            let mut read = true;
            for line in lines {
                read &= self.out.send(line).await;
            }
            read
        });
        loop {
            tokio::select! {
                biased;
                read = &mut sending => {
                    state.unread |= !read;
                    return false;
                }
                Some(signal) = signals.recv() => {
                    if self.signalled(state, signal) {
                        return true;
                    }
                }
                () = takes_more(&self.link.commands, &state.outbox), if !state.outbox.is_empty() => {
                    self.pass_on(state);
                }
            }
        }
    }

    /// Ends the session. After an order to leave, within a time limit: work that is still held up by a full disk, a
    /// stubborn command or a slow reader is settled by the next resume, as after a crash.
    async fn leave(&mut self, state: &mut HeadlessState, signals: &mut mpsc::Receiver<StopSignal>) {
        if state.signal.is_none() {
            // The events have ended: there is no session to tell.
            return;
        }
        let _ = tokio::time::timeout(LEAVE_WITHIN, self.close(state, signals)).await;
    }

    /// Ends the session and hears it out: what it still says is shown, and its files are closed after it.
    async fn close(&mut self, state: &mut HeadlessState, signals: &mut mpsc::Receiver<StopSignal>) {
        self.end(state);
        while !state.over {
            tokio::select! {
                biased;
                Some(signal) = signals.recv() => {
                    // Remembered, so that what is not read yet is not waited for either.
                    state.signal = Some(signal);
                    return;
                }
                () = takes_more(&self.link.commands, &state.outbox), if !state.outbox.is_empty() => {
                    self.pass_on(state);
                }
                event = self.link.events.next() => match event {
                    Some(envelope) => {
                        if self.take(state, &envelope, signals).await {
                            return;
                        }
                    }
                    None => return,
                },
            }
        }
    }
}

/// Returns once a session takes the next request, or is gone.
pub(crate) async fn takes_more(commands: &CommandSender, outbox: &VecDeque<Request>) {
    if let Some(next) = outbox.front() {
        commands.room_for(next).await;
    }
}

/// Waits until the output beside the answer is written. Progress that cannot be shown is no failure, and unread
/// warnings block no one.
async fn let_go(
    progress: ProgressOutput,
    signal: &mut Option<StopSignal>,
    signals: &mut mpsc::Receiver<StopSignal>,
) {
    match progress {
        ProgressOutput::Off | ProgressOutput::Inline => {}
        ProgressOutput::Apart(progress) => drop(drain(progress, signal, signals).await),
        ProgressOutput::Warnings(warnings) => {
            drop(tokio::time::timeout(DRAIN_WITHIN, drain(warnings, signal, signals)).await);
        }
    }
}

/// How far output was written.
pub(crate) enum OutputProgress {
    All,
    /// Its reader has gone, or does not read.
    Unread,
    /// A write failed, for example because the disk is full.
    Failed(io::Error),
}

/// Waits until everything is written, which a reader that does not read can hold up; a signal ends that.
pub(crate) async fn drain(
    lines: LineWriterQueue,
    signal: &mut Option<StopSignal>,
    signals: &mut mpsc::Receiver<StopSignal>,
) -> OutputProgress {
    let mut writing = tokio::task::spawn_blocking(move || lines.finish());
    tokio::select! {
        biased;
        written = &mut writing => match written {
            Ok(Ok(())) => OutputProgress::All,
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => OutputProgress::Failed(error),
            Ok(Err(_)) | Err(_) => OutputProgress::Unread,
        },
        Some(heard) = signals.recv() => {
            *signal = Some(heard);
            OutputProgress::Unread
        }
        () = tokio::time::sleep(DRAIN_WITHIN), if signal.is_some() => OutputProgress::Unread,
    }
}

/// What is known of the session so far.
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own, and every mixture occurs
pub(crate) struct HeadlessState {
    sent: u64,
    /// What the session does not take yet.
    pub(crate) outbox: VecDeque<Request>,
    interrupts: u32,
    pub(crate) signal: Option<StopSignal>,
    pub(crate) unread: bool,
    /// Whether the root works, or is about to.
    running: bool,
    /// How the root's last run ended; for a single prompt, the worst of its runs.
    pub(crate) ended: Option<(Outcome, Totals)>,
    /// Ends that no agent was notified of.
    unheard: Option<Outcome>,
    /// The checkout of the session's own that is kept.
    worktree: Option<SessionWorktree>,
    /// The request that everything is for.
    work: Option<RequestId>,
    /// The last request for the end of the session.
    pub(crate) ending: Option<RequestId>,
    /// Whether the session has said its last word.
    pub(crate) over: bool,
    pub(crate) results: Results,
    /// The answer of each run of the root, for the formats that print them together.
    answers: Vec<String>,
    /// Whether a program leads the session, which answers for itself.
    pub(crate) led: bool,
    teller: Teller,
}

impl Default for HeadlessState {
    fn default() -> Self {
        Self {
            sent: 0,
            outbox: VecDeque::new(),
            interrupts: 0,
            signal: None,
            unread: false,
            running: true,
            ended: None,
            unheard: None,
            worktree: None,
            work: None,
            ending: None,
            over: false,
            results: Results::AtOnce,
            answers: Vec::new(),
            led: false,
            teller: Teller::default(),
        }
    }
}

impl HeadlessState {
    /// Of a session that was asked for nothing yet.
    pub(crate) fn waiting() -> Self {
        Self { running: false, ..Self::default() }
    }

    /// A prompt that was given is the last one; with a host, more may come.
    fn ends_after_run(&self) -> bool {
        self.work.is_some() || self.signal.is_some() || self.unread
    }
}

/// When results are printed.
#[derive(Default)]
pub(crate) enum Results {
    #[default]
    AtOnce,
    /// When everything is quiet.
    Held(Vec<Vec<u8>>),
}

/// The worse of two endings.
fn worst(outcome: Outcome, other: Option<Outcome>) -> Outcome {
    match other {
        Some(other) if other.badness() > outcome.badness() => other,
        _ => outcome,
    }
}

/// The answers, with a blank line between two.
fn text_lines(answers: &[String]) -> Vec<Vec<u8>> {
    let blank = |index| (index > 0).then(Vec::new);
    let lines = answers.iter().enumerate();
    lines.flat_map(|(index, answer)| blank(index).into_iter().chain([answer.clone().into_bytes()])).collect()
}

/// The lines of an event; a result lists all answers so far besides its own.
fn json_lines(stream: &mut StreamJson, envelope: &Envelope, answers: &[String]) -> Vec<Vec<u8>> {
    let mut lines = stream.lines(envelope);
    for line in lines.iter_mut().filter(|line| line["type"] == "result") {
        line["results"] = serde_json::json!(answers);
    }
    lines.iter().map(|line| line.to_string().into_bytes()).collect()
}

/// The same, none longer than hosts read.
fn fitting_lines(stream: &mut StreamJson, envelope: &Envelope) -> Vec<Vec<u8>> {
    let lines = stream.lines(envelope);
    lines.iter().map(|line| truncate::line(line, &stream.place(line)).bytes).collect()
}

/// A result that tells of no checkout.
fn without_worktree(line: Vec<u8>) -> Vec<u8> {
    match serde_json::from_slice(&line) {
        Ok(serde_json::Value::Object(mut members)) => {
            let told = [WORKTREE_PATH, WORKTREE_BRANCH].map(|key| members.remove(key).is_some());
            if told.contains(&true) {
                serde_json::Value::Object(members).to_string().into_bytes()
            } else {
                line
            }
        }
        _ => line,
    }
}

/// The answer of a run, or what there is of one.
fn answer_of(outcome: &Outcome) -> Option<String> {
    let text = match outcome {
        Outcome::Completed { report, .. } => report,
        Outcome::OutOfBudget { partial, .. } | Outcome::Denied { partial, .. } => partial,
        _ => return None,
    };
    (!text.is_empty()).then(|| text.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream_json::StreamFacts;
    use decurion_protocol::RunId;
    use futures_util::stream;
    use std::io::Write;

    /// A reader that reads nothing until it is let go.
    struct Stuck(std::sync::mpsc::Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn envelope(event: Event) -> Arc<Envelope> {
        let run = RunId(Default::default());
        Arc::new(Envelope { seq: 1, at: Default::default(), agent: None, run, event })
    }

    #[tokio::test]
    async fn a_signal_is_heard_while_nobody_reads_the_answer() {
        let value = serde_json::json!({"unheard": null});
        let closed = Event::Replied { request: RequestId(2), reply: Reply::Done { value } };
        assert_eq!(unread_answer(vec![closed]).await, (Some(StopSignal::Terminate), true));
    }

    #[tokio::test]
    async fn a_signal_is_heard_while_nobody_reads_and_the_session_does_not_end() {
        assert_eq!(unread_answer(Vec::new()).await, (Some(StopSignal::Terminate), true));
    }

    /// A run whose answer nobody reads, then these events, then a signal to leave.
    async fn unread_answer(after: Vec<Event>) -> (Option<StopSignal>, bool) {
        let outcome = Outcome::Completed { report: "the answer".to_owned(), limit: None };
        let ended = Event::RunEnded { outcome, totals: Box::default() };
        let session = SessionId(Default::default());
        let (commands, _inbox) = decurion_protocol::commands::channel();
        let events = stream::iter([ended].into_iter().chain(after).map(envelope)).chain(stream::pending());
        let facts = StreamFacts {
            api_key_source: "none".into(),
            version: "0".into(),
            sandbox: "none".into(),
            ..StreamFacts::default()
        };
        let (let_go, stuck) = std::sync::mpsc::channel();
        let headless = Headless {
            link: Link { session, commands, events: Box::pin(events), again: None },
            format: Format::Text,
            stream: StreamJson::new(session, facts),
            out: LineWriterQueue::to(Stuck(stuck)).unwrap(),
            progress: ProgressOutput::Off,
        };
        let (signal, mut signals) = mpsc::channel(4);
        let work = headless.answer(Command::Compact { instructions: None }, &mut signals);
        // The answer is on its way to a reader that does not read; then the signal comes.
        let (finish, ()) = tokio::join!(work, async {
            tokio::task::yield_now().await;
            signal.send(StopSignal::Terminate).await.unwrap();
        });
        drop(let_go);
        let finish = finish.unwrap();
        (finish.signal, finish.unread)
    }
}
