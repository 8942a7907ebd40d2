//! Read: what comes back for every kind of file, and what does not.

use std::sync::Arc;

use decurion_protocol::{Access, Block, Overlap, ToolContent, ToolEffect};
use decurion_tools::files_seen::content_hash;
use serde_json::json;

use crate::stage::{Refusing, Stage};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";

#[tokio::test]
async fn a_text_is_numbered_and_seen() {
    let mut stage = Stage::new();
    let path = stage.file("src/a.rs", "fn a() {}\n\nfn b() {}\n");
    let output = stage.run("Read", json!({"file_path": "src/a.rs"})).await;
    assert_eq!(output.content, ToolContent::Text("1\tfn a() {}\n2\t\n3\tfn b() {}\n4\t".into()));
    assert_eq!(
        output.structured.unwrap(),
        json!({"type": "text", "file": {
            "filePath": path, "content": "fn a() {}\n\nfn b() {}\n", "numLines": 4, "startLine": 1, "totalLines": 4,
        }})
    );
    let hash = content_hash(b"fn a() {}\n\nfn b() {}\n");
    assert_eq!(output.effects, [ToolEffect::Saw { path, hash }]);
}

#[tokio::test]
async fn a_part_has_its_own_numbers_and_the_whole_counts_as_seen() {
    let mut stage = Stage::new();
    let path = stage.file("a", "1\n2\n3\n4\n5");
    let output = stage.run("Read", json!({"file_path": path, "offset": 2, "limit": 2})).await;
    assert_eq!(output.content.text(), "2\t2\n3\t3");
    let file = &output.structured.as_ref().unwrap()["file"];
    assert_eq!(
        (&file["startLine"], &file["numLines"], &file["totalLines"]),
        (&json!(2), &json!(2), &json!(5))
    );
    assert_eq!(output.effects, [ToolEffect::Saw { path, hash: content_hash(b"1\n2\n3\n4\n5") }]);
    assert_eq!(stage.ok("Read", json!({"file_path": "a", "offset": 0, "limit": 1})).await, "1\t1");
    assert_eq!(
        stage.ok("Read", json!({"file_path": "a", "offset": 9})).await,
        "[the file has 5 lines; there is none at 9: a]"
    );
}

#[tokio::test]
async fn a_large_file_is_read_in_parts_or_when_asked() {
    let mut stage = Stage::new();
    let line = "0123456789abcdef\n";
    stage.file("large", line.repeat(20_000));
    let text = stage.fails("Read", json!({"file_path": "large"})).await;
    for word in ["340000", "262144", "`offset`", "`limit`", "`allow_large`"] {
        assert!(text.contains(word), "{text}");
    }
    let part = stage.ok("Read", json!({"file_path": "large", "offset": 19_999})).await;
    assert_eq!(part, "19999\t0123456789abcdef\n20000\t0123456789abcdef\n20001\t");
    // From the beginning without an end: as much as fits, and where it goes on.
    let cut = stage.ok("Read", json!({"file_path": "large", "offset": 1})).await;
    assert!(cut.ends_with("of 20001; read on with offset 15421]"), "{}", &cut[cut.len() - 90..]);
    let all = stage.ok("Read", json!({"file_path": "large", "allow_large": true})).await;
    assert!(all.ends_with("\n20000\t0123456789abcdef\n20001\t"));
}

#[tokio::test]
async fn files_too_large_to_be_read_through_are_not() {
    let mut stage = Stage::new();
    let path = stage.file("huge", "line\n".repeat(4_000));
    // A hole: it has a size and no blocks.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(200 << 20).unwrap();
    assert!(stage.fails("Read", json!({"file_path": "huge"})).await.contains("209715200"));
    let output = stage.run("Read", json!({"file_path": "huge", "offset": 2, "limit": 1})).await;
    assert_eq!(output.content.text(), "2\tline");
    assert_eq!(output.structured.unwrap()["file"]["totalLines"], json!(null));
    assert!(output.effects.is_empty());
}

