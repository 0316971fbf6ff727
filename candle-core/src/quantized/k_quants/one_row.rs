//! Products with one row of activations, as for a single token.
//!
//! The row is prepared once for all rows of weights and all threads. The kernels then read the weights sequentially. There are kernels for
//! x86-64 (`../avx_rows.rs`, `../avx512_rows.rs`); other CPUs use `products.rs`.

use std::marker::PhantomData;
use std::ops::Range;

use super::activations::{Activations, Bytes32};
use super::level::{run_rows_at, Level};
use super::panels::PanelWeights;
use super::prepared::{DenseRows, RowProducts};
use super::products::{Unpack, Weights, COLUMNS};
use super::simd::Simd;
use super::{BlockQ4K, BlockQ8K, BlockQ8_0};

/// A cache line, which is also a vector of 512 bits.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub(crate) T);

/// The order of the parts of 32 codes of a block of 256, in pairs per [`Line`]: the order in which nibbles of weights are unpacked. The
/// permutation is its own inverse.
pub(crate) const PARTS: [usize; 8] = [0, 2, 1, 3, 4, 6, 5, 7];

/// A row of activations.
pub(crate) struct OneRow<V> {
    /// The original blocks, for the remainder of kernels that process several at a time.
    pub(crate) blocks: Vec<V>,
    /// The codes, block by block; those of 256 in the order of [`PARTS`].
    pub(crate) codes: Vec<Line<[[i8; 32]; 2]>>,
    /// Each block's scale; scales of blocks of 256 are repeated twice.
    pub(crate) scales: Vec<f32>,
    /// For blocks of 32: the sum of the codes.
    pub(crate) block_sums: Vec<i32>,
    /// For blocks of 256: the sum of each 32 codes.
    pub(crate) sums: Vec<i16>,
}

/// Four neighbouring blocks of 256 activations.
pub(crate) struct FourBlocks<'a> {
    /// The codes, four lines of each block.
    pub(crate) codes: &'a [Line<[[i8; 32]; 2]>; 16],
    /// The scales, each repeated twice.
    pub(crate) scales: &'a [f32; 8],
    /// The sums of 32 codes, of two blocks each.
    pub(crate) sums: [&'a [i16; 16]; 2],
}

impl OneRow<BlockQ8K> {
    /// The blocks, four at a time, without the last ones that are fewer.
    #[inline(always)]
    pub(crate) fn fours(&self) -> impl Iterator<Item = FourBlocks<'_>> {
        let codes = self.codes.as_chunks().0.iter();
        let scales = self.scales.as_chunks().0.iter();
        let sums = self.sums.as_chunks().0.as_chunks().0.iter();
        let blocks = codes.zip(scales).zip(sums);
        blocks.map(|((codes, scales), [low, high])| FourBlocks {
            codes,
            scales,
            sums: [low, high],
        })
    }
}

/// Activations that can be prepared in this form.
pub(crate) trait RowBlocks: Activations {
    fn lay_out(row: Vec<Self>) -> OneRow<Self>;
}

impl RowBlocks for Bytes32 {
    fn lay_out(row: Vec<Self>) -> OneRow<Self> {
        let pair = |pair: &[Self]| Line([pair[0].qs, pair.get(1).map_or([0; 32], |y| y.qs)]);
        let scales = row.iter().map(Self::scale).collect();
        OneRow {
            codes: row.chunks(2).map(pair).collect(),
            block_sums: row.iter().map(|y| y.sum(0, 32)).collect(),
            scales,
            sums: vec![],
            blocks: row,
        }
    }
}

impl RowBlocks for BlockQ8K {
    fn lay_out(row: Vec<Self>) -> OneRow<Self> {
        let (mut codes, mut sums) = (Vec::new(), Vec::new());
        codes.reserve(4 * row.len());
        sums.reserve(8 * row.len());
        for y in &row {
            let (parts, _) = y.qs.as_chunks::<32>();
            let (pairs, _) = PARTS.as_chunks::<2>();
            codes.extend(pairs.iter().map(|pair| Line(pair.map(|part| parts[part]))));
            sums.extend(y.bsums.as_chunks::<2>().0.iter().map(|[a, b]| a + b));
        }
        OneRow {
            codes,
            scales: row.iter().flat_map(|y| [y.d; 2]).collect(),
            block_sums: vec![],
            sums,
            blocks: row,
        }
    }
}

/// Kernels for one row of activations. Each sets `dst[r]` to the product of row `r` of `xs` and `y`; all rows have the same number of
/// blocks, which is not 0 unless `xs` is empty.
pub(crate) trait RowSimd: Simd {
    /// Whether [`bytes`](Self::bytes) is faster than products of single blocks.
    const BYTES: bool;

