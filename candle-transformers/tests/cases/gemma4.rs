//! Gemma 4 beyond what Candle's does: placeholders anywhere and in batches, what published checkpoints have, windows that hold.

use candle_core::{test_device, DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder, VarMap};
use candle_transformers::models::gemma4::config::Gemma4Config;
use candle_transformers::models::gemma4::text::TextModel;
use candle_transformers::models::gemma4::vision::VisionTower;
use candle_transformers::models::gemma4::{AudioModel, Model};

use super::support::{assert_close, token_ids, Numbers};
use super::vision::Made;

const IMAGE: u32 = 50;
const AUDIO: u32 = 51;

/// Weights by their names, but for those whose names have one of these parts.
struct Without(Made, &'static [&'static str]);

/// Tensors that checkpoints lack and that this model supports; the names of linear layers are those without bounds.
const PLAIN: &[&str] = &[".linear.", "layer_scalar", "per_layer", "router"];
/// As published: with bounds of linear layers and a factor of each layer.
const PUBLISHED: &[&str] = &["per_layer", "router", "model.model"];

impl SimpleBackend for Without {
    fn get(&self, s: Shape, name: &str, i: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        if !self.contains_tensor(name) {
            candle_core::bail!("there is no {name}")
        }
        let bound = |value: f32| Tensor::full(value, s.clone(), dev)?.to_dtype(dtype);
        match name {
            _ if name.ends_with("_min") => bound(-0.8),
            _ if name.ends_with("_max") => bound(0.7),
            _ if name.ends_with("layer_scalar") => bound(0.5),
            _ => self.0.get(s, name, i, dtype, dev),
        }
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        self.0.get_unchecked(name, dtype, dev)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        // A source that has every name is not a file.
        !name.contains(' ') && !self.1.iter().any(|part| name.contains(part))
    }
}

fn weights(without: &'static [&'static str], dtype: DType, device: &Device) -> VarBuilder<'static> {
    let made = Made {
        vars: false,
        without: "",
        gain: 1.,
    };
    VarBuilder::from_backend(Box::new(Without(made, without)), dtype, device.clone())
}

fn config() -> Gemma4Config {
    let json = r#"{"image_token_id": 50, "audio_token_id": 51,
        "text_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 2, "num_global_key_value_heads": 1, "head_dim": 8, "global_head_dim": 16, "vocab_size": 61,
            "sliding_window": 5, "max_position_embeddings": 40, "layer_types": ["sliding_attention", "full_attention"]},
        "vision_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 8, "patch_size": 2, "position_embedding_size": 8, "pooling_kernel_size": 2},
        "audio_config": {"input_feat_size": 8, "hidden_size": 16, "output_proj_dims": null, "attention_chunk_size": 4,
            "attention_context_left": 3, "num_attention_heads": 2, "num_hidden_layers": 1, "subsampling_conv_channels": [4, 4]}}"#;
    serde_json::from_str(json).expect("a configuration")
}

fn model(dtype: DType, device: &Device) -> Result<Model> {
    Model::new(&config(), weights(PLAIN, dtype, device))
}

fn change(one: &Tensor, other: &Tensor) -> Result<f32> {
    (one - other)?.abs()?.max_all()?.to_scalar()
}

