//! Quantised tensors and their products, compared with the same product with the dequantised weight, in every format.

use std::sync::Arc;

use candle_core::quantized::k_quants::{matmul, matmul_f16, BlockQ4K, BlockQ4_0, GgmlType};
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{DType, Device, IndexOp, Module, Result, Tensor};

use crate::agree::{assert_close, assert_same, Tolerance};

/// The weight formats.
const WEIGHTS: [GgmlDType; 13] = [
    GgmlDType::F32,
    GgmlDType::F16,
    GgmlDType::BF16,
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
];

const CPU: Device = Device::Cpu;

/// Returns pseudo-random numbers between -1 and 1.
fn noise(shape: &[usize], seed: u64) -> Result<Tensor> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let len = shape.iter().product();
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.
    };
    Tensor::from_vec((0..len).map(next).collect::<Vec<f32>>(), shape, &CPU)
}

fn weight(shape: &[usize], dtype: GgmlDType) -> Result<QTensor> {
    QTensor::quantize(&noise(shape, 3)?, dtype)
}

/// Returns the product with the dequantised weight `(n, k)`, in f32.
fn plain(x: &Tensor, weight: &QTensor) -> Result<Tensor> {
    let weight = weight.dequantize(&CPU)?;
    let x = x.to_dtype(DType::F32)?.contiguous()?;
    let (n, k) = weight.dims2()?;
    let rows = x.elem_count() / k.max(1);
    let mut shape = x.dims().to_vec();
    *shape.last_mut().unwrap() = n;
    x.reshape((rows, k))?.matmul(&weight.t()?)?.reshape(shape)
}

/// The dense side is rounded to 8 bits: the error is half a step of the block's largest element, and elements are at most that large. The
/// noise of `k` such errors remains below a hundredth of the bound from both rows' norms.
fn assert_near(got: &Tensor, want: &Tensor, k: usize, what: &str) -> Result<()> {
    // Norms of rows of k elements with uniform values between -1 and 1.
    let norms = k as f64 / 3.;
    let room = Tolerance::of(got.dtype(), 1e-5).or_absolute(0.01 * norms);
    assert_close(got, &want.to_dtype(got.dtype())?, room, what)
}

#[test]
fn products_of_every_format() -> Result<()> {
    for dtype in WEIGHTS {
        for k in [256, 768] {
            for n in [1, 3, 4, 7, 64, 66, 133] {
                let weight = weight(&[n, k], dtype)?;
                for m in [1, 2, 5, 31, 33, 70] {
                    if m > 5 && n != 7 && n != 133 {
                        continue;
                    }
                    let what = format!("{dtype:?} ({m}, {k}) with ({n}, {k})");
                    let x = noise(&[m, k], 5)?;
                    let got = x.apply_op1_no_bwd(&weight)?;
                    assert_eq!(got.dims(), &[m, n], "{what}");
                    assert_near(&got, &plain(&x, &weight)?, k, &what)?;
                }
            }
        }
    }
    Ok(())
}

/// 8 bits hold integers up to 127 exactly if every block contains 127; only the order of sums differs.
#[test]
fn products_are_exact_where_eight_bits_are() -> Result<()> {
    let (m, n, k) = (9, 37, 512);
    let integers = (noise(&[m, k], 8)? * 127.)?.round()?;
    let mut integers = integers.to_vec2::<f32>()?;
    for block in integers.iter_mut().flat_map(|row| row.chunks_mut(32)) {
        block[5] = 127.;
    }
    let x = Tensor::new(integers, &CPU)?;
    for dtype in WEIGHTS {
        let weight = weight(&[n, k], dtype)?;
        let got = x.apply_op1_no_bwd(&weight)?;
        // Sums of 512 products of up to 127: f32 rounding and, for 16-bit weights, the dense side rounded to 16 bits (exact).
        let room = Tolerance::of(DType::F32, 1e-4).or_absolute(0.05);
        assert_close(&got, &plain(&x, &weight)?, room, &format!("{dtype:?}"))?;
    }
    Ok(())
}

