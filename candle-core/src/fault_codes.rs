//! What kernels of GPUs report of their data: an index out of range, an integer divided by zero. A report is a code, an index and a size;
//! where a kernel puts it and when the host looks there is each backend's own affair.

use crate::Error;

/// Rows times matrices that are chosen by index.
pub(crate) const EXPERT_ROWS: &str = "expert-rows";

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

/// What a kernel reports where a number is divided by integer zero; not a place in [`INDEX_OPS`].
pub(crate) const DIVISION_BY_ZERO: u32 = 100;

/// What the kernels of `op`, which has to be in [`INDEX_OPS`], report.
pub(crate) fn code(op: &str) -> u32 {
    let place = INDEX_OPS.iter().position(|name| *name == op);
    debug_assert!(place.is_some(), "{op} is not in INDEX_OPS");
    place.map_or(0, |place| place as u32 + 1)
}

/// The error that a report means, whose code is not 0. `device` is what the message calls the device.
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
