//! RMS norm (Zhang and Sennrich, arXiv 1910.07467) and layer norm (Ba et al., arXiv 1607.06450) over the last dimension.

use super::super::{bind, index};
use super::{finish, float_elem, Rows};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Key, Shader};
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::WebGpuStorage;
use crate::{Layout, Result};

params!(NormParams {
    dims: Dims,
    x_stride: Dims,
    residual_stride: Dims,
    x_offset: u32,
    residual_offset: u32,
    alpha_offset: u32,
    beta_offset: u32,
    rows: u32,
    len: u32,
    x_step: u32,
    residual_step: u32,
    alpha_step: u32,
    beta_step: u32,
    eps: f32,
});

type Input<'a> = (&'a WebGpuStorage, &'a Layout);

/// Which norm, and what goes with it.
#[derive(Clone, Copy)]
struct Kind<'a> {
    op: &'static str,
    /// Layer norm's bias; with it the mean is taken off.
    beta: Option<Input<'a>>,
    /// Added to the input first; the sum is a second result.
    residual: Option<Input<'a>>,
}

/// The first element and the step of a vector.
fn vector(layout: &Layout) -> Result<(u32, u32)> {
    let step = layout.stride().last().copied().unwrap_or(1);
    Ok((index(layout.start_offset())?, index(step)?))
}

fn norm(
    x: Input<'_>,
    alpha: Input<'_>,
    eps: f32,
    kind: Kind<'_>,
) -> Result<(WebGpuStorage, Option<WebGpuStorage>)> {
    let Kind { op, beta, residual } = kind;
    let (src, layout) = x;
    let device = src.device();
    let dtype = src.dtype();
    let elem = float_elem(device, dtype, op)?;
    let rows = Rows::new([layout, residual.unwrap_or(x).1], op)?;
    let (out_dtype, out) = rows.out(dtype, elem);
    let len = layout.shape().elem_count();
    let dst = device.alloc(len, out_dtype, op)?;
    let sum = match residual {
        Some(_) => Some(device.alloc(len, out_dtype, op)?),
        None => None,
    };
    let workgroup = rows.workgroup();
    let key = Key::new("norm")
        .elem(elem)
        .elem(out)
        .with(rows.starts.rank as u32, 4)
        .with(workgroup, 9)
        .with(beta.is_some().into(), 1)
        .with(residual.is_some().into(), 1);
    let (alpha_offset, alpha_step) = vector(alpha.1)?;
    let (beta_offset, beta_step) = vector(beta.unwrap_or(alpha).1)?;
    let mut bindings: Vec<Binding<'_>> = vec![bind(src), bind(alpha.0), bind(&dst)];
    bindings.extend(beta.map(|b| bind(b.0)));
    bindings.extend(residual.map(|r| bind(r.0)));
    bindings.extend(sum.as_ref().map(bind));
    let shader = || {
        let mut shader = Shader::new(format!("{op} {elem:?} wg{workgroup}"))
            .input("x", elem)
            .input("alpha", elem)
            .output("dst", out)
            .strided("x", rows.starts.rank);
        shader = match beta {
            Some(_) => shader
                .input("beta", elem)
                .text("fn bias(i: u32) -> f32 { return beta_at(p.beta_offset + i * p.beta_step); }"),
            None => shader.text("fn bias(i: u32) -> f32 { return 0.0; }"),
        };
        shader = match residual {
            Some(_) => shader
                .input("residual", elem)
                .output("sum", out)
                .strided("residual", rows.starts.rank)
                .text(include_str!("../../shaders/norm_residual.wgsl")),
            None => shader.text(include_str!("../../shaders/norm_plain.wgsl")),
        };
        shader
            .constant("CENTRED", beta.is_some())
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
            residual_stride: rows.starts.strides[1],
            x_offset: rows.starts.offsets[0],
            residual_offset: rows.starts.offsets[1],
            alpha_offset,
            beta_offset,
            rows: rows.starts.len,
            len: index(rows.len)?,
            x_step: rows.steps[0],
            residual_step: rows.steps[1],
            alpha_step,
            beta_step,
            eps,
        },
        device.grid(if len == 0 { 0 } else { rows.count() }, 1),
    )?;
    let sum = sum.map(|sum| finish(sum, dtype)).transpose()?;
    Ok((finish(dst, dtype)?, sum))
}

/// `x / sqrt(mean(x^2) + eps) * alpha` over the last dimension. `alpha` has one element for each place of it.
pub fn rms_norm(
    x: &WebGpuStorage,
    x_l: &Layout,
    alpha: &WebGpuStorage,
    alpha_l: &Layout,
    eps: f32,
) -> Result<WebGpuStorage> {
    let kind = Kind {
        op: "rms-norm",
        beta: None,
        residual: None,
    };
    Ok(norm((x, x_l), (alpha, alpha_l), eps, kind)?.0)
}

/// `(x - mean) / sqrt(variance + eps) * alpha + beta` over the last dimension.
pub fn layer_norm(
    x: &WebGpuStorage,
    x_l: &Layout,
    alpha: &WebGpuStorage,
    alpha_l: &Layout,
    beta: &WebGpuStorage,
    beta_l: &Layout,
    eps: f32,
) -> Result<WebGpuStorage> {
    let kind = Kind {
        op: "layer-norm",
        beta: Some((beta, beta_l)),
        residual: None,
    };
    Ok(norm((x, x_l), (alpha, alpha_l), eps, kind)?.0)
}

/// `sum = x + residual` and `rms_norm(sum)` in one dispatch; gives `(sum, normed)`. Both inputs have one shape.
pub fn add_rms_norm(
    x: &WebGpuStorage,
    x_l: &Layout,
    residual: &WebGpuStorage,
    residual_l: &Layout,
    alpha: &WebGpuStorage,
    alpha_l: &Layout,
    eps: f32,
) -> Result<(WebGpuStorage, WebGpuStorage)> {
    if residual_l.dims() != x_l.dims() {
        crate::bail!(
            "add-rms-norm needs two tensors of one shape, got {:?} and {:?}",
            x_l.shape(),
            residual_l.shape()
        );
    }
    let kind = Kind {
        op: "add-rms-norm",
        beta: None,
        residual: Some((residual, residual_l)),
    };
    let (normed, sum) = norm((x, x_l), (alpha, alpha_l), eps, kind)?;
    match sum {
        Some(sum) => Ok((sum, normed)),
        None => crate::bail!("add-rms-norm gave no sum"),
    }
}
