//! Table-based formats (IQ, TQ, MXFP4) on every device, compared with elements that the `gguf` package decodes.

use std::io::Cursor;

use candle_core::quantized::gguf_file::{self, Content};
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{test_device, Device, Module, Result, Tensor};

use crate::agree::{assert_close, Tolerance};

const CPU: Device = Device::Cpu;

/// The location of a block's f16 scale, in bytes.
#[derive(Clone, Copy)]
enum Scale {
    At(usize),
    /// In the upper nibbles of the last four words.
    Spread,
    /// An exponent in the first byte.
    Exponent,
}

/// Every format with its number in a file.
const FORMATS: [(GgmlDType, u32, Scale); 12] = [
    (GgmlDType::IQ1S, 19, Scale::At(0)),
    (GgmlDType::IQ1M, 29, Scale::Spread),
    (GgmlDType::IQ2XXS, 16, Scale::At(0)),
    (GgmlDType::IQ2XS, 17, Scale::At(0)),
    (GgmlDType::IQ2S, 22, Scale::At(0)),
    (GgmlDType::IQ3XXS, 18, Scale::At(0)),
    (GgmlDType::IQ3S, 21, Scale::At(0)),
    (GgmlDType::IQ4NL, 20, Scale::At(0)),
    (GgmlDType::IQ4XS, 23, Scale::At(0)),
    (GgmlDType::MXFP4, 39, Scale::Exponent),
    (GgmlDType::TQ1_0, 34, Scale::At(52)),
    (GgmlDType::TQ2_0, 35, Scale::At(64)),
];

/// The formats with an encoder.
const ENCODED: [GgmlDType; 4] = [
    GgmlDType::IQ4NL,
    GgmlDType::MXFP4,
    GgmlDType::TQ1_0,
    GgmlDType::TQ2_0,
];

/// Returns the upper bytes of a linear congruential sequence, as in `data/table_formats.py`.
fn bytes_of(seed: u32, count: usize) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count).map(next).collect()
}

/// Returns a random block with a finite scale.
fn block((dtype, _, scale): (GgmlDType, u32, Scale), seed: u32) -> Vec<u8> {
    let size = dtype.type_size();
    let mut bytes = bytes_of(seed, size);
    match scale {
        Scale::At(at) => bytes[at + 1] &= 0xbf,
        Scale::Spread => bytes[size - 1] &= 0xbf,
        Scale::Exponent => (),
    }
    bytes
}

