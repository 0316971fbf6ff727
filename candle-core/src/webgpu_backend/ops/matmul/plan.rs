//! Which kernel runs, with the numbers that it is specialised for.

use super::cooperative::{CoopTile, COOP_K};
use super::tile::TileShape;
use super::{elem_bytes, vector, Access, Extras, Problem};
use crate::webgpu_backend::adapter::Caps;
use crate::webgpu_backend::kernel::Elem;

/// The most rows that the vector regime takes.
const MAX_VECTOR_ROWS: usize = 8;
/// The most rows that it takes with a norm or a gate: their sums have to fit 16 KiB of workgroup memory.
const MAX_FUSED_ROWS: usize = 4;
/// Workgroups of the tile regime that keep a GPU busy.
const BUSY_TILES: usize = 256;
/// Parts of `k` are not made shorter than this.
const LEAST_CHUNK: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    Vector {
        rows: u32,
        cols: u32,
        workgroup: u32,
        /// Loads of each operand on their way at once.
        unroll: u32,
        wide: bool,
    },
    Tile {
        lhs: Access,
        rhs: Access,
        shape: TileShape,
        /// Parts that `k` is cut into; their sums are joined by a second kernel.
        splits: usize,
    },
    Cooperative {
        tile: CoopTile,
        splits: usize,
    },
}

impl Extras<'_> {
    /// Whether these are what only the vector kernel does.
    pub(super) fn need_vector(&self) -> bool {
        self.norm.is_some() || self.gate.is_some()
    }

    /// The most rows that the vector regime takes with these.
    pub(super) fn most_vector_rows(&self) -> usize {
        match self.need_vector() {
            true => MAX_FUSED_ROWS,
            false => MAX_VECTOR_ROWS,
        }
    }
}

/// Into how many parts `k` is cut so that `tiles` workgroups become `wanted`, each part at least `least` long.
pub(super) fn splits(tiles: usize, k: usize, wanted: usize, least: usize) -> usize {
    (wanted / tiles.max(1)).min(k / least).max(1)
}

/// Chooses the kernel; pure, so that the tests can see every choice.
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
    if problem.m <= extras.most_vector_rows() && (wide || problem.rhs.1 == 1) {
        return vector::plan(problem, out_lanes, extras.gate.is_some(), wide, caps);
    }
    if caps.cooperative && elem == Elem::F16 && wide && problem.k.is_multiple_of(COOP_K as usize) {
        let (tile, splits) = CoopTile::choose(problem, &caps.limits);
        return Plan::Cooperative { tile, splits };
    }
    tiles(problem, problem.access(0, 4), problem.access(1, 4))
}

/// The tile kernel, for operands that are read so.
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
    use super::super::cooperative;
    use super::super::extras::Last;
    use super::*;
    use crate::fused::{Activation, Gate};
    use crate::Layout;

    fn caps(subgroup: Option<u32>, cooperative: bool) -> Caps {
        // Cooperative matrices are a large GPU's.
        let limits = match cooperative {
            true => wgpu::Limits {
                max_compute_workgroup_storage_size: 48 << 10,
                max_compute_invocations_per_workgroup: 1024,
                ..Default::default()
            },
            false => wgpu::Limits::default(),
        };
        Caps {
            limits,
            subgroup,
            cooperative,
            ..Caps::default()
        }
    }

    /// `(m, k) x (n, k)^T`, as a linear layer has it.
    fn linear(m: usize, n: usize, k: usize) -> Problem {
        let lhs = Layout::contiguous((m, k));
        let rhs = Layout::contiguous((n, k)).transpose(0, 1).unwrap();
        Problem::new((1, m, n, k), &lhs, &rhs).unwrap()
    }

    fn chosen(problem: &Problem, elem: Elem, caps: &Caps) -> Plan {
        plan(problem, elem, elem.lanes(), &Extras::default(), caps)
    }

    /// No adapter here may have cooperative matrices, so at least the compiler sees each form of their kernel.
    #[test]
    fn every_cooperative_kernel_is_valid_wgsl() {
        for tile in CoopTile::ALL {
            for out in [Elem::F16, Elem::F32, Elem::BF16] {
                for (rank, scaled) in [(0, false), (0, true), (2, false), (2, true)] {
                    let plain = Last::default();
                    let added = Last {
                        residual: Some(out),
                        ..plain
                    };
                    let bias = Last {
                        bias: Some(out),
                        activation: Some(Activation::Relu2),
                        ..plain
                    };
                    for last in [plain, added, bias] {
                        cooperative::cooperative_shader(out, rank, tile, scaled, last)
                            .assert_valid();
                    }
                }
            }
        }
    }

    #[test]
    fn few_rows_take_the_vector_kernel() {
        assert_eq!(
            chosen(&linear(1, 2048, 2048), Elem::F16, &caps(Some(32), true)),
            Plan::Vector {
                rows: 1,
                cols: 2,
                workgroup: 128,
                unroll: 4,
                wide: true
            }
        );
        assert!(matches!(
            chosen(&linear(8, 64, 30), Elem::F32, &caps(None, false)),
            Plan::Vector {
                wide: false,
                workgroup: 128,
                ..
            }
        ));
        let gated = Extras {
            gate: Some(Gate::Silu),
            ..Extras::default()
        };
        for (rows, vector) in [(4, true), (5, false)] {
            let problem = linear(rows, 64, 64);
            let plan = plan(&problem, Elem::F32, 1, &gated, &caps(None, false));
            assert_eq!(matches!(plan, Plan::Vector { .. }), vector, "{rows} rows");
        }
    }

    #[test]
    fn many_rows_take_tiles_or_cooperative_matrices() {
        let large = CoopTile { down: 4, across: 4 };
        let cooperative = |m, n, k| chosen(&linear(m, n, k), Elem::F16, &caps(Some(32), true));
        assert_eq!(
            cooperative(512, 16384, 2048),
            Plan::Cooperative {
                tile: large,
                splits: 1
            }
        );
        assert_eq!(
            cooperative(512, 2048, 2048),
            Plan::Cooperative {
                tile: large,
                splits: 4
            }
        );
        assert_eq!(
            cooperative(16, 2048, 8192),
            Plan::Cooperative {
                tile: CoopTile { down: 1, across: 2 },
                splits: 16
            }
        );
        // Few rows: as many parts as keep memory busy, but fewer than would take longer to write than the weights take to read.
        assert_eq!(
            cooperative(64, 2048, 2048),
            Plan::Cooperative {
                tile: CoopTile { down: 2, across: 2 },
                splits: 8
            }
        );
        assert_eq!(
            cooperative(9, 16384, 2048),
            Plan::Cooperative {
                tile: CoopTile { down: 1, across: 2 },
                splits: 2
            }
        );
        // The weighted sums of values: as narrow as a head.
        assert_eq!(
            cooperative(8192, 64, 512),
            Plan::Cooperative {
                tile: CoopTile { down: 4, across: 1 },
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
