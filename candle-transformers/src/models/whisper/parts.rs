//! The encoder and the decoder, over dense or quantised weights.

use candle_core::{bail, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::ops::{sdpa_with, softmax_last_dim, SdpaOptions};
use candle_nn::{Activation, Conv1d, Conv1dConfig, LayerNorm, VarBuilder};

use super::Config;
use crate::blocks::encoder::{head_dim, EncoderLayer, Heads, NormPlace, Seen};
use crate::blocks::{
    place, FeedForward, GrowingKvCache, MergedLinear, Norm, PlainMlp, Projection, Residual, Stored,
    StoredLinear, TokenEmbedding,
};
use crate::quantized_var_builder;

/// Norm epsilon.
const NORM_EPS: f64 = 1e-5;
/// Dense and quantised checkpoints have two convolutions of this size.
const KERNEL: usize = 3;
/// The longest wave of the encoder's positions, over 2π.
const MAX_TIMESCALE: f64 = 10_000.;

/// Weights by name, dense or quantised.
#[derive(Clone)]
pub(super) enum Source<'a> {
    Dense(VarBuilder<'a>),
    Quantized(quantized_var_builder::VarBuilder),
}

impl Source<'_> {
    pub(super) fn pp(&self, name: impl ToString) -> Self {
        match self {
            Self::Dense(vb) => Self::Dense(vb.pp(name)),
            Self::Quantized(vb) => Self::Quantized(vb.pp(name)),
        }
    }

    fn device(&self) -> &Device {
        match self {
            Self::Dense(vb) => vb.device(),
            Self::Quantized(vb) => vb.device(),
        }
    }

    /// The dtype of activations.
    fn dtype(&self) -> DType {
        match self {
            Self::Dense(vb) => vb.dtype(),
            Self::Quantized(_) => DType::F32,
        }
    }

    fn stored(&self, shape: impl Into<Shape>, name: &str) -> Result<Stored> {
        match self {
            Self::Dense(vb) => Ok(vb.get(shape, name)?.into()),
            Self::Quantized(vb) => Ok(vb.get(shape, name)?.into()),
        }
    }

    fn dense(&self, shape: impl Into<Shape>, name: &str) -> Result<Tensor> {
        match self {
            Self::Dense(vb) => vb.get(shape, name),
            Self::Quantized(vb) => vb.get(shape, name)?.dequantize(vb.device()),
        }
    }

    fn linear(&self, in_dim: usize, out_dim: usize, name: &str) -> Result<StoredLinear> {
        let vb = self.pp(name);
        Ok(StoredLinear {
            weight: vb.stored((out_dim, in_dim), "weight")?,
            bias: Some(vb.stored(out_dim, "bias")?),
            beside: None,
        })
    }

    /// As [`linear`](Self::linear), of a layer without a bias. It gets zeros for one, so that it is one product with its neighbours.
    fn linear_no_bias(&self, in_dim: usize, out_dim: usize, name: &str) -> Result<StoredLinear> {
        Ok(StoredLinear {
            weight: self.pp(name).stored((out_dim, in_dim), "weight")?,
            bias: Some(Tensor::zeros(out_dim, self.dtype(), self.device())?.into()),
            beside: None,
        })
    }

    fn placed(&self, linear: StoredLinear) -> Result<Projection> {
        StoredLinear::stack(vec![linear], self.dtype(), self.device())
    }

    fn merged<const N: usize>(&self, parts: [StoredLinear; N]) -> Result<MergedLinear<N>> {
        MergedLinear::from_stored(parts, self.dtype(), self.device())
    }

    fn norm(&self, size: usize, name: &str) -> Result<Norm> {
        let vb = self.pp(name);
        let (weight, bias) = (vb.dense(size, "weight")?, vb.dense(size, "bias")?);
        Ok(LayerNorm::new(weight, bias, NORM_EPS).into())
    }

    fn conv(&self, inputs: usize, outputs: usize, stride: usize, name: &str) -> Result<Conv1d> {
        let vb = self.pp(name);
        let config = Conv1dConfig {
            padding: KERNEL / 2,
            stride,
            ..Default::default()
        };
        let weight = vb.dense((outputs, inputs, KERNEL), "weight")?;
        Ok(Conv1d::new(
            weight,
            Some(vb.dense(outputs, "bias")?),
            config,
        ))
    }

    /// `fc1` and `fc2`.
    fn mlp(&self, size: usize) -> Result<FeedForward> {
        let inner = 4 * size;
        Ok(FeedForward::Plain(PlainMlp::new(
            self.placed(self.linear(size, inner, "fc1")?)?,
            self.placed(self.linear(inner, size, "fc2")?)?,
            Activation::Gelu,
        )))
    }

    /// Self-attention's `q_proj`, `k_proj` and `v_proj`.
    fn qkv(&self, size: usize) -> Result<MergedLinear<3>> {
        self.merged([
            self.linear(size, size, "q_proj")?,
            self.linear_no_bias(size, size, "k_proj")?,
            self.linear(size, size, "v_proj")?,
        ])
    }
}

