//! Ops of candle-nn in one or two launches instead of many: norms, softmax, rotary embedding, gated activation, attention. Each has an
//! equivalent in candle-nn, composed of plain ops, which defines its result.

mod attention;
mod draw;
mod norm;
mod rope;
mod rows;
mod softmax;

pub use attention::{has_sdpa, sdpa};
pub use draw::draw;
pub use norm::{norm, Norm};
pub use rope::{rope, rope_append, rope_append_fits, RopeCache, Rotation};
pub use softmax::softmax_last_dim;

use super::elementwise;
use crate::backend::BackendStorage;
use crate::cuda_backend::{CudaDevice, CudaStorage};
use crate::fused::{Conv2d, Fused, Gate, LinearExtras, LinearWeight};
use crate::{DType, Result, Shape, Storage};

/// A storage and the layout of the elements that an op reads.
type Operand<'a> = crate::fused::Operand<'a, CudaStorage>;

/// Parameters of attention on CUDA storages.
pub type SdpaParams<'a> = crate::fused::SdpaParams<'a, CudaStorage>;

/// `gate` of gate and up projection, elementwise over two tensors of the same shape; the result is contiguous.
///
/// # Errors
/// If the dtype is an integer.
pub fn gated(x: Operand<'_>, up: Operand<'_>, gate: Gate) -> Result<CudaStorage> {
    elementwise::binary(x.0, up.0, x.1, up.1, gate.function())
}

/// The C++ type of a float that kernels compute with, or an error that names op, dtype and card.
fn float_type(device: &CudaDevice, dtype: DType, op: &'static str) -> Result<&'static str> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::F64 => device.c_type(dtype, op),
        _ => Err(device.unsupported(op, dtype, "use f32, f16, bf16 or f64")),
    }
}

/// The address of a layout's first element.
fn address((storage, layout): Operand<'_>) -> u64 {
    storage.address() + (layout.start_offset() * storage.dtype().size_in_bytes()) as u64
}

/// The address of an optional operand; null if it is absent.
fn address_or_null(operand: Option<Operand<'_>>) -> u64 {
    operand.map_or(0, address)
}

/// Whether `lanes` elements from the first on, and from each stride of the first `axes` dimensions on, are aligned as one word.
fn aligned((storage, layout): Operand<'_>, axes: usize, lanes: usize) -> bool {
    let word = (lanes * storage.dtype().size_in_bytes()) as u64;
    let steps = layout.dims().iter().zip(layout.stride()).take(axes);
    address((storage, layout)).is_multiple_of(word)
        && steps
            .into_iter()
            .all(|(size, step)| *size <= 1 || step.is_multiple_of(lanes))
}

impl Fused for CudaStorage {
    const DEVICE: &'static str = "CUDA";

    fn of(storage: &Storage) -> Option<&Self> {
        match storage {
            Storage::Cuda(storage) => Some(storage),
            _ => None,
        }
    }

    fn softmax_last_dim((x, layout): Operand<'_>) -> Result<Self> {
        softmax_last_dim(x, layout)
    }

    fn draw(logits: Operand<'_>, draws: Operand<'_>) -> Result<Self> {
        draw(logits, draws)
    }

    fn norm(x: Operand<'_>, with: Norm<'_>) -> Result<Self> {
        norm(x, with)
    }

    fn gated(x: Operand<'_>, up: Operand<'_>, gate: Gate) -> Result<Self> {
        gated(x, up, gate)
    }

    fn sigmoid((x, layout): Operand<'_>) -> Result<Self> {
        elementwise::unary(x, layout, "sigmoid")
    }

    fn linear(
        x: Operand<'_>,
        weight: LinearWeight<'_, Self>,
        extras: LinearExtras<'_, Self>,
    ) -> Result<Self> {
        super::linear::linear(x, weight, extras)
    }

    fn conv2d(
        x: Operand<'_>,
        kernel: Operand<'_>,
        conv: Conv2d<'_, Self>,
    ) -> Result<(Self, Shape)> {
        let (params, shape) = conv.check(x, kernel)?;
        float_type(x.0.device(), x.0.dtype(), "conv2d")?;
        let dst = x.0.conv2d(x.1, kernel.0, kernel.1, &params)?;
        let (b, channels, o_h, o_w) = shape.dims4()?;
        let dims = [b, channels, o_h * o_w];
        let dst = conv.after(dst, dims, elementwise::binary, elementwise::unary)?;
        Ok((dst, shape))
    }

    fn rope(inputs: [Operand<'_>; 3], rotation: Rotation<'_>) -> Result<Self> {
        rope(inputs, rotation)
    }

    fn rope_append_fits(storages: [&Self; 4]) -> bool {
        rope_append_fits(storages)
    }

    fn rope_append(
        inputs: [Operand<'_>; 3],
        rotation: Rotation<'_>,
        into: RopeCache<'_>,
    ) -> Result<Self> {
        rope_append(inputs, rotation, into)
    }

    fn has_sdpa(inputs: [Operand<'_>; 3], params: SdpaParams<'_>) -> Result<bool> {
        has_sdpa(inputs, params)
    }

    fn sdpa(inputs: [Operand<'_>; 3], params: SdpaParams<'_>) -> Result<Self> {
        sdpa(inputs, params)
    }
}
