//! Recurrent models: a state of fixed size instead of keys and values.

use crate::common::{config, gguf, steps, VOCABULARY};
use crate::weights::{weight, Place};
use crate::Run;
use candle_core::{DType, Result, Shape, Tensor};
use candle_transformers::models::{
    based, mamba, mamba2, quantized_recurrent_gemma, quantized_rwkv_v5, quantized_rwkv_v6,
    recurrent_gemma, rwkv_v5, rwkv_v6, rwkv_v7,
};
use candle_transformers::quantized_var_builder::VarBuilder;
use std::collections::HashMap;

pub const RUNS: &[Run] = &[
    ("mamba", mamba),
    ("mamba2", mamba2),
    ("mamba2 in chunks", mamba2_in_chunks),
    ("rwkv_v5", rwkv_v5),
    ("rwkv_v6", rwkv_v6),
    ("rwkv_v7", |place| rwkv_v7(place, rwkv_v7::ModelVersion::V7)),
    ("rwkv_v7a", |place| {
        rwkv_v7(place, rwkv_v7::ModelVersion::V7a)
    }),
    ("rwkv_v7b", |place| {
        rwkv_v7(place, rwkv_v7::ModelVersion::V7b)
    }),
    ("quantized_rwkv_v5", quantized_rwkv_v5),
    ("quantized_rwkv_v6", quantized_rwkv_v6),
    ("recurrent_gemma", recurrent_gemma),
    ("quantized_recurrent_gemma", quantized_recurrent_gemma),
    ("based", based),
];

/// Tokens one at a time.
fn one_by_one(
    place: &Place,
    name: &str,
    mut forward: impl FnMut(&Tensor) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let ids = place.tokens(name, 7, VOCABULARY as u64)?;
    (0..7).map(|i| forward(&ids.narrow(1, i, 1)?)).collect()
}

fn mamba(place: &Place) -> Result<Vec<Tensor>> {
    let config = mamba::Config {
        d_model: 64,
        n_layer: 2,
        vocab_size: 125,
        pad_vocab_size_multiple: 8,
    };
    let model = mamba::Model::new(&config, place.weights("mamba"))?;
    let mut state = mamba::State::new(1, &config, DType::F32, &place.device)?;
    one_by_one(place, "mamba", |ids| {
        model.forward(&ids.squeeze(1)?, &mut state)
    })
}

fn mamba2_config() -> mamba2::Config {
    mamba2::Config {
        d_model: 64,
        n_layer: 2,
        vocab_size: 125,
        d_state: 24,
        expand: 2,
        headdim: 16,
        ngroups: 2,
        pad_vocab_size_multiple: 16,
    }
}

fn mamba2(place: &Place) -> Result<Vec<Tensor>> {
    let config = mamba2_config();
    let model = mamba2::Model::new(&config, place.weights("mamba2"))?;
    let mut state = mamba2::State::new(1, &config, DType::F32, &place.device)?;
    one_by_one(place, "mamba2", |ids| {
        model.forward(&ids.squeeze(1)?, &mut state)
    })
}

/// A prompt that ends within a chunk, and two tokens after it.
fn mamba2_in_chunks(place: &Place) -> Result<Vec<Tensor>> {
    let config = mamba2_config();
    let model = mamba2::Model::new(&config, place.weights("mamba2"))?;
    let mut state = mamba2::State::new(1, &config, DType::F32, &place.device)?;
    let ids = place.tokens("mamba2 in chunks", 13, VOCABULARY as u64)?;
    let mut outputs = vec![model.forward_prefill(&ids.narrow(1, 0, 11)?, &mut state, 4)?];
    for i in 11..13 {
        outputs.push(model.forward(&ids.narrow(1, i, 1)?.squeeze(1)?, &mut state)?);
    }
    Ok(outputs)
}

const RWKV: &str = r#"{
    "vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "attention_hidden_size": 64, "num_attention_heads": 16,
    "head_size": 16, "intermediate_size": null, "layer_norm_epsilon": 1e-5, "rescale_every": 6
}"#;

fn rwkv_v5(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(RWKV)?;
    let model = rwkv_v5::Model::new(&config, place.weights("rwkv5"))?;
    let mut state = rwkv_v5::State::new(1, &config, &place.device)?;
    one_by_one(place, "rwkv5", |ids| model.forward(ids, &mut state))
}

