//! Language models of the host, which guests ask by `fermyon:spin/llm@2.0.0`.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use candle_core::Device;
use candle_engine::embed::EncoderFiles;
use candle_engine::{CandleBackend, CompletionRequest, InferenceBackend, ModelFiles, ModelSource};
use candle_transformers::embed::{Options, TextEncoder};
use tokio::task::spawn_blocking;
use wasmtime::component::{HasSelf, Linker};

use crate::bindings::spin::fermyon::spin::llm;
use crate::error::{bounded, line, shortened};
use crate::guest::State;
use crate::{Error, Result};

/// The defaults for a guest that passes no parameters: Spin's.
const PARAMS: llm::InferencingParams = llm::InferencingParams {
    max_tokens: 100,
    repeat_penalty: 1.1,
    repeat_penalty_last_n_token_count: 64,
    temperature: 0.8,
    top_k: 40,
    top_p: 0.9,
};

/// Language models, each by the name that guests ask for. A clone shares them.
///
/// Guests of one [`Runner`](crate::Runner) share its models: they are not part of a guest's memory, and what one guest asks, no other
/// sees.
#[derive(Clone, Default)]
pub struct Models {
    texts: Vec<(String, Arc<dyn InferenceBackend>)>,
    embeddings: Vec<(String, Arc<Sentences>)>,
}

impl Models {
    /// No models: guests get `model-not-supported`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Loads a model that makes text, from a Hugging Face folder or a GGUF file, as [`ModelFiles`] reads them. A model of the same name
    /// is replaced.
    ///
    /// # Errors
    /// [`Error::Model`] with the file, field or tensor that is missing or does not fit.
    pub fn load(&mut self, name: &str, path: &Path, device: &Device) -> Result<()> {
        let model = open(path, device).map_err(|reason| Error::Model {
            name: name.to_string(),
            reason,
        })?;
        self.add(name, Arc::new(model));
        Ok(())
    }

    /// As [`Models::load`], a model that is there already.
    pub fn add(&mut self, name: &str, model: Arc<dyn InferenceBackend>) {
        self.texts.retain(|(other, _)| other != name);
        self.texts.push((name.to_string(), model));
    }

    /// Loads a model that makes vectors of texts, such as `all-MiniLM-L6-v2`, from a Hugging Face folder, as [`EncoderFiles`] reads it. A
    /// text's vector has length 1.
    ///
    /// # Errors
    /// As [`Models::load`].
    pub fn load_embeddings(&mut self, name: &str, folder: &Path, device: &Device) -> Result<()> {
        let model = Sentences::open(folder, device).map_err(|reason| Error::Model {
            name: name.to_string(),
            reason,
        })?;
        self.embeddings.retain(|(other, _)| other != name);
        self.embeddings.push((name.to_string(), Arc::new(model)));
        Ok(())
    }

    /// The names of all models.
    pub fn names(&self) -> Vec<&str> {
        let texts = self.texts.iter().map(|(name, _)| name.as_str());
        let embeddings = self.embeddings.iter().map(|(name, _)| name.as_str());
        texts.chain(embeddings).collect()
    }
}

impl std::fmt::Debug for Models {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Models")
            .field("names", &self.names())
            .finish_non_exhaustive()
    }
}

fn open(path: &Path, device: &Device) -> std::result::Result<CandleBackend, String> {
    if !path.exists() {
        return Err(format!(
            "there is nothing at {}: give a Hugging Face folder or a GGUF file",
            path.display()
        ));
    }
    let load = || {
        let files = ModelFiles::open(&ModelSource::at(path.to_path_buf()))?;
        let dtype = files.default_dtype(device);
        CandleBackend::load(files, "wasi-gpu", device, dtype, &|_| ())
    };
    load().map_err(|err| line(&err))
}

fn find<T: ?Sized>(models: &[(String, Arc<T>)], asked: &str) -> Option<Arc<T>> {
    let found = models.iter().find(|(name, _)| name == asked);
    found.map(|(_, model)| model.clone())
}

fn request(prompt: String, params: llm::InferencingParams) -> CompletionRequest {
    CompletionRequest {
        prompt,
        max_tokens: params.max_tokens as usize,
        temperature: params.temperature.into(),
        top_k: (params.top_k > 0).then_some(params.top_k as usize),
        top_p: Some(params.top_p.into()),
        repeat_penalty: params.repeat_penalty,
        repeat_last_n: params.repeat_penalty_last_n_token_count as usize,
        // The interface has no seed: the same prompt may give another text.
        seed: RandomState::new().build_hasher().finish(),
        ..CompletionRequest::default()
    }
}

impl From<candle_engine::Error> for llm::Error {
    fn from(err: candle_engine::Error) -> Self {
        use candle_engine::Error as From;
        let text = bounded(&err.to_string());
        match err {
            From::Parameter { .. }
            | From::EmptyPrompt
            | From::PromptTooLong { .. }
            | From::Tokenizer(_) => Self::InvalidInput(text),
            _ => Self::RuntimeError(text),
        }
    }
}

/// Cancels a model's text when it is dropped.
#[derive(Default)]
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

