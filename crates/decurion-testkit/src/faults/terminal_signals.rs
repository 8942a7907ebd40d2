//! C1, the half at a terminal: signals, a closed terminal, an end of input. Takes sessions with an agent in the foreground,
//! one in the background and a command, disturbed at random moments; gives whether they ended with the right code, gave
//! the terminal back, lost nothing and left nobody.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use uuid::Uuid;

use super::stand::{HANG, brief, ended_well};
use super::terminal::{PATIENCE, READY, Session, Setting, said};
use super::{Dice, Options, Report, in_parallel};
use crate::proc::{Evidence, lines_of};
use crate::server::Recorded;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    InterruptOnce,
    InterruptTwice,
    Terminate,
    HangUp,
    ClosedTerminal,
    EndOfInput,
    StopAndContinue,
}

const CAUSES: [Cause; 7] = [
    Cause::InterruptOnce,
    Cause::InterruptTwice,
    Cause::Terminate,
    Cause::HangUp,
    Cause::ClosedTerminal,
    Cause::EndOfInput,
    Cause::StopAndContinue,
];

/// A session takes about so long from its start to its last word.
const LENGTH: Duration = Duration::from_millis(2_500);
/// The prompt that takes a session up again.
const AGAIN: &str = "go on after it";
/// What the model says to that.
const ANSWERED: &str = "All is well again.";

/// Tries them all; gives how long the slowest end took.
pub(super) fn everywhere(options: &Options, report: &mut Report) -> Duration {
    let mut cases = Vec::new();
    for nth in 0..options.count(3, 50) {
        cases.extend(CAUSES.iter().map(|cause| (*cause, nth)));
    }
    let results = in_parallel(options.width, &cases, |(cause, nth)| {
        let mut dice = Dice::new(options.seed, 1_000 + *nth * 31 + *cause as u64);
        one(options, *cause, &mut dice)
    });
    let mut slowest = Duration::ZERO;
    for ((cause, nth), result) in cases.iter().zip(results) {
        report.add(
            format_args!("at a terminal, {cause:?} {nth}"),
            result.map(|took| slowest = slowest.max(took)),
        );
    }
    slowest
}

/// A prompt that was accepted and not begun is worked on when the session is resumed, and the run then waits for its
/// command in the background. So that takes less time than a run that hangs.
fn script(_work: &Path) -> String {
    format!(
        r#"
when agent=main text=/{AGAIN}/
  say "{ANSWERED}"
when agent=main text=/begin the work/
  say chunk=4 "I begin with a few words that take their time to arrive."
  call Bash {{"command": "echo effect-1 >> $EFFECTS; echo one", "description": "one"}}
  call Agent {{"description": "dig", "prompt": "dig deep", "subagent_type": "general-purpose", "run_in_background": true}}
when agent=main turn=2
  call Bash {{"command": "echo effect-2 >> $EFFECTS; sleep 20", "description": "two", "run_in_background": true}}
  call Bash {{"command": "echo effect-3 >> $EFFECTS; sleep 0.2; echo three", "description": "three"}}
when agent=main turn=3
  say "Now somebody looks."
  call Agent {{"description": "look", "prompt": "look around", "subagent_type": "Explore"}}
when agent=main turn=4
  call Bash {{"command": "echo effect-4 >> $EFFECTS; sleep 0.3; echo four", "description": "four"}}
when agent=main
  say "Heard."
when agent=Explore turn=1..4
  call Bash {{"command": "echo below-look-${{seen.turn}} >> $EFFECTS; sleep 0.1", "description": "look"}}
when agent=general-purpose turn=1..9
  call Bash {{"command": "echo below-dig-${{seen.turn}} >> $EFFECTS; sleep 0.1", "description": "dig"}}
when
  say "Nothing more."
"#
    )
}

/// One session; gives how long its end took.
fn one(options: &Options, cause: Cause, dice: &mut Dice) -> Result<Duration, String> {
    let id = Uuid::new_v4().to_string();
    let setting = Setting { arguments: vec!["--session-id".into(), id.clone()], ..Setting::default() };
    let mut session = Session::begin(options, script, |_| {}, &setting)?;
    let moment = dice.time(LENGTH);
    let ready = play(&mut session, moment)?;
    let took = disturb(&mut session, cause, ready, dice)
        .map_err(|problem| format!("after {moment:?}: {problem}"))?;
    let checked = session.judge().and_then(|()| audit(&session, &id));
    checked.map_err(|problem| format!("after {moment:?}: {problem}"))?;
    Ok(took)
}

/// Works until this moment; says whether the program had the terminal by then.
fn play(session: &mut Session, moment: Duration) -> Result<bool, String> {
    let (begun, mut ready) = (Instant::now(), false);
    while begun.elapsed() < moment {
        session.pty.pump(Duration::from_millis(5)).map_err(said)?;
        if !ready && session.pty.screen().contains(READY) {
            ready = true;
            session.say("begin the work")?;
        }
    }
    Ok(ready)
}