fn rwkv_v6(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(RWKV)?;
    let model = rwkv_v6::Model::new(&config, place.weights("rwkv6"))?;
    let mut state = rwkv_v6::State::new(1, &config, &place.device)?;
    one_by_one(place, "rwkv6", |ids| model.forward(ids, &mut state))
}

/// A complete prompt, which crates.io's processes token by token; tokens one at a time; then the state of the last layer.
fn rwkv_v7(place: &Place, version: rwkv_v7::ModelVersion) -> Result<Vec<Tensor>> {
    let config = rwkv_v7::Config {
        version,
        vocab_size: VOCABULARY,
        hidden_size: 64,
        num_hidden_layers: 3,
        head_size: 16,
        intermediate_size: None,
        rescale_every: 0,
    };
    let tensors = rwkv7_tensors(config.num_hidden_layers)?;
    let vb = candle_nn::VarBuilder::from_tensors(tensors, DType::F32, &place.device);
    let model = rwkv_v7::Model::new(&config, vb)?;
    let mut state = rwkv_v7::State::new(&config, &place.device)?;
    let ids = place.tokens("rwkv7", 40, VOCABULARY as u64)?;
    let numbers = ids.flatten_all()?.to_vec1()?;
    let mut outputs = vec![model.forward_seq(&numbers[..37], &mut state)?];
    for (i, number) in numbers.iter().enumerate().skip(37) {
        let id = ids.narrow(1, i, 1)?;
        outputs.push(model.forward(&id, &mut state, &[*number])?);
    }
    outputs.extend(state.per_layer.last().map(|layer| layer.att_kv.clone()));
    Ok(outputs)
}

/// The ranks of its small matrices are only in their shapes, so tensors are created in advance.
fn rwkv7_tensors(layers: usize) -> Result<HashMap<String, Tensor>> {
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("emb.weight".into(), vec![VOCABULARY, 64]),
        ("head.weight".into(), vec![VOCABULARY, 64]),
    ];
    let mut norm = |name: String, size: usize| {
        shapes.push((format!("{name}.weight"), vec![size]));
        shapes.push((format!("{name}.bias"), vec![size]));
    };
    norm("ln_out".into(), 64);
    norm("blocks.0.ln0".into(), 64);
    for layer in 0..layers {
        for part in ["ln1", "ln2", "att.ln_x", "qkv.lnv"] {
            norm(format!("blocks.{layer}.{part}"), 64);
        }
        for part in ["qkv.lnq", "qkv.lnk"] {
            norm(format!("blocks.{layer}.{part}"), 256);
        }
    }
    for layer in 0..layers {
        let mut add = |part: String, dims: &[usize]| {
            shapes.push((format!("blocks.{layer}.{part}"), dims.to_vec()));
        };
        for part in ["x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "k_k", "k_a"] {
            add(format!("att.{part}"), &[1, 1, 64]);
        }
        for (part, rank) in [("w", 8), ("a", 12), ("v", 4), ("g", 20)] {
            add(format!("att.{part}0"), &[1, 1, 64]);
            add(format!("att.{part}1"), &[64, rank]);
            add(format!("att.{part}2"), &[rank, 64]);
        }
        for part in ["receptance", "key", "value", "output"] {
            add(format!("att.{part}.weight"), &[64, 64]);
        }
        let others: [(&str, &[usize]); 20] = [
            ("att.r_k", &[4, 16]),
            ("ffn.x_k", &[1, 1, 64]),
            ("ffn.key.weight", &[256, 64]),
            ("ffn.value.weight", &[64, 256]),
            ("ffn.s_emb.weight", &[VOCABULARY, 1024]),
            ("ffn.s_emb_x.weight", &[1024, 64]),
            ("ffn.s0", &[1, 1, 256]),
            ("ffn.s1", &[64, 32]),
            ("ffn.s2", &[32, 256]),
            ("qkv.qq.weight", &[256, 64]),
            ("qkv.k1", &[64, 32]),
            ("qkv.k2", &[32, 256]),
            ("qkv.k_emb.weight", &[VOCABULARY, 256]),
            ("qkv.k_emb_x.weight", &[256, 64]),
            ("qkv.v1", &[64, 32]),
            ("qkv.v2", &[32, 64]),
            ("qkv.v_emb.weight", &[VOCABULARY, 64]),
            ("qkv.v_emb_x.weight", &[64, 64]),
            ("qkv.x_q", &[1, 1, 256]),
            ("qkv.x_k", &[1, 1, 256]),
        ];
        for (part, dims) in others {
            add(part.into(), dims);
        }
        add("qkv.x_v".into(), &[1, 1, 64]);
    }
    let made = shapes.into_iter().map(|(name, dims)| {
        let tensor = weight(&format!("rwkv7.{name}"), &Shape::from(dims))?;
        Ok((name, tensor))
    });
    made.collect()
}

