//! The rest of a convolutional layer: its bias, a residual and an activation.

use super::{contiguous, output_len, Extras};
use crate::conv::Geometry;
use crate::fused::Conv2d;
use crate::webgpu_backend::ops::elementwise::{binary, unary};
use crate::webgpu_backend::WebGpuStorage;
use crate::{Layout, Result};

/// `run` with the tensors of `conv` contiguous, as the products' kernels read them.
pub(super) fn in_order<T>(
    conv: Conv2d<'_, WebGpuStorage>,
    run: impl FnOnce(Extras<'_>) -> Result<T>,
) -> Result<T> {
    let copies = [conv.bias, conv.residual].map(|tensor| {
        tensor.map(|(storage, layout)| {
            let (copy, offset) = contiguous(storage, layout)?;
            let layout = Layout::contiguous_with_offset(layout.shape(), offset);
            Ok::<_, crate::Error>((copy.unwrap_or_else(|| storage.share()), layout))
        })
    });
    let [bias, residual] = copies.map(Option::transpose);
    let (bias, residual) = (bias?, residual?);
    run(Extras {
        bias: bias.as_ref().map(|(storage, layout)| (storage, layout)),
        residual: residual.as_ref().map(|(storage, layout)| (storage, layout)),
        activation: conv.activation,
        ..Extras::default()
    })
}

/// The extras of a result of `g`, in separate dispatches.
pub(super) fn after(dst: WebGpuStorage, extras: Extras<'_>, g: &Geometry) -> Result<WebGpuStorage> {
    let conv = Conv2d {
        padding: 0,
        stride: 1,
        dilation: 1,
        groups: 1,
        bias: extras.bias,
        residual: extras.residual,
        activation: extras.activation,
    };
    conv.after(dst, [g.b, g.c_out, output_len(g)], binary, unary)
}
