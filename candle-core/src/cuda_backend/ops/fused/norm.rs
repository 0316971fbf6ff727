//! RMS norm (Zhang and Sennrich, arXiv 1910.07467) and layer norm (Ba et al., arXiv 1607.06450) over the last dimension.

use super::rows::Rows;
use super::{address_or_null, float_type, Operand};
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::Args;
use crate::cuda_backend::CudaStorage;
use crate::fused::BesideNorm;
use crate::{Error, Layout, Result};

/// A norm and its parameters.
pub type Norm<'a> = crate::fused::Norm<'a, CudaStorage>;

/// `struct Norm` of `kernels/norm.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u64,
    len: u64,
    x_step: u64,
    beside_step: u64,
    weight_step: u64,
    bias_step: u64,
    eps: f64,
}

/// `norm` of the rows of `x`, contiguous in its shape; with [`BesideNorm::AddBefore`] the sums, then their norms.
///
/// # Errors
/// If the dtype is not a float that kernels compute with, or another tensor does not fit `x`.
pub fn norm(x: Operand<'_>, norm: Norm<'_>) -> Result<CudaStorage> {
    let op = norm.op;
    let (src, layout) = x;
    let device = src.device();
    let dtype = src.dtype();
    let c_type = float_type(device, dtype, op)?;
    let beside = norm.beside.map(|(_, operand)| operand);
    if let Some((_, beside_l)) = beside.filter(|(_, l)| l.dims() != layout.dims()) {
        return Err(Error::ShapeMismatchBinaryOp {
            lhs: layout.shape().clone(),
            rhs: beside_l.shape().clone(),
            op,
        }
        .bt());
    }
    let rows = Rows::new([layout, beside.unwrap_or(x).1], op)?;
    let vectors: Vec<_> = [norm.weight, norm.bias].into_iter().flatten().collect();
    for (other, layout) in vectors.iter().chain(&beside) {
        if other.dtype() != dtype || layout.dims().last() != Some(&rows.len) {
            crate::bail!(
                "{op}: rows of {} elements of {dtype:?} do not match {:?} of {:?}",
                rows.len,
                layout.shape(),
                other.dtype()
            )
        }
    }
    let adds = matches!(norm.beside, Some((BesideNorm::AddBefore, _)));
    let results = if adds { 2 } else { 1 };
    let dst = device.new_storage(results * rows.count * rows.len, dtype, op)?;
    if rows.len == 0 {
        return Ok(dst);
    }
    let all: Vec<_> = [Some(x), beside].into_iter().flatten().collect();
    let kernel = Kernel::new(source!("functions", => "norm"))
        .define("T", c_type)
        .define("CENTRED", norm.centred)
        .define("WEIGHT", norm.weight.is_some())
        .define("BIAS", norm.bias.is_some())
        .define("BESIDE", norm.beside.map_or(0, |(how, _)| how as u32 + 1));
    let (kernel, grid) = rows.share_out(kernel, rows.lanes(&all, &vectors));
    let step = |vector: Option<Operand<'_>>| match vector {
        Some((_, layout)) => last_step(layout),
        None => 0,
    };
    let args = Args::new()
        .storage(src)
        .storage(&dst)
        .value(address_or_null(norm.weight))
        .value(address_or_null(norm.bias))
        .storage_or_null(beside.map(|(storage, _)| storage))
        .value(rows.starts)
        .value(Params {
            rows: rows.count as u64,
            len: rows.len as u64,
            x_step: rows.steps[0] as u64,
            beside_step: rows.steps[1] as u64,
            weight_step: step(norm.weight),
            bias_step: step(norm.bias),
            eps: norm.eps.into(),
        });
    device.launch(&kernel, grid, args)?;
    Ok(dst)
}

fn last_step(layout: &Layout) -> u64 {
    layout.stride().last().map_or(1, |step| *step as u64)
}
