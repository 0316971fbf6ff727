//! Encoders of text in GGUF files: the file's metadata as a `config.json`, and its tensors under Hugging Face's names.

use std::sync::Arc;

use candle_core::quantized::gguf_file::{Content, MmapedContent, Value};
use candle_core::{bail, Context, DType, Device, Error, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use serde_json::json;

use super::{EncoderConfig, Pooling, Recipe};
use crate::blocks::{GgufMetadata, Reading, Wanted, WeightSource};

/// An architecture: what its metadata is called in a `config.json`, and its tensors.
struct Architecture {
    name: &'static str,
    config: fn(&GgufMetadata) -> Result<serde_json::Value>,
    /// Names without a layer, and without `.weight` and `.bias`: Hugging Face's and the file's.
    tensors: &'static [(&'static str, &'static str)],
    /// Prefix of the layers' numbers in Hugging Face's names.
    layers: &'static str,
    /// Names in a layer.
    parts: &'static [(&'static str, &'static str)],
}

const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        name: "bert",
        config: bert,
        tensors: &[
            ("embeddings.word_embeddings", "token_embd"),
            ("embeddings.position_embeddings", "position_embd"),
            ("embeddings.token_type_embeddings", "token_types"),
            ("embeddings.LayerNorm", "token_embd_norm"),
        ],
        layers: "encoder.layer.",
        parts: &[
            ("attention.self.query", "attn_q"),
            ("attention.self.key", "attn_k"),
            ("attention.self.value", "attn_v"),
            ("attention.output.dense", "attn_output"),
            ("attention.output.LayerNorm", "attn_output_norm"),
            ("intermediate.dense", "ffn_up"),
            ("output.dense", "ffn_down"),
            ("output.LayerNorm", "layer_output_norm"),
        ],
    },
    Architecture {
        name: "nomic-bert",
        config: nomic,
        tensors: &[
            ("embeddings.word_embeddings", "token_embd"),
            ("embeddings.token_type_embeddings", "token_types"),
            ("emb_ln", "token_embd_norm"),
        ],
        layers: "encoder.layers.",
        parts: &[
            ("attn.Wqkv", "attn_qkv"),
            ("attn.out_proj", "attn_output"),
            ("norm1", "attn_output_norm"),
            ("mlp.fc11", "ffn_up"),
            ("mlp.fc12", "ffn_gate"),
            ("mlp.fc2", "ffn_down"),
            ("norm2", "layer_output_norm"),
        ],
    },
];

impl Architecture {
    /// The name that the file has for a tensor.
    fn renamed(&self, name: &str) -> Option<String> {
        let (stem, ending) = name.rsplit_once('.')?;
        let found = |table: &[(&str, &'static str)], stem: &str| {
            table
                .iter()
                .find(|(from, _)| *from == stem)
                .map(|(_, to)| *to)
        };
        let Some(rest) = stem.strip_prefix(self.layers) else {
            return Some(format!("{}.{ending}", found(self.tensors, stem)?));
        };
        let (layer, part) = rest.split_once('.')?;
        Some(format!("blk.{layer}.{}.{ending}", found(self.parts, part)?))
    }
}

/// Rows of a table, 0 if there is none.
fn rows(file: &GgufMetadata, tensor: &str) -> Result<usize> {
    match file.shape(tensor) {
        None => Ok(0),
        Some(shape) => {
            let (rows, _) = shape
                .dims2()
                .with_context(|| format!("tensor {tensor:?}"))?;
            Ok(rows)
        }
    }
}

fn bert(file: &GgufMetadata) -> Result<serde_json::Value> {
    Ok(json!({
        "model_type": "bert",
        "vocab_size": rows(file, "token_embd.weight")?,
        "hidden_size": file.hidden()?,
        "num_hidden_layers": file.layers()?,
        "num_attention_heads": file.required_size("attention.head_count")?,
        "intermediate_size": file.required_size("feed_forward_length")?,
        "max_position_embeddings": rows(file, "position_embd.weight")?,
        "type_vocab_size": rows(file, "token_types.weight")?,
        "layer_norm_eps": file.required_float("attention.layer_norm_epsilon")?,
    }))
}

fn nomic(file: &GgufMetadata) -> Result<serde_json::Value> {
    if let Some(experts) = file.count("expert_count")?.filter(|count| *count > 0) {
        return file.refuse(
            "expert_count",
            format!("{experts}; experts are not supported"),
        );
    }
    let qkv_bias = file.first_layer_has("attn_qkv.bias");
    Ok(json!({
        "model_type": "nomic_bert",
        "vocab_size": rows(file, "token_embd.weight")?,
        "n_embd": file.hidden()?,
        "n_head": file.required_size("attention.head_count")?,
        "n_layer": file.layers()?,
        "n_inner": file.required_size("feed_forward_length")?,
        "n_positions": file.positions()?,
        "type_vocab_size": rows(file, "token_types.weight")?,
        "layer_norm_epsilon": file.required_float("attention.layer_norm_epsilon")?,
        "rotary_emb_base": file.float("rope.freq_base")?.unwrap_or(10_000.),
        "rotary_emb_fraction": 1.,
        "rotary_emb_interleaved": false,
        "qkv_proj_bias": qkv_bias,
        "mlp_fc1_bias": file.first_layer_has("ffn_up.bias"),
        "mlp_fc2_bias": file.first_layer_has("ffn_down.bias"),
        "activation_function": "swiglu",
        "prenorm": false,
    }))
}

/// The values of `general.architecture` of encoders that [`EncoderConfig::of_gguf`] takes.
pub fn architectures() -> Vec<&'static str> {
    ARCHITECTURES.iter().map(|known| known.name).collect()
}

