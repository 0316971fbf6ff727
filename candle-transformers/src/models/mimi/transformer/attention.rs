//! Attention with a cache of the keys and values of earlier pieces.

use std::sync::Arc;

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::kv_cache::RotatingKvCache;
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::rotary_emb::{rope, rope_heads};
use candle_nn::{Linear, VarBuilder};

use super::{linear, Config};

/// Rotary position embeddings, which rotate element `i` of a head with `i + head_dim / 2`.
#[derive(Debug, Clone)]
pub struct RotaryEmbedding {
    /// (positions, head_dim / 2), f32.
    cos: Tensor,
    sin: Tensor,
    /// The angle per position of each pair.
    rates: Vec<f32>,
}

/// Cosines and sines of `len` positions from `start` on.
fn tables(rates: &[f32], start: usize, len: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let angles = (start..start + len).flat_map(|position| {
        let position = position as f32;
        rates.iter().map(move |rate| position * rate)
    });
    let angles = Tensor::from_vec(angles.collect(), (len, rates.len()), device)?;
    Ok((angles.cos()?, angles.sin()?))
}

impl RotaryEmbedding {
    /// A rotation of heads of `dim` elements, with the base `theta`. Positions below `max_seq_len` are computed now, others on demand.
    ///
    /// # Errors
    /// `dim` is odd, or the device fails.
    pub fn new(dim: usize, max_seq_len: usize, theta: f32, dev: &Device) -> Result<Self> {
        if !dim.is_multiple_of(2) || dim == 0 {
            bail!("mimi: the size of a rotary head is {dim}; it must be even")
        }
        let rate = |i| 1. / theta.powf((2 * i) as f32 / dim as f32);
        let rates: Vec<f32> = (0..dim / 2).map(rate).collect();
        let (cos, sin) = tables(&rates, 0, max_seq_len, dev)?;
        Ok(Self { cos, sin, rates })
    }

    /// Cosines and sines of `len` positions from `start` on, in the dtype of `xs`.
    fn rows(&self, start: usize, len: usize, xs: &Tensor) -> Result<(Tensor, Tensor)> {
        let (cos, sin) = if start + len <= self.cos.dim(0)? {
            (
                self.cos.narrow(0, start, len)?,
                self.sin.narrow(0, start, len)?,
            )
        } else {
            tables(&self.rates, start, len, self.cos.device())?
        };
        Ok((cos.to_dtype(xs.dtype())?, sin.to_dtype(xs.dtype())?))
    }

    /// Turns `qk` (batch, heads, time, head_dim), whose first position is `seqlen_offset`.
    ///
    /// # Errors
    /// It has another shape, or is not of floats.
    pub fn apply_rotary_emb(&self, qk: &Tensor, seqlen_offset: usize) -> Result<Tensor> {
        let (_, _, len, _) = qk.dims4()?;
        let (cos, sin) = self.rows(seqlen_offset, len, qk)?;
        rope(qk, &cos, &sin)
    }
}

/// The keys that a query sees.
#[derive(Clone, Copy)]
pub(super) enum Seen<'a> {
    /// Its own and those before it in the window.
    Window,
    /// All that are there, but for those that are 1 in (queries, keys).
    All(Option<&'a Tensor>),
}

/// 0 where a mask (queries, keys) is 0, -infinity elsewhere.
fn bias(mask: &Tensor) -> Result<Tensor> {
    let zeros = Tensor::zeros(mask.shape(), DType::F32, mask.device())?;
    let hidden = (zeros.ones_like()? * f64::NEG_INFINITY)?;
    mask.where_cond(&hidden, &zeros)
}

/// The heads of attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    queries: usize,
    keys: usize,
    pub(super) dim: usize,
}

impl Heads {
    pub(super) fn of(cfg: &Config) -> Result<Self> {
        let (model, heads, repeat) = (cfg.d_model, cfg.num_heads, cfg.kv_repeat);
        if model == 0 || model.checked_rem(heads) != Some(0) || heads.checked_rem(repeat) != Some(0)
        {
            bail!(
                "mimi: num_heads {heads} must divide d_model {model}, and kv_repeat {repeat} must divide num_heads"
            )
        }
        Ok(Self {
            queries: heads,
            keys: heads / repeat,
            dim: model / heads,
        })
    }

    fn scale(&self) -> f32 {
        (self.dim as f32).powf(-0.5)
    }

    /// (batch, time, dim of all heads) as (batch, heads, time, dim).
    fn split(&self, xs: &Tensor) -> Result<Tensor> {
        let (batch, time, all) = xs.dims3()?;
        xs.reshape((batch, time, all / self.dim, self.dim))?
            .transpose(1, 2)
    }

