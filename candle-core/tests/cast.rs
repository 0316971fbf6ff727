//! Conversions between all dtypes that every device supports: each element equals the CPU's.

use candle_core::{test_device, DType, Device, Result, Tensor};
use half::{bf16, f16};

use crate::agree::{assert_close, assert_same, dtypes, Tolerance};

/// Returns values at which conversions round, saturate, overflow and wrap.
fn edges(dtype: DType) -> Result<Tensor> {
    let cpu = &Device::Cpu;
    match dtype {
        DType::F32 => {
            let mut data: Vec<f32> = vec![
                0.,
                0.5,
                0.999_999_94,
                1.,
                1.5,
                2.5,
                254.5,
                255.,
                255.5,
                256.,
            ];
            // Smallest subnormal of f16 (2^-24), half of it (a tie to 0), smallest normal, largest finite number, and the first that
            // overflows.
            data.extend([
                2f32.powi(-24),
                2f32.powi(-25),
                1.5 * 2f32.powi(-25),
                2f32.powi(-14),
            ]);
            data.extend([65_504., 65_519.99, 65_520., 65_536., 1e5]);
            // Ties to even, up and down, in f16 (11 bits) and bf16 (8 bits).
            data.extend([2049., 2051., 2050., 257., 259., 258.]);
            data.extend([
                2147483520.,
                2147483648.,
                4294967040.,
                4294967296.,
                4294967808.,
            ]);
            data.extend([
                9.223_371_5e18,
                9.223_372e18,
                1e19,
                1e30,
                f32::MAX,
                f32::INFINITY,
                f32::NAN,
            ]);
            data.extend([16_777_217f32, 1_099_511_627_776., 12_345_678_900.]);
            let negative: Vec<f32> = data.iter().map(|x| -x).collect();
            Tensor::new([data, negative].concat(), cpu)
        }
        DType::U8 => Tensor::new((0..=255).collect::<Vec<u8>>(), cpu),
        DType::U32 => {
            let data = [
                0u32,
                1,
                255,
                256,
                257,
                2049,
                2051,
                65_519,
                65_520,
                65_536,
                16_777_217,
                16_777_219,
                (1 << 31) - 1,
                1 << 31,
                (1 << 31) + 128,
                (1 << 31) + 384,
                u32::MAX - 128,
                u32::MAX,
            ];
            Tensor::new(&data, cpu)
        }
        DType::I32 => {
            let data = [
                0,
                1,
                -1,
                255,
                256,
                -256,
                257,
                -2049,
                2051,
                65_520,
                -65_520,
                16_777_217,
                -16_777_219,
                i32::MAX,
                i32::MIN,
                i32::MIN + 1,
            ];
            Tensor::new(&data, cpu)
        }
        DType::I64 => {
            let mut data = vec![
                0,
                1,
                -1,
                255,
                256,
                -256,
                2049,
                -65_520,
                16_777_217,
                i64::MAX,
                i64::MIN,
            ];
            for bits in [31, 32, 33, 40, 56, 62] {
                let power = 1i64 << bits;
                // Neighbours of powers of two; ties of f32 (24 bits), and neighbours of ties in the lowest bit.
                data.extend([power - 1, power, power + 1, -power, -power - 1]);
                let half = power >> 24;
                data.extend([
                    power + half,
                    power + half + 1,
                    power + half - 1,
                    power + 3 * half,
                ]);
                data.extend([-(power + 3 * half), -(power + half + 1)]);
            }
            Tensor::new(data, cpu)
        }
        DType::I16 => {
            let data = [
                0i16,
                1,
                -1,
                127,
                128,
                255,
                256,
                -128,
                -129,
                -256,
                449,
                2049,
                -2051,
                i16::MAX,
                i16::MIN,
            ];
            Tensor::new(&data, cpu)
        }
        DType::F64 => {
            let mut data = edges(DType::F32)?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
            // Beyond the range of f32, between its values, and past 2^53.
            data.extend([
                1e300,
                -1e300,
                1e-300,
                0.1,
                1. / 3.,
                4_294_967_295.5,
                2_147_483_647.5,
            ]);
            data.extend([
                -2_147_483_648.5,
                9_007_199_254_740_993.,
                9.223372036854775e18,
            ]);
            Tensor::new(data, cpu)
        }
        DType::F8E4M3 => {
            let all = (0..=u8::MAX).map(float8::F8E4M3::from_bits);
            Tensor::new(all.collect::<Vec<_>>(), cpu)
        }
        DType::F16 => {
            let all = (0..=u16::MAX).map(f16::from_bits);
            Tensor::new(all.collect::<Vec<_>>(), cpu)
        }
        _ => {
            let all = (0..=u16::MAX).map(bf16::from_bits);
            Tensor::new(all.collect::<Vec<_>>(), cpu)
        }
    }
}

