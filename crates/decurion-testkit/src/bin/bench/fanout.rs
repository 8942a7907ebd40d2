//! Many sub-agents at once, ours against the floor. Takes the bench, lets 1 to 1,000 agents do five tool rounds
//! each on a loopback model, prints time, work and memory as ratios, how many requests were in flight together
//! and what agents that wait cost; tells whether every goal was met.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use decurion_testkit::proc::Home;
use serde_json::{Value, json};

use super::{Bench, Figures, Server, middle};

/// How many tool rounds each agent does.
const ROUNDS: u32 = 5;
/// How many agents, and how often each run is repeated.
const SIZES: [(u32, usize); 4] = [(1, 9), (8, 5), (100, 5), (1_000, 3)];
/// The size at which work and time are compared with the floor's.
const COMPARED: u32 = 100;
/// So many times the floor's.
const MOST_RATIO: f64 = 1.6;
/// Memory that one more agent may take, in KiB.
const MOST_PER_AGENT: f64 = 150.0;
/// Memory of the largest run, in MiB.
const MOST_MIB: f64 = 250.0;
/// How many agents wait, for how long they are watched, and what they may use meanwhile.
const WAITING: u32 = 100;
const WATCHED: Duration = Duration::from_secs(20);
const MOST_CPU_SHARE: f64 = 0.005;
/// Wake-ups of all of them together while they are watched: one each.
const MOST_WAKES: u64 = WAITING as u64;
/// A run that takes longer hangs.
const HANG: Duration = Duration::from_secs(120);

/// The default would queue the thousand.
const SETTINGS: &str = r#"{"agents":{"maxRunning":2000}}"#;

/// All of it; whether every goal was met.
pub fn run(mut bench: Bench) -> Result<bool> {
    (bench.system_bytes, bench.tools_bytes) = child_head(&bench)?;
    println!("an agent's system prompt {} bytes, tools {} bytes", bench.system_bytes, bench.tools_bytes);
    println!("{:<46} {:>10} {:>10}", "", "ours", "floor");
    let mut met = true;
    let mut memory = Vec::new();
    // Taken away at the end: a file system that has just lost thousands of files is slow to make new ones, and
    // ours makes many more than the floor.
    let mut homes = Vec::new();
    for (agents, repeats) in SIZES {
        let both = sized(&bench, agents, repeats, &mut homes)?;
        met &= show(agents, &both);
        memory.push((agents, both.ours.rss_mib));
    }
    met &= per_agent(&memory);
    met &= in_flight(&bench, COMPARED)?;
    met &= in_flight(&bench, 1_000)?;
    met &= few_handles(&bench)?;
    met &= waiting(&bench)?;
    Ok(met)
}

/// What stands before an agent's conversation, so that the floor sends as much.
fn child_head(bench: &Bench) -> Result<(usize, usize)> {
    let home = Home::new()?;
    let bodies = home.path().join("bodies");
    let server = server(bench, 1, &["--bodies", &bodies.to_string_lossy()])?;
    let status = bench.ours(&home, &server.url, &["--settings", SETTINGS]).stdout(Stdio::null()).status()?;
    ensure!(status.success(), "one agent failed: {status}");
    let body: Value = serde_json::from_slice(&std::fs::read(bodies.join("000002.json"))?)?;
    Ok((body["system"].to_string().len(), body["tools"].to_string().len()))
}

fn server(bench: &Bench, agents: u32, more: &[&str]) -> Result<Server> {
    let (rounds, agents) = (ROUNDS.to_string(), agents.to_string());
    let mut arguments = vec!["--rounds", &rounds, "--agents", &agents, "--no-validate"];
    arguments.extend(more);
    Server::with(&bench.program("fakemodel"), &arguments)
}

struct Both {
    ours: Figures,
    floor: Figures,
}

/// One size, several times, ours and the floor in turn.
fn sized(bench: &Bench, agents: u32, repeats: usize, homes: &mut Vec<Home>) -> Result<Both> {
    let server = server(bench, agents, &[])?;
    let (rounds, count) = ((ROUNDS + 1).to_string(), agents.to_string());
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        let home = Home::new()?;
        let transcript = home.path().join("floor.jsonl");
        let path = transcript.to_string_lossy();
        let extra = ["--rounds", &rounds, "--agents", &count, "--transcript", &path];
        floor.push(bench.measure(&home, &bench.floor(&home, &server.url, "agents", &extra))?);
        ours.push(bench.measure(&home, &bench.ours(&home, &server.url, &["--settings", SETTINGS]))?);
        homes.push(home);
    }
    Ok(Both { ours: middle(&ours), floor: middle(&floor) })
}