    fn join(&self, xs: &Tensor) -> Result<Tensor> {
        xs.transpose(1, 2)?.flatten_from(2)
    }
}

/// Keys and values of earlier pieces, the oldest first: (batch, heads, time, dim) each.
#[derive(Debug, Clone)]
struct Past {
    keys: Tensor,
    values: Tensor,
}

impl Past {
    /// Appends those of a new piece.
    fn joined(past: &Option<Self>, keys: Tensor, values: Tensor) -> Result<Self> {
        Ok(match past {
            Some(past) => Self {
                keys: Tensor::cat(&[&past.keys, &keys], 2)?,
                values: Tensor::cat(&[&past.values, &values], 2)?,
            },
            None => Self { keys, values },
        })
    }

    /// The last `count`; `None` if that is 0.
    fn last(&self, count: usize) -> Result<Option<Self>> {
        let len = self.keys.dim(2)?;
        let count = count.min(len);
        let cut = |xs: &Tensor| {
            let last = xs.narrow(2, len - count, count)?;
            // A view would keep all of a long piece in memory.
            if len > 2 * count {
                last.contiguous()
            } else {
                Ok(last)
            }
        };
        match count {
            0 => Ok(None),
            _ => Ok(Some(Self {
                keys: cut(&self.keys)?,
                values: cut(&self.values)?,
            })),
        }
    }
}

/// Attention over a window of the last positions.
#[derive(Debug, Clone)]
pub struct StreamingMultiheadAttention {
    /// Queries, keys and values in one product.
    qkv: Linear,
    out: Linear,
    heads: Heads,
    /// Positions that a query sees, its own included.
    window: usize,
    rope: Option<Arc<RotaryEmbedding>>,
    past: Option<Past>,
    position: usize,
}

impl StreamingMultiheadAttention {
    /// Loads `q_proj`, `k_proj`, `v_proj` and `o_proj`; `rope` is [`None`] where positions are not rotated.
    ///
    /// # Errors
    /// Heads do not divide sizes, the context is 0, or a tensor is missing or has another shape.
    pub fn new(rope: &Option<Arc<RotaryEmbedding>>, cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let heads = Heads::of(cfg)?;
        if cfg.context == 0 {
            bail!("mimi: the context must be at least 1 position, not 0")
        }
        let (model, keys) = (cfg.d_model, heads.keys * heads.dim);
        let parts = [("q_proj", model), ("k_proj", keys), ("v_proj", keys)];
        let parts = parts.map(|(name, size)| linear(model, size, cfg.bias_attn, vb.pp(name)));
        let parts: Vec<Linear> = parts.into_iter().collect::<Result<_>>()?;
        let weights: Vec<_> = parts.iter().map(Linear::weight).collect();
        let biases: Vec<_> = parts.iter().filter_map(Linear::bias).collect();
        let bias = cfg.bias_attn.then(|| Tensor::cat(&biases, 0)).transpose()?;
        Ok(Self {
            qkv: Linear::new(Tensor::cat(&weights, 0)?, bias),
            out: linear(model, model, cfg.bias_attn, vb.pp("o_proj"))?,
            heads,
            window: cfg.context,
            rope: rope.clone(),
            past: None,
            position: 0,
        })
    }

    /// Attention of the next positions, (batch, time, `d_model`), to earlier ones and to each other. All see all cached keys: those of up
    /// to `context - 1` earlier positions, the oldest first, and those of this piece; `mask` (time, keys) of u8 is 1 where a key is hidden.
    ///
    /// # Errors
    /// The shapes do not go together.
    pub fn forward(&mut self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        self.attend(xs, Seen::All(mask))
    }

    pub(super) fn attend(&mut self, xs: &Tensor, seen: Seen) -> Result<Tensor> {
        let (_, time, _) = xs.dims3()?;
        let (queries, keys) = (self.heads.queries, self.heads.keys);
        let mut qkv = self.heads.split(&self.qkv.forward(xs)?)?;
        if let Some(rope) = &self.rope {
            let (cos, sin) = rope.rows(self.position, time, &qkv)?;
            qkv = rope_heads(&qkv, &cos, &sin, queries + keys)?;
        }
        let q = qkv.narrow(1, 0, queries)?;
        let k = qkv.narrow(1, queries, keys)?;
        let v = qkv.narrow(1, queries + keys, keys)?;
        let all = Past::joined(&self.past, k, v)?;
        let hidden = match seen {
            Seen::All(Some(mask)) => Some(self.bias_of(mask, time, &all)?),
            Seen::All(None) | Seen::Window => None,
        };
        let windowed = matches!(seen, Seen::Window);
        let options = SdpaOptions {
            scale: self.heads.scale(),
            causal: windowed,
            window: windowed.then_some(self.window),
            bias: hidden.as_ref(),
            ..Default::default()
        };
        let ys = sdpa_with(&q, &all.keys, &all.values, &options)?;
        let ys = self.out.forward(&self.heads.join(&ys)?)?;
        self.past = all.last(self.window - 1)?;
        self.position += time;
        Ok(ys)
    }

