//! How alike sentences are, by a BERT of `sentence-transformers`.
//!
//! ```text
//! cargo run --release --example bert_similarity -- FOLDER "A man is eating." "A man has lunch." "It rains."
//! ```
//!
//! FOLDER has `config.json`, `tokenizer.json` and `model.safetensors`. Prints the matrix of the sentences' cosines as JSON. Runs on the CPU.

mod sentences;

use candle_core::{bail, DType, Device, Result};
use candle_nn::VarBuilder;
use sentences::{read_config, read_tokenizer, Sentences};
use std::path::Path;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let Some(folder) = args.next() else {
        bail!("usage: bert_similarity FOLDER SENTENCE..")
    };
    let folder = Path::new(&folder);
    let texts: Vec<String> = args.collect();
    let read = |name| {
        let path = folder.join(name);
        std::fs::read(&path).map_err(|err| candle_core::Error::wrap(err).with_path(path))
    };
    let config = read_config(&read("config.json")?)?;
    let tokenizer = read_tokenizer(&read("tokenizer.json")?, &config)?;
    let weights = read("model.safetensors")?;
    let weights = VarBuilder::from_buffered_safetensors(weights, DType::F32, &Device::Cpu)?;
    let sentences = Sentences::new(&config, tokenizer, weights)?;
    let matrix = sentences.similarities(&texts)?.to_vec2::<f32>()?;
    println!("{}", serde_json::json!(matrix));
    Ok(())
}
