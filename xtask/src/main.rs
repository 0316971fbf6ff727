//! `cargo xtask test`: everything that has to hold before a change lands, in one command. `web` and `serve`: the pages for browsers.

mod ahead;
mod changed;
mod command;
mod files;
mod install;
mod op;
mod services;
mod steps;
mod targets;
mod testing;
mod times;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};

use ahead::Ahead;
use steps::{web, Step, When, STEPS};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The workspace's own commands")]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what the tests need, where possible, then run the checks and tests that every change must pass
    Test(TestArgs),
    /// Steps that `test` starts in the background
    #[command(hide = true)]
    Ahead { steps: Vec<String> },
    /// Run the tests of one op on one device: `cargo xtask op matmul --device webgpu`
    Op {
        /// Text in the names of its tests, such as `matmul` or `matmul::rows`
        op: String,
        #[arg(long, default_value = "cpu", value_parser = op::DEVICES)]
        device: String,
    },
    /// Print each step's time next to its budget, the slowest tests and the slowest crates
    Times,
    /// Build the web pages into `target/web/site`
    Web {
        /// Build only some modules, of `simd`, `threads` (SIMD, on several threads of the CPU) and `plain`: `--only simd,threads`
        #[arg(long, value_parser = ["simd", "plain"])]
        only: Option<String>,
        /// Also write a folder that any static host can serve, with a service worker for cross-origin isolation
        #[arg(long = "static", value_name = "DIR")]
        folder: Option<PathBuf>,
    },
    /// Build the web pages and benchmark ops in Chromium against onnxruntime-web
    Versus,
    /// Serve the web pages on 127.0.0.1
    Serve {
        /// Port to listen on; 0 picks a free one
        #[arg(long, default_value_t = 8080)]
        port: u16,
    },
}

#[derive(Args)]
struct TestArgs {
    /// Run every step; takes hours
    #[arg(long, conflicts_with = "only")]
    all: bool,
    /// Run the steps and the packages' tests that files changed since the merge base with the main branch need
    #[arg(long, conflicts_with_all = ["only", "all"])]
    changed: bool,
    /// Run only these steps, in the usual order: `--only fmt,clippy`
    #[arg(long, value_delimiter = ',', value_name = "STEP",
          value_parser = PossibleValuesParser::new(STEPS.iter().map(|step| step.name)))]
    only: Vec<String>,
    /// List all steps and exit; the default run has those with a star
    #[arg(long)]
    list: bool,
}

/// A step that ran: its time, and its note or the reason why it failed.
struct Outcome {
    step: &'static Step,
    elapsed: Duration,
    result: Result<String, String>,
}

