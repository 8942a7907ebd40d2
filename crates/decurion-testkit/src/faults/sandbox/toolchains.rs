//! X3: common toolchains work inside the sandbox without a setting of their own. Takes small projects of each kind, builds
//! and tests them in a session whose rules allow the commands, gives those that did not print what they should.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Start, bash, run_session, script_of};
use crate::faults::stand::{Stand, brief};
use crate::faults::{Options, Report, has_program};

/// One toolchain: what it needs, its commands, and what the last of them prints.
struct Toolchain {
    name: &'static str,
    program: &'static str,
    commands: Vec<Value>,
    prints: &'static str,
}

pub(super) fn row(options: &Options) -> Report {
    let all = toolchains();
    let (there, missing): (Vec<Toolchain>, Vec<Toolchain>) =
        all.into_iter().partition(|one| has_program(one.program) || rust_folder().join(one.program).exists());
    let mut report = Report::default();
    match try_all(options, &there) {
        Ok(results) => {
            for (one, result) in there.iter().zip(results) {
                report.add(one.name, result);
            }
        }
        Err(problem) => return Report::broken(problem),
    }
    report.add("cargo build and test of a crate of this repository, offline", own_crate(options));
    let held = report.runs - report.failures.len() as u64;
    let missing: Vec<&str> = missing.iter().map(|one| one.program).collect();
    let left_out =
        if missing.is_empty() { String::new() } else { format!("; not installed: {}", missing.join(", ")) };
    let figure = format!("toolchains: {held} of {} work in the sandbox{left_out}", report.runs);
    report.figure(figure)
}

fn toolchains() -> Vec<Toolchain> {
    let one = |name, program, command: &str, prints| Toolchain {
        name,
        program,
        commands: vec![bash(command)],
        prints,
    };
    vec![
        one(
            "cargo with a new dependency",
            "cargo",
            "cd rust && cargo test 2>&1 | tail -40; cd ..",
            "1 passed",
        ),
        one(
            "npm install and test",
            "npm",
            "(cd js && npm install --no-audit --no-fund && npm test) 2>&1",
            "npm works",
        ),
        one(
            "pip install and pytest",
            "python3",
            "(cd py && python3 -m venv .venv && .venv/bin/pip install -q pytest && .venv/bin/pytest -q) 2>&1",
            "1 passed",
        ),
        one("go test", "go", "(cd go && go test ./...) 2>&1", "ok"),
        one("make", "make", "make -C c 2>&1 && c/hello", "made by make"),
        one("gcc", "gcc", "gcc -O2 -Wall -o c/direct c/hello.c && c/direct", "made by make"),
        one("git commit and rebase", "git", REBASE, "rebased"),
        one(
            "git push to a local remote",
            "git",
            "cd repo && git push -q origin main && git ls-remote origin main | wc -l; cd ..",
            "1",
        ),
        one(
            "git push -u",
            "git",
            "cd repo && git push -u origin topic 2>&1; cd ..; git -C repo.git log -1 --format=%s topic",
            "on topic",
        ),
        Toolchain {
            name: "a server that another command fetches from",
            program: "python3",
            commands: vec![
                json!({"command": SERVER, "run_in_background": true}),
                bash(
                    "for i in $(seq 600); do curl -sf http://127.0.0.1:8123/Makefile && break; sleep 0.1; done",
                ),
            ],
            prints: "hello: hello.c",
        },
    ]
}

