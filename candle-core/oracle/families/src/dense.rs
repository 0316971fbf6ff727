//! Decoders that are not quite Llama: layer norms, plain MLPs, parallel blocks, learned positions.
//!
//! MPT is not included: its only configuration that can be built outside of crates.io's crate has 3 billion parameters.

use crate::common::{config, gguf, steps, VOCABULARY};
use crate::weights::{weight, Place};
use crate::Run;
use candle_core::{bail, DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::{
    bigcode, chatglm, codegeex4_9b, falcon, glm4, mixformer, phi, quantized_mixformer, starcoder2,
};
use candle_transformers::quantized_var_builder;

pub const RUNS: &[Run] = &[
    ("phi", phi),
    ("starcoder2", starcoder2),
    ("falcon", falcon),
    ("mixformer", mixformer),
    ("mixformer v2", mixformer_v2),
    ("mixformer image", mixformer_image),
    ("quantized_mixformer", quantized_mixformer),
    ("quantized_mixformer v2", quantized_mixformer_v2),
    ("bigcode", bigcode),
    ("chatglm", chatglm),
    ("codegeex4", codegeex4),
    ("glm4", glm4),
];

fn phi(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(
        r#"{"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "hidden_act": "gelu_new", "max_position_embeddings": 64, "layer_norm_eps": 1e-5,
            "tie_word_embeddings": false, "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "qk_layernorm": false}"#,
    )?;
    let mut model = phi::Model::new(&config, place.weights("phi"))?;
    steps(place, "phi", |ids, _| model.forward(ids))
}

/// The window is longer than the sequence: crates.io's applies it only to the prompt, and one position too long.
fn starcoder2(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(
        r#"{"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 64, "norm_epsilon": 1e-5,
            "rope_theta": 10000.0, "use_bias": true, "sliding_window": 32}"#,
    )?;
    let mut model = starcoder2::Model::new(&config, place.weights("starcoder2"))?;
    steps(place, "starcoder2", |ids, position| {
        model.forward(ids, position)
    })
}

/// Weights by name; those of one layer are small.
struct Small(&'static str);

impl SimpleBackend for Small {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let mut weight = weight(name, &s)?;
        if name.contains(self.0) {
            weight = (weight * 0.02)?;
        }
        weight.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} requires a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

/// The activation's input is small: there crates.io's GELU by tanh is close to the model's GELU by erf.
fn falcon(place: &Place) -> Result<Vec<Tensor>> {
    let config = falcon::Config {
        vocab_size: VOCABULARY,
        hidden_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        ..falcon::Config::default()
    };
    let backend = Box::new(Small("dense_h_to_4h"));
    let vb = VarBuilder::from_backend(backend, DType::F32, place.device.clone());
    let mut model = falcon::Falcon::load(vb.pp("falcon"), config)?;
    steps(place, "falcon", |ids, _| model.forward(ids))
}

const MIXFORMER: &str = r#"{
    "vocab_size": 128, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_inner": 96, "n_head": 4, "rotary_dim": 8,
    "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": false, "pad_vocab_size_multiple": 64
}"#;

fn mixformer(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("mixformer");
    let mut model = mixformer::MixFormerSequentialForCausalLM::new(&config(MIXFORMER)?, vb)?;
    steps(place, "mixformer", |ids, _| model.forward(ids))
}

fn mixformer_v2(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("mixformer");
    let mut model = mixformer::MixFormerSequentialForCausalLM::new_v2(&config(MIXFORMER)?, vb)?;
    steps(place, "mixformer v2", |ids, _| model.forward(ids))
}

fn mixformer_image(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("mixformer");
    let mut model = mixformer::MixFormerSequentialForCausalLM::new_v2(&config(MIXFORMER)?, vb)?;
    let ids = place.tokens("mixformer image", 6, 128)?;
    let image = place.input("mixformer image", (1, 5, 64))?;
    let first = model.forward_with_img(&ids.narrow(1, 0, 1)?, &ids.narrow(1, 1, 4)?, &image)?;
    Ok(vec![first, model.forward(&ids.narrow(1, 5, 1)?)?])
}

/// The file of a model with these tensors, those of a layer with its number as prefix.
fn file(
    place: &Place,
    name: &str,
    layers: [&str; 2],
    layer: &[(&str, &[usize])],
    others: &[(&str, &[usize])],
) -> Result<quantized_var_builder::VarBuilder> {
    let own = |(name, dims): &(&str, &[usize])| (name.to_string(), dims.to_vec());
    let mut tensors: Vec<_> = others.iter().map(own).collect();
    for prefix in layers {
        tensors.extend(
            layer
                .iter()
                .map(|(part, dims)| (format!("{prefix}.{part}"), dims.to_vec())),
        );
    }
    gguf(place, name, &[], &tensors)?;
    let path = place.folder.join(format!("{name}.gguf"));
    quantized_var_builder::VarBuilder::from_gguf(path, &place.device)
}

