//! Prompt and generation speed of a known shape on random weights.
//!
//! Measured like other engines' benchmarks: the prompt is one pass over all of its tokens from an empty cache;
//! generation is single-token steps, from an empty cache or behind a context, of one sequence or of several together; the next
//! token is chosen greedily on the device and its id read back each time; as in `generate`, the step after it is queued before that. The
//! device is synchronised before the clock is read.

pub mod ops;
pub(crate) mod random;
pub mod shapes;
pub mod speculation;
mod split;

use crate::backend::per_second;
use crate::bench::shapes::{bytes_per_token, Dimensions, ModelShape, Steps};
use crate::error::Doing;
use crate::format::{KvType, WeightFormat};
use crate::progress::note;
use crate::{Error, Result};
use candle_core::quantized::GgmlDType;
#[cfg(any(feature = "cuda", feature = "webgpu"))]
use candle_core::KernelTime;
use candle_core::{DType, Device, PendingVec1, Tensor, D};
use candle_transformers::blocks::DecoderSpec;
use candle_transformers::generation::{Draw, NextToken};
use candle_transformers::parallel::{ParallelDecoder, ParallelState};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The settings of a benchmark.
#[derive(Clone, Copy, Debug)]
pub struct BenchRequest {
    /// Model shape.
    pub shape: ModelShape,
    /// The format of the weights, which decides that of activations ([`WeightFormat::activations`]).
    pub format: WeightFormat,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// Number of prompt tokens, at least 1.
    pub prompt: usize,
    /// Number of tokens to generate, at least 1.
    pub generate: usize,
    /// Number of tokens in the KV cache before generation starts.
    pub context: usize,
    /// Sequences that are decoded together, at least 1.
    pub batch: usize,
    /// Number of layers on the device, the last ones, of weights in blocks; the others are on the CPU. `None` for all.
    pub gpu_layers: Option<usize>,
    /// Number of measurements of each, at least 1.
    pub repeat: usize,
    /// The memory bandwidth in GB/s to compare with.
    pub bandwidth: Option<f64>,
    /// Whether to time each kernel on the GPU, in a separate run after the measurements.
    pub profile: bool,
}

/// The results of a benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// The shape's name.
    pub shape: &'static str,
    /// The shape's numbers.
    pub dimensions: Dimensions,
    /// The storage format of the weights.
    pub dtype: String,
    /// The element type of activations.
    pub activations: &'static str,
    /// The storage format of keys and values.
    pub kv: &'static str,
    /// The device's name.
    pub device: String,
    /// Number of measurements of each speed.
    pub repeat: usize,
    /// Tokens that were in the cache before the first generated one.
    pub context: usize,
    /// Sequences that were decoded together.
    pub batch: usize,
    /// Layers on the device, if the others were on the CPU.
    pub gpu_layers: Option<usize>,
    /// The pass over the prompt, of one sequence.
    pub prompt: Speed,
    /// Single-token steps; the tokens of all sequences together.
    pub generation: Speed,
    /// Minimum number of bytes read per generated token.
    pub bytes_per_token: f64,
    /// The share of `--bandwidth` that reading those bytes at the median speed takes, from 0 to 1.
    pub bandwidth_share: Option<f64>,
    /// The most memory that was in use on the device, where it keeps count.
    pub peak_bytes: Option<u64>,
    /// GPU time by kernel of a pass over the prompt, then of a generated token; empty without `--profile`.
    pub profile: Vec<PhaseProfile>,
}

/// The GPU time of one phase by kernel, longest first.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseProfile {
    /// `prompt` or `generate`.
    pub phase: &'static str,
    /// Each kernel with its dispatches and its time in microseconds, per pass or per token.
    pub kernels: Vec<(String, f64, f64)>,
}

/// One phase's speed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Speed {
    /// Tokens of a sequence in each measurement.
    pub tokens: usize,
    /// The median in tokens per second.
    pub median: f64,
    /// The slowest measurement.
    pub min: f64,
    /// The fastest measurement.
    pub max: f64,
    /// Dispatches per pass over the prompt, or per step of generation, where the device counts them.
    pub dispatches: Option<f64>,
    /// Submissions to the device's queue, counted likewise.
    pub submits: Option<f64>,
}

/// Makes random weights on `device` and measures. Progress goes to standard error.
///
/// # Errors
/// A device that runs out of memory or fails otherwise.
pub fn run(request: &BenchRequest, device: &Device, device_name: &str) -> Result<BenchReport> {
    run_shared(request, std::slice::from_ref(device), device_name)
}

