//! Elementwise, reductions, means of rows, matrix products. Sums are in f64, in an order that does not depend on threads.

use candle_core::backend::BackendStorage;
use candle_core::{Layout, Shape};
use rayon::prelude::*;

use super::Words;
use crate::order::key;
use crate::plan::parts;
use crate::runtime::Stop;
use crate::{ElementwiseOp, GpuError, MatmulParams, ReduceOp, Result};

/// Elements that one task works on.
const CHUNK: usize = 1 << 14;

pub(super) fn average(predictions: &[f32], trees: usize, output: &mut [f32]) {
    output.par_iter_mut().enumerate().for_each(|(row, mean)| {
        let row = &predictions[row * trees..][..trees];
        *mean = (sum(row, f64::from) / trees as f64) as f32;
    });
}

fn sum(values: &[f32], term: impl Fn(f32) -> f64 + Sync) -> f64 {
    if values.len() <= CHUNK {
        return values.iter().map(|x| term(*x)).sum();
    }
    let parts = values.par_chunks(CHUNK);
    let parts: Vec<f64> = parts
        .map(|part| part.iter().map(|x| term(*x)).sum())
        .collect();
    parts.iter().sum()
}

/// The greatest or least by their keys, by which NaN is above all.
fn extreme(values: &[f32], nan: u32, pick: fn(u32, u32) -> u32) -> f32 {
    let key = |x: &f32| if x.is_nan() { nan } else { key(x.to_bits()) };
    let parts = values.par_chunks(CHUNK);
    let best = parts.filter_map(|part| part.iter().map(key).reduce(pick));
    match best.reduce_with(pick) {
        Some(best) if best != nan => {
            let bits = if best >> 31 == 1 {
                best & 0x7fff_ffff
            } else {
                !best
            };
            f32::from_bits(bits)
        }
        _ => f32::NAN,
    }
}

pub(super) fn reduce(op: ReduceOp, values: &[f32]) -> f32 {
    let count = values.len() as f64;
    match op {
        ReduceOp::Sum => sum(values, f64::from) as f32,
        ReduceOp::Mean => (sum(values, f64::from) / count) as f32,
        ReduceOp::Max => extreme(values, u32::MAX, u32::max),
        ReduceOp::Min => extreme(values, 0, u32::min),
        ReduceOp::Variance => {
            let mean = sum(values, f64::from) / count;
            let squares = sum(values, |x| (f64::from(x) - mean).powi(2));
            (squares / count) as f32
        }
    }
}

/// `None` means the contents of `output`.
pub(super) fn elementwise(
    op: ElementwiseOp,
    a: Option<&[f32]>,
    b: Option<&[f32]>,
    output: &mut [f32],
) {
    let apply: fn(f32, f32) -> f32 = match op {
        ElementwiseOp::Relu => |a, _| a.max(0.),
        ElementwiseOp::Sigmoid => |a, _| 1. / (1. + (-a).exp()),
        ElementwiseOp::Tanh => |a, _| a.tanh(),
        ElementwiseOp::Add => |a, b| a + b,
        ElementwiseOp::Mul => |a, b| a * b,
        ElementwiseOp::Sqrt => |a, _| a.sqrt(),
        ElementwiseOp::Exp => |a, _| a.exp(),
        ElementwiseOp::Log => |a, _| a.ln(),
    };
    let chunks = output.par_chunks_mut(CHUNK).enumerate();
    chunks.for_each(|(chunk, output)| {
        for (i, out) in output.iter_mut().enumerate() {
            let at = chunk * CHUNK + i;
            let operand = |values: Option<&[f32]>| values.map_or(*out, |values| values[at]);
            *out = apply(operand(a), operand(b));
        }
    });
}

/// Multiplications of a thread between two looks whether the guest is to end.
const WORK_OF_PART: u64 = 1 << 31;

pub(super) fn matmul(
    params: MatmulParams,
    a: &Words,
    b: &Words,
    c: &mut Words,
    stop: &Stop,
) -> Result<()> {
    let MatmulParams { alpha, beta, .. } = params;
    let [m, k, n] = [params.m, params.k, params.n].map(|size| size as usize);
    if k == 0 {
        let c: &mut [f32] = bytemuck::cast_slice_mut(&mut c[..m * n]);
        c.par_iter_mut()
            .for_each(|c| *c = if beta == 0. { 0. } else { beta * *c });
        return Ok(());
    }
    let failed = |err: candle_core::Error| GpuError::KernelError(format!("matmul: {err}"));
    let work = WORK_OF_PART * rayon::current_num_threads() as u64;
    for (first, rows) in row_parts(params, work) {
        stop.check()?;
        let [a_layout, b_layout] = matrices(params, first, rows);
        let bmnk = (1, rows, n, k);
        let product = a.storage().matmul(b.storage(), bmnk, &a_layout, &b_layout);
        let mut product = product.map_err(failed)?;
        if params.is_plain() {
            match c.replace(product) {
                Ok(()) => return Ok(()),
                Err(part) => product = part,
            }
        }
        let c: &mut [f32] = bytemuck::cast_slice_mut(&mut c[first * n..][..rows * n]);
        let both = c
            .par_iter_mut()
            .zip(product.as_slice::<f32>().map_err(failed)?);
        both.for_each(|(c, product)| {
            let product = alpha * product;
            // What C holds may be NaN.
            *c = if beta == 0. {
                product
            } else {
                beta.mul_add(*c, product)
            };
        });
    }
    Ok(())
}

/// Rows of the product, in parts of about `work` multiplications: the first row, and how many.
pub(crate) fn row_parts(params: MatmulParams, work: u64) -> impl Iterator<Item = (usize, usize)> {
    let of_row = u64::from(params.k) * u64::from(params.n);
    let parts = parts(params.m.into(), work / of_row.max(1));
    parts.map(|(first, rows)| (first as usize, rows as usize))
}

/// The layouts of `rows` rows from `first` on of op(A) `(m, k)`, and of op(B) `(k, n)`, in their buffers.
pub(crate) fn matrices(params: MatmulParams, first: usize, rows: usize) -> [Layout; 2] {
    let [m, k, n] = [params.m, params.k, params.n].map(|size| size as usize);
    let a_strides = if params.trans_a { [1, m] } else { [k, 1] };
    let b_strides = if params.trans_b { [1, k] } else { [n, 1] };
    [
        Layout::new(
            Shape::from((rows, k)),
            a_strides.to_vec(),
            first * a_strides[0],
        ),
        Layout::new(Shape::from((k, n)), b_strides.to_vec(), 0),
    ]
}
