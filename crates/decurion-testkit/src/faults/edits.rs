//! Transcripts that somebody else changed. Takes sessions of the real binary, edits their transcripts as a person, an
//! editor or a later version would, and resumes them: gives whether every prompt is still in the next request, and
//! whether what must be understood stops the session.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use uuid::Uuid;

use super::stand::{HANG, Stand, brief};
use super::transcript::sealed;
use super::{Dice, Options, Report, Row, in_parallel};
use crate::server::Recorded;

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![
        Row { id: "T11", what: "transcripts edited by sed, editors and other line ends", run: edited },
        Row { id: "T12", what: "an older version resumes a later version's transcript", run: later },
    ]
}

/// Two prompts of a session, and the one that follows the edit. No digits, so that an edit of numbers is none of words.
const PROMPTS: [&str; 2] = ["find the alpha parser in the old folder", "then rename the beta lexer"];
const THIRD: &str = "and what was asked before?";
/// What the commands of the session print.
const OUTPUTS: [&str; 2] = ["gamma found", "delta renamed"];

fn script(_: &Path) -> String {
    format!(
        "when match=\"{}\" turn=1\n  say \"I look.\"\n  call Bash command=\"echo {}\"\nwhen match=\"{}\"\n  say \"Here.\"\n\
         when\n  say \"Done.\"\n",
        PROMPTS[0], OUTPUTS[0], THIRD
    )
}

/// A session of two prompts, and its transcript.
fn session(options: &Options) -> Result<(Stand, String, PathBuf), String> {
    let stand = Stand::new(options, script).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4().to_string();
    let first = stand.run_as(&id, PROMPTS[0]).run(HANG).map_err(|error| error.to_string())?;
    super::stand::ended_well(&first)?;
    let second = stand.resume(&id, PROMPTS[1]).run(HANG).map_err(|error| error.to_string())?;
    super::stand::ended_well(&second)?;
    let path = stand.transcript(&id);
    Ok((stand, id, path))
}

/// What the messages of the last request say, as text.
fn last_request(stand: &Stand) -> String {
    stand
        .model
        .requests()
        .last()
        .map(Recorded::json)
        .map(|body| body["messages"].to_string())
        .unwrap_or_default()
}

// ---- T11 ----

fn edited(options: &Options) -> Report {
    let mut report = Report::default();
    let rounds: Vec<u64> = (0..options.count(16, 500)).collect();
    let results = in_parallel(options.width, &rounds, |round| {
        let edit = Edit::random(&mut Dice::new(options.seed ^ 0xED17, *round));
        (format!("{round}: {edit:?}"), edit_one(options, &edit))
    });
    let mut changed = 0;
    for (name, result) in results {
        changed += u64::from(result.as_ref().copied().unwrap_or(true));
        report.add(name, result.map(drop));
    }
    let failed = report.failures.len();
    if changed * 2 < report.runs {
        report.failures.push(format!("only {changed} of {} edits changed anything", report.runs));
    }
    report
        .figure(format!("{changed} random edits: {failed} without every prompt in the next request, or cut"))
}

/// Gives whether the edit changed the transcript.
fn edit_one(options: &Options, edit: &Edit) -> Result<bool, String> {
    let (stand, id, path) = session(options)?;
    let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let changed = edit.apply(&text);
    fs::write(&path, &changed).map_err(|error| error.to_string())?;
    let run = stand.resume(&id, THIRD).run(HANG).map_err(|error| error.to_string())?;
    super::stand::ended_well(&run).map_err(|problem| format!("{problem} {}", brief(&run.errors)))?;
    let request = last_request(&stand);
    for word in PROMPTS.iter().chain(&OUTPUTS[..1]).map(|word| edit.in_words(word)) {
        if !request.contains(&word) {
            return Err(format!("lost: {word:?} in {}", brief(&request)));
        }
    }
    let now = fs::read_to_string(&path).map_err(|error| error.to_string())?;
    if !now.starts_with(&changed) {
        return Err("cut: the transcript does not begin with what was there".into());
    }
    stand.check_left()?;
    Ok(changed != text)
}

