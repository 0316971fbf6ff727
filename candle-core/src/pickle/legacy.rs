//! Checkpoints of PyTorch before 1.6, or saved with `_use_new_zipfile_serialization=False`: five consecutive pickles (a magic number, the
//! version of the format, the system, the value, the keys of the storages), then each storage, preceded by its number of elements.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::tensor_info::{element_size, storage_of};
use super::{Object, Stack};
use crate::bounded_read::{read_array, read_bytes, shown};
use crate::{Context, Error, Result};

/// The little-endian bytes of the first pickle's number.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// The number ends within this many bytes, in every protocol.
const MAGIC_WITHIN: u64 = 64;
/// The only version of the format.
const VERSION: i64 = 1001;

/// A reader of a checkpoint's bytes.
trait Source: BufRead + Seek + Send {}

impl<T: BufRead + Seek + Send> Source for T {}

/// Whether content begins like such a file.
pub(super) fn is_legacy(mut reader: impl Read) -> Result<bool> {
    let mut start = vec![];
    reader.by_ref().take(MAGIC_WITHIN).read_to_end(&mut start)?;
    Ok(start.first() == Some(&0x80) && start.windows(MAGIC.len()).any(|bytes| bytes == MAGIC))
}

/// A file whose pickles have been read; its storages are read on request.
pub(super) struct Legacy {
    source: Mutex<Box<dyn Source>>,
    /// Length of the file in bytes.
    pub(super) len: u64,
    path: Option<PathBuf>,
    /// Offset and size in bytes of each storage, by key.
    storages: HashMap<String, (u64, u64)>,
    /// Whether numbers in storages are big-endian.
    pub(super) big_endian: bool,
}

impl Legacy {
    /// Opens a file and returns it with its value.
    pub(super) fn open(path: &Path) -> Result<(Self, Object)> {
        let open = || {
            let file = File::open(path)?;
            let len = file.metadata()?.len();
            Self::new(Box::new(BufReader::new(file)), len)
        };
        let (mut legacy, object) = open().map_err(|err| err.with_path(path))?;
        legacy.path = Some(path.to_path_buf());
        Ok((legacy, object))
    }

    /// Like [`Legacy::open`], for content in memory.
    pub(super) fn from_bytes(bytes: Vec<u8>) -> Result<(Self, Object)> {
        let len = bytes.len() as u64;
        Self::new(Box::new(Cursor::new(bytes)), len)
    }

    fn new(mut source: Box<dyn Source>, len: u64) -> Result<(Self, Object)> {
        let mut next = |what: &str| -> Result<Stack> {
            let mut stack = Stack::empty();
            let read = stack.read_loop(&mut source);
            read.with_context(|| format!("the pickle of {what}"))?;
            Ok(stack)
        };
        next("the magic number")?;
        let version = next("the version")?.finalize()?.int_or_long()?;
        if version != VERSION {
            crate::bail!(
                "version {version} of PyTorch's format before zip archives; {VERSION} is supported"
            )
        }
        let big_endian = next("the system")?
            .finalize()?
            .dict()?
            .into_iter()
            .any(|(key, value)| {
                key == Object::Unicode("little_endian".into()) && value == Object::Bool(false)
            });
        let value = next("the value")?;
        let sizes = element_sizes(&value)?;
        let object = value.finalize()?;
        let keys: Vec<String> = next("the storages' keys")?
            .finalize()?
            .try_into()
            .map_err(|other: Object| Error::from(other).context("the storages' keys"))?;
        let mut storages = HashMap::new();
        for key in keys {
            let storage = storage(&mut source, &key, &sizes, big_endian, len);
            let place = storage.with_context(|| format!("storage {}", shown(&key)))?;
            storages.insert(key, place);
        }
        let legacy = Self {
            source: Mutex::new(source),
            len,
            path: None,
            storages,
            big_endian,
        };
        Ok((legacy, object))
    }

    /// Adds the file, if there is one.
    pub(super) fn in_file(&self, err: Error) -> Error {
        match &self.path {
            Some(path) => err.with_path(path),
            None => err,
        }
    }

    /// Reads `len` bytes of a storage, from byte `start` on.
    pub(super) fn read_range(&self, key: &str, start: u64, len: usize) -> Result<Vec<u8>> {
        let read = || {
            let Some(&(first, bytes)) = self.storages.get(key) else {
                crate::bail!("not in the file")
            };
            if start.checked_add(len as u64).is_none_or(|end| end > bytes) {
                crate::bail!(
                    "expected bytes {start} to {start} + {len}, but the storage has {bytes}"
                )
            }
            let mut source = self.source.lock();
            source.seek(SeekFrom::Start(first + start))?;
            read_bytes(&mut *source, len, len).map_err(Error::msg)
        };
        read().with_context(|| format!("storage {}", shown(key)))
    }
}

/// Bytes per element by key of the storage, from all references to storages in the value.
fn element_sizes(value: &Stack) -> Result<HashMap<String, usize>> {
    let mut sizes = HashMap::new();
    for id in value.persistent_loads() {
        let (key, class) = storage_of(id)?;
        match element_size(&class) {
            Some(size) => sizes.insert(key, size),
            None => crate::bail!(
                "storage {} is a {}, whose size is not known",
                shown(&key),
                shown(&class)
            ),
        };
    }
    Ok(sizes)
}

/// Offset and size in bytes of the next storage, which is skipped.
fn storage(
    source: &mut Box<dyn Source>,
    key: &str,
    sizes: &HashMap<String, usize>,
    big_endian: bool,
    len: u64,
) -> Result<(u64, u64)> {
    let Some(&size) = sizes.get(key) else {
        crate::bail!("no tensor uses it, so its size is not known")
    };
    let count = read_array(source).map_err(Error::msg)?;
    let count = if big_endian {
        u64::from_be_bytes(count)
    } else {
        u64::from_le_bytes(count)
    };
    let first = source.stream_position()?;
    let bytes = count.checked_mul(size as u64);
    let end = bytes.and_then(|bytes| bytes.checked_add(first));
    let (Some(bytes), Some(end)) = (bytes, end.filter(|end| *end <= len)) else {
        crate::bail!(
            "{count} elements of {size} bytes from byte {first} on, but the file has {len} bytes"
        )
    };
    source.seek(SeekFrom::Start(end))?;
    Ok((first, bytes))
}
