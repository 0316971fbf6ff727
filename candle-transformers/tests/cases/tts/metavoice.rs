//! The stages of MetaVoice.

use candle_core::quantized::GgmlDType;
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_transformers::models::metavoice::{gpt, transformer};
use candle_transformers::models::quantized_metavoice;

use super::{assert_close, assert_error, change, ids, vectors, Made, F32_TOLERANCE};

const DIM: usize = 32;
const VOCAB: usize = 40;
const VOICE: usize = 32;
const LIMIT: usize = 24;

fn decoder_config() -> transformer::Config {
    transformer::Config {
        block_size: LIMIT,
        vocab_size: VOCAB,
        n_layer: 2,
        n_head: 4,
        dim: DIM,
        speaker_emb_dim: VOICE,
        intermediate_size: Some(64),
        n_local_heads: Some(2),
        norm_eps: 1e-5,
    }
}

fn decoder(dtype: DType, device: &Device) -> Result<transformer::Model> {
    transformer::Model::new(&decoder_config(), Made::default().vb(dtype, device))
}

/// Pieces give the same as the whole; the second row has no voice; one row counts for both; a call at position 0 starts again.
fn pieces_are_the_whole(device: &Device) -> Result<()> {
    let mut model = decoder(DType::F32, device)?;
    let text = ids(&[2, 9], VOCAB, 1, device)?;
    let voice = vectors(&[1, 1, VOICE], 2, device)?;
    let whole = model.forward(&text, &voice, 0)?;
    assert_eq!(whole.dims(), &[2, 1, VOCAB]);
    let mut start = 0;
    for piece in [4, 1, 3, 1] {
        let logits = model.forward(&text.narrow(1, start, piece)?, &voice, start)?;
        start += piece;
        if start == 9 {
            assert_close(&logits, &whole, F32_TOLERANCE);
        }
    }
    model.clear_kv_cache();
    for other in [
        voice.reshape((1, VOICE))?,
        voice.expand((2, 1, VOICE))?,
        voice.expand((1, 9, VOICE))?,
    ] {
        assert_close(&model.forward(&text, &other, 0)?, &whole, F32_TOLERANCE);
    }
    let row = text.narrow(0, 1, 1)?;
    let both = model.forward(&row, &voice, 0)?;
    assert_close(
        &both.narrow(0, 1, 1)?,
        &whole.narrow(0, 1, 1)?,
        F32_TOLERANCE,
    );
    let silent = model.forward(&row, &voice.zeros_like()?, 0)?;
    assert_close(&silent.get(0)?, &silent.get(1)?, F32_TOLERANCE);
    assert_close(&silent.get(1)?, &both.get(1)?, F32_TOLERANCE);
    assert!(change(&both.get(0)?, &both.get(1)?)? > 1e-2);
    // Views that are not contiguous.
    let text = text.t()?.contiguous()?.t()?;
    let voice = voice.squeeze(0)?.t()?.contiguous()?.t()?;
    assert_close(&model.forward(&text, &voice, 0)?, &whole, F32_TOLERANCE);
    Ok(())
}
test_device!(pieces_are_the_whole);

/// f16 has 11 bits, bf16 8; the tolerance leaves room for the roundings of all layers.
fn agrees_with_f32_in_16_bits(device: &Device) -> Result<()> {
    let run = |dtype| {
        let mut model = decoder(dtype, device)?;
        // The voice may be of another dtype.
        let voice = vectors(&[1, 1, VOICE], 2, device)?;
        let first = model.forward(&ids(&[2, 8], VOCAB, 1, device)?, &voice, 0)?;
        assert_eq!(first.dtype(), dtype);
        let second = model.forward(&ids(&[2, 1], VOCAB, 2, device)?, &voice, 8)?;
        Tensor::cat(&[first, second], 0)?.to_dtype(DType::F32)
    };
    let expected = run(DType::F32)?;
    assert_close(&run(DType::F16)?, &expected, 1e-2);
    assert_close(&run(DType::BF16)?, &expected, 6e-2);
    Ok(())
}
test_device!(agrees_with_f32_in_16_bits);

