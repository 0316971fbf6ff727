//! Files in other spellings, files that are refused, and prompts that do not fit their images.

use candle_core::{DType, Device, IndexOp, Result, Tensor};
use candle_transformers::auto::config_spec;
use candle_transformers::blocks::{Decoder, Vectors};
use candle_transformers::pictures::{Picture, PictureSpec, Sees};
use serde_json::{json, Value};

use super::{cases, close};

/// Names of weights in files of Transformers 4.
#[test]
fn older_names_of_weights() -> Result<()> {
    let older = |name: &str| {
        let name = name.strip_prefix("model.").unwrap_or(name);
        name.replace("vision_tower.", "vision_tower.vision_model.")
    };
    let names = [
        "gemma3",
        "gemma3-one",
        "smolvlm",
        "idefics3-whole",
        "qwen3_vl",
    ];
    for case in cases()
        .cases
        .iter()
        .filter(|case| names.contains(&case.name.as_str()))
    {
        let vb = case.vb(older, &Device::Cpu)?;
        let first = case.spec()?.first_weights();
        assert_eq!(
            first.iter().filter(|name| vb.contains_tensor(name)).count(),
            1
        );
        let features = case.features(vb, &Device::Cpu)?;
        let found = features.i(0)?.to_vec1::<f32>()?;
        close(&case.name, &found, &case.features[..found.len()], 1e-4);
    }
    Ok(())
}

/// Names of weights in files of Transformers 5, where it writes those of Transformers 4 as well.
#[test]
fn newer_names_of_weights() -> Result<()> {
    let newer = |name: &str| match name.split_once('.') {
        Some(("model", rest)) => format!("model.language_model.{rest}"),
        Some(("language_model", rest)) => match rest.strip_prefix("model.") {
            Some(rest) => format!("model.language_model.{rest}"),
            None => rest.to_string(),
        },
        Some(("lm_head", _)) => name.to_string(),
        _ => format!("model.{name}"),
    };
    let names = ["qwen2_5_vl-one", "qwen2_vl", "mistral3-biases"];
    for case in cases().cases {
        if !names.contains(&case.name.as_str()) {
            continue;
        }
        let device = Device::Cpu;
        let vb = case.vb(newer, &device)?;
        let features = case.features(vb.clone(), &device)?;
        let decoder = Decoder::from_vb(config_spec(&case.config.to_string())?, vb)?;
        let found = case.logits(&decoder, &features, &mut decoder.new_state(), None)?;
        close(&case.name, &found, &case.logits, 1e-4);
    }
    Ok(())
}

/// Files of Qwen2.5-VL as published: the text's fields are those of the model.
#[test]
fn older_configurations() -> Result<()> {
    let case = cases().cases.swap_remove(5);
    let mut config = case.config.clone();
    let text = config["text_config"].take();
    let text = text.as_object().expect("fields");
    for (name, value) in text.iter().filter(|(name, _)| *name != "model_type") {
        config[name] = value.clone();
    }
    let rope = config["rope_parameters"].take();
    config["rope_theta"] = rope["rope_theta"].clone();
    config["rope_scaling"] = json!({"type": "mrope", "mrope_section": rope["mrope_section"]});
    assert_eq!(
        config_spec(&config.to_string())?,
        config_spec(&case.config.to_string())?
    );
    let mut processor = case.processor.clone();
    processor["size"] = Value::Null;
    processor["min_pixels"] = json!(64);
    processor["max_pixels"] = json!(1024);
    let older = PictureSpec::read(&config.to_string(), &processor.to_string())?;
    let newer = case.spec()?;
    for [width, height] in [[41, 23], [3, 2], [400, 90]] {
        assert_eq!(older.written(width, height), newer.written(width, height));
    }
    Ok(())
}

