//! Reports of GPU kernels about their data: an index out of range, an integer divided by zero. A report is a code, an index and a size.
//! Each backend decides where a kernel writes it and when the host reads it.

use crate::Error;

/// Rows times matrices that are chosen by index.
pub(crate) const EXPERT_ROWS: &str = "expert-rows";

/// Ops whose kernels check indices; a kernel reports the op's index in this list plus one.
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

/// The code for an integer division by zero; not an index in [`INDEX_OPS`].
pub(crate) const DIVISION_BY_ZERO: u32 = 100;

/// The code that kernels of `op` report. `op` has to be in [`INDEX_OPS`].
pub(crate) fn code(op: &str) -> u32 {
    let place = INDEX_OPS.iter().position(|name| *name == op);
    debug_assert!(place.is_some(), "{op} is not in INDEX_OPS");
    place.map_or(0, |place| place as u32 + 1)
}

/// The error for a report, whose code is not 0. The message calls the device `device`.
pub(crate) fn error(code: u32, index: usize, size: usize, device: &str) -> Error {
    if code == DIVISION_BY_ZERO {
        return Error::Msg(format!("div: integer division by zero on {device}")).bt();
    }
    let place = (code as usize).saturating_sub(1).min(INDEX_OPS.len() - 1);
    Error::InvalidIndex {
        op: INDEX_OPS[place],
        index,
        size,
    }
    .bt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_the_error_of_its_op() {
        for op in INDEX_OPS {
            let error = error(code(op), 7, 5, "a GPU").to_string();
            assert!(error.contains(op) && error.contains('7'), "{error}");
            assert_ne!(code(op), DIVISION_BY_ZERO);
        }
        let error = error(DIVISION_BY_ZERO, 0, 0, "a GPU").to_string();
        assert!(error.contains("division by zero on a GPU"), "{error}");
    }
}
