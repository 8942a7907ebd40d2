//! Glob and Grep: what is found, in which order, and how much of it is told.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use decurion_protocol::Overlap;
use serde_json::{Value, json};

use crate::stage::{Refusing, Stage};

/// A small project; each file is older than the one before it.
fn project() -> Stage {
    let stage = Stage::new();
    let files = [
        ("src/main.rs", "fn main() {\n    helper();\n}\n"),
        ("src/lib/helper.rs", "// one\n// two\npub fn helper() {}\n// four\n// five\nfn other() {}\n"),
        ("README.md", "Call the Helper.\r\nhelper\r\n"),
        (".github/ci.yml", "run: helper\n"),
        (".gitignore", "target/\n*.log\n"),
        ("target/out.rs", "helper\n"),
        ("debug.log", "helper\n"),
        (".git/config", "helper\n"),
        ("data.bin", "helper\0\n"),
    ];
    for (age, (path, content)) in files.into_iter().enumerate() {
        let path = stage.file(path, content);
        let time = UNIX_EPOCH + Duration::from_secs(1_000_000 - age as u64);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }
    stage
}

#[tokio::test]
async fn globs_give_matching_files_newest_first() {
    let mut stage = project();
    for (input, expected) in [
        (json!({"pattern": "**/*.rs"}), "src/main.rs\nsrc/lib/helper.rs"),
        (json!({"pattern": "*.md"}), "README.md"),
        (json!({"pattern": "*.rs"}), "No files match."),
        (json!({"pattern": "src/*.rs"}), "src/main.rs"),
        (json!({"pattern": "*.rs", "path": "src"}), "src/main.rs"),
        (json!({"pattern": "src/main.rs"}), "src/main.rs"),
        (json!({"pattern": "**/*.{yml,md}"}), "README.md\n.github/ci.yml"),
        (json!({"pattern": "*.log"}), "No files match."),
        (json!({"pattern": "target/*"}), "target/out.rs"),
        (json!({"pattern": format!("{}/src/**", stage.project)}), "src/main.rs\nsrc/lib/helper.rs"),
        (json!({"pattern": "../project/*.md"}), "README.md"),
    ] {
        assert_eq!(stage.ok("Glob", input.clone()).await, expected, "{input}");
    }
    for (input, expected) in [
        (json!({"pattern": "*", "path": "none"}), "there is no such file: OUTSIDE/project/none"),
        (json!({"pattern": "*", "path": "README.md"}), "this is not a directory: OUTSIDE/project/README.md"),
    ] {
        assert_eq!(stage.fails("Glob", input).await, expected);
    }
}

#[tokio::test]
async fn a_long_list_is_cut_and_says_so() {
    let mut stage = project();
    stage.limits.glob_paths = 1;
    let output = stage.run("Glob", json!({"pattern": "**/*.rs"})).await;
    assert_eq!(output.content.text(), "src/main.rs\n[the 1 newest of 2; narrow the pattern to see others]");
    assert_eq!(
        output.structured.unwrap(),
        json!({"numFiles": 1, "filenames": ["src/main.rs"], "truncated": true})
    );
}

