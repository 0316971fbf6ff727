//! Matrix products, in three regimes by the number of rows `m`:
//!
//! - *vector* (`m` up to 8, as in generation): a workgroup takes a few columns of the result and reads their weights once.
//! - *tile*: a workgroup takes a tile of the result and stages both operands through workgroup memory.
//! - *cooperative*: as tile, in 16x16x16 matrices of a subgroup, for f16 on adapters that have them.
//!
//! All read through any strides; where the inner dimension is contiguous and aligned they read many elements at once. Sums
//! are f32.

use std::fmt::Write;

use super::{bind, index, Views};
use crate::backend::BackendStorage;
use crate::webgpu_backend::adapter::Caps;
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result, Shape};

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
});

/// The most rows that the vector regime takes.
const MAX_VECTOR_ROWS: usize = 8;
/// Loads of each operand in flight in the vector regime.
const UNROLL: u32 = 4;
/// Enough tiles to keep the largest GPUs' multiprocessors busy.
const BUSY_TILES: usize = 64;
/// Enough subgroups to keep the largest GPUs' memory busy.
const BUSY_SUBGROUPS: u32 = 4096;

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
        }
    }

    /// Whether all places of an operand where a group of `width` elements may start are multiples of `width`.
    fn aligned(&self, operand: usize, outer_step: usize, width: usize) -> bool {
        let views = &self.views;
        let steps = &views.strides[operand][..views.rank];
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
        let cols = 2.max(out_lanes);
        let groups = (problem.n as u32).div_ceil(cols) * problem.batch as u32;
        let subgroup = caps.subgroup.unwrap_or(32).clamp(8, 64);
        let parts = BUSY_SUBGROUPS.div_ceil(groups.max(1)).clamp(1, 4);
        // A reduction through workgroup memory needs barriers in any case, so it may as well have two subgroups' worth.
        let least = if caps.subgroup.is_some() { 32 } else { 64 };
        return Plan::Vector {
            rows: problem.m as u32,
            cols,
            workgroup: (subgroup * parts.next_power_of_two()).clamp(least, 128),
            wide,
        };
    }
    if caps.cooperative && elem == Elem::F16 && wide && problem.k.is_multiple_of(COOP_K as usize) {
        return Plan::Cooperative(CoopTile::choose(problem));
    }
    let tiles =
        |size: usize| problem.m.div_ceil(16 * size) * problem.n.div_ceil(16 * size) * problem.batch;
    Plan::Tile {
        lhs: problem.access(0, 4),
        rhs: problem.access(1, 4),
        size: if tiles(8) >= 256 { 8 } else { 4 },
    }
}

fn elem_bytes(elem: Elem) -> usize {
    4 / elem.lanes() as usize
}

/// `lhs (b, m, k) x rhs (b, k, n)`, in the operands' dtype.
pub(in super::super) fn matmul(
    lhs: &WebGpuStorage,
    rhs: &WebGpuStorage,
    bmnk: (usize, usize, usize, usize),
    lhs_l: &Layout,
    rhs_l: &Layout,
) -> Result<WebGpuStorage> {
    product(lhs, rhs, bmnk, lhs_l, rhs_l, lhs.dtype())
}

/// As [`matmul`], with a result of dtype `to`: the operands' own, or f32 to keep what the sums have.
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
    if !elem.is_float() {
        return Err(device.unsupported(OP, dtype, "convert to f32, f16 or bf16 first"));
    }
    let (b, m, n, k) = bmnk;
    if b * m * n == 0 || k == 0 {
        let shape = Shape::from((b, m, n));
        return crate::backend::BackendDevice::zeros_impl(device, &shape, to);
    }
    let problem = Problem::new(bmnk, lhs_l, rhs_l)?;
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
        lhs,
        rhs,
        dst: &dst,
        problem: &problem,
        elem,
        out,
    };
    match plan {
        Plan::Vector {
            rows,
            cols,
            workgroup,
            wide,
        } => run.vector(rows, cols, workgroup, wide)?,
        Plan::Tile { lhs, rhs, size } => run.tile(lhs, rhs, size)?,
        Plan::Cooperative(tile) => run.cooperative(tile)?,
    }
    if packs {
        Ok(dst)
    } else {
        super::elementwise::to_dtype(&dst, &Layout::contiguous((b, m, n)), to)
    }
}

/// The operands of one call and its problem, for the three ways to run it.
struct Run<'a> {
    lhs: &'a WebGpuStorage,
    rhs: &'a WebGpuStorage,
    dst: &'a WebGpuStorage,
    problem: &'a Problem,
    elem: Elem,
    out: Elem,
}

