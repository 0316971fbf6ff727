//! `candle-dvm serve` with independent relays and customers, and killed often.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::command::cmd;
use crate::files::{absolute, built, create, fresh};
use crate::install;
use crate::services::{pip, wait_for_port, Process};
use crate::testing::{self, Tests};

const RELAY: &str = "nostr-relay==1.14";
const CUSTOMERS: [&str; 3] = ["nostr-tools@2.25.2", "@nostr-dev-kit/ndk@3.0.3", "ws@8"];
/// The port of the relay.
pub const PORT: u16 = 16969;
/// The service, and the five customers of the script.
const AUTHENTICATED: usize = 6;
const RELAY_LOG: &str = "relay.log";

/// Installs the relay (PyPI) and the customers (npm) under `target/nostr`, has the customers ask for jobs, then kills the service
/// twenty times while two hundred jobs run over two of these relays, which are killed as well.
pub fn nostr() -> Result<String, String> {
    over_relays("40", "4")
}

/// The same with five times as many jobs and kills.
pub fn long() -> Result<String, String> {
    over_relays("200", "20")
}

fn over_relays(jobs: &str, kills: &str) -> Result<String, String> {
    let folder = with_service()?;
    let state = fresh(folder.join("state"))?;
    let mut relay = Command::new(absolute("xtask/nostr/relay.sh")?);
    relay
        .args([&folder.join("venv"), &state])
        .arg(PORT.to_string());
    let started = Instant::now();
    let public = customers(&folder, &state, &mut relay, &[])?;
    let asked = started.elapsed().as_secs();
    let known = authenticated(&state, " Authenticated ", &public)?;
    Tests {
        targets: "--test dvm",
        filter: "nostr::crash --nocapture",
        env: &[
            ("CRASH_JOBS", jobs),
            ("CRASH_KILLS", kills),
            (
                "NOSTR_RELAY_VENV",
                &folder.join("venv").display().to_string(),
            ),
        ],
        ..Tests::default()
    }
    .run()?;
    Ok(format!(
        "nostr-tools and NDK had results in {asked} s over {known} authenticated connections; {jobs} jobs had one result each, over \
         {kills} kills and relays that came and went"
    ))
}

/// The folder with the relay and the customers; the service is built too.
pub fn with_service() -> Result<PathBuf, String> {
    let folder = tools()?;
    testing::build_workspace()?;
    Ok(folder)
}

/// The folder with the relay and the customers, installed where they are not there yet.
pub fn tools() -> Result<PathBuf, String> {
    let folder = absolute("target/nostr")?;
    create(&folder)?;
    install::alone(|| install_tools(&folder))?;
    Ok(folder)
}

fn install_tools(folder: &Path) -> Result<(), String> {
    let venv = folder.join("venv");
    if !venv.join("bin/nostr-relay").is_file() {
        cmd(&format!("python3 -m venv {}", venv.display())).run()?;
        pip(folder, RELAY)?;
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

/// Starts a relay and the service, and has the customers ask for jobs, with what the script takes as `extra`. Returns the service's
/// public key.
pub fn customers(
    folder: &Path,
    state: &Path,
    relay: &mut Command,
    extra: &[&str],
) -> Result<String, String> {
    let _relay = Process::start(relay, &state.join(RELAY_LOG))?;
    wait_for_port(PORT)?;
    let program = built("candle-dvm")?.display().to_string();
    let key = state.join("key").display().to_string();
    let url = format!("ws://127.0.0.1:{PORT}");
    cmd(&format!("{program} key new --key-file {key}")).run()?;
    let public = cmd(&format!("{program} key show-public --hex --key-file {key}"))
        .stdout()
        .ok_or("candle-dvm key show-public failed")?;
    let public = public.trim().to_string();
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
        .args([&url, &public])
        .args(extra)
        .current_dir(folder)
        .status()
        .map_err(|err| format!("node: {err}"))?;
    if status.success() {
        Ok(public)
    } else {
        Err(format!(
            "{} ended with {status}; the logs are in {}",
            script.display(),
            state.display()
        ))
    }
}

/// Number of connections that the relay has authenticated: lines of its log with `mark`, followed by the key. It does not answer clients
/// that it authenticates; only its log shows them.
pub fn authenticated(state: &Path, mark: &str, service: &str) -> Result<usize, String> {
    let log = state.join(RELAY_LOG);
    let text = std::fs::read_to_string(&log).map_err(|err| format!("{}: {err}", log.display()))?;
    let known = text.lines().filter_map(|line| line.split_once(mark));
    let known: Vec<&str> = known.map(|(_, who)| who).collect();
    if !known.iter().any(|who| who.contains(service)) || known.len() < AUTHENTICATED {
        return Err(format!(
            "the relay authenticated {} connections, expected the service's and those of five customers; its log is {}",
            known.len(),
            log.display()
        ));
    }
    Ok(known.len())
}
