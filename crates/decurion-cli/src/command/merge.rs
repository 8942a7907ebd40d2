//! `decurion merge`: merges the branches of finished agents one after the other. Takes the arguments, prints the result
//! of each; exits 0 only if everything requested is in the target.

use std::time::Duration;

use decurion_config::LoadRequest;
use decurion_engine::merge::{Gate, MergeError, MergeOutcome, MergeRequest, MergeRow, Merged, merge};
use serde_json::json;

use crate::args::MergeArgs;
use crate::command::run::block_on;
use crate::command::worktrees::no_place;
use crate::report::{FAILED, Failure};
use crate::wire;

pub fn run(args: &MergeArgs) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let loaded = decurion_config::inspect(&LoadRequest::new(cwd.clone(), environment.clone()))?;
    let shell = wire::shell_environment(&loaded, &environment);
    let timeout = Duration::from_secs(args.gate_timeout);
    let gate = args.gate.clone().map(|command| Gate { command, timeout, environment: shell });
    let request = MergeRequest {
        at: cwd,
        which: args.which.clone(),
        into: args.into.clone(),
        gate,
        dry_run: args.dry_run,
    };
    let merged = block_on(async {
        let trees = wire::worktrees(&loaded, &environment, wire::guard()).ok_or_else(no_place)?;
        merge(&trees, &request).await.map_err(|error| failure(&error, args))
    })??;
    if args.json {
        say!("{}", json!(merged));
    } else {
        print(&merged, args.dry_run);
    }
    Ok(if merged.rows.iter().all(|row| row.outcome.is_in()) { 0 } else { FAILED })
}

fn failure(error: &MergeError, args: &MergeArgs) -> Failure {
    let failure = Failure::usage(error.to_string());
    match error {
        MergeError::CheckedOut { .. } => failure.hint(format!(
            "leave --into out, then update that branch: git merge --ff-only {}",
            decurion_engine::merge::TARGET
        )),
        MergeError::Unknown(_) => failure.hint("`decurion worktrees list` lists the worktrees"),
        MergeError::Moved { .. } => Failure::failed(error.to_string())
            .hint(format!("inspect it with git log {}, then merge again", args.into)),
        _ => failure,
    }
}

fn print(merged: &Merged, dry: bool) {
    if merged.rows.is_empty() {
        say!("Nothing to merge.");
        return;
    }
    for row in &merged.rows {
        say!("{}", in_words(row, dry));
    }
    let count = merged.rows.iter().filter(|row| matches!(row.outcome, MergeOutcome::Merged { .. })).count();
    let would = if dry { "would be " } else { "" };
    say!("{count} of {} {would}merged into {}", merged.rows.len(), merged.target);
    if count > 0 && !dry {
        say!("To update your branch: git merge --ff-only {}", merged.target);
    }
}

fn in_words(row: &MergeRow, dry: bool) -> String {
    let about = decurion_serve::progress::one_line(&row.description);
    let about = if about.is_empty() { String::new() } else { format!(" ({about})") };
    let words = match &row.outcome {
        MergeOutcome::Merged { .. } if dry => "merges".to_owned(),
        MergeOutcome::Merged { .. } => "merged".to_owned(),
        MergeOutcome::Contained => "already merged".to_owned(),
        MergeOutcome::Conflicts { files } => format!("conflicts in {}", files.join(", ")),
        MergeOutcome::Refused { gate, output } => {
            format!("rejected by the gate ({gate}); see {output}")
        }
        MergeOutcome::Skipped { reason } => format!("skipped: {reason}"),
    };
    let gone = if row.removed { " (worktree removed)" } else { "" };
    format!("{}{about}: {words}{gone}", row.name)
}
