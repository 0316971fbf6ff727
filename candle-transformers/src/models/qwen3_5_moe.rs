//! Qwen3.5 ([its collection](https://huggingface.co/collections/Qwen/qwen35)) with experts, the language model. Candle lacks it.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use serde::Deserialize;

use super::qwen3_5;
use crate::blocks::{
    CausalLm, DecoderSpec, ExpertsSpec, FeedForwardSpec, Head, Routing, SharedSpec,
};

/// A checkpoint's `config.json`, or its `text_config` where there is an image encoder too.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    /// All but the experts; `intermediate_size` is of no effect.
    #[serde(flatten)]
    pub base: qwen3_5::Config,
    /// Inner size of an expert.
    pub moe_intermediate_size: usize,
    /// Inner size of the shared expert.
    pub shared_expert_intermediate_size: usize,
    /// Experts for each token.
    pub num_experts_per_tok: usize,
    /// Experts.
    pub num_experts: usize,
}

impl Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself, or asks for what is not supported.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let experts = ExpertsSpec::new(
            self.num_experts,
            self.moe_intermediate_size,
            self.base.hidden_act.try_into()?,
            Routing::softmax(self.num_experts_per_tok, true),
        )
        .shared(SharedSpec {
            inner: self.shared_expert_intermediate_size,
            gated: true,
            joined: None,
        });
        let experts = FeedForwardSpec::Experts(experts);
        self.base.spec_with("qwen3_5_moe", experts)
    }
}

/// The decoder without an output layer.
#[derive(Debug, Clone)]
pub struct Model(CausalLm);

impl Model {
    /// Loads `model.*`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let spec = DecoderSpec {
            head: Head::None,
            ..cfg.spec()?
        };
        CausalLm::from_vb(spec, vb).map(Self)
    }

    /// The stream after the last norm, `(b, t, hidden_size)`, for token ids `(b, t)` at the positions from `offset` on; at 0 a new
    /// sequence begins.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input: &Tensor, offset: usize) -> Result<Tensor> {
        self.0.forward(input, offset)?.normed()
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.0.clear_kv_cache();
    }
}

/// The language model.
#[derive(Debug, Clone)]
pub struct ModelForCausalLM(CausalLm);

impl ModelForCausalLM {
    /// Loads `model.*`, and `lm_head` unless it is tied.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        CausalLm::from_vb(cfg.spec()?, vb).map(Self)
    }

    /// The logits of what follows the last of the token ids, `(b, 1, vocab)` in the model's dtype; see [`Model::forward`].
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input: &Tensor, offset: usize) -> Result<Tensor> {
        self.0.forward(input, offset)?.last_logits()
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.0.clear_kv_cache();
    }
}
