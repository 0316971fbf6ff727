//! Prints a Markdown table: the time of each case here and with crates.io's candle-core 0.11.1, and the ratio of the two.
//!
//! Samples of both sides alternate, so that disturbances on the machine affect both. The times are medians; `best` compares the fastest
//! samples, which disturbances affect least.

use clap::Parser;
use std::process::ExitCode;
use std::time::Duration;
use versus::side::{both, Side};

/// The minimum duration of a sample.
const SAMPLE: Duration = Duration::from_millis(2);

/// Consecutive runs before a case is timed, and before each sample. A cache that both sides share keeps its first contents through several
/// runs of the other side, which would favour the side that filled it.
const WARM_UP: u64 = 8;

/// A case of at least this duration is timed without warm-up runs.
const LONG: Duration = Duration::from_millis(10);

/// Times this repository's candle-core and crates.io's 0.11.1 on the CPU, alternately.
#[derive(Parser)]
struct Args {
    /// Samples of each side
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// Show only cases less than this many times as fast
    #[arg(long, value_name = "RATIO")]
    slow: Option<f64>,
    /// Build both sides and name the cases
    #[arg(long)]
    list: bool,
    /// Only cases whose names contain one of these
    filters: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("versus: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    let mut sides = both()?;
    let mut cases = sides[0].cases().to_vec();
    cases.retain(|case| args.filters.is_empty() || args.filters.iter().any(|f| case.contains(f)));
    if cases.is_empty() {
        let filters = args.filters.join(", ");
        return Err(format!("no case's name contains {filters}: see --list"));
    }
    if args.list {
        cases.iter().for_each(|case| println!("{case}"));
        return Ok(());
    }
    println!("| case | ours | candle-core 0.11.1 | times as fast | best |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    for case in cases {
        match time(&mut sides, &case, args.samples) {
            Ok([ours, upstream]) => {
                let ratio = |at: usize| upstream[at] / ours[at];
                let middle = ours.len() / 2;
                if args
                    .slow
                    .is_none_or(|slow| ratio(middle).max(ratio(0)) < slow)
                {
                    println!(
                        "| {case} | {} | {} | {:.2} | {:.2} |",
                        shown(ours[middle]),
                        shown(upstream[middle]),
                        ratio(middle),
                        ratio(0)
                    );
                }
            }
            // A case that one side cannot run is not compared.
            Err(why) => println!("| {case} | – | – | – | {why} |"),
        }
    }
    Ok(())
}

/// Returns the seconds per run on each side, sorted.
fn time(sides: &mut [Side; 2], case: &str, samples: u32) -> Result<[Vec<f64>; 2], String> {
    let mut samples_of = [Sample::default(); 2];
    for (side, sample) in sides.iter_mut().zip(&mut samples_of) {
        side.make(case)?;
        *sample = Sample::of(side)?;
    }
    let mut times = [vec![], vec![]];
    for sample in 0..samples as usize {
        // The sides alternate in order.
        for side in [sample % 2, 1 - sample % 2] {
            times[side].push(samples_of[side].take(&mut sides[side])?);
        }
    }
    times.iter_mut().for_each(|t| t.sort_by(f64::total_cmp));
    Ok(times)
}

/// The number of runs per sample.
#[derive(Clone, Copy, Default)]
struct Sample {
    warm_up: u64,
    runs: u64,
}

impl Sample {
    /// Returns the number of runs that take as long as a [`SAMPLE`], after warm-up: caches are filled, threads awake, and values that a
    /// side derives from its inputs on first use are computed.
    fn of(side: &mut Side) -> Result<Self, String> {
        let mut runs = 1;
        loop {
            let taken = side.run(runs)?;
            if taken >= SAMPLE && runs >= WARM_UP || taken >= LONG {
                let run = taken.as_secs_f64() / runs as f64;
                return Ok(Self {
                    warm_up: if run < LONG.as_secs_f64() { WARM_UP } else { 0 },
                    runs: (SAMPLE.as_secs_f64() / run).ceil() as u64,
                });
            }
            runs *= 2;
        }
    }

    /// Returns the seconds per run.
    fn take(self, side: &mut Side) -> Result<f64, String> {
        side.run(self.warm_up)?;
        Ok(side.run(self.runs)?.as_secs_f64() / self.runs as f64)
    }
}

fn shown(seconds: f64) -> String {
    match seconds {
        s if s < 1e-6 => format!("{:.0} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s => format!("{:.2} ms", s * 1e3),
    }
}
