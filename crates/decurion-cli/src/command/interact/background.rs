//! A session that continues without a terminal. Takes the session, its socket and the link to the terminal; waits until
//! no agent works, no question is open and no client is attached, then ends the session.

use decurion_exec::keeper::Leash;
use decurion_protocol::{Command, Event, Link, Request, RequestId, SessionId, SessionView};
use decurion_serve::socket::Listener;
use decurion_tui::OutsideSignal;
use futures_util::StreamExt as _;
use tokio::sync::mpsc;

use crate::report::{Failure, note};

/// The first request of ours, far from those that the terminal made.
const FIRST_QUESTION: u64 = 1 << 40;

/// Lets the terminal go, and sees the work through.
pub async fn go_on(
    mut link: Link,
    door: Option<Listener>,
    leash: Leash,
    session: SessionId,
    mut signals: mpsc::Receiver<OutsideSignal>,
    view: SessionView,
) -> Result<u8, Failure> {
    let Some(door) = door else {
        return Err(Failure::failed("cannot run in the background: the session has no control socket"));
    };
    note(format!("running in the background; reattach: decurion attach {session}"));
    leash
        .let_go()
        .map_err(|error| Failure::failed(format!("cannot continue without a terminal: {error}")))?;
    let mut view = view;
    let mut clients = door.clients();
    // An end may still have to be delivered to a parent: the session is asked once more before it is closed.
    let mut asked: Option<RequestId> = None;
    let mut requests = FIRST_QUESTION;
    loop {
        if view.is_over() && *clients.borrow_and_update() == 0 && asked.is_none() {
            requests += 1;
            asked = Some(RequestId(requests));
            let request = Request { id: RequestId(requests), command: Command::Tasks };
            if link.commands.send(request).await.is_err() {
                return Ok(0);
            }
        }
        tokio::select! {
            event = link.events.next() => match event {
                Some(event) => {
                    view.take(&event);
                    let is_answer =
                        matches!(&event.event, Event::Replied { request, .. } if Some(*request) == asked);
                    if is_answer {
                        asked = None;
                        if view.is_over() && *clients.borrow_and_update() == 0 {
                            break;
                        }
                    }
                }
                None => return Ok(0),
            },
            // Once no client can come any more, this branch must not be polled: it would be ready again and again.
            Ok(()) = clients.changed() => {}
            signal = signals.recv() => match signal {
                // The terminal is gone, and with it what it could want.
                Some(OutsideSignal::Hangup | OutsideSignal::Suspend) => {}
                Some(OutsideSignal::Interrupt | OutsideSignal::Terminate) | None => break,
            },
        }
    }
    decurion_tui::close(&mut link, "it was idle with no terminal attached").await;
    door.finish().await;
    Ok(0)
}
