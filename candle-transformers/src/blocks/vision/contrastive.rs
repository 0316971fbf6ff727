//! What models that compare images and texts share: CLIP, [arXiv 2103.00020](https://arxiv.org/abs/2103.00020), and its relatives.

use candle_core::{bail, DType, Module, Result, Tensor, D};
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::{
    conv2d_no_bias, embedding, layer_norm, linear, Conv2dConfig, Embedding, Init, LayerNorm,
    Linear, VarBuilder,
};

use super::{
    heads, join_heads, side, with_first, PatchEmbedding, Picture, VitActivation, VitMlp, VitSpec,
};
use crate::blocks::encoder::{check_text, EncoderLayer, EncoderNames, Seen};
use crate::blocks::recurrence::wide;

/// The `count` layers below `vb`, 0 and up, each with `layer_norm1`, `self_attn.{q,k,v,out}_proj`, `layer_norm2` and `mlp.{fc1,fc2}`.
pub(crate) fn blocks(
    family: &str,
    count: usize,
    spec: &VitSpec,
    activation: VitActivation,
    vb: VarBuilder,
) -> Result<Blocks> {
    let spec = spec.encoder(family, activation, EncoderNames::CLIP)?;
    spec.load_dense(count, vb, "").map(Blocks)
}

/// Layers that follow each other.
#[derive(Debug, Clone)]
pub(crate) struct Blocks(pub(crate) Vec<EncoderLayer>);

impl Blocks {
    /// From (batch, tokens, size) to the same shape; `mask` is added to the scores.
    pub(crate) fn forward(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let seen = Seen {
            mask,
            ..Seen::default()
        };
        let mut layers = self.0.iter();
        layers.try_fold(xs.clone(), |xs, layer| layer.forward(xs, &seen))
    }

    /// What each layer gives.
    pub(crate) fn forward_each(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Vec<Tensor>> {
        let seen = Seen {
            mask,
            ..Seen::default()
        };
        let mut xs = xs.clone();
        let mut each = |layer: &EncoderLayer| {
            xs = layer.forward(xs.clone(), &seen)?;
            Ok(xs.clone())
        };
        self.0.iter().map(&mut each).collect()
    }
}

/// The vectors of tokens and of their positions, added.
#[derive(Debug, Clone)]
pub(crate) struct TextEmbeddings {
    /// The model's name, for errors.
    family: &'static str,
    tokens: Embedding,
    /// (limit, size)
    positions: Tensor,
}

impl TextEmbeddings {
    /// The tables `token_embedding` and `position_embedding` of `vocab` and `limit` rows.
    pub(crate) fn load(
        family: &'static str,
        [vocab, limit, size]: [usize; 3],
        vb: VarBuilder,
    ) -> Result<Self> {
        let positions = vb.pp("position_embedding").get((limit, size), "weight")?;
        let tokens = embedding(vocab, size, vb.pp("token_embedding"))?;
        Ok(Self::new(family, tokens, positions))
    }

    pub(crate) fn new(family: &'static str, tokens: Embedding, positions: Tensor) -> Self {
        Self {
            family,
            tokens,
            positions,
        }
    }

    /// From ids (batch, seq) to (batch, seq, size).
    pub(crate) fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let (_, seq) = check_text(self.family, ids, self.positions.dim(0)?)?;
        let positions = self.positions.narrow(0, 0, seq)?;
        self.tokens.forward(ids)?.broadcast_add(&positions)
    }
}

/// The vector of each text's largest id, which in CLIP's vocabulary is that of its end: `xs` is (batch, seq, size), the result
/// (batch, size). Nothing is read back.
pub(crate) fn at_largest(xs: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let (b, seq, size) = xs.dims3()?;
    let first = (0..b).map(|i| (i * seq) as u32).collect::<Vec<_>>();
    let first = Tensor::from_vec(first, b, xs.device())?;
    let at = (ids.argmax(D::Minus1)?.to_dtype(DType::U32)? + first)?;
    xs.reshape((b * seq, size))?.index_select(&at, 0)
}

