//! What a model's files say of the network, whichever files they are.

use super::gguf::GgufNetwork;
use super::Weights;
use crate::error::Doing;
use crate::format::WeightFormat;
use crate::Result;
use candle_core::{DType, Device};
use candle_transformers::models::llama::{Cache, Config, Llama};

/// Configuration and weights, the weights still in their file.
pub(super) enum Network {
    /// `config.json` and safetensors.
    Checkpoint { config: Config, weights: Weights },
    /// A GGUF file.
    Gguf(GgufNetwork),
}

impl Network {
    /// The longest sequence.
    pub(super) fn max_positions(&self) -> usize {
        match self {
            Self::Checkpoint { config, .. } => config.max_position_embeddings,
            Self::Gguf(network) => network.max_positions(),
        }
    }

    /// The stored size of all tensors.
    pub(super) fn total_bytes(&self) -> u64 {
        match self {
            Self::Checkpoint { weights, .. } => weights.total_bytes(),
            Self::Gguf(network) => network.total_bytes(),
        }
    }

    /// What the weights are stored as.
    pub(super) fn format(&self) -> WeightFormat {
        match self {
            Self::Checkpoint { weights, .. } => WeightFormat::Dense(weights.dtype()),
            Self::Gguf(network) => network.format(),
        }
    }

    /// What activations on a GPU are, unless something else is asked for.
    pub(super) fn activations(&self) -> DType {
        match self {
            Self::Checkpoint { weights, .. } => weights.dtype(),
            Self::Gguf(network) => network.activations(),
        }
    }

    /// The network on `device` with activations of `dtype`, and an empty cache for it.
    pub(super) fn place(
        &self,
        dtype: DType,
        device: &Device,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(Llama, Cache)> {
        match self {
            Self::Checkpoint { config, weights } => {
                let weights = weights.var_builder(dtype, device, progress);
                let model = Llama::load(weights, config).doing("loading the weights")?;
                let cache = Cache::new(true, dtype, config, device)
                    .doing("making the rotary embedding's tables")?;
                Ok((model, cache))
            }
            Self::Gguf(network) => network.place(dtype, device, progress),
        }
    }
}
