use std::collections::HashMap;

use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::bert::{
    BertEncoder, BertForMaskedLM, BertLMPredictionHead, BertModel, Config, HiddenAct,
};
use serde_json::json;

use super::support::{assert_close, token_ids, Numbers};

/// f32 sums in another order: a few units in the last place per layer.
const F32_TOLERANCE: f32 = 1e-5;

/// The configuration of `tests/reference/bert.py`, from which the weights are too.
pub fn tiny_config() -> Config {
    Config {
        vocab_size: 61,
        hidden_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 48,
        max_position_embeddings: 40,
        ..Config::default()
    }
}

/// The weights of the model and, under `transform` and `decoder`, of its head.
pub fn tiny_weights() -> Result<HashMap<String, Tensor>> {
    let (vocab, hidden, inner) = (61, 32, 48);
    let mut weights = HashMap::new();
    let mut numbers = Numbers::new(11);
    let mut add = |name: String, dims: &[usize]| -> Result<()> {
        let scale = match dims {
            [_, _] => 0.4,
            _ if name.ends_with("bias") => 0.2,
            _ => 1.,
        };
        let tensor = numbers.tensor(dims, scale, &Device::Cpu)?;
        weights.insert(name, tensor);
        Ok(())
    };
    let embeddings = [("word", vocab), ("position", 40), ("token_type", 2)];
    for (name, len) in embeddings {
        add(
            format!("embeddings.{name}_embeddings.weight"),
            &[len, hidden],
        )?;
    }
    let mut add_both = |name: String, dims: &[usize]| -> Result<()> {
        add(format!("{name}.weight"), dims)?;
        add(format!("{name}.bias"), &dims[..1])
    };
    add_both("embeddings.LayerNorm".into(), &[hidden])?;
    for i in 0..2 {
        let square = [hidden, hidden];
        for (name, dims) in [
            ("attention.self.query", &square[..]),
            ("attention.self.key", &square),
            ("attention.self.value", &square),
            ("attention.output.dense", &square),
            ("attention.output.LayerNorm", &[hidden]),
            ("intermediate.dense", &[inner, hidden]),
            ("output.dense", &[hidden, inner]),
            ("output.LayerNorm", &[hidden]),
        ] {
            add_both(format!("encoder.layer.{i}.{name}"), dims)?;
        }
    }
    add_both("transform.dense".into(), &[hidden, hidden])?;
    add_both("transform.LayerNorm".into(), &[hidden])?;
    add_both("decoder".into(), &[vocab, hidden])?;
    Ok(weights)
}

/// The weights with the names that a checkpoint of `BertForMaskedLM` has.
pub fn tiny_checkpoint() -> Result<HashMap<String, Tensor>> {
    let name = |name: String| match name.as_str() {
        n if n.starts_with("embeddings") || n.starts_with("encoder") => format!("bert.{name}"),
        _ => format!("cls.predictions.{name}"),
    };
    Ok(tiny_weights()?
        .into_iter()
        .map(|(n, tensor)| (name(n), tensor))
        .collect())
}

fn builder(weights: HashMap<String, Tensor>, device: &Device) -> VarBuilder<'static> {
    VarBuilder::from_tensors(weights, DType::F32, device)
}

fn tiny_bert(dtype: DType, device: &Device) -> Result<BertModel> {
    let vb = VarBuilder::from_tensors(tiny_weights()?, dtype, device);
    BertModel::load(vb, &tiny_config())
}

/// Ten tokens, six of the first segment.
fn input(device: &Device) -> Result<(Tensor, Tensor)> {
    let types: Vec<u32> = (0..10).map(|i| i / 6).collect();
    Ok((
        token_ids(1, 10, 61, device)?,
        Tensor::from_vec(types, (1, 10), device)?,
    ))
}

/// 1 for the first `seen` of ten tokens.
fn mask(seen: u32, device: &Device) -> Result<Tensor> {
    let mask: Vec<u32> = (0..10).map(|i| u32::from(i < seen)).collect();
    Tensor::from_vec(mask, (1, 10), device)
}

/// The first elements of a token's vector and its norm, as `tests/reference/bert.py` prints them, in float64.
struct Expected {
    token: usize,
    first: [f32; 6],
    norm: f32,
}

const HIDDEN: [Expected; 2] = [
    Expected {
        token: 0,
        first: [
            -0.424792, 1.303279, -0.254381, 0.505519, 1.236253, -0.158295,
        ],
        norm: 3.191993,
    },
    Expected {
        token: 6,
        first: [-0.436982, 1.177351, -0.28141, 0.729327, 1.317733, -0.182844],
        norm: 3.665464,
    },
];

