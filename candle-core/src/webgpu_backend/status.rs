//! What kernels report: four words that the host reads back with every result. The first is what happened, or 0.

use crate::{Error, Result};

/// Bytes of the status: what happened, the index, the size.
pub(super) const STATUS_BYTES: u64 = 16;

/// Ops whose kernels check indexes; a kernel reports the op's place in this list plus one.
const INDEX_OPS: [&str; 8] = [
    "gather",
    "scatter",
    "scatter-add",
    "index-select",
    "index-add",
    "quantized embedding",
    "rope-append",
    EXPERT_ROWS,
];

/// Rows times matrices that are chosen by index.
pub(super) const EXPERT_ROWS: &str = "expert-rows";

/// What a kernel reports where a number is divided by integer zero; not a place in [`INDEX_OPS`].
pub(super) const DIVISION_BY_ZERO: u32 = 100;

/// What the kernels of `op` report.
pub(super) fn number(op: &str) -> u32 {
    let place = INDEX_OPS.iter().position(|name| *name == op);
    debug_assert!(place.is_some(), "{op} is not in INDEX_OPS");
    place.map_or(0, |place| place as u32 + 1)
}

/// What was reported, as an error.
pub(super) fn check([code, index, size]: [u32; 3]) -> Result<()> {
    match code {
        0 => Ok(()),
        DIVISION_BY_ZERO => Err(Error::Msg("div: integer division by zero on a GPU".into()).bt()),
        code => Err(Error::InvalidIndex {
            op: INDEX_OPS[(code as usize - 1).min(INDEX_OPS.len() - 1)],
            index: index as usize,
            size: size as usize,
        }
        .bt()),
    }
}