/// Sizes of a [`ClipVision`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClipVisionSpec {
    pub(crate) family: &'static str,
    pub(crate) vit: VitSpec,
    pub(crate) layers: usize,
    pub(crate) activation: VitActivation,
    pub(crate) channels: usize,
    pub(crate) image: usize,
    pub(crate) patch: usize,
}

/// The patches of an image after a class token, with positions.
#[derive(Debug, Clone)]
pub(crate) struct PictureEmbeddings {
    patches: PatchEmbedding,
    /// (1, 1, size)
    class: Tensor,
    /// (1 + patches, size)
    positions: Tensor,
}

impl PictureEmbeddings {
    /// Loads `class_embedding`, `position_embedding` and `patch_embedding`.
    pub(crate) fn load(spec: &ClipVisionSpec, vb: VarBuilder) -> Result<Self> {
        let (size, patch) = (spec.vit.size, spec.patch);
        let side = side(spec.family, spec.image, patch)?;
        let config = Conv2dConfig {
            stride: patch,
            ..Default::default()
        };
        let vb_patches = vb.pp("patch_embedding");
        let conv = conv2d_no_bias(spec.channels, size, patch, config, vb_patches)?;
        let picture = Picture {
            channels: spec.channels,
            size: Some((spec.image, spec.image)),
            ..Picture::any(spec.family)
        };
        let normal = Init::Randn {
            mean: 0.,
            stdev: 1.,
        };
        let vb_positions = vb.pp("position_embedding");
        Ok(Self {
            patches: PatchEmbedding::of(conv, picture, patch),
            class: vb
                .get_with_hints(size, "class_embedding", normal)?
                .reshape((1, 1, size))?,
            positions: vb_positions.get((1 + side * side, size), "weight")?,
        })
    }
}

/// From (batch, channels, height, width) to (batch, 1 + patches, size).
impl Module for PictureEmbeddings {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (patches, _) = self.patches.forward(xs)?;
        with_first(&self.class, &patches)?.broadcast_add(&self.positions)
    }
}

/// CLIP's encoder of images.
#[derive(Debug, Clone)]
pub(crate) struct ClipVision {
    embeddings: PictureEmbeddings,
    norm_before: LayerNorm,
    blocks: Blocks,
    norm_after: LayerNorm,
}

impl ClipVision {
    /// Loads `embeddings`, `pre_layrnorm`, which Hugging Face spells so, `encoder.layers.N` and `post_layernorm`.
    pub(crate) fn load(spec: &ClipVisionSpec, vb: VarBuilder) -> Result<Self> {
        let (size, eps) = (spec.vit.size, spec.vit.eps);
        let vb_blocks = vb.pp("encoder").pp("layers");
        let (family, layers, activation) = (spec.family, spec.layers, spec.activation);
        Ok(Self {
            embeddings: PictureEmbeddings::load(spec, vb.pp("embeddings"))?,
            norm_before: layer_norm(size, eps, vb.pp("pre_layrnorm"))?,
            blocks: blocks(family, layers, &spec.vit, activation, vb_blocks)?,
            norm_after: layer_norm(size, eps, vb.pp("post_layernorm"))?,
        })
    }

    fn tokens(&self, xs: &Tensor) -> Result<Tensor> {
        self.norm_before.forward(&self.embeddings.forward(xs)?)
    }

    fn pooled(&self, xs: &Tensor) -> Result<Tensor> {
        self.norm_after.forward(&xs.narrow(1, 0, 1)?.squeeze(1)?)
    }

    /// The output of each block, (batch, 1 + patches, size), and last that of [`forward`](Module::forward).
    pub(crate) fn hidden_states(&self, xs: &Tensor) -> Result<Vec<Tensor>> {
        let mut states = self.blocks.forward_each(&self.tokens(xs)?, None)?;
        let Some(last) = states.last() else {
            bail!("clip: the model has no layers, so it has no hidden states")
        };
        let pooled = self.pooled(last)?;
        states.push(pooled);
        Ok(states)
    }
}