#[tokio::test]
async fn every_other_kind_is_shown_as_what_it_is_or_refused() {
    let mut stage = Stage::new();
    stage.file("empty", "");
    stage.file("binary", b"a\0b");
    stage.file("dir/x", "");
    stage.file("image.txt", PNG);
    stage.file("paper.pdf", b"%PDF-1.7\n\0");
    assert_eq!(stage.ok("Read", json!({"file_path": "empty"})).await, "[the file is empty: empty]");
    for (input, expected) in [
        (json!({"file_path": "binary"}), "this is a binary file and cannot be read as text: binary"),
        (json!({"file_path": "dir"}), "this is a directory, not a file: OUTSIDE/project/dir"),
        (json!({"file_path": "nope"}), "there is no such file: OUTSIDE/project/nope"),
        (json!({"file_path": "empty/x"}), "this is not a directory: OUTSIDE/project/empty/x"),
        (json!({"file_path": "/dev/zero"}), "this is a device, pipe or socket and is not opened: /dev/zero"),
        (
            json!({"file_path": "/proc/self/environ"}),
            "memory and environment of processes are not opened: /proc/self/environ",
        ),
        (
            json!({"file_path": "image.txt", "limit": 3}),
            "<tool_use_error>`offset` and `limit` are for text; this is an image</tool_use_error>",
        ),
    ] {
        assert_eq!(stage.fails("Read", input).await, expected);
    }
    assert!(stage.fails("Read", json!({"file_path": "paper.pdf", "pages": "1-2"})).await.contains("`pages`"));

    let output = stage.run("Read", json!({"file_path": "image.txt"})).await;
    let ToolContent::Blocks(blocks) = &output.content else { panic!("{output:?}") };
    let source = json!({"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgoAAAANSUhEUg=="});
    assert_eq!(blocks, &[Block::Image { source }]);
    let output = stage.run("Read", json!({"file_path": "paper.pdf"})).await;
    let ToolContent::Blocks(blocks) = &output.content else { panic!("{output:?}") };
    assert!(matches!(&blocks[..], [Block::Document { source }] if source["media_type"] == "application/pdf"));
    assert_eq!(output.effects.len(), 1);

    stage.limits.image_bytes = 16;
    assert!(stage.fails("Read", json!({"file_path": "image.txt"})).await.contains("more than the 12"));
}

#[tokio::test]
async fn images_are_known_by_their_first_bytes() {
    let mut stage = Stage::new();
    for (bytes, media_type) in [
        (&b"\xff\xd8\xff\xe0"[..], "image/jpeg"),
        (b"GIF89a...", "image/gif"),
        (b"RIFF\x01\x02\x03\x04WEBPVP8 ", "image/webp"),
    ] {
        stage.file("i", bytes);
        let output = stage.run("Read", json!({"file_path": "i"})).await;
        assert_eq!(output.structured.unwrap()["file"]["type"], media_type);
    }
}

#[tokio::test]
async fn a_pipe_does_not_hold_us() {
    let mut stage = Stage::new();
    let pipe = stage.project.join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        pipe.as_str(),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert!(stage.fails("Read", json!({"file_path": "pipe"})).await.contains("pipe or socket"));
    assert!(
        stage.fails("Write", json!({"file_path": "pipe", "content": ""})).await.contains("pipe or socket")
    );
}

#[tokio::test]
async fn links_are_followed_inside_and_named_outside() {
    let mut stage = Stage::new();
    stage.file("real/a", "text");
    std::fs::write(stage.outside.join("secret"), "secret").unwrap();
    stage.link("real", "link");
    stage.link("../secret", "door");
    stage.link("..", "up");
    let output = stage.run("Read", json!({"file_path": "link/a"})).await;
    assert_eq!(output.content.text(), "1\ttext");
    let path = stage.project.join("real/a");
    assert!(matches!(&output.effects[..], [ToolEffect::Saw { path: seen, .. }] if *seen == path));
    for path in ["door", "up/secret"] {
        let text = stage.fails("Read", json!({"file_path": path})).await;
        assert!(
            text.contains("outside the allowed directories") && text.contains("(OUTSIDE/secret)"),
            "{text}"
        );
    }
    // Named by its own path it is permission's matter, which has been asked.
    let outside = stage.outside.join("secret");
    assert_eq!(stage.ok("Read", json!({"file_path": outside})).await, "1\tsecret");
}

#[tokio::test]
async fn a_rule_holds_for_what_a_link_leads_to() {
    let mut stage = Stage::new();
    stage.file("private/key", "k");
    stage.link("private/key", "alias");
    stage.rules = Arc::new(Refusing("private"));
    for path in ["private/key", "alias"] {
        let text = stage.fails("Read", json!({"file_path": path})).await;
        assert!(text.starts_with("a rule denies this"), "{text}");
        let text = stage.fails("Write", json!({"file_path": path, "content": "x"})).await;
        assert!(text.starts_with("a rule denies this"), "{text}");
    }
}

#[tokio::test]
async fn a_cancelled_read_ends() {
    let mut stage = Stage::new();
    stage.file("a", "x");
    stage.cancel.cancel();
    assert_eq!(stage.fails("Read", json!({"file_path": "a"})).await, "interrupted");
}

#[test]
fn the_intent_says_what_is_read() {
    let stage = Stage::new();
    let intent = stage.intent("Read", &json!({"file_path": "src/../a.rs"})).unwrap();
    assert_eq!((intent.title.as_str(), intent.overlap), ("Read a.rs", Overlap::Together));
    assert_eq!(intent.touches[0].path, stage.project.join("a.rs"));
    assert_eq!(intent.touches[0].access, Access::Read);
    let intent = stage.intent("Read", &json!({"file_path": "~/x"})).unwrap();
    assert_eq!(intent.title, format!("Read {}/home/x", stage.outside));
}
