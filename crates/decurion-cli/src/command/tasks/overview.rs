//! All tasks and open questions of a session. Takes its record and, where it is live, its owner's list; gives
//! rows of JSON in the order in which tasks began, children below their parents.

use decurion_engine::listing;
use decurion_engine::task::TaskTable;
use decurion_protocol::{AgentId, Command, Envelope, Event, Question, SessionId, TaskId};
use decurion_store::{ReplayOptions, Scope, SessionPaths, replay};
use serde_json::Value;

use super::session::ChosenSession;
use crate::report::{Failure, note};

/// What there is to know of a session's tasks.
pub struct Overview {
    pub session: SessionId,
    /// Whether its owner answered.
    pub live: bool,
    /// Its tasks, as `listing::row` gives them.
    pub rows: Vec<Value>,
    /// What waits for an answer.
    pub questions: Vec<Question>,
}

impl Overview {
    /// Asks the owner, or reads the record.
    pub async fn of(chosen: &mut ChosenSession) -> Result<Self, Failure> {
        let folded = match &chosen.record {
            Some(paths) => TaskOverview::read(paths)?,
            None => TaskOverview::default(),
        };
        let live = chosen.live.is_some();
        let rows = if live {
            let Value::Array(rows) = super::ask(chosen, Command::Tasks, "").await? else {
                return Err(Failure::failed(format!("session {} gave no list of its tasks", chosen.id)));
            };
            rows
        } else {
            folded.table.rows().map(|row| listing::row(&folded.table, row)).collect()
        };
        Ok(Self {
            session: chosen.id,
            live,
            rows: in_order(rows, &folded.opened),
            questions: folded.questions,
        })
    }

    /// The task of this id, or of the only id that begins so.
    pub fn find(&self, id: &str) -> Result<&Value, Failure> {
        let all = || self.rows.iter().map(|row| text(row, "id"));
        let wanted = one_of(all(), id).map_err(|matches| {
            unknown(&format!("no task with this id in session {}: {id}", self.session), all(), &matches)
        })?;
        self.rows.iter().find(|row| text(row, "id") == wanted).ok_or_else(|| Failure::failed("no such task"))
    }

    /// The open question of this id, or of the task that asks it; the beginning of either is enough.
    pub fn question(&self, id: &str) -> Result<&Question, Failure> {
        let names: Vec<(String, String)> = self
            .questions
            .iter()
            .map(|question| (question.id.to_string(), asker(question).to_owned()))
            .collect();
        let ids = || names.iter().map(|(question, _)| question.as_str());
        let found = one_of(ids(), id).or_else(|matches| {
            let task = one_of(names.iter().map(|(_, task)| task.as_str()), id);
            let by_task = names.iter().filter(|(_, asker)| task.as_ref().is_ok_and(|task| task == asker));
            match by_task.map(|(question, _)| question.as_str()).collect::<Vec<_>>().as_slice() {
                [] => Err(matches),
                [only] => Ok(*only),
                several => Err(several.to_vec()),
            }
        });
        let wanted = found.map_err(|matches| {
            let message =
                format!("no open question with this id, or of this task, in session {}: {id}", self.session);
            unknown(&message, ids(), &matches)
        })?;
        let question = self.questions.iter().find(|question| question.id.to_string() == wanted);
        question.ok_or_else(|| Failure::failed("no such question"))
    }
}

/// That an id means nothing, or too much.
fn unknown<'a>(message: &str, all: impl Iterator<Item = &'a str>, matches: &[&str]) -> Failure {
    if !matches.is_empty() {
        return Failure::usage(format!("several match: {}", matches.join(", "))).hint("give more of the id");
    }
    let all: Vec<&str> = all.collect();
    let failure = Failure::usage(message);
    if all.is_empty() {
        failure.hint("there are none")
    } else {
        failure.hint(format!("there are: {}", all.join(", ")))
    }
}

/// A field of a row as text; empty where it is not.
pub fn text<'a>(row: &'a Value, field: &str) -> &'a str {
    row[field].as_str().unwrap_or_default()
}

/// Who asks, as it is named on the command line.
pub fn asker(question: &Question) -> &str {
    question.agent.as_ref().map_or("main", AgentId::as_str)
}

/// The one that is this, else the only one that begins so; else all that begin so.
fn one_of<'a>(all: impl Iterator<Item = &'a str>, wanted: &str) -> Result<&'a str, Vec<&'a str>> {
    let mut matches: Vec<&str> = all.filter(|id| !wanted.is_empty() && id.starts_with(wanted)).collect();
    matches.sort_unstable();
    matches.dedup();
    if let Some(exact) = matches.iter().find(|id| **id == wanted) {
        return Ok(exact);
    }
    match matches.len() {
        1 => Ok(matches.remove(0)),
        _ => Err(matches),
    }
}