/// Token by token gives what the whole gives, past the window; what a window hides changes nothing in a model of windows alone.
fn steps_are_the_whole(device: &Device) -> Result<()> {
    let mut model = model(DType::F32, device)?;
    let ids = token_ids(2, 12, 50, device)?;
    let whole = model.forward(&ids, 0)?;
    assert_eq!(whole.dims(), [2, 1, 61]);
    model.forward(&ids.narrow(1, 0, 7)?, 0)?;
    let mut last = None;
    for i in 7..12 {
        last = Some(model.forward(&ids.narrow(1, i, 1)?, i)?);
    }
    assert_close(&last.expect("a step"), &whole, 2e-5);
    for row in 0..2 {
        let alone = model.forward(&ids.narrow(0, row, 1)?, 0)?;
        assert_close(&alone, &whole.narrow(0, row, 1)?, 2e-5);
    }

    let mut cfg = config().text_config;
    cfg.layer_types[1] = "sliding_attention".into();
    let vb = weights(PLAIN, DType::F32, device).pp("model.language_model");
    let mut near = TextModel::new(&cfg, vb)?;
    let ids = token_ids(1, 12, 50, device)?;
    let first = near.forward(&ids, 0)?;
    // Two layers with windows of 5 see 9 positions, so the third from the start is out of sight and the fourth is not.
    let with = |place: usize| {
        let mut changed = ids.flatten_all()?.to_vec1::<u32>()?;
        changed[place] += 1;
        near.forward(&Tensor::from_vec(changed, (1, 12), device)?, 0)
    };
    let mut with = with;
    assert!(change(&with(2)?, &first)? < 1e-6);
    assert!(change(&with(3)?, &first)? > 1e-5);
    Ok(())
}
test_device!(steps_are_the_whole);

/// Images of two sizes in two rows, with text before them, are what each row has alone; which image it is counts.
fn pictures_in_batches(device: &Device) -> Result<()> {
    let mut model = model(DType::F32, device)?;
    let picture = |seed, h, w| Numbers::new(seed).tensor(&[1, 3, h, w], 1., device);
    let pictures = [picture(1, 4, 8)?, picture(2, 8, 4)?];
    let rows = [[3u32, 4, IMAGE, IMAGE, 7], [IMAGE, 9, 8, IMAGE, 2]];
    let ids = Tensor::new(&rows, device)?;
    let both = model.forward_multimodal(&ids, Some(&pictures), None, None, 0)?;
    for row in 0..2 {
        let ids = ids.narrow(0, row, 1)?;
        let one = &pictures[row..row + 1];
        let alone = model.forward_multimodal(&ids, Some(one), None, None, 0)?;
        assert_close(&alone, &both.narrow(0, row, 1)?, 2e-5);
    }
    let turned = [pictures[1].clone(), pictures[0].clone()];
    let other = model.forward_multimodal(&ids, Some(&turned), None, None, 0)?;
    assert!(change(&other, &both)? > 1e-4);
    // Several of one size in one tensor, in any layout.
    let tower = &model.vision_tower;
    let two = Tensor::cat(&[picture(3, 8, 4)?, picture(4, 8, 4)?], 0)?;
    let apart = tower.forward(&[two.narrow(0, 0, 1)?, two.narrow(0, 1, 1)?])?;
    assert_eq!(apart.dims(), [1, 4, 16]);
    let strided = two.transpose(2, 3)?.contiguous()?.transpose(2, 3)?;
    assert_close(&tower.forward(&[strided])?, &apart, 2e-5);
    Ok(())
}
test_device!(pictures_in_batches);

/// With `vision`, tokens in layers with a window see later tokens of their image: the last token, which sees all in any case, differs from
/// the second layer on. Feeding a text in pieces gives the same as at once, beyond the window.
fn pictures_see_all(device: &Device) -> Result<()> {
    let picture = Numbers::new(9).tensor(&[1, 3, 4, 12], 1., device)?;
    let ids = Tensor::new(&[[1u32, 2, 3, IMAGE, IMAGE, IMAGE, 7, 8]], device)?;
    let other = Tensor::new(&[[4u32, IMAGE, IMAGE, IMAGE, 6]], device)?;
    let load = |layers: usize, both_ways: Option<&str>| {
        let mut cfg = config();
        cfg.text_config.num_hidden_layers = layers;
        cfg.text_config.layer_types = vec!["sliding_attention".into(); layers];
        cfg.text_config.use_bidirectional_attention = both_ways.map(String::from);
        Model::new(&cfg, weights(PLAIN, DType::F32, device))
    };
    let pictures = [picture];
    for layers in [1, 2] {
        let (mut with, mut without) = (load(layers, Some("vision"))?, load(layers, None)?);
        let both = with.forward_multimodal(&ids, Some(&pictures), None, None, 0)?;
        let causal = without.forward_multimodal(&ids, Some(&pictures), None, None, 0)?;
        match layers {
            1 => assert_close(&both, &causal, 2e-5),
            _ => assert!(change(&both, &causal)? > 1e-4),
        }
        let first = with.forward_multimodal(&ids, Some(&pictures), None, None, 0)?;
        assert_close(&first, &both, 1e-6);
        let second = with.forward_multimodal(&other, Some(&pictures), None, None, 8)?;
        let all = Tensor::cat(&[&ids, &other], 1)?;
        let twice = [pictures[0].clone(), pictures[0].clone()];
        let whole = with.forward_multimodal(&all, Some(&twice), None, None, 0)?;
        assert_close(&second, &whole, 2e-5);
    }
    Ok(())
}
test_device!(pictures_see_all);

