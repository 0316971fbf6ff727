//! Encoders of text, over two texts of nine and five tokens.
//!
//! Not compared, because ours differ on purpose: GELU in DistilBERT, which crates.io's approximates by tanh; the biases of the heads of
//! XLM-RoBERTa and of DeBERTa's token classifier, which it omits; the convolution of DeBERTa, where it panics.

use crate::common::{config, VOCABULARY};
use crate::weights::{weight, Place};
use crate::Run;
use candle_core::{bail, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::{
    bert, debertav2, distilbert, jina_bert, modernbert, nomic_bert, xlm_roberta,
};

pub const RUNS: &[Run] = &[
    ("bert", bert),
    ("distilbert", distilbert),
    ("xlm_roberta", xlm_roberta),
    ("modernbert", modernbert),
    ("nomic_bert", nomic_bert),
    ("nomic_bert prenorm", nomic_bert_prenorm),
    ("jina_bert", jina_bert),
    ("debertav2 v3", deberta_v3),
    ("debertav2 plain distances", deberta_plain),
];

/// The ids, and a mask of ones for tokens and zeros for the padding of the second text.
fn texts(place: &Place, name: &str) -> Result<(Tensor, Tensor)> {
    let ids = place.tokens(name, 18, VOCABULARY as u64 - 2)?;
    // Not the padding id of XLM-RoBERTa.
    let ids = (ids.reshape((2, 9))? + 2.)?;
    let mask: Vec<u32> = (0..18).map(|i| u32::from(i < 14)).collect();
    Ok((ids, Tensor::from_vec(mask, (2, 9), &place.device)?))
}

/// The visible tokens, of the first text alone or of both.
fn seen(hidden: Tensor) -> Result<Vec<Tensor>> {
    let mut outputs = vec![hidden.get(0)?];
    if hidden.dim(0)? > 1 {
        outputs.push(hidden.get(1)?.narrow(0, 0, 5)?);
    }
    Ok(outputs)
}

/// Weights by name, without those with these suffixes.
struct Without(&'static [&'static str]);

impl SimpleBackend for Without {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        weight(name, &s)?.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} requires a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !self.0.iter().any(|end| name.ends_with(end))
    }
}

fn without(place: &Place, names: &'static [&'static str], model: &str) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Without(names)), DType::F32, place.device.clone()).pp(model)
}

fn bert(place: &Place) -> Result<Vec<Tensor>> {
    let config = bert::Config {
        vocab_size: VOCABULARY,
        hidden_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 96,
        max_position_embeddings: 32,
        ..bert::Config::default()
    };
    let model = bert::BertForMaskedLM::load(without(place, &["bert"], "bert"), &config)?;
    let (ids, mask) = texts(place, "bert")?;
    seen(model.forward(&ids, &ids.zeros_like()?, Some(&mask))?)
}

fn distilbert(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(
        r#"{"vocab_size": 128, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96, "activation": "relu",
            "max_position_embeddings": 32, "initializer_range": 0.02, "pad_token_id": 0}"#,
    )?;
    let model = distilbert::DistilBertForMaskedLM::load(place.weights("distilbert"), &config)?;
    let (ids, mask) = texts(place, "distilbert")?;
    let hidden = mask.eq(0u32)?.reshape((2, 1, 1, 9))?;
    seen(model.forward(&ids, &hidden)?)
}

fn xlm_roberta(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(
        r#"{"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 96, "hidden_act": "gelu", "max_position_embeddings": 32, "type_vocab_size": 1,
            "layer_norm_eps": 1e-5, "pad_token_id": 1, "attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1,
            "position_embedding_type": "absolute"}"#,
    )?;
    let vb = without(
        place,
        &["lm_head.bias", "lm_head.decoder.weight"],
        "xlm_roberta",
    );
    let model = xlm_roberta::XLMRobertaForMaskedLM::new(&config, vb.clone())?;
    let (ids, mask) = texts(place, "xlm_roberta")?;
    // Padding, which positions do not count.
    let ids = ((ids * &mask)? + mask.eq(0u32)?.to_dtype(DType::U32)?)?;
    let types = ids.zeros_like()?;
    let mut outputs = seen(model.forward(&ids, &mask, &types, None, None, None)?)?;
    let source = place.input("xlm_roberta source", (2, 6, 64))?;
    let hidden = Tensor::zeros((2, 1, 1, 6), DType::F32, &place.device)?;
    let (source, hidden) = (Some(&source), Some(&hidden));
    outputs.push(model.forward(&ids, &mask, &types, None, source, hidden)?);
    let model = xlm_roberta::XLMRobertaForSequenceClassification::new(3, &config, vb)?;
    outputs.push(model.forward(&ids, &mask, &types)?);
    Ok(outputs)
}