/// Parents before their children, and otherwise as they began; what is not known to have begun comes last.
fn in_order(rows: Vec<Value>, opened: &[TaskId]) -> Vec<Value> {
    let began =
        |row: &Value| opened.iter().position(|task| task.as_str() == text(row, "id")).unwrap_or(usize::MAX);
    let mut waiting = rows;
    waiting.sort_by_key(began);
    let mut ordered: Vec<Value> = Vec::with_capacity(waiting.len());
    for row in waiting {
        // Behind the last descendant of its parent, which is where the next row is not deeper any more.
        let parent =
            ordered.iter().position(|other| row["parent"].is_string() && other["id"] == row["parent"]);
        let at = parent.map_or(ordered.len(), |parent| {
            let depth = ordered[parent]["depth"].as_u64();
            let below = ordered[parent + 1..].iter().take_while(|other| other["depth"].as_u64() > depth);
            parent + 1 + below.count()
        });
        ordered.insert(at, row);
    }
    ordered
}

/// A session's record, as far as tasks go.
#[derive(Default)]
pub struct TaskOverview {
    pub table: TaskTable,
    /// Their ids, as they began.
    pub opened: Vec<TaskId>,
    /// What waits for an answer.
    pub questions: Vec<Question>,
    /// The number of the last record.
    pub seq: u64,
}

impl TaskOverview {
    /// Reads the whole record.
    pub fn read(paths: &SessionPaths) -> Result<Self, Failure> {
        Self::read_and(paths, &mut |_| {})
    }

    /// The same, and shows each event to someone else too.
    pub fn read_and(paths: &SessionPaths, also: &mut dyn FnMut(&Envelope)) -> Result<Self, Failure> {
        let mut folded = Self::default();
        let options = ReplayOptions { scope: Scope::Everything, ..ReplayOptions::default() };
        let report = replay(paths, &options, &mut |envelope| {
            folded.apply(&envelope);
            also(&envelope);
        })
        .map_err(|error| Failure::failed(format!("cannot read {}: {error}", paths.transcript())))?;
        if let Some(problems) = report.problems() {
            note(format!("{}: {problems}", paths.transcript()));
        }
        folded.count();
        Ok(folded)
    }

    /// Takes one event in.
    pub fn apply(&mut self, envelope: &Envelope) {
        self.seq = self.seq.max(envelope.seq);
        self.table.apply(envelope);
        match &envelope.event {
            Event::TaskOpened { record } if !self.opened.contains(&record.task) => {
                self.opened.push(record.task.clone());
            }
            Event::Asked { question } => {
                self.questions.retain(|open| open.id != question.id);
                self.questions.push((**question).clone());
            }
            Event::Answered { question, .. } => self.questions.retain(|open| open.id != *question),
            // No one waits for it any more, whatever its result.
            Event::CallStarted { call, .. }
            | Event::CallEnded { call, .. }
            | Event::CallRefused { call, .. } => {
                self.questions.retain(|open| open.call != *call || open.agent != envelope.agent);
            }
            Event::RunEnded { .. } => self.questions.retain(|open| open.agent != envelope.agent),
            _ => {}
        }
    }

    /// What a task used is not on record while it runs, but with its end.
    fn count(&mut self) {
        self.table.count_endings();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_id_may_be_cut_short_as_long_as_it_is_clear() {
        let all = ["a12", "a13", "b1", "a1"];
        let find = |wanted| one_of(all.into_iter(), wanted);
        assert_eq!(find("b"), Ok("b1"));
        assert_eq!(find("a1"), Ok("a1"));
        assert_eq!(find("a"), Err(vec!["a1", "a12", "a13"]));
        assert_eq!((find("c"), find("")), (Err(vec![]), Err(vec![])));
    }

    #[test]
    fn children_stand_below_their_parents_in_the_order_they_began() {
        let row =
            |id: &str, parent: Option<&str>, depth: u32| json!({"id": id, "parent": parent, "depth": depth});
        let rows = vec![
            row("c", Some("z"), 2),
            row("a", None, 1),
            row("x", Some("c"), 3),
            row("z", None, 1),
            row("b", Some("z"), 2),
        ];
        let opened: Vec<TaskId> = ["z", "b", "a", "c", "x"].iter().map(|id| id.parse().unwrap()).collect();
        let ordered = in_order(rows, &opened);
        assert_eq!(ordered.iter().map(|row| text(row, "id")).collect::<Vec<_>>(), ["z", "b", "c", "x", "a"]);
    }
}
