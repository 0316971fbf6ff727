//! Dense families that are Llama except for a few switches. Windows are longer than the sequences: Candle applies them only to prompts.
//! Yi's configuration is only available in two sizes, which are too large here.

use crate::common::{config, gguf, hugging_face, steps};
use crate::weights::Place;
use crate::Run;
use candle_core::quantized::gguf_file::Value;
use candle_core::{DType, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::smol::{quantized_smollm3, smollm3};
use candle_transformers::models::{
    glm4_new, granite, helium, llama2_c, llama2_c_weights, mistral, olmo, olmo2, phi3,
    quantized_llama2_c, quantized_mistral, quantized_stable_lm, stable_lm,
};
use std::collections::HashMap;

pub const RUNS: &[Run] = &[
    ("mistral", mistral),
    ("mistral embeds", mistral_embeds),
    ("quantized_mistral", quantized_mistral),
    ("phi3", phi3),
    ("phi3 rotary", phi3_rotary),
    ("helium", helium),
    ("granite", granite),
    ("smollm3", smollm3),
    ("smollm3 hidden", smollm3_hidden),
    ("quantized_smollm3", quantized_smollm3),
    ("quantized_smollm3 rotary", quantized_smollm3_rotary),
    ("llama2_c", llama2_c),
    ("llama2_c file", llama2_c_file),
    ("quantized_llama2_c", quantized_llama2_c),
    ("glm4_new", glm4_new),
    ("glm4_new hidden", glm4_new_hidden),
    ("olmo", olmo),
    ("olmo2", olmo2),
    ("stable_lm", stable_lm),
    ("quantized_stable_lm", quantized_stable_lm),
];

const MISTRAL: &str = r#"{
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "sliding_window": 32, "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5
}"#;

fn mistral(place: &Place) -> Result<Vec<Tensor>> {
    let mut config: mistral::Config = config(MISTRAL)?;
    config.head_dim = Some(32);
    let mut model = mistral::Model::new(&config, place.weights("mistral"))?;
    steps(place, "mistral", |ids, position| {
        model.forward(ids, position)
    })
}

fn mistral_embeds(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = mistral::Model::new(&config(MISTRAL)?, place.weights("mistral"))?;
    let embeds = model.embed_tokens().embeddings().narrow(0, 3, 6)?;
    let whole = model.forward_embeds(&embeds.unsqueeze(0)?, None, 0)?;
    let next = embeds.narrow(0, 2, 1)?.unsqueeze(0)?;
    Ok(vec![whole, model.forward_embeds(&next, None, 6)?])
}

/// The parts of a Llama's layer with these sizes.
const LLAMA: &[(&str, &[usize])] = &[
    ("input_layernorm.weight", &[64]),
    ("self_attn.q_proj.weight", &[64, 64]),
    ("self_attn.k_proj.weight", &[32, 64]),
    ("self_attn.v_proj.weight", &[32, 64]),
    ("self_attn.o_proj.weight", &[64, 64]),
    ("post_attention_layernorm.weight", &[64]),
    ("mlp.gate_proj.weight", &[96, 64]),
    ("mlp.up_proj.weight", &[96, 64]),
    ("mlp.down_proj.weight", &[64, 96]),
];

fn quantized_mistral(place: &Place) -> Result<Vec<Tensor>> {
    let vb = hugging_face(place, "mistral", 2, LLAMA, &[])?;
    let mut model = quantized_mistral::Model::new(&config(MISTRAL)?, vb)?;
    steps(place, "mistral", |ids, position| {
        model.forward(ids, position)
    })
}

const PHI3: &str = r#"{
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "partial_rotary_factor": 0.5
}"#;

fn phi3(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = phi3::Model::new(&config(PHI3)?, place.weights("phi3"))?;
    steps(place, "phi3", |ids, position| model.forward(ids, position))
}

