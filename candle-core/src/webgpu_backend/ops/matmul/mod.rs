//! Matrix products, in four regimes, by dtype and by the number of rows `m`:
//!
//! - *vector* (`m` up to 8, as in generation): a workgroup takes a few columns of the result and reads their weights once. For most blocks
//!   there is a kernel of this kind where lhs goes through workgroup memory (`blocks.rs`).
//! - *tile*: a workgroup takes a tile of the result and stages both operands through workgroup memory. Convolutions are products of this
//!   kind (`conv.rs`).
//! - *cooperative*: as tile, in 16x16x16 matrices of a subgroup, for f16 on adapters that have them; for bf16 and blocks by way of f16
//!   (`via_f16.rs`).
//! - *plain*: an element of the result in an invocation, for dtypes that are not multiplied in quantity: f64, f8e4m3 and integers.
//!
//! All read through any strides; where the inner dimension is contiguous and aligned they read many elements at once. Sums
//! are f32. Where tiles are too few to keep a GPU busy, `k` is cut into parts whose sums a second kernel joins. What a linear
//! layer does around its product can come with it: [`Extras`].
//!
//! What differs between operands is how elements come out of their bindings. `operand.rs` has that for dense ones, by dtype, and for
//! quantised blocks `ops/quantized/loader.rs`; the kernels know the functions that these define, and neither dtypes nor
//! formats.

mod blocks;
mod conv;
mod cooperative;
mod experts;
mod extras;
mod operand;
mod plain;
mod plan;
mod quantized;
mod split;
mod split_k;
mod tile;
mod unroll;
mod vector;
mod via_f16;

use conv::Windows;
use experts::Choice;
pub use extras::{Extras, Input};
use operand::Scales;
use plan::{plan, Plan};

use super::windows::fit;
use super::{bind, index, Views};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::ops::quantized::Format;
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{DType, Layout, Result, Shape};

pub(super) use conv::{convolution, Image, MOST_COMPILED};
pub(crate) use experts::{expert_rows, Stack};
pub(in super::super) use quantized::{fused_blocks, matmul_t};
pub(in super::super) use via_f16::WeightRows;
pub use via_f16::{gemm_reduced_precision_f32, set_gemm_reduced_precision_f32};

params!(MatmulParams {
    dims: Dims,
    lhs_stride: Dims,
    rhs_stride: Dims,
    lhs_offset: u32,
    rhs_offset: u32,
    batch: u32,
    m: u32,
    n: u32,
    k: u32,
    lhs_row: u32,
    lhs_col: u32,
    rhs_row: u32,
    rhs_col: u32,
    dst_row: u32,
    dst_first: u32,
    // Elements of the result.
    len: u32,
    // Parts of `k`, and how long each is.
    splits: u32,
    chunk: u32,
    alpha_offset: u32,
    bias_offset: u32,
    residual_offset: u32,
    residual_row: u32,
    eps: f32,
    factor: f32,
    // Of which matrix of a stack each row is multiplied with.
    ids_offset: u32,
    size: u32,
    op: u32,
    // How rhs is found in the input of a convolution.
    src_channel: u32,
    src_row: u32,
    src_col: u32,
    i_h: u32,
    i_w: u32,
    k_h: u32,
    k_w: u32,
    o_w: u32,
    start_h: u32,
    start_w: u32,
    stride_h: u32,
    stride_w: u32,
    dilation_h: u32,
    dilation_w: u32,
});

/// How a kernel reads one operand, seen as a matrix of `outer` rows (of lhs) or columns (of rhs) by `k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Element by element, through any strides.
    Strided,
    /// The inner dimension is contiguous, in aligned groups.
    Inner,
    /// The outer dimension is contiguous, in aligned groups.
    Outer,
}

/// One product, after batch dimensions that are really rows were folded into `m`.
#[derive(Clone)]
pub(super) struct Problem {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    views: Views<2>,
    /// Steps of lhs over `m` and `k`.
    lhs: (usize, usize),
    /// Steps of rhs over `n` and `k`.
    rhs: (usize, usize),
    /// Columns that dst has, of which the product's are `n` from `dst_first` on.
    dst_row: usize,
    dst_first: usize,
}

