//! A person writes in an editor, which has the terminal. Takes the text or the file and events meanwhile: the session
//! is followed, and a request to end the program is obeyed. Gives what to do then.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Envelope, Event, Link};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;

use crate::OutsideSignal;
use crate::app::{App, AppInput, Effect};
use crate::port::{EditorDraft, EditorEnd, FrontEndJob, FrontEndPort, JobPurpose};

/// How long an editor may take to end, once it is asked and once it has no choice.
const PATIENCE: Duration = Duration::from_millis(500);

/// How it came out.
pub(crate) enum Edited {
    /// It is shown; this is to be done.
    Done(Vec<Effect>),
    /// The program is to end.
    By(OutsideSignal),
    /// The session has ended.
    SessionOver,
}

/// Signals, first those that came while the loop was busy.
pub(crate) struct Signals<'a> {
    aside: VecDeque<OutsideSignal>,
    more: &'a mut mpsc::Receiver<OutsideSignal>,
}

impl<'a> Signals<'a> {
    pub fn new(more: &'a mut mpsc::Receiver<OutsideSignal>) -> Self {
        Self { aside: VecDeque::new(), more }
    }

    /// The next one. Cancelling the wait loses none.
    pub async fn recv(&mut self) -> Option<OutsideSignal> {
        match self.aside.pop_front() {
            Some(signal) => Some(signal),
            None => self.more.recv().await,
        }
    }
}

/// What an editor is opened beside.
pub(crate) struct Beside<'a, 'b> {
    pub app: &'a mut App,
    pub link: &'a mut Link,
    pub signals: &'a mut Signals<'b>,
    /// The number of the last event that was taken from the record.
    pub taken: u64,
}

impl Beside<'_, '_> {
    /// Opens an editor and waits until it is closed.
    pub async fn edit(self, desk: &dyn FrontEndPort, draft: EditorDraft) -> Edited {
        let Self { app, link, signals, taken } = self;
        let mut effects = Vec::new();
        // What was asked before may change the prompt, which is in the editor's hands.
        let mut replies = Vec::new();
        let mut is_over = false;
        let mut editing = desk.edit(draft.clone());
        let written = loop {
            tokio::select! {
                biased;
                Some(signal) = signals.more.recv() => match signal {
                    OutsideSignal::Terminate | OutsideSignal::Hangup => {
                        end(desk, &mut editing, signal).await;
                        give_back(app, draft, None);
                        return Edited::By(signal);
                    }
                    // They are about the screen, and wait until there is one.
                    OutsideSignal::Interrupt | OutsideSignal::Suspend => signals.aside.push_back(signal),
                },
                written = &mut editing => break written,
                event = link.events.next(), if !is_over => match event {
                    None => is_over = true,
                    Some(event) if is_known(&event, taken) => {}
                    Some(event) if matches!(event.event, Event::Replied { .. }) => replies.push(event),
                    Some(event) => effects.extend(app.update(AppInput::Event(event))),
                },
            }
        };
        if is_over {
            give_back(app, draft, written.ok());
            return Edited::SessionOver;
        }
        if let Err(error) = &written {
            app.say("warning", error.clone());
        }
        match (written, draft) {
            (written, EditorDraft::Text(before)) => {
                effects.extend(app.update(AppInput::Edited(written.unwrap_or(before))));
            }
            (Ok(_), EditorDraft::File(path)) if !path.contains("/agents/") => {}
            (Ok(_), EditorDraft::File(path)) => {
                let words = vec!["agents".to_owned(), "lint".to_owned(), path];
                effects.push(Effect::Errand(JobPurpose::Say, FrontEndJob::Program(words)));
            }
            (Err(_), EditorDraft::File(_)) => {}
        }
        effects.extend(replies.into_iter().flat_map(|reply| app.update(AppInput::Event(reply))));
        Edited::Done(effects)
    }
}

/// Puts a prompt back from which it was taken, with what an editor has made of it: it is not lost with the session.
fn give_back(app: &mut App, draft: EditorDraft, written: Option<String>) {
    if let EditorDraft::Text(before) = draft {
        app.update(AppInput::Edited(written.unwrap_or(before)));
    }
}

