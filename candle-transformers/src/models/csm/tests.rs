//! Here and not among the tests of the crate: only this module can make models that are small.

use super::*;
use crate::generation::Sampling;
use candle_core::{test_device, DType, Shape};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::Init;
use std::sync::{Arc, Mutex};

const BOOKS: usize = 3;
const SOUNDS: usize = 10;
const TEXTS: usize = 20;
const LIMIT: usize = 32;

/// Makes any weight, and notes its name.
#[derive(Clone, Default)]
struct Made(Arc<Mutex<Vec<String>>>);

fn numbers(seed: u64, spread: f32) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        // Knuth's MMIX constants; the upper bits are the random ones.
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.) * spread
    }
}

fn tensor(shape: &Shape, seed: u64, [centre, spread]: [f32; 2]) -> Result<Tensor> {
    let mut next = numbers(seed, spread);
    let values: Vec<f32> = (0..shape.elem_count()).map(|_| centre + next()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

impl SimpleBackend for Made {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        self.0
            .lock()
            .expect("no thread panicked")
            .push(name.to_string());
        let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
        let range = match s.dims() {
            [_] => [1., 0.1],
            dims => [0., (3. / dims[dims.len() - 1] as f32).sqrt()],
        };
        tensor(&s, seed, range)?.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} is requested without a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

impl Made {
    fn vb(&self, dtype: DType, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self.clone()), dtype, device.clone())
    }
}

fn small(hidden: usize, heads: usize) -> LlamaConfig {
    LlamaConfig {
        layers: 2,
        heads,
        kv_heads: 2,
        hidden,
        positions: LIMIT,
        inner: 24,
        ..LlamaConfig::from_flavor(Flavor::Llama100M)
    }
}

fn config() -> Config {
    Config {
        audio_num_codebooks: BOOKS,
        audio_vocab_size: SOUNDS,
        backbone_flavor: Flavor::Llama1B,
        decoder_flavor: Flavor::Llama100M,
        text_vocab_size: TEXTS,
    }
}

fn model(made: &Made, dtype: DType, device: &Device) -> Result<Model> {
    Model::of_sizes(
        &config(),
        &small(32, 4),
        &small(16, 2),
        made.vb(dtype, device),
    )
}

fn greedy() -> LogitsProcessor {
    LogitsProcessor::from_sampling(0, Sampling::ArgMax)
}

#[track_caller]
fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f32) {
    assert_eq!(found.dims(), expected.dims());
    let largest = |xs: Result<Tensor>| {
        let xs = xs.and_then(|xs| xs.to_dtype(DType::F32)?.abs()?.max_all()?.to_scalar());
        xs.expect("numbers that can be read")
    };
    let host = |xs: &Tensor| xs.to_dtype(DType::F32).expect("a float");
    let (found, expected) = (host(found), host(expected));
    let (off, scale): (f32, f32) = (largest(&found - &expected), largest(Ok(expected)));
    assert!(off <= tolerance * scale.max(1.), "{off} of {scale}");
}

#[track_caller]
fn assert_error<T>(result: Result<T>, part: &str) {
    match result {
        Ok(_) => panic!("no error, {part:?} is expected in one"),
        Err(error) => assert!(
            error.to_string().contains(part),
            "{error}: without {part:?}"
        ),
    }
}

/// Pieces give the same result as the whole, in a batch and alone; a call at position 0 starts again; f16 is near f32.
fn pieces_are_the_whole(device: &Device) -> Result<()> {
    let load = |dtype| LlamaModel::new(&small(32, 4), Made::default().vb(dtype, device));
    let mut model = load(DType::F32)?;
    let xs = tensor(&Shape::from((2, 7, 32)), 1, [0., 1.])?.to_device(device)?;
    let whole = model.forward(&xs, 0)?;
    assert_eq!(whole.dims(), &[2, 1, 32]);
    let mut start = 0;
    for piece in [3, 1, 2, 1] {
        let last = model.forward(&xs.narrow(1, start, piece)?, start)?;
        start += piece;
        if start == 7 {
            assert_close(&last, &whole, 2e-5);
        }
    }
    for row in 0..2 {
        let alone = model.forward(&xs.narrow(0, row, 1)?, 0)?;
        assert_close(&alone, &whole.narrow(0, row, 1)?, 2e-5);
    }
    let turned = xs.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
    assert_close(&model.forward(&turned, 0)?, &whole, 2e-5);
    // Earlier positions matter, and so does the index.
    let alone = model.forward(&xs.narrow(1, 6, 1)?, 0)?;
    let change = (alone - &whole)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(change > 1e-2, "{change}");
    let half = load(DType::F16)?.forward(&xs.to_dtype(DType::F16)?, 0)?;
    assert_eq!(half.dtype(), DType::F16);
    assert_close(&half, &whole, 2e-2);
    Ok(())
}
test_device!(pieces_are_the_whole);

