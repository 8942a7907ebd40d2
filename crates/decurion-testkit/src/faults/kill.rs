//! T1: SIGKILL at any moment. Takes runs of the real binary, kills them at random moments and at each of
//! their writes, goes on with them, gives what they owe: acknowledged records, effects done once, processes.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use uuid::Uuid;

use super::stand::{GONE, HANG, Stand, brief, ended_well, kill};
use super::{Dice, Options, Report, Row, has_program, in_parallel};
use crate::proc::{Evidence, Finished, Moment, lines_of};

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![Row { id: "T1", what: "SIGKILL of the program (and its guard) at any moment", run: any_moment }]
}

/// The prompt of a run that was never killed.
pub(super) const FIRST: &str = "begin the work";
/// A prompt after a kill begins so; a number follows.
const AGAIN: &str = "go on after kill";
/// How many requests an undisturbed run makes.
const TURNS: u32 = 10;
/// A session is killed at most so often.
const CHAIN: u64 = 3;

/// Every kind of call, alone and together, with replies that take a while to arrive.
pub fn script(work: &Path) -> String {
    let work = work.display();
    format!(
        r#"
when turn=1
  say "I look at what there is."
  call Bash command="echo effect-1 >> $EFFECTS; echo one"
when turn=2
  say "Two files at once."
  call Write {{"file_path": "{work}/a.txt", "content": "alpha\nbeta\n"}}
  call Write {{"file_path": "{work}/b.txt", "content": "gamma\n"}}
when turn=3
  think "three reads"
  call Read {{"file_path": "{work}/a.txt"}}
  call Read {{"file_path": "{work}/b.txt"}}
  call Glob {{"pattern": "*.txt"}}
when turn=4
  say "A change, and a command beside it."
  call Edit {{"file_path": "{work}/a.txt", "old_string": "beta", "new_string": "delta"}}
  call Bash command="echo effect-4 >> $EFFECTS; sleep 0.02; echo four"
when turn=5
  say chunk=8 "This one takes its time to arrive, piece by piece, so that a kill can come between the pieces."
  delay 5ms
  call Bash command="(setsid sleep 30 &) ; echo effect-5 >> $EFFECTS; sleep 0.05; echo five"
when turn=6
  call Bash command="echo effect-6a >> $EFFECTS; seq 1 2000"
  call Read {{"file_path": "{work}/a.txt"}}
  call Grep {{"pattern": "alpha"}}
when turn=7
  say "Many small ones."
  call Bash command="echo effect-7a >> $EFFECTS"
  call Bash command="echo effect-7b >> $EFFECTS"
  call Bash command="echo effect-7c >> $EFFECTS"
when turn=8
  call Write {{"file_path": "{work}/b.txt", "content": "the last word\n"}}
  call Bash command="echo effect-8 >> $EFFECTS; exit 3"
when turn=9
  say "Nearly there."
  call Bash command="echo effect-9 >> $EFFECTS; head -c 40000 /dev/zero | tr '\\0' 'x'"
when
  say "All is done."
"#
    )
}

/// What was counted on the way.
#[derive(Default)]
pub(super) struct Counts {
    random: AtomicU64,
    injected: AtomicU64,
    before: AtomicU64,
    late: AtomicU64,
    resumed: AtomicU64,
    slowest_end_us: AtomicU64,
}

fn any_moment(options: &Options) -> Report {
    let counts = Counts::default();
    let length = match run_time(options) {
        Ok(length) => length,
        Err(problem) => return Report::broken(problem),
    };
    let mut report = Report::default();
    controls(options, &counts, &mut report);
    random_kills(options, length, &counts, &mut report);
    if has_program("strace") {
        injected_kills(options, &counts, &mut report);
    } else {
        report.failures.push("strace is not installed: no injected kills".into());
    }
    let count = |word: &str| report.failures.iter().filter(|failure| failure.contains(word)).count();
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let figure = format!(
        "{} random + {} injected: {} lost, {} duplicated, {} refused, {} with processes left ({} resumes, {} \
         of the kills before there was a session; besides, {} runs were through before their kill; children gone in at most {} ms)",
        get(&counts.random),
        get(&counts.injected),
        count("lost") + count("changed") + count("disordered"),
        count("duplicated"),
        count("refused"),
        count("processes left"),
        get(&counts.resumed),
        get(&counts.before),
        get(&counts.late),
        get(&counts.slowest_end_us) / 1000,
    );
    report.figure(figure)
}

