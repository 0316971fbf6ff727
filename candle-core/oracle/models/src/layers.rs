//! Single layers and functions of `candle-nn`, including those that no model here uses.

use crate::weights::Place;
use candle_core::{DType, Device, Result, Tensor, D};
use candle_nn::attention::{
    flash_attn, flash_attn_varlen_cpu, flash_attn_varlen_unfused, AttnMask,
};
use candle_nn::kv_cache::{
    rope_i_inplace, ConcatKvCache, InterleavedKvCache, KvCache, RawInterleavedKvCache,
    RotatingKvCache, ScatteredCacheBuilder,
};
use candle_nn::{
    batch_norm, conv1d, conv2d, conv_transpose1d, conv_transpose2d, group_norm, gru, layer_norm,
    layer_norm_no_bias, loss, lstm, ops, rms_norm, rotary_emb, Activation, Conv1dConfig,
    Conv2dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig, GRUConfig, LSTMConfig, Module,
    ModuleT, RNN,
};

pub fn recurrent(place: &Place) -> Result<Vec<Tensor>> {
    let xs = place.input("recurrent", (2, 5, 6))?;
    let vb = place.weights("recurrent");
    let long = lstm(6, 8, LSTMConfig::default(), vb.pp("lstm"))?;
    let config = LSTMConfig {
        layer_idx: 1,
        direction: candle_nn::rnn::Direction::Backward,
        ..LSTMConfig::default_no_bias()
    };
    let backward = lstm(6, 8, config, vb.pp("lstm"))?;
    let gated = gru(6, 8, GRUConfig::default(), vb.pp("gru"))?;
    Ok(vec![
        long.states_to_tensor(&long.seq(&xs)?)?,
        backward.states_to_tensor(&backward.seq(&xs)?)?,
        gated.states_to_tensor(&gated.seq(&xs)?)?,
    ])
}

pub fn norms(place: &Place) -> Result<Vec<Tensor>> {
    let xs = place.input("norms", (3, 6, 5, 4))?;
    let vb = place.weights("norms");
    let batch = batch_norm(6, 1e-3, vb.pp("batch"))?;
    let rows = place.input("rows", (7, 24))?;
    Ok(vec![
        batch.forward_t(&xs, false)?,
        batch.forward_t(&xs, true)?,
        batch.running_mean().copy()?,
        batch.running_var().copy()?,
        group_norm(3, 6, 1e-3, vb.pp("group"))?.forward(&xs)?,
        layer_norm(24, 1e-3, vb.pp("layer"))?.forward(&rows)?,
        layer_norm_no_bias(24, 1e-3, vb.pp("bare"))?.forward(&rows)?,
        rms_norm(24, 1e-3, vb.pp("rms"))?.forward(&rows)?,
        ops::softmax_last_dim(&rows)?,
        ops::log_softmax(&rows, D::Minus1)?,
    ])
}

pub fn convolutions(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("convolutions");
    let signal = place.input("signal", (2, 4, 11))?;
    let image = place.input("image", (2, 4, 6, 7))?;
    let config = Conv1dConfig {
        padding: 2,
        stride: 2,
        dilation: 2,
        groups: 2,
        ..Default::default()
    };
    let plain = conv1d(4, 6, 3, config, vb.pp("a"))?.forward(&signal)?;
    let config = Conv2dConfig {
        padding: 1,
        stride: 2,
        ..Default::default()
    };
    let planar = conv2d(4, 6, 3, config, vb.pp("b"))?;
    let norm = batch_norm(6, 1e-3, vb.pp("norm"))?;
    let absorbed = planar.absorb_bn(&norm)?.forward(&image)?;
    let config = ConvTranspose1dConfig {
        padding: 1,
        output_padding: 1,
        stride: 2,
        ..Default::default()
    };
    let up = conv_transpose1d(4, 6, 3, config, vb.pp("c"))?.forward(&signal)?;
    let config = ConvTranspose2dConfig {
        padding: 1,
        output_padding: 1,
        stride: 2,
        ..Default::default()
    };
    let wide = conv_transpose2d(4, 6, 3, config, vb.pp("d"))?.forward(&image)?;
    Ok(vec![
        plain,
        planar.forward(&image)?,
        absorbed,
        up,
        wide,
        ops::pixel_shuffle(&image, 2)?,
        ops::pixel_unshuffle(&image.narrow(3, 0, 6)?, 2)?,
        ops::replication_pad2d(&image, 1)?,
    ])
}

