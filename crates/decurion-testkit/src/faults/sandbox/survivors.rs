//! X6: a session with many agents is killed together with its guards and reapers. Takes a model whose agents each start a
//! shell that ignores SIGTERM and a daemon, kills, gives the processes that are left after two seconds.

use std::time::Duration;

use serde_json::json;

use crate::faults::stand::{Stand, brief, kill};
use crate::faults::{Options, Report};
use crate::proc::{Program, wait_for_lines};

/// A session is given so long to start all its commands. Far more than it takes.
const READY: Duration = Duration::from_secs(120);
/// What is left so long after the kill survives.
const GONE: Duration = Duration::from_secs(2);

pub(super) fn row(options: &Options) -> Report {
    let kills = options.kills.unwrap_or(options.count(3, 100));
    let agents = if options.ci { 10 } else { 100 };
    let mut report = Report::default();
    let (mut longest, mut killed) = (Duration::ZERO, 0);
    for nth in 0..kills {
        // By turns only the program, and all of its own processes at the same instant.
        let all = nth % 2 == 0;
        let result = try_once(options, agents, all).map(|(took, processes)| {
            longest = longest.max(took);
            killed += processes;
        });
        report.add(format!("kill {nth}{}", if all { " with guards and reapers" } else { "" }), result);
    }
    let failed = report.failures.len();
    report.figure(format!(
        "{kills} kills of a session with {agents} agents: {failed} left survivors; of {killed} processes the last was gone \
         after {} ms",
        longest.as_millis()
    ))
}

/// Kills one session. Gives how long its processes took to end, and how many there were.
fn try_once(options: &Options, agents: usize, all: bool) -> Result<(Duration, usize), String> {
    let command =
        "trap '' TERM; (setsid sleep 3217 > /dev/null 2>&1 &); echo up >> $EFFECTS; sleep 3217; true";
    let call = json!({"command": command});
    let agent = json!({"description": "d", "prompt": "p", "subagent_type": "general-purpose"});
    let spawn: String = (0..agents).map(|_| format!("  call Agent {agent}\n")).collect();
    let script = format!(
        "when agent=main turn=1\n{spawn}when agent=general-purpose turn=1\n  call Bash {call}\nwhen\n  say \"done\"\n"
    );
    let stand = Stand::new(options, |_| script).map_err(|error| error.to_string())?;
    let program: Program = stand.run("go");
    let running = program.start().map_err(|error| error.to_string())?;
    let up = wait_for_lines(&stand.home.effects(), agents, READY).map_err(|error| error.to_string())?;
    if up < agents {
        let problem = stand.model.problems().first().map(|text| brief(text));
        return Err(format!("only {up} of {agents} agents have a command: {problem:?}"));
    }
    let before = stand.processes();
    // The commands and daemons carry the marker; those of ours run the binary.
    if before.len() < 2 * agents {
        return Err(format!("only {} processes are there to survive", before.len()));
    }
    let own = if all { stand.own_processes() } else { vec![running.pid] };
    own.into_iter().for_each(kill);
    let took = stand.wait_until_gone(GONE)?;
    drop(running);
    Ok((took, before.len()))
}
