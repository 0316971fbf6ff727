//! Experts in models and as layers by themselves, against plain loops and against each other.

use std::collections::HashMap;
use std::io::Cursor;

use candle_core::quantized::gguf_file::{self, Content, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::{Activation, Linear, VarBuilder};
use candle_transformers::auto;
use candle_transformers::blocks::{CausalLm, Groups, Routing, Scoring};
use candle_transformers::fused_moe::{FusedMoe, FusedMoeGGUF, MoeCfg};
use candle_transformers::models::quantized_qwen3_moe::GGUFQWenMoE;

use super::support::{assert_close, token_ids, Numbers};

const VOCAB: usize = 61;
const EXPERTS: usize = 5;

/// Weights by the names of a GGUF file.
fn file_weights(architecture: &str) -> Result<Vec<(String, Tensor)>> {
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("token_embd.weight".into(), vec![VOCAB, 32]),
        ("output_norm.weight".into(), vec![32]),
    ];
    let third = architecture == "qwen3moe";
    for layer in 0..2 {
        let mut add = |part: &str, shape: &[usize]| {
            shapes.push((format!("blk.{layer}.{part}"), shape.to_vec()));
        };
        add("attn_norm.weight", &[32]);
        add("attn_output.weight", &[32, 32]);
        for (name, size) in [("q", 32), ("k", 16), ("v", 16)] {
            add(&format!("attn_{name}.weight"), &[size, 32]);
            match third {
                true if name != "v" => add(&format!("attn_{name}_norm.weight"), &[8]),
                true => {}
                false => add(&format!("attn_{name}.bias"), &[size]),
            }
        }
        add("ffn_norm.weight", &[32]);
        add("ffn_gate_inp.weight", &[EXPERTS, 32]);
        add("ffn_gate_exps.weight", &[EXPERTS, 24, 32]);
        add("ffn_up_exps.weight", &[EXPERTS, 24, 32]);
        add("ffn_down_exps.weight", &[EXPERTS, 32, 24]);
        if !third {
            add("ffn_gate_shexp.weight", &[40, 32]);
            add("ffn_up_shexp.weight", &[40, 32]);
            add("ffn_down_shexp.weight", &[32, 40]);
            // One row, which files have without the dimension of size 1.
            add("ffn_gate_inp_shexp.weight", &[32]);
        }
    }
    let mut numbers = Numbers::new(31);
    let weights = shapes.into_iter().map(|(name, shape)| {
        let scale = if shape.len() == 1 { 1. } else { 0.5 };
        Ok((name, numbers.tensor(&shape, scale, &Device::Cpu)?))
    });
    weights.collect()
}

/// The same weights by the names of a checkpoint.
fn checkpoint_weights(file: &[(String, Tensor)]) -> Result<HashMap<String, Tensor>> {
    let mut weights = HashMap::new();
    for (name, weight) in file {
        let Some((layer, part)) = name.strip_prefix("blk.").and_then(|n| n.split_once('.')) else {
            let name = match name.as_str() {
                "token_embd.weight" => "model.embed_tokens.weight",
                _ => "model.norm.weight",
            };
            weights.insert(name.to_string(), weight.clone());
            continue;
        };
        let (part, end) = part.rsplit_once('.').expect("a part and its kind");
        let name = match part {
            "attn_norm" => "input_layernorm",
            "ffn_norm" => "post_attention_layernorm",
            "attn_q" => "self_attn.q_proj",
            "attn_k" => "self_attn.k_proj",
            "attn_v" => "self_attn.v_proj",
            "attn_output" => "self_attn.o_proj",
            "attn_q_norm" => "self_attn.q_norm",
            "attn_k_norm" => "self_attn.k_norm",
            "ffn_gate_inp" => "mlp.gate",
            "ffn_gate_shexp" => "mlp.shared_expert.gate_proj",
            "ffn_up_shexp" => "mlp.shared_expert.up_proj",
            "ffn_down_shexp" => "mlp.shared_expert.down_proj",
            "ffn_gate_inp_shexp" => {
                let name = format!("model.layers.{layer}.mlp.shared_expert_gate.weight");
                weights.insert(name, weight.unsqueeze(0)?);
                continue;
            }
            experts => {
                let each = match experts {
                    "ffn_gate_exps" => "gate_proj",
                    "ffn_up_exps" => "up_proj",
                    _ => "down_proj",
                };
                for expert in 0..EXPERTS {
                    let name = format!("model.layers.{layer}.mlp.experts.{expert}.{each}.weight");
                    weights.insert(name, weight.get(expert)?);
                }
                continue;
            }
        };
        weights.insert(format!("model.layers.{layer}.{name}.{end}"), weight.clone());
    }
    Ok(weights)
}

