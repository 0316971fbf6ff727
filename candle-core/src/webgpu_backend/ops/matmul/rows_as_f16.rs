//! Conversion of rows of floats to f16, each with a power of two that keeps it in range.

use super::via_f16::OP;
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::ops::{bind, index, WORKGROUP};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Result};

/// Rows of floats: their offset in a storage and their stride, both multiples of [`GROUP`]. Elements of a row are contiguous.
#[derive(Clone, Copy)]
pub(in super::super) struct Rows<'a> {
    pub(in super::super) floats: &'a WebGpuStorage,
    pub(in super::super) offset: usize,
    pub(in super::super) row: usize,
}

/// Number of elements that are read at once.
pub(in super::super) const GROUP: usize = 8;

/// Maximum length of the rows that a workgroup converts: an invocation converts eight elements per step, in two loops.
pub(in super::super) const MOST_F16_K: usize = 1 << 22;

/// Number of rows that keep a GPU busy with a workgroup for each.
const MANY_ROWS: usize = 128;
/// Minimum length of a part of a row, of which fewer rows have several.
const LEAST_PART: usize = 1 << 14;

params!(RowsParams {
    rows: u32,
    k: u32,
    src_offset: u32,
    src_row: u32,
    // Number of parts of a row, and their length.
    parts: u32,
    chunk: u32,
    scale: f32,
});

/// The work of a dispatch on the parts of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pass {
    /// Converts rows of one part.
    Whole,
    /// Finds the largest element of each part.
    Find,
    /// Converts parts.
    Store,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RowsAsF16 {
    elem: Elem,
    converts: bool,
    pass: Pass,
}

impl Kernel for RowsAsF16 {
    type Params = RowsParams;

    fn shader(&self, _: &Caps) -> Shader {
        let shader = Shader::default().input_eight("src", self.elem);
        let shader = match self.pass {
            Pass::Whole | Pass::Find => shader.text("fn found(i: u32) -> u32 { return 0u; }"),
            Pass::Store => shader
                .input_words("parts", "u32")
                .text("fn found(i: u32) -> u32 { return parts[i]; }"),
        };
        let shader = match self.pass {
            Pass::Whole | Pass::Store => shader
                .stores_eight(Elem::F16, self.converts)
                .output_words("scales", "f32")
                .text("fn put_found(i: u32, bits: u32) {}"),
            Pass::Find => shader.output_words("parts", "u32").text(
                "fn put_found(i: u32, bits: u32) { parts[i] = bits; }\n\
                 fn store_eight(i: u32, a: vec4<f32>, b: vec4<f32>) {}\n\
                 var<private> scales: array<f32, 1>;",
            ),
        };
        shader
            .constant("WG", WORKGROUP)
            .constant("FINDS", self.pass != Pass::Store)
            .constant("STORES", self.pass != Pass::Find)
            .body::<RowsParams>(include_str!("../../shaders/rows_as_f16.wgsl"))
    }
}

/// Number of parts of a row, and their length: a multiple of what a workgroup reads at once.
fn parts((rows, k): (usize, usize)) -> (usize, usize) {
    let wanted = match rows {
        MANY_ROWS.. => 1,
        _ => (k / LEAST_PART).clamp(1, WORKGROUP as usize),
    };
    let step = GROUP * WORKGROUP as usize;
    let chunk = k.div_ceil(wanted).next_multiple_of(step);
    (k.div_ceil(chunk), chunk)
}

/// Returns `src (m, k)` in f16, with each row times a power of two, and for each row `scale` over that power. With `converts`, which needs
/// shader-f16, the GPU converts to f16 with its own rounding.
pub(in super::super) fn rows_as_f16(
    src: Rows<'_>,
    (m, k): (usize, usize),
    scale: f32,
    converts: bool,
) -> Result<(WebGpuStorage, WebGpuStorage)> {
    let device = src.floats.device();
    let elem = device.elem(src.floats.dtype(), OP)?;
    let dst = device.alloc(m * k, DType::F16, OP)?;
    let scales = device.alloc(m, DType::F32, OP)?;
    let (parts, chunk) = parts((m, k));
    let params = RowsParams {
        rows: index(m)?,
        k: index(k)?,
        src_offset: index(src.offset)?,
        src_row: index(src.row)?,
        parts: index(parts)?,
        chunk: index(chunk)?,
        scale,
    };
    let grid = device.grid(m * parts, 1);
    let kernel = |pass| RowsAsF16 {
        elem,
        converts,
        pass,
    };
    if parts == 1 {
        let bindings = [bind(src.floats), bind(&dst), bind(&scales)];
        device.run(&kernel(Pass::Whole), &bindings, &params, grid)?;
        return Ok((dst, scales));
    }
    let found = device.alloc(m * parts, DType::U32, OP)?;
    let bindings = [bind(src.floats), bind(&found)];
    device.run(&kernel(Pass::Find), &bindings, &params, grid)?;
    let bindings = [bind(src.floats), bind(&found), bind(&dst), bind(&scales)];
    device.run(&kernel(Pass::Store), &bindings, &params, grid)?;
    Ok((dst, scales))
}

#[cfg(test)]
mod tests {
    use super::{parts, rows_as_f16, Rows};
    use crate::backend::{BackendDevice, BackendStorage};
    use crate::webgpu_backend::{Options, WebGpuDevice};
    use crate::{CpuStorage, Result};

    /// The largest element, which decides the factor, is in the last of three parts.
    #[test]
    fn long_rows_are_converted_in_parts() -> Result<()> {
        let device = WebGpuDevice::with_options(0, &Options::default())?;
        let (m, k) = (2, 50_000);
        assert_eq!(parts((m, k)), (3, 18_432));
        let mut rows: Vec<f32> = (0..m * k).map(|i| (i % 23) as f32 - 11.3).collect();
        (rows[k - 1], rows[2 * k - 1]) = (3e7, -2e30);
        let floats = device.storage_from_slice(&rows)?;
        let src = Rows {
            floats: &floats,
            offset: 0,
            row: k,
        };
        let (halves, scales) = rows_as_f16(src, (m, k), 1., false)?;
        let (CpuStorage::F16(halves), CpuStorage::F32(scales)) =
            (halves.to_cpu_storage()?, scales.to_cpu_storage()?)
        else {
            unreachable!("f16 rows and f32 scales")
        };
        for (i, (x, half)) in rows.iter().zip(halves).enumerate() {
            let scale = scales[i / k];
            let off = (half.to_f32() * scale - x).abs();
            // Half a unit of the last of 11 bits, or of the smallest numbers.
            assert!(
                off <= (x.abs() * 2f32.powi(-11)).max(scale * 2f32.powi(-25)),
                "{i}: {off} of {x}"
            );
        }
        Ok(())
    }

    #[test]
    fn parts_cover_a_row() {
        for (shape, expected) in [
            ((9, 4096), (1, 4096)),
            ((1, 40), (1, 2048)),
            ((1000, 1 << 20), (1, 1 << 20)),
            ((1, 1 << 20), (64, 1 << 14)),
            ((32, 100_000), (6, 18_432)),
        ] {
            assert_eq!(parts(shape), expected, "{shape:?}");
        }
    }
}
