//! The tests of docs/upstream.md: each passes here and fails with crates.io's candle 0.11.1, so an entry is removed when its fault is
//! fixed.

use std::panic::{catch_unwind, UnwindSafe};

mod here {
    use ours as candle_core;
    use ours_nn as candle_nn;
    include!(concat!(env!("OUT_DIR"), "/faults.rs"));
}

mod crates_io {
    use upstream as candle_core;
    use upstream_nn as candle_nn;
    include!(concat!(env!("OUT_DIR"), "/faults.rs"));
}

/// The reason why a test fails, or `None`.
fn failure<E: std::fmt::Display>(
    test: impl FnOnce() -> Result<(), E> + UnwindSafe,
) -> Option<String> {
    match catch_unwind(test) {
        Ok(Ok(())) => None,
        Ok(Err(err)) => Some(err.to_string()),
        Err(panic) => Some(match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(_) => "a panic".to_string(),
        }),
    }
}

#[test]
fn of_upstream_are_there_and_not_here() {
    assert!(here::TESTS.len() > 30, "{} tests", here::TESTS.len());
    let mut wrong = vec![];
    for ((name, ours), (_, theirs)) in here::TESTS.iter().zip(crates_io::TESTS) {
        if let Some(why) = failure(ours) {
            wrong.push(format!("{name} fails here: {why}"));
        }
        if failure(theirs).is_none() {
            wrong.push(format!("{name} passes with crates.io's candle"));
        }
    }
    assert!(wrong.is_empty(), "docs/upstream.md:\n{}", wrong.join("\n"));
}
