//! Models that describe pictures.

use crate::common::config;
use crate::weights::{weight, Place};
use crate::Run;
use candle_core::quantized::{gguf_file, GgmlDType, QTensor};
use candle_core::{bail, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::clip::text_model::Activation;
use candle_transformers::models::clip::vision_model::ClipVisionConfig;
use candle_transformers::models::llama::Cache;
use candle_transformers::models::llava::config::{
    HFGenerationConfig, HFLLaVAConfig, HFPreProcessorConfig, LLaVAConfig,
};
use candle_transformers::models::llava::LLaVA;
use candle_transformers::models::{
    blip, blip_text, colpali, mixformer, moondream, paligemma, pixtral, quantized_blip,
    quantized_mixformer, quantized_moondream,
};
use candle_transformers::quantized_var_builder;
use std::fs::File;

pub const RUNS: &[Run] = &[
    ("paligemma", paligemma),
    ("colpali", colpali),
    ("pixtral", pixtral),
    ("llava", llava),
    ("llava rows", llava_rows),
    ("llava flat", llava_flat),
    ("llava hf", llava_hf),
    ("moondream", moondream),
    ("quantized_moondream", quantized_moondream),
    ("quantized_blip", quantized_blip),
];

/// Weights by name, except those for which crates.io's models and Hugging Face's would differ.
struct Agreeing;

impl SimpleBackend for Agreeing {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let one_of = |parts: &[&str]| parts.iter().any(|part| name.ends_with(part));
        let cpu = &Device::Cpu;
        let weight = match s.dims() {
            // Crates.io's PaliGemma scales each patch to the length of tokens. Here it already has this length.
            _ if one_of(&["post_layernorm.weight"]) => Tensor::ones(s, DType::F32, cpu)?,
            _ if one_of(&["post_layernorm.bias", "projector.linear.bias"]) => {
                Tensor::zeros(s, DType::F32, cpu)?
            }
            [size, _] if one_of(&["multi_modal_projector.linear.weight"]) => mirror(name, *size)?,
            // Crates.io's ColPali lacks the last norm. Here it only changes lengths, which do not matter.
            _ if one_of(&["model.norm.weight", "custom_text_proj.bias"])
                && name.starts_with("colpali") =>
            {
                Tensor::zeros(s, DType::F32, cpu)?
            }
            // Crates.io's LLaVA uses one layer more. Here this layer changes nothing.
            _ if name.contains("vision_model.encoder.layers.1.")
                && (name.contains(".out_proj.") || name.contains(".fc2.")) =>
            {
                Tensor::zeros(s, DType::F32, cpu)?
            }
            _ => weight(name, &s)?,
        };
        weight.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} requires a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        // Their output layer is the token table, and ours would read another one from a file that has it.
        let tied = name.starts_with("paligemma") || name.starts_with("llava rows");
        !(tied && name.ends_with("lm_head.weight"))
    }
}

/// A matrix that preserves lengths.
fn mirror(name: &str, size: usize) -> Result<Tensor> {
    let normal = weight(name, &(size, 1).into())?;
    let length = normal.sqr()?.sum_all()?.to_scalar::<f32>()?;
    let twice = (normal.matmul(&normal.t()?)? * (2. / f64::from(length)))?;
    Tensor::eye(size, DType::F32, &Device::Cpu)? - twice
}

fn agreeing(place: &Place, model: &str) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Agreeing), DType::F32, place.device.clone()).pp(model)
}

fn paligemma_config() -> paligemma::Config {
    let mut config = paligemma::Config::paligemma_3b_224();
    let (vision, text) = (&mut config.vision_config, &mut config.text_config);
    (vision.image_size, vision.patch_size) = (32, 8);
    (vision.num_hidden_layers, vision.num_attention_heads) = (2, 4);
    (vision.hidden_size, vision.intermediate_size) = (32, 48);
    (text.num_hidden_layers, text.num_attention_heads) = (2, 4);
    (text.hidden_size, text.intermediate_size, text.head_dim) = (32, 48, 16);
    (text.vocab_size, text.max_position_embeddings) = (128, 64);
    config.projection_dim = 32;
    config
}

fn paligemma(place: &Place) -> Result<Vec<Tensor>> {
    let vb = agreeing(place, "paligemma");
    let mut model = paligemma::Model::new(&paligemma_config(), vb)?;
    let picture = place.input("paligemma", (1, 3, 32, 32))?;
    let ids = place.tokens("paligemma", 7, 128)?;
    let prompt = ids.narrow(1, 0, 5)?;
    let mut outputs = vec![model.setup(&picture, &prompt)?];
    for i in 5..7 {
        outputs.push(model.forward(&ids.narrow(1, i, 1)?)?);
    }
    outputs.push(model.setup_without_projection(&picture, &prompt)?);
    outputs.push(model.forward_without_projection(&ids)?);
    // A picture of another size, as another sequence.
    let other = place.input("paligemma too", (1, 3, 16, 40))?;
    outputs.push(model.setup(&other, &prompt)?);
    Ok(outputs)
}

