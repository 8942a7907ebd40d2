//! The proof behind `docs/seed-coverage.md`: takes its rows, makes each row's one-line change, runs the row's
//! test and gives, per row, whether that test went red. Every file is put back as it was.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;

use crate::tidy::root;
pub use document::{DOCUMENT, Proof, Row, TestName, parse};

mod document;

/// A test that a change makes wait for ever is red too.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tries the rows whose id is, or begins with, one of `selection`; all rows when there is none.
pub fn run(selection: &[String]) -> Result<()> {
    let rows = chosen(selection)?;
    unchanged(&rows)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            result = all(&rows) => result,
            signal = tokio::signal::ctrl_c() => bail!("stopped; the files are as they were ({signal:?})"),
        }
    })
}

fn chosen(selection: &[String]) -> Result<Vec<Row>> {
    let text =
        fs::read_to_string(root().join(DOCUMENT)).with_context(|| format!("cannot read {DOCUMENT}"))?;
    let (rows, problems) = parse(&text);
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    let wanted = |row: &Row| selection.is_empty() || selection.iter().any(|word| selects(word, row, &rows));
    let kept: Vec<Row> = rows.iter().filter(|row| wanted(row)).cloned().collect();
    if kept.is_empty() {
        bail!("no row of {DOCUMENT} begins with: {}", selection.join(" "));
    }
    Ok(kept)
}

fn selects(word: &str, row: &Row, rows: &[Row]) -> bool {
    let exact = rows.iter().any(|row| row.id == word);
    if exact { row.id == word } else { row.id.starts_with(word) }
}

