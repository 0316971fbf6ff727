//! Requirements of convolutions on an element type.

use half::{bf16, f16};

use super::super::element::Element;
use super::lanes::Kernels;

/// An element type of convolutions, whose products are summed as `Acc`.
pub(super) trait ConvElement: Element<Acc: Kernels> {
    /// The elements themselves, if the type is its own accumulator.
    fn as_acc(vs: &[Self]) -> Option<&[Self::Acc]>;

    /// `dst = src`, converted.
    fn to_accs(src: &[Self], dst: &mut [Self::Acc]);

    /// `dst = src`, rounded.
    fn from_accs(src: &[Self::Acc], dst: &mut [Self]);
}

macro_rules! native_operands {
    ($($ty:ty),+) => {$(
        impl ConvElement for $ty {
            fn as_acc(vs: &[Self]) -> Option<&[Self]> {
                Some(vs)
            }

            fn to_accs(src: &[Self], dst: &mut [Self]) {
                dst.copy_from_slice(src);
            }

            fn from_accs(src: &[Self], dst: &mut [Self]) {
                dst.copy_from_slice(src);
            }
        }
    )+};
}

macro_rules! widened_operands {
    ($($ty:ty),+) => {$(
        impl ConvElement for $ty {
            fn as_acc(_vs: &[Self]) -> Option<&[f32]> {
                None
            }

            fn to_accs(src: &[Self], dst: &mut [f32]) {
                Self::widen(src, dst);
            }

            fn from_accs(src: &[f32], dst: &mut [Self]) {
                Self::narrow(src, dst);
            }
        }
    )+};
}

native_operands!(u8, u32, i16, i32, i64, f32, f64);
widened_operands!(f16, bf16, float8::F8E4M3);
