//! What encoders of text share: embeddings, attention of every token to every other, layers around it, masks and pooling.

mod spec;

pub(crate) use spec::{
    EncoderBiases, EncoderNames, EncoderPositions, EncoderSpec, MlpActivation, MlpNames,
    TextEncoder,
};

use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::rotary_emb::{rope_heads_with, Pairs, Rotation};
use candle_nn::{embedding, Activation, Embedding, LayerNorm, VarBuilder};

use super::{FeedForward, MergedLinear, Norm, Projection, Residual};

/// The mask and the position biases of attention between a text's tokens; by default none.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen<'a> {
    /// Added to the scores; broadcasts to (batch, heads, seq, seq).
    pub(crate) mask: Option<&'a Tensor>,
    /// Tokens see those that are less than this away, on both sides.
    pub(crate) window: Option<usize>,
    /// ALiBi: what scores lose with each position of distance, (heads) of f32.
    pub(crate) slopes: Option<&'a Tensor>,
    /// Cosines and sines of the tokens' positions, (seq, n) each, and which elements of queries and keys they rotate.
    pub(crate) rotation: Option<(&'a (Tensor, Tensor), Pairs)>,
}

/// The heads of self-attention, up to the layer that joins them.
#[derive(Debug, Clone)]
pub(crate) struct Heads {
    qkv: MergedLinear<3>,
    heads: usize,
    head_dim: usize,
}

impl Heads {
    /// `qkv` gives queries, keys and values, `heads` of size `head_dim` of each.
    pub(crate) fn new(qkv: MergedLinear<3>, heads: usize, head_dim: usize) -> Self {
        Self {
            qkv,
            heads,
            head_dim,
        }
    }

    /// From (batch, seq, hidden) to (batch, seq, heads * head_dim).
    pub(crate) fn forward(&self, xs: &Tensor, seen: &Seen) -> Result<Tensor> {
        let [q, k, v] = self.by_head(xs, seen)?;
        self.attend(&q, &k, &v, seen)
    }

    /// Queries, keys and values of `xs`, (batch, seq, hidden): (batch, heads, seq, head_dim) each.
    pub(crate) fn by_head(&self, xs: &Tensor, seen: &Seen) -> Result<[Tensor; 3]> {
        let (b, t, _) = xs.dims3()?;
        let heads = self.heads;
        let mut all = self
            .qkv
            .forward_joined(xs)?
            .reshape((b, t, 3 * heads, self.head_dim))?
            .transpose(1, 2)?;
        if let Some(((cos, sin), pairs)) = seen.rotation {
            let rotation = Rotation {
                angles: Some((cos, sin)),
                pairs,
                norms: None,
            };
            all = rope_heads_with(&all, &rotation, heads, heads)?;
        }
        let part = |i| all.narrow(1, i * heads, heads);
        Ok([part(0)?, part(1)?, part(2)?])
    }

    /// Attention of the queries to keys and values: (batch, queries, heads * head_dim).
    pub(crate) fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor, seen: &Seen) -> Result<Tensor> {
        let options = SdpaOptions {
            scale: (1. / (self.head_dim as f64).sqrt()) as f32,
            bias: seen.mask,
            window: seen.window,
            slopes: seen.slopes,
            ..SdpaOptions::default()
        };
        let ys = sdpa_with(q, k, v, &options)?;
        let (b, heads, t, head_dim) = ys.dims4()?;
        ys.transpose(1, 2)?.reshape((b, t, heads * head_dim))
    }
}

/// The position of a layer's norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NormPlace {
    /// Before each block, which adds to a stream without a norm.
    Before,
    /// After each block and its residual, as in the first transformers.
    After,
}

/// Attention and a feed-forward block, each with a residual and a norm.
#[derive(Debug, Clone)]
pub(crate) struct EncoderLayer {
    pub(crate) heads: Heads,
    /// The layer that joins the heads.
    pub(crate) joined: Projection,
    pub(crate) mlp: FeedForward,
    pub(crate) place: NormPlace,
    /// The norms of attention and of the feed-forward block.
    pub(crate) norms: [Option<Norm>; 2],
}

impl EncoderLayer {
    /// From (batch, seq, hidden) to the same shape.
    pub(crate) fn forward(&self, xs: Tensor, seen: &Seen) -> Result<Tensor> {
        self.forward_with(xs, |heads, xs| heads.forward(xs, seen))
    }

