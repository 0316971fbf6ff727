//! Softmax over the last dimension, alone and as attention needs it: scaled, capped and causal.

use super::super::{bind, index};
use super::{finish, float_elem, Rows};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Key, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result};

params!(SoftmaxParams {
    dims: Dims,
    x_stride: Dims,
    x_offset: u32,
    rows: u32,
    len: u32,
    x_step: u32,
    queries: u32,
    scale: f32,
    softcap: f32,
});

/// What attention's softmax does beside softmax.
pub(super) struct Attention {
    pub(super) scale: f32,
    /// 0 for none.
    pub(super) softcap: f32,
    /// Rows of one head, if query `i` sees only keys up to `i + len - queries`.
    pub(super) causal_queries: Option<usize>,
}

/// `exp(x) / sum(exp(x))` over the last dimension, stable for large inputs; the result is contiguous.
pub fn softmax_last_dim(x: &WebGpuStorage, layout: &Layout) -> Result<WebGpuStorage> {
    let plain = Attention {
        scale: 1.,
        softcap: 0.,
        causal_queries: None,
    };
    softmax(x, layout, &plain, x.dtype())
}

pub(super) fn softmax(
    x: &WebGpuStorage,
    layout: &Layout,
    attention: &Attention,
    dtype: DType,
) -> Result<WebGpuStorage> {
    const OP: &str = "softmax-last-dim";
    let device = x.device();
    let elem = float_elem(device, x.dtype(), OP)?;
    let rows = Rows::new([layout], OP)?;
    let (out_dtype, out) = rows.out(dtype, float_elem(device, dtype, OP)?);
    let len = layout.shape().elem_count();
    let dst = device.alloc(len, out_dtype, OP)?;
    let workgroup = rows.workgroup();
    let causal = attention.causal_queries.is_some();
    let softcap = attention.softcap != 0.;
    let key = Key::new(OP)
        .elem(elem)
        .elem(out)
        .with(rows.starts.rank as u32, 4)
        .with(workgroup, 9)
        .with(causal.into(), 1)
        .with(softcap.into(), 1);
    device.launch(
        key,
        || {
            Shader::new(format!(
                "softmax {elem:?}->{out:?} causal={causal} wg{workgroup}"
            ))
            .input("x", elem)
            .output("dst", out)
            .strided("x", rows.starts.rank)
            .constant("CAUSAL", causal)
            .constant("SOFTCAP", softcap)
            .reduction(device, workgroup, 1)
            .text(include_str!("../../shaders/functions_float.wgsl"))
            .body::<SoftmaxParams>(include_str!("../../shaders/softmax.wgsl"))
        },
        &[bind(x), bind(&dst)],
        &SoftmaxParams {
            dims: rows.starts.dims,
            x_stride: rows.starts.strides[0],
            x_offset: rows.starts.offsets[0],
            rows: rows.starts.len,
            len: index(rows.len)?,
            x_step: rows.steps[0],
            queries: index(attention.causal_queries.unwrap_or(1))?,
            scale: attention.scale,
            softcap: attention.softcap,
        },
        device.grid(if len == 0 { 0 } else { rows.count() }, 1),
    )?;
    finish(dst, dtype)
}
