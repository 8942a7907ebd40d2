//! Ours against the floor, in one run. Takes the release binaries beside it, plays the same conversations
//! with both against a loopback model, prints every figure as a ratio, and fails where a goal is missed.
//! With the argument `fanout`: many agents at once; with `hosted`: turns through the protocol for programs; with
//! `frame`: what the terminal costs; with `sandbox`: what the sandbox costs a command.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)] // a bench starts programs and prints

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use decurion_protocol::{
    Block, CallId, Envelope, Event, LineId, Message, MessageMeta, Origin, RunId, SessionId, SessionInfo,
    ToolOutput,
};
use decurion_store::{Journal as _, Layout, SessionWriter};
use decurion_testkit::proc::Home;
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

#[path = "bench/fanout.rs"]
mod fanout;
#[path = "bench/frame.rs"]
mod frame;
#[path = "bench/hosted.rs"]
mod hosted;
#[path = "bench/sandbox.rs"]
mod sandbox;

/// Counts, for those who ask.
#[global_allocator]
static ALLOCATOR: decurion_testkit::sys::Counting = decurion_testkit::sys::Counting;

/// Every wall time is the median of so many.
const REPEATS: usize = 9;
const ROUNDS: u32 = 400;
/// The short one, whose difference to one turn is the cost of a round.
const FEW_ROUNDS: u32 = 100;
/// The size of the session that is resumed.
const SESSION_BYTES: usize = 50 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Bench::new().and_then(|bench| run(&bench)),
        ["fanout"] => Bench::new().and_then(fanout::run),
        ["hosted"] => Bench::new().and_then(|bench| hosted::run(&bench)),
        ["frame"] => programs().and_then(|programs| frame::run(&programs)),
        ["sandbox"] => programs().and_then(|programs| sandbox::run(&programs)),
        _ => Err(anyhow::anyhow!("usage: bench [fanout|hosted|frame|sandbox]")),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One comparison: ours may be so many times the floor.
struct Row {
    what: &'static str,
    unit: &'static str,
    ours: f64,
    floor: f64,
    goal: f64,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours / self.floor
    }

    fn met(&self) -> bool {
        self.ratio() <= self.goal
    }

    fn print(&self) {
        println!(
            "{:<46} {:>10.2} {:>10.2} {:<5} {:>6.2}×  goal ≤ {}×  {}",
            self.what,
            self.ours,
            self.floor,
            self.unit,
            self.ratio(),
            self.goal,
            if self.met() { "met" } else { "MISSED" }
        );
    }
}

fn run(bench: &Bench) -> Result<bool> {
    println!("{:<46} {:>10} {:>10}", "", "ours", "floor");
    let mut met = true;
    let mut show = |row: Row| {
        row.print();
        met &= row.met();
    };
    let one = bench.one_turn()?;
    ensure!(one.floor.rss_mib <= 4.0 && one.floor.cpu_ms <= 4.0, "the floor is too fat to prove anything");
    show(bench.first_request()?);
    show(Row {
        what: "CPU of a one-turn run",
        unit: "ms",
        ours: one.ours.cpu_ms,
        floor: one.floor.cpu_ms,
        goal: 6.0,
    });
    println!(
        "{:<46} {:>10.2} {:>10.2} MiB   goal ≤ 20 MiB (15 wanted)  {}",
        "peak RSS of a one-turn run",
        one.ours.rss_mib,
        one.floor.rss_mib,
        if one.ours.rss_mib <= 20.0 { "met" } else { "MISSED" }
    );
    met &= one.ours.rss_mib <= 20.0;
    let few = bench.rounds(FEW_ROUNDS)?;
    let per = |many: &Figures, one: &Figures| (many.cpu_ms - one.cpu_ms) / f64::from(FEW_ROUNDS);
    let mut show = |row: Row| {
        row.print();
        met &= row.met();
    };
    show(Row {
        what: "CPU per tool round (`true`)",
        unit: "ms",
        ours: per(&few.ours, &one.ours),
        floor: per(&few.floor, &one.floor),
        goal: 1.5,
    });
    let half = bench.rounds(ROUNDS / 2)?;
    let many = bench.rounds(ROUNDS)?;
    show(Row {
        what: "CPU of 400 rounds",
        unit: "ms",
        ours: many.ours.cpu_ms,
        floor: many.floor.cpu_ms,
        goal: 1.6,
    });
    show(Row {
        what: "CPU of rounds 201–400",
        unit: "ms",
        ours: many.ours.cpu_ms - half.ours.cpu_ms,
        floor: many.floor.cpu_ms - half.floor.cpu_ms,
        goal: 1.6,
    });
    let beyond = (many.ours.disk - many.floor.disk) / f64::from(ROUNDS);
    println!(
        "{:<46} {:>10.0} {:>10.0} B     beyond the messages {beyond:.0} B, goal ≤ 2048 B  {}",
        "bytes written to disk per round",
        many.ours.disk / f64::from(ROUNDS),
        many.floor.disk / f64::from(ROUNDS),
        if beyond <= 2048.0 { "met" } else { "MISSED" }
    );
    met &= beyond <= 2048.0;
    let (wall, rss) = bench.resume()?;
    wall.print();
    rss.print();
    Ok(met && wall.met() && rss.met())
}

