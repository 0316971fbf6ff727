//! The encoder of images: patches of one image see each other, and blocks of them become a token.

use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::ops::{act_mul, sdpa_with, GatedActivation, SdpaOptions};
use candle_nn::rotary_emb::{rope_heads_with, Pairs, Rotation};
use candle_nn::{linear_no_bias, rms_norm, Linear, RmsNorm, VarBuilder};

use super::config::Gemma4VisionConfig;
use super::parts::{bare_norm, ClippedLinear};
use super::FAMILY;
use crate::blocks::inverse_frequencies;
use crate::blocks::vision::patch_grids::cos_sin;
use crate::blocks::vision::Picture;

/// Cosines and sines, (patches, head_dim / 4) each, of columns and of rows.
type Angles = [(Tensor, Tensor); 2];

#[derive(Debug, Clone)]
struct Attention {
    q: ClippedLinear,
    k: ClippedLinear,
    v: ClippedLinear,
    joined: ClippedLinear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    v_norm: RmsNorm,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Attention {
    fn load(cfg: &Gemma4VisionConfig, vb: VarBuilder) -> Result<Self> {
        let (size, head_dim, eps) = (cfg.hidden_size, cfg.head_dim, cfg.rms_norm_eps);
        let (heads, kv_heads) = (cfg.num_attention_heads, cfg.num_key_value_heads);
        let part = |heads: usize, name| ClippedLinear::load(size, heads * head_dim, vb.pp(name));
        Ok(Self {
            q: part(heads, "q_proj")?,
            k: part(kv_heads, "k_proj")?,
            v: part(kv_heads, "v_proj")?,
            joined: ClippedLinear::load(heads * head_dim, size, vb.pp("o_proj"))?,
            q_norm: rms_norm(head_dim, eps, vb.pp("q_norm"))?,
            k_norm: rms_norm(head_dim, eps, vb.pp("k_norm"))?,
            v_norm: bare_norm(head_dim, eps, &vb)?,
            heads,
            kv_heads,
            head_dim,
        })
    }

    /// From (b, patches, hidden_size) to the same shape.
    fn forward(&self, xs: &Tensor, angles: &Angles) -> Result<Tensor> {
        let (b, t, _) = xs.dims3()?;
        let part = |linear: &ClippedLinear, norm: &RmsNorm, heads: usize| {
            let ys = linear.forward(xs)?.reshape((b, t, heads, self.head_dim))?;
            norm.forward(&ys)?.transpose(1, 2)
        };
        let q = turned(&part(&self.q, &self.q_norm, self.heads)?, angles)?;
        let k = turned(&part(&self.k, &self.k_norm, self.kv_heads)?, angles)?;
        let v = part(&self.v, &self.v_norm, self.kv_heads)?;
        let options = SdpaOptions {
            // The norms of queries and keys replace a scale.
            scale: 1.,
            ..SdpaOptions::default()
        };
        let ys = sdpa_with(&q, &k, &v, &options)?;
        let ys = ys
            .transpose(1, 2)?
            .reshape((b, t, self.heads * self.head_dim))?;
        self.joined.forward(&ys)
    }
}

/// Rotates heads, (b, heads, patches, head_dim): the first half by the column and the second by the row.
fn turned(xs: &Tensor, angles: &Angles) -> Result<Tensor> {
    let (_, heads, _, head_dim) = xs.dims4()?;
    let half = |i: usize| {
        let (cos, sin) = &angles[i];
        let part = xs.narrow(3, i * (head_dim / 2), head_dim / 2)?;
        rope_heads_with(&part, &Rotation::new(cos, sin, Pairs::Halves), heads, 0)
    };
    Tensor::cat(&[half(0)?, half(1)?], 3)
}

#[derive(Debug, Clone)]
struct Layer {
    attention: Attention,
    gate: ClippedLinear,
    up: ClippedLinear,
    down: ClippedLinear,
    activation: GatedActivation,
    /// Before and after attention, before and after the MLP.
    norms: [RmsNorm; 4],
}

impl Layer {
    fn load(cfg: &Gemma4VisionConfig, vb: VarBuilder) -> Result<Self> {
        let (size, inner, mlp) = (cfg.hidden_size, cfg.intermediate_size, vb.pp("mlp"));
        let norm = |name| rms_norm(size, cfg.rms_norm_eps, vb.pp(name));
        Ok(Self {
            attention: Attention::load(cfg, vb.pp("self_attn"))?,
            gate: ClippedLinear::load(size, inner, mlp.pp("gate_proj"))?,
            up: ClippedLinear::load(size, inner, mlp.pp("up_proj"))?,
            down: ClippedLinear::load(inner, size, mlp.pp("down_proj"))?,
            activation: cfg.hidden_activation.try_into()?,
            norms: [
                norm("input_layernorm")?,
                norm("post_attention_layernorm")?,
                norm("pre_feedforward_layernorm")?,
                norm("post_feedforward_layernorm")?,
            ],
        })
    }