impl Problem {
    pub(super) fn new(
        (batch, m, n, k): (usize, usize, usize, usize),
        lhs_l: &Layout,
        rhs_l: &Layout,
    ) -> Result<Self> {
        let batch_layout = |l: &Layout| {
            let rank = l.dims().len() - 2;
            let (dims, stride) = (&l.dims()[..rank], &l.stride()[..rank]);
            Layout::new(Shape::from(dims), stride.to_vec(), l.start_offset())
        };
        let last_two = |l: &Layout| {
            let rank = l.stride().len();
            (l.stride()[rank - 2], l.stride()[rank - 1])
        };
        let (lhs, (rhs_k, rhs_n)) = (last_two(lhs_l), last_two(rhs_l));
        let mut problem = Self {
            batch,
            m,
            n,
            k,
            views: Views::new([&batch_layout(lhs_l), &batch_layout(rhs_l)])?,
            lhs,
            rhs: (rhs_n, rhs_k),
            dst_row: n,
            dst_first: 0,
        };
        problem.fold_batch();
        Ok(problem)
    }

    /// A batch over which rhs does not move and lhs moves by whole matrices is just more rows.
    fn fold_batch(&mut self) {
        let views = &self.views;
        let one = views.rank == 1 && views.strides[1][0] == 0;
        if one && views.strides[0][0] as usize == self.m * self.lhs.0 {
            self.m *= self.batch;
            self.batch = 1;
            self.views.rank = 0;
            self.views.strides = [[0; 8]; 2];
        }
    }

    /// Whether all places of an operand where a group of `width` elements may start are multiples of `width`.
    fn aligned(&self, operand: usize, outer_step: usize, width: usize) -> bool {
        let views = &self.views;
        // Unused steps are 0. The rank does not say which: it is also 0 for a batch whose matrices start one element apart.
        let steps = views.strides[operand];
        (views.offsets[operand] as usize).is_multiple_of(width)
            && outer_step.is_multiple_of(width)
            && steps.iter().all(|s| (*s as usize).is_multiple_of(width))
    }

    /// How to read operand 0 (lhs) or 1 (rhs) in groups of `width`.
    fn access(&self, operand: usize, width: usize) -> Access {
        let ((outer_step, inner_step), outer) = match operand {
            0 => (self.lhs, self.m),
            _ => (self.rhs, self.n),
        };
        if inner_step == 1
            && self.k.is_multiple_of(width)
            && self.aligned(operand, outer_step, width)
        {
            Access::Inner
        } else if outer_step == 1
            && outer.is_multiple_of(width)
            && self.aligned(operand, inner_step, width)
        {
            Access::Outer
        } else {
            Access::Strided
        }
    }

    fn params(&self) -> Result<MatmulParams> {
        Ok(MatmulParams {
            dims: self.views.dims,
            lhs_stride: self.views.strides[0],
            rhs_stride: self.views.strides[1],
            lhs_offset: self.views.offsets[0],
            rhs_offset: self.views.offsets[1],
            batch: index(self.batch)?,
            m: index(self.m)?,
            n: index(self.n)?,
            k: index(self.k)?,
            lhs_row: index(self.lhs.0)?,
            lhs_col: index(self.lhs.1)?,
            rhs_row: index(self.rhs.0)?,
            rhs_col: index(self.rhs.1)?,
            dst_row: index(self.dst_row)?,
            dst_first: index(self.dst_first)?,
            len: index(self.batch * self.m * self.n)?,
            splits: 1,
            chunk: index(self.k)?,
            alpha_offset: 0,
            bias_offset: 0,
            residual_offset: 0,
            residual_row: 0,
            eps: 0.,
            factor: 1.,
            ids_offset: 0,
            size: 0,
            op: 0,
            ..bytemuck::Zeroable::zeroed()
        })
    }
}

fn elem_bytes(elem: Elem) -> usize {
    4 / elem.lanes() as usize
}