/// The folder of the binaries.
fn programs() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.parent().context("no folder")?.to_owned())
}

struct Bench {
    programs: PathBuf,
    /// How large our system prompt and tools are, so that the floor sends as much.
    system_bytes: usize,
    tools_bytes: usize,
}

/// What one program took.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    wall_ms: f64,
    cpu_ms: f64,
    rss_mib: f64,
    disk: f64,
}

/// Both programs, the same work.
struct Both {
    ours: Figures,
    floor: Figures,
}

impl Bench {
    fn new() -> Result<Self> {
        let programs = programs()?;
        let mut bench = Self { programs, system_bytes: 0, tools_bytes: 0 };
        let sink = Sink::open()?;
        let home = Home::new()?;
        let mut child = bench.ours(&home, &sink.url(), &[]).stdout(Stdio::null()).spawn()?;
        let body: Value = serde_json::from_slice(&sink.take()?.1)?;
        child.wait()?;
        bench.system_bytes = body["system"].to_string().len();
        bench.tools_bytes = body["tools"].to_string().len();
        println!("system prompt {} bytes, tools {} bytes", bench.system_bytes, bench.tools_bytes);
        Ok(bench)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// Our program, answering `go`.
    fn ours(&self, home: &Home, url: &str, extra: &[&str]) -> Command {
        let mut command = Command::new(self.program("decurion"));
        command
            .args(["-p", "go", "--dangerously-skip-permissions", "--model", "claude-sonnet-4-6"])
            .args(extra);
        surround(&mut command, home);
        command.env("ANTHROPIC_BASE_URL", url).env("ANTHROPIC_API_KEY", "bench").stderr(Stdio::null());
        command
    }

    /// The floor, doing the same.
    fn floor(&self, home: &Home, url: &str, mode: &str, extra: &[&str]) -> Command {
        let mut command = Command::new(self.program("floor"));
        command.args([mode, "--url", url, "--system-bytes", &self.system_bytes.to_string()]);
        command.args(["--tools-bytes", &self.tools_bytes.to_string()]).args(extra);
        surround(&mut command, home);
        command
    }

    fn first_request(&self) -> Result<Row> {
        let sink = Sink::open()?;
        let url = sink.url();
        let time = |command: &dyn Fn(&Home) -> Command| -> Result<f64> {
            let mut all = Vec::new();
            for _ in 0..REPEATS {
                let home = Home::new()?;
                let started = Instant::now();
                let mut child = command(&home).stdout(Stdio::null()).spawn()?;
                let (at, _) = sink.take()?;
                child.wait()?;
                all.push(at.duration_since(started).as_secs_f64() * 1000.0);
            }
            Ok(median(all))
        };
        let floor = time(&|home| self.floor(home, &url, "one-turn", &[]))?;
        let ours = time(&|home| self.ours(home, &url, &[]))?;
        Ok(Row { what: "exec → first request (wall, median of 9)", unit: "ms", ours, floor, goal: 5.0 })
    }

    fn one_turn(&self) -> Result<Both> {
        let server = Server::start(&self.program("fakemodel"), 0)?;
        let mut ours = Vec::new();
        let mut floor = Vec::new();
        for _ in 0..REPEATS {
            let home = Home::new()?;
            floor.push(self.measure(&home, &self.floor(&home, &server.url, "one-turn", &[]))?);
            ours.push(self.measure(&home, &self.ours(&home, &server.url, &[]))?);
        }
        Ok(Both { ours: middle(&ours), floor: middle(&floor) })
    }

    fn rounds(&self, rounds: u32) -> Result<Both> {
        let server = Server::start(&self.program("fakemodel"), rounds)?;
        let count = (rounds + 1).to_string();
        let mut ours = Vec::new();
        let mut floor = Vec::new();
        for _ in 0..3 {
            let home = Home::new()?;
            let transcript = home.path().join("floor.jsonl");
            let extra = ["--rounds", &count, "--transcript", &transcript.to_string_lossy()];
            let mut figures = self.measure(&home, &self.floor(&home, &server.url, "rounds", &extra))?;
            figures.disk = size_of(&transcript)?;
            floor.push(figures);
            let mut figures = self.measure(&home, &self.ours(&home, &server.url, &[]))?;
            figures.disk = size_of(&home.state())?;
            ours.push(figures);
        }
        Ok(Both { ours: middle(&ours), floor: middle(&floor) })
    }

    /// A command with all its descendants, as `measure` counts them.
    fn measure(&self, home: &Home, command: &Command) -> Result<Figures> {
        let out = home.path().join("figures");
        let _ = std::fs::remove_file(&out);
        let mut measure = Command::new(self.program("measure"));
        measure.arg("--out").arg(&out).arg("--quiet").arg("--").arg(command.get_program());
        measure.args(command.get_args());
        surround(&mut measure, home);
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                measure.env(name, value);
            }
        }
        let status = measure.status()?;
        ensure!(status.success(), "{} failed: {status}", command.get_program().display());
        let figures: Value = serde_json::from_str(std::fs::read_to_string(&out)?.trim())?;
        let number = |key: &str| figures[key].as_f64().unwrap_or(f64::NAN);
        Ok(Figures {
            wall_ms: number("wall_ms"),
            cpu_ms: number("cpu_ms"),
            rss_mib: number("max_rss_kib") / 1024.0,
            disk: 0.0,
        })
    }

    /// A session of 50 MB taken up again: the time to its first request, and the memory.
    fn resume(&self) -> Result<(Row, Row)> {
        let home = Home::new()?;
        let (session, transcript) = write_session(&home)?;
        let sink = Sink::open()?;
        let url = sink.url();
        let settings =
            json!({"models": {"catalogue": {"claude-sonnet-4-6": {"window": 100_000_000}}}}).to_string();
        let resume = ["--resume", &session.to_string(), "--settings", &settings];
        let path = transcript.to_string_lossy().into_owned();
        let mut wall = (Vec::new(), Vec::new());
        let mut rss = (Vec::new(), Vec::new());
        for _ in 0..5 {
            let copy = home.state().join("keep");
            copy_tree(&home.state().join("projects"), &copy)?;
            let (time, size) =
                self.timed(&home, &sink, &self.floor(&home, &url, "resume", &["--transcript", &path]))?;
            wall.1.push(time);
            rss.1.push(size);
            let (time, size) = self.timed(&home, &sink, &self.ours(&home, &url, &resume))?;
            wall.0.push(time);
            rss.0.push(size);
            std::fs::remove_dir_all(home.state().join("projects"))?;
            std::fs::rename(&copy, home.state().join("projects"))?;
        }
        let row = |what, unit, (ours, floor): (Vec<f64>, Vec<f64>)| Row {
            what,
            unit,
            ours: median(ours),
            floor: median(floor),
            goal: 2.0,
        };
        Ok((
            row("resume of 50 MB → first request (wall)", "ms", wall),
            row("resume of 50 MB, peak RSS", "MiB", rss),
        ))
    }

    fn timed(&self, home: &Home, sink: &Sink, command: &Command) -> Result<(f64, f64)> {
        let started = Instant::now();
        let waiting = std::thread::scope(|scope| -> Result<(Instant, Figures)> {
            let taken = scope.spawn(|| sink.take());
            let figures = self.measure(home, command)?;
            let (at, _) = taken.join().map_err(|_| anyhow::anyhow!("the sink failed"))??;
            Ok((at, figures))
        })?;
        Ok((waiting.0.duration_since(started).as_secs_f64() * 1000.0, waiting.1.rss_mib))
    }
}