/// A file with the common tensors of both versions, and `own`.
fn rwkv_file(place: &Place, name: &str, own: &[(&str, &[usize])]) -> Result<VarBuilder> {
    let mut tensors = vec![
        ("rwkv.embeddings.weight".to_string(), vec![128, 64]),
        ("head.weight".to_string(), vec![128, 64]),
    ];
    let norm = |tensors: &mut Vec<_>, name: String| {
        tensors.push((format!("{name}.weight"), vec![64]));
        tensors.push((format!("{name}.bias"), vec![64]));
    };
    norm(&mut tensors, "rwkv.ln_out".into());
    norm(&mut tensors, "rwkv.blocks.0.pre_ln".into());
    for layer in 0..2 {
        let layer = format!("rwkv.blocks.{layer}");
        for part in ["ln1", "ln2", "attention.ln_x"] {
            norm(&mut tensors, format!("{layer}.{part}"));
        }
        for part in ["key", "value", "receptance", "gate", "output"] {
            tensors.push((format!("{layer}.attention.{part}.weight"), vec![64, 64]));
        }
        for part in ["key", "value", "receptance", "gate"] {
            let name = format!("{layer}.attention.time_mix_{part}");
            tensors.push((name, vec![1, 1, 64]));
        }
        tensors.push((format!("{layer}.attention.time_faaaa"), vec![4, 16]));
        for part in ["key", "receptance"] {
            let name = format!("{layer}.feed_forward.time_mix_{part}");
            tensors.push((name, vec![1, 1, 64]));
        }
        let parts = [
            ("key", [224, 64]),
            ("receptance", [64, 64]),
            ("value", [64, 224]),
        ];
        for (part, dims) in parts {
            let name = format!("{layer}.feed_forward.{part}.weight");
            tensors.push((name, dims.to_vec()));
        }
        for (part, dims) in own {
            tensors.push((format!("{layer}.attention.{part}"), dims.to_vec()));
        }
    }
    gguf(place, name, &[], &tensors)?;
    VarBuilder::from_gguf(place.folder.join(format!("{name}.gguf")), &place.device)
}

fn quantized_rwkv_v5(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(RWKV)?;
    let vb = rwkv_file(place, "rwkv5", &[("time_decay", &[4, 16])])?;
    let model = quantized_rwkv_v5::Model::new(&config, vb)?;
    let mut state = quantized_rwkv_v5::State::new(1, &config, &place.device)?;
    one_by_one(place, "quantized rwkv5", |ids| {
        model.forward(ids, &mut state)
    })
}

fn quantized_rwkv_v6(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(RWKV)?;
    let own: [(&str, &[usize]); 7] = [
        ("time_decay", &[1, 1, 64]),
        ("time_decay_w1", &[64, 8]),
        ("time_decay_w2", &[8, 64]),
        ("time_mix_x", &[1, 1, 64]),
        ("time_mix_w", &[1, 1, 64]),
        ("time_mix_w1", &[64, 20]),
        ("time_mix_w2", &[5, 4, 64]),
    ];
    let vb = rwkv_file(place, "rwkv6", &own)?;
    let model = quantized_rwkv_v6::Model::new(&config, vb)?;
    let mut state = quantized_rwkv_v6::State::new(1, &config, &place.device)?;
    one_by_one(place, "quantized rwkv6", |ids| {
        model.forward(ids, &mut state)
    })
}

