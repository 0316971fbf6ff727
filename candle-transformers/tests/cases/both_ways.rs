//! Decoders whose tokens see those after them too, and the models that are made of them.

use candle_core::{test_device, DType, Device, Result, Tensor, D};
use candle_nn::VarBuilder;
use candle_transformers::blocks::{Decoder, MixerSpec};
use candle_transformers::models::embedding_gemma::{self, EmbeddingModel};
use candle_transformers::models::mistral;
use candle_transformers::models::nvembed_v2::embedding;
use candle_transformers::models::nvembed_v2::model::{LatentConfig, Model as NvEmbed};

use super::encoders::{assert_error, lacking};
use super::support::{assert_close, token_ids};

const VOCAB: usize = 61;
const LENS: [usize; 2] = [13, 7];
/// f32 sums in another order.
const TOLERANCE: f32 = 2e-5;

fn weights(dtype: DType, device: &Device) -> VarBuilder<'static> {
    lacking(&[], dtype, device)
}

fn gemma() -> embedding_gemma::Config {
    let mut config = embedding_gemma::Config::embedding_gemma_300m();
    let base = &mut config.base;
    (base.vocab_size, base.hidden_size, base.intermediate_size) = (VOCAB, 32, 48);
    (base.num_hidden_layers, base.head_dim) = (3, 16);
    // Every second layer sees everything, the others two tokens to either side.
    (base.sliding_window, base.sliding_window_pattern) = (5, 2);
    base.max_position_embeddings = 20;
    config.dense = [48, 24];
    config
}

fn mistral() -> mistral::Config {
    mistral::Config {
        vocab_size: VOCAB,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        max_position_embeddings: 20,
        // Not a window in this model.
        sliding_window: Some(3),
        ..mistral::Config::config_7b_v0_1(false)
    }
}

/// Two texts of [`LENS`] tokens, and which of them are tokens.
fn texts(device: &Device) -> Result<(Tensor, Tensor)> {
    let ids = token_ids(2, LENS[0], VOCAB, device)?;
    let counts = LENS.map(|len| (0..LENS[0]).map(move |i| u32::from(i < len)));
    let counts = counts.into_iter().flatten().collect();
    Ok((ids, Tensor::from_vec(counts, (2, LENS[0]), device)?))
}

/// A banded mask for layers without a window: an independent way to the same result.
fn a_window_reaches_to_both_sides(device: &Device) -> Result<()> {
    let (ids, counts) = texts(device)?;
    for window in [1, 2, 5, 13, 100] {
        let mut spec = gemma().base.spec()?;
        for layer in &mut spec.layers {
            if let MixerSpec::Attention(attention) = &mut layer.mixer {
                attention.window = Some(window);
            }
        }
        let decoder = Decoder::from_vb(spec, weights(DType::F32, device))?;
        let found = decoder.encode(&ids, &counts)?.normed()?;
        let mut mask = Vec::new();
        for len in LENS {
            for i in 0..LENS[0] {
                let seen = |j: usize| j < len && i.abs_diff(j) < window;
                mask.extend((0..LENS[0]).map(|j| if seen(j) { 0. } else { f32::NEG_INFINITY }));
            }
        }
        let mask = Tensor::from_vec(mask, (2, 1, LENS[0], LENS[0]), device)?;
        let mut state = decoder.new_state();
        let embeds = decoder.embed(&ids)?;
        let wanted = decoder.forward_embeds(&embeds, 0, &mut state, Some(&mask))?;
        let wanted = wanted.normed()?;
        for (row, len) in LENS.into_iter().enumerate() {
            let part = |t: &Tensor| t.get(row)?.narrow(0, 0, len);
            assert_close(&part(&found)?, &part(&wanted)?, TOLERANCE);
        }
    }
    Ok(())
}
test_device!(a_window_reaches_to_both_sides);