/// Lets an editor end, since the program does.
async fn end(
    desk: &dyn FrontEndPort,
    editing: &mut BoxFuture<'_, Result<String, String>>,
    signal: OutsideSignal,
) {
    let how = if signal == OutsideSignal::Hangup { EditorEnd::Hangup } else { EditorEnd::Terminate };
    for how in [how, EditorEnd::Kill] {
        desk.end_editor(how);
        if tokio::time::timeout(PATIENCE, &mut *editing).await.is_ok() {
            return;
        }
    }
}

/// Whether an event was taken from the record already, up to this number.
pub(crate) fn is_known(event: &Arc<Envelope>, taken: u64) -> bool {
    match event.event {
        // How the session stands is on no record.
        Event::Quiet { .. } => false,
        // What is passing repeats the number of the last on record.
        _ => event.seq <= taken && event.event.is_durable() || event.seq < taken,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use decurion_protocol::{Command, Reply, Request, RequestId, RunId, SessionId};
    use futures_util::stream;
    use tokio::sync::oneshot;

    use super::*;
    use crate::app::Farewell;
    use crate::history::History;
    use crate::keymap::Keymap;
    use crate::perform::{Performer, TerminalEffect};
    use crate::port::JobResult;
    use crate::theme::{Shades, Theme};

    /// A program whose editor is closed with this text, or never.
    #[derive(Default)]
    struct Editor {
        written: Mutex<Option<oneshot::Receiver<String>>>,
        told: Mutex<Vec<EditorEnd>>,
    }

    impl FrontEndPort for Editor {
        fn remember(&self, _prompt: &str) {}

        fn edit(&self, _draft: EditorDraft) -> BoxFuture<'_, Result<String, String>> {
            let written = self.written.lock().unwrap().take();
            Box::pin(async move {
                match written {
                    Some(written) => written.await.map_err(|error| error.to_string()),
                    None => std::future::pending().await,
                }
            })
        }

        fn end_editor(&self, how: EditorEnd) {
            self.told.lock().unwrap().push(how);
        }

        fn suspend(&self) -> bool {
            false
        }

        fn let_go<'a>(&'a self, _farewell: &'a Farewell) -> BoxFuture<'a, Result<(), String>> {
            Box::pin(async { Ok(()) })
        }

        fn run(&self, _errand: FrontEndJob) -> BoxFuture<'static, Result<JobResult, String>> {
            Box::pin(async { Err("nothing is done here".to_owned()) })
        }
    }

    fn app() -> App {
        App::new(Theme::new(Shades::None), Keymap::default(), History::new(Vec::new()), (80, 24))
    }

    /// A session that holds one event for whoever does not take it, and that listens to nobody.
    fn session() -> (mpsc::Sender<Event>, decurion_protocol::CommandReceiver, Link) {
        let (events, receiver) = mpsc::channel::<Event>(1);
        let (commands, requests) = decurion_protocol::commands::channel();
        let events_out = stream::unfold(receiver, |mut receiver| async move {
            let event = receiver.recv().await?;
            let (at, run) = (jiff::Timestamp::UNIX_EPOCH, RunId(uuid::Uuid::nil()));
            Some((Arc::new(Envelope { seq: 7, at, agent: None, run, event }), receiver))
        });
        let session = SessionId(uuid::Uuid::nil());
        (events, requests, Link { session, commands, events: Box::pin(events_out), again: None })
    }

    fn shown(app: &mut App) -> String {
        app.all_finished(usize::MAX).iter().map(|line| format!("{line}\n")).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_session_is_followed_while_an_editor_is_open() {
        let (mut app, (events, _requests, mut link)) = (app(), session());
        let (close, written) = oneshot::channel();
        let desk = Editor { written: Mutex::new(Some(written)), ..Editor::default() };
        let (_sender, mut signals) = mpsc::channel(4);
        let mut signals = Signals::new(&mut signals);
        let beside = Beside { app: &mut app, link: &mut link, signals: &mut signals, taken: 0 };
        let session = async {
            for count in 0..100 {
                let text = format!("notice {count}");
                let event = Event::Notice { level: "info".to_owned(), text };
                events.send(event).await.unwrap();
            }
            close.send("what I wrote".to_owned()).unwrap();
        };
        // Were nothing taken, the session would wait for room, and the editor for the session.
        let both = async { tokio::join!(beside.edit(&desk, EditorDraft::Text(String::new())), session).0 };
        let edited = tokio::time::timeout(Duration::from_secs(1), both).await.unwrap();
        assert!(matches!(edited, Edited::Done(_)));
        assert_eq!(app.take_draft().as_deref(), Some("what I wrote"));
        let shown = shown(&mut app);
        assert!(shown.contains("notice 0\n") && shown.contains("notice 98\n"), "{shown}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_prompt_that_is_refused_meanwhile_stands_above_what_was_written() {
        let (mut app, (events, _requests, mut link)) = (app(), session());
        app.update(AppInput::Paste("a prompt".to_owned()));
        let enter = crossterm::event::KeyEvent::from(crossterm::event::KeyCode::Enter);
        let sent = app.update(AppInput::Key(enter)).into_iter().find_map(|effect| match effect {
            Effect::Send(request) => Some(request.id),
            _ => None,
        });
        let (close, written) = oneshot::channel();
        let desk = Editor { written: Mutex::new(Some(written)), ..Editor::default() };
        let (_sender, mut signals) = mpsc::channel(4);
        let mut signals = Signals::new(&mut signals);
        let beside = Beside { app: &mut app, link: &mut link, signals: &mut signals, taken: 0 };
        let session = async {
            let reply = Reply::Refused { reason: "not now".to_owned() };
            events.send(Event::Replied { request: sent.unwrap_or(RequestId(0)), reply }).await.unwrap();
            // Once there is room for another, the first was taken.
            let _room = events.reserve().await.unwrap();
            close.send("what I wrote".to_owned()).unwrap();
        };
        tokio::join!(beside.edit(&desk, EditorDraft::Text(String::new())), session);
        assert_eq!(app.take_draft().as_deref(), Some("a prompt\n\nwhat I wrote"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_prompt_without_room_at_the_session_is_written_again_and_holds_up_nothing() {
        let (mut app, (_events, mut requests, link)) = (app(), session());
        while link.commands.try_send(Request { id: RequestId(99), command: Command::Tasks }).is_ok() {}
        app.update(AppInput::Paste("a prompt".to_owned()));
        let enter = crossterm::event::KeyEvent::from(crossterm::event::KeyCode::Enter);
        let effects = app.update(AppInput::Key(enter));
        let hands = Performer {
            commands: link.commands.clone(),
            desk: Arc::new(Editor::default()),
            errands: mpsc::channel(1).0,
        };
        for effect in effects {
            let taken = tokio::time::timeout(Duration::from_secs(1), hands.take(effect)).await;
            if let Some(TerminalEffect::NoRoom(request)) = taken.expect("the screen waits for the session") {
                app.no_room(request);
            }
        }
        assert_eq!(app.take_draft().as_deref(), Some("a prompt"));
        let shown = shown(&mut app);
        assert!(shown.contains("not sent: the session is busy"), "{shown}");
        let interrupt = Request { id: RequestId(100), command: Command::Interrupt };
        assert!(hands.take(Effect::Send(interrupt)).await.is_none());
        drop((hands, link));
        let mut last = None;
        while let Some(queued) = requests.recv().await {
            last = Some(queued.request.command);
        }
        assert_eq!(last, Some(Command::Interrupt));
    }

    #[tokio::test(start_paused = true)]
    async fn an_editor_that_does_not_end_is_ended() {
        for (signal, first) in
            [(OutsideSignal::Terminate, EditorEnd::Terminate), (OutsideSignal::Hangup, EditorEnd::Hangup)]
        {
            let (mut app, (_events, _requests, mut link)) = (app(), session());
            let desk = Editor::default();
            let (sender, mut signals) = mpsc::channel(4);
            for signal in [OutsideSignal::Suspend, OutsideSignal::Interrupt, signal] {
                sender.send(signal).await.unwrap();
            }
            let mut signals = Signals::new(&mut signals);
            let beside = Beside { app: &mut app, link: &mut link, signals: &mut signals, taken: 0 };
            let edited = beside.edit(&desk, EditorDraft::Text("half a thought".to_owned())).await;
            assert!(matches!(edited, Edited::By(by) if by == signal));
            assert_eq!(app.take_draft().as_deref(), Some("half a thought"));
            assert_eq!(*desk.told.lock().unwrap(), [first, EditorEnd::Kill]);
            // What is about the screen is heeded by whoever draws it next.
            assert_eq!(signals.recv().await, Some(OutsideSignal::Suspend));
            assert_eq!(signals.recv().await, Some(OutsideSignal::Interrupt));
        }
    }
}
