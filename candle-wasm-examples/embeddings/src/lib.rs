//! Sentence similarity with a BERT on the browser's GPU or on the CPU.

#![deny(missing_docs)]

#[path = "../../../candle-transformers/examples/bert_similarity/sentences.rs"]
mod sentences;

use browser::files::{JsSource, Source};
use browser::gpu::Place;
use candle_core::DType;
use candle_engine::PartSource;
use candle_nn::VarBuilder;
use sentences::{read_config, read_tokenizer, Sentences};
use wasm_bindgen::prelude::*;

/// A model that turns sentences into vectors.
#[wasm_bindgen]
pub struct Embedder {
    sentences: Sentences,
    place: Place,
}

#[wasm_bindgen]
impl Embedder {
    /// Loads a BERT from the files of a Hugging Face folder, to the GPU if there is one or, as `cpu` asks, to the CPU.
    pub async fn load(source: JsSource, cpu: bool) -> Result<Embedder, JsError> {
        let PartSource::Folder {
            config,
            tokenizer,
            weights,
            ..
        } = Source::of_js(&source)?.parts()
        else {
            return Err(JsError::new(
                "this page loads BERT models from config.json, tokenizer.json and .safetensors files, not from GGUF",
            ));
        };
        let config = read_config(&config).map_err(error)?;
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
        let sentences = Sentences::new(&config, tokenizer, weights).map_err(error)?;
        Ok(Self { sentences, place })
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

    /// A vector of length 1 for each text, concatenated.
    pub async fn vectors(&self, texts: Vec<String>) -> Result<Vec<f32>, JsError> {
        let vectors = self.sentences.embed(&texts).map_err(error)?;
        let flat = vectors.flatten_all().map_err(error)?;
        flat.to_vec1_async().await.map_err(error)
    }

    /// The similarity of each pair of texts, from -1 to 1: a row per text, concatenated.
    pub async fn similarities(&self, texts: Vec<String>) -> Result<Vec<f32>, JsError> {
        let matrix = self.sentences.similarities(&texts).map_err(error)?;
        let flat = matrix.flatten_all().map_err(error)?;
        flat.to_vec1_async().await.map_err(error)
    }
}

fn error(err: candle_core::Error) -> JsError {
    JsError::new(&err.to_string())
}