/// A small fixed environment.
fn surround(command: &mut Command, home: &Home) {
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("LANG", "C.UTF-8")
        .env("HOME", home.home())
        .env("DECURION_HOME", home.state())
        .current_dir(home.work())
        .stdin(Stdio::null());
}

/// A loopback model in its own process.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(program: &Path, rounds: u32) -> Result<Self> {
        Self::with(program, &["--rounds", &rounds.to_string(), "--no-validate"])
    }

    fn with(program: &Path, arguments: &[&str]) -> Result<Self> {
        let mut child =
            Command::new(program).args(arguments).arg("--with-parent").stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let out = child.stdout.as_mut().context("no output")?;
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)?;
        let ready: Value = serde_json::from_str(&line)?;
        let url = ready["url"].as_str().context("no url")?.to_owned();
        Ok(Self { child, url })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A listener that takes one request at a time, notes when it was whole, and answers with a closing text.
struct Sink(TcpListener);

impl Sink {
    fn open() -> Result<Self> {
        Ok(Self(TcpListener::bind("127.0.0.1:0")?))
    }

    fn url(&self) -> String {
        self.0.local_addr().map(|address| format!("http://{address}")).unwrap_or_default()
    }

    /// The next request: when it was whole, and its body.
    fn take(&self) -> Result<(Instant, Vec<u8>)> {
        let (mut stream, _) = self.0.accept()?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let (head, mut body) = read_head(&mut stream)?;
        let length: usize = head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .and_then(|(_, value)| value.trim().parse().ok())
            .context("no content length")?;
        let mut rest = vec![0; length.saturating_sub(body.len())];
        stream.read_exact(&mut rest)?;
        let at = Instant::now();
        body.append(&mut rest);
        stream.write_all(REPLY.as_bytes())?;
        Ok((at, body))
    }
}

