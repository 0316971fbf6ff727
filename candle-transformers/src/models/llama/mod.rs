//! Llama: [arXiv 2302.13971](https://arxiv.org/abs/2302.13971), with the grouped heads of
//! [arXiv 2305.13245](https://arxiv.org/abs/2305.13245), the rotary positions of
//! [arXiv 2104.09864](https://arxiv.org/abs/2104.09864) and Llama 3's scaling of them. Weight names are those of
//! Hugging Face's checkpoints.

use crate::blocks::{CachedLm, SequenceCache};

mod config;
mod config_json;

pub use config::{Config, Llama3RopeConfig, Llama3RopeType, LlamaEosToks, DEFAULT_MAX_SEQ_LEN};
pub use config_json::LlamaConfig;

/// State of a sequence between its steps: keys and values per layer, next to the rotary tables.
pub type Cache = SequenceCache<Config>;

/// The Llama language model. Loads `model.embed_tokens`, `model.layers.N.{input_layernorm, self_attn.{q,k,v,o}_proj,
/// post_attention_layernorm, mlp.{gate,up,down}_proj}`, `model.norm`, and `lm_head` unless it is tied to the embedding.
pub type Llama = CachedLm<Config>;
