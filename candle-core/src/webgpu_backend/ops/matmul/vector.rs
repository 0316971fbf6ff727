//! The vector regime: a workgroup computes a few columns of the result for all of its rows, and reads their weights once.

use super::extras::ExtrasForm;
use super::{Form, MatmulParams, Problem, Run};
use crate::webgpu_backend::kernel::{Caps, Elem, Kernel, Shader};
use crate::Result;

/// Maximum number of loads of each operand in flight in the vector regime.
const UNROLL: u32 = 4;
/// Enough subgroups to keep the largest GPUs' memory busy.
const BUSY_SUBGROUPS: u32 = 4096;
/// Minimum number of columns for which four per workgroup keep a GPU busy.
const MANY_COLUMNS: usize = 4096;

/// The specialisation constants of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct VectorShape {
    pub(super) rows: u32,
    /// Columns of a workgroup.
    pub(super) cols: u32,
    pub(super) workgroup: u32,
    /// Loads of each operand in flight at once.
    pub(super) unroll: u32,
    /// Whether dense operands are read 16 bytes at a time.
    pub(super) wide: bool,
}

/// The number of columns and invocations of a workgroup for a dense rhs that is read in groups of `group` elements. A gated product reads
/// two columns of the weight for each column of its result.
pub(super) fn plan(
    problem: &Problem,
    out_lanes: u32,
    gated: bool,
    group: u32,
    caps: &Caps,
) -> VectorShape {
    let cols = 2.max(out_lanes);
    let workgroup = workgroup(problem, cols, 128, caps);
    let most = if gated { UNROLL / 2 } else { UNROLL };
    VectorShape {
        rows: problem.m as u32,
        cols,
        workgroup,
        unroll: turns(problem.k, workgroup * group, most),
        wide: group > 1,
    }
}

/// The same for blocks, whose words have more elements: more columns share the loads of lhs, and with several rows there would be no
/// registers for that many loads at once.
pub(super) fn plan_blocks(problem: &Problem, gated: bool, caps: &Caps) -> VectorShape {
    let columns = if gated { 2 * problem.n } else { problem.n };
    let cols = if problem.m <= 2 && columns >= MANY_COLUMNS {
        4
    } else {
        2
    };
    let most = if gated { UNROLL / cols } else { UNROLL };
    let largest = match (gated, caps.subgroup) {
        // Half the columns with the same number of loads in flight: on an H200 one subgroup is faster by a tenth than two, and than four.
        (true, _) => 32,
        (false, Some(_)) => 256,
        // The sums of 256 invocations would exceed workgroup memory.
        (false, None) => 128,
    };
    let workgroup = workgroup(problem, cols, largest, caps);
    VectorShape {
        rows: problem.m as u32,
        cols,
        workgroup,
        unroll: turns(problem.k, workgroup * 8, most / problem.m as u32),
        wide: true,
    }
}

/// Unroll factor of the loop over `k`, for iterations of `step` elements: at most `most`, and the one that leaves the fewest rounds. A
/// round waits for memory once, and each remaining iteration is a round.
fn turns(k: usize, step: u32, most: u32) -> u32 {
    let all = (k as u32).div_ceil(step);
    let rounds = |unroll: &u32| all / unroll + all % unroll;
    let choices = 1..=most.min(all).max(1);
    choices.rev().min_by_key(rounds).unwrap_or(1)
}

/// One subgroup if there are enough workgroups, else several that share the columns.
fn workgroup(problem: &Problem, cols: u32, largest: u32, caps: &Caps) -> u32 {
    let groups = (problem.n as u32).div_ceil(cols) * problem.batch as u32;
    let subgroup = caps.subgroup.unwrap_or(32).clamp(8, 64);
    let parts = BUSY_SUBGROUPS
        .div_ceil(groups.max(1))
        .clamp(1, largest / 32);
    // A reduction through workgroup memory needs barriers in any case, so it may as well use the size of two subgroups.
    let least = if caps.subgroup.is_some() { 32 } else { 64 };
    (subgroup * parts.next_power_of_two()).clamp(least, largest.max(subgroup).max(least))
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MatmulVector {
    form: Form,
    shape: VectorShape,
    /// For a stack of matrices: the element type of the ids.
    ids: Option<Elem>,
}

impl Kernel for MatmulVector {
    type Params = MatmulParams;

    fn shader(&self, caps: &Caps) -> Shader {
        let Form {
            lhs,
            rhs,
            rank,
            extras,
            ..
        } = self.form;
        let VectorShape {
            rows,
            cols,
            workgroup,
            unroll: turns,
            wide,
        } = self.shape;
        let sums = cols * extras.sums();
        let scale = if extras.norm {
            "inverseSqrt(total(ROWS * SUMS + row) / f32(p.k) + p.eps)"
        } else {
            "1.0"
        };
        let shader = Shader::default()
            .vector_operands(lhs, rhs, wide)
            .output("dst", self.form.out)
            .norm_weights(extras.norm, lhs, rhs, wide)
            .finish(extras.epilogue)
            .vector_value(scale, &extras)
            .strided("lhs", rank);
        let shader = match self.ids {
            Some(ids) => shader.chosen_offsets(ids),
            None => shader.strided("rhs", rank),
        };
        shader
            .constant("COLS", cols)
            .constant("NORMED", extras.norm)
            .sums(caps, workgroup, rows * (sums + u32::from(extras.norm)))
            .unrolled::<MatmulParams>(
                include_str!("../../shaders/matmul_vector.wgsl"),
                &[
                    ("ROWS", rows),
                    ("SUMS", sums),
                    ("TURNS", turns),
                    ("PASSES", turns.min(2)),
                ],
            )
    }
}

impl Run<'_> {
    pub(super) fn vector(&self, shape: VectorShape) -> Result<()> {
        let kernel = MatmulVector {
            form: self.form(),
            shape,
            ids: self.choice.map(|choice| choice.elem),
        };
        let groups = self.problem.n.div_ceil(shape.cols as usize) * self.problem.batch;
        self.launch(&kernel, groups)
    }
}

impl Shader {
    /// `value(row, at, col)`: sum number `at` of a row, in column `col`, before the last additions; `scale` is the norm's factor of the
    /// row.
    pub(super) fn vector_value(self, scale: &str, extras: &ExtrasForm) -> Self {
        let (gate_bias, up_bias) = match extras.epilogue.bias {
            Some(_) => (
                " + bias_at(p.bias_offset + col)",
                " + bias_at(p.bias_offset + p.n + col)",
            ),
            None => ("", ""),
        };
        let value = match extras.gate {
            Some(gate) => format!(
                "f_{}(scale * total(at){gate_bias}, scale * total(at + COLS){up_bias})",
                gate.function()
            ),
            None => "scale * total(at)".to_string(),
        };
        self.text(&format!(
            "fn value(row: u32, at: u32, col: u32) -> f32 {{ let scale = {scale}; return {value}; }}"
        ))
    }
}
