//! `decurion worktrees`: the worktrees of agents. Takes a subcommand, prints each with its user or its remaining
//! changes, and removes those that are not needed.

use decurion_config::LoadRequest;
use decurion_engine::worktree::{Cleaned, Kept, Row, WorktreeError, Worktrees};
use serde_json::{Value, json};

use crate::args::WorktreesCommand;
use crate::command::run::block_on;
use crate::report::{Failure, note};
use crate::screen::TextStyle;
use crate::table::{TableCell, TextTable, ago, short, short_ids};
use crate::wire;

/// Lists, cleans or removes worktrees.
pub fn run(command: &WorktreesCommand) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let loaded = decurion_config::inspect(&LoadRequest::new(cwd.clone(), environment.clone()))?;
    let (all, json) = match command {
        WorktreesCommand::List { all, json } | WorktreesCommand::Clean { all, json, .. } => (*all, *json),
        WorktreesCommand::Remove { name, discard } => {
            return block_on(async {
                let trees = wire::worktrees(&loaded, &environment, wire::guard()).ok_or_else(no_place)?;
                remove(&trees, &cwd, name, *discard).await
            })?;
        }
    };
    block_on(async {
        let trees = wire::worktrees(&loaded, &environment, wire::guard()).ok_or_else(no_place)?;
        let repository = if all { None } else { Some(repository(&trees, &cwd).await?) };
        let repository = repository.as_deref();
        let cleaned = match command {
            WorktreesCommand::List { .. } | WorktreesCommand::Clean { dry_run: true, .. } => {
                trees.list(repository).await
            }
            _ => trees.clean(repository, usize::MAX).await,
        };
        let cleaned = cleaned.map_err(|error| Failure::failed(format!("cannot read the leases: {error}")))?;
        let tense = match command {
            WorktreesCommand::List { .. } => "unchanged",
            WorktreesCommand::Clean { dry_run: true, .. } => "would be removed",
            _ => "removed",
        };
        Ok(print(&cleaned, json, tense))
    })?
}

async fn remove(trees: &Worktrees, cwd: &camino::Utf8Path, name: &str, discard: bool) -> Result<u8, Failure> {
    match trees.remove_named(cwd, name, discard).await {
        Ok(left) => {
            say!("{name}: removed ({left})");
            Ok(0)
        }
        Err(error @ WorktreeError::Unmerged { .. }) => Err(Failure::failed(error.to_string()).hint(format!(
            "`decurion merge {name}` merges it, except for files that git ignores; --discard deletes it"
        ))),
        Err(error @ (WorktreeError::Unknown(_) | WorktreeError::InUse { .. })) => {
            Err(Failure::usage(error.to_string()).hint("`decurion worktrees list` lists them"))
        }
        Err(error) => Err(Failure::failed(error.to_string())),
    }
}

/// What to say where there is neither a state folder nor a way to start git.
pub fn no_place() -> Failure {
    Failure::usage("no state folder: no home folder is known").hint("set HOME, or DECURION_HOME to a folder")
}

async fn repository(trees: &Worktrees, cwd: &camino::Utf8Path) -> Result<camino::Utf8PathBuf, Failure> {
    let found = trees.repository(cwd).await;
    found.map_err(|error| Failure::usage(error.to_string()).hint("--all lists those of every repository"))
}

fn print(cleaned: &Cleaned, json: bool, tense: &str) -> u8 {
    if cleaned.rows.is_empty() && !json {
        say!("No worktrees.");
    }
    let ids: Vec<String> = cleaned.rows.iter().map(|row| row.lease.session.to_string()).collect();
    let length = short_ids(ids.iter().map(String::as_str));
    let mut table = TextTable::new(["NAME", "SESSION", "CREATED", "STATE", "FOR", "WHERE"]).whole();
    for row in &cleaned.rows {
        if json {
            say!("{}", as_json(row));
            continue;
        }
        let place = match &row.kept {
            Kept::Work(left) => format!("{} on {}", left.path, left.branch),
            _ => String::new(),
        };
        table.row([
            TableCell::new(TextStyle::Strong, &row.lease.name),
            short(&row.lease.session.to_string(), length).into(),
            ago(Some(row.lease.created)).into(),
            in_words(row, tense),
            decurion_serve::progress::one_line(&row.lease.description).into(),
            TableCell::new(TextStyle::Faint, place),
        ]);
    }
    table.print();
    for damaged in &cleaned.damaged {
        note(format!("a lease cannot be read: {damaged}"));
    }
    let broken = cleaned.rows.iter().any(|row| matches!(row.kept, Kept::Broken(_)));
    u8::from(broken || !cleaned.damaged.is_empty())
}

fn in_words(row: &Row, tense: &str) -> TableCell {
    match &row.kept {
        Kept::InUse => TableCell::new(TextStyle::Good, "in use"),
        Kept::Removed => tense.into(),
        Kept::Work(left) => TableCell::new(TextStyle::Warning, left.to_string()),
        Kept::Broken(reason) => TableCell::new(TextStyle::Bad, format!("error: {reason}")),
    }
}

fn as_json(row: &Row) -> Value {
    let mut value = json!(row.lease);
    let (word, more) = match &row.kept {
        Kept::InUse => ("in_use", json!({})),
        Kept::Removed => ("removed", json!({})),
        Kept::Work(left) => (
            "work",
            json!({"commits": left.commits, "files": left.stat.files, "insertions": left.stat.insertions,
                "deletions": left.stat.deletions, "untracked": left.untracked, "ignored": left.ignored,
                "dirty": left.dirty,
                "problem": left.problem}),
        ),
        Kept::Broken(reason) => ("broken", json!({"problem": reason})),
    };
    value["found"] = json!(word);
    if let (Some(all), Value::Object(more)) = (value.as_object_mut(), more) {
        all.extend(more);
    }
    value
}
