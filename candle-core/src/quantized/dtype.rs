//! The formats in which GGML and GGUF files store weights.

use std::borrow::Cow;

use super::blocks::{from_bytes, from_shared, zeros};
use super::k_quants::*;
use super::{GgmlType, QuantizedType};
use crate::{Error, Result};

/// A storage format of GGML: blocks of a fixed number of elements, each block a fixed number of bytes.
///
/// The layouts are those of GGML (`ggml-common.h`); the numbers in a file are those of its `ggml_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GgmlDType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 16-bit floats with the exponent of an f32.
    BF16,
    /// 32 elements of 4 bits and a scale.
    Q4_0,
    /// 32 elements of 4 bits, a scale and a minimum.
    Q4_1,
    /// 32 elements of 5 bits and a scale.
    Q5_0,
    /// 32 elements of 5 bits, a scale and a minimum.
    Q5_1,
    /// 32 elements of 8 bits and a scale.
    Q8_0,
    /// Like `Q8_0`, with the sum of the elements.
    Q8_1,
    /// 256 elements of 2 bits, with scales and minima of 4 bits for every 16.
    Q2K,
    /// 256 elements of 3 bits, with scales of 6 bits for every 16.
    Q3K,
    /// 256 elements of 4 bits, with scales and minima of 6 bits for every 32.
    Q4K,
    /// 256 elements of 5 bits, with scales and minima of 6 bits for every 32.
    Q5K,
    /// 256 elements of 6 bits, with scales of 8 bits for every 16.
    Q6K,
    /// 256 elements of 8 bits, with a scale in 32 bits and the sums of every 16: the activations' format in products with k-quants.
    Q8K,
    /// 256 elements of 1.6 bits: eighths around points of a grid of -1, 0 and 1, with scales of 3 bits for every 32.
    #[cfg(feature = "all-ggml-types")]
    IQ1S,
    /// Like `IQ1S`, with scales for every 16: 1.75 bits.
    #[cfg(feature = "all-ggml-types")]
    IQ1M,
    /// 256 elements of 2.1 bits: points of a grid and signs, with scales of 4 bits for every 32.
    #[cfg(feature = "all-ggml-types")]
    IQ2XXS,
    /// Like `IQ2XXS`, with scales for every 16 and a larger grid: 2.3 bits.
    #[cfg(feature = "all-ggml-types")]
    IQ2XS,
    /// Like `IQ2XS`, with a still larger grid and any signs: 2.6 bits.
    #[cfg(feature = "all-ggml-types")]
    IQ2S,
    /// 256 elements of 3.1 bits: points of a grid and signs, with scales of 4 bits for every 32.
    #[cfg(feature = "all-ggml-types")]
    IQ3XXS,
    /// Like `IQ3XXS`, with a larger grid and any signs: 3.4 bits.
    #[cfg(feature = "all-ggml-types")]
    IQ3S,
    /// 32 elements of 4 bits, which encode unevenly spaced numbers, and a scale.
    #[cfg(feature = "all-ggml-types")]
    IQ4NL,
    /// 256 elements like those of `IQ4NL`, with scales of 6 bits for every 32.
    #[cfg(feature = "all-ggml-types")]
    IQ4XS,
    /// 256 elements -1, 0 and 1 in 1.6 bits, and a scale.
    #[cfg(feature = "all-ggml-types")]
    TQ1_0,
    /// 256 elements -1, 0 and 1 in 2 bits, and a scale.
    #[cfg(feature = "all-ggml-types")]
    TQ2_0,
    /// 32 floats of 4 bits and an exponent: MXFP4 of the Open Compute Project, which gpt-oss uses.
    #[cfg(feature = "all-ggml-types")]
    MXFP4,
}