/// `lhs (b, m, k) x rhs (b, k, n)`, in the operands' dtype.
pub(in super::super::super) fn matmul(
    lhs: &WebGpuStorage,
    rhs: &WebGpuStorage,
    bmnk: (usize, usize, usize, usize),
    lhs_l: &Layout,
    rhs_l: &Layout,
) -> Result<WebGpuStorage> {
    product(lhs, rhs, bmnk, lhs_l, rhs_l, lhs.dtype())
}

/// As [`matmul`], with a result of dtype `to`: the operands' own, or the one that sums are kept in.
pub(super) fn product(
    lhs: &WebGpuStorage,
    rhs: &WebGpuStorage,
    bmnk: (usize, usize, usize, usize),
    lhs_l: &Layout,
    rhs_l: &Layout,
    to: DType,
) -> Result<WebGpuStorage> {
    const OP: &str = "matmul";
    let device = lhs.device();
    let elem = device.elem(lhs.dtype(), OP)?;
    let (b, m, n, k) = bmnk;
    if b * m * n == 0 || k == 0 {
        let shape = Shape::from((b, m, n));
        return crate::backend::BackendDevice::zeros_impl(device, &shape, to);
    }
    // The result may be made in f32 first.
    let fits = (b * m * n * to.size_in_bytes().max(4)) as u64 <= device.max_binding();
    if !(fits && fit([lhs, rhs])) {
        return split::product((lhs, lhs_l), (rhs, rhs_l), bmnk, to);
    }
    let problem = Problem::new(bmnk, lhs_l, rhs_l)?;
    if !elem.in_wide_kernels() {
        let dst = device.alloc(b * m * n, to, OP)?;
        plain::product(lhs, rhs, &dst, &problem)?;
        return Ok(dst);
    }
    let fused = fused_product(lhs, rhs, &problem, Extras::default(), to)?;
    Ok(fused.expect("a product without extras has a kernel for every problem"))
}

/// A product with `extras`, or `None` where no kernel does both. `problem.n` counts the columns of the result.
pub(super) fn fused_product(
    lhs: &WebGpuStorage,
    rhs: &WebGpuStorage,
    problem: &Problem,
    extras: Extras<'_>,
    to: DType,
) -> Result<Option<WebGpuStorage>> {
    make(lhs, rhs, problem, extras, None, to)
}

/// As [`fused_product`]; with `windows`, rhs is an image, of which they are the columns.
fn make(
    lhs: &WebGpuStorage,
    rhs: &WebGpuStorage,
    problem: &Problem,
    extras: Extras<'_>,
    windows: Option<Windows>,
    to: DType,
) -> Result<Option<WebGpuStorage>> {
    const OP: &str = "matmul";
    let device = lhs.device();
    let elem = device.elem(lhs.dtype(), OP)?;
    let (b, m, n) = (problem.batch, problem.m, problem.n);
    // Rows of an odd length share words of a packed dtype; such a result is made in f32 and then converted.
    let packed = device.elem(to, OP)?;
    let packs = n.is_multiple_of(packed.lanes() as usize);
    let (out, out_dtype) = if packs {
        (packed, to)
    } else {
        (Elem::F32, DType::F32)
    };
    let caps = &device.kernels().caps;
    let plan = match windows {
        None => plan(problem, elem, out.lanes(), &extras, caps),
        // Neighbours in a row of a tile are neighbours in the image.
        Some(_) => plan::tiles(problem, problem.access(0, 4), Access::Outer),
    };
    let kernel_has_them = !extras.need_vector() || matches!(plan, Plan::Vector { .. });
    if !extras.fit(16 / elem_bytes(elem)) || !kernel_has_them {
        return Ok(None);
    }
    // What one binding does not reach is for the plain products, which are split.
    let fits = extras.each().all(WebGpuStorage::fits_binding)
        && (b * m * n * 4) as u64 <= device.max_binding()
        && fit([lhs, rhs]);
    if !fits {
        return Ok(None);
    }
    let dst = device.alloc(b * m * n, out_dtype, OP)?;
    let as_asked = |dst: WebGpuStorage| match packs {
        true => Ok(Some(dst)),
        false => super::elementwise::to_dtype(&dst, &Layout::contiguous((b, m, n)), to).map(Some),
    };
    let vector = matches!(plan, Plan::Vector { .. });
    let reduced = gemm_reduced_precision_f32();
    if !vector && windows.is_none() && via_f16::takes(problem, elem, reduced, caps) {
        let (rows, weight) = via_f16::operands(problem, lhs, rhs);
        let mkn = (m, problem.k, n);
        let plan = |problem: &Problem| plan::cooperative(problem, Rhs::Dense(Elem::F16), caps);
        via_f16::via_f16(rows, weight, mkn, extras, &dst, via_f16::PIECE_BYTES, plan)?;
        return as_asked(dst);
    }
    let run = Run {
        device,
        bindings: &[bind(lhs), bind(rhs), bind(&dst)],
        problem,
        lhs: elem,
        rhs: Rhs::Dense(elem),
        windows,
        scales: Scales::None,
        factor: 1.,
        out,
        extras,
        splits: 1,
        choice: None,
    };
    run.run(plan)?;
    as_asked(dst)
}