/// How long an undisturbed run takes while others run beside it.
pub(super) fn run_time(options: &Options) -> Result<Duration, String> {
    let tries: Vec<u64> = (0..options.width as u64 * 2).collect();
    let times = in_parallel(options.width, &tries, |_| {
        let stand = Stand::new(options, script).map_err(|error| error.to_string())?;
        let run = stand.run(FIRST).run(HANG).map_err(|error| error.to_string())?;
        ended_well(&run)?;
        stand.check_left()?;
        let effects = lines_of(&stand.home.effects());
        if effects.len() != 9 {
            return Err(format!("an undisturbed run had other effects: {effects:?}"));
        }
        Ok(run.wall)
    });
    let mut times = times.into_iter().collect::<Result<Vec<_>, String>>()?;
    times.sort();
    times.last().copied().ok_or_else(|| "no undisturbed run".into())
}

fn random_kills(options: &Options, length: Duration, counts: &Counts, report: &mut Report) {
    let kills = options.kills.unwrap_or_else(|| options.count(200, 2_000));
    // More sessions than are needed: a run may be through before its kill comes.
    let sessions: Vec<u64> = (0..kills * 4).collect();
    let results = in_parallel(options.width, &sessions, |nth| {
        let mut dice = Dice::new(options.seed, *nth);
        let enough = counts.random.load(Ordering::Relaxed) >= kills;
        (*nth, if enough { Ok(()) } else { session(options, &mut dice, length, counts) })
    });
    for (nth, result) in results {
        report.add(format_args!("random session {nth}"), result);
    }
    report.runs = counts.random.load(Ordering::Relaxed);
}

/// That the audit sees: damage done on purpose between two runs must be found.
fn controls(options: &Options, counts: &Counts, report: &mut Report) {
    type Spoil = fn(&Stand, &str) -> std::io::Result<()>;
    let lines_gone: Spoil = |stand, id| {
        let lines = lines_of(&stand.transcript(id));
        std::fs::write(stand.transcript(id), lines[..lines.len() / 2].join("\n") + "\n")
    };
    let effect_twice: Spoil = |stand, _| {
        let effects = lines_of(&stand.home.effects());
        std::fs::write(stand.home.effects(), effects.join("\n") + "\n" + &effects[0] + "\n")
    };
    for (spoil, word) in [(lines_gone, "call toolu"), (effect_twice, "effect effect-1")] {
        let found = (|| {
            let stand = Stand::new(options, script).map_err(|error| error.to_string())?;
            let id = Uuid::new_v4().to_string();
            let mut trial = Trial::new(&stand, &id);
            let run = trial.next_program().run(HANG).map_err(|error| error.to_string())?;
            trial.after(run, counts)?;
            spoil(&stand, &id).map_err(|error| error.to_string())?;
            Ok::<_, String>(trial.conclude(counts))
        })();
        match found {
            Ok(Err(problem)) if problem.contains(word) => {}
            other => report.failures.push(format!("the audit is blind: it should see {word}: {other:?}")),
        }
    }
}

/// One session, killed a few times and then left to end.
fn session(options: &Options, dice: &mut Dice, length: Duration, counts: &Counts) -> Result<(), String> {
    let chain = 1 + dice.below(CHAIN);
    let stand = Stand::new(options, script).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4().to_string();
    let mut trial = Trial::new(&stand, &id);
    for nth in 0..chain {
        let running = trial.next_program().start().map_err(|error| error.to_string())?;
        // What is left to do after earlier kills takes so much less.
        let left = TURNS.saturating_sub(u32::try_from(stand.model.requests().len()).unwrap_or(TURNS));
        let moment = moment(dice, length * left.max(1) / TURNS);
        let killed = match dice.below(5) {
            // The guard goes a moment before the program does.
            0 => {
                let time = dice.time(length);
                let pid = running.pid;
                std::thread::scope(|scope| {
                    let begun = Instant::now();
                    let stand = &stand;
                    scope.spawn(move || kill_guards_at(stand, pid, begun + time));
                    running.kill_at(moment, HANG)
                })
            }
            // Both at once, as when a machine runs out of memory.
            1 => {
                let guards_too = running.kill_at(moment, HANG);
                stand.guards().into_iter().for_each(kill);
                guards_too
            }
            _ => running.kill_at(moment, HANG),
        };
        let killed = killed.map_err(|error| error.to_string())?;
        let counter = if killed.ending.is_success() { &counts.late } else { &counts.random };
        counter.fetch_add(1, Ordering::Relaxed);
        trial.after(killed, counts).map_err(|problem| format!("kill {nth} at {moment:?}: {problem}"))?;
    }
    trial.conclude(counts).map_err(|problem| format!("after {chain} kills: {problem}"))
}

