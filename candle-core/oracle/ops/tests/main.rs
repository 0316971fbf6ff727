//! Compares every family of ops with crates.io's candle-core 0.11.1, over random shapes, layouts, dtypes and parameters.
//!
//! A failure prints the case as data. `ORACLE_SEED=N` draws other cases, `ORACLE_CASES=N` more of them.

mod convert;
mod elementwise;
mod faults;
mod files;
mod gradients;
mod indexing;
mod list;
mod movement;
mod neural;
mod pickle;
mod product;
mod quantized;
mod reduce;

use oracle_ops::case::Case;
use oracle_ops::check::{self, Agreed, Rule};
use oracle_ops::generate::Gen;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::cell::Cell;

/// Number of cases in which values are compared; cases that both sides reject are additional.
const CASES: u32 = 256;

/// Draws cases of a family until enough of them had values to compare. Shrinking reduces the size of the case.
fn hold(family: fn(&mut Gen) -> Case, judge: impl Fn(&Case) -> Result<Agreed, String>) {
    let number = |name, default| match std::env::var(name) {
        Ok(text) => text.parse().unwrap(),
        Err(_) => default,
    };
    let wanted = number("ORACLE_CASES", CASES);
    let mut seed = [0; 32];
    seed[..4].copy_from_slice(&number("ORACLE_SEED", 0).to_le_bytes());
    let mut runner = TestRunner::new_with_rng(
        Config {
            cases: 32 * wanted,
            failure_persistence: None,
            max_shrink_iters: 64,
            ..Config::default()
        },
        TestRng::from_seed(RngAlgorithm::ChaCha, &seed),
    );
    let compared = Cell::new(0);
    let seeds = (proptest::num::u64::ANY.no_shrink(), 1..=6usize);
    let result = runner.run(&seeds, |(seed, size)| {
        if compared.get() >= wanted {
            return Ok(());
        }
        match judge(&check::case(family, seed, size)) {
            Ok(agreed) => {
                compared.set(compared.get() + u32::from(agreed == Agreed::Values));
                Ok(())
            }
            Err(what) => Err(TestCaseError::fail(what)),
        }
    });
    if let Err(err) = result {
        panic!("{err}");
    }
    let compared = compared.get();
    assert!(
        compared >= wanted,
        "only {compared} cases had values to compare"
    );
}

/// The family's values agree.
fn values(family: fn(&mut Gen) -> Case, rule: Rule) {
    hold(family, |case| check::agree(case, rule));
}
