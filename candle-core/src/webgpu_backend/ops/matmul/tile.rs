//! The tile regime: a workgroup takes a tile of the result and stages both operands through workgroup memory, in f32.

use std::fmt::Write;

use super::{Access, MatmulParams, Problem, Rhs, Run};
use crate::webgpu_backend::kernel::Shader;
use crate::Result;

/// The shape of a workgroup, and of the tile that it computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TileShape {
    /// Invocations along `n`, and along `m`.
    x: u32,
    y: u32,
    /// Elements of the result that an invocation computes, in each direction.
    size: u32,
}

impl TileShape {
    /// 128 x 128.
    pub(super) const LARGE: Self = Self::of(16, 16, 8);
    /// 64 x 64.
    pub(super) const MEDIUM: Self = Self::of(16, 16, 4);
    /// 32 x 128, for few rows.
    pub(super) const LOW: Self = Self::of(32, 8, 4);
    /// 16 x 128, for fewer.
    pub(super) const LOWEST: Self = Self::of(32, 4, 4);

    const fn of(x: u32, y: u32, size: u32) -> Self {
        Self { x, y, size }
    }

    /// How many there are without cutting `k`.
    pub(super) fn count(self, problem: &Problem) -> usize {
        let (m, n) = ((self.y * self.size) as usize, (self.x * self.size) as usize);
        problem.m.div_ceil(m) * problem.n.div_ceil(n) * problem.batch
    }

    /// How deep a tile is over `k`: what 16 KiB of workgroup memory hold of both operands, in powers of two, so that parts of `k`
    /// end where tiles do.
    fn depth(self) -> u32 {
        let rows = (self.x + self.y) * self.size;
        1 << (4096 / rows).min(32).ilog2()
    }
}

impl Run<'_> {
    pub(super) fn tile(&self, lhs: Access, rhs: Access, shape: TileShape) -> Result<()> {
        let rank = self.problem.views.rank;
        let TileShape { x, y, size } = shape;
        let name = match self.windows {
            None => "matmul_tile",
            Some(_) => "conv_tile",
        };
        let key = self
            .key(name)
            .with(lhs as u32, 2)
            .with(rhs as u32, 2)
            .with(x, 6)
            .with(y, 6)
            .with(size, 4)
            .with(self.scales as u32, 2);
        let key = match &self.windows {
            None => key,
            Some(windows) => windows.key(key),
        };
        let shader = || {
            let label = format!(
                "{name} {:?} {lhs:?} x {:?} {rhs:?} {}x{}",
                self.lhs,
                self.rhs,
                y * size,
                x * size
            );
            let shader = Shader::new(label).tile_operand("lhs", Rhs::Dense(self.lhs), lhs);
            let shader = match (&self.windows, self.rhs) {
                (Some(windows), Rhs::Dense(elem)) => {
                    shader.input("rhs", elem).text(&windows.block())
                }
                _ => shader.tile_operand("rhs", self.rhs, rhs),
            };
            shader
                .scales(self.scales)
                .output("dst", self.out)
                .finish(self.extras.last())
                .strided("lhs", rank)
                .strided("rhs", rank)
                .constant("LHS_OUTER", lhs == Access::Outer)
                .constant("RHS_OUTER", rhs == Access::Outer)
                .constant("TX", x)
                .constant("TY", y)
                .constant("SIZE", size)
                .constant("DEPTH", shape.depth())
                .body::<MatmulParams>(&tile_body(shape))
        };
        self.launch(key, shader, shape.count(self.problem))
    }
}

/// The tile kernel with what depends on an invocation's share of the result unrolled: the sums, one step of `k`, and the
/// rows that are written.
fn tile_body(shape: TileShape) -> String {
    let TileShape { x, y, size } = shape;
    let quads = size / 4;
    let (mut declare, mut product, mut store) = (String::new(), String::new(), String::new());
    for q in 0..quads {
        let _ = writeln!(product, "let a{q} = lhs_tile[lhs_row + {q}u * {y}u];");
        let _ = writeln!(product, "let b{q} = rhs_tile[rhs_row + {q}u * {x}u];");
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
                "put(part, m0 + row * 4u + {}u, n0 + col * 4u + {}u, c{i}_{q});",
                a * 4 * y + i % 4,
                q * 4 * x
            );
        }
    }
    include_str!("../../shaders/matmul_tile.wgsl")
        .replace("DECLARE;", &declare)
        .replace("PRODUCT;", &product)
        .replace("STORE;", &store)
}
