//! Files beside the transcript.

use std::os::unix::fs::{MetadataExt, symlink};

use decurion_protocol::{CallId, TaskId};
use decurion_store::SessionFiles;

use crate::samples::{Home, agent};

fn files(home: &Home) -> SessionFiles {
    SessionFiles::open(&home.paths(1)).unwrap()
}

#[test]
fn heads_are_written_once() {
    let home = Home::new();
    let files = files(&home);
    let hash = "0f".repeat(32);
    files.put_head(&hash, b"head").unwrap();
    // A name without its content, or with zeros, as a power loss leaves it, is written again.
    for (left, synced) in [(&b""[..], false), (b"\0\0\0\0", false), (b"\0\0\0\0", true)] {
        std::fs::write(files.path().join("heads").join(&hash), left).unwrap();
        let files = SessionFiles::open(&home.paths(1)).unwrap().synced(synced);
        files.put_head(&hash, b"head").unwrap();
        assert_eq!(files.get_head(&hash).unwrap(), b"head");
    }
    assert_eq!(files.get_head("other").unwrap_err().kind(), std::io::ErrorKind::NotFound);
    let names: Vec<_> = std::fs::read_dir(files.path().join("heads")).unwrap().collect();
    assert_eq!(names.len(), 1, "no temporary file is left");
}

#[test]
fn what_a_file_held_is_kept_by_its_hash_and_given_back_whole_or_not_at_all() {
    let home = Home::new();
    let files = files(&home);
    assert_eq!(files.get_checkpoint(&"0f".repeat(32)).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    for synced in [false, true, true] {
        let files = SessionFiles::open(&home.paths(1)).unwrap().synced(synced);
        for content in [&b""[..], b"abc", b"\0\xff"] {
            let name = files.put_checkpoint(content).unwrap();
            assert_eq!(files.get_checkpoint(&name).unwrap(), content);
            let kept = std::fs::metadata(files.path().join("checkpoints").join(&name)).unwrap();
            assert_eq!(kept.mode() & 0o777, 0o600);
        }
    }
    assert_eq!(std::fs::read_dir(files.path().join("checkpoints")).unwrap().count(), 3);
    let name = files.put_checkpoint(b"abc").unwrap();
    assert_eq!(name, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    std::fs::write(files.path().join("checkpoints").join(&name), b"abd").unwrap();
    assert_eq!(files.get_checkpoint(&name).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    for odd in ["", "../lock", "a/b"] {
        assert_eq!(files.get_checkpoint(odd).unwrap_err().kind(), std::io::ErrorKind::InvalidInput, "{odd}");
    }
}

#[test]
fn notes_about_agents_are_replaced() {
    let home = Home::new();
    let files = files(&home);
    files.put_agent_meta(&agent("a1"), b"{}").unwrap();
    files.put_agent_meta(&agent("a1"), b"{\"agentType\":\"x\"}").unwrap();
    assert_eq!(files.get_agent_meta(&agent("a1")).unwrap(), b"{\"agentType\":\"x\"}");
}

#[test]
fn an_output_stops_at_its_limit_and_counts_the_rest() {
    let home = Home::new();
    let task: TaskId = "b1234abcd".parse().unwrap();
    let files = files(&home);
    let mut output = files.task_output(&task, 10).unwrap();
    output.append(b"0123456").unwrap();
    output.append(b"789abcdef").unwrap();
    output.append(b"more").unwrap();
    assert_eq!((output.written(), output.dropped()), (10, 10));
    assert_eq!(output.tail(4).unwrap(), (6, b"6789".to_vec()));
    assert_eq!(files.task_tail(&task, 100).unwrap(), (0, b"0123456789".to_vec()));
    assert_eq!(files.read_task(&task, 8, 100).unwrap(), b"89");
    assert_eq!(files.read_task(&task, 100, 100).unwrap(), b"");
    assert_eq!(output.path(), home.paths(1).task_output(&task));
    // A task that goes on adds to its file.
    drop(output);
    let mut output = files.task_output(&task, 12).unwrap();
    output.append(b"XYZ").unwrap();
    assert_eq!(output.read(9, 10).unwrap(), b"9XY");
}

#[test]
fn the_output_of_an_agent_is_a_link_to_its_transcript() {
    let home = Home::new();
    let files = files(&home);
    let paths = home.paths(1);
    let path = files.link_task(&agent("a1")).unwrap();
    assert_eq!(path, paths.task_output(&agent("a1").into()));
    assert_eq!(path, paths.folder().join("tasks/a1.output"));
    std::fs::create_dir_all(paths.agent(&agent("a1")).parent().unwrap()).unwrap();
    std::fs::write(paths.agent(&agent("a1")), "said\n").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "said\n", "what is written later is seen");
    assert_eq!(files.link_task(&agent("a1")).unwrap(), path, "an agent that goes on has it already");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "said\n");
}

#[test]
fn the_id_of_a_call_is_never_a_path() {
    let home = Home::new();
    let files = files(&home);
    for id in ["../../../../x", "/etc/passwd", "", "a\0b", "..", "-", &"y".repeat(500), "toolu_01", "é/é"] {
        let mut output = files.tool_result(&CallId(id.into()), 100).unwrap();
        output.append(b"x").unwrap();
        let folder = files.path().join("tool-results");
        assert_eq!(output.path().parent(), Some(folder.as_path()));
        assert!(!output.path().file_name().unwrap().starts_with(['.', '-']), "{}", output.path());
        assert_eq!(std::fs::read(output.path()).unwrap(), b"x");
    }
    let same = CallId("same".into());
    assert_ne!(
        files.tool_result(&same, 1).unwrap().path(),
        files.tool_result(&same, 1).unwrap().path(),
        "two results of one id have two files"
    );
}

#[test]
fn what_is_made_is_private() {
    let home = Home::new();
    let files = files(&home);
    files.put_head("abc", b"x").unwrap();
    let output = files.tool_result(&CallId("x".into()), 1).unwrap();
    for (path, mode) in [
        (output.path().to_owned(), 0o600),
        (output.path().parent().unwrap().to_owned(), 0o700),
        (files.path().to_owned(), 0o700),
        (files.path().join("heads/abc"), 0o600),
        (home.state(), 0o700),
    ] {
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, mode, "{path}");
    }
}

