//! Sentences as vectors, as the models of `sentence-transformers` make them: the mean of a sentence's tokens, of length 1.

use super::bert::token_ids;
use candle_core::{bail, Result, Tensor, D};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use tokenizers::Tokenizer;

/// A BERT and its tokenizer.
pub struct Sentences {
    model: BertModel,
    tokenizer: Tokenizer,
    pad_token_id: u32,
}

impl Sentences {
    /// A model from its files.
    ///
    /// # Errors
    /// A weight is missing or does not fit the configuration.
    pub fn new(config: &Config, tokenizer: Tokenizer, weights: VarBuilder) -> Result<Self> {
        Ok(Self {
            model: BertModel::load(weights, config)?,
            tokenizer,
            pad_token_id: config.pad_token_id as u32,
        })
    }

    /// A vector of length 1 for each text: (texts, hidden_size).
    ///
    /// # Errors
    /// There are no texts, or one has no tokens.
    pub fn embed(&self, texts: &[String]) -> Result<Tensor> {
        let mut rows = Vec::with_capacity(texts.len());
        for (i, text) in texts.iter().enumerate() {
            rows.push(token_ids(&self.tokenizer, i, text)?);
        }
        let Some(longest) = rows.iter().map(Vec::len).max() else {
            bail!("there are no texts to compare")
        };
        let device = &self.model.device;
        let count = rows.len();
        let fill = |row: &Vec<u32>| {
            let mut row = row.clone();
            row.resize(longest, self.pad_token_id);
            row
        };
        let ids: Vec<u32> = rows.iter().flat_map(fill).collect();
        let seen = |row: &Vec<u32>| {
            let len = row.len();
            (0..longest).map(move |i| u32::from(i < len))
        };
        let mask: Vec<u32> = rows.iter().flat_map(seen).collect();
        let ids = Tensor::from_vec(ids, (count, longest), device)?;
        let mask = Tensor::from_vec(mask, (count, longest), device)?;
        let hidden = self.model.forward(&ids, &ids.zeros_like()?, Some(&mask))?;
        let seen = mask.to_dtype(hidden.dtype())?.unsqueeze(2)?;
        // The mean's divisor does not matter: the length becomes 1.
        let sum = hidden.broadcast_mul(&seen)?.sum(1)?;
        sum.broadcast_div(&sum.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?)
    }

    /// The cosine of the angle between each two texts' vectors: (texts, texts).
    ///
    /// # Errors
    /// Those of [`Sentences::embed`].
    pub fn similarities(&self, texts: &[String]) -> Result<Tensor> {
        let vectors = self.embed(texts)?;
        vectors.matmul(&vectors.t()?)
    }
}
