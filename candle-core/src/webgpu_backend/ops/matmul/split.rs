//! Products whose operands or result exceed one binding: the result is computed in blocks of rows and columns, each from windows of both
//! operands; if `k` is too long for that, or for an invocation, from sums over parts of it.

use crate::backend::BackendStorage;
use crate::webgpu_backend::ops::copy2d::{copy2d, Rows};
use crate::webgpu_backend::ops::elementwise;
use crate::webgpu_backend::ops::reduce::accumulator;
use crate::webgpu_backend::ops::windows::{halves, window_bytes, Operand, Split};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result, Shape};

/// Like [`super::product`].
pub(super) fn product(
    lhs: Operand<'_>,
    rhs: Operand<'_>,
    bmnk: (usize, usize, usize, usize),
    to: DType,
) -> Result<WebGpuStorage> {
    let (b, m, n, k) = bmnk;
    let device = lhs.0.device();
    let batch = lhs.1.dims().len() - 2;
    // The extent of one row of lhs or one column of rhs.
    let span = |(storage, layout): Operand<'_>, dim: usize| {
        if storage.fits_binding() {
            0
        } else {
            ((k - 1) * layout.stride()[dim] + 1) * storage.dtype().size_in_bytes()
        }
    };
    let longest = span(lhs, batch + 1).max(span(rhs, batch));
    let elem = device.elem(lhs.0.dtype(), "matmul")?;
    let many = k > super::longest_k(elem, b * m * n, device);
    if (longest > window_bytes(device) || many) && k > 1 {
        return over_k(lhs, rhs, bmnk, to);
    }

    // Both operands over (batch.., m, n), followed by k.
    let over = |layout: &Layout, m_step: usize, n_step: usize, k_step: usize| {
        let (dims, stride) = (&layout.dims()[..batch], &layout.stride()[..batch]);
        Layout::new(
            Shape::from([dims, &[m, n, k]].concat()),
            [stride, &[m_step, n_step, k_step]].concat(),
            layout.start_offset(),
        )
    };
    let (lhs_steps, rhs_steps) = (&lhs.1.stride()[batch..], &rhs.1.stride()[batch..]);
    let lhs_l = over(lhs.1, lhs_steps[0], 0, lhs_steps[1]);
    let rhs_l = over(rhs.1, 0, rhs_steps[1], rhs_steps[0]);
    let dst = device.alloc(b * m * n, to, "matmul")?;
    let split = Split {
        op: "matmul",
        dims: &lhs_l.dims()[..batch + 2],
        unit: 1,
        // A part may be computed in f32 first.
        bytes: to.size_in_bytes().max(4),
        inputs: [(lhs.0, &lhs_l), (rhs.0, &rhs_l)],
        anywhere: false,
    };
    split.run(&dst, 0, &mut |part| {
        let [(lhs, lhs_l), (rhs, rhs_l)] = &part.inputs;
        let [dims @ .., m, n] = &part.dims[..] else {
            return Ok(());
        };
        // Back to matrices: lhs has stride 0 over n, and rhs over m.
        let matrix = |layout: &Layout, order: [usize; 2], shape: [usize; 2]| {
            let steps = order.map(|dim| layout.stride()[batch + dim]);
            Layout::new(
                Shape::from([dims, &shape].concat()),
                [&layout.stride()[..batch], &steps].concat(),
                layout.start_offset(),
            )
        };
        let lhs_l = matrix(lhs_l, [0, 2], [*m, k]);
        let rhs_l = matrix(rhs_l, [2, 1], [k, *n]);
        let bmnk = (dims.iter().product(), *m, *n, k);
        let made = super::product(lhs, rhs, bmnk, &lhs_l, &rhs_l, to)?;
        copy2d(
            &made,
            &mut part.dst.share(),
            Rows::range(made.len(), 0, part.offset),
        )
    })?;
    Ok(dst)
}

/// The sum of the products over both halves of `k`, in the dtype of sums.
fn over_k(
    (lhs, lhs_l): Operand<'_>,
    (rhs, rhs_l): Operand<'_>,
    (b, m, n, k): (usize, usize, usize, usize),
    to: DType,
) -> Result<WebGpuStorage> {
    let batch = lhs_l.dims().len() - 2;
    let sums = accumulator(lhs.dtype());
    let part = |half: usize| -> Result<_> {
        let lhs_l = &halves(lhs_l, batch + 1)?[half];
        let rhs_l = &halves(rhs_l, batch)?[half];
        let bmnk = (b, m, n, lhs_l.dims()[batch + 1]);
        super::product(lhs, rhs, bmnk, lhs_l, rhs_l, sums)
    };
    debug_assert!(k > 1);
    let all = Layout::contiguous(b * m * n);
    let sum = elementwise::binary(&part(0)?, &part(1)?, &all, &all, "add")?;
    if to == sums {
        Ok(sum)
    } else {
        elementwise::to_dtype(&sum, &all, to)
    }
}
