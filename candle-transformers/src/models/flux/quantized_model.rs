//! The transformer with quantised weights, from GGUF files that have the names of Black Forest Labs' checkpoints. The layers are those of
//! [`super::model`]; activations are f32.
//!
//! ```no_run
//! use candle_core::Device;
//! use candle_transformers::models::flux::{model::Config, quantized_model::Flux};
//! use candle_transformers::quantized_var_builder::VarBuilder;
//! # fn main() -> candle_core::Result<()> {
//! let vb = VarBuilder::from_gguf("flux1-schnell.gguf", &Device::Cpu)?;
//! let model = Flux::new(&Config::schnell(), vb)?;
//! # Ok(())
//! # }
//! ```

use candle_core::{DType, Result, Tensor};

use super::model::{Config, Transformer};
pub use super::model::{
    DoubleStreamBlock, LastLayer, MlpEmbedder, QkNorm, SelfAttention, SingleStreamBlock,
};
use super::WithForward;
use crate::blocks::{at_once, Weights};
use crate::quantized_var_builder::VarBuilder;

/// The model over quantised weights.
#[derive(Debug, Clone)]
pub struct Flux {
    model: Transformer,
}

impl Flux {
    /// Loads the model.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (device, mut vb) = (vb.device().clone(), vb);
        let mut weights = Weights::new(&mut vb, DType::F32, &device);
        Ok(Self {
            model: at_once(Transformer::load(cfg, &mut weights))?,
        })
    }
}

/// `img`, `txt` and `y` are f32; positions and times may have any dtype.
impl WithForward for Flux {
    fn forward(
        &self,
        img: &Tensor,
        img_ids: &Tensor,
        txt: &Tensor,
        txt_ids: &Tensor,
        timesteps: &Tensor,
        y: &Tensor,
        guidance: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.model
            .forward(img, img_ids, txt, txt_ids, timesteps, y, guidance)
    }
}