/// Ends after one request, because a session waits for what it left in the background.
const SERVER: &str = "cd c && python3 -c 'import http.server as h
s = h.HTTPServer((\"127.0.0.1\", 8123), h.SimpleHTTPRequestHandler)
s.timeout = 300
s.handle_request()'";

const REBASE: &str = "cd repo && git switch -qc topic && echo t > topic.txt && git add . && git commit -qm 'on topic' && \
    git switch -q main && echo m > more.txt && git add . && git commit -qm 'on main' && git switch -q topic && \
    git rebase -q main && git log --format=%s | head -2 | paste -sd' ' && echo rebased; cd ..";

const FILES: &[(&str, &str)] = &[
    (
        "rust/Cargo.toml",
        "[package]\nname = \"sample\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[dependencies]\nitoa = \"1\"\n",
    ),
    ("rust/src/lib.rs", "#[test]\nfn works() {\n    assert_eq!(itoa::Buffer::new().format(7), \"7\");\n}\n"),
    (
        "js/package.json",
        r#"{"name": "sample", "version": "1.0.0", "scripts": {"test": "node test.js"}, "dependencies": {"is-number": "7.0.0"}}"#,
    ),
    ("js/test.js", "if (require('is-number')(7)) console.log('npm works');\n"),
    ("py/test_sample.py", "def test_works(tmp_path):\n    (tmp_path / 'x').write_text('x')\n"),
    ("go/go.mod", "module sample\n\ngo 1.19\n"),
    ("go/sample_test.go", "package sample\n\nimport \"testing\"\n\nfunc TestWorks(t *testing.T) {}\n"),
    ("c/Makefile", "hello: hello.c\n\t$(CC) -o $@ $<\n"),
    ("c/hello.c", "#include <stdio.h>\n\nint main(void) {\n    puts(\"made by make\");\n    return 0;\n}\n"),
];

const SETUP: &str = "git init -q --bare repo.git && git init -q -b main repo && cd repo && git config user.name Test && \
    git config user.email t@x && echo a > a.txt && git add . && git commit -qm first && git remote add origin ../repo.git";

/// Runs all of them, one after the other, in one session.
fn try_all(options: &Options, toolchains: &[Toolchain]) -> Result<Vec<Result<(), String>>, String> {
    let calls: Vec<Value> = toolchains.iter().flat_map(|one| one.commands.clone()).collect();
    let stand = Stand::new(options, |_| script_of(&calls)).map_err(|error| error.to_string())?;
    let work = stand.home.work();
    for (name, text) in FILES {
        let path = work.join(name);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
        made.map_err(|error| format!("{name}: {error}"))?;
    }
    let made = stand
        .home
        .program("bash")
        .args(["-ec", SETUP])
        .run(super::HANG)
        .map_err(|error| error.to_string())?;
    if made.ending.code() != 0 {
        return Err(format!("the repository cannot be made: {}", brief(&made.errors)));
    }
    let trusted = stand.program(stand.binary()).args(["trust", "--yes"]).run(super::HANG);
    trusted.map_err(|error| error.to_string())?;
    let outcomes = run_session(&stand, calls.len(), &start(None))?;
    let mut at = 0;
    let judge = |one: &Toolchain| {
        at += one.commands.len();
        let last = &outcomes[at - 1];
        if last.asked || !last.text.contains(one.prints) {
            return Err(format!("printed {}", last.text));
        }
        Ok(())
    };
    Ok(toolchains.iter().map(judge).collect())
}

/// A crate of this repository, with the packages that the user has downloaded and without a network.
fn own_crate(options: &Options) -> Result<(), String> {
    let command = if options.ci {
        "cd cached && cargo test --offline 2>&1 | tail -30"
    } else {
        "(cargo build --offline -q -p decurion-egress && cargo test --offline -q -p decurion-egress --lib) 2>&1 | tail -30"
    };
    let stand = Stand::new(options, |_| script_of(&[bash(command)])).map_err(|error| error.to_string())?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).ok_or("no repository")?.display();
    let make = if options.ci {
        "mkdir -p cached/src; printf '[package]\\nname = \"cached\"\\nedition = \"2021\"\\n[dependencies]\\nanyhow = \"1\"\\n' \
         > cached/Cargo.toml; echo '#[test] fn works() { let _ = anyhow::anyhow!(\"x\"); }' > cached/src/lib.rs"
            .to_owned()
    } else {
        format!(
            "cp -r {root}/Cargo.* {root}/rustfmt.toml {root}/clippy.toml {root}/crates {root}/xtask {root}/docs ."
        )
    };
    let made = stand
        .home
        .program("bash")
        .args(["-ec", &make])
        .run(super::HANG)
        .map_err(|error| error.to_string())?;
    if made.ending.code() != 0 {
        return Err(format!("the crate cannot be made: {}", brief(&made.errors)));
    }
    let outcome = run_session(&stand, 1, &start(Some(&rust_home())))?.remove(0);
    if outcome.text.contains("test result: ok") && !outcome.text.contains("error") {
        Ok(())
    } else {
        Err(format!("printed {}", outcome.text))
    }
}

/// A session that may run any command, with the toolchains of this machine.
fn start(cargo_home: Option<&Path>) -> Start {
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", rust_folder().display());
    let rustup = variable("RUSTUP_HOME").map_or_else(|| home().join(".rustup"), PathBuf::from);
    let mut start = Start::new(json!({})).arguments(&["--allowedTools", "Bash"]);
    start = start.environment("PATH", path).environment("RUSTUP_HOME", rustup.to_string_lossy());
    if let Some(home) = cargo_home {
        start = start.environment("CARGO_HOME", home.to_string_lossy());
    }
    // How this machine reaches the registries, where it does so in its own way.
    for name in CERTIFICATES {
        if let Some(value) = variable(name) {
            start = start.environment(name, value);
        }
    }
    start
}

const CERTIFICATES: [&str; 7] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
];

fn rust_home() -> PathBuf {
    variable("CARGO_HOME").map_or_else(|| home().join(".cargo"), PathBuf::from)
}

fn rust_folder() -> PathBuf {
    rust_home().join("bin")
}

fn home() -> PathBuf {
    variable("HOME").unwrap_or_default().into()
}

#[allow(clippy::disallowed_methods)] // where the tools of this machine are
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
