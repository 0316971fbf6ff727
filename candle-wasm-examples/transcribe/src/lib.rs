//! Speech to text in a browser: [`WasmSpeech`], a Whisper, a Moonshine or a Parakeet, on the GPU or on the CPU; and [`WasmVad`], which
//! finds where somebody speaks.
//!
//! ```js
//! import { loadSpeech } from "candle-wasm/speech.js";
//! import { fromAddress } from "candle-wasm/files.js";
//! const { WasmSpeech } = await loadSpeech();
//! const speech = await WasmSpeech.open(await fromAddress("openai/whisper-tiny.en"));
//! await speech.init_gpu().catch(reason => console.log(`on the CPU: ${reason.message}`));
//! const { text } = await speech.transcribe(samples, { onSegment: segment => console.log(segment.text) });
//! ```

#![deny(missing_docs)]

mod options;
mod vad;

use browser::files::{message, JsSource, Source};
use browser::gpu::Place;
use browser::options::{aborted, dtype, or_undefined, JsLoad};
use candle_core::DType;
use candle_engine::give_way;
use candle_engine::speech::{SpeechModel, SpeechParts};
use candle_transformers::models::whisper::transcribe::{Heard, Transcript};
use candle_transformers::models::whisper::SAMPLE_RATE;
use js_sys::{Float32Array, Reflect};
use options::{Hooks, JsTranscribe};
use std::cell::RefCell;
pub use vad::{WasmPhrases, WasmVad};
use wasm_bindgen::prelude::*;
use wasm_bindgen::JsCast;

/// TypeScript types that wasm-bindgen cannot generate.
#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
export interface TranscribeOptions {
    /** The code of the language that is spoken, such as "en"; if not given, the first 30 seconds decide. */
    language?: string;
    /** Translates to English. Needs a multilingual model. */
    translate?: boolean;
    /** Gives each word its times. */
    words?: boolean;
    /** The only parts of the recording that are transcribed, in their order, such as `vad.speech(samples)` gives. */
    speech?: SpeechRange[];
    /** Hears each segment as soon as it is final. */
    onSegment?(segment: Segment): void;
    /** Hears, token after token, the text that follows the last segment and may still change. */
    onText?(text: string): void;
    /** Ends the transcription early, with the segments so far. */
    signal?: AbortSignal;
}

/** A piece of text and when it is said, in seconds. */
export interface Segment {
    start: number;
    end: number;
    text: string;
    tokens: number[];
    temperature: number;
    avg_logprob: number;
    compression_ratio: number;
    /** The probability that nobody speaks. */
    no_speech_prob: number;
    words?: { text: string; start: number; end: number; probability: number }[];
}

export interface Transcript {
    text: string;
    /** The code of the language. */
    language: string;
    /** The length of the recording in seconds. */
    duration: number;
    segments: Segment[];
    /** Whether `signal` ended it early. */
    stopped: boolean;
}
"#;

#[wasm_bindgen]
extern "C" {
    /// The interface `Transcript` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "Transcript")]
    pub type JsTranscript;
}

/// A Whisper, a Moonshine or a Parakeet. Its weights go to the device with `load`, or when they are first needed; until `init_gpu` has succeeded that device is the CPU.
#[wasm_bindgen]
pub struct WasmSpeech {
    source: Source,
    state: RefCell<State>,
}

struct State {
    place: Place,
    dtype: Option<DType>,
    /// The small files, from opening until loading.
    opened: Option<SpeechParts>,
    loaded: Option<SpeechModel>,
    busy: bool,
}

#[wasm_bindgen]
impl WasmSpeech {
    /// A model in the files of a Hugging Face folder. Reads and checks the small ones.
    pub async fn open(source: JsSource) -> Result<WasmSpeech, JsError> {
        let source = Source::of_js(&source)?;
        let opened = SpeechParts::open(source.parts()).map_err(error)?;
        Ok(Self {
            source,
            state: RefCell::new(State {
                place: Place::default(),
                dtype: None,
                opened: Some(opened),
                loaded: None,
                busy: false,
            }),
        })
    }

    /// Opens the GPU; `true`, or an error with the reason why there is none, and the model stays on the CPU. Once more after a GPU was
    /// lost: the weights are then loaded again.
    pub async fn init_gpu(&self) -> Result<bool, JsError> {
        let place = Place::gpu().await;
        let state = &mut *self.state.borrow_mut();
        state.loaded = None;
        state.place = place;
        state.place.opened()
    }

    /// The model's device: `cpu`, or `webgpu` and the browser's description of the GPU.
    #[wasm_bindgen(getter)]
    pub fn device(&self) -> String {
        self.state.borrow().place.describe()
    }

    /// The reason for running on the CPU; `undefined` on a GPU.
    #[wasm_bindgen(getter)]
    pub fn cpu_reason(&self) -> Option<String> {
        self.state.borrow().place.cpu_reason()
    }

