//! The prologue and epilogue of a product: a norm of its rows before it, a gate and a sum after it. The number of dispatches limits a
//! decoding step, and these would be separate dispatches.

use std::fmt;

use super::super::{bind, index};
use super::MatmulParams;
use crate::backend::BackendStorage;
use crate::fused::{Activation, Gate, LinearExtras};
use crate::webgpu_backend::kernel::{Elem, Shader};
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::WebGpuStorage;
use crate::{Layout, Result};

/// A tensor: its storage and its layout.
pub type Input<'a> = (&'a WebGpuStorage, &'a Layout);

/// The parts of a linear layer other than its product.
pub type Extras<'a> = LinearExtras<'a, WebGpuStorage>;

impl<'a> Extras<'a> {
    /// The specialisation of a kernel for these extras.
    pub(super) fn form(&self) -> ExtrasForm {
        ExtrasForm {
            norm: self.norm.is_some(),
            gate: self.gate,
            epilogue: self.epilogue(),
        }
    }

    /// Whether there is only the product.
    pub(in super::super) fn is_none(&self) -> bool {
        self.gate.is_none() && self.activation.is_none() && self.each().next().is_none()
    }

    /// The epilogue of a product. The dtype of its operands is the result's, which may differ from that of the product's operands: those of
    /// a product with blocks may have been converted to f16.
    pub(super) fn epilogue(&self) -> Epilogue {
        Epilogue {
            bias: elem_of(self.bias),
            gated: self.gate.is_some(),
            activation: self.activation,
            residual: elem_of(self.residual),
            planes: false,
        }
    }

    /// Whether kernels can read these without a copy: the residual in rows, the norm's weights in groups of `group`.
    pub(super) fn fit(&self, group: usize) -> bool {
        let norm = self.norm.is_none_or(|((_, layout), _)| {
            layout.is_contiguous() && layout.start_offset().is_multiple_of(group)
        });
        let residual = self.residual.is_none_or(|(_, layout)| {
            let last = layout.dims().len() - 1;
            layout.row_step().is_some() && (layout.stride()[last] == 1 || layout.dims()[last] == 1)
        });
        let bias = self.bias.is_none_or(|(_, layout)| layout.is_contiguous());
        // With the operands of products with blocks, a third would exceed the number of buffers.
        norm && bias && residual && self.each().count() <= 2
    }

    /// The norm's weights, the bias and the residual, those that are present.
    pub(in super::super) fn each(&self) -> impl Iterator<Item = &'a WebGpuStorage> {
        let norm = self.norm.map(|(alpha, _)| alpha);
        let all = [norm, self.bias, self.residual];
        all.into_iter().flatten().map(|(storage, _)| storage)
    }

    /// The bindings after lhs, rhs and dst.
    pub(super) fn bindings(&self) -> impl Iterator<Item = Binding<'a>> {
        self.each().map(bind)
    }

    /// Writes these to `params`, after the problem and the channels.
    pub(super) fn fill(&self, params: &mut MatmulParams) -> Result<()> {
        // Kernels count columns from the first of a product, which may be one of several adjacent ones; those of planes count from dst's.
        let first = match params.channels {
            0 => params.dst_first as usize,
            _ => 0,
        };
        if let Some(((_, layout), eps)) = self.norm {
            params.alpha_offset = index(layout.start_offset())?;
            params.eps = eps;
        }
        if let Some((_, layout)) = self.bias {
            params.bias_offset = index(layout.start_offset() + first)?;
        }
        if let Some((_, layout)) = self.residual {
            params.residual_offset = index(layout.start_offset() + first)?;
            params.residual_row = index(layout.row_step().unwrap_or(0))?;
        }
        Ok(())
    }
}

fn elem_of(input: Option<Input<'_>>) -> Option<Elem> {
    input.and_then(|(storage, _)| Elem::of(storage.dtype()))
}

/// The extras that a kernel computes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct ExtrasForm {
    pub(super) norm: bool,
    pub(super) gate: Option<Gate>,
    pub(super) epilogue: Epilogue,
}

impl ExtrasForm {
    /// Sums for each column of the result: with a gate one more, for the up projection.
    pub(super) fn sums(&self) -> u32 {
        1 + u32::from(self.gate.is_some())
    }
}

impl fmt::Debug for ExtrasForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.norm { " norm" } else { "" })?;
        match self.gate {
            Some(gate) => write!(f, " {gate:?}{:?}", self.epilogue),
            None => write!(f, "{:?}", self.epilogue),
        }
    }
}

/// The epilogue of a product.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Epilogue {
    pub(super) bias: Option<Elem>,
    /// Whether there is a gate; the bias is then added before it.
    pub(super) gated: bool,
    pub(super) activation: Option<Activation>,
    pub(super) residual: Option<Elem>,
    /// Whether rows are planes of channels: the bias is a channel's, and the residual, in the order of dst, is added before the
    /// activation.
    pub(super) planes: bool,
}

impl fmt::Debug for Epilogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(elem) = self.bias {
            write!(f, " bias {elem:?}")?;
        }
        if let Some(activation) = self.activation {
            write!(f, " {activation:?}")?;
        }
        if let Some(elem) = self.residual {
            write!(f, " residual {elem:?}")?;
        }
        f.write_str(if self.planes { " planes" } else { "" })
    }
}

impl Shader {
    /// `dst_place(part, row, col)`, the element of dst for one of a part's product, and `finish(row, col, sum)`, the value that is stored
    /// for a sum. With a gate, `bias_at` is available for the value before it.
    pub(super) fn finish(mut self, epilogue: Epilogue) -> Self {
        let mut value = String::from("sum");
        if let Some(elem) = epilogue.bias {
            self = self.input("bias", elem);
            value.push_str(match (epilogue.gated, epilogue.planes) {
                (true, _) => "",
                (false, true) => " + bias_at(p.bias_offset + row % p.channels)",
                (false, false) => " + bias_at(p.bias_offset + col)",
            });
        }
        if let Some(elem) = epilogue.residual {
            self = self.input("residual", elem);
        }
        if epilogue.residual.is_some() && epilogue.planes {
            value.push_str(" + residual_at(p.residual_offset + dst_place(0u, row, col))");
        }
        for function in epilogue.activation.map_or(&[][..], Activation::functions) {
            value = format!("f_{function}({value})");
        }
        if epilogue.residual.is_some() && !epilogue.planes {
            value.push_str(" + residual_at(p.residual_offset + row * p.residual_row + col)");
        }
        if epilogue.gated || epilogue.activation.is_some() {
            self = self.text(include_str!("../../shaders/functions_float.wgsl"));
        }
        self.text(include_str!("../../shaders/matmul_places.wgsl"))
            .text(&format!(
                "fn finish(row: u32, col: u32, sum: f32) -> f32 {{ return {value}; }}"
            ))
    }
}
