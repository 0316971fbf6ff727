//! GGUF files: metadata and named tensors, usually quantised.
//!
//! The format follows the [specification](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): the bytes `GGUF`, a version, the
//! numbers of tensors and of metadata entries; the entries; a name, a shape, a format and an offset for each tensor; then, aligned to
//! `general.alignment` bytes, the tensors' blocks. All little endian. Versions 1 (with counts of 32 bits), 2 and 3 can be read, version 3
//! can be written.
//!
//! ```
//! use candle_core::quantized::gguf_file::{self, Content, Value};
//! use candle_core::quantized::{GgmlDType, QTensor};
//! use candle_core::{DType, Device, Tensor};
//! # fn main() -> candle_core::Result<()> {
//! let weight = Tensor::ones((2, 32), DType::F32, &Device::Cpu)?;
//! let weight = QTensor::quantize(&weight, GgmlDType::Q8_0)?;
//! let mut file = std::io::Cursor::new(vec![]);
//! let name = Value::String("tiny".into());
//! gguf_file::write(&mut file, &[("general.name", &name)], &[("weight", &weight)])?;
//!
//! file.set_position(0);
//! let content = Content::read(&mut file)?;
//! assert_eq!(content.metadata["general.name"].to_string()?, "tiny");
//! let weight = content.tensor(&mut file, "weight", &Device::Cpu)?;
//! assert_eq!(weight.shape().dims(), &[2, 32]);
//! # Ok(())
//! # }
//! ```
//!
//! A file that is mapped into memory needs no copy: see [`MmapedContent`]. Models in several files (`NAME-00001-of-00003.gguf`) are opened
//! with [`open`] or [`MmapedContent::new`], by the path of any of them.

mod read;
mod split;
mod value;
mod write;

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use super::blocks::Bytes;
use super::reader::tensor_bytes;
use super::{GgmlDType, QStorage, QTensor};
use crate::{Context, Device, Error, Result, Shape};

pub use split::{names_of_parts, open, part_of, PartsReader};
pub use value::{Value, ValueType};
pub use write::write;

/// Alignment of tensors in bytes, unless `general.alignment` sets another.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// The metadata key of the tensors' alignment.
const ALIGNMENT_KEY: &str = "general.alignment";

/// The magic of a file: "GGUF" and a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionedMagic {
    /// Counts and lengths of 32 bits.
    GgufV1,
    /// Counts and lengths of 64 bits.
    GgufV2,
    /// Like version 2; the file may be big endian (such files are rejected).
    GgufV3,
}

/// The location and format of a tensor in a file.
#[derive(Debug)]
pub struct TensorInfo {
    /// The format of its blocks.
    pub ggml_dtype: GgmlDType,
    /// Its shape, the slowest dimension first (a file has the fastest first).
    pub shape: Shape,
    /// Offset in bytes from the start of the tensor data.
    pub offset: u64,
}

/// The content of a file except the tensors' blocks.
#[derive(Debug)]
pub struct Content {
    /// The version.
    pub magic: VersionedMagic,
    /// Values by key.
    pub metadata: HashMap<String, Value>,
    /// Tensors by name.
    pub tensor_infos: HashMap<String, TensorInfo>,
    /// Offset of the tensor data, in bytes from the start of the stream.
    pub tensor_data_offset: u64,
}

impl TensorInfo {
    /// The byte range of the blocks in a stream of `len` bytes.
    fn range(&self, tensor_data_offset: u64, len: u64) -> Result<Range<u64>> {
        let (_, bytes) = tensor_bytes(self.shape.dims(), self.ggml_dtype)?;
        let start = tensor_data_offset.checked_add(self.offset);
        let end = start.and_then(|start| start.checked_add(bytes as u64));
        match (start, end) {
            (Some(start), Some(end)) if end <= len => Ok(start..end),
            _ => Err(Error::Msg(format!(
                "{bytes} bytes of {:?} at offset {} after {tensor_data_offset}: the file has {len} bytes, {} remaining from there",
                self.ggml_dtype,
                self.offset,
                start.map_or(0, |start| len.saturating_sub(start))
            ))
            .bt()),
        }
    }

