//! A text as the words that it is about, by SPLADE ([arXiv 2107.05720](https://arxiv.org/abs/2107.05720)): words that are not in the text
//! among them, so that a search for them finds it.
//!
//! ```sh
//! cargo run -p candle-transformers --features webgpu --example splade -- \
//!     [cpu|webgpu] [--json] prithivida/Splade_PP_en_v1 "What is the capital of France?" ["Another text"]
//! ```
//!
//! The model is a folder with `config.json`, `tokenizer.json` and `model.safetensors` or `pytorch_model.bin` of a BERT with the head that
//! guesses hidden words, or one on the Hugging Face Hub. Prints the heaviest words of each text; of several texts also how alike the first and each other
//! one is, the sum of the products of their words' weights. With `--json`, prints `words`, all words of each text with their weights, and
//! `alike`, how alike each two texts are.

#[path = "../common/bert.rs"]
mod bert;
#[path = "../common/mod.rs"]
mod common;
mod words;

use bert::{read_config, read_tokenizer};
use candle_core::{bail, Device, Result};
use common::Checkpoint;
use serde_json::json;
use words::Splade;

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
    let as_json = args.next_if(|arg| arg == "--json").is_some();
    let (Some(folder), texts) = (args.next(), args.collect::<Vec<_>>()) else {
        bail!("usage: splade [cpu|webgpu] [--json] MODEL TEXT..")
    };
    if texts.is_empty() {
        bail!("there is no text; give at least one")
    }
    let files = Checkpoint::open(&folder)?;
    let config = read_config(&files.read("config.json")?)?;
    let tokenizer = read_tokenizer(&files.read("tokenizer.json")?, &config)?;
    let model = Splade::new(&config, tokenizer, files.weights(&device)?)?;
    let weights = model.weights(&texts)?;
    let alike = weights.matmul(&weights.t()?)?.to_vec2::<f32>()?;
    let words = weights.to_vec2::<f32>()?;
    let words: Vec<_> = words.iter().map(|weights| model.words(weights)).collect();
    if as_json {
        println!("{}", json!({ "words": words, "alike": alike }));
        return Ok(());
    }
    for (i, (text, words)) in texts.iter().zip(words).enumerate() {
        println!("{text}");
        for (word, weight) in words.into_iter().take(SHOWN) {
            println!("  {weight:.2}  {word}");
        }
        if i > 0 {
            println!("  {:.2} alike", alike[0][i]);
        }
    }
    Ok(())
}
