//! Requirements of this backend's kernels on an element type beyond [`WithDType`].

use float8::F8E4M3;
use half::{bf16, f16};

use crate::cpu::half_floats::HalfFloat;
use crate::cpu::kernels::{map_slice, zip_slices};
use crate::cpu::to_integer;
use crate::WithDType;

/// The type of sums and products. Integers wrap.
pub(super) trait Accumulator: Copy + Send + Sync + PartialOrd {
    const ZERO: Self;
    fn add(self, rhs: Self) -> Self;
    fn mul(self, rhs: Self) -> Self;
}

/// An element type with arithmetic.
pub(super) trait Element: WithDType {
    /// f32 for the smaller floats, else the type itself.
    type Acc: Accumulator + Element;

    fn to_acc(self) -> Self::Acc;
    fn from_acc(acc: Self::Acc) -> Self;
    fn from_i64(v: i64) -> Self;
    fn from_f32(v: f32) -> Self;
    fn as_f32(self) -> f32;

    /// Converts with the semantics of `as`, through a type that holds every value of this one: only `i64` to a 16-bit float is rounded
    /// twice.
    fn cast<D: Element>(self) -> D;

    #[inline(always)]
    fn plus(self, rhs: Self) -> Self {
        Self::from_acc(self.to_acc().add(rhs.to_acc()))
    }

    #[inline(always)]
    fn times(self, rhs: Self) -> Self {
        Self::from_acc(self.to_acc().mul(rhs.to_acc()))
    }

    /// `dst += src`; each element is rounded once.
    fn add_slice(dst: &mut [Self], src: &[Self]) {
        let mut buffers = [[Self::Acc::ZERO; 256]; 2];
        for (dst, src) in dst.chunks_mut(256).zip(src.chunks(256)) {
            let [left, right] = &mut buffers;
            let mut sums = [Self::Acc::ZERO; 256];
            let sums = &mut sums[..src.len()];
            let left = Self::acc_slice(dst, left);
            zip_slices(left, Self::acc_slice(src, right), sums, Accumulator::add);
            Self::narrow_acc(sums, dst);
        }
    }

    /// `dst = src`, rounded to this type.
    fn narrow_acc(src: &[Self::Acc], dst: &mut [Self]);

    /// `src` in the accumulator type: `src` itself, or converted into `buffer`, which has the same length.
    fn acc_slice<'a>(src: &'a [Self], buffer: &'a mut [Self::Acc]) -> &'a [Self::Acc];

    /// `dst = src`, widened to f32.
    fn widen(src: &[Self], dst: &mut [f32]) {
        map_slice(src, dst, Self::as_f32);
    }

    /// `dst = src`, rounded to this type.
    fn narrow(src: &[f32], dst: &mut [Self]) {
        map_slice(src, dst, Self::from_f32);
    }
}

macro_rules! int_elements {
    ($($ty:ty, |$f:ident| $from_f32:expr;)+) => {$(
        impl Accumulator for $ty {
            const ZERO: Self = 0;

            #[inline(always)]
            fn add(self, rhs: Self) -> Self {
                self.wrapping_add(rhs)
            }

            #[inline(always)]
            fn mul(self, rhs: Self) -> Self {
                self.wrapping_mul(rhs)
            }
        }

        native_element!($ty, |v| D::from_i64(v as i64), |$f| $from_f32);
    )+};
}

macro_rules! float_accumulators {
    ($($ty:ty),+) => {$(
        impl Accumulator for $ty {
            const ZERO: Self = 0.;

            #[inline(always)]
            fn add(self, rhs: Self) -> Self {
                self + rhs
            }

            #[inline(always)]
            fn mul(self, rhs: Self) -> Self {
                self * rhs
            }
        }
    )+};
}

/// A type that is its own accumulator.
macro_rules! native_element {
    ($ty:ty, |$v:ident| $cast:expr, |$f:ident| $from_f32:expr) => {
        impl Element for $ty {
            type Acc = Self;

            #[inline(always)]
            fn to_acc(self) -> Self {
                self
            }

            #[inline(always)]
            fn from_acc(acc: Self) -> Self {
                acc
            }

            fn narrow_acc(src: &[Self], dst: &mut [Self]) {
                dst.copy_from_slice(src);
            }

            #[inline(always)]
            fn acc_slice<'a>(src: &'a [Self], _buffer: &'a mut [Self]) -> &'a [Self] {
                src
            }

            #[inline(always)]
            fn from_i64(v: i64) -> Self {
                v as Self
            }

            #[inline(always)]
            fn from_f32($f: f32) -> Self {
                $from_f32
            }

            #[inline(always)]
            fn as_f32(self) -> f32 {
                self as f32
            }

            #[inline(always)]
            fn cast<D: Element>(self) -> D {
                let $v = self;
                $cast
            }
        }
    };
}

/// A float that computes in f32.
macro_rules! small_float {
    ($ty:ty $(, $slice_conversions:item)*) => {
        impl Element for $ty {
            type Acc = f32;

            #[inline(always)]
            fn to_acc(self) -> f32 {
                self.to_f32()
            }

            #[inline(always)]
            fn from_acc(acc: f32) -> Self {
                <$ty>::from_f32(acc)
            }

            fn narrow_acc(src: &[f32], dst: &mut [Self]) {
                <Self as Element>::narrow(src, dst);
            }

            fn acc_slice<'a>(src: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32] {
                let buffer = &mut buffer[..src.len()];
                <Self as Element>::widen(src, buffer);
                buffer
            }

            #[inline(always)]
            fn from_i64(v: i64) -> Self {
                <$ty>::from_f32(v as f32)
            }

            #[inline(always)]
            fn from_f32(v: f32) -> Self {
                <$ty>::from_f32(v)
            }

            #[inline(always)]
            fn as_f32(self) -> f32 {
                self.to_f32()
            }

            #[inline(always)]
            fn cast<D: Element>(self) -> D {
                D::from_f32(self.to_f32())
            }

            $($slice_conversions)*
        }
    };
}

/// A 16-bit float, whose slices are converted by the CPU's instructions.
macro_rules! half_float {
    ($ty:ty) => {
        small_float! {
            $ty,
            fn widen(src: &[Self], dst: &mut [f32]) {
                <Self as HalfFloat>::widen(src, dst);
            },
            fn narrow(src: &[f32], dst: &mut [Self]) {
                <Self as HalfFloat>::narrow(src, dst);
            }
        }
    };
}

// Each is converted from f32 with the semantics of `as`, in a form that the compiler can vectorise.
int_elements! {
    u8, |v| to_integer::to_i32_within(v, 0., 255.) as u8;
    u32, |v| v as u32;
    i16, |v| to_integer::to_i32_within(v, -32768., 32767.) as i16;
    i32, |v| v as i32;
    i64, |v| to_integer::to_i64(v);
}
float_accumulators!(f32, f64);
native_element!(f32, |v| D::from_f32(v), |v| v);
native_element!(f64, |v| D::from_f64(v), |v| f64::from(v));
half_float!(f16);
half_float!(bf16);
small_float!(F8E4M3);