fn disturb(session: &mut Session, cause: Cause, ready: bool, dice: &mut Dice) -> Result<Duration, String> {
    let mut sent = Instant::now();
    match cause {
        Cause::InterruptOnce => {
            // By the key, where there is somebody to take it, or by a signal.
            if ready && dice.below(2) == 0 {
                session.pty.write([3]).map_err(said)?;
            } else {
                signal(session, Signal::INT);
            }
            if ready {
                // Longer than two interrupts that belong together.
                session.pty.rest(Duration::from_millis(1_200)).map_err(said)?;
                answers(session)?;
                signal(session, Signal::TERM);
                sent = Instant::now();
            } else if session.end(Duration::from_secs(2))?.is_none() {
                // It had begun to listen after all, and one interrupt is no end.
                signal(session, Signal::TERM);
                sent = Instant::now();
            }
        }
        Cause::InterruptTwice => {
            signal(session, Signal::INT);
            session.pty.rest(Duration::from_millis(20 + dice.below(400))).map_err(said)?;
            signal(session, Signal::INT);
            sent = Instant::now();
        }
        Cause::Terminate => signal(session, Signal::TERM),
        Cause::HangUp => signal(session, Signal::HUP),
        Cause::ClosedTerminal => session.pty.close(),
        Cause::EndOfInput => {
            session.pty.write([4]).map_err(said)?;
            // Where something still works, it asks what becomes of that; Ctrl+C is the answer that ends it.
            while session.end(Duration::from_millis(400))?.is_none() && sent.elapsed() < PATIENCE {
                session.pty.write([3]).map_err(said)?;
            }
        }
        Cause::StopAndContinue => {
            stop_and_continue(session, ready)?;
            signal(session, Signal::TERM);
            sent = Instant::now();
        }
    }
    let Some(ending) = session.end(PATIENCE)? else {
        return Err(format!("it goes on; the screen shows {}", brief(&session.pty.screen())));
    };
    if is_right(cause, ready, ending.code()) {
        Ok(sent.elapsed())
    } else {
        Err(format!("{ending:?}: {}", brief(&session.pty.screen())))
    }
}

/// To the program; it may be through already.
fn signal(session: &Session, signal: Signal) {
    let _ = session.pty.signal(signal);
}

/// Whether it may end so. One that had not begun to listen ended as the system lets it.
fn is_right(cause: Cause, ready: bool, code: i32) -> bool {
    match cause {
        Cause::InterruptOnce if ready => code == 143,
        Cause::InterruptOnce => matches!(code, 130 | 143),
        Cause::InterruptTwice => code == 130,
        Cause::Terminate | Cause::StopAndContinue => code == 143,
        Cause::HangUp => code == 129,
        // One that is gone before anybody looked is no terminal.
        Cause::ClosedTerminal => code == 129 || !ready && matches!(code, 1 | 2),
        // A key that comes before anybody takes keys may go to whoever asks first.
        Cause::EndOfInput => code == 0 || !ready && code == 130,
    }
}

/// That a session is still there for whoever sits at it.
fn answers(session: &mut Session) -> Result<(), String> {
    session.say(AGAIN)?;
    session.pty.wait_for(ANSWERED, PATIENCE).map(drop)
}

/// Held as a shell does it. While it is held the terminal is the shell's.
fn stop_and_continue(session: &mut Session, ready: bool) -> Result<(), String> {
    signal(session, Signal::TSTP);
    // One that had not begun to listen may pass it over.
    let deadline = Instant::now() + if ready { PATIENCE } else { Duration::from_millis(500) };
    while !is_stopped(session.pty.pid()) {
        if Instant::now() > deadline {
            return if ready { Err("it is not stopped".into()) } else { Ok(()) };
        }
        session.pty.pump(Duration::from_millis(5)).map_err(said)?;
    }
    while session.pty.pump(Duration::from_millis(20)).map_err(said)? {}
    let left = session.pty.left_behind();
    if ready && !left.is_empty() {
        return Err(format!("stopped, and the terminal is not the shell's: {}", left.join(", ")));
    }
    session.pty.rest(Duration::from_millis(60)).map_err(said)?;
    // As `fg` does: to everybody in the group.
    if let Some(group) = rustix::process::Pid::from_raw(session.pty.pid()) {
        let _ = rustix::process::kill_process_group(group, Signal::CONT);
    }
    if !ready {
        return Ok(());
    }
    // Before the program has the terminal again, the terminal itself would take the end of a line for another key.
    let deadline = Instant::now() + PATIENCE;
    while session.pty.modes().map_err(said)? == session.pty.modes_before() {
        if Instant::now() > deadline {
            return Err("it does not take the terminal again".into());
        }
        session.pty.pump(Duration::from_millis(5)).map_err(said)?;
    }
    answers(session)
}

fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// Takes the session up again and compares what it says happened with what was seen from outside.
fn audit(session: &Session, id: &str) -> Result<(), String> {
    let stand = &session.stand;
    let effects = lines_of(&stand.home.effects());
    let mut seen = HashSet::new();
    if let Some(twice) = effects.iter().find(|effect| !seen.insert(effect.as_str())) {
        return Err(format!("duplicated: {twice}"));
    }
    let before = of_root(&stand.model.requests());
    if before.is_empty() && !stand.transcript(id).exists() {
        return if effects.is_empty() { Ok(()) } else { Err("lost: effects without a session".into()) };
    }
    let run = stand.resume(id, &format!("now {AGAIN}")).run(HANG).map_err(said)?;
    ended_well(&run).map_err(|problem| format!("refused to go on: {problem}"))?;
    stand.check_left()?;
    let all = of_root(&stand.model.requests());
    let resumed = all.get(before.len()).cloned().ok_or("lost: it sent no request")?;
    let effects = effects.into_iter().filter(|effect| effect.starts_with("effect")).collect();
    let verdict = Evidence { printed: Vec::new(), requests: before, effects, resumed }.judge();
    if verdict.is_clean() { Ok(()) } else { Err(format!("{verdict:?}")) }
}

/// The bodies of the root's requests.
fn of_root(requests: &[Recorded]) -> Vec<Value> {
    requests.iter().filter(|request| request.agent == "main").map(Recorded::json).collect()
}
