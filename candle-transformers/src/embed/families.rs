//! The encoders of text by what their `config.json` says.

use std::sync::Arc;

use candle_core::{bail, Context, Result, Tensor};
use candle_nn::{Activation, VarBuilder};

use super::decoders::{read_decoder, read_eurobert, read_nvembed, DECODERS};
use super::Run;
use crate::auto::config::{parse, Config};
use crate::blocks::encoder::below;
use crate::models::{
    bert, debertav2, distilbert, jina_bert, jina_embeddings_v3, modernbert, nomic_bert, xlm_roberta,
};

/// What an encoder of text is, before it has weights.
#[derive(Clone)]
pub struct EncoderConfig {
    /// The family, by its name in `config.json`; `jina_bert` for those files that call it a `bert`.
    pub model_type: &'static str,
    /// Size of a token's vector.
    pub size: usize,
    /// The longest text, in tokens.
    pub max_tokens: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// The token that fills up a batch.
    pub padding: u32,
    /// Whether a token sees those before it alone. Models that write text are so too: which of them make vectors, the configuration does
    /// not tell.
    pub causal: bool,
    pub(super) load: Arc<dyn Fn(VarBuilder) -> Result<Run> + Send + Sync>,
}

impl std::fmt::Debug for EncoderConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncoderConfig")
            .field("model_type", &self.model_type)
            .field("size", &self.size)
            .field("max_tokens", &self.max_tokens)
            .finish_non_exhaustive()
    }
}

/// A value of `model_type`.
struct Family {
    model_type: &'static str,
    /// How the names of `architectures` begin.
    architecture: &'static str,
    /// Fields that files may leave out, a JSON object.
    defaults: &'static str,
    read: fn(&'static str, &Config) -> Result<EncoderConfig>,
}

const FAMILIES: &[Family] = &[
    Family {
        model_type: "bert",
        architecture: "Bert",
        defaults: r#"{"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "max_position_embeddings": 512, "type_vocab_size": 2,
            "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0}"#,
        read: read_bert,
    },
    Family {
        model_type: "distilbert",
        architecture: "DistilBert",
        defaults: r#"{"activation": "gelu", "max_position_embeddings": 512, "initializer_range": 0.02, "pad_token_id": 0}"#,
        read: read_distilbert,
    },
    Family {
        model_type: "roberta",
        architecture: "Roberta",
        defaults: ROBERTA,
        read: read_roberta,
    },
    Family {
        model_type: "xlm-roberta",
        architecture: "XLMRoberta",
        defaults: ROBERTA,
        read: read_roberta,
    },
    Family {
        model_type: "modernbert",
        architecture: "ModernBert",
        defaults: r#"{"layer_norm_eps": 1e-5, "pad_token_id": 50283, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
            "local_attention": 128, "local_rope_theta": 10000.0, "max_position_embeddings": 8192}"#,
        read: read_modernbert,
    },
    Family {
        model_type: "nomic_bert",
        architecture: "NomicBert",
        defaults: r#"{"pad_token_id": 0}"#,
        read: read_nomic,
    },
    Family {
        model_type: JINA,
        architecture: "JinaBert",
        defaults: r#"{"hidden_act": "gelu", "max_position_embeddings": 512, "type_vocab_size": 2, "initializer_range": 0.02,
            "layer_norm_eps": 1e-12, "pad_token_id": 0, "position_embedding_type": "alibi"}"#,
        read: read_jina,
    },
    Family {
        model_type: "jina_embeddings_v3",
        architecture: "JinaEmbeddingsV3",
        defaults: r#"{"hidden_act": "gelu", "max_position_embeddings": 8194, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
            "pad_token_id": 1, "rope_theta": 20000.0}"#,
        read: read_jina_v3,
    },
    Family {
        model_type: "deberta-v2",
        architecture: "DebertaV2",
        defaults: r#"{"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
            "max_position_embeddings": 512, "type_vocab_size": 0, "initializer_range": 0.02, "layer_norm_eps": 1e-7,
            "relative_attention": false, "max_relative_positions": -1, "pad_token_id": 0, "position_biased_input": true,
            "pos_att_type": []}"#,
        read: read_deberta,
    },
    Family {
        model_type: "nvembed",
        architecture: "NVEmbed",
        defaults: r#"{"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 32768,
            "hidden_act": "silu", "latent_attention_config": {}, "pad_token_id": 2}"#,
        read: read_nvembed,
    },
    Family {
        model_type: "eurobert",
        architecture: "EuroBert",
        defaults: r#"{"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 8192, "hidden_act": "silu",
            "pad_token_id": 128001}"#,
        read: read_eurobert,
    },
];

const JINA: &str = "jina_bert";

const ROBERTA: &str = r#"{"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 1,
    "position_embedding_type": "absolute"}"#;

/// The first weight of those families that have BERT's names.
const FIRST: &str = "embeddings.word_embeddings.weight";

/// The values of `model_type` that [`EncoderConfig::parse`] takes.
pub fn model_types() -> Vec<&'static str> {
    let encoders = FAMILIES.iter().map(|family| family.model_type);
    encoders.chain(DECODERS.iter().copied()).collect()
}

