//! NV-Embed v2, which makes vectors of texts: [arXiv 2405.17428](https://arxiv.org/abs/2405.17428). A [`mistral`](super::mistral) whose
//! tokens see each other ([`embedding`]), and a block in which each of them looks at 512 learned vectors ([`model`]); the mean of what comes
//! out is the text's vector.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::mistral::Config;
//! use candle_transformers::models::nvembed_v2::model::{LatentConfig, Model};
//! # fn main() -> candle_core::Result<()> {
//! // The trained model is `Model::new(VarBuilder::from_mmaped_safetensors(..))`.
//! let mut config = Config::config_7b_v0_1(false);
//! (config.vocab_size, config.hidden_size, config.intermediate_size) = (40, 32, 16);
//! (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads) = (1, 4, 2);
//! let latent = LatentConfig { latents: 6, heads: 2, head_dim: 32 };
//! let mut model = Model::with_config(&config, &latent, VarBuilder::zeros(DType::F32, &Device::Cpu))?;
//! let ids = Tensor::new(&[[2u32, 7, 9, 3], [2, 8, 3, 0]], &Device::Cpu)?;
//! let mask = Tensor::new(&[[1f32, 1., 1., 1.], [1., 1., 1., 0.]], &Device::Cpu)?;
//! // The tokens of an instruction are seen, and do not count in the mean.
//! let pooled = Tensor::new(&[[0f32, 1., 1., 1.], [0., 1., 1., 0.]], &Device::Cpu)?;
//! assert_eq!(model.forward(&ids, &mask, &pooled)?.dims(), &[2, 32]);
//! # Ok(())
//! # }
//! ```

pub mod embedding;
pub mod model;
