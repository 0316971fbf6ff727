//! Products with many rows of activations.
//!
//! Several rows of weights are unpacked together, chunk by chunk, into a panel in which four neighbouring codes of every row are adjacent.
//! One instruction then multiplies four codes of an activation row by those of one weight row per lane, and every lane accumulates for its
//! row. Unpacking is done once for all activation rows, so it pays only with several of them; `products.rs` handles fewer.
//!
//! The panel is a scratch buffer of some tens of kilobytes per thread. The weights themselves are not changed.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

use super::activations::PanelActivations;
use super::lanes::{PanelKernel, PanelSimd, GROUP, MAX_ROWS};
use super::prepared::{DenseRows, RowProducts};
use super::products::{prefetch, Unpack, Weights};
use super::simd::{Level, Simd};
use super::QK_K;

/// Elements per row of a panel: with [`MAX_ROWS`] rows and their scales it takes half of an L1 cache of 48 KiB. With twice this number the
/// cache was full, and unpacking took three times as long.
pub(super) const PIECE: usize = 512;

/// Number of activation rows that share the loads from a panel.
const COLUMNS: usize = 4;

/// Minimum number of activation rows for which unpacking a panel pays. (Products of four rows also unpack a large block only once.)
const fn min_columns(block: usize) -> usize {
    if block > 32 {
        5
    } else {
        4
    }
}

/// Maximum number of scales in a chunk of a row.
const SCALES: usize = PIECE / 16;

/// Number of blocks of several parts in a chunk of a row.
const LARGE_BLOCKS: usize = PIECE / QK_K;

/// The meaning of a format's codes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codes {
    /// `x = scale · (q − offset)` with `q` in `0..=63`.
    Offset(i32),
    /// `x = scale · q` with `q` in `-128..=127`.
    Signed,
    /// `x = scale · q + minimum` with `q` in `0..=63`.
    AboveMinimum,
}

/// A format that can be unpacked into panels.
pub(crate) trait PanelWeights: Weights<<Self as Unpack>::Activations> {
    /// Elements that share a scale: 16 or 32.
    const PART: usize;
    const CODES: Codes;
    /// The bytes of a block that hold codes, 32 in a vector.
    type Read<S: Simd>: Copy + AsMut<[S::Bytes]>;
    /// The codes of a block, 32 in a vector, in the order of the elements.
    type Bytes<S: Simd>: Copy + AsRef<[S::Bytes]>;

    /// Vector `i` of [`Read`](Self::Read). Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// As for [`Simd`]; vector `i` exists.
    unsafe fn read<S: Simd>(&self, i: usize) -> S::Bytes;

    /// All vectors of [`Read`](Self::Read). Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn read_all<S: Simd>(&self) -> Self::Read<S>;

    /// Extracts codes from the vectors read, each code from bytes with the same index, so that it works for any elements of any rows. Must
    /// be `#[inline(always)]`.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn codes<S: Simd>(bytes: Self::Read<S>) -> Self::Bytes<S>;

    /// The factors of the block's scales and, if the format has them, of its minima: the bits of two f16. Must be
    /// `#[inline(always)]`.
    fn factors(&self) -> [u16; 2];

    /// The multipliers of the [`factors`](Self::factors) for each part: the signed bytes of the scales, the first in the lowest byte of the
    /// first word, and those of the minima. `None` if a block is a single part. Must be `#[inline(always)]`.
    #[inline(always)]
    fn part_bytes(&self) -> [[u64; 2]; 2] {
        [[0; 2]; 2]
    }
}

/// A chunk of several rows of weights, unpacked.
#[repr(C, align(64))]
struct Panel {
    /// `[group of four elements][row][element]`
    codes: [u8; PIECE * MAX_ROWS],
    /// `[part][row]`; if a block has several parts, the multiplier of its scale.
    scales: [f32; SCALES * MAX_ROWS],
    /// `[part][row]`, like the scales.
    minima: [f32; SCALES * MAX_ROWS],
    /// `[block][row]`: the scales of blocks that have several parts.
    block_scales: [f32; LARGE_BLOCKS * MAX_ROWS],
    /// `[block][row]`: the scales of the minima of such blocks, negated.
    block_minima: [f32; LARGE_BLOCKS * MAX_ROWS],
}

thread_local! {
    static PANEL: RefCell<Box<Panel>> = RefCell::new(Box::new(Panel {
        codes: [0; PIECE * MAX_ROWS],
        scales: [0.; SCALES * MAX_ROWS],
        minima: [0.; SCALES * MAX_ROWS],
        block_scales: [0.; LARGE_BLOCKS * MAX_ROWS],
        block_minima: [0.; LARGE_BLOCKS * MAX_ROWS],
    }));
}

