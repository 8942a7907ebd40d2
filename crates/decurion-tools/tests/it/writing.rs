//! Write and Edit: what changes, and that nothing unseen is lost.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use decurion_protocol::{Access, Overlap, ToolEffect};
use decurion_tools::files_seen::content_hash;
use serde_json::json;

use crate::stage::Stage;

#[tokio::test]
async fn a_new_file_is_created_with_its_directories() {
    let mut stage = Stage::new();
    let output = stage.run("Write", json!({"file_path": "a/b/c.txt", "content": "hi\n"})).await;
    let path = stage.project.join("a/b/c.txt");
    assert_eq!(output.content.text(), "Created a/b/c.txt.");
    assert_eq!(
        output.structured.unwrap(),
        json!({"type": "create", "filePath": path, "content": "hi\n", "structuredPatch": [],
            "originalFile": null, "userModified": false})
    );
    assert_eq!(output.effects, [ToolEffect::Saw { path: path.clone(), hash: content_hash(b"hi\n") }]);
    assert_eq!(stage.content("a/b/c.txt"), "hi\n");
    let mode = |path: &str| std::fs::metadata(stage.project.join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("a"), mode("a/b"), mode("a/b/c.txt")), (0o755, 0o755, 0o644));
    // What one wrote oneself is seen.
    assert_eq!(
        stage.ok("Write", json!({"file_path": "a/b/c.txt", "content": "ho\n"})).await,
        "Wrote a/b/c.txt."
    );
    assert_eq!(stage.everything().len(), 4, "{:?}", stage.everything());
}

#[tokio::test]
async fn an_existing_file_must_have_been_seen_as_it_is() {
    let mut stage = Stage::new();
    let path = stage.file("a", "one\n");
    let write = json!({"file_path": "a", "content": "new\n"});
    let edit = json!({"file_path": "a", "old_string": "one", "new_string": "1"});
    for (tool, input) in [("Write", &write), ("Edit", &edit)] {
        let text = stage.fails(tool, input.clone()).await;
        assert!(text.contains("<tool_use_error>") && text.contains("read it first"), "{text}");
    }
    stage.ok("Read", json!({"file_path": "a"})).await;
    std::fs::write(&path, "one\ntwo\n").unwrap();
    for (tool, input) in [("Write", &write), ("Edit", &edit)] {
        let text = stage.fails(tool, input.clone()).await;
        assert!(text.contains("changed since it was read"), "{text}");
    }
    assert_eq!(stage.content("a"), "one\ntwo\n");
    stage.ok("Read", json!({"file_path": "a", "limit": 1})).await;
    let output = stage.run("Write", write).await;
    assert_eq!(output.content.text(), "Wrote a.");
    let structured = output.structured.unwrap();
    assert_eq!(structured["type"], "update");
    assert_eq!(structured["originalFile"], "one\ntwo\n");
    assert_eq!(
        structured["structuredPatch"],
        json!([{"oldStart": 1, "oldLines": 2, "newStart": 1, "newLines": 1, "lines": ["-one", "-two", "+new"]}])
    );
}

#[tokio::test]
async fn seen_through_one_name_is_seen_through_another() {
    let mut stage = Stage::new();
    stage.file("real/a", "x");
    stage.link("real", "link");
    stage.ok("Read", json!({"file_path": "link/a"})).await;
    stage.ok("Edit", json!({"file_path": "real/a", "old_string": "x", "new_string": "y"})).await;
    stage.ok("Edit", json!({"file_path": "link/a", "old_string": "y", "new_string": "z"})).await;
    assert_eq!(stage.content("real/a"), "z");
}

#[tokio::test]
async fn a_replaced_file_keeps_its_permissions_and_a_link_stays_a_link() {
    let mut stage = Stage::new();
    let path = stage.file("run.sh", "a");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
    stage.link("run.sh", "alias");
    stage.ok("Read", json!({"file_path": "alias"})).await;
    stage.ok("Write", json!({"file_path": "alias", "content": "b"})).await;
    assert!(stage.project.join("alias").is_symlink());
    assert_eq!(stage.content("run.sh"), "b");
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o750);
}

