//! Reports of kernels: four words that the host reads back with every result. The first is a code, or 0.

use crate::{fault_codes, Result};

/// Size of the status in bytes: the code, the index, the size.
pub(super) const STATUS_BYTES: u64 = 16;

/// The report as an error.
pub(super) fn check([code, index, size]: [u32; 3]) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(fault_codes::error(
            code,
            index as usize,
            size as usize,
            "a GPU",
        )),
    }
}