/// A file of f32 is the checkpoint's model, whose names and forms are others.
fn file_is_the_checkpoint(device: &Device) -> Result<()> {
    for (architecture, config) in [
        (
            "qwen2moe",
            r#"{"model_type": "qwen2_moe", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 5,
                "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
                "max_position_embeddings": 64, "tie_word_embeddings": true}"#,
        ),
        (
            "qwen3moe",
            r#"{"model_type": "qwen3_moe", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
                "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": true,
                "max_position_embeddings": 64, "tie_word_embeddings": true}"#,
        ),
    ] {
        let weights = file_weights(architecture)?;
        let metadata = [
            ("block_count", Value::U32(2)),
            ("context_length", Value::U32(64)),
            ("embedding_length", Value::U32(32)),
            ("attention.head_count", Value::U32(4)),
            ("attention.head_count_kv", Value::U32(2)),
            ("attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
            ("expert_count", Value::U32(5)),
            ("expert_used_count", Value::U32(2)),
            ("expert_feed_forward_length", Value::U32(24)),
        ];
        let mut metadata: Vec<(String, Value)> = metadata
            .into_iter()
            .map(|(key, value)| (format!("{architecture}.{key}"), value))
            .collect();
        let name = Value::String(architecture.to_string());
        metadata.push(("general.architecture".into(), name));
        let tensors = weights
            .iter()
            .map(|(name, weight)| Ok((name.as_str(), QTensor::quantize(weight, GgmlDType::F32)?)));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let tensors: Vec<_> = tensors.iter().map(|(name, t)| (*name, t)).collect();
        let metadata: Vec<_> = metadata.iter().map(|(key, v)| (key.as_str(), v)).collect();
        let mut file = Cursor::new(Vec::new());
        gguf_file::write(&mut file, &metadata, &tensors)?;
        file.set_position(0);
        let content = Content::read(&mut file)?;
        let mut quantized = GGUFQWenMoE::from_gguf(content, &mut file, device, DType::F32)?;

        let weights = checkpoint_weights(&weights)?;
        let vb = VarBuilder::from_tensors(weights, DType::F32, device);
        let mut dense = CausalLm::from_vb(auto::config_spec(config)?, vb)?;
        let ids = token_ids(1, 11, VOCAB, device)?;
        for (position, t) in [(0, 9), (9, 1), (10, 1)] {
            let ids = ids.narrow(1, position, t)?;
            let expected = dense.forward(&ids, position)?.last_logits()?.squeeze(1)?;
            assert_close(&quantized.forward(&ids, position)?, &expected, 1e-5);
        }
    }
    Ok(())
}
test_device!(file_is_the_checkpoint);

