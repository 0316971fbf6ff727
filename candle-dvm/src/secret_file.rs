//! Files that hold a secret and nothing else.

use crate::{Error, Result};
use std::io::Read;
use std::path::Path;
use zeroize::Zeroizing;

/// Reads a secret, such as a key or a wallet's address, of at most `limit` bytes.
///
/// # Errors
/// A file that is missing, longer, or that other users can read. The message has nothing of its content.
pub(crate) fn read(file: &Path, limit: usize) -> Result<Zeroizing<String>> {
    let wrong = |problem: String| Error::Key {
        place: file.display().to_string(),
        problem,
    };
    let opened = std::fs::File::open(file).map_err(|err| wrong(err.to_string()))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = opened
            .metadata()
            .map_err(|err| wrong(err.to_string()))?
            .permissions()
            .mode();
        if mode & 0o077 != 0 {
            return Err(wrong(format!(
                "other users can read it (mode {:03o}); run `chmod 600` on it",
                mode & 0o777
            )));
        }
    }
    let mut text = Zeroizing::new(String::with_capacity(limit + 1));
    opened
        .take(limit as u64 + 1)
        .read_to_string(&mut text)
        .map_err(|err| wrong(err.to_string()))?;
    match text.len() > limit {
        true => Err(wrong(format!("has more than {limit} bytes"))),
        false => Ok(text),
    }
}
