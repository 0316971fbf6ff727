//! Matrix products, elementwise functions, reductions.

use candle_core::{test_device, Device};
use candle_wasi_gpu::{
    ElementwiseOp, ElementwiseParams, GpuBackend, MatmulParams, ReduceOp, ReduceParams, Result,
};

use crate::support::{assert_invalid, is_near, open, Calls, Random};

/// Checks C against sums in f64.
#[track_caller]
fn check_matmul(
    gpu: &dyn GpuBackend,
    params: MatmulParams,
    a: &[f32],
    b: &[f32],
    c: &[f32],
) -> Result<()> {
    let [m, k, n] = [params.m, params.k, params.n].map(|size| size as usize);
    let (a_id, b_id, c_id) = (gpu.floats(a)?, gpu.floats(b)?, gpu.floats(c)?);
    gpu.kernel_matmul(params, a_id, b_id, c_id)?;
    let got = gpu.read_floats(c_id, c.len())?;
    for id in [a_id, b_id, c_id] {
        gpu.buffer_destroy(id)?;
    }
    let (alpha, beta) = (f64::from(params.alpha), f64::from(params.beta));
    for row in 0..m {
        for column in 0..n {
            let (mut sum, mut size) = (0., 0.);
            for i in 0..k {
                let x = a[if params.trans_a {
                    i * m + row
                } else {
                    row * k + i
                }];
                let y = b[if params.trans_b {
                    column * k + i
                } else {
                    i * n + column
                }];
                let product = f64::from(x) * f64::from(y);
                sum += product;
                size += product.abs();
            }
            let at = row * n + column;
            let old = f64::from(c[at]);
            let mut want = alpha * sum;
            let mut tolerance = alpha.abs() * size * k as f64;
            if beta != 0. {
                want += beta * old;
                tolerance += (beta * old).abs() * 3.;
            }
            let tolerance = (tolerance + 3. * want.abs()) / f64::from(1 << 24);
            let got = got[at];
            assert!(
                is_near(got, want, tolerance),
                "{params:?}, row {row}, column {column}: {got}, not {want} ± {tolerance}"
            );
        }
    }
    assert_eq!(got[m * n..], c[m * n..], "what comes after C stays");
    Ok(())
}

fn matrix_products(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let random = &mut Random::new(7);
    for (m, k, n) in [
        (1, 1, 1),
        (1, 7, 1),
        (3, 5, 2),
        (17, 1, 9),
        (1, 300, 65),
        (65, 33, 1),
        (64, 64, 64),
        (67, 129, 35),
    ] {
        for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
            for (alpha, beta) in [(1., 0.), (0.5, 1.), (-2., 0.25), (0., 1.)] {
                let params = MatmulParams {
                    m,
                    k,
                    n,
                    trans_a,
                    trans_b,
                    alpha,
                    beta,
                };
                let mut floats = |count: u32| random.floats(count as usize);
                let (a, b) = (floats(m * k), floats(k * n));
                // With more elements than the product, or as many.
                let mut c = floats(m * n + u32::from(trans_a == trans_b));
                if beta == 0. {
                    c[..(m * n) as usize].fill(f32::NAN);
                }
                check_matmul(&*gpu, params, &a, &b, &c)?;
            }
        }
    }
    Ok(())
}
test_device!(matrix_products);

