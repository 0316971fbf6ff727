//! Parses the GGUF header and tensor table.

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::io::{Read, Seek};

use super::super::reader::Reader;
use super::super::GgmlDType;
use super::{Content, TensorInfo, Value, ValueType, VersionedMagic};
use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT};
use crate::{Context, Error, Result, Shape};

/// Maximum number of dimensions of a tensor. GGML has 4.
const MAX_DIMS: u32 = 16;

/// Maximum nesting depth of arrays, as in Candle: a file with deeper nesting is not a model, but would need a deep stack.
const MAX_DEPTH: usize = 64;

/// The parts of a header, by the format's own names.
const TENSOR_COUNT: &str = "number of tensors (tensor_count)";
const VALUE_COUNT: &str = "number of metadata entries (metadata_kv_count)";

impl VersionedMagic {
    fn read<R: Read + Seek>(reader: &mut Reader<R>) -> Result<Self> {
        let magic: [u8; 4] = reader.array()?;
        if &magic != b"GGUF" {
            return Err(Error::Msg(format!(
                "expected the magic GGUF, found {}",
                magic.escape_ascii()
            ))
            .bt());
        }
        match reader.u32()? {
            1 => Ok(Self::GgufV1),
            2 => Ok(Self::GgufV2),
            3 => Ok(Self::GgufV3),
            version if version.swap_bytes() <= 3 => {
                Err(Error::Msg("the file is big endian; convert it to little endian".into()).bt())
            }
            version => Err(Error::Msg(format!(
                "version {version} is not supported; expected 1, 2 or 3"
            ))
            .bt()),
        }
    }

    /// A count or a length.
    fn count<R: Read + Seek>(self, reader: &mut Reader<R>) -> Result<u64> {
        match self {
            Self::GgufV1 => Ok(reader.u32()?.into()),
            Self::GgufV2 | Self::GgufV3 => reader.u64(),
        }
    }

    /// A string. Version 1 may end it with zeros; bytes that are not UTF-8 (parts of characters among tokens) are replaced.
    fn string<R: Read + Seek>(self, reader: &mut Reader<R>) -> Result<String> {
        let len = self.count(reader)?;
        let mut bytes = reader.bytes(len).context("string length")?;
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|err| String::from_utf8_lossy(err.as_bytes()).into_owned()))
    }

    /// Minimum size in bytes of a value of a kind.
    fn least_bytes(self, ty: ValueType) -> u64 {
        let count = match self {
            Self::GgufV1 => 4,
            Self::GgufV2 | Self::GgufV3 => 8,
        };
        match ty {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 => 8,
            ValueType::String => count,
            ValueType::Array => 4 + count,
        }
    }

    fn value<R: Read + Seek>(
        self,
        reader: &mut Reader<R>,
        ty: ValueType,
        depth: usize,
    ) -> Result<Value> {
        Ok(match ty {
            ValueType::U8 => Value::U8(reader.u8()?),
            ValueType::I8 => Value::I8(reader.i8()?),
            ValueType::U16 => Value::U16(reader.u16()?),
            ValueType::I16 => Value::I16(reader.i16()?),
            ValueType::U32 => Value::U32(reader.u32()?),
            ValueType::I32 => Value::I32(reader.i32()?),
            ValueType::U64 => Value::U64(reader.u64()?),
            ValueType::I64 => Value::I64(reader.i64()?),
            ValueType::F32 => Value::F32(reader.f32()?),
            ValueType::F64 => Value::F64(reader.f64()?),
            ValueType::Bool => match reader.u8()? {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                byte => return Err(Error::Msg(format!("{byte} is not a bool")).bt()),
            },
            ValueType::String => Value::String(self.string(reader)?),
            ValueType::Array => {
                if depth == MAX_DEPTH {
                    return Err(Error::Msg(format!(
                        "the nesting depth of arrays exceeds {MAX_DEPTH}"
                    ))
                    .bt());
                }
                let ty = ValueType::from_u32(reader.u32()?)?;
                let count = self.count(reader)?;
                let count = reader.has_count(count, self.least_bytes(ty));
                let count = count.context("array length")?;
                // Values take more memory than their bytes in a file: memory grows as they are read.
                let mut values = Vec::new();
                for i in 0..count {
                    let value = self.value(reader, ty, depth + 1);
                    // The error context of the outermost array is enough: 64 of them would be one line of the message each.
                    let value = match depth {
                        0 => value.with_context(|| format!("element {i} of {count}")),
                        _ => value,
                    };
                    values.push(value?);
                }
                Value::Array(values)
            }
        })
    }

    fn tensor_info<R: Read + Seek>(self, reader: &mut Reader<R>) -> Result<TensorInfo> {
        let rank = reader.u32()?;
        if rank > MAX_DIMS {
            return Err(Error::Msg(format!("{rank} dimensions; the maximum is {MAX_DIMS}")).bt());
        }
        let dims = (0..rank).map(|_| Ok(usize::try_from(self.count(reader)?)?));
        let mut dims = dims.collect::<Result<Vec<_>>>()?;
        dims.reverse();
        let ggml_dtype = GgmlDType::from_u32(reader.u32()?)?;
        let offset = reader.u64()?;
        // The blocks are located when they are needed: the header of a file can be read on its own.
        super::tensor_bytes(&dims, ggml_dtype)?;
        Ok(TensorInfo {
            ggml_dtype,
            shape: Shape::from(dims),
            offset,
        })
    }
}