/// Rows depend neither on neighbouring rows nor on the number of threads.
#[test]
fn rows_alone_and_together() -> Result<()> {
    for dtype in [
        GgmlDType::Q4_0,
        GgmlDType::Q8_0,
        GgmlDType::Q4K,
        GgmlDType::Q6K,
    ] {
        let weight = weight(&[1030, 512], dtype)?;
        let x = noise(&[67, 512], 6)?;
        let all = x.apply_op1_no_bwd(&weight)?;
        for row in [0, 1, 31, 32, 66] {
            let alone = x.i(row..row + 1)?.apply_op1_no_bwd(&weight)?;
            let room = Tolerance::of(DType::F32, 1e-5).or_absolute(1e-4);
            assert_close(
                &all.i(row..row + 1)?,
                &alone,
                room,
                &format!("{dtype:?} {row}"),
            )?;
        }
    }
    Ok(())
}

/// A product inside another parallel section uses that section's pool, and gives the same result.
#[test]
fn products_in_a_pool() -> Result<()> {
    let weight = weight(&[515, 512], GgmlDType::Q4K)?;
    let x = noise(&[3, 512], 6)?;
    let want = x.apply_op1_no_bwd(&weight)?.to_vec2::<f32>()?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(3)
        .build()
        .unwrap();
    let inside = pool.install(|| x.apply_op1_no_bwd(&weight)?.to_vec2::<f32>())?;
    assert_eq!(inside, want);
    let both = std::thread::scope(|scope| {
        let product = || x.apply_op1_no_bwd(&weight)?.to_vec2::<f32>();
        [scope.spawn(product), scope.spawn(product)].map(|thread| thread.join().unwrap())
    });
    for product in both {
        assert_eq!(product?, want);
    }
    Ok(())
}

#[test]
fn gradients() -> Result<()> {
    for dtype in [GgmlDType::Q4_0, GgmlDType::Q6K, GgmlDType::F32] {
        let weight = weight(&[5, 256], dtype)?;
        let dense = weight.dequantize(&CPU)?;
        let layer = QMatMul::from_qtensor(weight)?;
        let x = candle_core::Var::from_tensor(&noise(&[2, 3, 256], 1)?)?;
        let scale = noise(&[2, 3, 5], 2)?;
        let grads = (layer.forward(&x)? * &scale)?.sum_all()?.backward()?;
        let got = grads.get(&x).expect("a gradient");
        let want = scale
            .reshape((6, 5))?
            .matmul(&dense)?
            .reshape((2, 3, 256))?;
        let room = Tolerance::of(DType::F32, 1e-5).or_absolute(1e-5);
        assert_close(got, &want, room, &format!("{dtype:?}"))?;
    }
    Ok(())
}

#[test]
fn layouts_batches_and_dtypes() -> Result<()> {
    let weight = weight(&[5, 256], GgmlDType::Q5K)?;
    let x = noise(&[3, 2, 256], 1)?;
    let views = [
        ("contiguous", x.clone()),
        ("batches swapped", x.transpose(0, 1)?),
        ("offset", x.narrow(0, 1, 2)?),
        ("columns", noise(&[256, 4], 2)?.t()?),
        ("broadcast", x.narrow(1, 0, 1)?.broadcast_as((3, 7, 256))?),
        ("four dimensions", x.reshape((1, 3, 2, 256))?),
        ("no rows", x.narrow(1, 0, 0)?),
    ];
    for (what, x) in views {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let x = x.to_dtype(dtype)?;
            let got = x.apply_op1_no_bwd(&weight)?;
            assert_eq!(got.dtype(), dtype);
            assert_near(&got, &plain(&x, &weight)?, 256, what)?;
        }
    }
    let none = QTensor::quantize(&Tensor::zeros((0, 32), DType::F32, &CPU)?, GgmlDType::Q4_0)?;
    let got = noise(&[2, 32], 1)?.apply_op1_no_bwd(&none)?;
    assert_eq!(got.dims(), &[2, 0]);
    Ok(())
}

