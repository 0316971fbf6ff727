//! Limits that this backend respects, because every adapter and browser supports them.

/// Maximum number of storage buffers of a kernel; the minimum of every browser.
pub(super) const MAX_BUFFERS: usize = 8;
/// Maximum size in bytes of a dispatch's parameters: the default alignment of a dynamic offset.
pub(super) const PARAM_BYTES: usize = 256;
/// Alignment of a binding's offset in its buffer. Every adapter accepts it, and groups of elements that kernels read at once stay aligned
/// in a window.
pub(super) const WINDOW_ALIGN: u64 = 256;
