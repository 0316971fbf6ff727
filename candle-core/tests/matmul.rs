//! Matrix products on every device compared with the CPU, at the edges of the kernels' tiles and in every layout.
//!
//! Most tests are exact: [`numbers`] and their products are multiples of 1/256 whose sums f32 represents in any order, and a 16-bit result
//! is such a sum rounded once.

use candle_core::{test_device, DType, Device, Result, Tensor};

use crate::agree::{assert_close, numbers, Tolerance};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Checks that all numbers are equal. The sign of a zero is ignored: it depends on the initial value of a sum.
fn assert_equal(got: &Tensor, want: &Tensor, what: &str) -> Result<()> {
    assert_close(got, want, Tolerance::EXACT, what)
}

fn assert_as_on_cpu(
    device: &Device,
    what: &str,
    product: impl Fn(&Device) -> Result<Tensor>,
) -> Result<()> {
    assert_equal(&product(device)?, &product(&Device::Cpu)?, what)
}

/// Row counts from one to past two tiles: vector kernels end at 8 rows, tiles have 64 or 128, cooperative matrices 16.
fn rows(device: &Device) -> Result<()> {
    for dtype in FLOATS {
        for (n, k) in [(1, 1), (2, 8), (7, 5), (64, 32), (65, 33), (129, 40)] {
            let rhs = numbers(&[n, k], dtype)?;
            let rhs_here = rhs.to_device(device)?;
            for m in [1, 2, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129] {
                let what = format!("{m} x {k} by {k} x {n} {dtype:?}");
                let lhs = numbers(&[m, k], dtype)?;
                let want = lhs.matmul(&rhs.t()?)?;
                let lhs_here = lhs.to_device(device)?;
                assert_equal(&lhs_here.matmul(&rhs_here.t()?)?, &want, &what)?;
            }
        }
    }
    Ok(())
}
test_device!(rows);

/// Columns and inner dimensions around the sizes of a tile, a workgroup and a word.
fn columns_and_depths(device: &Device) -> Result<()> {
    for dtype in FLOATS {
        for m in [1, 3, 20] {
            for n in [1, 2, 15, 16, 63, 64, 65, 127, 128, 130] {
                for k in [1, 2, 3, 8, 16, 31, 32, 33, 64, 136] {
                    // One of three, evenly spread, to save time.
                    if (n + k + m) % 3 != 0 {
                        continue;
                    }
                    let what = format!("{m} x {k} by {k} x {n} {dtype:?}");
                    assert_as_on_cpu(device, &what, |device| {
                        let lhs = numbers(&[m, k], dtype)?.to_device(device)?;
                        lhs.matmul(&numbers(&[k, n], dtype)?.to_device(device)?)
                    })?;
                }
            }
        }
    }
    Ok(())
}
test_device!(columns_and_depths);

/// One row with a long inner dimension, as in generation: the loop's unrolled part and its remainder.
fn long_depths(device: &Device) -> Result<()> {
    for dtype in FLOATS {
        for k in [255, 256, 257, 1024, 1032, 2047, 2048, 2056, 4104] {
            for m in [1, 7] {
                let what = format!("{m} x {k} by {k} x 6 {dtype:?}");
                assert_as_on_cpu(device, &what, |device| {
                    // Small integers: the sums are long.
                    let of = |rows| {
                        (numbers(&[rows, k], dtype)? / 4.)?
                            .round()?
                            .to_device(device)
                    };
                    of(m)?.matmul(&of(6)?.t()?)
                })?;
            }
        }
    }
    Ok(())
}
test_device!(long_depths);

/// An inner dimension longer than the loops of some drivers; `rhs` in both orders, so that words and single elements are read.
fn very_long_depths(device: &Device) -> Result<()> {
    const K: usize = 70_001;
    for m in [1, 5] {
        assert_as_on_cpu(device, &format!("{m} x {K} by {K} x 6"), |device| {
            let of = |rows, cols| {
                let numbers = (numbers(&[rows, cols], DType::F32)? / 4.)?.round()?;
                numbers.to_device(device)
            };
            let wide = of(m, K + 7)?.matmul(&of(6, K + 7)?.t()?)?;
            wide + of(m, K)?.matmul(&of(K, 6)?)?
        })?;
    }
    Ok(())
}
test_device!(very_long_depths);

/// A function that makes a matrix operand `(batch, rows, cols)` with a certain layout.
type Operand = fn(batch: usize, rows: usize, cols: usize, DType, &Device) -> Result<Tensor>;

fn plain(shape: [usize; 3], dtype: DType, device: &Device) -> Result<Tensor> {
    numbers(&shape, dtype)?.to_device(device)
}