fn moment(dice: &mut Dice, length: Duration) -> Moment {
    if dice.below(3) == 0 {
        Moment::Lines(usize::try_from(dice.below(40)).unwrap_or_default())
    } else {
        Moment::After(dice.time(length))
    }
}

/// Kills the guard at a moment, if the program still lives then.
fn kill_guards_at(stand: &Stand, main: i32, at: Instant) {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
    if Path::new(&format!("/proc/{main}")).exists() {
        stand.guards().into_iter().for_each(kill);
    }
}

/// A session that is killed again and again, and what was seen of it from outside.
pub(super) struct Trial<'a> {
    stand: &'a Stand,
    id: String,
    printed: Vec<String>,
    /// What had been done before the last run.
    effects: Vec<String>,
    /// How many runs there have been.
    runs: u64,
    /// Whether the session was ever seen from outside.
    seen: bool,
}

impl<'a> Trial<'a> {
    pub(super) fn new(stand: &'a Stand, id: &str) -> Self {
        Self { stand, id: id.to_owned(), printed: Vec::new(), effects: Vec::new(), runs: 0, seen: false }
    }

    /// The next run: the first one, or going on.
    pub(super) fn next_program(&mut self) -> crate::proc::Program {
        self.runs += 1;
        self.effects = lines_of(&self.stand.home.effects());
        if self.runs == 1 || !self.seen && !self.stand.transcript(&self.id).exists() {
            return self.stand.run_as(&self.id, FIRST);
        }
        self.stand.resume(&self.id, &format!("{AGAIN} {}", self.runs))
    }

    /// Counts what a killed run left and audits what the run itself went on with.
    pub(super) fn after(&mut self, killed: Finished, counts: &Counts) -> Result<(), String> {
        if killed.timed_out {
            return Err("hangs instead of running".into());
        }
        let gone = self.stand.wait_until_gone(GONE)?;
        let micros = u64::try_from(gone.as_micros()).unwrap_or(u64::MAX);
        counts.slowest_end_us.fetch_max(micros, Ordering::Relaxed);
        self.audit()?;
        self.seen |= !killed.lines.is_empty() || !self.stand.model.requests().is_empty();
        if !self.seen {
            counts.before.fetch_add(1, Ordering::Relaxed);
        }
        self.printed.extend(killed.lines);
        self.refused()
    }

    /// Lets the session go to its end and audits that.
    pub(super) fn conclude(mut self, counts: &Counts) -> Result<(), String> {
        let run = self.next_program().run(HANG).map_err(|error| error.to_string())?;
        ended_well(&run).map_err(|problem| format!("refused to go on: {problem}"))?;
        counts.resumed.fetch_add(1, Ordering::Relaxed);
        self.stand.wait_until_gone(GONE)?;
        self.audit()?;
        self.refused()?;
        self.seen = true;
        self.printed.extend(run.lines);
        // Once more, so that the last run too is compared with what it left.
        let run = self.next_program().run(HANG).map_err(|error| error.to_string())?;
        ended_well(&run).map_err(|problem| format!("refused to go on: {problem}"))?;
        self.stand.wait_until_gone(GONE)?;
        if !self.audit()? {
            return Err("lost: the last run sent no request".into());
        }
        self.refused()
    }

    /// Compares what was seen before this run with what this run sends to its model. A run that was killed
    /// before it asked anything says nothing; tells whether this one did.
    fn audit(&self) -> Result<bool, String> {
        let bodies: Vec<Value> =
            self.stand.model.requests().iter().map(crate::server::Recorded::json).collect();
        let prompt = format!("{AGAIN} {}", self.runs);
        let Some(at) = bodies.iter().position(|body| asks(body, &prompt)) else { return Ok(false) };
        let evidence = Evidence {
            printed: self.printed.clone(),
            requests: bodies[..at].to_vec(),
            effects: self.effects.clone(),
            resumed: bodies[at].clone(),
        };
        let verdict = evidence.judge();
        if verdict.is_clean() { Ok(true) } else { Err(format!("{verdict:?}")) }
    }

    fn refused(&self) -> Result<(), String> {
        match self.stand.model.problems().first() {
            Some(problem) => Err(format!("refused by the model: {}", brief(problem))),
            None => Ok(()),
        }
    }
}

