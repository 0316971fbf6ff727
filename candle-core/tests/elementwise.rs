//! Elementwise ops on every device compared with the CPU: unary and binary functions, comparisons, `where`.

use candle_core::{test_device, DType, Device, Result, Tensor};

use crate::agree::{
    self, assert_as_on_cpu, assert_close, assert_same, dtypes, numbers, Tolerance, DTYPES,
};

const INTEGERS: [DType; 5] = [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64];

type Op = fn(&Tensor) -> Result<Tensor>;
type BinaryOp = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Functions that integers support too; floats are bit-identical on every device.
const EXACT: [(&str, Op); 8] = [
    ("abs", Tensor::abs),
    ("neg", Tensor::neg),
    ("sqr", Tensor::sqr),
    ("relu", Tensor::relu),
    ("ceil", Tensor::ceil),
    ("floor", Tensor::floor),
    ("round", Tensor::round),
    ("sign", Tensor::sign),
];

/// Functions of floats, with the relative and the absolute error allowed in f32.
///
/// WGSL allows 2.5 ULP (3e-7) for quotients, `3 + 2 |x|` ULP for `exp` (2e-5 for the largest argument that does not overflow), and an
/// absolute 2^-21 for `log` around 1. The other functions are compositions of these, or polynomials, and lose digits where a difference
/// approaches 0. A subnormal `exp` may be flushed to 0: times an argument near -88, that is 1e-36.
const APPROXIMATE: [(&str, Op, f64, f64); 11] = [
    ("recip", Tensor::recip, 3e-7, 0.),
    ("sqrt", Tensor::sqrt, 4e-7, 0.),
    ("exp", Tensor::exp, 3e-5, 0.),
    ("log", Tensor::log, 1e-6, 1e-6),
    ("sin", Tensor::sin, 1e-6, 5e-6),
    ("cos", Tensor::cos, 1e-6, 5e-6),
    ("tanh", Tensor::tanh, 2e-6, 0.),
    ("erf", Tensor::erf, 1e-6, 0.),
    ("silu", Tensor::silu, 3e-5, 1.1e-36),
    ("gelu", Tensor::gelu, 3e-5, 1e-6),
    ("gelu_erf", Tensor::gelu_erf, 6e-5, 1.1e-36),
];

