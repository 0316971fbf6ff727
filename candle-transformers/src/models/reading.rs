//! Reading numbers from the device.

use candle_core::{DType, Device, Result, Tensor};

/// The way in which a thread waits for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// It waits: every future is ready when it is polled first.
    Blocking,
    /// Yields to other tasks, as a browser requires.
    Async,
}

impl Reading {
    pub(crate) async fn vector(self, tensor: &Tensor) -> Result<Vec<f32>> {
        match self {
            Self::Blocking => on_the_host(tensor)?.to_vec1(),
            Self::Async => tensor.to_dtype(DType::F32)?.to_vec1_async().await,
        }
    }

    pub(crate) async fn matrix(self, tensor: &Tensor) -> Result<Vec<Vec<f32>>> {
        match self {
            Self::Blocking => on_the_host(tensor)?.to_vec2(),
            Self::Async => tensor.to_dtype(DType::F32)?.to_vec2_async().await,
        }
    }

    pub(crate) async fn matrices(self, tensor: &Tensor) -> Result<Vec<Vec<Vec<f32>>>> {
        match self {
            Self::Blocking => on_the_host(tensor)?.to_vec3(),
            Self::Async => tensor.to_dtype(DType::F32)?.to_vec3_async().await,
        }
    }
}

/// Converted there: half as many bytes are read of an f16 tensor.
fn on_the_host(tensor: &Tensor) -> Result<Tensor> {
    tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)
}
