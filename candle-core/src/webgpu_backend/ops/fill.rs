//! Sets elements to a constant, in place.

use super::windows::{each, fit};
use super::{bind, Views, WORKGROUP};
use crate::backend::BackendStorage;
use crate::scalar::Scalar;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
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

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Fill {
    elem: Elem,
    rank: usize,
    by_element: bool,
}

impl Kernel for Fill {
    type Params = FillParams;

    fn shader(&self, _: &Caps) -> Shader {
        Shader::default()
            .output("dst", self.elem)
            .strided("dst", self.rank)
            .constant("WG", WORKGROUP)
            .constant("RANK", self.rank as u32)
            .constant("BY_ELEMENT", self.by_element)
            .text(match self.elem {
                Elem::I64 => "fn value() -> dst_t { return dst_t(p.low, p.high); }",
                _ => "fn value() -> dst_t { return bitcast<dst_t>(p.low); }",
            })
            .body::<FillParams>(include_str!("../shaders/fill.wgsl"))
    }
}

/// The constant's bits, as the integer type of [`Elem::bits`].
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
/// Elements of packed dtypes share words, so there an invocation owns a word of the span and checks for each lane whether the layout covers
/// it. If a word is one element, an invocation owns an element.
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
            msg: "const_set: the value's dtype differs from the tensor's",
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
    let kernel = Fill {
        elem,
        rank: views.rank,
        by_element,
    };
    device.run(
        &kernel,
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
