//! The list of ops. Tests compare each on every device with the CPU and with crates.io's, and check its gradient; `versus` times it.
//!
//! `oracle/ops` and `versus` compile this file as well, against the crate that its parent module names `candle_core`. It uses no other.

use super::candle_core::{DType, Device, Result, Tensor};

/// The required agreement of a result with the CPU's.
#[derive(Debug, Clone, Copy)]
pub enum Near {
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
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name, also used by the list of missing ops and by the table in `docs/webgpu-ops.md`.
    pub name: &'static str,
    /// The op's family.
    pub family: &'static str,
    /// Whether integers support it.
    pub integers: bool,
    /// Runs it on the device of the arguments.
    pub run: fn(&Inputs) -> Result<Tensor>,
    /// The required agreement.
    pub near: Near,
    /// For an op with a gradient: the range of `x` and `y` in which it is smooth.
    pub grad: Option<(f64, f64)>,
    /// Whether the gradient is also defined where elements of an argument are equal.
    pub smooth: bool,
}

impl Case {
    const fn grad(mut self, lo: f64, hi: f64) -> Self {
        self.grad = Some((lo, hi));
        self
    }

    /// Like [`Self::grad`], for an op that has a kink where elements are equal.
    const fn kinks(mut self, lo: f64, hi: f64) -> Self {
        self.smooth = false;
        self.grad(lo, hi)
    }
}

/// The arguments of a case. Ops on single elements take any shape, the others a matrix.
pub struct Inputs {
    /// A tensor of the tested dtype and layout.
    pub x: Tensor,
    /// Like `x`; elements are greater than 0, except in checks of gradients.
    pub y: Tensor,
    /// A mask of `x`'s shape, u8; some elements are 0.
    pub mask: Tensor,
    /// Columns of `x`: of `x`'s shape, u32, contiguous; within a row all differ unless the width is a multiple of 3.
    pub columns: Tensor,
    /// Rows of `x`, one of them twice: one index for each row of `x`, u32.
    pub rows: Tensor,
}

impl Inputs {
    /// `x` and `y`, with a contiguous mask.
    ///
    /// # Errors
    /// Memory runs out.
    pub fn of(x: Tensor, y: Tensor) -> Result<Self> {
        let (len, device) = (x.elem_count(), x.device());
        let h = x.dims().first().copied().unwrap_or(1);
        let w = x.dims().last().copied().unwrap_or(1);
        let mask: Vec<u8> = (0..len)
            .map(|i| u8::from((i * 7919 + 13) % 251 > 120))
            .collect();
        let columns: Vec<u32> = (0..len).map(|i| (i * 3 % w) as u32).collect();
        let rows: Vec<u32> = (0..h).map(|i| (i * i % h) as u32).collect();
        Ok(Self {
            mask: Tensor::from_vec(mask, x.shape(), device)?,
            columns: Tensor::from_vec(columns, x.shape(), device)?,
            rows: Tensor::from_vec(rows, h, device)?,
            x,
            y,
        })
    }

    /// `x` as one image of one channel.
    fn image(&self) -> Result<Tensor> {
        self.x.unsqueeze(0)?.unsqueeze(0)
    }

    /// `x` as one signal with one channel per row.
    fn signal(&self) -> Result<Tensor> {
        self.x.unsqueeze(0)
    }

