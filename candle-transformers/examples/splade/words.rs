//! Texts as the words that they are about, with a weight for each, by SPLADE ([arXiv 2107.05720](https://arxiv.org/abs/2107.05720)).

use super::bert::token_ids;
use candle_core::{bail, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertForMaskedLM, Config};
use tokenizers::Tokenizer;

/// A BERT with the head that guesses hidden words, and its tokenizer.
pub struct Splade {
    model: BertForMaskedLM,
    tokenizer: Tokenizer,
    device: Device,
}

impl Splade {
    /// A model from its files.
    ///
    /// # Errors
    /// A weight is missing or does not fit the configuration.
    pub fn new(config: &Config, tokenizer: Tokenizer, weights: VarBuilder) -> Result<Self> {
        Ok(Self {
            device: weights.device().clone(),
            model: BertForMaskedLM::load(weights, config)?,
            tokenizer,
        })
    }

    /// The weight of each word of the vocabulary in each text, (texts, vocab): the maximum over the text's tokens of log(1 + relu(logit)).
    /// Texts are read one at a time, without padding: the logits of one are megabytes.
    ///
    /// # Errors
    /// No texts, or one without tokens.
    pub fn weights(&self, texts: &[String]) -> Result<Tensor> {
        if texts.is_empty() {
            bail!("there are no texts to find words for")
        }
        let rows: Vec<Tensor> = texts
            .iter()
            .enumerate()
            .map(|(i, text)| {
                let ids = token_ids(&self.tokenizer, i, text)?;
                let ids = Tensor::new(ids.as_slice(), &self.device)?.unsqueeze(0)?;
                let logits = self.model.forward(&ids, &ids.zeros_like()?, None)?;
                // The logarithm grows with the logit: the maximum may come first.
                (logits.max(1)?.relu()? + 1.)?.log()
            })
            .collect::<Result<_>>()?;
        Tensor::cat(&rows, 0)
    }

    /// The words of a text that have a weight, heaviest first, from its row of [`Splade::weights`].
    pub fn words(&self, weights: &[f32]) -> Vec<(String, f32)> {
        let mut order: Vec<usize> = (0..weights.len()).filter(|i| weights[*i] > 0.).collect();
        order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
        // A table of vectors may be longer than the vocabulary.
        let word = |id: usize| self.tokenizer.id_to_token(id as u32);
        order
            .into_iter()
            .filter_map(|id| Some((word(id)?, weights[id])))
            .collect()
    }
}
