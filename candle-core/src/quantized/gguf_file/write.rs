//! Writes GGUF files of version 3.

use std::io::{Seek, Write};

use super::super::QTensor;
use super::read::alignment;
use super::{Value, ValueType, ALIGNMENT_KEY, DEFAULT_ALIGNMENT};
use crate::{Context, Error, Result};

fn write_string<W: Write>(w: &mut W, text: &str) -> Result<()> {
    w.write_all(&(text.len() as u64).to_le_bytes())?;
    Ok(w.write_all(text.as_bytes())?)
}

fn write_value<W: Write>(w: &mut W, value: &Value) -> Result<()> {
    match value {
        Value::U8(v) => w.write_all(&v.to_le_bytes())?,
        Value::I8(v) => w.write_all(&v.to_le_bytes())?,
        Value::U16(v) => w.write_all(&v.to_le_bytes())?,
        Value::I16(v) => w.write_all(&v.to_le_bytes())?,
        Value::U32(v) => w.write_all(&v.to_le_bytes())?,
        Value::I32(v) => w.write_all(&v.to_le_bytes())?,
        Value::U64(v) => w.write_all(&v.to_le_bytes())?,
        Value::I64(v) => w.write_all(&v.to_le_bytes())?,
        Value::F32(v) => w.write_all(&v.to_le_bytes())?,
        Value::F64(v) => w.write_all(&v.to_le_bytes())?,
        Value::Bool(v) => w.write_all(&[u8::from(*v)])?,
        Value::String(v) => write_string(w, v)?,
        Value::Array(values) => {
            // The kind of an empty array is unknown.
            let ty = values.first().map_or(ValueType::U32, Value::value_type);
            if let Some(other) = values.iter().find(|value| value.value_type() != ty) {
                return Err(Error::Msg(format!(
                    "an array holds both {ty:?} and {:?}",
                    other.value_type()
                ))
                .bt());
            }
            w.write_all(&ty.to_u32().to_le_bytes())?;
            w.write_all(&(values.len() as u64).to_le_bytes())?;
            for value in values {
                write_value(w, value)?;
            }
        }
    }
    Ok(())
}

/// Zeros up to the next multiple of `alignment`.
fn pad<W: Write>(w: &mut W, position: u64, alignment: u64) -> Result<u64> {
    const ZEROS: [u8; 64] = [0; 64];
    let end = position.next_multiple_of(alignment);
    let mut left = end - position;
    while left > 0 {
        let count = left.min(ZEROS.len() as u64);
        w.write_all(&ZEROS[..count as usize])?;
        left -= count;
    }
    Ok(end)
}

/// Writes a GGUF file of version 3 at the current position of `w`, in the given order. Tensors are aligned to `general.alignment` if the
/// metadata has it, else to [`DEFAULT_ALIGNMENT`].
///
/// # Errors
/// If `w` fails, an array has values of several kinds, or a name appears twice.
pub fn write<W: Seek + Write>(
    w: &mut W,
    metadata: &[(&str, &Value)],
    tensors: &[(&str, &QTensor)],
) -> Result<()> {
    let mut alignment_bytes = DEFAULT_ALIGNMENT;
    let mut names = std::collections::HashSet::new();
    for (key, value) in metadata {
        if *key == ALIGNMENT_KEY {
            alignment_bytes = alignment(value)?;
        }
        if !names.insert(("metadata", *key)) {
            return Err(Error::Msg(format!("GGUF: metadata {key:?} appears twice")).bt());
        }
    }
    w.write_all(b"GGUF")?;
    w.write_all(&3u32.to_le_bytes())?;
    w.write_all(&(tensors.len() as u64).to_le_bytes())?;
    w.write_all(&(metadata.len() as u64).to_le_bytes())?;
    for (key, value) in metadata {
        write_string(w, key)?;
        w.write_all(&value.value_type().to_u32().to_le_bytes())?;
        write_value(w, value).with_context(|| format!("GGUF: metadata {key:?}"))?;
    }
    let mut offset = 0u64;
    for (name, tensor) in tensors {
        if !names.insert(("tensor", *name)) {
            return Err(Error::Msg(format!("GGUF: tensor {name:?} appears twice")).bt());
        }
        write_string(w, name)?;
        let dims = tensor.shape().dims();
        w.write_all(&(dims.len() as u32).to_le_bytes())?;
        for dim in dims.iter().rev() {
            w.write_all(&(*dim as u64).to_le_bytes())?;
        }
        w.write_all(&tensor.dtype().to_u32().to_le_bytes())?;
        w.write_all(&offset.to_le_bytes())?;
        offset = (offset + blocks(tensor)?.len() as u64).next_multiple_of(alignment_bytes);
    }
    let mut position = w.stream_position()?;
    position = pad(w, position, alignment_bytes)?;
    for (_, tensor) in tensors {
        let blocks = blocks(tensor)?;
        w.write_all(&blocks)?;
        position = pad(w, position + blocks.len() as u64, alignment_bytes)?;
    }
    Ok(())
}

/// The blocks of the shape: a storage may hold more.
fn blocks(tensor: &QTensor) -> Result<std::borrow::Cow<'_, [u8]>> {
    let (_, bytes) = super::tensor_bytes(tensor.shape().dims(), tensor.dtype())?;
    Ok(match tensor.data()? {
        std::borrow::Cow::Borrowed(data) => data[..bytes].into(),
        std::borrow::Cow::Owned(mut data) => {
            data.truncate(bytes);
            data.into()
        }
    })
}
