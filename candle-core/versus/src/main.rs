//! Prints a Markdown table: each case's time here and with crates.io's candle-core 0.11.1, and how many times as fast this one is.
//!
//! `cargo run --release -- [--samples N] [--slow X] [FILTER ...]`; `--slow X` prints only what is less than `X` times as fast.
//!
//! Samples of both sides alternate, so that whatever else the machine does meets both. The times are medians; `best` compares the
//! fastest samples, which disturbances change least.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};
use versus::{pairs, Pair, Work};

/// What one sample should take at least.
const SAMPLE: Duration = Duration::from_millis(2);

struct Args {
    samples: usize,
    slow: f64,
    filters: Vec<String>,
}

fn args() -> Args {
    let mut parsed = Args {
        samples: 15,
        slow: f64::INFINITY,
        filters: vec![],
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = |default: f64| {
            let value = args.next().and_then(|value| value.parse().ok());
            value.unwrap_or(default)
        };
        match arg.as_str() {
            "--samples" => parsed.samples = number(15.).max(1.) as usize,
            "--slow" => parsed.slow = number(1.),
            _ => parsed.filters.push(arg),
        }
    }
    parsed
}

fn main() {
    let args = args();
    // A case that one side cannot do is not a comparison.
    std::panic::set_hook(Box::new(|_| ()));
    println!("| case | ours | candle-core 0.11.1 | times as fast | best |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    for pair in pairs(&args.filters) {
        let timed = catch_unwind(AssertUnwindSafe(|| time(&pair, args.samples)));
        match timed {
            Ok([ours, upstream]) => {
                let ratio = |at: usize| upstream[at] / ours[at];
                let middle = args.samples / 2;
                if ratio(middle).max(ratio(0)) < args.slow {
                    println!(
                        "| {} | {} | {} | {:.2} | {:.2} |",
                        pair.name,
                        shown(ours[middle]),
                        shown(upstream[middle]),
                        ratio(middle),
                        ratio(0)
                    );
                }
            }
            Err(cause) => {
                let cause = cause.downcast_ref::<String>().map_or("?", String::as_str);
                let line = cause.lines().next().unwrap_or_default();
                println!("| {} | – | – | – | {line} |", pair.name);
            }
        }
    }
}

/// Seconds of one run on each side, sorted.
fn time(pair: &Pair, samples: usize) -> [Vec<f64>; 2] {
    let sides = [(pair.ours)(), (pair.upstream)()];
    let runs = sides.each_ref().map(|work| {
        work();
        let once = seconds(work, 1);
        (SAMPLE.as_secs_f64() / once).clamp(1., 1e6) as usize
    });
    let mut times = [vec![], vec![]];
    for sample in 0..samples {
        // Neither side is always the one that runs second.
        for side in [sample % 2, 1 - sample % 2] {
            times[side].push(seconds(&sides[side], runs[side]));
        }
    }
    times.iter_mut().for_each(|t| t.sort_by(f64::total_cmp));
    times
}

fn seconds(work: &Work, runs: usize) -> f64 {
    let start = Instant::now();
    (0..runs).for_each(|_| work());
    start.elapsed().as_secs_f64() / runs as f64
}

fn shown(seconds: f64) -> String {
    match seconds {
        s if s < 1e-6 => format!("{:.0} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s => format!("{:.2} ms", s * 1e3),
    }
}