#[test]
fn what_does_not_go_together() -> Result<()> {
    let weight = weight(&[5, 256], GgmlDType::Q4K)?;
    let error = |x: Result<Tensor>| x.and_then(|x| x.apply_op1_no_bwd(&weight)).unwrap_err();
    let wrong_k = error(noise(&[2, 128], 1)).to_string();
    assert!(
        wrong_k.contains("[2, 128]") && wrong_k.contains("[5, 256]"),
        "{wrong_k}"
    );
    let vector = error(noise(&[256], 1)).to_string();
    assert!(vector.contains("[256]"), "{vector}");
    let integers = error(Tensor::zeros((2, 256), DType::U32, &CPU)).to_string();
    assert!(
        integers.contains("U32") && integers.contains("qmatmul"),
        "{integers}"
    );

    let blocks = vec![BlockQ4_0::zeros(); 2];
    let refused = |mkn, lhs: usize, dst: usize| {
        let err = matmul(mkn, &vec![0.; lhs], &blocks, &mut vec![0.; dst]).unwrap_err();
        err.to_string()
    };
    assert!(refused((1, 33, 2), 33, 2).contains("block size 32"));
    assert!(refused((2, 32, 2), 32, 4).contains("lhs has 32"));
    assert!(refused((1, 32, 3), 32, 3).contains("rhs has 2 blocks"));
    // Not an `Err`, as upstream has none: a panic before anything is written.
    let short = std::panic::catch_unwind(|| refused((2, 32, 2), 64, 3)).unwrap_err();
    let short = short.downcast_ref::<String>().expect("a text");
    assert!(short.contains("dst too small: it has 3"), "{short}");
    assert!(refused((usize::MAX, 32, 2), 64, 3).contains("lhs has 64"));
    let mut dst = [half::f16::ONE; 2];
    matmul_f16((1, 32, 2), &[half::f16::ONE; 32], &blocks, &mut dst)?;
    assert_eq!(dst, [half::f16::ZERO; 2]);

    let x = noise(&[2, 48], 1)?;
    let message = |result: Result<QTensor>| result.unwrap_err().to_string();
    let no_blocks = message(QTensor::quantize(&x, GgmlDType::Q4_0));
    assert!(
        no_blocks.contains("[2, 48]") && no_blocks.contains("block size 32"),
        "{no_blocks}"
    );
    let scalar = message(QTensor::quantize(&Tensor::new(1f32, &CPU)?, GgmlDType::F32));
    assert!(scalar.contains("scalar"), "{scalar}");
    let bytes = vec![0u8; 35];
    let partial = QStorage::from_data(bytes.into(), &CPU, GgmlDType::Q8_0);
    let partial = partial.map(|_| ()).unwrap_err().to_string();
    assert!(
        partial.contains("35 bytes") && partial.contains("34"),
        "{partial}"
    );
    let few = QStorage::from_data(vec![0u8; 34].into(), &CPU, GgmlDType::Q8_0)?;
    let few = message(QTensor::new(few, (2, 32)));
    assert!(few.contains("68 bytes") && few.contains("34"), "{few}");
    Ok(())
}