/// A file that holds numbers gives what these give; one of blocks gives nearly that.
fn quantized_files(device: &Device) -> Result<()> {
    let made = Made::default();
    let mut plain = transformer::Model::new(&decoder_config(), made.vb(DType::F32, device))?;
    let text = ids(&[2, 8], VOCAB, 1, device)?;
    let last = ids(&[2, 1], VOCAB, 2, device)?;
    let voice = vectors(&[1, 1, VOICE], 2, device)?;
    plain.forward(&text, &voice, 0)?;
    let expected = plain.forward(&last, &voice, 8)?;
    for (format, tolerance) in [(GgmlDType::F32, F32_TOLERANCE), (GgmlDType::Q8_0, 3e-2)] {
        let vb = made.gguf(format, device)?;
        let mut model = quantized_metavoice::transformer::Model::new(&decoder_config(), vb)?;
        model.forward(&last, &voice, 0)?;
        model.clear_kv_cache();
        model.forward(&text, &voice, 0)?;
        let logits = model.forward(&last, &voice, 8)?;
        assert_eq!(logits.dtype(), DType::F32);
        assert_close(&logits, &expected, tolerance);
    }
    Ok(())
}
test_device!(quantized_files);

#[test]
fn decoders_that_cannot_be() -> Result<()> {
    let made = Made::default();
    let plain = decoder_config;
    for (config, parts) in [
        (
            transformer::Config {
                n_head: 0,
                ..plain()
            },
            &["n_head 0"][..],
        ),
        (
            transformer::Config {
                n_head: 5,
                ..plain()
            },
            &["dim 32", "n_head 5"],
        ),
        (
            transformer::Config {
                n_local_heads: Some(3),
                ..plain()
            },
            &["4 query heads", "3 key heads"],
        ),
        (
            transformer::Config {
                n_local_heads: Some(0),
                ..plain()
            },
            &["0 key heads"],
        ),
        (
            transformer::Config {
                n_layer: 0,
                ..plain()
            },
            &["n_layer is 0"],
        ),
        (
            transformer::Config {
                speaker_emb_dim: 0,
                ..plain()
            },
            &["speaker_emb_dim is 0"],
        ),
        (
            transformer::Config {
                intermediate_size: Some(0),
                ..plain()
            },
            &["intermediate_size is 0"],
        ),
        (
            transformer::Config {
                block_size: 0,
                ..plain()
            },
            &["0 positions"],
        ),
        (
            transformer::Config {
                dim: usize::MAX & !3,
                intermediate_size: None,
                ..plain()
            },
            &["dim is", "too large"],
        ),
    ] {
        let model = transformer::Model::new(&config, made.vb(DType::F32, &Device::Cpu));
        assert_error(model, parts);
    }
    assert!(made.names().is_empty(), "{:?}", made.names());

    // Two thirds of 4 * 32, to a multiple of 256.
    let config = transformer::Config {
        intermediate_size: None,
        n_local_heads: None,
        ..plain()
    };
    transformer::Model::new(&config, made.vb(DType::F32, &Device::Cpu))?;
    for (name, dims) in [
        ("layers.1.feed_forward.swiglu.w3.weight", [256, DIM]),
        ("layers.1.attention.wqkv.weight", [3 * DIM, DIM]),
        ("speaker_cond_pos.weight", [DIM, VOICE]),
    ] {
        let asked = made.asked();
        let (_, weight) = asked
            .iter()
            .find(|(n, _)| n == name)
            .expect("it was requested");
        assert_eq!(weight.dims(), &dims, "{name}");
    }
    Ok(())
}

