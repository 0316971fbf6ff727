//! Würstchen, which makes images of texts in latents that are 42 times smaller than the image:
//! [arXiv 2306.00637](https://arxiv.org/abs/2306.00637), [warp-ai/wuerstchen](https://huggingface.co/warp-ai/wuerstchen). Weight names are
//! those of its checkpoints.
//!
//! Two encoders of texts ([`clip`](super::stable_diffusion::clip)) are there, one for each stage: a prior ([`prior`]) makes small latents of
//! noise, a second model ([`diffnext`]) the latents of the autoencoder ([`paella_vq`]) from noise and the small ones. [`ddpm`] takes the
//! noise out.
//!
//! ```no_run
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::wuerstchen::{ddpm, diffnext, paella_vq, prior};
//! # fn main() -> candle_core::Result<()> {
//! # let (texts, decoder_texts) = (Tensor::new(0f32, &Device::Cpu)?, Tensor::new(0f32, &Device::Cpu)?);
//! let (device, dtype) = (Device::Cpu, DType::F32);
//! let weights = |file| unsafe { VarBuilder::from_mmaped_safetensors(&[file], dtype, &device) };
//! let prior = prior::WPrior::new(16, 1536, 1280, 64, 32, 24, false, weights("prior.safetensors")?)?;
//! let scheduler = ddpm::DDPMWScheduler::new(60, Default::default())?;
//! let mut small = Tensor::randn(0f32, 1., (1, 16, 24, 24), &device)?;
//! for &time in &scheduler.timesteps()[..60] {
//!     let times = Tensor::new(&[time as f32], &device)?;
//!     small = scheduler.step(&prior.forward(&small, &times, &texts)?, time, &small)?;
//! }
//! let small = ((small * 42.)? - 1.)?;
//!
//! let decoder = diffnext::WDiffNeXt::new(4, 4, 64, 1024, 1024, 2, false, weights("decoder.safetensors")?)?;
//! let scheduler = ddpm::DDPMWScheduler::new(12, Default::default())?;
//! let mut latents = Tensor::randn(0f32, 1., (1, 4, 256, 256), &device)?;
//! for &time in &scheduler.timesteps()[..12] {
//!     let times = Tensor::new(&[time as f32], &device)?;
//!     let found = decoder.forward(&latents, &times, &small, Some(&decoder_texts))?;
//!     latents = scheduler.step(&found, time, &latents)?;
//! }
//! let vq = paella_vq::PaellaVQ::new(weights("vqgan.safetensors")?)?;
//! // From 0 to 1, (1, 3, 1024, 1024).
//! let picture = vq.decode(&(latents * 0.3764)?)?.clamp(0f32, 1f32)?;
//! # let _ = picture;
//! # Ok(())
//! # }
//! ```

pub mod attention_processor;
pub mod common;
pub mod ddpm;
pub mod diffnext;
pub mod paella_vq;
pub mod prior;
