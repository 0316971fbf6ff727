//! Pooling: each element of the result is the mean or the largest of a window.

use super::elementwise::functions;
use super::{bind, index, WORKGROUP};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{Layout, Result};

params!(PoolParams {
    src_offset: u32,
    src_batch: u32,
    src_channel: u32,
    src_row: u32,
    src_col: u32,
    channels: u32,
    k_h: u32,
    k_w: u32,
    stride_h: u32,
    stride_w: u32,
    o_h: u32,
    o_w: u32,
    len: u32,
});

/// What becomes of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Pool {
    Mean,
    Max,
}

/// Pools windows of `kernel` elements, `stride` apart (both `(height, width)`), of an input `(batch, channels, height, width)`.
pub(in super::super) fn pool2d(
    src: &WebGpuStorage,
    layout: &Layout,
    kernel: (usize, usize),
    stride: (usize, usize),
    pool: Pool,
) -> Result<WebGpuStorage> {
    let op = match pool {
        Pool::Mean => "avg_pool2d",
        Pool::Max => "max_pool2d",
    };
    let device = src.device();
    let elem = device.elem(src.dtype(), op)?;
    let (batch, channels, i_h, i_w) = layout.shape().dims4()?;
    let o_h = (i_h - kernel.0) / stride.0 + 1;
    let o_w = (i_w - kernel.1) / stride.1 + 1;
    let len = batch * channels * o_h * o_w;
    let dst = device.alloc(len, src.dtype(), op)?;
    if len == 0 {
        return Ok(dst);
    }
    let steps = layout.stride();
    let count = match elem {
        Elem::F32 | Elem::F16 | Elem::BF16 => "f32(p.k_h * p.k_w)",
        Elem::U32 | Elem::U8 => "p.k_h * p.k_w",
        Elem::I32 => "i32(p.k_h * p.k_w)",
        Elem::I64 => "vec2<u32>(p.k_h * p.k_w, 0u)",
    };
    device.launch(
        Key::new("pool2d").elem(elem).with(pool as u32, 1),
        || {
            Shader::new(format!("pool2d {elem:?} {pool:?}"))
                .input("src", elem)
                .output("dst", elem)
                .constant("WG", WORKGROUP)
                .constant("MEAN", pool == Pool::Mean)
                .text(functions(elem))
                .text(&format!("fn count() -> src_t {{ return {count}; }}"))
                .body::<PoolParams>(include_str!("../shaders/pool.wgsl"))
        },
        &[bind(src), bind(&dst)],
        &PoolParams {
            src_offset: index(layout.start_offset())?,
            src_batch: index(steps[0])?,
            src_channel: index(steps[1])?,
            src_row: index(steps[2])?,
            src_col: index(steps[3])?,
            channels: index(channels)?,
            k_h: index(kernel.0)?,
            k_w: index(kernel.1)?,
            stride_h: index(stride.0)?,
            stride_w: index(stride.1)?,
            o_h: index(o_h)?,
            o_w: index(o_w)?,
            len: index(len)?,
        },
        device.grid(len.div_ceil(elem.lanes() as usize), WORKGROUP),
    )?;
    Ok(dst)
}
