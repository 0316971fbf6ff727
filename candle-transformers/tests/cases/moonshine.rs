//! Moonshine compared with Transformers on every device, and faults of configurations and recordings.

use std::collections::HashMap;

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::moonshine::{Config, Moonshine, MIN_SAMPLES};

use super::encoders::{assert_error, Made};
use super::transformers::{numbers, Case, CASES};

/// The output of a case's model for the script's sound: the vectors, the logits after each token, and the text.
pub(super) fn run(
    config: &Config,
    vb: VarBuilder,
    device: &Device,
) -> Result<HashMap<&'static str, Tensor>> {
    let mut model = Moonshine::new(config, vb)?;
    let samples = numbers("pixels", 3000);
    let encoded = model.encode(&Tensor::new(samples.as_slice(), device)?.unsqueeze(0)?)?;
    let ids = Tensor::new(&[[1u32, 5, 9, 30, 7]], device)?;
    let whole = model.decode(&ids, &encoded, 0)?;
    // Two at once, then single ones.
    let mut steps = vec![model.decode(&ids.narrow(1, 0, 2)?, &encoded, 0)?];
    for i in 2..5 {
        steps.push(model.decode(&ids.narrow(1, i, 1)?, &encoded, i)?);
    }
    // The script lets it write 8 tokens, which 3000 samples are too short for: silence would change the vectors.
    let mut greedy = vec![1f32];
    for i in 0..8 {
        let last = Tensor::new(&[[greedy[i] as u32]], device)?;
        let logits = model.decode(&last, &encoded, i)?.flatten_all()?;
        greedy.push(logits.argmax(0)?.to_scalar::<u32>()? as f32);
    }
    Ok(HashMap::from([
        ("encoded", encoded),
        ("logits", whole),
        ("steps", Tensor::cat(&steps, 1)?),
        ("greedy", Tensor::new(greedy, &Device::Cpu)?),
    ]))
}