/// The two layers with experts, against plain loops.
fn layers_against_loops(device: &Device) -> Result<()> {
    let (hidden, inner, used) = (16, 24, 2);
    let mut numbers = Numbers::new(5);
    let router = numbers.tensor(&[EXPERTS, hidden], 1., device)?;
    let gate = numbers.tensor(&[EXPERTS, inner, hidden], 0.5, device)?;
    let up = numbers.tensor(&[EXPERTS, inner, hidden], 0.5, device)?;
    let down = numbers.tensor(&[EXPERTS, hidden, inner], 0.5, device)?;
    let xs = numbers.tensor(&[2, 3, hidden], 1., device)?;
    for norm_topk_prob in [false, true] {
        let config = MoeCfg {
            hidden_size: hidden,
            num_experts: EXPERTS,
            num_experts_per_tok: used,
            moe_intermediate_size: inner,
            norm_topk_prob,
            act: Activation::Silu,
            decoder_sparse_step: None,
        };
        let mut weights = HashMap::from([("gate.weight".to_string(), router.clone())]);
        for (name, all) in [("gate_proj", &gate), ("up_proj", &up), ("down_proj", &down)] {
            for expert in 0..EXPERTS {
                let name = format!("experts.{expert}.{name}.weight");
                weights.insert(name, all.get(expert)?);
            }
        }
        let vb = VarBuilder::from_tensors(weights, DType::F32, device);
        let dense = FusedMoe::new(&config, vb, DType::F32)?;
        let blocks = |t: &Tensor| {
            QTensor::quantize_onto(&t.to_device(&Device::Cpu)?, GgmlDType::F32, device)
        };
        let quantized = FusedMoeGGUF {
            gate: Linear::new(router.clone(), None),
            gate_experts: blocks(&gate)?.into(),
            up_experts: blocks(&up)?.into(),
            down_experts: blocks(&down)?.into(),
            act: Activation::Silu,
            norm_topk_prob,
            num_experts_per_tok: used,
            dtype: DType::F32,
        };
        let mut expected = Vec::new();
        for token in 0..6 {
            let x = xs.reshape((6, hidden))?.narrow(0, token, 1)?;
            let scores = candle_nn::ops::softmax(&x.matmul(&router.t()?)?, 1)?;
            let scores = scores.squeeze(0)?.to_vec1::<f32>()?;
            let mut order: Vec<usize> = (0..EXPERTS).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            let sum = if norm_topk_prob {
                order[..used].iter().map(|e| scores[*e]).sum::<f32>()
            } else {
                1.
            };
            let mut y = x.zeros_like()?;
            for &expert in &order[..used] {
                let gated = x.matmul(&gate.get(expert)?.t()?)?.silu()?;
                let gated = (gated * x.matmul(&up.get(expert)?.t()?)?)?;
                let out = gated.matmul(&down.get(expert)?.t()?)?;
                y = (y + (out * f64::from(scores[expert] / sum))?)?;
            }
            expected.push(y);
        }
        let expected = Tensor::cat(&expected, 0)?.reshape(xs.shape())?;
        for is_prefill in [false, true] {
            assert_close(&dense.forward(&xs, is_prefill)?, &expected, 1e-5);
            assert_close(&quantized.forward(&xs, is_prefill)?, &expected, 1e-5);
        }
    }
    Ok(())
}
test_device!(layers_against_loops);