/// From a spectrogram to vectors of the sound.
#[derive(Debug, Clone)]
pub struct AudioEncoder {
    convs: [Conv1d; 2],
    /// (max_source_positions, d_model).
    positions: Tensor,
    layers: Vec<EncoderLayer>,
    norm: Norm,
}

impl AudioEncoder {
    pub(super) fn load(vb: &Source, config: &Config) -> Result<Self> {
        let size = config.d_model;
        let heads = config.encoder_attention_heads;
        let head_dim = head_dim(
            "whisper",
            ("d_model", size),
            ("encoder_attention_heads", heads),
        )?;
        let layer = |i| {
            let vb = vb.pp("layers").pp(i);
            let attention = vb.pp("self_attn");
            Ok(EncoderLayer {
                heads: Heads::new(attention.qkv(size)?, heads, head_dim),
                joined: vb.placed(attention.linear(size, size, "out_proj")?)?,
                mlp: vb.mlp(size)?,
                place: NormPlace::Before,
                norms: [
                    Some(vb.norm(size, "self_attn_layer_norm")?),
                    Some(vb.norm(size, "final_layer_norm")?),
                ],
            })
        };
        Ok(Self {
            convs: [
                vb.conv(config.num_mel_bins, size, 1, "conv1")?,
                vb.conv(size, size, 2, "conv2")?,
            ],
            positions: sinusoids(config.max_source_positions, size, vb.device())?
                .to_dtype(vb.dtype())?,
            layers: (0..config.encoder_layers)
                .map(layer)
                .collect::<Result<_>>()?,
            norm: vb.norm(size, "layer_norm")?,
        })
    }

    /// From a spectrogram, (batch, num_mel_bins, frames), to (batch, ceil(frames / 2), d_model). `flush_kv_cache` has no effect: the
    /// encoder keeps nothing.
    ///
    /// # Errors
    /// There are more frames than twice `max_source_positions`, none, or another number of bands.
    pub fn forward(&mut self, x: &Tensor, flush_kv_cache: bool) -> Result<Tensor> {
        let _ = flush_kv_cache;
        let (_, bands, frames) = x.dims3()?;
        let limit = self.positions.dim(0)?;
        let expected = self.convs[0].weight().dim(1)?;
        if bands != expected || frames == 0 || frames.div_ceil(2) > limit {
            bail!(
                "whisper: a spectrogram of {bands} bands and {frames} frames; the model expects {expected} bands and 1 to {} frames",
                2 * limit
            )
        }
        let mut xs = x.clone();
        for conv in &self.convs {
            xs = conv.forward(&xs)?.gelu_erf()?;
        }
        let xs = xs.transpose(1, 2)?;
        let positions = self.positions.narrow(0, 0, xs.dim(1)?)?;
        let mut xs = xs.broadcast_add(&positions)?;
        for layer in &self.layers {
            xs = layer.forward(xs, &Seen::default())?;
        }
        self.norm.forward(&xs)
    }

