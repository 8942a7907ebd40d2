//! Changes of files as lines: from two texts, from what tools report and from what calls would do, wide and narrow.

use decurion_protocol::Event;
use decurion_tui::conversation::{Conversation, ConversationItem};
use decurion_tui::theme::{Shades, Theme};
use decurion_tui::view::diff::FileChange;
use decurion_tui::view::item::{self, ItemFolding};
use expect_test::{Expect, expect};
use serde_json::{Value, json};

const OLD: &str = "use std::io;\n\nfn main() {\n\tlet x = 1;\n\tprintln!(\"{x}\");\n}\n\n// one\n// two\n// three\n// four\nfn last() {}\n";
const NEW: &str = "use std::io;\n\nfn main() {\n\tlet x = \"a text that is longer than a narrow terminal is wide\";\n\tlet y = 2;\n\tprintln!(\"{x}\");\n}\n\n// one\n// two\n// three\n// four\nfn 最後() {}\n";

fn shown(change: &FileChange, columns: usize, most: usize) -> String {
    let lines = change.lines(&Theme::new(Shades::None), columns, most, "");
    for line in &lines {
        assert!(line.width() <= columns, "{columns}: {line}");
    }
    lines.iter().map(|line| format!("|{line}\n")).collect()
}

fn check(change: &FileChange, columns: usize, most: usize, expected: &Expect) {
    expected.assert_eq(&shown(change, columns, most));
}

