//! The configuration as stored with a checkpoint: Hugging Face's `config.json`, in its layouts so far.

use serde::Deserialize;

use super::{Config, Llama3RopeConfig, Llama3RopeType, LlamaEosToks};

/// A Llama's `config.json`.
///
/// Both layouts of the rotary settings are understood: `rope_theta` and `rope_scaling` at the top (Transformers 4), and
/// all of them in one object `rope_parameters` (Transformers 5). What is missing is reported by its field's name; what
/// this model cannot do (biases, another activation, another head size, other kinds of rotary scaling) is refused
/// instead of computed wrongly.
///
/// ```
/// use candle_transformers::models::llama::LlamaConfig;
/// let incomplete = serde_json::from_str::<LlamaConfig>(r#"{"hidden_size": 64}"#);
/// assert!(incomplete.unwrap_err().to_string().contains("intermediate_size"));
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "ConfigJson")]
pub struct LlamaConfig {
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Number of tokens.
    pub vocab_size: usize,
    /// Number of decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; default: the number of query heads.
    pub num_key_value_heads: Option<usize>,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies; default: 10 000.
    pub rope_theta: f32,
    /// The token that starts a text.
    pub bos_token_id: Option<u32>,
    /// The token that ends a text.
    pub eos_token_id: Option<LlamaEosToks>,
    /// Scaling of the rotary frequencies; `None` also where the file says `default`.
    pub rope_scaling: Option<Llama3RopeConfig>,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Whether the output layer shares the token table's weight; default: `false`.
    pub tie_word_embeddings: Option<bool>,
}

impl LlamaConfig {
    /// The number of key and value heads.
    pub fn num_key_value_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// The model's configuration, with defaults filled in.
    pub fn into_config(self, use_flash_attn: bool) -> Config {
        Config {
            num_key_value_heads: self.num_key_value_heads(),
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            vocab_size: self.vocab_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            use_flash_attn,
            rms_norm_eps: self.rms_norm_eps,
            rope_theta: self.rope_theta,
            bos_token_id: self.bos_token_id,
            eos_token_id: self.eos_token_id,
            rope_scaling: self.rope_scaling,
            max_position_embeddings: self.max_position_embeddings,
            tie_word_embeddings: self.tie_word_embeddings.unwrap_or(false),
        }
    }
}

/// The file as it is written, fields that only have to be checked included.
#[derive(Deserialize)]
struct ConfigJson {
    hidden_size: usize,
    intermediate_size: usize,
    vocab_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    rms_norm_eps: f64,
    rope_theta: Option<f32>,
    rope_scaling: Option<RopeJson>,
    rope_parameters: Option<RopeJson>,
    max_position_embeddings: usize,
    tie_word_embeddings: Option<bool>,
    bos_token_id: Option<u32>,
    eos_token_id: Option<LlamaEosToks>,
    head_dim: Option<usize>,
    hidden_act: Option<String>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
}

#[derive(Deserialize)]
struct RopeJson {
    rope_theta: Option<f32>,
    #[serde(alias = "type")]
    rope_type: Option<String>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<usize>,
}

impl RopeJson {
    fn scaling(&self) -> Result<Option<Llama3RopeConfig>, String> {
        fn need<T: Copy>(value: Option<T>, field: &str) -> Result<T, String> {
            value.ok_or_else(|| {
                format!("missing field `{field}`, which rope_type `llama3` requires")
            })
        }
        match self.rope_type.as_deref() {
            None | Some("default") => Ok(None),
            Some("llama3") => Ok(Some(Llama3RopeConfig {
                factor: need(self.factor, "factor")?,
                low_freq_factor: need(self.low_freq_factor, "low_freq_factor")?,
                high_freq_factor: need(self.high_freq_factor, "high_freq_factor")?,
                original_max_position_embeddings: need(
                    self.original_max_position_embeddings,
                    "original_max_position_embeddings",
                )?,
                rope_type: Llama3RopeType::Llama3,
            })),
            Some(other) => Err(format!(
                "rope_type `{other}` is not supported; expected `default` or `llama3`"
            )),
        }
    }
}

impl TryFrom<ConfigJson> for LlamaConfig {
    type Error = String;

    fn try_from(json: ConfigJson) -> Result<Self, String> {
        let from_heads = json.hidden_size / json.num_attention_heads.max(1);
        if let Some(head_dim) = json.head_dim.filter(|head_dim| *head_dim != from_heads) {
            return Err(format!(
                "head_dim is {head_dim}, but hidden_size / num_attention_heads is {} / {} = {from_heads}; a Llama with a \
                 different head size is not supported",
                json.hidden_size, json.num_attention_heads
            ));
        }
        if let Some(act) = json.hidden_act.filter(|act| act != "silu") {
            return Err(format!(
                "hidden_act `{act}` is not supported; expected `silu`"
            ));
        }
        for (field, value) in [
            ("attention_bias", json.attention_bias),
            ("mlp_bias", json.mlp_bias),
        ] {
            if value == Some(true) {
                return Err(format!(
                    "{field} is true: a Llama with biases is not supported"
                ));
            }
        }
        // Transformers 5 writes one object and drops the two older fields.
        let rope = json.rope_parameters.or(json.rope_scaling);
        let theta = rope.as_ref().and_then(|rope| rope.rope_theta);
        let rope_scaling = match rope {
            Some(rope) => rope.scaling()?,
            None => None,
        };
        Ok(Self {
            hidden_size: json.hidden_size,
            intermediate_size: json.intermediate_size,
            vocab_size: json.vocab_size,
            num_hidden_layers: json.num_hidden_layers,
            num_attention_heads: json.num_attention_heads,
            num_key_value_heads: json.num_key_value_heads,
            rms_norm_eps: json.rms_norm_eps,
            rope_theta: theta.or(json.rope_theta).unwrap_or(10_000.),
            bos_token_id: json.bos_token_id,
            eos_token_id: json.eos_token_id,
            rope_scaling,
            max_position_embeddings: json.max_position_embeddings,
            tie_word_embeddings: json.tie_word_embeddings,
        })
    }
}
