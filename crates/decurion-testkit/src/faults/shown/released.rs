//! E1: what an agent carried is given back in one order, however it ended. Takes an agent with all that a
//! definition can give it, ends it in every way there is, gives the order on record and what was left behind.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use decurion_protocol::{Event, ReleaseStep, SessionId, Step};
use decurion_store::Archive;
use rustix::process::Signal;

use crate::faults::ledger::events;
use crate::faults::stand::{HANG, RUN, Stand, brief};
use crate::faults::{Options, Report};
use crate::proc::{Finished, lines_of};

/// How the agent comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Normal,
    Failure,
    Panic,
    Kill,
    CancelOfItsParent,
    Terminate,
}

const ENDS: [End; 6] =
    [End::Normal, End::Failure, End::Panic, End::Kill, End::CancelOfItsParent, End::Terminate];

/// The command that the agent leaves running; the number occurs nowhere else.
const LEFT: &str = "echo left >> $EFFECTS; sleep 86399";

pub(super) fn row(options: &Options) -> Report {
    let mut report = Report::default();
    let mut orders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for end in ENDS {
        let result = one(options, end).map(|order| orders.entry(order).or_default().push(format!("{end:?}")));
        report.add(format_args!("{end:?}"), result);
    }
    let said: Vec<String> =
        orders.iter().map(|(order, ends)| format!("{}: {order}", ends.join(", "))).collect();
    let figure = format!(
        "{} of {} gave everything back, 0 processes and 0 temporary files left; {}",
        report.runs - report.failures.len() as u64,
        report.runs,
        said.join("; ")
    );
    report.figure(figure)
}

/// The agent's own part of the script.
fn carrier(end: End) -> &'static str {
    match end {
        End::Normal => "say \"done\"",
        End::Failure => "fail 401 \"no\"",
        End::Panic => "panic",
        End::Kill | End::CancelOfItsParent | End::Terminate => "delay 9m\n  say \"late\"",
    }
}

/// What the root does until the agent has ended.
fn root(end: End) -> String {
    let begin = |kind: &str, background: bool| {
        format!(
            "call Agent {{\"description\": \"carry\", \"prompt\": \"carry it\", \"subagent_type\": \"{kind}\", \
             \"run_in_background\": {background}}}"
        )
    };
    let stop = "when agent=main match=/agentId: (a[0-9a-f]+)/\n  call Bash command=\"until [ -s $EFFECTS ]; do sleep 0.02; done\"\n  \
                call TaskStop {\"task_id\": \"$1\"}\n";
    match end {
        End::Kill => format!("when agent=main turn=1\n  {}\n{stop}", begin("carrier", true)),
        End::CancelOfItsParent => format!(
            "when agent=outer\n  {}\nwhen agent=main turn=1\n  {}\n{stop}",
            begin("carrier", false),
            begin("outer", true)
        ),
        _ => format!("when agent=main turn=1\n  {}\n", begin("carrier", false)),
    }
}

fn script(end: End) -> String {
    format!(
        "when agent=carrier turn=1\n  call Bash {{\"command\": \"{LEFT}\", \"run_in_background\": true}}\n\
         when agent=carrier turn=2\n  {}\n{}when\n  say \"so it is\"\n",
        carrier(end),
        root(end)
    )
}

/// One run: the order in which its agent gave back what it carried.
fn one(options: &Options, end: End) -> Result<String, String> {
    let failed = |error: std::io::Error| error.to_string();
    let stand = Stand::new(options, |_| "when\n  say \"nobody asks\"\n".to_owned()).map_err(failed)?;
    let file = stand.home.path().join("script");
    std::fs::write(&file, script(end)).map_err(failed)?;
    define(&stand).map_err(failed)?;
    let session = uuid::Uuid::new_v4().to_string();
    let program = stand
        .program(stand.binary())
        .args(RUN)
        .args(["--session-id", &session, "--settings", r#"{"agents": {"max_depth": 2}}"#, "--model"])
        .arg(format!("scripted:{}", file.display()))
        .arg("go");
    let running = program.start().map_err(failed)?;
    if end == End::Terminate {
        wait_for_effect(&stand)?;
        running.signal(Signal::TERM).map_err(failed)?;
    }
    let run = running.finish(HANG).map_err(failed)?;
    if run.timed_out {
        return Err(format!("hangs: {}", brief(&run.errors)));
    }
    stand.wait_until_gone(crate::faults::stand::GONE)?;
    nothing_left(&stand)?;
    order(&stand, &session, &run)
}

/// The agents, in the user's own folder, so that nothing waits for trust.
fn define(stand: &Stand) -> std::io::Result<()> {
    let folder = stand.home.state().join("agents");
    std::fs::create_dir_all(&folder)?;
    let hooks =
        "hooks:\n  PostToolUse:\n    - hooks:\n        - type: command\n          command: \"true\"\n";
    std::fs::write(
        folder.join("carrier.md"),
        format!("---\nname: carrier\ndescription: carries everything\n{hooks}---\nYou carry.\n"),
    )?;
    std::fs::write(folder.join("outer.md"), "---\nname: outer\ndescription: delegates\n---\nYou delegate.\n")
}

fn wait_for_effect(stand: &Stand) -> Result<(), String> {
    let begun = Instant::now();
    while lines_of(&stand.home.effects()).is_empty() {
        if begun.elapsed() > HANG {
            return Err("the agent never began its command".to_owned());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// No temporary file is left, neither in the folder for those nor among the state.
fn nothing_left(stand: &Stand) -> Result<(), String> {
    let mut left = files_below(&stand.home.path().join("tmp"));
    let state = files_below(&stand.home.state());
    left.extend(state.into_iter().filter(|path| path.contains(".tmp") || path.contains("/worktrees/")));
    if left.is_empty() { Ok(()) } else { Err(format!("files left: {}", left.join(", "))) }
}

fn files_below(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let below = |entry: std::fs::DirEntry| {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            files_below(&path)
        } else {
            vec![path.display().to_string()]
        }
    };
    entries.flatten().flat_map(below).collect()
}

/// The order on record, with what each step had to say.
fn order(stand: &Stand, session: &str, run: &Finished) -> Result<String, String> {
    let state = camino::Utf8PathBuf::try_from(stand.home.state()).map_err(|error| error.to_string())?;
    let id: SessionId = session.parse().map_err(|_| "no session".to_owned())?;
    let events = events(&Archive::new(state), id)?;
    let released: Vec<&Vec<Step<ReleaseStep>>> = events
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::Released { steps } if steps.iter().any(|step| noted(step, "86399")) => Some(steps),
            _ => None,
        })
        .collect();
    let [steps] = &released[..] else {
        let errors = brief(&run.errors);
        return Err(format!("{} agents gave back a running command: {errors}", released.len()));
    };
    let taken: Vec<ReleaseStep> = steps.iter().map(|step| step.step).collect();
    if taken != ReleaseStep::ALL {
        return Err(format!("another order: {taken:?}"));
    }
    let words = |step: &Step<ReleaseStep>| {
        let name = format!("{:?}", step.step).to_lowercase();
        if step.note.is_some() { format!("{name}*") } else { name }
    };
    Ok(steps.iter().map(words).collect::<Vec<_>>().join(" → "))
}

fn noted(step: &Step<ReleaseStep>, word: &str) -> bool {
    step.note.as_ref().is_some_and(|note| note.contains(word))
}
