//! Plain convolutions whose input, kernel or result exceeds a binding, computed in parts. A part is a box: some images, groups, channels of
//! the result and rows or columns of it, and the sum over some channels of the input.

use std::ops::Range;

use super::{index, input_len, output_len, strides, taps, Conv, Extras, Operands};
use crate::backend::BackendStorage;
use crate::conv::Geometry;
use crate::webgpu_backend::ops::copy2d::{copy2d, Rows};
use crate::webgpu_backend::ops::elementwise;
use crate::webgpu_backend::ops::reduce::accumulator;
use crate::webgpu_backend::ops::windows::{reach, window_bytes};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Error, Layout, Result, Shape};

pub(super) fn run(operands: &Operands<'_>, g: &Geometry) -> Result<WebGpuStorage> {
    let dtype = operands.src.dtype();
    let len = g.b * g.c_out * output_len(g);
    let (c_in, c_out) = g.group_channels();
    let parts = Parts {
        operands,
        g,
        most: window_bytes(operands.src.device()),
    };
    let all = Part {
        batch: 0..g.b,
        groups: 0..g.groups,
        outs: 0..c_out,
        area: g.output.map(|size| 0..size),
        channels: 0..c_in,
    };
    let mut dst = operands.src.device().alloc(len, dtype, g.op)?;
    parts.place(&all, &mut dst)?;
    Ok(dst)
}

/// A part by its ranges; `outs` and `channels` count within a group.
#[derive(Debug, Clone)]
struct Part {
    batch: Range<usize>,
    groups: Range<usize>,
    outs: Range<usize>,
    /// Rows and columns of the result.
    area: [Range<usize>; 2],
    channels: Range<usize>,
}

/// The dimension along which a part is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Batch,
    Groups,
    Outs,
    Area(usize),
    Channels,
}

impl Part {
    fn range(&mut self, cut: Cut) -> &mut Range<usize> {
        match cut {
            Cut::Batch => &mut self.batch,
            Cut::Groups => &mut self.groups,
            Cut::Outs => &mut self.outs,
            Cut::Area(d) => &mut self.area[d],
            Cut::Channels => &mut self.channels,
        }
    }

    fn halves(&self, cut: Cut) -> [Self; 2] {
        let (mut low, mut high) = (self.clone(), self.clone());
        let all = low.range(cut).clone();
        let middle = all.start + all.len() / 2;
        low.range(cut).end = middle;
        high.range(cut).start = middle;
        [low, high]
    }

    /// Planes of the result, and elements in each.
    fn planes(&self) -> (usize, usize) {
        let planes = self.batch.len() * self.groups.len() * self.outs.len();
        (planes, self.area[0].len() * self.area[1].len())
    }
}

struct Parts<'a> {
    operands: &'a Operands<'a>,
    g: &'a Geometry,
    /// Maximum size in bytes of a binding.
    most: usize,
}

