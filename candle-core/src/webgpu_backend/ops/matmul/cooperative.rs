//! The cooperative regime: like tiles, in 16x16x16 matrices of a subgroup; f16 inputs, f32 sums. lhs has contiguous rows of `k`. rhs is f16,
//! with `k` or `n` contiguous, or blocks, which are dequantised while they are copied to workgroup memory.

use super::operand::Scales;
use super::{Access, Form, MatmulParams, Problem, Rhs, Run};
use crate::webgpu_backend::kernel::{Caps, Kernel, Shader};
use crate::Result;

/// Number of workgroups below which a smaller tile is used: large tiles read the operands less often.
const BUSY_TILES: usize = 64;
/// Target number of workgroups for splitting `k`. Measured on an H200 with 132 multiprocessors, each filled by one large tile: 32 tiles in
/// 4 parts each take 114 us, 64 smaller ones took 293 (512 x 8192 x 2048), and more parts take longer again.
const SPLIT_TILES: usize = 128;
/// Minimum length of a part of `k`.
const LEAST_CHUNK: usize = 512;
/// Maximum number of rows for which the product is bound by reading rhs, and more workgroups mean more loads in flight.
const FEW_ROWS: usize = 64;
/// Target number of workgroups for splitting `k` then: with about 8 KiB of loads each, this is what memory of 4 TB/s delivers in half a
/// microsecond.
const FEW_ROWS_TILES: usize = 256;
/// The same with blocks, of which a workgroup has fewer bytes in flight.
const FEW_ROWS_BLOCKS: usize = 512;
/// Number of tiles of blocks from which `k` is not split then. Measured on an H200, 32 rows x 28,672 x 4,096: 70 us in 224 tiles, 72 us in
/// two parts of each, without their sum.
const FEW_ROWS_ENOUGH: usize = 192;
/// Minimum length of a part of `k` then; it also keeps the parts' sums in f32 below half of what is read.
const FEW_ROWS_CHUNK: usize = 128;
/// `k` has to be a multiple of this.
pub(super) const COOP_K: u32 = 32;

/// A tile of the cooperative regime: subgroups down and across, each with matrices of 16 x 16 down (`rows`) and across (`cols`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CoopTile {
    pub(super) down: u32,
    pub(super) across: u32,
    pub(super) rows: u32,
    pub(super) cols: u32,
    /// Depth of the tile over `k`.
    pub(super) depth: u32,
    /// Tiles of each operand in workgroup memory. With two, one is filled while the other is read, which saves a barrier per step; if the
    /// memory then holds fewer workgroups it costs more. Measured on an H200.
    pub(super) buffers: u32,
    /// Matrices of a subgroup that pass through workgroup memory at once when they are stored.
    pub(super) slots: u32,
}

impl CoopTile {
    /// Subgroups of 32 x 64.
    const fn of(down: u32, across: u32, buffers: u32, slots: u32) -> Self {
        Self {
            down,
            across,
            rows: 2,
            cols: 4,
            depth: 32,
            buffers,
            slots,
        }
    }

    /// A tile for up to `16 * rows` rows: four adjacent subgroups, 128 columns.
    const fn low(rows: u32) -> Self {
        Self {
            down: 1,
            across: 4,
            rows,
            cols: 2,
            depth: 64,
            buffers: 1,
            slots: 2,
        }
    }

    /// Largest first; the last two are for few rows, with any `k` and `n`.
    pub(super) const ALL: [Self; 6] = [
        Self::of(4, 4, 1, 1),
        Self::of(4, 2, 2, 1),
        Self::of(4, 1, 1, 4),
        Self::of(2, 2, 1, 4),
        Self::of(2, 1, 1, 4),
        Self::of(1, 2, 2, 4),
    ];

    /// 128 x 128 in eight subgroups, with twice the depth of the others. Measured on an H200 over a prompt of 512 tokens, in tokens a
    /// second: 8B in Q4_0 10,470, in four subgroups of 64 x 64 9,059, and with depth 32 8,906; 1B in f16 60,547, with 128 x 256 58,182.
    pub(super) const SQUARE: Self = Self {
        depth: 64,
        ..Self::of(4, 2, 1, 1)
    };

