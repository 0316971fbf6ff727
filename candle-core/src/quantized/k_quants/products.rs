//! Products of rows of blocks, written once over [`Simd`].
//!
//! A format defines how a block of weights is unpacked ([`Weights`]) and how unpacked weights are multiplied by a block of activations. The
//! loops around them, for one row of activations and for many, are shared. (`one_row.rs` selects faster kernels for one row, if the CPU has
//! them.)
//!
//! A row of activations has the same products, bit for bit, alone and among others. So all kernels, including those of `one_row.rs` and
//! `panels.rs`, sum in the same order: within a block in integers, where the order does not matter, and over the blocks from the first to
//! the last, in one float. The contribution of a block is its codes' product times the product of the two scales. If the format has minima,
//! these times the sums of the activations are added before it.

use super::activations::Activations;
use super::simd::{Kernel, Simd};
use super::GgmlType;

/// A format whose blocks can be unpacked for products.
pub(crate) trait Unpack: GgmlType + 'static {
    /// The activations' blocks in a matrix product. `VecDotType`, which is a format of files, may have scales with a smaller range.
    type Activations: Activations;

    /// A block's codes as bytes, and its scales.
    type Unpacked<S: Simd>: Copy;

    /// Unpacks a block. Must be `#[inline(always)]`.
    fn unpack<S: Simd>(&self, s: S) -> Self::Unpacked<S>;
}

/// A format whose rows can be multiplied by rows of blocks `Y` of the same length.
pub(crate) trait Weights<Y>: Unpack {
    /// `sum` plus the products with a block of activations; every lane of the result holds all of them. Must be `#[inline(always)]`.
    fn mul_add<S: Simd>(s: S, x: &Self::Unpacked<S>, y: &Y, sum: S::Floats) -> S::Floats;
}

/// Prefetches a block, which may be past the end.
#[inline(always)]
pub(crate) fn prefetch<T, S: Simd>(s: S, x: *const T) {
    for line in (0..size_of::<T>()).step_by(64) {
        s.prefetch(x.cast::<u8>().wrapping_add(line));
    }
}

/// Element `i`, for loops in which a comparison of each index takes several hundredths of the time.
///
/// # Safety
/// The element exists.
#[allow(unsafe_code, reason = "see above")]
#[inline(always)]
pub(super) unsafe fn at<T>(xs: &[T], i: usize) -> &T {
    debug_assert!(i < xs.len());
    // SAFETY: it exists, by this function's contract.
    unsafe { xs.get_unchecked(i) }
}

/// `R` rows of weights times `C` rows of activations, of `blocks` blocks each. Unpacks each block once.
#[allow(unsafe_code, reason = "see `at`")]
#[inline(always)]
fn products<T: Weights<Y>, Y, S: Simd, const R: usize, const C: usize>(
    s: S,
    blocks: usize,
    xs: [&[T]; R],
    ys: [&[Y]; C],
) -> [[S::Floats; C]; R] {
    let mut sums = [[s.splat(0.); C]; R];
    let ahead = s.ahead();
    for i in 0..blocks {
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `part` makes slices of `blocks` blocks.
            let x = unsafe { at(xs[r], i) };
            prefetch(s, (&raw const *x).wrapping_byte_add(ahead));
            let x = x.unpack(s);
            for (c, sum) in sums.iter_mut().enumerate() {
                // SAFETY: as for `x`.
                let y = unsafe { at(ys[c], i) };
                *sum = T::mul_add(s, &x, y, *sum);
            }
        }
    }
    sums
}

/// Every row of weights times every row of activations.
pub(crate) struct BlockTile<'a, T, Y> {
    /// Blocks in a row.
    blocks: usize,
    xs: &'a [T],
    ys: &'a [Y],
    dst: &'a mut [f32],
}

