//! Gradients of any case with float inputs, and of expressions composed of several ops.

use super::candle::{self, DType, Device, Result, Tensor, Var};
use super::{apply, guarded, seen, tensor, value};
use crate::case::{Case, Input, Op, Outcome, View};
use crate::value::Ty;

/// The gradients of `sum(output * weight)` with respect to each float input; a missing gradient means zeros.
///
/// The inputs' memory is the variable and the view is part of the expression, so views are differentiated as well. The weights differ from
/// element to element, so that a gradient at the wrong index is detected.
pub fn gradients(case: &Case, on_copies: bool) -> Outcome {
    guarded(|| {
        let mut variables = Vec::new();
        let mut inputs = Vec::new();
        for input in &case.inputs {
            if Ty::FLOATS.contains(&input.ty()) {
                let (variable, seen) = variable(input)?;
                variables.push(variable);
                inputs.push(seen);
            } else {
                inputs.push(tensor(input)?);
            }
        }
        if on_copies {
            let copies: Result<_> = inputs.iter().map(|t| t.contiguous()).collect();
            inputs = copies?;
        }
        let outputs = apply::outputs(&case.op, &inputs)?;
        let mut loss = Tensor::zeros((), DType::F64, &Device::Cpu)?;
        let summable = |o: &&Tensor| o.dtype().is_float() && o.dtype() != DType::F8E4M3;
        for output in outputs.iter().filter(summable) {
            let part = (output * weights(output)?)?.sum_all()?;
            loss = (loss + part.to_dtype(DType::F64)?)?;
        }
        let grads = loss.backward()?;
        let of = |v: &Var| match grads.get(v.as_tensor()) {
            Some(grad) => value(grad),
            None => value(&v.zeros_like()?),
        };
        variables.iter().map(of).collect()
    })
}

fn variable(input: &Input) -> Result<(Var, Tensor)> {
    let mut memory = input.clone();
    memory.view = View::whole(&input.view.base);
    let variable = Var::from_tensor(&tensor(&memory)?)?;
    let seen = seen(variable.as_tensor(), &input.view)?;
    Ok((variable, seen))
}

fn weights(like: &Tensor) -> Result<Tensor> {
    let n = like.elem_count();
    let weights: Vec<f64> = (0..n).map(|i| ((i * 7) % 5) as f64 / 2. - 1.).collect();
    Tensor::from_vec(weights, like.shape(), like.device())?.to_dtype(like.dtype())
}

/// See [`Op::Chain`].
pub(super) fn chain(ops: &[(Op, Vec<usize>)], inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut known = inputs.to_vec();
    for (op, arguments) in ops {
        let arguments: Vec<_> = arguments.iter().map(|a| known[*a].clone()).collect();
        known.extend(apply::outputs(op, &arguments)?);
    }
    match known.pop() {
        Some(last) => Ok(vec![last]),
        None => candle::bail!("a chain of nothing"),
    }
}