    /// The dtype and the device of the spectrograms that it takes.
    pub(super) fn takes(&self) -> (DType, Device) {
        (self.positions.dtype(), self.positions.device().clone())
    }

    /// Does nothing: the encoder keeps nothing.
    pub fn reset_kv_cache(&mut self) {}
}

/// The encoder's positions, (len, size): sines of `size / 2` wavelengths from 2π to 2π * 10,000, then their cosines.
fn sinusoids(len: usize, size: usize, device: &Device) -> Result<Tensor> {
    let half = size / 2;
    let step = MAX_TIMESCALE.ln() / half.saturating_sub(1).max(1) as f64;
    // In f32, as the models were trained.
    let angle = |at: usize, i: usize| at as f32 * (-(step as f32) * i as f32).exp();
    let row = |at| {
        let angles = (0..half).map(move |i| angle(at, i));
        angles.clone().map(f32::sin).chain(angles.map(f32::cos))
    };
    let all: Vec<f32> = (0..len).flat_map(row).collect();
    Tensor::from_vec(all, (len, 2 * half), device)
}

#[derive(Debug, Clone)]
struct DecoderLayer {
    qkv: MergedLinear<3>,
    joined: Projection,
    norm: Norm,
    /// Attention to the sound.
    cross: Cross,
    mlp: FeedForward,
    mlp_norm: Norm,
    /// Keys and values of the text so far.
    text: GrowingKvCache,
}

#[derive(Debug, Clone)]
struct Cross {
    q: Projection,
    kv: MergedLinear<2>,
    joined: Projection,
    norm: Norm,
    /// Keys and values of the sound, (batch, 2 * heads, frames, head_dim).
    sound: Option<Tensor>,
}

/// The sizes of attention.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    heads: usize,
    head_dim: usize,
}

impl Sizes {
    /// From (batch, seq, n * head_dim) to (batch, n, seq, head_dim).
    fn by_head(self, xs: &Tensor) -> Result<Tensor> {
        let (b, t, size) = xs.dims3()?;
        xs.reshape((b, t, size / self.head_dim, self.head_dim))?
            .transpose(1, 2)
    }

    fn scale(self) -> f32 {
        (1. / (self.head_dim as f64).sqrt()) as f32
    }

    /// Attention of queries to concatenated keys and values: (batch, queries, heads * head_dim).
    fn attend(self, q: &Tensor, kv: &Tensor, causal: bool) -> Result<Tensor> {
        let options = SdpaOptions {
            scale: self.scale(),
            causal,
            ..SdpaOptions::default()
        };
        let k = kv.narrow(1, 0, self.heads)?;
        let v = kv.narrow(1, self.heads, self.heads)?;
        let ys = sdpa_with(q, &k, &v, &options)?;
        ys.transpose(1, 2)?.flatten_from(2)
    }
}

impl Cross {
    /// The queries of `xs`, and the keys and values of the sound, which are computed once.
    fn q_kv(&mut self, xs: &Tensor, sound: &Tensor, sizes: Sizes) -> Result<(Tensor, Tensor)> {
        let kv = match &self.sound {
            Some(kv) => kv.clone(),
            None => {
                let kv = self.kv.forward_joined(sound)?;
                let kv = sizes.by_head(&kv)?.contiguous()?;
                self.sound.insert(kv).clone()
            }
        };
        Ok((sizes.by_head(&self.q.forward(xs)?)?, kv))
    }
}

