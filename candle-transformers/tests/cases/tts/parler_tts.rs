//! Parler-TTS.

use candle_core::{test_device, DType, Device, Result, Tensor, Var};
use candle_nn::{embedding, linear, VarBuilder};
use candle_transformers::generation::{LogitsProcessor, Sampling};
use candle_transformers::models::parler_tts::{Config, Decoder, DecoderConfig, Model};
use candle_transformers::models::{dac, t5};
use serde_json::{json, Value};

use super::{
    assert_close, assert_error, causal, change, ids, vectors, Instead, Made, F32_TOLERANCE,
};

const HIDDEN: usize = 32;
const BOOKS: usize = 3;
const VOCAB: usize = 12;
const LIMIT: usize = 40;
/// The token that ends a codebook, and the one it starts with.
const PAD: u32 = 10;
const START: u32 = 11;
/// The size of the description's vectors in T5.
const READ: usize = 16;

fn decoder_json() -> Value {
    json!({"vocab_size": VOCAB, "max_position_embeddings": LIMIT, "num_hidden_layers": 2, "ffn_dim": 48, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_cross_attention_key_value_heads": 1, "activation_function": "gelu", "hidden_size": HIDDEN,
        "scale_embedding": false, "num_codebooks": BOOKS, "pad_token_id": PAD, "bos_token_id": START, "eos_token_id": PAD,
        "tie_word_embeddings": false, "rope_embeddings": false, "rope_theta": 10000.0})
}

fn config_json() -> Value {
    json!({"decoder_start_token_id": START, "pad_token_id": PAD, "vocab_size": 50, "decoder": decoder_json(),
        "text_encoder": {"vocab_size": 60, "d_model": READ, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2,
            "relative_attention_num_buckets": 8, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "initializer_factor": 1.0,
            "feed_forward_proj": "gated-gelu", "is_encoder_decoder": true, "pad_token_id": 0, "eos_token_id": 1},
        "audio_encoder": {"num_codebooks": BOOKS, "model_bitrate": 8, "codebook_size": 16, "latent_dim": 8, "frame_rate": 86,
            "sampling_rate": 44100}})
}

fn config<T: serde::de::DeserializeOwned>(json: Value) -> Result<T> {
    serde_json::from_value(json).map_err(candle_core::Error::wrap)
}

fn decoder_with(field: &str, value: Value) -> Result<DecoderConfig> {
    let mut json = decoder_json();
    json[field] = value;
    config(json)
}

fn decoder(made: &Made, dtype: DType, device: &Device) -> Result<Decoder> {
    Decoder::new(&config(decoder_json())?, made.vb(dtype, device))
}

/// The logits of all books side by side.
fn joined(logits: Vec<Tensor>) -> Result<Tensor> {
    assert_eq!(logits.len(), BOOKS);
    Tensor::cat(&logits, 2)
}

/// Tokens of sound after a prompt, in calls of these numbers of tokens: the logits of all positions.
fn in_pieces(
    decoder: &mut Decoder,
    tokens: &Tensor,
    prompt: &Tensor,
    described: &Tensor,
    pieces: &[usize],
) -> Result<Tensor> {
    let (device, spoken) = (tokens.device(), prompt.dim(1)?);
    let (mut logits, mut start) = (Vec::new(), 0);
    for &piece in pieces {
        let ids = tokens.narrow(2, start, piece)?;
        let (before, t, at) = match start {
            0 => (Some(prompt), spoken + piece, 0),
            _ => (None, piece, spoken + start),
        };
        let mask = causal(t, at + t, device)?;
        let found = decoder.forward(&ids, before, Some(&mask), described, None, at)?;
        logits.push(joined(found)?);
        start += piece;
    }
    Tensor::cat(&logits, 1)
}

