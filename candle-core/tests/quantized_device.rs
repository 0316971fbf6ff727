//! Quantised tensors on every device, compared with the CPU's decoder and with plain products of the decoded weights.

use std::io::Cursor;
use std::sync::Arc;

use candle_core::quantized::gguf_file::Content;
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{test_device, DType, Device, IndexOp, Module, Result, Tensor};
use half::f16;

use crate::agree::{assert_close, assert_same, runs_fewer, Tolerance};

const CPU: Device = Device::Cpu;

/// Every format, with the byte offsets of its f16 fields within a block.
const FORMATS: [(GgmlDType, &[usize]); 15] = [
    (GgmlDType::F32, &[]),
    (GgmlDType::F16, &[0]),
    (GgmlDType::BF16, &[]),
    (GgmlDType::Q4_0, &[0]),
    (GgmlDType::Q4_1, &[0, 2]),
    (GgmlDType::Q5_0, &[0]),
    (GgmlDType::Q5_1, &[0, 2]),
    (GgmlDType::Q8_0, &[0]),
    (GgmlDType::Q8_1, &[0, 2]),
    (GgmlDType::Q2K, &[80, 82]),
    (GgmlDType::Q3K, &[108]),
    (GgmlDType::Q4K, &[0, 2]),
    (GgmlDType::Q5K, &[0, 2]),
    (GgmlDType::Q6K, &[208]),
    (GgmlDType::Q8K, &[]),
];

fn has_minimum(dtype: GgmlDType) -> bool {
    use GgmlDType::*;
    matches!(dtype, Q4_1 | Q5_1 | Q2K | Q4K | Q5K)
}

/// Returns a pseudo-random generator.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 20
    }
}

/// Returns pseudo-random numbers between -1 and 1.
fn noise(shape: &[usize], seed: u64) -> Result<Tensor> {
    let mut next = random(seed);
    let len = shape.iter().product();
    let number = |_| (next() & 0xff_ffff) as f32 / (1 << 23) as f32 - 1.;
    Tensor::from_vec((0..len).map(number).collect::<Vec<f32>>(), shape, &CPU)
}

/// Returns random blocks with scales between -1 and 1.
fn any_bits(dtype: GgmlDType, halves: &[usize], elements: usize) -> Vec<u8> {
    let mut next = random(7 + dtype as u64);
    let len = elements / dtype.block_size() * dtype.type_size();
    let mut bytes: Vec<u8> = (0..len).map(|_| next() as u8).collect();
    for block in bytes.chunks_exact_mut(dtype.type_size()) {
        let mut scale = || (next() & 0xffff) as f32 / (1 << 15) as f32 - 1.;
        for &at in halves {
            block[at..at + 2].copy_from_slice(&f16::from_f32(scale()).to_le_bytes());
        }
        match dtype {
            GgmlDType::F32 | GgmlDType::Q8K => {
                block[..4].copy_from_slice(&scale().to_le_bytes());
            }
            GgmlDType::BF16 => {
                block.copy_from_slice(&half::bf16::from_f32(scale()).to_le_bytes());
            }
            _ => (),
        }
    }
    bytes
}

fn tensor(
    dtype: GgmlDType,
    bytes: &[u8],
    shape: (usize, usize),
    device: &Device,
) -> Result<QTensor> {
    QTensor::new(QStorage::from_data(bytes.into(), device, dtype)?, shape)
}

