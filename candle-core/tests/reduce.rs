//! Reductions on every device: over one dimension and several, by layout, row length and dtype.

use candle_core::{test_device, test_utils, DType, Device, Result, Tensor, D};

use crate::agree::{assert_same, numbers, runs_fewer, DTYPES, VIEWS};

type Reduction = fn(&Tensor, usize) -> Result<Tensor>;

const REDUCTIONS: [(&str, Reduction); 5] = [
    ("sum", |t, dim| t.sum(dim)),
    ("min", |t, dim| t.min(dim)),
    ("max", |t, dim| t.max_keepdim(dim)),
    ("argmin", |t, dim| t.argmin(dim)),
    ("argmax", |t, dim| t.argmax_keepdim(dim)),
];

/// Compares every reduction of one dimension with the CPU.
fn check(here: &Tensor, cpu: &Tensor, dim: usize, what: &str) -> Result<()> {
    for (name, reduction) in REDUCTIONS {
        let what = format!(
            "{name} over {dim} of {what} {:?} {:?}",
            cpu.dtype(),
            cpu.shape()
        );
        assert_same(&reduction(here, dim)?, &reduction(cpu, dim)?, &what)?;
    }
    Ok(())
}

fn layouts(device: &Device) -> Result<()> {
    let step = if runs_fewer(device) { 2 } else { 1 };
    for (i, dtype) in DTYPES.into_iter().enumerate() {
        let cpu = numbers(&[5, 7, 9], dtype)?;
        let here = cpu.to_device(device)?;
        for (name, view) in VIEWS.into_iter().skip(i % step).step_by(step) {
            let (here, cpu) = (view(&here)?, view(&cpu)?);
            for dim in 0..3 {
                check(&here, &cpu, dim, name)?;
            }
            for dims in [vec![0, 1], vec![0, 2], vec![2, 1], vec![0, 1, 2], vec![]] {
                let what = format!("sum over {dims:?} of {name} {dtype:?}");
                let (got, want) = (here.sum_keepdim(dims.as_slice())?, cpu.sum_keepdim(dims)?);
                assert_same(&got, &want, &what)?;
            }
        }
    }
    Ok(())
}
test_device!(layouts);

fn lengths(device: &Device) -> Result<()> {
    let step = if runs_fewer(device) { 2 } else { 1 };
    for (i, dtype) in DTYPES.into_iter().enumerate() {
        let lengths = [1, 2, 63, 64, 65, 255, 256, 257, 1000];
        for len in lengths.into_iter().skip(i % step).step_by(step) {
            let cpu = numbers(&[3, len], dtype)?;
            check(&cpu.to_device(device)?, &cpu, 1, "rows")?;
            let cpu = numbers(&[len, 3], dtype)?.t()?;
            check(&cpu.to_device(device)?, &cpu, 1, "columns")?;
        }
    }
    Ok(())
}
test_device!(lengths);

/// Few long rows: each row is split.
fn long_rows(device: &Device) -> Result<()> {
    let step = if runs_fewer(device) { 4 } else { 1 };
    for (i, dtype) in DTYPES.into_iter().enumerate() {
        let sizes = [(1, 16384), (1, 40_001), (3, 20_000), (5, 16_385)];
        for (rows, len) in sizes.into_iter().skip(i % step).step_by(step) {
            let cpu = numbers(&[rows, len], dtype)?;
            check(&cpu.to_device(device)?, &cpu, 1, "long rows")?;
        }
        let cpu = numbers(&[20_000, 2], dtype)?;
        let here = cpu.to_device(device)?;
        check(&here, &cpu, 0, "long columns")?;
        assert_same(&here.sum_all()?, &cpu.sum_all()?, "sum_all")?;
    }
    Ok(())
}
test_device!(long_rows);

/// Rows longer than the loops of some drivers, few and many.
fn very_long_rows(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::U8] {
        for dims in [[64, 70_001], [2, 70_001]] {
            let cpu = numbers(&dims, dtype)?;
            check(&cpu.to_device(device)?, &cpu, 1, "very long rows")?;
        }
    }
    Ok(())
}
test_device!(very_long_rows);

/// Many long columns: neighbours are read together.
fn many_columns(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::BF16, DType::U8] {
        let cpu = numbers(&[65, 16_385], dtype)?;
        check(&cpu.to_device(device)?, &cpu, 0, "many columns")?;
    }
    Ok(())
}
test_device!(many_columns);

fn first_of_equals(device: &Device) -> Result<()> {
    for len in [50usize, 300, 20_000] {
        let mut data = vec![1f32; len];
        data[len / 3] = 4.;
        data[len / 2] = 4.;
        data[len / 4] = -4.;
        data[len - 1] = -4.;
        let t = Tensor::new(data, device)?;
        assert_eq!(t.argmax(0)?.to_scalar::<u32>()?, len as u32 / 3);
        assert_eq!(t.argmin(0)?.to_scalar::<u32>()?, len as u32 / 4);
        let equal = t.ones_like()?;
        assert_eq!(equal.argmax(0)?.to_scalar::<u32>()?, 0);
        assert_eq!(equal.argmin(0)?.to_scalar::<u32>()?, 0);
    }
    Ok(())
}
test_device!(first_of_equals);

