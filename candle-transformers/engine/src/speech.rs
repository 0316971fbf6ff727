//! Speech as text: a Whisper from a folder of Hugging Face, [`SpeechFiles`], or from files that are read in parts, [`SpeechParts`].
//!
//! ```no_run
//! use candle_core::Device;
//! use candle_engine::audio::read_audio;
//! use candle_engine::speech::{Options, SpeechFiles};
//! # fn main() -> candle_engine::Result<()> {
//! let files = SpeechFiles::open("whisper-tiny.en".as_ref())?;
//! let mut whisper = files.load(&Device::Cpu, None, Options::default())?;
//! let audio = read_audio("speech.wav".as_ref())?;
//! let transcript = whisper.transcribe(&audio.samples, |segment| {
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
mod parts;
#[cfg(all(feature = "audio", not(target_arch = "wasm32")))]
mod worker;

pub use candle_transformers::models::whisper::transcribe::{
    Options, Segment, Transcriber, Transcript, LANGUAGES,
};
#[cfg(not(target_arch = "wasm32"))]
pub use files::{speech_in, SpeechFiles};
pub use parts::SpeechParts;
#[cfg(all(feature = "audio", not(target_arch = "wasm32")))]
pub use worker::{Asked, Heard, Listener, SpeechWorker, MAX_SECONDS};

const LOADING: &str = "loading the weights";