fn main() -> ExitCode {
    let task = Cli::parse().command;
    if let Err(err) = std::env::set_current_dir(workspace_root()) {
        eprintln!("cannot enter {}: {err}", workspace_root().display());
        return ExitCode::FAILURE;
    }
    let result = match task {
        Task::Test(args) => return test(args),
        Task::Ahead { steps } => ahead::run(&named(&steps)),
        Task::Op { op, device } => op::run(&op, &device).map(|note| println!("{note}")),
        Task::Times => times::print(&steps::budgets()),
        Task::Web { only, folder } => web::build(only.as_deref())
            .and_then(|()| folder.map_or(Ok(()), |folder| web::export(&folder))),
        Task::Versus => web::versus(),
        Task::Serve { port } => web::serve(port),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn test(args: TestArgs) -> ExitCode {
    if args.list {
        for step in STEPS {
            let mark = match step.when {
                When::Default => '*',
                When::Changed => '+',
                When::All => ' ',
            };
            println!("{mark} {:<12} {}", step.name, step.title);
        }
        println!("\n* in the default run; + with `--changed` where files of the step changed, and in a job of CI; `--all` runs all, `--only NAME,NAME` any of them");
        return ExitCode::SUCCESS;
    }
    let changed = match args.changed.then(changed::change).transpose() {
        Ok(changed) => changed,
        Err(reason) => {
            eprintln!("{reason}");
            return ExitCode::FAILURE;
        }
    };
    let selected: Vec<_> = if let Some(change) = changed {
        println!(
            "{} files changed; their tests: {}",
            change.files.len(),
            change
                .packages
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", ")
        );
        let steps = change.steps();
        testing::only(change.packages);
        steps
    } else if args.only.is_empty() {
        let is_wanted = |step: &&Step| args.all || step.when == When::Default;
        STEPS.iter().filter(is_wanted).collect()
    } else {
        named(&args.only)
    };
    if args.all {
        std::env::set_var(testing::EVERY_CASE, "1");
    }
    let outcomes = run_until_failure(&selected);
    print_summary(&selected, &outcomes);
    // A run of some steps builds in one what the whole run has built before.
    let whole = args.only.is_empty() && !args.changed;
    if whole
        && std::env::var_os("CI").is_some()
        && outcomes.iter().all(|outcome| outcome.result.is_ok())
    {
        let times = outcomes.iter().map(|outcome| {
            (
                outcome.step.name,
                outcome.step.budget,
                outcome.elapsed.as_secs_f64(),
            )
        });
        if let Some(reason) = times::over_budget(&times.collect::<Vec<_>>()) {
            eprintln!("\n{reason}");
            return ExitCode::FAILURE;
        }
    }
    match outcomes.last() {
        Some(Outcome {
            step,
            result: Err(reason),
            ..
        }) => {
            eprintln!("\n{} failed: {reason}", step.name);
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// The steps with these names, in the usual order.
fn named(names: &[String]) -> Vec<&'static Step> {
    let is_named = |step: &&Step| names.iter().any(|name| name == step.name);
    STEPS.iter().filter(is_named).collect()
}

fn workspace_root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

fn run_until_failure(selected: &[&'static Step]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let mut ahead = None;
    let commit = times::commit();
    for (index, step) in selected.iter().copied().enumerate() {
        println!("\n== [{}/{}] {}", index + 1, selected.len(), step.title);
        let start = Instant::now();
        let built = ahead
            .as_mut()
            .map_or(Ok(()), |ahead: &mut Ahead| ahead.wait(step));
        let mut result = built.and_then(|()| (step.run)());
        // Not before the first step, which looks for what everything needs.
        if index == 0 && result.is_ok() {
            match Ahead::start(&selected[1..]) {
                Ok(started) => ahead = started,
                Err(reason) => result = Err(reason),
            }
        }
        let elapsed = start.elapsed();
        times::record(times::Kind::Step, elapsed.as_secs_f64(), step.title);
        if let Err(reason) = times::save(&commit, step.name, false) {
            result = result.and(Err(reason));
        }
        let failed = result.is_err();
        outcomes.push(Outcome {
            step,
            elapsed,
            result,
        });
        if failed {
            break;
        }
    }
    outcomes
}

/// One row a step, those that were not reached included.
fn print_summary(selected: &[&'static Step], outcomes: &[Outcome]) {
    println!(
        "\n{:<12} {:<8} {:>9} {:>9}",
        "step", "result", "time", "budget"
    );
    for outcome in outcomes {
        let (word, note) = match &outcome.result {
            Ok(note) => ("ok", note.as_str()),
            Err(_) => ("FAILED", ""),
        };
        let row = format!(
            "{:<12} {word:<8} {:>7.1} s {:>7} s  {note}",
            outcome.step.name,
            outcome.elapsed.as_secs_f64(),
            outcome.step.budget
        );
        println!("{}", row.trim_end());
    }
    for step in &selected[outcomes.len()..] {
        println!("{:<12} not run", step.name);
    }
    let left_out = |step: &&Step| {
        step.when == When::Default && !selected.iter().any(|other| other.name == step.name)
    };
    let left_out: Vec<&str> = STEPS
        .iter()
        .filter(left_out)
        .map(|step| step.name)
        .collect();
    if !left_out.is_empty() {
        println!("not selected: {}", left_out.join(", "));
    }
    let total: Duration = outcomes.iter().map(|outcome| outcome.elapsed).sum();
    println!("{:<12} {:<8} {:>7.1} s", "total", "", total.as_secs_f64());
}
