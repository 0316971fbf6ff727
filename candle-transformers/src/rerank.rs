//! How well documents answer a query, by the cross-encoders in [`models`](crate::models): an encoder of text reads the query and a document
//! together, and a head gives the pair one score. Not in upstream's interface. A language model that answers yes or no does the same.
//!
//! ```
//! use candle_core::{DType, Device};
//! use candle_nn::VarBuilder;
//! use candle_transformers::rerank::{Options, Pair, RerankerConfig};
//!
//! # fn main() -> candle_core::Result<()> {
//! let config = RerankerConfig::parse(
//!     r#"{"architectures": ["BertForSequenceClassification"], "model_type": "bert", "vocab_size": 40, "hidden_size": 16,
//!         "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 12,
//!         "id2label": {"0": "LABEL_0"}}"#,
//! )?;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let reranker = config.load(VarBuilder::zeros(DType::F32, &Device::Cpu))?;
//! // A query and a document, each with its end, in one row; the document is the second segment.
//! let pair = Pair { ids: vec![2, 7, 3, 9, 8, 3], types: vec![0, 0, 0, 1, 1, 1] };
//! let scores = reranker.scores(&[pair], &Options::default())?;
//! assert_eq!(scores.dims(), &[1]);
//! # Ok(())
//! # }
//! ```
//!
//! The files that sentence-transformers writes say how the head's logit becomes a score: [`Recipe::read`].

mod answers;
mod heads;
mod recipe;

use candle_core::{bail, DType, Device, Result, Tensor};
use candle_nn::{ops, VarBuilder};
use serde::Deserialize;

use crate::auto::config::{parse, Config};
use crate::embed::batches::{by_length, filled, mask};
use crate::embed::{EncoderConfig, TextEncoder};
pub use answers::Answers;
use answers::{AnswersHead, AnswersSpec};
use heads::{Head, HeadSpec};
pub use recipe::Recipe;

/// The function from the head's logit to the score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scale {
    /// `1 / (1 + exp(-x))`: 0 to 1.
    #[default]
    Sigmoid,
    /// It is the logit itself, any number.
    Identity,
}

/// How scores are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The function from logits to scores.
    pub scale: Scale,
    /// Number of pairs per batch, at least 1. Pairs of similar length are batched, so that there is little padding.
    pub batch: usize,
}

/// Scores of 0 to 1, of 32 pairs at once.
impl Default for Options {
    fn default() -> Self {
        Self {
            scale: Scale::Sigmoid,
            batch: 32,
        }
    }
}

/// A query and a document as one row of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pair {
    /// The ids, with the special tokens that the model wants around and between the two.
    pub ids: Vec<u32>,
    /// The segment of each token, as the tokenizer has it: in most families 0 for the query's and 1 for the document's. Models without
    /// segments pass over them.
    pub types: Vec<u32>,
}

impl AsRef<Pair> for Pair {
    fn as_ref(&self) -> &Pair {
        self
    }
}

/// A reranker before it has weights.
#[derive(Debug, Clone)]
pub struct RerankerConfig {
    encoder: EncoderConfig,
    scorer: ScorerSpec,
}

#[derive(Debug, Clone)]
enum ScorerSpec {
    Head(HeadSpec),
    Answers(AnswersSpec),
}

/// An encoder of text and a head that gives a pair one score, with their weights.
pub struct Reranker {
    encoder: TextEncoder,
    scorer: Scorer,
}

enum Scorer {
    Head(Head),
    Answers(AnswersHead),
}

/// The language model that answers yes or no.
const ANSWERING: (&str, &str) = ("qwen3", "Qwen3ForCausalLM");

/// The values of `model_type` that [`RerankerConfig::parse`] takes.
pub fn model_types() -> Vec<&'static str> {
    let mut all = heads::model_types();
    all.push(ANSWERING.0);
    all
}

impl RerankerConfig {
    /// The reranker that a checkpoint's `config.json` describes.
    ///
    /// # Errors
    /// If the text is not a JSON object, the model has no head for sequence classification (`architectures`) or another number of labels than
    /// one, its family is not known, or a field is missing or does not fit.
    pub fn parse(json: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Said {
            model_type: Option<String>,
            architectures: Option<Vec<String>>,
        }
        let said: Said = parse(json)?;
        let supported = || {
            let heads = heads::model_types().join(", ");
            let (name, architecture) = ANSWERING;
            format!("{heads}, and {name} as {architecture}")
        };
        let built_as = said.architectures.unwrap_or_default();
        if said.model_type.as_deref() == Some(ANSWERING.0)
            && built_as.iter().any(|name| name == ANSWERING.1)
        {
            let encoder = EncoderConfig::parse(json)?;
            let spec = AnswersSpec::read(&encoder, &Config::read("{}", json)?);
            return Ok(Self {
                encoder,
                scorer: ScorerSpec::Answers(spec),
            });
        }
        if !built_as
            .iter()
            .any(|name| name.ends_with("ForSequenceClassification"))
        {
            bail!(
                "architectures: {built_as:?} has no head that scores pairs; expected a reranker, a model for sequence classification of: {}",
                supported()
            )
        }
        let encoder = EncoderConfig::parse(json);
        let named = match &encoder {
            Ok(encoder) => Some(encoder.model_type),
            Err(_) => said.model_type.as_deref(),
        };
        let known = named.is_none_or(|name| heads::model_types().contains(&name));
        match (encoder, named) {
            (Ok(encoder), _) if known => {
                let head = HeadSpec::read(&encoder, &Config::read("{}", json)?)?;
                Ok(Self {
                    encoder,
                    scorer: ScorerSpec::Head(head),
                })
            }
            (Err(err), _) if known => Err(err),
            (_, named) => bail!(
                "model_type: {:?} with architectures {built_as:?} is not supported as a reranker; supported: {}",
                named.unwrap_or_default(),
                supported()
            ),
        }
    }