/// As [`run`], on devices that share each layer. Kernels, dispatches and memory are those of the first.
///
/// # Errors
/// As [`run`]; a shape that as many devices cannot share.
pub fn run_shared(
    request: &BenchRequest,
    devices: &[Device],
    device_name: &str,
) -> Result<BenchReport> {
    let Some(device) = devices.first() else {
        return Err(Error::Parameter {
            name: "gpus",
            value: "0".to_string(),
            expected: "at least 1",
        });
    };
    let positions = request.prompt.max(request.context + request.generate);
    let dtype = request.format.activations();
    let kv_dtype = request.kv_type.dtype(request.format, dtype, device);
    let start = Instant::now();
    let spec = random::spec(request.shape, positions, request.format);
    let spec = spec.doing("generating random weights")?;
    let model = match cpu_layers(request, &spec, devices)? {
        None => random::model(&spec, request.format, [dtype, kv_dtype], devices),
        Some((format, layers)) => split::model(&spec, format, dtype, device, layers)
            .and_then(|model| model.with_kv_dtype(kv_dtype))
            .map(ParallelDecoder::from),
    };
    let model = model.doing("generating random weights")?;
    device.synchronize().doing("generating random weights")?;
    let dimensions = Dimensions::from(&spec);
    let mut runner = Runner {
        state: model.new_state(),
        model,
        device,
        context: request.context,
        batch: request.batch,
    };
    note(&format!(
        "generated random weights for {} in {:.1} s",
        request.shape.name(),
        start.elapsed().as_secs_f64()
    ));

    let prompt = tokens(request.prompt, dimensions.vocab);
    warm_up(|| runner.prompt(&prompt))?;
    let prompt_speed = measure("prompt", request.repeat, [request.prompt, 1], 1, || {
        runner.prompt(&prompt)
    })?;
    runner.fill(dimensions.vocab).doing("filling the cache")?;
    let few = request.generate.min(8);
    warm_up(|| runner.generate(few))?;
    let steps = request.generate;
    let sizes = [steps, request.batch];
    let generation = measure("generation", request.repeat, sizes, steps, || {
        runner.generate(steps)
    })?;
    let read = Steps {
        context: request.context,
        count: steps,
        batch: request.batch,
    };
    let bytes_per_token = bytes_per_token(&spec, request.format, kv_dtype, read);
    let mut profile = Vec::new();
    if request.profile {
        profile.push(profiled(device, "prompt", 1, || runner.prompt(&prompt))?);
        profile.push(profiled(device, "generate", steps, || {
            runner.generate(steps)
        })?);
    }
    Ok(BenchReport {
        shape: request.shape.name(),
        dimensions,
        dtype: request.format.name(),
        activations: dtype.as_str(),
        kv: kv_dtype.as_str(),
        device: device_name.to_string(),
        repeat: request.repeat,
        context: request.context,
        batch: request.batch,
        gpu_layers: request.gpu_layers,
        prompt: prompt_speed,
        generation,
        bytes_per_token,
        bandwidth_share: request
            .bandwidth
            .map(|gb| bytes_per_token * generation.median / (gb * 1e9)),
        peak_bytes: Counters::read(device).map(|counters| counters.peak_bytes),
        profile,
    })
}

/// The format and the number of layers on the CPU.
///
/// # Errors
/// If the model has fewer layers than are to be on the device; with several devices, or without blocks.
fn cpu_layers(
    request: &BenchRequest,
    spec: &DecoderSpec,
    devices: &[Device],
) -> Result<Option<(GgmlDType, usize)>> {
    let Some(count) = request.gpu_layers else {
        return Ok(None);
    };
    let refused = |value: String, expected| {
        Err(Error::Parameter {
            name: "gpu_layers",
            value,
            expected,
        })
    };
    match (request.format, spec.layers.len().checked_sub(count)) {
        (_, None) => refused(
            format!("{count} of {} layers", spec.layers.len()),
            "at most the model's layers",
        ),
        _ if devices.len() > 1 => refused(
            format!("{count} on {} devices", devices.len()),
            "one device",
        ),
        (WeightFormat::Blocks(format), Some(layers)) => Ok(Some((format, layers))),
        (format, _) => refused(
            format!("{count} with weights of {}", format.name()),
            "a dtype of blocks, such as q8_0",
        ),
    }
}

/// Time that an idle GPU needs to raise its clocks.
const WARM_UP: Duration = Duration::from_millis(400);

/// Runs at least once, and until clocks are up.
fn warm_up(run: impl Fn() -> candle_core::Result<Run>) -> Result<()> {
    let start = Instant::now();
    loop {
        run().doing("warming up")?;
        if start.elapsed() >= WARM_UP {
            return Ok(());
        }
    }
}

/// Times each kernel of one phase; `passes` is what its sums are divided by.
fn profiled(
    device: &Device,
    phase: &'static str,
    passes: usize,
    run: impl FnOnce() -> candle_core::Result<Run>,
) -> Result<PhaseProfile> {
    let kernels = kernel_times(device, run).doing("timing kernels")?;
    let per_pass = |sum: f64| sum / passes as f64;
    let kernels = kernels.into_iter();
    let kernels = kernels.map(|(kernel, count, us)| (kernel, per_pass(count), per_pass(us)));
    Ok(PhaseProfile {
        phase,
        kernels: kernels.collect(),
    })
}