/// Converts all values of the 16-bit dtypes, and the edge values of the others.
fn all_pairs(device: &Device) -> Result<()> {
    for from in dtypes(device)? {
        let cpu = edges(from)?;
        let here = cpu.to_device(device)?;
        assert_same(&here, &cpu, &format!("{from:?} there and back"))?;
        for to in dtypes(device)? {
            let what = format!("{from:?} to {to:?}");
            let (got, want) = (here.to_dtype(to)?, cpu.to_dtype(to)?);
            // f32 subnormals: a GPU may flush them to 0, and f64 represents them.
            if to == DType::F64 && matches!(from, DType::F32 | DType::BF16) && device.is_wgpu() {
                let tiny = Tolerance::EXACT.or_absolute(f64::from(f32::MIN_POSITIVE));
                assert_close(&got, &want, tiny, &what)?;
            } else {
                assert_same(&got, &want, &what)?;
            }
        }
    }
    Ok(())
}
test_device!(all_pairs);

/// Values between neighbours in f16 and in bf16: the tie, its neighbours, and others.
fn rounding(device: &Device) -> Result<()> {
    let numbers = |upper: Vec<u32>, tie: u32| {
        let rest = [0, 1, tie - 1, tie, tie + 1, 2 * tie - 1];
        let bits = upper
            .into_iter()
            .flat_map(|bits| rest.map(|rest| bits + rest));
        let data: Vec<f32> = bits.map(f32::from_bits).collect();
        Tensor::new(
            [data.clone(), data.iter().map(|x| -x).collect()].concat(),
            &Device::Cpu,
        )
    };
    // From below half of f16's smallest number to above its largest.
    let normal = (0x3200_0000..0x4780_0000).step_by(0x2000 * 13);
    let cpu = numbers(normal.collect(), 0x1000)?;
    let what = "f32 to f16";
    let got = cpu.to_device(device)?.to_dtype(DType::F16)?;
    assert_same(&got, &cpu.to_dtype(DType::F16)?, what)?;
    // Below f16's normal numbers the tie moves by one bit per exponent.
    for exponent in 102..113 {
        let tie = 1 << (13 + 112 - exponent).min(22);
        let cpu = numbers(
            vec![exponent << 23, (exponent << 23) + 3 * tie.min(1 << 21)],
            tie,
        )?;
        let got = cpu.to_device(device)?.to_dtype(DType::F16)?;
        assert_same(&got, &cpu.to_dtype(DType::F16)?, what)?;
    }
    let all = (0x0080_0000..0x7f80_0000).step_by(0x1_0000 * 7);
    let cpu = numbers(all.collect(), 0x8000)?;
    let got = cpu.to_device(device)?.to_dtype(DType::BF16)?;
    assert_same(&got, &cpu.to_dtype(DType::BF16)?, "f32 to bf16")
}
test_device!(rounding);

/// Conversions equal Rust's `as`.
fn as_rust(device: &Device) -> Result<()> {
    let t = Tensor::new(&[-1.5f32, 300.7, f32::NAN, f32::NEG_INFINITY, 1e10], device)?;
    assert_eq!(t.to_dtype(DType::U8)?.to_vec1::<u8>()?, [0, 255, 0, 0, 255]);
    assert_eq!(
        t.to_dtype(DType::U32)?.to_vec1::<u32>()?,
        [0, 300, 0, 0, u32::MAX]
    );
    assert_eq!(
        t.to_dtype(DType::I64)?.to_vec1::<i64>()?,
        [-1, 300, 0, i64::MIN, 10_000_000_000]
    );
    let t = Tensor::new(&[-1i64, 256, 1 << 40, (1 << 40) + 7], device)?;
    assert_eq!(t.to_dtype(DType::U8)?.to_vec1::<u8>()?, [255, 0, 0, 7]);
    assert_eq!(
        t.to_dtype(DType::F16)?.to_vec1::<f16>()?,
        [-1., 256., f32::INFINITY, f32::INFINITY].map(f16::from_f32)
    );
    Ok(())
}
test_device!(as_rust);
