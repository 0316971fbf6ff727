//! A text as the words that it is about, by SPLADE ([arXiv 2107.05720](https://arxiv.org/abs/2107.05720)): words that are not in the text
//! among them, so that a search for them finds it.
//!
//! ```sh
//! cargo run -p candle-transformers --features webgpu --example splade -- \
//!     [cpu|webgpu] prithivida/Splade_PP_en_v1 "What is the capital of France?" ["Another text"]
//! ```
//!
//! The model is a folder with `config.json`, `tokenizer.json` and `model.safetensors` or `pytorch_model.bin` of a BERT with the head that
//! guesses hidden words, or one on the Hugging Face Hub. Prints the heaviest words of each text; of several texts also how alike the first and each other
//! one is, the sum of the products of their words' weights.

#[path = "../common/mod.rs"]
mod common;

use candle_core::{bail, Device, Error, Result, Tensor};
use candle_transformers::models::bert::{BertForMaskedLM, Config};
use common::Checkpoint;
use tokenizers::{Tokenizer, TruncationParams};

/// Words that are printed.
const SHOWN: usize = 20;

fn main() {
    if let Err(err) = run() {
        eprintln!("splade: {err}");
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let mut args = std::env::args().skip(1).peekable();
    let device = match args.peek().map(String::as_str) {
        Some("cpu") => Device::Cpu,
        Some("webgpu") => Device::new_webgpu(0)?,
        _ => Device::best_available()?,
    };
    args.next_if(|arg| ["cpu", "webgpu"].contains(&arg.as_str()));
    let (Some(folder), texts) = (args.next(), args.collect::<Vec<_>>()) else {
        bail!("usage: splade [cpu|webgpu] MODEL TEXT..")
    };
    if texts.is_empty() {
        bail!("there is no text; give at least one")
    }
    let (model, tokenizer) = open(&Checkpoint::open(&folder)?, &device)?;
    let mut first: Option<Tensor> = None;
    for text in &texts {
        let weights = weights(&model, &tokenizer, text, &device)?;
        println!("{text}");
        for (word, weight) in heaviest(&weights, &tokenizer)? {
            println!("  {weight:.2}  {word}");
        }
        match &first {
            Some(first) => println!(
                "  {:.2} alike",
                (first * &weights)?.sum_all()?.to_scalar::<f32>()?
            ),
            None => first = Some(weights),
        }
    }
    Ok(())
}

fn open(files: &Checkpoint, device: &Device) -> Result<(BertForMaskedLM, Tokenizer)> {
    let wrong = |name, err: &dyn std::fmt::Display| Error::Msg(format!("{name}: {err}"));
    let config: Config = serde_json::from_slice(&files.read("config.json")?)
        .map_err(|err| wrong("config.json", &err))?;
    let mut tokenizer = Tokenizer::from_bytes(files.read("tokenizer.json")?)
        .map_err(|err| wrong("tokenizer.json", &err))?;
    tokenizer.with_padding(None);
    let most = TruncationParams {
        max_length: config.max_position_embeddings,
        ..TruncationParams::default()
    };
    let cut = tokenizer.with_truncation(Some(most));
    cut.map_err(|err| wrong("tokenizer.json", &err))?;
    let weights = files.weights(device)?;
    Ok((BertForMaskedLM::load(weights, &config)?, tokenizer))
}

/// The weight of each word of the vocabulary in the text, (vocab): the maximum over its tokens, on a logarithmic scale.
fn weights(
    model: &BertForMaskedLM,
    tokenizer: &Tokenizer,
    text: &str,
    device: &Device,
) -> Result<Tensor> {
    let encoded = tokenizer.encode(text, true);
    let encoded = encoded.map_err(|err| Error::Msg(format!("{text:?}: {err}")))?;
    if encoded.get_ids().is_empty() {
        bail!("{text:?} has no tokens: write something")
    }
    let ids = Tensor::new(encoded.get_ids(), device)?.unsqueeze(0)?;
    let logits = model.forward(&ids, &ids.zeros_like()?, None)?;
    (logits.relu()? + 1.)?.log()?.max(1)?.squeeze(0)
}

fn heaviest(weights: &Tensor, tokenizer: &Tokenizer) -> Result<Vec<(String, f32)>> {
    let weights = weights.to_vec1::<f32>()?;
    let mut order: Vec<usize> = (0..weights.len()).filter(|i| weights[*i] > 0.).collect();
    order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
    let word = |id: usize| tokenizer.id_to_token(id as u32).unwrap_or_default();
    let shown = order.into_iter().take(SHOWN);
    Ok(shown.map(|id| (word(id), weights[id])).collect())
}