/// DeepSeek's choices, worked out by hand for six experts in three groups.
fn choices_from_groups(device: &Device) -> Result<()> {
    let logits = [0.9f32, 0.1, 0.5, 0.6, 0.8, 0.05];
    let scores = Tensor::new(&logits, device)?.unsqueeze(0)?;
    let choose = |routing: &Routing, bias: Option<&Tensor>| -> Result<(Vec<u32>, Vec<f32>)> {
        let (experts, weights) = routing.choose(&scores, bias)?;
        Ok((
            experts.squeeze(0)?.to_vec1()?,
            weights.squeeze(0)?.to_vec1()?,
        ))
    };
    let exp: Vec<f32> = logits.iter().map(|x| x.exp()).collect();
    let sum: f32 = exp.iter().sum();
    // V2: the best expert of a group speaks for it: groups 0 (0.9) and 2 (0.8), so not expert 3.
    let second = Routing {
        groups: Some(Groups {
            count: 3,
            used: 2,
            best: 1,
        }),
        scale: 16.,
        ..Routing::softmax(3, false)
    };
    let (experts, weights) = choose(&second, None)?;
    assert_eq!(experts, [0, 4, 1]);
    for (weight, expert) in weights.iter().zip([0, 4, 1]) {
        assert!(
            (weight - 16. * exp[expert] / sum).abs() < 1e-5,
            "{weights:?}"
        );
    }
    // V3: the best two do, with a bias that lifts expert 5; the weights are without it.
    let third = Routing {
        scoring: Scoring::Sigmoid,
        normalised: true,
        scale: 2.5,
        choice_bias: true,
        groups: Some(Groups {
            count: 3,
            used: 1,
            best: 2,
        }),
        ..Routing::softmax(2, true)
    };
    let sigmoid = |x: f32| 1. / (1. + (-x).exp());
    let bias = Tensor::new(&[0f32, 0., 0., 0., 0., 0.5], device)?;
    let (experts, weights) = choose(&third, Some(&bias))?;
    assert_eq!(experts, [5, 4]);
    let both = sigmoid(0.05) + sigmoid(0.8);
    for (weight, logit) in weights.iter().zip([0.05, 0.8]) {
        assert!(
            (weight - 2.5 * sigmoid(logit) / both).abs() < 1e-5,
            "{weights:?}"
        );
    }
    // Without the bias group 1 wins: 0.5 and 0.6 against 0.9 and 0.1, by the sum of sigmoids.
    let zeros = bias.zeros_like()?;
    assert_eq!(choose(&third, Some(&zeros))?.0, [3, 2]);
    // Groups that are equally good: still only one.
    let equal = Tensor::zeros((1, 6), DType::F32, device)?;
    let (experts, _) = third.choose(&equal, None)?;
    let experts = experts.squeeze(0)?.to_vec1::<u32>()?;
    assert_eq!(experts[0] / 2, experts[1] / 2, "{experts:?}");
    Ok(())
}
test_device!(choices_from_groups);

const GPT_OSS: &str = r#"{"model_type": "gpt_oss", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 3,
    "num_experts_per_tok": 2, "sliding_window": 3, "max_position_embeddings": 64, "rope_theta": 10000.0}"#;

