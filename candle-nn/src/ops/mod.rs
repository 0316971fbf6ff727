//! Functions over tensors: activations, softmax, norms, attention.
//!
//! The fused functions ([`softmax_last_dim`], [`rms_norm`], [`layer_norm`], [`act_mul`], [`sdpa`] and those of
//! [`rotary_emb`](crate::rotary_emb)) are one kernel on each device, take any strided layout, and compute 16-bit inputs in f32. Each also
//! has a plain form, composed of tensor ops. Inputs that are part of an autograd graph take the plain form, so that gradients flow through
//! all functions.

mod conv;
mod dropout;
mod elementwise;
mod gated;
mod linear;
mod norm;
mod pixels;
mod sdpa;
mod softmax;

pub(crate) use conv::ConvLayer;
pub use dropout::{dropout, Dropout, Identity};
pub(crate) use elementwise::{halves_at_zero, hard_clamp};
pub use elementwise::{hard_sigmoid, leaky_relu, mish, selu, sigmoid, silu, swiglu};
pub use gated::{act_mul, act_mul_slow, gated, gated_slow, GatedActivation};
pub use linear::{linear_with, linear_with_slow, LinearExtras, LinearWeight};
pub use norm::{
    add_norm, add_norm_slow, layer_norm, layer_norm_slow, norm, norm_add, norm_add_slow, norm_gate,
    norm_gate_slow, norm_slow, rms_norm, rms_norm_slow, Norm,
};
pub(crate) use norm::{centred, normed};
pub use pixels::{pixel_shuffle, pixel_unshuffle, replication_pad2d};
pub(crate) use sdpa::{attend, Rules};
pub use sdpa::{sdpa, sdpa_slow, sdpa_with, sdpa_with_slow, SdpaOptions, SdpaPages};
pub(crate) use softmax::softmax_into;
pub use softmax::{log_softmax, softmax, softmax_last_dim};

use candle_core::fused::Fused;
use candle_core::{DType, Error, Result, Shape, Storage, Tensor};

/// Checks what every fused op requires of its inputs: one float dtype that it can compute in.
pub(crate) fn check_dtypes(op: &'static str, tensors: &[&Tensor]) -> Result<()> {
    let dtype = tensors[0].dtype();
    if let Some(other) = tensors.iter().find(|t| t.dtype() != dtype) {
        return Err(Error::DTypeMismatchBinaryOp {
            lhs: dtype,
            rhs: other.dtype(),
            op,
        }
        .bt());
    }
    match dtype {
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Ok(()),
        dtype => Err(Error::UnsupportedDTypeForOp(dtype, op).bt()),
    }
}

/// Whether one of these may need a gradient, so that the op must be composed of ops with gradients.
pub(crate) fn in_graph(tensors: &[&Tensor]) -> bool {
    tensors.iter().any(|t| t.track_op())
}

/// Zeros of `shape`, of the dtype and on the device of `like`: the result of an op that has nothing to compute. Gradients flow through it
/// to `args`, as zeros, so that an optimiser finds one for every variable.
pub(crate) fn zeros_of<S: Into<Shape>>(
    shape: S,
    like: &Tensor,
    args: &[&Tensor],
) -> Result<Tensor> {
    let mut zeros = Tensor::zeros(shape, like.dtype(), like.device())?;
    for arg in args.iter().filter(|arg| arg.track_op()) {
        // The sum of none of its elements.
        let nothing = arg.flatten_all()?.narrow(0, 0, 0)?.sum_all()?;
        zeros = zeros.broadcast_add(&nothing.to_dtype(like.dtype())?)?;
    }
    Ok(zeros)
}

/// The dtype to compute in: f32 for the floats of 16 and 8 bits, otherwise the one given.
pub(crate) fn compute_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3 => DType::F32,
        dtype => dtype,
    }
}

/// `t` with a contiguous last dimension, copied only if necessary.
pub(crate) fn last_dim_contiguous(t: &Tensor) -> Result<Tensor> {
    match (t.dims().last(), t.stride().last()) {
        (Some(&dim), Some(&stride)) if dim > 1 && stride != 1 => t.contiguous(),
        _ => Ok(t.clone()),
    }
}

/// The forms of a custom op on the devices that have fused ops: its method `on_device`, of storages with their layouts.
macro_rules! on_devices {
    ($($x:ident $layout:ident),+) => {
        fn cuda_fwd(
            &self,
            $($x: &candle_core::CudaStorage, $layout: &candle_core::Layout),+
        ) -> candle_core::Result<(candle_core::CudaStorage, candle_core::Shape)> {
            self.on_device([$(($x, $layout)),+])
        }

        candle_core::with_webgpu! {
            fn webgpu_fwd(
                &self,
                $($x: &candle_core::WebGpuStorage, $layout: &candle_core::Layout),+
            ) -> candle_core::Result<(candle_core::WebGpuStorage, candle_core::Shape)> {
                self.on_device([$(($x, $layout)),+])
            }
        }
    };
}
pub(crate) use on_devices;

/// Whether a device has fused ops.
pub(crate) fn has_fused(device: &candle_core::Device) -> bool {
    device.is_cuda() || device.is_wgpu()
}

/// `$body`, in which `$S` is the type of the storages of a device that has fused ops, else `$other`.
macro_rules! with_fused {
    ($device:expr, $S:ident => $body:expr, else $other:expr) => {
        match $device {
            candle_core::Device::Cuda(_) => {
                type $S = candle_core::CudaStorage;
                $body
            }
            device => {
                candle_core::with_webgpu! {
                    if device.is_wgpu() {
                        type $S = candle_core::WebGpuStorage;
                        return $body;
                    }
                }
                let _ = device;
                $other
            }
        }
    };
}
pub(crate) use with_fused;

/// The storage of an argument on the input's backend `S`.
///
/// # Errors
/// The argument is on another backend.
pub(crate) fn same_backend<'a, S: Fused>(
    storage: &'a Storage,
    op: &'static str,
    what: &'static str,
) -> Result<&'a S> {
    match S::of(storage) {
        Some(storage) => Ok(storage),
        None => candle_core::bail!(
            "{op}: the input is on a {} device, but the {what} ({:?}) is on {:?}",
            S::DEVICE,
            storage.dtype(),
            storage.device().location()
        ),
    }
}
