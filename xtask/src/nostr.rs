//! `candle-dvm serve` over a relay and with customers that nobody here wrote, and killed often.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::cmd;
use crate::steps::WEBGPU;

const RELAY: &str = "nostr-relay==1.14";
const CUSTOMERS: [&str; 3] = ["nostr-tools@2.25.2", "@nostr-dev-kit/ndk@3.0.3", "ws@8"];
const PORT: u16 = 16969;
const JOBS: &str = "200";
const KILLS: &str = "20";

/// Installs the relay (PyPI) and the customers (npm) under `target/nostr`, has the customers ask for jobs, then kills the service
/// twenty times while two hundred jobs run over two of these relays, which are killed as well.
pub fn nostr() -> Result<String, String> {
    let folder = std::path::absolute("target/nostr").map_err(|err| err.to_string())?;
    std::fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    install(&folder)?;
    cmd(&format!(
        "cargo build --workspace {WEBGPU} --bin candle-dvm"
    ))
    .run()?;
    let started = Instant::now();
    customers(&folder)?;
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
        "nostr-tools and NDK had results in {asked} s; {JOBS} jobs had one result each, over {KILLS} kills and relays that came and went"
    ))
}

fn install(folder: &Path) -> Result<(), String> {
    let venv = folder.join("venv");
    let pip = venv.join("bin/pip").display().to_string();
    if !venv.join("bin/nostr-relay").is_file() {
        cmd(&format!("python3 -m venv {}", venv.display())).run()?;
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
    Ok(())
}

fn customers(folder: &Path) -> Result<(), String> {
    let state = folder.join("state");
    // A relay and a journal without a past.
    let _ = std::fs::remove_dir_all(&state);
    std::fs::create_dir_all(&state).map_err(|err| format!("{}: {err}", state.display()))?;
    let script = std::path::absolute("xtask/nostr/relay.sh").map_err(|err| err.to_string())?;
    let mut relay = Command::new(script);
    relay
        .args([&folder.join("venv"), &state])
        .arg(PORT.to_string());
    let _relay = Process::start(&mut relay, &state.join("relay.log"))?;
    wait_for_port()?;
    let program = std::path::absolute("target/debug/candle-dvm").map_err(|err| err.to_string())?;
    let key = state.join("key").display().to_string();
    let program = program.display().to_string();
    let url = format!("ws://127.0.0.1:{PORT}");
    cmd(&format!("{program} key new --key-file {key}")).run()?;
    let public = cmd(&format!("{program} key show-public --hex --key-file {key}"))
        .stdout()
        .ok_or("candle-dvm key show-public failed")?;
    let mut serve = Command::new(&program);
    serve
        .args([
            "serve",
            "--device",
            "cpu",
            "--key-file",
            &key,
            "--relay",
            &url,
        ])
        .arg("--data-dir")
        .arg(state.join("data"));
    let _serve = Process::start(&mut serve, &state.join("serve.log"))?;
    let script = std::path::absolute("xtask/nostr/customers.mjs").map_err(|err| err.to_string())?;
    let status = Command::new("node")
        .arg(&script)
        .args([&url, public.trim()])
        .current_dir(folder)
        .status()
        .map_err(|err| format!("node: {err}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!(
            "{} ended with {status}; the logs are in {}",
            script.display(),
            state.display()
        )),
    }
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
