//! The fields of requests: each is read by its name, and an unread one is refused.

use super::error::short;
use super::texts::TextModel;
use super::{ApiError, Asked};
use candle_engine::CompletionRequest;
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The most stop sequences of a request, as at OpenAI.
const MAX_STOPS: usize = 4;
/// The most answers to a prompt.
const MAX_ANSWERS: usize = 16;
/// The most tokens that have a bias.
const MAX_BIASES: usize = 1024;

/// Fields that say nothing of the answer.
const NOTES: &[&str] = &[
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];

/// The fields of an object that have not been taken yet. `null` is as good as absent.
pub(super) struct Fields {
    /// The path of the object in messages, such as `messages[2].`.
    prefix: String,
    map: Map<String, Value>,
}

impl Fields {
    /// The fields of a request.
    ///
    /// # Errors
    /// No JSON, or no object.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let map: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|error| ApiError::json(&error))?;
        Ok(Self::of(String::new(), map))
    }

    /// Those of an object inside a request.
    pub(super) fn of(prefix: String, mut map: Map<String, Value>) -> Self {
        map.retain(|_, value| !value.is_null());
        Self { prefix, map }
    }

    /// An error of the field `name`.
    pub(super) fn wrong(&self, name: &str, problem: impl std::fmt::Display) -> ApiError {
        ApiError::field(&format!("{}{name}", self.prefix), problem)
    }

    /// A field that has not been taken; `null` if it is absent.
    pub(super) fn value(&self, name: &str) -> Value {
        self.map.get(name).cloned().unwrap_or_default()
    }

    /// Takes a field.
    ///
    /// # Errors
    /// It is not what is `expected`.
    pub(super) fn take<T: DeserializeOwned>(
        &mut self,
        name: &str,
        expected: &str,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.map.remove(name) else {
            return Ok(None);
        };
        // Before the value is gone; a long one is not written out.
        let found = match &value {
            Value::String(text) => format!("{:?}", short(text)),
            Value::Array(all) => format!("a list of {}", all.len()),
            Value::Object(_) => "an object".to_string(),
            other => other.to_string(),
        };
        let taken = serde_json::from_value(value).map(Some);
        taken.map_err(|_| self.wrong(name, format!("expected {expected}, found {found}")))
    }

    /// Takes a field that has to be there.
    ///
    /// # Errors
    /// It is missing, or not what is `expected`.
    pub(super) fn need<T: DeserializeOwned>(
        &mut self,
        name: &str,
        expected: &str,
    ) -> Result<T, ApiError> {
        let taken = self.take(name, expected)?;
        taken.ok_or_else(|| self.wrong(name, format!("is missing; expected {expected}")))
    }

    /// Takes a field that is not supported, if its value changes nothing.
    ///
    /// # Errors
    /// It has another value.
    pub(super) fn harmless(&mut self, name: &str, values: &[Value]) -> Result<(), ApiError> {
        let is_same = |value: &Value, known: &Value| match (value.as_f64(), known.as_f64()) {
            (Some(a), Some(b)) => a == b,
            _ => value == known,
        };
        match self.map.remove(name) {
            Some(value) if !values.iter().any(|known| is_same(&value, known)) => Err(self.wrong(
                name,
                format!("{} is not supported", short(&value.to_string())),
            )),
            _ => Ok(()),
        }
    }

    /// The unread fields.
    pub(super) fn into_map(self) -> Map<String, Value> {
        self.map
    }

    /// Refuses unread fields.
    ///
    /// # Errors
    /// The first field that is unknown.
    pub(super) fn end(mut self) -> Result<(), ApiError> {
        use serde_json::json;
        self.map.retain(|name, _| !NOTES.contains(&name.as_str()));
        for (name, values) in [
            ("background", json!([false])),
            ("best_of", json!([1])),
            ("echo", json!([false])),
            ("function_call", json!(["none", "auto"])),
            ("functions", json!([[]])),
            ("modalities", json!([["text"]])),
            ("reasoning", json!([{}, {"effort": "none"}])),
            ("reasoning_effort", json!(["none"])),
            ("repetition_penalty", json!([1])),
            ("response_format", json!([{"type": "text"}])),
            ("suffix", json!([""])),
            ("tool_choice", json!(["none", "auto"])),
            ("tools", json!([[]])),
            ("truncation", json!(["disabled"])),
            ("verbosity", json!(["medium"])),
        ] {
            let values = values.as_array().map_or(&[][..], Vec::as_slice);
            self.harmless(name, values)?;
        }
        match self.map.keys().next() {
            None => Ok(()),
            Some(name) => Err(self.wrong(&short(name), "this field is not supported; remove it")),
        }
    }
}

/// One text or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Texts {
    One(String),
    Several(Vec<String>),
}

impl Texts {
    fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Several(texts) => texts,
        }
    }
}

/// Texts, or their tokens.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Input {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

impl Input {
    pub(super) const EXPECTED: &'static str =
        "a text, a list of texts, a list of tokens or a list of such lists";
}

