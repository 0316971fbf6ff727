//! Vision transformers, and transformers of pictures and texts. Some have a fixed picture size; they are narrow.

use crate::weights::{weight, Place};
use crate::Run;
use candle_core::{bail, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::chinese_clip::text_model::{
    ChineseClipTextConfig, ChineseClipTextTransformer,
};
use candle_transformers::models::chinese_clip::vision_model::{
    ChineseClipVisionConfig, ChineseClipVisionTransformer,
};
use candle_transformers::models::chinese_clip::{self, ChineseClipConfig, ChineseClipModel};
use candle_transformers::models::clip::text_model::ClipTextConfig;
use candle_transformers::models::clip::vision_model::ClipVisionConfig;
use candle_transformers::models::depth_anything_v2::{DepthAnythingV2, DepthAnythingV2Config};
use candle_transformers::models::openclip::text_model as open_clip;
use candle_transformers::models::{beit, clip, dinov2, dinov2reg4, eva2, segformer, siglip};
use std::sync::Arc;

pub const RUNS: &[Run] = &[
    ("clip", clip),
    ("siglip", siglip),
    ("dinov2", dinov2),
    ("dinov2reg4", dinov2reg4),
    ("beit", beit),
    ("eva2", eva2),
    ("segformer", segformer),
    ("depth_anything_v2", depth_anything_v2),
    ("chinese_clip", chinese_clip),
    ("openclip", openclip),
];

/// Weights by name in the form of checkpoints, except those that a file cannot have with arbitrary values.
struct Checkpoint;

impl SimpleBackend for Checkpoint {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let weight = match s.dims() {
            // EVA-02's sines and cosines are repeated twice in a row.
            [patches, size] if name.ends_with("rot_pos_embed") => {
                let once = weight(name, &(*patches, size / 2).into())?.unsqueeze(2)?;
                once.expand((*patches, size / 2, 2))?.reshape(&s)?
            }
            _ => weight(name, &s)?,
        };
        weight.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} requires a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !name.ends_with("pooler")
    }
}

fn checkpoint(place: &Place, model: &str) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Checkpoint), DType::F32, place.device.clone()).pp(model)
}

/// Two texts.
fn texts(place: &Place, name: &str, count: usize, vocabulary: u64) -> Result<Tensor> {
    let other = format!("{name} too");
    let texts = [name, &other].map(|name| place.tokens(name, count, vocabulary));
    let [first, second] = texts;
    Tensor::cat(&[first?, second?], 0)
}

fn clip(place: &Place) -> Result<Vec<Tensor>> {
    let config = clip::ClipConfig {
        text_config: ClipTextConfig {
            vocab_size: 97,
            embed_dim: 64,
            intermediate_size: 96,
            max_position_embeddings: 20,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            projection_dim: 32,
            ..ClipTextConfig::vit_base_patch32()
        },
        vision_config: ClipVisionConfig {
            embed_dim: 48,
            intermediate_size: 96,
            num_hidden_layers: 2,
            num_attention_heads: 3,
            projection_dim: 32,
            image_size: 32,
            patch_size: 8,
            ..ClipVisionConfig::vit_base_patch32()
        },
        image_size: 32,
        ..clip::ClipConfig::vit_base_patch32()
    };
    let vb = place.weights("clip");
    let text =
        clip::text_model::ClipTextTransformer::new(vb.pp("text_model"), &config.text_config)?;
    let vision = vb.pp("vision_model");
    let vision = clip::vision_model::ClipVisionTransformer::new(vision, &config.vision_config)?;
    let model = clip::ClipModel::new(vb, &config)?;
    let picture = place.input("clip", (3, 3, 32, 32))?;
    let ids = texts(place, "clip", 12, 97)?;
    let (per_text, per_picture) = model.forward(&picture, &ids)?;
    let mut outputs = vec![
        per_text,
        per_picture,
        model.get_text_features(&ids)?,
        model.get_image_features(&picture)?,
        text.forward_with_mask(&ids, 5)?,
    ];
    outputs.extend(vision.output_hidden_states(&picture)?);
    Ok(outputs)
}

fn siglip(place: &Place) -> Result<Vec<Tensor>> {
    let base = siglip::Config::base_patch16_224();
    let config = siglip::Config {
        text_config: siglip::TextConfig {
            vocab_size: 97,
            hidden_size: 64,
            intermediate_size: 96,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            max_position_embeddings: 20,
            ..base.text_config
        },
        vision_config: siglip::VisionConfig {
            hidden_size: 64,
            intermediate_size: 96,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            image_size: 32,
            patch_size: 8,
            ..base.vision_config
        },
    };
    let vb = place.weights("siglip");
    let bare = siglip::VisionModel::new(&config.vision_config, false, vb.pp("vision_model"))?;
    let model = siglip::Model::new(&config, vb)?;
    let picture = place.input("siglip", (3, 3, 32, 32))?;
    let ids = texts(place, "siglip", 20, 97)?;
    let (per_text, per_picture) = model.forward(&picture, &ids)?;
    Ok(vec![
        per_text,
        per_picture,
        model.get_text_features(&ids)?,
        model.get_image_features(&picture)?,
        bare.forward(&place.input("siglip bare", (2, 3, 45, 24))?)?,
    ])
}

fn dinov2(place: &Place) -> Result<Vec<Tensor>> {
    let model = dinov2::DinoVisionTransformer::new(place.weights("dinov2"), 2, 32, 2)?;
    let picture = place.input("dinov2", (1, 3, 518, 518))?;
    Ok(vec![
        model.forward(&picture)?,
        model.get_intermediate_layers(&picture, &[0, 1], true, false, true)?,
    ])
}