/// Positions that do not fit the prompt, its images or the model.
#[test]
fn wrong_positions_are_named() -> Result<()> {
    let cases = cases().cases;
    let find = |name: &str| cases.iter().find(|case| case.name == name);
    let (qwen, other) = (find("qwen2_5_vl").unwrap(), find("mistral3").unwrap());
    let spec = qwen.spec()?;
    let refused = |ids: &[u32], sizes: &[[usize; 2]], said: &str| {
        let error = spec.positions(ids, sizes).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    };
    refused(&qwen.ids, &qwen.sizes[..1], "not there");
    refused(&qwen.ids[..9], &qwen.sizes, "is 15 tokens");
    refused(&[1, 2], &[[9, 9]], "has no tokens");
    refused(&[1, 28], &[], "videos are not supported");
    let device = Device::Cpu;
    for (case, at, said) in [
        (other, 1, "not supported by this model"),
        (qwen, 128, "position 128; the model has 128"),
    ] {
        let vb = case.vb(str::to_string, &device)?;
        let decoder = Decoder::from_vb(config_spec(&case.config.to_string())?, vb)?;
        let input = Vectors {
            embeds: Tensor::zeros((1, 1, 16), DType::F32, &device)?,
            sees: Sees::Before,
            positions: Some(vec![[0, at, 0]]),
            deep: Vec::new(),
        };
        let error = decoder.forward_seen(&input, 0, &mut decoder.new_state());
        let error = error.map(drop).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    Ok(())
}

/// Files with settings that are not supported.
#[test]
fn wrong_settings_are_named() {
    let cases = cases().cases;
    let refused = |at: usize, part: &str, name: &str, value: Value| {
        let case = &cases[at];
        let (mut config, mut processor) = (case.config.clone(), case.processor.clone());
        match part {
            "processor" => processor[name] = value,
            "" => config[name] = value,
            part => config[part][name] = value,
        }
        let error = PictureSpec::read(&config.to_string(), &processor.to_string());
        error.map(drop).unwrap_err().to_string()
    };
    for (at, part, name, value, said) in [
        (0, "", "model_type", json!("llava"), "supported: gemma3"),
        (
            0,
            "",
            "mm_tokens_per_image",
            json!(5),
            "the square of a divisor of 4",
        ),
        (
            0,
            "text_config",
            "sliding_window",
            json!(3),
            "more than sliding_window, 3",
        ),
        (0, "vision_config", "patch_size", json!(0), "patches of 0"),
        (
            0,
            "vision_config",
            "image_size",
            json!(1u64 << 40),
            "at most 8192",
        ),
        (
            0,
            "processor",
            "do_pan_and_scan",
            json!(true),
            "do_pan_and_scan",
        ),
        (0, "processor", "do_resize", json!(false), "do_resize"),
        (
            0,
            "processor",
            "resample",
            json!(0),
            "resample: 0 is not supported",
        ),
        (
            0,
            "processor",
            "image_std",
            json!([1, 0, 1]),
            "no 0 in image_std",
        ),
        (0, "processor", "image_mean", json!([1, 2]), "three numbers"),
        (
            0,
            "processor",
            "size",
            json!({"height": 20}),
            "size.height must be",
        ),
        (2, "", "scale_factor", json!(3), "a divisor of 4"),
        (
            2,
            "processor",
            "size",
            json!({"longest_edge": 0}),
            "size.longest_edge: 0",
        ),
        (
            2,
            "processor",
            "size",
            json!({}),
            "missing field `size.longest_edge`",
        ),
        (
            2,
            "processor",
            "max_image_size",
            json!({"longest_edge": 9}),
            "image_size, 8",
        ),
        (5, "processor", "patch_size", json!(5), "vision_config, 4"),
        (5, "processor", "merge_size", json!(0), "merge_size: 0"),
        (
            5,
            "processor",
            "size",
            json!({"shortest_edge": 9, "longest_edge": 1u64 << 40}),
            "at most 67108864",
        ),
        (
            5,
            "processor",
            "min_pixels",
            json!(4096),
            "4096 to 1024 pixels",
        ),
        (
            5,
            "vision_config",
            "window_size",
            json!(7),
            "window_size: 7",
        ),
        (
            5,
            "vision_config",
            "out_hidden_size",
            json!(8),
            "hidden_size, 16",
        ),
        (5, "vision_config", "num_heads", json!(3), "3 heads"),
        (5, "vision_config", "in_channels", json!(1), "expected 3"),
        (
            8,
            "vision_config",
            "deepstack_visual_indexes",
            json!([9]),
            "has layer 9",
        ),
        (
            8,
            "vision_config",
            "rope_parameters",
            json!({"rope_theta": 5.0}),
            "rope_theta: 5.0",
        ),
        (
            10,
            "",
            "vision_feature_layer",
            json!(-2),
            "vision_feature_layer: -2",
        ),
        (
            10,
            "processor",
            "size",
            json!({"longest_edge": 56}),
            "image_size, 48",
        ),
        (
            10,
            "processor",
            "size",
            json!({"height": 8, "width": 8}),
            "size.height",
        ),
    ] {
        let error = refused(at, part, name, value);
        assert!(
            error.lines().next().is_some_and(|line| line.contains(said)),
            "{error}"
        );
    }
    let narrow = cases[5].spec().unwrap().check(2000, 9).unwrap_err();
    assert!(narrow.to_string().contains("200 times"), "{narrow}");
    assert!(Picture::new(2, 2, vec![0; 11]).is_err());
    assert!(Picture::new(0, 2, Vec::new()).is_err());
}
