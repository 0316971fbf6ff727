//! Encoders by their `config.json`: a text's vector is what it is alone, and files that do not fit are told apart.

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_transformers::embed::{
    model_types, unit, DenseSpec, EncoderConfig, Options, Pooling, Recipe, TextEncoder,
};
use serde_json::{json, Value};
use std::collections::HashMap;

use super::encoders::{
    deberta_json, distilbert_json, jina_json, lacking, modernbert_json, nomic_json, with,
    xlm_roberta_json, HIDDEN, LIMIT, VOCAB,
};
use super::support::{assert_close, runs_fewer};

fn bert_json() -> Value {
    json!({"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": LIMIT})
}

fn decoder_json() -> Value {
    json!({"vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LIMIT})
}

fn nvembed_json() -> Value {
    let latent = json!({"num_latents_value": 6, "num_cross_heads": 2, "latent_dim_head": 16});
    with(
        json!({"text_config": decoder_json()}),
        json!({ "latent_attention_config": latent }),
    )
}

/// With a window of two tokens to either side in the first layer.
fn embedding_gemma_json() -> Value {
    with(
        decoder_json(),
        json!({"head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"],
            "use_bidirectional_attention": true}),
    )
}

/// A `config.json` of each family.
fn families() -> Vec<(&'static str, Value)> {
    let typed = |name, json| (name, with(json, json!({ "model_type": name })));
    vec![
        typed("bert", bert_json()),
        typed("distilbert", distilbert_json()),
        typed("roberta", xlm_roberta_json()),
        typed("xlm-roberta", xlm_roberta_json()),
        typed("modernbert", modernbert_json()),
        typed("nomic_bert", nomic_json()),
        typed("jina_bert", jina_json()),
        typed(
            "jina_embeddings_v3",
            with(
                bert_json(),
                json!({"type_vocab_size": 1, "pad_token_id": 1}),
            ),
        ),
        typed("deberta-v2", deberta_json()),
        typed("nvembed", nvembed_json()),
        typed("eurobert", with(decoder_json(), json!({"pad_token_id": 0}))),
        typed("gemma3_text", embedding_gemma_json()),
        typed("mistral", decoder_json()),
        typed("qwen2", decoder_json()),
        typed("qwen3", with(decoder_json(), json!({"head_dim": 8}))),
    ]
}

fn parse(json: &Value) -> Result<EncoderConfig> {
    EncoderConfig::parse(&json.to_string())
}

fn encoder(json: &Value, device: &Device) -> Result<TextEncoder> {
    // Weights that JinaBERT has in models for code alone.
    let weights = lacking(&["layer_norm_q.weight"], DType::F32, device);
    parse(json)?.load(weights)
}

fn texts() -> Vec<Vec<u32>> {
    let lens = [5usize, 1, 17, 2, 9, 17, 3];
    let text = |(k, len): (usize, &usize)| {
        (0..*len).map(move |i| ((7 * k + 11 * i) % (VOCAB - 2) + 2) as u32)
    };
    lens.iter()
        .enumerate()
        .map(|it| text(it).collect())
        .collect()
}

#[test]
fn each_family_is_listed_and_tested() {
    let tested: Vec<_> = families().iter().map(|(name, _)| *name).collect();
    assert_eq!(model_types(), tested);
}

fn vectors_do_not_depend_on_their_batch(device: &Device) -> Result<()> {
    let texts = texts();
    for (name, json) in families() {
        let encoder = encoder(&json, device)?;
        assert_eq!(encoder.config().model_type, name);
        assert_eq!(
            (encoder.config().size, encoder.config().max_tokens),
            (HIDDEN, LIMIT)
        );
        let poolings = [Pooling::Mean, Pooling::Cls, Pooling::Last];
        let poolings = if runs_fewer(device) {
            &poolings[..1]
        } else {
            &poolings
        };
        for &pooling in poolings {
            let options = Options {
                pooling,
                ..Options::default()
            };
            let all = encoder.embed(&texts, &options)?;
            assert_eq!(
                (all.dims(), all.dtype()),
                (&[texts.len(), HIDDEN][..], DType::F32)
            );
            let few = Options {
                batch: 3,
                ..options.clone()
            };
            assert_close(&encoder.embed(&texts, &few)?, &all, 1e-5);
            for (i, text) in texts.iter().enumerate() {
                let alone = encoder.embed(std::slice::from_ref(text), &options)?;
                assert_close(&all.narrow(0, i, 1)?, &alone, 1e-5);
            }
            // Different texts have different vectors.
            let [first, second] = [0, 4].map(|i| all.narrow(0, i, 1));
            let off = (first? - second?)?.abs()?.max_all()?.to_scalar::<f32>()?;
            assert!(off > 1e-3, "{name}: {off}");
        }
    }
    Ok(())
}
test_device!(vectors_do_not_depend_on_their_batch);

/// What pooling makes of the tokens' vectors, computed on the host.
fn pooling_is_what_it_is_called(device: &Device) -> Result<()> {
    let encoder = encoder(&families()[0].1, device)?;
    let text: Vec<u32> = vec![4, 9, 33, 2, 7];
    let ids = Tensor::new(&text[..], device)?.unsqueeze(0)?;
    let tokens = encoder.forward(&ids, &ids.ones_like()?)?.squeeze(0)?;
    let tokens = tokens.to_vec2::<f32>()?;
    let mean = (0..HIDDEN).map(|i| tokens.iter().map(|token| token[i]).sum::<f32>() / 5.);
    let mean: Vec<f32> = mean.collect();
    for (pooling, wanted) in [
        (Pooling::Mean, &mean),
        (Pooling::Cls, &tokens[0]),
        (Pooling::Last, &tokens[4]),
    ] {
        let options = Options {
            pooling,
            ..Options::default()
        };
        let found = encoder.embed(&[&text[..], &[3, 4, 5, 6, 7, 8, 9]], &options)?;
        let wanted = Tensor::new(&wanted[..], device)?;
        assert_close(&found.get(0)?, &wanted, 1e-5);
        let normalize = Options {
            normalize: true,
            ..options.clone()
        };
        let found = encoder.embed(&[&text[..]], &normalize)?.get(0)?;
        assert_close(&found, &unit(&wanted)?, 1e-5);
        // The cut comes first.
        let dim = Options {
            dim: Some(6),
            ..normalize
        };
        let found = encoder.embed(&[&text[..]], &dim)?.get(0)?;
        assert_close(&found, &unit(&wanted.narrow(0, 0, 6)?)?, 1e-5);
    }
    Ok(())
}
test_device!(pooling_is_what_it_is_called);

/// The layers come before the cut.
fn layers_follow_the_pooling(device: &Device) -> Result<()> {
    let encoder = || encoder(&families()[0].1, device);
    let text: &[u32] = &[4, 9, 33, 2, 7];
    let pooled = encoder()?.embed(&[text], &Options::default())?;
    let spec = |in_features, out_features, tanh| DenseSpec {
        folder: "2_Dense".to_string(),
        in_features,
        out_features,
        bias: tanh,
        tanh,
    };
    let vb = lacking(&[], DType::F32, device);
    let [first, second] = [spec(HIDDEN, 48, true), spec(48, 7, false)];
    let weights = |name, shape: &[usize]| vb.get(shape, &format!("linear.{name}"));
    let inner = pooled.matmul(&weights("weight", &[48, HIDDEN])?.t()?)?;
    let inner = inner.broadcast_add(&weights("bias", &[48])?)?.tanh()?;
    let wanted = inner.matmul(&weights("weight", &[7, 48])?.t()?)?;
    let with_first = encoder()?.with_dense(first.load(vb.clone())?)?;
    let both = with_first.with_dense(second.load(vb.clone())?)?;
    assert_eq!(both.config().size, 7);
    let options = Options {
        dim: Some(5),
        normalize: true,
        ..Options::default()
    };
    let found = both.embed(&[text], &options)?;
    assert_close(&found, &unit(&wanted.narrow(1, 0, 5)?)?, 1e-5);
    let err = encoder()?.with_dense(second.load(vb)?).err().unwrap();
    assert!(err.to_string().contains("expects vectors of 48"), "{err}");
    Ok(())
}
test_device!(layers_follow_the_pooling);

#[test]
fn a_vector_of_zeros_has_no_direction() -> Result<()> {
    let zeros = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    assert_close(&unit(&zeros)?, &zeros, 0.);
    Ok(())
}

/// Checkpoints of models with a head have the model below a prefix, those of ModernBERT without one do not.
#[test]
fn weights_are_found_with_and_without_their_prefix() -> Result<()> {
    let cpu = &Device::Cpu;
    let texts = texts();
    for (name, prefix) in [
        ("bert", "bert"),
        ("distilbert", "distilbert"),
        ("roberta", "roberta"),
        ("xlm-roberta", "roberta"),
        ("nomic_bert", "nomic_bert"),
        ("jina_embeddings_v3", "roberta"),
        ("deberta-v2", "deberta"),
        ("modernbert", "model"),
        ("eurobert", "model"),
        ("gemma3_text", "model"),
        ("qwen3", "model"),
    ] {
        let json = families()
            .into_iter()
            .find(|(family, _)| *family == name)
            .unwrap()
            .1;
        // What the model asks for, once its weights have been made.
        let asked = candle_nn::VarMap::new();
        let vb = candle_nn::VarBuilder::from_varmap(&asked, DType::F32, cpu);
        let wanted = parse(&json)?.load(vb)?.embed(&texts, &Options::default())?;
        let asked = asked.data().lock().unwrap();
        let tensor =
            |name: &str, var: &candle_core::Var| (name.to_string(), var.as_tensor().clone());
        let moved: HashMap<_, _> = asked
            .iter()
            .map(|(at, var)| match at.strip_prefix(&format!("{prefix}.")) {
                Some(bare) => tensor(bare, var),
                None => tensor(&format!("{prefix}.{at}"), var),
            })
            .collect();
        let vb = candle_nn::VarBuilder::from_tensors(moved, DType::F32, cpu);
        let found = parse(&json)?.load(vb)?.embed(&texts, &Options::default())?;
        assert_close(&found, &wanted, 1e-6);
    }
    Ok(())
}

#[test]
fn a_model_is_known_by_what_its_file_says() -> Result<()> {
    let named = |json: Value| parse(&json).map(|config| config.model_type);
    let bert = |fields| with(bert_json(), fields);
    assert_eq!(
        named(bert(json!({"architectures": ["BertForMaskedLM"]})))?,
        "bert"
    );
    // JinaBERT's own files.
    let jina = json!({"model_type": "bert", "position_embedding_type": "alibi", "architectures": ["JinaBertForMaskedLM"]});
    assert_eq!(named(bert(jina))?, "jina_bert");
    assert_eq!(
        named(with(
            nomic_json(),
            json!({"architectures": ["NomicBertModel"]})
        ))?,
        "nomic_bert"
    );
    let roberta = json!({"architectures": ["XLMRobertaForSequenceClassification"]});
    assert_eq!(named(with(xlm_roberta_json(), roberta))?, "xlm-roberta");
    let fifth = json!({"model_type": "modernbert", "global_rope_theta": null, "local_rope_theta": null, "rope_parameters":
        {"full_attention": {"rope_theta": 1234.0}, "sliding_attention": {"rope_theta": 55.0}}});
    assert_eq!(named(with(modernbert_json(), fifth))?, "modernbert");
    Ok(())
}

#[test]
fn what_is_no_encoder_is_refused() {
    let problem = |json: Value| parse(&json).unwrap_err().to_string();
    for (json, causal) in [(decoder_json(), true), (embedding_gemma_json(), false)] {
        let json = with(json, json!({"model_type": "gemma3_text"}));
        assert_eq!(parse(&json).unwrap().causal, causal);
        // Text is written by those alone whose tokens do not see what follows.
        let written = candle_transformers::auto::config_spec(&json.to_string());
        assert_eq!(written.is_ok(), causal);
    }
    let llama = problem(json!({"model_type": "llama"}));
    assert!(
        llama.contains("text generation") && llama.contains("modernbert"),
        "{llama}"
    );
    let other = problem(json!({"model_type": "t5"}));
    assert!(
        other.contains("t5") && model_types().iter().all(|name| other.contains(name)),
        "{other}"
    );
    let none = problem(json!({}));
    assert!(
        none.contains("no model_type") && none.contains("distilbert"),
        "{none}"
    );
    let unnamed = problem(json!({"architectures": ["LlamaForCausalLM"]}));
    assert!(unnamed.contains("LlamaForCausalLM"), "{unnamed}");
    let missing = problem(json!({"model_type": "bert"}));
    assert!(missing.contains("vocab_size"), "{missing}");
    let typed = |json, fields| problem(with(json, fields));
    let bias = typed(
        modernbert_json(),
        json!({"model_type": "modernbert", "mlp_bias": true}),
    );
    assert!(bias.contains("mlp_bias"), "{bias}");
    let moe = typed(
        nomic_json(),
        json!({"model_type": "nomic_bert", "num_experts": 8}),
    );
    assert!(moe.contains("num_experts"), "{moe}");
    let decoder = typed(
        bert_json(),
        json!({"model_type": "bert", "is_decoder": true}),
    );
    assert!(decoder.contains("is_decoder"), "{decoder}");
    let rotary = typed(
        xlm_roberta_json(),
        json!({"model_type": "xlm-roberta", "position_embedding_type": "rotary"}),
    );
    assert!(rotary.contains("jina-embeddings-v3-hf"), "{rotary}");
    assert!(EncoderConfig::parse("[]").is_err());
}

/// Queries and keys with norms, as JinaBERT's models for code have them, are weights that the model would pass over.
#[test]
fn weights_that_would_be_passed_over_are_refused() {
    let json = with(jina_json(), json!({"model_type": "jina_bert"}));
    let config = parse(&json).unwrap();
    let Err(err) = config.load(lacking(&[], DType::F32, &Device::Cpu)) else {
        panic!("all weights are there, also those")
    };
    assert!(err.to_string().contains("norms queries"), "{err}");
}

#[test]
fn texts_that_do_not_fit_are_errors() -> Result<()> {
    let encoder = encoder(&families()[0].1, &Device::Cpu)?;
    let problem = |texts: &[Vec<u32>], options: &Options| {
        encoder.embed(texts, options).unwrap_err().to_string()
    };
    let plain = Options::default();
    assert!(problem(&[], &plain).contains("no texts"));
    let empty = problem(&[vec![3], vec![]], &plain);
    assert!(
        empty.contains("text 2") && empty.contains("no tokens"),
        "{empty}"
    );
    let long = problem(&[vec![3; LIMIT + 1]], &plain);
    assert!(
        long.contains("41 tokens") && long.contains("limit is 40"),
        "{long}"
    );
    let strange = problem(&[vec![VOCAB as u32]], &plain);
    assert!(strange.contains("token 61"), "{strange}");
    for dim in [0, HIDDEN + 1] {
        let dim = problem(
            &[vec![3]],
            &Options {
                dim: Some(dim),
                ..plain.clone()
            },
        );
        assert!(dim.contains("1 to 32"), "{dim}");
    }
    let none = problem(
        &[vec![3]],
        &Options {
            batch: 0,
            ..plain.clone()
        },
    );
    assert!(none.contains("batch"), "{none}");
    // The longest that fits.
    encoder.embed(&[vec![3; LIMIT]], &plain)?;
    Ok(())
}

fn recipe(files: &[(&str, Value)], pooling: Option<Pooling>) -> Result<Recipe> {
    let files: HashMap<&str, String> = files
        .iter()
        .map(|(name, json)| (*name, json.to_string()))
        .collect();
    Recipe::read(&mut |name| Ok(files.get(name).cloned()), pooling)
}

fn modules(kinds: &[(&str, &str)]) -> (&'static str, Value) {
    let modules = kinds.iter().enumerate().map(|(i, (kind, path))| {
        json!({"idx": i, "name": i.to_string(), "path": path, "type": format!("sentence_transformers.models.{kind}")})
    });
    ("modules.json", Value::Array(modules.collect()))
}

fn switch(on: &[&str]) -> Value {
    let modes = ["cls_token", "mean_tokens", "max_tokens", "lasttoken"];
    let fields = modes.map(|mode| (format!("pooling_mode_{mode}"), json!(on.contains(&mode))));
    Value::Object(fields.into_iter().collect())
}

#[test]
fn the_files_of_sentence_transformers_are_followed() -> Result<()> {
    const POOLING: &str = "1_Pooling/config.json";
    assert_eq!(recipe(&[], None)?, Recipe::default());
    let of_three = modules(&[
        ("Transformer", ""),
        ("Pooling", "1_Pooling"),
        ("Normalize", "2_Normalize"),
    ]);
    let files = [
        of_three.clone(),
        (POOLING, switch(&["cls_token"])),
        (
            "sentence_bert_config.json",
            json!({"max_seq_length": 256, "do_lower_case": true}),
        ),
        ("tokenizer_config.json", json!({"model_max_length": 512})),
    ];
    let found = recipe(&files, None)?;
    assert_eq!(
        found,
        Recipe {
            pooling: Pooling::Cls,
            normalize: true,
            max_tokens: Some(256),
            lowercase: true,
            include_prefix: true,
            dense: Vec::new(),
        }
    );
    // What the caller wants counts more, also in place of a pooling that is not supported.
    assert_eq!(recipe(&files, Some(Pooling::Last))?.pooling, Pooling::Last);
    let max = [of_three.clone(), (POOLING, switch(&["max_tokens"]))];
    assert_eq!(recipe(&max, Some(Pooling::Mean))?.pooling, Pooling::Mean);
    let err = recipe(&max, None).unwrap_err().to_string();
    assert!(err.contains("max_tokens") && err.contains(POOLING), "{err}");
    // Another folder, newer names, a limit that is none.
    let files = [
        modules(&[("Transformer", ""), ("Pooling", "pool")]),
        (
            "pool/config.json",
            json!({"pooling_mode": "lasttoken", "include_prompt": false}),
        ),
        ("tokenizer_config.json", json!({"model_max_length": 1e30})),
    ];
    let found = recipe(&files, None)?;
    assert_eq!((found.pooling, found.max_tokens), (Pooling::Last, None));
    assert!(!found.normalize && !found.include_prefix);
    let tokenizer = [("tokenizer_config.json", json!({"model_max_length": 512}))];
    assert_eq!(recipe(&tokenizer, None)?.max_tokens, Some(512));

    let dense = modules(&[("Transformer", ""), ("Dense", "2_Dense")]);
    let layer = |fields| {
        let sizes = json!({"in_features": 8, "out_features": 5});
        ("2_Dense/config.json", with(sizes, fields))
    };
    for (fields, bias, tanh) in [
        (json!({}), true, true),
        (
            json!({"bias": false, "activation_function": "torch.nn.modules.linear.Identity"}),
            false,
            false,
        ),
    ] {
        let found = recipe(&[dense.clone(), layer(fields)], None)?.dense;
        let (folder, in_features, out_features) = ("2_Dense".to_string(), 8, 5);
        let wanted = DenseSpec {
            folder,
            in_features,
            out_features,
            bias,
            tanh,
        };
        assert_eq!(found, [wanted]);
    }

    for (files, part) in [
        (vec![dense.clone()], "2_Dense/config.json"),
        (
            vec![
                dense,
                layer(json!({"activation_function": "torch.nn.modules.activation.ReLU"})),
            ],
            "ReLU",
        ),
        (
            vec![modules(&[("WeightedLayerPooling", "1")])],
            "WeightedLayerPooling",
        ),
        (
            vec![modules(&[("Pooling", "../elsewhere")])],
            "../elsewhere",
        ),
        (vec![of_three.clone(), (POOLING, switch(&[]))], "no pooling"),
        (
            vec![of_three, (POOLING, switch(&["cls_token", "mean_tokens"]))],
            "and",
        ),
        (vec![("modules.json", json!({}))], "modules.json"),
        (
            vec![("sentence_bert_config.json", json!({"max_seq_length": 0}))],
            "max_seq_length",
        ),
    ] {
        let err = recipe(&files, None).unwrap_err().to_string();
        assert!(err.contains(part), "{part}: {err}");
    }
    Ok(())
}