/// Pieces are the whole, in a batch and alone; another text in between changes nothing once it is forgotten.
fn pieces_are_the_whole(device: &Device) -> Result<()> {
    let mut decoder = decoder(&Made::default(), DType::F32, device)?;
    let tokens = ids(&[2, BOOKS, 9], VOCAB + 1, 1, device)?;
    let prompt = vectors(&[2, 5, HIDDEN], 2, device)?;
    let described = vectors(&[2, 7, HIDDEN], 3, device)?;
    let whole = in_pieces(&mut decoder, &tokens, &prompt, &described, &[9])?;
    assert_eq!(whole.dims(), &[2, 14, BOOKS * VOCAB]);
    decoder.clear_kv_cache();
    let pieces = [1, 1, 3, 1, 2, 1];
    let stepped = in_pieces(&mut decoder, &tokens, &prompt, &described, &pieces)?;
    assert_close(&stepped, &whole, F32_TOLERANCE);
    for row in 0..2 {
        decoder.clear_kv_cache();
        let one = |xs: &Tensor| xs.narrow(0, row, 1);
        let alone = in_pieces(
            &mut decoder,
            &one(&tokens)?,
            &one(&prompt)?,
            &one(&described)?,
            &[4, 5],
        )?;
        assert_close(&alone, &one(&whole)?, F32_TOLERANCE);
    }
    // What is written depends on the description, and on what was written before.
    decoder.clear_kv_cache();
    let other = vectors(&[2, 7, HIDDEN], 4, device)?;
    let about_other = in_pieces(&mut decoder, &tokens, &prompt, &other, &[9])?;
    assert!(change(&about_other, &whole)? > 1e-2);
    let last = whole.narrow(1, 13, 1)?;
    decoder.clear_kv_cache();
    let alone = decoder.forward(&tokens.narrow(2, 8, 1)?, None, None, &described, None, 13)?;
    assert!(change(&joined(alone)?, &last)? > 1e-2);
    Ok(())
}
test_device!(pieces_are_the_whole);

/// Views that are not contiguous give what their copies give; masks broadcast from fewer dimensions.
fn views_and_masks(device: &Device) -> Result<()> {
    let mut decoder = decoder(&Made::default(), DType::F32, device)?;
    let mut run = |tokens: &Tensor, prompt: &Tensor, mask: Option<&Tensor>, described: &Tensor| {
        decoder.clear_kv_cache();
        joined(decoder.forward(tokens, Some(prompt), None, described, mask, 2)?)
    };
    let tokens = ids(&[2, 4, BOOKS], VOCAB + 1, 1, device)?.transpose(1, 2)?;
    let prompt = vectors(&[2, HIDDEN, 3], 2, device)?.transpose(1, 2)?;
    let described = vectors(&[2, HIDDEN, 5], 3, device)?.transpose(1, 2)?;
    let found = run(&tokens, &prompt, None, &described)?;
    let copies = [&tokens, &prompt, &described].map(Tensor::contiguous);
    let [tokens, prompt, described] = copies;
    let (tokens, prompt, described) = (tokens?, prompt?, described?);
    let expected = run(&tokens, &prompt, None, &described)?;
    assert_close(&found, &expected, F32_TOLERANCE);

    // The last two of the description hidden: as if it were shorter.
    let hide = [0f32, 0., 0., f32::NEG_INFINITY, f32::NEG_INFINITY];
    let hide = Tensor::new(&hide, device)?;
    let shorter = run(
        &tokens,
        &prompt,
        None,
        &described.narrow(1, 0, 3)?.contiguous()?,
    )?;
    assert!(change(&shorter, &expected)? > 1e-3);
    for mask in [
        hide.clone(),
        hide.reshape((1, 5))?,
        hide.expand((7, 5))?,
        hide.expand((4, 7, 5))?,
        hide.expand((2, 1, 1, 5))?,
    ] {
        let masked = run(&tokens, &prompt, Some(&mask), &described)?;
        println!("{:?}", mask.dims());
        assert_close(&masked, &shorter, F32_TOLERANCE);
    }
    Ok(())
}
test_device!(views_and_masks);

