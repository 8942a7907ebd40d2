//! Row S6: keys that must not be found. Canaries stand in the environment, in settings, in files and in what
//! commands print; every tool is run over them, and then everything that was written or printed is searched.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::json;

use super::tree;
use crate::faults::stand::{HANG, Stand, brief};
use crate::faults::{Options, Report};
use crate::proc::Finished;

/// Values that are nobody's keys but look like keys.
const CANARIES: &[(&str, &str)] = &[
    ("ANTHROPIC_API_KEY", "sk-ant-api03-CanaryCanaryCanaryCanaryCanaryCanary0123456789AA"),
    ("OPENAI_API_KEY", "sk-proj-CanaryOpenAiCanaryOpenAiCanaryOpenAi0123456789"),
    ("AWS_SECRET_ACCESS_KEY", "CanaryAwsSecretCanaryAwsSecret/0123456789"),
    ("GITHUB_TOKEN", "ghp_CanaryGithubCanaryGithubCanaryGith01"),
    ("MY_SERVICE_PASSWORD", "canary-password-of-a-service-77"),
    ("DATABASE_SECRET", "canary-secret-of-a-database-88"),
];
/// In a file that tools read: keys by their shape.
const IN_FILE: &[&str] = &[
    "sk-ant-api03-FileCanaryFileCanaryFileCanaryFileCanary0123456789BB",
    "ghp_FileCanaryFileCanaryFileCanaryFile01",
    "AKIACANARYFILE012345",
    "xoxb-123456789012-123456789012-FileCanaryFileCanaryFile",
];
/// In the user's settings.
const IN_SETTINGS: &str = "canary-key-in-the-settings-of-a-provider";

pub(super) fn row(options: &Options) -> Report {
    let mut report = Report::default();
    let mut searched = 0;
    for format in
        [&["--output-format", "stream-json", "--verbose"][..], &["--verbose"], &["--output-format", "json"]]
    {
        let result = leak(options, format);
        searched += result.as_ref().copied().unwrap_or_default();
        report.add(format!("every tool, {}", format.join(" ")), result.map(drop));
    }
    for status in ["fail 401", "fail 400 should-retry=false", "fail 500 should-retry=false"] {
        report.add(format!("echoed by the provider, {status}"), echoed(options, status));
    }
    report.add("commands that only look", looked(options));
    report.add("kept from others", private(options));
    let (canaries, runs, leaked) = (CANARIES.len() + IN_FILE.len() + 1, report.runs, report.failures.len());
    report.figure(format!(
        "{canaries} canaries in environment, settings, files and outputs: {leaked} of {runs} rounds leaked one \
         ({searched} files and streams searched)"
    ))
}

fn stand(options: &Options, script: impl FnOnce(&Path) -> String) -> Result<Stand, String> {
    let stand = Stand::new(options, script).map_err(|error| error.to_string())?;
    let settings = json!({"providers": {"mine": {
        "kind": "openai", "baseUrl": "http://127.0.0.1:9/v1", "apiKey": IN_SETTINGS, "models": ["m"]}}});
    let path = stand.home.state().join("settings.json");
    fs::write(&path, settings.to_string()).map_err(|error| error.to_string())?;
    fs::write(stand.home.work().join("keys.txt"), format!("{}\n", IN_FILE.join("\n")))
        .map_err(|error| error.to_string())?;
    Ok(stand)
}

fn with_canaries(stand: &Stand) -> crate::proc::Program {
    let program = stand.program(stand.binary());
    CANARIES.iter().fold(program, |program, (name, value)| program.env(name, value))
}

/// Every canary in every file below the state folder (but the settings that hold one) and in what was printed.
fn search(stand: &Stand, run: &Finished) -> Result<u64, String> {
    let canaries =
        CANARIES.iter().map(|(_, value)| *value).chain(IN_FILE.iter().copied()).chain([IN_SETTINGS]);
    let canaries: Vec<&str> = canaries.collect();
    let mut searched = 2;
    for (name, text) in [("standard output", run.output()), ("standard error", run.errors.clone())] {
        if let Some(canary) = canaries.iter().find(|canary| text.contains(**canary)) {
            return Err(format!("{canary} on {name}"));
        }
    }
    for path in tree(&stand.home.state()).iter().chain(&tree(&stand.home.path().join("tmp"))) {
        if !path.is_file() || path.ends_with("settings.json") {
            continue;
        }
        searched += 1;
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let found = canaries.iter().find(|canary| memchr::memmem::find(&bytes, canary.as_bytes()).is_some());
        if let Some(canary) = found {
            return Err(format!("{canary} in {}", path.display()));
        }
    }
    Ok(searched)
}

