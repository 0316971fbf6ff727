//! The vector regime: a workgroup takes a few columns of the result for all of its rows, and reads their weights once.

use std::fmt::Write;

use super::{MatmulParams, Plan, Problem, Run};
use crate::fused::Gate;
use crate::webgpu_backend::adapter::Caps;
use crate::webgpu_backend::kernel::Shader;
use crate::Result;

/// Loads of each operand in flight in the vector regime, at the most.
const UNROLL: u32 = 4;
/// Enough subgroups to keep the largest GPUs' memory busy.
const BUSY_SUBGROUPS: u32 = 4096;
/// Columns of which even four at a time keep a GPU busy.
const MANY_COLUMNS: usize = 4096;

/// How many columns and invocations a workgroup has for a dense rhs that is read in groups of `group` elements. A gated product reads
/// two columns of the weight for each column of its result.
pub(super) fn plan(
    problem: &Problem,
    out_lanes: u32,
    gated: bool,
    group: u32,
    caps: &Caps,
) -> Plan {
    let cols = 2.max(out_lanes);
    let workgroup = workgroup(problem, cols, 128, caps);
    let most = if gated { UNROLL / 2 } else { UNROLL };
    Plan::Vector {
        rows: problem.m as u32,
        cols,
        workgroup,
        unroll: unroll(problem.k, workgroup * group, most),
        wide: group > 1,
    }
}

/// The same for blocks, whose words have more elements: more columns share what is read of lhs, and with several rows
/// there would be no registers for as many loads at once.
pub(super) fn plan_blocks(problem: &Problem, gated: bool, caps: &Caps) -> Plan {
    let columns = if gated { 2 * problem.n } else { problem.n };
    let cols = match problem.m <= 2 && columns >= MANY_COLUMNS {
        true => 4,
        false => 2,
    };
    let most = if gated { UNROLL / cols } else { UNROLL };
    let largest = match (gated, caps.subgroup) {
        // Half the columns for as many loads in flight: on an H200 one subgroup is faster by a tenth than two, and than four.
        (true, _) => 32,
        (false, Some(_)) => 256,
        // The sums of 256 invocations would not fit workgroup memory.
        (false, None) => 128,
    };
    let workgroup = workgroup(problem, cols, largest, caps);
    Plan::Vector {
        rows: problem.m as u32,
        cols,
        workgroup,
        unroll: unroll(problem.k, workgroup * 8, most / problem.m as u32),
        wide: true,
    }
}

/// How many turns of the loop over `k`, of `step` elements each, are made at once: at most `most`, and as many as leave the fewest
/// rounds. A round waits for memory once, and turns that are left over are rounds themselves.
fn unroll(k: usize, step: u32, most: u32) -> u32 {
    let turns = (k as u32).div_ceil(step);
    let rounds = |unroll: &u32| turns / unroll + turns % unroll;
    let choices = 1..=most.min(turns).max(1);
    choices.rev().min_by_key(rounds).unwrap_or(1)
}

/// One subgroup where there are enough workgroups, else more that share the columns.
fn workgroup(problem: &Problem, cols: u32, largest: u32, caps: &Caps) -> u32 {
    let groups = (problem.n as u32).div_ceil(cols) * problem.batch as u32;
    let subgroup = caps.subgroup.unwrap_or(32).clamp(8, 64);
    let parts = BUSY_SUBGROUPS
        .div_ceil(groups.max(1))
        .clamp(1, largest / 32);
    // A reduction through workgroup memory needs barriers in any case, so it may as well have two subgroups' worth.
    let least = if caps.subgroup.is_some() { 32 } else { 64 };
    (subgroup * parts.next_power_of_two()).clamp(least, largest.max(subgroup).max(least))
}

impl Run<'_> {
    pub(super) fn vector(
        &self,
        (rows, cols): (u32, u32),
        workgroup: u32,
        unroll: u32,
        wide: bool,
    ) -> Result<()> {
        let rank = self.problem.views.rank;
        let key = self
            .key("matmul_vector")
            .with(rows, 4)
            .with(cols, 3)
            .with(workgroup, 9)
            .with(unroll, 3)
            .with(wide.into(), 1);
        let normed = self.extras.norm.is_some();
        let gate = self.extras.gate;
        let gated = gate.is_some();
        let shader = || {
            let label = format!(
                "matmul_vector {:?} x {:?} m{rows} cols{cols} wg{workgroup} wide={wide}{}{}",
                self.lhs,
                self.rhs,
                if self.choice.is_some() {
                    " of experts"
                } else {
                    ""
                },
                self.extras.label()
            );
            // Columns of the product: of a gated one, those of the gate and those of what it is multiplied with.
            let sums = if gated { 2 * cols } else { cols };
            let shader = Shader::new(label)
                .vector_operands(self.lhs, self.rhs, wide)
                .output("dst", self.out);
            let shader = match normed {
                true => shader.norm_weights(self.lhs, self.rhs, wide),
                false => shader,
            };
            let scale = match normed {
                true => "inverseSqrt(total(ROWS * SUMS + row) / f32(p.k) + p.eps)",
                false => "1.0",
            };
            let shader = shader
                .finish(self.extras.last())
                .text(&vector_value(scale, gate, self.extras.bias.is_some()))
                .constant("SUMS", sums)
                .strided("lhs", rank);
            let shader = match self.choice {
                Some(choice) => choice.offsets(shader),
                None => shader.strided("rhs", rank),
            };
            shader
                .constant("ROWS", rows)
                .constant("COLS", cols)
                .reduction(self.device, workgroup, rows * (sums + u32::from(normed)))
                .text(&vector_sums(rows, (sums, cols), unroll, normed))
                .body::<MatmulParams>(include_str!("../../shaders/matmul_vector.wgsl"))
        };
        let groups = self.problem.n.div_ceil(cols as usize) * self.problem.batch;
        self.launch(key, shader, groups)
    }
}

