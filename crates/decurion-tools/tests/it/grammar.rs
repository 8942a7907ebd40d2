//! The grammar of our analysis against bash itself. Takes shell texts, collected and generated; runs each with the real
//! bash among programs that only note how they were called, and compares what ran with what the analysis named.
//!
//! What bash ran and the analysis did not name is a *disagreement*, and a bug of the analysis, unless the analysis said
//! that it cannot tell. What was named and not run is no fault: a branch that was not taken, or a program that would
//! run another and was only a stub. Only where every command must run (literal commands one after the other) is that
//! direction checked too.

mod collected;
mod generated;
mod judge;
mod stand;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::strategy::{BoxedStrategy, Strategy as _, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use judge::{Outcome, Tally};
use stand::Stand;

/// Generated commands of the short form. With the collected ones it takes some seconds.
const FEW: usize = 250;
/// Stubs wait for the disk, so more of them run than there are processors.
const THREADS: usize = 4;

#[test]
fn bash_runs_only_what_the_analysis_names() {
    let seed = fresh_seed();
    let mut tally = compare(&collected::some(seed));
    tally.add(generated_commands(seed, FEW));
    println!("seed {seed}: {}", tally.figures());
    assert_eq!(tally.disagreements(), [], "seed {seed}");
}

#[test]
#[ignore = "takes minutes: DECURION_TEST_COMMANDS=50000 DECURION_TEST_SEED=1 cargo test … -- --ignored --nocapture"]
fn bash_runs_only_what_the_analysis_names_long() {
    let seed = setting("DECURION_TEST_SEED").unwrap_or_else(fresh_seed);
    let count = setting("DECURION_TEST_COMMANDS").unwrap_or(20_000);
    let mut tally = compare(&collected::all());
    tally.add(generated_commands(seed, usize::try_from(count).unwrap()));
    println!("seed {seed}: {}", tally.figures());
    assert_eq!(tally.disagreements(), [], "seed {seed}");
}

#[expect(clippy::disallowed_methods, reason = "the environment sets how much is tried")]
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Compares every text.
fn compare(texts: &[String]) -> Tally {
    let mut tally = Tally::default();
    for (text, outcome) in outcomes(texts) {
        tally.note(text, &outcome);
    }
    tally
}

/// Compares texts made from a seed. Each disagreement is made as short as it can be.
fn generated_commands(seed: u64, count: usize) -> Tally {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = Config { failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, rng);
    let strategy: BoxedStrategy<String> = generated::text(collected::all());
    let stand = Stand::new();
    let mut tally = Tally::default();
    let mut left = count;
    while left > 0 {
        let mut trees: Vec<_> =
            (0..left.min(2_000)).map(|_| strategy.new_tree(&mut runner).unwrap()).collect();
        left -= trees.len();
        let texts: Vec<String> = trees.iter().map(ValueTree::current).collect();
        let found = outcomes(&texts);
        for (index, (text, outcome)) in found.into_iter().enumerate() {
            if outcome.disagrees() && tally.disagreements().len() < 20 {
                let (text, outcome) = shortest(&mut trees[index], &stand);
                tally.note(text, &outcome);
            } else {
                tally.note(text, &outcome);
            }
        }
    }
    tally
}

/// Shortens a text as long as it disagrees.
fn shortest(tree: &mut impl ValueTree<Value = String>, stand: &Stand) -> (String, Outcome) {
    let outcome = |text: &str| judge::compare(text, stand);
    let mut best = (tree.current(), outcome(&tree.current()));
    for _ in 0..400 {
        let text = tree.current();
        let found = outcome(&text);
        let disagrees = found.disagrees();
        if disagrees {
            best = (text, found);
        }
        if !(if disagrees { tree.simplify() } else { tree.complicate() }) {
            break;
        }
    }
    best
}

/// What came of each text, in their order.
fn outcomes(texts: &[String]) -> Vec<(String, Outcome)> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let stand = Stand::new();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(text) = texts.get(index) else { break };
                    let outcome = judge::compare(text, &stand);
                    found.lock().unwrap().push((index, (text.clone(), outcome)));
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort_by_key(|(index, _)| *index);
    found.into_iter().map(|(_, outcome)| outcome).collect()
}
