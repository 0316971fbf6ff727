//! Candle's Metal device on top of the WebGPU backend.
//!
//! [`MetalDevice`] and [`MetalStorage`] hold a WebGPU device and storage whose adapter is one of Metal's. Kernels are those of
//! [`webgpu_backend`](crate::webgpu_backend) in WGSL, which naga translates to Metal's language. So there are no `MTLBuffer`s and no
//! command encoders to hand out; `docs/differences.md` in the repository lists what is missing for that reason.
//!
//! A custom op runs its `metal_fwd`, which by default is its `webgpu_fwd` on the storage inside. The variables `CANDLE_WEBGPU_*` hold for
//! these devices too.
//!
//! Devices are opened on Apple's systems. With `CANDLE_METAL_EMULATED=1` in the environment they are opened elsewhere too, on adapters of
//! any kind: for tests.

mod crossing;
mod device;
mod quantized;
mod storage;

pub use crate::compat::metal::MetalError;
pub(crate) use crossing::on_metal;
pub use device::{DeviceId, MetalDevice};
pub use quantized::QMetalStorage;
pub use storage::MetalStorage;
pub(crate) use storage::PendingRead;
