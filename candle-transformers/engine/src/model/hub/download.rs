//! Download of one file into the cache. The Hub names a large file by its SHA-256, which is computed while the file is written.

use crate::progress::FetchBar;
use ring::digest::{Context, SHA256};
use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::config::RedirectAuthHeaders;

/// Length of a SHA-256 in hexadecimal digits. Small files have a SHA-1 of git instead, which is not checked.
const SHA256_DIGITS: usize = 64;

/// Seconds to wait for another process that downloads the same file.
const LOCK_TRIES: u32 = 5;

/// A file as the Hub describes it.
pub(super) struct Download<'a> {
    pub(super) url: &'a str,
    pub(super) token: Option<&'a str>,
    /// Its name within the model.
    pub(super) name: &'a str,
    /// Number of bytes.
    pub(super) size: u64,
    /// The name of the blob: of a large file its SHA-256.
    pub(super) etag: &'a str,
}

/// The reason why a file was not downloaded.
pub(super) enum Problem {
    /// The server refused it, or was not reached.
    Request(Box<ureq::Error>),
    /// The connection broke.
    Interrupted(String),
    /// The disk failed.
    Disk(std::io::Error),
    /// Another process has the lock file.
    Locked(PathBuf),
    /// The bytes are not those of the file.
    Wrong(String),
}

/// Place of the bytes that have arrived, until the file is complete.
pub(super) fn part_of(blob: &Path) -> PathBuf {
    blob.with_extension("part")
}

impl Download<'_> {
    /// Writes the file to `blob`, after the bytes that an earlier attempt has left in its part. It becomes `blob` when it is complete and, if
    /// the Hub gives a SHA-256, has that hash; a file with another hash is deleted.
    pub(super) fn to(&self, blob: &Path) -> Result<(), Problem> {
        if let Some(folder) = blob.parent() {
            std::fs::create_dir_all(folder).map_err(Problem::Disk)?;
        }
        // Its removal would let two processes hold a lock at once, so it stays, as hf-hub leaves it.
        let _lock = lock(&blob.with_extension("lock"))?;
        let there = std::fs::metadata(blob).map(|metadata| metadata.len());
        if there.is_ok_and(|length| length == self.size) {
            // Another process was faster.
            return Ok(());
        }
        let part = part_of(blob);
        let mut hash = self.is_hashed().then(|| Context::new(&SHA256));
        let (mut file, start) = self.resume(&part, hash.as_mut())?;
        if start < self.size {
            let bar = FetchBar::new();
            let done = self.receive(&mut file, start, &mut hash, &bar);
            bar.clear();
            done?;
        }
        if let Some(hash) = hash {
            let found = hex(hash.finish().as_ref());
            if !found.eq_ignore_ascii_case(self.etag) {
                let _ = std::fs::remove_file(&part);
                return Err(Problem::Wrong(format!(
                    "the downloaded bytes have the SHA-256 {found}, the Hub says {}; they were deleted, try again",
                    self.etag
                )));
            }
        }
        file.sync_all().map_err(Problem::Disk)?;
        std::fs::rename(&part, blob).map_err(Problem::Disk)
    }

    fn is_hashed(&self) -> bool {
        self.etag.len() == SHA256_DIGITS && self.etag.chars().all(|c| c.is_ascii_hexdigit())
    }

    /// Opens the part, and hashes the bytes that it has. A part that cannot be the beginning of the file is emptied.
    fn resume(&self, part: &Path, hash: Option<&mut Context>) -> Result<(File, u64), Problem> {
        let open = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(part);
        let mut file = open.map_err(Problem::Disk)?;
        let length = file.metadata().map_err(Problem::Disk)?.len();
        let usable = match &hash {
            Some(_) => length <= self.size,
            // Without a hash, a complete part may have any contents.
            None => length < self.size,
        };
        if !usable {
            file.set_len(0).map_err(Problem::Disk)?;
            return Ok((file, 0));
        }
        let mut chunk = vec![0; 1 << 20];
        let mut hash = hash;
        loop {
            match file.read(&mut chunk).map_err(Problem::Disk)? {
                0 => return Ok((file, length)),
                count => {
                    if let Some(hash) = hash.as_deref_mut() {
                        hash.update(&chunk[..count]);
                    }
                }
            }
        }
    }

    /// Appends the bytes from `start` on to `file`.
    fn receive(
        &self,
        file: &mut File,
        start: u64,
        hash: &mut Option<Context>,
        bar: &FetchBar,
    ) -> Result<(), Problem> {
        let config = ureq::Agent::config_builder()
            // Large files are at another host, which must not get the token.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .build();
        let mut request = ureq::Agent::new_with_config(config)
            .get(self.url)
            .header("Range", format!("bytes={start}-"))
            .header(
                "User-Agent",
                concat!("candle-dvm/", env!("CARGO_PKG_VERSION")),
            );
        if let Some(token) = self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let response = request
            .call()
            .map_err(|err| Problem::Request(Box::new(err)))?;
        let mut at = start;
        if start > 0 && response.status().as_u16() != 206 {
            // The server sends all of it again.
            file.set_len(0).map_err(Problem::Disk)?;
            std::io::Seek::rewind(file).map_err(Problem::Disk)?;
            *hash = hash.as_ref().map(|_| Context::new(&SHA256));
            at = 0;
        }
        bar.begin(self.size, self.name);
        bar.advance(at);
        let mut body = response.into_body().into_reader();
        let mut chunk = vec![0; 1 << 16];
        while at < self.size {
            let room = chunk
                .len()
                .min(usize::try_from(self.size - at).unwrap_or(usize::MAX));
            let count = match body.read(&mut chunk[..room]) {
                Ok(0) => {
                    let size = self.size;
                    let problem = format!("the connection ended after {at} of {size} bytes");
                    return Err(Problem::Interrupted(problem));
                }
                Ok(count) => count,
                Err(err) => return Err(Problem::Interrupted(err.to_string())),
            };
            file.write_all(&chunk[..count]).map_err(Problem::Disk)?;
            if let Some(hash) = hash {
                hash.update(&chunk[..count]);
            }
            at += count as u64;
            bar.advance(count as u64);
        }
        Ok(())
    }
}

/// The lock of `path`, free as soon as the file is dropped.
fn lock(path: &Path) -> Result<File, Problem> {
    let file = File::create(path).map_err(Problem::Disk)?;
    for again in 0..=LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if again < LOCK_TRIES => {
                std::thread::sleep(Duration::from_secs(1));
            }
            Err(TryLockError::WouldBlock) => break,
            Err(TryLockError::Error(err)) => return Err(Problem::Disk(err)),
        }
    }
    Err(Problem::Locked(path.to_path_buf()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