fn phi3_rotary(place: &Place) -> Result<Vec<Tensor>> {
    let rotary = phi3::RotaryEmbedding::new(DType::F32, &config(PHI3)?, &place.device)?;
    let q = place.input("phi3 q", (2, 4, 5, 16))?;
    let k = place.input("phi3 k", (2, 2, 5, 16))?;
    let (q, k) = rotary.apply_rotary_emb_qkv(&q, &k, 7)?;
    Ok(vec![q, k])
}

fn helium(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(
        r#"{
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "rope_theta": 100000.0,
        "rms_norm_eps": 1e-8, "hidden_act": "silu", "attention_bias": false, "mlp_bias": true, "bos_token_id": 1,
        "eos_token_id": 2, "tie_word_embeddings": false
    }"#,
    )?;
    let mut model = helium::Model::new(&config, place.weights("helium"))?;
    let table = model.embed_tokens().embeddings().clone();
    let mut outputs = steps(place, "helium", |ids, position| {
        model.forward(ids, position)
    })?;
    outputs.push(table);
    Ok(outputs)
}

fn granite(place: &Place) -> Result<Vec<Tensor>> {
    let config: granite::GraniteConfig = config(
        r#"{
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "eos_token_id": [1, 2],
        "rope_scaling": {"rope_type": "granite", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}
    }"#,
    )?;
    let config = config.into_config(false);
    let model = granite::Granite::load(place.weights("granite"), &config)?;
    let mut cache = granite::Cache::new(true, DType::F32, &config, &place.device)?;
    steps(place, "granite", |ids, position| {
        model.forward(ids, position, &mut cache)
    })
}

const SMOLLM3: &str = r#"{
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rope_theta": 2000000.0, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "tie_word_embeddings": true, "no_rope_layer_interval": 4, "no_rope_layers": [1, 0],
    "attention_bias": true, "mlp_bias": true
}"#;

fn smollm3(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = smollm3::ModelForCausalLM::new(&config(SMOLLM3)?, place.weights("smollm3"))?;
    steps(place, "smollm3", |ids, position| {
        model.forward(ids, position)
    })
}

fn smollm3_hidden(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = smollm3::Model::new(&config(SMOLLM3)?, place.weights("smollm3"))?;
    steps(place, "smollm3", |ids, position| {
        model.forward(ids, position)
    })
}

