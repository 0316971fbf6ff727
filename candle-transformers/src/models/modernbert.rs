//! ModernBERT, an encoder of long texts with rotary positions and local attention: [arXiv 2412.13663](https://arxiv.org/abs/2412.13663).
//!
//! One layer in `global_attn_every_n_layers` sees the whole text; in the others a token sees `local_attention / 2` tokens to either side.

use std::collections::HashMap;

use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::ops::{softmax, GatedActivation};
use candle_nn::rotary_emb::Pairs;
use candle_nn::{
    embedding, layer_norm_no_bias, linear, linear_no_bias, Activation, Linear, VarBuilder,
};
use serde::{Deserialize, Deserializer};

use crate::blocks::encoder::{
    added_to_scores, head_dim, mean_of_seen, output_weight, Embeddings, EmbeddingsSpec,
    EncoderBiases, EncoderLayer, EncoderNames, EncoderSpec, MlpActivation, MlpNames, NormPlace,
    Seen, Transform,
};
use crate::blocks::{
    at_once, Dense, FeedForward, GatedMlp, Norm, NormSpec, Order, Projection, Rotary, RotaryPairs,
    RotaryTables, WeightKind, Weights,
};

const FAMILY: &str = "modernbert";

/// Sizes and constants, as `config.json` has them. A `hidden_activation` or `classifier_activation` other than `gelu` is an error: Candle's
/// type has no fields for them. [`ModernBert::load_with_activation`] takes the former.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(remote = "Self")]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of a token's vector between the layers.
    pub hidden_size: usize,
    /// Layers of the encoder.
    pub num_hidden_layers: usize,
    /// Heads of a layer's attention; they divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Size of the vector inside a feed-forward block.
    pub intermediate_size: usize,
    /// The longest sequence.
    pub max_position_embeddings: usize,
    /// What layer norms add to the variance.
    pub layer_norm_eps: f64,
    /// The token that fills up a batch. It has to be hidden by the mask.
    pub pad_token_id: u32,
    /// The layers whose index this divides see the whole text.
    pub global_attn_every_n_layers: usize,
    /// Base of the rotary angles of these layers.
    pub global_rope_theta: f64,
    /// How many tokens a token of the other layers sees, besides itself.
    pub local_attention: usize,
    /// Base of the rotary angles of the other layers.
    pub local_rope_theta: f64,
    /// What only models with a classifier have.
    #[serde(default)]
    #[serde(flatten)]
    pub classifier_config: Option<ClassifierConfig>,
}

crate::models::spelling::spelled!(Config, |fields| {
    for name in ["hidden_activation", "classifier_activation"] {
        match fields.get(name).and_then(|act| act.as_str()) {
            None | Some("gelu") => {}
            Some(other) => return Err(format!("{name} {other:?} is not supported; expected gelu")),
        }
    }
    Ok(())
});

/// How a text's tokens become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClassifierPooling {
    /// The first token's.
    #[default]
    CLS,
    /// The mean of all tokens that are seen.
    MEAN,
}

/// What only models with a classifier have.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ClassifierConfig {
    /// Names of the labels by number.
    pub id2label: HashMap<String, String>,
    /// Numbers of the labels by name. Files have them as numbers or as text.
    #[serde(deserialize_with = "numbers_as_text")]
    pub label2id: HashMap<String, String>,
    /// How a text's tokens become one vector.
    pub classifier_pooling: ClassifierPooling,
}

/// Transformers writes `{"LABEL": 0}`.
fn numbers_as_text<'de, De: Deserializer<'de>>(
    deserializer: De,
) -> std::result::Result<HashMap<String, String>, De::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Whole(u64),
        Text(String),
    }
    let by_name = HashMap::<String, Number>::deserialize(deserializer)?;
    let text = |number| match number {
        Number::Whole(number) => number.to_string(),
        Number::Text(text) => text,
    };
    Ok(by_name.into_iter().map(|(k, v)| (k, text(v))).collect())
}

/// A feed-forward block with a gate, GeGLU.
#[derive(Debug, Clone)]
pub struct ModernBertMLP(GatedMlp);

