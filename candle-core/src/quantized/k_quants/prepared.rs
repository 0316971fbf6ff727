//! The dense side of a product, prepared for the fastest kernel for its number of rows.

use std::ops::Range;

use super::activations::Activations;
use super::level::dispatch;
use super::one_row::{FewRows, OneRowWeights};
use super::panels::{PanelWeights, Panels};
use super::products::{BlockTile, Unpack, Weights};
use super::GgmlType;
use crate::cpu::threads;

/// Elements per task when rows are encoded to blocks: some microseconds of work.
const CONVERTED: usize = 4096;

/// Rows of floats that are encoded to blocks on demand.
pub struct DenseRows<'a> {
    count: usize,
    /// Elements of a row.
    len: usize,
    /// Writes the elements of these rows.
    floats: &'a (dyn Fn(Range<usize>, &mut [f32]) + Sync),
}

impl<'a> DenseRows<'a> {
    /// `count` rows of `len` elements; `floats` writes those of some of them.
    pub(crate) fn new(
        count: usize,
        len: usize,
        floats: &'a (dyn Fn(Range<usize>, &mut [f32]) + Sync),
    ) -> Self {
        Self { count, len, floats }
    }

    /// Rows.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Elements of a row.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The elements of these rows.
    fn floats(&self, rows: Range<usize>) -> Vec<f32> {
        let mut floats = vec![0f32; rows.len() * self.len];
        (self.floats)(rows, &mut floats);
        floats
    }

    /// The blocks of these rows, on this thread.
    pub(crate) fn activations<V: Activations>(&self, rows: Range<usize>) -> Vec<V> {
        let mut blocks = vec![V::zeros(); rows.len() * (self.len / V::LEN)];
        V::encode(&self.floats(rows), &mut blocks);
        blocks
    }

    /// Blocks of all rows, `per_row` of each, on several threads if that is faster.
    fn all<V: Clone + Send>(
        &self,
        zero: V,
        per_row: usize,
        encode: impl Fn(&[f32], &mut [V]) + Sync,
    ) -> Vec<V> {
        let mut blocks = vec![zero; self.count * per_row];
        let rows = CONVERTED.div_ceil(self.len.max(1));
        threads::chunks_mut(&mut blocks, rows * per_row, |i, blocks| {
            let rows = i * rows..self.count.min((i + 1) * rows);
            encode(&self.floats(rows), blocks)
        });
        blocks
    }
}

/// Rows of activations in a private form, for products with rows of weights `T`.
pub trait RowProducts<T>: Send + Sync {
    /// [`Prepared::multiply`].
    fn multiply(&self, xs: &[T], ys: Range<usize>, dst: &mut [f32]);

    /// [`Prepared::panel_rows`].
    fn panel_rows(&self) -> Option<usize> {
        None
    }
}

/// Rows of activations prepared for products with rows of weights `T`.
pub enum Prepared<T: GgmlType> {
    /// Prepared for a kernel of this format.
    Own(Box<dyn RowProducts<T>>),
    /// Prepared for [`GgmlType::vec_dot_tile`].
    Blocks {
        /// Elements of a row.
        len: usize,
        blocks: Vec<T::VecDotType>,
    },
}

/// Each row as blocks for [`BlockTile`], which runs on any CPU.
struct Rows<V> {
    /// Elements of a row.
    len: usize,
    blocks: Vec<V>,
}

impl<T: Weights<V>, V: Activations> RowProducts<T> for Rows<V> {
    fn multiply(&self, xs: &[T], ys: Range<usize>, dst: &mut [f32]) {
        let row = self.len / V::LEN;
        let ys = &self.blocks[ys.start * row..ys.end * row];
        dispatch(BlockTile::new(self.len, xs, ys, dst))
    }
}

/// The form for formats without further kernels.
pub(crate) fn rows<T: Weights<<T as Unpack>::Activations>>(rows: &DenseRows) -> Prepared<T> {
    let (len, per_row) = (rows.len, rows.len / T::Activations::LEN);
    let blocks = rows.all(T::Activations::zeros(), per_row, T::Activations::encode);
    Prepared::Own(Box::new(Rows { len, blocks }))
}

/// The form for formats without a kernel for one row: panels, if this CPU has them and there are enough rows.
pub(crate) fn panels<T: PanelWeights>(dense: &DenseRows) -> Prepared<T> {
    match Panels::<T>::worth_while(dense) {
        Some(panels) => Prepared::Own(Box::new(panels)),
        None => rows(dense),
    }
}

/// Like [`panels`]; prepares few rows separately, if this CPU has a kernel for one row.
pub(crate) fn panels_or_few_rows<T: PanelWeights + OneRowWeights>(
    dense: &DenseRows,
) -> Prepared<T> {
    match FewRows::<T>::worth_while(dense) {
        Some(few_rows) => Prepared::Own(Box::new(few_rows)),
        None => panels(dense),
    }
}

impl<T: GgmlType> Prepared<T> {
    /// The form that every format and CPU supports.
    pub(crate) fn blocks(rows: &DenseRows) -> Self {
        let encode = if T::VecDotType::DIRECT_COPY {
            T::VecDotType::direct_copy
        } else {
            T::VecDotType::from_float
        };
        let per_row = rows.len / T::VecDotType::BLCK_SIZE;
        Self::Blocks {
            len: rows.len,
            blocks: rows.all(T::VecDotType::zeros(), per_row, encode),
        }
    }

    /// The products of rows of weights with the activation rows `ys`: those of row `ys.start + c` begin at `dst[c * stride]`, where
    /// `stride` is [`panel_rows`](Self::panel_rows), or the number of rows of weights if that is `None`.
    ///
    /// # Panics
    /// If `xs` is not a whole number of rows or has more than a panel, or the sizes of `ys` or `dst` do not match.
    pub(crate) fn multiply(&self, xs: &[T], ys: Range<usize>, dst: &mut [f32]) {
        match self {
            Self::Own(own) => own.multiply(xs, ys, dst),
            Self::Blocks { len, blocks } => {
                let row = len / T::VecDotType::BLCK_SIZE;
                T::vec_dot_tile(*len, xs, &blocks[ys.start * row..ys.end * row], dst)
            }
        }
    }

    /// Rows of weights of a panel.
    pub(crate) fn panel_rows(&self) -> Option<usize> {
        match self {
            Self::Own(own) => own.panel_rows(),
            Self::Blocks { .. } => None,
        }
    }
}