    /// For up to 16, 32 and 64 rows with blocks.
    pub(super) const LOW: [Self; 3] = [Self::low(1), Self::low(2), Self::low(4)];

    fn tile_m(self) -> u32 {
        16 * self.down * self.rows
    }

    fn tile_n(self) -> u32 {
        16 * self.across * self.cols
    }

    fn threads(self) -> u32 {
        32 * self.down * self.across
    }

    /// Rows that a workgroup loads at once, `eights` times eight elements per invocation.
    fn step(self, eights: u32) -> u32 {
        self.threads() / (self.depth / (8 * eights))
    }

    /// Eights of rhs in a load of an invocation: 16 bytes of the codes of blocks, if the loads of a tile are then whole.
    fn eights(self, rhs: Rhs) -> u32 {
        let Rhs::Blocks(format) = rhs else {
            return 1;
        };
        let wide = format.wide();
        let whole = self.depth.is_multiple_of(wide)
            && (self.tile_n() * self.depth / wide).is_multiple_of(self.threads());
        if whole {
            wide / 8
        } else {
            1
        }
    }

    /// Number of tiles down the rows.
    pub(super) fn bands(self, m: usize) -> usize {
        m.div_ceil(self.tile_m() as usize)
    }

    fn count(self, problem: &Problem) -> usize {
        self.bands(problem.m) * problem.n.div_ceil(self.tile_n() as usize) * problem.batch
    }

    fn splits(self, problem: &Problem, rhs: Rhs) -> usize {
        let blocks = matches!(rhs, Rhs::Blocks(_));
        let (wanted, least) = match (problem.m, blocks) {
            (..=FEW_ROWS, false) => (FEW_ROWS_TILES, FEW_ROWS_CHUNK.max(4 * problem.m)),
            (..=FEW_ROWS, true) if self.count(problem) >= FEW_ROWS_ENOUGH => (1, problem.k),
            // A weight of 4 to 8 bits is read, and for each row 8 bytes of sums are written to a cache and read.
            (..=FEW_ROWS, true) => (FEW_ROWS_BLOCKS, FEW_ROWS_CHUNK.max(8 * problem.m)),
            // Two per multiprocessor; more rows have enough tiles, whose sums would have to be joined.
            (..=256, true) => (2 * SPLIT_TILES, LEAST_CHUNK),
            _ => (SPLIT_TILES, LEAST_CHUNK),
        };
        super::plan::splits(self.count(problem), problem.k, wanted, least)
    }

    /// The largest tile that the adapter supports, that is not half empty, and of which there are enough, else the smallest; and the number
    /// of parts of `k`.
    pub(super) fn choose(problem: &Problem, rhs: Rhs, limits: &wgpu::Limits) -> (Self, usize) {
        let [large @ .., small, few_rows] = &Self::ALL;
        let fits = |tile: &&Self| {
            tile.shared_bytes() <= limits.max_compute_workgroup_storage_size
                && tile.threads() <= limits.max_compute_invocations_per_workgroup
                && problem.k.is_multiple_of(tile.depth as usize)
        };
        let filled = |tile: &&Self| {
            (tile.tile_m() as usize) < 2 * problem.m && (tile.tile_n() as usize) < 2 * problem.n
        };
        let busy = |tile: &&Self| tile.count(problem) * tile.splits(problem, rhs) >= BUSY_TILES;
        let low = match rhs {
            Rhs::Blocks(_) => &Self::LOW[..],
            Rhs::Dense(_) => &[],
        };
        // With rows of `n` 32 images of ResNet-50 took longer.
        let square = match rhs {
            Rhs::Dense(_) if rhs_access(problem) == Access::Outer => None,
            _ => Some(&Self::SQUARE),
        };
        let low = low.iter().filter(fits);
        let tile = match (
            low.clone().find(|tile| tile.bands(problem.m) == 1),
            problem.m,
        ) {
            (Some(low), _) => low,
            (None, ..=32) => few_rows,
            _ => square
                .into_iter()
                .chain(large)
                .filter(fits)
                .filter(filled)
                .find(busy)
                .unwrap_or(small),
        };
        (*tile, tile.splits(problem, rhs))
    }

