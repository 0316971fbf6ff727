//! `config.json` and `generation_config.json`, checked so that an error names the file and the field.

use crate::error::{brief, one_line};
use crate::{Error, Result};
use candle_transformers::models::llama::{Config, LlamaConfig, LlamaEosToks};
use serde_json::{Map, Value};
use std::path::Path;

/// More positions than any Llama has. The tables of the rotary embedding grow with them, so a configuration must not be
/// able to ask for all of the memory.
const MAX_POSITIONS: u64 = 1 << 22;

/// The most that any other size may be: large enough for every model, small enough that products of two fit.
const MAX_SIZE: u64 = 1 << 31;

/// The sizes that a configuration states, whether it has to, and the most that each may be.
const SIZES: [(&str, bool, u64); 8] = [
    ("hidden_size", true, MAX_SIZE),
    ("intermediate_size", true, MAX_SIZE),
    ("vocab_size", true, MAX_SIZE),
    ("num_hidden_layers", true, MAX_SIZE),
    ("num_attention_heads", true, MAX_SIZE),
    ("num_key_value_heads", false, MAX_SIZE),
    ("head_dim", false, MAX_SIZE),
    ("max_position_embeddings", true, MAX_POSITIONS),
];

/// What `generation_config.json` adds.
pub(super) struct Generation {
    pub(super) begin_token: Option<u32>,
    pub(super) end_tokens: Vec<u32>,
}

/// Reads the configuration of a Llama.
pub(super) fn parse(file: &Path, bytes: &[u8]) -> Result<Config> {
    let fields = Fields::parse(file, bytes)?;
    match fields.checked("model_type", "a string", Value::as_str)? {
        Some(other) if other != "llama" => {
            let problem = format!("`{other}` is not supported, `llama` is");
            return Err(fields.error("model_type", problem));
        }
        _ => {}
    }
    if fields.get("quantization_config").is_some() {
        let problem = "quantised weights are not supported; expected f32, f16 or bf16";
        return Err(fields.error("quantization_config", problem));
    }
    for (name, required, max) in SIZES {
        fields.size(name, required, max)?;
    }
    let epsilon = fields.checked("rms_norm_eps", "a number above 0", |value| {
        value.as_f64().filter(|number| *number > 0.0)
    })?;
    if epsilon.is_none() {
        return Err(fields.error("rms_norm_eps", "missing"));
    }
    fields.checked("tie_word_embeddings", "true or false", Value::as_bool)?;
    fields.tokens("bos_token_id")?;
    fields.tokens("eos_token_id")?;

    let json: LlamaConfig = serde_json::from_value(Value::Object(fields.map))
        .map_err(|err| Error::file(file, one_line(&err.to_string())))?;
    let config = json.into_config(false);
    config
        .validate()
        .map_err(|err| Error::file(file, brief(&err)))?;
    Ok(config)
}

/// Reads the token ids of `generation_config.json`.
pub(super) fn parse_generation(file: &Path, bytes: &[u8]) -> Result<Generation> {
    let fields = Fields::parse(file, bytes)?;
    Ok(Generation {
        begin_token: fields.tokens("bos_token_id")?.first().copied(),
        end_tokens: fields.tokens("eos_token_id")?,
    })
}

/// The end tokens of a configuration as a list.
pub(super) fn end_tokens(config: &Config) -> Vec<u32> {
    match &config.eos_token_id {
        None => Vec::new(),
        Some(LlamaEosToks::Single(one)) => vec![*one],
        Some(LlamaEosToks::Multiple(several)) => several.clone(),
    }
}

/// A JSON object with the file it comes from. `null` counts as absent, as it does in Python.
struct Fields<'a> {
    file: &'a Path,
    map: Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn parse(file: &'a Path, bytes: &[u8]) -> Result<Self> {
        let map = serde_json::from_slice(bytes).map_err(|err| Error::file(file, err))?;
        Ok(Self { file, map })
    }

    fn error(&self, name: &str, problem: impl Into<String>) -> Error {
        Error::Field {
            file: self.file.display().to_string(),
            field: name.to_string(),
            problem: problem.into(),
        }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The field as `convert` takes it, `None` if it is absent.
    fn checked<'f, T>(
        &'f self,
        name: &str,
        expected: &str,
        convert: impl Fn(&'f Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let converted = convert(value).ok_or_else(|| {
            let problem = format!("expected {expected}, found {}", short(value));
            self.error(name, problem)
        })?;
        Ok(Some(converted))
    }

    fn size(&self, name: &str, required: bool, max: u64) -> Result<()> {
        let expected = format!("a whole number from 1 to {max}");
        let size = self.checked(name, &expected, |value| {
            value.as_u64().filter(|size| (1..=max).contains(size))
        })?;
        if required && size.is_none() {
            return Err(self.error(name, "missing"));
        }
        Ok(())
    }

    /// One token id, or a list of them.
    fn tokens(&self, name: &str) -> Result<Vec<u32>> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = self.checked(name, "a token id or a list of them", |value| match value {
            Value::Array(values) => values.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        })?;
        Ok(ids.unwrap_or_default())
    }
}

/// A value for a message, cut to a length that fits a line.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