/// f16 has 11 bits, bf16 8; the tolerance leaves room for the roundings of all layers.
fn agrees_with_f32_in_16_bits(device: &Device) -> Result<()> {
    let made = Made::default();
    let run = |dtype| {
        let mut decoder = decoder(&made, dtype, device)?;
        let tokens = ids(&[2, BOOKS, 6], VOCAB + 1, 1, device)?;
        let prompt = vectors(&[2, 5, HIDDEN], 2, device)?.to_dtype(dtype)?;
        let described = vectors(&[2, 7, HIDDEN], 3, device)?.to_dtype(dtype)?;
        let logits = in_pieces(&mut decoder, &tokens, &prompt, &described, &[4, 1, 1])?;
        assert_eq!(logits.dtype(), dtype);
        logits.to_dtype(DType::F32)
    };
    let expected = run(DType::F32)?;
    assert_close(&run(DType::F16)?, &expected, 1e-2);
    assert_close(&run(DType::BF16)?, &expected, 6e-2);
    Ok(())
}
test_device!(agrees_with_f32_in_16_bits);

/// Heads of variables stay separate, so that an optimizer's change takes effect.
fn heads_follow_variables(device: &Device) -> Result<()> {
    let made = Made {
        vars: true,
        ..Made::default()
    };
    let mut trained = decoder(&made, DType::F32, device)?;
    let tokens = ids(&[1, BOOKS, 4], VOCAB + 1, 1, device)?;
    let described = vectors(&[1, 3, HIDDEN], 3, device)?;
    let mut run = || {
        trained.clear_kv_cache();
        trained.forward(&tokens, None, None, &described, None, 0)
    };
    let before = run()?;
    let plain = decoder(&Made::default(), DType::F32, device)?
        .forward(&tokens, None, None, &described, None, 0)?;
    for (before, plain) in before.iter().zip(&plain) {
        assert_close(before, plain, F32_TOLERANCE);
    }
    let asked = made.asked().clone();
    let find = |name: &str| asked.iter().find(|(asked, _)| asked == name);
    let (_, head) = find("lm_heads.1.weight").expect("a head is loaded");
    let grads = before[1].sum_all()?.backward()?;
    assert!(grads.get(head).is_some());
    Var::from_tensor(head)?.set(&head.affine(2., 0.)?)?;
    let after = run()?;
    assert_close(&after[1], &(&before[1] * 2.)?, F32_TOLERANCE);
    assert_close(&after[0], &before[0], 0.);
    Ok(())
}
test_device!(heads_follow_variables);

/// A whole model, with a codec that is not used.
fn model(vb: VarBuilder<'static>) -> Result<Model> {
    let config: Config = config(config_json())?;
    let codec = VarBuilder::zeros(DType::F32, &Device::Cpu);
    Ok(Model {
        embed_prompts: embedding(config.vocab_size, HIDDEN, vb.pp("embed_prompts"))?,
        enc_to_dec_proj: Some(linear(READ, HIDDEN, vb.pp("enc_to_dec_proj"))?),
        decoder: Decoder::new(&config.decoder, vb.pp("decoder"))?,
        text_encoder: t5::T5EncoderModel::load(vb.pp("text_encoder"), &config.text_encoder)?,
        decoder_start_token_id: config.decoder_start_token_id,
        pad_token_id: config.pad_token_id,
        audio_encoder: dac::Model {
            encoder: dac::Encoder::new(2, &[2], 8, codec.pp("encoder"))?,
            quantizer: dac::ResidualVectorQuantizer::new(8, BOOKS, 16, 4, codec.pp("quantizer"))?,
            decoder: dac::Decoder::new(8, 8, &[2], 1, codec.pp("decoder"))?,
        },
    })
}

fn greedy() -> LogitsProcessor {
    LogitsProcessor::from_sampling(0, Sampling::ArgMax)
}

/// Enough for draws to tell small differences.
const STEPS: usize = 24;

