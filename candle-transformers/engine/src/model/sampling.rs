//! Sampling settings that come with a model: in `generation_config.json`, or under `general.sampling` in a GGUF file.

use crate::backend::CompletionRequest;
use candle_core::quantized::gguf_file::{Content, Value as Metadata};
use serde_json::{Map, Value};
use std::path::Path;

/// Sampling settings that a model's authors recommend; `None` for those that they do not mention.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// Whether tokens are drawn; otherwise the most likely one is chosen.
    pub draws: Option<bool>,
    /// Divisor of the logits, from 0.
    pub temperature: Option<f64>,
    /// Number of the most likely tokens to draw from, from 1.
    pub top_k: Option<usize>,
    /// Total probability of the tokens to draw from, above 0 and at most 1.
    pub top_p: Option<f64>,
    /// Smallest share of the most likely token's probability, from 0 to 1.
    pub min_p: Option<f64>,
    /// Penalty on recent tokens, above 0.
    pub repeat_penalty: Option<f64>,
}

impl SamplingDefaults {
    /// With a temperature wherever the model's files say whether tokens are drawn. As in Transformers, they are drawn at 1 where a filter alone
    /// is mentioned, and not at all where `draws` is false.
    pub fn resolved(self) -> Self {
        let filtered = self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some();
        match self.draws {
            Some(false) => Self {
                draws: self.draws,
                temperature: Some(0.),
                repeat_penalty: self.repeat_penalty,
                ..Self::default()
            },
            draws if draws.is_some() || filtered => Self {
                temperature: self.temperature.or(Some(1.)),
                ..self
            },
            _ => self,
        }
    }

    /// A request that draws so; what is not mentioned is as by default.
    pub fn request(&self) -> CompletionRequest {
        let (said, default) = (self.resolved(), CompletionRequest::default());
        let repeat_penalty = said.repeat_penalty.map(|penalty| penalty as f32);
        CompletionRequest {
            temperature: said.temperature.unwrap_or(default.temperature),
            top_k: said.top_k,
            top_p: said.top_p,
            min_p: said.min_p,
            repeat_penalty: repeat_penalty.unwrap_or(default.repeat_penalty),
            ..default
        }
    }

    /// These, or for a conversation with a model whose authors mention none, some variety.
    pub fn for_chat(self) -> Self {
        let silent = Self {
            repeat_penalty: None,
            ..self
        };
        if silent == Self::default() {
            Self {
                draws: Some(true),
                temperature: Some(0.7),
                top_p: Some(0.95),
                ..self
            }
        } else {
            self
        }
    }

    pub(super) fn of_json(file: &Path, fields: &Map<String, Value>) -> Self {
        let number = |name: &str| match fields.get(name)? {
            Value::Null => None,
            // No setting allows it, so it is reported like a number out of range.
            value => Some(value.as_f64().unwrap_or(f64::NAN)),
        };
        let names = [
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
        ];
        Self {
            draws: fields.get("do_sample").and_then(Value::as_bool),
            ..Self::read(file, names, number)
        }
    }

    pub(super) fn of_gguf(file: &Path, content: &Content) -> Self {
        let number = |name: &str| {
            let value = content.metadata.get(&format!("general.sampling.{name}"))?;
            Some(match value {
                // The shortest decimal of the f32: 0.95, not 0.949999988079071.
                Metadata::F32(value) => value.to_string().parse().unwrap_or(f64::NAN),
                Metadata::F64(value) => *value,
                Metadata::I32(value) => f64::from(*value),
                value => value.to_u32().map_or(f64::NAN, f64::from),
            })
        };
        let names = ["temp", "top_k", "top_p", "min_p", "penalty_repeat"];
        Self::read(file, names, number)
    }

    /// The settings of these names, in the order of the fields. A value that no sampler can use is ignored, with a warning.
    fn read(file: &Path, names: [&str; 5], number: impl Fn(&str) -> Option<f64>) -> Self {
        let take = |index: usize, fits: fn(f64) -> bool| {
            let value = number(names[index])?;
            if !fits(value) {
                let (file, name) = (file.display(), names[index]);
                tracing::warn!(
                    "{file}: {name} is {value}, which no sampler can use; it is ignored"
                );
            }
            Some(value).filter(|value| fits(*value))
        };
        let whole = |k: f64| k.fract() == 0. && k.abs() < 1e9;
        Self {
            draws: None,
            temperature: take(0, |t| t.is_finite() && t >= 0.),
            // 0 and -1 mean all tokens.
            top_k: take(1, whole).filter(|k| *k >= 1.).map(|k| k as usize),
            top_p: take(2, |p| p > 0. && p <= 1.),
            min_p: take(3, |p| (0. ..=1.).contains(&p)),
            repeat_penalty: take(4, |r| r.is_finite() && r > 0.),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn json(text: &str) -> SamplingDefaults {
        SamplingDefaults::of_json(Path::new("f"), &serde_json::from_str(text).unwrap())
    }

    #[test]
    fn settings_of_generation_config() {
        let found = json(
            r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0, "repetition_penalty": 1.1}"#,
        );
        let expected = SamplingDefaults {
            draws: Some(true),
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            min_p: Some(0.),
            repeat_penalty: Some(1.1),
        };
        assert_eq!(found, expected);
        let none = json(
            r#"{"temperature": "hot", "top_k": 0, "top_p": 1.5, "min_p": null, "repetition_penalty": -1, "eos_token_id": 2}"#,
        );
        assert_eq!(none, SamplingDefaults::default());
        assert_eq!(
            json(r#"{"top_k": 1.5, "top_p": 0, "temperature": -1}"#),
            none
        );
    }

    #[test]
    fn requests_draw_as_the_settings_say() {
        let settings = |defaults: SamplingDefaults| {
            let request = defaults.request();
            (
                request.temperature,
                request.top_k,
                request.top_p,
                request.repeat_penalty,
            )
        };
        let none = SamplingDefaults::default();
        assert_eq!(settings(none), (0., None, None, 1.));
        assert_eq!(settings(none.for_chat()), (0.7, None, Some(0.95), 1.));
        let filtered = json(r#"{"do_sample": true, "top_k": 20, "repetition_penalty": 1.5}"#);
        assert_eq!(settings(filtered), (1., Some(20), None, 1.5));
        assert_eq!(settings(filtered.for_chat()), settings(filtered));
        let greedy = json(r#"{"do_sample": false, "temperature": 0.6}"#);
        assert_eq!(settings(greedy.for_chat()), (0., None, None, 1.));
    }

    #[test]
    fn settings_of_gguf_files() {
        let content = |metadata: &[(&str, Metadata)]| Content {
            magic: candle_core::quantized::gguf_file::VersionedMagic::GgufV3,
            metadata: metadata
                .iter()
                .map(|(name, value)| (format!("general.sampling.{name}"), value.clone()))
                .collect::<HashMap<_, _>>(),
            tensor_infos: HashMap::new(),
            tensor_data_offset: 0,
        };
        let found = SamplingDefaults::of_gguf(
            Path::new("f"),
            &content(&[
                ("temp", Metadata::F32(0.7)),
                ("top_p", Metadata::F32(0.95)),
                ("top_k", Metadata::I32(-1)),
                ("penalty_repeat", Metadata::String("x".to_string())),
            ]),
        );
        let expected = SamplingDefaults {
            temperature: Some(0.7),
            top_p: Some(0.95),
            ..SamplingDefaults::default()
        };
        assert_eq!(found, expected);
    }
}
