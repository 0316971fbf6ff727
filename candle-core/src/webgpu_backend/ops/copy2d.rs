//! Rows copied from one storage into another: concatenation, and appending to a cache.

use super::windows::fit;
use super::{bind, index, WORKGROUP};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::Result;

params!(CopyParams {
    d1: u32,
    d2: u32,
    src_stride: u32,
    dst_stride: u32,
    src_offset: u32,
    dst_offset: u32,
    words: u32,
});

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Copy2d {
    elem: Elem,
    whole: bool,
}

impl Kernel for Copy2d {
    type Params = CopyParams;

    fn shader(&self, _: &Caps) -> Shader {
        Shader::default()
            .input("src", self.elem)
            .output("dst", self.elem)
            .constant("WG", WORKGROUP)
            .constant("WHOLE", self.whole)
            .body::<CopyParams>(include_str!("../shaders/copy2d.wgsl"))
    }
}

/// `d1` rows of `d2` elements. Row strides and offsets are in elements.
#[derive(Clone, Copy)]
pub(in super::super) struct Rows {
    pub(in super::super) d1: usize,
    pub(in super::super) d2: usize,
    pub(in super::super) src_stride: usize,
    pub(in super::super) dst_stride: usize,
    pub(in super::super) src_offset: usize,
    pub(in super::super) dst_offset: usize,
}

impl Rows {
    /// One range of elements.
    pub(in super::super) fn range(len: usize, src_offset: usize, dst_offset: usize) -> Self {
        Self {
            d1: 1,
            d2: len,
            src_stride: len,
            dst_stride: len,
            src_offset,
            dst_offset,
        }
    }
}

/// Copies rows by windows of both sides: halves the rows, or a single row, until both sides fit a window.
fn windowed(src: &WebGpuStorage, dst: &WebGpuStorage, rows: Rows) -> Result<()> {
    let span = |stride: usize| (rows.d1 - 1) * stride + rows.d2;
    let from = src.window(rows.src_offset, span(rows.src_stride));
    let to = dst.window(rows.dst_offset, span(rows.dst_stride));
    if let (Some((from, src_offset)), Some((mut to, dst_offset))) = (from, to) {
        let rows = Rows {
            src_offset,
            dst_offset,
            ..rows
        };
        return copy2d(&from, &mut to, rows);
    }
    let (mut low, mut high) = (rows, rows);
    let (src_step, dst_step) = if rows.d1 > 1 {
        low.d1 /= 2;
        high.d1 -= low.d1;
        (low.d1 * rows.src_stride, low.d1 * rows.dst_stride)
    } else {
        // Halves that end at a word boundary, if the row is long enough: 256 elements are whole words of any dtype.
        low.d2 = if rows.d2 > 512 {
            (rows.d2 / 2).next_multiple_of(256) - rows.dst_offset % 256
        } else {
            rows.d2 / 2
        };
        high.d2 -= low.d2;
        (low.d2, low.d2)
    };
    high.src_offset += src_step;
    high.dst_offset += dst_step;
    windowed(src, dst, low)?;
    windowed(src, dst, high)
}

/// Copies rows; elements of `dst` between and around them are unchanged.
pub(in super::super) fn copy2d(
    src: &WebGpuStorage,
    dst: &mut WebGpuStorage,
    mut rows: Rows,
) -> Result<()> {
    const OP: &str = "copy2d";
    let device = dst.device().clone();
    let mut elem = device.elem(dst.dtype(), OP)?.bits();
    if rows.d1 == 0 || rows.d2 == 0 {
        return Ok(());
    }
    // Contiguous rows, or a single one, are one row.
    if rows.d1 == 1 || (rows.src_stride == rows.d2 && rows.dst_stride == rows.d2) {
        rows.d2 *= rows.d1;
        rows.d1 = 1;
        rows.src_stride = rows.d2;
        rows.dst_stride = rows.d2;
    }
    if !fit([src, dst]) {
        return windowed(src, dst, rows);
    }
    let in_words = |place: usize| place.is_multiple_of(elem.lanes() as usize);
    let whole = in_words(rows.d2) && in_words(rows.dst_stride) && in_words(rows.dst_offset);
    if whole && in_words(rows.src_stride) && in_words(rows.src_offset) && elem.word_bytes() == 4 {
        // Whole words to whole words: the words are copied unchanged.
        let lanes = elem.lanes() as usize;
        rows.d2 /= lanes;
        rows.src_stride /= lanes;
        rows.dst_stride /= lanes;
        rows.src_offset /= lanes;
        rows.dst_offset /= lanes;
        elem = Elem::U32;
    }
    let lanes = elem.lanes() as usize;
    let words = if whole {
        rows.d1 * rows.d2 / lanes
    } else {
        let span = (rows.d1 - 1) * rows.dst_stride + rows.d2;
        (rows.dst_offset % lanes + span).div_ceil(lanes)
    };
    device.run(
        &Copy2d { elem, whole },
        &[bind(src), bind(dst)],
        &CopyParams {
            d1: index(rows.d1)?,
            d2: index(rows.d2)?,
            src_stride: index(rows.src_stride)?,
            dst_stride: index(rows.dst_stride)?,
            src_offset: index(rows.src_offset)?,
            dst_offset: index(rows.dst_offset)?,
            words: index(words)?,
        },
        device.grid(words, WORKGROUP),
    )
}