/// A result may become its buffer's memory: what was queued before still sees the old contents, and what comes later the new ones.
fn results_replace_contents(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let params = MatmulParams {
        m: 2,
        k: 2,
        n: 2,
        trans_a: false,
        trans_b: false,
        alpha: 1.,
        beta: 0.,
    };
    let relu = ElementwiseParams {
        n_elements: 4,
        op: ElementwiseOp::Relu,
    };
    let a = gpu.floats(&[1., -2., 3., 4.])?;
    let b = gpu.floats(&[0., 1., 1., 0.])?;
    let (c, d) = (gpu.floats(&[9.; 4])?, gpu.floats(&[8.; 4])?);
    let old = gpu.begin_read(c, 0, 16)?;
    gpu.kernel_matmul(params, a, b, c)?;
    gpu.kernel_matmul(params, c, b, d)?;
    gpu.kernel_elementwise(relu, c, None, c)?;
    gpu.buffer_write(c, 4, &5f32.to_le_bytes())?;
    gpu.buffer_copy(c, 0, a, 8, 8)?;
    let old = pollster::block_on(old)?;
    assert_eq!(old, [9f32; 4].map(f32::to_le_bytes).concat());
    assert_eq!(gpu.read_floats(c, 4)?, [0., 5., 4., 3.]);
    assert_eq!(gpu.read_floats(d, 4)?, [1., -2., 3., 4.]);
    assert_eq!(gpu.read_floats(a, 4)?, [1., -2., 0., 5.]);
    Ok(())
}
test_device!(results_replace_contents);

fn matrix_products_at_edges(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let params = MatmulParams {
        m: 2,
        k: 0,
        n: 3,
        trans_a: false,
        trans_b: true,
        alpha: 1.,
        beta: 2.,
    };
    let (none, c) = ([1.; 1], [1., 2., f32::INFINITY, 4., 5., 6., 7.]);
    check_matmul(&*gpu, params, &none, &none, &c)?;
    let params = MatmulParams { beta: 0., ..params };
    check_matmul(&*gpu, params, &none, &none, &[f32::NAN; 6])?;
    let params = MatmulParams {
        beta: -0.,
        ..params
    };
    check_matmul(&*gpu, params, &none, &none, &[f32::NAN; 6])?;

    // Nothing is rounded to 10 or 7 bits.
    let exact = 1. + f32::EPSILON;
    let params = MatmulParams {
        m: 40,
        k: 1,
        n: 40,
        trans_a: false,
        trans_b: false,
        alpha: 1.,
        beta: 0.,
    };
    let (a, b, c) = (
        gpu.floats(&[exact; 40])?,
        gpu.floats(&[1.; 40])?,
        gpu.empty(6400)?,
    );
    gpu.kernel_matmul(params, a, b, c)?;
    assert_eq!(gpu.read_floats(c, 1600)?, [exact; 1600]);

    let with = |change: fn(&mut MatmulParams)| {
        let mut params = params;
        change(&mut params);
        gpu.kernel_matmul(params, a, b, c)
    };
    assert_invalid(with(|p| p.k = 2), &["matmul", "a needs 320 bytes", "160"]);
    assert_invalid(with(|p| p.n = 41), &["b needs 164 bytes"]);
    assert_invalid(
        with(|p| (p.k, p.m, p.n) = (0, 41, 40)),
        &["c needs 6560 bytes"],
    );
    assert_invalid(
        with(|p| (p.m, p.k, p.n) = (u32::MAX, u32::MAX, u32::MAX)),
        &["a needs"],
    );
    with(|p| p.m = 0)?;
    with(|p| p.n = 0)?;
    assert_eq!(gpu.read_floats(c, 1600)?, [exact; 1600]);
    assert_invalid(gpu.kernel_matmul(params, c, b, c), &["must differ"]);
    // The inputs may be one.
    let params = MatmulParams {
        m: 1,
        k: 40,
        n: 1,
        ..params
    };
    gpu.kernel_matmul(params, b, b, c)?;
    assert_eq!(gpu.read_floats(c, 1)?, [40.]);
    Ok(())
}
test_device!(matrix_products_at_edges);

const OPS: [ElementwiseOp; 8] = [
    ElementwiseOp::Relu,
    ElementwiseOp::Sigmoid,
    ElementwiseOp::Tanh,
    ElementwiseOp::Add,
    ElementwiseOp::Mul,
    ElementwiseOp::Sqrt,
    ElementwiseOp::Exp,
    ElementwiseOp::Log,
];

