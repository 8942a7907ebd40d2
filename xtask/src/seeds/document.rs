//! `docs/seed-coverage.md` as data: takes its text, gives its rows and every line that is not one as it should be.

use std::collections::BTreeSet;
use std::fmt;

/// Where the rows are.
pub const DOCUMENT: &str = "docs/seed-coverage.md";

/// One line of a table.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its line in the document, from 1.
    pub line: usize,
    pub id: String,
    /// What stands behind it.
    pub proof: Proof,
}

impl Row {
    /// The file that its change is in.
    pub fn path(&self) -> Option<&str> {
        match &self.proof {
            Proof::Covered { path, .. } => Some(path),
            Proof::Without => None,
        }
    }
}

/// A test with the change under which it is red, or a reason why there is none.
#[derive(Clone, Debug)]
pub enum Proof {
    /// `old` occurs once in `path`; with `new` in its place the test is red.
    Covered { test: TestName, path: String, old: String, new: String },
    /// Decided against, or part of something that is not built yet.
    Without,
}

/// A test as the document names it: `package::kind module::name`.
#[derive(Clone, Debug)]
pub struct TestName {
    pub package: String,
    /// `it`, `lib` or `bin`.
    pub kind: String,
    /// The path that the test harness prints.
    pub name: String,
}

impl fmt::Display for TestName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}::{} {}", self.package, self.kind, self.name)
    }
}

/// All rows, and what is wrong with which line.
pub fn parse(text: &str) -> (Vec<Row>, Vec<String>) {
    let (mut rows, mut problems, mut ids) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (index, line) in text.lines().enumerate() {
        if !line.starts_with('|') || line.starts_with("| id |") || line.starts_with("|---") {
            continue;
        }
        let number = index + 1;
        match row(number, line) {
            Ok(row) if ids.insert(row.id.clone()) => rows.push(row),
            Ok(row) => problems.push(format!("{DOCUMENT}:{number}: the id is taken: {}", row.id)),
            Err(problem) => problems.push(format!("{DOCUMENT}:{number}: {problem}")),
        }
    }
    (rows, problems)
}

fn row(line: usize, text: &str) -> Result<Row, String> {
    let cells = cells(text);
    let [id, what, test, change] = &cells[..] else {
        return Err(format!("a row has 4 cells, with `\\|` for a bar inside one, not {}", cells.len()));
    };
    if !is_id(id) {
        return Err(format!("an id is like S1-07, not: {id}"));
    }
    if what.is_empty() {
        return Err("says not what holds".to_owned());
    }
    Ok(Row { line, id: id.clone(), proof: proof(test, change)? })
}

fn is_id(id: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    id.strip_prefix('S')
        .and_then(|rest| rest.split_once('-'))
        .is_some_and(|(seed, row)| digits(seed) && digits(row))
}

/// The cells between the bars; `\|` is a bar inside a cell.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim();
    let inner = line.strip_prefix('|').unwrap_or(line);
    let inner = inner.strip_suffix('|').unwrap_or(inner);
    let hidden = inner.replace("\\|", "\0");
    hidden.split('|').map(|cell| cell.trim().replace('\0', "|")).collect()
}

fn proof(test: &str, change: &str) -> Result<Proof, String> {
    if test == "–" {
        let reason = change
            .strip_prefix("decided against: ")
            .is_some_and(|reason| reason.starts_with("MISSION.md §") || reason.starts_with("DECISIONS.md "));
        if reason || change.starts_with("not yet: ") {
            return Ok(Proof::Without);
        }
        return Err(
            "without a test it says `decided against: MISSION.md §N …`, `… DECISIONS.md N …` or `not yet: …`"
                .to_owned(),
        );
    }
    let test =
        test_name(test).ok_or("a test is `package::it module::name` (or ::lib, ::bin) in backticks")?;
    let (path, old, new) = parts(change).ok_or("a change is `path`: `old` → `new`")?;
    if old == new || old.is_empty() {
        return Err("the change changes nothing".to_owned());
    }
    Ok(Proof::Covered { test, path, old, new })
}

fn test_name(cell: &str) -> Option<TestName> {
    let (target, name) = cell.strip_prefix('`')?.strip_suffix('`')?.split_once(' ')?;
    let (package, kind) = target.split_once("::")?;
    let known = ["it", "lib", "bin"].contains(&kind) && !name.contains(' ');
    known.then(|| TestName { package: package.to_owned(), kind: kind.to_owned(), name: name.to_owned() })
}

/// `path`: `old` → `new`; the word nothing in the place of the last takes the text away.
fn parts(cell: &str) -> Option<(String, String, String)> {
    let (path, rest) = cell.strip_prefix('`')?.split_once("`: `")?;
    if let Some(old) = rest.strip_suffix("` → nothing") {
        return Some((path.to_owned(), old.to_owned(), String::new()));
    }
    let (old, new) = rest.strip_suffix('`')?.split_once("` → `")?;
    Some((path.to_owned(), old.to_owned(), new.to_owned()))
}