#[tokio::test]
async fn contents_are_found_in_every_form() {
    let mut stage = project();
    let content = |more: Value| {
        let mut input = json!({"pattern": "helper", "output_mode": "content"});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        input
    };
    for (input, expected) in [
        (json!({"pattern": "helper"}), "src/main.rs\nsrc/lib/helper.rs\nREADME.md\n.github/ci.yml"),
        (json!({"pattern": "helper", "glob": "*.rs"}), "src/main.rs\nsrc/lib/helper.rs"),
        (json!({"pattern": "helper", "glob": "src/**"}), "src/main.rs\nsrc/lib/helper.rs"),
        (json!({"pattern": "helper", "glob": "!*.rs"}), "README.md\n.github/ci.yml"),
        (json!({"pattern": "helper", "type": "md"}), "README.md"),
        (json!({"pattern": "Helper"}), "README.md"),
        (json!({"pattern": "helper", "path": "debug.log"}), "debug.log"),
        (json!({"pattern": "helper", "path": "target"}), "target/out.rs"),
        (json!({"pattern": "helper", "path": "data.bin"}), "No matches."),
        (json!({"pattern": "HELPER", "-i": true, "type": "md"}), "README.md"),
        (json!({"pattern": "nothing"}), "No matches."),
        (
            json!({"pattern": "helper", "output_mode": "count", "-i": true}),
            ".github/ci.yml:1\nREADME.md:2\nsrc/lib/helper.rs:1\nsrc/main.rs:1",
        ),
        (
            content(json!({})),
            ".github/ci.yml:1:run: helper\nREADME.md:2:helper\nsrc/lib/helper.rs:3:pub fn helper() {}\nsrc/main.rs:2:    helper();",
        ),
        (content(json!({"-n": false, "type": "md"})), "README.md:helper"),
        (content(json!({"path": "src/main.rs"})), "2:    helper();"),
        (
            content(json!({"path": "src", "-o": true, "pattern": "hel\\w+r|fn"})),
            "src/lib/helper.rs:3:fn\nsrc/lib/helper.rs:3:helper\nsrc/lib/helper.rs:6:fn\nsrc/main.rs:1:fn\nsrc/main.rs:2:helper",
        ),
        (
            content(json!({"path": "src/lib", "-C": 1, "pattern": "two|five"})),
            "src/lib/helper.rs-1-// one\nsrc/lib/helper.rs:2:// two\nsrc/lib/helper.rs-3-pub fn helper() {}\nsrc/lib/helper.rs-4-// four\nsrc/lib/helper.rs:5:// five\nsrc/lib/helper.rs-6-fn other() {}",
        ),
        (
            content(json!({"path": "src", "-A": 1, "pattern": "one|five|main"})),
            "src/lib/helper.rs:1:// one\nsrc/lib/helper.rs-2-// two\n--\nsrc/lib/helper.rs:5:// five\nsrc/lib/helper.rs-6-fn other() {}\n--\nsrc/main.rs:1:fn main() {\nsrc/main.rs-2-    helper();",
        ),
        (
            content(json!({"path": "src/lib", "-B": 1, "context": 0, "pattern": "four"})),
            "src/lib/helper.rs-3-pub fn helper() {}\nsrc/lib/helper.rs:4:// four",
        ),
        (
            content(json!({"multiline": true, "pattern": "one.*two", "path": "src"})),
            "src/lib/helper.rs:1:// one\nsrc/lib/helper.rs:2:// two",
        ),
        (
            content(json!({"head_limit": 1})),
            ".github/ci.yml:1:run: helper\n[there is more; go on with offset 1, or narrow the search]",
        ),
        (
            content(json!({"head_limit": 1, "offset": 1})),
            "README.md:2:helper\n[there is more; go on with offset 2, or narrow the search]",
        ),
        (content(json!({"head_limit": 0, "offset": 3})), "src/main.rs:2:    helper();"),
        (content(json!({"offset": 9})), "No more matches."),
        (
            json!({"pattern": "helper", "head_limit": 2}),
            "src/main.rs\nsrc/lib/helper.rs\n[there is more; go on with offset 2, or narrow the search]",
        ),
    ] {
        assert_eq!(stage.ok("Grep", input.clone()).await, expected, "{input}");
    }
}

#[tokio::test]
async fn programs_get_the_same_structured() {
    let mut stage = project();
    let output = stage
        .run("Grep", json!({"pattern": "helper", "output_mode": "content", "head_limit": 1, "offset": 1}))
        .await;
    assert_eq!(
        output.structured.unwrap(),
        json!({"mode": "content", "numFiles": 1, "filenames": ["README.md"], "content": "README.md:2:helper",
            "numLines": 1, "appliedLimit": 1, "appliedOffset": 1})
    );
    let output = stage.run("Grep", json!({"pattern": "helper", "output_mode": "count"})).await;
    assert_eq!(output.structured.unwrap()["numMatches"], 4);
}

#[tokio::test]
async fn bad_filters_and_places_are_said() {
    let mut stage = project();
    for (input, expected) in [
        (json!({"pattern": "x", "type": "klingon"}), "not a known kind of file"),
        (json!({"pattern": "x", "glob": "a["}), "`glob` is not a glob"),
        (json!({"pattern": "x", "path": "none"}), "there is no such file"),
    ] {
        let text = stage.fails("Grep", input).await;
        assert!(text.contains(expected), "{text}");
    }
}

#[tokio::test]
async fn long_lines_and_floods_are_bounded() {
    let mut stage = Stage::new();
    stage.file("min.js", format!("x{}\n", "é".repeat(9_000)));
    let text = stage.ok("Grep", json!({"pattern": "x", "output_mode": "content", "path": "min.js"})).await;
    assert_eq!(text.chars().count(), "1:".len() + 500 + 1);
    stage.file("flood", "match me\n".repeat(50_000));
    let text = stage.ok("Grep", json!({"pattern": "match", "output_mode": "content", "head_limit": 0})).await;
    assert!(text.len() < 31_000, "{}", text.len());
    assert!(text.contains("there is more; go on with offset"));
    // Found out to be binary only after the match.
    stage.file("late.bin", format!("match{}\0", "text\n".repeat(100_000)));
    let late = json!({"pattern": "match", "output_mode": "content", "path": "late.bin"});
    assert_eq!(stage.ok("Grep", late).await, "No matches.");
    stage.limits.grep_file_bytes = 1_000;
    let text = stage.ok("Grep", json!({"pattern": "match"})).await;
    assert!(text.starts_with("No matches.\n[not searched, because larger than 1000 bytes: "), "{text}");
    assert!(text.contains("late.bin"), "{text}");
}

