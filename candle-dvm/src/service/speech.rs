//! A model of speech as what hears.

use super::offers::{Listener, Product, Recording};
use crate::nip90::SpeechParams;
use candle_core::Error as CoreError;
use candle_engine::audio::{read_short_audio, Audio};
use candle_engine::error::Doing;
use candle_engine::speech::{Options, Segment, SpeechModel, Transcript, LANGUAGES};
use candle_engine::transcript::timed;
use candle_engine::Result as EngineResult;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A model of speech that is loaded.
pub struct Ear {
    model: Mutex<SpeechModel>,
    /// The options where a request says nothing.
    standard: Options,
    languages: Vec<&'static str>,
    translates: bool,
    /// The most seconds of a recording.
    most: u64,
    /// One recording is decoded at a time: each second takes 64 kB.
    decoding: Mutex<()>,
}

impl Ear {
    /// Takes recordings of up to `most` seconds.
    pub fn new(model: SpeechModel, most: u64) -> Self {
        let standard = model.options().clone();
        let takes = |language: Option<&str>, translate| {
            let options = Options {
                language: language.map(str::to_string),
                translate,
                ..standard.clone()
            };
            model.check_options(&options).is_ok()
        };
        let languages = LANGUAGES.into_iter();
        Self {
            languages: languages.filter(|code| takes(Some(code), false)).collect(),
            translates: takes(None, true),
            model: Mutex::new(model),
            standard,
            most,
            decoding: Mutex::default(),
        }
    }

    fn decode(&self, recording: &Recording) -> EngineResult<Audio> {
        read_short_audio(&recording.name, &recording.bytes, self.most)
    }
}

impl Listener for Ear {
    fn languages(&self) -> &[&'static str] {
        &self.languages
    }

    fn translates(&self) -> bool {
        self.translates
    }

    fn check(&self, recording: &Recording) -> EngineResult<()> {
        let _alone = self.decoding.lock().unwrap_or_else(PoisonError::into_inner);
        self.decode(recording).map(|_| ())
    }

    fn listen(
        &self,
        recording: &Recording,
        asked: &SpeechParams,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> EngineResult<Product> {
        let started = Instant::now();
        let audio = self.decode(recording)?;
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let options = Options {
            language: asked.language.clone(),
            translate: asked.translate,
            ..self.standard.clone()
        };
        model.set_options(options).doing("transcribe")?;
        let mut text = String::new();
        let on_piece = std::cell::RefCell::new(on_piece);
        let tell = |piece: &str| match (on_piece.borrow_mut())(piece) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(CoreError::msg("stopped")),
        };
        let heard = |segment: &Segment| {
            let piece = match (asked.json, asked.timestamps) {
                (true, _) => return Ok(()),
                (false, true) => timed(segment),
                (false, false) if text.is_empty() => segment.text.trim().to_string(),
                (false, false) => segment.text.trim_end().to_string(),
            };
            text.push_str(&piece);
            tell(&piece)
        };
        let transcript = model.transcribe_while(&audio.samples, || tell(""), heard);
        let transcript = transcript.doing("transcribe")?;
        if asked.json {
            text = json(&transcript);
        }
        let tokens = transcript.segments.iter();
        Ok(Product {
            text,
            prompt_tokens: 0,
            tokens: tokens.map(|segment| segment.tokens.len()).sum(),
            seconds: started.elapsed().as_secs_f64(),
        })
    }
}

/// The text, its language and its segments with their times in seconds.
fn json(transcript: &Transcript) -> String {
    let segment = |segment: &Segment| serde_json::json!({"start": segment.start, "end": segment.end, "text": segment.text.trim()});
    let segments: Vec<_> = transcript.segments.iter().map(segment).collect();
    serde_json::json!({"language": transcript.language, "duration": transcript.duration, "text": transcript.text(),
        "segments": segments})
    .to_string()
}
