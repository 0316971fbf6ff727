//! From a recording of any length to its text.
//!
//! Windows of 30 seconds are decoded in sequence. Each starts where the last whole segment of the window before ended, with that text as
//! its prompt. A text that repeats itself or is improbable is decoded again at higher temperatures; windows without speech are skipped.
//! After section 3.8 and 4.5 of [the paper](https://arxiv.org/abs/2212.04356).
//!
//! ```no_run
//! use candle_core::Device;
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::whisper::transcribe::{Options, Transcriber, Vocabulary};
//! use candle_transformers::models::whisper::{model::Whisper, DTYPE};
//!
//! struct Tokens(tokenizers::Tokenizer);
//!
//! impl Vocabulary for Tokens {
//!     fn id(&self, token: &str) -> Option<u32> {
//!         self.0.token_to_id(token)
//!     }
//!     fn text(&self, tokens: &[u32]) -> candle_core::Result<String> {
//!         self.0.decode(tokens, true).map_err(candle_core::Error::msg)
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let config = serde_json::from_slice(&std::fs::read("config.json")?)?;
//! // SAFETY: nothing changes the file while it is mapped.
//! let vb = unsafe { VarBuilder::from_mmaped_safetensors(&["model.safetensors"], DTYPE, &Device::Cpu)? };
//! let tokens = Tokens(tokenizers::Tokenizer::from_file("tokenizer.json")?);
//! let mut whisper = Transcriber::new(Whisper::load(&vb, config)?, Box::new(tokens), Options::default())?;
//! // Samples at 16 kHz, from -1 to 1.
//! let samples = vec![0f32; 16_000];
//! let transcript = whisper.transcribe(&samples, |segment| {
//!     println!("{:.2} {}", segment.start, segment.text);
//!     Ok(())
//! })?;
//! println!("{}", transcript.text());
//! # Ok(())
//! # }
//! ```

mod rules;
mod vocabulary;
mod window;
mod words;

use candle_core::{bail, DType, Device, IndexOp, Result, Tensor};
use rand::rngs::StdRng;
use rand::SeedableRng;
use serde::Serialize;

pub use vocabulary::{Vocabulary, LANGUAGES};

use super::audio::{log_mel, mel_filters};
use super::parts::{AudioEncoder, TextDecoder};
use super::{
    model, quantized_model, Config, COMPRESSION_RATIO_THRESHOLD, HOP_LENGTH, LOGPROB_THRESHOLD,
    NO_SPEECH_THRESHOLD, N_FRAMES, N_SAMPLES, SAMPLE_RATE, TEMPERATURES,
};
use crate::blocks::at_once;
use crate::models::reading::Reading;
use rules::Rules;
use vocabulary::Special;
use window::{Answer, Question};
use words::Alignment;

/// Frames of the spectrogram in a position of the encoder's output.
const FRAMES: usize = 2;
/// A segment's times, in seconds from the start of its window, and its tokens with the time tokens around it.
type Piece = (std::ops::Range<f64>, Vec<u32>);
/// Above this temperature a text does not become the prompt for the next window.
const TRUSTED: f64 = 0.5;

/// A network of dense or quantised weights.
#[derive(Debug, Clone)]
pub struct Network {
    encoder: AudioEncoder,
    decoder: TextDecoder,
    config: Config,
}

impl From<model::Whisper> for Network {
    fn from(model: model::Whisper) -> Self {
        Self {
            encoder: model.encoder,
            decoder: model.decoder,
            config: model.config,
        }
    }
}

impl From<quantized_model::Whisper> for Network {
    fn from(model: quantized_model::Whisper) -> Self {
        Self {
            encoder: model.encoder,
            decoder: model.decoder,
            config: model.config,
        }
    }
}

