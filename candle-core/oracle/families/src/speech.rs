//! Whisper, over two spectrograms and two texts.

use crate::common::gguf;
use crate::weights::Place;
use crate::Run;
use candle_core::{Result, Tensor};
use candle_transformers::models::whisper::{audio, model, quantized_model, Config};

pub const RUNS: &[Run] = &[
    ("whisper", whisper),
    ("quantized_whisper", quantized),
    ("whisper audio", mel),
];

const SIZE: usize = 64;
/// Whose multiples are none of 32: numbers, not blocks. Over blocks crates.io's encoder is 2e-2 from what products with activations of 8 bits
/// give by their definition; ours is 4e-7 from it.
const SIZE_WITHOUT_BLOCKS: usize = 44;
const BANDS: usize = 8;
const VOCABULARY: usize = 128;

fn config(size: usize) -> Config {
    Config {
        num_mel_bins: BANDS,
        max_source_positions: 30,
        d_model: size,
        encoder_attention_heads: 4,
        encoder_layers: 2,
        vocab_size: VOCABULARY,
        max_target_positions: 16,
        decoder_attention_heads: 4,
        decoder_layers: 2,
        suppress_tokens: vec![],
    }
}

fn inputs(place: &Place) -> Result<(Tensor, Tensor)> {
    let ids = place.tokens("whisper", 14, VOCABULARY as u64)?;
    Ok((
        place.input("whisper", (2, BANDS, 45))?,
        ids.reshape((2, 7))?,
    ))
}

fn whisper(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = model::Whisper::load(&place.weights("whisper"), config(SIZE))?;
    let (mel, ids) = inputs(place)?;
    let sound = model.encoder.forward(&mel, true)?;
    let first = model.decoder.forward(&ids.narrow(1, 0, 4)?, &sound, true)?;
    let hidden = model.decoder.forward(&ids, &sound, false)?;
    let logits = model.decoder.final_linear(&hidden)?;
    Ok(vec![sound, first, hidden, logits])
}

fn quantized(place: &Place) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::new();
    let mut add = |name: String, dims: &[usize]| tensors.push((name, dims.to_vec()));
    let size = SIZE_WITHOUT_BLOCKS;
    let inner = 4 * size;
    for side in ["encoder", "decoder"] {
        for i in 0..2 {
            let layer = format!("model.{side}.layers.{i}");
            let attentions: &[&str] = match side {
                "encoder" => &["self_attn"],
                _ => &["self_attn", "encoder_attn"],
            };
            for attention in attentions {
                for name in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                    add(format!("{layer}.{attention}.{name}.weight"), &[size, size]);
                    if name != "k_proj" {
                        add(format!("{layer}.{attention}.{name}.bias"), &[size]);
                    }
                }
                for part in ["weight", "bias"] {
                    add(format!("{layer}.{attention}_layer_norm.{part}"), &[size]);
                }
            }
            for part in ["weight", "bias"] {
                add(format!("{layer}.final_layer_norm.{part}"), &[size]);
            }
            add(format!("{layer}.fc1.weight"), &[inner, size]);
            add(format!("{layer}.fc1.bias"), &[inner]);
            add(format!("{layer}.fc2.weight"), &[size, inner]);
            add(format!("{layer}.fc2.bias"), &[size]);
        }
        for part in ["weight", "bias"] {
            add(format!("model.{side}.layer_norm.{part}"), &[size]);
        }
    }
    for (name, inputs) in [("conv1", BANDS), ("conv2", size)] {
        add(format!("model.encoder.{name}.weight"), &[size, inputs, 3]);
        add(format!("model.encoder.{name}.bias"), &[size]);
    }
    add(
        "model.decoder.embed_tokens.weight".into(),
        &[VOCABULARY, size],
    );
    add("model.decoder.embed_positions.weight".into(), &[16, size]);
    gguf(place, "whisper", &[], &tensors)?;
    let path = place.folder.join("whisper.gguf");
    let vb = quantized_model::VarBuilder::from_gguf(path, &place.device)?;
    let mut model = quantized_model::Whisper::load(&vb, config(SIZE_WITHOUT_BLOCKS))?;
    let (mel, ids) = inputs(place)?;
    let sound = model.encoder.forward(&mel, true)?;
    let hidden = model.decoder.forward(&ids, &sound, true)?;
    Ok(vec![sound, hidden])
}

/// Spectrograms in f32 and f64, of frames of an even and of an odd size, at both speeds.
fn mel(place: &Place) -> Result<Vec<Tensor>> {
    let samples: Vec<f32> = place.input("samples", 5000)?.to_vec1()?;
    let filters: Vec<f32> = place.input("filters", BANDS * 201)?.abs()?.to_vec1()?;
    let wide = |numbers: &[f32]| numbers.iter().map(|n| f64::from(*n)).collect::<Vec<_>>();
    let (samples64, filters64) = (wide(&samples), wide(&filters));
    let mel = |of: Vec<f64>| {
        let len = of.len();
        let mel = Tensor::from_vec(of, (BANDS, len / BANDS), &candle_core::Device::Cpu)?;
        // Of frames without a sample all are the same.
        mel.narrow(1, 0, 40)?
            .to_dtype(candle_core::DType::F32)?
            .to_device(&place.device)
    };
    let plain = audio::pcm_to_mel(&config(SIZE), &samples, &filters);
    Ok(vec![
        mel(wide(&plain))?,
        mel(audio::log_mel_spectrogram_(
            &samples64, &filters64, 400, 160, BANDS, false,
        ))?,
        mel(audio::log_mel_spectrogram_(
            &samples64, &filters64, 400, 160, BANDS, true,
        ))?,
        mel(audio::log_mel_spectrogram_(
            &samples64, &filters64, 75, 50, BANDS, false,
        ))?,
    ])
}
