//! The times of steps, commands, tests and crates: kept in a file, and printed next to the steps' budgets.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;

use serde_json::Value;

use crate::command::cmd;
use crate::files::target_dir;

/// A row each: the commit, the step, the kind, seconds, and what took them, separated by tabs.
const FILE: &str = "xtask-times.tsv";
/// Anything shorter is omitted.
const SHORTEST: f64 = 0.2;
/// Number of tests and crates that are printed.
const SLOWEST: usize = 20;

/// The subject of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A whole step.
    Step,
    /// A command that only compiles.
    Compile,
    /// Any other command.
    Run,
    /// A test, as its harness reports it.
    Test,
    /// A crate, as `cargo --timings` reports it.
    Crate,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Compile => "compile",
            Self::Run => "run",
            Self::Test => "test",
            Self::Crate => "crate",
        }
    }
}

static ROWS: Mutex<Vec<(Kind, f64, String)>> = Mutex::new(Vec::new());

/// Notes a time until [`save`] writes it.
pub fn record(kind: Kind, seconds: f64, what: &str) {
    if seconds < SHORTEST && kind != Kind::Step {
        return;
    }
    if let Ok(mut rows) = ROWS.lock() {
        rows.push((kind, seconds, what.replace(['\t', '\n'], " ")));
    }
}

/// Appends what was recorded since the last call to the file, as times of `step`. What was built `ahead` of the step counts apart.
pub fn save(commit: &str, step: &str, ahead: bool) -> Result<(), String> {
    let mut rows = ROWS
        .lock()
        .map(|mut rows| std::mem::take(&mut *rows))
        .unwrap_or_default();
    rows.extend(crates()?);
    let lines: String = rows
        .iter()
        .map(|(kind, seconds, what)| {
            let kind = match (kind, ahead) {
                (Kind::Compile | Kind::Run, true) => "ahead",
                _ => kind.name(),
            };
            format!("{commit}\t{step}\t{kind}\t{seconds:.1}\t{what}\n")
        })
        .collect();
    let path = file()?;
    let append = || -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
        // One write, as a process that builds ahead appends too.
        file.write_all(lines.as_bytes())
    };
    append().map_err(|err| format!("{}: {err}", path.display()))
}

fn file() -> Result<PathBuf, String> {
    Ok(target_dir()?.join(FILE))
}

/// The commit that is checked out, with `+` where tracked files differ from it.
pub fn commit() -> String {
    let commit = cmd("git rev-parse --short HEAD")
        .stdout()
        .unwrap_or_default();
    let changed = !cmd("git diff --quiet HEAD").succeeds();
    format!("{}{}", commit.trim(), if changed { "+" } else { "" })
}

/// The times of crates in the report of the newest build with `--timings`, which is deleted.
fn crates() -> Result<Vec<(Kind, f64, String)>, String> {
    let report = target_dir()?.join("cargo-timings/cargo-timing.html");
    let Ok(text) = fs::read_to_string(&report) else {
        return Ok(Vec::new());
    };
    let _ = fs::remove_file(&report);
    let rows = units(&text)
        .into_iter()
        .filter(|(seconds, _)| *seconds >= SHORTEST);
    Ok(rows
        .map(|(seconds, name)| (Kind::Crate, seconds, name))
        .collect())
}

/// The seconds and names of what cargo's report lists.
fn units(report: &str) -> Vec<(f64, String)> {
    let Some((_, rest)) = report.split_once("const UNIT_DATA = ") else {
        return Vec::new();
    };
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Vec<Value>>();
    let Some(Ok(units)) = values.next() else {
        return Vec::new();
    };
    let name = |unit: &Value| {
        let text = |key: &str| unit[key].as_str().unwrap_or_default().trim().to_string();
        format!("{} {}", text("name"), text("target"))
            .trim_end()
            .to_string()
    };
    let row = |unit: &Value| Some((unit["duration"].as_f64()?, name(unit)));
    units.iter().filter_map(row).collect()
}

/// `cargo xtask times`: the latest time of each step next to its budget, then the slowest tests and crates.
pub fn print(budgets: &[(&str, u32)]) -> Result<(), String> {
    let path = file()?;
    let text = fs::read_to_string(&path).map_err(|err| {
        format!(
            "{}: {err}; `cargo xtask test` writes the file",
            path.display()
        )
    })?;
    print!("{}", table(&text, budgets));
    Ok(())
}

/// The rows of a step's latest run.
#[derive(Default)]
struct Latest<'a> {
    commit: &'a str,
    seconds: f64,
    compile: f64,
    ahead: f64,
    slow: Vec<(f64, &'a str, &'a str)>,
}

