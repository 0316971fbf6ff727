//! Phi 1, 1.5 and 2 in files from before Transformers knew the family ([`super::phi`] has the others): the same model by other names. Also the
//! text model of the first Moondream.

use std::marker::PhantomData;

use candle_core::{DType, Result, Tensor};
use candle_nn::Activation;
use serde::Deserialize;

use crate::blocks::{
    layers, AttentionSpec, CausalLm, DecoderSpec, Dense, FeedForwardSpec, Head, LayerSpec, Names,
    NormSpec, Order, PlainSpec, Rotary, RotaryPairs, WeightKind, Wiring,
};

/// The shortest table of rotations that Candle makes, whatever the configuration says.
const MAX_SEQ_LEN: usize = 4096;

/// A file whose parts are numbered from the embedding to the head.
const SEQUENTIAL: Names = Names {
    embedding: "layers.0.wte",
    layers: "layers",
    first_layer: 1,
    final_norm: "layers.{}.ln",
    head: "layers.{}.linear",
    attn_norm: "ln",
    qkv: "mixer.Wqkv",
    o: "mixer.out_proj",
    up: "mlp.fc1",
    down: "mlp.fc2",
    ..Names::HUGGING_FACE
};

/// As [`SEQUENTIAL`], with names for the parts.
const NAMED: Names = Names {
    embedding: "transformer.embd.wte",
    layers: "transformer.h",
    first_layer: 0,
    final_norm: "lm_head.ln",
    head: "lm_head.linear",
    ..SEQUENTIAL
};

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    vocab_size: usize,
    n_positions: usize,
    pub(crate) n_embd: usize,
    n_layer: usize,
    n_inner: Option<usize>,
    n_head: usize,
    rotary_dim: usize,
    activation_function: Activation,
    layer_norm_epsilon: f64,
    // The output layer has a bias and is never the table of tokens.
    #[allow(dead_code)]
    tie_word_embeddings: bool,
    // What it says is part of `vocab_size` already.
    #[allow(dead_code)]
    pad_vocab_size_multiple: usize,
}

impl Config {
    fn sized(vocab_size: usize, [n_embd, n_layer, n_head]: [usize; 3]) -> Self {
        Self {
            vocab_size,
            n_positions: 2048,
            n_embd,
            n_layer,
            n_inner: None,
            n_head,
            rotary_dim: (n_embd / n_head).min(32),
            activation_function: Activation::Gelu,
            layer_norm_epsilon: 1e-5,
            tie_word_embeddings: false,
            pad_vocab_size_multiple: 64,
        }
    }

    /// Phi 1 of 350 M parameters.
    pub fn v1() -> Self {
        Self::sized(50_304, [1024, 20, 16])
    }

    /// [Phi 1.5](https://huggingface.co/microsoft/phi-1_5).
    pub fn v1_5() -> Self {
        Self::sized(51_200, [2048, 24, 32])
    }

    /// [Phi 2](https://huggingface.co/microsoft/phi-2).
    pub fn v2() -> Self {
        Self::sized(51_200, [2560, 32, 32])
    }

    /// [Puffin Phi v2](https://huggingface.co/teknium/Puffin-Phi-v2).
    pub fn puffin_phi_v2() -> Self {
        Self::sized(50_304, [2048, 24, 32])
    }

    /// [Phi Hermes 1.3B](https://huggingface.co/teknium/Phi-Hermes-1.3B).
    pub fn phi_hermes_1_3b() -> Self {
        Self {
            activation_function: Activation::NewGelu,
            ..Self::puffin_phi_v2()
        }
    }

    fn spec(&self, names: Names) -> Result<DecoderSpec> {
        let norm = NormSpec::layer(self.layer_norm_epsilon);
        let mut attention = AttentionSpec::new(self.n_embd, self.n_head, self.n_head).bias(true);
        attention.joined = Some(Order::Layers);
        let rotary = Rotary::new(RotaryPairs::Halves, 10_000., self.rotary_dim);
        let mlp = FeedForwardSpec::Plain(PlainSpec {
            inner: self.n_inner.unwrap_or(self.n_embd.saturating_mul(4)),
            activation: self.activation_function,
            bias: true,
        });
        let layers = layers(self.n_layer, |_| {
            Ok(LayerSpec {
                wiring: Wiring::Parallel,
                ..LayerSpec::pre_norm(attention.clone(), mlp.clone(), norm)
            })
        })?;
        let positions = self.n_positions.max(MAX_SEQ_LEN);
        let sizes = [self.vocab_size, self.n_embd, positions];
        let spec = DecoderSpec {
            head: Head::Linear { bias: true },
            names,
            ..DecoderSpec::new("mixformer", sizes, vec![rotary], layers, norm)
        };
        spec.check()?;
        Ok(spec)
    }
}

/// The language model and the sequence that it has seen, over dense or quantised weights.
#[derive(Debug, Clone)]
pub struct MixFormer<W> {
    lm: CausalLm,
    of: PhantomData<fn() -> W>,
}

/// The language model and the sequence that it has seen.
pub type MixFormerSequentialForCausalLM = MixFormer<Dense>;

impl<W: WeightKind> MixFormer<W> {
    /// Loads `transformer.*` and `lm_head.*`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new_v2(cfg: &Config, vb: W::Builder<'_>) -> Result<Self> {
        Self::named(NAMED, cfg, vb)
    }

    /// Loads `layers.*`.
    ///
    /// # Errors
    /// As [`new_v2`](Self::new_v2).
    pub fn new(cfg: &Config, vb: W::Builder<'_>) -> Result<Self> {
        Self::named(SEQUENTIAL, cfg, vb)
    }

    fn named(names: Names, cfg: &Config, vb: W::Builder<'_>) -> Result<Self> {
        Ok(Self {
            lm: CausalLm::from_builder::<W>(cfg.spec(names)?, vb)?,
            of: PhantomData,
        })
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last of the token ids, `(b, t)`, which continue the sequence.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, xs: &Tensor) -> Result<Tensor> {
        logits(self.lm.forward_next(xs)?.last_logits()?)
    }

    /// As [`forward`](Self::forward), of a new sequence: the token ids `bos_token`, `(b, n)`, the embeddings of an image, `(b, m, n_embd)`, and
    /// the token ids `xs`, `(b, t)`.
    ///
    /// # Errors
    /// If the shapes do not fit each other, or there are more positions than fit.
    pub fn forward_with_img(
        &mut self,
        bos_token: &Tensor,
        xs: &Tensor,
        img_embeds: &Tensor,
    ) -> Result<Tensor> {
        let decoder = self.lm.decoder();
        let (first, text) = (decoder.embed(bos_token)?, decoder.embed(xs)?);
        let embeds = Tensor::cat(&[&first, img_embeds, &text], 1)?;
        logits(self.lm.forward_embeds(&embeds, 0, None)?.last_logits()?)
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}

/// `(b, vocab)` in f32, from `(b, 1, vocab)`.
fn logits(last: Tensor) -> Result<Tensor> {
    last.squeeze(1)?.to_dtype(DType::F32)
}
