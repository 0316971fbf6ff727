//! Entries of a GPU profile.

/// The time of one kernel, summed over its launches (WebGPU's dispatches).
#[derive(Debug, Clone)]
pub struct KernelTime {
    /// The kernel and the values it is specialised for.
    pub kernel: String,
    /// Number of launches.
    pub count: u64,
    /// Time on the GPU in microseconds, all launches together.
    pub total_us: f64,
}
