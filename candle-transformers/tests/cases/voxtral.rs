//! Voxtral beyond Candle's features: new sounds in a continued text, last pieces of any length, 16 bits.

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_transformers::models::voxtral::model::{
    find_audio_token_positions, replace_audio_tokens,
};
use candle_transformers::models::voxtral::*;

use super::support::{assert_close, token_ids, Numbers};
use super::vision::weights;

const AUDIO: u32 = 24;

fn config() -> VoxtralConfig {
    VoxtralConfig {
        audio_config: VoxtralEncoderConfig {
            hidden_size: 16,
            intermediate_size: 64,
            num_hidden_layers: 2,
            num_attention_heads: 2,
            num_mel_bins: 4,
            max_source_positions: 12,
            ..Default::default()
        },
        text_config: VoxtralLlamaConfig {
            hidden_size: 32,
            intermediate_size: 48,
            vocab_size: 61,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: Some(16),
            max_position_embeddings: 40,
            ..VoxtralLlamaConfig::voxtral_3b()
        },
        ..Default::default()
    }
}

fn load(dtype: DType, device: &Device) -> Result<VoxtralForConditionalGeneration> {
    VoxtralForConditionalGeneration::new(&config(), weights(dtype, device))
}

fn mel(seed: u64, frames: usize, device: &Device) -> Result<Tensor> {
    Numbers::new(seed).tensor(&[1, 4, frames], 1., device)
}

fn cache(use_kv_cache: bool, device: &Device) -> Result<VoxtralCache> {
    VoxtralCache::new(use_kv_cache, DType::F32, &config().text_config, device)
}

