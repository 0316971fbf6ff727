//! Rerankers by their `config.json`: a pair's score is what it is alone, and files that do not fit are refused. `transformers.rs` compares
//! them with Transformers.

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_transformers::rerank::{
    model_types, Answers, Options, Pair, Recipe, Reranker, RerankerConfig, Scale,
};
use serde_json::{json, Value};

use super::encoders::{lacking, with, HIDDEN, LIMIT, VOCAB};
use super::support::assert_close;

fn bert_json() -> Value {
    json!({"model_type": "bert", "architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"},
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
        "max_position_embeddings": LIMIT})
}

fn qwen3_json() -> Value {
    with(
        bert_json(),
        json!({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 2,
            "tie_word_embeddings": true}),
    )
}

fn parse(json: &Value) -> Result<RerankerConfig> {
    RerankerConfig::parse(&json.to_string())
}

fn reranker(device: &Device) -> Result<Reranker> {
    parse(&bert_json())?.load(lacking(&[], DType::F32, device))
}

/// A query of `query` tokens and a document of `document`.
fn pair(query: usize, document: usize) -> Pair {
    let len = query + document;
    Pair {
        ids: (0..len)
            .map(|i| ((7 * len + 11 * i) % VOCAB) as u32)
            .collect(),
        types: (0..len).map(|i| u32::from(i >= query)).collect(),
    }
}

fn differ(a: f32, b: f32) -> bool {
    (a - b).abs() > 1e-3
}

fn scores_do_not_depend_on_their_batch(device: &Device) -> Result<()> {
    let pairs = [pair(3, 2), pair(3, 30), pair(1, 0), pair(9, 8), pair(3, 14)];
    for json in [bert_json(), qwen3_json()] {
        let config = parse(&json)?.with_answers(Answers { yes: 5, no: 9 });
        let reranker = config.load(lacking(&[], DType::F32, device))?;
        let logits = Options {
            scale: Scale::Identity,
            ..Options::default()
        };
        let all = reranker.scores(&pairs, &logits)?;
        assert_eq!((all.dims(), all.dtype()), (&[pairs.len()][..], DType::F32));
        let few = Options { batch: 2, ..logits };
        assert_close(&reranker.scores(&pairs, &few)?, &all, 1e-5);
        for (i, pair) in pairs.iter().enumerate() {
            let alone = reranker.scores(std::slice::from_ref(pair), &few)?;
            assert_close(&alone, &all.narrow(0, i, 1)?, 1e-5);
        }
        let values = all.to_vec1::<f32>()?;
        assert!(differ(values[0], values[1]), "{values:?}");
    }
    Ok(())
}
test_device!(scores_do_not_depend_on_their_batch);

fn segments_and_scales_count(device: &Device) -> Result<()> {
    let reranker = reranker(device)?;
    let pairs = [pair(3, 2), pair(9, 8)];
    let logits = Options {
        scale: Scale::Identity,
        ..Options::default()
    };
    let values = reranker.scores(&pairs, &logits)?.to_vec1::<f32>()?;
    // The segments count, and a score is the sigmoid unless the logit is requested.
    let mut other = pairs[1].clone();
    other.types.fill(0);
    let other = reranker.scores(&[other], &logits)?.to_vec1::<f32>()?;
    assert!(differ(values[1], other[0]), "{values:?} {other:?}");
    let wanted: Vec<f32> = values.iter().map(|x| 1. / (1. + (-x).exp())).collect();
    let scores = reranker.scores(&pairs, &Options::default())?;
    assert_close(&scores, &Tensor::new(wanted, device)?, 1e-5);
    Ok(())
}
test_device!(segments_and_scales_count);

