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
use super::level::{run_panels_at, Level};
use super::prepared::{DenseRows, RowProducts};
use super::products::{at, prefetch, Unpack, Weights};
use super::simd::Simd;
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
    fn read<S: Simd>(&self, s: S, i: usize) -> S::Bytes;

    /// All vectors of [`Read`](Self::Read). Must be `#[inline(always)]`.
    fn read_all<S: Simd>(&self, s: S) -> Self::Read<S>;

    /// Extracts codes from the vectors read, each code from bytes with the same index, so that it works for any elements of any rows. Must
    /// be `#[inline(always)]`.
    fn codes<S: Simd>(s: S, bytes: Self::Read<S>) -> Self::Bytes<S>;

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
            run_panels_at(self.level, product).expect("a level with panels")
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
    type Output = ();

    #[inline(always)]
    fn run<S: PanelSimd>(mut self, s: S) {
        self.dst.fill(0.);
        let piece = PIECE / T::BLCK_SIZE;
        for first in (0..self.blocks).step_by(piece) {
            let blocks = first..self.blocks.min(first + piece);
            self.unpack(s, blocks.clone());
            let mut column = 0;
            while column + COLUMNS <= self.columns.len() {
                self.multiply::<S, COLUMNS>(s, blocks.clone(), column);
                column += COLUMNS;
            }
            while column < self.columns.len() {
                self.multiply::<S, 1>(s, blocks.clone(), column);
                column += 1;
            }
        }
    }
}

impl<T: PanelWeights> Product<'_, T> {
    /// Parts in a block.
    const PARTS: usize = T::BLCK_SIZE / T::PART;

    /// Unpacks these blocks of every row into the panel. If there are fewer rows, the last one is repeated.
    #[allow(unsafe_code, reason = "see `at`")]
    #[inline(always)]
    fn unpack<S: PanelSimd>(&mut self, s: S, blocks: Range<usize>) {
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
                *x = self.xs[row * self.blocks..][blocks.clone()].as_ptr();
            }
            for block in 0..blocks.len() {
                for x in xs {
                    // Prefetches the same bytes of the next chunk: that of these rows, or the first one of the next rows.
                    prefetch(s, x.wrapping_add(next));
                }
                // SAFETY: each points to `blocks.len()` blocks, of which it has passed `block`.
                let x = unsafe { xs.map(|x| &*x) };
                self.unpack_scales(s, x, block, group / GROUP);
                // Transposes the packed bytes before unpacking: there are fewer of them.
                let mut transposed = [x[0].read_all(s); GROUP];
                for i in 0..transposed[0].as_mut().len() {
                    let mut rows = [x[0].read(s, i); GROUP];
                    for r in 1..GROUP {
                        rows[r] = x[r].read(s, i);
                    }
                    let rows = s.transpose(rows);
                    for (transposed, bytes) in transposed.iter_mut().zip(rows) {
                        transposed.as_mut()[i] = bytes;
                    }
                }
                let codes = self.panel.codes.as_mut_ptr();
                for (g, bytes) in transposed.into_iter().enumerate() {
                    for (j, &bytes) in T::codes(s, bytes).as_ref().iter().enumerate() {
                        let bytes = if flip { s.flip_signs(bytes) } else { bytes };
                        let first = (block * T::BLCK_SIZE + 32 * j + 4 * g) * S::ROWS + 4 * group;
                        // SAFETY: a panel has `PIECE` codes of each row, and `blocks` at most this number.
                        s.store(unsafe { &mut *codes.add(first).cast() }, bytes);
                    }
                }
                for x in &mut xs {
                    *x = x.wrapping_add(1);
                }
            }
        }
    }

    /// Writes the scales of a block of a group of rows, and the minima if the format has them. Those of a part are adjacent, with a stride
    /// of `S::ROWS` between parts.
    #[inline(always)]
    fn unpack_scales<S: PanelSimd>(&mut self, s: S, xs: [&T; GROUP], block: usize, group: usize) {
        let [scale, minimum] = eight_factors(s, xs);
        let above = T::CODES == Codes::AboveMinimum;
        let stride = S::ROWS / GROUP;
        let part = block * Self::PARTS * stride + group;
        let scales = self.panel.scales.as_chunks_mut().0;
        let minima = self.panel.minima.as_chunks_mut().0;
        if Self::PARTS == 1 {
            s.store_eight(&mut scales[part], scale);
            if above {
                s.store_eight(&mut minima[part], minimum);
            }
            return;
        }
        let block_scales = self.panel.block_scales.as_chunks_mut().0;
        s.store_eight(&mut block_scales[block * stride + group], scale);
        if above {
            let less = s.mul(minimum, s.splat(-1.));
            let block_minima = self.panel.block_minima.as_chunks_mut().0;
            s.store_eight(&mut block_minima[block * stride + group], less);
        }
        let mut words = [[[0; GROUP]; 2]; 2];
        for (r, x) in xs.into_iter().enumerate() {
            let [of_scales, of_minima] = x.part_bytes();
            for (word, [scales, minima]) in words.iter_mut().enumerate() {
                (scales[r], minima[r]) = (of_scales[word], of_minima[word]);
            }
        }
        let eights = words.into_iter().take(Self::PARTS / 8);
        for (i, [of_scales, of_minima]) in eights.enumerate() {
            let first = part + 8 * i * stride;
            store_transposed(s, &mut scales[first..], of_scales);
            if above {
                store_transposed(s, &mut minima[first..], of_minima);
            }
        }
    }

    #[allow(
        clippy::needless_range_loop,
        reason = "what is at `c` in one array goes with what is there in others"
    )]
    #[allow(unsafe_code, reason = "see `at`")]
    /// Adds the products of the panel, which holds these blocks, with `C` rows of activations.
    #[inline(always)]
    fn multiply<S: PanelSimd, const C: usize>(
        &mut self,
        s: S,
        blocks: Range<usize>,
        column: usize,
    ) {
        let fours: &[S::FourOfRows] = bytemuck::cast_slice(&self.panel.codes);
        let scales: &[S::OneOfRows] = bytemuck::cast_slice(&self.panel.scales);
        let minimums: &[S::OneOfRows] = bytemuck::cast_slice(&self.panel.minima);
        let block_scales: &[S::OneOfRows] = bytemuck::cast_slice(&self.panel.block_scales);
        let block_minima: &[S::OneOfRows] = bytemuck::cast_slice(&self.panel.block_minima);
        let dst: &mut [S::OneOfRows] = bytemuck::cast_slice_mut(self.dst);
        let dst = &mut dst[column..][..C];
        let first = self.columns.start + column;
        let mut y = [self.ys.row(first); C];
        let mut totals = [s.load_values(&dst[0]); C];
        for c in 1..C {
            y[c] = self.ys.row(first + c);
            totals[c] = s.load_values(&dst[c]);
        }
        let signed = T::CODES == Codes::Signed && !S::UNSIGNED;
        let offset = T::CODES != Codes::AboveMinimum && !signed;
        let above = T::CODES == Codes::AboveMinimum;
        // SAFETY: rows of activations have codes and scales for all `blocks`, which `Panels::multiply` checks, and a panel has a chunk.
        unsafe {
            for (x_block, block) in blocks.enumerate() {
                let mut products = [s.zero_totals(); C];
                let mut minima = [s.zero_values(); C];
                for part in 0..Self::PARTS {
                    let y_part = block * Self::PARTS + part;
                    let x_part = x_block * Self::PARTS + part;
                    let mut sums = [s.zero_sums(); C];
                    if offset {
                        for c in 0..C {
                            sums[c] = s.splat_sum(*at(y[c].offsets, y_part));
                        }
                    }
                    for four in 0..T::PART / 4 {
                        let x = s.load_fours(at(fours, x_part * (T::PART / 4) + four));
                        for c in 0..C {
                            let y = *at(y[c].codes, y_part * (T::PART / 4) + four);
                            sums[c] = if signed {
                                s.dot_fours::<true>(sums[c], x, y)
                            } else {
                                s.dot_fours::<false>(sums[c], x, y)
                            };
                        }
                    }
                    let scale = at(scales, x_part);
                    let minimum = s.load_values(at(minimums, x_part));
                    if Self::PARTS == 1 {
                        let scale = s.load_values(scale);
                        for c in 0..C {
                            if above {
                                let sum = s.splat_value(*at(y[c].sums, block));
                                totals[c] = s.fma(minimum, sum, totals[c]);
                            }
                            let scale = times(s, scale, *at(y[c].scales, block));
                            totals[c] = s.fma(s.values_of(sums[c]), scale, totals[c]);
                        }
                        continue;
                    }
                    let scale = s.load_whole(scale);
                    for c in 0..C {
                        products[c] = s.add_times(products[c], sums[c], scale);
                        if above {
                            // Integers whose sum is below 2^24: exact.
                            let sum = s.splat_value(*at(y[c].sums, y_part));
                            minima[c] = s.fma(minimum, sum, minima[c]);
                        }
                    }
                }
                if Self::PARTS == 1 {
                    continue;
                }
                let scale = s.load_values(at(block_scales, x_block));
                let less = s.load_values(at(block_minima, x_block));
                for c in 0..C {
                    let by = *at(y[c].scales, block);
                    if above {
                        totals[c] = s.fma(minima[c], times(s, less, by), totals[c]);
                    }
                    let products = s.values_of_totals(products[c]);
                    totals[c] = s.fma(products, times(s, scale, by), totals[c]);
                }
            }
        }
        for c in 0..C {
            s.store_values(&mut dst[c], totals[c]);
        }
    }
}

