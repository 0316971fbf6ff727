//! Parakeet compared with Transformers on every device, and faults of configurations and recordings.

use std::collections::HashMap;

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::parakeet::{features, Config, EncoderConfig, Parakeet};

use super::encoders::{assert_error, Made};
use super::support::assert_close;
use super::transformers::{numbers, Case, CASES};

/// The output of a case's model for the script's sound: three frames of the spectrogram, and the logits.
pub(super) fn run(
    config: &Config,
    vb: VarBuilder,
    device: &Device,
) -> Result<HashMap<&'static str, Tensor>> {
    let model = Parakeet::new(config, vb)?;
    let values = features(&numbers("pixels", 6500), 16);
    let features = Tensor::from_vec(values, (1, 40, 16), device)?;
    let frames = Tensor::new(&[0u32, 21, 39], device)?;
    Ok(HashMap::from([
        ("features", features.squeeze(0)?.index_select(&frames, 0)?),
        ("logits", model.forward(&features)?),
    ]))
}

/// 1e-4 of the largest number on the CPU, 1e-3 elsewhere.
fn agrees_with_transformers(device: &Device) -> Result<()> {
    let tolerance = if device.is_cpu() { 1e-4 } else { 1e-3 };
    let lines = CASES.lines().skip(1);
    let mut count = 0;
    for line in lines.filter(|line| line.contains(r#""kind":"parakeet""#)) {
        let case: Case = serde_json::from_str(line).expect("a case");
        let found = run(&case.config(), case.vb(device)?, device)?;
        for (name, expected) in &case.expected {
            let largest = expected.iter().fold(0f32, |max, v| max.max(v.abs()));
            let found = found[name.as_str()].flatten_all()?.to_vec1::<f32>()?;
            assert_eq!(found.len(), expected.len(), "{} {name}", case.name);
            let pairs = found.iter().zip(expected);
            let apart = pairs.fold(0f32, |max, (a, b)| max.max((a - b).abs()));
            println!("{} {name}: {apart} of {largest}", case.name);
            assert!(
                apart < tolerance * largest.max(1.) && found.iter().all(|v| v.is_finite()),
                "{} {name}: {apart} of {largest}",
                case.name
            );
        }
        count += 1;
    }
    assert_eq!(count, 2);
    Ok(())
}
test_device!(agrees_with_transformers);

fn small() -> Config {
    Config {
        vocab_size: 12,
        pad_token_id: None,
        encoder_config: EncoderConfig {
            hidden_size: 32,
            num_hidden_layers: 2,
            num_attention_heads: 2,
            intermediate_size: 48,
            subsampling_conv_channels: 4,
            num_mel_bins: 16,
            ..EncoderConfig::default()
        },
    }
}

fn load(config: &Config, dtype: DType, device: &Device) -> Result<Parakeet> {
    let vb = VarBuilder::from_backend(Box::new(Made(&[])), dtype, device.clone());
    Parakeet::new(config, vb)
}

/// f16 has 11 bits; the tolerance leaves room for the roundings of all layers. Two recordings at once.
fn agrees_with_f32_in_f16(device: &Device) -> Result<()> {
    let given = Tensor::new(numbers("features", 2 * 41 * 16), device)?.reshape((2, 41, 16))?;
    let logits = |dtype| {
        load(&small(), dtype, device)?
            .forward(&given)?
            .to_dtype(DType::F32)
    };
    let wide = logits(DType::F32)?;
    assert_eq!(wide.dims(), [2, 6, 12]);
    assert_close(&logits(DType::F16)?, &wide, 0.1);
    Ok(())
}
test_device!(agrees_with_f32_in_f16);

/// Tokens are those of the best logits without repetitions and blanks.
#[test]
fn texts() -> Result<()> {
    let sound = numbers("sound", 32_000);
    let spectrogram = features(&sound, 16);
    let spectrogram = Tensor::from_vec(spectrogram, (1, 200, 16), &Device::Cpu)?;
    let model = load(&small(), DType::F32, &Device::Cpu)?;
    let best = model.forward(&spectrogram)?.argmax(2)?.squeeze(0)?;
    let best = best.to_vec1::<u32>()?;
    for blank in [best[0], 11] {
        let config = Config {
            pad_token_id: Some(blank),
            ..small()
        };
        let model = load(&config, DType::F32, &Device::Cpu)?;
        let mut expected = best.clone();
        expected.dedup();
        expected.retain(|token| *token != blank);
        let text = model.transcribe(&sound)?;
        assert_eq!(text.tokens, expected, "{best:?}");
        assert!(text.avg_logprob < 0.);
        assert_eq!(pollster::block_on(model.transcribe_async(&sound))?, text);
    }
    // The shortest sounds are followed by silence.
    model.transcribe(&[])?;
    model.transcribe(&[0.5])?;
    assert_error(model.transcribe(&[0., f32::INFINITY]), &["sample 1", "inf"]);
    let other = Tensor::zeros((1, 8, 15), DType::F32, &Device::Cpu)?;
    assert_error(model.forward(&other), &["[1, 8, 15]", "16"]);
    Ok(())
}

#[test]
fn wrong_configurations() {
    type Change = fn(&mut EncoderConfig);
    let cases: [(Change, &[&str]); 7] = [
        (|c| c.num_attention_heads = 5, &["num_attention_heads 5"]),
        (|c| c.num_hidden_layers = 0, &["num_hidden_layers is 0"]),
        (|c| c.conv_kernel_size = 4, &["conv_kernel_size is 4"]),
        (|c| c.subsampling_factor = 6, &["subsampling_factor is 6"]),
        (
            |c| c.subsampling_conv_stride = 3,
            &["subsampling_conv_stride 3"],
        ),
        (|c| c.num_mel_bins = 4, &["num_mel_bins is 4"]),
        (|c| c.hidden_size = 33, &["hidden_size is 33"]),
    ];
    for (change, words) in cases {
        let mut config = small();
        change(&mut config.encoder_config);
        assert_error(load(&config, DType::F32, &Device::Cpu), words);
    }
    let config = Config {
        pad_token_id: Some(12),
        ..small()
    };
    assert_error(
        load(&config, DType::F32, &Device::Cpu),
        &["pad_token_id is 12"],
    );
}
