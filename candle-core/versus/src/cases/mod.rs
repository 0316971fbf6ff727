//! The table of benchmark cases, compiled against one side's crates.

mod quantized;
mod windows;

use crate::list::{Inputs, CASES};
use crate::{candle_core, candle_nn};
use candle_core::{DType, Device, Result, Tensor, D};

const F: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// A prepared benchmark: the inputs, and one run over them.
pub type Work = Box<dyn Fn()>;

/// A case's name, and the function that prepares it.
pub type Case = (String, Box<dyn Fn() -> Work>);

/// Collects cases.
struct Table(Vec<Case>);

impl Table {
    /// Adds a case. `inputs` are shapes of f32 tensors with numbers between -1 and 1, converted to `dtype`; `f` is timed.
    fn add<const N: usize>(
        &mut self,
        name: impl Into<String>,
        dtype: DType,
        inputs: [&[usize]; N],
        f: impl Fn(&[Tensor; N]) -> Result<Tensor> + Copy + 'static,
    ) {
        self.prepared(name, dtype, inputs, Ok, f);
    }

    /// Like `add`, with views of the inputs (or other tensors made from them) that are not timed.
    fn prepared<const N: usize, P: 'static, R>(
        &mut self,
        name: impl Into<String>,
        dtype: DType,
        inputs: [&[usize]; N],
        prepare: impl Fn([Tensor; N]) -> Result<P> + Copy + 'static,
        f: impl Fn(&P) -> Result<R> + Copy + 'static,
    ) {
        let shapes = inputs.map(<[usize]>::to_vec);
        let name = format!("{} {}", name.into(), dtype.as_str());
        let shown = name.clone();
        let make = move || {
            let inputs = shapes.clone().map(|shape| tensor(&shape, dtype));
            let prepared = prepare(inputs).unwrap_or_else(|e| panic!("{shown}: {e}"));
            let shown = shown.clone();
            let work: Work = Box::new(move || {
                let out = f(&prepared).unwrap_or_else(|e| panic!("{shown}: {e}"));
                std::hint::black_box(&out);
            });
            work
        };
        self.0.push((name, Box::new(make)));
    }
}

/// Adds cases of a dtype: a name, the shapes of the inputs, and what is timed, after `=>` if views of the inputs are made first.
macro_rules! cases {
    ($table:ident, $dtype:expr; $($name:expr, $shapes:tt $f:expr $(=> $timed:expr)?;)*) => {
        $(cases!(@ $table, $dtype, $name, $shapes, $f $(, $timed)?);)*
    };
    (@ $table:ident, $dtype:expr, $name:expr, $shapes:expr, $f:expr) => {
        $table.add($name, $dtype, $shapes, $f)
    };
    (@ $table:ident, $dtype:expr, $name:expr, $shapes:expr, $prepare:expr, $f:expr) => {
        $table.prepared($name, $dtype, $shapes, $prepare, $f)
    };
}

/// Returns numbers between -1 and 1, the same on each call.
fn numbers(len: usize) -> Vec<f32> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn tensor(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::from_vec(numbers(shape.iter().product()), shape, &Device::Cpu)
        .and_then(|t| t.to_dtype(dtype))
        .expect("a tensor of that shape")
}

/// Returns all cases.
pub fn cases() -> Vec<Case> {
    let mut table = Table(vec![]);
    listed(&mut table);
    matmul(&mut table);
    elementwise(&mut table);
    strided(&mut table);
    reduce(&mut table);
    nn(&mut table);
    movement(&mut table);
    windows::conv(&mut table);
    windows::pool(&mut table);
    quantized::products(&mut table);
    quantized::formats(&mut table);
    table.0
}

fn matmul(table: &mut Table) {
    for dtype in F {
        for (what, m, k, n) in [
            ("square", 64, 64, 64),
            ("square", 256, 256, 256),
            ("square", 768, 768, 768),
            ("tall", 4096, 256, 64),
            ("wide", 64, 256, 4096),
            ("deep", 64, 4096, 64),
            ("rows", 8, 2048, 2048),
            ("rows", 2, 2048, 2048),
            ("mat-vec", 1, 2048, 2048),
        ] {
            let name = format!("matmul/{what} {m}x{k}x{n}");
            table.add(name, dtype, [&[m, k], &[k, n]], |[a, b]| a.matmul(b));
        }
        for (what, m, k, n) in [
            ("linear", 256, 512, 512),
            ("linear", 4, 2048, 2048),
            ("linear", 8, 512, 512),
            ("linear", 16, 2048, 2048),
            ("linear", 64, 2048, 2048),
            ("linear", 64, 300, 500),
            ("linear", 128, 768, 3072),
            ("linear mat-vec", 1, 2048, 2048),
            ("linear mat-vec", 1, 2048, 8192),
        ] {
            cases! { table, dtype;
                format!("matmul/{what} {m}x{k}x{n}"), [&[m, k], &[n, k]] |[a, b]| Ok((a, b.t()?)) => |(a, b)| a.matmul(b);
            }
        }
        cases! { table, dtype;
            "matmul/column 2048x2048x1", [&[2048, 2048], &[2048, 1]] |[a, b]| a.matmul(b);
            "matmul/batch 64 of 32x32x32", [&[64, 32, 32], &[64, 32, 32]] |[a, b]| a.matmul(b);
            "matmul/batch 16 of 128x64x128", [&[16, 128, 64], &[16, 64, 128]] |[a, b]| a.matmul(b);
            "matmul/scores 32 of 1x64x512", [&[32, 1, 64], &[32, 512, 64]] |[q, k]| Ok((q, k.t()?)) => |(q, k)| q.matmul(k);
            "matmul/values 32 of 1x512x64", [&[32, 1, 512], &[32, 512, 64]] |[p, v]| p.matmul(v);
            "matmul/values 8 of 1x4096x128", [&[8, 1, 4096], &[8, 4096, 128]] |[p, v]| p.matmul(v);
        }
    }
}

