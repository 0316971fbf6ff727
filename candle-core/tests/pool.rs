//! Pooling and resampling on the CPU compared with loops in f64 and with values from PyTorch.

use candle_core::{DType, Device, Error, Result, Tensor};

use crate::agree::{assert_close, assert_same, numbers, Tolerance, DTYPES};

type View = fn(&Tensor) -> Result<Tensor>;

/// Views of an image with four dimensions of at least 2 elements each.
const VIEWS: [(&str, View); 5] = [
    ("contiguous", |t| Ok(t.clone())),
    ("transposed", |t| t.transpose(2, 3)),
    ("channels last", |t| t.permute((0, 3, 1, 2))),
    ("narrowed", |t| {
        t.narrow(3, 1, t.dim(3)? - 1)?.narrow(2, 1, t.dim(2)? - 1)
    }),
    ("broadcast", |t| {
        let dims = t.dims4()?;
        t.narrow(2, 1, 1)?.broadcast_as(dims)
    }),
];

/// Returns the elements as f64, and the sizes.
fn elements(t: &Tensor) -> Result<(Vec<f64>, [usize; 4])> {
    let (b, c, h, w) = t.dims4()?;
    Ok((
        t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?,
        [b, c, h, w],
    ))
}

/// Returns an image with another height and width, each element from its plane, row and column.
fn map(
    t: &Tensor,
    (h_out, w_out): (usize, usize),
    f: impl Fn(&[f64], usize, usize) -> f64,
) -> Result<Tensor> {
    let (data, [b, c, h, w]) = elements(t)?;
    let mut out = vec![];
    for plane in data.chunks(h * w) {
        for y in 0..h_out {
            out.extend((0..w_out).map(|x| f(plane, y, x)));
        }
    }
    Tensor::from_vec(out, (b, c, h_out, w_out), &Device::Cpu)?.to_dtype(t.dtype())
}

/// Reduces each window's elements to one with `f`.
fn pooled(
    t: &Tensor,
    (k_h, k_w): (usize, usize),
    (s_h, s_w): (usize, usize),
    f: impl Fn(&[f64]) -> f64,
) -> Result<Tensor> {
    let (_, _, h, w) = t.dims4()?;
    let size = ((h - k_h) / s_h + 1, (w - k_w) / s_w + 1);
    map(t, size, |plane, y, x| {
        let window = (0..k_h * k_w).map(|i| plane[(y * s_h + i / k_w) * w + x * s_w + i % k_w]);
        f(&window.collect::<Vec<_>>())
    })
}

fn mean(window: &[f64]) -> f64 {
    window.iter().sum::<f64>() / window.len() as f64
}

