//! The same work, done by this repository's candle-core and by crates.io's 0.11.1, in one process.
//!
//! `cases/` is one table of work, compiled against either side; both share rayon's global pool, so `RAYON_NUM_THREADS` holds
//! for both. Inputs come from a generator that starts anew for each case.

/// The table of work over this repository's crates.
#[path = "."]
pub mod here {
    use ours as candle_core;
    use ours_nn as candle_nn;
    #[path = "cases/mod.rs"]
    pub mod cases;
}

/// The table of work over crates.io's crates.
#[path = "."]
pub mod there {
    use upstream as candle_core;
    use upstream_nn as candle_nn;
    #[path = "cases/mod.rs"]
    pub mod cases;
}

/// Work to be timed: prepared inputs, and one run over them.
pub type Work = Box<dyn Fn()>;

/// One row of the table.
pub struct Pair {
    /// What is done, as `family/op dtype shape`.
    pub name: String,
    /// Makes the inputs for this repository's side.
    pub ours: Box<dyn Fn() -> Work>,
    /// Makes the inputs for crates.io's side.
    pub upstream: Box<dyn Fn() -> Work>,
}

/// Every case whose name contains one of `filters`; all of them without a filter.
pub fn pairs(filters: &[String]) -> Vec<Pair> {
    let here = here::cases::cases();
    let there = there::cases::cases();
    here.into_iter()
        .zip(there)
        .filter(|((name, _), _)| {
            filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str()))
        })
        .map(|((name, ours), (same, upstream))| {
            assert_eq!(name, same, "both sides have one table");
            Pair {
                name,
                ours,
                upstream,
            }
        })
        .collect()
}

/// Numbers between -1 and 1, the same on each call.
pub fn numbers(len: usize) -> Vec<f32> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.
    };
    std::iter::repeat_with(next).take(len).collect()
}
