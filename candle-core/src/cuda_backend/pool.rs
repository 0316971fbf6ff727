//! The driver's pool of a card's memory.

use cudarc::driver::{result as driver, sys, CudaContext};

use super::error::WrapErr;
use crate::Result;

/// The pool of all allocations.
pub(super) fn pool(context: &CudaContext) -> Result<sys::CUmemoryPool> {
    // SAFETY: the device is open.
    unsafe { driver::device::get_default_mem_pool(context.cu_device()) }.w()
}

/// Makes the driver's pool keep freed memory: by default it is returned whenever the host waits, and has to be allocated again.
pub(super) fn keep_freed_memory(context: &CudaContext) -> Result<()> {
    if !context.has_async_alloc() {
        return Ok(());
    }
    use sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let mut all = u64::MAX;
    let pool = pool(context)?;
    // SAFETY: the pool belongs to the card; the attribute is a u64.
    unsafe {
        driver::mem_pool::set_attribute(
            pool,
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
            (&raw mut all).cast(),
        )
    }
    .w()
}

/// Bytes of the pool that are in use, and their maximum; 0 if the driver does not report them.
pub(super) fn used(context: &CudaContext) -> (u64, u64) {
    use sys::CUmemPool_attribute_enum as Attribute;
    let of_pool = |attribute| {
        let mut bytes = 0u64;
        let pool = pool(context).ok()?;
        // SAFETY: the pool belongs to the card, which stays open; the attribute is a u64.
        unsafe {
            driver::mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast()).ok()?;
        }
        Some(bytes)
    };
    (
        of_pool(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT).unwrap_or(0),
        of_pool(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH).unwrap_or(0),
    )
}
