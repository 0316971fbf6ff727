//! Vision models with small pictures: small ones of a kind, or the smallest that upstream has.

use crate::weights::Place;
use crate::Run;
use candle_core::{Module, Result, Tensor};
use candle_transformers::models::{repvgg, resnet, vit};

pub const RUNS: &[Run] = &[("resnet", resnet), ("repvgg", repvgg), ("vit", vit)];

fn resnet(place: &Place) -> Result<Vec<Tensor>> {
    let basic = resnet::resnet18(10, place.weights("resnet18"))?;
    let bottleneck = resnet::resnet50_no_final_layer(place.weights("resnet50"))?;
    let picture = place.input("resnet", (2, 3, 49, 64))?;
    Ok(vec![
        basic.forward(&picture)?,
        bottleneck.forward(&picture)?,
    ])
}

fn repvgg(place: &Place) -> Result<Vec<Tensor>> {
    let small = repvgg::Config::a0();
    let small = repvgg::repvgg(&small, 10, place.weights("repvgg a0"))?;
    let grouped = repvgg::Config::b1g4();
    let grouped = repvgg::repvgg_no_final_layer(&grouped, place.weights("repvgg b1g4"))?;
    let picture = place.input("repvgg", (1, 3, 64, 48))?;
    // Untrained weights make numbers grow from layer to layer: to 900 and to 18,000.
    Ok(vec![
        (small.forward(&picture)? / 1e3)?,
        (grouped.forward(&picture)? / 2e4)?,
    ])
}

fn vit(place: &Place) -> Result<Vec<Tensor>> {
    let config = vit::Config {
        hidden_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 96,
        image_size: 32,
        patch_size: 8,
        ..vit::Config::vit_base_patch16_224()
    };
    let vb = place.weights("vit");
    let embeddings = vit::Embeddings::new(&config, true, vb.pp("vit").pp("embeddings"))?;
    let model = vit::Model::new(&config, 10, vb)?;
    let picture = place.input("vit", (1, 3, 32, 32))?;
    Ok(vec![
        model.forward(&picture)?,
        embeddings.forward(&picture, None, false)?,
    ])
}
