//! What models that read one thing and write another share: layers that attend to their tokens, and to what an encoder returned.

mod text;

pub(crate) use super::encoder::MlpActivation;
pub(crate) use text::{Angles, Given, Positions, TextStack};

use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::rotary_emb::{rope_heads_with, Pairs, Rotation};
use candle_nn::Activation;

use super::encoder::{head_dim, MlpNames, NormPlace};
use super::{
    linear, FeedForward, GrowingKvCache, MergedLinear, Norm, NormSpec, Projection, Residual,
    Weights,
};

/// In f16, a layer's feed-forward block is multiplied by this before its last product, and divided by it afterwards. A power of two, so
/// that numbers in f16's range are not rounded.
const NARROWED: f64 = 1. / 64.;
/// The largest f16.
const F16_MAX: f64 = 65504.;

/// The names of an attention's layers and of its norm, after the layer's prefix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionNames {
    pub(crate) q: &'static str,
    pub(crate) k: &'static str,
    pub(crate) v: &'static str,
    pub(crate) output: &'static str,
    pub(crate) norm: &'static str,
}

/// The names of a layer's parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerNames {
    pub(crate) attention: AttentionNames,
    /// The names of cross-attention.
    pub(crate) cross: AttentionNames,
    /// In a block without a gate this is the first layer.
    pub(crate) up: &'static str,
    pub(crate) gate: &'static str,
    pub(crate) down: &'static str,
    pub(crate) mlp_norm: &'static str,
}

impl LayerNames {
    /// BART's, which Marian, TrOCR and Whisper have too.
    pub(crate) const BART: Self = Self {
        attention: AttentionNames {
            q: "self_attn.q_proj",
            k: "self_attn.k_proj",
            v: "self_attn.v_proj",
            output: "self_attn.out_proj",
            norm: "self_attn_layer_norm",
        },
        cross: AttentionNames {
            q: "encoder_attn.q_proj",
            k: "encoder_attn.k_proj",
            v: "encoder_attn.v_proj",
            output: "encoder_attn.out_proj",
            norm: "encoder_attn_layer_norm",
        },
        up: "fc1",
        gate: "",
        down: "fc2",
        mlp_norm: "final_layer_norm",
    };
}

/// A layer before it has weights.
#[derive(Debug, Clone)]
pub(crate) struct LayerSpec {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    /// Key and value heads of self-attention, and of the attention to what an encoder returned: `heads` is a multiple of each.
    pub(crate) kv_heads: [usize; 2],
    pub(crate) head_dim: usize,
    /// Factor of the scores.
    pub(crate) scale: f64,
    /// The size of the vectors that an encoder returns; `None` for a layer that does not attend to any.
    pub(crate) source: Option<usize>,
    /// The inner size of the feed-forward block.
    pub(crate) inner: usize,
    pub(crate) activation: MlpActivation,
    /// Whether the linear layers of attention have biases.
    pub(crate) bias: bool,
    /// Whether those of the feed-forward block have biases.
    pub(crate) mlp_bias: bool,
    pub(crate) norm: NormSpec,
    pub(crate) place: NormPlace,
    /// The longest text, for what is kept of it.
    pub(crate) limit: usize,
}

impl LayerSpec {
    /// A layer of BART that attends to no encoder. The sizes that heads divide come with the names that the configuration has for them.
    ///
    /// # Errors
    /// If the heads do not divide the size.
    pub(crate) fn bart(
        family: &str,
        hidden: (&str, usize),
        heads: (&str, usize),
        inner: usize,
        activation: Activation,
        limit: usize,
    ) -> Result<Self> {
        let head_dim = head_dim(family, hidden, heads)?;
        Ok(Self {
            hidden: hidden.1,
            heads: heads.1,
            kv_heads: [heads.1; 2],
            head_dim,
            scale: 1. / (head_dim as f64).sqrt(),
            source: None,
            inner,
            activation: MlpActivation::Plain(activation),
            bias: true,
            mlp_bias: true,
            norm: NormSpec::layer(1e-5),
            place: NormPlace::After,
            limit,
        })
    }

