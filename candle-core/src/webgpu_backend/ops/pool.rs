//! Pooling: each element of the result is the mean or the maximum of a window.

use super::copy2d::{copy2d, Rows};
use super::elementwise::functions;
use super::windows::{fit, Operand, Split};
use super::{bind, elementwise, fill, index, reduce, window_parts, MOST_STEPS};
use crate::backend::{BackendDevice, BackendStorage};
use crate::op::ReduceOp;
use crate::scalar::Scalar;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result, Shape};

params!(PoolParams {
    src_offset: u32,
    src_batch: u32,
    src_channel: u32,
    // Stride in the source between rows of results.
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

/// The reduction of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in super::super) enum Pool {
    Mean,
    Max,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Pool2d {
    elem: Elem,
    pool: Pool,
}

impl Kernel for Pool2d {
    type Params = PoolParams;

    fn shader(&self, _: &Caps) -> Shader {
        Shader::default()
            .input("src", self.elem)
            .output("dst", self.elem)
            .constant("MEAN", self.pool == Pool::Mean)
            .text(functions(self.elem))
            .text(match self.elem.arithmetic() {
                "u32" | "i32" => include_str!("../shaders/mean_int.wgsl"),
                "vec2<u32>" => concat!(
                    "fn count() -> src_t { return src_t(p.k_h * p.k_w, 0u); }\n",
                    include_str!("../shaders/mean.wgsl")
                ),
                _ => concat!(
                    "fn count() -> src_t { return src_t(p.k_h * p.k_w); }\n",
                    include_str!("../shaders/mean.wgsl")
                ),
            })
            .each_element::<PoolParams>(include_str!("../shaders/pool.wgsl"))
    }
}

/// Pools windows of `kernel` elements with stride `stride` (both `(height, width)`), of an input `(batch, channels, height, width)`.
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
    let most = MOST_STEPS / src.device().elem(src.dtype(), op)?.lanes() as usize;
    if kernel.0 * kernel.1 > most {
        drop(dst);
        return match pool {
            Pool::Max => max_of_parts((src, layout), kernel, stride, most),
            Pool::Mean => mean_of_rows((src, layout), kernel, stride),
        };
    }
    // For each row of results the rows of its windows in the input.
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

/// The maximum of windows with more elements than an invocation may read: of the parts of a window, then of their results.
fn max_of_parts(
    (src, layout): Operand<'_>,
    kernel: (usize, usize),
    stride: (usize, usize),
    most: usize,
) -> Result<WebGpuStorage> {
    let device = src.device();
    let (batch, channels, i_h, i_w) = layout.shape().dims4()?;
    let (o_h, o_w) = (
        (i_h - kernel.0) / stride.0 + 1,
        (i_w - kernel.1) / stride.1 + 1,
    );
    let len = batch * channels * o_h * o_w;
    let parts = window_parts([kernel.0, kernel.1], most);
    let shape = Shape::from(parts.len() * len);
    let mut largest = device.zeros_impl(&shape, src.dtype())?;
    for (i, [rows, columns]) in parts.iter().enumerate() {
        // The input from the part's first element on, up to the last window's element.
        let height = (o_h - 1) * stride.0 + rows.len();
        let width = (o_w - 1) * stride.1 + columns.len();
        let part_l = layout
            .narrow(2, rows.start, height)?
            .narrow(3, columns.start, width)?;
        let size = (rows.len(), columns.len());
        let part = pool2d(src, &part_l, size, stride, Pool::Max)?;
        copy2d(&part, &mut largest, Rows::range(len, 0, i * len))?;
    }
    let of_parts = Layout::contiguous((1, 1, parts.len(), len));
    pool2d(&largest, &of_parts, (parts.len(), 1), (1, 1), Pool::Max)
}

/// The mean of windows with more elements than an invocation may read: each is a row of a reduction. Integers are added in 64 bits, since a
/// sum of many may overflow their own type.
fn mean_of_rows(
    (src, layout): Operand<'_>,
    kernel: (usize, usize),
    stride: (usize, usize),
) -> Result<WebGpuStorage> {
    const OP: &str = "avg_pool2d";
    let device = src.device();
    let (batch, channels, i_h, i_w) = layout.shape().dims4()?;
    let (o_h, o_w) = (
        (i_h - kernel.0) / stride.0 + 1,
        (i_w - kernel.1) / stride.1 + 1,
    );
    let dtype = src.dtype();
    let sums_dtype = match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3 => DType::F32,
        DType::U8 | DType::I16 | DType::U32 | DType::I32 => DType::I64,
        other => other,
    };
    let (wide, wide_l);
    let (src, layout) = if sums_dtype.is_int() {
        wide = elementwise::to_dtype(src, layout, sums_dtype)?;
        wide_l = Layout::contiguous(layout.shape());
        (&wide, &wide_l)
    } else {
        (src, layout)
    };
    let steps = layout.stride();
    let windows = Layout::new(
        Shape::from(vec![batch, channels, o_h, o_w, kernel.0, kernel.1]),
        vec![
            steps[0],
            steps[1],
            stride.0 * steps[2],
            stride.1 * steps[3],
            steps[2],
            steps[3],
        ],
        layout.start_offset(),
    );
    let len = batch * channels * o_h * o_w;
    let sums = device.alloc(len, sums_dtype, OP)?;
    reduce::rows_into(&sums, ReduceOp::Sum, (src, &windows), 4)?;
    let elements = kernel.0 * kernel.1;
    let mut count = device.alloc(1, sums_dtype, OP)?;
    let value = match sums_dtype {
        DType::I64 => Scalar::I64(elements as i64),
        DType::F64 => Scalar::F64(elements as f64),
        _ => Scalar::F32(elements as f32),
    };
    fill::const_set(&mut count, value, &Layout::contiguous(1))?;
    let all = Layout::contiguous(len);
    let every = Layout::new(Shape::from(len), vec![0], 0);
    let means = elementwise::binary(&sums, &count, &all, &every, "div")?;
    if sums_dtype == dtype {
        Ok(means)
    } else {
        elementwise::to_dtype(&means, &all, dtype)
    }
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
        let device = src.device();
        let elem = device.elem(src.dtype(), self.op)?;
        let kernel = Pool2d {
            elem,
            pool: self.pool,
        };
        let (batch, channels, o_h, k_h, _) = windows.shape().dims5()?;
        let steps = windows.stride();
        let len = batch * channels * o_h * self.o_w;
        device.run(
            &kernel,
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
