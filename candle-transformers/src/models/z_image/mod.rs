//! Z-Image, which makes images of texts: a transformer of 6 billion parameters with one stream for text and image,
//! [arXiv 2511.22699](https://arxiv.org/abs/2511.22699). [Z-Image-Turbo](https://huggingface.co/Tongyi-MAI/Z-Image-Turbo); weight names are
//! those of its folders `transformer`, `text_encoder` and `vae`.
//!
//! [`text_encoder`] makes vectors of a text's tokens, [`transformer`] runs from noise to latents along the times of [`scheduler`], and
//! [`vae`] makes the image.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::z_image::{
//!     get_noise, postprocess_image, prepare_inputs, AutoEncoderKL, Config, FlowMatchEulerDiscreteScheduler, SchedulerConfig,
//!     TextEncoderConfig, VaeConfig, ZImageTextEncoder, ZImageTransformer2DModel,
//! };
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // Real models: the configurations z_image_turbo() and z_image(), and VarBuilder::from_mmaped_safetensors for each folder.
//! let vb = VarBuilder::zeros(DType::F32, &device);
//! let text = TextEncoderConfig {
//!     vocab_size: 50, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1,
//!     head_dim: 8, ..TextEncoderConfig::z_image()
//! };
//! let config = Config {
//!     dim: 24, n_heads: 2, n_kv_heads: 2, axes_dims: vec![4, 4, 4], n_layers: 1, n_refiner_layers: 1, cap_feat_dim: 16,
//!     ..Config::z_image_turbo()
//! };
//! let vae = VaeConfig { block_out_channels: vec![32; 4], ..VaeConfig::z_image() };
//! let encoder = ZImageTextEncoder::new(&text, vb.clone())?;
//! let model = ZImageTransformer2DModel::new(&config, vb.clone())?;
//! let vae = AutoEncoderKL::new(&vae, vb)?;
//!
//! let tokens = encoder.forward(&Tensor::new(&[[7u32, 8, 9]], &device)?)?.squeeze(0)?;
//! // An image of 32 x 48 pixels.
//! let mut latents = get_noise(1, 16, 4, 6, &device)?;
//! let inputs = prepare_inputs(&latents, &[tokens], &device)?;
//! let mut scheduler = FlowMatchEulerDiscreteScheduler::new(SchedulerConfig::z_image_turbo());
//! scheduler.set_timesteps(2, None);
//! while !scheduler.is_complete() {
//!     let time = Tensor::new(&[scheduler.current_timestep_normalized() as f32], &device)?;
//!     let towards = model.forward(&latents.unsqueeze(2)?, &time, &inputs.cap_feats, &inputs.cap_mask)?;
//!     latents = scheduler.step(&towards.squeeze(2)?.neg()?, &latents)?;
//! }
//! let picture = postprocess_image(&vae.decode(&latents)?)?;
//! assert_eq!((picture.dims(), picture.dtype()), (&[1, 3, 32, 48][..], DType::U8));
//! # Ok(())
//! # }
//! ```

pub mod preprocess;
pub mod sampling;
pub mod scheduler;
pub mod text_encoder;
pub mod transformer;
pub mod vae;

pub use preprocess::{prepare_inputs, PreparedInputs};
pub use sampling::{get_noise, get_schedule, postprocess_image};
pub use scheduler::{calculate_shift, FlowMatchEulerDiscreteScheduler, SchedulerConfig};
pub use text_encoder::{TextEncoderConfig, ZImageTextEncoder};
pub use transformer::{Config, ZImageTransformer2DModel};
pub use vae::{AutoEncoderKL, VaeConfig};

/// The name in errors.
const FAMILY: &str = "z_image";
