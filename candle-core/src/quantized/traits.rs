//! The interface of a block format ([`GgmlType`]), and of rows of blocks in any format ([`QuantizedType`]).

use half::{bf16, f16};

use super::k_quants::prepared::{DenseRows, Prepared};
use super::GgmlDType;
use crate::{CpuStorage, Error, Result};

/// A block of quantised elements in GGML's layout.
///
/// All methods work on whole blocks: slices of floats hold `BLCK_SIZE` elements for each block.
pub trait GgmlType: Sized + Clone + Send + Sync {
    /// The format.
    const DTYPE: GgmlDType;
    /// Elements of a block.
    const BLCK_SIZE: usize;
    /// Whether [`direct_copy`](Self::direct_copy) converts floats without a search for scales.
    const DIRECT_COPY: bool = false;
    /// Whether the format has encoders. Otherwise [`from_float`](Self::from_float) and its variants panic; `QTensor::quantize` returns an
    /// error.
    #[doc(hidden)]
    const ENCODES: bool = true;
    /// The format of the other side of a product.
    type VecDotType: GgmlType;

    /// A block whose bytes are all zero. A type for which these bytes are not a valid value has to define this method.
    fn zeros() -> Self {
        // SAFETY: blocks are plain numbers, for which zero bytes are a valid value; other types define the method themselves.
        unsafe { std::mem::MaybeUninit::zeroed().assume_init() }
    }

    /// The elements of blocks.
    fn to_float(xs: &[Self], ys: &mut [f32]);

    /// Encodes elements with Candle's values: the search for scales is that of ggml's first version.
    /// [`from_float_as_ggml`](Self::from_float_as_ggml) uses the current one.
    fn from_float(xs: &[f32], ys: &mut [Self]);

    /// Like [`from_float`](Self::from_float), with the errors weighted by column. There are `n_per_row` elements per row and `n_per_row`
    /// weights. A format without a weighted search ignores them.
    fn from_float_imatrix(
        _xs: &[f32],
        _ys: &mut [Self],
        _imatrix_weights: &[f32],
        _n_per_row: usize,
    ) {
        Self::from_float(_xs, _ys)
    }

    /// Converts floats singly, for formats with [`DIRECT_COPY`](Self::DIRECT_COPY).
    fn direct_copy(_xs: &[f32], _ys: &mut [Self]) {
        Self::from_float(_xs, _ys)
    }

    /// Like [`from_float`](Self::from_float), with the bits of ggml's current reference encoder. For `Q2K`, `Q4K`, `Q5K` and `Q6K` that is
    /// a longer search, with smaller errors, than the one of ggml's first version, which Candle and `from_float` use; for `Q8_1` the sum of
    /// a block is rounded once less.
    fn from_float_as_ggml(xs: &[f32], ys: &mut [Self]) {
        Self::from_float(xs, ys)
    }

    /// The sum of the products of `n` elements, with this CPU's best instruction set.
    fn vec_dot(n: usize, xs: &[Self], ys: &[Self::VecDotType]) -> f32;

    /// Like [`vec_dot`](Self::vec_dot), in plain Rust: the reference for the other implementations.
    fn vec_dot_unopt(n: usize, xs: &[Self], ys: &[Self::VecDotType]) -> f32;

    /// [`vec_dot`](Self::vec_dot) of two rows with one row of the other side, which is read once.
    fn vec_dot_2(n: usize, xs0: &[Self], xs1: &[Self], ys: &[Self::VecDotType]) -> (f32, f32) {
        (Self::vec_dot(n, xs0, ys), Self::vec_dot(n, xs1, ys))
    }

    /// [`vec_dot`](Self::vec_dot) of four rows with one row of the other side, which is read once.
    fn vec_dot_4(
        n: usize,
        xs0: &[Self],
        xs1: &[Self],
        xs2: &[Self],
        xs3: &[Self],
        ys: &[Self::VecDotType],
    ) -> (f32, f32, f32, f32) {
        let (d0, d1) = Self::vec_dot_2(n, xs0, xs1, ys);
        let (d2, d3) = Self::vec_dot_2(n, xs2, xs3, ys);
        (d0, d1, d2, d3)
    }