/// WGSL for what sum number `at` of a row, which is column `col`, is before what is added last; `scale` is what a norm multiplies
/// the row by.
pub(super) fn vector_value(scale: &str, gate: Option<Gate>, bias: bool) -> String {
    let (gate_bias, up_bias) = match bias {
        true => (
            " + bias_at(p.bias_offset + col)",
            " + bias_at(p.bias_offset + p.n + col)",
        ),
        false => ("", ""),
    };
    let value = match gate {
        Some(gate) => format!(
            "f_{}(scale * total(at){gate_bias}, scale * total(at + COLS){up_bias})",
            gate.function()
        ),
        None => "scale * total(at)".to_string(),
    };
    format!(
        "fn value(row: u32, at: u32, col: u32) -> f32 {{ let scale = {scale}; return {value}; }}"
    )
}

/// WGSL of the vector regime's loop over `k`, unrolled over rows, columns and steps: all loads of a turn come before their
/// use, so that they are in flight together. Past `cols` columns follow those that a gate is multiplied with. With a norm,
/// lhs is multiplied by its weights, and the sums of its squares come last.
fn vector_sums(rows: u32, (sums, cols): (u32, u32), unroll: u32, normed: bool) -> String {
    let mut text = String::from(
        "fn sums(local: u32, lhs_base: u32, rhs_base: u32, col: u32) -> array<f32, COUNT> {\n",
    );
    for row in 0..rows {
        let _ = writeln!(text, "  let lhs{row} = lhs_base + {row}u * p.lhs_row;");
        for col in 0..sums {
            let _ = writeln!(text, "  var s{row}_{col} = Sum();");
        }
        if normed {
            let _ = writeln!(text, "  var squares{row} = Sum();");
        }
    }
    for sum in 0..sums {
        let (col, half) = (sum % cols, sum / cols);
        let _ = writeln!(
            text,
            "  let rhs{sum} = rhs_base + ({half}u * p.n + min(col + {col}u, p.n - 1u)) * p.rhs_row;"
        );
    }
    text.push_str("  let step = WG * GROUP;\n  var at = local * GROUP;\n");
    let turn = |text: &mut String, unroll: u32, condition: &str| {
        let _ = writeln!(text, "  for (; {condition}; at += {unroll}u * step) {{");
        for u in 0..unroll {
            for col in 0..sums {
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
            if normed {
                let _ = writeln!(
                    text,
                    "    let g{u} = alpha_word(p.alpha_offset + at + {u}u * step);"
                );
            }
        }
        for u in 0..unroll {
            for col in 0..sums {
                let _ = writeln!(text, "    let y{u}_{col} = rhs_values(b{u}_{col});");
            }
            for row in 0..rows {
                let x = format!("x{u}_{row}");
                if normed {
                    let _ = writeln!(
                        text,
                        "    squares{row} = fma_squares(a{u}_{row}, squares{row});\n\
                         \x20   let {x} = normed_values(a{u}_{row}, g{u});"
                    );
                } else {
                    let _ = writeln!(text, "    let {x} = lhs_values(a{u}_{row});");
                }
                for col in 0..sums {
                    let _ = writeln!(
                        text,
                        "    s{row}_{col} = fma_values({x}, y{u}_{col}, s{row}_{col});"
                    );
                }
            }
        }
        text.push_str("  }\n");
    };
    if unroll > 1 {
        let last = unroll - 1;
        turn(&mut text, unroll, &format!("at + {last}u * step < p.k"));
    }
    turn(&mut text, 1, "at < p.k");
    text.push_str("  return array<f32, COUNT>(");
    for row in 0..rows {
        for col in 0..sums {
            let _ = write!(text, "sum_of(s{row}_{col}), ");
        }
    }
    if normed {
        for row in 0..rows {
            let _ = write!(text, "sum_of(squares{row}), ");
        }
    }
    text.push_str(");\n}");
    // lhs may have any step over k where single elements are read; words are contiguous.
    text.replace("LHS_COL", "select(1u, p.lhs_col, GROUP == 1u)")
}
