//! A client of the two sides' programs; `serve.rs` describes the protocol.

use std::env::consts::EXE_SUFFIX;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A running program of one side.
pub struct Side {
    name: &'static str,
    child: Child,
    /// `None` when the program should end.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    cases: Vec<String>,
}

/// Starts both sides, this repository's first. Under cargo this program builds them; otherwise they are in the same folder.
///
/// # Errors
/// A side cannot be built or started, or their tables differ.
pub fn both() -> Result<[Side; 2], String> {
    let sides = [Side::start("here")?, Side::start("there")?];
    if sides[0].cases != sides[1].cases {
        return Err("here and there have different tables of work: build both again".into());
    }
    Ok(sides)
}

/// Returns the folder of cargo's programs: the folder of this program, or the parent of a benchmark's.
fn programs() -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|e| format!("where this program is: {e}"))?;
    let folder = this
        .ancestors()
        .skip(1)
        .find(|folder| !folder.ends_with("deps"));
    folder
        .map(PathBuf::from)
        .ok_or_else(|| format!("{} is in no folder", this.display()))
}

fn build(name: &str) -> Result<(), String> {
    let Some(cargo) = std::env::var_os("CARGO") else {
        return Ok(());
    };
    let built = Command::new(cargo)
        .args(["build", "--release", "--features", name, "--bin", name])
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .status();
    match built {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("building {name}: {status}")),
        Err(e) => Err(format!("building {name}: {e}")),
    }
}

impl Side {
    fn start(name: &'static str) -> Result<Self, String> {
        build(name)?;
        let program = programs()?.join(format!("{name}{EXE_SUFFIX}"));
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("starting {}: {e}", program.display()))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{name} has no input or no output"));
        };
        let mut side = Self {
            name,
            child,
            requests: Some(requests),
            answers: BufReader::new(answers),
            cases: vec![],
        };
        loop {
            match side.answer()? {
                case if case.is_empty() => return Ok(side),
                case => side.cases.push(case),
            }
        }
    }

    /// Returns the names of all cases, as `family/op shape dtype`.
    pub fn cases(&self) -> &[String] {
        &self.cases
    }

    /// Prepares a case, and runs it once.
    ///
    /// # Errors
    /// This side cannot run the case, or its program has ended.
    pub fn make(&mut self, case: &str) -> Result<(), String> {
        match self.ask(&format!("make {case}"))?.as_str() {
            "ok" => Ok(()),
            why => Err(why.to_string()),
        }
    }

    /// Returns the duration of `runs` runs of the case.
    ///
    /// # Errors
    /// Those of [`make`](Self::make).
    pub fn run(&mut self, runs: u64) -> Result<Duration, String> {
        let answer = self.ask(&format!("run {runs}"))?;
        answer.parse().map(Duration::from_nanos).map_err(|_| answer)
    }

    fn ask(&mut self, request: &str) -> Result<String, String> {
        let sent = self
            .requests
            .as_mut()
            .ok_or_else(|| std::io::ErrorKind::BrokenPipe.into())
            .and_then(|requests| writeln!(requests, "{request}"));
        sent.map_err(|e| format!("{}, asked to {request:?}: {e}", self.name))?;
        self.answer()
    }

    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err(format!("{} has ended", self.name)),
            Ok(_) => Ok(line.trim_end().to_string()),
            Err(e) => Err(format!("{} says nothing: {e}", self.name)),
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // The program ends with its input. An error here cannot be reported.
        self.requests = None;
        let _ = self.child.wait();
    }
}
