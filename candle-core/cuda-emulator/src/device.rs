//! Devices, their attributes, and the contexts of threads.

use crate::status::*;
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

/// Memory of each device in bytes.
pub const MEMORY: usize = 8 << 30;
const NAME: &[u8] = b"CUDA emulator\0";

static READY: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The contexts of this thread; the last is the current one. Zero means none.
    static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

fn setting<T: FromStr + Copy>(name: &str, otherwise: T) -> T {
    match std::env::var(name) {
        Err(_) => otherwise,
        Ok(text) => text.parse().unwrap_or_else(|_| {
            eprintln!("CUDA emulator: {name}={text} cannot be read and is ignored");
            otherwise
        }),
    }
}

pub fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| setting("CANDLE_CUDA_EMULATOR_DEVICES", 1))
}

/// Major and minor.
pub fn compute_capability() -> (i32, i32) {
    static CAPABILITY: OnceLock<(i32, i32)> = OnceLock::new();
    *CAPABILITY.get_or_init(|| {
        let text: String = std::env::var("CANDLE_CUDA_EMULATOR_CC").unwrap_or_default();
        let parts = text
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        if parts.is_none() && !text.is_empty() {
            eprintln!(
                "CUDA emulator: CANDLE_CUDA_EMULATOR_CC={text} is not like 8.0 and is ignored"
            );
        }
        parts.unwrap_or((8, 0))
    })
}

/// Maximum shared memory in bytes of a block whose kernel requested more than 48 KiB.
pub fn shared_at_most() -> usize {
    match compute_capability() {
        (7, 5) => 64 << 10,
        (8, 0) | (8, 7) => 163 << 10,
        (8, _) | (12, _) => 99 << 10,
        _ => 227 << 10,
    }
}

fn known(device: c_int) -> Result<usize, Status> {
    if !READY.load(Ordering::Relaxed) {
        return Err(ERROR_NOT_INITIALIZED);
    }
    usize::try_from(device)
        .ok()
        .filter(|device| *device < count())
        .ok_or(ERROR_INVALID_DEVICE)
}

fn context_of(device: usize) -> usize {
    0x1000 + 16 * device
}

/// The device of a context's handle.
pub fn device_of(context: usize) -> Result<usize, Status> {
    let device = context.wrapping_sub(0x1000) / 16;
    if device < count() && context_of(device) == context {
        Ok(device)
    } else {
        Err(ERROR_INVALID_CONTEXT)
    }
}

fn current() -> usize {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied().unwrap_or(0))
}

/// The device of this thread's context.
pub fn current_device() -> Result<usize, Status> {
    match current() {
        0 => Err(ERROR_INVALID_CONTEXT),
        context => device_of(context),
    }
}

#[no_mangle]
pub extern "C" fn cuInit(flags: c_uint) -> Status {
    if flags != 0 {
        return ERROR_INVALID_VALUE;
    }
    READY.store(true, Ordering::Relaxed);
    SUCCESS
}