    /// For blocks that begin with a scale, and have 32 codes with an offset.
    fn offset_codes<T>(self, xs: &[T], y: &OneRow<Bytes32>, dst: &mut [f32])
    where
        T: PanelWeights<Activations = Bytes32> + Weights<Bytes32>;

    /// For blocks that begin with a scale, one for minima, and [12 bytes](super::BlockQ4K::scales) of scales and minima.
    fn with_minima<T>(self, xs: &[T], y: &OneRow<BlockQ8K>, dst: &mut [f32])
    where
        T: PanelWeights<Activations = BlockQ8K> + Weights<BlockQ8K> + bytemuck::Pod;

    /// The same, for the format whose codes are only nibbles.
    #[inline(always)]
    fn nibbles_with_minima(self, xs: &[BlockQ4K], y: &OneRow<BlockQ8K>, dst: &mut [f32]) {
        self.with_minima(xs, y, dst)
    }

    /// For blocks of a scale and 32 signed codes.
    fn bytes(self, xs: &[BlockQ8_0], y: &OneRow<Bytes32>, dst: &mut [f32]);
}

/// A kernel that is compiled for every instruction set with [`RowSimd`].
pub(crate) trait RowKernel {
    type Output;

    /// Runs the kernel. Must be `#[inline(always)]`.
    fn run<S: RowSimd>(self, s: S) -> Self::Output;
}

/// A format with a kernel for one row, on some CPUs.
pub(crate) trait OneRowWeights:
    Unpack<Activations: RowBlocks> + Weights<<Self as Unpack>::Activations>
{
    /// Whether the instruction set has the kernel.
    #[inline(always)]
    fn has_kernel<S: RowSimd>() -> bool {
        true
    }

    /// Sets `dst[r]` to row `r` of `xs` times the row of activations. Must be `#[inline(always)]`.
    fn one_row<S: RowSimd>(s: S, xs: &[Self], y: &OneRow<Self::Activations>, dst: &mut [f32]);
}

/// A few rows of activations, each multiplied separately with rows of weights `T`.
pub(crate) struct FewRows<T: Unpack> {
    rows: Vec<OneRow<T::Activations>>,
    level: Level,
}

/// Maximum number of rows that are multiplied separately; with more, each unpacked block is used for several.
const FEW: usize = COLUMNS - 1;

impl<T: OneRowWeights> FewRows<T> {
    /// Uses this CPU's best instruction set. `None` if it has no kernel or there are more rows.
    pub(crate) fn worth_while(rows: &DenseRows) -> Option<Self> {
        let few = rows.count() <= FEW;
        few.then(|| Self::new(Level::best(), rows)).flatten()
    }

    /// `None` if the level has no kernel, or rows have no elements.
    pub(crate) fn new(level: Level, rows: &DenseRows) -> Option<Self> {
        let has_kernel = run_rows_at(level, HasKernel::<T>(PhantomData)) == Some(true);
        let lay_out = |row: usize| RowBlocks::lay_out(rows.activations(row..row + 1));
        (has_kernel && rows.len() > 0).then(|| Self {
            rows: (0..rows.count()).map(lay_out).collect(),
            level,
        })
    }
}

/// [`OneRowWeights::has_kernel`].
struct HasKernel<T>(PhantomData<T>);

impl<T: OneRowWeights> RowKernel for HasKernel<T> {
    type Output = bool;

    #[inline(always)]
    fn run<S: RowSimd>(self, _: S) -> bool {
        T::has_kernel::<S>()
    }
}

impl<T: OneRowWeights> RowProducts<T> for FewRows<T> {
    /// The products of rows of weights with the activation rows `ys`: writes that of row `r` with row `ys.start + c` to `dst[c * rows(xs) +
    /// r]`.
    ///
    /// # Panics
    /// If `xs` is not a whole number of rows, or the sizes of `ys` or `dst` do not match.
    fn multiply(&self, xs: &[T], ys: Range<usize>, dst: &mut [f32]) {
        let Some(first) = self.rows.first() else {
            return;
        };
        let blocks = first.blocks.len();
        let rows = xs.len() / blocks;
        assert!(
            xs.len() == rows * blocks && dst.len() == ys.len() * rows,
            "rows of {blocks} blocks of {:?}: {} blocks, {} products with activations {ys:?}",
            T::DTYPE,
            xs.len(),
            dst.len()
        );
        for (y, dst) in self.rows[ys].iter().zip(dst.chunks_exact_mut(rows.max(1))) {
            run_rows_at(self.level, Product { xs, y, dst }).expect("a level with kernels for rows");
        }
    }
}

/// Rows of weights times one row of activations.
struct Product<'a, T: Unpack> {
    xs: &'a [T],
    y: &'a OneRow<T::Activations>,
    dst: &'a mut [f32],
}

impl<T: OneRowWeights> RowKernel for Product<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: RowSimd>(self, s: S) {
        T::one_row(s, self.xs, self.y, self.dst)
    }
}