    fn forward(&self, xs: &Tensor, angles: &Angles) -> Result<Tensor> {
        let [before, after, before_mlp, after_mlp] = &self.norms;
        let ys = self.attention.forward(&before.forward(xs)?, angles)?;
        let xs = (xs + after.forward(&ys)?)?;
        let normed = before_mlp.forward(&xs)?;
        let (gate, up) = (self.gate.forward(&normed)?, self.up.forward(&normed)?);
        let ys = self.down.forward(&act_mul(&gate, &up, self.activation)?)?;
        xs + after_mlp.forward(&ys)?
    }
}

/// The encoder of images.
#[derive(Debug, Clone)]
pub struct VisionTower {
    patches: Linear,
    /// (2, position_embedding_size, hidden_size): of columns and of rows.
    positions: Tensor,
    layers: Vec<Layer>,
    /// The mean and the factor of tokens.
    standard: Option<[Tensor; 2]>,
    cfg: Gemma4VisionConfig,
}

impl VisionTower {
    /// Loads `patch_embedder`, `encoder.layers.N`, and `std_bias` and `std_scale` if the configuration says that they are there. Linear
    /// layers of the encoder may be `NAME.linear` with the bounds `NAME.{input,output}_{min,max}`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Gemma4VisionConfig, vb: VarBuilder) -> Result<Self> {
        let (heads, kv_heads, head_dim) = (
            cfg.num_attention_heads,
            cfg.num_key_value_heads,
            cfg.head_dim,
        );
        if heads == 0
            || kv_heads == 0
            || heads % kv_heads != 0
            || head_dim == 0
            || head_dim % 4 != 0
        {
            bail!(
                "{FAMILY} config: {heads} query heads over {kv_heads} key heads of size {head_dim} in the encoder of pictures; the \
                 first must be a multiple of the second, and the size one of 4"
            )
        }
        let (size, patch, pool) = (cfg.hidden_size, cfg.patch_size, cfg.pooling_kernel_size);
        if size == 0 || patch == 0 || pool == 0 {
            bail!(
                "{FAMILY} config: hidden_size {size}, patch_size {patch} and pooling_kernel_size {pool} must be at least 1"
            )
        }
        let embedder = vb.pp("patch_embedder");
        let table = (2, cfg.position_embedding_size, size);
        let vb_layers = vb.pp("encoder").pp("layers");
        let layers = (0..cfg.num_hidden_layers).map(|i| Layer::load(cfg, vb_layers.pp(i)));
        Ok(Self {
            patches: linear_no_bias(3 * patch * patch, size, embedder.pp("input_proj"))?,
            positions: embedder.get(table, "position_embedding_table")?,
            layers: layers.collect::<Result<_>>()?,
            standard: if cfg.standardize {
                Some([vb.get(size, "std_bias")?, vb.get(size, "std_scale")?])
            } else {
                None
            },
            cfg: cfg.clone(),
        })
    }