    /// Reads the tensor's blocks. `tensor_data_offset` is [`Content::tensor_data_offset`].
    ///
    /// # Errors
    /// If the file ends before the blocks do, the shape is not a whole number of blocks, or `device` does not support quantised tensors.
    pub fn read<R: Seek + Read>(
        &self,
        reader: &mut R,
        tensor_data_offset: u64,
        device: &Device,
    ) -> Result<QTensor> {
        let len = reader.seek(SeekFrom::End(0))?;
        let range = self.range(tensor_data_offset, len)?;
        reader.seek(SeekFrom::Start(range.start))?;
        let mut blocks = vec![0u8; usize::try_from(range.end - range.start)?];
        reader.read_exact(&mut blocks)?;
        let storage = QStorage::from_data(blocks.into(), device, self.ggml_dtype)?;
        QTensor::new(storage, self.shape.clone())
    }
}

impl Content {
    fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.tensor_infos.get(name).ok_or_else(|| {
            Error::CannotFindTensor {
                path: name.to_string(),
            }
            .bt()
        })
    }

    /// Reads a tensor's blocks from the stream that the content was read from.
    ///
    /// # Errors
    /// `CannotFindTensor`, or an error of [`TensorInfo::read`], with the tensor's name.
    pub fn tensor<R: Seek + Read>(
        &self,
        reader: &mut R,
        name: &str,
        device: &Device,
    ) -> Result<QTensor> {
        self.info(name)?
            .read(reader, self.tensor_data_offset, device)
            .with_context(|| format!("tensor {name:?}"))
    }
}

/// A GGUF file mapped into memory, or all files of a split model. Tensors on the CPU use the files' pages without a copy, and unused
/// tensors are never read. (Upstream has no counterpart.)
///
/// Dereferences to its [`Content`].
pub struct MmapedContent {
    content: Content,
    /// The files, each with its length.
    maps: Vec<(Arc<memmap2::Mmap>, u64)>,
}

impl MmapedContent {
    /// Maps a file and reads its metadata. For a split model, `path` is any of its files, and all are mapped.
    ///
    /// # Safety
    /// The files must not be changed or truncated while this value or a tensor of it exists; see [`memmap2::MmapOptions`].
    ///
    /// # Errors
    /// When a file is missing or cannot be mapped, or as [`Content::read`], with the path.
    pub unsafe fn new<P: AsRef<Path>>(path: P) -> Result<Self> {
        let open = |path: &Path| {
            let map = || {
                let file = std::fs::File::open(path)?;
                // SAFETY: the caller's guarantee.
                let map = unsafe { memmap2::MmapOptions::new().map(&file)? };
                let content = Content::read(&mut std::io::Cursor::new(&map[..]))?;
                let len = map.len() as u64;
                Ok((content, Arc::new(map), len))
            };
            map().map_err(|err: Error| err.with_path(path))
        };
        let (content, maps) = split::open_parts(path.as_ref(), open)?;
        Ok(Self { content, maps })
    }

    /// The file that contains a range of the joined files, and the range within it.
    fn find(&self, range: Range<u64>) -> Result<(&Arc<memmap2::Mmap>, Range<usize>)> {
        let mut start = 0;
        for (map, len) in &self.maps {
            if range.start >= start && range.end - start <= *len {
                let at = |place: u64| (place - start) as usize;
                return Ok((map, at(range.start)..at(range.end)));
            }
            start += len;
        }
        Err(Error::Msg(format!("no file has the bytes {range:?}")).bt())
    }

    /// A tensor. On the CPU its blocks are used in place, unless their address in the file is unaligned.
    ///
    /// # Errors
    /// As [`Content::tensor`].
    pub fn tensor(&self, name: &str, device: &Device) -> Result<QTensor> {
        let read = || {
            let info = self.content.info(name)?;
            let len = self.maps.iter().map(|(_, len)| len).sum();
            let range = info.range(self.content.tensor_data_offset, len)?;
            let (map, range) = self.find(range)?;
            let storage = match device {
                Device::Cpu => {
                    let bytes = Bytes::new(map.clone(), range).context("a range of the file")?;
                    QStorage::Cpu(info.ggml_dtype.over_shared(bytes))
                }
                _ => QStorage::from_data(map[range].into(), device, info.ggml_dtype)?,
            };
            QTensor::new(storage, info.shape.clone())
        };
        read().with_context(|| format!("tensor {name:?}"))
    }
}

impl Deref for MmapedContent {
    type Target = Content;

    fn deref(&self) -> &Content {
        &self.content
    }
}

impl std::fmt::Debug for MmapedContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.content.fmt(f)
    }
}
