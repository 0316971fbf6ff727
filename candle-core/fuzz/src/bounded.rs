//! Shared code of the fuzz targets: a memory limit, and a reader of tensors.
//!
//! The fuzzer detects panics, overflows and hangs. The allocator below detects allocations sized by a length field in the file: it
//! counts allocated bytes and aborts if they exceed the limit for the input's size.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::Once;

use candle_core::{Result, Tensor};

/// Maximum memory for reading, per byte of the input. Deflate unpacks one byte to at most 1032, and the capacity of a growing buffer may be
/// twice its length.
const BYTES_PER_BYTE: usize = 2048;

/// Memory that reading may use for any input: buffers and thread pools.
const BYTES_ALWAYS: usize = 4 << 20;

static TAKEN: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn take(bytes: usize) {
    let taken = TAKEN.fetch_add(bytes, Relaxed).saturating_add(bytes);
    if taken > LIMIT.load(Relaxed) {
        // Reporting allocates as well.
        LIMIT.store(usize::MAX, Relaxed);
        eprintln!(
            "{taken} bytes are taken after an allocation of {bytes}, more than the input justifies"
        );
        std::process::abort();
    }
}

// SAFETY: all calls are forwarded unchanged to the system's allocator; counting changes no pointer.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        take(new_size.saturating_sub(layout.size()));
        TAKEN.fetch_sub(layout.size().saturating_sub(new_size), Relaxed);
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        TAKEN.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Reads an input with `f`, within the memory that its length justifies. An error is a valid outcome if it has a message.
pub fn bounded(data: &[u8], f: impl FnOnce() -> Result<()>) {
    static WITHOUT_BACKTRACES: Once = Once::new();
    // A backtrace with function names takes more memory than any input. SAFETY: no other thread reads the environment yet.
    WITHOUT_BACKTRACES.call_once(|| unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") });
    let justified = data.len().saturating_mul(BYTES_PER_BYTE);
    let limit = TAKEN.load(Relaxed).saturating_add(justified);
    LIMIT.store(limit.saturating_add(BYTES_ALWAYS), Relaxed);
    let result = f();
    if let Err(err) = result {
        assert_ne!(err.to_string(), "");
    }
    LIMIT.store(usize::MAX, Relaxed);
}

/// A tensor that repeats its elements may have more of them than the file has bytes, by design; whether to read them is the user's
/// decision.
const READ_AT_MOST: usize = 1 << 16;

/// Reads every element.
pub fn read(tensor: &Tensor) -> Result<()> {
    if tensor.elem_count() <= READ_AT_MOST {
        tensor.write_bytes(&mut std::io::sink())?;
    }
    Ok(())
}
