//! Many queries, keys and values in 16-bit floats, queries in the same or in f32: a block takes a tile of rows that share keys, and multiplies with matrix instructions (Dao, arXiv
//! 2307.08691).

use super::{Call, Parts};
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::Grid;
use crate::cuda_backend::CudaStorage;
use crate::{DType, Result};

/// Minimum number of keys in a part.
const LEAST_CHUNK: usize = 256;
/// The largest head whose sums stay in registers.
const MAX_DIM: usize = 256;
/// Elements of 16 bytes; heads have to be whole words of that size.
const LANES: usize = 8;

/// Warps, blocks of 16 rows of each, and keys per iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    warps: usize,
    blocks: usize,
    keys: usize,
    shared: usize,
}

impl Shape {
    const fn of(warps: usize, blocks: usize, keys: usize) -> Self {
        Self {
            warps,
            blocks,
            keys,
            shared: 0,
        }
    }

    /// Best first, for heads up to 128 and for larger ones, whose sums leave no registers for a second block.
    const SMALL_HEADS: [Self; 4] = [
        Self::of(4, 2, 64),
        Self::of(4, 1, 64),
        Self::of(2, 1, 64),
        Self::of(1, 1, 32),
    ];
    const LARGE_HEADS: [Self; 4] = [
        Self::of(8, 1, 64),
        Self::of(4, 1, 64),
        Self::of(4, 1, 32),
        Self::of(1, 1, 32),
    ];

    fn rows(self) -> usize {
        16 * self.warps * self.blocks
    }

    /// The kernel's layout: queries, keys, values.
    fn shared(self, head_dim: usize, v_dim: usize) -> usize {
        let pitch = |dim: usize| dim.next_multiple_of(16) + LANES;
        2 * ((self.rows() + self.keys) * pitch(head_dim) + self.keys * pitch(v_dim))
    }

    /// `None` for other dtypes, for heads that are too large or not a multiple of 16 bytes, and for cards without the instruction.
    pub(super) fn choose(call: &Call<'_>) -> Option<Self> {
        let sizes = &call.sizes;
        let device = call.inputs[0].0.device();
        let [of_queries, of_keys] = call.dtypes();
        let dtypes = matches!(of_keys, DType::F16 | DType::BF16)
            && (of_queries == of_keys || of_queries == DType::F32);
        let dims = [sizes.head_dim, sizes.v_dim];
        let takes = dtypes
            && device.card().capability >= (8, 0)
            && dims.iter().all(|dim| (1..=MAX_DIM).contains(dim))
            && (0..3).all(|input| call.wide(input, LANES));
        if !takes {
            return None;
        }
        let shapes = match sizes.head_dim.max(sizes.v_dim) {
            ..=128 => Self::SMALL_HEADS,
            _ => Self::LARGE_HEADS,
        };
        let limit = device.max_shared() as usize;
        let sized = shapes.map(|shape| Self {
            shared: shape.shared(sizes.head_dim, sizes.v_dim),
            ..shape
        });
        let fitting = || sized.iter().filter(|shape| shape.shared <= limit);
        let filled = fitting().find(|shape| shape.rows() < 2 * sizes.sharing());
        filled.or_else(|| fitting().next_back()).copied()
    }
}

impl Call<'_> {
    pub(super) fn flash(&self, shape: Shape) -> Result<CudaStorage> {
        let blocks = self.sizes.blocks(shape.rows());
        let busy = self.inputs[0].0.device().card().multiprocessors;
        let keys = self.span(shape.rows().div_ceil(self.sizes.group()) + 1);
        let splits = (busy / blocks).min(keys / LEAST_CHUNK);
        let parts = Parts::new(keys, splits, shape.keys);
        let kernel = Kernel::new(source!("attention", => "sdpa_flash"))
            .define("WARPS", shape.warps)
            .define("BLOCKS", shape.blocks)
            .define("KEYS", shape.keys)
            .define(
                "MMA",
                match self.dtypes()[1] {
                    DType::F16 => "mma_m16n8k16_f16",
                    _ => "mma_m16n8k16_bf16",
                },
            );
        let grid = Grid::of_rows(0, 32 * shape.warps as u32).shared(shape.shared as u32);
        self.run(kernel, parts, (blocks, grid), false)
    }
}