/// The activations of a product, prepared for panels of weights `T`.
pub(crate) struct Panels<T> {
    rows: PanelActivations,
    level: Level,
    /// Rows of weights per call of [`multiply`](RowProducts::multiply).
    panel_rows: usize,
    weights: PhantomData<fn(T)>,
}

impl<T: PanelWeights> Panels<T> {
    /// Uses this CPU's best instruction set. `None` if there are too few rows.
    pub(crate) fn worth_while(rows: &DenseRows) -> Option<Self> {
        let enough = rows.count() >= min_columns(T::BLCK_SIZE);
        enough.then(|| Self::new(Level::best(), rows)).flatten()
    }

    /// `None` if the level has no panels.
    pub(crate) fn new(level: Level, rows: &DenseRows) -> Option<Self> {
        let (panel_rows, unsigned) = level.panels()?;
        // The offset of the codes, which is subtracted once for each unit of the activations' sum.
        let offset = match T::CODES {
            Codes::Offset(offset) => Some(offset),
            Codes::Signed => Some(if unsigned { 128 } else { 0 }),
            Codes::AboveMinimum => None,
        };
        Some(Self {
            rows: PanelActivations::new::<T::Activations>(rows, T::PART, offset),
            level,
            panel_rows,
            weights: PhantomData,
        })
    }
}

impl<T: PanelWeights> RowProducts<T> for Panels<T> {
    /// Maximum number of rows of weights per call of [`multiply`](Self::multiply).
    fn panel_rows(&self) -> Option<usize> {
        Some(self.panel_rows)
    }

    /// Multiplies rows of weights by the activation rows `ys`: writes the product of row `r` and row `ys.start + c` to
    /// `dst[c * panel_rows + r]`. Elements without a row of weights are unspecified.
    ///
    /// # Panics
    /// If `xs` is not a whole number of rows between one and `panel_rows`, or the sizes of `ys` or `dst` do not match.
    fn multiply(&self, xs: &[T], ys: Range<usize>, dst: &mut [f32]) {
        let blocks = self.rows.len() / T::BLCK_SIZE;
        let rows = xs.len() / blocks.max(1);
        assert!(
            xs.len() == rows * blocks
                && (1..=self.panel_rows).contains(&rows)
                && ys.end <= self.rows.count()
                && dst.len() == ys.len() * self.panel_rows,
            "a panel of {:?}: {} blocks in rows of {blocks}, activations {ys:?} of {}, {} products",
            T::DTYPE,
            xs.len(),
            self.rows.count(),
            dst.len()
        );
        PANEL.with_borrow_mut(|panel| {
            let product = Product {
                xs,
                blocks,
                ys: &self.rows,
                columns: ys,
                panel,
                dst,
            };
            // SAFETY: `new` has checked that the level has panels, and levels are those of this CPU.
            unsafe { super::simd::run_panels_at(self.level, product) }
        })
    }
}

/// A panel's rows of weights times some rows of activations.
struct Product<'a, T> {
    xs: &'a [T],
    /// Blocks in a row of weights.
    blocks: usize,
    ys: &'a PanelActivations,
    columns: Range<usize>,
    panel: &'a mut Panel,
    dst: &'a mut [f32],
}

impl<T: PanelWeights> PanelKernel for Product<'_, T> {
    #[inline(always)]
    unsafe fn run<S: PanelSimd>(mut self) {
        self.dst.fill(0.);
        let piece = PIECE / T::BLCK_SIZE;
        for first in (0..self.blocks).step_by(piece) {
            let blocks = first..self.blocks.min(first + piece);
            self.unpack::<S>(blocks.clone());
            let mut column = 0;
            while column + COLUMNS <= self.columns.len() {
                self.multiply::<S, COLUMNS>(blocks.clone(), column);
                column += COLUMNS;
            }
            while column < self.columns.len() {
                self.multiply::<S, 1>(blocks.clone(), column);
                column += 1;
            }
        }
    }
}