/// A frame is what backbone and decoder give for it, each time from the beginning; what the mask hides changes nothing.
fn frames_are_those_of_the_parts(device: &Device) -> Result<()> {
    let mut model = model(&Made::default(), DType::F32, device)?;
    let (tokens, mask) = model.text_tokens_and_mask(&[3, 1, 19, 7])?;
    let text = tokens.narrow(2, BOOKS, 1)?.squeeze(2)?;
    let mut seen = model.text_embeddings.forward(&text)?;
    let (mut tokens, mut mask, mut position) = (tokens, mask, 0);
    let mut different = false;
    for _ in 0..4 {
        let frame = model.generate_frame(&tokens, &mask, position, &mut greedy())?;
        position += tokens.dim(1)?;
        different |= frame[0] != frame[1];

        let mut parts = model.clone();
        let hidden = parts.backbone.forward(&seen, 0)?;
        let first = hidden.apply(&parts.codebook0_head)?;
        let mut expected = vec![first.flatten_all()?.argmax(0)?.to_scalar::<u32>()?];
        let mut row = hidden;
        for book in 1..BOOKS {
            let token = parts.sound(book - 1, expected[book - 1])?;
            row = Tensor::cat(&[row, token], 1)?;
            let last = parts.decoder.forward(&row.apply(&parts.projection)?, 0)?;
            let logits = last.squeeze(0)?.matmul(&parts.audio_head.get(book - 1)?)?;
            expected.push(logits.flatten_all()?.argmax(0)?.to_scalar::<u32>()?);
        }
        assert_eq!(frame, expected);

        let sounds = frame.iter().enumerate();
        let sounds = sounds.map(|(book, token)| model.sound(book, *token));
        let sounds = Tensor::cat(&sounds.collect::<Result<Vec<_>>>()?, 1)?;
        seen = Tensor::cat(&[seen, sounds.sum_keepdim(1)?], 1)?;
        (tokens, mask) = model.audio_tokens_and_mask(frame)?;
    }
    assert!(different);
    // Again, with other numbers where the mask is 0, and once in f16.
    let (tokens, mask) = model.text_tokens_and_mask(&[3, 1, 19, 7])?;
    let frame = model.generate_frame(&tokens, &mask, 0, &mut greedy())?;
    let hidden = Tensor::from_iter((0..16).map(|i| if i % 4 < 3 { 5u32 } else { 0 }), device)?;
    let other = (&tokens + hidden.reshape((1, 4, 4))?)?;
    assert_eq!(
        model.generate_frame(&other, &mask, 0, &mut greedy())?,
        frame
    );
    let mut half = self::model(&Made::default(), DType::F16, device)?;
    assert_eq!(
        half.generate_frame(&tokens, &mask, 0, &mut greedy())?.len(),
        BOOKS
    );
    Ok(())
}
test_device!(frames_are_those_of_the_parts);

#[test]
fn tokens_and_masks() -> Result<()> {
    let model = model(&Made::default(), DType::F32, &Device::Cpu)?;
    let (tokens, mask) = model.text_tokens_and_mask(&[7, 9])?;
    assert_eq!(tokens.to_vec3::<u32>()?, [[[0, 0, 0, 7], [0, 0, 0, 9]]]);
    assert_eq!(mask.to_vec3::<u8>()?, [[[0, 0, 0, 1], [0, 0, 0, 1]]]);
    let (tokens, mask) = model.audio_tokens_and_mask(vec![4, 5, 6])?;
    assert_eq!(tokens.to_vec3::<u32>()?, [[[4, 5, 6, 0]]]);
    assert_eq!(mask.to_vec3::<u8>()?, [[[1, 1, 1, 0]]]);
    assert_error(model.text_tokens_and_mask(&[]), "at least one");
    assert_error(model.audio_tokens_and_mask(vec![4, 5]), "2 tokens");
    assert_error(model.audio_tokens_and_mask(vec![0; 4]), "4 tokens");
    Ok(())
}

