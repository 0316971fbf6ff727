//! The blocks in the layout of a GGUF file: little endian, `repr(C)`, no padding.
//!
//! The layouts are those published with [ggml](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Below, `x[i]` is the value of
//! element `i`, `q[i]` its code, and "nibble" 4 bits.

use half::f16;

/// Elements in a block of [`BlockQ4_0`].
pub const QK4_0: usize = 32;
/// Elements in a block of [`BlockQ4_1`].
pub const QK4_1: usize = 32;
/// Elements in a block of [`BlockQ5_0`].
pub const QK5_0: usize = 32;
/// Elements in a block of [`BlockQ5_1`].
pub const QK5_1: usize = 32;
/// Elements in a block of [`BlockQ8_0`].
pub const QK8_0: usize = 32;
/// Elements in a block of [`BlockQ8_1`].
pub const QK8_1: usize = 32;
/// Elements in a super-block of the k-quants.
pub const QK_K: usize = 256;
/// Number of bytes with the 6-bit scales of a [`BlockQ4K`], [`BlockQ5K`] or [`BlockQ3K`].
pub const K_SCALE_SIZE: usize = 12;

/// 4 bits and a scale for 32 elements, 4.5 bits each: `x[i] = d · (q[i] − 8)`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockQ4_0 {
    pub(crate) d: f16,
    /// The nibbles of element `i` (low) and `i + 16` (high).
    pub(crate) qs: [u8; QK4_0 / 2],
}

/// 4 bits, a scale and a minimum for 32 elements, 5 bits each: `x[i] = d · q[i] + m`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockQ4_1 {
    pub(crate) d: f16,
    pub(crate) m: f16,
    /// As in [`BlockQ4_0`].
    pub(crate) qs: [u8; QK4_1 / 2],
}

/// 5 bits and a scale for 32 elements, 5.5 bits each: `x[i] = d · (q[i] − 16)`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockQ5_0 {
    pub(crate) d: f16,
    /// Bit `i` is the fifth bit of element `i`.
    pub(crate) qh: [u8; 4],
    /// The lower four bits, as in [`BlockQ4_0`].
    pub(crate) qs: [u8; QK5_0 / 2],
}

/// 5 bits, a scale and a minimum for 32 elements, 6 bits each: `x[i] = d · q[i] + m`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockQ5_1 {
    pub(crate) d: f16,
    pub(crate) m: f16,
    /// As in [`BlockQ5_0`].
    pub(crate) qh: [u8; 4],
    /// As in [`BlockQ5_0`].
    pub(crate) qs: [u8; QK5_1 / 2],
}

/// 8 bits and a scale for 32 elements, 8.5 bits each: `x[i] = d · q[i]`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockQ8_0 {
    pub(crate) d: f16,
    pub(crate) qs: [i8; QK8_0],
}

/// [`BlockQ8_0`] with the sum of its elements: the activations' format in products with [`BlockQ4_1`] and [`BlockQ5_1`].
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockQ8_1 {
    pub(crate) d: f16,
    /// `d · Σ q[i]`
    pub(crate) s: f16,
    pub(crate) qs: [i8; QK8_1],
}

/// 2 bits for 256 elements in 16 sub-blocks of 16, 2.625 bits each:
/// `x[i] = d · scale[i / 16] · q[i] − dmin · min[i / 16]`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockQ2K {
    /// A sub-block's scale in the low nibble, its minimum in the high one.
    pub(crate) scales: [u8; QK_K / 16],
    /// Byte `b` of half `h` holds elements `128 h + b + {0, 32, 64, 96}`, from the low bits up.
    pub(crate) qs: [u8; QK_K / 4],
    pub(crate) d: f16,
    pub(crate) dmin: f16,
}

/// 3 bits for 256 elements in 16 sub-blocks of 16, 3.4375 bits each: `x[i] = d · (scale[i / 16] − 32) · (q[i] − 4)`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockQ3K {
    /// Bit `i / 32` of byte `i % 32` is the third bit of element `i`.
    pub(crate) hmask: [u8; QK_K / 8],
    /// The lower two bits, as in [`BlockQ2K`].
    pub(crate) qs: [u8; QK_K / 4],
    /// Scales of 6 bits. The first 8 bytes: the lower nibbles of scale `j` and `j + 8`. The last 4: two bits each of scales
    /// `j`, `j + 4`, `j + 8` and `j + 12`.
    pub(crate) scales: [u8; K_SCALE_SIZE],
    pub(crate) d: f16,
}

/// 4 bits for 256 elements in 8 sub-blocks of 32, 4.5 bits each:
/// `x[i] = d · scale[i / 32] · q[i] − dmin · min[i / 32]`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockQ4K {
    pub(crate) d: f16,
    pub(crate) dmin: f16,
    /// Scales and minima of 6 bits. Bytes 0–3 and 4–7: scales and minima 0–3, and in their upper two bits the upper two of scales
    /// and minima 4–7. Bytes 8–11: the lower nibbles of scales (low) and minima (high) 4–7.
    pub(crate) scales: [u8; K_SCALE_SIZE],
    /// Byte `b` of quarter `h` holds elements `64 h + b` (low) and `64 h + b + 32` (high).
    pub(crate) qs: [u8; QK_K / 2],
}

/// 5 bits for 256 elements in 8 sub-blocks of 32, 5.5 bits each, otherwise [`BlockQ4K`].
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockQ5K {
    pub(crate) d: f16,
    pub(crate) dmin: f16,
    /// As in [`BlockQ4K`].
    pub(crate) scales: [u8; K_SCALE_SIZE],
    /// Bit `i / 32` of byte `i % 32` is the fifth bit of element `i`.
    pub(crate) qh: [u8; QK_K / 8],
    /// The lower four bits, as in [`BlockQ4K`].
    pub(crate) qs: [u8; QK_K / 2],
}

/// 6 bits for 256 elements in 16 sub-blocks of 16, 6.5625 bits each: `x[i] = d · scale[i / 16] · (q[i] − 32)`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockQ6K {
    /// Byte `b` of half `h`, `b < 64`: the lower nibbles of elements `128 h + b` (low) and `128 h + b + 64` (high).
    pub(crate) ql: [u8; QK_K / 2],
    /// The upper two bits: byte `b` of half `h` those of elements `128 h + b + {0, 32, 64, 96}`, from the low bits up.
    pub(crate) qh: [u8; QK_K / 4],
    pub(crate) scales: [i8; QK_K / 16],
    pub(crate) d: f16,
}

/// 8 bits and a scale for 256 elements, `x[i] = d · q[i]`: the activations' format in products with the k-quants.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockQ8K {
    pub(crate) d: f32,
    pub(crate) qs: [i8; QK_K],
    /// The sums of 16 codes each.
    pub(crate) bsums: [i16; QK_K / 16],
}

/// A block has its size in a GGUF file; a layout with padding would not compile.
const _: () = {
    use std::mem::size_of;
    assert!(size_of::<BlockQ4_0>() == 18);
    assert!(size_of::<BlockQ4_1>() == 20);
    assert!(size_of::<BlockQ5_0>() == 22);
    assert!(size_of::<BlockQ5_1>() == 24);
    assert!(size_of::<BlockQ8_0>() == 34);
    assert!(size_of::<BlockQ8_1>() == 36);
    assert!(size_of::<BlockQ2K>() == 84);
    assert!(size_of::<BlockQ3K>() == 110);
    assert!(size_of::<BlockQ4K>() == 144);
    assert!(size_of::<BlockQ5K>() == 176);
    assert!(size_of::<BlockQ6K>() == 210);
    assert!(size_of::<BlockQ8K>() == 292);
};
