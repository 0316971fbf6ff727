//! LFM2's gated short convolution ([Liquid AI](https://www.liquid.ai/blog/liquid-foundation-models-v2-our-second-series-of-generative-ai-models)):
//! each channel sees its own last few positions.

use candle_core::{bail, Result, Tensor, D};
use candle_nn::Init;

use super::feed_forward::linear;
use super::weights::Weights;
use super::{Names, Norm, Projection, RecurrentState, Residual};

/// A short convolution before it has weights.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortConvSpec {
    /// Channels of the convolution: those of the stream, or one rank's share of them.
    pub channels: usize,
    /// Kernel size, in positions, including the current one.
    pub kernel: usize,
    /// Whether the convolution and both projections have biases.
    pub bias: bool,
}

impl ShortConvSpec {
    /// Checks what the layers take for granted.
    pub(super) fn check(&self) -> Result<()> {
        if self.kernel == 0 || self.channels == 0 {
            bail!(
                "short convolution: {} channels with a kernel of size {}; each must be at least 1",
                self.channels,
                self.kernel
            )
        }
        Ok(())
    }
}

/// `out(c * conv(b * x))`, of `b`, `c` and `x` that one projection makes.
#[derive(Debug, Clone)]
pub struct ShortConv {
    in_proj: Projection,
    /// The channels' weights for each tap of the kernel, the oldest first: `(kernel, channels)`.
    kernel: Tensor,
    bias: Option<Tensor>,
    out_proj: Projection,
}

impl ShortConv {
    /// Loads the block of a layer from weights named `prefix` and a suffix; `hidden` is the size of the stream.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub async fn load(
        spec: &ShortConvSpec,
        hidden: usize,
        weights: &mut Weights<'_>,
        names: &Names,
        prefix: &str,
    ) -> Result<Self> {
        let ShortConvSpec {
            channels,
            kernel: places,
            bias,
        } = *spec;
        let in_proj = linear(prefix, names.conv_in, hidden, 3 * channels, bias);
        let in_proj = weights.linear(&in_proj).await?;
        let out_proj = linear(prefix, names.conv_out, channels, hidden, bias);
        let out_proj = weights.linear(&out_proj).await?;
        let name = format!("{prefix}.{}.weight", names.conv);
        // GGUF files leave out the dimension of size 1.
        let flat = weights.shape(&name).is_some_and(|shape| shape.rank() == 2);
        let shape = if flat {
            vec![channels, places]
        } else {
            vec![channels, 1, places]
        };
        let init = candle_nn::init::DEFAULT_KAIMING_NORMAL;
        let kernel = weights.dense(&name, &shape, init).await?;
        let kernel = if weights.is_check() {
            kernel
        } else {
            kernel.reshape((channels, places))?.t()?.contiguous()?
        };
        let bias = if bias {
            let name = format!("{prefix}.{}.bias", names.conv);
            Some(weights.dense(&name, &[channels], Init::Const(0.)).await?)
        } else {
            None
        };
        Ok(Self {
            in_proj,
            kernel,
            bias,
            out_proj,
        })
    }

    /// The projection back to the stream, which comes after [`inner`](Self::inner).
    pub fn output(&self) -> &Projection {
        &self.out_proj
    }

    /// The input of the output projection, `(b, t, channels)`, after the positions that `state` holds, the last `kernel - 1` of them; for the norm of the stream, or
    /// for the stream if there is no norm.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn inner(
        &self,
        xs: Residual,
        norm: Option<&Norm>,
        state: Option<&mut RecurrentState>,
    ) -> Result<(Residual, Tensor)> {
        let (xs, projected) = xs.project(norm, &self.in_proj)?;
        let (b, t, all) = projected.dims3()?;
        let (channels, before) = (all / 3, self.kernel.dim(0)? - 1);
        let part = |i: usize| projected.narrow(D::Minus1, i * channels, channels);
        let gated = (part(0)? * part(2)?)?;
        let tail = match state.as_ref().and_then(|state| state.parts[0].clone()) {
            Some(tail) => tail,
            None => Tensor::zeros((b, before, channels), gated.dtype(), gated.device())?,
        };
        let seen = match before {
            0 => gated,
            _ => Tensor::cat(&[tail, gated], 1)?,
        };
        let mut sum: Option<Tensor> = None;
        for place in 0..=before {
            let weights = self.kernel.get(place)?;
            let term = seen.narrow(1, place, t)?.broadcast_mul(&weights)?;
            sum = Some(match sum {
                None => term,
                Some(sum) => (sum + term)?,
            });
        }
        let Some(mut ys) = sum else {
            bail!("short convolution: the kernel is empty")
        };
        if let Some(bias) = &self.bias {
            ys = ys.broadcast_add(bias)?;
        }
        if let Some(state) = state {
            state.seen += t;
            state.parts[0] = Some(seen.narrow(1, t, before)?.contiguous()?);
        }
        Ok((xs, (part(1)? * ys)?))
    }
}