#[test]
fn arguments_that_do_not_fit() -> Result<()> {
    let cpu = Device::Cpu;
    let mut model = model(&Made::default(), DType::F32, &cpu)?;
    let ids = |dims: &[usize]| Tensor::zeros(dims, DType::U32, &cpu);
    let mut run = |tokens: &Tensor, mask: &Tensor, start| {
        model.generate_frame(tokens, mask, start, &mut greedy())
    };
    for dims in [&[2, 2, 4][..], &[1, 0, 4], &[1, 2, 3], &[1, 2, 5], &[2, 4]] {
        let wrong = ids(dims)?;
        assert_error(run(&wrong, &wrong, 0), "(1, t, 4)");
    }
    let good = ids(&[1, 2, 4])?;
    assert_error(run(&good, &ids(&[1, 1, 4])?, 0), "[1, 1, 4]");
    assert_error(run(&good, &good, LIMIT - 1), "32");
    assert_error(run(&good, &good, usize::MAX), "32");
    run(&good, &good, LIMIT - 2)?;
    let large = Tensor::full(TEXTS as u32, (1, 1, 4), &cpu)?;
    assert!(run(&large, &large, 0).is_err());
    let vectors = Tensor::zeros((1, 2, 16), DType::F32, &cpu)?;
    assert_error(model.backbone.forward(&vectors, 0), "(batch, t, 32)");
    Ok(())
}

#[test]
fn configurations() -> Result<()> {
    let made = Made::default();
    for (config, part) in [
        (
            Config {
                audio_num_codebooks: 0,
                ..config()
            },
            "audio_num_codebooks is 0",
        ),
        (
            Config {
                audio_num_codebooks: 1,
                ..config()
            },
            "audio_num_codebooks is 1",
        ),
        (
            Config {
                audio_vocab_size: 0,
                ..config()
            },
            "audio_vocab_size is 0",
        ),
        (
            Config {
                text_vocab_size: 0,
                ..config()
            },
            "text_vocab_size is 0",
        ),
        (
            Config {
                audio_vocab_size: usize::MAX / 2,
                ..config()
            },
            "32-bit",
        ),
    ] {
        assert_error(Model::new(&config, made.vb(DType::F32, &Device::Cpu)), part);
    }
    assert!(made.0.lock().expect("no thread panicked").is_empty());
    let json = r#"{"audio_num_codebooks": 32, "audio_vocab_size": 2051, "backbone_flavor": "llama-1B",
        "decoder_flavor": "llama-100M", "text_vocab_size": 128256}"#;
    let config: Config = serde_json::from_str(json).map_err(candle_core::Error::wrap)?;
    assert_eq!(config.backbone_flavor, Flavor::Llama1B);
    assert_eq!(config.decoder_flavor, Flavor::Llama100M);
    Ok(())
}

#[test]
fn names_of_weights() -> Result<()> {
    let made = Made::default();
    model(&made, DType::F32, &Device::Cpu)?;
    let names = made.0.lock().expect("no thread panicked");
    for name in [
        "backbone.layers.1.attn.q_proj.weight",
        "backbone.layers.0.attn.output_proj.weight",
        "backbone.layers.1.mlp.w2.weight",
        "backbone.layers.0.sa_norm.scale",
        "backbone.layers.0.mlp_norm.scale",
        "backbone.norm.scale",
        "decoder.norm.scale",
        "decoder.layers.1.mlp.w3.weight",
        "audio_embeddings.weight",
        "text_embeddings.weight",
        "projection.weight",
        "codebook0_head.weight",
        "audio_head",
    ] {
        assert!(
            names.iter().any(|n| n == name),
            "{name} is not among {names:?}"
        );
    }
    assert!(!names
        .iter()
        .any(|name| name.contains("bias") || name.contains("norm.weight")));
    Ok(())
}
