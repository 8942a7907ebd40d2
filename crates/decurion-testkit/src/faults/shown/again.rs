//! N5: an agent resumed in a new process. Takes a session in which an agent has reported, also with the agent's
//! record torn in its last line, gives whether the next process asks on with the same bytes and says what was cut.

use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use decurion_model::Dialect;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{equal, up_to_messages};
use crate::faults::agents::general_call;
use crate::faults::stand::{HANG, Stand, ended_well};
use crate::faults::{Options, Report, in_parallel};
use crate::proc::{Finished, Program};

/// What the agent reported in the first process, and what it is asked in the second.
const REPORT: &str = "this is what I found";
const PROMPT: &str = "and now the rest";
/// How many places of the last line the short form cuts at.
const PLACES: usize = 8;

const DIALECTS: [Dialect; 2] = [Dialect::Anthropic, Dialect::OpenAiChat];

pub(super) fn row(options: &Options) -> Report {
    let mut report = Report::default();
    let mut figures = Vec::new();
    for dialect in DIALECTS {
        let result = whole(options, dialect)
            .map(|bytes| figures.push(format!("{dialect:?} byte-equal {bytes} of {bytes} bytes")));
        report.add(format_args!("{dialect:?}, whole"), result);
    }
    let shares: Vec<(Dialect, usize)> =
        DIALECTS.iter().flat_map(|dialect| (0..options.width).map(|share| (*dialect, share))).collect();
    let results = in_parallel(options.width, &shares, |(dialect, share)| torn(options, *dialect, *share));
    let (mut places, mut resumed, mut said, mut named) = (0, 0, 0, 0);
    for ((dialect, _), result) in shares.iter().zip(results) {
        match result {
            Ok(cuts) => {
                for cut in cuts {
                    places += 1;
                    resumed += usize::from(cut.resumed.is_ok());
                    said += usize::from(cut.told != Told::Nothing);
                    named += usize::from(cut.told == Told::WithTheName);
                    report.add(format_args!("{dialect:?}, {}", cut.place), cut.verdict());
                }
            }
            Err(problem) => report.add(format_args!("{dialect:?}, before it was torn"), Err(problem)),
        }
    }
    report.figure(format!(
        "{} (cache mark left out); torn at {places} places: {resumed} resumed, {said} said what was cut, {named} of \
         them whose record it was",
        figures.join(", ")
    ))
}

/// Nothing is torn: the request is the last one, the reply to it and the new prompt.
fn whole(options: &Options, dialect: Dialect) -> Result<usize, String> {
    let reported = Reported::new(options, dialect)?;
    let (_, body) = reported.again()?;
    equal(&reported.wanted()?, &body)
}

/// What became of one cut.
struct Cut {
    place: String,
    resumed: Result<(), String>,
    told: Told,
}

/// What the session said of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    /// That something of a transcript was cut off.
    Something,
    WithTheName,
}

impl Cut {
    fn verdict(&self) -> Result<(), String> {
        self.resumed.clone()?;
        match self.told {
            Told::Nothing => Err("resumed, and nobody says what was cut".into()),
            Told::Something => Err("resumed, and nobody says whose record was cut".into()),
            Told::WithTheName => Ok(()),
        }
    }
}

/// Cuts the agent's record at this share of the places, in a session of its own.
fn torn(options: &Options, dialect: Dialect, share: usize) -> Result<Vec<Cut>, String> {
    let reported = Reported::new(options, dialect)?;
    reported.copy(&reported.projects(), &reported.saved())?;
    let whole = fs::read(reported.record()).map_err(|error| error.to_string())?;
    let start = whole[..whole.len().saturating_sub(1)].iter().rposition(|byte| *byte == b'\n');
    let start = start.map_or(0, |at| at + 1);
    // A record that lost only its line end is whole, so that the last cut takes its last byte as well.
    let last = whole.len() - 2 - start;
    let all: Vec<usize> = if options.ci {
        (0..PLACES).map(|place| start + place * last / (PLACES - 1)).collect()
    } else {
        (start..=start + last).collect()
    };
    let own = all.into_iter().skip(share).step_by(options.width);
    own.map(|at| {
        fs::remove_dir_all(reported.projects()).map_err(|error| error.to_string())?;
        reported.copy(&reported.saved(), &reported.projects())?;
        fs::write(reported.record(), &whole[..at]).map_err(|error| error.to_string())?;
        let place = format!("cut after {} of {} bytes of the last line", at - start, last + 2);
        Ok(match reported.again() {
            Ok((run, body)) => {
                let resumed = reported.wanted_torn().and_then(|wanted| equal(&wanted, &body)).map(drop);
                Cut { place, resumed, told: reported.told(&run, at - start) }
            }
            Err(problem) => Cut { place, resumed: Err(problem), told: Told::Nothing },
        })
    })
    .collect()
}

/// A session whose agent has reported, and whose process has ended.
struct Reported {
    stand: Stand,
    dialect: Dialect,
    session: String,
    agent: String,
    /// The agent's last request.
    last: Bytes,
}

