//! What configurations of several families have in common.

use candle_core::{bail, Result, Tensor};
use candle_nn::{Activation, Embedding, Linear, VarBuilder};

use super::{
    layers, AttentionSpec, CausalLm, DecoderSpec, ExpertsSpec, FeedForwardSpec, Head, LayerSpec,
    MlpSpec, NormSpec, Rotary, RotaryPairs,
};

/// The numbers of a decoder that is Llama but for a few switches.
pub(crate) struct LlamaLike {
    pub(crate) family: &'static str,
    pub(crate) vocab: usize,
    pub(crate) hidden: usize,
    pub(crate) inner: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// `None` for `hidden / heads`.
    pub(crate) head_dim: Option<usize>,
    pub(crate) positions: usize,
    pub(crate) rope_theta: f64,
    pub(crate) norm_eps: f64,
    pub(crate) activation: Activation,
    pub(crate) head: Head,
}

impl LlamaLike {
    /// The decoder, of whose layers `switch` sets what is not Llama's: it is given the layer's index, its attention, and its MLP.
    pub(crate) fn spec(
        self,
        switch: impl FnMut(usize, &mut AttentionSpec, &mut MlpSpec),
    ) -> Result<DecoderSpec> {
        let norm = NormSpec::rms(self.norm_eps);
        let rotary = self.rotary(RotaryPairs::Halves, self.rope_theta, 1.);
        self.spec_with(vec![rotary], norm, switch)
    }

    /// The size of a head.
    pub(crate) fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden / self.heads.max(1))
    }

    /// The rotation of the first `share` of a head, unscaled.
    pub(crate) fn rotary(&self, pairs: RotaryPairs, theta: f64, share: f64) -> Rotary {
        Rotary::new(pairs, theta, (self.head_dim() as f64 * share) as usize)
    }

    /// As [`spec`](Self::spec), with these rotations, of which layers take the first unless `switch` says otherwise, and this norm.
    pub(crate) fn spec_with(
        self,
        rotaries: Vec<Rotary>,
        norm: NormSpec,
        mut switch: impl FnMut(usize, &mut AttentionSpec, &mut MlpSpec),
    ) -> Result<DecoderSpec> {
        let mut attention = AttentionSpec::new(self.hidden, self.heads, self.kv_heads);
        attention.head_dim = self.head_dim();
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
            ..DecoderSpec::new(self.family, sizes, rotaries, layers, norm)
        };
        spec.check()?;
        Ok(spec)
    }
}

/// The decoder with experts in every layer whose number, from 1 on, is a multiple of `step`, but for the layers `dense`; in none if there
/// are 0 experts.
pub(crate) fn with_experts(
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
            "{} config: decoder_sparse_step is 0; it must be at least 1",
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

/// ALiBi's slopes, the same as [arXiv 2108.12409](https://arxiv.org/abs/2108.12409)'s: `2^(-max i / n)` for `i` in `1 ..= n`, where `n` is
/// the number of heads. If that is not a power of two: those of the next smaller power, followed by every second one of the next larger.
pub(crate) fn alibi_slopes(heads: usize, max: f32) -> Vec<f32> {
    // A file can ask for any number of heads: the check of the specification finds that there are too few slopes.
    let heads = heads.min(1 << 16);
    let n = heads.next_power_of_two();
    let slope = |i: usize| (-max * i as f32 / n as f32).exp2();
    if n == heads {
        (1..=n).map(slope).collect()
    } else {
        let even = (2..=n).step_by(2);
        even.chain((1..=n).step_by(2))
            .take(heads)
            .map(slope)
            .collect()
    }
}

/// What every position is visible to: in Candle's models that take embeddings, no mask means that none is hidden, so that an image and its
/// prompt see each other. A single position needs none.
pub(crate) fn all_visible(embeds: &Tensor) -> Result<Option<Tensor>> {
    let (_, t, _) = embeds.dims3()?;
    match t {
        0 | 1 => Ok(None),
        _ => Tensor::zeros((1, 1, 1, 1), embeds.dtype(), embeds.device()).map(Some),
    }
}

/// The table of tokens as Candle's layer, which shares its memory.
pub(crate) fn token_embedding(model: &CausalLm) -> Result<Embedding> {
    let decoder = model.decoder();
    match decoder.embedding().dense() {
        Some(table) => Ok(Embedding::new(table.clone(), decoder.spec().hidden)),
        None => bail!("the token embedding is quantised, which is not supported"),
    }
}

/// The output layer that lies beside a model's own weights, at the file's root; the table of tokens where there is none.
pub(crate) fn head_beside(vb: &VarBuilder, table: &Embedding) -> Result<Linear> {
    let table = table.embeddings();
    let head = vb.root().pp("lm_head");
    if !vb.makes_tensors() && head.contains_tensor("weight") {
        Ok(Linear::new(head.get(table.dims2()?, "weight")?, None))
    } else {
        Ok(Linear::new(table.clone(), None))
    }
}