impl EncoderConfig {
    /// The encoder that a checkpoint's `config.json` describes, by its `model_type`, or if it has none by its `architectures`.
    ///
    /// # Errors
    /// If the text is no JSON object, the model is a decoder or not known, or a field is missing or does not fit.
    pub fn parse(json: &str) -> Result<Self> {
        #[derive(serde::Deserialize)]
        struct Said {
            model_type: Option<String>,
            architectures: Option<Vec<String>>,
            position_embedding_type: Option<String>,
        }
        let said: Said = parse(json)?;
        let named = said.model_type.as_deref();
        if let Some(decoder) = DECODERS.iter().find(|name| Some(**name) == named) {
            return read_decoder(decoder, json).context(*decoder);
        }
        let architectures = said.architectures.unwrap_or_default();
        let known = |name: &str| FAMILIES.iter().find(|family| family.model_type == name);
        let built_as = architectures.iter().find_map(|name| {
            FAMILIES
                .iter()
                .find(|family| name.starts_with(family.architecture))
        });
        // JinaBERT's files call it a BERT, which its weights do not fit.
        let alibi = said.position_embedding_type.as_deref() == Some("alibi");
        let family = match said.model_type.as_deref() {
            Some("bert") if alibi => known(JINA),
            Some("jina-bert" | "jina_bert_v2") => known(JINA),
            Some("nomic-bert") => known("nomic_bert"),
            Some("xlm_roberta") => known("xlm-roberta"),
            Some("debertav2") => known("deberta-v2"),
            Some(name) => known(name),
            None => built_as,
        };
        let all = || model_types().join(", ");
        let Some(family) = family else {
            let found = match (&said.model_type, architectures.first()) {
                (Some(name), _) => format!("model_type: {name:?}"),
                (None, Some(name)) => format!("no model_type, and architectures: {name:?}"),
                (None, None) => "no model_type and no architectures: it".to_string(),
            };
            let decoders = crate::auto::model_types();
            match said.model_type {
                Some(name) if decoders.contains(&name.as_str()) => bail!(
                    "{found} is a text generation model; expected an embedding model: {}",
                    all()
                ),
                _ => bail!("{found} is not supported; supported: {}", all()),
            }
        };
        let config = Config::read(family.defaults, json)?;
        (family.read)(family.model_type, &config).context(family.model_type)
    }
}

/// A field that has to be a whole number.
fn size(json: &Config, name: &str) -> Result<usize> {
    match json.size(name) {
        Some(size) => Ok(size),
        None => bail!("{name}: expected a whole number"),
    }
}

/// Switches that change what the model computes, in a way that is not supported.
fn refuse(json: &Config, switches: &[&str]) -> Result<()> {
    match switches.iter().find(|switch| json.flag(switch)) {
        Some(switch) => bail!("{switch}: true is not supported"),
        None => Ok(()),
    }
}

pub(super) fn padding(json: &Config) -> Result<u32> {
    let id = size(json, "pad_token_id")?;
    u32::try_from(id).with_context(|| format!("pad_token_id: {id} is not a token id"))
}

fn read_bert(model_type: &'static str, json: &Config) -> Result<EncoderConfig> {
    refuse(json, &["is_decoder"])?;
    let config: bert::Config = json.parse()?;
    Ok(EncoderConfig {
        model_type,
        size: config.hidden_size,
        max_tokens: config.max_position_embeddings,
        vocab: config.vocab_size,
        padding: padding(json)?,
        causal: false,
        load: Arc::new(move |vb| {
            let model = bert::BertModel::load(vb, &config)?;
            Ok(Box::new(move |ids, mask, types| match types {
                Some(types) => model.forward(ids, types, Some(mask)),
                None => model.forward(ids, &ids.zeros_like()?, Some(mask)),
            }))
        }),
    })
}

fn read_distilbert(model_type: &'static str, json: &Config) -> Result<EncoderConfig> {
    let config: distilbert::Config = json.parse()?;
    Ok(EncoderConfig {
        model_type,
        size: config.dim,
        max_tokens: size(json, "max_position_embeddings")?,
        vocab: config.vocab_size,
        padding: padding(json)?,
        causal: false,
        load: Arc::new(move |vb| {
            let vb = below(vb, "distilbert", FIRST);
            let model = distilbert::DistilBertModel::load(vb, &config)?;
            // Its masks have 1 for what is hidden.
            Ok(Box::new(move |ids, mask, _| {
                let hidden = mask.eq(0u32)?.unsqueeze(1)?.unsqueeze(1)?;
                model.forward(ids, &hidden)
            }))
        }),
    })
}

