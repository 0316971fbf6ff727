//! Both forms of Stella and the layers of NV-Embed, over two texts of nine and five tokens.

use crate::common::VOCABULARY;
use crate::weights::Place;
use crate::Run;
use candle_core::{DType, Result, Tensor};
use candle_transformers::models::mistral;
use candle_transformers::models::nvembed_v2::embedding;
use candle_transformers::models::stella_en_v5::{Config, EmbedDim, EmbeddingModel, Model};

pub const RUNS: &[Run] = &[
    ("stella large", large),
    ("stella small", small),
    ("nvembed layers", nvembed),
];

/// Nine and five tokens, and a mask of the tokens.
fn texts(place: &Place, name: &str) -> Result<(Tensor, Tensor)> {
    let ids = place.tokens(name, 18, VOCABULARY as u64)?.reshape((2, 9))?;
    let mask: Vec<u32> = (0..18).map(|i| u32::from(i < 14)).collect();
    Ok((ids, Tensor::from_vec(mask, (2, 9), &place.device)?))
}

/// Only the layers: upstream's final block has fixed sizes, of a model of 7 billion parameters.
fn nvembed(place: &Place) -> Result<Vec<Tensor>> {
    let name = "nvembed layers";
    let config = mistral::Config {
        vocab_size: VOCABULARY,
        hidden_size: 64,
        intermediate_size: 96,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        max_position_embeddings: 32,
        sliding_window: Some(2),
        ..mistral::Config::config_7b_v0_1(false)
    };
    let (ids, mask) = texts(place, name)?;
    let mut layers = embedding::Model::new(&config, place.weights(name))?;
    let hidden = layers.forward(&mask.to_dtype(DType::F32)?, &ids, DType::F32)?;
    Ok(vec![hidden.get(0)?, hidden.get(1)?.narrow(0, 0, 5)?])
}

fn run(place: &Place, name: &str, config: Config) -> Result<Vec<Tensor>> {
    let config = Config {
        vocab_size: VOCABULARY,
        hidden_size: 64,
        intermediate_size: 96,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        max_position_embeddings: 32,
        embed_head: EmbedDim::Dim256.config(64),
        ..config
    };
    let (ids, mask) = texts(place, name)?;
    let hidden = Model::new(&config, place.weights(name))?.forward(&ids, &mask)?;
    let mut outputs = vec![hidden.get(0)?, hidden.get(1)?.narrow(0, 0, 5)?];
    let mut model = EmbeddingModel::new(&config, place.weights(name), place.weights(name))?;
    outputs.push(model.forward(&ids, &mask)?);
    outputs.push(model.forward_norm(&ids, &mask)?);
    Ok(outputs)
}

fn large(place: &Place) -> Result<Vec<Tensor>> {
    run(
        place,
        "stella large",
        Config::new_1_5_b_v5(EmbedDim::Dim256),
    )
}

fn small(place: &Place) -> Result<Vec<Tensor>> {
    run(
        place,
        "stella small",
        Config::new_400_m_v5(EmbedDim::Dim256),
    )
}