/// The number of four bits: a sign, two bits of exponent, one of fraction.
fn of_four_bits(bits: u8) -> f32 {
    let (exponent, fraction) = ((bits >> 1) & 3, f32::from(bits & 1));
    let magnitude = match exponent {
        0 => fraction / 2.,
        exponent => (1. + fraction / 2.) * 2f32.powi(i32::from(exponent) - 1),
    };
    if bits & 8 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// The weights of a gpt-oss whose experts are MXFP4, and the same experts dense: `(3, outputs, inputs)` of gate and up, and of down.
fn gpt_oss_weights() -> Result<(HashMap<String, Tensor>, [Tensor; 2])> {
    let cpu = &Device::Cpu;
    let mut numbers = Numbers::new(77);
    let mut weights = HashMap::new();
    let layer = "model.layers.0";
    for (name, shape) in [
        ("model.embed_tokens.weight".to_string(), &[VOCAB, 32][..]),
        ("model.norm.weight".into(), &[32]),
        ("lm_head.weight".into(), &[VOCAB, 32]),
        (format!("{layer}.input_layernorm.weight"), &[32]),
        (format!("{layer}.post_attention_layernorm.weight"), &[32]),
        (format!("{layer}.self_attn.q_proj.weight"), &[32, 32]),
        (format!("{layer}.self_attn.q_proj.bias"), &[32]),
        (format!("{layer}.self_attn.k_proj.weight"), &[16, 32]),
        (format!("{layer}.self_attn.k_proj.bias"), &[16]),
        (format!("{layer}.self_attn.v_proj.weight"), &[16, 32]),
        (format!("{layer}.self_attn.v_proj.bias"), &[16]),
        (format!("{layer}.self_attn.o_proj.weight"), &[32, 32]),
        (format!("{layer}.self_attn.o_proj.bias"), &[32]),
        (format!("{layer}.self_attn.sinks"), &[4]),
        (format!("{layer}.mlp.router.weight"), &[3, 32]),
        (format!("{layer}.mlp.router.bias"), &[3]),
        (format!("{layer}.mlp.experts.gate_up_proj_bias"), &[3, 128]),
        (format!("{layer}.mlp.experts.down_proj_bias"), &[3, 32]),
    ] {
        weights.insert(name, numbers.tensor(shape, 0.6, cpu)?);
    }
    let mut dense = Vec::new();
    for (name, outputs, inputs) in [("gate_up_proj", 128, 32), ("down_proj", 32, 64)] {
        let blocks = 3 * outputs * inputs / 32;
        let mut byte = |below: f32| (numbers.next(0.5) * below + below / 2.) as u8;
        let bytes: Vec<u8> = (0..16 * blocks).map(|_| byte(256.)).collect();
        let scales: Vec<u8> = (0..blocks).map(|_| 122 + byte(4.)).collect();
        let values = bytes.iter().enumerate().flat_map(|(i, byte)| {
            let scale = 2f32.powi(i32::from(scales[i / 16]) - 127);
            [byte & 15, byte >> 4].map(|bits| of_four_bits(bits) * scale)
        });
        let values = values.collect::<Vec<_>>();
        dense.push(Tensor::from_vec(values, (3, outputs, inputs), cpu)?);
        let name = format!("{layer}.mlp.experts.{name}");
        let shape = (3, outputs, inputs / 32, 16);
        weights.insert(
            format!("{name}_blocks"),
            Tensor::from_vec(bytes, shape, cpu)?,
        );
        let shape = (3, outputs, inputs / 32);
        weights.insert(
            format!("{name}_scales"),
            Tensor::from_vec(scales, shape, cpu)?,
        );
    }
    let [gate_up, down] = <[Tensor; 2]>::try_from(dense).expect("two of them");
    Ok((weights, [gate_up, down]))
}

/// The logits of every position, from the formulas of the paper and of Transformers, in plain ops.
fn plain_gpt_oss(
    weights: &HashMap<String, Tensor>,
    [gate_up, down]: &[Tensor; 2],
    ids: &Tensor,
) -> Result<Tensor> {
    let get = |name: &str| &weights[&format!("model.layers.0.{name}")];
    let normed = |xs: &Tensor, weight: &Tensor| {
        let mean = (xs.sqr()?.mean_keepdim(1)? + 1e-5)?;
        xs.broadcast_div(&mean.sqrt()?)?.broadcast_mul(weight)
    };
    let linear = |xs: &Tensor, name: &str| {
        let ys = xs.matmul(&get(&format!("{name}.weight")).t()?)?;
        ys.broadcast_add(get(&format!("{name}.bias")))
    };
    let t = ids.dim(1)?;
    let mut xs = weights["model.embed_tokens.weight"].index_select(&ids.squeeze(0)?, 0)?;
    let stream = normed(&xs, get("input_layernorm.weight"))?;
    let [q, k, v] = ["q", "k", "v"].map(|name| linear(&stream, &format!("self_attn.{name}_proj")));
    let (q, k, v) = (q?, k?, v?);
    let angles =
        (0..t).flat_map(|p| (0..4).map(move |i| p as f32 * 10_000f32.powf(-(i as f32) / 4.)));
    let angles = Tensor::from_iter(angles, &Device::Cpu)?.reshape((t, 4))?;
    let rotated = |xs: &Tensor, head: usize| {
        let (a, b) = (xs.narrow(1, 8 * head, 4)?, xs.narrow(1, 8 * head + 4, 4)?);
        let (cos, sin) = (angles.cos()?, angles.sin()?);
        Tensor::cat(
            &[
                ((&a * &cos)? - (&b * &sin)?)?,
                ((&b * &cos)? + (&a * &sin)?)?,
            ],
            1,
        )
    };
    let sinks = get("self_attn.sinks").to_vec1::<f32>()?;
    let mut heads = Vec::new();
    for (head, sink) in sinks.iter().enumerate() {
        let scores = (rotated(&q, head)?.matmul(&rotated(&k, head / 2)?.t()?)? / 8f64.sqrt())?;
        let mut shares = Vec::new();
        for (p, row) in scores.to_vec2::<f32>()?.iter().enumerate() {
            let seen = |key: usize| key <= p && p < key + 3;
            let share = |key: usize| if seen(key) { row[key].exp() } else { 0. };
            let sum = (0..t).map(share).sum::<f32>() + sink.exp();
            shares.extend((0..t).map(|key| share(key) / sum));
        }
        let shares = Tensor::from_vec(shares, (t, t), &Device::Cpu)?;
        heads.push(shares.matmul(&v.narrow(1, 8 * (head / 2), 8)?.contiguous()?)?);
    }
    xs = (xs + linear(&Tensor::cat(&heads, 1)?, "self_attn.o_proj")?)?;
    let stream = normed(&xs, get("post_attention_layernorm.weight"))?;
    let scores = linear(&stream, "mlp.router")?.to_vec2::<f32>()?;
    let mut outputs = Vec::new();
    for (p, scores) in scores.iter().enumerate() {
        let mut order = [0, 1, 2];
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let sum: f32 = order[..2].iter().map(|e| scores[*e].exp()).sum();
        let x = stream.narrow(0, p, 1)?;
        let mut y = x.zeros_like()?;
        for &expert in &order[..2] {
            let both = x.matmul(&gate_up.get(expert)?.t()?)?.squeeze(0)?;
            let both = (both + get("mlp.experts.gate_up_proj_bias").get(expert)?)?;
            let gated = both.to_vec1::<f32>()?;
            let gated = gated.chunks_exact(2).map(|pair| {
                let (gate, up) = (pair[0].min(7.), pair[1].clamp(-7., 7.));
                gate / (1. + (-1.702 * gate).exp()) * (up + 1.)
            });
            let gated = Tensor::from_iter(gated, &Device::Cpu)?.unsqueeze(0)?;
            let out = gated.matmul(&down.get(expert)?.t()?)?;
            let out = out.broadcast_add(
                get("mlp.experts.down_proj_bias")
                    .get(expert)
                    .as_ref()
                    .expect("a row"),
            )?;
            y = (y + (out * f64::from(scores[expert].exp() / sum))?)?;
        }
        outputs.push(y);
    }
    xs = (xs + Tensor::cat(&outputs, 0)?)?;
    normed(&xs, &weights["model.norm.weight"])?.matmul(&weights["lm_head.weight"].t()?)
}

/// gpt-oss against its formulas, its experts as MXFP4 and dense, in every dtype that a builder makes of the bytes.
fn gpt_oss(device: &Device) -> Result<()> {
    let (weights, experts) = gpt_oss_weights()?;
    let ids = token_ids(1, 7, VOCAB, &Device::Cpu)?;
    let expected = plain_gpt_oss(&weights, &experts, &ids)?.unsqueeze(0)?;
    let mut dense = weights.clone();
    dense.retain(|name, _| !name.ends_with("_blocks") && !name.ends_with("_scales"));
    for (name, weight) in ["gate_up_proj", "down_proj"].iter().zip(&experts) {
        let name = format!("model.layers.0.mlp.experts.{name}");
        dense.insert(name, weight.transpose(1, 2)?.contiguous()?);
    }
    for weights in [weights, dense] {
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 0.06)] {
            let vb = VarBuilder::from_tensors(weights.clone(), dtype, device);
            let mut model = CausalLm::from_vb(auto::config_spec(GPT_OSS)?, vb)?;
            let logits = model.forward(&ids.to_device(device)?, 0)?.logits()?;
            assert_close(&logits, &expected, tolerance);
        }
    }
    Ok(())
}
test_device!(gpt_oss);
