//! What a product does besides: a norm of its rows before it, a gate and a sum after it. A decoding step is bound by the
//! number of its dispatches, and these would be dispatches of their own.

use super::super::{bind, index, row_step};
use super::MatmulParams;
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{Elem, Shader};
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::WebGpuStorage;
use crate::{Layout, Result};

/// A tensor: its storage and its layout.
pub type Input<'a> = (&'a WebGpuStorage, &'a Layout);

/// What a linear layer does besides its product. All tensors have the dtype of its input.
#[derive(Clone, Copy, Default)]
pub struct Extras<'a> {
    /// The input's rows are replaced by their RMS norm: weights `(k)`, contiguous, and epsilon.
    pub norm: Option<(Input<'a>, f32)>,
    /// The result is `silu(gate) * up`, where the product is `gate` and `up` side by side.
    pub gated: bool,
    /// `(m, n)`, added to the result.
    pub residual: Option<Input<'a>>,
}

impl<'a> Extras<'a> {
    /// The choices that change a kernel's WGSL, as bits of its key.
    pub(super) fn bits(&self) -> (u32, u32) {
        let bits = u32::from(self.norm.is_some()) << 1 | u32::from(self.gated);
        (bits << 4 | self.residual_choice(), 6)
    }

    /// The storage of the residual, if there is one. Its dtype is the result's, and not always that of a product's operands:
    /// those with blocks may have been converted to f16.
    pub(super) fn residual_elem(&self) -> Option<Elem> {
        self.residual
            .and_then(|(residual, _)| Elem::of(residual.dtype()))
    }

    /// The same in four bits of a key.
    pub(super) fn residual_choice(&self) -> u32 {
        self.residual_elem().map_or(0, |elem| elem as u32 + 1)
    }

    /// Whether kernels can read these without a copy: the residual in rows, the norm's weights in groups of `group`.
    pub(super) fn fit(&self, group: usize) -> bool {
        let norm = self.norm.is_none_or(|((_, layout), _)| {
            layout.is_contiguous() && layout.start_offset().is_multiple_of(group)
        });
        let residual = self.residual.is_none_or(|(_, layout)| {
            let last = layout.dims().len() - 1;
            row_step(layout).is_some() && (layout.stride()[last] == 1 || layout.dims()[last] == 1)
        });
        norm && residual
    }

    /// The norm's weights and the residual, as far as there are such.
    pub(super) fn each(&self) -> impl Iterator<Item = &'a WebGpuStorage> {
        let norm = self.norm.map(|((alpha, _), _)| alpha);
        let residual = self.residual.map(|(residual, _)| residual);
        norm.into_iter().chain(residual)
    }

    /// The bindings after lhs, rhs and dst.
    pub(super) fn bindings(&self) -> impl Iterator<Item = Binding<'a>> {
        self.each().map(bind)
    }

    pub(super) fn fill(&self, params: &mut MatmulParams) -> Result<()> {
        if let Some(((_, layout), eps)) = self.norm {
            params.alpha_offset = index(layout.start_offset())?;
            params.eps = eps;
        }
        if let Some((_, layout)) = self.residual {
            // Kernels count columns from the first of a product, which may be one of several side by side.
            params.residual_offset = index(layout.start_offset() + params.dst_first as usize)?;
            params.residual_row = index(row_step(layout).unwrap_or(0))?;
        }
        Ok(())
    }
}

impl Shader {
    /// `finish(row, col, sum)`: what is stored for a sum.
    pub(super) fn finish(self, residual: Option<Elem>) -> Self {
        let (shader, value) = match residual {
            Some(elem) => (
                self.input("residual", elem),
                "sum + residual_at(p.residual_offset + row * p.residual_row + col)",
            ),
            None => (self, "sum"),
        };
        shader.text(&format!(
            "fn finish(row: u32, col: u32, sum: f32) -> f32 {{ return {value}; }}"
        ))
    }
}
