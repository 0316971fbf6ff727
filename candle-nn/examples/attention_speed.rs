//! Measures attention on the WebGPU device in `CANDLE_WEBGPU_ADAPTER`, or the first one, and on the first CUDA device.
//!
//! ```sh
//! cargo run --release -p candle-nn --features webgpu,cuda --example attention_speed -- [webgpu|cuda|decode|prompt]...
//! ```
//!
//! Queries in f32, keys and values in f16, the sizes of Llama 3 8B and of a smaller model. One query per text, as in generation: keys and
//! values are read once, so their bytes per second matter. Then prompts, causal, where arithmetic matters. Keys and values alternate, and
//! exceed any cache. A call's queries are the result of the previous one. Medians of 7; the error is that of the last queries relative to
//! attention from separate ops, by its norm.

use std::time::{Duration, Instant};

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops::{sdpa, sdpa_slow};

/// Heads, heads of keys and values, and the length of a head.
const MODELS: [(usize, usize, usize); 2] = [(32, 8, 128), (24, 8, 64)];
/// Texts, and keys of each.
const DECODES: [(usize, usize); 4] = [(1, 512), (1, 4096), (1, 32_768), (8, 4096)];
const PROMPTS: [usize; 3] = [512, 2048, 7936];
/// Number of bytes that exceeds any cache.
const BEYOND_CACHES: usize = 512 << 20;
/// Duration of the runs before timing: the first ones compile kernels, and an idle GPU raises its clock only then.
const WARM_UP: Duration = Duration::from_millis(200);
/// About the duration of a timed run.
const RUN: Duration = Duration::from_millis(20);
/// Number of queries whose result is compared.
const COMPARED: usize = 64;

/// Queries, and the keys and values of several layers.
struct Case {
    queries: Tensor,
    layers: Vec<[Tensor; 2]>,
    scale: f32,
}

impl Case {
    fn new(
        (heads, kv_heads, dim): (usize, usize, usize),
        [batch, queries, keys]: [usize; 3],
        device: &Device,
    ) -> Result<Self> {
        let bytes = 4 * batch * kv_heads * keys * dim;
        let random = |shape| Tensor::randn(0f32, 1., shape, device);
        let cache = || random((batch, kv_heads, keys, dim))?.to_dtype(DType::F16);
        let layers =
            (0..(part_of(BEYOND_CACHES) / bytes).clamp(1, 64)).map(|_| Ok([cache()?, cache()?]));
        Ok(Self {
            queries: random((batch, heads, queries, dim))?,
            layers: layers.collect::<Result<_>>()?,
            scale: (dim as f32).sqrt().recip(),
        })
    }

    fn run(&self, count: usize) -> Result<Duration> {
        let device = self.queries.device();
        device.synchronize()?;
        let start = Instant::now();
        let mut queries = self.queries.clone();
        for [k, v] in self.layers.iter().cycle().take(count) {
            queries = sdpa(&queries, k, v, None, true, self.scale, 1.)?;
        }
        device.synchronize()?;
        Ok(start.elapsed())
    }

    /// Seconds per call.
    fn seconds(&self) -> Result<f64> {
        let start = Instant::now();
        let mut once = self.run(1)?;
        while start.elapsed() < WARM_UP {
            once = self.run(4)? / 4;
        }
        let count = (RUN.as_secs_f64() / once.as_secs_f64()).clamp(1., 200.) as usize;
        let mut times = Vec::new();
        for _ in 0..7 {
            times.push(self.run(count)?.as_secs_f64() / count as f64);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    fn error(&self) -> Result<f32> {
        let norm = |t: &Tensor| t.sqr()?.sum_all()?.to_scalar::<f32>();
        let last = |t: &Tensor| {
            let count = COMPARED.min(t.dim(2)?);
            t.narrow(2, t.dim(2)? - count, count)
        };
        let [k, v] = &self.layers[0];
        let got = last(&sdpa(&self.queries, k, v, None, true, self.scale, 1.)?)?;
        let want = sdpa_slow(
            &last(&self.queries)?,
            &k.to_dtype(DType::F32)?,
            &v.to_dtype(DType::F32)?,
            None,
            true,
            self.scale,
            1.,
        )?;
        Ok((norm(&(got - &want)?)? / norm(&want)?).sqrt())
    }
}

/// `QUICK` is for software adapters, where only the errors are meaningful: it divides the numbers of keys.
fn part_of(keys: usize) -> usize {
    match std::env::var_os("QUICK") {
        Some(_) => keys / 32,
        None => keys,
    }
}

fn decode(device: &Device) -> Result<()> {
    println!("heads       texts x keys       us    TB/s   error");
    for model in MODELS {
        let (heads, kv_heads, dim) = model;
        for (batch, keys) in DECODES {
            let keys = part_of(keys);
            let case = Case::new(model, [batch, 1, keys], device)?;
            let seconds = case.seconds()?;
            println!(
                "{heads}/{kv_heads} x {dim:<3} {batch:>5} x {keys:<6} {:>8.1} {:>7.2} {:>7.1e}",
                seconds * 1e6,
                (4 * batch * kv_heads * keys * dim) as f64 / seconds / 1e12,
                case.error()?
            );
        }
    }
    Ok(())
}

fn prompt(device: &Device) -> Result<()> {
    println!("heads       tokens       us TFLOP/s   error");
    for model in MODELS {
        let (heads, kv_heads, dim) = model;
        for tokens in PROMPTS.map(part_of) {
            let case = Case::new(model, [1, tokens, tokens], device)?;
            let seconds = case.seconds()?;
            // Half of the scores are hidden.
            let operations = 2 * heads * tokens * tokens * dim;
            println!(
                "{heads}/{kv_heads} x {dim:<3} {tokens:>6} {:>8.1} {:>7.1} {:>7.1e}",
                seconds * 1e6,
                operations as f64 / seconds / 1e12,
                case.error()?
            );
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // All, unless some are named.
    let chosen = |word: &str, other: &str| {
        let named = |name: &str| words.iter().any(|it| it == name);
        named(word) || !named(other)
    };
    for (name, other) in [("webgpu", "cuda"), ("cuda", "webgpu")] {
        if !chosen(name, other) {
            continue;
        }
        let device = match name {
            "webgpu" => Device::new_webgpu(0)?,
            _ => Device::new_cuda(0)?,
        };
        println!("{name}");
        if chosen("decode", "prompt") {
            decode(&device)?;
        }
        if chosen("prompt", "decode") {
            prompt(&device)?;
        }
    }
    Ok(())
}
