//! Texts as vectors, by the encoders of text in [`models`](crate::models): the model that a `config.json` describes, and how its tokens'
//! vectors become one for the text. Not in upstream's interface.
//!
//! ```
//! use candle_core::{DType, Device};
//! use candle_nn::VarBuilder;
//! use candle_transformers::embed::{EncoderConfig, Options};
//!
//! # fn main() -> candle_core::Result<()> {
//! let config = EncoderConfig::parse(
//!     r#"{"model_type": "bert", "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
//!         "intermediate_size": 8, "max_position_embeddings": 12}"#,
//! )?;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let encoder = config.load(VarBuilder::zeros(DType::F32, &Device::Cpu))?;
//! let texts = [vec![2u32, 7, 9, 3], vec![2, 8, 3]];
//! let vectors = encoder.embed(&texts, &Options::default())?;
//! assert_eq!(vectors.dims(), &[2, 16]);
//! # Ok(())
//! # }
//! ```
//!
//! Which pooling a model was trained with is in the files that sentence-transformers writes beside it ([arXiv
//! 1908.10084](https://arxiv.org/abs/1908.10084)): [`Recipe::read`].

pub(crate) mod batches;
mod decoders;
mod dense;
mod families;
mod gguf;
pub(crate) mod recipe;

use candle_core::{bail, DType, Device, Module, Result, Tensor, D};
use candle_nn::VarBuilder;

use crate::blocks::encoder::{dtype_of_scores, mean_of_seen};
use batches::{by_length, filled, mask};
pub use dense::{Dense, DenseSpec};
pub use families::{model_types, EncoderConfig};
pub use gguf::{architectures, gguf_weights};
pub use recipe::Recipe;

/// How the vectors of a text's tokens become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// The first token's, `[CLS]` in BERT.
    Cls,
    /// The last token's.
    Last,
}

impl Pooling {
    /// The name, as `--pooling` of `candle-dvm embed` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
        }
    }
}

/// What becomes of the tokens' vectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How they become one.
    pub pooling: Pooling,
    /// Whether it is divided by its length.
    pub normalize: bool,
    /// How many of its elements are kept, from the first on: for models that were trained so (Matryoshka, [arXiv
    /// 2205.13147](https://arxiv.org/abs/2205.13147)). It is divided by its length after that.
    pub dim: Option<usize>,
    /// How many texts run at once, at least 1. They are put together by their length, so that little is filled up.
    pub batch: usize,
}

/// The mean, as it is, of 32 texts at once.
impl Default for Options {
    fn default() -> Self {
        Self {
            pooling: Pooling::Mean,
            normalize: false,
            dim: None,
            batch: 32,
        }
    }
}

/// Token ids, a mask of ones and zeros and, if the caller has them, the segments of the tokens, (batch, seq) all, to the tokens' vectors,
/// (batch, seq, size). Models without segments pass over them.
type Run = Box<dyn Fn(&Tensor, &Tensor, Option<&Tensor>) -> Result<Tensor> + Send + Sync>;

/// An encoder of text with its weights.
pub struct TextEncoder {
    config: EncoderConfig,
    run: Run,
    /// What the vector of a text goes through.
    dense: Vec<Dense>,
    device: Device,
}

impl EncoderConfig {
    /// The model with its weights, which may be below the family's prefix, as in checkpoints of models with a head.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn load(self, vb: VarBuilder) -> Result<TextEncoder> {
        let device = vb.device().clone();
        let run = (self.load)(vb)?;
        Ok(TextEncoder {
            config: self,
            run,
            dense: Vec::new(),
            device,
        })
    }
}

impl TextEncoder {
    /// The model with one more layer behind the pooling.
    ///
    /// # Errors
    /// If the layer takes vectors of another size than there are.
    pub fn with_dense(mut self, layer: Dense) -> Result<Self> {
        let (takes, gives) = layer.sizes()?;
        if takes != self.config.size {
            bail!(
                "embed: a layer expects vectors of {takes} elements, but the model produces {}",
                self.config.size
            )
        }
        self.config.size = gives;
        self.dense.push(layer);
        Ok(self)
    }

