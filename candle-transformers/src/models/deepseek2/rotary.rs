//! Upstream's interface to the rotation of DeepSeek's heads.

use candle_core::{bail, DType, Device, Result, Tensor};
use candle_nn::rotary_emb::rope_i;
use serde::Deserialize;

use crate::blocks::{RopeScaling, RotaryPairs, RotaryTables};

/// A kind of scaling.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScaledRopeType {
    /// Longrope.
    #[serde(alias = "longrope")]
    Su,
    /// Yarn: [arXiv 2309.00071](https://arxiv.org/abs/2309.00071).
    Yarn,
    /// By the length of the sequence.
    Dynamic,
    /// All angles divided by a factor.
    Linear,
}

/// `rope_scaling` of a configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum DeepSeekV2RopeScaling {
    /// Yarn; see [`RopeScaling`].
    Yarn {
        /// Positions seen in training.
        original_max_position_embeddings: usize,
        /// Frequencies that rotate more often than this within the original context stay as they are.
        beta_fast: f32,
        /// Frequencies that rotate fewer times than this are divided.
        beta_slow: f32,
        /// Scales the factor of cosines and sines.
        mscale: f32,
        /// Scales the divisor of that factor.
        mscale_all_dim: f32,
        /// Factor by which the context is extended.
        factor: f32,
        /// The kind.
        #[serde(rename = "type")]
        scaling_type: ScaledRopeType,
    },
    /// Another kind.
    LinearOrDynamic {
        /// The kind.
        #[serde(rename = "type")]
        scaling_type: ScaledRopeType,
        /// Factor by which the context is extended.
        factor: f64,
    },
}

impl DeepSeekV2RopeScaling {
    /// The kind's own form.
    fn scaling(&self) -> Result<RopeScaling> {
        let none = RopeScaling::none();
        Ok(match self {
            Self::Yarn {
                original_max_position_embeddings,
                beta_fast,
                beta_slow,
                mscale,
                mscale_all_dim,
                factor,
                scaling_type: ScaledRopeType::Yarn,
            } => RopeScaling {
                rope_type: "yarn".into(),
                factor: Some(f64::from(*factor)),
                original_max_position_embeddings: Some(*original_max_position_embeddings),
                beta_fast: Some(f64::from(*beta_fast)),
                beta_slow: Some(f64::from(*beta_slow)),
                mscale: Some(f64::from(*mscale)),
                mscale_all_dim: Some(f64::from(*mscale_all_dim)),
                ..none
            },
            Self::LinearOrDynamic {
                scaling_type: ScaledRopeType::Linear,
                factor,
            } => RopeScaling {
                rope_type: "linear".into(),
                factor: Some(*factor),
                ..none
            },
            Self::Yarn { scaling_type, .. } | Self::LinearOrDynamic { scaling_type, .. } => {
                bail!("rope_scaling: {scaling_type:?} is not supported for DeepSeek; supported: yarn and linear")
            }
        })
    }
}

/// The parameters of the rotation.
pub struct DeepSeekV2RopeConfig {
    /// Scaling of the frequencies.
    pub rope_scaling: Option<DeepSeekV2RopeScaling>,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Base of the frequencies.
    pub rope_theta: f32,
    /// Elements of a head that are rotated.
    pub qk_rope_head_dim: usize,
}

/// Cosines and sines of all positions.
#[derive(Debug, Clone)]
pub struct DeepSeekV2RotaryEmbedding {
    cos: Tensor,
    sin: Tensor,
}

impl DeepSeekV2RotaryEmbedding {
    /// Tables of `dtype`.
    ///
    /// # Errors
    /// If the kind of scaling is not supported, or the device cannot allocate the memory.
    pub fn new(cfg: &DeepSeekV2RopeConfig, dtype: DType, dev: &Device) -> Result<Self> {
        let scaling = match &cfg.rope_scaling {
            Some(scaling) => scaling.scaling()?,
            None => RopeScaling::none(),
        };
        let (theta, dim) = (f64::from(cfg.rope_theta), cfg.qk_rope_head_dim);
        let positions = cfg.max_position_embeddings;
        let rotary = scaling.rotary(RotaryPairs::Neighbours, theta, dim, positions)?;
        let (cos, sin) = RotaryTables::new(&rotary, positions, dtype, dev).rows(0, positions)?;
        Ok(Self { cos, sin })
    }

    /// Queries and keys, `(b, heads, t, qk_rope_head_dim)`, rotated as at the positions from `seqlen_offset` on.
    ///
    /// # Errors
    /// If there are fewer positions, or the shapes do not fit.
    pub fn forward(
        &self,
        q: &Tensor,
        k: &Tensor,
        seqlen_offset: usize,
    ) -> Result<(Tensor, Tensor)> {
        let (_, _, t, _) = q.dims4()?;
        let cos = self.cos.narrow(0, seqlen_offset, t)?;
        let sin = self.sin.narrow(0, seqlen_offset, t)?;
        Ok((rope_i(q, &cos, &sin)?, rope_i(k, &cos, &sin)?))
    }
}
