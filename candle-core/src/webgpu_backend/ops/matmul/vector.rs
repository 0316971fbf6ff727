//! The vector regime: a workgroup takes a few columns of the result for all of its rows, and reads their weights once.

use std::fmt::Write;

use super::{MatmulParams, Plan, Problem, Rhs, Run};
use crate::webgpu_backend::adapter::Caps;
use crate::webgpu_backend::kernel::{Shader, Team};
use crate::Result;

/// Loads of each operand in flight in the vector regime.
const UNROLL: u32 = 4;
/// Enough subgroups to keep the largest GPUs' memory busy.
const BUSY_SUBGROUPS: u32 = 4096;
/// Workgroups that keep a processor's cores busy.
const BUSY_CORES: usize = 16;
/// Columns of which even four at a time keep a GPU busy.
const MANY_COLUMNS: usize = 4096;

/// How many columns and invocations a workgroup has for a dense rhs. A gated product reads two columns of the weight for each
/// of its own.
pub(super) fn plan(
    problem: &Problem,
    out_lanes: u32,
    gated: bool,
    wide: bool,
    caps: &Caps,
) -> Plan {
    let cols = 2.max(out_lanes);
    Plan::Vector {
        rows: problem.m as u32,
        cols,
        team: workgroup(problem, cols, 128, caps),
        unroll: if gated { UNROLL / 2 } else { UNROLL },
        wide,
    }
}

/// The same for blocks, whose words have more elements: more columns share what is read of lhs, and with several rows
/// there would be no registers for as many loads at once.
pub(super) fn plan_blocks(problem: &Problem, out_lanes: u32, gated: bool, caps: &Caps) -> Plan {
    if caps.alone(problem.k) {
        return plan_alone(problem, out_lanes, gated, true);
    }
    let columns = if gated { 2 * problem.n } else { problem.n };
    let cols = match problem.m <= 2 && columns >= MANY_COLUMNS {
        true => 4,
        false => 2,
    };
    let unroll = if gated { UNROLL / cols } else { UNROLL };
    let largest = match (gated, caps.subgroup) {
        // Half the columns for as many loads in flight: on an H200 one subgroup is faster by a tenth than two, and than four.
        (true, _) => 32,
        (false, Some(_)) => 256,
        // The sums of so many invocations would not fit workgroup memory.
        (false, None) => 128,
    };
    Plan::Vector {
        rows: problem.m as u32,
        cols,
        team: workgroup(problem, cols, largest, caps),
        unroll: (unroll / problem.m as u32).max(1),
        wide: true,
    }
}

/// The form for processors: rows and columns enough that each load serves several products, but no more sums than their registers and
/// nearest cache hold, and no fewer workgroups than cores.
pub(super) fn plan_alone(problem: &Problem, out_lanes: u32, gated: bool, wide: bool) -> Plan {
    let team = Team::ALONE;
    let rows = (problem.m as u32).min(if wide { 4 } else { 8 });
    let most = match (wide, rows) {
        (true, _) => 4,
        // Rows of rhs are far apart: whole lines of the cache are read from each.
        (false, 1) => 16,
        (false, _) => 8,
    };
    let most = if gated { most / 2 } else { most };
    let blocks = problem.m.div_ceil(rows as usize) * problem.batch;
    let groups = |cols: u32| problem.n.div_ceil((cols * team.teams) as usize) * blocks;
    let mut cols = most;
    while cols > out_lanes.max(2) && groups(cols) < BUSY_CORES {
        cols /= 2;
    }
    Plan::Vector {
        rows,
        cols: cols.max(out_lanes),
        team,
        unroll: 1,
        wide,
    }
}

/// One subgroup where there are enough workgroups, else more that share the columns.
fn workgroup(problem: &Problem, cols: u32, largest: u32, caps: &Caps) -> Team {
    let groups = (problem.n as u32).div_ceil(cols) * problem.batch as u32;
    let subgroup = caps.subgroup.unwrap_or(32).clamp(8, 64);
    let parts = BUSY_SUBGROUPS
        .div_ceil(groups.max(1))
        .clamp(1, largest / 32);
    // A reduction through workgroup memory needs barriers in any case, so it may as well have two subgroups' worth.
    let least = if caps.subgroup.is_some() { 32 } else { 64 };
    let members = subgroup * parts.next_power_of_two();
    Team::workgroup(members.clamp(least, largest.max(subgroup).max(least)))
}