fn colpali(place: &Place) -> Result<Vec<Tensor>> {
    let vb = agreeing(place, "colpali");
    let mut model = colpali::Model::new(&paligemma_config(), vb)?;
    let pictures = place.input("colpali", (2, 3, 32, 32))?;
    let ids = place.tokens("colpali", 8, 128)?.reshape((2, 4))?;
    Ok(vec![
        model.forward_images(&pictures, &ids)?,
        model.forward_text(&ids)?,
    ])
}

const PIXTRAL: &str = r#"{
    "projector_hidden_act": "gelu", "image_token_index": 10, "image_seq_length": 1,
    "vision_config": {
        "image_size": 64, "patch_size": 8, "rope_theta": 10000.0, "hidden_size": 48, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 12, "hidden_act": "gelu"
    },
    "text_config": {
        "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "head_dim": 16, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
        "sliding_window": null
    }
}"#;

fn pixtral(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = pixtral::Model::new(&config(PIXTRAL)?, place.weights("pixtral"))?;
    let mut outputs = Vec::new();
    // The largest picture, and one that is not square and has a remainder of pixels.
    for (name, sides) in [("pixtral", (64, 64)), ("pixtral too", (19, 45))] {
        let picture = place.input(name, (2, 3, sides.0, sides.1))?;
        outputs.push(model.vision_tower.forward(&picture)?);
        outputs.push(model.encode_image(&picture)?);
    }
    let device = &place.device;
    let ids = model.vision_tower.position_ids_in_meshgrid(3, 5, device)?;
    outputs.push(ids.to_dtype(DType::F32)?);
    let tokens = place.tokens("pixtral", 7, 128)?;
    outputs.push(model.lm_forward(&tokens)?);
    // In crates.io's, tokens see later ones if several vectors are passed at once.
    let picture = outputs[3].narrow(0, 0, 1)?;
    for i in 0..2 {
        outputs.push(model.lm_forward_embeds(&picture.narrow(1, i, 1)?)?);
    }
    outputs.push(model.lm_forward(&tokens.narrow(1, 0, 1)?)?);
    model.clear_kv_cache();
    outputs.push(model.lm_forward(&tokens.narrow(1, 3, 4)?)?);
    Ok(outputs)
}

/// Tiles of 16 pixels with 4 patches on a side.
const LLAVA: &str = r#"{
    "architectures": [], "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 32, "image_aspect_ratio": "anyres",
    "image_crop_resolution": 224, "image_grid_pinpoints": [[16, 32], [32, 16]], "image_split_resolution": 224,
    "intermediate_size": 48, "max_position_embeddings": 256, "mm_hidden_size": 24, "mm_patch_merge_type": "spatial_unpad",
    "mm_projector_type": "mlp2x_gelu", "mm_use_im_start_end": false, "mm_vision_select_feature": "patch",
    "mm_vision_select_layer": -2, "mm_vision_tower": null, "model_type": "llava", "num_attention_heads": 4,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tokenizer_model_max_length": 200, "torch_dtype": "float16", "use_cache": true, "vocab_size": 128
}"#;

fn clip_config() -> ClipVisionConfig {
    ClipVisionConfig {
        embed_dim: 24,
        activation: Activation::QuickGelu,
        intermediate_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        projection_dim: 16,
        num_channels: 3,
        image_size: 16,
        patch_size: 4,
    }
}

