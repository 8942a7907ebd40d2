//! C1, and its half without a terminal: signals to the program itself. Takes runs at random moments of which a
//! signal comes, or an end of their output or input, gives whether they ended with the right code, lost
//! nothing and left nobody.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use uuid::Uuid;

use super::kill::{Counts, FIRST, Trial, script};
use super::stand::{HANG, RUN, Stand, brief};
use super::{Dice, Options, Report, Row, in_parallel};
use crate::proc::Finished;
use crate::sys::Ending;

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![Row {
        id: "C1",
        what: "SIGINT, SIGTERM, SIGHUP, SIGTSTP, closed output or terminal, end of input",
        run: signalled,
    }]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    InterruptOnce,
    InterruptTwice,
    Terminate,
    HangUp,
    ClosedOutput,
    UnreadOutput,
    EndOfInput,
    StopAndContinue,
}

const CAUSES: [Cause; 8] = [
    Cause::InterruptOnce,
    Cause::InterruptTwice,
    Cause::Terminate,
    Cause::HangUp,
    Cause::ClosedOutput,
    Cause::UnreadOutput,
    Cause::EndOfInput,
    Cause::StopAndContinue,
];

fn signalled(options: &Options) -> Report {
    let length = match super::kill::run_time(options) {
        Ok(length) => length,
        Err(problem) => return Report::broken(problem),
    };
    let mut cases = Vec::new();
    for nth in 0..options.count(5, 50) {
        cases.extend(CAUSES.iter().map(|cause| (*cause, nth)));
    }
    let counts = Counts::default();
    let results = in_parallel(options.width, &cases, |(cause, nth)| {
        let mut dice = Dice::new(options.seed, *nth * 31 + *cause as u64);
        one(options, *cause, dice.time(length), &counts)
    });
    let mut report = Report::default();
    let mut slowest = Duration::ZERO;
    for ((cause, nth), result) in cases.iter().zip(results) {
        report.add(format_args!("{cause:?} {nth}"), result.map(|took| slowest = slowest.max(took)));
    }
    let headless = report.runs;
    let at_a_terminal = super::terminal_signals::everywhere(options, &mut report);
    let figure = format!(
        "{headless} runs without a terminal, {} at one (seed {}): {} with a wrong code, a terminal not given back, lost \
         records or children left; ended {} ms after the signal at most, at a terminal {} ms",
        report.runs - headless,
        options.seed,
        report.failures.len(),
        slowest.as_millis(),
        at_a_terminal.as_millis()
    );
    report.figure(figure)
}

/// One run, stopped at a moment; gives how long the end took.
fn one(options: &Options, cause: Cause, moment: Duration, counts: &Counts) -> Result<Duration, String> {
    let stand = Stand::new(options, script).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4().to_string();
    let mut trial = Trial::new(&stand, &id);
    drop(trial.next_program());
    let (run, took) = match cause {
        Cause::ClosedOutput => closed_output(&stand, &id, moment)?,
        Cause::UnreadOutput => unread_output(&stand, &id, moment)?,
        Cause::EndOfInput => end_of_input(&stand, &id, moment)?,
        _ => with_signals(&stand, &id, cause, moment)?,
    };
    if run.timed_out {
        return Err(format!("hangs after {moment:?}"));
    }
    if !right(cause, run.ending) {
        let errors = brief(&run.errors);
        return Err(format!("after {moment:?}: ended with {:?}: {errors}", run.ending));
    }
    trial.after(run, counts).map_err(|problem| format!("after {moment:?}: {problem}"))?;
    trial.conclude(counts).map_err(|problem| format!("after {moment:?}: {problem}"))?;
    Ok(took)
}

