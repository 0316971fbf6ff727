//! Convolutions, plain and transposed, of any element type and layout. One dimension is two with a height of 1.
//!
//! All of them are one matrix product: the kernel, with a row for each output channel and a column for each tap (an input channel and a
//! kernel position), times the input elements under each tap for each output position (im2col, but never stored).
//!
//! - `source.rs` copies the input once, padded, widened and with its columns reordered so that neighbouring outputs
//!   read neighbouring elements for every tap, whatever the stride. An input already in this form is borrowed.
//! - `passes.rs` computes which elements the taps read. A transposed convolution of stride `s` is `s` (times `s`) plain ones, each with the
//!   taps that reach its share of the outputs, so that it multiplies by no zeros and adds in registers.
//! - `product.rs` multiplies, tile by tile and on several threads, with the instructions of `lanes.rs`.
//!
//! The elements of a tile are gathered when it is computed, so the im2col matrix is never stored.

mod element;
mod lanes;
mod passes;
mod product;
mod source;
mod sparse;

use std::borrow::Cow;

use element::ConvElement;
use lanes::{Kernels, Kind};
use product::{ConvOutput, Product};
use source::Axis;

use super::element::Element;
use super::nchw::{zeros, NchwView};
use super::storage::{peer, per_dtype};
use super::CpuStorage;
use crate::conv::Geometry;
use crate::{Error, Layout, Result, WithDType};

/// An error unless the layouts have the sizes.
fn check(g: &Geometry, inp: &NchwView, kernel: &NchwView) -> Result<()> {
    let (group_c_in, group_c_out) = g.group_channels();
    let channels = if g.transposed {
        [g.c_in, group_c_out]
    } else {
        [g.c_out, group_c_in]
    };
    let dims = |[a, b]: [usize; 2], [h, w]: [usize; 2]| [a, b, h, w];
    if inp.dims != dims([g.b, g.c_in], g.input) || kernel.dims != dims(channels, g.kernel) {
        return Err(Error::ShapeMismatchBinaryOp {
            lhs: inp.dims.to_vec().into(),
            rhs: kernel.dims.to_vec().into(),
            op: g.op,
        }
        .bt());
    }
    Ok(())
}

/// A convolution, plain or transposed.
pub(super) fn conv(
    inp: &CpuStorage,
    inp_l: &Layout,
    kernel: &CpuStorage,
    kernel_l: &Layout,
    geometry: Geometry,
) -> Result<CpuStorage> {
    per_dtype!(inp, geometry.op, |inp: T| {
        let kernel = peer::<T>(kernel, geometry.op)?;
        let inp_planes = NchwView::new(inp_l, inp.len(), geometry.op)?;
        let kernel_planes = NchwView::new(kernel_l, kernel.len(), geometry.op)?;
        check(&geometry, &inp_planes, &kernel_planes)?;
        let kind = <T as Element>::Acc::kinds()[0];
        let dst = run((inp, inp_planes), (kernel, kernel_planes), geometry, kind)?;
        Ok(T::to_cpu_storage_owned(dst))
    })
}

/// A slice and its NCHW layout.
type NchwSlice<'a, T> = (&'a [T], NchwView);

fn run<T: ConvElement>(
    inp: NchwSlice<T>,
    kernel: NchwSlice<T>,
    g: Geometry,
    kind: Kind<T::Acc>,
) -> Result<Vec<T>> {
    let mut dst = zeros::<T>(&[g.b, g.c_out, g.output[0], g.output[1]], g.op)?;
    let (group_c_in, group_c_out) = g.group_channels();
    if dst.is_empty() || group_c_in == 0 {
        return Ok(dst);
    }
    let axes = passes::axes(&g);
    if !worth_copying(&g, axes, &dst) {
        sparse::run(inp, kernel, g, &mut dst);
        return Ok(dst);
    }
    let direct = product::is_direct(group_c_out, g.output[1]);
    let source = source::ConvInput::new(inp, axes, direct);
    let weights = converted(kernel);
    let passes = passes::passes(&g, axes, &source, &weights);
    let target = ConvOutput::new(&mut dst, g.output[0] * g.output[1]);
    Product {
        source: &source.data,
        group_len: group_c_in * source.plane,
        batches: g.b,
        groups: g.groups,
        rows: group_c_out,
        passes,
        direct,
    }
    .run(&target, kind);
    Ok(dst)
}

