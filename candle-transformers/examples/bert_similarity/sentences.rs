//! Sentences as vectors, as the models of `sentence-transformers` make them: the mean of a sentence's tokens, of length 1.

use candle_core::{bail, Result, Tensor, D};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use tokenizers::{Tokenizer, TruncationParams};

/// A BERT and its tokenizer.
pub struct Sentences {
    model: BertModel,
    tokenizer: Tokenizer,
    pad_token_id: u32,
}

/// Reads and checks `config.json`.
///
/// # Errors
/// It is not the configuration of a BERT.
pub fn read_config(json: &[u8]) -> Result<Config> {
    #[derive(serde::Deserialize)]
    struct Kind {
        model_type: Option<String>,
    }
    let wrong = |err| candle_core::Error::Msg(format!("config.json: {err}"));
    let Kind { model_type } = serde_json::from_slice(json).map_err(wrong)?;
    match model_type.as_deref() {
        None | Some("bert") => serde_json::from_slice(json).map_err(wrong),
        Some(other) => bail!(
            "config.json: field `model_type`: the model is a {other}, expected a bert, such as \
             sentence-transformers/all-MiniLM-L6-v2"
        ),
    }
}

/// Reads `tokenizer.json`; texts are truncated to the model's length.
///
/// # Errors
/// It is not a tokenizer.
pub fn read_tokenizer(json: &[u8], config: &Config) -> Result<Tokenizer> {
    let wrong = |err| candle_core::Error::Msg(format!("tokenizer.json: {err}"));
    let mut tokenizer = Tokenizer::from_bytes(json).map_err(wrong)?;
    let mut truncation = tokenizer
        .get_truncation()
        .cloned()
        .unwrap_or(TruncationParams {
            max_length: usize::MAX,
            ..TruncationParams::default()
        });
    truncation.max_length = truncation.max_length.min(config.max_position_embeddings);
    tokenizer.with_padding(None);
    let truncated = tokenizer.with_truncation(Some(truncation));
    truncated.map_err(wrong)?;
    Ok(tokenizer)
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
            let encoded = self.tokenizer.encode(text.as_str(), true);
            let encoded =
                encoded.map_err(|err| candle_core::Error::Msg(format!("text {}: {err}", i + 1)))?;
            if encoded.get_ids().is_empty() {
                bail!("text {} has no tokens: write something", i + 1)
            }
            rows.push(encoded.get_ids().to_vec());
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