/// The settings of a transcription.
#[derive(Debug, Clone)]
pub struct Options {
    /// The code of the spoken language, one of [`LANGUAGES`]; `None` detects it in the first window. English-only models take `en`.
    pub language: Option<String>,
    /// Translates to English.
    pub translate: bool,
    /// Asks the model for times: segments are sentences or parts of them. Without, a segment is a window of 30 seconds.
    pub timestamps: bool,
    /// Gives each word its times, too.
    pub words: bool,
    /// The heads of the decoder's attention that times of words are read from, (layer, head); `alignment_heads` of the model's
    /// `generation_config.json`. Without any, all heads of the later half of the layers.
    pub alignment_heads: Vec<(usize, usize)>,
    /// Gives each window the text of the ones before.
    pub condition_on_previous_text: bool,
    /// A text before the first window's, with names and spellings.
    pub initial_prompt: Vec<u32>,
    /// Temperatures, tried in this order; 0 takes the most probable token.
    pub temperatures: Vec<f64>,
    /// The seed of what is chosen at temperatures above 0.
    pub seed: u64,
    /// [`COMPRESSION_RATIO_THRESHOLD`].
    pub compression_ratio_threshold: f64,
    /// [`LOGPROB_THRESHOLD`].
    pub logprob_threshold: f64,
    /// [`NO_SPEECH_THRESHOLD`].
    pub no_speech_threshold: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            language: None,
            translate: false,
            timestamps: true,
            words: false,
            alignment_heads: Vec::new(),
            condition_on_previous_text: true,
            initial_prompt: Vec::new(),
            temperatures: TEMPERATURES.to_vec(),
            seed: 0,
            compression_ratio_threshold: COMPRESSION_RATIO_THRESHOLD,
            logprob_threshold: LOGPROB_THRESHOLD,
            no_speech_threshold: NO_SPEECH_THRESHOLD,
        }
    }
}

/// A word and when it is said, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Word {
    /// The word with the space before it and adjacent punctuation.
    pub text: String,
    /// When it begins.
    pub start: f64,
    /// When it ends.
    pub end: f64,
    /// The mean probability of its tokens.
    pub probability: f64,
}

/// A segment of the text and its times, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Segment {
    /// The start of its window, in frames of 0.01 s.
    pub seek: usize,
    /// When it begins.
    pub start: f64,
    /// When it ends.
    pub end: f64,
    /// The text, with the space before it.
    pub text: String,
    /// The tokens of the text and of its times.
    pub tokens: Vec<u32>,
    /// The temperature that the window's text was chosen at.
    pub temperature: f64,
    /// The mean log-probability of the window's tokens.
    pub avg_logprob: f64,
    /// Compression ratio of the window's text.
    pub compression_ratio: f64,
    /// The probability that the window has no speech.
    pub no_speech_prob: f64,
    /// Its words, if they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<Word>,
}

/// The result of a transcription.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Transcript {
    /// The code of the language; `en` for models of English alone.
    pub language: String,
    /// The length of the recording in seconds.
    pub duration: f64,
    /// In the order of time.
    pub segments: Vec<Segment>,
}

impl Transcript {
    /// The text of all segments.
    pub fn text(&self) -> String {
        let texts = self.segments.iter().map(|segment| segment.text.as_str());
        texts.collect::<String>().trim().to_string()
    }
}