/// For pictures with their tiles and sizes: the layers' results, the prompt, and the tokens after it. Crates.io's supports one picture.
fn seen_by_llava(
    place: &Place,
    name: &str,
    config: &LLaVAConfig,
    pictures: &[(usize, (u32, u32))],
) -> Result<Vec<Tensor>> {
    let (clip, device) = (clip_config(), &place.device);
    let model = LLaVA::load(agreeing(place, name), config, Some(clip))?;
    let at = config.image_token_index as i64;
    let prompt = Tensor::new(&[[1i64, 17, at, 40, 9]], device)?;
    let mut outputs = Vec::new();
    for (tiles, size) in pictures {
        let tiles = place.input(&format!("{name} {size:?}"), (*tiles, 3, 16, 16))?;
        outputs.push(model.encode_images(&tiles)?);
        let embeds = model.prepare_inputs_labels_for_multimodal(&prompt, &[tiles], &[*size])?;
        let mut cache = Cache::new(true, DType::F32, &config.to_llama_config(), device)?;
        outputs.push(model.forward(&embeds, 0, &mut cache)?);
        let next = model.llama.embed(&Tensor::new(&[[7u32]], device)?)?;
        outputs.push(model.forward(&next, embeds.dim(1)?, &mut cache)?);
        outputs.push(embeds);
    }
    let words = Tensor::new(&[[1i64, 17, 40, 9]], device)?;
    // Crates.io's requires a picture, which it does not read.
    let unseen = [place.input(name, (1, 3, 16, 16))?];
    outputs.push(model.prepare_inputs_labels_for_multimodal(&words, &unseen, &[(16, 16)])?);
    Ok(outputs)
}

fn llava(place: &Place) -> Result<Vec<Tensor>> {
    let mut config: LLaVAConfig = config(LLAVA)?;
    // One tile, and two adjacent ones, without columns at the sides.
    let pictures = [(1, (20, 20)), (3, (30, 18))];
    let mut outputs = seen_by_llava(place, "llava", &config, &pictures)?;
    // Four, without rows above and below, which truncate the prompt.
    config.image_grid_pinpoints = vec![(32, 32)];
    config.tokenizer_model_max_length = Some(50);
    outputs.extend(seen_by_llava(place, "llava", &config, &[(5, (64, 38))])?);
    Ok(outputs)
}

fn llava_rows(place: &Place) -> Result<Vec<Tensor>> {
    let mut config: LLaVAConfig = config(LLAVA)?;
    config.mm_patch_merge_type = "spatial".to_string();
    config.tie_word_embeddings = Some(true);
    let pictures = [(1, (20, 20)), (3, (18, 36))];
    seen_by_llava(place, "llava rows", &config, &pictures)
}

fn llava_flat(place: &Place) -> Result<Vec<Tensor>> {
    let mut config: LLaVAConfig = config(LLAVA)?;
    config.mm_patch_merge_type = "flat".to_string();
    config.mm_projector_type = "linear".to_string();
    config.mm_vision_select_feature = "cls_patch".to_string();
    seen_by_llava(place, "llava flat", &config, &[(2, (20, 20))])
}

const HF_LLAVA: &str = r#"{
    "architectures": [], "ignore_index": -100, "image_grid_pinpoints": [[16, 32], [32, 16], [32, 32]], "image_token_index": 127,
    "model_type": "llava_next", "projector_hidden_act": "gelu", "torch_dtype": "float16", "use_image_newline_parameter": true,
    "vision_feature_layer": -2, "vision_feature_select_strategy": "default", "vocab_size": 128,
    "text_config": {
        "architectures": [], "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 256, "model_type": "llama",
        "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 4, "pad_token_id": 0, "rms_norm_eps": 1e-5,
        "torch_dtype": "float16", "vocab_size": 128
    },
    "vision_config": {
        "hidden_size": 24, "image_size": 16, "intermediate_size": 32, "model_type": "clip_vision_model",
        "num_attention_heads": 4, "num_hidden_layers": 2, "patch_size": 4, "projection_dim": 16, "vocab_size": 100
    }
}"#;

fn llava_hf(place: &Place) -> Result<Vec<Tensor>> {
    let of_parts: HFLLaVAConfig = config(HF_LLAVA)?;
    let generation: HFGenerationConfig =
        config(r#"{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}"#)?;
    let pictures: HFPreProcessorConfig = config(
        r#"{
            "aspect_ratio_setting": "anyres", "crop_size": {"height": 16, "width": 16}, "do_center_crop": true,
            "do_convert_rgb": true, "do_normalize": true, "do_rescale": true, "do_resize": true,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 3, "rescale_factor": 0.004,
            "size": {"shortest_edge": 16.0}
        }"#,
    )?;
    let mut config = of_parts.to_llava_config(&generation, &pictures);
    // Crates.io's has a constant of the published models here.
    config.mm_hidden_size = of_parts.to_clip_vision_config().embed_dim;
    seen_by_llava(place, "llava hf", &config, &[(3, (18, 36))])
}

/// Crates.io's only supports patches of this size.
const MOONDREAM: &str = r#"{
    "phi_config": {
        "vocab_size": 128, "n_positions": 64, "n_embd": 64, "n_layer": 1, "n_inner": 96, "n_head": 4, "rotary_dim": 8,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": false, "pad_vocab_size_multiple": 64
    },
    "vision_config": {
        "image_embedding_dim": 1152, "model_dim": 64, "hidden_dim": 32, "hidden_features": 64, "embed_len": 4,
        "embed_dim": 1152, "num_blocks": 1, "num_heads": 16, "act": "gelu_pytorch_tanh"
    }
}"#;

