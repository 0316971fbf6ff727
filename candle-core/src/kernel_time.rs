//! What a profile of a GPU tells of its kernels.

/// What one kernel took, summed over its launches, which are WebGPU's dispatches.
#[derive(Debug, Clone)]
pub struct KernelTime {
    /// The kernel and what it was specialised for.
    pub kernel: String,
    /// How often it ran.
    pub count: u64,
    /// Time on the GPU in microseconds, all launches together.
    pub total_us: f64,
}