/// Marks blocks for which any bytes are valid. The sizes are those of GGML.
macro_rules! plain_blocks {
    ($($block:ident $bytes:literal),+ $(,)?) => {
        $(
            impl Copy for $block {}
            // SAFETY: integers, f16 and f32 in C's order: all zero bytes are a valid value.
            unsafe impl bytemuck::Zeroable for $block {}
            // SAFETY: as above; any bits are a valid value, and the size leaves no padding.
            unsafe impl bytemuck::Pod for $block {}
            const _: () = assert!(size_of::<$block>() == $bytes);
        )+
    };
}

plain_blocks! {
    BlockQ4_0 18, BlockQ4_1 20, BlockQ5_0 22, BlockQ5_1 24, BlockQ8_0 34, BlockQ8_1 36,
    BlockQ2K 84, BlockQ3K 110, BlockQ4K 144, BlockQ5K 176, BlockQ6K 210, BlockQ8K 292,
}

#[cfg(feature = "all-ggml-types")]
plain_blocks! {
    BlockIQ1S 50, BlockIQ1M 56, BlockIQ2XXS 66, BlockIQ2XS 74, BlockIQ2S 82, BlockIQ3XXS 98, BlockIQ3S 110, BlockIQ4NL 18, BlockIQ4XS 136, BlockTQ1_0 54, BlockTQ2_0 66, BlockMXFP4 17,
}

/// Calls `$f::<T>($args)` with the block type of a format.
macro_rules! on_block_type {
    ($dtype:expr, $f:ident($($arg:expr),*)) => {
        match $dtype {
            GgmlDType::F32 => $f::<f32>($($arg),*),
            GgmlDType::F16 => $f::<half::f16>($($arg),*),
            GgmlDType::BF16 => $f::<half::bf16>($($arg),*),
            GgmlDType::Q4_0 => $f::<BlockQ4_0>($($arg),*),
            GgmlDType::Q4_1 => $f::<BlockQ4_1>($($arg),*),
            GgmlDType::Q5_0 => $f::<BlockQ5_0>($($arg),*),
            GgmlDType::Q5_1 => $f::<BlockQ5_1>($($arg),*),
            GgmlDType::Q8_0 => $f::<BlockQ8_0>($($arg),*),
            GgmlDType::Q8_1 => $f::<BlockQ8_1>($($arg),*),
            GgmlDType::Q2K => $f::<BlockQ2K>($($arg),*),
            GgmlDType::Q3K => $f::<BlockQ3K>($($arg),*),
            GgmlDType::Q4K => $f::<BlockQ4K>($($arg),*),
            GgmlDType::Q5K => $f::<BlockQ5K>($($arg),*),
            GgmlDType::Q6K => $f::<BlockQ6K>($($arg),*),
            GgmlDType::Q8K => $f::<BlockQ8K>($($arg),*),
            #[cfg(feature = "all-ggml-types")]
            GgmlDType::IQ1S => $f::<BlockIQ1S>($($arg),*),
            #[cfg(feature = "all-ggml-types")]
            GgmlDType::IQ1M => $f::<BlockIQ1M>($($arg),*),
            #[cfg(feature = "all-ggml-types")]
            GgmlDType::IQ2XXS => $f::<BlockIQ2XXS>($($arg),*),
            #[cfg(feature = "all-ggml-types")]
            GgmlDType::IQ2XS => $f::<BlockIQ2XS>($($arg),*),
            #[cfg(feature = "all-ggml-types")]
            GgmlDType::IQ2S => $f::<BlockIQ2S>($($arg),*),
            #[cfg(feature = "all-ggml-types")]
            GgmlDType::IQ3XXS => $f::<BlockIQ3XXS>($($arg),*),
            #[cfg(feature = "all-ggml-types")]
            GgmlDType::IQ3S => $f::<BlockIQ3S>($($arg),*),
            #[cfg(feature = "all-ggml-types")]
            GgmlDType::IQ4NL => $f::<BlockIQ4NL>($($arg),*),
            #[cfg(feature = "all-ggml-types")]
            GgmlDType::IQ4XS => $f::<BlockIQ4XS>($($arg),*),
            #[cfg(feature = "all-ggml-types")]
            GgmlDType::TQ1_0 => $f::<BlockTQ1_0>($($arg),*),
            #[cfg(feature = "all-ggml-types")]
            GgmlDType::TQ2_0 => $f::<BlockTQ2_0>($($arg),*),
            #[cfg(feature = "all-ggml-types")]
            GgmlDType::MXFP4 => $f::<BlockMXFP4>($($arg),*),
        }
    };
}

