//! Where the program is tried: a home that nobody has used, and a model on loopback that checks every request.

use std::path::PathBuf;
use std::time::Duration;

use decurion_testkit::proc::{Finished, Home, Program};
use decurion_testkit::server::FakeModel;
use serde_json::Value;

/// The program under test.
pub const DECURION: &str = env!("CARGO_BIN_EXE_decurion");
/// A run that takes longer hangs. Far from what any of them needs.
pub const LIMIT: Duration = Duration::from_secs(120);

/// A home and a model.
pub struct Stand {
    pub home: Home,
    pub model: FakeModel,
}

impl Stand {
    /// One whose model plays this script.
    pub fn new(script: &str) -> Self {
        Self::in_home(Home::new().unwrap(), script)
    }

    /// The same in a home whose paths the script names.
    pub fn in_home(home: Home, script: &str) -> Self {
        Self { home, model: FakeModel::start(script).unwrap() }
    }

    /// The same on a system that has no sandbox: what is tried must be stopped by the rules alone.
    pub fn without_sandbox(self) -> Self {
        self.home.switch_sandbox_off().unwrap();
        self
    }

    /// The program, asking this model in Anthropic's dialect.
    pub fn decurion(&self) -> Program {
        self.decurion_through(DECURION)
    }

    /// Another program, such as a shell, that starts this one.
    pub fn decurion_through(&self, program: &str) -> Program {
        self.home
            .program(program)
            .env("ANTHROPIC_BASE_URL", self.model.url())
            .env("ANTHROPIC_API_KEY", decurion_testkit::proc::canary::PROVIDER_KEY)
    }

    /// The program where Landlock alone is left: in a user namespace in which no further namespaces can be made.
    pub fn landlock_alone(&self) -> Program {
        let script = "for kind in user mnt net pid; do echo 0 > /proc/sys/user/max_${kind}_namespaces; done; exec \"$@\"";
        self.decurion_through("unshare").args(["-Ur", "sh", "-c", script, "sh", DECURION])
    }

    /// The program, asking this model in the other dialect.
    pub fn decurion_openai(&self) -> Program {
        self.home
            .program(DECURION)
            .env("OPENAI_BASE_URL", self.model.openai_url())
            .env("OPENAI_API_KEY", decurion_testkit::proc::canary::PROVIDER_KEY)
    }

    /// Runs the program with these arguments to its end.
    pub fn run(&self, arguments: &[&str]) -> Finished {
        finished(self.decurion().args(arguments))
    }

    /// What the model's last request says came of the calls.
    pub fn results(&self) -> Vec<Value> {
        let requests = self.model.requests();
        let last: Value = serde_json::from_slice(&requests.last().unwrap().body).unwrap();
        let messages = last["messages"].as_array().unwrap().iter();
        let blocks = messages.filter_map(|message| message["content"].as_array()).flatten();
        let results = blocks.filter(|block| block["type"] == "tool_result");
        results.map(|block| block["content"].clone()).collect()
    }

    /// The path of a file in the folder the program works in.
    pub fn file(&self, name: &str) -> String {
        file_in(&self.home, name)
    }

    /// Every file below the home folder, but for what was there from the beginning.
    pub fn left_at_home(&self) -> Vec<PathBuf> {
        let mut files = files_below(self.home.home());
        files.retain(|file| !file.ends_with(".claude/settings.json") && !file.ends_with(".ssh/canary"));
        files
    }

    /// Every file below the state folder.
    pub fn written(&self) -> Vec<PathBuf> {
        files_below(self.home.state())
    }
}

/// The path of a file in the folder where programs of this home work.
pub fn file_in(home: &Home, name: &str) -> String {
    home.work().join(name).to_str().unwrap().to_owned()
}

/// A table without what the clock decides: how long ago something was, and the widths of columns.
pub fn without_times(text: &str) -> String {
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let mut lines = Vec::new();
    for line in text.lines() {
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(|cell| {
            let is_ago = cell.strip_suffix(" ago").and_then(|rest| rest.split_once(' '));
            let is_ago = cell == "just now" || is_ago.is_some_and(|(count, _)| is_number(count));
            if is_ago { "AGO" } else { cell }
        });
        let indent = &line[..line.len() - line.trim_start().len()];
        lines.push(format!("{indent}{}", cells.collect::<Vec<_>>().join("  ")));
    }
    lines.join("\n")
}

/// Runs a program to its end, which must come by itself.
pub fn finished(program: Program) -> Finished {
    let finished = program.run(LIMIT).unwrap();
    assert!(!finished.timed_out, "it hangs: {finished:?}");
    finished
}

/// The files below a folder.
pub fn files_below(folder: PathBuf) -> Vec<PathBuf> {
    let mut folders = vec![folder];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() { folders.push(entry.path()) } else { files.push(entry.path()) }
        }
    }
    files
}

/// The lines of a stream as JSON.
pub fn stream(finished: &Finished) -> Vec<Value> {
    finished
        .lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect()
}

/// The last result line of a stream.
pub fn result(finished: &Finished) -> Value {
    let last = stream(finished).into_iter().rfind(|line| line["type"] == "result");
    last.unwrap_or_else(|| panic!("no result: {finished:?}"))
}
