//! Text-to-speech models: Parler-TTS' decoder and its loop, and the stages of MetaVoice.
//!
//! Not compared, because ours differ on purpose: Parler-TTS over more than one sequence, which crates.io's rejects; MetaVoice's speaker
//! encoder, which there accepts no spectrogram of any size, and the second stage's `causal` and `swiglu_multiple_of`, which there have no
//! effect or another effect than in the original.

use crate::common::{config, gguf, VOCABULARY};
use crate::weights::Place;
use crate::Run;
use candle_core::{DType, Result, Tensor};
use candle_nn::{embedding, linear};
use candle_transformers::generation::{LogitsProcessor, Sampling};
use candle_transformers::models::metavoice::{adapters, gpt, tokenizers, transformer};
use candle_transformers::models::{dac, parler_tts, quantized_metavoice, t5};
use candle_transformers::quantized_var_builder;

pub const RUNS: &[Run] = &[
    ("parler_tts", parler_tts),
    ("parler_tts grouped", parler_tts_grouped),
    ("parler_tts generate", parler_tts_generate),
    ("metavoice", metavoice),
    ("metavoice grouped", metavoice_grouped),
    ("quantized_metavoice", quantized_metavoice),
    ("metavoice gpt", metavoice_gpt),
    ("metavoice gpt gated", metavoice_gpt_gated),
    ("metavoice tokens", metavoice_tokens),
];

const HIDDEN: usize = 48;
const BOOKS: usize = 3;
/// The token that ends a codebook, and the one it starts with.
const PAD: u32 = 10;
const START: u32 = 11;

fn parler_decoder(kv_heads: [Option<usize>; 2]) -> Result<parler_tts::DecoderConfig> {
    let plain: parler_tts::DecoderConfig = config(
        r#"{"vocab_size": 12, "max_position_embeddings": 64, "num_hidden_layers": 2, "ffn_dim": 96, "num_attention_heads": 6,
        "activation_function": "gelu", "hidden_size": 48, "scale_embedding": false, "num_codebooks": 3, "pad_token_id": 10,
        "bos_token_id": 11, "eos_token_id": 10, "tie_word_embeddings": false, "rope_embeddings": false, "rope_theta": 10000.0}"#,
    )?;
    Ok(parler_tts::DecoderConfig {
        num_key_value_heads: kv_heads[0],
        num_cross_attention_key_value_heads: kv_heads[1],
        ..plain
    })
}

/// A mask that hides later positions from the last `t` of `end`.
fn causal(t: usize, end: usize, place: &Place) -> Result<Tensor> {
    let hidden = |i: usize| {
        if i % end > i / end + end - t {
            f32::NEG_INFINITY
        } else {
            0.
        }
    };
    let mask: Vec<f32> = (0..t * end).map(hidden).collect();
    Tensor::from_vec(mask, (t, end), &place.device)
}

fn parler(place: &Place, name: &str, kv_heads: [Option<usize>; 2]) -> Result<Vec<Tensor>> {
    let decoder = parler_decoder(kv_heads)?;
    let mut decoder = parler_tts::Decoder::new(&decoder, place.weights(name))?;
    // One sequence: crates.io's does not add positions to more.
    let ids = place.tokens(name, BOOKS * 5, 13)?;
    let ids = ids.reshape((1, BOOKS, 5))?;
    let prompt = place.input(&format!("{name} prompt"), (1, 4, HIDDEN))?;
    let described = place.input(&format!("{name} described"), (1, 7, HIDDEN))?;
    let hidden = place.input(&format!("{name} hidden"), (1, 1, 1, 7))?;
    let hidden = (hidden * 4.)?;

    // A prompt and two tokens, two more, and a single one that sees all.
    let first = ids.narrow(2, 0, 2)?;
    let mask = causal(6, 6, place)?;
    let mut outputs = decoder.forward(&first, Some(&prompt), Some(&mask), &described, None, 0)?;
    let mask = causal(2, 8, place)?;
    let next = ids.narrow(2, 2, 2)?;
    outputs.extend(decoder.forward(&next, None, Some(&mask), &described, None, 6)?);
    let last = ids.narrow(2, 4, 1)?;
    outputs.extend(decoder.forward(&last, None, None, &described, None, 8)?);

    // Restarted, without a prompt, where all positions see each other and half of the description is hidden.
    decoder.clear_kv_cache();
    outputs.extend(decoder.forward(&ids, None, None, &described, Some(&hidden), 3)?);
    outputs
        .into_iter()
        .map(|logits| logits.contiguous())
        .collect()
}

