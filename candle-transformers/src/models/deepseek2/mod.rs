//! DeepSeek V2 ([arXiv 2405.04434](https://arxiv.org/abs/2405.04434)) and V3 ([arXiv 2412.19437](https://arxiv.org/abs/2412.19437)):
//! latent attention, and experts that are chosen from the best groups.

use candle_core::{DType, Result, Tensor};
use candle_nn::VarBuilder;

use crate::blocks::CausalLm;

mod config;
mod ops;
mod rotary;

pub use config::DeepSeekV2Config;
pub use ops::{BincountOp, NonZeroOp, SplitOp, TopKLastDimOp, TopKOutput};
pub use rotary::{
    DeepSeekV2RopeConfig, DeepSeekV2RopeScaling, DeepSeekV2RotaryEmbedding, ScaledRopeType,
};

/// A function `$name` that gives `$v`, of type `$t`, for `#[serde(default = "..")]`. Part of upstream's interface.
#[macro_export]
macro_rules! serde_default_fn {
    ($t:ty, $name:ident, $v:expr) => {
        fn $name() -> $t {
            $v
        }
    };
}

/// The language model.
#[derive(Debug, Clone)]
pub struct DeepSeekV2 {
    lm: CausalLm,
}

impl DeepSeekV2 {
    /// Loads `model.*`, and `lm_head` unless it is tied.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &DeepSeekV2Config, vb: VarBuilder) -> Result<Self> {
        CausalLm::from_vb(cfg.spec()?, vb).map(|lm| Self { lm })
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last of the token ids `(b, t)`, which are at the positions from
    /// `seqlen_offset` on. At position 0 a new sequence begins.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input_ids: &Tensor, seqlen_offset: usize) -> Result<Tensor> {
        let logits = self.lm.forward(input_ids, seqlen_offset)?.last_logits()?;
        logits.squeeze(1)?.to_dtype(DType::F32)
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}
