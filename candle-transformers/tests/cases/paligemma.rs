//! PaliGemma and ColPali.

use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_nn::{linear, RmsNorm, VarBuilder};
use candle_transformers::models::paligemma::{Config, Model};
use candle_transformers::models::{colpali, gemma, siglip};

use super::encoders::assert_error;
use super::support::{assert_close, token_ids};
use super::vision::{pictures, weights};

const VOCAB: usize = 61;
const HIDDEN: usize = 24;
/// Number of an image's patches.
const PATCHES: usize = 4;
/// f32 sums in another order.
const TOLERANCE: f32 = 2e-5;

fn config() -> Config {
    let mut config = Config::paligemma_3b_224();
    let (vision, text) = (&mut config.vision_config, &mut config.text_config);
    (vision.image_size, vision.patch_size) = (16, 8);
    (vision.num_hidden_layers, vision.num_attention_heads) = (1, 2);
    (vision.hidden_size, vision.intermediate_size) = (16, 32);
    (text.num_hidden_layers, text.num_attention_heads) = (2, 2);
    (text.hidden_size, text.intermediate_size, text.head_dim) = (HIDDEN, 32, 16);
    (text.vocab_size, text.max_position_embeddings) = (VOCAB, 20);
    config.projection_dim = HIDDEN;
    config
}

/// The vectors of patches, which Gemma's forward scales as those of tokens: Hugging Face's model divides them first.
fn patches(picture: &Tensor, vb: &VarBuilder) -> Result<Tensor> {
    let config = config();
    let vb_vision = vb.pp("vision_tower.vision_model");
    let vision = siglip::VisionModel::new(&config.vision_config, false, vb_vision)?;
    let projector = linear(16, HIDDEN, vb.pp("multi_modal_projector.linear"))?;
    projector.forward(&vision.forward(picture)?)? / (HIDDEN as f64).sqrt()
}

/// A mask of scores: `first` positions see each other, later ones the earlier ones.
fn prefix_mask(first: usize, all: usize, device: &Device) -> Result<Tensor> {
    let hidden = |(i, j): (usize, usize)| j >= first && j > i;
    let places = (0..all * all).map(|n| (n / all, n % all));
    let mask = places.map(|at| if hidden(at) { f32::NEG_INFINITY } else { 0. });
    Tensor::from_vec(mask.collect(), (1, 1, all, all), device)
}

/// Image, prompt and answer in one pass with a mask give what they give step by step, by another way through the same layers.
fn answers_are_those_of_one_pass(device: &Device) -> Result<()> {
    let vb = weights(DType::F32, device);
    let mut model = Model::new(&config(), vb.clone())?;
    let picture = pictures([2, 3, 16, 16], device)?;
    let ids = token_ids(2, 6, VOCAB, device)?;
    let mut logits = vec![model.setup(&picture, &ids.narrow(1, 0, 3)?)?];
    logits.push(model.forward(&ids.narrow(1, 3, 1)?)?);
    logits.push(model.forward(&ids.narrow(1, 4, 2)?)?);

    let mut text = gemma::Model::new(false, &config().text_config, vb.pp("language_model"))?;
    for (count, logits) in [3, 4, 6].into_iter().zip(&logits) {
        let tokens = text.embed_tokens().forward(&ids.narrow(1, 0, count)?)?;
        let embeds = Tensor::cat(&[patches(&picture, &vb)?, tokens], 1)?;
        let mask = prefix_mask(PATCHES + 3, PATCHES + count, device)?;
        let wanted = text.forward_embeds(&embeds, Some(&mask), 0)?;
        assert_eq!(logits.dims(), &[2, 1, VOCAB]);
        assert_close(logits, &wanted, TOLERANCE);
    }
    let strided = picture.transpose(2, 3)?.contiguous()?.transpose(2, 3)?;
    let again = model.setup(&strided, &ids.narrow(1, 0, 3)?)?;
    assert_close(&again, &logits[0], TOLERANCE);
    // The image counts.
    let turned = Tensor::cat(&[picture.narrow(0, 1, 1)?, picture.narrow(0, 0, 1)?], 0)?;
    let other = model.setup(&turned, &ids.narrow(1, 0, 3)?)?;
    let change = (other - &logits[0])?.abs()?.max_all()?;
    assert!(change.to_scalar::<f32>()? > 1e-3);
    Ok(())
}
test_device!(answers_are_those_of_one_pass);