fn decoded_as_on_the_cpu(device: &Device) -> Result<()> {
    for (dtype, halves) in FORMATS {
        // One block; an odd number of blocks, which ends within a unit of the device's layout; many.
        for (rows, blocks) in [(1, 1), (3, 1), (5, 3), (64, 8)] {
            let shape = (rows, blocks * dtype.block_size());
            let bytes = any_bits(dtype, halves, shape.0 * shape.1);
            let what = format!("{dtype:?} {shape:?}");
            let weight = tensor(dtype, &bytes, shape, device)?;
            assert!(weight.device().same_device(device));
            assert_eq!((weight.dtype(), weight.rank()), (dtype, 2));
            assert_eq!(weight.storage_size_in_bytes(), bytes.len());
            assert_eq!(&*weight.data()?, bytes, "{what}");
            let want = tensor(dtype, &bytes, shape, &CPU)?;
            // The CPU rounds twice (the product, then the subtraction of the minimum), a GPU that fuses them once; a product is at most 63
            // * 31.
            let room = if has_minimum(dtype) {
                Tolerance::EXACT.or_absolute(63. * 31. * 2f64.powi(-23))
            } else {
                Tolerance::EXACT
            };
            let got = weight.dequantize(device)?;
            assert!(got.device().same_device(device));
            assert_close(&got, &want.dequantize(&CPU)?, room, &what)?;
            assert_close(
                &weight.dequantize(&CPU)?,
                &want.dequantize(&CPU)?,
                room,
                &what,
            )?;
            let got = weight.dequantize_f16(device)?;
            let step = Tolerance {
                relative: if has_minimum(dtype) {
                    2f64.powi(-10)
                } else {
                    0.
                },
                ..room
            };
            assert_close(&got, &want.dequantize_f16(&CPU)?, step, &what)?;
        }
    }
    Ok(())
}

/// Returns the tolerance between a product of `k` numbers between -1 and 1 and the same product in f32 with the decoded weight, whose
/// elements have the same range. All devices round `x` to 8 bits if it has few rows; GPUs with cooperative matrices round both sides to f16
/// if it has many.
fn products_tolerance(device: &Device, dtype: DType, k: usize) -> Tolerance {
    let absolute = match device {
        Device::Cpu => 0.01 * k as f64 / 3.,
        // The error of an element is uniform, at most 1 / 254; that of a product with a uniform weight is 0.0013 on average, and that of a
        // sum of `k` the root of `k` times as large. This is six times as much.
        _ => 0.008 * (k as f64).sqrt(),
    };
    let f16 = match device {
        Device::Cpu | Device::Cuda(_) => 0.,
        gpu if gpu.is_software_gpu() => 0.,
        _ => 2f64.powi(-10) * k as f64,
    };
    Tolerance::of(dtype, 1e-5).or_absolute(absolute.max(f16))
}

/// Returns the product with the decoded weight `(n, k)`, in f32 on the CPU.
fn plain(x: &Tensor, weight: &QTensor) -> Result<Tensor> {
    let weight = weight.dequantize(&CPU)?;
    let x = x.to_device(&CPU)?.to_dtype(DType::F32)?.contiguous()?;
    let (n, k) = weight.dims2()?;
    let mut shape = x.dims().to_vec();
    *shape.last_mut().unwrap() = n;
    let rows = x.elem_count() / k;
    x.reshape((rows, k))?.matmul(&weight.t()?)?.reshape(shape)
}

fn products_of_every_format(device: &Device) -> Result<()> {
    let formats = FORMATS.map(|(dtype, _)| dtype);
    products_within(device, &formats, |k| {
        products_tolerance(device, DType::F32, k)
    })
}

fn products_within(
    device: &Device,
    formats: &[GgmlDType],
    room: impl Fn(usize) -> Tolerance,
) -> Result<()> {
    // Rows around those of a vector kernel and of a tile; columns that fill neither.
    let all = [1, 2, 3, 8, 9, 33, 64, 65];
    for (i, &dtype) in formats.iter().enumerate() {
        // By day a software adapter, which compiles a kernel for each, tests different row counts for each format.
        let (first, step) = if runs_fewer(device) {
            (i % 3, 3)
        } else {
            (0, 1)
        };
        for (n, blocks, rows) in [(1, 1, &all[..1]), (7, 3, &all[..5]), (131, 5, &all[..])] {
            let k = blocks * dtype.block_size().max(32);
            let weight = QTensor::quantize(&noise(&[n, k], 3)?, dtype)?;
            let ours = QStorage::from_data(weight.data()?, device, dtype)?;
            let ours = QTensor::new(ours, (n, k))?;
            for &m in rows.iter().skip(first).step_by(step) {
                let x = noise(&[m, k], 5)?;
                let got = x.to_device(device)?.apply_op1_no_bwd(&ours)?;
                let what = format!("{dtype:?} ({m}, {k}) with ({n}, {k})");
                assert_close(&got, &plain(&x, &weight)?, room(k), &what)?;
            }
        }
    }
    Ok(())
}

