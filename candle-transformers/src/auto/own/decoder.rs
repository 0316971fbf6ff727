//! A decoder by the fields that most configurations of Transformers have.

use candle_core::{bail, Result};
use candle_nn::Activation;
use serde::Deserialize;

use crate::auto::config::{value, Config};
use crate::blocks::{
    layers, AttentionSpec, DecoderSpec, FeedForwardSpec, LayerSpec, MlpSpec, NormSpec, PlainSpec,
    RopeScaling, Rotary, RotaryPairs,
};

#[derive(Deserialize)]
struct Fields {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    rope_theta: f64,
    partial_rotary_factor: Option<f64>,
}

/// Llama with this norm and this block instead of its MLP: of each layer `change` sets what is not Llama's. `attention_bias` is of all four
/// projections. Rotations are unscaled: what comes last is [`Config::scaled`].
pub(super) fn decoder(
    json: &Config,
    family: &'static str,
    norm: NormSpec,
    feed_forward: FeedForwardSpec,
    mut change: impl FnMut(usize, &mut LayerSpec, &mut AttentionSpec),
) -> Result<DecoderSpec> {
    let fields: Fields = json.parse()?;
    let (hidden, heads) = (fields.hidden_size, fields.num_attention_heads);
    let mut attention = AttentionSpec::new(hidden, heads, fields.num_key_value_heads);
    attention.head_dim = fields.head_dim.unwrap_or(attention.head_dim);
    let attention = attention.bias(json.flag("attention_bias"));
    let rotated = attention.head_dim as f64 * fields.partial_rotary_factor.unwrap_or(1.);
    let rotary = Rotary::new(RotaryPairs::Halves, fields.rope_theta, rotated as usize);
    let layers = layers(fields.num_hidden_layers, |i| {
        let mut attention = attention.clone();
        let mut layer = LayerSpec::pre_norm(attention.clone(), feed_forward.clone(), norm);
        change(i, &mut layer, &mut attention);
        layer.mixer = attention.into();
        Ok(layer)
    })?;
    let sizes = [fields.vocab_size, hidden, fields.max_position_embeddings];
    Ok(DecoderSpec::new(family, sizes, vec![rotary], layers, norm))
}

#[derive(Deserialize)]
struct Mlp {
    intermediate_size: usize,
    hidden_act: Activation,
    #[serde(default)]
    mlp_bias: bool,
}

/// The gated MLP of `intermediate_size`, `hidden_act` and `mlp_bias`.
pub(super) fn gated(json: &Config) -> Result<MlpSpec> {
    let mlp: Mlp = json.parse()?;
    Ok(MlpSpec::new(mlp.intermediate_size, mlp.hidden_act.try_into()?).bias(mlp.mlp_bias))
}

/// As [`gated`], without a gate.
pub(super) fn plain(json: &Config) -> Result<PlainSpec> {
    let mlp: Mlp = json.parse()?;
    Ok(PlainSpec {
        inner: mlp.intermediate_size,
        activation: mlp.hidden_act,
        bias: mlp.mlp_bias,
    })
}

/// The window of each layer, `sliding_window` positions: in the layers that `layer_types` names, or without it in all but every
/// `sliding_window_pattern`-th. That can also be letters that repeat: L for a window, G for none.
pub(super) fn windows(json: &Config) -> Result<Vec<Option<usize>>> {
    let count = json.required("num_hidden_layers")?;
    let window = json.size("sliding_window");
    let letters = match json.text("sliding_window_pattern") {
        Some(letters) => letters.to_string(),
        None => match json.size("sliding_window_pattern") {
            // What Transformers writes without a window.
            Some(0) if window.is_none() => "G".to_string(),
            Some(every @ 1..=4096) => "L".repeat(every - 1) + "G",
            Some(every) => bail!("sliding_window_pattern: {every}; expected 1 to 4096 layers"),
            None => "G".to_string(),
        },
    };
    if letters.is_empty() || letters.contains(|letter| !['L', 'G'].contains(&letter)) {
        bail!("sliding_window_pattern: {letters:?}; expected the letters L and G, or a number")
    }
    let named = json.windowed(count)?;
    if let (Some(named), None) = (&named, window) {
        if named.contains(&true) {
            bail!("sliding_window is missing; layer_types names layers with a window")
        }
    }
    let by_letter = letters.chars().map(|letter| letter == 'L').cycle();
    let windowed = named.unwrap_or_else(|| by_letter.take(count.min(4096)).collect());
    Ok(windowed
        .into_iter()
        .map(|has| window.filter(|_| has))
        .collect())
}

/// The rotation of layers with a window, where it is another one: that of `rope_parameters.sliding_attention`, or without it the unscaled one.
pub(super) fn local_rotary(json: &Config, spec: &DecoderSpec) -> Result<Rotary> {
    let Some(global) = spec.rotaries.first() else {
        bail!("{}: no rotation to take the local one after", spec.family)
    };
    let local = json.get("rope_parameters");
    let local = local.and_then(|all| all.get("sliding_attention"));
    let scaling = match local {
        Some(local) => value("rope_parameters.sliding_attention", local)?,
        None => RopeScaling::none(),
    };
    let theta = match json.value("rope_local_base_freq")? {
        Some(theta) => theta,
        None => json.required("rope_theta")?,
    };
    let dim = 2 * global.frequencies.len();
    scaling.rotary(global.pairs, theta, dim, spec.positions)
}
