//! Resizing images. Which elements make an output row or column is worked out on the host, where the CPU backend asks as well, and
//! read by the kernel from a table.

use super::{bind, index, WORKGROUP};
use crate::backend::{BackendDevice, BackendStorage};
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{resample, Layout, Result};

params!(UpsampleParams {
    src_offset: u32,
    src_batch: u32,
    src_channel: u32,
    src_row: u32,
    src_col: u32,
    channels: u32,
    o_h: u32,
    o_w: u32,
    len: u32,
});

/// A row of the table: two neighbours of an axis, and the bits of the second one's weight.
type Entry = [u32; 3];

fn nearest_entries(size: usize, target: usize) -> Result<Vec<Entry>> {
    resample::nearest(size, target)
        .into_iter()
        .map(|i| Ok([index(i)?, index(i)?, 0]))
        .collect()
}

/// Nearest neighbours, of an input `(batch, channels, height, width)` or, as one row, `(batch, channels, length)`.
pub(in super::super) fn nearest(
    src: &WebGpuStorage,
    layout: &Layout,
    (o_h, o_w): (usize, usize),
    op: &'static str,
) -> Result<WebGpuStorage> {
    let image = Image::new(layout);
    let mut table = nearest_entries(image.size[0], o_h)?;
    table.extend(nearest_entries(image.size[1], o_w)?);
    image.resample(src, &table, (o_h, o_w), false, op)
}

/// Bilinear interpolation of an input `(batch, channels, height, width)`.
pub(in super::super) fn bilinear(
    src: &WebGpuStorage,
    layout: &Layout,
    (o_h, o_w): (usize, usize),
    align_corners: bool,
    (scale_h, scale_w): (Option<f64>, Option<f64>),
) -> Result<WebGpuStorage> {
    const OP: &str = "upsample_bilinear2d";
    let image = Image::new(layout);
    if !src.device().elem(src.dtype(), OP)?.is_float() {
        let hint = "bilinear interpolation takes f32, f16 and bf16";
        return Err(src.device().unsupported(OP, src.dtype(), hint));
    }
    let rows = resample::linear(image.size[0], o_h, align_corners, scale_h);
    let columns = resample::linear(image.size[1], o_w, align_corners, scale_w);
    let table = rows
        .into_iter()
        .chain(columns)
        .map(|mix| {
            let [first, second] = mix.indices;
            Ok([index(first)?, index(second)?, (mix.second as f32).to_bits()])
        })
        .collect::<Result<Vec<_>>>()?;
    image.resample(src, &table, (o_h, o_w), true, OP)
}

/// A batch of images and where their elements are.
struct Image {
    batch: usize,
    channels: usize,
    /// Height and width.
    size: [usize; 2],
    /// Steps over batch, channel, row and column.
    steps: [usize; 4],
    offset: usize,
}

impl Image {
    fn new(layout: &Layout) -> Self {
        let (dims, steps) = match (layout.dims(), layout.stride()) {
            (&[b, c, h, w], &[sb, sc, sh, sw]) => ([b, c, h, w], [sb, sc, sh, sw]),
            (&[b, c, w], &[sb, sc, sw]) => ([b, c, 1, w], [sb, sc, 0, sw]),
            _ => ([0; 4], [0; 4]),
        };
        Self {
            batch: dims[0],
            channels: dims[1],
            size: [dims[2], dims[3]],
            steps,
            offset: layout.start_offset(),
        }
    }

    /// `table` has an entry for each row of the result, then one for each column.
    fn resample(
        &self,
        src: &WebGpuStorage,
        table: &[Entry],
        (o_h, o_w): (usize, usize),
        mix: bool,
        op: &'static str,
    ) -> Result<WebGpuStorage> {
        let device = src.device();
        let elem = device.elem(src.dtype(), op)?;
        let len = self.batch * self.channels * o_h * o_w;
        let dst = device.alloc(len, src.dtype(), op)?;
        if len == 0 {
            return Ok(dst);
        }
        let table = device.storage_from_slice(table.as_flattened())?;
        device.launch(
            Key::new("upsample").elem(elem).with(mix.into(), 1),
            || {
                Shader::new(format!("upsample {elem:?} mix:{mix}"))
                    .input("src", elem)
                    .input("table", Elem::U32)
                    .output("dst", elem)
                    .constant("WG", WORKGROUP)
                    .text(if mix { MIX } else { CHOOSE })
                    .body::<UpsampleParams>(include_str!("../shaders/upsample.wgsl"))
            },
            &[bind(src), bind(&table), bind(&dst)],
            &UpsampleParams {
                src_offset: index(self.offset)?,
                src_batch: index(self.steps[0])?,
                src_channel: index(self.steps[1])?,
                src_row: index(self.steps[2])?,
                src_col: index(self.steps[3])?,
                channels: index(self.channels)?,
                o_h: index(o_h)?,
                o_w: index(o_w)?,
                len: index(len)?,
            },
            device.grid(len.div_ceil(elem.lanes() as usize), WORKGROUP),
        )?;
        Ok(dst)
    }
}

/// WGSL for the element at a row and a column of the table, in the image that begins at `start`.
const CHOOSE: &str = "fn resampled(start: u32, row: vec3<u32>, column: vec3<u32>) -> src_t { \
    return src_at(start + row.x * p.src_row + column.x * p.src_col); }";

const MIX: &str = "fn mixed(start: u32, column: vec3<u32>) -> f32 { \
    let second = bitcast<f32>(column.z); \
    return src_at(start + column.x * p.src_col) * (1.0 - second) + src_at(start + column.y * p.src_col) * second; }
fn resampled(start: u32, row: vec3<u32>, column: vec3<u32>) -> src_t { \
    let second = bitcast<f32>(row.z); \
    return mixed(start + row.x * p.src_row, column) * (1.0 - second) + mixed(start + row.y * p.src_row, column) * second; }";