/// Whether the padded copy has a reasonable size. With paddings, strides or dilations far larger than the input, few kernel positions
/// overlap the input.
fn worth_copying<T>(g: &Geometry, axes: [Axis; 2], dst: &[T]) -> bool {
    let product = |dims: &[usize]| dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let copied = product(&[g.b, g.c_in, axes[0].len(), axes[1].len()]);
    let input = product(&[g.b, g.c_in, g.input[0], g.input[1]]).unwrap_or(0);
    let limit = input
        .saturating_add(dst.len())
        .saturating_mul(8)
        .saturating_add(1 << 16);
    copied.is_some_and(|copied| copied <= limit)
}

/// All elements of a kernel, converted to the accumulator type, in the order of `dims` of `planes`.
fn converted<'a, T: ConvElement>((vs, planes): NchwSlice<'a, T>) -> Cow<'a, [T::Acc]> {
    let [c_out, c_in, h, w] = planes.dims;
    let contiguous = planes.is_contiguous();
    let all = planes.start(0)..;
    if let (true, Some(vs)) = (contiguous, T::as_acc(vs)) {
        return Cow::Borrowed(&vs[all][..c_out * c_in * h * w]);
    }
    let mut dst = vec![T::from_i64(0).to_acc(); c_out * c_in * h * w];
    if contiguous {
        super::strided_iter::fill_par(&mut dst, 1, |piece, dst| {
            T::to_accs(&vs[planes.start(0) + piece.start..][..dst.len()], dst);
        });
    } else {
        super::nchw::fill_rows(&mut dst, w, 2, |row, dst| {
            let start = planes.start(row / h) + row % h * planes.strides[2];
            for (x, dst) in dst.iter_mut().enumerate() {
                *dst = vs[start + x * planes.strides[3]].to_acc();
            }
        });
    }
    Cow::Owned(dst)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conv::ParamsConv2D;

    /// Compares every vector type of this CPU with plain loops; the tests of `Tensor` only reach the widest.
    fn every_kind<T: ConvElement>() -> Result<()> {
        for (c_in, c_out, input, padding, stride) in [
            (3, 1, [9, 40], 1, 1),
            (3, 15, [9, 40], 1, 2),
            (40, 29, [7, 11], 1, 1),
            (40, 6, [6, 4], 0, 2),
        ] {
            let params = ParamsConv2D {
                b_size: 2,
                i_h: input[0],
                i_w: input[1],
                k_h: 3,
                k_w: 3,
                c_out,
                c_in,
                padding,
                stride,
                dilation: 1,
                groups: 1,
                cudnn_fwd_algo: None,
            };
            let g = Geometry::conv2d(&params)?;
            let numbers = |len: usize| -> Vec<T> {
                let numbers = (0..len as i64).map(|i| i * 7919 % 11);
                numbers.map(T::from_i64).collect()
            };
            let layouts = [
                Layout::contiguous((2, c_in, input[0], input[1])),
                Layout::contiguous((c_out, c_in, 3, 3)),
            ];
            let [inp, kernel] = [0, 1].map(|i| numbers(layouts[i].shape().elem_count()));
            let inp = (&inp[..], NchwView::new(&layouts[0], inp.len(), g.op)?);
            let kernel = (&kernel[..], NchwView::new(&layouts[1], kernel.len(), g.op)?);
            let mut want = zeros(&[2, c_out, g.output[0], g.output[1]], g.op)?;
            sparse::run(inp, kernel, g, &mut want);
            for kind in T::Acc::kinds() {
                let (rows, columns) = (kind.rows, kind.columns);
                let got = run(inp, kernel, g, kind)?;
                assert!(got == want, "{params:?}, tiles of {rows} by {columns}");
            }
        }
        Ok(())
    }

    #[test]
    fn every_kind_of_vector() -> Result<()> {
        every_kind::<f32>()?;
        every_kind::<f64>()?;
        every_kind::<half::bf16>()?;
        every_kind::<i32>()?;
        every_kind::<u8>()
    }
}
