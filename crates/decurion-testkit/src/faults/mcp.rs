//! P1–P3: MCP servers that go wrong, change what they offer, or are wanted by a hundred agents. Takes the
//! scripted server in each of its behaviours, runs the real binary with it, gives what became of the calls, how
//! long the start took, and how many processes there were and are.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::stand::{HANG, Stand, brief, ended_well};
use super::{Options, Report, Row, in_parallel};
use crate::proc::{Finished, MARKER, lines_of, wait_until_gone};

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![
        Row { id: "P1", what: "an MCP server that dies, hangs, floods or lies", run: goes_wrong },
        Row { id: "P2", what: "an MCP server that changes what it offers after approval", run: changes },
        Row { id: "P3", what: "a hundred agents with the same MCP server", run: shared },
    ]
}

/// The settings of a user with these servers, each by its behaviour. Time-outs are short, so that a row is.
fn settings(options: &Options, stand: &Stand, servers: &[(&str, &str)]) -> Result<(), String> {
    let declared: serde_json::Map<String, Value> = servers
        .iter()
        .map(|(name, behaviour)| ((*name).to_owned(), declaration(options, stand, name, behaviour)))
        .collect();
    let state = stand.home.state();
    fs::create_dir_all(&state).map_err(|error| error.to_string())?;
    let text = json!({"mcpServers": declared}).to_string();
    fs::write(state.join("settings.json"), text).map_err(|error| error.to_string())
}

pub(super) fn declaration(options: &Options, stand: &Stand, name: &str, behaviour: &str) -> Value {
    json!({
        "command": options.binary("mcp-scripted"),
        "args": [behaviour],
        "env": {
            "MCP_LOG": log_file(stand, name),
            "MCP_CHANGED": stand.home.home().join("changed"),
            MARKER: marker(stand, name),
        },
        "timeout": 3000,
        "startTimeout": 3000,
    })
}

/// What a server noted.
fn log(stand: &Stand, name: &str) -> Vec<String> {
    lines_of(&log_file(stand, name))
}

/// Where a server notes what happens to it.
pub(super) fn log_file(stand: &Stand, name: &str) -> PathBuf {
    stand.home.home().join(format!("log-{name}"))
}

/// What every process of a server carries. The numbers that they know themselves by are those of their sandbox.
fn marker(stand: &Stand, name: &str) -> String {
    format!("{}-{name}", stand.home.marker())
}

/// The processes of a server that are still alive, once they had a moment to go.
pub(super) fn alive(stand: &Stand, name: &str) -> usize {
    wait_until_gone(&marker(stand, name), Duration::from_secs(5)).len()
}

