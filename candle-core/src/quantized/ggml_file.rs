//! The files of llama.cpp before GGUF: GGML, GGMF and GGJT.
//!
//! A magic and (except in the oldest version) a version, seven hyperparameters, the vocabulary, then tensors up to the end of the file:
//! rank, length of the name, format, dimensions (fastest first), name, blocks. GGJT aligns the blocks to 32 bytes, and the oldest format
//! has no scores in its vocabulary. All little endian. GGUF replaced these formats: see [`super::gguf_file`].

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::io::{Read, Seek};

use super::reader::{tensor_bytes, Reader};
use super::{GgmlDType, QStorage, QTensor};
use crate::{Context, Device, Error, Result};

/// Maximum number of dimensions of a tensor. GGML has 4.
const MAX_DIMS: u32 = 16;

/// Alignment of GGJT's blocks in bytes.
const GGJT_ALIGNMENT: u64 = 32;

/// The format and version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionedMagic {
    /// `ggml`: neither a version nor scores.
    GgmlUnversioned,
    /// `ggmf`, version 1: with scores.
    GgmfV1,
    /// `ggjt`, version 1: with aligned blocks.
    GgjtV1,
    /// `ggjt`, version 2.
    GgjtV2,
    /// `ggjt`, version 3.
    GgjtV3,
}

impl VersionedMagic {
    fn read<R: Read + Seek>(reader: &mut Reader<R>) -> Result<Self> {
        let magic = reader.u32()?;
        if magic == u32::from_be_bytes(*b"ggml") {
            return Ok(Self::GgmlUnversioned);
        }
        let (ggmf, ggjt) = (u32::from_be_bytes(*b"ggmf"), u32::from_be_bytes(*b"ggjt"));
        if magic != ggmf && magic != ggjt {
            return Err(Error::Msg(format!(
                "magic {magic:#010x}; expected ggml, ggmf or ggjt (read GGUF files with gguf_file)"
            ))
            .bt());
        }
        match (magic == ggjt, reader.u32()?) {
            (false, 1) => Ok(Self::GgmfV1),
            (true, 1) => Ok(Self::GgjtV1),
            (true, 2) => Ok(Self::GgjtV2),
            (true, 3) => Ok(Self::GgjtV3),
            (ggjt, version) => {
                let known = if ggjt { "ggjt up to 3" } else { "ggmf 1" };
                Err(Error::Msg(format!(
                    "version {version} is not supported; expected {known}"
                ))
                .bt())
            }
        }
    }

    fn is_aligned(self) -> bool {
        matches!(self, Self::GgjtV1 | Self::GgjtV2 | Self::GgjtV3)
    }
}

/// The model's sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HParams {
    /// Tokens of the vocabulary.
    pub n_vocab: u32,
    /// Embedding dimension of the model.
    pub n_embd: u32,
    /// Divisor of the feed-forward layer's width.
    pub n_mult: u32,
    /// Heads of attention.
    pub n_head: u32,
    /// Layers.
    pub n_layer: u32,
    /// Dimensions of a head that are rotated.
    pub n_rot: u32,
    /// The format of most tensors.
    pub ftype: u32,
}

impl HParams {
    fn read<R: Read + Seek>(reader: &mut Reader<R>) -> Result<Self> {
        Ok(Self {
            n_vocab: reader.u32()?,
            n_embd: reader.u32()?,
            n_mult: reader.u32()?,
            n_head: reader.u32()?,
            n_layer: reader.u32()?,
            n_rot: reader.u32()?,
            ftype: reader.u32()?,
        })
    }
}

/// The tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Vocab {
    /// Bytes and score of each token, by id. The oldest format has no scores; they are 0 then.
    pub token_score_pairs: Vec<(Vec<u8>, f32)>,
}

impl Vocab {
    fn read<R: Read + Seek>(
        reader: &mut Reader<R>,
        magic: VersionedMagic,
        n_vocab: u32,
    ) -> Result<Self> {
        let has_scores = magic != VersionedMagic::GgmlUnversioned;
        let count = reader.has_count(n_vocab.into(), if has_scores { 8 } else { 4 })?;
        let token = |id| {
            let len = reader.u32()?;
            let bytes = reader.bytes(len.into());
            let bytes = bytes.with_context(|| format!("token {id} of {count}"))?;
            let score = if has_scores { reader.f32()? } else { 0. };
            Ok((bytes, score))
        };
        let token_score_pairs = (0..count).map(token).collect::<Result<_>>()?;
        Ok(Self { token_score_pairs })
    }
}