impl Run<'_> {
    fn key(&self, kernel: &'static str) -> Key {
        Key::new(kernel)
            .elem(self.elem)
            .elem(self.out)
            .with(self.problem.views.rank as u32, 4)
    }

    fn launch(&self, key: Key, shader: impl FnOnce() -> Shader, workgroups: usize) -> Result<()> {
        let device = self.lhs.device();
        device.launch(
            key,
            shader,
            &[bind(self.lhs), bind(self.rhs), bind(self.dst)],
            &self.problem.params()?,
            device.grid(workgroups, 1),
        )
    }

    fn vector(&self, rows: u32, cols: u32, workgroup: u32, wide: bool) -> Result<()> {
        let rank = self.problem.views.rank;
        let subgroup = self.lhs.device().kernels().caps.subgroup;
        let key = self
            .key("matmul_vector")
            .with(rows, 4)
            .with(cols, 3)
            .with(workgroup, 8)
            .with(wide.into(), 1);
        let shader = || {
            let label = format!(
                "matmul_vector {:?} m{rows} cols{cols} wg{workgroup} wide={wide}",
                self.elem
            );
            let shader = Shader::new(label);
            let shader = if wide {
                let word = wide_word(self.elem);
                shader
                    .input_words("lhs", word)
                    .input_words("rhs", word)
                    .text(wide_fma(self.elem))
            } else {
                shader
                    .input("lhs", self.elem)
                    .input("rhs", self.elem)
                    .text(NARROW_FMA)
            };
            shader
                .output("dst", self.out)
                .strided("lhs", rank)
                .strided("rhs", rank)
                .constant("ROWS", rows)
                .constant("COLS", cols)
                .constant("WG", workgroup)
                .constant("SUBGROUP", subgroup.unwrap_or(0))
                .constant(
                    "GROUP",
                    if wide {
                        16 / elem_bytes(self.elem) as u32
                    } else {
                        1
                    },
                )
                .text(&vector_sums(rows, cols))
                .text(if subgroup.is_some() {
                    include_str!("../shaders/sum_subgroup.wgsl")
                } else {
                    include_str!("../shaders/sum_workgroup.wgsl")
                })
                .body::<MatmulParams>(include_str!("../shaders/matmul_vector.wgsl"))
        };
        let groups = self.problem.n.div_ceil(cols as usize) * self.problem.batch;
        self.launch(key, shader, groups)
    }

    fn tile(&self, lhs: Access, rhs: Access, size: u32) -> Result<()> {
        let rank = self.problem.views.rank;
        let key = self
            .key("matmul_tile")
            .with(lhs as u32, 2)
            .with(rhs as u32, 2)
            .with(size, 4);
        let shader = || {
            let label = format!("matmul_tile {:?} {lhs:?} x {rhs:?} {size}", self.elem);
            Shader::new(label)
                .operand("lhs", self.elem, lhs)
                .operand("rhs", self.elem, rhs)
                .output("dst", self.out)
                .strided("lhs", rank)
                .strided("rhs", rank)
                .constant("LHS_OUTER", lhs == Access::Outer)
                .constant("RHS_OUTER", rhs == Access::Outer)
                .constant("SIZE", size)
                .constant("TILE", 16 * size)
                .constant("DEPTH", tile_depth(size))
                .body::<MatmulParams>(&tile_body(size))
        };
        let tile = 16 * size as usize;
        let groups =
            self.problem.m.div_ceil(tile) * self.problem.n.div_ceil(tile) * self.problem.batch;
        self.launch(key, shader, groups)
    }

    fn cooperative(&self, tile: CoopTile) -> Result<()> {
        let key = self
            .key("matmul_cooperative")
            .with(tile.down, 3)
            .with(tile.across, 3);
        let shader = || cooperative_shader(self.out, self.problem.views.rank, tile);
        self.launch(key, shader, tile.count(self.problem))
    }
}

fn cooperative_shader(out: Elem, rank: usize, tile: CoopTile) -> Shader {
    let CoopTile { down, across } = tile;
    Shader::new(format!("matmul_cooperative F16->{out:?} {down}x{across}"))
        .input_words("lhs", "vec4<f16>")
        .input_words("rhs", "vec4<f16>")
        .output("dst", out)
        .strided("lhs", rank)
        .strided("rhs", rank)
        .constant("DEPTH", COOP_K)
        .constant("DOWN", down)
        .constant("ACROSS", across)
        .body::<MatmulParams>(&cooperative_body(tile))
        .directive("enable f16;\nenable wgpu_cooperative_matrix;\n")
}

