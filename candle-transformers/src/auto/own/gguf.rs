//! The families of this folder in GGUF files, and one or two that other files have there alone.

use candle_core::quantized::gguf_file::Value;
use candle_core::{bail, Result};
use candle_nn::ops::GatedActivation;
use candle_nn::Activation;

use crate::auto::gguf::{deepseek2_experts, uniform};
use crate::auto::GgufReader;
use crate::blocks::{
    layers, AttentionSpec, DecoderSpec, GgufMetadata, LayerSpec, Names, QkNorm, QueryGrowth,
    RopeScaling, RotaryPairs, Routing, Wiring,
};

/// The values of `general.architecture`.
pub(super) const ARCHITECTURES: &[(&str, GgufReader)] = &[
    ("arcee", arcee),
    ("cohere2", cohere2),
    ("command-r", command_r),
    ("ernie4_5", ernie),
    ("exaone4", exaone4),
    ("glm4moe", glm4_moe),
    ("gpt2", gpt2),
    ("gptneox", neox),
    ("hunyuan-dense", hunyuan),
    ("mistral3", mistral3),
    ("nemotron", nemotron),
    ("olmo2", olmo2),
    ("olmoe", olmoe),
    ("seed_oss", seed_oss),
];

const SILU: GatedActivation = GatedActivation::Silu;

/// The names of families whose norm before the MLP is called that after attention.
const POST_NORM: Names = Names {
    mlp_norm: "post_attention_norm",
    ..Names::GGUF
};

/// The window of each of `count` layers: those that `attention.sliding_window_pattern` lists, or all but every fourth.
fn windows(file: &GgufMetadata, count: usize) -> Result<Vec<Option<usize>>> {
    let key = "attention.sliding_window_pattern";
    let Some(window) = file.size("attention.sliding_window")? else {
        return Ok(vec![None; count]);
    };
    let listed = file.get(key, |value| match value {
        Value::Array(values) => values
            .iter()
            .map(|value| match value {
                Value::Bool(windowed) => Ok(*windowed),
                other => bail!("{other:?} in the list; expected true and false"),
            })
            .collect(),
        other => {
            let every = other.to_u64()?.max(1);
            Ok((1..=count as u64).map(|i| i % every != 0).collect())
        }
    })?;
    let listed: Vec<bool> = match listed {
        Some(listed) => listed,
        None => (1..=count).map(|i| i % 4 != 0).collect(),
    };
    if listed.len() != count {
        return file.refuse(
            key,
            format!("{} values; there are {count} layers", listed.len()),
        );
    }
    Ok(listed
        .into_iter()
        .map(|has| has.then_some(window))
        .collect())
}

/// OLMo 2, and OLMo 3, which has windows; their rotation is not scaled.
fn olmo2(file: &GgufMetadata) -> Result<DecoderSpec> {
    let norm = file.rms_norm()?;
    let attention = AttentionSpec {
        qk_norm: Some(QkNorm::Whole(norm)),
        ..file.attention()?
    };
    let (pairs, head_dim) = (RotaryPairs::Halves, attention.head_dim);
    let rotary = file.rotary(pairs, head_dim)?;
    let mlp = file.gated_mlp(SILU)?;
    let windows = windows(file, file.layers()?)?;
    let mut rotaries = vec![rotary];
    if windows.iter().any(Option::is_some) {
        rotaries.push(file.scaled_rotary(pairs, head_dim, &RopeScaling::none())?);
    }
    let layers = layers(windows.len(), |i| {
        let attention = AttentionSpec {
            window: windows[i],
            rotary: Some(usize::from(windows[i].is_some())),
            ..attention.clone()
        };
        Ok(LayerSpec {
            wiring: Wiring::PostInside,
            ..LayerSpec::pre_norm(attention, mlp.clone(), norm)
        })
    })?;
    file.decoder("olmo2", rotaries, layers, norm)
}

/// EXAONE 4. If there are windows, layers without one have no rotation.
fn exaone4(file: &GgufMetadata) -> Result<DecoderSpec> {
    let norm = file.rms_norm()?;
    let attention = AttentionSpec {
        qk_norm: Some(QkNorm::Head(norm)),
        ..file.attention()?
    };
    let rotary = file.rotary(RotaryPairs::Halves, attention.head_dim)?;
    let mlp = file.gated_mlp(SILU)?;
    let windows = windows(file, file.layers()?)?;
    let rotates_all = windows.iter().all(Option::is_none);
    let layers = layers(windows.len(), |i| {
        let attention = AttentionSpec {
            window: windows[i],
            rotary: (rotates_all || windows[i].is_some()).then_some(0),
            ..attention.clone()
        };
        Ok(LayerSpec {
            wiring: Wiring::PostInside,
            ..LayerSpec::pre_norm(attention, mlp.clone(), norm)
        })
    })?;
    file.decoder("exaone4", vec![rotary], layers, norm)
}

