//! Encoder-decoder models: for a text of nine tokens twice, or a picture.
//!
//! Not compared, because ours differ on purpose: in Marian, an encoder with another number of heads than the decoder, whose number
//! crates.io's uses for both; in T5, distances from eight on in the decoder, which crates.io's assigns to the encoder's buckets, and the
//! scale of the logits of a tied head, where it multiplies and the model divides; TrOCR's biases and norm of embeddings, which it omits,
//! and its prompts of several tokens, whose mask it applies to the picture.

use crate::common::{config, gguf, VOCABULARY};
use crate::weights::{weight, Place};
use crate::Run;
use candle_core::{bail, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::{
    blip, blip_text, marian, quantized_blip_text, quantized_t5, t5, trocr, vit,
};
use candle_transformers::quantized_var_builder;

pub const RUNS: &[Run] = &[
    ("t5", t5),
    ("t5 tied", t5_tied),
    ("t5 encoder", t5_encoder),
    ("quantized_t5", quantized_t5),
    ("marian", marian),
    ("trocr", trocr),
    ("trocr waves", trocr_waves),
    ("blip", blip),
    ("quantized_blip_text", quantized_blip_text),
];

/// Weights by name, without those that crates.io's TrOCR lacks.
struct Bare;

impl SimpleBackend for Bare {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        weight(name, &s)?.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} requires a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !name.ends_with("_proj.bias") && !name.contains("layernorm_embedding")
    }
}

const T5: &str = r#"{"vocab_size": 128, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "relative_attention_num_buckets": 32, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "initializer_factor": 1.0,
    "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false, "is_encoder_decoder": true, "pad_token_id": 0,
    "eos_token_id": 1}"#;

/// Nine tokens of two texts.
fn texts(place: &Place, name: &str) -> Result<Tensor> {
    place.tokens(name, 18, VOCABULARY as u64)?.reshape((2, 9))
}

/// The first three tokens, and then two single ones: `forward` receives the ids and the position.
fn written(
    ids: &Tensor,
    mut forward: impl FnMut(&Tensor, usize) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let mut outputs = vec![forward(&ids.narrow(1, 0, 3)?, 0)?];
    for position in 3..5 {
        outputs.push(forward(&ids.narrow(1, position, 1)?, position)?);
    }
    Ok(outputs)
}

fn t5(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("t5");
    let mut model = t5::T5ForConditionalGeneration::load(vb, &config(T5)?)?;
    let ids = texts(place, "t5")?;
    let encoded = model.encode(&ids)?;
    let mut outputs = written(&ids, |ids, _| model.decode(ids, &encoded))?;
    model.clear_kv_cache();
    outputs.push(model.forward(&ids, &ids.narrow(1, 4, 2)?)?);
    outputs.push(encoded);
    Ok(outputs)
}

fn t5_tied(place: &Place) -> Result<Vec<Tensor>> {
    let config = t5::Config {
        feed_forward_proj: t5::Config::default().feed_forward_proj,
        tie_word_embeddings: true,
        use_cache: false,
        ..config(T5)?
    };
    let vb = place.weights("t5 tied");
    let mut model = t5::T5ForConditionalGeneration::load(vb, &config)?;
    let ids = texts(place, "t5 tied")?;
    let encoded = model.encode(&ids)?;
    let mut outputs = vec![];
    for len in 1..6 {
        let logits = model.decode(&ids.narrow(1, 0, len)?, &encoded)?;
        let size = logits.sqr()?.mean_keepdim(1)?.sqrt()?;
        outputs.push(logits.broadcast_div(&size)?);
    }
    Ok(outputs)
}

/// Distances of all buckets.
fn t5_encoder(place: &Place) -> Result<Vec<Tensor>> {
    let config = t5::Config {
        relative_attention_num_buckets: 12,
        relative_attention_max_distance: 20,
        ..config(T5)?
    };
    let mut model = t5::T5EncoderModel::load(place.weights("t5 encoder"), &config)?;
    let ids = place.tokens("t5 encoder", 40, VOCABULARY as u64)?;
    Ok(vec![
        model.forward(&ids)?,
        model.forward_dt(&ids, Some(DType::F32))?,
    ])
}