#[test]
fn two_texts() {
    let change = FileChange::between("src/main.rs", OLD, NEW);
    assert_eq!((change.added, change.removed), (3, 2));
    check(
        &change,
        100,
        100,
        &expect![[r#"
        | 1   use std::io;
        | 2   
        | 3   fn main() {
        | 4 -     let x = 1;
        | 4 +     let x = "a text that is longer than a narrow terminal is wide";
        | 5 +     let y = 2;
        | 6       println!("{x}");
        | 7   }
        | 8   
        |⋮
        |10   // two
        |11   // three
        |12   // four
        |12 - fn last() {}
        |13 + fn 最後() {}
    "#]],
    );
    check(
        &change,
        40,
        100,
        &expect![[r#"
        | 1   use std::io;
        | 2   
        | 3   fn main() {
        | 4 -     let x = 1;
        | 4 +     let x = "a text that is longer
        |     than a narrow terminal is wide";
        | 5 +     let y = 2;
        | 6       println!("{x}");
        | 7   }
        | 8   
        |⋮
        |10   // two
        |11   // three
        |12   // four
        |12 - fn last() {}
        |13 + fn 最後() {}
    "#]],
    );
    check(
        &change,
        20,
        6,
        &expect![[r#"
            |  use std::io;
            |  
            |  fn main() {
            |-     let x = 1;
            |+     let x = "a
            |  text that is…
            |… 9 more lines
        "#]],
    );
    check(
        &change,
        40,
        1,
        &expect![[r#"
        | 1   use std::io;
        |… 13 more lines
    "#]],
    );
}

#[test]
fn nothing_of_a_file_commands_the_terminal() {
    let change = FileChange::between("x", "a\r\nb\n", "a\nb\u{1b}[2J\u{202e}\n");
    check(
        &change,
        40,
        9,
        &expect![[r#"
        |1 - a␍
        |2 - b
        |1 + a
        |2 + b␛[2J�
    "#]],
    );
}

#[test]
fn no_width_is_too_narrow_and_no_line_too_long() {
    let long = format!("{}\n日本語\te\u{301}👩‍💻\n{}", "x".repeat(50_000), "y ".repeat(9_000));
    for columns in 2..60 {
        for most in [1, 3, 50] {
            let lines =
                FileChange::between("a.rs", OLD, &long).lines(&Theme::new(Shades::Dark), columns, most, "");
            assert!(lines.len() <= most + 1, "{columns} {most}");
            assert!(lines.iter().all(|line| line.width() <= columns.max(4)), "{columns} {most}");
        }
    }
    check(
        &FileChange::between("a.rs", "", &long),
        20,
        2,
        &expect![[r#"
            |+ xxxxxxxxxxxxxxxxxx
            |  xxxxxxxxxxxxxxxxx…
            |… 2 more lines
        "#]],
    );
}

#[test]
fn what_is_too_much_to_compare_or_to_keep_is_counted() {
    let many = |word: &str, count: usize| (0..count).map(|at| format!("{word} {at}\n")).collect::<String>();
    let change = FileChange::between(
        "a",
        &format!("top\n{}end\n", many("both\nold", 750)),
        &format!("top\n{}end\n", many("both\nnew", 750)),
    );
    assert_eq!((change.added, change.removed, change.missing), (1_499, 1_499, 1_001));
    check(
        &change,
        40,
        4,
        &expect![[r#"
            |   1   top
            |   2   both
            |   3 - old 0
            |   4 - both
            |… 2997 more lines
        "#]],
    );
    // A change in the middle of a large file is compared, however large that is.
    let file = many("same", 100_000);
    let change = FileChange::between("a", &file, &file.replace("same 50000\n", "same no more\n"));
    check(
        &change,
        40,
        9,
        &expect![[r#"
        |49998   same 49997
        |49999   same 49998
        |50000   same 49999
        |50001 - same 50000
        |50001 + same no more
        |50002   same 50001
        |50003   same 50002
        |50004   same 50003
    "#]],
    );
}

#[test]
fn only_the_end_of_a_text_differs() {
    check(
        &FileChange::between("a", "x", "x\n"),
        60,
        9,
        &expect![[r#"
        |\ only the line break at the end differs
    "#]],
    );
    check(&FileChange::between("a", "x", "x"), 60, 9, &expect![[""]]);
    check(
        &FileChange::between("a", "", "\n"),
        60,
        9,
        &expect![[r#"
        |\ only the line break at the end differs
    "#]],
    );
}

#[test]
fn a_question_shows_the_lines_of_the_file_with_their_numbers() {
    let input = json!({"file_path": "/a.py", "old_string": "y = 2", "new_string": "y = 3"});
    let patch = json!([{"oldStart": 9, "oldLines": 3, "newStart": 9, "newLines": 3,
        "lines": [" x = 1", "-y = 2", "+y = 3", " z = 3"]}]);
    let change = FileChange::asked("Edit", &input, Some(&patch)).unwrap();
    check(
        &change,
        60,
        20,
        &expect![[r#"
            | 9   x = 1
            |10 - y = 2
            |10 + y = 3
            |11   z = 3
        "#]],
    );
    // A patch that was too large is left out.
    assert_eq!(FileChange::asked("Edit", &input, Some(&json!([]))), FileChange::asked("Edit", &input, None));
}

#[test]
fn what_a_call_would_change() {
    let asked = |tool: &str, input: Value| {
        FileChange::asked(tool, &input, None)
            .map(|change| format!("{}\n{}", change.path, shown(&change, 60, 20)))
            .unwrap_or_default()
    };
    expect![[r#"
        /a.py
        |in every place where this stands:
        |  x = 1
        |- y = 2
        |+ y = 3
    "#]].assert_eq(&asked("Edit", json!({"file_path": "/a.py", "old_string": "x = 1\ny = 2", "new_string": "x = 1\ny = 3", "replace_all": true})));
    expect![[r#"
        /b.py
        |1 + import os
        |2 + 
        |3 + print(1)
    "#]]
    .assert_eq(&asked("Write", json!({"file_path": "/b.py", "content": "import os\n\nprint(1)\n"})));
    expect![[r#"
        /c
        |- a
        |+ b
        |⋮
        |- c
    "#]]
    .assert_eq(&asked(
        "MultiEdit",
        json!({"file_path": "/c", "edits": [
        {"old_string": "a", "new_string": "b"}, {"old_string": "c\n", "new_string": ""}]}),
    ));
    // Whatever a model sends is taken.
    for input in [json!(null), json!([1]), json!({"file_path": 7, "edits": "x", "old_string": {}})] {
        for tool in ["Edit", "Write", "MultiEdit", "NotebookEdit"] {
            assert!(
                FileChange::asked(tool, &input, None).is_some_and(|change| change.hunks.is_empty()),
                "{tool} {input}"
            );
        }
        assert_eq!(asked("Bash", input), "");
    }
}

#[test]
fn a_call_about_a_cell_says_which_and_what_becomes_of_it() {
    let asked = |mode: Option<&str>, cell: Option<&str>| {
        let input =
            json!({"notebook_path": "/n.ipynb", "new_source": "1 + 1", "edit_mode": mode, "cell_id": cell});
        let change = FileChange::asked("NotebookEdit", &input, None).unwrap();
        assert_eq!((change.path.as_str(), change.removed), ("/n.ipynb", 0));
        shown(&change, 40, 20)
    };
    assert_eq!(asked(None, Some("b7")), "|replaces cell b7\n|+ 1 + 1\n");
    assert_eq!(asked(Some("replace"), Some("b7")), "|replaces cell b7\n|+ 1 + 1\n");
    assert_eq!(asked(Some("insert"), Some("b7")), "|inserts a cell after b7\n|+ 1 + 1\n");
    assert_eq!(asked(Some("insert"), None), "|inserts a cell at the beginning\n|+ 1 + 1\n");
    // What it is to be replaced by has no meaning there.
    assert_eq!(asked(Some("delete"), Some("b7")), "|deletes cell b7\n");
    assert_eq!(asked(Some("delete"), None), "|deletes a cell that it does not name\n");
    let hostile = format!("x\n\u{1b}[2J{}", "y".repeat(90));
    assert_eq!(asked(Some("delete"), Some(&hostile)), "|deletes cell x ␛[2Jyyyyyyyyyyyyyyyyyyyy…\n");
    let reported = |mode: &str| {
        let result = json!({"notebook_path": "/n.ipynb", "cell_id": "b7", "edit_mode": mode,
            "new_source": "new", "old_source": if mode == "insert" { None } else { Some("old") }});
        shown(&FileChange::reported(&result).unwrap(), 40, 20)
    };
    assert_eq!(reported("replace"), "|replaced cell b7\n|- old\n|+ new\n");
    assert_eq!(reported("insert"), "|inserted cell b7\n|+ new\n");
    assert_eq!(reported("delete"), "|deleted cell b7\n|- old\n");
}

/// The conversation after a call with this result, as it is shown.
fn called(title: &str, structured: &Value, columns: usize, fold: ItemFolding) -> String {
    let mut conversation = Conversation::of(None);
    let allow = json!({"decision": "allow", "rule": null, "reason": "r"});
    let intent = decurion_protocol::Intent::titled(title);
    let output = json!({"content": "Edited.", "structured": structured});
    for (seq, event) in [
        json!({"type": "call_started", "call": "c", "tool": "Edit", "intent": intent, "decision": allow}),
        json!({"type": "call_ended", "call": "c", "tool": "Edit", "line": uuid::Uuid::nil(), "parent": null,
            "output": output, "duration_ms": 5}),
    ]
    .into_iter()
    .enumerate()
    {
        let event: Event = serde_json::from_value(event).unwrap();
        assert!(!matches!(event, Event::Unknown(_)), "{event:?}");
        let run = decurion_protocol::RunId(uuid::Uuid::nil());
        let at = jiff::Timestamp::UNIX_EPOCH;
        conversation.take(&decurion_protocol::Envelope { seq: seq as u64, at, agent: None, run, event });
    }
    let items = conversation.take_finished();
    assert!(matches!(items.as_slice(), [ConversationItem::Call(_)]), "{items:?}");
    let lines = items.iter().flat_map(|item| item::lines(item, &Theme::new(Shades::None), columns, fold));
    lines.map(|line| format!("|{line}\n")).collect()
}

#[test]
fn what_tools_report() {
    let patch = json!({"filePath": "/w/src/a.rs", "structuredPatch": [
        {"oldStart": 9, "oldLines": 2, "newStart": 9, "newLines": 3, "lines": [" fn a() {", "-    b()", "+    c();", "+    d()", "\\ No newline at end of file"]},
        {"oldStart": 120, "oldLines": 1, "newStart": 121, "newLines": 0, "lines": ["-x"]},
    ]});
    expect![[r#"
        |
        |● Edit src/a.rs  +2 −2
        |      9   fn a() {
        |     10 -     b()
        |     10 +     c();
        |     11 +     d()
        |    \ No newline at end of file
        |    ⋮
        |    120 - x
    "#]]
    .assert_eq(&called("Edit src/a.rs", &patch, 60, ItemFolding::Folded));
    let created = json!({"type": "create", "filePath": "/w/n.py", "content": "a = 1\n".repeat(40), "structuredPatch": []});
    let folded = called("Write a/rather/long/path/that/does/not/fit/n.py", &created, 40, ItemFolding::Folded);
    expect![[r#"
        |
        |● Write a/rather/long/path/that/do…  +40
        |     1 + a = 1
        |     2 + a = 1
        |    24 + a = 1
        |    … 16 more lines (ctrl+o to see)
    "#]]
    .assert_eq(
        &folded
            .lines()
            .take(4)
            .chain(folded.lines().skip(25))
            .map(|line| format!("{line}\n"))
            .collect::<String>(),
    );
    assert_eq!(called("Write n.py", &created, 40, ItemFolding::Open).lines().count(), 42);
    let cell =
        json!({"notebook_path": "/n.ipynb", "new_source": "b", "old_source": "a", "edit_mode": "replace"});
    expect![[r#"
        |
        |● NotebookEdit n.ipynb  +1 −1
        |    - a
        |    + b
    "#]]
    .assert_eq(&called("NotebookEdit n.ipynb", &cell, 60, ItemFolding::Folded));
    // A record that lies is shown as far as it goes.
    let odd = json!({"filePath": "/x", "structuredPatch": [7, {"lines": 3}, {"oldStart": u64::MAX, "newStart": -1, "lines": ["+a", "", 5, "日本", "\\ \u{1b}[2J\nx"]}]});
    expect![[r#"
        |
        |● Edit x  +1
        |                       1 + a
        |                       2   
        |                       3   日本
        |    \ ␛[2J x
    "#]]
    .assert_eq(&called("Edit x", &odd, 60, ItemFolding::Folded));
    expect![[r#"
        |
        |● Edit x
        |  └ Edited.
    "#]]
    .assert_eq(&called("Edit x", &json!({"filePath": "/x", "structuredPatch": []}), 60, ItemFolding::Folded));
}

#[test]
fn what_is_new_has_the_colours_of_its_language() {
    let change = FileChange::between("a.rs", "let x = \"old\";\n", "let x = \"new\";\n// c\n");
    let lines = change.lines(&Theme::new(Shades::Dark), 60, 9, "");
    let spans = lines.iter().flat_map(|line| &line.spans);
    let shown: String = spans.map(|span| format!("{:?} {:?}\n", span.content, span.style)).collect();
    expect![[r#"
        "1 " Style::new().dim()
        "- " Style::new().light_red()
        "let x = \"old\";" Style::new().light_red()
        "1 " Style::new().dim()
        "+ " Style::new().green()
        "let" Style::new().light_magenta()
        " x = " Style::new().green()
        "\"new\"" Style::new().light_green()
        ";" Style::new().green()
        "2 " Style::new().dim()
        "+ " Style::new().green()
        "// c" Style::new().green().dim().italic()
    "#]]
    .assert_eq(&shown);
}