/// Each kernel that ran meanwhile, how often, and its microseconds.
fn kernel_times(
    device: &Device,
    run: impl FnOnce() -> candle_core::Result<Run>,
) -> candle_core::Result<Vec<(String, f64, f64)>> {
    #[cfg(feature = "webgpu")]
    if let Some(gpu) = device.as_wgpu() {
        gpu.start_profile()?;
        return told(run(), gpu.stop_profile());
    }
    #[cfg(feature = "cuda")]
    if let Device::Cuda(gpu) = device {
        gpu.start_profile()?;
        return told(run(), gpu.stop_profile());
    }
    drop(run);
    candle_core::bail!(
        "kernel timing needs a GPU and a build with its feature; the device is {:?}",
        device.location()
    )
}

/// The profile of a run, on any kind of device.
#[cfg(any(feature = "cuda", feature = "webgpu"))]
fn told(
    run: candle_core::Result<Run>,
    profile: candle_core::Result<Vec<KernelTime>>,
) -> candle_core::Result<Vec<(String, f64, f64)>> {
    run?;
    let times = profile?.into_iter();
    let times = times.map(|time| (time.kernel, time.count as f64, time.total_us));
    Ok(times.collect())
}

/// Runs one phase of `tokens` for each of `batch` sequences `repeat` times; `passes` is what the counters are divided by.
fn measure(
    name: &str,
    repeat: usize,
    [tokens, batch]: [usize; 2],
    passes: usize,
    run: impl Fn() -> candle_core::Result<Run>,
) -> Result<Speed> {
    let mut rates = Vec::with_capacity(repeat);
    let mut counted = None;
    for round in 1..=repeat {
        let run = run().doing("measuring")?;
        let rate = per_second(tokens * batch, run.time);
        note(&format!("{name} {round}/{repeat}: {rate:.1} tok/s"));
        rates.push(rate);
        counted = run.counted;
    }
    rates.sort_by(f64::total_cmp);
    let per_pass = |count: u64| count as f64 / passes as f64;
    Ok(Speed {
        tokens,
        median: median(&rates),
        min: rates.first().copied().unwrap_or_default(),
        max: rates.last().copied().unwrap_or_default(),
        dispatches: counted.map(|counted| per_pass(counted.dispatches)),
        submits: counted.map(|counted| per_pass(counted.submits)),
    })
}

/// The median of a sorted list.
fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// One measurement.
struct Run {
    time: Duration,
    counted: Option<Counters>,
}

/// Arbitrary ids, as a prompt.
fn tokens(count: usize, vocab: usize) -> Vec<u32> {
    (0..count).map(|i| (i * 7919 % vocab) as u32).collect()
}

/// The most tokens of the context that go through the model at once.
const FILL: usize = 512;

/// A model on random weights.
struct Runner<'a> {
    model: ParallelDecoder,
    /// Holds the context but for its last token.
    state: ParallelState,
    device: &'a Device,
    context: usize,
    batch: usize,
}

