//! Whisper's spectrograms. `candle-transformers/tests/transformers` compares the model itself with Transformers: crates.io's has another
//! form of GELU.

use crate::weights::Place;
use crate::Run;
use candle_core::{Result, Tensor};
use candle_transformers::models::whisper::{audio, Config};

pub const RUNS: &[Run] = &[("whisper audio", mel)];

const BANDS: usize = 8;

fn config() -> Config {
    Config {
        num_mel_bins: BANDS,
        max_source_positions: 30,
        d_model: 64,
        encoder_attention_heads: 4,
        encoder_layers: 2,
        vocab_size: 128,
        max_target_positions: 16,
        decoder_attention_heads: 4,
        decoder_layers: 2,
        suppress_tokens: vec![],
    }
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
        // All frames without a sample are equal.
        mel.narrow(1, 0, 40)?
            .to_dtype(candle_core::DType::F32)?
            .to_device(&place.device)
    };
    let plain = audio::pcm_to_mel(&config(), &samples, &filters);
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
