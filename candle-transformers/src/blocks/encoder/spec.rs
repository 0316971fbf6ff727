//! Encoders before they have weights.

use candle_core::{Result, Tensor};
use candle_nn::ops::GatedActivation;
use candle_nn::rotary_emb::Pairs;
use candle_nn::{Activation, Init, VarBuilder};

use super::{added_to_scores, head_dim, Embeddings, EncoderLayer, Heads, NormPlace, Seen};
use crate::blocks::{
    at_once, linear, Dense, FeedForward, GatedMlp, Norm, NormSpec, Order, PlainMlp, RotaryTables,
    WeightKind, Weights,
};

/// The activation of a feed-forward block, and whether it has a gate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum MlpActivation {
    Gated(GatedActivation),
    /// As [`Gated`](Self::Gated), where files have gate and up as one tensor, in this order.
    Joined(GatedActivation, Order),
    Plain(Activation),
    /// `x * sigmoid(1.702 x)`, without a gate.
    QuickGelu,
}

/// The names of a feed-forward block's layers, behind the layer's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MlpNames {
    pub(crate) gate: &'static str,
    /// Of a block without a gate this is its first layer, of one that is joined both.
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
}

impl MlpActivation {
    /// The block from `hidden` to `inner` and back of the layer `prefix`. `bias` is of its first layers, and of its last.
    pub(crate) async fn load(
        self,
        [hidden, inner]: [usize; 2],
        [bias, down_bias]: [bool; 2],
        weights: &mut Weights<'_>,
        names: &MlpNames,
        prefix: &str,
    ) -> Result<FeedForward> {
        let wide = |name, outputs| linear(prefix, name, hidden, outputs, bias);
        let down = linear(prefix, names.down, inner, hidden, down_bias);
        let (gate_up, activation) = match self {
            Self::Gated(activation) => {
                let parts = [wide(names.gate, inner), wide(names.up, inner)];
                (weights.merged(parts).await?, activation)
            }
            Self::Joined(activation, order) => {
                let both = wide(names.up, 2 * inner);
                let both = weights.joined(&both, [inner; 2], order).await?;
                (both, activation)
            }
            Self::Plain(_) | Self::QuickGelu => {
                let up = weights.linear(&wide(names.up, inner)).await?;
                let down = weights.linear(&down).await?;
                return Ok(FeedForward::Plain(match self {
                    Self::Plain(activation) => PlainMlp::new(up, down, activation),
                    _ => PlainMlp::quick_gelu(up, down),
                }));
            }
        };
        let down = weights.linear(&down).await?;
        Ok(FeedForward::Gated(GatedMlp::new(gate_up, down, activation)))
    }
}

/// The names of a layer's parts, behind the layer's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EncoderNames {
    /// Queries, keys and values: three tensors, or one.
    pub(crate) qkv: &'static [&'static str],
    /// The layer that joins the heads.
    pub(crate) joined: &'static str,
    pub(crate) mlp: MlpNames,
    /// Of attention, and of the feed-forward block; a layer has none of the name "".
    pub(crate) norms: [&'static str; 2],
}

impl EncoderNames {
    /// BERT's.
    pub(crate) const BERT: Self = Self {
        qkv: &[
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
        ],
        joined: "attention.output.dense",
        mlp: MlpNames {
            gate: "",
            up: "intermediate.dense",
            down: "output.dense",
        },
        norms: ["attention.output.LayerNorm", "output.LayerNorm"],
    };

    /// timm's vision transformers'.
    pub(crate) const TIMM: Self = Self {
        qkv: &["attn.qkv"],
        joined: "attn.proj",
        mlp: MlpNames {
            gate: "",
            up: "mlp.fc1",
            down: "mlp.fc2",
        },
        norms: ["norm1", "norm2"],
    };

    /// BART's, which Whisper has too.
    pub(crate) const BART: Self = Self {
        qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        joined: "self_attn.out_proj",
        mlp: MlpNames {
            gate: "",
            up: "fc1",
            down: "fc2",
        },
        norms: ["self_attn_layer_norm", "final_layer_norm"],
    };

    /// CLIP's and SigLIP's.
    pub(crate) const CLIP: Self = Self {
        mlp: Self::TIMM.mlp,
        norms: ["layer_norm1", "layer_norm2"],
        ..Self::BART
    };
}

/// Which of a layer's linear layers have biases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EncoderBiases {
    pub(crate) qkv: bool,
    /// Keys, where they are a tensor; without a bias they get zeros.
    pub(crate) keys: bool,
    pub(crate) joined: bool,
    /// The first layers of the feed-forward block.
    pub(crate) up: bool,
    pub(crate) down: bool,
}

impl EncoderBiases {
    /// All or none.
    pub(crate) const fn all(bias: bool) -> Self {
        Self {
            qkv: bias,
            keys: bias,
            joined: bias,
            up: bias,
            down: bias,
        }
    }
}

/// A layer of an encoder before it has weights.
#[derive(Debug, Clone)]
pub(crate) struct EncoderSpec {
    pub(crate) hidden: usize,
    /// The inner size of the feed-forward block.
    pub(crate) inner: usize,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) activation: MlpActivation,
    pub(crate) bias: EncoderBiases,
    pub(crate) norm: NormSpec,
    pub(crate) place: NormPlace,
    pub(crate) names: EncoderNames,
}

impl EncoderSpec {
    /// A BERT's layer. The sizes that heads divide come with the names that the configuration has for them.
    ///
    /// # Errors
    /// If the heads do not divide the size.
    pub(crate) fn bert(
        family: &str,
        hidden: (&str, usize),
        heads: (&str, usize),
        inner: usize,
        activation: Activation,
        eps: f64,
    ) -> Result<Self> {
        Ok(Self {
            hidden: hidden.1,
            inner,
            heads: heads.1,
            head_dim: head_dim(family, hidden, heads)?,
            activation: MlpActivation::Plain(activation),
            bias: EncoderBiases::all(true),
            norm: NormSpec::layer(eps),
            place: NormPlace::After,
            names: EncoderNames::BERT,
        })
    }