/// Generation gives the decoder's tokens, each codebook one step after the one before it; repeatedly, in any dtype.
fn generates_what_the_decoder_gives(device: &Device) -> Result<()> {
    let mut model = model(Made::default().vb(DType::F32, device))?;
    // Neither of them is ever drawn: there is sound at each step, and no book ends.
    let (start, pad) = (VOCAB as u32, VOCAB as u32 + 1);
    (model.decoder_start_token_id, model.pad_token_id) = (start, pad);
    let (spoken, described) = (ids(&[1, 9], 50, 1, device)?, ids(&[1, 6], 60, 2, device)?);
    let drawn = || LogitsProcessor::from_sampling(7, Sampling::All { temperature: 1. });
    let sound = model.generate(&spoken, &described, drawn(), STEPS)?;
    assert!(sound.device().is_cpu() && sound.dtype() == DType::U32);
    let again = model.generate(&spoken, &described, drawn(), STEPS)?;
    assert_eq!(sound.to_vec2::<u32>()?, again.to_vec2::<u32>()?);

    let encoded = model
        .text_encoder
        .forward(&described)?
        .apply(model.enc_to_dec_proj.as_ref().expect("the sizes differ"))?;
    let prompt = spoken.apply(&model.embed_prompts)?;
    let mut tokens = vec![start; BOOKS];
    let mut all: Vec<Vec<u32>> = vec![vec![]; BOOKS];
    // Each time from the first token on.
    let mut before: Vec<Vec<u32>> = vec![vec![]; BOOKS];
    let mut lp = drawn();
    for step in 0..STEPS {
        for (before, token) in before.iter_mut().zip(&tokens) {
            before.push(*token);
        }
        model.decoder.clear_kv_cache();
        let ids = Tensor::new(before.clone(), device)?.unsqueeze(0)?;
        let logits = in_pieces(&mut model.decoder, &ids, &prompt, &encoded, &[step + 1])?;
        let last = logits.narrow(1, 9 + step, 1)?.reshape((BOOKS, VOCAB))?;
        for book in 0..BOOKS.min(step + 1) {
            tokens[book] = lp.sample(&last.get(book)?)?;
            all[book].push(tokens[book]);
        }
    }
    all.iter_mut()
        .for_each(|book| book.truncate(STEPS + 1 - BOOKS));
    assert_eq!(sound.to_vec2::<u32>()?, all);

    let mut half = self::model(Made::default().vb(DType::F16, device))?;
    assert_eq!(
        half.generate(&spoken, &described, greedy(), 5)?.dim(0)?,
        BOOKS
    );
    Ok(())
}
test_device!(generates_what_the_decoder_gives);

/// Every position's vector is of ones, so that a head's logits are the sums of its rows; `tokens` are those of ones.
fn always<const A: u32, const B: u32, const C: u32>(
    name: &str,
    dims: &[usize],
) -> Option<Vec<f32>> {
    let ones = |len: usize, at: usize| {
        (0..len)
            .map(|i| f32::from(u8::from(i / HIDDEN == at)))
            .collect()
    };
    let count = dims.iter().product();
    match name {
        "decoder.model.decoder.layer_norm.weight" => Some(vec![0.; count]),
        "decoder.model.decoder.layer_norm.bias" => Some(vec![1.; count]),
        "decoder.lm_heads.0.weight" => Some(ones(count, A as usize)),
        "decoder.lm_heads.1.weight" => Some(ones(count, B as usize)),
        "decoder.lm_heads.2.weight" => Some(ones(count, C as usize)),
        _ => None,
    }
}