#[tokio::test]
async fn edits_replace_exactly_what_is_asked() {
    let cases = [
        ("a b c", "b", "x", false, Ok("a x c")),
        ("b b", "b", "x", true, Ok("x x")),
        ("b b", "b", "x", false, Err("is in the file 2 times")),
        ("a", "b", "x", false, Err("is not in the file")),
        ("a\r\nb\r\n", "a\nb", "c\nd", false, Ok("c\r\nd\r\n")),
        ("\u{feff}a", "a", "b", false, Ok("\u{feff}b")),
        ("ab", "", "x", false, Err("the file exists")),
        ("ab", "ab", "", false, Ok("")),
    ];
    for (content, old, new, all, expected) in cases {
        let mut stage = Stage::new();
        stage.file("f", content);
        stage.ok("Read", json!({"file_path": "f"})).await;
        let input = json!({"file_path": "f", "old_string": old, "new_string": new, "replace_all": all});
        match expected {
            Ok(expected) => {
                let output = stage.run("Edit", input).await;
                assert!(!output.is_error, "{output:?}");
                assert_eq!(stage.content("f"), expected);
                let hash = content_hash(expected.as_bytes());
                assert_eq!(output.effects, [ToolEffect::Saw { path: stage.project.join("f"), hash }]);
            }
            Err(expected) => {
                let text = stage.fails("Edit", input).await;
                assert!(text.contains(expected) && text.starts_with("<tool_use_error>"), "{text}");
                assert_eq!(stage.content("f"), content);
            }
        }
    }
}

#[tokio::test]
async fn an_edit_tells_programs_what_changed() {
    let mut stage = Stage::new();
    let path = stage.file("f", "1\n2\n3\n");
    stage.ok("Read", json!({"file_path": "f"})).await;
    let output = stage.run("Edit", json!({"file_path": "f", "old_string": "2", "new_string": "two"})).await;
    assert_eq!(output.content.text(), "Edited f.");
    assert_eq!(
        output.structured.unwrap(),
        json!({"filePath": path, "oldString": "2", "newString": "two", "originalFile": "1\n2\n3\n",
            "structuredPatch": [{"oldStart": 1, "oldLines": 3, "newStart": 1, "newLines": 3,
                "lines": [" 1", "-2", "+two", " 3"]}],
            "userModified": false, "replaceAll": false})
    );
}

#[tokio::test]
async fn an_empty_old_string_makes_a_new_file_only() {
    let mut stage = Stage::new();
    let text = stage.ok("Edit", json!({"file_path": "d/n", "old_string": "", "new_string": "x"})).await;
    assert_eq!((text.as_str(), stage.content("d/n").as_str()), ("Created d/n.", "x"));
    let text = stage.fails("Edit", json!({"file_path": "d/n", "old_string": "", "new_string": "y"})).await;
    assert!(text.contains("the file exists: d/n"), "{text}");
    let text = stage.fails("Edit", json!({"file_path": "none", "old_string": "a", "new_string": "y"})).await;
    assert_eq!(text, "there is no such file: OUTSIDE/project/none");
}

