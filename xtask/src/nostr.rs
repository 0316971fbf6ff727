//! `candle-dvm serve` over relays and with customers that nobody here wrote, and killed often.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::cmd;
use crate::steps::WEBGPU;

const RELAY: &str = "nostr-relay==1.14";
const CUSTOMERS: [&str; 3] = ["nostr-tools@2.25.2", "@nostr-dev-kit/ndk@3.0.3", "ws@8"];
const PORT: u16 = 16969;
/// The service, and the five customers of the script.
const AUTHENTICATED: usize = 6;
const JOBS: &str = "200";
const KILLS: &str = "20";

/// Installs the relay (PyPI) and the customers (npm) under `target/nostr`, has the customers ask for jobs, then kills the service
/// twenty times while two hundred jobs run over two of these relays, which are killed as well.
pub fn nostr() -> Result<String, String> {
    let folder = install()?;
    let started = Instant::now();
    let known = customers(&folder)?;
    let asked = started.elapsed().as_secs();
    cmd(&format!(
        "cargo test --workspace {WEBGPU} --test dvm nostr::crash -- --nocapture"
    ))
    .env("CRASH_JOBS", JOBS)
    .env("CRASH_KILLS", KILLS)
    .env(
        "NOSTR_RELAY_VENV",
        folder.join("venv").display().to_string(),
    )
    .run()?;
    Ok(format!(
        "nostr-tools and NDK had results in {asked} s over {known} authenticated connections; {JOBS} jobs had one result each, over \
         {KILLS} kills and relays that came and went"
    ))
}

fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|err| format!("{path}: {err}"))
}

/// What is not there yet, and the service itself.
fn install() -> Result<PathBuf, String> {
    let folder = absolute("target/nostr")?;
    std::fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    let venv = folder.join("venv");
    if !venv.join("bin/nostr-relay").is_file() {
        cmd(&format!("python3 -m venv {}", venv.display())).run()?;
        let pip = venv.join("bin/pip").display().to_string();
        cmd(&format!("{pip} install --quiet {RELAY}")).run()?;
    }
    if !folder.join("node_modules").is_dir() {
        cmd(&format!(
            "npm install --no-audit --no-fund --prefix {} {}",
            folder.display(),
            CUSTOMERS.join(" ")
        ))
        .run()?;
    }
    cmd(&format!(
        "cargo build --workspace {WEBGPU} --bin candle-dvm"
    ))
    .run()?;
    Ok(folder)
}

/// Starts a relay and the service, and has the customers ask for jobs. Returns how many connections the relay has authenticated.
fn customers(folder: &Path) -> Result<usize, String> {
    let state = folder.join("state");
    // A relay and a journal without a past.
    let _ = std::fs::remove_dir_all(&state);
    std::fs::create_dir_all(&state).map_err(|err| format!("{}: {err}", state.display()))?;
    let relay_log = state.join("relay.log");
    let mut relay = Command::new(absolute("xtask/nostr/relay.sh")?);
    relay
        .args([&folder.join("venv"), &state])
        .arg(PORT.to_string());
    let _relay = Process::start(&mut relay, &relay_log)?;
    wait_for_port()?;
    let program = absolute("target/debug/candle-dvm")?.display().to_string();
    let key = state.join("key").display().to_string();
    let url = format!("ws://127.0.0.1:{PORT}");
    cmd(&format!("{program} key new --key-file {key}")).run()?;
    let public = cmd(&format!("{program} key show-public --hex --key-file {key}"))
        .stdout()
        .ok_or("candle-dvm key show-public failed")?;
    let public = public.trim();
    let mut serve = Command::new(&program);
    serve
        .args(["serve", "--device", "cpu"])
        .args(["--key-file", &key, "--relay", &url])
        .arg("--data-dir")
        .arg(state.join("data"));
    let _serve = Process::start(&mut serve, &state.join("serve.log"))?;
    let script = absolute("xtask/nostr/customers.mjs")?;
    let status = Command::new("node")
        .arg(&script)
        .args([&url, public])
        .current_dir(folder)
        .status()
        .map_err(|err| format!("node: {err}"))?;
    let logs = format!("the logs are in {}", state.display());
    if !status.success() {
        return Err(format!("{} ended with {status}; {logs}", script.display()));
    }
    // It has no answer for those that it knows now; its log is what tells.
    let log = std::fs::read_to_string(&relay_log)
        .map_err(|err| format!("{}: {err}", relay_log.display()))?;
    let known: Vec<&str> = log
        .lines()
        .filter_map(|line| line.split_once(" Authenticated ").map(|(_, who)| who))
        .collect();
    let service = known.iter().any(|who| who.starts_with(public));
    if !service || known.len() < AUTHENTICATED {
        return Err(format!(
            "the relay authenticated {} connections, expected the service's and those of five customers; {logs}",
            known.len()
        ));
    }
    Ok(known.len())
}

fn wait_for_port() -> Result<(), String> {
    let end = Instant::now() + Duration::from_secs(30);
    while TcpStream::connect(("127.0.0.1", PORT)).is_err() {
        if Instant::now() >= end {
            return Err(format!("the relay does not listen on 127.0.0.1:{PORT}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// A program that runs until this is dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command, log: &PathBuf) -> Result<Self, String> {
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
        // Politely, so that it ends its own children. It may have ended by itself.
        if !cmd(&format!("kill -TERM {}", self.0.id())).succeeds() {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}
