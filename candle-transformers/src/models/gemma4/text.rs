//! The decoder. Most layers have a window; the others have larger heads, a quarter of which is rotated.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::rotary_emb::{HeadNorms, Pairs, Rotation};
use candle_nn::{
    embedding, linear_b, linear_no_bias, rms_norm, Embedding, Linear, RmsNorm, VarBuilder,
};

use super::config::Gemma4TextConfig;
use super::parts::{bare_norm, has};
use super::FAMILY;
use crate::blocks::{
    inverse_frequencies, FeedForward, GatedMlp, GrowingKvCache, MergedLinear, Norm, Projection,
    Residual, Rotary, RotaryPairs, RotaryTables,
};

/// Queries, keys and values.
#[derive(Debug, Clone)]
enum Qkv {
    Apart(MergedLinear<3>),
    /// Values are the keys, before their norm and rotation.
    Shared(MergedLinear<2>),
}

/// Sizes of a kind of layers.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
}

impl Sizes {
    fn new(cfg: &Gemma4TextConfig, layer: usize) -> Self {
        let sliding = cfg.is_sliding(layer);
        let global_kv = cfg.num_global_key_value_heads;
        Self {
            heads: cfg.num_attention_heads,
            kv_heads: if sliding {
                cfg.num_key_value_heads
            } else {
                global_kv.unwrap_or(cfg.num_key_value_heads)
            },
            head_dim: if sliding {
                cfg.head_dim
            } else {
                cfg.global_head_dim
            },
            window: sliding.then(|| cfg.effective_sliding_window()),
        }
    }

    fn check(&self) -> Result<()> {
        let (heads, kv_heads, head_dim) = (self.heads, self.kv_heads, self.head_dim);
        if heads == 0
            || kv_heads == 0
            || heads % kv_heads != 0
            || head_dim == 0
            || head_dim % 2 != 0
        {
            bail!(
                "{FAMILY} config: {heads} query heads over {kv_heads} key heads of size {head_dim}; the first must be a multiple of the \
                 second, and the size even"
            )
        }
        if self.window == Some(0) {
            bail!("{FAMILY} config: sliding_window is 0; it must be at least 1")
        }
        Ok(())
    }
}

#[derive(Debug, Clone)]
struct Layer {
    sizes: Sizes,
    qkv: Qkv,
    head_norms: HeadNorms,
    value_norm: RmsNorm,
    o_proj: Projection,
    mlp: FeedForward,
    /// Before and after attention, before and after the MLP.
    norms: [Norm; 4],
    /// Factor of the layer's result.
    scale: Option<Tensor>,
    kv: GrowingKvCache,
}

impl Layer {
    fn load(cfg: &Gemma4TextConfig, layer: usize, vb: VarBuilder) -> Result<Self> {
        let sizes = Sizes::new(cfg, layer);
        sizes.check()?;
        let Sizes {
            heads,
            kv_heads,
            head_dim,
            window,
        } = sizes;
        let (hidden, inner, eps, bias) = (
            cfg.hidden_size,
            cfg.intermediate_size,
            cfg.rms_norm_eps,
            cfg.attention_bias,
        );
        let (attention, mlp) = (vb.pp("self_attn"), vb.pp("mlp"));
        let part =
            |heads: usize, name| linear_b(hidden, heads * head_dim, bias, attention.pp(name));
        let (q, k) = (part(heads, "q_proj")?, part(kv_heads, "k_proj")?);
        let shared = !attention.makes_tensors() && !attention.contains_tensor("v_proj.weight");
        let qkv = if window.is_some() || !shared {
            Qkv::Apart(MergedLinear::new([q, k, part(kv_heads, "v_proj")?])?)
        } else {
            Qkv::Shared(MergedLinear::new([q, k])?)
        };
        let head_norm = |name| attention.pp(name).get(head_dim, "weight");
        let gate_up = MergedLinear::new([
            linear_no_bias(hidden, inner, mlp.pp("gate_proj"))?,
            linear_no_bias(hidden, inner, mlp.pp("up_proj"))?,
        ])?;
        let down = linear_no_bias(inner, hidden, mlp.pp("down_proj"))?;
        let norm = |name| -> Result<Norm> { Ok(rms_norm(hidden, eps, vb.pp(name))?.into()) };
        Ok(Self {
            sizes,
            qkv,
            head_norms: HeadNorms::new(&head_norm("q_norm")?, &head_norm("k_norm")?, eps)?,
            value_norm: bare_norm(head_dim, eps, &vb)?,
            o_proj: linear_b(heads * head_dim, hidden, bias, attention.pp("o_proj"))?.into(),
            mlp: FeedForward::Gated(GatedMlp::new(
                gate_up,
                down.into(),
                cfg.hidden_activation.try_into()?,
            )),
            norms: [
                norm("input_layernorm")?,
                norm("post_attention_layernorm")?,
                norm("pre_feedforward_layernorm")?,
                norm("post_feedforward_layernorm")?,
            ],
            scale: if has(&vb, "layer_scalar") {
                Some(vb.get(1, "layer_scalar")?)
            } else {
                None
            },
            kv: GrowingKvCache::with_window(cfg.max_position_embeddings, window),
        })
    }