/// Returns arguments at extrema, at overflow and outside the domain of functions, and a sweep between -10 and 10.
fn floats(dtype: DType) -> Result<Tensor> {
    let mut data = vec![
        0.,
        -0.,
        1.,
        -1.,
        0.5,
        -0.5,
        1.5,
        -1.5,
        2.5,
        -2.5,
        0.499_999_97,
        -0.499_999_97,
        8_388_609.,
        3e-5,
        -3e-5,
        1e-3,
        0.09,
        -0.11,
        16.,
        20.,
        -20.,
        80.,
        -80.,
        88.,
        -88.,
        89.,
        -89.,
        104.,
        -104.,
        500.,
        -500.,
        65_504.,
        -65_504.,
        1e-30,
        1e18,
        -1e18,
        1e30,
        -1e30,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    data.extend((0..600).map(|i| (i as f32 - 299.5) / 30.));
    let data = Tensor::new(data, &Device::Cpu)?.to_dtype(dtype)?;
    if dtype != DType::F64 {
        return Ok(data);
    }
    // Numbers at which f64 overflows, and numbers beyond the range of f32.
    let wide = [
        709.,
        -709.,
        710.,
        -710.,
        -740.,
        -746.,
        1e300,
        -1e300,
        1e-300,
        5e-324,
        22.5,
        6.5,
        -6.5,
        26.,
        1. / 3.,
    ];
    Tensor::cat(&[data, Tensor::new(&wide, &Device::Cpu)?], 0)
}

/// Returns numbers at which integers wrap.
fn integers(dtype: DType) -> Result<Tensor> {
    let cpu = &Device::Cpu;
    match dtype {
        DType::U8 => Tensor::new(&[0u8, 1, 2, 3, 15, 16, 127, 128, 200, 254, 255], cpu),
        DType::U32 => {
            let edges = [
                0u32,
                1,
                3,
                10,
                65_535,
                65_536,
                1 << 31,
                (1 << 31) - 1,
                u32::MAX,
            ];
            Tensor::new(&edges, cpu)
        }
        DType::I16 => {
            let edges = [
                0i16,
                1,
                -1,
                2,
                -3,
                181,
                182,
                -256,
                i16::MAX,
                i16::MIN,
                i16::MIN + 1,
            ];
            Tensor::new(&edges, cpu)
        }
        DType::I32 => {
            let edges = [
                0,
                1,
                -1,
                2,
                -3,
                46_340,
                46_341,
                -65_536,
                i32::MAX,
                i32::MIN,
                i32::MIN + 1,
            ];
            Tensor::new(&edges, cpu)
        }
        _ => {
            let word = 1i64 << 32;
            let mut edges = vec![
                0,
                1,
                -1,
                7,
                -7,
                10_000_000_019,
                i64::MAX,
                i64::MIN,
                i64::MIN + 1,
            ];
            edges.extend([
                word - 1,
                word,
                word + 1,
                -word,
                1 - word,
                3 * word + 5,
                word << 30,
            ]);
            Tensor::new(edges, cpu)
        }
    }
}

fn edges(dtype: DType) -> Result<Tensor> {
    if dtype.is_float() {
        floats(dtype)
    } else {
        integers(dtype)
    }
}

fn exact_functions(device: &Device) -> Result<()> {
    for dtype in dtypes(device)? {
        let cpu = edges(dtype)?;
        let here = cpu.to_device(device)?;
        for (name, op) in EXACT {
            let what = format!("{name} {dtype:?}");
            let exact = Tolerance::EXACT;
            if dtype == DType::I64 {
                assert_same(&op(&here)?, &op(&cpu)?, &what)?;
            } else {
                assert_close(&op(&here)?, &op(&cpu)?, exact, &what)?;
            }
        }
    }
    Ok(())
}
test_device!(exact_functions);

fn approximate_functions(device: &Device) -> Result<()> {
    for dtype in agree::floats(device)? {
        let all = floats(dtype)?;
        for (name, op, relative, absolute) in APPROXIMATE {
            let what = format!("{name} {dtype:?}");
            // No device guarantees results for angles far from 0.
            let cpu = if matches!(name, "sin" | "cos") {
                let far = all.abs()?.gt(1e5)?;
                let finite = all.abs()?.lt(f64::INFINITY)?;
                (far * finite)?.where_cond(&all.ones_like()?, &all)?
            } else {
                all.clone()
            };
            let tolerance = match dtype {
                // Series; `gelu` cancels for arguments below 0.
                DType::F64 => Tolerance::of(dtype, 1e-12).or_absolute(1e-14),
                _ => Tolerance::of(dtype, relative).or_absolute(absolute),
            };
            assert_close(&op(&cpu.to_device(device)?)?, &op(&cpu)?, tolerance, &what)?;
        }
    }
    for dtype in INTEGERS {
        let here = integers(dtype)?.to_device(device)?;
        for (name, op, _, _) in APPROXIMATE {
            let error = op(&here).expect_err(name).to_string();
            assert!(error.contains(name), "{error}");
        }
    }
    Ok(())
}
test_device!(approximate_functions);

/// Angles of rotary embeddings: positions times frequencies. The allowed error is that of an f32 near 1e5.
fn large_angles(device: &Device) -> Result<()> {
    let angles: Vec<f32> = (0..4001).map(|i| (i * i) as f32 / 160. - 3.).collect();
    let cpu = Tensor::new(angles, &Device::Cpu)?;
    let here = cpu.to_device(device)?;
    let tolerance = Tolerance::EXACT.or_absolute(5e-6);
    assert_close(&here.sin()?, &cpu.sin()?, tolerance, "sin")?;
    assert_close(&here.cos()?, &cpu.cos()?, tolerance, "cos")
}
test_device!(large_angles);

/// The sign of zero where IEEE 754 defines it; the tests above ignore it.
fn signed_zeros(device: &Device) -> Result<()> {
    let ops: [(&str, Op); 9] = [
        ("copy", Tensor::copy),
        ("abs", Tensor::abs),
        ("neg", Tensor::neg),
        ("sqr", Tensor::sqr),
        ("recip", Tensor::recip),
        ("sqrt", Tensor::sqrt),
        ("floor", Tensor::floor),
        ("sum with -0", |t| t + t),
        ("contiguous", |t| t.reshape((1, 2))?.t()?.contiguous()),
    ];
    for dtype in agree::floats(device)? {
        let cpu = Tensor::new(&[0f32, -0.], &Device::Cpu)?.to_dtype(dtype)?;
        let here = cpu.to_device(device)?;
        for (name, op) in ops {
            assert_same(&op(&here)?, &op(&cpu)?, &format!("{name} {dtype:?}"))?;
        }
    }
    Ok(())
}
test_device!(signed_zeros);

/// Sizes around the number of elements that a workgroup processes: 256 words of one, two or four elements.
fn sizes(device: &Device) -> Result<()> {
    let sizes = [0, 1, 2, 3, 5, 255, 256, 257, 511, 513, 1023, 1025];
    for dtype in DTYPES {
        for size in sizes {
            let what = format!("{size} {dtype:?}");
            let cpu = numbers(&[size], dtype)?;
            let here = cpu.to_device(device)?;
            assert_same(&here.neg()?, &cpu.neg()?, &what)?;
            assert_same(&(&here - &here.neg()?)?, &(&cpu - &cpu.neg()?)?, &what)?;
            let (mask_here, mask) = (here.ge(&here.neg()?)?, cpu.ge(&cpu.neg()?)?);
            assert_same(&mask_here, &mask, &what)?;
            assert_same(
                &mask_here.where_cond(&here, &here.neg()?)?,
                &mask.where_cond(&cpu, &cpu.neg()?)?,
                &what,
            )?;
        }
    }
    Ok(())
}
test_device!(sizes);

fn many_dimensions(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::U8] {
        assert_as_on_cpu(device, "six dimensions", |device| {
            let t = numbers(&[2, 3, 2, 3, 2, 3], dtype)?.to_device(device)?;
            let turned = t.permute((5, 4, 3, 2, 1, 0))?;
            turned + t.permute((1, 2, 3, 4, 5, 0))?.permute((0, 1, 2, 3, 4, 5))?
        })?;
    }
    Ok(())
}
test_device!(many_dimensions);

