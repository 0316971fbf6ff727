//! The cooperative regime: as tiles, in 16x16x16 matrices of a subgroup; f16 inputs, f32 sums.

use std::fmt::Write;

use super::extras::Last;
use super::{MatmulParams, Problem, Run};
use crate::webgpu_backend::kernel::{Elem, Shader};
use crate::Result;

/// Workgroups below which a smaller tile is taken: large ones read the operands less often.
const BUSY_TILES: usize = 64;
/// Workgroups that cutting `k` aims at. Measured on an H200 with 132 multiprocessors, of which a large tile fills one: 32 tiles in 4
/// parts each take 114 us where 64 smaller ones took 293 (512 x 8192 x 2048), and more parts take longer again.
const SPLIT_TILES: usize = 128;
/// Parts of `k` are not made shorter than this.
const LEAST_CHUNK: usize = 512;
/// Up to this many rows the product is bound by reading rhs, and more workgroups mean more loads in flight.
const FEW_ROWS: usize = 64;
/// Workgroups that cutting `k` then aims at: of some 8 KiB of loads each, as many as memory of 4 TB/s answers in half a microsecond.
const FEW_ROWS_TILES: usize = 256;
/// Parts of `k` are then not made shorter than this, nor than leaves their sums in f32 half of what is read.
const FEW_ROWS_CHUNK: usize = 128;
/// How deep the cooperative regime's tiles are over `k`.
pub(super) const COOP_K: u32 = 32;

/// A tile of the cooperative regime: subgroups down and across, each 32 rows by 64 columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CoopTile {
    pub(super) down: u32,
    pub(super) across: u32,
}

impl CoopTile {
    /// Largest first; the last is for few rows.
    pub(super) const ALL: [Self; 6] = [
        Self { down: 4, across: 4 },
        Self { down: 4, across: 2 },
        Self { down: 4, across: 1 },
        Self { down: 2, across: 2 },
        Self { down: 2, across: 1 },
        Self { down: 1, across: 2 },
    ];

    fn count(self, problem: &Problem) -> usize {
        let (m, n) = (32 * self.down as usize, 64 * self.across as usize);
        problem.m.div_ceil(m) * problem.n.div_ceil(n) * problem.batch
    }

    fn splits(self, problem: &Problem) -> usize {
        let (wanted, least) = match problem.m {
            ..=FEW_ROWS => (FEW_ROWS_TILES, FEW_ROWS_CHUNK.max(4 * problem.m)),
            _ => (SPLIT_TILES, LEAST_CHUNK),
        };
        super::plan::splits(self.count(problem), problem.k, wanted, least)
    }

    /// The largest tile that the adapter takes, that is not half empty, and of which there are enough, else the smallest; and
    /// into how many parts `k` is cut.
    pub(super) fn choose(problem: &Problem, limits: &wgpu::Limits) -> (Self, usize) {
        let [large @ .., small, few_rows] = &Self::ALL;
        let fits = |tile: &&Self| {
            tile.shared_bytes() <= limits.max_compute_workgroup_storage_size
                && 32 * tile.down * tile.across <= limits.max_compute_invocations_per_workgroup
        };
        let filled = |tile: &&Self| {
            16 * (tile.down as usize) < problem.m && 32 * (tile.across as usize) < problem.n
        };
        let busy = |tile: &&Self| tile.count(problem) * tile.splits(problem) >= BUSY_TILES;
        let tile = match problem.m {
            ..=32 => few_rows,
            _ => large
                .iter()
                .filter(fits)
                .filter(filled)
                .find(busy)
                .unwrap_or(small),
        };
        (*tile, tile.splits(problem))
    }

    /// Tiles of each operand in workgroup memory. With two, one is filled while the other is read, which saves a barrier a step;
    /// where the memory then holds fewer workgroups it costs more. As measured on an H200.
    pub(super) fn buffers(self) -> u32 {
        match (self.down, self.across) {
            (4, 2) | (1, 2) => 2,
            _ => 1,
        }
    }

    /// Bytes of workgroup memory, as the kernel lays them out.
    fn shared_bytes(self) -> u32 {
        let rows = 32 * self.down + 64 * self.across;
        self.buffers() * rows * (COOP_K / 4 + 2) * 8 + self.down * self.across * 1024
    }
}

