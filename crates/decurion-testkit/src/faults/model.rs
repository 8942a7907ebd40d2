//! Faults of the model: limits, connections, resets, stalls, nonsense, and histories that nobody would take.
//! Takes options, gives one report per row; what needs minutes is played in simulated time.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use decurion_model::script::Script;
use decurion_model::script_provider::ScriptedProvider;
use decurion_model::{
    BoxStream, Dialect, Gateway, GatewayEvent, GatewaySettings, Head, ModelError, ModelEvent, ModelProvider,
    ModelRequest, RequestTag,
};
use decurion_protocol::{Block, Message, WaitReason};
use futures_util::StreamExt as _;
use rustix::process::Signal;
use serde_json::Value;

use super::stand::{GONE, HANG, Stand};
use super::{Options, Report, Row, in_parallel};

mod history;
mod malformed;
mod shapes;

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![
        Row { id: "M1", what: "a hundred agents in a storm of refusals", run: storms },
        Row { id: "M2", what: "no way to the provider", run: unreachable },
        Row { id: "M3", what: "a reset after each event of a stream", run: resets },
        Row { id: "M4", what: "a reply that stops coming", run: stalls },
        Row { id: "M5", what: "streams that make no sense", run: malformed::row },
        Row { id: "M6", what: "replies of unusual shape", run: shapes::row },
        Row { id: "M7", what: "histories with records missing", run: history::row },
    ]
}

/// Runs a future in simulated time: waits take none, and end in the order they would.
pub(super) fn simulated<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    Ok(runtime.block_on(future))
}

/// A scripted provider that counts what it is asked.
struct Counting {
    script: ScriptedProvider,
    requests: AtomicUsize,
}

