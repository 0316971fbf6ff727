//! The workspace for systems that this machine need not be.

use crate::command::cmd;
use crate::files::absolute;
use crate::targets;
use crate::testing::BACKENDS;

/// macOS on Apple's processors, and Windows: where Metal and DX12 are.
const TARGETS: [&str; 2] = ["aarch64-apple-darwin", "x86_64-pc-windows-msvc"];

/// Apple's additional backend.
const METAL: &str =
    "--features candle-core/metal,candle-nn/metal,candle-transformers/metal,candle-dvm/metal";

/// Checks all packages for Windows, whose standard library and system calls differ most from Linux's.
pub fn cross() -> Result<String, String> {
    check("x86_64-pc-windows-msvc", "--lib --bins")
}

/// Checks all packages with all of their targets, tests and examples too, for both systems.
pub fn long() -> Result<String, String> {
    for target in TARGETS {
        check(target, "--all-targets")?;
    }
    Ok(format!("{}, but for code in C", TARGETS.join(" and ")))
}

fn check(target: &str, targets: &str) -> Result<String, String> {
    targets::add(target)?;
    let features = if target.contains("apple") {
        format!("{BACKENDS} {METAL}")
    } else {
        BACKENDS.to_string()
    };
    let mut check = cmd(&format!(
        "cargo check --workspace {targets} {features} --target {target}"
    ));
    if !is_here(target) {
        let target = target.replace('-', "_");
        check = check.env(&format!("CC_{target}"), "true");
        check = check.env(&format!("AR_{target}"), archiver()?);
    }
    check.run()?;
    Ok(format!("{target}, but for code in C"))
}

/// A check does not link, so the C code of build scripts (for secp256k1 and ring) is not needed, and no machine has the headers of all
/// systems. `true` replaces the compiler, and this program the archiver, whose output build scripts copy.
const ARCHIVER: &str =
    "#!/bin/sh\nfor word; do case \"$word\" in -out:*) : > \"${word#-out:}\" ;; esac; done\n";

/// The path of [`ARCHIVER`].
fn archiver() -> Result<String, String> {
    let path = absolute("target/cross-archiver.sh")?;
    let failed = |err: std::io::Error| format!("{}: {err}", path.display());
    let _ = std::fs::create_dir_all("target");
    std::fs::write(&path, ARCHIVER).map_err(failed)?;
    let path = path.display().to_string();
    cmd(&format!("chmod +x {path}")).run()?;
    Ok(path)
}

/// Whether a target's own compiler can be expected here.
fn is_here(target: &str) -> bool {
    (cfg!(target_os = "macos") && target.contains("apple"))
        || (cfg!(windows) && target.contains("windows"))
}