/// What is done to a transcript.
#[derive(Debug)]
enum Edit {
    /// Each line, or every n-th, ends otherwise.
    LineEnds(&'static str, usize),
    /// One text for another, everywhere.
    Replace(String, String),
    /// A byte order mark.
    Mark,
    /// The line end of this line is lost, counted around.
    Join(usize),
    /// So do all of them.
    JoinAll,
    /// The last line end is lost.
    NoEnd,
    /// Blank lines after this one.
    Blank(usize),
    /// This line is there twice, the second one with another path.
    Copy(usize),
}

impl Edit {
    fn random(dice: &mut Dice) -> Self {
        let word = |dice: &mut Dice| {
            let letters = b"qwzjkxv";
            let count = 1 + dice.place(9);
            (0..count).map(|_| char::from(letters[dice.place(letters.len())])).collect::<String>()
        };
        match dice.below(12) {
            0 => Self::LineEnds("\r\n", 1 + dice.place(4)),
            1 => Self::LineEnds(" \n", 1 + dice.place(4)),
            2 => Self::Mark,
            3 => Self::Join(dice.place(1000)),
            4 => Self::JoinAll,
            5 => Self::NoEnd,
            6 => Self::Blank(dice.place(1000)),
            7 => Self::Copy(dice.place(1000)),
            8 | 9 => {
                let digit = |dice: &mut Dice| (1 + dice.below(9)).to_string();
                Self::Replace(digit(dice), digit(dice))
            }
            _ => {
                let words = [
                    "alpha",
                    "parser",
                    "old folder",
                    "beta",
                    "lexer",
                    "gamma",
                    "found",
                    "/work",
                    "decurion-test",
                    "echo",
                    "look",
                ];
                Self::Replace(words[dice.place(words.len())].to_owned(), word(dice))
            }
        }
    }

    fn apply(&self, text: &str) -> String {
        let lines: Vec<&str> = text.lines().collect();
        let with = |change: &dyn Fn(usize, &str) -> String| {
            lines.iter().enumerate().map(|(at, line)| change(at, line)).collect::<String>()
        };
        match self {
            Self::LineEnds(end, every) => {
                with(&|at, line| format!("{line}{}", if at % every == 0 { *end } else { "\n" }))
            }
            Self::Replace(from, to) => text.replace(from, to),
            Self::Mark => format!("\u{feff}{text}"),
            Self::Join(line) => {
                with(&|at, text| format!("{text}{}", if at == line % lines.len() { "" } else { "\n" }))
            }
            Self::JoinAll => lines.concat(),
            Self::NoEnd => text.trim_end().to_owned(),
            Self::Blank(line) => {
                with(&|at, text| format!("{text}\n{}", if at == line % lines.len() { "\n \n" } else { "" }))
            }
            Self::Copy(line) => with(&|at, text| {
                let copy = text.replace("/work", "/copy");
                format!("{text}\n{}", if at == line % lines.len() { copy + "\n" } else { String::new() })
            }),
        }
    }

    /// What it makes of words of the conversation.
    fn in_words(&self, text: &str) -> String {
        match self {
            Self::Replace(from, to) => text.replace(from, to),
            _ => text.to_owned(),
        }
    }
}

// ---- T12 ----

fn later(options: &Options) -> Report {
    let mut report = Report::default();
    let changes = Change::ALL;
    // Lines of the session by their number, counted around: each change meets lines of every kind.
    let lines = options.count(3, 24);
    let cases: Vec<(Change, u64)> =
        changes.iter().flat_map(|change| (0..lines).map(move |line| (*change, line))).collect();
    let results = in_parallel(options.width, &cases, |(change, line)| {
        let at = line * (1 + options.seed % 5);
        (format!("{change:?} of line {at}"), change_one(options, *change, at))
    });
    for (name, result) in results {
        report.add(name, result);
    }
    let count = |word: &str| report.failures.iter().filter(|one| one.contains(word)).count();
    let (lost, continued, runs) = (count("lost"), count("continued"), report.runs);
    let marked = cases.iter().filter(|(change, _)| change.is_marked()).count();
    report.figure(format!(
        "{runs} transcripts of a later version: {lost} with lost records; of {marked} with a marked record that is not \
         understood {continued} continued"
    ))
}

/// What a later version wrote otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    /// An effect of a call.
    Effect,
    /// Members on a line.
    Members,
    /// A record of a kind of its own, behind the last line.
    Record,
    /// A line of a kind of its own, behind the last line.
    Line,
    /// A record that must be understood, in the line's place.
    Marked,
    /// A marked record of a kind that is known, with a value that is not, in the line's place.
    MarkedVariant,
    /// A known record that has another meaning by its level, in the line's place.
    MarkedLevel,
}

impl Change {
    const ALL: [Self; 7] = [
        Self::Effect,
        Self::Members,
        Self::Record,
        Self::Line,
        Self::Marked,
        Self::MarkedVariant,
        Self::MarkedLevel,
    ];

