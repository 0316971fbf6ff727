//! Device memory: host memory, filled with 0xFF, with a guard before and after each allocation.

use crate::device::{current_device, MEMORY};
use crate::status::*;
use std::alloc::Layout;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// Sizes in bytes of the guards before and after, which must not be written. The front one keeps the device's alignment of 256.
const FRONT: usize = 256;
const BACK: usize = 1024;
const GUARD: u8 = 0xa5;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Device,
    /// Of the host, accessible from every device.
    Host,
}

#[derive(Clone, Copy)]
pub struct Allocation {
    pub start: usize,
    pub bytes: usize,
    pub device: usize,
    pub kind: Kind,
    /// The capture in which it was allocated, whose graph owns it.
    pub capture: Option<u64>,
}

impl Allocation {
    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes.checked_add(FRONT + BACK)?, 256).ok()
    }

    /// The first byte of a guard that changed, as an offset from the start.
    fn damage(&self) -> Option<isize> {
        let guards = [(self.start - FRONT, FRONT), (self.start + self.bytes, BACK)];
        for (at, bytes) in guards {
            let guard = unsafe { std::slice::from_raw_parts(at as *const u8, bytes) };
            if let Some(byte) = guard.iter().position(|byte| *byte != GUARD) {
                return Some((at + byte) as isize - self.start as isize);
            }
        }
        None
    }

    /// Aborts the program if a guard changed.
    pub fn check(&self, by: &str) {
        if let Some(offset) = self.damage() {
            eprintln!(
                "CUDA emulator: {by} wrote outside of its buffer: byte {offset} of an allocation of {} bytes of device {}",
                self.bytes, self.device
            );
            std::process::abort();
        }
    }

    pub fn fill(&self, byte: u8) {
        unsafe { std::ptr::write_bytes(self.start as *mut u8, byte, self.bytes) };
    }
}

struct Memory {
    by_start: BTreeMap<usize, Allocation>,
    /// Bytes in use on each device.
    used: BTreeMap<usize, usize>,
    /// The last kernel, for the message about a damaged guard.
    last_kernel: String,
}

static ALL: Mutex<Memory> = Mutex::new(Memory {
    by_start: BTreeMap::new(),
    used: BTreeMap::new(),
    last_kernel: String::new(),
});

fn all() -> MutexGuard<'static, Memory> {
    ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub fn allocate(
    device: usize,
    bytes: usize,
    kind: Kind,
    capture: Option<u64>,
) -> Result<Allocation, Status> {
    if bytes == 0 {
        return Err(ERROR_INVALID_VALUE);
    }
    let layout = Allocation::layout(bytes).ok_or(ERROR_OUT_OF_MEMORY)?;
    let mut memory = all();
    if kind == Kind::Device && memory.used.get(&device).unwrap_or(&0) + bytes > MEMORY {
        return Err(ERROR_OUT_OF_MEMORY);
    }
    let base = unsafe { std::alloc::alloc(layout) };
    if base.is_null() {
        return Err(ERROR_OUT_OF_MEMORY);
    }
    let allocation = Allocation {
        start: base as usize + FRONT,
        bytes,
        device,
        kind,
        capture,
    };
    unsafe {
        std::ptr::write_bytes(base, GUARD, FRONT);
        std::ptr::write_bytes(base.add(FRONT + bytes), GUARD, BACK);
    }
    allocation.fill(0xff);
    if kind == Kind::Device {
        *memory.used.entry(device).or_default() += bytes;
    }
    memory.by_start.insert(allocation.start, allocation);
    Ok(allocation)
}

pub fn free(start: usize, kind: Kind) -> Result<(), Status> {
    let mut memory = all();
    let allocation = *memory
        .by_start
        .get(&start)
        .filter(|found| found.kind == kind)
        .ok_or(ERROR_INVALID_VALUE)?;
    allocation.check(&format!("kernel {:?} or one before", memory.last_kernel));
    memory.by_start.remove(&start);
    if kind == Kind::Device {
        *memory.used.entry(allocation.device).or_default() -= allocation.bytes;
    }
    // Later reads of it return NaN.
    allocation.fill(0xff);
    let layout = Allocation::layout(allocation.bytes).ok_or(ERROR_UNKNOWN)?;
    unsafe { std::alloc::dealloc((start - FRONT) as *mut u8, layout) };
    Ok(())
}