/// Whether a run may end so. One that was through before the signal came ended well; one that had not begun
/// to listen ended as the system lets it.
fn right(cause: Cause, ending: Ending) -> bool {
    let code = ending.code();
    match cause {
        Cause::InterruptOnce | Cause::InterruptTwice => matches!(code, 130 | 0),
        Cause::Terminate | Cause::UnreadOutput => matches!(code, 143 | 0),
        Cause::HangUp => matches!(code, 143 | 129 | 0),
        // Nobody reads: the run is stopped as by an interrupt.
        Cause::ClosedOutput => matches!(code, 0 | 6 | 141),
        Cause::EndOfInput | Cause::StopAndContinue => code == 0,
    }
}

fn with_signals(
    stand: &Stand,
    id: &str,
    cause: Cause,
    moment: Duration,
) -> Result<(Finished, Duration), String> {
    let running = stand.run_as(id, FIRST).start().map_err(|error| error.to_string())?;
    std::thread::sleep(moment);
    let send = |signal| {
        // It may be through already.
        let _ = running.signal(signal);
        Instant::now()
    };
    let sent = match cause {
        Cause::InterruptOnce => send(Signal::INT),
        Cause::InterruptTwice => {
            send(Signal::INT);
            std::thread::sleep(moment / 7);
            send(Signal::INT)
        }
        Cause::Terminate => send(Signal::TERM),
        Cause::HangUp => send(Signal::HUP),
        _ => {
            send(Signal::TSTP);
            std::thread::sleep(Duration::from_millis(60));
            send(Signal::CONT)
        }
    };
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    // After a stop the run goes on as long as it needs.
    let took = if cause == Cause::StopAndContinue { Duration::ZERO } else { sent.elapsed() };
    Ok((run, took))
}

/// Its output is a pipe whose reader goes away.
fn closed_output(stand: &Stand, id: &str, moment: Duration) -> Result<(Finished, Duration), String> {
    let seconds = format!("{:.3}", moment.as_secs_f64());
    let pipeline = "wait=$1; shift; \"$@\" | timeout \"$wait\" cat; exit ${PIPESTATUS[0]}";
    let program = stand.program("bash").args(["-c", pipeline, "bash", &seconds]).arg(stand.binary());
    let program = program.args(RUN).args(["--session-id", id, FIRST]);
    let begun = Instant::now();
    let run = program.run(HANG).map_err(|error| error.to_string())?;
    Ok((run, begun.elapsed().saturating_sub(moment)))
}

/// Its output is a small pipe that nobody reads, and then it is told to leave.
fn unread_output(stand: &Stand, id: &str, moment: Duration) -> Result<(Finished, Duration), String> {
    // The reader holds the pipe open for as long as the program lives; a full pipe stops the printing.
    let pipeline = "mkfifo $TMPDIR/pipe; exec 9<>$TMPDIR/pipe; head -c 65536 /dev/zero >&9; \
                    \"$@\" >&9 9>&- & wait $!";
    let program = stand.program("bash").args(["-c", pipeline, "bash"]).arg(stand.binary());
    let program = program.args(RUN).args(["--include-partial-messages", "--session-id", id, FIRST]);
    let running = program.start().map_err(|error| error.to_string())?;
    std::thread::sleep(moment);
    let deadline = Instant::now() + HANG;
    let main = loop {
        match stand.main() {
            Some(pid) => break pid,
            None if Instant::now() > deadline => return Err("it did not begin".into()),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let sent = Instant::now();
    if let Some(pid) = rustix::process::Pid::from_raw(main) {
        // It may be through already.
        let _ = rustix::process::kill_process(pid, Signal::TERM);
    }
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    Ok((run, sent.elapsed()))
}

/// Its prompt comes from a pipe that ends later.
fn end_of_input(stand: &Stand, id: &str, moment: Duration) -> Result<(Finished, Duration), String> {
    let program = stand.program(stand.binary()).args(RUN).args(["--session-id", id]);
    let mut running = program.start_talking().map_err(|error| error.to_string())?;
    running.say(FIRST).map_err(|error| error.to_string())?;
    std::thread::sleep(moment);
    running.hang_up();
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    Ok((run, Duration::ZERO))
}
