//! A model of speech of any kind that is known.

use super::vad::in_recording;
use super::windowed::{check, Windowed};
use candle_core::Result;
use candle_transformers::models::silero_vad::{Speech, SAMPLE_RATE};
use candle_transformers::models::whisper::transcribe::{
    Heard, Options, Segment, Transcriber, Transcript,
};
use std::borrow::Cow;

/// A loaded model of speech.
pub enum SpeechModel {
    /// A Whisper: it tells languages and times, and translates.
    Whisper(Box<Transcriber>),
    /// A Moonshine or a Parakeet, which tell the text alone, window after window.
    Windowed(Box<Windowed>),
}

impl SpeechModel {
    /// The current options.
    pub fn options(&self) -> &Options {
        match self {
            Self::Whisper(model) => model.options(),
            Self::Windowed(model) => &model.options,
        }
    }

    /// Whether [`set_options`](Self::set_options) takes these.
    ///
    /// # Errors
    /// The first option that the model cannot do.
    pub fn check_options(&self, options: &Options) -> Result<()> {
        match self {
            Self::Whisper(model) => model.check_options(options),
            Self::Windowed(model) => check(&model.model, options),
        }
    }

    /// Asks for something else from now on.
    ///
    /// # Errors
    /// As for [`check_options`](Self::check_options); then the options stay what they were.
    pub fn set_options(&mut self, options: Options) -> Result<()> {
        match self {
            Self::Whisper(model) => model.set_options(options),
            Self::Windowed(model) => {
                check(&model.model, &options)?;
                model.options = options;
                Ok(())
            }
        }
    }

    /// The codes of the languages that can be asked for; none if the model does not tell them.
    pub fn languages(&self) -> Vec<&str> {
        match self {
            Self::Whisper(model) => model.languages().collect(),
            Self::Windowed(_) => Vec::new(),
        }
    }

    /// The text of `samples` at 16 kHz, from -1 to 1, mono. Each segment goes to `heard` as soon as it is there.
    ///
    /// # Errors
    /// The device fails, or `heard` does.
    pub fn transcribe(
        &mut self,
        samples: &[f32],
        heard: impl FnMut(&Segment) -> Result<()>,
    ) -> Result<Transcript> {
        self.transcribe_while(samples, || Ok(()), heard)
    }

    /// As [`transcribe`](Self::transcribe); `go_on` ends the transcription with an error.
    ///
    /// # Errors
    /// The device fails, or `go_on` or `heard` does.
    pub fn transcribe_while(
        &mut self,
        samples: &[f32],
        go_on: impl FnMut() -> Result<()>,
        heard: impl FnMut(&Segment) -> Result<()>,
    ) -> Result<Transcript> {
        match self {
            Self::Whisper(model) => model.transcribe_while(samples, go_on, heard),
            Self::Windowed(model) => model.transcribe_while(samples, go_on, heard),
        }
    }

    /// As [`transcribe`](Self::transcribe), without blocking the thread while the device works: the form for browsers. `heard` is also
    /// called with the text after each token, and may yield to other tasks before it returns.
    ///
    /// # Errors
    /// The device fails, or `heard` does, which ends the transcription.
    pub async fn transcribe_async(
        &mut self,
        samples: &[f32],
        heard: impl AsyncFnMut(Heard<'_>) -> Result<()>,
    ) -> Result<Transcript> {
        match self {
            Self::Whisper(model) => model.transcribe_async(samples, heard).await,
            Self::Windowed(model) => model.transcribe_async(samples, heard).await,
        }
    }

    /// As [`transcribe`](Self::transcribe), of the speech in a recording alone if it is given; the times are those of the recording.
    ///
    /// # Errors
    /// As for [`transcribe`](Self::transcribe).
    pub fn transcribe_speech(
        &mut self,
        samples: &[f32],
        speech: Option<&Speech>,
        mut heard: impl FnMut(&Segment) -> Result<()>,
    ) -> Result<Transcript> {
        let parts = parts(samples, speech);
        let heard = |segment: &Segment| heard(&in_recording(segment, speech));
        let transcript = self.transcribe(&parts, heard)?;
        Ok(of_recording(transcript, samples, speech))
    }

    /// As [`transcribe_async`](Self::transcribe_async), of the speech in a recording alone if it is given; the times are those of the
    /// recording.
    ///
    /// # Errors
    /// As for [`transcribe_async`](Self::transcribe_async).
    pub async fn transcribe_speech_async(
        &mut self,
        samples: &[f32],
        speech: Option<&Speech>,
        mut heard: impl AsyncFnMut(Heard<'_>) -> Result<()>,
    ) -> Result<Transcript> {
        let parts = parts(samples, speech);
        let heard = async |it: Heard<'_>| match it {
            Heard::Segment(segment) => heard(Heard::Segment(&in_recording(segment, speech))).await,
            draft @ Heard::Draft(_) => heard(draft).await,
        };
        let transcript = self.transcribe_async(&parts, heard).await?;
        Ok(of_recording(transcript, samples, speech))
    }
}

/// The samples that are transcribed.
fn parts<'a>(samples: &'a [f32], speech: Option<&Speech>) -> Cow<'a, [f32]> {
    match speech {
        Some(speech) => Cow::from(speech.cut(samples)),
        None => Cow::from(samples),
    }
}

/// A transcript of the speech alone, with the times of the recording.
fn of_recording(transcript: Transcript, samples: &[f32], speech: Option<&Speech>) -> Transcript {
    let segments = transcript.segments.iter();
    Transcript {
        duration: samples.len() as f64 / SAMPLE_RATE as f64,
        segments: segments.map(|it| in_recording(it, speech)).collect(),
        ..transcript
    }
}
