//! Voice activity detection: [`WasmVad`], Silero VAD on the CPU.
//!
//! ```js
//! import { loadSpeech, vadBytes } from "candle-wasm/speech.js";
//! const { WasmVad } = await loadSpeech();
//! const vad = await WasmVad.open(await vadBytes());
//! const transcript = await speech.transcribe(samples, { speech: await vad.speech(samples) });
//! ```

use crate::{core_error, error, js};
use browser::files::File;
use browser::options::{aborted, field, or_undefined};
use candle_engine::give_way;
use candle_engine::speech::{Phrases, Speech, Vad};
use candle_transformers::models::silero_vad::SAMPLE_RATE;
use js_sys::{Array, Float32Array, Uint8Array};
use serde::Serialize;
use std::ops::Range;
use wasm_bindgen::prelude::*;
use wasm_bindgen::JsCast;

/// TypeScript types that wasm-bindgen cannot generate.
#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** A part of a recording, in seconds. */
export interface SpeechRange {
    start: number;
    end: number;
}

export interface SpeechOptions {
    /** Ends the detection early, with an error. */
    signal?: AbortSignal;
}
"#;

#[wasm_bindgen]
extern "C" {
    /// An array of the interface `SpeechRange` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "SpeechRange[]")]
    pub type JsRanges;

    /// The interface `SpeechOptions` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "SpeechOptions")]
    pub type JsSpeechOptions;
}

/// Silero VAD, which finds where somebody speaks. It runs on the CPU.
#[wasm_bindgen]
pub struct WasmVad {
    vad: Vad,
}

#[wasm_bindgen]
impl WasmVad {
    /// The network in the bytes of silero_vad_16k.safetensors, which `vadBytes` of `speech.js` brings.
    pub async fn open(bytes: Uint8Array) -> Result<WasmVad, JsError> {
        let name = "the VAD file".to_string();
        let vad = Vad::load(Box::new(File::Bytes { name, bytes })).await;
        Ok(Self {
            vad: vad.map_err(error)?,
        })
    }

    /// The parts of a recording in which somebody speaks, for the option `speech` of `transcribe`: samples at 16 kHz, from -1 to 1, mono.
    /// Pauses of less than 2 seconds are in them, and 0.4 seconds before and after speech.
    pub async fn speech(
        &self,
        samples: Float32Array,
        options: Option<JsSpeechOptions>,
    ) -> Result<JsRanges, JsError> {
        let options = or_undefined(options);
        let samples = samples.to_vec();
        // The object may be freed meanwhile.
        let vad = self.vad.clone();
        let detected = vad.speech_while(&samples, async |_| {
            give_way().await;
            if aborted(&options) {
                candle_core::bail!("stopped")
            }
            Ok(())
        });
        js_ranges(&detected.await.map_err(core_error)?.ranges)
    }

    /// Splits a recording that is still running into phrases.
    pub fn phrases(&self) -> Result<WasmPhrases, JsError> {
        let phrases = self.vad.phrases().map_err(core_error)?;
        Ok(WasmPhrases {
            phrases: Some(phrases),
        })
    }
}

/// The phrases of a recording that is still running. A phrase ends with a pause of 0.7 seconds, or after 29 seconds.
#[wasm_bindgen]
pub struct WasmPhrases {
    phrases: Option<Phrases>,
}

#[wasm_bindgen]
impl WasmPhrases {
    /// Takes the next samples, at 16 kHz; returns the phrases that have ended, in seconds from the beginning of the recording.
    pub fn hear(&mut self, samples: Float32Array) -> Result<JsRanges, JsError> {
        let Some(phrases) = &mut self.phrases else {
            return Err(JsError::new(
                "the recording has ended: begin another one with `phrases` of WasmVad",
            ));
        };
        js_ranges(&phrases.hear(&samples.to_vec()).map_err(core_error)?)
    }

    /// Whether somebody speaks, or has just paused.
    #[wasm_bindgen(getter)]
    pub fn speaking(&self) -> bool {
        self.phrases.as_ref().is_some_and(Phrases::speaks)
    }

    /// Ends the recording; returns the phrase that this ends, if somebody speaks.
    pub fn end(&mut self) -> Result<JsRanges, JsError> {
        match self.phrases.take() {
            Some(phrases) => js_ranges(&phrases.end().map_err(core_error)?),
            None => js_ranges(&[]),
        }
    }
}

/// A `SpeechRange`.
#[derive(Serialize)]
struct Seconds {
    start: f64,
    end: f64,
}

fn js_ranges(ranges: &[Range<usize>]) -> Result<JsRanges, JsError> {
    let seconds = |samples: usize| samples as f64 / SAMPLE_RATE as f64;
    let ranges = ranges.iter().map(|range| Seconds {
        start: seconds(range.start),
        end: seconds(range.end),
    });
    let ranges = js(&ranges.collect::<Vec<_>>()).map_err(core_error)?;
    Ok(ranges.unchecked_into())
}

/// Ranges of a recording of `samples`; none if they are not in their order, or outside of it.
pub fn ranges_of(value: &JsValue, samples: usize) -> Option<Speech> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for range in value.dyn_ref::<Array>()?.iter() {
        let at = |name: &str| samples_of(field(&range, name)?.as_f64()?);
        let range = at("start")?..at("end")?;
        let from = ranges.last().map_or(0, |range| range.end);
        if range.start < from || range.end < range.start || range.end > samples {
            return None;
        }
        ranges.push(range);
    }
    Some(Speech { ranges })
}

/// A time as the number of samples until then.
fn samples_of(seconds: f64) -> Option<usize> {
    let samples = (seconds * SAMPLE_RATE as f64).round();
    (samples >= 0. && samples < u32::MAX.into()).then_some(samples as usize)
}