/// Prints one size; whether its goals were met.
fn show(agents: u32, both: &Both) -> bool {
    let compared = agents == COMPARED;
    let mut met = true;
    for (what, unit, ours, floor, ratio) in [
        ("wall", "ms", both.ours.wall_ms, both.floor.wall_ms, compared),
        ("CPU", "ms", both.ours.cpu_ms, both.floor.cpu_ms, compared),
        ("peak RSS", "MiB", both.ours.rss_mib, both.floor.rss_mib, false),
    ] {
        let times = ours / floor;
        let largest = what == "peak RSS" && agents == 1_000;
        let verdict = match (ratio, largest) {
            (true, _) => verdict(&format!("goal ≤ {MOST_RATIO}×"), times <= MOST_RATIO, &mut met),
            (false, true) => verdict(&format!("goal ≤ {MOST_MIB} MiB"), ours <= MOST_MIB, &mut met),
            (false, false) => String::new(),
        };
        let what = format!("{agents} agents × {ROUNDS} rounds, {what}");
        println!("{what:<46} {ours:>10.2} {floor:>10.2} {unit:<5} {times:>6.2}×  {verdict}");
    }
    met
}

fn verdict(goal: &str, holds: bool, met: &mut bool) -> String {
    *met &= holds;
    format!("{goal}  {}", if holds { "met" } else { "MISSED" })
}

/// What one more agent takes, between each two sizes.
fn per_agent(memory: &[(u32, f64)]) -> bool {
    let mut met = true;
    for pair in memory.windows(2) {
        let [(few, less), (many, more)] = pair else { continue };
        let each = (more - less) * 1024.0 / f64::from(many - few);
        // A handful of agents share one page or another; the goal is about many.
        let verdict = if *many >= COMPARED {
            verdict(&format!("goal ≤ {MOST_PER_AGENT} KiB"), each <= MOST_PER_AGENT, &mut met)
        } else {
            String::new()
        };
        println!(
            "{:<46} {each:>10.1} {:>10} KiB            {verdict}",
            format!("RSS per agent, {few} to {many}"),
            ""
        );
    }
    met
}

/// Whether the model sees all agents at once: their first requests are held until all of them wait.
fn in_flight(bench: &Bench, agents: u32) -> Result<bool> {
    let gate = agents.to_string();
    let server = server(bench, agents, &["--gate", &gate])?;
    let home = Home::new()?;
    let ours = bench.ours(&home, &server.url, &["--settings", SETTINGS]);
    // A gate that never opens is a hang.
    let limited = wrapped(&ours, &home, "timeout", &[&HANG.as_secs().to_string()]);
    let figures = bench.measure(&home, &limited);
    let peak = peak(&server.url)?["peak"].as_u64().unwrap_or_default();
    let mut met = true;
    let small = figures.as_ref().is_ok_and(|figures| figures.rss_mib <= MOST_MIB);
    let goal = format!("goal {agents}, ≤ {MOST_MIB} MiB");
    let verdict = verdict(&goal, small && peak >= u64::from(agents), &mut met);
    let rss =
        figures.map_or_else(|error| format!("{error:#}"), |figures| format!("{:.1} MiB", figures.rss_mib));
    println!(
        "{:<46} {peak:>10} {:>10} {rss:<16} {verdict}",
        format!("requests in flight, {agents} agents"),
        ""
    );
    Ok(met)
}

/// A command started by another.
fn wrapped(command: &Command, home: &Home, by: &str, arguments: &[&str]) -> Command {
    let mut wrapped = Command::new(by);
    wrapped.args(arguments).arg(command.get_program()).args(command.get_args());
    super::surround(&mut wrapped, home);
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            wrapped.env(name, value);
        }
    }
    wrapped
}

/// A thousand agents with a thousand file handles.
fn few_handles(bench: &Bench) -> Result<bool> {
    let server = server(bench, 1_000, &[])?;
    let home = Home::new()?;
    let ours = bench.ours(&home, &server.url, &["--settings", SETTINGS]);
    let command = wrapped(&ours, &home, "/bin/bash", &["-c", "ulimit -n 1024; exec \"$0\" \"$@\""]);
    let figures = bench.measure(&home, &command);
    let mut met = true;
    let holds = figures.as_ref().is_ok_and(|figures| figures.rss_mib <= MOST_MIB);
    let verdict = verdict("goal: all complete", holds, &mut met);
    let shown = match &figures {
        Ok(figures) => format!("{:.0} ms, {:.1} MiB", figures.wall_ms, figures.rss_mib),
        Err(error) => format!("{error:#}"),
    };
    println!("{:<46} {shown}  {verdict}", "1000 agents with `ulimit -n 1024`");
    Ok(met)
}

