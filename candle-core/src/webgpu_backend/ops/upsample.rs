//! Resizing of images. The source elements and weights of each output row or column are computed on the host, with the CPU backend's code,
//! and the kernel reads them from a table. The GPU caches the last tables, because an upload submits everything in the queue.

use parking_lot::Mutex;

use super::copy2d::{copy2d, Rows};
use super::windows::{fit, window_bytes, Operand, Split};
use super::{bind, index};
use crate::backend::{BackendDevice, BackendStorage};
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::memory::Memory;
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{resample, DType, Layout, Result, Shape};

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

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Upsample {
    elem: Elem,
    mix: bool,
}

impl Kernel for Upsample {
    type Params = UpsampleParams;

    fn shader(&self, _: &Caps) -> Shader {
        let shader = Shader::default()
            .input("src", self.elem)
            .input("table", Elem::U32)
            .output("dst", self.elem);
        let shader = match (self.mix, self.elem) {
            (false, _) => shader.text(include_str!("../shaders/upsample_nearest.wgsl")),
            (true, Elem::F64) => shader.text(concat!(
                "fn weight(e: vec4<u32>) -> f64 { return bitcast<f64>(u64(e.z) | (u64(e.w) << 32u)); }\n",
                include_str!("../shaders/upsample_linear.wgsl")
            )),
            (true, _) => shader.text(concat!(
                "fn weight(e: vec4<u32>) -> f32 { return bitcast<f32>(e.z); }\n",
                include_str!("../shaders/upsample_linear.wgsl")
            )),
        };
        shader.each_element::<UpsampleParams>(include_str!("../shaders/upsample.wgsl"))
    }
}

/// An entry of the table: two neighbours along an axis, and the lower and upper word of the second one's weight.
type Entry = [u32; 4];

/// The tables of the last calls, each with its contents.
#[derive(Default)]
struct Tables(Mutex<Vec<(Vec<Entry>, Memory)>>);

impl Tables {
    /// Maximum number of cached tables: a network resizes to few sizes.
    const MOST: usize = 16;

    fn get(&self, device: &WebGpuDevice, entries: Vec<Entry>) -> Result<WebGpuStorage> {
        let words = entries.as_flattened().len();
        let storage = |memory| WebGpuStorage::new(memory, words, DType::U32, device.clone());
        let known = |tables: &[(Vec<Entry>, Memory)]| {
            let found = tables.iter().find(|(known, _)| *known == entries);
            found.map(|(_, memory)| memory.clone())
        };
        if let Some(memory) = known(&self.0.lock()) {
            return Ok(storage(memory));
        }
        // Not locked meanwhile: if memory runs out, these tables are freed.
        let made = device.storage_from_slice(entries.as_flattened())?;
        let mut tables = self.0.lock();
        if tables.len() == Self::MOST {
            tables.remove(0);
        }
        tables.push((entries, made.memory().clone()));
        Ok(made)
    }
}

fn nearest_entries(size: usize, target: usize) -> Result<Vec<Entry>> {
    resample::nearest(size, target)
        .into_iter()
        .map(|i| Ok([index(i)?, index(i)?, 0, 0]))
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
    let rows = nearest_entries(image.size[0], o_h)?;
    let columns = nearest_entries(image.size[1], o_w)?;
    image.resample(src, &rows, &columns, false, op)
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
    let elem = src.device().elem(src.dtype(), OP)?;
    if !elem.is_float() {
        let hint = "bilinear interpolation needs floats: convert to f32 first";
        return Err(src.device().unsupported(OP, src.dtype(), hint));
    }
    let rows = resample::linear(image.size[0], o_h, align_corners, scale_h);
    let columns = resample::linear(image.size[1], o_w, align_corners, scale_w);
    let entry = |mix: resample::Mix| {
        let [first, second] = mix.indices;
        let weight = match elem {
            Elem::F64 => mix.second.to_bits(),
            _ => u64::from((mix.second as f32).to_bits()),
        };
        let (low, high) = (weight as u32, (weight >> 32) as u32);
        Ok([index(first)?, index(second)?, low, high])
    };
    let rows = rows.into_iter().map(entry).collect::<Result<Vec<_>>>()?;
    let columns = columns.into_iter().map(entry).collect::<Result<Vec<_>>>()?;
    image.resample(src, &rows, &columns, true, OP)
}

/// A batch of images `(batch, channels, height, width)`.
struct Image {
    layout: Layout,
    /// Height and width.
    size: [usize; 2],
}