fn want(op: ElementwiseOp, a: f64, b: f64) -> f64 {
    match op {
        // NaN gives 0, as Candle's does.
        ElementwiseOp::Relu => a.max(0.),
        ElementwiseOp::Sigmoid => 1. / (1. + (-a).exp()),
        ElementwiseOp::Tanh => a.tanh(),
        ElementwiseOp::Add => a + b,
        ElementwiseOp::Mul => a * b,
        ElementwiseOp::Sqrt => a.sqrt(),
        ElementwiseOp::Exp => a.exp(),
        ElementwiseOp::Log => a.ln(),
    }
}

fn elementwise(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let mut random = Random::new(8);
    let mut a: Vec<f32> = random.floats(1000).iter().map(|x| x * 20.).collect();
    let mut b = random.floats(1000);
    let special = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.,
        -0.,
        1.,
        -1.,
        88.,
        89.,
        -104.,
        1e30,
        -1e30,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
    ];
    // Every pair of them.
    for (i, x) in special.iter().enumerate() {
        for (j, y) in special.iter().enumerate() {
            (a[i * 15 + j], b[i * 15 + j]) = (*x, *y);
        }
    }
    for op in OPS {
        for n in [1, 2, 255, 1000] {
            let (x, y, out) = (gpu.floats(&a)?, gpu.floats(&b)?, gpu.floats(&[9.; 1001])?);
            // Outputs: another buffer, each input, both.
            let cases = [(x, y, out), (x, x, x), (x, y, y), (y, x, y)];
            let (mut now_x, mut now_y) = (a.clone(), b.clone());
            let params = ElementwiseParams {
                n_elements: n as u32,
                op,
            };
            for (first, second, output) in cases {
                let value = |id| {
                    if id == x {
                        now_x.clone()
                    } else {
                        now_y.clone()
                    }
                };
                let (first_value, second_value) = (value(first), value(second));
                let before = if output == out {
                    vec![9.; 1001]
                } else {
                    value(output)
                };
                gpu.kernel_elementwise(params, first, Some(second), output)?;
                let got = gpu.read_floats(output, before.len())?;
                for i in 0..n {
                    let (a, b) = (f64::from(first_value[i]), f64::from(second_value[i]));
                    let want = want(op, a, b);
                    // WGSL's exp may be off by 3 + 2 |x| units in the last place.
                    let units = match op {
                        ElementwiseOp::Exp => 3. + 2. * a.abs().min(100.),
                        _ => 16.,
                    };
                    let tolerance = want.abs() * units * 2f64.powi(-23) + 2e-6;
                    assert!(
                        is_near(got[i], want, tolerance),
                        "{op:?} {a} {b}: {}, not {want}",
                        got[i]
                    );
                }
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&got[n..]), bits(&before[n..]), "the rest stays");
                if output == x {
                    now_x = got;
                } else if output == y {
                    now_y = got;
                }
            }
            for id in [x, y, out] {
                gpu.buffer_destroy(id)?;
            }
        }
    }
    Ok(())
}
test_device!(elementwise);

fn elementwise_checks(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let (a, b) = (gpu.floats(&[1., 2.])?, gpu.floats(&[5., 7., 11.])?);
    let out = gpu.empty(12)?;
    let apply = |op, n_elements, b, out| {
        let params = ElementwiseParams { n_elements, op };
        gpu.kernel_elementwise(params, a, b, out)
    };
    for op in [ElementwiseOp::Add, ElementwiseOp::Mul] {
        assert_invalid(apply(op, 2, None, out), &["input-b"]);
        assert_invalid(apply(op, 3, Some(b), out), &["input-a", "12", "8"]);
        assert!(apply(op, 2, Some(99), out).is_err());
    }
    assert_invalid(
        apply(ElementwiseOp::Add, u32::MAX, Some(b), out),
        &["input-a"],
    );
    let small = gpu.empty(4)?;
    assert_invalid(apply(ElementwiseOp::Exp, 2, None, small), &["output"]);
    apply(ElementwiseOp::Exp, 0, None, small)?;
    // Functions of one operand do not look at the other.
    apply(ElementwiseOp::Relu, 2, Some(99), out)?;
    assert_eq!(gpu.read_floats(out, 3)?, [1., 2., 0.]);
    Ok(())
}
test_device!(elementwise_checks);