    /// `mask` replaces the window and causal visibility: (b, 1, t, positions), added to the scores.
    fn forward(
        &mut self,
        xs: Residual,
        angles: (&Tensor, &Tensor),
        mask: Option<&Tensor>,
    ) -> Result<Residual> {
        let (xs, normed) = xs.normed(Some(&self.norms[0]))?;
        let ys = self.attend(&normed, angles, mask)?;
        let ys = self.o_proj.forward(&ys)?;
        let xs = xs.add_normed(&self.norms[1], &ys)?;
        let (xs, inner) = self.mlp.inner(xs, Some(&self.norms[2]))?;
        let ys = match self.mlp.output() {
            Some(down) => down.forward(&inner)?,
            None => inner,
        };
        let xs = xs.add_normed(&self.norms[3], &ys)?;
        match &self.scale {
            Some(scale) => {
                let (_, sum) = xs.normed(None)?;
                Ok(Residual::new(sum.broadcast_mul(scale)?))
            }
            None => Ok(xs),
        }
    }

    /// Attention of the heads to the visible positions: (b, t, heads * head_dim).
    fn attend(
        &mut self,
        xs: &Tensor,
        angles: (&Tensor, &Tensor),
        mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let Sizes {
            heads,
            kv_heads,
            head_dim,
            window,
        } = self.sizes;
        let (b, t, _) = xs.dims3()?;
        let (projected, first_value) = match &self.qkv {
            Qkv::Apart(qkv) => (qkv.forward_joined(xs)?, heads + kv_heads),
            Qkv::Shared(qk) => (qk.forward_joined(xs)?, heads),
        };
        let by_head = projected.reshape((b, t, (), head_dim))?.transpose(1, 2)?;
        let values = by_head.narrow(1, first_value, kv_heads)?.contiguous()?;
        let values = self.value_norm.forward(&values)?;
        let qk = by_head.narrow(1, 0, heads + kv_heads)?;
        let qkv = Tensor::cat(&[qk, values], 1)?;
        let rotation = Rotation {
            angles: Some(angles),
            pairs: Pairs::Halves,
            norms: Some(&self.head_norms),
        };
        let (q, kv) = self.kv.append_rotated(&qkv, kv_heads, &rotation, None)?;
        let mask = match mask {
            Some(mask) => {
                // The part of the mask for the held positions: those before the window may have been dropped.
                let (all, held) = (mask.dim(3)?, kv.dim(2)?);
                Some(mask.narrow(3, all - held, held)?.contiguous()?)
            }
            None => None,
        };
        let options = SdpaOptions {
            // The norms of queries and keys replace a scale.
            scale: 1.,
            causal: mask.is_none() && (t > 1 || window.is_some()),
            window: window.filter(|_| mask.is_none()),
            bias: mask.as_ref(),
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

/// A decoder and the state of one sequence. A clone shares the weights but has independent state.
#[derive(Debug, Clone)]
pub struct TextModel {
    tokens: Embedding,
    layers: Vec<Layer>,
    norm: Norm,
    head: Projection,
    /// Tables of the layers without and of those with a window.
    tables: [RotaryTables; 2],
    softcap: Option<f64>,
    hidden: usize,
    positions: usize,
    /// In layers that have one.
    window: usize,
    /// Whether tokens of an image see those after them.
    pictures_see_all: bool,
}

/// Parts of checkpoints that the model does not have.
const UNKNOWN: [(&str, &str); 2] = [
    (
        "embed_tokens_per_layer.weight",
        "embeddings per layer, as E2B and E4B have",
    ),
    ("layers.0.router.proj.weight", "experts, as 26B-A4B has"),
];

impl TextModel {
    /// Loads `embed_tokens`, `layers.N`, `norm`, all of these below `model` if they are there, and `lm_head` unless it is tied.
    ///
    /// # Errors
    /// If the configuration contradicts itself, a weight is missing or has another shape, or the checkpoint has parts that this model does
    /// not have: embeddings per layer (E2B, E4B), experts (26B-A4B).
    pub fn new(cfg: &Gemma4TextConfig, vb: VarBuilder) -> Result<Self> {
        let (hidden, positions) = (cfg.hidden_size, cfg.max_position_embeddings);
        if hidden == 0 || positions == 0 || cfg.vocab_size == 0 {
            bail!(
                "{FAMILY} config: hidden_size {hidden}, max_position_embeddings {positions} and vocab_size {} must be at least 1",
                cfg.vocab_size
            )
        }
        let known = |kind: &String| matches!(kind.as_str(), "sliding_attention" | "full_attention");
        let kinds = &cfg.layer_types;
        if kinds.len() != cfg.num_hidden_layers || !kinds.iter().all(known) {
            bail!(
                "{FAMILY} config: layer_types {kinds:?} for {} layers; expected sliding_attention or full_attention for each",
                cfg.num_hidden_layers
            )
        }
        let both_ways = cfg.use_bidirectional_attention.as_deref();
        if let Some(other) = both_ways.filter(|which| *which != "vision") {
            bail!("{FAMILY} config: use_bidirectional_attention {other:?} is not supported; expected \"vision\"")
        }
        let share = cfg.partial_rotary_factor();
        if !(0. ..=1.).contains(&share) {
            bail!("{FAMILY} config: partial_rotary_factor {share} is out of range; expected 0 to 1")
        }
        let below = vb.pp("model");
        let inner = if vb.makes_tensors() || below.contains_tensor("embed_tokens.weight") {
            below
        } else {
            vb.clone()
        };
        if let Some((_, what)) = UNKNOWN.iter().find(|(name, _)| has(&inner, name)) {
            bail!("{FAMILY}: the checkpoint has {what}; that is not supported")
        }
        let tokens = embedding(cfg.vocab_size, hidden, inner.pp("embed_tokens"))?;
        let head = if cfg.tie_word_embeddings {
            Linear::new(tokens.embeddings().clone(), None)
        } else {
            linear_no_bias(hidden, cfg.vocab_size, vb.pp("lm_head"))?
        };
        let layers = (0..kinds.len()).map(|i| Layer::load(cfg, i, inner.pp("layers").pp(i)));
        let tables =
            |rotary: Rotary| RotaryTables::new(&rotary, positions, vb.dtype(), vb.device());
        let local = Rotary::new(
            RotaryPairs::Halves,
            cfg.rope_local_base_freq(),
            cfg.head_dim,
        );
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            norm: rms_norm(hidden, cfg.rms_norm_eps, inner.pp("norm"))?.into(),
            tokens,
            head: head.into(),
            tables: [tables(proportional(cfg)), tables(local)],
            softcap: cfg.final_logit_softcapping,
            hidden,
            positions,
            window: cfg.effective_sliding_window(),
            pictures_see_all: both_ways == Some("vision"),
        })
    }

    /// The embeddings of token ids, (b, t), times the root of their size: (b, t, hidden_size).
    ///
    /// # Errors
    /// If the ids are not integers, or one is outside the vocabulary (where the device can tell).
    pub fn embed_tokens(&self, input_ids: &Tensor) -> Result<Tensor> {
        self.tokens.forward(input_ids)? * (self.hidden as f64).sqrt()
    }

    /// The logits of what follows the last of the token ids, (b, 1, vocab) in the model's dtype, for ids (b, t) at the positions from
    /// `seqlen_offset` on; at 0 a new sequence begins.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input_ids: &Tensor, seqlen_offset: usize) -> Result<Tensor> {
        let (b, t) = input_ids.dims2()?;
        let xs = self.embed_tokens(input_ids)?;
        self.forward_embeds(&xs, seqlen_offset, b, t)
    }

