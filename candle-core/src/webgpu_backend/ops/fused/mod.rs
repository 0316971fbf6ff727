//! Ops of candle-nn in one or two dispatches instead of many: norms, linear layers with their neighbours, softmax, rotary embedding, gated
//! activation, attention. Each has an equivalent in candle-nn, composed of plain ops, which defines its result.

mod attention;
mod draw;
mod linear;
mod long_rows;
mod norm;
mod rope;
mod softmax;

pub use attention::{has_sdpa, sdpa, SdpaParams};
pub use draw::draw;
pub use linear::{linear, LinearExtras, LinearWeight};
pub use norm::{norm, Norm};
pub use rope::{rope, rope_append, rope_append_fits, RopeCache, RopePosition, Rotation};
pub use softmax::softmax_last_dim;

use super::windows::Operand;
use super::{index, Views};
use crate::backend::BackendStorage;
use crate::conv::Geometry;
pub use crate::fused::{Activation, BesideNorm, Gate, RopeKind};
use crate::fused::{Conv2d, Fused};
use crate::op::{Exp, Neg, Recip};
use crate::webgpu_backend::kernel::{Caps, Elem, Shader};
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{DType, Error, Layout, Result, Shape, Storage};

/// `gate` of gate and up projection, elementwise over two tensors of the same shape; the result is contiguous.
pub fn gated(x: Operand<'_>, up: Operand<'_>, gate: Gate) -> Result<WebGpuStorage> {
    super::elementwise::binary(x.0, up.0, x.1, up.1, gate.function())
}

impl Fused for WebGpuStorage {
    const DEVICE: &'static str = "WebGPU";

    /// Returns the storage, for a Metal device the one inside.
    fn of(storage: &Storage) -> Option<&Self> {
        storage.as_wgpu()
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

    /// Elementwise dispatches in f32, so that only the last one rounds a 16-bit input.
    fn sigmoid((x, layout): Operand<'_>) -> Result<Self> {
        let dtype = match x.dtype() {
            DType::F16 | DType::BF16 => DType::F32,
            dtype => dtype,
        };
        let contiguous = Layout::contiguous(layout.shape());
        let exp = x
            .to_dtype(layout, dtype)?
            .unary_impl::<Neg>(&contiguous)?
            .unary_impl::<Exp>(&contiguous)?;
        exp.affine(&contiguous, 1.0, 1.0)?
            .unary_impl::<Recip>(&contiguous)?
            .to_dtype(&contiguous, x.dtype())
    }

    fn linear(x: Operand<'_>, weight: LinearWeight<'_>, extras: LinearExtras<'_>) -> Result<Self> {
        linear(x, weight, extras)
    }

    fn conv2d(
        x: Operand<'_>,
        kernel: Operand<'_>,
        conv: Conv2d<'_, Self>,
    ) -> Result<(Self, Shape)> {
        let (params, shape) = conv.check(x, kernel)?;
        float_elem(x.0.device(), x.0.dtype(), "conv2d")?;
        let operands = super::conv::Operands::new(x.0, x.1, kernel.0, kernel.1);
        let dst = super::conv::run_with(operands, Geometry::conv2d(&params)?, conv)?;
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

/// `N` tensors of the same shape as rows of their last dimension, for kernels with a workgroup per row.
struct Rows<const N: usize> {
    /// The rows' starts: the layouts without their last dimension.
    starts: Views<N>,
    /// Elements in a row.
    len: usize,
    /// The strides within a row.
    steps: [u32; N],
}

impl<const N: usize> Rows<N> {
    fn new(layouts: [&Layout; N], op: &'static str) -> Result<Self> {
        let Some((len, shape)) = layouts[0].dims().split_last() else {
            return Err(Error::Msg(format!("{op} needs a last dimension, got a scalar")).bt());
        };
        let rank = shape.len();
        let starts = layouts.map(|l| {
            let stride = l.stride()[..rank].to_vec();
            Layout::new(Shape::from(&l.dims()[..rank]), stride, l.start_offset())
        });
        let mut steps = [0; N];
        for (step, layout) in steps.iter_mut().zip(layouts) {
            *step = index(layout.stride()[rank])?;
        }
        Ok(Self {
            starts: Views::new(starts.each_ref())?,
            len: *len,
            steps,
        })
    }

    fn count(&self) -> usize {
        self.starts.len as usize
    }

    /// Invocations that share a row: few for short rows, so that none is idle.
    fn workgroup(&self) -> u32 {
        if self.len >= 1024 {
            256
        } else {
            64
        }
    }

    /// The dtype of the rows' storage: f32, to be converted, if an odd row would end within a word of a packed dtype.
    fn out(&self, dtype: DType, elem: Elem) -> (DType, Elem) {
        if self.len.is_multiple_of(elem.lanes() as usize) {
            (dtype, elem)
        } else {
            (DType::F32, Elem::F32)
        }
    }
}

/// An error unless `dtype` is a float that kernels compute with.
fn float_elem(device: &WebGpuDevice, dtype: DType, op: &'static str) -> Result<Elem> {
    let elem = device.elem(dtype, op)?;
    if !elem.in_wide_kernels() {
        return Err(device.unsupported(op, dtype, "use f32, f16 or bf16"));
    }
    Ok(elem)
}

/// Converts a result that was computed in f32 only because of its row length.
fn finish(dst: WebGpuStorage, dtype: DType) -> Result<WebGpuStorage> {
    if dst.dtype() == dtype {
        return Ok(dst);
    }
    super::elementwise::to_dtype(&dst, &Layout::contiguous(dst.len()), dtype)
}

impl Shader {
    /// Sums and maxima over a workgroup of `size` invocations, `count` sums at once.
    pub(super) fn sums(self, caps: &Caps, size: u32, count: u32) -> Self {
        let shader = self.constant("WG", size).constant("COUNT", count);
        match caps.subgroup {
            Some(subgroup) => shader
                .constant("SUBGROUP", subgroup)
                .text(include_str!("../../shaders/sum_subgroup.wgsl")),
            None => shader.text(include_str!("../../shaders/sum_workgroup.wgsl")),
        }
    }
}
