//! The buffers of one guest, by name.

use std::collections::HashMap;

use crate::{BufferId, GpuError, Limits, Result};

pub(crate) struct Entry<B> {
    /// As the guest asked; the memory behind may be padded.
    pub(crate) bytes: u64,
    /// `None` only while a kernel writes to it.
    data: Option<B>,
}

/// Names and what is behind them. A name is given out once.
pub(crate) struct Buffers<B> {
    entries: HashMap<BufferId, Entry<B>>,
    last: BufferId,
    used: u64,
    limits: Limits,
}

impl<B> Buffers<B> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            entries: HashMap::new(),
            last: 0,
            used: 0,
            limits,
        }
    }

    /// A new buffer's name, if the quota has room for it and `make` can make it.
    pub(crate) fn add(&mut self, bytes: u64, make: impl FnOnce() -> Result<B>) -> Result<BufferId> {
        let used = self.used.checked_add(bytes);
        let used = used.filter(|used| *used <= self.limits.memory);
        let (Some(used), Some(id)) = (used, self.last.checked_add(1)) else {
            return Err(GpuError::OutOfMemory);
        };
        if self.entries.len() >= self.limits.buffers {
            return Err(GpuError::OutOfMemory);
        }
        let data = Some(make()?);
        self.entries.insert(id, Entry { bytes, data });
        (self.last, self.used) = (id, used);
        Ok(id)
    }

    pub(crate) fn remove(&mut self, id: BufferId) -> Result<()> {
        let entry = self.entries.remove(&id).ok_or(GpuError::InvalidBuffer)?;
        self.used -= entry.bytes;
        Ok(())
    }

    /// A buffer's size in bytes.
    pub(crate) fn bytes(&self, id: BufferId) -> Result<u64> {
        let entry = self.entries.get(&id).ok_or(GpuError::InvalidBuffer)?;
        Ok(entry.bytes)
    }

    pub(crate) fn get(&self, id: BufferId) -> Result<&B> {
        let entry = self.entries.get(&id);
        let data = entry.and_then(|entry| entry.data.as_ref());
        data.ok_or(GpuError::InvalidBuffer)
    }

    /// Runs `work` with a buffer to write to, and the others to read.
    pub(crate) fn writing<T>(
        &mut self,
        id: BufferId,
        work: impl FnOnce(&Self, &mut B) -> Result<T>,
    ) -> Result<T> {
        let entry = self.entries.get_mut(&id);
        let data = entry.and_then(|entry| entry.data.take());
        let mut data = data.ok_or(GpuError::InvalidBuffer)?;
        let done = work(self, &mut data);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.data = Some(data);
        }
        done
    }
}