/// Command R and R+.
fn command_r(file: &GgufMetadata) -> Result<DecoderSpec> {
    cohere(file, "cohere", |norm, attention| {
        let normed = file.first_layer_has("attn_q_norm.weight");
        attention.qk_norm = normed.then_some(QkNorm::EachHead(norm));
    })
}

/// Command R7B and Command A, whose layers without a window have no rotation.
fn cohere2(file: &GgufMetadata) -> Result<DecoderSpec> {
    let windows = windows(file, file.layers()?)?;
    let mut spec = cohere(file, "cohere2", |_, _| {})?;
    for (layer, window) in spec.layers.iter_mut().zip(windows) {
        if let Some(attention) = layer.attention_mut() {
            attention.window = window;
            attention.rotary = window.map(|_| 0);
        }
    }
    Ok(spec)
}

fn cohere(
    file: &GgufMetadata,
    family: &'static str,
    change: impl FnOnce(crate::blocks::NormSpec, &mut AttentionSpec),
) -> Result<DecoderSpec> {
    let norm = file.layer_norm()?;
    let mut attention = file.attention()?;
    change(norm, &mut attention);
    let rotary = file.rotary(RotaryPairs::Neighbours, attention.head_dim)?;
    let layer = LayerSpec {
        wiring: Wiring::Parallel,
        ..LayerSpec::pre_norm(attention, file.gated_mlp(SILU)?, norm)
    };
    let spec = file.decoder(family, vec![rotary], uniform(file, layer)?, norm)?;
    Ok(DecoderSpec {
        logit_scale: Some(file.required_float("logit_scale")?),
        ..spec
    })
}

/// GPT-NeoX, whose joined tensor the converter sorts.
fn neox(file: &GgufMetadata) -> Result<DecoderSpec> {
    let (attention, norm) = (file.attention()?, file.layer_norm()?);
    let rotary = file.rotary(RotaryPairs::Halves, attention.head_dim)?;
    let layer = LayerSpec {
        wiring: match file.flag("use_parallel_residual")? {
            Some(false) => Wiring::Pre,
            _ => Wiring::ParallelTwoNorms,
        },
        ..LayerSpec::pre_norm(attention, file.plain_mlp(Activation::Gelu)?, norm)
    };
    file.decoder("gpt_neox", vec![rotary], uniform(file, layer)?, norm)
}

/// GPT-2, whose projections the converter transposes.
fn gpt2(file: &GgufMetadata) -> Result<DecoderSpec> {
    let spec = crate::auto::gguf::starcoder(file)?;
    Ok(DecoderSpec {
        family: "gpt2",
        ..spec
    })
}

/// Nemotron, to whose norms the converter adds 1.
fn nemotron(file: &GgufMetadata) -> Result<DecoderSpec> {
    let (attention, norm) = (file.attention()?, file.layer_norm()?);
    let rotary = file.rotary(RotaryPairs::Halves, attention.head_dim)?;
    let layer = LayerSpec::pre_norm(attention, file.plain_mlp(Activation::Relu2)?, norm);
    file.decoder("nemotron", vec![rotary], uniform(file, layer)?, norm)
}

/// Arcee, whose heads the converter permutes as Llama's.
fn arcee(file: &GgufMetadata) -> Result<DecoderSpec> {
    let (attention, norm) = (file.attention()?, file.rms_norm()?);
    let rotary = file.rotary(RotaryPairs::Neighbours, attention.head_dim)?;
    let layer = LayerSpec::pre_norm(attention, file.plain_mlp(Activation::Relu2)?, norm);
    file.decoder("arcee", vec![rotary], uniform(file, layer)?, norm)
}

