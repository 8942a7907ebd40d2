//! What commands leave for the person's git where Decurion cannot look or rename, or is killed before it does, through the
//! program.

use rustix::process::Signal;

use crate::sandbox_git::{person, repository};
use crate::stand::{DECURION, LIMIT, finished};

const PLANTS: &str =
    "git init -q s; git -C s config core.fsmonitor \"touch $PWD/../ran;\"; echo ready; read line";

#[test]
fn what_commands_of_a_killed_session_left_is_renamed_by_the_next_one() {
    let stand = repository(&["true"]);
    let left = stand.home.work().join("s/.git");
    let plant = ["sandbox", "run", "--", "sh", "-c", PLANTS];
    let mut session = stand.decurion().args(plant).start_talking().unwrap();
    session.wait_for_line(LIMIT, |line| line == "ready").unwrap();
    // The first session lives, and looks itself.
    let other = stand.run(&["sandbox", "run", "--", "true"]);
    assert!(left.exists() && !other.errors.contains("killed"), "{other:?}");
    session.signal(Signal::KILL).unwrap();
    session.finish(LIMIT).unwrap();
    assert!(left.exists());
    let next = finished(stand.decurion().args(["-p", "go"]));
    assert!(
        next.errors.contains(" was killed. A git repository created during that session or after it")
            && next.errors.contains("Decurion renamed it: "),
        "{next:?}"
    );
    person(&stand, "git -C s status");
    assert!(!left.exists() && !stand.home.path().join("ran").exists(), "{next:?}");
    let after = finished(stand.decurion().args(["-p", "go"]));
    assert!(!after.errors.contains("killed"), "{after:?}");
}

#[test]
fn a_session_that_ends_leaves_nothing_to_the_next_one() {
    let stand = repository(&["git init -q s; echo hi > hi"]);
    for _ in 0..2 {
        let run = finished(stand.decurion().args(["-p", "go", "--allowedTools", "Bash"]));
        assert!(!run.errors.contains("Decurion"), "{run:?}");
    }
    assert!(stand.home.work().join("hi").exists());
    let kept =
        stand.home.program("find").args([stand.home.state().join("watched"), "-type".into(), "f".into()]);
    assert!(finished(kept).lines.is_empty());
}

#[test]
fn folders_that_are_too_deep_to_be_looked_at_are_reported() {
    let deep = "for n in $(seq 30); do d=$(printf %0200d $n); mkdir $d; cd $d; done";
    let stand = repository(&[deep]);
    let run = finished(stand.decurion().args(["-p", "go", "--allowedTools", "Bash"]));
    assert!(run.errors.contains("could not look for git repositories"), "{run:?}");
    // They were there before the next session.
    let run = finished(stand.decurion().args(["-p", "go", "--allowedTools", "Bash"]));
    assert!(!run.errors.contains("could not look"), "{run:?}");
}

/// What is mounted cannot be renamed.
#[test]
fn what_cannot_be_renamed_is_reported() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let stand = repository(&["printf '%040d\\t../out/key\\0' 1 > .git/MERGE_RR", "true"]);
    person(&stand, "touch .git/MERGE_RR");
    let mount =
        format!("mount --bind .git/MERGE_RR .git/MERGE_RR && exec {DECURION} -p go --allowedTools Bash");
    let run = finished(stand.decurion_through("unshare").args(["-m", "sh", "-c", &mount]));
    let results = stand.results();
    let told = |text: &str| text.contains("could not rename it: ") && text.contains("/.git/MERGE_RR");
    assert!(told(results[0].as_str().unwrap()), "{results:?}");
    assert!(!told(results[1].as_str().unwrap()), "it was told already: {results:?}");
    assert!(told(&run.errors), "{run:?}");
}