#[tokio::test]
async fn files_that_are_too_large_are_named() {
    let mut stage = Stage::new();
    stage.limits.grep_file_bytes = 100;
    stage.file("small.txt", "needle\n");
    for number in 0..12 {
        stage.file(&format!("large{number:02}.log"), "needle\n".repeat(50));
    }
    for mode in ["content", "files_with_matches", "count"] {
        let text = stage.ok("Grep", json!({"pattern": "needle", "output_mode": mode})).await;
        assert!(text.contains("small.txt"), "{text}");
        let note = "[not searched, because larger than 100 bytes: ";
        assert!(
            text.contains(note) && text.contains("large00.log") && text.contains(" and 2 more;"),
            "{text}"
        );
    }
    // One file that was asked for by its name.
    let text = stage.ok("Grep", json!({"pattern": "needle", "path": "large00.log"})).await;
    assert!(text.contains("not searched") && text.contains("large00.log"), "{text}");
}

/// The order does not depend on how the work was shared out.
#[tokio::test]
async fn many_files_are_given_in_one_order() {
    let mut stage = Stage::new();
    for number in 0..600 {
        stage.file(&format!("d{}/f{number:03}", number % 7), format!("needle {number}\n"));
    }
    let input = json!({"pattern": "needle", "output_mode": "content", "head_limit": 500, "-n": false});
    let first = stage.ok("Grep", input.clone()).await;
    let mut lines: Vec<&str> = first.lines().take(500).collect();
    assert_eq!(lines.len(), 500);
    assert!(lines.is_sorted());
    lines.dedup();
    assert_eq!(lines.len(), 500);
    for _ in 0..5 {
        assert_eq!(stage.ok("Grep", input.clone()).await, first);
    }
}

#[tokio::test]
async fn a_search_does_not_see_what_a_rule_denies_or_a_link_leads_to() {
    let mut stage = Stage::new();
    stage.file("private/key", "needle");
    stage.file("public", "needle");
    std::fs::write(stage.outside.join("secret"), "needle").unwrap();
    stage.link("../secret", "door");
    stage.link("..", "up");
    stage.rules = Arc::new(Refusing("private"));
    assert_eq!(stage.ok("Grep", json!({"pattern": "needle"})).await, "public");
    assert_eq!(stage.ok("Glob", json!({"pattern": "**"})).await, "public");
    for (tool, input) in [
        ("Grep", json!({"pattern": "needle", "path": "up"})),
        ("Grep", json!({"pattern": "needle", "path": "door"})),
        ("Glob", json!({"pattern": "*", "path": "up"})),
        ("Glob", json!({"pattern": "up/*"})),
    ] {
        let text = stage.fails(tool, input).await;
        assert!(text.contains("outside the allowed directories"), "{text}");
    }
}

#[tokio::test]
async fn a_cancelled_search_ends() {
    let mut stage = project();
    stage.cancel.cancel();
    for (tool, input) in [("Glob", json!({"pattern": "**"})), ("Grep", json!({"pattern": "x"}))] {
        assert_eq!(stage.fails(tool, input).await, "interrupted");
    }
}

#[test]
fn intents_name_the_place_searched() {
    let stage = Stage::new();
    for (tool, input, title, place) in [
        ("Glob", json!({"pattern": "src/**/*.rs"}), "Glob src/**/*.rs", "src"),
        ("Glob", json!({"pattern": "*.rs", "path": "a"}), "Glob *.rs", "a"),
        ("Grep", json!({"pattern": "a+", "path": "src"}), "Grep a+ in src", "src"),
    ] {
        let intent = stage.intent(tool, &input).unwrap();
        assert_eq!((intent.title.as_str(), intent.overlap), (title, Overlap::Together));
        assert_eq!(intent.touches[0].path, stage.project.join(place));
    }
    let intent = stage.intent("Glob", &json!({"pattern": "/etc/*"})).unwrap();
    assert_eq!(intent.touches[0].path, "/etc");
    assert_eq!(stage.intent("Grep", &json!({"pattern": "a"})).unwrap().title, "Grep a");
}
