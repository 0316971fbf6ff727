//! Matrix products, in three regimes by the number of rows `m`:
//!
//! - *vector* (`m` up to 8, as in generation): a workgroup takes a few columns of the result and reads their weights once.
//! - *tile*: a workgroup takes a tile of the result and stages both operands through workgroup memory.
//! - *cooperative*: as tile, in 16x16x16 matrices of a subgroup, for f16 on adapters that have them.
//! - *plain*: an element of the result in an invocation, for dtypes that are not multiplied in quantity: f64, f8e4m3 and integers.
//!
//! All read through any strides; where the inner dimension is contiguous and aligned they read many elements at once. Sums
//! are f32.
//!
//! What differs between operands is how elements come out of their bindings. `operand.rs` has that for dense ones, by dtype, and for
//! quantised blocks `ops/quantized/loader.rs`; the kernels know the functions that these define, and neither dtypes nor
//! formats.

mod cooperative;
mod operand;
mod plain;
mod quantized;
mod split;
mod tile;
mod vector;

use cooperative::CoopTile;

use super::windows::fit;
use super::{bind, index, Views};
use crate::backend::BackendStorage;
use crate::webgpu_backend::adapter::Caps;
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::ops::quantized::Format;
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{DType, Layout, Result, Shape};

pub(in super::super) use quantized::matmul_t;

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
});

/// The most rows that the vector regime takes.
const MAX_VECTOR_ROWS: usize = 8;

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
struct Problem {
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
    fn new(
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
        })
    }
}

/// Which kernel runs, with the numbers that it is specialised for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Vector {
        rows: u32,
        cols: u32,
        workgroup: u32,
        /// Loads of each operand on their way at once.
        unroll: u32,
        wide: bool,
    },
    Tile {
        lhs: Access,
        rhs: Access,
        /// Elements of the result that an invocation computes, in each direction.
        size: u32,
    },
    Cooperative(CoopTile),
}

/// Chooses the kernel; pure, so that the tests can see every choice.
fn plan(problem: &Problem, elem: Elem, out_lanes: u32, caps: &Caps) -> Plan {
    let group = 16 / elem_bytes(elem);
    let inner = |operand| problem.access(operand, group) == Access::Inner;
    let wide = inner(0) && inner(1);
    if problem.m <= MAX_VECTOR_ROWS && (wide || problem.rhs.1 == 1) {
        return vector::plan(problem, out_lanes, wide, caps);
    }
    if caps.cooperative
        && elem == Elem::F16
        && wide
        && problem.k.is_multiple_of(cooperative::COOP_K as usize)
    {
        return Plan::Cooperative(CoopTile::choose(problem));
    }
    Plan::Tile {
        lhs: problem.access(0, 4),
        rhs: problem.access(1, 4),
        size: tile::size(problem),
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
    let dtype = lhs.dtype();
    let elem = device.elem(dtype, OP)?;
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
    // Rows of an odd length share words of a packed dtype; such a result is made in f32 and then converted.
    let packed = device.elem(to, OP)?;
    let packs = n.is_multiple_of(packed.lanes() as usize);
    let (out, out_dtype) = if packs {
        (packed, to)
    } else {
        (Elem::F32, DType::F32)
    };
    let dst = device.alloc(b * m * n, out_dtype, OP)?;
    let plan = plan(&problem, elem, out.lanes(), &device.kernels().caps);
    let run = Run {
        device,
        bindings: &[bind(lhs), bind(rhs), bind(&dst)],
        problem: &problem,
        lhs: elem,
        rhs: Rhs::Dense(elem),
        scaled: false,
        out,
    };
    run.run(plan)?;
    if packs {
        Ok(dst)
    } else {
        super::elementwise::to_dtype(&dst, &Layout::contiguous((b, m, n)), to)
    }
}

/// What the right-hand side is stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rhs {
    Dense(Elem),
    Blocks(Format),
}

