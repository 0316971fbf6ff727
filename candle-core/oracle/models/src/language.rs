//! Text models.

use crate::weights::Place;
use candle_core::{DType, Result, Tensor};
use candle_transformers::models::{bert, llama, mistral, phi, qwen2, t5};

const VOCABULARY: usize = 128;

/// A prompt and, with the cache that it fills, two single tokens.
fn steps(
    place: &Place,
    name: &str,
    mut forward: impl FnMut(&Tensor, usize) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let prompt = place.tokens(name, 9, VOCABULARY as u64)?;
    let mut outputs = vec![forward(&prompt, 0)?];
    for position in 9..11 {
        outputs.push(forward(&prompt.narrow(1, position - 6, 1)?, position)?);
    }
    Ok(outputs)
}

pub fn llama(place: &Place) -> Result<Vec<Tensor>> {
    let config = llama::Config {
        hidden_size: 64,
        intermediate_size: 96,
        vocab_size: VOCABULARY,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        max_position_embeddings: 64,
        ..llama::Config::config_7b_v2(false)
    };
    let mut cache = llama::Cache::new(true, DType::F32, &config, &place.device)?;
    let model = llama::Llama::load(place.weights("llama"), &config)?;
    steps(place, "llama", |ids, position| {
        model.forward(ids, position, &mut cache)
    })
}

pub fn qwen2(place: &Place) -> Result<Vec<Tensor>> {
    let config = qwen2::Config {
        vocab_size: VOCABULARY,
        hidden_size: 64,
        intermediate_size: 96,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        max_position_embeddings: 64,
        sliding_window: 64,
        max_window_layers: 2,
        tie_word_embeddings: true,
        rope_theta: 10_000.,
        rms_norm_eps: 1e-6,
        use_sliding_window: false,
        hidden_act: candle_nn::Activation::Silu,
    };
    let mut model = qwen2::ModelForCausalLM::new(&config, place.weights("qwen2"))?;
    steps(place, "qwen2", |ids, position| model.forward(ids, position))
}

pub fn mistral(place: &Place) -> Result<Vec<Tensor>> {
    let config = mistral::Config {
        vocab_size: VOCABULARY,
        hidden_size: 64,
        intermediate_size: 96,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        max_position_embeddings: 64,
        sliding_window: Some(6),
        ..mistral::Config::config_7b_v0_1(false)
    };
    let mut model = mistral::Model::new(&config, place.weights("mistral"))?;
    steps(place, "mistral", |ids, position| {
        model.forward(ids, position)
    })
}

pub fn phi(place: &Place) -> Result<Vec<Tensor>> {
    let config = r#"{
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "gelu_new",
        "max_position_embeddings": 64, "layer_norm_eps": 1e-5, "tie_word_embeddings": false,
        "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "qk_layernorm": false
    }"#;
    let config: phi::Config = serde_json::from_str(config).map_err(candle_core::Error::wrap)?;
    let mut model = phi::Model::new(&config, place.weights("phi"))?;
    steps(place, "phi", |ids, _| model.forward(ids))
}

pub fn bert(place: &Place) -> Result<Vec<Tensor>> {
    let config = bert::Config {
        vocab_size: VOCABULARY,
        hidden_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 96,
        max_position_embeddings: 64,
        ..bert::Config::default()
    };
    let model = bert::BertForMaskedLM::load(place.weights("bert-for-masks"), &config)?;
    let ids = place.tokens("bert", 12, VOCABULARY as u64)?;
    // The last three are padding.
    let mask: Vec<_> = (0..12).map(|i| u32::from(i < 9)).collect();
    let mask = Tensor::from_vec(mask, (1, 12), &place.device)?;
    Ok(vec![model.forward(
        &ids,
        &ids.zeros_like()?,
        Some(&mask),
    )?])
}

pub fn t5(place: &Place) -> Result<Vec<Tensor>> {
    let config = t5::Config {
        vocab_size: VOCABULARY,
        d_model: 64,
        d_kv: 16,
        d_ff: 96,
        num_layers: 2,
        num_decoder_layers: Some(2),
        num_heads: 4,
        relative_attention_num_buckets: 8,
        relative_attention_max_distance: 16,
        is_decoder: false,
        is_encoder_decoder: true,
        use_cache: true,
        ..t5::Config::default()
    };
    let mut model = t5::T5ForConditionalGeneration::load(place.weights("t5"), &config)?;
    let encoded = model.encode(&place.tokens("t5", 10, VOCABULARY as u64)?)?;
    let first = place.tokens("t5 decoder", 3, VOCABULARY as u64)?;
    let logits = model.decode(&first, &encoded)?;
    let next = model.decode(&first.narrow(1, 1, 1)?, &encoded)?;
    Ok(vec![encoded, logits, next])
}