const OPERANDS: [(&str, Operand); 9] = [
    ("contiguous", |b, r, c, t, d| plain([b, r, c], t, d)),
    ("transposed", |b, r, c, t, d| plain([b, c, r], t, d)?.t()),
    ("columns from 8 on", |b, r, c, t, d| {
        plain([b, r, c + 8], t, d)?.narrow(2, 8, c)
    }),
    ("columns from 1 on", |b, r, c, t, d| {
        plain([b, r, c + 3], t, d)?.narrow(2, 1, c)
    }),
    ("rows from 1 on", |b, r, c, t, d| {
        plain([b, r + 1, c], t, d)?.narrow(1, 1, r)
    }),
    ("rows from 1 on, transposed", |b, r, c, t, d| {
        plain([b, c, r + 1], t, d)?.narrow(2, 1, r)?.t()
    }),
    ("broadcast batch", |b, r, c, t, d| {
        plain([1, r, c], t, d)?.broadcast_as((b, r, c))
    }),
    ("heads inside rows", |b, r, c, t, d| {
        plain([r, b, c], t, d)?.transpose(0, 1)
    }),
    ("batch innermost", |b, r, c, t, d| {
        plain([r, c, b], t, d)?.permute((2, 0, 1))
    }),
];

fn layouts(device: &Device) -> Result<()> {
    for dtype in FLOATS {
        for (lhs_name, lhs) in OPERANDS {
            for (rhs_name, rhs) in OPERANDS {
                for (b, m, n, k) in [
                    (3, 1, 24, 16),
                    (2, 5, 6, 16),
                    (2, 20, 24, 16),
                    (3, 11, 7, 9),
                ] {
                    let what = format!("{lhs_name} by {rhs_name} {m} {n} {k} {dtype:?}");
                    assert_as_on_cpu(device, &what, |device| {
                        lhs(b, m, k, dtype, device)?.matmul(&rhs(b, k, n, dtype, device)?)
                    })?;
                }
            }
        }
    }
    Ok(())
}
test_device!(layouts);

/// Enough products to select the widest tiles.
fn many_batches(device: &Device) -> Result<()> {
    for dtype in FLOATS {
        for (m, n, k) in [(9, 9, 5), (17, 12, 8), (1, 3, 4)] {
            let what = format!("300 of {m} x {k} by {k} x {n} {dtype:?}");
            assert_as_on_cpu(device, &what, |device| {
                let lhs = plain([300, m, k], dtype, device)?;
                lhs.matmul(&plain([300, k, n], dtype, device)?)
            })?;
            assert_as_on_cpu(device, &what, |device| {
                let lhs = plain([300, m, k], dtype, device)?;
                lhs.matmul(&plain([300, n, k], dtype, device)?.t()?)
            })?;
        }
    }
    Ok(())
}
test_device!(many_batches);

/// Attention layouts: heads within rows, keys shared by groups of heads, a part of a longer cache.
fn attention(device: &Device) -> Result<()> {
    for dtype in FLOATS {
        for (seq, len, d) in [(1, 33, 16), (7, 33, 16), (40, 40, 8), (3, 5, 5)] {
            let what = format!("{seq} queries, {len} keys, {d} {dtype:?}");
            let scores = |device: &Device| {
                let q = numbers(&[2, seq, 6, d], dtype)?.to_device(device)?;
                let k = numbers(&[2, 3, len + 4, d], dtype)?.to_device(device)?;
                let k = k.narrow(2, 2, len)?.unsqueeze(2)?;
                let k = k.broadcast_as((2, 3, 2, len, d))?;
                let q = q.transpose(1, 2)?.reshape((2, 3, 2, seq, d))?;
                q.matmul(&k.t()?)
            };
            assert_as_on_cpu(device, &what, scores)?;
            assert_as_on_cpu(device, &what, |device| {
                let q = numbers(&[2, seq, 6, d], dtype)?.to_device(device)?;
                let k = numbers(&[2, len, 6, d], dtype)?.to_device(device)?;
                q.transpose(1, 2)?.matmul(&k.permute((0, 2, 3, 1))?)
            })?;
        }
    }
    Ok(())
}
test_device!(attention);

fn broadcast(device: &Device) -> Result<()> {
    for dtype in FLOATS {
        assert_as_on_cpu(device, "a batch by one", |device| {
            let lhs = plain([4, 5, 8], dtype, device)?;
            lhs.broadcast_matmul(&numbers(&[8, 6], dtype)?.to_device(device)?)
        })?;
        assert_as_on_cpu(device, "one by a batch", |device| {
            let lhs = numbers(&[5, 8], dtype)?.to_device(device)?;
            lhs.broadcast_matmul(&plain([4, 8, 6], dtype, device)?)
        })?;
        assert_as_on_cpu(device, "a vector", |device| {
            let lhs = numbers(&[9, 8], dtype)?.to_device(device)?;
            lhs.mv(&numbers(&[8], dtype)?.to_device(device)?)
        })?;
    }
    Ok(())
}
test_device!(broadcast);