    /// The tokens of images, each (1, 3, height, width) or several of one size, of numbers from 0 to 1: (1, tokens, hidden_size), one
    /// image after another and row by row.
    ///
    /// # Errors
    /// If there is no image, or its sides are not multiples of `patch_size * pooling_kernel_size` pixels, or it is too large.
    pub fn forward(&self, pixel_values_list: &[Tensor]) -> Result<Tensor> {
        if pixel_values_list.is_empty() {
            bail!("{FAMILY}: no pictures; at least one is required")
        }
        let tokens = pixel_values_list.iter().map(|xs| self.tokens(xs));
        let tokens = Tensor::cat(&tokens.collect::<Result<Vec<_>>>()?, 0)?;
        let tokens = match &self.standard {
            Some([mean, factor]) => {
                let [mean, factor] = [mean.to_dtype(DType::F32)?, factor.to_dtype(DType::F32)?];
                tokens.broadcast_sub(&mean)?.broadcast_mul(&factor)?
            }
            None => tokens,
        };
        tokens.to_dtype(self.positions.dtype())?.unsqueeze(0)
    }

    /// The tokens of images of one size, (tokens, hidden_size) in f32, as f16 may be too small for them.
    fn tokens(&self, xs: &Tensor) -> Result<Tensor> {
        let (patch, pool) = (self.cfg.patch_size, self.cfg.pooling_kernel_size);
        let picture = Picture {
            multiple: patch * pool,
            ..Picture::any(FAMILY)
        };
        let (b, h, w) = picture.check(xs)?;
        let (rows, columns) = (h / patch, w / patch);
        let most = self.cfg.position_embedding_size;
        if rows.max(columns) > most {
            bail!(
                "{FAMILY}: a picture of {rows} rows and {columns} columns of patches; the model has positions for {most}; resize it"
            )
        }
        let patches = xs
            .to_dtype(self.positions.dtype())?
            .reshape((b, 3, rows, patch, columns, patch))?
            .permute((0, 2, 4, 3, 5, 1))?
            .reshape((b, rows * columns, 3 * patch * patch))?;
        let xs = self.patches.forward(&patches.affine(2., -1.)?)?;
        let size = self.cfg.hidden_size;
        let along = |axis: usize, count| self.positions.get(axis)?.narrow(0, 0, count);
        let of_columns = along(0, columns)?.unsqueeze(0)?;
        let positions = along(1, rows)?.unsqueeze(1)?.broadcast_add(&of_columns)?;
        let positions = positions.reshape((rows * columns, size))?;
        let mut xs = xs.broadcast_add(&positions)?;
        let angles = self.angles([rows, columns], &xs)?;
        for layer in &self.layers {
            xs = layer.forward(&xs, &angles)?;
        }
        let blocks = (b * rows / pool, pool, columns / pool, pool * size);
        let blocks = xs.to_dtype(DType::F32)?.reshape(blocks)?.sum(1)?;
        let blocks = blocks.reshape(((), pool, size))?.sum(1)?;
        blocks * ((size as f64).sqrt() / (pool * pool) as f64)
    }

    fn angles(&self, [rows, columns]: [usize; 2], xs: &Tensor) -> Result<Angles> {
        let frequencies = inverse_frequencies(self.cfg.rope_theta(), self.cfg.head_dim / 2);
        let table = |place: &dyn Fn(usize) -> usize| {
            let angles = (0..rows * columns).flat_map(|i| {
                let place = place(i) as f32;
                frequencies.iter().map(move |frequency| place * frequency)
            });
            let shape = [rows * columns, frequencies.len()];
            cos_sin(angles, &shape, xs.dtype(), xs.device())
        };
        Ok([table(&|i| i % columns)?, table(&|i| i / columns)?])
    }
}
