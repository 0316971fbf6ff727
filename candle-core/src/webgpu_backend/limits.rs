//! Sizes that everything here keeps to, because every adapter and browser does.

/// The most storage buffers that a kernel binds; what every browser gives.
pub(super) const MAX_BUFFERS: usize = 8;
/// Bytes of parameters that one dispatch may have: a dynamic offset's default alignment.
pub(super) const PARAM_BYTES: usize = 256;
/// What a binding's place in its buffer is a multiple of. Every adapter takes it, and groups of elements that kernels read at
/// once stay aligned in a window.
pub(super) const WINDOW_ALIGN: u64 = 256;
