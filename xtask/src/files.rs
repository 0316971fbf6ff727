//! Folders that steps work in.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder with nothing in it, deleted when the value is dropped.
pub struct EmptyDir(pub PathBuf);

impl EmptyDir {
    /// # Errors
    /// When the folder cannot be created.
    pub fn new() -> Result<Self, String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("candle-xtask-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for EmptyDir {
    fn drop(&mut self) {
        // A folder left in the temporary directory does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `path`, which may not exist yet, from the root of the file system.
pub fn absolute(path: impl AsRef<Path>) -> Result<PathBuf, String> {
    let path = path.as_ref();
    std::path::absolute(path).map_err(|err| format!("{}: {err}", path.display()))
}

/// Creates `folder` with its parents, unless it exists.
pub fn create(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder)
        .map_err(|err| format!("cannot create {}: {err}", folder.display()))
}

/// `folder`, created and empty: for a relay's database or a journal.
pub fn fresh(folder: PathBuf) -> Result<PathBuf, String> {
    let _ = std::fs::remove_dir_all(&folder);
    create(&folder)?;
    Ok(folder)
}

/// Cargo's target folder of the workspace. Packages outside the workspace that build there share its third-party crates.
pub fn target_dir() -> Result<PathBuf, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    absolute(target.map_or_else(|| PathBuf::from("target"), PathBuf::from))
}

/// A program of the dev profile, by its path below the target folder's `debug`.
pub fn built(name: &str) -> Result<PathBuf, String> {
    Ok(target_dir()?.join("debug").join(executable(name)))
}

/// The target folder of packages that depend on crates.io's candle. It has its own lock: they are built while steps build the workspace.
pub fn oracle_target_dir() -> Result<PathBuf, String> {
    Ok(target_dir()?.join("oracle"))
}

/// As [`built`], of such a package.
pub fn built_for_oracle(name: &str) -> Result<PathBuf, String> {
    Ok(oracle_target_dir()?.join("debug").join(executable(name)))
}

fn executable(name: &str) -> String {
    format!("{name}{}", std::env::consts::EXE_SUFFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_dir_is_created_and_deleted() {
        let dir = EmptyDir::new().unwrap();
        let path = dir.0.clone();
        assert!(path.is_dir());
        drop(dir);
        assert!(!path.exists());
    }
}
