//! `candle-dvm serve` over nostr-rs-relay, which takes events of those alone that have said who they are (NIP-42).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::nostr::{authenticated, customers, tools, with_service, PORT};
use crate::command::cmd;
use crate::files::{absolute, fresh};
use crate::install;
use crate::services::{pip, wait_for_port, Process};

const RELAY: &str = "nostr-rs-relay --version 0.8.12";
/// The protobuf compiler that its build calls, and what `admission.py` needs.
const GRPC: &str = "grpcio-tools==1.85.1";
const ADMISSION_PORT: u16 = 16970;

/// The relay.
pub fn ahead() -> Result<(), String> {
    install_relay(&tools()?)?;
    Ok(())
}

/// Builds the relay under `target/nostr`, and has the customers of the step `nostr` send requests there, after one that it has to refuse.
pub fn auth() -> Result<String, String> {
    let folder = with_service()?;
    let started = Instant::now();
    let program = install_relay(&folder)?;
    let built = started.elapsed().as_secs();
    let state = fresh(folder.join("state-auth"))?;
    let mut admission = Command::new(folder.join("venv/bin/python"));
    admission
        .arg(absolute("xtask/nostr/admission.py")?)
        .arg(ADMISSION_PORT.to_string());
    let _admission = Process::start(&mut admission, &state.join("admission.log"))?;
    // The relay accepts every event until its admission service answers.
    wait_for_port(ADMISSION_PORT)?;
    let config = state.join("relay.toml");
    std::fs::write(&config, relay_config(&state))
        .map_err(|err| format!("{}: {err}", config.display()))?;
    let mut relay = Command::new(program);
    relay.arg("--config").arg(&config).env("RUST_LOG", "info");
    let started = Instant::now();
    let public = customers(&folder, &state, &mut relay, &["strangers-are-refused"])?;
    let asked = started.elapsed().as_secs();
    // It writes the first digits of a key.
    let known = authenticated(&state, "client is authenticated: ", &public[..8])?;
    Ok(format!(
        "the relay was installed in {built} s; nostr-tools and NDK had results in {asked} s over {known} authenticated connections, and \
         somebody who did not say who they are was refused"
    ))
}

/// Returns the program. Unoptimised: it has to handle a few events, and building it takes most of the step.
fn install_relay(folder: &Path) -> Result<PathBuf, String> {
    let protoc = folder.join("venv/bin/python-grpc-tools-protoc");
    if !protoc.is_file() {
        pip(folder, GRPC)?;
    }
    let program = folder.join("bin/nostr-rs-relay");
    if program.is_file() {
        return Ok(program);
    }
    install::library("OpenSSL's headers", "openssl", "pkg-config libssl-dev")?;
    let build = folder.join("build");
    // Not `--locked`: that names a `time` which today's compiler refuses.
    cmd(&format!(
        "cargo install {RELAY} --bin nostr-rs-relay --debug --root {} --target-dir {}",
        folder.display(),
        build.display()
    ))
    .env("PROTOC", protoc.display().to_string())
    .env("CARGO_PROFILE_DEV_DEBUG", "0")
    .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
    .env("CARGO_PROFILE_DEV_INCREMENTAL", "false")
    .run()?;
    // The program is all that is needed of a gigabyte.
    let _ = std::fs::remove_dir_all(build);
    Ok(program)
}

fn relay_config(state: &Path) -> String {
    format!(
        "[info]\nrelay_url = \"ws://127.0.0.1:{PORT}\"\n\
         [database]\ndata_directory = {:?}\n\
         [network]\naddress = \"127.0.0.1\"\nport = {PORT}\n\
         [authorization]\nnip42_auth = true\n\
         [grpc]\nevent_admission_server = \"http://127.0.0.1:{ADMISSION_PORT}\"\n",
        state.display().to_string()
    )
}
