//! Element types: the [`DType`] of a tensor and the corresponding Rust types.

use std::str::FromStr;

use float8::F8E4M3;
use half::{bf16, f16};
use safetensors::Dtype as StDtype;

use crate::backend::BackendStorage;
use crate::cpu::kernels::VecOps;
use crate::scalar::Scalar;
use crate::{CpuStorage, CpuStorageRef, Error, Result};

/// The type of a tensor's elements.
#[derive(Debug, Copy, Clone, PartialEq, Eq, Hash)]
pub enum DType {
    /// Unsigned 8-bit integer; also the type of comparison results.
    U8,
    /// Unsigned 32-bit integer; the usual type of indexes.
    U32,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Brain float: the upper 16 bits of an f32.
    BF16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// 8-bit float, 4 exponent and 3 mantissa bits.
    F8E4M3,
    /// 6-bit float, 2 exponent and 3 mantissa bits; a container without arithmetic.
    F6E2M3,
    /// 6-bit float, 3 exponent and 2 mantissa bits; a container without arithmetic.
    F6E3M2,
    /// 4-bit float; a container without arithmetic.
    F4,
    /// 8-bit power of two, the scale of the block formats; a container without arithmetic.
    F8E8M0,
}

/// The error for an unknown dtype name; see [`DType::as_str`] for the names.
#[derive(Debug, PartialEq, Eq)]
pub struct DTypeParseError(String);

impl std::fmt::Display for DTypeParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unknown dtype {:?}, expected one of", self.0)?;
        for (i, dtype) in DType::ALL.iter().enumerate() {
            let separator = if i == 0 { " " } else { ", " };
            write!(f, "{separator}{}", dtype.as_str())?;
        }
        Ok(())
    }
}

impl std::error::Error for DTypeParseError {}

impl FromStr for DType {
    type Err = DTypeParseError;

    /// Parses a name that [`DType::as_str`] returns.
    fn from_str(s: &str) -> std::result::Result<Self, Self::Err> {
        let found = Self::ALL.iter().find(|dtype| dtype.as_str() == s);
        found.copied().ok_or_else(|| DTypeParseError(s.to_string()))
    }
}

impl DType {
    const ALL: [Self; 14] = [
        Self::U8,
        Self::U32,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::BF16,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::F8E4M3,
        Self::F6E2M3,
        Self::F6E3M2,
        Self::F4,
        Self::F8E8M0,
    ];

    /// The name in lower case, such as `f32`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::U32 => "u32",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::BF16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F8E4M3 => "f8e4m3",
            Self::F6E2M3 => "f6e2m3",
            Self::F6E3M2 => "f6e3m2",
            Self::F4 => "f4",
            Self::F8E8M0 => "f8e8m0",
        }
    }

    /// The size of one element; 0 for the dtypes that are smaller than a byte.
    pub fn size_in_bytes(&self) -> usize {
        match self {
            Self::F6E2M3 | Self::F6E3M2 | Self::F4 => 0,
            Self::U8 | Self::F8E4M3 | Self::F8E8M0 => 1,
            Self::I16 | Self::BF16 | Self::F16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }

    /// Whether this is an integer type.
    pub fn is_int(&self) -> bool {
        matches!(
            self,
            Self::U8 | Self::U32 | Self::I16 | Self::I32 | Self::I64
        )
    }

    /// Whether this is a floating-point type, the containers included.
    pub fn is_float(&self) -> bool {
        !self.is_int()
    }
}

/// Pairs of a dtype here and its name in safetensors.
macro_rules! safetensors_dtypes {
    ($($ours:ident $theirs:ident),+ $(,)?) => {
        impl TryFrom<StDtype> for DType {
            type Error = Error;

            /// Fails with `UnsupportedSafeTensorDtype` for a dtype that has no counterpart here.
            fn try_from(value: StDtype) -> Result<Self> {
                match value {
                    $(StDtype::$theirs => Ok(Self::$ours),)+
                    other => Err(Error::UnsupportedSafeTensorDtype(other).bt()),
                }
            }
        }

        impl From<DType> for StDtype {
            fn from(value: DType) -> Self {
                match value {
                    $(DType::$ours => Self::$theirs,)+
                }
            }
        }
    };
}

