//! Language models that answer whether a document meets a query, such as Qwen3-Reranker: the score is how much likelier yes is than no.

use candle_core::{bail, Device, Result, Tensor};
use candle_nn::VarBuilder;

use crate::auto::config::Config;
use crate::blocks::encoder::mean_of_seen;
use crate::embed::EncoderConfig;

/// The tokens of the two answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answers {
    /// The token of a document that meets the query.
    pub yes: u32,
    /// The token of one that does not.
    pub no: u32,
}

/// The two rows of the output layer, before they are loaded.
#[derive(Debug, Clone)]
pub(super) struct AnswersSpec {
    size: usize,
    vocab: usize,
    tied: bool,
    pub(super) answers: Option<Answers>,
}

/// The difference of the two rows, (1, size).
pub(super) struct AnswersHead(Tensor);

impl AnswersSpec {
    pub(super) fn read(model: &EncoderConfig, json: &Config) -> Self {
        Self {
            size: model.size,
            vocab: model.vocab,
            tied: json.flag("tie_word_embeddings"),
            answers: None,
        }
    }

    pub(super) fn load(&self, vb: &VarBuilder) -> Result<AnswersHead> {
        let Some(Answers { yes, no }) = self.answers else {
            bail!("rerank: a language model needs the tokens of its answers; give them with `with_answers`")
        };
        for (name, id) in [("yes", yes), ("no", no)] {
            if id as usize >= self.vocab {
                bail!(
                    "rerank: {name} is token {id}, but the model's vocabulary has {} tokens",
                    self.vocab
                )
            }
        }
        const OUTPUT: &str = "lm_head.weight";
        let name = if self.tied || !vb.contains_tensor(OUTPUT) {
            "model.embed_tokens.weight"
        } else {
            OUTPUT
        };
        // Two rows of a large matrix: the others need not be on the device.
        let rows = vb.clone().set_device(Device::Cpu);
        let rows = rows.get((self.vocab, self.size), name)?;
        let row = |id: u32| rows.narrow(0, id as usize, 1);
        let difference = (row(yes)? - row(no)?)?;
        Ok(AnswersHead(difference.to_device(vb.device())?))
    }
}

impl AnswersHead {
    /// From the vectors of tokens, (batch, seq, size), with `mask` selecting those of a text, to (batch, 1).
    pub(super) fn forward(&self, hidden: &Tensor, mask: &Tensor) -> Result<Tensor> {
        // 1 where the next token is hidden: the last of each text.
        let (batch, len) = mask.dims2()?;
        let end = Tensor::zeros((batch, 1), mask.dtype(), mask.device())?;
        let next = Tensor::cat(&[&mask.narrow(1, 1, len - 1)?, &end], 1)?;
        let last = (mask - next)?;
        mean_of_seen("rerank", hidden, &last)?.matmul(&self.0.t()?)
    }
}