    /// A kernel of numbers below 4, of `x`'s dtype.
    fn kernel(&self, shape: &[usize]) -> Result<Tensor> {
        let len: usize = shape.iter().product();
        let numbers: Vec<u8> = (0..len).map(|i| (i * 5 % 4) as u8).collect();
        let kernel = Tensor::from_vec(numbers, shape, &Device::Cpu)?;
        kernel.to_dtype(self.x.dtype())?.to_device(self.x.device())
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
        grad: None,
        smooth: true,
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
    op(F, "abs", Exact, |i| i.x.abs()).grad(-2., 2.),
    op(F, "neg", Exact, |i| i.x.neg()).grad(-2., 2.),
    op(F, "sqr", Exact, |i| i.x.sqr()).grad(-2., 2.),
    op(F, "relu", Exact, |i| i.x.relu()).grad(-2., 2.),
    op(F, "ceil", Exact, |i| i.x.ceil()),
    op(F, "floor", Exact, |i| i.x.floor()),
    op(F, "round", Exact, |i| i.x.round()),
    op(F, "sign", Exact, |i| i.x.sign()),
    op(F, "affine", Exact, |i| i.x.affine(3., -2.)).grad(-2., 2.),
    floats(F, "recip", Within(3e-7, 0.), |i| i.x.recip()).grad(0.5, 2.),
    floats(F, "sqrt", Within(4e-7, 0.), |i| i.y.sqrt()).grad(0.5, 3.),
    floats(F, "exp", Within(3e-6, 0.), |i| i.x.exp()).grad(-2., 2.),
    floats(F, "log", Within(1e-6, 1e-6), |i| i.y.log()).grad(0.5, 3.),
    floats(F, "sin", Within(1e-6, 1e-6), |i| i.x.sin()).grad(-3., 3.),
    floats(F, "cos", Within(1e-6, 1e-6), |i| i.x.cos()).grad(-3., 3.),
    floats(F, "tanh", Within(2e-6, 0.), |i| i.x.tanh()).grad(-2., 2.),
    floats(F, "erf", Within(1e-6, 0.), |i| i.x.erf()).grad(-2., 2.),
    floats(F, "silu", Within(3e-6, 0.), |i| i.x.silu()).grad(-6., 6.),
    floats(F, "gelu", Within(3e-5, 1e-6), |i| i.x.gelu()).grad(-4., 4.),
    floats(F, "gelu_erf", Within(6e-5, 1e-6), |i| i.x.gelu_erf()).grad(-4., 4.),
    floats(F, "elu", Within(3e-6, 0.), |i| i.x.elu(1.5)).grad(-2., 2.),
    floats(F, "powf", Within(3e-6, 0.), |i| i.y.powf(1.5)).grad(0.5, 2.),
    op(B, "add", Exact, |i| &i.x + &i.y).grad(-2., 2.),
    op(B, "sub", Exact, |i| &i.x - &i.y).grad(-2., 2.),
    op(B, "mul", Exact, |i| &i.x * &i.y).grad(-2., 2.),
    op(B, "div", Within(3e-7, 0.), |i| &i.x / &i.y).grad(0.5, 2.),
    op(B, "minimum", Exact, |i| i.x.minimum(&i.y)).kinks(-2., 2.),
    op(B, "maximum", Exact, |i| i.x.maximum(&i.y)).kinks(-2., 2.),
    op(C, "eq", Same, |i| i.x.eq(&i.y)),
    op(C, "ne", Same, |i| i.x.ne(&i.y)),
    op(C, "lt", Same, |i| i.x.lt(&i.y)),
    op(C, "le", Same, |i| i.x.le(&i.y)),
    op(C, "gt", Same, |i| i.x.gt(&i.y)),
    op(C, "ge", Same, |i| i.x.ge(&i.y)),
    op(C, "where_cond", Same, |i| i.mask.where_cond(&i.x, &i.y)).grad(-2., 2.),
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
    op(R, "sum", Exact, |i| i.x.sum(1)).grad(-2., 2.),
    op(R, "sum_all", Exact, |i| i.x.sum_all()).grad(-2., 2.),
    op(R, "min", Same, |i| i.x.min(0)).kinks(-2., 2.),
    op(R, "max", Same, |i| i.x.max(1)).kinks(-2., 2.),
    op(R, "argmin", Same, |i| i.x.argmin(1)),
    op(R, "argmax", Same, |i| i.x.argmax(0)),
    op(R, "arg_sort_last_dim", Same, |i| {
        i.x.arg_sort_last_dim(true)
    }),
    op(M, "copy", Same, |i| i.x.copy()).grad(-2., 2.),
    op(M, "contiguous", Same, |i| i.x.unsqueeze(0)?.contiguous()).grad(-2., 2.),
    op(M, "cat", Same, |i| Tensor::cat(&[&i.x, &i.y, &i.x], 1)).grad(-2., 2.),
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
    op(I, "index_select", Same, |i| i.x.index_select(&i.rows, 0)).grad(-2., 2.),
    op(I, "gather", Same, |i| i.x.gather(&i.columns, 1)).grad(-2., 2.),
    op(I, "scatter", Same, |i| i.x.scatter(&i.columns, &i.y, 1)).grad(-2., 2.),
    op(I, "scatter_add", Exact, |i| {
        i.x.scatter_add(&i.columns, &i.y, 1)
    })
    .grad(-2., 2.),
    op(I, "index_add", Exact, |i| i.x.index_add(&i.rows, &i.y, 0)).grad(-2., 2.),
    op(P, "matmul", Rounded(1.), |i| i.x.matmul(&i.y.t()?)).grad(-2., 2.),
    op(P, "conv1d", Rounded(1.), |i| {
        i.signal()?
            .conv1d(&i.kernel(&[2, i.x.dim(0)?, 3])?, 1, 1, 1, 1)
    })
    .grad(-2., 2.),
    op(P, "conv2d", Rounded(1.), |i| {
        i.image()?.conv2d(&i.kernel(&[2, 1, 3, 2])?, 1, 2, 1, 1)
    })
    .grad(-2., 2.),
    op(P, "conv_transpose1d", Rounded(1.), |i| {
        i.signal()?
            .conv_transpose1d(&i.kernel(&[i.x.dim(0)?, 2, 3])?, 1, 0, 2, 1, 1)
    })
    .grad(-2., 2.),
    op(P, "conv_transpose2d", Rounded(1.), |i| {
        i.image()?
            .conv_transpose2d(&i.kernel(&[1, 2, 3, 2])?, 1, 0, 2, 1)
    })
    .grad(-2., 2.),
    op(W, "avg_pool2d", Within(3e-7, 0.), |i| {
        i.image()?.avg_pool2d((2, 3))
    })
    .grad(-2., 2.),
    op(W, "max_pool2d", Same, |i| {
        i.image()?.max_pool2d_with_stride((2, 2), (1, 2))
    })
    .kinks(-2., 2.),
    op(W, "upsample_nearest1d", Same, |i| {
        i.signal()?.upsample_nearest1d(10)
    })
    .grad(-2., 2.),
    op(W, "upsample_nearest2d", Same, |i| {
        i.image()?.upsample_nearest2d(9, 4)
    })
    .grad(-2., 2.),
    op(W, "upsample_bilinear2d", Within(1e-6, 1e-6), |i| {
        i.image()?.upsample_bilinear2d(8, 11, false)
    })
    .grad(-2., 2.),
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