#[no_mangle]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    status(unsafe { put(version, 13000) })
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetCount(to: *mut c_int) -> Status {
    status(unsafe { put(to, count() as c_int) })
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGet(to: *mut c_int, ordinal: c_int) -> Status {
    status(known(ordinal).and_then(|device| unsafe { put(to, device as c_int) }))
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetName(to: *mut c_char, length: c_int, device: c_int) -> Status {
    if to.is_null() || length <= 0 {
        return ERROR_INVALID_VALUE;
    }
    if let Err(error) = known(device) {
        return error;
    }
    let length = (length as usize).min(NAME.len());
    unsafe {
        std::ptr::copy_nonoverlapping(NAME.as_ptr().cast(), to, length);
        to.add(length - 1).write(0);
    }
    SUCCESS
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(to: *mut usize, device: c_int) -> Status {
    status(known(device).and_then(|_| unsafe { put(to, MEMORY) }))
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetUuid(to: *mut [u8; 16], device: c_int) -> Status {
    let mut uuid = *b"candle-emulator\0";
    status(known(device).and_then(|device| {
        uuid[15] = device as u8;
        unsafe { put(to, uuid) }
    }))
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(to: *mut [u8; 16], device: c_int) -> Status {
    unsafe { cuDeviceGetUuid(to, device) }
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    to: *mut c_int,
    attribute: c_int,
    device: c_int,
) -> Status {
    if let Err(error) = known(device) {
        return error;
    }
    let (major, minor) = compute_capability();
    let value = match attribute {
        1..=3 => 1024,                          // threads of a block, in all, along x, along y
        4 => 64,                                // along z
        5 => i32::MAX,                          // blocks along x
        6 | 7 => 65535,                         // along y, z
        8 => 48 << 10,                          // shared memory of a block
        9 => 64 << 10,                          // constant memory
        10 => 32,                               // lanes of a warp
        12 | 82 => 65536,                       // registers
        13 | 36 => 1_000_000,                   // clocks in kHz
        14 => 512,                              // alignment of textures
        15 | 19 | 31 | 40 | 41 | 78 | 115 => 1, // overlap, host memory mapped, unified addresses, pools
        16 => 4,                                // multiprocessors
        33 => 1 + device,                       // PCI bus
        37 => 256,                              // width of the bus
        38 => 4 << 20,                          // second-level cache
        39 => {
            if major == 8 && minor != 0 {
                1536
            } else if (major, minor) == (7, 5) {
                1024
            } else {
                2048
            }
        }
        75 => major,
        76 => minor,
        81 => shared_at_most() as i32 + 1024,
        97 => shared_at_most() as i32,
        106 => 16,
        111 => 1024,
        _ => 0,
    };
    status(unsafe { put(to, value) })
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(
    to: *mut c_int,
    device: c_int,
    peer: c_int,
) -> Status {
    status(
        known(device)
            .and(known(peer))
            .and_then(|_| unsafe { put(to, 0) }),
    )
}

#[no_mangle]
pub extern "C" fn cuCtxEnablePeerAccess(_peer: usize, _flags: c_uint) -> Status {
    ERROR_PEER_ACCESS_UNSUPPORTED
}

#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(to: *mut usize, device: c_int) -> Status {
    status(known(device).and_then(|device| unsafe { put(to, context_of(device)) }))
}

#[no_mangle]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Status {
    status(known(device).map(drop))
}

#[no_mangle]
pub extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) -> Status {
    status(known(device).map(drop))
}

#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: c_int,
    flags: *mut c_uint,
    active: *mut c_int,
) -> Status {
    status(known(device).and_then(|_| unsafe { put(flags, 0).and(put(active, 1)) }))
}

#[no_mangle]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> Status {
    if context != 0 {
        if let Err(error) = device_of(context) {
            return error;
        }
    }
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.pop();
        contexts.push(context);
    });
    SUCCESS
}

#[no_mangle]
pub extern "C" fn cuCtxPushCurrent_v2(context: usize) -> Status {
    if let Err(error) = device_of(context) {
        return error;
    }
    CONTEXTS.with_borrow_mut(|contexts| contexts.push(context));
    SUCCESS
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(to: *mut usize) -> Status {
    let popped = CONTEXTS.with_borrow_mut(Vec::pop).unwrap_or(0);
    if popped == 0 {
        return ERROR_INVALID_CONTEXT;
    }
    unsafe {
        if !to.is_null() {
            to.write(popped);
        }
    }
    SUCCESS
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxGetCurrent(to: *mut usize) -> Status {
    status(unsafe { put(to, current()) })
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxGetDevice(to: *mut c_int) -> Status {
    status(current_device().and_then(|device| unsafe { put(to, device as c_int) }))
}

#[no_mangle]
pub extern "C" fn cuCtxSetFlags(_flags: c_uint) -> Status {
    status(current_device().map(drop))
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> Status {
    unsafe {
        for to in [least, greatest] {
            if !to.is_null() {
                to.write(0);
            }
        }
    }
    SUCCESS
}
