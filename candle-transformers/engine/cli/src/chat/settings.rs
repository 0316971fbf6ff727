//! `/set NAME VALUE`: the sampling of the next answers.

use super::command::NAMES;
use candle_engine::backend::CompletionRequest;
use std::str::FromStr;

/// Changes one setting of `request`, or says in one line why not.
pub(super) fn set(request: &mut CompletionRequest, name: &str, value: &str) -> Result<(), String> {
    let mut changed = request.clone();
    let wrong = |expected: &str| format!("/set {name} {value}: expected {expected}");
    fn number<T: FromStr>(value: &str) -> Option<T> {
        value.parse().ok()
    }
    // `none` turns a filter off.
    fn filter<T: FromStr>(value: &str) -> Option<Option<T>> {
        match value {
            "none" | "off" => Some(None),
            value => value.parse().ok().map(Some),
        }
    }
    let read = match name.replace('_', "-").as_str() {
        "temperature" => number(value).map(|t| changed.temperature = t),
        "top-k" => filter(value).map(|k| changed.top_k = k.filter(|k: &usize| *k > 0)),
        "top-p" => filter(value).map(|p| changed.top_p = p),
        "min-p" => filter(value).map(|p| changed.min_p = p),
        "repeat-penalty" => number(value).map(|r| changed.repeat_penalty = r),
        "seed" => number(value).map(|seed| changed.seed = seed),
        "max-tokens" => number(value).map(|tokens| changed.max_tokens = tokens),
        _ => return Err(format!("/set {name}: the names are {NAMES}")),
    };
    read.ok_or_else(|| wrong("a number"))?;
    changed.validate().map_err(|err| match err {
        candle_engine::Error::Parameter { expected, .. } => wrong(expected),
        err => err.to_string(),
    })?;
    *request = changed;
    Ok(())
}

/// The settings that shape an answer, in one line.
pub(super) fn list(request: &CompletionRequest) -> String {
    let mut parts = vec![format!("temperature {}", request.temperature)];
    if request.temperature > 0. {
        let filters = [
            ("top-k", request.top_k.map(|k| k.to_string())),
            ("top-p", request.top_p.map(|p| p.to_string())),
            ("min-p", request.min_p.map(|p| p.to_string())),
            ("seed", Some(request.seed.to_string())),
        ];
        let set = filters.into_iter();
        parts.extend(set.filter_map(|(name, value)| Some(format!("{name} {}", value?))));
    }
    if request.repeat_penalty != 1. {
        parts.push(format!("repeat-penalty {}", request.repeat_penalty));
    }
    parts.push(format!("max-tokens {}", request.max_tokens));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings() {
        let mut request = CompletionRequest::default();
        for (name, value) in [
            ("temperature", "0.5"),
            ("top-k", "40"),
            ("top_p", "0.9"),
            ("min-p", "0.1"),
            ("repeat-penalty", "1.2"),
            ("seed", "7"),
            ("max-tokens", "5"),
        ] {
            set(&mut request, name, value).unwrap();
        }
        assert_eq!(
            list(&request),
            "temperature 0.5, top-k 40, top-p 0.9, min-p 0.1, seed 7, repeat-penalty 1.2, max-tokens 5"
        );
        set(&mut request, "top-p", "none").unwrap();
        set(&mut request, "top-k", "0").unwrap();
        assert_eq!((request.top_k, request.top_p), (None, None));
        let before = request.clone();
        for (name, value, part) in [
            ("temperature", "hot", "expected a number"),
            ("temperature", "-1", "0 or above"),
            ("top-p", "1.5", "at most 1"),
            ("max-tokens", "0", "at least 1"),
            ("colour", "1", "the names are temperature"),
        ] {
            let error = set(&mut request, name, value).unwrap_err();
            assert!(error.contains(part) && error.contains(name), "{error}");
        }
        assert_eq!(request, before);
        set(&mut request, "temperature", "0").unwrap();
        assert_eq!(
            list(&request),
            "temperature 0, repeat-penalty 1.2, max-tokens 5"
        );
    }
}
