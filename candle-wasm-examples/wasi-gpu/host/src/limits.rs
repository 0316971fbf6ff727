//! What a guest may use of the host.

use std::time::Duration;

use wasmtime::ResourceLimiter;

/// The most elements of tables, 16 bytes each: a program has some thousands, one for each function whose address it takes.
const TABLE_ELEMENTS: usize = 1 << 20;
/// The most instances of core modules in a component. A program with WASI has four.
const INSTANCES: usize = 1000;
/// The most tables and memories of a component; each memory reserves 4 GiB of addresses.
const TABLES: usize = 1000;
const MEMORIES: usize = 100;

/// The host's resources that a guest may use. Beyond a limit the guest gets an error or ends; the host and other guests continue.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of its file, which bound the time that it takes to compile: some seconds for each 10 MiB and core.
    pub program: usize,
    /// Bytes of all its linear memories together. `memory.grow` fails beyond.
    pub memory: usize,
    /// Bytes of all its buffers together; `out-of-memory` beyond. [`Runner::start`](crate::Runner::start) gives it to the backend.
    pub gpu_memory: u64,
    /// Maximum number of buffers at a time; as `gpu_memory`.
    pub buffers: usize,
    /// Bytes that one call may take from the guest to the host, such as a `buffer-write`. A call with more traps.
    pub transfer: usize,
    /// Maximum number of resource handles at a time, such as open files. Beyond it the guest traps.
    pub handles: usize,
    /// Maximum time of a call into the guest, including waits for the device. `None` is without end.
    pub timeout: Option<Duration>,
    /// Maximum computation in its life, about 1 for an instruction. `None` is without end and runs faster.
    pub fuel: Option<u64>,
}

impl Default for Limits {
    /// A file of 64 MiB, 1 GiB of memory, 1 GiB in 4096 buffers, 1 GiB in a call, 10,000 handles, 60 s, and no fuel.
    fn default() -> Self {
        Self {
            program: 64 << 20,
            memory: 1 << 30,
            gpu_memory: 1 << 30,
            buffers: 4096,
            transfer: 1 << 30,
            handles: 10_000,
            timeout: Some(Duration::from_secs(60)),
            fuel: None,
        }
    }
}

/// Counts a guest's memories and tables together, where wasmtime's limiter looks at each alone.
#[derive(Debug)]
pub(crate) struct Quota {
    memory: Share,
    table: Share,
}

/// Granted memory stays counted, also if the growth then fails: wasmtime reports failures of growths for which it did not request memory
/// too, so a guest that provokes these would get its quota back.
#[derive(Debug)]
struct Share {
    limit: usize,
    used: usize,
}

impl Share {
    fn new(limit: usize) -> Self {
        Self { limit, used: 0 }
    }

    fn grow(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> bool {
        let used = self.used.saturating_add(desired.saturating_sub(current));
        // Past the maximum that the guest gave itself the growth would fail.
        let granted = used <= self.limit && maximum.is_none_or(|maximum| desired <= maximum);
        if granted {
            self.used = used;
        }
        granted
    }
}

impl Quota {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            memory: Share::new(limits.memory),
            table: Share::new(TABLE_ELEMENTS),
        }
    }
}

impl ResourceLimiter for Quota {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(self.memory.grow(current, desired, maximum))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(self.table.grow(current, desired, maximum))
    }

    fn instances(&self) -> usize {
        INSTANCES
    }

    fn tables(&self) -> usize {
        TABLES
    }

    fn memories(&self) -> usize {
        MEMORIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_count_together() {
        let mut share = Share::new(100);
        assert!(share.grow(0, 60, None));
        assert!(!share.grow(0, 41, None));
        assert!(share.grow(0, 40, None));
        assert!(!share.grow(60, 61, None));
        assert_eq!(share.used, 100);
    }

    #[test]
    fn what_cannot_grow_is_not_counted() {
        let mut share = Share::new(100);
        assert!(!share.grow(0, 200, None));
        assert!(!share.grow(0, 50, Some(40)));
        assert!(!share.grow(1, usize::MAX, None));
        assert_eq!(share.used, 0);
        assert!(share.grow(0, 100, Some(100)));
        assert!(share.grow(100, 100, None));
    }
}