fn parler_tts(place: &Place) -> Result<Vec<Tensor>> {
    parler(place, "parler_tts", [None, None])
}

fn parler_tts_grouped(place: &Place) -> Result<Vec<Tensor>> {
    parler(place, "parler_tts grouped", [Some(3), Some(2)])
}

/// All of a small model: the names of its fields show its structure.
fn parler_tts_generate(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("parler_tts generate");
    let text_encoder: t5::Config = config(
        r#"{"vocab_size": 128, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4,
        "relative_attention_num_buckets": 32, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "initializer_factor": 1.0,
        "feed_forward_proj": "gated-gelu", "is_encoder_decoder": true, "pad_token_id": 0, "eos_token_id": 1}"#,
    )?;
    let codec = vb.pp("audio_encoder.model");
    let mut model = parler_tts::Model {
        embed_prompts: embedding(VOCABULARY, HIDDEN, vb.pp("embed_prompts"))?,
        enc_to_dec_proj: Some(linear(32, HIDDEN, vb.pp("enc_to_dec_proj"))?),
        decoder: parler_tts::Decoder::new(&parler_decoder([None, None])?, vb.pp("decoder"))?,
        text_encoder: t5::T5EncoderModel::load(vb.pp("text_encoder"), &text_encoder)?,
        decoder_start_token_id: START,
        pad_token_id: PAD,
        audio_encoder: dac::Model {
            encoder: dac::Encoder::new(2, &[2], 8, codec.pp("encoder"))?,
            quantizer: dac::ResidualVectorQuantizer::new(8, BOOKS, 16, 4, codec.pp("quantizer"))?,
            decoder: dac::Decoder::new(8, 8, &[2], 1, codec.pp("decoder"))?,
        },
    };
    let mut outputs = Vec::new();
    let described = place.tokens("described", 9, VOCABULARY as u64)?;
    for (seed, steps) in [(1, 2), (2, 9), (3, 30), (4, 30), (5, 30)] {
        let spoken = place.tokens("spoken", 4 + seed as usize, VOCABULARY as u64)?;
        let lp = LogitsProcessor::from_sampling(seed, Sampling::All { temperature: 1. });
        let tokens = model.generate(&spoken, &described, lp, steps)?;
        let frames = Tensor::new(&[1. + tokens.dim(1)? as f32], tokens.device())?;
        outputs.push(Tensor::cat(
            &[tokens.flatten_all()?.to_dtype(DType::F32)?, frames],
            0,
        )?);
    }
    Ok(outputs)
}

fn metavoice_config(local: Option<usize>) -> transformer::Config {
    transformer::Config {
        block_size: 32,
        vocab_size: VOCABULARY,
        n_layer: 2,
        n_head: 4,
        dim: 64,
        speaker_emb_dim: 32,
        intermediate_size: local.map(|_| 96),
        n_local_heads: local,
        norm_eps: 1e-5,
    }
}

/// Nine tokens, the last ones one at a time, with and without a voice; and one sequence for both.
fn spoken(
    place: &Place,
    name: &str,
    mut forward: impl FnMut(&Tensor, &Tensor, usize) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let ids = place.tokens(name, 18, VOCABULARY as u64)?.reshape((2, 9))?;
    let voice = place.input(&format!("{name} voice"), (1, 1, 32))?;
    let mut outputs = vec![forward(&ids.narrow(1, 0, 7)?, &voice, 0)?];
    for position in 7..9 {
        outputs.push(forward(&ids.narrow(1, position, 1)?, &voice, position)?);
    }
    Ok(outputs)
}

fn metavoice_with(place: &Place, name: &str, local: Option<usize>) -> Result<Vec<Tensor>> {
    let config = metavoice_config(local);
    let mut model = transformer::Model::new(&config, place.weights(name))?;
    let mut outputs = spoken(place, name, |ids, voice, at| model.forward(ids, voice, at))?;
    model.clear_kv_cache();
    let ids = place.tokens("metavoice once", 5, VOCABULARY as u64)?;
    let voice = place.input("metavoice once", (1, 32))?;
    outputs.push(model.forward(&ids, &voice, 0)?);
    Ok(outputs)
}

fn metavoice(place: &Place) -> Result<Vec<Tensor>> {
    metavoice_with(place, "metavoice", None)
}

fn metavoice_grouped(place: &Place) -> Result<Vec<Tensor>> {
    metavoice_with(place, "metavoice grouped", Some(2))
}