/// A NaN in the first position is the result of minima and maxima; elsewhere they ignore it. Sums propagate it.
fn not_a_number(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for len in [2usize, 40, 300, 20_000] {
            for place in [0, 1, len - 1] {
                let mut data: Vec<f32> = (0..len).map(|i| (i % 7) as f32).collect();
                data[place] = f32::NAN;
                let cpu = Tensor::new(data, &Device::Cpu)?.to_dtype(dtype)?;
                check(&cpu.to_device(device)?, &cpu, 0, "a NaN in")?;
            }
        }
        let infinities = Tensor::new(&[f32::NEG_INFINITY, f32::INFINITY], &Device::Cpu)?;
        let cpu = infinities.to_dtype(dtype)?;
        check(&cpu.to_device(device)?, &cpu, 0, "infinities in")?;
        let cpu = cpu.narrow(0, 0, 1)?;
        check(&cpu.to_device(device)?, &cpu, 0, "an infinity in")?;
    }
    Ok(())
}
test_device!(not_a_number);

fn nothing(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let t = Tensor::zeros((3, 0, 2), dtype, device)?;
        assert_same(
            &t.sum(1)?,
            &Tensor::zeros((3, 2), dtype, &Device::Cpu)?,
            "sum",
        )?;
        assert_eq!(t.sum(0)?.dims(), [0, 2]);
        assert_eq!(t.argmax(2)?.dims(), [3, 0]);
        assert_same(
            &t.sum_all()?,
            &Tensor::zeros((), dtype, &Device::Cpu)?,
            "sum_all",
        )?;
        for (name, reduction) in REDUCTIONS.iter().skip(1) {
            let error = reduction(&t, 1).expect_err(name).to_string();
            assert!(error.contains(name) && error.contains("empty"), "{error}");
        }
    }
    Ok(())
}
test_device!(nothing);

/// 16-bit sums are kept in f32: a sum in f16 would stop growing at 2048, one in bf16 at 256.
fn sums_in_f32(device: &Device) -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        for len in [60usize, 4096, 30_720] {
            let t = Tensor::ones(len, dtype, device)?;
            let sum = t.sum(0)?.to_dtype(DType::F32)?.to_scalar::<f32>()?;
            assert_eq!(sum, len as f32, "{dtype:?}");
        }
    }
    Ok(())
}
test_device!(sums_in_f32);

fn integers_wrap(device: &Device) -> Result<()> {
    for len in [3usize, 300, 20_000] {
        let sum = Tensor::full(200u8, len, device)?
            .sum(0)?
            .to_scalar::<u8>()?;
        assert_eq!(sum, (200 * len) as u8);
        let value = i64::MAX / 2 + 7;
        let sum = Tensor::full(value, len, device)?
            .sum(0)?
            .to_scalar::<i64>()?;
        assert_eq!(sum, value.wrapping_mul(len as i64));
    }
    Ok(())
}
test_device!(integers_wrap);

/// An argmax over a vocabulary, as for the next token.
fn argmax_of_a_vocabulary(device: &Device) -> Result<()> {
    let mut data: Vec<f32> = (0..128_256)
        .map(|i| ((i * 31) % 1009) as f32 / 64.)
        .collect();
    data[101_234] = 17.5;
    let logits = Tensor::from_vec(data, (1, 128_256), device)?;
    assert_eq!(logits.argmax(D::Minus1)?.to_vec1::<u32>()?, [101_234]);
    assert_eq!(logits.max(1)?.to_vec1::<f32>()?, [17.5]);
    Ok(())
}
test_device!(argmax_of_a_vocabulary);

/// Values from NumPy 2 for `t = np.cos(np.arange(60)).reshape(3, 4, 5)`.
fn as_numpy(device: &Device) -> Result<()> {
    let t = Tensor::arange(0f32, 60., device)?
        .cos()?
        .reshape((3, 4, 5))?;
    assert_eq!(
        test_utils::to_vec1_round(&t.sum((0, 2))?, 3)?,
        [-2.267, -0.662, 1.891, 1.735]
    );
    assert_eq!(
        t.argmax(1)?.to_vec2::<u32>()?,
        [[0, 1, 2, 2, 3], [1, 2, 2, 3, 0], [2, 3, 3, 0, 0]]
    );
    assert_eq!(
        t.argmin(2)?.to_vec2::<u32>()?,
        [[3, 4, 0, 1], [2, 3, 4, 0], [1, 2, 3, 4]]
    );
    assert_eq!(
        test_utils::to_vec1_round(&t.max(0)?.get(0)?, 4)?,
        [1., 0.5403, -0.4, 0.5551, 0.9998]
    );
    Ok(())
}
test_device!(as_numpy);