fn modernbert(place: &Place) -> Result<Vec<Tensor>> {
    let config = config(
        r#"{"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
            "intermediate_size": 96, "max_position_embeddings": 32, "layer_norm_eps": 1e-5, "pad_token_id": 0,
            "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_attention": 4,
            "local_rope_theta": 10000.0, "id2label": {"0": "no", "1": "yes"}, "label2id": {"no": "0", "yes": "1"},
            "classifier_pooling": "mean"}"#,
    )?;
    let vb = place.weights("modernbert");
    let (ids, mask) = texts(place, "modernbert")?;
    let model = modernbert::ModernBertForMaskedLM::load(vb.clone(), &config)?;
    let mut outputs = seen(model.forward(&ids, &mask)?)?;
    let model = modernbert::ModernBertForSequenceClassification::load(vb.clone(), &config)?;
    outputs.push(model.forward(&ids, &mask)?);
    let mut config = config;
    if let Some(classifier) = &mut config.classifier_config {
        classifier.classifier_pooling = modernbert::ClassifierPooling::CLS;
    }
    let model = modernbert::ModernBertForSequenceClassification::load(vb, &config)?;
    outputs.push(model.forward(&ids, &mask)?);
    Ok(outputs)
}

fn nomic(place: &Place, name: &str, config: nomic_bert::Config) -> Result<Vec<Tensor>> {
    let config = nomic_bert::Config {
        vocab_size: VOCABULARY,
        n_embd: 64,
        n_head: 4,
        n_layer: 2,
        n_inner: 96,
        n_positions: 32,
        ..config
    };
    let model = nomic_bert::NomicBertModel::load(place.weights(name), &config)?;
    let (ids, mask) = texts(place, name)?;
    let hidden = model.forward(&ids, None, Some(&mask))?;
    let mean = nomic_bert::mean_pooling(&hidden, &mask)?;
    let mut outputs = seen(hidden)?;
    outputs.push(nomic_bert::l2_normalize(&mean)?);
    outputs.push(mean);
    Ok(outputs)
}

fn nomic_bert(place: &Place) -> Result<Vec<Tensor>> {
    nomic(place, "nomic_bert", nomic_bert::Config::default())
}

fn nomic_bert_prenorm(place: &Place) -> Result<Vec<Tensor>> {
    let config = nomic_bert::Config {
        prenorm: true,
        rotary_emb_interleaved: true,
        qkv_proj_bias: true,
        mlp_fc1_bias: true,
        mlp_fc2_bias: true,
        type_vocab_size: 0,
        ..nomic_bert::Config::default()
    };
    nomic(place, "nomic_bert prenorm", config)
}

/// Without padding: crates.io's does not accept a mask. Twelve heads, since the slopes for a number that is not a power of two are special.
fn jina_bert(place: &Place) -> Result<Vec<Tensor>> {
    let config = jina_bert::Config {
        vocab_size: VOCABULARY,
        hidden_size: 96,
        num_hidden_layers: 2,
        intermediate_size: 64,
        max_position_embeddings: 32,
        ..jina_bert::Config::v2_base()
    };
    let model = jina_bert::BertModel::new(place.weights("jina_bert"), &config)?;
    let (ids, _) = texts(place, "jina_bert")?;
    // Crates.io's adds the bias of one text to the scores of all.
    Ok(vec![model.forward(&ids.narrow(0, 0, 1)?)?])
}

fn deberta(place: &Place, name: &str, json: &str) -> Result<Vec<Tensor>> {
    let config: debertav2::Config = config(json)?;
    let vb = without(place, &["classifier.bias"], name);
    let (mut ids, mut mask) = texts(place, name)?;
    if config.position_biased_input {
        // Crates.io's adds the positions to one text only.
        (ids, mask) = (ids.narrow(0, 0, 1)?, mask.narrow(0, 0, 1)?);
    }
    let model = debertav2::DebertaV2Model::load(vb.clone(), &config)?;
    let mut outputs = seen(model.forward(&ids, None, Some(mask.clone()))?)?;
    outputs.push(model.forward(&ids, Some(ids.zeros_like()?), None)?);
    let model = debertav2::DebertaV2SeqClassificationModel::load(vb.clone(), &config, None)?;
    outputs.push(model.forward(&ids, None, Some(mask.clone()))?);
    let model = debertav2::DebertaV2NERModel::load(vb, &config, None)?;
    outputs.extend(seen(model.forward(&ids, None, Some(mask))?)?);
    Ok(outputs)
}

/// In the configuration of version 3's checkpoints.
fn deberta_v3(place: &Place) -> Result<Vec<Tensor>> {
    deberta(
        place,
        "debertav2 v3",
        r#"{"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 96, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
            "max_position_embeddings": 32, "type_vocab_size": 0, "initializer_range": 0.02, "layer_norm_eps": 1e-7,
            "relative_attention": true, "max_relative_positions": -1, "pad_token_id": 0, "position_biased_input": false,
            "pos_att_type": "p2c|c2p", "position_buckets": 4, "norm_rel_ebd": "layer_norm", "share_att_key": true,
            "pooler_hidden_act": "gelu", "pooler_hidden_size": 64, "pooler_dropout": 0.0,
            "id2label": {"0": "no", "1": "yes", "2": "so"}}"#,
    )
}

fn deberta_plain(place: &Place) -> Result<Vec<Tensor>> {
    deberta(
        place,
        "debertav2 plain distances",
        r#"{"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 96, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
            "max_position_embeddings": 32, "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-7,
            "relative_attention": true, "max_relative_positions": 5, "pad_token_id": 0, "position_biased_input": true,
            "pos_att_type": ["c2p", "p2c"], "position_buckets": -1, "norm_rel_ebd": "none", "share_att_key": false,
            "pooler_hidden_act": "relu", "pooler_hidden_size": 64, "pooler_dropout": 0.0,
            "id2label": {"0": "no", "1": "yes"}}"#,
    )
}