    /// The `count` layers whose names are `prefix`, unless it is empty, and a number.
    pub(crate) async fn load(
        &self,
        count: usize,
        weights: &mut Weights<'_>,
        prefix: &str,
    ) -> Result<Vec<EncoderLayer>> {
        // Not with_capacity: a configuration can ask for any number of layers that no file has.
        let mut layers = Vec::new();
        for i in 0..count {
            let name = match prefix {
                "" => i.to_string(),
                _ => format!("{prefix}.{i}"),
            };
            layers.push(self.layer(weights, &name).await?);
        }
        Ok(layers)
    }

    /// As [`load`](Self::load), of dense weights.
    pub(crate) fn load_dense(
        &self,
        count: usize,
        vb: VarBuilder,
        prefix: &str,
    ) -> Result<Vec<EncoderLayer>> {
        Dense::load(vb, |weights| at_once(self.load(count, weights, prefix)))
    }

    /// The layer whose names stand behind `prefix`.
    pub(crate) async fn layer(
        &self,
        weights: &mut Weights<'_>,
        prefix: &str,
    ) -> Result<EncoderLayer> {
        let (names, bias, size) = (&self.names, self.bias, self.heads * self.head_dim);
        let part = |name, bias| linear(prefix, name, self.hidden, size, bias);
        let qkv = match *names.qkv {
            [q, k, v] => {
                let parts = [part(q, bias.qkv), part(k, bias.keys), part(v, bias.qkv)];
                weights.merged(parts).await?
            }
            _ => {
                let name = names.qkv.first().copied().unwrap_or_default();
                let all = linear(prefix, name, self.hidden, 3 * size, bias.qkv);
                weights.joined(&all, [size; 3], Order::Layers).await?
            }
        };
        let joined = linear(prefix, names.joined, size, self.hidden, bias.joined);
        let [attention, mlp] = names.norms;
        let sizes = [self.hidden, self.inner];
        let biases = [bias.up, bias.down];
        Ok(EncoderLayer {
            heads: Heads::new(qkv, self.heads, self.head_dim),
            joined: weights.linear(&joined).await?,
            mlp: self
                .activation
                .load(sizes, biases, weights, &names.mlp, prefix)
                .await?,
            place: self.place,
            norms: [
                self.norm(weights, prefix, attention).await?,
                self.norm(weights, prefix, mlp).await?,
            ],
        })
    }

    async fn norm(
        &self,
        weights: &mut Weights<'_>,
        prefix: &str,
        name: &str,
    ) -> Result<Option<Norm>> {
        if name.is_empty() {
            return Ok(None);
        }
        let name = format!("{prefix}.{name}");
        // Checkpoints made from TensorFlow's.
        let [gamma, beta] = ["gamma", "beta"].map(|part| format!("{name}.{part}"));
        if weights.has(&gamma) && !weights.has(&format!("{name}.weight")) {
            let shape = [self.hidden];
            let weight = weights.dense(&gamma, &shape, Init::Const(1.));
            let weight = weight.await?;
            let bias = weights.dense(&beta, &shape, Init::Const(0.));
            return self.norm.with(weight, Some(bias.await?)).map(Some);
        }
        weights.norm(&name, self.hidden, self.norm).await.map(Some)
    }
}

/// How layers know the positions of tokens, if their vectors do not tell.
#[derive(Debug, Clone)]
pub(crate) enum EncoderPositions {
    /// The vectors tell.
    InVectors,
    /// ALiBi's slopes, (heads) of f32.
    Slopes(Tensor),
    /// Rotation of queries and keys.
    Rotary(RotaryTables),
}

/// An encoder of text: vectors of tokens, and layers over them.
#[derive(Debug, Clone)]
pub(crate) struct TextEncoder {
    /// The model's name, for errors.
    pub(crate) family: &'static str,
    pub(crate) embeddings: Embeddings,
    pub(crate) layers: Vec<EncoderLayer>,
    pub(crate) positions: EncoderPositions,
}

impl TextEncoder {
    /// The vectors of the tokens `ids`, (batch, seq): (batch, seq, hidden). `types` are the segments of tokens, of the same shape; all are of
    /// the first without. `mask` is 1 for tokens that are seen and 0 for others, (batch, seq) or (batch, seq, seq).
    pub(crate) fn forward(
        &self,
        ids: &Tensor,
        types: Option<&Tensor>,
        mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let xs = self.embeddings.forward(ids, types)?;
        let added = |mask| added_to_scores(self.family, mask, xs.dtype());
        let mask = mask.map(added).transpose()?;
        self.run(xs, mask.as_ref())
    }

    /// What the layers make of `xs`, (batch, seq, hidden); `mask` is added to the scores.
    pub(crate) fn run(&self, mut xs: Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (mut slopes, mut angles) = (None, None);
        match &self.positions {
            EncoderPositions::InVectors => {}
            EncoderPositions::Slopes(of_heads) => slopes = Some(of_heads),
            EncoderPositions::Rotary(tables) => {
                let pairs = Pairs::from(tables.rotary().pairs);
                angles = Some((tables.rows(0, xs.dim(1)?)?, pairs));
            }
        }
        let seen = Seen {
            mask,
            slopes,
            rotation: angles.as_ref().map(|(angles, pairs)| (angles, *pairs)),
            ..Seen::default()
        };
        for layer in &self.layers {
            xs = layer.forward(xs, &seen)?;
        }
        Ok(xs)
    }
}