    /// As [`forward`](Self::forward), with what `attend` makes of the heads and their input.
    pub(crate) fn forward_with(
        &self,
        xs: Tensor,
        attend: impl FnOnce(&Heads, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let [attention, mlp] = &self.norms;
        let before = |norm| (self.place == NormPlace::Before).then_some(norm).flatten();
        let after = |norm| (self.place == NormPlace::After).then_some(norm).flatten();
        let (attention, mlp) = (attention.as_ref(), mlp.as_ref());

        let (xs, normed) = Residual::new(xs).normed(before(attention))?;
        let ys = attend(&self.heads, &normed)?;
        let (_, xs) = xs.add(&self.joined, &ys)?.normed(after(attention))?;
        let xs = self.mlp.add_to(Residual::new(xs), before(mlp))?;
        let (_, xs) = xs.normed(after(mlp))?;
        Ok(xs)
    }
}

/// All layers in order, in each of which all tokens see each other: (batch, tokens, size) to the same shape.
pub(crate) fn run_layers(layers: &[EncoderLayer], xs: Tensor) -> Result<Tensor> {
    let all = Seen::default();
    let mut layers = layers.iter();
    layers.try_fold(xs, |xs, layer| layer.forward(xs, &all))
}

/// The sizes of [`Embeddings`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct EmbeddingsSpec {
    /// The model's name, for errors.
    pub(crate) family: &'static str,
    pub(crate) hidden: usize,
    pub(crate) vocab: usize,
    /// Rows of the table of positions, if there is one.
    pub(crate) positions: Option<usize>,
    /// Kinds of segments; 0 for none.
    pub(crate) types: usize,
    /// The longest text.
    pub(crate) limit: usize,
}

/// The vectors of tokens, and if the model has them of their segments and positions, added and normed.
#[derive(Debug, Clone)]
pub(crate) struct Embeddings {
    spec: EmbeddingsSpec,
    word: Embedding,
    position: Option<Embedding>,
    types: Option<Embedding>,
    norm: LayerNorm,
}

impl Embeddings {
    /// Loads the tables `{word,position,token_type}_embeddings`.
    pub(crate) fn load(spec: EmbeddingsSpec, vb: VarBuilder, norm: LayerNorm) -> Result<Self> {
        let word = embedding(spec.vocab, spec.hidden, vb.pp("word_embeddings"))?;
        Self::of_table(spec, word, vb, norm)
    }

    /// As [`load`](Self::load), with a table of tokens that has another name.
    pub(crate) fn of_table(
        spec: EmbeddingsSpec,
        word: Embedding,
        vb: VarBuilder,
        norm: LayerNorm,
    ) -> Result<Self> {
        let table = |name, len| embedding(len, spec.hidden, vb.pp(name));
        let position = spec.positions.map(|len| table("position_embeddings", len));
        let types = match spec.types {
            0 => None,
            types => Some(table("token_type_embeddings", types)?),
        };
        Ok(Self {
            spec,
            word,
            position: position.transpose()?,
            types,
            norm,
        })
    }

    /// From ids to vectors: (batch, seq) to (batch, seq, hidden). Without `types` all tokens are of segment 0.
    pub(crate) fn forward(&self, ids: &Tensor, types: Option<&Tensor>) -> Result<Tensor> {
        self.forward_at(ids, types, None)
    }

    /// As [`forward`](Self::forward), of tokens at these `positions`, (batch, seq).
    pub(crate) fn forward_at(
        &self,
        ids: &Tensor,
        types: Option<&Tensor>,
        positions: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (family, limit) = (self.spec.family, self.spec.limit);
        let (_, len) = check_text(family, ids, limit)?;
        let mut xs = self.word.forward(ids)?;
        match (&self.types, types) {
            (Some(_), Some(types)) if types.dims() != ids.dims() => bail!(
                "{family}: input_ids are {:?} and token_type_ids {:?}; they must have one shape",
                ids.dims(),
                types.dims()
            ),
            (Some(table), Some(types)) => xs = (xs + table.forward(types)?)?,
            (Some(table), None) => {
                xs = xs.broadcast_add(&table.embeddings().narrow(0, 0, 1)?)?;
            }
            (None, _) => {}
        }
        match (&self.position, positions) {
            (Some(table), Some(positions)) => xs = (xs + table.forward(positions)?)?,
            (Some(table), None) => {
                xs = xs.broadcast_add(&table.embeddings().narrow(0, 0, len)?)?;
            }
            (None, _) => {}
        }
        self.norm.forward(&xs)
    }

    /// The table of the tokens' vectors, (vocab, hidden).
    pub(crate) fn table(&self) -> &Tensor {
        self.word.embeddings()
    }
}

/// `norm(activation(dense(x)))`: what heads over a vocabulary begin with.
#[derive(Debug, Clone)]
pub(crate) struct Transform {
    pub(crate) dense: Projection,
    pub(crate) activation: Activation,
    pub(crate) norm: Norm,
}

