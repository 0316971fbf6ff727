//! Pixtral, which writes about images: [arXiv 2410.07073](https://arxiv.org/abs/2410.07073). A vision transformer with rotary positions
//! of rows and columns sees images of any shape ([`vision_model`]), two linear layers make tokens of their patches, and
//! [`super::mistral`] writes ([`llava`]). Weight names are those of
//! [mistral-community/pixtral-12b](https://huggingface.co/mistral-community/pixtral-12b).
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Module, VarBuilder};
//! use candle_transformers::models::pixtral::{Config, Model};
//! # fn main() -> candle_core::Result<()> {
//! // A real model: its config.json, and VarBuilder::from_mmaped_safetensors.
//! let config: Config = serde_json::from_str(
//!     r#"{"projector_hidden_act": "gelu", "image_token_index": 10, "image_seq_length": 1,
//!         "vision_config": {"image_size": 64, "patch_size": 16, "rope_theta": 10000.0, "hidden_size": 32,
//!             "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16},
//!         "text_config": {"vocab_size": 40, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1,
//!             "num_attention_heads": 2, "head_dim": 16, "num_key_value_heads": 1, "max_position_embeddings": 64,
//!             "rms_norm_eps": 1e-5, "rope_theta": 1000000.0}}"#,
//! )
//! .map_err(candle_core::Error::wrap)?;
//! let device = Device::Cpu;
//! let mut model = Model::new(&config, VarBuilder::zeros(DType::F32, &device))?;
//! // An image of two rows and three columns of patches. The caller chooses the index of its vectors in the prompt.
//! let picture = model.encode_image(&Tensor::zeros((1, 3, 32, 48), DType::F32, &device)?)?;
//! assert_eq!(picture.dims(), &[1, 6, 24]);
//! let words = Tensor::new(&[[1u32, 5, 7]], &device)?;
//! let words = model.language_model.embed_tokens().forward(&words)?;
//! let logits = model.lm_forward_embeds(&Tensor::cat(&[picture, words], 1)?)?;
//! let token = logits.flatten_all()?.argmax(0)?.to_scalar::<u32>()?;
//! model.lm_forward(&Tensor::new(&[[token]], &device)?)?;
//! # Ok(())
//! # }
//! ```

pub mod llava;
pub mod vision_model;

pub use llava::{Config, Model};