/// The text of each tool result of a run, in order.
pub(super) fn results(run: &Finished) -> Vec<String> {
    let lines = run.lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let blocks = lines.filter(|line| line["type"] == "user").filter_map(|line| {
        let result = line["message"]["content"].get(0)?.clone();
        (result["type"] == "tool_result").then_some(result)
    });
    blocks
        .map(|result| match &result["content"] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
        .collect()
}

// ---- P1 ----

/// Each behaviour, and a part of what the call of its tool gives.
#[rustfmt::skip]
const BEHAVIOURS: &[(&str, &str)] = &[
    ("plain", "heard: x"),
    ("dies-at-start", "No such tool available"),
    ("hangs-at-initialize", "No such tool available"),
    ("hangs-at-list", "No such tool available"),
    ("hangs-at-call", "no answer within 3s"),
    ("floods-stdout", "heard: x"),
    ("floods-stderr", "heard: x"),
    ("huge-line", "heard: x"),
    ("wrong-id", "no answer within 3s"),
    ("id-twice", "heard: x"),
    ("not-json", "heard: x"),
    ("half-a-line", "no answer within 3s"),
    ("broken-answer", "its answer is not JSON"),
    ("too-long-answer", "its answer is longer than 16 MiB"),
    ("dies-mid-call", "the roof is on fire"),
    ("slow", "heard: x"),
    ("exits-after-calls", "heard: x"),
    ("list-changed-storm", "heard: x"),
    ("huge-result", "bytes cut here"),
    ("error-results", "text is too short"),
    ("bad-tools", "heard: x"),
    ("stdin-not-read", "no answer within 3s"),
    ("writes-after-close", "heard: x"),
    ("ignores-term", "heard: x"),
    ("closes-stdout", "went away while it worked"),
    ("leaves-a-child", "heard: x"),
    ("odd-results", "and text"),
    ("asks-back", "all answered"),
];
/// The start may be held up this long.
const WANTED: Duration = Duration::from_secs(1);

fn goes_wrong(options: &Options) -> Report {
    let mut report = Report::default();
    let tried = in_parallel(options.width, BEHAVIOURS, |row| behave(options, row));
    let base = tried.first().and_then(|first| first.as_ref().ok()).copied().unwrap_or_default();
    let mut slowest = Duration::ZERO;
    for ((behaviour, _), result) in BEHAVIOURS.iter().zip(tried) {
        let result = result.and_then(|took| {
            let more = took.saturating_sub(base);
            slowest = slowest.max(more);
            // What is wanted is reported; what fails is a hang.
            if more <= WANTED * 20 { Ok(()) } else { Err(format!("the first request came after {took:?}")) }
        });
        report.add(behaviour, result);
    }
    let held = report.runs - report.failures.len() as u64;
    report.figure(format!(
        "{held} of {} contained, the other server and the agent unaffected; the first request at most {} ms later than \
         with a good one (1,000 wanted)",
        BEHAVIOURS.len(),
        slowest.as_millis()
    ))
}

/// How long it took until the model was asked first.
fn behave(options: &Options, (behaviour, expected): &(&str, &str)) -> Result<Duration, String> {
    let script = "when turn=1\n  call mcp__bad__echo {\"text\": \"x\"}\n  call mcp__good__echo {\"text\": \"y\"}\nwhen turn=2\n  say \"done\"\n";
    let stand = Stand::new(options, |_| script.to_owned()).map_err(|error| error.to_string())?;
    settings(options, &stand, &[("bad", behaviour), ("good", "plain")])?;
    // The first use tells what they offer; what is measured is a session that knows that, where it can be known.
    for name in ["good", "bad"] {
        let test = stand.program(stand.binary()).args(["mcp", "test", name]).run(HANG);
        test.map_err(|error| error.to_string())?;
    }
    let begun = Instant::now();
    let running = stand.run("go").start().map_err(|error| error.to_string())?;
    let asked = stand.model.wait_for_requests(1, HANG).len();
    let took = begun.elapsed();
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    if asked == 0 {
        return Err(format!("the model was never asked: {}", brief(&run.errors)));
    }
    ended_well(&run)?;
    let results = results(&run);
    let found = |part: &str| results.iter().any(|text| text.contains(part));
    if !found("heard: y") {
        return Err(format!("the other server's call: {results:?}"));
    }
    if !found(expected) {
        return Err(format!("expected {expected:?}, found {}", brief(&results.join(" / "))));
    }
    stand.check_left()?;
    match (alive(&stand, "bad"), alive(&stand, "good")) {
        (0, 0) => Ok(took),
        left => Err(format!("processes left: {left:?}")),
    }
}

// ---- P2 ----

fn changes(options: &Options) -> Report {
    let mut report = Report::default();
    // The tool, whether it changed, and whether a call of it must be refused then.
    let cases = [
        ("echo", "a changed description", true),
        ("fresh", "a new tool", true),
        ("look", "a tool that is as it was", false),
        ("Bash", "a tool with the name of ours", false),
    ];
    for (tool, what, refused) in cases {
        report.add(what, change(options, tool, refused));
    }
    report.add("two servers, one tool name", two_of_a_name(options));
    let held = report.runs - report.failures.len() as u64;
    report.figure(format!("{held} of {}: what changed was refused in non-interactive sessions, shown as a difference, and used once it was approved", cases.len() + 1))
}

/// A run that may use everything by rule, and asks nobody.
fn ruled(stand: &Stand) -> Result<Finished, String> {
    let program =
        stand.program(stand.binary()).args(["-p", "go", "--output-format", "stream-json", "--verbose"]);
    program.args(["--allowedTools", "mcp__bad,mcp__good"]).run(HANG).map_err(|error| error.to_string())
}

fn change(options: &Options, tool: &str, refused: bool) -> Result<(), String> {
    let script =
        format!("when turn=1\n  call mcp__bad__{tool} {{\"text\": \"x\"}}\nwhen turn=2\n  say \"done\"\n");
    let stand = Stand::new(options, |_| script).map_err(|error| error.to_string())?;
    settings(options, &stand, &[("bad", "changes-tools")])?;
    let manage = |what: &str| {
        let program = stand.program(stand.binary()).args(["mcp", what, "bad"]);
        let run = program.args((what == "approve").then_some("--yes")).run(HANG);
        run.map_err(|error| error.to_string())
    };
    manage("test")?;
    let before = results(&ruled(&stand)?).join(" ");
    let expected = if tool == "fresh" { "No such tool" } else { "heard: x" };
    if !before.contains(expected) {
        return Err(format!("before the change: {before}"));
    }
    fs::write(stand.home.home().join("changed"), "").map_err(|error| error.to_string())?;
    // One run notices the change at its call, the next before it: neither lets it pass.
    for turn in ["first", "second"] {
        let calls = log(&stand, "bad").iter().filter(|line| line.starts_with("call ")).count();
        let after = results(&ruled(&stand)?).join(" ");
        let made = log(&stand, "bad").iter().filter(|line| line.starts_with("call ")).count() > calls;
        // A new tool is known only once its server has come up in time.
        let unknown = tool == "fresh" && after.contains("No such tool");
        let said = after.contains("decurion mcp approve bad") || unknown;
        if (made, said) != (!refused, refused) {
            return Err(format!("the {turn} run after the change: made {made}, {}", brief(&after)));
        }
        if tool == "echo" && !after.contains("+Says it again. First read") {
            return Err(format!("no difference is shown: {}", brief(&after)));
        }
    }
    let approved = manage("approve")?;
    if !approved.ending.is_success() {
        return Err(format!("approve: {}", brief(&approved.errors)));
    }
    let after = results(&ruled(&stand)?).join(" ");
    if after.contains("heard: x") { Ok(()) } else { Err(format!("after approval: {}", brief(&after))) }
}

fn two_of_a_name(options: &Options) -> Result<(), String> {
    let script = "when turn=1\n  call mcp__bad__echo {\"text\": \"1\"}\n  call mcp__good__echo {\"text\": \"2\"}\n  call mcp__good__Bash {\"text\": \"3\"}\nwhen turn=2\n  say \"done\"\n";
    let stand = Stand::new(options, |_| script.to_owned()).map_err(|error| error.to_string())?;
    settings(options, &stand, &[("bad", "plain"), ("good", "plain")])?;
    let run = ruled(&stand)?;
    let calls = |name: &str| {
        log(&stand, name).into_iter().filter(|line| line.starts_with("call ")).collect::<Vec<_>>()
    };
    let found = (calls("bad"), calls("good"));
    let expected = (vec!["call echo 1".to_owned()], vec!["call echo 2".to_owned(), "call Bash 3".to_owned()]);
    if found == expected { Ok(()) } else { Err(format!("{found:?}: {}", brief(&run.errors))) }
}

// ---- P3 ----

fn shared(options: &Options) -> Report {
    let mut report = Report::default();
    let agents = options.count(20, 100);
    for (what, declared) in [("the session's", false), ("their definition's own", true)] {
        report.add(format_args!("{agents} agents, {what} server"), many(options, agents, declared));
    }
    let held = report.runs - report.failures.len() as u64;
    report.figure(format!("{held} of 2: {agents} agents used 1 process; 0 after the end"))
}

fn many(options: &Options, agents: u64, own: bool) -> Result<(), String> {
    let call = "  call Agent {\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"user\"}\n";
    let calls = call.repeat(usize::try_from(agents).unwrap_or(1));
    let script = format!(
        "when agent=main turn=1\n{calls}when agent=main\n  say \"done\"\nwhen agent=user turn=1\n  \
         call mcp__one__echo {{\"text\": \"x\"}}\nwhen agent=user\n  delay 300ms\n  say \"used\"\n"
    );
    let stand = Stand::new(options, |_| script).map_err(|error| error.to_string())?;
    let servers: &[(&str, &str)] = if own { &[] } else { &[("one", "plain")] };
    settings(options, &stand, servers)?;
    let mut agent = json!({"description": "uses it", "prompt": "Use it."});
    if own {
        agent["mcpServers"] = json!([{"one": declaration(options, &stand, "one", "plain")}]);
    }
    let definitions = json!({"user": agent}).to_string();
    let run =
        stand.run("go").args(["--agents", &definitions]).run(HANG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    stand.check_left()?;
    let log = log(&stand, "one");
    let count = |start: &str| log.iter().filter(|line| line.starts_with(start)).count();
    let (started, calls, left) = (count("started "), count("call echo x"), alive(&stand, "one"));
    let wanted = usize::try_from(agents).unwrap_or_default();
    if (started, calls, left) == (1, wanted, 0) {
        Ok(())
    } else {
        Err(format!("{started} processes, {calls} calls, {left} left"))
    }
}
