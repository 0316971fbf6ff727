//! The decoder's transformer, in which tokens of a prompt see the image, and the image sees them.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::{layer_norm, Activation, LayerNorm, VarBuilder};

use super::{linear, Linear, MlpBlock, FAMILY};
use crate::blocks::vision::{heads, join_heads};

/// Norm epsilon.
const EPS: f64 = 1e-5;

/// Attention in which queries, keys and values come of different things.
#[derive(Debug)]
struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    heads: usize,
}

impl Attention {
    /// Heads together have `size / share` numbers.
    fn load(size: usize, heads: usize, share: usize, vb: VarBuilder) -> Result<Self> {
        let inner = size / share;
        if heads == 0 || inner == 0 || !inner.is_multiple_of(heads) {
            bail!("{FAMILY}: {heads} heads do not divide {inner}, the size {size} over {share}")
        }
        let projection = |name| linear(vb.pp(name), size, inner, true);
        Ok(Self {
            q: projection("q_proj")?,
            k: projection("k_proj")?,
            v: projection("v_proj")?,
            out: linear(vb.pp("out_proj"), inner, size, true)?,
            heads,
        })
    }

    /// From (batch, queries, size) and (batch, keys, size) to the shape of the queries.
    fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let q = heads(&self.q.forward(q)?, self.heads)?;
        let k = heads(&self.k.forward(k)?, self.heads)?;
        let v = heads(&self.v.forward(v)?, self.heads)?;
        let options = SdpaOptions {
            scale: 1. / (q.dim(3)? as f32).sqrt(),
            ..Default::default()
        };
        self.out
            .forward(&join_heads(&sdpa_with(&q, &k, &v, &options)?)?)
    }
}

#[derive(Debug)]
struct Layer {
    self_attn: Attention,
    norm1: LayerNorm,
    token_to_image: Attention,
    norm2: LayerNorm,
    mlp: MlpBlock,
    norm3: LayerNorm,
    image_to_token: Attention,
    norm4: LayerNorm,
    /// In the first layer tokens are what their positions are.
    first: bool,
}

impl Layer {
    fn load(size: usize, heads: usize, inner: usize, first: bool, vb: VarBuilder) -> Result<Self> {
        let norm = |name| layer_norm(size, EPS, vb.pp(name));
        let attention = |name, share| Attention::load(size, heads, share, vb.pp(name));
        Ok(Self {
            self_attn: attention("self_attn", 1)?,
            norm1: norm("norm1")?,
            token_to_image: attention("cross_attn_token_to_image", 2)?,
            norm2: norm("norm2")?,
            mlp: MlpBlock::new(size, inner, Activation::Relu, vb.pp("mlp"))?,
            norm3: norm("norm3")?,
            image_to_token: attention("cross_attn_image_to_token", 2)?,
            norm4: norm("norm4")?,
            first,
        })
    }

    /// Tokens and the image's embeddings, each with its positions.
    fn forward(
        &self,
        [tokens, token_positions]: [&Tensor; 2],
        [places, place_positions]: [&Tensor; 2],
    ) -> Result<(Tensor, Tensor)> {
        let tokens = if self.first {
            self.self_attn.forward(tokens, tokens, tokens)?
        } else {
            let q = (tokens + token_positions)?;
            (tokens + self.self_attn.forward(&q, &q, tokens)?)?
        };
        let tokens = self.norm1.forward(&tokens)?;

        let k = places.broadcast_add(place_positions)?;
        let q = (&tokens + token_positions)?;
        let seen = self.token_to_image.forward(&q, &k, places)?;
        let tokens = self.norm2.forward(&(tokens + seen)?)?;

        let tokens = (&tokens + self.mlp.forward(&tokens)?)?;
        let tokens = self.norm3.forward(&tokens)?;

        let q = (&tokens + token_positions)?;
        let seen = self.image_to_token.forward(&k, &q, &tokens)?;
        let places = self.norm4.forward(&(places + seen)?)?;
        Ok((tokens, places))
    }
}

/// Layers of attention in both directions.
#[derive(Debug)]
pub struct TwoWayTransformer {
    layers: Vec<Layer>,
    last: Attention,
    norm: LayerNorm,
}

impl TwoWayTransformer {
    /// Loads `depth` layers `layers.N`, `final_attn_token_to_image` and `norm_final_attn`. Attention between tokens and image has heads
    /// of half the size.
    ///
    /// # Errors
    /// `num_heads` does not divide half of `embedding_dim`, or a weight is missing or has another shape.
    pub fn new(
        depth: usize,
        embedding_dim: usize,
        num_heads: usize,
        mlp_dim: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        let layer = |i| {
            let vb = vb.pp("layers").pp(i);
            Layer::load(embedding_dim, num_heads, mlp_dim, i == 0, vb)
        };
        let vb_last = vb.pp("final_attn_token_to_image");
        Ok(Self {
            layers: (0..depth).map(layer).collect::<Result<_>>()?,
            last: Attention::load(embedding_dim, num_heads, 2, vb_last)?,
            norm: layer_norm(embedding_dim, EPS, vb.pp("norm_final_attn"))?,
        })
    }

    /// The tokens, (batch, tokens, embedding_dim), and the image's embeddings, (batch, height * width, embedding_dim), after all layers.
    ///
    /// `image_embedding` and its positions `image_pe` are (batch, embedding_dim, height, width); one row of positions may be shared by all.
    /// `point_embedding` is (batch, tokens, embedding_dim).
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        image_embedding: &Tensor,
        image_pe: &Tensor,
        point_embedding: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let as_tokens = |xs: &Tensor| xs.flatten_from(2)?.transpose(1, 2)?.contiguous();
        let positions = as_tokens(image_pe)?;
        let (mut tokens, mut places) = (point_embedding.clone(), as_tokens(image_embedding)?);
        for layer in &self.layers {
            (tokens, places) = layer.forward([&tokens, point_embedding], [&places, &positions])?;
        }
        let q = (&tokens + point_embedding)?;
        let k = places.broadcast_add(&positions)?;
        let seen = self.last.forward(&q, &k, &places)?;
        Ok((self.norm.forward(&(tokens + seen)?)?, places))
    }
}