safetensors_dtypes! {
    U8 U8, U32 U32, I16 I16, I32 I32, I64 I64, BF16 BF16, F16 F16, F32 F32, F64 F64, F8E4M3 F8_E4M3,
    F6E2M3 F6_E2M3, F6E3M2 F6_E3M2, F4 F4, F8E8M0 F8_E8M0,
}

/// A Rust type that can be a tensor's element.
pub trait WithDType:
    Sized
    + Copy
    + num_traits::NumAssign
    + PartialOrd
    + std::fmt::Display
    + 'static
    + Send
    + Sync
    + std::any::Any
    + VecOps
{
    /// The dtype of this type.
    const DTYPE: DType;

    /// Converts as Rust's `as` does: rounding for floats, truncating and saturating for integers.
    fn from_f64(v: f64) -> Self;

    /// Converts to f64; exact for every type but `i64`.
    fn to_f64(self) -> f64;

    /// The value together with its dtype.
    fn to_scalar(self) -> Scalar;

    /// Borrows a slice as a storage reference of this dtype.
    fn cpu_storage_ref(data: &[Self]) -> CpuStorageRef<'_>;

    /// Moves a vector into a storage of this dtype.
    fn to_cpu_storage_owned(data: Vec<Self>) -> CpuStorage;

    /// Copies a slice into a storage of this dtype.
    fn to_cpu_storage(data: &[Self]) -> CpuStorage {
        Self::to_cpu_storage_owned(data.to_vec())
    }

    /// Borrows the elements of a storage; fails with `UnexpectedDType` if it has another dtype.
    fn cpu_storage_as_slice(s: &CpuStorage) -> Result<&[Self]>;

    /// Moves the elements out of a storage; fails with `UnexpectedDType` if it has another dtype.
    fn cpu_storage_data(s: CpuStorage) -> Result<Vec<Self>>;
}

/// An integer type, as used for indexes and conditions.
pub trait IntDType: WithDType + num_traits::Bounded {
    /// Whether the value is not 0.
    fn is_true(&self) -> bool;

    /// The value as an index; a negative value becomes too large for any dimension.
    fn as_usize(&self) -> usize;
}

/// A floating-point type.
pub trait FloatDType: WithDType {}

macro_rules! with_dtype {
    ($ty:ty, $variant:ident, |$v:ident| $from_f64:expr, |$s:ident| $to_f64:expr) => {
        impl WithDType for $ty {
            const DTYPE: DType = DType::$variant;

            fn from_f64($v: f64) -> Self {
                $from_f64
            }

            fn to_f64(self) -> f64 {
                let $s = self;
                $to_f64
            }

            fn to_scalar(self) -> Scalar {
                Scalar::$variant(self)
            }

            fn cpu_storage_ref(data: &[Self]) -> CpuStorageRef<'_> {
                CpuStorageRef::$variant(data)
            }

            fn to_cpu_storage_owned(data: Vec<Self>) -> CpuStorage {
                CpuStorage::$variant(data)
            }

            fn cpu_storage_as_slice(s: &CpuStorage) -> Result<&[Self]> {
                match s {
                    CpuStorage::$variant(data) => Ok(data),
                    other => Err(unexpected_dtype(DType::$variant, other.dtype())),
                }
            }

            fn cpu_storage_data(s: CpuStorage) -> Result<Vec<Self>> {
                match s {
                    CpuStorage::$variant(data) => Ok(data),
                    other => Err(unexpected_dtype(DType::$variant, other.dtype())),
                }
            }
        }
    };
}

