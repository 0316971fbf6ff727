//! Elementwise ops: one argument (functions, casts, copies), two (arithmetic, comparison), and `where`.

mod condition;
mod map;
mod zip;

pub(in crate::cuda_backend) use condition::where_cond;
pub(in crate::cuda_backend) use map::{affine, copy, copy_strided_src, elu, powf, to_dtype, unary};
pub(in crate::cuda_backend::ops) use map::{in_order, Ordered};
pub(in crate::cuda_backend) use zip::{binary, cmp};

use crate::cuda_backend::storage::CudaStorage;
use crate::cuda_backend::views::Walk;

/// The function in `kernels/functions.cu` for an op's name in a list.
fn function(list: &'static [(&'static str, &'static str)], name: &str) -> Option<&'static str> {
    let found = list.iter().find(|(op, _)| *op == name);
    found.map(|(_, function)| *function)
}

/// Declares a list of ops and their C++ functions.
macro_rules! functions {
    ($($name:literal),* $(,)?) => {
        &[$(($name, concat!("f_", $name))),*]
    };
}
use functions;

/// Number of elements that a thread loads at once: 16 bytes of the widest side, if the length of every contiguous run is a multiple of
/// that, and on every side a run begins at a multiple of it or is one element. The operands of `walk` come first.
fn lanes<const N: usize, const SIDES: usize>(
    walk: &Walk<N>,
    sides: [(&CudaStorage, u64); SIDES],
) -> usize {
    use crate::backend::BackendStorage;
    let size = |storage: &CudaStorage| storage.dtype().size_in_bytes();
    let widest = sides.iter().map(|(storage, _)| size(storage)).max();
    let lanes = 16 / widest.unwrap_or(16).max(1);
    let aligned = |(storage, offset): &(&CudaStorage, u64)| {
        (storage.address() + offset * size(storage) as u64)
            .is_multiple_of((lanes * size(storage)) as u64)
    };
    let fits = |(n, side)| n < N && walk.is_same_in_runs(n) || aligned(side);
    if walk.is_in_runs_of(lanes) && sides.iter().enumerate().all(fits) {
        lanes
    } else {
        1
    }
}