#[test]
fn bytes_in_and_out() -> Result<()> {
    for dtype in WEIGHTS.into_iter().chain([GgmlDType::Q8_1, GgmlDType::Q8K]) {
        let weight = weight(&[3, 256], dtype)?;
        assert_eq!(weight.rank(), 2);
        assert_eq!(
            weight.storage_size_in_bytes(),
            3 * 256 / dtype.block_size() * dtype.type_size()
        );
        let bytes = weight.data()?.into_owned();
        let from = |data: std::borrow::Cow<'_, [u8]>| {
            QTensor::new(QStorage::from_data(data, &CPU, dtype)?, (3, 256))
        };
        // At an odd address, too.
        let shifted = [&[0u8], &bytes[..]].concat();
        let copies = [from((&bytes[..]).into())?, from((&shifted[1..]).into())?];
        let place = bytes.as_ptr();
        let owned = from(bytes.into())?;
        // An allocation of this size is aligned to more than a float.
        assert_eq!(owned.device_ptr()?, place, "{dtype:?} is used where it is");
        let values = weight.dequantize(&CPU)?;
        for other in copies.iter().chain([&owned]) {
            assert_eq!(other.data()?, weight.data()?);
            assert_same(&other.dequantize(&CPU)?, &values, "dequantize")?;
            let x = noise(&[1, 256], 4)?;
            let product = x.apply_op1_no_bwd(&weight)?;
            assert_same(&x.apply_op1_no_bwd(other)?, &product, "product")?;
        }
        let halves = weight.dequantize_f16(&CPU)?;
        assert_same(&halves, &values.to_dtype(DType::F16)?, "dequantize_f16")?;
        // The round trip is as accurate as the format allows: the coarsest has 2 bits.
        let lost = (values - noise(&[3, 256], 3)?)?
            .abs()?
            .mean_all()?
            .to_scalar::<f32>()?;
        assert!(lost < 0.12, "{dtype:?} loses {lost}");
    }
    Ok(())
}

#[test]
fn sizes_of_blocks() {
    let blocks: [(GgmlDType, usize, usize); 15] = [
        (GgmlDType::F32, 1, 4),
        (GgmlDType::F16, 1, 2),
        (GgmlDType::BF16, 1, 2),
        (GgmlDType::Q4_0, 32, 18),
        (GgmlDType::Q4_1, 32, 20),
        (GgmlDType::Q5_0, 32, 22),
        (GgmlDType::Q5_1, 32, 24),
        (GgmlDType::Q8_0, 32, 34),
        (GgmlDType::Q8_1, 32, 36),
        (GgmlDType::Q2K, 256, 84),
        (GgmlDType::Q3K, 256, 110),
        (GgmlDType::Q4K, 256, 144),
        (GgmlDType::Q5K, 256, 176),
        (GgmlDType::Q6K, 256, 210),
        (GgmlDType::Q8K, 256, 292),
    ];
    for (dtype, elements, bytes) in blocks {
        assert_eq!(dtype.block_size(), elements, "{dtype:?}");
        assert_eq!(dtype.type_size(), bytes, "{dtype:?}");
        let zeros = dtype.cpu_zeros(2 * elements);
        assert_eq!(zeros.storage_size_in_bytes(), 2 * bytes);
        assert_eq!((zeros.dtype(), zeros.block_size()), (dtype, elements));
    }
}

#[test]
fn embedding() -> Result<()> {
    let table = weight(&[7, 256], GgmlDType::Q4K)?;
    let rows = table.dequantize(&CPU)?;
    for dtype in [DType::U8, DType::U32, DType::I64] {
        let ids = Tensor::new(&[[6u8, 0, 3], [3, 3, 1]], &CPU)?.to_dtype(dtype)?;
        let got = table.embedding(&ids)?;
        let want = rows
            .index_select(&ids.flatten_all()?, 0)?
            .reshape((2, 3, 256))?;
        assert_same(&got, &want, "ids")?;
        assert_same(
            &table.embedding(&ids.t()?)?,
            &want.transpose(0, 1)?,
            "ids transposed",
        )?;
    }
    let none = Tensor::zeros((0, 2), DType::U32, &CPU)?;
    assert_eq!(table.embedding(&none)?.dims(), &[0, 2, 256]);
    let past = table
        .embedding(&Tensor::new(&[7u32], &CPU)?)
        .unwrap_err()
        .to_string();
    assert!(
        past.contains("index 7") && past.contains("size 7"),
        "{past}"
    );
    for id in [-1i64, 1 << 32] {
        let err = table
            .embedding(&Tensor::new(&[id], &CPU)?)
            .unwrap_err()
            .to_string();
        assert!(err.contains(&id.to_string()), "{err}");
    }
    let dense = QMatMul::Tensor(rows.clone());
    let shared = QMatMul::from_qtensor(table)?;
    let ids = Tensor::new(&[[2u32], [5]], &CPU)?;
    assert_same(&dense.embedding(&ids)?, &shared.embedding(&ids)?, "QMatMul")
}

