//! The rows of the fault matrix as programs. Takes options and a row's name, does the damage to the real
//! binary (or to the engine on a stage), gives what went wrong and the figure to be reported.
//!
//! A row is a function: it never panics on what it finds, it reports it. Each group of rows is a module.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub mod agents;
pub mod audit;
pub mod babble;
pub mod budgets;
pub mod clock;
pub mod disk;
pub mod edits;
pub mod escapes;
pub mod hooks;
pub mod interleaved;
pub mod kill;
pub mod ledger;
pub mod lock;
pub mod mcp;
pub mod model;
pub mod notified;
pub mod panics;
pub mod power;
pub mod sandbox;
pub mod screens;
pub mod security;
pub mod shell;
pub mod shown;
pub mod signals;
pub mod size;
pub mod stand;
pub mod startup;
mod synced;
pub mod terminal;
pub mod terminal_signals;
pub mod transcript;
pub mod unread;
pub mod worktrees;

/// One fault, and how it is tried.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name in the fault matrix: `T1`.
    pub id: &'static str,
    /// What happens, in a few words.
    pub what: &'static str,
    pub run: fn(&Options) -> Report,
}

/// What a row found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How often the fault was tried.
    pub runs: u64,
    /// What went wrong, one line each; none if the row holds.
    pub failures: Vec<String>,
    /// The figure to be reported.
    pub figure: String,
}

/// How rows are run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The short form: the whole set in five minutes on two cores.
    pub ci: bool,
    /// Where the binaries under test are.
    pub binaries: PathBuf,
    /// How many kills T1 and X6 make, if not the usual number.
    pub kills: Option<u64>,
    /// Of rows that try lists, only what has one of these texts in its name; everything if there are none.
    pub only: Vec<String>,
    /// Where random choices begin.
    pub seed: u64,
    /// How many runs go on at the same time.
    pub width: usize,
    /// Tells people how far a long row is.
    pub tell: fn(&str),
}

impl Options {
    /// The usual ones for binaries in this folder.
    pub fn new(binaries: impl Into<PathBuf>) -> Self {
        let width = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8);
        Self {
            ci: false,
            binaries: binaries.into(),
            kills: None,
            only: Vec::new(),
            seed: 1,
            width,
            tell: |_| {},
        }
    }

    /// The first number in the short form, the second otherwise.
    pub fn count(&self, short: u64, long: u64) -> u64 {
        if self.ci { short } else { long }
    }

    /// Whether something with this name is tried.
    pub fn is_chosen(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.contains(only.as_str()))
    }

    /// A binary under test.
    pub fn binary(&self, name: &str) -> PathBuf {
        self.binaries.join(name)
    }

    pub fn decurion(&self) -> PathBuf {
        self.binary("decurion")
    }
}

impl Report {
    /// A report of one thing that stopped the row before it could be tried.
    pub fn broken(why: impl std::fmt::Display) -> Self {
        Self { runs: 0, failures: vec![why.to_string()], figure: "not tried".into() }
    }

    /// Whether the row holds: something was tried and nothing went wrong.
    pub fn holds(&self) -> bool {
        self.runs > 0 && self.failures.is_empty()
    }

    /// Adds one try that held, or why it did not.
    pub fn add(&mut self, name: impl std::fmt::Display, result: Result<(), String>) {
        self.runs += 1;
        if let Err(problem) = result {
            self.failures.push(format!("{name}: {problem}"));
        }
    }

    /// The report with its figure.
    #[must_use]
    pub fn figure(mut self, figure: impl Into<String>) -> Self {
        self.figure = figure.into();
        self
    }
}

/// Every row, in the order of the matrix.
pub fn rows() -> Vec<Row> {
    let groups = [
        kill::rows(),
        transcript::rows(),
        disk::rows(),
        startup::rows(),
        lock::rows(),
        size::rows(),
        clock::rows(),
        power::rows(),
        edits::rows(),
        model::rows(),
        shell::rows(),
        signals::rows(),
        escapes::rows(),
        unread::rows(),
        babble::rows(),
        panics::rows(),
        security::rows(),
        agents::rows(),
        hooks::rows(),
        mcp::rows(),
        budgets::rows(),
        notified::rows(),
        shown::rows(),
        worktrees::rows(),
        audit::rows(),
        sandbox::rows(),
    ];
    groups.into_iter().flatten().collect()
}

/// Does `work` for every item, `width` at a time; gives the results in the order of the items.
pub fn in_parallel<I: Sync, O: Send>(width: usize, items: &[I], work: impl Fn(&I) -> O + Sync) -> Vec<O> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, O)>> = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..width.max(1) {
            scope.spawn(|| {
                while let Some((at, item)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    items.get(at).map(|item| (at, item))
                } {
                    let result = work(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Numbers that look random and are the same for the same seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice for the n-th try of a seed.
    pub fn new(seed: u64, nth: u64) -> Self {
        let mut dice = Self(seed ^ nth.wrapping_mul(0x2545_F491_4F6C_DD1D));
        dice.next();
        dice
    }

    #[allow(clippy::should_implement_trait)] // endless, and never used as an iterator
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if there is none.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }

    /// A place in something that long.
    pub fn place(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }

    /// A time below `end`.
    pub fn time(&mut self, end: Duration) -> Duration {
        Duration::from_micros(self.below(u64::try_from(end.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// Whether a program of the system is there; rows that need one say so instead of failing silently.
pub fn has_program(name: &str) -> bool {
    ["/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin"]
        .iter()
        .any(|folder| Path::new(folder).join(name).exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let rows = rows();
        let names: HashSet<_> = rows.iter().map(|row| row.id).collect();
        assert_eq!(names.len(), rows.len());
        assert!(rows.iter().all(|row| !row.what.is_empty()));
    }

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..100).collect();
        assert_eq!(
            in_parallel(4, &items, |item| item * 2),
            items.iter().map(|item| item * 2).collect::<Vec<_>>()
        );
    }

    #[test]
    fn the_same_seed_throws_the_same_numbers() {
        let throw = |seed, nth| {
            let mut dice = Dice::new(seed, nth);
            (0..8).map(|_| dice.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(throw(1, 2), throw(1, 2));
        assert_ne!(throw(1, 2), throw(1, 3));
        assert_ne!(throw(1, 2), throw(2, 2));
    }

    #[test]
    fn a_row_that_tried_nothing_does_not_hold() {
        assert!(!Report::default().holds());
        let mut report = Report::default();
        report.add("one", Ok(()));
        assert!(report.holds());
        report.add("two", Err("no".into()));
        assert_eq!((report.holds(), report.failures.as_slice()), (false, ["two: no".to_owned()].as_slice()));
    }
}