impl GgmlDType {
    /// Every format with its number in a file.
    const NUMBERS: &[(Self, u32)] = &[
        (Self::F32, 0),
        (Self::F16, 1),
        (Self::Q4_0, 2),
        (Self::Q4_1, 3),
        (Self::Q5_0, 6),
        (Self::Q5_1, 7),
        (Self::Q8_0, 8),
        (Self::Q8_1, 9),
        (Self::Q2K, 10),
        (Self::Q3K, 11),
        (Self::Q4K, 12),
        (Self::Q5K, 13),
        (Self::Q6K, 14),
        (Self::Q8K, 15),
        (Self::BF16, 30),
        #[cfg(feature = "all-ggml-types")]
        (Self::IQ1S, 19),
        #[cfg(feature = "all-ggml-types")]
        (Self::IQ1M, 29),
        #[cfg(feature = "all-ggml-types")]
        (Self::IQ2XXS, 16),
        #[cfg(feature = "all-ggml-types")]
        (Self::IQ2XS, 17),
        #[cfg(feature = "all-ggml-types")]
        (Self::IQ2S, 22),
        #[cfg(feature = "all-ggml-types")]
        (Self::IQ3XXS, 18),
        #[cfg(feature = "all-ggml-types")]
        (Self::IQ3S, 21),
        #[cfg(feature = "all-ggml-types")]
        (Self::IQ4NL, 20),
        #[cfg(feature = "all-ggml-types")]
        (Self::IQ4XS, 23),
        #[cfg(feature = "all-ggml-types")]
        (Self::TQ1_0, 34),
        #[cfg(feature = "all-ggml-types")]
        (Self::TQ2_0, 35),
        #[cfg(feature = "all-ggml-types")]
        (Self::MXFP4, 39),
    ];

    /// ggml's names of the types that are not supported: plain numbers, newer formats, and removed ones.
    const OTHERS: &[(u32, &str)] = &[
        (4, "Q4_2, which ggml has removed"),
        (5, "Q4_3, which ggml has removed"),
        (24, "I8"),
        (25, "I16"),
        (26, "I32"),
        (27, "I64"),
        (28, "F64"),
        (
            31,
            "Q4_0_4_4, which ggml has removed: convert the model again, to Q4_0",
        ),
        (
            32,
            "Q4_0_4_8, which ggml has removed: convert the model again, to Q4_0",
        ),
        (
            33,
            "Q4_0_8_8, which ggml has removed: convert the model again, to Q4_0",
        ),
        (
            36,
            "IQ4_NL_4_4, which ggml has removed: convert the model again, to IQ4_NL",
        ),
        (
            37,
            "IQ4_NL_4_8, which ggml has removed: convert the model again, to IQ4_NL",
        ),
        (
            38,
            "IQ4_NL_8_8, which ggml has removed: convert the model again, to IQ4_NL",
        ),
        (40, "NVFP4"),
        (41, "Q1_0"),
        #[cfg(not(feature = "all-ggml-types"))]
        (
            16,
            "IQ2_XXS, which needs candle-core's feature `all-ggml-types`",
        ),
        #[cfg(not(feature = "all-ggml-types"))]
        (
            17,
            "IQ2_XS, which needs candle-core's feature `all-ggml-types`",
        ),
        #[cfg(not(feature = "all-ggml-types"))]
        (
            18,
            "IQ3_XXS, which needs candle-core's feature `all-ggml-types`",
        ),
        #[cfg(not(feature = "all-ggml-types"))]
        (
            19,
            "IQ1_S, which needs candle-core's feature `all-ggml-types`",
        ),
        #[cfg(not(feature = "all-ggml-types"))]
        (
            20,
            "IQ4_NL, which needs candle-core's feature `all-ggml-types`",
        ),
        #[cfg(not(feature = "all-ggml-types"))]
        (
            21,
            "IQ3_S, which needs candle-core's feature `all-ggml-types`",
        ),
        #[cfg(not(feature = "all-ggml-types"))]
        (
            22,
            "IQ2_S, which needs candle-core's feature `all-ggml-types`",
        ),
        #[cfg(not(feature = "all-ggml-types"))]
        (
            23,
            "IQ4_XS, which needs candle-core's feature `all-ggml-types`",
        ),
        #[cfg(not(feature = "all-ggml-types"))]
        (
            29,
            "IQ1_M, which needs candle-core's feature `all-ggml-types`",
        ),
        #[cfg(not(feature = "all-ggml-types"))]
        (
            34,
            "TQ1_0, which needs candle-core's feature `all-ggml-types`",
        ),
        #[cfg(not(feature = "all-ggml-types"))]
        (
            35,
            "TQ2_0, which needs candle-core's feature `all-ggml-types`",
        ),
        #[cfg(not(feature = "all-ggml-types"))]
        (
            39,
            "MXFP4, which needs candle-core's feature `all-ggml-types`",
        ),
    ];

