//! RMS norm (Zhang and Sennrich, arXiv 1910.07467) and layer norm (Ba et al., arXiv 1607.06450) over the last dimension.

use super::super::copy2d::{copy2d, Rows as Ranges};
use super::super::windows::{fit, reach, Operand, Split};
use super::super::{bind, elementwise, index};
use super::long_rows::{self, is_long};
use super::{finish, float_elem, Rows};
use crate::backend::BackendStorage;
use crate::fused::{BesideNorm, Gate};
use crate::webgpu_backend::kernel::{params, Key, Shader};
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::WebGpuStorage;
use crate::{Error, Layout, Result};

params!(NormParams {
    dims: Dims,
    x_stride: Dims,
    beside_stride: Dims,
    x_offset: u32,
    beside_offset: u32,
    alpha_offset: u32,
    beta_offset: u32,
    rows: u32,
    len: u32,
    x_step: u32,
    beside_step: u32,
    alpha_step: u32,
    beta_step: u32,
    eps: f32,
});

/// Words of its row that an invocation keeps in registers; longer rows are read again for each pass.
const MAX_KEPT_WORDS: usize = 8;

/// Which norm, and what goes with it.
pub type Norm<'a> = crate::fused::Norm<'a, WebGpuStorage>;

/// The first element and the step of a vector.
fn vector(layout: &Layout) -> Result<(u32, u32)> {
    let step = layout.stride().last().copied().unwrap_or(1);
    Ok((index(layout.start_offset())?, index(step)?))
}

/// `norm` of the rows of `x`, contiguous in its shape; with [`BesideNorm::AddBefore`] the sums, then their norms.
pub fn norm(x: Operand<'_>, norm: Norm<'_>) -> Result<WebGpuStorage> {
    let op = norm.op;
    let (src, layout) = x;
    let device = src.device();
    let dtype = src.dtype();
    let elem = float_elem(device, dtype, op)?;
    if let Some((_, (_, beside_l))) = norm.beside {
        if beside_l.dims() != layout.dims() {
            return Err(Error::ShapeMismatchBinaryOp {
                lhs: layout.shape().clone(),
                rhs: beside_l.shape().clone(),
                op,
            }
            .bt());
        }
    }
    let rows = Rows::new([layout], op)?;
    let (out_dtype, _) = rows.out(dtype, elem);
    let len = layout.shape().elem_count();
    let keeps_sums = matches!(norm.beside, Some((BesideNorm::AddBefore, _)));
    let results = if keeps_sums { 2 } else { 1 };
    let dst = device.alloc(results * len, out_dtype, op)?;
    let beside = norm.beside.map(|(_, operand)| operand);
    let others = [norm.weight, norm.bias, beside].map(|other| other.unwrap_or(x).0);
    if fit([src, &dst]) && fit(others) {
        norm_into(&dst, x, norm)?;
        return finish(dst, dtype);
    }
    if let Some((how, beside)) = norm.beside {
        drop(dst);
        return in_steps(x, norm, how, beside);
    }
    if is_long(device, rows.len, [dtype, out_dtype]) {
        drop(dst);
        return long_rows::norm(x, norm);
    }
    // By rows, as softmax. Weight and bias are as long as a row.
    let rank = layout.dims().len() - 1;
    let split = Split {
        op,
        dims: &layout.dims()[..rank],
        unit: rows.len,
        bytes: rows.len * out_dtype.size_in_bytes(),
        inputs: [x],
        anywhere: false,
    };
    let weight = norm.weight.map(reach).transpose()?;
    let bias = norm.bias.map(reach).transpose()?;
    split.run(&dst, 0, &mut |part| {
        let [(x, layout)] = &part.inputs;
        let norm = Norm {
            weight: weight.as_ref().map(|(weight, layout)| (weight, layout)),
            bias: bias.as_ref().map(|(bias, layout)| (bias, layout)),
            ..norm
        };
        norm_into(&part.dst, (x, layout), norm)
    })?;
    finish(dst, dtype)
}

/// The same with what is beside it in a kernel for each step, where one binding does not reach all: then each has one result.
fn in_steps(
    x: Operand<'_>,
    norm: Norm<'_>,
    how: BesideNorm,
    beside: Operand<'_>,
) -> Result<WebGpuStorage> {
    let plain = Norm {
        beside: None,
        ..norm
    };
    let rows = Layout::contiguous(x.1.shape());
    let step = |x: Operand<'_>, with: Operand<'_>, name: &'static str| {
        elementwise::binary(x.0, with.0, x.1, with.1, name)
    };
    match how {
        BesideNorm::AddBefore => {
            let len = rows.shape().elem_count();
            let sums = step(x, beside, "add")?;
            let norms = self::norm((&sums, &rows), plain)?;
            let mut dst = x.0.device().alloc(2 * len, x.0.dtype(), norm.op)?;
            copy2d(&sums, &mut dst, Ranges::range(len, 0, 0))?;
            copy2d(&norms, &mut dst, Ranges::range(len, 0, len))?;
            Ok(dst)
        }
        BesideNorm::GateBefore => {
            let gated = step(beside, x, Gate::Silu.function())?;
            self::norm((&gated, &rows), plain)
        }
        BesideNorm::AddAfter => step((&self::norm(x, plain)?, &rows), beside, "add"),
        BesideNorm::GateAfter => {
            let normed = self::norm(x, plain)?;
            step(beside, (&normed, &rows), Gate::Silu.function())
        }
    }
}

