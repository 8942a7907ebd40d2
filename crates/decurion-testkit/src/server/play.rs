//! Plays the steps of a reply on a connection. Takes wire steps, gives a response whose body waits, splits,
//! stalls and breaks where the steps say.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use decurion_model::script::WireStep;
use http_body_util::Either;
use hyper::body::Frame;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::Notify;
use tokio::time::Sleep;

use super::Body;
use super::load::UnderWay;

/// Plays the steps up to the head and gives the response; the rest is played by its body. Never returns if
/// the script answers nothing.
pub(super) async fn start(steps: Vec<WireStep>, reset: Arc<Notify>, under_way: UnderWay) -> Response<Body> {
    let mut steps = VecDeque::from(steps);
    while let Some(step) = steps.pop_front() {
        match step {
            WireStep::Head { status, headers } => {
                let player = Player { steps, reset, sleep: None, flushed: true, _under_way: Some(under_way) };
                let mut response = Response::new(Either::Right(player));
                *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
                for (name, value) in headers {
                    if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value))
                    {
                        response.headers_mut().append(name, value);
                    }
                }
                return response;
            }
            WireStep::Wait(time) => tokio::time::sleep(time).await,
            WireStep::Reset | WireStep::Panic => reset.notify_one(),
            WireStep::Stall | WireStep::Repeat { .. } | WireStep::End | WireStep::Bytes(_) => break,
        }
    }
    std::future::pending().await
}

/// The body of a reply.
pub(crate) struct Player {
    steps: VecDeque<WireStep>,
    /// Tells the connection to break.
    reset: Arc<Notify>,
    sleep: Option<Pin<Box<Sleep>>>,
    /// Whether what was given out before has reached the socket.
    flushed: bool,
    /// Counts the request until its reply is through or given up.
    _under_way: Option<UnderWay>,
}

impl hyper::body::Body for Player {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            match self.steps.front() {
                None | Some(WireStep::End) => return Poll::Ready(None),
                Some(WireStep::Head { .. }) => {
                    self.steps.pop_front();
                }
                Some(WireStep::Bytes(_) | WireStep::Reset | WireStep::Panic) if !self.flushed => {
                    // Saying "not yet" once makes the connection write out what it has, so that this piece
                    // gets a write of its own, and a reset comes after all that precedes it.
                    self.flushed = true;
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(WireStep::Bytes(bytes)) => {
                    let bytes = bytes.clone();
                    self.steps.pop_front();
                    self.flushed = false;
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Some(WireStep::Reset | WireStep::Panic) => {
                    self.reset.notify_one();
                    return Poll::Pending;
                }
                Some(WireStep::Stall) => return Poll::Pending,
                Some(WireStep::Wait(time)) => {
                    let time = *time;
                    if self.wait(time, context).is_pending() {
                        return Poll::Pending;
                    }
                    self.steps.pop_front();
                }
                Some(WireStep::Repeat { bytes, every }) => {
                    let (bytes, every) = (bytes.clone(), *every);
                    if self.wait(every, context).is_pending() {
                        return Poll::Pending;
                    }
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
            }
        }
    }
}

impl Player {
    fn wait(&mut self, time: Duration, context: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
        let done = sleep.as_mut().poll(context);
        if done.is_ready() {
            self.sleep = None;
            self.flushed = true;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::body::Body as _;
    use std::task::Waker;

    fn player(steps: Vec<WireStep>) -> Player {
        let reset = Arc::new(Notify::new());
        Player { steps: steps.into(), reset, sleep: None, flushed: true, _under_way: None }
    }

    /// What a connection gets by asking so often: pieces, `…` for "not yet", `.` for the end.
    fn asked(player: &mut Player, times: usize) -> Vec<String> {
        let mut context = Context::from_waker(Waker::noop());
        let mut answer = || match Pin::new(&mut *player).poll_frame(&mut context) {
            Poll::Pending => "…".to_owned(),
            Poll::Ready(None) => ".".to_owned(),
            Poll::Ready(Some(Ok(frame))) => {
                String::from_utf8_lossy(frame.data_ref().map_or(&[][..], |data| &data[..])).into_owned()
            }
            Poll::Ready(Some(Err(never))) => match never {},
        };
        (0..times).map(|_| answer()).collect()
    }

    fn bytes(text: &'static str) -> WireStep {
        WireStep::Bytes(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn between_two_pieces_the_connection_has_time_to_write() {
        let mut player = player(vec![bytes("a"), bytes("b"), WireStep::End]);
        assert_eq!(asked(&mut player, 4), ["a", "…", "b", "."]);
    }

    #[test]
    fn a_reset_is_told_only_after_what_precedes_it_was_written() {
        let mut player = player(vec![bytes("a"), WireStep::Reset]);
        let mut told = std::pin::pin!(Arc::clone(&player.reset).notified_owned());
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(asked(&mut player, 2), ["a", "…"]);
        assert!(told.as_mut().poll(&mut context).is_pending());
        assert_eq!(asked(&mut player, 1), ["…"]);
        assert!(told.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn a_stalled_reply_never_goes_on() {
        let mut player = player(vec![bytes("a"), WireStep::Stall]);
        assert_eq!(asked(&mut player, 4), ["a", "…", "…", "…"]);
    }
}