/// The window is longer than the sequence: crates.io's has none.
const RECURRENT_GEMMA: &str = r#"{
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 16, "lru_width": 96, "attention_window_size": 32, "conv1d_width": 4,
    "logits_soft_cap": 30.0, "hidden_activation": "gelu_pytorch_tanh", "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "_block_types": ["recurrent", "recurrent", "attention"], "attention_bias": false, "max_seq_len": 64
}"#;

fn recurrent_gemma(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(RECURRENT_GEMMA)?;
    let mut model = recurrent_gemma::Model::new(&config, place.weights("recurrent_gemma"))?;
    steps(place, "recurrent_gemma", |ids, position| {
        model.forward(ids, position)
    })
}

fn quantized_recurrent_gemma(place: &Place) -> Result<Vec<Tensor>> {
    let mut tensors = vec![
        ("embed_tokens.weight".to_string(), vec![128, 64]),
        ("final_norm.weight".to_string(), vec![64]),
    ];
    for layer in 0..3 {
        let attention: &[(&str, &[usize])] = &[
            ("q_proj.weight", &[64, 64]),
            ("k_proj.weight", &[16, 64]),
            ("v_proj.weight", &[16, 64]),
            ("o_proj.weight", &[64, 64]),
            ("o_proj.bias", &[64]),
        ];
        let recurrence: &[(&str, &[usize])] = &[
            ("linear_y.weight", &[96, 64]),
            ("linear_y.bias", &[96]),
            ("linear_x.weight", &[96, 64]),
            ("linear_x.bias", &[96]),
            ("linear_out.weight", &[64, 96]),
            ("linear_out.bias", &[64]),
            ("conv_1d.weight", &[96, 1, 4]),
            ("conv_1d.bias", &[96]),
            ("rg_lru.recurrent_param", &[96]),
            ("rg_lru.input_gate_weight", &[4, 24, 24]),
            ("rg_lru.input_gate_bias", &[4, 24]),
            ("rg_lru.recurrent_gate_weight", &[4, 24, 24]),
            ("rg_lru.recurrent_gate_bias", &[4, 24]),
        ];
        let mixer = if layer == 2 { attention } else { recurrence };
        for (part, dims) in mixer {
            let name = format!("layers.{layer}.temporal_block.{part}");
            tensors.push((name, dims.to_vec()));
        }
        let others: [(&str, &[usize]); 8] = [
            ("temporal_pre_norm.weight", &[64]),
            ("channel_pre_norm.weight", &[64]),
            ("mlp_block.gate_proj.weight", &[96, 64]),
            ("mlp_block.gate_proj.bias", &[96]),
            ("mlp_block.up_proj.weight", &[96, 64]),
            ("mlp_block.up_proj.bias", &[96]),
            ("mlp_block.down_proj.weight", &[64, 96]),
            ("mlp_block.down_proj.bias", &[64]),
        ];
        for (part, dims) in others {
            tensors.push((format!("layers.{layer}.{part}"), dims.to_vec()));
        }
    }
    gguf(place, "recurrent_gemma", &[], &tensors)?;
    let vb = VarBuilder::from_gguf(place.folder.join("recurrent_gemma.gguf"), &place.device)?;
    let mut model = quantized_recurrent_gemma::Model::new(&config(RECURRENT_GEMMA)?, vb)?;
    steps(place, "quantized recurrent_gemma", |ids, position| {
        model.forward(ids, position)
    })
}

/// Only prompts, within the window: after a prompt, crates.io's adds ones instead of keys, and has no window.
fn based(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(
        r#"{"vocab_size": 125, "n_embd": 64, "n_inner": 128, "n_layer": 4, "n_head": 4, "layer_norm_epsilon": 1e-5,
            "alt_mixer_layers": [1, 3], "alt_mixer_2_layers": [2],
            "alt_mixer": {"num_heads": 4, "feature_dim": 8, "feature_map": {"input_dim": 8}},
            "alt_mixer_2": {"num_heads": 4, "window_size": 32}}"#,
    )?;
    let lengths = [1, 2, 9];
    let outputs = lengths.iter().map(|&len| {
        let mut model = based::Model::new(&config, place.weights("based"))?;
        model.forward(&place.tokens("based", len, 125)?, 0)
    });
    outputs.collect()
}
