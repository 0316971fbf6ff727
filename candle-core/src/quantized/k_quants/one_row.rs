//! Products with one row of activations, as for one token.
//!
//! The row is laid out once, for all rows of weights and all threads. The kernels then walk through the weights from the first byte to the
//! last; they are those of some machines (`../avx_rows.rs`, `../avx512_rows.rs`), and `products.rs` serves the others.

use std::ops::Range;

use super::activations::Activations;
use super::products::Weights;
use super::simd::{run_at, Kernel, Level, Simd};
use super::{BlockQ8K, BlockQ8_0, GgmlType};

/// A line of the cache, which is also a vector of 512 bits.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub(crate) T);

/// Where the parts of 32 codes of a block of 256 lie, by pairs in a [`Line`]: nibbles of weights come in this order. Turning the order
/// about gives the same.
pub(crate) const PARTS: [usize; 8] = [0, 2, 1, 3, 4, 6, 5, 7];

/// A row of activations.
pub(crate) struct OneRow<'a, V> {
    /// As they are, for what a kernel that takes several at once leaves over.
    pub(crate) blocks: &'a [V],
    /// The codes, one block after another; those of 256 in the order of [`PARTS`].
    pub(crate) codes: Vec<Line<[[i8; 32]; 2]>>,
    /// Each block's scale; those of blocks of 256 twice.
    pub(crate) scales: Vec<f32>,
    /// Of blocks of 32: what an offset of the weights by one adds up to, negated.
    pub(crate) offsets: Vec<f32>,
    /// Of blocks of 256: the sum of each 32 codes.
    pub(crate) sums: Vec<i16>,
}

/// Activations that can be laid out so.
pub(crate) trait RowBlocks: Activations {
    fn lay_out(row: &[Self]) -> OneRow<'_, Self>;
}

impl RowBlocks for BlockQ8_0 {
    fn lay_out(row: &[Self]) -> OneRow<'_, Self> {
        let pair = |pair: &[Self]| Line([pair[0].qs, pair.get(1).map_or([0; 32], |y| y.qs)]);
        let scales: Vec<f32> = row.iter().map(Self::scale).collect();
        let offset = |(y, scale): (&Self, &f32)| -scale * y.sum(0, 32) as f32;
        OneRow {
            blocks: row,
            codes: row.chunks(2).map(pair).collect(),
            offsets: row.iter().zip(&scales).map(offset).collect(),
            scales,
            sums: vec![],
        }
    }
}

impl RowBlocks for BlockQ8K {
    fn lay_out(row: &[Self]) -> OneRow<'_, Self> {
        let (mut codes, mut sums) = (Vec::new(), Vec::new());
        codes.reserve(4 * row.len());
        sums.reserve(8 * row.len());
        for y in row {
            let (parts, _) = y.qs.as_chunks::<32>();
            let (pairs, _) = PARTS.as_chunks::<2>();
            codes.extend(pairs.iter().map(|pair| Line(pair.map(|part| parts[part]))));
            sums.extend(y.bsums.as_chunks::<2>().0.iter().map(|[a, b]| a + b));
        }
        OneRow {
            blocks: row,
            codes,
            scales: row.iter().flat_map(|y| [y.d; 2]).collect(),
            offsets: vec![],
            sums,
        }
    }
}

/// A format with a kernel for one row, on some machines.
pub(crate) trait OneRowWeights: Weights<VecDotType: RowBlocks> {
    /// `dst[r]` becomes row `r` of `xs` times the row of activations. False, and nothing is done, where there is no kernel. To be
    /// `#[inline(always)]`.
    ///
    /// # Safety
    /// As for [`Simd`]; all rows have as many blocks, and there are some.
    unsafe fn one_row<S: Simd>(
        xs: &[Self],
        y: &OneRow<'_, Self::VecDotType>,
        dst: &mut [f32],
    ) -> bool;
}

/// Few rows of activations, each ready to meet rows of weights `T` by itself.
pub struct FewRows<'a, T: GgmlType> {
    rows: Vec<OneRow<'a, T::VecDotType>>,
    level: Level,
    /// [`multiply_at`] for `T`, which callers need not know to have a kernel.
    multiply: fn(&Self, &[T], Range<usize>, &mut [f32]),
}

/// Rows up to which each is multiplied by itself: of four, a block meets all while it is unpacked.
const FEW: usize = 3;

#[allow(private_bounds, reason = "only callers in this crate make one")]
impl<'a, T: OneRowWeights> FewRows<'a, T> {
    /// With the best that this machine has. None if that has no kernel, or the rows are not few.
    pub(crate) fn worth_while(n: usize, ys: &'a [T::VecDotType]) -> Option<Self> {
        let blocks = n / T::VecDotType::BLCK_SIZE;
        (ys.len() <= FEW * blocks)
            .then(|| Self::new(Level::best(), n, ys))
            .flatten()
    }

    /// Rows of `n` elements. None when the level has no kernel, or there are no rows or no elements.
    pub(crate) fn new(level: Level, n: usize, ys: &'a [T::VecDotType]) -> Option<Self> {
        let blocks = n / T::VecDotType::BLCK_SIZE;
        let rows: Vec<_> = ys
            .chunks_exact(blocks.max(1))
            .map(RowBlocks::lay_out)
            .collect();
        let none = Rows::<T> {
            xs: &[],
            y: rows.first()?,
            dst: &mut [],
        };
        // SAFETY: levels are those of this machine; without rows of weights it only asks.
        unsafe { run_at(level, none) }.then_some(Self {
            rows,
            level,
            multiply: multiply_at,
        })
    }
}

impl<T: GgmlType> FewRows<'_, T> {
    /// The products of rows of weights with the activation rows `ys`: `dst[c * rows(xs) + r]` becomes that of row `r` with row
    /// `ys.start + c`.
    ///
    /// # Panics
    /// When `xs` is no whole number of rows, or `ys` or `dst` do not fit.
    pub(crate) fn multiply(&self, xs: &[T], ys: Range<usize>, dst: &mut [f32]) {
        (self.multiply)(self, xs, ys, dst)
    }
}

fn multiply_at<T: OneRowWeights>(few: &FewRows<T>, xs: &[T], ys: Range<usize>, dst: &mut [f32]) {
    let blocks = few.rows[0].blocks.len();
    let rows = xs.len() / blocks;
    assert!(
        xs.len() == rows * blocks && dst.len() == ys.len() * rows,
        "rows of {blocks} blocks of {:?}: {} blocks, {} products with activations {ys:?}",
        T::DTYPE,
        xs.len(),
        dst.len()
    );
    for (y, dst) in few.rows[ys].iter().zip(dst.chunks_exact_mut(rows.max(1))) {
        // SAFETY: `new` found this machine's level to have a kernel; sizes were compared.
        unsafe { run_at(few.level, Rows { xs, y, dst }) };
    }
}

/// Rows of weights times one row of activations.
struct Rows<'a, T: GgmlType> {
    xs: &'a [T],
    y: &'a OneRow<'a, T::VecDotType>,
    dst: &'a mut [f32],
}

impl<T: OneRowWeights> Kernel for Rows<'_, T> {
    type Output = bool;
    const PRODUCTS: bool = true;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> bool {
        T::one_row::<S>(self.xs, self.y, self.dst)
    }
}