/// The encoded picture, and two steps of a text after it.
fn seen_by_moondream(
    place: &Place,
    name: &str,
    see: impl FnOnce(&Tensor) -> Result<Tensor>,
    read: impl FnOnce([Tensor; 4]) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    // Crates.io's supports one picture.
    let picture = see(&place.input(name, (1, 3, 28, 28))?)?;
    let ids = place.tokens(name, 4, 128)?;
    let part = |start, len| ids.narrow(1, start, len);
    let mut outputs = read([part(0, 1)?, part(1, 2)?, part(3, 1)?, picture.clone()])?;
    outputs.push(picture);
    Ok(outputs)
}

fn moondream(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("moondream");
    let model = moondream::Model::new(&config(MOONDREAM)?, vb)?;
    let mut text: mixformer::MixFormerSequentialForCausalLM = model.text_model.clone();
    let see = |picture: &Tensor| model.vision_encoder().forward(picture);
    seen_by_moondream(place, "moondream", see, |[first, ids, next, picture]| {
        let logits = text.forward_with_img(&first, &ids, &picture)?;
        Ok(vec![logits, text.forward(&next)?])
    })
}

/// A file with these layers, `(name, outputs, inputs)`, and norms, all with biases, and these other tensors. Matrices with rows of 32 to 96
/// numbers are in blocks: if products round thousands of activations to 8 bits, some are rounded differently, and everything after them
/// differs.
fn file(
    place: &Place,
    name: &str,
    linears: &[(String, usize, usize)],
    norms: &[(String, usize)],
    mut tensors: Vec<(String, Vec<usize>)>,
) -> Result<quantized_var_builder::VarBuilder> {
    for (name, outputs, inputs) in linears {
        tensors.push((format!("{name}.weight"), vec![*outputs, *inputs]));
        tensors.push((format!("{name}.bias"), vec![*outputs]));
    }
    for (name, size) in norms {
        tensors.push((format!("{name}.weight"), vec![*size]));
        tensors.push((format!("{name}.bias"), vec![*size]));
    }
    let made = tensors.iter().map(|(name, dims)| {
        let format = match dims.as_slice() {
            [_, 32 | 64 | 96] => GgmlDType::Q8_0,
            _ => GgmlDType::F32,
        };
        let plain = weight(name, &Shape::from(dims.as_slice()))?;
        Ok((name.as_str(), QTensor::quantize(&plain, format)?))
    });
    let made: Vec<(&str, QTensor)> = made.collect::<Result<_>>()?;
    let tensors: Vec<(&str, &QTensor)> = made.iter().map(|(name, t)| (*name, t)).collect();
    let path = place.folder.join(format!("{name}.gguf"));
    gguf_file::write(&mut File::create(&path)?, &[], &tensors)?;
    quantized_var_builder::VarBuilder::from_gguf(path, &place.device)
}

fn quantized_moondream(place: &Place) -> Result<Vec<Tensor>> {
    let (vision, text) = ("vision_encoder.encoder.model.visual", "text_model");
    let (block, projection) = (format!("{vision}.blocks.0"), "vision_encoder.projection");
    let (layer, head) = (format!("{text}.transformer.h.0"), format!("{text}.lm_head"));
    let linears = [
        (format!("{vision}.patch_embed.linear"), 1152, 588),
        (format!("{block}.attn.qkv"), 3456, 1152),
        (format!("{block}.attn.proj"), 1152, 1152),
        (format!("{block}.mlp.fc1"), 64, 1152),
        (format!("{block}.mlp.fc2"), 1152, 64),
        (format!("{projection}.mlp.fc1"), 32, 1152),
        (format!("{projection}.mlp.fc2"), 64, 32),
        (format!("{layer}.mixer.Wqkv"), 192, 64),
        (format!("{layer}.mixer.out_proj"), 64, 64),
        (format!("{layer}.mlp.fc1"), 96, 64),
        (format!("{layer}.mlp.fc2"), 64, 96),
        (format!("{head}.linear"), 128, 64),
    ];
    let norms = [
        (format!("{block}.norm1"), 1152),
        (format!("{block}.norm2"), 1152),
        (format!("{vision}.norm"), 1152),
        (format!("{layer}.ln"), 64),
        (format!("{head}.ln"), 64),
    ];
    let others = vec![
        (format!("{vision}.pos_embed"), vec![1, 4, 1152]),
        (format!("{text}.transformer.embd.wte.weight"), vec![128, 64]),
    ];
    let name = "quantized_moondream";
    let vb = file(place, name, &linears, &norms, others)?;
    let mut model = quantized_moondream::Model::new(&config(MOONDREAM)?, vb)?;
    let mut text: quantized_mixformer::MixFormerSequentialForCausalLM = model.text_model().clone();
    let see = |picture: &Tensor| model.vision_encoder().forward(picture);
    seen_by_moondream(place, name, see, |[first, ids, next, picture]| {
        let logits = text.forward_with_img(&first, &ids, &picture)?;
        Ok(vec![logits, text.forward(&next)?])
    })
}

