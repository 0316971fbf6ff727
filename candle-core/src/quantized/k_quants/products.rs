//! Products of rows of blocks, written once over [`Simd`].
//!
//! A format says how a block of weights is unpacked ([`Weights`]) and how unpacked weights meet a block of activations. The loops
//! around them, for one row of activations and for many, are the same for all.

use super::simd::{Kernel, Simd};
use super::GgmlType;

/// A format whose rows can be multiplied with rows of its `VecDotType`, which has blocks of the same length.
pub(crate) trait Weights: GgmlType {
    /// A block's weights as bytes, and its scales.
    type Unpacked<S: Simd>: Copy;

    /// Unpacks a block. To be `#[inline(always)]`.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn unpack<S: Simd>(&self) -> Self::Unpacked<S>;

    /// `sum` and the products with a block of activations. To be `#[inline(always)]`.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn mul_add<S: Simd>(
        x: &Self::Unpacked<S>,
        y: &Self::VecDotType,
        sum: S::Floats,
    ) -> S::Floats;
}

/// `R` rows of weights times `C` rows of activations, of `blocks` blocks each: `result[c][r]`.
///
/// # Safety
/// As for [`Simd`]; every pointer is to `blocks` blocks.
#[inline(always)]
unsafe fn products<T: Weights, S: Simd, const R: usize, const C: usize>(
    blocks: usize,
    xs: [*const T; R],
    ys: [*const T::VecDotType; C],
) -> [[f32; R]; C] {
    let mut sums = [[S::splat(0.); R]; C];
    for i in 0..blocks {
        for r in 0..R {
            let x = (*xs[r].add(i)).unpack::<S>();
            for c in 0..C {
                sums[c][r] = T::mul_add::<S>(&x, &*ys[c].add(i), sums[c][r]);
            }
        }
    }
    sums.map(|sums| sums.map(|sum| S::sum(sum)))
}

/// `R` rows of weights times one row of activations.
pub(crate) struct Rows<'a, T: Weights, const R: usize> {
    xs: [&'a [T]; R],
    ys: &'a [T::VecDotType],
}

impl<'a, T: Weights, const R: usize> Rows<'a, T, R> {
    /// The first `n` elements of each row.
    ///
    /// # Panics
    /// When `n` is not a multiple of the block's length, or a row is shorter.
    #[inline]
    pub(crate) fn new(n: usize, xs: [&'a [T]; R], ys: &'a [T::VecDotType]) -> Self {
        let blocks = blocks_of::<T>(n);
        let row = |len: usize, of: &str| {
            assert!(
                len >= blocks,
                "vec_dot: {n} elements of {:?} are {blocks} blocks, the {of} have {len}",
                T::DTYPE
            )
        };
        xs.iter().for_each(|xs| row(xs.len(), "weights"));
        row(ys.len(), "activations");
        Self {
            xs: xs.map(|xs| &xs[..blocks]),
            ys: &ys[..blocks],
        }
    }
}

impl<T: Weights, const R: usize> Kernel for Rows<'_, T, R> {
    type Output = [f32; R];

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> [f32; R] {
        let xs = self.xs.map(<[T]>::as_ptr);
        let [sums] = products::<T, S, R, 1>(self.ys.len(), xs, [self.ys.as_ptr()]);
        sums
    }
}

/// Every row of weights times every row of activations.
pub(crate) struct Tile<'a, T: Weights> {
    /// Blocks in a row.
    blocks: usize,
    xs: &'a [T],
    ys: &'a [T::VecDotType],
    dst: &'a mut [f32],
}

impl<'a, T: Weights> Tile<'a, T> {
    /// Rows of `n` elements; `dst[c * rows + r]` becomes row `r` of `xs` times row `c` of `ys`.
    ///
    /// # Panics
    /// When `n` is not a multiple of the block's length, `xs` and `ys` are no whole number of rows, or `dst` has not a place for
    /// each product.
    pub(crate) fn new(n: usize, xs: &'a [T], ys: &'a [T::VecDotType], dst: &'a mut [f32]) -> Self {
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
        let xs = std::array::from_fn(|i| self.xs.as_ptr().add((r + i) * self.blocks));
        let ys = std::array::from_fn(|i| self.ys.as_ptr().add((c + i) * self.blocks));
        let sums = products::<T, S, R, C>(self.blocks, xs, ys);
        for (i, sums) in sums.iter().enumerate() {
            let at = (c + i) * rows + r;
            self.dst[at..at + R].copy_from_slice(sums);
        }
    }
}

/// Rows of activations that meet a block of weights while it is unpacked.
const COLUMNS: usize = 4;

impl<T: Weights> Kernel for Tile<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let (rows, columns) = (self.xs.len() / self.blocks, self.ys.len() / self.blocks);
        let many = columns - columns % COLUMNS;
        for r in 0..rows {
            for c in (0..many).step_by(COLUMNS) {
                self.part::<S, 1, COLUMNS>(r, c);
            }
        }
        for c in many..columns {
            let fours = rows - rows % 4;
            for r in (0..fours).step_by(4) {
                self.part::<S, 4, 1>(r, c);
            }
            for r in fours..rows {
                self.part::<S, 1, 1>(r, c);
            }
        }
    }
}

/// The blocks that `n` elements are.
#[inline]
fn blocks_of<T: GgmlType>(n: usize) -> usize {
    assert!(
        n.is_multiple_of(T::BLCK_SIZE),
        "{n} elements are no whole number of {:?} blocks, which have {}",
        T::DTYPE,
        T::BLCK_SIZE
    );
    n / T::BLCK_SIZE
}
