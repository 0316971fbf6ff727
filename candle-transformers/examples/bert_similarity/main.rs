//! Similarity of sentences, by a BERT of `sentence-transformers`.
//!
//! ```sh
//! cargo run -p candle-transformers --features webgpu --example bert_similarity -- \
//!     [cpu|webgpu] FOLDER "A man is eating." "A man has lunch." "It rains."
//! ```
//!
//! FOLDER has `config.json`, `tokenizer.json` and `model.safetensors`, such as those of sentence-transformers/all-MiniLM-L6-v2 on the
//! Hugging Face hub. Prints the matrix of the sentences' cosines as JSON.

mod sentences;

use candle_core::{bail, DType, Device, Error, Result};
use candle_nn::VarBuilder;
use sentences::{read_config, read_tokenizer, Sentences};
use std::path::Path;

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
    let folder = Path::new(&folder);
    let texts: Vec<String> = args.collect();
    let read = |name| {
        let path = folder.join(name);
        std::fs::read(&path).map_err(|err| Error::wrap(err).with_path(path))
    };
    let config = read_config(&read("config.json")?)?;
    let tokenizer = read_tokenizer(&read("tokenizer.json")?, &config)?;
    let weights = read("model.safetensors")?;
    let weights = VarBuilder::from_buffered_safetensors(weights, DType::F32, &device)?;
    // sentences.rs turns tokens into the vector of a sentence.
    let sentences = Sentences::new(&config, tokenizer, weights)?;
    let matrix = sentences.similarities(&texts)?.to_vec2::<f32>()?;
    println!("{}", serde_json::json!(matrix));
    Ok(())
}
