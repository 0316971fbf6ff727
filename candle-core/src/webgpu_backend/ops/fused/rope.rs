//! Rotary position embedding (Su et al., arXiv 2104.09864).

use super::super::{bind, index, WORKGROUP};
use super::float_elem;
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Key, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{Layout, Result};

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

/// Steps of `cos` or `sin`, `(seq, dim / 2)` or `(batch, seq, dim / 2)`, over batch, seq and dim.
fn table_steps(layout: &Layout) -> Result<[u32; 3]> {
    Ok(match layout.stride() {
        [seq, dim] => [0, index(*seq)?, index(*dim)?],
        [batch, seq, dim] => [index(*batch)?, index(*seq)?, index(*dim)?],
        _ => crate::bail!(
            "rope needs cos and sin of shape (seq, dim / 2) or (batch, seq, dim / 2), got {:?}",
            layout.shape()
        ),
    })
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
    const OP: &str = "rope";
    let device = x.device();
    let elem = float_elem(device, x.dtype(), OP)?;
    let (_, d1, d2, dim) = x_l.shape().dims4()?;
    let (heads, seq, head_axis, seq_axis) = match kind {
        RopeKind::Thd => (d2, d1, 2, 1),
        _ => (d1, d2, 1, 2),
    };
    if !dim.is_multiple_of(2) {
        crate::bail!("rope turns pairs, so the last dimension must be even, got {dim}");
    }
    let len = x_l.shape().elem_count();
    let dst = device.alloc(len, x.dtype(), OP)?;
    let stride = x_l.stride();
    let [cos_batch, cos_seq, cos_dim] = table_steps(cos_l)?;
    let [sin_batch, sin_seq, sin_dim] = table_steps(sin_l)?;
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
        &[bind(x), bind(cos), bind(sin), bind(&dst)],
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
            heads: index(heads)?,
            rotated: index(rotated)?,
            seq: index(seq)?,
            dim: index(dim)?,
        },
        device.grid(len.div_ceil(elem.lanes() as usize), WORKGROUP),
    )?;
    Ok(dst)
}
