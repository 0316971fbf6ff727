//! The Gemmas. Windows have the length of the sequence, and `query_pre_attn_scalar` is `head_dim`: Candle's models ignore other values in
//! part.

use crate::common::{config, steps};
use crate::weights::Place;
use crate::Run;
use candle_core::{Result, Tensor};
use candle_transformers::models::{gemma, gemma2, gemma3};

pub const RUNS: &[Run] = &[
    ("gemma", gemma),
    ("gemma embeds", gemma_embeds),
    ("gemma2", gemma2),
    ("gemma3", gemma3),
];

const GEMMA: &str = r#"{
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 64, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
    "attention_bias": true, "hidden_activation": "gelu_pytorch_tanh"
}"#;

fn gemma(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = gemma::Model::new(false, &config(GEMMA)?, place.weights("gemma"))?;
    steps(place, "gemma", |ids, position| model.forward(ids, position))
}

/// Embeddings without a mask see each other; with one, the mask decides. Also the state before the last norm.
fn gemma_embeds(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = gemma::Model::new(false, &config(GEMMA)?, place.weights("gemma"))?;
    let embeds = model.embed_tokens().embeddings().narrow(0, 3, 6)?;
    let embeds = embeds.unsqueeze(0)?;
    let whole = model.forward_embeds(&embeds, None, 0)?;
    let next = model.forward(&place.tokens("gemma", 1, 128)?, 6)?;
    model.clear_kv_cache();
    let mask = place.input("gemma mask", (1, 1, 6, 6))?;
    let masked = model.forward_embeds_without_projection(&embeds, Some(&mask), 0)?;
    Ok(vec![whole, next, masked])
}

fn gemma2(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(
        r#"{
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 64, "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6, "attention_bias": false, "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 32, "sliding_window": 64
    }"#,
    )?;
    let mut model = gemma2::Model::new(false, &config, place.weights("gemma2"))?;
    steps(place, "gemma2", |ids, position| {
        model.forward(ids, position)
    })
}

/// With one key and value head: Candle's cache supports no more in a prompt.
fn gemma3(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(
        r#"{
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 64, "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0, "rms_norm_eps": 1e-6, "attention_bias": false,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 32, "sliding_window": 16,
        "sliding_window_pattern": 3
    }"#,
    )?;
    let mut model = gemma3::Model::new(false, &config, place.weights("gemma3"))?;
    steps(place, "gemma3", |ids, position| {
        model.forward(ids, position)
    })
}
