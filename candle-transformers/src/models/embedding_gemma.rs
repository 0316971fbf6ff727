//! EmbeddingGemma, which makes vectors of texts in a hundred languages: [arXiv 2509.20354](https://arxiv.org/abs/2509.20354). A
//! [`gemma3`] whose tokens see each other, the mean of them, and two layers without biases. The first 512, 256 or 128 elements
//! of a vector, made of length 1 again, are vectors too. Not in upstream's interface.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Activation, VarBuilder};
//! use candle_transformers::models::embedding_gemma::{Config, EmbeddingModel};
//! # fn main() -> candle_core::Result<()> {
//! let config = Config::embedding_gemma_300m();
//! # let mut config = config;
//! # (config.base.vocab_size, config.base.hidden_size, config.base.intermediate_size) = (40, 32, 16);
//! # (config.base.num_hidden_layers, config.base.head_dim, config.dense) = (1, 8, [48, 32]);
//! let vb = VarBuilder::zeros(DType::F32, &Device::Cpu);
//! // The trained model has its weights in model.safetensors, 2_Dense/model.safetensors and 3_Dense/model.safetensors.
//! let model = EmbeddingModel::new(&config, vb.clone(), [vb.clone(), vb])?;
//! let ids = Tensor::new(&[[2u32, 7, 9, 1], [2, 8, 1, 0]], &Device::Cpu)?;
//! let mask = Tensor::new(&[[1u32, 1, 1, 1], [1, 1, 1, 0]], &Device::Cpu)?;
//! assert_eq!(model.forward(&ids, &mask)?.dims(), &[2, 32]);
//! # Ok(())
//! # }
//! ```

use candle_core::{Module, Result, Tensor};
use candle_nn::{linear_no_bias, Activation, Linear, VarBuilder};

use super::gemma3;
use super::nomic_bert::l2_normalize;
use crate::blocks::encoder::{below, mean_of_seen};
use crate::blocks::{Decoder, DecoderSpec, MixerSpec};

const FAMILY: &str = "embedding_gemma";

/// Sizes and constants.
#[derive(Debug, Clone)]
pub struct Config {
    /// The layers. As in files, `sliding_window` is what a token of a layer with a window sees to both sides together.
    pub base: gemma3::Config,
    /// The outputs of the two layers behind the mean.
    pub dense: [usize; 2],
}

impl Config {
    /// [embeddinggemma-300m](https://huggingface.co/google/embeddinggemma-300m).
    pub fn embedding_gemma_300m() -> Self {
        Self {
            base: gemma3::Config {
                attention_bias: false,
                head_dim: 256,
                hidden_activation: Activation::GeluPytorchTanh,
                hidden_size: 768,
                intermediate_size: 1152,
                num_attention_heads: 3,
                num_hidden_layers: 24,
                num_key_value_heads: 1,
                rms_norm_eps: 1e-6,
                rope_theta: 1e6,
                rope_local_base_freq: 1e4,
                vocab_size: 262_144,
                final_logit_softcapping: None,
                attn_logit_softcapping: None,
                query_pre_attn_scalar: 256,
                sliding_window: 512,
                sliding_window_pattern: 6,
                max_position_embeddings: 2048,
            },
            dense: [3072, 768],
        }
    }
}

/// From the tokens of texts to vectors of them.
#[derive(Debug, Clone)]
pub struct Model {
    decoder: Decoder,
}

impl Model {
    /// Loads `embed_tokens`, `layers` and `norm`, which may be below `model`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than it says.
    pub fn new(cfg: &gemma3::Config, vb: VarBuilder) -> Result<Self> {
        Self::with_spec(cfg.spec()?, vb)
    }

    /// As [`new`](Self::new), of a decoder with the windows of its file.
    pub(crate) fn with_spec(mut spec: DecoderSpec, vb: VarBuilder) -> Result<Self> {
        spec.family = FAMILY;
        for layer in &mut spec.layers {
            if let MixerSpec::Attention(attention) = &mut layer.mixer {
                // Half to each side, and the token.
                attention.window = attention.window.map(|window| window / 2 + 1);
            }
        }
        let vb = below(vb, "model", "embed_tokens.weight");
        let vb = vb.rename_f(|name| name.strip_prefix("model.").unwrap_or(name).to_string());
        let decoder = Decoder::from_vb(spec, vb)?;
        Ok(Self { decoder })
    }

    /// The vectors of the tokens `input_ids`, (batch, seq): (batch, seq, hidden_size). `mask` is 1 where a token is seen and 0 where it is
    /// hidden, integers of the same shape. The vectors of hidden tokens mean nothing.
    ///
    /// # Errors
    /// If the shapes differ, there are no tokens or more than `max_position_embeddings`.
    pub fn forward(&self, input_ids: &Tensor, mask: &Tensor) -> Result<Tensor> {
        self.decoder.encode(input_ids, mask)?.normed()
    }
}

/// The model with the layers that make a text's vector.
#[derive(Debug, Clone)]
pub struct EmbeddingModel {
    base: Model,
    dense: [Linear; 2],
}

impl EmbeddingModel {
    /// Loads a [`Model`] from `base`, and a `linear` from each of `dense`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than it says.
    pub fn new(cfg: &Config, base: VarBuilder, dense: [VarBuilder; 2]) -> Result<Self> {
        let [inner, size] = cfg.dense;
        let [first, second] = dense;
        Ok(Self {
            base: Model::new(&cfg.base, base)?,
            dense: [
                linear_no_bias(cfg.base.hidden_size, inner, first.pp("linear"))?,
                linear_no_bias(inner, size, second.pp("linear"))?,
            ],
        })
    }

    /// The vectors of texts, (batch, size), of length 1; the arguments are those of [`Model::forward`].
    ///
    /// # Errors
    /// As that.
    pub fn forward(&self, input_ids: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let xs = self.base.forward(input_ids, mask)?;
        let mean = mean_of_seen(FAMILY, &xs, mask)?;
        let [first, second] = &self.dense;
        l2_normalize(&second.forward(&first.forward(&mean)?)?)
    }
}
