//! GGUF files of families whose models in Candle have no quantised form. The keys and names are those of llama.cpp's converter.
//!
//! A family is a function from the metadata to a specification, and a line in `GGUF`. Weights are loaded under the names of
//! [`Names::GGUF`]; where the converter moves or splits a tensor, the specification says so: `RotaryPairs::Neighbours` for heads that it
//! permutes, `Order::Layers` for joined tensors that it sorts.

use candle_core::Result;
use candle_nn::ops::GatedActivation;
use candle_nn::Activation;

use crate::blocks::family::alibi_slopes;
use crate::blocks::{
    layers, AttentionSpec, DecoderSpec, FeedForwardSpec, GgufMetadata, Groups, LatentSpec,
    LayerSpec, Names, NormSpec, QkNorm, RopeScaling, RotaryPairs, Routing, Scoring, SharedSpec,
    Wiring,
};

/// The same layer at each index.
pub(super) fn uniform(file: &GgufMetadata, layer: LayerSpec) -> Result<Vec<LayerSpec>> {
    layers(file.layers()?, |_| Ok(layer.clone()))
}

/// Falcon, whose joined tensor the converter sorts into queries, keys and values. Of the two norms of 40B, the one of the MLP has the name
/// of the only norm of 7B.
pub(super) fn falcon(file: &GgufMetadata) -> Result<DecoderSpec> {
    let (attention, norm) = (file.attention()?, file.layer_norm()?);
    let rotary = file.rotary(RotaryPairs::Halves, attention.head_dim)?;
    let two = file.first_layer_has("attn_norm_2.weight");
    let layer = LayerSpec {
        wiring: if two {
            Wiring::ParallelTwoNorms
        } else {
            Wiring::Parallel
        },
        ..LayerSpec::pre_norm(attention, file.plain_mlp(Activation::Gelu)?, norm)
    };
    let spec = file.decoder("falcon", vec![rotary], uniform(file, layer)?, norm)?;
    let names = if two {
        Names {
            attn_norm: "attn_norm_2",
            mlp_norm: "attn_norm",
            ..Names::GGUF
        }
    } else {
        Names::GGUF
    };
    Ok(DecoderSpec { names, ..spec })
}

/// StarCoder 2.
pub(super) fn starcoder2(file: &GgufMetadata) -> Result<DecoderSpec> {
    let norm = file.layer_norm()?;
    let attention = AttentionSpec {
        window: file.size("attention.sliding_window")?,
        ..file.attention()?
    };
    let rotary = file.rotary(RotaryPairs::Halves, attention.head_dim)?;
    let mlp = file.plain_mlp(Activation::GeluPytorchTanh)?;
    let layer = LayerSpec::pre_norm(attention, mlp, norm);
    file.decoder("starcoder2", vec![rotary], uniform(file, layer)?, norm)
}

/// StarCoder, with a table of positions.
pub(super) fn starcoder(file: &GgufMetadata) -> Result<DecoderSpec> {
    let norm = file.layer_norm()?;
    let attention = AttentionSpec {
        rotary: None,
        ..file.attention()?
    };
    let mlp = file.plain_mlp(Activation::NewGelu)?;
    let layer = LayerSpec::pre_norm(attention, mlp, norm);
    let spec = file.decoder("bigcode", Vec::new(), uniform(file, layer)?, norm)?;
    Ok(DecoderSpec {
        learned_positions: Some(spec.positions),
        ..spec
    })
}

/// StableLM. A layer without a norm before its MLP is parallel.
pub(super) fn stablelm(file: &GgufMetadata) -> Result<DecoderSpec> {
    let norm = file.layer_norm()?;
    let mut attention = file.attention()?;
    if file.first_layer_has("attn_q_norm.weight") {
        attention.qk_norm = Some(QkNorm::EachHead(norm.without_bias()));
    }
    let rotary = file.rotary(RotaryPairs::Halves, attention.head_dim)?;
    let layer = LayerSpec {
        wiring: if file.first_layer_has("ffn_norm.weight") {
            Wiring::Pre
        } else {
            Wiring::Parallel
        },
        ..LayerSpec::pre_norm(attention, file.gated_mlp(GatedActivation::Silu)?, norm)
    };
    file.decoder("stablelm", vec![rotary], uniform(file, layer)?, norm)
}

