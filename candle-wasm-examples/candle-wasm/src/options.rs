//! Options as JavaScript gives them.

use browser::options::{field, known_names};
use candle_engine::thinking::{no_thoughts, Variables};
use candle_engine::CompletionRequest;
use wasm_bindgen::prelude::*;
use wasm_bindgen::JsCast;

#[wasm_bindgen]
extern "C" {
    /// The interface `GenerateOptions` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "GenerateOptions")]
    pub type JsGenerate;

    /// The interface `ChatOptions` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "ChatOptions")]
    pub type JsChat;
}

/// The names that an object of options may have.
const NAMES: &[&str] = &[
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "repeat_last_n",
    "seed",
    "stop",
    "prompt_lookup",
    "signal",
];

/// Those that it may have for an answer in a conversation too.
const OF_CHATS: &[&str] = &["thinking", "thinking_budget", "constraint"];

/// The thinking settings: values for the model's template, and the maximum number of tokens of thoughts.
pub fn thinking(options: &JsValue) -> Result<(Variables, Option<usize>), JsError> {
    let budget = whole(options, "thinking_budget")?.map(|n| n as usize);
    match field(options, "thinking") {
        None => Ok((Variables::new(), budget)),
        Some(value) => match value.as_bool() {
            Some(true) => {
                let switch = ("enable_thinking".to_string(), true.into());
                Ok((Variables::from_iter([switch]), budget))
            }
            Some(false) => Ok((no_thoughts(), Some(0))),
            None => Err(JsError::new(&format!(
                "options: `thinking` is {value:?}; expected true or false"
            ))),
        },
    }
}

/// As [`request`], of an answer in a conversation.
pub fn chat_request(
    request: CompletionRequest,
    options: &JsValue,
) -> Result<CompletionRequest, JsError> {
    known_names(options, &[NAMES, OF_CHATS].concat())?;
    with(request, options)
}

/// `request` with the given options.
pub fn request(
    request: CompletionRequest,
    options: &JsValue,
) -> Result<CompletionRequest, JsError> {
    known_names(options, NAMES)?;
    with(request, options)
}

fn with(mut request: CompletionRequest, options: &JsValue) -> Result<CompletionRequest, JsError> {
    if let Some(n) = whole(options, "max_tokens")? {
        request.max_tokens = n as usize;
    }
    if let Some(temperature) = number(options, "temperature")? {
        request.temperature = temperature;
    }
    if let Some(top_k) = whole(options, "top_k")? {
        request.top_k = Some(top_k as usize);
    }
    request.top_p = number(options, "top_p")?.or(request.top_p);
    request.min_p = number(options, "min_p")?.or(request.min_p);
    if let Some(penalty) = number(options, "repeat_penalty")? {
        request.repeat_penalty = penalty as f32;
    }
    if let Some(n) = whole(options, "repeat_last_n")? {
        request.repeat_last_n = n as usize;
    }
    if let Some(seed) = whole(options, "seed")? {
        request.seed = seed;
    }
    if let Some(n) = whole(options, "prompt_lookup")? {
        request.prompt_lookup = n as usize;
    }
    if let Some(stop) = field(options, "stop") {
        request.stop = texts(&stop)?;
    }
    Ok(request)
}

/// A string or an array of strings.
fn texts(value: &JsValue) -> Result<Vec<String>, JsError> {
    let texts: Option<Vec<String>> = match value.dyn_ref::<js_sys::Array>() {
        Some(list) => list.iter().map(|text| text.as_string()).collect(),
        None => value.as_string().map(|text| vec![text]),
    };
    texts.ok_or_else(|| {
        JsError::new(&format!(
            "options: `stop` is {value:?}; expected a string or an array of strings"
        ))
    })
}

fn number(options: &JsValue, name: &str) -> Result<Option<f64>, JsError> {
    let Some(value) = field(options, name) else {
        return Ok(None);
    };
    match value.as_f64() {
        Some(number) => Ok(Some(number)),
        None => Err(JsError::new(&format!(
            "options: `{name}` is {value:?}; expected a number"
        ))),
    }
}

/// Beyond it a number of JavaScript is no longer a certain whole number.
const MAX_WHOLE: f64 = 9_007_199_254_740_991.0;

fn whole(options: &JsValue, name: &str) -> Result<Option<u64>, JsError> {
    match number(options, name)? {
        None => Ok(None),
        Some(n) if n.fract() == 0.0 && (0.0..=MAX_WHOLE).contains(&n) => Ok(Some(n as u64)),
        Some(n) => Err(JsError::new(&format!(
            "options: `{name}` is {n}; expected a whole number of at least 0"
        ))),
    }
}