impl Reported {
    fn new(options: &Options, dialect: Dialect) -> Result<Self, String> {
        let stand = Stand::new(options, |_| script()).map_err(|error| error.to_string())?;
        let session = Uuid::new_v4().to_string();
        let program = speaking(dialect, &stand, stand.run_as(&session, "go"));
        let run = program.run(HANG).map_err(|error| error.to_string())?;
        ended_well(&run)?;
        stand.check_left()?;
        let requests = stand.model.requests();
        let own: Vec<_> = requests.iter().filter(|one| one.agent.contains('/')).collect();
        let (Some(last), 3) = (own.last(), own.len()) else {
            return Err(format!("{} requests of the agent", own.len()));
        };
        if last.dialect != Some(dialect) {
            return Err(format!("asked in {:?}", last.dialect));
        }
        let agent = last.agent.rsplit('/').next().unwrap_or_default().to_owned();
        let last = last.body.clone();
        Ok(Self { stand, dialect, session, agent, last })
    }

    /// The second process: how it ended, and the one request of the agent in it.
    fn again(&self) -> Result<(Finished, Bytes), String> {
        let before = self.stand.model.requests().len();
        let prompt = format!("go on with {}", self.agent);
        let program = speaking(self.dialect, &self.stand, self.stand.resume(&self.session, &prompt));
        let run = program.run(HANG).map_err(|error| error.to_string())?;
        ended_well(&run)?;
        self.stand.check_left()?;
        let path = format!("main/{}", self.agent);
        let requests = self.stand.model.requests();
        let own: Vec<_> = requests.iter().skip(before).filter(|one| one.agent == path).collect();
        match own.as_slice() {
            [one] => Ok((run, one.body.clone())),
            other => Err(format!("{} requests of the agent", other.len())),
        }
    }

    /// The last request, its reply, the new prompt. Written out, since it is what the product is held against.
    fn wanted(&self) -> Result<Vec<u8>, String> {
        let text = |text: &str| match self.dialect {
            Dialect::Anthropic => json!([{"type": "text", "text": text}]),
            Dialect::OpenAiChat => json!(text),
        };
        let more = format!(
            r#",{{"role":"assistant","content":{}}},{{"role":"user","content":{}}}]}}"#,
            text(REPORT),
            text(PROMPT)
        );
        Ok([up_to_messages(&self.last)?, more.as_bytes()].concat())
    }

    /// The last request and the new prompt, which in one dialect stands in the message with the last result.
    fn wanted_torn(&self) -> Result<Vec<u8>, String> {
        let before = up_to_messages(&self.last)?;
        match self.dialect {
            Dialect::Anthropic => {
                let open = up_to_messages(before)?;
                Ok([open, format!(r#",{{"type":"text","text":"{PROMPT}"}}]}}]}}"#).as_bytes()].concat())
            }
            Dialect::OpenAiChat => {
                let more = format!(r#",{{"role":"user","content":"{PROMPT}"}}]}}"#);
                Ok([before, more.as_bytes()].concat())
            }
        }
    }

    /// Whether a warning on the stream or the error output says that so many bytes of a transcript were cut.
    fn told(&self, run: &Finished, torn: usize) -> Told {
        let warning = |line: &String| {
            let line: Value = serde_json::from_str(line).ok()?;
            (line["subtype"] == "informational").then(|| line["content"].as_str().map(str::to_owned))?
        };
        let bytes = format!("{torn} bytes");
        let texts = run.lines.iter().filter_map(warning).chain(run.errors.lines().map(str::to_owned));
        let texts: Vec<String> = texts.filter(|text| text.contains("transcript")).collect();
        let counted = torn == 0 || texts.iter().any(|text| text.contains(&bytes));
        match (counted && !texts.is_empty(), texts.iter().any(|text| text.contains(&self.agent))) {
            (false, _) => Told::Nothing,
            (true, false) => Told::Something,
            (true, true) => Told::WithTheName,
        }
    }

    fn projects(&self) -> PathBuf {
        self.stand.home.state().join("projects")
    }

    fn saved(&self) -> PathBuf {
        self.stand.home.path().join("saved")
    }

    fn record(&self) -> PathBuf {
        let session = self.stand.transcript(&self.session).with_extension("");
        session.join("subagents").join(format!("agent-{}.jsonl", self.agent))
    }

    /// Copies a folder with its links as they are.
    fn copy(&self, from: &std::path::Path, to: &std::path::Path) -> Result<(), String> {
        let run = self.stand.home.program("cp").arg("-a").args([from, to]).run(HANG);
        let run = run.map_err(|error| error.to_string())?;
        if run.ending.is_success() { Ok(()) } else { Err(format!("cp: {}", run.errors)) }
    }
}

fn speaking(dialect: Dialect, stand: &Stand, program: Program) -> Program {
    match dialect {
        Dialect::Anthropic => program,
        Dialect::OpenAiChat => program
            .env("OPENAI_BASE_URL", stand.model.openai_url())
            .env("OPENAI_API_KEY", crate::proc::canary::PROVIDER_KEY)
            .args(["--model", "openai/test-model"]),
    }
}

fn script() -> String {
    let call = general_call("look twice", false);
    let again = json!({"description": "again", "prompt": PROMPT, "resume": "$1"});
    format!(
        "when agent=main text=/go on with (\\w+)/\n  call Agent {again}\nwhen agent=main turn=1\n{call}\
         when agent=main\n  say \"done\"\nwhen text=\"{PROMPT}\"\n  say \"that is all\"\n\
         when turn=1\n  call Bash {{\"command\": \"echo one\"}}\nwhen turn=2\n  call Bash {{\"command\": \"echo two\"}}\n\
         when\n  say \"{REPORT}\"\n"
    )
}
