//! Scores of documents for a query: a folder of Hugging Face with a cross-encoder or a Qwen3-Reranker, and what sentence-transformers wrote into it.
//!
//! ```no_run
//! use candle_core::Device;
//! use candle_engine::rerank::RerankerFiles;
//! # fn main() -> candle_engine::Result<()> {
//! let files = RerankerFiles::open("bge-reranker-v2-m3".as_ref())?;
//! let query = files.query("the query", "Who wrote Faust?")?;
//! let pair = files.pair("the document", &query, "Goethe worked on Faust for sixty years.")?;
//! let scores = files.load(&Device::Cpu)?.scores(&[pair], &files.options());
//! println!("{}", scores.expect("they run"));
//! # Ok(())
//! # }
//! ```

mod pairs;
mod prompt;

use crate::error::{brief, Doing};
use crate::model::open_weights;
use crate::{encoder_folder, Error, Result};
use candle_core::Device;
use candle_transformers::embed::EncoderConfig;
use candle_transformers::rerank::{Options, Recipe, Reranker, RerankerConfig, Scale};
use pairs::{wrong, Pairing};
pub use pairs::{PairTokens, QueryTokens};
use prompt::{Prompt, TASK};
use std::path::{Path, PathBuf};

/// A reranker that has been read and checked, and is on no device yet.
pub struct RerankerFiles {
    /// The name of the model in messages.
    pub name: String,
    config: RerankerConfig,
    recipe: Recipe,
    pairing: Pairing,
    files: Vec<PathBuf>,
}

impl RerankerFiles {
    /// Reads `config.json`, `tokenizer.json`, the headers of the weights, and if they are there the files of sentence-transformers
    /// ([`Recipe::read`]).
    ///
    /// # Errors
    /// The first file or field that is missing or does not fit; a model without a head that scores pairs, or of a family that is not known.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::open_for(folder, None)
    }

    /// As [`open`](Self::open), with another task for a language model that answers yes or no, such as `Given a question, retrieve code that
    /// answers it`. The default is a search of the web.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and a task for a model with a head.
    pub fn open_for(folder: &Path, task: Option<&str>) -> Result<Self> {
        if folder.is_file() {
            let problem = "is a file; rerank takes the Hugging Face folder of a model (config.json, tokenizer.json, safetensors)";
            return Err(Error::file(folder, problem));
        }
        let (file, config) = encoder_folder::config(folder)?;
        let mut config =
            RerankerConfig::parse(&config).map_err(|err| Error::file(&file, brief(&err)))?;
        if task.is_some() && !config.answers() {
            let problem = format!(
                "{} has a head that scores pairs and takes no instruction; leave it out",
                config.encoder().model_type
            );
            return Err(Error::file(&file, problem));
        }
        let recipe = Recipe::read(&mut encoder_folder::reader(folder))
            .map_err(|err| Error::file(folder, brief(&err)))?;
        let (file, mut tokenizer) = encoder_folder::tokenizer(folder)?;
        let mut prompt = None;
        if config.answers() {
            let task = task.unwrap_or(TASK);
            let (made, answers) =
                Prompt::new(&mut tokenizer, task).map_err(|problem| Error::file(&file, problem))?;
            config = config.with_answers(answers);
            prompt = Some(made);
        }
        let most = recipe.max_tokens.unwrap_or(usize::MAX);
        let most = most.min(config.encoder().max_tokens);
        let pairing = Pairing::new(tokenizer, most, recipe.lowercase, prompt)
            .map_err(|problem| Error::file(&file, problem))?;
        let weights = open_weights(folder)?;
        Ok(Self {
            name: folder.display().to_string(),
            config,
            recipe,
            pairing,
            files: weights.files().map(Path::to_path_buf).collect(),
        })
    }

    /// The encoder below the head, or the language model.
    pub fn config(&self) -> &EncoderConfig {
        self.config.encoder()
    }

    /// The options with which the model's scores are meant to be computed.
    pub fn options(&self) -> Options {
        Options {
            scale: self.recipe.scale,
            ..Options::default()
        }
    }

    /// The tokens of a query; `origin` is its name in messages.
    ///
    /// # Errors
    /// A text that is empty, or one that the tokenizer refuses.
    pub fn query(&self, origin: &str, text: &str) -> Result<QueryTokens> {
        self.pairing.query(origin, text)
    }

    /// The tokens of a query and a document together; `origin` is the document's name in messages. If they are too long, the end of the
    /// longer one is cut off, and a warning is logged.
    ///
    /// # Errors
    /// A document that is empty, or one that the tokenizer refuses.
    pub fn pair(&self, origin: &str, query: &QueryTokens, document: &str) -> Result<PairTokens> {
        let tokens = self.pairing.pair(origin, query, document)?;
        if tokens.cut {
            tracing::warn!(
                "{origin}: the query and the document are longer than the model's limit; truncated to {} tokens",
                tokens.pair.ids.len()
            );
        }
        Ok(tokens)
    }

    /// The model on `device`, in f32.
    ///
    /// # Errors
    /// A weight that is missing or has another shape than the configuration says, or a device that fails.
    pub fn load(&self, device: &Device) -> Result<Reranker> {
        let load = || {
            let weights = encoder_folder::weights(&self.files, device)?;
            self.config.clone().load(weights)
        };
        load().doing("loading the weights")
    }
}

/// The indices of documents and their scores, the best first. Documents with equal scores stay in their order.
///
/// # Errors
/// A score that is not a finite number: the weights are damaged, or leave the range of f32.
pub fn ranked(scores: Vec<f32>) -> Result<Vec<(usize, f32)>> {
    if let Some(at) = scores.iter().position(|score| !score.is_finite()) {
        let problem = format!("its score is {}; check the model's weights", scores[at]);
        return Err(wrong(&format!("document {}", at + 1), problem));
    }
    let mut ranked: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    Ok(ranked)
}

/// The name of a scale in messages.
pub fn scale_name(scale: Scale) -> &'static str {
    match scale {
        Scale::Sigmoid => "scores of 0 to 1",
        Scale::Identity => "logits",
    }
}

#[cfg(test)]
mod tests {
    use super::ranked;

    #[test]
    fn the_best_comes_first_and_what_is_not_a_number_is_an_error() {
        let order: Vec<usize> = ranked(vec![0.5, -3., 2., 0.5])
            .unwrap()
            .iter()
            .map(|(place, _)| *place)
            .collect();
        assert_eq!(order, [2, 0, 3, 1]);
        let problem = ranked(vec![0.5, f32::NAN]).unwrap_err().to_string();
        assert!(
            problem.contains("document 2") && problem.contains("NaN"),
            "{problem}"
        );
    }
}
