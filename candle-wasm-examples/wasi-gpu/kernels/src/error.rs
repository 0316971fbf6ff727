//! What can go wrong, as the interface has it.

/// The interface's `gpu-error`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The device or the guest's quota has no room.
    #[error("out of memory: the device or the guest's quota has no room")]
    OutOfMemory,
    /// No buffer of this guest has that name, or it was destroyed.
    #[error("no such buffer")]
    InvalidBuffer,
    /// A kernel met something it cannot compute with, such as an index out of range.
    #[error("{0}")]
    KernelError(String),
    /// The device was lost: nothing of this guest will work any more.
    #[error("the device was lost")]
    DeviceUnavailable,
    /// Arguments that contradict each other or the buffers.
    #[error("{0}")]
    InvalidParams(String),
}