/// Whether this prompt is in a request.
fn asks(body: &Value, prompt: &str) -> bool {
    let messages = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
    messages.iter().any(|message| match &message["content"] {
        Value::String(text) => text.contains(prompt),
        Value::Array(blocks) => {
            blocks.iter().any(|block| block["text"].as_str().is_some_and(|text| text.contains(prompt)))
        }
        _ => false,
    })
}

/// The system calls of the program at each of which it is killed, and whether only those on the transcript.
const POINTS: [(&str, bool); 9] = [
    ("write", true),
    ("fdatasync", true),
    ("ftruncate", true),
    ("openat", false),
    ("write", false),
    ("mkdirat", false),
    ("flock", false),
    ("sendto", false),
    ("writev", false),
];
/// So many of one call are counted at most.
const MOST_POINTS: u64 = 400;
/// So many points of one call are tried in the short form.
const SHORT_POINTS: u64 = 6;

/// Kills at the n-th of each kind of call, for every n until a run ends without reaching it.
fn injected_kills(options: &Options, counts: &Counts, report: &mut Report) {
    let mut points = Vec::new();
    for (call, on_transcript) in POINTS {
        match count_calls(options, call, on_transcript) {
            Ok(count) => points.extend(chosen(options, count).map(|nth| (call, on_transcript, nth))),
            Err(problem) => report.add(format_args!("counting {call}"), Err(problem)),
        }
    }
    let results = in_parallel(options.width, &points, |(call, on_transcript, nth)| {
        let result = injected(options, call, *on_transcript, *nth, counts);
        (format!("{call} {nth}{}", if *on_transcript { " on the transcript" } else { "" }), result)
    });
    for (name, result) in results {
        report.add(name, result);
    }
}

/// All points, or in the short form some of them, spread evenly.
fn chosen(options: &Options, count: u64) -> impl Iterator<Item = u64> + use<> {
    let step = if options.ci { count.div_ceil(SHORT_POINTS).max(1) } else { 1 };
    let first = if options.ci { 1 + options.seed % step } else { 1 };
    (first..=count.min(MOST_POINTS)).step_by(usize::try_from(step).unwrap_or(1))
}

/// How often one thread makes a call in an undisturbed run: the largest number at which a kill can hit.
pub(super) fn count_calls(options: &Options, call: &str, on_transcript: bool) -> Result<u64, String> {
    let stand = Stand::new(options, script).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4().to_string();
    let filter = filter(&stand, &id, call, on_transcript);
    let run = stand.traced(&filter, &id, FIRST).run(HANG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    let mut by_thread = std::collections::HashMap::<String, u64>::new();
    for line in stand.trace() {
        if let Some((thread, rest)) = line.split_once(' ')
            && rest.trim_start().starts_with(&format!("{call}("))
        {
            *by_thread.entry(thread.to_owned()).or_default() += 1;
        }
    }
    // The main thread has the lowest number, and it is the one that writes.
    let most = if on_transcript { by_thread.into_values().max() } else { of_main_thread(&by_thread) };
    Ok(most.unwrap_or(0))
}

fn of_main_thread(by_thread: &std::collections::HashMap<String, u64>) -> Option<u64> {
    let numbered = by_thread.iter().filter_map(|(thread, count)| Some((thread.parse::<u64>().ok()?, *count)));
    numbered.min().map(|(_, count)| count)
}

pub(super) fn filter(stand: &Stand, id: &str, call: &str, on_transcript: bool) -> Vec<String> {
    let mut options = vec!["-e".to_owned(), format!("trace={call}")];
    if on_transcript {
        options.extend(["-P".to_owned(), stand.transcript(id).display().to_string()]);
    }
    options
}

fn injected(
    options: &Options,
    call: &str,
    on_transcript: bool,
    nth: u64,
    counts: &Counts,
) -> Result<(), String> {
    let stand = Stand::new(options, script).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4().to_string();
    let mut filter = filter(&stand, &id, call, on_transcript);
    filter.extend(["-e".to_owned(), format!("inject={call}:signal=KILL:when={nth}")]);
    let mut trial = Trial::new(&stand, &id);
    drop(trial.next_program());
    let killed = stand.traced(&filter, &id, FIRST).run(HANG).map_err(|error| error.to_string())?;
    counts.injected.fetch_add(1, Ordering::Relaxed);
    trial.after(killed, counts)?;
    trial.conclude(counts)
}
