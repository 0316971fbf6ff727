//! `candle-dvm bench`.

use crate::Error;
use crate::Result;
use crate::{print, print_json};
use candle_engine::bench::shapes::ModelShape;
use candle_engine::bench::speculation::{self, SpeculationRequest};
use candle_engine::bench::{self, BenchRequest};
use candle_engine::device::{describe, describe_all, DeviceChoice, DeviceParser};
use candle_engine::format::{KvType, WeightFormat};
use candle_engine::registry::BackendRegistry;

#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct Args {
    /// Model shape
    #[arg(long, value_enum, default_value_t = ModelShape::Llama3_2_1b)]
    shape: ModelShape,
    /// Element type of weights and activations; with quantised weights, activations are f32
    #[arg(long, value_enum, default_value = "f16")]
    dtype: WeightFormat,
    /// Element type of the KV cache
    #[arg(long, value_enum, default_value = "auto")]
    kv_dtype: KvType,
    /// Number of prompt tokens
    #[arg(long, value_name = "N", default_value_t = 512)]
    prompt: usize,
    /// Number of tokens to generate
    #[arg(long, value_name = "N", default_value_t = 128)]
    generate: usize,
    /// Number of tokens in the KV cache before generation starts
    #[arg(long, value_name = "N", default_value_t = 0)]
    context: usize,
    /// Number of sequences to decode together; the reported speed is their total
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: usize,
    /// Layers on the device, the last ones, of weights in blocks; the others run on the CPU, where prompts of 128 tokens or more copy them
    /// from (`RUST_LOG=candle_transformers=debug` logs how fast) [default: all]
    #[arg(long, value_name = "N", conflicts_with_all = ["draft", "ops"])]
    gpu_layers: Option<usize>,
    /// Number of measurements; the median is reported
    #[arg(long, value_name = "N", default_value_t = 5)]
    repeat: usize,
    /// Device to run on
    #[arg(long, default_value_t, value_parser = DeviceParser)]
    device: DeviceChoice,
    /// Split each layer across N devices of this kind (tensor parallelism). NVIDIA GPUs communicate over NCCL, other devices through the
    /// host; ranks on the CPU share its cores and are only for tests
    #[arg(long, value_name = "N", default_value_t = 1)]
    gpus: usize,
    /// Total memory bandwidth of all devices, to report the share that generation uses
    #[arg(long, value_name = "GB/s")]
    bandwidth: Option<f64>,
    /// Also time each kernel on the GPU (webgpu only), in a separate run
    #[arg(long)]
    profile: bool,
    /// Measure generation with a draft model of this shape, for several numbers of proposed tokens; a seeded coin accepts them
    #[arg(long, value_enum, value_name = "SHAPE")]
    draft: Option<ModelShape>,
    /// Element type of the draft model's weights; by default that of the model's
    #[arg(long, value_enum, value_name = "DTYPE", requires = "draft")]
    draft_dtype: Option<WeightFormat>,
    /// Probability that a proposed token is accepted
    #[arg(long, value_name = "P", requires = "draft", default_value_t = 0.8)]
    accept: f64,
    /// Maximum number of tokens to propose at once
    #[arg(long, value_name = "N", requires = "draft", default_value_t = 8)]
    draft_tokens: usize,
    /// Benchmark single ops against the CPU instead of a model
    #[arg(long)]
    ops: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// More than any of the shapes was trained for; beyond it attention alone fills the memory.
const MAX_TOKENS: usize = 1 << 17;

pub(super) fn run(args: Args) -> Result<()> {
    for (name, value, allowed, expected) in [
        ("prompt", args.prompt, 1..=MAX_TOKENS, "1 to 131072"),
        ("generate", args.generate, 1..=MAX_TOKENS, "1 to 131072"),
        ("context", args.context, 0..=MAX_TOKENS, "0 to 131072"),
        ("batch", args.batch, 1..=1000, "1 to 1000"),
        ("repeat", args.repeat, 1..=1000, "1 to 1000"),
        ("draft_tokens", args.draft_tokens, 1..=64, "1 to 64"),
    ] {
        if !allowed.contains(&value) {
            return Err(Error::parameter(name, value, expected));
        }
    }
    if let Some(bandwidth) = args.bandwidth {
        if !(bandwidth.is_finite() && bandwidth > 0.0) {
            return Err(Error::parameter("bandwidth", bandwidth, "a number above 0"));
        }
    }
    if !(0.0..=1.0).contains(&args.accept) {
        return Err(Error::parameter(
            "accept",
            args.accept,
            "a number from 0 to 1",
        ));
    }
    if args.draft.is_some() && (args.gpus, args.batch, args.context) != (1, 1, 0) {
        return Err(Error::parameter(
            "draft",
            "with --gpus, --batch or --context",
            "none of these three beside it",
        ));
    }
    crate::check_gpus(args.gpus)?;
    let registry = BackendRegistry::detect();
    let devices = registry.select(args.device)?.open_several(args.gpus)?;
    let device = &devices[0];
    if args.ops {
        let report = bench::ops::run(
            args.dtype.activations(),
            args.repeat,
            device,
            &describe(device),
        )?;
        return if args.json {
            print_json(&report)
        } else {
            print(&report.table())
        };
    }
    if let Some(draft) = args.draft {
        let request = SpeculationRequest {
            shapes: [args.shape, draft],
            formats: [args.dtype, args.draft_dtype.unwrap_or(args.dtype)],
            kv_type: args.kv_dtype,
            accept: args.accept,
            most: args.draft_tokens,
            generate: args.generate,
            repeat: args.repeat,
        };
        let report = speculation::run(&request, device, &describe(device))?;
        return if args.json {
            print_json(&report)
        } else {
            print(&report.table())
        };
    }
    let request = BenchRequest {
        shape: args.shape,
        format: args.dtype,
        kv_type: args.kv_dtype,
        prompt: args.prompt,
        generate: args.generate,
        context: args.context,
        batch: args.batch,
        gpu_layers: args.gpu_layers,
        repeat: args.repeat,
        bandwidth: args.bandwidth,
        profile: args.profile,
    };
    let report = bench::run_shared(&request, &devices, &describe_all(&devices))?;
    if args.json {
        return print_json(&report);
    }
    print(&report.table())
}
