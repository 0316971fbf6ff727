//! RMS norm (Zhang and Sennrich, arXiv 1910.07467) and layer norm (Ba et al., arXiv 1607.06450) over the last dimension.

use super::super::copy2d::{copy2d, Rows as Ranges};
use super::super::windows::{fit, reach, Operand, Split};
use super::super::{bind, elementwise, index};
use super::long_rows::{self, is_long, MOST_ROW};
use super::{finish, float_elem, Rows};
use crate::backend::BackendStorage;
use crate::fused::{BesideNorm, Gate};
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
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

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct NormRows {
    elem: Elem,
    out: Elem,
    rank: usize,
    workgroup: u32,
    /// Words of its row that an invocation keeps in registers; 0 for none.
    kept: u32,
    centred: bool,
    weight: bool,
    bias: bool,
    beside: Option<BesideNorm>,
}

impl Kernel for NormRows {
    type Params = NormParams;

    fn shader(&self, caps: &Caps) -> Shader {
        let Self {
            elem, rank, beside, ..
        } = *self;
        let shader = Shader::default()
            .view("x", elem, rank)
            .output("dst", self.out);
        let shader = if self.weight {
            shader.input("alpha", elem).text(
                "fn weight(i: u32) -> f32 { return alpha_at(p.alpha_offset + i * p.alpha_step); }",
            )
        } else {
            shader.text("fn weight(i: u32) -> f32 { return 1.0; }")
        };
        let shader = if self.bias {
            shader
                .input("beta", elem)
                .text("fn bias(i: u32) -> f32 { return beta_at(p.beta_offset + i * p.beta_step); }")
        } else {
            shader.text("fn bias(i: u32) -> f32 { return 0.0; }")
        };
        let shader = match beside {
            Some(_) => shader
                .view("beside", elem, rank)
                .text(include_str!("../../shaders/functions_float.wgsl"))
                .text(include_str!("../../shaders/norm_beside.wgsl")),
            None => shader.text("fn second_start(row: u32) -> u32 { return 0u; }"),
        };
        shader
            .text(match beside {
                Some(BesideNorm::AddBefore) => include_str!("../../shaders/norm_residual.wgsl"),
                _ => include_str!("../../shaders/norm_plain.wgsl"),
            })
            .text(match beside {
                Some(BesideNorm::AddAfter) => {
                    "fn last(y: f32, second: u32, i: u32) -> f32 { return y + second_at(second, i); }"
                }
                Some(BesideNorm::GateAfter) => {
                    "fn last(y: f32, second: u32, i: u32) -> f32 { return f_silu(second_at(second, i)) * y; }"
                }
                _ => "fn last(y: f32, second: u32, i: u32) -> f32 { return y; }",
            })
            .constant("CENTRED", self.centred)
            .constant("KEPT", self.kept)
            .sums(caps, self.workgroup, 1)
            .body::<NormParams>(include_str!("../../shaders/norm.wgsl"))
    }
}

/// Maximum number of words of its row that an invocation keeps in registers; longer rows are read again for each pass.
const MAX_KEPT_WORDS: usize = 8;

/// A norm and its parameters.
pub type Norm<'a> = crate::fused::Norm<'a, WebGpuStorage>;

/// The offset and the stride of a vector.
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
    if fit([src, &dst]) && fit(others) && rows.len <= MOST_ROW {
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
    // By rows, like softmax. Weight and bias have the length of a row.
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

/// The same with a separate kernel for the second input, for operands that exceed a binding: each kernel then has one result.
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
    let rows = Rows::new([layout, beside.unwrap_or(x).1], op)?;
    let len = layout.shape().elem_count();
    let workgroup = rows.workgroup();
    let words = (rows.len / out.lanes() as usize).div_ceil(workgroup as usize);
    let kept = if words <= MAX_KEPT_WORDS { words } else { 0 };
    let kernel = NormRows {
        elem,
        out,
        rank: rows.starts.rank,
        workgroup,
        kept: kept as u32,
        centred: norm.centred,
        weight: norm.weight.is_some(),
        bias: norm.bias.is_some(),
        beside: norm.beside.map(|(how, _)| how),
    };
    let (alpha_offset, alpha_step) = vector(norm.weight.unwrap_or(x).1)?;
    let (beta_offset, beta_step) = vector(norm.bias.unwrap_or(x).1)?;
    let mut bindings: Vec<Binding<'_>> = vec![bind(src), bind(dst)];
    let others = [norm.weight, norm.bias, beside].into_iter().flatten();
    bindings.extend(others.map(|(storage, _)| bind(storage)));
    device.run(
        &kernel,
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

#[cfg(test)]
mod tests {
    use super::{BesideNorm, NormRows};
    use crate::webgpu_backend::kernel::{assert_valid, Elem};

    #[test]
    fn every_form_is_valid_wgsl() {
        use BesideNorm::*;
        let beside = [AddBefore, AddAfter, GateAfter].map(Some);
        for (elem, out) in [
            (Elem::F32, Elem::F32),
            (Elem::BF16, Elem::F32),
            (Elem::F16, Elem::F16),
        ] {
            for beside in beside.into_iter().chain([None]) {
                for flags in 0..8 {
                    assert_valid(&NormRows {
                        elem,
                        out,
                        rank: 1,
                        workgroup: 64,
                        kept: 4 * (flags & 1),
                        centred: flags & 2 == 2,
                        weight: flags & 4 == 4,
                        bias: flags == 7,
                        beside,
                    });
                }
            }
        }
    }
}