    /// The dtype of the stream between blocks, and of norms, where products are of `dtype`. Without norms on it the stream grows with
    /// every layer: in f16 it would become infinite (T5), so it is f32 then.
    pub(crate) fn stream_dtype(&self, dtype: DType) -> DType {
        stream_dtype(self.place, dtype)
    }
}

fn stream_dtype(place: NormPlace, dtype: DType) -> DType {
    match (place, dtype) {
        (NormPlace::Before, DType::F16) => DType::F32,
        _ => dtype,
    }
}

/// The visibility between the tokens of a text.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Visible<'a> {
    /// Added to the scores; broadcasts to (batch, heads, queries, keys).
    pub(crate) bias: Option<&'a Tensor>,
    /// Only what comes before them and themselves.
    pub(crate) causal: bool,
    /// Also the tokens of the calls before, whose keys and values were kept; theirs are kept too.
    pub(crate) kept: bool,
    /// The rotation of these tokens' queries and keys by position; `None` in an encoder.
    pub(crate) rotation: Option<Rotation<'a>>,
}

/// The output of an encoder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    /// (batch, keys, size).
    pub(crate) hidden: &'a Tensor,
    /// Added to the scores; broadcasts to (batch, heads, queries, keys).
    pub(crate) bias: Option<&'a Tensor>,
}

/// Attention of tokens to each other, up to the layer that joins the heads.
#[derive(Debug, Clone)]
struct SelfAttention {
    qkv: MergedLinear<3>,
    kept: GrowingKvCache,
}

/// Attention of tokens to what an encoder returned, up to the layer that joins the heads.
#[derive(Debug, Clone)]
struct CrossAttention {
    q: Projection,
    kv: MergedLinear<2>,
    output: Projection,
    norm: Norm,
    /// The encoder's output, and its keys and values: (batch, 2 * kv_heads, keys, head_dim).
    kept: Option<(Tensor, Tensor)>,
}

/// The heads of a layer's attention.
#[derive(Debug, Clone, Copy)]
struct Heads {
    count: usize,
    /// Numbers of key and value heads, in self-attention and in cross-attention.
    kv: [usize; 2],
    size: usize,
    scale: f64,
}

impl Heads {
    /// From (batch, t, n * size) to (batch, n, t, size), a view.
    fn split(self, xs: &Tensor, n: usize) -> Result<Tensor> {
        let (b, t, _) = xs.dims3()?;
        xs.reshape((b, t, n, self.size))?.transpose(1, 2)
    }

    /// Attention of the queries to keys and values, which are concatenated in `kv`: (batch, queries, heads * size).
    fn attend(
        self,
        q: &Tensor,
        kv: &Tensor,
        bias: Option<&Tensor>,
        causal: bool,
    ) -> Result<Tensor> {
        let options = SdpaOptions {
            scale: self.scale as f32,
            causal,
            bias,
            ..SdpaOptions::default()
        };
        let kv_heads = kv.dim(1)? / 2;
        let k = kv.narrow(1, 0, kv_heads)?;
        let v = kv.narrow(1, kv_heads, kv_heads)?;
        let ys = sdpa_with(q, &k, &v, &options)?;
        let (b, heads, t, size) = ys.dims4()?;
        ys.transpose(1, 2)?.reshape((b, t, heads * size))
    }
}