    /// As [`forward`](Self::forward), from scaled embeddings, (batch_size, seq_len, hidden_size).
    ///
    /// # Errors
    /// As [`forward`](Self::forward); if the embeddings have another shape.
    pub fn forward_embeds(
        &mut self,
        xs: &Tensor,
        seqlen_offset: usize,
        batch_size: usize,
        seq_len: usize,
    ) -> Result<Tensor> {
        self.forward_pictures(xs, seqlen_offset, [batch_size, seq_len], &[])
    }

    /// As [`forward_embeds`](Self::forward_embeds), with the tokens of images, from where to where in each row: in models that say so
    /// they see those of their image that are after them too, in layers with a window.
    pub(super) fn forward_pictures(
        &mut self,
        xs: &Tensor,
        seqlen_offset: usize,
        [batch_size, seq_len]: [usize; 2],
        pictures: &[Vec<(usize, usize)>],
    ) -> Result<Tensor> {
        if xs.dims() != [batch_size, seq_len, self.hidden] || batch_size * seq_len == 0 {
            bail!(
                "{FAMILY}: embeddings of {:?}; they must be ({batch_size}, {seq_len}, {}) with at least one token",
                xs.dims(),
                self.hidden
            )
        }
        let end = seqlen_offset.saturating_add(seq_len);
        if end > self.positions {
            bail!(
                "{FAMILY}: {end} tokens ({seq_len} from position {seqlen_offset}) exceed the model's max_position_embeddings \
                 of {}; shorten the prompt or generate less",
                self.positions
            )
        }
        if seqlen_offset == 0 {
            self.clear_kv_cache();
        }
        let [global, local] = &self.tables;
        let global = global.rows(seqlen_offset, seq_len)?;
        let local = local.rows(seqlen_offset, seq_len)?;
        let mask = if self.pictures_see_all && pictures.iter().any(|row| !row.is_empty()) {
            Some(picture_mask(pictures, seqlen_offset, self.window, xs)?)
        } else {
            None
        };
        let mut xs = Residual::new(xs.clone());
        for layer in &mut self.layers {
            let ((cos, sin), mask) = match layer.sizes.window {
                Some(_) => (&local, mask.as_ref()),
                None => (&global, None),
            };
            xs = layer.forward(xs, (cos, sin), mask)?;
        }
        let last = xs.last_position()?;
        let (_, logits) = last.project(Some(&self.norm), &self.head)?;
        match self.softcap {
            Some(cap) => (logits / cap)?.tanh()? * cap,
            None => Ok(logits),
        }
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.kv.reset());
    }
}

