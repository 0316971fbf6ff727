//! NomicBERT, the encoder of nomic-embed-text v1 and v1.5, with rotary positions and gated feed-forward blocks:
//! [arXiv 2402.01613](https://arxiv.org/abs/2402.01613). A text's embedding is [`mean_pooling`] and then [`l2_normalize`] of its tokens.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::nomic_bert::{l2_normalize, mean_pooling, Config, NomicBertModel};
//! # fn main() -> candle_core::Result<()> {
//! let config = Config { vocab_size: 40, n_embd: 16, n_head: 2, n_layer: 1, n_inner: 8, ..Config::default() };
//! let model = NomicBertModel::load(VarBuilder::zeros(DType::F32, &Device::Cpu), &config)?;
//! let ids = Tensor::new(&[[2u32, 7, 9, 3], [2, 8, 3, 0]], &Device::Cpu)?;
//! let mask = Tensor::new(&[[1u32, 1, 1, 1], [1, 1, 1, 0]], &Device::Cpu)?;
//! let hidden = model.forward(&ids, None, Some(&mask))?;
//! let embeddings = l2_normalize(&mean_pooling(&hidden, &mask)?)?;
//! assert_eq!(embeddings.dims(), &[2, 16]);
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, Device, Result, Tensor, D};
use candle_nn::ops::GatedActivation;
use candle_nn::{layer_norm, VarBuilder};
use serde::Deserialize;

use crate::blocks::encoder::{
    below, dtype_of_scores, head_dim, mean_of_seen, Embeddings, EmbeddingsSpec, EncoderBiases,
    EncoderNames, EncoderPositions, EncoderSpec, MlpActivation, MlpNames, NormPlace, TextEncoder,
};
use crate::blocks::{NormSpec, Rotary, RotaryPairs, RotaryTables};

const FAMILY: &str = "nomic_bert";

/// Sizes and constants, as `config.json` has them. The default is `nomic-embed-text-v1.5`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
#[serde(remote = "Self")]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of a token's vector between the layers.
    pub n_embd: usize,
    /// Heads of a layer's attention; they divide `n_embd`.
    pub n_head: usize,
    /// Layers of the encoder.
    pub n_layer: usize,
    /// Size of the vector inside a feed-forward block.
    pub n_inner: usize,
    /// The longest sequence.
    pub n_positions: usize,
    /// Kinds of segments; 0 for a model without.
    pub type_vocab_size: usize,
    /// What layer norms add to the variance.
    pub layer_norm_epsilon: f64,
    /// Share of a head's elements that is rotated.
    pub rotary_emb_fraction: f64,
    /// Base of the rotary angles.
    pub rotary_emb_base: f64,
    /// Whether neighbours are rotated together, instead of the elements of the two halves.
    pub rotary_emb_interleaved: bool,
    /// Whether the projections of attention have biases.
    pub qkv_proj_bias: bool,
    /// Whether the first layers of the feed-forward blocks have biases.
    pub mlp_fc1_bias: bool,
    /// Whether the last layers of the feed-forward blocks have biases.
    pub mlp_fc2_bias: bool,
    /// `swiglu`, `geglu` or `glu`: the gate of the feed-forward blocks.
    pub activation_function: String,
    /// Whether norms come before the blocks, instead of after them.
    pub prenorm: bool,
    /// The prefix that weights' names may have.
    pub model_type: Option<String>,
}

crate::models::spelling::spelled!(Config, |fields| {
    let names = [
        ("hidden_size", "n_embd"),
        ("num_attention_heads", "n_head"),
        ("num_hidden_layers", "n_layer"),
        ("intermediate_size", "n_inner"),
        ("max_position_embeddings", "n_positions"),
        ("layer_norm_eps", "layer_norm_epsilon"),
    ];
    crate::models::spelling::rename(fields, &names);
    if let Some(act) = fields.get("hidden_act").and_then(|act| act.as_str()) {
        let gated = match act {
            "silu" => "swiglu",
            "gelu" => "geglu",
            other => {
                return Err(format!(
                    "hidden_act {other:?} is not supported, silu and gelu are"
                ))
            }
        };
        fields.entry("activation_function").or_insert(gated.into());
    }
    crate::models::spelling::flat_rope(fields, "rotary_emb_base")
});

impl Default for Config {
    fn default() -> Self {
        Self {
            vocab_size: 30528,
            n_embd: 768,
            n_head: 12,
            n_layer: 12,
            n_inner: 3072,
            n_positions: 8192,
            type_vocab_size: 2,
            layer_norm_epsilon: 1e-12,
            rotary_emb_fraction: 1.,
            rotary_emb_base: 1000.,
            rotary_emb_interleaved: false,
            qkv_proj_bias: false,
            mlp_fc1_bias: false,
            mlp_fc2_bias: false,
            activation_function: "swiglu".to_string(),
            prenorm: false,
            model_type: Some("nomic_bert".to_string()),
        }
    }
}

impl Config {
    fn head_dim(&self) -> Result<usize> {
        head_dim(FAMILY, ("n_embd", self.n_embd), ("n_head", self.n_head))
    }

