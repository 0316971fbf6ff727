//! Storage of elements on the CPU: one vector per dtype.

use float8::F8E4M3;
use half::{bf16, f16};

use crate::backend::BackendStorage;
use crate::{DType, Error, Result, WithDType};

macro_rules! cpu_storage {
    ($($(#[$doc:meta])* $variant:ident($ty:ty)),+ $(,)?) => {
        /// Elements on the CPU, of any dtype.
        #[derive(Debug, Clone)]
        pub enum CpuStorage {
            $($(#[$doc])* $variant(Vec<$ty>),)+
        }

        /// Borrowed elements on the CPU, of any dtype.
        #[derive(Debug, Clone)]
        pub enum CpuStorageRef<'a> {
            $($(#[$doc])* $variant(&'a [$ty]),)+
        }

        impl CpuStorage {
            pub(super) fn dtype_impl(&self) -> DType {
                match self {
                    $(Self::$variant(_) => DType::$variant,)+
                }
            }

            /// Concatenates storages of the same dtype, in order.
            ///
            /// # Errors
            /// `OpRequiresAtLeastOneTensor` for none, `DTypeMismatchBinaryOp` for storages of different dtypes.
            pub fn concat(storages: &[CpuStorage]) -> Result<CpuStorage> {
                const OP: &str = "concat";
                let Some(first) = storages.first() else {
                    return Err(Error::OpRequiresAtLeastOneTensor { op: OP }.bt());
                };
                match first {
                    $(Self::$variant(_) => {
                        let parts = storages.iter().map(|storage| match storage {
                            Self::$variant(data) => Ok(data.as_slice()),
                            other => Err(mismatch(first, other, OP)),
                        });
                        Ok(Self::$variant(parts.collect::<Result<Vec<_>>>()?.concat()))
                    })+
                }
            }
        }
    };
}

cpu_storage! {
    /// `DType::U8`
    U8(u8),
    /// `DType::U32`
    U32(u32),
    /// `DType::I16`
    I16(i16),
    /// `DType::I32`
    I32(i32),
    /// `DType::I64`
    I64(i64),
    /// `DType::BF16`
    BF16(bf16),
    /// `DType::F16`
    F16(f16),
    /// `DType::F32`
    F32(f32),
    /// `DType::F64`
    F64(f64),
    /// `DType::F8E4M3`
    F8E4M3(F8E4M3),
    /// `DType::F6E2M3`, as raw bytes
    F6E2M3(u8),
    /// `DType::F6E3M2`, as raw bytes
    F6E3M2(u8),
    /// `DType::F4`, as raw bytes
    F4(u8),
    /// `DType::F8E8M0`, as raw bytes
    F8E8M0(u8),
}

impl CpuStorage {
    /// Borrows the elements; fails with `UnexpectedDType` if the storage has another dtype than `D`.
    pub fn as_slice<D: WithDType>(&self) -> Result<&[D]> {
        D::cpu_storage_as_slice(self)
    }
}

fn mismatch(lhs: &CpuStorage, rhs: &CpuStorage, op: &'static str) -> Error {
    Error::DTypeMismatchBinaryOp {
        lhs: lhs.dtype(),
        rhs: rhs.dtype(),
        op,
    }
    .bt()
}

/// The elements of a second operand, whose dtype must equal that of the first.
pub(super) fn peer<'a, T: WithDType>(storage: &'a CpuStorage, op: &'static str) -> Result<&'a [T]> {
    T::cpu_storage_as_slice(storage).map_err(|_| {
        Error::DTypeMismatchBinaryOp {
            lhs: T::DTYPE,
            rhs: storage.dtype(),
            op,
        }
        .bt()
    })
}

/// Runs a body with the elements of a storage of any dtype; the containers without arithmetic become the unsupported dtype error.
/// `per_dtype!(storage, "op", |vs: T| ...)` names the elements `vs` and their type `T`.
macro_rules! per_dtype {
    ($storage:expr, $op:expr, |$vs:ident: $t:ident| $body:expr) => {
        per_dtype!(@arms $storage, $op, $vs, $t, $body;
            U8 u8, U32 u32, I16 i16, I32 i32, I64 i64, BF16 half::bf16, F16 half::f16, F32 f32, F64 f64,
            F8E4M3 float8::F8E4M3)
    };
    (@arms $storage:expr, $op:expr, $vs:ident, $t:ident, $body:expr; $($variant:ident $ty:ty),+) => {
        match $storage {
            $($crate::CpuStorage::$variant($vs) => {
                #[allow(dead_code, reason = "not every body names the type")]
                type $t = $ty;
                $body
            })+
            other => {
                let dtype = $crate::backend::BackendStorage::dtype(&*other);
                Err($crate::Error::UnsupportedDTypeForOp(dtype, $op).bt())
            }
        }
    };
}

pub(super) use per_dtype;
