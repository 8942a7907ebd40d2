//! Heads as people write them: what is read, on which line, and what is said about repairs.

use decurion_config::frontmatter::{Entry, read};
use expect_test::{Expect, expect};

const KNOWN: &[&str] = &["name", "description", "tools", "model", "hooks", "argument-hint"];

fn check(text: &str, expected: &Expect) {
    let shown = match read(text, KNOWN) {
        Err(error) => format!("error: {error}\n"),
        Ok(document) => {
            let mut shown = String::new();
            for entry in &document.head {
                shown += &format!("{} {} = {}\n", entry.line, entry.key, entry.value);
            }
            shown += &format!("body {:?}\n", document.body);
            if let Some(repair) = document.repair {
                shown += &format!("repair {}: {}\n", repair.line, repair.text);
            }
            shown
        }
    };
    expected.assert_eq(&shown);
}

#[test]
fn what_is_yaml_is_read_as_yaml() {
    check(
        "---\nname: a\n\n# why\ndescription: >-\n  one\n  two\ntools:\n  - Read\n  - Write\nhooks:\n  Stop: [{}]\n---\n\nBody\n---\nmore\n",
        &expect![[r#"
            2 name = "a"
            5 description = "one two"
            8 tools = ["Read","Write"]
            11 hooks = {"Stop":[{}]}
            body "Body\n---\nmore"
        "#]],
    );
    check(
        "---\nname: 'it''s'\ndescription: \"a: b\\nc\"\ntools: [Read, \"Write\"]\n---",
        &expect![[r#"
        2 name = "it's"
        3 description = "a: b\nc"
        4 tools = ["Read","Write"]
        body ""
    "#]],
    );
    check(
        "---\n---\nx",
        &expect![[r"
        error: the head has no `key: value` line
    "]],
    );
    check(
        "# Title\n---\nname: a\n---",
        &expect![[r"
        error: there is no head: the first line is not `---`
    "]],
    );
    check(
        "",
        &expect![[r"
        error: there is no head: the first line is not `---`
    "]],
    );
    check(
        "---\njust words\n---\nx",
        &expect![[r"
        error: the head has no `key: value` line
    "]],
    );
    check(
        "\n\n---\nname: a\n---\nx",
        &expect![[r#"
        4 name = "a"
        body "x"
    "#]],
    );
}

#[test]
fn what_is_not_yaml_is_read_line_by_line() {
    check(
        "---\nname: a\ndescription: Use when: always\ntools: Read\n---\nx",
        &expect![[r#"
        2 name = "a"
        3 description = "Use when: always"
        4 tools = "Read"
        body "x"
        repair 3: `description` is not YAML (mapping values are not allowed in this context) and is read as plain text
    "#]],
    );
    check(
        "---\nname: a\ndescription: [unclosed\ntools: [Read, Write\n---\nx",
        &expect![[r#"
        2 name = "a"
        3 description = "[unclosed"
        4 tools = "[Read, Write"
        body "x"
        repair 3: `description` is not YAML (unclosed bracket '[') and is read as plain text; `tools` is not YAML (unclosed bracket '[') and is read as plain text (line 4)
    "#]],
    );
    check(
        "---\nname: a\ndescription: **Bold** words\ntools: *\n---\nx",
        &expect![[r#"
        2 name = "a"
        3 description = "**Bold** words"
        4 tools = "*"
        body "x"
        repair 3: `description` is not YAML (alias references unknown anchor) and is read as plain text; `tools` is not YAML (while scanning an anchor or alias, did not find expected alphabetic or numeric character) and is read as plain text (line 4)
    "#]],
    );
    check(
        "---\ndescription: @x\nname: - a\n---\nx",
        &expect![[r#"
        2 description = "@x"
        3 name = "- a"
        body "x"
        repair 2: `description` is not YAML (unexpected character: `@') and is read as plain text; `name` is not YAML (block sequence entries are not allowed in this context) and is read as plain text (line 3)
    "#]],
    );
    check(
        "---\nargument-hint: [a] [b]\nname: a\n---\nx",
        &expect![[r#"
        2 argument-hint = "[a] [b]"
        3 name = "a"
        body "x"
        repair 2: `argument-hint` is not YAML (while parsing a block mapping, did not find expected key) and is read as plain text
    "#]],
    );
    check(
        "---\nname: a\nname: b\ndescription: d\n---\nx",
        &expect![[r#"
        3 name = "b"
        4 description = "d"
        body "x"
        repair 3: `name` is given twice, the last one counts
    "#]],
    );
    check(
        "---\nname: a\nstray words\ndescription: d\n---\nx",
        &expect![[r#"
        2 name = "a"
        4 description = "d"
        body "x"
        repair 3: a line that belongs to no key is left out
    "#]],
    );
    check(
        "---\ntools:\n  - Read: x: y\n  - Write\nname: a\n---\nx",
        &expect![[r#"
        2 tools = ["Read: x: y","Write"]
        5 name = "a"
        body "x"
        repair 3: `tools` is not YAML (mapping values are not allowed in this context) and is read as a list of texts
    "#]],
    );
    check(
        "---\ndescription: >\n  a: b\n\tc\nname: \"a\" b\n---\nx",
        &expect![[r#"
        2 description = "a: b\nc"
        5 name = "\"a\" b"
        body "x"
        repair 4: `description` is not YAML (while parsing a block mapping, did not find expected key) and is read as plain text; `name` is not YAML (invalid trailing content after double-quoted scalar) and is read as plain text (line 5)
    "#]],
    );
}

#[test]
fn conversations_in_descriptions_stay_there() {
    check(
        "---\nname: a\ndescription: Use it. <example>\nContext: one\nuser: \"two\"\nassistant: three\nwhatever: four\n</example>\nmodel: opus\n---\nx",
        &expect![[r#"
            2 name = "a"
            3 description = "Use it. <example>\nContext: one\nuser: \"two\"\nassistant: three\nwhatever: four\n</example>"
            9 model = "opus"
            body "x"
            repair 8: `description` is not YAML (simple key expected ':') and is read as plain text
        "#]],
    );
    check(
        "---\nname: a\ndescription: Use it.\nuser: hello\nassistant: hi\nmodel: opus\n---\nx",
        &expect![[r#"
        2 name = "a"
        3 description = "Use it.\nuser: hello\nassistant: hi"
        6 model = "opus"
        body "x"
        repair 3: `description` is not YAML (its lines look like keys) and is read as plain text
    "#]],
    );
    check(
        "---\nname: a\ndescription: Use it.\n\nExamples:\n\n- one\n- two: three\nmodel: opus\n---\nx",
        &expect![[r#"
            2 name = "a"
            3 description = "Use it.\nExamples:\n- one\n- two: three"
            9 model = "opus"
            body "x"
            repair 3: `description` is not YAML (its lines look like keys) and is read as plain text
        "#]],
    );
}

#[test]
fn a_head_that_is_not_closed_ends_where_prose_begins() {
    check(
        "---\nname: a\ndescription: d\n\nYou are an agent.\n\nNote: be kind.\n",
        &expect![[r#"
        2 name = "a"
        3 description = "d"
        body "You are an agent.\n\nNote: be kind."
        repair 4: the head is not closed by `---`
    "#]],
    );
    check(
        "---\nname: a\ndescription: d\n\n# Heading\ntext\n",
        &expect![[r##"
        2 name = "a"
        3 description = "d"
        body "# Heading\ntext"
        repair 4: the head is not closed by `---`
    "##]],
    );
    check(
        "---\nname: a\ndescription: d\nYou are an agent.\n",
        &expect![[r#"
        2 name = "a"
        3 description = "d\nYou are an agent."
        body ""
        repair 4: the head is not closed by `---`; `description` is not YAML (simple key expected ':') and is read as plain text
    "#]],
    );
    check(
        "---\nname: a\nmodel: opus\n\nYou are: an agent\n---\nmore\n",
        &expect![[r#"
            2 name = "a"
            3 model = "opus"
            5 You are = "an agent"
            body "more"
        "#]],
    );
    check(
        "---\nname: a\ndescription: d",
        &expect![[r#"
        2 name = "a"
        3 description = "d"
        body ""
        repair 3: the head is not closed by `---`
    "#]],
    );
    check(
        "---\n",
        &expect![[r"
        error: the head has no `key: value` line
    "]],
    );
}

#[test]
fn marks_and_line_ends_of_other_systems() {
    check(
        "\u{feff}---\nname: a\n---\nx",
        &expect![[r#"
        2 name = "a"
        body "x"
        repair 1: the file begins with a byte order mark
    "#]],
    );
    check(
        "---\r\nname: a\r\ndescription: |\r\n  b\r\n  c\r\n---\r\nx\r\ny\r\n",
        &expect![[r#"
        2 name = "a"
        3 description = "b\nc\n"
        body "x\ny"
        repair 1: lines end in CRLF
    "#]],
    );
}

#[test]
fn a_value_can_be_had_as_it_is_written() {
    let document = read("---\nargument-hint: [a]\nname: 1.0\nmodel: ~\ntools: \"\"\n---", KNOWN).unwrap();
    let texts: Vec<_> = document.head.iter().map(Entry::text).collect();
    assert_eq!(texts, [Some("[a]"), Some("1.0"), None, None]);
}

#[test]
fn heads_made_to_be_long_end() {
    let keys: String = (0..300).map(|index| format!("k{index}: [\n")).collect();
    check(
        &format!("---\n{keys}---\n"),
        &expect![[r"
        error: the head has more than 256 keys
    "]],
    );
    let bomb = "---\nname: a\ndescription: &a [x, x, x, x, x, x, x, x]\n".to_owned()
        + &(0..12)
            .map(|n| {
                format!(
                    "k{n}: &k{n} [{}]\n",
                    format!("*{},", if n == 0 { "a".to_owned() } else { format!("k{}", n - 1) }).repeat(9)
                )
            })
            .collect::<String>()
        + "---\nbody";
    let document = read(&bomb, KNOWN).unwrap();
    assert_eq!(document.body, "body");
    assert!(document.repair.is_some());
}