fn norm_into(dst: &WebGpuStorage, x: Operand<'_>, norm: Norm<'_>) -> Result<()> {
    let op = norm.op;
    let (src, layout) = x;
    let device = src.device();
    let elem = float_elem(device, src.dtype(), op)?;
    let out = float_elem(device, dst.dtype(), op)?;
    let beside = norm.beside.map(|(_, operand)| operand);
    let how = norm.beside.map(|(how, _)| how);
    let rows = Rows::new([layout, beside.unwrap_or(x).1], op)?;
    let len = layout.shape().elem_count();
    let workgroup = rows.workgroup();
    let words = (rows.len / out.lanes() as usize).div_ceil(workgroup as usize);
    let kept = if words <= MAX_KEPT_WORDS { words } else { 0 };
    let key = Key::new("norm")
        .with(kept as u32, 4)
        .elem(elem)
        .elem(out)
        .with(rows.starts.rank as u32, 4)
        .with(workgroup, 9)
        .with(norm.centred.into(), 1)
        .with(norm.weight.is_some().into(), 1)
        .with(norm.bias.is_some().into(), 1)
        .with(how.map_or(0, |how| how as u32 + 1), 3);
    let (alpha_offset, alpha_step) = vector(norm.weight.unwrap_or(x).1)?;
    let (beta_offset, beta_step) = vector(norm.bias.unwrap_or(x).1)?;
    let mut bindings: Vec<Binding<'_>> = vec![bind(src), bind(dst)];
    let others = [norm.weight, norm.bias, beside].into_iter().flatten();
    bindings.extend(others.map(|(storage, _)| bind(storage)));
    let shader = || {
        let mut shader = Shader::new(format!("{op} {elem:?} wg{workgroup}"))
            .input("x", elem)
            .output("dst", out)
            .strided("x", rows.starts.rank);
        shader = match norm.weight {
            Some(_) => shader.input("alpha", elem).text(
                "fn weight(i: u32) -> f32 { return alpha_at(p.alpha_offset + i * p.alpha_step); }",
            ),
            None => shader.text("fn weight(i: u32) -> f32 { return 1.0; }"),
        };
        shader = match norm.bias {
            Some(_) => shader.input("beta", elem).text(
                "fn bias(i: u32) -> f32 { return beta_at(p.beta_offset + i * p.beta_step); }",
            ),
            None => shader.text("fn bias(i: u32) -> f32 { return 0.0; }"),
        };
        shader = match how {
            Some(how) => shader
                .input("beside", elem)
                .strided("beside", rows.starts.rank)
                .text("fn second_start(row: u32) -> u32 { return beside_offset(row); }")
                .text("fn second_at(second: u32, i: u32) -> f32 { return beside_at(second + i * p.beside_step); }")
                .text(beside_wgsl(how)),
            None => shader
                .text("fn second_start(row: u32) -> u32 { return 0u; }")
                .text(include_str!("../../shaders/norm_plain.wgsl"))
                .text("fn last(y: f32, second: u32, i: u32) -> f32 { return y; }"),
        };
        if matches!(how, Some(BesideNorm::GateBefore | BesideNorm::GateAfter)) {
            shader = shader.text(include_str!("../../shaders/functions_float.wgsl"));
        }
        shader
            .constant("CENTRED", norm.centred)
            .constant("KEPT", kept as u32)
            .reduction(device, workgroup, 1)
            .body::<NormParams>(include_str!("../../shaders/norm.wgsl"))
    };
    device.launch(
        key,
        shader,
        &bindings,
        &NormParams {
            dims: rows.starts.dims,
            x_stride: rows.starts.strides[0],
            beside_stride: rows.starts.strides[1],
            x_offset: rows.starts.offsets[0],
            beside_offset: rows.starts.offsets[1],
            alpha_offset,
            beta_offset,
            rows: rows.starts.len,
            len: index(rows.len)?,
            x_step: rows.steps[0],
            beside_step: rows.steps[1],
            alpha_step,
            beta_step,
            eps: norm.eps,
        },
        device.grid(if len == 0 { 0 } else { rows.count() }, 1),
    )
}

/// WGSL for what a second tensor does before and after a norm.
fn beside_wgsl(how: BesideNorm) -> &'static str {
    match how {
        BesideNorm::AddBefore => concat!(
            include_str!("../../shaders/norm_residual.wgsl"),
            "fn last(y: f32, second: u32, i: u32) -> f32 { return y; }"
        ),
        BesideNorm::GateBefore => concat!(
            include_str!("../../shaders/norm_gate.wgsl"),
            "fn last(y: f32, second: u32, i: u32) -> f32 { return y; }"
        ),
        BesideNorm::AddAfter => concat!(
            include_str!("../../shaders/norm_plain.wgsl"),
            "fn last(y: f32, second: u32, i: u32) -> f32 { return y + second_at(second, i); }"
        ),
        BesideNorm::GateAfter => concat!(
            include_str!("../../shaders/norm_plain.wgsl"),
            "fn last(y: f32, second: u32, i: u32) -> f32 { return f_silu(second_at(second, i)) * y; }"
        ),
    }
}

/// `x / sqrt(mean(x^2) + eps) * alpha` over the last dimension. `alpha` has one element for each place of it.
pub(super) fn rms_norm(x: Operand<'_>, alpha: Operand<'_>, eps: f32) -> Result<WebGpuStorage> {
    let rms = Norm {
        op: "rms-norm",
        centred: false,
        weight: Some(alpha),
        bias: None,
        eps,
        beside: None,
    };
    norm(x, rms)
}