/// A word of 16 bytes.
fn wide_word(elem: Elem) -> &'static str {
    match elem {
        Elem::F32 => "vec4<f32>",
        _ => "vec4<u32>",
    }
}

/// WGSL for sums of products of two words.
fn wide_fma(elem: Elem) -> &'static str {
    match elem {
        Elem::F32 => {
            "fn lhs_word(i: u32) -> vec4<f32> { return lhs[i / 4u]; }\n\
             fn rhs_word(i: u32) -> vec4<f32> { return rhs[i / 4u]; }\n\
             fn fma_words(a: vec4<f32>, b: vec4<f32>, sum: vec4<f32>) -> vec4<f32> { return fma(a, b, sum); }"
        }
        Elem::F16 => {
            "fn lhs_word(i: u32) -> vec4<u32> { return lhs[i / 8u]; }\n\
             fn rhs_word(i: u32) -> vec4<u32> { return rhs[i / 8u]; }\n\
             fn low(w: vec4<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)); }\n\
             fn high(w: vec4<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w)); }\n\
             fn fma_words(a: vec4<u32>, b: vec4<u32>, sum: vec4<f32>) -> vec4<f32> { return fma(high(a), high(b), fma(low(a), low(b), sum)); }"
        }
        _ => {
            "fn lhs_word(i: u32) -> vec4<u32> { return lhs[i / 8u]; }\n\
             fn rhs_word(i: u32) -> vec4<u32> { return rhs[i / 8u]; }\n\
             fn even(w: vec4<u32>) -> vec4<f32> { return bitcast<vec4<f32>>(w << vec4<u32>(16u)); }\n\
             fn odd(w: vec4<u32>) -> vec4<f32> { return bitcast<vec4<f32>>(w & vec4<u32>(0xffff0000u)); }\n\
             fn fma_words(a: vec4<u32>, b: vec4<u32>, sum: vec4<f32>) -> vec4<f32> { return fma(odd(a), odd(b), fma(even(a), even(b), sum)); }"
        }
    }
}

/// The same for single elements.
const NARROW_FMA: &str = "fn lhs_word(i: u32) -> f32 { return lhs_at(i); }\n\
    fn rhs_word(i: u32) -> f32 { return rhs_at(i); }\n\
    fn fma_words(a: f32, b: f32, sum: vec4<f32>) -> vec4<f32> { return sum + vec4<f32>(a * b, 0.0, 0.0, 0.0); }";

/// WGSL of the vector regime's loop over `k`, unrolled over rows, columns and steps: all loads of a turn come before their
/// use, so that they are in flight together.
fn vector_sums(rows: u32, cols: u32) -> String {
    let mut text = String::from(
        "fn sums(local: u32, lhs_base: u32, rhs_base: u32, col: u32) -> array<f32, COUNT> {\n",
    );
    for row in 0..rows {
        let _ = writeln!(text, "  let lhs{row} = lhs_base + {row}u * p.lhs_row;");
        for col in 0..cols {
            let _ = writeln!(text, "  var s{row}_{col} = vec4<f32>(0.0);");
        }
    }
    for col in 0..cols {
        let _ = writeln!(
            text,
            "  let rhs{col} = rhs_base + min(col + {col}u, p.n - 1u) * p.rhs_row;"
        );
    }
    text.push_str("  let step = WG * GROUP;\n  var at = local * GROUP;\n");
    let turn = |text: &mut String, unroll: u32, condition: &str| {
        let _ = writeln!(text, "  for (; {condition}; at += {unroll}u * step) {{");
        for u in 0..unroll {
            for col in 0..cols {
                let _ = writeln!(
                    text,
                    "    let b{u}_{col} = rhs_word(rhs{col} + at + {u}u * step);"
                );
            }
            for row in 0..rows {
                let _ = writeln!(
                    text,
                    "    let a{u}_{row} = lhs_word(lhs{row} + (at + {u}u * step) * LHS_COL);"
                );
            }
        }
        for u in 0..unroll {
            for row in 0..rows {
                for col in 0..cols {
                    let _ = writeln!(
                        text,
                        "    s{row}_{col} = fma_words(a{u}_{row}, b{u}_{col}, s{row}_{col});"
                    );
                }
            }
        }
        text.push_str("  }\n");
    };
    let last = UNROLL - 1;
    turn(&mut text, UNROLL, &format!("at + {last}u * step < p.k"));
    turn(&mut text, 1, "at < p.k");
    text.push_str("  return array<f32, COUNT>(");
    for row in 0..rows {
        for col in 0..cols {
            let _ = write!(text, "dot(s{row}_{col}, vec4<f32>(1.0)), ");
        }
    }
    text.push_str(");\n}");
    // lhs may have any step over k where single elements are read; words are contiguous.
    text.replace("LHS_COL", "select(1u, p.lhs_col, GROUP == 1u)")
}

