//! H1–H3: hooks that hang, crash, flood or never let go. Takes hooks of the settings, runs them through the loop
//! or the real binary, gives whether the call went ahead, how long that took, what was left and what it cost.

use std::time::{Duration, Instant};

use decurion_exec::{Guard, GuardProgram};
use decurion_protocol::{Block, Command, Event, HookDeclaration, HookEvent, Place as _};
use futures_util::StreamExt as _;
use serde_json::json;

use super::agents::stage;
use super::stand::{HANG, Stand, brief, ended_well};
use super::{Options, Report, Row};
use crate::proc::{lines_of, peak_memory_kib};
use crate::stage::{Stage, render, send};

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![
        Row {
            id: "H1",
            what: "a hook that hangs, ignores SIGTERM, or leaves a child with its pipe",
            run: hangs,
        },
        Row { id: "H2", what: "a hook that crashes, floods or speaks nonsense", run: bad },
        Row { id: "H3", what: "a hook that never lets an agent end", run: blocks },
    ]
}

/// A stage whose hooks really run.
fn hooked(options: &Options, script: &str, hooks: Vec<HookDeclaration>) -> Stage {
    let mut stage = stage(script);
    let program = GuardProgram { program: options.decurion(), args: vec!["__guard".into()] };
    stage.processes = Some(Guard::new(program));
    stage.hooks = hooks;
    stage
}

fn in_real_time<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(|error| format!("no runtime: {error}"))?.block_on(future))
}

// ---- H1 ----

/// How long each hook may take.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How much longer it may take to be ended.
const GRACE: Duration = Duration::from_millis(2_500);

/// Each with whether the call goes ahead after it, and whether it runs into its time limit. `SLEEP` is a number
/// that occurs nowhere else.
const HANGING: [(&str, &str, bool, bool); 6] = [
    ("hangs", "sleep SLEEP", false, true),
    ("ignores SIGTERM", "trap '' TERM; while :; do sleep SLEEP; done", false, true),
    ("leaves a child with its pipe", "sleep SLEEP & exit 0", true, false),
    ("leaves a session of its own with its pipe", "setsid sleep SLEEP & exit 0", true, false),
    ("leaves one and hangs", "(trap '' TERM; setsid sleep SLEEP) & sleep SLEEP", false, true),
    ("closes its output and hangs", "exec >&- 2>&-; sleep SLEEP", false, true),
];

fn hangs(options: &Options) -> Report {
    let mut report = Report::default();
    let mut slowest = Duration::ZERO;
    for event in [HookEvent::PreToolUse, HookEvent::PostToolUse] {
        for (nth, (name, command, goes_ahead, limited)) in HANGING.iter().enumerate() {
            let sleep = format!("7{:03}{:05}{nth}", options.seed % 1000, std::process::id());
            let sleep = format!("{sleep}{}", u8::from(event == HookEvent::PreToolUse));
            let goes_ahead = *goes_ahead || event == HookEvent::PostToolUse;
            let result = hang(options, event, &command.replace("SLEEP", &sleep), &sleep, goes_ahead);
            let result = result.and_then(|time| {
                let over = if *limited { time.saturating_sub(TIMEOUT) } else { time };
                slowest = slowest.max(over);
                // What is wanted is reported; what fails is a hang.
                if over <= GRACE * 20 { Ok(()) } else { Err(format!("took {time:?}")) }
            });
            report.add(format_args!("{event} hook that {name}"), result);
        }
    }
    let figure = format!(
        "{} of {} ended, at most {} ms after their limit or exit (2,500 wanted), no process left",
        report.runs - report.failures.len() as u64,
        report.runs,
        slowest.as_millis()
    );
    report.figure(figure)
}

