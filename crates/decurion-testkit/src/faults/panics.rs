//! C3: panics anywhere. Takes an engine whose tools, provider or other parts panic at a chosen point, gives
//! whether only the call or the run failed, the session went on, and its transcript can be taken up again.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use decurion_model::{BoxStream, Dialect, ModelError, ModelEvent, ModelProvider, ModelRequest};
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Event, Intent, Outcome, Start, ToolOutput};
use decurion_tools::{InputError, Surroundings, Tool, ToolContext, ToolSpec};
use futures_util::Stream;
use serde_json::{Value, json};

use super::{Options, Report, Row};
use crate::stage::{Played, Stage};
use crate::validate::Validator;

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![Row { id: "C3", what: "a panic in a tool, a provider, the screen or another part", run: anywhere }]
}

const SCRIPT: &str = r#"
when text=/and then/
  say "The session lives."
when turn=1
  say "First, some calls."
  call Echo {"text": "one"}
  call Trap {"text": "a"}
  call Echo {"text": "two"}
when turn=2
  say "Then an effect."
  call Poke {"text": "three"}
  call Trap {"text": "b"}
when turn=3
  call Trap {"text": "c"}
when
  say "The end."
"#;

/// Where the panic is.
#[derive(Clone, Copy, Debug)]
enum Point {
    /// A tool, before it gives a future.
    ToolCalled(u64),
    /// A tool, at once.
    ToolBegun(u64),
    /// A tool, after it has waited.
    ToolLater(u64),
    /// A tool that says what it would do.
    Intent(u64),
    /// The provider, when it is asked the n-th time.
    Asked(u64),
    /// The provider's n-th event of all.
    Event(u64),
    /// What takes out secrets, the n-th time.
    Redaction(u64),
}

fn points() -> Vec<Point> {
    let some = |count: u64, point: fn(u64) -> Point| (1..=count).map(point);
    some(3, Point::ToolCalled)
        .chain(some(3, Point::ToolBegun))
        .chain(some(3, Point::ToolLater))
        .chain(some(3, Point::Intent))
        .chain(some(4, Point::Asked))
        .chain(some(30, Point::Event))
        .chain(some(4, Point::Redaction))
        .collect()
}

fn anywhere(options: &Options) -> Report {
    let mut report = in_the_engine();
    let inside = report.runs;
    super::screens::everywhere(options, &mut report);
    let figure = format!(
        "{} points in the engine, {} at a terminal: {} ended more than they should, left a terminal or lost a record",
        inside,
        report.runs - inside,
        report.failures.len()
    );
    report.figure(figure)
}

fn in_the_engine() -> Report {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Report::broken("no runtime");
    };
    // Panics are what is tried here; their messages would only hide what is found.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut report = Report::default();
    for point in points() {
        let limit = Duration::from_secs(20);
        let result = runtime.block_on(async { tokio::time::timeout(limit, at(point)).await });
        report.add(format_args!("{point:?}"), result.unwrap_or_else(|_| Err("hangs".into())));
    }
    std::panic::set_hook(hook);
    report
}

async fn at(point: Point) -> Result<(), String> {
    let fuse = Arc::new(Fuse { at: number(point), count: AtomicU64::new(0) });
    let mut stage = Stage::new(SCRIPT);
    stage.tools.push(Arc::new(Trap { spec: spec(), point, fuse: Arc::clone(&fuse) }));
    if let Ok(rule) = decurion_protocol::Rule::parse("Trap", Default::default()) {
        stage.rules.allow.push(rule);
    }
    if matches!(point, Point::Asked(_) | Point::Event(_)) {
        let fuse = Arc::clone(&fuse);
        let asked = matches!(point, Point::Asked(_));
        stage.between = Some(Arc::new(move |inner| {
            Arc::new(Faulty { inner, fuse: Arc::clone(&fuse), asked }) as Arc<dyn ModelProvider>
        }));
    }
    if matches!(point, Point::Redaction(_)) {
        let fuse = Arc::clone(&fuse);
        stage.redact = Arc::new(move |_| {
            fuse.burn();
            None
        });
    }
    let played = stage.play_all(stage.request.clone(), &["begin", "and then"]).await;
    let played = played.map_err(|error| error.to_string())?;
    if !fuse.is_burnt() {
        return Err("the point was not reached".into());
    }
    judge(&played, &stage).await
}