/// With upstream's interleaved attention: its other path only supports heads of 128 elements.
fn quantized_smollm3(place: &Place) -> Result<Vec<Tensor>> {
    let whole = Value::U32;
    let metadata = [
        ("general.architecture", Value::String("smollm3".into())),
        ("smollm3.vocab_size", whole(128)),
        ("smollm3.attention.head_count", whole(4)),
        ("smollm3.attention.head_count_kv", whole(2)),
        ("smollm3.embedding_length", whole(64)),
        ("smollm3.feed_forward_length", whole(96)),
        ("smollm3.context_length", whole(64)),
        ("smollm3.block_count", whole(4)),
        ("smollm3.attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
        ("smollm3.rope.freq_base", Value::F32(2_000_000.)),
        ("smollm3.rope.dimension_count", whole(16)),
    ];
    let mut tensors = vec![
        ("token_embd.weight".to_string(), vec![128, 64]),
        ("output_norm.weight".to_string(), vec![64]),
    ];
    for layer in 0..4 {
        let parts: [(&str, &[usize]); 9] = [
            ("attn_norm.weight", &[64]),
            ("attn_q.weight", &[64, 64]),
            ("attn_k.weight", &[32, 64]),
            ("attn_v.weight", &[32, 64]),
            ("attn_output.weight", &[64, 64]),
            ("ffn_norm.weight", &[64]),
            ("ffn_gate.weight", &[96, 64]),
            ("ffn_up.weight", &[96, 64]),
            ("ffn_down.weight", &[64, 96]),
        ];
        tensors.extend(parts.map(|(part, dims)| (format!("blk.{layer}.{part}"), dims.to_vec())));
    }
    gguf(place, "smollm3", &metadata, &tensors)?;
    let mut model = quantized_smollm3::QuantizedModelForCausalLM::from_gguf(
        place.folder.join("smollm3.gguf"),
        &place.device,
        true,
    )?;
    steps(place, "quantized_smollm3", |ids, position| {
        model.forward(ids, position)
    })
}

fn quantized_smollm3_rotary(place: &Place) -> Result<Vec<Tensor>> {
    let config = quantized_smollm3::QuantizedConfig {
        vocab_size: 128,
        hidden_size: 64,
        intermediate_size: 96,
        num_hidden_layers: 4,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        max_position_embeddings: 64,
        rope_theta: 2_000_000.,
        rms_norm_eps: 1e-6,
        rope_dimension_count: 16,
        no_rope_layer_interval: Some(4),
    };
    let q = place.input("smollm3 q", (2, 4, 5, 16))?;
    let k = place.input("smollm3 k", (2, 2, 5, 16))?;
    let mut outputs = Vec::new();
    for neighbours in [false, true] {
        let device = &place.device;
        let rotary =
            quantized_smollm3::RotaryEmbedding::new(DType::F32, &config, device, neighbours)?;
        let (q, k) = rotary.apply_rotary_emb(&q, &k, 7)?;
        let (cos, sin) = rotary.cos_sin_at(9);
        outputs.extend([q, k, Tensor::new(cos, device)?, Tensor::new(sin, device)?]);
    }
    Ok(outputs)
}

fn llama2_c_config() -> llama2_c::Config {
    llama2_c::Config {
        dim: 64,
        hidden_dim: 96,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        vocab_size: 128,
        seq_len: 64,
        norm_eps: 1e-5,
    }
}

/// Angles are among the weights, so any numbers are valid. Also the part of the cache that a caller can read and write.
fn llama2_c(place: &Place) -> Result<Vec<Tensor>> {
    let (config, vb) = (llama2_c_config(), place.weights("llama2_c"));
    let model = llama2_c::Llama::load(vb.clone(), config.clone())?;
    let mut cache = llama2_c::Cache::new(true, &config, vb.pp("rot"))?;
    let mut outputs = steps(place, "llama2_c", |ids, position| {
        model.forward(ids, position, &mut cache)
    })?;
    outputs.extend([cache.cos.clone(), cache.sin.clone(), cache.mask(3, 2)?]);
    for (k, v) in cache.kvs.iter_mut().flatten() {
        outputs.extend([k.clone(), v.clone()]);
        (*k, *v) = (k.narrow(1, 0, 5)?, v.narrow(1, 0, 5)?);
    }
    let ids = place.tokens("llama2_c next", 2, 128)?;
    outputs.push(model.forward(&ids, 5, &mut cache)?);
    let mut fresh = cache.clone();
    fresh.kvs = vec![None; 2];
    outputs.push(model.forward(&ids, 0, &mut fresh)?);
    outputs.push(model.forward(&ids, 7, &mut cache)?);
    Ok(outputs)
}

/// From the bytes of a file, with equal numbers of key heads and query heads: there Candle reads the file correctly.
fn llama2_c_file(place: &Place) -> Result<Vec<Tensor>> {
    let sizes = [32i32, 48, 2, 4, 4, 128, 16];
    let mut bytes: Vec<u8> = sizes.iter().flat_map(|size| size.to_le_bytes()).collect();
    let count = 128 * 32 + 2 * (2 * 32 + 4 * 32 * 32 + 3 * 32 * 48) + 32 + 2 * 16 * 4;
    let numbers = place.input("llama2_c file", count)?.to_vec1::<f32>()?;
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    let mut reader = bytes.as_slice();
    let config = llama2_c::Config::from_reader(&mut reader)?;
    let device = &place.device;
    let weights = llama2_c_weights::TransformerWeights::from_reader(&mut reader, &config, device)?;
    let vb = weights.var_builder(&config, device)?;
    let model = llama2_c::Llama::load(vb.clone(), config.clone())?;
    let mut cache = llama2_c::Cache::new(false, &config, vb.pp("rot"))?;
    let ids = place.tokens("llama2_c file", 7, 128)?;
    Ok(vec![model.forward(&ids, 0, &mut cache)?])
}

fn quantized_llama2_c(place: &Place) -> Result<Vec<Tensor>> {
    let config = llama2_c_config();
    let vb = hugging_face(place, "llama2_c", 2, LLAMA, &[])?;
    let model = quantized_llama2_c::QLlama::load(vb, config.clone())?;
    let empty = VarBuilder::from_tensors(HashMap::new(), DType::F32, &place.device);
    let mut cache = llama2_c::Cache::new(true, &config, empty)?;
    steps(place, "llama2_c", |ids, position| {
        model.forward(ids, position, &mut cache)
    })
}

const GLM4: &str = r#"{
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 64, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "tie_word_embeddings": false, "attention_bias": true, "partial_rotary_factor": 0.5,
    "eos_token_id": [1, 2]
}"#;

