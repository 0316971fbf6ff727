//! Products of a few rows with quantised weights, one subgroup for a few columns: most of the work in generation.
//!
//! Compared with the vector kernel, which supports any operand: a lane reads 16 bytes of codes at once instead of 4, a workgroup reads rows
//! of lhs once instead of for every column or two, and the loads of weights are in flight before lhs arrives. Also, lhs can be rounded to 8
//! bits while it is copied to workgroup memory, with a scale for 32 elements (16 if rhs has a scale for 16). Products are then sums of
//! integers, four per instruction, whereas f32 takes two instructions to convert a code before one multiplies it. The CPU does the same
//! with these formats.
//!
//! The result for a row does not depend on the other rows, nor on their number: a batch of sequences has the same results as each sequence
//! alone. If not all rows fit workgroup memory, they form several groups, which read the same weights at about the same time.
//!
//! It requires subgroups of a single size, products of bytes, and codes of four bits or more. With rows in f32 the same kernel was slower
//! than the vector kernel (8B in Q4_0 on an H200: 226 against 281 tokens a second; with bytes 400). Unrolled loops over rows and columns
//! were also slower, from two rows on (8 rows: 669 against 824).

use super::extras::Extras;
use super::plan::MAX_BLOCKS_ROWS;
use super::{Form, MatmulParams, Problem, Run};
use crate::webgpu_backend::kernel::{Caps, Kernel, Shader};
use crate::webgpu_backend::ops::quantized::{Format, Pieces};
use crate::Result;

/// Workgroups that keep the largest GPUs busy.
const BUSY_WORKGROUPS: usize = 256;
/// Maximum number of columns of rhs for which all of its loads in flight at once do not fill the memory queue.
const FEW_COLUMNS: usize = 8192;
/// Maximum workgroup memory for lhs in bytes, so that several workgroups run concurrently.
const LHS_BYTES: u32 = 32 << 10;
/// Loads of eight elements of lhs in flight.
const LHS_LOADS: u32 = 8;

/// The specialisation constants of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BlocksShape {
    pub(super) pieces: Pieces,
    pub(super) subgroup: u32,
    /// Rows in a workgroup.
    rows: u32,
    /// Columns of the result per subgroup.
    pub(super) cols: u32,
    pub(super) workgroup: u32,
    /// Vectors of each column in flight while one is multiplied.
    depth: u32,
    /// Loads of each row of lhs in flight.
    stages: u32,
    /// Vectors of lhs in workgroup memory.
    strip: u32,
    /// Whether these are all vectors of lhs.
    whole: bool,
}

/// Maximum number of rows that are multiplied at once with such blocks and these extras.
pub(super) fn most_rows(format: Format, extras: &Extras<'_>, caps: &Caps) -> usize {
    match takes(format, caps) {
        Some(_) => MAX_BLOCKS_ROWS,
        None => extras.most_vector_rows(),
    }
}

fn takes(format: Format, caps: &Caps) -> Option<(Pieces, u32)> {
    let subgroup = caps.subgroup.filter(|size| caps.int8 && *size <= 64)?;
    Some((Pieces::of(format)?, subgroup))
}

