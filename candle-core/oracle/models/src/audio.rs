//! Audio models.

use crate::weights::Place;
use candle_core::{Result, Tensor};
use candle_transformers::models::{encodec, whisper};

pub fn whisper(place: &Place) -> Result<Vec<Tensor>> {
    let config = whisper::Config {
        num_mel_bins: 16,
        max_source_positions: 20,
        d_model: 64,
        encoder_attention_heads: 4,
        encoder_layers: 2,
        vocab_size: 128,
        max_target_positions: 16,
        decoder_attention_heads: 4,
        decoder_layers: 2,
        suppress_tokens: Vec::new(),
    };
    let mut model = whisper::model::Whisper::load(&place.weights("whisper"), config)?;
    let heard = model
        .encoder
        .forward(&place.input("whisper", (1, 16, 40))?, true)?;
    let ids = place.tokens("whisper", 4, 128)?;
    let mut outputs = vec![heard.clone()];
    for count in [3, 4] {
        let hidden = model
            .decoder
            .forward(&ids.narrow(1, 0, count)?, &heard, count == 3)?;
        outputs.push(model.decoder.final_linear(&hidden)?);
    }
    Ok(outputs)
}

pub fn encodec(place: &Place) -> Result<Vec<Tensor>> {
    let config = encodec::Config {
        target_bandwidths: vec![15., 30.],
        sampling_rate: 8_000,
        audio_channels: 1,
        normalize: false,
        chunk_length_s: None,
        overlap: None,
        hidden_size: 16,
        num_filters: 4,
        num_residual_layers: 1,
        upsampling_ratios: vec![4, 2],
        norm_type: encodec::NormType::WeightNorm,
        kernel_size: 7,
        last_kernel_size: 7,
        residual_kernel_size: 3,
        dilation_growth_rate: 2,
        use_causal_conv: true,
        pad_mode: encodec::PadMode::Replicate,
        compress: 2,
        num_lstm_layers: 2,
        trim_right_ratio: 1.,
        codebook_size: 32,
        codebook_dim: None,
        use_conv_shortcut: false,
    };
    let model = encodec::Model::new(&config, place.weights("encodec"))?;
    let codes = model.encode(&place.input("encodec", (1, 1, 160))?)?;
    Ok(vec![codes.clone(), model.decode(&codes)?])
}