const LOGITS: [Expected; 2] = [
    Expected {
        token: 0,
        first: [0.902886, 0.341147, -0.207784, -0.166532, -0.15749, 1.064125],
        norm: 5.765915,
    },
    Expected {
        token: 6,
        first: [
            1.57069, -0.059527, -0.331216, -0.445596, -0.030068, 0.850632,
        ],
        norm: 6.427479,
    },
];

/// With the last three tokens hidden.
const MASKED_HIDDEN: [Expected; 2] = [
    Expected {
        token: 0,
        first: [
            -0.381917, 1.296197, -0.234416, 0.404589, 1.225875, -0.163566,
        ],
        norm: 3.028503,
    },
    Expected {
        token: 6,
        first: [
            -0.361701, 0.989196, -0.247738, 0.828067, 1.267345, -0.212062,
        ],
        norm: 3.788619,
    },
];

const MASKED_LOGITS: [Expected; 2] = [
    Expected {
        token: 0,
        first: [
            0.762168, 0.363241, -0.202763, -0.230276, -0.092987, 1.049636,
        ],
        norm: 5.674358,
    },
    Expected {
        token: 6,
        first: [
            1.541653, -0.031823, -0.474385, -0.682948, -0.02856, 0.824779,
        ],
        norm: 6.640918,
    },
];

/// The reference has six digits after the point.
fn assert_expected(got: &Tensor, expected: &[Expected]) -> Result<()> {
    for Expected { token, first, norm } in expected {
        let vector = got.narrow(1, *token, 1)?.flatten_all()?;
        let vector = vector.to_device(&Device::Cpu)?;
        let length = vector.sqr()?.sum_all()?.sqrt()?.reshape(1)?;
        let all = Tensor::cat(&[&vector.narrow(0, 0, 6)?, &length], 0)?;
        let expected = [&first[..], &[*norm]].concat();
        assert_close(&all, &Tensor::new(expected, &Device::Cpu)?, F32_TOLERANCE);
    }
    Ok(())
}

fn agrees_with_numpy(device: &Device) -> Result<()> {
    let cfg = tiny_config();
    let model = tiny_bert(DType::F32, device)?;
    let masked_lm = BertForMaskedLM::load(builder(tiny_checkpoint()?, device), &cfg)?;
    let (ids, types) = input(device)?;
    for (mask, hidden, logits) in [
        (None, &HIDDEN, &LOGITS),
        (Some(mask(10, device)?), &HIDDEN, &LOGITS),
        (Some(mask(7, device)?), &MASKED_HIDDEN, &MASKED_LOGITS),
    ] {
        let found = model.forward(&ids, &types, mask.as_ref())?;
        assert_eq!(found.dims(), &[1, 10, 32]);
        assert_expected(&found, hidden)?;
        let found = masked_lm.forward(&ids, &types, mask.as_ref())?;
        assert_eq!(found.dims(), &[1, 10, 61]);
        assert_expected(&found, logits)?;
    }
    Ok(())
}
test_device!(agrees_with_numpy);

fn padding_changes_nothing(device: &Device) -> Result<()> {
    let model = tiny_bert(DType::F32, device)?;
    let (ids, types) = input(device)?;
    let both = |t: &Tensor| Tensor::cat(&[t, t], 0);
    let masks = Tensor::cat(&[mask(10, device)?, mask(7, device)?], 0)?;
    let batch = model.forward(&both(&ids)?, &both(&types)?, Some(&masks))?;
    assert_close(
        &batch.get(0)?,
        &model.forward(&ids, &types, None)?.get(0)?,
        F32_TOLERANCE,
    );
    let short = model.forward(&ids.narrow(1, 0, 7)?, &types.narrow(1, 0, 7)?, None)?;
    assert_close(
        &batch.get(1)?.narrow(0, 0, 7)?,
        &short.get(0)?,
        F32_TOLERANCE,
    );
    Ok(())
}
test_device!(padding_changes_nothing);

/// A mask for each token that attends: with all rows alike it is the mask of (batch, seq); a row of zeros gives numbers.
fn masks_of_every_token(device: &Device) -> Result<()> {
    let model = tiny_bert(DType::F32, device)?;
    let (ids, types) = input(device)?;
    let rows = mask(7, device)?.unsqueeze(1)?.broadcast_as((1, 10, 10))?;
    let found = model.forward(&ids, &types, Some(&rows))?;
    assert_expected(&found, &MASKED_HIDDEN)?;

    let nothing = model.forward(&ids, &types, Some(&mask(0, device)?))?;
    let sum = nothing.sum_all()?.to_scalar::<f32>()?;
    assert!(sum.is_finite(), "{sum}");

    let flat = mask(7, device)?.flatten_all()?;
    let error = model.forward(&ids, &types, Some(&flat)).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("attention_mask is [10]") && error.contains("(batch, seq)"),
        "{error}"
    );
    Ok(())
}
test_device!(masks_of_every_token);

