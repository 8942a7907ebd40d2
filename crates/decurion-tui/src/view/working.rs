//! The live line: shows that work continues. Takes the main agent and the time; gives what it is doing, for how long,
//! what it has written and cost in this turn, and the key that stops it.

use std::time::Duration;

use decurion_protocol::view::{SessionView, Worker, Writing};
use decurion_protocol::{Attention, WaitReason};
use jiff::Timestamp;
use ratatui_core::text::{Line, Span};

use super::agents::{duration, money, tokens, waiting};
use crate::text::{cut, one_line, width};
use crate::theme::Theme;

/// One turn of the spinner.
const SPINNER: [&str; 8] = ["⣾", "⣽", "⣻", "⢿", "⡿", "⣟", "⣯", "⣷"];
/// How long each of its signs is shown.
pub const SPINNER_PACE: Duration = Duration::from_millis(250);
/// After so long without a sign of life from the provider, the line says so.
const SILENCE_MS: u64 = 10_000;

/// How the line is shown.
#[derive(Clone, Copy, Debug)]
pub struct Working<'a> {
    pub theme: &'a Theme,
    pub columns: usize,
    pub now: Timestamp,
    /// How many tokens were written by then.
    pub written: u64,
    /// Whether nothing is to move but the seconds.
    pub is_still: bool,
}

/// The moment from which the line is as it is at this one: it changes no more often than the spinner turns, however fast
/// pieces of a reply come.
pub fn moment(now: Timestamp) -> Timestamp {
    let pace = i64::try_from(SPINNER_PACE.as_millis()).unwrap_or(1);
    let ms = now.as_millisecond();
    Timestamp::from_millisecond(ms - ms.rem_euclid(pace)).unwrap_or(now)
}

impl Working<'_> {
    /// The line. What matters least gives way in a narrow terminal: cost, then tokens, then the key.
    pub fn line(&self, view: &SessionView) -> Line<'static> {
        let worker = &view.root;
        let silence = self.silence(worker);
        let mark = if self.is_still { "◌" } else { self.spinner() };
        let seconds = worker.began.map(|began| duration(self.since(began)));
        let words = format!("{mark} {}", activity(view));
        let told = silence.map(|ms| format!("no answer for {}", duration(ms)));
        // In steps, so that the line does not change with every piece of a reply.
        let written = self.written / 10 * 10;
        let facts = [
            (0, told.or(seconds)),
            (1, Some("esc to interrupt".to_owned())),
            (2, (written > 0).then(|| format!("↓ {}", tokens(written)))),
            (3, (worker.run_cost().0 > 0).then(|| money(worker.run_cost(), worker.cost_is_bound))),
        ];
        let mut shown: Vec<(usize, String)> =
            facts.into_iter().filter_map(|(rank, fact)| Some((rank, fact?))).collect();
        let wide = |shown: &[(usize, String)]| shown.iter().map(|(_, fact)| width(fact) + 3).sum::<usize>();
        while !shown.is_empty() && width(&words) + wide(&shown) > self.columns {
            shown.pop();
        }
        // The key stands last.
        shown.sort_by_key(|(rank, _)| if *rank == 1 { usize::MAX } else { *rank });
        let style = if silence.is_some() { self.theme.warning } else { self.theme.accent };
        let mut spans = vec![Span::styled(cut(&words, self.columns).into_owned(), style)];
        let facts = shown.into_iter().map(|(_, fact)| format!(" · {fact}"));
        spans.push(Span::styled(facts.collect::<String>(), self.theme.faint));
        Line::from(spans)
    }

    /// How long the provider has said nothing, if that is long.
    fn silence(&self, worker: &Worker) -> Option<u64> {
        // A late client has not seen that a request was sent.
        let waits = matches!(worker.waits, None | Some(WaitReason::Model)) && worker.calls().next().is_none();
        let waits_for_provider = worker.writes.is_some() || waits;
        let silence = self.since(worker.heard.filter(|_| waits_for_provider)?);
        (silence >= SILENCE_MS).then_some(silence)
    }

    fn since(&self, moment: Timestamp) -> u64 {
        let ms = self.now.as_millisecond().saturating_sub(moment.as_millisecond());
        u64::try_from(ms).unwrap_or(0)
    }

    fn spinner(&self) -> &'static str {
        let ms = u128::try_from(self.now.as_millisecond()).unwrap_or(0);
        let turn = ms / SPINNER_PACE.as_millis() % SPINNER.len() as u128;
        usize::try_from(turn).map_or(SPINNER[0], |turn| SPINNER[turn])
    }
}

/// What the main agent is doing.
fn activity(view: &SessionView) -> String {
    let worker = &view.root;
    if let Some(reason) = worker.waits.as_ref().filter(|reason| **reason != WaitReason::Model) {
        return waiting(reason);
    }
    let plural =
        |count: usize, one: &str| if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") };
    match (worker.writes, worker.calls().count(), agents_waited_for(view)) {
        (Some(Writing::Thought), ..) => "Thinking…".to_owned(),
        (Some(Writing::Text), ..) => "Writing…".to_owned(),
        (Some(Writing::Call), ..) => "Preparing a tool call…".to_owned(),
        (None, 0, _) => match &worker.model {
            Some(model) => format!("Waiting for {}…", one_line(model.rsplit('/').next().unwrap_or(model))),
            None => "Waiting for the model…".to_owned(),
        },
        (None, calls, agents) if agents >= calls => format!("Waiting for {}…", plural(agents, "agent")),
        (None, calls, _) => format!("Running {}…", plural(calls, "tool")),
    }
}

fn agents_waited_for(view: &SessionView) -> usize {
    let tasks = view.tasks().iter().filter(|task| task.is_agent() && task.record.parent.is_none());
    tasks.filter(|task| task.state.attention() == Some(Attention::Foreground)).count()
}
