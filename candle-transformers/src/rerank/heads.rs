//! The heads that make a score of the encoder's vectors, by family.

use candle_core::{bail, Context, Module, Result, Tensor};
use candle_nn::{layer_norm_no_bias, linear, linear_b, Activation, Linear, VarBuilder};
use serde_json::{Map, Value};

use crate::auto::config::Config;
use crate::blocks::encoder::mean_of_seen;
use crate::blocks::Norm;
use crate::embed::EncoderConfig;

/// A head before it has weights: a layer, an activation, in some families a norm, and the layer whose output is the logit.
#[derive(Debug, Clone)]
pub(super) struct HeadSpec {
    /// Size of a token's vector.
    size: usize,
    pool: Pool,
    /// The first layer's name in the checkpoint.
    dense: &'static str,
    dense_bias: bool,
    act: Act,
    /// The norm's name, and what it adds to the variance.
    norm: Option<(&'static str, f64)>,
    /// The last layer's name.
    out: &'static str,
}

/// The pooling of a pair's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pool {
    /// Before the head, which has the first token's.
    First,
    /// Before the head, which has their mean.
    Mean,
    /// Behind it: the mean of the tokens' logits.
    Late,
}

/// The activation between the head's layers.
#[derive(Debug, Clone, Copy)]
enum Act {
    Tanh,
    Of(Activation),
}

/// From a configuration to the head that it describes, without its size.
type Reader = fn(&Config) -> Result<HeadSpec>;

/// The values of `model_type` that a reranker may have, and the heads of these families.
const HEADS: &[(&str, Reader)] = &[
    ("bert", bert),
    ("distilbert", distilbert),
    ("roberta", roberta),
    ("xlm-roberta", roberta),
    ("modernbert", modernbert),
    ("deberta-v2", deberta),
    ("eurobert", eurobert),
];

/// The values of `model_type` that have a head here.
pub(super) fn model_types() -> Vec<&'static str> {
    HEADS.iter().map(|(name, _)| *name).collect()
}

fn plain(dense: &'static str, act: Act, out: &'static str) -> HeadSpec {
    HeadSpec {
        size: 0,
        pool: Pool::First,
        dense,
        dense_bias: true,
        act,
        norm: None,
        out,
    }
}

fn bert(_: &Config) -> Result<HeadSpec> {
    Ok(plain("bert.pooler.dense", Act::Tanh, "classifier"))
}

fn distilbert(_: &Config) -> Result<HeadSpec> {
    let act = Act::Of(Activation::Relu);
    Ok(plain("pre_classifier", act, "classifier"))
}

fn roberta(_: &Config) -> Result<HeadSpec> {
    Ok(plain("classifier.dense", Act::Tanh, "classifier.out_proj"))
}

fn deberta(json: &Config) -> Result<HeadSpec> {
    let act = json.value("pooler_hidden_act")?;
    let act = Act::Of(act.unwrap_or(Activation::Gelu));
    Ok(plain("pooler.dense", act, "classifier"))
}

fn modernbert(json: &Config) -> Result<HeadSpec> {
    let act = json.value("classifier_activation")?;
    let act = Act::Of(act.unwrap_or(Activation::Gelu));
    let eps = match json.value("norm_eps")? {
        Some(eps) => eps,
        None => json.value("layer_norm_eps")?.unwrap_or(1e-5),
    };
    Ok(HeadSpec {
        pool: pool(json, &["classifier_pooling"], Pool::First)?,
        dense_bias: json.flag("classifier_bias"),
        norm: Some(("head.norm", eps)),
        ..plain("head.dense", act, "classifier")
    })
}

fn eurobert(json: &Config) -> Result<HeadSpec> {
    // The second name is that of EuroBERT's own files.
    let pool = pool(json, &["classifier_pooling", "clf_pooling"], Pool::Late)?;
    let act = Act::Of(Activation::Gelu);
    Ok(HeadSpec {
        pool,
        ..plain("dense", act, "classifier")
    })
}

/// The pooling that the first of these fields names which is there.
fn pool(json: &Config, names: &[&str], default: Pool) -> Result<Pool> {
    for name in names {
        let found: Option<String> = json.value(name)?;
        return Ok(match found.as_deref() {
            None => continue,
            Some("cls" | "bos") => Pool::First,
            Some("mean") => Pool::Mean,
            Some("late") if default == Pool::Late => Pool::Late,
            Some(other) => bail!("{name}: {other:?} is not supported; expected cls or mean"),
        });
    }
    Ok(default)
}

/// Number of labels of a model for sequence classification; Transformers' default is 2.
fn labels(json: &Config) -> Result<usize> {
    let names: Option<Map<String, Value>> = json.value("id2label")?;
    Ok(match names {
        Some(names) => names.len(),
        None => json.size("num_labels").unwrap_or(2),
    })
}

impl HeadSpec {
    /// The head that a `config.json` describes, over an encoder of a known family.
    pub(super) fn read(encoder: &EncoderConfig, json: &Config) -> Result<Self> {
        let found = HEADS.iter().find(|(name, _)| *name == encoder.model_type);
        let Some((_, read)) = found else {
            bail!("{} is not supported as a reranker", encoder.model_type)
        };
        match labels(json)? {
            1 => {}
            count => bail!("id2label: found {count} labels; a reranker has 1, its score"),
        }
        let spec = read(json).context(encoder.model_type)?;
        Ok(Self {
            size: encoder.size,
            ..spec
        })
    }

    /// The head, with the weights of a whole checkpoint.
    pub(super) fn load(&self, vb: &VarBuilder) -> Result<Head> {
        let size = self.size;
        let norm = |(name, eps): (&str, f64)| layer_norm_no_bias(size, eps, vb.pp(name));
        Ok(Head {
            pool: self.pool,
            dense: linear_b(size, size, self.dense_bias, vb.pp(self.dense))?,
            act: self.act,
            norm: self.norm.map(norm).transpose()?.map(Norm::from),
            out: linear(size, 1, vb.pp(self.out))?,
        })
    }
}

/// A head with its weights.
pub(super) struct Head {
    pool: Pool,
    dense: Linear,
    act: Act,
    norm: Option<Norm>,
    out: Linear,
}

impl Head {
    /// From the vectors of tokens, (batch, seq, size), with `mask` selecting some, to (batch, 1).
    pub(super) fn forward(&self, hidden: &Tensor, mask: &Tensor) -> Result<Tensor> {
        match self.pool {
            Pool::First => self.logits(&hidden.narrow(1, 0, 1)?.squeeze(1)?),
            Pool::Mean => self.logits(&mean_of_seen("rerank", hidden, mask)?),
            Pool::Late => mean_of_seen("rerank", &self.logits(hidden)?, mask),
        }
    }

    /// From (.., size) to (.., 1).
    fn logits(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.dense.forward(xs)?;
        let xs = match self.act {
            Act::Tanh => xs.tanh()?,
            Act::Of(act) => act.forward(&xs)?,
        };
        match &self.norm {
            Some(norm) => self.out.forward(&norm.forward(&xs)?),
            None => self.out.forward(&xs),
        }
    }
}
