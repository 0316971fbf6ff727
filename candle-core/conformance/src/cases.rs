//! The list of ops.

use candle_core::{DType, Result, Tensor};

use super::compare::Tolerance;
use super::inputs::Inputs;

/// The required agreement of a result with the CPU's.
#[derive(Debug, Clone, Copy)]
enum Near {
    /// Bitwise equal, NaN included.
    Same,
    /// Computed by IEEE 754 in f32 (or f64), then rounded to the dtype; +0 and -0 count as equal.
    Exact,
    /// Equal within this relative error in f32, and within an absolute one near 0; see `elementwise` for the reasons.
    Within(f64, f64),
    /// Sums of products that are exact in f32, with up to this many intermediate roundings to the dtype.
    Rounded(f64),
}

/// One op of the list.
pub struct Case {
    /// Its name, also used by [`crate::MISSING`] and by the table in `docs/webgpu-ops.md`.
    pub name: &'static str,
    /// The op's family.
    pub family: &'static str,
    /// Whether integers support it.
    pub integers: bool,
    /// Runs it on the device of the arguments.
    pub run: fn(&Inputs) -> Result<Tensor>,
    near: Near,
}

impl Case {
    /// The op's name in errors.
    pub fn op(&self) -> &'static str {
        match self.name {
            name if self.family == "conversion" && !name.is_empty() => "to_dtype",
            "sum_all" => "sum",
            name => name,
        }
    }

    /// `None`: every bit, through text.
    pub fn tolerance(&self, dtype: DType) -> Option<Tolerance> {
        let integer = dtype.is_int();
        match self.near {
            Near::Same => None,
            _ if integer => None,
            Near::Exact => Some(Tolerance::EXACT),
            // f64's functions are sums of series, accurate to 12 digits.
            Near::Within(..) if dtype == DType::F64 => {
                Some(Tolerance::of(dtype, 1e-12).or_absolute(1e-14))
            }
            Near::Within(relative, absolute) => {
                Some(Tolerance::of(dtype, relative).or_absolute(absolute))
            }
            Near::Rounded(times) => Some(Tolerance::of(dtype, 1e-6).times(times)),
        }
    }
}

const fn op(
    family: &'static str,
    name: &'static str,
    near: Near,
    run: fn(&Inputs) -> Result<Tensor>,
) -> Case {
    Case {
        name,
        family,
        integers: true,
        run,
        near,
    }
}

const fn floats(
    family: &'static str,
    name: &'static str,
    near: Near,
    run: fn(&Inputs) -> Result<Tensor>,
) -> Case {
    Case {
        integers: false,
        ..op(family, name, near, run)
    }
}

use Near::{Exact, Rounded, Same, Within};

const F: &str = "functions";
const B: &str = "arithmetic";
const C: &str = "comparison";
const T: &str = "conversion";
const R: &str = "reduction";
const M: &str = "movement";
const I: &str = "indexing";
const P: &str = "products";
const W: &str = "windows";
const N: &str = "random numbers";

