//! A layer of the decoder step by step, for those who compare it with another implementation.

use std::collections::HashMap;

use candle_core::{DType, Module, Result, Tensor, D};
use candle_nn::ops::softmax_last_dim;
use candle_nn::rotary_emb::{rope_heads_with, Pairs, Rotation};

use super::positions::as_tensor;
use super::text::{Layer, Sizes};
use crate::blocks::vision::three_axes::{Axes, Position};
use crate::utils::repeat_kv;

/// Results on the way, by name.
pub(super) type Exports = HashMap<String, Tensor>;

/// The position that is exported separately, in long texts.
const EXPORTED: usize = 947;

/// The causal mask of the scores of `t` tokens, (b, 1, t, t).
pub(super) fn causal_mask(b: usize, t: usize, like: &Tensor) -> Result<Tensor> {
    let value = |i: usize| if i % t > i / t { f32::NEG_INFINITY } else { 0. };
    let mask: Vec<f32> = (0..t * t).map(value).collect();
    let mask = Tensor::from_vec(mask, (t, t), like.device())?;
    mask.to_dtype(like.dtype())?
        .expand((b, 1, t, t))?
        .contiguous()
}

/// Adds the results of `layer`, which has been run from `before` to `output`, under names that begin with `layer1_`.
pub(super) fn layer(
    layer: &Layer,
    before: &Tensor,
    output: &Tensor,
    places: &[Position],
    (axes, frequencies): (&Axes, &[f32]),
    exports: &mut Exports,
) -> Result<()> {
    let mut add = |name: &str, value: &Tensor| {
        exports.insert(format!("layer1_{name}"), value.clone());
    };
    let (b, t, _) = before.dims3()?;
    let Sizes {
        heads,
        kv_heads,
        head_dim,
    } = layer.sizes;
    add("layer_input", before);
    let normed = layer.norms[0].forward(before)?;
    add("post_input_layernorm", &normed);

    let by_head = |xs: &Tensor| {
        xs.reshape((b, t, (), head_dim))?
            .transpose(1, 2)?
            .contiguous()
    };
    let [q, k, v] = layer.qkv.forward(&normed)?;
    let (q, k, v) = (by_head(&q)?, by_head(&k)?, by_head(&v)?);
    add("attn_q_pre_rope", &q);
    add("attn_k_pre_rope", &k);
    add("attn_v", &v);

    let (dtype, device) = (before.dtype(), before.device());
    add(
        "attn_rope_position_ids",
        &as_tensor(places, [b, t], device)?,
    );
    let twice = |table: Tensor| Tensor::cat(&[&table, &table], D::Minus1);
    // Each axis for all pairs.
    let mut each = [Vec::new(), Vec::new()];
    for axis in 0..3 {
        let on_axis: Vec<_> = places.iter().map(|place| [place[axis]; 3]).collect();
        let (cos, sin) = axes.angles(&on_axis, b, frequencies, dtype, device)?;
        each[0].push(twice(cos)?);
        each[1].push(twice(sin)?);
    }
    let (cos, sin) = axes.angles(places, b, frequencies, dtype, device)?;
    for (name, each, table) in [("cos", &each[0], &cos), ("sin", &each[1], &sin)] {
        add(&format!("attn_rope_{name}_3d"), &Tensor::stack(each, 0)?);
        let chosen = twice(table.clone())?;
        add(&format!("attn_rope_{name}_after_mrope"), &chosen);
        if t > EXPORTED {
            let one = chosen.narrow(1, EXPORTED, 1)?.squeeze(1)?;
            add(&format!("attn_rope_{name}_pos947"), &one);
        }
    }
    let rotation = Rotation::new(&cos, &sin, Pairs::Halves);
    let q = rope_heads_with(&q, &rotation, heads, 0)?;
    let k = rope_heads_with(&k, &rotation, 0, kv_heads)?;
    add("attn_q_post_rope", &q);
    add("attn_k_post_rope", &k);

    // With those of earlier calls.
    let (k, v) = match layer.kv.contents()? {
        Some(held) => (
            held.narrow(1, 0, kv_heads)?.to_dtype(dtype)?,
            held.narrow(1, kv_heads, kv_heads)?.to_dtype(dtype)?,
        ),
        None => (k, v),
    };
    let repeated = |xs: Tensor| repeat_kv(xs.contiguous()?, heads / kv_heads)?.contiguous();
    let (k, v) = (repeated(k)?, repeated(v)?);
    add("attn_k_repeated", &k);
    add("attn_v_repeated", &v);
    let scores = (q.matmul(&k.t()?)? * (1. / (head_dim as f64).sqrt()))?;
    add(
        "attn_attn_weights_last_row",
        &scores.narrow(2, t - 1, 1)?.contiguous()?,
    );
    let earlier = k.dim(2)? - t;
    let mask = causal_mask(1, t, before)?.pad_with_zeros(3, earlier, 0)?;
    let shares = scores.broadcast_add(&mask)?.to_dtype(DType::F32)?;
    let shares = softmax_last_dim(&shares)?.to_dtype(dtype)?;
    let last = shares.narrow(2, t - 1, 1)?.contiguous()?;
    add("attn_attn_weights_softmax_last_row", &last);
    let ys = shares.matmul(&v)?;
    add("attn_attn_output_pre_transpose", &ys);
    let ys = ys.transpose(1, 2)?.reshape((b, t, heads * head_dim))?;
    let ys = layer.o_proj.forward(&ys)?;
    add("attn_attn_output", &ys);

    let xs = (before + ys)?;
    add("post_attn_residual", &xs);
    let normed = layer.norms[1].forward(&xs)?;
    add("post_attention_layernorm", &normed);
    let [gate, up] = layer.gate_up.forward(&normed)?;
    let (gate, up) = (gate.contiguous()?, up.contiguous()?);
    add("mlp_gate_proj_out", &gate);
    let ones = up.ones_like()?;
    add(
        "mlp_gate_act_out",
        &candle_nn::ops::act_mul(&gate, &ones, layer.activation)?,
    );
    add("mlp_up_proj_out", &up);
    let inner = candle_nn::ops::act_mul(&gate, &up, layer.activation)?;
    add("mlp_gate_up_mul", &inner);
    let ys = layer.down.forward(&inner)?;
    add("mlp_down_proj_out", &ys);
    add("mlp_output", &ys);
    add("layer_output", output);
    Ok(())
}
