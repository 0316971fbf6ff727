//! Similarity of sentences, by a BERT of `sentence-transformers`.
//!
//! ```sh
//! cargo run -p candle-transformers --features webgpu --example bert_similarity -- \
//!     [cpu|webgpu] sentence-transformers/all-MiniLM-L6-v2 "A man is eating." "A man has lunch." "It rains."
//! ```
//!
//! The model is a folder with `config.json`, `tokenizer.json` and `model.safetensors` or `pytorch_model.bin`, or one on the Hugging Face
//! Hub. Prints the matrix of the sentences' cosines as JSON.

#[path = "../common/bert.rs"]
mod bert;
#[path = "../common/mod.rs"]
mod common;
mod sentences;

use bert::{read_config, read_tokenizer};
use candle_core::{bail, Device, Result};
use common::Checkpoint;
use sentences::Sentences;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).peekable();
    let device = match args.peek().map(String::as_str) {
        Some("cpu") => Device::Cpu,
        Some("webgpu") => Device::new_webgpu(0)?,
        _ => Device::best_available()?,
    };
    args.next_if(|arg| ["cpu", "webgpu"].contains(&arg.as_str()));
    let Some(folder) = args.next() else {
        bail!("usage: bert_similarity [cpu|webgpu] MODEL SENTENCE..")
    };
    let files = Checkpoint::open(&folder)?;
    let texts: Vec<String> = args.collect();
    let config = read_config(&files.read("config.json")?)?;
    let tokenizer = read_tokenizer(&files.read("tokenizer.json")?, &config)?;
    let weights = files.weights(&device)?;
    // sentences.rs turns tokens into the vector of a sentence.
    let sentences = Sentences::new(&config, tokenizer, weights)?;
    let matrix = sentences.similarities(&texts)?.to_vec2::<f32>()?;
    println!("{}", serde_json::json!(matrix));
    Ok(())
}
