//! Single values with a dtype, and arguments that may be a tensor or a number.

use float8::F8E4M3;
use half::{bf16, f16};

use crate::{DType, Device, Result, Tensor, WithDType};

macro_rules! scalar {
    ($($variant:ident($ty:ty)),+ $(,)?) => {
        /// A value of one dtype. The containers F4, F6E2M3, F6E3M2 and F8E8M0 have no scalars.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub enum Scalar {
            $(
                #[doc = concat!("A value of type `", stringify!($ty), "`.")]
                $variant($ty),
            )+
        }

        impl Scalar {
            /// The value's dtype.
            pub fn dtype(&self) -> DType {
                match self {
                    $(Self::$variant(_) => DType::$variant,)+
                }
            }

            /// The value as f64; exact for every dtype but `I64`.
            pub fn to_f64(&self) -> f64 {
                match self {
                    $(Self::$variant(v) => WithDType::to_f64(*v),)+
                }
            }

            /// The value of a tensor of rank 0; `None` of the containers.
            pub(crate) fn of(tensor: &Tensor) -> Result<Option<Self>> {
                Ok(match tensor.dtype() {
                    $(DType::$variant => Some(Self::$variant(tensor.to_scalar()?)),)+
                    DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0 => None,
                })
            }

            fn from_f64(value: f64, dtype: DType) -> Self {
                match dtype {
                    $(DType::$variant => Self::$variant(WithDType::from_f64(value)),)+
                    DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0 => Self::F64(value),
                }
            }
        }
    };
}

scalar! {
    U8(u8), U32(u32), I16(i16), I32(i32), I64(i64), BF16(bf16), F16(f16), F32(f32), F64(f64),
    F8E4M3(F8E4M3),
}

impl Scalar {
    /// The value 0 of `dtype`; of `F64` for the containers, which have no scalars.
    pub fn zero(dtype: DType) -> Self {
        Self::from_f64(0., dtype)
    }

    /// The value 1 of `dtype`; of `F64` for the containers, which have no scalars.
    pub fn one(dtype: DType) -> Self {
        Self::from_f64(1., dtype)
    }
}

impl<T: WithDType> From<T> for Scalar {
    fn from(value: T) -> Self {
        value.to_scalar()
    }
}

/// An argument given as a tensor or as a number.
pub enum TensorScalar {
    /// A tensor of any shape.
    Tensor(Tensor),
    /// A number, as a tensor of rank 0 on the CPU.
    Scalar(Tensor),
}

/// Types that ops such as `eq` or `maximum` accept on their right side.
pub trait TensorOrScalar {
    /// The tensor, or the number as a tensor.
    fn to_tensor_scalar(self) -> Result<TensorScalar>;
}

impl TensorOrScalar for &Tensor {
    fn to_tensor_scalar(self) -> Result<TensorScalar> {
        Ok(TensorScalar::Tensor(self.clone()))
    }
}

impl<T: WithDType> TensorOrScalar for T {
    fn to_tensor_scalar(self) -> Result<TensorScalar> {
        Ok(TensorScalar::Scalar(Tensor::new(self, &Device::Cpu)?))
    }
}
