//! The vector regime: a workgroup takes a few columns of the result for all of its rows, and reads their weights once.

use std::fmt::Write;

use super::{elem_bytes, MatmulParams, Run};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{Elem, Shader};
use crate::Result;

/// Loads of each operand in flight in the vector regime.
const UNROLL: u32 = 4;
/// Enough subgroups to keep the largest GPUs' memory busy.
pub(super) const BUSY_SUBGROUPS: u32 = 4096;

impl Run<'_> {
    pub(super) fn vector(&self, rows: u32, cols: u32, workgroup: u32, wide: bool) -> Result<()> {
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
                    include_str!("../../shaders/sum_subgroup.wgsl")
                } else {
                    include_str!("../../shaders/sum_workgroup.wgsl")
                })
                .body::<MatmulParams>(include_str!("../../shaders/matmul_vector.wgsl"))
        };
        let groups = self.problem.n.div_ceil(cols as usize) * self.problem.batch;
        self.launch(key, shader, groups)
    }
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