/// Empty operands: zeros or an empty result.
fn nothing(device: &Device) -> Result<()> {
    for dtype in FLOATS {
        for (b, m, n, k) in [
            (1, 3, 4, 0),
            (2, 1, 3, 0),
            (0, 3, 4, 5),
            (2, 0, 4, 5),
            (2, 3, 0, 5),
        ] {
            let lhs = Tensor::ones((b, m, k), dtype, device)?;
            let rhs = Tensor::ones((b, k, n), dtype, device)?;
            let want = Tensor::zeros((b, m, n), dtype, &Device::Cpu)?;
            let what = format!("{b} {m} {n} {k} {dtype:?}");
            assert_equal(&lhs.matmul(&rhs)?, &want, &what)?;
        }
    }
    Ok(())
}
test_device!(nothing);

fn errors(device: &Device) -> Result<()> {
    let square = |dtype| Tensor::ones((2, 2), dtype, device);
    let error = square(DType::F32)?.matmul(&square(DType::F16)?);
    assert!(error
        .expect_err("dtypes differ")
        .to_string()
        .contains("matmul"));
    let error = square(DType::F32)?.matmul(&Tensor::ones((3, 2), DType::F32, device)?);
    assert!(error
        .expect_err("shapes differ")
        .to_string()
        .contains("matmul"));
    Ok(())
}
test_device!(errors);

/// Numbers that round at every step. Two summation orders of `k` products of up to 1 differ by at most `k` half ULPs of a sum of at most
/// `k`; a 16-bit result is rounded once more.
fn rounded(device: &Device) -> Result<()> {
    for dtype in FLOATS {
        for (m, n, k) in [(1, 33, 500), (6, 64, 512), (37, 41, 300), (128, 64, 256)] {
            let of = |rows: usize, step: f64| {
                let t = Tensor::arange(0u32, (rows * k) as u32, &Device::Cpu)?;
                let t = (t.to_dtype(DType::F64)? * step)?.cos()?;
                t.to_dtype(dtype)?.reshape((rows, k))
            };
            let (lhs, rhs) = (of(m, 1.3)?, of(n, 0.7)?);
            let want = lhs.matmul(&rhs.t()?)?;
            let got = lhs
                .to_device(device)?
                .matmul(&rhs.to_device(device)?.t()?)?;
            let step = 2f64.powi(-24) * (k * k) as f64;
            let tolerance = Tolerance::of(dtype, 0.).or_absolute(step);
            assert_close(&got, &want, tolerance, &format!("{m} {n} {k} {dtype:?}"))?;
        }
    }
    Ok(())
}
test_device!(rounded);

/// 16-bit operands are summed in f32; a sum in f16 would stop growing at 2048.
fn sums_in_f32(device: &Device) -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        for m in [1, 20] {
            let lhs = Tensor::ones((m, 4096), dtype, device)?;
            let sum = lhs.matmul(&Tensor::ones((4096, 4), dtype, device)?)?;
            let sum = sum.to_dtype(DType::F32)?.max_all()?.to_scalar::<f32>()?;
            assert_eq!(sum, 4096., "{dtype:?}");
        }
    }
    Ok(())
}
test_device!(sums_in_f32);

/// NaN and infinity affect their row and their column only.
fn not_a_number(device: &Device) -> Result<()> {
    for dtype in FLOATS {
        for m in [3, 20] {
            let mut data = vec![1f32; m * 16];
            data[16 + 3] = f32::NAN;
            let lhs = Tensor::from_vec(data, (m, 16), device)?.to_dtype(dtype)?;
            let mut data = vec![1f32; 16 * 8];
            data[5] = f32::INFINITY;
            let rhs = Tensor::from_vec(data, (16, 8), device)?.to_dtype(dtype)?;
            let rows = lhs.matmul(&rhs)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
            assert!(rows[1].iter().all(|x| x.is_nan()), "{dtype:?}");
            for row in rows
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != 1)
                .map(|(_, r)| r)
            {
                let want = [16., 16., 16., 16., 16., f32::INFINITY, 16., 16.];
                assert_eq!(row[..], want, "{dtype:?}");
            }
        }
    }
    Ok(())
}
test_device!(not_a_number);

/// Windows over one vector: batch and inner dimension both have stride 1, so that most matrices start within a word.
fn overlapping(device: &Device) -> Result<()> {
    for dtype in FLOATS {
        assert_as_on_cpu(device, "windows", |device| {
            let windows = numbers(&[19], dtype)?.to_device(device)?.unfold(0, 16, 1)?;
            windows.unsqueeze(1)?.matmul(&windows.unsqueeze(2)?)
        })?;
        assert_as_on_cpu(device, "windows of windows", |device| {
            let t = numbers(&[43], dtype)?.to_device(device)?;
            let windows = t.unfold(0, 32, 1)?.unfold(1, 16, 16)?;
            windows.matmul(&windows.t()?)
        })?;
    }
    Ok(())
}
test_device!(overlapping);
