//! Models of vectors that have the layers of a decoder.

use std::sync::Arc;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use super::families::padding;
use super::{EncoderConfig, Run};
use crate::auto::config::{parse, Config};
use crate::auto::{layers_spec, llama_spec};
use crate::blocks::encoder::below;
use crate::blocks::{Decoder, DecoderSpec, Head};
use crate::models::nvembed_v2::model::{LatentConfig, Model as NvEmbed};
use crate::models::{embedding_gemma, mistral};

/// Decoders of which there are models that make vectors. Their configurations are those of `auto`.
pub(super) const DECODERS: &[&str] = &["gemma3_text", "mistral", "qwen2", "qwen3"];

pub(super) fn read_nvembed(model_type: &'static str, json: &Config) -> Result<EncoderConfig> {
    #[derive(serde::Deserialize)]
    struct Block {
        num_latents_value: Option<usize>,
        num_cross_heads: Option<usize>,
        latent_dim_head: Option<usize>,
    }
    #[derive(serde::Deserialize)]
    struct Latent {
        latent_attention_config: Block,
    }
    let config: mistral::Config = json.parse()?;
    let Latent {
        latent_attention_config: block,
    } = json.parse()?;
    let own = LatentConfig::default();
    let latent = LatentConfig {
        latents: block.num_latents_value.unwrap_or(own.latents),
        heads: block.num_cross_heads.unwrap_or(own.heads),
        head_dim: block.latent_dim_head.unwrap_or(own.head_dim),
    };
    Ok(EncoderConfig {
        model_type,
        size: config.hidden_size,
        max_tokens: config.max_position_embeddings,
        vocab: config.vocab_size,
        padding: padding(json)?,
        causal: false,
        load: Arc::new(move |vb| {
            let model = NvEmbed::with_config(&config, &latent, vb)?;
            Ok(Box::new(move |ids, mask, _| {
                model.forward_tokens(ids, mask)
            }))
        }),
    })
}

pub(super) fn read_decoder(model_type: &'static str, json: &str) -> Result<EncoderConfig> {
    #[derive(serde::Deserialize)]
    struct Said {
        pad_token_id: Option<u32>,
        is_causal: Option<bool>,
        use_bidirectional_attention: Option<serde_json::Value>,
    }
    let said: Said = parse(json)?;
    let spec = DecoderSpec {
        head: Head::None,
        ..layers_spec(json)?
    };
    let both_ways = said.use_bidirectional_attention == Some(true.into());
    let both_ways = both_ways || said.is_causal == Some(false);
    Ok(EncoderConfig {
        model_type,
        size: spec.hidden,
        max_tokens: spec.positions,
        vocab: spec.vocab,
        // Nothing is made of it.
        padding: said.pad_token_id.unwrap_or(0),
        causal: !both_ways,
        load: Arc::new(move |vb| {
            if model_type == "gemma3_text" && both_ways {
                let model = embedding_gemma::Model::with_spec(spec.clone(), vb)?;
                return Ok(Box::new(move |ids, mask, _| model.forward(ids, mask)));
            }
            run_of(spec.clone(), both_ways, vb)
        }),
    })
}

/// A Llama without a head, each of whose tokens sees all others.
pub(super) fn read_eurobert(model_type: &'static str, json: &Config) -> Result<EncoderConfig> {
    let spec = DecoderSpec {
        head: Head::None,
        ..llama_spec(json)?
    };
    Ok(EncoderConfig {
        model_type,
        size: spec.hidden,
        max_tokens: spec.positions,
        vocab: spec.vocab,
        padding: padding(json)?,
        causal: false,
        load: Arc::new(move |vb| run_of(spec.clone(), true, vb)),
    })
}

/// The layers of a decoder, with or without the tokens that follow in sight of each.
fn run_of(spec: DecoderSpec, both_ways: bool, vb: VarBuilder) -> Result<Run> {
    let vb = below(vb, "model", "embed_tokens.weight");
    let vb = vb.rename_f(|name| name.strip_prefix("model.").unwrap_or(name).to_string());
    let decoder = Decoder::from_vb(spec, vb)?;
    Ok(Box::new(move |ids: &Tensor, mask: &Tensor, _| {
        if both_ways {
            return decoder.encode(ids, mask)?.normed();
        }
        // Padding comes after the tokens, which do not see it.
        let mut state = decoder.new_state();
        state.use_cache = false;
        decoder.forward(ids, 0, &mut state)?.normed()
    }))
}