fn dinov2reg4(place: &Place) -> Result<Vec<Tensor>> {
    let model = dinov2reg4::DinoVisionTransformer::new(place.weights("dinov2reg4"), 2, 32, 2)?;
    let picture = place.input("dinov2reg4", (1, 3, 518, 518))?;
    Ok(vec![model.forward(&picture)?])
}

fn beit(place: &Place) -> Result<Vec<Tensor>> {
    let model = beit::BeitVisionTransformer::new(place.weights("beit"), 2, 32, 2)?;
    let picture = place.input("beit", (1, 3, 384, 384))?;
    Ok(vec![
        model.forward(&picture)?,
        model.get_intermediate_layers(&picture, &[0, 1], true, false, true)?,
    ])
}

fn eva2(place: &Place) -> Result<Vec<Tensor>> {
    let model = eva2::EVA2VisionTransformer::new(checkpoint(place, "eva2"), 2, 64, 1)?;
    let picture = place.input("eva2", (1, 3, 448, 448))?;
    Ok(vec![
        model.forward(&picture)?,
        model.get_intermediate_layers(&picture, &[0, 1], false, false, false)?,
    ])
}

fn segformer(place: &Place) -> Result<Vec<Tensor>> {
    let config = segformer::Config {
        id2label: Default::default(),
        num_channels: 3,
        num_encoder_blocks: 4,
        depths: vec![1, 2, 1, 1],
        sr_ratios: vec![8, 4, 2, 1],
        hidden_sizes: vec![16, 32, 40, 64],
        patch_sizes: vec![7, 3, 3, 3],
        strides: vec![4, 2, 2, 2],
        num_attention_heads: vec![1, 2, 5, 8],
        mlp_ratios: vec![4, 4, 4, 4],
        hidden_act: candle_nn::Activation::Gelu,
        layer_norm_eps: 1e-6,
        decoder_hidden_size: 64,
    };
    let vb = place.weights("segformer");
    // Crates.io's segmentation enlarges by nearest neighbours; candle-transformers/tests/transformers compares ours with Transformers.
    let classes = segformer::ImageClassificationModel::new(&config, 10, vb)?;
    // In a batch, upstream's results for all pictures except the first are wrong.
    let picture = place.input("segformer", (1, 3, 75, 96))?;
    Ok(vec![classes.forward(&picture)?])
}

fn depth_anything_v2(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("depth_anything_v2");
    let features = dinov2::DinoVisionTransformer::new(vb.pp("pretrained"), 4, 32, 2)?;
    let config = DepthAnythingV2Config::new(
        [8, 12, 16, 20],
        32,
        16,
        false,
        false,
        vec![0, 1, 2, 3],
        518,
        37,
    );
    let model = DepthAnythingV2::new(Arc::new(features), config, vb)?;
    let picture = place.input("depth_anything_v2", (1, 3, 518, 518))?;
    Ok(vec![model.forward(&picture)?])
}

fn chinese_clip(place: &Place) -> Result<Vec<Tensor>> {
    let config = ChineseClipConfig {
        text_config: ChineseClipTextConfig {
            vocab_size: 97,
            hidden_size: 64,
            intermediate_size: 96,
            max_position_embeddings: 20,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            ..ChineseClipTextConfig::clip_vit_base_patch16()
        },
        vision_config: ChineseClipVisionConfig {
            hidden_size: 48,
            intermediate_size: 96,
            num_hidden_layers: 2,
            num_attention_heads: 3,
            image_size: 32,
            patch_size: 8,
            ..ChineseClipVisionConfig::clip_vit_base_patch16()
        },
        projection_dim: 32,
        ..ChineseClipConfig::clip_vit_base_patch16()
    };
    let vb = checkpoint(place, "chinese_clip");
    let vision = vb.pp("vision_model");
    let vision = ChineseClipVisionTransformer::new(vision, &config.vision_config)?;
    let quick = ChineseClipTextConfig {
        hidden_act: chinese_clip::Activation::QuickGelu,
        ..config.text_config.clone()
    };
    let quick = ChineseClipTextTransformer::new(vb.pp("text_model"), &quick)?;
    let model = ChineseClipModel::new(vb, &config)?;
    let picture = place.input("chinese_clip", (3, 3, 32, 32))?;
    let ids = texts(place, "chinese_clip", 6, 97)?;
    let types = Tensor::new(&[[0u32, 0, 0, 1, 1, 1]], &place.device)?;
    let mask = Tensor::new(&[[1u32, 1, 1, 1, 0, 0], [1; 6]], &place.device)?;
    let (per_text, per_picture) = model.forward(&picture, &ids, Some(&types), Some(&mask))?;
    let mut outputs = vec![
        per_text,
        per_picture,
        model.get_text_features(&ids, None, None)?,
        quick.forward(&ids, None, None)?,
    ];
    outputs.extend(vision.output_hidden_states(&picture)?);
    Ok(outputs)
}

fn openclip(place: &Place) -> Result<Vec<Tensor>> {
    let config = open_clip::Config {
        vocab_size: 97,
        embed_dim: 64,
        intermediate_size: 96,
        max_position_embeddings: 20,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        projection_dim: 32,
        ..open_clip::Config::vit_base_patch32()
    };
    let model = open_clip::OpenClipTextTransformer::new(place.weights("openclip"), &config)?;
    let ids = texts(place, "openclip", 12, 97)?;
    Ok(vec![model.forward(&ids)?, Module::forward(&model, &ids)?])
}