/// How long a call took whose hook hangs; looks for what is left while the session is still there.
fn hang(
    options: &Options,
    event: HookEvent,
    command: &str,
    sleep: &str,
    goes_ahead: bool,
) -> Result<Duration, String> {
    let hook = HookDeclaration { timeout: Some(TIMEOUT), ..HookDeclaration::new(event, command) };
    let script = "when turn=1\n  call Poke {\"text\": \"x\"}\nwhen turn=2\n  say \"done\"\n";
    let stage = hooked(options, script, vec![hook]);
    in_real_time(async {
        let mut link = stage.engine().open(stage.request.clone()).await.map_err(|error| error.to_string())?;
        let begun = Instant::now();
        send(&link, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
        let mut ran = false;
        let over = async {
            while let Some(envelope) = link.events.next().await {
                match &envelope.event {
                    Event::CallStarted { .. } => ran = true,
                    Event::RunEnded { .. } => return true,
                    _ => {}
                }
            }
            false
        };
        let ended = tokio::time::timeout(HANG, over).await.map_err(|_| "hangs".to_owned())?;
        let time = begun.elapsed();
        if !ended || ran != goes_ahead {
            return Err(format!("the session ended: {}, the call ran: {ran}", !ended));
        }
        let left = left_running(sleep, Duration::from_secs(1)).await;
        if left > 0 { Err(format!("{left} processes left")) } else { Ok(time) }
    })
    .and_then(|result| result)
}

/// How many processes have this word in their command line, once they had a moment to go.
async fn left_running(word: &str, patience: Duration) -> usize {
    let begun = Instant::now();
    loop {
        let count = with_word(word);
        if count == 0 || begun.elapsed() > patience {
            return count;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn with_word(word: &str) -> usize {
    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    let lines = entries.flatten().filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| memchr::memmem::find(line, word.as_bytes()).is_some()).count()
}

// ---- H2 ----

/// Each with whether the call goes ahead after it.
const BAD: [(&str, &str, bool); 15] = [
    ("crashes", "kill -SEGV $$", false),
    ("is killed", "kill -KILL $$", false),
    ("is missing", "/nonexistent/hook", false),
    ("cannot be executed", "/etc/passwd", false),
    ("prints 100 MB", "head -c 100000000 /dev/zero", false),
    ("prints 100 MB of errors", "head -c 100000000 /dev/zero >&2", false),
    ("prints 100 MB and says yes", "echo '{\"decision\": \"approve\"}'; head -c 100000000 /dev/zero", false),
    ("hangs", "sleep 600", false),
    ("says no without a word", "exit 2", false),
    ("prints half of its JSON and says no", "printf '{\"decision\": \"approve\", \"rea'; exit 2", false),
    ("prints NULs", "printf 'a\\0b'", true),
    ("prints no UTF-8", "printf 'a\\377\\376b'", true),
    ("prints half of its JSON", "printf '{\"decision\": \"block\", \"rea'", true),
    ("fails", "echo oops >&2; exit 1", true),
    ("never reads", "exec <&-; exit 0", true),
];

fn bad(options: &Options) -> Report {
    let mut report = Report::default();
    let base = match bad_hook(options, "PreToolUse", "exit 0", true) {
        Ok(base) => base,
        Err(problem) => return Report::broken(format!("a good hook: {problem}")),
    };
    let (mut most, mut told) = (0, 0);
    for (name, command, goes_ahead) in BAD {
        for (event, goes_ahead) in [("PreToolUse", goes_ahead), ("PostToolUse", true)] {
            let result = bad_hook(options, event, command, goes_ahead).and_then(|peak| {
                let more = peak.saturating_sub(base);
                most = most.max(more);
                if more <= 8 * 1024 { Ok(()) } else { Err(format!("{more} KiB more than a good hook")) }
            });
            told += usize::from(result.is_ok());
            report.add(format_args!("{event} hook that {name}"), result);
        }
    }
    let figure =
        format!("{told} of 2 × {}; at most {most} KiB more memory than a good hook ({base} KiB)", BAD.len());
    report.figure(figure)
}

/// Runs the binary with one hook: its peak memory, if the call went ahead or not as it should.
fn bad_hook(options: &Options, event: &str, command: &str, goes_ahead: bool) -> Result<u64, String> {
    let script =
        "when turn=1\n  call Bash command=\"echo ran >> $EFFECTS\"\nwhen\n  delay 200ms\n  say \"done\"\n";
    let stand = Stand::new(options, |_| script.to_owned()).map_err(|error| error.to_string())?;
    let hook = json!({"type": "command", "command": command, "timeout": 1});
    let settings = json!({"hooks": {event: [{"matcher": "Bash", "hooks": [hook]}]}}).to_string();
    let program = stand.run("go").args(["--settings", &settings]);
    let running = program.start().map_err(|error| error.to_string())?;
    // The last reply is held back a little, so that there is someone to look at.
    let requests = stand.model.wait_for_requests(2, HANG).len();
    let peak = peak_memory_kib(running.pid);
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    stand.check_left()?;
    let ran = !lines_of(&stand.home.effects()).is_empty();
    if ran != goes_ahead {
        return Err(format!("the call ran: {ran}"));
    }
    if ran {
        ended_well(&run)?;
    }
    // One that was stopped by a refusal that nobody could answer ends as denied only if it was its last turn.
    if run.timed_out || requests < 2 {
        return Err(format!("{requests} requests, {:?}: {}", run.ending, brief(&run.errors)));
    }
    peak.ok_or_else(|| "it ended before it was looked at".into())
}

// ---- H3 ----

/// So often in a row a hook is heard.
const MOST_BLOCKS: usize = 5;

fn blocks(options: &Options) -> Report {
    let mut report = Report::default();
    let says = [
        ("exit 2", "echo more >&2; exit 2"),
        ("JSON", "echo '{\"decision\": \"block\", \"reason\": \"more\"}'"),
    ];
    for (how, command) in says {
        report.add(format_args!("Stop, {how}"), blocked(options, HookEvent::Stop, command));
        report.add(format_args!("SubagentStop, {how}"), blocked(options, HookEvent::SubagentStop, command));
    }
    let held = report.runs - report.failures.len() as u64;
    let figure = format!("{held} of {} stop at {MOST_BLOCKS} with a notice", report.runs);
    report.figure(figure)
}

fn blocked(options: &Options, event: HookEvent, command: &str) -> Result<(), String> {
    let script = "when agent=worker\n  say \"found ${seen.turn}\"\nwhen agent=main turn=1\n  \
         call Agent {\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"worker\"}\nwhen\n  say \"done ${seen.turn}\"\n";
    let stage = hooked(options, script, vec![HookDeclaration::new(event, command)]);
    let log = in_real_time(async {
        let played = tokio::time::timeout(HANG, stage.play_all(stage.request.clone(), &["go"])).await;
        played.map_err(|_| "hangs".to_owned())?.map_err(|error| error.to_string())
    });
    let log = render(&log.and_then(|result| result)?.events);
    let heard = log.matches("hook feedback").count();
    let notices = log.matches("notice hooks kept the run from ending 5 times in a row").count();
    if (heard, notices) == (MOST_BLOCKS, 1) {
        Ok(())
    } else {
        Err(format!("heard {heard} times, {notices} notices:\n{log}"))
    }
}
