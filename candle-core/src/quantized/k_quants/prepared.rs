//! The dense side of a product, prepared for the fastest kernel for its number of rows.

use std::ops::Range;

use super::one_row::{FewRows, OneRowWeights};
use super::panels::{PanelWeights, Panels};
use super::GgmlType;
use crate::cpu::threads;

/// Elements per task when rows are encoded to blocks: some microseconds of work.
const CONVERTED: usize = 4096;

/// Rows of floats that are encoded to blocks `V` on demand.
pub struct DenseRows<'a, V> {
    count: usize,
    /// Elements of a row, a multiple of the block size.
    len: usize,
    /// Writes the blocks of these rows.
    encode: &'a (dyn Fn(Range<usize>, &mut [V]) + Sync),
}

impl<'a, V: GgmlType> DenseRows<'a, V> {
    /// `count` rows of `len` elements; `encode` writes the blocks of some of them.
    pub(crate) fn new(
        count: usize,
        len: usize,
        encode: &'a (dyn Fn(Range<usize>, &mut [V]) + Sync),
    ) -> Self {
        Self { count, len, encode }
    }

    /// Rows.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Elements of a row.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Blocks of a row.
    pub(crate) fn row_blocks(&self) -> usize {
        self.len / V::BLCK_SIZE
    }

    /// The blocks of these rows, on this thread.
    pub(crate) fn encode(&self, rows: Range<usize>) -> Vec<V> {
        let mut blocks = vec![V::zeros(); rows.len() * self.row_blocks()];
        (self.encode)(rows, &mut blocks);
        blocks
    }

    /// The blocks of all rows, on several threads if that pays.
    fn blocks(&self) -> Vec<V> {
        let mut blocks = vec![V::zeros(); self.count * self.row_blocks()];
        let rows = CONVERTED.div_ceil(self.len.max(1));
        threads::chunks_mut(&mut blocks, rows * self.row_blocks(), |i, blocks| {
            (self.encode)(i * rows..self.count.min((i + 1) * rows), blocks)
        });
        blocks
    }
}

/// Rows of activations prepared for products with rows of weights `T`.
pub enum Prepared<T: GgmlType> {
    /// Many rows: weights are unpacked into panels, and each panel is multiplied with all rows.
    Panels(Panels<T>),
    /// Few rows: each is multiplied separately.
    FewRows(FewRows<T>),
    /// For [`GgmlType::vec_dot_tile`].
    Blocks {
        /// Elements of a row.
        len: usize,
        blocks: Vec<T::VecDotType>,
    },
}

/// For formats without a kernel for one row: panels, if this CPU has them and there are enough rows.
pub(crate) fn panels<T: PanelWeights>(rows: &DenseRows<T::VecDotType>) -> Prepared<T> {
    let panels = Panels::worth_while(rows).map(Prepared::Panels);
    panels.unwrap_or_else(|| Prepared::blocks(rows))
}

/// As [`panels`]; few rows separately, if this CPU has a kernel for one row.
pub(crate) fn panels_or_few_rows<T: PanelWeights + OneRowWeights>(
    rows: &DenseRows<T::VecDotType>,
) -> Prepared<T> {
    let few_rows = FewRows::worth_while(rows).map(Prepared::FewRows);
    few_rows.unwrap_or_else(|| panels(rows))
}

impl<T: GgmlType> Prepared<T> {
    /// The form that every format and CPU supports.
    pub(crate) fn blocks(rows: &DenseRows<T::VecDotType>) -> Self {
        Self::Blocks {
            len: rows.len,
            blocks: rows.blocks(),
        }
    }

    /// The products of rows of weights with the activation rows `ys`: those of row `ys.start + c` begin at `dst[c * stride]`, and `stride`
    /// is [`panel_rows`](Self::panel_rows), or the rows of weights where there is none.
    ///
    /// # Panics
    /// When `xs` is no whole number of rows or more than a panel has, or `ys` or `dst` do not fit.
    pub(crate) fn multiply(&self, xs: &[T], ys: Range<usize>, dst: &mut [f32]) {
        match self {
            Self::Panels(panels) => panels.multiply(xs, ys, dst),
            Self::FewRows(few_rows) => few_rows.multiply(xs, ys, dst),
            Self::Blocks { len, blocks } => {
                let row = len / T::VecDotType::BLCK_SIZE;
                T::vec_dot_tile(*len, xs, &blocks[ys.start * row..ys.end * row], dst)
            }
        }
    }

    /// Rows of weights of a panel.
    pub(crate) fn panel_rows(&self) -> Option<usize> {
        match self {
            Self::Panels(panels) => Some(panels.panel_rows()),
            Self::FewRows(_) | Self::Blocks { .. } => None,
        }
    }
}
