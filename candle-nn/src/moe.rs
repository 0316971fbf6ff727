//! Products of a mixture of experts: each token's row is multiplied with the experts that a router chose for it.
//!
//! A router gives every token `topk` experts. Numbered token by token, these pairs are 0 to `tokens * topk`; the functions here take them
//! sorted by expert, as `experts_ids` (the experts, ascending) and `sorted_token_ids` (the numbers of the pairs), both u32 of length
//! `tokens * topk`. The result is in the order of the numbers again.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! # fn main() -> candle_core::Result<()> {
//! let cpu = &Device::Cpu;
//! // Two tokens of two features, three experts with one output each, two experts to a token.
//! let xs = Tensor::new(&[[1f32, 2.], [3., 4.]], cpu)?;
//! let weights = Tensor::new(&[[[1f32, 0.]], [[0., 1.]], [[1., 1.]]], cpu)?;
//! let chosen = Tensor::new(&[2u32, 0, 1, 2], cpu)?;
//! let (experts, pairs) = chosen.sort_last_dim(true)?;
//! let ys = candle_nn::moe::moe_gemm(&xs, &weights, &None, &pairs, &experts, 2, false)?;
//! assert_eq!(ys.to_vec2::<f32>()?, &[[3.], [1.], [4.], [7.]]);
//! # Ok(())
//! # }
//! ```

use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{bail, DType, Result, Tensor};

/// For each pair of a token and an expert, the token's row of `input` times the expert's matrix.
///
/// - `input` is (tokens, k): the same row for all experts of a token. With `topk_weights` it is (tokens * topk, k): a row for each
///   pair, and the products are multiplied by the pairs' weights, which are tokens * topk numbers in any shape.
/// - `weights` is (experts, n, k), of the dtype of `input`.
/// - With `is_prefill` the pairs of an expert are multiplied together, which needs the experts on the host: this waits for the device.
///   Without it nothing waits, and each pair's matrix is copied, which is fine for a few pairs.
///
/// The result is (tokens * topk, n). Gradients flow through it.
///
/// # Errors
/// The shapes or dtypes do not match, or an expert's number is not below `experts`.
pub fn moe_gemm(
    input: &Tensor,
    weights: &Tensor,
    topk_weights: &Option<Tensor>,
    sorted_token_ids: &Tensor,
    experts_ids: &Tensor,
    topk: usize,
    is_prefill: bool,
) -> Result<Tensor> {
    let (experts, n, k) = weights.dims3()?;
    let pairs = Pairs::new(
        input,
        topk_weights,
        sorted_token_ids,
        experts_ids,
        topk,
        (experts, k),
    )?;
    let ys = if is_prefill {
        QMatMul::Tensor(weights.clone()).indexed_moe_forward(&pairs.rows, &pairs.experts)?
    } else {
        let matrices = weights.index_select(&pairs.experts.flatten_all()?, 0)?;
        let rows = pairs.rows.broadcast_as((pairs.tokens, pairs.each, k))?;
        matrices.matmul(&rows.reshape((pairs.tokens * pairs.each, k, 1))?)?
    };
    pairs.weighted(ys.reshape((pairs.tokens * pairs.each, n))?)
}

/// [`moe_gemm`] with the experts' matrices quantized, (experts, n, k). `input` may be of any float dtype and the result is in f32;
/// `dtype` is the one that upstream computes prompts in, of no effect here: rows are multiplied with the blocks as they are.
///
/// # Errors
/// Those of [`moe_gemm`].
#[allow(clippy::too_many_arguments)]
pub fn moe_gemm_gguf(
    input: &Tensor,
    weights: &QTensor,
    topk_weights: &Option<Tensor>,
    sorted_token_ids: &Tensor,
    experts_ids: &Tensor,
    topk: usize,
    _is_prefill: bool,
    _dtype: DType,
) -> Result<Tensor> {
    let (experts, n, k) = weights.shape().dims3()?;
    let pairs = Pairs::new(
        &input.to_dtype(DType::F32)?,
        topk_weights,
        sorted_token_ids,
        experts_ids,
        topk,
        (experts, k),
    )?;
    let ys = weights.indexed_moe_forward(&pairs.rows, &pairs.experts)?;
    pairs.weighted(ys.reshape((pairs.tokens * pairs.each, n))?)
}

/// The pairs of tokens and experts in the tokens' order.
struct Pairs {
    tokens: usize,
    /// Experts of a token.
    each: usize,
    /// The left-hand rows: (tokens, each, k), or (tokens, 1, k).
    rows: Tensor,
    /// (tokens, each)
    experts: Tensor,
    /// A number for each pair, (tokens * each, 1).
    weights: Option<Tensor>,
}

impl Pairs {
    fn new(
        input: &Tensor,
        topk_weights: &Option<Tensor>,
        sorted_token_ids: &Tensor,
        experts_ids: &Tensor,
        topk: usize,
        (experts, k): (usize, usize),
    ) -> Result<Self> {
        let (rows, width) = input.dims2()?;
        if width != k {
            bail!(
                "moe: the input {:?} has rows of {width}, but the {experts} experts expect {k}",
                input.dims()
            )
        }
        let per_pair = topk_weights.is_some();
        if topk == 0 || per_pair && !rows.is_multiple_of(topk) {
            bail!("moe: {rows} rows are not a multiple of {topk} experts per token")
        }
        let tokens = if per_pair { rows / topk } else { rows };
        let pairs = tokens * topk;
        for (what, ids) in [("pairs", sorted_token_ids), ("experts", experts_ids)] {
            if ids.elem_count() != pairs || ids.dtype() != DType::U32 {
                bail!(
                    "moe: the ids of the {what} are {:?} of {}; they must be {pairs} of {}",
                    ids.dims(),
                    ids.dtype().as_str(),
                    DType::U32.as_str()
                )
            }
        }
        let weights = match topk_weights {
            Some(weights) if weights.elem_count() != pairs => {
                bail!(
                    "moe: {:?} weights for {pairs} pairs of token and expert",
                    weights.dims()
                )
            }
            Some(weights) => Some(weights.reshape((pairs, 1))?),
            None => None,
        };
        // Sorting the pairs' numbers gives the position of each.
        let places = sorted_token_ids.flatten_all()?.arg_sort_last_dim(true)?;
        let experts = experts_ids.flatten_all()?.index_select(&places, 0)?;
        let per_token = if per_pair { topk } else { 1 };
        Ok(Self {
            tokens,
            each: topk,
            rows: input.reshape((tokens, per_token, k))?,
            experts: experts.reshape((tokens, topk))?,
            weights,
        })
    }

    /// The products `ys` (tokens * each, n), multiplied by the pairs' weights.
    fn weighted(&self, ys: Tensor) -> Result<Tensor> {
        match &self.weights {
            None => Ok(ys),
            Some(weights) => ys.broadcast_mul(&weights.to_dtype(ys.dtype())?),
        }
    }
}
