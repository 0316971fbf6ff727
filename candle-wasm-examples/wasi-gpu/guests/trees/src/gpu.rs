//! The host's functions, and a buffer that frees itself.

mod bindings {
    #![allow(unsafe_code)]
    wit_bindgen::generate!({
        world: "ml-compute",
        path: "../../wit/0.1",
    });
}

pub use bindings::wasi::gpu::{compute, ml_kernels};

use crate::{Error, Result};
use compute::{BufferId, BufferUsage, GpuError};

/// Adds the call's name to the host's error.
pub(crate) fn named<T>(call: &'static str, result: std::result::Result<T, GpuError>) -> Result<T> {
    result.map_err(|error| Error::Gpu { call, error })
}

/// Device memory of 4-byte words.
pub(crate) struct Buffer {
    id: BufferId,
    words: u64,
}

impl Buffer {
    /// `words` zeros; at least one.
    pub(crate) fn new(words: u64) -> Result<Self> {
        let words = words.max(1);
        let usage = BufferUsage::STORAGE | BufferUsage::COPY_SRC | BufferUsage::COPY_DST;
        let id = named("buffer-create", compute::buffer_create(words * 4, usage))?;
        Ok(Self { id, words })
    }

    /// A buffer with these contents.
    pub(crate) fn of<T: bytemuck::NoUninit>(words: &[T]) -> Result<Self> {
        let buffer = Self::new(words.len() as u64)?;
        buffer.write(words)?;
        Ok(buffer)
    }

    /// Replaces itself by a larger one unless it has `words`; the contents are lost then.
    pub(crate) fn reserve(&mut self, words: u64) -> Result<()> {
        if words > self.words {
            *self = Self::new(words.next_power_of_two())?;
        }
        Ok(())
    }

    pub(crate) fn id(&self) -> BufferId {
        self.id
    }

    /// Writes 4-byte words from the buffer's start.
    pub(crate) fn write<T: bytemuck::NoUninit>(&self, words: &[T]) -> Result<()> {
        let bytes = bytemuck::cast_slice(words);
        named("buffer-write", compute::buffer_write(self.id, 0, bytes))
    }

    /// Copies `words` words from `src`, which starts at word `from`, to word `to`.
    pub(crate) fn copy(&self, to: u64, src: &Buffer, from: u64, words: u64) -> Result<()> {
        named(
            "buffer-copy",
            compute::buffer_copy(src.id, from * 4, self.id, to * 4, words * 4),
        )
    }

    /// The first `words` words. Waits for the device.
    pub(crate) fn read<T: bytemuck::Pod>(&self, words: u64) -> Result<Vec<T>> {
        let size = u32::try_from(words * 4).map_err(|_| {
            Error::Input(format!(
                "{words} words are more than one buffer-read returns: use fewer rows, or max-thresholds"
            ))
        })?;
        let bytes = named("buffer-read", compute::buffer_read(self.id, 0, size))?;
        if bytes.len() != size as usize {
            return Err(Error::Input(format!(
                "buffer-read returned {} bytes of {size}",
                bytes.len()
            )));
        }
        // A list of bytes need not be aligned to words.
        Ok(bytes
            .chunks_exact(4)
            .map(bytemuck::pod_read_unaligned)
            .collect())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // It can fail only if the device is lost, and then there is nothing to free.
        let _ = compute::buffer_destroy(self.id);
    }
}