impl SelfAttention {
    /// From (batch, t, hidden) to (batch, t, heads * size).
    fn forward(&mut self, xs: &Tensor, heads: Heads, visible: &Visible) -> Result<Tensor> {
        let (n, [kv_heads, _]) = (heads.count, heads.kv);
        let mut qkv = heads.split(&self.qkv.forward_joined(xs)?, n + 2 * kv_heads)?;
        let (q, kv) = match (visible.kept, &visible.rotation) {
            (true, rotation) => {
                let as_is = Rotation {
                    angles: None,
                    pairs: Pairs::Halves,
                    norms: None,
                };
                let rotation = rotation.as_ref().unwrap_or(&as_is);
                self.kept.append_rotated(&qkv, kv_heads, rotation, None)?
            }
            (false, rotation) => {
                if let Some(rotation) = rotation {
                    qkv = rope_heads_with(&qkv, rotation, n, kv_heads)?;
                }
                (qkv.narrow(1, 0, n)?, qkv.narrow(1, n, 2 * kv_heads)?)
            }
        };
        // A single token is the last one: it sees all.
        let causal = visible.causal && q.dim(2)? > 1;
        heads.attend(&q, &kv, visible.bias, causal)
    }
}

impl CrossAttention {
    /// From (batch, t, hidden) to (batch, t, heads * size).
    fn forward(&mut self, xs: &Tensor, heads: Heads, source: &Source) -> Result<Tensor> {
        let kv = self.keys_and_values(heads, source.hidden)?;
        let q = heads.split(&self.q.forward(xs)?, heads.count)?;
        heads.attend(&q, &kv, source.bias, false)
    }

    /// Those of `source`, computed when it is not the tensor of the last call. What gradients flow through is computed each time: an
    /// optimizer may have changed the weights in between.
    fn keys_and_values(&mut self, heads: Heads, source: &Tensor) -> Result<Tensor> {
        if let Some((_, kv)) = self.kept.as_ref().filter(|(of, _)| of.id() == source.id()) {
            return Ok(kv.clone());
        }
        self.kept = None;
        let [_, kv_heads] = heads.kv;
        let kv = heads
            .split(&self.kv.forward_joined(source)?, 2 * kv_heads)?
            .contiguous()?;
        if !kv.track_op() && !source.track_op() {
            self.kept = Some((source.clone(), kv.clone()));
        }
        Ok(kv)
    }
}

/// Attention, if the model has it attention to what an encoder returned, and a feed-forward block, each with a residual and a norm.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    attention: SelfAttention,
    output: Projection,
    norm: Norm,
    cross: Option<CrossAttention>,
    mlp: FeedForward,
    mlp_norm: Norm,
    heads: Heads,
    place: NormPlace,
    dtype: DType,
    /// Factor of the feed-forward block in f16.
    narrowed: f64,
}

/// Loads layers whose names are `prefix` and a number.
pub(crate) async fn load_layers(
    spec: &LayerSpec,
    count: usize,
    weights: &mut Weights<'_>,
    names: &LayerNames,
    prefix: &str,
) -> Result<Vec<Layer>> {
    let mut layers = Vec::new();
    for i in 0..count {
        let prefix = format!("{prefix}.{i}");
        layers.push(Layer::load(spec, weights, names, &prefix).await?);
    }
    Ok(layers)
}

