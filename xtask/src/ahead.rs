//! What one step alone builds is built while the steps before it run, with what they leave of the processors: a program of this name goes
//! through these builds at the lowest priority.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::command::cmd;
use crate::steps::Step;
use crate::times;

/// The output of the builds, and a file per step with the reason for a failed build, empty after success.
const FOLDER: &str = "target/ahead";
const LOG: &str = "log";

/// The background builds for later steps. They end when this value is dropped.
pub struct Ahead {
    process: Child,
    steps: Vec<&'static str>,
}

impl Ahead {
    /// Starts what `steps` can have built before they run; `None` where that is nothing.
    pub fn start(steps: &[&'static Step]) -> Result<Option<Self>, String> {
        let steps = steps.iter().filter(|step| step.ahead.is_some());
        let steps: Vec<&'static str> = steps.map(|step| step.name).collect();
        if steps.is_empty() {
            return Ok(None);
        }
        let failed = |err: std::io::Error| format!("building ahead: {err}");
        // Results of an earlier run would pass for this one's.
        let _ = fs::remove_dir_all(FOLDER);
        fs::create_dir_all(FOLDER).map_err(failed)?;
        let log = File::create(Path::new(FOLDER).join(LOG)).map_err(failed)?;
        let this = std::env::current_exe().map_err(failed)?;
        let mut command = if cmd("nice true").succeeds() {
            let mut nice = Command::new("nice");
            nice.args(["-n", "19"]).arg(this);
            nice
        } else {
            Command::new(this)
        };
        command.arg("ahead").args(&steps).stdin(Stdio::null());
        command.stdout(log.try_clone().map_err(failed)?).stderr(log);
        let process = command.spawn().map_err(failed)?;
        println!("meanwhile builds for {}", steps.join(", "));
        Ok(Some(Self { process, steps }))
    }

    /// Waits until what was built for `step` is there. `Err` says why it will not be, after printing what the builds printed.
    pub fn wait(&mut self, step: &Step) -> Result<(), String> {
        if !self.steps.contains(&step.name) {
            return Ok(());
        }
        loop {
            let ended = self.process.try_wait().ok().flatten();
            let reason = match (fs::read_to_string(result(step.name)), ended) {
                (Ok(reason), _) if reason.is_empty() => return Ok(()),
                (Ok(reason), _) => reason,
                (Err(_), Some(status)) => format!("building ahead ended with {status}"),
                (Err(_), None) => {
                    std::thread::sleep(Duration::from_millis(200));
                    continue;
                }
            };
            let log = Path::new(FOLDER).join(LOG);
            println!("{}", fs::read_to_string(log).unwrap_or_default());
            return Err(reason);
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // A running compiler ends on its own.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Builds for each of `steps`, and leaves word of it where [`Ahead::wait`] looks.
pub fn run(steps: &[&Step]) -> Result<(), String> {
    let commit = times::commit();
    for step in steps {
        let reason = match step.ahead {
            Some(build) => build().err().unwrap_or_default(),
            None => String::new(),
        };
        times::save(&commit, step.name, true)?;
        // Not there before it is whole.
        let (to, new) = (result(step.name), result("new"));
        let written = fs::write(&new, reason).and_then(|()| fs::rename(&new, &to));
        written.map_err(|err| format!("{}: {err}", to.display()))?;
    }
    Ok(())
}

fn result(step: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{step}.result"))
}
