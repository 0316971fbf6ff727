//! Options of a transcription as JavaScript gives them.

use crate::vad::ranges_of;
use browser::options::{field, known_names};
use candle_engine::speech::Speech;
use js_sys::Function;
use wasm_bindgen::prelude::*;
use wasm_bindgen::JsCast;

#[wasm_bindgen]
extern "C" {
    /// The interface `TranscribeOptions` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "TranscribeOptions")]
    pub type JsTranscribe;
}

const NAMES: [&str; 7] = [
    "language",
    "translate",
    "words",
    "speech",
    "onSegment",
    "onText",
    "signal",
];

/// The options, without the signal, which is read after each token.
pub struct Hooks {
    pub language: Option<String>,
    pub translate: bool,
    pub words: bool,
    /// The parts that are transcribed; without it, all of the recording.
    pub speech: Option<Speech>,
    on_segment: Option<Function>,
    on_text: Option<Function>,
}

impl Hooks {
    /// The options for a recording of `samples`.
    pub fn read(options: &JsValue, samples: usize) -> Result<Self, JsError> {
        known_names(options, &NAMES)?;
        let wrong = |name: &str, value: &JsValue, expected: &str| {
            JsError::new(&format!(
                "options: `{name}` is {value:?}; expected {expected}"
            ))
        };
        let flag = |name: &str| match field(options, name) {
            None => Ok(false),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| wrong(name, &value, "true or false")),
        };
        let function = |name: &str| match field(options, name) {
            None => Ok(None),
            Some(value) => match value.dyn_into::<Function>() {
                Ok(function) => Ok(Some(function)),
                Err(value) => Err(wrong(name, &value, "a function")),
            },
        };
        let language = match field(options, "language") {
            None => None,
            Some(value) => Some(value.as_string().ok_or_else(|| {
                wrong("language", &value, "the code of a language, such as \"en\"")
            })?),
        };
        let speech = match field(options, "speech") {
            None => None,
            Some(value) => Some(ranges_of(&value, samples).ok_or_else(|| {
                wrong("speech", &value, "parts of the recording in their order, { start, end } in seconds, as WasmVad.speech returns them")
            })?),
        };
        Ok(Self {
            language,
            translate: flag("translate")?,
            words: flag("words")?,
            speech,
            on_segment: function("onSegment")?,
            on_text: function("onText")?,
        })
    }

    /// Tells of the text so far; what the listener throws.
    pub fn text(&self, text: &str) -> Result<(), JsValue> {
        tell(&self.on_text, &text.into())
    }

    /// Tells of a segment; what the listener throws.
    pub fn segment(&self, segment: &JsValue) -> Result<(), JsValue> {
        tell(&self.on_segment, segment)
    }
}

fn tell(function: &Option<Function>, value: &JsValue) -> Result<(), JsValue> {
    match function {
        Some(function) => function.call1(&JsValue::NULL, value).map(drop),
        None => Ok(()),
    }
}
