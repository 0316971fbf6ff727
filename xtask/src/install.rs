//! The tools that the tests need: installed if permitted, otherwise named in an error.
//!
//! As root, apt-get installs Debian's packages; CI relies on that. [`NO_INSTALL`] turns this off.

use std::fs::File;

use crate::command::cmd;

/// With this variable set to 1, nothing is installed outside the repository.
pub const NO_INSTALL: &str = "CANDLE_NO_INSTALL";

/// The first of `programs` that runs here, after installing Debian's `packages` where none does and we may. `Err` says how to get `what`.
pub fn program(
    what: &str,
    programs: &[&'static str],
    packages: &str,
) -> Result<&'static str, String> {
    let runs = |name: &&&str| cmd(&format!("{name} --version")).succeeds();
    found(what, packages, || programs.iter().find(runs).copied())
}

/// As [`program`], for a C library that `pkg-config` knows by `name`.
pub fn library(what: &str, name: &str, packages: &str) -> Result<(), String> {
    let known = cmd(&format!("pkg-config --exists {name}"));
    found(what, packages, || known.succeeds().then_some(()))
}

/// The result of `look`; if that is `None`, Debian's `packages` are installed first, if permitted. `Err` says how to get `what`.
pub fn found<T>(what: &str, packages: &str, look: impl Fn() -> Option<T>) -> Result<T, String> {
    if look().is_none() && may_install() {
        install(packages)?;
    }
    look().ok_or_else(|| {
        format!("missing {what}: on Debian `sudo apt-get install {packages}` brings it")
    })
}

/// The path of a program, for callers that do not search `PATH` themselves.
pub fn path_of(program: &str) -> Result<String, String> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders)
        .map(|folder| folder.join(format!("{program}{}", std::env::consts::EXE_SUFFIX)))
        .find(|path| path.is_file());
    found
        .map(|path| path.display().to_string())
        .ok_or_else(|| format!("{program} is in no folder of PATH"))
}

pub fn install(packages: &str) -> Result<(), String> {
    println!(
        "as root: apt-get installs {packages} on this machine ({NO_INSTALL}=1 turns this off)"
    );
    alone(|| {
        // Packages of another architecture: `package:architecture`.
        for (_, architecture) in packages.split(' ').filter_map(|name| name.split_once(':')) {
            cmd(&format!("dpkg --add-architecture {architecture}")).run()?;
        }
        cmd("apt-get update").run()?;
        cmd(&format!(
            "apt-get install -y --no-install-recommends {packages}"
        ))
        .env("DEBIAN_FRONTEND", "noninteractive")
        .run()
    })
}

/// Runs `task` while no other of our processes runs one: what builds ahead installs things as the steps do.
pub fn alone<T>(task: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let path = std::env::temp_dir().join("candle-xtask.lock");
    let failed = |err: std::io::Error| format!("{}: {err}", path.display());
    let file = File::create(&path).map_err(failed)?;
    file.lock().map_err(failed)?;
    task()
}

/// Whether programs may be installed outside the repository.
pub fn may_change_machine() -> bool {
    std::env::var_os(NO_INSTALL).is_none_or(|value| value.is_empty() || value == "0")
}

pub fn may_install() -> bool {
    if !may_change_machine() {
        return false;
    }
    let root = cmd("id -u").stdout().is_some_and(|id| id.trim() == "0");
    root && cmd("apt-get --version").succeeds()
}
