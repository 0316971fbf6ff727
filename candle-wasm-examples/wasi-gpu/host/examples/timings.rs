//! Times a guest's calls of `wasi:gpu` beside the same calls from Rust, and its matrix products beside Candle's `Tensor::matmul`.
//!
//! ```text
//! cargo run --release --example timings -- ../target/wasm32-wasip2/release/timings.wasm --device cuda
//! ```
//!
//! The guest `timings` and this program run the same loops in turn. Every figure is the median of the rounds.

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use candle_wasi_gpu::{
    backend, BufferId, BufferUsage, ElementwiseOp, ElementwiseParams, GpuBackend, GpuError,
    MatmulParams,
};
use clap::Parser;
use wasi_gpu::{DeviceChoice, Devices, Guest, Limits, Runner, Val, WasiCtx};

/// Times a guest's calls beside the same calls from Rust
#[derive(Parser)]
struct Args {
    /// The guest, `timings.wasm`
    guest: PathBuf,
    /// As for `wasi-gpu run`
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
    /// Calls in a round
    #[arg(long, default_value_t = 10_000)]
    calls: u32,
    /// Rows and columns of the matrices
    #[arg(long, value_delimiter = ',', default_values_t = [1024, 4096])]
    sizes: Vec<u32>,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long the matrix products of a round take, about
    #[arg(long, default_value = "300ms", value_parser = humantime::parse_duration)]
    time: Duration,
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The calls of `guests/wit/timings.wit`, and the share of a round that each gets: a read waits for the device.
const CALLS: [(&str, u32); 6] = [
    ("refused", 1),
    ("refused-kernel", 1),
    ("write", 1),
    ("copy", 1),
    ("kernel", 1),
    ("read", 10),
];

/// Seconds until the last of some calls returned, and until the device had done the work.
#[derive(Clone, Copy)]
struct Times {
    queued: f64,
    done: f64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let limits = Limits {
        gpu_memory: 4 << 30,
        timeout: None,
        ..Limits::default()
    };
    let runner = Runner::new(limits)?;
    let program = runner.load(&std::fs::read(&args.guest)?)?;
    let devices = Devices::choose(args.device)?;
    runtime.block_on(async {
        // A device for each, as guests have.
        let mut guest = runner
            .start(&program, &devices.open()?, WasiCtx::default())
            .await?;
        let device = devices.open()?;
        let gpu = backend(&device, candle_wasi_gpu::Limits::default())?;
        let info = gpu.get_device_info();
        println!("{} ({})", info.name, info.backend);
        calls(&args, &mut guest, &*gpu).await?;
        let device = devices.open()?;
        tensor_calls(&args, &device)?;
        println!();
        products(&args, &mut guest, &*gpu, &device).await
    })
}

async fn calls(args: &Args, guest: &mut Guest, gpu: &dyn GpuBackend) -> Result<()> {
    println!("us a call            Rust    guest    added   with the device's work: Rust    guest");
    for (call, share) in CALLS {
        let count = (args.calls / share).max(1);
        let mut rounds = Vec::new();
        // The first is not counted: it makes pipelines and pools.
        for _ in 0..=args.rounds {
            let of_guest = Val::Enum(call.into());
            rounds.push([
                native_calls(gpu, call, count)?,
                guest_times(guest, "calls", &[of_guest, Val::U32(count)]).await?,
            ]);
        }
        let [rust, guest] = medians(&rounds[1..]);
        let each = |seconds: f64| seconds * 1e6 / f64::from(count);
        let (a, b) = (each(rust.queued), each(guest.queued));
        println!(
            "{call:<16} {a:>8.3} {b:>8.3} {:>8.3} {:>31.3} {:>8.3}",
            b - a,
            each(rust.done),
            each(guest.done)
        );
    }
    Ok(())
}

async fn products(
    args: &Args,
    guest: &mut Guest,
    gpu: &dyn GpuBackend,
    device: &Device,
) -> Result<()> {
    println!(
        "ms a product  count   Tensor     Rust    guest   guest of Rust   of Tensor   TFLOP/s"
    );
    for &size in &args.sizes {
        guest_value(guest, "prepare", &[Val::U32(size)]).await?;
        let matrices = Matrices::new(gpu, size)?;
        let side = size as usize;
        let tensor = |seed| Tensor::from_vec(values(size, seed), (side, side), device);
        let tensors = [tensor(1)?, tensor(2)?];

        // The first product may compile a kernel.
        tensor_products(device, &tensors, 1)?;
        let one = tensor_products(device, &tensors, 1)?;
        let count = args.time.as_secs_f64() / one.done.max(1e-6);
        let count = (count as u32).clamp(2, 2000);
        let mut rounds = Vec::new();
        for _ in 0..=args.rounds {
            rounds.push([
                tensor_products(device, &tensors, count)?,
                matrices.products(gpu, count)?,
                guest_times(guest, "products", &[Val::U32(count)]).await?,
            ]);
        }
        let [tensor, rust, of_guest] = medians(&rounds[1..]).map(|times| times.done);
        let each = |seconds: f64| seconds * 1e3 / f64::from(count);
        println!(
            "{size:>6}       {count:>6} {:>8.4} {:>8.4} {:>8.4} {:>14.1}% {:>10.1}% {:>9.2}",
            each(tensor),
            each(rust),
            each(of_guest),
            rust / of_guest * 100.,
            tensor / of_guest * 100.,
            2. * f64::from(size).powi(3) * f64::from(count) / of_guest / 1e12
        );

        let [a, b] = &tensors;
        let expected = a.matmul(b)?.get(side - 1)?.to_vec1::<f32>()?;
        same("Rust", &expected, &matrices.last_row(gpu)?)?;
        let Val::List(row) = guest_value(guest, "last-row", &[]).await? else {
            return Err("last-row returned no list".into());
        };
        let float = |value: &Val| match value {
            Val::Float32(value) => *value,
            _ => f32::NAN,
        };
        same(
            "the guest",
            &expected,
            &row.iter().map(float).collect::<Vec<_>>(),
        )?;
        matrices.destroy(gpu)?;
    }
    Ok(())
}

/// Medians of each column.
fn medians<const N: usize>(rounds: &[[Times; N]]) -> [Times; N] {
    let middle = |of: &dyn Fn(&[Times; N]) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    std::array::from_fn(|i| Times {
        queued: middle(&|round| round[i].queued),
        done: middle(&|round| round[i].done),
    })
}

/// Compares the last row of a product with Candle's.
fn same(who: &str, expected: &[f32], row: &[f32]) -> Result<()> {
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3;
    if expected.len() == row.len() && expected.iter().zip(row).all(close) {
        return Ok(());
    }
    Err(format!("the product of {who} is not that of Tensor::matmul").into())
}

/// Calls an export that returns a `result`, and takes the value of `ok`.
async fn guest_value(guest: &mut Guest, export: &str, args: &[Val]) -> Result<Val> {
    match guest.call(export, args).await?.pop() {
        Some(Val::Result(Ok(value))) => Ok(value.map_or(Val::Bool(true), |value| *value)),
        other => Err(format!("{export} of the guest returned {other:?}").into()),
    }
}

async fn guest_times(guest: &mut Guest, export: &str, args: &[Val]) -> Result<Times> {
    let value = guest_value(guest, export, args).await?;
    let Val::Record(fields) = &value else {
        return Err(format!("{export} of the guest returned {value:?}").into());
    };
    match fields.as_slice() {
        [(_, Val::U64(queued)), (_, Val::U64(done))] => Ok(Times {
            queued: *queued as f64 / 1e9,
            done: *done as f64 / 1e9,
        }),
        other => Err(format!("{export} of the guest returned {other:?}").into()),
    }
}

/// Times `count` calls on an idle device.
fn timed(
    count: u32,
    sync: impl Fn() -> Result<()>,
    mut call: impl FnMut() -> Result<()>,
) -> Result<Times> {
    sync()?;
    let start = Instant::now();
    for _ in 0..count {
        call()?;
    }
    let queued = start.elapsed().as_secs_f64();
    sync()?;
    let done = start.elapsed().as_secs_f64();
    Ok(Times { queued, done })
}

fn wait(gpu: &dyn GpuBackend) -> Result<()> {
    gpu.sync();
    Ok(())
}

/// Whether the backend refused a buffer, as it should.
fn refused(result: candle_wasi_gpu::Result<()>) -> Result<()> {
    match result {
        Err(GpuError::InvalidBuffer) => Ok(()),
        other => Err(format!("buffer 0 was not refused: {other:?}").into()),
    }
}

/// The loops of `guests/timings`.
fn native_calls(gpu: &dyn GpuBackend, call: &str, count: u32) -> Result<Times> {
    let buffer = gpu.buffer_create(4, BufferUsage::STORAGE)?;
    let other = gpu.buffer_create(4, BufferUsage::STORAGE)?;
    let params = ElementwiseParams {
        n_elements: 1,
        op: ElementwiseOp::Relu,
    };
    let times = timed(
        count,
        || wait(gpu),
        || match call {
            "refused" => refused(gpu.buffer_destroy(0)),
            "refused-kernel" => refused(gpu.kernel_elementwise(params, 0, None, 0)),
            "write" => Ok(gpu.buffer_write(buffer, 0, &[0; 4])?),
            "copy" => Ok(gpu.buffer_copy(buffer, 0, other, 0, 4)?),
            "kernel" => Ok(gpu.kernel_elementwise(params, buffer, None, other)?),
            "read" => Ok(gpu.buffer_read(buffer, 0, 4).map(drop)?),
            _ => Err(format!("no call {call}").into()),
        },
    )?;
    gpu.buffer_read(other, 0, 4)?;
    gpu.buffer_destroy(buffer)?;
    gpu.buffer_destroy(other)?;
    Ok(times)
}

/// Times one of Candle's own kernels, to compare with `kernel`.
fn tensor_calls(args: &Args, device: &Device) -> Result<()> {
    let tensor = Tensor::zeros(1, DType::F32, device)?;
    let mut rounds = Vec::new();
    for _ in 0..=args.rounds {
        let sync = || Ok(device.synchronize()?);
        rounds.push([timed(args.calls, sync, || Ok(tensor.relu().map(drop)?))?]);
    }
    let [times] = medians(&rounds[1..]);
    let each = |seconds: f64| seconds * 1e6 / f64::from(args.calls);
    let (queued, done) = (each(times.queued), each(times.done));
    println!("{:<16} {queued:>8.3} {:>49.3}", "Tensor::relu", done);
    Ok(())
}

fn tensor_products(device: &Device, [a, b]: &[Tensor; 2], count: u32) -> Result<Times> {
    let sync = || Ok(device.synchronize()?);
    timed(count, sync, || {
        a.matmul(b)?;
        Ok(())
    })
}

/// The elements of a matrix; the guest computes the same.
fn values(size: u32, seed: u32) -> Vec<f32> {
    let value =
        |i: u32| (i.wrapping_mul(0x9e37_79b9).wrapping_mul(seed) >> 8) as f32 / (1 << 24) as f32;
    (0..size * size).map(|i| value(i) - 0.5).collect()
}

/// Two matrices and their product.
struct Matrices {
    size: u32,
    a: BufferId,
    b: BufferId,
    c: BufferId,
}

impl Matrices {
    fn new(gpu: &dyn GpuBackend, size: u32) -> Result<Self> {
        let bytes = u64::from(size).pow(2) * 4;
        let matrix = |seed| -> Result<BufferId> {
            let buffer = gpu.buffer_create(bytes, BufferUsage::STORAGE)?;
            let data: Vec<u8> = values(size, seed)
                .into_iter()
                .flat_map(f32::to_le_bytes)
                .collect();
            gpu.buffer_write(buffer, 0, &data)?;
            Ok(buffer)
        };
        let (a, b) = (matrix(1)?, matrix(2)?);
        let c = gpu.buffer_create(bytes, BufferUsage::STORAGE)?;
        Ok(Self { size, a, b, c })
    }

    fn products(&self, gpu: &dyn GpuBackend, count: u32) -> Result<Times> {
        let params = MatmulParams {
            m: self.size,
            k: self.size,
            n: self.size,
            trans_a: false,
            trans_b: false,
            alpha: 1.,
            beta: 0.,
        };
        timed(
            count,
            || wait(gpu),
            || Ok(gpu.kernel_matmul(params, self.a, self.b, self.c)?),
        )
    }

    fn last_row(&self, gpu: &dyn GpuBackend) -> Result<Vec<f32>> {
        let start = u64::from(self.size) * u64::from(self.size - 1) * 4;
        let bytes = gpu.buffer_read(self.c, start, self.size * 4)?;
        let word = |word: &[u8]| f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        Ok(bytes.chunks_exact(4).map(word).collect())
    }

    fn destroy(self, gpu: &dyn GpuBackend) -> Result<()> {
        for buffer in [self.a, self.b, self.c] {
            gpu.buffer_destroy(buffer)?;
        }
        Ok(())
    }
}