#[test]
fn other_models_are_refused() {
    let problem = |fields: Value| {
        let err = parse(&with(bert_json(), fields)).unwrap_err();
        err.to_string()
    };
    let none = problem(json!({"architectures": ["BertModel"]}));
    assert!(
        none.contains("BertModel") && model_types().iter().all(|name| none.contains(name)),
        "{none}"
    );
    assert!(problem(json!({"architectures": null})).contains("architectures: []"));
    let three = problem(json!({"id2label": {"0": "no", "1": "yes", "2": "maybe"}}));
    assert!(three.contains("id2label: found 3 labels"), "{three}");
    let unsaid = problem(json!({"id2label": null}));
    assert!(unsaid.contains("found 2 labels"), "{unsaid}");
    let strange = problem(json!({"model_type": "t5"}));
    assert!(
        strange.contains("\"t5\"") && strange.contains("modernbert"),
        "{strange}"
    );
    let qwen = problem(
        json!({"model_type": "qwen3", "architectures": ["Qwen3ForSequenceClassification"]}),
    );
    assert!(
        qwen.contains("Qwen3ForSequenceClassification")
            && qwen.contains("qwen3 as Qwen3ForCausalLM"),
        "{qwen}"
    );
    // It makes vectors, but its head is not known.
    let alibi = problem(json!({"position_embedding_type": "alibi"}));
    assert!(alibi.contains("jina_bert"), "{alibi}");
    let missing = problem(json!({"vocab_size": null}));
    assert!(missing.contains("vocab_size"), "{missing}");
    let modern =
        json!({"model_type": "modernbert", "classifier_pooling": "max", "local_attention": 4});
    let pooling = problem(modern);
    assert!(pooling.contains("classifier_pooling: \"max\""), "{pooling}");
    assert!(parse(&with(
        bert_json(),
        json!({"id2label": null, "num_labels": 1})
    ))
    .is_ok());
    assert!(RerankerConfig::parse("[]").is_err());
    let qwen = parse(&qwen3_json()).unwrap();
    assert!(qwen.answers());
    let load = |config: RerankerConfig| {
        let loaded = config.load(lacking(&[], DType::F32, &Device::Cpu));
        loaded.err().unwrap().to_string()
    };
    assert!(load(qwen.clone()).contains("with_answers"));
    let outside = load(qwen.with_answers(Answers { yes: 3, no: 99 }));
    assert!(outside.contains("no is token 99"), "{outside}");
    let headless = lacking(&["classifier.weight"], DType::F32, &Device::Cpu);
    let Err(err) = parse(&bert_json()).unwrap().load(headless) else {
        panic!("it has no last layer")
    };
    assert!(err.to_string().contains("classifier.weight"), "{err}");
}

#[test]
fn pairs_that_do_not_fit_are_errors() -> Result<()> {
    let reranker = reranker(&Device::Cpu)?;
    let plain = Options::default();
    let problem = |pairs: &[Pair], options: &Options| {
        let err = reranker.scores(pairs, options).unwrap_err();
        err.to_string()
    };
    assert!(problem(&[], &plain).contains("no pairs"));
    let empty = problem(&[pair(1, 1), Pair::default()], &plain);
    assert!(empty.contains("pair 2 has no tokens"), "{empty}");
    let long = problem(&[pair(3, LIMIT - 2)], &plain);
    assert!(
        long.contains("41 tokens") && long.contains("limit is 40"),
        "{long}"
    );
    let mut strange = pair(2, 2);
    strange.ids[3] = VOCAB as u32;
    let strange = problem(&[strange], &plain);
    assert!(strange.contains("token 61"), "{strange}");
    let mut short = pair(2, 2);
    short.types.pop();
    let short = problem(&[short], &plain);
    assert!(short.contains("segments for 3"), "{short}");
    let none = Options { batch: 0, ..plain };
    assert!(problem(&[pair(1, 1)], &none).contains("batch of 0"));
    Ok(())
}

#[test]
fn the_files_of_sentence_transformers_are_followed() -> Result<()> {
    let read = |files: &[(&str, Value)]| {
        let find = |name: &str| files.iter().find(|(known, _)| *known == name);
        Recipe::read(&mut |name| Ok(find(name).map(|(_, json)| json.to_string())))
    };
    assert_eq!(read(&[])?, Recipe::default());
    assert_eq!(Recipe::default().scale, Scale::Sigmoid);
    let identity = "torch.nn.modules.linear.Identity";
    let sigmoid = "torch.nn.modules.activation.Sigmoid";
    let newest = |name| {
        (
            "config_sentence_transformers.json",
            json!({ "activation_fn": name }),
        )
    };
    let newer = |name| {
        (
            "config.json",
            json!({"sentence_transformers": {"activation_fn": name}}),
        )
    };
    let old = (
        "config.json",
        json!({"sbert_ce_default_activation_function": identity}),
    );
    for (files, scale) in [
        (vec![old.clone()], Scale::Identity),
        (vec![newer(identity)], Scale::Identity),
        (vec![newer(sigmoid)], Scale::Sigmoid),
        (vec![newest(sigmoid), old], Scale::Sigmoid),
        (vec![newest(identity), newer(sigmoid)], Scale::Identity),
    ] {
        assert_eq!(read(&files)?.scale, scale, "{files:?}");
    }
    let tanh = read(&[newer("torch.nn.modules.activation.Tanh")]).unwrap_err();
    let tanh = tanh.to_string();
    assert!(
        tanh.contains("config.json") && tanh.contains("Tanh"),
        "{tanh}"
    );
    let limit = ("tokenizer_config.json", json!({"model_max_length": 512}));
    assert_eq!(read(&[limit])?.max_tokens, Some(512));
    let texts = json!({"max_seq_length": 99, "do_lower_case": true});
    let recipe = read(&[("sentence_bert_config.json", texts)])?;
    assert_eq!((recipe.max_tokens, recipe.lowercase), (Some(99), true));
    Ok(())
}