impl Counting {
    fn new(script: &str) -> Result<Arc<Self>, String> {
        let script = Script::parse(script).map_err(|error| error.to_string())?;
        Ok(Arc::new(Self { script: ScriptedProvider::new(script), requests: AtomicUsize::new(0) }))
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    fn gateway(self: &Arc<Self>) -> Gateway {
        Gateway::new(Arc::clone(self) as Arc<dyn ModelProvider>, GatewaySettings::default())
    }
}

impl ModelProvider for Counting {
    fn dialect(&self) -> Dialect {
        self.script.dialect()
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.script.stream(request)
    }
}

fn request(dialect: Dialect, path: &str, text: &str) -> ModelRequest {
    let head = Head { model: "a-model".into(), max_output_tokens: 1_000, ..Head::default() };
    let mut request =
        ModelRequest::new(Arc::new(dialect.head(&head)), vec![dialect.message(&Message::user(text))]);
    request.tag = RequestTag { path: path.to_owned(), ..RequestTag::default() };
    request
}

/// What a gateway gave: the blocks of the reply that stands in the end, or why there is none.
async fn ask(gateway: &Gateway, request: ModelRequest) -> Result<Vec<Block>, ModelError> {
    let mut stream = gateway.stream(request);
    let mut blocks = Vec::new();
    while let Some(item) = stream.next().await {
        match item? {
            GatewayEvent::Discarded { .. } => blocks.clear(),
            GatewayEvent::Model(ModelEvent::Block { block, .. }) => blocks.push(block),
            _ => {}
        }
    }
    Ok(blocks)
}

// ---- M1 ----

const AGENTS: usize = 100;

fn storms(options: &Options) -> Report {
    let mut report = Report::default();
    let mut most = 0;
    for failure in [
        "fail 429",
        "fail 429 retry-after=1",
        "fail 429 retry-after=20",
        "fail 529",
        "error overloaded_error",
    ] {
        match simulated(storm(failure)).and_then(|result| result) {
            Ok(requests) => {
                most = most.max(requests);
                let fits = requests <= 3 * AGENTS;
                report.add(
                    failure,
                    fits.then_some(()).ok_or(format!("{requests} requests for {AGENTS} agents")),
                );
            }
            Err(problem) => report.add(failure, Err(problem)),
        }
    }
    let held = report.runs - report.failures.len() as u64;
    let refused = refused_binary(options);
    let waited = refused.as_ref().copied().unwrap_or_default();
    report.add("the binary, 429 and 529", refused.map(drop));
    report.figure(format!(
        "{held} of 5 storms of 60 s end well for all of {AGENTS} agents, at most {most} requests ({AGENTS} needed); \
         the binary waited {:.2} s after a 429 that said 1",
        waited.as_secs_f64()
    ))
}

/// Sends the agents through a minute of refusals; gives how many requests that took.
async fn storm(failure: &str) -> Result<usize, String> {
    let script = format!("when within=60s\n {failure}\nwhen\n delay 3s\n say \"done\"");
    let provider = Counting::new(&script)?;
    let gateway = provider.gateway();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..AGENTS {
        let gateway = gateway.clone();
        tasks.spawn(async move {
            let request = request(Dialect::Anthropic, &format!("main/a{number}"), &format!("task {number}"));
            ask(&gateway, request).await
        });
    }
    while let Some(result) = tasks.join_next().await {
        match result.map_err(|error| format!("an agent died: {error}"))? {
            Ok(blocks) if blocks == [Block::text("done")] => {}
            Ok(blocks) => return Err(format!("another answer: {blocks:?}")),
            Err(error) => return Err(format!("an agent gave up: {error}")),
        }
    }
    Ok(provider.requests())
}

/// The binary against a server that refuses twice; gives how long it waited after the first refusal.
fn refused_binary(options: &Options) -> Result<Duration, String> {
    let script = "when try=1\n fail 429 retry-after=1\nwhen try=2\n fail 529\nwhen\n say \"done\"";
    let stand = Stand::new(options, |_| script.to_owned()).map_err(|error| error.to_string())?;
    let run = stand.run("go").run(HANG).map_err(|error| error.to_string())?;
    let requests = stand.model.requests();
    let retries = run.lines.iter().filter(|line| line.contains("\"api_retry\"")).count();
    if run.ending.code() != 0 || requests.len() != 3 || retries != 2 {
        return Err(format!("{} requests, {retries} retries shown, {run:?}", requests.len()));
    }
    let waited = requests[1].at.saturating_sub(requests[0].at);
    if waited < Duration::from_secs(1) { Err(format!("asked again after {waited:?}")) } else { Ok(waited) }
}

// ---- M2 ----

/// A way that leads nowhere: its name, what must be said of it, the address, further variables.
type Way = (&'static str, &'static str, String, Vec<(&'static str, String)>);

fn unreachable(options: &Options) -> Report {
    let mut report = Report::default();
    let Some(closed) = closed_port() else { return Report::broken("no free port") };
    let plain = match Stand::new(options, |_| "when\n say \"x\"".into()) {
        Ok(stand) => stand,
        Err(error) => return Report::broken(error),
    };
    let proxy = vec![("HTTPS_PROXY", closed.clone()), ("NO_PROXY", String::new())];
    let ways: Vec<Way> = vec![
        ("refused", "cannot connect", closed.clone(), Vec::new()),
        ("no such name", "cannot resolve", "http://no-such-host.invalid".into(), Vec::new()),
        ("no TLS", "no secure connection", plain.model.url().replace("http://", "https://"), Vec::new()),
        ("proxy", "the proxy", "https://provider.example".into(), proxy),
    ];
    let mut said = Vec::new();
    let mut longest = Duration::ZERO;
    for (name, needle, url, variables) in &ways {
        match cancelled(options, url, variables) {
            Ok((error, time)) => {
                longest = longest.max(time);
                let fits = error.contains(needle);
                report.add(name, fits.then_some(()).ok_or(format!("{needle:?} is not in {error:?}")));
                said.push(error);
            }
            Err(problem) => report.add(name, Err(problem)),
        }
    }
    let kinds: std::collections::HashSet<&str> =
        said.iter().map(|text| text.split(':').next().unwrap_or_default()).collect();
    let distinct = kinds.len() == ways.len();
    report.add("distinct messages", distinct.then_some(()).ok_or(format!("{said:?}")));
    report.figure(format!(
        "{} causes, {} messages; cancelled while trying again: at most {} ms until the end, exit 130",
        ways.len(),
        kinds.len(),
        longest.as_millis()
    ))
}

/// A port of this machine where nobody listens.
fn closed_port() -> Option<String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).ok()?;
    listener.local_addr().ok().map(|address| format!("http://{address}"))
}

/// Starts the binary, waits until it says why it tries again, interrupts it: what it said, how long the end took.
fn cancelled(
    options: &Options,
    url: &str,
    variables: &[(&str, String)],
) -> Result<(String, Duration), String> {
    let stand = Stand::new(options, |_| "when\n say \"x\"".into()).map_err(|error| error.to_string())?;
    let mut program = stand.run("go").env("ANTHROPIC_BASE_URL", url);
    for (name, value) in variables {
        program = program.env(name, value);
    }
    let mut running = program.start().map_err(|error| error.to_string())?;
    let Some(line) = running.wait_for_line(HANG, |line| line.contains("\"api_retry\"")) else {
        return Err(format!("it does not try again: {:?}", running.finish(Duration::ZERO)));
    };
    let line: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
    let begun = Instant::now();
    running.signal(Signal::INT).map_err(|error| error.to_string())?;
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    let time = begun.elapsed();
    if run.timed_out || run.ending.code() != 130 {
        return Err(format!("interrupted: {run:?}"));
    }
    stand.wait_until_gone(GONE)?;
    Ok((line["message"].as_str().unwrap_or_default().to_owned(), time))
}

// ---- M3 ----

const CALLS: usize = 6;

fn resets(options: &Options) -> Report {
    let mut report = Report::default();
    let cuts: Vec<usize> = (0..60).collect();
    for (cut, result) in cuts.iter().zip(in_parallel(options.width * 2, &cuts, |cut| reset(options, *cut))) {
        report.add(format!("after {cut} events"), result);
    }
    let recovered = report.runs - report.failures.len() as u64;
    report.figure(format!("{recovered}/60 recover over real sockets, each of their {CALLS} calls run once"))
}

fn reset(options: &Options, cut: usize) -> Result<(), String> {
    let mut reply = format!("  think chunk=2 \"thinking\"\n  say chunk=4 \"{}\"\n", "word ".repeat(30));
    for number in 0..CALLS {
        reply += &format!("  call Bash {{\"command\": \"echo call-{number} >> \\\"$EFFECTS\\\"\"}}\n");
    }
    let script = format!(
        "when turn=1 try=1\n{reply}  reset after {cut} events\nwhen turn=1\n{reply}when turn=2\n  say \"done\"\n"
    );
    let stand = Stand::new(options, |_| script).map_err(|error| error.to_string())?;
    let run = stand.run("go").run(HANG).map_err(|error| error.to_string())?;
    let mut effects = crate::proc::lines_of(&stand.home.effects());
    effects.sort_unstable();
    let wanted: Vec<String> = (0..CALLS).map(|number| format!("call-{number}")).collect();
    let requests = stand.model.requests().len();
    if run.ending.code() != 0 || effects != wanted || requests != 3 || !stand.model.problems().is_empty() {
        let errors = super::stand::brief(&run.errors);
        let problems = stand.model.problems();
        return Err(format!("{requests} requests, {effects:?}, {problems:?}, {:?}, {errors}", run.ending));
    }
    Ok(())
}

// ---- M4 ----

fn stalls(_: &Options) -> Report {
    let mut report = Report::default();
    let mut times = Vec::new();
    for (script, limit) in [
        ("stall", 300),
        ("stall pings", 1_200),
        ("stall empty", 1_200),
        ("say \"a\"\n stall", 300),
        ("say \"a\"\n stall pings every=1s", 1_200),
        ("say \"a\"\n stall empty every=1s", 1_200),
    ] {
        let result = simulated(stall(script)).and_then(|result| result);
        let late = result.as_ref().map(Duration::as_secs_f64).unwrap_or_default();
        times.push(format!("{late:.1}"));
        let fits = |time: Duration| {
            let limit = Duration::from_secs(limit);
            (limit..=limit + Duration::from_secs(1)).contains(&time)
        };
        report.add(
            script.replace('\n', ","),
            result.and_then(|time| {
                fits(time).then_some(()).ok_or(format!("noticed after {time:?}, the limit is {limit} s"))
            }),
        );
    }
    for script in ["stall", "stall pings", "stall empty every=2s"] {
        report.add(format!("{script}, for ever"), simulated(for_ever(script)).and_then(|result| result));
    }
    report.figure(format!(
        "3 shapes, before and within a reply: noticed after {} s (limits 300 without a sign of life, 1200 without content); for ever: given up",
        times.join(", ")
    ))
}

/// How long until a stalled reply is given up; it must then be asked for again and come.
async fn stall(script: &str) -> Result<Duration, String> {
    let provider = Counting::new(&format!("when try=1\n {script}\nwhen\n say \"x\""))?;
    let begun = tokio::time::Instant::now();
    let mut stream = provider.gateway().stream(request(Dialect::Anthropic, "main", "x"));
    let mut noticed = None;
    let mut completed = false;
    while let Some(item) = stream.next().await {
        match item.map_err(|error| error.to_string())? {
            GatewayEvent::Waiting(WaitReason::Retry { .. }) if noticed.is_none() => {
                noticed = Some(begun.elapsed());
            }
            GatewayEvent::Model(ModelEvent::Completed(_)) => completed = true,
            _ => {}
        }
    }
    match (noticed, completed) {
        (Some(time), true) => Ok(time),
        other => Err(format!("{other:?}")),
    }
}

async fn for_ever(script: &str) -> Result<(), String> {
    let provider = Counting::new(&format!("when\n {script}"))?;
    let begun = tokio::time::Instant::now();
    match ask(&provider.gateway(), request(Dialect::Anthropic, "main", "x")).await {
        // All tries together are under way for no longer than a turn may be.
        Err(ModelError::Stalled { .. }) if begun.elapsed() <= Duration::from_mins(31) => Ok(()),
        other => Err(format!("{other:?} after {:?}", begun.elapsed())),
    }
}