/// A text in a batch with a longer one gives what it gives alone; later tokens and those within the window count.
fn padding_changes_nothing(device: &Device) -> Result<()> {
    let (ids, counts) = texts(device)?;
    let vb = || weights(DType::F32, device);
    let gemma = EmbeddingModel::new(&gemma(), vb(), [vb(), vb()])?;
    let latent = LatentConfig {
        latents: 6,
        heads: 2,
        head_dim: 32,
    };
    let nvembed = std::cell::RefCell::new(NvEmbed::with_config(&mistral(), &latent, vb())?);
    for size in [24, 32] {
        let run = |ids: &Tensor, counts: &Tensor| match size {
            24 => gemma.forward(ids, counts),
            _ => nvembed.borrow_mut().forward(ids, counts, counts),
        };
        let both = run(&ids, &counts)?;
        assert_eq!(both.dims(), &[2, size]);
        for (row, len) in LENS.into_iter().enumerate() {
            let part = |t: &Tensor| t.narrow(0, row, 1)?.narrow(1, 0, len)?.contiguous();
            let alone = run(&part(&ids)?, &part(&counts)?)?;
            assert_close(&both.narrow(0, row, 1)?, &alone, TOLERANCE);
        }
        let open = run(&ids, &counts.ones_like()?)?;
        let change = (open.get(1)? - both.get(1)?)?.abs()?.max_all()?;
        assert!(change.to_scalar::<f32>()? > 1e-3);
        // A mask of floats says the same.
        let floats = run(&ids, &counts.to_dtype(DType::F32)?);
        if size == 32 {
            assert_close(&floats?, &both, 0.);
        }
    }
    // Tokens of an instruction are seen, and are not in the mean.
    let pooled = Tensor::cat(
        &[
            &counts.narrow(1, 0, 3)?.zeros_like()?,
            &counts.narrow(1, 3, 10)?,
        ],
        1,
    )?;
    let tokens = nvembed.borrow().forward_tokens(&ids, &counts)?;
    let found = nvembed.borrow_mut().forward(&ids, &counts, &pooled)?;
    let wanted = tokens.get(1)?.narrow(0, 3, 4)?.mean(0)?;
    assert_close(&found.get(1)?, &wanted, TOLERANCE);
    Ok(())
}
test_device!(padding_changes_nothing);