impl Content {
    /// Reads everything except the tensors' blocks, and leaves the stream at the end of the tensor table.
    ///
    /// Memory is proportional to the stream's length, whatever its counts claim.
    ///
    /// # Errors
    /// Names the malformed part: the header, a metadata key, or a tensor.
    pub fn read<R: Seek + Read>(reader: &mut R) -> Result<Self> {
        let mut reader = Reader::new(reader)?;
        let content = Self::read_from(&mut reader).context("GGUF")?;
        reader.finish()?;
        Ok(content)
    }

    fn read_from<R: Seek + Read>(reader: &mut Reader<R>) -> Result<Self> {
        let magic = VersionedMagic::read(reader).context("head")?;
        let tensor_count = magic.count(reader).context(TENSOR_COUNT)?;
        let value_count = magic.count(reader).context(VALUE_COUNT)?;
        // An entry has at least a name, a kind and a byte; a tensor a name, a rank, a format and an offset.
        let name = magic.least_bytes(ValueType::String);
        reader
            .has_count(value_count, name + 5)
            .context(VALUE_COUNT)?;
        reader
            .has_count(tensor_count, name + 16)
            .context(TENSOR_COUNT)?;

        let mut metadata = HashMap::new();
        for i in 0..value_count {
            let key = magic
                .string(reader)
                .with_context(|| format!("key of metadata entry {i}"))?;
            let value = reader
                .u32()
                .and_then(ValueType::from_u32)
                .and_then(|ty| magic.value(reader, ty, 0))
                .with_context(|| format!("metadata {key:?}"))?;
            insert(&mut metadata, key, value, "metadata")?;
        }

        let mut tensor_infos = HashMap::new();
        for i in 0..tensor_count {
            let name = magic
                .string(reader)
                .with_context(|| format!("name of tensor {i}"))?;
            let info = magic
                .tensor_info(reader)
                .with_context(|| format!("tensor {name:?}"))?;
            insert(&mut tensor_infos, name, info, "tensor")?;
        }

        let alignment = match metadata.get(ALIGNMENT_KEY) {
            None => DEFAULT_ALIGNMENT,
            Some(value) => alignment(value)?,
        };
        let tensor_data_offset = reader
            .position()
            .checked_next_multiple_of(alignment)
            .with_context(|| format!("{ALIGNMENT_KEY} of {alignment} is too large"))?;
        Ok(Self {
            magic,
            metadata,
            tensor_infos,
            tensor_data_offset,
        })
    }
}

/// The alignment set in the metadata.
pub(super) fn alignment(value: &Value) -> Result<u64> {
    match value
        .to_u64()
        .context(format!("metadata {ALIGNMENT_KEY:?}"))?
    {
        0 => Err(Error::Msg(format!("metadata {ALIGNMENT_KEY:?} is 0")).bt()),
        alignment => Ok(alignment),
    }
}

fn insert<V>(map: &mut HashMap<String, V>, key: String, value: V, what: &str) -> Result<()> {
    match map.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert(value);
            Ok(())
        }
        Entry::Occupied(entry) => {
            Err(Error::Msg(format!("{what} {:?} appears twice", entry.key())).bt())
        }
    }
}