fn unexpected_dtype(expected: DType, got: DType) -> Error {
    Error::UnexpectedDType {
        msg: "the storage's dtype differs from the requested type",
        expected,
        got,
    }
    .bt()
}

macro_rules! int_dtypes {
    ($($ty:ty, $variant:ident;)+) => {$(
        with_dtype!($ty, $variant, |v| v as $ty, |s| s as f64);

        impl IntDType for $ty {
            fn is_true(&self) -> bool {
                *self != 0
            }

            fn as_usize(&self) -> usize {
                *self as usize
            }
        }
    )+};
}

macro_rules! float_dtypes {
    ($($ty:ty, $variant:ident, |$v:ident| $from:expr, |$s:ident| $to:expr;)+) => {$(
        with_dtype!($ty, $variant, |$v| $from, |$s| $to);

        impl FloatDType for $ty {}
    )+};
}

int_dtypes! {
    u8, U8;
    u32, U32;
    i16, I16;
    i32, I32;
    i64, I64;
}

float_dtypes! {
    bf16, BF16, |v| bf16::from_f64(v), |s| s.to_f64();
    f16, F16, |v| f16::from_f64(v), |s| s.to_f64();
    f32, F32, |v| v as f32, |s| f64::from(s);
    f64, F64, |v| v, |s| s;
    F8E4M3, F8E4M3, |v| F8E4M3::from_f64(v), |s| F8E4M3::to_f64(&s);
}

/// Applies a function to the elements of a `CpuStorage` of any of the given dtypes, and wraps the result as a
/// `CpuStorage` of the same dtype. For any other dtype, the surrounding function returns
/// [`Error::UnsupportedDTypeForOp`](crate::Error::UnsupportedDTypeForOp), which names the op.
///
/// The function is repeated for each dtype: a closure's argument type may differ from dtype to dtype.
///
/// ```
/// use candle_core::{map_dtype, CpuStorage, Result};
///
/// fn reversed(storage: &CpuStorage) -> Result<CpuStorage> {
///     fn reverse<T: Clone>(values: &Vec<T>) -> Vec<T> {
///         values.iter().rev().cloned().collect()
///     }
///     Ok(map_dtype!("reversed", storage, reverse, (U8, F32)))
/// }
/// assert!(matches!(reversed(&CpuStorage::U8(vec![1, 2])), Ok(CpuStorage::U8(v)) if v == [2, 1]));
/// assert!(reversed(&CpuStorage::I64(vec![])).unwrap_err().to_string().contains("I64 is not supported by reversed"));
/// ```
#[macro_export]
macro_rules! map_dtype {
    ($name:expr, $storage:ident, $fn:expr, ($($dtypes:ident),+)) => {
        match $storage {
            $($crate::CpuStorage::$dtypes(values) => $crate::CpuStorage::$dtypes($fn(values)),)+
            other => {
                use $crate::backend::BackendStorage as _;
                Err($crate::Error::UnsupportedDTypeForOp(other.dtype(), $name).bt())?
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for dtype in DType::ALL {
            assert_eq!(dtype.as_str().parse(), Ok(dtype));
            assert!(dtype.is_int() != dtype.is_float());
        }
        let err = "f33".parse::<DType>().unwrap_err().to_string();
        assert!(err.contains("\"f33\"") && err.contains("bf16"), "{err}");
    }

    #[test]
    fn safetensors_dtypes_convert_back() {
        for dtype in DType::ALL {
            assert_eq!(DType::try_from(StDtype::from(dtype)).unwrap(), dtype);
        }
        assert!(DType::try_from(StDtype::C64).is_err());
    }

    #[test]
    fn conversion_from_f64_saturates() {
        assert_eq!(u8::from_f64(-3.7), 0);
        assert_eq!(u8::from_f64(300.), 255);
        assert_eq!(i32::from_f64(-3.7), -3);
        assert_eq!(i64::from_f64(f64::NAN), 0);
    }
}
