//! The parameters of kind 5050, in the spellings that are in use.

use super::ReadError;

/// What a request asks of the generation; `None` where it says nothing.
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
    /// Above 1, tokens of the context become less likely.
    pub frequency_penalty: Option<f32>,
}

/// Reads parameters. Unknown ones are ignored, and of several of one name the last counts.
///
/// # Errors
/// The first value that does not fit, by its name.
pub fn read(params: &[(String, String)]) -> Result<Params, ReadError> {
    let mut read = Params::default();
    for (key, value) in params {
        let value = value.trim();
        if value.is_empty() {
            continue;
        }
        match key.to_ascii_lowercase().replace('-', "_").as_str() {
            "model" => read.model = Some(value.to_string()),
            "max_tokens" => {
                let tokens = whole(key, value, "a whole number, at least 1")?;
                read.max_tokens = Some(tokens);
            }
            "temperature" => {
                let ok = |t: f64| t >= 0.0;
                read.temperature = Some(real(key, value, ok, "a finite number, 0 or above")?);
            }
            // 0 turns it off for many other programs.
            "top_k" if value == "0" => read.top_k = None,
            "top_k" => read.top_k = Some(whole(key, value, "a whole number, 0 or above")?),
            "top_p" => {
                let ok = |p: f64| p > 0.0 && p <= 1.0;
                let expected = "a number above 0 and at most 1";
                read.top_p = Some(real(key, value, ok, expected)?);
            }
            "frequency_penalty" => {
                let ok = |p: f64| (0.0..=100.0).contains(&p);
                let penalty = real(key, value, ok, "a number from 0 to 100")?;
                // Neutral is 1 here. 0 is what neutral is for interfaces that subtract, and would divide by nothing.
                let neutral = penalty == 0.0;
                read.frequency_penalty = Some(if neutral { 1.0 } else { penalty as f32 });
            }
            _ => {}
        }
    }
    Ok(read)
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