/// The operands of one call and its problem, for the three ways to run it.
struct Run<'a> {
    device: &'a WebGpuDevice,
    /// lhs, what rhs has, scales if there are any, dst.
    bindings: &'a [Binding<'a>],
    problem: &'a Problem,
    lhs: Elem,
    rhs: Rhs,
    /// Whether rows of the product are multiplied by scales of lhs. The vector kernel has no such form.
    scaled: bool,
    out: Elem,
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
            Plan::Tile { lhs, rhs, size } => self.tile(lhs, rhs, size),
            Plan::Cooperative(tile) => self.cooperative(tile),
        }
    }

    fn key(&self, kernel: &'static str) -> Key {
        let rhs = match self.rhs {
            Rhs::Dense(elem) => elem as u32,
            Rhs::Blocks(format) => 8 + format.number(),
        };
        Key::new(kernel)
            .elem(self.lhs)
            .with(rhs, 5)
            .elem(self.out)
            .with(self.problem.views.rank as u32, 4)
    }

    fn launch(&self, key: Key, shader: impl FnOnce() -> Shader, workgroups: usize) -> Result<()> {
        self.device.launch(
            key,
            shader,
            self.bindings,
            &self.problem.params()?,
            self.device.grid(workgroups, 1),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(subgroup: Option<u32>, cooperative: bool) -> Caps {
        Caps {
            limits: wgpu::Limits::default(),
            subgroup,
            cooperative,
            f64: false,
            timestamps: false,
        }
    }

    /// `(m, k) x (n, k)^T`, as a linear layer has it.
    fn linear(m: usize, n: usize, k: usize) -> Problem {
        let lhs = Layout::contiguous((m, k));
        let rhs = Layout::contiguous((n, k)).transpose(0, 1).unwrap();
        Problem::new((1, m, n, k), &lhs, &rhs).unwrap()
    }

    /// No adapter here may have cooperative matrices, so at least the compiler sees their kernel.
    #[test]
    fn the_cooperative_kernel_is_valid_wgsl() {
        for (out, tile, scaled) in [
            (Elem::F16, CoopTile::ALL[0], false),
            (Elem::F32, CoopTile::ALL[1], true),
            (Elem::F16, CoopTile::ALL[2], false),
        ] {
            let text = cooperative::cooperative_shader(out, 2, tile, scaled).into_text();
            let module = naga::front::wgsl::parse_str(&text)
                .unwrap_or_else(|err| panic!("{}", err.emit_to_string(&text)));
            let flags = naga::valid::ValidationFlags::all();
            naga::valid::Validator::new(flags, naga::valid::Capabilities::all())
                .validate(&module)
                .unwrap_or_else(|err| panic!("{}", err.emit_to_string(&text)));
        }
    }

    #[test]
    fn few_rows_take_the_vector_kernel() {
        let chosen = plan(&linear(1, 2048, 2048), Elem::F16, 2, &caps(Some(32), true));
        assert_eq!(
            chosen,
            Plan::Vector {
                rows: 1,
                cols: 2,
                workgroup: 128,
                unroll: 4,
                wide: true
            }
        );
        assert!(matches!(
            plan(&linear(8, 64, 30), Elem::F32, 1, &caps(None, false)),
            Plan::Vector {
                wide: false,
                workgroup: 128,
                ..
            }
        ));
    }

    #[test]
    fn many_rows_take_tiles_or_cooperative_matrices() {
        let problem = linear(512, 2048, 2048);
        assert_eq!(
            plan(&problem, Elem::F16, 2, &caps(Some(32), true)),
            Plan::Cooperative(CoopTile { down: 4, across: 2 })
        );
        assert_eq!(
            plan(
                &linear(512, 16384, 2048),
                Elem::F16,
                2,
                &caps(Some(32), true)
            ),
            Plan::Cooperative(CoopTile { down: 4, across: 2 })
        );
        assert_eq!(
            plan(&problem, Elem::F16, 2, &caps(Some(32), false)),
            Plan::Tile {
                lhs: Access::Inner,
                rhs: Access::Inner,
                size: 4
            }
        );
        assert!(matches!(
            plan(&linear(4096, 4096, 64), Elem::F32, 1, &caps(Some(32), true)),
            Plan::Tile { size: 8, .. }
        ));
    }

    #[test]
    fn a_batch_of_rows_over_one_matrix_is_folded() {
        let lhs = Layout::contiguous((4, 3, 8));
        let rhs = Layout::contiguous((8, 5)).broadcast_as((4, 8, 5)).unwrap();
        let problem = Problem::new((4, 3, 5, 8), &lhs, &rhs).unwrap();
        assert_eq!((problem.batch, problem.m), (1, 12));
        assert_eq!(problem.access(1, 4), Access::Strided);
    }
}
