//! Repositories in the sandbox, through the program: what git's settings name, pipes in place of files that we read, and
//! placeholders. Judged by what is on disk afterwards.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use crate::sandbox::{names, results, stand};
use crate::stand::{DECURION, LIMIT, Stand, finished};

/// Runs git outside of the sandbox.
fn git(stand: &Stand, arguments: &[&str]) {
    let git = stand.home.program("git").args(["-c", "user.name=n", "-c", "user.email=e@x"]).args(arguments);
    let run = finished(git);
    assert_eq!(run.ending.code(), 0, "{arguments:?}: {run:?}");
}

/// Runs these texts as scripts in a repository with a commit, so that the analysis of commands does not know what they
/// do.
fn repository(texts: &[&str]) -> Stand {
    let commands: Vec<String> = (0..texts.len()).map(|index| format!("sh src/{index}.sh")).collect();
    let stand = stand(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    for (index, text) in texts.iter().enumerate() {
        fs::write(stand.home.work().join(format!("src/{index}.sh")), text).unwrap();
    }
    git(&stand, &["init", "-q", "-b", "main"]);
    git(&stand, &["add", "-A"]);
    git(&stand, &["commit", "-qm", "x"]);
    stand
}

#[test]
fn explaining_a_command_has_no_effect() {
    let stand = repository(&[]);
    let work = stand.home.work();
    let changed = || fs::metadata(&work).map(|found| (found.mtime(), found.mtime_nsec())).unwrap();
    let before = changed();
    for of in ["permissions", "sandbox"] {
        let whole = stand.run(&[of, "explain", "make install"]);
        assert!(whole.output().contains(work.join(".vscode").to_str().unwrap()), "{whole:?}");
        assert!(!whole.output().contains(".git/config.worktree"), "{whole:?}");
        // An output that cannot be written ends the program at its first line, as `head` may.
        let cut = ["-c", &format!("'{DECURION}' {of} explain 'make install' > /dev/full")];
        let cut = finished(stand.decurion_through("sh").args(cut));
        assert_eq!(cut.ending.code(), 1, "{cut:?}");
        assert_eq!(changed(), before, "something was made in the working directory: {of}");
        assert_eq!(names(&stand.home.path().join("tmp")), [""; 0], "{of}");
    }
}

#[test]
fn one_session_leaves_the_placeholders_of_another() {
    let stand = repository(&[]);
    let work = stand.home.work();
    let hold = ["sandbox", "run", "--", "sh", "-c", "echo ready; read line"];
    let mut first = stand.decurion().args(hold).start_talking().unwrap();
    first.wait_for_line(LIMIT, |line| line == "ready").unwrap();
    let second = stand.run(&["sandbox", "run", "--", "sh", "-c", "mkdir .idea/x; echo x > .mcp.json; ls -A"]);
    assert!(second.output().contains(".idea") && second.output().contains(".mcp.json"), "{second:?}");
    for name in [".claude", ".idea", ".mcp.json"] {
        assert_eq!(names(&work.join(name)), [""; 0], "{name}");
    }
    first.say("go").unwrap();
    first.finish(LIMIT).unwrap();
    assert_eq!(names(&work), [".env", ".git", "a.txt", "b.txt", "src"]);
}

/// A session can be killed between the steps by which it makes a placeholder.
#[test]
fn unfinished_placeholders_of_a_killed_session_are_removed() {
    let stand = repository(&["ls -A"]);
    let work = stand.home.work();
    for name in [".idea", "made"] {
        fs::create_dir(work.join(name)).unwrap();
        fs::set_permissions(work.join(name), fs::Permissions::from_mode(0o1700)).unwrap();
    }
    // One that is somebody else's by now.
    fs::write(work.join("made/file"), "x").unwrap();
    let rules = ["--allowedTools", "Bash", "--disallowedTools", "Edit(made/**)"];
    let results = results(&stand, &rules);
    assert!(results[0].contains(".idea"), "{results:?}");
    assert_eq!(names(&work), [".env", ".git", "a.txt", "b.txt", "made", "src"]);
    assert_eq!(names(&work.join("made")), ["file"]);
}

#[test]
fn commands_do_not_run_without_a_placeholder_that_they_need() {
    let stand = repository(&["echo ran > ran; mkdir deep"]);
    let deep = format!("Edit({}x)", "deep/".repeat(20));
    let results = results(&stand, &["--allowedTools", "Bash", "--disallowedTools", &deep]);
    assert!(!stand.home.work().join("ran").exists(), "{results:?}");
    assert!(
        results[0].contains("cannot keep commands from making") && results[0].contains("deep/deep"),
        "{results:?}"
    );
}