impl DecoderLayer {
    /// `keep` says whether the tokens follow those that are held, and are held too.
    fn forward(
        &mut self,
        xs: Tensor,
        sound: &Tensor,
        sizes: Sizes,
        keep: bool,
        weights: Option<&mut Vec<Tensor>>,
    ) -> Result<Tensor> {
        let (xs, normed) = Residual::new(xs).normed(Some(&self.norm))?;
        let qkv = sizes.by_head(&self.qkv.forward_joined(&normed)?)?;
        let q = qkv.narrow(1, 0, sizes.heads)?;
        let kv = qkv.narrow(1, sizes.heads, 2 * sizes.heads)?;
        let kv = if keep { self.text.append(&kv)? } else { kv };
        let ys = sizes.attend(&q, &kv, true)?;
        let (xs, normed) = xs.add(&self.joined, &ys)?.normed(Some(&self.cross.norm))?;

        let (q, kv) = self.cross.q_kv(&normed, sound, sizes)?;
        if let Some(weights) = weights {
            let k = kv.narrow(1, 0, sizes.heads)?.to_dtype(DType::F32)?;
            let q = q.to_dtype(DType::F32)?.contiguous()?;
            let scores = (q.matmul(&k.t()?)? * f64::from(sizes.scale()))?;
            weights.push(softmax_last_dim(&scores)?);
        }
        let ys = sizes.attend(&q, &kv, false)?;
        let xs = xs.add(&self.cross.joined, &ys)?;

        let xs = self.mlp.add_to(xs, Some(&self.mlp_norm))?;
        Ok(xs.normed(None)?.1)
    }
}

/// From tokens and vectors of the sound to vectors of the tokens that follow.
///
/// Keys and values of the sound are computed at the first call after a reset, and kept. [`forward`](Self::forward) takes the whole text
/// each time, as Candle's does; [`forward_next`](Self::forward_next) takes what is new and keeps keys and values of the text too.
#[derive(Debug, Clone)]
pub struct TextDecoder {
    tokens: TokenEmbedding,
    output: Projection,
    /// (max_target_positions, d_model).
    positions: Tensor,
    layers: Vec<DecoderLayer>,
    norm: Norm,
    sizes: Sizes,
}

impl TextDecoder {
    pub(super) fn load(vb: &Source, config: &Config) -> Result<Self> {
        let size = config.d_model;
        let heads = config.decoder_attention_heads;
        let head_dim = head_dim(
            "whisper",
            ("d_model", size),
            ("decoder_attention_heads", heads),
        )?;
        let layer = |i| {
            let vb = vb.pp("layers").pp(i);
            let (attention, cross) = (vb.pp("self_attn"), vb.pp("encoder_attn"));
            Ok(DecoderLayer {
                qkv: attention.qkv(size)?,
                joined: vb.placed(attention.linear(size, size, "out_proj")?)?,
                norm: vb.norm(size, "self_attn_layer_norm")?,
                cross: Cross {
                    q: vb.placed(cross.linear(size, size, "q_proj")?)?,
                    kv: vb.merged([
                        cross.linear_no_bias(size, size, "k_proj")?,
                        cross.linear(size, size, "v_proj")?,
                    ])?,
                    joined: vb.placed(cross.linear(size, size, "out_proj")?)?,
                    norm: vb.norm(size, "encoder_attn_layer_norm")?,
                    sound: None,
                },
                mlp: vb.mlp(size)?,
                mlp_norm: vb.norm(size, "final_layer_norm")?,
                text: GrowingKvCache::new(config.max_target_positions),
            })
        };
        let table = vb.stored((config.vocab_size, size), "embed_tokens.weight")?;
        let table = place(vec![table], vb.dtype(), vb.device())?;
        let tokens = TokenEmbedding::new(table, vb.dtype());
        Ok(Self {
            output: tokens.tied(),
            tokens,
            positions: vb.dense(
                (config.max_target_positions, size),
                "embed_positions.weight",
            )?,
            layers: (0..config.decoder_layers)
                .map(layer)
                .collect::<Result<_>>()?,
            norm: vb.norm(size, "layer_norm")?,
            sizes: Sizes { heads, head_dim },
        })
    }