impl<'a, T: Weights<Y>, Y> BlockTile<'a, T, Y> {
    /// One row of each side, the first `n` elements.
    ///
    /// # Panics
    /// When `n` is not a multiple of the block's length, or a row is shorter.
    #[inline]
    pub(crate) fn one(n: usize, xs: &'a [T], ys: &'a [Y], dst: &'a mut [f32; 1]) -> Self {
        let blocks = blocks_of::<T>(n);
        assert!(
            xs.len().min(ys.len()) >= blocks,
            "vec_dot: {n} elements of {:?} are {blocks} blocks, the weights have {}, the activations {}",
            T::DTYPE,
            xs.len(),
            ys.len()
        );
        // No blocks means no rows, so `dst` stays unchanged.
        Self {
            blocks: blocks.max(1),
            xs: &xs[..blocks],
            ys: &ys[..blocks],
            dst,
        }
    }

    /// Rows of `n` elements; sets `dst[c * rows + r]` to row `r` of `xs` times row `c` of `ys`.
    ///
    /// # Panics
    /// If `n` is not a multiple of the block's length, `xs` and `ys` are not whole numbers of rows, or `dst` does not have an element for
    /// each product.
    pub(crate) fn new(n: usize, xs: &'a [T], ys: &'a [Y], dst: &'a mut [f32]) -> Self {
        let blocks = blocks_of::<T>(n).max(1);
        let whole = |len: usize| len.is_multiple_of(blocks);
        assert!(
            whole(xs.len())
                && whole(ys.len())
                && dst.len() == (xs.len() / blocks) * (ys.len() / blocks),
            "vec_dot_tile: rows of {blocks} blocks of {:?}, but {} blocks of weights, {} of activations, {} products",
            T::DTYPE,
            xs.len(),
            ys.len(),
            dst.len()
        );
        Self {
            blocks,
            xs,
            ys,
            dst,
        }
    }

    /// `R` rows of weights from row `r` on times `C` rows of activations from row `c` on.
    #[inline(always)]
    fn part<S: Simd, const R: usize, const C: usize>(&mut self, s: S, r: usize, c: usize) {
        let rows = self.xs.len() / self.blocks;
        let (mut xs, mut ys) = ([self.xs; R], [self.ys; C]);
        for (i, xs) in xs.iter_mut().enumerate() {
            *xs = &self.xs[(r + i) * self.blocks..][..self.blocks];
        }
        for (i, ys) in ys.iter_mut().enumerate() {
            *ys = &self.ys[(c + i) * self.blocks..][..self.blocks];
        }
        let sums = products(s, self.blocks, xs, ys);
        for (i, sums) in sums.into_iter().enumerate() {
            for (j, sum) in sums.into_iter().enumerate() {
                self.dst[(c + j) * rows + r + i] = s.first(sum);
            }
        }
    }
}

/// Rows of activations per unpacked block of weights.
pub(super) const COLUMNS: usize = 4;

/// Number of rows of small blocks that are multiplied by one row of activations together: each has one accumulator, which by itself would
/// be a dependency chain.
const ROWS: usize = 4;

impl<T: Weights<Y>, Y> Kernel for BlockTile<'_, T, Y> {
    type Output = ();
    const PRODUCTS: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let (rows, columns) = (self.xs.len() / self.blocks, self.ys.len() / self.blocks);
        let many = columns - columns % COLUMNS;
        let small = T::BLCK_SIZE <= 32;
        let together = if small { rows - rows % ROWS } else { 0 };
        for c in many..columns {
            for r in (0..together).step_by(ROWS) {
                self.part::<S, ROWS, 1>(s, r, c);
            }
            for r in together..rows {
                self.part::<S, 1, 1>(s, r, c);
            }
        }
        for r in 0..rows {
            for c in (0..many).step_by(COLUMNS) {
                self.part::<S, 1, COLUMNS>(s, r, c);
            }
        }
    }
}

/// The number of blocks of `n` elements.
#[inline]
fn blocks_of<T: GgmlType>(n: usize) -> usize {
    assert!(
        n.is_multiple_of(T::BLCK_SIZE),
        "{n} elements are not a whole number of {:?} blocks, which have {}",
        T::DTYPE,
        T::BLCK_SIZE
    );
    n / T::BLCK_SIZE
}