/// The list of candle-conformance, with matrices of a million elements.
fn listed(table: &mut Table) {
    for case in CASES {
        let single = ["functions", "arithmetic", "comparison", "conversion"];
        let (family, size) = if single.contains(&case.family) {
            ("elementwise", "1M")
        } else {
            ("list", "1024x1024")
        };
        let changes = |dtype: &DType| case.name != format!("to {}", dtype.as_str());
        for dtype in F.into_iter().filter(changes) {
            table.prepared(
                format!("{family}/{} {size}", case.name),
                dtype,
                [&[1024, 1024], &[1024, 1024]],
                // The second one's elements are greater than 0.
                |[x, y]| Inputs::of(x, (y + 1.5)?),
                |inputs| (case.run)(inputs),
            );
        }
    }
}

fn elementwise(table: &mut Table) {
    let million: &[usize] = &[1 << 20];
    for dtype in [DType::F64, DType::I64, DType::U8] {
        table.add("elementwise/add 1M", dtype, [million; 2], |[x, y]| x.add(y));
    }
    table.add("elementwise/exp 1M", DType::F64, [million], |[x]| x.exp());
    for len in [16, 1024, 16384, 65536] {
        for dtype in [DType::F32, DType::BF16] {
            cases! { table, dtype;
                format!("elementwise/add {len}"), [&[len], &[len]] |[x, y]| x.add(y);
                format!("elementwise/exp {len}"), [&[len]] |[x]| x.exp();
            }
        }
    }
}

fn strided(table: &mut Table) {
    for dtype in F {
        cases! { table, dtype;
            "strided/transposed + contiguous 1024x1024", [&[1024, 1024], &[1024, 1024]] |[x, y]| Ok((x.t()?, y)) => |(x, y)| x.add(y);
            "strided/contiguous * transposed 512x2048", [&[512, 2048], &[2048, 512]] |[x, y]| Ok((x, y.t()?)) => |(x, y)| x.mul(y);
            "strided/neg of transposed 1024x1024", [&[1024, 1024]] |[x]| x.t() => |x| x.neg();
            "strided/exp of permuted 8x128x16x64", [&[8, 128, 16, 64]] |[x]| x.permute((0, 2, 1, 3)) => |x| x.exp();
            "strided/add of narrowed 1024x1000", [&[1024, 1024], &[1024, 1024]] |[x, y]| Ok((x.narrow(1, 3, 1000)?, y.narrow(1, 5, 1000)?))
                => |(x, y)| x.add(y);
            "strided/broadcast_add row 1024x1024", [&[1024, 1024], &[1024]] |[x, y]| x.broadcast_add(y);
            "strided/broadcast_mul column 1024x1024", [&[1024, 1024], &[1024, 1]] |[x, y]| x.broadcast_mul(y);
            "strided/broadcast_sub column on the left", [&[1024, 1], &[1024, 1024]] |[x, y]| x.broadcast_sub(y);
            "strided/broadcast_add channels 8x64x32x32", [&[8, 64, 32, 32], &[1, 64, 1, 1]] |[x, y]| x.broadcast_add(y);
            "strided/broadcast_mul last of 4 262144x4", [&[262144, 4], &[4]] |[x, y]| x.broadcast_mul(y);
            "strided/contiguous of transposed 1024x1024", [&[1024, 1024]] |[x]| x.t() => |x| x.contiguous();
            "strided/contiguous of heads 8x128x16x64", [&[8, 128, 16, 64]] |[x]| x.transpose(1, 2) => |x| x.contiguous();
            "strided/where transposed 1024x1024", [&[1024, 1024], &[1024, 1024]] |[x, y]| Ok((x.ge(&y)?.t()?, x, y))
                => |(c, x, y)| c.where_cond(x, y);
            "strided/lt transposed 1024x1024", [&[1024, 1024], &[1024, 1024]] |[x, y]| Ok((x.t()?, y)) => |(x, y)| x.lt(y);
        }
    }
}