/// Returns the formats of quantised elements.
fn quantised() -> impl Iterator<Item = GgmlDType> {
    let formats = FORMATS.into_iter().map(|(dtype, _)| dtype);
    formats.filter(|dtype| dtype.block_size() > 1)
}

/// Activations scaled by a power of two scale the product likewise, even far beyond the range of f16.
fn activations_of_any_size(device: &Device) -> Result<()> {
    for dtype in quantised() {
        let (n, k) = (35, 512);
        let weight = QTensor::quantize(&noise(&[n, k], 3)?, dtype)?;
        let ours = QStorage::from_data(weight.data()?, device, dtype)?;
        let ours = QTensor::new(ours, (n, k))?;
        for m in [1, 3, 9] {
            let x = noise(&[m, k], 5)?;
            let want = plain(&x, &weight)?;
            for power in [-60, -24, -14, 14, 24, 60] {
                let by = 2f64.powi(power);
                let got = (&x * by)?.to_device(device)?.apply_op1_no_bwd(&ours)?;
                let got = (got.to_device(&CPU)? * by.recip())?;
                let what = format!("{dtype:?}, {m} rows, 2^{power}");
                assert_close(
                    &got,
                    &want,
                    products_tolerance(device, DType::F32, k),
                    &what,
                )?;
            }
        }
    }
    Ok(())
}

/// The product of a row that contains a NaN is NaN; the other rows do not change.
fn no_numbers_stay_in_their_row(device: &Device) -> Result<()> {
    for dtype in quantised() {
        let (n, k) = (35, 512);
        let weight = QTensor::quantize_onto(&noise(&[n, k], 3)?, dtype, device)?;
        for m in [2, 3, 9, 33] {
            let x = noise(&[m, k], 5)?;
            let right = x.to_device(device)?.apply_op1_no_bwd(&weight)?;
            let right = right.to_vec2::<f32>()?;
            for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut rows = x.to_vec2::<f32>()?;
                rows[1][300] = odd;
                let got = Tensor::new(rows, device)?.apply_op1_no_bwd(&weight)?;
                for (row, (got, right)) in got.to_vec2::<f32>()?.iter().zip(&right).enumerate() {
                    let what = format!("{dtype:?}, row {row} of {m}, {odd}: {got:?}");
                    if row == 1 {
                        assert!(got.iter().all(|y| !y.is_finite()), "{what}");
                    } else {
                        assert_eq!(got, right, "{what}");
                    }
                }
            }
        }
    }
    Ok(())
}

/// The test above on a device without the features in `without`, with f32 sums of operands rounded to at least as many bits.
#[cfg(feature = "webgpu")]
fn products_in_f32(without: &str) -> Result<()> {
    let options = candle_core::webgpu_backend::Options {
        without: without.into(),
        ..Default::default()
    };
    let device = candle_core::WebGpuDevice::with_options(0, &options)?;
    // Another GPU computes in f32 with different rounding.
    let room = |k| Tolerance::of(DType::F32, 1e-5).or_absolute(2f64.powi(-22) * k as f64);
    // One format for each number of planes; candle-nn's tests cover the others.
    let formats = [
        GgmlDType::Q4_0,
        GgmlDType::Q5_1,
        GgmlDType::Q6K,
        GgmlDType::Q3K,
    ];
    products_within(&Device::WebGpu(device), &formats, room)
}

#[cfg(feature = "webgpu")]
#[test]
fn products_without_int8_webgpu() -> Result<()> {
    products_in_f32("-int8,-coop")
}

