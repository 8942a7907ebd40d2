//! The guide for programs cannot rot: its examples are cut out of `docs/src/sdk.md` and run, its table is made of the
//! features that the tests show.

use std::path::PathBuf;

use expect_test::{Expect, ExpectFile, expect};

use crate::sdk::{Language, beside_packages, features, hosted, installed, script_of};
use crate::stand::{DECURION, Stand, finished};

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/sdk.md");
const BEGIN: &str = "<!-- features -->\n";
const END: &str = "<!-- end of features -->\n";

fn guide() -> String {
    std::fs::read_to_string(GUIDE).unwrap()
}

/// The examples in a language.
fn examples(language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let text = guide();
    let parts = text.split(&fence).skip(1);
    parts.map(|part| part.split("```").next().unwrap().to_owned()).collect()
}

/// What the examples print, one after the other.
fn check(language: Language, expected: &Expect) {
    let (fence, name) = match language {
        Language::Python => ("python", "example.py"),
        Language::TypeScript => ("typescript", "example.mjs"),
    };
    let mut seen = String::new();
    let examples = examples(fence);
    assert_eq!(examples.len(), 3);
    for example in examples {
        let stand = Stand::new(&script_of("guide"));
        let commands = stand.home.path().join("bin");
        std::fs::create_dir(&commands).unwrap();
        std::os::unix::fs::symlink(DECURION, commands.join("decurion")).unwrap();
        let start = match language {
            Language::Python => {
                let file = stand.home.path().join(name);
                std::fs::write(&file, example).unwrap();
                stand.home.program(installed("venv/bin/python")).arg("-B").arg(file)
            }
            Language::TypeScript => {
                let file = beside_packages(&stand.home).join(name);
                std::fs::write(&file, example).unwrap();
                stand.home.program("node").arg(file)
            }
        };
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", commands.display());
        let ended = finished(hosted(start, &stand.model).env("PATH", path));
        assert_eq!(ended.ending.code(), 0, "{ended:?}");
        assert_eq!(stand.model.problems(), Vec::<String>::new(), "{ended:?}");
        seen.push_str(&format!("{}\n--\n", ended.output()));
    }
    expected.assert_eq(&seen);
}

#[test]
fn the_python_examples_of_the_guide_run() {
    check(
        Language::Python,
        &expect![[r"
        reviewer: Looks fine to me.
        main: The reviewer is content.
        success after 2 turns
        --
        Written. []
        Not written. ['Write']
        --
        about to call mcp__shop__stock
        There are 7 of lamps.
        --
    "]],
    );
}

#[test]
fn the_typescript_examples_of_the_guide_run() {
    check(
        Language::TypeScript,
        &expect![[r#"
        reviewer: Looks fine to me.
        main: The reviewer is content.
        success after 2 turns
        --
        Written. []
        Not written. ["Write"]
        --
        about to call mcp__shop__stock
        There are 7 of lamps.
        --
    "#]],
    );
}

#[test]
fn the_table_of_the_guide_is_what_the_tests_show() {
    let text = guide();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let table = format!("{before}{BEGIN}{}{END}{after}", features());
    ExpectFile { path: PathBuf::from(GUIDE), position: file!() }.assert_eq(&table);
}
