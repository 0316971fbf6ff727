//! The first command of the readme, from nothing: what it takes to compile, and how large the program is.

use std::path::Path;
use std::time::Instant;

use crate::command::cmd;

/// Emptied before each run, so that nothing of an earlier one helps.
const TARGET: &str = "target/first";

/// Seconds of CPU that compiling may take: five minutes on two idle cores.
const MOST_SECONDS: f64 = 600.;

/// Bytes of the program without its symbols; 11.5 MB of them are the model that comes along.
const MOST_BYTES: u64 = 30_000_000;

/// Builds candle-dvm as `cargo run --release -p candle-dvm -- generate` does on two cores, has it write, and holds it against the budgets.
/// What is too slow or too large: `cargo build --release -p candle-dvm --timings`, and [profile.release] in Cargo.toml.
pub fn first() -> Result<String, String> {
    // What is downloaded is not compiled.
    cmd("cargo fetch --locked").run()?;
    if Path::new(TARGET).exists() {
        std::fs::remove_dir_all(TARGET).map_err(|err| format!("{TARGET}: {err}"))?;
    }
    let build = cmd(&format!(
        "cargo build --release --locked --jobs 2 -p candle-dvm --target-dir {TARGET} --config profile.release.strip=true"
    ));
    let start = Instant::now();
    let before = children_seconds();
    build.run()?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu = children_seconds().zip(before).map(|(now, then)| now - then);
    let program = format!(
        "{TARGET}/release/candle-dvm{}",
        std::env::consts::EXE_SUFFIX
    );
    cmd(&format!("{program} generate --device cpu --prompt Returns")).run()?;
    let file = std::fs::metadata(&program).map_err(|err| format!("{program}: {err}"))?;
    let note = note(seconds, cpu, file.len());
    if within(cpu, file.len()) {
        Ok(note)
    } else {
        Err(format!(
            "{build}\n  took {note}; at most {MOST_SECONDS} s of CPU and {} MB are allowed",
            megabytes(MOST_BYTES)
        ))
    }
}

/// The time on the clock is not compared: others may be using the machine.
fn within(cpu: Option<f64>, bytes: u64) -> bool {
    cpu.is_none_or(|cpu| cpu <= MOST_SECONDS) && bytes <= MOST_BYTES
}

fn note(seconds: f64, cpu: Option<f64>, bytes: u64) -> String {
    let cpu = match cpu {
        Some(cpu) => format!("{cpu:.0} s of CPU"),
        None => "CPU not measured, which Linux alone can".to_string(),
    };
    format!("{seconds:.0} s ({cpu}), {} MB", megabytes(bytes))
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

/// Seconds of CPU of all children that have ended, and of theirs.
fn children_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    ticks_of_children(&stat).map(|ticks| ticks / TICKS_PER_SECOND)
}

/// The unit of CPU times in Linux's `/proc`, on every architecture.
const TICKS_PER_SECOND: f64 = 100.;

/// `cutime` and `cstime` of a `/proc/PID/stat`; the name of the program, in parentheses, may have blanks.
fn ticks_of_children(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(13);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_children_is_read_behind_the_name() {
        let stat =
            "26107 (a) b) R 26103 26103 4985 0 -1 4194304 102 0 0 0 1 2 700 80 20 0 1 0 323342";
        assert_eq!(ticks_of_children(stat), Some(780.));
        assert_eq!(ticks_of_children("26107 (cat) R 1"), None);
    }

    #[test]
    fn budgets_are_for_time_and_size() {
        assert!(within(Some(MOST_SECONDS), MOST_BYTES));
        assert!(within(None, MOST_BYTES));
        assert!(!within(Some(MOST_SECONDS + 1.), MOST_BYTES));
        assert!(!within(None, MOST_BYTES + 1));
        assert_eq!(
            note(300.4, Some(550.), 29_960_000),
            "300 s (550 s of CPU), 30.0 MB"
        );
    }
}