#[test]
fn a_link_in_the_way_is_not_followed() {
    let home = Home::new();
    let files = files(&home);
    let outside = home.path().join("outside");
    std::fs::write(&outside, "precious").unwrap();
    let task: TaskId = "b1".parse().unwrap();
    files.task_output(&"b2".parse().unwrap(), 10).unwrap();
    symlink(&outside, home.paths(1).task_output(&task)).unwrap();
    assert!(files.task_output(&task, 10).is_err());
    assert!(files.read_task(&task, 0, 10).is_err());
    std::fs::create_dir(home.path().join("elsewhere")).unwrap();
    symlink(home.path().join("elsewhere"), files.path().join("tool-results")).unwrap();
    assert!(files.tool_result(&CallId("x".into()), 10).is_err());
    assert_eq!(std::fs::read(&outside).unwrap(), b"precious");
    assert_eq!(std::fs::read_dir(home.path().join("elsewhere")).unwrap().count(), 0);
}

#[test]
fn an_attacker_who_races_for_the_name_never_wins() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let home = Home::new();
    let files = files(&home);
    let outside = home.path().join("outside");
    std::fs::write(&outside, "precious").unwrap();
    files.tool_result(&CallId("first".into()), 10).unwrap();
    let folder = files.path().join("tool-results");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Everything that could be known of the name beforehand.
            let names = ["x.txt", "x", "x-.txt", "x-0.txt", "x-0000000000000000.txt"];
            while !done.load(Ordering::Relaxed) {
                for name in names {
                    let _ = symlink(&outside, folder.join(name));
                }
            }
        });
        for _ in 0..1000 {
            files.tool_result(&CallId("x".into()), 10).unwrap().append(b"ours").unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(std::fs::read(&outside).unwrap(), b"precious");
}
