//! Finished agents' branches merged, with the real git: what is clean goes in, what conflicts or fails the gate
//! is told and left, nothing that is not merged is removed, and the person's checkout is never touched.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use decurion_engine::merge::{Gate, MergeError, MergeOutcome, MergeRequest, Merged, TARGET, merge};
use decurion_engine::worktree::Made;
use decurion_testkit::repo::Repo;
use expect_test::expect;

use crate::worktrees::{Yard, utf8};

fn yard() -> Yard {
    let lines: String = (1..=9).map(|number| format!("line {number}\n")).collect();
    Yard::new(Repo::with_files(&[("shared.txt", &lines), ("b.txt", "b\n")]).unwrap())
}

/// An agent that wrote this and ended without a commit.
async fn worked(yard: &Yard, number: u32, files: &[(&str, &str)]) -> Made {
    let made = yard.make(number).await;
    for (path, text) in files {
        fs::write(made.cwd.join(path), text).unwrap();
    }
    yard.trees.release(&made.worktree).await;
    made
}

fn request(yard: &Yard) -> MergeRequest {
    MergeRequest {
        at: utf8(yard.repo.path()),
        which: Vec::new(),
        into: TARGET.to_owned(),
        gate: None,
        dry_run: false,
    }
}

fn gate(command: &str) -> Gate {
    let environment = [("PATH".into(), "/usr/bin:/bin".into())];
    Gate { command: command.to_owned(), timeout: Duration::from_mins(1), environment: Arc::new(environment) }
}

async fn merged(yard: &Yard, request: &MergeRequest) -> Merged {
    merge(&yard.trees, request).await.unwrap()
}

fn told(merged: &Merged) -> String {
    let row = |row: &decurion_engine::merge::MergeRow| {
        let words = match &row.outcome {
            MergeOutcome::Merged { .. } => "merged".to_owned(),
            MergeOutcome::Contained => "contained".to_owned(),
            MergeOutcome::Conflicts { files } => format!("conflicts in {}", files.join(", ")),
            MergeOutcome::Refused { gate, output } => {
                format!("gate: {gate}: {}", fs::read_to_string(output).unwrap_or_default().trim())
            }
            MergeOutcome::Skipped { reason } => format!("skipped: {reason}"),
        };
        format!("{} {words}{}\n", &row.name[14..], if row.removed { ", removed" } else { "" })
    };
    merged.rows.iter().map(row).collect()
}

