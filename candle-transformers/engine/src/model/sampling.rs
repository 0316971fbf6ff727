//! How a model's makers have its tokens chosen.

use super::config::Fields;
use crate::backend::CompletionRequest;
use crate::error::brief;
use crate::{Error, Result};
use candle_core::quantized::gguf_file::{Content, Value as GgufValue};
use serde_json::Value;
use std::path::Path;

/// What a model's files say of how its tokens are chosen; what they do not say is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// As [`CompletionRequest::temperature`].
    pub temperature: Option<f64>,
    /// As [`CompletionRequest::top_k`].
    pub top_k: Option<usize>,
    /// As [`CompletionRequest::top_p`].
    pub top_p: Option<f64>,
    /// As [`CompletionRequest::min_p`].
    pub min_p: Option<f64>,
    /// As [`CompletionRequest::repeat_penalty`].
    pub repeat_penalty: Option<f32>,
}

impl SamplingDefaults {
    /// A request that draws so, and is the default else.
    pub fn request(&self) -> CompletionRequest {
        let default = CompletionRequest::default();
        CompletionRequest {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty.unwrap_or(default.repeat_penalty),
            ..default
        }
    }

    /// Of `generation_config.json`. As in Transformers, nothing is drawn without `do_sample`, whatever the temperature.
    pub(super) fn of_fields(fields: &Fields) -> Result<Self> {
        let number = |name: &str| fields.checked(name, "a number", Value::as_f64);
        let repeat_penalty = number("repetition_penalty")?.map(|penalty| penalty as f32);
        let draws = fields.checked("do_sample", "true or false", Value::as_bool)?;
        if draws != Some(true) {
            return Ok(Self {
                repeat_penalty,
                ..Self::default()
            });
        }
        let top_k = fields.checked("top_k", "a whole number", Value::as_u64)?;
        Ok(Self {
            temperature: Some(number("temperature")?.unwrap_or(1.0)),
            // 0 draws from all.
            top_k: top_k.filter(|k| *k > 0).map(|k| k as usize),
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repeat_penalty,
        })
    }

    /// Of a GGUF file, where newer converters write them.
    pub(super) fn of_gguf(file: &Path, content: &Content) -> Result<Self> {
        let value = |name: &str| {
            let key = format!("general.sampling.{name}");
            let value = content.metadata.get(&key)?;
            let number = match value {
                GgufValue::I32(number) => Ok(f64::from(*number)),
                GgufValue::U32(number) => Ok(f64::from(*number)),
                _ => value.to_f32().map(f64::from),
            };
            Some(number.map_err(|err| Error::Field {
                file: file.display().to_string(),
                field: key,
                problem: brief(&err),
            }))
        };
        let number = |name: &str| value(name).transpose();
        // -1 and 0 draw from all.
        let top_k = number("top_k")?.filter(|k| *k >= 1.0);
        Ok(Self {
            temperature: number("temp")?,
            top_k: top_k.map(|k| k as usize),
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repeat_penalty: number("penalty_repeat")?.map(|penalty| penalty as f32),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::parse_generation;
    use std::collections::HashMap;

    fn json(text: &str) -> Result<SamplingDefaults> {
        let file = Path::new("generation_config.json");
        Ok(parse_generation(file, text.as_bytes())?.sampling)
    }

    #[test]
    fn generation_configs_draw_as_transformers_does() {
        let llama = r#"{"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 0, "eos_token_id": [1, 2]}"#;
        let expected = SamplingDefaults {
            temperature: Some(0.6),
            top_p: Some(0.9),
            ..Default::default()
        };
        assert_eq!(json(llama).unwrap(), expected);
        let request = expected.request();
        assert_eq!((request.temperature, request.top_p), (0.6, Some(0.9)));
        let all = r#"{"do_sample": true, "top_k": 64, "min_p": 0.1, "repetition_penalty": 1.1}"#;
        let expected = SamplingDefaults {
            temperature: Some(1.0),
            top_k: Some(64),
            top_p: None,
            min_p: Some(0.1),
            repeat_penalty: Some(1.1),
        };
        assert_eq!(json(all).unwrap(), expected);
        for greedy in ["{}", r#"{"do_sample": false, "temperature": 0.6}"#] {
            assert_eq!(json(greedy).unwrap(), SamplingDefaults::default());
        }
        let error = json(r#"{"do_sample": true, "temperature": "hot"}"#).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("temperature") && error.contains("a number"),
            "{error}"
        );
    }

    #[test]
    fn gguf_files_name_them() {
        let of = |pairs: &[(&str, GgufValue)]| {
            let metadata: HashMap<String, GgufValue> = pairs
                .iter()
                .map(|(key, value)| (format!("general.sampling.{key}"), value.clone()))
                .collect();
            let content = Content {
                magic: candle_core::quantized::gguf_file::VersionedMagic::GgufV3,
                metadata,
                tensor_infos: HashMap::new(),
                tensor_data_offset: 0,
            };
            SamplingDefaults::of_gguf(Path::new("a.gguf"), &content)
        };
        assert_eq!(of(&[]).unwrap(), SamplingDefaults::default());
        let found = of(&[
            ("temp", GgufValue::F32(0.5)),
            ("top_k", GgufValue::I32(20)),
            ("top_p", GgufValue::F32(0.75)),
        ]);
        let expected = SamplingDefaults {
            temperature: Some(0.5),
            top_k: Some(20),
            top_p: Some(0.75),
            ..Default::default()
        };
        assert_eq!(found.unwrap(), expected);
        assert_eq!(of(&[("top_k", GgufValue::I32(-1))]).unwrap().top_k, None);
        let wrong = of(&[("temp", GgufValue::String("hot".to_string()))]);
        let error = wrong.unwrap_err().to_string();
        assert!(error.contains("general.sampling.temp"), "{error}");
    }
}
