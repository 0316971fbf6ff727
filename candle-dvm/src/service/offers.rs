//! What a service offers: the models that do its jobs, what they take and what comes of it.

use super::work::Generator;
use crate::nip90::{JobKind, SpeechParams, Task};
use candle_engine::backend::{Completion, CompletionRequest};
#[cfg(not(target_arch = "wasm32"))]
use candle_engine::batch::CacheMemory;
use candle_engine::model::ChatTemplate;
use candle_engine::thinking::{split, Part, Splitter};
use candle_engine::Result as EngineResult;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A sound file as it was fetched.
pub struct Recording {
    /// Its name in messages; the ending is a hint at the format.
    pub name: String,
    /// The file.
    pub bytes: Vec<u8>,
}

/// A speech model. It is called from several threads, transcribes one recording at a time, and blocks the thread that it runs on.
pub trait Listener: Send + Sync + 'static {
    /// Codes of the languages that it knows.
    fn languages(&self) -> &[&'static str];

    /// Whether it translates to English.
    fn translates(&self) -> bool;

    /// Whether a recording can be heard at all.
    ///
    /// # Errors
    /// A format that is not known, and a recording that is too long.
    fn check(&self, recording: &Recording) -> EngineResult<()>;

    /// Transcribes a recording. Calls `on_piece` with each piece of text, and with an empty one before each window; stops if it returns
    /// `Break`.
    ///
    /// # Errors
    /// Failures of the device, and the stop itself.
    fn listen(
        &self,
        recording: &Recording,
        asked: &SpeechParams,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> EngineResult<Product>;
}

/// The outcome of a job.
pub struct Product {
    /// The answer, without thoughts.
    pub text: String,
    /// Tokens that were read; 0 of a recording.
    pub prompt_tokens: usize,
    /// Generated tokens.
    pub tokens: usize,
    /// The duration.
    pub seconds: f64,
}

impl Product {
    fn of(completion: &Completion, request: &CompletionRequest) -> Self {
        let timings = &completion.timings;
        Self {
            prompt_tokens: completion.prompt_tokens,
            tokens: completion.token_ids.len(),
            seconds: timings.prompt_seconds + timings.generation_seconds,
            text: split(request.thinking.as_ref(), &completion.text).1,
        }
    }
}

/// A job that is ready to run.
pub enum Ready {
    /// A prompt, for a language model.
    Text(Arc<dyn Generator>, CompletionRequest),
    /// A recording and its parameters, for a speech model.
    Speech(Arc<dyn Listener>, Recording, SpeechParams),
}

impl Ready {
    pub(super) fn kind(&self) -> JobKind {
        match self {
            Self::Text(..) => JobKind::Text,
            Self::Speech(..) => JobKind::Speech,
        }
    }

    /// Does the job; see [`Generator::generate`] and [`Listener::listen`]. Thoughts of a language model are not heard.
    pub(super) async fn run(
        &self,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> EngineResult<Product> {
        match self {
            Self::Text(generator, request) => {
                let mut splitter = Splitter::new(request.thinking.as_ref());
                // Pieces without an answer ask whether to continue.
                let mut hear = |piece: &str| on_piece(&answer_in(splitter.push(piece)));
                let done = generator.generate(request, &mut hear).await;
                done.map(|completion| Product::of(&completion, request))
            }
            Self::Speech(listener, recording, asked) => listener.listen(recording, asked, on_piece),
        }
    }
}

fn answer_in(parts: Vec<Part>) -> String {
    let answers = parts.into_iter().filter_map(|part| match part {
        Part::Answer(text) => Some(text),
        Part::Thought(_) => None,
    });
    answers.collect()
}

/// A language model.
pub(super) struct TextOffer {
    pub(super) model: String,
    pub(super) generator: Arc<dyn Generator>,
    pub(super) template: Option<ChatTemplate>,
}

/// A speech model.
pub(super) struct SpeechOffer {
    pub(super) model: String,
    pub(super) listener: Arc<dyn Listener>,
}

impl SpeechOffer {
    /// The first parameter that it cannot satisfy, in a line that quotes nothing of it.
    pub(super) fn problem(&self, asked: &SpeechParams) -> Option<String> {
        let languages = self.listener.languages();
        let knows = |code: &String| languages.contains(&code.as_str());
        if !asked.language.as_ref().is_none_or(knows) {
            let expected = languages.join(", ");
            return Some(format!("`language`: this model knows {expected}"));
        }
        let translates = !asked.translate || self.listener.translates();
        (!translates).then(|| "`translate`: this model cannot translate".to_string())
    }
}

/// The models of a service.
#[derive(Default)]
pub struct Offers {
    pub(super) text: Option<TextOffer>,
    pub(super) speech: Option<SpeechOffer>,
}

impl Offers {
    /// Generates texts, with a model of this name. With a template, prompts go through it unless they or the settings want it otherwise.
    pub fn text(
        mut self,
        model: String,
        generator: Arc<dyn Generator>,
        template: Option<ChatTemplate>,
    ) -> Self {
        self.text = Some(TextOffer {
            model,
            generator,
            template,
        });
        self
    }

    /// Transcribes recordings, with a model of this name.
    pub fn speech(mut self, model: String, listener: Arc<dyn Listener>) -> Self {
        self.speech = Some(SpeechOffer { model, listener });
        self
    }

    /// The sorts of jobs that are done.
    pub(super) fn kinds(&self) -> Vec<JobKind> {
        let offered = |kind: &JobKind| self.model(*kind).is_some();
        JobKind::ALL.into_iter().filter(offered).collect()
    }

    /// The name of the model that does such jobs.
    pub(super) fn model(&self, kind: JobKind) -> Option<&str> {
        match kind {
            JobKind::Text => self.text.as_ref().map(|text| text.model.as_str()),
            JobKind::Speech => self.speech.as_ref().map(|speech| speech.model.as_str()),
        }
    }

    /// The reason why a model cannot do a job that names no model or this one.
    pub(super) fn problem(&self, task: &Task) -> Option<String> {
        match task {
            Task::Text(params) => {
                let templates = self
                    .text
                    .as_ref()
                    .is_some_and(|text| text.template.is_some());
                let wants = params.raw == Some(false) && !templates;
                wants.then(|| super::prompt::NO_TEMPLATE.to_string())
            }
            Task::Speech(params) => self.speech.as_ref()?.problem(params),
        }
    }

    /// See [`Generator::cache_memory`].
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn cache_memory(&self) -> Option<CacheMemory> {
        self.text.as_ref()?.generator.cache_memory()
    }

    /// The reason why a model fails at every job from now on, if one does.
    pub(super) fn failure(&self) -> Option<String> {
        self.text.as_ref()?.generator.failure()
    }
}
