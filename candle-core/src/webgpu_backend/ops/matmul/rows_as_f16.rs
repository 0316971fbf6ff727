//! Conversion of rows of floats to f16, each with a power of two that keeps it in range, and after an RMS norm, whose factor goes to the
//! product's other factors.

use super::extras::Input;
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
    alpha_offset: u32,
    eps: f32,
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
    norm: bool,
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
            .norm_weights_in_eights(self.norm, self.elem)
            .constant("WG", WORKGROUP)
            .constant("NORMED", self.norm)
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

/// An RMS norm: its weights, contiguous from a multiple of [`GROUP`] on, and its epsilon.
pub(in super::super) type RowNorm<'a> = (Input<'a>, f32);

/// Whether [`normed_rows_as_f16`] takes rows of this shape.
pub(in super::super) fn takes_norm((m, k): (usize, usize)) -> bool {
    k <= MOST_F16_K && parts((m, k)).0 == 1
}

/// Returns `src (m, k)` in f16, with each row times a power of two, and for each row `scale` over that power. With `converts`, which needs
/// shader-f16, the GPU converts to f16 with its own rounding.
pub(in super::super) fn rows_as_f16(
    src: Rows<'_>,
    mk: (usize, usize),
    scale: f32,
    converts: bool,
) -> Result<(WebGpuStorage, WebGpuStorage)> {
    normed_rows_as_f16(src, mk, None, scale, converts)
}

/// Like [`rows_as_f16`], after `norm` of each row, for shapes of [`takes_norm`].
pub(in super::super) fn normed_rows_as_f16(
    src: Rows<'_>,
    (m, k): (usize, usize),
    norm: Option<RowNorm<'_>>,
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
        alpha_offset: index(norm.map_or(0, |((_, layout), _)| layout.start_offset()))?,
        eps: norm.map_or(0., |(_, eps)| eps),
    };
    let grid = device.grid(m * parts, 1);
    let kernel = |pass| RowsAsF16 {
        elem,
        converts,
        norm: norm.is_some(),
        pass,
    };
    if parts == 1 {
        let mut bindings = vec![bind(src.floats), bind(&dst), bind(&scales)];
        bindings.extend(norm.map(|((alpha, _), _)| bind(alpha)));
        device.run(&kernel(Pass::Whole), &bindings, &params, grid)?;
        return Ok((dst, scales));
    }
    assert!(norm.is_none(), "a norm of rows in parts");
    let found = device.alloc(m * parts, DType::U32, OP)?;
    let bindings = [bind(src.floats), bind(&found)];
    device.run(&kernel(Pass::Find), &bindings, &params, grid)?;
    let bindings = [bind(src.floats), bind(&found), bind(&dst), bind(&scales)];
    device.run(&kernel(Pass::Store), &bindings, &params, grid)?;
    Ok((dst, scales))
}

#[cfg(test)]
mod tests {
    use super::{normed_rows_as_f16, parts, rows_as_f16, takes_norm, Rows};
    use crate::backend::{BackendDevice, BackendStorage};
    use crate::webgpu_backend::{Options, WebGpuDevice, WebGpuStorage};
    use crate::{CpuStorage, Layout, Result};

    /// The values of converted rows of `k`.
    fn values((halves, scales): (WebGpuStorage, WebGpuStorage), k: usize) -> Result<Vec<f32>> {
        let (CpuStorage::F16(halves), CpuStorage::F32(scales)) =
            (halves.to_cpu_storage()?, scales.to_cpu_storage()?)
        else {
            unreachable!("f16 rows and f32 scales")
        };
        let value = |(i, half): (usize, half::f16)| half.to_f32() * scales[i / k];
        Ok(halves.into_iter().enumerate().map(value).collect())
    }

    /// The norm in f64, of rows with a stride and weights with an offset; rows differ by up to 2^80.
    #[test]
    fn normed_rows() -> Result<()> {
        let device = WebGpuDevice::with_options(0, &Options::default())?;
        for (m, k) in [(1, 8), (3, 2056), (9, 4096)] {
            assert!(takes_norm((m, k)));
            let row = k + 16;
            let x = |i: usize| ((i * 7 % 23) as f32 - 11.) * 2f32.powi((i / row) as i32 * 10 - 40);
            let alpha = |i: usize| (i % 5) as f32 - 1.75;
            let floats: Vec<f32> = (0..8 + m * row).map(|i| x(i.max(8) - 8)).collect();
            let weights: Vec<f32> = (0..16 + k).map(|i| alpha(i.max(16) - 16)).collect();
            let (floats, weights) = (
                device.storage_from_slice(&floats)?,
                device.storage_from_slice(&weights)?,
            );
            let src = Rows {
                floats: &floats,
                offset: 8,
                row,
            };
            let weights_l = Layout::contiguous_with_offset(k, 16);
            let (eps, scale) = (1e-5f32, 0.5f32);
            let norm = Some(((&weights, &weights_l), eps));
            let got = values(normed_rows_as_f16(src, (m, k), norm, scale, false)?, k)?;
            for (i, got) in got.into_iter().enumerate() {
                let at = |j: usize| f64::from(x(i / k * row + j));
                let squares: f64 = (0..k).map(|j| at(j) * at(j)).sum();
                let factor = f64::from(scale) / (squares / k as f64 + f64::from(eps)).sqrt();
                let want = at(i % k) * f64::from(alpha(i % k)) * factor;
                let off = (f64::from(got) - want).abs();
                assert!(off <= want.abs() * 1e-3, "{m} x {k}, {i}: {got} of {want}");
            }
        }
        assert!(!takes_norm((1, 1 << 20)));
        Ok(())
    }

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
        let CpuStorage::F32(factors) = scales.to_cpu_storage()? else {
            unreachable!("f32 scales")
        };
        for (i, (x, got)) in rows.iter().zip(values((halves, scales), k)?).enumerate() {
            let off = (got - x).abs();
            // Half a unit of the last of 11 bits, or of the smallest numbers.
            let least = factors[i / k] * 2f32.powi(-25);
            assert!(
                off <= (x.abs() * 2f32.powi(-11)).max(least),
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
