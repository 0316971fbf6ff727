//! RMS norm (Zhang and Sennrich, arXiv 1910.07467) and layer norm (Ba et al., arXiv 1607.06450) over the last dimension.

use super::super::copy2d::{copy2d, Rows as Ranges};
use super::super::windows::{fit, reach, Operand, Split};
use super::super::{bind, elementwise, index};
use super::long_rows::{self, is_long};
use super::{finish, float_elem, Rows};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Key, Shader};
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::WebGpuStorage;
use crate::{Error, Layout, Result};

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

/// Words of its row that an invocation keeps in registers; longer rows are read again for each pass.
const MAX_KEPT_WORDS: usize = 8;

/// Which norm, and what goes with it.
#[derive(Clone, Copy)]
struct Kind<'a> {
    op: &'static str,
    /// Layer norm's bias; with it the mean is taken off.
    beta: Option<Operand<'a>>,
    /// Added to the input first; the sums are kept in front of the result.
    residual: Option<Operand<'a>>,
}

/// The first element and the step of a vector.
fn vector(layout: &Layout) -> Result<(u32, u32)> {
    let step = layout.stride().last().copied().unwrap_or(1);
    Ok((index(layout.start_offset())?, index(step)?))
}

fn norm(x: Operand<'_>, alpha: Operand<'_>, eps: f32, kind: Kind<'_>) -> Result<WebGpuStorage> {
    let Kind { op, beta, residual } = kind;
    let (src, layout) = x;
    let device = src.device();
    let dtype = src.dtype();
    let elem = float_elem(device, dtype, op)?;
    let rows = Rows::new([layout], op)?;
    let (out_dtype, _) = rows.out(dtype, elem);
    let len = layout.shape().elem_count();
    let results = if residual.is_some() { 2 } else { 1 };
    let dst = device.alloc(results * len, out_dtype, op)?;
    if fit([src, alpha.0, &dst]) && fit([residual.unwrap_or(x).0, beta.unwrap_or(alpha).0]) {
        norm_into(&dst, x, alpha, eps, kind)?;
        return finish(dst, dtype);
    }
    if let Some(residual) = residual {
        // The sums by themselves, for then each result is one range.
        let sums = elementwise::binary(src, residual.0, layout, residual.1, "add")?;
        let sums_l = Layout::contiguous(layout.shape());
        let plain = Kind {
            residual: None,
            ..kind
        };
        let norms = norm((&sums, &sums_l), alpha, eps, plain)?;
        let mut dst = device.alloc(2 * len, dtype, op)?;
        copy2d(&sums, &mut dst, Ranges::range(len, 0, 0))?;
        copy2d(&norms, &mut dst, Ranges::range(len, 0, len))?;
        return Ok(dst);
    }
    if is_long(device, rows.len, [dtype, out_dtype]) {
        drop(dst);
        return long_rows::norm(x, alpha, beta, eps);
    }
    // By rows, as softmax. alpha and beta are as long as a row.
    let rank = layout.dims().len() - 1;
    let split = Split {
        op,
        dims: &layout.dims()[..rank],
        unit: rows.len,
        bytes: rows.len * out_dtype.size_in_bytes(),
        inputs: [x],
        anywhere: false,
    };
    let alpha = reach(alpha)?;
    let beta = beta.map(reach).transpose()?;
    split.run(&dst, 0, &mut |part| {
        let [(x, layout)] = &part.inputs;
        let beta = beta.as_ref().map(|(beta, layout)| (beta, layout));
        let kind = Kind { beta, ..kind };
        norm_into(&part.dst, (x, layout), (&alpha.0, &alpha.1), eps, kind)
    })?;
    finish(dst, dtype)
}

fn norm_into(
    dst: &WebGpuStorage,
    x: Operand<'_>,
    alpha: Operand<'_>,
    eps: f32,
    kind: Kind<'_>,
) -> Result<()> {
    let Kind { op, beta, residual } = kind;
    let (src, layout) = x;
    let device = src.device();
    let elem = float_elem(device, src.dtype(), op)?;
    let out = float_elem(device, dst.dtype(), op)?;
    let rows = Rows::new([layout, residual.unwrap_or(x).1], op)?;
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
        .with(beta.is_some().into(), 1)
        .with(residual.is_some().into(), 1);
    let (alpha_offset, alpha_step) = vector(alpha.1)?;
    let (beta_offset, beta_step) = vector(beta.unwrap_or(alpha).1)?;
    let mut bindings: Vec<Binding<'_>> = vec![bind(src), bind(alpha.0), bind(dst)];
    bindings.extend(beta.map(|b| bind(b.0)));
    bindings.extend(residual.map(|r| bind(r.0)));
    let shader = || {
        let mut shader = Shader::new(format!("{op} {elem:?} wg{workgroup}"))
            .input("x", elem)
            .input("alpha", elem)
            .output("dst", out)
            .strided("x", rows.starts.rank);
        shader = match beta {
            Some(_) => shader.input("beta", elem).text(
                "fn bias(i: u32) -> f32 { return beta_at(p.beta_offset + i * p.beta_step); }",
            ),
            None => shader.text("fn bias(i: u32) -> f32 { return 0.0; }"),
        };
        shader = match residual {
            Some(_) => shader
                .input("residual", elem)
                .strided("residual", rows.starts.rank)
                .text(include_str!("../../shaders/norm_residual.wgsl")),
            None => shader.text(include_str!("../../shaders/norm_plain.wgsl")),
        };
        shader
            .constant("CENTRED", beta.is_some())
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
    )
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
    norm((x, x_l), (alpha, alpha_l), eps, kind)
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
    norm((x, x_l), (alpha, alpha_l), eps, kind)
}

/// `sum = x + residual` and `rms_norm(sum)` in one dispatch: the sums, then the norms, each contiguous in the inputs' shape.
pub fn add_rms_norm(
    x: &WebGpuStorage,
    x_l: &Layout,
    residual: &WebGpuStorage,
    residual_l: &Layout,
    alpha: &WebGpuStorage,
    alpha_l: &Layout,
    eps: f32,
) -> Result<WebGpuStorage> {
    const OP: &str = "add-rms-norm";
    if residual_l.dims() != x_l.dims() {
        return Err(Error::ShapeMismatchBinaryOp {
            lhs: x_l.shape().clone(),
            rhs: residual_l.shape().clone(),
            op: OP,
        }
        .bt());
    }
    let kind = Kind {
        op: OP,
        beta: None,
        residual: Some((residual, residual_l)),
    };
    norm((x, x_l), (alpha, alpha_l), eps, kind)
}