#[test]
fn mixture_of_experts() -> Result<()> {
    let (experts, n, k) = (4, 6, 256);
    for dtype in [GgmlDType::Q4K, GgmlDType::Q8_0, GgmlDType::F16] {
        let weight = Arc::new(weight(&[experts, n, k], dtype)?);
        let dense = weight.dequantize(&CPU)?;
        let ids = Tensor::new(&[[3u32, 0], [1, 3], [0, 0]], &CPU)?;
        for (slots, float) in [(1, DType::F32), (2, DType::F32), (2, DType::F16)] {
            let x = noise(&[3, slots, k], 9)?.to_dtype(float)?;
            let got = weight.indexed_moe_forward(&x, &ids)?;
            assert_eq!(got.dims(), &[3, 2, n]);
            for (token, ids) in ids.to_vec2::<u32>()?.into_iter().enumerate() {
                for (slot, id) in ids.into_iter().enumerate() {
                    let row = x.i((token, slot.min(slots - 1)))?.unsqueeze(0)?;
                    let want = row
                        .to_dtype(DType::F32)?
                        .matmul(&dense.i(id as usize)?.t()?)?
                        .squeeze(0)?;
                    assert_near(&got.i((token, slot))?, &want, k, &format!("{dtype:?}"))?;
                }
            }
            let quantized = QMatMul::QTensor(weight.clone());
            assert_same(&quantized.indexed_moe_forward(&x, &ids)?, &got, "QMatMul")?;
            let halves = QMatMul::TensorF16(dense.to_dtype(DType::F16)?);
            let halves = halves.indexed_moe_forward(&x, &ids)?;
            assert_near(&halves, &got, k, "f16")?;
        }
        let bad = Tensor::new(&[[4u32, 0]], &CPU)?;
        let x = noise(&[1, 1, k], 9)?;
        let err = weight
            .indexed_moe_forward(&x, &bad)
            .unwrap_err()
            .to_string();
        assert!(
            err.contains("expert 4 is out of range; there are 4"),
            "{err}"
        );
        let err = weight
            .indexed_moe_forward(&x, &ids)
            .unwrap_err()
            .to_string();
        assert!(
            err.contains("[1, 1, 256]") && err.contains("[3, 2]"),
            "{err}"
        );
        let none = weight.indexed_moe_forward(&noise(&[0, 1, k], 1)?, &ids.narrow(0, 0, 0)?)?;
        assert_eq!(none.dims(), &[0, 2, n]);
    }
    Ok(())
}

#[test]
fn which_weights_are_dense() -> Result<()> {
    let x = noise(&[2, 3, 256], 2)?;
    for dtype in WEIGHTS {
        let weight = Arc::new(weight(&[5, 256], dtype)?);
        let layer = QMatMul::from_arc(weight.clone())?;
        let dense = matches!(dtype, GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16);
        assert_eq!(matches!(layer, QMatMul::Tensor(_)), dense, "{dtype:?}");
        assert_eq!(matches!(layer, QMatMul::QTensor(_)), !dense, "{dtype:?}");
        let want = plain(&x, &weight)?;
        assert_near(&layer.forward(&x)?, &want, 256, "forward")?;
        let f16 = weight.dequantize_f16(&CPU)?;
        assert_same(&layer.dequantize_f16()?, &f16, "dequantize_f16")?;
        assert_near(&layer.forward_via_f16(&x)?, &want, 256, "forward_via_f16")?;
        let halves = QMatMul::TensorF16(f16);
        assert_near(&halves.forward(&x)?, &want, 256, "TensorF16")?;
        assert_near(&halves.forward(&x.i(0)?)?, &want.i(0)?, 256, "a matrix")?;
    }
    Ok(())
}

