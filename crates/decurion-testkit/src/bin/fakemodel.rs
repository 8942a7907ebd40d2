//! The loopback model as a process of its own. Takes options, prints one line of JSON when it is ready, and
//! answers until it is ended.
#![allow(clippy::disallowed_methods)] // a program for tests, not part of the product

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use decurion_model::script::Script;
use decurion_testkit::server::{Answers, FakeModel, Rounds, Settings};

const USAGE: &str = "usage: fakemodel (--script FILE | --rounds N [--agents N] [--command TEXT])
                 [--log FILE] [--bodies FOLDER] [--gate N] [--models A,B] [--key KEY]
                 [--no-validate] [--with-parent]

  --script FILE    play this script
  --rounds N       for benches: one shell call in each of the first N turns, then a closing text
  --agents N       with --rounds: the root starts N agents, and each of them does the rounds
  --command TEXT   with --rounds: the command called (default: true)
  --log FILE       one line of JSON per request, written before it is answered
  --bodies FOLDER  each request's body, as <number>.json
  --gate N         hold the first request of each agent below the root until N of them wait
  --models A,B     the ids in its list of models (default: test-model)
  --key KEY        refuse every other key with status 401
  --no-validate    answer requests that a provider would refuse
  --with-parent    end when the process that started this one ends

Prints {\"url\":…,\"pid\":…} when it is ready. GET /peak tells how many requests are under way and were at most.";

fn main() -> ExitCode {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => return complain(&format!("{problem}\n\n{USAGE}"), 2),
    };
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => complain(&problem, 1),
    }
}

fn run(options: Options) -> Result<(), String> {
    if options.with_parent {
        let signal = Some(rustix::process::Signal::TERM);
        rustix::process::set_parent_process_death_signal(signal).map_err(|error| error.to_string())?;
    }
    let model = FakeModel::with(options.settings()?).map_err(|error| error.to_string())?;
    let ready = serde_json::json!({"url": model.url(), "pid": std::process::id()});
    let mut out = std::io::stdout();
    writeln!(out, "{ready}").and_then(|()| out.flush()).map_err(|error| error.to_string())?;
    model.run_to_end();
    Ok(())
}

fn complain(problem: &str, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "fakemodel: {problem}");
    ExitCode::from(code)
}

#[derive(Default)]
struct Options {
    script: Option<PathBuf>,
    rounds: Option<u32>,
    agents: u32,
    command: Option<String>,
    log: Option<PathBuf>,
    bodies: Option<PathBuf>,
    gate: Option<u32>,
    models: Option<String>,
    key: Option<String>,
    no_validate: bool,
    with_parent: bool,
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("no value is given for {name}"));
            match name.as_str() {
                "--script" => options.script = Some(value()?.into()),
                "--rounds" => options.rounds = Some(number(&value()?)?),
                "--agents" => options.agents = number(&value()?)?,
                "--command" => options.command = Some(value()?),
                "--log" => options.log = Some(value()?.into()),
                "--bodies" => options.bodies = Some(value()?.into()),
                "--gate" => options.gate = Some(number(&value()?)?),
                "--models" => options.models = Some(value()?),
                "--key" => options.key = Some(value()?),
                "--no-validate" => options.no_validate = true,
                "--with-parent" => options.with_parent = true,
                _ => return Err(format!("no such option: {name}")),
            }
        }
        if options.script.is_some() == options.rounds.is_some() {
            return Err("one of --script and --rounds is needed".into());
        }
        Ok(options)
    }

    fn settings(self) -> Result<Settings, String> {
        let answers = match (self.script, self.rounds) {
            (Some(path), _) => {
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| format!("the script cannot be read ({error}): {}", path.display()))?;
                Answers::Script(Script::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?)
            }
            (None, rounds) => Answers::Rounds(Rounds {
                rounds: rounds.unwrap_or_default(),
                agents: self.agents,
                command: self.command.unwrap_or_else(|| "true".into()),
            }),
        };
        let usual = Settings::new(answers);
        let models = self.models.map(|ids| ids.split(',').map(str::to_owned).collect());
        // Nobody can ask this process for what it was sent, so it keeps nothing.
        Ok(Settings {
            validate: !self.no_validate,
            keep: false,
            log: self.log,
            bodies: self.bodies,
            gate: self.gate,
            models: models.unwrap_or_else(|| usual.models.clone()),
            key: self.key,
            ..usual
        })
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("not a number: {text}"))
}