    /// What the model is; its `size` is that of a text's vector.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// Where the weights are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The vectors of the tokens, (batch, seq, size), of `ids`, integers of shape (batch, seq); `mask` is 1 for tokens and 0 for padding, of
    /// the same shape, u32. The vectors of padding mean nothing.
    ///
    /// # Errors
    /// If the shapes do not match, there are no tokens or more than the model takes, or an id is outside the table of tokens (where the
    /// device can tell).
    pub fn forward(&self, ids: &Tensor, mask: &Tensor) -> Result<Tensor> {
        (self.run)(ids, mask, None)
    }

    /// As [`forward`](Self::forward), of tokens whose segments, counted from 0, are `types`, of the same shape. Models without segments
    /// pass over them.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward).
    pub fn forward_segments(&self, ids: &Tensor, mask: &Tensor, types: &Tensor) -> Result<Tensor> {
        (self.run)(ids, mask, Some(types))
    }

    /// A vector for each text, in f32: (texts, size), or as many elements as `options` keeps. A text is its token ids, with the special
    /// tokens that the model wants around it. Each is what it would be without the others.
    ///
    /// # Errors
    /// If there are no texts, or one has no tokens, more than the model takes, or one that is not in its vocabulary; if `options` has a
    /// batch of 0, or more elements than there are, or none.
    pub fn embed<T: AsRef<[u32]>>(&self, texts: &[T], options: &Options) -> Result<Tensor> {
        self.check(texts, options)?;
        let lens: Vec<usize> = texts.iter().map(|text| text.as_ref().len()).collect();
        let mut vectors = by_length(&lens, options.batch, &self.device, |batch| {
            let rows: Vec<&[u32]> = batch.iter().map(|i| texts[*i].as_ref()).collect();
            self.pooled(&rows, options.pooling)
        })?;
        if let Some(dim) = options.dim {
            vectors = vectors.narrow(1, 0, dim)?;
        }
        match options.normalize {
            true => unit(&vectors),
            false => vectors.contiguous(),
        }
    }

    fn check<T: AsRef<[u32]>>(&self, texts: &[T], options: &Options) -> Result<()> {
        let size = self.config.size;
        if texts.is_empty() {
            bail!("embed: no texts; give at least one")
        }
        if options.batch == 0 {
            bail!("embed: a batch of 0 texts; give at least 1")
        }
        match options.dim {
            Some(dim) if !(1..=size).contains(&dim) => {
                bail!("embed: {dim} elements requested, but the model's vectors have {size}; use 1 to {size}")
            }
            _ => (),
        }
        for (i, text) in texts.iter().enumerate() {
            let what = format_args!("embed: text {}", i + 1);
            self.config.check(what, text.as_ref())?;
        }
        Ok(())
    }

    /// A batch: (texts, size), in f32.
    fn pooled(&self, texts: &[&[u32]], pooling: Pooling) -> Result<Tensor> {
        let device = &self.device;
        let ids = filled(texts, self.config.padding, device)?;
        let seen = mask(texts, |i, len| i < len, device)?;
        let hidden = self.forward(&ids, &seen)?.to_dtype(DType::F32)?;
        let pooled = match pooling {
            Pooling::Mean => mean_of_seen("embed", &hidden, &seen),
            Pooling::Cls => hidden.narrow(1, 0, 1)?.squeeze(1),
            Pooling::Last => {
                let last = mask(texts, |i, len| i + 1 == len, device)?;
                mean_of_seen("embed", &hidden, &last)
            }
        };
        let through = |xs: Tensor, layer: &Dense| layer.forward(&xs);
        self.dense.iter().try_fold(pooled?, through)
    }
}

/// Vectors, (.., n), divided by their length. A vector of zeros stays one.
///
/// # Errors
/// If `x` is a scalar or not of a float dtype.
pub fn unit(x: &Tensor) -> Result<Tensor> {
    // A sum of squares leaves the range of f16.
    let wide = x.to_dtype(dtype_of_scores(x.dtype()))?;
    let length = wide.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
    let length = length.clamp(1e-12, f64::from(f32::MAX))?;
    wide.broadcast_div(&length)?.to_dtype(x.dtype())
}