#[tokio::test]
async fn what_cannot_be_written_is_said_and_left_alone() {
    let mut stage = Stage::new();
    stage.file("dir/x", "");
    stage.file("file", "");
    stage.file("latin", b"caf\xe9");
    stage.link("nowhere", "dangling");
    stage.ok("Read", json!({"file_path": "latin"})).await;
    let before = stage.everything();
    for (tool, input, expected) in [
        (
            "Write",
            json!({"file_path": "dir", "content": ""}),
            "this is a directory, not a file: OUTSIDE/project/dir",
        ),
        ("Write", json!({"file_path": "/", "content": ""}), "this is a directory, not a file: /"),
        (
            "Write",
            json!({"file_path": "file/x", "content": ""}),
            "this is not a directory: OUTSIDE/project/file/x",
        ),
        (
            "Write",
            json!({"file_path": "dangling", "content": ""}),
            "this is a link to a file that does not exist: OUTSIDE/project/dangling",
        ),
        (
            "Edit",
            json!({"file_path": "latin", "old_string": "c", "new_string": "d"}),
            "the file is not UTF-8 text and cannot be edited here: latin",
        ),
        (
            "Edit",
            json!({"file_path": "dir", "old_string": "c", "new_string": "d"}),
            "this is a directory, not a file: OUTSIDE/project/dir",
        ),
    ] {
        assert_eq!(stage.fails(tool, input).await, expected);
    }
    stage.limits.edit_bytes = 3;
    for (tool, input) in [
        ("Write", json!({"file_path": "n", "content": "long"})),
        ("Edit", json!({"file_path": "n", "old_string": "", "new_string": "long"})),
        ("Edit", json!({"file_path": "latin", "old_string": "c", "new_string": "long"})),
    ] {
        assert!(stage.fails(tool, input).await.contains("more than the 3"));
    }
    assert_eq!(stage.everything(), before);
}

#[tokio::test]
async fn a_cancelled_write_changes_nothing() {
    let mut stage = Stage::new();
    stage.cancel.cancel();
    let text = stage.fails("Write", json!({"file_path": "d/a", "content": "x"})).await;
    assert_eq!(text, "interrupted before anything was changed: OUTSIDE/project/d/a");
    assert_eq!(stage.everything().len(), 1);
}

#[test]
fn intents_of_writes_run_alone() {
    let stage = Stage::new();
    for (tool, input) in [
        ("Write", json!({"file_path": "a", "content": ""})),
        ("Edit", json!({"file_path": "a", "old_string": "x", "new_string": "y"})),
        ("NotebookEdit", json!({"notebook_path": "a.ipynb", "cell_id": "x", "new_source": ""})),
    ] {
        let intent = stage.intent(tool, &input).unwrap();
        assert_eq!(intent.overlap, Overlap::Alone);
        assert_eq!(intent.touches[0].access, Access::Write);
    }
}

#[tokio::test]
async fn what_cannot_work_is_known_before_anything_is_changed() {
    let mut stage = Stage::new();
    stage.file("seen.txt", "one two two\n");
    stage.file("unseen.txt", "one\n");
    stage.file("book.ipynb", r#"{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}"#);
    for path in ["seen.txt", "book.ipynb"] {
        stage.ok("Read", json!({"file_path": path})).await;
    }
    let before = stage.everything();
    let edit = |path: &str, old: &str| json!({"file_path": path, "old_string": old, "new_string": "x"});
    let write = |path: &str| json!({"file_path": path, "content": "x"});
    let cell = json!({"notebook_path": "book.ipynb", "cell_id": "c", "new_source": "x"});
    for (tool, input, expected) in [
        ("Edit", edit("seen.txt", "one"), None),
        ("Edit", edit("seen.txt", "none"), Some("`old_string` is not in the file")),
        ("Edit", edit("seen.txt", "two"), Some("`old_string` is in the file 2 times")),
        ("Edit", edit("unseen.txt", "one"), Some("has not been read yet")),
        ("Edit", edit("missing.txt", "one"), Some("there is no such file")),
        ("Write", write("new.txt"), None),
        ("Write", write("seen.txt"), None),
        ("Write", write("unseen.txt"), Some("has not been read yet")),
        ("NotebookEdit", cell, Some("the notebook has no cell")),
        ("Read", json!({"file_path": "missing.txt"}), None),
    ] {
        let found = stage.check(tool, &input).await;
        let fits = found.as_deref().map(|found| expected.is_some_and(|expected| found.contains(expected)));
        assert_eq!(fits, expected.map(|_| true), "{tool} {input}: {found:?}");
    }
    assert_eq!(stage.everything(), before);
    // It is otherwise by the time the tool runs: that is what counts.
    stage.file("seen.txt", "changed\n");
    stage.fails("Edit", edit("seen.txt", "one")).await;
}