impl Parts<'_> {
    /// The rows (or columns) of the input that a part's windows read, or one of them if all are in the padding.
    fn reached(&self, part: &Part, d: usize) -> Range<usize> {
        let (step, range) = (&self.g.steps[d], &part.area[d]);
        let first = range.start * step.stride;
        let span = (range.len() - 1) * step.stride + (self.g.kernel[d] - 1) * step.dilation + 1;
        let top = first.saturating_sub(step.padding).min(self.g.input[d] - 1);
        let bottom = (first + span).saturating_sub(step.padding);
        top..bottom.clamp(top + 1, self.g.input[d])
    }

    /// The dimension along which a part that is too large has to be divided. Images come before channels and channels before rows, so that
    /// a part is always rows of the result with a constant stride.
    fn cut(&self, part: &Part) -> Result<Option<Cut>> {
        let Operands { src, kernel, .. } = self.operands;
        let size = src.dtype().size_in_bytes();
        let (planes, len) = part.planes();
        // It may be computed in f32 first.
        let made = planes * len * size.max(4) > self.most;
        let channels = part.groups.len() * part.channels.len();
        let area = self.reached(part, 0).len() * self.reached(part, 1).len();
        let read = part.batch.len() * channels * area * size;
        let read = !src.fits_binding() && read > self.most;
        let weights = channels * part.outs.len() * taps(self.g) * size;
        let weights = !kernel.fits_binding() && weights > self.most;
        if !(made || read || weights) {
            return Ok(None);
        }
        let cuts = [
            (true, Cut::Batch),
            (true, Cut::Groups),
            (made || weights, Cut::Outs),
            (made || read, Cut::Area(0)),
            (made || read, Cut::Area(1)),
            (read || weights, Cut::Channels),
        ];
        let mut part = part.clone();
        let mut cuts = cuts.into_iter();
        match cuts.find(|(helps, cut)| *helps && part.range(*cut).len() > 1) {
            Some((_, cut)) => Ok(Some(cut)),
            None => Err(Error::WebGpu(format!(
                "{}: a kernel of {:?} elements and its input window exceed the {} bytes that {} can bind at once: use a smaller dtype \
                 or kernel",
                self.g.op,
                self.g.kernel,
                self.most,
                src.device().name(),
            ))
            .bt()),
        }
    }

    /// Computes a part, in several steps if necessary, and writes it to its position in the result.
    fn place(&self, part: &Part, dst: &mut WebGpuStorage) -> Result<()> {
        match self.cut(part)? {
            None | Some(Cut::Channels) => {}
            Some(cut) => {
                let [low, high] = part.halves(cut);
                self.place(&low, dst)?;
                return self.place(&high, dst);
            }
        }
        let made = self.make(part, dst.dtype())?;
        let (planes, len) = part.planes();
        let (_, c_out) = self.g.group_channels();
        let out = part.groups.start * c_out + part.outs.start;
        let plane = part.batch.start * self.g.c_out + out;
        let within = part.area[0].start * self.g.output[1] + part.area[1].start;
        let rows = Rows {
            d1: planes,
            d2: len,
            src_stride: len,
            dst_stride: output_len(self.g),
            src_offset: 0,
            dst_offset: plane * output_len(self.g) + within,
        };
        copy2d(&made, dst, rows)
    }

    /// A part that only has to be divided along the channels of the input: the sum over these, in the dtype of sums.
    fn make(&self, part: &Part, to: DType) -> Result<WebGpuStorage> {
        if self.cut(part)? != Some(Cut::Channels) {
            return self.bound(part, to);
        }
        let sums = accumulator(to);
        let [low, high] = part.halves(Cut::Channels);
        let (low, high) = (self.make(&low, sums)?, self.make(&high, sums)?);
        let all = Layout::contiguous(low.len());
        let sum = elementwise::binary(&low, &high, &all, &all, "add")?;
        if to == sums {
            Ok(sum)
        } else {
            elementwise::to_dtype(&sum, &all, to)
        }
    }

    /// A part that can be bound.
    fn bound(&self, part: &Part, to: DType) -> Result<WebGpuStorage> {
        let g = self.g;
        let (c_in, c_out) = g.group_channels();
        let (rows, cols) = (self.reached(part, 0), self.reached(part, 1));
        let view = |storage, layout: &Layout, starts: [usize; 4], dims: [usize; 4]| {
            let strides = strides(layout);
            let first = starts.iter().zip(strides).map(|(start, step)| start * step);
            let offset = layout.start_offset() + first.sum::<usize>();
            let layout = Layout::new(Shape::from(dims.to_vec()), strides.to_vec(), offset);
            reach((storage, &layout))
        };
        let Operands {
            src,
            src_l,
            kernel,
            kernel_l,
        } = self.operands;
        let channel = part.groups.start * c_in + part.channels.start;
        let channels = part.groups.len() * part.channels.len();
        let starts = [part.batch.start, channel, rows.start, cols.start];
        let dims = [part.batch.len(), channels, rows.len(), cols.len()];
        let (src, src_l) = view(src, src_l, starts, dims)?;
        let out = part.groups.start * c_out + part.outs.start;
        let outs = part.groups.len() * part.outs.len();
        let starts = [out, part.channels.start, 0, 0];
        let dims = [outs, part.channels.len(), g.kernel[0], g.kernel[1]];
        let (kernel, kernel_l) = view(kernel, kernel_l, starts, dims)?;
        // Relative to the first bound row (or column); a window that begins before it wraps.
        let start = |d: usize, top: usize| {
            let first = index(part.area[d].start * g.steps[d].stride)?;
            let before = index(g.steps[d].padding + top)?;
            Ok::<_, Error>(first.wrapping_sub(before))
        };
        let part = Geometry {
            b: part.batch.len(),
            groups: part.groups.len(),
            c_in: channels,
            c_out: outs,
            input: [rows.len(), cols.len()],
            output: [part.area[0].len(), part.area[1].len()],
            ..*g
        };
        debug_assert!(input_len(&part) > 0);
        let conv = Conv {
            g: part,
            start: [start(0, rows.start)?, start(1, cols.start)?],
            src: &src,
            src_offset: src_l.start_offset(),
            src_strides: strides(&src_l),
            kernel: &kernel,
            kernel_offset: kernel_l.start_offset(),
            kernel_strides: strides(&kernel_l),
        };
        conv.make(Extras::default(), to)
    }
}
