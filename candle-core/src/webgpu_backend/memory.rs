//! Where a storage's bytes are: in one buffer, in several where one would be past `max_buffer_size`, or in a window of one.
//!
//! A kernel binds one range of one buffer, of at most `max_storage_buffer_binding_size` bytes from an aligned place. What is
//! larger is bound a window at a time; see `ops/windows.rs`.

use std::sync::Arc;

use super::limits::WINDOW_ALIGN;
use super::pool::{Buffer, OutOfMemory, Pool};

#[derive(Debug, Clone)]
pub(super) enum Memory {
    /// All of a buffer: the common case.
    One(Arc<Buffer>),
    /// Buffers of `chunk_bytes` each; the last may have less.
    Chunks {
        buffers: Arc<[Arc<Buffer>]>,
        chunk_bytes: u64,
    },
    /// From byte `offset` of a buffer on.
    Window { buffer: Arc<Buffer>, offset: u64 },
}

/// A range of one buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece<'a> {
    pub(super) buffer: &'a Buffer,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Memory {
    /// `bytes` of arbitrary contents.
    pub(super) fn new(pool: &Arc<Pool>, bytes: u64) -> Result<Self, OutOfMemory> {
        let chunk_bytes = pool.max_buffer_size();
        if bytes <= chunk_bytes {
            return Ok(Self::One(pool.get(bytes)?));
        }
        let count = bytes.div_ceil(chunk_bytes);
        let buffers = (0..count)
            .map(|i| pool.get(chunk_bytes.min(bytes - i * chunk_bytes)))
            .collect::<Result<_, _>>()?;
        Ok(Self::Chunks {
            buffers,
            chunk_bytes,
        })
    }

    /// The buffer that has the byte at `place`, that byte's place in it, and how many bytes there are from it on.
    fn at(&self, place: u64) -> (&Arc<Buffer>, u64, u64) {
        let (buffer, offset) = match self {
            Self::One(buffer) => (buffer, place),
            Self::Window { buffer, offset } => (buffer, offset + place),
            Self::Chunks {
                buffers,
                chunk_bytes,
            } => {
                let chunk = (place / chunk_bytes).min(buffers.len() as u64 - 1);
                (&buffers[chunk as usize], place - chunk * chunk_bytes)
            }
        };
        (buffer, offset, buffer.size().saturating_sub(offset))
    }

    /// Whether some buffer is in both.
    pub(super) fn shares_with(&self, other: &Self) -> bool {
        let mine = self.buffers();
        other
            .buffers()
            .iter()
            .any(|theirs| mine.iter().any(|buffer| Arc::ptr_eq(buffer, theirs)))
    }

    fn buffers(&self) -> &[Arc<Buffer>] {
        match self {
            Self::One(buffer) | Self::Window { buffer, .. } => std::slice::from_ref(buffer),
            Self::Chunks { buffers, .. } => buffers,
        }
    }

    /// The first `bytes`, as ranges of buffers of at most `most` bytes each, a multiple of 256.
    pub(super) fn pieces(&self, bytes: u64, most: u64) -> Vec<Piece<'_>> {
        let mut pieces = Vec::new();
        let mut place = 0;
        while place < bytes {
            let (buffer, offset, rest) = self.at(place);
            let bytes = (bytes - place).min(rest).min(most);
            if bytes == 0 {
                break;
            }
            pieces.push(Piece {
                buffer,
                offset,
                bytes,
            });
            place += bytes;
        }
        pieces
    }

    /// Bytes `first..end` as a window of at most `limit` bytes, and the place that it starts at; `None` if they span two buffers or
    /// are too many.
    pub(super) fn window(&self, first: u64, end: u64, limit: u64) -> Option<(Self, u64)> {
        let start = first / WINDOW_ALIGN * WINDOW_ALIGN;
        let (buffer, offset, rest) = self.at(start);
        (end - start <= limit.min(rest)).then(|| {
            let buffer = buffer.clone();
            (Self::Window { buffer, offset }, start)
        })
    }
}