/// The allocation that contains an address, or ends at it.
pub fn find(address: usize) -> Option<Allocation> {
    let memory = all();
    let (_, found) = memory.by_start.range(..=address).next_back()?;
    (address <= found.start + found.bytes).then_some(*found)
}

/// An error unless `bytes` from `start` on are in one allocation of a device, or in pinned memory.
pub fn expect_within(start: usize, bytes: usize) -> Result<(), Status> {
    if bytes == 0 {
        return Ok(());
    }
    let found = find(start).ok_or(ERROR_INVALID_VALUE)?;
    if start + bytes <= found.start + found.bytes {
        Ok(())
    } else {
        eprintln!(
            "CUDA emulator: {bytes} bytes at offset {} of an allocation of {} bytes",
            start - found.start,
            found.bytes
        );
        Err(ERROR_INVALID_VALUE)
    }
}

/// Checks every guard, as synchronisation does.
pub fn check_all() {
    let memory = all();
    let by = format!("kernel {:?} or one before", memory.last_kernel);
    memory
        .by_start
        .values()
        .for_each(|allocation| allocation.check(&by));
}

pub fn ran(kernel: &str) {
    let mut memory = all();
    memory.last_kernel.clear();
    memory.last_kernel.push_str(kernel);
}

/// Frees the allocations of a capture, after its graphs are destroyed.
pub fn free_capture(capture: u64) {
    let starts: Vec<usize> = all()
        .by_start
        .values()
        .filter(|found| found.capture == Some(capture))
        .map(|found| found.start)
        .collect();
    for start in starts {
        let _ = free(start, Kind::Device);
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuMemGetInfo_v2(unused: *mut usize, total: *mut usize) -> Status {
    status(current_device().and_then(|device| {
        let used = all().used.get(&device).copied().unwrap_or(0);
        unsafe { put(unused, MEMORY - used).and(put(total, MEMORY)) }
    }))
}

#[no_mangle]
pub unsafe extern "C" fn cuMemHostAlloc(to: *mut usize, bytes: usize, _flags: u32) -> Status {
    status(current_device().and_then(|device| {
        let allocation = allocate(device, bytes, Kind::Host, None)?;
        unsafe { put(to, allocation.start) }
    }))
}

#[no_mangle]
pub extern "C" fn cuMemFreeHost(start: usize) -> Status {
    status(free(start, Kind::Host))
}

#[no_mangle]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    to: *mut usize,
    host: usize,
    _flags: u32,
) -> Status {
    match find(host) {
        Some(found) if found.kind == Kind::Host => status(unsafe { put(to, host) }),
        _ => ERROR_INVALID_VALUE,
    }
}

// Pools: one for each device, which keeps no freed memory.

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetDefaultMemPool(to: *mut usize, device: i32) -> Status {
    status(unsafe { put(to, 0x2000 + 16 * device as usize) })
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetMemPool(to: *mut usize, device: i32) -> Status {
    unsafe { cuDeviceGetDefaultMemPool(to, device) }
}

#[no_mangle]
pub extern "C" fn cuMemPoolSetAttribute(_pool: usize, _attribute: u32, _value: *mut u64) -> Status {
    SUCCESS
}

#[no_mangle]
pub unsafe extern "C" fn cuMemPoolGetAttribute(
    pool: usize,
    attribute: u32,
    value: *mut u64,
) -> Status {
    let device = pool.wrapping_sub(0x2000) / 16;
    let used = all().used.get(&device).copied().unwrap_or(0) as u64;
    status(match attribute {
        1..=3 => unsafe { put(value.cast::<i32>(), 1) },
        // Reserved and used, now and at most.
        5..=8 => unsafe { put(value, used) },
        _ => unsafe { put(value, 0) },
    })
}

#[no_mangle]
pub extern "C" fn cuMemPoolTrimTo(_pool: usize, _keep: usize) -> Status {
    SUCCESS
}
