//! Selects the kernel and its specialisation constants.

use super::blocks::BlocksShape;
use super::cooperative::{CoopTile, COOP_K};
use super::rows::RowsShape;
use super::tile::TileShape;
use super::vector::{self, VectorShape};
use super::{elem_bytes, Access, Extras, Problem, Rhs};
use crate::webgpu_backend::adapter::Caps;
use crate::webgpu_backend::kernel::Elem;
use crate::webgpu_backend::ops::MOST_STEPS;

/// Maximum number of rows in the vector regime.
const MAX_VECTOR_ROWS: usize = 8;
/// Maximum number of rows for products with blocks without conversion. On an H100 cooperative matrices are faster from about 16 rows on.
pub(super) const MAX_BLOCKS_ROWS: usize = 8;
/// Maximum number of rows with a norm or a gate: their sums have to fit 16 KiB of workgroup memory.
const MAX_FUSED_ROWS: usize = 4;
/// Workgroups of the tile regime that keep a GPU busy.
const BUSY_TILES: usize = 256;
/// Maximum length of a part of `k` in an invocation of the tile and cooperative kernels, which process at least 16 elements of it per
/// iteration, each iteration with separate loops.
pub(super) const MOST_TILE_K: usize = MOST_STEPS;
/// Maximum `k` of the vector kernels, which do not split it.
pub(super) const MOST_VECTOR_K: usize = 8 * MOST_STEPS;
/// The same with blocks, whose kernels have more loops per element.
pub(super) const MOST_BLOCKS_K: usize = 2 * MOST_STEPS;
/// Minimum length of a part of `k`.
const LEAST_CHUNK: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    Vector(VectorShape),
    Blocks(BlocksShape),
    Rows(RowsShape),
    Tile {
        lhs: Access,
        rhs: Access,
        shape: TileShape,
        /// Number of parts of `k`; a second kernel joins their sums.
        splits: usize,
    },
    Cooperative {
        tile: CoopTile,
        splits: usize,
    },
}

impl Extras<'_> {
    /// Whether only the vector kernel supports these.
    pub(super) fn need_vector(&self) -> bool {
        self.norm.is_some() || self.gate.is_some()
    }

    /// Maximum number of rows in the vector regime with these.
    pub(super) fn most_vector_rows(&self) -> usize {
        if self.need_vector() {
            MAX_FUSED_ROWS
        } else {
            MAX_VECTOR_ROWS
        }
    }
}

/// Number of parts of `k` that increases `tiles` workgroups to `wanted`, each part at least `least` long.
pub(super) fn splits(tiles: usize, k: usize, wanted: usize, least: usize) -> usize {
    let parts = (wanted / tiles.max(1)).min(k / least).max(1);
    parts.max(k.div_ceil(MOST_TILE_K))
}

/// Selects the kernel; a pure function, so that tests can cover every choice.
pub(super) fn plan(
    problem: &Problem,
    elem: Elem,
    out_lanes: u32,
    extras: &Extras<'_>,
    caps: &Caps,
) -> Plan {
    let group = 16 / elem_bytes(elem);
    let inner = |operand| problem.access(operand, group) == Access::Inner;
    let wide = inner(0) && inner(1);
    let short = problem.m <= extras.most_vector_rows() && problem.k <= MOST_VECTOR_K;
    if short && (wide || problem.rhs.1 == 1) {
        let group = if wide { group as u32 } else { 1 };
        let gated = extras.gate.is_some();
        return Plan::Vector(vector::plan(problem, out_lanes, gated, group, caps));
    }
    let wide = inner(0) && problem.access(1, group) != Access::Strided;
    if caps.cooperative && elem == Elem::F16 && wide && problem.k.is_multiple_of(COOP_K as usize) {
        return cooperative(problem, Rhs::Dense(elem), caps);
    }
    tiles(problem, problem.access(0, 4), problem.access(1, 4))
}

/// The cooperative kernel, for lhs in contiguous rows of `k` and rhs in contiguous rows of `k` or `n`.
pub(super) fn cooperative(problem: &Problem, rhs: Rhs, caps: &Caps) -> Plan {
    let (tile, splits) = CoopTile::choose(problem, rhs, &caps.limits);
    Plan::Cooperative { tile, splits }
}

/// Cost of dequantising one weight in a separate pass, in picoseconds: a write and a read of memory. Measured on an H200: 9 ms for the 7.5
/// billion weights of an 8B model, for any number of rows.
const DECODED_BEFORE: usize = 1200;
/// Cost of dequantising one weight within the product, each time: about 4.5 instructions, of which the GPU issues 32 per picosecond.
/// Estimated; four times this cost, with 512 rows, was measured to be less than the pass.
const DECODED_WITHIN: usize = 140;

/// Whether the cooperative kernel dequantises blocks itself: once for each row of tiles, whereas a separate pass does so once.
pub(super) fn decodes_within(plan: &Plan, problem: &Problem) -> bool {
    match plan {
        Plan::Cooperative { tile, .. } => tile.bands(problem.m) * DECODED_WITHIN <= DECODED_BEFORE,
        _ => false,
    }
}

