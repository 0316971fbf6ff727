//! Selection by a condition.

use crate::backend::BackendStorage;
use crate::cuda_backend::elem::bits_type;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::views::Walk;
use crate::cuda_backend::CudaStorage;
use crate::{Layout, Result};

pub(in crate::cuda_backend) fn where_cond(
    cond: &CudaStorage,
    cond_l: &Layout,
    on_true: &CudaStorage,
    true_l: &Layout,
    on_false: &CudaStorage,
    false_l: &Layout,
) -> Result<CudaStorage> {
    const OP: &str = "where_cond";
    let device = cond.device();
    let dtype = on_true.dtype();
    if !cond.dtype().is_int() {
        let hint = "conditions must be integers: compare first";
        return Err(device.unsupported(OP, cond.dtype(), hint));
    }
    let walk = Walk::new([cond_l, true_l, false_l])?;
    let dst = device.new_storage(walk.len(), dtype, OP)?;
    let kernel = Kernel::new(source!("where"))
        .define("COND", device.c_type(cond.dtype(), OP)?)
        .define("BITS", bits_type(dtype.size_in_bytes()))
        .define("RANK", walk.rank)
        .define("INDEX", walk.index());
    let args = Args::new()
        .storage(cond)
        .storage(on_true)
        .storage(on_false)
        .storage(&dst)
        .value(walk.views);
    device.launch(&kernel, Grid::of_threads(walk.len()), args)?;
    Ok(dst)
}
