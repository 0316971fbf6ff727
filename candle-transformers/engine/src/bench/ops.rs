//! Speed of single ops on a device compared with the CPU: the products, norms and attention of a language model.
//!
//! Both sides are measured alternately in one process, so that other load on the machine slows both. A sample runs the op often enough to
//! last, then synchronises; the fastest sample counts.

use crate::error::Doing;
use crate::progress::note;
use crate::Result;
use candle_core::{DType, Device, Tensor};
use candle_nn::ops;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Minimum duration of a sample.
const SAMPLE: Duration = Duration::from_millis(20);

/// One op on inputs of given shapes.
struct Case {
    name: &'static str,
    /// The inputs' shapes; their elements are between -1 and 1.
    inputs: &'static [&'static [usize]],
    run: fn(&[Tensor]) -> candle_core::Result<Tensor>,
    /// Floating-point operations of a call; 0 where memory is the limit.
    flops: f64,
}

const EPS: f32 = 1e-5;

fn product(t: &[Tensor]) -> candle_core::Result<Tensor> {
    t[0].matmul(&t[1].t()?)
}

fn attention(t: &[Tensor]) -> candle_core::Result<Tensor> {
    ops::sdpa(&t[0], &t[1], &t[1], None, true, 0.125, 1.)
}

const CASES: [Case; 12] = [
    Case {
        name: "matmul 512x512 by 512x512",
        inputs: &[&[512, 512], &[512, 512]],
        run: |t| t[0].matmul(&t[1]),
        flops: 2. * 512. * 512. * 512.,
    },
    Case {
        name: "linear 1x2048 by 2048x2048",
        inputs: &[&[1, 2048], &[2048, 2048]],
        run: product,
        flops: 2. * 2048. * 2048.,
    },
    Case {
        name: "linear 4x2048 by 2048x2048",
        inputs: &[&[4, 2048], &[2048, 2048]],
        run: product,
        flops: 4. * 2. * 2048. * 2048.,
    },
    Case {
        name: "linear 16x2048 by 2048x2048",
        inputs: &[&[16, 2048], &[2048, 2048]],
        run: product,
        flops: 16. * 2. * 2048. * 2048.,
    },
    Case {
        name: "linear 64x2048 by 2048x2048",
        inputs: &[&[64, 2048], &[2048, 2048]],
        run: product,
        flops: 64. * 2. * 2048. * 2048.,
    },
    Case {
        name: "linear 512x2048 by 2048x2048",
        inputs: &[&[512, 2048], &[2048, 2048]],
        run: product,
        flops: 512. * 2. * 2048. * 2048.,
    },
    Case {
        name: "softmax 512x2048",
        inputs: &[&[512, 2048]],
        run: |t| ops::softmax_last_dim(&t[0]),
        flops: 0.,
    },
    Case {
        name: "rms_norm 512x2048",
        inputs: &[&[512, 2048], &[2048]],
        run: |t| ops::rms_norm(&t[0], &t[1], EPS),
        flops: 0.,
    },
    Case {
        name: "attention, 1 query, 1024 keys",
        inputs: &[&[1, 32, 1, 64], &[1, 8, 1024, 64]],
        run: attention,
        flops: 0.,
    },
    Case {
        name: "attention, 512 queries, causal",
        inputs: &[&[1, 32, 512, 64], &[1, 8, 512, 64]],
        run: attention,
        flops: 2. * 32. * 512. * 512. * 64.,
    },
    Case {
        name: "attention, 512 queries, causal, heads of 128",
        inputs: &[&[1, 32, 512, 128], &[1, 8, 512, 128]],
        run: attention,
        flops: 2. * 32. * 512. * 512. * 128.,
    },
    Case {
        name: "attention, 64 queries, 4096 keys",
        inputs: &[&[1, 32, 64, 64], &[1, 8, 4096, 64]],
        run: attention,
        flops: 4. * 32. * 64. * 4096. * 64.,
    },
];

