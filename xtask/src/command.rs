//! A child process whose failure can be reported as a line to paste into a shell.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};

/// A program with its arguments and the environment that it gets on top of ours.
pub struct Cmd {
    program: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

/// A command by its words; a word may not contain blanks.
pub fn cmd(line: &str) -> Cmd {
    let mut words = line.split_whitespace().map(str::to_string);
    Cmd {
        program: words.next().unwrap_or_default(),
        args: words.collect(),
        env: Vec::new(),
    }
}

impl Cmd {
    pub fn env(mut self, key: &str, value: impl Into<String>) -> Self {
        self.env.push((key.to_string(), value.into()));
        self
    }

    /// Runs with our own stdout and stderr. `Err` holds the command line and how it ended.
    pub fn run(&self) -> Result<(), String> {
        println!("$ {self}");
        let status = self.command().status();
        self.check(status)
    }

    /// Runs and hands each line of stdout to `on_line`; stderr is ours.
    pub fn run_lines(&self, mut on_line: impl FnMut(&str)) -> Result<(), String> {
        println!("$ {self}");
        let mut child = self
            .command()
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|err| format!("{self}\n  could not start: {err}"))?;
        if let Some(stdout) = child.stdout.take() {
            // A test may print bytes that are no UTF-8, so `lines()` would end too early.
            let mut reader = BufReader::new(stdout);
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line), Ok(read) if read > 0) {
                on_line(String::from_utf8_lossy(&line).trim_end());
                line.clear();
            }
        }
        self.check(child.wait())
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
