//! Importance matrices: for each column of a model's weights, the mean square of its activations, for
//! [`QTensor::quantize_imatrix`](super::QTensor::quantize_imatrix).
//!
//! The format is that of llama.cpp's `imatrix` tool: a number of entries, and for each the length of a name, the name, a number of calls, a
//! number of values, and the sums over the calls as f32. The number of chunks and the name of the text may follow; they are not used. All
//! little endian, integers of 32 bits.

use std::collections::HashMap;
use std::io::{Read, Seek};
use std::path::Path;

use super::reader::Reader;
use crate::{Context, Error, Result};

/// Reads the weights of the columns by tensor name: sums divided by the number of calls.
///
/// # Errors
/// When the file cannot be read or is malformed, with the path and the entry.
pub fn load_imatrix<P: AsRef<Path>>(fname: P) -> Result<HashMap<String, Vec<f32>>> {
    let path = fname.as_ref();
    let open = || -> Result<_> { read(&mut std::fs::File::open(path)?).context("imatrix") };
    open().map_err(|err| err.with_path(path))
}

fn read<R: Read + Seek>(stream: &mut R) -> Result<HashMap<String, Vec<f32>>> {
    let mut reader = Reader::new(stream)?;
    let entries = count(&mut reader).context("number of entries")?;
    // An entry has a length, a number of calls and a number of values.
    let entries = reader.has_count(entries, 12).context("number of entries")?;
    let mut weights = HashMap::new();
    for i in 0..entries {
        let mut name = || {
            let len = count(&mut reader)?;
            Ok::<_, Error>(String::from_utf8(reader.bytes(len)?)?)
        };
        let name = name().with_context(|| format!("name of entry {i} of {entries}"))?;
        let mut values = || {
            let calls = reader.i32()?;
            let len = count(&mut reader)?;
            let bytes = reader.bytes(len * 4)?;
            let calls = if calls > 0 { calls as f32 } else { 1. };
            let sums = bytes.chunks_exact(4);
            let sums = sums.map(|sum| f32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]));
            Ok::<_, Error>(sums.map(|sum| sum / calls).collect::<Vec<_>>())
        };
        let values = values().with_context(|| format!("entry {name:?}"))?;
        if weights.insert(name.clone(), values).is_some() {
            return Err(Error::Msg(format!("entry {name:?} appears twice")).bt());
        }
    }
    Ok(weights)
}

/// A non-negative count.
fn count<R: Read + Seek>(reader: &mut Reader<R>) -> Result<u64> {
    let count = reader.i32()?;
    u64::try_from(count).map_err(|_| Error::Msg(format!("a count of {count} is negative")).bt())
}