    /// Converts the dense side of a product with rows of `Self` to the fastest form for this format, this CPU and this number of rows.
    #[doc(hidden)]
    fn prepare(rows: &DenseRows<'_>) -> Prepared<Self> {
        Prepared::blocks(rows)
    }

    /// The products of every row of `xs` with every row of `ys`, contiguous rows of `n` elements each: `dst[j * rows(xs) + i]` is row `i`
    /// of `xs` times row `j` of `ys`.
    ///
    /// The inner loop of a quantised matrix product: one row of `ys` for a single token, several for a prompt. A format overrides it to
    /// detect CPU features once, and to unpack a block once for several rows of `ys`.
    fn vec_dot_tile(n: usize, xs: &[Self], ys: &[Self::VecDotType], dst: &mut [f32]) {
        let x_blocks = n / Self::BLCK_SIZE;
        let y_blocks = n / Self::VecDotType::BLCK_SIZE;
        if x_blocks == 0 || y_blocks == 0 {
            return dst.fill(0.);
        }
        let x_rows = xs.len() / x_blocks;
        if x_rows == 0 {
            return;
        }
        for (ys, dst) in ys.chunks_exact(y_blocks).zip(dst.chunks_exact_mut(x_rows)) {
            for (xs, dst) in xs.chunks(4 * x_blocks).zip(dst.chunks_mut(4)) {
                let x = |i: usize| &xs[i * x_blocks..(i + 1) * x_blocks];
                match dst {
                    [d0, d1, d2, d3] => {
                        (*d0, *d1, *d2, *d3) = Self::vec_dot_4(n, x(0), x(1), x(2), x(3), ys);
                    }
                    rest => {
                        for (i, d) in rest.iter_mut().enumerate() {
                            *d = Self::vec_dot(n, x(i), ys);
                        }
                    }
                }
            }
        }
    }
}

/// Rows of blocks on the CPU, in any format.
///
/// Sizes are in elements unless a name says bytes; `mkn` are the rows of the left-hand side, the length of a row, and the number of these
/// rows.
pub trait QuantizedType: Send + Sync {
    /// The format.
    fn dtype(&self) -> GgmlDType;

    /// `dst = lhs * self^T`: `lhs` is `(m, k)`, the blocks hold `(n, k)`, `dst` is `(m, n)`, all row-major.
    ///
    /// # Errors
    /// When `k` is not a multiple of the block size, or a slice is too short.
    fn matmul_t(&self, mkn: (usize, usize, usize), lhs: &[f32], dst: &mut [f32]) -> Result<()>;

    /// Like [`matmul_t`](Self::matmul_t), from f16 to f16; sums are f32.
    fn matmul_t_f16(&self, mkn: (usize, usize, usize), lhs: &[f16], dst: &mut [f16]) -> Result<()>;

    /// Like [`matmul_t`](Self::matmul_t) with the rows from `first_row` on: one of several consecutive matrices, such as the experts of a
    /// mixture.
    ///
    /// # Errors
    /// As `matmul_t`; and when `first_row` is not 0 and the type does not support it.
    fn matmul_t_from(
        &self,
        first_row: usize,
        mkn: (usize, usize, usize),
        lhs: &[f32],
        dst: &mut [f32],
    ) -> Result<()> {
        if first_row != 0 {
            return Err(Error::Msg(format!(
                "no matmul with rows from {first_row} for this {:?} storage",
                self.dtype()
            ))
            .bt());
        }
        self.matmul_t(mkn, lhs, dst)
    }

    /// The rows `ids` of this table `(rows, hidden)`, as f32: `(ids.len(), hidden)`.
    ///
    /// # Errors
    /// When an id is not below `rows`, or `hidden` is not a multiple of the block size.
    fn embedding(&self, ids: &[u32], rows: usize, hidden: usize) -> Result<CpuStorage>;

    /// The first `elem_count` elements, as f32.
    ///
    /// # Errors
    /// When there are fewer.
    fn dequantize(&self, elem_count: usize) -> Result<CpuStorage>;

    /// Bytes of all blocks.
    fn storage_size_in_bytes(&self) -> usize;

    /// The first byte of the blocks.
    fn as_ptr(&self) -> *const u8;