/// An image and its prompt in a batch give what they give alone, and nothing stays of what was before; f16 gives about the same.
fn batches_and_sequences_are_apart(device: &Device) -> Result<()> {
    let mut model = Model::new(&config(), weights(DType::F32, device))?;
    let picture = pictures([2, 3, 16, 16], device)?;
    let ids = token_ids(2, 4, VOCAB, device)?;
    let (prompt, next) = (ids.narrow(1, 0, 3)?, ids.narrow(1, 3, 1)?);
    let both = model.setup(&picture, &prompt)?;
    let second = model.forward(&next)?;
    for row in 0..2 {
        let part = |t: &Tensor| t.narrow(0, row, 1);
        let alone = model.setup(&part(&picture)?, &part(&prompt)?)?;
        assert_close(&alone, &part(&both)?, TOLERANCE);
        assert_close(&model.forward(&part(&next)?)?, &part(&second)?, TOLERANCE);
    }
    // A text without an image sees what is before each token, from the first position on.
    model.clear_kv_cache();
    let whole = model.forward(&ids)?;
    model.clear_kv_cache();
    model.forward(&prompt)?;
    assert_close(&model.forward(&next)?, &whole, TOLERANCE);

    let mut half = Model::new(&config(), weights(DType::F16, device))?;
    let found = half.setup(&picture.to_dtype(DType::F16)?, &prompt)?;
    assert_eq!(found.dtype(), DType::F16);
    assert_close(&found, &both, 0.05);
    Ok(())
}
test_device!(batches_and_sequences_are_apart);

/// ColPali's vectors from Gemma's stream, the last norm and the layer, in sequence.
fn vectors_are_of_the_normed_stream(device: &Device) -> Result<()> {
    let vb = weights(DType::F32, device);
    let mut model = colpali::Model::new(&config(), vb.clone())?;
    let picture = pictures([2, 3, 16, 16], device)?;
    let ids = token_ids(2, 5, VOCAB, device)?;
    let of_pictures = model.forward_images(&picture, &ids)?;
    let of_texts = model.forward_text(&ids)?;
    assert_eq!(of_pictures.dims(), &[2, PATCHES + 5, 128]);

    let (vb_text, mut both) = (vb.pp("model.language_model"), Vec::new());
    let mut text = gemma::Model::new(false, &config().text_config, vb_text.clone())?;
    let tokens = text.embed_tokens().forward(&ids)?;
    both.push(Tensor::cat(
        &[patches(&picture, &vb.pp("model"))?, tokens.clone()],
        1,
    )?);
    both.push(tokens);
    let norm = (vb_text.get(HIDDEN, "model.norm.weight")? + 1.)?;
    let norm = RmsNorm::new(norm, 1e-6);
    let projection = linear(HIDDEN, 128, vb.pp("custom_text_proj"))?;
    for (embeds, found) in both.iter().zip([&of_pictures, &of_texts]) {
        let stream = text.forward_embeds_without_projection(embeds, None, 0)?;
        let vectors = projection.forward(&norm.forward(&stream)?)?;
        let wanted = vectors.broadcast_div(&vectors.sqr()?.sum_keepdim(2)?.sqrt()?)?;
        assert_close(found, &wanted, TOLERANCE);
        let length = found.sqr()?.sum(2)?;
        assert_close(&length, &length.ones_like()?, TOLERANCE);
    }
    for row in 0..2 {
        let part = |t: &Tensor| t.narrow(0, row, 1);
        let alone = model.forward_images(&part(&picture)?, &part(&ids)?)?;
        assert_close(&alone, &part(&of_pictures)?, TOLERANCE);
    }
    let mut half = colpali::Model::new(&config(), weights(DType::F16, device))?;
    let found = half.forward_images(&picture.to_dtype(DType::F16)?, &ids)?;
    assert_close(&found, &of_pictures, 0.05);
    Ok(())
}
test_device!(vectors_are_of_the_normed_stream);

fn what_does_not_fit_is_an_error(device: &Device) -> Result<()> {
    let vb = || weights(DType::F32, device);
    let mut narrow = config();
    narrow.projection_dim = 16;
    assert_error(
        Model::new(&narrow, vb()),
        &["projection_dim 16", "hidden_size 24"],
    );
    let mut heads = config();
    heads.vision_config.num_attention_heads = 3;
    assert_error(Model::new(&heads, vb()), &["3 heads", "16"]);
    let mut heads = config();
    heads.text_config.num_key_value_heads = 0;
    assert_error(Model::new(&heads, vb()), &["2 heads", "0 key heads"]);

    let mut model = Model::new(&config(), vb())?;
    let picture = pictures([2, 3, 16, 16], device)?;
    let prompt = token_ids(1, 3, VOCAB, device)?;
    let shapes = ["[2, 3, 16, 16]", "[1, 3]", "(batch, seq)"];
    assert_error(model.setup(&picture, &prompt), &shapes);
    let one = picture.narrow(0, 0, 1)?;
    assert!(model.setup(&one, &prompt.flatten_all()?).is_err());
    assert_error(
        model.setup(&one.narrow(1, 0, 2)?, &prompt),
        &["[1, 2, 16, 16]"],
    );
    // The model has 20 positions, and an error leaves those that were there.
    let logits = model.setup(&one, &prompt)?;
    assert!(model.forward(&token_ids(1, 14, VOCAB, device)?).is_err());
    let next = model.forward(&prompt.narrow(1, 0, 1)?)?;
    assert_close(&model.setup(&one, &prompt)?, &logits, 0.);
    assert_close(&model.forward(&prompt.narrow(1, 0, 1)?)?, &next, 0.);
    Ok(())
}
test_device!(what_does_not_fit_is_an_error);
