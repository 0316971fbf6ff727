//! Running sums of rows: within parts of a row, then of the parts' sums, which are added to all later elements.

use super::elementwise::functions;
use super::reduce::accumulator;
use super::windows::fit;
use super::{bind, index, Views, WORKGROUP};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{Layout, Result, Shape};

const OP: &str = "cumsum";
/// Number of elements that an invocation adds in sequence.
const PART: usize = 64;

params!(ScanParams {
    dims: Dims,
    src_stride: Dims,
    src_offset: u32,
    inner: u32,
    chunk: u32,
    chunks: u32,
    parts: u32,
});

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Scan {
    from: Elem,
    to: Elem,
    rank: usize,
}

impl Kernel for Scan {
    type Params = ScanParams;

    fn shader(&self, _: &Caps) -> Shader {
        Shader::default()
            .view("src", self.from, self.rank)
            .output("dst", self.to)
            .constant("WG", WORKGROUP)
            .text(functions(self.from))
            .body::<ScanParams>(include_str!("../shaders/scan.wgsl"))
    }
}

params!(ScanJoinParams {
    inner: u32,
    chunk: u32,
    chunks: u32,
    len: u32,
});

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ScanJoin {
    sums: Elem,
    out: Elem,
    /// Whether rows have several parts.
    before: bool,
}

impl Kernel for ScanJoin {
    type Params = ScanJoinParams;

    fn shader(&self, _: &Caps) -> Shader {
        let shader = Shader::default().input("sums", self.sums);
        let shader = if self.before {
            shader
                .input("totals", self.sums)
                .text("fn before(i: u32) -> sums_t { return totals_at(i); }")
        } else {
            shader.text("fn before(i: u32) -> sums_t { return sums_at(i); }")
        };
        shader
            .output("dst", self.out)
            .text(functions(self.sums))
            .constant("BEFORE", self.before)
            .each_element::<ScanJoinParams>(include_str!("../shaders/scan_join.wgsl"))
    }
}

/// Whether `src` and its sums fit one binding. Larger tensors use the form composed of other ops.
pub(crate) fn fits(src: &WebGpuStorage, layout: &Layout) -> bool {
    let sums = layout.shape().elem_count() * accumulator(src.dtype()).size_in_bytes();
    fit([src]) && sums as u64 <= src.device().max_binding()
}

/// The running sums of the last dimension, contiguous in the shape of `layout`, which has elements.
pub(crate) fn cumsum(src: &WebGpuStorage, layout: &Layout) -> Result<WebGpuStorage> {
    let device = src.device();
    let len = layout.shape().elem_count();
    let inner = layout.dims().last().copied().unwrap_or(1);
    let chunks = inner.div_ceil(PART);
    let sums_dtype = accumulator(src.dtype());
    let sums = device.alloc(len, sums_dtype, OP)?;
    let views = Views::new([layout])?;
    let kernel = Scan {
        from: device.elem(src.dtype(), OP)?,
        to: device.elem(sums_dtype, OP)?,
        rank: views.rank,
    };
    let parts = len / inner * chunks;
    device.run(
        &kernel,
        &[bind(src), bind(&sums)],
        &ScanParams {
            dims: views.dims,
            src_stride: views.strides[0],
            src_offset: views.offsets[0],
            inner: index(inner)?,
            chunk: PART as u32,
            chunks: index(chunks)?,
            parts: index(parts)?,
        },
        device.grid(parts, WORKGROUP),
    )?;
    if chunks == 1 && sums_dtype == src.dtype() {
        return Ok(sums);
    }
    // The last element of each part except the last.
    let totals_l = Layout::new(
        Shape::from((len / inner, chunks - 1)),
        vec![inner, PART],
        PART - 1,
    );
    let before = match chunks {
        1 => None,
        _ => Some(cumsum(&sums, &totals_l)?),
    };
    let dst = device.alloc(len, src.dtype(), OP)?;
    let join = ScanJoin {
        sums: device.elem(sums_dtype, OP)?,
        out: device.elem(src.dtype(), OP)?,
        before: before.is_some(),
    };
    let mut bindings = vec![bind(&sums)];
    bindings.extend(before.as_ref().map(bind));
    bindings.push(bind(&dst));
    device.run(
        &join,
        &bindings,
        &ScanJoinParams {
            inner: index(inner)?,
            chunk: PART as u32,
            chunks: index(chunks)?,
            len: index(len)?,
        },
        device.grid_of_words(len, join.out),
    )?;
    Ok(dst)
}

#[cfg(test)]
mod tests {
    use super::{Scan, ScanJoin};
    use crate::webgpu_backend::kernel::{assert_valid, Elem};

    #[test]
    fn every_form_is_valid_wgsl() {
        for (from, sums) in [
            (Elem::F32, Elem::F32),
            (Elem::F16, Elem::F32),
            (Elem::BF16, Elem::F32),
            (Elem::F64, Elem::F64),
            (Elem::U8, Elem::U32),
            (Elem::I16, Elem::I32),
            (Elem::I64, Elem::I64),
        ] {
            for rank in [0, 2] {
                assert_valid(&Scan {
                    from,
                    to: sums,
                    rank,
                });
            }
            for before in [false, true] {
                assert_valid(&ScanJoin {
                    sums,
                    out: from,
                    before,
                });
            }
        }
    }
}