/// What agents cost whose model says nothing.
fn waiting(bench: &Bench) -> Result<bool> {
    let home = Home::new()?;
    let script = home.path().join("silent.script");
    std::fs::write(&script, silent(WAITING))?;
    let arguments = ["--script", &script.to_string_lossy(), "--no-validate"];
    let server = Server::with(&bench.program("fakemodel"), &arguments)?;
    let mut child =
        bench.ours(&home, &server.url, &["--settings", SETTINGS]).stdout(Stdio::null()).spawn()?;
    let watched = wait_for_active(&server.url, WAITING).and_then(|()| {
        // What began them has had its time to settle.
        std::thread::sleep(Duration::from_secs(2));
        let before = Scheduled::of(child.id())?;
        std::thread::sleep(WATCHED);
        Ok(Scheduled::of(child.id())?.since(&before))
    });
    let _ = child.kill();
    child.wait()?;
    let used = watched?;
    let share = used.ran.as_secs_f64() / WATCHED.as_secs_f64();
    let mut met = true;
    let cpu = verdict(&format!("goal < {} %", MOST_CPU_SHARE * 100.0), share < MOST_CPU_SHARE, &mut met);
    let wakes = verdict(&format!("goal ≤ {MOST_WAKES}"), used.wakes() <= MOST_WAKES, &mut met);
    let what = format!("{WAITING} agents waiting for {} s", WATCHED.as_secs());
    println!("{:<46} {:>10.3} {:>10} % of a core    {cpu}", format!("{what}, CPU"), share * 100.0, "");
    println!("{:<46} {:>10} {:>10}                  {wakes}", format!("{what}, wake-ups"), used.wakes(), "");
    println!("    by thread: {}", json!(used.threads));
    Ok(met)
}

/// The root starts agents and rests; nobody answers them.
fn silent(agents: u32) -> String {
    let call = |number: u32| {
        let input = json!({"description": format!("worker {number}"), "prompt": format!("wait {number}"),
            "subagent_type": "general-purpose", "run_in_background": true});
        format!("  call Agent {input}\n")
    };
    let calls: String = (1..=agents).map(call).collect();
    format!("when agent=main turn=1\n{calls}when agent=main\n  say \"started\"\nwhen\n  stall\n")
}

fn wait_for_active(url: &str, count: u32) -> Result<()> {
    let begun = Instant::now();
    while peak(url)?["active"].as_u64().unwrap_or_default() < u64::from(count) {
        ensure!(begun.elapsed() < HANG, "the agents did not all begin: {}", peak(url)?);
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// How often the threads of a process were woken, and how long they ran.
struct Scheduled {
    threads: BTreeMap<String, u64>,
    ran: Duration,
}

impl Scheduled {
    fn of(pid: u32) -> Result<Self> {
        let mut found = Self { threads: BTreeMap::new(), ran: Duration::ZERO };
        for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let folder = entry?.path();
            let name = std::fs::read_to_string(folder.join("comm"))?.trim().to_owned();
            *found.threads.entry(name).or_default() += switches(&folder)?;
            let ran = std::fs::read_to_string(folder.join("schedstat"))?;
            let ran: u64 = ran.split_whitespace().next().context("no time")?.parse()?;
            found.ran += Duration::from_nanos(ran);
        }
        Ok(found)
    }

    fn since(mut self, before: &Self) -> Self {
        for (name, count) in &mut self.threads {
            *count = count.saturating_sub(before.threads.get(name).copied().unwrap_or_default());
        }
        self.ran = self.ran.saturating_sub(before.ran);
        self
    }

    fn wakes(&self) -> u64 {
        self.threads.values().sum()
    }
}

/// A thread gives up the processor of its own will when it waits, and is woken for that once.
fn switches(folder: &Path) -> Result<u64> {
    let status = std::fs::read_to_string(folder.join("status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(line.context("no switches are counted")?.trim().parse()?)
}

/// What the model says about its load.
fn peak(url: &str) -> Result<Value> {
    let host = url.strip_prefix("http://").context("not an address")?;
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream
        .write_all(format!("GET /peak HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    match text.split_once("\r\n\r\n") {
        Some((_, body)) => Ok(serde_json::from_str(body)?),
        None => bail!("no answer of the model: {text}"),
    }
}
