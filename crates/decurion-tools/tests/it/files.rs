//! Writes and links: nothing is ever written outside the allowed directories through a link, whoever
//! changes the links meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use serde_json::json;

use crate::stage::Stage;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever a path is made of: if it reads as one inside the project, nothing outside changes or is read.
    #[test]
    fn no_path_inside_leads_outside(
        parts in prop::collection::vec(
            prop::sample::select(vec!["a", "b", "..", ".", "", "door", "up", "alias", "file", "loop", "~", "deep"]), 1..7
        )
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut stage = Stage::new();
            std::fs::create_dir(stage.outside.join("other")).unwrap();
            std::fs::write(stage.outside.join("other/file"), "theirs").unwrap();
            stage.file("a/file", "ours");
            for (target, link) in [("../other", "door"), ("..", "up"), ("../other/file", "alias"), ("loop", "loop"), ("../up/other", "a/deep")] {
                stage.link(target, link);
            }
            let outside = |stage: &Stage| -> Vec<(String, String)> {
                let inside = format!("{}/", stage.project);
                stage.everything().into_iter().filter(|(path, _)| !path.starts_with(&inside)).collect()
            };
            let before = outside(&stage);
            let path = parts.join("/");
            let Ok(intent) = stage.intent("Read", &json!({"file_path": path})) else { return };
            if !intent.touches[0].path.starts_with(&stage.project) {
                return;
            }
            let read = stage.run("Read", json!({"file_path": path})).await;
            assert!(!read.content.text().contains("theirs"), "{path}");
            stage.run("Edit", json!({"file_path": path, "old_string": "theirs", "new_string": "x"})).await;
            stage.run("Write", json!({"file_path": path, "content": "x"})).await;
            assert_eq!(outside(&stage), before, "{path}");
        });
    }
}

#[tokio::test]
async fn a_link_to_the_outside_is_not_written_through() {
    let mut stage = Stage::new();
    std::fs::create_dir(stage.outside.join("other")).unwrap();
    std::fs::write(stage.outside.join("other/file"), "theirs").unwrap();
    stage.link("../other", "door");
    stage.link("../other/file", "alias");
    stage.link("../other/new", "dangling");
    let before = stage.everything();
    for path in ["door/file", "door/new", "door/a/b/new", "alias", "dangling"] {
        for (tool, input) in [
            ("Write", json!({"file_path": path, "content": "ours"})),
            ("Edit", json!({"file_path": path, "old_string": "", "new_string": "ours"})),
            ("Edit", json!({"file_path": path, "old_string": "theirs", "new_string": "ours"})),
        ] {
            let text = stage.fails(tool, input).await;
            let expected =
                if path == "dangling" { "does not exist" } else { "outside the allowed directories" };
            assert!(text.contains(expected), "{path}: {text}");
        }
    }
    assert_eq!(stage.everything(), before);
}

#[tokio::test]
async fn a_place_outside_named_by_its_own_path_is_permissions_matter() {
    let mut stage = Stage::new();
    let path = stage.outside.join("elsewhere/file");
    stage.ok("Write", json!({"file_path": path, "content": "x"})).await;
    assert_eq!(std::fs::read_to_string(path).unwrap(), "x");
}

#[tokio::test]
async fn a_project_reached_through_a_link_is_the_project() {
    let mut stage = Stage::new();
    let alias = stage.outside.join("alias");
    std::os::unix::fs::symlink(&stage.project, &alias).unwrap();
    stage.project = alias;
    stage.ok("Write", json!({"file_path": "a/b", "content": "x"})).await;
    stage.ok("Edit", json!({"file_path": "a/b", "old_string": "x", "new_string": "y"})).await;
    assert_eq!(stage.content("a/b"), "y");
    assert_eq!(stage.ok("Read", json!({"file_path": "a/b"})).await, "1\ty");
}

