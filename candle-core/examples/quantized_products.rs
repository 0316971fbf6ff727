//! Measures products with quantised weights on the WebGPU device in `CANDLE_WEBGPU_ADAPTER`, or the first one.
//!
//! ```sh
//! cargo run --release -p candle-core --features webgpu --example quantized_products -- [GB/s of the memory]
//! ```
//!
//! One row times a weight, as in generation: the weight is read once, so the bytes of blocks per second matter. The weights alternate, and
//! exceed any cache. Then 512 rows, as in a prompt, where arithmetic matters. Medians of 7; the error is that of the product relative to
//! one with the dequantised weight in f32, by its norm.

use std::time::{Duration, Instant};

use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{DType, Device, Result, Tensor};

/// Rows and columns of weights in Llama models: attention, feed-forward up and down (1B, 8B), the logits' matrix.
const SHAPES: [(usize, usize); 6] = [
    (2048, 2048),
    (8192, 2048),
    (2048, 8192),
    (14336, 4096),
    (4096, 14336),
    (128256, 2048),
];

const FORMATS: [GgmlDType; 4] = [
    GgmlDType::Q4_0,
    GgmlDType::Q4K,
    GgmlDType::Q8_0,
    GgmlDType::Q6K,
];

/// Number of bytes that exceeds any cache.
const BEYOND_CACHES: usize = 512 << 20;

/// A weight of random bits; the only requirement is that no scale is infinite.
fn weight((n, k): (usize, usize), dtype: GgmlDType, device: &Device) -> Result<QTensor> {
    let len = n * k / dtype.block_size() * dtype.type_size();
    let mut state = 1u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8 & 0x2f
    };
    let bytes: Vec<u8> = (0..len).map(|_| byte()).collect();
    QTensor::new(QStorage::from_data(bytes.into(), device, dtype)?, (n, k))
}

/// Duration of the runs before timing: the first ones compile kernels, and an idle GPU raises its clock only then.
const WARM_UP: Duration = Duration::from_millis(300);

/// Seconds per product, for `count` products.
fn seconds(x: &Tensor, weights: &[QTensor], count: usize, device: &Device) -> Result<f64> {
    let run = || -> Result<Duration> {
        device.synchronize()?;
        let start = Instant::now();
        for weight in weights.iter().cycle().take(count) {
            x.apply_op1_no_bwd(weight)?;
        }
        device.synchronize()?;
        Ok(start.elapsed())
    };
    let start = Instant::now();
    while start.elapsed() < WARM_UP {
        run()?;
    }
    let mut times = Vec::new();
    for _ in 0..7 {
        times.push(run()?.as_secs_f64() / count as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn error(x: &Tensor, weight: &QTensor, device: &Device) -> Result<f32> {
    let norm = |t: &Tensor| t.sqr()?.sum_all()?.to_scalar::<f32>();
    let want = x.matmul(&weight.dequantize(device)?.t()?)?;
    let got = x.apply_op1_no_bwd(weight)?;
    Ok((norm(&(got - &want)?)? / norm(&want)?).sqrt())
}

fn main() -> Result<()> {
    let peak: f64 = match std::env::args().nth(1) {
        Some(text) => text.parse().map_err(candle_core::Error::wrap)?,
        None => 4300.,
    };
    let device = Device::new_webgpu(0)?;
    if let Device::WebGpu(device) = &device {
        println!("{} ({})", device.name(), device.backend_name());
    }
    // `QUICK` is for software adapters, where only the errors are meaningful.
    let quick = std::env::var_os("QUICK").is_some();
    println!(
        "rows x columns   format     us   GB/s   share   error | 512 rows: us  TFLOP/s   error"
    );
    for shape in SHAPES
        .into_iter()
        .take(if quick { 1 } else { SHAPES.len() })
    {
        let (n, k) = shape;
        for dtype in FORMATS {
            let first = weight(shape, dtype, &device)?;
            let bytes = first.storage_size_in_bytes();
            let others = if quick { 0 } else { BEYOND_CACHES / bytes };
            let mut weights = vec![first];
            for _ in 0..others {
                weights.push(weight(shape, dtype, &device)?);
            }
            let count = if quick { 1 } else { weights.len().max(200) };
            let x = Tensor::randn(0f32, 1., (1, k), &device)?;
            let time = seconds(&x, &weights, count, &device)?;
            let rate = bytes as f64 / time / 1e9;
            print!(
                "{n:>6} x {k:<6} {dtype:>8} {:>8.1} {rate:>6.0} {:>6.1}% {:>7.1e}",
                time * 1e6,
                100. * rate / peak,
                error(&x, &weights[0], &device)?,
                dtype = format!("{dtype:?}"),
            );
            let rows = if quick { 16 } else { 512 };
            let x = Tensor::randn(0f32, 1., (rows, k), &device)?.to_dtype(DType::F32)?;
            let time = seconds(&x, &weights, if quick { 1 } else { 20 }, &device)?;
            println!(
                " | {:>12.1} {:>8.1} {:>7.1e}",
                time * 1e6,
                2. * (rows * n * k) as f64 / time / 1e12,
                error(&x, &weights[0], &device)?,
            );
        }
    }
    Ok(())
}
