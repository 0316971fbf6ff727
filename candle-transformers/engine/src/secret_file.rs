//! Files that hold a secret and nothing else.

use std::io::Read;
use std::path::Path;
use zeroize::Zeroizing;

/// Reads a secret, such as a key or a wallet's address, of at most `limit` bytes. `others`: the bits of the file's mode that other users
/// must not have, such as `0o077`.
///
/// # Errors
/// The problem with the file, without its name: it is missing, longer than `limit`, or readable by others. The message does not contain the
/// contents.
pub fn read(file: &Path, limit: usize, others: u32) -> Result<Zeroizing<String>, String> {
    let opened = std::fs::File::open(file).map_err(|err| err.to_string())?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let metadata = opened.metadata().map_err(|err| err.to_string())?;
        let mode = metadata.permissions().mode();
        if mode & others != 0 {
            return Err(format!(
                "other users can read it (mode {:03o}); run `chmod 600` on it",
                mode & 0o777
            ));
        }
    }
    #[cfg(not(unix))]
    let _ = others;
    let mut text = Zeroizing::new(String::with_capacity(limit + 1));
    opened
        .take(limit as u64 + 1)
        .read_to_string(&mut text)
        .map_err(|err| err.to_string())?;
    if text.len() > limit {
        Err(format!("has more than {limit} bytes"))
    } else {
        Ok(text)
    }
}
