//! What configurations of several families have in common.

use candle_core::{bail, DType, Result, Tensor};
use candle_nn::Activation;

use crate::blocks::{
    layers, AttentionSpec, DecoderSpec, ExpertsSpec, FeedForwardSpec, Head, LayerSpec, MlpSpec,
    NormSpec, Rotary, RotaryPairs,
};

/// The numbers of a decoder that is Llama but for a few switches.
pub(super) struct LlamaLike {
    pub(super) family: &'static str,
    pub(super) vocab: usize,
    pub(super) hidden: usize,
    pub(super) inner: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    /// `None` for `hidden / heads`.
    pub(super) head_dim: Option<usize>,
    pub(super) positions: usize,
    pub(super) rope_theta: f64,
    pub(super) norm_eps: f64,
    pub(super) activation: Activation,
    pub(super) head: Head,
}

impl LlamaLike {
    /// The decoder, of whose layers `switch` sets what is not Llama's: it is given the layer's index, its attention, and its MLP.
    pub(super) fn spec(
        self,
        mut switch: impl FnMut(usize, &mut AttentionSpec, &mut MlpSpec),
    ) -> Result<DecoderSpec> {
        let norm = NormSpec::rms(self.norm_eps);
        let mut attention = AttentionSpec::new(self.hidden, self.heads, self.kv_heads);
        attention.head_dim = self.head_dim.unwrap_or(attention.head_dim);
        let rotary = Rotary::new(RotaryPairs::Halves, self.rope_theta, attention.head_dim);
        let mlp = MlpSpec::new(self.inner, self.activation.try_into()?);
        let layers = layers(self.layers, |i| {
            let (mut attention, mut mlp) = (attention.clone(), mlp.clone());
            switch(i, &mut attention, &mut mlp);
            let mlp = FeedForwardSpec::Gated(mlp);
            Ok(LayerSpec::pre_norm(attention, mlp, norm))
        })?;
        let sizes = [self.vocab, self.hidden, self.positions];
        let spec = DecoderSpec {
            head: self.head,
            ..DecoderSpec::new(self.family, sizes, vec![rotary], layers, norm)
        };
        spec.check()?;
        Ok(spec)
    }
}

/// From a mask `(b, keys)` of numbers that are not 0 where a key counts, to what is added to scores: `(b, 1, 1, keys)`.
pub(super) fn keys_that_count(mask: &Tensor, dtype: DType) -> Result<Tensor> {
    let (b, keys) = mask.dims2()?;
    let counts = mask.ne(0u32)?;
    let zeros = Tensor::zeros((b, keys), dtype, mask.device())?;
    let hidden = Tensor::full(f32::NEG_INFINITY, (b, keys), mask.device())?.to_dtype(dtype)?;
    counts.where_cond(&zeros, &hidden)?.reshape((b, 1, 1, keys))
}

/// The decoder with experts in every layer whose number, from 1 on, is a multiple of `step`, but for the layers `dense`; in none if there
/// are 0 experts.
pub(super) fn with_experts(
    mut spec: DecoderSpec,
    experts: ExpertsSpec,
    step: usize,
    dense: &[usize],
) -> Result<DecoderSpec> {
    if experts.count == 0 {
        return Ok(spec);
    }
    if step == 0 {
        bail!(
            "{} config: decoder_sparse_step is 0, it has to be at least 1",
            spec.family
        )
    }
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        if (i + 1).is_multiple_of(step) && !dense.contains(&i) {
            layer.feed_forward = FeedForwardSpec::Experts(experts.clone());
        }
    }
    spec.check()?;
    Ok(spec)
}

/// ALiBi's slopes, the same as [arXiv 2108.12409](https://arxiv.org/abs/2108.12409)'s: `2^(-max i / n)` for `i` in `1 ..= n`, where `n` is the
/// number of heads, or if that is no power of two, those of the power below it, and then every second of the one above.
pub(super) fn alibi_slopes(heads: usize, max: f32) -> Vec<f32> {
    // A file can ask for any number of heads: the check of the specification finds that there are too few slopes.
    let heads = heads.min(1 << 16);
    let n = heads.next_power_of_two();
    let slope = |i: usize| (-max * i as f32 / n as f32).exp2();
    match n == heads {
        true => (1..=n).map(slope).collect(),
        false => {
            let even = (2..=n).step_by(2);
            even.chain((1..=n).step_by(2))
                .take(heads)
                .map(slope)
                .collect()
        }
    }
}