/// A message to the listener of [`Transcriber::transcribe_async`].
#[derive(Debug, Clone, Copy)]
pub enum Heard<'a> {
    /// The text of the current window so far, which is 30 seconds of sound. It is replaced by the next draft, and by the window's segments.
    Draft(&'a str),
    /// A segment, which is final.
    Segment(&'a Segment),
}

/// A network, its vocabulary, and the settings.
pub struct Transcriber {
    network: Network,
    vocabulary: Box<dyn Vocabulary>,
    special: Special,
    options: Options,
    filters: Vec<f32>,
    /// Frames that the encoder takes at once.
    window: usize,
    /// The dtype of the encoder's input.
    dtype: DType,
    device: Device,
}

/// Checks that a model can do these.
fn check(special: &Special, options: &Options) -> Result<()> {
    if options.temperatures.is_empty() {
        bail!("whisper: no temperatures; use 0 for greedy decoding")
    }
    match (&options.language, special.languages.is_empty()) {
        (Some(code), true) if code != "en" => bail!(
            "whisper: the model is English-only, but the language {code:?} was requested; use a multilingual model"
        ),
        (Some(code), false) => drop(special.language(code)?),
        _ => {}
    }
    if options.translate && special.languages.is_empty() {
        bail!("whisper: the model is English-only and cannot translate; use a multilingual model")
    }
    Ok(())
}

impl Transcriber {
    /// Checks that the vocabulary and the options fit the network.
    ///
    /// # Errors
    /// The vocabulary lacks a token, the model does not know the language, or there is no temperature.
    pub fn new(
        network: impl Into<Network>,
        vocabulary: Box<dyn Vocabulary>,
        options: Options,
    ) -> Result<Self> {
        let network = network.into();
        let special = Special::of(vocabulary.as_ref(), network.config.vocab_size)?;
        check(&special, &options)?;
        let (dtype, device) = network.encoder.takes();
        Ok(Self {
            filters: mel_filters(network.config.num_mel_bins),
            window: (FRAMES * network.config.max_source_positions).min(N_FRAMES),
            special,
            vocabulary,
            options,
            dtype,
            device,
            network,
        })
    }

    /// The current options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Whether [`Self::set_options`] takes these.
    ///
    /// # Errors
    /// The model does not know the language or cannot translate, or there is no temperature.
    pub fn check_options(&self, options: &Options) -> Result<()> {
        check(&self.special, options)
    }

    /// Asks for something else from now on.
    ///
    /// # Errors
    /// As for [`Self::check_options`]; then the options stay what they were.
    pub fn set_options(&mut self, options: Options) -> Result<()> {
        check(&self.special, &options)?;
        self.options = options;
        Ok(())
    }

    /// The codes of the languages that the model knows; none for a model of English alone.
    pub fn languages(&self) -> impl Iterator<Item = &str> {
        self.special.languages.iter().map(|(code, _)| *code)
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

    /// As [`Self::transcribe`]; `go_on` runs after each token, also without speech, and ends the transcription with an error.
    ///
    /// # Errors
    /// The device fails, or `go_on` or `heard` does.
    pub fn transcribe_while(
        &mut self,
        samples: &[f32],
        mut go_on: impl FnMut() -> Result<()>,
        mut heard: impl FnMut(&Segment) -> Result<()>,
    ) -> Result<Transcript> {
        at_once(self.run(
            samples,
            Reading::Blocking,
            &mut async |said: Heard<'_>| match said {
                Heard::Segment(segment) => heard(segment),
                Heard::Draft(_) => go_on(),
            },
        ))
    }

    /// As [`Transcriber::transcribe`], without blocking the thread while the device works: the form for browsers. `heard` is also called
    /// with the text after each token, and may yield to other tasks before it returns.
    ///
    /// # Errors
    /// The device fails, or `heard` does, which ends the transcription.
    pub async fn transcribe_async(
        &mut self,
        samples: &[f32],
        mut heard: impl AsyncFnMut(Heard<'_>) -> Result<()>,
    ) -> Result<Transcript> {
        self.run(samples, Reading::Async, &mut heard).await
    }

    async fn run<H: AsyncFnMut(Heard<'_>) -> Result<()>>(
        &mut self,
        samples: &[f32],
        reading: Reading,
        heard: &mut H,
    ) -> Result<Transcript> {
        if let Some(bad) = samples.iter().position(|s| !s.is_finite()) {
            bail!(
                "whisper: sample {bad} is {}; samples are from -1 to 1",
                samples[bad]
            )
        }
        let mut padded = samples.to_vec();
        padded.resize(samples.len() + N_SAMPLES, 0.);
        let mel = log_mel(&padded, &self.filters)?;
        drop(padded);
        let bands = self.network.config.num_mel_bins;
        let all = mel.len() / bands.max(1);
        let mel = Tensor::from_vec(mel, (bands, all), &Device::Cpu)?;
        let frames = samples.len() / HOP_LENGTH;

        let mut rng = StdRng::seed_from_u64(self.options.seed);
        let mut language = self.options.language.clone();
        let mut before = self.options.initial_prompt.clone();
        let mut segments: Vec<Segment> = Vec::new();
        let mut seek = 0;
        while seek < frames {
            let size = self.window.min(frames - seek);
            let sound = self.encode(&mel.narrow(1, seek, size)?)?;
            let language = match &language {
                Some(known) => known.clone(),
                None => {
                    let found = self.detect(&sound, reading).await?.0;
                    language.insert(found).clone()
                }
            };
            let (answer, temperature, ratio) = self
                .answer(&sound, &language, &before, &mut rng, reading, heard)
                .await?;
            let is_silence = answer.no_speech > self.options.no_speech_threshold
                && answer.mean_log_probability < self.options.logprob_threshold;
            if is_silence {
                seek += size;
                continue;
            }
            let (pieces, advance) = self.pieces(&answer.tokens, size);
            let offset = seconds(seek);
            let mut found = Vec::new();
            for (range, tokens) in pieces {
                let text = self.text(&tokens)?;
                if text.trim().is_empty() || range.start >= range.end {
                    continue;
                }
                found.push(Segment {
                    seek,
                    start: offset + range.start,
                    end: offset + range.end,
                    text,
                    tokens,
                    temperature,
                    avg_logprob: answer.mean_log_probability,
                    compression_ratio: ratio,
                    no_speech_prob: answer.no_speech,
                    words: Vec::new(),
                });
            }
            if self.options.words {
                self.add_words(&mut found, &sound, size, offset, &language, reading)
                    .await?;
            }
            if self.options.condition_on_previous_text && temperature <= TRUSTED {
                before.extend(found.iter().flat_map(|segment| &segment.tokens))
            } else {
                before.clear()
            }
            for segment in &found {
                heard(Heard::Segment(segment)).await?;
            }
            segments.extend(found);
            seek += advance;
        }
        Ok(Transcript {
            language: language.unwrap_or_else(|| "en".to_string()),
            duration: samples.len() as f64 / SAMPLE_RATE as f64,
            segments,
        })
    }

    /// The language of `samples`, judged by the first 30 seconds, and its probability. `en` and 1 of a model of English alone.
    ///
    /// # Errors
    /// The device fails.
    pub fn detect_language(&mut self, samples: &[f32]) -> Result<(String, f64)> {
        let mut window = samples[..samples.len().min(N_SAMPLES)].to_vec();
        window.resize(N_SAMPLES, 0.);
        let mel = log_mel(&window, &self.filters)?;
        let bands = self.network.config.num_mel_bins;
        let mel = Tensor::from_vec(mel, (bands, N_FRAMES), &Device::Cpu)?;
        let sound = self.encode(&mel)?;
        at_once(self.detect(&sound, Reading::Blocking))
    }

    /// The encoder's output for frames that silence fills up to a window. What the decoder held of another window is forgotten.
    fn encode(&mut self, mel: &Tensor) -> Result<Tensor> {
        let frames = mel.dim(1)?;
        let mel = mel.pad_with_zeros(1, 0, self.window.saturating_sub(frames))?;
        let mel = mel.narrow(1, 0, self.window)?.unsqueeze(0)?;
        let mel = mel.to_dtype(self.dtype)?.to_device(&self.device)?;
        self.network.decoder.reset_kv_cache();
        self.network.encoder.forward(&mel, true)
    }

    async fn detect(&mut self, sound: &Tensor, reading: Reading) -> Result<(String, f64)> {
        if self.special.languages.is_empty() {
            return Ok(("en".to_string(), 1.));
        }
        let start = Tensor::new(&[[self.special.start]], sound.device())?;
        let hidden = self.network.decoder.forward(&start, sound, false)?;
        let logits = self.network.decoder.final_linear(&hidden)?.i((0, 0))?;
        let logits = reading.vector(&logits).await?;
        let languages = &self.special.languages;
        let of_languages: Vec<_> = languages
            .iter()
            .map(|(_, id)| logits[*id as usize])
            .collect();
        let best =
            (0..of_languages.len()).max_by(|a, b| of_languages[*a].total_cmp(&of_languages[*b]));
        let best = best.unwrap_or(0);
        let probability = window::probability(&of_languages, best as u32);
        Ok((languages[best].0.to_string(), probability))
    }

    /// Start, language and task.
    fn task(&self, language: &str) -> Result<Vec<u32>> {
        let mut prompt = vec![self.special.start];
        if !self.special.languages.is_empty() {
            prompt.push(self.special.language(language)?);
            prompt.push(if self.options.translate {
                self.special.translate
            } else {
                self.special.transcribe
            });
        }
        Ok(prompt)
    }

    /// The first answer that is not to be tried again, its temperature, and how well it compresses.
    async fn answer<H: AsyncFnMut(Heard<'_>) -> Result<()>>(
        &mut self,
        sound: &Tensor,
        language: &str,
        before: &[u32],
        rng: &mut StdRng,
        reading: Reading,
        heard: &mut H,
    ) -> Result<(Answer, f64, f64)> {
        let most = self.network.config.max_target_positions / 2;
        let mut prompt = Vec::new();
        if let Some(previous) = self.special.previous.filter(|_| !before.is_empty()) {
            prompt.push(previous);
            let kept = before.len().min(most.saturating_sub(1));
            prompt.extend(&before[before.len() - kept..]);
        }
        let start = prompt.len();
        prompt.extend(self.task(language)?);
        if !self.options.timestamps {
            prompt.push(self.special.no_timestamps);
        }
        let room = self
            .network
            .config
            .max_target_positions
            .saturating_sub(prompt.len());
        let special = self.special.clone();
        let question = Question {
            rules: Rules {
                special: &special,
                never: &self.network.config.suppress_tokens,
                times: self.options.timestamps,
            },
            start,
            most: most.min(room),
            prompt,
        };
        let mut last = (Answer::default(), 0., 0.);
        for temperature in self.options.temperatures.clone() {
            let vocabulary = self.vocabulary.as_ref();
            let mut drafts = async |tokens: &[u32]| match reading {
                // A listener that waits hears segments alone, and decides whether to go on.
                Reading::Blocking => heard(Heard::Draft("")).await,
                Reading::Async => {
                    let text = text_of(tokens, &special, vocabulary)?;
                    heard(Heard::Draft(&text)).await
                }
            };
            let decoder = &mut self.network.decoder;
            let answer = question.ask(decoder, sound, temperature, rng, reading, &mut drafts);
            let answer = answer.await?;
            let ratio = compression_ratio(&self.text(&answer.tokens)?);
            let improbable = answer.mean_log_probability < self.options.logprob_threshold;
            let silent = answer.no_speech > self.options.no_speech_threshold && improbable;
            let repeats = ratio > self.options.compression_ratio_threshold;
            let again = (repeats || improbable) && !silent;
            last = (answer, temperature, ratio);
            if !again {
                break;
            }
        }
        Ok(last)
    }

    /// The segments between time tokens, in seconds from the start of a window of `size` frames, and the number of frames up to the start
    /// of the next window.
    fn pieces(&self, tokens: &[u32], size: usize) -> (Vec<Piece>, usize) {
        let is_time = |token: &u32| *token >= self.special.first_time;
        let seconds_of = |token: &u32| self.special.seconds(*token);
        let pairs = (1..tokens.len()).filter(|i| is_time(&tokens[*i]) && is_time(&tokens[i - 1]));
        let mut ends: Vec<usize> = pairs.collect();
        // One time at the end: nothing was said after it.
        let ends_whole = match tokens {
            [.., before, last] => !is_time(before) && is_time(last),
            _ => false,
        };
        if ends.is_empty() {
            let last = tokens.iter().rev().find(|token| is_time(token));
            let end = match last.map(seconds_of) {
                Some(end) if end > 0. => end,
                _ => seconds(size),
            };
            return (vec![(0. ..end, tokens.to_vec())], size);
        }
        if ends_whole {
            ends.push(tokens.len());
        }
        let mut start = 0;
        let mut pieces = Vec::new();
        let mut last = 0.;
        for end in ends {
            let piece = &tokens[start..end];
            start = end;
            if let [first, .., end] = piece {
                last = seconds_of(end);
                pieces.push((seconds_of(first)..last, piece.to_vec()));
            }
        }
        let advance = if ends_whole {
            size
        } else {
            (last * 100.).round() as usize
        };
        // A window that begins where this one does would give the same text for ever.
        let advance = if advance == 0 { size } else { advance };
        (pieces, advance.min(size))
    }

    /// The text of tokens, among which may be times.
    fn text(&self, tokens: &[u32]) -> Result<String> {
        text_of(tokens, &self.special, self.vocabulary.as_ref())
    }

    /// Aligns the text of a window and gives each segment its words.
    async fn add_words(
        &mut self,
        segments: &mut [Segment],
        sound: &Tensor,
        size: usize,
        offset: f64,
        language: &str,
        reading: Reading,
    ) -> Result<()> {
        let words_of = |segment: &Segment| -> Vec<u32> {
            let words = segment.tokens.iter().copied();
            words.filter(|t| *t < self.special.end).collect()
        };
        let texts: Vec<_> = segments.iter().map(words_of).collect();
        let alignment = Alignment {
            special: &self.special,
            vocabulary: self.vocabulary.as_ref(),
            heads: &self.options.alignment_heads,
            prompt: &self.task(language)?,
            language: Some(language),
        };
        let decoder = &mut self.network.decoder;
        let positions = size.div_ceil(FRAMES);
        let texts = texts.concat();
        let words = alignment.words(&texts, sound, positions, decoder, reading);
        let words = words.await?;
        // A word belongs to the segment in whose text it ends; text that a vocabulary writes differently token by token, to the last.
        let mut words = words.into_iter().peekable();
        let mut taken = 0;
        let mut until = 0;
        let last = segments.len().saturating_sub(1);
        for (i, segment) in segments.iter_mut().enumerate() {
            until += segment.text.chars().count();
            while let Some(word) = words.peek() {
                let len = word.text.chars().count();
                if taken + len > until && i < last {
                    break;
                }
                taken += len;
                segment.words.extend(words.next().map(|word| Word {
                    start: offset + word.start,
                    end: offset + word.end,
                    ..word
                }));
            }
        }
        Ok(())
    }
}

/// The text of tokens, among which may be times.
fn text_of(tokens: &[u32], special: &Special, vocabulary: &dyn Vocabulary) -> Result<String> {
    let words = tokens.iter().copied().filter(|t| *t < special.end);
    vocabulary.text(&words.collect::<Vec<_>>())
}

/// The seconds of a number of frames.
fn seconds(frames: usize) -> f64 {
    (frames * HOP_LENGTH) as f64 / SAMPLE_RATE as f64
}

/// Ratio of a text's length to that of its compressed form; higher for a text that repeats itself.
pub fn compression_ratio(text: &str) -> f64 {
    let compressed = miniz_oxide::deflate::compress_to_vec_zlib(text.as_bytes(), 6);
    text.len() as f64 / compressed.len().max(1) as f64
}
