//! Time of an encoder's forward pass, with random weights.
//!
//! ```sh
//! cargo run --release -p candle-transformers --features webgpu --example forward_speed -- \
//!     [--profile] [cpu|webgpu|cuda] [MODEL [DTYPE [BATCH]]]
//! ```
//!
//! MODEL is `resnet50`, `vit-b16`, `clip-b32` (images and texts) or `minilm` (texts of 4 to 64 tokens); by default all run. DTYPE is `f32`
//! (the default), `f16` or `bf16`. The output is the batch size, the median time of a pass in milliseconds and the items per second. With
//! `--profile` it is followed by the time of each kernel in one more pass on a GPU, the longest first.
//! `peers.py` in this folder times PyTorch and onnxruntime on the same models.

use std::time::Instant;

use candle_core::{bail, DType, Device, KernelTime, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::clip::{ClipConfig, ClipModel};
use candle_transformers::models::{bert, resnet, vit};

const CLASSES: usize = 1000;
const BERT_WORDS: usize = 30_522;
const CLIP_WORDS: usize = 49_408;
const CLIP_TOKENS: usize = 77;
/// Before the clock runs: kernels are compiled and chosen in the first passes.
const WARM_UP: usize = 3;
/// Passes that are timed.
const PASSES: usize = 15;

fn main() {
    if let Err(err) = run() {
        eprintln!("forward_speed: {err}");
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let (flags, args): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|arg| arg == "--profile");
    let mut args = args.iter().map(String::as_str).peekable();
    let device = match args.next_if(|arg| ["cpu", "webgpu", "cuda"].contains(arg)) {
        Some("cpu") => Device::Cpu,
        Some("webgpu") => Device::new_webgpu(0)?,
        Some(_) => Device::new_cuda(0)?,
        None => Device::best_available()?,
    };
    let model = args.next();
    let dtype = match args.next().unwrap_or("f32") {
        "f32" => DType::F32,
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        other => bail!("there is no dtype {other:?} here; f32, f16 and bf16 are there"),
    };
    let batch = match args.next() {
        None => None,
        Some(text) => match text.parse::<usize>() {
            Ok(batch) if batch > 0 => Some(batch),
            _ => bail!("a batch of {text:?}: give a whole number from 1 on"),
        },
    };
    if let Some(more) = args.next() {
        bail!("{more:?} is one argument too many: [cpu|webgpu|cuda] [MODEL [DTYPE [BATCH]]]")
    }
    let known: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
    if let Some(wanted) = model.filter(|wanted| !known.contains(wanted)) {
        bail!(
            "there is no model {wanted}; the models are {}",
            known.join(", ")
        )
    }
    for entry in MODELS
        .iter()
        .filter(|it| model.is_none_or(|name| name == it.name))
    {
        let batch = batch.unwrap_or(entry.batch);
        let pass = (entry.load)(dtype, &device, batch)?;
        let median = timed(&pass, &device)?;
        println!(
            "{:9} {:4} batch {batch:3}: {:9.2} ms, {:9.1} in a second",
            entry.name,
            dtype.as_str(),
            1e3 * median,
            batch as f64 / median
        );
        if !flags.is_empty() {
            profile(&pass, &device)?;
        }
    }
    Ok(())
}

/// The median, in seconds.
fn timed(pass: &Pass, device: &Device) -> Result<f64> {
    for _ in 0..WARM_UP {
        pass()?;
    }
    device.synchronize()?;
    let mut seconds = Vec::with_capacity(PASSES);
    for _ in 0..PASSES {
        let start = Instant::now();
        pass()?;
        device.synchronize()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[PASSES / 2])
}

/// Prints the times of the kernels of a pass. Each dispatch is timed alone, so their sum exceeds the time of a pass.
fn profile(pass: &Pass, device: &Device) -> Result<()> {
    let times: Vec<KernelTime> = match device {
        Device::Cpu => bail!("--profile times the kernels of a GPU: use it with webgpu or cuda"),
        #[cfg(feature = "webgpu")]
        Device::WebGpu(gpu) => {
            gpu.start_profile()?;
            pass()?;
            gpu.stop_profile()?
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(gpu) => {
            gpu.start_profile()?;
            pass()?;
            gpu.stop_profile()?
        }
        other => bail!("--profile does not support {:?}", other.location()),
    };
    let total: f64 = times.iter().map(|time| time.total_us).sum();
    println!("{total:10.1} us in all kernels");
    for time in times {
        println!(
            "{:10.1} us {:4} x {}",
            time.total_us, time.count, time.kernel
        );
    }
    Ok(())
}

/// A forward pass on inputs that are on the device already.
type Pass = Box<dyn Fn() -> Result<Tensor>>;

struct Entry {
    name: &'static str,
    batch: usize,
    load: fn(DType, &Device, usize) -> Result<Pass>,
}

const MODELS: &[Entry] = &[
    Entry {
        name: "resnet50",
        batch: 1,
        load: |dtype, device, batch| {
            let model = resnet::resnet50(CLASSES, Random::weights(dtype, device))?;
            let pictures = pictures(dtype, device, batch)?;
            Ok(Box::new(move || model.forward(&pictures)))
        },
    },
    Entry {
        name: "vit-b16",
        batch: 1,
        load: |dtype, device, batch| {
            let config = vit::Config::vit_base_patch16_224();
            let model = vit::Model::new(&config, CLASSES, Random::weights(dtype, device))?;
            let pictures = pictures(dtype, device, batch)?;
            Ok(Box::new(move || model.forward(&pictures)))
        },
    },
    Entry {
        name: "clip-b32",
        batch: 1,
        load: |dtype, device, batch| {
            let config = ClipConfig::vit_base_patch32();
            let model = ClipModel::new(Random::weights(dtype, device), &config)?;
            let pictures = pictures(dtype, device, batch)?;
            let words = ids(batch, CLIP_TOKENS, CLIP_WORDS, device)?;
            Ok(Box::new(move || Ok(model.forward(&pictures, &words)?.0)))
        },
    },
    Entry {
        name: "minilm",
        batch: 64,
        load: |dtype, device, batch| {
            let config = bert::Config {
                vocab_size: BERT_WORDS,
                hidden_size: 384,
                num_hidden_layers: 6,
                num_attention_heads: 12,
                intermediate_size: 1536,
                ..bert::Config::default()
            };
            let model = bert::BertModel::load(Random::weights(dtype, device), &config)?;
            // As sentences are: few are as long as the longest.
            let lens: Vec<usize> = (0..batch).map(|i| 4 + (i * 37) % 61).collect();
            let longest = lens.iter().copied().max().unwrap_or(1);
            let tokens = ids(batch, longest, BERT_WORDS, device)?;
            let seen = lens
                .iter()
                .flat_map(|len| (0..longest).map(move |i| u32::from(i < *len)));
            let seen = Tensor::from_vec(seen.collect(), (batch, longest), device)?;
            let kinds = tokens.zeros_like()?;
            Ok(Box::new(move || {
                model.forward(&tokens, &kinds, Some(&seen))
            }))
        },
    },
];

fn pictures(dtype: DType, device: &Device, batch: usize) -> Result<Tensor> {
    Tensor::randn(0f32, 1., (batch, 3, 224, 224), device)?.to_dtype(dtype)
}

fn ids(batch: usize, tokens: usize, words: usize, device: &Device) -> Result<Tensor> {
    let ids = (0..batch * tokens).map(|i| ((i * 7919 + 13) % words) as u32);
    Tensor::from_vec(ids.collect(), (batch, tokens), device)
}

/// Weights whose sums keep the size of what they sum. Norms change nothing.
struct Random;

impl Random {
    fn weights(dtype: DType, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(Self), dtype, device.clone())
    }
}

impl SimpleBackend for Random {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        if shape.rank() == 1 {
            let ones = name.ends_with("weight") || name.ends_with("var");
            return Tensor::full(f32::from(u8::from(ones)), shape, dev)?.to_dtype(dtype);
        }
        let rows = shape.dims().first().copied().unwrap_or(1).max(1);
        let deviation = (rows as f32 / shape.elem_count().max(1) as f32).sqrt();
        Tensor::randn(0f32, deviation, shape, dev)?.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} is requested without a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}
