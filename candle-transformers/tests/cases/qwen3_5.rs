//! Qwen3.5 against Transformers' numbers, which `tests/reference/qwen3_5.py` makes: crates.io's Candle lacks it.

use std::collections::HashMap;

use candle_core::quantized::gguf_file::Value as Entry;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{bail, test_device, DType, Device, Result, Shape, Tensor, Var};
use candle_transformers::auto;
use candle_transformers::blocks::{
    at_once, Decoder, DecoderSpec, Head, MixerSpec, Reading, Stored, Wanted, WeightSource,
};
use candle_transformers::models::quantized_qwen3_5;
use serde_json::{json, Value};

use super::gguf::Gguf;
use super::support::{assert_close, token_ids, Numbers};

/// Weights that depend on their names alone, as the script makes them.
struct Made;

impl WeightSource for Made {
    fn makes_tensors(&self) -> bool {
        true
    }

    fn contains(&self, name: &str) -> bool {
        // Transformers has the experts as one tensor.
        !name.contains(".experts.0.")
    }

    fn shape(&self, _: &str) -> Option<Shape> {
        None
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        let Wanted { name, shape, .. } = wanted;
        let seed = name.bytes().fold(7u64, |hash, byte| {
            hash.wrapping_mul(0x0100_0000_01b3)
                .wrapping_add(u64::from(byte))
        });
        let scale = match shape {
            [_] if name.ends_with("A_log") => 2.,
            [_] => 0.5,
            [.., inputs] => (3. / *inputs as f32).sqrt(),
            [] => 1.,
        };
        let made = Numbers::new(seed).tensor(shape, scale, &Device::Cpu);
        Box::pin(std::future::ready(made.map(Stored::from)))
    }
}

/// Weights, and which were asked for.
struct Recorded(Vec<(String, Tensor)>);

impl WeightSource for Recorded {
    fn makes_tensors(&self) -> bool {
        true
    }

    fn contains(&self, name: &str) -> bool {
        Made.contains(name)
    }

    fn shape(&self, _: &str) -> Option<Shape> {
        None
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        let stored = at_once(Made.read(wanted));
        if let Ok(Stored::Dense(tensor)) = &stored {
            self.0.push((wanted.name.to_string(), tensor.clone()));
        }
        Box::pin(std::future::ready(stored))
    }
}

fn decoder(config: &str, device: &Device) -> Result<Decoder> {
    let spec = auto::config_spec(config)?;
    Decoder::load(spec, &mut Made, DType::F32, device)
}

/// Sums come in another order than the reference's; WebGPU's exponential functions are less exact.
fn tolerance(device: &Device) -> f32 {
    if device.is_cpu() {
        1e-4
    } else {
        1e-3
    }
}

/// A prompt of two whole chunks and a part, at once and in pieces that end within, at and next to the end of a chunk.
fn numbers_of_transformers(device: &Device) -> Result<()> {
    let file: Value = serde_json::from_str(include_str!("../reference/qwen3_5.json")).unwrap();
    let tokens = file["tokens"].as_u64().unwrap() as usize;
    let positions: Vec<u32> = serde_json::from_value(file["positions"].clone()).unwrap();
    let positions = Tensor::new(positions, device)?;
    let cases = file["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        println!("{}", case["name"]);
        let config = case["config"].to_string();
        let expected: Vec<Vec<f32>> = serde_json::from_value(case["logits"].clone()).unwrap();
        let expected = Tensor::new(expected, device)?;
        let model = decoder(&config, device)?;
        let ids = token_ids(1, tokens, model.spec().vocab, device)?;
        for pieces in [vec![tokens], vec![1, 1, 61, 1, 65, 21]] {
            let (mut state, mut offset) = (model.new_state(), 0);
            let mut logits = Vec::new();
            for piece in pieces {
                let ids = ids.narrow(1, offset, piece)?;
                logits.push(model.forward(&ids, offset, &mut state)?.logits()?);
                offset += piece;
            }
            assert_eq!(offset, tokens);
            let logits = Tensor::cat(&logits, 1)?.squeeze(0)?;
            let logits = logits.index_select(&positions, 0)?;
            assert_close(&logits, &expected, tolerance(device));
        }
    }
    Ok(())
}
test_device!(numbers_of_transformers);

