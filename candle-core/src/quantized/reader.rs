//! Reading of little-endian numbers from a stream of known length, so that no count in a file is trusted beyond it.

use std::io::{BufReader, Read, Seek, SeekFrom};

use crate::{Error, Result};

/// A stream, its position and its end.
pub(super) struct Reader<'a, R: Read + Seek> {
    stream: BufReader<&'a mut R>,
    position: u64,
    end: u64,
}

impl<'a, R: Read + Seek> Reader<'a, R> {
    /// Starts at the stream's current position.
    pub(super) fn new(stream: &'a mut R) -> Result<Self> {
        let position = stream.stream_position()?;
        let end = stream.seek(SeekFrom::End(0))?;
        stream.seek(SeekFrom::Start(position))?;
        Ok(Self {
            stream: BufReader::with_capacity(1 << 16, stream),
            position,
            end,
        })
    }

    /// The position of the next byte, from the start of the stream.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Bytes that are left.
    pub(super) fn remaining(&self) -> u64 {
        self.end.saturating_sub(self.position)
    }

    /// Seeks the stream to the next unread byte.
    pub(super) fn finish(mut self) -> Result<()> {
        self.stream.seek(SeekFrom::Start(self.position))?;
        Ok(())
    }

    fn has(&self, bytes: u64) -> Result<()> {
        if bytes > self.remaining() {
            return Err(Error::Msg(format!(
                "expected {bytes} bytes at {}, but the file ends after {}",
                self.position,
                self.remaining()
            ))
            .bt());
        }
        Ok(())
    }

    /// Checks that the stream has room for `count` items of at least `bytes` bytes each.
    pub(super) fn has_count(&self, count: u64, bytes: u64) -> Result<usize> {
        match count.checked_mul(bytes) {
            Some(needed) if needed <= self.remaining() => Ok(usize::try_from(count)?),
            _ => Err(Error::Msg(format!(
                "a count of {count} at {}, but the file has only {} bytes left",
                self.position,
                self.remaining()
            ))
            .bt()),
        }
    }

    /// The next `count` bytes.
    pub(super) fn bytes(&mut self, count: u64) -> Result<Vec<u8>> {
        self.has(count)?;
        let mut bytes = vec![0u8; usize::try_from(count)?];
        self.stream.read_exact(&mut bytes)?;
        self.position += count;
        Ok(bytes)
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.has(N as u64)?;
        let mut bytes = [0u8; N];
        self.stream.read_exact(&mut bytes)?;
        self.position += N as u64;
        Ok(bytes)
    }

    /// Skips to the next multiple of `alignment`, or to the end.
    pub(super) fn align(&mut self, alignment: u64) -> Result<()> {
        let skip = alignment - 1 - (self.position + alignment - 1) % alignment;
        self.bytes(skip.min(self.remaining())).map(drop)
    }
}

macro_rules! numbers {
    ($($ty:ident),+) => {
        impl<R: Read + Seek> Reader<'_, R> {
            $(
                pub(super) fn $ty(&mut self) -> Result<$ty> {
                    Ok($ty::from_le_bytes(self.array()?))
                }
            )+
        }
    };
}

numbers!(u8, i8, u16, i16, u32, i32, f32, u64, i64, f64);

/// The number of elements of a shape from a file, and their bytes.
pub(super) fn tensor_bytes(dims: &[usize], dtype: super::GgmlDType) -> Result<(usize, usize)> {
    let elements = dims
        .iter()
        .try_fold(1usize, |count, &dim| count.checked_mul(dim));
    let sizes = elements.and_then(|elements| {
        let bytes = (elements / dtype.block_size()).checked_mul(dtype.type_size())?;
        (bytes <= isize::MAX as usize).then_some((elements, bytes))
    });
    let Some((elements, bytes)) = sizes else {
        return Err(Error::Msg(format!("shape {dims:?} has too many elements")).bt());
    };
    if !elements.is_multiple_of(dtype.block_size()) {
        return Err(Error::Msg(format!(
            "shape {dims:?} of {elements} elements is not a whole number of {dtype:?} blocks of {}",
            dtype.block_size()
        ))
        .bt());
    }
    Ok((elements, bytes))
}
