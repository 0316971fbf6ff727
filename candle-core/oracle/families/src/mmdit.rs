//! MMDiT. Times are not compared: upstream rounds their vectors to f16 for any weights, so its complete model only runs in f16.

use crate::weights::{weight, Place};
use crate::Run;
use candle_core::{bail, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::mmdit::{blocks, embedding, model, projections};

pub const RUNS: &[Run] = &[
    ("mmdit sd3", sd3),
    ("mmdit sd3.5", sd3_5),
    ("mmdit blocks", parts),
    ("mmdit embeddings", embeddings),
];

/// Weights by name, for files without some.
struct Without(&'static [&'static str]);

impl SimpleBackend for Without {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        if !self.contains_tensor(name) {
            bail!("there is no {name}")
        }
        weight(name, &s)?.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} requires a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !self.0.iter().any(|part| name.contains(part))
    }
}

fn weights(place: &Place, without: &'static [&'static str]) -> VarBuilder<'static> {
    let backend = Box::new(Without(without));
    VarBuilder::from_backend(backend, DType::F32, place.device.clone()).pp("mmdit")
}

/// The blocks over tokens of two texts and pictures.
fn core(place: &Place, without: &'static [&'static str]) -> Result<Vec<Tensor>> {
    let model = model::MMDiTCore::new(3, 64, 4, 2, 4, false, weights(place, without))?;
    let text = place.input("mmdit text", (2, 5, 64))?;
    let tokens = place.input("mmdit tokens", (2, 6, 64))?;
    let condition = place.input("mmdit condition", (2, 64))?;
    let forward = |skipped| model.forward(&text, &tokens, &condition, skipped);
    Ok(vec![forward(None)?, forward(Some(&[1]))?])
}

fn sd3(place: &Place) -> Result<Vec<Tensor>> {
    core(place, &["attn2", "ln_"])
}

/// Blocks with self-attention of the picture, and norms of queries and keys; upstream has none in the text's part of the last block.
fn sd3_5(place: &Place) -> Result<Vec<Tensor>> {
    core(
        place,
        &[
            "joint_blocks.1.x_block.attn2",
            "joint_blocks.2.context_block.attn.ln_",
        ],
    )
}

fn parts(place: &Place) -> Result<Vec<Tensor>> {
    let vb = weights(place, &[]);
    let tokens = place.input("mmdit tokens", (2, 6, 64))?;
    let condition = place.input("mmdit condition", (2, 64))?;
    let attention = projections::AttnProjections::new(64, 4, vb.pp("attention"))?;
    let qkv = attention.pre_attention(&tokens)?;
    let block = blocks::DiTBlock::new(64, 4, vb.pp("block"))?;
    let (block_qkv, left) = block.pre_attention(&tokens, &condition)?;
    Ok(vec![
        blocks::LayerNormNoAffine::new(1e-3).forward(&tokens)?,
        projections::Mlp::new(64, 40, vb.pp("mlp"))?.forward(&tokens)?,
        qkv.q,
        qkv.k,
        qkv.v,
        attention.post_attention(&tokens)?,
        block.post_attention(&block_qkv.q, &tokens, &left)?,
    ])
}

fn embeddings(place: &Place) -> Result<Vec<Tensor>> {
    let vb = weights(place, &[]);
    let patches = embedding::PatchEmbedder::new(2, 4, 64, vb.pp("x_embedder"))?;
    let positions = embedding::PositionEmbedder::new(64, 2, 7, vb.clone())?;
    let vector = embedding::VectorEmbedder::new(12, 64, vb.pp("y_embedder"))?;
    let tokens = place.input("mmdit patches", (2, 6, 16))?;
    Ok(vec![
        patches.forward(&place.input("mmdit latents", (2, 4, 4, 6))?)?,
        positions.get_cropped_pos_embed(4, 6)?,
        positions.get_cropped_pos_embed(14, 5)?,
        vector.forward(&place.input("mmdit text", (2, 12))?)?,
        embedding::Unpatchifier::new(2, 4)?.unpatchify(&tokens, 4, 6)?,
        embedding::Unpatchifier::new(2, 4)?.unpatchify(&tokens, 3, 5)?,
    ])
}