/// `values` times `by`.
#[inline(always)]
fn times<S: PanelSimd>(s: S, values: S::Values, by: f32) -> S::Values {
    s.fma(values, s.splat_value(by), s.zero_values())
}

/// Eight bytes of each of eight rows as floats. The rows' first bytes become adjacent, with a stride of `S::ROWS` to their next ones.
#[inline(always)]
fn store_transposed<S: PanelSimd>(s: S, to: &mut [[f32; 8]], rows: [u64; GROUP]) {
    let stride = S::ROWS / GROUP;
    let to = &mut to[..7 * stride + 1];
    for (half, bytes) in s.transpose_bytes(rows).into_iter().enumerate() {
        for (i, floats) in s.eights(bytes).into_iter().enumerate() {
            s.store_eight(&mut to[(4 * half + i) * stride], floats);
        }
    }
}

/// The [factors](PanelWeights::factors) of eight blocks: those of the scales, then those of the minima, if present.
#[inline(always)]
pub(super) fn eight_factors<T: PanelWeights, S: PanelSimd>(
    s: S,
    blocks: [&T; GROUP],
) -> [S::Floats; 2] {
    let mut halves = [[0; GROUP]; 2];
    for (r, x) in blocks.into_iter().enumerate() {
        [halves[0][r], halves[1][r]] = x.factors();
    }
    let scales = s.eight_floats(halves[0]);
    let minima = if T::CODES == Codes::AboveMinimum {
        s.eight_floats(halves[1])
    } else {
        s.splat(0.)
    };
    [scales, minima]
}