/// More workgroups than one dimension of a grid allows: 65,535 of 256 invocations.
fn folded_grid(device: &Device) -> Result<()> {
    let len = 65_536 * 256 + 3;
    let t = (Tensor::ones(len, DType::F32, device)? * 0.5)?;
    let ends = Tensor::cat(&[t.narrow(0, 0, 1)?, t.narrow(0, len - 1, 1)?], 0)?;
    assert_eq!(ends.to_vec1::<f32>()?, [0.5, 0.5]);
    assert_eq!(t.sum_all()?.to_scalar::<f32>()?, len as f32 / 2.);
    Ok(())
}
test_device!(folded_grid);

/// Returns every pair of a tensor's elements, as two tensors.
fn pairs(t: &Tensor) -> Result<(Tensor, Tensor)> {
    let n = t.dim(0)?;
    Ok((
        t.unsqueeze(1)?.broadcast_as((n, n))?,
        t.unsqueeze(0)?.broadcast_as((n, n))?,
    ))
}

fn float_pairs(dtype: DType) -> Result<Tensor> {
    let data = [
        0.,
        -0.,
        1.,
        -1.,
        1.5,
        -2.25,
        3.,
        1. / 3.,
        1e-3,
        255.,
        60_000.,
        -60_000.,
        1e18,
        -1e18,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    Tensor::new(&data, &Device::Cpu)?.to_dtype(dtype)
}

const BINARY: [(&str, BinaryOp); 6] = [
    ("add", Tensor::add),
    ("sub", Tensor::sub),
    ("mul", Tensor::mul),
    ("div", Tensor::div),
    ("minimum", |l, r| l.minimum(r)),
    ("maximum", |l, r| l.maximum(r)),
];

fn binary_of_floats(device: &Device) -> Result<()> {
    for dtype in agree::floats(device)? {
        let cpu = float_pairs(dtype)?;
        let (lhs, rhs) = pairs(&cpu)?;
        let (lhs_here, rhs_here) = pairs(&cpu.to_device(device)?)?;
        for (name, op) in BINARY {
            // Quotients have 2.5 ULP, and overflow where subnormal numbers are flushed to 0.
            let tolerance = match name {
                "div" if dtype != DType::F64 => Tolerance::of(dtype, 3e-7),
                _ => Tolerance::EXACT,
            };
            let what = format!("{name} {dtype:?}");
            let (got, want) = (op(&lhs_here, &rhs_here)?, op(&lhs, &rhs)?);
            assert_close(&got, &want, tolerance, &what)?;
        }
    }
    Ok(())
}
test_device!(binary_of_floats);

fn binary_of_integers(device: &Device) -> Result<()> {
    for dtype in INTEGERS {
        let cpu = integers(dtype)?;
        let here = cpu.to_device(device)?;
        // 0 is the first of the edges.
        let (cpu, here) = (
            cpu.narrow(0, 1, cpu.dim(0)? - 1)?,
            here.narrow(0, 1, here.dim(0)? - 1)?,
        );
        let (lhs, rhs) = pairs(&cpu)?;
        let (lhs_here, rhs_here) = pairs(&here)?;
        for (name, op) in BINARY {
            let what = format!("{name} {dtype:?}");
            assert_same(&op(&lhs_here, &rhs_here)?, &op(&lhs, &rhs)?, &what)?;
        }
    }
    Ok(())
}
test_device!(binary_of_integers);

/// Division by zero is an error at the read of the result or earlier, and the device remains usable.
fn integer_division_by_zero(device: &Device) -> Result<()> {
    for dtype in INTEGERS {
        let lhs = Tensor::new(&[6u8, 7, 8], device)?.to_dtype(dtype)?;
        let zero = Tensor::new(&[2u8, 0, 4], device)?.to_dtype(dtype)?;
        let result = lhs.div(&zero).and_then(|t| t.to_device(&Device::Cpu));
        let error = result.expect_err("a division by zero").to_string();
        assert!(error.contains("div") && error.contains("zero"), "{error}");
        let fine = lhs.div(&lhs)?.to_dtype(DType::F32)?;
        assert_eq!(fine.to_vec1::<f32>()?, [1., 1., 1.]);
        // A zero outside the view does not count.
        let ends = zero.narrow(0, 2, 1)?;
        let fine = lhs.narrow(0, 2, 1)?.div(&ends)?.to_dtype(DType::F32)?;
        assert_eq!(fine.to_vec1::<f32>()?, [2.]);
    }
    for dtype in agree::floats(device)? {
        let one = Tensor::ones(1, dtype, device)?;
        let quotient = (&one / one.zeros_like()?)?.to_dtype(DType::F32)?;
        // F8E4M3 has no infinity.
        let want = match dtype {
            DType::F8E4M3 => 448.,
            _ => f32::INFINITY,
        };
        assert_eq!(quotient.to_vec1::<f32>()?, [want]);
    }
    Ok(())
}
test_device!(integer_division_by_zero);

fn comparisons(device: &Device) -> Result<()> {
    let ops: [(&str, BinaryOp); 6] = [
        ("eq", |l, r| l.eq(r)),
        ("ne", |l, r| l.ne(r)),
        ("lt", |l, r| l.lt(r)),
        ("le", |l, r| l.le(r)),
        ("gt", |l, r| l.gt(r)),
        ("ge", |l, r| l.ge(r)),
    ];
    for dtype in dtypes(device)? {
        let cpu = if dtype.is_float() {
            float_pairs(dtype)?
        } else {
            integers(dtype)?
        };
        let (lhs, rhs) = pairs(&cpu)?;
        let (lhs_here, rhs_here) = pairs(&cpu.to_device(device)?)?;
        for (name, op) in ops {
            let what = format!("{name} {dtype:?}");
            assert_same(&op(&lhs_here, &rhs_here)?, &op(&lhs, &rhs)?, &what)?;
        }
    }
    Ok(())
}
test_device!(comparisons);

/// Every value except 0 is true, also if only the upper word of an i64 is set. Values pass through unchanged.
fn conditions(device: &Device) -> Result<()> {
    let cpu = &Device::Cpu;
    let conditions = [
        Tensor::new(&[0u8, 1, 0, 2, 128, 255, 0], cpu)?,
        Tensor::new(&[0u32, 1, 0, 256, 1 << 31, u32::MAX, 0], cpu)?,
        Tensor::new(&[0i64, 1, 0, 1 << 32, i64::MIN, -1, 0], cpu)?,
        Tensor::new(&[0i32, 1, 0, 1 << 16, i32::MIN, -1, 0], cpu)?,
        Tensor::new(&[0i16, 1, 0, 1 << 8, i16::MIN, -1, 0], cpu)?,
    ];
    for condition in conditions {
        for dtype in DTYPES {
            let what = format!("where {:?} {dtype:?}", condition.dtype());
            let values = if dtype.is_float() {
                floats(dtype)?.narrow(0, 36, 7)?
            } else {
                integers(dtype)?.narrow(0, 2, 7)?
            };
            assert_as_on_cpu(device, &what, |device| {
                let values = values.to_device(device)?;
                let reversed = values.flip(&[0])?;
                condition.to_device(device)?.where_cond(&values, &reversed)
            })?;
        }
    }
    let ones = Tensor::ones(2, DType::F32, device)?;
    assert!(ones.where_cond(&ones, &ones).is_err());
    Ok(())
}
test_device!(conditions);

/// Products and sums of floats may be fused, which rounds once instead of twice: the difference is at most half an ULP of the product.
fn affine(device: &Device) -> Result<()> {
    for dtype in agree::floats(device)? {
        let cpu = float_pairs(dtype)?;
        let here = cpu.to_device(device)?;
        for (mul, add) in [
            (1., 0.),
            (0., 1.),
            (0.5, 0.25),
            (-3., 1000.),
            (1. / 3., 0.1),
        ] {
            let what = format!("{mul} x + {add} {dtype:?}");
            let tolerance = Tolerance::of(dtype, 3e-7);
            let (got, want) = (here.affine(mul, add)?, cpu.affine(mul, add)?);
            assert_close(&got, &want, tolerance, &what)?;
        }
    }
    for dtype in INTEGERS {
        let cpu = integers(dtype)?;
        let here = cpu.to_device(device)?;
        // Factors are converted to the dtype first: 0.5 counts as 0 in integer dtypes.
        for (mul, add) in [
            (1., 0.),
            (3., 5.),
            (-1., 0.),
            (-7., -9.),
            (0.5, 1.5),
            (1e10, -1e12),
        ] {
            let what = format!("{mul} x + {add} {dtype:?}");
            assert_same(&here.affine(mul, add)?, &cpu.affine(mul, add)?, &what)?;
        }
    }
    Ok(())
}
test_device!(affine);

/// WGSL computes a power through the logarithm, so the error grows with the result's exponent, which is at most 128: 128 ULP.
fn powers(device: &Device) -> Result<()> {
    let exponents = [
        0.,
        1.,
        2.,
        3.,
        4.,
        5.,
        0.5,
        1.5,
        2.5,
        1e-3,
        1. / 3.,
        -1.,
        -2.,
        -3.,
        -0.5,
        -1.5,
        20.,
        21.,
    ];
    for dtype in agree::floats(device)? {
        let cpu = floats(dtype)?;
        let here = cpu.to_device(device)?;
        for e in exponents {
            let tolerance = Tolerance::of(dtype, 4e-5);
            let what = format!("powf {e} {dtype:?}");
            assert_close(&here.powf(e)?, &cpu.powf(e)?, tolerance, &what)?;
        }
    }
    for dtype in INTEGERS {
        let error = integers(dtype)?.to_device(device)?.powf(2.);
        let error = error.expect_err("a power of integers").to_string();
        assert!(error.contains("powf"), "{error}");
    }
    Ok(())
}
test_device!(powers);

fn elu(device: &Device) -> Result<()> {
    for dtype in agree::floats(device)? {
        let cpu = floats(dtype)?;
        let here = cpu.to_device(device)?;
        for alpha in [1., 0.5, -2.] {
            let tolerance = Tolerance::of(dtype, 2e-6);
            let what = format!("elu {alpha} {dtype:?}");
            assert_close(&here.elu(alpha)?, &cpu.elu(alpha)?, tolerance, &what)?;
        }
    }
    Ok(())
}
test_device!(elu);

/// Values from NumPy 2; for the activations, from their definitions in f64.
fn as_numpy(device: &Device) -> Result<()> {
    let t = Tensor::new(&[-2f32, -0.5, 0., 0.5, 2.], device)?;
    let values = |t: Result<Tensor>| candle_core::test_utils::to_vec1_round(&t?, 4);
    assert_eq!(values(t.exp())?, [0.1353, 0.6065, 1., 1.6487, 7.3891]);
    assert_eq!(values(t.tanh())?, [-0.964, -0.4621, 0., 0.4621, 0.964]);
    assert_eq!(values(t.sin())?, [-0.9093, -0.4794, 0., 0.4794, 0.9093]);
    assert_eq!(values(t.erf())?, [-0.9953, -0.5205, 0., 0.5205, 0.9953]);
    assert_eq!(values(t.silu())?, [-0.2384, -0.1888, 0., 0.3112, 1.7616]);
    assert_eq!(
        values(t.gelu_erf())?,
        [-0.0455, -0.1543, 0., 0.3457, 1.9545]
    );
    assert_eq!(values(t.gelu())?, [-0.0454, -0.1543, 0., 0.3457, 1.9546]);
    assert_eq!(values(t.elu(1.))?, [-0.8647, -0.3935, 0., 0.5, 2.]);
    assert_eq!(values(t.round())?, [-2., -1., 0., 1., 2.]);
    assert_eq!(values(t.powf(3.))?, [-8., -0.125, 0., 0.125, 8.]);
    assert_eq!(values(t.affine(2., 1.))?, [-3., 0., 1., 2., 5.]);
    assert_eq!(t.ge(0.)?.to_vec1::<u8>()?, [0, 0, 1, 1, 1]);
    assert_eq!(values(t.clamp(-1., 0.25))?, [-1., -0.5, 0., 0.25, 0.25]);
    Ok(())
}
test_device!(as_numpy);

/// Kernels process several neighbouring rows at once if the rows and the strides between them are long enough. The cases add a row or a
/// column to each, cut the operand from a wider matrix, start at an odd offset, and use lengths that do not divide evenly.
fn rows_side_by_side(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::I16] {
        for (columns, width, start) in [
            (16, 16, 0),
            (16, 48, 16),
            (16, 48, 3),
            (16, 20, 4),
            (12, 24, 0),
            (7, 7, 0),
            (1, 16, 0),
        ] {
            let wide = numbers(&[5, width], dtype)?;
            let row = numbers(&[2 * columns], dtype)?;
            let column = numbers(&[5, 1], dtype)?;
            let of = |wide: &Tensor, row: &Tensor, column: &Tensor| -> Result<Vec<Tensor>> {
                let rows = wide.narrow(1, start, columns)?;
                let row = row.narrow(0, columns, columns)?;
                Ok(vec![
                    rows.broadcast_add(&row)?,
                    rows.broadcast_add(column)?,
                    row.broadcast_as((5, columns))?.broadcast_sub(&rows)?,
                    rows.contiguous()?,
                    rows.to_dtype(DType::F32)?,
                    rows.t()?.contiguous()?,
                ])
            };
            let wanted = of(&wide, &row, &column)?;
            let there = |t: &Tensor| t.to_device(device);
            let found = of(&there(&wide)?, &there(&row)?, &there(&column)?)?;
            for (found, wanted) in found.iter().zip(&wanted) {
                assert_same(found, wanted, &format!("{dtype:?}, {columns} of {width}"))?;
            }
        }
    }
    Ok(())
}
test_device!(rows_side_by_side);