impl<T: PanelWeights> Product<'_, T> {
    /// Parts in a block.
    const PARTS: usize = T::BLCK_SIZE / T::PART;

    /// Unpacks these blocks of every row into the panel. If there are fewer rows, the last one is repeated.
    #[inline(always)]
    unsafe fn unpack<S: PanelSimd>(&mut self, blocks: Range<usize>) {
        let rows = self.xs.len() / self.blocks;
        let flip = T::CODES == Codes::Signed && S::UNSIGNED;
        let next = if blocks.end < self.blocks {
            blocks.len()
        } else {
            (S::ROWS - 1) * self.blocks + blocks.len()
        };
        for group in (0..S::ROWS).step_by(GROUP) {
            let mut xs = [self.xs.as_ptr(); GROUP];
            for (r, x) in xs.iter_mut().enumerate() {
                let row = (group + r).min(rows - 1);
                *x = x.add(row * self.blocks + blocks.start);
            }
            let codes = self.panel.codes.as_mut_ptr();
            for block in 0..blocks.len() {
                let first = codes.add(block * T::BLCK_SIZE * S::ROWS + 4 * group);
                for x in xs {
                    // Prefetches the same bytes of the next chunk: that of these rows, or the first one of the next rows.
                    prefetch::<T, S>(x.wrapping_add(next));
                }
                self.unpack_scales::<S>(xs, block, group);
                // Transposes the packed bytes before unpacking: there are fewer of them.
                let mut transposed = [T::read_all::<S>(&*xs[0]); GROUP];
                for i in 0..transposed[0].as_mut().len() {
                    let mut rows = [(*xs[0]).read::<S>(i); GROUP];
                    for r in 1..GROUP {
                        rows[r] = (*xs[r]).read::<S>(i);
                    }
                    let rows = S::transpose(rows);
                    for (transposed, bytes) in transposed.iter_mut().zip(rows) {
                        transposed.as_mut()[i] = bytes;
                    }
                }
                for (g, bytes) in transposed.into_iter().enumerate() {
                    for (j, &bytes) in T::codes::<S>(bytes).as_ref().iter().enumerate() {
                        let bytes = if flip { S::flip_signs(bytes) } else { bytes };
                        S::store(first.add((32 * j + 4 * g) * S::ROWS), bytes);
                    }
                }
                for x in &mut xs {
                    *x = x.add(1);
                }
            }
        }
    }

    /// Writes the scales of eight rows' block, from row `group` on, and the minima if the format has them. Those of a part are adjacent,
    /// with a stride of `S::ROWS` between parts.
    #[inline(always)]
    unsafe fn unpack_scales<S: PanelSimd>(
        &mut self,
        xs: [*const T; GROUP],
        block: usize,
        group: usize,
    ) {
        let [scale, minimum] = eight_factors::<T, S>(xs);
        let above = T::CODES == Codes::AboveMinimum;
        let place = block * Self::PARTS * S::ROWS + group;
        let scales = self.panel.scales.as_mut_ptr().add(place);
        let minima = self.panel.minima.as_mut_ptr().add(place);
        if Self::PARTS == 1 {
            S::store_eight(scales, scale);
            if above {
                S::store_eight(minima, minimum);
            }
            return;
        }
        let place = block * S::ROWS + group;
        S::store_eight(self.panel.block_scales.as_mut_ptr().add(place), scale);
        if above {
            let less = S::mul(minimum, S::splat(-1.));
            S::store_eight(self.panel.block_minima.as_mut_ptr().add(place), less);
        }
        let mut words = [[[0; GROUP]; 2]; 2];
        for (r, x) in xs.into_iter().enumerate() {
            let [of_scales, of_minima] = (*x).part_bytes();
            for (word, [scales, minima]) in words.iter_mut().enumerate() {
                (scales[r], minima[r]) = (of_scales[word], of_minima[word]);
            }
        }
        let eights = words.into_iter().take(Self::PARTS / 8);
        for (i, [of_scales, of_minima]) in eights.enumerate() {
            let place = GROUP * i * S::ROWS;
            store_transposed::<S>(scales.add(place), of_scales);
            if above {
                store_transposed::<S>(minima.add(place), of_minima);
            }
        }
    }

    #[allow(
        clippy::needless_range_loop,
        reason = "what is at `c` in one array goes with what is there in others"
    )]
    /// Adds the products of the panel, which holds these blocks, with `C` rows of activations.
    #[inline(always)]
    unsafe fn multiply<S: PanelSimd, const C: usize>(
        &mut self,
        blocks: Range<usize>,
        column: usize,
    ) {
        let first = self.columns.start + column;
        let dst = self.dst.as_mut_ptr().add(column * S::ROWS);
        let mut y = [self.ys.row(first); C];
        let mut totals = [S::load_values(dst); C];
        for c in 1..C {
            y[c] = self.ys.row(first + c);
            totals[c] = S::load_values(dst.add(c * S::ROWS));
        }
        let signed = T::CODES == Codes::Signed && !S::UNSIGNED;
        let offset = T::CODES != Codes::AboveMinimum && !signed;
        let above = T::CODES == Codes::AboveMinimum;
        for block in blocks.clone() {
            let mut products = [S::zero_totals(); C];
            let mut minima = [S::zero_values(); C];
            for part in 0..Self::PARTS {
                let y_part = block * Self::PARTS + part;
                let x_part = y_part - blocks.start * Self::PARTS;
                let mut sums = [S::zero_sums(); C];
                if offset {
                    for c in 0..C {
                        sums[c] = S::splat_sum(y[c].offsets.add(y_part));
                    }
                }
                for four in 0..T::PART / 4 {
                    let at = x_part * T::PART + 4 * four;
                    let x = S::load_fours(self.panel.codes.as_ptr().add(at * S::ROWS));
                    for c in 0..C {
                        let y = y[c].codes.add(y_part * T::PART + 4 * four);
                        sums[c] = if signed {
                            S::dot_fours::<true>(sums[c], x, y)
                        } else {
                            S::dot_fours::<false>(sums[c], x, y)
                        };
                    }
                }
                let scale = self.panel.scales.as_ptr().add(x_part * S::ROWS);
                let minimum = S::load_values(self.panel.minima.as_ptr().add(x_part * S::ROWS));
                if Self::PARTS == 1 {
                    let scale = S::load_values(scale);
                    for c in 0..C {
                        if above {
                            let sum = S::splat_value(y[c].sums.add(block));
                            totals[c] = S::fma(minimum, sum, totals[c]);
                        }
                        let scale = times::<S>(scale, y[c].scales.add(block));
                        totals[c] = S::fma(S::values_of(sums[c]), scale, totals[c]);
                    }
                    continue;
                }
                let scale = S::load_whole(scale);
                for c in 0..C {
                    products[c] = S::add_times(products[c], sums[c], scale);
                    if above {
                        // Integers whose sum is below 2^24: exact.
                        let sum = S::splat_value(y[c].sums.add(y_part));
                        minima[c] = S::fma(minimum, sum, minima[c]);
                    }
                }
            }
            if Self::PARTS == 1 {
                continue;
            }
            let place = (block - blocks.start) * S::ROWS;
            let scale = S::load_values(self.panel.block_scales.as_ptr().add(place));
            let less = S::load_values(self.panel.block_minima.as_ptr().add(place));
            for c in 0..C {
                let by = y[c].scales.add(block);
                if above {
                    totals[c] = S::fma(minima[c], times::<S>(less, by), totals[c]);
                }
                let products = S::values_of_totals(products[c]);
                totals[c] = S::fma(products, times::<S>(scale, by), totals[c]);
            }
        }
        for c in 0..C {
            S::store_values(dst.add(c * S::ROWS), totals[c]);
        }
    }
}