/// From (.., hidden_size) to the same shape.
impl Module for ModernBertMLP {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

/// Attention and a feed-forward block, each behind a norm, which the first layer's attention goes without.
#[derive(Debug, Clone)]
pub struct ModernBertLayer {
    layer: EncoderLayer,
    local: bool,
}

/// The first layer has an `attn_norm` only if the checkpoint does.
fn layers(
    config: &Config,
    activation: GatedActivation,
    vb: VarBuilder,
) -> Result<Vec<ModernBertLayer>> {
    let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
    let spec = EncoderSpec {
        hidden,
        inner: config.intermediate_size,
        heads,
        head_dim: head_dim(
            FAMILY,
            ("hidden_size", hidden),
            ("num_attention_heads", heads),
        )?,
        activation: MlpActivation::Joined(activation, Order::Layers),
        bias: EncoderBiases::all(false),
        norm: NormSpec::layer_no_bias(config.layer_norm_eps),
        place: NormPlace::Before,
        names: EncoderNames {
            qkv: &["attn.Wqkv"],
            joined: "attn.Wo",
            mlp: MlpNames {
                gate: "",
                up: "mlp.Wi",
                down: "mlp.Wo",
            },
            norms: ["attn_norm", "mlp_norm"],
        },
    };
    let mut first = spec.clone();
    if !vb.contains_tensor("0.attn_norm.weight") {
        first.names.norms[0] = "";
    }
    let layer = |i: usize| {
        let spec = if i == 0 { &first } else { &spec };
        let load = |weights: &mut Weights<'_>| at_once(spec.layer(weights, &i.to_string()));
        Ok(ModernBertLayer {
            layer: Dense::load(vb.clone(), load)?,
            local: !i.is_multiple_of(config.global_attn_every_n_layers),
        })
    };
    (0..config.num_hidden_layers).map(layer).collect()
}

impl ModernBertLayer {
    /// Its feed-forward block.
    pub fn mlp(&self) -> Option<ModernBertMLP> {
        match &self.layer.mlp {
            FeedForward::Gated(mlp) => Some(ModernBertMLP(mlp.clone())),
            _ => None,
        }
    }
}

/// A norm without a bias.
fn norm(vb: VarBuilder, config: &Config) -> Result<Norm> {
    Ok(layer_norm_no_bias(config.hidden_size, config.layer_norm_eps, vb)?.into())
}

/// From token ids to a vector for each of them.
#[derive(Debug, Clone)]
pub struct ModernBert {
    embeddings: Embeddings,
    layers: Vec<ModernBertLayer>,
    norm: Norm,
    /// Of layers that see everything, and of those with a window.
    rotary: [RotaryTables; 2],
    window: usize,
}

impl ModernBert {
    /// Loads the weights below `model`: `embeddings.{tok_embeddings,norm}`, `layers.N.{attn.Wqkv,attn.Wo,attn_norm,mlp.Wi,mlp.Wo,mlp_norm}`
    /// and `final_norm`. The first layer has an `attn_norm` only if the checkpoint does.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        Self::load_with_activation(vb, config, Activation::Gelu)
    }

    /// As [`ModernBert::load`], with the activation of the feed-forward blocks' gates, `hidden_activation` in `config.json`.
    ///
    /// # Errors
    /// As for [`ModernBert::load`], and for an activation without a gated form.
    pub fn load_with_activation(
        vb: VarBuilder,
        config: &Config,
        activation: Activation,
    ) -> Result<Self> {
        let activation = GatedActivation::try_from(activation)?;
        let (hidden, limit) = (config.hidden_size, config.max_position_embeddings);
        if config.global_attn_every_n_layers == 0 {
            bail!("modernbert: global_attn_every_n_layers is 0; it must be at least 1")
        }
        let vb = vb.pp("model");
        let layers = layers(config, activation, vb.pp("layers"))?;
        let spec = EmbeddingsSpec {
            family: FAMILY,
            hidden,
            vocab: config.vocab_size,
            positions: None,
            types: 0,
            limit,
        };
        let table = vb.pp("embeddings");
        let word = embedding(config.vocab_size, hidden, table.pp("tok_embeddings"))?;
        let first = layer_norm_no_bias(hidden, config.layer_norm_eps, table.pp("norm"))?;
        let head_dim = hidden / config.num_attention_heads.max(1);
        let rotary = |theta| {
            let rotary = Rotary::new(RotaryPairs::Halves, theta, head_dim);
            RotaryTables::new(&rotary, limit, vb.dtype(), vb.device())
        };
        Ok(Self {
            embeddings: Embeddings::of_table(spec, word, table, first)?,
            layers,
            norm: norm(vb.pp("final_norm"), config)?,
            rotary: [
                rotary(config.global_rope_theta),
                rotary(config.local_rope_theta),
            ],
            window: config.local_attention / 2 + 1,
        })
    }

    /// The vectors of the tokens, (batch, seq, hidden_size), of `xs`, integers of shape (batch, seq). `mask` is 1 where a token may be
    /// attended to and 0 where it is hidden, (batch, seq). The vectors of hidden tokens mean nothing.
    ///
    /// # Errors
    /// If the shapes do not match, there are no tokens or more than `max_position_embeddings`, or an id is outside the table (where the
    /// device can tell).
    pub fn forward(&self, xs: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let mut xs = self.embeddings.forward(xs, None)?;
        let mask = added_to_scores(FAMILY, mask, xs.dtype())?;
        let len = xs.dim(1)?;
        let [global, local] = &self.rotary;
        let (global, local) = (global.rows(0, len)?, local.rows(0, len)?);
        for layer in &self.layers {
            let (angles, window) = match layer.local {
                true => (&local, Some(self.window)),
                false => (&global, None),
            };
            let seen = Seen {
                mask: Some(&mask),
                window,
                rotation: Some((angles, Pairs::Halves)),
                ..Seen::default()
            };
            xs = layer.layer.forward(xs, &seen)?;
        }
        self.norm.forward(&xs)
    }

