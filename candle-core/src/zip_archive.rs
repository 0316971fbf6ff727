//! Zip archives, the container of npz files and of PyTorch checkpoints.

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use zip::HasZipMetadata;

use crate::bounded_read::{read_bytes, shown};
use crate::{DType, Error, Result};

/// A reader of an archive's bytes.
trait Source: Read + Seek + Send {}

impl<T: Read + Seek + Send> Source for T {}

type Zip = zip::ZipArchive<Box<dyn Source>>;

/// An archive in a file or in memory. Its entries are read one at a time.
pub(crate) struct Archive {
    zip: Mutex<Zip>,
    /// Names of the entries, in the archive's order.
    names: Vec<String>,
    /// Bytes of the whole archive.
    len: u64,
    path: Option<PathBuf>,
}

impl Archive {
    /// Opens a file and reads the list of its entries.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let open = || {
            let file = File::open(path)?;
            let len = file.metadata()?.len();
            Self::new(Box::new(BufReader::new(file)), len)
        };
        let mut archive = open().map_err(|err| err.with_path(path))?;
        archive.path = Some(path.to_path_buf());
        Ok(archive)
    }

    /// Reads the list of entries of an archive in memory.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        let len = bytes.len() as u64;
        Self::new(Box::new(Cursor::new(bytes)), len)
    }

    fn new(source: Box<dyn Source>, len: u64) -> Result<Self> {
        let directory = |err| Error::Zip(err).bt().context("list of zip entries");
        let zip = Zip::new(source).map_err(directory)?;
        let names = zip
            .file_names()
            .map(|name| name.map(|name| name.into_owned()));
        let names = names.collect::<zip::result::ZipResult<_>>();
        Ok(Self {
            names: names.map_err(directory)?,
            zip: Mutex::new(zip),
            len,
            path: None,
        })
    }

    /// Names of the entries, in the archive's order.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Adds the file, if the archive has one.
    pub(crate) fn in_file(&self, err: Error) -> Error {
        match &self.path {
            Some(path) => err.with_path(path),
            None => err,
        }
    }

    /// The maximum number of bytes that all entries of an archive of this size can unpack to.
    pub(crate) fn budget(&self) -> Budget {
        Budget::new(self.len)
    }

    /// Reads an entry with `f`. An error names the entry; [`Archive::in_file`] adds the file.
    pub(crate) fn read<T>(
        &self,
        name: &str,
        f: impl FnOnce(&mut Entry<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut zip = self.zip.lock();
        let opened = zip.by_name(name).map_err(|err| Error::Zip(err).bt());
        let result = opened.and_then(|file| {
            let metadata = file.get_metadata();
            let (len, stored) = (metadata.uncompressed_size, metadata.compressed_size);
            f(&mut Entry {
                len,
                known: usize::try_from(stored.min(self.len).min(len)).unwrap_or(usize::MAX),
                file: Box::new(file),
                archive_len: self.len,
            })
        });
        result.map_err(|err| err.context(format!("zip entry {}", shown(name))))
    }
}

/// The maximum compression ratio of Deflate.
const MAX_DEFLATE_RATIO: u64 = 1032;

/// The remaining budget of bytes to unpack. Without it, many entries over the same bytes would be a zip bomb.
pub(crate) struct Budget {
    archive_len: u64,
    limit: u64,
    left: u64,
}

impl Budget {
    /// The budget of an archive of `len` bytes.
    pub(crate) fn new(len: u64) -> Self {
        let limit = len.saturating_mul(MAX_DEFLATE_RATIO);
        Self {
            archive_len: len,
            limit,
            left: limit,
        }
    }

    /// Subtracts `elements` that were read.
    pub(crate) fn charge(&mut self, elements: usize, dtype: DType) -> Result<()> {
        let bytes = elements.saturating_mul(dtype.size_in_bytes());
        match self.left.checked_sub(bytes as u64) {
            Some(left) => self.left = left,
            None => crate::bail!(
                "the tensors exceed {} bytes in total, in an archive of {} bytes",
                self.limit,
                self.archive_len
            ),
        }
        Ok(())
    }
}

/// An entry that is being read.
pub(crate) struct Entry<'a> {
    file: Box<dyn Read + 'a>,
    /// The length that it claims, in bytes.
    pub(crate) len: u64,
    /// The number of bytes that are certain to exist: those stored in the archive.
    pub(crate) known: usize,
    archive_len: u64,
}

impl Read for Entry<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.file.read(buf)
    }
}

impl Entry<'_> {
    /// Reads `len` bytes from `start` on.
    pub(crate) fn read_range(&mut self, start: u64, len: usize) -> Result<Vec<u8>> {
        let end = start.checked_add(len as u64);
        if end.is_none_or(|end| end > self.len) {
            crate::bail!(
                "expected bytes {start} to {start} + {len}, but the entry has {}",
                self.len
            )
        }
        std::io::copy(&mut self.file.by_ref().take(start), &mut std::io::sink())?;
        let bytes = read_bytes(self, len, self.known).map_err(Error::msg)?;
        self.check_end()?;
        Ok(bytes)
    }

    /// Reads metadata. Returns an error if it unpacks to many times the archive's size.
    pub(crate) fn read_description(&mut self) -> Result<Vec<u8>> {
        let limit = self.archive_len.saturating_mul(8).saturating_add(1 << 16);
        let mut bytes = Vec::new();
        self.file.by_ref().take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            crate::bail!(
                "unpacks to more than {limit} bytes in an archive of {} bytes",
                self.archive_len
            )
        }
        Ok(bytes)
    }

    /// Reads to the end of the entry, where the checksum is verified.
    pub(crate) fn check_end(&mut self) -> Result<()> {
        // More bytes may follow: a tensor can be a part of its storage.
        std::io::copy(&mut self.file.by_ref().take(1), &mut std::io::sink())?;
        Ok(())
    }
}
