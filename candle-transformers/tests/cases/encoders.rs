//! Encoders of text, each with tiny weights that depend on their names alone.

use candle_core::{bail, test_device, DType, Device, Module, Result, Shape, Tensor, D};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, LayerNorm, Linear, VarBuilder};
use candle_transformers::models::{
    bert, debertav2, distilbert, jina_bert, modernbert, nomic_bert, xlm_roberta,
};
use serde_json::{json, Value};

use super::support::{assert_close, Numbers};

pub(super) const VOCAB: usize = 61;
pub(super) const HIDDEN: usize = 32;
/// The longest text of all models here.
pub(super) const LIMIT: usize = 40;
/// f32 sums in another order.
const F32_TOLERANCE: f32 = 2e-5;

/// Makes any weight that a model asks for; of those whose names end so, it says that they are not there.
pub(super) struct Made(pub(super) &'static [&'static str]);

impl SimpleBackend for Made {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        if !self.contains_tensor(name) {
            bail!("there is no {name}")
        }
        let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        let mut numbers = Numbers::new(name.bytes().fold(0xcbf2_9ce4_8422_2325, hash));
        let scale = match s.dims() {
            [_] if name.ends_with("bias") => 0.2,
            [_] => 1.,
            _ => 0.4,
        };
        let made = numbers.tensor(s.dims(), scale, &Device::Cpu)?;
        let made = if name.ends_with("running_var") {
            // Variances are not negative.
            (made.abs()? + 0.5)?
        } else {
            made
        };
        made.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} is requested without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !self.0.iter().any(|lacking| name.ends_with(lacking))
    }
}

fn weights(dtype: DType, device: &Device) -> VarBuilder<'static> {
    lacking(&[], dtype, device)
}

pub(super) fn lacking(
    names: &'static [&'static str],
    dtype: DType,
    device: &Device,
) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Made(names)), dtype, device.clone())
}

fn config<T: serde::de::DeserializeOwned>(json: &Value) -> Result<T> {
    serde_json::from_value(json.clone()).map_err(candle_core::Error::wrap)
}

/// `json` with these fields in place of those it has.
pub(super) fn with(mut json: Value, fields: Value) -> Value {
    let (Value::Object(all), Value::Object(fields)) = (&mut json, fields) else {
        panic!("not objects")
    };
    all.extend(fields);
    json
}

pub(super) fn distilbert_json() -> Value {
    json!({"vocab_size": VOCAB, "dim": HIDDEN, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "activation": "gelu",
        "max_position_embeddings": LIMIT, "initializer_range": 0.02, "pad_token_id": 0})
}

/// Two rows of positions more than tokens: padding's and the one before it.
pub(super) fn xlm_roberta_json() -> Value {
    json!({"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "hidden_act": "gelu", "max_position_embeddings": LIMIT + 2, "type_vocab_size": 1,
        "layer_norm_eps": 1e-5, "pad_token_id": 1, "attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1,
        "position_embedding_type": "absolute"})
}

pub(super) fn modernbert_json() -> Value {
    json!({"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": LIMIT, "layer_norm_eps": 1e-5, "pad_token_id": 0,
        "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_attention": 4, "local_rope_theta": 10000.0})
}

pub(super) fn nomic_json() -> Value {
    json!({"vocab_size": VOCAB, "n_embd": HIDDEN, "n_head": 4, "n_layer": 2, "n_inner": 48, "n_positions": LIMIT})
}

