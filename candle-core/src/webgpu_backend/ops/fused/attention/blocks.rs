//! Attention as matrix products, over blocks of queries, with a causal softmax in between: for cooperative matrices.

use super::super::super::{copy2d, matmul};
use super::super::softmax::{softmax, Attention};
use super::{Call, Sizes};
use crate::backend::BackendStorage;
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result, Shape};

/// Maximum number of bytes of a block's scores.
const SCORE_BYTES: usize = 256 << 20;
/// Minimum number of queries in a block; fewer leave cooperative matrices mostly empty.
const LEAST_BLOCK: usize = 64;

/// Number of queries in a block.
fn block(sizes: &Sizes) -> usize {
    SCORE_BYTES / (sizes.batch * sizes.heads * sizes.keys * 4)
}

/// Whether the scores of a block large enough for cooperative matrices stay within the limit.
pub(super) fn fits(sizes: &Sizes) -> bool {
    block(sizes).min(sizes.queries) >= LEAST_BLOCK
}

impl Call<'_> {
    pub(super) fn blocks(&self) -> Result<WebGpuStorage> {
        let [q, k, v] = self.inputs;
        let params = self.params;
        let Sizes {
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            head_dim,
            v_dim,
        } = self.sizes;
        let causal = self.rules.causal;
        let group = self.sizes.group();
        let device = q.0.device();
        let dtype = q.0.dtype();
        let mut dst = device.alloc(batch * heads * queries * v_dim, dtype, "sdpa")?;
        let block = block(&self.sizes).clamp(1, queries);
        // Heads that share keys become a dimension in which k and v have stride 0.
        let grouped = |l: &Layout, seq: usize| {
            let s = l.stride();
            Layout::new(
                Shape::from((batch, kv_heads, group, seq, head_dim)),
                vec![s[0], s[1] * group, s[1], s[2], s[3]],
                l.start_offset(),
            )
        };
        let shared = |l: &Layout, dim: usize| {
            let s = l.stride();
            Layout::new(
                Shape::from((batch, kv_heads, group, keys, dim)),
                vec![s[0], s[1], 0, s[2], s[3]],
                l.start_offset(),
            )
        };
        let (k_l, v_l) = (shared(k.1, head_dim).transpose(3, 4)?, shared(v.1, v_dim));
        for start in (0..queries).step_by(block) {
            let count = block.min(queries - start);
            // A causal block only sees the keys up to its last query.
            let seen = if causal {
                keys - queries + start + count
            } else {
                keys
            };
            let q_l = grouped(&q.1.narrow(2, start, count)?, count);
            let (k_l, v_l) = (k_l.narrow(4, 0, seen)?, v_l.narrow(3, 0, seen)?);
            let heads_all = batch * heads;
            let scores = matmul::product(
                q.0,
                k.0,
                (heads_all, count, seen, head_dim),
                &q_l,
                &k_l,
                DType::F32,
            )?;
            let attention = Attention {
                scale: params.scale,
                softcap: params.softcap.unwrap_or(0.),
                causal,
            };
            let scores_l = Layout::contiguous((batch, kv_heads, group, count, seen));
            let weights = softmax(&scores, &scores_l, &attention, dtype)?;
            let out = matmul::product(
                &weights,
                v.0,
                (heads_all, count, v_dim, seen),
                &scores_l,
                &v_l,
                dtype,
            )?;
            if count == queries {
                return Ok(out);
            }
            let rows = copy2d::Rows {
                d1: heads_all,
                d2: count * v_dim,
                src_stride: count * v_dim,
                dst_stride: queries * v_dim,
                src_offset: 0,
                dst_offset: start * v_dim,
            };
            copy2d::copy2d(&out, &mut dst, rows)?;
        }
        Ok(dst)
    }
}
