//! Computes which elements the taps of a kernel read.

use std::borrow::Cow;

use super::lanes::Kernels;
use super::source::{Axis, ConvInput};
use super::Geometry;

/// The outputs that the same taps contribute to, as a grid.
#[derive(Debug)]
pub(super) struct Pass<'a, A: Clone> {
    /// Weights: a row for each output channel of all groups, with a column for each tap.
    pub weights: Cow<'a, [A]>,
    /// For each tap, the offset in the group's source of the element it reads for the first output.
    pub taps: Vec<usize>,
    /// Rows and columns.
    pub grid: [usize; 2],
    /// Row stride in the source; the columns are contiguous there.
    pub source_row: usize,
    /// Offset of the first output in its plane, and the strides of the others.
    pub target_start: usize,
    pub target_steps: [usize; 2],
}

/// The copied input's dimensions.
pub(super) fn axes(g: &Geometry) -> [Axis; 2] {
    [0, 1].map(|d| {
        let (steps, input, k, output) = (g.steps[d], g.input[d], g.kernel[d], g.output[d]);
        let reach = (k - 1) * steps.dilation;
        if g.transposed {
            // Output `o` reads the inputs `(o + padding - tap * dilation) / stride` that are integers.
            let before = reach.saturating_sub(steps.padding).div_ceil(steps.stride);
            let last = (output.saturating_sub(1) + steps.padding) / steps.stride;
            Axis {
                before,
                padded: before + input.max(last + 1),
                stride: 1,
            }
        } else {
            Axis {
                before: steps.padding,
                padded: (output - 1) * steps.stride + reach + 1,
                // Rows are read whole, so only the columns have to be contiguous.
                stride: if d == 1 { steps.stride } else { 1 },
            }
        }
    })
}

/// The passes that together compute all outputs except those that no tap reaches, which are 0.
pub(super) fn passes<'a, A: Kernels>(
    g: &Geometry,
    axes: [Axis; 2],
    source: &ConvInput<A>,
    kernel: &'a [A],
) -> Vec<Pass<'a, A>> {
    if g.transposed {
        return transposed(g, axes, source, kernel);
    }
    let [k_h, k_w] = g.kernel;
    let taps = taps(
        g,
        source,
        (0..k_h).flat_map(|y| (0..k_w).map(move |x| (y, x))),
        |y, x| {
            let (y, x) = (y * g.steps[0].dilation, x * g.steps[1].dilation);
            y * source.row + axes[1].at(x)
        },
    );
    vec![Pass {
        weights: Cow::Borrowed(kernel),
        taps,
        grid: g.output,
        source_row: g.steps[0].stride * source.row,
        target_start: 0,
        target_steps: [g.output[1], 1],
    }]
}

/// For each channel of a group, the start of each of the taps.
fn taps<A: Clone>(
    g: &Geometry,
    source: &ConvInput<A>,
    places: impl Iterator<Item = (usize, usize)> + Clone,
    at: impl Fn(usize, usize) -> usize,
) -> Vec<usize> {
    let (channels, _) = g.group_channels();
    let in_channel: Vec<usize> = places.map(|(y, x)| at(y, x)).collect();
    let channels = (0..channels).map(|c| c * source.plane);
    channels
        .flat_map(|plane| in_channel.iter().map(move |at| plane + at))
        .collect()
}

/// The taps of the outputs `first + i * stride` along a dimension, which share them: each tap and its first element.
fn reaching(g: &Geometry, axes: [Axis; 2], d: usize, first: usize) -> Vec<(usize, usize)> {
    let steps = g.steps[d];
    let taps = (0..g.kernel[d]).filter_map(|k| {
        // The zeros before the input keep this from being negative.
        let at = (first + steps.padding + axes[d].before * steps.stride)
            .checked_sub(k * steps.dilation)?;
        at.is_multiple_of(steps.stride)
            .then_some((k, at / steps.stride))
    });
    taps.collect()
}

fn transposed<'a, A: Kernels>(
    g: &Geometry,
    axes: [Axis; 2],
    source: &ConvInput<A>,
    kernel: &[A],
) -> Vec<Pass<'a, A>> {
    let (c_in, c_out) = g.group_channels();
    let [k_h, k_w] = g.kernel;
    let firsts = |d: usize| {
        let all = 0..g.steps[d].stride.min(g.output[d]);
        all.map(move |first| (first, reaching(g, axes, d, first)))
            .filter(|(_, taps)| !taps.is_empty())
    };
    let columns: Vec<_> = firsts(1).collect();
    let mut passes = vec![];
    for (first_row, rows) in firsts(0) {
        for (first_column, columns) in &columns {
            let places = rows
                .iter()
                .flat_map(|y| columns.iter().map(move |x| (*y, *x)));
            // The kernel is (channels in, channels out of a group, rows, columns).
            let mut weights = Vec::with_capacity(g.c_out * c_in * rows.len() * columns.len());
            for out in 0..g.c_out {
                for channel in 0..c_in {
                    let plane = (out / c_out * c_in + channel) * c_out + out % c_out;
                    let plane = &kernel[plane * k_h * k_w..][..k_h * k_w];
                    weights.extend(places.clone().map(|((y, _), (x, _))| plane[y * k_w + x]));
                }
            }
            let starts = places.map(|((_, y), (_, x))| (y, x));
            let count = |d: usize, first: usize| (g.output[d] - first).div_ceil(g.steps[d].stride);
            passes.push(Pass {
                weights: Cow::Owned(weights),
                taps: taps(g, source, starts, |y, x| y * source.row + x),
                grid: [count(0, first_row), count(1, *first_column)],
                source_row: source.row,
                target_start: first_row * g.output[1] + first_column,
                target_steps: [g.steps[0].stride * g.output[1], g.steps[1].stride],
            });
        }
    }
    passes
}
