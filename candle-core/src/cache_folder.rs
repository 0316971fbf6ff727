//! The folder in which a backend keeps compiled kernels between runs of a program.

use std::path::{Path, PathBuf};

/// The folder that the environment variable names, or `candle/<name>` in the user's cache folder. `None` if the variable is `0`, or if the
/// user's cache folder is unknown; `1` has the same effect as an unset variable.
pub(crate) fn cache_folder(variable: &str, name: &str) -> Option<PathBuf> {
    let value = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty());
    match value(variable) {
        Some(value) if value == "0" => return None,
        Some(value) if value != "1" => return Some(value.into()),
        _ => {}
    }
    let caches = if cfg!(windows) {
        PathBuf::from(value("LOCALAPPDATA")?)
    } else if cfg!(target_vendor = "apple") {
        Path::new(&value("HOME")?).join("Library/Caches")
    } else {
        match value("XDG_CACHE_HOME") {
            Some(dir) => PathBuf::from(dir),
            None => Path::new(&value("HOME")?).join(".cache"),
        }
    };
    Some(caches.join("candle").join(name))
}
