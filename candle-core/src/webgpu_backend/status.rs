//! What kernels report: four words that the host reads back with every result. The first is what happened, or 0.

use crate::{fault_codes, Result};

/// Bytes of the status: what happened, the index, the size.
pub(super) const STATUS_BYTES: u64 = 16;

/// What was reported, as an error.
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
