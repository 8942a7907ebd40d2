//! E1: what an agent carried is given back in one order, however it ended. Takes an agent with all that a
//! definition can give it, ends it in every way there is, gives the order on record and what was left behind.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use decurion_protocol::{Event, ReleaseStep, SessionId, Step};
use decurion_store::Archive;
use rustix::process::Signal;
use serde_json::json;

use crate::faults::ledger::events;
use crate::faults::mcp::{alive, declaration, log_file};
use crate::faults::stand::{HANG, RUN, Stand, brief};
use crate::faults::{Options, Report};
use crate::proc::{Finished, lines_of};
use crate::repo::Repo;

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
const LEFT: &str = "sleep 86399";

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
fn root(end: End, log: &Path) -> String {
    let begin = |kind: &str, background: bool| {
        format!(
            "call Agent {{\"description\": \"carry\", \"prompt\": \"carry it\", \"subagent_type\": \"{kind}\", \
             \"run_in_background\": {background}}}"
        )
    };
    // By the time its server was called it has everything.
    let stop = format!(
        "when agent=main match=/agentId: (a[0-9a-f]+)/\n  call Bash command=\"until grep -q call {}; do sleep \
         0.02; done\"\n  call TaskStop {{\"task_id\": \"$1\"}}\n",
        log.display()
    );
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

fn script(end: End, log: &Path) -> String {
    format!(
        "when agent=carrier turn=1\n  call Bash {{\"command\": \"{LEFT}\", \"run_in_background\": true}}\n\
         when agent=carrier turn=2\n  call mcp__one__echo {{\"text\": \"x\"}}\n\
         when agent=carrier turn=3\n  {}\n{}when\n  say \"so it is\"\n",
        carrier(end),
        root(end, log)
    )
}

/// One run: the order in which its agent gave back what it carried.
fn one(options: &Options, end: End) -> Result<String, String> {
    let failed = |error: std::io::Error| error.to_string();
    let stand = Stand::new(options, |_| "when\n  say \"nobody asks\"\n".to_owned()).map_err(failed)?;
    let (file, log) = (stand.home.path().join("script"), log_file(&stand, "one"));
    std::fs::write(&file, script(end, &log)).map_err(failed)?;
    for arguments in [&["init", "--quiet"][..], &["commit", "--quiet", "--allow-empty", "--message", "first"]]
    {
        Repo::git_at(&stand.home.work(), arguments).map_err(failed)?;
    }
    let session = uuid::Uuid::new_v4().to_string();
    let program = stand
        .program(stand.binary())
        .args(RUN)
        .args(["--session-id", &session, "--settings", r#"{"agents": {"max_depth": 2}}"#])
        .args(["--agents", &agents(options, &stand), "--model"])
        .arg(format!("scripted:{}", file.display()))
        .arg("go");
    let running = program.start().map_err(failed)?;
    if end == End::Terminate {
        wait_for_call(&log)?;
        running.signal(Signal::TERM).map_err(failed)?;
    }
    let run = running.finish(HANG).map_err(failed)?;
    if run.timed_out {
        return Err(format!("hangs: {}", brief(&run.errors)));
    }
    stand.wait_until_gone(crate::faults::stand::GONE)?;
    if alive(&stand, "one") > 0 {
        return Err("its server still runs".to_owned());
    }
    nothing_left(&stand)?;
    order(&stand, &session, &run)
}

/// One that carries everything, and one that delegates to it.
fn agents(options: &Options, stand: &Stand) -> String {
    let hook = json!({"hooks": [{"type": "command", "command": "true"}]});
    json!({
        "carrier": {
            "description": "carries everything", "prompt": "You carry.", "isolation": "worktree",
            "hooks": {"PostToolUse": [hook]},
            "mcpServers": [{"one": declaration(options, stand, "one", "plain")}],
        },
        "outer": {"description": "delegates", "prompt": "You delegate."},
    })
    .to_string()
}

fn wait_for_call(log: &Path) -> Result<(), String> {
    let begun = Instant::now();
    while !lines_of(log).iter().any(|line| line.starts_with("call ")) {
        if begun.elapsed() > HANG {
            return Err("the agent never called its server".to_owned());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// No temporary file is left, neither in the folder for those nor among the state.
fn nothing_left(stand: &Stand) -> Result<(), String> {
    let mut left = files_below(&stand.home.path().join("tmp"));
    let state = files_below(&stand.home.state());
    left.extend(state.into_iter().filter(|path| path.contains(".tmp") || is_checkout(path)));
    if left.is_empty() { Ok(()) } else { Err(format!("files left: {}", left.join(", "))) }
}

/// Whether a file is one of an agent's checkout. Beside it there is a record of what became of it, which stays.
fn is_checkout(path: &str) -> bool {
    path.split_once("/worktrees/").is_some_and(|(_, rest)| rest.split('/').count() > 2)
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
            // Only the one that carries everything has a server of its own. A command that was stopped together
            // with its agent may have ended before its turn came, so that is no mark.
            Event::Released { steps } if has_server(steps) => Some(steps),
            _ => None,
        })
        .collect();
    let [steps] = &released[..] else {
        let errors = brief(&run.errors);
        return Err(format!("{} agents gave back a server: {errors}", released.len()));
    };
    if !steps.iter().any(|taken| taken.step == ReleaseStep::Worktree && taken.note.is_some()) {
        return Err("it gave back no worktree".to_owned());
    }
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

fn has_server(steps: &[Step<ReleaseStep>]) -> bool {
    steps.iter().any(|step| step.step == ReleaseStep::Servers && step.note.is_some())
}
