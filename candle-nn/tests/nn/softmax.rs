use super::common::{assert_close, assert_values, data, dtypes, layouts, reference};
use candle_core::{test_device, DType, Device, Result, Tensor, Var, D};
use candle_nn::ops::{log_softmax, softmax, softmax_last_dim};

// One element, one row, odd, around powers of two that kernels use as tiles, long enough for several threads, empty.
const SHAPES: [&[usize]; 11] = [
    &[1],
    &[1, 1],
    &[3, 1],
    &[2, 7],
    &[2, 3, 33],
    &[4, 255],
    &[3, 257],
    &[70, 1025],
    &[2, 2, 3, 5],
    &[0, 4],
    &[3, 0],
];

fn fused_softmax(dev: &Device) -> Result<()> {
    for (dtype, tolerance) in dtypes(dev) {
        for dims in SHAPES {
            for (layout, xs) in layouts(dims, dtype, dev)? {
                let case = format!("{dtype:?} {dims:?} {layout}");
                let got = softmax_last_dim(&xs)?;
                assert_eq!(got.dtype(), dtype);
                if xs.elem_count() == 0 {
                    assert_eq!(got.dims(), dims, "{case}");
                    continue;
                }
                let expected = softmax(&reference(&xs)?, D::Minus1)?;
                assert_close(&case, &got, &expected, tolerance);
            }
        }
    }
    Ok(())
}

/// Rows longer than some drivers let a loop run, few and many.
fn very_long_rows(dev: &Device) -> Result<()> {
    for dims in [[64, 30_000], [64, 70_001], [2, 70_001]] {
        let xs = data(&dims, DType::F32, dev)?;
        let expected = softmax(&reference(&xs)?, D::Minus1)?;
        // With this many probabilities each is small.
        let scale = dims[1] as f64;
        let got = (softmax_last_dim(&xs)? * scale)?;
        assert_close(&format!("{dims:?}"), &got, &(expected * scale)?, 1e-4);
    }
    Ok(())
}

fn softmax_values(dev: &Device) -> Result<()> {
    // exp(x - max) / sum(exp(x - max)) in Python's float64. The second row overflows unless the maximum is subtracted.
    let xs = Tensor::new(&[[1f32, -2., 0.5, 3.], [1000., 999., 0., -1000.]], dev)?;
    let expected = [
        0.11055375036173921,
        0.005504147127583673,
        0.06705423914061147,
        0.8168878633700657,
        0.7310585786300049,
        0.2689414213699951,
        0.,
        0.,
    ];
    assert_values("last dim", &softmax_last_dim(&xs)?, &expected, 1e-6);
    assert_values("plain", &softmax(&xs, 1)?, &expected, 1e-6);
    assert_values("dim 0", &softmax(&xs.t()?, 0)?.t()?, &expected, 1e-6);
    let log = log_softmax(&xs.narrow(0, 0, 1)?, D::Minus1)?;
    let expected = [
        -2.2022534476793516,
        -5.202253447679352,
        -2.7022534476793516,
        -0.20225344767935172,
    ];
    assert_values("log", &log, &expected, 1e-6);
    Ok(())
}

fn softmax_of_infinities(dev: &Device) -> Result<()> {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let rows = [
        [0., -inf, 0., -inf],
        [-inf, -inf, -inf, -inf],
        [0., nan, 1., 2.],
        [inf, 0., 0., 0.],
    ];
    let got = softmax_last_dim(&Tensor::new(&rows, dev)?)?.to_device(&Device::Cpu)?;
    let got = got.to_vec2::<f32>()?;
    assert_eq!(got[0], [0.5, 0., 0.5, 0.]);
    for row in [1, 2] {
        assert!(got[row].iter().all(|x| x.is_nan()), "{:?}", got[row]);
    }
    assert!(got[3][0].is_nan(), "{:?}", got[3]);
    Ok(())
}

fn softmax_in_a_graph(dev: &Device) -> Result<()> {
    let xs = Var::from_tensor(&super::common::data(&[3, 5], DType::F32, dev)?)?;
    let got = softmax_last_dim(xs.as_tensor())?;
    assert!(got.track_op(), "the graph has to go on past a fused op");
    assert_close("values", &got, &softmax_last_dim(&xs.detach())?, 1e-6);
    Ok(())
}

test_device!(fused_softmax);
test_device!(softmax_values);
test_device!(very_long_rows);
test_device!(softmax_of_infinities);
test_device!(softmax_in_a_graph);

candle_core::with_webgpu! {
    /// Rows that one binding does not reach are made in parts.
    #[test]
    fn rows_past_a_binding_webgpu() -> Result<()> {
        let dev = super::common::small_bindings()?;
        for (dtype, tolerance) in dtypes(&dev) {
            for dims in [&[3001][..], &[3, 5000], &[2, 2, 2047]] {
                for (layout, xs) in layouts(dims, dtype, &dev)? {
                    // Probabilities that differ, of numbers whose exponentials overflow.
                    let xs = (xs * 100.)?;
                    let expected = softmax(&reference(&xs)?, D::Minus1)?;
                    let case = format!("{dtype:?} {dims:?} {layout}");
                    assert_close(&case, &softmax_last_dim(&xs)?, &expected, tolerance);
                }
            }
        }
        Ok(())
    }
}