fn greatest(window: &[f64]) -> f64 {
    window.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

#[test]
fn windows() -> Result<()> {
    for dtype in DTYPES {
        for (name, view) in VIEWS {
            let t = view(&numbers(&[2, 3, 9, 10], dtype)?)?;
            for (k, s) in [
                ((2, 2), (2, 2)),
                ((3, 2), (1, 3)),
                ((1, 1), (1, 1)),
                ((8, 8), (5, 1)),
            ] {
                let (_, _, h, w) = t.dims4()?;
                if k.0 > h || k.1 > w {
                    continue;
                }
                let what = format!("{name} {dtype:?} {k:?} {s:?}");
                let max = t.max_pool2d_with_stride(k, s)?;
                assert_same(&max, &pooled(&t, k, s, greatest)?, &format!("max {what}"))?;
                let avg = t.avg_pool2d_with_stride(k, s)?;
                // Sums are exact; a quotient is rounded once more than in f64.
                let tolerance = Tolerance::of(dtype, 1e-6);
                assert_close(
                    &avg,
                    &pooled(&t, k, s, mean)?,
                    tolerance,
                    &format!("avg {what}"),
                )?;
            }
        }
    }
    Ok(())
}

/// Numbers of windows per line around the block length; also windows further apart and over whole images.
#[test]
fn lines_of_windows() -> Result<()> {
    let check = |t: &Tensor, k: (usize, usize), s: (usize, usize)| {
        let what = format!("{:?} {:?} {k:?} {s:?}", t.dtype(), t.shape());
        let max = t.max_pool2d_with_stride(k, s)?;
        assert_same(&max, &pooled(t, k, s, greatest)?, &format!("max {what}"))?;
        let tolerance = Tolerance::of(t.dtype(), 1e-6);
        let avg = t.avg_pool2d_with_stride(k, s)?;
        assert_close(
            &avg,
            &pooled(t, k, s, mean)?,
            tolerance,
            &format!("avg {what}"),
        )
    };
    for dtype in DTYPES {
        for count in [1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 129] {
            for step in [1, 2, 5] {
                let t = numbers(&[1, 1, 2, (count - 1) * step + 2], dtype)?;
                check(&t, (2, 2), (2, step))?;
            }
            let images = numbers(&[1, count, 3, 4], dtype)?;
            check(&images, (3, 4), (3, 4))?;
            check(
                &images.permute((2, 1, 3, 0))?.contiguous()?,
                (count.min(4), 1),
                (9, 9),
            )?;
            check(&images.transpose(0, 1)?, (3, 4), (1, 1))?;
            // Large strides: the elements in between are not read.
            check(&images.permute((0, 2, 3, 1))?, (2, 1), (1, 1))?;
        }
    }
    Ok(())
}

#[test]
fn windows_on_many_threads() -> Result<()> {
    let t = numbers(&[2, 16, 65, 66], DType::F32)?;
    assert_same(
        &t.max_pool2d(3)?,
        &pooled(&t, (3, 3), (3, 3), greatest)?,
        "max",
    )?;
    assert_same(
        &t.avg_pool2d((2, 4))?,
        &pooled(&t, (2, 4), (2, 4), mean)?,
        "avg",
    )
}

#[test]
fn a_nan_is_the_greatest() -> Result<()> {
    let t = Tensor::new(
        &[[[[f32::NAN, 1., 2.], [3., 4., 5.], [6., 7., f32::NAN]]]],
        &Device::Cpu,
    )?;
    let max = t
        .max_pool2d_with_stride(2, 1)?
        .flatten_all()?
        .to_vec1::<f32>()?;
    assert!(max[0].is_nan() && max[3].is_nan(), "{max:?}");
    assert_eq!(max[1..3], [5., 7.]);
    Ok(())
}

#[test]
fn sums_of_small_integers_do_not_wrap() -> Result<()> {
    let t = Tensor::full(200u8, (1, 1, 4, 4), &Device::Cpu)?;
    assert_eq!(t.avg_pool2d(4)?.flatten_all()?.to_vec1::<u8>()?, [200]);
    let t = Tensor::new(&[[[[-3i16, -4]]]], &Device::Cpu)?;
    assert_eq!(t.avg_pool2d((1, 2))?.flatten_all()?.to_vec1::<i16>()?, [-3]);
    Ok(())
}

#[test]
fn windows_that_do_not_fit() -> Result<()> {
    let t = Tensor::zeros((1, 2, 4, 5), DType::F32, &Device::Cpu)?;
    for (k, s, says) in [
        ((5, 1), (1, 1), "larger than the input"),
        ((1, 6), (1, 1), "larger than the input"),
        ((usize::MAX, 1), (1, 1), "larger than the input"),
        ((0, 1), (1, 1), "empty"),
        ((1, 1), (0, 1), "stride"),
    ] {
        for result in [
            t.avg_pool2d_with_stride(k, s),
            t.max_pool2d_with_stride(k, s),
        ] {
            let err = result.unwrap_err().to_string();
            assert!(err.contains(says) && err.contains("pool2d"), "{err}");
        }
    }
    assert!(t.squeeze(0)?.max_pool2d(2).is_err());
    // A stride past the end leaves one window; no channels leave no output.
    assert_eq!(
        t.max_pool2d_with_stride((1, 1), (usize::MAX, 9))?.dims(),
        [1, 2, 1, 1]
    );
    assert_eq!(t.narrow(1, 0, 0)?.avg_pool2d(2)?.dims(), [1, 0, 2, 2]);
    Ok(())
}

#[test]
fn nearest() -> Result<()> {
    for dtype in DTYPES {
        for (name, view) in VIEWS {
            let t = view(&numbers(&[2, 3, 5, 8], dtype)?)?;
            let (_, _, h, w) = t.dims4()?;
            for (target_h, target_w) in [(5, 8), (10, 16), (3, 4), (7, 13), (1, 1), (25, 2)] {
                let want = map(&t, (target_h, target_w), |plane, y, x| {
                    plane[y * h / target_h * w + x * w / target_w]
                })?;
                let what = format!("{name} {dtype:?} to {target_h} by {target_w}");
                assert_same(&t.upsample_nearest2d(target_h, target_w)?, &want, &what)?;
                assert_same(&t.interpolate2d(target_h, target_w)?, &want, &what)?;
                if target_h == 1 {
                    continue;
                }
                // A row as a signal.
                let row = t.narrow(2, h - 1, 1)?;
                let want =
                    map(&row, (1, target_w), |row, _, x| row[x * w / target_w])?.squeeze(2)?;
                assert_same(&row.squeeze(2)?.upsample_nearest1d(target_w)?, &want, &what)?;
                assert_same(&row.squeeze(2)?.interpolate1d(target_w)?, &want, &what)?;
            }
        }
    }
    Ok(())
}

/// Bilinear interpolation as documented for PyTorch's `interpolate`, weighting all elements by their distance.
fn bilinear(
    t: &Tensor,
    target: (usize, usize),
    align: bool,
    scales: Option<(f64, f64)>,
) -> Result<Tensor> {
    let (_, _, h, w) = t.dims4()?;
    let place = |i: usize, size: usize, target: usize, scale: Option<f64>| {
        let at = match (align, scale) {
            (true, _) if target == 1 => 0.,
            (true, _) => i as f64 * (size - 1) as f64 / (target - 1) as f64,
            (false, Some(scale)) => (i as f64 + 0.5) / scale - 0.5,
            (false, None) => (i as f64 + 0.5) * size as f64 / target as f64 - 0.5,
        };
        at.clamp(0., (size - 1) as f64)
    };
    let near = |at: f64, i: usize| (1. - (at - i as f64).abs()).max(0.);
    let (scale_h, scale_w) = scales.unzip();
    map(t, target, |plane, y, x| {
        let (y, x) = (
            place(y, h, target.0, scale_h),
            place(x, w, target.1, scale_w),
        );
        let weighed = (0..h * w).map(|i| plane[i] * near(y, i / w) * near(x, i % w));
        weighed.sum()
    })
}

#[test]
fn interpolation() -> Result<()> {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for (name, view) in VIEWS {
            let t = view(&numbers(&[2, 3, 5, 8], DType::F32)?.to_dtype(dtype)?)?;
            for target in [(5, 8), (10, 16), (3, 4), (7, 13), (1, 1), (25, 2)] {
                for align in [false, true] {
                    let what = format!("{name} {dtype:?} to {target:?} align {align}");
                    let got = t.upsample_bilinear2d(target.0, target.1, align)?;
                    // Elements are at most 8, and weights are rounded.
                    let tolerance = Tolerance::of(dtype, 1e-5).or_absolute(1e-5);
                    assert_close(&got, &bilinear(&t, target, align, None)?, tolerance, &what)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn interpolation_by_scale() -> Result<()> {
    let t = numbers(&[1, 2, 5, 8], DType::F64)?;
    for (scale_h, scale_w, size) in [(2., 2., (10, 16)), (1.5, 0.3, (7, 2)), (0.25, 1.1, (1, 8))] {
        for align in [false, true] {
            let got = t.upsample_bilinear2d_with_scale(scale_h, scale_w, align)?;
            let want = bilinear(&t, size, align, Some((scale_h, scale_w)))?;
            let tolerance = Tolerance::of(DType::F64, 1e-12).or_absolute(1e-12);
            assert_close(
                &got,
                &want,
                tolerance,
                &format!("{scale_h} {scale_w} {align}"),
            )?;
        }
    }
    for scale in [0., -1., f64::NAN, f64::INFINITY] {
        assert!(t.upsample_bilinear2d_with_scale(scale, 1., false).is_err());
        assert!(t.upsample_bilinear2d_with_scale(1., scale, true).is_err());
    }
    Ok(())
}

/// Values computed by hand from the formulas of PyTorch's `interpolate(torch.arange(4.).view(1, 1, 2, 2), size=(4, 4), mode="bilinear")`:
/// coordinates 0 (clamped), 0.25, 0.75 and 1 in each direction.
#[test]
fn doubling_two_by_two() -> Result<()> {
    let t = Tensor::arange(0f32, 4., &Device::Cpu)?.reshape((1, 1, 2, 2))?;
    let want = [
        [0., 0.25, 0.75, 1.],
        [0.5, 0.75, 1.25, 1.5],
        [1.5, 1.75, 2.25, 2.5],
        [2., 2.25, 2.75, 3.],
    ];
    assert_eq!(
        t.upsample_bilinear2d(4, 4, false)?
            .squeeze(0)?
            .squeeze(0)?
            .to_vec2::<f32>()?,
        want
    );
    Ok(())
}

#[test]
fn sizes_of_nothing() -> Result<()> {
    let t = Tensor::zeros((1, 2, 0, 5), DType::F32, &Device::Cpu)?;
    let is_empty = |err: Error| err.to_string().contains("no result for an empty tensor");
    assert!(is_empty(t.upsample_nearest2d(2, 2).unwrap_err()));
    assert!(is_empty(t.upsample_bilinear2d(2, 2, true).unwrap_err()));
    let signal = t.reshape((1, 5, 0))?;
    assert!(is_empty(signal.upsample_nearest1d(2).unwrap_err()));
    assert_eq!(t.upsample_nearest2d(0, 3)?.dims(), [1, 2, 0, 3]);
    let t = Tensor::zeros((1, 2, 3, 5), DType::F32, &Device::Cpu)?;
    assert_eq!(t.upsample_bilinear2d(3, 0, false)?.dims(), [1, 2, 3, 0]);
    // Larger than any memory.
    for huge in [usize::MAX, 1 << (usize::BITS - 4)] {
        assert!(t.upsample_nearest2d(huge, 2).is_err());
        assert!(t.upsample_bilinear2d(2, huge, false).is_err());
    }
    assert!(t.upsample_bilinear2d_with_scale(1e30, 1., false).is_err());
    Ok(())
}