    /// Brings the weights to the device.
    pub async fn load(&self, options: Option<JsLoad>) -> Result<(), JsError> {
        {
            let state = &mut *self.state.borrow_mut();
            state.dtype = dtype(&or_undefined(options))?;
            state.loaded = None;
        }
        let loaded = self.place().await?;
        self.state.borrow_mut().loaded = Some(loaded);
        Ok(())
    }

    /// The codes of the languages that the model knows; none of a model of English alone, or before `load`.
    #[wasm_bindgen(getter)]
    pub fn languages(&self) -> Vec<String> {
        let state = self.state.borrow();
        let languages = state.loaded.iter().flat_map(SpeechModel::languages);
        languages.map(str::to_string).collect()
    }

    /// The text of a recording: samples at 16 kHz, from -1 to 1, mono.
    pub async fn transcribe(
        &self,
        samples: Float32Array,
        options: Option<JsTranscribe>,
    ) -> Result<JsTranscript, JsError> {
        let options = or_undefined(options);
        let samples = samples.to_vec();
        let hooks = Hooks::read(&options, samples.len())?;
        if std::mem::replace(&mut self.state.borrow_mut().busy, true) {
            return Err(JsError::new(
                "a transcription is running; wait for it, or stop it with its `signal`",
            ));
        }
        let loaded = self.state.borrow_mut().loaded.take();
        let loaded = match loaded {
            Some(loaded) => Ok(loaded),
            None => self.place().await,
        };
        let done = match loaded {
            Ok(mut model) => {
                let done = transcribe(&mut model, &samples, &hooks, &options).await;
                self.state.borrow_mut().loaded = Some(model);
                done
            }
            Err(err) => Err(err),
        };
        self.state.borrow_mut().busy = false;
        done
    }

    /// The model on its device.
    async fn place(&self) -> Result<SpeechModel, JsError> {
        let (opened, device, dtype) = {
            let state = &mut *self.state.borrow_mut();
            (state.opened.take(), state.place.device.clone(), state.dtype)
        };
        let parts = match opened {
            Some(parts) => parts,
            None => SpeechParts::open(self.source.parts()).map_err(error)?,
        };
        let loading = parts.load(&device, dtype, Default::default());
        loading.await.map_err(error)
    }
}

async fn transcribe(
    model: &mut SpeechModel,
    samples: &[f32],
    hooks: &Hooks,
    options: &JsValue,
) -> Result<JsTranscript, JsError> {
    let mut wanted = model.options().clone();
    wanted.language = hooks.language.clone();
    wanted.translate = hooks.translate;
    wanted.words = hooks.words;
    model.set_options(wanted).map_err(core_error)?;

    let mut segments = Vec::new();
    let mut thrown = None;
    let heard = async |heard: Heard<'_>| {
        let told = match heard {
            Heard::Draft(text) => hooks.text(text),
            Heard::Segment(segment) => {
                segments.push(segment.clone());
                hooks.segment(&js(segment)?)
            }
        };
        // A page's messages arrive between tokens, as of a button to stop.
        give_way().await;
        if let Err(err) = told {
            thrown = Some(message(&err));
        }
        if thrown.is_some() || aborted(options) {
            candle_core::bail!("stopped")
        } else {
            Ok(())
        }
    };
    let done = model.transcribe_speech_async(samples, hooks.speech.as_ref(), heard);
    let done = done.await;
    if let Some(thrown) = thrown {
        return Err(JsError::new(&thrown));
    }
    let stopped = done.is_err() && aborted(options);
    let transcript = match done {
        Err(_) if stopped => Transcript {
            language: hooks.language.clone().unwrap_or_default(),
            duration: samples.len() as f64 / SAMPLE_RATE as f64,
            segments,
        },
        done => done.map_err(core_error)?,
    };
    report(&transcript, stopped)
}

/// The object `Transcript`.
fn report(transcript: &Transcript, stopped: bool) -> Result<JsTranscript, JsError> {
    let object = js(transcript).map_err(core_error)?;
    // A new object takes every name.
    let _ = Reflect::set(&object, &"text".into(), &transcript.text().into());
    let _ = Reflect::set(&object, &"stopped".into(), &stopped.into());
    Ok(object.unchecked_into())
}

/// As JavaScript's objects.
fn js(value: &impl serde::Serialize) -> candle_core::Result<JsValue> {
    let json = serde_json::to_string(value).map_err(candle_core::Error::wrap)?;
    js_sys::JSON::parse(&json).map_err(|err| candle_core::Error::Msg(message(&err)))
}

fn core_error(err: candle_core::Error) -> JsError {
    JsError::new(&err.to_string())
}

fn error(err: candle_engine::Error) -> JsError {
    JsError::new(&err.one_line())
}