pub fn losses(place: &Place) -> Result<Vec<Tensor>> {
    let xs = place.input("losses", (5, 6))?;
    let targets = place.input("targets", (5, 6))?.abs()?;
    let classes = Tensor::new(&[5u32, 0, 2, 3, 3], &place.device)?;
    let mut results = vec![
        loss::mse(&xs, &targets)?,
        loss::huber(&xs, &targets, 0.7)?,
        loss::binary_cross_entropy_with_logit(&(&xs * 4.)?, &targets)?,
        loss::nll(&xs, &classes)?,
        loss::cross_entropy(&xs, &classes)?,
    ];
    let activations = [
        Activation::Gelu,
        Activation::NewGelu,
        Activation::Relu2,
        Activation::Relu6,
        Activation::Silu,
        Activation::Sigmoid,
        Activation::HardSigmoid,
        Activation::Swiglu,
        Activation::Mish,
        Activation::HardSwish,
        Activation::Elu(0.7),
        Activation::LeakyRelu(0.1),
    ];
    for activation in activations {
        results.push(activation.forward(&(&xs * 3.)?)?);
    }
    results.push(ops::selu(&xs, 1.6, 1.05)?);
    Ok(results)
}

pub fn flash_attention(place: &Place) -> Result<Vec<Tensor>> {
    let q = place.input("q", (1, 5, 4, 8))?;
    let k = place.input("k", (1, 9, 2, 8))?;
    let v = place.input("v", (1, 9, 2, 8))?;
    let one = q.narrow(1, 0, 1)?;
    let mask = place.input("mask", (1, 5, 9))?;
    let run = |q: &Tensor, mask, bias, cap| flash_attn::<f32>(q, &k, &v, 0.7, mask, bias, cap);
    Ok(vec![
        run(&q, AttnMask::None, None, None)?,
        run(&q, AttnMask::None, None, Some(0.5))?,
        run(&q, AttnMask::causal(), None, None)?,
        run(&q, AttnMask::causal_with_offset(4), None, None)?,
        run(&q, AttnMask::causal_with_offset(2), Some(4.), None)?,
        run(&q, AttnMask::causal_with_offset(4), None, Some(0.5))?,
        run(&one, AttnMask::causal_with_offset(8), None, None)?,
        run(&one, AttnMask::causal_with_offset(8), Some(4.), None)?,
        run(&q, AttnMask::Mask(mask.clone()), None, None)?,
        run(&q, AttnMask::Mask(mask), Some(4.), None)?,
        {
            let q = place.input("q", (2, 5, 4, 8))?;
            let k = place.input("k", (2, 9, 2, 8))?;
            flash_attn::<f32>(&q, &k, &k, 0.7, AttnMask::causal_with_offset(4), None, None)?
        },
    ])
}

pub fn packed_sequences(place: &Place) -> Result<Vec<Tensor>> {
    let q = place.input("q", (6, 4, 8))?;
    let k = place.input("k", (9, 2, 8))?;
    let v = place.input("v", (9, 2, 8))?;
    let slopes = Tensor::new(&[0.5f32, 0.25, 0.125, 0.0625], &place.device)?;
    let lengths = |lengths: [u32; 2]| Tensor::new(&lengths, &place.device);
    let (lq, lk) = (lengths([2, 4])?, lengths([3, 6])?);
    let mut results = Vec::new();
    let windows = [(None, None), (Some(1), None), (Some(2), Some(1))];
    for (left, right) in windows {
        for causal in [false, true] {
            for slopes in [None, Some(&slopes)] {
                let run = if left.is_none() {
                    flash_attn_varlen_cpu
                } else {
                    flash_attn_varlen_unfused
                };
                results.push(run(
                    &q, &k, &v, slopes, &lq, &lk, 4, 6, 0.7, causal, left, right,
                )?);
            }
        }
    }
    Ok(results)
}