/// The settings for choosing tokens, and the other fields that both kinds of completions have.
pub(super) struct Common {
    pub(super) model: Arc<TextModel>,
    /// The prompt and the most tokens are yet to come.
    pub(super) request: CompletionRequest,
    /// Answers to each prompt.
    pub(super) answers: usize,
    pub(super) stream: bool,
    pub(super) with_usage: bool,
}

impl Common {
    /// Takes the fields.
    ///
    /// # Errors
    /// One of another type or out of range; a model that is not served.
    pub(super) fn take(fields: &mut Fields, served: &Asked) -> Result<Self, ApiError> {
        let name: String = fields.need("model", "a text")?;
        let model = served.model(Some(&name));
        let model = model.ok_or_else(|| ApiError::no_such_model(&name, served.names()))??;
        let number = "a number";
        let temperature = fields.take("temperature", number)?.unwrap_or(1.0);
        if !(0.0..=2.0).contains(&temperature) {
            let problem = format!("{temperature} is out of range; expected 0 to 2");
            return Err(fields.wrong("temperature", problem));
        }
        let stop = fields.take::<Texts>("stop", "a text or a list of texts")?;
        let stop = stop.map(Texts::into_vec).unwrap_or_default();
        if stop.len() > MAX_STOPS {
            let problem = format!("found {} sequences; the maximum is {MAX_STOPS}", stop.len());
            return Err(fields.wrong("stop", problem));
        }
        let answers = fields.take("n", "a whole number")?.unwrap_or(1);
        if !(1..=MAX_ANSWERS).contains(&answers) {
            let problem = format!("{answers} is out of range; expected 1 to {MAX_ANSWERS}");
            return Err(fields.wrong("n", problem));
        }
        let mut penalty = |name: &str| {
            let value = fields.take::<f32>(name, number)?.unwrap_or(0.0);
            if (-2.0..=2.0).contains(&value) {
                Ok(value)
            } else {
                let problem = format!("{value} is out of range; expected -2 to 2");
                Err(fields.wrong(name, problem))
            }
        };
        let presence_penalty = penalty("presence_penalty")?;
        let frequency_penalty = penalty("frequency_penalty")?;
        let standard = CompletionRequest::default();
        let seed = fields.take::<i64>("seed", "a whole number")?;
        let request = CompletionRequest {
            temperature,
            // 0 is off.
            top_k: fields.take("top_k", "a whole number")?.filter(|k| *k > 0),
            // All of it is what goes without saying, and quicker so.
            top_p: fields.take("top_p", number)?.filter(|p| *p != 1.0),
            min_p: fields.take("min_p", number)?,
            repeat_penalty: fields.take("repeat_penalty", number)?.unwrap_or(1.0),
            presence_penalty,
            frequency_penalty,
            logit_bias: biases(fields, model.engine.backend().vocab())?,
            // Without one, each answer is another.
            seed: seed.map_or_else(rand::random, |seed| seed as u64),
            stop,
            ..standard
        };
        request.validate()?;
        let stream = fields.take("stream", "true or false")?.unwrap_or(false);
        let options: Option<Map<String, Value>> = fields.take("stream_options", "an object")?;
        let mut options = Fields::of("stream_options.".to_string(), options.unwrap_or_default());
        let with_usage = options.take("include_usage", "true or false")?;
        // Random characters against listeners, which other servers append.
        options.take::<bool>("include_obfuscation", "true or false")?;
        options.end()?;
        Ok(Self {
            model,
            request,
            answers,
            stream,
            with_usage: with_usage.unwrap_or(false),
        })
    }

    /// The completion of the answer `at` to a prompt, with at most `max_tokens`.
    pub(super) fn completion(&self, at: usize, max_tokens: usize) -> CompletionRequest {
        CompletionRequest {
            max_tokens,
            seed: self.request.seed.wrapping_add(at as u64),
            ..self.request.clone()
        }
    }
}

/// `logit_bias`: a number for each token.
fn biases(fields: &mut Fields, vocab: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let name = "logit_bias";
    let map: Option<Map<String, Value>> = fields.take(name, "an object of tokens and numbers")?;
    let map = map.unwrap_or_default();
    if map.len() > MAX_BIASES {
        let problem = format!("found {} tokens; the maximum is {MAX_BIASES}", map.len());
        return Err(fields.wrong(name, problem));
    }
    let bias = |(token, bias): (String, Value)| {
        let id = token
            .parse::<u32>()
            .ok()
            .filter(|id| (*id as usize) < vocab);
        let id = id.ok_or_else(|| {
            let problem = format!(
                "token {:?} is not one of the {vocab} of the model",
                short(&token)
            );
            fields.wrong(name, problem)
        })?;
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        let expected = || format!("the bias of token {id} is out of range; expected -100 to 100");
        let bias = bias.ok_or_else(|| fields.wrong(name, expected()))?;
        Ok((id, bias as f32))
    };
    map.into_iter().map(bias).collect()
}