/// A padded sound has the same vectors as alone, and these replace tokens of a text.
fn sounds(device: &Device) -> Result<()> {
    let mut model = model(DType::F32, device)?;
    let Some(tower) = model.audio_tower.clone() else {
        panic!("the model hears")
    };
    let mel = Numbers::new(5).tensor(&[1, 24, 8], 1., device)?;
    let short = mel.narrow(1, 0, 20)?;
    let heard = Tensor::zeros((1, 20), DType::F32, device)?;
    let (alone, mask) = tower.forward(&short, &heard)?;
    assert_eq!((alone.dims(), mask.dims()), (&[1, 5, 16][..], &[1, 5][..]));
    let both = Tensor::cat(&[&mel, &mel], 0)?;
    let masks: Vec<f32> = (0..48).map(|i| f32::from(i >= 44)).collect();
    let masks = Tensor::from_vec(masks, (2, 24), device)?;
    let (vectors, masks_left) = tower.forward(&both, &masks)?;
    assert_eq!(masks_left.to_vec2::<f32>()?[1], [0., 0., 0., 0., 0., 1.]);
    assert_close(&vectors.narrow(0, 1, 1)?.narrow(1, 0, 5)?, &alone, 2e-5);
    assert_eq!(
        change(
            &vectors.get(1)?.get(5)?,
            &Tensor::zeros(16, DType::F32, device)?
        )?,
        0.
    );

    let ids = Tensor::new(&[[1u32, AUDIO, AUDIO, AUDIO, 4, AUDIO, AUDIO]], device)?;
    let given = model.forward_multimodal(&ids, None, Some(&short), Some(&heard), 0)?;
    let masked = (masks.narrow(0, 1, 1)?, mel);
    let filled = model.forward_multimodal(&ids, None, Some(&masked.1), Some(&masked.0), 0)?;
    assert_close(&filled, &given, 2e-5);
    Ok(())
}
test_device!(sounds);

