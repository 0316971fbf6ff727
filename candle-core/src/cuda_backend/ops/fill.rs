//! Sets elements to a constant, in place.

use crate::backend::BackendStorage;
use crate::cuda_backend::elem::bits_type;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::views::Walk;
use crate::cuda_backend::CudaStorage;
use crate::scalar::Scalar;
use crate::{Error, Layout, Result};

/// The constant's bits.
fn bits(value: Scalar) -> u64 {
    match value {
        Scalar::U8(v) => v.into(),
        Scalar::U32(v) => v.into(),
        Scalar::I16(v) => v as u64,
        Scalar::I32(v) => v as u64,
        Scalar::I64(v) => v as u64,
        Scalar::BF16(v) => v.to_bits().into(),
        Scalar::F16(v) => v.to_bits().into(),
        Scalar::F32(v) => v.to_bits().into(),
        Scalar::F64(v) => v.to_bits(),
        Scalar::F8E4M3(v) => v.to_bits().into(),
    }
}

/// Sets every element of `layout`.
pub(in crate::cuda_backend) fn const_set(
    dst: &mut CudaStorage,
    value: Scalar,
    layout: &Layout,
) -> Result<()> {
    if value.dtype() != dst.dtype() {
        return Err(Error::UnexpectedDType {
            msg: "const_set: the value's dtype differs from the tensor's",
            expected: dst.dtype(),
            got: value.dtype(),
        }
        .bt());
    }
    let walk = Walk::new([layout])?;
    let kernel = Kernel::new(source!("fill"))
        .define("BITS", bits_type(dst.dtype().size_in_bytes()))
        .define("RANK", walk.rank)
        .define("INDEX", walk.index());
    let args = Args::new()
        .storage(dst)
        .value(walk.views)
        .value(bits(value));
    dst.device()
        .launch(&kernel, Grid::of_threads(walk.len()), args)
}