fn table(text: &str, budgets: &[(&str, u32)]) -> String {
    let mut steps: BTreeMap<&str, Latest> = BTreeMap::new();
    let mut open: BTreeMap<&str, Latest> = BTreeMap::new();
    for line in text.lines() {
        let columns: Vec<&str> = line.splitn(5, '\t').collect();
        let [commit, step, kind, seconds, what] = columns[..] else {
            continue;
        };
        let Ok(seconds) = seconds.parse::<f64>() else {
            continue;
        };
        let latest = open.entry(step).or_default();
        match kind {
            // The last row of a run.
            "step" => {
                let mut run = std::mem::take(latest);
                (run.commit, run.seconds) = (commit, seconds);
                steps.insert(step, run);
            }
            "compile" => latest.compile += seconds,
            "ahead" => latest.ahead += seconds,
            "test" | "crate" => latest.slow.push((seconds, kind, what)),
            _ => {}
        }
    }
    let mut out = format!(
        "{:<12} {:>8} {:>10} {:>12} {:>8}  commit\n",
        "step", "seconds", "compiling", "built ahead", "budget"
    );
    let (mut total, mut allowed) = (0.0, 0);
    for &(name, budget) in budgets {
        let Some(run) = steps.get(name) else {
            continue;
        };
        total += run.seconds;
        allowed += budget;
        let over = if run.seconds > f64::from(budget) {
            "  over"
        } else {
            ""
        };
        out.push_str(&format!(
            "{name:<12} {:>8.0} {:>10.0} {:>12.0} {budget:>8}  {}{over}\n",
            run.seconds, run.compile, run.ahead, run.commit
        ));
    }
    out.push_str(&format!(
        "{:<12} {total:>8.0} {:>10} {:>12} {allowed:>8}\n",
        "total", "", ""
    ));
    for (kind, title) in [("test", "tests"), ("crate", "crates")] {
        let mut slow: Vec<(f64, &str, &str)> = steps
            .iter()
            .flat_map(|(step, run)| {
                let of_kind = run.slow.iter().filter(move |row| row.1 == kind);
                of_kind.map(move |row| (row.0, *step, row.2))
            })
            .collect();
        slow.sort_by(|a, b| b.0.total_cmp(&a.0));
        if !slow.is_empty() {
            out.push_str(&format!("\nslowest {title}\n"));
        }
        for (seconds, step, what) in slow.iter().take(SLOWEST) {
            out.push_str(&format!("{seconds:>8.1} s  {step:<10} {what}\n"));
        }
    }
    out
}

/// The reason why a whole run fails although its steps passed: a step took half longer than its budget.
pub fn over_budget(steps: &[(&str, u32, f64)]) -> Option<String> {
    let over: Vec<String> = steps
        .iter()
        .filter(|(_, budget, seconds)| *seconds > 1.5 * f64::from(*budget))
        .map(|(name, budget, seconds)| {
            format!("{name} took {seconds:.0} s, its budget is {budget} s")
        })
        .collect();
    if over.is_empty() {
        None
    } else {
        Some(format!(
            "{}; `cargo xtask times` shows where the time goes; make room, or raise the budget in xtask/src/steps/mod.rs and say why",
            over.join("; ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_the_latest_run_of_each_step() {
        let text = "a1\tfmt\tstep\t9.0\tfmt\n\
                    a1\ttest\tcompile\t100.0\tcargo test --no-run\n\
                    a1\ttest\ttest\t7.5\tcore matmul::rows::webgpu\n\
                    a1\ttest\tstep\t200.0\ttest\n\
                    b2\tfmt\tstep\t3.0\tfmt\n";
        let table = table(text, &[("fmt", 10), ("test", 150)]);
        let rows: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            (rows[1][0], rows[1][1], rows[1][5]),
            ("fmt", "3", "b2"),
            "{table}"
        );
        assert_eq!(rows[2][..3], ["test", "200", "100"], "{table}");
        assert!(
            table.contains("7.5 s  test       core matmul::rows::webgpu"),
            "{table}"
        );
    }

    #[test]
    fn a_report_of_cargo_is_read() {
        let report = r#"<script>const UNIT_DATA = [{"name":"a","target":" lib","duration":2.5}];
const X = 1;"#;
        assert_eq!(units(report), [(2.5, "a lib".to_string())]);
        assert_eq!(units("none"), []);
    }

    #[test]
    fn half_more_than_a_budget_is_too_much() {
        assert_eq!(
            over_budget(&[("fmt", 10, 14.9), ("test", 100, 150.0)]),
            None
        );
        let reason = over_budget(&[("fmt", 10, 15.1)]).unwrap();
        assert!(
            reason.contains("fmt took 15 s, its budget is 10 s"),
            "{reason}"
        );
    }
}