/// Every op.
pub const CASES: &[Case] = &[
    op(F, "abs", Exact, |i| i.x.abs()),
    op(F, "neg", Exact, |i| i.x.neg()),
    op(F, "sqr", Exact, |i| i.x.sqr()),
    op(F, "relu", Exact, |i| i.x.relu()),
    op(F, "ceil", Exact, |i| i.x.ceil()),
    op(F, "floor", Exact, |i| i.x.floor()),
    op(F, "round", Exact, |i| i.x.round()),
    op(F, "sign", Exact, |i| i.x.sign()),
    op(F, "affine", Exact, |i| i.x.affine(3., -2.)),
    floats(F, "recip", Within(3e-7, 0.), |i| i.x.recip()),
    floats(F, "sqrt", Within(4e-7, 0.), |i| i.y.sqrt()),
    floats(F, "exp", Within(3e-6, 0.), |i| i.x.exp()),
    floats(F, "log", Within(1e-6, 1e-6), |i| i.y.log()),
    floats(F, "sin", Within(1e-6, 1e-6), |i| i.x.sin()),
    floats(F, "cos", Within(1e-6, 1e-6), |i| i.x.cos()),
    floats(F, "tanh", Within(2e-6, 0.), |i| i.x.tanh()),
    floats(F, "erf", Within(1e-6, 0.), |i| i.x.erf()),
    floats(F, "silu", Within(3e-6, 0.), |i| i.x.silu()),
    floats(F, "gelu", Within(3e-5, 1e-6), |i| i.x.gelu()),
    floats(F, "gelu_erf", Within(6e-5, 1e-6), |i| i.x.gelu_erf()),
    floats(F, "elu", Within(3e-6, 0.), |i| i.x.elu(1.5)),
    floats(F, "powf", Within(3e-6, 0.), |i| i.y.powf(1.5)),
    op(B, "add", Exact, |i| &i.x + &i.y),
    op(B, "sub", Exact, |i| &i.x - &i.y),
    op(B, "mul", Exact, |i| &i.x * &i.y),
    op(B, "div", Within(3e-7, 0.), |i| &i.x / &i.y),
    op(B, "minimum", Exact, |i| i.x.minimum(&i.y)),
    op(B, "maximum", Exact, |i| i.x.maximum(&i.y)),
    op(C, "eq", Same, |i| i.x.eq(&i.y)),
    op(C, "ne", Same, |i| i.x.ne(&i.y)),
    op(C, "lt", Same, |i| i.x.lt(&i.y)),
    op(C, "le", Same, |i| i.x.le(&i.y)),
    op(C, "gt", Same, |i| i.x.gt(&i.y)),
    op(C, "ge", Same, |i| i.x.ge(&i.y)),
    op(C, "where_cond", Same, |i| i.mask.where_cond(&i.x, &i.y)),
    op(T, "to u8", Same, |i| i.x.to_dtype(DType::U8)),
    op(T, "to u32", Same, |i| i.x.to_dtype(DType::U32)),
    op(T, "to i16", Same, |i| i.x.to_dtype(DType::I16)),
    op(T, "to i32", Same, |i| i.x.to_dtype(DType::I32)),
    op(T, "to i64", Same, |i| i.x.to_dtype(DType::I64)),
    op(T, "to bf16", Same, |i| i.x.to_dtype(DType::BF16)),
    op(T, "to f16", Same, |i| i.x.to_dtype(DType::F16)),
    op(T, "to f32", Same, to_f32),
    op(T, "to f64", Same, |i| i.x.to_dtype(DType::F64)),
    op(T, "to f8e4m3", Same, |i| i.x.to_dtype(DType::F8E4M3)),
    op(R, "sum", Exact, |i| i.x.sum(1)),
    op(R, "sum_all", Exact, |i| i.x.sum_all()),
    op(R, "min", Same, |i| i.x.min(0)),
    op(R, "max", Same, |i| i.x.max(1)),
    op(R, "argmin", Same, |i| i.x.argmin(1)),
    op(R, "argmax", Same, |i| i.x.argmax(0)),
    op(R, "arg_sort_last_dim", Same, |i| {
        i.x.arg_sort_last_dim(true)
    }),
    op(M, "copy", Same, |i| i.x.copy()),
    op(M, "contiguous", Same, |i| i.x.unsqueeze(0)?.contiguous()),
    op(M, "cat", Same, |i| Tensor::cat(&[&i.x, &i.y, &i.x], 1)),
    op(M, "slice_set", Same, |i| {
        let (h, w) = i.x.dims2()?;
        let t = Tensor::zeros((h, w + 3), i.x.dtype(), i.x.device())?;
        t.slice_set(&i.x.contiguous()?, 1, 2)?;
        Ok(t)
    }),
    op(M, "const_set", Same, |i| {
        let t = i.x.copy()?;
        t.narrow(1, 0, 1)?.one_set()?;
        Ok(t)
    }),
    op(M, "zeros", Same, |i| i.x.zeros_like()),
    op(M, "ones", Same, |i| i.x.ones_like()),
    op(I, "index_select", Same, |i| i.x.index_select(&i.rows, 0)),
    op(I, "gather", Same, |i| i.x.gather(&i.columns, 1)),
    op(I, "scatter", Same, |i| i.x.scatter(&i.columns, &i.y, 1)),
    op(I, "scatter_add", Exact, |i| {
        i.x.scatter_add(&i.columns, &i.y, 1)
    }),
    op(I, "index_add", Exact, |i| i.x.index_add(&i.rows, &i.y, 0)),
    op(P, "matmul", Rounded(1.), |i| i.x.matmul(&i.y.t()?)),
    op(P, "conv1d", Rounded(1.), |i| {
        i.signal()?
            .conv1d(&i.kernel(&[2, i.x.dim(0)?, 3])?, 1, 1, 1, 1)
    }),
    op(P, "conv2d", Rounded(1.), |i| {
        i.image()?.conv2d(&i.kernel(&[2, 1, 3, 2])?, 1, 2, 1, 1)
    }),
    op(P, "conv_transpose1d", Rounded(1.), |i| {
        i.signal()?
            .conv_transpose1d(&i.kernel(&[i.x.dim(0)?, 2, 3])?, 1, 0, 2, 1, 1)
    }),
    op(P, "conv_transpose2d", Rounded(1.), |i| {
        i.image()?
            .conv_transpose2d(&i.kernel(&[1, 2, 3, 2])?, 1, 0, 2, 1)
    }),
    op(W, "avg_pool2d", Within(3e-7, 0.), |i| {
        i.image()?.avg_pool2d((2, 3))
    }),
    op(W, "max_pool2d", Same, |i| {
        i.image()?.max_pool2d_with_stride((2, 2), (1, 2))
    }),
    op(W, "upsample_nearest1d", Same, |i| {
        i.signal()?.upsample_nearest1d(10)
    }),
    op(W, "upsample_nearest2d", Same, |i| {
        i.image()?.upsample_nearest2d(9, 4)
    }),
    op(W, "upsample_bilinear2d", Within(1e-6, 1e-6), |i| {
        i.image()?.upsample_bilinear2d(8, 11, false)
    }),
    // Whether they are in range; the tests in `random` check their distribution.
    floats(N, "rand_uniform", Same, |i| {
        let t = i.x.rand_like(0., 1.)?;
        t.ge(0.)?.mul(&t.le(1.)?)
    }),
    floats(N, "rand_normal", Same, |i| {
        i.x.randn_like(0., 1.)?.abs()?.lt(10.)
    }),
];

/// With 32 bits also of numbers that f32 cannot represent: the CPU rounds them to the nearest.
fn to_f32(i: &Inputs) -> Result<Tensor> {
    let converted = i.x.to_dtype(DType::F32)?;
    match i.x.dtype() {
        DType::U32 | DType::I32 => {
            // 125 times this number just fits an i32.
            let large = i.x.affine(16_777_259., 0.)?.to_dtype(DType::F32)?;
            Tensor::cat(&[converted, large], 0)
        }
        _ => Ok(converted),
    }
}