impl Layer {
    /// Loads the layer from weights named `prefix` and a suffix.
    pub(crate) async fn load(
        spec: &LayerSpec,
        weights: &mut Weights<'_>,
        names: &LayerNames,
        prefix: &str,
    ) -> Result<Self> {
        let (hidden, bias) = (spec.hidden, spec.bias);
        let all = spec.heads * spec.head_dim;
        let [kv, source_kv] = spec.kv_heads.map(|heads| heads * spec.head_dim);
        let dtype = weights.dtype();
        let stream = spec.stream_dtype(dtype);
        let part = |name, input, output| linear(prefix, name, input, output, bias);

        let AttentionNames { q, k, v, .. } = names.attention;
        let qkv = [(q, all), (k, kv), (v, kv)].map(|(name, size)| part(name, hidden, size));
        let qkv = weights.merged(qkv).await?;
        let output = part(names.attention.output, all, hidden);
        let output = weights.linear(&output).await?;
        let norm = format!("{prefix}.{}", names.attention.norm);
        let norm = weights.norm_as(stream, &norm, hidden, spec.norm).await?;

        let cross = match spec.source {
            None => None,
            Some(size) => {
                let names = names.cross;
                let kv = [names.k, names.v].map(|name| part(name, size, source_kv));
                let norm = format!("{prefix}.{}", names.norm);
                Some(CrossAttention {
                    q: weights.linear(&part(names.q, hidden, all)).await?,
                    kv: weights.merged(kv).await?,
                    output: weights.linear(&part(names.output, all, hidden)).await?,
                    norm: weights.norm_as(stream, &norm, hidden, spec.norm).await?,
                    kept: None,
                })
            }
        };

        let mlp_names = MlpNames {
            gate: names.gate,
            up: names.up,
            down: names.down,
        };
        let (sizes, biases) = ([hidden, spec.inner], [spec.mlp_bias; 2]);
        let mlp = spec.activation;
        let mlp = mlp.load(sizes, biases, weights, &mlp_names, prefix).await?;
        let mlp_norm = format!("{prefix}.{}", names.mlp_norm);
        Ok(Self {
            attention: SelfAttention {
                qkv,
                kept: GrowingKvCache::new(spec.limit),
            },
            output,
            norm,
            cross,
            mlp,
            mlp_norm: weights
                .norm_as(stream, &mlp_norm, hidden, spec.norm)
                .await?,
            heads: Heads {
                count: spec.heads,
                kv: spec.kv_heads,
                size: spec.head_dim,
                scale: spec.scale,
            },
            place: spec.place,
            dtype,
            // A bias is added after the product, so it would not be scaled.
            narrowed: if spec.mlp_bias { 1. } else { NARROWED },
        })
    }

    /// The layer with weights converted, nothing kept.
    pub(crate) fn to_dtype(&self, dtype: DType) -> Result<Self> {
        let stream = stream_dtype(self.place, dtype);
        let cross = match &self.cross {
            None => None,
            Some(cross) => Some(CrossAttention {
                q: cross.q.to_dtype(dtype)?,
                kv: cross.kv.to_dtype(dtype)?,
                output: cross.output.to_dtype(dtype)?,
                norm: cross.norm.to_dtype(stream)?,
                kept: None,
            }),
        };
        let mut attention = self.attention.clone();
        attention.kept.reset();
        attention.qkv = attention.qkv.to_dtype(dtype)?;
        Ok(Self {
            attention,
            output: self.output.to_dtype(dtype)?,
            norm: self.norm.to_dtype(stream)?,
            cross,
            mlp: self.mlp.to_dtype(dtype)?,
            mlp_norm: self.mlp_norm.to_dtype(stream)?,
            heads: self.heads,
            place: self.place,
            dtype,
            narrowed: self.narrowed,
        })
    }

    /// Number of tokens whose keys and values are cached.
    pub(crate) fn seen(&self) -> usize {
        self.attention.kept.seen()
    }

    /// Forgets the text, and what an encoder returned.
    pub(crate) fn reset(&mut self) {
        self.attention.kept.reset();
        if let Some(cross) = &mut self.cross {
            cross.kept = None;
        }
    }

    /// From the stream `xs`, (batch, t, hidden), to the same shape. Without a source, the layer does not attend to any.
    pub(crate) fn forward(
        &mut self,
        xs: Tensor,
        visible: &Visible,
        source: Option<&Source>,
    ) -> Result<Tensor> {
        if xs.dtype() != self.dtype {
            return self.forward_wide(xs, visible, source);
        }
        let (heads, place) = (self.heads, self.place);

        let (xs, normed) = Residual::new(xs).normed(before(place, &self.norm))?;
        let ys = self.attention.forward(&normed, heads, visible)?;
        let mut xs = after(place, xs.add(&self.output, &ys)?, &self.norm)?;
        if let (Some(cross), Some(source)) = (&mut self.cross, source) {
            let (stream, normed) = xs.normed(before(place, &cross.norm))?;
            let ys = cross.forward(&normed, heads, source)?;
            xs = after(place, stream.add(&cross.output, &ys)?, &cross.norm)?;
        }
        let xs = self.mlp.add_to(xs, before(place, &self.mlp_norm))?;
        let (xs, _) = after(place, xs, &self.mlp_norm)?.normed(None)?;
        Ok(xs.into_sum())
    }

