//! Pixtral.

use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_nn::{conv2d_no_bias, linear_no_bias, rms_norm, Activation, Conv2dConfig};
use candle_transformers::models::mistral;
use candle_transformers::models::pixtral::{vision_model, Config, Model};

use super::encoders::assert_error;
use super::support::{assert_close, token_ids};
use super::vision::{check, module, pictures, weights};

const VOCAB: usize = 61;
const HIDDEN: usize = 24;
/// f32 sums in another order.
const TOLERANCE: f32 = 2e-5;

fn vision() -> vision_model::Config {
    vision_model::Config {
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        image_size: 32,
        patch_size: 8,
        ..vision_model::Config::pixtral_12b_2409()
    }
}

fn config(window: Option<usize>) -> Config {
    Config {
        projector_hidden_act: Activation::Gelu,
        text_config: mistral::Config {
            vocab_size: VOCAB,
            hidden_size: HIDDEN,
            intermediate_size: 32,
            num_hidden_layers: 2,
            num_attention_heads: 2,
            head_dim: Some(16),
            num_key_value_heads: 1,
            max_position_embeddings: 20,
            sliding_window: window,
            ..mistral::Config::config_7b_v0_1(false)
        },
        vision_config: vision(),
        image_token_index: 10,
        image_seq_length: 1,
    }
}

fn encoder(device: &Device) -> Result<()> {
    let load = |vb| Ok(module(vision_model::Model::new(&vision(), vb)?));
    check(
        device,
        load,
        [3, 24, 32],
        &[&[1, 3, 7, 32], &[1, 3, 40, 8], &[1, 3, 8, 40]],
    )
}
test_device!(encoder);

/// Both the content and the position of a patch count: rows and columns have different angles. The patches of an image of one colour differ
/// only in their positions, which affect attention weights alone, so their vectors stay equal.
fn places_count_where_patches_differ(device: &Device) -> Result<()> {
    let model = vision_model::Model::new(&vision(), weights(DType::F32, device))?;
    let plain = model.forward(&Tensor::ones((1, 3, 16, 24), DType::F32, device)?)?;
    let first = plain.narrow(1, 0, 1)?.broadcast_as(plain.shape())?;
    assert_close(&plain, &first, TOLERANCE);
    // The image with rows and columns of patches exchanged, and the same order of patches back.
    let picture = pictures([1, 3, 16, 16], device)?;
    let patch = |row: usize, column: usize| picture.narrow(2, 8 * row, 8)?.narrow(3, 8 * column, 8);
    let row = |a: Result<Tensor>, b: Result<Tensor>| Tensor::cat(&[a?, b?], 3);
    let turned = Tensor::cat(
        &[
            row(patch(0, 0), patch(1, 0))?,
            row(patch(0, 1), patch(1, 1))?,
        ],
        2,
    )?;
    let (found, turned) = (model.forward(&picture)?, model.forward(&turned)?);
    let back = turned.index_select(&Tensor::new(&[0u32, 2, 1, 3], device)?, 1)?;
    let change = (found - back)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(change > 1e-3, "{change}");
    let strided = picture.transpose(2, 3)?;
    let wanted = model.forward(&strided.contiguous()?)?;
    assert_close(&model.forward(&strided)?, &wanted, TOLERANCE);
    let ids = model.position_ids_in_meshgrid(2, 3, device)?;
    assert_eq!(ids.to_vec1::<u32>()?, [0, 1, 2, 4, 5, 6]);
    Ok(())
}
test_device!(places_count_where_patches_differ);

/// A layer by its formula: of a head's four elements the first and the third rotate with the row, the others with the column, more slowly.
fn heads_turn_with_rows_and_columns(device: &Device) -> Result<()> {
    let config = vision_model::Config {
        hidden_size: 8,
        intermediate_size: 16,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        image_size: 12,
        patch_size: 4,
        rope_theta: 16.,
        ..vision()
    };
    let vb = weights(DType::F32, device);
    let model = vision_model::Model::new(&config, vb.clone())?;
    let picture = pictures([1, 3, 8, 12], device)?;
    let found = model.forward(&picture)?.squeeze(0)?;

    let touching = Conv2dConfig {
        stride: 4,
        ..Default::default()
    };
    let conv = conv2d_no_bias(3, 8, 4, touching, vb.pp("patch_conv"))?;
    let tokens = conv.forward(&picture)?.flatten_from(2)?.squeeze(0)?.t()?;
    let xs = rms_norm(8, 1e-5, vb.pp("ln_pre"))?.forward(&tokens.contiguous()?)?;
    let layer = vb.pp("transformer.layers.0");
    let normed = rms_norm(8, 1e-5, layer.pp("attention_norm"))?.forward(&xs)?;
    let attention = layer.pp("attention");
    let part = |name| linear_no_bias(8, 8, attention.pp(name))?.forward(&normed);
    let turned = |xs: Tensor| -> Result<Vec<Vec<f32>>> {
        let mut xs = xs.to_vec2::<f32>()?;
        for (place, x) in xs.iter_mut().enumerate() {
            let (row, column) = ((place / 3) as f32, (place % 3) as f32);
            for head in x.chunks_exact_mut(4) {
                // 16 ^ (-2 / 4) is a quarter.
                for (i, angle) in [(0, row), (1, column / 4.)] {
                    let (a, b) = (head[i], head[i + 2]);
                    head[i] = a * angle.cos() - b * angle.sin();
                    head[i + 2] = a * angle.sin() + b * angle.cos();
                }
            }
        }
        Ok(xs)
    };
    let (q, k) = (turned(part("q_proj")?)?, turned(part("k_proj")?)?);
    let v = part("v_proj")?.to_vec2::<f32>()?;
    let mut heads = Vec::new();
    for query in &q {
        for head in [0..4, 4..8] {
            let score = |key: &Vec<f32>| -> f32 {
                let products = head.clone().map(|i| query[i] * key[i]);
                (products.sum::<f32>() / 2.).exp()
            };
            let shares: Vec<f32> = k.iter().map(score).collect();
            let sum: f32 = shares.iter().sum();
            for i in head.clone() {
                let taken = shares.iter().zip(&v).map(|(share, value)| share * value[i]);
                heads.push(taken.sum::<f32>() / sum);
            }
        }
    }
    let heads = Tensor::from_vec(heads, (6, 8), device)?;
    let xs = (xs + linear_no_bias(8, 8, attention.pp("o_proj"))?.forward(&heads)?)?;
    let normed = rms_norm(8, 1e-5, layer.pp("ffn_norm"))?.forward(&xs)?;
    let mlp = layer.pp("feed_forward");
    let wide = |name| linear_no_bias(8, 16, mlp.pp(name))?.forward(&normed);
    let inner = (wide("gate_proj")?.silu()? * wide("up_proj")?)?;
    let wanted = (xs + linear_no_bias(16, 8, mlp.pp("down_proj"))?.forward(&inner)?)?;
    assert_close(&found, &wanted, TOLERANCE);
    Ok(())
}
test_device!(heads_turn_with_rows_and_columns);

