//! The block formats of GGML: layouts, conversion from and to floats, and products.
//!
//! | file | contents |
//! | --- | --- |
//! | `blocks.rs` | the layouts, byte for byte those of a GGUF file |
//! | `decode.rs`, `elements.rs`, `pack.rs` | decoding elements and scales |
//! | `encode_legacy.rs`, `encode_k.rs`, `fit.rs` | the choice of scales and codes |
//! | `unpack_legacy.rs`, `unpack_k.rs`, `products.rs` | products, written once for all instruction sets |
//! | `panels.rs`, `lanes.rs`, `activations.rs`, `unpack_panels.rs` | products with many rows at a time |
//! | `one_row.rs` | products with one row of activations, prepared once for all threads |
//! | `table_blocks.rs`, `grids.rs` | the formats whose codes are looked up in tables: layouts, decoding, products (feature `all-ggml-types`) |
//! | `table_format.rs` | their form on a GPU |
//! | `prepared.rs` | the dense side of a product, prepared for one of these kernels |
//! | `simd.rs`, `scalar.rs`, `../avx*.rs`, `../neon*.rs`, `../simd128*.rs` | the instruction sets |
//! | `level.rs` | their selection at run time |
//!
//! ```
//! use candle_core::quantized::k_quants::{BlockQ4K, BlockQ8K, GgmlType, QK_K};
//!
//! let xs: Vec<f32> = (0..2 * QK_K).map(|i| (i as f32 * 0.1).sin()).collect();
//! let mut weights = vec![BlockQ4K::zeros(); 2];
//! BlockQ4K::from_float(&xs, &mut weights);
//! let mut activations = vec![BlockQ8K::zeros(); 2];
//! BlockQ8K::from_float(&xs, &mut activations);
//! let dot = BlockQ4K::vec_dot(2 * QK_K, &weights, &activations);
//! let exact: f32 = xs.iter().map(|x| x * x).sum();
//! assert!((dot - exact).abs() < 0.01 * exact);
//! ```

// Unsafe code is where the instructions are: `../avx*.rs`, `../neon*.rs`, `../simd128*.rs`.
#![deny(unsafe_code)]
#![cfg_attr(
    not(any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        target_feature = "simd128"
    )),
    allow(dead_code, reason = "without vectors there are no panels")
)]

// Unused on targets without panels; only x86-64 has kernels for one row.
pub(crate) mod activations;
mod blocks;
mod decode;
mod elements;
mod encode_k;
mod encode_legacy;
mod fit;
#[cfg(feature = "all-ggml-types")]
mod grids;
pub(crate) mod lanes;
pub(crate) mod level;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only x86-64 has kernels for one row")
)]
pub(crate) mod one_row;
mod pack;
pub(crate) mod panels;
pub(crate) mod prepared;
pub(crate) mod products;
pub(crate) mod scalar;
pub(crate) mod simd;
#[cfg(feature = "all-ggml-types")]
mod table_blocks;
#[cfg(feature = "webgpu")]
mod table_format;
#[cfg(test)]
mod tests;
mod unpack_k;
mod unpack_legacy;
mod unpack_panels;

pub use super::matmul::{matmul, matmul_f16};
pub use super::GgmlType;
pub use blocks::*;
#[cfg(feature = "all-ggml-types")]
pub use table_blocks::{
    BlockIQ1M, BlockIQ1S, BlockIQ2S, BlockIQ2XS, BlockIQ2XXS, BlockIQ3S, BlockIQ3XXS, BlockIQ4NL,
    BlockIQ4XS, BlockMXFP4, BlockTQ1_0, BlockTQ2_0, QK4_NL, QK_MXFP4,
};
#[cfg(feature = "webgpu")]
pub(crate) use table_format::TableFormat;

use super::{utils, GgmlDType};
use decode::Decode;
use elements::elements;
use encode_legacy::{Encode, Importance};
use level::{dispatch, run_at, Level};
use prepared::{DenseRows, Prepared};
use products::BlockTile;
use simd::{Kernel, Simd};

/// [`GgmlType::to_float`]
struct ToFloat<'a, T> {
    xs: &'a [T],
    ys: &'a mut [f32],
}