impl llm::Host for Models {
    async fn infer(
        &mut self,
        model: String,
        prompt: String,
        params: Option<llm::InferencingParams>,
    ) -> wasmtime::Result<std::result::Result<llm::InferencingResult, llm::Error>> {
        let Some(model) = find(&self.texts, &model) else {
            return Ok(Err(llm::Error::ModelNotSupported));
        };
        let request = request(prompt, params.unwrap_or(PARAMS));
        let waiting = Waiting::default();
        let given_up = waiting.0.clone();
        let done = spawn_blocking(move || {
            model.complete_stream(&request, &mut |_| {
                if given_up.load(Ordering::Relaxed) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
        })
        .await?;
        drop(waiting);
        Ok(done
            .map(|completion| llm::InferencingResult {
                usage: llm::InferencingUsage {
                    prompt_token_count: count(completion.prompt_tokens),
                    generated_token_count: count(completion.token_ids.len()),
                },
                text: completion.text,
            })
            .map_err(llm::Error::from))
    }

    async fn generate_embeddings(
        &mut self,
        model: String,
        text: Vec<String>,
    ) -> wasmtime::Result<std::result::Result<llm::EmbeddingsResult, llm::Error>> {
        let Some(model) = find(&self.embeddings, &model) else {
            return Ok(Err(llm::Error::ModelNotSupported));
        };
        let waiting = Waiting::default();
        let given_up = waiting.0.clone();
        let made = spawn_blocking(move || model.embed(&text, &given_up)).await?;
        drop(waiting);
        Ok(made.map(|(embeddings, tokens)| llm::EmbeddingsResult {
            embeddings,
            usage: llm::EmbeddingsUsage {
                prompt_token_count: count(tokens),
            },
        }))
    }
}

/// A model that makes vectors of texts, and its tokenizer.
struct Sentences {
    files: EncoderFiles,
    model: TextEncoder,
}

impl Sentences {
    fn open(folder: &Path, device: &Device) -> std::result::Result<Self, String> {
        let open = || EncoderFiles::open(folder, None);
        let model = open().and_then(|files| files.load(device));
        Ok(Self {
            files: open().map_err(|err| line(&err))?,
            model: model.map_err(|err| line(&err))?,
        })
    }

    /// A vector for each text, and how many tokens they had. One text at a time: memory does not grow with their number.
    fn embed(
        &self,
        texts: &[String],
        given_up: &AtomicBool,
    ) -> std::result::Result<(Vec<Vec<f32>>, usize), llm::Error> {
        let invalid = |text: String| llm::Error::InvalidInput(shortened(text));
        let mut tokens = Vec::with_capacity(texts.len());
        for (i, text) in texts.iter().enumerate() {
            let named = format!("text {}", i + 1);
            let found = self.files.tokens(&named, "", text);
            let found = found.map_err(|err| invalid(bounded(&err.to_string())))?;
            if found.cut {
                // What is left is as long as it may be.
                let most = found.ids.len();
                return Err(invalid(format!(
                    "{named} has more tokens than the model takes, {most}"
                )));
            }
            tokens.push(found);
        }
        let options = Options {
            normalize: true,
            ..self.files.options()
        };
        let mut vectors = Vec::with_capacity(texts.len());
        for text in &tokens {
            if given_up.load(Ordering::Relaxed) {
                break;
            }
            let vector = self.model.embed(std::slice::from_ref(text), &options);
            let vector = vector.and_then(|vector| vector.squeeze(0)?.to_vec1());
            vectors.push(vector.map_err(|err| llm::Error::RuntimeError(line(&err)))?);
        }
        Ok((vectors, tokens.iter().map(|text| text.ids.len()).sum()))
    }
}

/// Offers `fermyon:spin/llm` to guests.
pub(crate) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    llm::add_to_linker::<_, HasSelf<Models>>(linker, |state: &mut State| &mut state.models)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_become_a_request() {
        let params = llm::InferencingParams {
            max_tokens: 7,
            repeat_penalty: 1.5,
            repeat_penalty_last_n_token_count: 9,
            temperature: 0.5,
            top_k: 3,
            top_p: 0.75,
        };
        let request = |params| request("x".into(), params);
        let first = request(params);
        let seed = first.seed;
        let want = CompletionRequest {
            prompt: "x".into(),
            max_tokens: 7,
            temperature: 0.5,
            top_k: Some(3),
            top_p: Some(0.75),
            repeat_penalty: 1.5,
            repeat_last_n: 9,
            seed,
            ..CompletionRequest::default()
        };
        assert_eq!(first, want);
        assert_ne!(request(params).seed, seed);
        assert_eq!(
            request(llm::InferencingParams { top_k: 0, ..params }).top_k,
            None
        );
        request(PARAMS).validate().unwrap();
    }

    #[test]
    fn errors_are_the_interface_s() {
        let too_long = candle_engine::Error::PromptTooLong {
            tokens: 9,
            limit: 8,
        };
        for (err, invalid) in [
            (candle_engine::Error::EmptyPrompt, true),
            (too_long, true),
            (candle_engine::Error::Batch("x".into()), false),
        ] {
            let text = err.to_string();
            match llm::Error::from(err) {
                llm::Error::InvalidInput(said) => assert!(invalid && said == text, "{said}"),
                llm::Error::RuntimeError(said) => assert!(!invalid && said == text, "{said}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