    /// As [`forward`](Self::forward), with a stream of f32 between blocks of f16, whose norms come before them.
    fn forward_wide(
        &mut self,
        xs: Tensor,
        visible: &Visible,
        source: Option<&Source>,
    ) -> Result<Tensor> {
        let (heads, dtype) = (self.heads, self.dtype);
        let normed = |norm: &Norm, xs: &Tensor| norm.forward(xs)?.to_dtype(dtype);
        let widened = |ys: Tensor| ys.clamp(-F16_MAX, F16_MAX)?.to_dtype(xs.dtype());

        let ys = normed(&self.norm, &xs)?;
        let ys = self.attention.forward(&ys, heads, visible)?;
        let mut sum = (&xs + widened(self.output.forward(&ys)?)?)?;
        if let (Some(cross), Some(source)) = (&mut self.cross, source) {
            let ys = normed(&cross.norm, &sum)?;
            let ys = cross.forward(&ys, heads, source)?;
            sum = (sum + widened(cross.output.forward(&ys)?)?)?;
        }
        let ys = normed(&self.mlp_norm, &sum)?;
        let ys = self.mlp.forward_times(&ys, self.narrowed)?;
        sum + (widened(ys)? / self.narrowed)?
    }
}

/// The norm of what a block is given.
fn before(place: NormPlace, norm: &Norm) -> Option<&Norm> {
    (place == NormPlace::Before).then_some(norm)
}

/// The stream after a block.
fn after(place: NormPlace, xs: Residual, norm: &Norm) -> Result<Residual> {
    match place {
        NormPlace::Before => Ok(xs),
        NormPlace::After => xs.normed(Some(norm)).map(|(_, xs)| Residual::new(xs)),
    }
}

/// Checks the numbers of a layer, with the names that a configuration has for them.
pub(crate) fn check_sizes(family: &str, sizes: &[(&str, usize)]) -> Result<()> {
    match sizes.iter().find(|(_, size)| *size == 0) {
        Some((name, _)) => bail!("{family} config: {name} is 0; it must be at least 1"),
        None => Ok(()),
    }
}

/// Checks that an encoder returned something for each of `b` texts: (batch, keys, size).
pub(crate) fn check_source(family: &str, source: &Tensor, b: usize, size: usize) -> Result<()> {
    match *source.dims() {
        [of, keys, found] if of == b && keys > 0 && found == size => Ok(()),
        _ => bail!(
            "{family}: the encoder's output is {:?}; for {b} texts it must be ({b}, keys, {size})",
            source.dims()
        ),
    }
}

/// A mask that is added to scores, as callers give it: (queries, keys), (batch * heads, queries, keys) as in Candle, or of four dimensions.
pub(crate) fn added_mask(family: &str, mask: &Tensor, heads: usize) -> Result<Tensor> {
    match *mask.dims() {
        [_, _] => mask.unsqueeze(0)?.unsqueeze(0),
        [1, _, _] => mask.unsqueeze(0),
        [all, q, k] if all.is_multiple_of(heads) => mask.reshape((all / heads, heads, q, k)),
        [_, _, _, _] => Ok(mask.clone()),
        _ => bail!(
            "{family}: the attention mask is {:?}; it must be (queries, keys), or to broadcast to (batch, heads, queries, keys)",
            mask.dims()
        ),
    }
}
