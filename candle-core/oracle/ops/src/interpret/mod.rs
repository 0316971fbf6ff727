//! Runs a case on the crate that the parent module names `candle`. Compiled once for each side, so `Tensor` here is
//! either one's.

mod apply;
mod files;
mod gradient;
mod neural;
mod quantized;

use super::{candle, cases};
use crate::case::{Case, Input, Outcome, View};
use crate::check::guarded;
use crate::value::{Elements, Ty, Value};
use candle::{DType, Device, Result, Tensor};
use float8::F8E4M3;
use half::{bf16, f16};

pub use files::{load, save};
pub use gradient::gradients;
pub use quantized::{dequantize, load_gguf, multiply, quantize, quantize_imatrix, save_gguf};

/// Runs the op on the inputs in their layouts, or on row-major copies of them.
pub fn run(case: &Case, on_copies: bool) -> Outcome {
    guarded(|| {
        let mut inputs = tensors(&case.inputs)?;
        if on_copies {
            let copies: Result<_> = inputs.iter().map(|t| t.force_contiguous()).collect();
            inputs = copies?;
        }
        apply::apply(&case.op, &inputs)
    })
}

fn tensors(inputs: &[Input]) -> Result<Vec<Tensor>> {
    inputs.iter().map(tensor).collect()
}

/// The input as this side's tensor, built from views in the same steps on both sides.
fn tensor(input: &Input) -> Result<Tensor> {
    seen(&from_elements(&input.data, &input.view.base)?, &input.view)
}

fn seen(memory: &Tensor, view: &View) -> Result<Tensor> {
    let mut t = memory.clone();
    if view.permute.len() > 1 {
        t = t.permute(view.permute.clone())?;
    }
    for (d, (start, len)) in view.keep.iter().enumerate() {
        t = t.narrow(d, *start, *len)?;
    }
    t.broadcast_as(view.dims.clone())
}

fn from_elements(data: &Elements, dims: &[usize]) -> Result<Tensor> {
    let cpu = &Device::Cpu;
    match data {
        Elements::U8(v) => Tensor::from_vec(v.clone(), dims, cpu),
        Elements::U32(v) => Tensor::from_vec(v.clone(), dims, cpu),
        Elements::I16(v) => Tensor::from_vec(v.clone(), dims, cpu),
        Elements::I32(v) => Tensor::from_vec(v.clone(), dims, cpu),
        Elements::I64(v) => Tensor::from_vec(v.clone(), dims, cpu),
        Elements::BF16(v) => Tensor::from_vec(v.clone(), dims, cpu),
        Elements::F16(v) => Tensor::from_vec(v.clone(), dims, cpu),
        Elements::F32(v) => Tensor::from_vec(v.clone(), dims, cpu),
        Elements::F64(v) => Tensor::from_vec(v.clone(), dims, cpu),
        Elements::F8E4M3(v) => Tensor::from_vec(v.clone(), dims, cpu),
    }
}

fn value(t: &Tensor) -> Result<Value> {
    let flat = t.flatten_all()?;
    let data = match t.dtype() {
        DType::U8 => Elements::U8(flat.to_vec1::<u8>()?),
        DType::U32 => Elements::U32(flat.to_vec1::<u32>()?),
        DType::I16 => Elements::I16(flat.to_vec1::<i16>()?),
        DType::I32 => Elements::I32(flat.to_vec1::<i32>()?),
        DType::I64 => Elements::I64(flat.to_vec1::<i64>()?),
        DType::BF16 => Elements::BF16(flat.to_vec1::<bf16>()?),
        DType::F16 => Elements::F16(flat.to_vec1::<f16>()?),
        DType::F32 => Elements::F32(flat.to_vec1::<f32>()?),
        DType::F64 => Elements::F64(flat.to_vec1::<f64>()?),
        DType::F8E4M3 => Elements::F8E4M3(flat.to_vec1::<F8E4M3>()?),
        other => candle::bail!("no values of {other:?}"),
    };
    Ok(Value::Tensor {
        dims: t.dims().to_vec(),
        data,
    })
}

fn values(ts: &[Tensor]) -> Result<Vec<Value>> {
    ts.iter().map(value).collect()
}

fn dtype(ty: Ty) -> DType {
    match ty {
        Ty::U8 => DType::U8,
        Ty::U32 => DType::U32,
        Ty::I16 => DType::I16,
        Ty::I32 => DType::I32,
        Ty::I64 => DType::I64,
        Ty::BF16 => DType::BF16,
        Ty::F16 => DType::F16,
        Ty::F32 => DType::F32,
        Ty::F64 => DType::F64,
        Ty::F8E4M3 => DType::F8E4M3,
    }
}
