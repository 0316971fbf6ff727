//! Candle's Metal device on top of the WebGPU backend.
//!
//! [`MetalDevice`] and [`MetalStorage`] contain a WebGPU device and storage on a Metal adapter. The kernels are those of
//! [`webgpu_backend`](crate::webgpu_backend) in WGSL, which naga translates to Metal's language. There are no `MTLBuffer`s and no command
//! encoders to return; `docs/differences.md` in the repository lists what is missing for that reason.
//!
//! A custom op runs its `metal_fwd`, by default its `webgpu_fwd` on the inner storage. The variables `CANDLE_WEBGPU_*` apply to these
//! devices too.
//!
//! Devices can be opened on Apple's systems. For tests, `CANDLE_METAL_EMULATED=1` in the environment opens them on other systems too, on
//! adapters of any kind.

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
