//! What the tests need on a machine: installed where we may, named where we may not.
//!
//! As root, Debian's packages are installed by apt-get, which CI relies on. [`NO_INSTALL`] turns this off.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::command::cmd;

/// With this variable set to 1, nothing is installed outside the repository.
pub const NO_INSTALL: &str = "CANDLE_NO_INSTALL";

const LOADER: &str = "libvulkan.so.1";
const PACKAGES: &str = "mesa-vulkan-drivers libvulkan1";

/// Checks for rustfmt, clippy and, on Linux, a Vulkan loader and driver.
///
/// As root with apt-get, a missing Vulkan is installed. `Err` names what is missing and the
/// command that brings it.
pub fn setup() -> Result<String, String> {
    let mut missing = Vec::new();
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !cmd(&format!("cargo {subcommand} --version")).succeeds() {
            missing.push(format!(
                "{component}: install it with `rustup component add {component}`"
            ));
        }
    }
    let mut note = String::new();
    // macOS and Windows bring Metal and DirectX 12 with them.
    if cfg!(target_os = "linux") {
        let env = |name: &str| std::env::var_os(name);
        let has_driver = driver_paths(&env).iter().any(|path| holds_manifest(path));
        match forced_drivers(&env) {
            // Nothing that we install would be looked at.
            Some((name, value)) if !has_driver => missing.push(format!(
                "a Vulkan driver: no file that {name}={value:?} names exists; unset {name}, or set \
                 it to a driver's .json file"
            )),
            _ if has_driver && has_loader() => {}
            _ if missing.is_empty() && may_install() => {
                println!("no Vulkan loader ({LOADER}) with a driver (vulkan/icd.d/*.json) here yet");
                install(PACKAGES)?;
                note = format!("installed {PACKAGES}");
            }
            _ => missing.push(format!(
                "{}: on Debian and Ubuntu, `sudo apt-get update && sudo apt-get install -y \
                 --no-install-recommends {PACKAGES}` brings both; a GPU vendor's driver does as well",
                lacking_vulkan(has_loader(), has_driver)
            )),
        }
    }
    if missing.is_empty() {
        Ok(note)
    } else {
        Err(format!("missing\n  {}", missing.join("\n  ")))
    }
}

fn lacking_vulkan(has_loader: bool, has_driver: bool) -> String {
    let loader = format!("the Vulkan loader ({LOADER})");
    let driver = "a Vulkan driver (a .json file in a vulkan/icd.d folder)";
    match (has_loader, has_driver) {
        (false, false) => format!("{loader} and {driver}"),
        (false, true) => loader,
        _ => driver.to_string(),
    }
}

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

/// What `look` finds, after installing Debian's `packages` where that is nothing and we may. `Err` says how to get `what`.
pub fn found<T>(what: &str, packages: &str, look: impl Fn() -> Option<T>) -> Result<T, String> {
    if look().is_none() && may_install() {
        install(packages)?;
    }
    look().ok_or_else(|| {
        format!("missing {what}: on Debian `sudo apt-get install {packages}` brings it")
    })
}

/// Where a program lies, for those who do not look through `PATH` themselves.
pub fn path_of(program: &str) -> Result<String, String> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders)
        .map(|folder| folder.join(format!("{program}{}", std::env::consts::EXE_SUFFIX)))
        .find(|path| path.is_file());
    found
        .map(|path| path.display().to_string())
        .ok_or_else(|| format!("{program} is in no folder of PATH"))
}