impl<T: Decode + GgmlType> Kernel for ToFloat<'_, T> {
    type Output = ();
    const PRODUCTS: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (x, ys) in self.xs.iter().zip(self.ys.chunks_exact_mut(T::BLCK_SIZE)) {
            x.decode(ys);
        }
    }
}

fn decoded<T: Decode + GgmlType>(xs: &[T], ys: &mut [f32]) {
    dispatch(ToFloat { xs, ys })
}

/// The searches for scales.
#[derive(Clone, Copy)]
enum How<'a> {
    AsAtFirst,
    AsGgml,
    /// As in ggml, with the importance of each column, for rows of this length.
    Weighted(&'a [f32]),
}

/// [`GgmlType::from_float`], and with weights [`GgmlType::from_float_imatrix`].
struct FromFloat<'a, T, const LEN: usize> {
    xs: &'a [f32],
    ys: &'a mut [T],
    how: How<'a>,
}

impl<T: Encode<LEN>, const LEN: usize> Kernel for FromFloat<'_, T, LEN> {
    type Output = ();
    const PRODUCTS: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (xs, _) = self.xs.as_chunks::<LEN>();
        let weights = match self.how {
            How::AsAtFirst | How::Weighted([]) => {
                for (xs, y) in xs.iter().zip(self.ys) {
                    *y = T::encode_as_at_first(s, xs);
                }
                return;
            }
            How::AsGgml => {
                for (xs, y) in xs.iter().zip(self.ys) {
                    *y = T::encode(s, xs, None);
                }
                return;
            }
            How::Weighted(weights) => weights.as_chunks::<LEN>().0,
        };
        let rows = xs.chunks(weights.len());
        for (xs, ys) in rows.zip(self.ys.chunks_mut(weights.len())) {
            let row = xs.as_flattened();
            let spread = fit::sum_of_squares(row) / row.len() as f32;
            for ((xs, y), weights) in xs.iter().zip(ys).zip(weights) {
                // Weights that are all zero carry no information.
                *y = if weights.iter().any(|&w| w > 0.) {
                    T::encode(s, xs, Some(Importance { weights, spread }))
                } else {
                    T::encode_as_at_first(s, xs)
                };
            }
        }
    }
}

/// # Panics
/// If the number of `elements` is not that of `blocks`.
#[inline]
fn check_len<T: GgmlType>(op: &str, elements: usize, blocks: usize) {
    assert!(
        elements == blocks * T::BLCK_SIZE,
        "{op}: {blocks} blocks of {:?} have {} elements, found {elements}",
        T::DTYPE,
        blocks * T::BLCK_SIZE
    );
}

/// The encoders of a format that has them.
macro_rules! encoders {
    ($len:ident) => {
        fn from_float(xs: &[f32], ys: &mut [Self]) {
            check_len::<Self>("from_float", xs.len(), ys.len());
            dispatch(FromFloat::<Self, $len> { xs, ys, how: How::AsAtFirst })
        }

        fn from_float_as_ggml(xs: &[f32], ys: &mut [Self]) {
            check_len::<Self>("from_float_as_ggml", xs.len(), ys.len());
            dispatch(FromFloat::<Self, $len> { xs, ys, how: How::AsGgml })
        }

        /// Searches for scales with little `Σ w[column] · (x − decoded)²`; the bits are those of ggml. The 8-bit formats ignore weights,
        /// and a block whose weights are all zero is encoded without them.
        fn from_float_imatrix(
            xs: &[f32],
            ys: &mut [Self],
            imatrix_weights: &[f32],
            n_per_row: usize,
        ) {
            check_len::<Self>("from_float_imatrix", xs.len(), ys.len());
            assert!(
                imatrix_weights.len() == n_per_row && n_per_row.is_multiple_of($len),
                "from_float_imatrix: rows of {n_per_row} elements, a multiple of {}, need as many weights, found {}",
                $len,
                imatrix_weights.len()
            );
            dispatch(FromFloat::<Self, $len> { xs, ys, how: How::Weighted(imatrix_weights) })
        }
    };
}

/// The encoders of a format without encoders; they cannot return an error.
#[cfg(feature = "all-ggml-types")]
macro_rules! no_encoders {
    ($len:ident) => {
        const ENCODES: bool = false;

        /// # Panics
        /// Always: the format can only be read. `QTensor::quantize` returns an error.
        fn from_float(_xs: &[f32], _ys: &mut [Self]) {
            panic!("from_float: {:?} has no encoder", Self::DTYPE)
        }
    };
}

