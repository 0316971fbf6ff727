//! Types of the dtypes in CUDA C++.

use crate::DType;

/// The C++ type that stores an element of `dtype`, from `kernels/prelude.cu`; `None` for dtypes without arithmetic.
pub(super) fn c_type(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::U8 => "u8",
        DType::U32 => "u32",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::BF16 => "bf16",
        DType::F16 => "f16",
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::F8E4M3 => "f8",
        DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0 => return None,
    })
}

/// The type that moves this many bytes at once, for kernels that move elements without computing.
pub(super) fn bits_type(size: usize) -> &'static str {
    match size {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        8 => "u64",
        _ => "u128",
    }
}

/// The greatest power of two, up to 16, that divides all of these offsets and lengths in bytes.
pub(super) fn common_unit(bytes: impl IntoIterator<Item = u64>) -> usize {
    let all = bytes.into_iter().fold(16, |all, bytes| all | bytes);
    1 << all.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::common_unit;

    #[test]
    fn a_unit_divides_every_length() {
        assert_eq!(common_unit([]), 16);
        assert_eq!(common_unit([0, 64, 4096]), 16);
        assert_eq!(common_unit([32, 8, 24]), 8);
        assert_eq!(common_unit([16, 2]), 2);
        assert_eq!(common_unit([16, 6, 7]), 1);
    }
}