/// How deep a tile is over `k`: as much as 16 KiB of workgroup memory holds for both operands.
fn tile_depth(size: u32) -> u32 {
    128 / size
}

impl Shader {
    /// A matrix operand of the tile kernel: `name_block(base, outer, k, outer_len)` gives the four elements
    /// `outer .. outer + 4` for each of `k .. k + 4`, with zeros past the ends.
    fn operand(self, name: &str, elem: Elem, access: Access) -> Self {
        let (row, col) = (format!("p.{name}_row"), format!("p.{name}_col"));
        let header = format!(
            "fn {name}_block(base: u32, outer: u32, k: u32, outer_len: u32) -> mat4x4<f32> {{\n"
        );
        if access == Access::Strided {
            let body = format!(
                "  var m: mat4x4<f32>;\n\
                 \x20 for (var j = 0u; j < 4u; j++) {{\n\
                 \x20   for (var i = 0u; i < 4u; i++) {{\n\
                 \x20     if (outer + i < outer_len && k + j < p.k) {{\n\
                 \x20       m[j][i] = {name}_at(base + (outer + i) * {row} + (k + j) * {col});\n\
                 \x20     }}\n    }}\n  }}\n  return m;\n}}"
            );
            return self.input(name, elem).text(&(header + &body));
        }
        let (word, unpack) = match elem {
            Elem::F32 => ("vec4<f32>", "w"),
            Elem::F16 => (
                "vec2<u32>",
                "vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y))",
            ),
            _ => (
                "vec2<u32>",
                "bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u))",
            ),
        };
        let four = format!(
            "fn {name}_four(i: u32) -> vec4<f32> {{ let w = {name}[i / 4u]; return {unpack}; }}\n"
        );
        let zero = "vec4<f32>(0.0)";
        let mut body = String::new();
        if access == Access::Inner {
            let _ = writeln!(body, "  if (k >= p.k) {{ return mat4x4<f32>(); }}");
            for i in 0..4 {
                let _ = writeln!(
                    body,
                    "  var r{i} = {zero}; if (outer + {i}u < outer_len) {{ r{i} = {name}_four(base + (outer + {i}u) * {row} + k); }}"
                );
            }
            body.push_str("  return transpose(mat4x4<f32>(r0, r1, r2, r3));\n}");
        } else {
            let _ = writeln!(
                body,
                "  if (outer >= outer_len) {{ return mat4x4<f32>(); }}"
            );
            for j in 0..4 {
                let _ = writeln!(
                    body,
                    "  var c{j} = {zero}; if (k + {j}u < p.k) {{ c{j} = {name}_four(base + outer + (k + {j}u) * {col}); }}"
                );
            }
            body.push_str("  return mat4x4<f32>(c0, c1, c2, c3);\n}");
        }
        self.input_words(name, word).text(&(four + &header + &body))
    }
}

/// The tile kernel with what depends on an invocation's share of the result unrolled: the sums, one step of `k`, and the
/// rows that are written.
fn tile_body(size: u32) -> String {
    let quads = size / 4;
    let (mut declare, mut product, mut store) = (String::new(), String::new(), String::new());
    for q in 0..quads {
        let _ = writeln!(product, "let a{q} = lhs_tile[lhs_row + {q}u * 16u];");
        let _ = writeln!(product, "let b{q} = rhs_tile[rhs_row + {q}u * 16u];");
    }
    for i in 0..size {
        let lane = ["x", "y", "z", "w"][i as usize % 4];
        for q in 0..quads {
            let a = i / 4;
            let _ = writeln!(declare, "var c{i}_{q} = vec4<f32>(0.0);");
            let _ = writeln!(
                product,
                "c{i}_{q} = fma(vec4<f32>(a{a}.{lane}), b{q}, c{i}_{q});"
            );
            let _ = writeln!(
                store,
                "put(batch, m0 + row * 4u + {}u, n0 + col * 4u + {}u, c{i}_{q});",
                a * 64 + i % 4,
                q * 64
            );
        }
    }
    include_str!("../shaders/matmul_tile.wgsl")
        .replace("DECLARE;", &declare)
        .replace("PRODUCT;", &product)
        .replace("STORE;", &store)
}