macro_rules! block_types {
    ($($ty:ident, $dtype:ident, $len:ident, $other:ident, $to_float:ident, $prepare:ident, $encoders:ident;)*) => {$(
        /// Panics, with both sizes, if the slices do not match or `n` is not a whole number of blocks.
        impl GgmlType for $ty {
            const DTYPE: GgmlDType = GgmlDType::$dtype;
            const BLCK_SIZE: usize = $len;
            type VecDotType = $other;

            fn to_float(xs: &[Self], ys: &mut [f32]) {
                check_len::<Self>("to_float", ys.len(), xs.len());
                $to_float(xs, ys)
            }

            $encoders!($len);

            fn vec_dot(n: usize, xs: &[Self], ys: &[$other]) -> f32 {
                let mut dot = [0.];
                dispatch(BlockTile::one(n, xs, ys, &mut dot));
                dot[0]
            }

            fn vec_dot_unopt(n: usize, xs: &[Self], ys: &[$other]) -> f32 {
                let mut dot = [0.];
                run_at(Level::Scalar, BlockTile::one(n, xs, ys, &mut dot));
                dot[0]
            }

            fn vec_dot_tile(n: usize, xs: &[Self], ys: &[$other], dst: &mut [f32]) {
                dispatch(BlockTile::new(n, xs, ys, dst))
            }

            fn prepare(rows: &DenseRows<'_>) -> Prepared<Self> {
                prepared::$prepare(rows)
            }
        }
    )*};
}

block_types! {
    BlockQ4_0, Q4_0, QK4_0, BlockQ8_0, elements, panels_or_few_rows, encoders;
    BlockQ4_1, Q4_1, QK4_1, BlockQ8_1, elements, panels, encoders;
    BlockQ5_0, Q5_0, QK5_0, BlockQ8_0, elements, panels_or_few_rows, encoders;
    BlockQ5_1, Q5_1, QK5_1, BlockQ8_1, elements, panels, encoders;
    BlockQ8_0, Q8_0, QK8_0, BlockQ8_0, elements, panels_or_few_rows, encoders;
    BlockQ8_1, Q8_1, QK8_1, BlockQ8_1, decoded, rows, encoders;
    BlockQ2K, Q2K, QK_K, BlockQ8K, elements, panels, encoders;
    BlockQ3K, Q3K, QK_K, BlockQ8K, elements, panels, encoders;
    BlockQ4K, Q4K, QK_K, BlockQ8K, elements, panels_or_few_rows, encoders;
    BlockQ5K, Q5K, QK_K, BlockQ8K, elements, panels_or_few_rows, encoders;
    BlockQ6K, Q6K, QK_K, BlockQ8K, elements, panels, encoders;
    BlockQ8K, Q8K, QK_K, BlockQ8K, decoded, rows, encoders;
}

#[cfg(feature = "all-ggml-types")]
block_types! {
    BlockIQ1S, IQ1S, QK_K, BlockQ8K, decoded, rows, no_encoders;
    BlockIQ1M, IQ1M, QK_K, BlockQ8K, decoded, rows, no_encoders;
    BlockIQ2XXS, IQ2XXS, QK_K, BlockQ8K, decoded, rows, no_encoders;
    BlockIQ2XS, IQ2XS, QK_K, BlockQ8K, decoded, rows, no_encoders;
    BlockIQ2S, IQ2S, QK_K, BlockQ8K, decoded, rows, no_encoders;
    BlockIQ3XXS, IQ3XXS, QK_K, BlockQ8K, decoded, rows, no_encoders;
    BlockIQ3S, IQ3S, QK_K, BlockQ8K, decoded, rows, no_encoders;
    BlockIQ4NL, IQ4NL, QK4_NL, BlockQ8_0, elements, panels, encoders;
    BlockIQ4XS, IQ4XS, QK_K, BlockQ8K, decoded, rows, no_encoders;
    BlockTQ1_0, TQ1_0, QK_K, BlockQ8K, decoded, rows, encoders;
    BlockTQ2_0, TQ2_0, QK_K, BlockQ8K, decoded, rows, encoders;
    BlockMXFP4, MXFP4, QK_MXFP4, BlockQ8_0, decoded, rows, encoders;
}
