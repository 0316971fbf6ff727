//! The first stage: a decoder that writes text and sound, with the vector of a voice added to every position.

use std::marker::PhantomData;

use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::ops::GatedActivation;
use serde::Deserialize;

use super::FAMILY;
use crate::blocks::encoder::head_dim;
use crate::blocks::{
    at_once, layers, AttentionSpec, CausalLm, Decoder, DecoderSpec, Dense, FeedForwardSpec,
    LayerSpec, LinearSpec, MlpSpec, Names, NormSpec, Order, Projection, WeightKind,
};

const NAMES: Names = Names {
    embedding: "tok_embeddings",
    positions: "pos_embeddings",
    layers: "layers",
    final_norm: "norm",
    head: "output",
    attn_norm: "attention_norm",
    qkv: "attention.wqkv",
    o: "attention.wo",
    mlp_norm: "ffn_norm",
    gate: "feed_forward.swiglu.w1",
    up: "feed_forward.swiglu.w3",
    down: "feed_forward.w2",
    ..Names::HUGGING_FACE
};

/// The sizes of the decoder.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Maximum sequence length, in tokens.
    pub block_size: usize,
    /// Tokens: those of both codebooks, and of text.
    pub vocab_size: usize,
    /// Layers.
    pub n_layer: usize,
    /// Query heads, which divide `dim`.
    pub n_head: usize,
    /// Size of the residual stream.
    pub dim: usize,
    /// The size of a voice's vector.
    pub speaker_emb_dim: usize,
    /// Inner size of the MLP; `None` for two thirds of `4 * dim`, rounded up to a multiple of 256.
    pub intermediate_size: Option<usize>,
    /// Key and value heads, which divide `n_head`; `None` for as many.
    pub n_local_heads: Option<usize>,
    /// RMS norm epsilon, added to the mean square.
    pub norm_eps: f64,
}

impl Config {
    /// MetaVoice-1B v0.1.
    pub fn cfg1b_v0_1() -> Self {
        Self {
            n_layer: 24,
            n_head: 16,
            dim: 2048,
            vocab_size: 2562,
            speaker_emb_dim: 256,
            block_size: 2048,
            intermediate_size: None,
            n_local_heads: None,
            norm_eps: 1e-5,
        }
    }

    fn inner(&self) -> Result<usize> {
        if let Some(inner) = self.intermediate_size {
            return Ok(inner);
        }
        let inner = self.dim.checked_mul(8).map(|of| of / 3);
        match inner.and_then(|inner| inner.checked_next_multiple_of(256)) {
            Some(inner) => Ok(inner),
            None => bail!("{FAMILY} config: dim is {}, which is too large", self.dim),
        }
    }

    fn spec(&self) -> Result<DecoderSpec> {
        let head_dim = head_dim(FAMILY, ("dim", self.dim), ("n_head", self.n_head))?;
        let inner = self.inner()?;
        for (name, size) in [
            ("n_layer", self.n_layer),
            ("speaker_emb_dim", self.speaker_emb_dim),
            ("intermediate_size", inner),
        ] {
            if size == 0 {
                bail!("{FAMILY} config: {name} is 0; it must be at least 1")
            }
        }
        let kv_heads = self.n_local_heads.unwrap_or(self.n_head);
        let norm = NormSpec::rms(self.norm_eps);
        let layers = layers(self.n_layer, |_| {
            let attention = AttentionSpec {
                head_dim,
                rotary: None,
                joined: Some(Order::Layers),
                ..AttentionSpec::new(self.dim, self.n_head, kv_heads)
            };
            let mlp = MlpSpec::new(inner, GatedActivation::Silu);
            Ok(LayerSpec::pre_norm(
                attention,
                FeedForwardSpec::Gated(mlp),
                norm,
            ))
        })?;
        let sizes = [self.vocab_size, self.dim, self.block_size];
        Ok(DecoderSpec {
            learned_positions: Some(self.block_size),
            names: NAMES,
            ..DecoderSpec::new(FAMILY, sizes, vec![], layers, norm)
        })
    }
}

/// The decoder, over dense or quantised weights.
#[derive(Debug, Clone)]
pub struct Speaker<W> {
    lm: CausalLm,
    speaker_cond_pos: Projection,
    /// Factors of the voice in the rows of a batch, (2, 1, 1): 1 and 0.
    with_and_without: Tensor,
    voice: usize,
    dtype: DType,
    of: PhantomData<fn() -> W>,
}

/// The decoder.
pub type Model = Speaker<Dense>;

impl<W: WeightKind> Speaker<W> {
    /// Loads `tok_embeddings`, `pos_embeddings`, `speaker_cond_pos`, `layers`, `norm` and `output`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &Config, mut vb: W::Builder<'_>) -> Result<Self> {
        let (dtype, device) = W::placement(&vb);
        let decoder = Decoder::load(cfg.spec()?, &mut vb, dtype, &device)?;
        let voice = LinearSpec {
            name: "speaker_cond_pos".to_string(),
            in_dim: cfg.speaker_emb_dim,
            out_dim: cfg.dim,
            bias: false,
        };
        Ok(Self {
            lm: CausalLm::new(decoder),
            speaker_cond_pos: W::load(vb, |weights| at_once(weights.linear(&voice)))?,
            with_and_without: Tensor::new(&[1f32, 0.], &device)?
                .reshape((2, 1, 1))?
                .to_dtype(dtype)?,
            voice: cfg.speaker_emb_dim,
            dtype,
            of: PhantomData,
        })
    }

    /// The logits of what follows the last of the tokens `xs`, (2, t): (2, 1, vocab_size) in the model's dtype. The first row has the voice
    /// `spk_emb`, (1, speaker_emb_dim) or (1, 1, speaker_emb_dim), the second has none; tokens (1, t) are taken for both.
    ///
    /// The tokens are at the positions from `pos` on; at 0 a new sequence begins, elsewhere they continue the one before.
    ///
    /// # Errors
    /// If there are no tokens or more than `block_size`, the shapes are others, or an id is outside the table (where the device can tell).
    pub fn forward(&mut self, xs: &Tensor, spk_emb: &Tensor, pos: usize) -> Result<Tensor> {
        match *xs.dims() {
            [1 | 2, t] if t > 0 => {}
            _ => bail!(
                "{FAMILY}: the tokens are {:?}; they must be (2, t), one row with the voice and one without, or (1, t) for both",
                xs.dims()
            ),
        }
        let size = self.voice;
        let is_voice = match *spk_emb.dims() {
            [1, found] => found == size,
            [b, t, found] => found == size && (b == 1 || b == 2) && (t == 1 || t == xs.dims()[1]),
            _ => false,
        };
        if !is_voice {
            bail!(
                "{FAMILY}: the voice is {:?}; it must be (1, {size}) or (1, 1, {size})",
                spk_emb.dims()
            )
        }
        let voice = self
            .speaker_cond_pos
            .forward(&spk_emb.to_dtype(self.dtype)?)?;
        let voice = voice.broadcast_mul(&self.with_and_without)?;
        let embeds = self.lm.decoder().embed(xs)?.broadcast_add(&voice)?;
        self.lm.forward_embeds(&embeds, pos, None)?.last_logits()
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}