/// Returns `(n, k)` random weights with elements of a usual magnitude.
fn weight(format: (GgmlDType, u32, Scale), (n, k): (usize, usize)) -> Vec<u8> {
    let mut bytes = vec![];
    for seed in 0..n * k / format.0.block_size() {
        let mut block = block(format, 7 + seed as u32);
        if let Scale::Exponent = format.2 {
            block[0] = 120 + block[0] % 8;
        }
        bytes.extend(block);
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

/// Returns multiples of 1/128 between -1 and 1.
fn noise(shape: (usize, usize), seed: u32) -> Result<Tensor> {
    let bytes = bytes_of(seed, shape.0 * shape.1).into_iter();
    let floats: Vec<f32> = bytes.map(|b| (f32::from(b) - 128.) / 128.).collect();
    Tensor::from_vec(floats, shape, &CPU)
}

/// Returns whether the device supports the formats, and prints a message if not.
fn is_supported(device: &Device) -> Result<bool> {
    if !device.is_cuda() {
        return Ok(true);
    }
    for format in FORMATS {
        let bytes = weight(format, (1, 256));
        let refused = QStorage::from_data(bytes.into(), device, format.0);
        let text = refused.err().expect("no kernels").to_string();
        for part in [&format!("{:?}", format.0), "CUDA", "from_data"] {
            assert!(text.to_lowercase().contains(&part.to_lowercase()), "{text}");
        }
    }
    Ok(false)
}

fn decoded_as_gguf_does(device: &Device) -> Result<()> {
    if !is_supported(device)? {
        return Ok(());
    }
    let mut file: &[u8] = include_bytes!("data/table_formats.bin");
    for format in FORMATS {
        let (dtype, number, _) = format;
        let len = dtype.block_size();
        let bytes = [number, 1000 + number]
            .map(|seed| block(format, seed))
            .concat();
        let (floats, rest) = file.split_at(2 * len * 4);
        file = rest;
        let weight = tensor(dtype, &bytes, (2, len), device)?;
        assert_eq!(weight.dtype(), dtype);
        assert_eq!(&*weight.data()?, bytes, "{dtype:?}");
        let got = weight.dequantize(&CPU)?.flatten_all()?.to_vec1::<f32>()?;
        for (i, (got, want)) in got.iter().zip(floats.as_chunks::<4>().0).enumerate() {
            let want = f32::from_le_bytes(*want);
            // A GPU may flush a subnormal number to 0, and may give the other zero.
            let same = match device {
                Device::Cpu => got.to_bits() == want.to_bits(),
                _ => got == &want || want.abs() < f32::MIN_POSITIVE && *got == 0.,
            };
            assert!(same, "{dtype:?}, element {i}: {got} for {want}");
        }
    }
    Ok(())
}

fn products(device: &Device) -> Result<()> {
    if !is_supported(device)? {
        return Ok(());
    }
    for format in FORMATS {
        for (n, k) in [(1, 256), (35, 768)] {
            let bytes = weight(format, (n, k));
            let ours = tensor(format.0, &bytes, (n, k), device)?;
            let dense = tensor(format.0, &bytes, (n, k), &CPU)?.dequantize(&CPU)?;
            let largest = dense.abs()?.max_all()?.to_scalar::<f32>()?;
            let layer = QMatMul::from_qtensor(ours)?;
            for m in [1, 3, 9, 33] {
                let x = noise((m, k), 5)?;
                let want = x.matmul(&dense.t()?)?;
                let got = layer.forward(&x.to_device(device)?)?.to_device(&CPU)?;
                // The error of an element of x is uniform, at most 1 / 254; that of a sum of `k` is the root of `k` times as large.
                let room = 0.008 * (k as f64).sqrt() * f64::from(largest);
                let what = format!("{:?}, {m} rows of {k}, {n} columns", format.0);
                assert_close(&got, &want, Tolerance::EXACT.or_absolute(room), &what)?;
            }
        }
    }
    Ok(())
}

fn rows_by_id(device: &Device) -> Result<()> {
    if !is_supported(device)? {
        return Ok(());
    }
    for format in FORMATS {
        let table = tensor(format.0, &weight(format, (5, 512)), (5, 512), device)?;
        let ids = Tensor::new(&[4u32, 0, 3], device)?;
        let want = table.dequantize(device)?.index_select(&ids, 0)?;
        let got = table.embedding(&ids)?;
        let same = Tolerance::EXACT;
        assert_close(
            &got,
            &want.to_device(&CPU)?,
            same,
            &format!("{:?}", format.0),
        )?;
    }
    Ok(())
}

/// The product of a row that contains a NaN is NaN; the other rows do not change.
#[test]
fn no_numbers_stay_in_their_row() -> Result<()> {
    for format in FORMATS {
        let weight = tensor(format.0, &weight(format, (35, 512)), (35, 512), &CPU)?;
        let x = noise((3, 512), 5)?;
        let right = x.apply_op1_no_bwd(&weight)?.to_vec2::<f32>()?;
        for odd in [f32::NAN, f32::INFINITY] {
            let mut rows = x.to_vec2::<f32>()?;
            rows[1][300] = odd;
            let got = Tensor::new(rows, &CPU)?.apply_op1_no_bwd(&weight)?;
            let got = got.to_vec2::<f32>()?;
            assert!(got[1].iter().all(|y| y.is_nan()), "{:?}", format.0);
            assert_eq!((&got[0], &got[2]), (&right[0], &right[2]), "{:?}", format.0);
        }
    }
    Ok(())
}

/// The blocks of a file are read unchanged, under ggml's number.
#[test]
fn files() -> Result<()> {
    for format in FORMATS {
        let bytes = weight(format, (3, 512));
        let written = tensor(format.0, &bytes, (3, 512), &CPU)?;
        let mut file = Cursor::new(vec![]);
        gguf_file::write(&mut file, &[], &[("w", &written)])?;
        file.set_position(0);
        let content = Content::read(&mut file)?;
        assert_eq!(content.tensor_infos["w"].ggml_dtype, format.0);
        let read = content.tensor(&mut file, "w", &CPU)?;
        assert_eq!(&*read.data()?, bytes, "{:?}", format.0);
        // The type follows the name, the number of dimensions and two dimensions.
        let place = file
            .get_ref()
            .windows(9)
            .position(|w| w == b"\x01\0\0\0\0\0\0\0w");
        let place = place.expect("the name") + 9 + 4 + 16;
        let number: [u8; 4] = file.get_ref()[place..place + 4].try_into().unwrap();
        assert_eq!(u32::from_le_bytes(number), format.1, "{:?}", format.0);
        for (number, name) in [(31u32, "Q4_0_4_4"), (40, "NVFP4"), (99, "99")] {
            file.get_mut()[place..place + 4].copy_from_slice(&number.to_le_bytes());
            file.set_position(0);
            let text = Content::read(&mut file).unwrap_err().to_string();
            assert!(text.contains(name), "{text}");
        }
    }
    Ok(())
}

/// Blocks equal those of the `gguf` package; the one format that it does not encode has bounded errors.
#[test]
fn encoders() -> Result<()> {
    let file: &[u8] = include_bytes!("data/table_formats.bin");
    let sizes = FORMATS.map(|(dtype, ..)| 2 * 4 * dtype.block_size());
    let mut file = &file[sizes.iter().sum::<usize>()..];
    for (dtype, number) in [
        (GgmlDType::MXFP4, 39),
        (GgmlDType::TQ1_0, 34),
        (GgmlDType::TQ2_0, 35),
    ] {
        let xs = (noise((1, 256), number)? * 2.)?;
        let got = QTensor::quantize(&xs, dtype)?;
        let (want, rest) = file.split_at(256 / dtype.block_size() * dtype.type_size());
        file = rest;
        assert_eq!(&*got.data()?, want, "{dtype:?}");
    }
    assert!(file.is_empty());

    // Sums of twelve uniform numbers are almost normally distributed, with variance 1 here.
    let bytes = bytes_of(3, 12 * (1 << 14));
    let normal = |twelve: &[u8; 12]| twelve.iter().map(|&b| f32::from(b)).sum::<f32>() / 256. - 6.;
    let xs: Vec<f32> = bytes.as_chunks().0.iter().map(normal).collect();
    let xs = Tensor::from_vec(xs, (64, 256), &CPU)?;
    let ys = QTensor::quantize(&xs, GgmlDType::IQ4NL)?.dequantize(&CPU)?;
    let error = (xs - ys)?.sqr()?.mean_all()?.to_scalar::<f32>()?.sqrt();
    // The error of Q4_0 is 0.084.
    assert!(error < 0.08, "{error}");
    Ok(())
}

/// NaN, infinity, and numbers too large or too small give some result, without a panic.
#[test]
fn encoding_odd_numbers() -> Result<()> {
    for dtype in ENCODED {
        for odd in [f32::NAN, f32::INFINITY, f32::MIN, 1e30, 1e-45, 0., -0.] {
            for count in [1, 256] {
                let mut xs = noise((1, 256), 9)?.flatten_all()?.to_vec1::<f32>()?;
                xs[256 - count..].fill(odd);
                let xs = Tensor::from_vec(xs, (1, 256), &CPU)?;
                let weights = vec![1f32; 256];
                for weight in [
                    QTensor::quantize(&xs, dtype)?,
                    QTensor::quantize_imatrix(&xs, &weights, dtype)?,
                ] {
                    weight.dequantize(&CPU)?;
                    xs.apply_op1_no_bwd(&weight)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn formats_without_an_encoder() -> Result<()> {
    for (dtype, ..) in FORMATS {
        let made = QTensor::quantize(&noise((1, 256), 1)?, dtype);
        if ENCODED.contains(&dtype) {
            made?;
            continue;
        }
        let text = made.expect_err("no encoder").to_string();
        for part in ["quantize", &format!("{dtype:?}"), "encoder"] {
            assert!(text.contains(part), "{text}");
        }
    }
    Ok(())
}

test_device!(decoded_as_gguf_does);
test_device!(products);
test_device!(rows_by_id);
