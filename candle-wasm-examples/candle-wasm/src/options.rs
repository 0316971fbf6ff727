//! Options as JavaScript gives them.

use candle_core::DType;
use candle_engine::CompletionRequest;
use js_sys::Reflect;
use wasm_bindgen::prelude::*;
use wasm_bindgen::JsCast;

#[wasm_bindgen]
extern "C" {
    /// The interface `GenerateOptions` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "GenerateOptions")]
    pub type JsGenerate;

    /// The interface `LoadOptions` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "LoadOptions")]
    pub type JsLoad;
}

/// What was given, or `undefined`.
pub fn or_undefined<T: Into<JsValue>>(options: Option<T>) -> JsValue {
    options.map_or(JsValue::UNDEFINED, T::into)
}

/// The names that an object of options may have.
const NAMES: [&str; 11] = [
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

/// `request` with the given options. A name that is not known is a mistake to be told of, not one to be passed over.
pub fn request(
    mut request: CompletionRequest,
    options: &JsValue,
) -> Result<CompletionRequest, JsError> {
    if options.is_object() {
        for name in js_sys::Object::keys(options.unchecked_ref::<js_sys::Object>()).iter() {
            let name = name.as_string().unwrap_or_default();
            if !NAMES.contains(&name.as_str()) {
                return Err(JsError::new(&format!(
                    "options: `{name}` is unknown; expected one of {}",
                    NAMES.join(", ")
                )));
            }
        }
    }
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

/// The requested element type.
pub fn dtype(options: &JsValue) -> Result<Option<DType>, JsError> {
    let Some(value) = field(options, "dtype") else {
        return Ok(None);
    };
    match value.as_string().as_deref() {
        Some("f32") => Ok(Some(DType::F32)),
        Some("f16") => Ok(Some(DType::F16)),
        Some("bf16") => Ok(Some(DType::BF16)),
        _ => Err(JsError::new(&format!(
            "options: `dtype` is {value:?}; expected \"f32\", \"f16\" or \"bf16\""
        ))),
    }
}

/// Whether the options have a signal that says to end.
pub fn aborted(options: &JsValue) -> bool {
    field(options, "signal")
        .and_then(|signal| field(&signal, "aborted"))
        .is_some_and(|aborted| aborted.is_truthy())
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

fn field(of: &JsValue, name: &str) -> Option<JsValue> {
    let value = Reflect::get(of, &name.into()).ok()?;
    (!value.is_undefined() && !value.is_null()).then_some(value)
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