/// Vectors of tokens give the same as the ids, at once, in pieces and after ids, with a window and without: no token sees later ones.
fn vectors_are_read_as_tokens_are(device: &Device) -> Result<()> {
    for window in [None, Some(3)] {
        let mut model = Model::new(&config(window), weights(DType::F32, device))?;
        let ids = token_ids(2, 7, VOCAB, device)?;
        let vectors = model.language_model.embed_tokens().forward(&ids)?;
        let wanted = model.lm_forward(&ids)?;
        assert_eq!((wanted.dims(), model.pos), (&[2, 1, VOCAB][..], 7));
        for pieces in [&[7][..], &[4, 3], &[6, 1]] {
            model.clear_kv_cache();
            let (mut at, mut logits) = (0, None);
            for len in pieces {
                logits = Some(model.lm_forward_embeds(&vectors.narrow(1, at, *len)?)?);
                at += len;
            }
            assert_eq!(model.pos, 7);
            let logits = logits.expect("there are pieces");
            assert_close(&logits, &wanted, TOLERANCE);
        }
        model.clear_kv_cache();
        model.lm_forward(&ids.narrow(1, 0, 2)?)?;
        let strided = vectors.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
        let rest = model.lm_forward_embeds(&strided.narrow(1, 2, 5)?)?;
        assert_close(&rest, &wanted, TOLERANCE);
    }
    Ok(())
}
test_device!(vectors_are_read_as_tokens_are);

/// The vision encoder is f32 for a text model of 16 bits.
fn pictures_are_seen_in_f32(device: &Device) -> Result<()> {
    let wanted = Model::new(&config(None), weights(DType::F32, device))?;
    let mut model = Model::new(&config(None), weights(DType::F16, device))?;
    let picture = pictures([1, 3, 16, 24], device)?;
    let found = model.encode_image(&picture)?;
    assert_eq!(found.dims(), &[1, 6, HIDDEN]);
    assert_eq!((found.dtype(), model.dtype), (DType::F32, DType::F16));
    // The weights were rounded before.
    assert_close(&found, &wanted.encode_image(&picture)?, 0.01);
    let logits = model.lm_forward_embeds(&found.to_dtype(DType::F16)?)?;
    assert_eq!(logits.dtype(), DType::F16);
    let mut wanted = wanted.clone();
    let exact = wanted.lm_forward_embeds(&wanted.encode_image(&picture)?)?;
    assert_close(&logits, &exact, 0.05);
    Ok(())
}
test_device!(pictures_are_seen_in_f32);

fn what_does_not_fit_is_an_error(device: &Device) -> Result<()> {
    let with = |change: fn(&mut vision_model::Config)| {
        let mut config = vision();
        change(&mut config);
        vision_model::Model::new(&config, weights(DType::F32, device))
    };
    let of_heads = |config: &mut vision_model::Config| config.num_attention_heads = 5;
    assert_error(with(of_heads), &["5 heads", "hidden_size 32"]);
    let none = |config: &mut vision_model::Config| config.num_attention_heads = 0;
    assert_error(with(none), &["0 heads", "hidden_size 32"]);
    let of_size = |config: &mut vision_model::Config| config.head_dim = Some(4);
    assert_error(with(of_size), &["4 heads", "size 4", "hidden_size 32"]);
    let of_patch = |config: &mut vision_model::Config| config.patch_size = 0;
    assert_error(with(of_patch), &["patch_size 0", "image_size 32"]);
    let of_gate = |config: &mut vision_model::Config| config.hidden_act = Activation::Mish;
    assert_error(with(of_gate), &["Mish"]);

    let mut model = Model::new(&config(None), weights(DType::F32, device))?;
    let ids = token_ids(1, 21, VOCAB, device)?;
    assert!(model.lm_forward(&ids).is_err());
    assert_eq!(model.pos, 0);
    let vectors = model.language_model.embed_tokens().forward(&ids)?;
    assert!(model.lm_forward_embeds(&vectors).is_err());
    assert_eq!(model.pos, 0);
    Ok(())
}
test_device!(what_does_not_fit_is_an_error);
