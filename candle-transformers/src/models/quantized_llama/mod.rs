//! Llama with quantised weights from GGUF or GGML files, after the
//! [GGUF specification](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). The model itself is [`super::llama`]'s: the same
//! blocks over other weights.
//!
//! Taken are the architectures `llama` (with Mixtral's experts, Llama 3's `rope_freqs.weight` and linear scaling of positions) and
//! `qwen2`, which is the same with biases. The file's metadata is read by [`Config::read`], its tensors by [`load`].
//!
//! ```no_run
//! use candle_core::quantized::gguf_file;
//! use candle_core::{Device, Tensor};
//! use candle_transformers::models::quantized_llama::ModelWeights;
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! let mut file = std::fs::File::open("model.gguf")?;
//! let content = gguf_file::Content::read(&mut file)?;
//! let mut model = ModelWeights::from_gguf(content, &mut file, &device)?;
//! let logits = model.forward(&Tensor::new(&[[1u32, 15043]], &device)?, 0)?;
//! # Ok(())
//! # }
//! ```

use std::io::{Read, Seek};

use candle_core::quantized::{ggml_file, gguf_file};
use candle_core::{DType, Device, Result, Tensor};

use super::llama::{Cache, Llama};

mod config;
mod load;
mod source;

pub use config::{Config, Experts};
pub use load::{load, load_async};
pub use source::{AsyncWeightSource, Reading, WeightSource};

use source::{GgmlTensors, GgufReader};

/// The longest sequence where a file does not say: [`ModelWeights::from_ggml`], or without `context_length`.
pub const MAX_SEQ_LEN: usize = 4096;

/// A quantised Llama and the sequence that it has seen. Activations are f32.
#[derive(Debug, Clone)]
pub struct ModelWeights {
    model: Llama,
    cache: Cache,
}

impl ModelWeights {
    /// The model of a GGML file, on the device that its tensors were read to. `gqa` is how many query heads share a key and value
    /// head, which such files do not say: 1, or 8 for Llama 2 70B.
    ///
    /// # Errors
    /// If `gqa` does not divide the heads, or a tensor is missing or has another shape.
    pub fn from_ggml(ct: ggml_file::Content, gqa: usize) -> Result<Self> {
        let config = Config::of_ggml(&ct.hparams, gqa)?;
        let device = ct.device.clone();
        Self::load(&config, &mut GgmlTensors(ct), &device)
    }

    /// The model of a GGUF file. `reader` is the stream that `ct` was read from.
    ///
    /// # Errors
    /// If metadata or a tensor is missing or does not fit; by name.
    pub fn from_gguf<R: Seek + Read>(
        ct: gguf_file::Content,
        reader: &mut R,
        device: &Device,
    ) -> Result<Self> {
        let config = Config::read(&ct.metadata)?;
        let mut source = GgufReader {
            content: ct,
            reader,
        };
        Self::load(&config, &mut source, device)
    }

    fn load(config: &Config, source: &mut dyn WeightSource, device: &Device) -> Result<Self> {
        let (model, cache) = load(config, source, DType::F32, device)?;
        Ok(Self { model, cache })
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last of the token ids `x`, `(b, t)` in u32, which are at the positions
    /// `index_pos .. index_pos + t`. At position 0 a new sequence begins; elsewhere `x` continues the one before.
    ///
    /// # Errors
    /// As [`Llama::forward`].
    pub fn forward(&mut self, x: &Tensor, index_pos: usize) -> Result<Tensor> {
        if index_pos == 0 {
            self.clear_kv_cache();
        }
        self.model.forward(x, index_pos, &mut self.cache)
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.cache.reset();
    }
}
