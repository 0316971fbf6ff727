//! The memory of a storage: one buffer, several if one would exceed `max_buffer_size`, or a window of one.
//!
//! A kernel binds a range of one buffer, of at most `max_storage_buffer_binding_size` bytes at an aligned offset. Larger memory is bound
//! one window at a time; see `ops/windows.rs`.

use std::sync::Arc;

use super::limits::WINDOW_ALIGN;
use super::pool::{Buffer, OutOfMemory, Pool};

#[derive(Debug, Clone)]
pub(super) enum Memory {
    /// A whole buffer: the common case.
    One(Arc<Buffer>),
    /// Buffers of `chunk_bytes` each; the last may be smaller.
    Chunks {
        buffers: Arc<[Arc<Buffer>]>,
        chunk_bytes: u64,
    },
    /// A buffer from byte `offset` on.
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
    /// Allocates `bytes` with arbitrary contents.
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

    /// Returns the buffer that contains byte `place` of the memory, that byte's offset in it, and the number of bytes from there to the
    /// buffer's end.
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

    /// Whether both use a common buffer.
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

    /// Bytes `first..end` as a window of at most `limit` bytes, and the window's start; `None` if they span two buffers or exceed the
    /// limit.
    pub(super) fn window(&self, first: u64, end: u64, limit: u64) -> Option<(Self, u64)> {
        let start = first / WINDOW_ALIGN * WINDOW_ALIGN;
        let (buffer, offset, rest) = self.at(start);
        (end - start <= limit.min(rest)).then(|| {
            let buffer = buffer.clone();
            (Self::Window { buffer, offset }, start)
        })
    }
}