/// A tensor from the bytes of its blocks; `dims` has the slowest dimension first.
///
/// # Errors
/// If there are too few bytes, the last dimension is not a multiple of the block size, or `device` does not support quantised tensors.
pub fn qtensor_from_ggml(
    ggml_dtype: GgmlDType,
    raw_data: &[u8],
    dims: Vec<usize>,
    device: &Device,
) -> Result<QTensor> {
    let (_, bytes) = tensor_bytes(&dims, ggml_dtype)?;
    let Some(data) = raw_data.get(..bytes) else {
        return Err(Error::Msg(format!(
            "shape {dims:?} of {ggml_dtype:?} needs {bytes} bytes, but there are {}",
            raw_data.len()
        ))
        .bt());
    };
    QTensor::new(QStorage::from_data(data.into(), device, ggml_dtype)?, dims)
}

/// The content of a file.
pub struct Content {
    /// The file's format and version.
    pub magic: VersionedMagic,
    /// The model's sizes.
    pub hparams: HParams,
    /// The tokens.
    pub vocab: Vocab,
    /// Tensors by name.
    pub tensors: HashMap<String, QTensor>,
    /// The device that holds the tensors.
    pub device: Device,
}

fn read_tensor<R: Read + Seek>(
    reader: &mut Reader<R>,
    magic: VersionedMagic,
    device: &Device,
) -> Result<(String, QTensor)> {
    let at = reader.position();
    let mut head = || {
        let (rank, name_len, dtype) = (reader.u32()?, reader.u32()?, reader.u32()?);
        if rank > MAX_DIMS {
            return Err(Error::Msg(format!("{rank} dimensions; the maximum is {MAX_DIMS}")).bt());
        }
        let dims = (0..rank).map(|_| Ok(reader.u32()? as usize));
        let mut dims = dims.collect::<Result<Vec<_>>>()?;
        dims.reverse();
        let name = String::from_utf8(reader.bytes(name_len.into())?)?;
        Ok((name, dims, dtype))
    };
    let (name, dims, dtype) = head().with_context(|| format!("tensor at byte {at}"))?;
    let mut blocks = || {
        let dtype = GgmlDType::from_u32(dtype)?;
        if magic.is_aligned() {
            reader.align(GGJT_ALIGNMENT)?;
        }
        let (_, bytes) = tensor_bytes(&dims, dtype)?;
        let blocks = reader.bytes(bytes as u64)?;
        QTensor::new(
            QStorage::from_data(blocks.into(), device, dtype)?,
            dims.clone(),
        )
    };
    let tensor = blocks().with_context(|| format!("tensor {name:?}"))?;
    Ok((name, tensor))
}

impl Content {
    /// Reads a file with all its tensors.
    ///
    /// # Errors
    /// Names the malformed part: the header, a token, or a tensor.
    pub fn read<R: Seek + Read>(reader: &mut R, device: &Device) -> Result<Content> {
        let mut reader = Reader::new(reader)?;
        let content = Self::read_from(&mut reader, device).context("GGML")?;
        reader.finish()?;
        Ok(content)
    }

    fn read_from<R: Read + Seek>(reader: &mut Reader<R>, device: &Device) -> Result<Self> {
        let magic = VersionedMagic::read(reader).context("head")?;
        let hparams = HParams::read(reader).context("hyperparameters")?;
        let vocab = Vocab::read(reader, magic, hparams.n_vocab).context("vocabulary")?;
        let mut tensors = HashMap::new();
        while reader.remaining() > 0 {
            let (name, tensor) = read_tensor(reader, magic, device)?;
            match tensors.entry(name) {
                Entry::Vacant(entry) => entry.insert(tensor),
                Entry::Occupied(entry) => {
                    return Err(Error::Msg(format!("tensor {:?} appears twice", entry.key())).bt());
                }
            };
        }
        Ok(Self {
            magic,
            hparams,
            vocab,
            tensors,
            device: device.clone(),
        })
    }

    /// Removes and returns a tensor.
    ///
    /// # Errors
    /// `CannotFindTensor`.
    pub fn remove(&mut self, name: &str) -> Result<QTensor> {
        self.tensors.remove(name).ok_or_else(|| {
            Error::CannotFindTensor {
                path: name.to_string(),
            }
            .bt()
        })
    }
}
