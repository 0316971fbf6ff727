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
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn unpack<S: Simd>(&self) -> Self::Unpacked<S>;
}

/// A format whose rows can be multiplied by rows of blocks `Y` of the same length.
pub(crate) trait Weights<Y>: Unpack {
    /// `sum` plus the products with a block of activations; every lane of the result holds all of them. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn mul_add<S: Simd>(x: &Self::Unpacked<S>, y: &Y, sum: S::Floats) -> S::Floats;
}

/// Prefetches a block, which may be past the end.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn prefetch<T, S: Simd>(x: *const T) {
    for line in (0..size_of::<T>()).step_by(64) {
        S::prefetch(x.cast::<u8>().wrapping_add(line));
    }
}

/// `R` rows of weights times `C` rows of activations, of `blocks` blocks each. Unpacks each block once.
///
/// # Safety
/// As for [`Simd`]; `xs` points to `R` contiguous rows of `blocks` blocks, and every pointer of `ys` to `blocks` blocks.
#[inline(always)]
unsafe fn products<T: Weights<Y>, Y, S: Simd, const R: usize, const C: usize>(
    blocks: usize,
    xs: *const T,
    ys: [*const Y; C],
) -> [[S::Floats; C]; R] {
    let mut sums = [[S::splat(0.); C]; R];
    let ahead = S::ahead();
    for i in 0..blocks {
        for (r, sums) in sums.iter_mut().enumerate() {
            let x = xs.add(r * blocks + i);
            prefetch::<T, S>(x.wrapping_byte_add(ahead));
            let x = (*x).unpack::<S>();
            for (sum, y) in sums.iter_mut().zip(ys) {
                *sum = T::mul_add::<S>(&x, &*y.add(i), *sum);
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
    unsafe fn part<S: Simd, const R: usize, const C: usize>(&mut self, r: usize, c: usize) {
        let rows = self.xs.len() / self.blocks;
        let xs = self.xs.as_ptr().add(r * self.blocks);
        let mut ys = [self.ys.as_ptr().add(c * self.blocks); C];
        for (i, y) in ys.iter_mut().enumerate() {
            *y = y.add(i * self.blocks);
        }
        let sums = products::<T, Y, S, R, C>(self.blocks, xs, ys);
        for (i, sums) in sums.into_iter().enumerate() {
            for (j, sum) in sums.into_iter().enumerate() {
                self.dst[(c + j) * rows + r + i] = S::first(sum);
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
    unsafe fn run<S: Simd>(mut self) {
        let (rows, columns) = (self.xs.len() / self.blocks, self.ys.len() / self.blocks);
        let many = columns - columns % COLUMNS;
        let small = T::BLCK_SIZE <= 32;
        let together = if small { rows - rows % ROWS } else { 0 };
        for c in many..columns {
            for r in (0..together).step_by(ROWS) {
                self.part::<S, ROWS, 1>(r, c);
            }
            for r in together..rows {
                self.part::<S, 1, 1>(r, c);
            }
        }
        for r in 0..rows {
            for c in (0..many).step_by(COLUMNS) {
                self.part::<S, 1, COLUMNS>(r, c);
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