#[cfg(feature = "webgpu")]
#[test]
fn products_without_subgroups_webgpu() -> Result<()> {
    products_in_f32("-subgroups")
}

fn layouts_batches_and_dtypes(device: &Device) -> Result<()> {
    let x = noise(&[3, 2, 256], 1)?;
    let views = [
        ("contiguous", x.clone()),
        ("batches swapped", x.transpose(0, 1)?),
        ("offset", x.narrow(0, 1, 2)?),
        (
            "offset by one",
            noise(&[2, 257], 4)?
                .flatten_all()?
                .narrow(0, 1, 512)?
                .reshape((2, 256))?,
        ),
        ("columns", noise(&[256, 4], 2)?.t()?),
        ("part of rows", noise(&[3, 300], 2)?.narrow(1, 4, 256)?),
        ("broadcast", x.narrow(1, 0, 1)?.broadcast_as((3, 7, 256))?),
        ("four dimensions", x.reshape((1, 3, 2, 256))?),
        ("no rows", x.narrow(1, 0, 0)?),
    ];
    for format in [GgmlDType::Q4_0, GgmlDType::Q5K, GgmlDType::F16] {
        for n in [5, 6] {
            let weight = QTensor::quantize(&noise(&[n, 256], 3)?, format)?;
            let ours = QTensor::quantize_onto(&noise(&[n, 256], 3)?, format, device)?;
            let layer = QMatMul::QTensor(Arc::new(ours));
            for (what, x) in &views {
                for dtype in [DType::F32, DType::F16, DType::BF16] {
                    let x = x.to_dtype(dtype)?;
                    let got = layer.forward(&x.to_device(device)?)?;
                    assert_eq!(got.dtype(), dtype);
                    let room = products_tolerance(device, dtype, 256).or_absolute(match format {
                        // The plain product of such a weight in bf16 converts the weight to bf16.
                        GgmlDType::F16 if dtype == DType::BF16 => 0.5,
                        _ => 0.,
                    });
                    let want = plain(&x, &weight)?.to_dtype(dtype)?;
                    assert_close(&got, &want, room, &format!("{format:?} {dtype:?} {what}"))?;
                }
            }
        }
    }
    Ok(())
}

/// Calls of a model: every kind of weight, and a gradient through it.
fn layers(device: &Device) -> Result<()> {
    let dense = noise(&[66, 512], 3)?;
    let x = noise(&[2, 3, 512], 5)?;
    for dtype in [
        GgmlDType::Q4K,
        GgmlDType::Q8_0,
        GgmlDType::F16,
        GgmlDType::BF16,
    ] {
        let weight = QTensor::quantize_onto(&dense, dtype, device)?;
        let want = plain(&x, &weight)?;
        let layer = QMatMul::from_qtensor(weight)?;
        let room = products_tolerance(device, DType::F32, 512);
        let got = layer.forward(&x.to_device(device)?)?;
        assert_close(&got, &want, room, &format!("{dtype:?}"))?;
        let f16 = Tolerance::of(DType::F16, 1e-3).or_absolute(0.1);
        let got = layer.forward_via_f16(&x.to_device(device)?)?;
        assert_close(&got, &want, f16, &format!("{dtype:?} via f16"))?;
        let half = QMatMul::TensorF16(layer.dequantize_f16()?);
        let got = half.forward(&x.to_device(device)?)?;
        assert_close(&got, &want, f16, &format!("{dtype:?} as f16"))?;
    }
    let weight = QTensor::quantize_onto(&dense, GgmlDType::Q5_0, device)?;
    let scale = noise(&[2, 3, 66], 2)?;
    let want = scale.reshape((6, 66))?.matmul(&weight.dequantize(&CPU)?)?;
    let layer = QMatMul::from_qtensor(weight)?;
    let x = candle_core::Var::from_tensor(&x.to_device(device)?)?;
    let loss = (layer.forward(&x)? * scale.to_device(device)?)?.sum_all()?;
    let grads = loss.backward()?;
    let got = grads.get(&x).expect("a gradient").reshape((6, 512))?;
    let near = Tolerance::of(DType::F32, 1e-5).or_absolute(1e-4);
    assert_close(&got, &want, near, "gradient")
}