    fn is_marked(self) -> bool {
        matches!(self, Self::Marked | Self::MarkedVariant | Self::MarkedLevel)
    }

    /// The lines that it can be made to, by their number.
    fn lines(self, lines: &[&str]) -> Vec<usize> {
        let fits = |line: &str| match self {
            Self::Effect => line.contains("\"tool\":"),
            Self::Members => true,
            Self::Record | Self::Line => false,
            Self::Marked | Self::MarkedVariant | Self::MarkedLevel => {
                line.starts_with("{\"type\":\"decurion\"")
            }
        };
        let fitting: Vec<usize> = (0..lines.len()).filter(|at| fits(lines[*at])).collect();
        if fitting.is_empty() { vec![lines.len() - 1] } else { fitting }
    }

    /// What stands in a line's place.
    fn of(self, line: &str) -> Result<String, String> {
        let mut record: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let marked = |mut record: Value, must: u64, event: Value| {
            (record["must"], record["event"]) = (json!(must), event);
            resealed(record)
        };
        let behind = |mut added: Value, record: &Value| {
            for name in ["seq", "ordinal"] {
                added[name] = json!(record[name].as_u64().unwrap_or(0) + 1);
            }
            Ok(format!("{line}\n{}", resealed(added)?))
        };
        match self {
            Self::Effect | Self::Members => {
                record["mood"] = json!({"of": ["later"]});
                if self == Self::Effect {
                    record["effects"] = json!([{"effect": "rewired", "wire": 7}]);
                }
                resealed(record)
            }
            Self::Record => {
                let event = json!({"type": "weather", "sky": "blue"});
                let at = "2026-11-15T06:35:22.007Z";
                behind(json!({"type": "decurion", "v": 1, "timestamp": at, "event": event}), &record)
            }
            Self::Line => behind(json!({"type": "hologram", "data": "x"}), &record),
            Self::Marked => marked(record, 1, json!({"type": "walls_raised", "around": "/"})),
            Self::MarkedVariant => marked(record, 1, json!({"type": "mode_changed", "mode": "monastic"})),
            Self::MarkedLevel => marked(record, 2, json!({"type": "mode_changed", "mode": "default"})),
        }
    }
}

/// A record with the members that end every line at its end, and its checksum.
fn resealed(mut record: Value) -> Result<String, String> {
    let members = record.as_object_mut().ok_or("no record")?;
    members.remove("crc");
    let mut end = String::new();
    for name in ["run", "seq", "ordinal"] {
        if let Some(member) = members.remove(name) {
            end += &format!(",\"{name}\":{member}");
        }
    }
    let text = record.to_string();
    Ok(sealed(&format!("{}{end}", text.strip_suffix('}').ok_or("no record")?)))
}

fn change_one(options: &Options, change: Change, at: u64) -> Result<(), String> {
    let (stand, id, path) = session(options)?;
    let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let lines: Vec<&str> = text.lines().collect();
    let fitting = change.lines(&lines);
    let at = fitting[usize::try_from(at).unwrap_or(0) % fitting.len()];
    let mut changed = String::new();
    for (number, line) in lines.iter().enumerate() {
        if number == at {
            changed += &change.of(line)?;
        } else {
            changed += line;
            changed.push('\n');
        }
    }
    fs::write(&path, &changed).map_err(|error| error.to_string())?;
    let asked = stand.model.requests().len();
    let run = stand.resume(&id, THIRD).run(HANG).map_err(|error| error.to_string())?;
    let now = fs::read_to_string(&path).map_err(|error| error.to_string())?;
    if change.is_marked() {
        let refused = run.ending.code() == 2 && run.errors.contains("cannot be continued by this version");
        let untouched = now == changed && stand.model.requests().len() == asked;
        return match (refused, untouched) {
            (true, true) => Ok(()),
            (true, false) => Err("refused, and yet something was done".into()),
            (false, _) => Err(format!("continued: {:?} {}", run.ending, brief(&run.errors))),
        };
    }
    super::stand::ended_well(&run).map_err(|problem| format!("{problem} {}", brief(&run.errors)))?;
    let request = last_request(&stand);
    for word in PROMPTS.iter().chain(&OUTPUTS[..1]) {
        if !request.contains(word) {
            return Err(format!("lost: {word:?} in {}", brief(&request)));
        }
    }
    if !now.starts_with(&changed) {
        return Err("lost: the transcript does not begin with what was there".into());
    }
    stand.check_left()
}
