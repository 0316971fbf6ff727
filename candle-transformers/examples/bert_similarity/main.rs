//! Similarity of sentences, by a BERT of `sentence-transformers`.
//!
//! ```sh
//! cargo run -p candle-transformers --features webgpu --example bert_similarity -- \
//!     [cpu|webgpu] FOLDER "A man is eating." "A man has lunch." "It rains."
//! ```
//!
//! FOLDER has `config.json`, `tokenizer.json` and `model.safetensors`, such as those of sentence-transformers/all-MiniLM-L6-v2 on the
//! Hugging Face hub. Prints the matrix of the sentences' cosines as JSON.

#[path = "../common/mod.rs"]
mod common;
mod sentences;

use candle_core::{bail, DType, Device, Result};
use common::Checkpoint;
use sentences::{read_config, read_tokenizer, Sentences};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).peekable();
    let device = match args.peek().map(String::as_str) {
        Some("cpu") => Device::Cpu,
        Some("webgpu") => Device::new_webgpu(0)?,
        _ => Device::best_available()?,
    };
    args.next_if(|arg| ["cpu", "webgpu"].contains(&arg.as_str()));
    let Some(folder) = args.next() else {
        bail!("usage: bert_similarity [cpu|webgpu] FOLDER SENTENCE..")
    };
    let files = Checkpoint::open(&folder)?;
    let texts: Vec<String> = args.collect();
    let config = read_config(&files.read("config.json")?)?;
    let tokenizer = read_tokenizer(&files.read("tokenizer.json")?, &config)?;
    let weights = files.file("model.safetensors")?;
    let weights = common::weights(&[weights], DType::F32, &device)?;
    // sentences.rs turns tokens into the vector of a sentence.
    let sentences = Sentences::new(&config, tokenizer, weights)?;
    let matrix = sentences.similarities(&texts)?.to_vec2::<f32>()?;
    println!("{}", serde_json::json!(matrix));
    Ok(())
}