fn rows_by_id(device: &Device) -> Result<()> {
    for (dtype, _) in FORMATS {
        let dense = noise(&[9, 512], 3)?;
        let table = QTensor::quantize_onto(&dense, dtype, device)?;
        let all = table.dequantize(device)?;
        let ids = Tensor::new(&[[8u32, 0, 3], [3, 8, 1]], device)?;
        for ids in [
            ids.clone(),
            ids.t()?,
            ids.i((.., 1..))?,
            ids.to_dtype(DType::I64)?,
        ] {
            let got = table.embedding(&ids)?;
            let want = all.index_select(&ids.flatten_all()?, 0)?;
            let mut shape = ids.dims().to_vec();
            shape.push(512);
            assert_same(&got, &want.reshape(shape)?, &format!("{dtype:?}"))?;
        }
        assert_eq!(table.embedding(&ids.i((..0, ..))?)?.dims(), [0, 3, 512]);
        // A GPU reports the error with the first read.
        let beyond = Tensor::new(&[0u32, 9], device)?;
        let read = || table.embedding(&beyond)?.to_vec2::<f32>();
        let error = read().unwrap_err().to_string();
        assert!(error.contains('9'), "{dtype:?}: {error}");
    }
    Ok(())
}

fn experts(device: &Device) -> Result<()> {
    let (count, n, k) = (4, 6, 512);
    for dtype in [GgmlDType::Q4_0, GgmlDType::Q6K] {
        let dense = noise(&[count, n, k], 3)?;
        let weight = QTensor::quantize_onto(&dense, dtype, device)?;
        let plain = weight.dequantize(&CPU)?;
        let x = noise(&[5, 2, k], 5)?;
        let ids = Tensor::new(&[[3u32, 0], [1, 3], [2, 2], [0, 1], [3, 1]], &CPU)?;
        let got = weight.indexed_moe_forward(&x.to_device(device)?, &ids.to_device(device)?)?;
        for (token, experts) in ids.to_vec2::<u32>()?.iter().enumerate() {
            for (slot, expert) in experts.iter().enumerate() {
                let row = x.i((token, slot..slot + 1))?;
                let want = row.matmul(&plain.i(*expert as usize)?.t()?)?;
                let what = format!("{dtype:?} token {token} expert {expert}");
                let got = got.i((token, slot..slot + 1))?;
                assert_close(
                    &got,
                    &want,
                    products_tolerance(device, DType::F32, k),
                    &what,
                )?;
            }
        }
    }
    Ok(())
}