#[test]
fn arguments_that_do_not_fit() -> Result<()> {
    let cpu = Device::Cpu;
    let mut model = decoder(DType::F32, &cpu)?;
    let (text, voice) = (
        ids(&[2, 4], VOCAB, 1, &cpu)?,
        vectors(&[1, 1, VOICE], 2, &cpu)?,
    );
    let three = ids(&[3, 4], VOCAB, 1, &cpu)?;
    assert_error(model.forward(&three, &voice, 0), &["[3, 4]", "(2, t)"]);
    let none = Tensor::zeros((2, 0), DType::U32, &cpu)?;
    assert_error(model.forward(&none, &voice, 0), &["[2, 0]"]);
    for dims in [&[1, 1, 8][..], &[3, 1, VOICE], &[1, 3, VOICE], &[VOICE]] {
        let wrong = vectors(dims, 2, &cpu)?;
        assert_error(model.forward(&text, &wrong, 0), &["voice", "(1, 1, 32)"]);
    }
    let long = ids(&[2, LIMIT + 1], VOCAB, 1, &cpu)?;
    assert_error(model.forward(&long, &voice, 0), &["25", "24"]);
    assert_error(model.forward(&text, &voice, LIMIT - 3), &["24"]);
    Ok(())
}

fn gpt_config() -> gpt::Config {
    gpt::Config {
        block_size: 16,
        vocab_sizes: vec![40, 24],
        target_vocab_sizes: vec![24, 25],
        n_layer: 2,
        n_head: 4,
        n_embd: DIM,
        ..gpt::Config::cfg1b_v0_1()
    }
}

fn gpts() -> Vec<gpt::Config> {
    let gated = gpt::Config {
        bias: true,
        causal: true,
        norm_type: gpt::NormType::RMSNorm,
        nonlinearity_type: gpt::NonLinearityType::Swiglu,
        swiglu_multiple_of: Some(24),
        ..gpt_config()
    };
    let biased = gpt::Config {
        bias: true,
        ..gpt_config()
    };
    vec![gpt_config(), gated, biased]
}

fn run(model: &gpt::Model, ids: &Tensor) -> Result<Tensor> {
    let logits = model.forward(ids)?;
    let sizes: Vec<_> = logits.iter().map(|logits| logits.dims()[2]).collect();
    assert_eq!(sizes, model.config().target_vocab_sizes);
    Tensor::cat(&logits, 2)
}

/// A batch gives what each gives alone; what comes later is seen unless the model is causal; 16 bits are near f32.
fn second_stage(device: &Device) -> Result<()> {
    for config in gpts() {
        println!("{config:?}");
        let load = |dtype| gpt::Model::new(config.clone(), Made::default().vb(dtype, device));
        let model = load(DType::F32)?;
        let sound = ids(&[2, 2, 9], 24, 1, device)?;
        let both = run(&model, &sound)?;
        for row in 0..2 {
            let alone = run(&model, &sound.narrow(0, row, 1)?)?;
            assert_close(&alone, &both.narrow(0, row, 1)?, F32_TOLERANCE);
        }
        let strided = ids(&[2, 9, 2], 24, 1, device)?.transpose(1, 2)?;
        assert_close(
            &run(&model, &strided)?,
            &run(&model, &strided.contiguous()?)?,
            F32_TOLERANCE,
        );
        // More codebooks than are read; the first ones count.
        let more = Tensor::cat(&[&sound, &sound], 1)?;
        assert_close(&run(&model, &more)?, &both, F32_TOLERANCE);
        let begun = run(&model, &sound.narrow(2, 0, 5)?)?;
        let seen = change(&begun, &both.narrow(1, 0, 5)?)?;
        assert_eq!(seen < 1e-4, config.causal, "{seen}");
        for dtype in [DType::F16, DType::BF16] {
            let found = run(&load(dtype)?, &sound)?;
            assert_eq!(found.dtype(), dtype);
            let tolerance = if dtype == DType::F16 { 1e-2 } else { 6e-2 };
            assert_close(&found.to_dtype(DType::F32)?, &both, tolerance);
        }
    }
    Ok(())
}
test_device!(second_stage);

