//! Properties of cards, queried without opening them.

use cudarc::driver::{result as driver, sys};

use super::error::{CudaError, During, WrapErr};
use super::libraries::Library;
use crate::Result;

/// The properties of a card.
#[derive(Debug, Clone)]
pub struct CardReport {
    /// Its name, as in `nvidia-smi`.
    pub name: String,
    /// Its compute capability.
    pub capability: (i32, i32),
    /// Number of multiprocessors.
    pub multiprocessors: usize,
    /// Size of the memory in bytes.
    pub memory: usize,
    /// Size of the L2 cache in bytes.
    pub cache: usize,
    /// The newest CUDA version that the driver supports, such as 13000 for 13.0.
    pub driver_version: i32,
}

/// Lists all cards that the driver reports, in the order of their ordinals. No card is opened.
///
/// # Errors
/// If the driver is not installed ([`CudaError::MissingLibrary`]), or does not start.
pub fn cards() -> Result<Vec<CardReport>> {
    (0..count()?).map(report).collect()
}

/// Number of cards that the driver reports.
pub(super) fn count() -> Result<usize> {
    Library::Driver.open()?;
    driver::init().during(|| "initializing the driver".into())?;
    Ok(driver::device::get_count().w()? as usize)
}

/// The properties of the card with this ordinal. The driver has to be initialised.
pub(super) fn report(ordinal: usize) -> Result<CardReport> {
    use sys::CUdevice_attribute_enum as Attribute;
    let number =
        i32::try_from(ordinal).map_err(|_| CudaError::InternalError("ordinals are i32"))?;
    let card = driver::device::get(number).w()?;
    // SAFETY: the driver just returned the handle.
    let ask = |attribute| unsafe { driver::device::get_attribute(card, attribute) }.w();
    let mut driver_version = 0;
    // SAFETY: the pointer is to a number.
    unsafe { sys::cuDriverGetVersion(&mut driver_version) }
        .result()
        .w()?;
    Ok(CardReport {
        name: driver::device::get_name(card).w()?,
        capability: (
            ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        // SAFETY: as above.
        memory: unsafe { driver::device::total_mem(card) }.w()?,
        cache: ask(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        driver_version,
    })
}
