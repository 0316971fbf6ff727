//! Reductions, elementwise functions, matrix products.

use candle_core::backend::BackendStorage;
use candle_core::{op, DType, Layout, WebGpuStorage};

use super::{grid, kernel, Source, WebGpu};
use crate::plan::GROUP;
use crate::runtime::Operand;
use crate::{
    AverageParams, ElementwiseOp, ElementwiseParams, GpuError, MatmulParams, ReduceOp,
    ReduceParams, Result,
};

const REDUCE: Source = kernel!("reduce", "tree");
const REDUCE_END: Source = kernel!("reduce_end", "tree");
const DIVIDE: Source = kernel!("divide");
const ACCUMULATE: Source = kernel!("accumulate");

/// Multiplications of a matrix product for each comparison of a dispatch: they are faster, and a part of a product keeps the GPU less busy
/// at its end.
const PRODUCTS: u64 = 2;

/// Elements that a workgroup of `reduce.wgsl` brings together.
const REDUCED: u64 = GROUP * 64;

/// The same memory as f32.
fn floats(gpu: &WebGpu, buffer: &WebGpuStorage) -> Result<WebGpuStorage> {
    buffer.bitcast(DType::F32).map_err(|err| gpu.error(err))
}

/// Makes a result that is as long as a buffer its memory, which saves a copy.
fn replace(gpu: &WebGpu, buffer: &mut WebGpuStorage, result: WebGpuStorage) -> Result<()> {
    let words = result.bitcast(DType::U32);
    *buffer = words.map_err(|err| gpu.error(err))?;
    Ok(())
}

pub(super) fn average(
    gpu: &WebGpu,
    params: AverageParams,
    predictions: &WebGpuStorage,
    output: &mut WebGpuStorage,
) -> Result<()> {
    let AverageParams { n_trees, n_samples } = params;
    let layout = Layout::contiguous((n_samples as usize, n_trees as usize));
    let sums = floats(gpu, predictions)?.reduce_op(op::ReduceOp::Sum, &layout, &[1]);
    let sums = sums.map_err(|err| gpu.error(err))?;
    let params = [n_samples, n_trees];
    gpu.run(
        &DIVIDE,
        &params,
        grid(n_samples.into()),
        &[&sums],
        &mut [output],
    )
}

pub(super) fn matmul(
    gpu: &WebGpu,
    params: MatmulParams,
    a: &WebGpuStorage,
    b: &WebGpuStorage,
    c: &mut WebGpuStorage,
) -> Result<()> {
    let MatmulParams { alpha, beta, .. } = params;
    let [k, n] = [params.k, params.n].map(|size| size as usize);
    let (a, b) = (floats(gpu, a)?, floats(gpu, b)?);
    let reads = u32::from(k > 0) | u32::from(beta != 0.) << 1;
    for (first, rows) in crate::cpu::row_parts(params, PRODUCTS * gpu.work_per_dispatch()) {
        gpu.pace((rows * n * k.max(1)) as u64)?;
        let product = if k == 0 {
            gpu.scratch(1)?
        } else {
            let [a_layout, b_layout] = crate::cpu::matrices(params, first, rows);
            let product = a.matmul(&b, (1, rows, n, k), &a_layout, &b_layout);
            product.map_err(|err| gpu.error(err))?
        };
        if k > 0 && params.is_plain() && product.len() == c.len() {
            return replace(gpu, c, product);
        }
        let [start, count] = [first * n, rows * n].map(|elements| elements as u32);
        let words = [start, count, alpha.to_bits(), beta.to_bits(), reads];
        gpu.run(
            &ACCUMULATE,
            &words,
            grid(count.into()),
            &[&product],
            &mut [c],
        )?;
    }
    Ok(())
}

pub(super) fn elementwise(
    gpu: &WebGpu,
    params: ElementwiseParams,
    a: Operand<'_, WebGpuStorage>,
    b: Option<Operand<'_, WebGpuStorage>>,
    output: &mut WebGpuStorage,
) -> Result<()> {
    let operand = |operand: Operand<'_, WebGpuStorage>| match operand {
        Operand::Output => floats(gpu, output),
        Operand::Other(buffer) => floats(gpu, buffer),
    };
    let a = operand(a)?;
    let b = b.map(operand).transpose()?;
    let layout = Layout::contiguous(params.n_elements as usize);
    let result = match (params.op, &b) {
        (ElementwiseOp::Relu, _) => a.unary_impl::<op::Relu>(&layout),
        // 1 / (1 + exp(-x)), which is right at both ends.
        (ElementwiseOp::Sigmoid, _) => a
            .affine(&layout, -1., 0.)
            .and_then(|x| x.unary_impl::<op::Exp>(&layout))
            .and_then(|x| x.affine(&layout, 1., 1.))
            .and_then(|x| x.unary_impl::<op::Recip>(&layout)),
        (ElementwiseOp::Tanh, _) => a.unary_impl::<op::Tanh>(&layout),
        (ElementwiseOp::Sqrt, _) => a.unary_impl::<op::Sqrt>(&layout),
        (ElementwiseOp::Exp, _) => a.unary_impl::<op::Exp>(&layout),
        (ElementwiseOp::Log, _) => a.unary_impl::<op::Log>(&layout),
        (ElementwiseOp::Add, Some(b)) => a.binary_impl::<op::Add>(b, &layout, &layout),
        (ElementwiseOp::Mul, Some(b)) => a.binary_impl::<op::Mul>(b, &layout, &layout),
        (ElementwiseOp::Add | ElementwiseOp::Mul, None) => {
            return Err(GpuError::InvalidParams("elementwise: no input-b".into()))
        }
    };
    let result = result.map_err(|err| gpu.error(err))?;
    if result.len() == output.len() {
        return replace(gpu, output, result);
    }
    gpu.copy_bytes(&result, 0, output, 0, u64::from(params.n_elements) * 4)
}

/// The operation by which `reduce.wgsl` combines elements.
#[derive(Clone, Copy)]
enum Pass {
    Sum,
    Max,
    Min,
    Shifted,
    Deviation,
}

/// The final operation of `reduce_end.wgsl`.
#[derive(Clone, Copy)]
enum End {
    Sum,
    Max,
    Min,
    Mean,
    Variance,
}

pub(super) fn reduce(
    gpu: &WebGpu,
    params: ReduceParams,
    input: &WebGpuStorage,
    output: &mut WebGpuStorage,
) -> Result<()> {
    let count = params.n_elements;
    let groups = u64::from(count).div_ceil(REDUCED);
    let mut pairs = gpu.scratch(2 * groups)?;
    let mut pass = |pass: Pass, end: End, mean: &WebGpuStorage, output: &mut WebGpuStorage| {
        let params = [count, pass as u32];
        let workgroups = grid(groups * GROUP);
        gpu.run(
            &REDUCE,
            &params,
            workgroups,
            &[input, mean],
            &mut [&mut pairs],
        )?;
        let params = [groups as u32, end as u32, count];
        gpu.run(&REDUCE_END, &params, [1; 3], &[&pairs], &mut [output])
    };
    match params.op {
        ReduceOp::Sum => pass(Pass::Sum, End::Sum, input, output),
        ReduceOp::Mean => pass(Pass::Sum, End::Mean, input, output),
        ReduceOp::Max => pass(Pass::Max, End::Max, input, output),
        ReduceOp::Min => pass(Pass::Min, End::Min, input, output),
        ReduceOp::Variance => {
            let mut mean = gpu.scratch(1)?;
            pass(Pass::Shifted, End::Mean, input, &mut mean)?;
            pass(Pass::Deviation, End::Variance, &mean, output)
        }
    }
}