    /// Padding between the rows of slots, so that a matrix accesses each bank once. With one slot there is no memory to spare.
    fn slot_pad(self) -> u32 {
        match self.slots {
            1 => 0,
            _ => 8,
        }
    }

    /// The rows of a tile of rhs, of `k` or, with `outer`, of `n`: their number and length.
    fn rhs_rows(self, outer: bool) -> (u32, u32) {
        match outer {
            true => (self.depth, self.tile_n()),
            false => (self.tile_n(), self.depth),
        }
    }

    /// Bytes of workgroup memory in the kernel's layout; rows of `n` take less than rows of `k`.
    fn shared_bytes(self) -> u32 {
        let tiles = self.buffers * (self.tile_m() + self.tile_n()) * (self.depth / 4 + 2) * 8;
        let slots = self.down * self.across * 16 * (16 * self.slots + self.slot_pad()) * 4;
        tiles + slots
    }
}

/// The implementation of the products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Matrices {
    Cooperative,
    /// Loops in f32: adapters without cooperative matrices could not run the surrounding code otherwise.
    #[cfg(test)]
    Plain,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MatmulCooperative {
    form: Form,
    tile: CoopTile,
    scales: Scales,
    /// Whether `n` is the contiguous dimension of rhs.
    rhs_outer: bool,
    matrices: Matrices,
}

impl Kernel for MatmulCooperative {
    type Params = MatmulParams;

    fn shader(&self, _: &Caps) -> Shader {
        let Self { form, tile, .. } = self;
        let eights = tile.eights(form.rhs);
        let counts = [
            ("ROWS", tile.rows),
            ("COLS", tile.cols),
            ("EIGHTS", eights),
            ("LHS_LOADS", tile.tile_m() / tile.step(1)),
            ("RHS_LOADS", tile.tile_n() / tile.step(eights)),
        ];
        let (rhs_rows, rhs_len) = tile.rhs_rows(self.rhs_outer);
        let rhs_pitch = rhs_len / 4 + 2;
        let shader = Shader::default()
            .cooperative_operands(form.rhs, eights)
            .scales(self.scales)
            .output("dst", form.out)
            .finish(form.extras.epilogue)
            .strided("lhs", form.rank)
            .strided("rhs", form.rank)
            .constant("DEPTH", tile.depth)
            .constant("BUFFERS", tile.buffers)
            .constant("DOWN", tile.down)
            .constant("ACROSS", tile.across)
            .constant("RHS_OUTER", self.rhs_outer)
            .constant("RHS_EIGHTS", rhs_len / 8)
            .constant("RHS_PITCH", rhs_pitch)
            .constant("RHS_TILE", rhs_rows * rhs_pitch)
            .constant("SLOTS", tile.slots)
            .constant("SLOT_PAD", tile.slot_pad());
        let body = include_str!("../../shaders/matmul_cooperative.wgsl");
        match self.matrices {
            Matrices::Cooperative => shader
                .text("alias Half = f16;")
                .unrolled::<MatmulParams>(body, &counts)
                .directive("enable f16;\nenable wgpu_cooperative_matrix;\n"),
            #[cfg(test)]
            Matrices::Plain => shader
                .text("alias Half = f32;")
                .unrolled::<MatmulParams>(&tests::plain(body), &counts),
        }
    }
}

/// The access pattern to a dense rhs, in groups of the kernel's loads.
pub(super) fn rhs_access(problem: &Problem) -> Access {
    problem.access(1, 8)
}

impl Run<'_> {
    pub(super) fn cooperative(&self, tile: CoopTile) -> Result<()> {
        self.with_matrices(tile, Matrices::Cooperative)
    }

    fn with_matrices(&self, tile: CoopTile, matrices: Matrices) -> Result<()> {
        let kernel = MatmulCooperative {
            form: self.form(),
            tile,
            scales: self.scales,
            rhs_outer: matches!(self.rhs, Rhs::Dense(_))
                && rhs_access(self.problem) == Access::Outer,
            matrices,
        };
        self.launch(&kernel, tile.count(self.problem))
    }
}

#[cfg(test)]
#[path = "cooperative_tests.rs"]
mod tests;