fn tiny() -> Value {
    json!({
        "model_type": "qwen3_5_text", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16
    })
}

fn with(field: &str, value: Value) -> Value {
    let mut config = tiny();
    config[field] = value;
    config
}

#[test]
fn language_model_beside_an_image_encoder() -> Result<()> {
    let text = auto::config_spec(&tiny().to_string())?;
    let mut inner = tiny();
    inner["tie_word_embeddings"] = json!(false);
    let whole = json!({
        "model_type": "qwen3_5", "text_config": inner, "vision_config": { "hidden_size": 7 }, "tie_word_embeddings": true
    });
    let whole = auto::config_spec(&whole.to_string())?;
    assert_eq!(whole.layers, text.layers);
    assert_eq!(whole.rotaries, text.rotaries);
    assert_eq!(whole.head, Head::Tied);
    let names = Decoder::check_weights(whole, &mut Made)?;
    for name in [
        "embed_tokens",
        "layers.0.linear_attn.A_log",
        "layers.3.self_attn.q_norm.weight",
        "norm.weight",
    ] {
        let start = format!("model.language_model.{name}");
        assert!(
            names.iter().any(|name| name.starts_with(&start)),
            "{start}: {names:?}"
        );
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_named() {
    let cases = [
        (with("attn_output_gate", json!(false)), "attn_output_gate"),
        (
            with("layer_types", json!(["full_attention"])),
            "layer_types has 1",
        ),
        (
            with("layer_types", json!(["sliding_attention"])),
            "sliding_attention",
        ),
        (
            with("full_attention_interval", json!(0)),
            "full_attention_interval",
        ),
        (with("intermediate_size", json!(null)), "intermediate_size"),
        (with("linear_num_key_heads", json!(5)), "5 key heads"),
        (with("linear_num_key_heads", json!(0)), "0 key heads"),
        (with("linear_value_head_dim", json!(0)), "of size 0"),
        (with("linear_conv_kernel_dim", json!(0)), "kernel size is 0"),
        (
            with("partial_rotary_factor", json!(1.5)),
            "partial_rotary_factor 1.5",
        ),
        (
            with("rope_parameters", json!({ "rope_type": "dynamic" })),
            "dynamic",
        ),
        (
            with("hidden_act", json!("gelu_pytorch_tan")),
            "gelu_pytorch_tan",
        ),
    ];
    for (config, expected) in cases {
        let error = auto::config_spec(&config.to_string())
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

/// Heads of `size` rows, those of one key head as neighbours, in the order of llama.cpp's files.
fn tiled(weight: &Tensor, keys: usize, size: usize) -> Result<Tensor> {
    let rows = weight.dim(0)?;
    let heads = weight.reshape((keys, rows / size / keys, size, ()))?;
    heads.transpose(0, 1)?.reshape(weight.shape())
}

/// The tensors of a GGUF file for one of a checkpoint, as llama.cpp's `conversion/qwen.py` makes them.
fn converted(name: &str, weight: &Tensor, spec: &DecoderSpec) -> Result<Vec<(String, Tensor)>> {
    let delta = spec.layers.iter().find_map(|layer| match &layer.mixer {
        MixerSpec::Delta(delta) => Some(delta),
        _ => None,
    });
    let delta = delta.expect("a layer with the gated delta rule");
    let (keys, size) = (delta.key_heads, delta.value_dim);
    let values_tiled = |weight: &Tensor| {
        let before = 2 * delta.keys();
        let values = weight.narrow(0, before, delta.values())?;
        Tensor::cat(
            &[&weight.narrow(0, 0, before)?, &tiled(&values, keys, size)?],
            0,
        )
    };
    let name = name.strip_prefix("model.").unwrap_or(name);
    let Some((layer, part)) = name
        .strip_prefix("layers.")
        .and_then(|rest| rest.split_once('.'))
    else {
        let (name, weight) = match name {
            "embed_tokens.weight" => ("token_embd.weight", weight.clone()),
            "norm.weight" => ("output_norm.weight", (weight + 1.)?),
            "lm_head.weight" => ("output.weight", weight.clone()),
            other => bail!("no tensor of the model: {other}"),
        };
        return Ok(vec![(name.into(), weight)]);
    };
    let same = weight.clone();
    let half = |i: usize| weight.narrow(1, i * weight.dim(1)? / 2, weight.dim(1)? / 2);
    let parts = match part {
        "input_layernorm.weight" => vec![("attn_norm.weight", (weight + 1.)?)],
        "post_attention_layernorm.weight" => vec![("post_attention_norm.weight", (weight + 1.)?)],
        "linear_attn.in_proj_qkv.weight" => vec![("attn_qkv.weight", values_tiled(weight)?)],
        "linear_attn.in_proj_z.weight" => vec![("attn_gate.weight", tiled(weight, keys, size)?)],
        "linear_attn.in_proj_b.weight" => vec![("ssm_beta.weight", tiled(weight, keys, 1)?)],
        "linear_attn.in_proj_a.weight" => vec![("ssm_alpha.weight", tiled(weight, keys, 1)?)],
        "linear_attn.A_log" => vec![("ssm_a", tiled(&weight.exp()?.neg()?, keys, 1)?)],
        "linear_attn.dt_bias" => vec![("ssm_dt.bias", tiled(weight, keys, 1)?)],
        "linear_attn.conv1d.weight" => {
            vec![("ssm_conv1d.weight", values_tiled(&weight.squeeze(1)?)?)]
        }
        "linear_attn.norm.weight" => vec![("ssm_norm.weight", same)],
        "linear_attn.out_proj.weight" => vec![(
            "ssm_out.weight",
            tiled(&weight.t()?, keys, size)?.t()?.contiguous()?,
        )],
        "self_attn.q_proj.weight" => vec![("attn_q.weight", same)],
        "self_attn.k_proj.weight" => vec![("attn_k.weight", same)],
        "self_attn.v_proj.weight" => vec![("attn_v.weight", same)],
        "self_attn.o_proj.weight" => vec![("attn_output.weight", same)],
        "self_attn.q_norm.weight" => vec![("attn_q_norm.weight", (weight + 1.)?)],
        "self_attn.k_norm.weight" => vec![("attn_k_norm.weight", (weight + 1.)?)],
        "mlp.gate_proj.weight" => vec![("ffn_gate.weight", same)],
        "mlp.up_proj.weight" => vec![("ffn_up.weight", same)],
        "mlp.down_proj.weight" => vec![("ffn_down.weight", same)],
        "mlp.gate.weight" => vec![("ffn_gate_inp.weight", same)],
        "mlp.experts.gate_up_proj" => vec![
            ("ffn_gate_exps.weight", half(0)?),
            ("ffn_up_exps.weight", half(1)?),
        ],
        "mlp.experts.down_proj" => vec![("ffn_down_exps.weight", same)],
        "mlp.shared_expert.gate_proj.weight" => vec![("ffn_gate_shexp.weight", same)],
        "mlp.shared_expert.up_proj.weight" => vec![("ffn_up_shexp.weight", same)],
        "mlp.shared_expert.down_proj.weight" => vec![("ffn_down_shexp.weight", same)],
        "mlp.shared_expert_gate.weight" => vec![("ffn_gate_inp_shexp.weight", weight.squeeze(0)?)],
        other => bail!("no tensor of a layer: {other}"),
    };
    let named = |(name, weight)| (format!("blk.{layer}.{name}"), weight);
    Ok(parts.into_iter().map(named).collect())
}

/// The file that llama.cpp's converter would make, with the queries of attention in `format`.
fn gguf(config: &Value, format: GgmlDType) -> Result<Gguf> {
    let spec = auto::config_spec(&config.to_string())?;
    let mut weights = Recorded(Vec::new());
    Decoder::load(spec.clone(), &mut weights, DType::F32, &Device::Cpu)?;
    let mut tensors = HashMap::new();
    for (name, weight) in &weights.0 {
        for (name, weight) in converted(name, weight, &spec)? {
            let format = if name.contains("attn_q.") {
                format
            } else {
                GgmlDType::F32
            };
            tensors.insert(name, QTensor::quantize(&weight.contiguous()?, format)?);
        }
    }
    let arch = match config["num_experts"] {
        Value::Null => "qwen35",
        _ => "qwen35moe",
    };
    let whole = |field: &str| Entry::U32(config[field].as_u64().expect(field) as u32);
    let values = config["linear_num_value_heads"].as_u64().unwrap()
        * config["linear_value_head_dim"].as_u64().unwrap();
    let mut entries = vec![
        // A layer more, of a model that guesses further tokens.
        ("block_count", Entry::U32(spec.layers.len() as u32 + 1)),
        ("nextn_predict_layers", Entry::U32(1)),
        ("context_length", whole("max_position_embeddings")),
        ("embedding_length", whole("hidden_size")),
        ("attention.head_count", whole("num_attention_heads")),
        ("attention.head_count_kv", whole("num_key_value_heads")),
        ("attention.key_length", whole("head_dim")),
        ("attention.value_length", whole("head_dim")),
        ("attention.layer_norm_rms_epsilon", Entry::F32(1e-6)),
        ("rope.freq_base", Entry::F32(10_000.)),
        ("rope.dimension_count", Entry::U32(4)),
        ("ssm.conv_kernel", whole("linear_conv_kernel_dim")),
        ("ssm.state_size", whole("linear_key_head_dim")),
        ("ssm.group_count", whole("linear_num_key_heads")),
        ("ssm.time_step_rank", whole("linear_num_value_heads")),
        ("ssm.inner_size", Entry::U32(values as u32)),
    ];
    match arch {
        "qwen35" => entries.push(("feed_forward_length", whole("intermediate_size"))),
        _ => entries.extend([
            ("expert_count", whole("num_experts")),
            ("expert_used_count", whole("num_experts_per_tok")),
            ("expert_feed_forward_length", whole("moe_intermediate_size")),
        ]),
    }
    let entries = entries
        .into_iter()
        .map(|(key, value)| (format!("{arch}.{key}"), value));
    let mut metadata: HashMap<_, _> = entries.collect();
    metadata.insert("general.architecture".into(), Entry::String(arch.into()));
    Ok(Gguf { metadata, tensors })
}

/// Transformers' numbers again, from files with llama.cpp's names and order of heads.
fn numbers_from_gguf_files(device: &Device) -> Result<()> {
    let file: Value = serde_json::from_str(include_str!("../reference/qwen3_5.json")).unwrap();
    let tokens = file["tokens"].as_u64().unwrap() as usize;
    for name in ["dense", "experts"] {
        let cases = file["cases"].as_array().unwrap();
        let case = cases.iter().find(|case| case["name"] == name).unwrap();
        let expected: Vec<Vec<f32>> = serde_json::from_value(case["logits"].clone()).unwrap();
        let expected = Tensor::new(expected, device)?;
        let expected = expected.narrow(0, expected.dim(0)? - 1, 1)?;
        let ids = token_ids(1, tokens, 61, device)?;
        // Blocks of 8 bits, and activations in as many, are off by about one in 128 of a largest element.
        for (format, tolerance) in [(GgmlDType::F32, tolerance(device)), (GgmlDType::Q8_0, 0.05)] {
            let (content, mut reader) = gguf(&case["config"], format)?.content()?;
            let mut model =
                quantized_qwen3_5::ModelWeights::from_gguf(content, &mut reader, device)?;
            assert_close(&model.forward(&ids, 0)?, &expected, tolerance);
        }
    }
    Ok(())
}
test_device!(numbers_from_gguf_files);

#[test]
fn what_a_gguf_file_lacks_is_named() -> Result<()> {
    let file: Value = serde_json::from_str(include_str!("../reference/qwen3_5.json")).unwrap();
    let config = &file["cases"][0]["config"];
    type Break = fn(&mut Gguf) -> Result<()>;
    let cases: &[(Break, &str)] = &[
        (
            |file| file.without_key("qwen35.ssm.group_count"),
            "ssm.group_count is missing",
        ),
        (
            |file| file.set("qwen35.ssm.inner_size", Entry::U32(71)),
            "ssm.inner_size: 71",
        ),
        (
            |file| file.set("qwen35.ssm.group_count", Entry::U32(4)),
            "4 key heads",
        ),
        (
            |file| file.set("qwen35.nextn_predict_layers", Entry::U32(9)),
            "nextn_predict_layers",
        ),
        (
            |file| file.without_tensor("blk.1.ssm_dt.bias"),
            "blk.1.ssm_dt.bias",
        ),
        (
            |file| file.without_tensor("blk.1.ssm_a"),
            "blk.1.attn_q.weight",
        ),
        (
            |file| file.without_tensor("blk.3.post_attention_norm.weight"),
            "blk.3.post_attention_norm.weight",
        ),
    ];
    for (change, expected) in cases {
        let mut file = gguf(config, GgmlDType::F32)?;
        change(&mut file)?;
        let (content, mut reader) = file.content()?;
        let model = quantized_qwen3_5::ModelWeights::from_gguf(content, &mut reader, &Device::Cpu);
        let error = model.err().expect(expected).to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    Ok(())
}

/// Keys that are nearly alike make the triangular system of a chunk a bad one: a prompt of one token, over and over, is the same at once and
/// token by token.
fn one_token_repeated(device: &Device) -> Result<()> {
    let mut config = with("num_hidden_layers", json!(2));
    for (field, size) in [
        ("num_key_heads", 2),
        ("num_value_heads", 4),
        ("key_head_dim", 8),
        ("value_head_dim", 8),
    ] {
        config[format!("linear_{field}")] = json!(size);
    }
    let model = decoder(&config.to_string(), device)?;
    let ids = Tensor::full(7u32, (2, 130), device)?;
    let mut state = model.new_state();
    let mut logits = Vec::new();
    for offset in 0..130 {
        let ids = ids.narrow(1, offset, 1)?;
        logits.push(model.forward(&ids, offset, &mut state)?.logits()?);
    }
    let steps = Tensor::cat(&logits, 1)?;
    let whole = model.forward(&ids, 0, &mut model.new_state())?.logits()?;
    assert_close(&whole, &steps, tolerance(device));
    Ok(())
}
test_device!(one_token_repeated);

candle_core::with_webgpu! {
    /// Kernels that a layer with the gated delta rule takes for a token.
    #[test]
    fn kernels_of_a_layer_webgpu() -> Result<()> {
        // A separate device: tests that run in parallel count on others.
        let device = Device::new_webgpu(0)?;
        let step = |layers: usize| -> Result<u64> {
            let mut config = with("full_attention_interval", json!(100));
            config["num_hidden_layers"] = json!(layers);
            let model = decoder(&config.to_string(), &device)?;
            let mut state = model.new_state();
            let ids = token_ids(1, 3, 61, &device)?;
            model.next_logits(&ids.narrow(1, 0, 2)?, 0, &mut state)?;
            let before = device.as_webgpu_device()?.stats().dispatches;
            model.next_logits(&ids.narrow(1, 2, 1)?, 2, &mut state)?;
            Ok(device.as_webgpu_device()?.stats().dispatches - before)
        };
        let found = step(14)? - step(2)?;
        println!("{:.1}", found as f64 / 12.);
        assert!(found <= 12 * 32, "{found} in 12 layers");
        Ok(())
    }
}

/// Every weight is trained: both kinds of layers, over several chunks.
#[test]
fn gradients_reach_every_weight() -> Result<()> {
    struct Vars(Vec<(String, Var)>);
    impl WeightSource for Vars {
        fn contains(&self, name: &str) -> bool {
            Made.contains(name)
        }

        fn shape(&self, _: &str) -> Option<Shape> {
            None
        }

        fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
            let stored = at_once(Made.read(wanted)).and_then(|stored| {
                let Stored::Dense(tensor) = stored else {
                    bail!("not a dense tensor")
                };
                let var = Var::from_tensor(&tensor)?;
                let stored = var.as_tensor().clone().into();
                self.0.push((wanted.name.to_string(), var));
                Ok(stored)
            });
            Box::pin(std::future::ready(stored))
        }
    }
    let file: Value = serde_json::from_str(include_str!("../reference/qwen3_5.json")).unwrap();
    let spec = auto::config_spec(&file["cases"][0]["config"].to_string())?;
    let mut vars = Vars(Vec::new());
    let model = Decoder::load(spec, &mut vars, DType::F32, &Device::Cpu)?;
    let ids = token_ids(1, 67, 61, &Device::Cpu)?;
    let mut state = model.new_state();
    state.use_cache = false;
    let logits = model.forward(&ids, 0, &mut state)?.logits()?;
    let gradients = logits.sqr()?.mean_all()?.backward()?;
    for (name, var) in &vars.0 {
        let Some(gradient) = gradients.get(var) else {
            bail!("{name} has no gradient")
        };
        let largest = gradient.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(largest > 0. && largest.is_finite(), "{name}: {largest}");
    }
    Ok(())
}
