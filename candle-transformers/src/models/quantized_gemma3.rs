//! Gemma 1 to 3 with quantised weights, from GGUF files of the architectures `gemma`, `gemma2` and `gemma3`. The models are
//! [`super::gemma`]'s, [`super::gemma2`]'s and [`super::gemma3`]'s.

use candle_core::Result;
use candle_nn::ops::GatedActivation;

use crate::blocks::{
    layers, AttentionSpec, DecoderSpec, GgufFamily, GgufLm, GgufMetadata, LayerSpec, QkNorm,
    Rotary, RotaryPairs, Wiring,
};

/// The longest sequence of the larger models.
pub const MAX_SEQ_LEN: usize = 131_072;
/// Gemma 3: one layer in this many sees all positions, where a file does not say.
pub const DEFAULT_SLIDING_WINDOW_TYPE: usize = 6;
/// Gemma 3: base of the rotary frequencies of layers that see all positions, where a file does not say.
pub const DEFAULT_ROPE_FREQUENCY: f32 = 1_000_000.;
/// Gemma 3: base of the rotary frequencies of layers with a window, where a file does not say.
pub const DEFAULT_ROPE_FREQUENCY_SLIDING: f32 = 10_000.;
/// Divisor of the rotary frequencies, if a file has none.
pub const DEFAULT_ROPE_FREQUENCY_SCALE_FACTOR: f32 = 1.;

/// The decoder that a file describes.
///
/// # Errors
/// Which key is missing, or has a value that does not fit.
pub fn spec(file: &GgufMetadata) -> Result<DecoderSpec> {
    let architecture = file.architecture();
    file.expect(&["gemma", "gemma2", "gemma3"])?;
    let (is_1, is_3) = (architecture == "gemma", architecture == "gemma3");
    let (mut attention, norm) = (file.attention()?, file.rms_norm()?);
    let hidden = file.hidden()?;
    let count = file.layers()?;
    let mut local = Rotary::new(
        RotaryPairs::Halves,
        f64::from(DEFAULT_ROPE_FREQUENCY_SLIDING),
        attention.head_dim,
    );
    let mut global = file.rotary(RotaryPairs::Halves, attention.head_dim)?;
    if is_3 {
        attention.qk_norm = Some(QkNorm::Head(norm));
        if file.float("rope.freq_base")?.is_none() {
            let theta = f64::from(DEFAULT_ROPE_FREQUENCY);
            global = Rotary::new(RotaryPairs::Halves, theta, attention.head_dim);
        }
        let base = file.float("rope.local_freq_base")?;
        if let Some(base) = base.or(file.float("rope.freq_base_swa")?) {
            local = Rotary::new(RotaryPairs::Halves, base, attention.head_dim);
        }
    } else {
        local = global.clone();
    }
    // The largest models scale by the stream's share of a head, and files do not say so.
    if (architecture, count) == ("gemma2", 46) || (architecture, count) == ("gemma3", 62) {
        attention.scale = Some(1. / ((hidden / attention.heads) as f64).sqrt());
    }
    attention.softcap = file.float("attn_logit_softcapping")?;
    let period = if is_3 {
        file.size("attention.sliding_window_type")?
            .or(file.size("attention.sliding_window_pattern")?)
            .unwrap_or(DEFAULT_SLIDING_WINDOW_TYPE)
    } else {
        2
    };
    let window = file.size("attention.sliding_window")?;
    let mlp = file.gated_mlp(GatedActivation::GeluTanh)?;
    let layers = layers(count, |i| {
        let is_local = !is_1 && window.is_some() && !(i + 1).is_multiple_of(period);
        let attention = AttentionSpec {
            rotary: Some(usize::from(!is_local)),
            window: window.filter(|_| is_local),
            ..attention.clone()
        };
        let mut layer = LayerSpec::pre_norm(attention, mlp.clone(), norm);
        if !is_1 {
            layer.wiring = Wiring::Sandwich;
        }
        Ok(layer)
    })?;
    let mut spec = file.decoder("gemma", vec![local, global], layers, norm)?;
    spec.embedding_scale = Some((hidden as f64).sqrt());
    spec.logit_softcap = file.float("final_logit_softcapping")?;
    Ok(spec)
}

/// The family, of [`ModelWeights`].
#[derive(Debug, Clone, Copy)]
pub struct Gemma;

impl GgufFamily for Gemma {
    fn spec(file: &GgufMetadata) -> Result<DecoderSpec> {
        spec(file)
    }
}

/// A quantised Gemma and the sequence that it has seen. Activations are f32.
pub type ModelWeights = GgufLm<Gemma>;