/// Codebooks start one step apart, end with the token for that, and are truncated to the shortest; the first and the last token are not
/// sound.
fn books_start_and_end(device: &Device) -> Result<()> {
    let run = |instead: Instead, steps| {
        let made = Made {
            instead: Some(instead),
            ..Made::default()
        };
        let mut model = model(made.vb(DType::F32, device))?;
        let (spoken, described) = (ids(&[1, 4], 50, 1, device)?, ids(&[1, 6], 60, 2, device)?);
        model.generate(&spoken, &described, greedy(), steps)
    };
    let sound: Instead = always::<3, 4, 5>;
    assert_eq!(run(sound, 5)?.to_vec2::<u32>()?, [[3; 3], [4; 3], [5; 3]]);
    for (instead, steps) in [
        (sound, 0),
        (sound, 2),
        (always::<3, PAD, 5>, 8),
        (always::<3, START, 5>, 8),
        // More steps than there are positions: all books have ended before.
        (always::<PAD, PAD, PAD>, 1000),
    ] {
        assert_eq!(run(instead, steps)?.dims(), &[BOOKS, 0]);
    }
    // A prompt of four, the first tokens, and 35 steps more.
    assert_eq!(run(sound, LIMIT - 4)?.dims(), &[BOOKS, LIMIT - 6]);
    assert_error(run(sound, LIMIT - 3), &["max_position_embeddings", "40"]);
    Ok(())
}
test_device!(books_start_and_end);

#[test]
fn configurations_that_contradict_themselves() -> Result<()> {
    let cpu = Device::Cpu;
    let made = Made::default();
    for (field, value, parts) in [
        (
            "rope_embeddings",
            json!(true),
            &["rope_embeddings", "table"][..],
        ),
        ("num_attention_heads", json!(0), &["num_attention_heads 0"]),
        (
            "num_attention_heads",
            json!(5),
            &["hidden_size 32", "num_attention_heads 5"],
        ),
        (
            "num_key_value_heads",
            json!(3),
            &["num_key_value_heads 3", "4"],
        ),
        ("num_key_value_heads", json!(0), &["num_key_value_heads 0"]),
        (
            "num_cross_attention_key_value_heads",
            json!(8),
            &["num_cross_attention_key_value_heads 8"],
        ),
        ("num_codebooks", json!(0), &["num_codebooks is 0"]),
        ("vocab_size", json!(0), &["vocab_size is 0"]),
        (
            "max_position_embeddings",
            json!(0),
            &["max_position_embeddings is 0"],
        ),
        ("num_hidden_layers", json!(0), &["num_hidden_layers is 0"]),
        ("ffn_dim", json!(0), &["ffn_dim is 0"]),
    ] {
        let config = decoder_with(field, value)?;
        assert_error(Decoder::new(&config, made.vb(DType::F32, &cpu)), parts);
    }
    assert!(made.names().is_empty(), "{:?}", made.names());
    // As many heads of keys as of queries, where nothing is said.
    let plain = decoder_with("num_key_value_heads", Value::Null)?;
    let plain = DecoderConfig {
        num_cross_attention_key_value_heads: None,
        ..plain
    };
    Decoder::new(&plain, made.vb(DType::F32, &cpu))?;
    for name in ["self_attn", "encoder_attn"] {
        let name = format!("model.decoder.layers.1.{name}.v_proj.weight");
        let asked = made.asked();
        let (_, weight) = asked
            .iter()
            .find(|(n, _)| *n == name)
            .expect("it was requested");
        assert_eq!(weight.dims(), &[HIDDEN, HIDDEN]);
    }
    Ok(())
}

