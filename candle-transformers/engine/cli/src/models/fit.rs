//! `candle-dvm models fit`.

use super::size;
use crate::{print, print_json, Error, Result};
use candle_engine::device::FloatType;
use candle_engine::model::{ModelFiles, ModelSource, Needs, Split};
use serde::Serialize;
use std::path::PathBuf;

/// Sizes of cards.
const GIGABYTES: [u64; 9] = [2, 4, 6, 8, 12, 16, 24, 48, 80];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A GGUF file, a Hugging Face folder or a Hub model, owner/name[@revision][:file.gguf], which is downloaded first
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Tokens that the KV cache has room for
    #[arg(long, alias = "ctx-size", value_name = "N", default_value_t = Split::default().context)]
    context: usize,
    /// Texts at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    texts: usize,
    /// Element type of the KV cache
    #[arg(long, value_enum, default_value = "f16")]
    kv_dtype: FloatType,
    /// Keep the experts of all layers on the CPU
    #[arg(long)]
    cpu_experts: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The output of `--json`, in bytes.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    layers: usize,
    context: usize,
    weights: u64,
    cache: u64,
    computing: u64,
    on_gpu: u64,
    fits: Vec<Row>,
}

/// Number of layers that fit into free memory.
#[derive(Serialize)]
struct Row {
    free: u64,
    layers: Option<usize>,
}

pub(super) fn run(args: Args) -> Result<()> {
    for (name, value) in [("context", args.context), ("texts", args.texts)] {
        if value == 0 {
            return Err(Error::parameter(name, value, "at least 1"));
        }
    }
    let mut files = ModelFiles::open(&ModelSource::at(args.model))?;
    let context = args.context.min(files.max_positions());
    files.split = Split {
        cpu_experts: args.cpu_experts,
        texts: args.texts,
        context,
        ..Split::default()
    };
    let needs = files.needs(args.kv_dtype.dtype())?;
    let row = |gigabytes: &u64| {
        let free = gigabytes * 1_000_000_000;
        Row {
            free,
            layers: needs.fitting(free),
        }
    };
    let report = Report {
        model: &files.name,
        layers: needs.layers(),
        context,
        weights: needs.weights(),
        cache: needs.cache(),
        computing: needs.computing(),
        on_gpu: needs.with(needs.layers()),
        fits: GIGABYTES.iter().map(row).collect(),
    };
    if args.json {
        print_json(&report)
    } else {
        print(&text(
            &report,
            &needs,
            &files.format().name(),
            args.kv_dtype.dtype().as_str(),
        ))
    }
}

fn text(report: &Report<'_>, needs: &Needs, format: &str, kv: &str) -> String {
    let Report {
        model,
        layers,
        context,
        ..
    } = report;
    let mut text = format!(
        "{model}: {layers} layers\n\nweights   {:>9}  {format}\nKV cache  {:>9}  {context} tokens in {kv}\ncomputing {:>9}\non a GPU  {:>9}\n\n",
        size(report.weights),
        size(report.cache),
        size(report.computing),
        size(report.on_gpu),
    );
    text += "free memory  --gpu-layers auto\n";
    for row in &report.fits {
        let fits = match row.layers {
            None => "nothing of it".to_string(),
            Some(count) if count == *layers => "all layers".to_string(),
            Some(count) => format!(
                "{count} of {layers} layers, {} on the CPU",
                size(needs.on_cpu(count))
            ),
        };
        text += &format!("{:>11}  {fits}\n", size(row.free));
        if row.layers == Some(*layers) {
            break;
        }
    }
    text
}