pub(super) fn jina_json() -> Value {
    json!({"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "hidden_act": "gelu", "max_position_embeddings": LIMIT, "type_vocab_size": 2,
        "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0, "position_embedding_type": "alibi"})
}

pub(super) fn deberta_json() -> Value {
    json!({"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": LIMIT, "type_vocab_size": 0, "initializer_range": 0.02, "layer_norm_eps": 1e-7,
        "relative_attention": true, "max_relative_positions": -1, "pad_token_id": 0, "position_biased_input": false,
        "pos_att_type": "p2c|c2p", "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": true,
        "pooler_hidden_act": "gelu", "pooler_hidden_size": HIDDEN, "pooler_dropout": 0.0})
}

/// Ids and a mask of ones and zeros to vectors.
type Run = Box<dyn Fn(&Tensor, &Tensor) -> Result<Tensor>>;

struct Encoder {
    name: &'static str,
    json: fn() -> Value,
    load: fn(&Value, VarBuilder) -> Result<Run>,
    /// A field of the configuration that cannot be 5, and what the error then says.
    heads: &'static str,
}

const ENCODERS: &[Encoder] = &[
    Encoder {
        name: "distilbert",
        json: distilbert_json,
        load: |json, vb| {
            let model = distilbert::DistilBertModel::load(vb, &config(json)?)?;
            // Its masks have 1 for what is hidden.
            Ok(Box::new(move |ids, mask| {
                let hidden = mask.eq(0u32)?.unsqueeze(1)?.unsqueeze(1)?;
                model.forward(ids, &hidden)
            }))
        },
        heads: "n_heads",
    },
    Encoder {
        name: "xlm_roberta",
        json: xlm_roberta_json,
        load: |json, vb| {
            let model = xlm_roberta::XLMRobertaModel::new(&config(json)?, vb)?;
            Ok(Box::new(move |ids, mask| {
                model.forward(ids, mask, &ids.zeros_like()?, None, None, None)
            }))
        },
        heads: "num_attention_heads",
    },
    Encoder {
        name: "modernbert",
        json: modernbert_json,
        load: |json, vb| {
            let model = modernbert::ModernBert::load(vb, &config(json)?)?;
            Ok(Box::new(move |ids, mask| model.forward(ids, mask)))
        },
        heads: "num_attention_heads",
    },
    Encoder {
        name: "nomic_bert",
        json: nomic_json,
        load: load_nomic,
        heads: "n_head",
    },
    Encoder {
        name: "nomic_bert",
        json: || {
            with(
                nomic_json(),
                json!({"prenorm": true, "rotary_emb_interleaved": true, "rotary_emb_fraction": 0.5, "qkv_proj_bias": true,
                    "mlp_fc1_bias": true, "mlp_fc2_bias": true, "activation_function": "geglu", "type_vocab_size": 0}),
            )
        },
        load: load_nomic,
        heads: "n_head",
    },
    Encoder {
        name: "jina_bert",
        json: jina_json,
        load: |json, vb| {
            let model = jina_bert::BertModel::new(vb, &config(json)?)?;
            Ok(Box::new(move |ids, mask| {
                model.forward_masked(ids, Some(mask))
            }))
        },
        heads: "num_attention_heads",
    },
    Encoder {
        name: "debertav2",
        json: deberta_json,
        load: load_deberta,
        heads: "num_attention_heads",
    },
    Encoder {
        name: "debertav2",
        json: || {
            with(
                deberta_json(),
                json!({"type_vocab_size": 2, "position_biased_input": true, "pos_att_type": ["c2p"], "position_buckets": null,
                    "max_relative_positions": 6, "norm_rel_ebd": null, "share_att_key": false, "embedding_size": 24,
                    "conv_kernel_size": 3, "conv_act": "gelu", "conv_groups": 2}),
            )
        },
        load: load_deberta,
        heads: "num_attention_heads",
    },
];

fn load_nomic(json: &Value, vb: VarBuilder) -> Result<Run> {
    let model = nomic_bert::NomicBertModel::load(vb, &config(json)?)?;
    Ok(Box::new(move |ids, mask| {
        model.forward(ids, None, Some(mask))
    }))
}

fn load_deberta(json: &Value, vb: VarBuilder) -> Result<Run> {
    let model = debertav2::DebertaV2Model::load(vb, &config(json)?)?;
    Ok(Box::new(move |ids, mask| {
        model.forward(ids, None, Some(mask.clone()))
    }))
}

/// Two texts of these lengths, filled up to the longer with token 1, and their mask.
fn texts(lens: [usize; 2], device: &Device) -> Result<(Tensor, Tensor)> {
    let width = lens[0].max(lens[1]);
    let places = || {
        lens.into_iter()
            .flat_map(|len| (0..width).map(move |i| (i, i < len)))
    };
    let id = |(i, seen): (usize, bool)| {
        if seen {
            ((i * 17) % (VOCAB - 2) + 2) as u32
        } else {
            1
        }
    };
    let ids: Vec<u32> = places().map(id).collect();
    let mask: Vec<u32> = places().map(|(_, seen)| u32::from(seen)).collect();
    let shape = (2, width);
    Ok((
        Tensor::from_vec(ids, shape, device)?,
        Tensor::from_vec(mask, shape, device)?,
    ))
}

/// A text in a batch with a longer one gives what it gives alone.
fn padding_changes_nothing(device: &Device) -> Result<()> {
    for encoder in ENCODERS {
        let run = (encoder.load)(&(encoder.json)(), weights(DType::F32, device))?;
        let lens = [13, 7];
        let (ids, mask) = texts(lens, device)?;
        let batch = run(&ids, &mask)?;
        assert_eq!(batch.dims(), &[2, 13, HIDDEN], "{}", encoder.name);
        for (row, len) in lens.into_iter().enumerate() {
            let part = |t: &Tensor| t.narrow(0, row, 1)?.narrow(1, 0, len);
            let alone = run(&part(&ids)?.contiguous()?, &part(&mask)?.contiguous()?)?;
            println!("{}: text {row}", encoder.name);
            assert_close(&part(&batch)?, &alone, F32_TOLERANCE);
        }
        // What is hidden matters where it is seen.
        let open = run(&ids, &mask.ones_like()?)?;
        let change = (open.get(1)? - batch.get(1)?)?.narrow(0, 0, 7)?;
        let change = change.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(change > 1e-2, "{}: {change}", encoder.name);
    }
    Ok(())
}
test_device!(padding_changes_nothing);

/// What a device gives is what the CPU gives, where it is compared with crates.io's Candle.
fn agrees_with_the_cpu(device: &Device) -> Result<()> {
    for encoder in ENCODERS {
        let run = |device: &Device| {
            let (ids, mask) = texts([LIMIT, 29], device)?;
            let run = (encoder.load)(&(encoder.json)(), weights(DType::F32, device))?;
            run(&ids, &mask)?.narrow(1, 0, 29)?.to_device(&Device::Cpu)
        };
        println!("{}", encoder.name);
        assert_close(&run(device)?, &run(&Device::Cpu)?, 1e-4);
    }
    Ok(())
}
test_device!(agrees_with_the_cpu);

/// f16 has 11 bits; the tolerance leaves room for the roundings of all layers. A text of padding alone gives numbers.
fn agrees_with_f32_in_f16(device: &Device) -> Result<()> {
    for encoder in ENCODERS {
        let (ids, mask) = texts([13, 7], device)?;
        let run = |dtype| {
            let run = (encoder.load)(&(encoder.json)(), weights(dtype, device))?;
            let hidden = run(&ids, &mask.zeros_like()?)?.to_dtype(DType::F32)?;
            let sum = hidden.abs()?.sum_all()?.to_scalar::<f32>()?;
            assert!(sum.is_finite(), "{}: {sum}", encoder.name);
            run(&ids, &mask)
        };
        let found = run(DType::F16)?;
        assert_eq!(found.dtype(), DType::F16);
        let seen = |t: Tensor| Tensor::cat(&[t.get(0)?, t.get(1)?.narrow(0, 0, 7)?], 0);
        println!("{}", encoder.name);
        assert_close(&seen(found)?, &seen(run(DType::F32)?)?, 3e-2);
    }
    Ok(())
}
test_device!(agrees_with_f32_in_f16);

#[track_caller]
pub(super) fn assert_error<T>(result: Result<T>, parts: &[&str]) {
    let Err(error) = result else {
        panic!("no error, {parts:?} are expected in one")
    };
    let error = error.to_string();
    for part in parts {
        assert!(error.contains(part), "{error}: without {part:?}");
    }
}

fn bad_input_is_an_error(device: &Device) -> Result<()> {
    for encoder in ENCODERS {
        let (name, json) = (encoder.name, (encoder.json)());
        let run = (encoder.load)(&json, weights(DType::F32, device))?;
        let (long, mask) = texts([LIMIT + 1, 3], device)?;
        let limit = format!("limit of {LIMIT}");
        assert_error(run(&long, &mask), &[name, "41 tokens", &limit]);
        let nothing = Tensor::zeros((2, 0), DType::U32, device)?;
        assert_error(run(&nothing, &nothing), &[name, "no tokens"]);
        let (ids, mask) = texts([5, 3], device)?;
        assert!(run(&ids, &mask.narrow(1, 0, 4)?).is_err(), "{name}");
        assert_error(
            run(&ids.flatten_all()?, &mask.flatten_all()?),
            &[name, "(batch, seq)"],
        );
        for heads in [0, 5] {
            let field = encoder.heads;
            let bad = with(json.clone(), json!({field: heads}));
            let said = format!("{field} {heads}");
            let result = (encoder.load)(&bad, weights(DType::F32, device));
            assert_error(result, &[name, "32", &said]);
        }
    }
    Ok(())
}
test_device!(bad_input_is_an_error);

#[test]
fn bad_configurations_are_errors() {
    let load = |name: &str, fields: Value| {
        let encoder = ENCODERS.iter().find(|encoder| encoder.name == name);
        let encoder = encoder.expect("a model of that name");
        let json = with((encoder.json)(), fields);
        (encoder.load)(&json, weights(DType::F32, &Device::Cpu))
    };
    let cases = [
        ("distilbert", json!({"activation": "swish"}), "swish"),
        (
            "xlm_roberta",
            json!({"position_embedding_type": "relative_key"}),
            "relative_key",
        ),
        (
            "xlm_roberta",
            json!({"max_position_embeddings": 2}),
            "max_position_embeddings 2",
        ),
        (
            "modernbert",
            json!({"global_attn_every_n_layers": 0}),
            "global_attn_every_n_layers is 0",
        ),
        (
            "nomic_bert",
            json!({"activation_function": "swish"}),
            "\"swish\"",
        ),
        (
            "nomic_bert",
            json!({"rotary_emb_fraction": 1.5}),
            "rotary_emb_fraction is 1.5",
        ),
        (
            "jina_bert",
            json!({"position_embedding_type": "absolute"}),
            "only alibi",
        ),
        (
            "debertav2",
            json!({"conv_kernel_size": 4}),
            "conv_kernel_size is 4",
        ),
        (
            "debertav2",
            json!({"conv_kernel_size": 3, "conv_groups": 5}),
            "conv_groups 5",
        ),
        (
            "debertav2",
            json!({"conv_kernel_size": 3, "conv_act": "swish"}),
            "\"swish\"",
        ),
        (
            "debertav2",
            json!({"attention_head_size": 0}),
            "attention_head_size is 0",
        ),
    ];
    for (name, fields, said) in cases {
        assert_error(load(name, fields), &[said]);
    }
    let vb = || weights(DType::F32, &Device::Cpu);
    let deberta = |fields| config::<debertav2::Config>(&with(deberta_json(), fields));
    let load = |fields, labels: Option<&[&str]>| {
        let labels = labels.map(|l| (0..).zip(l.iter().map(|l| l.to_string())).collect());
        debertav2::DebertaV2NERModel::load(vb(), &deberta(fields)?, labels)
    };
    let both = json!({"id2label": {"0": "B", "1": "O"}});
    assert_error(load(json!({}), None), &["id2label"]);
    assert_error(load(both.clone(), Some(&["A"])), &["id2label is given as"]);
    assert_error(load(json!({}), Some(&[])), &["at least one label"]);
    assert!(load(both, Some(&["B", "O"])).is_ok());
    let no_pooler = deberta(json!({"pooler_hidden_act": null})).expect("a configuration");
    assert_error(
        debertav2::DebertaV2ContextPooler::load(vb(), &no_pooler),
        &["pooler_hidden_act", "None"],
    );
    let modern = config(&modernbert_json()).expect("a configuration");
    assert_error(
        modernbert::ModernBertForSequenceClassification::load(vb(), &modern),
        &["id2label"],
    );
}

/// A BERT with the weights of another model, whose names `rename` makes of BERT's.
struct Renamed(fn(&str) -> String);

impl SimpleBackend for Renamed {
    fn get(&self, s: Shape, name: &str, init: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        match name {
            "embeddings.token_type_embeddings.weight" => Tensor::zeros(s, dtype, dev),
            _ => Made(&[]).get(s, &(self.0)(name), init, dtype, dev),
        }
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} is requested without a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

/// DistilBERT is a BERT without segments, which `tests/reference/bert.py` checks.
fn distilbert_is_a_bert(device: &Device) -> Result<()> {
    let rename = |name: &str| {
        [
            ("encoder.layer", "transformer.layer"),
            ("attention.self.query", "attention.q_lin"),
            ("attention.self.key", "attention.k_lin"),
            ("attention.self.value", "attention.v_lin"),
            ("attention.output.dense", "attention.out_lin"),
            ("attention.output.LayerNorm", "sa_layer_norm"),
            ("intermediate.dense", "ffn.lin1"),
            ("output.dense", "ffn.lin2"),
            ("output.LayerNorm", "output_layer_norm"),
        ]
        .iter()
        .fold(name.to_string(), |name, (from, to)| name.replace(from, to))
    };
    let cfg = bert::Config {
        vocab_size: VOCAB,
        hidden_size: HIDDEN,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 48,
        max_position_embeddings: LIMIT,
        ..bert::Config::default()
    };
    let vb = VarBuilder::from_backend(Box::new(Renamed(rename)), DType::F32, device.clone());
    let bert = bert::BertModel::load(vb, &cfg)?;
    let (ids, mask) = texts([13, 7], device)?;
    let expected = bert.forward(&ids, &ids.zeros_like()?, Some(&mask))?;
    let vb = weights(DType::F32, device);
    let model = distilbert::DistilBertModel::load(vb.clone(), &config(&distilbert_json())?)?;
    let hidden = mask.eq(0u32)?.reshape((2, 1, 1, 13))?;
    assert_close(&model.forward(&ids, &hidden)?, &expected, F32_TOLERANCE);

    // A row for each token that attends: for all texts, or for each.
    let all = Tensor::zeros((13, 13), DType::U8, device)?;
    let expected = bert.forward(&ids, &ids.zeros_like()?, None)?;
    assert_close(&model.forward(&ids, &all)?, &expected, F32_TOLERANCE);
    assert_error(
        model.forward(&ids, &all.flatten_all()?),
        &["attention_mask is [169]"],
    );

    let masked = distilbert::DistilBertForMaskedLM::load(vb, &config(&distilbert_json())?)?;
    let logits = masked.forward(&ids, &hidden)?;
    assert_eq!(logits.dims(), &[2, 13, VOCAB]);
    Ok(())
}
test_device!(distilbert_is_a_bert);

/// Keys and values of other tokens: those of a cache, of an encoder, and both. One layer, and positions that do not matter.
fn xlm_roberta_attends_beyond(device: &Device) -> Result<()> {
    struct NoPositions;
    impl SimpleBackend for NoPositions {
        fn get(&self, s: Shape, name: &str, i: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
            if name.contains("position_embeddings") {
                Tensor::zeros(s, dtype, dev)
            } else {
                Made(&[]).get(s, name, i, dtype, dev)
            }
        }
        fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
            bail!("{name} is requested without a shape")
        }
        fn contains_tensor(&self, _: &str) -> bool {
            true
        }
    }
    let vb = VarBuilder::from_backend(Box::new(NoPositions), DType::F32, device.clone());
    let cfg = config(&with(xlm_roberta_json(), json!({"num_hidden_layers": 1})))?;
    let model = xlm_roberta::XLMRobertaModel::new(&cfg, vb.clone())?;
    let (ids, _) = texts([9, 9], device)?;
    let ones = |len| Tensor::ones((2, len), DType::U32, device);
    let types = ids.zeros_like()?;
    let expected = model.forward(&ids, &ones(9)?, &types, None, None, None)?;

    let tables = vb.pp("embeddings");
    let word = tables.get((VOCAB, HIDDEN), "word_embeddings.weight")?;
    let kind = tables.get((1, HIDDEN), "token_type_embeddings.weight")?;
    let norm = LayerNorm::new(
        tables.get(HIDDEN, "LayerNorm.weight")?,
        tables.get(HIDDEN, "LayerNorm.bias")?,
        1e-5,
    );
    let vectors = word.index_select(&ids.flatten_all()?, 0)?;
    let vectors = norm.forward(&vectors.broadcast_add(&kind)?.reshape((2, 9, HIDDEN))?)?;
    let part = |name: &str| -> Result<Tensor> {
        let vb = vb.pp("encoder.layer.0.attention.self").pp(name);
        let linear = Linear::new(
            vb.get((HIDDEN, HIDDEN), "weight")?,
            Some(vb.get(HIDDEN, "bias")?),
        );
        linear
            .forward(&vectors)?
            .reshape((2, 9, 4, HIDDEN / 4))?
            .transpose(1, 2)
    };
    let (k, v) = (part("key")?, part("value")?);
    let encoder = Some(&vectors);
    let found = model.forward(&ids, &ones(9)?, &types, None, encoder, None)?;
    assert_close(&found, &expected, F32_TOLERANCE);
    let found = model.forward(&ids, &ones(9)?, &types, Some((&k, &v)), encoder, None)?;
    assert_close(&found, &expected, F32_TOLERANCE);
    let past = (k.narrow(2, 0, 3)?, v.narrow(2, 0, 3)?);
    let tail = ids.narrow(1, 3, 6)?.contiguous()?;
    let types = tail.zeros_like()?;
    let past = Some((&past.0, &past.1));
    let found = model.forward(&tail, &ones(9)?, &types, past, None, None)?;
    assert_close(&found, &expected.narrow(1, 3, 6)?, F32_TOLERANCE);
    Ok(())
}
test_device!(xlm_roberta_attends_beyond);

/// Heads over a vocabulary add the bias that a checkpoint has, and do without one.
fn biases_of_heads(device: &Device) -> Result<()> {
    let (ids, mask) = texts([9, 5], device)?;
    let types = ids.zeros_like()?;
    let bias = |name: &str, len| weights(DType::F32, device).get(len, name);

    let cfg = config(&xlm_roberta_json())?;
    let run = |vb| {
        let model = xlm_roberta::XLMRobertaForMaskedLM::new(&cfg, vb)?;
        model.forward(&ids, &mask, &types, None, None, None)
    };
    let with_bias = run(weights(DType::F32, device))?;
    assert_eq!(with_bias.dims(), &[2, 9, VOCAB]);
    let without = run(lacking(&["lm_head.bias"], DType::F32, device))?;
    let added = without.broadcast_add(&bias("lm_head.bias", VOCAB)?)?;
    assert_close(&with_bias, &added, F32_TOLERANCE);

    let labels = json!({"id2label": {"0": "B", "1": "I", "2": "O"}});
    let cfg = config(&with(deberta_json(), labels))?;
    let run = |vb: VarBuilder| {
        let model = debertav2::DebertaV2NERModel::load(vb.pp("deberta"), &cfg, None)?;
        model.forward(&ids, None, Some(mask.clone()))
    };
    let with_bias = run(weights(DType::F32, device))?;
    assert_eq!(with_bias.dims(), &[2, 9, 3]);
    let without = run(lacking(&["classifier.bias"], DType::F32, device))?;
    let added = without.broadcast_add(&bias("classifier.bias", 3)?)?;
    assert_close(&with_bias, &added, F32_TOLERANCE);
    Ok(())
}
test_device!(biases_of_heads);

/// A classifier's answer for a text does not depend on the padding beside it.
fn classifiers_of_texts(device: &Device) -> Result<()> {
    let (ids, mask) = texts([9, 5], device)?;
    let alone = (
        ids.narrow(0, 1, 1)?.narrow(1, 0, 5)?,
        Tensor::ones((1, 5), DType::U32, device)?,
    );
    let alone = (alone.0.contiguous()?, alone.1);
    let check = |run: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>, labels| -> Result<Tensor> {
        let batch = run(&ids, &mask)?;
        assert_eq!(batch.dims(), &[2, labels]);
        assert_close(
            &batch.narrow(0, 1, 1)?,
            &run(&alone.0, &alone.1)?,
            F32_TOLERANCE,
        );
        Ok(batch)
    };
    let vb = weights(DType::F32, device);

    let cfg = config(&xlm_roberta_json())?;
    let model = xlm_roberta::XLMRobertaForSequenceClassification::new(1, &cfg, vb.clone())?;
    check(&|ids, mask| model.forward(ids, mask, &ids.zeros_like()?), 1)?;

    for pooling in ["cls", "mean"] {
        let labels = json!({"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": "1"},
            "classifier_pooling": pooling});
        let cfg = config(&with(modernbert_json(), labels))?;
        let model = modernbert::ModernBertForSequenceClassification::load(vb.clone(), &cfg)?;
        let found = check(&|ids, mask| model.forward(ids, mask), 2)?;
        let sums = found.sum(D::Minus1)?;
        assert_close(&sums, &Tensor::ones(2, DType::F32, device)?, 1e-5);
    }

    let labels = json!({"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}});
    let cfg = config(&with(deberta_json(), labels))?;
    let model = debertav2::DebertaV2SeqClassificationModel::load(vb.pp("deberta"), &cfg, None)?;
    check(&|ids, mask| model.forward(ids, None, Some(mask.clone())), 2)?;
    Ok(())
}
test_device!(classifiers_of_texts);

/// A window that is as wide as the text is none; a token sees half of `local_attention` to each side.
fn modernbert_windows(device: &Device) -> Result<()> {
    let run = |ids: &Tensor, fields| {
        let cfg = config(&with(modernbert_json(), fields))?;
        let model = modernbert::ModernBert::load(weights(DType::F32, device), &cfg)?;
        model.forward(ids, &ids.ones_like()?)
    };
    let (ids, _) = texts([12, 12], device)?;
    let same_base = |local, every| json!({"local_rope_theta": 160000.0, "local_attention": local, "global_attn_every_n_layers": every});
    let global = run(&ids, same_base(4, 1))?;
    assert_close(&run(&ids, same_base(22, 3))?, &global, F32_TOLERANCE);
    let narrow = run(&ids, same_base(4, 3))?;
    let change = (narrow - &global)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(change > 1e-2, "{change}");

    // The first layer of a checkpoint without a norm of attention.
    let cfg = config(&modernbert_json())?;
    let names: &[&str] = &["layers.0.attn_norm.weight"];
    let vb = lacking(names, DType::F32, device);
    let found = modernbert::ModernBert::load(vb, &cfg)?;
    let found = found.forward(&ids, &ids.ones_like()?)?;
    let change = (found - global)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(change > 1e-2, "{change}");
    // `gamma` is its old name.
    let names: &[&str] = &["layers.1.attn_norm.weight", "layers.1.attn_norm.gamma"];
    let vb = lacking(names, DType::F32, device);
    assert_error(
        modernbert::ModernBert::load(vb, &cfg),
        &["layers.1.attn_norm"],
    );

    let model = modernbert::ModernBertForMaskedLM::load(weights(DType::F32, device), &cfg)?;
    let logits = model.forward(&ids, &ids.ones_like()?)?;
    assert_eq!(logits.dims(), &[2, 12, VOCAB]);
    Ok(())
}
test_device!(modernbert_windows);

fn pooling(device: &Device) -> Result<()> {
    let hidden = [
        [[1f32, 2.], [3., 6.], [100., 100.]],
        [[3., 4.], [9., 9.], [9., 9.]],
    ];
    let hidden = Tensor::new(&hidden, device)?;
    let mask = Tensor::new(&[[1u32, 1, 0], [1, 0, 0]], device)?;
    let means = nomic_bert::mean_pooling(&hidden, &mask)?;
    assert_close(&means, &Tensor::new(&[[2f32, 4.], [3., 4.]], device)?, 1e-6);
    let unit = nomic_bert::l2_normalize(&means)?;
    let root = 20f32.sqrt();
    let expected = Tensor::new(&[[2. / root, 4. / root], [0.6, 0.8]], device)?;
    assert_close(&unit, &expected, 1e-6);
    // Sums of 16-bit floats would overflow.
    let large = (hidden.ones_like()? * 30000.)?.to_dtype(DType::F16)?;
    let means = nomic_bert::mean_pooling(&large, &mask.ones_like()?)?;
    let expected = (Tensor::ones((2, 2), DType::F32, device)? * 30000.)?;
    assert_close(&means, &expected, 1e-3);
    let unit = nomic_bert::l2_normalize(&means)?;
    let expected = (Tensor::ones((2, 2), DType::F32, device)? * 0.5f64.sqrt())?;
    assert_close(&unit, &expected, 1e-3);
    assert_error(
        nomic_bert::mean_pooling(&hidden, &mask.narrow(1, 0, 2)?),
        &["attention_mask is [2, 2]", "(2, 3)"],
    );
    Ok(())
}
test_device!(pooling);

/// ALiBi is the same to both sides: a text and its mirror image give mirrored vectors. A shift of the text changes nothing either.
fn jina_is_symmetric(device: &Device) -> Result<()> {
    let model = jina_bert::BertModel::new(weights(DType::F32, device), &config(&jina_json())?)?;
    let (ids, _) = texts([9, 9], device)?;
    let ids = ids.narrow(0, 0, 1)?;
    let order = Tensor::from_iter((0..9u32).rev(), device)?;
    let mirrored = ids.index_select(&order, 1)?;
    let expected = model.forward(&ids)?;
    let found = model.forward(&mirrored)?.index_select(&order, 1)?;
    assert_close(&found, &expected, F32_TOLERANCE);
    // Distance counts: two tokens of one kind differ by their places.
    let pair = Tensor::new(&[[5u32, 9, 9, 9, 7, 9]], device)?;
    let found = model.forward(&pair)?;
    let change = (found.narrow(1, 1, 1)? - found.narrow(1, 3, 1)?)?;
    let change = change.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(change > 1e-3, "{change}");
    Ok(())
}
test_device!(jina_is_symmetric);

/// Scores of one head, sum by sum, from the formula of the paper.
fn deberta_by_hand(device: &Device) -> Result<()> {
    const T: usize = 6;
    const DIM: usize = 8;
    let json = with(
        deberta_json(),
        json!({"hidden_size": DIM, "num_attention_heads": 1, "share_att_key": false, "position_buckets": 4,
            "max_relative_positions": 8}),
    );
    let cfg: debertav2::Config = config(&json)?;
    let vb = weights(DType::F32, device);
    let attention = debertav2::DebertaV2DisentangledSelfAttention::load(vb.clone(), &cfg)?;
    let xs = Numbers::new(5).tensor(&[1, T, DIM], 1., device)?;
    let rel = Numbers::new(6).tensor(&[8, DIM], 1., device)?;
    let mask: Vec<u32> = (0..T * T)
        .map(|i| u32::from(i % T != 4 && i / T != 4))
        .collect();
    let mask = Tensor::from_vec(mask, (1, 1, T, T), device)?;
    let found = attention.forward(&xs, &mask, None, None, Some(&rel))?;

    let project = |name: &str, xs: &Tensor| -> Result<Vec<Vec<f32>>> {
        let vb = vb.pp(name);
        let linear = Linear::new(vb.get((DIM, DIM), "weight")?, Some(vb.get(DIM, "bias")?));
        linear.forward(xs)?.to_vec2()
    };
    let tokens = xs.squeeze(0)?;
    let (q, k, v) = (
        project("query_proj", &tokens)?,
        project("key_proj", &tokens)?,
        project("value_proj", &tokens)?,
    );
    let (pos_k, pos_q) = (
        project("pos_key_proj", &rel)?,
        project("pos_query_proj", &rel)?,
    );
    let dot = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    // Two buckets to each side are distances, the rest is logarithmic: 3 to 7 are ceil(ln(d / 2) / ln(7 / 2)) + 2 = 3.
    let number = |d: i64| d.signum() * d.abs().min(3);
    let row = |d: i64| (number(d) + 4).clamp(0, 7) as usize;
    let mut expected = Vec::new();
    for (i, q) in q.iter().enumerate() {
        let score = |j: usize| {
            let (ahead, back) = (row(i as i64 - j as i64), row(i as i64 - j as i64));
            let sum = dot(q, &k[j]) + dot(q, &pos_k[ahead]) + dot(&k[j], &pos_q[back]);
            sum / ((3 * DIM) as f32).sqrt()
        };
        let weight = |j: usize| if i == 4 || j == 4 { 0. } else { score(j).exp() };
        let sum: f32 = (0..T).map(weight).sum();
        let values = (0..DIM).map(|c| (0..T).map(|j| weight(j) * v[j][c]).sum::<f32>());
        expected.extend(values.map(|value| if sum == 0. { 0. } else { value / sum }));
    }
    let expected = Tensor::from_vec(expected, (1, T, DIM), &Device::Cpu)?;
    assert_close(&found, &expected, F32_TOLERANCE);

    // Numbers of the distances from outside.
    let numbers = (0..T * T).map(|i| number((i / T) as i64 - (i % T) as i64));
    let numbers = Tensor::from_iter(numbers, &Device::Cpu)?.reshape((1, T, T))?;
    let given = attention.forward(
        &xs,
        &mask,
        None,
        Some(&numbers.to_dtype(DType::F32)?.to_device(device)?),
        Some(&rel),
    )?;
    assert_close(&given, &found, 0.);
    let narrow = numbers.narrow(2, 0, 2)?;
    assert_error(
        attention.forward(&xs, &mask, None, Some(&narrow), Some(&rel)),
        &["relative_pos is [1, 6, 2]"],
    );
    // Queries that are given are what attends.
    let same = attention.forward(&xs, &mask, Some(&xs), None, Some(&rel))?;
    assert_close(&same, &found, 1e-6);
    Ok(())
}
test_device!(deberta_by_hand);

/// A convolution one token wide is a linear layer.
fn deberta_convolution(device: &Device) -> Result<()> {
    let vb = weights(DType::F32, device);
    let cfg = config(&with(deberta_json(), json!({"conv_kernel_size": 1})))?;
    let conv = debertav2::ConvLayer::load(vb.clone(), &cfg)?;
    let xs = Numbers::new(5).tensor(&[2, 7, HIDDEN], 1., device)?;
    let before = Numbers::new(6).tensor(&[2, 7, HIDDEN], 1., device)?;
    let (_, mask) = texts([7, 4], device)?;
    let found = conv.forward(&xs, &before, &mask)?;

    let weight = vb.get((HIDDEN, HIDDEN, 1), "conv.weight")?.squeeze(2)?;
    let linear = Linear::new(weight, Some(vb.get(HIDDEN, "conv.bias")?));
    let norm = LayerNorm::new(
        vb.get(HIDDEN, "LayerNorm.weight")?,
        vb.get(HIDDEN, "LayerNorm.bias")?,
        1e-7,
    );
    let seen = mask.to_dtype(DType::F32)?.unsqueeze(2)?;
    let sum = (before + linear.forward(&xs)?.tanh()?)?;
    let expected = norm.forward(&sum)?.broadcast_mul(&seen)?;
    assert_close(&found, &expected, F32_TOLERANCE);
    Ok(())
}
test_device!(deberta_convolution);

#[test]
fn deberta_embeddings_of_vectors() -> Result<()> {
    let device = Device::Cpu;
    let vb = weights(DType::F32, &device);
    let json = with(
        deberta_json(),
        json!({"position_biased_input": true, "type_vocab_size": 2}),
    );
    let embeddings = debertav2::DebertaV2Embeddings::load(vb.clone(), &config(&json)?)?;
    let (ids, mask) = texts([7, 4], &device)?;
    let expected = embeddings.forward(Some(&ids), None, None, Some(&mask), None)?;
    let table = vb.get((VOCAB, HIDDEN), "word_embeddings.weight")?;
    let vectors = table
        .index_select(&ids.flatten_all()?, 0)?
        .reshape((2, 7, HIDDEN))?;
    let places = Tensor::arange(0u32, 7, &device)?.unsqueeze(0)?;
    let wide = mask.reshape((2, 1, 1, 7))?;
    let found = embeddings.forward(
        None,
        Some(&ids.zeros_like()?),
        Some(&places),
        Some(&wide),
        Some(&vectors),
    )?;
    assert_close(&found, &expected, 0.);
    assert_error(
        embeddings.forward(None, None, None, None, None),
        &["neither input_ids nor inputs_embeds"],
    );
    assert_error(
        embeddings.forward(Some(&ids), None, None, None, Some(&vectors)),
        &["both input_ids and inputs_embeds"],
    );
    Ok(())
}

/// Names below the prefix of a model with a head.
#[test]
fn prefixes_of_checkpoints() -> Result<()> {
    struct Below(&'static str);
    impl SimpleBackend for Below {
        fn get(&self, s: Shape, name: &str, i: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
            match name.strip_prefix(self.0) {
                Some(name) => Made(&[]).get(s, name, i, dtype, dev),
                None => bail!("there is no {name}"),
            }
        }
        fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
            bail!("{name} is requested without a shape")
        }
        fn contains_tensor(&self, name: &str) -> bool {
            name.starts_with(self.0)
        }
    }
    let (ids, mask) = texts([7, 4], &Device::Cpu)?;
    let prefixes = [("distilbert", "distilbert."), ("nomic_bert", "nomic_bert.")];
    for (name, prefix) in prefixes {
        let encoder = ENCODERS.iter().find(|encoder| encoder.name == name);
        let encoder = encoder.expect("a model of that name");
        let json = with((encoder.json)(), json!({"model_type": name}));
        let load = |backend: Box<dyn SimpleBackend>, json: &Value| {
            let vb = VarBuilder::from_backend(backend, DType::F32, Device::Cpu);
            (encoder.load)(json, vb)
        };
        let expected = load(Box::new(Made(&[])), &json)?(&ids, &mask)?;
        let found = load(Box::new(Below(prefix)), &json)?(&ids, &mask)?;
        assert_close(&found, &expected, 0.);
        let unnamed = with(json, json!({"model_type": null}));
        assert_error(load(Box::new(Below(prefix)), &unnamed), &["there is no "]);
    }
    Ok(())
}
