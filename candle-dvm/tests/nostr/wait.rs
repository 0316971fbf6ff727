//! Waiting for what another thread does. How long that takes is the machine's affair, so a test waits for the thing itself, with patience.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Panics with `problem` if it is not done in two minutes.
#[track_caller]
pub fn wait_until<P: Display>(problem: impl Fn() -> P, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !done() {
        assert!(Instant::now() < end, "{}", problem());
        std::thread::sleep(Duration::from_millis(20));
    }
}
