//! A2: a child that dies. Takes children whose tool or provider panics, whose model fails, whose shell's guard is
//! killed; gives whether the parent was told of each exactly once, and why.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use decurion_model::{BoxStream, Dialect, ModelError, ModelEvent, ModelProvider, ModelRequest};
use decurion_protocol::{Event, Mode, Outcome};
use futures_util::Stream;
use uuid::Uuid;

use super::super::ledger::Ledger;
use super::super::stand::{HANG, Stand, ended_well};
use super::super::{Options, Report};
use super::{agent_call, audited, general_call, kill_guards, played, stage};
use crate::proc::lines_of;
use crate::stage::Plain;

/// How a child dies.
#[derive(Clone, Debug)]
enum Cause {
    /// Its provider panics after so many events of a reply.
    ProviderPanics(usize),
    /// Its tool panics, which ends the call and not the child.
    ToolPanics,
    /// Its model answers so, every time.
    ModelFails(&'static str),
}

/// What a model says that fails for good.
const FAILURES: [&str; 12] = [
    "fail 400",
    "fail 401",
    "fail 403",
    "fail 404",
    "fail 413",
    "fail 422",
    "fail 500",
    "fail 502 should-retry=false",
    "reset",
    "close",
    "malformed json",
    "stall",
];

pub fn row(options: &Options) -> Report {
    let mut causes: Vec<Cause> = (0..=24).map(Cause::ProviderPanics).collect();
    causes.extend(FAILURES.map(Cause::ModelFails));
    causes.extend(std::iter::repeat_n(Cause::ToolPanics, 8));
    // Panics are what is tried here; their messages would only hide what is found.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut report = Report::default();
    for cause in &causes {
        for behind in [false, true] {
            let name = format!("{cause:?}, {}", if behind { "in the background" } else { "waited for" });
            report.add(name, dies(cause, behind));
        }
    }
    std::panic::set_hook(hook);
    for nth in 0..options.count(2, 10) {
        report.add(
            format_args!("the guard of its shell is killed, try {nth}"),
            guard_killed(options, nth % 2 == 0),
        );
    }
    let held = report.runs - report.failures.len() as u64;
    let figure = format!("{held} of {} told once, with the cause and where to look", report.runs);
    report.figure(figure)
}

/// One child in simulated time.
fn dies(cause: &Cause, behind: bool) -> Result<(), String> {
    let reply = match cause {
        Cause::ProviderPanics(_) => "  say chunk=1 \"a reply of some length\"\n",
        Cause::ToolPanics => "  call Read {\"text\": \"panic\"}\n",
        Cause::ModelFails(how) => &format!("  {how}\n"),
    };
    let turn = if matches!(cause, Cause::ToolPanics) { " turn=1" } else { "" };
    let script = format!(
        "when agent=worker{turn}\n{reply}when agent=worker\n  say \"went on\"\nwhen turn=1\n{}when\n  say \"over\"\n",
        agent_call("die", behind)
    );
    let mut stage = stage(&script);
    stage.tools.push(Arc::new(Plain::named("Read")));
    stage.request.mode = Some(Mode::BypassPermissions);
    if let Cause::ProviderPanics(after) = *cause {
        stage.between =
            Some(Arc::new(move |inner| Arc::new(Deadly { inner, after }) as Arc<dyn ModelProvider>));
    }
    let played = played(&stage, "go")?;
    if !matches!(played.outcome, Outcome::Completed { .. }) {
        return Err(format!("the parent ended {:?}", played.outcome));
    }
    let ledger = Ledger::of(played.events.iter().map(AsRef::as_ref));
    if let Some(problem) = ledger.problems().first() {
        return Err(problem.clone());
    }
    if ledger.endings() != 1 {
        return Err(format!("{} endings", ledger.endings()));
    }
    let fits = ledger.outcomes().all(|outcome| match (cause, outcome) {
        (Cause::ToolPanics, Outcome::Completed { .. })
        | (Cause::ModelFails("stall"), Outcome::Stalled { .. }) => true,
        (Cause::ToolPanics, _) => false,
        (_, Outcome::Failed { error }) => !error.is_empty(),
        _ => false,
    });
    if !fits {
        return Err(format!("the child ended {:?}", ledger.outcomes().collect::<Vec<_>>()));
    }
    if matches!(cause, Cause::ToolPanics) { Ok(()) } else { told_where(&played.events) }
}

/// What the parent read of it names the file to look into.
fn told_where(events: &[Arc<decurion_protocol::Envelope>]) -> Result<(), String> {
    let file = events.iter().find_map(|envelope| match &envelope.event {
        Event::TaskOpened { record } => Some(record.output_file.to_string()),
        _ => None,
    });
    let file = file.ok_or("no task was begun")?;
    let texts =
        events.iter().filter(|envelope| envelope.agent.is_none()).map(|envelope| match &envelope.event {
            Event::CallEnded { output, .. } => output.content.text(),
            Event::Message { message, meta, .. } if !meta.delivers.is_empty() => message.text(),
            _ => String::new(),
        });
    let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
    if texts.iter().any(|text| text.contains(&file)) {
        return Ok(());
    }
    Err(format!("the parent is not told where the transcript is: {texts:?}"))
}

/// A provider that panics while it answers an agent below the root.
struct Deadly {
    inner: Arc<dyn ModelProvider>,
    after: usize,
}

impl ModelProvider for Deadly {
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let is_child = request.tag.path.contains('/');
        assert!(!is_child || self.after > 0, "as asked");
        let inner = self.inner.stream(request);
        if is_child { Box::pin(Dying { inner, left: self.after }) } else { inner }
    }
}

struct Dying {
    inner: BoxStream<'static, Result<ModelEvent, ModelError>>,
    left: usize,
}

impl Stream for Dying {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.inner.as_mut().poll_next(cx);
        if polled.is_ready() {
            self.left = self.left.saturating_sub(1);
            assert!(self.left > 0, "as asked");
        }
        polled
    }
}

/// The binary: the guard that holds a child's command goes; the child hears of it and its parent of the child.
fn guard_killed(options: &Options, behind: bool) -> Result<(), String> {
    let script = format!(
        "when agent=main turn=1\n{}when agent=main\n  say \"over\"\nwhen turn=1\n  \
         call Bash command=\"echo up >> $EFFECTS; sleep 600\"\nwhen result=/./s\n  say \"went on\"\nwhen\n  say \"?\"\n",
        general_call("run it", behind)
    );
    let stand = Stand::new(options, |_| script).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4();
    let running = stand.run_as(&id.to_string(), "go").start().map_err(|error| error.to_string())?;
    let begun = Instant::now();
    while lines_of(&stand.home.effects()).is_empty() && begun.elapsed() < HANG {
        std::thread::sleep(Duration::from_millis(2));
    }
    if kill_guards(&stand) == 0 {
        return Err("there is no guard to kill".into());
    }
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    match audited(&stand, id)?.as_slice() {
        [Outcome::Completed { .. }] => Ok(()),
        other => Err(format!("the children ended {other:?}")),
    }
}