impl Image {
    fn new(layout: &Layout) -> Self {
        let (dims, steps) = match (layout.dims(), layout.stride()) {
            (&[b, c, h, w], &[sb, sc, sh, sw]) => ([b, c, h, w], [sb, sc, sh, sw]),
            (&[b, c, w], &[sb, sc, sw]) => ([b, c, 1, w], [sb, sc, 0, sw]),
            _ => ([0; 4], [0; 4]),
        };
        Self {
            layout: Layout::new(
                Shape::from(dims.to_vec()),
                steps.to_vec(),
                layout.start_offset(),
            ),
            size: [dims[2], dims[3]],
        }
    }

    /// `rows` and `columns` have an entry for each row and column of the result.
    fn resample(
        &self,
        src: &WebGpuStorage,
        rows: &[Entry],
        columns: &[Entry],
        mix: bool,
        op: &'static str,
    ) -> Result<WebGpuStorage> {
        let device = src.device();
        let (batch, channels, i_h, i_w) = self.layout.shape().dims4()?;
        let plane = rows.len() * columns.len();
        let dst = device.alloc(batch * channels * plane, src.dtype(), op)?;
        if dst.is_empty() {
            return Ok(dst);
        }
        let whole = fit([src, &dst]);
        let size = src.dtype().size_in_bytes();
        let largest = plane.max(i_h * i_w) * size;
        if !whole && largest > window_bytes(device) && rows.len() > 1 {
            return self.halves(src, rows, columns, mix, op);
        }
        let sampling = Sampling {
            table: device
                .gpu()
                .kept::<Tables>()
                .get(device, [rows, columns].concat())?,
            o_h: rows.len(),
            o_w: columns.len(),
            mix,
            op,
        };
        if whole {
            sampling.launch(&dst, (src, &self.layout))?;
            return Ok(dst);
        }
        let split = Split {
            op,
            dims: &[batch, channels],
            unit: plane,
            bytes: plane * size,
            inputs: [(src, &self.layout)],
            anywhere: false,
        };
        split.run(&dst, 0, &mut |part| {
            let [(src, layout)] = &part.inputs;
            sampling.launch(&part.dst, (src, layout))
        })?;
        Ok(dst)
    }

    /// The upper and the lower half of the result, each from the rows of the input that it needs.
    fn halves(
        &self,
        src: &WebGpuStorage,
        rows: &[Entry],
        columns: &[Entry],
        mix: bool,
        op: &'static str,
    ) -> Result<WebGpuStorage> {
        let planes = self.layout.dims()[0] * self.layout.dims()[1];
        let plane = rows.len() * columns.len();
        let mut dst = src.device().alloc(planes * plane, src.dtype(), op)?;
        let (upper, lower) = rows.split_at(rows.len() / 2);
        for (rows, dst_offset) in [(upper, 0), (lower, upper.len() * columns.len())] {
            let used = || rows.iter().flat_map(|entry| [entry[0], entry[1]]);
            let (first, last) = (used().min().unwrap_or(0), used().max().unwrap_or(0));
            let rows: Vec<_> = rows
                .iter()
                .map(|[a, b, low, high]| [a - first, b - first, *low, *high])
                .collect();
            let count = (last - first + 1) as usize;
            let half = Self {
                layout: self.layout.narrow(2, first as usize, count)?,
                size: [count, self.size[1]],
            };
            let made = half.resample(src, &rows, columns, mix, op)?;
            let len = rows.len() * columns.len();
            let rows = Rows {
                d1: planes,
                d2: len,
                src_stride: len,
                dst_stride: plane,
                src_offset: 0,
                dst_offset,
            };
            copy2d(&made, &mut dst, rows)?;
        }
        Ok(dst)
    }
}

/// The values that all images share.
struct Sampling {
    /// The entries of the rows, then those of the columns.
    table: WebGpuStorage,
    o_h: usize,
    o_w: usize,
    mix: bool,
    op: &'static str,
}

impl Sampling {
    fn launch(&self, dst: &WebGpuStorage, (src, layout): Operand<'_>) -> Result<()> {
        let mix = self.mix;
        let device = src.device();
        let mut elem = device.elem(src.dtype(), self.op)?;
        if !mix {
            elem = elem.bits();
        }
        let (batch, channels, _, _) = layout.shape().dims4()?;
        let steps = layout.stride();
        let len = batch * channels * self.o_h * self.o_w;
        device.run(
            &Upsample { elem, mix },
            &[bind(src), bind(&self.table), bind(dst)],
            &UpsampleParams {
                src_offset: index(layout.start_offset())?,
                src_batch: index(steps[0])?,
                src_channel: index(steps[1])?,
                src_row: index(steps[2])?,
                src_col: index(steps[3])?,
                channels: index(channels)?,
                o_h: index(self.o_h)?,
                o_w: index(self.o_w)?,
                len: index(len)?,
            },
            device.grid_of_words(len, elem),
        )
    }
}