/// OLMo, whose heads the converter permutes as Llama's.
pub(super) fn olmo(file: &GgufMetadata) -> Result<DecoderSpec> {
    let norm = NormSpec::layer_bare(file.required_float("attention.layer_norm_epsilon")?);
    let attention = AttentionSpec {
        clip: file.float("attention.clamp_kqv")?,
        ..file.attention()?
    };
    let rotary = file.rotary(RotaryPairs::Neighbours, attention.head_dim)?;
    let layer = LayerSpec::pre_norm(attention, file.gated_mlp(GatedActivation::Silu)?, norm);
    file.decoder("olmo", vec![rotary], uniform(file, layer)?, norm)
}

/// Granite, dense or with experts; the converter permutes heads as Llama's.
pub(super) fn granite(file: &GgufMetadata) -> Result<DecoderSpec> {
    let norm = file.rms_norm()?;
    let mut attention = AttentionSpec {
        scale: file.float("attention.scale")?,
        ..file.attention()?
    };
    let rotary = file.rotary(RotaryPairs::Neighbours, attention.head_dim)?;
    // The key by which the converter says that a model has no rotation.
    if file.flag("rope.scaling.finetuned")? == Some(false) {
        attention.rotary = None;
    }
    let silu = GatedActivation::Silu;
    let feed_forward = match file.experts(silu, Routing::softmax(0, true))? {
        Some(experts) => experts,
        None => file.gated_mlp(silu)?,
    };
    let layer = LayerSpec {
        residual_scale: file.float("residual_scale")?,
        ..LayerSpec::pre_norm(attention, feed_forward, norm)
    };
    let spec = file.decoder("granite", vec![rotary], uniform(file, layer)?, norm)?;
    Ok(DecoderSpec {
        embedding_scale: file.float("embedding_scale")?,
        logit_scale: file.float("logit_scale")?.map(|scale| 1. / scale),
        ..spec
    })
}

/// MPT.
pub(super) fn mpt(file: &GgufMetadata) -> Result<DecoderSpec> {
    let norm = file.layer_norm()?;
    let attention = file.attention()?;
    let max = file.required_float("attention.max_alibi_bias")?;
    let attention = AttentionSpec {
        rotary: None,
        slopes: Some(alibi_slopes(attention.heads, max as f32)),
        clip: file.float("attention.clamp_kqv")?,
        ..attention
    };
    let layer = LayerSpec::pre_norm(attention, file.plain_mlp(Activation::Gelu)?, norm);
    file.decoder("mpt", Vec::new(), uniform(file, layer)?, norm)
}

/// ChatGLM 3 and GLM 4.
pub(super) fn chatglm(file: &GgufMetadata) -> Result<DecoderSpec> {
    let (attention, norm) = (file.attention()?, file.rms_norm()?);
    let rotary = file.rotary(RotaryPairs::Neighbours, attention.head_dim)?;
    let layer = LayerSpec::pre_norm(attention, file.gated_mlp(GatedActivation::Silu)?, norm);
    file.decoder("chatglm", vec![rotary], uniform(file, layer)?, norm)
}