fn quantized(
    place: &Place,
    name: &str,
    tensors: &[(String, Vec<usize>)],
) -> Result<quantized_var_builder::VarBuilder> {
    gguf(place, name, &[], tensors)?;
    let path = place.folder.join(format!("{name}.gguf"));
    quantized_var_builder::VarBuilder::from_gguf(path, &place.device)
}

fn quantized_t5(place: &Place) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::new();
    let mut add = |name: String, dims: &[usize]| {
        tensors.push((format!("{name}.weight"), dims.to_vec()));
    };
    add("shared".to_string(), &[VOCABULARY, 64]);
    add("lm_head".to_string(), &[VOCABULARY, 64]);
    for (stack, layers, mlp) in [("encoder", 2, 1), ("decoder", 3, 2)] {
        add(format!("{stack}.final_layer_norm"), &[64]);
        let distances = "block.0.layer.0.SelfAttention.relative_attention_bias";
        add(format!("{stack}.{distances}"), &[32, 4]);
        for i in 0..layers {
            let block = format!("{stack}.block.{i}.layer");
            for part in ["q", "k", "v", "o"] {
                add(format!("{block}.0.SelfAttention.{part}"), &[64, 64]);
                if mlp == 2 {
                    add(format!("{block}.1.EncDecAttention.{part}"), &[64, 64]);
                }
            }
            for norm in 0..=mlp {
                add(format!("{block}.{norm}.layer_norm"), &[64]);
            }
            add(format!("{block}.{mlp}.DenseReluDense.wi_0"), &[96, 64]);
            add(format!("{block}.{mlp}.DenseReluDense.wi_1"), &[96, 64]);
            add(format!("{block}.{mlp}.DenseReluDense.wo"), &[64, 96]);
        }
    }
    let vb = quantized(place, "quantized_t5", &tensors)?;
    let mut model = quantized_t5::T5ForConditionalGeneration::load(vb, &config(T5)?)?;
    let ids = texts(place, "quantized_t5")?;
    let encoded = model.encode(&ids)?;
    let mut outputs = written(&ids, |ids, _| model.decode(ids, &encoded))?;
    outputs.push(encoded);
    Ok(outputs)
}

fn marian(place: &Place) -> Result<Vec<Tensor>> {
    let config = marian::Config {
        vocab_size: VOCABULARY,
        decoder_vocab_size: None,
        max_position_embeddings: 32,
        encoder_layers: 2,
        encoder_ffn_dim: 96,
        encoder_attention_heads: 4,
        decoder_layers: 2,
        decoder_ffn_dim: 64,
        decoder_attention_heads: 4,
        d_model: 64,
        ..marian::Config::opus_mt_fr_en()
    };
    let mut model = marian::MTModel::new(&config, place.weights("marian"))?;
    let ids = texts(place, "marian")?;
    let encoded = model.encoder().forward(&ids, 0)?;
    let mut outputs = written(&ids, |ids, at| model.decode(ids, &encoded, at))?;
    model.reset_kv_cache();
    let mask = Tensor::zeros((2, 2), DType::F32, &place.device)?;
    let ids = ids.narrow(1, 4, 2)?;
    outputs.push(model.decoder().forward(&ids, None, 0, &mask)?);
    outputs.push(encoded);
    Ok(outputs)
}

fn trocr_with(place: &Place, name: &str, decoder: trocr::TrOCRConfig) -> Result<Vec<Tensor>> {
    let encoder = vit::Config {
        hidden_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 64,
        image_size: 32,
        patch_size: 8,
        ..vit::Config::microsoft_trocr_base_handwritten()
    };
    let decoder = trocr::TrOCRConfig {
        vocab_size: VOCABULARY,
        d_model: 64,
        cross_attention_hidden_size: 48,
        decoder_layers: 2,
        decoder_attention_heads: 4,
        decoder_ffn_dim: 96,
        max_position_embeddings: 32,
        ..decoder
    };
    let vb = VarBuilder::from_backend(Box::new(Bare), DType::F32, place.device.clone());
    let mut model = trocr::TrOCRModel::new(&encoder, &decoder, vb.pp(name))?;
    let picture = place.input(name, (2, 3, 32, 32))?;
    let encoded = model.encoder().forward(&picture)?;
    let ids = texts(place, name)?;
    let mut outputs = Vec::new();
    for position in 0..5 {
        let id = ids.narrow(1, position, 1)?;
        outputs.push(model.decode(&id, &encoded, position)?);
    }
    outputs.push(encoded);
    Ok(outputs)
}

