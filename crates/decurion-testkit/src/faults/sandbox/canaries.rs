//! X4: secrets that must stay where they are. Takes a session with secrets in its environment, in the home folder, as the
//! provider's key and in our own state, whose commands look for them; gives the places in which one turned up.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{Start, bash, cores, run_session, script_of};
use crate::faults::stand::Stand;
use crate::faults::{Options, Report};
use crate::proc::Home;

/// What every secret begins with. In a command it is written in two parts, so that the command itself is none.
pub(super) const CANARY: &str = "canary-7f3e-";

/// What commands try, to see the secrets or to leave them in files. The last two leave what they can reach.
const COMMANDS: &[&str] = &[
    "env",
    "cat /proc/self/environ | tr '\\0' '\\n'",
    "cat /proc/$PPID/environ /proc/1/environ | tr '\\0' '\\n'",
    "cat ~/.ssh/id_ed25519 ~/.aws/credentials ~/.netrc",
    "cp -r ~/.ssh stolen-ssh; ls -la stolen-ssh; cat stolen-ssh/*",
    "tar cf stolen.tar ~/.ssh ~/.aws ~/.netrc; strings stolen.tar",
    "grep -r canary- ~ 2>/dev/null | head",
    "cat \"$DECURION_HOME\"/secret; grep -r canary- ~/../.decurion | head",
    "for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ; done 2>/dev/null | grep canary- > found; cat found",
    "ps eww -A | grep [c]anary-",
    "python3 -c 'import os; print(dict(os.environ))'",
    "ulimit -c unlimited; python3 -c 'import os; os.abort()'; ls",
];

pub(super) fn row(options: &Options) -> Report {
    let mut report = Report::default();
    let found = match search(options, COMMANDS) {
        Ok(found) => found,
        Err(problem) => return Report::broken(problem),
    };
    let (places, files) = (found.places.len(), found.looked_at);
    let result = if places == 0 { Ok(()) } else { Err(format!("found in {:?}", found.places)) };
    report.add("commands that look for secrets", result);
    // The same search finds one that a command prints and writes on purpose.
    let planted = ["printf 'canary-%s-planted\\n' 7f3e | tee planted"];
    let control = search(options, &planted).and_then(|found| {
        let kinds = ["planted", "output", "request", ".jsonl"];
        let missing = kinds.into_iter().find(|kind| !found.places.iter().any(|place| place.contains(kind)));
        missing.map_or(Ok(()), |kind| {
            Err(format!("one that was planted was not found: {kind}, {:?}", found.places))
        })
    });
    report.add("control: one that is planted", control);
    let cores = match cores::search(options) {
        Ok(found) => found,
        Err(problem) => return Report::broken(problem),
    };
    let result = if cores.cores.is_empty() { Ok(()) } else { Err(format!("{:?}", cores.cores)) };
    report.add("core files", result);
    let control = if cores.control { "that of another program is found" } else { "no control: not here" };
    report.figure(format!(
        "secrets of 4 kinds, {} commands: {places} occurrences in environments, output, requests and {files} files; the \
         planted one is found; {} processes ended by SIGABRT and SIGSEGV: {} core files ({control})",
        COMMANDS.len(),
        cores.ended,
        cores.cores.len()
    ))
}

struct Found {
    places: Vec<String>,
    looked_at: usize,
}

fn search(options: &Options, commands: &[&str]) -> Result<Found, String> {
    let calls: Vec<_> = commands.iter().map(|command| bash(command)).collect();
    let stand = Stand::seen_by_commands(options, |_| script_of(&calls)).map_err(|error| error.to_string())?;
    let secrets = plant(&stand.home).map_err(|error| error.to_string())?;
    let key = format!("{CANARY}provider-key");
    let start = Start::new(json!({})).arguments(&["--dangerously-skip-permissions"]);
    let start = start
        .environment("ANTHROPIC_API_KEY", key)
        .environment("GITHUB_TOKEN", format!("{CANARY}token"))
        .environment("AWS_SECRET_ACCESS_KEY", format!("{CANARY}aws"))
        .environment("DATABASE_PASSWORD", format!("{CANARY}password"));
    let outcomes = run_session(&stand, calls.len(), &start)?;
    let mut places = Vec::new();
    for (command, outcome) in commands.iter().zip(outcomes) {
        if outcome.text.contains(CANARY) {
            places.push(format!("the output of {command}"));
        }
    }
    for request in stand.model.requests() {
        if String::from_utf8_lossy(&request.body).contains(CANARY) {
            places.push(format!("request {}", request.number));
        }
    }
    let mut looked_at = 0;
    for file in files_below(stand.home.path()).into_iter().filter(|file| !secrets.contains(file)) {
        looked_at += 1;
        let bytes = fs::read(&file).unwrap_or_default();
        if memchr::memmem::find(&bytes, CANARY.as_bytes()).is_some() {
            places.push(file.display().to_string());
        }
    }
    Ok(Found { places, looked_at })
}

/// Puts secrets in the home folder and in our state. Gives their files.
fn plant(home: &Home) -> std::io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> =
        [".ssh/id_ed25519", ".aws/credentials", ".netrc"].map(|name| home.home().join(name)).into();
    files.push(home.state().join("secret"));
    for file in &files {
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(file, format!("{CANARY}file\n"))?;
    }
    Ok(files)
}

/// All plain files below a folder, but for the program itself.
pub(super) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && entry.file_name() != "decurion" {
                found.push(entry.path());
            }
        }
    }
    found
}