/// The mask of the scores of `xs`, (b, t, ..), which are at the positions from `offset` on: (b, 1, t, offset + t). A token sees itself,
/// earlier tokens of its window, and those of its image.
fn picture_mask(
    pictures: &[Vec<(usize, usize)>],
    offset: usize,
    window: usize,
    xs: &Tensor,
) -> Result<Tensor> {
    let (b, t, _) = xs.dims3()?;
    let all = offset + t;
    let mut mask = vec![f32::NEG_INFINITY; b * t * all];
    for (row, mask) in mask.chunks_exact_mut(t * all).enumerate() {
        let pictures = pictures.get(row).map_or(&[][..], Vec::as_slice);
        for (i, seen) in mask.chunks_exact_mut(all).enumerate() {
            let picture = pictures
                .iter()
                .find(|(start, end)| (*start..*end).contains(&i));
            let end = picture.map_or(i + 1, |(_, end)| *end);
            let first = (offset + i + 1).saturating_sub(window);
            seen[first..offset + end].fill(0.);
        }
    }
    Tensor::from_vec(mask, (b, 1, t, all), xs.device())?.to_dtype(xs.dtype())
}

/// The rotation of layers without a window: the first pairs of a head rotate as if all did, the others do not.
fn proportional(cfg: &Gemma4TextConfig) -> Rotary {
    let head_dim = cfg.global_head_dim;
    let turned = (cfg.partial_rotary_factor() * head_dim as f64 / 2.) as usize;
    let mut frequencies = inverse_frequencies(cfg.rope_global_base_freq(), head_dim);
    frequencies.iter_mut().skip(turned).for_each(|f| *f = 0.);
    Rotary {
        pairs: RotaryPairs::Halves,
        frequencies,
        factor: 1.,
        long: None,
        dynamic: None,
        axes: None,
    }
}