    /// The encoder below the head.
    pub fn encoder(&self) -> &EncoderConfig {
        &self.encoder
    }

    /// Whether it is a language model that answers yes or no, which needs [`with_answers`](Self::with_answers).
    pub fn answers(&self) -> bool {
        matches!(self.scorer, ScorerSpec::Answers(_))
    }

    /// The model with the tokens of its answers; a model with a head has none and stays as it is.
    pub fn with_answers(mut self, answers: Answers) -> Self {
        if let ScorerSpec::Answers(spec) = &mut self.scorer {
            spec.answers = Some(answers);
        }
        self
    }

    /// The model with its weights.
    ///
    /// # Errors
    /// If it answers yes or no and the tokens of the answers are missing or not in its vocabulary; if the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn load(self, vb: VarBuilder) -> Result<Reranker> {
        Ok(Reranker {
            scorer: match &self.scorer {
                ScorerSpec::Head(head) => Scorer::Head(head.load(&vb)?),
                ScorerSpec::Answers(answers) => Scorer::Answers(answers.load(&vb)?),
            },
            encoder: self.encoder.load(vb)?,
        })
    }
}

impl Reranker {
    /// The encoder below the head.
    pub fn config(&self) -> &EncoderConfig {
        self.encoder.config()
    }

    /// Where the weights are.
    pub fn device(&self) -> &Device {
        self.encoder.device()
    }

    /// The logits, (batch) of f32, of `ids`, integers of shape (batch, seq). `mask` is 1 for tokens and 0 for padding, `types` are the
    /// tokens' segments, both u32 of the same shape.
    ///
    /// # Errors
    /// If the shapes do not match, there are no tokens or more than the model takes, or an id is outside its table (where the device can
    /// tell).
    pub fn forward(&self, ids: &Tensor, mask: &Tensor, types: &Tensor) -> Result<Tensor> {
        let hidden = self.encoder.forward_segments(ids, mask, types)?;
        let logits = match &self.scorer {
            Scorer::Head(head) => head.forward(&hidden, mask)?,
            Scorer::Answers(answers) => answers.forward(&hidden, mask)?,
        };
        logits.to_dtype(DType::F32)?.squeeze(1)
    }

    /// A score for each pair: (pairs), in f32. Each is what it would be without the others.
    ///
    /// # Errors
    /// If there are no pairs, or one has no tokens, more than the model takes, one that is not in its vocabulary, or segments for another
    /// number of tokens; if `options` has a batch of 0.
    pub fn scores<P: AsRef<Pair>>(&self, pairs: &[P], options: &Options) -> Result<Tensor> {
        if pairs.is_empty() {
            bail!("rerank: no pairs; give at least one")
        }
        if options.batch == 0 {
            bail!("rerank: a batch of 0 pairs; give at least 1")
        }
        for (i, pair) in pairs.iter().enumerate() {
            let (pair, number) = (pair.as_ref(), i + 1);
            self.config()
                .check(format_args!("rerank: pair {number}"), &pair.ids)?;
            if pair.types.len() != pair.ids.len() {
                bail!(
                    "rerank: pair {number} has {} tokens and segments for {}; give one for each token",
                    pair.ids.len(),
                    pair.types.len()
                )
            }
        }
        let (device, padding) = (self.device(), self.config().padding);
        let lens: Vec<usize> = pairs.iter().map(|pair| pair.as_ref().ids.len()).collect();
        let logits = by_length(&lens, options.batch, device, |batch| {
            let rows = |of: fn(&Pair) -> &Vec<u32>| -> Vec<&[u32]> {
                let rows = batch.iter().map(|i| &of(pairs[*i].as_ref())[..]);
                rows.collect()
            };
            let (ids, types) = (rows(|pair| &pair.ids), rows(|pair| &pair.types));
            let seen = mask(&ids, |i, len| i < len, device)?;
            let types = filled(&types, 0, device)?;
            self.forward(&filled(&ids, padding, device)?, &seen, &types)
        })?;
        match options.scale {
            Scale::Sigmoid => ops::sigmoid(&logits),
            Scale::Identity => Ok(logits),
        }
    }
}