/// From (.., hidden) to the same shape.
impl Module for Transform {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.activation.forward(&self.dense.forward(xs)?)?;
        self.norm.forward(&xs)
    }
}

/// The matrix `weight` of an output layer over the vocabulary: the file's own where it has one, else the table of the tokens' vectors.
pub(crate) fn output_weight(table: &Tensor, vb: VarBuilder) -> Result<Tensor> {
    if vb.contains_tensor("weight") {
        vb.get(table.dims(), "weight")
    } else {
        Ok(table.clone())
    }
}

/// The size of a head, if the heads divide the hidden size. Both come with the name that the configuration has for them.
pub(crate) fn head_dim(
    family: &str,
    (hidden_name, hidden): (&str, usize),
    (heads_name, heads): (&str, usize),
) -> Result<usize> {
    if heads == 0 || hidden == 0 || hidden % heads != 0 {
        bail!(
            "{family}: {hidden_name} {hidden} cannot be divided among {heads_name} {heads}; \
             check config.json"
        )
    }
    Ok(hidden / heads)
}

/// The shape of ids, (batch, seq), if there are tokens and no more than `limit` in a text.
pub(crate) fn check_text(family: &str, ids: &Tensor, limit: usize) -> Result<(usize, usize)> {
    match *ids.dims() {
        [b, t] if b == 0 || t == 0 => bail!(
            "{family}: input_ids are [{b}, {t}], which has no tokens; a text has at least one"
        ),
        [_, t] if t > limit => {
            bail!("{family}: {t} tokens exceed the model's limit of {limit}; shorten the text")
        }
        [b, t] => Ok((b, t)),
        _ => bail!(
            "{family}: input_ids are {:?}; they must be (batch, seq)",
            ids.dims()
        ),
    }
}

/// The root of a model's weights: `vb`, or `prefix` if only that has a tensor `first`, as in checkpoints of models with a head.
pub(crate) fn below<'a>(vb: VarBuilder<'a>, prefix: &str, first: &str) -> VarBuilder<'a> {
    let prefixed = vb.pp(prefix);
    if !vb.contains_tensor(first) && prefixed.contains_tensor(first) {
        prefixed
    } else {
        vb
    }
}

/// The addend of attention scores for a mask of ones and zeros: 0, or the least f32. It is not an infinity: a fully masked row then attends
/// to all tokens equally instead of to none. f16 and bf16 have no such number; attention adds in f32 for them.
///
/// `mask` is (batch, seq), or (batch, seq, seq) with a row for each token that attends.
pub(crate) fn added_to_scores(family: &str, mask: &Tensor, model: DType) -> Result<Tensor> {
    let mask = match mask.rank() {
        2 => mask.unsqueeze(1)?.unsqueeze(1)?,
        3 => mask.unsqueeze(1)?,
        _ => bail!(
            "{family}: attention_mask is {:?}; it must be (batch, seq) or (batch, seq, seq)",
            mask.dims()
        ),
    };
    mask.to_dtype(dtype_of_scores(model))?
        .affine(f64::from(f32::MAX), f64::from(f32::MIN))
}

/// The dtype of scores.
pub(crate) fn dtype_of_scores(model: DType) -> DType {
    match model {
        DType::F64 => model,
        _ => DType::F32,
    }
}

/// The mean of the vectors `xs`, (batch, seq, hidden), that `mask` shows, (batch, seq) of ones and zeros: (batch, hidden). Sums are in f32
/// for 16-bit floats. Zeros where all are hidden.
pub(crate) fn mean_of_seen(family: &str, xs: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let (b, t, _) = xs.dims3()?;
    if mask.dims() != [b, t] {
        bail!(
            "{family}: attention_mask is {:?}; for hidden states of {:?} it must be ({b}, {t})",
            mask.dims(),
            xs.dims()
        )
    }
    let dtype = dtype_of_scores(xs.dtype());
    let xs_wide = xs.to_dtype(dtype)?;
    // Not a product with zeros: the vectors of padding may be infinite or NaN.
    let shown = mask.ne(0.)?.unsqueeze(2)?.broadcast_as(xs.shape())?;
    let sum = shown.where_cond(&xs_wide, &xs_wide.zeros_like()?)?.sum(1)?;
    let mask = mask.to_dtype(dtype)?.unsqueeze(2)?;
    let seen = mask.sum(1)?.clamp(1e-9, f64::from(f32::MAX))?;
    sum.broadcast_div(&seen)?.to_dtype(xs.dtype())
}