    /// Vectors of a whole text: from tokens `x`, (batch, seq) of u32, and the encoder's output `xa`, (batch, positions, d_model), to (batch,
    /// seq, d_model).
    ///
    /// `xa` is read at the first call after a reset, or with `flush_kv_cache`. What [`forward_next`](Self::forward_next) holds is neither
    /// used nor changed.
    ///
    /// # Errors
    /// The text is empty or longer than `max_target_positions`, or the sound has another batch size.
    pub fn forward(&mut self, x: &Tensor, xa: &Tensor, flush_kv_cache: bool) -> Result<Tensor> {
        if flush_kv_cache {
            self.forget_sound();
        }
        self.run(x, xa, None, None)
    }

    /// Vectors of the tokens `x`, (batch, new), that follow the `first` tokens which earlier calls took; with `first` 0 a new text begins.
    /// Otherwise as [`forward`](Self::forward): (batch, new, d_model).
    ///
    /// # Errors
    /// As [`forward`](Self::forward), or `first` is not the number of tokens that are held.
    pub fn forward_next(&mut self, x: &Tensor, xa: &Tensor, first: usize) -> Result<Tensor> {
        if first == 0 {
            self.forget_text();
        }
        self.run(x, xa, Some(first), None)
    }

    /// As [`forward`](Self::forward), and how much each token looks at each position of the sound: for each layer (batch, heads, seq,
    /// positions), f32, whose rows sum to 1. Times of words are read from it.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_with_attention(
        &mut self,
        x: &Tensor,
        xa: &Tensor,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let mut weights = Vec::with_capacity(self.layers.len());
        let hidden = self.run(x, xa, None, Some(&mut weights))?;
        Ok((hidden, weights))
    }

    /// Forgets the sound, so that the next call reads it again.
    pub(super) fn forget_sound(&mut self) {
        for layer in &mut self.layers {
            layer.cross.sound = None;
        }
    }

    fn run(
        &mut self,
        x: &Tensor,
        xa: &Tensor,
        kept: Option<usize>,
        mut weights: Option<&mut Vec<Tensor>>,
    ) -> Result<Tensor> {
        let (batch, new) = x.dims2()?;
        let limit = self.positions.dim(0)?;
        let first = kept.unwrap_or(0);
        let held = self.layers.first().map_or(first, |layer| layer.text.seen());
        if new == 0 || first.saturating_add(new) > limit {
            bail!("whisper: {new} tokens after {first}; the decoder's limit is {limit} in all, and at least 1 new token is required")
        }
        if kept.is_some() && held != first {
            bail!(
                "whisper: {new} tokens follow {first} others, but the cache holds {held}; reset the cache or pass the whole text"
            )
        }
        if xa.dim(0)? != batch {
            bail!(
                "whisper: tokens are {:?} and the sound {:?}; they must have one batch size",
                x.dims(),
                xa.dims()
            )
        }
        let positions = self.positions.narrow(0, first, new)?;
        let mut xs = self.tokens.forward(x)?.broadcast_add(&positions)?;
        for layer in &mut self.layers {
            let weights = weights.as_deref_mut();
            xs = layer.forward(xs, xa, self.sizes, kept.is_some(), weights)?;
        }
        self.norm.forward(&xs)
    }

    /// From (batch, seq, d_model) to logits, (batch, seq, vocab_size).
    ///
    /// # Errors
    /// The vectors have another size.
    pub fn final_linear(&self, x: &Tensor) -> Result<Tensor> {
        self.output.forward(x)
    }

    /// Forgets the text and the sound.
    pub fn reset_kv_cache(&mut self) {
        self.forget_text();
        self.forget_sound();
    }

    fn forget_text(&mut self) {
        for layer in &mut self.layers {
            layer.text.reset();
        }
    }
}
