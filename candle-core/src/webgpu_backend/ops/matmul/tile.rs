//! The tile regime: a workgroup takes a tile of the result and stages both operands through workgroup memory, in f32.

use std::fmt::Write;

use super::{Access, MatmulParams, Problem, Rhs, Run};
use crate::webgpu_backend::kernel::Shader;
use crate::Result;

impl Run<'_> {
    pub(super) fn tile(&self, lhs: Access, rhs: Access, size: u32) -> Result<()> {
        let rank = self.problem.views.rank;
        let key = self
            .key("matmul_tile")
            .with(lhs as u32, 2)
            .with(rhs as u32, 2)
            .with(size, 4)
            .with(self.scaled.into(), 1);
        let shader = || {
            let label = format!(
                "matmul_tile {:?} {lhs:?} x {:?} {rhs:?} {size}",
                self.lhs, self.rhs
            );
            Shader::new(label)
                .tile_operand("lhs", Rhs::Dense(self.lhs), lhs)
                .tile_operand("rhs", self.rhs, rhs)
                .lhs_scales(self.scaled)
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
}

/// How much of the result an invocation computes in each direction: the larger, if there are enough of the larger tiles.
pub(super) fn size(problem: &Problem) -> u32 {
    let tiles = problem.m.div_ceil(128) * problem.n.div_ceil(128) * problem.batch;
    if tiles >= 256 {
        8
    } else {
        4
    }
}

/// How deep a tile is over `k`: as much as 16 KiB of workgroup memory holds for both operands.
fn tile_depth(size: u32) -> u32 {
    128 / size
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
    include_str!("../../shaders/matmul_tile.wgsl")
        .replace("DECLARE;", &declare)
        .replace("PRODUCT;", &product)
        .replace("STORE;", &store)
}