/// How deep the cooperative regime's tiles are over `k`.
const COOP_K: u32 = 32;

/// A tile of the cooperative regime: subgroups down and across, each 32 rows by 64 columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CoopTile {
    down: u32,
    across: u32,
}

impl CoopTile {
    /// Largest first.
    const ALL: [Self; 3] = [
        Self { down: 4, across: 2 },
        Self { down: 2, across: 2 },
        Self { down: 2, across: 1 },
    ];

    fn count(self, problem: &Problem) -> usize {
        let (m, n) = (32 * self.down as usize, 64 * self.across as usize);
        problem.m.div_ceil(m) * problem.n.div_ceil(n) * problem.batch
    }

    /// The largest tile that still gives every multiprocessor of a large GPU work, else the smallest.
    fn choose(problem: &Problem) -> Self {
        let busy = |tile: &&Self| tile.count(problem) >= BUSY_TILES;
        *Self::ALL.iter().find(busy).unwrap_or(&Self::ALL[2])
    }
}

/// The cooperative kernel with the fragments of a subgroup and the loads of an invocation unrolled: naga takes no arrays of
/// cooperative matrices, and an array of loads would not stay in registers.
fn cooperative_body(tile: CoopTile) -> String {
    let (down, across) = (2, 4);
    let (mut declare, mut product, mut store) = (String::new(), String::new(), String::new());
    let (mut fetch, mut stage) = (String::new(), String::new());
    let step = tile.down * tile.across * 32 / (COOP_K / 4);
    for (name, outer, loads) in [
        ("lhs", "m0", 32 * tile.down / step),
        ("rhs", "n0", 64 * tile.across / step),
    ] {
        for i in 0..loads {
            let _ = writeln!(declare, "var {name}{i} = vec4<f16>();");
            let _ = writeln!(
                fetch,
                "{name}{i} = {name}_group({name}_base, {outer} + r + {}u, NEXT + c * 4u);",
                i * step
            );
            let _ = writeln!(
                stage,
                "{name}_tile[(r + {}u) * PITCH + c] = {name}{i};",
                i * step
            );
        }
    }
    for i in 0..down {
        let _ = writeln!(
            product,
            "let a{i} = coopLoadT<coop_mat16x16<f16, A>>(&lhs_tile[(row + {}u) * PITCH + at / 4u], PITCH);",
            16 * i
        );
    }
    for j in 0..across {
        let _ = writeln!(
            product,
            "let b{j} = coopLoad<coop_mat16x16<f16, B>>(&rhs_tile[(col + {}u) * PITCH + at / 4u], PITCH);",
            16 * j
        );
    }
    for i in 0..down {
        for j in 0..across {
            let _ = writeln!(declare, "var c{i}_{j} = coop_mat16x16<f32, C>();");
            let _ = writeln!(product, "c{i}_{j} = coopMultiplyAdd(a{i}, b{j}, c{i}_{j});");
            // naga 30 does not emit a store's operands by itself: they must have names.
            let _ = writeln!(
                store,
                "let v{i}_{j} = c{i}_{j}; coopStoreT(v{i}_{j}, slot, pitch); workgroupBarrier();\n\
                 put_fragment(batch, rows, m0 + row + {}u, n0 + col + {}u, subgroup, lane); workgroupBarrier();",
                16 * i,
                16 * j
            );
        }
    }
    include_str!("../shaders/matmul_cooperative.wgsl")
        .replace("DECLARE;", &declare)
        .replace("FETCH(0u);", &fetch.replace("NEXT", "0u"))
        .replace("FETCH(k + DEPTH);", &fetch.replace("NEXT", "k + DEPTH"))
        .replace("STAGE;", &stage)
        .replace("PRODUCT;", &product)
        .replace("STORE;", &store)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(subgroup: Option<u32>, cooperative: bool) -> Caps {
        Caps {
            limits: wgpu::Limits::default(),
            subgroup,
            cooperative,
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
        for (out, tile) in [
            (Elem::F16, CoopTile::ALL[0]),
            (Elem::F32, CoopTile::ALL[1]),
            (Elem::F16, CoopTile::ALL[2]),
        ] {
            let text = cooperative_shader(out, 2, tile).into_text();
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
