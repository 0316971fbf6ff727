//! A child process whose failure can be reported as a line to paste into a shell.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use crate::times::{self, Kind};

/// A program with its arguments and the environment that it gets on top of ours.
pub struct Cmd {
    program: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    folder: Option<PathBuf>,
    quiet: bool,
}

/// A command by its words; a word may not contain blanks.
pub fn cmd(line: &str) -> Cmd {
    let mut words = line.split_whitespace().map(str::to_string);
    Cmd {
        program: words.next().unwrap_or_default(),
        args: words.collect(),
        env: Vec::new(),
        folder: None,
        quiet: false,
    }
}

impl Cmd {
    pub fn env(mut self, key: &str, value: impl Into<String>) -> Self {
        self.env.push((key.to_string(), value.into()));
        self
    }

    /// One more argument, which may contain blanks.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Runs in this folder instead of ours.
    pub fn folder(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_path_buf());
        self
    }

    /// Does not print the command line.
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Runs with our own stdout and stderr. `Err` holds the command line and how it ended.
    pub fn run(&self) -> Result<(), String> {
        let start = self.announce();
        let status = self.command().status();
        self.record(start);
        self.check(status)
    }

    fn announce(&self) -> Instant {
        if !self.quiet {
            println!("$ {self}");
        }
        Instant::now()
    }

    fn record(&self, start: Instant) {
        let words = [self.program.as_str()].into_iter();
        let words: Vec<&str> = words.chain(self.args.iter().map(String::as_str)).collect();
        times::record(
            kind(&words),
            start.elapsed().as_secs_f64(),
            &words.join(" "),
        );
    }

    /// Runs and hands each line of stdout to `on_line`; stderr is ours.
    pub fn run_lines(&self, mut on_line: impl FnMut(&str)) -> Result<(), String> {
        let start = self.announce();
        let mut child = self
            .command()
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|err| format!("{self}\n  could not start: {err}"))?;
        if let Some(stdout) = child.stdout.take() {
            // A test may print bytes that are not UTF-8, at which `lines()` would stop.
            let mut reader = BufReader::new(stdout);
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line), Ok(read) if read > 0) {
                on_line(String::from_utf8_lossy(&line).trim_end());
                line.clear();
            }
        }
        let status = child.wait();
        self.record(start);
        self.check(status)
    }

    /// Whether it starts and ends well; prints nothing.
    pub fn succeeds(&self) -> bool {
        self.command()
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// Its stdout, or `None` where it cannot be run or fails; prints nothing.
    pub fn stdout(&self) -> Option<String> {
        let output = self.command().stderr(Stdio::null()).output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn command(&self) -> Command {
        // The very cargo that started us, rather than the first one on PATH.
        let program = match self.program.as_str() {
            "cargo" => std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string()),
            other => other.to_string(),
        };
        let mut command = Command::new(program);
        command.args(&self.args).stdin(Stdio::null());
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command
    }

    fn check(&self, status: std::io::Result<ExitStatus>) -> Result<(), String> {
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{self}\n  ended with {status}")),
            Err(err) => Err(format!("{self}\n  could not start: {err}")),
        }
    }
}

impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, value) in &self.env {
            write!(f, "{key}={} ", quoted(value))?;
        }
        write!(f, "{}", self.program)?;
        self.args
            .iter()
            .try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
}

/// The kind of work of a command: with these words, cargo only compiles.
fn kind(words: &[&str]) -> Kind {
    const COMPILE: [&str; 6] = ["build", "check", "clippy", "doc", "install", "--no-run"];
    match words.first() {
        Some(&"cargo") if words.iter().any(|word| COMPILE.contains(word)) => Kind::Compile,
        _ => Kind::Run,
    }
}

/// `word` as a shell needs it to be written.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_prints_as_a_shell_takes_it() {
        let doc = cmd("cargo doc --no-deps").env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(
            doc.to_string(),
            "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps"
        );
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn compiling_and_running_are_distinguished() {
        let kind = |line: &str| kind(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(kind("cargo test --workspace --no-run"), Kind::Compile);
        assert_eq!(kind("cargo fuzz build --fuzz-dir a"), Kind::Compile);
        assert_eq!(kind("cargo test --doc"), Kind::Run);
        assert_eq!(kind("node build"), Kind::Run);
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let err = cmd("no-such-program-here --flag").run().unwrap_err();
        assert!(err.contains("no-such-program-here --flag"), "{err}");
    }

    #[test]
    fn lines_come_one_by_one_and_the_exit_code_is_kept() {
        let mut lines = Vec::new();
        cmd("rustc --version --verbose")
            .run_lines(|line| lines.push(line.to_string()))
            .unwrap();
        assert!(lines.len() > 1, "{lines:?}");
        if cfg!(unix) {
            assert!(cmd("false").run_lines(|_| ()).is_err());
        }
    }
}