fn quantized_metavoice(place: &Place) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::new();
    let mut add = |name: &str, dims: &[usize]| {
        tensors.push((format!("{name}.weight"), dims.to_vec()));
    };
    add("tok_embeddings", &[VOCABULARY, 64]);
    add("pos_embeddings", &[32, 64]);
    add("speaker_cond_pos", &[64, 32]);
    add("norm", &[64]);
    add("output", &[VOCABULARY, 64]);
    for i in 0..2 {
        for (part, dims) in [
            ("attention.wqkv", &[128, 64][..]),
            ("attention.wo", &[64, 64]),
            ("feed_forward.swiglu.w1", &[96, 64]),
            ("feed_forward.swiglu.w3", &[96, 64]),
            ("feed_forward.w2", &[64, 96]),
            ("attention_norm", &[64]),
            ("ffn_norm", &[64]),
        ] {
            add(&format!("layers.{i}.{part}"), dims);
        }
    }
    gguf(place, "quantized_metavoice", &[], &tensors)?;
    let path = place.folder.join("quantized_metavoice.gguf");
    let vb = quantized_var_builder::VarBuilder::from_gguf(path, &place.device)?;
    let config = metavoice_config(Some(2));
    let mut model = quantized_metavoice::transformer::Model::new(&config, vb)?;
    spoken(place, "quantized_metavoice", |ids, voice, at| {
        model.forward(ids, voice, at)
    })
}

fn gpt_with(place: &Place, name: &str, config: gpt::Config) -> Result<Vec<Tensor>> {
    let config = gpt::Config {
        block_size: 16,
        vocab_sizes: vec![40, 24],
        target_vocab_sizes: vec![24, 25, 26],
        n_layer: 2,
        n_head: 4,
        n_embd: 48,
        ..config
    };
    let model = gpt::Model::new(config, place.weights(name))?;
    let ids = place.tokens(name, 2 * 2 * 9, 24)?.reshape((2, 2, 9))?;
    let logits = model.forward(&ids)?;
    logits
        .into_iter()
        .map(|logits| logits.contiguous())
        .collect()
}

fn metavoice_gpt(place: &Place) -> Result<Vec<Tensor>> {
    gpt_with(place, "metavoice gpt", gpt::Config::cfg1b_v0_1())
}

fn metavoice_gpt_gated(place: &Place) -> Result<Vec<Tensor>> {
    let config = gpt::Config {
        bias: true,
        norm_type: gpt::NormType::RMSNorm,
        rmsnorm_eps: 1e-3,
        nonlinearity_type: gpt::NonLinearityType::Swiglu,
        swiglu_multiple_of: Some(1),
        ..gpt::Config::cfg1b_v0_1()
    };
    gpt_with(place, "metavoice gpt gated", config)
}

/// The results of the tokenizer and the adapters for texts and tokens.
fn metavoice_tokens(place: &Place) -> Result<Vec<Tensor>> {
    let json: serde_json::Value = config(
        r#"{"pat_str": "\\s*\\S+|\\s+", "offset": 7, "mergeable_ranks": {"a": 3, "an": 300, "na": 299, "ana": 256, "nan": 290, " b": 301,
        " ba": 257, "é": 310, "ban": 270, "anan": 260, "ananas": 320, "as": 258}}"#,
    )?;
    let bpe = tokenizers::BPE::from_json(&json, 500)?;
    let floats = |tokens: &[u32]| {
        let tokens: Vec<f32> = tokens.iter().map(|token| *token as f32).collect();
        Tensor::new(tokens, &place.device)
    };
    let mut outputs = Vec::new();
    for text in ["a banana", "ananas  bananas né\n", "", " ba", "ban an"] {
        outputs.push(floats(&bpe.encode(text)?)?);
    }
    outputs.push(floats(&bpe.byte_pair_encode("bananananas".as_bytes()))?);
    let tokens: Vec<u32> = place.tokens("adapters", 60, 50)?.flatten_all()?.to_vec1()?;
    let flat = adapters::FlattenedInterleavedEncodec2Codebook::new(18);
    let (text, first, second) = flat.decode(&tokens);
    let tilted = adapters::TiltedEncodec::new(33);
    let books: Vec<_> = tokens.chunks(20).map(<[u32]>::to_vec).collect();
    let (of_tilted, sound) = tilted.decode(&books);
    for tokens in [text, first, second, of_tilted].into_iter().chain(sound) {
        outputs.push(floats(&tokens)?);
    }
    Ok(outputs)
}
