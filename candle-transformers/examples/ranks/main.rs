//! A Llama whose layers are divided over processes, which read their part of the weights each.
//!
//! ```sh
//! cargo run -p candle-transformers --features webgpu --example ranks -- [cpu|cuda|webgpu] [RANKS] [PROMPT]
//! ```
//!
//! The program starts itself once for each rank. They meet at an address, by [`ProcessGroup`]; [`rank`] takes any other
//! [`Communicator`] as well. Ranks on several machines are started by hand, with the same three variables.

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;

use candle_core::distributed::{Communicator, ProcessGroup};
use candle_core::{bail, Context, DType, Device, Error, Result, Tensor, D};
use candle_nn::var_builder::ShardedSafeTensors;
use candle_transformers::auto;
use candle_transformers::blocks::Decoder;
use tokenizers::Tokenizer;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/engine/model");
const PROMPT: &str = "A vector is";
const MOST_TOKENS: usize = 40;
/// The address at which the ranks meet, this one's number, and their number.
const ADDRESS: &str = "RANKS_ADDRESS";
const RANK: &str = "RANKS_RANK";
const WORLD: &str = "RANKS_WORLD";

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let device = args.next().unwrap_or("cpu".into());
    let world = args.next().map_or(Ok(2), |ranks| ranks.parse());
    let world: usize = world.map_err(|err| Error::wrap(err).context("the number of ranks"))?;
    let prompt = args.next().unwrap_or(PROMPT.into());
    let Ok(number) = std::env::var(RANK) else {
        return start(world);
    };
    let variable = |name| std::env::var(name).map_err(|err| Error::wrap(err).context(name));
    let number: usize = number.parse().map_err(Error::wrap)?;
    let world: usize = variable(WORLD)?.parse().map_err(Error::wrap)?;
    let device = match &*device {
        "cpu" => Device::Cpu,
        "cuda" => Device::new_cuda(number)?,
        // Most machines have one.
        "webgpu" => Device::new_webgpu(0)?,
        other => bail!("unknown device `{other}`: give `cpu`, `cuda` or `webgpu`"),
    };
    let group = ProcessGroup::connect(&variable(ADDRESS)?, number, world)?;
    rank(Arc::new(group), &device, &prompt)
}

/// Starts the ranks, and waits for them.
fn start(world: usize) -> Result<()> {
    // Free a moment ago, which is good enough for an example.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let rank = |rank: usize| {
        Command::new(std::env::current_exe()?)
            .args(std::env::args().skip(1))
            .env(ADDRESS, &address)
            .env(RANK, rank.to_string())
            .env(WORLD, world.to_string())
            .spawn()
    };
    let ranks = (0..world)
        .map(rank)
        .collect::<std::io::Result<Vec<Child>>>()?;
    let mut failed = None;
    for (rank, mut child) in ranks.into_iter().enumerate() {
        let status = child.wait()?;
        if !status.success() {
            failed.get_or_insert(format!("rank {rank}: {status}"));
        }
    }
    match failed {
        None => Ok(()),
        Some(failed) => bail!("{failed}"),
    }
}

/// One rank: all of them choose the same tokens, and the first writes them.
fn rank(group: Arc<dyn Communicator>, device: &Device, prompt: &str) -> Result<()> {
    let folder = Path::new(MODEL);
    let config = std::fs::read_to_string(folder.join("config.json"))?;
    let spec = auto::config_spec(&config)?;
    let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).map_err(Error::wrap)?;
    let end = tokenizer.token_to_id("<|end_of_text|>");
    let weights = folder.join("model.safetensors");
    // SAFETY: nothing changes the file meanwhile.
    let mut vb = unsafe { ShardedSafeTensors::var_builder(&[weights], DType::F32, device)? };
    let model = Decoder::load_rank(spec, &mut vb, DType::F32, device, group.clone())?;

    let prompt_tokens = tokenizer.encode(prompt, true).map_err(Error::wrap)?;
    let mut ids = Tensor::new(prompt_tokens.get_ids(), device)?.unsqueeze(0)?;
    let mut text = tokenizer.decode_stream(true);
    let writes = group.rank() == 0;
    if writes {
        println!("{} ranks on {device:?}\n", group.world_size());
        print!("{prompt}");
    }
    let (mut state, mut seen) = (model.new_state(), 0);
    let start = std::time::Instant::now();
    let mut made = 0;
    while made < MOST_TOKENS {
        let logits = model.next_logits(&ids, seen, &mut state)?;
        seen += ids.dim(1)?;
        // Every rank has all logits; the first one's choice counts.
        ids = group.broadcast(&logits.argmax_keepdim(D::Minus1)?, 0)?;
        let token = *ids
            .flatten_all()?
            .to_vec1::<u32>()?
            .first()
            .context("a token")?;
        if Some(token) == end {
            break;
        }
        made += 1;
        if let (true, Some(piece)) = (writes, text.step(token).map_err(Error::wrap)?) {
            print!("{piece}");
            std::io::stdout().flush()?;
        }
    }
    if writes {
        let rate = made as f64 / start.elapsed().as_secs_f64();
        println!("\n\n{rate:.0} tokens a second");
    }
    Ok(())
}
