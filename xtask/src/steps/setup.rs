//! A Vulkan driver, rustfmt and clippy, which most steps need.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::command::cmd;
use crate::install::{install, may_install};

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
            // The variable would hide any driver that we install.
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