/// A change that is not committed would be lost if this were killed between a change and putting it back.
fn unchanged(rows: &[Row]) -> Result<()> {
    let mut paths: Vec<&str> = rows.iter().filter_map(Row::path).collect();
    paths.sort_unstable();
    paths.dedup();
    if paths.is_empty() {
        return Ok(());
    }
    let output = std::process::Command::new("git")
        .args(["status", "--porcelain", "--"])
        .args(&paths)
        .current_dir(root())
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        bail!("git status failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    if !output.stdout.is_empty() {
        bail!("commit these first, they would be written to:\n{}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}

async fn all(rows: &[Row]) -> Result<()> {
    green_before(rows).await?;
    let (mut red, mut bad) = (0, 0);
    for row in rows {
        let Proof::Covered { test, path, old, new } = &row.proof else { continue };
        let verdict = one(test, path, old, new).await?;
        println!("{:<28} {}  {test}", verdict.word(), row.id);
        if let Verdict::Red { .. } = verdict {
            red += 1;
        } else {
            bad += 1;
        }
    }
    println!("{red} red, {bad} bad, {} without a test", rows.len() - red - bad);
    if bad > 0 {
        bail!("{bad} row(s) prove nothing");
    }
    Ok(())
}

/// A test that is red anyway proves nothing, so each must be green on the code as it is.
async fn green_before(rows: &[Row]) -> Result<()> {
    let mut groups: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for row in rows {
        if let Proof::Covered { test, .. } = &row.proof {
            let names = groups.entry((&test.package, &test.kind)).or_default();
            if !names.contains(&test.name.as_str()) {
                names.push(&test.name);
            }
        }
    }
    for ((package, kind), names) in groups {
        eprintln!("── {package}::{kind}: {} tests on the code as it is", names.len());
        // Building may take longer than any test may.
        cargo(package, kind, &[]).await?;
        let tally = Tally::of(&cargo(package, kind, &names).await?);
        if tally.failed > 0 || tally.passed != names.len() {
            bail!("not green before any change: {package}::{kind}\n{}", tally.text);
        }
    }
    Ok(())
}

enum Verdict {
    Red { hung: bool },
    Green,
    DoesNotCompile(String),
    NotOnce(usize),
    NoTest,
}

impl Verdict {
    fn word(&self) -> String {
        match self {
            Self::Red { hung: false } => "red".to_owned(),
            Self::Red { hung: true } => "red (waits for ever)".to_owned(),
            Self::Green => "GREEN".to_owned(),
            Self::DoesNotCompile(error) => format!("DOES NOT COMPILE ({error})"),
            Self::NotOnce(count) => format!("TEXT FOUND {count} TIMES"),
            Self::NoTest => "NO TEST RAN".to_owned(),
        }
    }
}

async fn one(test: &TestName, path: &str, old: &str, new: &str) -> Result<Verdict> {
    let path = root().join(path);
    let original = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let count = original.matches(old).count();
    if count != 1 {
        return Ok(Verdict::NotOnce(count));
    }
    let changed = original.replacen(old, new, 1);
    let _put_back = PutBack { path: path.clone(), original };
    fs::write(&path, changed).with_context(|| format!("cannot write {}", path.display()))?;
    let build = cargo(&test.package, &test.kind, &[]).await?.context("the build did not end")?;
    if !build.status.success() {
        return Ok(Verdict::DoesNotCompile(first_error(&build)));
    }
    let Some(output) = cargo(&test.package, &test.kind, &[&test.name]).await? else {
        return Ok(Verdict::Red { hung: true });
    };
    let tally = Tally::of(&Some(output));
    Ok(match (tally.passed, tally.failed) {
        (_, 1..) => Verdict::Red { hung: false },
        (0, 0) if tally.began => Verdict::Red { hung: false }, // it took the whole process with it
        (0, 0) => Verdict::NoTest,
        _ => Verdict::Green,
    })
}

/// Writes a file back when it goes out of scope, whatever happened in between.
struct PutBack {
    path: PathBuf,
    original: String,
}

impl Drop for PutBack {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.path, &self.original) {
            eprintln!("NOT PUT BACK, use `git checkout -- {}`: {error}", self.path.display());
        }
    }
}

fn first_error(build: &Output) -> String {
    let text = String::from_utf8_lossy(&build.stderr);
    text.lines().find(|line| line.starts_with("error")).unwrap_or("no error line").to_owned()
}

/// Builds a test binary (no names) or runs exactly these tests of it; `None` when they did not end in time.
async fn cargo(package: &str, kind: &str, names: &[&str]) -> Result<Option<Output>> {
    let mut command = Command::new("cargo");
    command.args(["test", "-q", "-p", package]);
    match kind {
        "it" => command.args(["--test", "it"]),
        "lib" => command.arg("--lib"),
        _ => command.arg("--bins"),
    };
    if names.is_empty() {
        command.arg("--no-run");
    } else {
        command.args(["--", "--exact"]).args(names);
    }
    // A group of its own, so that tests which wait for ever can be ended together with cargo.
    command
        .current_dir(root())
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().context("cannot run cargo")?;
    let _group = Group(child.id().context("cargo has no process id")?);
    if names.is_empty() {
        return Ok(Some(child.wait_with_output().await?));
    }
    match tokio::time::timeout(PATIENCE, child.wait_with_output()).await {
        Ok(output) => Ok(Some(output?)),
        Err(_) => Ok(None),
    }
}

/// A process group that is gone when this goes out of scope.
struct Group(u32);

impl Drop for Group {
    fn drop(&mut self) {
        let group = format!("-{}", self.0);
        let _ =
            std::process::Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    }
}

/// What a test binary said of itself.
struct Tally {
    began: bool,
    passed: usize,
    failed: usize,
    text: String,
}

impl Tally {
    fn of(output: &Option<Output>) -> Self {
        let Some(output) = output else {
            return Self { began: true, passed: 0, failed: 0, text: "it waits for ever".to_owned() };
        };
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let sum = |word: &str| {
            let results = text.lines().filter(|line| line.starts_with("test result:"));
            let counts = results
                .filter_map(|line| line.split(word).next()?.split_whitespace().last()?.parse::<usize>().ok());
            counts.sum::<usize>()
        };
        let began = text.lines().any(|line| line.starts_with("running ") && !line.starts_with("running 0 "));
        Self { began, passed: sum(" passed"), failed: sum(" failed"), text }
    }
}