/// From (batch, channels, height, width) to (batch, size).
impl Module for ClipVision {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.pooled(&self.blocks.forward(&self.tokens(xs)?, None)?)
    }
}

/// One vector for all tokens: a learned query attends to them, and a feed-forward block follows.
#[derive(Debug, Clone)]
pub(crate) struct PoolingHead {
    /// (1, 1, size)
    probe: Tensor,
    query: Linear,
    keys_and_values: Linear,
    proj: Linear,
    heads: usize,
    norm: LayerNorm,
    mlp: VitMlp,
}

impl PoolingHead {
    /// Loads `probe`, `attention.{in_proj_weight,in_proj_bias,out_proj}`, `layernorm` and `mlp.{fc1,fc2}`.
    pub(crate) fn load(spec: &VitSpec, activation: VitActivation, vb: VarBuilder) -> Result<Self> {
        let (size, vb_attention) = (spec.size, vb.pp("attention"));
        let weight = vb_attention.get((3 * size, size), "in_proj_weight")?;
        let bias = vb_attention.get(3 * size, "in_proj_bias")?;
        let rows = |start, len| -> Result<Linear> {
            let bias = bias.narrow(0, start, len)?;
            Ok(Linear::new(weight.narrow(0, start, len)?, Some(bias)))
        };
        Ok(Self {
            probe: vb.get((1, 1, size), "probe")?,
            query: rows(0, size)?,
            keys_and_values: rows(size, 2 * size)?,
            proj: linear(size, size, vb_attention.pp("out_proj"))?,
            heads: spec.heads,
            norm: layer_norm(size, spec.eps, vb.pp("layernorm"))?,
            mlp: VitMlp::load_with(spec, activation, vb.pp("mlp"))?,
        })
    }
}

/// From (batch, tokens, size) to (batch, size).
impl Module for PoolingHead {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, n) = (xs.dim(0)?, self.heads);
        let q = heads(&self.query.forward(&self.probe)?, n)?;
        let head_dim = q.dim(D::Minus1)?;
        let kv = heads(&self.keys_and_values.forward(xs)?, 2 * n)?;
        let options = SdpaOptions {
            scale: 1. / (head_dim as f32).sqrt(),
            ..Default::default()
        };
        let q = q.expand((b, n, 1, head_dim))?;
        let ys = sdpa_with(&q, &kv.narrow(1, 0, n)?, &kv.narrow(1, n, n)?, &options)?;
        let xs = self.proj.forward(&join_heads(&ys)?)?;
        let ys = self.mlp.forward(&self.norm.forward(&xs)?)?;
        (xs + ys)?.squeeze(1)
    }
}

/// `xs`, (.., size), divided by its length. f16 and bf16 are summed in f32, where squares do not overflow.
pub(crate) fn unit_length(xs: &Tensor) -> Result<Tensor> {
    let dtype = xs.dtype();
    let xs = xs.to_dtype(wide(dtype))?;
    let length = xs.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
    xs.broadcast_div(&length)?.to_dtype(dtype)
}

/// The scores of images, (images, size), and texts, (texts, size): the cosine of their vectors times `exp(scale)`, plus `bias`; (texts,
/// images) and (images, texts).
pub(crate) fn scores(
    pictures: &Tensor,
    texts: &Tensor,
    scale: &Tensor,
    bias: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let cosines = unit_length(texts)?.matmul(&unit_length(pictures)?.t()?)?;
    let mut scores = cosines.broadcast_mul(&scale.exp()?)?;
    if let Some(bias) = bias {
        scores = scores.broadcast_add(bias)?;
    }
    let turned = scores.t()?;
    Ok((scores, turned))
}
