//! The decoder: ERNIE-4.5's, a Llama with positions on three axes.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::ops::{sdpa_with, GatedActivation, SdpaOptions};
use candle_nn::rotary_emb::{Pairs, Rotation};
use candle_nn::{embedding, linear_b, linear_no_bias, rms_norm, Embedding, Linear, VarBuilder};

use super::config::TextConfig;
use super::text_export::{self, Exports};
use super::FAMILY;
use crate::blocks::vision::three_axes::{Axes, Position};
use crate::blocks::{
    inverse_frequencies, GrowingKvCache, MergedLinear, Norm, Projection, Residual,
};

/// Sizes of attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub sizes: Sizes,
    /// Before attention and before the MLP.
    pub norms: [Norm; 2],
    pub qkv: MergedLinear<3>,
    pub o_proj: Projection,
    pub gate_up: MergedLinear<2>,
    pub down: Projection,
    pub activation: GatedActivation,
    pub kv: GrowingKvCache,
}

impl Layer {
    fn load(cfg: &TextConfig, vb: VarBuilder) -> Result<Self> {
        let sizes = Sizes {
            heads: cfg.num_attention_heads,
            kv_heads: cfg.num_key_value_heads,
            head_dim: cfg.head_dim,
        };
        let (hidden, inner, bias) = (cfg.hidden_size, cfg.intermediate_size, cfg.use_bias);
        let (attention, mlp) = (vb.pp("self_attn"), vb.pp("mlp"));
        let part =
            |heads: usize, name| linear_b(hidden, heads * sizes.head_dim, bias, attention.pp(name));
        let qkv = [
            part(sizes.heads, "q_proj")?,
            part(sizes.kv_heads, "k_proj")?,
            part(sizes.kv_heads, "v_proj")?,
        ];
        let gate_up = [
            linear_b(hidden, inner, bias, mlp.pp("gate_proj"))?,
            linear_b(hidden, inner, bias, mlp.pp("up_proj"))?,
        ];
        let o_proj = linear_b(
            sizes.heads * sizes.head_dim,
            hidden,
            bias,
            attention.pp("o_proj"),
        )?;
        let norm =
            |name| -> Result<Norm> { Ok(rms_norm(hidden, cfg.rms_norm_eps, vb.pp(name))?.into()) };
        Ok(Self {
            sizes,
            norms: [norm("input_layernorm")?, norm("post_attention_layernorm")?],
            qkv: MergedLinear::new(qkv)?,
            o_proj: o_proj.into(),
            gate_up: MergedLinear::new(gate_up)?,
            down: linear_b(inner, hidden, bias, mlp.pp("down_proj"))?.into(),
            activation: cfg.hidden_act.try_into()?,
            kv: GrowingKvCache::new(cfg.max_position_embeddings),
        })
    }

    fn forward(&mut self, xs: Residual, angles: &(Tensor, Tensor)) -> Result<Residual> {
        let (xs, projected) = match self.qkv.merged() {
            Some(qkv) => xs.project(Some(&self.norms[0]), qkv)?,
            None => {
                let (xs, normed) = xs.normed(Some(&self.norms[0]))?;
                (xs, self.qkv.forward_joined(&normed)?)
            }
        };
        let ys = self.attend(&projected, angles)?;
        let xs = xs.add(&self.o_proj, &ys)?;
        let (xs, inner) = match self.gate_up.merged() {
            Some(gate_up) => xs.project_gated(Some(&self.norms[1]), gate_up, self.activation)?,
            None => {
                let (xs, normed) = xs.normed(Some(&self.norms[1]))?;
                let [gate, up] = self.gate_up.forward(&normed)?;
                (xs, candle_nn::ops::act_mul(&gate, &up, self.activation)?)
            }
        };
        xs.add(&self.down, &inner)
    }

    /// Attention of the projections, (b, t, (heads + 2 kv_heads) * head_dim), to themselves and the cache: (b, t, heads * head_dim).
    fn attend(&mut self, projected: &Tensor, angles: &(Tensor, Tensor)) -> Result<Tensor> {
        let Sizes {
            heads,
            kv_heads,
            head_dim,
        } = self.sizes;
        let (b, t, _) = projected.dims3()?;
        let qkv = projected.reshape((b, t, (), head_dim))?.transpose(1, 2)?;
        let rotation = Rotation::new(&angles.0, &angles.1, Pairs::Halves);
        let (q, kv) = self.kv.append_rotated(&qkv, kv_heads, &rotation, None)?;
        let options = SdpaOptions {
            scale: (1. / (head_dim as f64).sqrt()) as f32,
            causal: t > 1,
            ..SdpaOptions::default()
        };
        let (k, v) = (
            kv.narrow(1, 0, kv_heads)?,
            kv.narrow(1, kv_heads, kv_heads)?,
        );
        let ys = sdpa_with(&q, &k, &v, &options)?;
        ys.transpose(1, 2)?.reshape((b, t, heads * head_dim))
    }
}