/// The environment applies to the whole process, so the test runs in a child process.
#[test]
fn dense_weights_on_demand() -> Result<()> {
    let layer = QMatMul::from_qtensor(weight(&[2, 32], GgmlDType::Q4_0)?)?;
    let kind = match &layer {
        QMatMul::QTensor(_) => "quantized",
        QMatMul::Tensor(_) => "f32",
        QMatMul::TensorF16(_) => "f16",
    };
    const EXPECTED: &str = "CANDLE_TEST_EXPECTED_WEIGHT";
    if let Ok(expected) = std::env::var(EXPECTED) {
        assert_eq!(kind, expected);
        return Ok(());
    }
    assert_eq!(kind, "quantized");
    for (variable, value, expected) in [
        ("CANDLE_DEQUANTIZE_ALL", "1", "f32"),
        ("CANDLE_DEQUANTIZE_ALL", "0", "quantized"),
        ("CANDLE_DEQUANTIZE_ALL", "", "quantized"),
        ("CANDLE_DEQUANTIZE_ALL_F16", "1", "f16"),
    ] {
        let status = std::process::Command::new(std::env::current_exe()?)
            .args(["--exact", "quantized_api::dense_weights_on_demand"])
            .env(variable, value)
            .env(EXPECTED, expected)
            .stdout(std::process::Stdio::null())
            .status()?;
        assert!(
            status.success(),
            "{variable}={value} does not give {expected}"
        );
    }
    Ok(())
}

/// With importance weights, errors move to the columns with small weights.
#[test]
fn importance() -> Result<()> {
    let x = noise(&[16, 256], 11)?;
    let weights: Vec<f32> = (0..256)
        .map(|i| if i % 3 == 0 { 100. } else { 0.1 })
        .collect();
    let by_column = Tensor::new(&weights[..], &CPU)?;
    for dtype in WEIGHTS {
        let lost = |quantized: QTensor| -> Result<f32> {
            let error = (quantized.dequantize(&CPU)? - &x)?.sqr()?;
            error
                .broadcast_mul(&by_column)?
                .sum_all()?
                .to_scalar::<f32>()
        };
        let plain = lost(QTensor::quantize(&x, dtype)?)?;
        let weighted = lost(QTensor::quantize_imatrix(&x, &weights, dtype)?)?;
        assert!(
            weighted <= plain * 1.001,
            "{dtype:?}: {weighted} with weights, {plain} without"
        );
        let k_quant = dtype.block_size() == 256;
        assert!(
            !k_quant || weighted < plain,
            "{dtype:?}: {weighted} with weights, {plain} without"
        );
    }
    let onto = QTensor::quantize_imatrix_onto(&x, &weights, GgmlDType::Q4K, &CPU)?;
    let same = QTensor::quantize_imatrix(&x, &weights, GgmlDType::Q4K)?;
    assert_eq!(onto.data()?, same.data()?);
    assert_eq!(
        QTensor::quantize_onto(&x, GgmlDType::Q4K, &CPU)?.data()?,
        QTensor::quantize(&x.to_dtype(DType::F64)?, GgmlDType::Q4K)?.data()?
    );
    let err = QTensor::quantize_imatrix(&x, &weights[1..], GgmlDType::Q4K);
    let err = err.unwrap_err().to_string();
    assert!(
        err.contains("255 weights") && err.contains("256 columns"),
        "{err}"
    );
    Ok(())
}

#[test]
fn debug_text() -> Result<()> {
    let weight = weight(&[2, 256], GgmlDType::Q6K)?;
    assert_eq!(format!("{weight:?}"), "QTensor[[2, 256]; Q6K]");
    assert!(weight.device().is_cpu());
    assert_eq!(BlockQ4K::DTYPE, GgmlDType::Q4K);
    Ok(())
}
