//! The secret key: from a file that other users cannot read, from an environment variable, or from standard input.
//!
//! It is never an argument, because other users of the machine see those, and never part of a message: errors name the source, not its
//! contents.

use crate::{Error, Result};
use nostr::nips::nip19::ToBech32;
use nostr::prelude::{Keys, SecretKey};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The environment variable that is read when no file is named.
pub const VARIABLE: &str = "CANDLE_DVM_KEY";

/// More than either form of a key takes, with white space around it.
const LONGEST: u64 = 256;
/// Also of a wallet's address.
const LONGEST_FILE: usize = 1024;

/// The source of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file.
    File(PathBuf),
    /// Standard input.
    Stdin,
    /// The environment variable [`VARIABLE`].
    Variable,
}

impl KeySource {
    /// The source that `--key-file` names: `-` is standard input, and its absence the environment variable.
    pub fn named(file: Option<PathBuf>) -> Self {
        match file {
            None => Self::Variable,
            Some(file) if file.as_os_str() == "-" => Self::Stdin,
            Some(file) => Self::File(file),
        }
    }

    /// The source, in words.
    fn place(&self) -> String {
        match self {
            Self::File(file) => file.display().to_string(),
            Self::Stdin => "standard input".to_string(),
            Self::Variable => format!("environment variable {VARIABLE}"),
        }
    }

    /// Reads the key.
    ///
    /// # Errors
    /// [`Error::Key`] with the source: it is missing or empty, readable by others, or holds no key.
    pub fn read(&self) -> Result<Keys> {
        let text = match self {
            Self::File(file) => read_file(file)?,
            Self::Stdin => {
                limited(std::io::stdin().lock()).map_err(|err| self.wrong(&err.to_string()))?
            }
            Self::Variable => std::env::var(VARIABLE).map(Zeroizing::new).map_err(|_| {
                self.wrong("not set; pass --key-file (`candle-dvm key new` creates a key)")
            })?,
        };
        let secret = SecretKey::parse(text.trim()).map_err(|_| {
            self.wrong("not a secret key; expected nsec1… or 64 hexadecimal digits")
        })?;
        Ok(Keys::new(secret))
    }

    fn wrong(&self, problem: &str) -> Error {
        Error::Key {
            place: self.place(),
            problem: problem.to_string(),
        }
    }
}

fn limited(from: impl Read) -> std::io::Result<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::with_capacity(LONGEST as usize));
    from.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

/// Reads a secret that is the only content of a file, such as a key or a wallet's address.
///
/// # Errors
/// A file that is missing, or that others may read.
pub(crate) fn read_file(file: &Path) -> Result<Zeroizing<String>> {
    #[cfg(unix)]
    let others = if is_credential(file) { 0o037 } else { 0o077 };
    #[cfg(not(unix))]
    let others = 0;
    candle_engine::secret_file::read(file, LONGEST_FILE, others).map_err(|problem| Error::Key {
        place: file.display().to_string(),
        problem,
    })
}

/// Whether a file is a credential of systemd, whose folder only this service's user enters. Where it gives the user access by an access control
/// list, the mode shows that as the group's.
#[cfg(unix)]
fn is_credential(file: &Path) -> bool {
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY").filter(|folder| !folder.is_empty());
    folder.is_some_and(|folder| file.parent() == Some(Path::new(&folder)))
}

/// Makes a new key and writes it to a new file that only its owner may read.
///
/// # Errors
/// A file that exists already, or that cannot be written.
pub fn create(file: &Path) -> Result<Keys> {
    let wrong = |problem: String| Error::Key {
        place: file.display().to_string(),
        problem,
    };
    let keys = Keys::generate();
    let secret = keys
        .secret_key()
        .to_bech32()
        .map(Zeroizing::new)
        .map_err(|err| wrong(err.to_string()))?;
    let mut options = std::fs::OpenOptions::new();
    // An existing key is never written over: nothing would bring it back.
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let mut opened = options.open(file).map_err(|err| wrong(err.to_string()))?;
    opened
        .write_all(secret.as_bytes())
        .and_then(|()| opened.write_all(b"\n"))
        .and_then(|()| opened.sync_all())
        .map_err(|err| wrong(err.to_string()))?;
    Ok(keys)
}