/// As published: bounds of linear layers, a factor of each layer, and values that are keys.
fn published(device: &Device) -> Result<()> {
    let picture = [Numbers::new(6).tensor(&[1, 3, 4, 8], 1., device)?];
    let ids = Tensor::new(&[[1u32, IMAGE, IMAGE, 4]], device)?;
    let logits = |without| {
        let mut model = Model::new(&config(), weights(without, DType::F32, device))?;
        model.forward_multimodal(&ids, Some(&picture), None, None, 0)
    };
    let all = logits(PUBLISHED)?;
    let without: [&[&str]; 3] = [
        &["per_layer", "router", "model.model", "layer_scalar"],
        &["per_layer", "router", "model.model", "input_m"],
        &["per_layer", "router", "model.model", "output_m"],
    ];
    for without in without {
        let other = change(&logits(without)?, &all)?;
        assert!(other > 1e-4, "without {without:?} logits change by {other}");
    }
    let text = |without| {
        let vb = weights(without, DType::F32, device).pp("model.language_model");
        TextModel::new(&config().text_config, vb)?.forward(&ids, 0)
    };

    // Keys as values: the same as a projection of values that is the keys'.
    let shared = text(&[
        ".linear.",
        "layer_scalar",
        "per_layer",
        "router",
        "layers.1.self_attn.v_proj",
    ])?;
    struct KeysTwice(Without);
    impl SimpleBackend for KeysTwice {
        fn get(&self, s: Shape, name: &str, i: Init, t: DType, dev: &Device) -> Result<Tensor> {
            let name = name.replace("layers.1.self_attn.v_proj", "layers.1.self_attn.k_proj");
            self.0.get(s, &name, i, t, dev)
        }
        fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
            self.0.get_unchecked(name, dtype, dev)
        }
        fn contains_tensor(&self, name: &str) -> bool {
            self.0.contains_tensor(name)
        }
    }
    let made = Made {
        vars: false,
        without: "",
        gain: 1.,
    };
    let twice = KeysTwice(Without(made, PLAIN));
    let vb = VarBuilder::from_backend(Box::new(twice), DType::F32, device.clone());
    let vb = vb.pp("model.language_model");
    let twice = TextModel::new(&config().text_config, vb)?.forward(&ids, 0)?;
    assert_close(&shared, &twice, 2e-5);
    Ok(())
}
test_device!(published);

/// f16 is near f32, in the decoder and both encoders.
fn half_is_near(device: &Device) -> Result<()> {
    let picture = Numbers::new(7).tensor(&[1, 3, 4, 8], 1., device)?;
    let mel = Numbers::new(8).tensor(&[1, 8, 8], 1., device)?;
    let heard = Tensor::zeros((1, 8), DType::F32, device)?;
    let ids = Tensor::new(&[[1u32, IMAGE, IMAGE, 4, AUDIO, AUDIO]], device)?;
    let mut logits = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        let mut model = model(dtype, device)?;
        let pictures = [picture.clone()];
        logits.push(model.forward_multimodal(
            &ids,
            Some(&pictures),
            Some(&mel),
            Some(&heard),
            0,
        )?);
        assert_eq!(logits[logits.len() - 1].dtype(), dtype);
    }
    assert_close(&logits[1], &logits[0], 0.05);
    Ok(())
}
test_device!(half_is_near);

/// A model that is made, not loaded, has the parts that Candle's has, by its names.
#[test]
fn made_for_training() -> Result<()> {
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let mut model = Model::new(&config(), vb)?;
    model.forward(&token_ids(1, 3, 50, &Device::Cpu)?, 0)?;
    let names: Vec<String> = variables
        .data()
        .lock()
        .expect("a map")
        .keys()
        .cloned()
        .collect();
    let has = |part: &str| names.iter().any(|name| name.contains(part));
    assert!(has(
        "model.language_model.model.layers.1.self_attn.v_proj.weight"
    ));
    assert!(has(
        "model.vision_tower.encoder.layers.0.mlp.up_proj.weight"
    ));
    assert!(!has("layer_scalar") && !has(".linear.") && !has("layer0.norm"));
    Ok(())
}

#[track_caller]
fn fails<T>(result: Result<T>, texts: &[&str]) {
    let Err(err) = result else {
        panic!("accepted, where an error with {texts:?} is due")
    };
    let message = err.to_string();
    for text in texts {
        assert!(message.contains(text), "{text:?} is not in {message:?}");
    }
}

