//! The block formats' element types: F4, F6E2M3, F6E3M2, F8E8M0.
//!
//! A [`CpuStorage`] holds their raw bytes so that checkpoints load and save. Nothing computes with them: the Rust types carry no value,
//! arithmetic returns the type's only value, and ops on such storages fail with `UnsupportedDTypeForOp`. To calculate, decode the bytes
//! into another dtype.

use std::fmt::{Display, Formatter};
use std::num::ParseFloatError;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Rem, RemAssign, Sub, SubAssign};

use num_traits::{Num, One, Zero};

use crate::cpu::kernels::VecOps;
use crate::scalar::Scalar;
use crate::{CpuStorage, CpuStorageRef, DType, Error, Result, WithDType};

macro_rules! container_operator {
    ($ty:ident: $($operator:ident::$method:ident, $assign:ident::$assign_method:ident;)+) => {$(
        impl $operator for $ty {
            type Output = Self;

            fn $method(self, _rhs: Self) -> Self {
                self
            }
        }

        impl $assign for $ty {
            fn $assign_method(&mut self, _rhs: Self) {}
        }
    )+};
}

macro_rules! container_dtype {
    ($ty:ident, $name:literal) => {
        #[doc = concat!("Stands for the dtype ", $name, ", a container without arithmetic; carries no value.")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $ty;

        impl Display for $ty {
            fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str($name)
            }
        }

        container_operator! { $ty:
            Add::add, AddAssign::add_assign;
            Sub::sub, SubAssign::sub_assign;
            Mul::mul, MulAssign::mul_assign;
            Div::div, DivAssign::div_assign;
            Rem::rem, RemAssign::rem_assign;
        }

        impl Zero for $ty {
            fn zero() -> Self {
                Self
            }

            fn is_zero(&self) -> bool {
                true
            }
        }

        impl One for $ty {
            fn one() -> Self {
                Self
            }
        }

        impl Num for $ty {
            type FromStrRadixErr = ParseFloatError;

            fn from_str_radix(
                text: &str,
                _radix: u32,
            ) -> std::result::Result<Self, Self::FromStrRadixErr> {
                text.parse::<f64>().map(|_| Self)
            }
        }

        impl VecOps for $ty {
            fn min(self, _rhs: Self) -> Self {
                self
            }

            fn max(self, _rhs: Self) -> Self {
                self
            }
        }

        impl WithDType for $ty {
            const DTYPE: DType = DType::$ty;

            fn from_f64(_v: f64) -> Self {
                Self
            }

            /// NaN: there is no value to convert.
            fn to_f64(self) -> f64 {
                f64::NAN
            }

            /// An f64 NaN: no scalar has this dtype.
            fn to_scalar(self) -> Scalar {
                Scalar::F64(f64::NAN)
            }

            /// Empty: the type carries no bytes to refer to.
            fn cpu_storage_ref(_data: &[Self]) -> CpuStorageRef<'_> {
                CpuStorageRef::$ty(&[])
            }

            /// One zero byte per element.
            fn to_cpu_storage_owned(data: Vec<Self>) -> CpuStorage {
                CpuStorage::$ty(vec![0; data.len()])
            }

            /// Always fails: raw bytes cannot be borrowed as values of this type.
            fn cpu_storage_as_slice(_s: &CpuStorage) -> Result<&[Self]> {
                Err(Error::UnsupportedDTypeForOp(DType::$ty, "cpu_storage_as_slice").bt())
            }

            /// Always fails, like `cpu_storage_as_slice`.
            fn cpu_storage_data(_s: CpuStorage) -> Result<Vec<Self>> {
                Err(Error::UnsupportedDTypeForOp(DType::$ty, "cpu_storage_data").bt())
            }
        }
    };
}

container_dtype!(F4, "f4");
container_dtype!(F6E2M3, "f6e2m3");
container_dtype!(F6E3M2, "f6e3m2");
container_dtype!(F8E8M0, "f8e8m0");