/// Someone swaps a directory of the project for a link to the outside and back, as fast as possible, while
/// we write into it. Some writes fail; none lands outside.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_race_over_links_is_lost() {
    let mut stage = Stage::new();
    let target = stage.outside.join("target");
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("file"), "theirs").unwrap();
    std::fs::create_dir(stage.project.join("sub")).unwrap();
    std::os::unix::fs::symlink(&target, stage.project.join("swap")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let attacker = std::thread::spawn({
        let (stop, project) = (Arc::clone(&stop), stage.project.clone());
        move || {
            let mut swaps = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                // One step: what was the directory is the link, and the other way round.
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                let (one, other) = (project.join("sub"), project.join("swap"));
                rustix::fs::renameat_with(
                    rustix::fs::CWD,
                    one.as_str(),
                    rustix::fs::CWD,
                    other.as_str(),
                    flags,
                )
                .unwrap();
                swaps += 1;
            }
            swaps
        }
    });
    let (mut written, mut refused) = (0, 0);
    for round in 0..20_000 {
        // A thousand rounds, and more only where the attacker has not had its turn yet.
        if round >= 1_000 && written > 0 && refused > 0 {
            break;
        }
        let path = format!("sub/file{}", round % 7);
        let output = stage.run("Write", json!({"file_path": path, "content": format!("{round}")})).await;
        if output.is_error {
            refused += 1;
        } else {
            written += 1;
        }
        stage.run("Write", json!({"file_path": "sub/file", "content": "ours"})).await;
        stage.run("Write", json!({"file_path": format!("sub/new{round}/x"), "content": "ours"})).await;
    }
    stop.store(true, Ordering::Relaxed);
    assert!(attacker.join().unwrap() > 0);
    assert!(written > 0 && refused > 0, "the race was not run: {written} written, {refused} refused");
    let outside: Vec<_> =
        target.read_dir_utf8().unwrap().map(|entry| entry.unwrap().file_name().to_owned()).collect();
    assert_eq!(outside, ["file"]);
    assert_eq!(std::fs::read_to_string(target.join("file")).unwrap(), "theirs");
}

/// The same for reads: a secret outside is never read through a link that is swapped in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_race_over_links_leaks_a_file() {
    let mut stage = Stage::new();
    std::fs::create_dir(stage.outside.join("target")).unwrap();
    std::fs::write(stage.outside.join("target/file"), "secret").unwrap();
    stage.file("sub/file", "public");
    stage.link("../target", "swap");
    let stop = Arc::new(AtomicBool::new(false));
    let attacker = std::thread::spawn({
        let (stop, project) = (Arc::clone(&stop), stage.project.clone());
        move || {
            while !stop.load(Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                let (one, other) = (project.join("sub"), project.join("swap"));
                rustix::fs::renameat_with(
                    rustix::fs::CWD,
                    one.as_str(),
                    rustix::fs::CWD,
                    other.as_str(),
                    flags,
                )
                .unwrap();
            }
        }
    });
    let mut read = 0;
    for round in 0..1_000 {
        let output = stage.run("Read", json!({"file_path": "sub/file"})).await;
        assert!(!output.content.text().contains("secret"));
        read += usize::from(!output.is_error);
        if round % 10 == 0 {
            let output = stage
                .run("Grep", json!({"pattern": "secret|public", "output_mode": "content", "path": "sub"}))
                .await;
            assert!(output.is_error || !output.content.text().contains(":secret"), "{output:?}");
        }
    }
    stop.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    assert!(read > 0);
}

/// Two runs that both saw a file: the second write finds it changed.
#[tokio::test]
async fn of_two_writers_the_second_is_told() {
    let mut one = Stage::new();
    one.file("f", "old");
    one.ok("Read", json!({"file_path": "f"})).await;
    let seen_before = Arc::clone(&one.seen);
    one.ok("Write", json!({"file_path": "f", "content": "first"})).await;
    one.seen = seen_before;
    let text = one.fails("Write", json!({"file_path": "f", "content": "second"})).await;
    assert!(text.contains("changed since it was read"), "{text}");
    assert_eq!(one.content("f"), "first");
}