/// One row: Candle rotates only the first.
fn glm4_new(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = glm4_new::ModelForCausalLM::new(&config(GLM4)?, place.weights("glm4_new"))?;
    steps(place, "glm4_new", |ids, position| {
        model.forward(ids, position)
    })
}

fn glm4_new_hidden(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = glm4_new::Model::new(&config(GLM4)?, place.weights("glm4_new"))?;
    steps(place, "glm4_new", |ids, position| {
        model.forward(ids, position)
    })
}

fn olmo(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(
        r#"{
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "rope_theta": 10000.0, "hidden_act": "silu",
        "attention_bias": true, "tie_word_embeddings": false, "clip_qkv": 0.8
    }"#,
    )?;
    let mut model = olmo::Model::new(&config, place.weights("olmo"))?;
    steps(place, "olmo", |ids, position| model.forward(ids, position))
}

fn olmo2(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(
        r#"{
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "rope_theta": 10000.0, "hidden_act": "silu",
        "attention_bias": false, "tie_word_embeddings": true, "rms_norm_eps": 1e-6
    }"#,
    )?;
    let mut model = olmo2::Model::new(&config, place.weights("olmo2"))?;
    steps(place, "olmo2", |ids, position| model.forward(ids, position))
}

const STABLE_LM: &str = r#"{
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rope_theta": 10000.0, "hidden_act": "silu",
    "partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5, "use_cache": true, "use_qkv_bias": true
}"#;

fn stable_lm(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = stable_lm::Model::new(&config(STABLE_LM)?, place.weights("stable_lm"))?;
    steps(place, "stable_lm", |ids, position| {
        model.forward(ids, position)
    })
}

fn quantized_stable_lm(place: &Place) -> Result<Vec<Tensor>> {
    let parts: [(&str, &[usize]); 14] = [
        ("input_layernorm.weight", &[64]),
        ("input_layernorm.bias", &[64]),
        ("self_attn.q_proj.weight", &[64, 64]),
        ("self_attn.q_proj.bias", &[64]),
        ("self_attn.k_proj.weight", &[32, 64]),
        ("self_attn.k_proj.bias", &[32]),
        ("self_attn.v_proj.weight", &[32, 64]),
        ("self_attn.v_proj.bias", &[32]),
        ("self_attn.o_proj.weight", &[64, 64]),
        ("post_attention_layernorm.weight", &[64]),
        ("post_attention_layernorm.bias", &[64]),
        ("mlp.gate_proj.weight", &[96, 64]),
        ("mlp.up_proj.weight", &[96, 64]),
        ("mlp.down_proj.weight", &[64, 96]),
    ];
    let vb = hugging_face(place, "stable_lm", 2, &parts, &["model.norm.bias"])?;
    let mut model = quantized_stable_lm::Model::new(&config(STABLE_LM)?, vb)?;
    steps(place, "stable_lm", |ids, position| {
        model.forward(ids, position)
    })
}