const REPLY: &str = concat!(
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n",
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"type\":\"message\",",
    "\"role\":\"assistant\",\"model\":\"claude-sonnet-4-6\",\"content\":[],\"stop_reason\":null,",
    "\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,",
    "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,",
    "\"delta\":{\"type\":\"text_delta\",\"text\":\"done\"}}\n\n",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},",
    "\"usage\":{\"output_tokens\":1}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

fn read_head(stream: &mut TcpStream) -> Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut piece = [0; 16 * 1024];
    loop {
        let count = stream.read(&mut piece)?;
        if count == 0 {
            bail!("the request ended early");
        }
        bytes.extend_from_slice(&piece[..count]);
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let body = bytes.split_off(end + 4);
            return Ok((String::from_utf8_lossy(&bytes).into_owned(), body));
        }
    }
}

/// Writes a session of 50 MB in our format, and the same messages for the floor.
fn write_session(home: &Home) -> Result<(SessionId, PathBuf)> {
    let cwd = camino::Utf8PathBuf::from_path_buf(home.work().canonicalize()?)
        .map_err(|_| anyhow::anyhow!("UTF-8"))?;
    let state = camino::Utf8PathBuf::from_path_buf(home.state()).map_err(|_| anyhow::anyhow!("UTF-8"))?;
    let session = SessionId(Uuid::new_v4());
    let info = SessionInfo {
        session,
        cwd: cwd.clone(),
        version: "bench".into(),
        git_branch: None,
        entrypoint: "cli".into(),
        imported_from: None,
        forked_from: None,
    };
    let paths = Layout::new(state).session(&cwd, session);
    let mut writer = SessionWriter::create(&paths, &info, Timestamp::UNIX_EPOCH)?;
    let transcript = home.path().join("messages.jsonl");
    let mut plain = std::io::BufWriter::new(std::fs::File::create(&transcript)?);
    let run = RunId(Uuid::new_v4());
    let line = || LineId(Uuid::new_v4());
    // Without a line of ours alone the file is of another program's shape, and is made anew when it is resumed.
    let event = Event::SessionOpened { info: Box::new(info) };
    writer.append(&[Envelope { seq: 1, at: Timestamp::UNIX_EPOCH, agent: None, run, event }])?;
    let mut seq = 1;
    let mut parent = None;
    let result = "0123456789abcdef \"quoted\"\n".repeat(1100);
    let rounds = SESSION_BYTES / result.len();
    let mut write = |event: Event, message: &Message| -> Result<()> {
        seq += 1;
        let envelope = Envelope { seq, at: Timestamp::UNIX_EPOCH, agent: None, run, event };
        writer.append(std::slice::from_ref(&envelope))?;
        serde_json::to_writer(&mut plain, message)?;
        plain.write_all(b"\n")?;
        Ok(())
    };
    let prompt = Message::user("begin");
    let first = line();
    let event = Event::Message { message: prompt.clone(), lines: vec![first], parent, meta: Box::default() };
    write(event, &prompt)?;
    parent = Some(first);
    for round in 0..rounds {
        let call = CallId(format!("toolu_{round}"));
        let input = json!({"command": format!("cat part-{round}")});
        let asked = Message::assistant(vec![Block::ToolUse { id: call.clone(), name: "Bash".into(), input }]);
        let asked_line = line();
        let meta = MessageMeta { origin: Origin::Model, model: Some("m".into()), ..MessageMeta::default() };
        let event =
            Event::Message { message: asked.clone(), lines: vec![asked_line], parent, meta: Box::new(meta) };
        write(event, &asked)?;
        let answer_line = line();
        let output = ToolOutput::text(result.clone());
        let answered = Message {
            role: decurion_protocol::Role::User,
            blocks: vec![Block::ToolResult {
                id: call.clone(),
                content: output.content.clone(),
                is_error: false,
            }],
        };
        let event = Event::CallEnded {
            call,
            tool: "Bash".into(),
            line: answer_line,
            parent: Some(asked_line),
            output: Box::new(output),
            duration_ms: 1,
        };
        write(event, &answered)?;
        parent = Some(answer_line);
    }
    plain.flush()?;
    Ok((session, transcript))
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn size_of(path: &Path) -> Result<f64> {
    let metadata = std::fs::metadata(path)?;
    if metadata.is_file() {
        #[allow(clippy::cast_precision_loss)] // far below 2^52
        return Ok(metadata.len() as f64);
    }
    let mut sum = 0.0;
    for entry in std::fs::read_dir(path)? {
        sum += size_of(&entry?.path())?;
    }
    Ok(sum)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn middle(all: &[Figures]) -> Figures {
    let of = |field: fn(&Figures) -> f64| median(all.iter().map(field).collect());
    let (wall_ms, cpu_ms) = (of(|it| it.wall_ms), of(|it| it.cpu_ms));
    Figures { wall_ms, cpu_ms, rss_mib: of(|it| it.rss_mib), disk: of(|it| it.disk) }
}