fn trocr(place: &Place) -> Result<Vec<Tensor>> {
    trocr_with(place, "trocr", trocr::TrOCRConfig::default())
}

fn trocr_waves(place: &Place) -> Result<Vec<Tensor>> {
    let config = trocr::TrOCRConfig {
        use_learned_position_embeddings: false,
        tie_word_embeddings: false,
        scale_embedding: true,
        ..trocr::TrOCRConfig::default()
    };
    trocr_with(place, "trocr waves", config)
}

fn blip_config() -> blip::Config {
    let large = blip::Config::image_captioning_large();
    blip::Config {
        text_config: blip_text::Config {
            vocab_size: VOCABULARY,
            hidden_size: 64,
            encoder_hidden_size: 32,
            intermediate_size: 96,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            max_position_embeddings: 32,
            ..large.text_config
        },
        vision_config: blip::VisionConfig {
            hidden_size: 32,
            intermediate_size: 64,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            image_size: 32,
            patch_size: 8,
            ..large.vision_config
        },
        ..large
    }
}

fn blip(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("blip");
    let mut model = blip::BlipForConditionalGeneration::new(&blip_config(), vb)?;
    let picture = place.input("blip", (1, 3, 32, 32))?;
    let picture = model.vision_model().forward(&picture)?;
    // Crates.io's adds the positions to one text only.
    let ids = texts(place, "blip")?.narrow(0, 0, 1)?;
    let mut outputs = written(&ids, |ids, _| model.text_decoder().forward(ids, &picture))?;
    outputs.push(picture);
    Ok(outputs)
}

fn quantized_blip_text(place: &Place) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::new();
    let mut add = |name: &str, dims: &[usize]| tensors.push((name.to_string(), dims.to_vec()));
    let embeddings = "bert.embeddings";
    add(
        &format!("{embeddings}.word_embeddings.weight"),
        &[VOCABULARY, 64],
    );
    add(
        &format!("{embeddings}.position_embeddings.weight"),
        &[32, 64],
    );
    add("cls.predictions.decoder.weight", &[VOCABULARY, 64]);
    add("cls.predictions.bias", &[VOCABULARY]);
    let mut norms = vec![
        format!("{embeddings}.LayerNorm"),
        "cls.predictions.transform.LayerNorm".to_string(),
    ];
    let mut linears = vec![("cls.predictions.transform.dense".to_string(), 64, 64)];
    for i in 0..2 {
        let layer = format!("bert.encoder.layer.{i}");
        for (attention, size) in [("attention", 64), ("crossattention", 32)] {
            let attention = format!("{layer}.{attention}");
            for (part, size) in [("query", 64), ("key", size), ("value", size)] {
                linears.push((format!("{attention}.self.{part}"), 64, size));
            }
            linears.push((format!("{attention}.output.dense"), 64, 64));
            norms.push(format!("{attention}.output.LayerNorm"));
        }
        linears.push((format!("{layer}.intermediate.dense"), 96, 64));
        linears.push((format!("{layer}.output.dense"), 64, 96));
        norms.push(format!("{layer}.output.LayerNorm"));
    }
    for (name, outputs, inputs) in linears {
        add(&format!("{name}.weight"), &[outputs, inputs]);
        add(&format!("{name}.bias"), &[outputs]);
    }
    for name in norms {
        add(&format!("{name}.weight"), &[64]);
        add(&format!("{name}.bias"), &[64]);
    }
    let vb = quantized(place, "quantized_blip_text", &tensors)?;
    let config = blip_config().text_config;
    let mut model = quantized_blip_text::TextLMHeadModel::new(&config, vb)?;
    let picture = place.input("quantized_blip_text", (1, 7, 32))?;
    let ids = texts(place, "quantized_blip_text")?.narrow(0, 0, 1)?;
    written(&ids, |ids, _| model.forward(ids, &picture))
}