fn architecture(name: &str) -> Result<&'static Architecture> {
    match ARCHITECTURES.iter().find(|known| known.name == name) {
        Some(found) => Ok(found),
        None => bail!(
            "GGUF metadata general.architecture: {name:?} is not supported here; supported: {}",
            architectures().join(", ")
        ),
    }
}

/// The shapes of a file whose tensors are read elsewhere.
struct Shapes<'a>(&'a Content);

impl WeightSource for Shapes<'_> {
    fn contains(&self, name: &str) -> bool {
        self.0.tensor_infos.contains_key(name)
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        let info = self.0.tensor_infos.get(name)?;
        Some(info.shape.clone())
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        let err = format!("tensor {:?} was read with the metadata", wanted.name);
        Box::pin(std::future::ready(Err(Error::Msg(err).bt())))
    }
}

impl EncoderConfig {
    /// The encoder that a GGUF file describes, and how its vectors are meant to be made.
    ///
    /// # Errors
    /// If the architecture is not that of an encoder that is known, or a key is missing or does not fit.
    pub fn of_gguf(content: &Content) -> Result<(Self, Recipe)> {
        let source = Shapes(content);
        let file = GgufMetadata::new(&content.metadata, &source)?;
        let known = architecture(file.architecture())?;
        let mut config = (known.config)(&file)?;
        if let Some(Value::U32(id)) = content.metadata.get("tokenizer.ggml.padding_token_id") {
            config["pad_token_id"] = json!(id);
        }
        let config = Self::parse(&config.to_string()).context("GGUF metadata")?;
        let pooling = match file.count("pooling_type")? {
            // 0: the file says that the vectors of tokens are the result; sentence-transformers takes the mean then.
            None | Some(0 | 1) => Pooling::Mean,
            Some(2) => Pooling::Cls,
            Some(3) => Pooling::Last,
            Some(4) => {
                return file.refuse(
                    "pooling_type",
                    "4, a model that ranks texts, which makes no vectors".into(),
                )
            }
            Some(other) => return file.refuse("pooling_type", format!("{other}; expected 0 to 3")),
        };
        let recipe = Recipe {
            pooling,
            // llama.cpp divides all vectors by their length, and files say nothing of it.
            normalize: true,
            ..Recipe::default()
        };
        Ok((config, recipe))
    }
}

/// Tensors of a GGUF file, as numbers, under Hugging Face's names.
struct Renamed {
    content: Arc<MmapedContent>,
    architecture: &'static Architecture,
}

impl Renamed {
    fn find(&self, name: &str) -> Option<String> {
        let renamed = self.architecture.renamed(name)?;
        self.content
            .tensor_infos
            .contains_key(&renamed)
            .then_some(renamed)
    }
}

impl SimpleBackend for Renamed {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        if tensor.shape() != &shape {
            bail!(
                "tensor {:?} has shape {:?}, but the model expects {:?}",
                self.architecture.renamed(name).unwrap_or_default(),
                tensor.dims(),
                shape.dims()
            )
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let Some(renamed) = self.find(name) else {
            let path = match self.architecture.renamed(name) {
                Some(renamed) => format!("{renamed} (for {name})"),
                None => name.to_string(),
            };
            return Err(Error::CannotFindTensor { path }.bt());
        };
        let tensor = self.content.tensor(&renamed, &Device::Cpu)?;
        tensor
            .dequantize(&Device::Cpu)?
            .to_dtype(dtype)?
            .to_device(device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.find(name).is_some()
    }
}

/// The weights of an encoder in a GGUF file, as numbers of `dtype`, under the names that [`EncoderConfig::load`] asks for.
///
/// # Errors
/// If the architecture is not that of an encoder that is known.
pub fn gguf_weights(
    content: Arc<MmapedContent>,
    dtype: DType,
    device: &Device,
) -> Result<VarBuilder<'static>> {
    let name = match content.metadata.get("general.architecture") {
        Some(name) => name
            .to_string()
            .context("GGUF metadata general.architecture")?
            .clone(),
        None => bail!("GGUF metadata general.architecture is missing"),
    };
    let architecture = architecture(&name)?;
    let backend = Renamed {
        content,
        architecture,
    };
    Ok(VarBuilder::from_backend(
        Box::new(backend),
        dtype,
        device.clone(),
    ))
}
