//! What a command costs with everything it starts. Takes a command, runs it, waits for it and for every
//! process it leaves behind, and writes one line of JSON about them.
//!
//! It is a program of its own because it adopts orphans, which a test with other children must not, and
//! because a process counts as at least as large as the one that started it: this one is small.
#![allow(clippy::disallowed_methods)] // it exists to start what is measured

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use decurion_testkit::sys::{self, Used};

const USAGE: &str = "usage: measure [--out FILE] [--quiet] -- COMMAND [ARGUMENT …]

  --out FILE  append the figures to this file (default: print them on the error output)
  --quiet     throw the command's own output away

Ends with the command's exit code.";

fn main() -> ExitCode {
    let outcome = read(std::env::args().skip(1)).and_then(|options| run(&options));
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            let _ = writeln!(std::io::stderr(), "measure: {problem}");
            ExitCode::from(125)
        }
    }
}

struct Options {
    out: Option<PathBuf>,
    quiet: bool,
    command: Vec<String>,
}

fn read(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { out: None, quiet: false, command: Vec::new() };
    while let Some(name) = arguments.next() {
        match name.as_str() {
            "--out" => options.out = Some(arguments.next().ok_or("no value is given for --out")?.into()),
            "--quiet" => options.quiet = true,
            "--" => options.command = arguments.by_ref().collect(),
            _ => return Err(format!("no such option: {name}\n\n{USAGE}")),
        }
    }
    if options.command.is_empty() { Err(USAGE.into()) } else { Ok(options) }
}

fn run(options: &Options) -> Result<u8, String> {
    rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1))
        .map_err(|error| format!("orphans cannot be adopted: {error}"))?;
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]).process_group(0);
    if options.quiet {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    let started = Instant::now();
    let child = command.spawn().map_err(|error| format!("{error}: {}", options.command[0]))?;
    let main = i32::try_from(child.id()).map_err(|error| error.to_string())?;
    let mut ending = None;
    let (mut total, mut of_main, mut orphans) = (Used::default(), Used::default(), 0);
    let mut main_wall = 0.0;
    // Until there is nobody left to wait for.
    while let Ok((pid, how, used)) = sys::wait_for(None) {
        total = total.plus(used);
        if pid == main {
            ending = Some(how);
            of_main = used;
            main_wall = started.elapsed().as_secs_f64() * 1000.0;
        } else {
            orphans += 1;
        }
    }
    let code = ending.map_or(125, sys::Ending::code);
    let figures = serde_json::json!({
        "code": code,
        "wall_ms": main_wall,
        "all_gone_ms": started.elapsed().as_secs_f64() * 1000.0,
        "user_ms": total.user.as_secs_f64() * 1000.0,
        "system_ms": total.system.as_secs_f64() * 1000.0,
        "cpu_ms": total.cpu().as_secs_f64() * 1000.0,
        "main_cpu_ms": of_main.cpu().as_secs_f64() * 1000.0,
        "max_rss_kib": total.max_rss_kib,
        "orphans": orphans,
    });
    write(options, &figures.to_string())?;
    Ok(u8::try_from(code & 0xff).unwrap_or(125))
}

fn write(options: &Options, line: &str) -> Result<(), String> {
    let Some(path) = &options.out else {
        return writeln!(std::io::stderr(), "{line}").map_err(|error| error.to_string());
    };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let mut file = file.map_err(|error| format!("{error}: {}", path.display()))?;
    writeln!(file, "{line}").map_err(|error| error.to_string())
}
