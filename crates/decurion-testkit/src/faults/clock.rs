//! T8: clocks that jump. Takes a clock that goes ten years forwards and back between any two looks, gives
//! whether records keep their order, durations stay what they were, and nothing times out early.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use decurion_protocol::{Clock, Envelope, Event, Outcome, Start};
use decurion_store::ReplayOptions;
use jiff::Timestamp;
use uuid::Uuid;

use super::stand::{HANG, Stand, ended_well};
use super::{Dice, Options, Report, Row, has_program};
use crate::stage::{Played, Stage};

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![Row { id: "T8", what: "the clock jumps ten years forwards and back", run: jumps }]
}

const SCRIPT: &str = r#"
when turn=1..6
  say "turn ${seen.turn}"
  call Echo {"text": "one ${seen.turn}"}
  call Poke {"text": "two"}
when text=/again/
  say "again at ${seen.turn}"
when
  say "done at ${seen.turn}"
"#;
const TEN_YEARS: i64 = 315_576_000_000;

/// Goes on evenly for durations, and anywhere for dates.
struct Jumping {
    looks: AtomicU64,
    seed: u64,
}

impl Clock for Jumping {
    fn date(&self) -> Timestamp {
        let look = self.looks.fetch_add(1, Ordering::Relaxed);
        let jump = match Dice::new(self.seed, look).below(4) {
            0 => TEN_YEARS,
            1 => -TEN_YEARS,
            2 => 3_600_000,
            _ => 0,
        };
        Timestamp::from_millisecond(1_800_000_000_000 + jump).unwrap_or_default()
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.looks.fetch_add(1, Ordering::Relaxed))
    }
}

fn jumps(options: &Options) -> Report {
    let mut report = Report::default();
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Report::broken("no runtime");
    };
    for nth in 0..options.count(20, 200) {
        let result = runtime.block_on(jumping_session(options.seed.wrapping_add(nth)));
        report.add(format_args!("seed {nth}"), result);
    }
    let staged = report.runs;
    if has_program("unshare") {
        for offset in ["--monotonic=315576000", "--boottime=315576000", "--monotonic=3600"] {
            report.add(offset, shifted_process(options, offset));
        }
    }
    let failed = report.failures.len();
    let figure = format!(
        "{staged} sessions with jumping dates + {} processes with a shifted clock: {failed} with reordered \
         records, wrong durations or early time-outs",
        report.runs - staged
    );
    report.figure(figure)
}

async fn jumping_session(seed: u64) -> Result<(), String> {
    let mut stage = Stage::new(SCRIPT);
    stage.clock = Arc::new(Jumping { looks: AtomicU64::new(0), seed });
    let played = stage.play_all(stage.request.clone(), &["go", "again"]).await.map_err(|e| e.to_string())?;
    in_order(&played)?;
    let mut request = stage.request.clone();
    request.start = Start::Resume { id: played.session, at: None };
    let resumed = stage.play_all(request, &["again"]).await.map_err(|error| error.to_string())?;
    in_order(&resumed)?;
    let paths = stage.archive().layout().session(&stage.request.cwd, played.session);
    let mut recorded = Vec::new();
    let report = decurion_store::replay(&paths, &ReplayOptions::default(), &mut |one| recorded.push(one));
    if let Some(problems) = report.map_err(|error| error.to_string())?.problems() {
        return Err(format!("reordered: {problems}"));
    }
    let published = played.events.iter().chain(&resumed.events).filter(|one| one.event.is_durable());
    let published: Vec<u64> = published.map(|one| one.seq).collect();
    let read: Vec<u64> = recorded.iter().map(|one| one.seq).filter(|seq| published.contains(seq)).collect();
    if read != published {
        return Err(format!("reordered: published {published:?}, read {read:?}"));
    }
    match stage.requests().last().map(|body| texts(body)) {
        Some(texts) if texts.is_sorted() && texts.len() == 8 => Ok(()),
        other => Err(format!("reordered: the last request has the turns {other:?}")),
    }
}

/// The numbers of the turns that a request tells of.
fn texts(body: &[u8]) -> Vec<u32> {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    let replies = messages.iter().filter(|message| message["role"] == "assistant");
    let words = replies
        .filter_map(|message| message["content"][0]["text"].as_str()?.rsplit(' ').next()?.parse().ok());
    words.collect()
}

fn in_order(played: &Played) -> Result<(), String> {
    if !matches!(played.outcome, Outcome::Completed { .. }) {
        return Err(format!("ended {:?}", played.outcome));
    }
    let durable: Vec<&Arc<Envelope>> = played.events.iter().filter(|one| one.event.is_durable()).collect();
    if !durable.is_sorted_by(|a, b| a.seq < b.seq) {
        return Err("reordered while published".into());
    }
    for envelope in durable {
        let took = match &envelope.event {
            Event::CallEnded { duration_ms, .. } => *duration_ms,
            Event::RunEnded { totals, .. } => totals.duration_ms,
            _ => 0,
        };
        // The clock of this test moves a millisecond at each look; a jump would be years.
        if took > 3_600_000 {
            return Err(format!("a duration of {took} ms"));
        }
    }
    Ok(())
}

/// A session of the real program that goes on in a process whose clock stands elsewhere.
fn shifted_process(options: &Options, offset: &str) -> Result<(), String> {
    let stand = Stand::new(options, super::kill::script).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4().to_string();
    ended_well(&stand.run_as(&id, "begin").run(HANG).map_err(|error| error.to_string())?)?;
    let shifted = stand.program("unshare").args(["-UrT", offset, "--"]).arg(stand.binary());
    let shifted = shifted.args(super::stand::RUN).args(["--resume", &id, "go on"]);
    let run = shifted.run(HANG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    ended_well(&stand.resume(&id, "and on").run(HANG).map_err(|error| error.to_string())?)?;
    stand.check_left()
}