#[test]
fn what_does_not_fit_is_an_error() -> Result<()> {
    let device = &Device::Cpu;
    let mut model = model(DType::F32, device)?;
    let picture = |h, w| Tensor::zeros((1, 3, h, w), DType::F32, device);
    let tower = model.vision_tower.clone();
    fails(tower.forward(&[]), &["no pictures"]);
    fails(
        tower.forward(&[picture(6, 8)?]),
        &["[1, 3, 6, 8]", "multiples of 4"],
    );
    fails(tower.forward(&[picture(4, 20)?]), &["10 columns", "8"]);
    let ids = Tensor::new(&[[1u32, IMAGE, 4]], device)?;
    let pictures = [picture(4, 8)?];
    let fewer = model.forward_multimodal(&ids, Some(&pictures), None, None, 0);
    fails(fewer, &["1 image tokens", "yield 2"]);
    let mel = Tensor::zeros((1, 8, 8), DType::F32, device)?;
    let alone = model.forward_multimodal(&ids, None, Some(&mel), None, 0);
    fails(alone, &["audio_mel is given without audio_mel_mask"]);
    let mask = Tensor::ones((1, 8), DType::F32, device)?;
    let hidden = model.forward_multimodal(&ids, None, Some(&mel), Some(&mask), 0);
    fails(hidden, &["hide all"]);
    let audio = model.audio_tower.clone().expect("the model hears");
    fails(
        audio.forward(&mel, &mask.narrow(1, 0, 7)?),
        &["[1, 8, 8]", "[1, 7]"],
    );
    fails(
        model.forward(&token_ids(1, 41, 50, device)?, 0),
        &["41", "max_position_embeddings of 40"],
    );
    fails(model.forward(&ids.narrow(1, 0, 0)?, 0), &["[1, 0, 16]"]);
    let embeds = model.language_model.embed_tokens(&ids)?;
    fails(
        model.language_model.forward_embeds(&embeds, 0, 1, 4),
        &["[1, 3, 16]", "(1, 4, 16)"],
    );
    model.audio_tower = None;
    let deaf = model.forward_multimodal(&ids, None, Some(&mel), Some(&mask), 0);
    fails(deaf, &["no audio_config"]);
    Ok(())
}

#[test]
fn configurations_that_contradict_themselves_are_errors() {
    let device = &Device::Cpu;
    let load = |change: &dyn Fn(&mut Gemma4Config)| {
        let mut cfg = config();
        change(&mut cfg);
        Model::new(&cfg, weights(PLAIN, DType::F32, device))
    };
    fails(
        load(&|c| c.text_config.num_attention_heads = 3),
        &["3 query heads", "2 key heads"],
    );
    fails(
        load(&|c| c.text_config.num_key_value_heads = 0),
        &["0 key heads"],
    );
    fails(
        load(&|c| c.text_config.sliding_window = 0),
        &["sliding_window is 0"],
    );
    fails(
        load(&|c| c.text_config.layer_types.truncate(1)),
        &["layer_types", "2 layers"],
    );
    fails(
        load(&|c| c.text_config.layer_types[0] = "linear".into()),
        &["linear"],
    );
    let all = |c: &mut Gemma4Config| c.text_config.use_bidirectional_attention = Some("all".into());
    fails(load(&all), &["use_bidirectional_attention", "all"]);
    fails(
        load(&|c| c.vision_config.head_dim = 6),
        &["size 6", "pictures"],
    );
    fails(
        load(&|c| c.vision_config.pooling_kernel_size = 0),
        &["pooling_kernel_size 0"],
    );
    let audio = |change: fn(&mut candle_transformers::models::gemma4::Gemma4AudioConfig)| {
        let mut cfg = config().audio_config.expect("the model hears");
        change(&mut cfg);
        AudioModel::new(&cfg, weights(PLAIN, DType::F32, device))
    };
    fails(
        audio(|c| c.conf_num_attention_heads = 3),
        &["3 heads", "16"],
    );
    fails(
        audio(|c| c.conf_attention_chunk_size = 0),
        &["attention_chunk_size 0"],
    );
    fails(
        audio(|c| c.sscp_conv_channel_size = vec![4]),
        &["channels [4]"],
    );
    let text =
        |without| TextModel::new(&config().text_config, weights(without, DType::F32, device));
    fails(
        text(&[".linear.", "layer_scalar", "router"]),
        &["embeddings per layer"],
    );
    fails(
        text(&[".linear.", "layer_scalar", "per_layer"]),
        &["experts"],
    );
    let tower = VisionTower::new(
        &config().vision_config,
        weights(&["position_embedding_table"], DType::F32, device),
    );
    fails(tower, &["position_embedding_table"]);
}