/// Keys and values step by step: the result of each.
pub fn caches(place: &Place) -> Result<Vec<Tensor>> {
    let mut growing = KvCache::new(2, 4);
    let mut joined = ConcatKvCache::new(2);
    let mut rotating = RotatingKvCache::new(2, 4);
    let mut results = Vec::new();
    for (step, len) in [2, 1, 3, 5, 1].into_iter().enumerate() {
        let k = place.input(&format!("k{step}"), (1, 2, len, 4))?;
        let v = place.input(&format!("v{step}"), (1, 2, len, 4))?;
        let (k1, v1) = growing.append(&k, &v)?;
        let (k2, v2) = joined.append(&k, &v)?;
        if let Some(mask) = rotating.attn_mask(len, &place.device)? {
            results.push(mask.to_dtype(DType::F32)?);
        }
        let (k3, v3) = rotating.append(&k, &v)?;
        for t in [k1, v1, k2, v2, k3, v3] {
            results.push(t.copy()?);
        }
    }
    let mut builder = ScatteredCacheBuilder::new(2, 6, DType::F32, &place.device)?;
    let mut cache = builder.make_cache(2, 4)?;
    let steps = [
        (1, [true, true]),
        (2, [true, true]),
        (1, [true, false]),
        (3, [true, true]),
        (1, [false, true]),
        (4, [true, true]),
        (1, [true, true]),
    ];
    for (step, (len, active)) in steps.into_iter().enumerate() {
        let k = place.input(&format!("scattered {step}"), (2, 2, len, 4))?;
        let places = builder.indices_and_mask(len, &active)?;
        let (k, _) = cache.append(&k, &k, &places)?;
        // In attention's view: hidden values have no influence.
        let seen = places.mask().exp()?;
        results.push(seen.broadcast_matmul(&k)?);
        results.push(seen);
    }
    Ok(results)
}

pub fn interleaved_caches(_: &Place) -> Result<Vec<Tensor>> {
    let cpu = &Device::Cpu;
    let (heads, dim) = (2, 4);
    let numbers = |count: usize, from: f32| -> Vec<f32> {
        (0..count)
            .map(|i| ((i as f32 + from) * 0.7).sin())
            .collect()
    };
    let mut raw = RawInterleavedKvCache::new(heads, dim, 8);
    raw.write_kv(&numbers(8, 0.), &numbers(8, 1.));
    raw.write_kv_batch(&numbers(24, 2.), &numbers(24, 3.), 3);
    let kv_len = raw.len();
    let data = &raw.data()[..2 * heads * dim * kv_len];
    let q = numbers(4 * dim, 5.);
    let attended = candle_nn::attention::cpu_flash::causal::causal_decode_f32_interleaved(
        &q, data, 4, heads, dim, kv_len, 0.5,
    )?;
    let mut turned = numbers(heads * dim, 4.);
    let (cos, sin) = (numbers(dim / 2, 6.), numbers(dim / 2, 7.));
    rope_i_inplace(&mut turned, &cos, &sin, heads, dim);
    let mut joined = InterleavedKvCache::new(dim);
    let step = |len: usize, from| Tensor::from_vec(numbers(len * 8, from), (1, len, 2, 4), cpu);
    let heads_first = |len, from| step(len, from)?.transpose(1, 2)?.contiguous();
    let first = joined.append(&heads_first(3, 8.)?, &heads_first(3, 9.)?)?;
    let second = joined.append(&heads_first(1, 8.)?, &heads_first(1, 9.)?)?;
    let angles = Tensor::new(numbers(6, 3.), cpu)?.reshape((3, 2))?;
    let xs = step(3, 1.)?;
    Ok(vec![
        Tensor::new(data, cpu)?,
        attended,
        Tensor::new(turned, cpu)?,
        first,
        second,
        rotary_emb::rope_thd(&xs, &angles.cos()?, &angles.sin()?)?,
    ])
}