    /// The layers, in the order in which they run.
    pub fn layers(&self) -> &[ModernBertLayer] {
        &self.layers
    }
}

/// A linear layer, GELU and a norm: what comes before the last layer of a model with a head.
#[derive(Debug, Clone)]
pub struct ModernBertHead(Transform);

impl ModernBertHead {
    fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let hidden = config.hidden_size;
        Ok(Self(Transform {
            dense: linear_no_bias(hidden, hidden, vb.pp("dense"))?.into(),
            activation: Activation::Gelu,
            norm: norm(vb.pp("norm"), config)?,
        }))
    }
}

/// From (.., hidden_size) to the same shape.
impl Module for ModernBertHead {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

/// From vectors to logits over the vocabulary, with the table of the tokens' vectors and a bias.
#[derive(Debug, Clone)]
pub struct ModernBertDecoder {
    decoder: Projection,
}

impl ModernBertDecoder {
    fn load(table: &Tensor, vb: VarBuilder, config: &Config) -> Result<Self> {
        let bias = vb.get(config.vocab_size, "decoder.bias")?;
        Ok(Self {
            decoder: Linear::new(output_weight(table, vb.pp("decoder"))?, Some(bias)).into(),
        })
    }
}

/// From (.., hidden_size) to (.., vocab_size).
impl Module for ModernBertDecoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.decoder.forward(xs)
    }
}

/// The model with the head that says which token stands at each place.
#[derive(Debug, Clone)]
pub struct ModernBertForMaskedLM {
    model: ModernBert,
    decoder: ModernBertDecoder,
    head: ModernBertHead,
}

impl ModernBertForMaskedLM {
    /// Loads the model, `head.{dense,norm}`, `decoder.bias` and, where the file has it, `decoder.weight`; the head shares the embeddings'
    /// table elsewhere.
    ///
    /// # Errors
    /// Those of [`ModernBert::load`], also for the head.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let model = ModernBert::load(vb.clone(), config)?;
        Ok(Self {
            decoder: ModernBertDecoder::load(model.embeddings.table(), vb.clone(), config)?,
            head: ModernBertHead::load(vb.pp("head"), config)?,
            model,
        })
    }

    /// The logits, (batch, seq, vocab_size). Arguments as for [`ModernBert::forward`].
    ///
    /// # Errors
    /// Those of [`ModernBert::forward`].
    pub fn forward(&self, xs: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let hidden = self.model.forward(xs, mask)?;
        self.decoder.forward(&self.head.forward(&hidden)?)
    }
}

/// From a text's vector to a probability for each label.
#[derive(Debug, Clone)]
pub struct ModernBertClassifier {
    classifier: Linear,
}

impl ModernBertClassifier {
    fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let labels = match &config.classifier_config {
            Some(classifier) if !classifier.id2label.is_empty() => classifier.id2label.len(),
            _ => bail!(
                "modernbert: a classifier needs id2label, label2id and classifier_pooling in config.json, and at least one label"
            ),
        };
        Ok(Self {
            classifier: linear(config.hidden_size, labels, vb.pp("classifier"))?,
        })
    }
}

/// From (.., hidden_size) to (.., labels), whose sum is 1.
impl Module for ModernBertClassifier {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        softmax(&self.classifier.forward(xs)?, D::Minus1)
    }
}

/// The model with a head that gives each text a probability for each label.
#[derive(Debug, Clone)]
pub struct ModernBertForSequenceClassification {
    model: ModernBert,
    head: ModernBertHead,
    classifier: ModernBertClassifier,
    pooling: ClassifierPooling,
}

impl ModernBertForSequenceClassification {
    /// Loads the model, `head.{dense,norm}` and `classifier`.
    ///
    /// # Errors
    /// Those of [`ModernBert::load`], also for the head, and if the configuration has no labels.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let pooling = config.classifier_config.as_ref();
        Ok(Self {
            classifier: ModernBertClassifier::load(vb.clone(), config)?,
            head: ModernBertHead::load(vb.pp("head"), config)?,
            model: ModernBert::load(vb, config)?,
            pooling: pooling.map(|c| c.classifier_pooling).unwrap_or_default(),
        })
    }

    /// The probabilities, (batch, labels). Arguments as for [`ModernBert::forward`].
    ///
    /// # Errors
    /// Those of [`ModernBert::forward`].
    pub fn forward(&self, xs: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let hidden = self.model.forward(xs, mask)?;
        let pooled = match self.pooling {
            ClassifierPooling::CLS => hidden.narrow(1, 0, 1)?.squeeze(1)?,
            ClassifierPooling::MEAN => mean_of_seen(FAMILY, &hidden, mask)?,
        };
        self.classifier.forward(&self.head.forward(&pooled)?)
    }
}