/// Products of rows with the matrices chosen for them, without a read of the choice where a device has a kernel; the results equal those
/// with a read.
fn chosen_experts(device: &Device) -> Result<()> {
    let (count, n, k) = (4, 6, 512);
    let ids = Tensor::new(&[[3u32, 0], [1, 3], [2, 2], [0, 1], [3, 1]], device)?;
    let dense = noise(&[count, n, k], 3)?;
    let mut weights = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let dense = dense.to_device(device)?.to_dtype(dtype)?;
        weights.push((QMatMul::Tensor(dense), dtype, format!("{dtype:?}")));
    }
    for dtype in [
        GgmlDType::Q4_0,
        GgmlDType::Q8_0,
        GgmlDType::Q4K,
        GgmlDType::Q6K,
        GgmlDType::F32,
    ] {
        let weight = QTensor::quantize_onto(&dense, dtype, device)?;
        weights.push((
            QMatMul::QTensor(Arc::new(weight)),
            DType::F32,
            format!("{dtype:?} blocks"),
        ));
    }
    for (weight, dtype, what) in weights {
        // All experts of a token share a row, each has a row, and rows at an offset and out of order.
        let rows = noise(&[5, 3, k + 8], 5)?
            .to_device(device)?
            .to_dtype(dtype)?;
        let inputs = [
            rows.i((.., ..1, ..k))?.contiguous()?,
            rows.i((.., ..2, ..k))?.contiguous()?,
            rows.i((.., 1.., 8..))?,
        ];
        for x in inputs {
            let Some(got) = weight.expert_rows(&x, &ids)? else {
                assert!(device.is_cpu(), "{what}: there is a kernel");
                continue;
            };
            let want = weight.indexed_moe_forward(&x, &ids)?;
            assert_eq!((got.dims(), got.dtype()), (want.dims(), dtype), "{what}");
            assert_close(&got, &want, products_tolerance(device, dtype, k), &what)?;
        }
        if device.is_cpu() {
            continue;
        }
        // Non-contiguous ids, and ids of another dtype.
        let x = rows.i((.., ..1, ..k))?.contiguous()?;
        let few = ids.narrow(1, 1, 1)?;
        let got = weight.expert_rows(&x, &few.to_dtype(DType::I64)?)?;
        let want = weight.indexed_moe_forward(&x, &few)?;
        let got = got.expect("there is a kernel");
        assert_close(&got, &want, products_tolerance(device, dtype, k), &what)?;
        let got = weight.expert_rows(&x, &few)?.expect("there is a kernel");
        assert_close(&got, &want, products_tolerance(device, dtype, k), &what)?;
        // A GPU reports the error with the first read.
        let beyond = Tensor::new(&[[4u32], [0], [0], [0], [0]], device)?;
        let got = weight.expert_rows(&x, &beyond)?.expect("there is a kernel");
        let error = got.to_dtype(DType::F32)?.to_vec3::<f32>().unwrap_err();
        assert!(error.to_string().contains('4'), "{what}: {error}");
        // A gradient uses the other path.
        let trained = candle_core::Var::from_tensor(&x)?;
        assert!(weight.expert_rows(&trained, &few)?.is_none(), "{what}");
        assert!(weight.expert_rows(&x.i((.., .., 1..))?, &few).is_err());
    }
    Ok(())
}

/// The blocks of a file reach the device unchanged; encoding a tensor of the device equals encoding on the CPU.
fn from_files_and_from_floats(device: &Device) -> Result<()> {
    let mut file = Cursor::new(include_bytes!("fixtures/gguf/formats.gguf"));
    let content = Content::read(&mut file)?;
    for (dtype, _) in FORMATS {
        let name = format!("{dtype:?}.blocks");
        if !content.tensor_infos.contains_key(&name) {
            continue;
        }
        let ours = content.tensor(&mut file, &name, device)?;
        let theirs = content.tensor(&mut file, &name, &CPU)?;
        assert_eq!(ours.data()?, theirs.data()?, "{name}");
        assert_eq!(ours.shape(), theirs.shape());
    }
    let floats = noise(&[4, 256], 3)?;
    let weights: Vec<f32> = (0..256).map(|i| (i % 7) as f32 + 0.5).collect();
    for (dtype, _) in FORMATS {
        let there = floats.to_device(device)?;
        let ours = QTensor::quantize(&there, dtype)?;
        assert!(ours.device().same_device(device));
        assert_eq!(ours.data()?, QTensor::quantize(&floats, dtype)?.data()?);
        let ours = QTensor::quantize_imatrix(&there, &weights, dtype)?;
        let theirs = QTensor::quantize_imatrix(&floats, &weights, dtype)?;
        assert_eq!(ours.data()?, theirs.data()?, "{dtype:?}");
    }
    Ok(())
}

