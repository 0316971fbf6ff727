//! The sizes of one call, checked against each other.

use super::{Rules, NAME};
use crate::ops::{check_dtypes, compute_dtype};
use candle_core::{bail, DType, Error, Result, Shape, Tensor};

#[derive(Debug, Clone, Copy)]
pub(super) struct Dims {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) head_dim: usize,
    pub(super) v_dim: usize,
    /// That of the queries and of the result.
    pub(super) dtype: DType,
}

impl Dims {
    pub(super) fn check(q: &Tensor, k: &Tensor, v: &Tensor, rules: &Rules<'_>) -> Result<Self> {
        check_dtypes(NAME, &[k, v])?;
        let (dtype, kv_dtype) = (q.dtype(), k.dtype());
        let narrower = matches!(
            (dtype, kv_dtype),
            (DType::F32, DType::F16 | DType::BF16) | (DType::BF16, DType::F16)
        );
        if !narrower {
            check_dtypes(NAME, &[q, k])?;
        }
        let (batch, heads, queries, head_dim) = q.dims4()?;
        let (k_batch, kv_heads, keys, k_dim) = k.dims4()?;
        let (v_batch, v_heads, v_keys, v_dim) = v.dims4()?;
        if (k_batch, k_dim) != (batch, head_dim) {
            return Err(mismatch(q, k));
        }
        if (v_batch, v_heads, v_keys) != (k_batch, kv_heads, keys) {
            return Err(mismatch(k, v));
        }
        if kv_heads == 0 && heads > 0 || kv_heads > 0 && heads % kv_heads != 0 {
            bail!("sdpa: {heads} query heads cannot be grouped over {kv_heads} key heads")
        }
        let dims = Self {
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            head_dim,
            v_dim,
            dtype,
        };
        dims.check_rules(rules)?;
        let tensors = [
            rules.bias,
            rules.slopes,
            rules.sinks,
            rules.starts,
            rules.lens,
        ];
        for other in [k, v].into_iter().chain(tensors.into_iter().flatten()) {
            if !other.device().same_device(q.device()) {
                return Err(Error::DeviceMismatchBinaryOp {
                    lhs: q.device().location(),
                    rhs: other.device().location(),
                    op: NAME,
                }
                .bt());
            }
        }
        if keys == 0 && !dims.is_empty() {
            bail!("sdpa: no keys to attend to: k is {:?}", k.shape())
        }
        Ok(dims)
    }

    fn check_rules(&self, rules: &Rules<'_>) -> Result<()> {
        if let Some(cap) = rules.softcap.filter(|cap| *cap <= 0. || !cap.is_finite()) {
            bail!("sdpa: softcapping is {cap}; it must be positive and finite")
        }
        if let Some(bias) = rules.bias {
            let scores = Shape::from((self.batch, self.heads, self.queries, self.keys));
            if bias.shape().broadcast_shape_binary_op(&scores, NAME)? != scores {
                return Err(Error::ShapeMismatchBinaryOp {
                    lhs: scores,
                    rhs: bias.shape().clone(),
                    op: "sdpa-mask",
                }
                .bt());
            }
            check_dtypes("sdpa-mask", &[bias])?;
        }
        let float = compute_dtype(self.dtype);
        let vectors = [
            (
                "slopes",
                rules.slopes,
                self.heads,
                "heads",
                [DType::F32, float],
            ),
            (
                "sinks",
                rules.sinks,
                self.heads,
                "heads",
                [DType::F32, float],
            ),
            ("starts", rules.starts, self.batch, "batch", [DType::U32; 2]),
            ("lens", rules.lens, self.batch, "batch", [DType::U32; 2]),
        ];
        for (name, vector, len, of, dtypes) in vectors {
            let Some(vector) = vector else { continue };
            if vector.dims() != [len] || !dtypes.contains(&vector.dtype()) {
                bail!(
                    "sdpa: {name} are {:?} of {}; they must be ({of}) = [{len}] of {}",
                    vector.dims(),
                    vector.dtype().as_str(),
                    dtypes[0].as_str()
                )
            }
        }
        Ok(())
    }

    pub(super) fn output(&self) -> (usize, usize, usize, usize) {
        (self.batch, self.heads, self.queries, self.v_dim)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batch * self.heads * self.queries * self.v_dim == 0
    }
}

fn mismatch(lhs: &Tensor, rhs: &Tensor) -> Error {
    Error::ShapeMismatchBinaryOp {
        lhs: lhs.shape().clone(),
        rhs: rhs.shape().clone(),
        op: NAME,
    }
    .bt()
}