fn reduce(table: &mut Table) {
    for dtype in F {
        for (what, dim) in [("first", 0), ("middle", 1), ("last", 2)] {
            let shape: &[usize] = &[64, 128, 128];
            cases! { table, dtype;
                format!("reduce/sum {what} 64x128x128"), [shape] move |[x]| x.sum(dim);
                format!("reduce/max {what} 64x128x128"), [shape] move |[x]| x.max(dim);
                format!("reduce/argmax {what} 64x128x128"), [shape] move |[x]| x.argmax(dim);
            }
        }
        cases! { table, dtype;
            "reduce/sum first 1024x1024", [&[1024, 1024]] |[x]| x.sum(0);
            "reduce/sum all 1M", [&[1 << 20]] |[x]| x.sum_all();
            "reduce/argmax all 128k", [&[1 << 17]] |[x]| x.argmax(0);
            "reduce/mean last 1024x1024", [&[1024, 1024]] |[x]| x.mean(1);
            "reduce/sum last 32x32", [&[32, 32]] |[x]| x.sum(1);
        }
    }
}

fn nn(table: &mut Table) {
    for dtype in F {
        for (rows, len) in [(1024, 1024), (16384, 64), (8, 50000), (4, 64)] {
            let name = format!("nn/softmax_last_dim {rows}x{len}");
            table.add(name, dtype, [&[rows, len]], |[x]| {
                candle_nn::ops::softmax_last_dim(x)
            });
        }
        cases! { table, dtype;
            "nn/softmax over the last 1024x1024", [&[1024, 1024]] |[x]| candle_nn::ops::softmax(x, D::Minus1);
            "nn/rms_norm 512x2048", [&[512, 2048], &[2048]] |[x, w]| candle_nn::ops::rms_norm(x, w, 1e-5);
            "nn/layer_norm 512x2048", [&[512, 2048], &[2048], &[2048]] |[x, w, b]| candle_nn::ops::layer_norm(x, w, b, 1e-5);
            "nn/sigmoid 1M", [&[1 << 20]] |[x]| candle_nn::ops::sigmoid(x);
            "nn/rope 1x32x128x64", [&[1, 32, 128, 64], &[128, 32], &[128, 32]] |[x, c, s]| candle_nn::rotary_emb::rope(x, c, s);
        }
    }
}

fn movement(table: &mut Table) {
    let ids = |count: usize, below: usize| {
        let ids = (0..count).map(|i| (i * 7919 % below) as u32);
        Tensor::from_iter(ids, &Device::Cpu)
    };
    for dtype in F {
        cases! { table, dtype;
            "index/index_select rows 512 of 32000x1024", [&[32000, 1024]] move |[x]| Ok((ids(512, 32000)?, x))
                => |(ids, x)| x.index_select(ids, 0);
            "index/index_select one row of 32000x1024", [&[32000, 1024]] move |[x]| Ok((ids(1, 32000)?, x))
                => |(ids, x)| x.index_select(ids, 0);
            "index/index_select columns 512 of 1024x1024", [&[1024, 1024]] move |[x]| Ok((ids(512, 1024)?, x))
                => |(ids, x)| x.index_select(ids, 1);
            "index/index_select middle 64 of 32x128x256", [&[32, 128, 256]] move |[x]| Ok((ids(64, 128)?, x))
                => |(ids, x)| x.index_select(ids, 1);
            "index/gather last 1024x256 of 1024x1024", [&[1024, 1024]] move |[x]| Ok((ids(1 << 18, 1024)?.reshape((1024, 256))?, x))
                => |(ids, x)| x.gather(ids, 1);
            "index/index_add rows 512 into 2048x1024", [&[2048, 1024], &[512, 1024]] move |[x, y]| Ok((ids(512, 2048)?, x, y))
                => |(ids, x, y)| x.index_add(ids, y, 0);
            "cat/first 2 of 512x1024", [&[512, 1024], &[512, 1024]] |[x, y]| Tensor::cat(&[x, y], 0);
            "cat/last 2 of 1024x512", [&[1024, 512], &[1024, 512]] |[x, y]| Tensor::cat(&[x, y], 1);
            "cat/cache 1x32x511x64 + 1", [&[1, 32, 511, 64], &[1, 32, 1, 64]] |[x, y]| Tensor::cat(&[x, y], 2);
            "cat/last 2 transposed 512x1024", [&[512, 1024], &[512, 1024]] |[x, y]| Ok((x.t()?, y.t()?))
                => |(x, y)| Tensor::cat(&[x, y], 1);
            "cat/last 4 of 65536x4", [&[65536, 4]] |[x]| Tensor::cat(&[x, x, x, x], 1);
            "cat/stack 8 of 128x128", [&[128, 128]] |[x]| Tensor::stack(&[x, x, x, x, x, x, x, x], 0);
        }
    }
}
