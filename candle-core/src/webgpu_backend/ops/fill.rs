//! Setting elements to a constant, in place.

use super::windows::{each, fit};
use super::{bind, Views, WORKGROUP};
use crate::backend::BackendStorage;
use crate::scalar::Scalar;
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{Error, Layout, Result};

params!(FillParams {
    dims: Dims,
    dst_stride: Dims,
    dst_offset: u32,
    len: u32,
    words: u32,
    low: u32,
    high: u32,
});

/// The constant's bits, as the integer of [`Elem::bits`] has them.
fn bits(value: Scalar) -> u64 {
    match value {
        Scalar::U8(v) => v.into(),
        Scalar::U32(v) => v.into(),
        Scalar::I16(v) => u64::from(v as u32),
        Scalar::I32(v) => u64::from(v as u32),
        Scalar::I64(v) => v as u64,
        Scalar::BF16(v) => v.to_bits().into(),
        Scalar::F16(v) => v.to_bits().into(),
        Scalar::F32(v) => v.to_bits().into(),
        Scalar::F64(v) => v.to_bits(),
        Scalar::F8E4M3(v) => v.to_bits().into(),
    }
}

/// Sets every element that `layout` covers.
///
/// Elements of packed dtypes share words, so there an invocation owns a word of the span and asks of each lane whether the
/// layout covers it. Where a word is one element, an invocation takes an element.
pub(in super::super) fn const_set(
    dst: &mut WebGpuStorage,
    value: Scalar,
    layout: &Layout,
) -> Result<()> {
    const OP: &str = "const-set";
    if !fit([dst]) && layout.shape().elem_count() > 0 {
        return each(dst, layout, &mut |dst, layout| {
            const_set(&mut dst.share(), value, layout)
        });
    }
    let device = dst.device().clone();
    let elem = device.elem(dst.dtype(), OP)?.bits();
    if value.dtype() != dst.dtype() {
        return Err(Error::UnexpectedDType {
            msg: "const_set: the value has another dtype than the tensor",
            expected: dst.dtype(),
            got: value.dtype(),
        }
        .bt());
    }
    let views = Views::new([layout])?;
    if views.len == 0 {
        return Ok(());
    }
    let lanes = elem.lanes();
    let range = views.rank == 0;
    let span = if range {
        views.len
    } else {
        1 + (0..views.rank)
            .map(|d| (views.dims[d] - 1) * views.strides[0][d])
            .sum::<u32>()
    };
    let by_element = !range && lanes == 1;
    let first = views.offsets[0] / lanes;
    let last = (views.offsets[0] + span).div_ceil(lanes);
    let invocations = if by_element { views.len } else { last - first };
    let bits = bits(value);
    let key = Key::new(OP)
        .elem(elem)
        .with(views.rank as u32, 4)
        .with(by_element.into(), 1);
    device.launch(
        key,
        || {
            let ty = elem.arithmetic();
            let constant = match elem {
                Elem::I64 => "vec2<u32>(p.low, p.high)".to_string(),
                _ => format!("bitcast<{ty}>(p.low)"),
            };
            Shader::new(format!("const_set {elem:?} rank{}", views.rank))
                .output("dst", elem)
                .strided("dst", views.rank)
                .constant("WG", WORKGROUP)
                .constant("BY_ELEMENT", by_element)
                .text(&format!("fn value() -> {ty} {{ return {constant}; }}"))
                .text(&covers(views.rank))
                .body::<FillParams>(include_str!("../shaders/fill.wgsl"))
        },
        &[bind(dst)],
        &FillParams {
            dims: views.dims,
            dst_stride: views.strides[0],
            dst_offset: views.offsets[0],
            len: views.len,
            words: last - first,
            low: bits as u32,
            high: (bits >> 32) as u32,
        },
        device.grid(invocations as usize, WORKGROUP),
    )
}

/// WGSL that says whether the layout covers element `at` of the buffer, by trying each dimension's steps: strides are walked
/// from the largest down, which the caller's layouts (views of a contiguous tensor) keep unambiguous.
fn covers(rank: usize) -> String {
    if rank == 0 {
        return "fn covers(at: u32) -> bool { return at >= p.dst_offset && at < p.dst_offset + p.len; }"
            .into();
    }
    let mut body = String::from(
        "if (at < p.dst_offset) { return false; } var rest = at - p.dst_offset; \
         var done: array<bool, 8>; ",
    );
    // A selection by largest stride, unrolled over at most eight dimensions.
    body.push_str(&format!(
        "for (var turn = 0u; turn < {rank}u; turn++) {{ var best = 0u; var stride = 0u; \
         for (var d = 0u; d < {rank}u; d++) {{ let s = p.dst_stride[d / 4u][d % 4u]; \
         if (!done[d] && s >= stride) {{ best = d; stride = s; }} }} done[best] = true; \
         let size = p.dims[best / 4u][best % 4u]; \
         if (stride > 0u) {{ let step = min(rest / stride, size - 1u); rest -= step * stride; }} }} \
         return rest == 0u;"
    ));
    format!("fn covers(at: u32) -> bool {{ {body} }}")
}