/// One op's times.
#[derive(Clone, Debug, Serialize)]
pub struct OpSpeed {
    /// The op and its sizes.
    pub name: &'static str,
    /// Microseconds of a call on the device.
    pub device_us: f64,
    /// Microseconds of a call on the CPU.
    pub cpu_us: f64,
    /// Billions of floating-point operations a second on the device, where they are what limits the op.
    pub gflops: Option<f64>,
}

/// The results of a benchmark of ops.
#[derive(Clone, Debug, Serialize)]
pub struct OpsReport {
    /// The device's name.
    pub device: String,
    /// The element type.
    pub dtype: &'static str,
    /// Each op.
    pub ops: Vec<OpSpeed>,
}

/// Times every op, `repeat` samples on each side.
///
/// # Errors
/// A device that runs out of memory or fails otherwise.
pub fn run(dtype: DType, repeat: usize, device: &Device, device_name: &str) -> Result<OpsReport> {
    let mut speeds = Vec::with_capacity(CASES.len());
    for case in &CASES {
        let speed = measure(case, dtype, repeat, device).doing("measuring an op")?;
        note(&format!("{}: {:.1} us", speed.name, speed.device_us));
        speeds.push(speed);
    }
    Ok(OpsReport {
        device: device_name.to_string(),
        dtype: dtype.as_str(),
        ops: speeds,
    })
}

fn measure(
    case: &Case,
    dtype: DType,
    repeat: usize,
    device: &Device,
) -> candle_core::Result<OpSpeed> {
    let sides = [device, &Device::Cpu].map(|device| {
        let inputs = case
            .inputs
            .iter()
            .map(|shape| Tensor::rand(-1f32, 1f32, *shape, &Device::Cpu)?.to_dtype(dtype))
            .map(|input| input?.to_device(device))
            .collect::<candle_core::Result<Vec<_>>>()?;
        let calls = calls_of_a_sample(case, &inputs, device)?;
        Ok::<_, candle_core::Error>((device, inputs, calls))
    });
    let [on_device, on_cpu] = sides;
    let sides = [on_device?, on_cpu?];
    let mut best = [f64::INFINITY; 2];
    for _ in 0..repeat {
        for (best, (device, inputs, calls)) in best.iter_mut().zip(&sides) {
            let time = sample(case, inputs, device, *calls)?;
            *best = best.min(time.as_secs_f64() * 1e6 / *calls as f64);
        }
    }
    let [device_us, cpu_us] = best;
    Ok(OpSpeed {
        name: case.name,
        device_us,
        cpu_us,
        gflops: (case.flops > 0.).then(|| case.flops / device_us / 1e3),
    })
}

/// Number of calls that last for one sample; the first calls compile kernels.
fn calls_of_a_sample(
    case: &Case,
    inputs: &[Tensor],
    device: &Device,
) -> candle_core::Result<usize> {
    sample(case, inputs, device, 1)?;
    let mut calls = 1;
    while sample(case, inputs, device, calls)? < SAMPLE {
        calls *= 2;
    }
    Ok(calls)
}

fn sample(
    case: &Case,
    inputs: &[Tensor],
    device: &Device,
    calls: usize,
) -> candle_core::Result<Duration> {
    device.synchronize()?;
    let start = Instant::now();
    for _ in 0..calls {
        (case.run)(inputs)?;
    }
    device.synchronize()?;
    Ok(start.elapsed())
}

impl OpsReport {
    /// A small table for a reader.
    pub fn table(&self) -> String {
        let mut lines = vec![
            format!("{} on {}", self.dtype, self.device),
            format!(
                "{:<34}{:>12}{:>12}{:>12}{:>12}",
                "op", "device, us", "CPU, us", "CPU/device", "GFLOP/s"
            ),
        ];
        for op in &self.ops {
            let gflops = op.gflops.map_or(String::new(), |g| format!("{g:.1}"));
            lines.push(format!(
                "{:<34}{:>12.1}{:>12.1}{:>12.2}{:>12}",
                op.name,
                op.device_us,
                op.cpu_us,
                op.cpu_us / op.device_us,
                gflops
            ));
        }
        lines.push(String::new());
        lines.join("\n")
    }
}