/// What the right-hand side is stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rhs {
    Dense(Elem),
    Blocks(Format),
}

/// The operands of one call and its problem, for the three ways to run it.
#[derive(Clone, Copy)]
struct Run<'a> {
    device: &'a WebGpuDevice,
    /// lhs, what rhs has, scales if there are any, dst.
    bindings: &'a [Binding<'a>],
    problem: &'a Problem,
    lhs: Elem,
    rhs: Rhs,
    /// Of a convolution, whose rhs is the windows of an image. The tile kernel alone has such a form.
    windows: Option<Windows>,
    /// What sums are multiplied by. The vector kernel has no such form.
    scales: Scales,
    /// What elements of blocks are multiplied by where the cooperative kernel makes f16 of them.
    factor: f32,
    out: Elem,
    extras: Extras<'a>,
    /// Parts that `k` is cut into, each with a separate result in `dst`.
    splits: usize,
    /// For a stack of matrices. The vector kernel alone has such a form.
    choice: Option<Choice>,
}

impl Run<'_> {
    fn run(&self, plan: Plan) -> Result<()> {
        match plan {
            Plan::Vector {
                rows,
                cols,
                workgroup,
                unroll,
                wide,
            } => self.vector((rows, cols), workgroup, unroll, wide),
            Plan::Blocks(shape) => self.blocks(shape),
            Plan::Tile {
                lhs,
                rhs,
                shape,
                splits,
            } => self.split(splits, |run| run.tile(lhs, rhs, shape)),
            Plan::Cooperative { tile, splits } => self.split(splits, |run| run.cooperative(tile)),
        }
    }

    fn key(&self, kernel: &'static str) -> Key {
        let rhs = match self.rhs {
            Rhs::Dense(elem) => elem as u32,
            Rhs::Blocks(format) => 8 + format.number(),
        };
        let (extras, bits) = self.extras.bits();
        let (choice, choice_bits) = Choice::bits(self.choice);
        Key::new(kernel)
            .elem(self.lhs)
            .with(rhs, 5)
            .elem(self.out)
            .with(self.problem.views.rank as u32, 4)
            .with(extras, bits)
            .with(choice, choice_bits)
    }

    fn launch(&self, key: Key, shader: impl FnOnce() -> Shader, workgroups: usize) -> Result<()> {
        let mut params = self.problem.params()?;
        self.extras.fill(&mut params)?;
        if let Some(choice) = self.choice {
            choice.fill(&mut params)?;
        }
        if let Some(windows) = &self.windows {
            windows.fill(&mut params);
        }
        params.factor = self.factor;
        params.splits = index(self.splits)?;
        params.chunk = index(split_k::chunk(self.problem.k, self.splits))?;
        let mut bindings = self.bindings.to_vec();
        bindings.extend(self.extras.bindings());
        self.device.launch(
            key,
            shader,
            &bindings,
            &params,
            self.device.grid(workgroups * self.splits, 1),
        )
    }
}