#[test]
fn second_stages_that_cannot_be() -> Result<()> {
    let (made, plain, cpu) = (Made::default(), gpt_config, Device::Cpu);
    let gated = gpt::NonLinearityType::Swiglu;
    for (config, parts) in [
        (
            gpt::Config {
                attn_kernel_type: gpt::AttnKernelType::Fa2,
                ..plain()
            },
            &["Fa2", "TorchAttn"][..],
        ),
        (
            gpt::Config {
                kv_cache_enabled: true,
                ..plain()
            },
            &["kv_cache_enabled"],
        ),
        (
            gpt::Config {
                n_head: 0,
                ..plain()
            },
            &["n_head 0"],
        ),
        (
            gpt::Config {
                n_head: 5,
                ..plain()
            },
            &["n_embd 32", "n_head 5"],
        ),
        (
            gpt::Config {
                n_layer: 0,
                ..plain()
            },
            &["n_layer is 0"],
        ),
        (
            gpt::Config {
                block_size: 0,
                ..plain()
            },
            &["block_size is 0"],
        ),
        (
            gpt::Config {
                vocab_sizes: vec![],
                ..plain()
            },
            &["vocab_sizes is 0"],
        ),
        (
            gpt::Config {
                target_vocab_sizes: vec![3, 0],
                ..plain()
            },
            &["target_vocab_sizes is 0"],
        ),
        (
            gpt::Config {
                nonlinearity_type: gated,
                swiglu_multiple_of: None,
                ..plain()
            },
            &["swiglu_multiple_of is None"],
        ),
        (
            gpt::Config {
                nonlinearity_type: gated,
                swiglu_multiple_of: Some(0),
                ..plain()
            },
            &["swiglu_multiple_of is Some(0)"],
        ),
    ] {
        assert_error(gpt::Model::new(config, made.vb(DType::F32, &cpu)), parts);
    }
    assert!(made.names().is_empty(), "{:?}", made.names());

    let model = gpt::Model::new(plain(), made.vb(DType::F32, &cpu))?;
    assert_error(
        model.forward(&ids(&[1, 2, 17], 24, 1, &cpu)?),
        &["17", "16"],
    );
    assert_error(
        model.forward(&ids(&[1, 1, 9], 24, 1, &cpu)?),
        &["[1, 1, 9]", "(batch, 2, t)"],
    );
    assert_error(model.forward(&ids(&[2, 9], 24, 1, &cpu)?), &["[2, 9]"]);
    // Inside the first table, outside the second.
    assert!(model
        .forward(&Tensor::full(30u32, (1, 2, 3), &cpu)?)
        .is_err());
    Ok(())
}

/// Two thirds of four times 32, rounded up; under Candle's names or those of the original.
#[test]
fn gates_of_the_second_stage() -> Result<()> {
    let config = gpt::Config {
        nonlinearity_type: gpt::NonLinearityType::Swiglu,
        swiglu_multiple_of: Some(48),
        ..gpt_config()
    };
    for (lacking, gate) in [
        (&[][..], "transformer.h.1.mlp.w1.weight"),
        (&["mlp.w"][..], "transformer.h.1.mlp.swiglu.w1.weight"),
    ] {
        let made = Made {
            lacking,
            ..Made::default()
        };
        gpt::Model::new(config.clone(), made.vb(DType::F32, &Device::Cpu))?;
        let asked = made.asked();
        let (_, gate) = asked
            .iter()
            .find(|(name, _)| name == gate)
            .expect("it was requested");
        assert_eq!(gate.dims(), &[96, DIM]);
        assert!(!asked.iter().any(|(name, _)| name.ends_with("bias")));
    }
    Ok(())
}