/// The block behind NV-Embed's layers by its formula, step by step in f64.
fn tokens_look_at_the_learned_vectors(device: &Device) -> Result<()> {
    let (ids, counts) = texts(device)?;
    let latent = LatentConfig {
        latents: 6,
        heads: 2,
        head_dim: 16,
    };
    let vb = weights(DType::F32, device);
    let model = NvEmbed::with_config(&mistral(), &latent, vb.clone())?;
    let found = model.forward_tokens(&ids, &counts)?;
    let mut layers = embedding::Model::new(&mistral(), vb.pp("embedding_model"))?;
    let xs = layers.forward(&counts, &ids, DType::F32)?;

    let exact = |t: Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
    let block = vb.pp("latent_attention_model");
    let get = |name: &str, shape: &[usize]| exact(block.get(shape, name)?);
    let norm = |xs: &Tensor, name: &str| -> Result<Tensor> {
        let mean = xs.mean_keepdim(D::Minus1)?;
        let centred = xs.broadcast_sub(&mean)?;
        let root = (centred.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?.sqrt()?;
        let name = |part| format!("cross_attend_blocks.{name}.{part}");
        let unit = centred.broadcast_div(&root)?;
        let scaled = unit.broadcast_mul(&get(&name("weight"), &[32])?)?;
        scaled.broadcast_add(&get(&name("bias"), &[32])?)
    };
    let times = |xs: &Tensor, name: &str, shape: &[usize]| {
        let weight = get(&format!("cross_attend_blocks.{name}.weight"), shape)?;
        xs.broadcast_matmul(&weight.t()?)
    };
    let xs = exact(xs)?;
    let q = times(&norm(&xs, "0.norm")?, "0.fn.to_q", &[32, 32])?;
    let context = norm(&get("latents", &[6, 32])?, "0.norm_context")?;
    let kv = times(&context, "0.fn.to_kv", &[64, 32])?;
    let mut heads = Vec::new();
    for head in 0..2usize {
        let part = |t: &Tensor, start: usize| t.narrow(D::Minus1, start + 16 * head, 16);
        let scores = (part(&q, 0)?.broadcast_matmul(&part(&kv, 0)?.t()?)? / 4.)?;
        let shares = candle_nn::ops::softmax(&scores, D::Minus1)?;
        heads.push(shares.broadcast_matmul(&part(&kv, 32)?.contiguous()?)?);
    }
    let seen = Tensor::cat(&heads, D::Minus1)?;
    let xs = (times(&seen, "0.fn.to_out", &[32, 32])? + xs)?;
    let bias = |name: &str, n| get(&format!("cross_attend_blocks.1.fn.net.{name}.bias"), &[n]);
    let inner = times(&norm(&xs, "1.norm")?, "1.fn.net.0", &[256, 32])?;
    let inner = inner.broadcast_add(&bias("0", 256)?)?;
    let gate = inner.narrow(D::Minus1, 128, 128)?.gelu_erf()?;
    let inner = (inner.narrow(D::Minus1, 0, 128)? * gate)?;
    let out = times(&inner, "1.fn.net.2", &[32, 128])?.broadcast_add(&bias("2", 32)?)?;
    let wanted = (out + xs)?.to_dtype(DType::F32)?.to_device(device)?;
    for (row, len) in LENS.into_iter().enumerate() {
        let part = |t: &Tensor| t.get(row)?.narrow(0, 0, len);
        assert_close(&part(&found)?, &part(&wanted)?, 1e-4);
    }
    Ok(())
}
test_device!(tokens_look_at_the_learned_vectors);

fn agrees_with_f32_in_f16(device: &Device) -> Result<()> {
    let (ids, counts) = texts(device)?;
    let latent = LatentConfig {
        latents: 6,
        heads: 2,
        head_dim: 32,
    };
    let run = |dtype| {
        let vb = || weights(dtype, device);
        let gemma = EmbeddingModel::new(&gemma(), vb(), [vb(), vb()])?;
        let mut nvembed = NvEmbed::with_config(&mistral(), &latent, vb())?;
        let vectors = [
            gemma.forward(&ids, &counts)?,
            nvembed.forward(&ids, &counts, &counts)?,
        ];
        Result::Ok(vectors)
    };
    for (found, wanted) in run(DType::F16)?.iter().zip(run(DType::F32)?) {
        assert_close(&found.to_dtype(DType::F32)?, &wanted, 5e-2);
    }
    Ok(())
}
test_device!(agrees_with_f32_in_f16);

#[test]
fn bad_input_is_an_error() -> Result<()> {
    let cpu = &Device::Cpu;
    let vb = || weights(DType::F32, cpu);
    let gemma = embedding_gemma::Model::new(&gemma().base, vb())?;
    let (ids, counts) = texts(cpu)?;
    let short = counts.narrow(1, 0, 4)?;
    assert_error(gemma.forward(&ids, &short), &["embedding_gemma", "mask"]);
    let long = token_ids(1, 21, VOCAB, cpu)?;
    let err = gemma.forward(&long, &long.ones_like()?);
    assert_error(err, &["embedding_gemma", "21 tokens"]);
    let latent = LatentConfig {
        latents: 0,
        ..LatentConfig::default()
    };
    let err = NvEmbed::with_config(&mistral(), &latent, vb());
    assert_error(err, &["nvembed_v2", "0 latents"]);
    let recurrent = r#"{"model_type": "mamba", "d_model": 32, "n_layer": 1, "vocab_size": 61}"#;
    if let Ok(spec) = candle_transformers::auto::config_spec(recurrent) {
        let decoder = Decoder::from_vb(spec, vb())?;
        assert_error(decoder.encode(&ids, &counts), &["encoder"]);
    }
    Ok(())
}