fn reductions(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let random = &mut Random::new(9);
    let reduce = |op, values: &[f32]| {
        let (input, output) = (gpu.floats(values)?, gpu.floats(&[3., 4.])?);
        let n_elements = values.len() as u32;
        gpu.kernel_reduce(ReduceParams { n_elements, op }, input, output)?;
        let got = gpu.read_floats(output, 2)?;
        assert_eq!(got[1], 4., "what comes after the result stays");
        gpu.buffer_destroy(input)?;
        gpu.buffer_destroy(output)?;
        Ok::<f32, candle_wasi_gpu::GpuError>(got[0])
    };
    for (n, offset) in [
        (1, 0.),
        (2, 5.),
        (255, -3.),
        (256, 0.),
        (257, 0.),
        (16_385, 1.),
        (70_001, 1e6),
        (1_000_003, -1e5),
    ] {
        let values: Vec<f32> = random.floats(n).iter().map(|x| x * 3. + offset).collect();
        let wide = || values.iter().map(|x| f64::from(*x));
        let count = n as f64;
        let sum: f64 = wide().sum();
        let size: f64 = wide().map(f64::abs).sum();
        let mean = sum / count;
        let variance = wide().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        for (op, want, tolerance) in [
            (ReduceOp::Sum, sum, size * 1e-6),
            (ReduceOp::Mean, mean, size / count * 1e-6),
            (ReduceOp::Max, wide().fold(f64::MIN, f64::max), 0.),
            (ReduceOp::Min, wide().fold(f64::MAX, f64::min), 0.),
            (ReduceOp::Variance, variance, variance * 1e-5),
        ] {
            let got = reduce(op, &values)?;
            assert!(
                is_near(got, want, tolerance),
                "{op:?} of {n} + {offset}: {got}, not {want}"
            );
        }
    }
    // Equal elements do not vary, whatever they are.
    assert_eq!(reduce(ReduceOp::Variance, &[1e6 + 0.1; 12_345])?, 0.);
    for op in [
        ReduceOp::Sum,
        ReduceOp::Mean,
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::Variance,
    ] {
        for place in [0, 1, 299] {
            let mut values = random.floats(300);
            values[place] = f32::NAN;
            assert!(reduce(op, &values)?.is_nan(), "{op:?} with NaN at {place}");
        }
    }
    let infinite = [1., f32::NEG_INFINITY, f32::INFINITY, 3.];
    assert_eq!(reduce(ReduceOp::Max, &infinite)?, f32::INFINITY);
    assert_eq!(reduce(ReduceOp::Min, &infinite)?, f32::NEG_INFINITY);
    assert!(reduce(ReduceOp::Sum, &infinite)?.is_nan());
    assert_eq!(reduce(ReduceOp::Mean, &infinite[2..])?, f32::INFINITY);
    assert_eq!(reduce(ReduceOp::Max, &[-0., 0., -1.])?.to_bits(), 0);

    let (input, output) = (gpu.empty(7)?, gpu.empty(3)?);
    let run = |n_elements, output| {
        let op = ReduceOp::Sum;
        gpu.kernel_reduce(ReduceParams { n_elements, op }, input, output)
    };
    assert_invalid(run(0, output), &["n-elements"]);
    assert_invalid(run(2, output), &["input", "8", "7"]);
    assert_invalid(run(1, output), &["output", "4", "3"]);
    assert_invalid(run(u32::MAX, output), &["input"]);
    assert_invalid(run(1, input), &["must differ"]);
    Ok(())
}
test_device!(reductions);