fn read_roberta(model_type: &'static str, json: &Config) -> Result<EncoderConfig> {
    refuse(json, &["is_decoder"])?;
    if json.value::<String>("position_embedding_type")?.as_deref() == Some("rotary") {
        bail!("position_embedding_type: \"rotary\", as in jina-embeddings-v3, is not supported; take jina-embeddings-v3-hf, whose model_type is jina_embeddings_v3")
    }
    let config: xlm_roberta::Config = json.parse()?;
    // Positions are counted from the one after padding's.
    let before = config.pad_token_id as usize + 1;
    Ok(EncoderConfig {
        model_type,
        size: config.hidden_size,
        max_tokens: config.max_position_embeddings.saturating_sub(before),
        vocab: config.vocab_size,
        padding: config.pad_token_id,
        causal: false,
        load: Arc::new(move |vb| {
            let vb = below(vb, "roberta", FIRST);
            let model = xlm_roberta::XLMRobertaModel::new(&config, vb)?;
            Ok(Box::new(move |ids, mask, _| {
                model.forward(ids, mask, &ids.zeros_like()?, None, None, None)
            }))
        }),
    })
}

fn read_modernbert(model_type: &'static str, json: &Config) -> Result<EncoderConfig> {
    refuse(json, &["attention_bias", "mlp_bias", "norm_bias"])?;
    let json = json.renamed(&[
        ("rope_theta", "global_rope_theta"),
        ("rope_local_base_freq", "local_rope_theta"),
        ("norm_eps", "layer_norm_eps"),
    ]);
    let activation = json.value("hidden_activation")?.unwrap_or(Activation::Gelu);
    let config: modernbert::Config =
        json.parse_without(&["hidden_activation", "classifier_activation"])?;
    Ok(EncoderConfig {
        model_type,
        size: config.hidden_size,
        max_tokens: config.max_position_embeddings,
        vocab: config.vocab_size,
        padding: config.pad_token_id,
        causal: false,
        load: Arc::new(move |vb| {
            // The model looks below `model`, where checkpoints without a head have nothing.
            let vb = match vb.contains_tensor("embeddings.tok_embeddings.weight") {
                true => vb.rename_f(|name| name.strip_prefix("model.").unwrap_or(name).to_string()),
                false => vb,
            };
            let model = modernbert::ModernBert::load_with_activation(vb, &config, activation)?;
            Ok(Box::new(move |ids: &Tensor, mask: &Tensor, _| {
                model.forward(ids, mask)
            }))
        }),
    })
}

fn read_nomic(model_type: &'static str, json: &Config) -> Result<EncoderConfig> {
    if let Some(experts) = json.size("num_experts").filter(|experts| *experts > 0) {
        bail!("num_experts: {experts} experts are not supported; expected a model without experts")
    }
    let config: nomic_bert::Config = json.parse()?;
    Ok(EncoderConfig {
        model_type,
        size: config.n_embd,
        max_tokens: config.n_positions,
        vocab: config.vocab_size,
        padding: padding(json)?,
        causal: false,
        load: Arc::new(move |vb| {
            let model = nomic_bert::NomicBertModel::load(vb, &config)?;
            Ok(Box::new(move |ids, mask, _| {
                model.forward(ids, None, Some(mask))
            }))
        }),
    })
}

fn read_jina(model_type: &'static str, json: &Config) -> Result<EncoderConfig> {
    let config: jina_bert::Config = json.parse()?;
    Ok(EncoderConfig {
        model_type,
        size: config.hidden_size,
        max_tokens: config.max_position_embeddings,
        vocab: config.vocab_size,
        padding: padding(json)?,
        causal: false,
        load: Arc::new(move |vb| {
            let vb = below(vb, "bert", FIRST);
            // Of the models for code, whose weights otherwise have the same names.
            if vb.contains_tensor("encoder.layer.0.attention.self.layer_norm_q.weight") {
                bail!("jina_bert: the checkpoint norms queries and keys, which is not supported")
            }
            let model = jina_bert::BertModel::new(vb, &config)?;
            Ok(Box::new(move |ids, mask, _| {
                model.forward_masked(ids, Some(mask))
            }))
        }),
    })
}

fn read_jina_v3(model_type: &'static str, json: &Config) -> Result<EncoderConfig> {
    let config: jina_embeddings_v3::Config = json.parse()?;
    Ok(EncoderConfig {
        model_type,
        size: config.hidden_size,
        max_tokens: config.max_position_embeddings,
        vocab: config.vocab_size,
        padding: padding(json)?,
        causal: false,
        load: Arc::new(move |vb| {
            let model = jina_embeddings_v3::Model::load(vb, &config)?;
            Ok(Box::new(move |ids: &Tensor, mask: &Tensor, _| {
                model.forward(ids, mask)
            }))
        }),
    })
}

fn read_deberta(model_type: &'static str, json: &Config) -> Result<EncoderConfig> {
    let config: debertav2::Config = json.parse()?;
    Ok(EncoderConfig {
        model_type,
        size: config.hidden_size,
        max_tokens: config.max_position_embeddings,
        vocab: config.vocab_size,
        padding: padding(json)?,
        causal: false,
        load: Arc::new(move |vb| {
            let vb = below(vb, "deberta", FIRST);
            let model = debertav2::DebertaV2Model::load(vb, &config)?;
            Ok(Box::new(move |ids, mask, types| {
                model.forward(ids, types.cloned(), Some(mask.clone()))
            }))
        }),
    })
}
