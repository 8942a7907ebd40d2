//! X1 to X7: what the sandbox promises, tried through the binary. Takes lists of commands, runs them in real sessions
//! of a scripted model, gives what came of each; the rows compare that with what happens without a sandbox.

mod attacks;
mod canaries;
mod cores;
mod floods;
mod harmless;
mod survivors;
mod systems;
mod toolchains;
mod ways_out;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use decurion_exec::Form;
use serde_json::{Value, json};

use super::Row;
use super::stand::{Stand, brief, result_of};
use crate::proc::Program;

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![
        Row { id: "X1", what: "commands that only read", run: harmless::row },
        Row { id: "X2", what: "ways out of the sandbox", run: ways_out::row },
        Row { id: "X3", what: "toolchains inside the sandbox", run: toolchains::row },
        Row { id: "X4", what: "secrets that commands look for", run: canaries::row },
        Row { id: "X5", what: "commands that flood the machine", run: floods::row },
        Row { id: "X6", what: "a session with many agents is killed with its guards", run: survivors::row },
        Row { id: "X7", what: "attacks by engineers with the source", run: attacks::row },
    ]
}

/// A session with this many commands that takes longer hangs.
const HANG: Duration = Duration::from_secs(600);

/// What came of one command.
#[derive(Clone, Debug, Default)]
struct Outcome {
    /// What the model read.
    text: String,
    /// Whether a person would have been asked; in these sessions that is a refusal.
    asked: bool,
}

impl Outcome {
    /// Whether the sandbox is named as the reason of a failure. At a terminal a person is asked then.
    fn stopped(&self) -> bool {
        self.text.contains("[The sandbox ")
    }
}

/// How a session is started.
#[derive(Clone, Debug, Default)]
struct Start {
    settings: Value,
    /// More arguments of the program.
    arguments: Vec<String>,
    /// More of its environment.
    environment: Vec<(String, String)>,
    /// Words before those that start the program.
    words: Vec<OsString>,
    /// The form of the sandbox that the session must have.
    form: Option<Form>,
}

impl Start {
    /// Default mode, these settings.
    fn new(settings: Value) -> Self {
        Self { settings, ..Self::default() }
    }

    fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    fn environment(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }
}

/// A call of Bash with this command.
fn bash(command: &str) -> Value {
    json!({"command": command, "timeout": 600_000})
}

/// The script of a model that makes these calls of Bash, one a turn.
fn script_of(calls: &[Value]) -> String {
    let mut script = String::new();
    for (index, call) in calls.iter().enumerate() {
        script
            .push_str(&format!("when agent=main turn={}\n  call Bash as toolu_{index} {call}\n", index + 1));
    }
    script + "when\n  say \"done\"\n"
}

/// Runs the calls of a stand's model in one session. Gives what came of each.
fn run_session(stand: &Stand, count: usize, start: &Start) -> Result<Vec<Outcome>, String> {
    let file = stand.home.home().join(".claude/settings.json");
    fs::write(file, start.settings.to_string()).map_err(|error| error.to_string())?;
    let program = start_by(&start.words, stand).args(["-p", "--output-format", "stream-json", "--verbose"]);
    let program = start.environment.iter().fold(program, |program, (name, value)| program.env(name, value));
    let run = program.args(&start.arguments).arg("go").run(HANG).map_err(|error| error.to_string())?;
    let result = result_of(&run.lines);
    let Some(result) = result.filter(|_| !run.timed_out) else {
        return Err(format!("{:?} {} {:?}", run.ending, brief(&run.errors), stand.model.problems()));
    };
    let form = session_form(&run.lines);
    if start.form.is_some_and(|expected| form != expected.name()) {
        return Err(format!("the form of its sandbox is {form}"));
    }
    let denied: HashSet<&str> =
        result["permission_denials"].as_array().into_iter().flatten().filter_map(call_of).collect();
    let last = stand.model.requests().last().map(crate::server::Recorded::json).unwrap_or_default();
    let contents = last["messages"].as_array().into_iter().flatten();
    let blocks = contents.filter_map(|message| message["content"].as_array()).flatten();
    let mut outcomes = vec![Outcome::default(); count];
    let mut found = 0;
    for block in blocks.filter(|block| block["type"] == "tool_result") {
        let Some(id) = call_of(block) else { continue };
        let index = id.strip_prefix("toolu_").and_then(|number| number.parse::<usize>().ok());
        let Some(outcome) = index.and_then(|index| outcomes.get_mut(index)) else { continue };
        *outcome = Outcome { text: text_of(&block["content"]), asked: denied.contains(id) };
        found += 1;
    }
    if found != count {
        return Err(format!("{found} of {count} commands have a result: {}", brief(&run.errors)));
    }
    Ok(outcomes)
}

/// The program of a stand, started by these words.
fn start_by(words: &[OsString], stand: &Stand) -> Program {
    let program = stand.program(stand.binary());
    match words {
        [] => program,
        [first, rest @ ..] => program.instead(first).args(rest).arg(stand.binary()),
    }
}

/// The form of a session's sandbox, as the session names it in its first line.
fn session_form(lines: &[String]) -> String {
    let first = lines.iter().find_map(|line| serde_json::from_str::<Value>(line).ok()).unwrap_or_default();
    first["sandbox"].as_str().unwrap_or("unknown").to_owned()
}

fn call_of(value: &Value) -> Option<&str> {
    value["tool_use_id"].as_str()
}

fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().filter_map(|block| block["text"].as_str()).collect(),
        _ => String::new(),
    }
}
