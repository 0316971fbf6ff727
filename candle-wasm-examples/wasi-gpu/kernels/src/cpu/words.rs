//! The memory of a buffer.

use std::ops::{Deref, DerefMut};

use candle_core::CpuStorage;

use crate::{GpuError, Result};

/// Words of 32 bits, in the form in which Candle computes with them: a storage of f32.
pub(crate) struct Words(CpuStorage);

impl Words {
    pub(crate) fn zeros(count: usize) -> Result<Self> {
        let mut words = Vec::new();
        // An allocation that fails otherwise ends the process.
        let reserved = words.try_reserve_exact(count);
        reserved.map_err(|_| GpuError::OutOfMemory)?;
        words.resize(count, 0f32);
        Ok(Self(CpuStorage::F32(words)))
    }

    pub(crate) fn storage(&self) -> &CpuStorage {
        &self.0
    }

    /// Makes as many f32 the words; gives others back.
    pub(crate) fn replace(&mut self, storage: CpuStorage) -> std::result::Result<(), CpuStorage> {
        match &storage {
            CpuStorage::F32(words) if words.len() == self.len() => {
                self.0 = storage;
                Ok(())
            }
            _ => Err(storage),
        }
    }
}

impl Deref for Words {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match &self.0 {
            CpuStorage::F32(words) => bytemuck::cast_slice(words),
            // There are only those of f32.
            _ => &[],
        }
    }
}

impl DerefMut for Words {
    fn deref_mut(&mut self) -> &mut [u32] {
        match &mut self.0 {
            CpuStorage::F32(words) => bytemuck::cast_slice_mut(words),
            _ => &mut [],
        }
    }
}
