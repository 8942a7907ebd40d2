//! What the last process of a session left unfinished. Takes the record as it is before the session is opened again, gives
//! a sentence for the person who opens it; none if everything had ended by itself.

use std::collections::HashSet;

use camino::Utf8Path;
use decurion_engine::task::{BY_END, TaskTable};
use decurion_protocol::{Envelope, Event, OpenSession, Outcome, Start, TaskId, TaskKind, TaskState};
use decurion_serve::progress::one_line;

use super::past;

/// How many are named.
const MOST_NAMED: usize = 4;

/// The sentence for a session that resumes, with how to resume an agent there.
pub fn of(
    request: &OpenSession,
    state: Option<&Utf8Path>,
    to_resume: &str,
) -> Option<(&'static str, String)> {
    let Start::Resume { id, at: None } = request.start else { return None };
    sentence(&past(state, id), to_resume)
}

fn sentence(past: &[Envelope], to_resume: &str) -> Option<(&'static str, String)> {
    let mut tasks = TaskTable::default();
    let mut root_works = false;
    let mut opened: Vec<&TaskId> = Vec::new();
    let mut ended_since: HashSet<TaskId> = HashSet::new();
    for envelope in past {
        tasks.apply(envelope);
        match &envelope.event {
            Event::RunStarted { .. } if envelope.agent.is_none() => root_works = true,
            Event::RunEnded { .. } if envelope.agent.is_none() => root_works = false,
            Event::Queued { .. } => ended_since.clear(),
            Event::TaskOpened { record } if !opened.contains(&&record.task) => opened.push(&record.task),
            Event::RunEnded { .. } => ended_since.extend(envelope.agent.clone().map(TaskId::from)),
            _ => {}
        }
    }
    let named = |fits: &dyn Fn(&TaskState, &TaskId, bool) -> bool| -> Vec<String> {
        let rows = opened.iter().filter_map(|task| tasks.row(task));
        let rows =
            rows.filter(|row| fits(&row.state(), &row.record.task, row.record.kind == TaskKind::LocalBash));
        rows.map(|row| one_line(&row.record.description)).collect()
    };
    let agents = named(&|state, _, is_command| !is_command && !over(state));
    let commands = named(&|state, _, is_command| is_command && !over(state));
    if root_works || !agents.is_empty() || !commands.is_empty() {
        let going: Vec<String> =
            root_works.then(|| "the last prompt".to_owned()).into_iter().chain(agents).collect();
        let mut text = "The process of this session was killed.".to_owned();
        if !going.is_empty() {
            text.push_str(&format!(" Continuing: {}.", list(&going)));
        }
        if !commands.is_empty() {
            text.push_str(&format!(" Ended with it: {}.", list(&commands)));
        }
        return Some(("warning", text));
    }
    let by_end =
        |state: &TaskState| matches!(state, TaskState::Ended(Outcome::Killed { by }) if by == BY_END);
    let stopped =
        named(&|state, task, is_command| !is_command && by_end(state) && ended_since.contains(task));
    (!stopped.is_empty()).then(|| {
        ("info", format!("Stopped when the session ended: {}. To resume one: {to_resume}.", list(&stopped)))
    })
}

fn over(state: &TaskState) -> bool {
    matches!(state, TaskState::Ended(_) | TaskState::Idle)
}

fn list(names: &[String]) -> String {
    let (named, more) = names.split_at(names.len().min(MOST_NAMED));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    format!("{}{more}", named.join(", "))
}