impl Run<'_> {
    pub(super) fn vector(
        &self,
        (rows, cols): (u32, u32),
        team: Team,
        unroll: u32,
        wide: bool,
    ) -> Result<()> {
        let rank = self.problem.views.rank;
        let key = self
            .key("matmul_vector")
            .with(rows, 4)
            .with(cols, 5)
            .team(team)
            .with(unroll, 3)
            .with(wide.into(), 1);
        let normed = self.extras.norm.is_some();
        let gated = self.extras.gated;
        // Words are contiguous; single elements may be any steps apart.
        let strided = !wide && matches!(self.rhs, Rhs::Dense(_));
        let shader = || {
            let mut label = format!(
                "matmul_vector {:?} x {:?} m{rows} cols{cols} wg{} wide={wide}",
                self.lhs, self.rhs, team.members
            );
            for (extra, name) in [
                (normed, " norm"),
                (gated, " gated"),
                (self.extras.residual.is_some(), " residual"),
            ] {
                label.push_str(if extra { name } else { "" });
            }
            // Columns of the product: of a gated one, those of the gate and those of what it is multiplied with.
            let sums = if gated { 2 * cols } else { cols };
            let shader = Shader::new(label)
                .vector_operands(self.lhs, self.rhs, wide)
                .output("dst", self.out);
            let shader = match normed {
                true => shader.norm_weights(self.lhs, self.rhs, wide),
                false => shader,
            };
            shader
                .finish(self.extras.residual_elem())
                .text(include_str!("../../shaders/functions_float.wgsl"))
                .text(&vector_value(normed, gated))
                .constant("SUMS", sums)
                .strided("lhs", rank)
                .strided("rhs", rank)
                .constant("ROWS", rows)
                .constant("COLS", cols)
                .reduction(self.device, team, rows * (sums + u32::from(normed)))
                .text(&vector_sums(rows, (sums, cols), unroll, (normed, strided)))
                .body::<MatmulParams>(include_str!("../../shaders/matmul_vector.wgsl"))
        };
        let strips = self.problem.n.div_ceil((cols * team.teams) as usize);
        let blocks = self.problem.m.div_ceil(rows as usize);
        self.launch(key, shader, strips * blocks * self.problem.batch)
    }
}

/// WGSL for what sum number `at` of a row is before the residual.
fn vector_value(normed: bool, gated: bool) -> String {
    let scale = match normed {
        true => "inverseSqrt(total(ROWS * SUMS + row) / f32(p.k) + p.eps)",
        false => "1.0",
    };
    let value = match gated {
        true => "f_silu_mul(scale * total(at), scale * total(at + COLS))",
        false => "scale * total(at)",
    };
    format!("fn value(row: u32, at: u32) -> f32 {{ let scale = {scale}; return {value}; }}")
}

/// WGSL of the vector regime's loop over `k`, unrolled over rows, columns and steps: all loads of a turn come before their
/// use, so that they are in flight together. Past `cols` columns follow those that a gate is multiplied with. With a norm,
/// lhs is multiplied by its weights, and the sums of its squares come last.
fn vector_sums(
    rows: u32,
    (sums, cols): (u32, u32),
    unroll: u32,
    (normed, strided): (bool, bool),
) -> String {
    let mut text = String::from(
        "fn sums(local: u32, lhs_base: u32, rhs_base: u32, row: u32, col: u32) -> array<f32, COUNT> {\n",
    );
    for row in 0..rows {
        let _ = writeln!(
            text,
            "  let lhs{row} = lhs_base + min(row + {row}u, p.m - 1u) * p.lhs_row;"
        );
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
            "  let rhs{sum} = rhs_base + ({half}u * p.n + min(col + column({col}u), p.n - 1u)) * p.rhs_row;"
        );
    }
    let (lhs_col, rhs_col) = match strided {
        true => (" * p.lhs_col", " * p.rhs_col"),
        false => ("", ""),
    };
    text.push_str("  let step = WG * GROUP;\n  var at = local * GROUP;\n");
    let turn = |text: &mut String, unroll: u32, condition: &str| {
        let _ = writeln!(text, "  for (; {condition}; at += {unroll}u * step) {{");
        for u in 0..unroll {
            for col in 0..sums {
                let _ = writeln!(
                    text,
                    "    let b{u}_{col} = rhs_word(rhs{col} + (at + {u}u * step){rhs_col});"
                );
            }
            for row in 0..rows {
                let _ = writeln!(
                    text,
                    "    let a{u}_{row} = lhs_word(lhs{row} + (at + {u}u * step){lhs_col});"
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
    text
}