#[test]
fn arguments_that_do_not_fit() -> Result<()> {
    let cpu = Device::Cpu;
    let mut decoder = decoder(&Made::default(), DType::F32, &cpu)?;
    let tokens = |dims: &[usize]| ids(dims, VOCAB + 1, 1, &cpu);
    let of = |dims: &[usize]| vectors(dims, 2, &cpu);
    let (good, described) = (tokens(&[1, BOOKS, 2])?, of(&[1, 4, HIDDEN])?);
    let mut run = |tokens: &Tensor, prompt: Option<&Tensor>, described: &Tensor, start| {
        decoder.clear_kv_cache();
        decoder.forward(tokens, prompt, None, described, None, start)
    };
    run(&good, None, &described, LIMIT - 2)?;
    for books in [2, 4] {
        let wrong = tokens(&[1, books, 2])?;
        assert_error(run(&wrong, None, &described, 0), &["[1, ", "3 codebooks"]);
    }
    assert_error(
        run(&tokens(&[3, 2])?, None, &described, 0),
        &["[3, 2]", "(batch, 3, t)"],
    );
    assert_error(run(&good, None, &described, LIMIT - 1), &["40", "39"]);
    assert_error(run(&good, None, &described, usize::MAX), &["40"]);
    assert_error(
        run(&good, Some(&of(&[1, 39, HIDDEN])?), &described, 0),
        &["41 positions"],
    );
    assert_error(
        run(&good, Some(&of(&[1, 3, 8])?), &described, 0),
        &["[1, 3, 8]", "(1, prompt, 32)"],
    );
    assert_error(
        run(&good, None, &of(&[2, 4, HIDDEN])?, 0),
        &["[2, 4, 32]", "(1, keys, 32)"],
    );
    assert_error(run(&good, None, &of(&[1, 4, 8])?, 0), &["[1, 4, 8]"]);
    let large = Tensor::full(VOCAB as u32 + 1, (1, BOOKS, 2), &cpu)?;
    assert!(run(&large, None, &described, 0).is_err());

    let mut model = model(Made::default().vb(DType::F32, &cpu))?;
    let (spoken, told) = (ids(&[1, 4], 50, 1, &cpu)?, ids(&[1, 6], 60, 2, &cpu)?);
    let two = ids(&[2, 4], 50, 1, &cpu)?;
    assert_error(
        model.generate(&two, &told, greedy(), 3),
        &["prompt", "[2, 4]"],
    );
    assert_error(
        model.generate(&spoken, &two, greedy(), 3),
        &["description", "[2, 4]"],
    );
    let none = Tensor::zeros((1, 0), DType::U32, &cpu)?;
    assert_error(
        model.generate(&none, &told, greedy(), 3),
        &["prompt", "[1, 0]"],
    );
    Ok(())
}

/// The weights of a whole model, up to its codec; if a description's vectors have the decoder's size, no layer is needed in between.
#[test]
fn names_of_weights() -> Result<()> {
    let names = |json: Value| {
        let made = Made {
            lacking: &["audio_encoder."],
            ..Made::default()
        };
        let config: Config = config(json)?;
        let model = Model::new(&config, made.vb(DType::F32, &Device::Cpu));
        assert_error(model, &["audio_encoder.model"]);
        Ok::<_, candle_core::Error>(made.names())
    };
    let found = names(config_json())?;
    for name in [
        "text_encoder.shared.weight",
        "text_encoder.encoder.final_layer_norm.weight",
        "embed_prompts.weight",
        "enc_to_dec_proj.weight",
        "enc_to_dec_proj.bias",
        "decoder.model.decoder.embed_tokens.2.weight",
        "decoder.model.decoder.embed_positions.weights",
        "decoder.model.decoder.layers.1.self_attn.q_proj.weight",
        "decoder.model.decoder.layers.1.encoder_attn.out_proj.weight",
        "decoder.model.decoder.layers.0.encoder_attn_layer_norm.bias",
        "decoder.model.decoder.layers.0.fc2.weight",
        "decoder.model.decoder.layer_norm.weight",
        "decoder.lm_heads.2.weight",
    ] {
        assert!(
            found.iter().any(|n| n == name),
            "{name} is not among {found:?}"
        );
    }
    let biased = |name: &&String| name.contains("_proj.bias") || name.contains("fc1.bias");
    let biased: Vec<_> = found.iter().filter(biased).collect();
    assert_eq!(biased, ["enc_to_dec_proj.bias"]);

    let mut json = config_json();
    json["text_encoder"]["d_model"] = json!(HIDDEN);
    let found = names(json)?;
    assert!(!found.iter().any(|name| name.contains("enc_to_dec_proj")));
    Ok(())
}