/// The tiled kernel for these access patterns.
pub(super) fn tiles(problem: &Problem, lhs: Access, rhs: Access) -> Plan {
    let parts = |shape: TileShape| splits(shape.count(problem), problem.k, BUSY_TILES, LEAST_CHUNK);
    let large = TileShape::LARGE;
    let shape = match problem.m {
        0..=16 => TileShape::LOWEST,
        17..=32 => TileShape::LOW,
        // Large tiles read the operands less often, if they are neither mostly empty nor too few.
        65.. if large.count(problem) * parts(large) >= BUSY_TILES => large,
        _ => TileShape::MEDIUM,
    };
    Plan::Tile {
        lhs,
        rhs,
        shape,
        splits: parts(shape),
    }
}

#[cfg(test)]
mod tests {
    use super::super::via_f16;
    use super::*;
    use crate::fused::Gate;
    use crate::quantized::GgmlDType;
    use crate::webgpu_backend::ops::quantized::Format;
    use crate::Layout;

    fn caps(subgroup: Option<u32>, cooperative: bool) -> Caps {
        // Cooperative matrices imply a large GPU.
        let limits = if cooperative {
            wgpu::Limits {
                max_compute_workgroup_storage_size: 48 << 10,
                max_compute_invocations_per_workgroup: 1024,
                ..Default::default()
            }
        } else {
            wgpu::Limits::default()
        };
        Caps {
            limits,
            subgroup,
            cooperative,
            ..Caps::default()
        }
    }

    /// `(m, k) x (n, k)^T`, the form of a linear layer.
    fn linear(m: usize, n: usize, k: usize) -> Problem {
        let lhs = Layout::contiguous((m, k));
        let rhs = Layout::contiguous((n, k)).transpose(0, 1).unwrap();
        Problem::new((1, m, n, k), &lhs, &rhs).unwrap()
    }

    fn chosen(problem: &Problem, elem: Elem, caps: &Caps) -> Plan {
        plan(problem, elem, elem.lanes(), &Extras::default(), caps)
    }

    #[test]
    fn few_rows_take_the_vector_kernel() {
        assert_eq!(
            chosen(&linear(1, 2048, 2048), Elem::F16, &caps(Some(32), true)),
            Plan::Vector(VectorShape {
                rows: 1,
                cols: 2,
                workgroup: 128,
                // 2048 elements are two iterations of 128 invocations.
                unroll: 2,
                wide: true
            })
        );
        // Iterations over k, and the unroll factor: the remainder runs in extra iterations.
        for (turns, unroll) in [
            (1, 1),
            (2, 2),
            (3, 3),
            (4, 4),
            (5, 4),
            (6, 3),
            (8, 4),
            (14, 4),
        ] {
            let problem = linear(1, 2048, turns * 1024);
            let plan = chosen(&problem, Elem::F16, &caps(Some(32), true));
            let fits = matches!(plan, Plan::Vector(shape) if (shape.workgroup, shape.unroll) == (128, unroll));
            assert!(fits, "{turns} turns: {plan:?}");
            let blocks = vector::plan_blocks(&problem, false, &caps(Some(32), true));
            assert_eq!(
                (blocks.workgroup, blocks.unroll),
                (128, unroll),
                "{turns} turns of blocks"
            );
        }
        assert!(matches!(
            chosen(&linear(8, 64, 30), Elem::F32, &caps(None, false)),
            Plan::Vector(VectorShape {
                wide: false,
                workgroup: 128,
                ..
            })
        ));
        let gated = Extras {
            gate: Some(Gate::Silu),
            ..Extras::default()
        };
        for (rows, vector) in [(4, true), (5, false)] {
            let problem = linear(rows, 64, 64);
            let plan = plan(&problem, Elem::F32, 1, &gated, &caps(None, false));
            assert_eq!(matches!(plan, Plan::Vector(_)), vector, "{rows} rows");
        }
    }

    #[test]
    fn many_rows_take_tiles_or_cooperative_matrices() {
        let [large, _, narrow, medium, _, low] = CoopTile::ALL;
        let square = CoopTile::SQUARE;
        let cooperative = |m, n, k| chosen(&linear(m, n, k), Elem::F16, &caps(Some(32), true));
        assert_eq!(
            cooperative(512, 16384, 2048),
            Plan::Cooperative {
                tile: square,
                splits: 1
            }
        );
        assert_eq!(
            cooperative(512, 2048, 2048),
            Plan::Cooperative {
                tile: square,
                splits: 2
            }
        );
        // Rows of `n` on the right.
        let [lhs, rhs] = [(512, 2048), (2048, 16384)].map(Layout::contiguous);
        let problem = Problem::new((1, 512, 16384, 2048), &lhs, &rhs).unwrap();
        assert_eq!(
            chosen(&problem, Elem::F16, &caps(Some(32), true)),
            Plan::Cooperative {
                tile: large,
                splits: 1
            }
        );
        assert_eq!(
            cooperative(16, 2048, 8192),
            Plan::Cooperative {
                tile: low,
                splits: 16
            }
        );
        // Few rows: enough parts to keep memory busy, but writing them must not take longer than reading the weights.
        assert_eq!(
            cooperative(64, 2048, 2048),
            Plan::Cooperative {
                tile: medium,
                splits: 8
            }
        );
        assert_eq!(
            cooperative(9, 16384, 2048),
            Plan::Cooperative {
                tile: low,
                splits: 2
            }
        );
        // The weighted sums of values: `n` is only `head_dim`.
        assert_eq!(
            cooperative(8192, 64, 512),
            Plan::Cooperative {
                tile: narrow,
                splits: 1
            }
        );
        let problem = linear(512, 2048, 2048);
        assert_eq!(
            chosen(&problem, Elem::F16, &caps(Some(32), false)),
            Plan::Tile {
                lhs: Access::Inner,
                rhs: Access::Inner,
                shape: TileShape::LARGE,
                splits: 4,
            }
        );
        assert!(matches!(
            chosen(&linear(4096, 4096, 64), Elem::F32, &caps(Some(32), true)),
            Plan::Tile {
                shape: TileShape::LARGE,
                splits: 1,
                ..
            }
        ));
    }