impl Run<'_> {
    pub(super) fn cooperative(&self, tile: CoopTile) -> Result<()> {
        let key = self
            .key("matmul_cooperative")
            .with(tile.down, 3)
            .with(tile.across, 3)
            .with(self.scaled.into(), 1);
        let rank = self.problem.views.rank;
        let last = self.extras.last();
        let shader = || cooperative_shader(self.out, rank, tile, self.scaled, last);
        self.launch(key, shader, tile.count(self.problem))
    }
}

pub(super) fn cooperative_shader(
    out: Elem,
    rank: usize,
    tile: CoopTile,
    scaled: bool,
    last: Last,
) -> Shader {
    let CoopTile { down, across } = tile;
    Shader::new(format!("matmul_cooperative F16->{out:?} {down}x{across}"))
        .input_words("lhs", "vec4<f16>")
        .input_words("rhs", "vec4<f16>")
        .lhs_scales(scaled)
        .output("dst", out)
        .finish(last)
        .strided("lhs", rank)
        .strided("rhs", rank)
        .constant("DEPTH", COOP_K)
        .constant("BUFFERS", tile.buffers())
        .constant("DOWN", down)
        .constant("ACROSS", across)
        .body::<MatmulParams>(&cooperative_body(tile))
        .directive("enable f16;\nenable wgpu_cooperative_matrix;\n")
}

/// The cooperative kernel with the fragments of a subgroup and the loads of an invocation unrolled: naga takes no arrays of
/// cooperative matrices, and an array of loads would not stay in registers.
fn cooperative_body(tile: CoopTile) -> String {
    let (down, across) = (2, 4);
    let (mut declare, mut product, mut store) = (String::new(), String::new(), String::new());
    let (mut fetch, mut stage) = (String::new(), String::new());
    let step = tile.down * tile.across * 32 / (COOP_K / 4);
    for (name, outer, loads) in [
        ("lhs", "m0", 32 * tile.down / step),
        ("rhs", "n0", 64 * tile.across / step),
    ] {
        for i in 0..loads {
            let _ = writeln!(declare, "var {name}{i} = vec4<f16>();");
            let _ = writeln!(
                fetch,
                "{name}{i} = {name}_group({name}_base, {outer} + r + {}u, NEXT + c * 4u);",
                i * step
            );
            let _ = writeln!(
                stage,
                "{name}_tile[{name}_buffer + (r + {}u) * PITCH + c] = {name}{i};",
                i * step
            );
        }
    }
    for i in 0..down {
        let _ = writeln!(
            product,
            "let a{i} = coopLoadT<coop_mat16x16<f16, A>>(&lhs_tile[lhs_buffer + (row + {}u) * PITCH + at / 4u], PITCH);",
            16 * i
        );
    }
    for j in 0..across {
        let _ = writeln!(
            product,
            "let b{j} = coopLoad<coop_mat16x16<f16, B>>(&rhs_tile[rhs_buffer + (col + {}u) * PITCH + at / 4u], PITCH);",
            16 * j
        );
    }
    for i in 0..down {
        for j in 0..across {
            let _ = writeln!(declare, "var c{i}_{j} = coop_mat16x16<f32, C>();");
            let _ = writeln!(product, "c{i}_{j} = coopMultiplyAdd(a{i}, b{j}, c{i}_{j});");
            // naga 30 does not emit a store's operands by itself: they must have names.
            let _ = writeln!(
                store,
                "let v{i}_{j} = c{i}_{j}; coopStoreT(v{i}_{j}, slot, pitch); workgroupBarrier();\n\
                 put_fragment(part, rows, m0 + row + {}u, n0 + col + {}u, subgroup, lane); workgroupBarrier();",
                16 * i,
                16 * j
            );
        }
    }
    include_str!("../../shaders/matmul_cooperative.wgsl")
        .replace("DECLARE;", &declare)
        .replace("FETCH(k_first);", &fetch.replace("NEXT", "k_first"))
        .replace("FETCH(k + DEPTH);", &fetch.replace("NEXT", "k + DEPTH"))
        .replace("STAGE;", &stage)
        .replace("PRODUCT;", &product)
        .replace("STORE;", &store)
}
