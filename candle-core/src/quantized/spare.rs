//! Memory of weights that are copied to a device one layer at a time.

use crate::Device;

/// During its lifetime, dropped quantised tensors of a CUDA device leave their memory to the next ones of the same size. A copy to the
/// device then waits for the kernels that read the dropped tensor, not for those queued since: it runs while they do.
///
/// Drop tensors in turn: with two sets of weights, one is copied while the other is used. Sizes that are no longer requested return to
/// the device. Other devices have nothing to keep: WebGPU's buffers are reused anyway.
#[must_use = "memory is kept as long as this lives"]
pub struct SpareMemory {
    #[cfg(feature = "cuda")]
    _spares: Option<std::sync::Arc<crate::cuda_backend::Spares>>,
}

impl SpareMemory {
    /// Keeps memory of `device`.
    pub fn keep(device: &Device) -> Self {
        #[cfg(not(feature = "cuda"))]
        let _ = device;
        Self {
            #[cfg(feature = "cuda")]
            _spares: match device {
                Device::Cuda(device) => Some(device.keep_spares()),
                _ => None,
            },
        }
    }
}
