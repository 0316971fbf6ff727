//! Programs that run in the background of a step: relays, servers, the service itself.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::cmd;

/// A program that runs until this value is dropped.
pub struct Process(Child);

impl Process {
    /// Starts `command` and writes what it prints to `log`.
    pub fn start(command: &mut Command, log: &Path) -> Result<Self, String> {
        let file = std::fs::File::create(log).map_err(|err| format!("{}: {err}", log.display()))?;
        let copy = file.try_clone().map_err(|err| err.to_string())?;
        let child = command
            .stdin(Stdio::null())
            .stdout(copy)
            .stderr(file)
            .spawn();
        child.map(Self).map_err(|err| format!("{command:?}: {err}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGTERM lets it end its own children. It may have ended already.
        if !cmd(&format!("kill -TERM {}", self.0.id())).succeeds() {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

/// Waits at most 30 s until a program listens on a port of 127.0.0.1.
pub fn wait_for_port(port: u16) -> Result<(), String> {
    let end = Instant::now() + Duration::from_secs(30);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() >= end {
            return Err(format!("nothing listens on 127.0.0.1:{port} after 30 s"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Installs a package from PyPI into the virtual environment `venv` of a folder.
pub fn pip(folder: &Path, package: &str) -> Result<(), String> {
    let pip = folder.join("venv/bin/pip");
    cmd(&format!("{} install --quiet {package}", pip.display())).run()
}