fn leak(options: &Options, format: &[&str]) -> Result<u64, String> {
    let stand = stand(options, |work| {
        let file = work.join("keys.txt");
        let file = file.to_string_lossy();
        let long = format!("seq 1 9000; cat {file}; seq 1 9000; cat {file}");
        let calls = [
            format!("call Read {}", json!({"file_path": file})),
            format!("call Grep {}", json!({"pattern": ".", "path": file, "output_mode": "content"})),
            format!(
                "call Bash {}",
                json!({"command": format!("cat {file}; echo oops >&2; cat {file} >&2; exit 3")})
            ),
            format!(
                "call Bash {}",
                json!({"command": "env; set; export -p; cat /proc/self/environ; cat /proc/$PPID/environ"})
            ),
            format!("call Bash {}", json!({"command": long})),
            format!("call Edit {}", json!({"file_path": file, "old_string": "AKIA", "new_string": "BKIA"})),
            format!("call Read {}", json!({"file_path": file})),
            format!(
                "call Bash {}",
                json!({"command": format!("cp {file} copy.txt; diff copy.txt /dev/null")})
            ),
            "call Glob {\"pattern\": \"**/*\"}".to_owned(),
        ];
        let mut script: String =
            calls.iter().enumerate().map(|(at, call)| format!("when turn={}\n  {call}\n", at + 1)).collect();
        script.push_str("when\n  say \"done\"\n");
        script
    })?;
    let program = with_canaries(&stand).args(["-p", "go", "--dangerously-skip-permissions"]).args(format);
    let run = program.run(HANG).map_err(|error| error.to_string())?;
    if run.ending.code() != 0 || stand.model.requests().len() != 10 {
        return Err(format!("{:?} {} {}", run.ending, stand.model.requests().len(), brief(&run.errors)));
    }
    search(&stand, &run)
}

/// A provider that quotes the key in its error.
fn echoed(options: &Options, status: &str) -> Result<(), String> {
    let (_, key) = CANARIES[0];
    let stand = stand(options, |_| format!("when\n {status} \"invalid x-api-key: {key}\""))?;
    for format in [&["--output-format", "stream-json", "--verbose"][..], &["--verbose"]] {
        let run = with_canaries(&stand).args(["-p", "go"]).args(format).run(HANG);
        let run = run.map_err(|error| error.to_string())?;
        if run.ending.code() != 1 {
            return Err(format!("{:?} {}", run.ending, brief(&run.errors)));
        }
        search(&stand, &run)?;
    }
    Ok(())
}

fn looked(options: &Options) -> Result<(), String> {
    let stand = stand(options, |_| "when\n say \"x\"".into())?;
    for arguments in [
        &["config", "show", "--origin"][..],
        &["config", "show", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["sessions", "list"],
        &["-p", "x", "--model", "mine/m", "--max-budget-usd", "nan"],
    ] {
        let run = with_canaries(&stand).args(arguments).run(HANG).map_err(|error| error.to_string())?;
        search(&stand, &run).map_err(|problem| format!("{arguments:?}: {problem}"))?;
    }
    Ok(())
}

/// What is written is for its owner alone, whatever the umask was.
fn private(options: &Options) -> Result<(), String> {
    let stand = stand(options, |_| {
        "when turn=1\n  call Bash {\"command\": \"seq 1 9000\"}\nwhen\n  say \"done\"\n".into()
    })?;
    let binary = stand.binary().to_string_lossy().into_owned();
    let command = format!("umask 000; exec {binary} -p go --dangerously-skip-permissions");
    let run = stand.program("/bin/sh").args(["-c", &command]).run(HANG).map_err(|error| error.to_string())?;
    if run.ending.code() != 0 {
        return Err(brief(&run.errors));
    }
    for path in tree(&stand.home.state()) {
        let status = fs::symlink_metadata(&path).map_err(|error| error.to_string())?;
        let mode = status.permissions().mode() & 0o777;
        let wanted = if status.is_dir() { 0o700 } else { 0o600 };
        if mode != wanted && !path.ends_with("settings.json") {
            return Err(format!("{} is {mode:o}", path.display()));
        }
    }
    Ok(())
}