/// 16-bit weights and activations have 11 (f16) and 8 (bf16) bits; the tolerances leave room for the two layers' roundings.
fn agrees_with_f32_in_16_bits(device: &Device) -> Result<()> {
    let (ids, types) = input(device)?;
    let run = |dtype, seen| {
        let model = tiny_bert(dtype, device)?;
        model.forward(&ids, &types, Some(&mask(seen, device)?))
    };
    for seen in [7, 10] {
        let expected = run(DType::F32, seen)?;
        for (dtype, tolerance) in [(DType::F16, 1e-2), (DType::BF16, 8e-2)] {
            let found = run(dtype, seen)?;
            assert_eq!(found.dtype(), dtype);
            assert_close(&found, &expected, tolerance);
        }
    }
    Ok(())
}
test_device!(agrees_with_f32_in_16_bits);

/// The encoder by itself, as those use it who bring embeddings and a mask to add.
fn encoder_layer_by_layer(device: &Device) -> Result<()> {
    let cfg = tiny_config();
    let encoder = BertEncoder::load(builder(tiny_weights()?, device).pp("encoder"), &cfg)?;
    assert_eq!(encoder.layers.len(), 2);
    let xs = Numbers::new(3).tensor(&[2, 5, 32], 1., device)?;
    let mask = Tensor::zeros((2, 1, 1, 5), DType::F32, device)?;
    let whole = encoder.forward(&xs, &mask)?;
    let mut by_layer = xs;
    for layer in &encoder.layers {
        let single = BertEncoder {
            layers: vec![layer.clone()],
        };
        by_layer = single.forward(&by_layer, &mask)?;
    }
    assert_close(&by_layer, &whole, 0.);
    Ok(())
}
test_device!(encoder_layer_by_layer);

#[test]
fn names_of_checkpoints() -> Result<()> {
    let device = Device::Cpu;
    let cfg = tiny_config();
    let (ids, types) = input(&device)?;
    let check = |model: BertModel| assert_expected(&model.forward(&ids, &types, None)?, &HIDDEN);

    // The prefix of a model with a head, also where the configuration does not name it.
    check(BertModel::load(builder(tiny_checkpoint()?, &device), &cfg)?)?;
    let unnamed = Config {
        model_type: None,
        ..cfg.clone()
    };
    check(BertModel::load(
        builder(tiny_checkpoint()?, &device),
        &unnamed,
    )?)?;
    let other = Config {
        model_type: Some("text".into()),
        ..cfg.clone()
    };
    let renamed = tiny_checkpoint()?
        .into_iter()
        .map(|(name, tensor)| (name.replace("bert.", "text."), tensor));
    check(BertModel::load(
        builder(renamed.collect(), &device),
        &other,
    )?)?;

    // Checkpoints made from TensorFlow's.
    let old = tiny_weights()?.into_iter().map(|(name, tensor)| {
        let name = name.replace("LayerNorm.weight", "LayerNorm.gamma");
        (name.replace("LayerNorm.bias", "LayerNorm.beta"), tensor)
    });
    check(BertModel::load(builder(old.collect(), &device), &cfg)?)?;

    let mut weights = tiny_checkpoint()?;
    weights.remove("bert.encoder.layer.1.output.dense.weight");
    let error = BertModel::load(builder(weights, &device), &cfg).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("bert.encoder.layer.1.output.dense.weight"),
        "{error}"
    );
    Ok(())
}

/// Checkpoints leave out the decoder where it is the embeddings' table, and call its bias `cls.predictions.bias`.
#[test]
fn heads_that_share_the_table() -> Result<()> {
    let device = Device::Cpu;
    let cfg = tiny_config();
    let (ids, types) = input(&device)?;
    let mut weights = tiny_checkpoint()?;
    let decoder = "cls.predictions.decoder.weight";
    let table = weights["bert.embeddings.word_embeddings.weight"].clone();
    weights.insert(decoder.into(), table);
    let run = |weights: HashMap<String, Tensor>| {
        BertForMaskedLM::load(builder(weights, &device), &cfg)?.forward(&ids, &types, None)
    };
    let expected = run(weights.clone())?;
    weights.remove(decoder);
    assert_close(&run(weights.clone())?, &expected, 0.);
    let bias = weights.remove("cls.predictions.decoder.bias");
    weights.insert("cls.predictions.bias".into(), bias.expect("it was there"));
    assert_close(&run(weights.clone())?, &expected, 0.);

    // The head by itself knows no table.
    let vb = builder(weights, &device).pp("cls.predictions");
    let error = BertLMPredictionHead::load(vb, &cfg).unwrap_err();
    assert!(error.to_string().contains(decoder), "{error}");
    Ok(())
}

