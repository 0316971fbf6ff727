//! A Llama writes on, token by token.
//!
//! ```sh
//! cargo run -p candle-transformers --features webgpu --example llama -- [cpu|webgpu] [PROMPT]
//! ```
//!
//! The model is the small one of this repository, which has read the Rust manuals. Any Llama of the Hugging Face hub has the same files.

use std::io::Write;
use std::path::Path;

use candle_core::{bail, DType, Device, Error, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::generation::LogitsProcessor;
use candle_transformers::models::llama::{Cache, Llama, LlamaConfig, LlamaEosToks};
use tokenizers::Tokenizer;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/engine/model");
const PROMPT: &str = "A vector is";
const MOST_TOKENS: usize = 60;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let device = match args.next().as_deref() {
        None => Device::best_available()?,
        Some("cpu") => Device::Cpu,
        Some("webgpu") => Device::new_webgpu(0)?,
        Some(other) => bail!("unknown device `{other}`: give `cpu` or `webgpu`, then a prompt"),
    };
    let prompt = args.next().unwrap_or(PROMPT.into());

    let folder = Path::new(MODEL);
    let config = std::fs::read_to_string(folder.join("config.json"))?;
    let config: LlamaConfig = serde_json::from_str(&config).map_err(Error::wrap)?;
    let config = config.into_config(false);
    let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).map_err(Error::wrap)?;
    let weights = folder.join("model.safetensors");
    // SAFETY: nothing changes the file meanwhile.
    let vb = unsafe { VarBuilder::from_mmaped_safetensors(&[weights], DType::F32, &device)? };
    let llama = Llama::load(vb, &config)?;
    println!("{} layers on {device:?}\n", config.num_hidden_layers);

    // Keys and values of the tokens so far, so that each step computes only what is new.
    let mut cache = Cache::new(true, DType::F32, &config, &device)?;
    let (seed, temperature, top_p) = (42, Some(0.7), Some(0.9));
    let mut sampler = LogitsProcessor::new(seed, temperature, top_p);
    let prompt_tokens = tokenizer.encode(&*prompt, true).map_err(Error::wrap)?;
    let mut new = prompt_tokens.get_ids().to_vec();
    // Some characters take several tokens: the stream gives text as soon as it is whole.
    let mut text = tokenizer.decode_stream(true);
    let (mut seen, mut written) = (0, 0);
    print!("{prompt}");
    let start = std::time::Instant::now();
    while written < MOST_TOKENS {
        let input = Tensor::new(&new[..], &device)?.unsqueeze(0)?;
        let logits = llama.forward(&input, seen, &mut cache)?.squeeze(0)?;
        seen += new.len();
        let token = sampler.sample(&logits)?;
        match &config.eos_token_id {
            Some(LlamaEosToks::Single(end)) if *end == token => break,
            Some(LlamaEosToks::Multiple(ends)) if ends.contains(&token) => break,
            _ => {}
        }
        if let Some(piece) = text.step(token).map_err(Error::wrap)? {
            print!("{piece}");
            std::io::stdout().flush()?;
        }
        new = vec![token];
        written += 1;
    }
    let rate = written as f64 / start.elapsed().as_secs_f64();
    println!("\n\n{written} tokens, {rate:.0} a second");
    if written == 0 {
        bail!("the model ended the text at once")
    }
    Ok(())
}
