//! Attention of frames to those near them, block by block.

use candle_core::{DType, Module, Result, Tensor, D};
use candle_nn::ops::softmax_last_dim;
use candle_nn::{linear_no_bias, Linear, VarBuilder};

use super::config::Gemma4AudioConfig;
use super::parts::ClippedLinear;

/// The longest wave of the relative positions, over 2π.
const MAX_TIMESCALE: f64 = 10_000.;

/// A block of `chunk` frames sees itself, `past` frames before it and `future` behind it; of these, a frame sees as many before and behind
/// it.
#[derive(Debug, Clone)]
pub(super) struct Attention {
    q: ClippedLinear,
    k: ClippedLinear,
    v: ClippedLinear,
    joined: ClippedLinear,
    /// From waves to keys of relative positions.
    relative: Linear,
    /// (past + 1 + future, size): the waves of the positions from `past` before to `future` behind.
    waves: Tensor,
    /// (head_dim): of queries, before the softplus.
    scale: Tensor,
    /// (chunk, context): 1 where a frame sees another.
    near: Tensor,
    heads: usize,
    chunk: usize,
    past: usize,
    future: usize,
    cap: f64,
    unseen: f64,
}

impl Attention {
    /// Loads `{q,k,v}_proj`, `post`, `relative_k_proj` and `per_dim_scale`.
    pub fn load(cfg: &Gemma4AudioConfig, vb: VarBuilder) -> Result<Self> {
        let (size, heads) = (cfg.hidden_size, cfg.conf_num_attention_heads);
        let part = |name| ClippedLinear::load(size, size, vb.pp(name));
        let chunk = cfg.conf_attention_chunk_size;
        let past = cfg.conf_attention_context_left.saturating_sub(1);
        let future = cfg.conf_attention_context_right;
        let context = past + chunk + future;
        let near = (0..chunk * context).map(|i| {
            let (frame, seen) = (i / context, i % context);
            f32::from((frame..=frame + past + future).contains(&seen))
        });
        let near: Vec<f32> = near.collect();
        let waves = waves(past, future, size);
        let waves = Tensor::from_vec(waves, (past + 1 + future, size / 2 * 2), vb.device())?;
        Ok(Self {
            q: part("q_proj")?,
            k: part("k_proj")?,
            v: part("v_proj")?,
            joined: part("post")?,
            relative: linear_no_bias(size, size, vb.pp("relative_k_proj"))?,
            waves: waves.to_dtype(vb.dtype())?,
            scale: vb.get(size / heads, "per_dim_scale")?,
            near: Tensor::from_vec(near, (chunk, context), vb.device())?,
            heads,
            chunk,
            past,
            future,
            cap: cfg.conf_attention_logit_cap,
            unseen: cfg.conf_attention_invalid_logits_value,
        })
    }

    /// From (b, frames, size) to the same shape; `mask`, (b, frames), is 0 where a frame is there to be seen. Scores are f32.
    pub fn forward(&self, xs: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (b, t, size) = xs.dims3()?;
        let head_dim = size / self.heads;
        let part = |linear: &ClippedLinear| {
            let ys = linear.forward(xs)?.to_dtype(DType::F32)?;
            ys.reshape((b, t, self.heads, head_dim))
        };
        let softplus = (self.scale.to_dtype(DType::F32)?.exp()? + 1.)?.log()?;
        let q_scale = 1. / ((head_dim as f64).sqrt() * std::f64::consts::LN_2);
        let k_scale = (1. + std::f64::consts::E).log2();

        let blocks = t.div_ceil(self.chunk);
        let q = part(&self.q)?.broadcast_mul(&(softplus * q_scale)?)?;
        let q = q
            .pad_with_zeros(1, 0, blocks * self.chunk - t)?
            .reshape((b * blocks, self.chunk, self.heads, head_dim))?
            .transpose(1, 2)?
            .contiguous()?;
        let k = self
            .in_context(&(part(&self.k)? * k_scale)?)?
            .transpose(1, 2)?;
        let v = self.in_context(&part(&self.v)?)?.transpose(1, 2)?;

        let scores = q.matmul(&k.transpose(2, 3)?.contiguous()?)?;
        let scores = (scores + self.by_distance(&q)?)?;
        let scores = ((scores / self.cap)?.tanh()? * self.cap)?;
        let there = self.in_context(&mask.eq(0f64)?.to_dtype(DType::F32)?)?;
        let seen = there
            .unsqueeze(1)?
            .unsqueeze(1)?
            .broadcast_mul(&self.near)?;
        let seen = seen.ne(0f64)?.broadcast_as(scores.shape())?.contiguous()?;
        let unseen = Tensor::full(self.unseen as f32, scores.shape(), scores.device())?;
        let shares = softmax_last_dim(&seen.where_cond(&scores, &unseen)?)?;
        let ys = shares.matmul(&v.contiguous()?)?.transpose(1, 2)?;
        let ys = ys
            .reshape((b, blocks * self.chunk, size))?
            .narrow(1, 0, t)?;
        self.joined.forward(&ys.to_dtype(xs.dtype())?)
    }

    /// The keys that each block sees: from (b, frames, ..) to (b * blocks, context, ..), padded with zeros beyond the frames.
    fn in_context(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, t) = (xs.dim(0)?, xs.dim(1)?);
        let blocks = t.div_ceil(self.chunk);
        let context = self.past + self.chunk + self.future;
        let xs = xs.pad_with_zeros(1, self.past, self.future + blocks * self.chunk - t)?;
        let frames = (0..blocks * context).map(|i| (i / context * self.chunk + i % context) as u32);
        let frames = Tensor::from_vec(frames.collect(), blocks * context, xs.device())?;
        let mut shape = vec![b * blocks, context];
        shape.extend(&xs.dims()[2..]);
        xs.index_select(&frames, 1)?.reshape(shape)
    }

    /// Scores of distances alone, (b * blocks, heads, chunk, context), for queries (b * blocks, heads, chunk, head_dim).
    fn by_distance(&self, q: &Tensor) -> Result<Tensor> {
        let (n, heads, chunk, head_dim) = q.dims4()?;
        let distances = self.waves.dim(0)?;
        let keys = self.relative.forward(&self.waves)?.to_dtype(DType::F32)?;
        let keys = keys
            .reshape((distances, heads, head_dim))?
            .permute((1, 2, 0))?
            .contiguous()?;
        let scores = q.broadcast_matmul(&keys)?;
        // Frame i of a block is at its distance from the frames i and on of what the block sees: rows one longer than the context, read as
        // rows of the context, begin one further each.
        let context = self.past + chunk + self.future;
        scores
            .pad_with_zeros(D::Minus1, 0, context + 1 - distances)?
            .reshape((n, heads, chunk * (context + 1)))?
            .narrow(2, 0, chunk * context)?
            .reshape((n, heads, chunk, context))
    }
}

/// Sines and then cosines of the distances from `past` down to `-future`, (past + 1 + future, size) in rows.
fn waves(past: usize, future: usize, size: usize) -> Vec<f32> {
    let half = size / 2;
    let step = MAX_TIMESCALE.ln() / half.saturating_sub(1).max(1) as f64;
    let row = |i: usize| {
        let distance = past as f32 - i as f32;
        let angles = (0..half).map(move |i| distance * (-step * i as f64).exp() as f32);
        angles.clone().map(f32::sin).chain(angles.map(f32::cos))
    };
    (0..past + 1 + future).flat_map(row).collect()
}
