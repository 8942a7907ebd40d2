//! What files hold before a call changes them. Takes a call that is about to run, keeps the bytes of what it names in
//! the session's folder, and gives the records that say so, which stand before the call's own.

use std::sync::Arc;

use camino::Utf8PathBuf;
use decurion_protocol::{Access, CallId, Event, FileBefore, Intent};
use decurion_tools::PathRules;
use decurion_tools::restore::TRACKED;

use crate::bench::Bench;
pub use crate::equipment::{Keeper, MOST_KEPT};

/// The records of what a call is about to change: none where that is not asked for.
pub async fn before(
    bench: &Bench<'_>,
    call: &CallId,
    tool: &str,
    intent: &Intent,
    rules: &Arc<dyn PathRules>,
) -> Vec<Event> {
    let Some(keeper) = bench.run.equipment.checkpoints.clone().filter(|_| TRACKED.contains(&tool)) else {
        return Vec::new();
    };
    let named = intent.touches.iter().filter(|touch| touch.access == Access::Write);
    let paths: Vec<Utf8PathBuf> = named.map(|touch| touch.path.clone()).collect();
    let (around, rules, asked) = (bench.around.clone(), Arc::clone(rules), paths.clone());
    let keeping = tokio::task::spawn_blocking(move || {
        let keep = |path: &Utf8PathBuf| keeper.keep_path(&around, Arc::clone(&rules), path);
        asked.iter().map(keep).collect::<Vec<_>>()
    });
    let kept = keeping.await.unwrap_or_else(|error| {
        let reason = FileBefore::NotKept { reason: error.to_string() };
        paths.into_iter().map(|path| (path, reason.clone())).collect()
    });
    let record = |(path, before)| Event::Checkpointed { call: Some(call.clone()), path, before };
    kept.into_iter().map(record).collect()
}