/// 1e-4 of the largest number on the CPU, 1e-3 elsewhere; by one call and by steps.
fn agrees_with_transformers(device: &Device) -> Result<()> {
    let tolerance = if device.is_cpu() { 1e-4 } else { 1e-3 };
    let lines = CASES.lines().skip(1);
    let cases = lines.filter(|line| line.contains(r#""kind":"moonshine""#));
    let mut count = 0;
    for line in cases {
        let case: Case = serde_json::from_str(line).expect("a case");
        let found = run(&case.config(), case.vb(device)?, device)?;
        for (name, by) in [
            ("encoded", "encoded"),
            ("steps", "logits"),
            ("steps", "steps"),
        ] {
            let expected = &case.expected[name];
            let largest = expected.iter().fold(0f32, |max, v| max.max(v.abs()));
            let found = found[by].flatten_all()?.to_vec1::<f32>()?;
            assert_eq!(found.len(), expected.len(), "{} {by}", case.name);
            let pairs = found.iter().zip(expected);
            let apart = pairs.fold(0f32, |max, (a, b)| max.max((a - b).abs()));
            println!("{} {by}: {apart} of {largest}", case.name);
            assert!(
                apart < tolerance * largest.max(1.) && found.iter().all(|v| v.is_finite()),
                "{} {by}: {apart} of {largest}",
                case.name
            );
        }
        assert_eq!(
            found["greedy"].to_vec1::<f32>()?,
            case.expected["greedy"],
            "{}",
            case.name
        );
        count += 1;
    }
    assert_eq!(count, 3);
    Ok(())
}
test_device!(agrees_with_transformers);

fn small() -> Config {
    Config {
        vocab_size: 40,
        hidden_size: 32,
        intermediate_size: 48,
        encoder_num_hidden_layers: 2,
        decoder_num_hidden_layers: 2,
        encoder_num_attention_heads: 2,
        decoder_num_attention_heads: 2,
        max_position_embeddings: 24,
        ..Config::default()
    }
}

fn load(config: &Config, dtype: DType, device: &Device) -> Result<Moonshine> {
    let vb = VarBuilder::from_backend(Box::new(Made(&[])), dtype, device.clone());
    Moonshine::new(config, vb)
}

/// The logits of two recordings of one batch.
fn logits(dtype: DType, device: &Device) -> Result<Tensor> {
    let mut model = load(&small(), dtype, device)?;
    let sound = Tensor::new(numbers("sound", 5000), device)?.reshape((2, 2500))?;
    let encoded = model.encode(&sound)?;
    assert_eq!((encoded.dims(), encoded.dtype()), (&[2, 5, 32][..], dtype));
    let ids = Tensor::new(&[[1u32, 5, 9], [1, 7, 3]], device)?;
    model.decode(&ids, &encoded, 0)?.to_dtype(DType::F32)
}

/// f16 has 11 bits; the tolerance leaves room for the roundings of all layers.
fn agrees_with_f32_in_f16(device: &Device) -> Result<()> {
    let (wide, narrow) = (logits(DType::F32, device)?, logits(DType::F16, device)?);
    super::support::assert_close(&narrow, &wide, 0.1);
    Ok(())
}
test_device!(agrees_with_f32_in_f16);

/// Texts end at the limit of tokens for their length, are the same each time, and stop when the listener wants.
#[test]
fn texts() -> Result<()> {
    let mut model = load(&small(), DType::F32, &Device::Cpu)?;
    let sound = numbers("sound", 16_000);
    let text = model.transcribe(&sound)?;
    // 6.5 tokens per second; the first one is not part of the text.
    assert!(text.ended || text.tokens.len() == 5, "{text:?}");
    assert!(text.avg_logprob < 0., "{text:?}");
    model.transcribe(&numbers("another sound", 20_000))?;
    assert_eq!(model.transcribe(&sound)?, text);
    let later = pollster::block_on(model.transcribe_async(&sound, async |_: &[u32]| Ok(())))?;
    assert_eq!(later, text);

    let mut heard = Vec::new();
    let stopped = model.transcribe_while(&sound, |tokens| {
        heard.push(tokens.to_vec());
        match tokens.len() {
            2 => candle_core::bail!("enough"),
            _ => Ok(()),
        }
    });
    assert!(stopped.unwrap_err().to_string().contains("enough"));
    assert_eq!(
        heard,
        [text.tokens[..1].to_vec(), text.tokens[..2].to_vec()]
    );
    // The shortest sound is followed by silence; one that ends at once is the end's.
    assert!(model.transcribe(&[0.1])?.tokens.len() <= 1);
    let text = model.transcribe(&sound)?;
    let config = Config {
        eos_token_id: text.tokens[0],
        ..small()
    };
    let text = load(&config, DType::F32, &Device::Cpu)?.transcribe(&sound)?;
    assert_eq!((text.tokens.len(), text.ended), (0, true));
    Ok(())
}

#[test]
fn wrong_recordings() -> Result<()> {
    let mut model = load(&small(), DType::F32, &Device::Cpu)?;
    assert_error(model.transcribe(&[]), &["no samples"]);
    assert_error(model.transcribe(&[0., f32::NAN]), &["sample 1", "NaN"]);
    let short = Tensor::zeros((1, MIN_SAMPLES - 1), DType::F32, &Device::Cpu)?;
    assert_error(model.encode(&short), &["894 samples", "895"]);
    let encoded = model.encode(&Tensor::zeros((1, MIN_SAMPLES), DType::F32, &Device::Cpu)?)?;
    assert_eq!(encoded.dims(), [1, 1, 32]);
    let ids = Tensor::zeros((1, 25), DType::U32, &Device::Cpu)?;
    assert_error(model.decode(&ids, &encoded, 0), &["25 tokens", "24"]);
    Ok(())
}

#[test]
fn wrong_configurations() {
    type Change = fn(&mut Config);
    let cases: [(Change, &[&str]); 7] = [
        (
            |c| c.encoder_num_attention_heads = 5,
            &["encoder_num_attention_heads 5"],
        ),
        (
            |c| c.decoder_num_key_value_heads = Some(1),
            &["decoder_num_key_value_heads is 1"],
        ),
        (|c| c.attention_bias = true, &["attention_bias"]),
        (|c| c.vocab_size = 0, &["vocab_size is 0"]),
        (
            |c| c.partial_rotary_factor = Some(1.5),
            &["partial_rotary_factor is 1.5"],
        ),
        (|c| c.rope_theta = Some(0.), &["rope_theta is 0"]),
        (|c| c.hidden_size = 34, &["17 elements"]),
    ];
    for (change, words) in cases {
        let mut config = small();
        change(&mut config);
        assert_error(load(&config, DType::F32, &Device::Cpu), words);
    }
    let yarn = serde_json::json!({"rope_parameters": {"rope_type": "yarn"}});
    let yarn = serde_json::from_value::<Config>(yarn).unwrap();
    assert_error(load(&yarn, DType::F32, &Device::Cpu), &["\"yarn\""]);
}
