//! Worktrees and merging from the command line: what is printed, and the exit codes.

use std::path::Path;

use decurion_testkit::proc::Finished;
use decurion_testkit::repo::Repo;
use expect_test::expect;

use crate::stand::{DECURION, Stand, finished, without_times};

const SCRIPT: &str = r#"
when agent=main turn=1
  call Agent {"description": "first", "prompt": "a", "subagent_type": "general-purpose", "isolation": "worktree"}
when agent=main turn=2
  call Agent {"description": "second", "prompt": "b", "subagent_type": "general-purpose", "isolation": "worktree"}
when agent=main
  say "over"
when turn=1 text=/([ab])$/
  call Bash {"command": "echo $1 > same.txt; echo $1 > $1.txt"}
when
  say "done"
"#;

fn stand() -> Stand {
    stand_with(SCRIPT)
}

fn stand_with(script: &str) -> Stand {
    let stand = Stand::new(script);
    git(&stand, &["init", "--quiet", "--initial-branch=main"]);
    std::fs::write(stand.file("same.txt"), "nobody\n").unwrap();
    git(&stand, &["add", "--all"]);
    git(&stand, &["commit", "--quiet", "--message", "first"]);
    stand
}

fn git(stand: &Stand, arguments: &[&str]) -> String {
    Repo::git_at(&stand.home.work(), arguments).unwrap()
}

fn command(stand: &Stand, arguments: &[&str]) -> Finished {
    finished(stand.home.program(DECURION).args(arguments))
}

/// What was printed, without the names and folders of this run.
fn masked(stand: &Stand, run: &Finished) -> String {
    let mut text = format!("{}{}", run.output(), run.errors);
    let state = stand.home.state().canonicalize().unwrap_or_else(|_| stand.home.state());
    for folder in [&state, &stand.home.state(), &stand.home.work()] {
        let name = if Path::ends_with(folder, "work") { "WORK" } else { "STATE" };
        text = text.replace(folder.to_str().unwrap(), name);
    }
    let mut shown = String::new();
    let mut rest = text.as_str();
    // An agent's id: `a` and 16 digits.
    while let Some(at) = rest.find('a') {
        let word: String = rest[at + 1..].chars().take_while(char::is_ascii_hexdigit).collect();
        let end = at + 1 + word.len();
        shown.push_str(&rest[..at]);
        shown.push_str(if word.len() == 16 { "ID" } else { &rest[at..end] });
        rest = &rest[end..];
    }
    shown.push_str(rest);
    let slug = decurion_store_slug(stand);
    let mut shown = without_times(&shown.replace(&slug, "SLUG"));
    for line in stand.run(&["sessions", "list", "--all", "--json"]).lines {
        let listed: serde_json::Value = serde_json::from_str(&line).unwrap();
        shown = shown.replace(&listed["session"].as_str().unwrap()[..8], "SESSION");
    }
    shown
}

