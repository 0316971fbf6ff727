//! The parameters of kind 5050, in the spellings that are in use.
//!
//! Those of other names are ignored, as NIP-90 wants it. Values that would say something else once they are an `f32`, 0 or infinity, are
//! outside of their ranges.

use super::ReadError;

/// The generation parameters of a request; `None` for absent ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Params {
    /// The model's name.
    pub model: Option<String>,
    /// The most tokens to make.
    pub max_tokens: Option<usize>,
    /// 0 takes the likeliest token each time.
    pub temperature: Option<f64>,
    /// Draw from this many of the likeliest tokens.
    pub top_k: Option<usize>,
    /// Draw from the likeliest tokens that together have this probability.
    pub top_p: Option<f64>,
    /// Draw from tokens that have at least this share of the likeliest one's probability.
    pub min_p: Option<f64>,
    /// Above 1, tokens of the context become less likely.
    pub frequency_penalty: Option<f32>,
    /// The seed of the draws.
    pub seed: Option<u64>,
    /// The text ends before the first of these.
    pub stop: Vec<String>,
    /// Whether the prompt is continued as it is, without a chat template.
    pub raw: Option<bool>,
    /// The system message of a conversation.
    pub system: Option<String>,
}

/// The most stop sequences of a request, and the most bytes of one.
const STOPS: usize = 16;
const STOP_BYTES: usize = 256;

/// The parameter that may hold the prompt.
pub(super) const PROMPT: &str = "prompt";
/// The one that may have several values.
pub(super) const STOP: &str = "stop";

/// The name of a parameter here.
pub(super) fn name(key: &str) -> String {
    key.trim().to_ascii_lowercase().replace('-', "_")
}

/// Whether requests for text have such a parameter: those that [`read`] reads, and others that interfaces to language models share.
pub(super) fn is_of_text(key: &str) -> bool {
    matches!(
        name(key).as_str(),
        "model"
            | "max_tokens"
            | "temperature"
            | "top_k"
            | "top_p"
            | "min_p"
            | "frequency_penalty"
            | "presence_penalty"
            | "repeat_penalty"
            | "repetition_penalty"
            | "seed"
            | STOP
            | PROMPT
            | "raw"
            | "system"
            | "system_prompt"
            | "stream"
            | "user"
            | "language"
    )
}

/// Reads parameters. Unknown ones are ignored, and the last of several with one name counts; of `stop`, each. A `stop` is used as written,
/// with the white space at its ends, or is a JSON array of texts.
///
/// # Errors
/// The first value that does not fit, by its name.
pub fn read(params: &[(String, String)]) -> Result<Params, ReadError> {
    let mut read = Params::default();
    for (key, value) in params {
        let known = name(key);
        if known == STOP {
            add_stops(&mut read.stop, key, value)?;
            continue;
        }
        let value = value.trim();
        if value.is_empty() {
            continue;
        }
        match known.as_str() {
            "model" => read.model = Some(value.to_string()),
            "max_tokens" => {
                let tokens = whole(key, value, "a whole number, at least 1")?;
                read.max_tokens = Some(tokens);
            }
            "temperature" => {
                let ok = |t: f64| t >= 0.0;
                read.temperature = Some(real(key, value, ok, "a finite number, 0 or above")?);
            }
            // 0 disables it in many other programs.
            "top_k" if value == "0" => read.top_k = None,
            "top_k" => read.top_k = Some(whole(key, value, "a whole number, 0 or above")?),
            "top_p" => {
                let ok = |p: f64| p > 0.0 && p <= 1.0;
                let expected = "a number above 0 and at most 1";
                read.top_p = Some(real(key, value, ok, expected)?);
            }
            "min_p" => {
                let ok = |p: f64| (0.0..=1.0).contains(&p);
                read.min_p = Some(real(key, value, ok, "a number from 0 to 1")?);
            }
            "frequency_penalty" => {
                // Less than the least here would make every logit infinite.
                let ok = |p: f64| p == 0.0 || (0.01..=100.0).contains(&p);
                let penalty = real(
                    key,
                    value,
                    ok,
                    "0, or a number from 0.01 to 100 (1 disables it)",
                )?;
                // Neutral is 1 here. 0 is what neutral is for interfaces that subtract, and would divide by nothing.
                let neutral = penalty == 0.0;
                read.frequency_penalty = Some(if neutral { 1.0 } else { penalty as f32 });
            }
            "raw" => read.raw = Some(yes_or_no(key, value)?),
            "system" | "system_prompt" => read.system = Some(value.to_string()),
            // Other programs write -1 for no seed.
            "seed" if value == "-1" => read.seed = None,
            "seed" => {
                let expected =
                    "a whole number from 0 to 18446744073709551615, or -1 for a random seed";
                let seed = value.parse();
                read.seed = Some(seed.map_err(|_| ReadError::value(key, value, expected))?);
            }
            _ => {}
        }
    }
    Ok(read)
}

fn add_stops(stops: &mut Vec<String>, key: &str, value: &str) -> Result<(), ReadError> {
    let list: Option<Vec<String>> = if value.starts_with('[') {
        serde_json::from_str(value).ok()
    } else {
        None
    };
    for stop in list.unwrap_or_else(|| vec![value.to_string()]) {
        if stop.len() > STOP_BYTES {
            return Err(ReadError::value(key, &stop, "at most 256 bytes"));
        }
        if !stop.is_empty() && !stops.contains(&stop) {
            stops.push(stop);
        }
    }
    match stops.len() {
        0..=STOPS => Ok(()),
        found => Err(ReadError::TooMany {
            name: STOP,
            found,
            most: STOPS,
        }),
    }
}

pub(super) fn yes_or_no(name: &str, value: &str) -> Result<bool, ReadError> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(ReadError::value(name, value, "true or false")),
    }
}

fn whole(name: &str, value: &str, expected: &'static str) -> Result<usize, ReadError> {
    match value.parse() {
        Ok(number) if number >= 1 => Ok(number),
        _ => Err(ReadError::value(name, value, expected)),
    }
}

fn real(
    name: &str,
    value: &str,
    ok: impl Fn(f64) -> bool,
    expected: &'static str,
) -> Result<f64, ReadError> {
    match value.parse::<f64>() {
        Ok(number) if number.is_finite() && ok(number) => Ok(number),
        _ => Err(ReadError::value(name, value, expected)),
    }
}
