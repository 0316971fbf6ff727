//! Rotary position embedding (Su et al., arXiv 2104.09864).

use super::super::windows::{fit, Operand, Split};
use super::super::{bind, index, WORKGROUP};
use super::float_elem;
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Key, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{Layout, Result, Shape};

params!(RopeParams {
    x_offset: u32,
    x_batch: u32,
    x_head: u32,
    x_seq: u32,
    x_dim: u32,
    cos_offset: u32,
    cos_batch: u32,
    cos_seq: u32,
    cos_dim: u32,
    sin_offset: u32,
    sin_batch: u32,
    sin_seq: u32,
    sin_dim: u32,
    len: u32,
    heads: u32,
    rotated: u32,
    seq: u32,
    dim: u32,
});

/// Which elements of a head turn together, and in which order the dimensions come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeKind {
    /// `x[i]` with `x[i + dim / 2]`, in `(batch, heads, seq, dim)`.
    HalfSplit,
    /// `x[2 * i]` with `x[2 * i + 1]`, in `(batch, heads, seq, dim)`.
    Interleaved,
    /// As `HalfSplit`, in `(batch, seq, heads, dim)`.
    Thd,
}

/// `cos` or `sin`, `(seq, dim / 2)` or `(batch, seq, dim / 2)`, over the three leading dimensions of `x`.
fn over(layout: &Layout, dims: [usize; 3], seq_axis: usize) -> Result<Layout> {
    let [batch, seq, dim] = match *layout.stride() {
        [seq, dim] => [0, seq, dim],
        [batch, seq, dim] => [batch, seq, dim],
        _ => crate::bail!(
            "rope needs cos and sin of shape (seq, dim / 2) or (batch, seq, dim / 2), got {:?}",
            layout.shape()
        ),
    };
    let half = layout.dims()[layout.dims().len() - 1];
    let mut stride = vec![batch, 0, 0, dim];
    stride[seq_axis] = seq;
    let [a, b, c] = dims;
    Ok(Layout::new(
        Shape::from((a, b, c, half)),
        stride,
        layout.start_offset(),
    ))
}

/// Turns each pair of elements of the first `rotated` heads of `x` by its position's angle; other heads are copied. `x` is 4D,
/// any strides; the result is contiguous in its shape.
#[allow(clippy::too_many_arguments)]
pub fn rope(
    x: &WebGpuStorage,
    x_l: &Layout,
    cos: &WebGpuStorage,
    cos_l: &Layout,
    sin: &WebGpuStorage,
    sin_l: &Layout,
    kind: RopeKind,
    rotated: usize,
) -> Result<WebGpuStorage> {
    let (d0, d1, d2, dim) = x_l.shape().dims4()?;
    if !dim.is_multiple_of(2) {
        crate::bail!("rope turns pairs, so the last dimension must be even, got {dim}");
    }
    let dst = x.device().alloc(x_l.shape().elem_count(), x.dtype(), OP)?;
    let (_, seq_axis) = axes(kind);
    let dims = [d0, d1, d2];
    let (cos_l, sin_l) = (over(cos_l, dims, seq_axis)?, over(sin_l, dims, seq_axis)?);
    let operands = [(x, x_l), (cos, &cos_l), (sin, &sin_l)];
    if fit([x, cos, sin, &dst]) {
        rope_into(&dst, operands, kind, rotated)?;
        return Ok(dst);
    }
    let split = Split {
        op: OP,
        dims: &dims,
        unit: dim,
        bytes: dim * x.dtype().size_in_bytes(),
        inputs: operands,
        anywhere: false,
    };
    split.run(&dst, 0, &mut |part| {
        let operands = part.inputs.each_ref().map(|(s, l)| (s, l));
        let rotated = rotated.saturating_sub(part.start[axes(kind).0]);
        rope_into(&part.dst, operands, kind, rotated)
    })?;
    Ok(dst)
}

const OP: &str = "rope";

/// The dimensions of heads and of positions.
fn axes(kind: RopeKind) -> (usize, usize) {
    match kind {
        RopeKind::Thd => (2, 1),
        _ => (1, 2),
    }
}

/// `x`, `cos` and `sin` over one shape but for the last dimension.
fn rope_into(
    dst: &WebGpuStorage,
    [(x, x_l), (cos, cos_l), (sin, sin_l)]: [Operand<'_>; 3],
    kind: RopeKind,
    rotated: usize,
) -> Result<()> {
    let device = x.device();
    let elem = float_elem(device, x.dtype(), OP)?;
    let (head_axis, seq_axis) = axes(kind);
    let len = x_l.shape().elem_count();
    let dims = x_l.dims();
    let stride = x_l.stride();
    let steps = |layout: &Layout| -> Result<[u32; 3]> {
        let stride = layout.stride();
        Ok([
            index(stride[0])?,
            index(stride[seq_axis])?,
            index(stride[3])?,
        ])
    };
    let [cos_batch, cos_seq, cos_dim] = steps(cos_l)?;
    let [sin_batch, sin_seq, sin_dim] = steps(sin_l)?;
    let key = Key::new(OP).elem(elem).with(kind as u32, 2);
    device.launch(
        key,
        || {
            Shader::new(format!("rope {kind:?} {elem:?}"))
                .input("x", elem)
                .input("cos_table", elem)
                .input("sin_table", elem)
                .output("dst", elem)
                .constant("WG", WORKGROUP)
                .constant("INTERLEAVED", kind == RopeKind::Interleaved)
                .constant("HEADS_LAST", kind == RopeKind::Thd)
                .body::<RopeParams>(include_str!("../../shaders/rope.wgsl"))
        },
        &[bind(x), bind(cos), bind(sin), bind(dst)],
        &RopeParams {
            x_offset: index(x_l.start_offset())?,
            x_batch: index(stride[0])?,
            x_head: index(stride[head_axis])?,
            x_seq: index(stride[seq_axis])?,
            x_dim: index(stride[3])?,
            cos_offset: index(cos_l.start_offset())?,
            cos_batch,
            cos_seq,
            cos_dim,
            sin_offset: index(sin_l.start_offset())?,
            sin_batch,
            sin_seq,
            sin_dim,
            len: index(len)?,
            heads: index(dims[head_axis])?,
            rotated: index(rotated)?,
            seq: index(dims[seq_axis])?,
            dim: index(dims[3])?,
        },
        device.grid(len.div_ceil(elem.lanes() as usize), WORKGROUP),
    )
}