/// The runs ended, the second one well; the session can be taken up, and what it asks is in order.
async fn judge(played: &Played, stage: &Stage) -> Result<(), String> {
    let ends: Vec<&Outcome> = played
        .events
        .iter()
        .filter_map(|one| match &one.event {
            Event::RunEnded { outcome, .. } => Some(outcome),
            _ => None,
        })
        .collect();
    match ends.as_slice() {
        [Outcome::Failed { .. } | Outcome::Completed { .. }, Outcome::Completed { report, .. }]
            if report.contains("lives") => {}
        other => return Err(format!("the runs ended {other:?}")),
    }
    let mut request = stage.request.clone();
    request.start = Start::Resume { id: played.session, at: None };
    let resumed = stage.play_all(request, &["and then"]).await.map_err(|error| error.to_string())?;
    if !matches!(resumed.outcome, Outcome::Completed { .. }) {
        return Err(format!("taken up again, it ended {:?}", resumed.outcome));
    }
    let validator = Validator::default();
    let headers = headers();
    for (at, body) in stage.requests().iter().enumerate() {
        let body: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let checked = validator.check_anthropic(&headers, &body);
        checked.map_err(|error| format!("request {at} would be refused: {error}"))?;
    }
    Ok(())
}

fn headers() -> hyper::HeaderMap {
    let value = hyper::header::HeaderValue::from_static;
    let mut headers = hyper::HeaderMap::new();
    headers.insert("x-api-key", value(crate::proc::canary::PROVIDER_KEY));
    headers.insert("anthropic-version", value("2023-06-01"));
    headers.insert("content-type", value("application/json"));
    headers
}

fn number(point: Point) -> u64 {
    match point {
        Point::ToolCalled(nth)
        | Point::ToolBegun(nth)
        | Point::ToolLater(nth)
        | Point::Intent(nth)
        | Point::Asked(nth)
        | Point::Event(nth)
        | Point::Redaction(nth) => nth,
    }
}

/// Panics the n-th time, and never again.
struct Fuse {
    at: u64,
    count: AtomicU64,
}

impl Fuse {
    fn burn(&self) {
        let nth = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(nth != self.at, "as asked");
    }

    fn is_burnt(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.at
    }
}

fn spec() -> ToolSpec {
    ToolSpec {
        name: "Trap".to_owned(),
        description: "Panics when its time has come.".to_owned(),
        input_schema: json!({
            "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"],
        }),
    }
}

struct Trap {
    spec: ToolSpec,
    point: Point,
    fuse: Arc<Fuse>,
}

impl Tool for Trap {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, _input: &Value, _around: &Surroundings) -> Result<Intent, InputError> {
        if matches!(self.point, Point::Intent(_)) {
            self.fuse.burn();
        }
        Ok(Intent::titled("Trap"))
    }

    fn run<'a>(&'a self, _cx: &'a ToolContext, _input: Value) -> BoxFuture<'a, ToolOutput> {
        if matches!(self.point, Point::ToolCalled(_)) {
            self.fuse.burn();
        }
        Box::pin(async move {
            if matches!(self.point, Point::ToolBegun(_)) {
                self.fuse.burn();
            }
            tokio::task::yield_now().await;
            if matches!(self.point, Point::ToolLater(_)) {
                self.fuse.burn();
            }
            ToolOutput::text("nothing happened")
        })
    }
}

/// A provider that panics when it is asked, or while it answers.
struct Faulty {
    inner: Arc<dyn ModelProvider>,
    fuse: Arc<Fuse>,
    asked: bool,
}

impl ModelProvider for Faulty {
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        if self.asked {
            self.fuse.burn();
            return self.inner.stream(request);
        }
        Box::pin(FaultyStream { inner: self.inner.stream(request), fuse: Arc::clone(&self.fuse) })
    }
}

struct FaultyStream {
    inner: BoxStream<'static, Result<ModelEvent, ModelError>>,
    fuse: Arc<Fuse>,
}

impl Stream for FaultyStream {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.inner.as_mut().poll_next(cx);
        if polled.is_ready() {
            self.fuse.burn();
        }
        polled
    }
}
