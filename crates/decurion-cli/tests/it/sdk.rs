//! The unmodified Agent SDKs of both languages lead the real binary. Takes the programs in `sdk/`, each with the
//! script that its model plays, and compares what they saw with `sdk/expected/`: the same lines in both languages.
//!
//! `cargo xtask test --install` installs the SDKs.

use std::path::{Path, PathBuf};

use decurion_testkit::proc::{Home, Program};
use decurion_testkit::server::FakeModel;
use expect_test::ExpectFile;

use crate::stand::{DECURION, Stand, finished};

/// The folder of the programs.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk");

/// A language that there is an SDK for.
#[derive(Clone, Copy, Debug)]
enum Language {
    Python,
    TypeScript,
}

use Language::{Python, TypeScript};

/// The sections of each program that both SDKs run, with the same lines seen.
const BOTH: [(&str, &[&str]); 1] = [("query", &["text", "tools", "thinking", "stream", "fields"])];

/// Where the SDKs are installed: beside the folders of binaries.
fn installed(wanted: &str) -> PathBuf {
    let binaries = Path::new(DECURION).parent().unwrap();
    let path = binaries.parent().unwrap().join("sdk").join(wanted);
    assert!(path.exists(), "missing: {}; `cargo xtask test --install` installs it", path.display());
    path
}

/// A program of a language, in a home, asking this model.
fn program(home: &Home, model: &FakeModel, language: Language, name: &str) -> Program {
    let start = match language {
        Python => {
            let python = installed("venv/bin/python");
            home.program(python).arg("-B").arg(format!("{PROGRAMS}/python/{name}.py"))
        }
        TypeScript => home.program("node").arg(beside_packages(home).join(format!("{name}.mjs"))),
    };
    start
        .env("DECURION", DECURION)
        .env("BINARIES", Path::new(DECURION).parent().unwrap())
        .env("ANTHROPIC_BASE_URL", model.url())
        .env("ANTHROPIC_API_KEY", "test-key-that-nobody-else-has")
}

/// The TypeScript programs beside the packages that they import: node looks for those above the file itself.
fn beside_packages(home: &Home) -> PathBuf {
    let folder = home.path().join("programs");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(installed("node_modules"), folder.join("node_modules")).unwrap();
    for entry in std::fs::read_dir(format!("{PROGRAMS}/typescript")).unwrap().flatten() {
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    folder
}

/// What a program prints, with the folder of its home as `~`.
fn seen(language: Language, name: &str, sections: &[&str]) -> String {
    let script = std::fs::read_to_string(format!("{PROGRAMS}/scripts/{name}.script")).unwrap();
    let stand = Stand::new(&script);
    let ended = finished(program(&stand.home, &stand.model, language, name).args(sections));
    assert_eq!(ended.ending.code(), 0, "{language:?}: {ended:?}");
    assert_eq!(stand.model.problems(), Vec::<String>::new(), "{language:?}: {ended:?}");
    assert_eq!(stand.home.processes(), Vec::<i32>::new(), "{language:?}: processes are left");
    let text: String = ended.lines.iter().map(|line| format!("{line}\n")).collect();
    text.replace(stand.home.path().to_str().unwrap(), "~")
}

/// Compares what a program prints in each of these languages with what is expected of all of them.
fn check(name: &str, languages: &[Language], sections: &[&str]) {
    for language in languages {
        let path = PathBuf::from(format!("{PROGRAMS}/expected/{name}.txt"));
        ExpectFile { path, position: file!() }.assert_eq(&seen(*language, name, sections));
    }
}

/// Runs one program of the table in both languages.
fn both(name: &str) {
    let (_, sections) = BOTH.iter().find(|(program, _)| *program == name).unwrap();
    check(name, &[Python, TypeScript], sections);
}

#[test]
fn a_query_and_what_comes_of_it() {
    both("query");
}