/// A model that training starts with makes all of its weights.
#[test]
fn new_weights() -> Result<()> {
    let (device, vars) = (Device::Cpu, VarMap::new());
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &device);
    let model = BertForMaskedLM::load(vb, &tiny_config())?;
    let (ids, types) = input(&device)?;
    let logits = model.forward(&ids, &types, None)?;
    let mut names: Vec<_> = {
        let vars = vars.data().lock().expect("no thread died with it");
        vars.keys().cloned().collect()
    };
    let mut expected: Vec<_> = tiny_checkpoint()?.into_keys().collect();
    expected.sort();
    names.sort();
    assert_eq!(names, expected);
    let grads = logits.sum_all()?.backward()?;
    assert!(vars.all_vars().iter().all(|var| grads.get(var).is_some()));
    Ok(())
}

#[test]
fn activations() -> Result<()> {
    let (device, (ids, types)) = (Device::Cpu, input(&Device::Cpu)?);
    let run = |hidden_act| {
        let cfg = Config {
            hidden_act,
            ..tiny_config()
        };
        BertModel::load(builder(tiny_weights()?, &device), &cfg)?.forward(&ids, &types, None)
    };
    let difference = |a: &Tensor, b: &Tensor| (a - b)?.abs()?.max_all()?.to_scalar::<f32>();
    let (exact, approximate, relu) = (
        run(HiddenAct::Gelu)?,
        run(HiddenAct::GeluApproximate)?,
        run(HiddenAct::Relu)?,
    );
    let near = difference(&exact, &approximate)?;
    assert!(near > 0. && near < 1e-2, "{near}");
    let far = difference(&exact, &relu)?;
    assert!(far > 1e-2, "{far}");
    Ok(())
}

#[test]
fn configuration_files() {
    let file = json!({
        "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": 384, "initializer_range": 0.02,
        "intermediate_size": 1536, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 6,
        "pad_token_id": 0, "position_embedding_type": "absolute", "type_vocab_size": 2,
        "use_cache": true, "vocab_size": 30522
    });
    let parse = |file: &serde_json::Value| serde_json::from_value::<Config>(file.clone());
    let expected = Config {
        hidden_size: 384,
        intermediate_size: 1536,
        num_hidden_layers: 6,
        ..Config::default()
    };
    assert_eq!(parse(&file).expect("a configuration"), expected);
    let mut old = file.clone();
    let fields = old.as_object_mut().expect("an object");
    fields.remove("position_embedding_type");
    fields.remove("use_cache");
    let expected = Config {
        use_cache: false,
        ..expected
    };
    assert_eq!(parse(&old).expect("a configuration"), expected);
    for (name, act) in [
        ("gelu_new", HiddenAct::GeluApproximate),
        ("gelu_pytorch_tanh", HiddenAct::GeluApproximate),
        ("relu", HiddenAct::Relu),
    ] {
        old["hidden_act"] = name.into();
        assert_eq!(parse(&old).expect("a configuration").hidden_act, act);
    }
    old["hidden_act"] = "swish".into();
    assert!(parse(&old).unwrap_err().to_string().contains("swish"));
}

#[test]
fn bad_input_is_an_error() -> Result<()> {
    let device = Device::Cpu;
    for heads in [0, 5] {
        let bad = Config {
            num_attention_heads: heads,
            ..tiny_config()
        };
        let error = BertModel::load(builder(tiny_weights()?, &device), &bad).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("hidden_size 32")
                && error.contains(&format!("num_attention_heads {heads}")),
            "{error}"
        );
    }
    let model = tiny_bert(DType::F32, &device)?;
    let long = token_ids(1, 41, 61, &device)?;
    let error = model.forward(&long, &long.zeros_like()?, None).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("41 tokens") && error.contains("of 40"),
        "{error}"
    );
    let (ids, types) = input(&device)?;
    let error = model
        .forward(&ids, &types.narrow(1, 0, 9)?, None)
        .unwrap_err();
    assert!(
        error.to_string().contains("token_type_ids [1, 9]"),
        "{error}"
    );
    let head = BertLMPredictionHead::load(builder(tiny_weights()?, &device), &tiny_config())?;
    assert!(head
        .forward(&Tensor::zeros((1, 2, 31), DType::F32, &device)?)
        .is_err());
    Ok(())
}
