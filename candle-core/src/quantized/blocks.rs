//! Rows of blocks: owned, or borrowed from the bytes of a file.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use half::f16;

use super::matmul::{matmul, matmul_f16};
use super::{GgmlDType, GgmlType, QuantizedType};
use crate::cpu::threads;
use crate::{CpuStorage, Error, Result};

/// Elements per task when blocks are converted to or from floats.
const ELEMENTS_PER_TASK: usize = 1 << 16;

/// Blocks over bytes of another owner: a vector of bytes, or a mapped file.
pub(super) struct ByteBlocks<T> {
    bytes: Bytes,
    /// The owned copy, created by the first change.
    changed: Option<Vec<T>>,
}

/// Bytes that are kept alive by their owner.
#[derive(Clone)]
pub(super) struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl Bytes {
    /// The part `range` of the owner's bytes. `None` if the owner has fewer.
    pub(super) fn new(
        owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
        range: Range<usize>,
    ) -> Option<Self> {
        (*owner).as_ref().get(range.clone())?;
        Some(Self { owner, range })
    }

    fn as_slice(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self {
            owner: Arc::new(bytes),
            range,
        }
    }
}

impl<T: GgmlType + bytemuck::Pod> AsRef<[T]> for ByteBlocks<T> {
    fn as_ref(&self) -> &[T] {
        match &self.changed {
            Some(blocks) => blocks,
            None => bytemuck::cast_slice(self.bytes.as_slice()),
        }
    }
}

impl<T: GgmlType + bytemuck::Pod> AsMut<[T]> for ByteBlocks<T> {
    fn as_mut(&mut self) -> &mut [T] {
        let bytes = &self.bytes;
        self.changed
            .get_or_insert_with(|| bytemuck::cast_slice(bytes.as_slice()).to_vec())
    }
}

/// `count` blocks of zeros.
pub(super) fn zeros<T: GgmlType + 'static>(count: usize) -> Box<dyn QuantizedType> {
    Box::new(vec![T::zeros(); count])
}

/// Blocks from bytes; uses them in place if they are owned and aligned.
pub(super) fn from_bytes<T: GgmlType + bytemuck::Pod>(
    data: Cow<'_, [u8]>,
) -> Box<dyn QuantizedType> {
    match data {
        Cow::Owned(bytes) => from_shared::<T>(Bytes::from(bytes)),
        Cow::Borrowed(bytes) => Box::new(copied::<T>(bytes)),
    }
}

/// Blocks from bytes that another value keeps alive; copied only if they are not aligned.
pub(super) fn from_shared<T: GgmlType + bytemuck::Pod>(mut bytes: Bytes) -> Box<dyn QuantizedType> {
    let len = bytes.range.len();
    bytes.range.end -= len % size_of::<T>();
    match bytemuck::try_cast_slice::<u8, T>(bytes.as_slice()) {
        Ok(_) => Box::new(ByteBlocks::<T> {
            bytes,
            changed: None,
        }),
        Err(_) => Box::new(copied::<T>(bytes.as_slice())),
    }
}

/// The whole blocks in `bytes`, which need not be aligned.
fn copied<T: GgmlType + bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    let count = bytes.len() / size_of::<T>();
    let mut blocks = vec![T::zeroed(); count];
    bytemuck::cast_slice_mut(&mut blocks).copy_from_slice(&bytes[..count * size_of::<T>()]);
    blocks
}

