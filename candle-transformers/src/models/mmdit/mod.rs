//! MMDiT, the transformer of Stable Diffusion 3, [arXiv 2403.03206](https://arxiv.org/abs/2403.03206): text and image have separate
//! weights and attend to each other. It is that of [SD3 medium](https://huggingface.co/stabilityai/stable-diffusion-3-medium),
//! [SD3.5 large](https://huggingface.co/stabilityai/stable-diffusion-3.5-large) and
//! [SD3.5 medium](https://huggingface.co/stabilityai/stable-diffusion-3.5-medium), some of whose blocks have attention of the image to
//! itself as well (MMDiT-X); the file tells which. Weight names are those of Stability AI's single files, below `model.diffusion_model`.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::mmdit::model::{Config, MMDiT};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: Config::sd3_5_medium(), and VarBuilder::from_mmaped_safetensors(..).pp("model.diffusion_model").
//! let config = Config {
//!     depth: 2, head_size: 8, adm_in_channels: 6, context_embed_size: 10, pos_embed_max_size: 8, ..Config::sd3_medium()
//! };
//! let model = MMDiT::new(&config, false, VarBuilder::zeros(DType::F32, &device))?;
//! let latents = Tensor::zeros((1, 16, 8, 12), DType::F32, &device)?;
//! let times = Tensor::new(&[1000f32], &device)?;
//! // What CLIP makes of the whole text, and CLIP and T5 of its tokens.
//! let (text, tokens) = (Tensor::zeros((1, 6), DType::F32, &device)?, Tensor::zeros((1, 5, 10), DType::F32, &device)?);
//! let towards = model.forward(&latents, &times, &text, &tokens, None)?;
//! assert_eq!(towards.dims(), latents.dims());
//! # Ok(())
//! # }
//! ```

pub mod blocks;
pub mod embedding;
pub mod model;
pub mod projections;

use candle_core::{bail, Result};

/// The name in errors.
const FAMILY: &str = "mmdit";

/// The size of a head.
fn head_dim(hidden: usize, heads: usize) -> Result<usize> {
    if heads == 0 || hidden == 0 || !hidden.is_multiple_of(heads) {
        bail!("{FAMILY}: {heads} heads do not divide the size {hidden}")
    }
    Ok(hidden / heads)
}