/// A text with a sound, followed by another sound, gives the same at once without a cache for keys and in pieces with one; position 0
/// starts again with the sound of that call.
fn pieces_are_the_whole(device: &Device) -> Result<()> {
    let model = load(DType::F32, device)?;
    let first = Tensor::new(&[[1u32, AUDIO, AUDIO, 5, 6]], device)?;
    let second = Tensor::new(&[[7u32, AUDIO, 8]], device)?;
    let third = Tensor::new(&[[9u32]], device)?;
    let (one, two) = (mel(1, 16, device)?, mel(2, 8, device)?);

    let mut held = cache(true, device)?;
    model.forward(&first, Some(&one), &mut held, 0)?;
    model.forward(&second, Some(&two), &mut held, 5)?;
    // The same sound in each call, as loops pass it, changes nothing.
    let last = model.forward(&third, Some(&two), &mut held, 8)?;

    // Both sounds make their tokens in one call if their tokens are given as embeddings.
    let ids = Tensor::cat(&[&first, &second, &third], 1)?;
    let tokens = [model.get_audio_embeds(&one)?, model.get_audio_embeds(&two)?];
    assert_eq!(tokens[0].dims(), [2, 32]);
    let llama = VoxtralLlama::load(
        weights(DType::F32, device).pp("language_model"),
        &config().text_config,
    )?;
    let positions = find_audio_token_positions(&ids, AUDIO as usize)?;
    assert_eq!(positions, [(0, 1), (0, 2), (0, 6)]);
    let embeds = replace_audio_tokens(
        &llama.embed(&ids)?,
        &Tensor::cat(&tokens, 0)?,
        &positions,
        device,
    )?;
    for use_kv_cache in [true, false] {
        let mut new =
            VoxtralLlamaCache::new(use_kv_cache, DType::F32, &config().text_config, device)?;
        let whole = llama.forward_input_embed(&embeds, 0, &mut new)?;
        assert_close(&last, &whole, 2e-5);
    }

    let heard = model.forward(&first, Some(&two.pad_with_zeros(2, 0, 8)?), &mut held, 0)?;
    let mut new = cache(true, device)?;
    let expected = model.forward(&first, Some(&one), &mut new, 0)?;
    let change = (&heard - &expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(change > 1e-3, "another sound changes logits by {change}");
    held.reset();
    let again = model.forward(&first, Some(&one), &mut held, 0)?;
    assert_close(&again, &expected, 1e-6);
    Ok(())
}
test_device!(pieces_are_the_whole);

/// Sounds in a batch give the same as alone; a last piece that ends in the overlap is not an error; 16 bits are near, also with a cache of
/// another dtype.
fn encoder(device: &Device) -> Result<()> {
    let vb = weights(DType::F32, device).pp("audio_tower");
    let encoder = VoxtralEncoder::new(&config().audio_config, vb)?;
    let sounds = Tensor::cat(&[mel(3, 17, device)?, mel(4, 17, device)?], 0)?;
    let both = encoder.forward(&sounds)?;
    assert_eq!(both.dims(), [2, 9, 16]);
    for i in 0..2 {
        let alone = encoder.forward(&sounds.narrow(0, i, 1)?)?;
        assert_close(&alone, &both.narrow(0, i, 1)?, 2e-5);
    }
    // Any layout.
    let turned = sounds.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
    assert_close(&encoder.forward_with_training(&turned, true)?, &both, 2e-5);
    // Pieces from 0, 6, 12 and 18; the last one is a frame, within the overlap with the one before.
    let long = mel(5, 19, device)?;
    let pieces = encoder.process_long_audio(&long, 12, 6)?;
    assert_eq!(pieces.dims(), [1, 10, 16]);
    assert_close(
        &encoder.process_long_audio(&long, 24, 6)?,
        &encoder.forward(&long)?,
        1e-6,
    );

    let model = load(DType::F32, device)?;
    let tokens = model.get_audio_embeds(&mel(6, 16, device)?)?;
    let mean = model.get_audio_embeds_chunked(&mel(6, 16, device)?, 16, 4)?;
    assert_close(&mean, &tokens.mean_keepdim(0)?, 2e-5);

    let ids = Tensor::new(&[[1u32, AUDIO, AUDIO, 5]], device)?;
    let expected = model.forward(
        &ids,
        Some(&mel(6, 16, device)?),
        &mut cache(true, device)?,
        0,
    )?;
    let half = load(DType::F16, device)?;
    let near = half.forward(
        &ids,
        Some(&mel(6, 16, device)?),
        &mut cache(true, device)?,
        0,
    )?;
    assert_eq!(near.dtype(), DType::F32);
    assert_close(&near, &expected, 0.05);
    Ok(())
}
test_device!(encoder);

/// Greedy tokens are those of the logits, with keys kept and without, and a `top_p` of 0 is greedy too.
#[test]
fn generation() -> Result<()> {
    let device = &Device::Cpu;
    let model = load(DType::F32, device)?;
    let sound = mel(7, 16, device)?;
    let ids = Tensor::new(&[[1u32, AUDIO, AUDIO, 5]], device)?;
    let mut expected = vec![1u32, AUDIO, AUDIO, 5];
    for _ in 0..6 {
        let all = Tensor::new(expected.as_slice(), device)?.unsqueeze(0)?;
        let logits = model.forward(&all, Some(&sound), &mut cache(false, device)?, 0)?;
        let next = logits.squeeze(0)?.argmax(0)?.to_scalar::<u32>()?;
        expected.push(next);
        assert_ne!(next, AUDIO, "the sound has two tokens; take another seed");
        if next == 2 {
            break;
        }
    }
    let settings = VoxtralGenerationConfig {
        max_new_tokens: 6,
        ..VoxtralGenerationConfig::new(device.clone())
    };
    let generate = |settings| model.generate(&ids, Some(&sound), settings);
    assert_eq!(generate(settings.clone())?, expected);
    let without = VoxtralGenerationConfig {
        cache: Some(cache(false, device)?),
        ..settings.clone()
    };
    assert_eq!(generate(without)?, expected);
    let certain = VoxtralGenerationConfig {
        temperature: 0.7,
        top_p: Some(0.),
        ..settings.clone()
    };
    assert_eq!(generate(certain)?, expected);
    let drawn = VoxtralGenerationConfig {
        temperature: 1.,
        max_new_tokens: 3,
        ..settings.clone()
    };
    let drawn = generate(drawn)?;
    assert!(
        drawn.len() > 4 && drawn.len() <= 7 && drawn.iter().all(|id| *id < 61),
        "{drawn:?}"
    );
    let nothing = VoxtralGenerationConfig {
        max_new_tokens: 0,
        ..settings.clone()
    };
    assert_eq!(generate(nothing)?, [1, AUDIO, AUDIO, 5]);
    for (temperature, top_p, text) in [
        (-1., None, "temperature -1"),
        (f64::NAN, None, "temperature NaN"),
        (1., Some(1.5), "top_p 1.5"),
    ] {
        let wrong = VoxtralGenerationConfig {
            temperature,
            top_p,
            ..settings.clone()
        };
        fails(generate(wrong), &[text]);
    }
    let two = model.generate(&token_ids(2, 3, 20, device)?, None, settings);
    fails(two, &["[2, 3]", "one text"]);
    Ok(())
}

#[track_caller]
fn fails<T>(result: Result<T>, texts: &[&str]) {
    let Err(err) = result else {
        panic!("accepted, where an error with {texts:?} is due")
    };
    let message = err.to_string();
    for text in texts {
        assert!(message.contains(text), "{text:?} is not in {message:?}");
    }
}

#[test]
fn what_does_not_fit_is_an_error() -> Result<()> {
    let device = &Device::Cpu;
    let model = load(DType::F32, device)?;
    let encoder = VoxtralEncoder::new(&config().audio_config, weights(DType::F32, device))?;
    fails(
        encoder.forward(&mel(1, 25, device)?),
        &["[1, 4, 25]", "24 frames"],
    );
    fails(encoder.forward(&mel(1, 0, device)?), &["[1, 4, 0]"]);
    let bands = Tensor::zeros((1, 5, 8), DType::F32, device)?;
    fails(
        encoder.forward(&bands),
        &["[1, 5, 8]", "(batch, 4, frames)"],
    );
    fails(
        encoder.process_long_audio(&mel(1, 30, device)?, 8, 8),
        &["8 frames", "overlap by 8"],
    );
    fails(
        encoder.process_long_audio(&mel(1, 30, device)?, 0, 0),
        &["0 frames"],
    );
    fails(
        model.get_audio_embeds(&mel(1, 10, device)?),
        &["5 vectors", "tokens of 4"],
    );
    let two = Tensor::zeros((2, 4, 12), DType::F32, device)?;
    fails(
        model.get_audio_embeds_chunked(&two, 24, 0),
        &["6 vectors", "tokens of 4"],
    );
    let ids = Tensor::new(&[[AUDIO; 3]], device)?;
    let short = model.forward(
        &ids,
        Some(&mel(1, 16, device)?),
        &mut cache(true, device)?,
        0,
    );
    fails(short, &["3 audio tokens", "2 vectors"]);
    let long = model.forward(
        &token_ids(1, 41, 20, device)?,
        None,
        &mut cache(true, device)?,
        0,
    );
    fails(long, &["41", "max_position_embeddings of 40"]);
    let embeds = Tensor::zeros((1, 3, 32), DType::F32, device)?;
    let tokens = Tensor::zeros((1, 32), DType::F32, device)?;
    let outside = replace_audio_tokens(&embeds, &tokens, &[(0, 3)], device);
    fails(outside, &["(0, 3)", "1 rows of 3"]);
    fails(
        extract_features(&[0.; 400], &[0.; 100], device),
        &["100 mel filters", "25728"],
    );

    let with = |change: &dyn Fn(&mut VoxtralConfig)| {
        let mut cfg = config();
        change(&mut cfg);
        VoxtralForConditionalGeneration::new(&cfg, weights(DType::F32, device))
    };
    fails(
        with(&|c| c.audio_config.num_attention_heads = 3),
        &["hidden_size 16", "num_attention_heads 3"],
    );
    fails(
        with(&|c| c.audio_config.intermediate_size = 40),
        &["40", "multiple of hidden_size 16"],
    );
    fails(
        with(&|c| c.audio_config.activation_function = "silu".into()),
        &["activation_function", "silu"],
    );
    fails(
        with(&|c| c.projector_hidden_act = "silu".into()),
        &["projector_hidden_act", "silu"],
    );
    fails(
        with(&|c| c.text_config.num_key_value_heads = 0),
        &["0 key heads"],
    );
    Ok(())
}

/// A recording of two pieces, the second padded with zeros: bands stay together.
#[test]
fn features_are_in_pieces() -> Result<()> {
    let samples: Vec<f32> = (0..160 * 1600).map(|i| (i as f32 * 0.05).sin()).collect();
    let filters = vec![0.01f32; 128 * 201];
    let features = extract_features(&samples, &filters, &Device::Cpu)?;
    assert_eq!(features.dims(), [2, 128, 3000]);
    let mel = audio::pcm_to_mel(&samples, &filters);
    let frames = mel.len() / 128;
    assert_eq!(frames, 4500);
    let value = |piece, band, frame| -> Result<f32> {
        features.get(piece)?.get(band)?.get(frame)?.to_scalar()
    };
    for (piece, band, frame) in [(0, 0, 0), (0, 127, 2999), (1, 5, 100), (1, 127, 1499)] {
        let expected = mel[band * frames + piece * 3000 + frame];
        assert_eq!(value(piece, band, frame)?, expected);
    }
    assert_eq!(value(1, 127, 1500)?, 0.);
    Ok(())
}
