//! Softmax and norms of rows that exceed a binding or are too long for a workgroup: composed of reductions and elementwise ops, which are
//! split. As in the kernels, all arithmetic is in f32, and rounded once.

use super::super::windows::{window_bytes, Operand};
use super::super::{elementwise, reduce, MOST_STEPS, WORKGROUP};
use super::{finish, Norm};
use crate::backend::BackendStorage;
use crate::op::ReduceOp;
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{DType, Layout, Result};

/// Maximum length of a row for one workgroup: an invocation iterates over its share three times, with loops over the lanes of words.
pub(super) const MOST_ROW: usize = MOST_STEPS / 4 * WORKGROUP as usize;

/// Whether a row of `len` elements, in any of these dtypes, exceeds a window, or the limit of a workgroup.
pub(super) fn is_long(device: &WebGpuDevice, len: usize, dtypes: [DType; 2]) -> bool {
    let bytes = dtypes.map(|dtype| len * dtype.size_in_bytes());
    len > MOST_ROW || bytes.into_iter().any(|bytes| bytes > window_bytes(device))
}

/// Contiguous rows in f32.
struct LongRows {
    storage: WebGpuStorage,
    offset: usize,
    rows: usize,
    len: usize,
}

impl LongRows {
    /// The rows of the last dimension.
    fn new((src, layout): Operand<'_>) -> Result<Self> {
        let len = layout.dims().last().copied().unwrap_or(1);
        let (storage, offset) = match src.dtype() {
            DType::F32 => elementwise::in_order((src, layout))?,
            _ => (elementwise::to_dtype(src, layout, DType::F32)?, 0),
        };
        Ok(Self {
            storage,
            offset,
            rows: layout.shape().elem_count() / len.max(1),
            len,
        })
    }

    fn layout(&self) -> Layout {
        Layout::contiguous_with_offset((self.rows, self.len), self.offset)
    }

    fn with(&self, storage: WebGpuStorage) -> Self {
        Self {
            storage,
            offset: 0,
            ..*self
        }
    }

    /// One number for each row.
    fn reduced(&self, op: ReduceOp) -> Result<WebGpuStorage> {
        let dst = self
            .storage
            .device()
            .alloc(self.rows, DType::F32, op.name())?;
        reduce::rows_into(&dst, op, (&self.storage, &self.layout()), 1)?;
        Ok(dst)
    }

    fn map(&self, name: &'static str) -> Result<Self> {
        let storage = elementwise::unary(&self.storage, &self.layout(), name)?;
        Ok(self.with(storage))
    }

    fn scaled(&self, factor: f32) -> Result<Self> {
        let storage = elementwise::affine(&self.storage, &self.layout(), factor.into(), 0.)?;
        Ok(self.with(storage))
    }

    /// Combines each row with its element of `rhs`.
    fn by_row(&self, name: &'static str, rhs: &WebGpuStorage) -> Result<Self> {
        self.zip(name, rhs, [1, 0])
    }

    /// Combines each row with a common row.
    fn by_column(&self, name: &'static str, (rhs, layout): Operand<'_>) -> Result<Self> {
        let wide = elementwise::to_dtype(rhs, layout, DType::F32)?;
        self.zip(name, &wide, [0, 1])
    }

    fn zip(&self, name: &'static str, rhs: &WebGpuStorage, strides: [usize; 2]) -> Result<Self> {
        let rhs_l = Layout::new((self.rows, self.len).into(), strides.to_vec(), 0);
        let storage = elementwise::binary(&self.storage, rhs, &self.layout(), &rhs_l, name)?;
        Ok(self.with(storage))
    }
}

/// Softmax of `softcap * tanh(scale * x / softcap)`, or of `scale * x` if `softcap` is 0.
pub(super) fn softmax(
    x: Operand<'_>,
    (scale, softcap): (f32, f32),
    dtype: DType,
) -> Result<WebGpuStorage> {
    let mut x = LongRows::new(x)?;
    if softcap != 0. {
        x = x.scaled(scale / softcap)?.map("tanh")?.scaled(softcap)?;
    } else if scale != 1. {
        x = x.scaled(scale)?;
    }
    let most = x.reduced(ReduceOp::Max)?;
    let exps = x.by_row("sub", &most)?.map("exp")?;
    let sums = exps.reduced(ReduceOp::Sum)?;
    finish(exps.by_row("div", &sums)?.storage, dtype)
}

/// A norm without a second input.
pub(super) fn norm(x: Operand<'_>, norm: Norm<'_>) -> Result<WebGpuStorage> {
    let dtype = x.0.dtype();
    let mut x = LongRows::new(x)?;
    let (per_row, part) = (Layout::contiguous(x.rows), 1. / x.len as f64);
    let mean =
        |sums: WebGpuStorage, add: f32| elementwise::affine(&sums, &per_row, part, add.into());
    if norm.centred {
        x = x.by_row("sub", &mean(x.reduced(ReduceOp::Sum)?, 0.)?)?;
    }
    let squares = mean(x.map("sqr")?.reduced(ReduceOp::Sum)?, norm.eps)?;
    let root = elementwise::unary(&squares, &per_row, "sqrt")?;
    let mut y = x.by_row("div", &root)?;
    if let Some(weight) = norm.weight {
        y = y.by_column("mul", weight)?;
    }
    if let Some(bias) = norm.bias {
        y = y.by_column("add", bias)?;
    }
    finish(y.storage, dtype)
}
