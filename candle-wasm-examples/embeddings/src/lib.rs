//! What sentences mean, by a BERT on the browser's GPU or on the CPU: as vectors, or as words with weights.

#![deny(missing_docs)]

#[path = "../../../candle-transformers/examples/common/bert.rs"]
mod bert;
#[path = "../../../candle-transformers/examples/bert_similarity/sentences.rs"]
mod sentences;
#[path = "../../../candle-transformers/examples/splade/words.rs"]
mod words;

use bert::{read_config, read_tokenizer};
use browser::files::{JsSource, Source};
use browser::gpu::Place;
use candle_core::{DType, Tensor, D};
use candle_engine::PartSource;
use candle_nn::VarBuilder;
use js_sys::{Array, Object, Reflect};
use sentences::Sentences;
use wasm_bindgen::prelude::*;
use wasm_bindgen::JsCast;
use words::Splade;

/// TypeScript types that wasm-bindgen cannot generate.
#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** A word of a model's vocabulary that a text is about. The word need not be in the text. */
export interface Word {
    word: string;
    /** Above 0. */
    weight: number;
}
"#;

#[wasm_bindgen]
extern "C" {
    /// For each text a list of `Word` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "Word[][]")]
    pub type JsWords;
}

/// A model of sentences.
#[wasm_bindgen]
pub struct Embedder {
    model: Model,
    place: Place,
}

enum Model {
    /// A BERT of sentence-transformers.
    Vectors(Sentences),
    /// A SPLADE.
    Words(Splade),
}

#[wasm_bindgen]
impl Embedder {
    /// Loads a BERT from the files of a Hugging Face folder, to the GPU if there is one or, as `cpu` asks, to the CPU.
    pub async fn load(source: JsSource, cpu: bool) -> Result<Embedder, JsError> {
        let PartSource::Folder {
            config: json,
            tokenizer,
            weights,
            ..
        } = Source::of_js(&source)?.parts()
        else {
            return Err(JsError::new(
                "this page loads BERT models from config.json, tokenizer.json and .safetensors files, not from GGUF",
            ));
        };
        let config = read_config(&json).map_err(error)?;
        let tokenizer = read_tokenizer(&tokenizer, &config).map_err(error)?;
        let place = if cpu {
            Place::cpu("selected by you")
        } else {
            Place::gpu().await
        };
        let device = &place.device;
        let tensors = candle_engine::model::load_parts(&weights, DType::F32, device).await;
        let tensors = tensors.map_err(|err| JsError::new(&err.to_string()))?;
        let weights = VarBuilder::from_tensors(tensors, DType::F32, device);
        let model = if guesses_words(&json) {
            Model::Words(Splade::new(&config, tokenizer, weights).map_err(error)?)
        } else {
            Model::Vectors(Sentences::new(&config, tokenizer, weights).map_err(error)?)
        };
        Ok(Self { model, place })
    }

    /// The model's device.
    #[wasm_bindgen(getter)]
    pub fn device(&self) -> String {
        self.place.describe()
    }

    /// The reason for running on the CPU; `undefined` on a GPU.
    #[wasm_bindgen(getter)]
    pub fn cpu_reason(&self) -> Option<String> {
        self.place.cpu_reason()
    }

    /// The model's output: `vectors`, or `words` of a BERT with the head that guesses hidden words (BertForMaskedLM), such as SPLADE.
    #[wasm_bindgen(getter)]
    pub fn output(&self) -> String {
        match self.model {
            Model::Vectors(_) => "vectors",
            Model::Words(_) => "words",
        }
        .to_string()
    }

    /// A vector of length 1 for each text, concatenated.
    pub async fn vectors(&self, texts: Vec<String>) -> Result<Vec<f32>, JsError> {
        let Model::Vectors(sentences) = &self.model else {
            return Err(JsError::new(
                "the model is a BertForMaskedLM, whose output is words: call `words`, or load a model of sentence-transformers",
            ));
        };
        read(sentences.embed(&texts)).await
    }

    /// The words that each text is about, heaviest first. How alike two texts are is the sum of the products of their words' weights.
    pub async fn words(&self, texts: Vec<String>) -> Result<JsWords, JsError> {
        let Model::Words(splade) = &self.model else {
            return Err(JsError::new(
                "the model's output is vectors: call `vectors`, or load a BertForMaskedLM such as SPLADE",
            ));
        };
        let weights = read(splade.weights(&texts)).await?;
        let lists = Array::new();
        for row in weights.chunks(weights.len() / texts.len()) {
            let words = splade.words(row).into_iter().map(|(word, weight)| {
                let object = Object::new();
                // A new object takes every name.
                let _ = Reflect::set(&object, &"word".into(), &word.into());
                let _ = Reflect::set(&object, &"weight".into(), &weight.into());
                object
            });
            lists.push(&words.collect::<Array>());
        }
        Ok(lists.unchecked_into())
    }

    /// The similarity of each pair of texts, from -1 to 1: a row per text, concatenated. Of words, the cosine of their weights.
    pub async fn similarities(&self, texts: Vec<String>) -> Result<Vec<f32>, JsError> {
        let matrix = match &self.model {
            Model::Vectors(sentences) => sentences.similarities(&texts),
            Model::Words(splade) => splade.weights(&texts).and_then(|weights| cosines(&weights)),
        };
        read(matrix).await
    }
}

/// Whether the model that a `config.json` describes has a head that guesses hidden words. `read_config` checks the rest.
fn guesses_words(config: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Kind {
        #[serde(default)]
        architectures: Vec<String>,
    }
    serde_json::from_slice(config).is_ok_and(|kind: Kind| {
        kind.architectures
            .iter()
            .any(|name| name == "BertForMaskedLM")
    })
}

/// The cosine of the angle between each two rows. A text without words is like no other.
fn cosines(weights: &Tensor) -> candle_core::Result<Tensor> {
    let length = (weights.sqr()?.sum_keepdim(D::Minus1)?.sqrt()? + 1e-12)?;
    let unit = weights.broadcast_div(&length)?;
    unit.matmul(&unit.t()?)
}

async fn read(tensor: candle_core::Result<Tensor>) -> Result<Vec<f32>, JsError> {
    let flat = tensor.and_then(|tensor| tensor.flatten_all());
    flat.map_err(error)?.to_vec1_async().await.map_err(error)
}

fn error(err: candle_core::Error) -> JsError {
    JsError::new(&err.to_string())
}
