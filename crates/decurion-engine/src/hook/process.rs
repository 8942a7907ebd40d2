//! The process of one hook. Takes what to launch and how long it may take, gives how it ended and what it
//! printed, both bounded, whatever it does.

use std::io;
use std::pin::{Pin, pin};
use std::time::Duration;

use decurion_exec::{Exit, Guard, Launch, Limit, Process};
use tokio::net::unix::pipe;
use tokio::time::{Sleep, sleep, timeout};

/// How much is read of each of its outputs.
const MOST_BYTES: usize = 1 << 20;
/// How long a hook that must end may take to do so by itself.
const GRACE: Duration = Duration::from_secs(2);
/// How long to read on after it ended: somebody else may hold its pipes for ever.
const LATE: Duration = Duration::from_millis(200);
const PIECE: usize = 16 << 10;

/// What became of a hook.
pub(super) struct Ran {
    pub ending: Ending,
    /// Whether it ran in a sandbox.
    pub sandboxed: bool,
    pub stdout: String,
    pub stderr: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// By itself, with this code.
    Code(i32),
    /// By a signal that was not ours.
    Signal(i32),
    /// It was ended since it used more than this.
    OverLimit(Limit),
    /// Nobody saw it end.
    Unseen,
    /// It was stopped after so long.
    TimedOut(Duration),
    /// It was stopped since it printed too much.
    Flooded,
    /// It never began; the reason is for people.
    NotStarted(String),
}

/// Runs a hook, which is made ready within the same time.
pub(super) async fn run(
    guard: Option<&Guard>,
    launch: impl Future<Output = Result<Launch, String>>,
    limit: Duration,
) -> Ran {
    // The time runs from here, so that a machine too busy to start anything keeps nobody waiting.
    let mut time = pin!(sleep(limit));
    let mut ran =
        Ran { ending: Ending::Unseen, sandboxed: false, stdout: String::new(), stderr: String::new() };
    let launch = tokio::select! {
        biased;
        launch = launch => launch.map_err(Ending::NotStarted),
        () = &mut time => Err(Ending::TimedOut(limit)),
    };
    let launch = match launch {
        Ok(launch) => launch,
        Err(ending) => return Ran { ending, ..ran },
    };
    ran.sandboxed = launch.sandbox.is_some();
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let ending = see_through(guard, launch, (time, limit), &mut output, &mut errors).await;
    Ran { ending, stdout: text(&output), stderr: text(&errors), ..ran }
}

async fn see_through(
    guard: Option<&Guard>,
    launch: Launch,
    (mut time, limit): (Pin<&mut Sleep>, Duration),
    output: &mut Vec<u8>,
    errors: &mut Vec<u8>,
) -> Ending {
    let Some(guard) = guard else {
        return Ending::NotStarted("processes cannot be started in this run".to_owned());
    };
    let started = tokio::select! {
        biased;
        started = guard.start(launch) => started,
        () = &mut time => return Ending::TimedOut(limit),
    };
    let mut process = match started {
        Ok(process) => process,
        Err(error) => return Ending::NotStarted(error.to_string()),
    };
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    let mut reading = pin!(async { tokio::try_join!(drain(stdout, output), drain(stderr, errors)) });
    let first = tokio::select! {
        biased;
        read = &mut reading => First::Read(read.map(|_| ())),
        exit = process.wait() => First::Exit(exit),
        () = &mut time => First::Time,
    };
    match first {
        First::Exit(exit) => match timeout(LATE, reading).await {
            Ok(Err(Flooded)) => Ending::Flooded,
            Ok(Ok(_)) | Err(_) => Ending::from(exit),
        },
        // It may go on with its outputs closed.
        First::Read(Ok(())) => tokio::select! {
            biased;
            exit = process.wait() => Ending::from(exit),
            () = &mut time => stopped(&mut process, Ending::TimedOut(limit)).await,
        },
        First::Read(Err(Flooded)) => stopped(&mut process, Ending::Flooded).await,
        First::Time => stopped(&mut process, Ending::TimedOut(limit)).await,
    }
}

/// What happens first to a hook that runs.
enum First {
    Read(Result<(), Flooded>),
    Exit(Exit),
    Time,
}

async fn stopped(process: &mut Process, ending: Ending) -> Ending {
    process.stop(GRACE).await;
    ending
}

struct Flooded;

/// Reads to the end, or until there is too much.
async fn drain(pipe: Option<pipe::Receiver>, into: &mut Vec<u8>) -> Result<(), Flooded> {
    let Some(pipe) = pipe else { return Ok(()) };
    let mut piece = vec![0; PIECE];
    loop {
        if pipe.readable().await.is_err() {
            return Ok(());
        }
        match pipe.try_read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(length) if into.len() + length > MOST_BYTES => {
                // Nobody reads an answer out of it any more; its beginning shows what it was.
                into.truncate(PIECE);
                into.shrink_to_fit();
                return Err(Flooded);
            }
            Ok(length) => into.extend_from_slice(&piece[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Ok(()),
        }
    }
}

/// Bytes as text: what is not UTF-8 becomes U+FFFD, a NUL its picture.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if text.contains('\0') { text.replace('\0', "\u{2400}") } else { text.into_owned() }
}

impl From<Exit> for Ending {
    fn from(exit: Exit) -> Self {
        match exit {
            // A shell tells of its command's death by a signal in this way.
            Exit::Code(code @ 129..=192) => Self::Signal(code - 128),
            Exit::Code(code) => Self::Code(code),
            Exit::Signal(signal) => Self::Signal(signal),
            Exit::OverLimit(limit) => Self::OverLimit(limit),
            Exit::Unknown => Self::Unseen,
        }
    }
}
