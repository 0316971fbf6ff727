//! SparseMixer's choice of experts: [arXiv 2409.12136](https://arxiv.org/abs/2409.12136). Of inference, where nothing is sampled.

use candle_core::{Result, Tensor, D};
use candle_nn::ops;

/// The `used` best of the experts of each row of `scores`, `(tokens, count)`, and their weights: `(tokens, used)` both. The weight of one is its
/// share of the experts that are not yet chosen and whose score is less than `2 * jitter` of it below the best one's.
pub(super) fn choose(scores: &Tensor, used: usize, jitter: f64) -> Result<(Tensor, Tensor)> {
    let count = scores.dim(D::Minus1)?;
    let numbers = Tensor::arange(0u32, count as u32, scores.device())?.reshape((1, count))?;
    let hidden = Tensor::full(f32::NEG_INFINITY, scores.shape(), scores.device())?;
    let hidden = hidden.to_dtype(scores.dtype())?;
    let (mut left, sizes) = (scores.clone(), scores.abs()?);
    let (mut experts, mut weights) = (Vec::new(), Vec::new());
    for _ in 0..used {
        let best = left.max_keepdim(D::Minus1)?;
        let below = best.broadcast_sub(scores)?;
        let share = (below / sizes.broadcast_maximum(&best)?)?;
        let far = share.gt(2. * jitter)?;
        let near = ops::softmax_last_dim(&far.where_cond(&hidden, &left)?)?;
        let chosen = left.argmax_keepdim(D::Minus1)?;
        weights.push(near.gather(&chosen, D::Minus1)?);
        left = numbers.broadcast_eq(&chosen)?.where_cond(&hidden, &left)?;
        experts.push(chosen);
    }
    let all = |parts: Vec<Tensor>| Tensor::cat(&parts, D::Minus1);
    Ok((all(experts)?, all(weights)?))
}