    /// Elements of a block.
    fn block_size(&self) -> usize;

    /// Quantises `xs` into the blocks; the sizes have to match.
    #[allow(clippy::wrong_self_convention, reason = "upstream's name")]
    fn from_float(&mut self, xs: &[f32]);

    /// Like [`from_float`](Self::from_float), with the bits of ggml's current reference encoder.
    #[allow(clippy::wrong_self_convention, reason = "named after from_float")]
    fn from_float_as_ggml(&mut self, xs: &[f32]) {
        self.from_float(xs)
    }

    /// Like [`from_float`](Self::from_float), with a weight for each of the `n_per_row` columns.
    #[allow(clippy::wrong_self_convention, reason = "upstream's name")]
    fn from_float_imatrix(&mut self, xs: &[f32], imatrix_weights: &[f32], n_per_row: usize);

    /// Bytes of all blocks.
    fn size(&self) -> usize;
}

/// Number of elements that a dot product of floats converts at a time, into a buffer on the stack.
const PIECE: usize = 256;

/// The dot product, in eight partial sums that the compiler vectorises.
fn dot(xs: &[f32], ys: &[f32]) -> f32 {
    let mut sums = [0f32; 8];
    let (xs, ys) = (xs.chunks_exact(8), ys.chunks_exact(8));
    let rest: f32 = xs
        .remainder()
        .iter()
        .zip(ys.remainder())
        .map(|(x, y)| x * y)
        .sum();
    for (x, y) in xs.zip(ys) {
        for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
            *sum += x * y;
        }
    }
    sums.iter().sum::<f32>() + rest
}

macro_rules! half_blocks {
    ($ty:ident, $dtype:ident) => {
        impl GgmlType for $ty {
            const DTYPE: GgmlDType = GgmlDType::$dtype;
            const BLCK_SIZE: usize = 1;
            const DIRECT_COPY: bool = true;
            type VecDotType = $ty;

            fn to_float(xs: &[Self], ys: &mut [f32]) {
                use half::slice::HalfFloatSliceExt;
                xs.convert_to_f32_slice(ys)
            }

            fn from_float(xs: &[f32], ys: &mut [Self]) {
                use half::slice::HalfFloatSliceExt;
                ys.convert_from_f32_slice(xs)
            }

            fn vec_dot(n: usize, xs: &[Self], ys: &[Self]) -> f32 {
                let (mut x_floats, mut y_floats) = ([0f32; PIECE], [0f32; PIECE]);
                let mut sum = 0.;
                for (xs, ys) in xs[..n].chunks(PIECE).zip(ys[..n].chunks(PIECE)) {
                    let (x_floats, y_floats) =
                        (&mut x_floats[..xs.len()], &mut y_floats[..xs.len()]);
                    Self::to_float(xs, x_floats);
                    Self::to_float(ys, y_floats);
                    sum += dot(x_floats, y_floats);
                }
                sum
            }

            fn vec_dot_unopt(n: usize, xs: &[Self], ys: &[Self]) -> f32 {
                let pairs = xs[..n].iter().zip(&ys[..n]);
                pairs.map(|(x, y)| x.to_f64() * y.to_f64()).sum::<f64>() as f32
            }
        }
    };
}

half_blocks!(f16, F16);
half_blocks!(bf16, BF16);

impl GgmlType for f32 {
    const DTYPE: GgmlDType = GgmlDType::F32;
    const BLCK_SIZE: usize = 1;
    const DIRECT_COPY: bool = true;
    type VecDotType = f32;

    fn to_float(xs: &[Self], ys: &mut [f32]) {
        ys.copy_from_slice(xs)
    }

    fn from_float(xs: &[f32], ys: &mut [Self]) {
        ys.copy_from_slice(xs)
    }

    fn vec_dot(n: usize, xs: &[Self], ys: &[Self]) -> f32 {
        dot(&xs[..n], &ys[..n])
    }

    fn vec_dot_unopt(n: usize, xs: &[Self], ys: &[Self]) -> f32 {
        let pairs = xs[..n].iter().zip(&ys[..n]);
        let products = pairs.map(|(&x, &y)| f64::from(x) * f64::from(y));
        products.sum::<f64>() as f32
    }
}