    fn bias_of(&self, mask: &Tensor, time: usize, all: &Past) -> Result<Tensor> {
        let keys = all.keys.dim(2)?;
        if mask.dims() != [time, keys] {
            bail!(
                "mimi: a mask of {time} positions must be ({time}, {keys}), {} of the keys being of earlier ones, not {:?}",
                keys - time,
                mask.dims()
            )
        }
        bias(mask)
    }

    /// Positions that came so far.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Forgets all positions.
    pub fn reset_kv_cache(&mut self) {
        self.past = None;
        self.position = 0;
    }

    /// Takes keys and values, (batch, heads, time, head_dim), from a cache as those of the positions before the next one.
    pub fn set_kv_cache(&mut self, kv_cache: RotatingKvCache) {
        self.position = kv_cache.current_seq_len();
        let part = |cache: &candle_nn::kv_cache::RotatingCache| {
            let ring = cache.current_data().ok().flatten()?;
            let (len, start) = (ring.dim(2).ok()?, cache.offset());
            if cache.current_seq_len() <= len || start == 0 {
                return Some(ring);
            }
            let parts = [ring.narrow(2, start, len - start), ring.narrow(2, 0, start)];
            let parts: Vec<_> = parts.into_iter().collect::<Result<_>>().ok()?;
            Tensor::cat(&parts, 2).ok()
        };
        let parts = part(kv_cache.k_cache()).zip(part(kv_cache.v_cache()));
        let past = parts.map(|(keys, values)| Past { keys, values });
        self.past = past.and_then(|past| past.last(self.window - 1).ok().flatten());
    }

    /// Takes over what `from` remembers.
    pub(super) fn copy_state(&mut self, from: &Self) {
        self.past = from.past.clone();
        self.position = from.position;
    }
}

/// Attention to another sequence.
#[derive(Debug, Clone)]
pub struct StreamingMultiheadCrossAttention {
    q: Linear,
    /// Keys and values in one product.
    kv: Linear,
    out: Linear,
    heads: Heads,
}

impl StreamingMultiheadCrossAttention {
    /// Loads `in_proj_weight` and `in_proj_bias`, the rows of queries, keys and values in order, and `out_proj`.
    ///
    /// # Errors
    /// Heads do not divide sizes, or a tensor is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let heads = Heads::of(cfg)?;
        let (model, keys) = (cfg.d_model, heads.keys * heads.dim);
        let rows = model + 2 * keys;
        let weight = vb.get((rows, model), "in_proj_weight")?;
        let bias = cfg
            .bias_attn
            .then(|| vb.get(rows, "in_proj_bias"))
            .transpose()?;
        let part = |start, len| {
            let bias = bias.as_ref().map(|bias| bias.narrow(0, start, len));
            Ok::<_, candle_core::Error>(Linear::new(
                weight.narrow(0, start, len)?,
                bias.transpose()?,
            ))
        };
        Ok(Self {
            q: part(0, model)?,
            kv: part(model, 2 * keys)?,
            out: linear(model, model, cfg.bias_attn, vb.pp("out_proj"))?,
            heads,
        })
    }

    /// `xs` (batch, time, `d_model`) as it attends to `ca_src` (batch, other time, `d_model`); `mask` (time, other time) of u8 is 1 where
    /// one is hidden.
    ///
    /// # Errors
    /// The shapes do not go together.
    pub fn forward(&self, xs: &Tensor, ca_src: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let keys = self.heads.keys;
        let q = self.heads.split(&self.q.forward(xs)?)?;
        let kv = self.heads.split(&self.kv.forward(ca_src)?)?;
        let hidden = mask.map(bias).transpose()?;
        let options = SdpaOptions {
            scale: self.heads.scale(),
            bias: hidden.as_ref(),
            ..Default::default()
        };
        let (k, v) = (kv.narrow(1, 0, keys)?, kv.narrow(1, keys, keys)?);
        let ys = sdpa_with(&q, &k, &v, &options)?;
        self.out.forward(&self.heads.join(&ys)?)
    }
}