/// DeepSeek V2 and V3. Files of before April 2025 have `attn_kv_b`, later ones a tensor for keys and one for values; the sizes of a head
/// have other keys in these.
pub(super) fn deepseek2(file: &GgufMetadata) -> Result<DecoderSpec> {
    let norm = file.rms_norm()?;
    let (key, value) = match file.size("attention.key_length_mla")? {
        Some(key) => (key, file.required_size("attention.value_length_mla")?),
        None => (
            file.required_size("attention.key_length")?,
            file.required_size("attention.value_length")?,
        ),
    };
    let rotated = file.required_size("rope.dimension_count")?;
    let Some(plain) = key.checked_sub(rotated).filter(|plain| *plain > 0) else {
        let problem = format!(
            "{rotated}; it must be below the size of a key, {key}: the rest is not rotated"
        );
        return file.refuse("rope.dimension_count", problem);
    };
    // The factor of cosines and sines is that of scores in all files, so that it is 1 for the former.
    let scaling = RopeScaling {
        attention_factor: Some(1.),
        ..file.rope_scaling()?
    };
    let yarn = scaling.rope_type == "yarn";
    let longer = scaling.factor.filter(|factor| yarn && *factor > 1.);
    let by = file.float("rope.scaling.yarn_log_multiplier")?;
    let mscale = match (longer, by) {
        (Some(factor), Some(by)) => 1. + by * factor.ln(),
        _ => 1.,
    };
    let rotary = file.scaled_rotary(RotaryPairs::Neighbours, key, &scaling)?;
    let attention = LatentSpec {
        heads: file.required_size("attention.head_count")?,
        q_rank: file
            .count("attention.q_lora_rank")?
            .filter(|rank| *rank > 0),
        kv_rank: file.required_size("attention.kv_lora_rank")?,
        plain_dim: plain,
        rotated_dim: rotated,
        v_dim: value,
        bias: false,
        norm,
        rotary: 0,
        scale: mscale * mscale / (key as f64).sqrt(),
    };
    let dense = file.count("leading_dense_block_count")?.unwrap_or(0);
    let (mlp, experts) = (
        file.gated_mlp(GatedActivation::Silu)?,
        deepseek2_experts(file, dense)?,
    );
    let layers = layers(file.layers()?, |i| {
        let feed_forward = match &experts {
            Some(experts) if i >= dense => experts.clone(),
            _ => mlp.clone(),
        };
        Ok(LayerSpec::pre_norm(attention.clone(), feed_forward, norm))
    })?;
    file.decoder("deepseek", vec![rotary], layers, norm)
}

pub(super) fn deepseek2_experts(
    file: &GgufMetadata,
    dense: usize,
) -> Result<Option<FeedForwardSpec>> {
    let normalised = file.flag("expert_weights_norm")?.unwrap_or(false);
    let scoring = match file.count("expert_gating_func")?.unwrap_or(1) {
        1 => Scoring::Softmax,
        2 => Scoring::Sigmoid,
        other => {
            return file.refuse(
                "expert_gating_func",
                format!("{other}; expected 1 (softmax) or 2 (sigmoid)"),
            )
        }
    };
    let third = scoring == Scoring::Sigmoid;
    let bias = format!("blk.{dense}.{}", Names::GGUF.router_bias);
    let groups = match (
        file.count("expert_group_count")?,
        file.count("expert_group_used_count")?,
    ) {
        (Some(count), Some(used)) if count > 1 => Some(Groups {
            count,
            used,
            // V3's groups have the sum of their best two, V2's their best.
            best: if third { 2 } else { 1 },
        }),
        _ => None,
    };
    let routing = Routing {
        scoring,
        // V2 does one or the other, V3 both.
        scale: if normalised && !third {
            1.
        } else {
            file.float("expert_weights_scale")?.unwrap_or(1.)
        },
        groups,
        choice_bias: file.shape(&bias).is_some(),
        ..Routing::softmax(0, normalised)
    };
    let experts = file.experts(GatedActivation::Silu, routing)?;
    let Some(FeedForwardSpec::Experts(mut experts)) = experts else {
        return Ok(experts);
    };
    // The first layer, which says it elsewhere, has no experts.
    experts.shared = file
        .size("expert_shared_count")?
        .map(|count| SharedSpec::new(experts.inner.saturating_mul(count)));
    Ok(Some(FeedForwardSpec::Experts(experts)))
}
