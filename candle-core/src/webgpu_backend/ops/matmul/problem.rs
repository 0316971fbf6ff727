//! The shapes and the strides of one product, in the form that kernels need.

use super::super::{index, Views};
use crate::webgpu_backend::kernel::params;
use crate::{Layout, Result, Shape};

params!(MatmulParams {
    dims: Dims,
    lhs_stride: Dims,
    rhs_stride: Dims,
    lhs_offset: u32,
    rhs_offset: u32,
    batch: u32,
    m: u32,
    n: u32,
    k: u32,
    lhs_row: u32,
    lhs_col: u32,
    rhs_row: u32,
    rhs_col: u32,
    dst_row: u32,
    dst_first: u32,
    // Elements of the result.
    len: u32,
    // Number of parts of `k`, and their length.
    splits: u32,
    chunk: u32,
    alpha_offset: u32,
    bias_offset: u32,
    residual_offset: u32,
    residual_row: u32,
    eps: f32,
    factor: f32,
    // Ids of the matrices of a stack that multiply the rows.
    ids_offset: u32,
    size: u32,
    op: u32,
    // Channels of planes, which have a bias each.
    channels: u32,
    // Location of rhs in the input of a convolution.
    src_channel: u32,
    src_row: u32,
    src_col: u32,
    i_h: u32,
    i_w: u32,
    k_h: u32,
    k_w: u32,
    o_w: u32,
    start_h: u32,
    start_w: u32,
    stride_h: u32,
    stride_w: u32,
    dilation_h: u32,
    dilation_w: u32,
});

/// The access pattern of a kernel to one operand, as a matrix of `outer` rows (of lhs) or columns (of rhs) by `k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Access {
    /// Element by element, through any strides.
    Strided,
    /// The inner dimension is contiguous, in aligned groups.
    Inner,
    /// The outer dimension is contiguous, in aligned groups.
    Outer,
}

/// One product, after batch dimensions that are equivalent to rows were folded into `m`.
#[derive(Clone)]
pub(in super::super) struct Problem {
    pub(super) batch: usize,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) views: Views<2>,
    /// Strides of lhs over `m` and `k`.
    pub(super) lhs: (usize, usize),
    /// Strides of rhs over `n` and `k`.
    pub(super) rhs: (usize, usize),
    /// Columns of dst; the product writes `n` of them, from `dst_first` on. Columns past the last one are those of the next matrix of dst,
    /// which also has `m` rows; a product of a batch has none.
    pub(super) dst_row: usize,
    pub(super) dst_first: usize,
}

impl Problem {
    pub(in super::super) fn new(
        (batch, m, n, k): (usize, usize, usize, usize),
        lhs_l: &Layout,
        rhs_l: &Layout,
    ) -> Result<Self> {
        let batch_layout = |l: &Layout| {
            let rank = l.dims().len() - 2;
            let (dims, stride) = (&l.dims()[..rank], &l.stride()[..rank]);
            Layout::new(Shape::from(dims), stride.to_vec(), l.start_offset())
        };
        let last_two = |l: &Layout| {
            let rank = l.stride().len();
            (l.stride()[rank - 2], l.stride()[rank - 1])
        };
        let (lhs, (rhs_k, rhs_n)) = (last_two(lhs_l), last_two(rhs_l));
        let mut problem = Self {
            batch,
            m,
            n,
            k,
            views: Views::new([&batch_layout(lhs_l), &batch_layout(rhs_l)])?,
            lhs,
            rhs: (rhs_n, rhs_k),
            dst_row: n,
            dst_first: 0,
        };
        problem.fold_batch();
        Ok(problem)
    }

    /// Folds a batch in which rhs has stride 0 and lhs the stride of a whole matrix into the rows.
    fn fold_batch(&mut self) {
        let views = &self.views;
        let one = views.rank == 1 && views.strides[1][0] == 0;
        if one && views.strides[0][0] as usize == self.m * self.lhs.0 {
            self.m *= self.batch;
            self.batch = 1;
            self.views.rank = 0;
            self.views.strides = [[0; 8]; 2];
        }
    }

    /// Whether all offsets of an operand at which a group of `width` elements may start are multiples of `width`.
    fn aligned(&self, operand: usize, outer_step: usize, width: usize) -> bool {
        let views = &self.views;
        // Unused strides are 0. The rank does not show which: it is also 0 for a batch whose matrices start one element apart.
        let steps = views.strides[operand];
        (views.offsets[operand] as usize).is_multiple_of(width)
            && outer_step.is_multiple_of(width)
            && steps.iter().all(|s| (*s as usize).is_multiple_of(width))
    }

    /// The access pattern to operand 0 (lhs) or 1 (rhs) in groups of `width`.
    pub(super) fn access(&self, operand: usize, width: usize) -> Access {
        let ((outer_step, inner_step), outer) = match operand {
            0 => (self.lhs, self.m),
            _ => (self.rhs, self.n),
        };
        if inner_step == 1
            && self.k.is_multiple_of(width)
            && self.aligned(operand, outer_step, width)
        {
            Access::Inner
        } else if outer_step == 1
            && outer.is_multiple_of(width)
            && self.aligned(operand, inner_step, width)
        {
            Access::Outer
        } else {
            Access::Strided
        }
    }

    pub(super) fn params(&self) -> Result<MatmulParams> {
        Ok(MatmulParams {
            dims: self.views.dims,
            lhs_stride: self.views.strides[0],
            rhs_stride: self.views.strides[1],
            lhs_offset: self.views.offsets[0],
            rhs_offset: self.views.offsets[1],
            batch: index(self.batch)?,
            m: index(self.m)?,
            n: index(self.n)?,
            k: index(self.k)?,
            lhs_row: index(self.lhs.0)?,
            lhs_col: index(self.lhs.1)?,
            rhs_row: index(self.rhs.0)?,
            rhs_col: index(self.rhs.1)?,
            dst_row: index(self.dst_row)?,
            dst_first: index(self.dst_first)?,
            len: index(self.batch * self.m * self.n)?,
            splits: 1,
            chunk: index(self.k)?,
            ..bytemuck::Zeroable::zeroed()
        })
    }
}
