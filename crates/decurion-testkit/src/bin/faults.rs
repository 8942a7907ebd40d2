//! Runs the fault matrix. Takes the names of rows, prints one line of JSON for each on the output and one
//! for people on the error output; ends with 1 if any of them does not hold.
#![allow(clippy::disallowed_methods)] // a program for tests, not part of the product

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use decurion_testkit::faults::{Options, Report, Row, rows};
use serde_json::json;

const USAGE: &str = "usage: faults [--ci] [--list] [--kills N] [--only TEXT] [--seed N] [--width N] [ROW …]

  --ci       the short form, for every change
  --list     print the rows and end
  --kills N  how many kills T1 and X6 make
  --only TEXT  of X7, only sessions with this in their names; may be repeated
  --seed N   where random choices begin (default 1)
  --width N  how many runs go on at the same time (default: one per core)

The binaries under test are those beside this one.";

/// So many failures of a row are shown to people.
const SHOWN: usize = 12;

fn main() -> ExitCode {
    match read(std::env::args().skip(1)).and_then(|asked| run(&asked)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(problem) => {
            let _ = writeln!(std::io::stderr(), "faults: {problem}");
            ExitCode::from(2)
        }
    }
}

struct Asked {
    options: Options,
    list: bool,
    names: Vec<String>,
}

fn read(mut arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = own.parent().ok_or("no folder of binaries")?;
    let options = Options { tell: say, ..Options::new(folder) };
    let mut asked = Asked { options, list: false, names: Vec::new() };
    while let Some(name) = arguments.next() {
        let mut value = || {
            let text = arguments.next().ok_or_else(|| format!("no value is given for {name}"))?;
            text.parse::<u64>().map_err(|_| format!("not a number: {text}"))
        };
        match name.as_str() {
            "--ci" => asked.options.ci = true,
            "--list" => asked.list = true,
            "--kills" => asked.options.kills = Some(value()?),
            "--only" => {
                let text = arguments.next().ok_or("no value is given for --only")?;
                asked.options.only.push(text);
            }
            "--seed" => asked.options.seed = value()?,
            "--width" => {
                asked.options.width = usize::try_from(value()?).map_err(|error| error.to_string())?;
            }
            _ if name.starts_with('-') => return Err(format!("no such option: {name}\n\n{USAGE}")),
            _ => asked.names.push(name),
        }
    }
    Ok(asked)
}

fn run(asked: &Asked) -> Result<bool, String> {
    let rows = chosen(&asked.names)?;
    if asked.list {
        for row in &rows {
            print(&format!("{}\t{}", row.id, row.what))?;
        }
        return Ok(true);
    }
    if !asked.options.decurion().is_file() {
        return Err(format!("no binary to test, build it first: {}", asked.options.decurion().display()));
    }
    let (mut failed, started) = (Vec::new(), Instant::now());
    for row in &rows {
        say(&format!("{:4} {} …", row.id, row.what));
        let begun = Instant::now();
        let report = (row.run)(&asked.options);
        let seconds = begun.elapsed().as_secs_f64();
        show(row, &report, seconds)?;
        if !report.holds() {
            failed.push((row, report));
        }
    }
    // Said again at the end: of a long output, the end is what is kept.
    for (row, report) in &failed {
        say(&format!("{:4} FAILED: {}", row.id, report.figure));
        say_failures(report);
    }
    let held = rows.len() - failed.len();
    say(&format!("{held} of {} rows hold, {:.1} s", rows.len(), started.elapsed().as_secs_f64()));
    Ok(failed.is_empty())
}

fn chosen(names: &[String]) -> Result<Vec<Row>, String> {
    let all = rows();
    for name in names {
        if !all.iter().any(|row| row.id.eq_ignore_ascii_case(name)) {
            return Err(format!("no such row (--list shows them): {name}"));
        }
    }
    let wanted = |row: &Row| names.is_empty() || names.iter().any(|name| row.id.eq_ignore_ascii_case(name));
    Ok(all.into_iter().filter(wanted).collect())
}

fn show(row: &Row, report: &Report, seconds: f64) -> Result<(), String> {
    let verdict = if report.holds() { "holds" } else { "FAILS" };
    say(&format!("{:4} {verdict}: {} ({} runs, {seconds:.1} s)", row.id, report.figure, report.runs));
    say_failures(report);
    let line = json!({
        "id": row.id, "what": row.what, "runs": report.runs, "failures": report.failures,
        "figure": report.figure, "seconds": (seconds * 10.0).round() / 10.0,
    });
    print(&line.to_string())
}

fn say_failures(report: &Report) {
    for failure in report.failures.iter().take(SHOWN) {
        say(&format!("       {failure}"));
    }
    if report.failures.len() > SHOWN {
        say(&format!("       and {} more", report.failures.len() - SHOWN));
    }
}

fn print(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| error.to_string())
}

fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
