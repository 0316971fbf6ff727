//! Products with one row of activations, as for a single token.
//!
//! The row is prepared once for all rows of weights and all threads. The kernels then read the weights sequentially. There are kernels for
//! x86-64 (`../avx_rows.rs`, `../avx512_rows.rs`); other CPUs use `products.rs`.

use std::ops::Range;

use super::activations::{Activations, Bytes32};
use super::prepared::{DenseRows, RowProducts};
use super::products::{Unpack, Weights, COLUMNS};
use super::simd::{run_at, Kernel, Level, Simd};
use super::BlockQ8K;

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

/// A format with a kernel for one row, on some CPUs.
pub(crate) trait OneRowWeights:
    Unpack<Activations: RowBlocks> + Weights<<Self as Unpack>::Activations>
{
    /// Sets `dst[r]` to row `r` of `xs` times the row of activations. Returns false and does nothing if there is no kernel. Must be
    /// `#[inline(always)]`.
    ///
    /// # Safety
    /// As for [`Simd`]; all rows have the same number of blocks, which is not 0 unless `xs` is empty.
    unsafe fn one_row<S: Simd>(xs: &[Self], y: &OneRow<Self::Activations>, dst: &mut [f32])
        -> bool;
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
        // An empty row, which needs no memory: nothing is prepared yet.
        let none = Product::<T> {
            xs: &[],
            y: &RowBlocks::lay_out(vec![]),
            dst: &mut [],
        };
        // SAFETY: levels are those of this CPU; without rows of weights the call only tests for a kernel.
        let has_kernel = unsafe { run_at(level, none) };
        let lay_out = |row: usize| RowBlocks::lay_out(rows.activations(row..row + 1));
        (has_kernel && rows.len() > 0).then(|| Self {
            rows: (0..rows.count()).map(lay_out).collect(),
            level,
        })
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
            // SAFETY: `new` has checked that the level has a kernel; the sizes were compared.
            unsafe { run_at(self.level, Product { xs, y, dst }) };
        }
    }
}

/// Rows of weights times one row of activations.
struct Product<'a, T: Unpack> {
    xs: &'a [T],
    y: &'a OneRow<T::Activations>,
    dst: &'a mut [f32],
}

impl<T: OneRowWeights> Kernel for Product<'_, T> {
    type Output = bool;
    const PRODUCTS: bool = true;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> bool {
        T::one_row::<S>(self.xs, self.y, self.dst)
    }
}
