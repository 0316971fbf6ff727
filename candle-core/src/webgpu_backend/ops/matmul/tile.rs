//! The tile regime: a workgroup takes a tile of the result and stages both operands through workgroup memory, in f32.

use std::fmt::Write;

use super::{Access, MatmulParams, Run};
use crate::webgpu_backend::kernel::{Elem, Shader};
use crate::Result;

impl Run<'_> {
    pub(super) fn tile(&self, lhs: Access, rhs: Access, size: u32) -> Result<()> {
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
    include_str!("../../shaders/matmul_tile.wgsl")
        .replace("DECLARE;", &declare)
        .replace("PRODUCT;", &product)
        .replace("STORE;", &store)
}