fn install(packages: &str) -> Result<(), String> {
    println!(
        "as root: apt-get installs {packages} on this machine ({NO_INSTALL}=1 turns this off)"
    );
    alone(|| {
        // Of another machine: `package:architecture`.
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

fn may_install() -> bool {
    if !may_change_machine() {
        return false;
    }
    let root = cmd("id -u").stdout().is_some_and(|id| id.trim() == "0");
    root && cmd("apt-get --version").succeeds()
}

fn has_loader() -> bool {
    let arch = std::env::consts::ARCH;
    let usual = [
        "/usr/lib".to_string(),
        "/usr/lib64".to_string(),
        "/usr/local/lib".to_string(),
        format!("/usr/lib/{arch}-linux-gnu"),
        format!("/usr/local/lib/{arch}-linux-gnu"),
    ];
    let own = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::split_paths(&own)
        .chain(usual.iter().map(PathBuf::from))
        .any(|folder| folder.join(LOADER).exists())
        // Folders that only the dynamic linker's configuration knows.
        || ["ldconfig -p", "/sbin/ldconfig -p"]
            .iter()
            .filter_map(|line| cmd(line).stdout())
            .any(|known| known.contains(LOADER))
}

/// The variable that tells the loader which drivers to take instead of searching.
fn forced_drivers(env: &dyn Fn(&str) -> Option<OsString>) -> Option<(&'static str, OsString)> {
    // The second is the older name; the loader reads it when the first is not set.
    ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"]
        .into_iter()
        .find_map(|name| {
            env(name)
                .filter(|value| !value.is_empty())
                .map(|value| (name, value))
        })
}

/// The files and folders in which the Vulkan loader looks for drivers, in its order.
fn driver_paths(env: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    if let Some((_, value)) = forced_drivers(env) {
        return std::env::split_paths(&value).collect();
    }
    let home = PathBuf::from(env("HOME").unwrap_or_default());
    let one = |name: &str, under_home: &str| match env(name) {
        Some(value) => PathBuf::from(value),
        None => home.join(under_home),
    };
    let many = |name: &str, fallback: &str| {
        let value = env(name).unwrap_or_else(|| fallback.into());
        std::env::split_paths(&value).collect::<Vec<_>>()
    };
    let mut roots = vec![one("XDG_CONFIG_HOME", ".config")];
    roots.extend(many("XDG_CONFIG_DIRS", "/etc/xdg"));
    roots.push(PathBuf::from("/usr/local/etc"));
    roots.push(PathBuf::from("/etc"));
    roots.push(one("XDG_DATA_HOME", ".local/share"));
    roots.extend(many("XDG_DATA_DIRS", "/usr/local/share:/usr/share"));

    let added = env("VK_ADD_DRIVER_FILES").unwrap_or_default();
    std::env::split_paths(&added)
        .chain(roots.iter().map(|root| root.join("vulkan/icd.d")))
        .collect()
}

/// Whether `path` is a driver's manifest or a folder with one in it.
fn holds_manifest(path: &Path) -> bool {
    if path.is_file() {
        return true;
    }
    let Ok(entries) = std::fs::read_dir(path) else {
        return false;
    };
    entries
        .flatten()
        .any(|entry| entry.path().extension().is_some_and(|ext| ext == "json"))
}

// The folders are Linux'.
#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn paths(vars: &[(&str, &str)]) -> Vec<String> {
        let env = |name: &str| {
            let var = vars.iter().find(|(key, _)| *key == name);
            var.map(|(_, value)| OsString::from(value))
        };
        let paths = driver_paths(&env);
        paths
            .iter()
            .map(|path| path.display().to_string())
            .collect()
    }

    #[test]
    fn drivers_named_by_hand_replace_the_search() {
        let old = ("VK_ICD_FILENAMES", "/a.json:/b.json");
        assert_eq!(paths(&[old]), ["/a.json", "/b.json"]);
        assert_eq!(paths(&[old, ("VK_DRIVER_FILES", "/c.json")]), ["/c.json"]);
    }

    #[test]
    fn the_search_follows_the_xdg_folders() {
        let found = paths(&[("HOME", "/home/me"), ("XDG_DATA_DIRS", "/opt/share")]);
        assert!(found.contains(&"/home/me/.config/vulkan/icd.d".to_string()));
        assert!(found.contains(&"/opt/share/vulkan/icd.d".to_string()));
        assert!(!found.contains(&"/usr/share/vulkan/icd.d".to_string()));
        assert!(paths(&[]).contains(&"/usr/share/vulkan/icd.d".to_string()));
    }
}