/// The decoder and the sequence that it has seen.
#[derive(Debug, Clone)]
pub(super) struct TextModel {
    tokens: Embedding,
    layers: Vec<Layer>,
    norm: Norm,
    head: Projection,
    axes: Axes,
    frequencies: Vec<f32>,
    positions: usize,
}

impl TextModel {
    /// Loads `model.*`, and `lm_head` unless it is tied.
    pub fn new(cfg: &TextConfig, vb: VarBuilder) -> Result<Self> {
        cfg.check()?;
        let axes = Axes::sections(FAMILY, &cfg.mrope_section, cfg.head_dim / 2)?;
        let (inner, hidden) = (vb.pp("model"), cfg.hidden_size);
        let tokens = embedding(cfg.vocab_size, hidden, inner.pp("embed_tokens"))?;
        let head = if cfg.tie_word_embeddings {
            Linear::new(tokens.embeddings().clone(), None)
        } else {
            linear_no_bias(hidden, cfg.vocab_size, vb.pp("lm_head"))?
        };
        let layers = (0..cfg.num_hidden_layers).map(|i| Layer::load(cfg, inner.pp("layers").pp(i)));
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            norm: rms_norm(hidden, cfg.rms_norm_eps, inner.pp("norm"))?.into(),
            tokens,
            head: head.into(),
            axes,
            frequencies: inverse_frequencies(cfg.rope_theta, cfg.head_dim),
            positions: cfg.max_position_embeddings,
        })
    }

    /// From ids (b, t) to (b, t, hidden_size).
    pub fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        self.tokens.forward(ids)
    }

    /// Number of tokens read so far.
    pub fn seen(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.kv.seen())
    }

    /// That `t` more tokens fit.
    pub fn check(&self, t: usize) -> Result<()> {
        let (seen, limit) = (self.seen(), self.positions);
        if t == 0 {
            bail!("{FAMILY}: no tokens; at least one is required")
        }
        if seen + t > limit {
            bail!(
                "{FAMILY}: {} tokens ({t} of them new) exceed the model's max_position_embeddings of {limit}; shorten the prompt or \
                 generate less",
                seen + t
            )
        }
        Ok(())
    }

    fn angles(&self, xs: &Tensor, places: &[Position]) -> Result<(Tensor, Tensor)> {
        let (dtype, device) = (xs.dtype(), xs.device());
        self.axes
            .angles(places, xs.dim(0)?, &self.frequencies, dtype, device)
    }

    /// The logits, (b, vocab), after the last token; `places` are the positions of all, row by row.
    pub fn forward(&mut self, embeds: Tensor, places: &[Position]) -> Result<Tensor> {
        let angles = self.angles(&embeds, places)?;
        let mut xs = Residual::new(embeds);
        for layer in &mut self.layers {
            xs = layer.forward(xs, &angles)?;
        }
        let last = xs.last_position()?;
        let (_, logits) = last.project(Some(&self.norm), &self.head)?;
        logits.squeeze(1)
    }

    /// The logits of all tokens, (b, t, vocab), and results on the way: `causal_mask` of several tokens, `layer0_input`, `layer_N_output`,
    /// those of the second layer, `final_hidden_state` and `logits`.
    pub fn forward_with_export(
        &mut self,
        embeds: Tensor,
        places: &[Position],
    ) -> Result<(Tensor, Exports)> {
        let (b, t, _) = embeds.dims3()?;
        let angles = self.angles(&embeds, places)?;
        let mut exports = Exports::new();
        if t > 1 {
            exports.insert(
                "causal_mask".into(),
                text_export::causal_mask(b, t, &embeds)?,
            );
        }
        exports.insert("layer0_input".into(), embeds.clone());
        let mut xs = Residual::new(embeds);
        for (i, layer) in self.layers.iter_mut().enumerate() {
            let before = match i {
                1 => Some(xs.clone().normed(None)?.1),
                _ => None,
            };
            xs = layer.forward(xs, &angles)?;
            let (new, output) = xs.normed(None)?;
            xs = new;
            if let Some(before) = before {
                let turning = (&self.axes, self.frequencies.as_slice());
                text_export::layer(layer, &before, &output, places, turning, &mut exports)?;
            }
            exports.insert(format!("layer_{i}_output"), output);
        }
        let (_, last) = xs.normed(Some(&self.norm))?;
        let logits = self.head.forward(&last)?;
        exports.insert("final_hidden_state".into(), last);
        exports.insert("logits".into(), logits.clone());
        Ok((logits, exports))
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.kv.reset());
    }
}