/// Llama with these pairs.
fn llama(
    file: &GgufMetadata,
    family: &'static str,
    pairs: RotaryPairs,
    scaling: &RopeScaling,
    change: impl FnOnce(&mut AttentionSpec) -> Result<()>,
) -> Result<DecoderSpec> {
    let (mut attention, norm) = (file.attention()?, file.rms_norm()?);
    change(&mut attention)?;
    let rotary = file.scaled_rotary(pairs, attention.head_dim, scaling)?;
    let layer = LayerSpec::pre_norm(attention, file.gated_mlp(SILU)?, norm);
    file.decoder(family, vec![rotary], uniform(file, layer)?, norm)
}

/// Seed-OSS.
fn seed_oss(file: &GgufMetadata) -> Result<DecoderSpec> {
    let scaling = file.rope_scaling()?;
    let spec = llama(file, "seed_oss", RotaryPairs::Halves, &scaling, |_| Ok(()))?;
    let names = POST_NORM;
    Ok(DecoderSpec { names, ..spec })
}

/// ERNIE 4.5.
fn ernie(file: &GgufMetadata) -> Result<DecoderSpec> {
    let (pairs, scaling) = (RotaryPairs::Neighbours, file.rope_scaling()?);
    llama(file, "ernie4_5", pairs, &scaling, |_| Ok(()))
}

/// Hunyuan's dense models.
fn hunyuan(file: &GgufMetadata) -> Result<DecoderSpec> {
    let (pairs, scaling) = (RotaryPairs::Halves, file.rope_scaling()?);
    llama(file, "hunyuan_v1_dense", pairs, &scaling, |attention| {
        attention.qk_norm = Some(QkNorm::HeadRotated(file.rms_norm()?));
        Ok(())
    })
}

/// Ministral 3, whose heads the converter permutes as Llama's. The factor of cosines and sines is 1 in models that state the multiplier of
/// YaRN's logarithm.
fn mistral3(file: &GgufMetadata) -> Result<DecoderSpec> {
    let mut scaling = file.rope_scaling()?;
    if file.float("rope.scaling.yarn_log_multiplier")?.is_some() {
        scaling.attention_factor = Some(1.);
    }
    let pairs = RotaryPairs::Neighbours;
    let spec = llama(file, "ministral3", pairs, &scaling, |attention| {
        attention.window = file.size("attention.sliding_window")?;
        Ok(())
    })?;
    let query_growth = match file.float("attention.temperature_scale")? {
        Some(beta) => Some(QueryGrowth {
            beta,
            positions: file.required_size("rope.scaling.original_context_length")?,
        }),
        None => None,
    };
    Ok(DecoderSpec {
        query_growth,
        ..spec
    })
}

/// OLMoE.
fn olmoe(file: &GgufMetadata) -> Result<DecoderSpec> {
    let norm = file.rms_norm()?;
    let attention = AttentionSpec {
        qk_norm: Some(QkNorm::Whole(norm)),
        ..file.attention()?
    };
    let rotary = file.rotary(RotaryPairs::Halves, attention.head_dim)?;
    let Some(experts) = file.experts(SILU, Routing::softmax(0, false))? else {
        return file.refuse("expert_count", "missing; OLMoE has experts".into());
    };
    let layer = LayerSpec::pre_norm(attention, experts, norm);
    file.decoder("olmoe", vec![rotary], uniform(file, layer)?, norm)
}

/// GLM 4.5 to 4.7. The last layers of a file predict further tokens, and are not read.
fn glm4_moe(file: &GgufMetadata) -> Result<DecoderSpec> {
    let norm = file.rms_norm()?;
    let normed = file.first_layer_has("attn_q_norm.weight");
    let attention = AttentionSpec {
        qk_norm: normed.then_some(QkNorm::Head(norm)),
        ..file.attention()?
    };
    let rotary = file.rotary(RotaryPairs::Halves, attention.head_dim)?;
    let dense = file.count("leading_dense_block_count")?.unwrap_or(0);
    let (mlp, experts) = (file.gated_mlp(SILU)?, deepseek2_experts(file, dense)?);
    let further = file.count("nextn_predict_layers")?.unwrap_or(0);
    let count = file.layers()?.saturating_sub(further);
    let layers = layers(count, |i| {
        let feed_forward = match &experts {
            Some(experts) if i >= dense => experts.clone(),
            _ => mlp.clone(),
        };
        Ok(LayerSpec::pre_norm(attention.clone(), feed_forward, norm))
    })?;
    let spec = file.decoder("glm4_moe", vec![rotary], layers, norm)?;
    let names = POST_NORM;
    Ok(DecoderSpec { names, ..spec })
}