    /// Few rows use low tiles that read blocks directly; for many rows the blocks are dequantised before the product.
    #[test]
    fn blocks_are_decoded_within_products_of_few_rows() {
        let caps = caps(Some(32), true);
        let format = Format::of(GgmlDType::Q4_0).expect("a quantised format");
        let chosen = |m, n, k| {
            let problem = linear(m, n, k);
            let plan = cooperative(&problem, Rhs::Blocks(format), &caps);
            let within = decodes_within(&plan, &problem);
            match plan {
                Plan::Cooperative { tile, splits } => (tile, splits, within),
                _ => panic!("{plan:?}"),
            }
        };
        let [low, lower, lowest] = [CoopTile::LOW[2], CoopTile::LOW[1], CoopTile::LOW[0]];
        for (m, n, k, expected) in [
            (9, 4096, 4096, (lowest, 16, true)),
            (16, 28672, 4096, (lowest, 1, true)),
            (17, 4096, 14336, (lower, 16, true)),
            (64, 4096, 4096, (low, 8, true)),
            (65, 6144, 4096, (CoopTile::SQUARE, 5, true)),
            (512, 4096, 14336, (CoopTile::SQUARE, 1, true)),
            (1024, 28672, 4096, (CoopTile::SQUARE, 1, true)),
            (1025, 28672, 4096, (CoopTile::SQUARE, 1, false)),
            // A remainder of half a step of `k`.
            (16, 4096, 4128, (CoopTile::ALL[5], 16, true)),
        ] {
            assert_eq!(chosen(m, n, k), expected, "{m} {n} {k}");
        }
    }

    #[test]
    fn floats_are_converted_where_they_may_be() {
        let [with, without] = [true, false].map(|cooperative| caps(Some(32), cooperative));
        let layer = linear(512, 2048, 2048);
        for (problem, elem, reduced, caps, expected) in [
            (&layer, Elem::BF16, false, &with, true),
            (&layer, Elem::BF16, false, &without, false),
            (&layer, Elem::F16, true, &with, false),
            (&layer, Elem::F32, false, &with, false),
            (&layer, Elem::F32, true, &with, true),
            (&linear(16, 2048, 2048), Elem::BF16, false, &with, false),
            (&linear(64, 2048, 2048 + 8), Elem::BF16, false, &with, false),
        ] {
            let taken = via_f16::takes(problem, elem, reduced, caps);
            assert_eq!(taken, expected, "{elem:?} {reduced} {}", problem.k);
        }
        // Columns of a matrix that is not transposed are not contiguous.
        let rhs = Layout::contiguous((2048, 2048));
        let lhs = Layout::contiguous((512, 2048));
        let problem = Problem::new((1, 512, 2048, 2048), &lhs, &rhs).unwrap();
        assert!(!via_f16::takes(&problem, Elem::BF16, false, &with));
    }

    #[test]
    fn tiles_are_as_low_as_the_rows() {
        for (m, expected) in [
            (9, TileShape::LOWEST),
            (16, TileShape::LOWEST),
            (17, TileShape::LOW),
            (32, TileShape::LOW),
            (33, TileShape::MEDIUM),
            (65, TileShape::MEDIUM),
        ] {
            let plan = chosen(&linear(m, 256, 256), Elem::F32, &caps(None, false));
            let fits = matches!(plan, Plan::Tile { shape, .. } if shape == expected);
            assert!(fits, "{m} rows: {plan:?}");
        }
    }

    #[test]
    fn few_tiles_share_a_long_inner_dimension() {
        for (m, n, k, expected) in [
            (16, 2048, 2048, 16),
            (16, 16384, 8192, 2),
            (33, 2048, 2048, 8),
            (16, 64, 1023, 7),
            (16, 64, 255, 1),
        ] {
            let plan = chosen(&linear(m, n, k), Elem::F32, &caps(None, false));
            let found = match plan {
                Plan::Tile { splits, .. } => splits,
                _ => 0,
            };
            assert_eq!(found, expected, "{m} {n} {k}");
        }
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