const MIXFORMER_LAYER: &[(&str, &[usize])] = &[
    ("ln.weight", &[64]),
    ("ln.bias", &[64]),
    ("mixer.Wqkv.weight", &[192, 64]),
    ("mixer.Wqkv.bias", &[192]),
    ("mixer.out_proj.weight", &[64, 64]),
    ("mixer.out_proj.bias", &[64]),
    ("mlp.fc1.weight", &[96, 64]),
    ("mlp.fc1.bias", &[96]),
    ("mlp.fc2.weight", &[64, 96]),
    ("mlp.fc2.bias", &[64]),
];

fn quantized_mixformer(place: &Place) -> Result<Vec<Tensor>> {
    let others: [(&str, &[usize]); 5] = [
        ("layers.0.wte.weight", &[128, 64]),
        ("layers.3.ln.weight", &[64]),
        ("layers.3.ln.bias", &[64]),
        ("layers.3.linear.weight", &[128, 64]),
        ("layers.3.linear.bias", &[128]),
    ];
    let layers = ["layers.1", "layers.2"];
    let vb = file(place, "mixformer", layers, MIXFORMER_LAYER, &others)?;
    let config = config(MIXFORMER)?;
    let mut model = quantized_mixformer::MixFormerSequentialForCausalLM::new(&config, vb)?;
    steps(place, "quantized_mixformer", |ids, _| model.forward(ids))
}

/// With an image, followed by a token.
fn quantized_mixformer_v2(place: &Place) -> Result<Vec<Tensor>> {
    let others: [(&str, &[usize]); 5] = [
        ("transformer.embd.wte.weight", &[128, 64]),
        ("lm_head.ln.weight", &[64]),
        ("lm_head.ln.bias", &[64]),
        ("lm_head.linear.weight", &[128, 64]),
        ("lm_head.linear.bias", &[128]),
    ];
    let layers = ["transformer.h.0", "transformer.h.1"];
    let vb = file(place, "mixformer v2", layers, MIXFORMER_LAYER, &others)?;
    let config = config(MIXFORMER)?;
    let mut model = quantized_mixformer::MixFormerSequentialForCausalLM::new_v2(&config, vb)?;
    let ids = place.tokens("mixformer image", 6, 128)?;
    let image = place.input("mixformer image", (1, 5, 64))?;
    let first = model.forward_with_img(&ids.narrow(1, 0, 1)?, &ids.narrow(1, 1, 4)?, &image)?;
    Ok(vec![first, model.forward(&ids.narrow(1, 5, 1)?)?])
}

/// With one key head: with one for each query head, crates.io's fails.
fn bigcode(place: &Place) -> Result<Vec<Tensor>> {
    let config = bigcode::Config {
        vocab_size: VOCABULARY,
        max_position_embeddings: 64,
        num_hidden_layers: 2,
        hidden_size: 64,
        layer_norm_epsilon: 1e-5,
        n_inner: Some(96),
        num_attention_heads: 4,
        multi_query: true,
        use_cache: true,
    };
    let mut model = bigcode::GPTBigCode::load(place.weights("bigcode"), config)?;
    steps(place, "bigcode", |ids, position| {
        model.forward(ids, position)
    })
}

/// ChatGLM's fields are set directly, not deserialised: it has no `Deserialize`.
fn chatglm(place: &Place) -> Result<Vec<Tensor>> {
    let config = chatglm::Config {
        num_layers: 2,
        padded_vocab_size: VOCABULARY,
        hidden_size: 64,
        ffn_hidden_size: 96,
        kv_channels: 16,
        num_attention_heads: 4,
        seq_length: 64,
        ..chatglm::Config::glm3_6b()
    };
    let mut model = chatglm::Model::new(&config, place.weights("chatglm"))?;
    steps(place, "chatglm", |ids, _| model.forward(ids))
}

fn codegeex4(place: &Place) -> Result<Vec<Tensor>> {
    let config = codegeex4_9b::Config {
        num_layers: 2,
        padded_vocab_size: VOCABULARY,
        hidden_size: 64,
        ffn_hidden_size: 96,
        kv_channels: 16,
        num_attention_heads: 4,
        seq_length: 64,
        ..codegeex4_9b::Config::codegeex4()
    };
    let mut model = codegeex4_9b::Model::new(&config, place.weights("chatglm"))?;
    steps(place, "codegeex4", |ids, _| model.forward(ids))
}

/// With biases in all layers and layer norms.
fn glm4(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(
        r#"{"num_layers": 2, "padded_vocab_size": 128, "hidden_size": 64, "ffn_hidden_size": 96, "kv_channels": 16,
            "num_attention_heads": 4, "seq_length": 64, "layernorm_epsilon": 1e-5, "rmsnorm": false,
            "apply_residual_connection_post_layernorm": false, "post_layer_norm": true, "add_bias_linear": true,
            "add_qkv_bias": true, "bias_dropout_fusion": true, "multi_query_attention": true, "multi_query_group_num": 2,
            "apply_query_key_layer_scaling": true, "attention_softmax_in_fp32": true, "fp32_residual_connection": false,
            "rope_ratio": 500, "eos_token_id": [1, 2]}"#,
    )?;
    let mut model = glm4::Model::new(&config, place.weights("glm4"))?;
    steps(place, "glm4", |ids, _| model.forward(ids))
}
