//! Softmax over the last dimension, plain and for attention: scaled, capped and causal.

use super::super::windows::{fit, Operand, Split};
use super::super::{bind, index};
use super::long_rows::{self, is_long, MOST_ROW};
use super::{finish, float_elem, Rows};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result};

params!(SoftmaxParams {
    dims: Dims,
    x_stride: Dims,
    x_offset: u32,
    rows: u32,
    len: u32,
    x_step: u32,
    // With CAUSAL: row i sees its first i % queries + seen elements.
    queries: u32,
    seen: u32,
    scale: f32,
    softcap: f32,
});

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Softmax {
    elem: Elem,
    out: Elem,
    rank: usize,
    workgroup: u32,
    causal: bool,
    softcap: bool,
}

impl Kernel for Softmax {
    type Params = SoftmaxParams;

    fn shader(&self, caps: &Caps) -> Shader {
        Shader::default()
            .view("x", self.elem, self.rank)
            .output("dst", self.out)
            .constant("CAUSAL", self.causal)
            .constant("SOFTCAP", self.softcap)
            .sums(caps, self.workgroup, 1)
            .text(include_str!("../../shaders/functions_float.wgsl"))
            .body::<SoftmaxParams>(include_str!("../../shaders/softmax.wgsl"))
    }
}

/// Steps of attention's softmax in addition to the plain one.
#[derive(Clone, Copy)]
pub(super) struct Attention {
    pub(super) scale: f32,
    /// 0 for none.
    pub(super) softcap: f32,
    /// Whether query `i` sees only keys up to `i + len - queries`, where the last dimension but one counts queries.
    pub(super) causal: bool,
}

/// `exp(x) / sum(exp(x))` over the last dimension, stable for large inputs; the result is contiguous.
pub fn softmax_last_dim(x: &WebGpuStorage, layout: &Layout) -> Result<WebGpuStorage> {
    let plain = Attention {
        scale: 1.,
        softcap: 0.,
        causal: false,
    };
    softmax(x, layout, &plain, x.dtype())
}

pub(super) fn softmax(
    x: &WebGpuStorage,
    layout: &Layout,
    attention: &Attention,
    dtype: DType,
) -> Result<WebGpuStorage> {
    let device = x.device();
    let rows = Rows::new([layout], OP)?;
    let (out_dtype, _) = rows.out(dtype, float_elem(device, dtype, OP)?);
    let len = layout.shape().elem_count();
    let long = is_long(device, rows.len, [x.dtype(), out_dtype]);
    if attention.causal && rows.len > MOST_ROW {
        crate::bail!(
            "{OP}: causal attention takes up to {MOST_ROW} keys on {}, got {}",
            device.name(),
            rows.len
        )
    }
    let dst = device.alloc(len, out_dtype, OP)?;
    let rank = layout.dims().len() - 1;
    let queries = layout.dims()[rank.saturating_sub(1)];
    let before = (rows.len + 1).saturating_sub(queries);
    if fit([x, &dst]) && rows.len <= MOST_ROW {
        softmax_into(&dst, (x, layout), attention, before)?;
        return finish(dst, dtype);
    }
    if !attention.causal && long {
        drop(dst);
        let bend = (attention.scale, attention.softcap);
        return long_rows::softmax((x, layout), bend, dtype);
    }
    // The rows of causal attention are keys: rows that exceed a binding are an error.
    let split = Split {
        op: OP,
        dims: &layout.dims()[..rank],
        unit: rows.len,
        bytes: rows.len * out_dtype.size_in_bytes(),
        inputs: [(x, layout)],
        anywhere: false,
    };
    split.run(&dst, 0, &mut |part| {
        let [(x, layout)] = &part.inputs;
        let first = part.start.last().copied().unwrap_or(0);
        softmax_into(&part.dst, (x, layout), attention, before + first)
    })?;
    finish(dst, dtype)
}

const OP: &str = "softmax-last-dim";

/// The first query sees `seen` keys, if attention is causal.
fn softmax_into(
    dst: &WebGpuStorage,
    (x, layout): Operand<'_>,
    attention: &Attention,
    seen: usize,
) -> Result<()> {
    let device = x.device();
    let elem = float_elem(device, x.dtype(), OP)?;
    let out = float_elem(device, dst.dtype(), OP)?;
    let rows = Rows::new([layout], OP)?;
    let len = layout.shape().elem_count();
    let queries = match layout.dims() {
        [.., queries, _] => *queries,
        _ => 1,
    };
    let kernel = Softmax {
        elem,
        out,
        rank: rows.starts.rank,
        workgroup: rows.workgroup(),
        causal: attention.causal,
        softcap: attention.softcap != 0.,
    };
    device.run(
        &kernel,
        &[bind(x), bind(dst)],
        &SoftmaxParams {
            dims: rows.starts.dims,
            x_stride: rows.starts.strides[0],
            x_offset: rows.starts.offsets[0],
            rows: rows.starts.len,
            len: index(rows.len)?,
            x_step: rows.steps[0],
            queries: index(queries.max(1))?,
            seen: index(seen)?,
            scale: attention.scale,
            softcap: attention.softcap,
        },
        device.grid(if len == 0 { 0 } else { rows.count() }, 1),
    )
}