/// `values` times the float at `by`.
///
/// # Safety
/// As for [`PanelSimd`].
#[inline(always)]
unsafe fn times<S: PanelSimd>(values: S::Values, by: *const f32) -> S::Values {
    S::fma(values, S::splat_value(by), S::zero_values())
}

/// Eight bytes of each of eight rows as floats. The rows' first bytes become adjacent, with a stride of `S::ROWS` to their next ones.
///
/// # Safety
/// As for [`PanelSimd`]; the floats fit.
#[inline(always)]
unsafe fn store_transposed<S: PanelSimd>(to: *mut f32, rows: [u64; GROUP]) {
    for (half, bytes) in S::transpose_bytes(rows).into_iter().enumerate() {
        for (i, floats) in S::eights(bytes).into_iter().enumerate() {
            S::store_eight(to.add((4 * half + i) * S::ROWS), floats);
        }
    }
}

/// The [factors](PanelWeights::factors) of eight blocks: those of the scales, then those of the minima, if present.
///
/// # Safety
/// As for [`PanelSimd`]; the blocks must exist.
#[inline(always)]
pub(super) unsafe fn eight_factors<T: PanelWeights, S: PanelSimd>(
    blocks: [*const T; GROUP],
) -> [S::Floats; 2] {
    let mut halves = [[0; GROUP]; 2];
    for (r, x) in blocks.into_iter().enumerate() {
        [halves[0][r], halves[1][r]] = (*x).factors();
    }
    let scales = S::eight_floats(halves[0]);
    let minima = if T::CODES == Codes::AboveMinimum {
        S::eight_floats(halves[1])
    } else {
        S::splat(0.)
    };
    [scales, minima]
}