/// Implements [`QuantizedType`] for every container of blocks.
macro_rules! quantized_type {
    ([$($generics:tt)*] $holder:ty) => {
        impl<$($generics)*> QuantizedType for $holder {
            fn dtype(&self) -> GgmlDType {
                T::DTYPE
            }

            fn matmul_t(
                &self,
                mkn: (usize, usize, usize),
                lhs: &[f32],
                dst: &mut [f32],
            ) -> Result<()> {
                matmul(mkn, lhs, self.as_ref(), dst)
            }

            fn matmul_t_f16(
                &self,
                mkn: (usize, usize, usize),
                lhs: &[f16],
                dst: &mut [f16],
            ) -> Result<()> {
                matmul_f16(mkn, lhs, self.as_ref(), dst)
            }

            fn matmul_t_from(
                &self,
                first_row: usize,
                mkn: (usize, usize, usize),
                lhs: &[f32],
                dst: &mut [f32],
            ) -> Result<()> {
                let blocks: &[T] = self.as_ref();
                let start = first_row.saturating_mul(mkn.1 / T::BLCK_SIZE);
                matmul(mkn, lhs, blocks.get(start..).unwrap_or(&[]), dst)
            }

            fn embedding(&self, ids: &[u32], rows: usize, hidden: usize) -> Result<CpuStorage> {
                embedding::<T>(self.as_ref(), ids, rows, hidden)
            }

            fn dequantize(&self, elem_count: usize) -> Result<CpuStorage> {
                dequantize::<T>(self.as_ref(), elem_count)
            }

            fn storage_size_in_bytes(&self) -> usize {
                size_of_val::<[T]>(self.as_ref())
            }

            fn as_ptr(&self) -> *const u8 {
                let blocks: &[T] = self.as_ref();
                blocks.as_ptr().cast()
            }

            fn block_size(&self) -> usize {
                T::BLCK_SIZE
            }

            fn from_float(&mut self, xs: &[f32]) {
                encode(xs, self.as_mut(), T::from_float);
            }

            fn from_float_as_ggml(&mut self, xs: &[f32]) {
                encode(xs, self.as_mut(), T::from_float_as_ggml);
            }

            fn from_float_imatrix(
                &mut self,
                xs: &[f32],
                imatrix_weights: &[f32],
                n_per_row: usize,
            ) {
                let row_blocks = n_per_row / T::BLCK_SIZE;
                if row_blocks == 0 {
                    return;
                }
                let rows = ELEMENTS_PER_TASK.div_ceil(n_per_row);
                let (elements, blocks) = (rows * n_per_row, rows * row_blocks);
                let ys: &mut [T] = self.as_mut();
                threads::zip_chunks(xs, elements, ys, blocks, |xs, ys| {
                    T::from_float_imatrix(xs, ys, imatrix_weights, n_per_row)
                });
            }

            fn size(&self) -> usize {
                self.storage_size_in_bytes()
            }
        }
    };
}

quantized_type!([T: GgmlType + Send + Sync] Vec<T>);
quantized_type!([T: GgmlType + bytemuck::Pod] ByteBlocks<T>);

/// Encodes without an importance matrix, so rows do not matter: a task can have any number of blocks.
fn encode<T: GgmlType + Send>(xs: &[f32], ys: &mut [T], encode: fn(&[f32], &mut [T])) {
    let blocks = (ELEMENTS_PER_TASK / T::BLCK_SIZE).max(1);
    threads::zip_chunks(xs, blocks * T::BLCK_SIZE, ys, blocks, encode);
}

fn dequantize<T: GgmlType>(blocks: &[T], elem_count: usize) -> Result<CpuStorage> {
    let held = blocks.len() * T::BLCK_SIZE;
    if elem_count > held || !elem_count.is_multiple_of(T::BLCK_SIZE) {
        return Err(Error::Msg(format!(
            "dequantize {:?}: requested {elem_count} elements, but the blocks of {} hold {held}",
            T::DTYPE,
            T::BLCK_SIZE
        ))
        .bt());
    }
    let mut ys = vec![0f32; elem_count];
    let per_task = (ELEMENTS_PER_TASK / T::BLCK_SIZE).max(1);
    let blocks = &blocks[..elem_count / T::BLCK_SIZE];
    threads::zip_chunks(
        blocks,
        per_task,
        &mut ys,
        per_task * T::BLCK_SIZE,
        T::to_float,
    );
    Ok(CpuStorage::F32(ys))
}

fn embedding<T: GgmlType>(
    blocks: &[T],
    ids: &[u32],
    rows: usize,
    hidden: usize,
) -> Result<CpuStorage> {
    const OP: &str = "quantized embedding";
    let row_blocks = hidden / T::BLCK_SIZE;
    if !hidden.is_multiple_of(T::BLCK_SIZE)
        || rows
            .checked_mul(row_blocks)
            .is_none_or(|needed| needed > blocks.len())
    {
        return Err(Error::Msg(format!(
            "{OP}: a table of {rows} rows of {hidden} elements does not fit {} blocks of {} ({:?})",
            blocks.len(),
            T::BLCK_SIZE,
            T::DTYPE
        ))
        .bt());
    }
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= rows) {
        return Err(Error::InvalidIndex {
            op: OP,
            index: id as usize,
            size: rows,
        }
        .bt());
    }
    let mut ys = vec![0f32; ids.len() * hidden];
    if hidden > 0 {
        let rows_per_task = ELEMENTS_PER_TASK.div_ceil(hidden);
        let elements = rows_per_task * hidden;
        threads::zip_chunks(ids, rows_per_task, &mut ys, elements, |ids, ys| {
            for (&id, ys) in ids.iter().zip(ys.chunks_mut(hidden)) {
                let start = id as usize * row_blocks;
                T::to_float(&blocks[start..start + row_blocks], ys)
            }
        });
    }
    Ok(CpuStorage::F32(ys))
}
