//! The workspace for systems that this machine need not be.

use std::path::Path;

use crate::command::cmd;
use crate::nostr;
use crate::setup;
use crate::steps::BACKENDS;

/// macOS on Apple's processors, and Windows: where Metal and DX12 are.
const TARGETS: [&str; 2] = ["aarch64-apple-darwin", "x86_64-pc-windows-msvc"];

/// What Apple's systems have beside the others' backends.
const METAL: &str =
    "--features candle-core/metal,candle-nn/metal,candle-transformers/metal,candle-dvm/metal";

/// Checks all packages with all of their targets, tests and examples too.
pub fn cross() -> Result<String, String> {
    for target in TARGETS {
        add(target)?;
        let features = match target.contains("apple") {
            true => format!("{BACKENDS} {METAL}"),
            false => BACKENDS.to_string(),
        };
        let mut check = cmd(&format!(
            "cargo check --workspace --all-targets {features} --target {target}"
        ));
        if !is_here(target) {
            let target = target.replace('-', "_");
            check = check.env(&format!("CC_{target}"), "true");
            check = check.env(&format!("AR_{target}"), archiver()?);
        }
        check.run()?;
    }
    Ok(format!("{}, but for code in C", TARGETS.join(" and ")))
}

/// A check links nothing, so what build scripts compile from C (for secp256k1 and ring) is not needed, and no machine has the headers of
/// all systems. `true` stands in for the compiler, and this program for the archiver, whose file build scripts copy.
const ARCHIVER: &str =
    "#!/bin/sh\nfor word; do case \"$word\" in -out:*) : > \"${word#-out:}\" ;; esac; done\n";

/// Where [`ARCHIVER`] is.
fn archiver() -> Result<String, String> {
    let path = nostr::absolute("target/cross-archiver.sh")?;
    let failed = |err: std::io::Error| format!("{}: {err}", path.display());
    let _ = std::fs::create_dir_all("target");
    std::fs::write(&path, ARCHIVER).map_err(failed)?;
    let path = path.display().to_string();
    cmd(&format!("chmod +x {path}")).run()?;
    Ok(path)
}

/// Has rustup bring a target's standard library where it is not there yet.
pub fn add(target: &str) -> Result<(), String> {
    if compiles_for("rustc", target) {
        return Ok(());
    }
    let add = format!("rustup target add {target}");
    if !setup::may_change_machine() {
        return Err(format!(
            "rustc has no standard library for {target}: `{add}` brings it"
        ));
    }
    println!(
        "a target is added to rustup's toolchain ({}=1 turns this off)",
        setup::NO_INSTALL
    );
    setup::alone(|| cmd(&add).run())?;
    if compiles_for("rustc", target) {
        return Ok(());
    }
    Err(format!(
        "rustc has no standard library for {target}, which `{add}` brings to rustup's"
    ))
}

/// Whether a compiler has a standard library for a target.
pub fn compiles_for(rustc: &str, target: &str) -> bool {
    let libraries = cmd(&format!("{rustc} --print target-libdir --target {target}")).stdout();
    libraries.is_some_and(|path| Path::new(path.trim()).is_dir())
}

/// Whether a target's own compiler can be expected here.
fn is_here(target: &str) -> bool {
    (cfg!(target_os = "macos") && target.contains("apple"))
        || (cfg!(windows) && target.contains("windows"))
}
