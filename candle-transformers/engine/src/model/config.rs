//! `config.json` and `generation_config.json`, checked so that an error names the file and the field.

use super::{kind, SamplingDefaults};
use crate::error::brief;
use crate::{Error, Result};
use candle_transformers::auto;
use candle_transformers::blocks::DecoderSpec;
use serde_json::{Map, Value};
use std::path::Path;

/// The most that a size may be: large enough for every model, small enough that products of two fit.
const MAX_SIZE: u64 = 1 << 31;

/// More positions than any model has.
const MAX_POSITIONS: u64 = 1 << 22;

/// The contents of `config.json`.
pub(super) struct Config {
    pub(super) spec: DecoderSpec,
    pub(super) begin_token: Option<u32>,
    pub(super) end_tokens: Vec<u32>,
}

/// The contents of `generation_config.json`.
pub(super) struct Generation {
    pub(super) begin_token: Option<u32>,
    pub(super) end_tokens: Vec<u32>,
    pub(super) sampling: SamplingDefaults,
}

/// Reads the configuration of a language model.
pub(super) fn parse(file: &Path, bytes: &[u8]) -> Result<Config> {
    let mut fields = Fields::parse(file, bytes)?;
    // Models that also take images have the fields of their language model in an object.
    fields.map.retain(|_, value| !value.is_null());
    if let Some(Value::Object(text)) = fields.map.remove("text_config") {
        for (name, value) in text {
            fields.map.entry(name).or_insert(value);
        }
    }
    if fields.get("quantization_config").is_some() {
        let problem = "quantised weights are not supported; expected f32, f16 or bf16";
        return Err(fields.error("quantization_config", problem));
    }
    fields.checked("model_type", "a string", Value::as_str)?;
    // Names of sizes differ by family, but not what a size can be.
    for name in fields.map.keys() {
        let max = match name.as_str() {
            "max_position_embeddings" => MAX_POSITIONS,
            _ => MAX_SIZE,
        };
        let linear = name.starts_with("linear_num_")
            || name.starts_with("linear_") && name.ends_with("_dim");
        if name.starts_with("num_") || name.ends_with("_size") || linear || max == MAX_POSITIONS {
            fields.size(name, max)?;
        }
    }
    fields.checked("tie_word_embeddings", "true or false", Value::as_bool)?;
    let (begin, end_tokens) = (
        fields.tokens("bos_token_id")?,
        fields.tokens("eos_token_id")?,
    );
    let text = std::str::from_utf8(bytes).map_err(|err| Error::file(file, err))?;
    let spec = auto::config_spec(text).map_err(|err| match kind::command_for(text) {
        Some(command) => fields.error("model_type", command),
        None => Error::file(file, brief(&err)),
    })?;
    Ok(Config {
        spec,
        begin_token: begin.first().copied(),
        end_tokens,
    })
}

/// Reads the token ids and the sampling settings of `generation_config.json`.
pub(super) fn parse_generation(file: &Path, bytes: &[u8]) -> Result<Generation> {
    let fields = Fields::parse(file, bytes)?;
    Ok(Generation {
        begin_token: fields.tokens("bos_token_id")?.first().copied(),
        end_tokens: fields.tokens("eos_token_id")?,
        sampling: SamplingDefaults::of_json(file, &fields.map),
    })
}

/// A JSON object with the file it comes from. `null` counts as absent, as it does in Python.
pub(super) struct Fields<'a> {
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
    pub(super) fn checked<'f, T>(
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

    fn size(&self, name: &str, max: u64) -> Result<()> {
        let expected = format!("a whole number from 1 to {max}");
        self.checked(name, &expected, |value| {
            value.as_u64().filter(|size| (1..=max).contains(size))
        })?;
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
