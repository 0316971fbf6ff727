//! Coins and plans on disk: a file each, in folders by what has become of them. A file is there as a whole or not at all.

use super::mint::Output;
use super::token::{Proof, Token};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The state of coins.
#[derive(Clone, Copy)]
pub enum Shelf {
    /// A [`Plan`] that the mint may have carried out.
    Planned,
    /// [`Coins`] of a job that has no answer yet.
    Held,
    /// [`Coins`] that are the operator's.
    Earned,
    /// [`Coins`] that went back to a customer, or were sent.
    Given,
}

impl Shelf {
    const ALL: [Self; 4] = [Self::Planned, Self::Held, Self::Earned, Self::Given];

    fn name(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Held => "held",
            Self::Earned => "earned",
            Self::Given => "given",
        }
    }
}

/// A swap at a mint. With it the new coins can be had also if the answer was lost.
#[derive(Serialize, Deserialize)]
pub struct Plan {
    pub(super) mint: String,
    pub(super) inputs: Vec<Proof>,
    pub(super) outputs: Vec<Output>,
    /// Number of the outputs that are the price; the others are change.
    pub(super) price: usize,
}

/// Coins of one mint.
#[derive(Default, Serialize, Deserialize)]
pub struct Coins {
    pub(super) mint: String,
    pub(super) unit: String,
    /// The price of a job, or what was sent.
    pub(super) price: Vec<Proof>,
    /// The coins beyond it.
    pub(super) change: Vec<Proof>,
    /// Secrets of coins that are gone with it.
    #[serde(default)]
    pub(super) spent: Vec<String>,
}

impl Coins {
    /// Some of them as a token; nothing of none.
    pub(super) fn token<'a>(
        &self,
        proofs: impl IntoIterator<Item = &'a Proof>,
    ) -> Result<Option<String>, String> {
        let proofs: Vec<Proof> = proofs.into_iter().cloned().collect();
        let token = Token {
            mint: self.mint.clone(),
            unit: self.unit.clone(),
            proofs,
        };
        if token.proofs.is_empty() {
            Ok(None)
        } else {
            token.write().map(Some)
        }
    }
}

/// The folder.
pub struct Purse(PathBuf);

impl Purse {
    /// Opens a folder, or makes one that only its owner may read.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(folder: &Path) -> Result<Self, String> {
        for shelf in Shelf::ALL {
            let mut builder = DirBuilder::new();
            builder.recursive(true);
            #[cfg(unix)]
            {
                use std::os::unix::fs::DirBuilderExt;
                builder.mode(0o700);
            }
            let made = builder.create(folder.join(shelf.name()));
            made.map_err(|err| format!("{}: {err}", folder.display()))?;
        }
        Ok(Self(folder.to_path_buf()))
    }

    /// Keeps other programs out while they ask for the same, until the file is dropped.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn lock(&self) -> Result<File, String> {
        let path = self.0.join("lock");
        let locked = File::create(&path).and_then(|file| file.lock().map(|()| file));
        locked.map_err(|err| format!("{}: {err}", path.display()))
    }

    fn file(&self, shelf: Shelf, name: &str) -> PathBuf {
        self.0.join(shelf.name()).join(format!("{name}.json"))
    }

    /// Keeps something; it is on disk when this returns.
    ///
    /// # Errors
    /// The disk is full or does not take it.
    pub fn put(&self, shelf: Shelf, name: &str, value: &impl Serialize) -> Result<(), String> {
        let file = self.file(shelf, name);
        let text = serde_json::to_vec(value).map_err(|err| err.to_string())?;
        let write = || {
            let new = file.with_extension("new");
            let mut options = File::options();
            options.write(true).create(true).truncate(true);
            #[cfg(unix)]
            {
                use std::os::unix::fs::OpenOptionsExt;
                options.mode(0o600);
            }
            let mut opened = options.open(&new)?;
            opened.write_all(&text)?;
            opened.sync_all()?;
            std::fs::rename(&new, &file)?;
            #[cfg(unix)]
            File::open(self.0.join(shelf.name()))?.sync_all()?;
            Ok(())
        };
        write().map_err(|err: std::io::Error| format!("{}: {err}", file.display()))
    }

    /// The value under a name.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn get<T: DeserializeOwned>(&self, shelf: Shelf, name: &str) -> Result<Option<T>, String> {
        let file = self.file(shelf, name);
        let wrong = |err: &dyn std::fmt::Display| format!("{}: {err}", file.display());
        match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|err| wrong(&err)),
            Err(err) if err.kind() == ErrorKind::NotFound => Ok(None),
            Err(err) => Err(wrong(&err)),
        }
    }

    /// Whether an entry exists under a name.
    pub fn has(&self, shelf: Shelf, name: &str) -> bool {
        self.file(shelf, name).exists()
    }

    /// Takes something away, if it is there.
    ///
    /// # Errors
    /// The disk does not let it go.
    pub fn remove(&self, shelf: Shelf, name: &str) -> Result<(), String> {
        let file = self.file(shelf, name);
        match std::fs::remove_file(&file) {
            Err(err) if err.kind() != ErrorKind::NotFound => {
                Err(format!("{}: {err}", file.display()))
            }
            _ => Ok(()),
        }
    }

    /// The names on a shelf, in order.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn names(&self, shelf: Shelf) -> Result<Vec<String>, String> {
        let folder = self.0.join(shelf.name());
        let entries = std::fs::read_dir(&folder);
        let entries = entries.map_err(|err| format!("{}: {err}", folder.display()))?;
        let names = entries.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some(name.strip_suffix(".json")?.to_string())
        });
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        Ok(names)
    }
}