impl Runner<'_> {
    /// One pass over the prompt.
    fn prompt(&self, tokens: &[u32]) -> candle_core::Result<Run> {
        let input = Tensor::new(tokens, self.device)?.unsqueeze(0)?;
        self.timed(|| {
            let mut state = self.model.new_state();
            self.model.next_logits(&input, 0, &mut state).map(drop)
        })
    }

    /// Puts the context into the state, but for its last token.
    fn fill(&mut self, vocab: usize) -> candle_core::Result<()> {
        let mut state = self.model.new_state();
        let context = tokens(self.context.saturating_sub(1), vocab);
        for (part, tokens) in context.chunks(FILL).enumerate() {
            let row = Tensor::new(tokens, self.device)?;
            let ids = row.repeat((self.batch, 1))?;
            self.logits(&ids, part * FILL, &mut state)?;
        }
        self.state = state;
        self.device.synchronize()
    }

    /// The logits of what follows each sequence.
    fn logits(
        &self,
        ids: &Tensor,
        position: usize,
        state: &mut ParallelState,
    ) -> candle_core::Result<Tensor> {
        match self.batch {
            1 => self.model.next_logits(ids, position, state),
            batch => {
                let counts = vec![ids.dim(1)?; batch];
                self.model.next_logits_of_rows(ids, &counts, state)
            }
        }
    }

    /// `steps` single-token steps, each fed with the tokens that the one before chose.
    fn generate(&self, steps: usize) -> candle_core::Result<Run> {
        let mut state = self.state.clone();
        let mut ids = Tensor::zeros((self.batch, 1), DType::U32, self.device)?;
        if self.context > 0 {
            // Untimed: a clone copies its keys and values with the first that it adds.
            self.logits(&ids, self.context - 1, &mut state)?;
        }
        let positions = self.context..self.context + steps;
        if self.batch == 1 {
            return self.timed(|| {
                let mut last: Option<NextToken> = None;
                for position in positions {
                    let token = self
                        .model
                        .next_token(&ids, position, &mut state, &Draw::GREEDY)?;
                    ids = token.ids().clone();
                    if let Some(last) = last.replace(token) {
                        last.wait()?;
                    }
                }
                last.map_or(Ok(()), |last| last.wait().map(drop))
            });
        }
        self.timed(|| {
            let mut last: Option<PendingVec1<u32>> = None;
            for position in positions {
                let logits = self.logits(&ids, position, &mut state)?;
                ids = logits.argmax_keepdim(D::Minus1)?;
                let read = ids.flatten_all()?.begin_to_vec1::<u32>()?;
                if let Some(last) = last.replace(read) {
                    last.wait()?;
                }
            }
            last.map_or(Ok(()), |last| last.wait().map(drop))
        })
    }

    fn timed(&self, run: impl FnOnce() -> candle_core::Result<()>) -> candle_core::Result<Run> {
        self.device.synchronize()?;
        let before = Counters::read(self.device);
        let start = Instant::now();
        run()?;
        self.device.synchronize()?;
        let time = start.elapsed();
        let after = Counters::read(self.device);
        let counted = after.zip(before).map(|(after, before)| after.since(before));
        Ok(Run { time, counted })
    }
}

/// A device's counters since it was opened.
#[derive(Clone, Copy)]
struct Counters {
    dispatches: u64,
    submits: u64,
    peak_bytes: u64,
}

impl Counters {
    fn read(device: &Device) -> Option<Self> {
        #[cfg(feature = "webgpu")]
        if let Some(gpu) = device.as_wgpu() {
            let stats = gpu.stats();
            return Some(Self {
                dispatches: stats.dispatches,
                submits: stats.submits,
                peak_bytes: stats.peak_bytes,
            });
        }
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                let stats = device.stats();
                Some(Self {
                    dispatches: stats.launches,
                    // Each kernel is one.
                    submits: stats.launches,
                    peak_bytes: stats.peak_bytes,
                })
            }
            _ => None,
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            dispatches: self.dispatches - before.dispatches,
            submits: self.submits - before.submits,
            peak_bytes: self.peak_bytes,
        }
    }
}

impl BenchReport {
    /// A small table for a reader.
    pub fn table(&self) -> String {
        let mut lines = vec![
            format!(
                "{} {} on {}, activations {}, keys and values {}",
                self.shape, self.dtype, self.device, self.activations, self.kv
            ),
            format!("{:<16}{:>12}{:>12}{:>12}", "tok/s", "median", "min", "max"),
        ];
        for (name, speed) in [("prompt", &self.prompt), ("generate", &self.generation)] {
            lines.push(format!(
                "{:<16}{:>12.1}{:>12.1}{:>12.1}",
                format!("{name} {}", speed.tokens),
                speed.median,
                speed.min,
                speed.max
            ));
        }
        let counts = |speed: &Speed| match (speed.dispatches, speed.submits) {
            (Some(dispatches), Some(submits)) => {
                format!("{dispatches:.1} dispatches in {submits:.1} submits")
            }
            _ => "dispatches are not counted on this device".to_string(),
        };
        lines.push(format!("prompt pass:     {}", counts(&self.prompt)));
        lines.push(match self.batch {
            1 => format!("generated token: {}", counts(&self.generation)),
            batch => format!("step of {batch}: {}", counts(&self.generation)),
        });
        if let Some(layers) = self.gpu_layers {
            lines.push(format!(
                "{layers} layers on the device, the others on the CPU"
            ));
        }
        if self.context > 0 {
            lines.push(format!("cached tokens: {}", self.context));
        }
        lines.push(format!(
            "bytes read per generated token: {:.1} MB",
            self.bytes_per_token / 1e6
        ));
        if let Some(share) = self.bandwidth_share {
            lines.push(format!("share of the bandwidth: {:.1}%", share * 100.0));
        }
        if let Some(peak) = self.peak_bytes {
            lines.push(format!("peak memory: {:.1} MB", peak as f64 / 1e6));
        }
        for phase in &self.profile {
            let total: f64 = phase.kernels.iter().map(|(_, _, us)| us).sum();
            lines.push(format!("{} on the GPU: {total:.1} us", phase.phase));
            for (kernel, count, us) in &phase.kernels {
                lines.push(format!("{us:>10.1} us {count:>6.1} x {kernel}"));
            }
        }
        lines.push(String::new());
        lines.join("\n")
    }
}