    /// The format with this number in a file.
    pub(crate) fn from_u32(number: u32) -> Result<Self> {
        let found = Self::NUMBERS.iter().find(|(_, n)| *n == number);
        found.map(|(dtype, _)| *dtype).ok_or_else(|| {
            let name = Self::OTHERS.iter().find(|(n, _)| *n == number);
            let name = name.map_or(String::new(), |(_, name)| format!(" ({name})"));
            let supported = Self::NUMBERS
                .iter()
                .map(|(dtype, n)| format!("{n} ({dtype:?})"));
            let supported: Vec<_> = supported.collect();
            Error::Msg(format!(
                "GGML dtype {number}{name} is not supported; supported: {}",
                supported.join(", ")
            ))
            .bt()
        })
    }

    /// The number of this format in a file.
    pub(crate) fn to_u32(self) -> u32 {
        let found = Self::NUMBERS.iter().find(|(dtype, _)| *dtype == self);
        found.map_or(u32::MAX, |(_, number)| *number)
    }

    /// Bytes of a block.
    pub fn type_size(&self) -> usize {
        on_block_type!(self, size_of())
    }

    /// Elements of a block.
    pub fn block_size(&self) -> usize {
        fn elements<T: GgmlType>() -> usize {
            T::BLCK_SIZE
        }
        on_block_type!(self, elements())
    }

    /// Whether elements can be encoded. ggml encodes some of the formats only with a search over a grid.
    pub(crate) fn has_encoder(self) -> bool {
        fn encodes<T: GgmlType>() -> bool {
            T::ENCODES
        }
        on_block_type!(self, encodes())
    }

    /// Blocks on the CPU for `elem_count` elements, all zero. Excludes an incomplete block at the end.
    pub fn cpu_zeros(&self, elem_count: usize) -> Box<dyn QuantizedType> {
        on_block_type!(self, zeros(elem_count / self.block_size()))
    }

    /// Blocks on the CPU over bytes that another value keeps alive.
    pub(super) fn over_shared(self, bytes: super::blocks::Bytes) -> Box<dyn QuantizedType> {
        on_block_type!(self, from_shared(bytes))
    }

    /// Blocks on the CPU from their bytes. Owned bytes are used in place if their alignment allows it, others are copied. Bytes after the
    /// last whole block are ignored.
    pub fn from_data(&self, data: Cow<'_, [u8]>) -> Box<dyn QuantizedType> {
        on_block_type!(self, from_bytes(data))
    }
}