impl BlocksShape {
    /// The kernel for few rows, or `None` if it does not support them.
    pub(super) fn choose(
        problem: &Problem,
        format: Format,
        gated: bool,
        caps: &Caps,
    ) -> Option<Self> {
        let (pieces, subgroup) = takes(format, caps)?;
        if problem.batch != 1 || problem.m > MAX_BLOCKS_ROWS {
            return None;
        }
        let m = problem.m as u32;
        // A gated product reads two columns for each column of its result. Results of 16 bits are stored two at a time.
        let most_subgroups = (256 / subgroup).clamp(1, 8);
        let few = most_subgroups.min(4);
        let all = [(4, most_subgroups), (4, few), (2, most_subgroups), (2, few)];
        let choices = if gated { &all[2..] } else { &all[..] };
        let busy = |(cols, subgroups): &&(u32, u32)| {
            problem.n.div_ceil((cols * subgroups) as usize) >= BUSY_WORKGROUPS
        };
        let (cols, subgroups) = *choices.iter().find(busy).or(choices.last())?;
        let workgroup = subgroups * subgroup;
        let columns = if gated { 2 * problem.n } else { problem.n };
        // The sums of a workgroup take up to 2 KiB next to lhs.
        let room = LHS_BYTES.min(caps.limits.max_compute_workgroup_storage_size - (4 << 10));
        let count = problem.k as u32 / pieces.piece;
        // Granularity of strips, so that sums have the same order.
        let unit = subgroup.max(workgroup * 8 / pieces.piece);
        let bytes = pieces.lhs_bytes();
        let rows_at_once = (room / (bytes * unit.min(count))).clamp(1, MAX_BLOCKS_ROWS as u32);
        let rows = m.div_ceil(m.div_ceil(rows_at_once));
        let fit = room / (bytes * rows);
        let strip = if count <= fit {
            count
        } else {
            let strips = count.div_ceil(fit / unit * unit);
            count.div_ceil(strips).next_multiple_of(unit)
        };
        let depth = if columns <= FEW_COLUMNS && rows <= 2 {
            strip.div_ceil(subgroup).min(2)
        } else {
            1
        };
        let stages = (strip * pieces.piece / 8)
            .div_ceil(workgroup)
            .min(LHS_LOADS / rows)
            .max(1);
        Some(Self {
            pieces,
            subgroup,
            rows,
            cols,
            workgroup,
            depth,
            stages,
            strip,
            whole: strip == count,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MatmulBlocks {
    form: Form,
    shape: BlocksShape,
}

impl Kernel for MatmulBlocks {
    type Params = MatmulParams;

    fn shader(&self, _: &Caps) -> Shader {
        let Self { form, shape } = self;
        let Form { lhs, extras, .. } = *form;
        let scale = if extras.norm {
            "norm_scale(row)"
        } else {
            "1.0"
        };
        Shader::default()
            .piece_operands(lhs, shape.pieces)
            .output("dst", form.out)
            .norm_weights(extras.norm, lhs, form.rhs, true)
            .finish(extras.epilogue)
            .vector_value(scale, &extras)
            .constant("SUMS", shape.cols * extras.sums())
            .constant("ROWS", shape.rows)
            .constant("COLS", shape.cols)
            .constant("WG", shape.workgroup)
            .constant("SUBGROUP", shape.subgroup)
            .constant("DEPTH", shape.depth)
            .constant("STAGES", shape.stages)
            .constant("STRIP", shape.strip)
            .constant("WHOLE", shape.whole)
            .constant("NORMED", extras.norm)
            .body::<MatmulParams>(include_str!("../../shaders/matmul_blocks.wgsl"))
    }
}

impl Run<'_> {
    pub(super) fn blocks(&self, shape: BlocksShape) -> Result<()> {
        let kernel = MatmulBlocks {
            form: self.form(),
            shape,
        };
        let columns = (shape.workgroup / shape.subgroup * shape.cols) as usize;
        let column_groups = self.problem.n.div_ceil(columns);
        let row_groups = self.problem.m.div_ceil(shape.rows as usize);
        self.launch(&kernel, column_groups * row_groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::Gate;
    use crate::quantized::GgmlDType;
    use crate::webgpu_backend::kernel::{assert_valid, Elem};
    use crate::webgpu_backend::ops::matmul::via_f16::problem;
    use crate::webgpu_backend::ops::matmul::Rhs;

    fn caps(subgroup: u32) -> Caps {
        Caps {
            subgroup: Some(subgroup),
            int8: true,
            ..Caps::default()
        }
    }

    fn shape(m: usize, n: usize, k: usize, caps: &Caps) -> BlocksShape {
        let format = Format::of(GgmlDType::Q4_0).unwrap();
        let problem = problem((m, k, n), k, [0, 0]).unwrap();
        BlocksShape::choose(&problem, format, false, caps).unwrap()
    }

    /// Adapters here have subgroups of one size, so at least the compiler checks the kernels for the others.
    #[test]
    fn every_blocks_kernel_is_valid_wgsl() {
        for dtype in [
            GgmlDType::Q4_0,
            GgmlDType::Q8_0,
            GgmlDType::Q5_1,
            GgmlDType::Q4K,
            GgmlDType::Q6K,
            GgmlDType::Q8K,
        ] {
            let format = Format::of(dtype).unwrap();
            for subgroup in [4, 32, 64] {
                for gate in [None, Some(Gate::Silu)] {
                    let problem = problem((8, 14336, 4096), 14336, [0, 0]).unwrap();
                    let caps = caps(subgroup);
                    let shape = BlocksShape::choose(&problem, format, gate.is_some(), &caps);
                    let extras = Extras {
                        gate,
                        ..Extras::default()
                    };
                    for elem in [Elem::F32, Elem::F16] {
                        let form = Form {
                            lhs: elem,
                            rhs: Rhs::Blocks(format),
                            out: elem,
                            rank: 0,
                            extras: extras.form(),
                        };
                        let shape = shape.unwrap();
                        assert_valid(&MatmulBlocks { form, shape });
                    }
                }
            }
        }
    }

    #[test]
    fn formats_and_adapters_without_the_kernel() {
        let problem = problem((1, 256, 8), 256, [0, 0]).unwrap();
        let chosen = |dtype, caps: &Caps| {
            let format = Format::of(dtype).unwrap();
            BlocksShape::choose(&problem, format, false, caps)
        };
        assert!(chosen(GgmlDType::Q4_0, &caps(32)).is_some());
        assert!(chosen(GgmlDType::Q2K, &caps(32)).is_none());
        let without = Caps {
            int8: false,
            ..caps(32)
        };
        assert!(chosen(GgmlDType::Q4_0, &without).is_none());
        assert!(chosen(GgmlDType::Q4_0, &Caps::default()).is_none());
        assert!(chosen(GgmlDType::Q4_0, &caps(128)).is_none());
    }

    /// The order of a sum must not depend on the number of rows: strips are whole iterations, unless there is only one strip.
    #[test]
    fn sums_have_one_order() {
        for caps in [caps(8), caps(32), caps(64)] {
            for k in [32, 2048, 4128, 14336, 65536] {
                let one = shape(1, 4096, k, &caps);
                for m in 1..=MAX_BLOCKS_ROWS {
                    let shape = shape(m, 4096, k, &caps);
                    assert_eq!((shape.workgroup, shape.cols), (one.workgroup, one.cols));
                    let groups = m.div_ceil(shape.rows as usize) as u32;
                    assert!(
                        shape.rows <= MAX_BLOCKS_ROWS as u32
                            && groups * shape.rows < m as u32 + groups
                    );
                    let turns = shape.strip.is_multiple_of(shape.subgroup)
                        && (shape.strip * 4).is_multiple_of(shape.workgroup);
                    assert!(shape.whole || turns, "{m} x {k}: {shape:?}");
                    assert_eq!(shape.whole, shape.strip as usize * 32 == k);
                    let bytes = shape.strip * shape.rows * shape.pieces.lhs_bytes();
                    assert!(bytes <= 12 << 10, "{m} x {k}: {shape:?}");
                }
            }
        }
    }

    #[test]
    fn workgroups_are_many() {
        for (n, cols, workgroup) in [(128256, 4, 256), (4096, 4, 128), (2048, 2, 128)] {
            let shape = shape(1, n, 2048, &caps(32));
            assert_eq!((shape.cols, shape.workgroup), (cols, workgroup), "{n}");
        }
    }
}