    fn rotary(&self) -> Result<Rotary> {
        let (head_dim, share) = (self.head_dim()?, self.rotary_emb_fraction);
        if !(0. ..=1.).contains(&share) {
            bail!("nomic_bert: rotary_emb_fraction is {share}; it must be from 0 to 1")
        }
        let pairs = match self.rotary_emb_interleaved {
            true => RotaryPairs::Neighbours,
            false => RotaryPairs::Halves,
        };
        let rotated = (head_dim as f64 * share) as usize;
        Ok(Rotary::new(pairs, self.rotary_emb_base, rotated))
    }

    fn activation(&self) -> Result<GatedActivation> {
        Ok(match self.activation_function.as_str() {
            "swiglu" => GatedActivation::Silu,
            "geglu" => GatedActivation::Gelu,
            "glu" => GatedActivation::Sigmoid,
            other => bail!(
                "nomic_bert: activation_function {other:?} is not supported; expected swiglu, geglu or glu"
            ),
        })
    }

    fn layer(&self) -> Result<EncoderSpec> {
        let (qkv, up) = (self.qkv_proj_bias, self.mlp_fc1_bias);
        Ok(EncoderSpec {
            hidden: self.n_embd,
            inner: self.n_inner,
            heads: self.n_head,
            head_dim: self.head_dim()?,
            activation: MlpActivation::Gated(self.activation()?),
            bias: EncoderBiases {
                up,
                down: self.mlp_fc2_bias,
                ..EncoderBiases::all(qkv)
            },
            norm: NormSpec::layer(self.layer_norm_epsilon),
            place: match self.prenorm {
                true => NormPlace::Before,
                false => NormPlace::After,
            },
            names: EncoderNames {
                qkv: &["attn.Wqkv"],
                joined: "attn.out_proj",
                mlp: MlpNames {
                    gate: "mlp.fc12",
                    up: "mlp.fc11",
                    down: "mlp.fc2",
                },
                ..EncoderNames::TIMM
            },
        })
    }
}

/// From token ids to a vector for each of them.
#[derive(Debug, Clone)]
pub struct NomicBertModel {
    encoder: TextEncoder,
    /// Where the weights are.
    pub device: Device,
}

impl NomicBertModel {
    /// Loads the weights: `embeddings.{word,token_type}_embeddings`, `emb_ln` and
    /// `encoder.layers.N.{attn.Wqkv,attn.out_proj,mlp.fc11,mlp.fc12,mlp.fc2,norm1,norm2}`. Where there are none of these names, they are
    /// looked for below `config.model_type`.
    ///
    /// # Errors
    /// If the configuration contradicts itself or has an activation that is not supported, or a weight is missing or has another shape
    /// than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let vb = match &config.model_type {
            Some(prefix) => below(vb, prefix, "embeddings.word_embeddings.weight"),
            None => vb,
        };
        let embeddings = EmbeddingsSpec {
            family: FAMILY,
            hidden: config.n_embd,
            vocab: config.vocab_size,
            positions: None,
            types: config.type_vocab_size,
            limit: config.n_positions,
        };
        let rotary = config.rotary()?;
        let norm = layer_norm(config.n_embd, config.layer_norm_epsilon, vb.pp("emb_ln"))?;
        let rotary = RotaryTables::new(&rotary, config.n_positions, vb.dtype(), vb.device());
        let layers = config.layer()?;
        Ok(Self {
            device: vb.device().clone(),
            encoder: TextEncoder {
                family: FAMILY,
                embeddings: Embeddings::load(embeddings, vb.pp("embeddings"), norm)?,
                layers: layers.load_dense(config.n_layer, vb, "encoder.layers")?,
                positions: EncoderPositions::Rotary(rotary),
            },
        })
    }

    /// The vectors of the tokens, (batch, seq, n_embd).
    ///
    /// `input_ids` and `token_type_ids`, the segment that each token belongs to, are integers of shape (batch, seq); without the latter all
    /// are of segment 0. `attention_mask` is 1 where a token may be attended to and 0 where it is hidden, (batch, seq). Without it all
    /// are seen. The vectors of hidden tokens mean nothing.
    ///
    /// # Errors
    /// If the shapes do not match, there are no tokens or more than `n_positions`, or an id is outside its table (where the device can
    /// tell).
    pub fn forward(
        &self,
        input_ids: &Tensor,
        token_type_ids: Option<&Tensor>,
        attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.encoder
            .forward(input_ids, token_type_ids, attention_mask)
    }
}

/// The mean of a text's tokens: `hidden_states` are (batch, seq, n), `attention_mask` is (batch, seq), 1 for tokens and 0 for padding;
/// gives (batch, n). A text of padding alone is a vector of zeros.
///
/// # Errors
/// If the shapes do not match.
pub fn mean_pooling(hidden_states: &Tensor, attention_mask: &Tensor) -> Result<Tensor> {
    mean_of_seen(FAMILY, hidden_states, attention_mask)
}

/// Vectors (.., n) divided by their length. Squares are summed in f32 for 16-bit floats. A vector of zeros becomes NaN.
///
/// # Errors
/// If `x` is a scalar or not of a float dtype.
pub fn l2_normalize(x: &Tensor) -> Result<Tensor> {
    let wide = x.to_dtype(dtype_of_scores(x.dtype()))?;
    let length = wide.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
    wide.broadcast_div(&length)?.to_dtype(x.dtype())
}
