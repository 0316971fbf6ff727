//! The encoder and the decoder, over dense or quantised weights.

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::init::DEFAULT_KAIMING_NORMAL;
use candle_nn::ops::{sdpa_with, softmax_last_dim, SdpaOptions};
use candle_nn::{Activation, Conv1d, Conv1dConfig, Init};

use super::Config;
use crate::blocks::encoder::{
    head_dim, run_layers, EncoderBiases, EncoderLayer, EncoderNames, EncoderSpec, MlpActivation,
    NormPlace,
};
use crate::blocks::{
    at_once, linear, FeedForward, GrowingKvCache, LinearSpec, MergedLinear, Norm, NormSpec,
    Projection, Residual, TokenEmbedding, WeightKind, Weights,
};

/// Dense and quantised checkpoints have two convolutions of this size.
const KERNEL: usize = 3;
/// The longest wave of the encoder's positions, over 2π.
const MAX_TIMESCALE: f64 = 10_000.;

/// All norms.
const NORM: NormSpec = NormSpec::layer(NORM_EPS);
const NORM_EPS: f64 = 1e-5;

async fn conv(
    weights: &mut Weights<'_>,
    name: &str,
    [inputs, outputs, stride]: [usize; 3],
) -> Result<Conv1d> {
    let config = Conv1dConfig {
        padding: KERNEL / 2,
        stride,
        ..Default::default()
    };
    let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
    let kernel = [outputs, inputs, KERNEL];
    let weight = weights.dense(&weight, &kernel, DEFAULT_KAIMING_NORMAL);
    let weight = weight.await?;
    let bias = weights.dense(&bias, &[outputs], Init::Const(0.)).await?;
    Ok(Conv1d::new(weight, Some(bias), config))
}

/// A layer that is being loaded: where its names begin, and the size of its vectors.
struct Part<'a, 'w> {
    prefix: String,
    size: usize,
    weights: &'a mut Weights<'w>,
}

impl Part<'_, '_> {
    /// A linear layer. That of keys has no bias.
    fn spec(&self, name: &str) -> LinearSpec {
        linear(
            &self.prefix,
            name,
            self.size,
            self.size,
            !name.ends_with("k_proj"),
        )
    }

    async fn linear(&mut self, name: &str) -> Result<Projection> {
        let spec = self.spec(name);
        self.weights.linear(&spec).await
    }

    async fn merged<const N: usize>(&mut self, names: [&str; N]) -> Result<MergedLinear<N>> {
        let specs = names.map(|name| self.spec(name));
        self.weights.merged(specs).await
    }

    async fn norm(&mut self, name: &str) -> Result<Norm> {
        let name = format!("{}.{name}", self.prefix);
        self.weights.norm(&name, self.size, NORM).await
    }

    async fn mlp(&mut self) -> Result<FeedForward> {
        let (sizes, names) = ([self.size, 4 * self.size], &EncoderNames::BART.mlp);
        MlpActivation::Plain(Activation::Gelu)
            .load(sizes, [true; 2], self.weights, names, &self.prefix)
            .await
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
    pub(super) async fn load(weights: &mut Weights<'_>, config: &Config) -> Result<Self> {
        let size = config.d_model;
        let spec = EncoderSpec::bert(
            "whisper",
            ("d_model", size),
            ("encoder_attention_heads", config.encoder_attention_heads),
            4 * size,
            Activation::Gelu,
            NORM_EPS,
        )?;
        let spec = EncoderSpec {
            bias: EncoderBiases {
                keys: false,
                ..spec.bias
            },
            place: NormPlace::Before,
            names: EncoderNames::BART,
            ..spec
        };
        let bands = config.num_mel_bins;
        Ok(Self {
            convs: [
                conv(weights, "encoder.conv1", [bands, size, 1]).await?,
                conv(weights, "encoder.conv2", [size, size, 2]).await?,
            ],
            positions: sinusoids(config.max_source_positions, size, weights.device())?
                .to_dtype(weights.dtype())?,
            layers: spec
                .load(config.encoder_layers, weights, "encoder.layers")
                .await?,
            norm: weights.norm("encoder.layer_norm", size, NORM).await?,
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
        let xs = xs.broadcast_add(&positions)?;
        self.norm.forward(&run_layers(&self.layers, xs)?)
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
    pub(super) async fn load(weights: &mut Weights<'_>, config: &Config) -> Result<Self> {
        let size = config.d_model;
        let heads = config.decoder_attention_heads;
        let head_dim = head_dim(
            "whisper",
            ("d_model", size),
            ("decoder_attention_heads", heads),
        )?;
        let mut layers = Vec::new();
        for i in 0..config.decoder_layers {
            let mut part = Part {
                prefix: format!("decoder.layers.{i}"),
                size,
                weights,
            };
            layers.push(DecoderLayer {
                qkv: part
                    .merged(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"])
                    .await?,
                joined: part.linear("self_attn.out_proj").await?,
                norm: part.norm("self_attn_layer_norm").await?,
                cross: Cross {
                    q: part.linear("encoder_attn.q_proj").await?,
                    kv: part
                        .merged(["encoder_attn.k_proj", "encoder_attn.v_proj"])
                        .await?,
                    joined: part.linear("encoder_attn.out_proj").await?,
                    norm: part.norm("encoder_attn_layer_norm").await?,
                    sound: None,
                },
                mlp: part.mlp().await?,
                mlp_norm: part.norm("final_layer_norm").await?,
                text: GrowingKvCache::new(config.max_target_positions),
            });
        }
        let table = weights.embedding("decoder.embed_tokens", config.vocab_size, size);
        let tokens = table.await?;
        let (positions, init) = ("decoder.embed_positions.weight", Init::Const(0.));
        let rows = [config.max_target_positions, size];
        Ok(Self {
            output: tokens.tied(),
            tokens,
            positions: weights.dense(positions, &rows, init).await?,
            layers,
            norm: weights.norm("decoder.layer_norm", size, NORM).await?,
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

/// Loads both parts from what is below `model`.
pub(super) fn load<W: WeightKind>(
    vb: &W::Builder<'_>,
    config: &Config,
) -> Result<(AudioEncoder, TextDecoder)> {
    W::load(W::below(vb, "model"), |weights| {
        Ok((
            at_once(AudioEncoder::load(weights, config))?,
            at_once(TextDecoder::load(weights, config))?,
        ))
    })
}
