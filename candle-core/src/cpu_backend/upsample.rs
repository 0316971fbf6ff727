//! Resampling: nearest neighbours and bilinear interpolation.

use num_traits::One;

use super::nchw::{fill_rows, zeros, NchwView, Pixel};
use super::storage::per_dtype;
use super::CpuStorage;
use crate::{resample, Layout, Result, WithDType};

/// Nearest neighbours, for `target_h` rows of `target_w` elements; a layout of three dimensions is one row.
pub(super) fn nearest(
    vs: &CpuStorage,
    layout: &Layout,
    (target_h, target_w): (usize, usize),
    op: &'static str,
) -> Result<CpuStorage> {
    per_dtype!(vs, op, |vs: T| {
        let planes = NchwView::new(layout, vs.len(), op)?;
        let [b, c, h, w] = planes.dims;
        let mut dst = zeros::<T>(&[b, c, target_h, target_w], op)?;
        if dst.is_empty() {
            return Ok(T::to_cpu_storage_owned(dst));
        }
        let rows = nearest_offsets(h, target_h, planes.strides[2]);
        let columns = nearest_offsets(w, target_w, planes.strides[3]);
        fill_rows(&mut dst, target_w, 1, |row, dst| {
            let src = &vs[planes.start(row / target_h) + rows[row % target_h]..];
            for (dst, &column) in dst.iter_mut().zip(&columns) {
                *dst = src[column];
            }
        });
        Ok(T::to_cpu_storage_owned(dst))
    })
}

/// Source offsets of `target` elements, from `size` elements with stride `stride`.
fn nearest_offsets(size: usize, target: usize, stride: usize) -> Vec<usize> {
    let indices = resample::nearest(size, target).into_iter();
    indices.map(|i| i * stride).collect()
}

/// Parameters of bilinear interpolation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bilinear {
    /// `(height, width)` of the result.
    pub target: (usize, usize),
    /// Whether the centres of the corner elements keep their positions; otherwise the edges of the image do.
    pub align_corners: bool,
    /// Scales of height and width if they are not the ratios of the sizes.
    pub scale: (Option<f64>, Option<f64>),
}

/// Bilinear interpolation between the four nearest elements.
pub(super) fn bilinear(vs: &CpuStorage, layout: &Layout, params: Bilinear) -> Result<CpuStorage> {
    const OP: &str = "upsample_bilinear2d";
    per_dtype!(vs, OP, |vs: T| Ok(T::to_cpu_storage_owned(interpolate(
        vs, layout, params, OP
    )?)))
}

/// Two neighbours and the weight of the second.
struct Mix<W> {
    offsets: [usize; 2],
    second: W,
}

fn interpolate<T: Pixel>(
    vs: &[T],
    layout: &Layout,
    params: Bilinear,
    op: &'static str,
) -> Result<Vec<T>> {
    let Bilinear {
        target: (target_h, target_w),
        align_corners,
        scale,
    } = params;
    let planes = NchwView::new(layout, vs.len(), op)?;
    let [b, c, h, w] = planes.dims;
    let mut dst = zeros::<T>(&[b, c, target_h, target_w], op)?;
    if dst.is_empty() {
        return Ok(dst);
    }
    let rows = mixes::<T>(h, target_h, planes.strides[2], align_corners, scale.0);
    let columns = mixes::<T>(w, target_w, planes.strides[3], align_corners, scale.1);
    let one = T::Weight::one();
    fill_rows(&mut dst, target_w, 4, |row, dst| {
        let plane = planes.start(row / target_h);
        let Mix { offsets, second } = &rows[row % target_h];
        let [upper, lower] = offsets.map(|offset| &vs[plane + offset..]);
        let second = *second;
        for (dst, column) in dst.iter_mut().zip(&columns) {
            let mix = |row: &[T]| {
                let [left, right] = column.offsets.map(|i| row[i].to_weight());
                left * (one - column.second) + right * column.second
            };
            *dst = T::from_weight(mix(upper) * (one - second) + mix(lower) * second);
        }
    });
    Ok(dst)
}

/// The neighbours and weights of `target` elements, from `size` elements with stride `stride`.
fn mixes<T: Pixel>(
    size: usize,
    target: usize,
    stride: usize,
    align_corners: bool,
    scale: Option<f64>,
) -> Vec<Mix<T::Weight>> {
    let mixes = resample::linear(size, target, align_corners, scale).into_iter();
    let mix = |mix: resample::Mix| Mix {
        offsets: mix.indices.map(|i| i * stride),
        second: T::weight(mix.second),
    };
    mixes.map(mix).collect()
}
