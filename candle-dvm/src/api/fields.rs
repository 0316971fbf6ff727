//! Fields that requests for completions have in common.

use super::{ApiError, Served};
use crate::CompletionRequest;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The most stop sequences of a request, as at OpenAI.
const MAX_STOPS: usize = 4;

/// The fields of a request.
///
/// # Errors
/// No JSON, or a field that is missing or of another type.
pub(super) fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| ApiError::json(&error))
}

/// One text or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Texts {
    One(String),
    Several(Vec<String>),
}

impl Texts {
    pub(super) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Several(texts) => texts,
        }
    }
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub(super) include_usage: bool,
}

/// How the next token is chosen, and what else both kinds of completions take.
#[derive(Debug, Deserialize)]
pub(super) struct Common {
    pub(super) model: String,
    temperature: Option<f64>,
    top_p: Option<f64>,
    /// Not OpenAI's; other servers have it.
    top_k: Option<usize>,
    min_p: Option<f64>,
    seed: Option<i64>,
    stop: Option<Texts>,
    n: Option<usize>,
    #[serde(default)]
    pub(super) stream: bool,
    #[serde(default)]
    pub(super) stream_options: StreamOptions,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Fields that change the answer and are not supported, with the values at which they change nothing.
const REFUSED: &[(&str, &[&str])] = &[
    ("presence_penalty", &["0", "0.0"]),
    ("frequency_penalty", &["0", "0.0"]),
    ("logit_bias", &["{}"]),
    ("best_of", &["1"]),
    ("suffix", &["\"\""]),
    ("tools", &["[]"]),
    ("tool_choice", &["\"none\"", "\"auto\""]),
    ("functions", &["[]"]),
    ("function_call", &["\"none\""]),
    ("response_format", &["{\"type\":\"text\"}"]),
    ("modalities", &["[\"text\"]"]),
    ("audio", &[]),
    ("prediction", &[]),
    ("web_search_options", &[]),
];

impl Common {
    /// The completion of `prompt`, with at most `max_tokens`.
    pub(super) fn request(&self, max_tokens: usize) -> Result<CompletionRequest, ApiError> {
        for (name, harmless) in REFUSED {
            let Some(value) = self.others.get(*name).filter(|value| !value.is_null()) else {
                continue;
            };
            if !harmless.contains(&value.to_string().as_str()) {
                return Err(ApiError::field(name, format!("{value} is not supported")));
            }
        }
        if let Some(n) = self.n.filter(|n| *n != 1) {
            return Err(ApiError::field(
                "n",
                format!("{n} is not supported; the only supported value is 1"),
            ));
        }
        let stop = self.stop.clone().map(Texts::into_vec).unwrap_or_default();
        if stop.len() > MAX_STOPS {
            let problem = format!("found {} sequences; the maximum is {MAX_STOPS}", stop.len());
            return Err(ApiError::field("stop", problem));
        }
        let standard = CompletionRequest::default();
        let temperature = self.temperature.unwrap_or(1.0);
        if !(0.0..=2.0).contains(&temperature) {
            let problem = format!("{temperature} is out of range; expected 0 to 2");
            return Err(ApiError::field("temperature", problem));
        }
        let request = CompletionRequest {
            max_tokens,
            temperature,
            // 0 is off.
            top_k: self.top_k.filter(|k| *k > 0),
            // All of it is what goes without saying, and quicker so.
            top_p: self.top_p.filter(|p| *p != 1.0),
            min_p: self.min_p,
            // Without one, each answer is another.
            seed: self.seed.map_or_else(rand::random, |seed| seed as u64),
            stop,
            ..standard
        };
        request.validate()?;
        Ok(request)
    }

    /// Whether the model is the one that is served.
    pub(super) fn check_model(&self, served: &Served) -> Result<(), ApiError> {
        match self.model == served.name {
            true => Ok(()),
            false => Err(ApiError::no_such_model(&self.model, served.names())),
        }
    }
}