/// `numpy.cumsum`: an infinity or a NaN does not affect earlier elements, and the memory for a long row is not quadratic.
fn cumsum(device: &Device) -> Result<()> {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let t = Tensor::new(&[1f32, inf, 2., -inf, 3., nan], device)?;
    let sums = t.cumsum(0)?.to_vec1::<f32>()?;
    assert_eq!(sums[..3], [1., inf, inf]);
    assert!(sums[3..].iter().all(|v| v.is_nan()), "{sums:?}");
    let sums = Tensor::new(&[-0f32, -0., 0.], device)?
        .cumsum(0)?
        .to_vec1::<f32>()?;
    assert!(
        sums[0].is_sign_negative() && sums[1].is_sign_negative(),
        "{sums:?}"
    );

    // Rows and columns of a transposed view, at the edges of blocks of 16.
    for len in [1, 2, 15, 16, 17, 33, 257] {
        let values: Vec<f32> = (0..2 * len).map(|i| (i * 7 % 11) as f32 - 5.).collect();
        let t = Tensor::from_vec(values.clone(), (2, len), device)?;
        let mut expected = values;
        for row in expected.chunks_mut(len) {
            for i in 1..len {
                row[i] += row[i - 1];
            }
        }
        assert_eq!(
            t.cumsum(1)?.flatten_all()?.to_vec1::<f32>()?,
            expected,
            "{len}"
        );
        let columns = t.t()?.cumsum(0)?.t()?;
        assert_eq!(columns.flatten_all()?.to_vec1::<f32>()?, expected, "{len}");
    }
    Ok(())
}

/// Sums of 16-bit floats are rounded once per element; integers wrap.
fn cumsum_of_each_dtype(device: &Device) -> Result<()> {
    let f16 = Tensor::ones(5000, DType::F16, device)?.cumsum(0)?;
    let last = f16.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    assert_eq!((last[2047], last[4095], last[4999]), (2048., 4096., 5000.));
    for dtype in [
        DType::U8,
        DType::U32,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F64,
    ] {
        let t = Tensor::ones((2, 300), dtype, device)?.cumsum(1)?;
        let sums = t.to_dtype(DType::F64)?.to_vec2::<f64>()?;
        let last = if dtype == DType::U8 { 44. } else { 300. };
        assert_eq!((sums[1][254], sums[1][299]), (255., last), "{dtype:?}");
    }
    let none = Tensor::zeros((0, 3), DType::F32, device)?.cumsum(0)?;
    assert_eq!(none.dims(), [0, 3]);
    assert!(none.cumsum(2).is_err());
    Ok(())
}

/// The gradient is a running sum from the end.
fn cumsum_gradient(device: &Device) -> Result<()> {
    let x = candle_core::Var::new(&[[1f32, 2., 3.], [4., 5., 6.]], device)?;
    let weight = Tensor::new(&[[1f32, 10., 100.], [2., 20., f32::INFINITY]], device)?;
    let grads = (x.cumsum(1)? * weight)?.sum_all()?.backward()?;
    let grad = grads.get(&x).expect("a gradient").to_vec2::<f32>()?;
    assert_eq!(grad, [[111., 110., 100.], [f32::INFINITY; 3]]);
    Ok(())
}

/// As in NumPy, the sum is kept in f32 and rounded once at the end.
fn means_of_16_bits(device: &Device) -> Result<()> {
    let close = |t: Tensor, want: f32, what: &str| -> Result<()> {
        let got = t.to_dtype(DType::F32)?.to_scalar::<f32>()?;
        assert!(
            (got - want).abs() <= want.abs() * 4e-3,
            "{what}: {got} for {want}"
        );
        Ok(())
    };
    let hundreds = Tensor::full(100f32, 656, device)?.to_dtype(DType::F16)?;
    close(hundreds.mean(0)?, 100., "mean")?;
    close(hundreds.mean_keepdim(0)?.squeeze(0)?, 100., "mean_keepdim")?;
    close(hundreds.mean_all()?, 100., "mean_all")?;
    let t = Tensor::full(300f32, 4096, device)?.to_dtype(DType::F16)?;
    close(t.norm()?, 19200., "norm")?;
    // 2048 times 300 and as many -300: 300^2 * 4096 / 4095.
    let both = Tensor::cat(&[&t.narrow(0, 0, 2048)?, &t.narrow(0, 0, 2048)?.neg()?], 0)?;
    let small = (both.to_dtype(DType::F32)? / 2.)?.to_dtype(DType::F16)?;
    close(small.var(0)?, 22_505.5, "var")?;
    let zeros = Tensor::zeros(70_000, DType::F16, device)?;
    close(zeros.log_sum_exp(0)?, 70_000f32.ln(), "log_sum_exp")?;
    assert_eq!(hundreds.mean_all()?.dtype(), DType::F16);
    Ok(())
}

test_device!(cumsum);
test_device!(cumsum_of_each_dtype);
test_device!(cumsum_gradient);
test_device!(means_of_16_bits);
