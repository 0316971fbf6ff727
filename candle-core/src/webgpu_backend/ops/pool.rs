//! Pooling: each element of the result is the mean or the largest of a window.

use super::elementwise::functions;
use super::windows::{fit, Operand, Split};
use super::{bind, index};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{Layout, Result, Shape};

params!(PoolParams {
    src_offset: u32,
    src_batch: u32,
    src_channel: u32,
    // From one row of results to the next.
    src_down: u32,
    src_row: u32,
    src_col: u32,
    channels: u32,
    k_h: u32,
    k_w: u32,
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

/// WGSL for the mean of a window: `add_to(sum, value)` and `mean(sum)`.
fn mean(elem: Elem) -> String {
    let ty = elem.arithmetic();
    if matches!(ty, "u32" | "i32") {
        // The sum may not fit 32 bits, but quotients and remainders do. The quotient is rounded towards 0 once, at the end.
        return format!(
            "struct Sum {{ quotients: {ty}, rests: {ty} }}\n\
             fn add_to(sum: Sum, value: {ty}) -> Sum {{\n\
             \x20 let n = {ty}(p.k_h * p.k_w);\n\
             \x20 return Sum(sum.quotients + value / n, sum.rests + value % n);\n}}\n\
             fn mean(sum: Sum) -> {ty} {{\n\
             \x20 let n = {ty}(p.k_h * p.k_w);\n\
             \x20 let whole = sum.quotients + sum.rests / n;\n\
             \x20 let rest = sum.rests % n;\n\
             \x20 if (whole > {ty}(0) && rest < {ty}(0)) {{ return whole - {ty}(1); }}\n\
             \x20 return whole + select({ty}(0), {ty}(1), whole < {ty}(0) && rest > {ty}(0));\n}}\n"
        );
    }
    let count = match elem {
        Elem::I64 => "vec2<u32>(p.k_h * p.k_w, 0u)".to_string(),
        _ => format!("{ty}(p.k_h * p.k_w)"),
    };
    format!(
        "alias Sum = {ty};\n\
         fn add_to(sum: {ty}, value: {ty}) -> {ty} {{ return f_add(sum, value); }}\n\
         fn mean(sum: {ty}) -> {ty} {{ return f_div(sum, {count}); }}\n"
    )
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
    let (batch, channels, i_h, i_w) = layout.shape().dims4()?;
    let o_h = (i_h - kernel.0) / stride.0 + 1;
    let o_w = (i_w - kernel.1) / stride.1 + 1;
    let dst = src
        .device()
        .alloc(batch * channels * o_h * o_w, src.dtype(), op)?;
    if dst.is_empty() {
        return Ok(dst);
    }
    // For each row of results the rows of the input that it is made of.
    let steps = layout.stride();
    let windows = Layout::new(
        Shape::from((batch, channels, o_h, kernel.0, i_w)),
        vec![steps[0], steps[1], stride.0 * steps[2], steps[2], steps[3]],
        layout.start_offset(),
    );
    let pooling = Pooling {
        op,
        pool,
        o_w,
        k_w: kernel.1,
        stride_w: stride.1,
    };
    if fit([src, &dst]) {
        pooling.launch(&dst, (src, &windows))?;
        return Ok(dst);
    }
    let split = Split {
        op,
        dims: &[batch, channels, o_h],
        unit: o_w,
        bytes: o_w * src.dtype().size_in_bytes(),
        inputs: [(src, &windows)],
        anywhere: false,
    };
    split.run(&dst, 0, &mut |part| {
        let [(src, windows)] = &part.inputs;
        pooling.launch(&part.dst, (src, windows))
    })?;
    Ok(dst)
}

/// A pooling and its sizes along a row.
struct Pooling {
    op: &'static str,
    pool: Pool,
    o_w: usize,
    k_w: usize,
    stride_w: usize,
}

impl Pooling {
    /// `windows` is the input as `(batch, channels, o_h, k_h, i_w)`.
    fn launch(&self, dst: &WebGpuStorage, (src, windows): Operand<'_>) -> Result<()> {
        let pool = self.pool;
        let device = src.device();
        let elem = device.elem(src.dtype(), self.op)?;
        let (batch, channels, o_h, k_h, _) = windows.shape().dims5()?;
        let steps = windows.stride();
        let len = batch * channels * o_h * self.o_w;
        device.launch(
            Key::new("pool2d").elem(elem).with(pool as u32, 1),
            || {
                Shader::new(format!("pool2d {elem:?} {pool:?}"))
                    .input("src", elem)
                    .output("dst", elem)
                    .constant("MEAN", pool == Pool::Mean)
                    .text(functions(elem))
                    .text(&mean(elem))
                    .each_element::<PoolParams>(include_str!("../shaders/pool.wgsl"))
            },
            &[bind(src), bind(dst)],
            &PoolParams {
                src_offset: index(windows.start_offset())?,
                src_batch: index(steps[0])?,
                src_channel: index(steps[1])?,
                src_down: index(steps[2])?,
                src_row: index(steps[3])?,
                src_col: index(steps[4])?,
                channels: index(channels)?,
                k_h: index(k_h)?,
                k_w: index(self.k_w)?,
                stride_w: index(self.stride_w)?,
                o_h: index(o_h)?,
                o_w: index(self.o_w)?,
                len: index(len)?,
            },
            device.grid_of_words(len, elem),
        )
    }
}
