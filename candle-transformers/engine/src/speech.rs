//! Speech as text: a Whisper, a Moonshine or a Parakeet from a folder of Hugging Face, [`SpeechFiles`], or from files that are read in parts,
//! [`SpeechParts`]. Loaded, it is a [`SpeechModel`]: a Whisper hears by itself (`whisper::transcribe`), other kinds in windows
//! (`windowed`), which are cut at silence (`windows`). Which kind it is, `about` finds in `config.json`. A [`Vad`] finds where somebody
//! speaks, so that silence is not transcribed.
//!
//! ```no_run
//! use candle_core::Device;
//! use candle_engine::audio::read_audio;
//! use candle_engine::speech::{Options, SpeechFiles};
//! # fn main() -> candle_engine::Result<()> {
//! let files = SpeechFiles::open("whisper-tiny.en".as_ref())?;
//! let mut model = files.load(&Device::Cpu, None, Options::default())?;
//! let audio = read_audio("speech.wav".as_ref())?;
//! let transcript = model.transcribe(&audio.samples, |segment| {
//!     println!("{}", segment.text);
//!     Ok(())
//! });
//! # drop(transcript);
//! # Ok(())
//! # }
//! ```

mod about;
#[cfg(not(target_arch = "wasm32"))]
mod files;
mod model;
mod parts;
mod vad;
mod windowed;
mod windows;
#[cfg(all(feature = "audio", not(target_arch = "wasm32")))]
mod worker;

pub use candle_transformers::models::silero_vad::{Phrases, Speech};
pub use candle_transformers::models::whisper::transcribe::{
    Options, Segment, Transcript, LANGUAGES,
};
#[cfg(not(target_arch = "wasm32"))]
pub use files::SpeechFiles;
pub use model::SpeechModel;
pub use parts::SpeechParts;
pub use vad::Vad;
pub use windowed::{Windowed, UNDETERMINED};
#[cfg(all(feature = "audio", not(target_arch = "wasm32")))]
pub use worker::{Asked, Heard, Listener, SpeechWorker, MAX_SECONDS};

const LOADING: &str = "loading the weights";