fn what_is_refused(device: &Device) -> Result<()> {
    let made = |bytes: usize, shape: (usize, usize)| {
        let storage = QStorage::from_data(vec![0u8; bytes].into(), device, GgmlDType::Q8_0)?;
        QTensor::new(storage, shape)
    };
    let message = |result: Result<()>| result.unwrap_err().to_string();
    let partial = message(made(35, (1, 32)).map(drop));
    assert!(
        partial.contains("35 bytes") && partial.contains("34"),
        "{partial}"
    );
    let few = message(made(34, (2, 32)).map(drop));
    assert!(few.contains("[2, 32]") && few.contains("68"), "{few}");
    let shape = message(made(34, (2, 16)).map(drop));
    assert!(shape.contains("block size 32"), "{shape}");
    let weight = made(34 * 5, (5, 32))?;
    let product = |x: Tensor| x.to_device(device)?.apply_op1_no_bwd(&weight).map(drop);
    let wrong = message(product(noise(&[2, 64], 1)?));
    assert!(
        wrong.contains("[2, 64]") && wrong.contains("[5, 32]"),
        "{wrong}"
    );
    let vector = message(product(noise(&[32], 1)?));
    assert!(vector.contains("[32]"), "{vector}");
    let integers = message(product(Tensor::zeros((2, 32), DType::U32, &CPU)?));
    assert!(
        integers.contains("U32") && integers.contains("qmatmul"),
        "{integers}"
    );
    // Float dtypes that the block kernels do not read.
    for dtype in [DType::F8E4M3, DType::F64] {
        let floats = product(Tensor::zeros((2, 32), dtype, &CPU)?);
        let floats = message(floats);
        assert!(floats.contains(&format!("{dtype:?}")), "{floats}");
    }
    // Bytes beyond the shape are ignored, and an empty shape is valid.
    assert_eq!(made(34 * 5, (2, 32))?.dequantize(&CPU)?.dims(), [2, 32]);
    let none = made(0, (0, 32))?;
    assert_eq!(none.dequantize(device)?.dims(), [0, 32]);
    assert_eq!(none.data()?.len(), 0);
    let x = noise(&[2, 32], 1)?.to_device(device)?;
    assert_eq!(x.apply_op1_no_bwd(&none)?.dims(), [2, 0]);
    Ok(())
}

test_device!(activations_of_any_size);
test_device!(no_numbers_stay_in_their_row);
test_device!(decoded_as_on_the_cpu);
test_device!(products_of_every_format);
test_device!(layouts_batches_and_dtypes);
test_device!(layers);
test_device!(rows_by_id);
test_device!(experts);
test_device!(chosen_experts);
test_device!(from_files_and_from_floats);
test_device!(what_is_refused);

/// A product requires its operands on one device.
#[cfg(feature = "webgpu")]
#[test]
fn operands_of_two_devices() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    let floats = noise(&[2, 32], 1)?;
    let here = QTensor::quantize(&floats, GgmlDType::Q4_0)?;
    let there = QTensor::quantize_onto(&floats, GgmlDType::Q4_0, &device)?;
    for (x, weight) in [
        (floats.to_device(&device)?, &here),
        (floats.clone(), &there),
    ] {
        let error = x.apply_op1_no_bwd(weight).unwrap_err().to_string();
        assert!(
            error.contains("qmatmul") && error.contains("WebGpu"),
            "{error}"
        );
        let error = weight.embedding(&Tensor::new(&[0u32], x.device())?);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("embedding") && error.contains("WebGpu"),
            "{error}"
        );
    }
    let error = there.device_ptr().unwrap_err().to_string();
    assert!(error.contains("device_ptr"), "{error}");
    Ok(())
}