#[tokio::test]
async fn the_clean_ones_are_merged_and_the_others_told_and_left() {
    let yard = yard();
    let before = yard.main_checkout();
    worked(&yard, 1, &[("one.txt", "1\n")]).await;
    worked(&yard, 2, &[("b.txt", "second\n")]).await;
    let conflicting = worked(&yard, 3, &[("b.txt", "third\n"), ("three.txt", "3\n")]).await;
    worked(&yard, 4, &[("four.txt", "4\n")]).await;
    let dry = merged(&yard, &MergeRequest { dry_run: true, ..request(&yard) }).await;
    assert_eq!(
        yard.traces(),
        "4 worktrees, 4 branches, leases [Kept Kept Kept Kept]",
        "a forecast changes nothing"
    );
    let done = merged(&yard, &request(&yard)).await;
    expect![[r"
        001 merged, removed
        002 merged, removed
        003 conflicts in b.txt
        004 merged, removed
    "]]
    .assert_eq(&told(&done));
    assert_eq!(told(&dry), told(&done).replace(", removed", ""));
    assert_eq!(yard.traces(), "1 worktrees, 2 branches, leases [Kept]");
    assert_eq!(fs::read_to_string(conflicting.cwd.join("b.txt")).unwrap(), "third\n");
    let log = yard.repo.git(&["log", "--first-parent", "--format=%s", "main..decurion/merged"]).unwrap();
    expect![[r"
        Merge decurion/a0000000000000004: task 4
        Merge decurion/a0000000000000002: task 2
        Merge decurion/a0000000000000001: task 1
    "]]
    .assert_eq(&log);
    assert_eq!(yard.repo.git(&["show", "decurion/merged:b.txt"]).unwrap(), "second\n");
    let by = yard.repo.git(&["log", "-1", "--format=%s by %an", "decurion/merged^2"]).unwrap();
    assert_eq!(by, "task 4 by Decurion\n", "what was left uncommitted has its task as message");
    assert_eq!(yard.main_checkout(), before);
    // Once more: the one that conflicts still does, and nothing else is left to do.
    expect![[r"
        003 conflicts in b.txt
    "]]
    .assert_eq(&told(&merged(&yard, &request(&yard)).await));
}

#[tokio::test]
async fn a_red_gate_takes_that_one_back_and_goes_on() {
    let yard = yard();
    let before = yard.main_checkout();
    worked(&yard, 1, &[("one.txt", "1\n")]).await;
    worked(&yard, 2, &[("bad.txt", "bad\n")]).await;
    worked(&yard, 3, &[("three.txt", "3\n")]).await;
    // It leaves a file behind, which must not be there for the next.
    let gate = gate("pwd; ls; test ! -e bad.txt && test ! -e left.txt && touch left.txt");
    let done = merged(&yard, &MergeRequest { gate: Some(gate), ..request(&yard) }).await;
    let words = told(&done);
    let words = words.replace(utf8(yard.home.path()).as_str(), "HOME");
    let slug = decurion_store::Leases::project(&utf8(yard.repo.path()).join(".git"));
    expect![[r"
        001 merged, removed
        002 gate: exit code 1: HOME/state/worktrees/SLUG/merging
        b.txt
        bad.txt
        one.txt
        shared.txt
        003 merged, removed
    "]]
    .assert_eq(&words.replace(&slug, "SLUG"));
    assert_eq!(yard.traces(), "1 worktrees, 2 branches, leases [Kept]", "the gate's own worktree is gone");
    let files = yard.repo.git(&["ls-tree", "--name-only", "decurion/merged"]).unwrap();
    assert_eq!(files, "b.txt\none.txt\nshared.txt\nthree.txt\n");
    assert_eq!(yard.main_checkout(), before);
}

#[tokio::test]
async fn a_worktree_of_the_name_that_merges_are_judged_under_is_left_alone() {
    let yard = yard();
    let wanted = yard.wanted(9);
    let wanted = decurion_engine::worktree::Wanted { name: "merging".to_owned(), agent: None, ..wanted };
    let theirs = yard.trees.make(&wanted).await.unwrap();
    fs::write(theirs.cwd.join("work.txt"), "mine\n").unwrap();
    worked(&yard, 1, &[("one.txt", "1\n")]).await;
    let which = vec!["a0000000000000001".to_owned()];
    let done = merged(&yard, &MergeRequest { which, gate: Some(gate("true")), ..request(&yard) }).await;
    assert!(matches!(done.rows[0].outcome, MergeOutcome::Merged { .. }), "{:?}", done.rows);
    assert_eq!(fs::read_to_string(theirs.cwd.join("work.txt")).unwrap(), "mine\n");
}

#[tokio::test]
async fn a_gate_that_hangs_is_ended() {
    let yard = yard();
    worked(&yard, 1, &[("one.txt", "1\n")]).await;
    let mut slow = gate("echo begun; sleep 600");
    slow.timeout = Duration::from_millis(300);
    let done = merged(&yard, &MergeRequest { gate: Some(slow), ..request(&yard) }).await;
    assert!(told(&done).starts_with("001 gate: took longer than 0 s"), "{}", told(&done));
    assert_eq!(yard.traces(), "1 worktrees, 1 branches, leases [Kept]");
}

#[tokio::test]
async fn a_target_that_is_checked_out_or_held_is_refused() {
    let yard = yard();
    worked(&yard, 1, &[("one.txt", "1\n")]).await;
    let into = |into: &str| MergeRequest { into: into.to_owned(), ..request(&yard) };
    let error = merge(&yard.trees, &into("main")).await.unwrap_err();
    assert!(matches!(error, MergeError::CheckedOut { .. }), "{error}");
    let error = merge(&yard.trees, &into("a..b")).await.unwrap_err();
    assert!(matches!(error, MergeError::Target(_)), "{error}");
    let unknown = MergeRequest { which: vec!["nobody".to_owned()], ..request(&yard) };
    let error = merge(&yard.trees, &unknown).await.unwrap_err();
    assert!(matches!(error, MergeError::Unknown(_)), "{error}");
    let repository = utf8(yard.repo.path()).join(".git");
    let held = yard.trees.leases().work_lock(&repository, "merge").unwrap().unwrap();
    let error = merge(&yard.trees, &request(&yard)).await.unwrap_err();
    assert!(matches!(error, MergeError::UnderWay(_)), "{error}");
    drop(held);
    assert!(told(&merged(&yard, &request(&yard)).await).contains("merged"));
}

#[tokio::test]
async fn what_is_in_use_or_strange_is_left_alone() {
    let yard = yard();
    let _alive = yard.trees.leases().hold(yard.session).unwrap();
    let busy = yard.make(1).await;
    fs::write(busy.cwd.join("one.txt"), "1\n").unwrap();
    // A repository inside: its commits are nowhere else.
    let nested = yard.make(2).await;
    fs::create_dir(nested.cwd.join("inner")).unwrap();
    let inner = Repo::with_files(&[("x", "x")]).unwrap();
    fs::rename(inner.path().join(".git"), nested.cwd.join("inner/.git")).unwrap();
    yard.trees.release(&nested.worktree).await;
    // On another branch than its own.
    let strayed = yard.make(3).await;
    fs::write(strayed.cwd.join("three.txt"), "3\n").unwrap();
    Repo::git_at(strayed.cwd.as_std_path(), &["checkout", "-q", "-b", "elsewhere"]).unwrap();
    yard.trees.release(&strayed.worktree).await;
    let good = worked(&yard, 4, &[("four.txt", "4\n")]).await;
    let which = (1..=4).map(|number| format!("decurion/a{number:016x}")).collect();
    let done = merged(&yard, &MergeRequest { which, ..request(&yard) }).await;
    let words = told(&done).replace(strayed.cwd.as_str(), "PATH");
    expect![[r"
        002 skipped: it holds repositories or submodule commits of its own: inner
        003 skipped: PATH is not on its branch any more
        004 merged
        001 skipped: its agent has not ended
    "]]
    .assert_eq(&words);
    // Its session is alive and could go on with it.
    assert!(good.cwd.exists());
    assert!(busy.cwd.join("one.txt").exists());
}

#[tokio::test]
async fn a_target_follows_what_has_taken_it_over() {
    let yard = yard();
    worked(&yard, 1, &[("one.txt", "1\n")]).await;
    merged(&yard, &request(&yard)).await;
    yard.repo.git(&["merge", "-q", "--ff-only", "decurion/merged"]).unwrap();
    yard.repo.write("mine.txt", "mine\n").unwrap();
    yard.repo.commit("mine").unwrap();
    worked(&yard, 2, &[("two.txt", "2\n")]).await;
    merged(&yard, &request(&yard)).await;
    let files = yard.repo.git(&["ls-tree", "--name-only", "decurion/merged"]).unwrap();
    assert_eq!(files, "b.txt\nmine.txt\none.txt\nshared.txt\ntwo.txt\n");
}