fn blip_config() -> blip::Config {
    let large = blip::Config::image_captioning_large();
    blip::Config {
        text_config: blip_text::Config {
            vocab_size: 128,
            hidden_size: 64,
            encoder_hidden_size: 32,
            intermediate_size: 96,
            num_hidden_layers: 1,
            num_attention_heads: 4,
            max_position_embeddings: 32,
            ..large.text_config
        },
        vision_config: blip::VisionConfig {
            hidden_size: 32,
            intermediate_size: 64,
            num_hidden_layers: 1,
            num_attention_heads: 4,
            image_size: 16,
            patch_size: 8,
            ..large.vision_config
        },
        ..large
    }
}

fn quantized_blip(place: &Place) -> Result<Vec<Tensor>> {
    let (vision, text) = ("vision_model", "text_decoder");
    let (embeddings, head) = (
        format!("{text}.bert.embeddings"),
        format!("{text}.cls.predictions"),
    );
    let mut linears = vec![(format!("{head}.transform.dense"), 64, 64)];
    let mut norms = vec![
        (format!("{vision}.post_layernorm"), 32),
        (format!("{embeddings}.LayerNorm"), 64),
        (format!("{head}.transform.LayerNorm"), 64),
    ];
    let layer = format!("{vision}.encoder.layers.0");
    linears.push((format!("{layer}.self_attn.qkv"), 96, 32));
    linears.push((format!("{layer}.self_attn.projection"), 32, 32));
    linears.push((format!("{layer}.mlp.fc1"), 64, 32));
    linears.push((format!("{layer}.mlp.fc2"), 32, 64));
    norms.push((format!("{layer}.layer_norm1"), 32));
    norms.push((format!("{layer}.layer_norm2"), 32));
    let layer = format!("{text}.bert.encoder.layer.0");
    for (attention, size) in [("attention", 64), ("crossattention", 32)] {
        let attention = format!("{layer}.{attention}");
        for (part, size) in [("query", 64), ("key", size), ("value", size)] {
            linears.push((format!("{attention}.self.{part}"), 64, size));
        }
        linears.push((format!("{attention}.output.dense"), 64, 64));
        norms.push((format!("{attention}.output.LayerNorm"), 64));
    }
    linears.push((format!("{layer}.intermediate.dense"), 96, 64));
    linears.push((format!("{layer}.output.dense"), 64, 96));
    norms.push((format!("{layer}.output.LayerNorm"), 64));
    let seen = format!("{vision}.embeddings");
    let others = vec![
        (format!("{seen}.class_embedding"), vec![1, 1, 32]),
        (format!("{seen}.position_embedding"), vec![1, 5, 32]),
        (format!("{seen}.patch_embedding.weight"), vec![32, 3, 8, 8]),
        (format!("{seen}.patch_embedding.bias"), vec![32]),
        (
            format!("{embeddings}.word_embeddings.weight"),
            vec![128, 64],
        ),
        (
            format!("{embeddings}.position_embeddings.weight"),
            vec![32, 64],
        ),
        (format!("{head}.decoder.weight"), vec![128, 64]),
        (format!("{head}.bias"), vec![128]),
    ];
    let name = "quantized_blip";
    let vb = file(place, name, &linears, &norms, others)?;
    let mut model = quantized_blip::BlipForConditionalGeneration::new(&blip_config(), vb)?;
    // Crates.io's adds the positions to one text only.
    let picture = place.input(name, (1, 3, 16, 16))?;
    let picture = model.vision_model().forward(&picture)?;
    let mut outputs = vec![picture.clone()];
    let ids = place.tokens(name, 5, 128)?;
    for i in 0..5 {
        let id = ids.narrow(1, i, 1)?;
        outputs.push(model.text_decoder().forward(&id, &picture)?);
    }
    model.reset_kv_cache();
    let decoder = model.text_decoder();
    outputs.push(decoder.forward(&ids.narrow(1, 0, 1)?, &picture)?);
    Ok(outputs)
}