/// Weights of which a binding covers only some rows, or which span several buffers; larger operands and results.
#[cfg(feature = "webgpu")]
#[test]
fn weights_beyond_a_binding_webgpu() -> Result<()> {
    use candle_core::webgpu_backend::Options;
    use candle_core::WebGpuDevice;
    let (mut count, largest_buffer) = (0, u64::MAX);
    for (dtype, (n, k), binding, buffer) in [
        (GgmlDType::F16, (2100, 512), 256 << 10, largest_buffer),
        (GgmlDType::Q5_0, (2100, 512), 256 << 10, largest_buffer),
        (GgmlDType::Q8_0, (2100, 512), 256 << 10, largest_buffer),
        (GgmlDType::Q6K, (2100, 512), 256 << 10, largest_buffer),
        // Several buffers that end neither at rows nor at units.
        (GgmlDType::F16, (2100, 512), 64 << 10, 100 << 10),
        (GgmlDType::Q5_0, (2100, 512), 64 << 10, 100 << 10),
        (GgmlDType::Q8_1, (2100, 512), 64 << 10, 100 << 10),
        (GgmlDType::Q3K, (2100, 512), 64 << 10, 100 << 10),
        (GgmlDType::Q6K, (2100, 768), 64 << 10, 100 << 10),
        // A binding too small for 64 units of a plane.
        (GgmlDType::Q4_1, (600, 192), 4 << 10, 33 << 10),
        (GgmlDType::Q8_0, (600, 96), 4 << 10, 33 << 10),
        (GgmlDType::Q2K, (600, 256), 4 << 10, 33 << 10),
        (GgmlDType::Q5K, (600, 256), 4 << 10, 33 << 10),
        (GgmlDType::Q6K, (601, 256), 4 << 10, 33 << 10),
        (GgmlDType::Q8K, (600, 256), 4 << 10, 33 << 10),
        // Five columns at a time, while an f16 word holds two.
        (GgmlDType::Q8_0, (502, 1536), 8 << 10, 33 << 10),
    ] {
        let options = Options {
            max_binding: Some(binding),
            max_buffer: Some(buffer),
            ..Options::default()
        };
        let device = Device::WebGpu(WebGpuDevice::with_options(0, &options)?);
        // By day every third case; each way of splitting weights is among them.
        count += 1;
        if runs_fewer(&device) && count % 3 != 1 {
            continue;
        }
        let halves = FORMATS.iter().find(|(known, _)| *known == dtype);
        let halves = halves.map_or(&[][..], |(_, halves)| halves);
        let what = format!("{dtype:?} {binding}");
        let bytes = any_bits(dtype, halves, n * k);
        let weight = tensor(dtype, &bytes, (n, k), &CPU)?;
        let ours = tensor(dtype, &bytes, (n, k), &device)?;
        assert_eq!(&*ours.data()?, bytes, "{what}");
        let dense = weight.dequantize(&CPU)?;
        let room = if has_minimum(dtype) {
            // As in `decoded_as_on_the_cpu`.
            Tolerance::EXACT.or_absolute(63. * 31. * 2f64.powi(-23))
        } else {
            Tolerance::EXACT
        };
        assert_close(&ours.dequantize(&device)?, &dense, room, &what)?;
        assert_close(
            &ours.dequantize_f16(&device)?.to_dtype(DType::F32)?,
            &dense,
            Tolerance::of(DType::F16, 0.).or_absolute(room.absolute),
            &what,
        )?;
        for repeats in [1, 30] {
            let ids = Tensor::new(&[n as u32 - 1, 0, 63, 64, 500], &CPU)?.repeat(repeats)?;
            let rows = ours.embedding(&ids.to_device(&device)?)?;
            assert_close(&rows, &dense.index_select(&ids, 0)?, room, &what)?;
        }
        let largest = dense.abs()?.max_all()?.to_scalar::<f32>()?;
        for (m, lhs) in [1, 2, 9, 70]
            .into_iter()
            .flat_map(|m| [(m, DType::F32), (m, DType::F16)])
        {
            // One binding covers one row of it.
            if (k * lhs.size_in_bytes()) as u64 > binding {
                continue;
            }
            let x = noise(&[m, k], 5)?.to_dtype(lhs)?;
            let got = x.to_device(&device)?.apply_op1_no_bwd(&ours)?;
            let near = products_tolerance(&device, lhs, k);
            let room = near.or_absolute(near.absolute * f64::from(largest));
            let expected = plain(&x.to_dtype(DType::F32)?, &weight)?.to_dtype(lhs)?;
            assert_close(&got, &expected, room, &format!("{what} {m} {lhs:?}"))?;
        }
    }
    Ok(())
}