fn decurion_store_slug(stand: &Stand) -> String {
    let work = stand.home.work().canonicalize().unwrap();
    work.to_str().unwrap().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

#[test]
fn what_agents_left_is_listed_merged_and_cleaned() {
    let stand = stand();
    let none = command(&stand, &["worktrees", "list"]);
    assert_eq!((none.output().as_str(), none.ending.is_success()), ("No worktrees.", true));
    let run = stand.run(&["-p", "--dangerously-skip-permissions", "go"]);
    assert!(run.ending.is_success(), "{run:?}");
    let listed = command(&stand, &["worktrees", "list"]);
    expect![[r"
        NAME  SESSION  CREATED  STATE  FOR  WHERE
        ID  SESSION  AGO  1 file changed, +1 -1, 1 untracked, nothing committed  first  STATE/worktrees/SLUG/ID on decurion/ID
        ID  SESSION  AGO  1 file changed, +1 -1, 1 untracked, nothing committed  second  STATE/worktrees/SLUG/ID on decurion/ID"]]
    .assert_eq(&masked(&stand, &listed));
    let dry = command(&stand, &["merge", "--dry-run"]);
    expect![[r"
        ID (first): merges
        ID (second): conflicts in same.txt
        1 of 2 would be merged into decurion/merged"]]
    .assert_eq(&masked(&stand, &dry));
    let merged = command(&stand, &["merge", "--gate", "test -e same.txt"]);
    expect![[r"
        ID (first): merged (worktree removed)
        ID (second): conflicts in same.txt
        1 of 2 merged into decurion/merged
        To update your branch: git merge --ff-only decurion/merged"]]
    .assert_eq(&masked(&stand, &merged));
    assert_eq!(merged.ending.code(), 1, "something is not merged");
    assert_eq!(git(&stand, &["status", "--porcelain"]), "", "the checkout is as it was");
    let refused = command(&stand, &["merge", "--into", "main"]);
    expect![[r"
        decurion: the branch main is checked out in WORK, and no checkout is changed here
          leave --into out, then update that branch: git merge --ff-only decurion/merged"]]
    .assert_eq(&masked(&stand, &refused));
    let cleaned = command(&stand, &["worktrees", "clean"]);
    expect![[r"
        NAME  SESSION  CREATED  STATE  FOR  WHERE
        ID  SESSION  AGO  1 commit, 2 files changed, +2 -1  second  STATE/worktrees/SLUG/ID on decurion/ID"]]
    .assert_eq(&masked(&stand, &cleaned));
}

/// The first agent waits for the second, so that the one that began last finishes first.
const LAST_FIRST: &str = r#"
when agent=main turn=1
  call Agent {"description": "first", "prompt": "a", "subagent_type": "general-purpose", "isolation": "worktree"}
when agent=main
  say "over"
when turn=1 first=/a$/
  call Agent {"description": "second", "prompt": "b", "subagent_type": "general-purpose", "isolation": "worktree"}
when turn=2 first=/a$/
  call Bash {"command": "echo a > same.txt"}
when turn=1 first=/b$/
  call Bash {"command": "echo b > same.txt"}
when
  say "done"
"#;

#[test]
fn agents_are_merged_in_the_order_in_which_they_finished() {
    let stand = stand_with(LAST_FIRST);
    std::fs::write(stand.home.state().join("settings.json"), r#"{"agents": {"maxDepth": 2}}"#).unwrap();
    let run = stand.run(&["-p", "--dangerously-skip-permissions", "go"]);
    assert!(run.ending.is_success(), "{run:?}");
    expect![[r"
        ID (second): merged (worktree removed)
        ID (first): conflicts in same.txt
        1 of 2 merged into decurion/merged
        To update your branch: git merge --ff-only decurion/merged"]]
    .assert_eq(&masked(&stand, &command(&stand, &["merge"])));
    let help = command(&stand, &["merge", "--help"]).output();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("in the order in which they finished") && !help.contains("oldest"), "{help}");
}

#[test]
fn a_session_works_in_a_worktree_of_its_own_and_says_where() {
    let script = "when turn=1\n  call Bash {\"command\": \"echo x > new.txt\"}\nwhen\n  say \"done\"\n";
    let stand = Stand::new(script);
    let outside = stand.run(&["-p", "--worktree", "go"]);
    assert!(outside.errors.contains("not a git repository"), "{outside:?}");
    git(&stand, &["init", "--quiet", "--initial-branch=main"]);
    git(&stand, &["commit", "--quiet", "--allow-empty", "--message", "first"]);
    let run = stand.run(&["-p", "--verbose", "--worktree=mine", "--dangerously-skip-permissions", "go"]);
    assert!(run.ending.is_success(), "{run:?}");
    assert!(run.errors.contains("the session's worktree is kept: "), "{}", run.errors);
    assert_eq!(git(&stand, &["status", "--porcelain"]), "");
    assert_eq!(git(&stand, &["branch", "--list", "decurion/*"]), "+ decurion/mine\n");
    // Whole, and without being asked for more.
    let run = stand.run(&["-p", "--worktree=other", "--dangerously-skip-permissions", "go"]);
    expect![[r"
        donedecurion: all permission checks but deny rules are skipped
        decurion: the session's worktree is kept: STATE/worktrees/SLUG/other on decurion/other: 1 untracked, nothing committed"]]
    .assert_eq(&masked(&stand, &run));
    for format in ["json", "stream-json"] {
        let run = stand.run(&[
            "-p",
            "--verbose",
            "--output-format",
            format,
            "--worktree=third",
            "--dangerously-skip-permissions",
            "go",
        ]);
        let result: serde_json::Value = serde_json::from_str(run.output().lines().last().unwrap()).unwrap();
        assert_eq!(result["worktreeBranch"], "decurion/third", "{result}");
        assert!(Path::new(result["worktreePath"].as_str().unwrap()).join("new.txt").exists());
    }
}

#[test]
fn of_a_worktree_that_is_gone_at_the_end_nothing_is_said() {
    let stand = Stand::new("when\n  say \"done\"\n");
    git(&stand, &["init", "--quiet", "--initial-branch=main"]);
    git(&stand, &["commit", "--quiet", "--allow-empty", "--message", "first"]);
    let run = stand.run(&["-p", "--worktree=mine", "go"]);
    assert_eq!(masked(&stand, &run), "done");
    let run = stand.run(&["-p", "--output-format", "json", "--worktree=mine", "go"]);
    let result: serde_json::Value = serde_json::from_str(&run.output()).unwrap();
    assert!(result.get("worktreePath").is_none() && result.get("worktreeBranch").is_none(), "{result}");
}

#[test]
fn an_agent_that_works_apart_does_so_as_the_session_itself() {
    let script = "when turn=1\n  call Bash {\"command\": \"echo x > new.txt\"}\nwhen\n  say \"done\"\n";
    let stand = Stand::new(script);
    git(&stand, &["init", "--quiet", "--initial-branch=main"]);
    git(&stand, &["commit", "--quiet", "--allow-empty", "--message", "first"]);
    let apart = r#"{"apart": {"description": "d", "prompt": "p", "isolation": "worktree"}}"#;
    let run =
        stand.run(&["-p", "--agents", apart, "--agent", "apart", "--dangerously-skip-permissions", "go"]);
    assert!(run.ending.is_success() && run.errors.contains("the session's worktree is kept: "), "{run:?}");
    assert_eq!(git(&stand, &["status", "--porcelain"]), "");
}

#[test]
fn a_worktree_is_removed_by_its_name_and_what_is_not_merged_only_if_that_is_said() {
    let script = "when turn=1\n  call Bash {\"command\": \"echo x > new.txt\"}\nwhen\n  say \"done\"\n";
    let stand = Stand::new(script);
    git(&stand, &["init", "--quiet", "--initial-branch=main"]);
    git(&stand, &["commit", "--quiet", "--allow-empty", "--message", "first"]);
    for name in ["mine", "other"] {
        let run = stand.run(&["-p", &format!("--worktree={name}"), "--dangerously-skip-permissions", "go"]);
        assert!(run.ending.is_success(), "{run:?}");
    }
    let mut shown = String::new();
    for arguments in [&["remove", "none"][..], &["remove", "mine"], &["remove", "mine", "--discard"]] {
        let run = command(&stand, &[&["worktrees"], arguments].concat());
        shown.push_str(&format!("{arguments:?} {:?}: {}\n", run.ending.code(), masked(&stand, &run)));
    }
    // What is merged is taken without a word; its worktree is kept by something that git ignores.
    let other = stand.home.state().join("worktrees").join(decurion_store_slug(&stand)).join("other");
    std::fs::write(stand.file(".git/info/exclude"), "local.db\n").unwrap();
    std::fs::write(other.join("local.db"), "x").unwrap();
    for arguments in
        [&["merge"][..], &["worktrees", "remove", "other"], &["worktrees", "remove", "other", "--discard"]]
    {
        let run = command(&stand, arguments);
        shown.push_str(&format!("{arguments:?} {:?}: {}\n", run.ending.code(), masked(&stand, &run)));
    }
    expect![[r#"
        ["remove", "none"] 2: decurion: worktree not found: none
          `decurion worktrees list` lists them
        ["remove", "mine"] 1: decurion: the worktree mine has work in it that is not merged: 1 untracked, nothing committed
          `decurion merge mine` merges it, except for files that git ignores; --discard deletes it
        ["remove", "mine", "--discard"] 0: mine: removed (1 untracked, nothing committed)
        ["merge"] 0: other: merged
        1 of 1 merged into decurion/merged
        To update your branch: git merge --ff-only decurion/merged
        ["worktrees", "remove", "other"] 1: decurion: the worktree other has work in it that is not merged: 1 commit, 1 file changed, +1 -0, ignored by git: local.db
          `decurion merge other` merges it, except for files that git ignores; --discard deletes it
        ["worktrees", "remove", "other", "--discard"] 0: other: removed (1 commit, 1 file changed, +1 -0, ignored by git: local.db)
    "#]].assert_eq(&shown);
    assert_eq!(git(&stand, &["branch", "--list", "decurion/*"]), "  decurion/merged\n");
    assert!(!other.exists());
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a pipe with a name is made by a program, which ends at once")]
fn of_two_merges_at_once_one_works_and_the_other_says_who_does() {
    let stand = stand();
    let run = stand.run(&["-p", "--dangerously-skip-permissions", "go"]);
    assert!(run.ending.is_success(), "{run:?}");
    let pipe = |name: &str| {
        let path = stand.home.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    };
    let (begun, go) = (pipe("begun"), pipe("go"));
    // The gate says that it runs, then waits to be let go.
    let gate = format!("echo begun > {} && cat {}", begun.display(), go.display());
    let first = stand.home.program(DECURION).args(["merge", "--gate", &gate]).start().unwrap();
    assert_eq!(std::fs::read_to_string(&begun).unwrap(), "begun\n");
    let second = command(&stand, &["merge"]);
    let wanted = format!("another merge of this repository is under way, by process {} on ", first.pid);
    assert!(second.errors.contains(&wanted), "{wanted}: {second:?}");
    assert_eq!((second.ending.code(), second.output().as_str()), (2, ""), "it changed nothing");
    let cleaned = command(&stand, &["worktrees", "clean"]);
    assert!(cleaned.ending.is_success(), "{cleaned:?}");
    std::fs::write(&go, "go\n").unwrap();
    let first = first.finish(crate::stand::LIMIT).unwrap();
    expect![[r"
        ID (first): merged (worktree removed)
        ID (second): conflicts in same.txt
        1 of 2 merged into decurion/merged
        To update your branch: git merge --ff-only decurion/merged"]]
    .assert_eq(&masked(&stand, &first));
    // Whoever comes after it finds what it left, and nobody in the way.
    let third = command(&stand, &["merge"]);
    expect![[r"
        ID (second): conflicts in same.txt
        0 of 1 merged into decurion/merged"]]
    .assert_eq(&masked(&stand, &third));
    assert_eq!(git(&stand, &["show", "decurion/merged:a.txt"]), "a\n");
    assert_eq!(git(&stand, &["status", "--porcelain"]), "", "the checkout is as it was");
}
